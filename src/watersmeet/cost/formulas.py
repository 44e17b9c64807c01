"""The formulas of the cost model, each once, over NumPy arrays of any shape: the pricer and all planners call these.

Rows of one key value come as a Poisson stream, so that with x expected, any are there with `seen(x) = 1 - exp(-x)`.
Arrays are by cell of a key class; `size` is the number of values in a cell, `share` the share of a side's rows in it.
What the methods of the semijoin paper send follows from these:

    SP-S   rows of the stream                     SP-D   partial combinations
    SM-S1  distinct keys of a batch, then rows that any of them sees in their time
    SM-S2  announcements, those of them that are wanted, then their rows
    SM-D1  announcements, then partial combinations whose key is there
    SM-D2  distinct keys of a batch, announcements found by them, then as SM-D1
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from watersmeet.cost.workload import F64, I64
from watersmeet.program.storage.bloom import BITS, BITS_PER_KEY, HASHES
from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.segments import HIGH, LOW
from watersmeet.program.storage.wire import MESSAGE_BYTES, overhead_bytes

KEY_COLUMNS = 3  # a key, and from when to when it stands
FILTER_BYTES_PER_KEY = BITS_PER_KEY / 8
_TINY = 1e-300
_RAREST = 1e-9  # rows a second of a value below which it is never announced


# Chances


def seen(expected: F64 | float) -> F64:
    """The chance that there is any where so many are expected."""
    found: F64 = -np.expm1(-np.asarray(expected, float))
    return found


def expected_where_seen(chance: F64) -> F64:
    """The inverse of `seen`: how many are expected where there is any with this chance."""
    found: F64 = -np.log1p(-np.minimum(chance, 1 - 1e-12))
    return found


def present(rate: F64, window_s: F64) -> tuple[F64, F64]:
    """The chance that a window has a row of a value, and how often a second that begins, over that chance.

    All of several streams have one with the product of the chances; that begins as often as their sum, times it.
    """
    load = rate * window_s
    there = np.maximum(seen(load), _TINY)
    return there, rate * np.exp(-load) / there


def present_some_time(chance: F64, begins: F64, time_s: F64 | float) -> F64:
    """The chance that several windows all have a row of a value at once, some time of a while.

    `chance` is that of any one instant; all have one anew whenever the only one without it gets one, `begins` a second.
    """
    missing = np.maximum(1 - chance, 1e-12)
    found: F64 = 1 - missing * np.exp(-begins * time_s / missing)
    return found


def together(rate: F64, window_s: F64, time_s: F64 | float = 0.0) -> F64:
    """`present_some_time` of streams: `rate[i, b]` is that of one value of cell b in stream i."""
    there, begins = present(rate, window_s[:, None])
    chance = there.prod(axis=0)
    return present_some_time(chance, chance * begins.sum(axis=0), time_s)


def with_false_positives(share: F64, false: F64 | float) -> F64:
    """The share that a Bloom filter lets through where a share is really there."""
    return share + (1 - share) * false


def false_positives(window_s: float, batch_interval_s: float) -> float:
    """The chance that any of the filters of a window claims a key that it does not hold."""
    one_filter = (1 - float(np.exp(-HASHES / BITS_PER_KEY))) ** HASHES
    return float(1 - (1 - one_filter) ** max(window_s / batch_interval_s, 1.0))


# Rows that meet


def rows_in(window: F64 | float, rate: F64 | float, time_s: F64 | float) -> F64:
    """Rows that are in a window at some time of a while: those there at first, and those that come."""
    return np.asarray(window + rate * time_s)


def rows_per_value(rows: F64 | float, share: F64, size: F64) -> F64:
    """Rows, or rows a second, for one value of each cell."""
    found: F64 = rows * share / np.maximum(size, _TINY)
    return found


def clump(fan_out: F64 | float) -> F64:
    """How many combinations a head row that has any is in, where it is in so many on average."""
    fan_out = np.maximum(fan_out, 1e-12)
    found: F64 = fan_out / seen(fan_out)
    return found


def sum_cells(one: F64, other: F64) -> F64:
    """The sums of products over the cells, which are the last axis."""
    found: F64 = np.einsum("...c,...c->...", one, other)
    return found


# Keys


def announcements(rate: F64, window_s: F64 | float) -> tuple[F64, F64]:
    """How often a key that comes at a rate is announced, and for how long each announcement holds on average.

    A span lasts one window from the row that begins it; if rows came meanwhile, the next goes on from its end.
    """
    rate = np.maximum(np.asarray(rate, float), 1e-12)
    window_s = np.maximum(window_s, 1e-9)
    load = np.minimum(rate * window_s, 700.0)
    goes_on = seen(load)
    gap = 1 / rate - window_s * np.exp(-load) / np.maximum(goes_on, 1e-12)  # since the last row before the end
    longer = np.clip(window_s - gap, 1e-9, window_s)
    again = seen(rate * longer)
    first = (1 - again) / np.maximum(goes_on + 1 - again, 1e-12)  # the share of spans that begin a presence
    length = first * window_s + (1 - first) * longer
    idle = (first * (1 - goes_on) + (1 - first) * (1 - again)) / rate
    return 1 / (length + idle), length


def announced_per_value(rate: F64, window_s: F64 | float) -> tuple[F64, F64]:
    """`announcements`, none of values that hardly ever come."""
    often, length = announcements(rate, window_s)
    return np.where(rate > _RAREST, often, 0.0), length


def distinct_keys(rows_per_value: F64, batch_interval_s: float, *, together: F64 | None = None) -> F64:
    """Distinct keys a second, batch by batch, for one value of each cell.

    `together` bounds the chance that a batch has the value: combinations come in clumps.
    """
    there = seen(rows_per_value * batch_interval_s)
    found: F64 = (there if together is None else np.minimum(there, together)) / batch_interval_s
    return found


def clumped_rate(rate: F64, chance: F64, lifetime_s: F64 | float) -> F64:
    """The rate of combinations, which come in clumps: at most that of a stream that is there as often as they are."""
    return np.minimum(rate, expected_where_seen(chance) / np.maximum(lifetime_s, _TINY))


# Watermarks and parcels


def advances(rates: F64 | Sequence[float], comes: F64 | Sequence[float]) -> float:
    """The chance that the low watermark of some streams advances in a batch interval, which has rows of each with one.

    It does when rows come of the stream whose last row is the oldest. That is stream i with the chance that all others
    have come since: the integral over i's age t of  rate_i exp(-rate_i t) * product of 1 - exp(-rate_j t)  over them.
    """
    rate = np.asarray(rates, float)
    if len(rate) == 0 or rate.min() <= 0:
        return 0.0
    if len(rate) == 1:
        return float(comes[0])
    age = (_AGES / rate[:, None])[:, :, None]  # by stream and quantile of its age
    younger = seen(rate * age)  # of every other one
    place = np.arange(len(rate))
    younger[place, :, place] = 1.0
    oldest = younger.prod(axis=2).mean(axis=1)
    return float((oldest * np.asarray(comes)).sum() / max(oldest.sum(), _TINY))


_AGES = -np.log1p(-(np.arange(200) + 0.5) / 200)  # quantiles of an exponential age


def has_rows(rate: float, batch_interval_s: float, comes: float) -> float:
    """The chance that a batch interval has rows of a flow, which only may where rows of its streams come."""
    return comes * float(seen(rate * batch_interval_s / max(comes, _TINY)))


def any_of(chances: Sequence[float], within: float) -> float:
    """The chance of any of several events, each of which may only happen with another one of chance `within`."""
    if within <= 0:
        return 0.0
    missing = np.prod([1 - min(chance / within, 1.0) for chance in chances])
    return float(within * (1 - missing))


# Bytes


def messages_per_s(rate: F64 | float, batch_interval_s: float) -> F64:
    """Messages a second of a flow, with one for each batch that has any rows."""
    found: F64 = seen(np.asarray(rate) * batch_interval_s) / batch_interval_s
    return found


def rows_per_message(rate: F64 | float, messages: F64 | float) -> F64:
    """Rows in each message of a flow."""
    found: F64 = rate / np.maximum(messages, 1e-12)
    return found


def flow_bytes(rate: F64 | float, row_bytes: F64 | float, messages: F64 | float, columns: I64 | int) -> F64:
    """Bytes a second of rows with so many columns."""
    return np.asarray(messages * overhead_bytes(np.asarray(columns)) + rate * row_bytes)


def key_flow_bytes(rate: F64 | float, key_bytes: F64 | float, messages: F64 | float) -> F64:
    """Bytes a second of keys with the times they stand for."""
    return flow_bytes(rate, key_bytes, messages, KEY_COLUMNS)


def filter_flow_bytes(rate: F64, messages: F64) -> F64:
    """Bytes a second of Bloom filters of so many keys, linear in the rate: at most 8 a message above `bloom_bytes`."""
    return messages * bloom_bytes(0.0) + rate * FILTER_BYTES_PER_KEY


def bloom_bytes(keys: float) -> float:
    """What a message with the filter of so many keys takes."""
    return _empty_filter_bytes() + max(8.0, keys * FILTER_BYTES_PER_KEY)


@cache
def _empty_filter_bytes() -> int:
    row = {LOW: [2**52], HIGH: [2**52 + 2**23], BITS: [bytes(range(7, 15))]}
    return MESSAGE_BYTES + len(pack_rows(pa.table(row))) - 8
