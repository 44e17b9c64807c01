"""What being watched costs a run: CPU seconds (user and system) of its processes, with a dashboard, and without.

    python -m benchmarks.watching [--seconds 30] [--rate 20000] [--repeats 1] [--seed 1]

Three sites in one Spark application join three streams. In turn the run keeps no events, keeps them while nobody
looks (what every run does), has a dashboard that nobody has opened, and is watched by a dashboard with a client that
asks for what a page with the time line and one with the answers ask for. All do the same work: the same files are
there from the beginning of the time that is measured, a site reads one of each stream in a micro-batch, and a micro-
batch begins every second. It is checked that rows, answers and micro-batches are the same.

Totals of Spark vary by more than a few per cent from run to run, so the time that threads of the run spend on events,
signs of life and samples is also measured where it is spent. The dashboard is a process of its own; its CPU time is
given beside, and the sum of both as a share of the run's.
"""

import argparse
import http.client
import json
import os
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
CASES = ("no events", "no dashboard", "dashboard not open", "watched")


def write_topology(directory: Path, rate: int) -> Path:
    streams = {}
    for name, site in zip("abc", ("ams", "fra", "nyc"), strict=True):
        (directory / name).mkdir()
        streams[name] = {
            "site": site,
            "schema": "ts timestamp, k long, v long",
            "event_time": "ts",
            "source": {"format": "parquet", "path": str(directory / name), "options": {"maxFilesPerTrigger": "1"}},
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


def write_files(directory: Path, rate: int, seconds: int, seed: int) -> None:
    """A second of each stream in each file."""
    random = np.random.default_rng(seed)
    for name in "abc":
        (directory / name).mkdir()
    for second in range(seconds):
        for name in "abc":
            ts = second * SECOND_US + np.arange(rate) * SECOND_US // rate
            times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
            columns = {"ts": times, "k": random.integers(0, KEYS, rate), "v": np.arange(rate)}
            pq.write_table(pa.table(columns), directory / name / f"{second:05d}.parquet")


def feed(files: Path, directory: Path, first: int, seconds: int) -> None:
    """Let the files of some seconds come."""
    for second in range(first, first + seconds):
        for name in "abc":
            os.link(files / name / f"{second:05d}.parquet", directory / name / f"{second:05d}.parquet")


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


def run_case(case: str, files: Path, rate: int, seconds: int) -> None:
    """In a process of its own: the run, and what it took as a line of JSON."""
    import watersmeet as wm
    from watersmeet.metrics.bus import EventBus
    from watersmeet.metrics.events import MicroBatchCompleted
    from watersmeet.spark import launch
    from watersmeet.spark.site.reports import SiteReports

    spent, publish, ingested = Spent(), EventBus.publish, [0]

    def counted(bus: EventBus, event: Any) -> None:
        ingested[0] += isinstance(event, MicroBatchCompleted) and sum(event.rows_in.values()) > 0
        publish(bus, event)

    EventBus.publish = spent.within(counted)  # type: ignore[method-assign]
    SiteReports.delivered = spent.within(SiteReports.delivered)  # type: ignore[method-assign]
    if case == "no events":
        launch.keep_events = lambda *_, **__: lambda: None
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = write_topology(directory, rate)
        run = wm.start(wm.load_topology(path), checkpoint=directory / "checkpoint", trigger="1 second", warn=None)
        me, watcher = psutil.Process(), None
        has_dashboard = case in ("dashboard not open", "watched")
        dashboard = _dashboard(directory / "checkpoint", is_open=case == "watched") if has_dashboard else None
        if dashboard is not None:
            watcher = psutil.Process(dashboard.pid)
        feed(files, directory, 0, _WARM_S)
        _await_rows(run, 3 * rate * _WARM_S)  # now everything is warm
        before, of_watcher = cpu_seconds(me), 0.0 if watcher is None else cpu_seconds(watcher)
        spent.seconds, spent.calls = 0.0, 0
        if watcher is not None:
            before -= of_watcher
        feed(files, directory, _WARM_S, seconds)
        _await_rows(run, 3 * rate * (_WARM_S + seconds))
        after, at_end = cpu_seconds(me), 0.0 if watcher is None else cpu_seconds(watcher)
        figures = {
            "case": case,
            "cpu_s": after - at_end - before,
            "events_s": spent.seconds,
            "calls": spent.calls,
            "dashboard_s": at_end - of_watcher,
            "work": [run.usage().rows_in, run.usage().rows_out, ingested[0]],
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


def _dashboard(checkpoint: Path, *, is_open: bool) -> "subprocess.Popen[str]":
    """A dashboard as `run --dashboard` starts it; open, also a client in threads that follows everything."""
    command = [sys.executable, "-m", "watersmeet", "dashboard", str(checkpoint), "--port", "0", "--while-stdin"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = process.stderr.readline().split(" at ")[1].strip()
    for target in (_follow, _ask) if is_open else ():
        threading.Thread(target=target, args=(url,), daemon=True).start()
    return process


def _follow(url: str) -> None:
    """The stream of events of the page."""
    with urllib.request.urlopen(f"{url}api/events") as stream:
        for _ in stream:
            pass


def _ask(url: str) -> None:
    """What pages ask for over the connection that they keep: new answers every second, all charts every two."""
    connection, samples, turn = http.client.HTTPConnection(url.split("/")[2]), 0, 0

    def asked(what: str) -> Any:
        connection.request("GET", f"/api/{what}")
        return json.load(connection.getresponse())

    while True:
        now = time.time()
        try:
            samples, turn = asked(f"answers?after={samples}")["samples"], turn + 1
            if turn % 2:
                asked(f"history?from={now - 300}&to={now}&points=300")
        except (OSError, http.client.HTTPException):
            return
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rate", type=int, default=20_000, help="rows a second of each of three streams")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        run_case(options.case, options.files, options.rate, options.seconds)
        return
    print("| case | CPU s of the run | events, signs of life, samples | dashboard | both, of the run | work |")
    print("| --- | --- | --- | --- | --- | --- |")
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory() as files:
            write_files(Path(files), options.rate, _WARM_S + options.seconds, options.seed + repeat)
            done = [_figures(case, files, options.rate, options.seconds) for case in CASES]
        if any(one["work"] != done[0]["work"] for one in done):
            raise SystemExit(f"the work was not the same: {[one['work'] for one in done]}")


def _figures(case: str, files: str, rate: int, seconds: int) -> dict[str, Any]:
    """Run a case, and print its line of the table."""
    command = [sys.executable, "-m", "benchmarks.watching", "--case", case, "--files", files]
    command += ["--seconds", str(seconds), "--rate", str(rate)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rows, answers, batches = found["work"]
    print(
        f"| {case} | {found['cpu_s']:.1f} | {found['events_s']:.3f} s in {found['calls']:,} calls | "
        f"{found['dashboard_s']:.2f} s | {(found['events_s'] + found['dashboard_s']) / found['cpu_s']:.2%} | "
        f"{rows:,} rows, {answers:,} answers, {batches:,} micro-batches |",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
