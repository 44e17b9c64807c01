"""What operators read in one bucket: stored rows as their aliases see them, new and old ones told apart."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from watersmeet.program.join import kernels
from watersmeet.program.join.axis import Axis, Clock, instants
from watersmeet.program.join.probe import (
    Relation,
    Run,
    Visibility,
    intervals,
)
from watersmeet.program.operators import (
    Flow,
    Form,
    Gather,
    Join,
    Operator,
    Probe,
    Semijoin,
)
from watersmeet.program.site.filing import where
from watersmeet.program.site.part import JoinPart, counting_of, ordinal_name
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import View
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
    selected_column,
)
from watersmeet.program.storage.shelf import Part, Segment, Shelf, bucket_rows
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import counted

Segments = Mapping[str, tuple[Segment, ...]]
Watermarks = Mapping[str, int]  # by flow

_NO_BITS: U64 = np.empty(0, np.uint64)


class Readable(Protocol):
    """What a micro-batch hands to the operators of a bucket."""

    @property
    def program(self) -> SiteProgram: ...
    @property
    def shelf(self) -> Shelf: ...
    @property
    def buckets(self) -> int: ...
    @property
    def old(self) -> Segments: ...
    @property
    def new(self) -> Segments: ...
    @property
    def clocks(self) -> Segments: ...
    @property
    def before(self) -> Watermarks: ...
    @property
    def now(self) -> Watermarks: ...
    @property
    def starting(self) -> frozenset[str]: ...


class Inputs:
    """The rows of one bucket that operators read; what several of them look up the same way is made once."""

    def __init__(self, task: "Readable", bucket: int) -> None:
        self._task = task
        self._program = task.program
        self._bucket = bucket
        self._slices: dict[str, pa.Table | None] = {}
        self._axes: dict[tuple[str, str], Axis] = {}
        self._clocks: dict[str, Clock] = {}
        self._runs: dict[tuple[object, ...], tuple[pa.Table, Run]] = {}
        self._seen_through: dict[tuple[int, int, str], tuple[pa.Table, tuple[pa.Table, U64, int]]] = {}

    def watermarks_before(self, part: JoinPart) -> Watermarks:
        """The watermarks up to which a join had come."""
        return {} if part.name in self._task.starting else self._task.before

    def new(self, part: JoinPart, relation: str) -> list[pa.Table]:
        """The rows of a relation that are new to a join."""
        arrived_now = self.tables(self._task.new, relation)
        is_starting = part.name in self._task.starting
        return [*self.tables(self._task.old, relation), *arrived_now] if is_starting else arrived_now

    def old(self, part: JoinPart, relation: str, since: int = UNKNOWN) -> list[pa.Table]:
        """The rows of a relation that a join has seen before."""
        return [] if part.name in self._task.starting else self.tables(self._task.old, relation, since)

    def filled(self, table: pa.Table, views: Sequence[View], relation: str) -> pa.Table:
        """Rows with the columns and bits that some aliases read, where they were stored before anyone did."""
        names = {name for view in views for _, name in view.columns} - set(table.column_names)
        stored = self._program.stored[views[0].stream]
        index = next(index for index in self._program.indexes[views[0].flow] if index.relation == relation)
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

    def instants(self, part: JoinPart, alias: str, table: pa.Table) -> Visibility:
        """When rows of an alias are visible, on the axis of event time."""
        window = part.join.scan(alias).window
        clock = self.clock(part.clock(alias)) if counted(window) is not None else None
        ordinals = column(table, ORDINAL) if ORDINAL in table.column_names else None
        return instants(window, column(table, TS), ordinals, clock)

    def relation(
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
                rows, bits, bit = (table, _NO_BITS, 0) if view is None else self.through(view, relation, table)
                visible = visibility(rows)
                run = Run(column(rows, KEY), visible, rows, span_of(visible), narrows, bits, bit)
                self._runs[name] = table, run  # holds the table too, so that its id stays its own
            runs.append(self._runs[name][1])
        return Relation(tuple(runs))

    def seen(self, part: JoinPart, flow: Flow, relation: str, table: pa.Table) -> pa.Table:
        """The rows of a table that an alias sees."""
        view = part.view_of(flow)
        if view is None:
            return table
        rows, bits, bit = self.through(view, relation, table)
        return rows if not bit else where(rows, (bits & np.uint64(bit)) != 0)

    def through(self, view: View, relation: str, table: pa.Table) -> tuple[pa.Table, U64, int]:
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
        index = next(index for index in self._program.indexes[view.flow] if index.relation == relation)
        read = view.keys.values() if index.classes is None else set(view.keys.values()) & set(index.classes)
        names = {*map(class_column, read), *(name for _, name in view.columns)}
        return names <= set(table.column_names)

    def _only(self, view: View, relation: str) -> bool:
        """Whether an index holds the rows of this view's selection alone."""
        return any(
            index.relation == relation and index.selections == (view.selection,)
            for index in self._program.indexes.get(view.flow, ())
        )

    def admitted(
        self, part: JoinPart, alias: str, time: str, new: Sequence[pa.Table], old: Sequence[pa.Table]
    ) -> tuple[list[pa.Table], list[pa.Table]]:
        """Rows whose time the clock has reached: those it reached just now are new, whenever they came.

        What is asked for beyond the clock is met by rows that are still to come, which are new then.
        """
        clock = part.clock(alias)
        before, now = self.watermarks_before(part).get(clock, UNKNOWN), self._task.now.get(clock, UNKNOWN)
        return _reached(new, old, before, now, lambda table: column(table, time))

    def passed(
        self, part: JoinPart, operator: Operator, form: Form, new: Sequence[pa.Table], old: Sequence[pa.Table]
    ) -> tuple[list[pa.Table], list[pa.Table]]:
        """Rows of a tree's input that all row clocks of a join have passed: those passed just now are new."""
        clocks = [part.clock(alias) for alias in counting_of(part, operator)]
        marks = (self.watermarks_before(part), self._task.now)
        before, now = (min(known.get(clock, UNKNOWN) for clock in clocks) for known in marks)
        aliases = len(part.join.scans)

        def latest(table: pa.Table) -> I64:
            return column(table, LOW) // aliases if form is Form.INTERMEDIATE else column(table, TS)

        return _reached(new, old, before, now, latest)

    def in_time(self, part: JoinPart, flow: Flow, bound: Sequence[str], table: pa.Table) -> Visibility:
        """When rows of a tree's input are visible on the axis of time, as far as row clocks have come."""
        axes = {alias: self.axis(part, alias) for alias in bound}
        if flow.form is not Form.INTERMEDIATE:
            (axis,) = axes.values()
            ts = column(table, TS)
            return axis.rows_in_time(ts, column(table, ORDINAL)) if axis.counts_rows else axis.rows(ts, None)
        low, high = column(table, LOW), column(table, HIGH)
        for alias, axis in axes.items():
            if axis.counts_rows:
                ordinals = column(table, ordinal_name(part, flow, alias))
                high = np.minimum(high, axis.rows_in_time(low, ordinals).ends())
        return intervals(low, high)

    def tables(self, segments: Segments, relation: str, since: int = UNKNOWN) -> list[pa.Table]:
        """The rows of a relation that have this bucket, leaving out segments that end before an instant."""
        found = (segment for segment in segments.get(relation, ()) if segment.max_ts >= since)
        tables = (self._slice(part) for segment in found for part in segment.parts)
        return [table for table in tables if table is not None and table.num_rows]

    def _slice(self, part: Part) -> pa.Table | None:
        if part.path not in self._slices:
            self._slices[part.path] = bucket_rows(self._task.shelf, part, self._bucket, self._task.buckets)
        return self._slices[part.path]

    def axis(self, part: JoinPart, alias: str) -> Axis:
        """The axis of an alias's window."""
        if (part.name, alias) not in self._axes:
            self._axes[part.name, alias] = axis_of(part, alias, self.clock)
        return self._axes[part.name, alias]

    def clock(self, name: str) -> Clock:
        """As much of a row clock as is known here."""
        if name not in self._clocks:
            self._clocks[name] = read_clock(self._task.shelf, self._task.clocks.get(name, ()))
        return self._clocks[name]


def read_clock(shelf: Shelf, ticks: Sequence[Segment]) -> Clock:
    """As much of a row clock as is known here."""
    if not ticks:
        return Clock()
    return Clock(
        ticks[0].min_ordinal, np.concatenate([column(shelf.get(segment.parts[0].path), TS) for segment in ticks])
    )


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
    flows += [part.clock(alias) for alias in counting_of(part, operator)]
    if isinstance(operator, Probe):
        flows += [part.clock(scan.alias) for scan in part.join.scans if counted(scan.window) is not None]
    return min(marks.get(name, UNKNOWN) for name in flows)


def _reached(
    new: Sequence[pa.Table], old: Sequence[pa.Table], before: int, now: int, time: Callable[[pa.Table], I64]
) -> tuple[list[pa.Table], list[pa.Table]]:
    """Rows whose time is in [before, now), whenever they came, and those of earlier times."""
    fresh = [where(table, time(table) < now) for table in new]
    fresh += [where(table, (time(table) >= before) & (time(table) < now)) for table in old]
    return fresh, [where(table, time(table) < before) for table in old]


def head_position(part: JoinPart, operator: Operator) -> int:
    """The place in the query of the head that an operator works for; a tree has none."""
    return part.join.position(operator.head) if isinstance(operator, Join | Semijoin) and operator.head else 0


def visibility_of(axis: Axis, form: Form, head: int, table: pa.Table) -> Visibility:
    """When rows of a form are visible to what looks them up."""
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


def span_of(visible: Visibility) -> tuple[int, int]:
    """From the first instant at which any row is visible to the last."""
    if not len(visible.at):
        return 0, -1
    first = int(visible.at.min()) * visible.scale + visible.offset
    if visible.kind == kernels.FIXED:
        return first, int(visible.at.max()) * visible.scale + visible.offset + visible.length
    if visible.kind == kernels.TUMBLE:
        return first, (int(visible.at.max()) // visible.length + 1) * visible.length * visible.scale - 1
    return first, int(visible.high.max()) if visible.kind == kernels.EXPLICIT else kernels.NEVER


def _without_rows(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """No rows, with the columns that are asked for."""
    empty = table.slice(0, 0)
    for name in names:
        if name not in empty.column_names:
            empty = empty.append_column(name, pa.array([], pa.null()))
    return empty


def between(table: pa.Table, low: int, high: int) -> pa.Table:
    """The rows whose time is in [low, high)."""
    ts = column(table, TS)
    return where(table, (ts >= low) & (ts < high))
