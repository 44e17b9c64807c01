"""Rows of streams as tuples of PIER, and its answers as tables."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from watersmeet.program.pier import values
from watersmeet.program.pier.sql.plan import ID, NODE, StreamTypes
from watersmeet.program.pier.tuples import Batch, Row, Schema
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
    """Answers as a table with these columns, of the types of `like` where it is given."""
    rows: list[Row] = []
    kinds: dict[str, str] = {}
    for batch in batches:
        places = [batch.schema.place(name) for name in names]
        kinds |= {name: kind for name, kind in batch.schema.columns.items() if name in names}
        rows += [tuple(None if place is None else row[place] for place in places) for row in batch.rows]
    columns = {}
    for place, name in enumerate(names):
        kind = _ARROW.get(kinds.get(name, values.NULL))
        array = pa.array([row[place] for row in rows], kind)
        if like is not None and array.type != like.field(name).type:
            array = array.cast(like.field(name).type)
        columns[name] = array
    return pa.table(columns)
