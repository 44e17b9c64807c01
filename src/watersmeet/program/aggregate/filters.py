"""Histograms, Bloom filters and spectral Bloom filters: the places that values have in them, and what they say.

A filter has `hashes` places for each value. A Bloom filter knows which places were met; a spectral one (Cohen and
Matias) counts how often, so that the least count of its places bounds how often a value came.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.aggregate.kernels import I64
from watersmeet.program.aggregate.sketches import hashes_of


def positions(values: pa.Array, size: int, hashes: int) -> pa.Array:
    """The places of each value that is not NULL, one value after the other (double hashing)."""
    mixed = hashes_of(values).view(np.uint64)
    first, step = mixed >> np.uint64(32), (mixed & np.uint64(0xFFFF_FFFF)) | np.uint64(1)
    places = (first[:, None] + step[:, None] * np.arange(hashes, dtype=np.uint64)) % np.uint64(size)
    return pa.array(places.ravel().astype(np.int64))


def buckets(values: pa.Array, low: float, high: float, count: float) -> pa.Array:
    """The bucket of each number, of so many from low to high; 0 is for what is below and the last for what is above."""
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        places = np.floor((numbers - low) / (high - low) * count)
    places = np.where(numbers < low, -1, np.where(numbers >= high, count, places))
    places = np.where(np.isnan(numbers), count, places)  # NaN is greater than any number
    return pa.array((places + 1).astype(np.int64))


def counters(lists: pa.Array, weights: pa.Array, size: int) -> pa.Array:
    """The count of every place, for each group."""
    made = np.zeros((len(lists), size), np.int64)
    owners = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    np.add.at(made, (owners, lists.flatten().to_numpy()), weights.flatten().to_numpy())
    return pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), size).cast(pa.list_(pa.int64()))


def bitmaps(lists: pa.Array, bits: int) -> pa.Array:
    """One bit for every place, for each group."""
    made = np.zeros((len(lists), bits), bool)
    owners = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    made[owners, lists.flatten().to_numpy()] = True
    return pa.array([row.tobytes() for row in np.packbits(made, axis=1, bitorder="little")], pa.binary())


def might_contain(bitmap: bytes, values: pa.Array, bits: int, hashes: int) -> Any:
    """Which values may have been added: all that were, and a few that were not."""
    places = positions(values, bits, hashes).to_numpy().reshape(-1, hashes)
    met = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little").astype(bool)
    return met[places].all(axis=1)


def most_counts(counts: I64, values: pa.Array, hashes: int) -> I64:
    """How often each value was added at most."""
    places = positions(values, len(counts), hashes).to_numpy().reshape(-1, hashes)
    found: I64 = counts[places].min(axis=1)
    return found
