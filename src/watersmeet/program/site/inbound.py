"""What other sites send is checked against the program before anything is made of it: columns, types and NULLs."""

import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from watersmeet.program.finish.combine import ROW, output_columns
from watersmeet.program.finish.groups import check_records
from watersmeet.program.operators import Form, Join, Pair
from watersmeet.program.site.filing import derived_classes, stored_of, stream_of
from watersmeet.program.site.program import JoinPart, Shipment, SiteProgram, counting_of, ordinal_name
from watersmeet.program.site.travelling import check_shared
from watersmeet.program.storage import bloom
from watersmeet.program.storage.segments import CLASS, HIGH, KEY, LOW, ORDINAL, SELECTED, TS, class_column, column

_TIMES = {Form.POINT: (TS,), Form.ROW: (TS,), Form.INTERMEDIATE: (LOW, HIGH)}
_OWN = re.compile(rf"({TS}|{ORDINAL}\d*|{KEY}|{LOW}|{HIGH}|{CLASS}\d+|{SELECTED}\d+)")  # int64 without NULLs, on links
_MIN_FILTER_BYTES = 8

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


def check_columns(program: SiteProgram, shipment: Shipment, schema: pa.Schema) -> None:
    """Whether the rows of a shipment can have such columns; ValueError if not."""
    if shipment.form is Form.RECORD:
        _check_records(program, shipment, schema)
        return
    flow, names = shipment.arrives_as, schema.names
    needed, allowed = _columns(program, shipment, schema)
    if len(set(names)) < len(names):
        raise ValueError(f"{flow} has a column twice")
    if missing := sorted(needed - set(names)):
        raise ValueError(f"{flow} has no column {missing[0]!r}")
    if more := sorted(set(names) - needed - allowed):
        raise ValueError(f"{flow} has a column {more[0]!r} that nobody asked for")
    types = _types(program, shipment)
    for field in schema:
        if _OWN.fullmatch(field.name):
            fits = field.type == pa.int64()
        elif field.name == bloom.BITS:
            fits = kinds.is_binary(field.type)
        else:
            word = re.match(r"\w*", types.get(field.name, ""))
            fits = _KINDS.get(word.group() if word else "", lambda kind: True)(field.type)
        if not fits:
            raise ValueError(f"column {field.name!r} of {flow} is {field.type}")


def _check_records(program: SiteProgram, shipment: Shipment, schema: pa.Schema) -> None:
    """Whether partial records can have such columns; ValueError if not."""
    if shipment.shape is not None:
        check_shared(shipment.shape, schema)
        return
    part = program.part(shipment.join)
    for sender, one in program.inbound:
        for finish in part.finishes:
            if one == shipment and finish.grouping and part.records(finish.query, sender) == shipment.arrives_as:
                check_records(finish.grouping, schema)
                return
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
    classes = {class_column(one.number) for one in part.join.classes}
    read = _read(part, shipment.arrives_as)
    for copy in shipment.copies:
        wanted = _read(part, copy.flow)
        read |= {there for name, there in copy.columns if name in wanted}
    if any(copy.bit is not None for copy in shipment.copies):
        read |= {f"{SELECTED}{number}" for number in range(-(-len(shipment.copies) // 64))}
    return (read | set(_TIMES[shipment.form])) - derived, {*every, *classes, ORDINAL}


def _read(part: JoinPart, name: str) -> set[str]:
    """The columns of a join's flow that operators of this site read."""
    found: set[str] = set()
    for operator in part.program.operators:
        for flow in operator.inputs:
            if part.flow(flow) != name:
                continue
            bound: tuple[str, ...] = ()
            found |= set(map(class_column, operator.key))
            if isinstance(operator, Join):
                bound = operator.bound if flow == operator.left else (operator.alias,)
            elif isinstance(operator, Pair):
                bound = operator.left_bound if flow == operator.left else operator.right_bound
                counting = [alias for alias in counting_of(part, operator) if alias in bound]
                found |= {ordinal_name(part, flow, alias) for alias in counting}
            found |= set(part.join.kept_of(bound))
    return found


def _types(program: SiteProgram, shipment: Shipment) -> dict[str, str]:
    """The Spark types of values, as far as they are known."""
    if shipment.columns is not None:
        kept = stored_of(program, shipment).scan.kept
    else:
        kept = (
            tuple(one for scan in program.part(shipment.join).join.scans for one in scan.kept) if shipment.join else ()
        )
    return {one.name: one.expression.type for one in kept}


def check_rows(shipment: Shipment, rows: pa.Table) -> None:
    """Whether rows that have come are as the rows of a shipment always are; ValueError if not."""
    for name in rows.column_names:
        if name.startswith("#") and name != ROW and rows.column(name).null_count:
            raise ValueError(f"column {name!r} of {shipment.arrives_as} has NULLs")
    if shipment.form is Form.CLOCK and (np.diff(column(rows, TS)) < 0).any():
        raise ValueError(f"{shipment.arrives_as} goes back")
    if shipment.bloom and any(len(bits) < _MIN_FILTER_BYTES for bits in rows.column(bloom.BITS).to_pylist()):
        raise ValueError(f"a filter of {shipment.arrives_as} is too short")
