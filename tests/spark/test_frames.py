"""`wm.sql` over streaming DataFrames that the user has, written and gone on with as in PySpark."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.spark.frames import JoinedStreamWriter, stream_of
from watersmeet.testing import bag

START = datetime(2025, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SQL = """SELECT o.id AS order_id, c.click, o.k FROM orders [RANGE 5 SECONDS] o, clicks [RANGE 3 SECONDS] c
         WHERE o.k = c.k"""
ROWS = 40
WriteStream = Callable[[str, Sequence[pa.Table]], Path]


def rows(low: int, high: int, shift: int) -> pa.Table:
    data = [{"k": (n * n + shift) % 4, "id": n, "ts": START + timedelta(seconds=n)} for n in range(low, high)]
    return pa.Table.from_pylist(data, schema=SCHEMA)


def expected() -> Counter[Any]:
    """By the definition: the order is at most 5 seconds older than the click, the click 3 seconds than the order."""
    return Counter(
        (o, c, o * o % 4) for o in range(ROWS) for c in range(ROWS) if o * o % 4 == (c * c + 1) % 4 and -5 <= o - c <= 3
    )


@pytest.fixture
def frames(spark: SparkSession, write_stream: WriteStream) -> dict[str, DataFrame]:
    found = {}
    for shift, name in enumerate(("orders", "clicks")):
        path = write_stream(name, [rows(n, n + 20, shift) for n in range(0, ROWS, 20)])
        read = spark.readStream.schema("k long, id long, ts timestamp").option("maxFilesPerTrigger", 1)
        found[name] = read.parquet(str(path))
    clicks = found["clicks"].withWatermark("ts", "2 seconds").withColumnRenamed("id", "click")
    orders = found["orders"].withWatermark("ts", "1 minute 500 milliseconds").selectExpr("id", "k", "ts AS at")
    return {"orders": orders, "clicks": clicks.where("k IS NOT NULL")}


def test_event_time_and_delay_are_those_of_the_watermark(spark: SparkSession, frames: dict[str, DataFrame]) -> None:
    orders, clicks = (stream_of(name, frame) for name, frame in frames.items())
    assert (orders.event_time, orders.watermark_us) == ("at", 60_500_000), "through a select and a rename"
    assert (clicks.event_time, clicks.watermark_us) == ("ts", 2_000_000)
    plain = spark.readStream.format("rate").load()
    with pytest.raises(wm.InputError, match=r'r has no watermark.*r\.withWatermark\("ts", "10 seconds"\)'):
        stream_of("r", plain)
    both = plain.withWatermark("timestamp", "1 second").withColumn("t", F.col("timestamp"))
    with pytest.raises(wm.InputError, match=r"r has 2 columns with a watermark \(timestamp, t\); select one"):
        stream_of("r", both)
    with pytest.raises(wm.InputError, match="r is a batch DataFrame, which is a table and no stream"):
        stream_of("r", spark.range(3))


def test_a_query_is_analysed_at_once(spark: SparkSession, frames: dict[str, DataFrame]) -> None:
    joined = wm.sql(spark, SQL, **frames)
    assert joined.columns == ["order_id", "click", "k"] and joined.isStreaming
    assert joined.schema.simpleString() == "struct<order_id:bigint,click:bigint,k:bigint>"
    with pytest.raises(wm.InputError, match="'o' has no column 'kk'; did you mean 'k'"):
        wm.sql(spark, SQL.replace("o.k = c.k", "o.kk = c.k"), **frames)
    with pytest.raises(wm.InputError, match="name the DataFrames"):
        wm.sql(spark, SQL)
    attempts: list[tuple[Callable[[JoinedStreamWriter], object], str]] = [
        (lambda write: write.outputMode("complete"), "so use append"),
        (lambda write: write.trigger(continuous="1 second"), "continuous processing has no joins"),
        (lambda write: write.trigger(processingTime="1 s", once=True), "trigger takes one of"),
        (lambda write: write.partitionBy("k"), r"\.toStream\(\)\.writeStream\.partitionBy"),
        (lambda write: write.format("memory").start(checkpointLocation="x"), "is Spark's own"),
        (lambda write: write.format("parquet").start("x"), "checkpointLocation is not set"),
        (lambda write: write.format("parquet").start(checkpointLocation="x"), "needs a path"),
    ]
    for wrong, text in attempts:
        with pytest.raises(wm.InputError, match=text):
            wrong(joined.writeStream)


def test_answers_are_written_and_a_restart_goes_on(
    spark: SparkSession, frames: dict[str, DataFrame], tmp_path: Path
) -> None:
    joined = wm.sql(spark, SQL, **frames)
    for _ in range(2):
        run = (
            joined.writeStream.format("parquet")
            .outputMode("append")
            .queryName("upset_buyers")
            .options(checkpointLocation=tmp_path / "checkpoint", compression="zstd")
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert run.awaitTermination(300) is True and run is joined.lastRun
        assert bag(ds.dataset(tmp_path / "out", format="parquet").to_table()) == expected()
    assert run.name == "upset_buyers" and run.usage().rows_in == 2 * ROWS


def test_answers_go_on_in_spark(spark: SparkSession, frames: dict[str, DataFrame], tmp_path: Path) -> None:
    joined = wm.sql(spark, SQL, **frames)
    stream = joined.toStream(tmp_path / "joined", availableNow=True)
    assert stream.isStreaming and stream.columns == joined.columns and joined.lastRun is not None
    joined.lastRun.awaitTermination(300)
    counts = stream.groupBy("k").agg(F.count("*").alias("n")).writeStream.outputMode("complete").format("memory")
    counts.queryName("counts").trigger(availableNow=True).start().awaitTermination(300)
    wanted = Counter(k for _, _, k in expected().elements())
    assert {row["k"]: row["n"] for row in spark.table("counts").collect()} == wanted


def test_a_notebook_shows_a_live_table(spark: SparkSession, frames: dict[str, DataFrame]) -> None:
    joined = wm.sql(spark, SQL, **frames)
    html = joined._repr_html_()
    assert html.startswith("<table><caption>") and "<th>order_id</th><th>click</th><th>k</th>" in html
    assert html.count("<tr>") > 10 and "answers, the latest first (live)" in html
    assert joined.lastRun is not None
    joined.lastRun.stop()


def test_each_micro_batch_goes_to_a_function_or_a_table(
    spark: SparkSession, frames: dict[str, DataFrame], tmp_path: Path
) -> None:
    joined = wm.sql(spark, SQL, **frames)
    spark.sql("DROP TABLE IF EXISTS door_answers")
    writer = joined.writeStream.format("parquet").option("path", tmp_path / "table")
    run = writer.trigger(availableNow=True).toTable("door_answers", checkpointLocation=tmp_path / "checkpoint")
    run.awaitTermination(300)
    try:
        assert Counter(map(tuple, spark.table("door_answers").collect())) == expected()
    finally:
        spark.sql("DROP TABLE door_answers")
