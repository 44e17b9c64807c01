"""Parquet files that tasks read themselves, and those that they leave to Spark: the answers are the same."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.spark.files import FileShelf
from watersmeet.spark.ingest.intake import Intake
from watersmeet.spark.ingest.new_files import listing_of
from watersmeet.spark.ingest.parquet_files import UNFIT, FileColumn
from watersmeet.spark.jobs import TaskRunner
from watersmeet.spark.planning import plan_query, site_programs
from watersmeet.testing import bag
from watersmeet.topology.model import Query, Stream, Topology

START = datetime(2025, 1, 1, tzinfo=UTC)
DDL = (
    "k long, small int, flag boolean, day date, at timestamp_ntz, name string, price decimal(9,2), v double, "
    "ts timestamp"
)
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("small", pa.int32()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("name", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("v", pa.float64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
ROWS = 24
WriteStream = Callable[[str, Sequence[pa.Table]], Path]


def rows_of(batch: int) -> pa.Table:
    """Rows with NULLs among keys and values, ancient days, and times with microseconds."""
    numbers = range(batch * ROWS, (batch + 1) * ROWS)
    return pa.Table.from_pylist(
        [
            {
                "k": None if n % 11 == 0 else n % 5,
                "small": n % 3,
                "flag": None if n % 13 == 0 else n % 2 == 0,
                "day": date(1500 + n % 4, 2, 28),
                "at": datetime(1969, 12, 31, 23, 59, 59, n % 3),
                "name": None if n % 7 == 0 else f"n{n}",
                "price": Decimal(n) / 100,
                "v": n / 7,
                "ts": START + timedelta(seconds=n, microseconds=n),
            }
            for n in numbers
        ],
        SCHEMA,
    )


def stream(name: str, path: Path, **differs: Any) -> Stream:
    given: dict[str, Any] = {"watermark": "1 hour", "schema": DDL, "event_time": "ts"}
    given["source"] = wm.Source("parquet", str(path), {"maxFilesPerTrigger": "1"})
    return wm.Stream(name, **given | differs)


def sql_of(where: str, select: str = "a.name AS x, b.price AS y, b.at AS z, b.v AS v, a.day AS d") -> str:
    return f"SELECT {select} FROM a [RANGE 30 SECONDS], b [RANGE 40 SECONDS] WHERE {where}"


def columns_of(spark: Any, query: str, *streams: Stream) -> dict[str, tuple[FileColumn, ...] | None]:
    return intake_of(spark, Path("unused"), query, *streams)._file_columns


def intake_of(spark: Any, directory: Path, query: str, *streams: Stream) -> Intake:
    """How the rows of a query's streams come in, as a run at one site has it."""
    topology = Topology(streams, (Query("q", query),))
    bound, chosen = plan_query(spark, topology, topology.query("q"))
    (program,) = site_programs({"q": chosen}, topology).values()
    shelf, marks = FileShelf(str(directory)), str(directory / "marks.json")
    return Intake(spark, topology, program, bound.schemas, shelf, marks, TaskRunner(spark))


def test_what_needs_more_than_columns_of_files_is_left_to_spark(spark: Any, tmp_path: Path) -> None:
    a, b = (stream(name, tmp_path) for name in "ab")
    keys = "a.k = b.k AND a.flag = b.flag AND a.day = b.day AND a.at = b.at AND a.ts = b.ts"
    direct = columns_of(spark, sql_of(keys), a, b)
    assert all(direct.values())
    assert {column.name for column in direct["a"] or ()} == {"k", "flag", "day", "at", "ts", "name"}
    for where in ("a.name = b.name", "a.k + 1 = b.k", "a.k = b.small", "a.price = b.price", "a.k = b.k AND a.v > 1"):
        assert None in columns_of(spark, sql_of(where), a, b).values(), where
    for other in (
        stream("a", tmp_path, source=wm.Source("parquet", str(tmp_path), {"mergeSchema": "true"})),
        stream("a", tmp_path, source=wm.Source("orc", str(tmp_path))),
        stream("a", tmp_path, late=wm.Sink("parquet", str(tmp_path / "late"))),
        stream("a", tmp_path, schema=DDL.replace("name string", "name string collate UNICODE_CI")),
        stream("a", tmp_path, schema=DDL.replace("name string", "name array<string>")),
    ):
        told = columns_of(spark, sql_of("a.k = b.k"), other, b)
        assert told["a"] is None and told["b"] is not None


def check(spark: Any, tmp_path: Path, where: str, tables: dict[str, pa.Table], *streams: Stream) -> None:
    query = Query("q", sql_of(where), sink=wm.Sink("parquet", str(tmp_path / "out")))
    wm.start(Topology(streams, (query,)), "q", spark=spark, checkpoint=tmp_path / "c", once=True).awaitTermination()
    parsed = parse_query(query.sql, {"a": SCHEMA.names, "b": SCHEMA.names})
    expected = answer(parsed, tables, {"a": "ts", "b": "ts"})
    assert bag(ds.dataset(tmp_path / "out").to_table()) == bag(expected)
    assert expected.num_rows > 20


@pytest.mark.parametrize("where", ["a.k = b.k", "a.flag = b.flag AND a.day = b.day", "a.at = b.at AND a.k = b.k"])
def test_files_that_tasks_read_join_as_those_that_spark_reads(
    spark: Any, tmp_path: Path, write_stream: WriteStream, where: str
) -> None:
    given = [rows_of(n) for n in range(3)]
    a = stream("a", write_stream("a", given))
    b = stream("b", write_stream("b", given))
    assert all(columns_of(spark, sql_of(where), a, b).values())
    table = pa.concat_tables(given)
    check(spark, tmp_path, where, {"a": table, "b": table}, a, b)


def test_files_that_are_not_quite_so_are_read_by_spark(spark: Any, tmp_path: Path, write_stream: WriteStream) -> None:
    given = [rows_of(n) for n in range(6)]
    narrow = given[1].set_column(0, "k", given[1].column("k").cast(pa.int32()))
    other_case = given[2].rename_columns(["K", *SCHEMA.names[1:]])
    without = given[3].drop_columns(["name"])
    encoded = given[4].set_column(5, "name", given[4].column("name").dictionary_encode())
    path = write_stream("a", [given[0], narrow, other_case, without, encoded, given[5]])
    read = [*given[:3], given[3].set_column(5, "name", pa.nulls(ROWS, pa.string())), *given[4:]]
    a, b = stream("a", path), stream("b", write_stream("b", given))
    check(spark, tmp_path, "a.k = b.k", {"a": pa.concat_tables(read), "b": pa.concat_tables(given)}, a, b)


def test_columns_that_are_names_of_directories_are_read_by_spark(
    spark: Any, tmp_path: Path, write_stream: WriteStream
) -> None:
    given = rows_of(0).set_column(1, "small", pa.array([n % 2 for n in range(ROWS)], pa.int32()))
    for part in (0, 1):
        rows = given.filter(pc.equal(given.column("small"), part)).drop_columns(["small"])
        (tmp_path / "parts" / f"small={part}").mkdir(parents=True)
        pq.write_table(rows, tmp_path / "parts" / f"small={part}" / "rows.parquet")
    a = stream("a", tmp_path / "parts", source=wm.Source("parquet", str(tmp_path / "parts")))
    b = stream("b", write_stream("b", [given]))
    check(spark, tmp_path, "a.small = b.small", {"a": given, "b": given}, a, b)


def test_which_files_are_left_to_spark_is_told(spark: Any, tmp_path: Path, write_stream: WriteStream) -> None:
    good = rows_of(0)
    path = write_stream("a", [good, good.set_column(0, "k", good.column("k").cast(pa.int32())), good])
    (path / "00003.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(good.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), path / "00004.parquet")
    pq.write_table(good.replace_schema_metadata({"org.apache.spark.version": "2.4.8"}), path / "00005.parquet")
    pq.write_table(good.replace_schema_metadata({"org.apache.spark.version": "4.3.0"}), path / "00006.parquet")
    a, b = stream("a", path), stream("b", write_stream("b", [good]))
    state = tmp_path / "state"
    state.mkdir()
    (state / "marks.json").write_text('{"a": null, "b": null, "#batch": 0}', encoding="utf-8")
    intake = intake_of(spark, state, sql_of("a.k = b.k"), a, b)
    listing = listing_of(a)
    assert listing is not None
    reported = intake._read_by_tasks({"a": listing.files()})
    assert sorted(Path(one).name for row in reported for one in row.get(UNFIT, ())) == [
        "00001.parquet",
        "00003.parquet",
        "00004.parquet",
        "00005.parquet",
    ]
    assert sum(row.get("rows", 0) for row in reported) == 3 * ROWS
