"""Functions are refused by what Spark's analyser makes of them, whatever names a query calls them by."""

from typing import Any

import pytest

import watersmeet as wm
from watersmeet.query.sql import select_list, where
from watersmeet.spark.binding import bind

STREAMS = tuple(
    wm.Stream(name, "ts", "k long, s string, d date, ts timestamp", wm.Source("parquet", "unused")) for name in "ab"
)


@pytest.fixture
def by_spark_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name through the text's own check."""
    for module in (select_list, where):
        monkeypatch.setattr(module, "refuse_functions", lambda *arguments: None)


def bound(spark: Any, condition: str = "true", select: str = "a.k AS x") -> None:
    sql = f"SELECT {select} FROM a [ROWS 5], b [ROWS 5] WHERE a.k = b.k AND {condition}"
    query = wm.Query("q", sql)
    bind(spark, wm.Topology(STREAMS, (query,)), query)


@pytest.mark.usefixtures("by_spark_alone")
@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("builtin.rand() < 0.5", "rand"),
        ("CASE WHEN a.k > 1 THEN system.builtin.shuffle(array(1))[0] > 1 END", "shuffle"),
        ("transform(array(a.k), x -> x + builtin.randn())[0] > 1", "randn"),
        ("a.ts < builtin.current_timestamp()", "current_timestamp"),
        ("a.d = builtin.curdate()", "current_date"),
        ("unix_timestamp() > 3", "current_timestamp"),
        ("a.s = builtin.current_user()", "current_user"),
        ("a.s = builtin.version()", "version"),
        ("a.ts > 'now'", "CAST('now' AS TIMESTAMP)"),
        ("a.d > to_date(concat('to', 'day'))", "CAST(concat('to', 'day') AS DATE)"),
        ("aes_encrypt(a.s, 'abcdefghijklmnop') IS NULL", "aes_encrypt"),
    ],
)
def test_what_is_not_deterministic(spark: Any, condition: str, name: str) -> None:
    with pytest.raises(wm.InputError) as caught:
        bound(spark, condition)
    assert str(caught.value) == f"{name} is not deterministic and so cannot be in WHERE or ON"


@pytest.mark.usefixtures("by_spark_alone")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("reflect('java.util.UUID', 'randomUUID')", "reflect calls Java methods"),
        ("try_reflect('java.util.UUID', 'randomUUID')", "reflect calls Java methods"),
        ("builtin.input_file_name()", "input_file_name tells how Spark reads its input"),
        ("builtin.sum(a.k)", "aggregates, generators and window functions are not supported"),
    ],
)
def test_what_is_refused_in_every_clause(spark: Any, call: str, message: str) -> None:
    for clauses in ({"select": f"{call} AS x"}, {"condition": f"{call} IS NULL"}):
        with pytest.raises(wm.InputError, match=message.replace("(", r"\(")):
            bound(spark, **clauses)


def test_what_decides_nothing_may_differ(spark: Any) -> None:
    bound(spark, select="rand() AS r, current_timestamp() AS at, uuid() AS id")
    bound(spark, "a.ts > timestamp 'epoch' AND a.d > '2020-01-01' AND raise_error(a.s) IS NULL")


def test_a_number_that_spark_cannot_read(spark: Any) -> None:
    with pytest.raises(wm.InputError, match="Decimal precision 90 exceeds max precision 38"):
        bound(spark, select=f"{'9' * 90} AS x")
