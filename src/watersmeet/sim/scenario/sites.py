"""Runs a topology on simulated sites: the programs that Spark runs, in virtual time, over the links of the topology.

Rows arrive at the pace of their event times. Every site has a micro-batch at every multiple of the trigger at which
something has come; it takes no time by itself, so delays are those of triggers, links and watermarks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from watersmeet import __version__
from watersmeet.adapt.decisions import Decider, decisions_of
from watersmeet.cost.costs import DEFAULT_UNITS, Cost
from watersmeet.cost.price import price
from watersmeet.errors import InputError
from watersmeet.metrics.bus import Reader
from watersmeet.metrics.describe import (
    central_bytes,
    link_events,
    program_event,
    query_event,
    shipping_event,
    topology_event,
)
from watersmeet.metrics.events import (
    Event,
    MicroBatchCompleted,
    PlanChangeProposed,
    PlanInForce,
    RunEnded,
    RunStarted,
)
from watersmeet.metrics.expected import costs_in_force, planned_rates
from watersmeet.metrics.traffic import LinkTraffic
from watersmeet.plan.explain import explain_text
from watersmeet.plan.nodes import join_plan_of, with_join
from watersmeet.planners.choose import Chosen
from watersmeet.planners.problem import Problem
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.program.site.agreement import DecidedBy
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.program.site.deployment import first_joins
from watersmeet.program.site.ledger import SiteLedger, failed_counts
from watersmeet.program.site.matches import matches_since
from watersmeet.program.site.program import SiteProgram
from watersmeet.query.model import Output
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.sites_oracle import StreamRows, compare, compare_bags, due_outputs
from watersmeet.sim.scenario.sites_outcome import AnswerDelays, QueryFigures, SiteFigures, SitesOutcome, SitesSummary
from watersmeet.sim.scenario.sites_plans import PlannedQueries, PlannedQuery, plan_queries
from watersmeet.sim.scenario.sources import check_source, first_part, read_arrivals, read_table
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import RETRY_US, SimulatedSite
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Table, Topology

_INSIST_TRIGGERS = 10  # after which a site asks for the promises of others
_SLACK_TRIGGERS = 2  # event time that sites may go on for while they agree on a change

Progress = Callable[[int, int], object]  # rows that have arrived, of how many


@dataclass(frozen=True, slots=True)
class SiteCrash:
    """A site crashes, and comes back with what is on its disk."""

    site: str
    at_us: int  # since the simulation began
    down_us: int


def simulate_sites(
    scenario: SitesScenario,
    *,
    progress: Progress = lambda done, total: None,
    events: Reader | None = None,
    decider: Decider | None = None,
    crashes: Sequence[SiteCrash] = (),
    form: DecidedBy = DecidedBy.POINT_TO_POINT,
    planned: PlannedQueries | None = None,
) -> SitesOutcome:
    """Run all queries of a topology to their end, in one deployment; `decider` in place of what `adapt` says.

    `planned` is what `plan_queries` gave for the scenario.
    """
    topology = replace(scenario.topology, batch_interval_us=scenario.trigger_us)
    if not topology.queries:
        raise InputError("there is nothing to simulate: the topology has no queries")
    for one in topology.tables:
        check_source(one)
    plans = planned or plan_queries(scenario)
    topology, asked = plans.topology, dict(plans.selects)
    read = sorted({source.stream for planned in asked.values() for source in planned.parsed.sources} - plans.derived)
    tables = {name: read_table(table) for name in read if isinstance(table := topology.stream(name), Table)}
    used = [name for name in read if name not in tables]
    streams, epoch_us = _read(scenario, used)
    by_query = {name: (planned.query, planned.typed, planned.chosen.plan) for name, planned in asked.items()}
    decisions = decider or decisions_of(topology, by_query, scenario.trigger_us)
    if decisions is not None:
        for name, join in decisions.joins.items():
            chosen = asked[name].chosen
            asked[name] = replace(asked[name], chosen=replace(chosen, plan=with_join(chosen.plan, join)))
    report = _Report(
        events,
        topology,
        epoch_us,
        scenario.trigger_us,
        asked,
        [output.target.name for output in plans.answered],
        decisions,
    )
    longest_us = max(topology.link(a, b).latency_us for a in topology.site_names for b in topology.site_names)
    sites = SimulatedSites(
        {name: planned.chosen.plan for name, planned in asked.items()},
        {name: streams[name].event_time for name in used},
        seed=scenario.seed,
        model_of=lambda a, b: _model(topology, a, b),
        delays_us={name: streams[name].delay_us for name in used},
        tables=tables,  # whose files do not change in virtual time, so they are read once
        interval_us=scenario.trigger_us,
        aligned=True,
        completed=report.completed,
        start_us={name: planned.query.start_us for name, planned in asked.items()},
        errors={name: planned.query.errors for name, planned in asked.items()},
        # Readers acknowledge when they have completed a micro-batch: nothing is lost that would be sent again sooner.
        retry_us=RETRY_US + 2 * (scenario.trigger_us + longest_us),
        sites=topology.site_names if decisions is not None else (),
        changes=decisions is not None,
        slack_us=_SLACK_TRIGGERS * scenario.trigger_us + 2 * longest_us,
        observer=None if decisions is None else report,
        form=form,
        distance_of=lambda a, b: topology.link(a, b).distance,
        insist_us=_INSIST_TRIGGERS * scenario.trigger_us + 4 * longest_us,
    )
    for crash in crashes:
        sites.crash(crash.site, crash.at_us, crash.down_us)
    report.sites = sites
    report.start({name: site.engine.program for name, site in sorted(sites.sites.items())})
    _feed(sites, streams, scenario.trigger_us, progress)
    if plans.is_drained:
        sites.drain()
    virtual_us = sites.kernel.now_us
    report.end(virtual_us)
    tuples = sum(stream.rows.num_rows for stream in streams.values())
    answers = {output.target.name: _answers(sites, plans, output, report) for output in plans.answered}
    expected = due_outputs(plans.outputs, plans.starts_us, streams, tables) if plans.is_drained else {}
    found = {
        output.target.name: _figures(plans, output, streams, tables, expected, *answers[output.target.name])
        for output in plans.answered
    }
    summary = SitesSummary(
        seed=scenario.seed,
        trigger_us=scenario.trigger_us,
        tuples=tuples,
        queries={name: figures for name, (figures, _) in found.items()},
        sites={name: _site_figures(site, used) for name, site in sorted(sites.sites.items())},
        traffic=_traffic(topology, sites, asked, scenario.trigger_us),
        virtual_us=virtual_us,
    )
    delays_us = {name: delays for name, (_, delays) in found.items()}
    first = {name: join_plan_of(planned.chosen.plan) for name, planned in asked.items()}
    last = {} if decisions is None else dict(decisions.joins)
    tables = {name: table for name, (table, _) in answers.items()}
    return SitesOutcome(summary, tables, delays_us, first, {**first, **last})


# Streams


def _read(scenario: SitesScenario, names: list[str]) -> tuple[dict[str, StreamRows], int]:
    """Streams with the micro-batch of each row, and the time since 1970 at which virtual time begins."""
    read = {name: read_arrivals(scenario.topology.stream(name), scenario.most_rows) for name in names}
    firsts = [int(arrivals_us[0]) for _, arrivals_us in read.values() if len(arrivals_us)]
    if not firsts:
        raise InputError("there is nothing to simulate: no stream has a tuple with an event time")
    if scenario.share is not None:
        read = first_part(read, scenario.share)
    epoch_us = min(firsts) // scenario.trigger_us * scenario.trigger_us
    streams = {}
    for name, (rows, arrivals_us) in read.items():
        stream, since_us = scenario.topology.stream(name), arrivals_us - epoch_us
        batches = since_us // scenario.trigger_us
        streams[name] = StreamRows(rows, stream.event_time_column, stream.watermark_us, since_us, batches)
    return streams, epoch_us


def _feed(sites: SimulatedSites, streams: Mapping[str, StreamRows], trigger_us: int, progress: Progress) -> None:
    """Hand over the rows of each interval right before its end, and run until nothing is left to do."""
    slices: dict[int, dict[str, pa.Table]] = {}
    for name, stream in streams.items():
        found = np.unique(stream.batches, return_index=True, return_counts=True)
        for batch, first, count in zip(*(numbers.tolist() for numbers in found), strict=True):
            slices.setdefault(batch, {})[name] = stream.rows.slice(first, count)
    total, done = sum(stream.rows.num_rows for stream in streams.values()), 0
    for batch, tables in sorted(slices.items()):
        end_us = (batch + 1) * trigger_us
        sites.feed(end_us - 1, tables)
        sites.kernel.run(end_us)
        done += sum(table.num_rows for table in tables.values())
        progress(done, total)
    sites.kernel.run()


def _model(topology: Topology, a: str, b: str) -> LinkModel:
    link = topology.link(a, b)
    return LinkModel(latency_us=link.latency_us, bandwidth_bps=link.bandwidth_bps)


# What happens, and what comes of it


@dataclass
class _Report:
    """Notes when each micro-batch was completed, and reports the events of the run in virtual time since 1970."""

    events: Reader | None
    topology: Topology
    epoch_us: int
    trigger_us: int
    asked: Mapping[str, PlannedQuery]  # by SELECT
    queries: Sequence[str]
    decisions: Decider | None = None
    sites: SimulatedSites | None = None
    completed_us: dict[tuple[str, int], int] = field(default_factory=dict)  # by site and number
    _reported: dict[str, SiteLedger] = field(default_factory=dict)  # by site, as of the last report
    _programs: dict[str, SiteProgram] = field(default_factory=dict)  # by site, that were reported
    _published_changes: int = 0  # changes of plans that were published
    _chosen: dict[str, Chosen] = field(default_factory=dict)  # by SELECT, what is in force
    _problems: dict[str, Problem | None] = field(default_factory=dict)  # by SELECT, what was decided on last
    _coordinator: str = ""  # the site that decides
    _log: int = 0  # changes that it knows the outcome of
    _sketches: dict[str, StreamSketch] = field(default_factory=dict)  # by stream, of the micro-batch that runs
    _observed_us: dict[str, int] = field(default_factory=dict)  # by stream, until when its rows were counted
    _matched_us: dict[str, int] = field(default_factory=dict)  # by site, until when combinations were

    def start(self, programs: Mapping[str, SiteProgram]) -> None:
        self._publish(0, RunStarted(tuple(programs), tuple(self.queries), __version__))
        if self.events is None:
            return
        self._publish(0, topology_event(self.topology))
        self._chosen = {name: planned.chosen for name, planned in self.asked.items()}
        self._publish_expected(0, programs)
        for name, planned in self.asked.items():
            self._publish(0, query_event(self.topology, name, planned.chosen.plan))
            expected = None if planned.chosen.cost is None else planned.chosen.cost.bytes_s
            plan = PlanInForce(name, planned.chosen.planner, explain_text(planned.chosen.plan), expected, 1)
            self._publish(0, plan)

    def _publish_expected(self, now_us: int, programs: Mapping[str, SiteProgram]) -> None:
        """Say what the plans in force are expected to ship."""
        rates = planned_rates(self.topology, self._chosen)
        costs = costs_in_force(self._chosen, programs.values(), lambda chosen: _expected_cost(chosen, self.trigger_us))
        shipped = shipping_event(rates, costs, programs)
        if shipped is not None:
            self._publish(now_us, shipped)

    def completed(self, site: SimulatedSite, before: SiteLedger) -> None:
        now_us, ledger, program = site.kernel.now_us, site.ledger, site.engine.program
        self.completed_us[site.name, ledger.number] = now_us
        if self.decisions is not None:
            self._observe(site, before)
            self._decide(now_us)
        if self.events is None:
            return
        if self._programs.get(site.name) is not program:
            self._programs[site.name] = program
            self._publish(now_us, program_event(program))
            if self._published_changes and self.sites is not None:
                self._publish_expected(now_us, {name: site.engine.program for name, site in self.sites.sites.items()})
        segments = list(ledger.segments)
        found = before.ingested
        names = sorted({ingested.stream for ingested in found})
        queries = sorted({finish.query for _, finish in program.finishes})
        self._publish(
            now_us,
            MicroBatchCompleted(
                site=site.name,
                batch=ledger.number,
                seconds=0.0,
                phases={},
                rows_in={name: sum(ingested.rows for ingested in found if ingested.stream == name) for name in names},
                late={name: sum(ingested.late for ingested in found if ingested.stream == name) for name in names},
                malformed={
                    name: sum(ingested.malformed for ingested in found if ingested.stream == name) for name in names
                },
                null_keys=sum(sum(ingested.null_keys.values()) for ingested in found),
                failed=failed_counts(before, ledger),
                answers={query: ledger.rows_out.get(query, 0) - before.rows_out.get(query, 0) for query in queries},
                watermarks=site.engine.watermarks(ledger),
                state_rows=sum(segment.rows for segment in segments),
                state_bytes=sum(segment.bytes for segment in segments),
                segments=len(segments),
                central_bytes=central_bytes(self._reported.get(site.name, SiteLedger()), ledger),
            ),
        )
        self._reported[site.name] = ledger
        for counts in link_events(program, ledger):
            self._publish(now_us, counts)

    def wants_sketch(self, stream: str, now_us: int) -> bool:
        return self.decisions is not None and self.decisions.wants_sketch(stream, now_us)

    def sketched(self, stream: str, sketch: StreamSketch, now_us: int) -> None:
        self._sketches[stream] = sketch

    def transferred(self, sender: str, receiver: str, size: int, seconds: float, now_us: int) -> None:
        if self.decisions is not None:
            self.decisions.transferred(sender, receiver, size, seconds, now_us)

    def _observe(self, site: SimulatedSite, before: SiteLedger) -> None:
        """Let the controller know of the rows of a micro-batch, and of the time in which they have come.

        That is more than a trigger where rows have waited for a change of plans or a site was down.
        """
        assert self.decisions is not None, "plans may change"
        now_us = site.kernel.now_us
        for scan in site.engine.program.sources:
            rows = sum(ingested.rows for ingested in before.ingested if ingested.stream == scan.stream)
            since_us = self._observed_us.get(scan.stream, now_us - self.trigger_us)
            if now_us > since_us and (rows or before.hold_us is None):
                sketch = self._sketches.pop(scan.stream, None)
                self.decisions.ingested(scan.stream, rows, (now_us - since_us) / 1e6, now_us, sketch)
                self._observed_us[scan.stream] = now_us
        since_us = self._matched_us.get(site.name, now_us - self.trigger_us)
        if now_us > since_us and before.hold_us is None:
            counts = matches_since(site.engine.program, before.matched, site.ledger.matched)
            if counts:
                self.decisions.matched(counts, (now_us - since_us) / 1e6, now_us)
        self._matched_us[site.name] = now_us

    def _decide(self, now_us: int) -> None:
        """Have sites go over to the plans that the controller decides on."""
        assert self.decisions is not None and self.sites is not None, "plans may change"
        self._follow_coordinator()
        reported = self.decisions.reported_bytes
        changes, events = self.decisions.decide(now_us)
        for name, total in self.decisions.reported_bytes.items():
            size = total - reported.get(name, 0)
            if size and name != self._coordinator and self.sites.sites[name].is_up:
                self.sites.sites[name].report(self._coordinator, size)
        for event in events:
            self._publish(now_us, event)
        for change in changes:
            asked = self.asked[change.query]
            plan = with_join(asked.chosen.plan, change.join)
            wanted = QueryPlan(
                *(change.query, plan, asked.query.start_us, asked.query.errors),
                planner=asked.chosen.planner,
                expected=change.expected,
            )
            self._problems[change.query] = change.problem
            self.sites.change(now_us, Change((wanted,), reason=change.because), self._coordinator)
            self._publish(now_us, PlanChangeProposed((change.query,), change.because, 0))
        takeovers = self.sites.changes_after(self._published_changes)
        for takeover in takeovers:
            for taken in () if takeover.refused else takeover.change.plans:
                text = explain_text(taken.plan)
                self._publish(now_us, PlanInForce(taken.query, taken.planner, text, None, takeover.revision))
                first = self.asked[taken.query].chosen
                problem = self._problems.get(taken.query) or first.problem
                self._chosen[taken.query] = replace(first, plan=taken.plan, problem=problem)
        self._published_changes += len(takeovers)

    def _follow_coordinator(self) -> None:
        """The first site that is up decides; what it knows is lost with it, but for the plans in force."""
        assert self.decisions is not None and self.sites is not None, "plans may change"
        coordinator = next(name for name, site in sorted(self.sites.sites.items()) if site.is_up)
        site = self.sites.sites[coordinator]
        versions = site.engine.versions(site.ledger)
        joins = first_joins(versions.deployment)
        if coordinator != self._coordinator:
            if self._coordinator:
                self.decisions.taken_over(joins)
            self._coordinator, self._log = coordinator, versions.changes
        elif versions.changes > self._log and versions.proposal is None and not versions.queue:
            self._log = versions.changes  # what was asked for is in force now, or was called off
            for query, join in joins.items():
                self.decisions.go_on_with(query, join)

    def end(self, now_us: int) -> None:
        self._publish(now_us, RunEnded("completed"))

    def _publish(self, now_us: int, event: Event) -> None:
        if self.events is not None:
            self.events((self.epoch_us + now_us) / 1e6, event)


def _answers(sites: SimulatedSites, plans: PlannedQueries, output: Output, report: _Report) -> tuple[pa.Table, Longs]:
    """The answers of a query as they were delivered, and when each was."""
    first = plans.selects[output.branches[0][0]]
    delivered = sites.sites[first.site].answers.get(output.target.name, {}) if first.site in sites.sites else {}
    tables = [first.schema.empty_table(), *(table.cast(first.schema) for _, table in sorted(delivered.items()))]
    times = [np.full(table.num_rows, report.completed_us[first.site, n]) for n, table in sorted(delivered.items())]
    return pa.concat_tables(tables), np.concatenate([np.empty(0, np.int64), *times])


def _figures(
    plans: PlannedQueries,
    output: Output,
    streams: Mapping[str, StreamRows],
    tables: Mapping[str, pa.Table],
    expected: Mapping[str, pa.Table],
    answers: pa.Table,
    delivered_us: Longs,
) -> tuple[QueryFigures, Longs]:
    """What a query got; when answers over views and of outer joins were due is not known."""
    first, delays_us = plans.selects[output.branches[0][0]], np.empty(0, np.int64)
    if plans.is_direct(output):
        rest = (first.query.start_us, answers, delivered_us, tables)
        checked, delays_us = compare(first.parsed, first.chosen.plan, streams, *rest, is_drained=plans.is_drained)
    else:
        checked = compare_bags(expected[output.target.name], answers)
    delays = AnswerDelays.of(delays_us)
    return QueryFigures(first.site, first.chosen.planner, answers.num_rows, delays, checked), delays_us


def _site_figures(site: SimulatedSite, streams: Sequence[str]) -> SiteFigures:
    states = [state for name, state in site.ledger.streams.items() if name in streams]
    rows_in, late = sum(state.rows for state in states), sum(state.late for state in states)
    return SiteFigures(rows_in, late, site.micro_batches, site.peak_rows)


def _traffic(
    topology: Topology, sites: SimulatedSites, asked: Mapping[str, PlannedQuery], trigger_us: int
) -> LinkTraffic:
    """Bytes by link and purpose, with what plans foresaw for as many rows at the rates that are known."""
    ran = {name: (site.engine.program, site.ledger) for name, site in sites.sites.items()}
    read = {name: state.rows for _, ledger in ran.values() for name, state in ledger.streams.items()}
    rates = {name: rate.value for name in read if (rate := topology.stats.stream(name).rate) is not None}
    seconds = sum(read[name] for name in rates) / sum(rates.values()) if any(rates.values()) else 0.0
    joins = sorted({part.name for program, _ in ran.values() for part in program.parts})
    found = {join: _expected_cost(asked[join].chosen, trigger_us) for join in joins if join in asked}
    costs = {join: cost for join, cost in found.items() if cost is not None}
    # What was foreseen is for the first plans: there is no such figure where others have followed.
    return LinkTraffic.of(topology, ran, costs if seconds and not sites.takeovers else None, seconds)


def _expected_cost(chosen: Chosen, trigger_us: int) -> Cost | None:
    if chosen.problem is None:
        return None
    problem = chosen.problem
    interval_s = trigger_us / 1e6
    plan = join_plan_of(chosen.plan)
    return price(plan, problem.workload, problem.topology, DEFAULT_UNITS, interval_s, problem.reaction_s)
