"""How the rows of a flow are filed at a site: sorted for those who look them up here, packed for those elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from watersmeet.plan.nodes import Key
from watersmeet.plan.partition import sub_plans_of
from watersmeet.program.operators import Flow, Form, SiteProgram, SubPlans, sub_plans_name
from watersmeet.program.site.ledger import Part, Segment
from watersmeet.program.storage import bloom
from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.segments import (
    CLASS,
    I64,
    KEY,
    ORDINAL,
    TS,
    U64,
    bucket_bounds,
    bucket_slice,
    class_column,
    column,
    key_order,
    mixed,
    place_of,
    sort_key,
    unmixed,
)
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.wire import pack_schema

LOW, HIGH = "#low", "#high"  # int64, from where to where a key is present or asked for

_WHOLE_NUMBERS = ("bigint", "int", "smallint", "tinyint")


@dataclass(frozen=True, slots=True)
class Payload:
    """Rows packed to travel."""

    path: str
    bytes: int
    rows: int
    schema: str  # hexadecimal, so that it can be told in JSON


@dataclass(frozen=True)
class Made:
    """What was filed of one flow by one task."""

    flow: str
    rows: int = 0
    segments: Mapping[str, Segment] = field(default_factory=dict)  # by relation
    payloads: Mapping[str, Payload] = field(default_factory=dict)  # by the flow they arrive as, and its ways
    answers: str | None = None  # finished combinations at the query's site


def relation_name(flow: str, key: Key, sub_plans: SubPlans = None) -> str:
    """The name of a flow's rows sorted by a key, of some ways if not all."""
    return f"{flow}/{'-'.join(map(str, key))}{sub_plans_name(sub_plans)}"


def routes_of(program: SiteProgram, table: pa.Table, key: Key | None = None) -> I64 | None:
    """The way of the plan that each row takes, where there are several and its value of the partition's key is known.

    `key` is that of tables that have nothing but keys.
    """
    partition = program.join.partition
    if partition is None:
        return None
    name = class_column(partition.key_class)
    if name in table.column_names:
        return sub_plans_of(partition, column(table, name).view(np.int64))
    if key == (partition.key_class,) and KEY in table.column_names:
        return sub_plans_of(partition, unmixed(column(table, KEY)).view(np.int64))
    return None


def rows_for(program: SiteProgram, table: pa.Table, routes: I64 | None, sub_plans: SubPlans) -> pa.Table:
    """Those rows that some ways of the plan are for."""
    if sub_plans is None or routes is None:
        return table
    wanted = np.zeros(len(program.join.sub_plans), bool)
    wanted[list(sub_plans)] = True
    mask = wanted[routes]
    return table if mask.all() else table.filter(pa.array(mask))


def file_flow(
    program: SiteProgram, shelf: Shelf, flow: Flow, table: pa.Table, *, travels: bool = True, key: Key | None = None
) -> Made:
    """File rows of a flow by every key they are looked up by here, and pack them for every site they go to."""
    if not table.num_rows:
        return Made(flow.name)
    routes = routes_of(program, table, key)
    payloads = pack_for_others(program, shelf, flow, table, routes) if travels else {}
    answers = None
    if flow.form is Form.RESULT and program.is_query_site:
        answers = shelf.put("answers", table).path
    return Made(flow.name, table.num_rows, file_here(program, shelf, flow, table, routes), payloads, answers)


def file_here(
    program: SiteProgram, shelf: Shelf, flow: Flow, table: pa.Table, routes: I64 | None
) -> dict[str, Segment]:
    """Rows of a flow as a segment for every key they are looked up by here."""
    if not table.num_rows:
        return {}
    return {
        relation_name(flow.name, key, sub_plans): file_sorted(shelf, _stem(flow.name), flow, rows, key)
        for key, sub_plans in program.indexes.get(flow.name, ())
        if (rows := rows_for(program, table, routes, sub_plans)).num_rows
    }


def pack_for_others(
    program: SiteProgram, shelf: Shelf, flow: Flow, table: pa.Table, routes: I64 | None
) -> dict[str, Payload]:
    """Rows of a flow packed once for every form in which they go to other sites."""
    forms = {ship.payload: ship for ship in program.ships_of.get(flow.name, ())}
    return {
        name: pack_flow(program, shelf, ship.arrives_as, rows)
        for name, ship in forms.items()
        if (rows := rows_for(program, table, routes, ship.sub_plans)).num_rows
    }


def file_sorted(shelf: Shelf, stem: str, flow: Flow, table: pa.Table, key: Key) -> Segment:
    """Put rows on the shelf as a segment sorted by a key."""
    return shelve(shelf, stem, table if flow.bloom else sort_rows(table, key))


def sort_rows(table: pa.Table, key: Key) -> pa.Table:
    """Rows sorted by (key, time), with the key computed where they do not bring it."""
    if KEY not in table.column_names:
        keys = sort_key([column(table, class_column(number)) for number in key], table.num_rows)
        table = table.append_column(KEY, pa.array(keys))
    order = key_order(column(table, KEY), column(table, LOW) if LOW in table.column_names else place_of(table))
    return table.combine_chunks().take(pa.array(order))


def shelve(shelf: Shelf, stem: str, table: pa.Table) -> Segment:
    """Put a table on the shelf as a segment, with the range of its times and ordinals."""
    part = shelf.put(stem, table)
    low, high = (LOW, HIGH) if LOW in table.column_names else (TS, TS)
    ordinals = column(table, ORDINAL) if ORDINAL in table.column_names else None
    return Segment(
        (part,),
        int(column(table, low).min()),
        int(column(table, high).max()),
        -1 if ordinals is None else int(ordinals.min()),
        -1 if ordinals is None else int(ordinals.max()),
    )


def bucket_rows(shelf: Shelf, part: Part, bucket: int, buckets: int) -> pa.Table | None:
    """The rows of a sorted table that lie in a bucket; all rows of one that has no key, such as filters."""
    low, high = bucket_bounds(bucket, buckets)
    if part.high_key < low or part.low_key > high:
        return None
    table = shelf.get(part.path)
    if buckets == 1 or KEY not in table.column_names:
        return table
    start, stop = bucket_slice(column(table, KEY), bucket, buckets)
    return table.slice(start, stop - start) if stop > start else None


def pack_flow(program: SiteProgram, shelf: Shelf, flow: Flow, table: pa.Table) -> Payload:
    """Pack rows as they arrive elsewhere: without what the other side can compute, or as a Bloom filter."""
    table = _filter_row(table) if flow.bloom else travelling(program, flow, table)
    data = pack_rows(table)
    return Payload(shelf.put_bytes(_stem(flow.name), data), len(data), table.num_rows, pack_schema(table.schema).hex())


def travelling(program: SiteProgram, flow: Flow, table: pa.Table) -> pa.Table:
    """Rows without the sort key and the class keys that are columns of their own.

    Keys alone are as small as they were, in rising order, and with the length of their time instead of its end.
    """
    if flow.form in (Form.SPAN, Form.ASK):
        keys = unmixed(column(table, KEY)).view(np.int64)
        lengths = column(table, HIGH) - column(table, LOW)
        return _replaced(table, keys, lengths).take(pa.array(np.argsort(keys, kind="stable")))
    if TS in table.column_names and (np.diff(column(table, TS)) < 0).any():
        table = table.take(pa.array(np.argsort(column(table, TS), kind="stable")))  # times and much else rise then
    spare = [KEY] if KEY in table.column_names else []
    spare += [
        name
        for name in table.column_names
        if name.startswith(CLASS) and _same_column(program, int(name.removeprefix(CLASS)), table) is not None
    ]
    return table.drop_columns(spare) if spare else table


def arrived(program: SiteProgram, flow: Flow, table: pa.Table) -> pa.Table:
    """Rows as they came, with what was left out put back."""
    if flow.form in (Form.SPAN, Form.ASK) and not flow.bloom:
        return _replaced(table, mixed(column(table, KEY).view(np.uint64)), column(table, HIGH) + column(table, LOW))
    if flow.form not in (Form.ROW, Form.POINT, Form.PIECE):
        return table
    for key_class in program.join.classes:
        name = class_column(key_class.number)
        if name not in table.column_names and (same := _same_column(program, key_class.number, table)) is not None:
            table = table.append_column(name, table.column(same).cast(pa.int64()))
    return table


def _replaced(table: pa.Table, keys: U64 | I64, high: I64) -> pa.Table:
    for name, values in ((KEY, keys), (HIGH, high)):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def _same_column(program: SiteProgram, number: int, table: pa.Table) -> str | None:
    """A column of the rows that is the class key itself."""
    key_class = program.join.classes[number]
    if not key_class.exact:
        return None
    for member in key_class.members:
        if member.is_plain and member.type in _WHOLE_NUMBERS and member.columns[0].flat in table.column_names:
            return member.columns[0].flat
    return None


def _filter_row(table: pa.Table) -> pa.Table:
    return pa.table(
        {
            LOW: pa.array([int(column(table, LOW).min())], pa.int64()),
            HIGH: pa.array([int(column(table, HIGH).max())], pa.int64()),
            bloom.BITS: pa.array([bloom.build(np.unique(column(table, KEY))).as_py()], pa.binary()),
        }
    )


def _stem(name: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in name)
