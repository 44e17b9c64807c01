"""What state in an object store costs: the same run with its checkpoint on a local disk and in S3 on loopback.

python benchmarks/stores.py                          # 60 micro-batches of the w2 workload, three times each, in turn
python benchmarks/stores.py --scale 0.05 --rounds 1
python benchmarks/stores.py --latency-ms 20          # every request to the store takes so much longer
python benchmarks/stores.py --table memory --limit-mb 700 --window 600     # windows larger than memory

The server is `versitygw` if it is on PATH, else moto's, which takes part of the processor time that is measured. With
--table memory every process of the run may have so many bytes of its own (RLIMIT_DATA); pages of mapped files do not
count.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb
import oracle
import ours
from measure import Measurement, measure
from workload import Workload, add_arguments, from_arguments, generate

sys.path.insert(0, str(ours.HERE.parent / "scripts"))
sys.path.insert(0, str(ours.HERE.parent / "tests"))

from s3 import Faults, environment, new_url, serve_s3


def write_expected(workload: Workload, paths: Sequence[Path], target: Path) -> Path:
    """The answers by DuckDB."""
    with duckdb.connect() as db:
        db.execute(f"COPY ({oracle.oracle_sql(paths, workload.window_us, slots=True)}) TO '{target}' (FORMAT parquet)")
    return target


def run(
    workload: Workload,
    paths: Sequence[Path],
    directory: Path,
    expected: Path,
    *,
    checkpoint: str | None = None,
    env: Mapping[str, str] | None = None,
    limit_mb: int | None = None,
    place: Sequence[str] = (),
) -> tuple[Measurement, float, int]:
    """One run: what it took, the median of its micro-batches in seconds, and its largest state in bytes.

    `place` are options that say where Spark is.
    """
    shutil.rmtree(directory, ignore_errors=True)
    command, output = ours.prepare(workload, paths, directory)
    if place:
        command = [*command[: command.index("--master")], *place]
    if checkpoint is not None:
        command[command.index("--checkpoint") + 1] = checkpoint
    if limit_mb is not None:
        command = ["prlimit", f"--data={limit_mb << 20}", *command]
    found = measure(command, env={**ours.environment(), **(env or {})})
    if found.returncode:
        raise SystemExit(found.last_lines())
    if (wrong := oracle.difference(expected, output)) != (0, 0):
        raise SystemExit("answers are not DuckDB's: {} missing, {} too many".format(*wrong))
    events = [json.loads(line) for line in (directory / ours.EVENTS).read_text().splitlines()]
    completed = [event for event in events if event["event"] == "micro_batch_completed"]
    steady = [event["seconds"] for event in completed[len(completed) // 3 :]]
    return found, statistics.median(steady), max(event["state_bytes"] for event in completed)


def compare(workload: Workload, paths: Sequence[Path], place: Path, rounds: int, latency_ms: float) -> None:
    """Both kinds of state, in turn."""
    expected = write_expected(workload, paths, place / "expected.parquet")
    seconds: dict[str, list[tuple[float, float, float]]] = {"local disk": [], "object store": []}
    with ExitStack() as servers:
        endpoint = servers.enter_context(serve_s3(place / "s3"))
        if latency_ms:

            def decide(method: str, path: str) -> str:
                time.sleep(latency_ms / 1_000)
                return "pass"

            endpoint = servers.enter_context(Faults(endpoint, decide)).endpoint
        for number in range(rounds):
            for kind, found in seconds.items():
                env = {**environment(endpoint), "WATERSMEET_CACHE": str(place / f"cache{number}")}
                checkpoint = None if kind == "local disk" else new_url()
                taken, steady, _ = run(workload, paths, place / "run", expected, checkpoint=checkpoint, env=env)
                found.append((taken.wall_seconds, steady, taken.cpu_seconds))
                shown = f"{taken.wall_seconds:.1f} s in all, {taken.cpu_seconds:.1f} s of CPU"
                print(f"{kind}: {shown}, {steady * 1_000:.0f} ms a micro-batch", flush=True)
    for place_of, what in enumerate(("wall time", "steady micro-batch", "CPU time without the server's")):
        of = {kind: statistics.median(one[place_of] for one in some) for kind, some in seconds.items()}
        print(f"{what}: {of['object store'] / of['local disk']:.2f} times that of the local disk (medians)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--table", choices=["store", "memory"], default="store")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--limit-mb", type=int, default=700)
    args = parser.parse_args()
    workload = from_arguments(args)
    paths = generate(workload, args.data)
    with tempfile.TemporaryDirectory() as place:
        if args.table == "store":
            compare(workload, paths, Path(place), args.rounds, args.latency_ms)
            return
        expected = write_expected(workload, paths, Path(place) / "expected.parquet")
        taken, steady, state = run(workload, paths, Path(place) / "run", expected, limit_mb=args.limit_mb)
        print(
            f"{state / 2**20:,.0f} MiB of state, {args.limit_mb} MiB for each process: {taken.wall_seconds:.1f} s, "
            f"{steady * 1_000:.0f} ms a micro-batch, answers as DuckDB's"
        )


if __name__ == "__main__":
    main()
