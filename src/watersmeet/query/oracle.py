"""The reference semantics over complete data, in DuckDB: the independent check of every planner and runtime.

An answer is a combination that satisfies the predicates and in which every tuple lies in its window as seen at `t_max`,
the latest timestamp of the combination. The statement below says just that and shares no code with the operators.

A derived stream is the answers of the queries that feed it, each at the time of its latest tuple (with DISTINCT, the
first such time, once the watermark has passed it), or at the last microsecond of its output window. Its watermark is
the lowest of those of the streams that they read.

A row of a table has no timestamp: it takes part while its version is in force at `t_max`, from an instant on until that
of the next version. A static table has one version, in force at all times.

Where the order of joins matters (LEFT, FULL, EXISTS), the same is said of every node of FROM: a row of a side is
visible from its latest timestamp to the first end of its tuples, and two rows are partners if they satisfy ON and both
are visible at one instant. A row without partner is answered with NULLs; its time is that of its own latest tuple.

With GROUP BY, a combination counts in every output window that holds its `t_max`. A group of a window is answered if it
has a combination at all and the window has ended by the watermark that is given; without one, all have.

With EMIT CHANGES, a combination is valid from its `t_max` to the earliest end of its tuples' windows; a row of a table
ends nothing, also if its version is no longer in force. The value of a group at an instant is that of the combinations
valid at it; a group without any, or that HAVING does not keep, has no row. A change is an instant before the watermark
at which the row of a group is another one than before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import InputError
from watersmeet.query.dialect import to_duckdb
from watersmeet.query.model import (
    CHANGED_AT,
    DELETED,
    EVENT_TIME,
    TIME,
    WINDOW_END,
    WINDOW_START,
    Aggregate,
    Equality,
    Grouping,
    JoinKind,
    JoinQuery,
    JoinTree,
    OuterJoins,
    Output,
    Predicate,
    SelectItem,
    StreamRef,
    key_of_group,
    value_of_group,
)
from watersmeet.query.outer import ROW_ORDINAL, ROW_TIME
from watersmeet.query.windows import AsOf, Changes, Range, Rows, Tumble, Unbounded


def answer(
    query: JoinQuery,
    tables: Mapping[str, pa.Table],
    event_times: Mapping[str, str],
    *,
    start_us: int | None = None,
    heads_before_us: int | None = None,
    watermark_us: int | None = None,
) -> pa.Table:
    """Every answer of `query` over whole streams, given by name with their rows in order of arrival.

    Tables that are refreshed are given by `versioned`.
    """
    database = _database(_duckdb())
    streams = sorted({source.stream for source in query.sources})
    with database.cursor() as connection:  # with temporary tables and views of its own
        connection.execute("SET TimeZone = 'UTC'")
        are_tables = {source.stream for source in query.sources if isinstance(source.window, AsOf)}
        for position, stream in enumerate(streams):
            if stream in are_tables:
                is_versioned = _FROM in tables[stream].column_names
                connection.register(
                    f"stream_{position}", tables[stream] if is_versioned else versioned([tables[stream]])
                )
                continue
            table = tables[stream].append_column(_ARRIVAL, pa.array(range(tables[stream].num_rows), pa.int64()))
            connection.register(f"given_{position}", table)
            connection.execute(_stream_sql(position, event_times[stream], start_us))
        positions = {stream: i for i, stream in enumerate(streams)}
        if query.outer is not None:
            statement = outer_sql(query, query.outer, tables, positions, heads_before_us)
        else:
            statement = oracle_sql(query, tables, positions, heads_before_us)
        if query.grouping is not None:
            connection.execute(f"CREATE TEMP TABLE combinations AS {statement}")
            types = {name: str(kind) for name, kind, *_ in connection.sql("DESCRIBE combinations").fetchall()}
            make = changes_sql if isinstance(query.grouping.window, Changes) else groups_sql
            statement = make(query, query.grouping, types, watermark_us)
        result: pa.Table = connection.sql(statement).to_arrow_table()
        return result


def answer_outputs(
    outputs: Iterable[Output],
    tables: Mapping[str, pa.Table],
    event_times: Mapping[str, str],
    *,
    starts_us: Mapping[str, int | None] | None = None,
    watermarks_us: Mapping[str, int] | None = None,
) -> dict[str, pa.Table]:
    """By target, all answers over whole streams, of outputs that come after what they read.

    `starts_us` is by branch; `watermarks_us`, by stream, is how far streams have come: none is to their end.
    """
    tables, event_times, marks = dict(tables), dict(event_times), dict(watermarks_us or {})
    found: dict[str, pa.Table] = {}
    for output in outputs:
        name = output.target.name
        branches = []
        for branch, query in output.branches:
            reached = [marks[source.stream] for source in query.sources if source.stream in marks]
            start_us = (starts_us or {}).get(branch)
            watermark_us = min(reached, default=None)
            rows = answer(query, tables, event_times, start_us=start_us, watermark_us=watermark_us)
            if query.distinct and output.target.is_stream and watermark_us is not None:
                rows = rows.filter(pc.less(rows.column(EVENT_TIME), watermark_us))
            branches.append(rows)
        found[name] = pa.concat_tables(branches, promote_options="permissive")
        if output.target.is_stream:
            tables[name], event_times[name] = found[name], EVENT_TIME
            marks |= {name: min(marks[stream] for stream in output.streams if stream in marks)} if marks else {}
    return found


def versioned(versions: Sequence[pa.Table], instants_us: Sequence[int] = ()) -> pa.Table:
    """All rows of a table, each with the instants from which and until which its version is in force.

    The first version is in force from the beginning of time, each other one from its instant on.
    """
    firsts = [_FIRST_US, *instants_us]
    ends = [*firsts[1:], _NEVER_US]
    parts = []
    for first, end, rows in zip(firsts, ends, versions, strict=True):
        for name, instant in ((_FROM, first), (_TO, end)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(instant, pa.int64()), rows.num_rows))
        parts.append(rows)
    return pa.concat_tables(parts)


def groups_sql(query: JoinQuery, grouping: Grouping, types: Mapping[str, str], watermark_us: int | None) -> str:
    """Groups of output windows, over the table `combinations` that has the query's select items."""
    assert not isinstance(grouping.window, Changes), "groups of output windows"
    keys = [_quoted(item.name) for item in query.select[: grouping.keys]]
    length_us, slide_us = grouping.window.length_us, grouping.window.slide_us
    ts = _quoted(TIME.name)
    first = _interval(f"({ts} - {length_us} + {slide_us})", slide_us)  # the first window that holds it
    starts = f"unnest(generate_series({first}, {ts}, {slide_us}))"
    counted = f"SELECT *, {starts} AS __start FROM combinations"
    columns = _group_columns(query, grouping, types)
    columns += [
        f"make_timestamptz(CAST(__start AS BIGINT)) AS {_quoted(WINDOW_START.flat)}",
        f"make_timestamptz(CAST(__start + {length_us} AS BIGINT)) AS {_quoted(WINDOW_END.flat)}",
        "__start",
    ]
    ended = "TRUE" if watermark_us is None else f"__start + {length_us} <= {watermark_us}"
    by = ", ".join([*keys, "__start"])
    groups = f"SELECT {', '.join(columns)} FROM ({counted}) WHERE {ended} GROUP BY {by}"
    having = " AND ".join(f"({to_duckdb(one)})" for one in grouping.having) or "TRUE"
    items = ", ".join(f"{_group_item_sql(item)} AS {_quoted(item.name)}" for item in grouping.select)
    statement = f"SELECT {items} FROM ({groups}) WHERE {having}"
    if grouping.limit is not None:
        order = [
            f"{to_duckdb(key.expression)} {'DESC' if key.descending else 'ASC'} "
            f"NULLS {'FIRST' if key.nulls_first else 'LAST'}"
            for key in grouping.order
        ]
        order += [f"{_quoted(key_of_group(number).flat)} ASC NULLS FIRST" for number in range(grouping.keys)]
        rank = f"row_number() OVER (PARTITION BY __start ORDER BY {', '.join(order)})"
        statement += f" QUALIFY {rank} <= {grouping.limit}"
    return statement


def changes_sql(query: JoinQuery, grouping: Grouping, types: Mapping[str, str], watermark_us: int | None) -> str:
    """Changes of groups, over the table `combinations` that has the query's select items and their ends."""
    keys = [_quoted(item.name) for item in query.select[: grouping.keys]]
    group = f"dense_rank() OVER (ORDER BY {', '.join(keys)})" if keys else "0"
    ts, before = _quoted(TIME.name), "TRUE" if watermark_us is None else f"__at < {watermark_us}"
    having = " AND ".join(f"({to_duckdb(one)})" for one in grouping.having) or "TRUE"
    own = {CHANGED_AT: "make_timestamptz(CAST(__at AS BIGINT))", DELETED: "NOT __is"}
    items, values = [], []
    for number, item in enumerate(grouping.select):
        name = f"__c{number}"
        special = next((sql for column, sql in own.items() if item.expression.columns == (column,)), None)
        if special is None:
            values.append((name, to_duckdb(item.expression)))
        items.append(f"{special or f'CASE WHEN __is THEN {name} ELSE __was{name} END'} AS {_quoted(item.name)}")
    differs = " OR ".join(["__is <> __was", *(f"{name} IS DISTINCT FROM __was{name}" for name, _ in values)])
    over = "OVER (PARTITION BY __group ORDER BY __at)"
    return f"""
        WITH numbered AS (SELECT *, {group} AS __group FROM combinations),
        instants AS (
            SELECT DISTINCT __group, __at
            FROM (SELECT __group, {ts} AS __at FROM numbered UNION ALL SELECT __group, __end + 1 FROM numbered)
            WHERE __at IS NOT NULL AND {before}),
        valid AS (
            SELECT numbered.*, __at FROM numbered JOIN instants USING (__group)
            WHERE {ts} <= __at AND (__end IS NULL OR __at <= __end)),
        groups AS (
            SELECT {", ".join([*_group_columns(query, grouping, types), "__group", "__at"])}
            FROM valid GROUP BY {", ".join([*keys, "__group", "__at"])}),
        answers AS (
            SELECT __group, __at{"".join(f", {sql} AS {name}" for name, sql in values)} FROM groups WHERE {having}),
        every AS (SELECT *, answers.__at IS NOT NULL AS __is FROM instants LEFT JOIN answers USING (__group, __at)),
        steps AS (
            SELECT *, coalesce(lag(__is) {over}, FALSE) AS __was
            {"".join(f", lag({name}) {over} AS __was{name}" for name, _ in values)} FROM every)
        SELECT {", ".join(items)} FROM steps WHERE (__is OR __was) AND ({differs})"""


def _group_columns(query: JoinQuery, grouping: Grouping, types: Mapping[str, str]) -> list[str]:
    """Keys and aggregates of groups."""
    keys = enumerate(query.select[: grouping.keys])
    columns = [f"{_quoted(item.name)} AS {_quoted(key_of_group(number).flat)}" for number, item in keys]
    for number, aggregate in enumerate(grouping.aggregates):
        item = None if aggregate.item is None else query.select[aggregate.item].name
        value = _aggregate_sql(aggregate, item, types.get(item or "", ""))
        columns.append(f"{value} AS {_quoted(value_of_group(number).flat)}")
    return columns


def _group_item_sql(item: SelectItem) -> str:
    return f"epoch_us({_quoted(WINDOW_END.flat)}) - 1" if item.name == EVENT_TIME else to_duckdb(item.expression)


def _aggregate_sql(aggregate: Aggregate, item: str | None, kind: str) -> str:
    """An aggregate in DuckDB; a sum of whole numbers is one, as in Spark."""
    if item is None:
        return "count(*)"
    if aggregate.function in ("max_k", "min_k"):
        order, (k,) = "DESC" if aggregate.function == "max_k" else "ASC", aggregate.parameters
        known = f"list({_quoted(item)}) FILTER (WHERE {_quoted(item)} IS NOT NULL)"
        return f"coalesce(list_sort({known}, '{order}')[1:{int(k)}], [])"
    if aggregate.function.startswith("approx_"):
        return _exact_sql(aggregate, _quoted(item))
    call = f"{aggregate.function}({'DISTINCT ' if aggregate.distinct else ''}{_quoted(item)})"
    return f"CAST({call} AS BIGINT)" if aggregate.function == "sum" and "INT" in kind else call


def _exact_sql(aggregate: Aggregate, item: str) -> str:
    """What a sketch is of: its answer while it is not full."""
    match aggregate.function, aggregate.parameters:
        case "approx_count_distinct", _:
            return f"count(DISTINCT {item})"
        case "approx_percentile", (_, is_array, *shares):
            ordered = f"list_sort(list({item}) FILTER (WHERE {item} IS NOT NULL))"
            picks = [f"({ordered})[CAST(greatest(ceil({share!r} * count({item})), 1) AS BIGINT)]" for share in shares]
            return f"CASE WHEN count({item}) > 0 THEN [{', '.join(picks)}] END" if is_array else picks[0]
        case "approx_top_k", (k, _):
            entry = "{'n': -CAST(e.value AS BIGINT), 'i': e.key}"  # values in lists, so that NULL is one too
            ordered = f"list_sort(list_transform(map_entries(histogram([{item}])), lambda e: {entry}))"
            return f"list_transform(({ordered})[1:{int(k)}], lambda e: {{'item': e.i[1], 'count': -e.n}})"
    raise AssertionError(f"no sketch {aggregate.function}")


def oracle_sql(
    query: JoinQuery, tables: Mapping[str, pa.Table], positions: Mapping[str, int], heads_before_us: int | None
) -> str:
    """The reference semantics as one statement over the tables `stream_0`, `stream_1`, ..."""
    items = ",\n  ".join(f"{_item_sql(query, item)} AS {_quoted(item.name)}" for item in query.select)
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
        values = ",\n  ".join(f"{_item_sql(query, i)} AS {_quoted(i.name)}" for i in query.select[:-1])
        first = f"min({_t_max(query)}) AS {_quoted(EVENT_TIME)}"
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
        f"{_TS if item.expression.columns == (TIME,) else to_duckdb(item.expression)} AS {_quoted(item.name)}"
        for item in (select[:-1] if is_first else select)
    )
    if query.grouping is not None and isinstance(query.grouping.window, Changes):
        items += f",\n  CASE WHEN {_END} < {_NEVER} THEN {_END} END AS __end"
    conditions = [_predicate_sql(one) for one in outer.where]
    if heads_before_us is not None:
        conditions.append(f"{_TS} < {heads_before_us}")
    where = "\n  AND ".join(conditions or ["TRUE"])
    body = _node_sql(query, outer.tree, tables, positions)
    if is_first:
        first = f"min({_TS}) AS {_quoted(EVENT_TIME)}"
        return f"SELECT\n  {items},\n  {first}\nFROM\n  ({body})\nWHERE\n  {where}\nGROUP BY ALL"
    return f"SELECT{' DISTINCT' if query.distinct else ''}\n  {items}\nFROM\n  ({body})\nWHERE\n  {where}"


def _node_sql(
    query: JoinQuery, node: JoinTree | str, tables: Mapping[str, pa.Table], positions: Mapping[str, int]
) -> str:
    """The rows of a node under flat names, each with the instants from which and until which it is visible."""
    if isinstance(node, str):
        return _leaf_sql(query.source(node), tables, positions)
    sides = [_node_sql(query, side, tables, positions) for side in (node.left, node.right)]
    time = f"greatest(l.{_TS}, r.{_TS})"
    on = [f"{time} <= least(l.{_END}, r.{_END})", *map(_predicate_sql, node.on)]
    for side, letter in ((node.left, "l"), (node.right, "r")):
        for alias in _refreshed(query, side):  # the version in force at the time of the row that it is joined to
            since, to = (f"{letter}.{_quoted(f'{alias}.{name}')}" for name in (_FROM, _TO))
            on.append(f"({since} IS NULL OR {since} <= {time} AND {time} < {to})")
    condition = " AND ".join(on)
    if node.kind in (JoinKind.SEMI, JoinKind.ANTI):
        word = "EXISTS" if node.kind is JoinKind.SEMI else "NOT EXISTS"
        return f"SELECT * FROM ({sides[0]}) AS l WHERE {word} (SELECT 1 FROM ({sides[1]}) AS r WHERE {condition})"
    # DuckDB's greatest and least pass over NULLs: what a row without partner has is its own.
    times = f"greatest(l.{_TS}, r.{_TS}) AS {_TS}, least(l.{_END}, r.{_END}) AS {_END}"
    columns = f"l.* EXCLUDE ({_TS}, {_END}), r.* EXCLUDE ({_TS}, {_END})"
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
    columns = [f"{_quoted(name)} AS {_quoted(f'{source.alias}.{name}')}" for name in tables[source.stream].column_names]
    match source.window:
        case Range(window_us):
            end = f"{_TS} + {window_us}"
        case Tumble(window_us):
            end = f"{_interval(_TS, window_us)} + {window_us - 1}"
        case Rows(count):
            end = f"coalesce(lead({_TS}, {count}) OVER (ORDER BY {_RANK}) - 1, {_NEVER})"
        case Unbounded():
            end = str(_NEVER)
        case AsOf():
            always = f"CAST({-_NEVER} AS BIGINT) AS {_TS}, CAST({_NEVER} AS BIGINT) AS {_END}"
            return f"SELECT {', '.join(columns)}, {always} FROM stream_{positions[source.stream]}"
        case _:
            assert_never(source.window)
    time = f"{_TS} AS {_quoted(f'{source.alias}.{ROW_TIME}')}"
    body = f"SELECT {', '.join(columns)}, {_TS}, {time}, CAST({end} AS BIGINT) AS {_END}"
    return f"SELECT * FROM ({body} FROM stream_{positions[source.stream]}) WHERE {_TS} <= {_END}"


def _predicate_sql(predicate: Predicate) -> str:
    if isinstance(predicate, Equality):
        return f"{to_duckdb(predicate.left)} = {to_duckdb(predicate.right)}"
    return f"({to_duckdb(predicate)})"


def _item_sql(query: JoinQuery, item: SelectItem) -> str:
    return _t_max(query) if item.expression.columns == (TIME,) else to_duckdb(item.expression)


# Names of our own in tables that hold the user's columns.
_ARRIVAL, _TS, _RANK, _FROM, _TO, _END = "__arrival", "__ts", "__rank", "__from", "__to", "__end"
_FIRST_US, _NEVER_US = -(2**63), 2**63 - 1
_NEVER = 2**62


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError:
        raise InputError("the oracle needs DuckDB, which is not installed; run: pip install duckdb") from None
    return duckdb


@cache
def _database(duckdb: ModuleType) -> Any:
    """One database in memory for all calls: to open one takes longer than most answers."""
    return duckdb.connect()


def _stream_sql(position: int, event_time: str, start_us: int | None) -> str:
    """The tuples that take part, each with its timestamp in microseconds and its rank in (ts, arrival) order."""
    ts = _quoted(event_time) if event_time == EVENT_TIME else f"epoch_us({_quoted(event_time)})"
    start = "" if start_us is None else f" AND {ts} >= {start_us}"
    return f"""
        CREATE TEMP TABLE stream_{position} AS
        SELECT *, {ts} AS {_TS}, row_number() OVER (ORDER BY {ts}, {_ARRIVAL}) AS {_RANK}
        FROM given_{position} WHERE {_quoted(event_time)} IS NOT NULL{start}"""


def _source_sql(
    query: JoinQuery, source: StreamRef, tables: Mapping[str, pa.Table], positions: Mapping[str, int]
) -> str:
    """A stream under flat names; beside each tuple, how many tuples every ROWS stream has up to that moment."""
    columns = [
        f"s.{_quoted(name)} AS {_quoted(f'{source.alias}.{name}')}"
        for name in tables[source.stream].column_names
        if name not in (_FROM, _TO)
    ]
    if isinstance(source.window, AsOf):
        columns += [f"s.{_FROM}", f"s.{_TO}"]
        body = f"SELECT {', '.join(columns)} FROM stream_{positions[source.stream]} AS s"
        return f"({body}) AS {_quoted(source.alias)}"
    columns += [f"s.{_TS}", f"s.{_RANK}", f"s.{_TS} AS {_quoted(f'{source.alias}.{ROW_TIME}')}"]
    if isinstance(source.window, Rows):
        follower = f"lead(s.{_TS}, {source.window.count}) OVER (ORDER BY s.{_RANK})"  # that takes its place
        columns.append(f"coalesce({follower} - 1, {_NEVER}) AS {_END}")
        columns.append(f"s.{_RANK} AS {_quoted(f'{source.alias}.{ROW_ORDINAL}')}")
    counts = []
    for i, other in enumerate(query.sources):
        if isinstance(other.window, Rows):
            columns.append(f"coalesce(n{i}.{_RANK}, 0) AS {_count(i)}")
            totals = f"(SELECT {_TS}, max({_RANK}) AS {_RANK} FROM stream_{positions[other.stream]} GROUP BY {_TS})"
            counts.append(f" ASOF LEFT JOIN {totals} AS n{i} ON s.{_TS} >= n{i}.{_TS}")
    body = f"SELECT {', '.join(columns)} FROM stream_{positions[source.stream]} AS s{''.join(counts)}"
    return f"({body}) AS {_quoted(source.alias)}"


def _window_conditions(query: JoinQuery, source: StreamRef) -> list[str]:
    """That the tuple of `source` lies in its window as seen at t_max."""
    alias, t_max = _quoted(source.alias), _t_max(query)
    match source.window:
        case Range(window_us):
            # Seen from the latest is seen from each: the pairs say nothing new, but prune before the last join.
            others = [_quoted(other) for other in _timed(query) if other != source.alias]
            pairs = [f"{other}.{_TS} - {window_us} <= {alias}.{_TS}" for other in others]
            return [f"{t_max} - {window_us} <= {alias}.{_TS}", *pairs]
        case Tumble(window_us):
            return [f"{_interval(t_max, window_us)} = {_interval(f'{alias}.{_TS}', window_us)}"]
        case Rows(count):
            # A count only grows with time, so the count at t_max is the greatest of those beside the tuples.
            number = _count(query.sources.index(source))
            seen = f"greatest({', '.join(f'{_quoted(other)}.{number}' for other in _timed(query))})"
            return [f"{alias}.{_RANK} > {seen} - {count}"]
        case Unbounded():
            return []
        case AsOf():
            return [f"{alias}.{_FROM} <= {t_max}", f"{t_max} < {alias}.{_TO}"]
        case _:
            assert_never(source.window)


def _timed(query: JoinQuery) -> list[str]:
    """The aliases whose rows have a timestamp: streams."""
    return [source.alias for source in query.sources if not isinstance(source.window, AsOf)]


def _t_max(query: JoinQuery) -> str:
    return f"greatest({', '.join(f'{_quoted(alias)}.{_TS}' for alias in _timed(query))})"


def _end(query: JoinQuery) -> str:
    """The last instant at which all tuples are in their windows; NULL if there is none."""
    ends = []
    for source in query.sources:
        ts = f"{_quoted(source.alias)}.{_TS}"
        match source.window:
            case Range(window_us):
                ends.append(f"{ts} + {window_us}")
            case Tumble(window_us):
                ends.append(f"{_interval(ts, window_us)} + {window_us - 1}")
            case Unbounded() | AsOf():  # a later version of a table takes nothing back
                pass
            case Rows():
                ends.append(f"{_quoted(source.alias)}.{_END}")
            case _:
                assert_never(source.window)
    last = f"least({', '.join(ends)})"
    return f"CASE WHEN {last} < {_NEVER} THEN {last} END" if ends else "CAST(NULL AS BIGINT)"


def _interval(ts: str, window_us: int) -> str:
    """The start of the aligned interval; DuckDB's remainder has the sign of the dividend, so it is made positive."""
    return f"{ts} - ({ts} % {window_us} + {window_us}) % {window_us}"


def _count(i: int) -> str:
    return f"__count_{i}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
