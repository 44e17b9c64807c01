"""Semijoin programs: exact, foreseen in bytes, and taken where rows that meet one stream seldom meet all of them."""

from collections import Counter
from dataclasses import replace

import pytest
from workloads import Scene, measured, scene

from watersmeet.plan.explain import tree_text
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Reducer, Reduction, leaves_of
from watersmeet.planners.auto import try_all
from watersmeet.planners.problem import Limits
from watersmeet.planners.programs import programs
from watersmeet.program.compile import compile_sites
from watersmeet.program.operators import Semijoin
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.topology.model import Site

WINDOWS = ["RANGE 2 SECONDS", "RANGE 3 SECONDS", "RANGE 2 SECONDS"]


def seldom_all(graph: str = "chain", *, seconds: float = 16.0, payload: int = 300) -> Scene:
    """Wide rows of three sites: half of them meet the next stream, but few meet both others."""
    of = scene(
        *(graph, [60.0] * 3, WINDOWS, [[1.0] * 400] * 3, ["x", "y", "z"]),
        seconds=seconds,
        seed=4,
        one_key=graph == "clique",
        payload=payload,
    )
    return replace(of, topology=replace(of.topology, sites=(*of.topology.sites, Site("hq"))))


def met_at(site: str, *reducers: tuple[Reducer, ...]) -> JoinNode:
    """All of a, b and c at one site, each reduced by some others."""
    return JoinNode(site, tuple(Input(Leaf(alias), reducers=by) for alias, by in zip("abc", reducers, strict=True)))


PROGRAMS = {
    "at a home": met_at("x", (), (Reducer("a"), Reducer("c")), (Reducer("b"),)),
    "by filters": met_at("x", (), (Reducer("a", bloom=True), Reducer("c", bloom=True)), (Reducer("b", bloom=True),)),
    "elsewhere": met_at("hq", (Reducer("b"),), (Reducer("a"), Reducer("c")), (Reducer("b"),)),
    "then in one step": JoinNode(
        "x",
        (
            Input(Leaf("a")),
            Input(Leaf("b"), Reduction.ONE_STEP, reducers=(Reducer("c"),)),
            Input(Leaf("c"), Reduction.TWO_STEP),
        ),
    ),
    "below a join": JoinNode(
        "z",
        (
            Input(Leaf("c")),
            Input(
                JoinNode("x", (Input(Leaf("a")), Input(Leaf("b"), reducers=(Reducer("c"),)))),
                Reduction.ONE_STEP,
                reducers=(Reducer("c", bloom=True),),
            ),
        ),
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("graph", ["chain", "clique"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_answers_of_the_oracle(name: str, graph: str) -> None:
    of = seldom_all(graph, seconds=8, payload=0)
    problem = of.problem("hq")
    sites = of.run(problem.plan(problem.join((PROGRAMS[name],))))
    sites.run()
    expected = bag_of(answer(of.query, of.tables, dict.fromkeys(of.tables, "ts")))
    assert expected.total() > 0
    assert sum((bag_of(table) for table in sites.answers()), Counter()) == expected


def test_rows_of_a_short_window_at_the_same_site_count_for_as_long_as_what_they_met() -> None:
    """A row of the long window that meets a second row of the short one is not found anew, whatever is evicted."""
    windows = ["RANGE 500 MILLISECONDS", "RANGE 6 SECONDS", "RANGE 500 MILLISECONDS"]
    of = scene("clique", [8.0] * 3, windows, [[1.0] * 6] * 3, ["y", "y", "x"], seconds=24, seed=2)
    problem = of.problem("x")
    tree = JoinNode("x", (Input(Leaf("c")), Input(Leaf("b"), reducers=(Reducer("a"),)), Input(Leaf("a"))))
    sites = of.run(problem.plan(problem.join((tree,))), batch_interval_s=0.5)
    sites.run()
    expected = bag_of(answer(of.query, of.tables, dict.fromkeys(of.tables, "ts")))
    assert expected.total() > 0
    assert sum((bag_of(table) for table in sites.answers()), Counter()) == expected


@pytest.mark.few(2)
@pytest.mark.parametrize("graph", ["chain", "clique"])
@pytest.mark.parametrize("name", ["at a home", "by filters", "elsewhere"])
def test_bytes_of_programs_are_foreseen(name: str, graph: str) -> None:
    of = seldom_all(graph)
    problem = of.problem("hq")
    join = problem.join((PROGRAMS[name],))
    links = measured(of.run(problem.plan(join)), of.seconds)
    assert problem.cost(join).bytes_s == pytest.approx(sum(links.values()), rel=0.2)


def test_auto_takes_a_program_that_ships_less_than_the_plan_of_any_planner() -> None:
    of = seldom_all()
    *tried, best = try_all(of.problem("hq"))
    assert best.join is not None
    (tree,) = best.join.sub_plans
    assert isinstance(tree, JoinNode) and any(item.reducers for item in tree.inputs)
    problem = of.problem("hq")
    shipped = {
        one.planner: sum(measured(of.run(problem.plan(one.join)), of.seconds).values())
        for one in (*tried, best)
        if one.join is not None
    }
    own = shipped.pop("auto")
    assert own < 0.85 * min(shipped.values()), (own, shipped)


def test_streams_are_reduced_where_they_are_and_keys_of_one_stream_go_to_a_site_once() -> None:
    problem = seldom_all().problem("hq")
    found = compile_sites(problem.join((PROGRAMS["elsewhere"],)))
    chain = [one for one in found["y"].operators if isinstance(one, Semijoin)]
    assert [one.subject.name for one in chain] == ["b", chain[0].out.name]
    assert [ship.flow for ship in found["y"].ships if ship.to == "hq"] == [chain[1].out]
    assert sum(ship.flow.name == "keys(b,K2)" and ship.to == "z" for ship in found["y"].ships) == 1


def test_nothing_is_reduced_where_keys_would_take_more_than_rows() -> None:
    problem = seldom_all(payload=0).problem("hq")
    narrow = scene("chain", [60.0] * 3, WINDOWS, [[1.0] * 2] * 3, ["x", "y", "z"], seconds=8, one_key=False)
    assert list(programs(narrow.problem("hq"), [])) == [], "every row meets all others"
    for tree in programs(problem, []):
        assert sorted(leaves_of(tree)) == ["a", "b", "c"]


def test_keys_go_to_no_site_that_is_barred() -> None:
    of = seldom_all()
    problem = of.problem("hq", limits=Limits(barred=("y",)))
    for tree in programs(problem, []):
        assert all(not item.reducers for item in tree.inputs if leaves_of(item.node) == ("b",))


def test_what_a_program_cannot_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not reduced by a stream of its own"):
        Input(Leaf("a"), reducers=(Reducer("a"),))
    counted = scene("chain", [4.0] * 3, ["ROWS 3", *WINDOWS[1:]], [[1.0] * 4] * 3, ["x", "y", "z"], seconds=6)
    problem = counted.problem("hq")
    assert list(programs(problem, [PROGRAMS["at a home"]])) == []
    with pytest.raises(ValueError, match="not reduced where a ROWS window"):
        compile_sites(problem.join((PROGRAMS["elsewhere"],)))
    apart = seldom_all().problem("hq").join((met_at("x", (), (), (Reducer("a"),)),))
    with pytest.raises(ValueError, match="nothing ties a to c"):
        compile_sites(apart)


def test_a_program_is_shown() -> None:
    assert (
        tree_text(PROGRAMS["at a home"]) == "(a + b reduced first by keys of a, c + c reduced first by keys of b) at x"
    )
    assert "b reduced first by keys of c, then reduced in one step" in tree_text(PROGRAMS["then in one step"])
