"""A tuple meets the queries that wait at a key, a query meets the tuples kept there (RJoin, Procedures 2 and 3)."""

import numpy as np
from numba import njit

from watersmeet.program.rjoin.alike import find_alike, sum_of
from watersmeet.program.rjoin.arrays import (
    CLASSES,
    COUNT,
    DONE,
    FOREVER,
    MASK,
    NONE,
    QUERY,
    RANGE,
    TUMBLE,
    UNBOUND,
    WAITS,
)


@njit(cache=True)
def _end_us(kind, length_us, ts_us):  # type: ignore[no-untyped-def]
    if kind == RANGE:
        return ts_us + length_us
    if kind == TUMBLE:
        return (ts_us // length_us + 1) * length_us - 1
    return FOREVER


@njit(cache=True)
def end_of(queries, tuples, row, classes):  # type: ignore[no-untyped-def]
    """The last moment at which another tuple can join a row with members told apart."""
    query = row[QUERY]
    end = queries.until_us[query]
    for alias in range(queries.aliases[query]):
        bound = row[CLASSES + classes + alias]
        if bound >= 0:
            own = _end_us(queries.window[query, alias], queries.window_us[query, alias], tuples.ts_us[bound])
            end = min(end, own)
    return end


@njit(cache=True)
def bind(queries, tuples, row, one, out, classes, told_apart):  # type: ignore[no-untyped-def]
    """Write to `out` the row rewritten by a tuple for the alias it waits for; False if the tuple does not match."""
    query, alias = row[QUERY], row[WAITS]
    ts = tuples.ts_us[one]
    if tuples.stream[one] != queries.stream[query, alias]:
        return False
    if ts < queries.start_us[query] or ts > queries.until_us[query]:
        return False
    condition = queries.filter[query, alias]
    if condition >= 0 and not tuples.passes[one, condition]:
        return False
    out[:] = row
    for slot in range(queries.slots[query]):
        number = queries.slot_class[query, slot]
        if queries.slot_alias[query, slot] != alias or number < 0:
            continue
        value = tuples.value[one, queries.slot_column[query, slot]]
        if value == 0:
            return False
        if out[CLASSES + number] == UNBOUND:
            out[CLASSES + number] = value
        elif out[CLASSES + number] != value:
            return False
    mask = row[MASK] | (1 << alias)
    out[MASK] = mask
    out[WAITS] = NONE
    for number in range(classes):
        if queries.class_mask[query, number] & mask == queries.class_mask[query, number]:
            out[CLASSES + number] = DONE
    if told_apart:
        out[CLASSES + classes + alias] = one
        latest, end = ts, _end_us(queries.window[query, alias], queries.window_us[query, alias], ts)
        for other in range(queries.aliases[query]):
            bound = row[CLASSES + classes + other]
            if bound >= 0:
                at = tuples.ts_us[bound]
                latest = max(latest, at)
                end = min(end, _end_us(queries.window[query, other], queries.window_us[query, other], at))
        if latest > end:
            return False
    return True


@njit(cache=True)
def meet_tuples(  # type: ignore[no-untyped-def]
    queries, tuples, keys, store, counts, refs, at_keys, now_us, window_us, classes, told_apart, is_guarded, answers
):
    """Tuples arrive at keys: count them, keep them, and rewrite the queries that wait there.

    `counts` holds how many rows and tuples the store has. Gives the rewritten rows and where each was made, the same of
    complete rows, and for every arrival how many queries it answered; where members are not told apart complete rows
    are only counted, in `answers`.
    """
    width = store.row.shape[1]
    out, made, complete, made_complete = _room(width), np.empty(64, np.int32), _room(width), np.empty(64, np.int32)
    replies = np.zeros(len(refs), np.int64)
    produced = finished = 0
    scratch = np.empty(width, np.int32)
    epoch = now_us // window_us
    for i in range(len(refs)):
        one, key = refs[i], at_keys[i]
        if keys.epoch[key] != epoch:
            keys.seen_before[key] = keys.seen[key] if keys.epoch[key] == epoch - 1 else 0
            keys.seen[key] = 0
            keys.epoch[key] = epoch
        is_new = True
        if is_guarded:
            kept = keys.first_tuple[key]
            while kept != NONE and is_new:
                is_new = store.tuple_of[kept] != one
                kept = store.tuple_after[kept]
        if is_new:
            keys.seen[key] += 1
            entry = counts[1]
            counts[1] += 1
            store.tuple_of[entry] = one
            store.tuple_after[entry] = keys.first_tuple[key]
            keys.first_tuple[key] = entry
        answered = NONE
        waiting = keys.first_row[key]
        while waiting != NONE:
            row = store.row[waiting]
            waiting = store.after[waiting]
            if not bind(queries, tuples, row, one, scratch, classes, told_apart):
                continue
            query = row[QUERY]
            if scratch[MASK] == (1 << queries.aliases[query]) - 1:
                answers[query] += row[COUNT]
                if query != answered:
                    replies[i] += 1
                    answered = query
                if told_apart:
                    complete, made_complete = _ensure(complete, made_complete, finished)
                    complete[finished] = scratch
                    made_complete[finished] = key
                    finished += 1
            else:
                out, made = _ensure(out, made, produced)
                out[produced] = scratch
                made[produced] = key
                produced += 1
    return out[:produced], made[:produced], complete[:finished], made_complete[:finished], replies


@njit(cache=True)
def meet_rows(  # type: ignore[no-untyped-def]
    queries, tuples, keys, store, keys_of_rows, counts, rows, at_keys, classes, told_apart, is_guarded, answers
):
    """Queries arrive at keys: store them, and rewrite them by the tuples kept there.

    Alike rows whose members are not told apart become one. In a guarded store a row that is there already is not stored
    again, though it is rewritten again. Gives what `meet_tuples` gives.
    """
    width = store.row.shape[1]
    out, made, complete, made_complete = _room(width), np.empty(64, np.int32), _room(width), np.empty(64, np.int32)
    replies = np.zeros(len(rows), np.int64)
    produced = finished = 0
    scratch = np.empty(width, np.int32)
    for i in range(len(rows)):
        row, key = rows[i], at_keys[i]
        query = row[QUERY]
        at = find_alike(queries, tuples, store, keys_of_rows, row, key, classes, is_guarded)
        found = store.alike[at]
        if found != NONE and queries.shown[query, 0] != NONE and not is_guarded:
            continue  # its answers would be no others
        if found != NONE and not told_apart:
            store.row[found, COUNT] = sum_of(store.row[found, COUNT], row[COUNT])
        elif found == NONE or not is_guarded:
            entry = counts[0]
            counts[0] += 1
            store.row[entry] = row
            keys_of_rows[entry] = key
            store.after[entry] = keys.first_row[key]
            keys.first_row[key] = entry
            if found == NONE:
                store.alike[at] = entry
                counts[2] += 1
        answered = False
        kept = keys.first_tuple[key]
        while kept != NONE:
            one = store.tuple_of[kept]
            kept = store.tuple_after[kept]
            if not bind(queries, tuples, row, one, scratch, classes, told_apart):
                continue
            if scratch[MASK] == (1 << queries.aliases[query]) - 1:
                answers[query] += row[COUNT]
                answered = True
                if told_apart:
                    complete, made_complete = _ensure(complete, made_complete, finished)
                    complete[finished] = scratch
                    made_complete[finished] = key
                    finished += 1
            else:
                out, made = _ensure(out, made, produced)
                out[produced] = scratch
                made[produced] = key
                produced += 1
        replies[i] = answered
    return out[:produced], made[:produced], complete[:finished], made_complete[:finished], replies


@njit(cache=True)
def _room(width):  # type: ignore[no-untyped-def]
    return np.empty((64, width), np.int32)


@njit(cache=True)
def _ensure(rows, keys, used):  # type: ignore[no-untyped-def]
    """Room for one more."""
    if used < len(rows):
        return rows, keys
    more_rows, more_keys = np.empty((2 * used, rows.shape[1]), np.int32), np.empty(2 * used, np.int32)
    more_rows[:used] = rows
    more_keys[:used] = keys
    return more_rows, more_keys
