"""Statistics from rows in small, mergeable state: sketching parts and merging gives what sketching all at once does.

Of every column: a HyperLogLog for how many different values there are, the frequent items, and a sample of the values
(not of the rows) with exact counts: the values of lowest hash. A value that is among the lowest of all was so from the
start, which makes its count exact; and until the sample is full it is the whole column. How the values spread over
ranges comes from it. A KLL sketch would do for ranges too, but it tosses coins: runs could not be repeated by seed.
"""

import base64
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import datasketches as sketching
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.wire import COLUMN_BYTES
from watersmeet.stats.model import BATCH_ROWS, Bin, BytesByBatch, ColumnStats, Histogram, Number, Origin, StreamStats

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

EXACT_VALUES = 2_000  # up to so many different values, each has a bin of its own
HEAVY_SHARE = 0.005  # a value of so large a share of the rows has a bin of its own always
RANGES = 64  # bins for all the others
_HEAVY_ROWS = 10  # fewer rows than that are chance
_COVERED = 0.9  # from this coverage on, the values seen are taken to be all of them
_TELLING = 10  # so many values seen twice tell of those not seen yet
_SAMPLED_VALUES = 2_048
_MIXED_ROWS = 1_000  # rows that are mixed up with each other, like in a window
_SINGLE_ROWS = 10  # so many rows are measured one by one
_FINEST_US = 100_000
INTERVALS = tuple(step * 10**power for power in range(5) for step in (1, 2, 5))  # whose rows are told of, in 0.1 s
_DRIFT_ROWS = 30  # fewer say nothing about a change
_DRIFT_ERRORS = 4.0  # standard errors that chance may explain
_DRIFT_SHARE = 0.05  # of the rows, beyond that
_DRIFT_PAIRS = 0.5  # of the expected pairs, beyond that
_LOG_REGISTERS = 12  # of the HyperLogLog: a standard error of 1.6 %
_LOG_ITEMS = 11  # of the frequent items: counts are off by 0.17 % of the rows at most
_DISTINCT_ERROR = 1.04 / sqrt(2**_LOG_REGISTERS)


def numbers_of(values: pa.ChunkedArray | pa.Array) -> tuple[I64, bool]:
    """Values that are not NULL as 64-bit numbers, and whether those are the values themselves rather than hashes.

    >>> numbers_of(pa.array([True, None, False]))
    (array([1, 0]), True)
    """
    values = pc.drop_null(values)
    kind = values.type
    if pa.types.is_timestamp(kind):
        zone = pa.timestamp("us", kind.tz)
        return _as_numpy(pc.cast(pc.cast(values, zone, safe=False), pa.int64())), True
    if pa.types.is_date32(kind):
        return _as_numpy(pc.cast(pc.cast(values, pa.int32()), pa.int64())), True
    if pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind):
        return _as_numpy(pc.cast(values, pa.int64())), True
    try:
        texts = pc.cast(values, pa.large_string()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError):
        texts = np.array([str(value) for value in values.to_pylist()], object)
    from pandas.util import hash_array  # takes long to load, and many tasks never come here

    hashed: U64 = hash_array(np.asarray(texts, object), categorize=False)
    return hashed.view(np.int64), False


def key_numbers(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """`numbers_of` with NULL where a value is.

    >>> key_numbers(pa.array([True, None, False])).to_pylist()
    [1, None, 0]
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    numbers = np.zeros(len(values), np.int64)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    numbers[valid] = numbers_of(values)[0]
    return pa.array(numbers, mask=~valid)


def _as_numpy(values: pa.ChunkedArray | pa.Array) -> I64:
    return np.asarray(values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy())


def _spread(values: I64) -> U64:
    """A hash of each value, one to one (the finaliser of SplitMix64)."""
    mixed = values.view(np.uint64)
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class ColumnSketch:
    """The values of one column."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact  # whether the numbers are the values, so that ranges mean something
        self.rows = 0
        self._low, self._high = 2**63 - 1, -(2**63)
        # As bytes between calls: the library complains on standard error of sketches that live when Python ends. Both
        # are empty while the sample is the whole column: all that they would say follows from it.
        self._distinct = self._frequent = b""
        self._values = np.empty(0, np.int64)  # the sample, ascending
        self._counts = np.empty(0, np.int64)

    def add(self, numbers: I64) -> None:
        """Take some values."""
        if not len(numbers):
            return
        values, counts = np.unique(numbers, return_counts=True)
        self.rows += len(numbers)
        self._low, self._high = min(self._low, int(values[0])), max(self._high, int(values[-1]))
        self._count(values, counts)

    def copy(self) -> "ColumnSketch":
        """Another one that has taken the same; arrays are replaced, never changed."""
        return copy.copy(self)

    def merge(self, other: "ColumnSketch") -> None:
        """Take all that another sketch has taken."""
        self.exact &= other.exact
        self.rows += other.rows
        self._low, self._high = min(self._low, other._low), max(self._high, other._high)
        if other.is_whole:
            self._count(other._values, other._counts)
            return
        if self.is_whole:
            self._summarise(self._values, self._counts)
        self._take(other._values, other._counts)
        union = sketching.hll_union(_LOG_REGISTERS)
        for one in (self, other):
            union.update(one._hll())
        self._distinct = union.get_result(sketching.HLL_8).serialize_compact()
        frequent = self._items()
        frequent.merge(other._items())
        self._frequent = frequent.serialize(sketching.PyLongsSerDe())

    def _count(self, values: I64, counts: I64) -> None:
        """Take values with their counts; the sketches begin when the sample does not hold all of them any more."""
        before = (self._values, self._counts) if self.is_whole else None
        self._take(values, counts)
        if self.is_whole:
            return
        if before is not None:
            values, counts = (np.concatenate(pair) for pair in zip(before, (values, counts), strict=True))
        self._summarise(values, counts)

    def _summarise(self, values: I64, counts: I64) -> None:
        listed = values.tolist()
        distinct = self._hll()
        for value in listed:
            distinct.update(value)
        self._distinct = distinct.serialize_compact()
        if self.exact:
            frequent = self._items()
            for value, count in zip(listed, counts.tolist(), strict=True):
                frequent.update(value, count)
            self._frequent = frequent.serialize(sketching.PyLongsSerDe())

    def _hll(self) -> Any:
        if not self._distinct:
            return sketching.hll_sketch(_LOG_REGISTERS, sketching.HLL_8)
        return sketching.hll_sketch.deserialize(self._distinct)

    def _items(self) -> Any:
        if not self._frequent:
            return sketching.frequent_items_sketch(_LOG_ITEMS)
        return sketching.frequent_items_sketch.deserialize(self._frequent, sketching.PyLongsSerDe())

    def _take(self, values: I64, counts: I64) -> None:
        places = np.searchsorted(self._values, values)
        if len(self._values) and len(values) and np.array_equal(self._values.take(places, mode="clip"), values):
            self._counts = self._counts.copy()
            self._counts[places] += counts  # values are different from each other
            return
        all_values, where = np.unique(np.concatenate([self._values, values]), return_inverse=True)
        totals = np.zeros(len(all_values), np.int64)
        np.add.at(totals, where, np.concatenate([self._counts, counts]))
        if len(all_values) > _SAMPLED_VALUES:
            lowest = np.sort(np.argpartition(_spread(all_values), _SAMPLED_VALUES - 1)[:_SAMPLED_VALUES])
            all_values, totals = all_values[lowest], totals[lowest]
        self._values, self._counts = all_values, totals

    @property
    def is_whole(self) -> bool:
        """Whether the sample is the whole column."""
        return len(self._values) < _SAMPLED_VALUES

    @property
    def seen(self) -> float:
        """How many different values were seen."""
        if self.is_whole:
            return float(len(self._values))
        estimated = self._hll().get_estimate()
        return float(max(round(estimated), len(self._values)))

    @property
    def distinct(self) -> float:
        """How many different values there are, also those still to come (Chao): many seen once and few twice say more.

        Where hardly any value repeats, there is no telling, and it is the number seen.
        """
        if self._twice < _TELLING:
            return self.seen
        once = float(np.sum(self._counts == 1))
        return float(round(self.seen + once**2 / (2 * self._twice) * self.seen / len(self._values)))

    def _foretold(self, seen: float) -> float:
        """How many different values there are: as many as were seen if all rows were."""
        return self.seen if seen >= 1.0 else self.distinct

    @property
    def _twice(self) -> int:
        """How many values of the sample were seen exactly twice."""
        return int(np.sum(self._counts == 2))

    @property
    def coverage(self) -> float:
        """How likely the next row has a value that was seen before: all but the share of values seen once (Turing)."""
        if not self.rows:
            return 0.0
        once = float(np.mean(self._counts == 1)) * self.seen
        return min(max(1.0 - once / self.rows, 0.0), 1.0)

    @property
    def heavy(self) -> dict[int, float]:
        """The values of large shares, with their shares, ascending."""
        least = max(HEAVY_SHARE * self.rows, _HEAVY_ROWS)
        if self.is_whole:
            often = self._counts >= least
            shares = self._counts[often] / self.rows
            return dict(zip(self._values[often].tolist(), shares.tolist(), strict=True))
        items = self._items().get_frequent_items(sketching.NO_FALSE_POSITIVES)
        counted = sorted((value, (low + high) / 2) for value, _, low, high in items)
        return {value: count / self.rows for value, count in counted if count >= least}

    def drifted_from(self, before: "ColumnSketch") -> bool:
        """Whether the values of these rows, a few, are popular in another way than those of many rows before.

        Two counts tell it, each beside what chance allows: rows with values that were popular before, and pairs of rows
        with the same value.
        """
        if not (self.is_whole and self.rows >= _DRIFT_ROWS and before.rows >= _DRIFT_ROWS):
            return False
        heavy = before.heavy
        share = min(sum(heavy.values()), 1.0)
        is_heavy = np.isin(self._values, np.array(list(heavy), np.int64))
        expected = share * self.rows
        spread = sqrt(max(expected * (1 - share), 1.0) + 2 * (expected / before.rows) * self.rows)
        if abs(float(self._counts[is_heavy].sum()) - expected) > _DRIFT_ERRORS * spread + _DRIFT_SHARE * self.rows:
            return True
        pairs = float((self._counts * (self._counts - 1) / 2).sum())
        light = max(before.distinct - len(heavy), 1.0)
        chance = sum(one**2 for one in heavy.values()) + (1 - share) ** 2 / light
        expected = chance * self.rows * (self.rows - 1) / 2
        return abs(pairs - expected) > _DRIFT_ERRORS * sqrt(expected + 1) * 2 + _DRIFT_PAIRS * expected

    def bins(self, seen: float = 0.0) -> tuple[Bin, ...]:
        """How the rows spread over the values; `seen` is the share of all rows that was taken, 0 if nobody knows."""
        if not self.rows or not self.exact:
            return ()
        if self.is_whole and len(self._values) <= EXACT_VALUES and max(self.coverage, seen) >= _COVERED:
            pairs = zip(self._values.tolist(), self._counts.tolist(), strict=True)
            return tuple(Bin(value, value, 1.0, count / self.rows) for value, count in pairs)
        heavy = self.heavy
        bins = [Bin(value, value, 1.0, share) for value, share in heavy.items()]
        bins += self._ranges(list(heavy), max(1.0 - sum(heavy.values()), 0.0), self._foretold(seen))
        total = sum(one.share for one in bins)
        bins.sort(key=lambda one: one.low)
        return tuple(Bin(one.low, one.high, round(one.distinct, 1), round(one.share / total, 9)) for one in bins)

    def _ranges(self, heavy: Sequence[int], share: float, distinct: float) -> list[Bin]:
        """The values that are not heavy in ranges of about equally many rows, from the sample of them."""
        light = ~np.isin(self._values, np.array(heavy, np.int64))
        values, counts = self._values[light], self._counts[light]
        if not len(values):
            return []
        before = np.cumsum(counts) - counts
        cell = before * RANGES // counts.sum() + (RANGES + 1) * np.searchsorted(np.array(heavy, np.int64), values)
        starts = np.flatnonzero(np.diff(cell, prepend=-1)).tolist()
        ends = [*starts[1:], len(values)]
        distinct = max(distinct - len(heavy), float(len(values)))
        bins: list[Bin] = []
        for start, end in zip(starts, ends, strict=True):
            first, last = int(values[start]), int(values[end - 1])
            low = max([self._low, *(one + 1 for one in heavy if one < first), *(one.high + 1 for one in bins[-1:])])
            following = [int(values[end]) - 1] if end < len(values) else [self._high]
            high = min([*following, *(one - 1 for one in heavy if one > last)])
            different = distinct * (end - start) / len(values)
            part = share * float(counts[start:end].sum() / counts.sum())
            bins.append(Bin(low, high, min(different, float(high - low + 1)), part))
        return bins

    def stats(self, origin: Origin, taken_at: float | None, seen: float) -> ColumnStats:
        """The figures; `seen` is the share of all rows that was taken, 0 if nobody knows."""
        if not self.rows:
            return ColumnStats()
        covered = max(self.coverage, seen)
        error = 0.0 if self.is_whole else _DISTINCT_ERROR
        foretold = max(covered, 1.0 - 1.0 / sqrt(self._twice) if self._twice >= _TELLING else 0.0)
        distinct = Number(self._foretold(seen), origin, _rounded(foretold * (1.0 - error)), taken_at)
        bins = self.bins(seen)
        if not bins:
            return ColumnStats(distinct)
        if len(bins) == len(self._values):
            return ColumnStats(distinct, Histogram(bins, origin, _rounded(covered), taken_at))
        sampling = 1.0 - 1.0 / sqrt(max(len(self._values) / RANGES, 1.0))
        return ColumnStats(distinct, Histogram(bins, origin, _rounded(foretold * sampling), taken_at))

    def to_data(self) -> dict[str, Any]:
        """The sketch as values for JSON."""
        return {
            "exact": self.exact,
            "rows": self.rows,
            "low": self._low,
            "high": self._high,
            "distinct": _text(self._distinct),
            "frequent": _text(self._frequent),
            "values": _text(self._values.tobytes()),
            "counts": _text(self._counts.tobytes()),
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "ColumnSketch":
        """The sketch that `to_data` told of."""
        made = ColumnSketch(exact=data["exact"])
        made.rows, made._low, made._high = data["rows"], data["low"], data["high"]
        made._distinct, made._frequent = _bytes(data["distinct"]), _bytes(data["frequent"])
        made._values = np.frombuffer(_bytes(data["values"]), np.int64)
        made._counts = np.frombuffer(_bytes(data["counts"]), np.int64)
        return made


class Sizes:
    """What rows take on a link in batches of 1 to 10,000, without what an empty batch takes."""

    def __init__(self, measured: Iterable[Sequence[int]] = ((0, 0),) * len(BATCH_ROWS)) -> None:
        self._measured = [(int(size), int(rows)) for size, rows in measured]  # bytes and rows so far
        if len(self._measured) == 3:  # as it was written by earlier releases: of 10, 100 and 1,000
            self._measured = [(0, 0), *self._measured, (0, 0)]

    def measure(self, table: pa.Table, slices: int, *, mixed_up: bool = False) -> None:
        """Pack up to so many slices of every size, of rows as they come or of a thousand mixed up, like in a window.

        Of a small table, all of it counts as ten.
        """
        if mixed_up:
            chance = np.random.default_rng(table.num_rows).random(table.num_rows)
            table = table.take(np.lexsort((chance, np.arange(table.num_rows) // _MIXED_ROWS)))
        for number, batch_rows in enumerate(BATCH_ROWS):
            if number > 1 and table.num_rows < batch_rows:
                break
            count = max(1, min(max(slices, _SINGLE_ROWS // batch_rows), table.num_rows // batch_rows))
            for place in range(count):
                piece = table.slice(place * (table.num_rows // count), batch_rows)
                if piece.num_rows:
                    self._add(number, body_bytes(piece), piece.num_rows)

    def _add(self, number: int, size: int, rows: int) -> None:
        before = self._measured[number]
        self._measured[number] = before[0] + size, before[1] + rows

    def copy(self) -> "Sizes":
        return Sizes(self._measured)

    def merge(self, other: "Sizes") -> None:
        """Take all that another one has measured."""
        for number, (size, rows) in enumerate(other._measured):
            self._add(number, size, rows)

    @property
    def each(self) -> BytesByBatch | None:
        """Bytes of one; a size that was never measured is as the one before it."""
        found: list[float] = []
        known = [(size, rows) for size, rows in self._measured if rows]
        for size, rows in self._measured:
            if rows:
                found.append(size / rows)
            elif known:
                found.append(found[-1] if found else known[0][0] / known[0][1])
        if len(found) != len(BATCH_ROWS):
            return None
        one, ten, hundred, thousand, most = (round(size, 3) for size in found)
        return one, ten, hundred, thousand, most

    @property
    def rows(self) -> int:
        """How many rows were packed."""
        return sum(rows for _, rows in self._measured)

    def to_data(self) -> list[tuple[int, int]]:
        """The measurements as values for JSON."""
        return self._measured


def body_bytes(table: pa.Table) -> int:
    """What rows take on a link beside what describes their columns."""
    beside: int = COLUMN_BYTES * table.num_columns
    return max(0, len(pack_rows(table)) - beside)


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
        made._columns = {name: one.copy() for name, one in self._columns.items()}
        made._sizes = {name: one.copy() for name, one in self._sizes.items()}
        made._in_order = {name: one.copy() for name, one in self._in_order.items()}
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
        """The sketch that `to_data` told of."""
        made = StreamSketch()
        made.rows, made.sketched = data["rows"], data["sketched"]
        made._first, made._last = data["first"], data["last"]
        made._intervals = np.array(data.get("intervals", [0] * len(INTERVALS)), np.int64)
        made._columns = {name: ColumnSketch.from_data(one) for name, one in data["columns"].items()}
        made._sizes = {name: Sizes(one) for name, one in data["sizes"].items()}
        made._in_order = {name: Sizes(one) for name, one in data["in_order"].items()}
        made._row_sizes = Sizes(data["row_sizes"])
        made._passed = {predicate: (rows, asked) for predicate, (rows, asked) in data["passed"].items()}
        return made


def confidence_of(rows: int, seen: float) -> float:
    """How far a figure from so many rows can be trusted: all but its relative standard error, 1/sqrt(rows), or `seen`.

    >>> confidence_of(100, 0.0), confidence_of(100, 1.0)
    (0.9, 1.0)
    """
    return _rounded(max(1.0 - 1.0 / sqrt(rows), seen)) if rows else 0.0


def _rounded(confidence: float) -> float:
    return round(min(max(confidence, 0.0), 1.0), 4)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
