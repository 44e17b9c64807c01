"""`watersmeet run --first-look` plans for several sites without statistics, by the first rows of the sources."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from watersmeet.cli.main import run_command
from watersmeet.planners.choose import choose
from watersmeet.query.sql import parse_query
from watersmeet.sim.scenario.sources import schema_of
from watersmeet.sim.sites.rows import typed
from watersmeet.spark.first_look import is_wanted
from watersmeet.stats.yaml import read_stats
from watersmeet.topology.model import Topology, load_topology

TOPOLOGY = """
sites: {north: {}, south: {}, hq: {}}
default_link: {latency: 5 ms}
streams:
  a: {schema: "k long, text string, ts timestamp", event_time: ts, site: north, source: {format: parquet, path: a}}
  b: {schema: "k long, text string, ts timestamp", event_time: ts, site: south, source: {format: parquet, path: b}}
queries:
  q:
    sql: SELECT a.text AS x, b.text AS y FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k
    site: hq
    sink: {format: parquet, path: out}
"""


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    for name, first in (("a", 0), ("b", 990)):
        (tmp_path / name).mkdir()
        times = pa.array([100_000 * number for number in range(1_000)], pa.timestamp("us", "UTC"))
        texts = [f"a text of some length {number * 7919 % 10_007}" for number in range(1_000)]
        rows = pa.table({"k": pa.array(range(first, first + 1_000), pa.int64()), "text": texts, "ts": times})
        pq.write_table(rows, tmp_path / name / "1.parquet")
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    return load_topology(tmp_path / "topology.yaml")


def planner_by(topology: Topology) -> str:
    schemas = {stream.name: schema_of(stream) for stream in topology.streams}
    (query,) = topology.queries
    return choose(topology, query, typed(parse_query(query.sql, topology.columns), schemas)).planner


def test_what_was_seen_first_decides_and_is_kept_for_restarts(
    spark: SparkSession, topology: Topology, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_wanted(topology, topology.queries) and planner_by(topology) == "central"
    path = str(tmp_path / "topology.yaml")
    assert run_command(["run", path, "--once", "--first-look"]) == 0
    assert "planned by a first look at the sources" in capsys.readouterr().out
    (kept,) = (tmp_path / ".watersmeet" / "checkpoints").rglob("first-look-stats.yaml")
    stats = read_stats(kept, topology.columns)
    assert stats.stream("a").sample is not None and stats.stream("a").rate is not None
    before = kept.read_text()
    assert run_command(["run", path, "--once", "--first-look"]) == 0
    assert kept.read_text() == before and "first look" not in capsys.readouterr().out
