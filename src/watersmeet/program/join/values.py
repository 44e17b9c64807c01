"""Whether two columns hold the same values, for real: what hashes alone cannot tell."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def same_values(left: pa.Array | pa.ChunkedArray, right: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Where two columns have the same value, as Spark compares keys: NaN is NaN, and NULL, if there is any, NULL."""
    if pa.types.is_nested(left.type) or pa.types.is_duration(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([_same(ours, theirs) for ours, theirs in pairs], bool)
    equal = pc.fill_null(pc.equal(left, right), False)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    equal = pc.or_(equal, both_null)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))
    return np.asarray(equal)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (left != left and right != right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    return bool(left == right)
