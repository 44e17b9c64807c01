"""What a running query sees of its own streams: of every batch all rows are counted, and a sample of them sketched.

The figures are about the whole run so far. A batch of more than 2,000 rows is taken by 2,000 of them at even distances,
so that large batches count for less in how values spread than they have rows; rates and shares count every row.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.plan.nodes import JoinPlan, KeyClass, Scan
from watersmeet.program.storage.segments import KEEP, TS, class_column, column, drop_unjoinable
from watersmeet.query.model import Expression
from watersmeet.stats.model import Number, Origin, Stats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.stats.yaml import filled

SAMPLE_ROWS = 2_000
_AND = " AND "


def observe(join: JoinPlan, alias: str, table: pa.Table) -> StreamSketch:
    """What new rows of an alias, laid out as they are ingested, tell of its stream."""
    scan = join.scan(alias)
    sketch = StreamSketch()
    sketch.count(column(table, TS))
    if KEEP in table.column_names:
        sketch.passed(_AND.join(one.sql for one in scan.filters), pc.sum(table.column(KEEP)).as_py() or 0, len(table))
    sample = _sample(table)
    sketch.sketched = sample.num_rows
    keys = _key_columns(scan, join.classes)
    for number, name in keys.items():
        values = pc.drop_null(sample.column(class_column(number)))
        sketch.add_numbers(name, values.to_numpy(), join.classes[number].exact)
    travelling = _travelling(scan, keys, join.classes, drop_unjoinable(table.slice(0, SAMPLE_ROWS), scan.classes))
    if travelling.num_rows:
        sketch.measure(travelling, slices=1)
    return sketch


def _sample(table: pa.Table) -> pa.Table:
    if table.num_rows <= SAMPLE_ROWS:
        return table
    return table.take(pa.array(np.linspace(0, table.num_rows - 1, SAMPLE_ROWS).astype(np.int64)))


def _key_columns(scan: Scan, classes: Sequence[KeyClass]) -> dict[int, str]:
    """The key classes in which the alias has a column itself, or one only cast; and the column."""
    found: dict[int, str] = {}
    for number in scan.classes:
        member = classes[number].member(scan.alias)
        assert member is not None, "a scan lists the classes it has a member of"
        if _is_column(member):
            found[number] = member.columns[0].name
    return found


def _is_column(member: Expression) -> bool:
    return member.is_plain or (
        len(member.columns) == 1 and member.sql == f"CAST({member.columns[0].sql} AS {member.type})"
    )


def _travelling(scan: Scan, keys: Mapping[int, str], classes: Sequence[KeyClass], table: pa.Table) -> pa.Table:
    """What goes over links of some rows: columns that are kept, and keys that are not among them."""
    columns = {
        kept.expression.columns[0].name: table.column(kept.name)
        for kept in scan.kept
        if kept.expression.is_plain and kept.name in table.column_names
    }
    for number, name in keys.items():
        if classes[number].exact:
            columns.setdefault(name, table.column(class_column(number)))
    return pa.table(columns)


class Observer:
    """All that a site has seen of its own streams, by alias."""

    def __init__(self, join: JoinPlan, sketches: Mapping[str, StreamSketch] | None = None) -> None:
        self._join = join
        self._sketches = dict(sketches or {})

    def take(self, alias: str, sketch: StreamSketch) -> None:
        """Add what new rows of an alias have told."""
        self._sketches.setdefault(alias, StreamSketch()).merge(sketch)

    def stats(self, taken_at: float | None) -> Stats:
        """The figures; of several aliases of one stream, the first that has one tells it."""
        whole = Stats()
        for scan in self._join.scans:
            sketch = self._sketches.get(scan.alias)
            if sketch is None or not sketch.rows:
                continue
            selectivities: dict[str, Number] = {}
            for share in sketch.selectivities(Origin.OBSERVED, taken_at).values():
                # Only whether all filters hold is known: each is taken to let the same share through.
                each = share.value ** (1 / len(scan.filters))
                for one in scan.filters:
                    selectivities[one.sql] = Number(each, share.origin, share.confidence, taken_at)
            whole = filled(whole, Stats({scan.stream: sketch.stats(Origin.OBSERVED, taken_at)}, selectivities))
        return whole

    def to_json(self) -> str:
        """The state, to go on with after a restart."""
        return json.dumps({alias: sketch.to_data() for alias, sketch in self._sketches.items()})

    @staticmethod
    def from_json(join: JoinPlan, text: str) -> "Observer":
        """The observer that `to_json` told of."""
        data: dict[str, Any] = json.loads(text)
        return Observer(join, {alias: StreamSketch.from_data(one) for alias, one in data.items()})
