"""What the answers of a query with groups become before they travel: how many partial records, and how large.

What falls at random n times into G groups hits  G * (1 - exp(-n / G))  of them, each a record once the pane has ended.
Answers with the same row have the same group where all keys are of that row: n is no more than the rows of a pane then.
With EMIT CHANGES a record travels for each answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watersmeet.query.model import Aggregate, Column, Grouping, JoinQuery
from watersmeet.query.windows import Changes

F64 = NDArray[np.float64]

_PANE_BYTES = 0.3  # of the time of a pane: nearly all records of a message have the same
_COUNT_BYTES, _SUM_BYTES, _DOUBLE_BYTES = 0.7, 2.5, 8.0  # packed, of small numbers


@dataclass(frozen=True, slots=True)
class Records:
    """The partial records of a query."""

    groups: float
    pane_s: float | None  # None: they are sent as they are made
    row_bytes: float
    columns: int
    key_rows: float = inf  # rows in a pane that decide on the group, where they are all of one stream

    def rate(self, answers_s: ArrayLike) -> F64:
        """Records a second of so many answers a second.

        >>> records = Records(groups=100.0, pane_s=10.0, row_bytes=10.0, columns=3)
        >>> [round(float(records.rate(answers_s)), 2) for answers_s in (0.01, 1.0, 1e6)]
        [0.01, 0.95, 10.0]
        """
        answers = np.asarray(answers_s, float)
        if self.pane_s is None:
            return answers
        drawn = np.minimum(answers * self.pane_s, self.key_rows)
        found: F64 = self.groups * -np.expm1(-drawn / self.groups) / self.pane_s
        return found

    def messages(self, messages_s: ArrayLike) -> F64:
        """Messages a second, where answers would take so many."""
        found = np.asarray(messages_s, float)
        return found if self.pane_s is None else np.minimum(found, 1.0 / self.pane_s)


def records_of(
    query: JoinQuery,
    distinct: Callable[[Column], float],
    value_bytes: Callable[[Column], float],
    rows_within: Callable[[str, float], float],
) -> Records | None:
    """The records of a query with groups; asks how many values columns have, how large they are, and for rows of an
    alias that take part within a time."""
    grouping = query.grouping
    if grouping is None:
        return None
    keys = [item.expression.columns for item in query.select[: grouping.keys]]
    groups = prod((max(distinct(column), 1.0) for column in dict.fromkeys(c for of in keys for c in of)), start=1.0)
    sizes = [_PANE_BYTES, *(value_bytes(columns[0]) if columns else 1.0 for columns in keys)]
    columns = 1 + grouping.keys
    for aggregate in grouping.aggregates:
        size, more = _state(query, grouping, aggregate, distinct, value_bytes)
        sizes.append(size)
        columns += more
    pane_s = None if isinstance(grouping.window, Changes) else grouping.output_window.pane_us / 1e6
    if pane_s is None:  # another time, that at which an answer expires
        sizes, columns = [*sizes, _COUNT_BYTES], columns + 1
    owners = {column.alias for of in keys for column in of}
    key_rows = inf if pane_s is None or len(owners) != 1 else max(rows_within(owners.pop(), pane_s), 1.0)
    return Records(groups, pane_s, sum(sizes), columns, key_rows)


def _state(
    query: JoinQuery,
    grouping: Grouping,
    aggregate: Aggregate,
    distinct: Callable[[Column], float],
    value_bytes: Callable[[Column], float],
) -> tuple[float, int]:
    """Bytes and columns of the state of an aggregate; lists are taken to have the values of a few answers."""
    own = () if aggregate.item is None else query.select[aggregate.item].expression.columns
    each = value_bytes(own[0]) if own else _DOUBLE_BYTES
    match aggregate.function:
        case _ if aggregate.distinct:
            return min([10.0, *(distinct(column) for column in own[:1])]) * each, 1
        case "count":
            return _COUNT_BYTES, 1
        case "sum" | "avg":
            return _COUNT_BYTES + _SUM_BYTES, 3
        case "bool_and" | "bool_or":
            return 1.0, 1
        case "min" | "max":
            return each, 1
        case "max_k" | "min_k":
            return aggregate.parameters[0] * each, 1
        case "approx_count_distinct" | "approx_percentile" | "approx_top_k":
            values = min([10.0, *(distinct(column) for column in own[:1])])
            return values * (each + _COUNT_BYTES), 2
        case _:
            return _COUNT_BYTES + 4 * _DOUBLE_BYTES, 5
