"""The oracle against a nested loop that spells out the semantics, over data with ties, NULLs and times before 1970."""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.errors import InputError
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import AsOf, Range, Rows, Tumble, Unbounded, Window

COLUMNS = {"l": ["ts", "k", "v"], "m": ["ts", "k", "v"], "r": ["ts", "k", "v"]}
EVENT_TIMES = dict.fromkeys(COLUMNS, "ts")


@dataclass(frozen=True)
class Row:
    ts: int | None
    k: int | None
    v: int


def table(rows: list[Row], zone: str | None = None) -> pa.Table:
    return pa.table(
        {
            "ts": pa.array([row.ts for row in rows], pa.timestamp("us", zone)),
            "k": pa.array([row.k for row in rows], pa.int32()),
            "v": pa.array([row.v for row in rows], pa.int64()),
        }
    )


def bag(result: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in result.to_pylist())


def time_of(row: Row) -> int:
    assert row.ts is not None, "rows without a time are in no window"
    return row.ts


def in_window(window: Window, position: int, stream: list[Row], t_max: int) -> bool:
    ts = time_of(stream[position])
    match window:
        case Range(window_us):
            return t_max - window_us <= ts <= t_max
        case Tumble(window_us):
            return math.floor(ts / window_us) == math.floor(t_max / window_us)
        case Rows(count):
            visible = sorted((time_of(row), arrival) for arrival, row in enumerate(stream) if time_of(row) <= t_max)
            return (ts, position) in visible[-count:]
        case Unbounded() | AsOf():
            return True


def reference(
    windows: list[Window], streams: list[list[Row]], start: int | None, before: int | None
) -> Iterator[tuple[Row, ...]]:
    """Every combination whose tuples lie in their windows, whatever the predicates."""
    living = [[row for row in rows if row.ts is not None and (start is None or row.ts >= start)] for rows in streams]
    for positions in product(*(range(len(rows)) for rows in living)):
        combination = tuple(rows[position] for rows, position in zip(living, positions, strict=True))
        t_max = max(time_of(row) for row in combination)
        in_time = before is None or t_max < before
        if in_time and all(map(in_window, windows, positions, living, [t_max] * len(windows))):
            yield combination


times = st.integers(-7, 7)
rows = st.lists(
    st.builds(Row, st.none() | times | times | times, st.sampled_from([None, 0, 1, 1, 1]), st.integers(0, 2)),
    max_size=9,
)
windows = st.one_of(
    st.builds(Range, st.integers(1, 9)),
    st.builds(Tumble, st.integers(1, 9)),
    st.builds(Rows, st.integers(1, 5)),
    st.just(Unbounded()),
)
bound = st.none() | times


@settings(max_examples=70, deadline=None)
@given(rows, rows, windows, windows, bound, bound, st.booleans(), st.sampled_from([None, "UTC", "Europe/Amsterdam"]))
def test_two_streams(
    left: list[Row],
    right: list[Row],
    left_window: Window,
    right_window: Window,
    start: int | None,
    before: int | None,
    distinct: bool,
    zone: str | None,
) -> None:
    query = parse_query(
        f"SELECT {'DISTINCT' if distinct else ''} l.v AS lv, r.v AS rv, l.k "
        f"FROM l [{left_window}], r [{right_window}] WHERE l.k = r.k AND l.v > 0",
        COLUMNS,
    )
    expected = Counter(
        (a.v, b.v, a.k)
        for a, b in reference([left_window, right_window], [left, right], start, before)
        if a.k is not None and a.k == b.k and a.v > 0
    )
    tables = {"l": table(left, zone), "r": table(right, zone)}
    given_answer = bag(answer(query, tables, EVENT_TIMES, start_us=start, heads_before_us=before))
    assert given_answer == (Counter(expected.keys()) if distinct else expected)


@settings(max_examples=50, deadline=None)
@given(st.tuples(rows, rows, rows), st.tuples(windows, windows, windows), bound)
def test_three_streams(streams: tuple[list[Row], ...], three_windows: tuple[Window, ...], start: int | None) -> None:
    query = parse_query(
        "SELECT l.v AS a, m.v AS b, r.v AS c, l.v + r.v AS d "
        "FROM l [{}], m [{}], r [{}] WHERE l.k = m.k AND m.v = r.k AND (l.v < r.v OR m.v = 1)".format(*three_windows),
        COLUMNS,
    )
    expected = Counter(
        (a.v, b.v, c.v, a.v + c.v)
        for a, b, c in reference(list(three_windows), list(streams), start, None)
        if a.k is not None and a.k == b.k and b.v == c.k and (a.v < c.v or b.v == 1)
    )
    tables = dict(zip(COLUMNS, map(table, streams), strict=True))
    assert bag(answer(query, tables, EVENT_TIMES, start_us=start)) == expected


@settings(max_examples=20, deadline=None)
@given(rows, windows, windows)
def test_a_stream_joined_with_itself(stream: list[Row], first: Window, second: Window) -> None:
    query = parse_query(f"SELECT x.v AS a, y.v AS b FROM l [{first}] x, l [{second}] y WHERE x.k = y.v", COLUMNS)
    expected = Counter((a.v, b.v) for a, b in reference([first, second], [stream, stream], None, None) if a.k == b.v)
    assert bag(answer(query, {"l": table(stream)}, EVENT_TIMES)) == expected


@pytest.mark.parametrize("first", [Range(3), Tumble(4), Rows(4), Unbounded()], ids=str)
@pytest.mark.parametrize("second", [Range(5), Tumble(3), Rows(1), Unbounded()], ids=str)
def test_every_boundary(first: Window, second: Window) -> None:
    left = [Row(ts, 1, ts) for ts in range(-8, 9)]
    right = [Row(ts // 2 * 2, 1, ts) for ts in range(8, -9, -1)]
    query = parse_query(f"SELECT l.v AS a, r.v AS b FROM l [{first}], r [{second}] WHERE l.k = r.k", COLUMNS)
    tables = {"l": table(left), "r": table(right)}
    expected = Counter((a.v, b.v) for a, b in reference([first, second], [left, right], -6, 7))
    assert bag(answer(query, tables, EVENT_TIMES, start_us=-6, heads_before_us=7)) == expected


def test_cross_join_without_predicates() -> None:
    query = parse_query("SELECT l.v AS a, r.v AS b FROM l [UNBOUNDED], r [ROWS 1]", COLUMNS, allow_cross=True)
    tables = {"l": table([Row(1, 1, 10), Row(9, 1, 11)]), "r": table([Row(2, 1, 20), Row(5, 1, 21)])}
    # At 2 the last row of r is 20; row 21 replaces it at 5, and l at 9 sees only 21.
    assert bag(answer(query, tables, EVENT_TIMES)) == Counter([(10, 20), (10, 21), (11, 21)])


def test_filters_do_not_change_what_rows_counts() -> None:
    query = parse_query("SELECT r.v FROM l [UNBOUNDED], r [ROWS 1] WHERE l.k = r.k AND r.v = 7", COLUMNS)
    tables = {"l": table([Row(3, 1, 0)]), "r": table([Row(1, 1, 7), Row(2, 1, 8)])}
    assert answer(query, tables, EVENT_TIMES).num_rows == 0


def test_ties_of_rows_are_broken_by_arrival() -> None:
    query = parse_query("SELECT r.v FROM l [UNBOUNDED], r [ROWS 1] WHERE l.k = r.k", COLUMNS)
    tables = {"l": table([Row(1, 1, 0)]), "r": table([Row(1, 1, 7), Row(1, 1, 8)])}
    assert answer(query, tables, EVENT_TIMES).to_pylist() == [{"v": 8}]


def test_nan_equals_nan_and_zero_equals_minus_zero_as_in_spark() -> None:
    def of(values: list[float | None]) -> pa.Table:
        return pa.table({"ts": pa.array([1] * len(values), pa.timestamp("us")), "x": pa.array(values, pa.float64())})

    query = parse_query(
        "SELECT p.n AS a, q.n AS b FROM p [UNBOUNDED], q [UNBOUNDED] WHERE p.x = q.x",
        {"p": ["ts", "x", "n"], "q": ["ts", "x", "n"]},
    )
    numbered = pa.array([0, 1, 2])
    tables = {
        "p": of([math.nan, 0.0, None]).append_column("n", numbered),
        "q": of([math.nan, -0.0, None]).append_column("n", numbered),
    }
    assert bag(answer(query, tables, {"p": "ts", "q": "ts"})) == Counter([(0, 0), (1, 1)])


def test_null_safe_equality_joins_nulls() -> None:
    query = parse_query("SELECT l.v FROM l [UNBOUNDED], r [UNBOUNDED] WHERE l.v = r.v AND l.k <=> r.k", COLUMNS)
    tables = {"l": table([Row(1, None, 1)]), "r": table([Row(1, None, 1), Row(1, 5, 1)])}
    assert answer(query, tables, EVENT_TIMES).num_rows == 1


def test_odd_names_structs_and_functions() -> None:
    ts = pa.array([0, 60_000_000], pa.timestamp("us"))
    tables = {
        "left side": pa.table({"ts": ts, 'a "b".c': ["X", "y"], "s": [{"f": 1}, {"f": 2}]}),
        "r": pa.table({"at": ts, "k": ["x", "Y"]}),
    }
    query = parse_query(
        "SELECT a.s.f, timestampdiff(SECOND, a.ts, r.at) AS late, r.k || '!' AS bang "
        "FROM `left side` [RANGE 1 MINUTE] AS a, r [RANGE 1 MINUTE] "
        'WHERE lower(a.`a "b".c`) = lower(r.k) AND a.s.f / 2 <= 0.5',
        {stream: table.column_names for stream, table in tables.items()},
    )
    assert answer(query, tables, {"left side": "ts", "r": "at"}).to_pylist() == [{"f": 1, "late": 0, "bang": "x!"}]


def test_a_hundred_thousand_rows_with_rows_windows_stay_fast() -> None:
    count = 100_000
    stream = pa.table(
        {
            "ts": pa.array(range(count), pa.timestamp("us")),
            "k": pa.array([i % 5_000 for i in range(count)]),
            "v": pa.array(range(count)),
        }
    )
    query = parse_query("SELECT l.v FROM l [ROWS 10000], r [ROWS 5000] WHERE l.k = r.k", COLUMNS)
    result = answer(query, {"l": stream, "r": stream}, EVENT_TIMES)
    # As seen at t: the same key at t, and in l also the one 5000 rows before t, which r has just lost.
    assert result.num_rows == count + (count - 5_000)


def test_missing_duckdb_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    query = parse_query("SELECT l.v FROM l [ROWS 1], r [ROWS 1] WHERE l.k = r.k", COLUMNS)
    with pytest.raises(InputError, match="pip install duckdb"):
        answer(query, {}, EVENT_TIMES)
