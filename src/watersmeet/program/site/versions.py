"""Versions of joins: which joins a change of plans or queries ends, which it starts, and what those can share.

A combination belongs to its latest row, so a version is a join for a span of event time: what was in force ends before
an instant, what follows begins with it. Both are overlaid like two queries are. Whatever stored rows and messages
depend on (numbers of keys and selections, columns of a shipped stream, names) is never changed, only added to.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watersmeet.errors import InputError
from watersmeet.plan.nodes import Into, JoinPlan, Plan, Scan, join_plan_of, join_plans_of
from watersmeet.program.compile import compile_sites
from watersmeet.program.finish.model import Finish, finishes_of
from watersmeet.program.operators import Form, Operator, Pair, Probe
from watersmeet.program.site.deployment import (
    Deployment,
    Joined,
    SentStream,
    parts_of,
    programs_of,
    sent_streams,
    shared_joins,
    stream_ships,
)
from watersmeet.program.site.nearest import Holder, Holding, nearest
from watersmeet.program.site.program import JoinPart, SiteProgram, Span, axis_alias, reads_window, stored_inputs
from watersmeet.program.site.streams import View, clock_flow, ordered_flow, stream_tables
from watersmeet.query.model import Target
from watersmeet.query.windows import AsOf, Range, Tumble, Window, counted


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
        return (*(one.query for one in self.plans), *self.removed)


def check_change(deployment: Deployment, change: Change) -> None:
    """Refuse a change that cannot be made while the deployment runs."""
    running = {finish.query for one in deployment.in_force for finish in one.finishes}
    for left in _left_behind(deployment, change):
        if _must_fill(deployment, left) and any(not _is_timed(scan.window) for scan in left.join.scans):
            rest = _list(finish.query for finish in left.finishes if finish.query not in change.queries)
            raise InputError(
                f"{rest} would go on alone with a join that has parts by key and a ROWS or UNBOUNDED window, and homes "
                f"keep no rows for later versions; start with plans that may change, or stop and begin anew"
            )
    for query in change.removed:
        if query not in running:
            raise InputError(f"query {query!r} does not run, so it cannot be removed; those that do: {_list(running)}")
    for one in change.plans:
        joins = join_plans_of(one.plan)
        programs = [item for join in joins for item in compile_sites(join).items()]
        used = {site for site, program in programs if program.operators or program.ships}
        if missing := sorted(used - set(deployment.sites)):
            raise InputError(
                f"query {one.query!r}: its new plan needs {_list(missing)}, where nothing runs; start the sites "
                f"together, or choose a plan for {_list(deployment.sites)}"
            )
        if one.is_fresh:
            _check_homes(deployment, one, joins)
            read = {scan.stream for scan in deployment.scans}
            tables = {scan.stream for join in joins for scan in join.scans if isinstance(scan.window, AsOf)}
            if again := sorted(tables & read):
                raise InputError(
                    f"query {one.query!r} reads table {again[0]!r} as it was read for others that began meanwhile; ask "
                    "for it once more, so that it is read anew"
                )
            continue
        if one.query not in running:
            raise InputError(f"query {one.query!r} does not run, so it has no plan to change; add it instead")
        _check_same(deployment, one)
        for join in joins:
            _check_replanned(deployment, one, join)


def replanned_tables(change: Change) -> set[str]:
    """Tables that are refreshed and read by queries that get another plan."""
    joins = (join for one in change.plans if not one.is_fresh for join in join_plans_of(one.plan))
    return {scan.stream for join in joins for scan in join.scans if scan.window == AsOf(is_refreshed=True)}


def _check_homes(deployment: Deployment, one: QueryPlan, joins: Iterable[JoinPlan]) -> None:
    """Refuse a query that would have a stream arrive elsewhere than where joins of before still wait for its rows."""
    homes = {scan.stream: home for known in deployment.joins for scan, home in _homes(known.join)}
    for scan, home in (found for join in joins for found in _homes(join)):
        if home != (known := homes.get(scan.stream, home)):
            raise InputError(
                f"query {one.query!r}: the rows of {scan.stream!r} would come about at site {home}, and others that "
                f"read them at {known} are not over; give the view that they are of `site: {known}`, or the query "
                "another name"
            )


def _homes(join: JoinPlan) -> Iterable[tuple[Scan, str]]:
    return zip(join.scans, join.homes, strict=True)


def _check_replanned(deployment: Deployment, one: QueryPlan, join: JoinPlan) -> None:
    """Refuse another plan for a join of a query that runs, of which an outer join has several."""
    _check_places(deployment, one, join)
    if deployment.history:
        _check_kept(deployment, one.query, join)
    if not deployment.history and not all(_is_timed(scan.window) for scan in join.scans):
        raise InputError(
            f"query {one.query!r} {_endless(join)}, and homes keep no rows for later versions, so "
            f"its plan cannot change while it runs; start it with plans that may change, or stop it and begin anew"
        )


def _left_behind(deployment: Deployment, change: Change) -> Iterable[Joined]:
    """Joins of queries that a change is not about, which they share with queries that it is about."""
    for one in deployment.in_force:
        queries = {finish.query for finish in one.finishes}
        if queries & set(change.queries) and queries - set(change.queries):
            yield one


def _must_fill(deployment: Deployment, one: Joined) -> bool:
    """Whether a copy of a join has to wait for full windows: parts of a key space have relations of their own."""
    return not deployment.history and one.join.partition is not None


def _is_timed(window: Window) -> bool:
    return isinstance(window, Range | Tumble)


def _endless(join: JoinPlan) -> str:
    tables = [scan.stream for scan in join.scans if isinstance(scan.window, AsOf)]
    return f"reads table {tables[0]!r}" if tables else "has a ROWS or UNBOUNDED window"


def _check_same(deployment: Deployment, asked: QueryPlan) -> None:
    """Refuse a plan that was made for something else than what the query asks for now: it may have been replaced."""
    running = {
        known.branch: (_asked_of(one.join), _answers_of(known))
        for one in deployment.in_force
        for known in one.finishes
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
    found = [(scan.alias, scan.stream, scan.window, frozenset(one.sql for one in scan.filters)) for scan in join.scans]
    return sorted(found, key=lambda one: one[0])


def _check_places(deployment: Deployment, asked: QueryPlan, join: JoinPlan) -> None:
    """Refuse a plan for other homes of streams, or whose answers go elsewhere if they are rows of a view."""
    homes = {
        scan.stream: home
        for one in deployment.in_force
        for scan, home in zip(one.join.scans, one.join.homes, strict=True)
    }
    for scan, home in zip(join.scans, join.homes, strict=True):
        if homes.get(scan.stream, home) != home:
            raise InputError(
                f"query {asked.query!r}: its new plan has {scan.stream!r} at site {home}, and it is at "
                f"{homes[scan.stream]}; streams and views stay where they are; keep their sites, or begin anew with "
                "--fresh"
            )
    target = asked.plan.target if isinstance(asked.plan, Into) else Target(asked.query)
    for one in deployment.in_force:
        for finish in one.finishes:
            if finish.query == asked.query and finish.target != target:
                raise InputError(
                    f"query {asked.query!r}: the new plan gives answers to {_named(target)} and the one in force to "
                    f"{_named(finish.target)}; plan it together with the queries that read it"
                )
            if finish.query == asked.query and target.is_stream and one.join.site != join.site:
                raise InputError(
                    f"view {target.name!r}: its rows would be made at site {join.site}, and they are at "
                    f"{one.join.site}; streams and views stay where they are; keep its `site:`, or begin anew with "
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
        one
        for one in plans
        if one.query in bare and bare[one.query] != dict(enumerate(map(_bare, join_plans_of(one.plan))))
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


def next_deployment(
    now: Deployment,
    change: Change,
    revision: int,
    at_us: int,
    retired: Iterable[str],
    holdings: Mapping[str, Holding] | None = None,
) -> Deployment:
    """The deployment after a change that all sites go over to before any of them has a row from `at_us` on.

    Joins that are over at all sites are left out of it. `holdings` is what sites could send of the past.
    """
    gone = set(retired)
    joins = [one for one in now.joins if one.name not in gone]
    about = set(change.queries)
    ended = [one for one in joins if one.heads.until_us is None and about & {f.query for f in one.finishes}]
    split_us = _split_us(now, change, ended, at_us)
    added = list(_added(change, ended, revision, split_us))
    names = {one.name for one in ended}
    joins = [replace(one, heads=replace(one.heads, until_us=split_us)) if one.name in names else one for one in joins]
    scans, _ = stream_tables(((one.name, one.join, one.start_us) for one in added), now.scans)
    known = tuple(scans[name] for name in sorted(scans))
    added, more = _shared(replace(now, scans=known), added, revision, holdings or {})
    joins += added
    after = replace(now, joins=tuple(joins), revision=revision, scans=known, sent=(*now.sent, *more))
    return replace(after, sent=tuple(_used(after)))


def _split_us(now: Deployment, change: Change, ended: Iterable[Joined], at_us: int) -> int:
    """From when on heads are the new versions': at once, or when windows have filled where no history is kept."""
    begun = [one.heads.from_us for one in ended if one.heads.from_us is not None]
    windows = [
        scan.window
        for one in change.plans
        if not one.is_fresh
        for join in join_plans_of(one.plan)
        for scan in join.scans
    ]
    windows += [scan.window for one in ended for scan in one.join.scans] if windows else []
    copies = [one for one in _left_behind(now, change) if _must_fill(now, one)]
    windows += [scan.window for one in copies for scan in one.join.scans]
    longest = 0 if now.history else max((_length_us(window) for window in windows), default=0)
    return max(at_us + longest, *begun) if begun else at_us + longest


def _length_us(window: Window) -> int:
    return window.window_us + 1 if isinstance(window, Range | Tumble) else 0


def _added(change: Change, ended: Iterable[Joined], revision: int, split_us: int) -> Iterable[Joined]:
    """The joins that a change starts; queries that shared a join with one that leaves it go on with a copy."""
    heads = Span(split_us)
    ended = list(ended)
    begun = {finish.query: one.start_us for one in ended for finish in one.finishes}
    since = {finish.query: finish.since for one in ended for finish in one.finishes}
    for is_fresh in (False, True):
        plans = {one.query: one for one in change.plans if one.is_fresh == is_fresh}
        starts = {name: _start(one, split_us) if is_fresh else begun[name] for name, one in plans.items()}
        errors = {name: one.errors for name, one in plans.items()}
        for one in shared_joins({name: plan.plan for name, plan in plans.items()}, starts, errors):
            name = f"{one.name}~{revision}"
            finishes = tuple(
                replace(finish, since=revision if is_fresh else since[finish.query]) for finish in one.finishes
            )
            yield replace(one, name=name, finishes=finishes, heads=heads, since=revision, is_fresh=is_fresh)
    about = set(change.queries)
    for one in ended:
        left: tuple[Finish, ...] = tuple(finish for finish in one.finishes if finish.query not in about)
        if left:
            name = f"{left[0].query}~{revision}"
            yield replace(one, name=name, finishes=left, heads=heads, since=revision, is_fresh=False, copy_of=one.name)


def _start(plan: QueryPlan, split_us: int) -> int:
    return split_us if plan.start_us is None else max(plan.start_us, split_us)


def _shared(
    now: Deployment, added: list[Joined], revision: int, holdings: Mapping[str, Holding]
) -> tuple[list[Joined], list[SentStream]]:
    """New joins with the names of what they use: streams that are sent already, and rows that are stored already."""
    before = programs_of(now)
    in_force = _sent_in_force(now)
    names: dict[str, dict[str, dict[str, str]]] = {one.name: {} for one in added}
    more: list[SentStream] = []
    # Joins of queries that begin need no rows from before, so they share what is sent; others may need different rows.
    # A copy of a join goes on with the relations and flows of that one.
    own = [one for one in added if not one.copy_of]
    groups = [[one for one in own if one.is_fresh], *([one] for one in own if not one.is_fresh)]
    for number, group in enumerate(groups):
        bare = parts_of(replace(now, joins=tuple(group)))
        ending = f"#{revision}" if number == 0 else f"#{revision}.{number}"
        for site in now.sites:
            ships = stream_ships(bare[site])
            for wanted in sent_streams(bare[site], {scan.stream: scan.stream + ending for scan in now.scans}):
                users = {part.name for part, _ in ships[wanted.stream, wanted.to]}
                has_clock = any(ship.flow.form is Form.CLOCK for _, ship in ships[wanted.stream, wanted.to])
                there = [part for part in bare[wanted.to] if part.name in users]
                known = [one for one in now.sent if _serves(before, in_force, one, wanted, there, has_clock)]
                if not known:
                    holders = [] if has_clock else list(_holders(now, before, in_force, wanted, there, holdings))
                    more.append(replace(wanted, holder=nearest(site, wanted.to, holders, holdings)))
                for name in sorted(users):
                    names[name].setdefault(wanted.to, {})[wanted.stream] = (known or [wanted])[0].name
    named = [one if one.copy_of else replace(one, names=names[one.name]) for one in added]
    parts = parts_of(replace(now, joins=tuple(named)))
    apart: dict[str, dict[str, dict[str, str]]] = {one.name: {} for one in named}
    copies = {one.name: bool(one.copy_of) for one in named}
    for site in now.sites:
        for part in parts[site]:
            if copies[part.name]:
                continue
            found = {base: f"{base}~{revision}" for base in _not_shared(before[site], part)}
            if found:
                apart[part.name][site] = found
    return [one if one.copy_of else replace(one, apart=apart[one.name]) for one in named], more


def _serves(
    before: Mapping[str, SiteProgram],
    in_force: Mapping[tuple[str, str, str], bool],
    sent: SentStream,
    wanted: SentStream,
    parts: Iterable[JoinPart],
    has_clock: bool,
) -> bool:
    """Whether new joins can use what is sent of a stream already, with all rows of it that they need."""
    with_clock = in_force.get((sent.stream, sent.to, sent.name))
    if (sent.stream, sent.to) != (wanted.stream, wanted.to) or with_clock is None or (has_clock and not with_clock):
        return False
    program = before[sent.to]
    return _contains(sent, wanted) and (not program.history or _has_history(program, sent, parts, has_clock=has_clock))


def _holders(
    now: Deployment,
    before: Mapping[str, SiteProgram],
    in_force: Mapping[tuple[str, str, str], bool],
    wanted: SentStream,
    parts: Sequence[JoinPart],
    holdings: Mapping[str, Holding],
) -> Iterable[Holder]:
    """The sites that have all rows of the past of a stream, up to some instant, that new joins need elsewhere."""
    needs = _past_needed(wanted.stream, parts)
    is_table = any(scan.is_table for scan in now.scans if scan.stream == wanted.stream)
    if not now.history or not needs or is_table or any(view.ordered for view, _ in needs):
        return
    for one in now.sent:
        mark = holdings[one.to].marks.get(one.name) if one.to in holdings else None
        if one.stream != wanted.stream or one.to == wanted.to or mark is None or not _contains(one, wanted):
            continue
        if (one.stream, one.to, one.name) in in_force:
            relation = before[one.to].covering(one.name, [(view.selection, window) for view, window in needs])
            if relation is not None:
                yield Holder(one.to, one.name, relation, mark)


def _past_needed(stream: str, parts: Iterable[JoinPart]) -> list[tuple[View, Window]]:
    """The windows over a stream, of rows of before, that new joins read at a site."""
    return [
        (view, window)
        for part in parts
        if not part.is_fresh
        for view, window in windows_needed(part)
        if view.stream == stream
    ]


def _sent_in_force(now: Deployment) -> dict[tuple[str, str, str], bool]:
    """Streams that are sent for joins that nothing follows yet, by (stream, to, name), and whether with their clock."""
    found: dict[tuple[str, str, str], bool] = {}
    names = {one.name: one.names for one in now.joins}
    for parts in parts_of(replace(now, joins=now.in_force)).values():
        for (stream, to), ships in stream_ships(parts).items():
            for part, ship in ships:
                slot = (stream, to, names[part.name].get(to, {}).get(stream, stream))
                found[slot] = found.get(slot, False) or ship.flow.form is Form.CLOCK
    return found


def _contains(sent: SentStream, wanted: SentStream) -> bool:
    """Whether what is sent of a stream has all that is wanted."""
    return (
        set(wanted.columns) <= set(sent.columns)
        and set(wanted.keys) <= set(sent.keys)
        and set(wanted.selections) <= set(sent.selections)
        and all(flow in sent.routes and sent.routes[flow] in (None, route) for flow, route in wanted.routes.items())
    )


def _has_history(before: SiteProgram, sent: SentStream, parts: Iterable[JoinPart], *, has_clock: bool) -> bool:
    """Whether a site that gets a stream has all rows of it that new joins need there, and the clock to count them."""
    needs = [
        (ordered_flow(sent.name) if view.ordered else sent.name, (view.selection, window))
        for view, window in _past_needed(sent.stream, parts)
    ]
    flows = {flow for flow, _ in needs}
    if any(before.covering(flow, [need for name, need in needs if name == flow]) is None for flow in flows):
        return False
    counts = [
        count
        for part in parts
        if not part.is_fresh and has_clock
        for scan in part.join.scans
        if scan.stream == sent.stream and (count := counted(scan.window)) is not None
    ]
    return not counts or max(counts) <= max(_counts_kept(before, clock_flow(sent.name)), default=0)


def _counts_kept(program: SiteProgram, clock: str) -> Iterable[int]:
    """How many rows back a row clock is kept at a site."""
    for part in program.parts:
        if part.is_in_force:
            concerned = {alias for one in part.program.operators for alias in _concerned(part, one)}
            for alias in concerned:
                window = part.join.scan(alias).window
                if (count := counted(window)) is not None and part.clock(alias) == clock:
                    yield count


def _concerned(part: JoinPart, operator: Operator) -> tuple[str, ...]:
    if isinstance(operator, Pair):
        return operator.aliases
    return tuple(part.views) if isinstance(operator, Probe) else (operator.alias,) if operator.alias else ()


def windows_needed(part: JoinPart) -> Iterable[tuple[View, Window]]:
    """The windows whose rows a join looks up at a site, as far as they are rows of streams."""
    for operator in part.program.operators:
        for flow in stored_inputs(operator):
            view = part.view_of(flow)
            if view is not None and reads_window(operator, flow):
                yield view, part.join.scan(axis_alias(operator, flow)).window


def _not_shared(before: SiteProgram, part: JoinPart) -> set[str]:
    """Relations that are there under the name a new join would use, but do not have all rows that it needs."""
    found: set[str] = set()
    if part.is_fresh:
        return found
    for operator in part.program.operators:
        for flow in stored_inputs(operator):
            view = part.view_of(flow)
            if view is None or not reads_window(operator, flow):
                continue
            relation = part.relation(flow, operator.key, operator.sub_plans)
            window = part.join.scan(axis_alias(operator, flow)).window
            if all(one.relation != relation for one in before.indexes.get(view.flow, ())):
                continue
            readers = [one for one in before.windows_read.get(relation, ()) if one.is_whole]
            if not before.history or not any(one.covers(view.selection, window) for one in readers):
                found.add(relation)
    return found


def _used(deployment: Deployment) -> Iterable[SentStream]:
    """What is sent of streams for any of the joins."""
    names = {one.name: one.names for one in deployment.joins}
    slots = {
        (stream, to, names[part.name].get(to, {}).get(stream, stream))
        for parts in parts_of(deployment).values()
        for (stream, to), ships in stream_ships(parts).items()
        for part, _ in ships
    }
    return (one for one in deployment.sent if (one.stream, one.to, one.name) in slots)
