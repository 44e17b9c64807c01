"""Rewritten queries that are alike, which wait as one (RJoin section 7) and, for DISTINCT, answer as one."""

import numpy as np
from numba import njit

from watersmeet.program.rjoin.arrays import CLASSES, COUNT, NONE, QUERY
from watersmeet.program.rjoin.keys import mixed

_MOST_ALIKE = (1 << 31) - 1  # that one row can stand for


@njit(cache=True)
def _stirred(queries, tuples, row, start, classes, is_guarded):  # type: ignore[no-untyped-def]
    """A number that alike rows have in common."""
    query = row[QUERY]
    stirred = mixed(start)
    for column in range(len(row) if is_guarded else CLASSES + classes):
        if column != COUNT:
            stirred = mixed(stirred ^ np.uint64(row[column] + 3))
    if queries.shown[query, 0] != NONE and not is_guarded:
        for alias in range(queries.aliases[query]):
            one = row[CLASSES + classes + alias]
            if one != NONE:
                for column in range(tuples.value.shape[1]):
                    if (queries.shown[query, alias] >> column) & 1:
                        stirred = mixed(stirred ^ np.uint64(tuples.value[one, column]))
    return stirred


@njit(cache=True)
def _are_alike(queries, tuples, one, other, classes, is_guarded):  # type: ignore[no-untyped-def]
    """Whether two rows of one key will be rewritten in the same way, and for DISTINCT show the same."""
    for column in range(len(one) if is_guarded else CLASSES + classes):
        if column != COUNT and one[column] != other[column]:
            return False
    query = one[QUERY]
    if queries.shown[query, 0] != NONE and not is_guarded:
        for alias in range(queries.aliases[query]):
            bound, also = one[CLASSES + classes + alias], other[CLASSES + classes + alias]
            if bound == also:
                continue
            for column in range(tuples.value.shape[1]):
                is_shown = (queries.shown[query, alias] >> column) & 1
                if is_shown and tuples.value[bound, column] != tuples.value[also, column]:
                    return False
    return True


@njit(cache=True)
def find_alike(queries, tuples, store, keys_of_rows, row, key, classes, is_guarded):  # type: ignore[no-untyped-def]
    """Where in the table of alike rows this one stands, or would stand."""
    mask = np.uint64(len(store.alike) - 1)
    at = _stirred(queries, tuples, row, key, classes, is_guarded) & mask
    while store.alike[at] != NONE:
        stored = store.alike[at]
        if keys_of_rows[stored] == key and _are_alike(queries, tuples, store.row[stored], row, classes, is_guarded):
            break
        at = (at + np.uint64(1)) & mask
    return at


@njit(cache=True)
def enter_alike(queries, tuples, store, keys_of_rows, count, classes, is_guarded):  # type: ignore[no-untyped-def]
    """Fill an empty table of alike rows: of rows that are alike, the first. How many there are."""
    entered = 0
    for entry in range(count):
        row, key = store.row[entry], keys_of_rows[entry]
        at = find_alike(queries, tuples, store, keys_of_rows, row, key, classes, is_guarded)
        if store.alike[at] == NONE:
            store.alike[at] = entry
            entered += 1
    return entered


@njit(cache=True)
def merge(rows, made):  # type: ignore[no-untyped-def]
    """Let alike rows made at one place be one row that counts for all; the order of first appearance stays."""
    size = 64
    while size < 2 * len(rows):
        size *= 2
    table = np.full(size, NONE, np.int32)
    mask = np.uint64(size - 1)
    kept = 0
    for i in range(len(rows)):
        stirred = mixed(made[i])
        for column in range(rows.shape[1]):
            if column != COUNT:
                stirred = mixed(stirred ^ np.uint64(rows[i, column] + 3))
        at = stirred & mask
        while table[at] != NONE:
            other = table[at]
            same = made[other] == made[i]
            for column in range(rows.shape[1]):
                same &= column == COUNT or rows[other, column] == rows[i, column]
            if same:
                break
            at = (at + np.uint64(1)) & mask
        if table[at] == NONE:
            table[at] = kept
            rows[kept] = rows[i]
            made[kept] = made[i]
            kept += 1
        else:
            rows[table[at], COUNT] = sum_of(rows[table[at], COUNT], rows[i, COUNT])
    return kept


@njit(cache=True)
def sum_of(count, more):  # type: ignore[no-untyped-def]
    """How many members two rows stand for together."""
    both = np.int64(count) + np.int64(more)
    if both > _MOST_ALIKE:
        raise OverflowError("more than 2,147,483,647 rewritten queries are alike: count fewer queries or tuples")
    return both
