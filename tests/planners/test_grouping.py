"""Groups of values with join orders of their own: what they are and cost, and that they answer exactly."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from workloads import Scene, scene

from watersmeet.cost.formulas import together
from watersmeet.plan.nodes import JoinNode, Partition, RangeParts, leaves_of
from watersmeet.planners.auto import _grouped_plans, plan_with, try_all
from watersmeet.planners.grouping import ByValue, groupings, in_order, prefixes
from watersmeet.planners.ordering import tree
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer


def popular_apart(streams: int, seed: int = 1, *, homes: int = 4) -> Scene:
    """Streams of one key; half of the values are rare in one half of the streams, the others in the other half."""
    rare, common = [0.1] * 3, [1.0] * 3
    spreads = [rare + common if number % 2 else common + rare for number in range(streams)]
    rates = [18.0 + (seed * (number + 2)) % 4 for number in range(streams)]
    at = [f"n{number % homes}" for number in range(streams)]
    windows = ["RANGE 1 SECOND"] * streams
    return scene("star", rates, windows, spreads, at, seconds=8, seed=seed, payload=200)


def test_streams_have_a_value_together_as_often_as_drawn() -> None:
    rng = np.random.default_rng(1)
    rate, window_s, time_s = np.array([[0.8], [2.0], [0.3]]), np.array([1.5, 0.4, 2.0]), 1.2
    hits, many, steps = 0, 4_000, 200
    for _ in range(many):
        visit = np.linspace(0, time_s, steps)
        is_there = np.ones(steps, bool)
        for one, window in zip(rate[:, 0], window_s, strict=True):
            rows = rng.uniform(-window, time_s, rng.poisson(one * (time_s + window)))
            is_there &= ((visit[:, None] >= rows) & (visit[:, None] <= rows + window)).any(axis=1)
        hits += bool(is_there.any())
    found = together(rate, window_s, time_s)[0]
    assert 0.95 * hits / many < found < 1.25 * hits / many  # times without all are not quite memoryless
    assert together(rate, window_s)[0] == pytest.approx((1 - np.exp(-rate[:, 0] * window_s)).prod())
    alone = together(rate[:1], window_s[:1], time_s)[0]
    assert alone == pytest.approx(1 - np.exp(-0.8 * (1.5 + time_s)))


def test_the_best_order_of_a_group_is_never_beaten() -> None:
    problem = popular_apart(4).problem(None)
    domain = problem.workload.domains[0]
    values = ByValue(problem, 0, domain.size, domain.shares, range(1, 16))
    (whole,) = values.best(np.ones((domain.cells, 1)))
    own = values.best()
    rows = {order: values.rows_of(order) for order in permutations(range(4))}
    for cell, found in enumerate(own):
        assert found.value == pytest.approx(min(cost[cell] for cost in rows.values()), rel=1e-5)
    assert values.rows_of(whole.order, whole.methods).sum() >= sum(one.value for one in own) * (1 - 1e-5)
    assert prefixes(whole.order)[-1] == 15


def test_values_that_are_rare_in_different_streams_get_different_orders() -> None:
    problem = popular_apart(4).problem(None)
    *_, (group, orders) = groupings(problem, 0, 2)
    assert group.tolist() in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    # A stream in which a group's values are popular is asked when both of those where they are rare have met.
    assert orders[group[0]][-1] in (0, 2) and orders[group[-1]][-1] in (1, 3)


@pytest.mark.parametrize(("streams", "seed", "homes"), [(3, 1, 3), (4, 2, 4), (4, 3, 2)])
def test_every_grouping_gives_the_answers_of_the_oracle(streams: int, seed: int, homes: int) -> None:
    of = popular_apart(streams, seed, homes=homes)
    problem = of.problem("n0")
    reference = bag_of(answer(of.query, of.tables, dict.fromkeys(of.tables, "ts")))
    assert reference.total() > 0
    found = list(_grouped_plans(problem, 0))
    assert any(partition is not None for _, partition in found)
    for sub_plans, partition in found:
        plan = problem.plan(problem.join(sub_plans, partition))
        sites = of.run(plan)
        sites.run()
        assert sum((bag_of(table) for table in sites.answers()), Counter()) == reference


def test_a_tree_in_the_order_of_the_best_tree_costs_no_more() -> None:
    problem = popular_apart(4).problem("n1")
    best = tree(problem)
    order = tuple(problem.workload.number(alias) for alias in leaves_of(best))
    found = in_order(problem, order)
    assert isinstance(found, JoinNode) and set(leaves_of(found)) == set(problem.aliases)
    tries = [in_order(problem, one) for one in permutations(range(4))]
    assert min(problem.value(problem.join((one,))) for one in tries) <= problem.value(problem.join((best,))) * 1.05


def test_auto_with_groups_is_never_above_a_planner() -> None:
    *others, best = try_all(popular_apart(3, 2).problem("n0"))
    assert best.value <= min(one.value for one in others)


def test_late_flows_of_a_deep_tree_are_foreseen() -> None:
    """A combination of many streams is there only while all of them are: the rows it asks for are few."""
    problem = popular_apart(5).problem(None)
    whole = Partition(0, RangeParts((), (0,)))
    rare = problem.limited(problem.workload.limited(whole, np.array([True, False, False, False, False, False])))
    tried = plan_with(replace(problem, workload=rare.workload), "tree")
    assert tried.cost is not None
    last = {flow.flow: flow.rows_s for flow in tried.cost.flows if "|(" in flow.flow}
    live = 1 - np.exp(-rare.workload.window)
    names = {flow.flow for flow in tried.cost.flows}
    for flow, rows_s in last.items():
        alias, others = flow.split("|(")
        asked_s = 1.0 if f"found({alias},({others})" in names else 0.0  # in two steps, a key is asked for once a turn
        members = [problem.workload.number(one) for one in others.rstrip(")").split()]
        number = problem.workload.number(alias)
        reach = 1 - np.exp(-rare.workload.rate[members] * (2.0 + asked_s))  # both windows are a second
        assert rare.workload.rate[number] * live[members].prod() <= rows_s * (1 + 1e-9)
        assert rows_s <= rare.workload.rate[number] * reach.prod() * (1 + 1e-9)
