"""Deciding on real problems: plans of CNU and DNU run on the engine, and the controller follows what lasts."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from workloads import Scene, scene

from watersmeet.adapt.controller import Controller, ControllerState, GoOver, adaptive_query, coordinator_of
from watersmeet.adapt.decide import Mode, consider, first_plan, moved_value, watched_costs
from watersmeet.adapt.monitor import StreamObserved, TransferObserved
from watersmeet.adapt.sequences import generate, is_greedy
from watersmeet.adapt.translate import figures_of, setting_of
from watersmeet.errors import InputError
from watersmeet.metrics.events import Event, PlanDecision
from watersmeet.plan.nodes import Linear, Method
from watersmeet.planners.problem import Problem
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.topology.model import Adapt, Link, Query

MODES: tuple[Mode, ...] = ("cnu", "dnu", "planner")


def of_rates(*rates: float, graph: str = "clique", seed: int = 3, seconds: float = 6.0) -> Scene:
    """Streams at sites of their own, one key of 200 values."""
    count = len(rates)
    homes = [f"n{number}" for number in range(count)]
    found = scene(graph, rates, ["RANGE 2 SECONDS"] * count, [[1.0] * 200] * count, homes, seconds=seconds, seed=seed)
    return replace(found, topology=replace(found.topology, default_link=Link(latency_us=1_000, bandwidth_bps=50_000)))


def at_rates(problem: Problem, *rates: float) -> Problem:
    """The same problem with other rates."""
    return replace(problem, workload=replace(problem.workload, rate=np.array(rates), _memory={}))


@pytest.mark.parametrize("graph", ["star", "chain", "clique"])
def test_plans_of_the_paper_give_the_answers_of_the_oracle(graph: str) -> None:
    of = of_rates(120, 20, 60, 40, graph=graph)
    problem = of.problem("n0")
    running = first_plan(problem, "cnu")
    assert running.sequences == generate(setting_of(problem), figures_of(problem.workload))
    expected = bag_of(answer(of.query, of.tables, dict.fromkeys(of.tables, "ts")))
    assert expected.total() > 0
    sites = of.run(problem.plan(running.join))
    sites.run()
    assert sum((bag_of(table) for table in sites.answers()), Counter()) == expected


def test_placement_becomes_a_method() -> None:
    problem = of_rates(300, 10, 100).problem("n0")
    running = first_plan(problem, "dnu")
    (linear,) = running.join.sub_plans
    assert isinstance(linear, Linear) and running.sequences is not None
    methods = {(plan.head, hop.alias): hop.method for plan in linear.heads for hop in plan.hops}
    for one in running.sequences.sequences:
        for alias, at_destination in zip(one.order, one.at_destination, strict=True):
            assert methods[one.head, alias] is (Method.SP_D if at_destination else Method.SP_S)
    assert {Method.SP_D, Method.SP_S} == set(methods.values())


def test_all_modes_offer_what_is_cheaper_by_their_own_measure() -> None:
    problem = of_rates(20, 60, 100).problem("n0")
    later = at_rates(problem, 400, 60, 10)
    plans = {}
    for mode in MODES:
        running = first_plan(problem, mode, "greedy")
        same = consider(problem, mode, running, planner="greedy", coordinator="n0")
        assert same.next.join == running.join and same.offer.migration == 0
        found = consider(later, mode, running, planner="greedy", coordinator="n0")
        assert found.offer.proposed < found.offer.current and found.offer.migration > 0
        costs = watched_costs(later, mode, running)
        assert costs != watched_costs(problem, mode, running)
        plans[mode] = found.next
    assert plans["cnu"].sequences == plans["dnu"].sequences


def test_dnu_begins_anew_where_links_have_changed() -> None:
    problem = of_rates(60, 80, 100, 70).problem("n0")
    running = first_plan(problem, "dnu")
    link = replace(problem.topology.link("n0", "n3"), latency_us=2_000_000, bandwidth_bps=1e4)
    slow = replace(problem, topology=replace(problem.topology, links=(link,)))
    found = {mode: consider(slow, mode, running, coordinator="n0").next for mode in ("cnu", "dnu")}
    sequences = found["dnu"].sequences
    assert sequences is not None and sequences == found["cnu"].sequences != running.sequences
    assert all(is_greedy(setting_of(slow), figures_of(slow.workload), one) for one in sequences.sequences)


def test_what_has_to_move_is_one_window_of_what_a_site_did_not_get() -> None:
    problem = of_rates(100, 10, 10).problem("n0")
    central = first_plan(problem, "planner", "central").join
    assert moved_value(problem, central, central) == 0
    elsewhere = replace(problem, workload=replace(problem.workload, site="n1"))
    moved = moved_value(problem, central, first_plan(elsewhere, "planner", "central").join)
    flows = elsewhere.cost(first_plan(elsewhere, "planner", "central").join).flows
    expected = 2.0 * sum(flow.bytes_s for flow in flows if flow.to == "n1" and flow.flow in ("a", "c"))
    assert moved == pytest.approx(expected) and moved > 0


class Driven:
    """A controller that is told rates at even intervals."""

    def __init__(self, mode: Mode, *rates: float, min_interval: str = "20 seconds", half_life_s: float = 5.0) -> None:
        of = of_rates(*rates)
        planner = "greedy" if mode == "planner" else None
        query = Query("q", of.sql, site="n0", assume_defaults=True, planner=planner)
        adapt = Adapt(mode, min_interval=min_interval)
        watched = adaptive_query(query, of.query, adapt, half_life_s)
        assert watched is not None
        self.controller = Controller(of.topology, (watched,), half_life_s)
        self.state: ControllerState = self.controller.start(0.0)
        self.now_s, self.names = 0.0, tuple(of.tables)
        self.changes: list[tuple[float, GoOver]] = []
        self.events: list[Event] = []

    def see(self, *rates: float, seconds: float, step_s: float = 2.0, noise: float = 0.0, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            drawn = random.poisson(np.array(rates) * step_s * random.lognormal(0, noise, len(rates)))
            seen = [StreamObserved(name, int(rows), step_s) for name, rows in zip(self.names, drawn, strict=True)]
            self.state = self.controller.observe(self.state, seen, self.now_s)
            self.state, actions, events = self.controller.step(self.state, self.now_s)
            self.changes += [(self.now_s, action) for action in actions]
            self.events += events


@pytest.mark.parametrize("mode", MODES)
def test_a_change_that_lasts_is_followed_and_steady_figures_are_not(mode: Mode) -> None:
    driven = Driven(mode, 10, 100, 20)
    driven.see(10, 100, 20, seconds=60, noise=0.05)
    assert driven.changes == []
    driven.see(10, 100, 600, seconds=60, noise=0.05, seed=1)
    assert driven.changes and driven.changes[-1][0] < 100
    when, last = driven.changes[-1]
    assert last.version == len(driven.changes) + 1 == driven.state.queries["q"].version
    assert "the cost of" in last.because and "saves" in last.because
    driven.see(10, 100, 600, seconds=120, noise=0.05, seed=2)
    assert driven.changes[-1][0] == when  # nothing more while figures stay
    accepted = [event for event in driven.events if isinstance(event, PlanDecision) and event.accepted]
    assert [event.version for event in accepted] == [action.version for _, action in driven.changes]
    assert all(event.proposed < event.current for event in accepted)


@pytest.mark.parametrize("mode", ["cnu", "planner"])
def test_an_hour_of_steady_figures_changes_nothing(mode: Mode) -> None:
    driven = Driven(mode, 50, 80, 100, half_life_s=60.0)
    driven.see(50, 80, 100, seconds=3_600, step_s=30.0, noise=0.1)
    assert driven.changes == []


@pytest.mark.parametrize("swing_s", [4, 10])
def test_swings_that_averages_level_out_are_not_followed(swing_s: int) -> None:
    driven = Driven("cnu", 10, 100, 20, half_life_s=20.0)
    for number in range(40):
        driven.see(*((10, 100, 20) if number % 2 else (10, 100, 600)), seconds=swing_s, seed=number)
    assert len(driven.changes) <= 2  # of forty swings


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(24))
def test_no_seed_of_steady_figures_changes_a_plan(seed: int) -> None:
    """Rates from far apart to equal, so that plans are equally good: noise decides nothing."""
    random = np.random.default_rng(seed)
    rates = [50.0] * 3 if seed % 3 == 0 else np.exp(random.uniform(np.log(3), np.log(100), 3)).round(1).tolist()
    driven = Driven(("cnu", "planner")[seed % 2], *rates, half_life_s=60.0)
    driven.see(*rates, seconds=3_600, step_s=6.0, noise=0.1, seed=seed)
    assert driven.changes == []


def test_swings_that_do_not_pay_are_followed_until_they_are_known() -> None:
    """Each lasts for less than twice what it takes to notice it and to go over."""
    driven = Driven("cnu", 10, 100, 20, half_life_s=20.0, min_interval="1 second")
    for number in range(30):
        driven.see(*((10, 100, 600) if number % 2 else (10, 100, 20)), seconds=18, seed=number)
    assert 0 < len(driven.changes) <= 6
    assert all(when < 10 * 18 for when, _ in driven.changes)
    driven.see(10, 100, 20, seconds=240, seed=99)
    assert len(driven.changes) % 2 == 0 and driven.changes[-1][0] > 30 * 18, "what stays is followed"


def test_another_site_takes_over_with_the_plan_in_force() -> None:
    driven = Driven("cnu", 10, 100, 20)
    driven.see(10, 100, 600, seconds=60)
    assert driven.changes  # the statistics that were given are wrong
    running = driven.state.queries["q"].running
    driven.state = driven.controller.start(driven.now_s, {"q": running})  # it knows nothing but the plan
    driven.see(10, 100, 600, seconds=60, seed=1)
    before = len(driven.changes)
    assert driven.state.queries["q"].running.join == running.join
    driven.see(10, 100, 20, seconds=120, seed=2)
    assert len(driven.changes) > before
    topology = driven.controller.topology
    assert [coordinator_of(topology, alive) for alive in (None, ["n2", "n1"])] == ["n0", "n1"]
    with pytest.raises(InputError, match="no site is up"):
        coordinator_of(topology, [])


def test_links_that_slow_down_are_followed() -> None:
    driven = Driven("cnu", 60, 80, 100, 70)
    driven.see(60, 80, 100, 70, seconds=20)
    slow = [TransferObserved(("n0", "n3"), size, 3.0 + 8 * size / 1e4) for size in (100, 2_000)]
    for _ in range(20):
        driven.state = driven.controller.observe(driven.state, slow, driven.now_s)
        driven.see(60, 80, 100, 70, seconds=2)
    assert driven.changes


def test_off_is_no_adaptive_query() -> None:
    of = of_rates(10, 10, 10)
    assert adaptive_query(Query("q", of.sql), of.query, Adapt(), 5.0) is None
