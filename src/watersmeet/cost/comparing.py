"""The share of combinations that comparisons leave, from windows and histograms.

The event times of two rows that are in each other's windows differ by anything from one window to the other, all
equally likely. Other values are taken as independent, each as its histogram says; where there is none, an inequality
leaves half and a band a quarter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from watersmeet.query.comparisons import (
    WHOLE,
    Compare,
    Condition,
    Constant,
    Every,
    Field,
    Magnitude,
    Missing,
    Opposite,
    Some,
    Sum,
    Term,
    Test,
)
from watersmeet.query.model import EVENT_TIME_KIND
from watersmeet.stats.model import Histogram

INEQUALITY, BAND, NULL = 0.5, 0.25, 0.02  # where nothing is known
F64 = NDArray[np.float64]
_POINTS = 200  # a histogram is looked at in so many places


@dataclass(frozen=True, slots=True)
class KnownColumn:
    """What is known of a column that is compared."""

    window_us: float
    histogram: Histogram | None


@dataclass(frozen=True, slots=True)
class _Difference:
    """A test as bounds for the difference of two columns: `low <= first - second <= high`."""

    first: Field
    second: Field
    low: float
    high: float


def share_left(conditions: Sequence[Condition], known: Callable[[str], KnownColumn]) -> float:
    """The share of combinations of the same aliases that some conditions leave; columns are known by flat name."""
    return _share(Every(tuple(condition.test for condition in conditions)), known)


def _share(test: Test, known: Callable[[str], KnownColumn]) -> float:
    match test:
        case Compare(operator):
            found = _difference(test)
            if found is None:
                return {"=": 0.1, "<>": 1.0}.get(operator, INEQUALITY)
            share = _share_between(found, known)
            return 1.0 - share if operator == "<>" else share
        case Missing():
            return NULL
        case Every(tests):
            return _share_of_all(_flat(tests), known)
        case Some(tests):
            return 1.0 - prod(1.0 - _share(test, known) for test in tests)
        case Opposite(of):
            return 1.0 - _share(of, known)


def _flat(tests: Sequence[Test]) -> list[Test]:
    return [part for test in tests for part in (_flat(test.tests) if isinstance(test, Every) else [test])]


def _share_of_all(tests: Sequence[Test], known: Callable[[str], KnownColumn]) -> float:
    """Bounds of one difference are taken together; all else is independent."""
    bounds: dict[tuple[Field, Field], list[_Difference]] = {}
    share = 1.0
    for test in tests:
        found = _difference(test) if isinstance(test, Compare) and test.operator != "<>" else None
        if found is None:
            share *= _share(test, known)
        elif (found.second, found.first) in bounds:
            turned = _Difference(found.second, found.first, -found.high, -found.low)
            bounds[found.second, found.first].append(turned)
        else:
            bounds.setdefault((found.first, found.second), []).append(found)
    for some in bounds.values():
        whole = reduce(
            lambda one, other: _Difference(one.first, one.second, max(one.low, other.low), min(one.high, other.high)),
            some,
        )
        share *= _share_between(whole, known)
    return share


def _difference(test: Compare) -> _Difference | None:
    """A comparison of two columns, or of their distance, as bounds of their difference."""
    left, right, operator = test.left, test.right, test.operator
    if isinstance(right, Magnitude) and isinstance(left, Constant):
        left, right, operator = right, left, {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    if isinstance(left, Magnitude) and isinstance(right, Constant):
        inner = left.of
        is_distance = isinstance(inner, Sum) and inner.sign < 0 and operator in ("<", "<=")
        if not is_distance or not isinstance(inner, Sum):
            return None
        one, other = _column_and_offset(inner.left), _column_and_offset(inner.right)
        if one is None or other is None:
            return None
        middle = other[1] - one[1]
        return _Difference(one[0], other[0], middle - float(right.value), middle + float(right.value))
    one, other = _column_and_offset(left), _column_and_offset(right)
    if one is None or other is None:
        return None
    offset = other[1] - one[1]
    low = -inf if operator in ("<", "<=") else offset
    high = inf if operator in (">", ">=") else offset
    return _Difference(one[0], other[0], low, high)


def _column_and_offset(term: Term) -> tuple[Field, float] | None:
    """A column and what is added to it."""
    match term:
        case Field():
            return term, 0.0
        case Sum(Constant(value), right, 1):
            found = _column_and_offset(right)
            return None if found is None else (found[0], found[1] + value)
        case Sum(left, Constant(value), sign):
            found = _column_and_offset(left)
            return None if found is None else (found[0], found[1] + sign * value)
        case _:
            return None


def _share_between(bounds: _Difference, known: Callable[[str], KnownColumn]) -> float:
    one, other = known(bounds.first.name), known(bounds.second.name)
    if bounds.first.kind == bounds.second.kind == EVENT_TIME_KIND:
        # The first is later by as long as the second is seen, or earlier by as long as the first is.
        low, high = max(bounds.low, -one.window_us), min(bounds.high, other.window_us)
        return max(high - low, 0.0) / max(one.window_us + other.window_us, 1.0)
    kinds = (*WHOLE, "date", "timestamp", "timestamp_ntz", EVENT_TIME_KIND)
    if one.histogram is None or other.histogram is None or bounds.first.kind not in kinds:
        is_band = bounds.low > -inf and bounds.high < inf
        return BAND if is_band else INEQUALITY
    differences = _points(one.histogram)[:, None] - _points(other.histogram)[None, :]
    return float(np.mean((differences >= bounds.low) & (differences <= bounds.high)))


def _points(histogram: Histogram) -> F64:
    """Values of a column, each for as many rows."""
    shares = np.array([bin_.share for bin_ in histogram.bins])
    ends = np.cumsum(shares)
    places = (np.arange(_POINTS) + 0.5) / _POINTS * ends[-1]
    cell = np.minimum(np.searchsorted(ends, places), len(shares) - 1)
    low, high = (np.array([float(getattr(bin_, side)) for bin_ in histogram.bins])[cell] for side in ("low", "high"))
    inside = (places - (ends[cell] - shares[cell])) / np.maximum(shares[cell], 1e-300)
    found: F64 = low + (high - low) * np.clip(inside, 0.0, 1.0)
    return found
