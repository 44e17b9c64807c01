"""The work of one micro-batch that can run in parallel: unpacking, releasing rows in order, operators by bucket.

Each task is a picklable value that is called with its number and returns what it filed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import numpy as np
import pyarrow as pa

from watersmeet.program.finish.combine import finished
from watersmeet.program.join import kernels
from watersmeet.program.join.announce import continued, ended_spans, span_run, uncovered
from watersmeet.program.join.axis import Axis, Clock, instants
from watersmeet.program.join.conditions import newly_complete, not_rejected
from watersmeet.program.join.match import Pairs, Side, Witnesses, first_meetings, first_of_any, pairs
from watersmeet.program.join.probe import (
    LATEST,
    LIMIT,
    Combinations,
    Lookup,
    Relation,
    Run,
    Visibility,
    carried_run,
    intervals,
    join,
)
from watersmeet.program.join.shared import Membership, SharedLookup, shared_join
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Gather,
    Join,
    Operator,
    Pair,
    Probe,
    Project,
    Semijoin,
)
from watersmeet.program.site.filing import (
    Made,
    Mask,
    alike,
    arrived,
    bucket_rows,
    copied_rows,
    during,
    file_flow,
    pack_for_others,
    routed,
    shelve,
    sort_rows,
    where,
    with_selected,
)
from watersmeet.program.site.inbound import check_rows
from watersmeet.program.site.probe_groups import ProbeGroup, owners_of
from watersmeet.program.site.program import JoinPart, Shipment, SiteProgram, Span, Stored, axis_alias, needs_rows, role
from watersmeet.program.site.streams import View, clock_flow, ordered_flow
from watersmeet.program.storage import bloom
from watersmeet.program.storage.bloom import Filter
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.segments import (
    HIGH,
    I64,
    KEY,
    LOW,
    ORDINAL,
    SELECTED,
    TS,
    U64,
    class_column,
    column,
    key_order,
    selected_column,
)
from watersmeet.program.storage.shelf import Part, Segment, Shelf
from watersmeet.program.storage.sizes import split_rows, take_rows, united
from watersmeet.program.storage.wire import UNKNOWN, naming_damage, unpack_schema
from watersmeet.query.comparisons import Condition
from watersmeet.query.model import TIME
from watersmeet.query.windows import AsOf, counted

Segments = Mapping[str, tuple[Segment, ...]]
Watermarks = Mapping[str, int]  # by flow


@dataclass(frozen=True, slots=True)
class Packed:
    """Where the rows of one inbound message are."""

    sender: str
    number: int  # of the parcel
    shipment: Shipment
    path: str
    start: int
    size: int
    schema: str
    rows: int


@dataclass(frozen=True)
class Unpack:
    """File the rows of inbound messages, one message a task."""

    program: SiteProgram
    shelf: Shelf
    messages: tuple[Packed, ...]

    def __call__(self, number: int) -> list[Made]:
        message = self.messages[number]
        shipment = message.shipment
        payload = self.shelf.get_bytes(message.path, message.start, message.size)
        with naming_damage(message.sender, self.program.site, message.number):
            rows = unpack_rows(payload, unpack_schema(bytes.fromhex(message.schema)), message.rows)
            check_rows(shipment, rows)
            table = arrived(self.program, shipment, rows)
        if shipment.form is Form.CLOCK:
            return [Made(shipment.arrives_as, table.num_rows, ticks=shelve(self.shelf, "clock", table))]
        if shipment.form in (Form.RESULT, Form.RECORD):
            return [Made(shipment.arrives_as, table.num_rows, results=self.shelf.put("results", table).path)]
        part = self.program.part(shipment.join) if shipment.join else None
        if shipment.copies:
            filed = ((copy.flow, copied_rows(table, copy)) for copy in shipment.copies)
        else:
            filed = ((shipment.arrives_as, table) for _ in range(1))
        return [
            file_flow(self.program, self.shelf, flow, some, part=part, travels=False, is_bloom=shipment.bloom)
            for flow, some in filed
        ]


@dataclass(frozen=True)
class Release:
    """Take the waiting rows of streams that ROWS windows count in (ts, arrival) order up to an instant; one a task."""

    program: SiteProgram
    shelf: Shelf
    streams: tuple[str, ...]
    pending: Segments
    ordinals: Mapping[str, int]
    released_from: Watermarks
    released_to: Watermarks

    def __call__(self, number: int) -> list[Made]:
        stream = self.streams[number]
        pieces = []
        for segment in self.pending.get(stream, ()):
            table = self.shelf.get(segment.parts[0].path)
            bounds = (self.released_from.get(stream, UNKNOWN), self.released_to[stream])
            edges = np.searchsorted(column(table, TS), bounds)
            pieces.append(table.slice(edges[0], max(edges[1] - edges[0], 0)))
        if not any(piece.num_rows for piece in pieces):
            return []
        table = alike(pieces)
        table = take_rows(table, pa.array(np.argsort(column(table, TS), kind="stable")))
        first = self.ordinals.get(stream, 0)
        ts = column(table, TS)
        is_table = self.program.stored[stream].scan.is_table
        # Of a stream every row counts; of a table every version, whose rows have its instant.
        instants, places = np.unique(ts, return_inverse=True) if is_table else (ts, np.arange(len(ts)))
        clock, ticks = clock_flow(stream), pa.table({TS: pa.array(instants)})
        numbered = ticks.append_column(ORDINAL, pa.array(np.arange(first, first + len(instants))))
        payloads = pack_for_others(self.program, self.shelf, clock, numbered)
        made = Made(clock, len(instants), payloads=payloads, ticks=shelve(self.shelf, "clock", ticks))
        table = table.append_column(ORDINAL, pa.array(first + places))
        rows = split_rows(self._counted(stream, table))
        return [made, *(file_flow(self.program, self.shelf, ordered_flow(stream), some) for some in rows)]

    def _counted(self, stream: str, table: pa.Table) -> pa.Table:
        """The rows that are ever in a ROWS window: others of their own timestamp may push them out at once."""
        ts = column(table, TS)
        followers = np.searchsorted(ts, ts, "right") - 1 - np.arange(len(ts))
        if self.program.stored[stream].scan.is_table:
            followers[:] = 0
        masks: list[Mask | None] = []
        for number, selection in enumerate(self.program.stored[stream].scan.selections):
            name, value = selected_column(number)
            if name not in table.column_names:  # these rows came before it
                masks.append(np.zeros(len(ts), bool))
                continue
            fulfilled = (column(table, name).view(np.uint64) & value) != 0
            masks.append(fulfilled & (followers < (selection.count or 0)))
        table = table.drop_columns([name for name in table.column_names if name.startswith(SELECTED)])
        if len(masks) > 1:
            table = with_selected(table, masks)
        return where(table, np.logical_or.reduce([mask for mask in masks if mask is not None]))


@dataclass(frozen=True)
class Round:
    """Some operators of a site in one bucket a task."""

    program: SiteProgram
    shelf: Shelf
    groups: tuple[ProbeGroup, ...]
    operators: tuple[tuple[str, Operator], ...]  # the others, each with the name of its join
    buckets: int
    old: Segments
    new: Segments
    clocks: Segments
    before: Watermarks  # of each flow before this micro-batch
    now: Watermarks
    starting: frozenset[str] = frozenset()  # joins that run for the first time: all rows are new to them

    def __call__(self, bucket: int) -> list[Made]:
        work = _Bucket(self, bucket)
        made = []
        for group in self.groups:
            made += work.probe_together(group)
        for name, operator in self.operators:
            part = self.program.part(name)
            table = work.run(part, operator)
            if table is not None and table.num_rows:
                made += [work.file(part, operator, rows) for rows in split_rows(table)]
        return made


class _Bucket:
    """The operators of a round over the rows of one bucket; what one makes, the next can use at once."""

    def __init__(self, task: Round, bucket: int) -> None:
        self._task = task
        self._program = task.program
        self._bucket = bucket
        self._operators = frozenset(task.operators)
        self._starting = task.starting
        self._fresh: dict[str, list[pa.Table]] = {}  # by relation
        self._slices: dict[str, pa.Table | None] = {}
        self._axes: dict[tuple[str, str], Axis] = {}
        self._clocks: dict[str, Clock] = {}
        self._runs: dict[tuple[object, ...], tuple[pa.Table, Run]] = {}
        self._seen_through: dict[tuple[int, int, str], tuple[pa.Table, tuple[pa.Table, U64, int]]] = {}

    def _before(self, part: JoinPart) -> Watermarks:
        """The watermarks up to which a join had come."""
        return {} if part.name in self._starting else self._task.before

    def _new(self, part: JoinPart, relation: str) -> list[pa.Table]:
        """The rows of a relation that are new to a join."""
        arrived_now = self._tables(self._task.new, relation)
        is_starting = part.name in self._starting
        return [*self._tables(self._task.old, relation), *arrived_now] if is_starting else arrived_now

    def _old(self, part: JoinPart, relation: str, since: int = UNKNOWN) -> list[pa.Table]:
        """The rows of a relation that a join has seen before."""
        return [] if part.name in self._starting else self._tables(self._task.old, relation, since)

    def run(self, part: JoinPart, operator: Operator) -> pa.Table | None:
        match operator:
            case Probe():
                return self._probe(part, operator)
            case Join():
                return self._run_join(part, operator)
            case Pair():
                return self._run_pair(part, operator)
            case Semijoin():
                return self._run_semijoin(part, operator)
            case Gather():
                return self._run_gather(part, operator)
            case Announce():
                return self._announce(part, operator)
            case Project():
                return self._project(part, operator)
            case _:
                assert_never(operator)

    def file(self, part: JoinPart, operator: Operator, table: pa.Table) -> Made:
        """File what an operator made; readers in this round get it as it is, and it is kept only for later ones."""
        flow, key = part.flow(operator.out), operator.key
        if operator.out.form is Form.RESULT:
            payloads = pack_for_others(self._program, self._task.shelf, flow, table, part)
            results = self._task.shelf.put("results", table).path if part.finishes or part.partials else None
            return Made(flow, table.num_rows, payloads=payloads, results=results)
        readers = [o for o in part.program.operators if operator.out in o.inputs]
        near = [o for o in readers if o.key == key and (part.name, o) in self._operators]
        if near:
            fresh = sort_rows(table, key)
            for sub_plans in {o.sub_plans for o in near}:
                rows = where(fresh, routed(fresh, part.route(operator.out, sub_plans), key))
                if rows.num_rows:
                    self._fresh.setdefault(part.relation(operator.out, key, sub_plans), []).append(rows)
            if operator.out.form is Form.POINT and len(readers) == len(near):
                waiting = min(low_watermark(part, o, self._task.now) for o in near)
                keeping = where(table, column(table, TS) >= waiting)
                kept = file_flow(self._program, self._task.shelf, flow, keeping, part=part, travels=False, key=key)
                sent = pack_for_others(self._program, self._task.shelf, flow, table, part, key)
                return Made(flow, table.num_rows, kept.segments, sent)
        return file_flow(self._program, self._task.shelf, flow, table, part=part, key=key)

    # -- the symmetric multi-way join

    def _probe(self, part: JoinPart, operator: Probe) -> pa.Table | None:
        aliases = [flow.name for flow in operator.windows]
        position = aliases.index(operator.head)
        if operator.left.form is Form.DELTA:
            relation = part.relation(operator.left, operator.key, operator.sub_plans)
            carrier = Relation(tuple(carried_run(table) for table in self._new(part, relation)))
        else:
            carrier = self._window(part, operator, operator.left, operator.head, new=True, old=False)
        if not len(carrier):
            return None
        owners = {c: 0 for alias in operator.bound for c in part.join.scan(alias).classes}
        lookups, reached = [], [operator.bound]
        for one in operator.lookups:
            # A new combination belongs to the last of its aliases that has a new row: later ones show only old rows.
            is_earlier = aliases.index(one.alias) < position
            window = self._window(part, operator, one.rows, one.alias, new=is_earlier, old=True)
            reached.append((one.alias,))
            conditions = newly_complete(part.join.conditions, [sum(reached[:-1], ())], sum(reached, ()))
            accepts = partial(_accepted, conditions, tuple(reached)) if conditions else None
            lookups.append(Lookup(window, tuple((c, owners[c]) for c in one.checks), accepts))
            for c in part.join.scan(one.alias).classes:
                owners.setdefault(c, len(lookups))
        relations = (carrier, *(lookup.relation for lookup in lookups))
        names = [[name for alias in own for name in part.join.scan(alias).columns] for own in reached]
        is_last = operator.out.form is Form.RESULT
        tables = []
        for found in join(carrier, lookups):
            own = _in_span(part.heads, found.latest, is_last=is_last)
            combinations = found if own is None else found.take(own)
            if len(combinations):
                tables.append(self._extended(part, operator, combinations, relations, names, owners))
        return united(tables) if tables else None

    def probe_together(self, group: ProbeGroup) -> list[Made]:
        """Probe once for several joins; what each of them finds."""
        members = [(self._program.part(name), operator) for name, operator in group.members]
        part, operator = members[0]
        aliases = [flow.name for flow in operator.windows]
        position = aliases.index(operator.head)
        order = [position, *(aliases.index(one.alias) for one in operator.lookups)]
        carrier = self._shared_window(members, position, operator.left, new=True, old=False)
        if not len(carrier[0]):
            return []
        lookups = []
        for number, one in enumerate(operator.lookups):
            is_earlier = order[number + 1] < position
            relation, memberships = self._shared_window(members, order[number + 1], one.rows, new=is_earlier, old=True)
            columns = part.columns(one.rows, one.checks)
            owners = owners_of(part, operator, one.checks)
            checks = tuple((column_, *owner) for column_, owner in zip(columns, owners, strict=True))
            lookups.append(SharedLookup(relation, memberships, checks))
        relations = (carrier[0], *(one.relation for one in lookups))
        tables: dict[int, list[pa.Table]] = {}
        for every, every_set in shared_join(*carrier, lookups):
            own = _in_span(part.heads, every.latest, is_last=True)
            found, sets = (every, every_set) if own is None else (every.take(own), every_set[own])
            for number, (member, probe) in enumerate(members):
                which = np.flatnonzero(sets & np.uint64(1 << number))
                some = _accepted_of(member, probe, found.take(which), relations)
                if len(some):
                    tables.setdefault(number, []).append(_columns_of(member, probe, some, relations))
        return [
            self.file(*members[number], rows) for number, some in tables.items() for rows in split_rows(united(some))
        ]

    def _shared_window(
        self, members: "Sequence[tuple[JoinPart, Probe]]", position: int, flow: Flow, *, new: bool, old: bool
    ) -> tuple[Relation, tuple[Membership, ...]]:
        """The stored rows of an alias of all members, and which members take them."""
        part, operator = members[0]
        views = [own.views[probe.windows[position].name] for own, probe in members]
        stored = self._program.stored[views[0].stream]
        relation = part.relation(flow, operator.key)
        tables = self._chosen(part, operator, relation, new=new, old=old)
        users: dict[int, int] = {}
        for number, view in enumerate(views):
            users[view.selection] = users.get(view.selection, 0) | 1 << number
        index = next(one for one in self._program.indexes[views[0].flow] if one.relation == relation)
        everyone = len(stored.selections) == 1 or index.selections == (views[0].selection,)
        runs, memberships = [], []
        for table in tables:
            if self._program.revision > 1:
                table = self._filled(table, views, relation)
            visible = self._instants(part, views[0].alias, table)
            runs.append(Run(column(table, KEY), visible, table, _span(visible)))
            memberships.append(_membership(stored, table, users, everyone=everyone))
        return Relation(tuple(runs)), tuple(memberships)

    def _filled(self, table: pa.Table, views: Sequence[View], relation: str) -> pa.Table:
        """Rows with the columns and bits that some aliases read, where they were stored before anyone did."""
        names = {name for view in views for _, name in view.columns} - set(table.column_names)
        stored = self._program.stored[views[0].stream]
        index = next(one for one in self._program.indexes[views[0].flow] if one.relation == relation)
        kept = {number for view in views for number in view.keys.values()}
        read = kept if index.classes is None else kept & set(index.classes)
        names |= {class_column(number) for number in read} - set(table.column_names)
        kinds = {kept.name: kept for kept in stored.scan.kept}
        for name in sorted(names):
            values = pa.nulls(len(table)) if name in kinds else pa.array(np.zeros(len(table), np.int64))
            table = table.append_column(name, values)
        if len(stored.selections) > 1:
            for number in range(-(-len(stored.selections) // 64)):
                if f"{SELECTED}{number}" not in table.column_names:
                    bits = np.full(len(table), 1 if number == 0 else 0, np.int64)
                    table = table.append_column(f"{SELECTED}{number}", pa.array(bits))
        return table

    def _chosen(self, part: JoinPart, operator: Probe, relation: str, *, new: bool, old: bool) -> list[pa.Table]:
        """The tables of a window: new rows, old ones or both; where rows are counted, watermarks say which are new."""
        arrived_now, arrived_before = self._new(part, relation), self._old(part, relation)
        if needs_rows(part):
            before = low_watermark(part, operator, self._before(part))
            now = low_watermark(part, operator, self._task.now)
            every = [*arrived_before, *arrived_now]
            arrived_before = [_between(table, UNKNOWN, before) for table in every]
            arrived_now = [_between(table, before, now) for table in every]
        chosen = [*(arrived_before if old else ()), *(arrived_now if new else ())]
        return [table for table in chosen if table.num_rows]

    def _extended(
        self,
        part: JoinPart,
        operator: Probe,
        found: Combinations,
        relations: Sequence[Relation],
        names: Sequence[Sequence[str]],
        owners: Mapping[int, int],
    ) -> pa.Table:
        columns = {
            name: values
            for relation, rows, wanted in zip(relations, found.rows, names, strict=True)
            for name, values in zip(wanted, relation.gather(rows, wanted), strict=True)
        }
        if operator.out.form is Form.RESULT:
            return finished(part.join, {**columns, **_answer_time(part, found.latest)}, len(found))
        classes = {
            class_column(c): relations[owners[c]].gather(found.rows[owners[c]], [class_column(c)])[0]
            for c in operator.carried
        }
        return pa.table({LATEST: found.latest, LIMIT: found.limit, **classes, **columns})

    def _window(self, part: JoinPart, operator: Probe, flow: Flow, alias: str, *, new: bool, old: bool) -> Relation:
        """The rows of an alias, new ones, old ones or both; where rows are counted, watermarks decide what is new."""
        relation = part.relation(flow, operator.key, operator.sub_plans)
        tables = self._chosen(part, operator, relation, new=new, old=old)
        visibility = partial(self._instants, part, alias)
        return self._relation(part, flow, relation, tables, visibility, ("instants", alias))

    def _instants(self, part: JoinPart, alias: str, table: pa.Table) -> Visibility:
        window = part.join.scan(alias).window
        clock = self._clock(part.clock(alias)) if counted(window) is not None else None
        ordinals = column(table, ORDINAL) if ORDINAL in table.column_names else None
        return instants(window, column(table, TS), ordinals, clock)

    # -- joins of one head, and of trees

    def _run_join(self, part: JoinPart, operator: Join) -> pa.Table | None:
        left = self._side(part, operator, operator.left)
        right = self._side(part, operator, operator.right)
        axis = self._axis(part, operator.alias)
        tables = []
        for every in pairs(left, right, operator.checks):
            found = _accepted_pairs(part, every, operator.bound, (operator.alias,))
            left_rows, right_rows = found.left_rows, found.right_rows
            if axis.counts_rows:
                ours = found.left.gather(left_rows, [TS])[0].to_numpy()
                theirs = found.right.gather(right_rows, [TS])[0].to_numpy()
                is_table = isinstance(part.join.scan(operator.alias).window, AsOf)  # whose rows are never the latest
                wins = is_table or part.join.position(operator.head) > part.join.position(operator.alias)
                is_head = np.flatnonzero((theirs < ours) | ((theirs == ours) & wins))
                left_rows, right_rows = left_rows[is_head], right_rows[is_head]
            if len(left_rows):
                at = found.left.gather(left_rows, [TS])[0]
                times = _answer_time(part, at) if operator.out.form is Form.RESULT else {TS: at}
                sides = (found.left, left_rows, operator.bound), (found.right, right_rows, (operator.alias,))
                tables.append(self._combined(part, operator, times, *sides))
        return united(tables) if tables else None

    def _run_pair(self, part: JoinPart, operator: Pair) -> pa.Table | None:
        left = self._side(part, operator, operator.left)
        right = self._side(part, operator, operator.right)
        tables = []
        is_last = operator.out.form is Form.RESULT
        for every in pairs(left, right, operator.checks):
            found = _accepted_pairs(part, every, operator.left_bound, operator.right_bound)
            rows, low, high = (found.left_rows, found.right_rows), found.low, found.high
            own = _in_span(part.heads, low // len(part.join.scans), is_last=is_last)
            if own is not None:
                rows, low, high = (rows[0][own], rows[1][own]), low[own], high[own]
            if not len(low):
                continue
            latest = low // len(part.join.scans)
            times = _answer_time(part, latest) if is_last else {LOW: low, HIGH: high}
            sides = (found.left, rows[0], operator.left_bound), (found.right, rows[1], operator.right_bound)
            tables.append(self._combined(part, operator, times, *sides))
        return united(tables) if tables else None

    def _combined(
        self,
        part: JoinPart,
        operator: Join | Pair,
        times: Mapping[str, object],
        *sides: tuple[Relation, I64, tuple[str, ...]],
    ) -> pa.Table:
        """Pairs with the columns of both sides, and the class columns that later joins need."""
        is_last = operator.out.form is Form.RESULT
        left_has = set(sides[0][0].runs[0].rows.column_names)
        classes = [] if is_last else [class_column(number) for number in operator.carried]
        own = [name for name in classes if name in left_has], [name for name in classes if name not in left_has]
        columns = dict(times)
        kept = part.join.kept_of([alias for _, _, bound in sides for alias in bound])
        for (relation, rows, bound), more in zip(sides, own, strict=True):
            ours = {name for alias in bound for name in part.join.scan(alias).columns}
            names = [*more, *(name for name in kept if name in ours)]
            columns |= dict(zip(names, relation.gather(rows, names), strict=True))
        return finished(part.join, columns, len(sides[0][1])) if is_last else pa.table(columns)

    # -- semijoins and keys

    def _run_semijoin(self, part: JoinPart, operator: Semijoin) -> pa.Table | None:
        subject = self._side(part, operator, operator.subject)
        tables = []
        for relation, rows in first_meetings(subject, self._witnesses(part, operator)):
            names = relation.runs[0].rows.column_names
            tables.append(pa.table(dict(zip(names, relation.gather(rows, names), strict=True))))
        if not tables:
            return None
        table = united(tables)
        spare = {Form.SPAN: [], Form.ROW: [KEY]}.get(operator.out.form, [KEY, ORDINAL])
        return table.drop_columns([name for name in spare if name in table.column_names])

    def _witnesses(self, part: JoinPart, operator: Semijoin) -> Witnesses:
        if operator.witness.bloom:
            return Witnesses(_NOTHING, *self._filters(part, operator))
        return Witnesses(self._side(part, operator, operator.witness))

    def _run_gather(self, part: JoinPart, operator: Gather) -> pa.Table | None:
        """Rows that any semijoin finds now and none has found before, with the columns of the first of them."""
        views = {alias: part.views[alias] for alias in operator.aliases}
        relation = part.relation(operator.members[0].subject, operator.key, operator.sub_plans)

        def is_seen(table: pa.Table) -> bool:
            """Rows that some alias cannot see came before its join did, and are for none of them."""
            return all(self._through(view, relation, table)[0].num_rows == len(table) for view in views.values())

        needs_check = self._program.revision > 1 and len(views) > 1
        meetings = [
            (self._side(part, one, one.subject, is_seen if needs_check else _every), self._witnesses(part, one))
            for one in operator.semijoins
        ]
        sides = {one.subject.name: side for one, (side, _) in zip(operator.members, meetings, strict=True)}
        tables = []
        for is_new, rows in first_of_any(meetings):
            seen = [(sides[alias].new if is_new else sides[alias].old) for alias in operator.aliases]
            names = seen[0].runs[0].rows.column_names
            columns = dict(zip(names, seen[0].gather(rows, names), strict=True))
            table = pa.table(columns).drop_columns([KEY])
            if any(copy.bit is not None for copy in operator.copies):
                table = with_selected(table, [relation.accepts(rows) for relation in seen])
            tables.append(table)
        return united(tables) if tables else None

    def _announce(self, part: JoinPart, operator: Announce) -> pa.Table | None:
        axis = self._axis(part, operator.alias)
        rows = self._side(part, operator, operator.rows)
        keys = self._side(part, operator, operator.out)
        announced = [uncovered(rows.new, keys.both)]
        start, stop = (self._due(part, operator, axis, marks) for marks in (self._before(part), self._task.now))
        ended = ended_spans(keys.both, announced[0], rows.new, start, stop)
        while len(ended[0]):
            known = Relation((*keys.both.runs, *(span_run(spans) for spans in announced)))
            more = continued(ended, known, rows.both)
            announced.append(more)
            ended = more[0][more[2] < stop], more[2][more[2] < stop]
        whole = [np.concatenate(values) for values in zip(*announced, strict=True)]
        if not len(whole[0]):
            return None
        return pa.table({KEY: whole[0], LOW: whole[1], HIGH: whole[2]})

    def _due(self, part: JoinPart, operator: Announce, axis: Axis, marks: Watermarks) -> int:
        """The place up to which every presence must be announced: watermark and askers have got so far."""
        mark = marks.get(part.mark(operator.rows), UNKNOWN)
        places = [UNKNOWN if mark == UNKNOWN else axis.first(mark)]
        if not axis.counts_rows:  # ordinals are translated only as far as the watermark anyway
            paces = (marks.get(f"{part.name}:{name}", UNKNOWN) for name in part.program.paces_of(operator.alias))
            places += [axis.first(pace + 1) for pace in paces if pace != UNKNOWN]
        return max(places)

    def _project(self, part: JoinPart, operator: Project) -> pa.Table | None:
        """The distinct keys of new rows, each from its first time to its last; for a tree's input, its interval."""
        if operator.alias:
            runs = self._side(part, operator, operator.rows).new.runs
            rows = [(run.keys[w], run.visible.begins()[w], run.visible.ends(w)) for run in runs for w in [run.accepted]]
        else:
            relation = part.relation(operator.rows, operator.key, operator.sub_plans)
            fresh = [*self._new(part, relation), *self._fresh.get(relation, [])]
            fresh = [where(table, during(table, part.heads)) for table in fresh]
            tables = [self._seen(part, operator.rows, relation, table) for table in fresh]
            rows = [(column(table, KEY), column(table, TS), column(table, TS)) for table in tables if table.num_rows]
        if not rows:
            return None
        keys, low, high = (np.concatenate(values) for values in zip(*rows, strict=True))
        if not len(keys):  # rows came, but none that this alias selects
            return None
        order = key_order(keys, low)
        keys, low, high = keys[order], low[order], high[order]
        first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        return pa.table({KEY: keys[first], LOW: low[first], HIGH: np.maximum.reduceat(high, first)})

    # -- inputs

    def _side(
        self, part: JoinPart, operator: Operator, flow: Flow, gathered: Callable[[pa.Table], bool] | None = None
    ) -> Side:
        """An input as runs with the intervals that the operator is about.

        Semijoins that are done together see the same rows of the tables that are `gathered`, each in its own way.
        """
        relation = part.relation(flow, operator.key, operator.sub_plans)
        form = role(operator, flow)
        axis = self._axis(part, axis_alias(operator, flow))
        waits = form is Form.POINT and flow == operator.inputs[0] and gathered is None
        # Points before the low watermark have met all they can: nothing that comes now is for them.
        done = low_watermark(part, operator, self._before(part)) if waits else UNKNOWN
        new = [*self._new(part, relation), *self._fresh.get(relation, [])]
        old = self._old(part, relation, done)
        if gathered is not None:
            new, old = ([table for table in tables if gathered(table)] for tables in (new, old))
        if form is Form.POINT or part.view_of(flow) is not None:  # rows of other versions' heads are not for this one
            is_head = form is Form.POINT and gathered is None
            span = part.heads if is_head else Span(None, part.heads.until_us)
            new, old = ([where(table, during(table, span)) for table in tables] for tables in (new, old))
        if waits and isinstance(operator, Semijoin):  # what they met is forgotten: a wide filter might seem the first
            old = [where(table, column(table, TS) >= done) for table in old]
        if axis.counts_rows and form in (Form.POINT, Form.ASK):
            new, old = self._admitted(part, operator.alias, TS if form is Form.POINT else LOW, new, old)
        head = _head_position(part, operator)
        visibility = partial(_visibility, axis, form, head)
        slot = (form, axis.position, head if form is not Form.ROW else 0)
        narrows = form in (Form.POINT, Form.ROW)
        made = partial(self._relation, part, flow, relation, visibility=visibility, slot=slot, narrows=narrows)
        return Side(made(tables=new), made(tables=old))

    def _relation(
        self,
        part: JoinPart,
        flow: Flow,
        relation: str,
        tables: Sequence[pa.Table],
        visibility: Callable[[pa.Table], Visibility],
        slot: tuple[object, ...],
        *,
        narrows: bool = True,
    ) -> Relation:
        """Tables as runs, seen as their alias sees them; what several operators look up the same way is made once."""
        runs = []
        for table in tables:
            name = (id(table), part.name, flow.name, *slot)
            if name not in self._runs:
                view = part.view_of(flow)
                rows, bits, bit = (table, _NO_BITS, 0) if view is None else self._through(view, relation, table)
                visible = visibility(rows)
                run = Run(column(rows, KEY), visible, rows, _span(visible), narrows, bits, bit)
                self._runs[name] = table, run  # holds the table too, so that its id stays its own
            runs.append(self._runs[name][1])
        return Relation(tuple(runs))

    def _seen(self, part: JoinPart, flow: Flow, relation: str, table: pa.Table) -> pa.Table:
        """The rows of a table that an alias sees."""
        view = part.view_of(flow)
        if view is None:
            return table
        rows, bits, bit = self._through(view, relation, table)
        return rows if not bit else where(rows, (bits & np.uint64(bit)) != 0)

    def _through(self, view: View, relation: str, table: pa.Table) -> tuple[pa.Table, U64, int]:
        """Stored rows of a stream with the names of an alias, and the bit that says which of them it takes."""
        slot = (id(table), id(view), relation)
        if slot not in self._seen_through:
            self._seen_through[slot] = table, self._looked_through(view, relation, table)
        return self._seen_through[slot][1]

    def _looked_through(self, view: View, relation: str, table: pa.Table) -> tuple[pa.Table, U64, int]:
        stored = self._program.stored[view.stream]
        own = [name for name in (TS, ORDINAL, KEY) if name in table.column_names]
        classes = [
            (class_column(number), class_column(stored_number))
            for number, stored_number in view.keys.items()
            if class_column(stored_number) in table.column_names
        ]
        names = [*((name, name) for name in own), *classes, *view.columns]
        if self._program.revision > 1 and not self._has_columns(view, relation, table):
            table = _without_rows(table, [name for _, name in names])  # stored before anyone read these columns
        rows = table.select([name for _, name in names]).rename_columns([name for name, _ in names])
        bit = stored.bit(view.selection)
        if bit is None or self._only(view, relation):
            return rows, _NO_BITS, 0
        name, value = selected_column(bit)
        if name in table.column_names:
            return rows, column(table, name).view(np.uint64), int(value)
        is_first = view.selection == 0 and f"{SELECTED}0" not in table.column_names  # stored while it was the only one
        return (rows, _NO_BITS, 0) if is_first else (rows.slice(0, 0), _NO_BITS, 0)

    def _has_columns(self, view: View, relation: str, table: pa.Table) -> bool:
        """Whether rows were stored with all that an alias reads of them."""
        index = next(one for one in self._program.indexes[view.flow] if one.relation == relation)
        read = view.keys.values() if index.classes is None else set(view.keys.values()) & set(index.classes)
        names = {*map(class_column, read), *(name for _, name in view.columns)}
        return names <= set(table.column_names)

    def _only(self, view: View, relation: str) -> bool:
        """Whether an index holds the rows of this view's selection alone."""
        return any(
            index.relation == relation and index.selections == (view.selection,)
            for index in self._program.indexes.get(view.flow, ())
        )

    def _admitted(
        self, part: JoinPart, alias: str, time: str, new: Sequence[pa.Table], old: Sequence[pa.Table]
    ) -> tuple[list[pa.Table], list[pa.Table]]:
        """Rows whose time the clock has reached: those it reached just now are new, whenever they came.

        What is asked for beyond the clock is met by rows that are still to come, which are new then.
        """
        clock = part.clock(alias)
        before, now = self._before(part).get(clock, UNKNOWN), self._task.now.get(clock, UNKNOWN)
        fresh = [where(table, column(table, time) < now) for table in new]
        fresh += [where(table, (column(table, time) >= before) & (column(table, time) < now)) for table in old]
        return fresh, [where(table, column(table, time) < before) for table in old]

    def _filters(self, part: JoinPart, operator: Semijoin) -> tuple[tuple[Filter, ...], tuple[Filter, ...]]:
        relation = part.relation(operator.witness, operator.key, operator.sub_plans)
        axis, head = self._axis(part, operator.alias), _head_position(part, operator)
        new, old = self._new(part, relation), self._old(part, relation)
        if operator.witness.form is Form.ASK and axis.counts_rows:
            new, old = self._admitted(part, operator.alias, LOW, new, old)
        made = []
        for tables in (new, old):
            filters = []
            for table in tables:
                visible = _visibility(axis, operator.witness.form, head, table)
                bits = table.column(bloom.BITS).to_pylist()
                filters += [
                    Filter(int(low), int(high), np.frombuffer(data, np.uint8))
                    for low, high, data in zip(visible.begins(), visible.ends(), bits, strict=True)
                ]
            made.append(tuple(filters))
        return made[0], made[1]

    def _tables(self, segments: Segments, relation: str, since: int = UNKNOWN) -> list[pa.Table]:
        found = (segment for segment in segments.get(relation, ()) if segment.max_ts >= since)
        tables = (self._slice(part) for segment in found for part in segment.parts)
        return [table for table in tables if table is not None and table.num_rows]

    def _slice(self, part: Part) -> pa.Table | None:
        if part.path not in self._slices:
            self._slices[part.path] = bucket_rows(self._task.shelf, part, self._bucket, self._task.buckets)
        return self._slices[part.path]

    def _axis(self, part: JoinPart, alias: str) -> Axis:
        if (part.name, alias) not in self._axes:
            self._axes[part.name, alias] = axis_of(part, alias, self._clock)
        return self._axes[part.name, alias]

    def _clock(self, name: str) -> Clock:
        if name not in self._clocks:
            self._clocks[name] = read_clock(self._task.shelf, self._task.clocks.get(name, ()))
        return self._clocks[name]


_NOTHING = Side(Relation(()), Relation(()))
_NO_BITS: U64 = np.empty(0, np.uint64)
_NO_PLACES: I64 = np.empty(0, np.int64)


def read_clock(shelf: Shelf, ticks: Sequence[Segment]) -> Clock:
    """As much of a row clock as is known here."""
    if not ticks:
        return Clock()
    return Clock(ticks[0].min_ordinal, np.concatenate([column(shelf.get(one.parts[0].path), TS) for one in ticks]))


def axis_of(part: JoinPart, alias: str, clock: Callable[[str], Clock]) -> Axis:
    """The axis of an alias's window, with as much of its clock as is known here."""
    window = part.join.scan(alias).window
    ticks = clock(part.clock(alias)) if counted(window) is not None else None
    return Axis(window, part.join.position(alias), len(part.join.scans), ticks)


def low_watermark(part: JoinPart, operator: Operator, marks: Watermarks) -> int:
    """The lowest watermark of an operator's inputs, the clock of a ROWS window included."""
    inputs = operator.windows if isinstance(operator, Probe) else operator.inputs
    flows = [part.mark(flow) for flow in inputs]
    if isinstance(operator, Join | Semijoin | Gather) and counted(part.join.scan(operator.alias).window) is not None:
        flows.append(part.clock(operator.alias))
    if isinstance(operator, Probe):
        flows += [part.clock(scan.alias) for scan in part.join.scans if counted(scan.window) is not None]
    return min(marks.get(name, UNKNOWN) for name in flows)


def _head_position(part: JoinPart, operator: Operator) -> int:
    """The place in the query of the head that an operator works for; a tree has none."""
    return part.join.position(operator.head) if isinstance(operator, Join | Semijoin) and operator.head else 0


def _visibility(axis: Axis, form: Form, head: int, table: pa.Table) -> Visibility:
    match form:
        case Form.POINT:
            return axis.points(column(table, TS), head)
        case Form.ROW:
            return axis.rows(column(table, TS), column(table, ORDINAL) if ORDINAL in table.column_names else None)
        case Form.SPAN | Form.INTERMEDIATE:
            return intervals(column(table, LOW), column(table, HIGH))
        case Form.ASK:
            low, high = (axis.points(column(table, name), head).begins() for name in (LOW, HIGH))
            return intervals(low, high)
        case _:
            raise AssertionError(f"nothing looks up {form}")


def _span(visible: Visibility) -> tuple[int, int]:
    """From the first instant at which any row is visible to the last."""
    if not len(visible.at):
        return 0, -1
    first = int(visible.at.min()) * visible.scale + visible.offset
    if visible.kind == kernels.FIXED:
        return first, int(visible.at.max()) * visible.scale + visible.offset + visible.length
    if visible.kind == kernels.TUMBLE:
        return first, (int(visible.at.max()) // visible.length + 1) * visible.length * visible.scale - 1
    return first, int(visible.high.max()) if visible.kind == kernels.EXPLICIT else kernels.NEVER


def _membership(stored: Stored, table: pa.Table, users: Mapping[int, int], *, everyone: bool) -> Membership:
    """Which members of a group take the stored rows of a table, by the selections that they have."""
    if everyone:
        always = 0
        for members in users.values():
            always |= members
        return Membership((_NO_BITS,), _NO_PLACES, _NO_BITS, _NO_BITS, always)
    words = tuple(column(table, name).view(np.uint64) for name in table.column_names if name.startswith(SELECTED))
    bits = [(stored.bit(selection) or 0, members) for selection, members in sorted(users.items())]
    return Membership(
        words,
        np.array([bit // 64 for bit, _ in bits], np.int64),
        np.array([1 << (bit % 64) for bit, _ in bits], np.uint64),
        np.array([members for _, members in bits], np.uint64),
        0,
    )


def _accepted(
    conditions: Sequence[Condition], bound: Sequence[Sequence[str]], relations: Sequence[Relation], rows: Sequence[I64]
) -> Mask:
    """Which combinations conditions do not reject; `bound` has the aliases of each relation."""
    columns: dict[str, pa.Array] = {}
    for aliases, relation, numbers in zip(bound, relations, rows, strict=True):
        names = sorted({c.flat for one in conditions for c in one.expression.columns if c.alias in aliases})
        columns |= dict(zip(names, relation.gather(numbers, names), strict=True))
    return not_rejected(conditions, columns)


def _accepted_pairs(part: JoinPart, found: Pairs, left: tuple[str, ...], right: tuple[str, ...]) -> Pairs:
    """The pairs that no condition rejects which both sides are needed for."""
    conditions = newly_complete(part.join.conditions, (left, right), (*left, *right))
    if not conditions or not len(found.left_rows):
        return found
    rows = (found.left_rows, found.right_rows)
    mask = _accepted(conditions, (left, right), (found.left, found.right), rows)
    return found if mask.all() else found.take(np.flatnonzero(mask))


def _accepted_of(part: JoinPart, operator: Probe, found: Combinations, relations: Sequence[Relation]) -> Combinations:
    """Those combinations of one member of a group that its conditions do not reject."""
    if not part.join.conditions or not len(found):
        return found
    asked = {name for one in part.join.conditions for name in one.columns}
    columns: dict[str, pa.Array] = {}
    order = (operator.head, *(one.alias for one in operator.lookups))
    for alias, relation, rows in zip(order, relations, found.rows, strict=True):
        names = [(name, stored) for name, stored in part.views[alias].columns if name in asked]
        values = relation.gather(rows, [stored for _, stored in names])
        columns |= {name: value for (name, _), value in zip(names, values, strict=True)}
    return found.take(np.flatnonzero(not_rejected(part.join.conditions, columns)))


def _columns_of(part: JoinPart, operator: Probe, found: Combinations, relations: Sequence[Relation]) -> pa.Table:
    """The finished combinations of one member of a group, with its own columns."""
    columns: dict[str, pa.Array] = {}
    order = (operator.head, *(one.alias for one in operator.lookups))
    for alias, relation, rows in zip(order, relations, found.rows, strict=True):
        names = part.views[alias].columns
        values = relation.gather(rows, [stored for _, stored in names])
        columns |= {name: value for (name, _), value in zip(names, values, strict=True)}
    return finished(part.join, {**columns, **_answer_time(part, found.latest)}, len(found))


def _answer_time(part: JoinPart, times: I64 | pa.Array) -> dict[str, I64 | pa.Array]:
    """The column of the times of finished combinations, where somebody asks for it."""
    return {TIME.flat: times} if TIME.flat in part.join.output else {}


def _in_span(span: Span, latest_us: I64, *, is_last: bool) -> I64 | None:
    """Which combinations are those of a version, by their latest rows; None is all. A later row may still be added."""
    if span.is_all or (span.until_us is None and not is_last):
        return None
    own = np.ones(len(latest_us), bool)
    if span.until_us is not None:
        own &= latest_us < span.until_us
    if span.from_us is not None and is_last:
        own &= latest_us >= span.from_us
    return np.flatnonzero(own)


def _every(table: pa.Table) -> bool:
    return True


def _without_rows(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """No rows, with the columns that are asked for."""
    empty = table.slice(0, 0)
    for name in names:
        if name not in empty.column_names:
            empty = empty.append_column(name, pa.array([], pa.null()))
    return empty


def _between(table: pa.Table, low: int, high: int) -> pa.Table:
    ts = column(table, TS)
    return where(table, (ts >= low) & (ts < high))


@dataclass(frozen=True)
class Merge:
    """Merge groups of segments, one bucket a task; reports each new part with the number of its group."""

    shelf: Shelf
    buckets: int
    groups: tuple[tuple[tuple[Segment, ...], str, int | None], ...]  # segments, axis, first place alive

    def __call__(self, bucket: int) -> list[tuple[int, Part]]:
        parts = []
        for number, (group, axis, alive) in enumerate(self.groups):
            found = (bucket_rows(self.shelf, part, bucket, self.buckets) for segment in group for part in segment.parts)
            pieces = [table for table in found if table is not None and table.num_rows]
            if not pieces:
                continue
            merged = alike(pieces)
            if alive is not None:
                merged = where(merged, column(merged, axis) >= alive)
            if merged.num_rows:
                merged = sort_rows(merged, ())
                keys = column(merged, KEY)
                part = self.shelf.put("merged", merged)
                parts.append((number, Part(part.path, part.rows, part.bytes, int(keys[0]), int(keys[-1]))))
        return parts
