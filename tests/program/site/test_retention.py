"""State is kept exactly as long as something that is still to come can meet it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program.site.engines import Engines
from sim.sites.streams import SECOND, at, expected, parsed, steady

from watersmeet.plan.nodes import Hop, Method
from watersmeet.planners.local import local
from watersmeet.planners.sited import explicit
from watersmeet.program.join.axis import Axis, Clock
from watersmeet.program.operators import Form
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.retention import Need
from watersmeet.program.storage.shelf import Segment
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window
from watersmeet.sim.sites.trial import SCHEMA

many = settings(max_examples=100, deadline=None)
times = st.integers(-20, 20)
windows_of_time = st.one_of(st.integers(1, 12).map(Range), st.integers(1, 8).map(Tumble), st.just(Unbounded()))


def segment(first: int, last: int, ordinal: int = -1) -> Segment:
    return Segment((), first, last, ordinal, ordinal)


def can_be_met(window: Window, ts: int, low_watermark: int) -> bool:
    """Whether a row is in its window as seen at the low watermark or later."""
    match window:
        case Range(window_us):
            return ts + window_us >= low_watermark
        case Tumble(window_us):
            return ts // window_us >= low_watermark // window_us
    return True


@many
@given(windows_of_time, st.integers(2, 5), st.data(), times, times)
def test_a_row_of_a_window_is_kept_while_a_head_at_the_low_watermark_may_meet_it(
    window: Window, aliases: int, data: st.DataObject, ts: int, low_watermark: int
) -> None:
    axis = Axis(window, data.draw(st.integers(0, aliases - 1)), aliases)
    need = Need(Form.ROW, axis, low_watermark)
    wanted = can_be_met(window, ts, low_watermark)
    assert need.keeps(segment(ts - 5, ts)) == wanted, "the last of its rows decides"
    if need.first_ts is not None:
        assert (ts >= need.first_ts) == wanted, "row by row the same"
    else:
        assert isinstance(window, Unbounded)


@many
@given(st.integers(1, 6), st.lists(times, min_size=1, max_size=12).map(sorted), st.data(), times)
def test_a_row_of_a_rows_window_is_kept_while_it_is_among_the_last_at_the_low_watermark(
    count: int, ts: list[int], data: st.DataObject, low_watermark: int
) -> None:
    ordinal = data.draw(st.integers(0, len(ts) - 1))
    need = Need(Form.ROW, Axis(Rows(count), 0, 2, Clock(0, np.array(ts))), low_watermark)
    after = sum(one < low_watermark for one in ts) - 1 - ordinal  # rows behind it that any head has before it
    assert need.keeps(segment(ts[ordinal], ts[ordinal], ordinal)) == (after < count)


def test_points_are_kept_until_the_low_watermark_has_passed_them() -> None:
    need = Need(Form.POINT, Axis(Range(10), 0, 2), 5)
    assert [need.keeps(segment(0, last)) for last in (4, 5, 6)] == [False, True, True]
    assert need.first_ts == 5


def test_nothing_is_evicted_while_a_watermark_is_unknown() -> None:
    need = Need(Form.ROW, Axis(Range(10), 0, 2), UNKNOWN)
    assert need.keeps(segment(-(10**15), -(10**15))) and need.first_ts is None


def test_rows_that_wait_for_their_order_are_kept_whatever_their_window() -> None:
    need = Need(Form.POINT, Axis(Rows(1), 0, 2, Clock(0, np.arange(20))), 5, waits_until=5)
    assert need.keeps(segment(0, 5, 0)) and not need.keeps(segment(0, 4, 0))


def test_a_witness_lingers_for_a_window_more() -> None:
    axis = Axis(Range(10), 0, 2)
    assert not Need(Form.ROW, axis, 20).keeps(segment(5, 5))
    assert Need(Form.ROW, axis, 20, lingers=True).keeps(segment(5, 5))
    assert not Need(Form.ROW, axis, 40, lingers=True).keeps(segment(5, 5))
    assert Need(Form.ROW, Axis(Unbounded(), 0, 2), 10**9, lingers=True).keeps(segment(5, 5))


# In the ledger of a site


def site(*sqls: str) -> Engines:
    columns = dict.fromkeys("abc", SCHEMA.names)
    return Engines({f"q{n + 1}": local(parsed(sql, "abc"), columns, "n1") for n, sql in enumerate(sqls)})


def kept(ledger: SiteLedger, relation: str) -> int:
    return sum(segment.rows for segment in ledger.relations.get(relation, ()))


def pair(window: str, other: str = "b") -> str:
    return f"SELECT a.id AS a, {other}.id AS b FROM a {window}, {other} {window} WHERE a.k = {other}.k"


def run_steadily(sites: Engines, streams: str, batches: int = 30) -> None:
    """Ten rows a second of each stream, five at a time."""
    whole = {stream: steady(number, 5 * batches, 50, SECOND // 10) for number, stream in enumerate(streams)}
    for low in range(0, 5 * batches, 5):
        sites.run("n1", {stream: rows.slice(low, 5) for stream, rows in whole.items()})


def test_a_shared_index_is_kept_for_the_longest_of_its_windows() -> None:
    short, both = site(pair("[RANGE 1 SECONDS]")), site(pair("[RANGE 1 SECONDS]"), pair("[RANGE 8 SECONDS]", "c"))
    run_steadily(short, "ab", batches=90)
    run_steadily(both, "abc", batches=90)
    few, more = (kept(sites.ledgers["n1"], "a/0") for sites in (short, both))
    assert 10 <= few <= 26 and 80 <= more <= 208, "windows keep at most some dead rows"
    assert kept(both.ledgers["n1"], "b/0") == kept(short.ledgers["n1"], "b/0"), "b is in the short one only"
    assert both.answers("q1") == short.answers("q1")


def test_an_idle_stream_keeps_the_state_of_others_until_it_is_declared_to_have_come_further() -> None:
    sites = site(pair("[RANGE 1 SECONDS]"))
    sites.run("n1", {"b": at(0)})
    run_steadily(sites, "a")
    assert kept(sites.ledgers["n1"], "a/0") == 150, "b may have rows that meet all of them"
    sites.run("n1", declared={"b": 14 * SECOND})
    assert kept(sites.ledgers["n1"], "a/0") <= 30


def test_a_stream_that_never_said_anything_keeps_everything() -> None:
    sites = site(pair("[RANGE 1 SECONDS]"))
    run_steadily(sites, "a")
    assert kept(sites.ledgers["n1"], "a/0") == 150


def test_rows_and_ticks_of_rows_windows_are_evicted_with_the_watermarks() -> None:
    sites = site(pair("[ROWS 10]"))
    run_steadily(sites, "ab", batches=60)
    ledger = sites.ledgers["n1"]
    assert kept(ledger, "a in order/0") <= 40
    assert sum(segment.rows for segment in ledger.clocks["clock of a"]) <= 60
    assert sum(segment.rows for segment in ledger.pending["a"]) <= 5
    assert ledger.ordinals["clock of a"] >= 290, "they count on all the same"


@pytest.mark.few(7)
@pytest.mark.parametrize("window", ["[RANGE 3 SECONDS]", "[TUMBLE 3 SECONDS]", "[ROWS 30]"])
@pytest.mark.parametrize("method", list(Method))
def test_nothing_that_is_still_needed_is_evicted_where_one_stream_lags(method: Method, window: str) -> None:
    """A stream that comes minutes after the other still finds all its partners."""
    query = parsed(pair(window), "ab")
    homes = {"a": "n1", "b": "n2"}
    hops = {"a": [Hop("b", method)], "b": [Hop("a", method)]}
    sites = Engines(explicit(query, dict.fromkeys("ab", SCHEMA.names), homes, "n2", hops))
    whole = {"a": steady(0, 60, 20, SECOND // 10), "b": steady(1, 60, 20, SECOND // 10)}
    last = {"a": at(100, 101, k=-1), "b": at(100, 101, k=-2)}  # moves the watermarks
    taken = {("n1", "n2"): 0, ("n2", "n1"): 0}

    def exchange() -> None:
        """Let both sites run until neither has anything for the other."""
        is_busy = True
        while is_busy:
            is_busy = False
            for (sender, to), count in taken.items():
                has_sent = to in sites.ledgers[sender].links
                parcels = sites.parcels(sender, to)[count:] if has_sent else []
                if parcels:
                    is_busy = True
                    taken[sender, to] += len(parcels)
                    sites.run(to, parcels=parcels)

    for home, stream in (("n1", "a"), ("n2", "b")):
        for low in range(0, 60, 10):
            sites.run(home, {stream: whole[stream].slice(low, 10)})
            exchange()
    for home, stream in (("n1", "a"), ("n2", "b")):
        sites.run(home, {stream: last[stream]})
        exchange()
    wanted = expected(query, whole)
    assert wanted.total() > 20
    assert sites.answers() == wanted
