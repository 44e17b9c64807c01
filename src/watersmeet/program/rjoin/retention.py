"""What is kept at keys: tuples by key, and forgetting what is out of every window (RJoin section 5)."""

import numpy as np
from numba import njit

from watersmeet.program.rjoin.arrays import NO_VALUE, NONE, QUERY
from watersmeet.program.rjoin.matching import end_of


@njit(cache=True)
def sweep(  # type: ignore[no-untyped-def]
    queries, tuples, keys, store, keys_of_rows, counts, known, before_us, keep_us, hold_us, classes, told_apart
):
    """Drop what no tuple from `before_us` on can meet any more; the table of alike rows is to be made anew after it.

    Rows go when their windows or their query are over, tuples when they are older than `keep_us` at the value level
    and `hold_us` at the attribute level.
    """
    kept = 0
    keys.first_row[:known] = NONE
    for entry in range(counts[0]):
        row, key = store.row[entry], keys_of_rows[entry]
        end = end_of(queries, tuples, row, classes) if told_apart else queries.until_us[row[QUERY]]
        if end < before_us:
            continue
        store.row[kept] = row
        keys_of_rows[kept] = key
        store.after[kept] = keys.first_row[key]
        keys.first_row[key] = kept
        kept += 1
    counts[0] = kept
    fresh_of, fresh_after = np.empty_like(store.tuple_of), np.empty_like(store.tuple_after)
    kept = 0
    for key in range(known):
        reach = hold_us if keys.packed[key] & 0xFFFFFFFF == NO_VALUE else keep_us
        entry, last = keys.first_tuple[key], NONE
        keys.first_tuple[key] = NONE
        while entry != NONE:
            one = store.tuple_of[entry]
            entry = store.tuple_after[entry]
            if tuples.ts_us[one] + reach < before_us:
                continue
            fresh_of[kept] = one
            fresh_after[kept] = NONE
            if last == NONE:
                keys.first_tuple[key] = kept
            else:
                fresh_after[last] = kept
            last = kept
            kept += 1
    store.tuple_of[:kept] = fresh_of[:kept]
    store.tuple_after[:kept] = fresh_after[:kept]
    counts[1] = kept


@njit(cache=True)
def tuples_by_key(keys, store, known):  # type: ignore[no-untyped-def]
    """How many tuples are kept for each key."""
    counts = np.zeros(known, np.int64)
    for key in range(known):
        entry = keys.first_tuple[key]
        while entry != NONE:
            counts[key] += 1
            entry = store.tuple_after[entry]
    return counts


@njit(cache=True)
def tuples_at(keys, store, key):  # type: ignore[no-untyped-def]
    """The tuples kept for a key."""
    found = np.empty(64, np.int32)
    count = 0
    entry = keys.first_tuple[key]
    while entry != NONE:
        if count == len(found):
            more = np.empty(2 * count, np.int32)
            more[:count] = found
            found = more
        found[count] = store.tuple_of[entry]
        count += 1
        entry = store.tuple_after[entry]
    return found[:count]
