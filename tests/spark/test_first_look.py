"""`watersmeet run` plans for several sites without statistics, by the first rows of the sources."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from watersmeet.cli.main import run_command
from watersmeet.errors import CheckpointDamaged
from watersmeet.planners.choose import choose
from watersmeet.query.sql import parse_query
from watersmeet.sim.scenario.sources import schema_of
from watersmeet.sim.sites.rows import typed
from watersmeet.spark.first_look import first_look, without_a_look
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
def file(tmp_path: Path) -> Path:
    for name, first in (("a", 0), ("b", 990)):
        (tmp_path / name).mkdir()
        times = pa.array([100_000 * number for number in range(1_000)], pa.timestamp("us", "UTC"))
        texts = [f"a text of some length {number * 7919 % 10_007}" for number in range(1_000)]
        rows = pa.table({"k": pa.array(range(first, first + 1_000), pa.int64()), "text": texts, "ts": times})
        pq.write_table(rows, tmp_path / name / "1.parquet")
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    return tmp_path / "topology.yaml"


def planner_by(topology: Topology) -> str:
    schemas = {stream.name: schema_of(stream) for stream in topology.streams}
    (query,) = topology.queries
    return choose(topology, query, typed(parse_query(query.sql, topology.columns), schemas)).planner


def test_what_was_seen_first_decides_and_is_kept_for_restarts(
    spark: SparkSession, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topology, root = load_topology(file), tmp_path / ".watersmeet" / "checkpoints"
    assert planner_by(topology) == "central"
    assert run_command(["explain", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "planned by a first look at the sources (1,000 rows of a, 1,000 rows of b)" in shown
    assert "planned by auto" in shown and not root.exists()

    assert run_command(["run", str(file), "--once"]) == 0
    assert "planned by a first look at the sources" in capsys.readouterr().out
    before = (root / "first-look-stats.yaml").read_text()
    looked = first_look(spark, topology, topology.queries, root)
    assert looked.topology.stats.stream("a").sample is not None and planner_by(looked.topology) != "central"
    assert not looked.text and not looked.sentence
    assert run_command(["run", str(file), "--once"]) == 0
    assert (root / "first-look-stats.yaml").read_text() == before and "first look" not in capsys.readouterr().out

    for damaged in (b"\xff\x00", b"streams: [", before.encode().replace(b"distinct:", b"{")):
        (root / "first-look-stats.yaml").write_bytes(damaged)
        with pytest.raises(CheckpointDamaged, match=r"first-look-stats.yaml, by which plans were chosen, is damaged;"):
            first_look(spark, topology, topology.queries, root)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("source: {format: parquet, path: b}", "source: {format: rate}",
     "rows of b (rate) only come with time and cannot be looked at before, so all rows go to the query's site; run"),
    ("source: {format: parquet, path: b}", "source: {format: parquet, path: b}, stats: {rate: 10}",
     "a first look at the sources (1,000 rows of a)"),
    ("    site: hq", "    site: hq\n    planner: central", ""),
    ("path: a}", "path: a, options: {pathGlobFilter: '*.none'}}", "(none of a, 1,000 rows of b)"),
])  # fmt: skip
def test_what_is_looked_at_and_said(spark: SparkSession, file: Path, old: str, new: str, said: str) -> None:
    file.write_text(TOPOLOGY.replace(old, new))
    topology = load_topology(file)
    look = first_look(spark, topology, topology.queries)
    assert said in look.sentence and bool(said) == bool(look.sentence)
    apart = without_a_look(spark, topology, topology.queries)
    assert ("sites that run by themselves plan by the file alone" in apart) == bool(said)


def test_a_planner_that_is_asked_for_needs_no_statistics_of_its_own(
    spark: SparkSession, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in (["check"], ["explain"]):
        file.write_text(TOPOLOGY.replace("site: hq\n", "site: hq\n    planner: tree\n"))
        assert run_command([*verb, str(file)]) == 0
    assert "planned by tree" in capsys.readouterr().out


def test_what_is_read_below_a_view_is_looked_at(spark: SparkSession, file: Path) -> None:
    views = 'views: {few: {sql: "SELECT k, text FROM a WHERE k > 10"}}\nqueries:'
    file.write_text(
        TOPOLOGY.replace("queries:", views).replace("FROM a [RANGE", "FROM few [RANGE").replace("a.", "few.")
    )
    topology = load_topology(file)
    assert "(1,000 rows of a, 1,000 rows of b)" in first_look(spark, topology, topology.queries).sentence
