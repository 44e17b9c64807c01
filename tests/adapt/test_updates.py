"""CNU and DNU: both come to the greedy plan, whatever changes; operator sets and messages as in the paper."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.adapt.centralised import update_centrally
from watersmeet.adapt.distributed import CostDirection, change_of, update_distributed
from watersmeet.adapt.messages import Phase
from watersmeet.adapt.node_operators import HeadFlow, JoinStep, ShipStep, Update, operator_sets, windows_of
from watersmeet.adapt.sequences import (
    ExecutionPlan,
    Setting,
    StreamFigures,
    StreamPlan,
    TransferTime,
    UnitCosts,
    clique,
    generate,
    is_greedy,
    plan_cost,
    step_costs,
)
from watersmeet.adapt.synchronise import by_coordinator, point_to_point

EXAMPLE_1 = ExecutionPlan(
    (
        StreamPlan("s1", ("s2", "s3"), (True, True)),
        StreamPlan("s2", ("s1", "s3"), (False, True)),
        StreamPlan("s3", ("s1", "s2"), (False, False)),
    )
)
HOMES = {"s1": "n1", "s2": "n2", "s3": "n3"}


def flow(head: str, stream: str | None = None) -> HeadFlow:
    return HeadFlow(head, stream or head)


def test_operator_sets_of_the_papers_example_2() -> None:
    sets = operator_sets(EXAMPLE_1, HOMES, "n0")
    all_of = {node: frozenset().union(*each.values()) for node, each in sets.items()}
    assert all_of["n1"] == {ShipStep(flow("s1"), "n2"), ShipStep(flow("s1"), "n3")}
    assert all_of["n2"] == {
        JoinStep(flow("s1"), "s2"),
        Update("s2"),
        ShipStep(flow("s1", "s2"), "n3"),
        Update("s1"),
        JoinStep(flow("s2"), "s1"),
        ShipStep(flow("s2", "s1"), "n3"),
        ShipStep(flow("s2"), "n3"),
    }
    assert all_of["n3"] == {
        JoinStep(flow("s1", "s2"), "s3"),
        Update("s3"),
        ShipStep(flow("s1", "s3"), "n0"),
        JoinStep(flow("s2", "s1"), "s3"),
        ShipStep(flow("s2", "s3"), "n0"),
        JoinStep(flow("s3"), "s1"),
        JoinStep(flow("s3", "s1"), "s2"),
        Update("s1"),
        Update("s2"),
        ShipStep(flow("s3", "s2"), "n0"),
    }


def test_operator_sets_of_the_papers_example_3() -> None:
    after = ExecutionPlan((StreamPlan("s1", ("s3", "s2"), (False, True)), *EXAMPLE_1.sequences[1:]))
    sets = operator_sets(after, HOMES, "n0")
    assert sets["n1"]["s1"] == {JoinStep(flow("s1"), "s3"), Update("s3"), ShipStep(flow("s1", "s3"), "n2")}
    assert sets["n2"]["s1"] == {JoinStep(flow("s1", "s3"), "s2"), Update("s2"), ShipStep(flow("s1", "s2"), "n0")}
    assert sets["n3"]["s1"] == {ShipStep(flow("s3"), "n1")}


def test_cost_of_one_way_joins_is_that_of_equations_1_and_2() -> None:
    setting = Setting({"a": "a", "b": "b"}, clique("ab"), UnitCosts(0.5, 0.25), TransferTime(2.0, 100.0))
    figures = {"a": StreamFigures(10, 0.1, 40, 5), "b": StreamFigures(20, 0.2, 30, 8)}
    common = 20 * 0.25 + 10 * 0.5 * 8
    source, destination = 2 + 20 * 30 / 100 + common, 2 + 10 * 40 / 100 + common
    for at_destination, expected in ((False, source), (True, destination)):
        assert step_costs(setting, figures, StreamPlan("a", ("b",), (at_destination,))) == (expected,)
    assert generate(setting, figures).of("a").at_destination == (True,)


def paper(count: int, changing: str, rate: float) -> dict[str, StreamFigures]:
    """Section 5.2: 150 bytes, selectivity 0.01, windows of 500 ms, 100 rows a second but for one stream."""
    rates = {f"s{number}": 100.0 for number in range(1, count + 1)} | {changing: rate}
    return {name: StreamFigures(each, 0.01, 150.0, each * 0.5) for name, each in rates.items()}


def test_messages_of_cnu_are_those_of_table_3() -> None:
    """34 and 131 with synchronisation, as the rate rises; where it falls the paper has 3 windows and we more."""
    for count, windows, switch in ((4, 10, 24), (8, 19, 112)):
        low, high = paper(count, "s2", 50.0), paper(count, "s2", 200.0)
        setting = Setting({name: name for name in low}, clique(low))
        found = update_centrally(setting, high, generate(setting, low), changed="s2", coordinator="s1")
        assert (found.count(Phase.MODIFICATION), found.count(Phase.MIGRATION)) == (count, windows)
        assert len(point_to_point(found.groups)) == switch
        assert len(by_coordinator(found.groups)) == 5 * (count - 1)


@pytest.mark.parametrize(
    ("count", "rises", "falls"),
    [(4, (56, 12), (47, 12)), (8, (437, 25), (279, 25))],  # published: 59 and 283 as the rate falls
)
def test_messages_of_dnu_where_streams_that_cost_the_same_stay(
    count: int, rises: tuple[int, int], falls: tuple[int, int]
) -> None:
    low, high = paper(count, "s2", 50.0), paper(count, "s2", 200.0)
    setting = Setting({name: name for name in low}, clique(low), keeps_ties=True)
    plan = generate(setting, low)
    for before, after, expected in ((low, high, rises), (high, low, falls)):
        found = update_distributed(setting, before, after, plan)
        assert (found.count(Phase.MODIFICATION), found.count(Phase.MIGRATION)) == expected
        plan = found.plan
        assert plan_cost(setting, after, plan) == pytest.approx(plan_cost(setting, after, generate(setting, after)))


FIGURES = st.builds(
    StreamFigures,
    rate=st.sampled_from([10.0, 50.0, 100.0, 200.0]) | st.floats(1, 1_000),
    selectivity=st.sampled_from([0.001, 0.01, 0.05]) | st.floats(0.001, 0.2),
    row_bytes=st.sampled_from([20.0, 150.0, 500.0]),
    window_rows=st.sampled_from([5.0, 50.0, 100.0]) | st.floats(1, 500),
)


@st.composite
def settings_of(draw: st.DrawFn) -> Setting:
    names = [f"s{number}" for number in range(draw(st.integers(3, 8)))]
    graph = draw(st.sampled_from(["star", "chain", "clique"]))
    ties = {
        "star": frozenset(frozenset((names[0], other)) for other in names[1:]),
        "chain": frozenset(frozenset(pair) for pair in itertools.pairwise(names)),
        "clique": clique(names),
    }[graph]
    sites = len(names) if draw(st.booleans()) else draw(st.integers(2, len(names)))
    homes = {name: f"n{number % sites}" for number, name in enumerate(names)}
    nodes = sorted(set(homes.values()))
    links = {}
    if draw(st.booleans()):
        links = {
            frozenset((one, other)): TransferTime(
                0.001 * draw(st.integers(1, 50)), draw(st.sampled_from([1e4, 1e5, 1e6]))
            )
            for one in nodes
            for other in nodes
            if one < other
        }
    unit = draw(st.sampled_from([1e-7, 1e-6, 1e-5, 1e-4]))
    return Setting(homes, ties, UnitCosts(unit, unit), TransferTime(), links)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Setting, list[dict[str, StreamFigures]]]:
    """A setting and its figures over time; each time one stream or several change."""
    setting = draw(settings_of())
    known = {name: draw(FIGURES) for name in setting.streams}
    over_time = [known]
    for _ in range(draw(st.integers(1, 3))):
        known = dict(known)
        for name in draw(st.sets(st.sampled_from(setting.streams), min_size=1, max_size=2)):
            factor = draw(st.sampled_from([0.1, 0.25, 0.9, 1.1, 4.0, 10.0]))
            old = known[name]
            scaled = StreamFigures(old.rate * factor, old.selectivity, old.row_bytes, old.window_rows * factor)
            known[name] = scaled if draw(st.booleans()) else draw(FIGURES)
        over_time.append(known)
    return setting, over_time


@settings(max_examples=150, deadline=None)
@given(changes())
def test_cnu_and_dnu_agree_on_the_greedy_plan(case: tuple[Setting, list[dict[str, StreamFigures]]]) -> None:
    setting, over_time = case
    plan = generate(setting, over_time[0])
    for before, after in itertools.pairwise(over_time):
        changed = next(name for name in setting.streams if before[name] != after[name]) if before != after else "s0"
        central = update_centrally(setting, after, plan, changed=changed, coordinator=setting.homes["s0"])
        apart = update_distributed(setting, before, after, plan)
        assert apart.plan == central.plan
        assert all(is_greedy(setting, after, one) for one in apart.plan.sequences)
        tied = replace(setting, keeps_ties=True)
        kept = update_distributed(tied, before, after, plan).plan
        assert all(is_greedy(tied, after, one) for one in kept.sequences), "equation 4, whatever the order of equals"
        _check_windows(setting, plan, central.plan, {(move.stream, move.to) for move in central.moves})
        plan = central.plan


def _check_windows(setting: Setting, old: ExecutionPlan, new: ExecutionPlan, moved: set[tuple[str, str]]) -> None:
    """Every window that a node needs and did not keep is copied to it, and no other one."""
    before, after = (operator_sets(one, setting.homes, setting.homes["s0"]) for one in (old, new))
    needed = {(stream, node) for node in after for stream in windows_of(after[node]) - windows_of(before[node])}
    assert moved == needed


@settings(max_examples=60, deadline=None)
@given(changes())
def test_the_better_placement_never_costs_more(case: tuple[Setting, list[dict[str, StreamFigures]]]) -> None:
    setting, (figures, *_) = case
    plan = generate(setting, figures)
    for one in plan.sequences:
        costs = step_costs(setting, figures, one)
        last = StreamPlan(one.head, one.order, (*one.at_destination[:-1], not one.at_destination[-1]))
        assert step_costs(setting, figures, last)[-1] >= costs[-1]
    assert plan_cost(setting, figures, plan) == sum(sum(step_costs(setting, figures, one)) for one in plan.sequences)


def test_direction_of_a_change() -> None:
    base: Mapping[str, float] = {"rate": 10, "selectivity": 0.1, "row_bytes": 20, "window_rows": 30}

    def changed(**figures: float) -> CostDirection:
        return change_of(StreamFigures(**base), StreamFigures(**(dict(base) | figures)))

    assert changed(rate=11) is CostDirection.RISEN
    assert changed(rate=9, window_rows=27) is CostDirection.FALLEN
    assert changed(rate=9, row_bytes=21) is CostDirection.MIXED
    assert changed(selectivity=0.2) is CostDirection.MIXED
