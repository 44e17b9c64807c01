"""Filters that compare columns with constants, as predicates that all rows are classified by at once (`sharing/`).

Only what means the same to Spark, DuckDB and `sharing.cells` is simple: whole numbers, doubles and plain text against
constants of their own kind. Anything else stays an expression.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache

from sqlglot import exp

from watersmeet.errors import InputError
from watersmeet.query.dialect import syntax_tree
from watersmeet.query.model import Expression
from watersmeet.sharing.predicates import (
    And,
    Comparison,
    IsNull,
    Not,
    OneOf,
    Operator,
    Or,
    Predicate,
    Value,
    constants_of,
    terms_of,
)

_OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_TURNED: dict[Operator, Operator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MOST_DIGITS = 15  # of a number that a double holds exactly


class ValueKind(StrEnum):
    """What the values of a column are."""

    WHOLE = "whole"
    DOUBLE = "double"
    TEXT = "text"
    OTHER = "other"


class _NotSimple(Exception):
    pass


@lru_cache(maxsize=16_384)  # the filters of a stream are looked at with every micro-batch
def predicate_of(condition: Expression) -> Predicate | None:
    """A filter as a predicate over columns by their flat names; None where it is more than that.

    >>> predicate_of(Expression("`a.v` BETWEEN 1 AND 3", ()))
    And(parts=(Comparison(column='a.v', operator='>=', value=1), Comparison(column='a.v', operator='<=', value=3)))
    """
    try:
        found = _predicate(syntax_tree(condition))
        terms_of(found)
    except (_NotSimple, InputError, RecursionError):
        return None
    return found


def fits(predicate: Predicate, kinds: Mapping[str, ValueKind]) -> bool:
    """Whether the constants of a predicate are of the kinds of their columns."""
    return all(_fits(value, kinds.get(column, ValueKind.OTHER)) for column, value in constants_of(predicate)) and all(
        kinds.get(column, ValueKind.OTHER) is not ValueKind.OTHER for column in _nulls(predicate)
    )


def _fits(value: Value, kind: ValueKind) -> bool:
    match kind:
        case ValueKind.TEXT:
            return isinstance(value, str)
        case ValueKind.WHOLE | ValueKind.DOUBLE:
            return not isinstance(value, str)
        case ValueKind.OTHER:
            return False


def _nulls(predicate: Predicate) -> Iterator[str]:
    match predicate:
        case IsNull(column):
            yield column
        case And(parts) | Or(parts):
            for part in parts:
                yield from _nulls(part)
        case Not(part):
            yield from _nulls(part)
        case _:
            return


def _predicate(tree: exp.Expr) -> Predicate:
    match tree:
        case exp.Paren():
            return _predicate(tree.this)
        case exp.And():
            return And((_predicate(tree.left), _predicate(tree.right)))
        case exp.Or():
            return Or((_predicate(tree.left), _predicate(tree.right)))
        case exp.Not():
            return Not(_predicate(tree.this))
        case exp.Between():
            column = _column(tree.this)
            low, high = _constant(tree.args["low"]), _constant(tree.args["high"])
            return And((Comparison(column, ">=", low), Comparison(column, "<=", high)))
        case exp.In() if tree.expressions:
            return OneOf(_column(tree.this), tuple(_constant(expression) for expression in tree.expressions))
        case exp.Is() if isinstance(tree.expression, exp.Null):
            return IsNull(_column(tree.this))
    operator = _OPERATORS.get(type(tree))
    if operator is None or not isinstance(tree, exp.Binary):
        raise _NotSimple
    if isinstance(tree.left, exp.Column):
        return Comparison(_column(tree.left), operator, _constant(tree.right))
    return Comparison(_column(tree.right), _TURNED[operator], _constant(tree.left))


def _column(tree: exp.Expr) -> str:
    if not isinstance(tree, exp.Column) or tree.table:
        raise _NotSimple
    return tree.name


def _constant(tree: exp.Expr) -> Value:
    if isinstance(tree, exp.Neg):
        value = _constant(tree.this)
        if isinstance(value, str):
            raise _NotSimple
        return -value
    if not isinstance(tree, exp.Literal):
        raise _NotSimple
    text = str(tree.this)
    if tree.is_string:
        return text
    if text.isdigit():
        value = int(text)
        if value >= 1 << 63:
            raise _NotSimple
        return value
    whole, _, fraction = text.partition(".")
    if not (whole or "0").isdigit() or not (fraction or "0").isdigit() or len(text) > _MOST_DIGITS:
        raise _NotSimple
    return float(text)
