"""All that one site does, for all queries: their join programs overlaid, so that what they share is there once.

A stream that several aliases or queries read is stored once by each key and crosses each link once; queries with the
same join share all of it. Flows of a join keep its name in front of their own; rows of streams are shared by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from watersmeet.plan.nodes import Key
from watersmeet.program.finish.model import Finish
from watersmeet.program.finish.shared import RecordShape
from watersmeet.program.operators import Copy, Flow, Form, Join, Operator, Pair, Probe, ProjectKeys, Purpose
from watersmeet.program.site.families import Family
from watersmeet.program.site.part import JoinPart, Route
from watersmeet.program.site.roles import axis_alias, reads_window, stored_inputs
from watersmeet.program.site.spans import ALL_TIMES, Span
from watersmeet.program.site.streams import StreamScan
from watersmeet.query.windows import AsOf, Range, Unbounded, Window


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
    shape: RecordShape | None = None  # of records that several queries share
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
        found: dict[RecordShape, list[JoinPart]] = {}
        for part in self.parts:
            for query in sorted(part.shared):
                found.setdefault(part.shapes[query], []).append(part)
        return tuple(
            Family(
                shape,
                tuple(sorted({view.selection for part in parts for view in part.views.values()})),
                tuple(sorted({bound for part in parts for bound in part.heads.bounds})),
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
        return {name: tuple(by_relation[name] for name in sorted(by_relation)) for name, by_relation in found.items()}

    @cached_property
    def windows_read(self) -> dict[str, tuple["WindowReader", ...]]:
        """For each relation of a stream's rows that operators keep for as long as a window, who reads it."""
        found: dict[str, list[WindowReader]] = {}
        for part, operator in self.operators:
            for flow in stored_inputs(operator):
                view = part.view_of(flow)
                if view is None or not reads_window(operator, flow) or isinstance(operator, ProjectKeys):
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
            whole = [reader for reader in readers if reader.flow == flow and reader.is_whole]
            if whole and all(any(reader.covers(*need) for reader in whole) for need in wanted):
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
                [reader for reader in readers if reader.flow == flow and reader.is_whole]
                for readers in self.windows_read.values()
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
        return sorted(
            (shipment for shipment in self.shipments if shipment.to == to), key=lambda shipment: shipment.arrives_as
        )

    @cached_property
    def shipments_in(self) -> dict[tuple[str, str], Shipment]:
        """By sender and name, what comes from other sites."""
        return {(sender, shipment.arrives_as): shipment for sender, shipment in self.inbound}

    @cached_property
    def awaited(self) -> dict[str, str]:
        """By flow, the one that brings rows of its past from another site: till then its watermark does not count."""
        return {shipment.files_as: shipment.arrives_as for _, shipment in self.inbound if shipment.is_past}

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


def _meets_only_tables(part: JoinPart, operator: Operator, flow: Flow) -> bool:
    """Whether rows of a flow are looked up by rows of tables alone: these come first, so the others are not kept."""
    match operator:
        case Probe():
            others = [window.name for window in operator.windows if window != flow]
        case Pair():
            others = [*(operator.right_bound if flow == operator.left else operator.left_bound)]
        case _:
            return False
    return all(isinstance(part.join.scan(alias).window, AsOf) for alias in others)


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
