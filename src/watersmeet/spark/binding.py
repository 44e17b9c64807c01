"""A query bound to real schemas: Spark's analyser gives every expression its type, and equalities one common type."""

import re
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StringType, StructField, StructType

from watersmeet.errors import InputError, TopologyError, TypeMismatch
from watersmeet.plan import EXACT_KEY_TYPES, KeyClass
from watersmeet.query.model import Equality, Expression, JoinQuery
from watersmeet.query.sql import parse_query
from watersmeet.spark.session import first_line
from watersmeet.topology import Query, Stream, Topology

_INTEGRAL = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}  # with the digits each needs as a decimal
_FLOATING = ("float", "double")
_NOT_COMPARABLE = ("map", "variant", "void", "geometry", "geography")


@dataclass(frozen=True)
class Bound:
    """A query whose expressions all have types, and the row types of its streams."""

    query: JoinQuery
    schemas: dict[str, StructType]

    def combination(self, columns: tuple[str, ...]) -> StructType:
        """The row type of combinations, by flat names."""
        types = {
            f"{source.alias}.{field.name}": field.dataType
            for source in self.query.sources
            for field in self.schemas[source.stream].fields
        }
        return StructType([StructField(name, types[name]) for name in columns])


def bind(spark: SparkSession, topology: Topology, query: Query) -> Bound:
    """Parse a query and check every expression and type in it with Spark, without reading any data."""
    parsed = parse_query(query.sql, topology.columns, allow_cross=query.allow_cross)
    schemas = {source.stream: stream_schema(spark, topology.stream(source.stream)) for source in parsed.sources}
    flat = StructType(
        [
            StructField(f"{source.alias}.{field.name}", field.dataType)
            for source in parsed.sources
            for field in schemas[source.stream].fields
        ]
    )
    types = _types(spark.createDataFrame([], flat), _expressions(parsed))
    bound = replace(
        parsed,
        equalities=tuple(_typed_equality(equality, types) for equality in parsed.equalities),
        filters=tuple(_condition(expression, types) for expression in parsed.filters),
        residuals=tuple(_condition(expression, types) for expression in parsed.residuals),
        select=tuple(replace(i, expression=_typed(i.expression, types)) for i in parsed.select),
    )
    if bound.distinct:
        for item in bound.select:
            if re.match(r"(map|variant)\b", item.expression.type):
                raise TypeMismatch(f"DISTINCT cannot compare column {item.name!r} of type {item.expression.type}")
    return Bound(bound, schemas)


def stream_schema(spark: SparkSession, stream: Stream) -> StructType:
    """The row type of a stream, from its DataFrame or its DDL."""
    if stream.frame is not None:
        return stream.frame.schema  # type: ignore[attr-defined,no-any-return]
    try:
        return spark.createDataFrame([], stream.schema).schema
    except (ParseException, AnalysisException, PySparkException) as error:
        raise TopologyError(f"stream {stream.name!r}: schema {stream.schema!r}: {readable(error)}") from None


def readable(error: Exception) -> str:
    """What Spark's analyser says, without its codes, plans and positions in generated text."""
    text = str(error).split("\n\nJVM stacktrace")[0].split("== SQL")[0]
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", text.strip())
    text = re.sub(r"\s*SQLSTATE: \w+.*", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text).strip() or first_line(error)


def _expressions(query: JoinQuery) -> list[Expression]:
    sides = [side for equality in query.equalities for side in (equality.left, equality.right)]
    return [*sides, *query.filters, *query.residuals, *(item.expression for item in query.select)]


def _types(rows: DataFrame, expressions: list[Expression]) -> dict[str, str]:
    """The Spark type of each expression, all asked for at once; one by one only to find out which is wrong."""
    texts = sorted({expression.sql for expression in expressions})
    try:
        fields = rows.select([F.expr(sql) for sql in texts]).schema.fields
    except (AnalysisException, ParseException) as error:
        if len(texts) > 1:
            return {sql: kind for sql in texts for sql, kind in _types(rows, [Expression(sql, ())]).items()}
        raise InputError(f"{texts[0].replace('`', '')}: {readable(error)}") from None
    return {sql: field.dataType.simpleString() for sql, field in zip(texts, fields, strict=True)}


def _typed(expression: Expression, types: dict[str, str]) -> Expression:
    return replace(expression, type=types[expression.sql])


def _condition(expression: Expression, types: dict[str, str]) -> Expression:
    typed = _typed(expression, types)
    if typed.type != "boolean":
        raise TypeMismatch(f"{expression.sql.replace('`', '')} is {typed.type}; a condition must be boolean")
    return typed


def _typed_equality(equality: Equality, types: dict[str, str]) -> Equality:
    left, right = _uncollated(_typed(equality.left, types)), _uncollated(_typed(equality.right, types))
    common = _common_type(left, right)
    return Equality(_cast(left, common), _cast(right, common))


def _uncollated(side: Expression) -> Expression:
    """A collated string by the key that its collation compares."""
    if not re.match(r"string collate (?!UTF8_BINARY\b)", side.type, re.IGNORECASE):
        return side
    return Expression(f"collation_key({side.sql})", side.columns, "binary")


def _common_type(left: Expression, right: Expression) -> str:
    kinds = (left.type, right.type)
    text = f"{left.sql} = {right.sql}".replace("`", "")
    for kind in kinds:
        if kind.startswith(_NOT_COMPARABLE):
            raise TypeMismatch(f"{text}: values of type {kind} cannot be compared")
    if left.type == right.type:
        return left.type
    decimals = [_decimal(kind) for kind in kinds]
    if all(kind in _INTEGRAL for kind in kinds):
        return "bigint"
    if all(kind in _INTEGRAL or kind in _FLOATING or _decimal(kind) for kind in kinds):
        if any(kind in _FLOATING for kind in kinds):
            return "double"
        sizes = [d or (_INTEGRAL[kind], 0) for d, kind in zip(decimals, kinds, strict=True)]
        scale = max(scale for _, scale in sizes)
        digits = max(precision - scale for precision, scale in sizes) + scale
        if digits > DecimalType.MAX_PRECISION if hasattr(DecimalType, "MAX_PRECISION") else digits > 38:
            raise TypeMismatch(f"{text}: {left.type} and {right.type} need a decimal of {digits} digits; cast one side")
        return f"decimal({digits},{scale})"
    raise TypeMismatch(
        f"type mismatch in {text}: {left.type} is never equal to {right.type}; cast one side, "
        f"as in CAST({left.sql.replace('`', '')} AS {right.type})"
    )


def _decimal(kind: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return (int(match.group(1)), int(match.group(2))) if match else None


def _cast(expression: Expression, kind: str) -> Expression:
    if expression.type == kind:
        return expression
    return Expression(f"CAST({expression.sql} AS {kind})", expression.columns, kind)


def class_key_sql(member: Expression, key_class: KeyClass) -> str:
    """A 64-bit number that is equal for equal values: the value itself where it fits, else its hash; NULL for NULL."""
    value = f"({member.sql})"
    if not key_class.exact:
        return f"IF({value} IS NULL, NULL, xxhash64{value})"
    assert member.type in EXACT_KEY_TYPES
    match member.type:
        case "date":
            return f"CAST(unix_date{value} AS BIGINT)"
        case "timestamp" | "timestamp_ntz":
            return micros_sql(value, member.type)
        case _:
            return f"CAST({value} AS BIGINT)"


def micros_sql(value: str, kind: str) -> str:
    """Microseconds since the epoch of a timestamp of either kind."""
    if kind == "timestamp":
        return f"unix_micros({value})"
    return f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {value})"


CORRUPT = "_watersmeet_malformed"
CORRUPT_FIELD = StructField(CORRUPT, StringType())
