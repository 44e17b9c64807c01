"""GROUP BY queries over one stream that differ in their filters, answered from shared records (pier.txt, chapter 5).

A fragment is the rows that the same set of queries wants. Rows are aggregated once, by pane, set and group; the record
of a set counts for every query in it, when a window ends. What queries must have in common is a `RecordShape`. Sets are
bytes whose bits are selections of the stream, which keep their numbers while queries come and go, so that records stay
right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2s

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.aggregate.records import Layout, compressed, group_numbers
from watersmeet.program.finish.groups import I64, group_columns, layout_of, windowed_records
from watersmeet.program.storage.segments import TS
from watersmeet.query.model import MEMBER, Aggregate, Grouping, key_of_group
from watersmeet.query.windows import Hop

SET = "set"  # binary, which selections the rows of a record fulfil
_MOST_PAIRS = 1 << 21  # records of queries that are made of shared ones at once

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RecordShape:
    """What GROUP BY queries have in common that are answered from shared records."""

    stream: str
    site: str  # where answers are wanted
    pane_us: int
    keys: tuple[str, ...]  # stored columns
    columns: tuple[str, ...]  # stored columns that are arguments
    aggregates: tuple[Aggregate, ...]  # of the columns by number, without how they were written

    @cached_property
    def name(self) -> str:
        """The name of the records."""
        return f"shared {self.stream} {blake2s(repr(self).encode(), digest_size=6).hexdigest()}"

    def arrives_as(self, sender: str) -> str:
        """The name under which another site sends records."""
        return f"{self.name} from {sender}"

    @cached_property
    def grouping(self) -> Grouping:
        """What is recorded of each set, as a query."""
        return Grouping(len(self.keys), Hop(self.pane_us, self.pane_us), self.aggregates, ())

    def layout(self, schema: pa.Schema) -> Layout:
        """The records of rows or records with such columns."""
        layout = layout_of(self.grouping, schema)
        return replace(layout, keys=(TS, SET, *layout.keys[1:]))

    def places(self, grouping: Grouping, arguments: Sequence[str]) -> tuple[int, ...]:
        """Which aggregates of the records those of a query are, whose select items have such stored columns."""
        return tuple(
            self.aggregates.index(_canonical(aggregate, arguments, self.columns)) for aggregate in grouping.aggregates
        )


def shape_of(grouping: Grouping, stream: str, site: str, stored: Sequence[str]) -> RecordShape:
    """The shape of a query whose select items are such stored columns."""
    columns = tuple(sorted({stored[aggregate.item] for aggregate in grouping.aggregates if aggregate.item is not None}))
    aggregates = {_canonical(aggregate, stored, columns) for aggregate in grouping.aggregates}
    pane_us = grouping.output_window.pane_us
    return RecordShape(
        stream, site, pane_us, tuple(stored[: grouping.keys]), columns, tuple(sorted(aggregates, key=repr))
    )


def _canonical(aggregate: Aggregate, stored: Sequence[str], columns: Sequence[str]) -> Aggregate:
    item = None if aggregate.item is None else columns.index(stored[aggregate.item])
    return Aggregate(aggregate.function, item, aggregate.distinct, parameters=aggregate.parameters)


def add_records(
    shape: RecordShape, rows: pa.Table, codes: I64, sets: Sequence[bytes], cuts: Sequence[int]
) -> pa.Table | None:
    """The records of new rows, each with the number of its set; panes are cut where versions of queries begin or end.

    Rows that no query wants have the empty set; None where there are no others.
    """
    wanted = np.array([bool(set_) for set_ in sets])[codes]
    if not wanted.all():
        rows, codes = rows.filter(pa.array(wanted)), codes[wanted]
    if not rows.num_rows:
        return None
    times = rows.column(TS).to_numpy()
    columns = {TS: pa.array(cut_panes(times, shape.pane_us, cuts)), SET: pa.array(codes)}
    columns |= {key_of_group(number).name: rows.column(name) for number, name in enumerate(shape.keys)}
    columns |= {f"item{number}": rows.column(name) for number, name in enumerate(shape.columns)}
    table = pa.table(columns)
    records = shape.layout(table.schema).add(table)
    numbers = records.column(SET).to_numpy()
    different, places = np.unique(numbers, return_inverse=True)
    known = pa.array([sets[number] for number in different.tolist()], pa.binary())
    return records.set_column(records.column_names.index(SET), SET, known.take(pa.array(places.reshape(-1))))


def cut_panes(times: I64, pane_us: int, cuts: Sequence[int]) -> I64:
    """The first instants of the panes that times are in, where panes also begin at some instants.

    >>> cut_panes(np.array([3, 12, 17]), 10, [15]).tolist()
    [0, 10, 15]
    """
    panes: I64 = times // pane_us * pane_us
    if len(cuts):
        instants = np.unique(np.array(cuts, np.int64))
        latest = np.searchsorted(instants, times, side="right") - 1
        panes = np.where(latest >= 0, np.maximum(panes, instants[np.maximum(latest, 0)]), panes)
    return panes


@dataclass(frozen=True)
class Member:
    """A query that is answered from shared records: its selection, and from when to when rows count for it."""

    selection: int
    from_us: int | None = None
    until_us: int | None = None

    def within(self, first_us: int, last_us: int) -> "Member":
        """When rows count for it, as far as that matters between two instants, whatever its selection."""
        begins = None if self.from_us is None or self.from_us <= first_us else self.from_us
        return Member(-1, begins, None if self.until_us is None or self.until_us > last_us else self.until_us)


def ended_shared(
    query: str,
    shape: RecordShape,
    grouping: Grouping,
    places: Sequence[int],
    members: Sequence[Member],
    records: Sequence[pa.Table],
    after_us: int,
    until_us: int,
) -> Iterator[pa.Table]:
    """The groups of windows of several queries that end after an instant and not after another, with their members.

    The queries are alike but for their selections; `places` are their aggregates among those of the shape.
    """
    if not records:
        return
    layout, window = shape.layout(records[0].schema), grouping.output_window
    times = [record.column(TS).to_numpy() for record in records]
    first, last = min(int(time.min()) for time in times), max(int(time.max()) for time in times)
    alike: dict[Member, list[int]] = {}  # by when rows count for them
    for number, member in enumerate(members):
        alike.setdefault(member.within(first, last), []).append(number)
    for bounds, numbers in alike.items():
        tables = _in_panes(shape, [during(record, bounds) for record in records])
        for table in windowed_records(window, layout, tables, after_us, until_us):
            chosen = _members_of(table, [members[number] for number in numbers])
            for groups in _groups(query, grouping, places, layout, table, chosen):
                whose = np.array(numbers)[groups.column(MEMBER.flat).to_numpy()]
                yield groups.set_column(groups.column_names.index(MEMBER.flat), MEMBER.flat, pa.array(whose))


def during(records: pa.Table, member: Member) -> pa.Table:
    """The records of rows that count for a member by their time."""
    times = records.column(TS).to_numpy()
    mask = np.ones(len(times), bool)
    if member.from_us is not None:
        mask &= times >= member.from_us
    if member.until_us is not None:
        mask &= times < member.until_us
    return records if mask.all() else records.filter(pa.array(mask))


def records_of_member(
    shape: RecordShape, grouping: Grouping, places: Sequence[int], member: Member, records: Sequence[pa.Table]
) -> pa.Table | None:
    """The records of one query by itself, as it would have them without others."""
    tables = _in_panes(shape, [during(record, member) for record in records])
    tables = [table.filter(pa.array(_members_of(table, [member])[:, 0])) for table in tables]
    tables = [own_records(shape.layout(table.schema), places, table) for table in tables if table.num_rows]
    return layout_of(grouping, tables[0].schema).combine(tables) if tables else None


def as_shared(shape: RecordShape, places: Sequence[int], member: Member, records: pa.Table) -> pa.Table:
    """The records of one query by itself as shared ones."""
    names = {f"s{place}.": f"s{own}." for own, place in enumerate(places)}
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    times = records.column(TS).to_numpy()
    columns[TS] = pa.array(times if member.from_us is None else np.maximum(times, member.from_us))
    columns[SET] = pa.array([set_of([member.selection])] * records.num_rows, pa.binary())
    columns |= {key_of_group(n).name: records.column(key_of_group(n).name) for n in range(len(shape.keys))}
    for place in sorted(names):
        for name in records.column_names:
            if name.startswith(names[place]):
                columns[place + name.removeprefix(names[place])] = records.column(name)
    return pa.table(columns)


def set_of(selections: Sequence[int]) -> bytes:
    """Some selections as a set.

    >>> set_of([0, 9])
    b'\\x01\\x02'
    """
    bits = sum(1 << number for number in set(selections))
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


def matrix_of(sets: Sequence[bytes], selections: Sequence[int]) -> Bools:
    """Which of some selections each set has: a row a set."""
    width = max((len(set_) for set_ in sets), default=0)
    width = max(width, max(selections, default=0) // 8 + 1)
    whole = np.frombuffer(b"".join(set_.ljust(width, b"\0") for set_ in sets), np.uint8).reshape(len(sets), width)
    found: Bools = np.unpackbits(whole, axis=1, bitorder="little")[:, list(selections)].astype(np.bool_)
    return found


def spread(members: Bools) -> Iterator[tuple[I64, I64]]:
    """Records repeated for each member that they count for, some at a time: the record and the member of each pair."""
    counts = members.sum(axis=1)
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + _MOST_PAIRS, side="right")), first + 1)
        rows, found = np.nonzero(members[first:last])
        if len(rows):
            yield rows + first, found
        first = last


def own_records(layout: Layout, places: Sequence[int], records: pa.Table) -> pa.Table:
    """Records with the aggregates of one query, in its own order, without their sets."""
    columns = {name: records.column(name) for name in layout.keys if name != SET}
    for own, place in enumerate(places):
        function, _ = layout.functions[place]
        columns |= {f"s{own}.{name}": records.column(layout.state_column(place, name)) for name in function.columns}
    return pa.table(columns)


def _members_of(records: pa.Table, members: Sequence[Member]) -> Bools:
    """Which members each record counts for."""
    coded = records.column(SET).combine_chunks().dictionary_encode()
    matrix = matrix_of(coded.dictionary.to_pylist(), [member.selection for member in members])
    found: Bools = matrix[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _in_panes(shape: RecordShape, records: Sequence[pa.Table]) -> list[pa.Table]:
    """Records at the first instants of their panes, wherever these were cut."""
    found = []
    for record in records:
        times = record.column(TS).to_numpy()
        panes = times // shape.pane_us * shape.pane_us
        found.append(
            record.set_column(record.column_names.index(TS), TS, pa.array(panes)) if (panes != times).any() else record
        )
    return found


def _groups(
    query: str, grouping: Grouping, places: Sequence[int], layout: Layout, records: pa.Table, members: Bools
) -> Iterator[pa.Table]:
    own_ones = own_records(layout, places, records)
    own = layout_of(grouping, own_ones.schema)
    windows, first_of_window = group_numbers(
        [own_ones.column(name).combine_chunks() for name in own.keys], len(members)
    )
    keys, states = own_ones.select(list(own.keys)), own_ones.drop_columns(list(own.keys))
    queries = members.shape[1]
    pieces = []
    for rows, whose in spread(members):
        pairs = windows[rows] * queries + whose
        groups, count = compressed(pairs, len(first_of_window) * queries)
        first = np.empty(count, np.int64)
        first[groups] = pairs
        found = keys.take(pa.array(first_of_window[first // queries]))
        found = found.append_column(MEMBER.name, pa.array(first % queries))
        for name, column in own.states(states.take(pa.array(rows)), groups, count).items():
            found = found.append_column(name, column)
        pieces.append(found)
    if pieces:
        by_member = replace(own, keys=(*own.keys, MEMBER.name))
        whole = by_member.combine(pieces) if len(pieces) > 1 else pieces[0]
        groups_of = group_columns(query, grouping, own, whole)
        yield groups_of.append_column(MEMBER.flat, whole.column(MEMBER.name))


def split_by_member(groups: pa.Table, name: str) -> Mapping[int, pa.Table]:
    """The rows of each member, without the column that says whose they are."""
    numbers = groups.column(name).to_numpy()
    order = np.argsort(numbers, kind="stable")
    rest = groups.drop_columns([name]).take(pa.array(order))
    different, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    return {
        int(number): rest.slice(start, end - start)
        for number, start, end in zip(different, starts.tolist(), ends, strict=True)
    }


def sets_in(records: pa.Table) -> list[bytes]:
    """The different sets of some records."""
    found: list[bytes] = pc.unique(records.column(SET)).to_pylist()
    return found
