"""What it costs that Spark is elsewhere: the same run with a Spark of its own, on a cluster, and over Spark Connect.

python benchmarks/places.py                               # the w2 workload, three times each, in turn
python benchmarks/places.py --scale 0.05 --rounds 1
python benchmarks/places.py --only own,connect

`one executor` and `two executors` are a standalone cluster on this machine, each executor with one core; the server of
Spark Connect and the Spark of its own have two. Processor time is that of all processes, servers included, after they
have started.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import ours
import psutil
from stores import run, write_expected
from workload import Workload, add_arguments, from_arguments, generate

sys.path.insert(0, str(ours.HERE.parent / "tests"))

from cluster import StandaloneCluster
from connect_server import ConnectServer

KINDS = ("own", "one executor", "two executors", "connect")


def cpu_seconds(pids: Sequence[int]) -> float:
    """What some processes and those that they have started have taken so far."""
    total = 0.0
    for pid in pids:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def at_place(kind: str, place: Path, servers: ExitStack) -> tuple[list[str], Callable[[], float]]:
    """Start what a run needs; its options, and what the servers have taken so far."""
    if kind == "own":
        return ["--master", "local[2]", "--conf", "spark.driver.memory=2g"], lambda: 0.0
    if kind == "connect":
        server = servers.enter_context(ConnectServer(place, "connect"))
        return ["--remote", server.url], lambda: cpu_seconds([server.pid])
    cluster = servers.enter_context(StandaloneCluster(place, 1 if kind == "one executor" else 2))
    words = ["--master", cluster.master, "--conf", "spark.driver.host=127.0.0.1"]
    return words, lambda: cpu_seconds([worker.pid for worker in cluster.workers])


def compare(workload: Workload, paths: Sequence[Path], place: Path, kinds: Sequence[str], rounds: int) -> None:
    """All places, in turn; each with servers of its own."""
    expected = write_expected(workload, paths, place / "expected.parquet")
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds:
            directory = place / f"{kind.replace(' ', '-')}{number}"
            directory.mkdir()
            with ExitStack() as servers:
                words, taken_there = at_place(kind, directory, servers)
                before = taken_there()
                taken, steady, _ = run(workload, paths, place / "run", expected, place=words)
                cpu_s = taken.cpu_seconds + taken_there() - before
            found[kind].append((taken.wall_seconds, cpu_s, steady))
            print(f"{kind}: {taken.wall_seconds:.1f} s, {cpu_s:.1f} s of CPU, {steady * 1_000:.0f} ms", flush=True)
    print("| Spark is | wall s | CPU s | ms a steady micro-batch |\n| --- | --- | --- | --- |")
    for kind, some in found.items():
        wall_s, cpu_s, steady_s = (statistics.median(one[i] for one in some) for i in range(3))
        print(f"| {kind} | {wall_s:.1f} | {cpu_s:.1f} | {steady_s * 1_000:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    kinds = args.only.split(",")
    if not set(kinds) <= set(KINDS):
        parser.error(f"--only takes some of {', '.join(KINDS)}")
    workload = from_arguments(args)
    paths = generate(workload, args.data)
    with tempfile.TemporaryDirectory() as place:
        compare(workload, paths, Path(place), kinds, args.rounds)


if __name__ == "__main__":
    main()
