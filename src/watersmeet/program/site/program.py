"""All that one site does, for all queries: their join programs overlaid, so that what they share is there once.

A stream that several aliases or queries read is stored once by each key and crosses each link once; queries with the
same join share all of it. Flows of a join keep its name in front of their own; rows of streams are shared by name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

from watersmeet.plan.nodes import JoinPlan, Key, Partition, Plan, join_plan_of
from watersmeet.program.compile import compile_sites
from watersmeet.program.finish.model import Finish, finishes_of
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
    Project,
    Purpose,
    Semijoin,
    Ship,
    SubPlans,
    rows_of,
    sub_plans_name,
)
from watersmeet.program.site.streams import StreamScan, View, clock_flow, stream_tables
from watersmeet.program.storage.segments import ORDINAL, TS
from watersmeet.query.model import TIME
from watersmeet.query.windows import AsOf, Range, Tumble, Unbounded, Window, counted


@dataclass(frozen=True, slots=True)
class Span:
    """Event times from an instant to before another; None is no bound."""

    from_us: int | None = None
    until_us: int | None = None

    @property
    def is_all(self) -> bool:
        return self.from_us is None and self.until_us is None

    def __or__(self, other: "Span") -> "Span":
        """The shortest span that contains both."""
        firsts, ends = (self.from_us, other.from_us), (self.until_us, other.until_us)
        return Span(
            min((one for one in firsts if one is not None), default=None) if None not in firsts else None,
            max((one for one in ends if one is not None), default=None) if None not in ends else None,
        )


ALL_TIMES = Span()


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
    span: Span = ALL_TIMES  # of the rows that any reader may need


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
    span: Span = ALL_TIMES  # and when they are
    has_history: bool = False  # whether rows that came before it was set up are needed too


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
    heads: Span = ALL_TIMES  # of the combinations that are its own, by their latest rows
    apart: Mapping[str, str] = field(default_factory=dict)  # relations of streams that it does not share, by that name
    is_fresh: bool = False  # of a query that began with it, so that no earlier row takes part
    partials: tuple[Finish, ...] = ()  # queries with groups that are answered elsewhere: records go there, not rows
    is_grouped: bool = False  # all its queries group their answers, so that sites send each other partial records

    def records(self, query: str, origin: str) -> str:
        """The flow of a query's partial records from a site."""
        return f"{self.name}:records of {query} from {origin}"

    @property
    def join(self) -> JoinPlan:
        return self.program.join

    @property
    def is_in_force(self) -> bool:
        """Whether no other version has been agreed on to follow this one."""
        return self.heads.until_us is None

    def span(self, operator: Operator, flow: Flow) -> Span:
        """When the rows of a stream are that an operator may need."""
        if self.heads.from_us is None or self.is_fresh:
            return Span(self.heads.from_us, self.heads.until_us)
        first: int | None = self.heads.from_us
        if role(operator, flow) is not Form.POINT:
            first = first_visible(self.join.scan(axis_alias(operator, flow)).window, self.heads.from_us)
        return Span(first, self.heads.until_us)

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
        name = f"{self.flow(flow)}/{'-'.join(map(str, self.columns(flow, key)))}{own}"
        return self.apart.get(name, name)

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
    revision: int = 1  # of the deployment
    history: bool = False  # whether homes keep the rows of windows for versions that are still to come
    numbers_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # flows by number, to each site
    numbers_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # and from each
    past_numbers: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)  # the same by revision

    def flow_names(self, sender: str, revision: int) -> tuple[str, ...]:
        """The flows from another site as it numbered them at a revision."""
        known = self.numbers_in if revision == self.revision else self.past_numbers.get(str(revision), {})
        return known.get(sender, ())

    @cached_property
    def counted_parts(self) -> tuple[JoinPart, ...]:
        """Of several versions of a join, the one that rows are counted for."""
        current = {query for part in self.parts if part.is_in_force for query in part.queries}
        return tuple(part for part in self.parts if part.is_in_force or not current & set(part.queries))

    @cached_property
    def answered(self) -> tuple[str, ...]:
        """The queries whose answers sinks get here."""
        return tuple(sorted({finish.target.name for _, finish in self.finishes if not finish.target.is_stream}))

    @cached_property
    def derived(self) -> frozenset[str]:
        """Streams whose rows are answers of queries here."""
        return frozenset(finish.target.name for _, finish in self.finishes if finish.target.is_stream)

    @cached_property
    def sources(self) -> tuple[StreamScan, ...]:
        """The streams that arrive here from outside."""
        return tuple(scan for scan in self.streams if scan.stream not in self.derived)

    @cached_property
    def strata(self) -> tuple[frozenset[str], ...]:
        """The joins in an order in which derived streams have their rows before they are read."""
        feeding: dict[str, set[str]] = {}
        for part, finish in self.finishes:
            if finish.target.is_stream:
                feeding.setdefault(finish.target.name, set()).add(part.name)
        reads = {part.name: {view.stream for view in part.views.values()} & feeding.keys() for part in self.parts}
        left, found = dict(reads), []
        while left:
            waiting = {stream for stream, feeders in feeding.items() if feeders & left.keys()}
            ready = frozenset(name for name, streams in left.items() if not streams & waiting)
            assert ready, "derived streams do not read themselves"
            found.append(ready)
            left = {name: streams for name, streams in left.items() if name not in ready}
        return tuple(found)

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
                    None if self.history else _classes_read(part, operator, flow),
                    ALL_TIMES if view is None else part.span(operator, flow),
                )
                known = found.setdefault(name, {}).get(index.relation, index)
                found[name][index.relation] = replace(
                    index,
                    selections=_union(known.selections, index.selections),
                    classes=_union(known.classes, index.classes),
                    span=known.span | index.span,
                )
        for name in self.kept_flows:
            relation = history_relation(name)
            found.setdefault(name, {})[relation] = Index(relation, ())
        return {name: tuple(by_relation[one] for one in sorted(by_relation)) for name, by_relation in found.items()}

    @cached_property
    def windows_read(self) -> dict[str, tuple["WindowReader", ...]]:
        """For each relation of a stream's rows that operators keep for as long as a window, who reads it."""
        found: dict[str, list[WindowReader]] = {}
        for part, operator in self.operators:
            for flow in stored_inputs(operator):
                view = part.view_of(flow)
                if view is None or not reads_window(operator, flow) or isinstance(operator, Project):
                    continue
                route = part.route(flow, operator.sub_plans)
                relation = part.relation(flow, operator.key, operator.sub_plans)
                window = part.join.scan(axis_alias(operator, flow)).window
                found.setdefault(relation, []).append(
                    WindowReader(
                        view.flow,
                        view.selection,
                        window,
                        route is None and part.is_in_force and not _meets_only_tables(part, operator, flow),
                    )
                )
        return {relation: tuple(readers) for relation, readers in found.items()}

    def covering(self, flow: str, needed: "Iterable[tuple[int, Window]]") -> str | None:
        """A relation that has all rows of a stream's windows, by (selection, window), that heads to come may reach."""
        wanted = list(needed)
        if flow in self.kept_flows:
            return history_relation(flow)
        for relation, readers in sorted(self.windows_read.items()):
            whole = [one for one in readers if one.flow == flow and one.is_whole]
            if whole and all(any(one.covers(*need) for one in whole) for need in wanted):
                return relation
        return None

    @cached_property
    def kept_flows(self) -> tuple[str, ...]:
        """Rows of local streams that are kept for later versions alone: no operator here keeps all of them."""
        if not self.history:
            return ()
        needed: dict[str, list[tuple[int, Window]]] = {}
        local = {scan.stream for scan in self.streams}
        for part, alias in self.in_force:
            view = part.views[alias]
            if view.stream in local:
                needed.setdefault(view.flow, []).append((view.selection, part.join.scan(alias).window))
        kept = []
        for flow, wanted in sorted(needed.items()):
            relations = (
                [one for one in readers if one.flow == flow and one.is_whole] for readers in self.windows_read.values()
            )
            if not any(whole and all(any(r.covers(*need) for r in whole) for need in wanted) for whole in relations):
                kept.append(flow)
        return tuple(kept)

    @cached_property
    def in_force(self) -> tuple[tuple[JoinPart, str], ...]:
        """The aliases of all joins that no other version follows."""
        return tuple((part, scan.alias) for part in self.parts if part.is_in_force for scan in part.join.scans)

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
    def partials(self) -> tuple[tuple[JoinPart, Finish], ...]:
        """Queries whose answers are aggregated here before they travel."""
        return tuple((part, finish) for part in self.parts for finish in part.partials)

    @property
    def peers_out(self) -> tuple[str, ...]:
        return tuple(sorted({shipment.to for shipment in self.shipments}))

    @property
    def peers_in(self) -> tuple[str, ...]:
        return tuple(sorted({sender for sender, _ in self.inbound}))

    def flows_to(self, to: str) -> list[Shipment]:
        """The flows that go to another site."""
        return sorted((one for one in self.shipments if one.to == to), key=lambda one: one.arrives_as)

    def flows_from(self, sender: str) -> list[Shipment]:
        """The flows that come from another site."""
        return sorted((one for origin, one in self.inbound if origin == sender), key=lambda one: one.arrives_as)

    @cached_property
    def shipments_in(self) -> dict[tuple[str, str], Shipment]:
        """By sender and name, what comes from other sites."""
        return {(sender, one.arrives_as): one for sender, one in self.inbound}

    @property
    def does_nothing(self) -> bool:
        return not (self.operators or self.shipments or self.finishes)


@dataclass(frozen=True, slots=True)
class WindowReader:
    """Whose window the rows of a relation are kept for."""

    flow: str
    selection: int
    window: Window
    is_whole: bool  # for all keys, and for heads without end

    def covers(self, selection: int, window: Window) -> bool:
        """Whether all rows of another window are among those that are kept."""
        longer = (
            isinstance(self.window, Range) and isinstance(window, Range) and self.window.window_us >= window.window_us
        )
        return self.selection == selection and (self.window == window or longer or isinstance(self.window, Unbounded))


def history_relation(flow: str) -> str:
    """The rows of a stream that are kept for versions still to come."""
    return f"{flow}/history"


def first_visible(window: Window, instant_us: int) -> int | None:
    """From when on rows are that heads at an instant or later can reach; None where time does not say."""
    match window:
        case Range(window_us):
            return instant_us - window_us
        case Tumble(window_us):
            return instant_us // window_us * window_us
        case _:
            return None


def role(operator: Operator, flow: Flow) -> Form:
    """What the rows of an input stand for in an operator: the rows of a head are points, those of a window are not."""
    if isinstance(operator, Join):
        return Form.POINT if flow == operator.left else Form.ROW
    if isinstance(operator, Semijoin) and operator.head and flow == rows_of(operator.head):
        return Form.POINT
    if isinstance(operator, Project) and not operator.alias:
        return Form.POINT
    return flow.form


def reads_window(operator: Operator, flow: Flow) -> bool:
    """Whether an operator looks up rows of a flow that came before; new rows of a head look up others."""
    is_carrier = isinstance(operator, Probe) and flow == operator.left
    return not is_carrier and role(operator, flow) is not Form.POINT


def _meets_only_tables(part: JoinPart, operator: Operator, flow: Flow) -> bool:
    """Whether rows of a flow are looked up by rows of tables alone: these come first, so the others are not kept."""
    match operator:
        case Probe():
            others = [one.name for one in operator.windows if one != flow]
        case Pair():
            others = [*(operator.right_bound if flow == operator.left else operator.left_bound)]
        case _:
            return False
    return all(isinstance(part.join.scan(alias).window, AsOf) for alias in others)


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


@dataclass(frozen=True)
class Deployment:
    """All joins that run, versions of them included, and what must stay as it is while they come and go."""

    joins: tuple[Joined, ...]
    revision: int = 1
    scans: tuple[StreamScan, ...] = ()  # what was ever read of each stream keeps its numbers
    sent: tuple[SentStream, ...] = ()
    sites: tuple[str, ...] = ()  # all that take part, whether or not they have anything to do
    history: bool = False  # whether homes keep rows for versions that are still to come

    @property
    def in_force(self) -> tuple[Joined, ...]:
        return tuple(one for one in self.joins if one.heads.until_us is None)


def shared_joins(
    plans: Mapping[str, Plan], starts_us: Mapping[str, int | None], errors: Mapping[str, str] | None = None
) -> list[Joined]:
    """The different joins of some queries: queries that differ only above the join, or in what they keep, share one."""
    found: dict[tuple[JoinPlan, int | None], list[tuple[JoinPlan, Finish]]] = {}
    for query in plans:
        for plan, finish in finishes_of(query, plans[query], (errors or {}).get(query, "fail")):
            join = join_plan_of(plan)
            bare = replace(join, scans=tuple(replace(scan, kept=()) for scan in join.scans), output=(), verify=())
            found.setdefault((bare, starts_us.get(query)), []).append((join, finish))
    joins = []
    for (_, start_us), users in found.items():
        (_, first), *_ = users
        name = first.query if first.branch == 0 else f"{first.query}#{first.branch + 1}"
        joins.append(Joined(name, _united([join for join, _ in users]), start_us, tuple(finish for _, finish in users)))
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
    output = tuple(name for name in (*(name for scan in scans for name in scan.columns), TIME.flat) if name in wanted)
    return replace(first, scans=scans, output=output)


def overlay(joins: Iterable[Joined], sites: Iterable[str] = (), *, answers: bool = True) -> dict[str, SiteProgram]:
    """The program of every site for all joins; without `answers` the last joins are left out (see compile_sites)."""
    return programs_of(deployed(joins, sites, answers=answers), answers=answers)


def deployed(
    joins: Iterable[Joined], sites: Iterable[str] = (), *, history: bool = False, answers: bool = True
) -> Deployment:
    """The first deployment of some joins."""
    joins = tuple(joins)
    scans, _ = stream_tables((one.name, one.join, one.start_us) for one in joins)
    first = Deployment(joins, 1, tuple(scans[name] for name in sorted(scans)), (), tuple(sorted(sites)), history)
    programs = {one.name: compile_sites(one.join, first.sites, answers=answers) for one in joins}
    first = replace(first, sites=tuple(sorted({*first.sites, *(s for by_site in programs.values() for s in by_site)})))
    bare = _parts(first, programs)
    sent = [one for site in first.sites for one in sent_streams(bare[site], {name: name for name in scans})]
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
    inbound = tuple((origin, one) for origin, one in whole.inbound if one.join not in gone)
    read = {scan.stream for one in deployment.joins if one.name not in gone for scan in one.join.scans}
    streams = tuple(scan for scan in whole.streams if scan.stream in read)
    return replace(
        whole, parts=tuple(left), streams=streams, shipments=sent, inbound=inbound, past_numbers=past_numbers or {}
    )


def parts_of(deployment: Deployment, *, answers: bool = True) -> dict[str, list[JoinPart]]:
    """What every site does for each join by itself."""
    joins = deployment.joins
    return _parts(deployment, {one.name: compile_sites(one.join, deployment.sites, answers=answers) for one in joins})


def _program(
    deployment: Deployment, site: str, parts: Sequence[JoinPart], shipments: Mapping[str, tuple[Shipment, ...]]
) -> SiteProgram:
    joins, scans = deployment.joins, {scan.stream: scan for scan in deployment.scans}
    homes = {scan.stream: home for one in joins for scan, home in zip(one.join.scans, one.join.homes, strict=True)}
    inbound = tuple((origin, one) for origin in deployment.sites for one in shipments[origin] if one.to == site)
    local = tuple(scans[stream] for stream in sorted(scans) if homes.get(stream) == site)
    stored = {scan.stream: _all_of(scan) for scan in local}
    for one in deployment.sent:
        if one.to == site:
            stored[one.name] = Stored(scans[one.stream], one.keys, one.columns, one.selections)
    derived = {finish.target.name for one in joins for finish in one.finishes if finish.target.is_stream}
    away = frozenset(
        scan.stream
        for one in joins
        for scan in one.join.scans
        if homes[scan.stream] == site and one.join.site not in (None, site) and scan.stream not in derived
    )
    errors = {finish.query: finish.errors for one in joins for finish in one.finishes}
    return SiteProgram(
        *(site, tuple(parts), local, stored, shipments[site], inbound, away, errors),
        revision=deployment.revision,
        history=deployment.history,
        numbers_out=_numbers((one.to, one) for one in shipments[site]),
        numbers_in=_numbers(inbound),
    )


def _numbers(shipments: Iterable[tuple[str, Shipment]]) -> dict[str, tuple[str, ...]]:
    """The flows between two sites by number: the same at both ends, and whatever either has dropped of them."""
    found: dict[str, list[str]] = {}
    for peer, shipment in shipments:
        found.setdefault(peer, []).append(shipment.arrives_as)
    return {peer: tuple(sorted(flows)) for peer, flows in sorted(found.items())}


def _parts(deployment: Deployment, compiled: Mapping[str, Mapping[str, JoinProgram]]) -> dict[str, list[JoinPart]]:
    _, views = stream_tables(((one.name, one.join, one.start_us) for one in deployment.joins), deployment.scans)
    parts: dict[str, list[JoinPart]] = {site: [] for site in deployment.sites}
    for one in deployment.joins:
        queries = tuple(finish.query for finish in one.finishes)
        for site, program in compiled[one.name].items():
            names = one.names.get(site, {})
            own = {
                alias: replace(view, stream=names.get(view.stream, view.stream))
                for (name, alias), view in views.items()
                if name == one.name
            }
            finishes = one.finishes if program.is_query_site else ()
            is_grouped = bool(queries) and all(finish.grouping and not finish.matching for finish in one.finishes)
            makes_answers = any(operator.out.form is Form.RESULT for operator in program.operators)
            partials = one.finishes if is_grouped and makes_answers and not finishes else ()
            apart = one.apart.get(site, {})
            part = JoinPart(one.name, program, own, queries, finishes, one.heads, apart, one.is_fresh)
            parts[site].append(replace(part, partials=partials, is_grouped=is_grouped))
    return parts


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
            )
    sent = {(one.stream, one.to, one.name): one for one in deployment.sent}
    tables = {scan.stream for scan in deployment.scans if scan.is_table}
    for (stream, to), ships in stream_ships(own.values()).items():
        there = {part.name: part for part in parts[to]}
        for part, ship in ships:
            arrives = there[part.name].flow(ship.arrives_as)
            if ship.flow.form is Form.CLOCK:
                purpose = Purpose.TABLES if stream in tables else ship.arrives_as.purpose
                found[to, arrives] = Shipment(part.flow(ship.flow), to, arrives, Form.CLOCK, purpose, has_history=True)
                continue
            view = part.views[ship.flow.name]
            spec = sent[view.stream, to, there[part.name].views[ship.flow.name].stream]
            shipment = Shipment(
                view.flow,
                to,
                arrives,
                Form.ROW,
                Purpose.TABLES if stream in tables else Purpose.TUPLES,
                route=spec.routes[view.flow],
                columns=spec.columns,
                keys=spec.keys,
                selections=spec.selections,
                span=_span_there(there[part.name], ship.flow),
                has_history=_reads_window(there[part.name], ship.flow),
            )
            known = found.get((to, arrives), shipment)
            found[to, arrives] = replace(
                shipment,
                span=known.span | shipment.span,
                has_history=known.has_history or shipment.has_history,
            )
    return tuple(found[name] for name in sorted(found))


def _readers(part: JoinPart, flow: Flow) -> list[Operator]:
    return [operator for operator in part.program.operators if flow in operator.inputs]


def _span_there(part: JoinPart, flow: Flow) -> Span:
    """When the rows of a stream are that a join may need where they are sent."""
    spans = [part.span(operator, flow) for operator in _readers(part, flow)]
    return reduce(Span.__or__, spans) if spans else part.heads


def _reads_window(part: JoinPart, flow: Flow) -> bool:
    """Whether a join needs rows of a stream that came before it was set up."""
    return not part.is_fresh and any(reads_window(operator, flow) for operator in _readers(part, flow))


def needs_rows(part: JoinPart) -> bool:
    """Whether a join counts rows, so that rows are new only when all watermarks have passed them."""
    return any(counted(scan.window) is not None for scan in part.join.scans)


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
    relations = tuple(part.relation(flow, operator.key) for flow in operator.inputs)
    return aliases.index(operator.head), windows, lookups, keys, relations, part.heads, needs_rows(part)


def owners_of(part: JoinPart, operator: Probe, checks: Key) -> tuple[tuple[int, int], ...]:
    """For each class to compare, the place and column of the first alias before that has it."""
    order = [operator.head, *(one.alias for one in operator.lookups)]
    found = []
    for number in checks:
        place = next(place for place, alias in enumerate(order) if number in part.views[alias].keys)
        found.append((place, part.views[order[place]].keys[number]))
    return tuple(found)
