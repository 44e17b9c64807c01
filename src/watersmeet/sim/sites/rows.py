"""Expressions without Spark: DuckDB lays out the rows of streams and finishes combinations, in this process."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from watersmeet.plan.shape import key_classes
from watersmeet.program.finish.model import Finish, answer_column
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.segments import TS, class_column, keep_column
from watersmeet.query.model import Equality, Expression, JoinQuery
from watersmeet.query.sql import to_duckdb

HASH = "hash(CAST({} AS VARCHAR)) >> 1"  # how a value that is no plain whole number becomes one


def typed(query: JoinQuery, schemas: Mapping[str, pa.Schema]) -> JoinQuery:
    """The query with types for the sides of its equalities: whole numbers are compared as such, all else as hashes."""
    stream_of = {source.alias: source.stream for source in query.sources}

    def is_whole(side: Expression) -> bool:
        kinds = [schemas[stream_of[column.alias]].field(column.name).type for column in side.columns]
        return side.is_plain and pa.types.is_integer(kinds[0])

    _, class_of, _ = key_classes(query)
    hashed = {number for side, number in class_of.items() if not is_whole(side)}

    def with_type(side: Expression) -> Expression:
        return replace(side, type="string" if class_of[side] in hashed else "bigint")

    return replace(query, equalities=tuple(Equality(with_type(e.left), with_type(e.right)) for e in query.equalities))


def lay_out(scan: StreamScan, rows: pa.Table, event_time: str, hash_sql: str = HASH) -> pa.Table:
    """New rows of a stream as they are ingested: event time, keys and conditions as numbers, values to keep."""
    flat = rows.rename_columns([f"{scan.stream}.{name}" for name in rows.column_names])
    columns = [f'epoch_us("{scan.stream}.{event_time}") AS "{TS}"']
    for number, key in enumerate(scan.keys):
        value = to_duckdb(key.expression)
        number_sql = value if key.expression.type == "bigint" else hash_sql.format(value)
        columns.append(
            f'CASE WHEN ({value}) IS NOT NULL THEN CAST({number_sql} AS BIGINT) END AS "{class_column(number)}"'
        )
    for number, selection in enumerate(scan.selections):
        if selection.filters:
            condition = " AND ".join(f"({to_duckdb(expression)})" for expression in selection.filters)
            columns.append(f'{condition} AS "{keep_column(number)}"')
    columns += [f'{to_duckdb(item.expression)} AS "{item.name}"' for item in scan.kept]
    return query_rows(f"SELECT {', '.join(columns)} FROM flat", flat=flat)


def evaluate(finish: Finish, combinations: pa.Table) -> pa.Table:
    """Predicates and output columns of a query over combinations; with DISTINCT, each row once and with its hash."""
    where = " AND ".join(f"({to_duckdb(predicate)})" for predicate in finish.predicates) or "true"
    names = [answer_column(number) for number in range(len(finish.select))]
    select = ", ".join(f'{to_duckdb(i.expression)} AS "{name}"' for i, name in zip(finish.select, names, strict=True))
    sql = f"SELECT {'DISTINCT ' if finish.distinct else ''}{select} FROM combinations WHERE {where}"
    if finish.distinct:
        row = ", ".join(f'"{name}"' for name in names)
        sql = f'SELECT *, CAST(hash({row}) >> 1 AS BIGINT) AS "{class_column(0)}" FROM ({sql})'
    return query_rows(sql, combinations=combinations)


@cache
def _connection() -> Any:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def query_rows(sql: str, **tables: pa.Table) -> pa.Table:
    """What a statement makes of tables."""
    connection = _connection()
    for name, table in tables.items():
        connection.register(name, table)
    return connection.sql(sql).to_arrow_table()
