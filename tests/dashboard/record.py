"""Records the run that tests show: `PYTHONPATH=tests python tests/dashboard/record.py` writes recorded.jsonl.gz here.

Three routers and an office, as in examples/rush, with more destinations: after a minute New York becomes ten times as
busy; the plan changes. Two seconds of all streams come at once, and the next ones when these have been read.
"""

import gzip
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from scenes import wait_for, write_batch

import watersmeet as wm
from watersmeet.metrics.jsonl import KEPT

SECONDS, PER_FILE = 120, 2  # of event time
PACE_S, LAST_S = 0.4, 5.0  # between files; how long no more answers come at the end
DESTINATIONS = 5_000
QUERY = """
SELECT ams.dst, ams.flow AS ams_flow, fra.flow AS fra_flow, nyc.flow AS nyc_flow
FROM ams [RANGE 10 SECONDS], fra [RANGE 10 SECONDS], nyc [RANGE 10 SECONDS]
WHERE ams.dst = fra.dst AND fra.dst = nyc.dst
"""


def rows_of(seed: int, rates: list[int]) -> list[pa.Table]:
    """A stream as its files: rows of each second at a rate, with rows that are late and one that is malformed."""
    chance = np.random.default_rng(seed)
    tables = []
    for first in range(0, SECONDS, PER_FILE):
        count = sum(rates[first : first + PER_FILE])
        ts = np.sort(chance.integers(first * 1_000_000, (first + PER_FILE) * 1_000_000, count)) + 1_735_689_600_000_000
        if first == 40:
            ts[:3] -= 30_000_000
        times = pa.array(ts, mask=np.arange(count) == (5 if first == 60 else -1)).cast(pa.timestamp("us", "UTC"))
        columns = {
            "ts": times,
            "dst": chance.integers(0, DESTINATIONS, count),
            "flow": chance.integers(0, 10**6, count),
        }
        tables.append(pa.table(columns))
    return tables


RATES = {"ams": [100] * SECONDS, "fra": [100] * SECONDS, "nyc": [50] * 60 + [500] * 60}


def write_topology(directory: Path) -> Path:
    """The topology; its data comes later."""
    histogram = [{"low": 0, "high": DESTINATIONS - 1, "share": 1}]
    columns = {"dst": {"bytes": 2, "histogram": histogram}, "flow": {"bytes": 4}}
    streams = {}
    for name, rate in RATES.items():
        source = {"format": "parquet", "path": str(directory / name), "options": {"maxFilesPerTrigger": "1"}}
        streams[name] = {
            "site": name,
            "schema": "ts timestamp, dst long, flow long",
            "event_time": "ts",
            "watermark": "1 second",
            "stats": {"rate": rate[0], "columns": columns},
            "source": source,
        }
    sink = {"format": "parquet", "path": str(directory / "out")}
    query = {"site": "office", "sql": QUERY, "assume_defaults": True, "sink": sink}
    topology = {
        "sites": ["ams", "fra", "nyc", "office"],
        "default_link": {"latency": "20 ms", "bandwidth": "2 Mbps", "price_per_gb": 0.05},
        "adapt": {"mode": "planner", "min_interval": "10 seconds"},
        "streams": streams,
        "queries": {"everywhere": query},
    }
    path = directory / "topology.yaml"
    path.write_text(yaml.safe_dump(topology), encoding="utf-8")
    return path


def feed(directory: Path, run: wm.StreamingRun) -> None:
    """Let the rows come, and wait until they are joined."""
    rows = {name: rows_of(seed, rate) for seed, (name, rate) in enumerate(RATES.items())}
    count = 0
    for number, tables in enumerate(zip(*rows.values(), strict=True)):
        for name, table in zip(rows, tables, strict=True):
            write_batch(table, directory / name / f"{number:05d}.parquet", number)
        count += sum(table.num_rows for table in tables)
        wait_for(lambda wanted=count: run.usage().rows_in >= wanted, "the rows are read")  # type: ignore[misc]
        time.sleep(PACE_S)
    answers, since = -1, time.monotonic()
    while time.monotonic() - since < LAST_S:
        if run.usage().rows_out != answers:
            answers, since = run.usage().rows_out, time.monotonic()
        time.sleep(0.2)


def main() -> None:
    """Run it once, and keep its events."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for stream in RATES:
            (directory / stream).mkdir()
        topology = wm.load_topology(write_topology(directory))
        run = wm.start(topology, checkpoint=directory / "checkpoint", trigger="200 milliseconds")
        feed(directory, run)
        run.stop()
        found = (directory / "checkpoint" / KEPT).read_bytes()
    Path(__file__).with_name("recorded.jsonl.gz").write_bytes(gzip.compress(found, mtime=0))


if __name__ == "__main__":
    main()
