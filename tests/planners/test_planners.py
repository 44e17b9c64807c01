"""Every planner: exact answers on the simulator, never better than the optimum of its space, limits kept or named."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import scaled
from workloads import Scene, measured, scene

from watersmeet.cost.from_statistics import MissingStatistic
from watersmeet.errors import InputError
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Linear, Reduction
from watersmeet.planners.auto import PLANNERS, auto, plan_with, try_all
from watersmeet.planners.exhaustive import exhaustive
from watersmeet.planners.greedy import _at_once, greedy
from watersmeet.planners.oneway import OneWay, Shared
from watersmeet.planners.problem import Limits, NoPlan, Objective, Problem
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.stats.model import Stats

GRAPHS = ("chain", "star", "cycle", "clique")


def small(graph: str, seed: int, *, one_key: bool = True, streams: int = 3) -> Scene:
    """A few streams with values of mixed popularity, small enough for the oracle."""
    spreads = [[1.0 / (1 + (value * (number + 2)) % 7) for value in range(7)] for number in range(streams)]
    rates = [2.0 + (seed * (number + 3)) % 5 for number in range(streams)]
    windows = [f"RANGE {1 + (seed + number) % 3} SECONDS" for number in range(streams)]
    homes = [f"n{number % 3}" for number in range(streams)]
    return scene(graph, rates, windows, spreads, homes, seconds=8, seed=seed, one_key=one_key)


def assert_exact(of: Scene, problem: Problem, planner: str) -> None:
    tried = auto(problem) if planner == "auto" else plan_with(problem, planner)
    assert tried.join is not None, tried.reason
    plan = problem.plan(tried.join)
    sites = of.run(plan)
    sites.run()
    if problem.counting:  # rows are counted up to watermarks
        sites.drain()
    reference = answer(of.query, of.tables, dict.fromkeys(of.tables, "ts"))
    expected: Counter[tuple[object, ...]] = bag_of(reference)
    assert expected.total() > 0
    assert sum((bag_of(table) for table in sites.answers()), Counter()) == expected


@pytest.mark.few(8)
@pytest.mark.parametrize("planner", [*PLANNERS, "auto"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_every_planner_gives_the_answers_of_the_oracle(planner: str, graph: str) -> None:
    drawn = [(1, True), (2, False)]
    if planner == "auto":  # it makes all plans of the others
        drawn = [drawn[GRAPHS.index(graph) % 2]]
    for seed, one_key in drawn:
        of = small(graph, seed, one_key=one_key)
        assert_exact(of, of.problem("n1"), planner)


@pytest.mark.few(2)
@pytest.mark.parametrize("objective", ["bytes", "money", "latency", "work"])
def test_four_streams_by_every_objective(objective: str) -> None:
    of = small("star", 3, streams=4)
    assert_exact(of, of.problem("n0", objective=Objective.named(objective)), "auto")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), graph=st.sampled_from(GRAPHS), one_key=st.booleans())
def test_exhaustive_is_never_beaten(seed: int, graph: str, one_key: bool) -> None:
    problem = small(graph, seed, one_key=one_key).problem(None, objective=Objective.named("work"))
    prices = OneWay(problem)
    best = prices.value(exhaustive(problem).heads)
    for sub_plan in (greedy(problem), _at_once(problem)):
        assert isinstance(sub_plan, Linear)
        assert prices.value(sub_plan.heads) >= best * (1 - 1e-9)


def least_of_all(problem: Problem) -> float:
    """The cheapest of all combinations of all sequences, tried one by one."""
    prices = OneWay(problem)
    heads = []
    for head in range(len(problem.aliases)):
        found: dict[frozenset[Shared], float] = {}
        starts = [(1 << head, problem.homes[head], 0.0, frozenset[Shared]())]
        while starts:
            mask, site, own, needs = starts.pop()
            if mask == prices.full:
                last, links = prices.delivery(head, site)
                needs |= set(links)
                found[needs] = min(found.get(needs, float("inf")), own + last)
                continue
            for alias in prices.next_aliases(mask):
                for one in prices.priced_hops(head, mask, site, alias):
                    starts.append((mask | 1 << alias, one.end, own + one.own, needs | set(one.shared)))
        heads.append(found)
    worth = {one: prices.price_of(one) for found in heads for needs in found for one in needs}
    return min(
        sum(own for _, own in chosen) + sum(worth[one] for one in frozenset().union(*(needs for needs, _ in chosen)))
        for chosen in product(*(found.items() for found in heads))
    )


@pytest.mark.parametrize(
    ("graph", "one_key", "objective", "site"),
    [("chain", True, "work", None), ("chain", False, "bytes", "n1"), ("star", True, "bytes", "n2")],
)
def test_exhaustive_finds_what_trying_everything_finds(
    graph: str, one_key: bool, objective: str, site: str | None
) -> None:
    of = small(graph, 5, one_key=one_key)
    problem = of.problem(site, objective=Objective.named(objective))
    assert OneWay(problem).value(exhaustive(problem).heads) == pytest.approx(least_of_all(problem), rel=1e-12)


def check_auto(seed: int, graph: str, streams: int) -> None:
    problem = small(graph, seed, streams=streams).problem("n0")
    *others, best = try_all(problem)
    assert best.planner == "auto"
    for one in others:
        if one.join is not None:
            assert best.value <= one.value


@pytest.mark.parametrize(("graph", "streams"), [("clique", 2), ("star", 3), ("cycle", 4)])
def test_auto_is_never_above_any_planner(graph: str, streams: int) -> None:
    check_auto(12, graph, streams)


@pytest.mark.soak
@settings(max_examples=scaled(60), deadline=None)
@given(seed=st.integers(0, 10_000), graph=st.sampled_from(GRAPHS), streams=st.integers(2, 4))
def test_auto_is_never_above_any_planner_whatever_the_rates(seed: int, graph: str, streams: int) -> None:
    check_auto(seed, graph, streams)


def test_planning_twice_gives_the_same() -> None:
    problem = small("chain", 13).problem("n0")
    assert auto(problem).join == auto(small("chain", 13).problem("n0")).join


def test_many_streams_are_planned_at_once() -> None:
    names = 12
    of = scene(
        "chain",
        [3.0] * names,
        ["RANGE 1 SECOND"] * names,
        [[1.0] * 5] * names,
        [f"n{i}" for i in range(names)],
        seconds=2,
        one_key=False,
    )
    problem = of.problem("n0")
    sub_plan = greedy(problem)
    assert [plan.head for plan in sub_plan.heads] == list(problem.aliases)
    assert problem.value(problem.join((sub_plan,))) > 0


def test_a_barred_site_gets_nothing_of_others() -> None:
    of = small("star", 4)
    for barred in ("n0", "n1", "n2"):
        tried = auto(of.problem("n0", limits=Limits(barred=(barred,))))
        assert tried.join is not None and tried.cost is not None
        held = {one.purpose.value for one in tried.cost.flows if one.to == barred and one.bytes_s > 0}
        assert held <= {"results"}


def test_limits_that_no_plan_meets_are_named() -> None:
    of = small("star", 5)
    with pytest.raises(NoPlan, match=r"no plan keeps to the limits.*the delay is .* s above the limit"):
        auto(of.problem("n0", limits=Limits(delay_s=0.001)))
    everywhere = Limits(barred=("n0", "n1", "n2"))
    with pytest.raises(NoPlan, match="no plan keeps to the limits"):
        auto(of.problem("n0", limits=everywhere))


def test_latency_is_kept_small_when_asked() -> None:
    of = small("chain", 6)
    fast = auto(of.problem("n0", objective=Objective.named("latency")))
    lean = auto(of.problem("n0"))
    assert fast.cost is not None and lean.cost is not None
    assert fast.cost.delay_s <= lean.cost.delay_s
    assert lean.cost.bytes_s <= fast.cost.bytes_s


def test_a_missing_figure_is_named_and_assumed_only_when_asked() -> None:
    from watersmeet.planners.problem import problem_of

    of = small("chain", 7)
    bare = replace(of.topology, stats=Stats({**of.topology.stats.streams, "b": of.topology.stats.stream("none")}))
    with pytest.raises(MissingStatistic, match=r"no rate is known of stream 'b'; run `watersmeet stats`"):
        problem_of(of.query, bare, "n0", bare.stats)
    assumed = problem_of(of.query, bare, "n0", bare.stats, defaults=True)
    assert "rate of stream 'b': 100" in assumed.workload.defaults


def test_streams_that_nothing_ties_are_named() -> None:
    from watersmeet.planners.problem import problem_of
    from watersmeet.query.sql import parse_query

    of = small("chain", 8)
    sql = "SELECT a.id AS x FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k"
    query = parse_query(sql, of.topology.columns, allow_cross=True)
    problem = problem_of(query, of.topology, "n0", of.topology.stats)
    for planner in ("tree", "pmjoin", "optimal"):
        with pytest.raises(InputError, match="no equality ties c to the other streams"):
            plan_with(problem, planner)


@pytest.mark.parametrize("planner", ["tree", "pmjoin", "optimal", "auto"])
@pytest.mark.parametrize("windows", [("ROWS 3", "RANGE 2 SECONDS", "ROWS 5"), ("ROWS 8", "ROWS 2", "UNBOUNDED")])
def test_trees_have_rows_windows(planner: str, windows: tuple[str, ...]) -> None:
    of = scene("chain", [4.0] * 3, list(windows), [[1.0] * 4] * 3, ["n0", "n1", "n2"], seconds=6)
    problem = of.problem("n0")
    assert_exact(of, problem, planner)
    tried = plan_with(problem, planner) if planner != "auto" else auto(problem)
    assert tried.join is not None
    if planner != "auto":
        assert isinstance(tried.join.sub_plans[0], JoinNode)


def test_combinations_that_never_end_are_reduced() -> None:
    of = scene("chain", [3.0] * 3, ["UNBOUNDED"] * 3, [[1.0] * 9] * 3, ["n0", "n1", "n2"], seconds=5)
    problem = of.problem("n0")
    inner = JoinNode("n1", (Input(Leaf("b")), Input(Leaf("c"))))
    sites = of.run(problem.plan(problem.join((JoinNode("n0", (Input(Leaf("a")), Input(inner, Reduction.ONE_STEP))),))))
    sites.run()
    expected = bag_of(answer(of.query, of.tables, dict.fromkeys(of.tables, "ts")))
    assert sum((bag_of(table) for table in sites.answers()), Counter()) == expected and expected.total() > 0


def test_trees_forget_rows_that_others_have_pushed_out() -> None:
    of = scene("chain", [20.0] * 3, ["ROWS 20"] * 3, [[1.0] * 60] * 3, ["n0", "n1", "n2"], seconds=20)
    problem = of.problem("n0")
    tried = plan_with(problem, "pmjoin")
    assert tried.join is not None
    sites = of.run(problem.plan(tried.join))
    sites.run()
    ledgers = [site.ledger for site in sites.sites.values()]
    kept = [one.rows for ledger in ledgers for some in ledger.relations.values() for one in some]
    ticks = [one.rows for ledger in ledgers for some in ledger.clocks.values() for one in some]
    assert sum(kept) < 400 and sum(ticks) < 500, "of 1,200 rows"


def test_auto_takes_a_tree_where_rows_are_counted_and_it_ships_less() -> None:
    """Few rows of b and c meet any of a, so what those make goes on and not their rows."""
    of = scene("chain", [4.0, 100.0, 100.0], ["ROWS 20"] * 3, [[1.0] * 2000] * 3, ["n0", "n1", "n2"], seconds=6)
    problem = of.problem("n0")
    *tried, best = try_all(problem)
    shipped = {}
    for one in (*tried, best):
        assert one.join is not None
        shipped[one.planner] = sum(measured(of.run(problem.plan(one.join)), 6).values())
    assert min(shipped["tree"], shipped["pmjoin"]) < 0.8 * min(shipped["greedy"], shipped["central"]), shipped
    assert shipped["auto"] <= 1.1 * min(shipped.values()), shipped


def test_a_tree_reaches_each_stream_once() -> None:
    of = small("clique", 9, streams=4)
    tried = plan_with(of.problem("n0"), "tree")
    assert tried.join is not None
    (sub_plan,) = tried.join.sub_plans
    assert isinstance(sub_plan, JoinNode)

    def leaves(node: object) -> list[str]:
        return [node.alias] if isinstance(node, Leaf) else [a for one in node.inputs for a in leaves(one.node)]  # type: ignore[attr-defined]

    assert sorted(leaves(sub_plan)) == ["a", "b", "c", "d"]


def test_sites_without_a_link() -> None:
    from watersmeet.planners.problem import problem_of
    from watersmeet.topology.model import Link

    of = small("star", 10)
    alone = replace(of.topology, default_link=None, links=(Link(("n0", "n1")),))
    with pytest.raises(InputError, match="site n2 has no link to n0 or n1; add one under `links:`, or a default_link"):
        problem_of(of.query, alone, "n0", alone.stats)
    around = replace(of.topology, default_link=None, links=(Link(("n0", "n1")), Link(("n1", "n2"))))
    tried = auto(problem_of(of.query, around, "n0", around.stats))
    assert tried.join is not None and tried.cost is not None
    assert not {("n0", "n2"), ("n2", "n0")} & set(tried.cost.link_bytes)


@pytest.mark.parametrize("method", ["hash", "range", "rate"])
def test_pmjoin_makes_parts_as_asked(method: str) -> None:
    of = small("star", 11)
    problem = replace(of.problem("n0"), partition=method)
    tried = plan_with(problem, "pmjoin")
    assert tried.join is not None
    assert method == "hash" or tried.join.partition is not None, "values of mixed popularity have ways of their own"
    if tried.join.partition is not None:
        kind = {"hash": "HashParts", "range": "RangeParts", "rate": "ValueParts"}[method]
        assert type(tried.join.partition.parts).__name__ == kind
    assert_exact(of, problem, "pmjoin")
