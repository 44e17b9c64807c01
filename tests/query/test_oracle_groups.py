"""The oracle's groups against rows that were worked out by hand."""

from datetime import datetime

import pyarrow as pa

from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query

SECOND_US = 1_000_000
TABLE = pa.table(
    {
        "k": [1, 1, 2, None],
        "v": [1, 2, 3, 4],
        "ts": pa.array([0, 5 * SECOND_US, 61 * SECOND_US, -1], pa.timestamp("us", "UTC")),
    }
)


def groups(sql: str, watermark_us: int | None = None) -> list[tuple[object, ...]]:
    query = parse_query(sql, {"a": TABLE.column_names})
    rows = answer(query, {"a": TABLE}, {"a": "ts"}, watermark_us=watermark_us).to_pylist()
    plain = [[v.timestamp() if isinstance(v, datetime) else v for v in row.values()] for row in rows]
    return sorted((tuple(row) for row in plain), key=repr)


def test_windows_overlap_reach_before_the_epoch_and_wait_for_the_watermark() -> None:
    sql = "SELECT k, count(*) AS n, sum(v) AS s, window_end AS e FROM a GROUP BY k, HOP(60 s, 30 s)"
    every = [(1, 2, 3, 30.0), (1, 2, 3, 60.0), (2, 1, 3, 90.0), (2, 1, 3, 120.0), (None, 1, 4, 0.0), (None, 1, 4, 30.0)]
    assert groups(sql) == sorted(every, key=repr)
    assert groups(sql, 60 * SECOND_US) == sorted([row for row in every if row[3] <= 60], key=repr)


def test_the_first_groups_of_each_window() -> None:
    sql = "SELECT k, max(v) AS m FROM a GROUP BY k, TUMBLE(2 MINUTES) ORDER BY count(*) LIMIT 1"
    assert groups(sql) == [(2, 3), (None, 4)]
    assert groups(sql.replace("LIMIT 1", "LIMIT 2")) == [(1, 2), (2, 3), (None, 4)]


def test_a_number_in_order_by_is_an_output_column() -> None:
    sql = "SELECT k, max(v) AS m FROM a GROUP BY k, TUMBLE(2 MINUTES) ORDER BY 2 DESC LIMIT 1"
    assert groups(sql) == [(2, 3), (None, 4)]
    assert groups(sql.replace("2 DESC", "2")) == [(1, 2), (None, 4)]
