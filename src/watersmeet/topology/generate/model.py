"""Streams to generate, as values: columns, where their values come from, and how fast rows come."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pyarrow as pa

ARROW_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
}
_ROLES = {
    "integer": ("tinyint", "smallint", "int", "bigint"),
    "floating": ("float", "double"),
    "string": ("string",),
    "boolean": ("boolean",),
    "time": ("timestamp", "timestamp_ntz", "date"),
}
ROLE = {sql_type: role for role, sql_types in _ROLES.items() for sql_type in sql_types}


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """The row number."""


@dataclass(frozen=True, slots=True)
class Time:
    """The event time."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each number in [low, high) as likely."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True)
class Zipf:
    """Ranks 0..count-1, the most frequent first."""

    exponent: float
    count: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Each of the values as likely."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """The same value in every row."""

    value: Any


@dataclass(frozen=True, slots=True)
class Pattern:
    """A number between two texts."""

    before: str
    after: str
    number: "Numbers"


Numbers = RowNumbers | Uniform | Zipf
Values = Numbers | Time | Choice | ConstantValue | Pattern


@dataclass(frozen=True, slots=True)
class GeneratedColumn:
    """A column of the schema and where its values come from."""

    name: str
    type: str
    values: Values
    nullable: bool = True
    null_share: float = 0.0

    @property
    def arrow_field(self) -> pa.Field:
        return pa.field(self.name, ARROW_TYPES[self.type], nullable=self.nullable)


@dataclass(frozen=True, slots=True)
class Rush:
    """From some instant on, given by its first row, more rows come."""

    after_us: int
    first_row: int
    factor: int


@dataclass(frozen=True, slots=True)
class Spec:
    """A stream to generate: what its rows are, and how fast they come."""

    columns: tuple[GeneratedColumn, ...]
    rows_per_second: Fraction
    rows_per_batch: int
    start_us: int
    disorder_us: int
    seed: int
    partitions: int
    rows: int | None
    """How many rows there are; None: the stream never ends."""
    pace: Fraction | None
    """Wall-clock speed as a multiple of event time; None: as fast as the rows are taken."""
    rush: "Rush | None" = None

    @property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([column.arrow_field for column in self.columns])

    def available(self, restart: int, elapsed_s: float) -> int | None:
        """The row number reached when `elapsed_s` of wall clock have passed since a (re)start at row `restart`, or
        None for no bound; it depends on nothing that happened in between, so that a late reader catches up."""
        if self.pace is None:
            return self.rows
        if self.rush is None:
            reached = restart + int(elapsed_s * float(self.rows_per_second * self.pace))
        else:
            reached = self._row_at(self._second_of(restart) + elapsed_s * float(self.pace))
        return reached if self.rows is None else min(reached, self.rows)

    def _second_of(self, row: int) -> float:
        early = min(row, self.rush.first_row) if self.rush is not None else row
        faster = float(self.rows_per_second) * (self.rush.factor if self.rush is not None else 1)
        return early / float(self.rows_per_second) + (row - early) / faster

    def _row_at(self, second: float) -> int:
        rate, rush = float(self.rows_per_second), self.rush
        if rush is None or second < rush.after_us / 1e6:
            return int(second * rate)
        return rush.first_row + int((second - rush.after_us / 1e6) * rate * rush.factor)

    def splits(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Rows [lo, hi) in at most `partitions` ranges, none of them empty."""
        count = max(min(self.partitions, hi - lo), 0)
        bounds = [lo + (hi - lo) * part // count for part in range(count + 1)] if count else []
        return list(pairwise(bounds))
