"""The inner loops of the sort-merge index probe, compiled by Numba; NumPy would take several passes over each of them.

A run is the rows of one segment sorted by (key, time). The row at place j is visible from `at[j] * scale + offset` to
an end that its kind decides:

    FIXED       begin + length
    TUMBLE      the end of the aligned interval of `length` that holds at[j]
    NEVER_ENDS  never
    EXPLICIT    high[j]
    COUNTED     just before the row with ordinal ordinals[j] + length, as far as the clock knows it
"""

from typing import Any

import numba
import numpy as np
from numba import types

FIXED, TUMBLE, NEVER_ENDS, EXPLICIT, COUNTED = range(5)

NEVER = int(np.iinfo(np.int64).max)
LONG_AGO = int(np.iinfo(np.int64).min)
_NEAR = 8  # places looked at one by one before a search with growing steps
_LONG_RUN = 8  # rows of one key in one run from which it pays to narrow them by time first

# Read-only arrays take writable ones too: one compiled form each, which is in the cache after the first import.
_TIMES = types.Array(types.int64, 1, "C", readonly=True)
_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_OUT = types.Array(types.int64, 1, "C")
_INT = types.int64
_TWO: Any = types.UniTuple(_OUT, 2)  # type: ignore[no-untyped-call]
_FOUR: Any = types.UniTuple(_OUT, 4)  # type: ignore[no-untyped-call]
MOST_WORDS = 4  # of selections, 64 bits each, that sets of queries are computed from
_RULE = (_TIMES, _INT, _INT, _INT, _INT, _TIMES, _TIMES, _TIMES, _INT)  # of visibility, see `Visibility.rule`


_SETS = types.Array(types.uint64, 1, "C")
_FIVE: Any = types.Tuple((_OUT, _OUT, _OUT, _OUT, _SETS))  # type: ignore[no-untyped-call]
_WORDS: Any = [types.UniTuple(_KEYS, count) for count in range(1, MOST_WORDS + 1)]  # type: ignore[no-untyped-call]
_MEMBERSHIPS = [(words, _TIMES, _KEYS, _KEYS, types.uint64) for words in _WORDS]


def _compiled(*signatures: Any) -> Any:
    """Compiled for some types of arguments, to run without Python's lock."""
    return numba.njit(list(signatures), cache=True, nogil=True)


@_compiled(_INT(_INT, *_RULE))
def end_of(  # type: ignore[no-untyped-def]
    j, at, scale, offset, kind, length, high, ordinals, clock, base
):
    """The inclusive end of visibility of the row at a place."""
    if kind == FIXED:
        return at[j] * scale + offset + length
    if kind == TUMBLE:
        return (at[j] // length + 1) * length * scale - 1
    if kind == EXPLICIT:
        return high[j]
    if kind == COUNTED:
        successor = ordinals[j] + length - base
        if successor < 0:
            return LONG_AGO
        if successor < len(clock):
            return clock[successor] - 1
    return NEVER


@_compiled(_OUT(_TIMES, *_RULE))
def ends_of(  # type: ignore[no-untyped-def]
    places, at, scale, offset, kind, length, high, ordinals, clock, base
):
    """The ends of the rows at some places."""
    ends = np.empty(len(places), np.int64)
    for number in range(len(places)):
        ends[number] = end_of(places[number], at, scale, offset, kind, length, high, ordinals, clock, base)
    return ends


@_compiled(_INT(_KEYS, types.uint64, _INT))
def _gallop(keys, key, low):  # type: ignore[no-untyped-def]
    """The first place from `low` on whose key is not below `key`: near ones are found soon."""
    size = len(keys)
    near = min(low + _NEAR, size)
    while low < near and keys[low] < key:
        low += 1
    if low < near or low == size:
        return low
    if keys[low] >= key:
        return low
    step = 1
    while low + step < size and keys[low + step] < key:
        low += step
        step *= 2
    high = min(low + step, size)
    while low + 1 < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle
        else:
            high = middle
    return high


@_compiled(_TWO(_KEYS, _TIMES, _TIMES, _KEYS, types.boolean, *_RULE))
def ranges(  # type: ignore[no-untyped-def]
    probe_keys, begin, limit, keys, narrows, at, scale, offset, kind, length, high, ordinals, clock, base
):
    """For each probing row the range of places with its key that it may meet; keys that rise are found fastest."""
    start = np.zeros(len(probe_keys), np.int64)
    stop = np.zeros(len(probe_keys), np.int64)
    size = len(keys)
    place = 0
    last_start = 0
    last_stop = 0
    for i in range(len(probe_keys)):
        key = probe_keys[i]
        if i > 0 and key == probe_keys[i - 1]:
            first = last_start
            after = last_stop
        else:
            if i > 0 and key < probe_keys[i - 1]:
                place = 0
            first = _gallop(keys, key, place)
            after = first
            while after < size and after < first + _LONG_RUN and keys[after] == key:
                after += 1
            if after == first + _LONG_RUN and after < size and keys[after] == key:
                after = size if key == np.uint64(0xFFFFFFFFFFFFFFFF) else _gallop(keys, key + np.uint64(1), after)
            place = first
            last_start = first
            last_stop = after
        if narrows and after - first > _LONG_RUN:
            low, top = first, after  # the first whose end is not before the probing row begins
            while low < top:
                middle = (low + top) >> 1
                if end_of(middle, at, scale, offset, kind, length, high, ordinals, clock, base) < begin[i]:
                    low = middle + 1
                else:
                    top = middle
            first = low
            top = after  # the first that begins after the probing row's end
            while low < top:
                middle = (low + top) >> 1
                if at[middle] * scale + offset <= limit[i]:
                    low = middle + 1
                else:
                    top = middle
            after = low
        start[i] = first
        stop[i] = after
    return start, stop


@_compiled(_FOUR(_INT, _INT, _TIMES, _TIMES, _TIMES, _TIMES, _KEYS, types.uint64, *_RULE))
def expand(  # type: ignore[no-untyped-def]
    first, last, start, stop, begin, limit, bits, bit, at, scale, offset, kind, length, high, ordinals, clock, base
):
    """The pairs of probing rows first..last with places in their ranges whose intervals meet; bits select places."""
    size = 0
    for i in range(first, last):
        size += stop[i] - start[i]
    left = np.empty(size, np.int64)
    right = np.empty(size, np.int64)
    latest = np.empty(size, np.int64)
    earliest = np.empty(size, np.int64)
    count = 0
    for i in range(first, last):
        for j in range(start[i], stop[i]):
            if bit != 0 and (bits[j] & bit) == 0:
                continue
            begins = max(begin[i], at[j] * scale + offset)
            ends = min(limit[i], end_of(j, at, scale, offset, kind, length, high, ordinals, clock, base))
            if begins <= ends:
                left[count] = i
                right[count] = j
                latest[count] = begins
                earliest[count] = ends
                count += 1
    return left[:count], right[:count], latest[:count], earliest[:count]


@_compiled(
    types.void(types.Array(types.int64, 1, "C"), _TIMES, _TIMES, _INT),
    types.void(types.Array(types.int32, 1, "C"), types.Array(types.int32, 1, "C", readonly=True), _TIMES, _INT),
)
def gather(out, values, positions, low):  # type: ignore[no-untyped-def]
    """Put values into the places of `out` whose position falls into them; positions of this run begin at `low`."""
    high = low + len(values)
    for i in range(len(positions)):
        if low <= positions[i] < high:
            out[i] = values[positions[i] - low]


@_compiled(*(_FIVE(_INT, _INT, *(_TIMES,) * 4, _KEYS, *entry, *_RULE) for entry in _MEMBERSHIPS))
def expand_sets(  # type: ignore[no-untyped-def]
    first,
    last,
    start,
    stop,
    begin,
    limit,
    sets,
    words,
    places,
    bits,
    members,
    always,
    at,
    scale,
    offset,
    kind,
    length,
    high,
    ordinals,
    clock,
    base,
):
    """As `expand`, for many queries at once: pairs that are in the set of some query, with the set of all of them.

    A place is in the sets `members[d]` for each d whose bit is set in the word `words[places[d]]` of the place, and in
    those of `always`.
    """
    size = 0
    for i in range(first, last):
        size += stop[i] - start[i]
    left = np.empty(size, np.int64)
    right = np.empty(size, np.int64)
    latest = np.empty(size, np.int64)
    earliest = np.empty(size, np.int64)
    found = np.empty(size, np.uint64)
    count = 0
    for i in range(first, last):
        for j in range(start[i], stop[i]):
            begins = max(begin[i], at[j] * scale + offset)
            ends = min(limit[i], end_of(j, at, scale, offset, kind, length, high, ordinals, clock, base))
            if begins > ends:
                continue
            own = always
            for d in range(len(bits)):
                if words[places[d]][j] & bits[d]:
                    own |= members[d]
            own &= sets[i]
            if own != 0:
                left[count] = i
                right[count] = j
                latest[count] = begins
                earliest[count] = ends
                found[count] = own
                count += 1
    return left[:count], right[:count], latest[:count], earliest[:count], found[:count]


@_compiled(*(_SETS(_INT, *entry) for entry in _MEMBERSHIPS))
def member_sets(rows, words, places, bits, members, always):  # type: ignore[no-untyped-def]
    """The sets of queries that rows are in, as `expand_sets` computes them."""
    found = np.empty(rows, np.uint64)
    for j in range(rows):
        own = always
        for d in range(len(bits)):
            if words[places[d]][j] & bits[d]:
                own |= members[d]
        found[j] = own
    return found
