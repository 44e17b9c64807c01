"""Whether partial states that come from elsewhere can be states at all: combining them and their results rely on it."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.aggregate.functions import LOST, Function, Rule
from watersmeet.program.aggregate.records import Layout

MOST_ROWS = 1 << 48  # that one state stands for, so that sums of many states are numbers of 64 bits
_COUNTED_DIGITS = 15  # of MOST_ROWS
_LIMITED = (Rule.BOTTOM, Rule.SAMPLE, Rule.HEAVIEST, Rule.GREATEST, Rule.LEAST)
_WEIGHTED = (Rule.COUNTS, Rule.SAMPLE, Rule.HEAVIEST)


def check_states(layout: Layout, records: pa.Table, *, retracts: bool = False) -> None:
    """Whether the states in some records can have come about, also by taking others away; ValueError if not."""
    least = -MOST_ROWS if retracts else 0
    for number, (function, _) in enumerate(layout.functions):
        columns = {
            name: records.column(layout.state_column(number, name)).combine_chunks() for name in function.columns
        }
        for name, rule in function.rules.items():
            cause = _cause(function, name, rule, columns[name], columns.get(name + LOST), least)
            if cause:
                raise ValueError(f"{layout.state_column(number, name)!r} of partial records {cause}")


def _cause(function: Function, name: str, rule: Rule, column: pa.Array, beside: pa.Array | None, least: int) -> str:
    """Why a column of states cannot be one; empty if it can."""
    match rule:
        case Rule.MIN | Rule.MAX:
            return ""
        case Rule.DECIMAL:
            return _of_decimals(function, column)
        case Rule.SUM if column.null_count == 0:
            limits = {"n": (least, MOST_ROWS), "low": (0, (1 << 32) - 1)}.get(name, (-(1 << 62), 1 << 62))
            return _outside(column, *limits)
        case Rule.SUM | Rule.DOUBLE | Rule.ALL_BITS | Rule.ANY_BITS:
            return "has NULLs" if column.null_count or (beside is not None and beside.null_count) else ""
    return _of_lists(function, rule, column, beside)


def _of_decimals(function: Function, column: pa.Array) -> str:
    assert function.kind is not None, "decimals have digits"
    scale = column.type.scale
    most = pa.scalar(10 ** (function.kind.precision + _COUNTED_DIGITS - scale), pa.decimal256(76, 0))
    too_large = pc.greater(pc.abs(column), most.cast(pa.decimal256(76, scale)))
    return "is beyond any sum" if pc.any(too_large).as_py() else ""


def _of_lists(function: Function, rule: Rule, lists: pa.Array, weights: pa.Array | None) -> str:
    if lists.null_count or (rule is not Rule.HEAVIEST and lists.flatten().null_count):
        return "has NULLs"
    sizes = pc.list_value_length(lists)
    if rule in _LIMITED and len(sizes) and pc.max(sizes).as_py() > function.most:
        return f"has {pc.max(sizes).as_py():,} values where {function.most:,} are kept"
    if rule in _WEIGHTED:
        assert weights is not None, "values with weights"
        if weights.null_count or weights.flatten().null_count or not sizes.equals(pc.list_value_length(weights)):
            return "has other weights than values"
        if cause := _outside(weights.flatten(), 0, MOST_ROWS):
            return cause
    places = function.places
    return "" if places is None else _outside(lists.flatten(), 0, places - 1)


def _outside(values: pa.Array, least: int, most: int) -> str:
    numbers = values.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((numbers < least) | (numbers > most))
    return f"has {int(numbers[wrong[0]])}" if len(wrong) else ""
