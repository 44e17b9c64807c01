"""GROUP BY after the join: answers become partial records of panes, and windows that have ended become groups.

A pane is the longest interval that lies in a window wholly or not at all; an answer counts in one pane, and a window is
made up of its panes' records when the watermark has passed its end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import ExpressionFailed, TypeMismatch
from watersmeet.program.aggregate.functions import BeyondRange, Function
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.finish.model import answer_column
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Part, Segment, Shelf
from watersmeet.query.model import TIME, WINDOW_END, WINDOW_START, Grouping, key_of_group, value_of_group
from watersmeet.query.windows import Changes, Hop

I64 = npt.NDArray[np.int64]
_TIMESTAMP = pa.timestamp("us", "UTC")
_LAST = 1 << 62  # beyond all ranks
_MOST_ROWS = 1 << 21  # records that are combined at once, where windows overlap


END = "#end"  # int64, the last instant at which answers are valid, with EMIT CHANGES


def layout_of(grouping: Grouping, schema: pa.Schema) -> Layout:
    """The records of what is grouped, or of records: both have the types in their columns."""
    window, times = grouping.window, [TS]
    if isinstance(window, Changes):
        times += [END, *(ordinal_column(number) for number in range(len(window.counted)))]
    keys = (*times, *(key_of_group(number).name for number in range(grouping.keys)))
    functions = []
    for number, aggregate in enumerate(grouping.aggregates):
        argument = None if aggregate.item is None else f"item{aggregate.item}"
        states = {
            name.removeprefix(f"s{number}."): schema.field(name).type
            for name in schema.names
            if name.startswith(f"s{number}.")
        }
        if states:
            function = Function.of_state(aggregate.function, states, aggregate.parameters, distinct=aggregate.distinct)
        else:
            kind = None if argument is None else schema.field(argument).type
            function = Function(aggregate.function, kind, aggregate.distinct, aggregate.parameters)
        functions.append((function, argument))
    return Layout(keys, tuple(functions), keeps_ends=isinstance(window, Changes) and bool(window.counted))


def ordinal_column(number: int) -> str:
    """The ordinal of a row of a ROWS window that answers are made of, as long as its end is not known."""
    return f"#ordinal{number}"


def check_records(grouping: Grouping, schema: pa.Schema) -> None:
    """Whether records of a query can have such columns; ValueError if not."""
    try:
        layout = layout_of(grouping, schema)
    except (KeyError, TypeMismatch, AttributeError) as error:
        raise ValueError(f"partial records lack a column or have another type: {error}") from None
    if tuple(schema.names) != layout.columns:
        raise ValueError(f"partial records have the columns {', '.join(schema.names)}")
    types = dict.fromkeys(layout.keys[: len(layout.keys) - grouping.keys], pa.int64())
    for number, (function, _) in enumerate(layout.functions):
        types |= {layout.state_column(number, name): function.column_type(name) for name in function.columns}
    for name, kind in types.items():
        if schema.field(name).type != kind:
            raise ValueError(f"column {name!r} of partial records is {schema.field(name).type}")


@dataclass(frozen=True)
class AddRecords:
    """Make records of panes of answers that are to be grouped, one file a task."""

    shelf: Shelf
    grouping: Grouping
    columns: tuple[tuple[str, str], ...]  # in the files, of the query's select items
    paths: tuple[str, ...]

    def __call__(self, number: int) -> list[Segment]:
        rows = grouped_rows(self.grouping, self.columns, self.shelf.get(self.paths[number]))
        times, pane_us = rows.column(TS).to_numpy(), self.grouping.output_window.pane_us
        rows = rows.set_column(rows.column_names.index(TS), TS, pa.array(times // pane_us * pane_us))
        return [records_segment(self.shelf, layout_of(self.grouping, rows.schema).add(rows))]


def grouped_rows(grouping: Grouping, columns: Sequence[tuple[str, str]], table: pa.Table) -> pa.Table:
    """Answers that are to be grouped, with their times, under the names of what records are made of."""
    rows: dict[str, pa.ChunkedArray] = {}
    for place, (stored, item) in enumerate(columns):
        if item == TIME.name and place == len(columns) - 1:
            rows[TS] = table.column(stored)
        elif place < grouping.keys:
            rows[key_of_group(place).name] = table.column(stored)
        else:
            rows[f"item{place}"] = table.column(stored)
    return pa.table(rows)  # a key may be an argument too: that is another column with the same values


def records_segment(shelf: Shelf, records: pa.Table, level: int = 0) -> Segment:
    """Records on the shelf."""
    part = shelf.put("groups", records)
    panes = records.column(TS).to_numpy()
    return Segment((Part(part.path, part.rows, part.bytes),), int(panes.min()), int(panes.max()), level=level)


def first_pane_needed(window: Hop, closed_us: int) -> int:
    """The first pane of windows that end after an instant."""
    first_open = (closed_us - window.length_us) // window.slide_us * window.slide_us + window.slide_us
    return first_open


def ended_groups(
    query: str, grouping: Grouping, records: Sequence[pa.Table], after_us: int, until_us: int
) -> Iterator[pa.Table]:
    """The groups of windows that end after an instant and not after another; windows without records have none."""
    if not records:
        return
    layout = layout_of(grouping, records[0].schema)
    for table in windowed_records(grouping.output_window, layout, records, after_us, until_us):
        yield group_columns(query, grouping, layout, table)


def windowed_records(
    window: Hop, layout: Layout, records: Sequence[pa.Table], after_us: int, until_us: int
) -> Iterator[pa.Table]:
    """Records of panes combined for windows that end after an instant and not after another, some at a time."""
    tables = pa.concat_tables(records)
    panes = tables.column(TS).to_numpy()
    starts = _due_windows(window, panes, after_us, until_us)
    per_window = window.length_us // window.pane_us
    chunk = max(1, _MOST_ROWS // max(1, len(panes) * per_window // max(1, len(starts))))
    for low in range(0, len(starts), chunk):
        some = starts[low : low + chunk]
        pieces = []
        for offset in range(0, window.length_us, window.pane_us):
            place = np.minimum(np.searchsorted(some, panes - offset), len(some) - 1)
            rows = np.flatnonzero(some[place] == panes - offset)
            if len(rows):
                piece = tables.take(pa.array(rows))
                pieces.append(piece.set_column(piece.column_names.index(TS), TS, pa.array(panes[rows] - offset)))
        yield layout.combine(pieces)


def _due_windows(window: Hop, panes: I64, after_us: int, until_us: int) -> I64:
    """The starts of windows that have a pane and end within an interval."""
    found = [np.empty(0, np.int64)]
    distinct = np.unique(panes)
    for offset in range(0, window.length_us, window.pane_us):
        starts = distinct - offset
        ends = starts + window.length_us
        found.append(starts[(starts % window.slide_us == 0) & (ends > after_us) & (ends <= until_us)])
    return np.unique(np.concatenate(found))


def group_columns(query: str, grouping: Grouping, layout: Layout, records: pa.Table) -> pa.Table:
    """Records as groups: keys, values of aggregates, and the bounds of the window."""
    columns = {key_of_group(number).flat: records.column(key_of_group(number).name) for number in range(grouping.keys)}
    columns |= value_columns(query, grouping, layout, records)
    starts = records.column(TS).to_numpy()
    columns[WINDOW_START.flat] = pa.array(starts, _TIMESTAMP)
    columns[WINDOW_END.flat] = pa.array(starts + grouping.output_window.length_us, _TIMESTAMP)
    return pa.table(columns)


def value_columns(query: str, grouping: Grouping, layout: Layout, records: pa.Table) -> dict[str, pa.Array]:
    """What the aggregates of records come to."""
    columns: dict[str, pa.Array] = {}
    for number, (function, _) in enumerate(layout.functions):
        state = {name: records.column(layout.state_column(number, name)).combine_chunks() for name in function.columns}
        try:
            columns[value_of_group(number).flat] = function.result(state)
        except BeyondRange as error:
            written = grouping.aggregates[number].sql.replace("`", "")
            raise ExpressionFailed(
                f"query {query!r} failed: {written} of a group is beyond {error}; cast its argument to a wider type, "
                "as in CAST(... AS DECIMAL(38, 0)) or DOUBLE, and start the query anew"
            ) from None
    return columns


def first_of_windows(grouping: Grouping, answers: pa.Table) -> pa.Table:
    """The first groups of each window in the order asked for, as many as LIMIT says; equal ones by their keys.

    Answers have the sort keys, the group's keys and the start of the window behind the output columns.
    """
    if grouping.limit is None or not answers.num_rows:
        return answers
    hidden = len(grouping.select)
    orders = [(key.descending, key.nulls_first) for key in grouping.order] + [(False, True)] * grouping.keys
    ranks = []
    for number, (descending, nulls_first) in enumerate(orders, hidden):
        column = answers.column(answer_column(number)).combine_chunks()
        rank = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
        rank = -rank if descending else rank
        rank[column.is_null().to_numpy(zero_copy_only=False)] = -_LAST if nulls_first else _LAST
        ranks.append(rank)
    window = answers.column(answer_column(hidden + len(orders))).cast(pa.int64()).to_numpy()
    order = np.lexsort((*ranks[::-1], window))
    sorted_windows = window[order]
    places = np.arange(len(order)) - np.searchsorted(sorted_windows, sorted_windows)
    return answers.take(pa.array(np.sort(order[places < grouping.limit])))
