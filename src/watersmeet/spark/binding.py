"""A query bound to real schemas: Spark's analyser gives every expression its type, and equalities one common type."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from watersmeet.errors import TopologyError, TypeMismatch
from watersmeet.plan.nodes import EXACT_KEY_TYPES
from watersmeet.program.finish.model import matched_column
from watersmeet.query.comparisons import column_types
from watersmeet.query.model import (
    GROUP_TYPES,
    MEMBER,
    TIME,
    Column,
    Equality,
    Expression,
    Grouping,
    JoinQuery,
    Predicate,
)
from watersmeet.query.outer import OWN_COLUMNS
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Changes
from watersmeet.spark.analyser import DATE_TYPES, Analyser, TypedRows, readable, type_of
from watersmeet.spark.session import empty_frame
from watersmeet.topology.model import Query, Stream, Topology

_INTEGRAL = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}  # with the digits each needs as a decimal
_FLOATING = ("float", "double")
_DECIMAL_DIGITS = 38  # the longest decimal of Spark
_NOT_COMPARABLE = ("map", "variant", "void", "geometry", "geography")
_SIMPLE = EXACT_KEY_TYPES | {"float", "double", "string", "binary"}
_FAMILIES = ("string", "interval")  # types that Spark itself reconciles: collations, units of intervals
_COLLATED = re.compile(r"string collate (?!UTF8_BINARY\b)", re.IGNORECASE)
_NESTED_COLLATION = re.compile(r"[<:,]string collate (?!UTF8_BINARY\b)", re.IGNORECASE)
_MONTHS = re.compile(r"interval (year|month)")
_NOT_DISTINCT = re.compile(r"(^|[<:,])(map<|variant\b(?!:)|interval$|interval (year|month))")


_KNOWN_SCHEMAS: dict[str, StructType] = {}  # by DDL: many queries read the same streams


@dataclass(frozen=True)
class Bound:
    """A query whose expressions all have types, and the row types of its streams."""

    query: JoinQuery
    schemas: dict[str, StructType]

    def combination(self, columns: tuple[str, ...]) -> StructType:
        """The row type of combinations, by flat names."""
        types: dict[str, DataType] = {
            f"{source.alias}.{field.name}": field.dataType
            for source in self.query.sources
            for field in self.schemas[source.stream].fields
        }
        types[TIME.flat] = LongType()
        types |= {f"{source.alias}.{name}": LongType() for source in self.query.sources for name in OWN_COLUMNS}
        if self.query.distinct and self.query.outer is not None:
            items = enumerate(self.query.select)
            types |= {matched_column(n).flat: type_of(item.expression.type) for n, item in items}
        if self.query.grouping is not None:
            types |= {field.name: field.dataType for field in _group_type(self.query).fields}
            types[MEMBER.flat] = type_of(GROUP_TYPES[MEMBER])
        return StructType([StructField(name, types[name]) for name in columns])


def bind(spark: SparkSession, topology: Topology, query: Query) -> Bound:
    """Parse a query of one SELECT and check every expression and type in it."""
    parsed = parse_query(
        query.sql,
        topology.columns,
        allow_cross=query.allow_cross,
        event_times=topology.event_times,
        tables=topology.table_windows,
    )
    return bind_parsed(Analyser(spark), topology, parsed)


def expect_queries(analyser: Analyser, topology: Topology, queries: Iterable[JoinQuery]) -> None:
    """Have the expressions of many queries analysed at once, before each of them is bound."""
    texts: dict[TypedRows, list[str]] = {}
    known = topology.columns
    for query in queries:
        if all(source.stream in known for source in query.sources):
            found = texts.setdefault(_rows_of(analyser, query, _schemas_of(analyser, topology, query)), [])
            found += [expression.sql for expression in _expressions(query)]
    for rows, some in texts.items():
        rows.expect(some)


def _schemas_of(analyser: Analyser, topology: Topology, query: JoinQuery) -> dict[str, StructType]:
    return {source.stream: stream_schema(analyser.spark, topology.stream(source.stream)) for source in query.sources}


def _rows_of(analyser: Analyser, query: JoinQuery, schemas: Mapping[str, StructType]) -> TypedRows:
    """Rows of all streams of a query, by flat names."""
    flat = StructType(
        [
            StructField(f"{source.alias}.{field.name}", field.dataType)
            for source in query.sources
            for field in schemas[source.stream].fields
        ]
    )
    for column in {c for item in query.select for c in item.expression.columns if c.name in OWN_COLUMNS}:
        flat = flat.add(column.flat, LongType())  # when rows of views expire
    has_time = query.grouping is not None or query.into is not None
    return analyser.rows(flat.add(TIME.flat, LongType()) if has_time else flat)


def bind_parsed(analyser: Analyser, topology: Topology, parsed: JoinQuery) -> Bound:
    """Check every expression and type in a query with Spark, without reading any data."""
    schemas = _schemas_of(analyser, topology, parsed)
    rows = _rows_of(analyser, parsed, schemas)
    types = _types(rows, _expressions(parsed))
    _check_functions(rows, parsed)
    bound = replace(
        parsed,
        types=column_types(parsed, dict(_column_types(parsed, schemas)), topology.event_times),
        equalities=tuple(_typed_equality(rows, equality, types) for equality in parsed.equalities),
        filters=tuple(_condition(expression, types) for expression in parsed.filters),
        residuals=tuple(_condition(expression, types) for expression in parsed.residuals),
        select=tuple(replace(i, expression=_typed(i.expression, types)) for i in parsed.select),
    )
    if parsed.outer is not None:
        before: list[Predicate] = [*parsed.equalities, *parsed.filters, *parsed.residuals]
        after: list[Predicate] = [*bound.equalities, *bound.filters, *bound.residuals]
        outer = parsed.outer.rebound(dict(zip(before, after, strict=True)), _column_types(parsed, schemas))
        bound = replace(bound, outer=outer)
    if bound.grouping is not None:
        bound = replace(bound, grouping=_bound_grouping(analyser, rows, bound, bound.grouping))
    if bound.distinct:
        for item in bound.select:
            if _NOT_DISTINCT.search(item.expression.type) or _NESTED_COLLATION.search(item.expression.type):
                raise TypeMismatch(f"DISTINCT cannot compare column {item.name!r} of type {item.expression.type}")
    _check_kept(bound, schemas, topology)
    if any(is_collated(kind) for kind in types.values()):
        analyser.define_collation_key()
    return Bound(bound, schemas)


def _column_types(query: JoinQuery, schemas: Mapping[str, StructType]) -> tuple[tuple[Column, str], ...]:
    return tuple(
        (Column(source.alias, field.name), field.dataType.simpleString())
        for source in query.sources
        for field in schemas[source.stream].fields
    )


def _bound_grouping(analyser: Analyser, rows: TypedRows, query: JoinQuery, grouping: Grouping) -> Grouping:
    """Aggregates and what is made of them with the types that Spark gives them."""
    for item in query.select[: grouping.keys]:
        kind = item.expression.type
        if _NOT_DISTINCT.search(kind) or kind.startswith(("array", "struct", "void")) or is_collated(kind):
            written = item.expression.sql.replace("`", "")
            raise TypeMismatch(f"GROUP BY cannot compare {written} of type {kind}; cast it or take it apart")
    ours = {
        aggregate.sql: aggregate.item for aggregate in grouping.aggregates if aggregate.function in ("max_k", "min_k")
    }  # not Spark's
    types = _types(
        rows, [Expression(aggregate.sql, ()) for aggregate in grouping.aggregates if aggregate.sql not in ours]
    )
    types |= {sql: f"array<{query.select[item].expression.type}>" for sql, item in ours.items() if item is not None}
    for aggregate in grouping.aggregates:
        kind = "" if aggregate.item is None else query.select[aggregate.item].expression.type
        ordered = aggregate.distinct or aggregate.function not in ("count", "sum", "avg")
        takes_any = aggregate.function in ("count", "min", "max", "approx_count_distinct", "approx_top_k")
        takes_any |= aggregate.sql in ours
        takes_any |= kind == "boolean" and aggregate.function in ("bool_and", "bool_or")
        takes_times = aggregate.function == "approx_percentile" and kind in DATE_TYPES
        if (ordered and (kind.startswith(("array", "struct", "map", "interval", "variant")) or is_collated(kind))) or (
            not takes_any and not takes_times and not _is_number(kind)
        ):
            written = aggregate.sql.replace("`", "")
            raise TypeMismatch(f"{written}: values of type {kind} cannot be aggregated so; cast the argument")
    typed = replace(
        grouping, aggregates=tuple(replace(aggregate, type=types[aggregate.sql]) for aggregate in grouping.aggregates)
    )
    groups = analyser.rows(_group_type(replace(query, grouping=typed)))
    results = [*(item.expression for item in typed.select), *typed.having, *(key.expression for key in typed.order)]
    found = _types(groups, results)
    for key in typed.order:
        if found[key.expression.sql].startswith(("array", "struct", "map", "variant")):
            written = key.expression.sql.replace("`", "")
            raise TypeMismatch(f"ORDER BY cannot compare {written} of type {found[key.expression.sql]}; take it apart")
    _check_functions(groups, replace(query, equalities=(), filters=(), residuals=typed.having, select=typed.select))
    return replace(
        typed,
        select=tuple(replace(item, expression=_typed(item.expression, found)) for item in typed.select),
        having=tuple(_condition(predicate, found) for predicate in typed.having),
    )


def _is_number(kind: str) -> bool:
    return kind in _INTEGRAL or kind in _FLOATING or _decimal(kind) is not None


def _group_type(query: JoinQuery) -> StructType:
    """The row type of groups."""
    assert query.grouping is not None
    keys = [item.expression.type for item in query.select[: query.grouping.keys]]
    values = [aggregate.type for aggregate in query.grouping.aggregates]
    names = [column.flat for column in query.grouping.columns]
    kinds = [*keys, *values, *(GROUP_TYPES[column] for column in query.grouping.own_columns)]
    return StructType([StructField(name, type_of(kind)) for name, kind in zip(names, kinds, strict=True)])


def stream_schema(spark: SparkSession, stream: Stream) -> StructType:
    """The row type of a stream, from its DataFrame or its DDL."""
    if stream.frame is not None:
        return stream.frame.schema  # type: ignore[attr-defined,no-any-return]
    assert stream.schema is not None, "a stream has a schema or a frame"
    try:
        if stream.schema in _KNOWN_SCHEMAS:
            return _KNOWN_SCHEMAS[stream.schema]
        schema = DataType.fromDDL(stream.schema)
        assert isinstance(schema, StructType), "a list of columns"
        if match := re.search(r"[<:]((var)?char\(\d+\))", schema.simpleString()):
            raise TopologyError(f"{stream.what}: {match.group(1)} is a type of tables only; use string")
        _KNOWN_SCHEMAS[stream.schema] = empty_frame(spark, schema).schema
        return _KNOWN_SCHEMAS[stream.schema]
    except (ParseException, AnalysisException, PySparkException) as error:
        raise TopologyError(f"{stream.what}: schema {stream.schema!r}: {readable(error)}") from None


def _expressions(query: JoinQuery) -> list[Expression]:
    sides = [side for equality in query.equalities for side in (equality.left, equality.right)]
    return [*sides, *query.filters, *query.residuals, *(item.expression for item in query.select)]


def _types(rows: TypedRows, expressions: Iterable[Expression]) -> dict[str, str]:
    return rows.types(expression.sql for expression in expressions)


def _check_functions(rows: TypedRows, query: JoinQuery) -> None:
    """Refuse functions that are not supported, or not where they are."""
    exact = [(expression, "WHERE or ON") for expression in _expressions(replace(query, select=()))]
    clause = "SELECT DISTINCT" if query.distinct else ""
    if query.grouping is not None and isinstance(query.grouping.window, Changes):
        clause = "a query with EMIT CHANGES"
    select = [(item.expression, clause) for item in query.select]
    rows.check_functions(
        {expression.sql: clause for expression, clause in (*select, *exact) if not expression.is_plain}
    )


def _typed(expression: Expression, types: dict[str, str]) -> Expression:
    return replace(expression, type=types[expression.sql])


def _condition(expression: Expression, types: dict[str, str]) -> Expression:
    typed = _typed(expression, types)
    if typed.type != "boolean":
        raise TypeMismatch(f"{expression.sql.replace('`', '')} is {typed.type}; a condition must be boolean")
    return typed


def _check_kept(query: JoinQuery, schemas: dict[str, StructType], topology: Topology) -> None:
    """Refuse columns that windows would have to keep and that Arrow has no type for."""
    asked = {column for e in (*query.residuals, *(i.expression for i in query.select)) for column in e.columns}
    for source in query.sources:
        keeps_all = topology.stream(source.stream).late is not None
        for field in schemas[source.stream].fields:
            column = Column(source.alias, field.name)
            if column in asked or keeps_all:
                try:
                    to_arrow_type(field.dataType, timezone="UTC")
                except PySparkException:
                    raise TypeMismatch(
                        f"{column.flat}: windows cannot keep values of type {field.dataType.simpleString()}; "
                        "use the column only in equalities and conditions on its own stream, or cast it in the source"
                    ) from None


def _typed_equality(rows: TypedRows, equality: Equality, types: dict[str, str]) -> Equality:
    left, right = _typed(equality.left, types), _typed(equality.right, types)
    common = _common_type(rows, left, right)
    return Equality(_key_value(left, common), _key_value(right, common))


def _key_value(side: Expression, common: str) -> Expression:
    """A side of an equality in the common type, or as what Spark compares of it where that is something else."""
    value = _cast(side, common)
    if is_collated(common):
        return Expression(f"collation_key({value.sql})", side.columns, "binary")
    if _MONTHS.match(common):
        return Expression(f"CAST(CAST({value.sql} AS INTERVAL MONTH) AS BIGINT)", side.columns, "bigint")
    return value


def is_collated(kind: str) -> bool:
    """Whether values of a type are strings that are compared by a key of their collation."""
    return _COLLATED.match(kind) is not None


def _merged_type(rows: TypedRows, left: Expression, right: Expression) -> str:
    """The type in which Spark itself compares two sides."""
    kind = rows.merged_type(left.sql, right.sql)
    if _NESTED_COLLATION.search(kind):
        text = f"{left.sql} = {right.sql}".replace("`", "")
        raise TypeMismatch(f"{text}: collated strings inside a key of type {kind} cannot be compared; take them apart")
    return kind


def _common_type(rows: TypedRows, left: Expression, right: Expression) -> str:
    kinds = (left.type, right.type)
    text = f"{left.sql} = {right.sql}".replace("`", "")
    for kind in kinds:
        if kind.startswith(_NOT_COMPARABLE):
            raise TypeMismatch(f"{text}: values of type {kind} cannot be compared")
    if left.type == right.type and left.type in _SIMPLE:
        return left.type
    if left.type == right.type or any(all(kind.startswith(family) for kind in kinds) for family in _FAMILIES):
        return _merged_type(rows, left, right)
    decimals = [_decimal(kind) for kind in kinds]
    if all(kind in _INTEGRAL for kind in kinds):
        return "bigint"
    if all(kind in _INTEGRAL or kind in _FLOATING or _decimal(kind) for kind in kinds):
        if any(kind in _FLOATING for kind in kinds):
            return "double"
        sizes = [d or (_INTEGRAL[kind], 0) for d, kind in zip(decimals, kinds, strict=True)]
        scale = max(scale for _, scale in sizes)
        digits = max(precision - scale for precision, scale in sizes) + scale
        if digits > _DECIMAL_DIGITS:
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


def class_key_sql(member: Expression, *, exact: bool) -> str:
    """A 64-bit number that is equal for equal values: the value itself where it fits, else its hash; NULL for NULL."""
    value = f"({member.sql})"
    if not exact:
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
