"""Comparisons of several streams are applied where these meet: what they reject or alone need is not sent."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from sim.sites.streams import SECOND, answers_of, expected, steady

from watersmeet.plan.nodes import Hop, Input, JoinNode, Leaf, Method, Plan, join_plan_of, with_join
from watersmeet.planners.local import local
from watersmeet.planners.sited import central, explicit
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

HOMES = {"a": "n1", "b": "n2", "c": "n3"}
STREAMS = {name: steady(number, rows=60, keys=5, step_us=SECOND // 2) for number, name in enumerate(HOMES)}
FROM = "FROM a [RANGE 8 SECONDS], b [RANGE 8 SECONDS], c [RANGE 8 SECONDS] WHERE a.k = b.k AND b.k = c.k"
BAND = "b.ts BETWEEN a.ts - INTERVAL 1 SECOND AND a.ts"


def parsed(sql: str) -> JoinQuery:
    schemas = dict.fromkeys(HOMES, SCHEMA)
    return typed(parse_query(sql, dict.fromkeys(HOMES, SCHEMA.names)), schemas, dict.fromkeys(HOMES, "ts"))


def through_b(query: JoinQuery) -> Plan:
    """Combinations of a and b are made at b's home, and go to c's."""
    order = {"a": "bc", "b": "ac", "c": "ba"}
    hops = {head: [Hop(alias, Method.SP_D) for alias in others] for head, others in order.items()}
    hops["b"] = [Hop("a", Method.SP_S), Hop("c", Method.SP_D)]
    return explicit(query, dict.fromkeys(HOMES, SCHEMA.names), HOMES, "n0", hops)


def as_tree(query: JoinQuery) -> Plan:
    """The same as a tree."""
    plan = central(query, dict.fromkeys(HOMES, SCHEMA.names), HOMES, "n0")
    pair = JoinNode("n2", (Input(Leaf("b")), Input(Leaf("a"))))
    tree = JoinNode("n3", (Input(pair), Input(Leaf("c"))))
    join = join_plan_of(plan)
    return with_join(plan, replace(join, sub_plans=(tree,)))


def simulated(plans: dict[str, Plan]) -> SimulatedSites:
    sites = SimulatedSites(plans, dict.fromkeys(HOMES, "ts"))
    for start in range(0, 60, 6):
        tables = {name: rows.slice(start, 6) for name, rows in STREAMS.items()}
        sites.feed((start + 6) * SECOND // 2, tables)
    sites.run()
    return sites


def sent(sites: SimulatedSites, origin: str, to: str) -> Counter[str]:
    """Rows by flow."""
    return Counter({flow: one.tuples for flow, one in sites.sites[origin].ledger.links[to].traffic.items()})


@pytest.mark.parametrize("planned", [through_b, as_tree])
def test_only_pairs_that_a_condition_leaves_travel(planned: Callable[[JoinQuery], Plan]) -> None:
    query = parsed(f"SELECT a.id AS x, b.id AS y, c.id AS z {FROM} AND {BAND} AND b.m <= c.m")
    plan = planned(query)
    sites = simulated({"q": plan})
    assert answers_of(sites) == expected(query, STREAMS)
    two = "SELECT a.id AS x, b.id AS y FROM a [RANGE 8 SECONDS], b [RANGE 8 SECONDS] WHERE a.k = b.k"
    streams = {name: STREAMS[name] for name in "ab"}
    every, left = (answer(parsed(sql), streams, {"a": "ts", "b": "ts"}).num_rows for sql in (two, f"{two} AND {BAND}"))
    shipped = {flow: rows for flow, rows in sent(sites, "n2", "n3").items() if "^" in flow or "(" in flow}
    assert sum(shipped.values()) == left < every / 3


def test_what_only_a_condition_needs_is_dropped_after_it() -> None:
    join = join_plan_of(through_b(parsed(f"SELECT c.id AS z {FROM} AND {BAND} AND b.m <= c.m AND a.s <> b.s")))
    assert join.output == ("c.id",)
    assert join.kept_of(["a"]) == ("a.s", "a.ts")
    assert join.kept_of(["a", "b"]) == ("b.m",)
    assert join.kept_of(["b", "c"]) == ("b.s", "b.ts", "c.id")
    assert join.kept_of(["a", "b", "c"]) == ("c.id",)


def test_a_sum_that_may_fail_is_judged_again_at_the_end() -> None:
    query = parsed(f"SELECT c.id AS z {FROM} AND a.id + 3 < b.id")
    join = join_plan_of(through_b(query))
    assert [one.expression.sql for one in join.conditions] == [one.sql for one in query.residuals]
    assert join.output == ("a.id", "b.id", "c.id")
    assert answers_of(simulated({"q": through_b(query)})) == expected(query, STREAMS)


def test_queries_with_other_conditions_share_a_join() -> None:
    texts = {
        "near": f"SELECT a.id AS x, c.id AS z {FROM} AND {BAND} AND a.m <= b.m",
        "all": f"SELECT a.id AS x, b.id AS y {FROM} AND a.m <= b.m",
        "some": f"SELECT b.id AS y {FROM} AND a.m <= b.m AND c.s >= b.s",
    }
    queries = {name: parsed(text) for name, text in texts.items()}
    sites = simulated({name: through_b(query) for name, query in queries.items()})
    assert [part.queries for part in sites.programs["n2"].parts] == [("near", "all", "some")]
    assert len(sites.programs["n2"].parts[0].join.conditions) == 1
    for name, query in queries.items():
        assert answers_of(sites, name) == expected(query, STREAMS)


def test_a_probe_for_several_queries_applies_the_conditions_of_each() -> None:
    texts = {
        "near": f"SELECT a.id AS x, c.id AS z {FROM} AND {BAND} AND a.id > 3",
        "far": f"SELECT a.id AS x, c.id AS z {FROM} AND NOT ({BAND}) AND a.id > 4",
        "all": f"SELECT a.id AS x, b.id AS y {FROM} AND a.id > 5",
    }
    queries = {name: parsed(text) for name, text in texts.items()}
    columns = dict.fromkeys(HOMES, SCHEMA.names)
    sites = simulated({name: local(query, columns, "n1") for name, query in queries.items()})
    for name, query in queries.items():
        assert answers_of(sites, name) == expected(query, STREAMS)
