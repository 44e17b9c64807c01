"""What the rows of a stream are like, in small state: sketching parts and merging gives what sketching all does."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.stats.columns import I64, ColumnSketch, confidence_of, numbers_of
from watersmeet.stats.model import BATCH_ROWS, Number, Origin, StreamStats
from watersmeet.stats.packed_sizes import Sizes

_FINEST_US = 100_000
INTERVALS = tuple(step * 10**power for power in range(5) for step in (1, 2, 5))  # whose rows are told of, in 0.1 s


class StreamSketch:
    """The rows of one stream: how many and when, their columns, their sizes, and how many pass some predicates."""

    def __init__(self) -> None:
        self.rows = 0
        self.sketched = 0  # rows whose values were taken
        self.batches = 0  # in which the rows came, such as files; 0 if nobody knows
        self._first, self._last = 2**63 - 1, -(2**63)
        self._intervals = np.zeros(len(INTERVALS), np.int64)  # of each length, those with rows
        self._columns: dict[str, ColumnSketch] = {}
        self._sizes: dict[str, Sizes] = {}
        self._in_order: dict[str, Sizes] = {}
        self._row_sizes = Sizes()
        self._passed: dict[str, tuple[int, int]] = {}  # by predicate: rows that passed, rows that were asked

    def count(self, ts: I64) -> None:
        """Take rows of these event times into account, in microseconds."""
        if len(ts):
            self.rows += len(ts)
            self._first, self._last = min(self._first, int(ts.min())), max(self._last, int(ts.max()))
            finest = ts // _FINEST_US
            finest = np.unique(finest[np.flatnonzero(np.diff(finest, prepend=finest[0] - 1))])  # runs, mostly in order
            self._intervals += [len(np.unique(finest // length)) for length in INTERVALS]

    def passed(self, predicate: str, rows: int, asked: int) -> None:
        """So many of the rows that were asked satisfy a predicate."""
        before = self._passed.get(predicate, (0, 0))
        self._passed[predicate] = before[0] + rows, before[1] + asked

    def arrived_in(self, batches: int) -> None:
        """All rows so far came in so many batches, such as files."""
        self.batches = batches

    def add(self, table: pa.Table) -> None:
        """Take the values of some rows."""
        self.sketched += table.num_rows
        for name in table.column_names:
            self.add_numbers(name, *numbers_of(table.column(name)))

    def add_numbers(self, name: str, numbers: I64, exact: bool) -> None:
        """Take values of one column that are numbers already."""
        self._columns.setdefault(name, ColumnSketch(exact=exact)).add(numbers)

    def measure(self, table: pa.Table, slices: int = 5) -> None:
        """Measure what some rows and each of their columns take on a link."""
        self._row_sizes.measure(table, slices)
        for name in table.column_names:
            self._sizes.setdefault(name, Sizes()).measure(table.select([name]), slices, mixed_up=True)
            self._in_order.setdefault(name, Sizes()).measure(table.select([name]), slices)

    def drifted_from(self, before: "StreamSketch") -> bool:
        """Whether values of a column are popular in another way than before."""
        return any(
            column.drifted_from(before._columns[name])
            for name, column in self._columns.items()
            if name in before._columns
        )

    @property
    def has_sizes(self) -> bool:
        """Whether it was measured what rows take on a link."""
        return self._row_sizes.each is not None

    def with_sizes_of(self, other: "StreamSketch") -> "StreamSketch":
        """The same rows, of which is known what they take on a link by others."""
        made, sizes = self.copy(), other.copy()
        made._sizes, made._in_order, made._row_sizes = sizes._sizes, sizes._in_order, sizes._row_sizes
        return made

    def copy(self) -> "StreamSketch":
        """Another one that has taken the same."""
        made = copy.copy(self)
        made._intervals = self._intervals.copy()
        made._columns = {name: column.copy() for name, column in self._columns.items()}
        made._sizes = {name: size.copy() for name, size in self._sizes.items()}
        made._in_order = {name: sizes.copy() for name, sizes in self._in_order.items()}
        made._row_sizes = self._row_sizes.copy()
        made._passed = dict(self._passed)
        return made

    def merge(self, other: "StreamSketch") -> None:
        """Take all that another sketch has taken."""
        self.rows += other.rows
        self.sketched += other.sketched
        self._first, self._last = min(self._first, other._first), max(self._last, other._last)
        self._intervals += other._intervals
        for name, column in other._columns.items():
            self._columns.setdefault(name, ColumnSketch(exact=column.exact)).merge(column)
        for own, others in ((self._sizes, other._sizes), (self._in_order, other._in_order)):
            for name, sizes in others.items():
                own.setdefault(name, Sizes()).merge(sizes)
        self._row_sizes.merge(other._row_sizes)
        for predicate, (rows, asked) in other._passed.items():
            self.passed(predicate, rows, asked)

    def stats(self, origin: Origin, taken_at: float | None = None, seen: float = 0.0) -> StreamStats:
        """The figures of the stream; `seen` is the share of all its rows that was read, 0 if nobody knows."""
        span_s = (self._last - self._first) / 1e6
        rate = row_bytes = interval = None
        if self.rows > 1 and span_s > 0 and self.batches:
            each_s = float(f"{span_s / self.batches:.4g}")
            interval = Number(each_s, origin, confidence_of(self.batches, seen), taken_at)
        if self.rows > 1 and span_s > 0:
            rate = Number(float(f"{(self.rows - 1) / span_s:.6g}"), origin, confidence_of(self.rows, seen), taken_at)
        whole = self._row_sizes.each
        if whole is not None:
            row_bytes = Number(
                whole[BATCH_ROWS.index(1_000)], origin, confidence_of(self._row_sizes.rows, seen), taken_at
            )
        values_seen = seen * self.sketched / self.rows if self.rows else 0.0
        columns = {
            name: replace(
                (self._columns.get(name) or ColumnSketch(exact=False)).stats(origin, taken_at, values_seen),
                sizes=self._sizes[name].each if name in self._sizes else None,
                in_order=self._in_order[name].each if name in self._in_order else None,
                nulls=self._nulls(name),
            )
            for name in (*self._columns, *(name for name in self._sizes if name not in self._columns))
        }
        return StreamStats(rate, row_bytes, columns, interval, busy=self._busy())

    def _nulls(self, name: str) -> float | None:
        """The share of rows without a value of a column, if there are any."""
        if name not in self._columns or not self.sketched:
            return None
        return round(max(1 - self._columns[name].rows / self.sketched, 0.0), 6) or None

    def _busy(self) -> dict[float, float]:
        """The share of intervals with rows, by their length in seconds; one that several parts have counts for each."""
        found = {}
        for length, many in zip(INTERVALS, self._intervals.tolist(), strict=True):
            length_us = length * _FINEST_US
            if many and 2 * length_us < self._last - self._first:
                found[length_us / 1e6] = round(
                    min(1.0, many / (self._last // length_us - self._first // length_us + 1)), 6
                )
        return found

    def selectivities(self, origin: Origin, taken_at: float | None = None, seen: float = 0.0) -> dict[str, Number]:
        """The share of rows that pass each predicate."""
        return {
            predicate: Number(rows / asked, origin, confidence_of(asked, seen), taken_at)
            for predicate, (rows, asked) in self._passed.items()
            if asked
        }

    def to_data(self) -> dict[str, Any]:
        """The sketch as values for JSON."""
        return {
            "rows": self.rows,
            "sketched": self.sketched,
            "first": self._first,
            "last": self._last,
            "intervals": self._intervals.tolist(),
            "columns": {name: column.to_data() for name, column in self._columns.items()},
            "sizes": {name: sizes.to_data() for name, sizes in self._sizes.items()},
            "in_order": {name: sizes.to_data() for name, sizes in self._in_order.items()},
            "row_sizes": self._row_sizes.to_data(),
            "passed": self._passed,
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "StreamSketch":
        """The sketch that `to_data` was called on."""
        made = StreamSketch()
        made.rows, made.sketched = data["rows"], data["sketched"]
        made._first, made._last = data["first"], data["last"]
        made._intervals = np.array(data.get("intervals", [0] * len(INTERVALS)), np.int64)
        made._columns = {name: ColumnSketch.from_data(value) for name, value in data["columns"].items()}
        made._sizes = {name: Sizes(value) for name, value in data["sizes"].items()}
        made._in_order = {name: Sizes(value) for name, value in data["in_order"].items()}
        made._row_sizes = Sizes(data["row_sizes"])
        made._passed = {predicate: (rows, asked) for predicate, (rows, asked) in data["passed"].items()}
        return made
