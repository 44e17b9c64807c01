"""Comparisons by NumPy and Arrow beside DuckDB, over values at every edge."""

import itertools
from collections.abc import Callable
from datetime import UTC, date, datetime
from math import inf, nan
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from watersmeet.program.join.conditions import newly_complete, not_rejected
from watersmeet.query.comparisons import Condition
from watersmeet.query.dialect import to_duckdb
from watersmeet.query.model import EVENT_TIME_KIND, Column, Expression

VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "i": ("int", pa.int32(), [None, 0, 1, -1, 7, 2**31 - 1, -(2**31)]),
    "n": ("bigint", pa.int64(), [None, 0, 1, -5, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "v": ("double", pa.float64(), [None, 0.0, -0.0, 1.5, 1e300, inf, -inf, nan]),
    "s": ("string", pa.string(), [None, "", "a", "B", "é", "東京"]),
    "d": ("date", pa.date32(), [None, date(1969, 12, 31), date(2024, 2, 29)]),
    "t": (
        EVENT_TIME_KIND,
        pa.timestamp("us", "UTC"),
        [None, *(datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC) for second in (0, 1, 3, 9))],
    ),
}


def condition(text: str) -> Condition:
    """`a.n` stands for the column of an alias."""
    names = sorted({word for word in text.replace("(", " ").replace(")", " ").split() if word[:2] in ("a.", "b.")})
    columns = tuple(Column(*name.split(".")) for name in names)
    sql = text
    for column in columns:
        sql = sql.replace(column.flat, column.sql)
    return Condition(Expression(sql, columns, "boolean"), tuple(VALUES[column.name][0] for column in columns))


def all_pairs(one: Condition) -> pa.Table:
    """Every combination of the values of its columns."""
    kinds = [VALUES[column.name] for column in one.expression.columns]
    rows = list(itertools.product(*(values for _, _, values in kinds)))
    return pa.table(
        {
            column.flat: pa.array([row[place] for row in rows], kinds[place][1])
            for place, column in enumerate(one.expression.columns)
        }
    )


def judged(one: Condition, table: pa.Table) -> list[bool]:
    mask = not_rejected([one], {name: table.column(name).combine_chunks() for name in table.column_names})
    return list(mask.tolist())


@pytest.mark.parametrize("operator", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("sides", ["a.i b.i", "a.i b.n", "a.n b.v", "a.v b.v", "a.s b.s", "a.d b.d", "a.t b.t"])
def test_comparisons_are_those_of_duckdb(operator: str, sides: str) -> None:
    left, right = sides.split()
    check(f"{left} {operator} {right}")


@pytest.mark.parametrize(
    "text",
    [
        "b.t BETWEEN a.t - INTERVAL 2 SECONDS AND a.t + INTERVAL 1 SECOND",
        "NOT (a.s < b.s OR b.s IS NULL )",
        "a.s IS NULL OR NOT a.v > b.v AND b.i IS NOT NULL",
        "NOT (a.i = 1 AND b.i < 7 )",
        "a.i = 7 OR b.s = b.s AND a.v <= 1.5",
    ],
)
def test_conditions_are_those_of_duckdb(text: str) -> None:
    check(text)


def check(text: str) -> None:
    one = condition(text)
    rows = all_pairs(one)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        sql = to_duckdb(one.expression)
        expected = connection.sql(f"SELECT coalesce({sql}, false) AS holds FROM rows").to_arrow_table()
    assert judged(one, rows) == expected.column("holds").to_pylist()
    assert not one.can_fail


@pytest.mark.parametrize(
    ("text", "total", "bits"),
    [
        ("a.i + 1 < b.i", lambda a, _: a + 1, 31),
        ("a.n - b.n > 3", lambda a, b: a - b, 63),
        ("abs( a.i - b.i ) <= 7", lambda a, b: a - b if a - b != -(2**31) else 2**31, 31),
        ("a.i + b.n = 0", lambda a, b: a + b, 63),
    ],
)
def test_combinations_that_a_sum_is_too_large_for_stay(
    text: str, total: Callable[[int, int | None], int], bits: int
) -> None:
    one = condition(text)
    rows = all_pairs(one)
    fails = []
    for first, second in zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True):
        is_there = first is not None and (second is not None or "+ 1" in text)
        fails.append(is_there and not -(2**bits) <= total(first, second) < 2**bits)
    with duckdb.connect() as connection:
        whole = text
        for name in rows.column_names:
            whole = whole.replace(name, f'"{name}"::HUGEINT')
        holds = connection.sql(f"SELECT coalesce({whole}, false) AS holds FROM rows").to_arrow_table()
    expected = [held or failed for held, failed in zip(holds.column("holds").to_pylist(), fails, strict=True)]
    assert judged(one, rows) == expected
    assert one.can_fail and any(fails)


def test_a_condition_is_applied_where_its_last_alias_comes() -> None:
    conditions = [condition("a.i < b.i"), condition("a.n < b.n")]
    assert newly_complete(conditions, [("a",), ("b", "c")], ("a", "b", "c")) == conditions
    assert newly_complete(conditions, [("a", "b"), ("c",)], ("a", "b", "c")) == []
    assert newly_complete(conditions, [("a",), ("c",)], ("a", "c")) == []
