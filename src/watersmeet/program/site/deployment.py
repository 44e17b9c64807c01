"""From the joins of all queries to one program a site: what they share, what travels, what stays over changes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce

from watersmeet.plan.nodes import JoinPlan, Plan, join_plan_of
from watersmeet.program.compile import compile_sites
from watersmeet.program.finish.model import Finish, finishes_of
from watersmeet.program.operators import (
    Copy,
    Flow,
    Form,
    Gather,
    JoinProgram,
    Operator,
    Purpose,
    Ship,
)
from watersmeet.program.site.families import member_of, shape_of_finish, shared_shapes
from watersmeet.program.site.nearest import Holder
from watersmeet.program.site.part import JoinPart, Route
from watersmeet.program.site.program import Shipment, SiteProgram, Stored
from watersmeet.program.site.roles import reads_window
from watersmeet.program.site.spans import ALL_TIMES, Span
from watersmeet.program.site.streams import StreamScan, stream_tables
from watersmeet.program.storage.segments import ORDINAL, TS
from watersmeet.query.comparisons import Condition
from watersmeet.query.model import TIME


@dataclass(frozen=True)
class Joined:
    """A join, what it is called, from when on it counts, and what is answered from it."""

    name: str
    join: JoinPlan
    start_us: int | None
    finishes: tuple[Finish, ...]
    heads: Span = ALL_TIMES  # of a version of a join: its combinations, by their latest rows
    since: int = 1  # the revision of the deployment that it came with
    is_fresh: bool = False  # whether its queries began with it
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by site, of streams that are sent there
    apart: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by site, see JoinPart
    copy_of: str = ""  # the join that it goes on with, for queries that another one has left


@dataclass(frozen=True)
class SentStream:
    """What of a stream's rows goes to a site under a name; decided once, since stored rows have columns by it."""

    stream: str
    to: str
    name: str
    columns: tuple[str, ...]
    keys: tuple[int, ...]
    selections: tuple[int, ...]
    routes: Mapping[str, Route | None]  # by flow at the home
    holder: Holder | None = None  # who sends the rows of the past, where that is not the home


@dataclass(frozen=True)
class Deployment:
    """All joins that run, versions of them included, and what must stay as it is while they come and go."""

    joins: tuple[Joined, ...]
    revision: int = 1
    scans: tuple[StreamScan, ...] = ()  # what was ever read of each stream keeps its numbers
    sent: tuple[SentStream, ...] = ()
    sites: tuple[str, ...] = ()  # all that take part, whether or not they have anything to do
    history: bool = False  # whether homes keep rows for versions that are still to come
    shares: bool = False  # whether queries share partial records (a checkpoint from before that has none)

    @property
    def in_force(self) -> tuple[Joined, ...]:
        return tuple(joined for joined in self.joins if joined.heads.until_us is None)


def first_joins(deployment: Deployment) -> dict[str, JoinPlan]:
    """By query, the join in force; of an outer join, the first of those that it is made of."""
    return {f.query: joined.join for joined in deployment.in_force for f in joined.finishes if f.branch == 0}


def shared_joins(
    plans: Mapping[str, Plan], starts_us: Mapping[str, int | None], errors: Mapping[str, str] | None = None
) -> list[Joined]:
    """The different joins of some queries: queries that differ only above the join, or in what they keep, share one."""
    found: dict[tuple[JoinPlan, int | None], list[tuple[JoinPlan, Finish]]] = {}
    for query in plans:
        for plan, finish in finishes_of(query, plans[query], (errors or {}).get(query, "fail")):
            join = join_plan_of(plan)
            scans = tuple(replace(scan, kept=()) for scan in join.scans)
            bare = replace(join, scans=scans, output=(), verify=(), conditions=())
            found.setdefault((bare, starts_us.get(query)), []).append((join, finish))
    joins = []
    for (_, start_us), users in found.items():
        (_, first), *_ = users
        name = first.query if first.branch == 0 else f"{first.query}#{first.branch + 1}"
        common = tuple(
            condition for condition in users[0][0].conditions if all(condition in join.conditions for join, _ in users)
        )
        own = [_with_common(join, finish, common) for join, finish in users]
        joins.append(Joined(name, _united([join for join, _ in own]), start_us, tuple(finish for _, finish in own)))
    return joins


def _with_common(join: JoinPlan, finish: Finish, common: tuple[Condition, ...]) -> tuple[JoinPlan, Finish]:
    """A join with the conditions that all its queries have; what follows it for one of them applies the others."""
    if join.conditions == common:
        return join, finish
    own = [condition for condition in join.conditions if condition not in common]
    asked = {*join.output, *(name for condition in own for name in condition.columns)}
    every = (*(name for scan in join.scans for name in scan.columns), TIME.flat)
    output = tuple(name for name in every if name in asked)
    predicates = dict.fromkeys([*(condition.expression for condition in own), *finish.predicates])
    return (
        replace(join, conditions=common, output=output),
        replace(finish, columns=output, predicates=tuple(predicates)),
    )


def _united(joins: Sequence[JoinPlan]) -> JoinPlan:
    """One join that keeps what any of several equal ones keeps."""
    first = joins[0]
    if len(joins) == 1:
        return first
    scans = tuple(
        replace(scan, kept=tuple({kept.name: kept for join in joins for kept in join.scans[number].kept}.values()))
        for number, scan in enumerate(first.scans)
    )
    wanted = {name for join in joins for name in join.output}
    output = tuple(name for name in (*(name for scan in scans for name in scan.columns), TIME.flat) if name in wanted)
    return replace(first, scans=scans, output=output)


def overlay(joins: Iterable[Joined], sites: Iterable[str] = (), *, answers: bool = True) -> dict[str, SiteProgram]:
    """The program of every site for all joins; without `answers` the last joins are left out (see compile_sites)."""
    return programs_of(deployed(joins, sites, answers=answers), answers=answers)


def deployed(
    joins: Iterable[Joined],
    sites: Iterable[str] = (),
    *,
    history: bool = False,
    answers: bool = True,
    shares: bool = True,
) -> Deployment:
    """The first deployment of some joins."""
    joins = tuple(joins)
    scans, _ = stream_tables((joined.name, joined.join, joined.start_us) for joined in joins)
    first = Deployment(
        joins, 1, tuple(scans[name] for name in sorted(scans)), (), tuple(sorted(sites)), history, shares
    )
    programs = {joined.name: _compiled(joined.join, first.sites, answers) for joined in joins}
    first = replace(first, sites=tuple(sorted({*first.sites, *(s for by_site in programs.values() for s in by_site)})))
    bare = _parts(first, programs)
    sent = [
        sent_stream for site in first.sites for sent_stream in sent_streams(bare[site], {name: name for name in scans})
    ]
    return replace(first, sent=tuple(sent))


def programs_of(deployment: Deployment, *, answers: bool = True) -> dict[str, SiteProgram]:
    """What every site does in a deployment."""
    parts = parts_of(deployment, answers=answers)
    shipments = {site: _shipments(deployment, parts, site) for site in deployment.sites}
    return {site: _program(deployment, site, parts[site], shipments) for site in deployment.sites}


def program_at(
    deployment: Deployment,
    site: str,
    gone: Collection[str] = (),
    past_numbers: Mapping[str, Mapping[str, tuple[str, ...]]] | None = None,
) -> SiteProgram:
    """What one site does in a deployment, without the joins that are over there."""
    parts = parts_of(deployment)
    shipments = {name: _shipments(deployment, parts, name) for name in deployment.sites}
    whole = _program(deployment, site, parts[site], shipments)
    left = [part for part in parts[site] if part.name not in gone]
    sent = _shipments(deployment, {**parts, site: left}, site) if gone else whole.shipments
    inbound = tuple((origin, shipment) for origin, shipment in whole.inbound if not _is_over(shipment, gone))
    read = {scan.stream for joined in deployment.joins if joined.name not in gone for scan in joined.join.scans}
    streams = tuple(scan for scan in whole.streams if scan.stream in read)
    return replace(
        whole, parts=tuple(left), streams=streams, shipments=sent, inbound=inbound, past_numbers=past_numbers or {}
    )


def _is_over(shipment: Shipment, gone: Collection[str]) -> bool:
    """Whether all joins are over that a shipment is for."""
    return shipment.join in gone or (bool(shipment.joins) and set(shipment.joins) <= set(gone))


def parts_of(deployment: Deployment, *, answers: bool = True) -> dict[str, list[JoinPart]]:
    """What every site does for each join by itself."""
    return _parts(
        deployment, {joined.name: _compiled(joined.join, deployment.sites, answers) for joined in deployment.joins}
    )


@lru_cache(maxsize=512)  # a change asks for the programs of all joins several times, and every site does
def _compiled(join: JoinPlan, sites: tuple[str, ...], answers: bool) -> Mapping[str, JoinProgram]:
    return compile_sites(join, sites, answers=answers)


def _program(
    deployment: Deployment, site: str, parts: Sequence[JoinPart], shipments: Mapping[str, tuple[Shipment, ...]]
) -> SiteProgram:
    joins, scans = deployment.joins, {scan.stream: scan for scan in deployment.scans}
    homes = {
        scan.stream: home for joined in joins for scan, home in zip(joined.join.scans, joined.join.homes, strict=True)
    }
    inbound = tuple(
        (origin, shipment) for origin in deployment.sites for shipment in shipments[origin] if shipment.to == site
    )
    local = tuple(scans[stream] for stream in sorted(scans) if homes.get(stream) == site)
    stored = {scan.stream: _all_of(scan) for scan in local}
    for sent in deployment.sent:
        if sent.to == site:
            stored[sent.name] = Stored(scans[sent.stream], sent.keys, sent.columns, sent.selections)
    derived = {finish.target.name for joined in joins for finish in joined.finishes if finish.target.is_stream}
    away = frozenset(
        scan.stream
        for joined in joins
        for scan in joined.join.scans
        if homes[scan.stream] == site and joined.join.site not in (None, site) and scan.stream not in derived
    )
    errors = {finish.query: finish.errors for joined in joins for finish in joined.finishes}
    return SiteProgram(
        *(site, tuple(parts), local, stored, shipments[site], inbound, away, errors),
        revision=deployment.revision,
        history=deployment.history,
        numbers_out=_numbers((shipment.to, shipment) for shipment in shipments[site]),
        numbers_in=_numbers(inbound),
    )


def _numbers(shipments: Iterable[tuple[str, Shipment]]) -> dict[str, tuple[str, ...]]:
    """The flows between two sites by number: the same at both ends, and whatever either has dropped of them."""
    found: dict[str, list[str]] = {}
    for peer, shipment in shipments:
        found.setdefault(peer, []).append(shipment.arrives_as)
    return {peer: tuple(sorted(flows)) for peer, flows in sorted(found.items())}


def _parts(deployment: Deployment, compiled: Mapping[str, Mapping[str, JoinProgram]]) -> dict[str, list[JoinPart]]:
    _, views = stream_tables(
        ((joined.name, joined.join, joined.start_us) for joined in deployment.joins), deployment.scans
    )
    parts: dict[str, list[JoinPart]] = {site: [] for site in deployment.sites}
    for joined in deployment.joins:
        queries = tuple(finish.query for finish in joined.finishes)
        for site, program in compiled[joined.name].items():
            names = joined.names.get(site, {})
            own = {
                alias: replace(view, stream=names.get(view.stream, view.stream))
                for (name, alias), view in views.items()
                if name == joined.name
            }
            finishes = joined.finishes if program.is_query_site else ()
            is_grouped = bool(queries) and all(finish.grouping and not finish.matching for finish in joined.finishes)
            makes_answers = any(operator.out.form is Form.RESULT for operator in program.operators)
            partials = joined.finishes if is_grouped and makes_answers and not finishes else ()
            apart = joined.apart.get(site, {})
            part = JoinPart(joined.name, program, own, queries, finishes, joined.heads, apart, joined.is_fresh)
            part = replace(part, partials=partials, is_grouped=is_grouped)
            if deployment.shares:
                part = _with_shapes(deployment, part, compiled[joined.name])
            parts[site].append(part)
    return {site: _with_shared(own, site) for site, own in parts.items()}


def _with_shapes(deployment: Deployment, part: JoinPart, compiled: Mapping[str, JoinProgram]) -> JoinPart:
    """A part with what its queries may share; the queries of an outer join and of a partition share nothing."""
    scan = part.join.scans[0]
    home = compiled.get(part.join.homes[0])
    if home is None or len(part.join.scans) > 1:
        return part
    found = {
        finish.query: shape
        for finish in (*part.finishes, *part.partials)
        if (shape := shape_of_finish(part.join, home, part.views, finish)) is not None
    }
    streams = {scan.stream: scan for scan in deployment.scans}
    selection = part.views[scan.alias].selection
    member = member_of(streams[scan.stream], selection, part.heads.from_us, part.heads.until_us)
    return replace(part, shapes=found, members=dict.fromkeys(found, member))


def _with_shared(parts: Sequence[JoinPart], site: str) -> list[JoinPart]:
    """Parts that know which of their queries share records here: at the home of a stream, where enough of them do."""
    here = [
        (shape, part.members[query].selection)
        for part in parts
        if part.shapes and part.join.homes[0] == site
        for query, shape in part.shapes.items()
    ]
    shared = shared_shapes(here)
    return [
        replace(part, shared=frozenset(query for query, shape in part.shapes.items() if shape in shared))
        if part.shapes and part.join.homes[0] == site
        else part
        for part in parts
    ]


def _all_of(scan: StreamScan) -> Stored:
    return Stored(scan, tuple(range(len(scan.keys))), scan.columns, tuple(range(len(scan.selections))))


def stream_ships(parts: Iterable[JoinPart]) -> dict[tuple[str, str], list[tuple[JoinPart, Ship]]]:
    """By stream and site, for which joins rows or the row clock of a stream go there."""
    found: dict[tuple[str, str], list[tuple[JoinPart, Ship]]] = {}
    for part in parts:
        streams = {f"clock({alias})": view.stream for alias, view in part.views.items()}
        for ship in part.program.ships:
            if part.view_of(ship.flow) is not None:
                found.setdefault((part.views[ship.flow.name].stream, ship.to), []).append((part, ship))
            elif ship.flow.form is Form.CLOCK:
                found.setdefault((streams[ship.flow.name], ship.to), []).append((part, ship))
    return found


def sent_streams(parts: Sequence[JoinPart], names: Mapping[str, str]) -> Iterable[SentStream]:
    """What goes of streams from a site to others: a stream once to each, with what any join needs of it there."""
    for (stream, to), every in sorted(stream_ships(parts).items()):
        ships = [(part, ship) for part, ship in every if ship.flow.form is not Form.CLOCK]
        users = [part.views[ship.flow.name] for part, ship in ships]
        keys = tuple(sorted({number for view in users for number in view.keys.values()}))
        columns = tuple(dict.fromkeys(name for view in users for _, name in view.columns if name not in (TS, ORDINAL)))
        selections = tuple(sorted({view.selection for view in users}))
        routes: dict[str, Route | None] = {}
        for flow in sorted({view.flow for view in users}):
            own = [(part, ship) for part, ship in ships if part.flow(ship.flow) == flow]
            part, ship = own[0]
            routes[flow] = part.route(ship.flow, ship.sub_plans) if len(own) == 1 else None
        yield SentStream(stream, to, names[stream], columns, keys, selections, routes)


def _shipments(deployment: Deployment, parts: Mapping[str, Sequence[JoinPart]], site: str) -> tuple[Shipment, ...]:
    """What a site ships for all joins."""
    found: dict[tuple[str, str], Shipment] = {}
    own = {part.name: part for part in parts[site]}
    for part in own.values():
        for finish in part.partials:
            assert part.join.site is not None, "answers are wanted at another site"
            if finish.query in part.shared:
                shape = part.shapes[finish.query]
                slot = (shape.site, shape.arrives_as(site))
                others = found[slot].joins if slot in found else ()
                joins = tuple(dict.fromkeys((*others, part.name)))
                found[slot] = Shipment(
                    *(shape.name, shape.site, shape.arrives_as(site), Form.RECORD, Purpose.RECORDS),
                    shape=shape,
                    joins=joins,
                )
                continue
            records, to = part.records(finish.query, site), part.join.site
            found[to, records] = Shipment(records, to, records, Form.RECORD, Purpose.RECORDS, join=part.name)
        for ship in part.program.ships:
            if part.view_of(ship.flow) is not None or ship.flow.form is Form.CLOCK:
                continue
            if ship.flow.form is Form.RESULT and part.partials:
                continue  # nobody needs the rows
            arrives = part.flow(ship.arrives_as)
            found[ship.to, arrives] = Shipment(
                part.flow(ship.flow),
                ship.to,
                arrives,
                ship.flow.form,
                ship.arrives_as.purpose,
                ship.arrives_as.bloom,
                part.name,
                part.route(ship.flow, ship.sub_plans),
                copies=_copies(part, ship),
            )
    sent = {(sent.stream, sent.to, sent.name): sent for sent in deployment.sent}
    tables = {scan.stream for scan in deployment.scans if scan.is_table}
    for (stream, to), ships in stream_ships(own.values()).items():
        there = {part.name: part for part in parts[to]}
        for part, ship in ships:
            arrives = there[part.name].flow(ship.arrives_as)
            if ship.flow.form is Form.CLOCK:
                purpose = Purpose.TABLES if stream in tables else ship.arrives_as.purpose
                found[to, arrives] = Shipment(part.flow(ship.flow), to, arrives, Form.CLOCK, purpose, has_history=True)
                continue
            spec = sent[stream, to, there[part.name].views[ship.flow.name].stream]
            purpose = Purpose.TABLES if stream in tables else Purpose.TUPLES
            shipment = _row_shipment(part, there[part.name], ship, spec, purpose)
            found[to, arrives] = _together(found.get((to, arrives), shipment), shipment)
    for spec in deployment.sent:
        if spec.holder is not None and spec.holder.site == site:
            past = _past_shipment(parts, spec, spec.holder)
            found[past.to, past.arrives_as] = past
    return tuple(found[name] for name in sorted(found))


def _row_shipment(part: JoinPart, there: JoinPart, ship: Ship, spec: SentStream, purpose: Purpose) -> Shipment:
    """Rows of a stream as they go from its home to a site for one join."""
    flow = part.views[ship.flow.name].flow
    return Shipment(
        flow,
        spec.to,
        there.flow(ship.arrives_as),
        Form.ROW,
        purpose,
        route=spec.routes[flow],
        columns=spec.columns,
        keys=spec.keys,
        selections=spec.selections,
        span=_span_there(there, ship.flow),
        has_history=_reads_window(there, ship.flow),
        past=ALL_TIMES if spec.holder is None else Span(spec.holder.until_us),
    )


def _together(one: Shipment, other: Shipment) -> Shipment:
    """The same rows for several joins."""
    return replace(other, span=one.span | other.span, has_history=one.has_history or other.has_history)


def _past_shipment(parts: Mapping[str, Sequence[JoinPart]], spec: SentStream, holder: Holder) -> Shipment:
    """Rows of a stream that came before, as they go from another site than its home."""
    there = {part.name: part for part in parts[spec.to]}
    for own in parts.values():
        users = [
            _row_shipment(part, there[part.name], ship, spec, Purpose.MIGRATION)
            for part, ship in stream_ships(own).get((spec.stream, spec.to), ())
            if ship.flow.form is not Form.CLOCK and there[part.name].views[ship.flow.name].stream == spec.name
        ]
        if users:
            whole = reduce(_together, users)
            arrives = f"{whole.arrives_as} from {holder.site}"
            span, source = Span(None, holder.until_us), holder.relation
            past = replace(whole, flow=holder.held_as, arrives_as=arrives, past=span, source=source)
            return replace(past, files_as=whole.arrives_as)
    raise AssertionError(f"nobody sends {spec.name} to {spec.to}")


def _copies(part: JoinPart, ship: Ship) -> tuple[Copy, ...]:
    """What becomes of gathered rows where they arrive."""
    made = (
        operator for operator in part.program.operators if isinstance(operator, Gather) and operator.out == ship.flow
    )
    return tuple(replace(copy, flow=f"{part.name}:{copy.flow}") for gather in made for copy in gather.copies)


def _readers(part: JoinPart, flow: Flow) -> list[Operator]:
    return [operator for operator in part.program.operators if flow in operator.inputs]


def _span_there(part: JoinPart, flow: Flow) -> Span:
    """When the rows of a stream are that a join may need where they are sent."""
    spans = [part.span(operator, flow) for operator in _readers(part, flow)]
    return reduce(Span.__or__, spans) if spans else part.heads


def _reads_window(part: JoinPart, flow: Flow) -> bool:
    """Whether a join needs rows of a stream that came before it was set up."""
    return not part.is_fresh and any(reads_window(operator, flow) for operator in _readers(part, flow))
