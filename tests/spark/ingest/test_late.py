"""Rows that come too late or make no sense are counted and, where a stream asks for it, kept; the others still join."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import watersmeet as wm
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.testing import bag

START = datetime(2025, 1, 1, tzinfo=UTC)
DDL = "k long, id long, ts timestamp"
SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
DELAY_S = 5
WriteStream = Callable[[str, Sequence[pa.Table]], Path]

# Seconds of the rows of each batch; None is an event time that is missing.
SECONDS: dict[str, list[list[float | None]]] = {
    "a": [[0, 10, 20, 3], [14, 15, 40, 16, None, 14.999999], [34, 35, 36, None, 33, 41], [46, 47]],
    "b": [[1, 11, 19], [18, 30, 25], [24.999999, 37, 45, 25], [47, 48, 39]],
}


def batches_of(name: str) -> list[list[dict[str, Any]]]:
    numbers = iter(range(100))
    return [
        [
            {"k": n % 2 if n % 7 else None, "id": n, "ts": None if s is None else START + timedelta(seconds=s)}
            for s in seconds
            for n in [next(numbers)]
        ]
        for seconds in SECONDS[name]
    ]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def sorted_out(batches: list[list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Good, late and malformed rows: late is what lies before the mark that earlier batches have set."""
    out: dict[str, list[dict[str, Any]]] = {"good": [], "late": [], "malformed": []}
    mark = None
    for batch in batches:
        for row in batch:
            late = row["ts"] is not None and mark is not None and row["ts"] < mark
            out["malformed" if row["ts"] is None else "late" if late else "good"].append(row)
        times = [row["ts"] - timedelta(seconds=DELAY_S) for row in batch if row["ts"] is not None]
        mark = max([*times, *([mark] if mark else [])])
    return out


def start(spark: Any, tmp: Path, streams: Sequence[wm.Stream], sql: str, **query: Any) -> wm.StreamingRun:
    query = query or {"sink": wm.Sink("parquet", str(tmp / "out"))}
    topology = wm.Topology(tuple(streams), (wm.Query("q", sql, **query),))
    return wm.start(topology, "q", spark=spark, checkpoint=tmp / "checkpoint", once=True)


def read(path: Path, kind: str = "parquet") -> pa.Table:
    return ds.dataset(path, format=kind).to_table()


@pytest.mark.parametrize("window", ["[RANGE 9 SECONDS]", "[ROWS 3]"])
def test_late_rows_and_missing_times_are_counted_and_kept_once(
    spark: Any, tmp_path: Path, write_stream: WriteStream, window: str
) -> None:
    given = {name: batches_of(name) for name in SECONDS}
    streams = [
        wm.Stream(
            name,
            event_time="ts",
            schema=DDL,
            watermark=f"{DELAY_S} seconds",
            source=wm.Source(
                "parquet", str(write_stream(name, [table(b) for b in given[name]])), {"maxFilesPerTrigger": "1"}
            ),
            late=wm.Sink("parquet", str(tmp_path / "late_a")) if name == "a" else None,
        )
        for name in given
    ]
    # The same stream twice: its rows are still counted and kept once.
    sql = f"SELECT a.id AS a, b.id AS b, z.id AS z FROM a {window}, b {window}, a {window} AS z "
    sql += "WHERE a.k = b.k AND b.k = z.k"
    handle = start(spark, tmp_path, streams, sql)
    handle.awaitTermination()
    sorts = {name: sorted_out(batches) for name, batches in given.items()}
    assert len(sorts["a"]["late"]) == 4 and len(sorts["b"]["late"]) == 2, "the example has late rows of both streams"
    assert handle.usage().late == 6
    assert handle.usage().malformed == 2
    assert handle.usage().rows_in == sum(len(batch) for batches in given.values() for batch in batches)
    progress = handle.lastProgress
    assert progress is not None
    late = progress["sites"]["here"]["watersmeet"]["late"]
    assert late == {"a": 0, "b": 1}, "the last batch has one late row, of b"

    kept = [row | {"_reason": reason} for reason in ("late", "malformed") for row in sorts["a"][reason]]
    wanted = bag(pa.Table.from_pylist(kept, schema=SCHEMA.append(pa.field("_reason", pa.string()))))
    assert bag(read(tmp_path / "late_a")) == wanted

    good = {name: table(sort["good"]) for name, sort in sorts.items()}
    query = parse_query(sql, dict.fromkeys(good, tuple(SCHEMA.names)))
    marks = [max(row["ts"] for row in sort["good"]) - timedelta(seconds=DELAY_S) for sort in sorts.values()]
    watermark = round(min(marks).timestamp() * 1e6) if "ROWS" in window else None
    expected = bag(answer(query, good, dict.fromkeys(good, "ts"), heads_before_us=watermark))
    assert expected and bag(read(tmp_path / "out")) == expected

    again = start(spark, tmp_path, streams, sql)
    again.awaitTermination()
    assert bag(read(tmp_path / "late_a")) == wanted, "starting again without new data keeps nothing twice"
    assert again.usage().late == 6


def test_a_batch_that_runs_again_keeps_its_late_rows_once(
    spark: Any, tmp_path: Path, write_stream: WriteStream
) -> None:
    path = write_stream("a", [table(batch) for batch in batches_of("a")])
    a = wm.Stream(
        "a",
        event_time="ts",
        schema=DDL,
        source=wm.Source("parquet", str(path), {"maxFilesPerTrigger": "1"}),
        watermark=f"{DELAY_S} seconds",
        late=wm.Sink("parquet", str(tmp_path / "late")),
    )
    failures = iter([False, True, False, True])

    def fail_at_times(rows: Any, batch: int) -> None:
        if next(failures, False):
            raise OSError("the receiver is down")

    sql = "SELECT a.id FROM a [UNBOUNDED], a [UNBOUNDED] AS z WHERE a.k = z.k"
    for _ in range(2):
        handle = start(spark, tmp_path, [a], sql, foreach_batch=fail_at_times)
        with pytest.raises(wm.RunError, match="the receiver is down"):
            handle.awaitTermination()
    handle = start(spark, tmp_path, [a], sql, foreach_batch=fail_at_times)
    handle.awaitTermination()
    sort = sorted_out(batches_of("a"))
    assert Counter(read(tmp_path / "late")["id"].to_pylist()) == Counter(
        row["id"] for row in sort["late"] + sort["malformed"]
    )
    assert handle.usage().late == 4 and handle.micro_batches == 4


@pytest.mark.parametrize("compact_interval", [10, 3])  # the list that no batch came of is a plain one, or holds all
def test_files_that_were_listed_when_spark_was_killed_still_come_in_batches_of_their_own(
    spark: Any, tmp_path: Path, write_stream: WriteStream, compact_interval: int
) -> None:
    batches = batches_of("b")
    source = write_stream("b", [table(batch) for batch in batches])
    files, apart = sorted(source.iterdir()), tmp_path / "apart"
    apart.mkdir()
    for file in files[2:]:
        file.rename(apart / file.name)
    b = wm.Stream(
        "b",
        event_time="ts",
        schema=DDL,
        source=wm.Source("parquet", str(source), {"maxFilesPerTrigger": "1", "maxFileAge": "7d"}),  # for Spark to list
        watermark=f"{DELAY_S} seconds",
    )

    def run() -> wm.StreamingRun:
        handle = start(spark, tmp_path, [b], "SELECT b.id FROM b [UNBOUNDED], b [UNBOUNDED] AS z WHERE b.k = z.k")
        handle.awaitTermination()
        return handle

    checkpoint, before = tmp_path / "checkpoint", tmp_path / "before"
    listed = Path("here", "spark", "sources", "0", "2.compact" if compact_interval == 3 else "2")
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", compact_interval)
    try:
        run()
        shutil.copytree(checkpoint, before)
        shutil.copytree(tmp_path / "out", tmp_path / "out before")
        (apart / files[2].name).rename(files[2])
        run()
        shutil.copy(checkpoint / listed, before / listed)  # as if Spark had been killed before it planned the batch
        for place, as_it_was in [(checkpoint, before), (tmp_path / "out", tmp_path / "out before")]:
            shutil.rmtree(place)
            as_it_was.rename(place)
        (apart / files[3].name).rename(files[3])
        handle = run()
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")
    sort = sorted_out(batches)
    assert [row["ts"] for row in sort["late"]][-1] == START + timedelta(seconds=39), "late by the file before its own"
    assert handle.micro_batches == 4
    assert handle.usage().late == len(sort["late"])
    assert handle.usage().rows_in == sum(len(batch) for batch in batches)
    good = [row for row in sort["good"] if row["k"] is not None]
    assert read(tmp_path / "out").num_rows == sum(x["k"] == y["k"] for x in good for y in good)


MALFORMED = {
    "csv": (
        [
            "1,0,2025-01-01T00:00:00Z\nx,1,2025-01-01T00:00:01Z\n1,2,2025-01-01T00:00:02Z\n",
            '1,3,yesterday\n,4,2025-01-01T00:00:03Z\n1,5,2025-01-01T00:00:04Z\n1\n"1,6\n',
        ],
        ["x,1,2025-01-01T00:00:01Z", "1,3,yesterday", "1", '"1,6'],
    ),
    "json": (
        [
            '{"k": 1, "id": 0, "ts": "2025-01-01T00:00:00Z"}\n{"k": "x", "id": 1, "ts": "2025-01-01T00:00:01Z"}\n'
            '{"k": 1, "id": 2, "ts": "2025-01-01T00:00:02Z"}\n',
            '{"k": 1, "id": 3, "ts": "yesterday"}\n{"id": 4, "ts": "2025-01-01T00:00:03Z"}\n'
            '{"k": 1, "id": 5, "ts": "2025-01-01T00:00:04Z"}\n{"k": 1\nnot json at all\n',
        ],
        [
            '{"k": "x", "id": 1, "ts": "2025-01-01T00:00:01Z"}',
            '{"k": 1, "id": 3, "ts": "yesterday"}',
            '{"k": 1',
            "not json at all",
        ],
    ),
}


@pytest.mark.parametrize(("kind", "keeps"), [("csv", True), ("json", True), ("json", False)])
def test_malformed_text_is_counted_and_kept(spark: Any, tmp_path: Path, kind: str, keeps: bool) -> None:
    files, wrong = MALFORMED[kind]
    for name in "ab":
        (tmp_path / name).mkdir()
        for number, text in enumerate(files):
            path = tmp_path / name / f"{number}.{kind}"
            path.write_text(text, encoding="utf-8")
    late = wm.Sink("json", str(tmp_path / "late")) if keeps else None
    source = {name: wm.Source(kind, str(tmp_path / name)) for name in "ab"}
    streams = [
        wm.Stream("a", event_time="ts", schema=DDL, source=source["a"], late=late),
        wm.Stream("b", event_time="ts", schema=DDL, source=source["b"]),
    ]
    sql = "SELECT a.id AS a, b.id AS b FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k AND a.id < 5"
    handle = start(spark, tmp_path, streams, sql)
    handle.awaitTermination()
    assert bag(read(tmp_path / "out")) == Counter((a, b) for a in (0, 2) for b in (0, 2, 5))
    assert handle.usage().malformed == 2 * len(wrong)
    assert handle.usage().null_keys == 2, "row 4 of each stream has no key"
    assert handle.usage().late == 0
    if keeps:
        lines = [line for file in (tmp_path / "late").glob("part-*") for line in file.read_text().splitlines()]
        kept = [json.loads(line) for line in lines]
        assert Counter(row["_watersmeet_malformed"] for row in kept) == Counter(wrong)
        assert {row["_reason"] for row in kept} == {"malformed"}


@pytest.mark.parametrize("window", ["[RANGE 9 SECONDS]", "[ROWS 3]"])
def test_null_keys_are_counted_for_every_alias(
    spark: Any, tmp_path: Path, write_stream: WriteStream, window: str
) -> None:
    rows = [{"k": None if n % 3 == 0 else 1, "id": n, "ts": START + timedelta(seconds=n)} for n in range(12)]
    path = write_stream("a", [table(rows[:6]), table(rows[6:]), table([rows[-1] | {"ts": START + timedelta(days=1)}])])
    a = wm.Stream("a", event_time="ts", schema=DDL, source=wm.Source("parquet", str(path), {"maxFilesPerTrigger": "1"}))
    sql = f"SELECT a.id FROM a {window}, a {window} AS z WHERE a.k = z.k AND a.id > 3"
    handle = start(spark, tmp_path, [a], sql)
    handle.awaitTermination()
    assert handle.usage().null_keys == 2 + 4, "two of `a` past its filter, four of `z`"
