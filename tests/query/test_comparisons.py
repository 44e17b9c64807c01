"""Which predicates are comparisons that the join itself applies, and which of them cannot fail."""

from dataclasses import replace

import pytest

from watersmeet.query.comparisons import Condition, column_types, conditions_of
from watersmeet.query.model import EVENT_TIME_KIND, Column, JoinQuery
from watersmeet.query.sql import parse_query

KINDS = {
    "ts": "timestamp",
    "day": "date",
    "i": "int",
    "n": "bigint",
    "v": "double",
    "f": "float",
    "s": "string",
    "money": "decimal(10,2)",
}


def parsed(condition: str) -> JoinQuery:
    sql = f"SELECT a.n AS x FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.i = b.i AND ({condition})"
    query = parse_query(sql, {"a": list(KINDS), "b": list(KINDS)})
    types = {Column(alias, name): kind for alias in "ab" for name, kind in KINDS.items()}
    return replace(query, types=column_types(query, types, {"a": "ts", "b": "ts"}))


def only_condition(text: str) -> Condition | None:
    query = parsed(text)
    assert query.residuals, "it is about both streams"
    found = conditions_of(query)
    return found[0] if found else None


@pytest.mark.parametrize(
    "text",
    [
        "a.n < b.n",
        "a.i <> b.n",
        "a.v >= b.i",
        "a.s <= b.s",
        "a.day > b.day",
        "a.f = b.f OR a.f < b.v",
        "b.ts BETWEEN a.ts - INTERVAL 5 MINUTES AND a.ts + INTERVAL '30' SECOND",
        "abs(a.v - b.v) < 0.5",
        "a.v + b.v > -1e3",
        "NOT (a.n < b.n) OR a.s IS NULL AND b.s IS NOT NULL",
    ],
)
def test_comparisons_that_cannot_fail(text: str) -> None:
    condition = only_condition(text)
    assert condition is not None and not condition.can_fail


@pytest.mark.parametrize("text", ["a.i + 1 < b.i", "abs(a.n - b.n) < 3", "a.i - b.i > 2", "a.n + b.n <> 7"])
def test_sums_of_whole_numbers_may_be_too_large(text: str) -> None:
    condition = only_condition(text)
    assert condition is not None and condition.can_fail


@pytest.mark.parametrize(
    "text",
    [
        "a.n % 3 <> b.n % 3",
        "CAST(a.s AS INT) < b.i",
        "a.s < b.n",  # Spark casts the text, which may fail
        "a.money < b.money",
        "a.n * b.n > 3",
        "a.v / b.v > 1",
        "a.ts < b.day",
        "a.f < b.n",
        "a.ts < b.ts - INTERVAL 1 DAY",  # a day may have 23 hours
        "a.ts < b.ts - INTERVAL 1 MONTH",
        "lower(a.s) < lower(b.s)",
        "a.n < b.n OR a.s LIKE b.s",
        "a.n <=> b.n",
    ],
)
def test_what_is_left_to_an_evaluator(text: str) -> None:
    assert only_condition(text) is None


def test_only_checked_timestamps_are_event_times() -> None:
    query = parsed("a.ts < b.ts - INTERVAL 1 SECOND")
    assert dict(query.types) == dict.fromkeys((Column("a", "ts"), Column("b", "ts")), EVENT_TIME_KIND)
    types = {Column(alias, "ts"): "timestamp" for alias in "ab"}
    (condition,) = conditions_of(replace(query, types=column_types(query, types, {"a": "ts"})))
    assert condition.kinds == (EVENT_TIME_KIND, "timestamp")
    assert condition.can_fail


def test_without_types_nothing_is_a_condition() -> None:
    query = parsed("a.n < b.n")
    assert conditions_of(replace(query, types=())) == ()
