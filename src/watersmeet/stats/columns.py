"""Statistics from rows in small, mergeable state: sketching parts and merging gives what sketching all at once does.

Of every column: a HyperLogLog for how many different values there are, the frequent items, and a sample of the values
(not of the rows) with exact counts: the values of lowest hash. A value that is among the lowest of all was so from the
start, which makes its count exact; and until the sample is full it is the whole column. How the values spread over
ranges comes from it. A KLL sketch would do for ranges too, but it tosses coins: runs could not be repeated by seed.
"""

import base64
import copy
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import datasketches as sketching
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.stats.model import Bin, ColumnStats, Histogram, Number, Origin

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

EXACT_VALUES = 2_000  # up to so many different values, each has a bin of its own
HEAVY_SHARE = 0.005  # a value of so large a share of the rows has a bin of its own always
RANGES = 64  # bins for all the others
_HEAVY_ROWS = 10  # fewer rows than that are chance
_COVERED = 0.9  # from this coverage on, the values seen are taken to be all of them
_TELLING = 10  # so many values seen twice tell of those not seen yet
_SAMPLED_VALUES = 2_048
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
        for sketch in (self, other):
            union.update(sketch._hll())
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
        chance = sum(value**2 for value in heavy.values()) + (1 - share) ** 2 / light
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
        total = sum(bin_.share for bin_ in bins)
        bins.sort(key=lambda bin_: bin_.low)
        return tuple(Bin(bin_.low, bin_.high, round(bin_.distinct, 1), round(bin_.share / total, 9)) for bin_ in bins)

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
            low = max([self._low, *(one + 1 for one in heavy if one < first), *(bin_.high + 1 for bin_ in bins[-1:])])
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
        """The sketch that `to_data` was called on."""
        made = ColumnSketch(exact=data["exact"])
        made.rows, made._low, made._high = data["rows"], data["low"], data["high"]
        made._distinct, made._frequent = _bytes(data["distinct"]), _bytes(data["frequent"])
        made._values = np.frombuffer(_bytes(data["values"]), np.int64)
        made._counts = np.frombuffer(_bytes(data["counts"]), np.int64)
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
