"""Predicates over columns of one stream as values, in SQL's three-valued logic, and their disjunctive form."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, assert_never

from watersmeet.errors import InputError

Value = int | float | str | bool
Operator = Literal["=", "<>", "<", "<=", ">", ">="]

MOST_TERMS = 256  # of one predicate in disjunctive form
_NEGATED: dict[Operator, Operator] = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with a constant."""

    column: str
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """A column that is one of some constants."""

    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column that is NULL."""

    column: str


@dataclass(frozen=True, slots=True)
class And:
    """All of some predicates; of none it is true."""

    parts: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of some predicates; of none it is false."""

    parts: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a predicate; unknown where that is unknown."""

    part: "Predicate"


Predicate = Comparison | OneOf | IsNull | And | Or | Not
Term = dict[str, Predicate]  # a condition on each of some columns, all of which must hold


def columns_of(predicate: Predicate) -> frozenset[str]:
    """The columns that a predicate reads."""
    match predicate:
        case Comparison(column) | OneOf(column) | IsNull(column):
            return frozenset((column,))
        case And(parts) | Or(parts):
            return frozenset().union(*(columns_of(part) for part in parts))
        case Not(part):
            return columns_of(part)
        case _ as never:
            assert_never(never)


def constants_of(predicate: Predicate) -> Iterator[tuple[str, Value]]:
    """The constants that columns are compared with."""
    match predicate:
        case Comparison(column, _, value):
            yield column, value
        case OneOf(column, values):
            yield from ((column, value) for value in values)
        case IsNull():
            return
        case And(parts) | Or(parts):
            for part in parts:
                yield from constants_of(part)
        case Not(part):
            yield from constants_of(part)
        case _ as never:
            assert_never(never)


def terms_of(predicate: Predicate) -> list[Term]:
    """The predicate as a disjunction of terms; conditions on one column are never taken apart.

    >>> terms_of(Or((Comparison("a", ">", 1), And((IsNull("a"), Comparison("b", "=", 2))))))[1]
    {'a': IsNull(column='a'), 'b': Comparison(column='b', operator='=', value=2)}
    """
    columns = columns_of(predicate)
    if len(columns) == 1:
        return [dict.fromkeys(columns, predicate)]
    match predicate:
        case And(parts):
            choices = [terms_of(part) for part in parts]
            count = 1
            for choice in choices:
                count *= len(choice)
                _check(count)
            return [_joined(some) for some in product(*choices)]
        case Or(parts):
            found = [term for part in parts for term in terms_of(part)]
            _check(len(found))
            return found
        case Not(part):
            return terms_of(_negated(part))
        case Comparison() | OneOf() | IsNull():
            raise AssertionError("a condition on one column")
        case _ as never:
            assert_never(never)


def _negated(predicate: Predicate) -> Predicate:
    match predicate:
        case And(parts):
            return Or(tuple(Not(part) for part in parts))
        case Or(parts):
            return And(tuple(Not(part) for part in parts))
        case Not(part):
            return part
        case Comparison(column, operator, value):
            return Comparison(column, _NEGATED[operator], value)
        case OneOf() | IsNull():
            return Not(predicate)
        case _ as never:
            assert_never(never)


def _joined(terms: tuple[Term, ...]) -> Term:
    found: Term = {}
    for term in terms:
        for column, condition in term.items():
            found[column] = And((found[column], condition)) if column in found else condition
    return found


def _check(count: int) -> None:
    if count > MOST_TERMS:
        raise InputError(
            f"a predicate over several columns has more than {MOST_TERMS} alternatives once it is multiplied out; move "
            "alternatives on one column together, as in `a IN (...)`, or make several queries of it"
        )
