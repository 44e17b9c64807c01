"""The oracle's changes of groups against rows that were worked out by hand."""

import pyarrow as pa

from watersmeet.query.oracle import answer, versioned
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import AsOf

SECOND_US = 1_000_000
STAMP = pa.timestamp("us", "UTC")


def table(rows: list[tuple[object, object, float]]) -> pa.Table:
    """Rows (k, v, second)."""
    k, v, seconds = zip(*rows, strict=True)
    return pa.table({"k": k, "v": v, "ts": pa.array([round(s * SECOND_US) for s in seconds], STAMP)})


def changes(sql: str, tables: dict[str, pa.Table], watermark_s: float | None = None) -> list[tuple[object, ...]]:
    names = dict.fromkeys(tables, ("k", "v", "ts"))
    query = parse_query(sql, names, event_times=dict.fromkeys(tables, "ts"))
    until = None if watermark_s is None else round(watermark_s * SECOND_US)
    rows = answer(query, tables, dict.fromkeys(tables, "ts"), watermark_us=until).to_pylist()
    return sorted(
        (tuple(round(v.timestamp() * SECOND_US) if n == "changed_at" else v for n, v in row.items()) for row in rows),
        key=repr,
    )


A = table([(1, 10, 0), (1, 20, 2), (2, 5, 2), (1, 10, 2), (2, 5, 8)])


def test_values_change_as_rows_come_and_expire() -> None:
    sql = "SELECT k, sum(v) AS s FROM a [RANGE 5 SECONDS] GROUP BY k EMIT CHANGES"
    # A row is visible up to the last microsecond of its window, and gone one microsecond later.
    expected = [
        (1, 10, 0, False),
        (1, 40, 2 * SECOND_US, False),
        (1, 30, 5 * SECOND_US + 1, False),
        (1, 30, 7 * SECOND_US + 1, True),
        (2, 5, 2 * SECOND_US, False),
        (2, 5, 7 * SECOND_US + 1, True),
        (2, 5, 8 * SECOND_US, False),
        (2, 5, 13 * SECOND_US + 1, True),
    ]
    assert changes(sql, {"a": A}) == sorted(expected, key=repr)
    assert changes(sql, {"a": A}, 7) == sorted((row for row in expected if row[2] < 7 * SECOND_US), key=repr)


def test_what_having_does_not_keep_is_deleted_and_equal_values_are_no_change() -> None:
    sql = "SELECT k, max(v) AS m, changed_at FROM a [UNBOUNDED] GROUP BY k HAVING count(*) > 1 EMIT CHANGES"
    assert changes(sql, {"a": A}) == [(1, 20, 2 * SECOND_US, False), (2, 5, 8 * SECOND_US, False)]
    sql = "SELECT k FROM a [TUMBLE 5 SECONDS] GROUP BY k HAVING max(v) < 20 EMIT CHANGES"
    assert changes(sql, {"a": A}) == [
        (1, 0, False),
        (1, 2 * SECOND_US, True),
        (2, 10 * SECOND_US, True),
        (2, 2 * SECOND_US, False),
        (2, 5 * SECOND_US, True),
        (2, 8 * SECOND_US, False),
    ]


def test_an_answer_of_a_join_ends_with_the_first_of_its_rows() -> None:
    b = table([(1, 0, 4), (1, 0, 5.5)])
    sql = "SELECT count(*) AS n FROM a [RANGE 5 SECONDS], b [RANGE 1 SECOND] WHERE a.k = b.k EMIT CHANGES"
    assert changes(sql, {"a": A, "b": b}) == sorted(
        [
            (3, 4 * SECOND_US, False),  # with the rows of seconds 0, 2 and 2
            (3, 5 * SECOND_US + 1, True),  # all of them end with the row of b
            (2, 5 * SECOND_US + SECOND_US // 2, False),  # that of second 0 has expired
            (2, 6 * SECOND_US + SECOND_US // 2 + 1, True),
        ],
        key=repr,
    )


def test_a_later_version_of_a_table_takes_nothing_back() -> None:
    """Rows of second 0 and 2 find the first version, that of second 8 the second one, with another name."""
    users = versioned([pa.table({"id": [1], "name": ["x"]}), pa.table({"id": [1], "name": ["y"]})], [4 * SECOND_US])
    a = table([(1, 10, 0), (1, 20, 2), (1, 30, 8)])
    query = parse_query(
        "SELECT u.name, count(*) AS n FROM a [RANGE 5 SECONDS], u WHERE a.k = u.id GROUP BY u.name EMIT CHANGES",
        {"a": a.column_names, "u": ("id", "name")},
        event_times={"a": "ts"},
        tables={"u": AsOf(is_refreshed=True)},
    )
    rows = answer(query, {"a": a, "u": users}, {"a": "ts"}).to_pylist()
    found = [(row["name"], row["n"], row["changed_at"].timestamp(), row["deleted"]) for row in rows]
    ends = 1 / SECOND_US
    assert sorted(found) == [
        ("x", 1, 0, False),
        ("x", 1, 5 + ends, False),
        ("x", 1, 7 + ends, True),
        ("x", 2, 2, False),
        ("y", 1, 8, False),
        ("y", 1, 13 + ends, True),
    ]
