"""EMIT CHANGES after the join: answers become records that are valid over an interval; changes are where values differ.

Records have a begin and a last instant. Where every state can be negated (counts, whole sums, decimals), an answer that
ends is two records without end instead, the second one negated: what has begun is then one record a group. Where not
(least and greatest, distinct values, doubles), values are made anew from the records that are valid, by a segment tree
over the instants of a group: n records and n instants take O(n log n) combinations, whatever the function.

The end of a row of a ROWS window is known when its n-th successor has come. Until then records have its ordinal, and
are told apart by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from watersmeet.program.aggregate.kernels import I64
from watersmeet.program.aggregate.records import Layout, group_numbers
from watersmeet.program.finish.groups import END, grouped_rows, layout_of, ordinal_column, value_columns
from watersmeet.program.finish.model import answer_column
from watersmeet.program.join.axis import Clock
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Part, Segment, Shelf
from watersmeet.query.model import CHANGED_AT, DELETED, PLACE, Grouping, key_of_group
from watersmeet.query.windows import FIRST_US, Changes, Range

Mask = npt.NDArray[np.bool_]

BEGUN = FIRST_US - 1  # the begin of records that began before the changes that are looked for
NEVER = 1 << 62  # the end of records without one
_TIMESTAMP = pa.timestamp("us", "UTC")
_NODE = "#node"


@dataclass(frozen=True)
class AddIntervals:
    """Make records of answers that are to be grouped, each with its interval of validity; one file a task."""

    shelf: Shelf
    grouping: Grouping
    columns: tuple[tuple[str, str], ...]  # in the files, of the query's select items
    paths: tuple[str, ...]

    def __call__(self, number: int) -> list[Segment]:
        rows = grouped_rows(self.grouping, self.columns, self.shelf.get(self.paths[number]))
        rows = rows.append_column(END, pa.array(_last_instants(self.grouping.changes, rows)))
        for number, (item, _, _) in enumerate(self.grouping.changes.counted):
            rows = rows.append_column(ordinal_column(number), rows.column(f"item{item}").cast(pa.int64()))
        layout = layout_of(self.grouping, rows.schema)
        return [intervals_segment(self.shelf, layout, with_expiry(layout, layout.add(rows)))]


def intervals_segment(shelf: Shelf, layout: Layout, records: pa.Table, level: int = 0) -> Segment:
    """Records on the shelf, from the first begin to the last end, or to the last begin where none ends."""
    part = shelf.put("groups", records)
    last = records.column(TS if layout.is_negatable else END).to_numpy()
    first = int(records.column(TS).to_numpy().min())
    return Segment((Part(part.path, part.rows, part.bytes),), first, int(last.max()), level=level)


def _last_instants(changes: Changes, rows: pa.Table) -> I64:
    """The last instant at which each answer is valid, from the times of the rows that it is made of."""
    ends = np.full(rows.num_rows, NEVER, np.int64)
    for item, window in changes.ends:
        times = rows.column(f"item{item}")
        if pa.types.is_null(times.type):  # no row of an outer join has a partner
            times = times.cast(pa.int64())
        if not pa.types.is_integer(times.type):  # of rows of streams, the event-time column
            times = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        ts = times.fill_null(NEVER).to_numpy()
        length = window.window_us
        last = ts + length if isinstance(window, Range) else (ts // length + 1) * length - 1
        np.minimum(ends, last, out=ends)  # a row that is NULL for want of a partner does not end
    return ends


def with_known_ends(changes: Changes, records: pa.Table, clock_of: Callable[[str], Clock]) -> pa.Table:
    """Records with the ends that are known by now of rows of ROWS windows: just before the n-th row after them."""
    ends = records.column(END).to_numpy()
    for number, (_, alias, count) in enumerate(changes.counted):
        name, clock = ordinal_column(number), clock_of(alias)
        ordinals = records.column(name).to_numpy()
        successors = ordinals + (count - clock.base)
        assert not (successors < 0).any(), "a row clock goes back to the rows that follow those of answers"
        known = np.flatnonzero(successors < len(clock.ts))
        ends = ends.copy()
        ends[known] = np.minimum(ends[known], clock.ts[successors[known]] - 1)
        ordinals = ordinals.copy()
        ordinals[known] = NEVER  # there is nothing more to learn of it
        records = records.set_column(records.column_names.index(name), name, pa.array(ordinals))
    return records.set_column(records.column_names.index(END), END, pa.array(ends))


def with_expiry(layout: Layout, records: pa.Table) -> pa.Table:
    """Records without end where states can be negated, so that those of a group become one as they begin."""
    if not layout.is_negatable:
        return records
    ends = records.column(END).to_numpy()
    ending = np.flatnonzero(ends < NEVER)
    place = records.column_names.index(END)
    lasting = records.set_column(place, END, pa.array(np.full(len(ends), NEVER)))
    if not len(ending):
        return lasting
    expired = layout.negated(lasting.take(pa.array(ending)))
    expired = expired.set_column(expired.column_names.index(TS), TS, pa.array(ends[ending] + 1))
    return layout.combine([lasting, expired])


def still_needed(layout: Layout, tables: Sequence[pa.Table], from_us: int) -> pa.Table:
    """Records that matter for changes from an instant on, one for all of a group that have begun and end together."""
    clipped = []
    for table in tables:
        table = table.filter(pc.greater_equal(table.column(END), max(from_us, FIRST_US) - 1))
        begins = table.column(TS).to_numpy()
        begins = pa.array(np.where(begins < from_us, BEGUN, begins))
        clipped.append(table.set_column(table.column_names.index(TS), TS, begins))
    records = layout.combine(clipped)
    return records.filter(pa.array(~layout.are_zero(records))) if layout.is_negatable else records


@dataclass(frozen=True)
class Values:
    """The values of groups at the instants at which they may change, each group's in order of time.

    The first of a group is its value before all of them. Groups that have no answers at an instant have no row for it.
    """

    groups: pa.Table  # with their place among the instants
    instants: I64
    is_first: Mask


def values_between(
    query: str, grouping: Grouping, records: Sequence[pa.Table], since_us: int, until_us: int
) -> Values | None:
    """The values of all groups that may change from an instant on and before another; None if there are none."""
    layout = layout_of(grouping, records[0].schema)
    table = pa.concat_tables(records).combine_chunks()
    since = max(since_us, FIRST_US)
    begins, ends = table.column(TS).to_numpy(), table.column(END).to_numpy()
    begins = np.where(begins < since, BEGUN, begins)
    alive = (begins < until_us) & (ends >= since - 1)
    eventful = alive & ((begins >= since) | (ends < until_us - 1))
    if not eventful.any():
        return None
    keys = [key_of_group(number).name for number in range(grouping.keys)]
    rows = np.flatnonzero(alive & _may_equal(table.select(keys), np.flatnonzero(eventful)))
    groups, _ = group_numbers([_taken(table, name, rows) for name in keys], len(rows))
    touched = np.zeros(int(groups.max()) + 1, bool)
    touched[groups[eventful[rows]]] = True
    rows = rows[touched[groups]]
    groups, first = group_numbers([_taken(table, name, rows) for name in keys], len(rows))
    begins, ends = begins[rows], ends[rows]

    # The instants of each group, in order; a group begins with the instant before them all.
    starts, leaves = np.flatnonzero(begins >= since), np.flatnonzero(ends < until_us - 1)
    owners = np.concatenate([np.arange(len(first)), groups[starts], groups[leaves]])
    times = np.concatenate([np.full(len(first), since - 1), begins[starts], ends[leaves] + 1])
    distinct, ranks = np.unique(times, return_inverse=True)
    codes = np.unique(owners * len(distinct) + ranks)
    owners, instants = codes // len(distinct), distinct[codes % len(distinct)]
    edges = np.searchsorted(owners, np.arange(len(first) + 1))
    begin_rank = np.searchsorted(distinct, np.maximum(begins, since - 1))
    low = np.searchsorted(codes, groups * len(distinct) + begin_rank)
    high = edges[groups + 1].copy()
    end_rank = np.searchsorted(distinct, ends[leaves] + 1)
    high[leaves] = np.searchsorted(codes, groups[leaves] * len(distinct) + end_rank)

    states = table.take(pa.array(rows)).drop_columns(list(layout.keys))
    made = _by_instant(layout, states, low, high, groups, edges)
    counted, _ = layout.functions[grouping.changes.answers]
    answers = made.column(layout.state_column(grouping.changes.answers, counted.columns[0])).to_numpy()
    made = made.filter(pa.array(answers > 0))
    places = made.column(_NODE).to_numpy()
    columns = {
        key_of_group(number).flat: _taken(table, name, rows[first[owners[places]]]) for number, name in enumerate(keys)
    }
    columns |= value_columns(query, grouping, layout, made)
    columns[CHANGED_AT.flat] = pa.array(instants[places], _TIMESTAMP)
    columns[DELETED.flat] = pa.array(np.zeros(len(places), bool))
    columns[PLACE.flat] = pa.array(places)
    is_first = np.zeros(len(instants), bool)
    is_first[edges[:-1]] = True
    return Values(pa.table(columns), instants, is_first)


def _taken(table: pa.Table, name: str, rows: I64) -> pa.Array:
    column = table.column(name).take(pa.array(rows))
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _may_equal(keys: pa.Table, rows: I64) -> Mask:
    """Which rows may have the keys of some of them; without the columns whose equal values may look different."""
    found = np.ones(keys.num_rows, bool)
    for name in keys.column_names:
        column = keys.column(name)
        if not kinds.is_floating(column.type) and not kinds.is_nested(column.type):
            wanted = column.take(pa.array(rows)).unique()
            found &= pc.is_in(column, value_set=wanted).to_numpy()
    return found


def _by_instant(layout: Layout, states: pa.Table, low: I64, high: I64, groups: I64, edges: I64) -> pa.Table:
    """The combined states of the records that are valid at each place; a record is from `low` up to before `high`.

    A record is put to the few nodes of a segment tree over the places that cover its interval, or to its group where it
    is valid throughout; a place has what is at the nodes above it.
    """
    by_node = Layout((_NODE,), layout.functions)
    whole = (low == edges[groups]) & (high == edges[groups + 1])
    nodes, rows = [groups[whole]], [np.flatnonzero(whole)]
    rest = np.flatnonzero(~whole)
    left, right, size, offsets = low[rest].copy(), high[rest].copy(), int(edges[-1]), [len(edges) - 1]
    while (left < right).any():
        odd = (left & 1 == 1) & (left < right)
        nodes.append(offsets[-1] + left[odd])
        rows.append(rest[odd])
        left += odd
        odd = (right & 1 == 1) & (left < right)
        right -= odd
        nodes.append(offsets[-1] + right[odd])
        rows.append(rest[odd])
        left >>= 1
        right >>= 1
        offsets.append(offsets[-1] + size)
        size = size // 2 + 1
    taken = states.take(pa.array(np.concatenate(rows)))
    at_nodes = by_node.combine([taken.append_column(_NODE, pa.array(np.concatenate(nodes)))])
    numbers = at_nodes.column(_NODE).to_numpy()
    order = np.argsort(numbers)
    numbers = numbers[order]
    leaves = np.arange(int(edges[-1]))
    above = [np.searchsorted(edges, leaves, "right") - 1]
    above += [offset + (leaves >> level) for level, offset in enumerate(offsets[:-1])]
    which, places = [], []
    for wanted in above:
        found = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
        held = np.flatnonzero(numbers[found] == wanted)
        which.append(order[found[held]])
        places.append(leaves[held])
    gathered = at_nodes.take(pa.array(np.concatenate(which)))
    place = gathered.column_names.index(_NODE)
    return by_node.combine([gathered.set_column(place, _NODE, pa.array(np.concatenate(places)))])


def changed_rows(grouping: Grouping, values: Values, answers: pa.Table) -> pa.Table:
    """The rows of groups where they are others than before, in order of time; a row that is deleted is as it was.

    Answers have the output columns and behind them the place among the values; some places may have none.
    """
    names = [answer_column(number) for number in range(len(grouping.select))]
    row_at = np.full(len(values.instants), -1, np.int64)
    row_at[answers.column(answer_column(len(names))).to_numpy()] = np.arange(answers.num_rows)
    later = np.flatnonzero(~values.is_first)
    now, before = row_at[later], row_at[later - 1]
    changed = (now < 0) != (before < 0)
    both = (now >= 0) & (before >= 0)
    own = {i: item.expression.columns[0] for i, item in enumerate(grouping.select) if _is_own(item.expression.columns)}
    for number, name in enumerate(names):
        if number not in own:
            codes = _codes(answers.column(name))
            changed[both] |= codes[now[both]] != codes[before[both]]
    which = np.flatnonzero(changed)
    which = which[np.argsort(values.instants[later[which]], kind="stable")]
    deleted = now[which] < 0
    rows = answers.take(pa.array(np.where(deleted, before[which], now[which]))).select(names)
    made = {CHANGED_AT: pa.array(values.instants[later[which]], _TIMESTAMP), DELETED: pa.array(deleted)}
    for number, column in own.items():
        rows = rows.set_column(number, names[number], made[column].cast(rows.schema.field(number).type))
    return rows


def _is_own(columns: Sequence[object]) -> bool:
    return tuple(columns) in ((CHANGED_AT,), (DELETED,))


def _codes(column: pa.ChunkedArray) -> I64:
    """A number for each value, equal for equal ones."""
    values = column.combine_chunks()
    if kinds.is_nested(values.type):  # Arrow numbers plain values only
        values = pa.array([repr(value) for value in values.to_pylist()], pa.string())
    return group_numbers([values], len(values))[0]
