"""Tables of partial state records: a row for each group, with its keys and the states of all aggregates.

add      rows to be grouped become records
combine  records of any tables become one for each group
results  what the aggregates of each record come to
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from watersmeet.program.aggregate.functions import Function, Rule
from watersmeet.program.aggregate.kernels import I64

_LEAST_SPARSE = 1_024  # numbers of possible groups up to which a table of them is always small


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of records: keys by name, and for each aggregate its function and the column of its values."""

    keys: tuple[str, ...]
    functions: tuple[tuple[Function, str | None], ...]
    keeps_ends: bool = False  # whether the end of a record may not be known yet, so that none can be taken away early

    def state_column(self, number: int, name: str) -> str:
        """The name of a column of an aggregate's state."""
        return f"s{number}.{name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of records."""
        states = (
            self.state_column(number, name)
            for number, (function, _) in enumerate(self.functions)
            for name in function.columns
        )
        return (*self.keys, *states)

    def add(self, rows: pa.Table) -> pa.Table:
        """The records of rows that have the keys and the values of all aggregates."""
        columns: dict[str, pa.Array] = {name: _one(rows.column(name)) for name in self.keys}
        for number, (function, argument) in enumerate(self.functions):
            values = None if argument is None else _one(rows.column(argument))
            for name, column in function.lift(values, rows.num_rows).items():
                columns[self.state_column(number, name)] = column
        return self.combine([pa.table(columns)])

    def combine(self, records: Sequence[pa.Table]) -> pa.Table:
        """One record for each group of all the records, in the order in which groups are first met."""
        table = pa.concat_tables(records).select(list(self.columns))
        if not table.num_rows:
            return table
        groups, first = group_numbers([_one(table.column(name)) for name in self.keys], table.num_rows)
        columns = {name: _one(table.column(name)).take(pa.array(first)) for name in self.keys}
        return pa.table(columns | self.states(table, groups, len(first)))

    def states(self, records: pa.Table, groups: I64, count: int) -> dict[str, pa.Array]:
        """The states of groups, of which each record has the number of its own."""
        columns = {}
        for number, (function, _) in enumerate(self.functions):
            state = {name: _one(records.column(self.state_column(number, name))) for name in function.columns}
            for name, column in function.combine(state, groups, count).items():
                columns[self.state_column(number, name)] = column
        return columns

    @property
    def is_negatable(self) -> bool:
        """Whether every state has another that takes it away again, exactly."""
        rules = {rule for function, _ in self.functions for rule in function.rules.values()}
        return not self.keeps_ends and rules <= {Rule.SUM, Rule.DECIMAL}

    def negated(self, records: pa.Table) -> pa.Table:
        """The records that take others away again when they are combined with them."""
        for name in self.columns[len(self.keys) :]:
            place = records.column_names.index(name)
            records = records.set_column(place, name, pc.negate(records.column(name)))
        return records

    def are_zero(self, records: pa.Table) -> npt.NDArray[np.bool_]:
        """Which records change nothing when they are combined with others."""
        zero = np.ones(records.num_rows, bool)
        for name in self.columns[len(self.keys) :]:
            values = records.column(name)
            is_zero = pc.equal(values, pa.scalar(0, pa.int64()).cast(values.type))
            zero &= pc.fill_null(is_zero, True).to_numpy()
        return zero

    def results(self, records: pa.Table) -> list[pa.Array]:
        """The value of every aggregate for each record."""
        made = []
        for number, (function, _) in enumerate(self.functions):
            state = {name: _one(records.column(self.state_column(number, name))) for name in function.columns}
            made.append(function.result(state))
        return made


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def group_numbers(keys: Sequence[pa.Array], rows: int) -> tuple[I64, I64]:
    """The number of each row's group, and the first row of each group; NULL equals NULL, and 0.0 equals -0.0."""
    numbers, count = np.zeros(rows, np.int64), 1
    for key in keys:
        if kinds.is_floating(key.type):
            key = pc.add(key, pa.scalar(0.0, key.type))
        coded = key.dictionary_encode(null_encoding="encode")
        codes, size = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(len(coded.dictionary), 1)
        numbers, count = (codes, size) if count == 1 else compressed(numbers * size + codes, count * size)
    if len(keys) != 1:
        numbers, count = compressed(numbers, count)
    first = np.full(count, rows, np.int64)
    np.minimum.at(first, numbers, np.arange(rows))
    order = np.argsort(first, kind="stable")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return place[numbers], first[order]


def compressed(numbers: I64, possible: int) -> tuple[I64, int]:
    """The same groups numbered without gaps."""
    if possible <= max(4 * len(numbers), _LEAST_SPARSE):
        used = np.zeros(possible, bool)
        used[numbers] = True
        place = np.cumsum(used) - 1
        return place[numbers], int(place[-1]) + 1
    values, found = np.unique(numbers, return_inverse=True)
    return found.astype(np.int64), len(values)
