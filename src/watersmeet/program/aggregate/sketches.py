"""Sketches as lists of bounded length, for all groups at once: exact while they are not full, and never random.

    smallest  the k least hashes of the values (bottom-k, as a theta sketch): the same whatever the order of merging
    sample    values with weights, from which those at equal steps of rank are kept: a quantile summary. Each time it is
              cut to m values, ranks are off by a share 1 / m more at most; merging in levels cuts it a few times
    heaviest  values with counts, of which the m greatest are kept, all less the (m + 1)-th count (Misra-Gries, made
              mergeable by Agarwal et al.): counts are too low by a share 1 / (m + 1) of the rows at most, in any order

Sketches of a library are an object a group and toss coins: a micro-batch done again would give another answer.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from watersmeet.program.storage.segments import mixed

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def hashes_of(values: pa.Array) -> I64:
    """A hash of each value that is not NULL, the same on every machine; 0.0 is -0.0."""
    kind = values.type
    if kinds.is_floating(kind):
        numbers = pc.add(values, pa.scalar(0.0, kind)).cast(pa.float64()).to_numpy(zero_copy_only=False)
        numbers = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    elif kinds.is_integer(kind) or kinds.is_boolean(kind) or (kinds.is_temporal(kind) and kind.bit_width == 64):
        numbers = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    else:
        from pandas.util import hash_array  # takes long to load, and most queries never come here

        coded = values.dictionary_encode()
        texts = coded.dictionary if kinds.is_binary(kind) else coded.dictionary.cast(pa.string())
        hashed = hash_array(np.array(texts.to_pylist(), object), categorize=False)
        numbers = hashed.view(np.int64)[coded.indices.to_numpy(zero_copy_only=False)]
    return _avalanche(np.ascontiguousarray(numbers, np.int64).view(np.uint64)).view(np.int64)


def _avalanche(x: U64) -> U64:
    """Every bit of the result depends on every bit of the argument (the finaliser of MurmurHash3)."""
    x = mixed(x)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def smallest(lists: pa.Array, groups: I64, count: int, most: int) -> pa.Array:
    """The least hashes of each group, in order."""
    owners, hashes = _owners(lists, groups), _flat(lists).to_numpy(zero_copy_only=False).view(np.uint64)
    order = np.lexsort((hashes, owners))
    owners, hashes = owners[order], hashes[order]
    fresh = np.r_[True, (owners[1:] != owners[:-1]) | (hashes[1:] != hashes[:-1])][: len(owners)]
    owners, hashes = owners[fresh], hashes[fresh]
    kept = _ranks(owners) < most
    return _lists(owners[kept], pa.array(hashes[kept].view(np.int64)), count)


def distinct_count(lists: pa.Array, most: int) -> pa.Array:
    """How many values there are by the least of their hashes."""
    sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    hashes, ends = _flat(lists).to_numpy(zero_copy_only=False).view(np.uint64), np.cumsum(sizes)
    counts = sizes.astype(np.int64)
    full = np.flatnonzero(sizes >= most)
    share = (hashes[ends[full] - 1].astype(np.float64) + 1.0) / 2.0**64
    counts[full] = np.rint((most - 1) / share).astype(np.int64)
    return pa.array(counts)


class Weighted:
    """The values of all groups with their weights, in order of group and value, NULL last."""

    def __init__(self, lists: pa.Array, weights: pa.Array, groups: I64) -> None:
        owners, coded = _owners(lists, groups), _flat(lists).dictionary_encode(null_encoding="encode")
        order = pc.array_sort_indices(coded.dictionary)
        rank = np.empty(len(order), np.int64)
        rank[order.to_numpy()] = np.arange(len(order))
        ranks = rank[coded.indices.to_numpy(zero_copy_only=False)]
        size = max(len(order), 1)
        pairs, place = np.unique(owners * size + ranks, return_inverse=True)
        self.weights = np.zeros(len(pairs), np.int64)
        np.add.at(self.weights, place, _flat(weights).to_numpy(zero_copy_only=False))
        self.owners = pairs // size
        self.values = coded.dictionary.take(order.take(pa.array(pairs % size)))

    def take(self, places: I64, weights: I64, count: int) -> tuple[pa.Array, pa.Array]:
        """Some values with other weights, as lists."""
        owners = self.owners[places]
        return _lists(owners, self.values.take(pa.array(places)), count), _lists(owners, pa.array(weights), count)


def sample(lists: pa.Array, weights: pa.Array, groups: I64, count: int, most: int) -> tuple[pa.Array, pa.Array]:
    """The values of each group with their weights, at most so many, the least and greatest among them."""
    given = Weighted(lists, weights, groups)
    sizes = np.bincount(given.owners, minlength=count)
    full = np.flatnonzero(sizes > most)
    if not len(full):
        return given.take(np.arange(len(given.owners)), given.weights, count)
    totals = np.concatenate([[0], np.cumsum(given.weights)])
    edges = np.concatenate([[0], np.cumsum(sizes)])
    low, high = totals[edges[full]], totals[edges[full + 1]]
    steps = np.arange(most + 1)
    bounds = low[:, None] + (high - low)[:, None] * steps // most  # weights of at most 2 ** 63 / most
    middle = (bounds[:, :-1] + bounds[:, 1:]) // 2
    places = np.searchsorted(totals[1:], middle, "right")
    places[:, 0], places[:, -1] = edges[full], edges[full + 1] - 1
    chosen, where = np.unique(places.ravel(), return_inverse=True)
    new = np.zeros(len(chosen), np.int64)
    np.add.at(new, where, np.diff(bounds).ravel())
    rest = np.flatnonzero((sizes <= most)[given.owners])
    every = np.concatenate([rest, chosen])
    order = np.argsort(every)
    return given.take(every[order], np.concatenate([given.weights[rest], new])[order], count)


def percentiles(lists: pa.Array, weights: pa.Array, shares: tuple[float, ...]) -> list[pa.Array]:
    """The least value up to which a share of all values is, for each share; NULL where there are none."""
    sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    values, ends = _flat(lists), np.cumsum(sizes)
    totals = np.concatenate([[0], np.cumsum(_flat(weights).to_numpy(zero_copy_only=False))])
    low, high = totals[ends - sizes], totals[ends]
    found = []
    for share in shares:
        rank = low + np.clip(np.ceil(share * (high - low)), 1, None).astype(np.int64)
        place = np.searchsorted(totals[1:], np.minimum(rank, high), "left")
        found.append(values.take(pa.array(place, mask=sizes == 0)))
    return found


def heaviest(lists: pa.Array, weights: pa.Array, groups: I64, count: int, most: int) -> tuple[pa.Array, pa.Array]:
    """The most frequent values of each group with their counts, at most so many."""
    given = Weighted(lists, weights, groups)
    order = np.lexsort((-given.weights, given.owners))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = _ranks(given.owners[order])
    lost = np.zeros(count, np.int64)  # the count of the first value that has no place
    first = np.flatnonzero(ranks == most)
    lost[given.owners[first]] = given.weights[first]
    left = given.weights - lost[given.owners]
    kept = np.flatnonzero((ranks < most) & (left > 0))
    return given.take(kept, left[kept], count)


def counted(lists: pa.Array, weights: pa.Array, groups: I64, count: int) -> tuple[pa.Array, pa.Array]:
    """All values of each group with their counts."""
    given = Weighted(lists, weights, groups)
    return given.take(np.arange(len(given.owners)), given.weights, count)


def extremes(lists: pa.Array, groups: I64, count: int, most: int, *, greatest: bool) -> pa.Array:
    """The greatest or least values of each group, in that order, at most so many; NaN is greater than any number."""
    owners, values = _owners(lists, groups), _flat(lists)
    order = pc.array_sort_indices(values).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    chosen = np.lexsort((-rank if greatest else rank, owners))
    chosen = chosen[_ranks(owners[chosen]) < most]
    return _lists(owners[chosen], values.take(pa.array(chosen)), count)


def top(lists: pa.Array, weights: pa.Array, k: int) -> pa.Array:
    """The k most frequent values of each group with their counts, equal counts in order of the values."""
    given = Weighted(lists, weights, np.arange(len(lists)))
    order = np.lexsort((-given.weights, given.owners))
    chosen = order[_ranks(given.owners[order]) < k]
    values, counts = given.values.take(pa.array(chosen)), pa.array(given.weights[chosen])
    items = pa.StructArray.from_arrays([values, counts], ["item", "count"])
    return _lists(given.owners[chosen], items, len(lists))


def _flat(lists: pa.Array) -> pa.Array:
    return lists.flatten()


def _owners(lists: pa.Array, groups: I64) -> I64:
    owners: I64 = np.repeat(groups, pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    return owners


def _ranks(owners: I64) -> I64:
    """The place of each among those of its owner, which stand together."""
    places: I64 = np.arange(len(owners)) - np.searchsorted(owners, owners)
    return places


def _lists(owners: I64, values: Any, count: int) -> pa.Array:
    """The values of each owner as a list; owners are in order."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
