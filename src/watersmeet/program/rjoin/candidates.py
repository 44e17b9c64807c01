"""Where a query is to wait next (RJoin sections 6 and 7): candidate keys, what nodes know of rates, the choice."""

import numpy as np
from numba import njit

from watersmeet.program.rjoin.arrays import CLASSES, COUNT, MASK, NO_VALUE, NONE, QUERY, UNBOUND, WAITS
from watersmeet.program.rjoin.keys import key_number, mixed, rate_of

RJOIN, WORST, RANDOM, FIRST = 0, 1, 2, 3


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
def recall(table, node, keys):  # type: ignore[no-untyped-def]
    """Rates, hosts and times of learning that a node has for keys; the time is NONE where it has none."""
    rates, hosts = np.zeros(len(keys), np.float32), np.zeros(len(keys), np.int32)
    learned_us = np.full(len(keys), NONE, np.int64)
    for i in range(len(keys)):
        at = find_candidate(table, node, keys[i])
        if table.slots[at] != NONE:
            rates[i], hosts[i], learned_us[i] = table.rate[at], table.host[at], table.learned_us[at]
    return rates, hosts, learned_us


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
