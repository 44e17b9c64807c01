"""The inner loops of matching rows by their numbers, compiled by Numba: hash tables, where NumPy would sort.

The numbers of a row are a line of a matrix: one for each alias that rows are told apart by.
"""

from typing import Any

import numba
import numpy as np
from numba import types

_NUMBERS = types.Array(types.int64, 2, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C")
_MASK = types.Array(types.boolean, 1, "C")
_MATCHED: Any = types.Tuple((_MASK, _PLACES))  # type: ignore[no-untyped-call]
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: neighbours are far apart
_HALF = np.uint64(32)


def _compiled(*signatures: Any) -> Any:
    return numba.njit(list(signatures), cache=True, nogil=True)


@_compiled(types.int64(types.int64))
def _bits_for(count):  # type: ignore[no-untyped-def]
    """The logarithm of the size of a table that is at most half full."""
    bits = 4
    while (1 << bits) < 2 * count:
        bits += 1
    return bits


@_compiled(types.int64(_PLACES, types.int64, _NUMBERS, _NUMBERS, types.int64))
def _slot(table, bits, known, numbers, i):  # type: ignore[no-untyped-def]
    """The slot of a table of places in `known` that has line `i` of `numbers`, or where it would be."""
    width = numbers.shape[1]
    key = np.uint64(numbers[i, 0]) * _SPREAD
    for j in range(1, width):
        key = ((key ^ (key >> _HALF)) ^ np.uint64(numbers[i, j])) * _SPREAD
    slot = np.int64(key >> np.uint64(64 - bits))
    while table[slot] >= 0:
        place = table[slot]
        is_equal = True
        for j in range(width):
            if known[place, j] != numbers[i, j]:
                is_equal = False
                break
        if is_equal:
            break
        slot = (slot + 1) & (len(table) - 1)
    return slot


@_compiled(_PLACES(_NUMBERS, types.int64))
def _table_of(numbers, bits):  # type: ignore[no-untyped-def]
    """A hash table of the places of lines."""
    table = np.full(1 << bits, -1, np.int64)
    for i in range(len(numbers)):
        table[_slot(table, bits, numbers, numbers, i)] = i
    return table


@_compiled(_PLACES(_NUMBERS))
def first_places(numbers):  # type: ignore[no-untyped-def]
    """The place of the first of equal lines, in order."""
    bits = _bits_for(len(numbers))
    table = np.full(1 << bits, -1, np.int64)
    places = np.empty(len(numbers), np.int64)
    count = 0
    for i in range(len(numbers)):
        slot = _slot(table, bits, numbers, numbers, i)
        if table[slot] < 0:
            table[slot] = i
            places[count] = i
            count += 1
    return places[:count].copy()


@_compiled(_MASK(_NUMBERS, _NUMBERS))
def are_among(numbers, known):  # type: ignore[no-untyped-def]
    """Which lines are among those that are known; numbers that are close together need no hash table."""
    if len(numbers) and numbers.shape[1] == 1:
        low = np.uint64(numbers[:, 0].min())
        span = np.uint64(numbers[:, 0].max()) - low  # without a sign: see below
        if span < np.uint64(8 * len(numbers)):
            is_known = np.zeros(np.int64(span) + 1, np.bool_)
            for i in range(len(known)):
                away = np.uint64(known[i, 0]) - low
                if away <= span:
                    is_known[np.int64(away)] = True
            dense = np.zeros(len(numbers), np.bool_)
            for i in range(len(numbers)):
                dense[i] = is_known[np.int64(np.uint64(numbers[i, 0]) - low)]
            return dense
    bits = _bits_for(len(known))
    table = _table_of(known, bits)
    found = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        found[i] = table[_slot(table, bits, known, numbers, i)] >= 0
    return found


@_compiled(_MATCHED(_NUMBERS, _NUMBERS))
def matched_now(rows, matches):  # type: ignore[no-untyped-def]
    """Which of different rows have a match, and the place of the first of equal matches that no row has.

    Rows of a micro-batch that have one number each have numbers that are close together: these need no hash table.
    """
    low = np.uint64(rows[:, 0].min())
    span = np.uint64(rows[:, 0].max()) - low  # without a sign: numbers may be farther apart than 63 bits go
    is_dense = rows.shape[1] == 1 and span < np.uint64(8 * len(rows))
    bits, more_bits = _bits_for(len(rows)), _bits_for(len(matches))
    if is_dense:
        ours = np.full(np.int64(span) + 1, -1, np.int64)
        for i in range(len(rows)):
            ours[np.int64(np.uint64(rows[i, 0]) - low)] = i
    else:
        ours = _table_of(rows, bits)
    others = np.full(1 << more_bits, -1, np.int64)
    found = np.zeros(len(rows), np.bool_)
    places = np.empty(len(matches), np.int64)
    count = 0
    for i in range(len(matches)):
        if is_dense:
            away = np.uint64(matches[i, 0]) - low
            place = ours[np.int64(away)] if away <= span else -1
        else:
            place = ours[_slot(ours, bits, rows, matches, i)]
        if place >= 0:
            found[place] = True
            continue
        slot = _slot(others, more_bits, matches, matches, i)
        if others[slot] < 0:
            others[slot] = i
            places[count] = i
            count += 1
    return found, places[:count].copy()
