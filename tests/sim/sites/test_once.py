"""What is the same row travels once on a link: fewer rows, the same answers, and no flow that waits for another."""

import runpy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sim.sites.streams import answers_of, expected, parsed, steady

from watersmeet.plan.nodes import (
    HeadPlan,
    Hop,
    Input,
    JoinNode,
    Leaf,
    Linear,
    Method,
    Plan,
    Reduction,
    SubPlan,
    join_plan_of,
    with_join,
)
from watersmeet.planners.sited import central
from watersmeet.program.compile import compile_sites
from watersmeet.program.operators import Form, Gather, Semijoin
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

HOMES = {"s": "east", "t": "west", "u": "north"}
STAR = (
    "SELECT a.id AS x, b.id AS y, c.id AS z FROM s [RANGE 2 SECONDS] AS a, t [RANGE 3 SECONDS] AS b, "
    "u [RANGE 2 SECONDS] AS c WHERE a.k = b.k AND a.k = c.k"
)
SELF = (
    "SELECT a.id AS x, b.id AS y, c.id AS z FROM s [RANGE 2 SECONDS] AS a, s [RANGE 1 SECONDS] AS b, "
    "t [RANGE 2 SECONDS] AS c WHERE a.k = c.k AND b.k = c.k"
)
REDUCED = JoinNode("west", (Input(Leaf("c")), *(Input(Leaf(alias), Reduction.ONE_STEP) for alias in "ab")))


def fetching(at: str) -> Linear:
    """Heads b and c visit two windows in opposite order, both at one site; the rows of a go elsewhere."""
    fetch = {alias: Hop(alias, Method.SM_S1, at) for alias in "abc"}
    return Linear(
        (
            HeadPlan("a", (Hop("b", Method.SM_D1), Hop("c", Method.SP_D))),
            HeadPlan("b", (fetch["a"], fetch["c"])),
            HeadPlan("c", (fetch["a"], fetch["b"])),
        )
    )


def planned(sql: str, sub_plan: SubPlan, *, once: bool = True) -> Plan:
    streams = [name for name in HOMES if f"{name} [" in sql]
    plan = central(parsed(sql, streams), dict.fromkeys(streams, SCHEMA.names), HOMES, "hq")
    return with_join(plan, replace(join_plan_of(plan), sub_plans=(sub_plan,), ships_once=once))


def operators(plan: Plan) -> list[Any]:
    return [one for program in compile_sites(join_plan_of(plan)).values() for one in program.operators]


def rows_sent(sites: SimulatedSites, flows: Iterable[str]) -> int:
    links = [link for site in sites.sites.values() for link in site.ledger.links.values()]
    return sum(sent.tuples for link in links for name, sent in link.traffic.items() if any(f in name for f in flows))


def ran(plan: Plan, tables: dict[str, pa.Table]) -> SimulatedSites:
    sites = SimulatedSites(plan, dict.fromkeys(tables, "ts"))
    for stream, whole in tables.items():
        for number, low in enumerate(range(0, whole.num_rows, 10)):
            sites.feed(number * 500_000, {stream: whole.slice(low, 10)})
    sites.run()
    return sites


@pytest.mark.parametrize(
    ("sql", "sub_plan"),
    [
        (STAR, fetching("hq")),
        (STAR.replace("s [RANGE 2 SECONDS]", "s [ROWS 9]"), fetching("hq")),
        (SELF, REDUCED),
        (SELF + " AND b.id % 3 <> 0", REDUCED),
    ],
    ids=["two heads", "two heads, ROWS", "self-join", "self-join with a filter"],
)
def test_rows_that_several_semijoins_want_travel_once(sql: str, sub_plan: SubPlan) -> None:
    tables = {name: steady(number, 60, 12, 200_000) for number, name in enumerate(HOMES) if f"{name} [" in sql}
    once, apart = (ran(planned(sql, sub_plan, once=once), tables) for once in (True, False))
    assert answers_of(once) == answers_of(apart) == expected(parsed(sql, tables), tables)
    assert any(isinstance(one, Gather) for one in operators(planned(sql, sub_plan)))
    gathered, fetched = rows_sent(once, ["gathered("]), rows_sent(apart, ["fetched(a", "a|", "b|"])
    assert 0 < gathered < fetched
    assert gathered <= 60


def test_nothing_is_asked_for_that_comes_anyway() -> None:
    whole = JoinNode("west", (Input(Leaf("a")), Input(Leaf("c")), Input(Leaf("b"), Reduction.TWO_STEP)))
    sql = SELF.replace("[RANGE 1 SECONDS]", "[RANGE 2 SECONDS]")
    made = operators(planned(sql, whole))
    assert not any(isinstance(one, Semijoin) or one.out.form is Form.SPAN for one in made)
    narrow = operators(planned(sql + " AND a.id % 3 <> 0", whole))  # rows of b are not all among those of a
    assert any(isinstance(one, Semijoin) for one in narrow)


def test_semijoins_by_other_keys_or_with_other_columns_stay_apart() -> None:
    by_another = SELF.replace("b.k = c.k", "b.m = c.m")
    assert not any(isinstance(one, Gather) for one in operators(planned(by_another, REDUCED)))
    columns = SELF.replace("a.id AS x, b.id AS y", "a.id AS x, b.s AS y")
    assert not any(isinstance(one, Gather) for one in operators(planned(columns, REDUCED)))


def test_each_semijoin_has_a_watermark_of_its_own() -> None:
    """So that no flow waits for another: of two heads, one may be silent for ever."""
    tables = {name: steady(number, 40, 6, 200_000) for number, name in enumerate(HOMES)}
    tables["u"] = tables["u"].slice(0, 1)
    made = [one for one in operators(planned(STAR, fetching("hq"))) if isinstance(one, Gather)]
    assert [len(one.reached) for one in made] == [2]
    sites = ran(planned(STAR, fetching("hq")), tables)
    reached = {name: mark for name, mark in sites.sites["hq"].ledger.watermarks.items() if "reached(" in name}
    assert len(set(reached.values())) == 2
    assert answers_of(sites) == expected(parsed(STAR, tables), tables)


def test_the_benchmark_finds_less_shipped() -> None:
    module = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "once.py"))
    case = module["CASES"][-1]
    tables = {name: module["rows_of"](number, 200, 100) for number, name in enumerate("st")}
    (apart, one), (once, other) = (module["shipped"](case, tables, once=once) for once in (False, True))
    assert one == other
    assert once < apart
