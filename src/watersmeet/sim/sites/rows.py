"""Expressions without Spark: DuckDB lays out the rows of streams and finishes combinations, in this process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from watersmeet.plan.shape import key_classes
from watersmeet.program.finish.failed import FAILING, first_failing, set_failing_aside
from watersmeet.program.finish.model import Evaluated, Finish, answer_column
from watersmeet.program.site.classified import classified_columns, classified_selections, kind_of_type
from watersmeet.program.site.derived import derived_rows
from watersmeet.program.site.ingest import FAILED, Ingest, first_row_id
from watersmeet.program.site.ledger import Answers, Ingested
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.segments import TS, class_column, keep_column
from watersmeet.program.storage.shelf import Shelf
from watersmeet.query.comparisons import column_types
from watersmeet.query.dialect import all_of, to_duckdb
from watersmeet.query.model import EVENT_TIME, Column, Equality, Expression, JoinQuery, Output, cast_output
from watersmeet.query.oracle import answer, answer_outputs
from watersmeet.query.windows import TABLE_US

_HASHED = "any"  # a type of values whose hashes are compared
_SPARK_TYPES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
HASH = "hash(CAST({} AS VARCHAR)) >> 1"  # how a value that is no plain whole number becomes one


def typed(
    query: JoinQuery, schemas: Mapping[str, pa.Schema], event_times: Mapping[str, str] | None = None
) -> JoinQuery:
    """The query with types for the sides of its equalities: whole numbers are compared as such, all else as hashes.

    `event_times` are the columns, by stream, whose values are known to be event times.
    """
    stream_of = {source.alias: source.stream for source in query.sources}

    def is_whole(side: Expression) -> bool:
        kinds = [schemas[stream_of[column.alias]].field(column.name).type for column in side.columns]
        return side.is_plain and pa.types.is_integer(kinds[0])

    _, class_of, _ = key_classes(query)
    hashed = {number for side, number in class_of.items() if not is_whole(side)}

    def with_type(side: Expression) -> Expression:
        return replace(side, type=_HASHED if class_of[side] in hashed else "bigint")

    equalities = tuple(Equality(with_type(e.left), with_type(e.right)) for e in query.equalities)
    outer = query.outer
    types = {
        Column(source.alias, field.name): spark_type(field.type)
        for source in query.sources
        for field in schemas[source.stream]
    }
    if outer is not None:
        outer = outer.rebound(dict(zip(query.equalities, equalities, strict=True)), tuple(types.items()))
    known = column_types(query, types, event_times or {})
    return replace(query, equalities=equalities, outer=outer, types=known)


def spark_type(kind: pa.DataType) -> str:
    """The type of a column in Spark's words, which NULLs in its place are cast to; empty where there is none here."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_TYPES.get(kind, "")


def typed_outputs(
    outputs: Iterable[Output], schemas: Mapping[str, pa.Schema]
) -> tuple[tuple[Output, ...], dict[str, pa.Schema]]:
    """Outputs with the types of their keys, and the schemas of all streams, derived ones among them."""
    known, found = dict(schemas), []
    for output in outputs:
        output = typed_output(output, known)
        found.append(output)
        if output.target.is_stream:
            known[output.target.name] = answer_outputs([output], *_empty(known))[output.target.name].schema
    return tuple(found), known


def typed_output(
    output: Output, schemas: Mapping[str, pa.Schema], event_times: Mapping[str, str] | None = None
) -> Output:
    """An output with the types of its keys; the columns of all branches have one type."""
    if len(output.branches) > 1:
        output = _of_one_type(output, *_empty(schemas))
    branches = ((name, typed(query, schemas, event_times)) for name, query in output.branches)
    return Output(output.target, tuple(branches))


def _empty(schemas: Mapping[str, pa.Schema]) -> tuple[dict[str, pa.Table], dict[str, str]]:
    """Streams without rows, and the columns with their event times."""
    times = {name: EVENT_TIME if EVENT_TIME in schema.names else _time_of(schema) for name, schema in schemas.items()}
    return {name: schema.empty_table() for name, schema in schemas.items()}, times


_CASTS = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.string(): "STRING"}


def _of_one_type(output: Output, empty: Mapping[str, pa.Table], times: Mapping[str, str]) -> Output:
    """The branches of a UNION ALL with columns of one type."""
    schemas = [answer(query, empty, times).schema for _, query in output.branches]
    common = pa.unify_schemas(schemas, promote_options="permissive")
    branches = []
    for (name, query), schema in zip(output.branches, schemas, strict=True):
        kinds = [
            _CASTS.get(common.field(value.name).type) if common.field(value.name) != value else None for value in schema
        ]
        branches.append((name, cast_output(query, kinds)))
    return Output(output.target, tuple(branches))


def _time_of(schema: pa.Schema) -> str:
    """Any column that can be an event time, of a table without rows; tables beside streams need none."""
    return str(next((field.name for field in schema if pa.types.is_timestamp(field.type)), ""))


def lay_out(scan: StreamScan, rows: pa.Table, event_time: str, hash_sql: str = HASH) -> pa.Table:
    """New rows of a stream as they are ingested: event time, keys and conditions as numbers, values to keep.

    Rows of a table have no event time: they get the first instant.

    Only where an expression fails is each one tried row by row, with a report of those that fail.
    """
    flat = rows.rename_columns([f"{scan.stream}.{name}" for name in rows.column_names])
    ts = f"CAST({TABLE_US} AS BIGINT)" if scan.is_table else f'epoch_us("{scan.stream}.{event_time}")'
    return _laid_out(scan, flat, ts, hash_sql)


class DuckDerivation:
    """Files answers as rows of derived streams without Spark (see program.site.derived)."""

    def __init__(self, shelf: Shelf, hash_sql: str = HASH) -> None:
        self._shelf, self._hash_sql = shelf, hash_sql

    def __call__(
        self, program: SiteProgram, scan: StreamScan, answers: Sequence[Answers], filed: int
    ) -> list[Ingested]:
        file = Ingest(program, self._shelf, scan)
        tables = [table for given in answers for table in derived_rows(self._shelf, scan.stream, given)]
        batch = answers[0].batch
        return [
            file(_laid_out(scan, table, f'"{TS}"', self._hash_sql), None, first_row_id(batch, number))
            for number, table in enumerate(tables, filed)
        ]


def _laid_out(scan: StreamScan, flat: pa.Table, ts: str, hash_sql: str) -> pa.Table:
    judged: dict[str, str] = {}  # keys and conditions
    for number, key in enumerate(scan.keys):
        value = _translated(key.expression)
        number_sql = value if key.expression.type == "bigint" else hash_sql.format(value)
        judged[class_column(number)] = f"CASE WHEN ({value}) IS NOT NULL THEN CAST({number_sql} AS BIGINT) END"
    classified = classified_selections(scan, {field.name: kind_of_type(field.type) for field in flat.schema})
    for number, selection in enumerate(scan.selections):
        if selection.filters and number not in classified:
            judged[keep_column(number)] = all_of([_translated(predicate) for predicate in selection.filters])
    columns = {TS: ts, **judged}
    columns |= {item.name: _translated(item.expression) for item in scan.read}
    for name in classified_columns(scan, classified):
        columns.setdefault(name, f'"{name}"')
    try:
        return query_rows(f"SELECT {_aliased(columns)} FROM flat", flat=flat)
    except _duckdb().Error:
        columns = {name: _value(_tried(sql)) for name, sql in columns.items()} | {FAILED: _report(judged, flat)}
        return _tried_rows(f"SELECT {_aliased(columns)} FROM flat", flat=flat)


def _translated(expression: Expression) -> str:
    return to_duckdb(expression, ansi=True)


def _aliased(columns: Mapping[str, str]) -> str:
    return ", ".join(f'{sql} AS "{name}"' for name, sql in columns.items())


def _report(judged: Mapping[str, str], flat: pa.Table) -> str:
    """Which of some expressions fail for a row, and the row, as JSON; NULL where none does."""
    names = ", ".join(f"CASE WHEN {_tried(sql)} IS NULL THEN '{name}' END" for name, sql in judged.items())
    row = ", ".join(f"""'{name.replace("'", "''")}': CAST("{name}" AS VARCHAR)""" for name in flat.column_names)
    report = f"{{'failed': list_filter([{names}], lambda name: name IS NOT NULL), 'row': {{{row}}}}}"
    is_wrong = " OR ".join(f"{_tried(sql)} IS NULL" for sql in judged.values()) or "false"
    return f"CASE WHEN {is_wrong} THEN CAST(to_json({report}) AS VARCHAR) END"


def _tried(sql: str) -> str:
    """A struct with the value of an expression; NULL where it fails."""
    return f"TRY({{'v': {sql}}})"


def _value(tried: str) -> str:
    return f"({tried}).v"


class DuckEvaluator:
    """The evaluator of a site without Spark (see program.finish.model)."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def __call__(self, finish: Finish, paths: Sequence[str], rows: int) -> Evaluated:
        combinations = pa.concat_tables([self._shelf.get(path) for path in paths])
        tried = Evaluated(tuple(paths))
        try:
            table = evaluate(finish, combinations)
        except _duckdb().Error:
            tried = set_failing_aside(self._shelf, finish, _with_failing(finish, combinations))
            table = evaluate(finish, pa.concat_tables([combinations.slice(0, 0), *map(self._shelf.get, tried.paths)]))
        made = (self._shelf.put("evaluated", table).path,) if table.num_rows else ()
        return replace(tried, paths=made)


def _with_failing(finish: Finish, combinations: pa.Table) -> pa.Table:
    """Combinations and, beside each, which expression fails for it first."""
    number = first_failing(
        finish,
        lambda expression: f"{_tried(_translated(expression))} IS NULL",
        lambda expression: f"coalesce({_value(_tried(_translated(expression)))}, false)",
    )
    return _tried_rows(
        f'SELECT *, CAST({number} AS INTEGER) AS "{FAILING}" FROM combinations', combinations=combinations
    )


def evaluate(finish: Finish, combinations: pa.Table) -> pa.Table:
    """Predicates and output columns of a query over combinations; with DISTINCT, each row once and with its hash."""
    where = all_of([_translated(predicate) for predicate in finish.predicates]) if finish.predicates else "true"
    names = [answer_column(number) for number in range(len(finish.select))]
    values = [_translated(item.expression) for item in finish.select]
    select = ", ".join(f'{value} AS "{name}"' for value, name in zip(values, names, strict=True))
    sql = f"SELECT {'DISTINCT ' if finish.distinct else ''}{select} FROM combinations WHERE {where}"
    if finish.distinct:
        row = ", ".join(f'"{name}"' for name in names if name != finish.time_column)
        sql = f'SELECT *, CAST(hash({row}) >> 1 AS BIGINT) AS "{class_column(0)}" FROM ({sql})'
    return query_rows(sql, combinations=combinations)


def _duckdb() -> Any:
    import duckdb

    return duckdb


@cache
def _connection() -> Any:
    connection = _duckdb().connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _tried_rows(sql: str, **tables: pa.Table) -> pa.Table:
    """The same with attempts in it; what comes twice in one would otherwise be evaluated ahead of it."""
    _connection().execute("SET disabled_optimizers = 'common_subexpressions'")
    try:
        return query_rows(sql, **tables)
    finally:
        _connection().execute("RESET disabled_optimizers")


def query_rows(sql: str, **tables: pa.Table) -> pa.Table:
    """What a statement makes of tables."""
    connection = _connection()
    for name, table in tables.items():
        connection.register(name, table)
    return connection.sql(sql).to_arrow_table()
