"""Queries and tuples as the arrays that RJoin's inner loops read.

An attribute is a column of a stream, a class is a set of attributes that a query makes equal, a slot is an attribute at
which a query can wait. Values are known by codes: equal values have equal codes, and NULL has none.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.errors import InputError
from watersmeet.program.rjoin.arrays import (
    CLASSES,
    COUNT,
    FOREVER,
    FREE,
    MASK,
    NONE,
    QUERY,
    RANGE,
    TUMBLE,
    UNBOUND,
    WAITS,
    Ints,
    Queries,
    Tuples,
)
from watersmeet.query.classes import equal_sides
from watersmeet.query.model import Column, Expression, JoinQuery
from watersmeet.query.substitute import constant_of
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded

# Says which rows of a stream, seen as an alias, satisfy all predicates; without an alias columns have flat names.
Judge = Callable[[str, Sequence[Expression], pa.Table], NDArray[np.bool_]]


class ValueCodes:
    """Codes of values, from 1 on; equal values of different types have one code."""

    def __init__(self) -> None:
        self._code_of: dict[Hashable, int] = {}
        self.values: list[Any] = [None]

    def code(self, value: Any) -> int:
        """The code of a value, a new one if need be; 0 for NULL."""
        if value is None:
            return 0
        if isinstance(value, float) and math.isnan(value):
            value = "NaN"  # as Spark has it, NaN equals itself
        code = self._code_of.setdefault(value, len(self.values))
        if code == len(self.values):
            self.values.append(value)
        return code

    def codes(self, column: pa.ChunkedArray) -> Ints:
        """The codes of a column."""
        coded = column.combine_chunks().dictionary_encode()
        of_entry = np.array([self.code(value) for value in coded.dictionary.to_pylist()] + [0], np.int32)
        indices = coded.indices.fill_null(len(of_entry) - 1).to_numpy(zero_copy_only=False)
        codes: Ints = of_entry[indices.astype(np.int64)]
        return codes


@dataclass(frozen=True, slots=True)
class Slot:
    """An attribute at which a query can wait."""

    alias: int
    column: int
    attribute: int
    number: int  # of its class


@dataclass(frozen=True, slots=True)
class SlotShape:
    """A query as its slots and classes; a class with a constant has its value from the start."""

    streams: tuple[int, ...]
    slots: tuple[Slot, ...]
    masks: tuple[int, ...]  # the aliases of each class
    constants: tuple[Any, ...]  # of each class, or None
    filters: tuple[tuple[Expression, ...], ...]  # of each alias
    residuals: tuple[Expression, ...]  # what only a complete row shows


class Catalog:
    """The streams everybody knows: their columns, and the number of each attribute."""

    def __init__(self, schemas: Mapping[str, pa.Schema], event_times: Mapping[str, str]) -> None:
        self.schemas, self.event_times = dict(schemas), dict(event_times)
        self.streams = tuple(sorted(schemas))
        self._indexed = {
            stream: [
                value.name
                for value in schema
                if value.name != event_times[stream] and not pa.types.is_nested(value.type)
            ]
            for stream, schema in schemas.items()
        }
        for stream, names in self._indexed.items():
            if not names:
                raise InputError(
                    f"stream {stream!r} has no column under which its tuples can be found: it needs one that can be "
                    "compared, besides its event time"
                )
        self.first_attribute: list[int] = []
        self.attributes: list[tuple[str, str]] = []
        for stream in self.streams:
            self.first_attribute.append(len(self.attributes))
            self.attributes += [(stream, name) for name in self.indexed(stream)]

    def indexed(self, stream: str) -> list[str]:
        """The columns under which tuples can be found: all but the event time, and those that cannot be compared."""
        return self._indexed[stream]

    def shape(self, query: JoinQuery) -> SlotShape:
        """Where a query can wait and what makes its attributes equal."""
        aliases = {source.alias: number for number, source in enumerate(query.sources)}
        stream_of = {source.alias: source.stream for source in query.sources}
        groups = [
            [side.columns[0] for side in group if side.is_plain and self._is_indexed(stream_of, side.columns[0])]
            for group in equal_sides(query)
        ]
        constants = [self._constant(query, stream_of, group) for group in groups]
        for column, value in self._constants(query, stream_of).items():
            if not any(column in group for group in groups):
                groups.append([column])
                constants.append(value)
        class_of = {column: number for number, group in enumerate(groups) for column in group}
        ordered = dict.fromkeys(
            side.columns[0] for e in query.equalities for side in (e.left, e.right) if side.is_plain
        )
        columns = [column for column in (*ordered, *class_of) if column in class_of]
        for source in query.sources:
            if not any(column.alias == source.alias for column in columns):
                columns.append(Column(source.alias, self.indexed(source.stream)[0]))
        slots = []
        for column in dict.fromkeys(columns):
            place = self.indexed(stream_of[column.alias]).index(column.name)
            first = self.first_attribute[self.streams.index(stream_of[column.alias])]
            slots.append(Slot(aliases[column.alias], place, first + place, class_of.get(column, NONE)))
        expressed = [
            Expression(f"({e.left.sql}) = ({e.right.sql})", tuple(sorted({*e.left.columns, *e.right.columns})))
            for e in query.equalities
            if not all(side.is_plain and side.columns[0] in class_of for side in (e.left, e.right))
        ]
        return SlotShape(
            streams=tuple(self.streams.index(source.stream) for source in query.sources),
            slots=tuple(slots),
            masks=tuple(sum(1 << alias for alias in {aliases[c.alias] for c in group}) for group in groups),
            constants=tuple(constants),
            filters=tuple(tuple(f for f in query.filters if f.aliases == (source.alias,)) for source in query.sources),
            residuals=(*expressed, *query.residuals),
        )

    def _is_indexed(self, stream_of: Mapping[str, str], column: Column) -> bool:
        return column.name in self.indexed(stream_of[column.alias])

    def _constants(self, query: JoinQuery, stream_of: Mapping[str, str]) -> dict[Column, Any]:
        found: dict[Column, Any] = {}
        for predicate in query.filters:
            constant = constant_of(predicate)
            if constant is None or not self._is_indexed(stream_of, constant[0]):
                continue
            kind = self.schemas[stream_of[constant[0].alias]].field(constant[0].name).type
            fits = pa.types.is_integer(kind) if isinstance(constant[1], int) else pa.types.is_string(kind)
            if fits:
                found.setdefault(*constant)
        return found

    def _constant(self, query: JoinQuery, stream_of: Mapping[str, str], group: Sequence[Column]) -> Any:
        constants = self._constants(query, stream_of)
        return next((constants[column] for column in group if column in constants), None)


def reach_us(query: JoinQuery) -> int:
    """How long a tuple can matter to a query."""
    windows = [source.window for source in query.sources]
    bounded = [window.window_us for window in windows if isinstance(window, Range | Tumble)]
    return max(bounded) if len(bounded) == len(windows) else int(FOREVER)


def needs_pairs(query: JoinQuery, shape: SlotShape) -> bool:
    """Whether tuples held at the attribute level matter to more than an input query that is late.

    They do if a ROWS window has to be seen to, or if an alias shares no attribute with those bound before it.
    """
    if any(isinstance(source.window, Rows) for source in query.sources):
        return True
    reached, before = 1, 0
    while reached != before:
        before = reached
        for mask in shape.masks:
            reached |= mask if mask & reached else 0
    return reached != (1 << len(shape.streams)) - 1


@dataclass(frozen=True, slots=True)
class Widths:
    """How wide the arrays of queries are."""

    aliases: int
    slots: int
    classes: int

    @classmethod
    def of(cls, shapes: Sequence[SlotShape]) -> "Widths":
        """As wide as the widest."""
        return cls(
            max((len(shape.streams) for shape in shapes), default=1),
            max((len(shape.slots) for shape in shapes), default=1),
            max((len(shape.masks) for shape in shapes), default=0),
        )


def grown(array: NDArray[Any], length: int, fill: int = 0) -> NDArray[Any]:
    """An array with the same beginning and at least so long."""
    if length <= len(array):
        return array
    more = np.full((max(length, 2 * len(array)), *array.shape[1:]), fill, array.dtype)
    more[: len(array)] = array
    return more


@dataclass
class Known:
    """Queries and tuples under their numbers. What messages carry is found here by whoever has got the message."""

    catalog: Catalog
    widths: Widths
    judge: Judge
    values: ValueCodes = field(default_factory=ValueCodes)
    queries: list[JoinQuery] = field(default_factory=list)
    shapes: list[SlotShape] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)  # tuples as they came
    place: list[tuple[int, int]] = field(default_factory=list)  # of each tuple: table and row

    def __post_init__(self) -> None:
        k, s, c = self.widths.aliases, self.widths.slots, max(1, self.widths.classes)
        self._queries = Queries(
            stream=np.full((16, k), NONE, np.int32),
            aliases=np.zeros(16, np.int32),
            slots=np.zeros(16, np.int32),
            slot_alias=np.full((16, s), NONE, np.int32),
            slot_column=np.full((16, s), NONE, np.int32),
            slot_attribute=np.full((16, s), NONE, np.int32),
            slot_class=np.full((16, s), NONE, np.int32),
            class_mask=np.full((16, c), NONE, np.int32),
            window=np.full((16, k), FREE, np.int32),
            window_us=np.zeros((16, k), np.int64),
            start_us=np.zeros(16, np.int64),
            until_us=np.full(16, FOREVER, np.int64),
            filter=np.full((16, k), NONE, np.int32),
            home=np.zeros(16, np.int32),
            shown=np.full((16, k), NONE, np.int64),
        )
        width = max(len(self.catalog.indexed(stream)) for stream in self.catalog.streams)
        self._tuples = Tuples(
            stream=np.zeros(16, np.int32),
            ts_us=np.zeros(16, np.int64),
            value=np.zeros((16, width), np.int32),
            passes=np.zeros((16, 1), np.bool_),
        )
        self._filters: dict[tuple[int, str, tuple[Expression, ...]], int] = {}

    @property
    def query_arrays(self) -> Queries:
        return self._queries

    @property
    def tuple_arrays(self) -> Tuples:
        return self._tuples

    def add_query(self, query: JoinQuery, home: int, start_us: int, until_us: int | None = None) -> int:
        """Give a query its number."""
        shape, number = self.catalog.shape(query), len(self.queries)
        wide = self.widths
        if len(shape.streams) > wide.aliases or len(shape.slots) > wide.slots or len(shape.masks) > wide.classes:
            raise InputError(f"query {number} is wider than the widths its network was made for ({wide})")
        self.queries.append(query)
        self.shapes.append(shape)
        self._queries = arrays = Queries(*(grown(array, number + 1) for array in self._queries))
        arrays.stream[number, : len(shape.streams)] = shape.streams
        arrays.aliases[number], arrays.slots[number] = len(shape.streams), len(shape.slots)
        for place, slot in enumerate(shape.slots):
            arrays.slot_alias[number, place] = slot.alias
            arrays.slot_column[number, place] = slot.column
            arrays.slot_attribute[number, place] = slot.attribute
            arrays.slot_class[number, place] = slot.number
        arrays.class_mask[number] = NONE
        arrays.class_mask[number, : len(shape.masks)] = shape.masks
        arrays.window[number] = FREE
        arrays.filter[number] = NONE
        for alias, source in enumerate(query.sources):
            match source.window:
                case Range(length_us):
                    arrays.window[number, alias], arrays.window_us[number, alias] = RANGE, length_us
                case Tumble(length_us):
                    arrays.window[number, alias], arrays.window_us[number, alias] = TUMBLE, length_us
                case Rows() | Unbounded():
                    pass
            if shape.filters[alias]:
                arrays.filter[number, alias] = self._filter(shape.streams[alias], source.alias, shape.filters[alias])
        arrays.start_us[number] = start_us
        arrays.until_us[number] = FOREVER if until_us is None else until_us
        arrays.home[number] = home
        arrays.shown[number] = NONE
        shown = self._shown(query, shape)
        if shown is not None:
            arrays.shown[number, : len(shown)] = shown
        return number

    def _shown(self, query: JoinQuery, shape: SlotShape) -> list[int] | None:
        """The columns of each alias that make DISTINCT answers differ, as bits; None if rows must be told apart."""
        if not query.distinct or not all(isinstance(source.window, Unbounded) for source in query.sources):
            return None
        asked = {column for item in query.select for column in item.expression.columns}
        asked |= {column for residual in shape.residuals for column in residual.columns}
        bits = []
        for source in query.sources:
            indexed = self.catalog.indexed(source.stream)
            own = [column.name for column in asked if column.alias == source.alias]
            if len(indexed) > 62 or not set(own) <= set(indexed):
                return None
            bits.append(sum(1 << indexed.index(name) for name in own))
        return bits

    def first_row(self, number: int, width: int) -> Ints:
        """An input query as a row: nothing is bound but constants."""
        shape = self.shapes[number]
        row = np.full(width, UNBOUND, np.int32)
        row[[QUERY, COUNT, MASK, WAITS]] = number, 1, 0, NONE
        row[CLASSES : CLASSES + max(1, self.widths.classes)] = UNBOUND
        for place, constant in enumerate(shape.constants):
            if constant is not None:
                row[CLASSES + place] = self.values.code(constant)
        return row

    def add_tuples(self, stream: str, rows: pa.Table, ts_us: NDArray[np.int64]) -> Ints:
        """Give tuples their numbers."""
        first, count = len(self.place), rows.num_rows
        number = self.catalog.streams.index(stream)
        self.place += [(len(self.tables), row) for row in range(count)]
        self.tables.append(rows)
        self._tuples = arrays = Tuples(*(grown(array, first + count) for array in self._tuples))
        arrays.stream[first : first + count] = number
        arrays.ts_us[first : first + count] = ts_us
        for place, name in enumerate(self.catalog.indexed(stream)):
            arrays.value[first : first + count, place] = self.values.codes(rows.column(name))
        for (of_stream, alias, predicates), place in self._filters.items():
            if of_stream == number:
                arrays.passes[first : first + count, place] = self.judge(alias, predicates, rows)
        return np.arange(first, first + count, dtype=np.int32)

    def key_name(self, packed: int) -> str:
        """What is hashed to find a key's node: relation, attribute, and value if it has one."""
        stream, column = self.catalog.attributes[packed >> 32]
        value = packed & 0xFFFFFFFF
        return f"{stream}+{column}" + (f"+{self.values.values[value]!r}" if value else "")

    def rows_of(self, tuples: Ints) -> pa.Table:
        """Tuples of one stream as they came."""
        return pa.concat_tables(
            [self.tables[table].slice(row, 1) for table, row in (self.place[value] for value in tuples.tolist())]
        )

    def _filter(self, stream: int, alias: str, predicates: tuple[Expression, ...]) -> int:
        if (stream, alias, predicates) in self._filters:
            return self._filters[stream, alias, predicates]
        place = self._filters[stream, alias, predicates] = len(self._filters)
        passes = self._tuples.passes
        if place >= passes.shape[1]:
            wider = np.zeros((len(passes), 2 * passes.shape[1]), np.bool_)
            wider[:, : passes.shape[1]] = passes
            self._tuples = self._tuples._replace(passes=wider)
        first = 0
        for table in self.tables:
            if table.num_rows and self._tuples.stream[first] == stream:
                self._tuples.passes[first : first + table.num_rows, place] = self.judge(alias, predicates, table)
            first += table.num_rows
        return place


def table_of(known: Known, rows: Ints, number: int) -> pa.Table:
    """Complete rows of one query as a table of flat columns."""
    first = CLASSES + max(1, known.widths.classes)
    columns: dict[str, Any] = {}
    for alias, source in enumerate(known.queries[number].sources):
        taken = known.rows_of(rows[:, first + alias])
        columns |= {f"{source.alias}.{name}": taken.column(name) for name in taken.column_names}
    return pa.table(columns)
