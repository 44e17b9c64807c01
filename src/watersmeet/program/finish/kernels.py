"""The inner loops of matching rows by their numbers, compiled by Numba: hash tables, where NumPy would sort."""

from typing import Any

import numba
import numpy as np
from numba import types

_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C")
_MASK = types.Array(types.boolean, 1, "C")
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: neighbours are far apart


def _compiled(*signatures: Any) -> Any:
    return numba.njit(list(signatures), cache=True, nogil=True)


@_compiled(types.int64(_NUMBERS))
def _bits_for(numbers):  # type: ignore[no-untyped-def]
    """The logarithm of the size of a table that is at most half full."""
    bits = 4
    while (1 << bits) < 2 * len(numbers):
        bits += 1
    return bits


@_compiled(_PLACES(_NUMBERS))
def first_places(numbers):  # type: ignore[no-untyped-def]
    """The place of the first of equal numbers, in order."""
    bits = _bits_for(numbers)
    mask, shift = (1 << bits) - 1, np.uint64(64 - bits)
    table = np.full(1 << bits, -1, np.int64)
    places = np.empty(len(numbers), np.int64)
    count = 0
    for i in range(len(numbers)):
        slot = np.int64((np.uint64(numbers[i]) * _SPREAD) >> shift)
        while table[slot] >= 0 and numbers[table[slot]] != numbers[i]:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = i
            places[count] = i
            count += 1
    return places[:count].copy()


@_compiled(_MASK(_NUMBERS, _NUMBERS))
def are_among(numbers, known):  # type: ignore[no-untyped-def]
    """Which numbers are among those that are known."""
    bits = _bits_for(known)
    mask, shift = (1 << bits) - 1, np.uint64(64 - bits)
    table = np.full(1 << bits, -1, np.int64)
    for i in range(len(known)):
        slot = np.int64((np.uint64(known[i]) * _SPREAD) >> shift)
        while table[slot] >= 0 and known[table[slot]] != known[i]:
            slot = (slot + 1) & mask
        table[slot] = i
    found = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        slot = np.int64((np.uint64(numbers[i]) * _SPREAD) >> shift)
        while table[slot] >= 0 and known[table[slot]] != numbers[i]:
            slot = (slot + 1) & mask
        found[i] = table[slot] >= 0
    return found
