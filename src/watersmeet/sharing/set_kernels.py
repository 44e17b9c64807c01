"""Inner loops on bit sets, compiled by Numba: Basic Decomposition, BLEND and COLLAPSE, and the cover by rectangles.

The state of a composition, for f fragments, q queries and up to q basis rows:

    basis[k]     the queries of basis row k
    inside[k]    the fragments that contain basis row k, so those that it may help to cover
    members[g]   the same the other way round: the basis rows that fragment g contains
    once[g]      the queries of fragment g that exactly one of its basis rows covers
    essential[k] the fragments that would lose a query if they lost basis row k

With these a BLEND of rows i and j is valid if essential[i] is a subset of inside[j], and a COLLAPSE if that holds both
ways: a few words to compare where the definition goes through all fragments and all basis rows.
"""

from typing import Any

import numba
import numpy as np

ONE_PER_LOOP, MANY_PER_LOOP = 0, 1
ATTEMPT_BOTH, DELAY_BLENDS, SEPARATE_PASSES = 0, 1, 2  # A, R, S
IMMEDIATE, IMMEDIATE_UNSEEN, QUEUED = 0, 1, 2  # W, D, P

_jit: Any = numba.njit(cache=True, nogil=True)


@_jit
def _has(row, place):  # type: ignore[no-untyped-def]
    return (row[place >> 6] >> np.uint64(place & 63)) & np.uint64(1) != np.uint64(0)


@_jit
def _set(row, place):  # type: ignore[no-untyped-def]
    row[place >> 6] |= np.uint64(1) << np.uint64(place & 63)


@_jit
def _clear(row, place):  # type: ignore[no-untyped-def]
    row[place >> 6] &= ~(np.uint64(1) << np.uint64(place & 63))


@_jit
def _is_subset(one, other):  # type: ignore[no-untyped-def]
    for word in range(one.shape[0]):  # noqa: SIM110
        if one[word] & ~other[word]:
            return False
    return True


@_jit
def _is_empty(row):  # type: ignore[no-untyped-def]
    for word in range(row.shape[0]):  # noqa: SIM110
        if row[word]:
            return False
    return True


@_jit
def _intersect(one, other):  # type: ignore[no-untyped-def]
    for word in range(one.shape[0]):  # noqa: SIM110
        if one[word] & other[word]:
            return True
    return False


@_jit
def _count(row):  # type: ignore[no-untyped-def]
    found = 0
    for word in range(row.shape[0]):
        bits = row[word]
        while bits:
            bits &= bits - np.uint64(1)
            found += 1
    return found


@_jit
def decompose_rows(rows, fragments):  # type: ignore[no-untyped-def]
    """Apply DECOMPOSE in place until none is valid; fragments[j] then has the fragments that row j combines."""
    count = rows.shape[0]
    progress = True
    while progress:
        progress = False
        for i in range(count):
            for j in range(count):
                if i != j and not _is_empty(rows[j]) and _is_subset(rows[j], rows[i]):
                    rows[i] ^= rows[j]
                    fragments[j] |= fragments[i]
                    progress = True


@_jit
def _refresh(g, basis, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Which queries of a fragment are covered once, and who is essential for it, after its members have changed."""
    words = basis.shape[1]
    any_cover = np.zeros(words, np.uint64)
    twice = np.zeros(words, np.uint64)
    for word in range(members.shape[1]):
        bits = members[g, word]
        k = word << 6
        while bits:
            if bits & np.uint64(1):
                for w in range(words):
                    twice[w] |= any_cover[w] & basis[k, w]
                    any_cover[w] |= basis[k, w]
            bits >>= np.uint64(1)
            k += 1
    for w in range(words):
        once[g, w] = any_cover[w] & ~twice[w]
    for word in range(members.shape[1]):
        bits = members[g, word]
        k = word << 6
        while bits:
            if bits & np.uint64(1):
                if _intersect(basis[k], once[g]):
                    _set(essential[k], g)
                else:
                    _clear(essential[k], g)
            bits >>= np.uint64(1)
            k += 1


@_jit
def combine_rows(i, j, collapse, basis, alive, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Overwrite basis row i with its OR with row j; a COLLAPSE then removes row j."""
    changed = inside[i].copy()
    if collapse:
        changed |= inside[j]
    basis[i] |= basis[j]
    inside[i] &= inside[j]
    essential[i] &= inside[j]
    if collapse:
        alive[j] = False
        basis[j] = np.uint64(0)
        inside[j] = np.uint64(0)
        essential[j] = np.uint64(0)
    for word in range(changed.shape[0]):
        bits = changed[word]
        g = word << 6
        while bits:
            if bits & np.uint64(1):
                if collapse:
                    _clear(members[g], j)
                if not _has(inside[i], g):
                    _clear(members[g], i)
                _refresh(g, basis, inside, members, once, essential)
            bits >>= np.uint64(1)
            g += 1


@_jit
def can_blend(i, j, basis, inside, essential):  # type: ignore[no-untyped-def]
    """Whether a BLEND keeps a basis and changes it."""
    return _is_subset(essential[i], inside[j]) and not _is_subset(basis[j], basis[i])


@_jit
def can_collapse(i, j, inside, essential):  # type: ignore[no-untyped-def]
    """Whether a COLLAPSE keeps a basis."""
    return _is_subset(essential[i], inside[j]) and _is_subset(essential[j], inside[i])


@_jit
def drop_needless(basis, alive, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Remove basis rows without which every fragment is still covered, the least used first."""
    removed = 0
    while True:
        least, place = np.int64(1 << 60), -1
        for k in range(alive.shape[0]):
            if alive[k] and _is_empty(essential[k]):
                uses = _count(inside[k]) * _count(basis[k])
                if uses < least:
                    least, place = uses, k
        if place < 0:
            return removed
        lost = inside[place].copy()
        alive[place] = False
        basis[place] = np.uint64(0)
        inside[place] = np.uint64(0)
        removed += 1
        for g in range(members.shape[0]):
            if _has(lost, g):
                _clear(members[g], place)
                _refresh(g, basis, inside, members, once, essential)


@_jit
def search(  # type: ignore[no-untyped-def]
    new, per_loop, preference, timing, basis, alive, inside, members, once, essential
):
    """The search loop: with new >= 0 pairs with that row only, until one COLLAPSE; else all pairs till none is valid.

    Operations that were queued are looked at again before they are done, since those before them may have made them
    invalid.
    """
    rows = alive.shape[0]
    only_new = new >= 0
    touched = np.zeros(rows, np.bool_)
    queue_i = np.empty(rows * rows if not only_new else 2 * rows, np.int64)
    queue_j = np.empty(queue_i.shape[0], np.int64)
    queue_collapse = np.empty(queue_i.shape[0], np.bool_)
    while True:
        progress = False
        stop = False
        queued = 0
        touched[:] = False
        for turn in range(2 if preference == SEPARATE_PASSES else 1):
            collapses = preference != SEPARATE_PASSES or turn == 0
            blends = preference != SEPARATE_PASSES or turn == 1
            for i in range(rows):
                if stop or not alive[i]:
                    continue
                first, last = (new, new + 1) if only_new and i != new else (0, rows)
                for j in range(first, last):
                    if i == j or not alive[j] or not alive[i]:
                        continue
                    if timing == IMMEDIATE_UNSEEN and (touched[i] or touched[j]):
                        continue
                    if collapses and can_collapse(i, j, inside, essential):
                        if timing == QUEUED:
                            queue_i[queued], queue_j[queued], queue_collapse[queued] = i, j, True
                            queued += 1
                            continue
                        combine_rows(i, j, True, basis, alive, inside, members, once, essential)
                        if only_new:
                            return
                        progress = True
                        touched[i] = True
                        if per_loop == ONE_PER_LOOP:
                            stop = True
                            break
                        continue
                    if blends and can_blend(i, j, basis, inside, essential):
                        if timing == QUEUED or preference == DELAY_BLENDS:
                            queue_i[queued], queue_j[queued], queue_collapse[queued] = i, j, False
                            queued += 1
                            continue
                        combine_rows(i, j, False, basis, alive, inside, members, once, essential)
                        progress = True
                        touched[i] = True
                        if per_loop == ONE_PER_LOOP:
                            stop = True
                            break
            last_turn = preference != SEPARATE_PASSES or turn == 1
            if stop or not (last_turn or timing == QUEUED):
                continue
            for place in range(queued if per_loop == MANY_PER_LOOP else min(queued, 1)):
                i, j = queue_i[place], queue_j[place]
                if not alive[i] or not alive[j]:
                    continue
                if queue_collapse[place]:
                    if can_collapse(i, j, inside, essential):
                        combine_rows(i, j, True, basis, alive, inside, members, once, essential)
                        progress = True
                        if only_new:
                            return
                elif can_blend(i, j, basis, inside, essential):
                    combine_rows(i, j, False, basis, alive, inside, members, once, essential)
                    progress = True
            queued = 0
        if not progress:
            return


@_jit
def add_query(query, fragments, place, basis, alive, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Give a query a basis row of its own at a place that is free."""
    basis[place] = np.uint64(0)
    _set(basis[place], query)
    alive[place] = True
    for g in range(fragments.shape[0]):
        if _has(fragments[g], query):
            _set(inside[place], g)
            _set(essential[place], g)
            _set(members[g], place)
            _set(once[g], query)


@_jit
def load_rows(basis, alive, fragments, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Fill in the state of basis rows that are given."""
    for k in range(alive.shape[0]):
        if alive[k]:
            for g in range(fragments.shape[0]):
                if _is_subset(basis[k], fragments[g]):
                    _set(inside[k], g)
                    _set(members[g], k)
    for g in range(fragments.shape[0]):
        _refresh(g, basis, inside, members, once, essential)


@_jit
def replace_row(k, row, fragments, basis, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Give basis row k other queries, where the fragments that then do without it, or have it, stay covered."""
    changed = inside[k].copy()
    basis[k] = row
    for g in range(fragments.shape[0]):
        if _is_subset(row, fragments[g]):
            _set(inside[k], g)
            _set(members[g], k)
            _set(changed, g)
        else:
            _clear(inside[k], g)
            _clear(essential[k], g)
            _clear(members[g], k)
    for g in range(fragments.shape[0]):
        if _has(changed, g):
            _refresh(g, basis, inside, members, once, essential)


@_jit
def _widest(needed, fragments, width):  # type: ignore[no-untyped-def]
    """The queries that all of some fragments have."""
    found = np.zeros(width, np.uint64)
    found[:] = ~np.uint64(0)
    for g in range(fragments.shape[0]):
        if _has(needed, g):
            found &= fragments[g]
    return found


@_jit
def close_rows(fragments, basis, alive, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Give each row all queries that its fragments have in common: the widest rectangle of that height."""
    for k in range(alive.shape[0]):
        if alive[k]:
            basis[k] = _widest(inside[k], fragments, basis.shape[1])
    for g in range(fragments.shape[0]):
        _refresh(g, basis, inside, members, once, essential)


@_jit
def widen_rows(order, fragments, basis, alive, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Reduce each row to the fragments that need it, and give it all queries that those have in common."""
    for place in range(order.shape[0]):
        k = order[place]
        if alive[k] and not _is_empty(essential[k]):
            row = _widest(essential[k], fragments, basis.shape[1])
            if not _is_subset(row, basis[k]):
                replace_row(k, row, fragments, basis, inside, members, once, essential)


@_jit
def narrow_rows(order, fragments, basis, alive, inside, members, once, essential):  # type: ignore[no-untyped-def]
    """Reduce each row to the queries for which some fragment needs it, so that more fragments may have it."""
    for place in range(order.shape[0]):
        k = order[place]
        if alive[k] and not _is_empty(essential[k]):
            row = np.zeros(basis.shape[1], np.uint64)
            for g in range(fragments.shape[0]):
                if _has(essential[k], g):
                    for word in range(row.shape[0]):
                        row[word] |= basis[k, word] & once[g, word]
            if not _is_subset(basis[k], row):
                replace_row(k, row, fragments, basis, inside, members, once, essential)


@_jit
def fooling_set(rows, places_g, places_c):  # type: ignore[no-untyped-def]
    """How many of these ones, taken in order where possible, are such that no rectangle of ones holds two of them."""
    taken = np.empty(places_g.shape[0], np.int64)
    count = 0
    for place in range(places_g.shape[0]):
        g, c = places_g[place], places_c[place]
        apart = True
        for other in range(count):
            h, d = places_g[taken[other]], places_c[taken[other]]
            if _has(rows[g], d) and _has(rows[h], c):
                apart = False
                break
        if apart:
            taken[count] = place
            count += 1
    return count
