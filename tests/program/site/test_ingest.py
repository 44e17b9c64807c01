"""New rows of a stream: late and malformed ones set aside, the rest judged by every selection and filed."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from sim.sites.streams import SECOND, at, parsed, table

from watersmeet.plan.nodes import Plan
from watersmeet.planners.local import local
from watersmeet.planners.sited import central
from watersmeet.program.join.axis import Axis
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.ingest import MALFORMED, REASON, Ingest
from watersmeet.program.site.ledger import Ingested, Traffic
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.segments import KEY, TS, class_column, column, selected_column
from watersmeet.program.storage.shelf import MemoryShelf, Segment
from watersmeet.query.windows import FIRST_US, LAST_US, LONGEST_US, MOST_STREAMS, Range, Tumble
from watersmeet.sim.sites.rows import lay_out
from watersmeet.sim.sites.trial import SCHEMA

COLUMNS = dict.fromkeys("ab", SCHEMA.names)
JOIN = "FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k"
COUNTED = "FROM a [ROWS 2], b [ROWS 2] WHERE a.k = b.k"


class Home:
    """The home of stream a."""

    def __init__(
        self, *sqls: str, starts_us: Mapping[str, int | None] | None = None, raw: tuple[str, ...] = (), site: str = "n1"
    ) -> None:
        homes = {"a": "n1", "b": "n1"}
        plans: dict[str, Plan] = {}
        for number, sql in enumerate(sqls):
            query = parsed(sql, "ab")
            plan = local(query, COLUMNS, site) if site == "n1" else central(query, COLUMNS, homes, site)
            plans[f"q{number + 1}"] = plan
        self.program: SiteProgram = overlay(shared_joins(plans, starts_us or {}))["n1"]
        self.scan = next(scan for scan in self.program.streams if scan.stream == "a")
        self.shelf = MemoryShelf()
        self._ingest = Ingest(self.program, self.shelf, self.scan, raw)

    def ingest(self, rows: pa.Table, late_before: int | None = None, malformed: list[bool] | None = None) -> Ingested:
        laid_out = lay_out(self.scan, rows, "ts")
        if malformed is not None:
            laid_out = laid_out.append_column(MALFORMED, pa.array(malformed))
        return self._ingest(laid_out, late_before)

    def rows(self, segment: Segment) -> pa.Table:
        (part,) = segment.parts
        return self.shelf.get(part.path)

    def filed(self, found: Ingested, relation: str = "a/0") -> pa.Table:
        assert found.made is not None
        return self.rows(found.made.segments[relation])


def ids(rows: pa.Table) -> list[int]:
    found: list[int] = rows.column("a.id").to_pylist()
    return found


@pytest.mark.parametrize("sql", [f"SELECT a.id AS a {JOIN}", f"SELECT a.id AS a {COUNTED}"])
def test_event_times_that_no_calendar_has_are_malformed(sql: str) -> None:
    home = Home(sql)
    times = [FIRST_US - 1, FIRST_US, LAST_US, LAST_US + 1, 2**63 - 1, -(2**63) + 1, None]
    rows = pa.table({"k": [1] * 7, "ts": pa.array(times, pa.timestamp("us")), "id": range(7)})
    laid_out = table((1, 1, "x", n) for n in range(7))
    laid_out = lay_out(home.scan, laid_out, "ts").set_column(0, TS, rows.column("ts").cast(pa.int64()))
    found = home._ingest(laid_out, None)
    assert (found.rows, found.malformed, found.max_ts) == (7, 5, LAST_US)


def test_windows_of_event_times_at_the_edge_do_not_overflow() -> None:
    longest, streams = Range(LONGEST_US), MOST_STREAMS
    ts = np.array([FIRST_US, LAST_US])
    for window in (longest, Tumble(LONGEST_US)):
        axis = Axis(window, streams - 1, streams)
        seen = axis.rows(ts, None)
        begins = [int(one) * streams + streams - 1 for one in ts]
        assert seen.begins().tolist() == begins
        assert all(
            begin <= end <= (LAST_US + LONGEST_US + 1) * streams
            for begin, end in zip(begins, seen.ends().tolist(), strict=True)
        )


def test_rows_are_filed_sorted_by_key_and_time() -> None:
    home = Home(f"SELECT a.id AS a {JOIN}")
    rows = table((n * 7 % 5, 1, "x", n * 3 % 10) for n in range(10))
    found = home.ingest(rows)
    filed = home.filed(found)
    order = list(zip(column(filed, KEY).tolist(), column(filed, TS).tolist(), strict=True))
    assert order == sorted(order) and sorted(ids(filed)) == list(range(10))
    assert (found.rows, found.late, found.malformed, found.max_ts) == (10, 0, 0, 9 * SECOND)
    assert found.pending is None and [home.shelf.get(path) for path in found.paths] == [filed]


@pytest.mark.parametrize(
    ("late_before", "late"), [(None, []), (0, []), (3 * SECOND, [0, 1]), (99 * SECOND, [0, 1, 2, 3])]
)
def test_rows_before_the_watermark_are_late_and_still_move_it(late_before: int | None, late: list[int]) -> None:
    home = Home(f"SELECT a.id AS a {JOIN}", raw=("a.id",))
    found = home.ingest(at(1, 2.999999, 3, 4), late_before)
    assert found.late == len(late) and found.max_ts == 4 * SECOND
    if late:
        assert found.late_file is not None
        assert home.shelf.get(found.late_file).to_pydict() == {"id": late, REASON: ["late"] * len(late)}
    else:
        assert found.late_file is None
    if len(late) == 4:
        assert found.made is None
    else:
        assert ids(home.filed(found)) == [n for n in range(4) if n not in late]


def test_malformed_rows_and_rows_without_event_time_are_set_aside() -> None:
    home = Home(f"SELECT a.id AS a {JOIN}", raw=("a.id",))
    rows = table([(1, 1, "x", n) for n in range(4)])
    rows = rows.set_column(4, "ts", pa.array([0, None, 2 * SECOND, 3 * SECOND], SCHEMA.field("ts").type))
    found = home.ingest(rows, late_before=SECOND, malformed=[False, False, False, True])
    assert (found.rows, found.malformed, found.late, found.max_ts) == (4, 2, 1, 2 * SECOND)
    assert found.malformed_file is not None and found.late_file is not None
    assert home.shelf.get(found.malformed_file).column("id").to_pylist() == [1, 3]
    assert home.shelf.get(found.late_file).column("id").to_pylist() == [0]
    assert ids(home.filed(found)) == [2]


def test_late_and_malformed_rows_are_only_counted_where_nobody_wants_them() -> None:
    home = Home(f"SELECT a.id AS a {JOIN}")
    found = home.ingest(at(1, 2), 2 * SECOND, malformed=[False, False])
    assert (found.late, found.late_file, found.malformed_file) == (1, None, None)
    assert home.ingest(at(1, 2), malformed=[True, True]) == Ingested("a", 2, malformed=2)
    assert home.ingest(at(1, 2).slice(0, 0)) == Ingested("a", 0)


def test_rows_without_a_key_are_no_rows_of_a_window() -> None:
    home = Home(f"SELECT a.id AS a {JOIN} AND a.s = b.s")
    rows = table([(None, 1, "x", 0), (1, 1, None, 1), (1, 1, "x", 2), (None, None, None, 3)])
    found = home.ingest(rows)
    assert found.null_keys == {"q1": 3} and found.malformed == 0
    assert ids(home.filed(found, "a/0-1")) == [2]


def test_rows_that_fail_a_filter_are_not_missing_a_key() -> None:
    home = Home(f"SELECT a.id AS a {JOIN} AND a.id > 0")
    found = home.ingest(table([(None, 1, "x", 0), (None, 1, "x", 1), (1, 1, "x", 2)]))
    assert found.null_keys == {"q1": 1} and ids(home.filed(found)) == [2]


def test_a_key_that_one_query_lacks_does_not_matter_to_another() -> None:
    home = Home(f"SELECT a.id AS a {JOIN}", "SELECT a.id AS a FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.m = b.m")
    found = home.ingest(table([(None, 1, "x", 0), (1, None, "x", 1), (None, None, "x", 2), (1, 1, "x", 3)]))
    assert ids(home.filed(found, "a/0")) == [1, 3] and sorted(ids(home.filed(found, "a/1"))) == [0, 3]
    assert found.null_keys == {"q1": 2, "q2": 2}


def test_rows_have_a_bit_for_each_selection_that_they_fulfil() -> None:
    filters = ("a.id > 1", "a.id % 2 = 0", "a.s = 'x'")  # the last one is NULL for some rows
    home = Home(*(f"SELECT a.id AS a {JOIN} AND {one}" for one in filters))
    rows = table([(1, 1, None if n == 4 else "xy"[n == 5], n) for n in range(6)])
    filed = home.filed(home.ingest(rows))
    held = [{2, 3, 4, 5}, {0, 2, 4}, {0, 1, 2, 3}]
    assert set(ids(filed)) == set().union(*held)
    for number, wanted in enumerate(held):
        name, value = selected_column(number)
        has = (column(filed, name).view(np.uint64) & value) != 0
        assert {row for row, is_held in zip(ids(filed), has, strict=True) if is_held} == wanted


def test_rows_that_no_selection_takes_are_not_filed() -> None:
    home = Home(f"SELECT a.id AS a {JOIN} AND a.id = 1", f"SELECT a.id AS a {JOIN} AND a.id = 3")
    assert sorted(ids(home.filed(home.ingest(at(0, 1, 2, 3, 4))))) == [1, 3]
    found = home.ingest(at(0, 1).slice(0, 1))
    assert found.made is not None and found.made.segments == {} and found.rows == 1


def test_rows_before_the_start_of_a_query_are_not_selected() -> None:
    sql = f"SELECT a.id AS a {JOIN}"
    home = Home(sql, sql, starts_us={"q1": 2 * SECOND, "q2": 3 * SECOND})
    filed = home.filed(home.ingest(at(1, 2, 3)))
    assert ids(filed) == [1, 2]
    assert column(filed, selected_column(0)[0]).tolist() == [0b01, 0b11]


def test_rows_that_windows_count_wait_in_the_order_of_their_times() -> None:
    home = Home(f"SELECT a.id AS a {COUNTED} AND a.id <> 1")
    found = home.ingest(table([(1, 1, "x", second) for second in (5, 1, 3, 1, 4)]))
    assert found.made is None and found.pending is not None
    waiting = home.rows(found.pending)
    assert ids(waiting) == [1, 3, 2, 4, 0], "all of them, ties as they came: they count before any filter"
    assert column(waiting, selected_column(0)[0]).tolist() == [0, 1, 1, 1, 1]
    assert list(found.paths) == [found.pending.parts[0].path]


def test_a_stream_may_be_counted_by_one_query_and_not_by_another() -> None:
    home = Home(f"SELECT a.id AS a {JOIN}", f"SELECT a.id AS a {COUNTED}")
    found = home.ingest(at(2, 1))
    assert found.pending is not None and ids(home.rows(found.pending)) == [1, 0]
    assert ids(home.filed(found)) == [1, 0] and found.made is not None and list(found.made.segments) == ["a/0"]


def test_only_values_that_some_query_needs_are_kept() -> None:
    home = Home(f"SELECT a.id AS a {JOIN} AND a.m > 0")
    filed = home.filed(home.ingest(at(1)))
    assert filed.column_names == [TS, "a.id", KEY], "neither the filter's column nor the key, which nobody compares"
    other = Home(f"SELECT a.id AS a {JOIN} AND a.m = b.m")
    assert set(other.filed(other.ingest(at(1)), "a/0-1").column_names) == {
        *(TS, "a.id", KEY, class_column(0), class_column(1))
    }


@pytest.mark.parametrize("join", [JOIN, COUNTED])
def test_what_shipping_a_stream_whole_would_take_is_judged_where_it_is_wanted_elsewhere(join: str) -> None:
    rows = table((n * 7_919 % 1_000, 1, "x", n * n % 1_000) for n in range(100))
    assert Home(f"SELECT a.id AS a {join}").ingest(rows).central == Traffic()
    away = Home(f"SELECT a.id AS a {join}", site="n0").ingest(rows).central
    assert away.tuples == 100 and away.batches == 1 and 400 < away.bytes < 1_600
    some = Home(f"SELECT a.id AS a {join} AND a.id < 50", site="n0").ingest(rows).central
    assert some.tuples == 50 and some.bytes < 0.7 * away.bytes
