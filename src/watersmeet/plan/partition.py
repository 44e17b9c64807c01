"""Which sub-plan a key value belongs to, by the plan's partition: for sites that route rows, and for planners."""

import numpy as np
from numpy.typing import NDArray

from watersmeet.plan.nodes import HashParts, Partition, RangeParts, ValueParts

I64 = NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MOST_VALUES = 3  # of a part that are named one by one


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


def part_text(partition: Partition, sub_plan: int) -> str:
    """Which part of the key values takes a sub-plan.

    >>> part_text(Partition(0, RangeParts((10, 20), (0, 1, 0))), 0)
    '2 of 3 ranges'
    """
    match partition.parts:
        case HashParts(sub_plans):
            count, total = sub_plans.count(sub_plan), len(sub_plans)
            return f"{count} of {total} buckets ({100 * count / total:.1f} %)"
        case RangeParts(bounds, sub_plans):
            if sub_plans.count(sub_plan) != 1:
                return f"{sub_plans.count(sub_plan)} of {len(sub_plans)} ranges"
            place = sub_plans.index(sub_plan)
            if place == 0:
                return f"below {bounds[0]}" if bounds else "all values"
            first, last = bounds[place - 1], bounds[place] - 1 if place < len(bounds) else None
            if last is None:
                return f"{first} and above"
            return f"{first}" if first == last else f"{first} to {last}"
        case ValueParts(values, sub_plans, others):
            own = [str(value) for value, taken in zip(values, sub_plans, strict=True) if taken == sub_plan]
            some = ", ".join(own) if len(own) <= _MOST_VALUES else f"{len(own)} values"
            if others != sub_plan:
                is_counted = len(own) > _MOST_VALUES
                return some if is_counted else f"value{'s' if len(own) != 1 else ''} {some or 'none'}"
            return "all other values" if not own else f"{some} and all other values"
