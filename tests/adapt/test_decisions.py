"""Queries that begin, are replaced and end while plans are decided on."""

from dataclasses import replace

import numpy as np
import pytest
from adapt.test_controller import MODES, of_rates

from watersmeet.adapt.controller import GoOver
from watersmeet.adapt.decide import Mode
from watersmeet.adapt.decisions import Decisions, decisions_of
from watersmeet.adapt.monitor import MatchesObserved, StreamObserved
from watersmeet.planners.choose import choose
from watersmeet.program.site.matches import Matched
from watersmeet.stats.model import Stats
from watersmeet.topology.model import Adapt, Query, Topology

TRIGGER_US = 500_000
OF = of_rates(10, 100, 20)


def query_named(name: str, mode: Mode, site: str = "n0") -> Query:
    planner = "greedy" if mode == "planner" else None
    adapt = Adapt(mode, min_interval="20 seconds")
    return Query(name, OF.sql, site=site, assume_defaults=True, planner=planner, adapt=adapt)


def deciding_on(*queries: Query, topology: Topology = OF.topology) -> Decisions:
    asked = {one.name: (one, OF.query, choose(topology, one, OF.query).plan) for one in queries}
    found = decisions_of(topology, asked, TRIGGER_US)
    assert found is not None
    return found


class Run:
    """Rates that are told once a trigger."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions, self.now_us, self.changes = decisions, 0, list[GoOver]()
        self.random = np.random.default_rng(1)

    def see(self, *rates: float, seconds: float) -> None:
        for _ in range(round(seconds * 1e6 / TRIGGER_US)):
            self.now_us += TRIGGER_US
            for name, rate in zip(OF.tables, rates, strict=True):
                rows = int(self.random.poisson(rate * TRIGGER_US / 1e6))
                self.decisions.ingested(name, rows, TRIGGER_US / 1e6, self.now_us)
            self.changes += self.decisions.decide(self.now_us)[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_query_that_begins_later_gets_other_plans_too(mode: Mode) -> None:
    run = Run(deciding_on(query_named("q", mode)))
    run.see(10, 100, 20, seconds=30)
    late = query_named("late", mode, site="n1")
    first = deciding_on(late).joins["late"]
    assert run.decisions.begin(OF.topology, late, OF.query, first)
    assert run.decisions.joins["late"] == first and set(run.decisions.joins) == {"q", "late"}
    run.see(10, 100, 20, seconds=30)
    assert run.changes == [], "both have the plan for these rates"
    run.see(10, 100, 600, seconds=60)
    assert {one.query for one in run.changes} == {"q", "late"}
    assert run.decisions.joins["late"] != first


def test_a_query_of_streams_that_nobody_knew_is_decided_on_when_they_are_seen() -> None:
    q = query_named("q", "planner")
    known = deciding_on(q).joins["q"]
    (last, *_) = reversed(OF.topology.streams)
    fewer = replace(
        OF.topology,
        streams=tuple(one for one in OF.topology.streams if one != last),
        stats=Stats({name: one for name, one in OF.topology.stats.streams.items() if name != last.name}),
    )
    decisions = deciding_on(q)
    decisions.forget("q")
    decisions.controller = replace(decisions.controller, topology=fewer)
    assert decisions.joins == {}
    assert decisions.begin(replace(OF.topology, stats=fewer.stats), q, OF.query, known)
    run = Run(decisions)
    run.see(10, 100, 20, seconds=20)
    run.see(10, 100, 600, seconds=60)
    assert run.changes and run.changes[-1].query == "q"


def test_what_stays_as_it_is_is_not_watched() -> None:
    decisions = deciding_on(query_named("q", "cnu"))
    plan = decisions.joins["q"]
    assert not decisions.begin(OF.topology, replace(query_named("q", "cnu"), adapt=Adapt()), OF.query, plan)
    assert decisions.joins == {}, "it was replaced by one without adapt"
    central = replace(query_named("q", "cnu"), adapt=Adapt("planner"), planner="pmjoin")
    tree = deciding_on(central).joins["q"]
    assert decisions.begin(OF.topology, central, OF.query, tree)
    assert not decisions.begin(OF.topology, query_named("q", "cnu"), OF.query, tree), "CNU needs sequences"
    assert decisions.joins == {}


def test_what_joins_of_a_replaced_query_have_found_counts_no_more() -> None:
    decisions = deciding_on(query_named("q", "planner"))
    aliases = tuple(sorted(scan.alias for scan in decisions.joins["q"].scans)[:2])
    what = Matched("q", aliases, "")
    names = tuple(list(OF.tables)[:2])
    for number in range(1, 30):
        seen = [StreamObserved(name, 50, 1.0) for name in OF.tables]
        found = MatchesObserved(what, names, 500, 1.0, 5.0)
        decisions.state = decisions.controller.observe(decisions.state, [*seen, found], float(number))
    assert what in decisions.state.monitor.known_matches
    decisions.begin(OF.topology, query_named("q", "planner"), OF.query, decisions.joins["q"])
    assert decisions.state.monitor.known_matches == {}
