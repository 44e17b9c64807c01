"""Every Spark type that can be compared works as a key; the witness is a batch join of the same rows by Spark."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.errors import TopologyError, TypeMismatch
from watersmeet.testing import bag

# The types of keys, and values of each as Spark SQL.
KEYS = {
    "tinyint": "1Y, 2Y, -128Y, NULL",
    "smallint": "1S, 2S, -32768S, NULL",
    "int": "1, 2, -2147483648, NULL",
    "bigint": "1L, 2L, -9223372036854775807L, NULL",
    "float": "CAST('NaN' AS FLOAT), 0.0F, -0.0F, 1.5F, CAST('-Infinity' AS FLOAT), NULL",
    "double": "CAST('NaN' AS DOUBLE), 0.0D, -0.0D, 1.5D, CAST('Infinity' AS DOUBLE), NULL",
    "decimal(38,10)": "1.5BD, 1.50BD, -12345678901234567890.0000000001BD, NULL",
    "string": "'a', 'A', '', 'é', repeat('long', 100), NULL",
    "string collate UTF8_LCASE": "'a', 'A', 'ß', 'É', 'é', '', NULL",
    "string collate UNICODE_CI": "'a', 'A', 'ß', 'É', 'é', '', NULL",
    "binary": "X'00', X'', X'0001', X'FF', NULL",
    "boolean": "true, false, NULL",
    "date": "DATE'2025-01-01', DATE'1969-12-31', DATE'0001-01-01', NULL",
    "timestamp": "TIMESTAMP'2025-01-01 00:00:00.000001', TIMESTAMP'1960-01-01 00:00:00', NULL",
    "timestamp_ntz": "TIMESTAMP_NTZ'2025-01-01 00:00:00.000001', TIMESTAMP_NTZ'1960-01-01 00:00:00', NULL",
    "time(6)": "'12:00:00.000001', '00:00:00', NULL",
    "interval day to second": "INTERVAL '1 00:00:00' DAY TO SECOND, INTERVAL '-0 00:00:00.000001' DAY TO SECOND, NULL",
    "interval year to month": "INTERVAL '1-2' YEAR TO MONTH, INTERVAL '14' MONTH, INTERVAL '-1-0' YEAR TO MONTH, NULL",
    "struct<x:int,y:string>": "struct(1, 'a'), struct(1, NULL), struct(NULL, 'a'), struct(NULL, NULL), NULL",
    "struct<x:double,y:array<int>>": "struct(-0.0D, array(1)), struct(0.0D, array(1)), struct(0.0D, array(2)), NULL",
    "array<int>": "array(1, 2), array(2, 1), array(1, NULL), array(), array(CAST(NULL AS INT)), NULL",
    "array<double>": "array(CAST('NaN' AS DOUBLE)), array(0.0D), array(-0.0D), NULL",
}


NOT_KEPT = {"interval year to month"}  # Arrow in Python has no such type; as keys they are numbers of months
COLUMNS = {kind: f"c{number}" for number, kind in enumerate(KEYS)}
FILES = 2


@pytest.fixture(scope="module")
def values(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files that each hold every value of every type at least twice, some further apart in time than the window."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    directory = tmp_path_factory.mktemp("values")
    picks = [
        f"CAST(get(array({KEYS[kind]}), CAST(n % size(array({KEYS[kind]})) AS INT)) AS {kind}) AS {column}"
        for kind, column in COLUMNS.items()
    ]
    for number in range(FILES):
        rows = spark.range(0, 14, 1, 1).selectExpr(
            f"id + {100 * number} AS id",
            "TIMESTAMP'2025-01-01 00:00:00' + make_dt_interval(0, 0, 0, id DIV 3) AS ts",
            "id AS n",
        )
        rows.selectExpr("id", "ts", *picks).write.mode("append").parquet(str(directory))
    yield directory
    spark.conf.unset("spark.sql.timeType.enabled")


def streams(values: Path, ddl: str) -> tuple[wm.Stream, ...]:
    source = wm.Source("parquet", str(values), {"maxFilesPerTrigger": "1"})
    schema = f"id long, ts timestamp, {ddl}"
    return tuple(wm.Stream(n, event_time="ts", schema=schema, source=source, watermark="1 minute") for n in "lr")


def answers(spark: SparkSession, tmp: Path, streams: tuple[wm.Stream, ...], select: str, where: str) -> Counter[Any]:
    return all_answers(spark, tmp, streams, {"q": (select, where)})["q"]


def all_answers(
    spark: SparkSession, tmp: Path, streams: tuple[wm.Stream, ...], queries: dict[str, tuple[str, str]]
) -> dict[str, Counter[Any]]:
    """The answers of queries that run together, by name; each is a select list and a predicate."""
    got: dict[str, Counter[Any]] = {name: Counter() for name in queries}

    def keep(name: str) -> Callable[[DataFrame, int], None]:
        return lambda rows, batch: got[name].update(bag(rows.toArrow()))

    asked = tuple(
        wm.Query(
            name,
            f"SELECT {select} FROM l [RANGE 2 SECONDS], r [RANGE 2 SECONDS] WHERE {where}",
            foreach_batch=keep(name),
        )
        for name, (select, where) in queries.items()
    )
    handle = wm.start(wm.Topology(streams, asked), spark=spark, checkpoint=tmp / "checkpoint", once=True)
    handle.awaitTermination()
    assert handle.micro_batches == FILES
    return got


def witness(spark: SparkSession, streams: tuple[wm.Stream, ...], where: str) -> DataFrame:
    def rows(stream: wm.Stream) -> DataFrame:
        assert stream.schema is not None and stream.source is not None and stream.source.path is not None
        return spark.read.schema(stream.schema).parquet(stream.source.path).alias(stream.name)

    left, right = map(rows, streams)
    within = F.expr("abs(unix_micros(l.ts) - unix_micros(r.ts)) <= 2000000")
    return left.join(right, on=within & F.expr(where))


def test_keys_are_equal_as_spark_says(spark: SparkSession, tmp_path: Path, values: Path) -> None:
    given = streams(values, ", ".join(f"{key} {kind}" for kind, key in COLUMNS.items()))
    queries = {}
    for kind, key in COLUMNS.items():
        value = f"CAST(l.{key} AS STRING)" if kind.startswith(("struct", "array")) else f"l.{key}"
        shown = ["l.id AS l_id", "r.id AS r_id", *([] if kind in NOT_KEPT else [f"{value} AS k"])]
        queries[key] = (", ".join(shown), f"l.{key} = r.{key} AND r.id % 3 <> 1")
    got = all_answers(spark, tmp_path, given, queries)
    for kind, key in COLUMNS.items():
        select, where = queries[key]
        expected = bag(witness(spark, given, where).selectExpr(*select.split(", ")).toArrow())
        assert expected and got[key] == expected, kind


UNEQUAL_TYPES = {
    "intervals of different units": ("interval day to second", "CAST({} AS INTERVAL HOUR TO SECOND)"),
    "an explicit collation wins": ("string", "{} COLLATE UTF8_LCASE"),
    "also the binary one": ("string collate UTF8_LCASE", "{} COLLATE UTF8_BINARY"),
    "decimals of different scale": ("decimal(38,10)", "CAST({} AS DECIMAL(12,2))"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", UNEQUAL_TYPES)
def test_keys_of_types_that_spark_reconciles(spark: SparkSession, tmp_path: Path, values: Path, name: str) -> None:
    kind, changed = UNEQUAL_TYPES[name]
    key = COLUMNS[kind]
    given = streams(values, f"{key} {kind}")
    where = f"l.{key} = {changed.format(f'r.{key}')} AND l.id < 105"
    if name == "decimals of different scale":
        where += f" AND abs(r.{key}) < 100"
    expected = bag(witness(spark, given, where).selectExpr("l.id AS l_id", "r.id AS r_id").toArrow())
    assert expected
    assert answers(spark, tmp_path, given, "l.id AS l_id, r.id AS r_id", where) == expected


def test_distinct_compares_collated_strings_across_batches_as_spark_does(
    spark: SparkSession, tmp_path: Path, values: Path
) -> None:
    kind = "string collate UTF8_LCASE"
    key, number = COLUMNS[kind], COLUMNS["int"]
    given = streams(values, f"{key} {kind}, {number} int")
    got = answers(spark, tmp_path, given, f"DISTINCT l.{key} AS k", f"l.{number} = r.{number}")
    expected = witness(spark, given, f"l.{number} = r.{number}").selectExpr(f"l.{key} AS k").distinct()
    assert got.total() == expected.count()
    assert {value and value.lower() for (value,) in got} == {row.k and row.k.lower() for row in expected.collect()}


REFUSED = {
    "map<int,int>": "l.k = r.k: values of type map<int,int> cannot be compared",
    "variant": "l.k = r.k: values of type variant cannot be compared",
    "array<map<int,int>>": "does not support ordering on type",
    "struct<x:variant>": "does not support ordering on type",
    "interval": "does not support ordering on type",
    "array<string collate UTF8_LCASE>": "collated strings inside a key",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_types_that_cannot_be_compared_are_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with pytest.raises(TypeMismatch) as refusal:
        answers(spark, tmp_path, streams(tmp_path, f"k {kind}"), "l.id", "l.k = r.k")
    assert REFUSED[kind] in str(refusal.value)


@pytest.mark.parametrize(("left", "right"), [("int", "string"), ("date", "timestamp"), ("boolean", "int")])
def test_types_that_are_never_equal_are_refused(spark: SparkSession, tmp_path: Path, left: str, right: str) -> None:
    with pytest.raises(TypeMismatch, match=f"{left} is never equal to {right}; cast one side"):
        answers(spark, tmp_path, streams(tmp_path, f"k {left}, m {right}"), "l.id", "l.k = r.m")


def test_collations_that_differ_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TypeMismatch, match="Use COLLATE clause"):
        answers(spark, tmp_path, streams(tmp_path, "k string, m string collate UTF8_LCASE"), "l.id", "l.k = r.m")


def test_columns_that_windows_cannot_keep_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TypeMismatch, match=r"l\.k: windows cannot keep values of type interval year to month"):
        answers(spark, tmp_path, streams(tmp_path, "k interval year to month"), "l.k", "l.id = r.id")
    with pytest.raises(TypeMismatch, match="DISTINCT cannot compare column 'v' of type array<variant>"):
        answers(spark, tmp_path, streams(tmp_path, "k array<variant>"), "DISTINCT l.k AS v", "l.id = r.id")


def test_varchar_is_refused_as_spark_refuses_it(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"varchar\(9\) is a type of tables only; use string"):
        answers(spark, tmp_path, streams(tmp_path, "k varchar(9)"), "l.k", "l.id = r.id")
