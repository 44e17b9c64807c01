"""Expressions without Spark: DuckDB lays out the rows of streams and finishes combinations, in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from watersmeet.plan.nodes import Distinct, KeyClass, Plan, Project, Restrict, Scan, bottom_of
from watersmeet.plan.shape import key_classes
from watersmeet.program.storage.segments import KEEP, TS, class_column
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


def lay_out(scan: Scan, classes: Sequence[KeyClass], rows: pa.Table, event_time: str, hash_sql: str = HASH) -> pa.Table:
    """New rows of an alias as operators want them: event time, class keys and filters as numbers, what is kept."""
    flat = rows.rename_columns([f"{scan.alias}.{name}" for name in rows.column_names])
    columns = [f'epoch_us("{scan.alias}.{event_time}") AS "{TS}"']
    for number in scan.classes:
        member = classes[number].member(scan.alias)
        assert member is not None, "a scan lists the classes it has a member of"
        value = to_duckdb(member)
        number_sql = value if member.type == "bigint" else hash_sql.format(value)
        columns.append(
            f'CASE WHEN ({value}) IS NOT NULL THEN CAST({number_sql} AS BIGINT) END AS "{class_column(number)}"'
        )
    if scan.filters:
        columns.append(" AND ".join(f"({to_duckdb(f)})" for f in scan.filters) + f' AS "{KEEP}"')
    columns += [f'{to_duckdb(item.expression)} AS "{item.name}"' for item in scan.kept]
    return query_rows(f"SELECT {', '.join(columns)} FROM flat", flat=flat)


def finish(plan: Plan, combinations: Sequence[pa.Table], schemas: Mapping[str, pa.Schema]) -> pa.Table:
    """Answers from finished combinations: the remaining predicates and the output columns."""
    top = plan.child if isinstance(plan, Distinct) else plan
    assert isinstance(top, Project), "a plan projects its answers"
    where = "true"
    if isinstance(top.child, Restrict):
        where = " AND ".join(f"({to_duckdb(predicate)})" for predicate in top.child.predicates)
    select = ", ".join(f'{to_duckdb(item.expression)} AS "{item.name}"' for item in top.select)
    join = bottom_of(plan)
    types = {f"{scan.alias}.{field.name}": field.type for scan in join.scans for field in schemas[scan.stream]}
    empty = pa.schema([(name, types[name]) for name in join.output])
    rows = pa.concat_tables(combinations) if combinations else empty.empty_table()
    return query_rows(f"SELECT {select} FROM combinations WHERE {where}", combinations=rows)


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
