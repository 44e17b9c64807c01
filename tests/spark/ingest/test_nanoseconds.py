"""Times in nanoseconds, as pandas writes them, are read as microseconds, by tasks and by Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.spark.ingest.nanoseconds import read_files
from watersmeet.spark.statistics import estimate

START_NS = 1_700_000_000_000_000_000
DDL = {"timestamp": "k long, ts timestamp", "timestamp_ntz": "k long, ts timestamp_ntz"}


def write(path: Path, kind: pa.DataType, times: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"k": range(len(times)), "ts": pa.array(times, kind)}), path)


def topology(tmp_path: Path, ddl: str = DDL["timestamp"]) -> wm.Topology:
    streams = tuple(wm.Stream(name, "ts", ddl, wm.Source("parquet", str(tmp_path / name))) for name in "ab")
    sql = "SELECT a.k AS k, a.ts AS at, b.ts AS bt FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.k = b.k"
    return wm.Topology(
        streams, (wm.Query("q", sql, wm.Sink("parquet", str(tmp_path / "out"))),), directory=str(tmp_path)
    )


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("ddl", DDL.values(), ids=DDL)
def test_tasks_read_nanoseconds_beside_microseconds(spark: Any, tmp_path: Path, ddl: str, zone: str | None) -> None:
    write(tmp_path / "a/1.parquet", pa.timestamp("ns", zone), [START_NS + 1_999 * n for n in range(4)])
    write(tmp_path / "b/1.parquet", pa.timestamp("us", zone), [START_NS // 1_000] * 4)
    warnings: list[str] = []
    wm.start(topology(tmp_path, ddl), spark=spark, once=True, warn=warnings.append).awaitTermination()
    assert warnings == ["stream 'a': ts is in nanoseconds in its files; it is read in microseconds, rounded down"]
    answers = pq.read_table(tmp_path / "out").sort_by("k")
    expected = [START_NS // 1_000 + 1_999 * n // 1_000 for n in range(4)]
    assert answers.column("at").cast(pa.int64()).to_pylist() == expected


def test_spark_reads_nanoseconds_beside_microseconds(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", pa.timestamp("ns"), [-1, 1_999])
    write(tmp_path / "2.parquet", pa.timestamp("us", "UTC"), [7, 8])
    schema = spark.createDataFrame([], DDL["timestamp"]).schema
    paths = [f"file:{tmp_path}/{number}.parquet" for number in (1, 2)]
    rows = read_files(spark, lambda kind, some: spark.read.schema(kind).parquet(*some), schema, paths)
    assert rows.schema.simpleString() == schema.simpleString()
    found = rows.selectExpr("unix_micros(ts) AS us").collect()
    assert sorted(row.us for row in found) == [-1, 1, 7, 8]


def test_statistics_of_nanoseconds(spark: Any, tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / "1.parquet", pa.timestamp("ns"), [START_NS + 1_000_000_000 * n for n in range(11)])
    stats = estimate(spark, topology(tmp_path))
    rate = stats.stream("a").rate
    assert rate is not None and rate.value == pytest.approx(1.0, rel=0.2)
