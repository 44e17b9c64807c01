"""Bloom filters over 64-bit keys: a filter for each batch of keys, with the interval they stand for, so they expire."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.program.storage.segments import I64, U64

BITS_PER_KEY = 16  # six false positives in ten thousand: a window is many filters, and a key is tried in each
HASHES = 8

BITS = "#bits"  # binary, the filter itself
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MIX_3 = np.uint64(0x9E3779B97F4A7C15)
_SHIFT_1, _SHIFT_2, _HALF = np.uint64(31), np.uint64(29), np.uint64(32)


@dataclass(frozen=True)
class Filter:
    """A set of keys that may claim a key too many, over an interval."""

    low: int
    high: int
    bits: npt.NDArray[np.uint8]

    def holds(self, keys: U64) -> npt.NDArray[np.bool_]:
        """Which of the keys are in the set, or seem to be."""
        found = np.ones(len(keys), bool)
        for place in _places(keys, len(self.bits) * 8):
            found &= (self.bits[place >> 3] >> (place & 7).astype(np.uint8)) & 1 == 1
        return found


def build(keys: U64) -> pa.Scalar:
    """The filter of some keys."""
    size = max(8, -(-len(keys) * BITS_PER_KEY // 8))
    marks = np.zeros(size * 8, bool)
    for place in _places(keys, size * 8):
        marks[place] = True
    return pa.scalar(np.packbits(marks, bitorder="little").tobytes(), pa.binary())


def _places(keys: U64, size: int) -> list[I64]:
    """Where a key sets its bits: two hashes combined, as Kirsch and Mitzenmacher showed to be enough.

    Every sum is mixed once more: modulo the size alone, a filter of 64 bits would know 2,048 different keys, since
    eight places at one distance are few patterns, and claim 10 to 70 times as many keys as it has to.
    """
    first = (keys ^ (keys >> _SHIFT_1)) * _MIX_1
    second = ((keys ^ (keys >> _SHIFT_2)) * _MIX_2) | np.uint64(1)
    sums = (first + np.uint64(number) * second for number in range(HASHES))
    mixed = ((sum_ ^ (sum_ >> _HALF)) * _MIX_3 for sum_ in sums)
    return [(((value >> _HALF) * np.uint64(size)) >> _HALF).astype(np.int64) for value in mixed]
