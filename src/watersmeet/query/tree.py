"""Expressions as plain trees, for engines that evaluate them without SQL: constants, columns and named functions."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from sqlglot import exp

from watersmeet.errors import SqlError
from watersmeet.query.dialect import syntax_tree
from watersmeet.query.model import Column, Expression
from watersmeet.query.windows import UNIT_US

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ConstantNode:
    """A value and its type: integer, decimal, double, string, boolean, timestamp (microseconds), or null."""

    value: Any
    type: str


@dataclass(frozen=True, slots=True)
class ColumnNode:
    """A column of an alias."""

    column: Column


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """A function of others, by its name in lower case and without underscores."""

    name: str
    arguments: tuple["Node", ...]


Node: TypeAlias = ConstantNode | ColumnNode | FunctionNode

_TWO: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.IntDiv: "div",
    exp.Mod: "mod",
    exp.EQ: "equals",
    exp.NEQ: "notequals",
    exp.LT: "lessthan",
    exp.LTE: "lessthanequals",
    exp.GT: "greaterthan",
    exp.GTE: "greaterthanequals",
    exp.And: "and",
    exp.Or: "or",
    exp.Like: "like",
}
_ONE: dict[type[exp.Expr], str] = {
    exp.Not: "not",
    exp.Neg: "negate",
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "length",
    exp.Abs: "abs",
    exp.Floor: "floor",
    exp.Ceil: "ceil",
    exp.Trim: "trim",
}
_MANY: dict[type[exp.Expr], str] = {exp.Coalesce: "coalesce", exp.Greatest: "greatest", exp.Least: "least"}
_CASTS = {"BIGINT": "tointeger", "DOUBLE": "todouble"}


def tree_of(expression: Expression) -> Node:
    """The tree of an expression.

    >>> tree_of(Expression("`r.a` + 1", (Column("r", "a"),)))
    ... # doctest: +NORMALIZE_WHITESPACE
    FunctionNode(name='add', arguments=(ColumnNode(column=Column(alias='r', name='a')),
        ConstantNode(value='1', type='integer')))
    """
    columns = {column.flat: column for column in expression.columns}
    try:
        return _Reader(expression, columns).node(syntax_tree(expression))
    except RecursionError:
        raise SqlError(f"an expression is nested too deeply to be simulated: {expression.sql}") from None


class _Reader:
    def __init__(self, expression: Expression, columns: dict[str, Column]) -> None:
        self._expression, self._columns = expression, columns

    def node(self, tree: exp.Expr) -> Node:
        """The tree of a syntax tree."""
        kind = type(tree)
        if kind in _TWO:
            return FunctionNode(_TWO[kind], (self.node(tree.this), self.node(tree.expression)))
        if kind in _ONE and not (kind is exp.Trim and tree.expression):
            return FunctionNode(_ONE[kind], (self.node(tree.this),))
        if kind in _MANY:
            return FunctionNode(_MANY[kind], tuple(self.node(each) for each in (tree.this, *tree.expressions)))
        match tree:
            case exp.Paren() | exp.Alias():
                return self.node(tree.this)
            case exp.Column():
                return ColumnNode(self._columns[tree.name])
            case exp.Literal() if tree.is_string:
                return ConstantNode(tree.this, "string")
            case exp.Literal():
                is_whole = str(tree.this).isdigit()
                is_double = "e" in str(tree.this).casefold()
                return ConstantNode(str(tree.this), "integer" if is_whole else "double" if is_double else "decimal")
            case exp.Boolean():
                return ConstantNode("true" if tree.this else "false", "boolean")
            case exp.Null():
                return ConstantNode("null", "null")
            case exp.Is():
                if isinstance(tree.expression, exp.Null):
                    return FunctionNode("isnull", (self.node(tree.this),))
            case exp.NullSafeEQ():
                return self._same(self.node(tree.this), self.node(tree.expression))
            case exp.Between():
                value = self.node(tree.this)
                low, high = self.node(tree.args["low"]), self.node(tree.args["high"])
                above = FunctionNode("greaterthanequals", (value, low))
                return FunctionNode("and", (above, FunctionNode("lessthanequals", (value, high))))
            case exp.In() if tree.expressions and not tree.args.get("query"):
                value = self.node(tree.this)
                return FunctionNode(
                    "or", tuple(FunctionNode("equals", (value, self.node(each))) for each in tree.expressions)
                )
            case exp.Case() | exp.If():
                return self._choice(tree)
            case exp.Concat():
                return FunctionNode("concat", tuple(self.node(each) for each in tree.expressions))
            case exp.Substring() if tree.args.get("start") is not None:
                length = tree.args.get("length")
                rest = ConstantNode(str(2**31 - 1), "integer") if length is None else self.node(length)
                return FunctionNode("substring", (self.node(tree.this), self.node(tree.args["start"]), rest))
            case exp.Cast():
                return self._cast(tree)
            case exp.Interval():
                return self._interval(tree)
        raise SqlError(f"PIER's expressions have nothing for {tree.sql(dialect='spark')}; rewrite it")

    def _same(self, left: Node, right: Node) -> Node:
        both = FunctionNode("and", (FunctionNode("isnull", (left,)), FunctionNode("isnull", (right,))))
        equal = FunctionNode("equals", (left, right))
        return FunctionNode("or", (both, FunctionNode("coalesce", (equal, ConstantNode("false", "boolean")))))

    def _choice(self, tree: exp.Expr) -> Node:
        if isinstance(tree, exp.If):
            branches, default = [tree], tree.args.get("false")
        else:
            branches, default = tree.args["ifs"], tree.args.get("default")
        found: Node = ConstantNode("null", "null") if default is None else self.node(default)
        for branch in reversed(branches):
            condition = self.node(branch.this)
            if isinstance(tree, exp.Case) and tree.this is not None:
                condition = FunctionNode("equals", (self.node(tree.this), condition))
            found = FunctionNode("if", (condition, self.node(branch.args["true"]), found))
        return found

    def _cast(self, tree: exp.Expr) -> Node:
        kind = str(tree.args["to"].this.name)
        if kind in ("TIMESTAMP", "TIMESTAMPLTZ", "TIMESTAMPTZ") and isinstance(tree.this, exp.Literal):
            try:
                moment = datetime.fromisoformat(str(tree.this.this))
            except ValueError:
                raise SqlError(f"{tree.this.this!r} is no time; write it like '2026-01-31 12:00:00'") from None
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return ConstantNode(str((moment - _EPOCH) // timedelta(microseconds=1)), "timestamp")
        if kind not in _CASTS:
            raise SqlError(f"PIER's expressions cannot cast to {kind.lower()}; rewrite {tree.sql(dialect='spark')}")
        return FunctionNode(_CASTS[kind], (self.node(tree.this),))

    def _interval(self, tree: exp.Expr) -> Node:
        unit, amount = str(tree.text("unit")).casefold().removesuffix("s"), str(tree.this.this)
        if unit not in UNIT_US or not amount.lstrip("-").isdigit():
            raise SqlError(f"PIER's expressions have no interval such as {tree.sql(dialect='spark')}; rewrite it")
        return ConstantNode(str(int(amount) * UNIT_US[unit]), "integer")
