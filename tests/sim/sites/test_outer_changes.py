"""Queries with outer joins and EXISTS that come and go while sites run, and whose plans change."""

from collections.abc import Mapping

import pyarrow as pa
import pytest
from sim.sites.streams import SECOND, answers_of, expected, parsed, planned, steady

from watersmeet.errors import InputError
from watersmeet.plan.nodes import Hop, Method, OuterJoin, Plan
from watersmeet.plan.shape import matching_of
from watersmeet.planners.local import local
from watersmeet.program.site.changes import Change, QueryPlan, check_change, plan_changes
from watersmeet.program.site.deployment import deployed, shared_joins
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.outer import branches_of
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import SCHEMA

HOMES = {"a": "n1", "b": "n2", "c": "n3"}
WINDOW_US = 2 * SECOND
AB = "a [RANGE 2 SECONDS] {} b [RANGE 2 SECONDS] {} a.k = b.k"
INNER = f"SELECT a.id AS a, b.id AS b FROM {AB.format(',', 'WHERE')}"
LEFT = f"SELECT a.id AS a, b.id AS b, a.ts AS at FROM {AB.format('LEFT JOIN', 'ON')}"
BOTH = """SELECT a.id AS a, a.ts AS at FROM a [RANGE 2 SECONDS]
    WHERE EXISTS (SELECT 1 FROM b [RANGE 2 SECONDS] WHERE b.k = a.k)
    AND NOT EXISTS (SELECT 1 FROM c [RANGE 2 SECONDS] WHERE c.k = a.k)"""
TABLES = {name: steady(number, 240, 30, 50_000) for number, name in enumerate("abc")}  # twelve seconds
LAST_US = 239 * 50_000


def plan_of(query: JoinQuery, homes: Mapping[str, str] = HOMES, hop: Hop | None = None) -> Plan:
    """Every inner join at the site of the answers, or by one-way joins of one kind."""
    columns = dict.fromkeys(homes, SCHEMA.names)

    def one(inner: JoinQuery) -> Plan:
        if len(inner.sources) == 1:
            return local(inner, columns, homes[inner.sources[0].stream], "n0")
        return planned(inner, homes, "n0", hop)

    if query.outer is None:
        return one(query)
    expanded = branches_of(query)
    return OuterJoin(tuple(one(branch.query) for branch in expanded.branches), matching_of(query, expanded))


def run(queries: Mapping[str, str], change: Change, *, history: bool) -> tuple[SimulatedSites, int]:
    """Twelve seconds of three streams, with a change after six; and the instant at which it took effect."""
    sites = SimulatedSites(
        {name: plan_of(parsed(sql, "abc")) for name, sql in queries.items()},
        dict.fromkeys("abc", "ts"),
        model_of=lambda *_: LinkModel(latency_us=25_000),
        homes=HOMES,
        sites=("n0", "n1", "n2", "n3"),
        changes=True,
        history=history,
        slack_us=SECOND,
    )
    for number in range(0, 240, 4):
        sites.feed(number * 50_000, {name: rows.slice(number, 4) for name, rows in TABLES.items()})
    sites.change(6 * SECOND, change, "n2")
    sites.run()
    (entry,) = sites.takeovers
    assert not entry.refused
    return sites, entry.at_us


def decided(sql: str, until_us: int, **times: int) -> Bag:
    """The answers for which all that matters was before an instant: rows without partner wait for their windows."""
    query = parsed(sql, "abc")
    found = answer(query, TABLES, dict.fromkeys(TABLES, "ts"), heads_before_us=until_us, **times)
    waits = pa.array([True] * found.num_rows) if "b" not in found.column_names else found.column("b").is_null()
    ends = [at + WINDOW_US for at in found.column("at").cast(pa.int64()).to_pylist()]
    kept = [not wait or end < until_us for wait, end in zip(waits.to_pylist(), ends, strict=True)]
    return bag_of(found.filter(pa.array(kept, pa.bool_())))


@pytest.mark.few(2)
@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("sql", [LEFT, BOTH], ids=["left", "exists"])
def test_one_that_begins_has_the_answers_of_rows_from_then_on(sql: str, history: bool) -> None:
    change = Change((QueryPlan("new", plan_of(parsed(sql, "abc")), is_fresh=True),))
    sites, at_us = run({"q": INNER}, change, history=history)
    assert answers_of(sites, "q") == expected(parsed(INNER, "abc"), TABLES)
    wanted = decided(sql, LAST_US, start_us=at_us)
    assert len(wanted) > 3 and wanted <= answers_of(sites, "new")
    assert answers_of(sites, "new") <= bag_of(
        answer(parsed(sql, "abc"), TABLES, dict.fromkeys(TABLES, "ts"), start_us=at_us)
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("sql", [LEFT, BOTH], ids=["left", "exists"])
def test_one_that_ends_has_answered_what_was_decided(sql: str, history: bool) -> None:
    sites, at_us = run({"q": INNER, "old": sql}, Change(removed=("old",)), history=history)
    assert answers_of(sites, "q") == expected(parsed(INNER, "abc"), TABLES)
    assert answers_of(sites, "old") == decided(sql, at_us) and decided(sql, at_us)
    assert not sites.sites["n0"].ledger.matching, "nothing is kept of it"


@pytest.mark.parametrize("history", [True, False])
def test_one_that_is_replaced_by_another_keeps_its_rows_apart(history: bool) -> None:
    other = LEFT.replace("a.k = b.k", "a.k = b.k AND b.id % 3 <> 1")
    change = Change((QueryPlan("q", plan_of(parsed(other, "abc")), is_fresh=True),))
    sites, at_us = run({"q": LEFT}, change, history=history)
    begun = answers_of(sites, "q") - decided(LEFT, at_us)
    assert answers_of(sites, "q") >= decided(LEFT, at_us) + decided(other, LAST_US, start_us=at_us)
    assert begun <= bag_of(answer(parsed(other, "abc"), TABLES, dict.fromkeys(TABLES, "ts"), start_us=at_us))


@pytest.mark.parametrize("history", [True, False])
def test_one_goes_on_when_another_leaves_a_join_that_they_share(history: bool) -> None:
    sites, _ = run({"q": INNER, "left": LEFT}, Change(removed=("q",)), history=history)
    assert "left" in {query for part in sites.programs["n0"].parts for query in part.queries}
    wanted = decided(LEFT, LAST_US)
    found = answers_of(sites, "left")
    assert wanted <= found <= expected(parsed(LEFT, "abc"), TABLES)


@pytest.mark.few(2)
@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("sql", [LEFT, BOTH], ids=["left", "exists"])
def test_rows_that_wait_find_partners_of_the_next_plan(sql: str, history: bool) -> None:
    change = Change((QueryPlan("q", plan_of(parsed(sql, "abc"), hop=Hop("", Method.SM_S1))),))
    sites, at_us = run({"q": sql}, change, history=history)
    assert {part.name.partition("~")[2] for part in sites.programs["n0"].parts} == {"2"}, "the first plan is over"
    wanted, found = decided(sql, LAST_US), answers_of(sites)
    assert wanted <= found <= expected(parsed(sql, "abc"), TABLES)
    assert decided(sql, at_us) < wanted, "some are decided by the second plan"


def test_only_plans_of_what_a_query_asks_for_are_taken() -> None:
    query = parsed(BOTH, "abc")
    running = deployed(shared_joins({"q": plan_of(query)}, {}), sites=("n0", "n1"), history=True)
    assert not plan_changes(running, [QueryPlan("q", plan_of(query))])
    other = QueryPlan("q", plan_of(query, {**HOMES, "c": "n1"}))  # differs in the last inner join alone
    assert plan_changes(running, [other]) == (other,)
    with pytest.raises(InputError, match="its new plan has 'c' at site n1, and it is at n3"):
        check_change(running, Change((other,)))
    exists = QueryPlan("q", plan_of(parsed(BOTH.replace("NOT EXISTS", "EXISTS"), "abc")))
    with pytest.raises(InputError, match="the plan was made for another query of this name"):
        check_change(running, Change((exists,)))
