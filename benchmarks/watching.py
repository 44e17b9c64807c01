"""What being watched costs a run: CPU seconds (user and system) of its processes, with a dashboard, and without.

    python -m benchmarks.watching [--seconds 60] [--rate 20000] [--repeats 2] [--seed 1]

Three sites in one Spark application join three streams whose files come in real time. In turn the run keeps no events,
keeps them while nobody looks (what every run does), and is watched by a dashboard with a client that follows
everything, answers too. Totals of Spark vary by more than a few per cent from run to run, so the time that threads of
the run spend on events, signs of life and samples is also measured where it is spent. The dashboard is a process of its
own; its CPU time is given beside.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

SECOND_US = 1_000_000
KEYS = 200_000
SQL = "SELECT a.k, a.v AS x, c.v AS y FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS], c [RANGE 5 SECONDS] "
_WARM_S, _QUIET_S = 10, 5
CASES = ("no events", "nobody looks", "watched")


def write_topology(directory: Path, rate: int) -> Path:
    streams = {}
    for name, site in zip("abc", ("ams", "fra", "nyc"), strict=True):
        (directory / name).mkdir()
        streams[name] = {
            "site": site,
            "schema": "ts timestamp, k long, v long",
            "event_time": "ts",
            "source": {"format": "parquet", "path": str(directory / name)},
            "stats": {"rate": rate, "columns": {"k": {"distinct": KEYS}}},
        }
    sink = {"format": "parquet", "path": str(directory / "out")}
    query = {"site": "ams", "sql": SQL + "WHERE a.k = b.k AND b.k = c.k", "assume_defaults": True, "sink": sink}
    topology = {
        "sites": ["ams", "fra", "nyc"],
        "default_link": {"latency": "1 ms", "bandwidth": "1 Gbps"},
        "streams": streams,
        "queries": {"q": query},
    }
    path = directory / "topology.yaml"
    path.write_text(yaml.safe_dump(topology), encoding="utf-8")
    return path


def feed(directory: Path, rate: int, first: int, seconds: int, seed: int) -> None:
    """A file a second for each stream, in real time, from a second of event time on."""
    random, began = np.random.default_rng(seed + first), time.monotonic()
    for second in range(first, first + seconds):
        for name in "abc":
            ts = second * SECOND_US + np.arange(rate) * SECOND_US // rate
            times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
            columns = {"ts": times, "k": random.integers(0, KEYS, rate), "v": np.arange(rate)}
            whole = directory / f".{name}-{second}"
            pq.write_table(pa.table(columns), whole)
            whole.rename(directory / name / f"{second:05d}.parquet")
        time.sleep(max(0.0, began + second + 1 - first - time.monotonic()))


class Spent:
    """CPU time of threads within some functions, of nested ones once."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0
        self._lock, self._inside = threading.Lock(), threading.local()

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*values: Any, **named: Any) -> Any:
            if getattr(self._inside, "now", False):
                return function(*values, **named)
            self._inside.now, began = True, time.thread_time()
            try:
                return function(*values, **named)
            finally:
                self._inside.now = False
                with self._lock:
                    self.seconds, self.calls = self.seconds + time.thread_time() - began, self.calls + 1

        return timed


def cpu_seconds(process: psutil.Process) -> float:
    """Of a process and all below it that are alive; those that have ended are in their parents' times."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        times = one.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def run_case(case: str, rate: int, seconds: int, seed: int) -> None:
    """In a process of its own: the run, and what it took as a line of JSON."""
    import watersmeet as wm
    from watersmeet.metrics.bus import EventBus
    from watersmeet.spark import run as spark_run
    from watersmeet.spark.site_reports import SiteReports

    spent = Spent()
    EventBus.publish = spent.within(EventBus.publish)  # type: ignore[method-assign]
    SiteReports.delivered = spent.within(SiteReports.delivered)  # type: ignore[method-assign]
    if case == "no events":
        spark_run.keep_events = lambda *_, **__: lambda: None
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = write_topology(directory, rate)
        run = wm.start(wm.load_topology(path), checkpoint=directory / "checkpoint", trigger="1 second", warn=None)
        me, watcher = psutil.Process(), None
        dashboard = _dashboard(directory / "checkpoint") if case == "watched" else None
        if dashboard is not None:
            watcher = psutil.Process(dashboard.pid)
        feed(directory, rate, 0, _WARM_S, seed)
        _await_rows(run, 3 * rate * _WARM_S)  # now everything is warm
        before, of_watcher = cpu_seconds(me), 0.0 if watcher is None else cpu_seconds(watcher)
        spent.seconds, spent.calls = 0.0, 0
        if watcher is not None:
            before -= of_watcher
        feed(directory, rate, _WARM_S, seconds, seed)
        _await_rows(run, 3 * rate * (_WARM_S + seconds))
        after, at_end = cpu_seconds(me), 0.0 if watcher is None else cpu_seconds(watcher)
        figures = {
            "case": case,
            "cpu_s": after - at_end - before,
            "events_s": spent.seconds,
            "calls": spent.calls,
            "dashboard_s": at_end - of_watcher,
            "answers": run.usage().rows_out,
        }
        run.stop()
        if dashboard is not None:
            assert dashboard.stdin is not None
            dashboard.stdin.close()
            dashboard.wait(30)
    print(json.dumps(figures), flush=True)


def _await_rows(run: Any, count: int) -> None:
    """Wait until all rows are joined and no more answers come, so that every case has done the same work."""
    answers, since = -1, time.monotonic()
    while run.usage().rows_in < count or time.monotonic() - since < _QUIET_S:
        if run.exception() is not None:
            raise run.exception()
        if run.usage().rows_out != answers:
            answers, since = run.usage().rows_out, time.monotonic()
        time.sleep(0.2)


def _dashboard(checkpoint: Path) -> "subprocess.Popen[str]":
    """A dashboard as `run --dashboard` starts it, and a client in threads that follows everything."""
    command = [sys.executable, "-m", "watersmeet", "dashboard", str(checkpoint), "--port", "0", "--while-stdin"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = process.stderr.readline().split(" at ")[1].strip()
    for target in (_follow, _ask):
        threading.Thread(target=target, args=(url,), daemon=True).start()
    return process


def _follow(url: str) -> None:
    """The stream of events of the page."""
    with urllib.request.urlopen(f"{url}api/events") as stream:
        for _ in stream:
            pass


def _ask(url: str) -> None:
    """What panels ask for: answers and charts, every second."""
    while True:
        now = time.time()
        for what in ("answers", f"history?from={now - 300}&to={now}&points=300"):
            try:
                urllib.request.urlopen(f"{url}api/{what}").read()
            except OSError:
                return
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=20_000, help="rows a second of each of three streams")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        run_case(options.case, options.rate, options.seconds, options.seed)
        return
    print("| case | CPU s of the run | on events, signs of life, samples | of the run | dashboard, CPU s | answers |")
    print("| --- | --- | --- | --- | --- | --- |")
    for repeat in range(options.repeats):
        for case in CASES:
            command = [
                sys.executable,
                "-m",
                "benchmarks.watching",
                "--case",
                case,
                "--seed",
                str(options.seed + repeat),
            ]
            command += ["--seconds", str(options.seconds), "--rate", str(options.rate)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr[-3000:])
            told = done.stdout
            found = json.loads(told.splitlines()[-1])
            share, events = found["events_s"] / found["cpu_s"], f"{found['events_s']:.3f} s in {found['calls']:,} calls"
            print(
                f"| {case} | {found['cpu_s']:.1f} | {events} | {share:.2%} | "
                f"{found['dashboard_s']:.2f} | {found['answers']:,} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
