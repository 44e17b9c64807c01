"""Outer joins, EXISTS and NOT EXISTS of the oracle, by cases computed by hand."""

import pyarrow as pa
import pytest

from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query

COLUMNS = {"l": ["ts", "k", "v"], "r": ["ts", "k", "v"], "s": ["ts", "k", "v"]}


def table(*rows: tuple[int, int | None, int]) -> pa.Table:
    ts, k, v = zip(*rows, strict=True)
    seconds = [second * 1_000_000 for second in ts]
    return pa.table({"ts": pa.array(seconds, pa.timestamp("us")), "k": pa.array(k, pa.int64()), "v": list(v)})


# 1 finds 10 within 5 seconds and not 11; 2 finds nobody in time; 3 has no key; 4 and 13 are at one instant.
TABLES = {
    "l": table((1, 1, 1), (2, 2, 2), (3, None, 3), (4, 3, 4)),
    "r": table((3, 1, 10), (9, 1, 11), (30, 2, 12), (4, 3, 13)),
    "s": table((2, 1, 100), (3, 5, 101)),
}


def rows(sql: str) -> list[tuple[object, ...]]:
    found = answer(parse_query(sql, COLUMNS), TABLES, dict.fromkeys(COLUMNS, "ts"))
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "l.v, r.v AS w FROM l [RANGE 5 SECONDS] LEFT JOIN r [RANGE 5 SECONDS] ON l.k = r.k",
            [(1, 10), (2, None), (3, None), (4, 13)],
        ),
        (
            "l.v, r.v AS w FROM l [RANGE 5 SECONDS] RIGHT JOIN r [RANGE 5 SECONDS] ON l.k = r.k",
            [(1, 10), (4, 13), (None, 11), (None, 12)],
        ),
        (
            "l.v, r.v AS w FROM l [TUMBLE 4 SECONDS] FULL JOIN r [TUMBLE 4 SECONDS] ON l.k = r.k",
            [(1, 10), (2, None), (3, None), (4, 13), (None, 11), (None, 12)],
        ),
        (  # 1 is pushed out by 2 before 10 comes
            "l.v, r.v AS w FROM l [ROWS 1] LEFT JOIN r [RANGE 1 MINUTE] ON l.k = r.k",
            [(1, None), (2, None), (3, None), (4, 13)],
        ),
        (  # a condition in ON decides who is a partner, the same in WHERE who is answered
            "l.v, r.v AS w FROM l [RANGE 5 SECONDS] LEFT JOIN r [RANGE 5 SECONDS] ON l.k = r.k AND r.v > 10",
            [(1, None), (2, None), (3, None), (4, 13)],
        ),
        (
            "l.v, r.v AS w FROM l [RANGE 5 SECONDS] LEFT JOIN r [RANGE 5 SECONDS] ON l.k = r.k WHERE r.v > 10",
            [(4, 13)],
        ),
        (
            "l.v, r.v AS w, s.v AS x FROM l [RANGE 5 SECONDS] LEFT JOIN r [RANGE 5 SECONDS] ON l.k = r.k "
            "FULL JOIN s [RANGE 5 SECONDS] ON s.k = l.k",
            [(1, 10, 100), (2, None, None), (3, None, None), (4, 13, None), (None, None, 101)],
        ),
        (
            "l.v FROM l [RANGE 5 SECONDS] WHERE EXISTS (SELECT 1 FROM r [RANGE 5 SECONDS] WHERE r.k = l.k)",
            [(1,), (4,)],
        ),
        (
            "l.v FROM l [RANGE 5 SECONDS] WHERE NOT EXISTS (SELECT 1 FROM r [RANGE 5 SECONDS] WHERE r.k = l.k)",
            [(2,), (3,)],
        ),
        ("l.v FROM l [RANGE 5 SECONDS] WHERE l.k IN (SELECT k FROM r [RANGE 5 SECONDS])", [(1,), (4,)]),
    ],
)
def test_cases_by_hand(body: str, expected: list[tuple[object, ...]]) -> None:
    assert rows(f"SELECT {body}") == sorted(expected, key=repr)
