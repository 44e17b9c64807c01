"""A query that is added to a site that runs many: how soon it is in force, and whether the others' answers are delayed.

python benchmarks/apply.py                                            # 50 queries, a trigger of 1 second
python benchmarks/apply.py --queries 10 --rows 200 --intervals 12     # a quick look

Rows come in real time, one file a stream and trigger interval. What is reported is in trigger intervals: from the call
of `handle.add` until the new query is in force at the site, and until event time has reached the instant from which its
rows count; and how long the rows of an interval take until all answers with them are committed, before and after.
"""

import argparse
import os
import shutil
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from queries import DDL, SCHEMA, Drawn, draw
from report import console, machine, show

import watersmeet as wm
from watersmeet.metrics.events import Event, MicroBatchCompleted

SECOND_US = 1_000_000
NAMES = "abc"


@dataclass
class Feeder:
    """Writes a file for each stream at every interval, with rows of that interval."""

    directory: Path
    rows: int
    interval_s: float
    began_us: int
    written: dict[int, float] = field(default_factory=dict)  # when, by the last event time of an interval

    def write(self, number: int) -> None:
        """The files of one interval."""
        first = self.began_us + int(number * self.interval_s * SECOND_US)
        ts = first + np.arange(self.rows, dtype=np.int64) * int(self.interval_s * SECOND_US) // self.rows
        chance = np.random.default_rng([7, number])
        keys = max(1, int(10 / self.interval_s * self.rows * 5 / 3))
        for name in NAMES:
            columns = [
                chance.integers(keys, size=self.rows),
                chance.integers(keys, size=self.rows),
                number * self.rows + np.arange(self.rows),
                chance.random(self.rows),
                pa.array(ts, pa.timestamp("us", tz="UTC")),
            ]
            path = self.directory / name / f".{number:05d}"
            pq.write_table(pa.table(columns, schema=SCHEMA), path)
            os.replace(path, path.with_name(f"{number:05d}.parquet"))
        self.written[int(ts[-1])] = time.time()


class Delays:
    """When the site has committed the answers of each interval, by the watermarks of its micro-batches."""

    def __init__(self) -> None:
        self.committed: list[tuple[float, int]] = []

    def __call__(self, at: float, event: Event) -> None:
        if isinstance(event, MicroBatchCompleted):
            marks = [mark for mark in event.watermarks.values() if mark is not None]
            if len(marks) == len(event.watermarks) and marks:
                self.committed.append((at, min(marks)))

    def of(self, written: dict[int, float]) -> dict[int, float]:
        """Seconds from the writing of an interval's rows to the commit of their answers, by its last event time."""
        found = {}
        for last_us, at in written.items():
            after = [then for then, mark in self.committed if mark >= last_us]
            if after:
                found[last_us] = min(after) - at
        return found


def topology_of(directory: Path, queries: list[Drawn]) -> wm.Topology:
    streams = tuple(
        wm.Stream(
            name,
            event_time="ts",
            schema=DDL,
            source=wm.Source("parquet", str(directory / name), {"maxFilesPerTrigger": "1"}),
        )
        for name in NAMES
    )
    return wm.Topology(streams, tuple(asked(directory, one) for one in queries), directory=str(directory))


def asked(directory: Path, query: Drawn) -> wm.Query:
    return wm.Query(query.name, query.sql, sink=wm.Sink("parquet", str(directory / "out" / query.name)))


def run(options: argparse.Namespace, directory: Path) -> dict[str, str]:
    """Run, add a query in the middle, and say what it took in trigger intervals."""
    every = draw("same graph", options.queries + 1, options.seed)
    for name in NAMES:
        (directory / name).mkdir(parents=True)
    interval_s = options.trigger
    feeder = Feeder(directory, options.rows, interval_s, int(time.time() * SECOND_US))
    delays, stop = Delays(), threading.Event()
    feeder.write(0)
    handle = wm.start(
        topology_of(directory, every[:-1]), checkpoint=directory / "checkpoint", trigger=f"{interval_s} seconds"
    )
    handle.events.subscribe(delays)

    def feed() -> None:
        number = 1
        while not stop.wait(interval_s):
            feeder.write(number)
            number += 1

    thread = threading.Thread(target=feed, daemon=True)
    try:
        thread.start()
        deadline = time.monotonic() + 600
        while len(delays.of(feeder.written)) < options.intervals and time.monotonic() < deadline:
            time.sleep(0.05)
        if handle.exception() is not None:
            raise RuntimeError(str(handle.exception()))
        asked_at = time.time()
        handle.add(asked(directory, every[-1]))
        called_s = time.time() - asked_at
        handle.await_changes()
        in_force_s = time.time() - asked_at
        at_us = handle.changes[-1].at_us
        while max(feeder.written) < at_us and time.monotonic() < deadline:
            time.sleep(0.01)
        reached_s = time.time() - asked_at
        while len(delays.of(feeder.written)) < 2 * options.intervals and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        stop.set()
        thread.join()
        handle.stop()
    found = delays.of(feeder.written)
    before = [found[one] for one in sorted(found) if feeder.written[one] + found[one] < asked_at][2:]
    after = [found[one] for one in sorted(found) if feeder.written[one] + found[one] >= asked_at]
    longest = max(after)
    delay_s = longest - statistics.median(before)
    return {
        "queries that run": f"{options.queries}",
        "in force after": f"{in_force_s / interval_s:.2f} trigger intervals ({called_s:.2f} s to bind and plan)",
        "rows count from": f"{reached_s / interval_s:.2f} trigger intervals after the call",
        "answers of others, before": f"{statistics.median(before):.2f} s (median), {max(before):.2f} s (longest)",
        "answers of others, after": f"{statistics.median(after):.2f} s (median), {longest:.2f} s (longest)",
        "longest delay by the change": f"{max(0.0, delay_s) / interval_s:.2f} trigger intervals",
    }


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--trigger", type=float, default=1.0, help="seconds")
    parser.add_argument("--rows", type=int, default=1_000, help="of a stream in an interval")
    parser.add_argument("--intervals", type=int, default=15, help="before and after the change")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    directory = Path(mkdtemp(prefix="watersmeet-apply-"))
    try:
        found = run(options, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    console.print(machine())
    show("a query added while others run", ["what", "figure"], [[name, value] for name, value in found.items()])


if __name__ == "__main__":
    main()
