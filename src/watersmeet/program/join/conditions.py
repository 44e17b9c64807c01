"""Comparisons over the columns of combinations, by NumPy and Arrow: which combinations are not rejected.

As in SQL a comparison with NULL is unknown, and a combination stays only where a condition is true. Where a sum is too
large for its type, Spark's expression fails; such a combination stays too, and the evaluator of the rest of WHERE finds
that out. Doubles are ordered as Spark orders them: NaN equals itself and is greater than everything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]  # int64 or float64
_LARGEST = {kind: 2 ** (8 * 2**number - 1) - 1 for number, kind in enumerate(WHOLE)}
_TEXTS: Mapping[str, Callable[..., pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def newly_complete(
    conditions: Sequence[Condition], before: Sequence[Sequence[str]], met: Sequence[str]
) -> list[Condition]:
    """The conditions all of whose aliases have met now, and had not before in any of the sides that meet."""
    return [
        condition
        for condition in conditions
        if set(condition.aliases) <= set(met) and not any(set(condition.aliases) <= set(side) for side in before)
    ]


def not_rejected(conditions: Sequence[Condition], columns: Mapping[str, pa.Array]) -> Mask:
    """Which combinations every condition is true for, or fails for; `columns` are those that conditions read."""
    judge = _Judge(columns)
    found = [judge.result(condition.test) for condition in conditions]
    mask: Mask = np.logical_and.reduce([result.true | result.failed for result in found])
    return mask


@dataclass(frozen=True, slots=True)
class _Result:
    """Where a test is true, where it is false, and where it fails; elsewhere it is unknown."""

    true: Mask
    false: Mask
    failed: Mask


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a term, which are there where they are valid and did not fail."""

    numbers: Numbers
    valid: Mask
    failed: Mask


class _Judge:
    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self._columns = columns
        self._count = len(next(iter(columns.values())))

    def result(self, test: Test) -> _Result:
        match test:
            case Compare(operator, left, right) if left.kind == right.kind == "string":
                return self._compared_texts(operator, left, right)
            case Compare(operator, left, right):
                one, other = self._values(left), self._values(right)
                holds = _compared(operator, one.numbers, other.numbers)
                failed = one.failed | other.failed
                known = one.valid & other.valid & ~failed
                return _Result(holds & known, ~holds & known, failed)
            case Missing(of):
                if isinstance(of, Field):
                    valid = np.asarray(self._columns[of.name].is_valid())
                    return _Result(~valid, valid, self._nowhere)
                values = self._values(of)
                return _Result(~values.valid & ~values.failed, values.valid & ~values.failed, values.failed)
            case Every(tests):
                parts = [self.result(test) for test in tests]
                false = np.logical_or.reduce([result.false for result in parts])
                true = np.logical_and.reduce([result.true for result in parts])
                failed = np.logical_or.reduce([result.failed for result in parts])
                return _Result(true & ~failed, false & ~failed, failed)
            case Some(tests):
                parts = [self.result(test) for test in tests]
                false = np.logical_and.reduce([result.false for result in parts])
                true = np.logical_or.reduce([result.true for result in parts])
                failed = np.logical_or.reduce([result.failed for result in parts])
                return _Result(true & ~failed, false & ~failed, failed)
            case Opposite(of):
                result = self.result(of)
                return _Result(result.false, result.true, result.failed)
            case _:
                assert_never(test)

    @property
    def _nowhere(self) -> Mask:
        return np.zeros(self._count, bool)

    def _compared_texts(self, operator: str, left: Term, right: Term) -> _Result:
        assert isinstance(left, Field) and isinstance(right, Field), "texts are columns"
        holds = _TEXTS[operator](self._columns[left.name], self._columns[right.name])
        known = np.asarray(holds.is_valid())
        true = np.asarray(holds.fill_null(False)) & known
        return _Result(true, known & ~true, self._nowhere)

    def _values(self, term: Term) -> _Values:
        match term:
            case Field(name, kind):
                column = self._columns[name]
                valid = np.asarray(column.is_valid())
                return _Values(_numbers(column, kind), valid, self._nowhere)
            case Constant(value, kind):
                return _Values(np.full(self._count, value), np.ones(self._count, bool), self._nowhere)
            case Sum(left, right, sign, kind):
                return _sum(self._values(left), self._values(right), sign, kind)
            case Magnitude(of, kind):
                values = self._values(of)
                failed = values.failed
                if kind in WHOLE:
                    failed = failed | (values.valid & (values.numbers == -_LARGEST[kind] - 1))
                return _Values(np.abs(values.numbers), values.valid, failed)
            case _:
                assert_never(term)


def _numbers(column: pa.Array, kind: str) -> Numbers:
    """Values as numbers; those of NULLs are anything."""
    if pa.types.is_floating(column.type):
        return np.asarray(column.fill_null(0.0).to_numpy(zero_copy_only=False), np.float64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _sum(left: _Values, right: _Values, sign: int, kind: str) -> _Values:
    valid, failed = left.valid & right.valid, left.failed | right.failed
    if kind == "double":
        with np.errstate(all="ignore"):
            return _Values(_double(left.numbers) + sign * _double(right.numbers), valid, failed)
    one, other = left.numbers.astype(np.int64), right.numbers.astype(np.int64)
    total = one + other if sign > 0 else one - other  # wraps around, as the signs show
    wrapped = (one ^ total) & ((other if sign > 0 else ~other) ^ total) < 0
    largest = _LARGEST.get(kind, _LARGEST["bigint"])
    too_large = wrapped | (total > largest) | (total < -largest - 1)
    return _Values(total, valid, failed | (too_large & valid))


def _double(numbers: Numbers) -> Numbers:
    return numbers.astype(np.float64)


def _compared(operator: str, left: Numbers, right: Numbers) -> Mask:
    if left.dtype.kind == "f" or right.dtype.kind == "f":
        return _compared_doubles(operator, _double(left), _double(right))
    match operator:
        case "=":
            found = left == right
        case "<>":
            found = left != right
        case "<":
            found = left < right
        case "<=":
            found = left <= right
        case ">":
            found = left > right
        case _:
            found = left >= right
    return np.asarray(found)


def _compared_doubles(operator: str, left: Numbers, right: Numbers) -> Mask:
    match operator:
        case ">":
            return _compared_doubles("<", right, left)
        case ">=":
            return ~_compared_doubles("<", left, right)
        case "<=":
            return ~_compared_doubles("<", right, left)
        case "<>":
            return ~_compared_doubles("=", left, right)
        case "<":
            found = (left < right) | (np.isnan(right) & ~np.isnan(left))
        case _:
            found = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.asarray(found)
