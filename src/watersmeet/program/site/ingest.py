"""New rows of a stream: malformed and late ones set aside, the rest judged by every selection, filed and packed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.finish.failed import described, shown
from watersmeet.program.finish.shared import add_records
from watersmeet.program.site.classified import RowFilters
from watersmeet.program.site.filing import Made, Mask, file_flow, shelve, where, with_selected
from watersmeet.program.site.ledger import Ingested, Traffic
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import Selection, StreamScan
from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.segments import CLASS, TS, class_column, column, keep_column
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.wire import MESSAGE_BYTES
from watersmeet.query.windows import FIRST_US, LAST_US

_ROW_BITS, _TASK_BITS, _BATCH_BITS = 25, 13, 25
MALFORMED = "#malformed"  # bool, whether the source could not make sense of the row
FAILED = "#failed"  # text, NULL where no expression fails: JSON with the columns whose expressions do, and the row
REASON = "_reason"
_SAMPLE_ROWS = 2_000


@dataclass(frozen=True)
class Ingest:
    """Files the new rows of one stream at its home.

    A table has the event time, the key columns, one column for each selection with filters (or the columns that rows
    are classified by instead), whether the row is malformed, which expressions fail, and the values to keep; all
    columns but the event time may be NULL. An expression that fails is NULL, so whoever needs it does not see the row.
    """

    program: SiteProgram
    shelf: Shelf
    scan: StreamScan
    raw_columns: tuple[str, ...] = ()  # columns to keep of late and malformed rows; none where they are only counted

    def __call__(self, table: pa.Table, late_before: int | None, first_id: int = 0) -> Ingested:
        """File rows; where they are to be told apart, they are numbered from `first_id` on."""
        rows = table.num_rows
        if self.scan.id_column in self.scan.columns:
            table = table.append_column(self.scan.id_column, pa.array(np.arange(first_id, first_id + rows)))
        table = table.combine_chunks()
        found = Ingested(self.scan.stream, rows)
        wrong = pc.invert(pc.is_valid(table.column(TS)) if self.scan.is_table else has_event_time(table))
        if MALFORMED in table.column_names:
            wrong = pc.or_(wrong, table.column(MALFORMED))
            table = table.drop_columns([MALFORMED])
        if malformed := _count(wrong):
            found = replace(found, malformed=malformed, malformed_file=self._set_aside(table, wrong, "malformed"))
            table = table.filter(pc.invert(wrong))
        ts = column(table, TS)
        if len(ts):
            found = replace(found, max_ts=int(ts.max()))
        if late_before is not None and len(ts) and int(ts.min()) < late_before:
            early = pa.array(ts < late_before)
            late_file = self._set_aside(table, early, "late")
            late_by_us = late_before - int(ts.min())
            found = replace(found, late=_count(early), late_file=late_file, late_by_us=late_by_us)
            table = table.filter(pc.invert(early))
        if not table.num_rows:
            return found
        filters = RowFilters(self.scan, table)
        found = replace(found, shared=self._recorded(table, filters))
        masks = self._masks(table, filters)
        if FAILED in table.column_names and table.column(FAILED).null_count < table.num_rows:
            found = self._with_failed(found, table)
            clean = table.filter(pc.is_null(table.column(FAILED)))
            if not self.scan.is_table:
                known = RowFilters(self.scan, clean)
                found = replace(found, null_keys=self._null_keys(known, self._masks(clean, known)))
        else:
            found = replace(found, null_keys={} if self.scan.is_table else self._null_keys(filters, masks))
        found = replace(found, central=self._central(table, filters))
        table = self._kept(table)
        if self.scan.stream in self.program.ordered:
            order = pa.array(np.argsort(column(table, TS), kind="stable"))
            waiting = with_selected(table, masks).take(order)  # all rows: they count before any filter
            found = replace(found, pending=shelve(self.shelf, f"pending-{self.scan.stream}", waiting))
        flow = self.scan.stream
        if flow not in self.program.eager or not (
            self.program.indexes.get(flow) or self.program.shipments_of.get(flow)
        ):
            return found
        if len(masks) > 1:
            table = with_selected(table, masks)
        table = where(table, _any([m for m, s in zip(masks, self.scan.selections, strict=True) if s.count is None]))
        return replace(found, made=file_flow(self.program, self.shelf, flow, table))

    def _recorded(self, table: pa.Table, filters: RowFilters) -> tuple[Made, ...]:
        """The records of new rows for queries that share them, each row in one of each shape."""
        made = []
        for family in self.program.families:
            if family.shape.stream == self.scan.stream:
                records = add_records(family.shape, table, *filters.sets(family.selections), family.cuts)
                if records is not None:
                    path = self.shelf.put("groups", records).path
                    made.append(Made(family.shape.name, records.num_rows, results=path))
        return tuple(made)

    def version(self, table: pa.Table, from_us: int, first_id: int = 0) -> Ingested:
        """File the rows of a version of a table, in force from an instant on, numbered from `first_id` on.

        Of a version without rows there is one that no selection has, so that versions are counted all the same.
        """
        is_empty = not table.num_rows and self.scan.stream in self.program.ordered
        if is_empty:
            table = pa.table([pa.nulls(1, field.type) for field in table.schema], schema=table.schema)
        instants = pa.repeat(pa.scalar(from_us, pa.int64()), table.num_rows)
        table = table.set_column(table.column_names.index(TS), TS, instants)
        if not is_empty:
            return self(table, None, first_id)
        nobody: list[Mask | None] = [np.zeros(1, bool) for _ in self.scan.selections]
        waiting = with_selected(self._kept(table), nobody)
        pending = shelve(self.shelf, f"pending-{self.scan.stream}", waiting)
        return Ingested(self.scan.stream, 0, max_ts=from_us, pending=pending)

    def _masks(self, table: pa.Table, filters: RowFilters) -> list[Mask | None]:
        """Which rows fulfil each selection; of one that is only recorded by, none has to be filed."""
        needed = self.program.needed_selections.get(self.scan.stream, frozenset())
        nobody = np.zeros(table.num_rows, bool)
        return [
            _fulfilled(filters, selection, number) if number in needed else nobody
            for number, selection in enumerate(self.scan.selections)
        ]

    def _kept(self, table: pa.Table) -> pa.Table:
        """The columns that windows need; a key that is NULL belongs to rows of other selections."""
        wanted = {TS, *self.scan.columns}
        table = table.select([n for n in table.column_names if n in wanted or n.startswith(CLASS)])
        for number in range(len(self.scan.keys)):
            name = class_column(number)
            if table.column(name).null_count:
                filled = pc.fill_null(table.column(name), 0)
                table = table.set_column(table.column_names.index(name), name, filled)
        return table

    def _set_aside(self, table: pa.Table, which: pa.Array, reason: str) -> str | None:
        if not self.raw_columns:
            return None
        rows = table.filter(which).select(self.raw_columns)
        rows = rows.rename_columns([name.removeprefix(f"{self.scan.stream}.") for name in rows.column_names])
        rows = rows.append_column(REASON, pa.array([reason] * rows.num_rows))
        return self.shelf.put(reason, rows).path

    def _with_failed(self, found: Ingested, table: pa.Table) -> Ingested:
        """What was found, and the rows that queries do not see because an expression fails, each counted once."""
        rows = table.filter(pc.is_valid(table.column(FAILED)))
        reports = [json.loads(text) for text in rows.column(FAILED).to_pylist()]
        reasons: dict[str, dict[int, str]] = {}  # by query and row
        for part in self.program.parts:
            for view in part.views.values():
                if view.stream == self.scan.stream:
                    for row, sql in self._failures(rows, [report["failed"] for report in reports], view.selection):
                        for query in part.queries:
                            reasons.setdefault(query, {}).setdefault(row, f"{shown(sql)} fails")
        kept = [
            (query, reason, reports[row]["row"])
            for query, by_row in sorted(reasons.items())
            if self.program.errors[query] != "drop"
            for row, reason in sorted(by_row.items())
        ]
        path = self.shelf.put("failed", described(*zip(*kept, strict=True))).path if kept else None
        return replace(found, failed={query: len(by_row) for query, by_row in reasons.items()}, failed_file=path)

    def _failures(self, rows: pa.Table, failed: Sequence[Sequence[str]], number: int) -> Iterator[tuple[int, str]]:
        """Rows for which the filters of a selection fail, or a key where they hold, and which expression does."""
        selection = self.scan.selections[number]
        keys = {class_column(key): self.scan.keys[key].expression.sql for key in selection.keys}
        filters = RowFilters(self.scan, rows)
        begun = _fulfilled(filters, replace(selection, keys=(), filters=()), number)
        passed = _fulfilled(filters, replace(selection, keys=()), number)
        for row, names in enumerate(failed):
            if keep_column(number) in names:
                if begun is None or begun[row]:
                    yield row, selection.condition
            elif passed is None or passed[row]:
                yield from ((row, keys[name]) for name in sorted(keys.keys() & set(names))[:1])

    def _null_keys(self, filters: RowFilters, masks: "Sequence[Mask | None]") -> dict[str, int]:
        """For each query, rows that pass the filters of an alias but have a NULL among its keys."""
        table = filters.table
        missing = {}
        for number, selection in enumerate(self.scan.selections):
            keys = [table.column(class_column(key)) for key in selection.keys]
            if any(values.null_count for values in keys):
                passed = _fulfilled(filters, replace(selection, keys=()), number)
                mask = masks[number]
                before = table.num_rows if passed is None else int(passed.sum())
                missing[number] = before - (table.num_rows if mask is None else int(mask.sum()))
        counts: dict[str, int] = {}
        for part in self.program.counted_parts:
            for view in part.views.values():
                if view.stream == self.scan.stream and missing.get(view.selection):
                    counts[part.name] = counts.get(part.name, 0) + missing[view.selection]
        return counts

    def _central(self, table: pa.Table, filters: RowFilters) -> Traffic:
        """What it would take to ship the rows that any query selects whole to where they are wanted, by a sample."""
        if self.scan.stream not in self.program.away:
            return Traffic()
        table = self._kept(where(table, self._wanted(filters)))
        if not table.num_rows:
            return Traffic()
        sample = table.slice(0, _SAMPLE_ROWS).sort_by(TS)  # as they would travel
        keys = self.program.stored[self.scan.stream].scan.keys
        spare = {
            class_column(number)
            for number, key in enumerate(keys)
            if key.expression.is_plain and key.expression.columns[0].flat in sample.column_names
        }
        size = len(pack_rows(sample.drop_columns([name for name in sample.column_names if name in spare])))
        return Traffic(MESSAGE_BYTES + size * table.num_rows // sample.num_rows, 1, table.num_rows)

    def _wanted(self, filters: RowFilters) -> Mask | None:
        """Which rows any query selects; None is all of them."""
        if any(selection.keys for selection in self.scan.selections):
            return _any(
                [_fulfilled(filters, selection, number) for number, selection in enumerate(self.scan.selections)]
            )
        codes, sets = filters.sets(range(len(self.scan.selections)))
        return np.array([bool(set_) for set_ in sets])[codes]


def first_row_id(batch: int, task: int) -> int:
    """From where on a task numbers the rows of a micro-batch; no number comes twice while a window has its row."""
    if task >= 1 << _TASK_BITS:
        raise ValueError(f"a micro-batch has more than {1 << _TASK_BITS:,} tasks")
    return (batch % (1 << _BATCH_BITS) << _TASK_BITS | task) << _ROW_BITS


def has_event_time(table: pa.Table) -> pa.Array | pa.ChunkedArray:
    """Which rows have an event time that engines can compute with."""
    ts = table.column(TS)
    first, last = pc.min_max(ts).values()
    if not ts.null_count and (not len(ts) or (first.as_py() >= FIRST_US and last.as_py() <= LAST_US)):
        return pa.array(np.ones(len(ts), bool))
    return pc.fill_null(pc.and_(pc.greater_equal(ts, FIRST_US), pc.less_equal(ts, LAST_US)), False)


def _count(mask: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _fulfilled(filters: RowFilters, selection: Selection, number: int) -> Mask | None:
    """Which rows fulfil a selection; None is all of them."""
    table = filters.table
    mask = filters.holds(number) if selection.filters else None
    for key in selection.keys:
        values = table.column(class_column(key))
        if values.null_count:
            valid = np.asarray(pc.is_valid(values))
            mask = valid if mask is None else mask & valid
    if selection.start_us is not None:
        begun = column(table, TS) >= selection.start_us
        mask = begun if mask is None else mask & begun
    return None if mask is None or mask.all() else mask


def _any(masks: "Sequence[Mask | None]") -> Mask | None:
    if any(mask is None for mask in masks):
        return None
    whole = np.zeros(len(masks[0] if masks[0] is not None else ()), bool)
    for mask in masks:
        whole |= mask
    return whole
