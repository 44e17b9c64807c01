"""How the rows of a flow are filed at a site: sorted for those who look them up here, packed for those elsewhere."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.plan.nodes import Key
from watersmeet.plan.partition import sub_plans_of
from watersmeet.program.finish.combine import output_columns
from watersmeet.program.join.probe import LATEST, LIMIT
from watersmeet.program.operators import Copy, Form
from watersmeet.program.site.part import JoinPart, Route
from watersmeet.program.site.program import Index, Shipment, SiteProgram, Stored
from watersmeet.program.site.spans import Span
from watersmeet.program.storage import bloom
from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.segments import (
    CLASS,
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
    is_in_order,
    key_order,
    mixed,
    place_of,
    selected_column,
    sort_key,
    unmixed,
)
from watersmeet.program.storage.shelf import Segment, Shelf
from watersmeet.program.storage.sizes import united
from watersmeet.program.storage.wire import pack_schema

_WHOLE_NUMBERS = ("bigint", "int", "smallint", "tinyint")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows packed to travel."""

    path: str
    bytes: int
    rows: int
    schema: str  # hexadecimal, so that it can be written to JSON


@dataclass(frozen=True)
class Made:
    """What one task filed of one flow."""

    flow: str
    rows: int = 0
    segments: Mapping[str, Segment] = field(default_factory=dict)  # by relation
    payloads: Mapping[str, PackedRows] = field(default_factory=dict)  # by site and the flow they arrive as
    results: str | None = None  # finished combinations, where a query is answered from them
    ticks: Segment | None = None  # of a row clock
    is_history: bool = False  # rows that had come before a new version of a join needed them


def file_flow(
    program: SiteProgram,
    shelf: Shelf,
    flow: str,
    table: pa.Table,
    *,
    part: JoinPart | None = None,
    travels: bool = True,
    key: Key | None = None,
    is_bloom: bool = False,
) -> Made:
    """File rows of a flow by every key they are looked up by here, and pack them for every site they go to.

    `part` is the join whose flow it is, none for the rows of a stream; `key` that of rows which are keys alone.
    """
    if not table.num_rows:
        return Made(flow)
    segments = {
        index.relation: shelve(shelf, _stem(flow), rows if is_bloom else sorted_rows(rows, index))
        for index in program.indexes.get(flow, ())
        if (rows := rows_of_index(program, flow, table, index, key)).num_rows
    }
    payloads = pack_for_others(program, shelf, flow, table, part, key) if travels else {}
    return Made(flow, table.num_rows, segments, payloads)


def rows_of_index(program: SiteProgram, flow: str, table: pa.Table, index: Index, key: Key | None = None) -> pa.Table:
    """The rows that belong to an index."""
    mask = both(routed(table, index.route, key), during(table, index.span))
    if index.selections is not None:
        stream = stream_of(program, flow)
        mask = both(mask, fulfils(table, program.stored[stream], index.selections))
    return where(table, mask)


def during(table: pa.Table, span: Span) -> Mask | None:
    """Which rows are in a span of event time; None is all of them."""
    if span.is_all:
        return None
    ts = column(table, TS)
    mask = np.ones(len(ts), bool)
    if span.from_us is not None:
        mask &= ts >= span.from_us
    if span.until_us is not None:
        mask &= ts < span.until_us
    return mask


def stored_of(program: SiteProgram, shipment: Shipment) -> Stored:
    """The form in which the rows of a stream are stored that a shipment brings or takes away."""
    name = stream_of(program, shipment.rows_of)
    return program.stored[name if name in program.stored else stream_of(program, shipment.flow)]


def stream_of(program: SiteProgram, flow: str) -> str:
    """The stream whose rows a flow is."""
    return flow if flow in program.stored else flow.removesuffix(" in order")


def routed(table: pa.Table, route: Route | None, key: Key | None = None) -> Mask | None:
    """Which rows a route is for; None is all of them."""
    if route is None:
        return None
    name = class_column(route.column)
    if name in table.column_names:
        values = column(table, name).view(np.int64)
    elif key == (route.column,) and KEY in table.column_names:
        values = unmixed(column(table, KEY)).view(np.int64)
    else:
        return None
    wanted = np.zeros(1 + max(route.sub_plans), bool)
    wanted[list(route.sub_plans)] = True
    numbers = sub_plans_of(route.partition, values)
    mask: Mask = (numbers < len(wanted)) & wanted[np.minimum(numbers, len(wanted) - 1)]
    return mask


def fulfils(table: pa.Table, stored: Stored, selections: tuple[int, ...]) -> Mask | None:
    """Which stored rows of a stream fulfil any of some selections; None is all of them."""
    if set(stored.selections) <= set(selections):
        return None
    mask = np.zeros(table.num_rows, bool)
    for selection in selections:
        bit = stored.bit(selection)
        assert bit is not None, "several selections have bits"
        name, value = selected_column(bit)
        if name in table.column_names:
            mask |= (column(table, name).view(np.uint64) & value) != 0
        elif selection == 0 and f"{SELECTED}0" not in table.column_names:
            mask[:] = True  # stored while it was the only one
    return mask


def both(one: Mask | None, other: Mask | None) -> Mask | None:
    """The rows that are in two masks."""
    if one is None or other is None:
        return one if other is None else other
    return one & other


def where(table: pa.Table, mask: Mask | None) -> pa.Table:
    """The rows of a mask."""
    return table if mask is None or mask.all() else table.filter(pa.array(mask))


def sorted_rows(table: pa.Table, index: Index) -> pa.Table:
    """The rows of an index in its order, without class columns that nobody reads."""
    if KEY not in table.column_names:
        keys = sort_key([column(table, class_column(number)) for number in index.columns], table.num_rows)
        table = table.append_column(KEY, pa.array(keys))
    if index.classes is not None:
        read = {class_column(number) for number in index.classes}
        table = table.drop_columns([n for n in table.column_names if n.startswith(CLASS) and n not in read])
    return sort_rows(table, index.columns)


def sort_rows(table: pa.Table, columns: Key) -> pa.Table:
    """Rows sorted by (key, time), with the key computed from class columns where they do not bring it."""
    if KEY not in table.column_names:
        keys = sort_key([column(table, class_column(number)) for number in columns], table.num_rows)
        table = table.append_column(KEY, pa.array(keys))
    keys, times = column(table, KEY), _times(table)
    if is_in_order(keys, times):  # as rows without keys are that come in order of time
        return table.combine_chunks()
    return table.combine_chunks().take(pa.array(key_order(keys, times)))


def _times(table: pa.Table) -> I64:
    """What orders the rows of one key."""
    for name in (LOW, LATEST):
        if name in table.column_names:
            return column(table, name)
    return place_of(table)


def shelve(shelf: Shelf, stem: str, table: pa.Table) -> Segment:
    """Put a table on the shelf as a segment, with the range of its times and ordinals."""
    part = shelf.put(stem, table)
    names = ((LOW, HIGH), (LATEST, LIMIT), (TS, TS))
    low, high = next(pair for pair in names if pair[0] in table.column_names)
    ordinals = column(table, ORDINAL) if ORDINAL in table.column_names else None
    return Segment(
        (part,),
        int(column(table, low).min()),
        int(column(table, high).max()),
        -1 if ordinals is None else int(ordinals.min()),
        -1 if ordinals is None else int(ordinals.max()),
    )


def pack_for_others(
    program: SiteProgram,
    shelf: Shelf,
    flow: str,
    table: pa.Table,
    part: JoinPart | None = None,
    key: Key | None = None,
    only: Sequence[Shipment] | None = None,
) -> dict[str, PackedRows]:
    """Rows of a flow packed for each site they go to, or for some shipments; what is the same is packed once."""
    packed: dict[tuple[object, ...], PackedRows] = {}
    payloads = {}
    every = (shipment for shipment in program.shipments_of.get(flow, ()) if not shipment.is_past)
    for shipment in every if only is None else only:
        form = (
            shipment.arrives_as,
            shipment.route,
            shipment.columns,
            shipment.keys,
            shipment.selections,
            shipment.span,
        )
        if form not in packed:
            rows = shipped_rows(program, table, shipment, part, key)
            if rows.num_rows:
                data = pack_rows(rows)
                schema = pack_schema(rows.schema).hex()
                packed[form] = PackedRows(shelf.put_bytes(_stem(flow), data), len(data), rows.num_rows, schema)
        if form in packed:
            payloads[payload_name(shipment)] = packed[form]
    return payloads


def payload_name(shipment: Shipment) -> str:
    """The name of what is packed for a shipment."""
    return f"{shipment.to} {shipment.arrives_as}"


def shipped_rows(
    program: SiteProgram, table: pa.Table, shipment: Shipment, part: JoinPart | None, key: Key | None = None
) -> pa.Table:
    """Rows as they travel: those that the shipment is for, without what the other side can compute."""
    table = where(table, routed(table, shipment.route, key))
    if shipment.bloom:
        return _filter_row(table) if table.num_rows else table
    if shipment.columns is not None:
        table = where(table, during(table, shipment.span))
        table = _stream_rows(program.stored[stream_of(program, shipment.flow)], table, shipment)
    if shipment.form is Form.CLOCK and shipment.arrives_as == shipment.flow:
        table = table.select([TS])  # counted from the first row on, at both ends
    if not table.num_rows:
        return table
    if shipment.form in (Form.SPAN, Form.ASK):
        keys = unmixed(column(table, KEY)).view(np.int64)
        lengths = column(table, HIGH) - column(table, LOW)
        return _replaced(table, keys, lengths).take(pa.array(np.argsort(keys, kind="stable")))
    if TS in table.column_names and (np.diff(column(table, TS)) < 0).any():
        table = table.take(pa.array(np.argsort(column(table, TS), kind="stable")))  # times and much else rise then
    spare = [KEY] if KEY in table.column_names else []
    spare += [class_column(number) for number, _ in derived_classes(program, shipment, part, table.column_names)]
    return table.drop_columns([name for name in spare if name in table.column_names])


def _stream_rows(stored: Stored, table: pa.Table, shipment: Shipment) -> pa.Table:
    """The rows and columns of a stream that a shipment takes along; selections get the bits they have there."""
    table = where(table, fulfils(table, stored, shipment.selections))
    assert shipment.columns is not None, "a shipment of a stream's rows"
    if not table.num_rows:
        return table
    names = [TS, *([ORDINAL] if ORDINAL in table.column_names else [])]
    names += [class_column(number) for number in shipment.keys]
    shipped = table.select([*names, *shipment.columns])
    if len(shipment.selections) > 1:
        masks = [fulfils(table, stored, (selection,)) for selection in shipment.selections]
        shipped = with_selected(shipped, masks)
    return shipped


def with_selected(table: pa.Table, masks: list[Mask | None]) -> pa.Table:
    """A table with a bit for each selection that a row fulfils; a mask that is None holds for all."""
    for number in range(0, len(masks), 64):
        bits = np.zeros(table.num_rows, np.uint64)
        for place, mask in enumerate(masks[number : number + 64]):
            value = np.uint64(1 << place)
            bits |= value if mask is None else mask * value
        table = table.append_column(f"{SELECTED}{number // 64}", pa.array(bits.view(np.int64)))
    return table


def alike(tables: Sequence[pa.Table]) -> pa.Table:
    """Stored rows of one flow together; what some were stored without, since nobody read it then, is empty or 0."""
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables(tables).combine_chunks()
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    filled = []
    for table in tables:
        has_bits = f"{SELECTED}0" in table.column_names
        for name in names:
            if name not in table.column_names and name.startswith("#"):
                value = 1 if name == f"{SELECTED}0" and not has_bits else 0  # stored while that was the only selection
                table = table.append_column(name, pa.array(np.full(table.num_rows, value, np.int64)))
        filled.append(table)
    return united(filled).combine_chunks()


def arrived(program: SiteProgram, shipment: Shipment, table: pa.Table) -> pa.Table:
    """Rows as they came, with what was left out put back."""
    if shipment.form in (Form.SPAN, Form.ASK) and not shipment.bloom:
        return _replaced(table, mixed(column(table, KEY).view(np.uint64)), column(table, HIGH) + column(table, LOW))
    part = program.part(shipment.join) if shipment.join else None
    if shipment.form is Form.RESULT and part is not None:
        return table.select(output_columns(part.join))  # in the order of those that are found here
    if shipment.form not in (Form.ROW, Form.POINT, Form.INTERMEDIATE):
        return table
    for number, source in derived_classes(program, shipment, part, table.column_names):
        if class_column(number) not in table.column_names:
            values = pc.fill_null(table.column(source).cast(pa.int64()), 0)  # NULL where another selection needs it not
            table = table.append_column(class_column(number), values)
    return table


def copied_rows(table: pa.Table, copy: Copy) -> pa.Table:
    """Gathered rows as one alias of their stream sees them."""
    if copy.bit is not None:
        name, value = selected_column(copy.bit)
        table = where(table, (column(table, name).view(np.uint64) & value) != 0)
    own = [(name, name) for name in (TS, ORDINAL) if name in table.column_names]
    pairs = [*own, *((name, there) for name, there in copy.columns if there in table.column_names)]
    return table.select([there for _, there in pairs]).rename_columns([name for name, _ in pairs])


def derived_classes(
    program: SiteProgram, shipment: Shipment, part: JoinPart | None, names: Collection[str]
) -> list[tuple[int, str]]:
    """The class columns that are a plain whole-number column of the rows themselves, and which one."""
    found = []
    if shipment.columns is not None:
        keys = stored_of(program, shipment).scan.keys
        for number in shipment.keys:
            expression = keys[number].expression
            if keys[number].exact and expression.is_plain and expression.type in _WHOLE_NUMBERS:
                name = expression.columns[0].flat
                if name in shipment.columns:
                    found.append((number, name))
        return found
    if part is None or shipment.form not in (Form.ROW, Form.POINT, Form.INTERMEDIATE):
        return []
    for key_class in part.join.classes:
        for member in key_class.members if key_class.exact else ():
            name = member.columns[0].flat
            if member.is_plain and member.type in _WHOLE_NUMBERS and name in names:
                found.append((key_class.number, name))
                break
    return found


def _replaced(table: pa.Table, keys: U64 | I64, high: I64) -> pa.Table:
    for name, values in ((KEY, keys), (HIGH, high)):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def _filter_row(table: pa.Table) -> pa.Table:
    return pa.table(
        {
            LOW: pa.array([int(column(table, LOW).min())], pa.int64()),
            HIGH: pa.array([int(column(table, HIGH).max())], pa.int64()),
            bloom.BITS: pa.array([bloom.build(np.unique(column(table, KEY))).as_py()], pa.binary()),
        }
    )


def _stem(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "-", name)[:80]
