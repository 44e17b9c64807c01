"""What is to be different from some instant on, as values, and which changes of plans and queries are refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from watersmeet.errors import InputError
from watersmeet.plan.nodes import Into, JoinPlan, Plan, Scan, join_plan_of, join_plans_of
from watersmeet.program.compile import compile_sites
from watersmeet.program.finish.model import Finish, finishes_of
from watersmeet.program.site.deployment import Deployment, Joined
from watersmeet.program.site.streams import stream_tables
from watersmeet.query.model import Target
from watersmeet.query.windows import AsOf, Range, Tumble, Window


@dataclass(frozen=True, slots=True)
class Expected:
    """What a plan is expected to cost a second, what the one before it would, and once to go over, in some unit."""

    current: float
    proposed: float
    migration: float
    unit: str


@dataclass(frozen=True)
class QueryPlan:
    """A plan that a query is to have from some instant on."""

    query: str
    plan: Plan
    start_us: int | None = None  # of one that begins; others keep theirs
    errors: str = "fail"
    is_fresh: bool = False  # of a query that begins with it: no earlier row takes part
    planner: str = ""
    expected: Expected | None = None
    definition: str = ""  # of a query that begins: what it asks for and where its answers go, as the runtime writes it


@dataclass(frozen=True)
class Change:
    """What is to be different: queries that get another plan or begin, and queries that end."""

    plans: tuple[QueryPlan, ...] = ()
    removed: tuple[str, ...] = ()
    reason: str = ""
    streams: Mapping[str, str] = field(default_factory=dict)  # definitions of streams that queries begin to read
    request: str = ""  # which request it comes from: one that is asked for twice is made once

    @property
    def queries(self) -> tuple[str, ...]:
        """All queries that it is about."""
        return (*(plan.query for plan in self.plans), *self.removed)


def check_change(deployment: Deployment, change: Change) -> None:
    """Refuse a change that cannot be made while the deployment runs."""
    running = {finish.query for joined in deployment.in_force for finish in joined.finishes}
    for left in left_behind(deployment, change):
        if must_fill(deployment, left) and any(not _is_timed(scan.window) for scan in left.join.scans):
            rest = _list(finish.query for finish in left.finishes if finish.query not in change.queries)
            raise InputError(
                f"{rest} would go on alone with a join that has parts by key and a ROWS or UNBOUNDED window, and homes "
                f"keep no rows for later versions; start with plans that may change, or stop and begin anew"
            )
    for query in change.removed:
        if query not in running:
            raise InputError(f"query {query!r} does not run, so it cannot be removed; those that do: {_list(running)}")
    for plan in change.plans:
        joins = join_plans_of(plan.plan)
        programs = [item for join in joins for item in compile_sites(join).items()]
        used = {site for site, program in programs if program.operators or program.ships}
        if missing := sorted(used - set(deployment.sites)):
            raise InputError(
                f"query {plan.query!r}: its new plan needs {_list(missing)}, where nothing runs; start the sites "
                f"together, or choose a plan for {_list(deployment.sites)}"
            )
        if plan.is_fresh:
            _check_homes(deployment, plan, joins)
            read = {scan.stream for scan in deployment.scans}
            tables = {scan.stream for join in joins for scan in join.scans if isinstance(scan.window, AsOf)}
            if again := sorted(tables & read):
                raise InputError(
                    f"query {plan.query!r} reads table {again[0]!r} as it was read for others that began meanwhile; "
                    "ask for it once more, so that it is read anew"
                )
            continue
        if plan.query not in running:
            raise InputError(f"query {plan.query!r} does not run, so it has no plan to change; add it instead")
        _check_same(deployment, plan)
        for join in joins:
            _check_replanned(deployment, plan, join)


def replanned_tables(change: Change) -> set[str]:
    """Tables that are refreshed and read by queries that get another plan."""
    joins = (join for plan in change.plans if not plan.is_fresh for join in join_plans_of(plan.plan))
    return {scan.stream for join in joins for scan in join.scans if scan.window == AsOf(is_refreshed=True)}


def _check_homes(deployment: Deployment, plan: QueryPlan, joins: Iterable[JoinPlan]) -> None:
    """Refuse a query that would have a stream arrive elsewhere than where joins of before still wait for its rows."""
    homes = {scan.stream: home for known in deployment.joins for scan, home in _homes(known.join)}
    for scan, home in (found for join in joins for found in _homes(join)):
        if home != (known := homes.get(scan.stream, home)):
            raise InputError(
                f"query {plan.query!r}: the rows of {scan.stream!r} would come about at site {home}, and others that "
                f"read them at {known} are not over; give the view that they are of `site: {known}`, or the query "
                "another name"
            )


def _homes(join: JoinPlan) -> Iterable[tuple[Scan, str]]:
    return zip(join.scans, join.homes, strict=True)


def _check_replanned(deployment: Deployment, plan: QueryPlan, join: JoinPlan) -> None:
    """Refuse another plan for a join of a query that runs, of which an outer join has several."""
    _check_places(deployment, plan, join)
    if deployment.history:
        _check_kept(deployment, plan.query, join)
    if not deployment.history and not all(_is_timed(scan.window) for scan in join.scans):
        raise InputError(
            f"query {plan.query!r} {_endless(join)}, and homes keep no rows for later versions, so "
            f"its plan cannot change while it runs; start it with plans that may change, or stop it and begin anew"
        )


def left_behind(deployment: Deployment, change: Change) -> Iterable[Joined]:
    """Joins of queries that a change is not about, which they share with queries that it is about."""
    for joined in deployment.in_force:
        queries = {finish.query for finish in joined.finishes}
        if queries & set(change.queries) and queries - set(change.queries):
            yield joined


def must_fill(deployment: Deployment, joined: Joined) -> bool:
    """Whether a copy of a join has to wait for full windows: parts of a key space have relations of their own."""
    return not deployment.history and joined.join.partition is not None


def _is_timed(window: Window) -> bool:
    return isinstance(window, Range | Tumble)


def _endless(join: JoinPlan) -> str:
    tables = [scan.stream for scan in join.scans if isinstance(scan.window, AsOf)]
    return f"reads table {tables[0]!r}" if tables else "has a ROWS or UNBOUNDED window"


def _check_same(deployment: Deployment, asked: QueryPlan) -> None:
    """Refuse a plan that was made for something else than what the query asks for now: it may have been replaced."""
    running = {
        known.branch: (_asked_of(joined.join), _answers_of(known))
        for joined in deployment.in_force
        for known in joined.finishes
        if known.query == asked.query
    }
    wanted = {
        finish.branch: (_asked_of(join_plan_of(plan)), _answers_of(finish))
        for plan, finish in finishes_of(asked.query, asked.plan)
    }
    if running != wanted:
        raise InputError(
            f"query {asked.query!r}: the plan was made for another query of this name, which may have been replaced "
            "meanwhile; plan it again"
        )


def _answers_of(finish: Finish) -> tuple[object, ...]:
    """What becomes of combinations, whatever the plan of their join."""
    return finish.select, finish.distinct, finish.grouping, finish.matching


def _asked_of(join: JoinPlan) -> list[tuple[str, str, Window, frozenset[str]]]:
    """The streams of a join with their windows and filters, whatever its plan."""
    found = [
        (scan.alias, scan.stream, scan.window, frozenset(predicate.sql for predicate in scan.filters))
        for scan in join.scans
    ]
    return sorted(found, key=lambda one: one[0])


def _check_places(deployment: Deployment, asked: QueryPlan, join: JoinPlan) -> None:
    """Refuse a plan for other homes of streams, or whose answers go elsewhere if they are rows of a view."""
    homes = {
        scan.stream: home
        for joined in deployment.in_force
        for scan, home in zip(joined.join.scans, joined.join.homes, strict=True)
    }
    for scan, home in zip(join.scans, join.homes, strict=True):
        if homes.get(scan.stream, home) != home:
            raise InputError(
                f"query {asked.query!r}: its new plan has {scan.stream!r} at site {home}, and it is at "
                f"{homes[scan.stream]}; streams and views stay where they are; keep their sites, or begin anew with "
                "--fresh"
            )
    target = asked.plan.target if isinstance(asked.plan, Into) else Target(asked.query)
    for joined in deployment.in_force:
        for finish in joined.finishes:
            if finish.query == asked.query and finish.target != target:
                raise InputError(
                    f"query {asked.query!r}: the new plan gives answers to {_named(target)} and the one in force to "
                    f"{_named(finish.target)}; plan it together with the queries that read it"
                )
            if finish.query == asked.query and target.is_stream and joined.join.site != join.site:
                raise InputError(
                    f"view {target.name!r}: its rows would be made at site {join.site}, and they are at "
                    f"{joined.join.site}; streams and views stay where they are; keep its `site:`, or begin anew with "
                    "--fresh"
                )


def _named(target: Target) -> str:
    return f"view {target.name!r}" if target.is_stream else f"the sink of {target.name!r}"


def _check_kept(deployment: Deployment, query: str, join: JoinPlan) -> None:
    """Refuse a plan that looks for something in rows of the past that was not stored with them."""
    scans, _ = stream_tables([(query, join, None)], deployment.scans)
    for known in deployment.scans:
        wanted = scans[known.stream]
        missing = [key.expression.sql for key in wanted.keys if key not in known.keys]
        missing += [kept.expression.sql for kept in wanted.kept if kept.name not in known.columns]
        if missing:
            raise InputError(
                f"query {query!r}: its new plan needs {missing[0]} of stream {known.stream!r}, and rows "
                "that came before were stored without it in that form; stop the run and begin anew with --fresh"
            )


def plan_changes(deployment: Deployment, plans: Iterable[QueryPlan]) -> tuple[QueryPlan, ...]:
    """Those of some plans that are not in force."""
    bare: dict[str, dict[int, JoinPlan]] = {}  # by query and branch
    for joined in deployment.in_force:
        for finish in joined.finishes:
            bare.setdefault(finish.query, {})[finish.branch] = _bare(joined.join)
    return tuple(
        plan
        for plan in plans
        if plan.query in bare and bare[plan.query] != dict(enumerate(map(_bare, join_plans_of(plan.plan))))
    )


def _bare(join: JoinPlan) -> JoinPlan:
    """A join without what is kept of its rows, in which joins that queries share may differ."""
    return replace(join, scans=tuple(replace(scan, kept=()) for scan in join.scans), output=(), verify=())


def cause_against(deployment: Deployment, change: Change) -> str:
    """Why a change cannot be made, if it cannot."""
    try:
        check_change(deployment, change)
    except InputError as error:
        return str(error)
    return ""


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
