"""The controller of one run with its state: sites say what they ingest, it decides, and sites go over.

CNU and DNU begin with the plan of their own greedy rule, planners with the plan that the query was given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from watersmeet.adapt.controller import (
    AdaptiveQuery,
    Controller,
    ControllerState,
    GoOver,
    QueryState,
    adaptive_query,
)
from watersmeet.adapt.decide import RunningQuery
from watersmeet.adapt.monitor import MatchesObserved, StreamObserved, TransferObserved
from watersmeet.adapt.reports import Heard
from watersmeet.cost.from_statistics import MissingStatistic
from watersmeet.metrics.events import Event
from watersmeet.plan.nodes import JoinPlan, Plan, join_plan_of
from watersmeet.planners.choose import planned_join
from watersmeet.program.site.matches import Matched
from watersmeet.query.model import JoinQuery
from watersmeet.query.windows import Range, Tumble
from watersmeet.stats.sketches import StreamSketch
from watersmeet.stats.yaml import filled
from watersmeet.topology.model import Query, Topology

HALF_LIFE_TRIGGERS = 10  # how many triggers the averages look back
_FILLING_TRIGGERS = 5  # that heads may be late by
SKETCH_TRIGGERS = 5  # how often values are looked at: sketches cost more than counts
SKETCH_ROWS = 1_000  # until so many are known of a stream, values are looked at always


class Decider(Protocol):
    """Whoever says which plans queries have; all times are event times."""

    @property
    def joins(self) -> Mapping[str, JoinPlan]:
        """The joins of the queries whose plans may change, as they are to run now."""

    def ingested(self, stream: str, rows: int, seconds: float, now_us: int, sketch: StreamSketch | None = None) -> None:
        """Take note of the rows of a stream in some seconds, and of a sketch of some of them."""

    def wants_sketch(self, stream: str, now_us: int) -> bool:
        """Whether it is time to look at the values of a stream again."""

    def transferred(self, sender: str, receiver: str, size: int, seconds: float, now_us: int) -> None:
        """Take note of how long a message was under way."""

    def matched(self, counts: Mapping[Matched, int], seconds: float, now_us: int) -> None:
        """Take note of the combinations that joins of a site have found in some seconds."""

    def decide(self, now_us: int) -> tuple[tuple[GoOver, ...], tuple[Event, ...]]:
        """Plans to go over to, and what was decided and why."""

    @property
    def reported_bytes(self) -> Mapping[str, int]:
        """What each site has reported so far to whoever decides."""

    def go_on_with(self, query: str, join: JoinPlan) -> bool:
        """A query has this plan already, from before or since another site decided; whether it can be gone on from."""

    def taken_over(self, joins: Mapping[str, JoinPlan]) -> None:
        """Another site decides from now on: it knows the plans in force, and what it observes itself."""


@dataclass
class Timetable:
    """Plans that are known beforehand: the first ones, and others by the instant at which they are asked for."""

    joins: Mapping[str, JoinPlan]
    changes: list[tuple[int, GoOver]]  # ascending
    reported_bytes: Mapping[str, int] = field(default_factory=dict)

    def ingested(self, stream: str, rows: int, seconds: float, now_us: int, sketch: StreamSketch | None = None) -> None:
        """Rows change nothing."""

    def wants_sketch(self, stream: str, now_us: int) -> bool:
        return False

    def transferred(self, sender: str, receiver: str, size: int, seconds: float, now_us: int) -> None:
        """Links change nothing."""

    def matched(self, counts: Mapping[Matched, int], seconds: float, now_us: int) -> None:
        """Nor do combinations."""

    def decide(self, now_us: int) -> tuple[tuple[GoOver, ...], tuple[Event, ...]]:
        due = tuple(change for at_us, change in self.changes if at_us <= now_us)
        self.changes = self.changes[len(due) :]
        return due, ()

    def go_on_with(self, query: str, join: JoinPlan) -> bool:
        return True

    def taken_over(self, joins: Mapping[str, JoinPlan]) -> None:
        """All sites know what is planned."""


@dataclass
class Decisions:
    """The controller of a run and its state; all times are event times."""

    controller: Controller
    state: ControllerState
    trigger_us: int
    _stepped_us: int | None = None
    _sketched_us: dict[str, int] = field(default_factory=dict)

    @property
    def joins(self) -> dict[str, JoinPlan]:
        """The joins of the queries whose plans may change, as they are to run now."""
        return {name: state.running.join for name, state in self.state.queries.items()}

    @property
    def reported_bytes(self) -> Mapping[str, int]:
        """What each site has reported so far to whoever decides."""
        return self.state.reported_bytes

    def go_on_with(self, query: str, join: JoinPlan) -> bool:
        """A query has this plan already, from before or since another site decided; whether it can be gone on from."""
        known = self.state.queries.get(query)
        if known is None:
            return False
        if known.running.join.sub_plans != join.sub_plans:
            running = self.controller.going_on(query, join)
            if running is None:
                return False
            self.state = replace(self.state, queries={**self.state.queries, query: replace(known, running=running)})
        return True

    def taken_over(self, joins: Mapping[str, JoinPlan]) -> None:
        """Another site decides from now on: it knows the plans in force, and what it observes itself."""
        running = {
            name: self.controller.going_on(name, join) or self.state.queries[name].running
            for name, join in joins.items()
            if name in self.state.queries
        }
        versions = {name: state.version for name, state in self.state.queries.items()}
        begun = self.controller.start(0.0, running)
        queries = {name: replace(state, version=versions[name]) for name, state in begun.queries.items()}
        self.state = replace(begun, queries=queries, reported_bytes=self.state.reported_bytes)
        self._sketched_us.clear()

    def begin(self, topology: Topology, query: Query, parsed: JoinQuery, plan: Plan) -> bool:
        """A query begins, or asks for something else from now on; whether its plan may change."""
        self.forget(query.name)
        found = _watched(topology, query, parsed, plan, self.controller.half_life_s)
        if found is None:
            return False
        controller = self.controller
        known = _with_query(controller.topology, topology, query)
        self.controller = replace(controller, topology=known, queries=(*controller.queries, found[0]))
        try:
            running = found[1] or self.controller.going_on(query.name, join_plan_of(plan))
        except MissingStatistic:
            running = None
        if running is None:
            self.forget(query.name)
            return False
        self.state = replace(self.state, queries={**self.state.queries, query.name: QueryState(running)})
        return True

    def forget(self, query: str) -> None:
        """A query has ended or asks for something else now: its plan stays, and what its joins found counts no more."""
        watched = tuple(one for one in self.controller.queries if one.query.name != query)
        self.controller = replace(self.controller, queries=watched)
        state = self.state
        self.state = replace(
            state,
            monitor=state.monitor.without_query(query),
            queries={name: query_state for name, query_state in state.queries.items() if name != query},
            corrected={key: times for key, times in state.corrected.items() if key[0] != query},
        )

    def ingested(self, stream: str, rows: int, seconds: float, now_us: int, sketch: StreamSketch | None = None) -> None:
        """Take note of the rows of a stream in some seconds, and of a sketch of some of them."""
        if sketch is not None:
            self._sketched_us[stream] = now_us
        observed = StreamObserved(stream, rows, seconds, sketch)
        self.state = self.controller.observe(self.state, [observed], now_us / 1e6)

    def wants_sketch(self, stream: str, now_us: int) -> bool:
        """Whether it is time to look at the values of a stream again."""
        before = self._sketched_us.get(stream)
        is_due = before is None or now_us - before >= SKETCH_TRIGGERS * self.trigger_us
        monitor = self.state.monitor
        return is_due or monitor.sketched_rows(stream) < SKETCH_ROWS or monitor.is_moving(now_us / 1e6)

    def transferred(self, sender: str, receiver: str, size: int, seconds: float, now_us: int) -> None:
        """Take note of how long a message was under way."""
        observed = TransferObserved((sender, receiver), size, seconds)
        self.state = self.controller.observe(self.state, [observed], now_us / 1e6)

    def matched(self, counts: Mapping[Matched, int], seconds: float, now_us: int) -> None:
        """Take note of the combinations that joins of a site have found in some seconds."""
        watched = {query.query.name: query for query in self.controller.queries}
        seen = []
        for what, rows in counts.items():
            if what.query in watched and what.query in self.state.queries:
                scans = self.state.queries[what.query].running.join.scans
                known = {scan.alias: scan for scan in scans}
                if not set(what.aliases) <= known.keys():
                    continue
                lengths = [window.window_us for scan in scans if isinstance(window := scan.window, Range | Tumble)]
                if len(lengths) < len(scans):
                    continue  # windows that count rows fill at their own pace
                filling_s = (max(lengths) + _FILLING_TRIGGERS * self.trigger_us) / 1e6
                streams = tuple(known[alias].stream for alias in what.aliases)
                seen.append(MatchesObserved(what, streams, rows, seconds, filling_s))
        if seen:
            self.state = self.controller.observe(self.state, seen, now_us / 1e6)

    def decide(self, now_us: int) -> tuple[tuple[GoOver, ...], tuple[Event, ...]]:
        """Once a trigger: plans to go over to, and what was decided and why."""
        if self._stepped_us is not None and now_us - self._stepped_us < self.trigger_us:
            return (), ()
        self._stepped_us = now_us
        self.state, changes, events = self.controller.step(self.state, now_us / 1e6)
        return changes, events

    # -- where every site has a part of its own (`adapt.exchange`)

    @property
    def figures(self) -> dict[str, float]:
        """A few numbers of what is observed here that differ where plans might have to."""
        return self.state.monitor.figures(self.controller.topology)

    def has_moved(self, reported: Mapping[str, float]) -> bool:
        """Whether figures have moved since some were reported."""
        return self.controller.has_moved(self.state.monitor, reported, self.figures)

    def begin_anew(self) -> None:
        """This site decides from now on: costs are to be computed soon."""
        self.state = replace(self.state, looked_s=None)

    def decide_for(self, heard: Heard, now_us: int) -> tuple[tuple[GoOver, ...], tuple[Event, ...]]:
        """The same by what sites have reported."""
        state, given = replace(self.state, looked_s=now_us / 1e6), self.controller.topology
        seen = self.controller.with_observed(state, heard.stats(given.stats), heard.topology(given))
        self.state, changes, events = self.controller.decide(state, seen, now_us / 1e6)
        return changes, events


def _with_query(before: Topology, now: Topology, query: Query) -> Topology:
    """A topology with a query of another one, and the streams and statistics that it lacks."""
    known = {source.name for source in before.sources}
    return replace(
        before,
        queries=(*(one for one in before.queries if one.name != query.name), query),
        streams=(*before.streams, *(stream for stream in now.streams if stream.name not in known)),
        tables=(*before.tables, *(table for table in now.tables if table.name not in known)),
        stats=filled(before.stats, now.stats),
    )


def decisions_of(
    topology: Topology, asked: Mapping[str, tuple[Query, JoinQuery, Plan]], trigger_us: int
) -> Decisions | None:
    """What decides for the queries that ask for it and that planners can plan; None if there are none.

    Of an outer join, what is decided on is the first of its inner joins; the others keep their plans.
    """
    half_life_s = HALF_LIFE_TRIGGERS * trigger_us / 1e6
    found = (_watched(topology, *entry, half_life_s) for entry in asked.values())
    watched = [entry for entry in found if entry is not None]
    running = {query.query.name: plan for query, plan in watched if plan is not None}
    if not watched:
        return None
    controller = Controller(topology, tuple(query for query, _ in watched), half_life_s)
    try:
        return Decisions(controller, controller.start(0.0, running), trigger_us)
    except MissingStatistic:
        return None


def _watched(
    topology: Topology, query: Query, parsed: JoinQuery, plan: Plan, half_life_s: float
) -> tuple[AdaptiveQuery, RunningQuery | None] | None:
    """A query whose plan may change, and its plan if a planner goes on from it; None if its plan stays."""
    join, planned = join_plan_of(plan), planned_join(parsed)
    found = adaptive_query(query, planned, topology.adapt_of(query), half_life_s) if planned is not None else None
    derived = {stream.name for stream in topology.streams if stream.is_derived}
    unknown = {name for name in derived if topology.stats.stream(name).rate is None}  # nobody observes their rates
    is_fixed = any(scan.stream in unknown for scan in join.scans)
    if found is None or is_fixed or len(set(join.homes)) == 1:
        return None
    return found, RunningQuery(join, found.planner) if found.mode == "planner" else None
