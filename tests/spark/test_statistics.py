"""Estimates from real sources, against DuckDB's exact figures over the same rows."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import watersmeet as wm
from watersmeet.cli.main import run_command
from watersmeet.errors import RunError
from watersmeet.spark.statistics import estimate
from watersmeet.stats.model import Number, Origin, Stats
from watersmeet.topology.model import Source, Stream, load_topology

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
ROWS = 6_000
SCHEMA = "k long, id long, d date, s string, v double, ts timestamp"
SQL = "SELECT a.id AS x FROM a [RANGE 1 MINUTE], a [RANGE 1 MINUTE] AS b WHERE a.k = b.k AND a.v > 0.25 AND a.k < 100"


def rows(seed: int = 0, count: int = ROWS) -> pa.Table:
    random = np.random.default_rng(seed)
    k = np.where(random.random(count) < 0.2, 7, random.integers(0, 300, count))
    return pa.table(
        {
            "k": pa.array(k, pa.int64()),
            "id": np.arange(count),
            "d": pa.array([START.date() + timedelta(days=int(value)) for value in random.integers(0, 5, count)]),
            "s": pa.array([None if value % 10 == 0 else f"host-{value}" for value in k.tolist()]),
            "v": random.random(count),
            "ts": pa.array([START + timedelta(milliseconds=20 * i) for i in range(count)], pa.timestamp("us", "UTC")),
        }
    )


def topology(source: Source, schema: str = SCHEMA) -> wm.Topology:
    stream = Stream("a", event_time="ts", schema=schema, source=source)
    return wm.Topology((stream,), (wm.Query("q", SQL),))


def value_of(stats: Stats, column: str) -> float:
    distinct = stats.stream("a").columns[column].distinct
    assert distinct is not None
    return distinct.value


def check_exact(stats: Stats, table: pa.Table) -> None:
    """Everything that can be counted exactly was."""
    stream = stats.stream("a")
    facts = duckdb.execute(
        "SELECT (count(*) - 1) * 1e6 / (epoch_us(max(ts)) - epoch_us(min(ts))), count(DISTINCT k), count(DISTINCT s), "
        'count(DISTINCT d), avg((v > 0.25)::int), avg((k < 100)::int) FROM "table"'
    ).fetchall()
    ((rate, keys, hosts, days, heavy, low),) = facts
    assert stream.rate is not None and stream.rate.value == pytest.approx(rate, rel=1e-5)
    assert stream.rate.origin is Origin.ESTIMATED and stream.rate.taken_at is not None
    assert (value_of(stats, "k"), value_of(stats, "s"), value_of(stats, "d")) == (keys, hosts, days)
    counts = dict(duckdb.execute('SELECT k, count(*) FROM "table" GROUP BY k').fetchall())
    histogram = stream.columns["k"].histogram
    assert histogram is not None
    assert {one.low: round(one.share * table.num_rows) for one in histogram.bins} == counts
    assert stream.columns["s"].histogram is None
    assert stats.selectivities["`a.v` > 0.25"].value == pytest.approx(heavy)
    assert stats.selectivities["`a.k` < 100"].value == pytest.approx(low)
    assert stream.row_bytes is not None and 10 < stream.row_bytes.value < 60
    for column in stream.columns.values():
        assert column.sizes is not None and column.sizes[1] > column.sizes[3] > 0
        assert column.in_order is not None
    assert (in_order := stream.columns["id"].in_order) is not None and (sizes := stream.columns["id"].sizes) is not None
    assert in_order[1:4] < (0.5, 0.1, 0.01) < sizes[1:4], "they rise by one"


def test_a_whole_source_of_files_is_told_exactly(
    spark: SparkSession, write_stream: Callable[[str, Sequence[pa.Table]], Path]
) -> None:
    table = rows()
    parts = [table.slice(start, 1_500) for start in range(0, ROWS, 1_500)]
    place = write_stream("some streams", parts)
    told: list[tuple[str, int]] = []
    stats = estimate(
        spark,
        topology(Source("parquet", str(place), {"maxFilesPerTrigger": "1"})),
        seconds=600,  # a busy machine must not end it before all is read
        tell=lambda stream, count: told.append((stream, count)),
    )
    check_exact(stats, table)
    assert value_of(stats, "id") == pytest.approx(ROWS, rel=0.06)
    rate = stats.stream("a").rate
    assert rate is not None and rate.confidence == 1.0
    assert told[0] == ("a", 0) and told[-1] == ("a", ROWS)


def test_only_the_first_files_are_read_if_they_are_enough(
    spark: SparkSession, write_stream: Callable[[str, Sequence[pa.Table]], Path]
) -> None:
    table = rows()
    place = write_stream("a", [table.slice(start, 500) for start in range(0, ROWS, 500)])
    told: list[int] = []
    stats = estimate(
        spark, topology(Source("parquet", str(place))), rows=1_200, tell=lambda stream, count: told.append(count)
    )
    assert told[-1] == 2_000  # files of 500 rows: one, one and two
    rate = stats.stream("a").rate
    assert rate is not None and rate.value == pytest.approx(50.0, rel=0.01)
    assert 0.9 < rate.confidence < 1.0


def test_text_with_malformed_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = rows(1)
    lines = [json.dumps({**row, "d": str(row["d"]), "ts": row["ts"].isoformat()}) for row in table.to_pylist()]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.json").write_text("\n".join(["{not json", *lines, '{"k": 1}', "[]"]), encoding="utf-8")
    check_exact(estimate(spark, topology(Source("json", str(tmp_path / "data")))), table)


def test_partitioned_directories(spark: SparkSession, tmp_path: Path) -> None:
    duckdb.execute(
        f"COPY (SELECT i % 3 AS p, i AS id, TIMESTAMP '2025-01-31' + to_seconds(i) AS ts FROM range(90) t(i)) "
        f"TO '{tmp_path / 'data'}' (FORMAT parquet, PARTITION_BY p)"
    )
    stream = Stream(
        "a",
        event_time="ts",
        schema="id long, ts timestamp_ntz, p int",
        source=Source("parquet", str(tmp_path / "data")),
    )
    stats = estimate(spark, wm.Topology((stream,)))
    assert (value_of(stats, "p"), value_of(stats, "id")) == (3, 90)
    rate = stats.stream("a").rate
    assert rate is not None and rate.value == pytest.approx(1.0)


GENERATED = {"rows_per_second": "100", "column.k": "uniform 0 50", "column.id": "sequence", "seed": "4"}


@pytest.mark.few(1)
@pytest.mark.parametrize("count", [None, "3000", "100000"])
def test_a_generator_at_any_pace(spark: SparkSession, count: str | None) -> None:
    options = GENERATED if count is None else {**GENERATED, "rows": count}
    stream = Stream(
        "a", event_time="ts", schema="k long, id long, ts timestamp", source=Source("generator", None, options)
    )
    stats = estimate(spark, wm.Topology((stream,)), rows=5_000)
    rate = stats.stream("a").rate
    assert rate is not None and rate.value == pytest.approx(100.0, rel=0.01)
    assert value_of(stats, "k") == 50
    assert (rate.confidence == 1.0) == (count == "3000")


def test_a_source_that_only_streams(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    stream = Stream("a", event_time="timestamp", frame=frame)
    stats = estimate(spark, wm.Topology((stream,)), rows=300, seconds=40)
    rate = stats.stream("a").rate
    assert rate is not None and rate.value == pytest.approx(200.0, rel=0.2)
    assert value_of(stats, "value") >= 200


def test_a_source_that_stays_silent_is_left_in_time(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").option("rowsPerSecond", 1).load().where("value < 0")
    stream = Stream("a", event_time="timestamp", frame=frame)
    stats = estimate(spark, wm.Topology((stream,)), seconds=2).stream("a")
    assert (stats.rate, stats.row_bytes) == (None, None)


def test_a_damaged_file_is_told_of(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.parquet").write_bytes(b"nonsense" * 100)
    with pytest.raises(RunError, match="stream 'a': its source cannot be read: "):
        estimate(spark, topology(Source("parquet", str(tmp_path / "data"))))


@pytest.fixture
def file(tmp_path: Path, write_stream: Callable[[str, Sequence[pa.Table]], Path]) -> Path:
    write_stream("a", [rows()])
    write_stream("b", [rows(2, 100)])
    path = tmp_path / "topology.yaml"
    stream = f'{{schema: "{SCHEMA}", event_time: ts, source: {{format: parquet, path: data/NAME}}}}'
    path.write_text(
        f"streams:\n  a: {stream.replace('NAME', 'a')}\n  b: {stream.replace('NAME', 'b')}\n"
        f'queries:\n  q: {{sql: "{SQL}"}}\n',
        encoding="utf-8",
    )
    return path


def test_the_command_shows_and_writes_what_can_be_planned_with(
    spark: SparkSession, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    written = file.with_name("stats.yaml")
    assert run_command(["stats", str(file), "--query", "q", "--output", str(written)]) == 0
    shown = capsys.readouterr().out
    assert "stream a, 50 rows a second (confidence 100%)" in shown
    assert "a.k < 100" in shown and "stream b" not in shown
    assert str(written) in shown
    file.write_text(f"stats_file: stats.yaml\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    check_exact(load_topology(file).stats, rows())


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_the_command_prints_other_forms(
    spark: SparkSession, file: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    import yaml

    assert run_command(["stats", str(file), "--rows", "1000", "--format", form]) == 0
    out = capsys.readouterr().out
    data: Any = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert set(data["streams"]) == {"a", "b"}
    assert data["streams"]["b"]["columns"]["d"]["distinct"]["value"] == 5


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--rows", "0"], "--rows and --seconds must be more than 0"),
        (["--output", "absent/stats.yaml"], "there is no such directory"),
        (["--query", "p"], "unknown query 'p'"),
    ],
)
def test_slips_of_the_command(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fragment: str
) -> None:
    assert run_command(["stats", str(file), *arguments]) == 2
    assert fragment in capsys.readouterr().err


def test_the_guide_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "statistics.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    path = Path("topology.yaml")
    path.write_text(text, encoding="utf-8")
    for command in re.findall(r"^\$ watersmeet (.*)", guide, re.MULTILINE):
        assert run_command(command.split()) == 0
    assert "a.customer < 100" in capsys.readouterr().out
    path.write_text(text.removeprefix("# "), encoding="utf-8")
    stats = load_topology(path).stats
    assert stats.stream("orders").rate == Number(250.0)  # given, and not overridden
    assert stats.stream("orders").columns["ts"].distinct is not None  # from the file
    assert stats.selectivities["`a.customer` < 100"].value == pytest.approx(0.05, abs=0.01)
