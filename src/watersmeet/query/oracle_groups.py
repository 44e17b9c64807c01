"""The oracle's statements for GROUP BY: groups of output windows, and their changes."""

from collections.abc import Mapping

from watersmeet.query.dialect import to_duckdb
from watersmeet.query.model import (
    CHANGED_AT,
    DELETED,
    EVENT_TIME,
    TIME,
    WINDOW_END,
    WINDOW_START,
    Aggregate,
    Grouping,
    JoinQuery,
    SelectItem,
    key_of_group,
    value_of_group,
)
from watersmeet.query.oracle_text import interval, quoted
from watersmeet.query.windows import Changes


def groups_sql(query: JoinQuery, grouping: Grouping, types: Mapping[str, str], watermark_us: int | None) -> str:
    """Groups of output windows, over the table `combinations` that has the query's select items."""
    assert not isinstance(grouping.window, Changes), "groups of output windows"
    keys = [quoted(item.name) for item in query.select[: grouping.keys]]
    length_us, slide_us = grouping.window.length_us, grouping.window.slide_us
    ts = quoted(TIME.name)
    first = interval(f"({ts} - {length_us} + {slide_us})", slide_us)  # the first window that holds it
    starts = f"unnest(generate_series({first}, {ts}, {slide_us}))"
    counted = f"SELECT *, {starts} AS __start FROM combinations"
    columns = _group_columns(query, grouping, types)
    columns += [
        f"make_timestamptz(CAST(__start AS BIGINT)) AS {quoted(WINDOW_START.flat)}",
        f"make_timestamptz(CAST(__start + {length_us} AS BIGINT)) AS {quoted(WINDOW_END.flat)}",
        "__start",
    ]
    ended = "TRUE" if watermark_us is None else f"__start + {length_us} <= {watermark_us}"
    by = ", ".join([*keys, "__start"])
    groups = f"SELECT {', '.join(columns)} FROM ({counted}) WHERE {ended} GROUP BY {by}"
    having = " AND ".join(f"({to_duckdb(predicate)})" for predicate in grouping.having) or "TRUE"
    items = ", ".join(f"{_group_item_sql(item)} AS {quoted(item.name)}" for item in grouping.select)
    statement = f"SELECT {items} FROM ({groups}) WHERE {having}"
    if grouping.limit is not None:
        order = [
            f"{to_duckdb(key.expression)} {'DESC' if key.descending else 'ASC'} "
            f"NULLS {'FIRST' if key.nulls_first else 'LAST'}"
            for key in grouping.order
        ]
        order += [f"{quoted(key_of_group(number).flat)} ASC NULLS FIRST" for number in range(grouping.keys)]
        rank = f"row_number() OVER (PARTITION BY __start ORDER BY {', '.join(order)})"
        statement += f" QUALIFY {rank} <= {grouping.limit}"
    return statement


def changes_sql(query: JoinQuery, grouping: Grouping, types: Mapping[str, str], watermark_us: int | None) -> str:
    """Changes of groups, over the table `combinations` that has the query's select items and their ends."""
    keys = [quoted(item.name) for item in query.select[: grouping.keys]]
    group = f"dense_rank() OVER (ORDER BY {', '.join(keys)})" if keys else "0"
    ts, before = quoted(TIME.name), "TRUE" if watermark_us is None else f"__at < {watermark_us}"
    having = " AND ".join(f"({to_duckdb(predicate)})" for predicate in grouping.having) or "TRUE"
    own = {CHANGED_AT: "make_timestamptz(CAST(__at AS BIGINT))", DELETED: "NOT __is"}
    items, values = [], []
    for number, item in enumerate(grouping.select):
        name = f"__c{number}"
        special = next((sql for column, sql in own.items() if item.expression.columns == (column,)), None)
        if special is None:
            values.append((name, to_duckdb(item.expression)))
        items.append(f"{special or f'CASE WHEN __is THEN {name} ELSE __was{name} END'} AS {quoted(item.name)}")
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
    columns = [f"{quoted(item.name)} AS {quoted(key_of_group(number).flat)}" for number, item in keys]
    for number, aggregate in enumerate(grouping.aggregates):
        item = None if aggregate.item is None else query.select[aggregate.item].name
        value = _aggregate_sql(aggregate, item, types.get(item or "", ""))
        columns.append(f"{value} AS {quoted(value_of_group(number).flat)}")
    return columns


def _group_item_sql(item: SelectItem) -> str:
    return f"epoch_us({quoted(WINDOW_END.flat)}) - 1" if item.name == EVENT_TIME else to_duckdb(item.expression)


def _aggregate_sql(aggregate: Aggregate, item: str | None, kind: str) -> str:
    """An aggregate in DuckDB; a sum of whole numbers is one, as in Spark."""
    if item is None:
        return "count(*)"
    if aggregate.function in ("max_k", "min_k"):
        order, (k,) = "DESC" if aggregate.function == "max_k" else "ASC", aggregate.parameters
        known = f"list({quoted(item)}) FILTER (WHERE {quoted(item)} IS NOT NULL)"
        return f"coalesce(list_sort({known}, '{order}')[1:{int(k)}], [])"
    if aggregate.function.startswith("approx_"):
        return _exact_sql(aggregate, quoted(item))
    call = f"{aggregate.function}({'DISTINCT ' if aggregate.distinct else ''}{quoted(item)})"
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
