"""An expression fails for the same rows in the simulator as on Spark, and has the same value for the others."""

from decimal import Decimal
from typing import Any

import pyarrow as pa

import watersmeet as wm
from watersmeet.query.dialect import to_duckdb
from watersmeet.query.model import Expression
from watersmeet.sim.sites.rows import _tried, _tried_rows
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.binding import bind

COLUMNS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "s": ("string", pa.string(), ["12", " -7 ", "1.5", "x", "", None]),
    "n": ("int", pa.int32(), [0, 3, -4, None, 7, 2_147_483_647]),
    "d": ("double", pa.float64(), [2.7, -2.7, 0.0, 1e12, None, -0.4]),
    "m": ("decimal(6,2)", pa.decimal128(6, 2), [Decimal(text) for text in ("2.99", "-2.99", "0", "-0.5", "9", "1")]),
}
EXPRESSIONS = (
    "CAST(s AS INT)",
    "CAST(s AS BIGINT) + 1",
    "TRY_CAST(s AS INT)",
    "CAST(s AS DOUBLE)",
    "CAST(d AS INT)",
    "CAST(d AS BIGINT)",
    "CAST(m AS INT)",
    "CAST(n AS SMALLINT)",
    "CAST(CAST(d AS INT) AS STRING)",
    "100 / n",
    "n / d",
    "d / 0",
    "n div n",
    "n % 3",
    "7 % n",
    "d % d",
    "CAST(n AS BIGINT) * 9000000000000",
    "n + 1",
    "n <> 0 AND 100 / n > 20",
    "100 / n > 20 AND n <> 0",
    "n = 0 OR 100 / n > 20",
    "d > 0 AND (n = 3 OR CAST(s AS INT) > 0)",
    "CASE WHEN n = 0 THEN 0 ELSE 12 div n END",
    "coalesce(n, CAST(s AS INT))",
    "NOT (n > 0 AND 1 / d > 0)",
)


def by_spark(spark: Any) -> list[list[Any]]:
    stream = wm.Stream("a", "ts", "k long, ts timestamp", wm.Source("parquet", "unused"))
    query = wm.Query("q", "SELECT a.k AS k FROM a [ROWS 1], a [ROWS 1] AS b WHERE a.k = b.k")
    bind(spark, wm.Topology((stream,), (query,)), query)  # gives Spark the function that tries
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    rows = spark.createDataFrame(list(zip(*(values for _, _, values in COLUMNS.values()), strict=True)), ddl)
    found = rows.selectExpr(
        *(f"{backend_of(spark).tried_sql(sql)} AS e{number}" for number, sql in enumerate(EXPRESSIONS))
    ).collect()
    return [["fails" if value is None else value["v"] for value in row] for row in found]


def by_duckdb() -> list[list[Any]]:
    table = pa.table({name: pa.array(values, kind) for name, (_, kind, values) in COLUMNS.items()})
    tried = [_tried(to_duckdb(Expression(sql, ()), ansi=True)) for sql in EXPRESSIONS]
    columns = ", ".join(f"{sql} AS e{number}" for number, sql in enumerate(tried))
    found = _tried_rows(f"SELECT {columns} FROM given", given=table).to_pylist()
    return [["fails" if value is None else value["v"] for value in row.values()] for row in found]


def test_expressions_fail_for_the_same_rows(spark: Any) -> None:
    expected, got = by_spark(spark), by_duckdb()
    for sql, *pair in zip(EXPRESSIONS, zip(*expected, strict=True), zip(*got, strict=True), strict=True):
        for row, (wanted, value) in enumerate(zip(*pair, strict=True)):
            is_same = value == wanted or (isinstance(wanted, float) and value != value and wanted != wanted)
            assert is_same, f"{sql} of row {row} is {value!r}, and {wanted!r} on Spark"
    assert sum(row.count("fails") for row in expected) > 15
