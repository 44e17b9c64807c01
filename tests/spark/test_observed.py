"""What a run over several sites observes of its streams, against the rows it read; across a restart."""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import watersmeet as wm
from watersmeet.cli.main import run_command
from watersmeet.stats.model import Origin, Stats
from watersmeet.stats.yaml import read_stats

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
ROWS = 1_600  # of each stream, in four files
SQL = (
    "SELECT a.id AS x, b.id AS y FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] "
    "WHERE a.k = b.k AND a.s = b.s AND a.v > 0.25"
)
TOPOLOGY = """\
sites: [ams, nyc]
streams:
  a: &a
    site: ams
    schema: "k int, id long, s string, v double, ts timestamp"
    event_time: ts
    source: {format: parquet, path: data/a, options: {maxFilesPerTrigger: 1}}
  b: {<<: *a, site: nyc, source: {format: parquet, path: data/b, options: {maxFilesPerTrigger: 1}}}
queries:
  q: {site: nyc, sql: "SQL", sink: {format: parquet, path: out}}
"""


def rows(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "k": pa.array(np.where(random.random(ROWS) < 0.3, 7, random.integers(0, 40, ROWS)), pa.int32()),
            "id": np.arange(ROWS),
            "s": [f"host-{value}" for value in random.integers(0, 9, ROWS)],
            "v": random.random(ROWS),
            "ts": pa.array([START + timedelta(milliseconds=10 * i) for i in range(ROWS)], pa.timestamp("us", "UTC")),
        }
    )


@pytest.fixture
def file(tmp_path: Path, write_stream: Callable[[str, Sequence[pa.Table]], Path]) -> Path:
    for seed, name in enumerate("ab"):
        write_stream(name, [rows(seed).slice(start, 400) for start in range(0, ROWS, 400)])
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY.replace("SQL", SQL), encoding="utf-8")
    return path


def check(stats: Stats, name: str, table: pa.Table) -> None:
    stream = stats.stream(name)
    ((rate, hosts),) = duckdb.execute(
        'SELECT (count(*) - 1) * 1e6 / (epoch_us(max(ts)) - epoch_us(min(ts))), count(DISTINCT s) FROM "table"'
    ).fetchall()
    assert stream.rate is not None and stream.rate.value == pytest.approx(rate, rel=1e-4)
    assert stream.rate.origin is Origin.OBSERVED and stream.rate.taken_at is not None
    histogram, found = stream.columns["k"].histogram, stream.columns["s"].distinct
    assert histogram is not None and found is not None
    counts = dict(duckdb.execute('SELECT k, count(*) FROM "table" GROUP BY k').fetchall())
    assert {one.low: round(one.share * ROWS) for one in histogram.bins} == counts
    assert found.value == hosts and stream.columns["s"].histogram is None
    for column in ("k", "s", "id"):
        assert stream.columns[column].sizes is not None


def test_a_run_leaves_what_it_observed(
    spark: SparkSession, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", str(file), "--once", "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    written = tmp_path / "checkpoint" / "observed-stats.yaml"
    assert f"statistics observed in this run: {written}" in capsys.readouterr().out
    stats = read_stats(written, wm.load_topology(file).columns)
    for seed, name in enumerate("ab"):
        check(stats, name, rows(seed))
    share = stats.selectivities["`a.v` > 0.25"]
    assert share.value == pytest.approx(np.mean(rows(0)["v"].to_numpy() > 0.25))


def test_a_restart_goes_on_observing(spark: SparkSession, file: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    later = {path: (path.read_bytes(), path.stat().st_mtime) for path in sorted(data.glob("*/0000[23].parquet"))}
    for path in later:
        path.unlink()
    counts: list[int] = []
    for _ in range(2):
        handle = wm.start(wm.load_topology(file), spark=spark, checkpoint=tmp_path / "checkpoint", once=True)
        handle.awaitTermination()
        counts.append(handle.usage().rows_in)
        for path, (content, written) in later.items():
            path.write_bytes(content)
            os.utime(path, (written, written))
    assert counts == [ROWS, 2 * ROWS]
    for seed, name in enumerate("ab"):
        check(handle.observed, name, rows(seed))


def test_observations_that_cannot_be_read_are_made_anew(spark: SparkSession, file: Path, tmp_path: Path) -> None:
    topology, place = wm.load_topology(file), tmp_path / "checkpoint"
    wm.start(topology, spark=spark, checkpoint=place, once=True).awaitTermination()
    (place / "ams" / "observed.json").write_text("{torn", encoding="utf-8")
    handle = wm.start(topology, spark=spark, checkpoint=place, once=True)
    handle.awaitTermination()
    assert set(handle.observed.streams) == {"b"}
