"""Records the run that tests show: `PYTHONPATH=tests python tests/dashboard/record.py` writes recorded.jsonl.gz here.

Three routers and an office, as in examples/rush: after a minute New York becomes ten times as busy; the plan changes.
"""

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from scenes import write_batches

import watersmeet as wm
from watersmeet.metrics.jsonl import KEPT

SECONDS, PER_FILE = 120, 4  # of event time
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
        columns = {"ts": times, "dst": chance.integers(0, 1_000, count), "flow": chance.integers(0, 10**6, count)}
        tables.append(pa.table(columns))
    return tables


def write_topology(directory: Path) -> Path:
    """The topology with its data."""
    rates = {"ams": [40] * SECONDS, "fra": [40] * SECONDS, "nyc": [20] * 60 + [200] * 60}
    columns = {"dst": {"bytes": 2, "histogram": [{"low": 0, "high": 999, "share": 1}]}, "flow": {"bytes": 4}}
    streams = {}
    for seed, (name, rate) in enumerate(rates.items()):
        data = write_batches(directory / name, rows_of(seed, rate))
        source = {"format": "parquet", "path": str(data), "options": {"maxFilesPerTrigger": "1"}}
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


def main() -> None:
    """Run it once, and keep its events."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run = wm.start(wm.load_topology(write_topology(directory)), checkpoint=directory / "checkpoint", once=True)
        run.awaitTermination()
        found = (directory / "checkpoint" / KEPT).read_bytes()
    Path(__file__).with_name("recorded.jsonl.gz").write_bytes(gzip.compress(found, mtime=0))


if __name__ == "__main__":
    main()
