"""Rows of a generated stream: each is a pure function of the specification and its number."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.errors import InputError
from watersmeet.topology.generate.model import (
    ARROW_TYPES,
    ROLE,
    Choice,
    ConstantValue,
    GeneratedColumn,
    Numbers,
    Pattern,
    RowNumbers,
    Spec,
    Time,
    Uniform,
    Zipf,
)

CHUNK_ROWS = 100_000
_LAST_US = (datetime(9999, 12, 31, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
_DAY_US = 86_400_000_000

Uint64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]


def rows(spec: Spec, lo: int, hi: int) -> pa.Table:
    """Rows [lo, hi) of the stream, whatever its `rows` and pace are."""
    return pa.Table.from_batches(batches(spec, lo, hi), schema=spec.arrow_schema)


def arrivals_us(spec: Spec, lo: int, hi: int) -> Int64s:
    """When rows [lo, hi) arrive at the stream's own pace: their event times before disorder sets them back.

    >>> from watersmeet.topology.generate.options import spec
    >>> arrivals_us(spec({"ts": "timestamp"}, {"start": "1970-01-01", "disorder": "9 seconds"}), 1, 4).tolist()
    [1000, 2000, 3000]
    """
    punctual = replace(spec, disorder_us=0)
    chunks = [_Chunk(punctual, first, min(first + CHUNK_ROWS, hi)) for first in range(lo, hi, CHUNK_ROWS)]
    return np.concatenate([np.empty(0, np.int64), *(chunk.times_us() for chunk in chunks)])


def batches(spec: Spec, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    """Rows [lo, hi) of the stream in record batches of at most CHUNK_ROWS."""
    schema = spec.arrow_schema
    for first in range(lo, hi, CHUNK_ROWS):
        chunk = _Chunk(spec, first, min(first + CHUNK_ROWS, hi))
        yield pa.RecordBatch.from_arrays([chunk.array(column) for column in spec.columns], schema=schema)


class _Chunk:
    """Rows [lo, hi), few enough for the arithmetic on event times to stay inside 64 bits."""

    def __init__(self, spec: Spec, lo: int, hi: int) -> None:
        self.spec, self.lo, self.size = spec, lo, hi - lo

    def array(self, column: GeneratedColumn) -> pa.Array:
        made = self._values(column)
        if column.null_share:
            is_null = _reals(self._draw(column.name, "null")) < column.null_share
            made = pc.if_else(pa.array(is_null), pa.scalar(None, made.type), made)
        return made

    def _values(self, column: GeneratedColumn) -> pa.Array:
        arrow_type = ARROW_TYPES[column.type]
        match column.values:
            case Uniform(low, high) if ROLE[column.type] == "floating":
                dtype = arrow_type.to_pandas_dtype()
                reals = (low + _reals(self._draw(column.name, "value")) * (high - low)).astype(dtype)
                # Rounding may reach `high`, which is not in the interval.
                return pa.array(np.minimum(reals, np.nextafter(dtype(high), dtype(low))))
            case RowNumbers() | Uniform() | Zipf() as numbers:
                return pa.array(
                    self._integers(column, numbers, arrow_type.bit_width).astype(f"i{arrow_type.byte_width}")
                )
            case Time():
                times = self.times_us()
                if column.type == "date":
                    return pa.array((times // _DAY_US).astype(np.int32)).view(arrow_type)
                return pa.array(times).view(arrow_type)
            case Choice(values):
                picked = self._draw(column.name, "value") % np.uint64(len(values))
                return pa.array(values, arrow_type).take(pa.array(picked))
            case ConstantValue(value):
                return pa.repeat(pa.scalar(value, arrow_type), self.size)
            case Pattern(before, after, number):
                digits = pc.cast(pa.array(self._integers(column, number)), pa.string())
                return pc.binary_join_element_wise(before, digits, after, "")
            case _ as other:
                assert_never(other)

    def _integers(self, column: GeneratedColumn, numbers: Numbers, bits: int = 64) -> Int64s:
        match numbers:
            case RowNumbers():
                return np.arange(self.lo, self.lo + self.size, dtype=np.int64) & np.int64(2 ** (bits - 1) - 1)
            case Uniform(low, high):
                # Unsigned and wrapping, so that the whole range of a bigint is one interval like any other.
                offsets = self._draw(column.name, "value")
                if (span := int(high) - int(low)) < 2**64:
                    offsets %= np.uint64(span)
                offsets += np.uint64(int(low) % 2**64)
                return offsets.view(np.int64)
            case Zipf(exponent, count):
                reals = _reals(self._draw(column.name, "value"))
                return _zipf_cdf(exponent, count).searchsorted(reals, side="right")
            case _ as other:
                assert_never(other)

    def times_us(self) -> Int64s:
        """start + floor(i * step) exactly: in Python for the first row, and in 64 bits from there."""
        rush = self.spec.rush
        if rush is not None:
            early = replace(self.spec, rush=None)
            split = min(max(rush.first_row, self.lo), self.lo + self.size)
            late = replace(
                early,
                start_us=early.start_us + rush.after_us,
                rows_per_second=early.rows_per_second * rush.factor,
                disorder_us=0,
            )
            before = _Chunk(replace(early, disorder_us=0), self.lo, split).times_us()
            after = _Chunk(late, split - rush.first_row, self.lo + self.size - rush.first_row).times_us()
            return self._set_back(np.concatenate([before, after] if split < self.lo + self.size else [before]))
        step_us = 1_000_000 / self.spec.rows_per_second
        whole, rest = divmod(self.lo * step_us.numerator, step_us.denominator)
        first_us = self.spec.start_us + whole
        if first_us + int(self.size * step_us) > _LAST_US:
            raise InputError(
                f"generator: row {self.lo + self.size} would be after the year 9999; "
                "raise rows_per_second or choose an earlier start"
            )
        ticks = np.arange(self.size, dtype=np.int64) * step_us.numerator + rest
        times: Int64s = first_us + ticks // step_us.denominator
        return self._set_back(times)

    def _set_back(self, times: Int64s) -> Int64s:
        if self.spec.disorder_us:
            times -= (self._draw("", "disorder") % np.uint64(self.spec.disorder_us + 1)).view(np.int64)
        return times

    def _draw(self, column: str, purpose: str) -> Uint64s:
        """64 random bits a row: splitmix64 (Steele, Lea, Flood 2014), entered at the row's place in its sequence."""
        name = f"{self.spec.seed}\0{column.casefold()}\0{purpose}"
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        bits = np.arange(self.lo + 1, self.lo + 1 + self.size, dtype=np.uint64)
        bits *= np.uint64(0x9E3779B97F4A7C15)
        bits += np.uint64(key)
        bits ^= bits >> np.uint64(30)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(27)
        bits *= np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        return bits


def _reals(bits: Uint64s) -> NDArray[np.float64]:
    """Reals in [0, 1) of 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=4)
def _zipf_cdf(exponent: float, count: int) -> NDArray[np.float64]:
    cdf: NDArray[np.float64] = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    cdf /= cdf[-1]
    return cdf
