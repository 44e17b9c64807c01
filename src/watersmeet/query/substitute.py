"""Values in the place of columns, as RJoin rewrites a query once a tuple has bound one of its streams."""

from collections.abc import Mapping

from sqlglot import exp

from watersmeet.query.dialect import syntax_tree
from watersmeet.query.model import Column, Expression


def with_values(expression: Expression, values: Mapping[Column, object]) -> Expression:
    """The expression with values in the place of columns.

    >>> b, c = Column("r", "b"), Column("s", "c")
    >>> with_values(Expression("`r.b` + `s.c`", (b, c)), {b: 5}).sql
    '5 + `s.c`'
    """
    if not values.keys() & set(expression.columns):
        return expression
    by_name = {column.flat: value for column, value in values.items()}

    def substitute(node: exp.Expr) -> exp.Expr:
        return exp.convert(by_name[node.name]) if isinstance(node, exp.Column) and node.name in by_name else node

    sql = str(syntax_tree(expression).transform(substitute).sql(dialect="spark"))
    return Expression(sql, tuple(column for column in expression.columns if column not in values), expression.type)


def constant_of(predicate: Expression) -> tuple[Column, int | str] | None:
    """The column and the value of a predicate `column = constant`, for whole numbers and strings.

    >>> constant_of(Expression("7 = `r.a`", (Column("r", "a"),)))
    (Column(alias='r', name='a'), 7)
    """
    if len(predicate.columns) != 1:
        return None
    equality = syntax_tree(predicate).unnest()
    if not isinstance(equality, exp.EQ):
        return None
    column, constant = sorted(
        (equality.this.unnest(), equality.expression.unnest()), key=lambda side: not isinstance(side, exp.Column)
    )
    literal = constant.this if isinstance(constant, exp.Neg) else constant
    if not isinstance(column, exp.Column) or not isinstance(literal, exp.Literal):
        return None
    if literal is not constant and literal.is_string:
        return None
    value = constant.to_py()
    return (predicate.columns[0], value) if isinstance(value, int | str) else None
