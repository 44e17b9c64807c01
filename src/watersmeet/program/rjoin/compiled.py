"""RJoin's inner loops over arrays: a tuple meets the queries that wait at a key, a query meets the tuples kept there.

A rewritten query is a row of whole numbers: which query, how many members it stands for, which aliases are bound, which
one it waits for at its key, the value of each class of equal attributes, and, where members are told apart, the tuple
bound to each alias. Rows of one key form a list through `Store.after`, so that storing is constant work and nothing
moves.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]

QUERY, COUNT, MASK, WAITS, CLASSES = 0, 1, 2, 3, 4  # columns of a row; values of classes follow, then references
UNBOUND, DONE = -1, -2  # instead of a value: no tuple has told it yet; every alias that has it is bound
NONE = -1
NO_VALUE = 0  # a key's value part at the attribute level; codes of values begin with 1
RANGE, TUMBLE, FREE = 0, 1, 2  # windows as far as one tuple tells their end; ROWS is seen to when a row is complete
FOREVER = np.int64(1 << 62)
_MOST_ALIKE = (1 << 31) - 1  # that one row can stand for

RJOIN, WORST, RANDOM, FIRST = 0, 1, 2, 3


class Queries(NamedTuple):
    """All queries, one a line; lines are as wide as the widest query needs."""

    stream: Ints  # of each alias
    aliases: Ints  # how many
    slots: Ints  # how many key attributes, in the order of the WHERE clause
    slot_alias: Ints
    slot_column: Ints
    slot_attribute: Ints
    slot_class: Ints  # NONE: an attribute to wait at, equal to nothing
    class_mask: Ints  # the aliases of each class
    window: Ints
    window_us: Longs
    start_us: Longs
    until_us: Longs
    filter: Ints  # of each alias, NONE where it has none
    home: Ints  # the node that wants the answers
    shown: Longs  # of each alias, the columns that a DISTINCT answer shows, as bits; NONE where all rows count


class Tuples(NamedTuple):
    """All tuples: messages carry their values, and every reader finds them here."""

    stream: Ints
    ts_us: Longs
    value: Ints  # codes of values, 0 for NULL
    passes: NDArray[np.bool_]  # each filter


class Keys(NamedTuple):
    """What is known of each key: an attribute, or an attribute with a value."""

    slots: Longs  # hash table: packed attribute and value, NONE where empty
    number: Ints  # and the key's number
    packed: Longs  # by number
    host: Ints  # the node that has the key
    first_row: Ints
    first_tuple: Ints
    seen: Longs  # tuples that came in the current epoch
    seen_before: Longs  # and in the one before
    epoch: Longs


class Store(NamedTuple):
    """Waiting rows and kept tuples, in lists by key."""

    row: Ints
    after: Ints
    alike: Ints  # hash table of rows with the same key, query, mask and values
    tuple_of: Ints
    tuple_after: Ints


class Candidates(NamedTuple):
    """What nodes know of keys elsewhere: node and key packed, rate, owner, and when it was learned."""

    slots: Longs
    rate: NDArray[np.float32]
    host: Ints
    learned_us: Longs


@njit(cache=True, inline="always")
def mixed(x):  # type: ignore[no-untyped-def]
    """A number's bits well stirred."""
    z = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def key_number(keys, attribute, value, known):  # type: ignore[no-untyped-def]
    """The number of a key; a new one gets the number `known`, and the caller sees to the rest."""
    packed = (np.int64(attribute) << 32) | np.int64(value)
    mask = np.uint64(len(keys.slots) - 1)
    at = mixed(packed) & mask
    while keys.slots[at] != NONE:
        if keys.slots[at] == packed:
            return keys.number[at]
        at = (at + np.uint64(1)) & mask
    keys.slots[at] = packed
    keys.number[at] = known
    keys.packed[known] = packed
    return known


@njit(cache=True)
def number_keys(keys, attributes, values, known):  # type: ignore[no-untyped-def]
    """The numbers of keys, and how many are known then."""
    numbers = np.empty(len(attributes), np.int32)
    for i in range(len(attributes)):
        numbers[i] = key_number(keys, attributes[i], values[i], known)
        if numbers[i] == known:
            known += 1
    return numbers, known


@njit(cache=True)
def find_candidate(table, node, key):  # type: ignore[no-untyped-def]
    """Where a node's entry for a key is, or where it would be."""
    packed = (np.int64(node) << 32) | np.int64(key)
    mask = np.uint64(len(table.slots) - 1)
    at = mixed(packed) & mask
    while table.slots[at] != NONE and table.slots[at] != packed:
        at = (at + np.uint64(1)) & mask
    return at


@njit(cache=True)
def learn(table, nodes, keys, rates, hosts, learned_us):  # type: ignore[no-untyped-def]
    """Enter what nodes are told; the newer word counts. How many entries are new."""
    fresh = 0
    for i in range(len(nodes)):
        at = find_candidate(table, nodes[i], keys[i])
        if table.slots[at] == NONE:
            table.slots[at] = (np.int64(nodes[i]) << 32) | np.int64(keys[i])
            fresh += 1
        elif table.learned_us[at] > learned_us[i]:
            continue
        table.rate[at] = rates[i]
        table.host[at] = hosts[i]
        table.learned_us[at] = learned_us[i]
    return fresh


@njit(cache=True)
def rate_of(keys, key, now_us, window_us):  # type: ignore[no-untyped-def]
    """Tuples a window at a key, by those of the last one."""
    epoch = now_us // window_us
    share = np.float64(now_us - epoch * window_us) / np.float64(window_us)
    if keys.epoch[key] == epoch:
        return keys.seen_before[key] * (1.0 - share) + keys.seen[key]
    if keys.epoch[key] == epoch - 1:
        return keys.seen[key] * (1.0 - share)
    return 0.0


@njit(cache=True)
def rates_of(keys, asked, now_us, window_us):  # type: ignore[no-untyped-def]
    """The rates of keys."""
    rates = np.empty(len(asked), np.float32)
    for i in range(len(asked)):
        rates[i] = rate_of(keys, asked[i], now_us, window_us)
    return rates


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
def _find_alike(queries, tuples, store, keys_of_rows, row, key, classes, is_guarded):  # type: ignore[no-untyped-def]
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
        at = _find_alike(queries, tuples, store, keys_of_rows, row, key, classes, is_guarded)
        if store.alike[at] == NONE:
            store.alike[at] = entry
            entered += 1
    return entered


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
        at = _find_alike(queries, tuples, store, keys_of_rows, row, key, classes, is_guarded)
        found = store.alike[at]
        if found != NONE and queries.shown[query, 0] != NONE and not is_guarded:
            continue  # its answers would be no others
        if found != NONE and not told_apart:
            store.row[found, COUNT] = _sum_of(store.row[found, COUNT], row[COUNT])
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
def _sum_of(count, more):  # type: ignore[no-untyped-def]
    both = np.int64(count) + np.int64(more)
    if both > _MOST_ALIKE:
        raise OverflowError("more than 2,147,483,647 rewritten queries are alike: count fewer queries or tuples")
    return both


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
            rows[table[at], COUNT] = _sum_of(rows[table[at], COUNT], rows[i, COUNT])
    return kept


@njit(cache=True)
def candidate_keys(queries, keys, rows, known, classes, pairs):  # type: ignore[no-untyped-def]
    """For each row and slot the key that would serve, NONE where the slot is none; and how many keys are known then.

    A slot whose class has a value serves with it; one without serves as a pair of relation and attribute, unless
    `pairs` is false and the row, being rewritten, has a slot with a value.
    """
    out = np.full((len(rows), queries.slot_alias.shape[1]), NONE, np.int32)
    for i in range(len(rows)):
        query, mask = rows[i, QUERY], rows[i, MASK]
        has_value = False
        for slot in range(queries.slots[query]):
            number = queries.slot_class[query, slot]
            if number >= 0 and not (mask >> queries.slot_alias[query, slot]) & 1 and rows[i, CLASSES + number] > 0:
                has_value = True
        for slot in range(queries.slots[query]):
            if (mask >> queries.slot_alias[query, slot]) & 1:
                continue
            number = queries.slot_class[query, slot]
            value = rows[i, CLASSES + number] if number >= 0 else UNBOUND
            if value == UNBOUND:
                if has_value and not pairs:
                    continue
                value = NO_VALUE
            key = key_number(keys, queries.slot_attribute[query, slot], value, known)
            if key == known:
                known += 1
            out[i, slot] = key
    return out, known


@njit(cache=True)
def pass_on(table, keys_of_slots, senders, receivers):  # type: ignore[no-untyped-def]
    """What a sender knows of a query's candidates comes to the receiver with it. How many entries are new."""
    fresh = 0
    for i in range(len(senders)):
        if senders[i] == receivers[i]:
            continue
        for slot in range(keys_of_slots.shape[1]):
            key = keys_of_slots[i, slot]
            if key == NONE:
                continue
            source = find_candidate(table, senders[i], key)
            if table.slots[source] == NONE:
                continue
            target = find_candidate(table, receivers[i], key)
            if table.slots[target] == NONE:
                table.slots[target] = (np.int64(receivers[i]) << 32) | np.int64(key)
                fresh += 1
            elif table.learned_us[target] >= table.learned_us[source]:
                continue
            table.rate[target] = table.rate[source]
            table.host[target] = table.host[source]
            table.learned_us[target] = table.learned_us[source]
    return fresh


@njit(cache=True)
def missing(table, keys_of_slots, nodes, oldest_us):  # type: ignore[no-untyped-def]
    """Pairs of node and key whose rate must be asked for, each once, the owner's address where it is known, and the
    first row that wants it.
    """
    asked_nodes, asked_keys = np.empty(64, np.int32), np.empty(64, np.int32)
    hosts, wanted_by = np.empty(64, np.int32), np.empty(64, np.int32)
    lacks = np.zeros(len(nodes), np.bool_)
    size = 256
    seen = np.full(size, NONE, np.int64)
    count = 0
    for i in range(len(nodes)):
        for slot in range(keys_of_slots.shape[1]):
            key = keys_of_slots[i, slot]
            if key == NONE:
                continue
            entry = find_candidate(table, nodes[i], key)
            is_known = table.slots[entry] != NONE
            if is_known and table.learned_us[entry] >= oldest_us:
                continue
            lacks[i] = True
            packed = (np.int64(nodes[i]) << 32) | np.int64(key)
            if 2 * count >= size:
                bigger = np.full(4 * size, NONE, np.int64)
                for old in range(size):
                    if seen[old] != NONE:
                        place = mixed(seen[old]) & np.uint64(4 * size - 1)
                        while bigger[place] != NONE:
                            place = (place + np.uint64(1)) & np.uint64(4 * size - 1)
                        bigger[place] = seen[old]
                seen = bigger
                size *= 4
            at = mixed(packed) & np.uint64(size - 1)
            while seen[at] != NONE and seen[at] != packed:
                at = (at + np.uint64(1)) & np.uint64(size - 1)
            if seen[at] == packed:
                continue
            seen[at] = packed
            if count == len(asked_nodes):
                more = np.empty(2 * count, np.int32)
                more[:count] = asked_nodes
                asked_nodes = more
                more = np.empty(2 * count, np.int32)
                more[:count] = asked_keys
                asked_keys = more
                more = np.empty(2 * count, np.int32)
                more[:count] = hosts
                hosts = more
                more = np.empty(2 * count, np.int32)
                more[:count] = wanted_by
                wanted_by = more
            asked_nodes[count] = nodes[i]
            asked_keys[count] = key
            wanted_by[count] = i
            hosts[count] = table.host[entry] if is_known else NONE
            count += 1
    return lacks, asked_nodes[:count], asked_keys[:count], hosts[:count], wanted_by[:count]


@njit(cache=True)
def choose(  # type: ignore[no-untyped-def]
    queries, keys, table, rows, nodes, keys_of_slots, strategy, seed, now_us, window_us
):
    """Let each row wait for the alias of its best slot: gives the key, and the key's owner where the node knows it.

    RJOIN takes the lowest rate the node has heard of, WORST the highest there is; among equals, and for RANDOM, chance
    decides, by a number drawn from the seed, the node, the moment and the row; so alike rows, whether they are one or
    many, go the same way.
    """
    chosen, hosts = np.empty(len(rows), np.int32), np.full(len(rows), NONE, np.int32)
    for i in range(len(rows)):
        row = rows[i]
        best_slot, best_cost, ties = NONE, 0.0, 0
        chance = mixed(np.uint64(seed) ^ mixed(np.uint64(nodes[i]) ^ mixed(now_us)))
        for column in range(CLASSES + queries.class_mask.shape[1]):
            if column != COUNT and column != WAITS:
                chance = mixed(chance ^ np.uint64(row[column] + 3))
        for slot in range(keys_of_slots.shape[1]):
            key = keys_of_slots[i, slot]
            if key == NONE:
                continue
            cost = 0.0
            if strategy == RJOIN:
                entry = find_candidate(table, nodes[i], key)
                if table.slots[entry] != NONE:
                    cost = np.float64(table.rate[entry])
            elif strategy == WORST:
                cost = -rate_of(keys, key, now_us, window_us)
            elif strategy == FIRST:
                cost = np.float64(slot)
            if best_slot == NONE or cost < best_cost:
                best_slot, best_cost, ties = slot, cost, 1
            elif cost == best_cost:
                ties += 1
                chance = mixed(chance)
                if chance % np.uint64(ties) == 0:
                    best_slot = slot
        key = keys_of_slots[i, best_slot]
        row[WAITS] = queries.slot_alias[row[QUERY], best_slot]
        chosen[i] = key
        if strategy == RJOIN:
            entry = find_candidate(table, nodes[i], key)
            if table.slots[entry] != NONE:
                hosts[i] = table.host[entry]
    return chosen, hosts


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


@njit(cache=True)
def recall(table, node, keys):  # type: ignore[no-untyped-def]
    """Rates, hosts and times of learning that a node has for keys; the time is NONE where it has none."""
    rates, hosts = np.zeros(len(keys), np.float32), np.zeros(len(keys), np.int32)
    learned_us = np.full(len(keys), NONE, np.int64)
    for i in range(len(keys)):
        at = find_candidate(table, node, keys[i])
        if table.slots[at] != NONE:
            rates[i], hosts[i], learned_us[i] = table.rate[at], table.host[at], table.learned_us[at]
    return rates, hosts, learned_us
