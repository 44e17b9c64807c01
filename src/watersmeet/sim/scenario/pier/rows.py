"""Rows of streams as tuples of PIER, and its answers as tables."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from watersmeet.program.pier import values
from watersmeet.program.pier.sql.plan import ID, NODE
from watersmeet.program.pier.sql.settings import StreamTypes
from watersmeet.program.pier.tuples import Batch, Schema
from watersmeet.sim.rjoin.answers import ROW

_ARROW = {
    values.INTEGER: pa.int64(),
    values.DOUBLE: pa.float64(),
    values.STRING: pa.string(),
    values.BOOLEAN: pa.bool_(),
    values.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    values.DATE: pa.date32(),
    values.BINARY: pa.binary(),
    values.NULL: pa.null(),
}


def ufl_type(kind: pa.DataType) -> str:
    """The type of UFL for a type of Arrow."""
    if pa.types.is_integer(kind):
        return values.INTEGER
    if pa.types.is_floating(kind):
        return values.DOUBLE
    if pa.types.is_decimal(kind):
        return values.DECIMAL
    if pa.types.is_timestamp(kind):
        return values.TIMESTAMP
    if pa.types.is_date(kind):
        return values.DATE
    if pa.types.is_boolean(kind):
        return values.BOOLEAN
    return values.BINARY if pa.types.is_binary(kind) else values.STRING


def stream_types(schemas: Mapping[str, pa.Schema], event_times: Mapping[str, str]) -> dict[str, StreamTypes]:
    """What the compiler of SQL has to know of streams."""
    return {
        name: StreamTypes({field.name: ufl_type(field.type) for field in schema}, event_times[name])
        for name, schema in schemas.items()
    }


def batch_of(stream: str, rows: pa.Table, node: int) -> Batch:
    """Rows that a node publishes: their columns, their number as id, and the node."""
    columns: dict[str, str] = {}
    parts: list[Sequence[object]] = []
    for name in rows.column_names:
        if name == ROW:
            continue
        column = rows.column(name)
        columns[name] = kind = ufl_type(column.type)
        if kind == values.TIMESTAMP:
            column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        elif kind == values.DATE:
            column = column.cast(pa.date32()).cast(pa.int32())
        parts.append(column.to_pylist())
    columns |= {ID: values.INTEGER, NODE: values.INTEGER}
    parts += [rows.column(ROW).to_pylist(), [node] * rows.num_rows]
    return Batch(Schema.of(stream, columns), list(zip(*parts, strict=True)))


def answers_table(names: Sequence[str], like: pa.Schema | None, batches: Sequence[Batch]) -> pa.Table:
    """Answers as a table with these columns, of the types of `like` where it is given.

    Where answers of op-graphs have different types in a column, it has what all can be brought to, else text; so have
    objects, unless their type is given.
    """
    columns = {}
    for name in names:
        placed = [(batch, batch.schema.place(name)) for batch in batches]
        kind = values.common_type({batch.schema.types[place] for batch, place in placed if place is not None})
        if kind == values.OBJECT and like is None:
            kind = None
        column: list[Any] = []
        for batch, place in placed:
            if place is None:
                column += [None] * len(batch.rows)
            else:
                column += _brought_to(kind, batch.schema.types[place], [row[place] for row in batch.rows])
        array = pa.array(column, _arrow_type(kind or values.STRING, None if like is None else like.field(name).type))
        if like is not None and array.type != like.field(name).type:
            array = array.cast(like.field(name).type)
        columns[name] = array
    return pa.table(columns)


def _arrow_type(kind: str, wanted: pa.DataType | None) -> pa.DataType | None:
    element = values.element_of(kind)
    if element is not None:
        return pa.list_(_ARROW.get(element))
    return wanted if kind == values.OBJECT else _ARROW.get(kind)


def _brought_to(kind: str | None, own: str, column: Sequence[Any]) -> Sequence[Any]:
    """Values of a type as those of another; without one that all answers have in common, as text."""
    write: Callable[[Any], Any]
    if kind is None:
        write = values.TYPES[own].write if own in values.TYPES else str
    elif kind == values.DOUBLE:
        write = float
    elif kind == values.DECIMAL:
        write = Decimal
    else:
        return column
    return [None if value is None else write(value) for value in column]
