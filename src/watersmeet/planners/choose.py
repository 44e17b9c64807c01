"""Which plan a query gets: as the user says, by the planner asked for, or the cheapest where enough is known."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from watersmeet.cost.costs import DEFAULT_UNITS, Cost
from watersmeet.cost.derived import derived_stats
from watersmeet.cost.from_statistics import MissingStatistic
from watersmeet.cost.price import BATCH_INTERVAL_S, REACTION_S, price
from watersmeet.cost.sampling import MOST_ROWS, has_what_is_compared, too_short
from watersmeet.cost.units import default_units_path, load_units
from watersmeet.errors import InputError, did_you_mean
from watersmeet.plan.nodes import Hop, Into, Method, OuterJoin, Plan, join_plan_of
from watersmeet.plan.shape import matching_of
from watersmeet.planners.auto import PLANNERS, Tried, plan_with, try_all
from watersmeet.planners.local import local
from watersmeet.planners.problem import Limits, NoPlan, Objective, Problem, problem_of
from watersmeet.planners.sited import central, explicit
from watersmeet.query.model import JoinQuery
from watersmeet.query.outer import JUDGING, Branches, branches_of
from watersmeet.query.windows import Changes, Rows, format_duration, parse_duration
from watersmeet.topology.model import Query, Topology

NAMES = (*PLANNERS, "auto")


@dataclass(frozen=True)
class Chosen:
    """A plan, who made it, what it is expected to cost where that is known, and the results of other planners."""

    plan: Plan
    planner: str
    cost: Cost | None = None
    problem: Problem | None = None
    tried: tuple[Tried, ...] = ()
    note: str = ""  # why there is no estimate, or why it is not the plan one might expect

    @property
    def batch_interval_s(self) -> float:
        """The interval between micro-batches that it was planned for."""
        return BATCH_INTERVAL_S if self.problem is None else self.problem.batch_interval_s


def choose(
    topology: Topology, query: Query, parsed: JoinQuery, *, every: bool = False, reaction_s: float = REACTION_S
) -> Chosen:
    """The plan of a query; `every` asks every planner, to compare.

    It depends on the topology alone, not on the machine: every site plans by itself. `reaction_s` is how soon sites of
    the runtime take what has come over a link.
    """
    if parsed.outer is not None:
        return _outer(topology, query, parsed, every=every, reaction_s=reaction_s)
    topology = with_derived_stats(topology, parsed)
    homes = topology.homes
    site = topology.query_site(query)
    check_planner(query)
    if query.plan is None and {homes[source.stream] for source in parsed.sources} == {site}:
        plan = local(parsed, topology.columns, site)
        return Chosen(plan, "local", note="all streams arrive where answers are wanted")
    if _has_counted_changes(parsed):
        if len(parsed.sources) == 1:
            home = homes[parsed.sources[0].stream]
            raise InputError(f"EMIT CHANGES over ROWS is computed where the rows are counted; add site: {home}")
        query = replace(query, plan=None, planner="central")
    if len(parsed.sources) == 1:
        if query.plan is not None:
            raise InputError("plan: a single stream has no joins to plan; leave `plan:` out")
        plan = local(parsed, topology.columns, homes[parsed.sources[0].stream], site)
        return Chosen(plan, "local", note="a single stream is filtered and grouped where it arrives")
    if query.plan is not None:
        asked = {
            steps.head: [Hop(step.join, Method(step.method), step.at, step.bloom) for step in steps.steps]
            for steps in query.plan
        }
        plan = explicit(parsed, topology.columns, homes, site, asked)
        return _estimated(topology, query, parsed, plan, "as given", every=every, reaction_s=reaction_s)
    if query.planner == "central":
        plan = central(parsed, topology.columns, homes, site)
        return _estimated(topology, query, parsed, plan, "central", every=every, reaction_s=reaction_s)
    try:
        problem = problem_for(topology, query, parsed, reaction_s)
    except MissingStatistic as error:
        if query.planner not in (None, "auto"):
            raise
        if any(topology.stats.stream(source.stream).rate is None for source in parsed.sources):
            note = f"central, since not enough is known to plan: {error}"
            return Chosen(central(parsed, topology.columns, homes, site), "central", note=note)
        problem = problem_for(topology, replace(query, assume_defaults=True), parsed, reaction_s)
    if query.planner in (None, "auto") or every:
        tried = tuple(_all(problem, must=query.planner not in (None, "auto")))
        chosen = next(result for result in tried if result.planner == (query.planner or "auto"))
    else:
        chosen = plan_with(problem, query.planner)
        tried = (chosen,)
    if chosen.join is None:
        raise NoPlan(f"the plan of {chosen.planner} breaks a limit: {chosen.reason}")
    note = f"the plan of {chosen.reason}" if chosen.planner == "auto" and chosen.reason else ""
    if topology.stats.unknown:
        unknown = (
            f"statistics of streams that are not in the topology are left out: {', '.join(topology.stats.unknown)}"
        )
        note = "; ".join(filter(None, [note, unknown]))
    if filters := problem.workload.unmeasured:
        shown = ", ".join(name.replace("`", "") for name in filters)
        unmeasured = f"how many rows pass is not known, so all are taken to: {shown}; run `watersmeet stats`"
        note = "; ".join(filter(None, [note, unmeasured]))
    if unfit := _unfit_samples(problem):
        estimated = f"samples of {', '.join(unfit)} were taken for other keys or filters, so joins are estimated"
        note = "; ".join(filter(None, [note, f"{estimated}; run `watersmeet stats` again"]))
    elif short := _short_samples(problem):
        note = "; ".join(filter(None, [note, short]))
    if problem.workload.defaults:
        note = "; ".join(filter(None, [note, f"assumed: {', '.join(problem.workload.defaults)}"]))
    return Chosen(problem.plan(chosen.join), chosen.planner, chosen.cost, problem, tried, note)


def _unfit_samples(problem: Problem) -> list[str]:
    """The streams whose sample does not have what this query compares: it was changed after they were taken."""
    if problem.workload.sampled is not None:
        return []
    shape, stats = problem.shape, problem.topology.stats
    return sorted({scan.stream for scan in shape.scans if not has_what_is_compared(scan, shape.classes, stats)})


def _short_samples(problem: Problem) -> str:
    """Why joins are not counted in samples, if that is since these are too short; with the cure, where there is one."""
    short = None if problem.workload.sampled is not None else too_short(problem.shape.scans, problem.topology.stats)
    if short is None:
        return ""
    cure = f"samples have {MOST_ROWS:,} rows at most" if short.is_bound else "run `watersmeet stats` again"
    while_text, needed = (format_duration(us // 1_000_000 * 1_000_000) for us in (short.covered_us, short.needed_us))
    return f"samples cover {while_text} and would have to cover {needed} (two windows), so joins are estimated; {cure}"


def check_plan(topology: Topology, query: Query, parsed: JoinQuery) -> None:
    """Find what is wrong with what a query asks of planners, without planning."""
    if parsed.outer is not None:
        for number, branch in enumerate(branches_of(parsed).branches):
            check_plan(topology, query if number == 0 else replace(query, plan=None), branch.query)
        return
    if query.plan is None and len(parsed.sources) == 1:
        check_planner(query)
        return
    if query.plan is not None or query.planner in (None, "central"):
        homes = topology.homes
        check_planner(query)
        site = topology.query_site(query)
        if query.plan is not None:
            choose(topology, query, parsed)
        elif {homes[source.stream] for source in parsed.sources} == {site}:
            local(parsed, topology.columns, site)
        return
    check_planner(query)
    with suppress(MissingStatistic):  # which a first look at the sources may find
        problem_for(topology, query, parsed)


def check_planner(query: Query) -> None:
    """Refuse a planner that nobody knows."""
    if query.planner is not None and query.planner not in NAMES:
        raise InputError(f"unknown planner {query.planner!r}; {did_you_mean(query.planner, NAMES)}")


def estimate(chosen: Chosen, batch_interval_s: float | None = None) -> Cost | None:
    """What a plan is expected to cost on this machine, with micro-batches at the interval that it was planned for."""
    if chosen.problem is None:
        return None
    path = default_units_path()
    units = load_units(path) if path.exists() else DEFAULT_UNITS
    problem = chosen.problem
    interval_s = problem.batch_interval_s if batch_interval_s is None else batch_interval_s
    return price(join_plan_of(chosen.plan), problem.workload, problem.topology, units, interval_s, problem.reaction_s)


def _all(problem: Problem, *, must: bool) -> Sequence[Tried]:
    """All planners; the result of one that was asked for by name is returned even if it fails."""
    try:
        return try_all(problem)
    except NoPlan:
        if must:
            return [plan_with(problem, name) for name in PLANNERS]
        raise


def _estimated(
    topology: Topology, query: Query, parsed: JoinQuery, plan: Plan, planner: str, *, every: bool, reaction_s: float
) -> Chosen:
    """A plan that needs no figures, with an estimate where they are known."""
    try:
        problem = problem_for(topology, query, parsed, reaction_s)
    except MissingStatistic as error:
        return Chosen(plan, planner, note=f"no estimate: {error}")
    cost = problem.cost(join_plan_of(plan))
    tried = tuple(try_all(problem)) if every else ()
    return Chosen(plan, planner, cost, problem, tried)


def batch_interval_s(topology: Topology, streams: Iterable[str]) -> float:
    """How much event time a micro-batch covers: as the topology says, else as rows of the streams arrive.

    A site takes what has arrived of any of its streams, so the one that arrives most often decides.
    """
    if topology.batch_interval_us is not None:
        return topology.batch_interval_us / 1e6
    known = [interval.value for name in streams if (interval := topology.stats.stream(name).batch_interval) is not None]
    return max(min(known, default=0.0), BATCH_INTERVAL_S)


def with_derived_stats(topology: Topology, parsed: JoinQuery) -> Topology:
    """The topology with what is to be expected of the derived streams that a query reads."""
    derived = {output.target.name for output in topology.derived}
    if all(source.stream not in derived or topology.stats.stream(source.stream).rate for source in parsed.sources):
        return topology
    return replace(topology, stats=derived_stats(topology.derived, topology.stats, topology.columns))


def problem_for(topology: Topology, query: Query, parsed: JoinQuery, reaction_s: float = REACTION_S) -> Problem:
    """The question that a query of a topology asks of planners, by the statistics of the topology."""
    topology = with_derived_stats(topology, parsed)
    limits = Limits(
        None if query.max_delay is None else parse_duration(query.max_delay) / 1e6,
        query.barred,
    )
    weights = dict(query.objective)
    objective = Objective(**{"bytes": 0.0, **weights}) if weights else Objective()
    return problem_of(
        parsed,
        topology,
        topology.query_site(query),
        topology.stats,
        objective=objective,
        limits=limits,
        batch_interval_s=batch_interval_s(topology, [source.stream for source in parsed.sources]),
        parts=query.parts,
        partition=query.partition,
        defaults=query.assume_defaults,
        reaction_s=reaction_s,
    )


def _outer(topology: Topology, query: Query, parsed: JoinQuery, *, every: bool, reaction_s: float) -> Chosen:
    """The plan of an outer join: every inner join that it is made of is planned by itself."""
    expanded = branches_of(parsed)
    counts_rows = _counts_rows(parsed, expanded)
    chosen = []
    for number, branch in enumerate(expanded.branches):
        asked = query if number == 0 else replace(query, plan=None)
        if counts_rows:  # rows end with those after them: their order must be known where they are judged
            asked = replace(query, plan=None, planner="central")
        choice = choose(topology, asked, branch.query, every=every and number == 0, reaction_s=reaction_s)
        chosen.append(choice)
    plan: Plan = OuterJoin(tuple(choice.plan for choice in chosen), matching_of(parsed, expanded), parsed.grouping)
    return replace(chosen[0], plan=plan if parsed.into is None else Into(plan, parsed.into))


def _has_counted_changes(parsed: JoinQuery) -> bool:
    """Whether groups change as rows leave ROWS windows: that is known where all rows of the join are in order."""
    grouping = parsed.grouping
    return grouping is not None and isinstance(grouping.window, Changes) and bool(grouping.window.counted)


def _counts_rows(parsed: JoinQuery, expanded: Branches) -> bool:
    """Whether rows that are judged are in a ROWS window: those of an outer join that may lack a partner."""
    judged = {alias for relation in expanded.relations if relation.kind in JUDGING for alias in relation.aliases}
    return any(isinstance(parsed.source(alias).window, Rows) for alias in judged)


def planned_join(parsed: JoinQuery) -> JoinQuery | None:
    """The join of a query that planners order: of an outer join the first of its inner joins, which has most streams.

    None where it stays as it is, since rows are judged, or leave groups, by their order.
    """
    if parsed.outer is None:
        return None if _has_counted_changes(parsed) else parsed
    expanded = branches_of(parsed)
    return None if _counts_rows(parsed, expanded) else expanded.branches[0].query
