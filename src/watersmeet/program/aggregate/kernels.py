"""The inner loops of grouped sums, compiled by Numba: NumPy has none that add by group exactly."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_GROUPS = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS = types.Array(types.float64, 1, "C", readonly=True)
_INTS_OUT = types.Array(types.int64, 1, "C")
_FLOATS_OUT = types.Array(types.float64, 1, "C")
_TWO: Any = types.UniTuple(_FLOATS_OUT, 2)  # type: ignore[no-untyped-call]


def _compiled(*signatures: Any) -> Any:
    return numba.njit(list(signatures), cache=True, nogil=True)


@_compiled(_INTS_OUT(_GROUPS, _GROUPS, types.int64))
def whole_sums(groups, values, count):  # type: ignore[no-untyped-def]
    """The sum of whole numbers of each group; the caller sees to it that none overflows."""
    sums = np.zeros(count, np.int64)
    for i in range(len(groups)):
        sums[groups[i]] += values[i]
    return sums


@_compiled(_TWO(_GROUPS, _FLOATS, _FLOATS, types.int64))
def double_double_sums(groups, high, low, count):  # type: ignore[no-untyped-def]
    """The sum of each group with twice the digits of a double: what a sum loses is kept beside it (Knuth's TwoSum)."""
    highs, lows = np.zeros(count), np.zeros(count)
    for i in range(len(groups)):
        group = groups[i]
        a, b = highs[group], high[i]
        total = a + b
        if np.isfinite(total):
            c = total - a
            lows[group] += (a - (total - c)) + (b - c) + low[i]
        else:
            lows[group] = 0.0
        highs[group] = total
    for group in range(count):
        total = highs[group] + lows[group]
        if np.isfinite(total):
            lows[group] -= total - highs[group]
            highs[group] = total
    return highs, lows
