"""Plans that change by themselves on Spark: one of three routers becomes ten times as busy while they run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scenes import by_arrow, wait_for, write_batch

import watersmeet as wm
from watersmeet.metrics.events import PlanDecision, PlanInForce
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.spark.adapting import Observations
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.load import load_topology

SECOND = 1_000_000
TOPOLOGY = """\
sites: [ams, fra, nyc]
default_link: {latency: 1 ms, bandwidth: 50 kbps}
adapt: {mode: MODE, min_interval: 10 seconds}
durability: process
streams:
  a: &router
    site: ams
    schema: "ts timestamp, k long"
    event_time: ts
    source: {format: parquet, path: a}
    stats: {rate: 20, columns: {k: {distinct: 100}}}
  b: {<<: *router, site: fra, source: {format: parquet, path: b}}
  c: {<<: *router, site: nyc, source: {format: parquet, path: c}}
queries:
  q:
    site: ams
    sql: SELECT a.k FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k AND b.k = c.k
    assume_defaults: true
    sink: {format: parquet, path: out}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["cnu", "planner"])
def test_sites_go_over_when_a_stream_becomes_busy(mode: str, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY.replace("MODE", mode))
    topology = load_topology(path)
    random = np.random.default_rng(1)
    rows: dict[str, list[pa.Table]] = {name: [] for name in "abc"}

    def come(seconds: int, busy: int) -> None:
        """Some seconds of all streams arrive, as a file each."""
        number = len(rows["a"])
        first = sum(int(table["ts"][-1].value) // SECOND + 1 for table in rows["a"][-1:])
        for name in "abc":
            rate = busy if name == "c" else 20
            ts = first * SECOND + np.arange(seconds * rate) * SECOND // rate
            times = pa.array(ts).cast(pa.timestamp("us", "UTC"))
            rows[name].append(pa.table({"ts": times, "k": random.integers(0, 100, len(ts))}))
            write_batch(rows[name][-1], tmp_path / name / f"{number:05d}.parquet", number)

    come(20, 20)
    handle = wm.start(topology, spark=spark, checkpoint=tmp_path / "cp", trigger="200 milliseconds")

    def versions() -> set[int]:
        return {event.version for _, event in handle.events.recent(PlanInForce)}

    def wait_until_right() -> None:
        tables = {name: pa.concat_tables(some) for name, some in rows.items()}
        parsed = parse_query(topology.query("q").sql, topology.columns)
        expected = bag_of(answer(parsed, tables, dict.fromkeys("abc", "ts")))
        wait_for(lambda: by_arrow(tmp_path / "out") == expected, "answers are right", handle.exception)

    try:
        for _ in range(40):
            come(2, 20 if len(rows["a"]) < 6 else 200)
            wait_until_right()
            if versions() - {1}:
                break
        come(4, 200)
        wait_until_right()
    finally:
        handle.stop()
    assert handle.exception() is None
    accepted = [event for _, event in handle.events.recent(PlanDecision) if event.accepted]
    assert versions() - {1} and accepted


def test_sketches_of_the_latest_micro_batch_are_taken_once() -> None:
    def text(rows: int) -> str:
        sketch = StreamSketch()
        sketch.add(pa.table({"k": np.arange(rows)}))
        return json.dumps(sketch.to_data())

    seen = Observations()
    seen.sketched("a", [text(5)])
    seen.sketched("a", [text(7), text(4)])
    found = seen.sketch_of("a")
    assert found is not None and found.sketched == 11
    assert seen.sketch_of("a") is None


def test_a_link_is_slower_only_if_its_fastest_parcels_are() -> None:
    seen = Observations()

    def slower(*seconds: float) -> list[tuple[str, str, int, float]]:
        for one in seconds:
            seen.acknowledged("ams", "nyc", 100, one)
        return list(seen.slower_links(wait_s=0.5))

    assert slower(0.2, 0.9) == []  # too few to say
    assert slower(0.3, 0.8, 0.4) == [("ams", "nyc", 100, 0.0)]
    assert slower(0.9, 0.6, 9.0, 5.0, 0.7) == [("ams", "nyc", 100, 0.0)]  # waiting for triggers, and some luck
    ((*_, longer_s),) = slower(5.0, 2.7, 3.0, 4.0, 2.9)
    assert longer_s == pytest.approx(2.0)
