"""All that one site does, for all queries: their join programs overlaid, so that what they share is there once.

A stream that several aliases or queries read is stored once by each key and crosses each link once; queries with the
same join share all of it. Flows of a join keep its name in front of their own; rows of streams are shared by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from watersmeet.plan.nodes import JoinPlan, Key, Partition
from watersmeet.program.finish.model import Finish
from watersmeet.program.finish.shared import Member, Shape
from watersmeet.program.operators import (
    Announce,
    Copy,
    Flow,
    Form,
    Gather,
    Join,
    JoinProgram,
    Operator,
    Pair,
    Probe,
    Project,
    Purpose,
    Semijoin,
    SubPlans,
    rows_of,
    sub_plans_name,
)
from watersmeet.program.site.families import Family
from watersmeet.program.site.streams import StreamScan, View, clock_flow
from watersmeet.program.storage.segments import ORDINAL, ordinal_column
from watersmeet.query.windows import AsOf, Range, Tumble, Unbounded, Window, counted


@dataclass(frozen=True, slots=True)
class Span:
    """Event times from an instant to before another; None is no bound."""

    from_us: int | None = None
    until_us: int | None = None

    @property
    def is_all(self) -> bool:
        return self.from_us is None and self.until_us is None

    @property
    def bounds(self) -> tuple[int, ...]:
        return tuple(one for one in (self.from_us, self.until_us) if one is not None)

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
    copies: tuple[Copy, ...] = ()  # of rows that are gathered for several aliases: as each of them sees them
    shape: Shape | None = None  # of records that several queries share
    joins: tuple[str, ...] = ()  # and the joins whose queries do
    past: Span = ALL_TIMES  # of the rows that came before, those that come from here
    files_as: str = ""  # of rows that came before and are sent by another site than their home: the flow they are of
    source: str = ""  # and the relation that has them there

    @property
    def is_past(self) -> bool:
        """Whether it is rows of the past alone, from another site than their home."""
        return bool(self.files_as)

    @property
    def rows_of(self) -> str:
        """The flow whose rows they are where they arrive."""
        return self.files_as or self.arrives_as

    def is_of(self, join: str) -> bool:
        """Whether it is for a join alone, or for several of which that is one."""
        return self.join == join or join in self.joins


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
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # by query: of records that it may share with others
    shared: frozenset[str] = frozenset()  # queries whose rows are recorded here, together with those of others
    members: Mapping[str, Member] = field(default_factory=dict)  # by query with a shape: what counts for it

    @property
    def is_recorded(self) -> bool:
        """Whether rows are recorded as they come for all its queries here, so that its operators need not run."""
        queries = {finish.query for finish in (*self.finishes, *self.partials)}
        return bool(queries) and queries <= self.shared

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
        """When the rows of a stream are that an operator may need; a version of a table is in force from before it."""
        if flow.form is Form.ROW and flow.name in self.views and self._is_table(flow.name):
            return Span(None, self.heads.until_us)
        if self.heads.from_us is None or self.is_fresh:
            return Span(self.heads.from_us, self.heads.until_us)
        first: int | None = self.heads.from_us
        if role(operator, flow) is not Form.POINT:
            first = first_visible(self.join.scan(axis_alias(operator, flow)).window, self.heads.from_us)
        return Span(first, self.heads.until_us)

    def _is_table(self, alias: str) -> bool:
        return isinstance(self.join.scan(alias).window, AsOf)

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

    def mark(self, flow: Flow) -> str:
        """The name of the flow whose watermark holds for a flow."""
        return f"{self.name}:{flow.mark}" if flow.mark else self.flow(flow)

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
    def every_operator(self) -> tuple[tuple[JoinPart, Operator], ...]:
        """The operators of all joins, those among them that need not run."""
        return tuple((part, operator) for part in self.parts for operator in part.program.operators)

    @cached_property
    def operators(self) -> tuple[tuple[JoinPart, Operator], ...]:
        """The operators that run."""
        return tuple((part, operator) for part, operator in self.every_operator if not part.is_recorded)

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """The queries that share records made here, by shape."""
        found: dict[Shape, list[JoinPart]] = {}
        for part in self.parts:
            for query in sorted(part.shared):
                found.setdefault(part.shapes[query], []).append(part)
        return tuple(
            Family(
                shape,
                tuple(sorted({view.selection for part in parts for view in part.views.values()})),
                tuple(sorted({one for part in parts for one in part.heads.bounds})),
            )
            for shape, parts in sorted(found.items(), key=lambda one: one[0].name)
        )

    @cached_property
    def needed_selections(self) -> Mapping[str, frozenset[int]]:
        """By stream, the selections of rows that are filed, not only recorded."""
        found: dict[str, set[int]] = {}
        for part in self.parts:
            for view in part.views.values() if not part.is_recorded else ():
                found.setdefault(view.stream, set()).add(view.selection)
        return {stream: frozenset(some) for stream, some in found.items()}

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
        return tuple(
            (part, scan.alias)
            for part in self.parts
            if part.is_in_force and not part.is_recorded
            for scan in part.join.scans
        )

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

    @cached_property
    def awaited(self) -> dict[str, str]:
        """By flow, the one that brings rows of its past from another site: till then its watermark does not count."""
        return {one.files_as: one.arrives_as for _, one in self.inbound if one.is_past}

    @property
    def does_nothing(self) -> bool:
        return not (self.every_operator or self.shipments or self.finishes)


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
    if isinstance(operator, Gather):
        return flow.form
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
        case Gather():
            return operator.alias_of(flow)
        case Probe():
            return next((one.alias for one in operator.lookups if one.rows == flow), operator.head)
        case _:
            return operator.alias


def counting_of(part: JoinPart, operator: Operator) -> tuple[str, ...]:
    """The aliases of a join of a tree whose windows count rows, and whose row clocks it reads."""
    if not isinstance(operator, Pair):
        return ()
    return tuple(alias for alias in operator.aliases if counted(part.join.scan(alias).window) is not None)


def ordinal_name(part: JoinPart, flow: Flow, alias: str) -> str:
    """The column of a flow that holds the ordinals of an alias; that which it is kept by is the plain one."""
    is_own = flow.form is not Form.INTERMEDIATE or flow.alias == alias
    return ORDINAL if is_own else ordinal_column(part.join.position(alias))


def needs_rows(part: JoinPart) -> bool:
    """Whether a join counts rows, so that rows are new only when all watermarks have passed them."""
    return any(counted(scan.window) is not None for scan in part.join.scans)
