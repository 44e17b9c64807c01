"""One column's values as cells: what all conditions on it say is the same for all values of a cell.

The constants that a column is compared with cut its values into points and intervals between them; a value is found by
one search in the sorted constants. Cells for which all conditions say the same are one class.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import InputError, TypeMismatch
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.predicates import And, Comparison, IsNull, Not, OneOf, Or, Predicate, Value

I32 = npt.NDArray[np.int32]

_MOST_DIRECT = 1 << 20  # whole numbers between the least and the largest constant that are looked up directly

_jit: Any = numba.njit(cache=True, nogil=True)


@_jit
def _search(values, constants, cells):  # type: ignore[no-untyped-def]
    """2i + 1 for a value equal to constant i, 2i for one between constants i - 1 and i; NaN is above all."""
    count = constants.shape[0]
    for place in range(values.shape[0]):
        value = values[place]
        low, high = 0, count
        while low < high:
            middle = (low + high) >> 1
            if constants[middle] < value or value != value:
                low = middle + 1
            else:
                high = middle
        cells[place] = 2 * low + (1 if low < count and constants[low] == value else 0)


@_jit
def _look_up(values, least, table, cells):  # type: ignore[no-untyped-def]
    last = table.shape[0] - 1
    most = least + last
    for place in range(values.shape[0]):
        value = values[place]
        if value < least:
            cells[place] = table[0]
        elif value > most:
            cells[place] = table[last]
        else:
            cells[place] = table[value - least]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnCells:
    """A column's constants, and the class of each cell; the last cell is that of NULL."""

    column: str
    constants: npt.NDArray[Any]  # int64, float64, or text as objects
    class_of_cell: I32
    truth: Bools  # classes x conditions

    @property
    def classes(self) -> int:
        """How many classes of cells there are."""
        return len(self.truth)

    def classify(self, column: pa.Array) -> I32:
        """The class of each row."""
        if self.constants.dtype == object:
            cells = self._text_cells(column)
        else:
            values = _numbers(column, self.constants.dtype)
            cells = np.empty(len(values), np.int32)
            span = int(self.constants[-1]) - int(self.constants[0]) if self._direct else 0
            if self._direct and span < _MOST_DIRECT:
                every = np.arange(int(self.constants[0]) - 1, int(self.constants[-1]) + 2)
                table = np.empty(len(every), np.int32)
                _search(every, self.constants, table)
                _look_up(values, every[0], table, cells)
            else:
                _search(values, self.constants, cells)
        if column.null_count:
            cells[pc.is_null(column).to_numpy(zero_copy_only=False)] = len(self.class_of_cell) - 1
        return self.class_of_cell[cells]

    @property
    def _direct(self) -> bool:
        limits = np.iinfo(np.int64)
        return (
            self.constants.dtype == np.int64
            and len(self.constants) > 0
            and bool(self.constants[0] > limits.min and self.constants[-1] < limits.max)
        )

    def _text_cells(self, column: pa.Array) -> I32:
        encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
        known = self.constants.tolist()
        of_value = np.array([_cell_of_text(known, text) for text in encoded.dictionary.to_pylist()], np.int32)
        places = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
        return of_value[places].astype(np.int32) if len(of_value) else np.zeros(len(column), np.int32)


def _cell_of_text(constants: list[str], text: str | None) -> int:
    if text is None:
        return 0
    return bisect_left(constants, text) + bisect_right(constants, text)


def _numbers(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    target = pa.int64() if dtype == np.int64 else pa.float64()
    filled = pc.fill_null(column.cast(target), 0) if column.null_count else column.cast(target)
    found: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return found


def column_cells(
    column: str, kind: pa.DataType, conditions: Sequence[Predicate], constants: Sequence[Value]
) -> ColumnCells:
    """The cells of a column for conditions on it, each of which is one column of `truth`."""
    bounds = _bounds(column, kind, constants)
    cells = 2 * len(bounds) + 2
    places = {value: place for place, value in enumerate(bounds.tolist())}
    truth = np.zeros((cells, len(conditions)), np.bool_)
    for number, condition in enumerate(conditions):
        truth[:, number] = _truth(condition, bounds, places, cells)[0]
    different, class_of_cell = np.unique(truth, axis=0, return_inverse=True)
    return ColumnCells(column, bounds, class_of_cell.reshape(-1).astype(np.int32), different)


def _bounds(column: str, kind: pa.DataType, constants: Sequence[Value]) -> npt.NDArray[Any]:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        for value in constants:
            if not isinstance(value, str):
                raise TypeMismatch(f"column {column} is text and is compared with {value!r}; write it in quotes")
        return np.array(sorted(set(constants)), object)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise TypeMismatch(
            f"column {column} has type {kind}; predicates that are shared compare numbers, text or booleans"
        )
    for value in constants:
        if isinstance(value, str):
            raise TypeMismatch(
                f"column {column} has type {kind} and is compared with the text {value!r}; give a number"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"column {column} is compared with {value}; compare with finite numbers")
    if pa.types.is_floating(kind):
        return np.unique(np.array([float(value) for value in constants], np.float64))
    limits = np.iinfo(np.int64)
    numbers = [value for value in constants if not isinstance(value, str)]
    found = {whole for value in numbers for whole in (math.floor(value), math.ceil(value))}
    return np.array(sorted(whole for whole in found if limits.min <= whole <= limits.max), np.int64)


def _truth(condition: Predicate, bounds: npt.NDArray[Any], places: dict[Any, int], cells: int) -> tuple[Bools, Bools]:
    """Where a condition is true, and where it is false; NULL, the last cell, makes comparisons neither."""
    match condition:
        case Comparison(_, operator, value):
            numbers = np.arange(cells)
            known = numbers < cells - 1
            below, same = _places(value, bounds, places, numbers)
            above = known & ~below & ~same
            below, same = below & known, same & known
            match operator:
                case "=":
                    return same, below | above
                case "<>":
                    return below | above, same
                case "<":
                    return below, same | above
                case "<=":
                    return below | same, above
                case ">":
                    return above, below | same
                case ">=":
                    return above | same, below
                case _ as never:
                    assert_never(never)
        case OneOf(column, values):
            return _truth(Or(tuple(Comparison(column, "=", value) for value in values)), bounds, places, cells)
        case IsNull():
            null = np.arange(cells) == cells - 1
            return null, ~null
        case And(parts):
            found = [_truth(part, bounds, places, cells) for part in parts]
            true = np.logical_and.reduce([np.ones(cells, np.bool_), *(one for one, _ in found)])
            return true, np.logical_or.reduce([np.zeros(cells, np.bool_), *(other for _, other in found)])
        case Or(parts):
            found = [_truth(part, bounds, places, cells) for part in parts]
            true = np.logical_or.reduce([np.zeros(cells, np.bool_), *(one for one, _ in found)])
            return true, np.logical_and.reduce([np.ones(cells, np.bool_), *(other for _, other in found)])
        case Not(part):
            true, false = _truth(part, bounds, places, cells)
            return false, true
        case _ as unknown:
            assert_never(unknown)


def _places(
    value: Value, bounds: npt.NDArray[Any], places: dict[Any, int], numbers: npt.NDArray[np.int64]
) -> tuple[Bools, Bools]:
    """Which cells are below a constant, and which is the constant itself."""
    exact = float(value) if bounds.dtype == np.float64 else value
    place = places.get(exact)
    if place is not None:
        return numbers < 2 * place + 1, numbers == 2 * place + 1
    # A fraction beside whole numbers, or more than they can hold: no value equals it.
    nowhere = np.zeros(len(numbers), np.bool_)
    if not np.iinfo(np.int64).min <= exact <= np.iinfo(np.int64).max:  # type: ignore[operator]
        return np.full(len(numbers), exact > 0), nowhere  # type: ignore[operator]
    smaller = int(np.searchsorted(bounds, math.ceil(exact)))  # type: ignore[arg-type]
    return numbers < 2 * smaller, nowhere
