"""The work of one turn of a site that can run in parallel: unpacking, releasing rows in order, operators by bucket.

Each task is a picklable value that is called with its number and returns what it filed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa

from watersmeet.plan.nodes import JoinPlan, Scan
from watersmeet.program.join.axis import Axis, Clock
from watersmeet.program.join.match import Side, Witnesses, first_meetings, interval_run, pairs
from watersmeet.program.join.probe import Lookup, Relation, Run, join
from watersmeet.program.join.stages import finished
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Join,
    Operator,
    Pair,
    Project,
    Semijoin,
    SiteProgram,
    axis_alias,
    clock_of,
    rows_of,
)
from watersmeet.program.site.filing import (
    HIGH,
    LOW,
    Made,
    arrived,
    bucket_rows,
    file_flow,
    file_here,
    pack_for_others,
    relation_name,
    routes_of,
    rows_for,
    shelve,
    sort_rows,
)
from watersmeet.program.site.ledger import Part, Segment
from watersmeet.program.storage import bloom
from watersmeet.program.storage.bloom import Filter
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.segments import (
    I64,
    KEY,
    ORDINAL,
    TS,
    U64,
    class_column,
    column,
    drop_unjoinable,
    key_order,
    place_of,
)
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.wire import UNKNOWN, unpack_schema
from watersmeet.query.windows import Rows

Segments = Mapping[str, tuple[Segment, ...]]


@dataclass(frozen=True, slots=True)
class Packed:
    """Where the rows of one inbound message lie."""

    flow: Flow
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
        payload = self.shelf.get_bytes(message.path, message.start, message.size)
        table = arrived(self.program, message.flow, unpack_rows(payload, unpack_schema(bytes.fromhex(message.schema))))
        if message.flow.form is Form.CLOCK:
            return [Made(message.flow.name, table.num_rows, {message.flow.name: shelve(self.shelf, "clock", table)})]
        return [file_flow(self.program, self.shelf, message.flow, table, travels=False)]


@dataclass(frozen=True)
class Release:
    """Take the waiting rows of aliases with ROWS windows in (ts, arrival) order up to an instant; one alias a task.

    A row that is pushed out by others of its own timestamp is never seen by anyone, and is left out here.
    """

    program: SiteProgram
    shelf: Shelf
    scans: tuple[Scan, ...]
    pending: Segments
    ordinals: Mapping[str, int]
    released_from: Mapping[str, int]
    released_to: Mapping[str, int]

    def __call__(self, number: int) -> list[Made]:
        scan = self.scans[number]
        pieces = []
        for segment in self.pending.get(scan.alias, ()):
            table = self.shelf.get(segment.parts[0].path)
            edges = np.searchsorted(
                column(table, TS), (self.released_from.get(scan.alias, UNKNOWN), self.released_to[scan.alias])
            )
            pieces.append(table.slice(edges[0], max(edges[1] - edges[0], 0)))
        if not any(piece.num_rows for piece in pieces):
            return []
        table = pa.concat_tables(pieces).combine_chunks()
        table = table.take(pa.array(np.argsort(column(table, TS), kind="stable")))
        first = self.ordinals.get(scan.alias, 0)
        ts = column(table, TS)
        clock = clock_of(scan.alias)
        ticks = pa.table({TS: table.column(TS)})
        told = file_flow(self.program, self.shelf, clock, ticks)
        made = [Made(clock.name, len(ts), {clock.name: shelve(self.shelf, "clock", ticks)}, told.payloads)]
        ordinals = np.arange(first, first + len(ts))
        assert isinstance(scan.window, Rows)
        last = np.searchsorted(ts, ts, "right") - 1 + first
        table = table.append_column(ORDINAL, pa.array(ordinals)).filter(pa.array(ordinals + scan.window.count > last))
        table = drop_unjoinable(table, scan.classes)
        return [*made, file_flow(self.program, self.shelf, rows_of(scan.alias), table)]


@dataclass(frozen=True)
class Round:
    """Some operators of a site in one bucket a task."""

    program: SiteProgram
    shelf: Shelf
    operators: tuple[Operator, ...]
    buckets: int
    old: Segments
    new: Segments
    clocks: Segments
    before: Mapping[str, int]  # how far each flow had come before this turn
    now: Mapping[str, int]

    def __call__(self, bucket: int) -> list[Made]:
        work = _Bucket(self, bucket)
        made = []
        for operator in self.operators:
            table = work.run(operator)
            if table is not None and table.num_rows:
                made.append(work.file(operator, table))
        return made


class _Bucket:
    """The operators of a round over the rows of one bucket; what one makes, the next can use at once."""

    def __init__(self, task: Round, bucket: int) -> None:
        self._task = task
        self._program = task.program
        self._join = task.program.join
        self._bucket = bucket
        self._operators = frozenset(task.operators)
        self._fresh: dict[str, list[pa.Table]] = {}  # by relation
        self._slices: dict[str, pa.Table | None] = {}
        self._axes: dict[str, Axis] = {}
        self._runs: dict[tuple[int, Form, int, int], Run] = {}

    def run(self, operator: Operator) -> pa.Table | None:
        match operator:
            case Join():
                return self._run_join(operator)
            case Pair():
                return self._run_pair(operator)
            case Semijoin():
                return self._run_semijoin(operator)
            case Announce():
                return self._announce(operator)
            case Project():
                return self._project(operator)
            case _:
                assert_never(operator)

    def file(self, operator: Operator, table: pa.Table) -> Made:
        """File what an operator made; readers in this round get it as it is, and it is kept only for later turns."""
        flow = operator.out
        reading = self._program.readers.get(flow.name, ())
        readers = [o for o in reading if o.key == operator.key and o in self._operators]
        others = len(reading) > len(readers)
        if readers:
            fresh = sort_rows(table, operator.key)
            fresh_routes = routes_of(self._program, fresh, operator.key)
            for sub_plans in {o.sub_plans for o in readers}:
                rows = rows_for(self._program, fresh, fresh_routes, sub_plans)
                if rows.num_rows:
                    self._fresh.setdefault(relation_name(flow.name, operator.key, sub_plans), []).append(rows)
            if flow.form is Form.POINT and not others:
                keeping = table.filter(
                    pa.array(column(table, TS) >= min(horizon(o, self._join, self._task.now) for o in readers))
                )
                program, shelf = self._program, self._task.shelf
                kept = file_here(program, shelf, flow, keeping, routes_of(program, keeping, operator.key))
                sent = pack_for_others(program, shelf, flow, table, routes_of(program, table, operator.key))
                return Made(flow.name, table.num_rows, kept, sent)
        return file_flow(self._program, self._task.shelf, flow, table, key=operator.key)

    def _run_join(self, operator: Join) -> pa.Table | None:
        left = self._side(operator, operator.left)
        right = self._side(operator, operator.right)
        axis = self._axis(operator.alias)
        tables = []
        for found in pairs(left, right, operator.checks):
            left_rows, right_rows = found.left_rows, found.right_rows
            if axis.counts_rows:
                ours = found.left.gather(left_rows, [TS])[0].to_numpy()
                theirs = found.right.gather(right_rows, [TS])[0].to_numpy()
                wins = self._join.position(operator.head) > self._join.position(operator.alias)
                is_head = np.flatnonzero((theirs < ours) | ((theirs == ours) & wins))
                left_rows, right_rows = left_rows[is_head], right_rows[is_head]
            if len(left_rows):
                tables.append(self._combine(operator, found.left, left_rows, found.right, right_rows))
        return pa.concat_tables(tables) if tables else None

    def _combine(self, operator: Join, left: Relation, left_rows: I64, right: Relation, right_rows: I64) -> pa.Table:
        ours = [name for alias in operator.bound for name in self._join.scan(alias).columns]
        theirs = list(self._join.scan(operator.alias).columns)
        is_last = operator.out.form is Form.RESULT
        has = set(left.runs[0].rows.column_names)
        classes = [] if is_last else [class_column(number) for number in operator.carried]
        left_names = [*([] if is_last else [TS]), *(name for name in classes if name in has), *ours]
        right_names = [*(name for name in classes if name not in has), *theirs]
        columns = dict(zip(left_names, left.gather(left_rows, left_names), strict=True))
        columns |= dict(zip(right_names, right.gather(right_rows, right_names), strict=True))
        if not is_last:
            return pa.table(columns)
        return finished(self._join, columns, len(left_rows))

    def _run_pair(self, operator: Pair) -> pa.Table | None:
        left = self._side(operator, operator.left)
        right = self._side(operator, operator.right)
        is_last = operator.out.form is Form.RESULT
        ours, theirs = (
            [name for alias in bound for name in self._join.scan(alias).columns]
            for bound in (operator.left_bound, operator.right_bound)
        )
        tables = []
        for found in pairs(left, right, operator.checks):
            has = set(found.left.runs[0].rows.column_names)
            classes = [] if is_last else [class_column(number) for number in operator.carried]
            left_names = [*(name for name in classes if name in has), *ours]
            right_names = [*(name for name in classes if name not in has), *theirs]
            columns = dict(zip(left_names, found.left.gather(found.left_rows, left_names), strict=True))
            columns |= dict(zip(right_names, found.right.gather(found.right_rows, right_names), strict=True))
            if is_last:
                tables.append(finished(self._join, columns, len(found.left_rows)))
            else:
                tables.append(pa.table({LOW: found.low, HIGH: found.high, **columns}))
        return pa.concat_tables(tables) if tables else None

    def _run_semijoin(self, operator: Semijoin) -> pa.Table | None:
        subject = self._side(operator, operator.subject)
        if operator.witness.bloom:
            witnesses = Witnesses(_NOTHING, *self._filters(operator))
        else:
            witnesses = Witnesses(self._side(operator, operator.witness))
        tables = []
        for relation, rows in first_meetings(subject, witnesses):
            names = relation.runs[0].rows.column_names
            tables.append(pa.table(dict(zip(names, relation.gather(rows, names), strict=True))))
        if not tables:
            return None
        table = pa.concat_tables(tables)
        spare = {Form.SPAN: [], Form.ROW: [KEY]}.get(operator.out.form, [KEY, ORDINAL])
        return table.drop_columns([name for name in spare if name in table.column_names])

    def _announce(self, operator: Announce) -> pa.Table | None:
        axis = self._axis(operator.alias)
        rows = self._side(operator, operator.rows)
        keys = self._side(operator, operator.out)
        announced = [_uncovered(rows.new, keys.both)]
        start, stop = (self._due(operator, axis, progress) for progress in (self._task.before, self._task.now))
        ended = _ends(keys.both, announced[0], rows.new, start, stop)
        while len(ended[0]):
            known = Relation((*keys.both.runs, *(_span_run(spans) for spans in announced)))
            more = _continued(ended, known, rows.both)
            announced.append(more)
            ended = more[0][more[2] < stop], more[2][more[2] < stop]
        whole = [np.concatenate(values) for values in zip(*announced, strict=True)]
        if not len(whole[0]):
            return None
        return pa.table({KEY: whole[0], LOW: whole[1], HIGH: whole[2]})

    def _due(self, operator: Announce, axis: Axis, progress: Mapping[str, int]) -> int:
        """The place up to which every presence must be announced: watermark and askers have got so far."""
        mark = progress.get(operator.rows.name, UNKNOWN)
        places = [UNKNOWN if mark == UNKNOWN else axis.first(mark)]
        if not axis.counts_rows:  # ordinals are translated only as far as the watermark anyway
            paces = (progress.get(name, UNKNOWN) for name in self._program.paces_of(operator.alias))
            places += [axis.first(pace + 1) for pace in paces if pace != UNKNOWN]
        return max(places)

    def _project(self, operator: Project) -> pa.Table | None:
        if operator.alias:
            return self._project_intervals(operator)
        relation = relation_name(operator.rows.name, operator.key, operator.sub_plans)
        fresh = [*self._tables(self._task.new, relation), *self._fresh.get(relation, [])]
        if not fresh:
            return None
        keys = np.concatenate([column(table, KEY) for table in fresh])
        ts = np.concatenate([column(table, TS) for table in fresh])
        order = key_order(keys, ts)
        keys, ts = keys[order], ts[order]
        first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        last = np.r_[first[1:], len(keys)] - 1
        return pa.table({KEY: keys[first], LOW: ts[first], HIGH: ts[last]})

    def _project_intervals(self, operator: Project) -> pa.Table | None:
        """The keys of a tree's input, each from its first interval to its last."""
        runs = self._side(operator, operator.rows).new.runs
        if not runs:
            return None
        keys = np.concatenate([run.keys for run in runs])
        low = np.concatenate([run.ts for run in runs])
        high = np.concatenate([run.ends(np.arange(len(run.keys))) for run in runs])
        order = key_order(keys, low)
        keys, low, high = keys[order], low[order], high[order]
        first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        return pa.table({KEY: keys[first], LOW: low[first], HIGH: np.maximum.reduceat(high, first)})

    def _side(self, operator: Operator, flow: Flow) -> Side:
        """An input as runs with the intervals that the operator is about."""
        relation = relation_name(flow.name, operator.key, operator.sub_plans)
        new = [*self._tables(self._task.new, relation), *self._fresh.get(relation, [])]
        form = role(operator, flow)
        axis = self._axis(axis_alias(operator, flow))
        waits = form is Form.POINT and flow == operator.inputs[0]
        # Points before the horizon have met all they can: nothing that comes now is for them.
        done = horizon(operator, self._join, self._task.before) if waits else UNKNOWN
        old = self._tables(self._task.old, relation, done)
        if waits and isinstance(operator, Semijoin):  # what they met is forgotten: a wide filter might seem the first
            old = [_where(table, column(table, TS) >= done) for table in old]
        if axis.counts_rows and form in (Form.POINT, Form.ASK):
            new, old = self._admitted(operator.alias, TS if form is Form.POINT else LOW, new, old)
        head = self._head(operator)
        return Side(
            Relation(tuple(self._run(axis, form, head, table) for table in new)),
            Relation(tuple(self._run(axis, form, head, table) for table in old)),
        )

    def _head(self, operator: Operator) -> int:
        """The place in the query of the head that an operator works for; a tree has none."""
        return self._join.position(operator.head) if isinstance(operator, Join | Semijoin) and operator.head else 0

    def _run(self, axis: Axis, form: Form, head: int, table: pa.Table) -> Run:
        """Rows as a run; what several operators look up the same way is made once."""
        slot = (id(table), form, axis.position, head if form is not Form.ROW else 0)
        if slot not in self._runs:
            self._runs[slot] = _run(axis, form, head, table)  # the run holds the table, so its id stays its own
        return self._runs[slot]

    def _admitted(
        self, alias: str, time: str, new: Sequence[pa.Table], old: Sequence[pa.Table]
    ) -> tuple[list[pa.Table], list[pa.Table]]:
        """Rows whose time the clock has reached: those it reached just now are new, whenever they came.

        What is asked for beyond the clock is met by rows that are still to come, which are new then.
        """
        clock = clock_of(alias).name
        before, now = self._task.before.get(clock, UNKNOWN), self._task.now.get(clock, UNKNOWN)
        fresh = [_where(table, column(table, time) < now) for table in new]
        fresh += [_where(table, (column(table, time) >= before) & (column(table, time) < now)) for table in old]
        return fresh, [_where(table, column(table, time) < before) for table in old]

    def _filters(self, operator: Semijoin) -> tuple[tuple[Filter, ...], tuple[Filter, ...]]:
        relation = relation_name(operator.witness.name, operator.key, operator.sub_plans)
        axis, head = self._axis(operator.alias), self._head(operator)
        new, old = self._tables(self._task.new, relation), self._tables(self._task.old, relation)
        if operator.witness.form is Form.ASK and axis.counts_rows:
            new, old = self._admitted(operator.alias, LOW, new, old)
        made = []
        for tables in (new, old):
            filters = []
            for table in tables:
                low, high = _interval(axis, operator.witness.form, head, table)
                bits = table.column(bloom.BITS).to_pylist()
                filters += [
                    Filter(int(one), int(other), np.frombuffer(data, np.uint8))
                    for one, other, data in zip(low, high, bits, strict=True)
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

    def _axis(self, alias: str) -> Axis:
        if alias not in self._axes:
            self._axes[alias] = axis_of(self._program, self._task.shelf, alias, self._task.clocks)
        return self._axes[alias]


_NOTHING = Side(Relation(()), Relation(()))


def axis_of(program: SiteProgram, shelf: Shelf, alias: str, clocks: Segments) -> Axis:
    """The axis of an alias's window, with as much of its clock as is known here."""
    scan = program.join.scan(alias)
    clock = None
    if isinstance(scan.window, Rows):
        ticks = clocks.get(clock_of(alias).name, ())
        ts = [column(shelf.get(segment.parts[0].path), TS) for segment in ticks]
        clock = Clock(ticks[0].min_ordinal, np.concatenate(ts)) if ticks else Clock()
    return Axis(scan.window, program.join.position(alias), len(program.join.scans), clock)


def role(operator: Operator, flow: Flow) -> Form:
    """What the rows of an input stand for in an operator: the rows of a head are points, those of a window are not."""
    if isinstance(operator, Join):
        return Form.POINT if flow == operator.left else Form.ROW
    if isinstance(operator, Semijoin) and operator.head and flow == rows_of(operator.head):
        return Form.POINT
    return flow.form


def horizon(operator: Operator, query: JoinPlan, progress: Mapping[str, int]) -> int:
    """How far all inputs of an operator have come, the clock of a ROWS window included."""
    flows = [flow.name for flow in operator.inputs]
    if isinstance(operator, Join | Semijoin) and isinstance(query.scan(operator.alias).window, Rows):
        flows.append(clock_of(operator.alias).name)
    return min(progress.get(name, UNKNOWN) for name in flows)


def _interval(axis: Axis, form: Form, head: int, table: pa.Table) -> tuple[I64, I64]:
    match form:
        case Form.POINT:
            place = axis.points(column(table, TS), head)
            return place, place
        case Form.ROW:
            return axis.rows(column(table, TS), column(table, ORDINAL) if ORDINAL in table.column_names else None)
        case Form.SPAN | Form.PIECE:
            return column(table, LOW), column(table, HIGH)
        case Form.ASK:
            return axis.points(column(table, LOW), head), axis.points(column(table, HIGH), head)
        case _:
            raise AssertionError(f"nothing looks up {form}")


def _run(axis: Axis, form: Form, head: int, table: pa.Table) -> Run:
    low, high = _interval(axis, form, head, table)
    return interval_run(table, low, high, narrows=form in (Form.POINT, Form.ROW))


def _where(table: pa.Table, mask: np.ndarray) -> pa.Table:
    return table if mask.all() else table.filter(pa.array(mask))


Spans = tuple[U64, I64, I64]  # key, from, until


def _uncovered(rows: Relation, known: Relation) -> Spans:
    """Spans for rows whose beginning no span covers: of each key the first such row, then the first beyond it, ..."""
    keys = np.concatenate([run.keys for run in rows.runs] or [np.empty(0, np.uint64)])
    low = np.concatenate([run.ts for run in rows.runs] or [np.empty(0, np.int64)])
    high = np.concatenate([run.ends(np.arange(len(run.keys))) for run in rows.runs] or [np.empty(0, np.int64)])
    order = key_order(keys, low)
    keys, low, high = keys[order], low[order], high[order]
    rest = np.delete(np.arange(len(keys)), _covered(keys, low, known))
    picked = [np.empty(0, np.int64)]
    while len(rest):
        first = np.r_[True, keys[rest][1:] != keys[rest][:-1]]
        heads = rest[first]
        picked.append(heads)
        rest = rest[low[rest] > high[heads][np.cumsum(first) - 1]]
    chosen = np.concatenate(picked)
    return keys[chosen], low[chosen], high[chosen]


def _covered(keys: U64, places: I64, known: Relation) -> I64:
    """Which places lie in a known span of their key."""
    if not len(known) or not len(keys):
        return np.empty(0, np.int64)
    found = [met.rows[0] for met in join(_points(keys, places), [Lookup(known)])]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _points(keys: U64, places: I64) -> Relation:
    span = (int(places.min()), int(places.max()))
    return Relation((Run(keys, places, lambda which: places[which], pa.table({}), span, narrows=False),))


def _span_run(spans: Spans) -> Run:
    order = key_order(spans[0], spans[1])
    keys, low, high = spans[0][order], spans[1][order], spans[2][order]
    table = pa.table({KEY: keys, LOW: low, HIGH: high})
    return interval_run(table, low, high, narrows=False)


def _ends(known: Relation, fresh: Spans, rows: Relation, start: int, stop: int) -> tuple[U64, I64]:
    """Keys and ends of spans that may have to go on: those that end before `stop`.

    Known ones that ended before `start` have been seen to; of them, only those of new rows are looked at again.
    """
    keys, ends = [fresh[0][fresh[2] < stop]], [fresh[2][fresh[2] < stop]]
    touched = np.concatenate([run.keys for run in rows.runs] or [np.empty(0, np.uint64)])
    for run in known.runs:
        until = run.ends(np.arange(len(run.keys)))
        which = (until < stop) & ((until >= start) | np.isin(run.keys, touched))
        keys.append(run.keys[which])
        ends.append(until[which])
    return np.concatenate(keys), np.concatenate(ends)


def _continued(ended: tuple[U64, I64], known: Relation, rows: Relation) -> Spans:
    """Spans that go on where others ended, because a row still reaches further."""
    keys, next_place = ended[0], ended[1] + 1
    open_ = np.delete(np.arange(len(keys)), _covered(keys, next_place, known))
    keys, next_place = keys[open_], next_place[open_]
    if not len(keys) or not len(rows):
        return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    until = np.full(len(keys), -1, np.int64)
    reached = np.zeros(len(keys), bool)
    for met in join(_points(keys, next_place), [Lookup(rows)]):
        which, where = met.rows
        run_of = np.searchsorted(rows.offsets, where, "right") - 1
        for number in np.unique(run_of):
            here = run_of == number
            high = rows.runs[number].ends(where[here] - int(rows.offsets[number]))
            np.maximum.at(until, which[here], high)
            reached[which[here]] = True
    keys, low, high = keys[reached], next_place[reached], until[reached]
    _, first = np.unique(np.stack([keys, low.view(np.uint64)]), axis=1, return_index=True)
    return keys[first], low[first], high[first]


@dataclass(frozen=True)
class Merge:
    """Merge groups of segments, one bucket a task; what was filed is told as parts of the group with that number."""

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
            merged = pa.concat_tables(pieces).combine_chunks()
            if alive is not None:
                merged = _where(merged, column(merged, axis) >= alive)
            if merged.num_rows:
                places = column(merged, LOW) if LOW in merged.column_names else place_of(merged)
                merged = merged.take(pa.array(key_order(column(merged, KEY), places)))
                keys = column(merged, KEY)
                part = self.shelf.put("merged", merged)
                parts.append((number, Part(part.path, part.rows, part.bytes, int(keys[0]), int(keys[-1]))))
        return parts
