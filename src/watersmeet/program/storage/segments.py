"""Windows as immutable sorted segments.

A segment is an Arrow batch sorted by (key, ts). Its key is 64 bits: one class key times an odd constant (a bijection,
so equal keys mean equal values), or a hash of several. Buckets are equal ranges of the key space, so that a bucket is a
contiguous slice of every segment, whatever their number.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KEY = "#key"  # uint64, the sort key
TS = "#ts"  # int64, event time in microseconds
ORDINAL = "#ordinal"  # int64, place in the stream's (ts, arrival) order; ROWS windows only
CLASS = "#class"  # int64, with the number of a key class behind it
KEEP = "#keep"  # bool, with the number of a selection behind it: whether its filters hold
LOW, HIGH = "#low", "#high"  # int64, from where to where a key or an intermediate result is visible
SELECTED = "#selected"  # uint64, with a number behind it: a bit for each selection that a row fulfils, 64 a column

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_GOLDEN_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def class_column(number: int) -> str:
    """The name of the column that holds a row's value (or hash) in a key class."""
    return f"{CLASS}{number}"


def ordinal_column(position: int) -> str:
    """The column of an intermediate result that holds the ordinal of one of its rows, by the alias's position."""
    return f"{ORDINAL}{position}"


def keep_column(selection: int) -> str:
    """The name of the column that says whether the filters of a selection hold."""
    return f"{KEEP}{selection}"


def selected_column(bit: int) -> tuple[str, np.uint64]:
    """The column that holds a selection's bit, and the mask of the bit in it."""
    return f"{SELECTED}{bit // 64}", np.uint64(1 << (bit % 64))


def column(table: pa.Table | pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """A column without NULLs as a NumPy array, without a copy where it is one chunk."""
    values: npt.NDArray[Any] = table.column(name).to_numpy()
    return values


def sort_key(class_keys: Sequence[I64], rows: int) -> U64:
    """The 64-bit key of each row from its class keys; no class at all puts every row at one key."""
    if not class_keys:
        return np.zeros(rows, np.uint64)
    key = mixed(class_keys[0].view(np.uint64))
    for class_key in class_keys[1:]:
        key = (key ^ (key >> _HALF)) * _MIX
        key = (key ^ class_key.view(np.uint64)) * _GOLDEN
    return key


def mixed(values: U64) -> U64:
    """Values spread over the key space, one to one."""
    return values * _GOLDEN


def unmixed(keys: U64) -> U64:
    """The values that keys of one class are spread from: small ones travel in fewer bytes."""
    return keys * _GOLDEN_INVERSE


def bucket_bounds(bucket: int, buckets: int) -> tuple[int, int]:
    """The first key of a bucket and the last one."""
    return -(-bucket * 2**64 // buckets), -(-(bucket + 1) * 2**64 // buckets) - 1


def bucket_slice(keys: U64, bucket: int, buckets: int) -> tuple[int, int]:
    """Where a bucket's rows lie among sorted keys."""
    low, high = bucket_bounds(bucket, buckets)
    return (
        int(np.searchsorted(keys, np.uint64(low), "left")),
        int(np.searchsorted(keys, np.uint64(high), "right")),
    )


def place_of(table: pa.Table) -> I64:
    """What orders the rows of one key: ordinals where there are any, since timestamps leave the order of ties open."""
    return column(table, ORDINAL if ORDINAL in table.column_names else TS)


def is_in_order(keys: U64, ts: I64) -> bool:
    """Whether rows are sorted by (key, ts) as they are."""
    same = keys[1:] == keys[:-1]
    return bool(np.all((keys[1:] > keys[:-1]) | (same & (ts[1:] >= ts[:-1]))))


def key_order(keys: U64, ts: I64) -> I64:
    """The permutation that sorts by (key, ts)."""
    order = np.argsort(keys)
    sorted_keys = keys[order]
    repeated = np.flatnonzero(sorted_keys[1:] == sorted_keys[:-1])
    if not len(repeated):
        return order
    # Sorting by the key alone is several times faster than by both, and few keys repeat: mend just those.
    touched = np.zeros(len(keys), bool)
    touched[repeated] = touched[repeated + 1] = True
    where = np.flatnonzero(touched)
    rows = order[where]
    order[where] = rows[np.lexsort((ts[rows], keys[rows]))]
    return order
