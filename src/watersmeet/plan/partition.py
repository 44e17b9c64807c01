"""Which sub-plan a key value belongs to, by the plan's partition: for sites that route rows, and for planners."""

import numpy as np
from numpy.typing import NDArray

from watersmeet.plan.nodes import HashParts, Partition, RangeParts, ValueParts

I64 = NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)


def sub_plans_of(partition: Partition, values: I64) -> I64:
    """The sub-plan of each key value.

    >>> sub_plans_of(Partition(0, RangeParts((10,), (1, 0))), np.array([9, 10])).tolist()
    [1, 0]
    """
    parts = partition.parts
    match parts:
        case HashParts(sub_plans):
            with np.errstate(over="ignore"):
                mixed = values.astype(np.int64).view(np.uint64) * _MIX
            bucket = (mixed ^ (mixed >> np.uint64(29))) % np.uint64(len(sub_plans))
            return np.asarray(sub_plans, np.int64)[bucket.astype(np.int64)]
        case RangeParts(bounds, sub_plans):
            return np.asarray(sub_plans, np.int64)[np.searchsorted(np.asarray(bounds, np.int64), values, "right")]
        case ValueParts(known, sub_plans, others):
            if not known:
                return np.full(len(values), others, np.int64)
            where = np.searchsorted(np.asarray(known, np.int64), values)
            where = np.minimum(where, len(known) - 1)
            hit = np.asarray(known, np.int64)[where] == values
            return np.where(hit, np.asarray(sub_plans, np.int64)[where], others)
