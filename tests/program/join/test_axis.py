"""Two intervals on an axis meet exactly if the reference semantics say so, worked out here tuple by tuple."""

from bisect import bisect_left, bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.join.axis import Axis, Clock, instants
from watersmeet.program.join.probe import Visibility
from watersmeet.program.storage.segments import I64
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window

repeatable = settings(derandomize=True, deadline=None, max_examples=100)
windows_of_time = st.one_of(
    st.integers(1, 12).map(Range), st.integers(1, 8).map(Tumble), st.just(Unbounded()), st.integers(1, 3).map(Range)
)
times = st.integers(-20, 20)


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int, int]:
    """The number of aliases, and the positions of a window and of another alias."""
    aliases = draw(st.integers(2, 5))
    window, head = draw(st.permutations(range(aliases)))[:2]
    return aliases, window, head


def bounds(visible: Visibility) -> tuple[I64, I64]:
    """From where to where rows reach."""
    return visible.begins(), visible.ends()


def point_of(axis: Axis, instant: int, head: int) -> int:
    """Where a tuple of a head looks."""
    low, high = bounds(axis.points(np.array([instant]), head))
    assert low[0] == high[0], "a point"
    return int(low[0])


def is_seen(window: Window, ts: int, at: int) -> bool:
    """Whether a tuple not after an instant is in a window over time as seen then."""
    match window:
        case Range(window_us):
            return at - window_us <= ts
        case Tumble(window_us):
            return at // window_us == ts // window_us
    return True


@repeatable
@given(windows_of_time, places(), st.lists(times, min_size=1, max_size=8), times)
def test_a_head_meets_the_rows_before_it_that_its_window_holds(
    window: Window, place: tuple[int, int, int], ts: list[int], at: int
) -> None:
    aliases, position, head = place
    axis = Axis(window, position, aliases)
    point = point_of(axis, at, head)
    low, high = bounds(axis.rows(np.array(ts), None))
    assert [bool(met) for met in (low <= point) & (point <= high)] == [
        (one, position) < (at, head) and is_seen(window, one, at) for one in ts
    ]


@repeatable
@given(
    st.integers(1, 6),
    places(),
    st.lists(times, min_size=1, max_size=12).map(sorted),
    st.integers(0, 12),
    st.lists(times, min_size=1, max_size=6),
)
def test_an_instant_meets_the_last_rows_of_a_rows_window(
    count: int, place: tuple[int, int, int], ts: list[int], forgotten: int, heads: list[int]
) -> None:
    aliases, position, head = place
    whole = np.array(ts)
    base = min(forgotten, len(ts) - 1)  # the beginning of the clock may be evicted
    axis = Axis(Rows(count), position, aliases, Clock(base, whole[base:]))
    low, high = bounds(axis.rows(whole[base:], np.arange(base, len(ts))))
    for at in heads:
        if at < ts[base]:
            continue
        point = point_of(axis, at, head)
        met = [int(ordinal) for ordinal in np.flatnonzero((low <= point) & (point <= high)) + base]
        seen = [ordinal for ordinal, one in enumerate(ts) if one <= at][-count:]
        assert met == [ordinal for ordinal in seen if ordinal >= base]


@repeatable
@given(windows_of_time, places(), times, st.integers(0, 10))
def test_nobody_at_the_horizon_or_after_it_looks_before_the_first_place(
    window: Window, place: tuple[int, int, int], watermark: int, later: int
) -> None:
    aliases, position, head = place
    axis = Axis(window, position, aliases)
    assert point_of(axis, watermark + later, head) >= axis.first(watermark)
    assert point_of(axis, watermark, 0) == axis.first(watermark), "nor is it earlier than it need be"
    assert point_of(axis, watermark - 1, aliases - 1) < axis.first(watermark)


@repeatable
@given(st.lists(times, max_size=12).map(sorted), st.integers(0, 50), times, st.integers(0, 10))
def test_nobody_at_the_horizon_looks_before_the_last_row_before_it(
    ts: list[int], base: int, watermark: int, later: int
) -> None:
    axis = Axis(Rows(3), 0, 2, Clock(base, np.array(ts, np.int64)))
    assert point_of(axis, watermark + later, 1) >= axis.first(watermark)
    assert point_of(axis, watermark - 1, 1) == axis.first(watermark)


@repeatable
@given(st.lists(times, max_size=12).map(sorted), st.integers(0, 50), st.lists(times, min_size=1))
def test_a_clock_translates_instants_to_ordinals(ts: list[int], base: int, asked: list[int]) -> None:
    clock = Clock(base, np.array(ts, np.int64))
    assert clock.last_at(np.array(asked)).tolist() == [base + bisect_right(ts, one) - 1 for one in asked]
    assert [clock.last_before(one) for one in asked] == [base + bisect_left(ts, one) - 1 for one in asked]


def test_a_clock_counts_ties_together() -> None:
    clock = Clock(7, np.array([1, 4, 4, 4, 9]))
    assert clock.last_at(np.array([0, 1, 3, 4, 8, 9, 50])).tolist() == [6, 7, 7, 10, 10, 11, 11]
    assert [clock.last_before(instant) for instant in (0, 1, 4, 5, 9, 10)] == [6, 6, 7, 10, 10, 11]


def test_a_clock_that_never_ticked_is_before_its_first_row() -> None:
    assert Clock().last_at(np.array([-5, 5])).tolist() == [-1, -1]
    assert Clock().last_before(5) == -1


@repeatable
@given(st.one_of(windows_of_time, st.integers(1, 6).map(Rows)), places(), st.lists(times, min_size=1).map(sorted))
def test_no_row_reaches_further_than_its_window(window: Window, place: tuple[int, int, int], ts: list[int]) -> None:
    aliases, position, _ = place
    axis = Axis(window, position, aliases)
    low, high = bounds(axis.rows(np.array(ts), np.arange(len(ts))))
    if isinstance(window, Unbounded):
        assert axis.reach is None
    else:
        assert axis.reach is not None
        assert (high - low < axis.reach).all()


@pytest.mark.parametrize(("window", "reach"), [(Range(10), 33), (Tumble(10), 33), (Rows(10), 10), (Unbounded(), None)])
def test_reach_is_in_places_of_the_axis(window: Window, reach: int | None) -> None:
    assert Axis(window, 1, 3).reach == reach
    assert Axis(window, 1, 3).counts_rows is isinstance(window, Rows)


@repeatable
@given(windows_of_time, st.lists(times, min_size=1, max_size=8), times)
def test_at_one_site_rows_are_visible_for_as_long_as_their_window_holds_them(
    window: Window, ts: list[int], at: int
) -> None:
    low, high = bounds(instants(window, np.array(ts), None, None))
    assert low.tolist() == ts
    assert [bool(met) for met in (low <= at) & (at <= high)] == [one <= at and is_seen(window, one, at) for one in ts]


@repeatable
@given(st.integers(1, 6), st.lists(times, min_size=1, max_size=12).map(sorted), st.integers(0, 12), times)
def test_at_one_site_the_last_rows_up_to_an_instant_are_visible(
    count: int, ts: list[int], evicted: int, at: int
) -> None:
    whole = np.array(ts)
    base = min(evicted, len(ts) - 1)
    low, high = bounds(instants(Rows(count), whole, np.arange(len(ts)), Clock(base, whole[base:])))
    if at < ts[base]:
        return
    met = np.flatnonzero((low <= at) & (at <= high)).tolist()
    assert met == [ordinal for ordinal, one in enumerate(ts) if one <= at][-count:]
