"""The coordinator of plans that change: observations in, "this query goes over to that plan because" out.

Nothing here runs or waits: a driver hands in what sites have observed and the time, and carries out what `step` says.
All state is one value, so that another site can take over with it, or with what it observes itself from then on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watersmeet.adapt.decide import Mode, RunningQuery, consider, first_plan, watched_costs
from watersmeet.adapt.monitor import MonitorState, Observation, observe, statistics, with_links
from watersmeet.adapt.reports import Report, gathered
from watersmeet.adapt.translate import figures_of, sequences_of
from watersmeet.adapt.trigger import Policy, TriggerState, Verdict, decided, judge, started, watch
from watersmeet.cost.from_statistics import MissingStatistic
from watersmeet.errors import InputError
from watersmeet.metrics.events import Event, PlanDecision
from watersmeet.plan.nodes import JoinPlan
from watersmeet.planners.choose import problem_for
from watersmeet.planners.problem import NoPlan, Objective, Problem
from watersmeet.program.site.changes import Expected
from watersmeet.program.site.matches import Matched
from watersmeet.query.model import JoinQuery
from watersmeet.stats.model import Number, Stats
from watersmeet.stats.observe import filter_shares
from watersmeet.texts import cost_text
from watersmeet.topology.model import Adapt, Query, Topology

SETTLE_HALF_LIVES = 3  # after which averages have followed a change
_REACTION_HALF_LIVES = 0.5  # in which a change is noticed, confirmed and agreed on
_LEAST_PHASE_HALF_LIVES = 12.0  # that figures are expected to last, before anything is known
_LOOK_HALF_LIVES = 6  # after which costs are computed again although no figure has changed much
_LOOK_SHARE = 0.25  # of the threshold: figures that have changed less cannot have changed a cost by all of it
_LOOK_ERRORS = 2.0  # standard errors beyond that, which chance explains
_FAR = 2.5  # times as many combinations as values tell, or as few, are believed
_STILL_FAR = 1.5  # and so long as they are so many times as many
_FEWEST_MATCHES = 1e-3  # of those that values tell, if none are found
HOLD_STEPS = 4  # for which a decision is put off while figures move


@dataclass(frozen=True, slots=True)
class AdaptiveQuery:
    """A query whose plan may change."""

    query: Query
    parsed: JoinQuery
    mode: Mode
    policy: Policy

    @property
    def planner(self) -> str:
        return self.query.planner or "auto"


def adaptive_query(query: Query, parsed: JoinQuery, adapt: Adapt, half_life_s: float) -> AdaptiveQuery | None:
    """A query with its settings; None if its plan stays."""
    match adapt.mode:
        case "cnu" | "dnu" | "planner" as mode:
            policy = Policy(
                adapt.threshold,
                adapt.min_interval_us / 1e6,
                expected_phase_s=max(Policy().expected_phase_s, _LEAST_PHASE_HALF_LIVES * half_life_s),
                settle_s=SETTLE_HALF_LIVES * half_life_s,
                reaction_s=_REACTION_HALF_LIVES * half_life_s,
            )
            return AdaptiveQuery(query, parsed, mode, policy)
        case _:
            return None


@dataclass(frozen=True)
class QueryState:
    """The plan in force, its version, and what the trigger remembers; no trigger before figures are known."""

    running: RunningQuery
    version: int = 1
    trigger: TriggerState | None = None


@dataclass(frozen=True)
class ControllerState:
    """All that the coordinator knows."""

    monitor: MonitorState
    queries: Mapping[str, QueryState] = field(default_factory=dict)
    looked: Mapping[str, float] = field(default_factory=dict)  # the figures for which costs were last computed
    looked_s: float | None = None
    held: int = 0  # steps that a decision has been put off for
    reports: Mapping[str, Report] = field(default_factory=dict)  # by stream
    reported_bytes: Mapping[str, int] = field(default_factory=dict)  # by site, so far
    corrected: Mapping[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)  # by query and aliases


@dataclass(frozen=True, slots=True)
class GoOver:
    """A query goes over to another plan."""

    query: str
    join: JoinPlan
    version: int
    because: str
    expected: Expected | None = None
    problem: Problem | None = None  # for the figures of which it was decided on


@dataclass(frozen=True)
class Controller:
    """The queries that are watched, and the topology that they run on."""

    topology: Topology
    queries: tuple[AdaptiveQuery, ...]
    half_life_s: float = 30.0

    def start(self, now_s: float, running: Mapping[str, RunningQuery] | None = None) -> ControllerState:
        """The state as plans begin: those that run already, or those for the statistics of the topology."""
        known = running or {}
        queries = {}
        for query in self.queries:
            name = query.query.name
            plan = (
                known[name]
                if name in known
                else first_plan(self._problem(query, self.topology), query.mode, query.planner)
            )
            queries[name] = QueryState(plan)
        return ControllerState(MonitorState(self.half_life_s), queries)

    def going_on(self, name: str, join: JoinPlan) -> RunningQuery | None:
        """A query that has a plan already; None if the procedure that decides cannot go on from it."""
        query = next(query for query in self.queries if query.query.name == name)
        if query.mode == "planner":
            return RunningQuery(join, query.planner)
        sequences = sequences_of(join)
        if sequences is None:
            return None
        # Nobody knows for which figures the sequences were made: without a setting, every one begins anew.
        figures = figures_of(self._problem(query, self.topology).workload)
        return RunningQuery(join, query.mode, sequences, figures)

    def observe(self, state: ControllerState, observations: Iterable[Observation], now_s: float) -> ControllerState:
        """The state after observations."""
        monitor = state.monitor
        for observation in observations:
            monitor = observe(monitor, observation, now_s)
        return replace(state, monitor=monitor)

    def step(
        self, state: ControllerState, now_s: float, *, alive: Sequence[str] | None = None
    ) -> tuple[ControllerState, tuple[GoOver, ...], tuple[Event, ...]]:
        """What to do now: plans to go over to, and what was decided and why."""
        if state.monitor.is_moving(now_s) and state.held < HOLD_STEPS:
            return replace(state, held=state.held + 1), (), ()
        figures = state.monitor.figures(self.topology)
        if not self.is_due(state, now_s) and not self.has_moved(state.monitor, state.looked, figures):
            return replace(state, held=0), (), ()
        state = self._informed(replace(state, looked=figures, looked_s=now_s, held=0), now_s)
        return self.decide(state, self.seen(state, now_s), now_s, alive=alive)

    def decide(
        self, state: ControllerState, seen: Topology, now_s: float, *, alive: Sequence[str] | None = None
    ) -> tuple[ControllerState, tuple[GoOver, ...], tuple[Event, ...]]:
        """The same for a topology with figures as they are now."""
        actions: list[GoOver] = []
        events: list[Event] = []
        queries = dict(state.queries)
        for query in self.queries:
            name = query.query.name
            try:
                problem, state = self._by_matches(state, query, self._problem(query, seen))
                queries[name], action, event = self._decide(query, queries[name], problem, now_s, alive)
            except (MissingStatistic, NoPlan):
                continue  # not enough is known yet, or no plan keeps to the limits: the running one stays
            actions += [action] if action is not None else []
            events += [event] if event is not None else []
        return replace(state, queries=queries), tuple(actions), tuple(events)

    def is_due(self, state: ControllerState, now_s: float) -> bool:
        """Whether costs are to be computed although no figure has moved."""
        if state.looked_s is None or now_s - state.looked_s >= _LOOK_HALF_LIVES * self.half_life_s:
            return True
        return any(query.trigger is None or query.trigger.is_waiting(now_s) for query in state.queries.values())

    def has_moved(self, monitor: MonitorState, looked: Mapping[str, float], figures: Mapping[str, float]) -> bool:
        """Whether figures are so far from those for which costs were last computed that a cost may have changed."""
        share = _LOOK_SHARE * min((query.policy.threshold for query in self.queries), default=0.0)
        errors = monitor.rate_errors
        return figures.keys() != looked.keys() or any(
            abs(value - looked[name]) > (share + _LOOK_ERRORS * errors.get(name, 0.0)) * abs(looked[name])
            for name, value in figures.items()
        )

    def _informed(self, state: ControllerState, now_s: float) -> ControllerState:
        """The state after all sites have reported."""
        reports, sizes = gathered(state.monitor, state.reports, self.topology, now_s)
        sent = {site: state.reported_bytes.get(site, 0) + size for site, size in sizes.items()}
        return replace(state, reports=reports, reported_bytes={**state.reported_bytes, **sent})

    def seen(self, state: ControllerState, now_s: float) -> Topology:
        """The topology with statistics and links as observed."""
        values = {stream: report.values for stream, report in state.reports.items()}
        stats = statistics(state.monitor, self.topology.stats, now_s, values)
        return self.with_observed(state, stats, with_links(state.monitor, self.topology))

    def with_observed(self, state: ControllerState, stats: Stats, topology: Topology) -> Topology:
        """A topology with statistics, which tell of conditions on streams what shares pass the filters of queries."""
        shares: dict[str, Number] = {}
        for name in sorted(state.queries):
            for scan in state.queries[name].running.join.scans:
                shares |= filter_shares(scan, stats.selectivities)
        return replace(topology, stats=replace(stats, selectivities={**stats.selectivities, **shares}))

    def _decide(
        self, query: AdaptiveQuery, state: QueryState, problem: Problem, now_s: float, alive: Sequence[str] | None
    ) -> tuple[QueryState, GoOver | None, PlanDecision | None]:
        costs = watched_costs(problem, query.mode, state.running)
        if state.trigger is None:
            # Nobody knows whether the plan was made for what is observed: it is considered when averages are known,
            # which no past holds back yet.
            known_s = now_s + query.policy.settle_s / SETTLE_HALF_LIVES
            first = replace(started(costs, now_s), settled_s=known_s, switched_s=None)  # min_interval is for later ones
            return replace(state, trigger=first), None, None
        policy = _cautious(query.policy, uncertainty(problem))
        trigger, change = watch(state.trigger, policy, costs, now_s)
        state = replace(state, trigger=trigger)
        if change is None:
            return state, None, None
        coordinator = coordinator_of(self.topology, alive)
        found = consider(problem, query.mode, state.running, planner=query.planner, coordinator=coordinator)
        verdict = judge(trigger, policy, found.offer, now_s)
        if verdict.accepted and found.next.join == state.running.join:
            verdict = Verdict(False, "the plan is the best already")
        name, next_version = query.query.name, state.version + 1 if verdict.accepted else state.version
        event = PlanDecision(
            name,
            query.mode,
            next_version,
            verdict.accepted,
            verdict.reason,
            change.step,
            change.before,
            change.now,
            found.offer.current,
            found.offer.proposed,
            found.offer.migration,
        )
        if not verdict.accepted:
            return replace(state, trigger=decided(trigger, verdict, costs, now_s)), None, event
        costs = watched_costs(problem, query.mode, found.next)
        state = QueryState(found.next, next_version, decided(trigger, verdict, costs, now_s))
        went = f"went from {cost_text(change.before)} to {cost_text(change.now)}"
        because = f"the cost of {change.step} {went}; {verdict.reason}"
        unit = "bytes" if query.mode == "planner" and problem.objective == Objective() else "cost"
        unit = "seconds of work" if query.mode != "planner" else unit
        expected = Expected(found.offer.current, found.offer.proposed, found.offer.migration, unit)
        return state, GoOver(name, found.next.join, next_version, because, expected, problem), event

    def _by_matches(
        self, state: ControllerState, query: AdaptiveQuery, problem: Problem
    ) -> tuple[Problem, ControllerState]:
        """The problem with as many combinations as joins really find, where those are far from what values tell."""
        known = state.monitor.known_matches
        workload, corrected = problem.workload, dict(state.corrected)
        sets: dict[tuple[str, ...], list[Matched]] = {}
        for what in known:
            if what.query == query.query.name and set(what.aliases) <= set(workload.aliases):
                sets.setdefault(what.aliases, []).append(what)
        rates = {scan.alias: problem.topology.stats.stream(scan.stream).rate for scan in problem.shape.scans}
        for aliases in sorted(sets, key=lambda some: (len(some), some)):
            mask, product = workload.mask(aliases), 1.0
            for alias in aliases:
                rate = rates[alias]
                product *= rate.value if rate is not None else 0.0
            found = sum(known[what] for what in sets[aliases]) * product
            expected = sum(
                workload.head_rate(workload.number(what.head), mask) if what.head else workload.combination_rate(mask)
                for what in sets[aliases]
            )
            times = max(found, _FEWEST_MATCHES * expected) / expected if expected > 0 else 1.0
            far = _STILL_FAR if (query.query.name, aliases) in corrected else _FAR
            corrected.pop((query.query.name, aliases), None)
            if not 1 / far < times < far:
                corrected[query.query.name, aliases] = times
                workload = replace(workload, conditions=(*workload.conditions, (mask, times)), _memory={})
        return replace(problem, workload=workload), replace(state, corrected=corrected)

    def _problem(self, query: AdaptiveQuery, topology: Topology) -> Problem:
        return problem_for(topology, query.query, query.parsed)


def uncertainty(problem: Problem) -> float:
    """The relative standard error of the rate that is known least."""
    rates = [problem.topology.stats.stream(scan.stream).rate for scan in problem.shape.scans]
    return max((1.0 - rate.confidence for rate in rates if rate is not None), default=0.0)


def _cautious(policy: Policy, error: float) -> Policy:
    """Changes that chance explains are none: two standard errors more for a trigger, one more for a saving."""
    return replace(policy, threshold=policy.threshold + 2 * error, min_saving=policy.min_saving + error)


def coordinator_of(topology: Topology, alive: Sequence[str] | None = None) -> str:
    """The site that decides: the first of those that are up, so that all who know which are up agree.

    >>> from watersmeet.topology.model import Site
    >>> topology = Topology((), sites=(Site("ams"), Site("fra"), Site("nyc")))
    >>> coordinator_of(topology), coordinator_of(topology, ["nyc", "fra"])
    ('ams', 'fra')
    """
    found = next((site for site in topology.site_names if alive is None or site in alive), None)
    if found is None:
        raise InputError("no site is up that could decide on plans; start one")
    return found
