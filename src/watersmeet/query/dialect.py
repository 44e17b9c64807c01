"""Spark's dialect of SQL, and expressions translated from it to DuckDB's."""

from functools import lru_cache
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.spark import Spark
from sqlglot.generators.duckdb import DuckDBGenerator

from watersmeet.errors import SqlError
from watersmeet.query.model import Expression

SPARK = Spark()
_WHOLE = frozenset({exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT})
_LONGEST_OPERAND = 100_000  # characters; a translation has an operand several times
_CAN_FAIL = (exp.Cast, exp.Div, exp.IntDiv, exp.Mod, exp.Mul, exp.Add, exp.Sub, exp.Neg, exp.Anonymous)


def syntax_tree(expression: Expression) -> exp.Expr:
    """The expression as sqlglot's tree; columns in it have flat names."""
    (statement,) = SPARK.parse(f"SELECT {expression.sql}")
    assert isinstance(statement, exp.Select)
    tree: exp.Expr = statement.expressions[0]
    return tree


@lru_cache(maxsize=4_096)  # a stream's filters are translated again with every batch
def to_duckdb(expression: Expression, *, ansi: bool = False) -> str:
    """The same expression in DuckDB's dialect; with `ansi` it fails where Spark's does, otherwise it is NULL there.

    >>> to_duckdb(Expression("`r.a` <=> 1", ()))
    '"r.a" IS NOT DISTINCT FROM 1'
    """
    dialect = _ANSI if ansi else _LENIENT
    try:
        return dialect.generate(syntax_tree(expression).transform(_whole_units))
    except RecursionError:
        raise SqlError(f"an expression is nested too deeply to be simulated: {expression.sql}") from None


def all_of(conditions: list[str]) -> str:
    """Conditions of DuckDB's dialect joined by AND as Spark evaluates it: none after the first that is false."""
    if len(conditions) == 1:
        return f"({conditions[0]})"
    cases = " ".join(f"WHEN NOT ({condition}) THEN FALSE" for condition in conditions)
    return f"(CASE {cases} ELSE {' AND '.join(f'({condition})' for condition in conditions)} END)"


def any_of(conditions: list[str]) -> str:
    """The same by OR: none after the first that is true."""
    cases = " ".join(f"WHEN ({condition}) THEN TRUE" for condition in conditions)
    return f"(CASE {cases} ELSE {' OR '.join(f'({condition})' for condition in conditions)} END)"


def _whole_units(node: exp.Expr) -> exp.Expr:
    """Spark's timestampdiff counts whole units passed; sqlglot's translation would count boundaries crossed."""
    if isinstance(node, exp.TimestampDiff):
        unit = exp.Literal.string(node.text("unit").lower())
        return exp.Anonymous(this="DATE_SUB", expressions=[unit, node.expression, node.this])
    return node


# How DuckDB differs: a cast of a fraction to a whole number rounds, and takes text with a fraction; what is divided by
# zero is infinite; AND and OR evaluate all that they join.


def _operand(generator: Any, node: exp.Expr, which: str) -> str:
    text: str = generator.sql(node, which)
    if len(text) > _LONGEST_OPERAND:
        raise RecursionError
    return text


def _cast(generator: Any, node: exp.Cast) -> str:
    value, kind = _operand(generator, node, "this"), generator.sql(node, "to")
    fails = generator.dialect.ansi and not node.args.get("safe")
    cast = "CAST" if fails else "TRY_CAST"
    if node.to.this not in _WHOLE:
        return f"{cast}({value} AS {kind})"
    text = f"CAST({value} AS TEXT)"
    otherwise = f"CAST('no whole number: ' || {text} AS {kind})" if fails else "NULL"
    return (
        f"CASE WHEN TYPEOF({value}) IN ('FLOAT', 'DOUBLE') THEN {cast}(TRUNC(TRY_CAST({value} AS DOUBLE)) AS {kind}) "
        f"WHEN TYPEOF({value}) LIKE 'DECIMAL%' THEN {cast}(REGEXP_EXTRACT({text}, '^-?[0-9]+') AS {kind}) "
        f"WHEN TYPEOF({value}) = 'VARCHAR' AND NOT REGEXP_FULL_MATCH({text}, '\\s*[+-]?[0-9]+\\s*') THEN {otherwise} "
        f"ELSE {cast}({value} AS {kind}) END"
    )


def _divided(operator: str) -> Any:
    def divide(generator: Any, node: exp.Binary) -> str:
        left, right = _operand(generator, node, "this"), _operand(generator, node, "expression")
        if isinstance(node.expression, exp.Literal) and not node.expression.is_string and float(node.expression.this):
            return f"{left} {operator} {right}"
        if not generator.dialect.ansi:
            return f"{left} {operator} NULLIF({right}, 0)"
        zero = f"CAST('divided by ' || CAST({right} AS TEXT) AS INT)"
        return f"{left} {operator} CASE WHEN {right} = 0 AND {left} IS NOT NULL THEN {zero} ELSE {right} END"

    return divide


def _connected(operator: str, join: Any) -> Any:
    def connect(generator: Any, node: exp.Connector) -> str:
        operands = list(node.flatten(unnest=False))
        texts = [generator.sql(operand) for operand in operands]
        if not generator.dialect.ansi or not any(operand.find(*_CAN_FAIL) for operand in operands[1:]):
            return f" {operator} ".join(texts)
        if sum(map(len, texts)) > _LONGEST_OPERAND:
            raise RecursionError
        return str(join(texts))

    return connect


class _Translation(DuckDB):
    ansi = False

    class Generator(DuckDBGenerator):
        TRANSFORMS: ClassVar[Any] = {
            **DuckDBGenerator.TRANSFORMS,
            exp.Cast: _cast,
            exp.TryCast: _cast,
            exp.Div: _divided("/"),
            exp.IntDiv: _divided("//"),
            exp.Mod: _divided("%"),
            exp.And: _connected("AND", all_of),
            exp.Or: _connected("OR", any_of),
        }


class _AnsiTranslation(_Translation):
    ansi = True


_LENIENT, _ANSI = _Translation(), _AnsiTranslation()
