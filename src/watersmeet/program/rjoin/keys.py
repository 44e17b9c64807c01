"""The keys of RJoin's hash table by their numbers, and how many tuples come to each (RIC, section 6).

A function that is compiled into others, as `mixed` is, is cached with them: numba looks at their files only.
"""

import numpy as np
from numba import njit

from watersmeet.program.rjoin.arrays import NONE


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
