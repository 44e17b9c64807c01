"""How many combinations joins find: averaged beside rates, and believed where values tell something else."""

import pytest
from adapt.test_controller import Driven

from watersmeet.adapt.monitor import MatchesObserved, MonitorState, StreamObserved, observe
from watersmeet.planners.choose import problem_for
from watersmeet.program.site.filing import Made
from watersmeet.program.site.matches import Matched, counted

PAIR = Matched("q", ("a", "b"), "a")


def seen(state: MonitorState, now_s: float, rate: int, rows: int) -> MonitorState:
    """A second in which two streams have some rows each, and a join finds some pairs."""
    for stream in "ab":
        state = observe(state, StreamObserved(stream, rate, 1.0), now_s)
    return observe(state, MatchesObserved(PAIR, ("a", "b"), rows, 1.0, 5.0), now_s)


def test_matches_are_known_by_the_product_of_rates() -> None:
    state = MonitorState(10.0)
    for second in range(60):
        state = seen(state, float(second), 50, 20)
    known = state.known_matches[PAIR]
    assert known == pytest.approx(20 / 50**2, rel=0.01)
    for second in range(60, 120):  # twice the rows make four times the pairs: nothing else has changed
        state = seen(state, float(second), 100, 80)
    assert state.known_matches[PAIR] == known, "in steps that chance does not make"
    for second in range(120, 240):
        state = seen(state, float(second), 100, 800)
    assert 5 < state.known_matches[PAIR] / known < 11
    for second in range(240, 400):
        state = seen(state, float(second), 100, 0)
    assert state.known_matches[PAIR] < known / 2, "none where many should be"


def test_few_pairs_and_windows_that_fill_say_nothing() -> None:
    state = MonitorState(10.0)
    for second in range(5):
        state = seen(state, float(second), 50, 20)
    assert not state.matches, "windows fill for five seconds"
    for second in range(5, 60):
        state = seen(state, float(second), 50, second % 2)
    assert state.matches and not state.known_matches


@pytest.mark.parametrize(("times", "is_believed"), [(1.0, False), (1.8, False), (40.0, True), (0.02, True)])
def test_costs_use_what_joins_find_where_it_is_far_from_what_values_tell(times: float, is_believed: bool) -> None:
    driven = Driven("planner", 100, 100, 100)
    driven.see(100, 100, 100, seconds=20)
    (one,) = driven.controller.queries
    problem = problem_for(driven.controller.seen(driven.state, driven.now_s), one.query, one.parsed)
    workload = problem.workload
    first, second = workload.aliases[:2]
    mask, head = workload.mask((first, second)), workload.number(first)
    what = Matched("q", tuple(sorted((first, second))), first)
    streams = tuple(scan.stream for scan in problem.shape.scans[:2])
    rows = times * workload.head_rate(head, mask) * 200  # a long time, so that there are enough
    for _ in range(10):
        driven.now_s += 2.0
        found = MatchesObserved(what, streams, round(rows), 200.0, 1.0)
        driven.state = driven.controller.observe(driven.state, [found], driven.now_s)
    by_matches, state = driven.controller._by_matches(driven.state, one, problem)
    ratio = by_matches.workload.head_rate(head, mask) / workload.head_rate(head, mask)
    assert ratio == (pytest.approx(times, rel=0.2) if is_believed else 1.0)
    assert bool(state.corrected) == is_believed
    every = (1 << len(workload.aliases)) - 1
    assert by_matches.workload.selectivity(every) == pytest.approx(ratio * workload.selectivity(every)), "of all too"


def test_what_joins_find_is_counted_by_flow() -> None:
    flows = {"x": PAIR}
    counts = counted({"gone": 7, "x": 2}, flows, [Made("x", 3), Made("y", 5), Made("x", 1)])
    assert counts == {"x": 6}
