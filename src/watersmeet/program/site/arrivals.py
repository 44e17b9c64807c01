"""Rows that come to a site before its operators run: messages unpacked, rows of ROWS windows released in order."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.program.operators import (
    Form,
)
from watersmeet.program.site.filing import (
    Made,
    Mask,
    alike,
    arrived,
    copied_rows,
    file_flow,
    pack_for_others,
    shelve,
    where,
    with_selected,
)
from watersmeet.program.site.inbound import check_rows
from watersmeet.program.site.inputs import Segments, Watermarks
from watersmeet.program.site.program import Shipment, SiteProgram
from watersmeet.program.site.streams import clock_flow, ordered_flow
from watersmeet.program.storage.packing import unpack_rows
from watersmeet.program.storage.segments import (
    ORDINAL,
    SELECTED,
    TS,
    column,
    selected_column,
)
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.sizes import split_rows, take_rows
from watersmeet.program.storage.wire import UNKNOWN, naming_damage, unpack_schema


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
            check_rows(self.program, shipment, rows)
            table = arrived(self.program, shipment, rows)
        if shipment.form is Form.CLOCK:
            return [Made(shipment.arrives_as, table.num_rows, ticks=shelve(self.shelf, "clock", table))]
        if shipment.form in (Form.RESULT, Form.RECORD):
            return [Made(shipment.arrives_as, table.num_rows, results=self.shelf.put("results", table).path)]
        part = self.program.part(shipment.join) if shipment.join else None
        if shipment.copies:
            filed = ((copy.flow, copied_rows(table, copy)) for copy in shipment.copies)
        else:
            filed = ((shipment.rows_of, table) for _ in range(1))
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
