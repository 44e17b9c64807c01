"""The oracle's statements for combinations: the predicates, and every row in its window; outer joins node by node."""

from collections.abc import Mapping
from typing import assert_never

import pyarrow as pa

from watersmeet.query.dialect import to_duckdb
from watersmeet.query.model import (
    EVENT_TIME,
    TIME,
    Equality,
    JoinKind,
    JoinQuery,
    JoinTree,
    OuterJoins,
    Predicate,
    SelectItem,
    StreamRef,
)
from watersmeet.query.oracle_text import END, FROM, NEVER, RANK, TO, TS, interval, quoted
from watersmeet.query.outer import ROW_ORDINAL, ROW_TIME
from watersmeet.query.windows import AsOf, Changes, Range, Rows, Tumble, Unbounded


def oracle_sql(
    query: JoinQuery, tables: Mapping[str, pa.Table], positions: Mapping[str, int], heads_before_us: int | None
) -> str:
    """The reference semantics as one statement over the tables `stream_0`, `stream_1`, ..."""
    items = ",\n  ".join(f"{_item_sql(query, item)} AS {quoted(item.name)}" for item in query.select)
    sources = ",\n  ".join(_source_sql(query, source, tables, positions) for source in query.sources)
    conditions = [
        *(f"{to_duckdb(equality.left)} = {to_duckdb(equality.right)}" for equality in query.equalities),
        *(f"({to_duckdb(expression)})" for expression in (*query.filters, *query.residuals)),
        *(condition for source in query.sources for condition in _window_conditions(query, source)),
    ]
    if heads_before_us is not None:
        conditions.append(f"{_t_max(query)} < {heads_before_us}")
    where = "\n  AND ".join(conditions or ["TRUE"])
    if query.grouping is not None and isinstance(query.grouping.window, Changes):
        items += f",\n  {_end(query)} AS __end"
    if query.distinct and query.select[-1].name == EVENT_TIME:
        values = ",\n  ".join(f"{_item_sql(query, i)} AS {quoted(i.name)}" for i in query.select[:-1])
        first = f"min({_t_max(query)}) AS {quoted(EVENT_TIME)}"
        return f"SELECT\n  {values},\n  {first}\nFROM\n  {sources}\nWHERE\n  {where}\nGROUP BY ALL"
    return f"SELECT{' DISTINCT' if query.distinct else ''}\n  {items}\nFROM\n  {sources}\nWHERE\n  {where}"


def outer_sql(
    query: JoinQuery,
    outer: OuterJoins,
    tables: Mapping[str, pa.Table],
    positions: Mapping[str, int],
    heads_before_us: int | None,
) -> str:
    """The reference semantics of outer joins and EXISTS as one statement, node by node."""
    select = query.select
    is_first = query.distinct and select[-1].name == EVENT_TIME  # of equal rows the first in time
    items = ",\n  ".join(
        f"{TS if item.expression.columns == (TIME,) else to_duckdb(item.expression)} AS {quoted(item.name)}"
        for item in (select[:-1] if is_first else select)
    )
    if query.grouping is not None and isinstance(query.grouping.window, Changes):
        items += f",\n  CASE WHEN {END} < {NEVER} THEN {END} END AS __end"
    conditions = [_predicate_sql(predicate) for predicate in outer.where]
    if heads_before_us is not None:
        conditions.append(f"{TS} < {heads_before_us}")
    where = "\n  AND ".join(conditions or ["TRUE"])
    body = _node_sql(query, outer.tree, tables, positions)
    if is_first:
        first = f"min({TS}) AS {quoted(EVENT_TIME)}"
        return f"SELECT\n  {items},\n  {first}\nFROM\n  ({body})\nWHERE\n  {where}\nGROUP BY ALL"
    return f"SELECT{' DISTINCT' if query.distinct else ''}\n  {items}\nFROM\n  ({body})\nWHERE\n  {where}"


def _node_sql(
    query: JoinQuery, node: JoinTree | str, tables: Mapping[str, pa.Table], positions: Mapping[str, int]
) -> str:
    """The rows of a node under flat names, each with the instants from which and until which it is visible."""
    if isinstance(node, str):
        return _leaf_sql(query.source(node), tables, positions)
    sides = [_node_sql(query, side, tables, positions) for side in (node.left, node.right)]
    time = f"greatest(l.{TS}, r.{TS})"
    on = [f"{time} <= least(l.{END}, r.{END})", *map(_predicate_sql, node.on)]
    for side, letter in ((node.left, "l"), (node.right, "r")):
        for alias in _refreshed(query, side):  # the version in force at the time of the row that it is joined to
            since, to = (f"{letter}.{quoted(f'{alias}.{name}')}" for name in (FROM, TO))
            on.append(f"({since} IS NULL OR {since} <= {time} AND {time} < {to})")
    condition = " AND ".join(on)
    if node.kind in (JoinKind.SEMI, JoinKind.ANTI):
        word = "EXISTS" if node.kind is JoinKind.SEMI else "NOT EXISTS"
        return f"SELECT * FROM ({sides[0]}) AS l WHERE {word} (SELECT 1 FROM ({sides[1]}) AS r WHERE {condition})"
    # DuckDB's greatest and least pass over NULLs: what a row without partner has is its own.
    times = f"greatest(l.{TS}, r.{TS}) AS {TS}, least(l.{END}, r.{END}) AS {END}"
    columns = f"l.* EXCLUDE ({TS}, {END}), r.* EXCLUDE ({TS}, {END})"
    word = {JoinKind.INNER: "JOIN", JoinKind.LEFT: "LEFT JOIN", JoinKind.FULL: "FULL JOIN"}[node.kind]
    return f"SELECT {columns}, {times} FROM ({sides[0]}) AS l {word} ({sides[1]}) AS r ON {condition}"


def _refreshed(query: JoinQuery, node: JoinTree | str) -> list[str]:
    """The aliases of a side that are tables with several versions."""
    if isinstance(node, str):
        return [node] if query.source(node).window == AsOf(is_refreshed=True) else []
    sides = [node.left] if node.kind in (JoinKind.SEMI, JoinKind.ANTI) else [node.left, node.right]
    return [alias for side in sides for alias in _refreshed(query, side)]


def _leaf_sql(source: StreamRef, tables: Mapping[str, pa.Table], positions: Mapping[str, int]) -> str:
    """The tuples of a stream that are ever in their window, under flat names, with their intervals."""
    columns = [f"{quoted(name)} AS {quoted(f'{source.alias}.{name}')}" for name in tables[source.stream].column_names]
    match source.window:
        case Range(window_us):
            end = f"{TS} + {window_us}"
        case Tumble(window_us):
            end = f"{interval(TS, window_us)} + {window_us - 1}"
        case Rows(count):
            end = f"coalesce(lead({TS}, {count}) OVER (ORDER BY {RANK}) - 1, {NEVER})"
        case Unbounded():
            end = str(NEVER)
        case AsOf():
            always = f"CAST({-NEVER} AS BIGINT) AS {TS}, CAST({NEVER} AS BIGINT) AS {END}"
            return f"SELECT {', '.join(columns)}, {always} FROM stream_{positions[source.stream]}"
        case _:
            assert_never(source.window)
    time = f"{TS} AS {quoted(f'{source.alias}.{ROW_TIME}')}"
    body = f"SELECT {', '.join(columns)}, {TS}, {time}, CAST({end} AS BIGINT) AS {END}"
    return f"SELECT * FROM ({body} FROM stream_{positions[source.stream]}) WHERE {TS} <= {END}"


def _predicate_sql(predicate: Predicate) -> str:
    if isinstance(predicate, Equality):
        return f"{to_duckdb(predicate.left)} = {to_duckdb(predicate.right)}"
    return f"({to_duckdb(predicate)})"


def _item_sql(query: JoinQuery, item: SelectItem) -> str:
    return _t_max(query) if item.expression.columns == (TIME,) else to_duckdb(item.expression)


def _source_sql(
    query: JoinQuery, source: StreamRef, tables: Mapping[str, pa.Table], positions: Mapping[str, int]
) -> str:
    """A stream under flat names; beside each tuple, how many tuples every ROWS stream has up to that moment."""
    columns = [
        f"s.{quoted(name)} AS {quoted(f'{source.alias}.{name}')}"
        for name in tables[source.stream].column_names
        if name not in (FROM, TO)
    ]
    if isinstance(source.window, AsOf):
        columns += [f"s.{FROM}", f"s.{TO}"]
        body = f"SELECT {', '.join(columns)} FROM stream_{positions[source.stream]} AS s"
        return f"({body}) AS {quoted(source.alias)}"
    columns += [f"s.{TS}", f"s.{RANK}", f"s.{TS} AS {quoted(f'{source.alias}.{ROW_TIME}')}"]
    if isinstance(source.window, Rows):
        follower = f"lead(s.{TS}, {source.window.count}) OVER (ORDER BY s.{RANK})"  # that takes its place
        columns.append(f"coalesce({follower} - 1, {NEVER}) AS {END}")
        columns.append(f"s.{RANK} AS {quoted(f'{source.alias}.{ROW_ORDINAL}')}")
    counts = []
    for i, other in enumerate(query.sources):
        if isinstance(other.window, Rows):
            columns.append(f"coalesce(n{i}.{RANK}, 0) AS {_count(i)}")
            totals = f"(SELECT {TS}, max({RANK}) AS {RANK} FROM stream_{positions[other.stream]} GROUP BY {TS})"
            counts.append(f" ASOF LEFT JOIN {totals} AS n{i} ON s.{TS} >= n{i}.{TS}")
    body = f"SELECT {', '.join(columns)} FROM stream_{positions[source.stream]} AS s{''.join(counts)}"
    return f"({body}) AS {quoted(source.alias)}"


def _window_conditions(query: JoinQuery, source: StreamRef) -> list[str]:
    """That the tuple of `source` lies in its window as seen at t_max."""
    alias, t_max = quoted(source.alias), _t_max(query)
    match source.window:
        case Range(window_us):
            # Seen from the latest is seen from each: the pairs say nothing new, but prune before the last join.
            others = [quoted(other) for other in _timed(query) if other != source.alias]
            pairs = [f"{other}.{TS} - {window_us} <= {alias}.{TS}" for other in others]
            return [f"{t_max} - {window_us} <= {alias}.{TS}", *pairs]
        case Tumble(window_us):
            return [f"{interval(t_max, window_us)} = {interval(f'{alias}.{TS}', window_us)}"]
        case Rows(count):
            # A count only grows with time, so the count at t_max is the greatest of those beside the tuples.
            number = _count(query.sources.index(source))
            seen = f"greatest({', '.join(f'{quoted(other)}.{number}' for other in _timed(query))})"
            return [f"{alias}.{RANK} > {seen} - {count}"]
        case Unbounded():
            return []
        case AsOf():
            return [f"{alias}.{FROM} <= {t_max}", f"{t_max} < {alias}.{TO}"]
        case _:
            assert_never(source.window)


def _timed(query: JoinQuery) -> list[str]:
    """The aliases whose rows have a timestamp: streams."""
    return [source.alias for source in query.sources if not isinstance(source.window, AsOf)]


def _t_max(query: JoinQuery) -> str:
    return f"greatest({', '.join(f'{quoted(alias)}.{TS}' for alias in _timed(query))})"


def _end(query: JoinQuery) -> str:
    """The last instant at which all tuples are in their windows; NULL if there is none."""
    ends = []
    for source in query.sources:
        ts = f"{quoted(source.alias)}.{TS}"
        match source.window:
            case Range(window_us):
                ends.append(f"{ts} + {window_us}")
            case Tumble(window_us):
                ends.append(f"{interval(ts, window_us)} + {window_us - 1}")
            case Unbounded() | AsOf():  # a later version of a table takes nothing back
                pass
            case Rows():
                ends.append(f"{quoted(source.alias)}.{END}")
            case _:
                assert_never(source.window)
    last = f"least({', '.join(ends)})"
    return f"CASE WHEN {last} < {NEVER} THEN {last} END" if ends else "CAST(NULL AS BIGINT)"


def _count(i: int) -> str:
    return f"__count_{i}"
