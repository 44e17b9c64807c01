"""The Python interface: topologies built in code, DataFrames as streams, functions and formats as sinks, the handle."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scenes import PATIENCE_S, wait_for

import watersmeet as wm
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import Event, MicroBatchCompleted, RunEnded, RunStarted
from watersmeet.testing import bag

START = datetime(2025, 1, 1, tzinfo=UTC)
DDL = "k long, id long, ts timestamp"
SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SQL = "SELECT a.id AS a_id, b.id AS b_id, a.k FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"
ROWS, KEYS, BATCHES = 30, 4, 3
WriteStream = Callable[[str, Sequence[pa.Table]], Path]


def rows(low: int, high: int, shift: int = 0) -> pa.Table:
    """A row a second; stream `b` has other keys at the same times."""
    return pa.Table.from_pylist(
        [{"k": (n * n + shift) % KEYS, "id": n, "ts": START + timedelta(seconds=n)} for n in range(low, high)],
        schema=SCHEMA,
    )


def expected(high: int = ROWS) -> Counter[Any]:
    return Counter(
        (a, b, a * a % KEYS)
        for a in range(high)
        for b in range(high)
        if abs(a - b) <= 5 and a * a % KEYS == (b * b + 1) % KEYS
    )


@pytest.fixture
def streams(write_stream: WriteStream) -> tuple[wm.Stream, ...]:
    step = ROWS // BATCHES
    paths = [
        write_stream(name, [rows(n, n + step, shift) for n in range(0, ROWS, step)]) for shift, name in enumerate("ab")
    ]
    return tuple(
        wm.Stream(
            name,
            event_time="ts",
            schema=DDL,
            source=wm.Source("parquet", str(path), {"maxFilesPerTrigger": "1"}),
        )
        for name, path in zip("ab", paths, strict=True)
    )


def start(
    spark: SparkSession, tmp: Path, streams: Sequence[wm.Stream], sql: str = SQL, *, run: Any = None, **query: Any
) -> wm.StreamingRun:
    topology = wm.Topology(tuple(streams), (wm.Query("q", sql, **query),))
    return wm.start(
        topology, "q", spark=spark, checkpoint=tmp / "checkpoint", **({"once": True} if run is None else run)
    )


def test_a_topology_built_in_code_and_its_handle(
    spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...]
) -> None:
    events = EventBus()
    reported: list[Event] = []
    events.subscribe(lambda at, event: reported.append(event))
    sink = wm.Sink("parquet", str(tmp_path / "out"))
    handle = start(spark, tmp_path, streams, run={"once": True, "events": events}, sink=sink)
    assert handle.name == "q" and handle.sites == ("here",) and handle.id["here"]
    assert handle.awaitTermination(PATIENCE_S) is True
    assert not handle.isActive and handle.exception() is None
    assert "message" in handle.status["here"]
    assert bag(ds.dataset(tmp_path / "out", format="parquet").to_table()) == expected()
    usage = handle.usage("q")
    assert usage == handle.usage() == handle.usage_here() == handle.query("q").usage
    assert (usage.rows_in, usage.rows_out) == (2 * ROWS, expected().total())
    assert (usage.late, usage.malformed, usage.null_keys, usage.bytes_shipped) == (0, 0, 0, 0)
    assert usage.state_rows > 0 and usage.state_bytes > 0
    assert handle.micro_batches == handle.micro_batches_here == BATCHES
    marks = dict.fromkeys("ab", round((START.timestamp() + ROWS - 1) * 1e6))
    progress = handle.lastProgress
    assert progress is not None and set(progress) == {"queries", "sites"}
    assert progress["queries"]["q"] == handle.query("q").lastProgress
    assert progress["queries"]["q"] == {"name": "q", "batchId": BATCHES - 1, "watermarks": marks, **asdict(usage)}
    here = progress["sites"]["here"]
    assert here["name"] == "q" and here["batchId"] == BATCHES - 1, "what Spark says"
    assert here["watersmeet"]["rows_in"] == dict.fromkeys("ab", ROWS // BATCHES)
    assert here["watersmeet"]["watermarks"] == marks
    completed = [event for event in reported if isinstance(event, MicroBatchCompleted)]
    assert sum(event.answers["q"] or 0 for event in completed) == expected().total()
    assert isinstance(reported[0], RunStarted) and reported[-1] == RunEnded("completed")
    kept = handle.events()
    assert len(kept) == len(reported) and kept["event"].iloc[0] == "run_started"
    batches = handle.query("q").events("micro_batch_completed")
    assert batches["rows_in.a"].sum() == ROWS and str(batches["at"].dtype) == "datetime64[ns, UTC]"
    assert "join 2 windows" in str(handle.plan) and "<pre>project a.id" in handle.plan.draw()._repr_html_()
    html = handle._repr_html_()
    assert f"{2 * ROWS:,} rows in, {expected().total():,} answers" in html and ">ended<" in html
    with pytest.raises(wm.InputError, match="unknown kind of event 'micro_batch'; did you mean"):
        handle.events("micro_batch")
    with pytest.raises(wm.InputError, match="unknown query 'qq'; did you mean 'q'"):
        handle.query("qq")
    handle.stop()
    assert handle.exception() is None


def test_streaming_dataframes_as_streams(spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...]) -> None:
    def frame(name: str) -> DataFrame:
        path = str(tmp_path / "data" / name)
        return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(path)

    a = frame("a").where("id % 2 = 0").select("k", (F.col("id") * 10).alias("my id"), F.col("ts").alias("When"))
    mixed = [wm.Stream("a", event_time="when", frame=a), wm.Stream("b", event_time="ts", frame=frame("b"))]
    sql = "SELECT a.`my id`, b.id AS b_id, a.k FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"
    got: list[Any] = []
    start(spark, tmp_path, mixed, sql, foreach_batch=lambda rows, n: got.extend(rows.collect())).awaitTermination()
    assert Counter(map(tuple, got)) == Counter({(10 * a, b, k): 1 for a, b, k in expected() if a % 2 == 0})


def test_functions_take_batches_as_dataframes(
    spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...]
) -> None:
    first: list[Any] = []
    second: list[Any] = []
    numbers: list[int] = []

    def read_twice(answers: DataFrame, batch: int) -> None:
        numbers.append(batch)
        first.extend(answers.collect())
        second.extend(answers.where("k >= 0").groupBy("a_id", "b_id", "k").count().collect())

    handle = start(spark, tmp_path, streams, foreach_batch=read_twice)
    handle.awaitTermination()
    assert numbers == list(range(BATCHES))
    assert Counter(map(tuple, first)) == expected()
    assert {tuple(row)[:3]: row["count"] for row in second} == dict(expected())
    assert handle.usage().rows_out == expected().total()


@pytest.mark.parametrize("distinct", [False, True])
def test_a_function_may_ignore_what_it_is_given(
    spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...], distinct: bool
) -> None:
    got: list[Any] = []

    def only_last(answers: DataFrame, batch: int) -> None:
        if batch == BATCHES - 1:
            got.extend(answers.collect())

    sql = "SELECT DISTINCT a.k FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k" if distinct else SQL
    start(spark, tmp_path, streams, sql, foreach_batch=only_last).awaitTermination()
    last = {pair for pair in expected() if max(pair[:2]) >= ROWS - ROWS // BATCHES}
    assert Counter(map(tuple, got)) == (Counter() if distinct else Counter(last))


def test_an_error_of_a_function_ends_the_query_and_its_batch_is_redone(
    spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...]
) -> None:
    got: dict[int, list[Any]] = {}
    broken = True

    def receive(answers: DataFrame, batch: int) -> None:
        got[batch] = answers.collect()
        if broken and batch == 1:
            raise ValueError("no room on the shelf")

    handle = start(spark, tmp_path, streams, foreach_batch=receive)
    with pytest.raises(wm.RunError, match="query 'q' failed: no room on the shelf"):
        handle.awaitTermination()
    assert not handle.isActive
    assert isinstance(handle.exception(), wm.RunError) and "no room on the shelf" in str(handle.exception())
    assert set(got) == {0, 1}, "nothing is given to the function after it has failed"
    seen = got.pop(1)
    broken = False
    handle = start(spark, tmp_path, streams, foreach_batch=receive)
    handle.awaitTermination()
    assert handle.exception() is None
    assert Counter(map(tuple, got[1])) == Counter(map(tuple, seen))
    assert Counter(tuple(row) for batch in got.values() for row in batch) == expected()


SINKS = {
    "json": {},
    "csv": {"header": "true"},
    "orc": {},
    "parquet": {"compression": "gzip"},
}


@pytest.mark.parametrize("kind", SINKS)
def test_files_of_other_formats(spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...], kind: str) -> None:
    handle = start(spark, tmp_path, streams, sink=wm.Sink(kind, str(tmp_path / "out"), SINKS[kind]))
    handle.awaitTermination()
    reader = spark.read.format(kind).options(**SINKS[kind]).schema("a_id long, b_id long, k long")
    assert Counter(map(tuple, reader.load(str(tmp_path / "out")).collect())) == expected()
    assert handle.usage().rows_out == expected().total()
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".writer-"))
    assert names and all(name.startswith("part-") for name in names)
    if kind == "parquet":
        metadata = pq.ParquetFile(tmp_path / "out" / names[0]).metadata
        assert metadata.row_group(0).column(0).compression == "GZIP"


def test_the_console_and_noop(spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...]) -> None:
    shown: list[str] = []
    run = {"once": True, "show": shown.append}
    start(spark, tmp_path / "console", streams, run=run).awaitTermination()
    assert len(shown) == BATCHES and "a_id|b_id|" in shown[0] and shown[0].startswith("batch 0: ")
    handle = start(spark, tmp_path / "noop", streams, sink=wm.Sink("noop"))
    handle.awaitTermination()
    assert handle.usage().rows_out == expected().total()


def test_an_unknown_sink_is_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path, streams: tuple[wm.Stream, ...]
) -> None:
    with pytest.raises(wm.WatersmeetError, match="papyrus"):
        start(spark, tmp_path, streams, sink=wm.Sink("papyrus", str(tmp_path / "out"))).awaitTermination()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("rate", {"rowsPerSecond": "200"}),
        ("rate-micro-batch", {"rowsPerBatch": "50", "advanceMillisPerBatch": "1000"}),
    ],
)
def test_spark_makes_rows_itself(spark: SparkSession, tmp_path: Path, kind: str, options: dict[str, str]) -> None:
    streams = [
        wm.Stream(
            name,
            event_time="timestamp",
            schema="timestamp timestamp, value long",
            source=wm.Source(kind, None, options),
        )
        for name in "ab"
    ]
    got: list[Any] = []
    sql = "SELECT a.value AS a, b.value AS b FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.value = b.value"
    handle = start(
        spark,
        tmp_path,
        streams,
        sql,
        run={"trigger": "300 milliseconds"},
        foreach_batch=lambda r, n: got.extend(r.collect()),
    )
    wait_for(lambda: len(got) > 50 or not handle.isActive, "too few answers")
    handle.stop()
    assert handle.exception() is None
    assert len(got) > 50 and set(Counter(map(tuple, got))) == {(n, n) for n in range(len(got))}


def test_a_continuous_run_takes_up_new_files_and_stops_cleanly(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    streams = [
        wm.Stream(
            name, event_time="ts", schema=DDL, source=wm.Source("parquet", str(tmp_path / name)), watermark="1 day"
        )
        for name in "ab"
    ]

    def add(low: int, high: int) -> None:
        for shift, name in enumerate("ab"):
            pq.write_table(rows(low, high, shift), tmp_path / f"{name}.tmp")
            os.rename(tmp_path / f"{name}.tmp", tmp_path / name / f"{low}.parquet")

    sink = wm.Sink("parquet", str(tmp_path / "out"))
    handle = start(spark, tmp_path, streams, run={"trigger": "200 milliseconds"}, sink=sink)
    assert handle.isActive and handle.awaitTermination(0.1) is False
    add(0, 10)
    wait_for(lambda: handle.usage().rows_in == 20, "rows do not come in")
    add(10, 20)
    wait_for(lambda: handle.usage().rows_in == 40, "rows do not come in")
    with pytest.raises(wm.CheckpointMismatch, match="in use by another run"):
        start(spark, tmp_path, streams, sink=sink)
    handle.stop()
    assert not handle.isActive and handle.exception() is None and handle.awaitTermination() in (None, True)
    assert bag(ds.dataset(tmp_path / "out", format="parquet").to_table()) == expected(20)
    add(20, 30)
    again = start(spark, tmp_path, streams, sink=sink)
    again.awaitTermination()
    assert again.id == handle.id, "the same query goes on"
    assert bag(ds.dataset(tmp_path / "out", format="parquet").to_table()) == expected(30)
    assert not [path for path in tmp_path.iterdir() if "staging" in path.name]
