"""NULLs of rows without partner: which predicates cannot hold for them, and NULLs in the place of columns."""

import re
from collections.abc import Mapping

from sqlglot import exp

from watersmeet.query.dialect import syntax_tree
from watersmeet.query.model import Column, Equality, Expression, Predicate

_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`", re.DOTALL)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.RegexpLike)
_OF_TWO = (*_COMPARISONS, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
_OF_ONE = (exp.Paren, exp.Neg, exp.Cast, exp.Lower, exp.Upper, exp.Abs, exp.Length, exp.Floor, exp.Ceil)


def rejects_null(predicate: Predicate) -> frozenset[str]:
    """The aliases without whose row a predicate cannot hold: NULL in their columns makes it NULL or false.

    >>> sorted(rejects_null(Expression("`a.x` + 1 > `b.y`", (Column("a", "x"), Column("b", "y")))))
    ['a', 'b']
    >>> sorted(rejects_null(Expression("coalesce(`b.y`, 0) = 0 OR `b.y` > 1", (Column("b", "y"),))))
    []
    """
    if isinstance(predicate, Equality):
        return rejects_null(predicate.left) | rejects_null(predicate.right)
    owners = {column.flat: column.alias for column in predicate.columns}
    return frozenset(_rejecting(syntax_tree(predicate), owners))


def _rejecting(node: exp.Expr, owners: Mapping[str, str]) -> set[str]:
    match node:
        case exp.Paren() | exp.Alias():
            return _rejecting(node.this, owners)
        case exp.And():
            return _rejecting(node.this, owners) | _rejecting(node.expression, owners)
        case exp.Or():
            return _rejecting(node.this, owners) & _rejecting(node.expression, owners)
        case exp.Not(this=exp.Is(this=value, expression=exp.Null())):
            return _strict(value, owners)
        case exp.Not():
            return _strict(node.this, owners)
        case _:
            return _strict(node, owners)


def _strict(node: exp.Expr, owners: Mapping[str, str]) -> set[str]:
    """The aliases whose NULLs make a value NULL, as far as it can be seen."""
    if isinstance(node, exp.Column):
        return {owners[node.name]} if node.name in owners else set()
    if isinstance(node, _OF_TWO):
        return _strict(node.this, owners) | _strict(node.expression, owners)
    if isinstance(node, exp.Cast):
        return _strict(node.this, owners)
    if isinstance(node, _OF_ONE):
        return _strict(node.this, owners)
    if isinstance(node, exp.Between) or (isinstance(node, exp.In) and not node.args.get("query")):
        return _strict(node.this, owners)
    return set()


def with_nulls(expression: Expression, types: Mapping[Column, str], absent: frozenset[str]) -> Expression:
    """An expression with NULLs in the place of the columns of some aliases; the rest of the text stays as it is.

    >>> b = Column("b", "y")
    >>> with_nulls(Expression("coalesce(`b.y`, 0)", (b,)), {b: "int"}, frozenset("b")).sql
    'coalesce(CAST(NULL AS int), 0)'
    """
    gone = {column for column in expression.columns if column.alias in absent}
    if not gone:
        return expression
    nulls = {column.sql: f"CAST(NULL AS {types[column]})" if types.get(column) else "NULL" for column in gone}
    sql = _QUOTED.sub(lambda found: nulls.get(found.group(), found.group()), expression.sql)
    return Expression(sql, tuple(c for c in expression.columns if c not in gone), expression.type)
