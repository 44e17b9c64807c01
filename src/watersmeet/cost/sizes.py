"""How many bytes values take on links, by how many rows travel together."""

from collections.abc import Sequence
from math import log10

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watersmeet.stats.model import BATCH_ROWS, BytesByBatch

F64 = NDArray[np.float64]

_LEAST_MARK_BYTES, _MOST_MARK_BYTES = 0.02, 3.0  # of a value that is in the batch before
TIMESTAMP_SIZES = (7.0, 3.6, 2.1, 1.7, 1.6)  # measured, rows of a second
PLACE_SIZES = (7.0, 3.4, 3.0, 2.8, 2.8)  # the same in another order than that of time
# What the times of some rows of a regular stream take at least: measured, by how uncertain it is which rows they are.
_THINNED_SIZES, _THINNED_SIZES_PER_BIT = (0.0, 2.2, 0.5, 0.15, 0.1), (0.0, 0.25, 0.33, 0.28, 0.28)
_RAREST_SHARE = 1e-6
HASH_SIZES: BytesByBatch = (8.0, 8.0, 8.0, 8.0, 8.0)  # of a key that does not fit into 64 bits
_BATCHES = len(BATCH_ROWS)


def summed(sizes: Sequence[ArrayLike]) -> F64:
    """The bytes of several sets of values, each together, in batches as in `BATCH_ROWS`."""
    return np.array([np.reshape(of, (-1, _BATCHES)).sum(axis=0) for of in sizes]).reshape(-1, _BATCHES)


def repeated(sizes: BytesByBatch, first: float, batch_rows: float) -> float:
    """Bytes of a value in a batch in which a share of the values is there for the first time, the rest as marks.

    Measured: where values come again many times a mark is next to nothing, and where they come again once or twice
    about half of what narrow numbers take is left.
    """
    if first >= 1:
        return one_size(sizes, batch_rows)
    once = one_size(sizes, first * batch_rows)
    mark = _LEAST_MARK_BYTES + min(once, _MOST_MARK_BYTES) * min(0.5, 5 * first**2)
    return first * once + (1 - first) * min(once, mark)


def size_at(sizes: ArrayLike, batch_rows: ArrayLike) -> F64:
    """Bytes in batches of so many rows, between those known for `BATCH_ROWS`, which are the last axis.

    >>> size_at((8.0, 4.0, 2.0, 1.0, 1.0), [1.0, 10.0, 1_000.0, 1e6]).tolist()
    [8.0, 4.0, 1.0, 1.0]
    """
    known = np.asarray(sizes, float)
    place = np.log10(np.maximum(batch_rows, 1.0))
    found: F64 = known[..., 0] + np.zeros_like(place)
    for number in range(_BATCHES - 1):
        found = found + (known[..., number + 1] - known[..., number]) * np.minimum(np.maximum(place - number, 0.0), 1.0)
    return found


def one_size(sizes: BytesByBatch, batch_rows: float) -> float:
    """`size_at` of one value in one batch, without arrays: planners ask for it ten thousand times.

    >>> one_size((8.0, 4.0, 2.0, 1.0, 1.0), 10.0), one_size((8.0, 4.0, 2.0, 1.0, 1.0), 1e6)
    (4.0, 1.0)
    """
    place = log10(max(batch_rows, 1.0))
    before = int(place)
    if before >= _BATCHES - 1:
        return sizes[-1]
    return sizes[before] + (sizes[before + 1] - sizes[before]) * (place - before)


def thinned(sizes: ArrayLike, share: ArrayLike) -> F64:
    """Bytes of an event time where a share of a stream's rows travels, by those of all rows in order (last axis).

    Rows that come at random are as far apart as before, times 1 / share. Of regular ones, whose times take next to
    nothing, it has to be said which they are: the entropy of the number of rows left out between two.

    >>> thinned((7.0, 0.9, 0.09, 0.01, 0.001), 1.0).tolist()
    [7.0, 0.9, 0.09, 0.01, 0.001]
    >>> thinned((7.0, 0.9, 0.09, 0.01, 0.001), 0.5).round(2).tolist()
    [7.12, 2.7, 1.16, 0.71, 0.66]
    """
    kept = np.clip(np.asarray(share, float), _RAREST_SHARE, 1.0)[..., None]
    left_out = np.maximum(1 - kept, 1e-12)
    bits = np.where(kept < 1, -np.log2(kept) - left_out / kept * np.log2(left_out), 0.0)
    which = np.where(bits > 0, np.array(_THINNED_SIZES) + bits * np.array(_THINNED_SIZES_PER_BIT), 0.0)
    found: F64 = np.maximum(np.asarray(sizes, float) - np.log2(kept) / 8, which)
    return found
