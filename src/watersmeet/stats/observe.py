"""What a site sees of its own streams: of every micro-batch all rows are counted, and a sample of them sketched.

The figures are about the whole run so far. A batch of more than 2,000 rows is taken by 2,000 of them at even distances,
so that large batches count for less in how values spread than they have rows; rates and shares count every row.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.plan.nodes import Scan
from watersmeet.program.site.classified import RowFilters
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import Selection, StreamScan
from watersmeet.program.storage.segments import TS, class_column, column
from watersmeet.query.model import Expression
from watersmeet.query.restate import restated
from watersmeet.stats.model import Number, Origin, Stats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.stats.yaml import filled

SAMPLE_ROWS = 2_000


def observe(scan: StreamScan, table: pa.Table, *, sizes: bool = True) -> StreamSketch:
    """What new rows of a stream, laid out as they are ingested, say about it; `sizes` also what they take on links."""
    sketch = StreamSketch()
    sketch.count(column(table, TS))
    filters = RowFilters(scan, table)
    for number, selection in enumerate(scan.selections):
        if selection.filters:
            sketch.passed(selection.condition, filters.passed(number), len(table))
    sample = _sample(table)
    sketch.sketched = sample.num_rows
    keys = _key_columns(scan)
    for number, name in keys.items():
        values = pc.drop_null(sample.column(class_column(number)))
        sketch.add_numbers(name, values.to_numpy(), scan.keys[number].exact)
    if not sizes:
        return sketch
    travelling = _travelling(scan, keys, _wanted(scan, table.slice(0, SAMPLE_ROWS)))
    if travelling.num_rows:
        sketch.measure(travelling, slices=1)
    return sketch


def _sample(table: pa.Table) -> pa.Table:
    if table.num_rows <= SAMPLE_ROWS:
        return table
    return table.take(pa.array(np.linspace(0, table.num_rows - 1, SAMPLE_ROWS).astype(np.int64)))


def _key_columns(scan: StreamScan) -> dict[int, str]:
    """The key columns that are a column of the stream, each column once: by its values rather than by their hash."""
    found: dict[str, int] = {}
    for number, key in sorted(enumerate(scan.keys), key=lambda key: not key[1].exact):
        name = _column_of(key.expression)
        if name is not None:
            found.setdefault(name, number)
    return {number: name for name, number in found.items()}


def _wanted(scan: StreamScan, table: pa.Table) -> pa.Table:
    """The rows that some query takes: those that pass its filters and have its keys."""
    filters = RowFilters(scan, table)
    whole = None
    for number, selection in enumerate(scan.selections):
        holds = filters.holds(number)
        mask = None if holds is None else pa.array(holds)
        for key in selection.keys:
            valid = pc.is_valid(table.column(class_column(key)))
            mask = valid if mask is None else pc.and_(mask, valid)
        if mask is None:
            return table
        whole = mask if whole is None else pc.or_(whole, mask)
    return table if whole is None else table.filter(whole)


def _column_of(key: Expression) -> str | None:
    """The column that a key is, as it is or only cast."""
    if key.is_plain or (len(key.columns) == 1 and key.sql == f"CAST({key.columns[0].sql} AS {key.type})"):
        return key.columns[0].name
    return None


def _travelling(scan: StreamScan, keys: Mapping[int, str], table: pa.Table) -> pa.Table:
    """What goes over links of some rows: values that are kept, and keys that are not among them."""
    columns = {
        kept.expression.columns[0].name: table.column(kept.name) for kept in scan.read if kept.expression.is_plain
    }
    for number, name in keys.items():
        if scan.keys[number].exact:
            columns.setdefault(name, pc.fill_null(table.column(class_column(number)), 0))
    return pa.table(columns)


def filter_shares(scan: Scan, shares: Mapping[str, Number]) -> dict[str, Number]:
    """The share of rows that pass each filter of an alias, from the shares that pass the conditions of its stream."""
    filters = tuple(
        sorted(
            {restated(predicate, scan.alias, scan.stream) for predicate in scan.filters},
            key=lambda expression: expression.sql,
        )
    )
    share = shares.get(Selection(filters, (), None).condition) if filters else None
    if share is None:
        return {}
    # Only whether all filters hold is known: each is taken to let the same share through.
    each = replace(share, value=share.value ** (1 / len(scan.filters)))
    return {expression.sql: each for expression in scan.filters}


class StreamObserver:
    """All that a site has seen of its own streams."""

    def __init__(self, program: SiteProgram, sketches: Mapping[str, StreamSketch] | None = None) -> None:
        self._program = program
        self._sketches = dict(sketches or {})

    def follow(self, program: SiteProgram) -> None:
        """Observe for another program of the site."""
        self._program = program

    @property
    def has_seen(self) -> bool:
        return bool(self._sketches)

    def take(self, stream: str, data: dict[str, Any]) -> None:
        """Add a sketch of new rows of a stream."""
        self._sketches.setdefault(stream, StreamSketch()).merge(StreamSketch.from_data(data))

    def stats(self, taken_at: float | None) -> Stats:
        """The statistics so far."""
        whole = Stats()
        for scan in self._program.streams:
            sketch = self._sketches.get(scan.stream)
            if sketch is not None and sketch.rows:
                selectivities = self._selectivities(scan, sketch, taken_at)
                whole = filled(whole, Stats({scan.stream: sketch.stats(Origin.OBSERVED, taken_at)}, selectivities))
        return whole

    def _selectivities(self, scan: StreamScan, sketch: StreamSketch, taken_at: float | None) -> dict[str, Number]:
        """The share of rows that pass each filter, as the queries write it."""
        shares = sketch.selectivities(Origin.OBSERVED, taken_at)
        found: dict[str, Number] = {}
        for part in self._program.parts:
            for alias, view in part.views.items():
                if view.stream == scan.stream:
                    found |= filter_shares(part.join.scan(alias), shares)
        return found

    def to_json(self) -> str:
        """The state, to go on with after a restart."""
        return json.dumps({stream: sketch.to_data() for stream, sketch in self._sketches.items()})

    @staticmethod
    def from_json(program: SiteProgram, text: str) -> "StreamObserver":
        """The observer that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        return StreamObserver(program, {stream: StreamSketch.from_data(value) for stream, value in data.items()})
