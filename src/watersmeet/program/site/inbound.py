"""What other sites send is checked against the program before anything is made of it: columns, types and NULLs."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from watersmeet.program.aggregate.checks import check_states
from watersmeet.program.finish.combine import ROW, output_columns
from watersmeet.program.finish.groups import check_records, layout_of
from watersmeet.program.operators import Form, Join, Pair
from watersmeet.program.site.filing import derived_classes, stored_of, stream_of
from watersmeet.program.site.part import JoinPart, counting_of, ordinal_name
from watersmeet.program.site.program import Shipment, SiteProgram
from watersmeet.program.site.travelling import check_shared
from watersmeet.program.storage import bloom
from watersmeet.program.storage.segments import (
    CLASS,
    HIGH,
    KEY,
    LOW,
    ORDINAL,
    SELECTED,
    TS,
    class_column,
    column,
)
from watersmeet.query.model import Expression, Grouping, key_of_group
from watersmeet.query.windows import END_US, TABLE_US, Changes, counted

_TIMES = {Form.POINT: (TS,), Form.ROW: (TS,), Form.INTERMEDIATE: (LOW, HIGH)}
_OWN = re.compile(rf"({TS}|{ORDINAL}\d*|{KEY}|{LOW}|{HIGH}|{CLASS}\d+|{SELECTED}\d+)")  # int64 without NULLs, on links
_MIN_FILTER_BYTES = 8

TypeOf: TypeAlias = Callable[[str, str], str]  # the Spark type of a column of a stream, empty where nobody knows

# What a value of a Spark type may be; others may be anything.
_KINDS: Mapping[str, Callable[[pa.DataType], bool]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), kinds.is_integer),
    **dict.fromkeys(("float", "double"), kinds.is_floating),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), kinds.is_timestamp),
    "string": lambda kind: bool(kinds.is_string(kind) or kinds.is_large_string(kind)),
    "binary": lambda kind: bool(kinds.is_binary(kind) or kinds.is_large_binary(kind)),
    "boolean": kinds.is_boolean,
    "date": kinds.is_date,
    "decimal": kinds.is_decimal,
    **dict.fromkeys(("array", "map", "struct"), kinds.is_nested),
}


def no_types(stream: str, name: str) -> str:
    """Nobody knows what columns hold."""
    return ""


def check_columns(program: SiteProgram, shipment: Shipment, schema: pa.Schema, type_of: TypeOf = no_types) -> None:
    """Whether the rows of a shipment can have such columns; ValueError if not."""
    if shipment.form is Form.RECORD:
        _check_records(program, shipment, schema, type_of)
        return
    flow, names = shipment.arrives_as, schema.names
    needed, allowed = _columns(program, shipment, schema)
    if len(set(names)) < len(names):
        raise ValueError(f"{flow} has a column twice")
    if missing := sorted(needed - set(names)):
        raise ValueError(f"{flow} has no column {missing[0]!r}")
    if more := sorted(set(names) - needed - allowed):
        raise ValueError(f"{flow} has a column {more[0]!r} that nobody asked for")
    types = known_types(program, shipment, type_of)
    for field in schema:
        if _OWN.fullmatch(field.name):
            fits = field.type == pa.int64()
        elif field.name == bloom.BITS:
            fits = kinds.is_binary(field.type)
        else:
            fits = _is_of(types.get(field.name, ""), field.type)
        if not fits:
            raise ValueError(f"column {field.name!r} of {flow} is {field.type}")


def _is_of(spark_type: str, kind: pa.DataType) -> bool:
    word = re.match(r"\w*", spark_type)
    return _KINDS.get(word.group() if word else "", lambda kind: True)(kind)


def _check_records(program: SiteProgram, shipment: Shipment, schema: pa.Schema, type_of: TypeOf) -> None:
    """Whether partial records can have such columns; ValueError if not."""
    if (shape := shipment.shape) is None:
        check_records(_grouping_of(program, shipment), schema)
        return
    check_shared(shape, schema)
    keys, items = (
        [type_of(shape.stream, name[len(shape.stream) + 1 :]) for name in names]
        for names in (shape.keys, shape.columns)
    )
    types = {key_of_group(number).name: kind for number, kind in enumerate(keys)}
    for number, aggregate in enumerate(shape.aggregates):
        if aggregate.item is not None and aggregate.function in ("min", "max"):
            types[f"s{number}.value"] = items[aggregate.item]
    for name, spark_type in types.items():
        if name in schema.names and not _is_of(spark_type, schema.field(name).type):
            raise ValueError(f"column {name!r} of partial records is {schema.field(name).type}")


def _grouping_of(program: SiteProgram, shipment: Shipment) -> Grouping:
    """How partial records that a shipment brings are grouped."""
    if shipment.shape is not None:
        return shipment.shape.grouping
    part = program.part(shipment.join)
    for sender, one in program.inbound:
        for finish in part.finishes:
            if one == shipment and finish.grouping and part.records(finish.query, sender) == shipment.arrives_as:
                return finish.grouping
    raise ValueError(f"{shipment.arrives_as} is of no query here")


def _columns(program: SiteProgram, shipment: Shipment, schema: pa.Schema) -> tuple[set[str], set[str]]:
    """The columns that rows of a shipment must have, and others that they may have."""
    if shipment.bloom:
        return {LOW, HIGH, bloom.BITS}, set()
    if shipment.form in (Form.SPAN, Form.ASK):
        return {KEY, LOW, HIGH}, set()
    if shipment.form is Form.CLOCK:
        return {TS}, {ORDINAL} if shipment.arrives_as != shipment.flow else set()
    part = program.part(shipment.join) if shipment.join else None
    derived = {class_column(number) for number, _ in derived_classes(program, shipment, part, schema.names)}
    if shipment.columns is not None:
        needed = {TS, *shipment.columns, *map(class_column, shipment.keys)} - derived
        if stream_of(program, shipment.arrives_as) != shipment.arrives_as:
            needed.add(ORDINAL)
        if len(shipment.selections) > 1:
            needed |= {f"{SELECTED}{number}" for number in range(-(-len(shipment.selections) // 64))}
        return needed, set()
    if part is None or shipment.form not in (*_TIMES, Form.RESULT):
        raise ValueError(f"{shipment.arrives_as} has no rows")
    if shipment.form is Form.RESULT:
        return set(output_columns(part.join)), set()
    every = {name for scan in part.join.scans for name in scan.columns}
    classes = {class_column(key_class.number) for key_class in part.join.classes}
    read = _read(part, shipment.arrives_as)
    for copy in shipment.copies:
        wanted = _read(part, copy.flow)
        read |= {there for name, there in (*copy.columns, (ORDINAL, ORDINAL)) if name in wanted}
    if any(copy.bit is not None for copy in shipment.copies):
        read |= {f"{SELECTED}{number}" for number in range(-(-len(shipment.copies) // 64))}
    return (read | set(_TIMES[shipment.form])) - derived, {*every, *classes, ORDINAL}


def _read(part: JoinPart, name: str) -> set[str]:
    """The columns of a join's flow that operators of this site read."""
    found: set[str] = set()
    counting = {scan.alias for scan in part.join.scans if counted(scan.window) is not None}
    for operator in part.program.operators:
        for flow in operator.inputs:
            if part.flow(flow) != name:
                continue
            if flow.form is Form.ROW and flow.alias in counting:
                found.add(ORDINAL)
            bound: tuple[str, ...] = ()
            found |= set(map(class_column, operator.key))
            if isinstance(operator, Join):
                bound = operator.bound if flow == operator.left else (operator.alias,)
            elif isinstance(operator, Pair):
                bound = operator.left_bound if flow == operator.left else operator.right_bound
                names = [alias for alias in counting_of(part, operator) if alias in bound]
                found |= {ordinal_name(part, flow, alias) for alias in names}
            found |= set(part.join.kept_of(bound))
    return found


def known_types(program: SiteProgram, shipment: Shipment, type_of: TypeOf) -> dict[str, str]:
    """The Spark types of values, as far as they are known."""
    if shipment.columns is not None:
        scan = stored_of(program, shipment).scan
        kept = [(scan.stream, kept) for kept in scan.kept]
    else:
        scans = program.part(shipment.join).join.scans if shipment.join else ()
        kept = [(scan.stream, kept) for scan in scans for kept in scan.kept]
    return {one.name: _type_of(one.expression, stream, type_of) for stream, one in kept}


def _type_of(expression: Expression, stream: str, type_of: TypeOf) -> str:
    known = type_of(stream, expression.columns[0].name) if expression.is_plain else ""
    return known or expression.type


def check_rows(program: SiteProgram, shipment: Shipment, rows: pa.Table) -> None:
    """Whether rows that have come are as the rows of a shipment always are; ValueError if not."""
    flow = shipment.arrives_as
    for name in rows.column_names:
        own = name.rpartition(".")[2] if shipment.form is not Form.RECORD else name
        if own.startswith("#") and name != ROW and rows.column(name).null_count:
            raise ValueError(f"column {name!r} of {flow} has NULLs")
        if own == TS and rows.num_rows:
            instants = column(rows, name)
            if instants.min() < TABLE_US or instants.max() > END_US:
                raise ValueError(f"{flow} has an instant that no event can have")
    if shipment.form is Form.CLOCK and (np.diff(column(rows, TS)) < 0).any():
        raise ValueError(f"{flow} goes back")
    if ORDINAL in rows.column_names and (column(rows, ORDINAL) < 0).any():
        raise ValueError(f"{flow} has a negative ordinal")
    if LOW in rows.column_names:
        low, high = column(rows, LOW), column(rows, HIGH)
        if shipment.form in (Form.SPAN, Form.ASK) and not shipment.bloom:  # they travel as lengths
            high = low + high
        if (high < low).any():
            raise ValueError(f"an interval of {flow} ends before it begins")
    if shipment.bloom and any(len(bits) < _MIN_FILTER_BYTES for bits in rows.column(bloom.BITS).to_pylist()):
        raise ValueError(f"a filter of {flow} is too short")
    if shipment.form is Form.RECORD:
        _check_record_values(program, shipment, rows)


def _check_record_values(program: SiteProgram, shipment: Shipment, rows: pa.Table) -> None:
    grouping = _grouping_of(program, shipment)
    layout = layout_of(grouping, rows.schema) if shipment.shape is None else shipment.shape.layout(rows.schema)
    check_states(layout, rows, retracts=isinstance(grouping.window, Changes))
