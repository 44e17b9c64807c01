"""From a row's arrival to its answer: rows arrive at a steady pace, micro-batches are as fast as they go.

python benchmarks/latency.py                                  # 20,000 rows/s in three streams, 10 s + 30 s a side
python benchmarks/latency.py --rate 2000 --warm-up 3 --seconds 5      # a quick look

A process of its own writes a file of each stream at every tick, aside, and renames it into place: that is when its rows
arrive. Another one polls the output directory: an answer is visible when its complete file appears there or, with
Spark's file sink, the entry of its log that names the file. Both use the machine's one monotonic clock. The delay of an
answer is from the arrival of its last row; every answer is compared with DuckDB's.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb
import native
import numpy as np
import oracle
import ours
import pyarrow as pa
import pyarrow.parquet as pq
import steady
import yaml
from measure import Measurement, measure
from report import HERE, console, machine, show
from workload import ARROW_SCHEMA, DATA_DIR, DRIVER_MEMORY, ID_STRIDE, MASTER, SECOND_US, STREAM_NAMES, Workload

POLL_SECONDS = 0.005
PRIMING_ROWS = 50  # of each stream, before the clock starts: their answers say that the side is running
QUIET_SECONDS = 3.0  # without new answers a side has nothing left, or so it seems
START_SECONDS = 300.0
_ANSWER = re.compile(r"part-.*\.parquet|\d+(\.compact)?")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How rows arrive; `rate` is of all streams together."""

    rate: int = 20_000
    streams: int = 3
    tick_seconds: float = 0.1
    warm_up_seconds: float = 10.0
    seconds: float = 30.0
    window_seconds: float = 10.0
    seed: int = 7

    @property
    def names(self) -> str:
        return STREAM_NAMES[: self.streams]

    @property
    def ticks(self) -> int:
        return round((self.warm_up_seconds + self.seconds) / self.tick_seconds)

    @property
    def keys(self) -> int:
        """As in w2, 5 for every 3 rows of a stream in a window: a row is in about one answer."""
        return max(1, round(self.rate / self.streams * self.window_seconds * 5 / 3))

    def rows_before(self, tick: int) -> int:
        """Rows of a stream that have arrived before a tick, the priming rows not counted."""
        return int(tick * self.tick_seconds * self.rate / self.streams)

    def table(self, stream: int, tick: int, start_us: int) -> pa.Table:
        """The rows of a stream that arrive at a tick, with timestamps from the tick before on."""
        begin, end = self.rows_before(tick), self.rows_before(tick + 1)
        rng = np.random.default_rng([self.seed, stream, tick])
        i = np.arange(begin, end, dtype=np.int64)
        ts = start_us + (i * SECOND_US * self.streams / self.rate).astype(np.int64)
        return _table(rng.integers(self.keys, size=end - begin), PRIMING_ROWS + i + stream * ID_STRIDE, ts)

    def priming_table(self, stream: int, start_us: int) -> pa.Table:
        """The very first rows of a stream, of which each is in one answer."""
        i = np.arange(PRIMING_ROWS, dtype=np.int64)
        return _table(i, i + stream * ID_STRIDE, start_us + i)


def _table(keys: np.ndarray, ids: np.ndarray, ts: np.ndarray) -> pa.Table:
    columns = [keys.astype(np.int64), ids, pa.array(ts).cast(ARROW_SCHEMA.field("ts").type), np.zeros(len(ids))]
    return pa.table(columns, schema=ARROW_SCHEMA)


def publish(table: pa.Table, directory: Path, name: str) -> Callable[[], int]:
    """Write a file aside; what is returned renames it into place and tells when, by the monotonic clock in ns."""
    aside = directory / f".{name}"
    pq.write_table(table, aside)

    def rename() -> int:
        now = time.monotonic_ns()
        aside.rename(directory / name)
        return now

    return rename


def feed(arrivals: Arrivals, directory: Path) -> None:
    """Write the files of every stream at every tick; a line of `arrivals.jsonl` for each, and how late it was."""
    start_us, begin = round(time.time() * SECOND_US), time.monotonic()
    with (directory / "arrivals.jsonl").open("w", buffering=1) as log:
        for tick in range(arrivals.ticks):
            due = begin + (tick + 1) * arrivals.tick_seconds
            renames = [
                publish(arrivals.table(stream, tick, start_us), directory / name, f"{tick + 1:06}.parquet")
                for stream, name in enumerate(arrivals.names)
            ]
            time.sleep(max(0.0, due - time.monotonic()))
            late = time.monotonic() - due
            for stream, rename in enumerate(renames):
                first_row = PRIMING_ROWS + arrivals.rows_before(tick)
                log.write(json.dumps({"stream": stream, "row": first_row, "ns": rename(), "late": late}) + "\n")


def watch(output: Path, log: Path, until: Path) -> None:
    """Note when each file of an output directory and of its Spark log is first seen, until there is a file `until`."""
    seen: set[str] = set()
    with log.open("w", buffering=1) as file:
        while not until.exists():
            for directory in (output, output / steady.SPARK_LOG):
                try:
                    names = [entry.name for entry in os.scandir(directory)]
                except FileNotFoundError:
                    continue
                now = time.monotonic_ns()
                for name in names:
                    if name not in seen and _ANSWER.fullmatch(name):
                        seen.add(name)
                        file.write(json.dumps({"name": name, "ns": now}) + "\n")
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Result:
    """The delays of one side's answers in seconds, over the measured time, and what the whole run took."""

    side: str
    delays: np.ndarray
    micro_batches: int  # with answers, in the measured time
    feeder_late: float  # the most that the files of a tick came late by
    measured: Measurement
    missing: int = 0
    extra: int = 0
    failure: str = ""

    @property
    def correct(self) -> bool:
        return not (self.failure or self.missing or self.extra)

    def verdict(self) -> str:
        if self.failure:
            return "failed"
        return "yes" if self.correct else f"NO: {self.missing:,} missing, {self.extra:,} too many"


@dataclass(frozen=True, slots=True)
class Side:
    """A running side: its command, where its answers come to, and how it is asked to end."""

    argv: Sequence[str]
    output: Path
    env: Mapping[str, str]
    stop: Callable[[subprocess.Popen[bytes]], object]


def our_side(arrivals: Arrivals, directory: Path) -> Side:
    """`watersmeet run`, as fast as it goes, until Ctrl-C."""
    workload = Workload(streams=arrivals.streams, window_us=round(arrivals.window_seconds * SECOND_US))
    output = directory / "answers"
    topology = ours.topology(workload, [directory / name for name in arrivals.names], output, files_a_trigger=None)
    (directory / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False, width=120))
    argv = [sys.executable, "-m", "watersmeet", "run", str(directory / "topology.yaml"), "--quiet"]
    argv += ["--checkpoint", str(directory / "checkpoint"), "--events", str(directory / ours.EVENTS)]
    argv += ["--master", MASTER, "--conf", f"spark.driver.memory={DRIVER_MEMORY}"]
    return Side(argv, output, ours.environment(), lambda process: process.send_signal(signal.SIGINT))


def native_side(arrivals: Arrivals, directory: Path) -> Side:
    """Spark's chained joins, as fast as they go, until a file says so."""
    output, until = directory / "answers", directory / "stop-native"
    places = ["--output", str(output), "--checkpoint", str(directory / "checkpoint"), "--until", str(until)]
    window = ["--window-us", str(round(arrivals.window_seconds * SECOND_US))]
    argv = [sys.executable, native.__file__, *window, *places, *(str(directory / name) for name in arrivals.names)]
    env = {**ours.environment(), "SPARK_DRIVER_MEMORY": DRIVER_MEMORY}
    return Side(argv, output, env, lambda process: until.touch())


SIDES: Mapping[str, Callable[[Arrivals, Path], Side]] = {
    "Spark's chained joins": native_side,
    "Watersmeet": our_side,
}


def run_side(name: str, arrivals: Arrivals, directory: Path, timeout_seconds: float) -> Result:
    """Start a side, let rows arrive, wait for their answers, end it, and compare."""
    shutil.rmtree(directory, ignore_errors=True)
    for stream in arrivals.names:
        (directory / stream).mkdir(parents=True)
    side = SIDES[name](arrivals, directory)
    watch_until = directory / "stop-watching"
    watcher = _role("watch", str(side.output), str(directory / "seen.jsonl"), str(watch_until))
    try:
        with ThreadPoolExecutor(1) as beside:
            started: Future[subprocess.Popen[bytes]] = Future()
            running = beside.submit(
                measure, side.argv, env=side.env, timeout_seconds=timeout_seconds, on_start=started.set_result
            )
            process = started.result(30)
            try:
                failure = _feed_and_wait(arrivals, directory, side.output, process)
            finally:
                side.stop(process)
            measured = running.result()
    finally:
        watch_until.touch()
        watcher.wait()
    if failure or measured.returncode or measured.timed_out:
        failure = failure or f"exit code {measured.returncode}"
        console.print(f"{name} failed ({failure}); the last lines it wrote:", style="bold red")
        console.print(measured.last_lines(), markup=False, highlight=False)
        return Result(name, np.array([]), 0, 0.0, measured, failure=failure)
    missing, extra = oracle.difference(directory / "expected.parquet", side.output)
    delays, micro_batches, late = delays_of(arrivals, directory, side.output)
    return Result(name, delays, micro_batches, late, measured, missing, extra)


def _feed_and_wait(arrivals: Arrivals, directory: Path, output: Path, process: subprocess.Popen[bytes]) -> str:
    """Let rows arrive once the side answers, and wait until it has answered them; what went wrong, if anything."""
    now_us = round(time.time() * SECOND_US)
    for stream, name in enumerate(arrivals.names):
        publish(arrivals.priming_table(stream, now_us), directory / name, f"{0:06}.parquet")()
    deadline = time.monotonic() + START_SECONDS
    while not steady.visible_files(output):
        if process.poll() is not None:
            return "it ended before it had answered"
        if time.monotonic() > deadline:
            return f"no answers after {START_SECONDS:.0f} s"
        time.sleep(0.1)
    feeder = _role("feed", json.dumps(asdict(arrivals)), str(directory))
    if feeder.wait():
        return f"the feeder ended with exit code {feeder.returncode}"
    _wait_for_quiet(output, process)
    expected = directory / "expected.parquet"
    sql = oracle.oracle_sql([directory / name for name in arrivals.names], round(arrivals.window_seconds * SECOND_US))
    with duckdb.connect() as db:
        db.execute(f"COPY ({sql}) TO '{expected}' (FORMAT parquet)")
    deadline = time.monotonic() + START_SECONDS
    while _visible_rows(output) < oracle.rows_in(expected):
        if process.poll() is not None or time.monotonic() > deadline:
            break  # the comparison says what is missing
        time.sleep(0.5)
    return ""


def _wait_for_quiet(output: Path, process: subprocess.Popen[bytes]) -> None:
    count, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS and process.poll() is None:
        files = len(steady.visible_files(output))
        if files != count:
            count, since = files, time.monotonic()
        time.sleep(0.2)


def _visible_rows(output: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in steady.visible_files(output))


def _role(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "latency.py"), *arguments])


def delays_of(arrivals: Arrivals, directory: Path, output: Path) -> tuple[np.ndarray, int, float]:
    """Delays of the answers whose last row arrived in the measured time, how many micro-batches had such answers, and
    by how much the feeder was late.
    """
    lines = [json.loads(line) for line in (directory / "arrivals.jsonl").read_text().splitlines()]
    seen = {
        entry["name"]: entry["ns"] for entry in map(json.loads, (directory / "seen.jsonl").read_text().splitlines())
    }
    first_rows, times = [], []
    for stream in range(arrivals.streams):
        own = [line for line in lines if line["stream"] == stream]
        first_rows.append(np.array([line["row"] for line in own]))
        times.append(np.array([line["ns"] for line in own], dtype=np.int64))
    begin_ns = min(line["ns"] for line in lines) + arrivals.warm_up_seconds * 1e9
    delays, witnesses = [np.array([])], set()
    for file, witness in steady.visible_files(output).items():
        answers = pq.read_table(file)
        last_ns = np.full(answers.num_rows, np.iinfo(np.int64).min)
        for stream, name in enumerate(arrivals.names):
            rows = answers[f"{name}_id"].to_numpy() - stream * ID_STRIDE
            place = np.searchsorted(first_rows[stream], rows, side="right") - 1
            # Priming rows have no arrival of their own: they are older than everything that is measured.
            last_ns = np.maximum(last_ns, np.where(place < 0, np.iinfo(np.int64).min, times[stream][place]))
        measured = last_ns >= begin_ns
        if measured.any():
            delays.append((seen[witness.name] - last_ns[measured]) / 1e9)
            witnesses.add(witness)
    return np.concatenate(delays), len(witnesses), max(line["late"] for line in lines)


def rows_of(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table."""
    header = ["", "answers", "median ms", "95 % ms", "99 % ms", "longest ms", "micro-batches", "CPU s", "correct?"]
    lines = []
    for result in results:
        if result.failure or not len(result.delays):
            lines.append([result.side, "0", *[""] * 6, result.verdict()])
            continue
        shown = [*np.percentile(result.delays, (50, 95, 99)), result.delays.max()]
        figures = [f"{seconds * 1e3:,.0f}" for seconds in shown]
        counts = [f"{result.micro_batches:,}", f"{result.measured.cpu_seconds:,.1f}"]
        lines.append([result.side, f"{len(result.delays):,}", *figures, *counts, result.verdict()])
    return header, lines


def main() -> None:
    if sys.argv[1:2] == ["feed"]:
        feed(Arrivals(**json.loads(sys.argv[2])), Path(sys.argv[3]))
        return
    if sys.argv[1:2] == ["watch"]:
        watch(*map(Path, sys.argv[2:]))
        return
    default = Arrivals()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=default.rate, help="rows/s of all streams (default %(default)s)")
    parser.add_argument("--streams", type=int, default=default.streams, help="2 to 6 (default %(default)s)")
    parser.add_argument(
        "--tick", type=float, default=default.tick_seconds, help="seconds between the files of a stream"
    )
    parser.add_argument("--warm-up", type=float, default=default.warm_up_seconds, help="seconds that do not count")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="seconds that count")
    parser.add_argument("--window", type=float, default=default.window_seconds, help="RANGE window in seconds")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--skip-native", action="store_true", help="leave out Spark's own joins")
    parser.add_argument("--skip-ours", action="store_true", help="leave out Watersmeet")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a side may take")
    parser.add_argument("--data", type=Path, default=DATA_DIR, help="where files are kept (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep files, answers and checkpoints")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the delays of all answers")
    args = parser.parse_args()
    arrivals = Arrivals(args.rate, args.streams, args.tick, args.warm_up, args.seconds, args.window, args.seed)
    skipped = {"Spark's chained joins": args.skip_native, "Watersmeet": args.skip_ours}
    scratch = args.data.absolute() / "runs" / f"latency-{os.getpid()}"
    results = []
    try:
        for number, name in enumerate(name for name in SIDES if not skipped[name]):
            console.log(f"{name} ...")
            results.append(run_side(name, arrivals, scratch / str(number), args.timeout))
            console.log(f"{name}: correct? {results[-1].verdict()}")
    finally:
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    title = (
        f"From a row's arrival to its answer: {arrivals.rate:,} rows/s in {arrivals.streams} streams, a file each "
        f"every {arrivals.tick_seconds * 1e3:g} ms, RANGE {arrivals.window_seconds:g} s, {arrivals.keys:,} keys, "
        f"{arrivals.seconds:g} s after {arrivals.warm_up_seconds:g} s, seed {arrivals.seed}"
    )
    show(title, *rows_of(results), machine())
    late = max((result.feeder_late for result in results), default=0.0)
    print(f"Files came at most {late * 1e3:.0f} ms after their tick.")
    if args.json:
        raw = [{"side": result.side, "delays": result.delays.tolist()} for result in results]
        args.json.write_text(json.dumps({"machine": machine(), "arrivals": asdict(arrivals), "results": raw}) + "\n")
    if not all(result.correct for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
