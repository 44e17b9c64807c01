"""Expressions of SQL as expressions of UFL, and conditions as predicates."""

from collections.abc import Callable, Sequence
from typing import assert_never

from watersmeet.errors import SqlError
from watersmeet.program.pier.expressions import COMPARISONS
from watersmeet.program.pier.functions import FUNCTIONS
from watersmeet.program.pier.graph import Call, ConstantArgument, Expression, Predicate, Setting, Settings, TupleField
from watersmeet.program.pier.values import TYPES
from watersmeet.query import model
from watersmeet.query.tree import ColumnNode, ConstantNode, FunctionNode, Node, tree_of

Named = Callable[[model.Column], str]  # the field that a column is found in
_SYMBOLS = {name: symbol for symbol, name in COMPARISONS.items()}


def flat_name(column: model.Column) -> str:
    """The field of a column once its tuple has been taken up by a query."""
    return column.flat


def plain_name(column: model.Column) -> str:
    """The field of a column in the tuple as it was published."""
    return column.name


def ufl_expression(expression: model.Expression, named: Named = flat_name) -> Expression:
    """The expression over fields.

    >>> ufl_expression(model.Expression("`r.a` + 1", (model.Column("r", "a"),)))
    Call(function='add', arguments=(TupleField(name='r.a'), ConstantArgument(text='1', type='integer')))
    """
    return _translated(tree_of(expression), named, expression)


def _translated(node: Node, named: Named, whole: model.Expression) -> Expression:
    match node:
        case ConstantNode(value, kind):
            try:
                TYPES[kind].read(str(value))
            except ValueError:
                raise SqlError(f"{value} in {whole.sql} does not fit into a value of type {kind}") from None
            return ConstantArgument(str(value), kind)
        case ColumnNode(column):
            return TupleField(named(column))
        case FunctionNode(name, arguments):
            assert name in FUNCTIONS, name
            return Call(name, tuple(_translated(argument, named, whole) for argument in arguments))
        case _:
            assert_never(node)


def predicate_of(condition: Expression, name: str) -> Predicate:
    """A condition as a predicate object: comparisons, and or or of them, or anything else that must be true."""
    match condition:
        case Call("and" | "or" as kind, arguments):
            below = tuple(predicate_of(each, f"{name}.{number}") for number, each in enumerate(arguments))
            return Predicate(name, Settings((("type", kind),)), below)
        case Call(function, (left, right)) if function in _SYMBOLS:
            return _atomic(name, left, _SYMBOLS[function], right)
        case _:
            return _atomic(name, condition, "=", ConstantArgument("true", "boolean"))


def predicates_of(conditions: Sequence[Expression]) -> tuple[Predicate, ...]:
    """Conditions as the predicates of an operator: all of them must hold."""
    return tuple(predicate_of(condition, f"p{number}") for number, condition in enumerate(conditions))


def _atomic(name: str, left: Expression, op: str, right: Expression) -> Predicate:
    entries: tuple[tuple[str, Setting], ...] = (
        ("type", "atomic"),
        ("leftexpression", left),
        ("op", op),
        ("rightexpression", right),
    )
    return Predicate(name, Settings(entries))
