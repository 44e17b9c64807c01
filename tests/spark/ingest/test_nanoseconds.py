"""Times in nanoseconds, as pandas writes them, are read as microseconds, by tasks and by Spark."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
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


def topology(
    tmp_path: Path,
    ddl: str = DDL["timestamp"],
    place: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> wm.Topology:
    sources = {name: wm.Source("parquet", f"{place or tmp_path}/{name}", dict(options)) for name in "ab"}
    streams = tuple(wm.Stream(name, "ts", ddl, source) for name, source in sources.items())
    sql = "SELECT a.k AS k, a.ts AS at, b.ts AS bt FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.k = b.k"
    return wm.Topology(
        streams, (wm.Query("q", sql, wm.Sink("parquet", str(tmp_path / "out"))),), directory=str(tmp_path)
    )


def check_answers(tmp_path: Path) -> None:
    answers = pq.read_table(tmp_path / "out").sort_by("k")
    expected = [START_NS // 1_000 + 1_999 * n // 1_000 for n in range(4)]
    assert answers.column("at").cast(pa.int64()).to_pylist() == expected


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("ddl", DDL.values(), ids=DDL)
def test_tasks_read_nanoseconds_beside_microseconds(spark: Any, tmp_path: Path, ddl: str, zone: str | None) -> None:
    write(tmp_path / "a/1.parquet", pa.timestamp("ns", zone), [START_NS + 1_999 * n for n in range(4)])
    write(tmp_path / "b/1.parquet", pa.timestamp("us", zone), [START_NS // 1_000] * 4)
    warnings: list[str] = []
    wm.start(topology(tmp_path, ddl), spark=spark, once=True, warn=warnings.append).awaitTermination()
    assert warnings == ["stream 'a': ts is in nanoseconds in its files; it is read in microseconds, rounded down"]
    check_answers(tmp_path)


def test_files_that_spark_lists_may_have_nanoseconds(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "a/1.parquet", pa.timestamp("ns", "UTC"), [START_NS + 1_999 * n for n in range(4)])
    write(tmp_path / "b/1.parquet", pa.timestamp("us", "UTC"), [START_NS // 1_000] * 4)
    listed_by_spark = topology(tmp_path, options={"maxFileAge": "9999d"})
    wm.start(listed_by_spark, spark=spark, once=True, warn=lambda text: None).awaitTermination()
    check_answers(tmp_path)


def test_files_of_another_file_system_may_have_nanoseconds(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "data/a/1.parquet", pa.timestamp("ns"), [START_NS + 1_999 * n for n in range(4)])
    write(tmp_path / "data/b/1.parquet", pa.timestamp("us", "UTC"), [START_NS // 1_000] * 4)
    mounts = spark.sparkContext._jsc.hadoopConfiguration()
    mounts.set("fs.viewfs.mounttable.far.link./data", f"file:{tmp_path}/data")
    far = topology(tmp_path, place="viewfs://far/data")
    wm.start(far, spark=spark, once=True, warn=lambda text: None).awaitTermination()
    check_answers(tmp_path)


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
