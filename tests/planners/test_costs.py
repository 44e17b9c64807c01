"""The cost model against what the simulator ships, and what a cost must be whatever the plan."""

from dataclasses import replace

import numpy as np
import pytest
from workloads import Scene, measured, scene

from watersmeet.cost.formulas import announcements
from watersmeet.cost.price import price
from watersmeet.plan.nodes import (
    Hop,
    Input,
    JoinNode,
    Leaf,
    Linear,
    Method,
    Partition,
    RangeParts,
    Reduction,
    SubPlan,
    join_plan_of,
)
from watersmeet.planners.problem import Problem
from watersmeet.planners.sited import explicit

EVEN = [1.0] * 400
METHODS = [(method, bloom) for method in Method for bloom in (False, True) if not bloom or method.startswith("SM")]


def two_streams() -> Scene:
    return scene("chain", [300, 300], ["RANGE 3 SECONDS"] * 2, [EVEN] * 2, ["x", "y"])


def assert_near(
    problem: Problem, of: Scene, sub_plans: tuple[SubPlan, ...], partition: Partition | None = None
) -> None:
    """Predicted bytes within 20 % of those shipped, on all links together and on each that carries much."""
    join = problem.join(sub_plans, partition)
    cost = price(join, problem.workload, problem.topology, problem.units, 1.0, 0.3)
    links = measured(of.run(problem.plan(join)), of.seconds)
    assert cost.bytes_s == pytest.approx(sum(links.values()), rel=0.2)
    for pair, size in links.items():
        if size > 0.25 * sum(links.values()):
            assert cost.link_bytes[pair] == pytest.approx(size, rel=0.2), pair


@pytest.mark.few(4)
@pytest.mark.parametrize(("method", "bloom"), METHODS)
def test_bytes_of_each_method(method: Method, bloom: bool) -> None:
    of = two_streams()
    problem = of.problem("x")
    back = Method.SP_D if method.value[3] == "S" else Method.SP_S
    homes = {"a": "x", "b": "y"}
    hops = {"a": [Hop("b", method, bloom=bloom)], "b": [Hop("a", back)]}
    plan = explicit(problem.query, problem.topology.columns, homes, "x", hops)
    assert_near(problem, of, join_plan_of(plan).sub_plans)


def many_streams() -> Scene:
    return scene(
        "star",
        [200, 120, 160, 80],
        ["RANGE 3 SECONDS", "RANGE 4 SECONDS", "RANGE 2 SECONDS", "RANGE 3 SECONDS"],
        [[1.0] * 300] * 4,
        ["x", "y", "z", "x"],
        seconds=24,
    )


def nested(reduction: Reduction, bloom: bool = False) -> JoinNode:
    inner = JoinNode("y", (Input(Leaf("b")), Input(Leaf("c"), reduction, bloom)))
    return JoinNode("x", (Input(Leaf("a")), Input(Leaf("d")), Input(inner, reduction, bloom)))


@pytest.mark.few(2)
@pytest.mark.parametrize(("reduction", "bloom"), [(one, False) for one in Reduction] + [(Reduction.ONE_STEP, True)])
def test_bytes_of_trees(reduction: Reduction, bloom: bool) -> None:
    of = many_streams()
    assert_near(of.problem("x"), of, (nested(reduction, bloom),))


def test_bytes_of_a_plan_in_parts() -> None:
    of = many_streams()
    flat = JoinNode("z", tuple(Input(Leaf(alias)) for alias in "cabd"))
    partition = Partition(0, RangeParts((100, 200), (0, 1, 0)))
    assert_near(of.problem("x"), of, (nested(Reduction.NONE), flat), partition)


def test_every_figure_of_a_cost() -> None:
    of = many_streams()
    problem = of.problem("x")
    topology = replace(
        problem.topology, default_link=replace(problem.topology.link("x", "y"), between=("*", "*"), price_per_gb=2.0)
    )
    cost = price(problem.join((nested(Reduction.ONE_STEP),)), problem.workload, topology)
    assert cost.bytes_s == pytest.approx(sum(cost.link_bytes.values()))
    assert cost.money_s == pytest.approx(cost.bytes_s * 2e-9)
    assert set(cost.cpu) == {"x", "y", "z"} and all(share > 0 for share in cost.cpu.values())
    assert cost.state_rows["x"] > cost.state_rows["z"] > 0
    assert cost.delay_s > 2 * 0.025
    assert cost.messages_s > 0


def test_a_plan_costs_more_where_rates_are_higher() -> None:
    of = many_streams()
    problem = of.problem("x")
    for sub_plan in (nested(Reduction.NONE), nested(Reduction.ONE_STEP), nested(Reduction.TWO_STEP, bloom=True)):
        join = problem.join((sub_plan,))
        before = 0.0
        for factor in (0.5, 1.0, 2.0, 4.0):
            workload = replace(problem.workload, rate=problem.workload.rate * factor, _memory={})
            now = price(join, workload, problem.topology).bytes_s
            assert now > before
            before = now


def test_parts_together_are_the_whole() -> None:
    """The rates of what a plan in parts ships add up to those of the same tree for all values."""
    of = many_streams()
    problem = of.problem("x")
    partition = Partition(0, RangeParts((150,), (0, 1)))
    workload = problem.workload
    halves = [workload.limited(partition, workload.sub_plan_of_cells(partition) == sub_plan) for sub_plan in (0, 1)]
    for mask in (0b0001, 0b0011, 0b0111, 0b1111):
        assert sum(half.combination_rate(mask) for half in halves) == pytest.approx(workload.combination_rate(mask))


@pytest.mark.parametrize("rate", [0.01, 0.3, 2.0, 50.0])
def test_how_often_a_key_is_announced(rate: float) -> None:
    """Against a run of the rule: a span lasts a window; if rows came meanwhile, the next goes on from its end."""
    random = np.random.default_rng(3)
    window, horizon = 2.0, 40_000.0 if rate < 1 else 1_000.0
    times = np.sort(random.uniform(0, horizon, random.poisson(rate * horizon)))
    spans, covered, until = 0, 0.0, -1.0
    for begin in times:
        if begin > until:
            spans, covered, until = spans + 1, covered + window, begin + window
            while True:  # a row that came since the last span began, or went on, reaches beyond its end
                last = times[np.searchsorted(times, until, "right") - 1]
                if last + window <= until:
                    break
                spans, covered, until = spans + 1, covered + last + window - until, last + window
    often, length = announcements(np.array([rate]), window)
    assert float(often[0]) == pytest.approx(spans / horizon, rel=0.15)
    assert float(length[0]) == pytest.approx(covered / spans, rel=0.15)


def test_linear_plans_share_what_they_ship() -> None:
    """Rows that two heads need at a site are shipped, and paid for, once."""
    of = scene("star", [50] * 3, ["RANGE 2 SECONDS"] * 3, [EVEN] * 3, ["x", "y", "z"])
    problem = of.problem("x")
    heads = {
        "a": [Hop("b", Method.SP_S), Hop("c", Method.SP_S)],
        "b": [Hop("a", Method.SP_D), Hop("c", Method.SP_S)],
        "c": [Hop("a", Method.SP_D), Hop("b", Method.SP_S)],
    }
    plan = explicit(problem.query, problem.topology.columns, {"a": "x", "b": "y", "c": "z"}, "x", heads)
    sub_plan = join_plan_of(plan).sub_plans[0]
    assert isinstance(sub_plan, Linear)
    cost = price(problem.join((sub_plan,)), problem.workload, problem.topology)
    assert {(one.origin, one.flow) for one in cost.flows} == {("y", "b"), ("z", "c")}
