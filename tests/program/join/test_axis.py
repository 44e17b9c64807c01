"""Two intervals on an axis meet exactly if the law says so, worked out here tuple by tuple."""

from bisect import bisect_left, bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.join.axis import Axis, Clock
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window

repeatable = settings(derandomize=True, deadline=None, max_examples=100)
windows_of_time = st.one_of(
    st.integers(1, 12).map(Range), st.integers(1, 8).map(Tumble), st.just(Unbounded()), st.integers(1, 3).map(Range)
)
instants = st.integers(-20, 20)


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int, int]:
    """The number of aliases, and the positions of a window and of another alias."""
    aliases = draw(st.integers(2, 5))
    window, head = draw(st.permutations(range(aliases)))[:2]
    return aliases, window, head


def is_seen(window: Window, ts: int, at: int) -> bool:
    """Whether a tuple not after an instant is in a window over time as seen then."""
    match window:
        case Range(window_us):
            return at - window_us <= ts
        case Tumble(window_us):
            return at // window_us == ts // window_us
    return True


@repeatable
@given(windows_of_time, places(), st.lists(instants, min_size=1, max_size=8), instants)
def test_a_head_meets_the_rows_before_it_that_its_window_holds(
    window: Window, place: tuple[int, int, int], ts: list[int], at: int
) -> None:
    aliases, position, head = place
    axis = Axis(window, position, aliases)
    point = axis.points(np.array([at]), head)[0]
    low, high = axis.rows(np.array(ts), None)
    assert [bool(met) for met in (low <= point) & (point <= high)] == [
        (one, position) < (at, head) and is_seen(window, one, at) for one in ts
    ]


@repeatable
@given(
    st.integers(1, 6),
    places(),
    st.lists(instants, min_size=1, max_size=12).map(sorted),
    st.integers(0, 12),
    st.lists(instants, min_size=1, max_size=6),
)
def test_an_instant_meets_the_last_rows_of_a_rows_window(
    count: int, place: tuple[int, int, int], ts: list[int], forgotten: int, heads: list[int]
) -> None:
    aliases, position, head = place
    whole = np.array(ts)
    base = min(forgotten, len(ts) - 1)  # the clock may have let go of its beginning
    axis = Axis(Rows(count), position, aliases, Clock(base, whole[base:]))
    low, high = axis.rows(whole[base:], np.arange(base, len(ts)))
    for at in heads:
        if at < ts[base]:
            continue
        point = axis.points(np.array([at]), head)[0]
        met = [int(ordinal) for ordinal in np.flatnonzero((low <= point) & (point <= high)) + base]
        seen = [ordinal for ordinal, one in enumerate(ts) if one <= at][-count:]
        assert met == [ordinal for ordinal in seen if ordinal >= base]


@repeatable
@given(windows_of_time, places(), instants, st.integers(0, 10))
def test_nobody_at_the_horizon_or_after_it_looks_before_the_first_place(
    window: Window, place: tuple[int, int, int], horizon: int, later: int
) -> None:
    aliases, position, head = place
    axis = Axis(window, position, aliases)
    assert axis.points(np.array([horizon + later]), head)[0] >= axis.first(horizon)
    assert axis.points(np.array([horizon]), 0)[0] == axis.first(horizon), "nor is it earlier than it need be"
    assert axis.points(np.array([horizon - 1]), aliases - 1)[0] < axis.first(horizon)


@repeatable
@given(st.lists(instants, max_size=12).map(sorted), st.integers(0, 50), instants, st.integers(0, 10))
def test_nobody_at_the_horizon_looks_before_the_last_row_before_it(
    ts: list[int], base: int, horizon: int, later: int
) -> None:
    axis = Axis(Rows(3), 0, 2, Clock(base, np.array(ts, np.int64)))
    assert axis.points(np.array([horizon + later]), 1)[0] >= axis.first(horizon)
    assert axis.points(np.array([horizon - 1]), 1)[0] == axis.first(horizon)


@repeatable
@given(st.lists(instants, max_size=12).map(sorted), st.integers(0, 50), st.lists(instants, min_size=1))
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
@given(st.one_of(windows_of_time, st.integers(1, 6).map(Rows)), places(), st.lists(instants, min_size=1).map(sorted))
def test_no_row_reaches_further_than_its_window(window: Window, place: tuple[int, int, int], ts: list[int]) -> None:
    aliases, position, _ = place
    axis = Axis(window, position, aliases)
    low, high = axis.rows(np.array(ts), np.arange(len(ts)))
    if isinstance(window, Unbounded):
        assert axis.reach is None
    else:
        assert axis.reach is not None
        assert (high - low < axis.reach).all()


@pytest.mark.parametrize(("window", "reach"), [(Range(10), 33), (Tumble(10), 33), (Rows(10), 10), (Unbounded(), None)])
def test_reach_is_in_places_of_the_axis(window: Window, reach: int | None) -> None:
    assert Axis(window, 1, 3).reach == reach
    assert Axis(window, 1, 3).counts_rows is isinstance(window, Rows)
