"""States of groups, of which each has the number of its own, combined by the rule of a column."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from watersmeet.program.aggregate.kernels import I64


def bits(column: pa.Array, groups: I64, count: int, *, are_all: bool) -> pa.Array:
    """The AND or OR of the whole numbers of each group, bit by bit."""
    combine, neutral = (np.bitwise_and, -1) if are_all else (np.bitwise_or, 0)
    made = np.full(count, neutral, np.int64)
    combine.at(made, groups, whole(column))
    return pa.array(made)


def whole(column: pa.Array) -> I64:
    """A column of whole numbers without NULLs."""
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.int64)


def by_group(groups: I64, column: pa.Array, function: str, count: int) -> pa.Array:
    """An aggregate of Arrow's own, by group; NULL where a group has no value."""
    table = pa.table({"g": groups, "v": column}).group_by("g", use_threads=False).aggregate([("v", function)])
    place = np.empty(count, np.int64)
    place[table.column("g").to_numpy()] = np.arange(count)
    return table.column(f"v_{function}").combine_chunks().take(pa.array(place))


def extreme(column: pa.Array, groups: I64, count: int, *, is_greatest: bool) -> pa.Array:
    """The least or greatest value of each group; NaN is greater than any number, as in Spark."""
    found = by_group(groups, column, "max" if is_greatest else "min", count)
    if not kinds.is_floating(column.type):
        return found
    nan = pc.fill_null(pc.is_nan(column), False).to_numpy(zero_copy_only=False)
    if not nan.any():
        return found
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    nans, all_ = np.bincount(groups[nan], minlength=count), np.bincount(groups[valid], minlength=count)
    wins = nans > 0 if is_greatest else (nans == all_) & (nans > 0)
    return pc.if_else(pa.array(wins), pa.scalar(float("nan"), column.type), found)


def united(lists: pa.Array, groups: I64, count: int) -> pa.Array:
    """The distinct values of each group."""
    owners = np.repeat(groups, pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    coded = lists.flatten().dictionary_encode()
    size = max(len(coded.dictionary), 1)
    pairs = np.unique(owners * size + coded.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    sizes = np.bincount(pairs // size, minlength=count)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    values = coded.dictionary.take(pa.array(pairs % size))
    return pa.ListArray.from_arrays(pa.array(offsets), values)
