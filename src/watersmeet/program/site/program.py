"""All that one site does, for all queries: their join programs overlaid, so that what they share is there once.

A stream that several aliases or queries read is stored once by each key and crosses each link once; queries with the
same join share all of it. Flows of a join keep its name in front of their own; rows of streams are shared by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from watersmeet.plan.nodes import JoinPlan, Key, Partition, Plan, join_plan_of
from watersmeet.program.compile import compile_sites
from watersmeet.program.finish.model import Finish, finish_of
from watersmeet.program.join.shared import MOST_QUERIES, MOST_SELECTIONS
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Join,
    JoinProgram,
    Operator,
    Pair,
    Probe,
    Purpose,
    Ship,
    SubPlans,
    sub_plans_name,
)
from watersmeet.program.site.streams import StreamScan, View, clock_flow, ordered_flow, stream_tables
from watersmeet.query.windows import Rows


@dataclass(frozen=True, slots=True)
class Route:
    """Which rows some sub-plans of a partitioned join are for, by a class column of the rows."""

    partition: Partition
    column: int
    sub_plans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """One order in which the rows of a flow are stored: sorted by a hash of some class columns."""

    relation: str
    columns: Key
    route: Route | None = None
    selections: tuple[int, ...] | None = None  # rows of a stream that fulfil any of these; None is all that are stored
    classes: tuple[int, ...] | None = None  # class columns that are read of the rows; None is all


@dataclass(frozen=True, slots=True)
class Shipment:
    """A flow that goes to another site."""

    flow: str
    to: str
    arrives_as: str
    form: Form
    purpose: Purpose
    bloom: bool = False  # as Bloom filters of its keys
    join: str = ""  # whose flow it is; none of a stream's rows, which may be for several
    route: Route | None = None
    columns: tuple[str, ...] | None = None  # of a stream's rows: the kept values that go along
    keys: tuple[int, ...] = ()  # and the key columns
    selections: tuple[int, ...] = ()  # and what rows must fulfil one of


@dataclass(frozen=True, slots=True)
class Stored:
    """The form in which the rows of a stream are stored at a site."""

    scan: StreamScan
    keys: tuple[int, ...]
    columns: tuple[str, ...]
    selections: tuple[int, ...]  # of the scan; a single one needs no bit

    def bit(self, selection: int) -> int | None:
        """The bit of a selection in stored rows; None where every stored row fulfils it."""
        return None if len(self.selections) == 1 else self.selections.index(selection)


@dataclass(frozen=True)
class JoinPart:
    """A site's part of one join, and the queries that are answered from it here."""

    name: str
    program: JoinProgram
    views: Mapping[str, View]
    queries: tuple[str, ...]  # all that ask for this join, wherever they are answered
    finishes: tuple[Finish, ...] = ()

    @property
    def join(self) -> JoinPlan:
        return self.program.join

    @cached_property
    def _clocks(self) -> dict[str, str]:
        return {f"clock({alias})": clock_flow(view.stream) for alias, view in self.views.items()}

    def view_of(self, flow: Flow) -> View | None:
        """The view through which a flow is read, if it is the rows of a stream."""
        return self.views.get(flow.name) if flow.form is Form.ROW else None

    def flow(self, flow: Flow) -> str:
        """The name of a flow of this join among all flows of the site."""
        view = self.view_of(flow)
        if view is not None:
            return view.flow
        return self._clocks[flow.name] if flow.form is Form.CLOCK else f"{self.name}:{flow.name}"

    def clock(self, alias: str) -> str:
        """The name of an alias's row clock."""
        return clock_flow(self.views[alias].stream)

    def columns(self, flow: Flow, key: Key) -> Key:
        """The class columns of a flow's rows that are a key of the join."""
        view = self.view_of(flow)
        return key if view is None else tuple(view.keys[number] for number in key)

    def relation(self, flow: Flow, key: Key, sub_plans: SubPlans = None) -> str:
        """The name of a flow's rows sorted by a key, of some sub-plans if not all.

        Aliases of one stream may have the partition's key in different columns, or some not at all: then the rows of
        a sub-plan are others for each.
        """
        route = self.route(flow, sub_plans)
        own = "" if route is None else f"{sub_plans_name(sub_plans)}@{self.name}.{route.column}"
        return f"{self.flow(flow)}/{'-'.join(map(str, self.columns(flow, key)))}{own}"

    def route(self, flow: Flow, sub_plans: SubPlans) -> Route | None:
        """Which rows of a flow some sub-plans are for; None where all are or their part is not known from the row."""
        partition = self.join.partition
        if sub_plans is None or partition is None:
            return None
        view = self.view_of(flow)
        if view is None:
            return Route(partition, partition.key_class, sub_plans)
        column = view.keys.get(partition.key_class)
        return None if column is None else Route(partition, column, sub_plans)


@dataclass(frozen=True)
class SiteProgram:
    """Everything a site does; `program.site.engine` runs it."""

    site: str
    parts: tuple[JoinPart, ...]
    streams: tuple[StreamScan, ...] = ()  # those that arrive here
    stored: Mapping[str, Stored] = field(default_factory=dict)  # by stream, of all whose rows are here
    shipments: tuple[Shipment, ...] = ()
    inbound: tuple[tuple[str, Shipment], ...] = ()  # sender, shipment
    away: frozenset[str] = frozenset()  # local streams that some query would need elsewhere if all went to one place
    errors: Mapping[str, str] = field(default_factory=dict)  # by query: what becomes of rows whose expressions fail

    def part(self, name: str) -> JoinPart:
        return self._parts[name]

    @cached_property
    def _parts(self) -> dict[str, JoinPart]:
        return {part.name: part for part in self.parts}

    @cached_property
    def operators(self) -> tuple[tuple[JoinPart, Operator], ...]:
        return tuple((part, operator) for part in self.parts for operator in part.program.operators)

    @cached_property
    def indexes(self) -> dict[str, tuple[Index, ...]]:
        """For each flow that is read here, the orders in which it is stored."""
        found: dict[str, dict[str, Index]] = {}
        for part, operator in self.operators:
            for flow in stored_inputs(operator):
                key, sub_plans = operator.key, operator.sub_plans
                view, name = part.view_of(flow), part.flow(flow)
                selections = None if view is None else (view.selection,)
                index = Index(
                    part.relation(flow, key, sub_plans),
                    part.columns(flow, key),
                    part.route(flow, sub_plans),
                    selections,
                    _classes_read(part, operator, flow),
                )
                known = found.setdefault(name, {}).get(index.relation, index)
                found[name][index.relation] = replace(
                    index,
                    selections=_union(known.selections, index.selections),
                    classes=_union(known.classes, index.classes),
                )
        return {name: tuple(by_relation[one] for one in sorted(by_relation)) for name, by_relation in found.items()}

    @cached_property
    def shipments_of(self) -> dict[str, tuple[Shipment, ...]]:
        """For each flow, where it goes."""
        found: dict[str, list[Shipment]] = {}
        for shipment in self.shipments:
            found.setdefault(shipment.flow, []).append(shipment)
        return {name: tuple(shipments) for name, shipments in found.items()}

    @cached_property
    def ordered(self) -> tuple[str, ...]:
        """Local streams whose rows get ordinals, since some ROWS window counts them."""
        local = {scan.stream for scan in self.streams}
        needed = {view.stream for part in self.parts for view in part.views.values() if view.ordered}
        return tuple(sorted(local & needed))

    @cached_property
    def eager(self) -> frozenset[str]:
        """Local streams whose rows are read as they arrive."""
        return frozenset(view.stream for part in self.parts for view in part.views.values() if not view.ordered)

    @cached_property
    def finishes(self) -> tuple[tuple[JoinPart, Finish], ...]:
        return tuple((part, finish) for part in self.parts for finish in part.finishes)

    @property
    def peers_out(self) -> tuple[str, ...]:
        return tuple(sorted({shipment.to for shipment in self.shipments}))

    @property
    def peers_in(self) -> tuple[str, ...]:
        return tuple(sorted({sender for sender, _ in self.inbound}))

    def flows_to(self, to: str) -> list[Shipment]:
        """The flows to another site in the order by which messages number them; the same at both ends."""
        return sorted((one for one in self.shipments if one.to == to), key=lambda one: one.arrives_as)

    def flows_from(self, sender: str) -> list[Shipment]:
        """The flows from another site in the order by which messages number them."""
        return sorted((one for origin, one in self.inbound if origin == sender), key=lambda one: one.arrives_as)

    @property
    def does_nothing(self) -> bool:
        return not (self.operators or self.shipments or self.finishes)


def stored_inputs(operator: Operator) -> tuple[Flow, ...]:
    """The flows whose rows an operator looks for by its key; an announcer also remembers what it announced."""
    if isinstance(operator, Announce):
        return (operator.rows, operator.out)
    return tuple(dict.fromkeys(operator.inputs))


def _union(some: tuple[int, ...] | None, others: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if some is None or others is None else tuple(sorted({*some, *others}))


def _classes_read(part: JoinPart, operator: Operator, flow: Flow) -> tuple[int, ...] | None:
    """The class columns that an operator reads of the stored rows of a stream; None may be all."""
    view = part.view_of(flow)
    if view is None or not isinstance(operator, Probe | Join | Pair):
        return None
    if isinstance(operator, Probe):
        checks = {number for lookup in operator.lookups for number in lookup.checks}
    else:
        checks = set(operator.checks)
    return tuple(sorted({view.keys[number] for number in {*checks, *operator.carried} if number in view.keys}))


def axis_alias(operator: Operator, flow: Flow) -> str:
    """The alias whose window an input of an operator is about."""
    match operator:
        case Pair():
            return operator.left_alias if flow == operator.left else operator.right_alias
        case Probe():
            return next((one.alias for one in operator.lookups if one.rows == flow), operator.head)
        case _:
            return operator.alias


@dataclass(frozen=True)
class Joined:
    """A join, what it is called, from when on it counts, and what is answered from it."""

    name: str
    join: JoinPlan
    start_us: int | None
    finishes: tuple[Finish, ...]


def shared_joins(
    plans: Mapping[str, Plan], starts_us: Mapping[str, int | None], errors: Mapping[str, str] | None = None
) -> list[Joined]:
    """The different joins of some queries: queries that differ only above the join, or in what they keep, share one."""
    found: dict[tuple[JoinPlan, int | None], list[str]] = {}
    for query in plans:
        join = join_plan_of(plans[query])
        bare = replace(join, scans=tuple(replace(scan, kept=()) for scan in join.scans), output=(), verify=())
        found.setdefault((bare, starts_us.get(query)), []).append(query)
    joins = []
    for (_, start_us), queries in found.items():
        joins.append(
            Joined(
                queries[0],
                _united([join_plan_of(plans[query]) for query in queries]),
                start_us,
                tuple(finish_of(query, plans[query], (errors or {}).get(query, "fail")) for query in queries),
            )
        )
    return joins


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
    output = tuple(name for scan in scans for name in scan.columns if name in wanted)
    return replace(first, scans=scans, output=output)


def overlay(joins: Iterable[Joined], sites: Iterable[str] = (), *, answers: bool = True) -> dict[str, SiteProgram]:
    """The program of every site for all joins; without `answers` the last joins are left out (see compile_sites)."""
    joins = list(joins)
    scans, views = stream_tables((one.name, one.join, one.start_us) for one in joins)
    programs = {one.name: compile_sites(one.join, sites, answers=answers) for one in joins}
    homes = {scan.stream: home for one in joins for scan, home in zip(one.join.scans, one.join.homes, strict=True)}
    names = sorted({site for by_site in programs.values() for site in by_site})
    parts: dict[str, list[JoinPart]] = {site: [] for site in names}
    for one in joins:
        own = {alias: view for (name, alias), view in views.items() if name == one.name}
        queries = tuple(finish.query for finish in one.finishes)
        for site, program in programs[one.name].items():
            finishes = one.finishes if program.is_query_site else ()
            parts[site].append(JoinPart(one.name, program, own, queries, finishes))
    shipments = {site: _shipments(site, parts[site]) for site in names}
    errors = {finish.query: finish.errors for one in joins for finish in one.finishes}
    made = {}
    for site in names:
        inbound = tuple((origin, one) for origin in names for one in shipments[origin] if one.to == site)
        local = tuple(scans[stream] for stream in sorted(scans) if homes[stream] == site)
        stored = {scan.stream: _all_of(scan) for scan in local}
        for _, shipment in inbound:
            if shipment.columns is not None:
                stream = shipment.flow.removesuffix(ordered_flow(""))
                here = Stored(scans[stream], shipment.keys, shipment.columns, shipment.selections)
                stored[stream] = here
        away = frozenset(
            scan.stream
            for one in joins
            for scan in one.join.scans
            if homes[scan.stream] == site and one.join.site not in (None, site)
        )
        made[site] = SiteProgram(site, tuple(parts[site]), local, stored, shipments[site], inbound, away, errors)
    return made


def _all_of(scan: StreamScan) -> Stored:
    return Stored(scan, tuple(range(len(scan.keys))), scan.columns, tuple(range(len(scan.selections))))


def _shipments(site: str, parts: Sequence[JoinPart]) -> tuple[Shipment, ...]:
    """What a site ships for all joins: a stream's rows go once to each site, with what any join needs of them there."""
    found: dict[tuple[str, str], Shipment] = {}
    rows: dict[tuple[str, str], list[tuple[JoinPart, Ship]]] = {}
    for part in parts:
        for ship in part.program.ships:
            if part.view_of(ship.flow) is not None:
                rows.setdefault((part.views[ship.flow.name].stream, ship.to), []).append((part, ship))
                continue
            arrives = part.flow(ship.arrives_as)
            found[ship.to, arrives] = Shipment(
                part.flow(ship.flow),
                ship.to,
                arrives,
                ship.flow.form,
                ship.arrives_as.purpose,
                ship.arrives_as.bloom,
                "" if ship.flow.form is Form.CLOCK else part.name,
                part.route(ship.flow, ship.sub_plans),
            )
    for (_, to), ships in rows.items():
        users = [(part, part.views[ship.flow.name]) for part, ship in ships]
        keys = tuple(sorted({number for _, view in users for number in view.keys.values()}))
        columns = tuple(dict.fromkeys(name for _, view in users for _, name in view.columns))
        selections = tuple(sorted({view.selection for _, view in users}))
        for flow in sorted({view.flow for _, view in users}):
            own = [(part, ship) for part, ship in ships if part.flow(ship.flow) == flow]
            part, ship = own[0]
            route = part.route(ship.flow, ship.sub_plans) if len(own) == 1 else None
            found[to, flow] = Shipment(
                flow, to, flow, Form.ROW, Purpose.TUPLES, route=route, columns=columns, keys=keys, selections=selections
            )
    return tuple(found[name] for name in sorted(found))


def needs_rows(part: JoinPart) -> bool:
    """Whether a join counts rows, so that rows are new only when all watermarks have passed them."""
    return any(isinstance(scan.window, Rows) for scan in part.join.scans)


@dataclass(frozen=True)
class ProbeGroup:
    """Probes of several joins that do the same but for filters and columns: one probe does it for all of them."""

    members: tuple[tuple[str, Probe], ...]  # name of the join, its probe


def probe_groups(
    program: SiteProgram, operators: Sequence[tuple[str, Operator]]
) -> tuple[list[ProbeGroup], list[tuple[str, Operator]]]:
    """Probes that can be done together, at most 64, and the operators that are left."""
    alike: dict[object, list[tuple[str, Probe]]] = {}
    rest: list[tuple[str, Operator]] = []
    for name, operator in operators:
        part = program.part(name)
        slot = _probe_shape(part, operator)
        streams = {view.stream for view in part.views.values()} & program.stored.keys()
        if slot is None or any(len(program.stored[one].selections) > MOST_SELECTIONS for one in streams):
            rest.append((name, operator))
        else:
            assert isinstance(operator, Probe)
            alike.setdefault(slot, []).append((name, operator))
    groups = []
    for members in alike.values():
        for start in range(0, len(members), MOST_QUERIES):
            some = members[start : start + MOST_QUERIES]
            if len(some) > 1:
                groups.append(ProbeGroup(tuple(some)))
            else:
                rest += some
    return groups, rest


def _probe_shape(part: JoinPart, operator: Operator) -> object | None:
    """What probes that are done together have in common; None where a probe is done by itself."""
    if not isinstance(operator, Probe) or operator.out.form is not Form.RESULT or operator.sub_plans is not None:
        return None
    if part.view_of(operator.left) is None:
        return None
    aliases = [flow.name for flow in operator.windows]
    windows = tuple((part.views[alias].flow, part.join.scan(alias).window) for alias in aliases)
    lookups = tuple(
        (aliases.index(one.alias), part.columns(one.rows, one.checks), owners_of(part, operator, one.checks))
        for one in operator.lookups
    )
    keys = tuple(part.columns(flow, operator.key) for flow in operator.inputs)
    return aliases.index(operator.head), windows, lookups, keys, needs_rows(part)


def owners_of(part: JoinPart, operator: Probe, checks: Key) -> tuple[tuple[int, int], ...]:
    """For each class to compare, the place and column of the first alias before that has it."""
    order = [operator.head, *(one.alias for one in operator.lookups)]
    found = []
    for number in checks:
        place = next(place for place, alias in enumerate(order) if number in part.views[alias].keys)
        found.append((place, part.views[order[place]].keys[number]))
    return tuple(found)
