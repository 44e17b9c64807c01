"""Spark's dialect of SQL, and expressions translated from it to DuckDB's."""

from functools import lru_cache

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from watersmeet.errors import SqlError
from watersmeet.query.model import Expression

SPARK = Spark()


def syntax_tree(expression: Expression) -> exp.Expr:
    """The expression as sqlglot's tree; columns in it have flat names."""
    (statement,) = SPARK.parse(f"SELECT {expression.sql}")
    assert isinstance(statement, exp.Select)
    tree: exp.Expr = statement.expressions[0]
    return tree


@lru_cache(maxsize=4_096)  # a stream's filters are translated again with every batch
def to_duckdb(expression: Expression) -> str:
    """The same expression in DuckDB's dialect.

    >>> to_duckdb(Expression("`r.a` <=> 1", ()))
    '"r.a" IS NOT DISTINCT FROM 1'
    """
    try:
        return str(syntax_tree(expression).transform(_whole_units).sql(dialect="duckdb"))
    except RecursionError:
        raise SqlError(f"an expression is nested too deeply to be simulated: {expression.sql}") from None


def _whole_units(node: exp.Expr) -> exp.Expr:
    """Spark's timestampdiff counts whole units passed; sqlglot's translation would count boundaries crossed."""
    if isinstance(node, exp.TimestampDiff):
        unit = exp.Literal.string(node.text("unit").lower())
        return exp.Anonymous(this="DATE_SUB", expressions=[unit, node.expression, node.this])
    return node
