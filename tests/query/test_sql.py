"""SQL in, `JoinQuery` out; every refusal names its place, its cause and, where there is one, its cure."""

import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.errors import SqlError, UnknownColumn, UnknownStream
from watersmeet.query.model import Column, Expression, Grouping, JoinQuery
from watersmeet.query.sql import canonical_sql, parse_query, parse_script
from watersmeet.query.windows import Changes, Hop, Range, Rows, Tumble, Unbounded, Window

COLUMNS = {
    "packets_ams": ["ts", "host", "bytes", "s", "xs"],
    "b": ["ts", "host", "port"],
    "c": ["ts", "port", "x y", "d.e", "b`q"],
    "kafka": ["offset", "window", "k", "left"],
    "My Stream": ["Key"],
}
AB = "FROM packets_ams [RANGE 1 MINUTE] AS a, b [ROWS 100] WHERE a.host = b.host"


def parse(sql: str, *, allow_cross: bool = False, tables: Mapping[str, Window] | None = None) -> JoinQuery:
    times = {"packets_ams": "ts", "b": "ts", "c": "ts"}
    return parse_query(sql, COLUMNS, allow_cross=allow_cross, event_times=times, tables=tables)


def selected(expression: str) -> Expression:
    """The one expression of a SELECT over a and b."""
    return parse(f"SELECT {expression} AS it {AB}").select[0].expression


def predicates(condition: str) -> tuple[list[str], list[str], list[str]]:
    """Equalities, filters and residuals of a WHERE over a, b and c."""
    query = parse(
        f"SELECT a.ts FROM packets_ams [ROWS 1] a, b [ROWS 1], c [ROWS 1] WHERE {condition}", allow_cross=True
    )
    return (
        [f"{equality.left.sql} = {equality.right.sql}" for equality in query.equalities],
        [expression.sql for expression in query.filters],
        [expression.sql for expression in query.residuals],
    )


def refusal(sql: str, **options: Any) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse(sql, **options)
    return caught.value


# ---- FROM


@pytest.mark.parametrize(
    ("written", "window"),
    [
        ("RANGE 1 MINUTE", Range(60_000_000)),
        ("range 90 seconds", Range(90_000_000)),
        ("RANGE '1 minute 30 seconds'", Range(90_000_000)),
        ('RANGE "2 hours"', Range(7_200_000_000)),
        ("RANGE INTERVAL 1 MINUTE", Range(60_000_000)),
        ("RANGE INTERVAL '1' MINUTE", Range(60_000_000)),
        ("RANGE 10s", Range(10_000_000)),
        ("RANGE 1.5 SECONDS", Range(1_500_000)),
        ("  RANGE\n 1\n MINUTE ", Range(60_000_000)),
        ("ROWS 100", Rows(100)),
        ("rows 1", Rows(1)),
        ("TUMBLE 5 SECONDS", Tumble(5_000_000)),
        ("UNBOUNDED", Unbounded()),
        ("unbounded", Unbounded()),
    ],
)
@pytest.mark.parametrize("source", ["b [{}] AS x", "b AS x [{}]", "b [{}] x", "b x [{}]", "B[{}]x"])
def test_window(written: str, window: Window, source: str) -> None:
    query = parse(f"SELECT x.port FROM packets_ams [UNBOUNDED] a, {source.format(written)} WHERE a.host = x.host")
    assert query.source("x").window == window
    assert query.source("x").stream == "b"


@pytest.mark.parametrize(
    "sources",
    [
        "packets_ams [ROWS 1] AS a, b [ROWS 2], c [ROWS 3] WHERE a.host = b.host AND b.port = c.port",
        "packets_ams [ROWS 1] AS a JOIN b [ROWS 2] ON a.host = b.host JOIN c [ROWS 3] ON b.port = c.port",
        "packets_ams a [ROWS 1] INNER JOIN b [ROWS 2] ON a.host = b.host, c [ROWS 3] WHERE b.port = c.port",
        "packets_ams a [ROWS 1] JOIN b [ROWS 2] JOIN c [ROWS 3] ON b.port = c.port ON a.host = b.host",
        "packets_ams a [ROWS 1] CROSS JOIN b [ROWS 2] CROSS JOIN c [ROWS 3] WHERE ((a.host=b.host) AND b.port==c.port)",
        "packets_ams a [ROWS 1] JOIN b [ROWS 2] JOIN c [ROWS 3] WHERE a.host = b.host AND b.port = c.port",
    ],
)
def test_every_way_to_join_gives_the_same_query(sources: str) -> None:
    query = parse(f"SELECT a.bytes FROM {sources}")
    assert query.aliases == ("a", "b", "c")
    assert [source.window for source in query.sources] == [Rows(1), Rows(2), Rows(3)]
    assert {(e.left.sql, e.right.sql) for e in query.equalities} == {("`a.host`", "`b.host`"), ("`b.port`", "`c.port`")}
    assert query.filters == query.residuals == ()


def test_using_makes_columns_one() -> None:
    sources = "packets_ams a [ROWS 1] JOIN b [ROWS 2] USING (host, ts) JOIN c [ROWS 3] USING (ts)"
    query = parse(f"SELECT * FROM {sources}")
    assert {(e.left.sql, e.right.sql) for e in query.equalities} == {
        ("`a.host`", "`b.host`"),
        ("`a.ts`", "`b.ts`"),
        ("`a.ts`", "`c.ts`"),
    }
    assert [item.name for item in query.select][:2] == ["host", "ts"]
    assert len(query.select) == 5 + 3 + 5 - 3
    assert parse(f"SELECT host, TS FROM {sources}").select[1].expression.sql == "`a.ts`"
    assert "column 'port' is ambiguous" in str(refusal(f"SELECT port FROM {sources}"))


def test_one_stream_can_take_part_twice() -> None:
    query = parse("SELECT x.port FROM b [ROWS 1] x, b [RANGE 1 HOUR] y WHERE x.host = y.host")
    assert [(source.alias, source.stream) for source in query.sources] == [("x", "b"), ("y", "b")]


def test_sixteen_streams() -> None:
    names = [f"s{i}" for i in range(16)]
    sources = ", ".join(f"{name} [ROWS {i + 1}]" for i, name in enumerate(names))
    chain = " AND ".join(f"{left}.k = {right}.k" for left, right in pairwise(names))
    query = parse_query(f"SELECT * FROM {sources} WHERE {chain}", {name: ["k", f"v_{name}"] for name in names})
    assert len(query.sources) == 16
    assert len(query.equalities) == 15
    assert [item.name for item in query.select][:4] == ["s0_k", "v_s0", "s1_k", "v_s1"]


def test_names_are_resolved_to_the_declared_spelling() -> None:
    query = parse("SELECT KEY, A.`x Y` FROM `my stream` [ROWS 1] AS M, C [ROWS 1] a WHERE m.key = a.PORT")
    assert [(source.alias, source.stream) for source in query.sources] == [("M", "My Stream"), ("a", "c")]
    assert [(item.name, item.expression) for item in query.select] == [
        ("Key", Expression("`M.Key`", (Column("M", "Key"),))),
        ("x y", Expression("`a.x y`", (Column("a", "x y"),))),
    ]


# ---- expressions


@pytest.mark.parametrize(
    ("written", "sql"),
    [
        ("a.host", "`a.host`"),
        ("bytes", "`a.bytes`"),
        ("a . host", "`a.host`"),
        ("`a`.`host`", "`a.host`"),
        ("a.s.x", "`a.s`.x"),
        ("s.x", "`a.s`.x"),
        ("a.s.x.y.z.w", "`a.s`.x.y.z.w"),
        ("a.s.`odd name`", "`a.s`.`odd name`"),
        ("(a.s).x", "(`a.s`).x"),
        ("a.xs[0]", "`a.xs`[0]"),
        ("a.xs[b.port].x", "`a.xs`[`b.port`].x"),
        ("a.s['k']", "`a.s`['k']"),
        ("lower(a.host)", "lower(`a.host`)"),
        ("myUdf(a.host, port)", "myUdf(`a.host`, `b.port`)"),
        ("db.Fn(a.host)", "db.Fn(`a.host`)"),
        ("a.bytes / b.port", "`a.bytes` / `b.port`"),
        ("a.bytes % 3", "`a.bytes` % 3"),
        ("a.bytes div 10L", "`a.bytes` div 10L"),
        ("a.bytes + 1.5BD", "`a.bytes` + 1.5BD"),
        ("a.bytes::string", "`a.bytes`::string"),
        ("cast(a.bytes as long)", "cast(`a.bytes` as long)"),
        ("a.host || '!'", "`a.host` || '!'"),
        ("'it\\'s' || \"a.host\" || r'\\d'", "'it\\'s' || \"a.host\" || r'\\d'"),
        ("a.host rlike 'a.host'", "`a.host` rlike 'a.host'"),
        ("date_trunc('hour', a.ts)", "date_trunc('hour', `a.ts`)"),
        # sqlglot's own functions would lose the columns of these.
        ("date_trunc(a.host, a.ts)", "date_trunc(`a.host`, `a.ts`)"),
        ("trunc(a.ts, port)", "trunc(`a.ts`, `b.port`)"),
        ("map(bytes, port)", "map(`a.bytes`, `b.port`)"),
        ("map(bytes)", "map(`a.bytes`)"),
        ("position('x' IN a.host)", "position('x' IN `a.host`)"),
        ("overlay(a.host PLACING 'x' FROM port)", "overlay(`a.host` PLACING 'x' FROM `b.port`)"),
        ("ceil(bytes, port)", "ceil(`a.bytes`, `b.port`)"),
        ("if(bytes > 1, port, s.x)", "if(`a.bytes` > 1, `b.port`, `a.s`.x)"),
        ("f(x => a.bytes)", "f(x => `a.bytes`)"),
        ("date_format(a.ts, 'yyyy')", "date_format(`a.ts`, 'yyyy')"),
        ("unix_timestamp(a.ts)", "unix_timestamp(`a.ts`)"),
        ("from_unixtime(a.bytes)", "from_unixtime(`a.bytes`)"),
        ("substring(a.host, 2)", "substring(`a.host`, 2)"),
        ("substring(a.host FROM 2 FOR 3)", "substring(`a.host` FROM 2 FOR 3)"),
        ("extract(day FROM a.ts)", "extract(day FROM `a.ts`)"),
        ("trim(BOTH 'x' FROM a.host)", "trim(BOTH 'x' FROM `a.host`)"),
        ("xxhash64(a.host)", "xxhash64(`a.host`)"),
        ("timestampdiff(MINUTE, a.ts, b.ts)", "timestampdiff(MINUTE, `a.ts`, `b.ts`)"),
        ("timestampadd(HOUR, 1, a.ts)", "timestampadd(HOUR, 1, `a.ts`)"),
        ("datediff(day, a.ts, b.ts)", "datediff(day, `a.ts`, `b.ts`)"),
        ("a.ts + INTERVAL '1' DAY", "`a.ts` + INTERVAL '1' DAY"),
        ("a.ts > TIMESTAMP '2020-01-01'", "`a.ts` > TIMESTAMP '2020-01-01'"),
        ("named_struct('host', a.host)", "named_struct('host', `a.host`)"),
        ("struct(a.host, b.port AS p)", "struct(`a.host` AS `host`, `b.port` AS p)"),
        ("filter(a.xs, x -> x > port AND x.f = 1)", "filter(`a.xs`, x -> x > `b.port` AND x.f = 1)"),
        ("filter(xs, a -> a.f = 1)", "filter(`a.xs`, a -> a.f = 1)"),
        ("transform(xs, x -> filter(xs, y -> y > x))", "transform(`a.xs`, x -> filter(`a.xs`, y -> y > x))"),
        ("CASE WHEN a.bytes > 1 THEN 'x' ELSE b.host END", "CASE WHEN `a.bytes` > 1 THEN 'x' ELSE `b.host` END"),
        ("a.host IS DISTINCT FROM b.host", "`a.host` IS DISTINCT FROM `b.host`"),
        ("a.bytes /* why */ + -- so\n  1", "`a.bytes` + 1"),
        ("'é' || a.host", "'é' || `a.host`"),
        ("'line\nbreak' || a.host", "'line\nbreak' || `a.host`"),
    ],
)
def test_expressions_keep_the_text_but_for_the_columns(written: str, sql: str) -> None:
    assert selected(written).sql == sql


def test_columns_are_sorted_and_distinct() -> None:
    expression = selected("b.port + a.bytes * b.port")
    assert expression.columns == (Column("a", "bytes"), Column("b", "port"))
    assert expression.aliases == ("a", "b")


def test_odd_names_are_quoted() -> None:
    query = parse("SELECT `d.e`, c.`b``q` FROM c [ROWS 1], b [ROWS 1] WHERE c.port = b.port")
    assert [item.expression.sql for item in query.select] == ["`c.d.e`", "`c.b``q`"]
    assert [item.name for item in query.select] == ["d.e", "b`q"]


def test_keywords_can_be_columns() -> None:
    query = parse(
        "SELECT kafka.offset, window, filter(xs, x -> x > window) AS f FROM kafka [ROWS 1], packets_ams [ROWS 3] "
        "WHERE k = host AND offset = 3 AND window > 3 AND kafka.left = 1"
    )
    assert [item.name for item in query.select] == ["offset", "window", "f"]
    assert [expression.sql for expression in query.filters] == [
        "`kafka.offset` = 3",
        "`kafka.window` > 3",
        "`kafka.left` = 1",
    ]


# ---- SELECT


@pytest.mark.parametrize(
    ("select", "names"),
    [
        ("a.host", ["host"]),
        ("A.HOST", ["host"]),
        ("a.host AS h", ["h"]),
        ("a.host h", ["h"]),
        ("a.host AS `x y`", ["x y"]),
        ("a.s.x", ["x"]),
        ("a.s.x.Y", ["Y"]),
        ("current_date", ["current_date"]),
        ("ALL a.host, bytes", ["host", "bytes"]),
        ("a.*", ["ts", "host", "bytes", "s", "xs"]),
        ("*", ["a_ts", "a_host", "bytes", "s", "xs", "b_ts", "b_host", "port"]),
        ("b.*, a.host", ["ts", "b_host", "port", "host"]),
        ("b.*, a.bytes AS PORT", ["ts", "host", "b_port", "PORT"]),
    ],
)
def test_output_names(select: str, names: list[str]) -> None:
    assert [item.name for item in parse(f"SELECT {select} {AB}").select] == names


def test_distinct() -> None:
    assert parse(f"SELECT DISTINCT a.host {AB}").distinct
    assert not parse(f"SELECT a.host {AB}").distinct


# ---- WHERE


@pytest.mark.parametrize(
    ("condition", "equalities", "filters", "residuals"),
    [
        ("a.host = b.host", ["`a.host` = `b.host`"], [], []),
        ("(a.host) == ((b.host))", ["`a.host` = `b.host`"], [], []),
        ("((a.host = b.host AND (b.port = c.port)))", ["`a.host` = `b.host`", "`b.port` = `c.port`"], [], []),
        ("lower(a.host) = b.host || 'x'", ["lower(`a.host`) = `b.host` || 'x'"], [], []),
        ("a.bytes + 1 = b.port & 7", ["`a.bytes` + 1 = `b.port` & 7"], [], []),
        ("(a.bytes > 1) = (b.port > 1)", ["(`a.bytes` > 1) = (`b.port` > 1)"], [], []),
        ("exists(a.xs, x -> x = 1) = b.port", ["exists(`a.xs`, x -> x = 1) = `b.port`"], [], []),
        ("a.host = b.host AND a.host = b.host", ["`a.host` = `b.host`"], [], []),
        ("a.host = 'x'", [], ["`a.host` = 'x'"], []),
        ("a.host = a.s", [], ["`a.host` = `a.s`"], []),
        ("a.bytes BETWEEN 1 AND 9 AND a.host = b.host", ["`a.host` = `b.host`"], ["`a.bytes` BETWEEN 1 AND 9"], []),
        ("a.bytes NOT BETWEEN 1 AND b.port", [], [], ["`a.bytes` NOT BETWEEN 1 AND `b.port`"]),
        ("a.bytes > 1 OR a.host = 'x'", [], ["(`a.bytes` > 1 OR `a.host` = 'x')"], []),
        ("(a.host = b.host OR a.bytes = 1)", [], [], ["(`a.host` = `b.host` OR `a.bytes` = 1)"]),
        ("a.bytes < b.port", [], [], ["`a.bytes` < `b.port`"]),
        ("a.host <=> b.host", [], [], ["`a.host` <=> `b.host`"]),
        ("NOT a.host = b.host", [], [], ["NOT `a.host` = `b.host`"]),
        ("!(a.host = b.host)", [], [], ["!(`a.host` = `b.host`)"]),
        ("a.host = b.host IS NULL", [], [], ["`a.host` = `b.host` IS NULL"]),
        ("a.host = b.host = true", [], [], ["`a.host` = `b.host` = true"]),
        ("a.bytes + b.port = c.port", [], [], ["`a.bytes` + `b.port` = `c.port`"]),
        ("1 = 1 AND true", [], [], ["1 = 1", "true"]),
        (
            "CASE WHEN a.bytes = 1 AND b.port = 1 THEN true ELSE false END AND a.bytes = c.port",
            ["`a.bytes` = `c.port`"],
            [],
            ["CASE WHEN `a.bytes` = 1 AND `b.port` = 1 THEN true ELSE false END"],
        ),
        ("a.host LIKE ANY ('x', 'y')", [], ["`a.host` LIKE ANY ('x', 'y')"], []),
        (
            "left(a.host, 2) = 'ab' AND port(b.port) = a.bytes",
            ["port(`b.port`) = `a.bytes`"],
            ["left(`a.host`, 2) = 'ab'"],
            [],
        ),
    ],
)
def test_conjuncts_are_sorted_out(
    condition: str, equalities: list[str], filters: list[str], residuals: list[str]
) -> None:
    assert predicates(condition) == (equalities, filters, residuals)


def test_a_function_named_like_a_join_can_stand_in_on() -> None:
    query = parse("SELECT port FROM b [ROWS 1] JOIN packets_ams [ROWS 1] a ON left(a.host, 2) = right(b.host, 2)")
    assert query.equalities[0].left.sql == "left(`a.host`, 2)"


# ---- GROUP BY


def grouped(sql: str) -> tuple[list[str], Grouping]:
    query = parse(sql)
    assert query.grouping is not None
    assert query.output == query.grouping.select
    return [item.expression.sql for item in query.select], query.grouping


def test_groups_of_a_join() -> None:
    items, grouping = grouped(
        f"SELECT a.host, COUNT(*) AS n, sum(bytes + b.port) / count(DISTINCT port) AS per_port, window_start {AB} "
        "GROUP BY a.host, HOP(5 MINUTES, 1 MINUTE) HAVING n > 1 AND max(bytes) < 9 ORDER BY n DESC, host LIMIT 3"
    )
    assert items == ["`a.host`", "`a.bytes` + `b.port`", "`b.port`", "`a.bytes`", "`.time`"]
    assert grouping.window == Hop(300_000_000, 60_000_000)
    assert [(one.sql, one.item) for one in grouping.aggregates] == [
        ("count(*)", None),
        ("sum(`a.bytes` + `b.port`)", 1),
        ("count(DISTINCT `b.port`)", 2),
        ("max(`a.bytes`)", 3),
    ]
    assert [(item.name, item.expression.sql) for item in grouping.select] == [
        ("host", "`group.key0`"),
        ("n", "`group.value0`"),
        ("per_port", "`group.value1` / `group.value2`"),
        ("window_start", "`group.window_start`"),
    ]
    assert [one.sql for one in grouping.having] == ["(`group.value0`) > 1", "`group.value3` < 9"]
    assert [(key.expression.sql, key.descending, key.nulls_first) for key in grouping.order] == [
        ("(`group.value0`)", True, False),
        ("(`group.key0`)", False, True),
    ]
    assert grouping.limit == 3


def test_aggregates_with_a_condition_are_of_what_is_null_elsewhere() -> None:
    items, grouping = grouped(
        "SELECT host, count(*) FILTER (WHERE bytes > 1 OR bytes < 0) AS n, "
        "sum(DISTINCT bytes) filter (where host <> '') + count_if(bytes = 3) AS s, "
        "size(filter(max_k(bytes, 3), x -> x > 1)) - avg(bytes) FILTER (WHERE bytes = 3) AS t "
        "FROM packets_ams a GROUP BY host, TUMBLE(1 HOUR) HAVING min(DISTINCT bytes) > 0"
    )
    assert [(one.function, one.distinct, items[one.item or 0]) for one in grouping.aggregates] == [
        ("count", False, "CASE WHEN `a.bytes` > 1 OR `a.bytes` < 0 THEN 1 END"),
        ("sum", True, "CASE WHEN `a.host` <> '' THEN `a.bytes` END"),
        ("count", False, "CASE WHEN `a.bytes` = 3 THEN 1 END"),
        ("max_k", False, "`a.bytes`"),
        ("avg", False, "CASE WHEN `a.bytes` = 3 THEN `a.bytes` END"),
        ("min", False, "`a.bytes`"),
    ]
    assert [item.expression.sql for item in grouping.select][1:] == [
        "`group.value0`",
        "`group.value1` + `group.value2`",
        "size(filter(`group.value3`, x -> x > 1)) - `group.value4`",
    ]


def test_keys_are_found_in_expressions_and_by_number_or_name() -> None:
    for keys in ("lower(host), bytes % 10", "1, 2", "h, bucket", "LOWER( a.host ), bytes%10"):
        items, grouping = grouped(
            "SELECT lower(a.host) || '!' AS x, lower(a.host) AS h, bytes % 10 AS bucket, upper(lower(host)) AS u "
            f"FROM packets_ams a GROUP BY {keys.replace('1, 2', '2, 3')}, TUMBLE(INTERVAL '1' HOUR)"
        )
        assert items[2:] == ["`.time`"]
        assert [item.expression.sql for item in grouping.select] == [
            "`group.key0` || '!'",
            "`group.key0`",
            "`group.key1`",
            "upper(`group.key0`)",
        ]


def test_numbers_in_order_by_are_output_columns() -> None:
    sql = (
        f"SELECT a.host, count(*) + 1 AS n, 'x' AS c {AB} GROUP BY (1), TUMBLE(1 DAY) ORDER BY 2 DESC, ((1)), c LIMIT 3"
    )
    assert [key.expression.sql for key in grouped(sql)[1].order] == [
        "(`group.value0` + 1)",
        "(`group.key0`)",
        "('x')",
    ]


def test_names_of_output_columns_that_streams_have_too() -> None:
    """As Spark reads them: aggregates are of columns of streams, HAVING means keys, ORDER BY output columns."""
    end = "FROM packets_ams a GROUP BY host, TUMBLE(1 DAY)"
    _, grouping = grouped(
        f"SELECT host AS bytes, max(bytes) AS host, max(ts) AS ts {end} "
        "HAVING host > 'a' AND bytes > 'b' AND max(bytes) > 1 AND ts > max(ts) ORDER BY host, bytes, max(bytes) LIMIT 3"
    )
    assert [one.sql for one in grouping.aggregates] == ["max(`a.bytes`)", "max(`a.ts`)"]
    assert [one.sql for one in grouping.having] == [
        "`group.key0` > 'a'",
        "(`group.key0`) > 'b'",
        "`group.value0` > 1",
        "(`group.value1`) > `group.value1`",
    ]
    assert [key.expression.sql for key in grouping.order] == ["(`group.value0`)", "(`group.key0`)", "`group.value0`"]
    _, grouping = grouped("SELECT count(*) AS port FROM b GROUP BY ((b.port)), TUMBLE(1 DAY) HAVING port > 3")
    assert [one.sql for one in grouping.having] == ["`group.key0` > 3"]
    end = "FROM packets_ams a GROUP BY bytes + 1, TUMBLE(1 DAY)"
    _, grouping = grouped(f"SELECT bytes + 1 AS bytes {end} HAVING bytes + 1 > 3 AND bytes > 4 ORDER BY bytes LIMIT 3")
    assert [one.sql for one in grouping.having] == ["`group.key0` > 3", "(`group.key0`) > 4"]
    message = "'bytes' may be the output column or a.bytes here; write a.bytes, or the number of an output column"
    assert message in str(refusal(f"SELECT bytes + 1 AS bytes {end} ORDER BY abs(bytes + 1) LIMIT 3"))
    assert message in str(
        refusal(f"SELECT -bytes AS bytes {end.replace('bytes + 1', 'bytes')} ORDER BY -bytes LIMIT 3")
    )


def test_columns_that_have_the_names_of_what_groups_have() -> None:
    columns = {"a": ["window_start", "deleted", "v"]}
    sql = "SELECT max(a.v) AS v, {} FROM a GROUP BY {}"
    message = "'window_start' is what groups have and a column of a stream too; write a.window_start, or call it"
    with pytest.raises(SqlError, match=message):
        parse_query(sql.format("window_start", "window_start, TUMBLE(1 DAY)"), columns)
    with pytest.raises(SqlError, match="'deleted' is what groups have and a column of a stream too"):
        parse_query(sql.format("deleted AS x", "deleted EMIT CHANGES"), columns)
    query = parse_query(sql.format("max(window_start) AS m, window_end", "TUMBLE(1 DAY)"), columns)
    assert query.grouping is not None
    assert [one.sql for one in query.grouping.aggregates] == ["max(`a.v`)", "max(`a.window_start`)"]
    with pytest.raises(SqlError, match="'group' cannot be an alias in a query with GROUP BY"):
        parse_query("SELECT max(v) AS key0 FROM a `group` GROUP BY `group`.deleted, TUMBLE(1 DAY)", columns)


def test_lists_of_subqueries_are_read() -> None:
    """What IN compares with is the value before it, whatever else has the same subquery."""
    inner = "SELECT port FROM b [RANGE 1 DAY] b2"
    for item in ("1", "*", "b2.*", "DISTINCT b2.port", "port + 1, a.host", "upper(b2.host) AS h"):
        parse(f"SELECT a.ts {AB} AND EXISTS ({inner.replace('port', item)} WHERE b2.host = a.host)")
    found = parse(f"SELECT a.ts {AB} AND a.bytes IN ({inner}) AND NOT (a.ts NOT IN ({inner}))").equalities
    assert [(one.left.sql, one.right.sql) for one in found[:2]] == [
        ("`a.bytes`", "`b2.port`"),
        ("`a.ts`", "`b2_2.port`"),
    ]
    for condition in (
        f"NOT (a.bytes IN ({inner} WHERE b2.host = a.host))",
        f"a.bytes NOT IN ({inner} WHERE b2.host = a.host)",
    ):
        query = parse(f"SELECT a.ts FROM packets_ams [RANGE 1 DAY] a WHERE {condition}")
        assert query.outer is not None and query.outer.tree.kind == "anti"
        assert [one.sql for one in query.residuals] == ["coalesce((`a.bytes`) = (`b2.port`), true)"]


def test_a_single_stream_needs_no_window() -> None:
    query = parse("SELECT port FROM b WHERE port > 3")
    assert [source.window for source in query.sources] == [Unbounded()]
    assert [one.sql for one in query.filters] == ["`b.port` > 3"]


def test_canonical_text_of_groups_tells_queries_apart() -> None:
    sql = f"SELECT count(*) AS n {AB} GROUP BY a.host, TUMBLE(1 HOUR)"
    others = (
        sql.replace("HOUR", "DAY"),
        sql.replace("*", "port"),
        f"{sql} HAVING n > 1",
        f"{sql} ORDER BY n LIMIT 1",
        sql.replace("a.host,", ""),
    )
    assert len({canonical_sql(parse(one)) for one in (sql, *others)}) == 6


# ---- what is refused


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("a.hosst", "line 1, column 8: 'a' has no column 'hosst'; did you mean 'host'? known: bytes, host, s, ts, xs"),
        ("hosst", "line 1, column 8: no stream in FROM has a column 'hosst'; did you mean 'host'?"),
        ("host", "line 1, column 8: column 'host' is ambiguous; write a.host or b.host"),
        ("z.host", "line 1, column 8: no stream in FROM has the alias 'z'; known: a, b"),
        ("z.*", "line 1, column 8: no stream in FROM has the alias 'z'; known: a, b"),
        ("packets_ams.host", "no stream in FROM has the alias 'packets_ams'"),
        ("a.bytes + 1", "line 1, column 8: the expression 'a.bytes + 1' needs a name; add AS with a name"),
        ("1", "the expression '1' needs a name"),
        ("a.ts, a.xs[0]", "line 1, column 14: the expression 'a.xs[0]' needs a name"),
        ("a.host, b.HOST", "line 1, column 16: two output columns are called 'host'; name one of them with AS"),
        ("a.*, b.host AS bytes, a.ts AS BYTES", "two output columns are called 'bytes'"),
        ("a.s.*", "* of a struct is not supported; name the fields"),
        ("* EXCEPT (host)", "* with EXCEPT or the like is not supported; name the columns"),
        ("struct(*) AS x", "* inside an expression is not supported; name the columns"),
        ("sum(a.bytes) AS x", "line 1, column 8: a group never ends without an output window; add one, as in GROUP BY"),
        ("count(*) AS n", "a group never ends without an output window"),
        (
            "collect_list(a.bytes) AS x",
            "the aggregate collect_list is not supported; use avg, bool_and, bool_or, count, count_if, max",
        ),
        ("builtin.sum(a.bytes) AS x", "the aggregate sum is not supported; use avg"),
        ("any(a.s) AS x", "the aggregate any is not supported; use avg, bool_and, bool_or, count"),
        ("row_number() OVER (ORDER BY a.ts) AS n", "line 1, column 8: window functions are not supported"),
        ("explode(a.xs) AS x", "the generator explode is not supported; use it before the stream is joined"),
        ("window(a.ts, '1 minute') AS w", "window() is not supported; write the window after the stream"),
        ("(SELECT 1) AS x", "line 1, column 9: subqueries are supported in EXISTS (...) and IN (...) of WHERE only"),
        ("a.ts AS (x, y)", "several names for one expression are not supported"),
        ("/*+ BROADCAST(a) */ a.ts", "hints are not supported"),
        ("a.ts:x", "line 1, column 12: parameters and paths with ':' are not supported"),
        ("f(?) AS x", "parameters and paths with '?' are not supported"),
        ("a.host,", "line 1, column 14: unexpected ',', in: SELECT a.host, FROM"),
        ("a.host,,a.ts", "line 1, column 15: unexpected ','"),
        ("a.host one two", "line 1, column 19: unexpected 'two', in: SELECT a.host one two FROM"),
        ("f(a.ts,) AS x", "line 1, column 15: unexpected ')'"),
        ("a.bytes + AS x", "line 1, column 18: an operand is missing near 'AS', in: SELECT a.bytes + AS x"),
        ("'abc", "line 1, column 8: ' is opened and never closed, in: SELECT 'abc"),
        ("(a.ts", "line 1, column 8: '(' is opened and never closed"),
        ("a.ts)", "line 1, column 12: unmatched ')'"),
        ("", "line 1, column 9: the select list is empty; write SELECT * or name columns"),
    ],
)
def test_bad_select(select: str, message: str) -> None:
    assert message in str(refusal(f"SELECT {select} {AB}"))


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("GROUP BY a.ts", "line 2, column 1: a group never ends without an output window"),
        ("GROUP BY", "GROUP BY lacks a column or expression"),
        ("GROUP BY TUMBLE(1 HOUR)", "column a.ts is neither in GROUP BY nor inside an aggregate; add it to GROUP BY"),
        (
            "GROUP BY a.ts, TUMBLE(1 HOUR), TUMBLE(2 HOURS)",
            "line 2, column 32: GROUP BY has two output windows",
        ),
        ("GROUP BY a.ts, TUMBLE(1 MONTH)", "TUMBLE window: duration '1 MONTH': a month has no fixed length"),
        ("GROUP BY a.ts, HOP(1 HOUR)", "an output window is TUMBLE(5 MINUTES), or HOP(5 MINUTES, 1 MINUTE)"),
        ("GROUP BY a.ts, HOP(1 MINUTE, 1 HOUR)", "HOP leaves gaps"),
        ("GROUP BY a.ts, HOP(1 DAY, 1 MS)", "HOP has windows of more than 1,000 slides"),
        ("GROUP BY ROLLUP(a.ts)", "GROUP BY ROLLUP is not supported; run one query for each set"),
        ("GROUP BY a.ts, sum(a.bytes), TUMBLE(1 DAY)", "the aggregate sum cannot be in GROUP BY"),
        ("GROUP BY a.ts, rand(), TUMBLE(1 DAY)", "rand is not deterministic and so cannot be in GROUP BY"),
        ("GROUP BY 2, TUMBLE(1 DAY)", "the select list has no column 2"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING", "line 2, column 30: HAVING has no condition"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING sum(max(bytes)) > 1", "the aggregate max cannot be in an aggregate"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING sum(a.bytes, 1) > 1", "sum takes one argument"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING approx_percentile(bytes) > 1", "approx_percentile takes (x, 0.5) or"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING approx_percentile(bytes, 2) > 1", "with shares from 0 to 1"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING size(max_k(bytes, 0)) > 1", "max_k takes (x, 3) with how many values"),
        (
            "GROUP BY a.ts, TUMBLE(1 DAY) HAVING approx_top_k(bytes, port) > 1",
            "approx_top_k takes numbers after its first",
        ),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING sum(*) > 1", "sum takes a column or expression"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING size(max_k(DISTINCT bytes, 2)) > 1", "leave out DISTINCT"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING count_if(DISTINCT bytes > 1) > 1", "leave out DISTINCT"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING count(window_end) > 1", "what a group has cannot be inside an aggregate"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING count(*) FILTER (bytes > 1) > 1", "FILTER (WHERE ...) has to follow an"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING abs(1) FILTER (WHERE bytes > 1) > 1", "has to follow an aggregate"),
        (
            "GROUP BY a.ts, TUMBLE(1 DAY) HAVING count(*) FILTER (WHERE max(bytes) > 1) > 1",
            "max cannot be in an aggregate",
        ),
        ("GROUP BY a.ts, TUMBLE(1 DAY) HAVING max(bytes) FILTER (WHERE rand() > 0) > 1", "rand is not deterministic"),
        (
            "GROUP BY a.ts, TUMBLE(1 DAY) HAVING size(approx_top_k(bytes) FILTER (WHERE port > 1)) > 1",
            "counts NULL too",
        ),
        ("GROUP BY a.ts, TUMBLE(1 DAY) ORDER BY a.ts", "line 2, column 30: ORDER BY needs LIMIT"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) LIMIT 3", "line 2, column 30: LIMIT needs ORDER BY"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) ORDER BY a.ts LIMIT 0", "LIMIT takes a whole number from 1"),
        ("GROUP BY a.ts, TUMBLE(1 DAY) ORDER BY b.port LIMIT 3", "column b.port is neither in GROUP BY"),
        (
            "GROUP BY a.ts, TUMBLE(1 DAY) EMIT CHANGES",
            "line 2, column 30: EMIT CHANGES has running values and no output",
        ),
        (
            "AND EXISTS (SELECT 1 FROM c [RANGE 1 DAY] WHERE c.port = b.port) GROUP BY a.ts EMIT CHANGES",
            "EMIT CHANGES over the ROWS window of b is for inner joins; use RANGE, TUMBLE or UNBOUNDED",
        ),
        ("EMIT CHANGES", "line 2, column 1: EMIT CHANGES needs GROUP BY or an aggregate"),
        ("HAVING a.host = 1", "a group never ends without an output window"),
        ("ORDER BY 1", "line 2, column 1: ORDER BY is not supported"),
        ("SORT BY a.host", "SORT BY is not supported"),
        ("LIMIT 3", "line 2, column 1: LIMIT is not supported"),
        ("OFFSET 3", "OFFSET is not supported"),
        ("WINDOW w AS (ORDER BY a.ts)", "the WINDOW clause is not supported"),
        ("LATERAL VIEW explode(a.xs) t", "LATERAL is not supported; explode the stream in Spark"),
        ("UNION ALL SELECT 1", "line 2, column 1: UNION is not supported; run one query for each side"),
        ("INTERSECT SELECT 1", "INTERSECT is not supported"),
        ("EXCEPT SELECT 1", "EXCEPT is not supported"),
        ("; SELECT 1", "line 2, column 1: several statements are not supported"),
        ("AND a.host IN (SELECT host FROM c)", "stream 'c' in the subquery of IN has no window; add one"),
        ("AND EXISTS (SELECT 1)", "line 2, column 5: the subquery of EXISTS has no FROM; name a stream there"),
        ("AND EXISTS (SELECT 1 FROM c [ROWS 1])", "the subquery of EXISTS is not tied to the rows outside; add an"),
        ("AND (a.bytes = 1 OR EXISTS (SELECT 1 FROM c [ROWS 1] WHERE c.host = a.host))", "tied by AND to the rest"),
        ("AND a.bytes NOT IN (SELECT port FROM c [ROWS 3])", "write NOT EXISTS with an equality"),
        (
            "AND EXISTS (SELECT 1 FROM c [ROWS 1] GROUP BY c.host)",
            "GROUP BY in the subquery of EXISTS is not supported",
        ),
        ("AND EXISTS (SELECT z FROM c [ROWS 1] WHERE c.port = b.port)", "no stream in FROM has a column 'z'"),
        ("AND EXISTS (SELECT c.z FROM c [ROWS 1] WHERE c.port = b.port)", "'c' has no column 'z'"),
        ("AND EXISTS (SELECT a.* FROM c [ROWS 1] WHERE c.port = b.port)", "no stream in FROM has the alias 'a'"),
        (
            "AND EXISTS (SELECT 1 + max(c.port) FROM c [ROWS 1] WHERE c.port = b.port)",
            "line 2, column 24: the aggregate max cannot be in the subquery of EXISTS, where a subquery without",
        ),
        (
            "AND b.port IN (SELECT max(c.port) FROM c [ROWS 1])",
            "the aggregate max cannot be in the subquery of IN; make a view of the groups and read it there",
        ),
        ("AND EXISTS (SELECT rank() OVER () FROM c [ROWS 1] WHERE c.port = b.port)", "window functions are not"),
        ("AND EXISTS (FROM c [ROWS 1])", "the subquery of EXISTS has no SELECT; write SELECT 1 FROM ..."),
        (
            "AND EXISTS (SELECT 1 FROM c [ROWS 1] WHERE c.port = b.port EMIT CHANGES)",
            "line 2, column 60: EMIT CHANGES in the subquery of EXISTS is not supported; leave it out",
        ),
        (
            "AND rand() < 0.5",
            "line 2, column 5: rand is not deterministic and so cannot be in WHERE or ON",
        ),
        ("AND uuid() = a.host", "uuid is not deterministic"),
        ("AND a.ts > now()", "line 2, column 12: now is not deterministic"),
        ("AND a.ts > current_timestamp", "current_timestamp is not deterministic"),
        ("AND a.ts > CURRENT_TIMESTAMP()", "current_timestamp is not deterministic"),
        ("AND unix_timestamp() > 1", "unix_timestamp is not deterministic"),
        ("AND max(a.bytes) > 1", "line 2, column 5: the aggregate max cannot be in WHERE or ON; write the condition"),
        ("AND", "line 2, column 1: an operand is missing near 'AND', in: ... 0] WHERE a.host = b.host AND"),
        ("AND a.host = = 3", "line 2, column 14: an operand is missing near '='"),
        ("AND a.host foo", "line 2, column 12: unexpected 'foo'"),
        ("AND a.bytes > 3, 4", "line 2, column 16: unexpected ','"),
        ("AND a.nope", "line 2, column 5: 'a' has no column 'nope'"),
        ("AND a.f(1)", "line 2, column 5: this use of 'a' is not understood"),
    ],
)
def test_bad_tail(tail: str, message: str) -> None:
    assert message in str(refusal(f"SELECT a.ts {AB}\n{tail}"))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT DISTINCT ON (port) port, v FROM p", "DISTINCT ON is not supported; write GROUP BY with max(...)"),
        ("SELECT port FROM p |> WHERE port > 1", "line 1, column 20: |> is not supported; write the clauses of SELECT"),
        ("SELECT p.* EXCEPT (port) FROM p", "* with EXCEPT or the like is not supported; name the columns"),
        ("SELECT port FROM p WHERE port IN ()", "IN lacks values"),
        ("SELECT port FROM p WHERE EXISTS (VALUES (1))", "VALUES is not supported; name a stream"),
        ("SELECT TRANSFORM(port) USING 'cat' AS x FROM p", "TRANSFORM ... USING is not supported"),
        ("SELECT sum(v) OVER (PARTITION BY port) AS x FROM p", "window functions are not supported; rank groups by"),
        ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS x FROM p", "write approx_percentile(x, 0.5)"),
        ("SELECT port FROM p UNION ALL BY NAME SELECT port FROM p", "UNION BY NAME is not supported; list the"),
        ("SELECT port FROM p MINUS SELECT port FROM p", "EXCEPT is not supported; write NOT EXISTS"),
        ("WITH w AS (SELECT v FROM p), W AS (SELECT v FROM p) SELECT * FROM w", "two common table expressions are"),
        *(
            (f"SELECT port, count(*) AS n FROM p GROUP BY port, TUMBLE(1 DAY) ORDER BY {order}", message)
            for order, message in (
                ("ALL LIMIT 3", "ORDER BY ALL is not supported; name the columns"),
                ("n LIMIT 10 PERCENT", "LIMIT takes a whole number and nothing else"),
                ("n LIMIT 3 WITH TIES", "LIMIT takes a whole number and nothing else"),
                ("n LIMIT 3 BY port", "LIMIT ... BY is not supported"),
                ("n WITH FILL LIMIT 3", "WITH FILL is not supported"),
                ("n LIMIT 3, 4", "OFFSET is not supported: a continuous query does not end"),
                ("n FETCH FIRST 3 ROWS ONLY", "FETCH is not supported; write LIMIT"),
            )
        ),
        *(
            (f"SELECT {select} AS x FROM p GROUP BY TUMBLE(1 DAY)", message)
            for select, message in (
                ("sum(v) IGNORE NULLS", "IGNORE NULLS is not supported; leave it out"),
                ("max(v ORDER BY port)", "ORDER BY within a function is not supported"),
                ("max(v LIMIT 1)", "LIMIT within a function is not supported"),
                ("max(v HAVING MAX port)", "HAVING within a function is not supported"),
                ("median(v)", "the aggregate median is not supported; write approx_percentile(x, 0.5)"),
                ("any_value(v)", "the aggregate any_value is not supported; write min(x) or max(x)"),
            )
        ),
        *(
            (f"SELECT count(*) AS n FROM p GROUP BY {by}", message)
            for by, message in (
                ("ALL", "GROUP BY ALL is not supported; name the columns"),
                ("DISTINCT port, TUMBLE(1 DAY)", "GROUP BY DISTINCT is not supported; name the columns"),
                ("port WITH ROLLUP", "GROUP BY WITH ROLLUP is not supported; run one query for each"),
                ("port GROUPING SETS ((port), ())", "GROUP BY GROUPING SETS is not supported; run one query"),
                ("port, SESSION(5 MINUTES)", "SESSION windows are not supported; use TUMBLE(5 MINUTES) or HOP"),
            )
        ),
    ],
)
def test_what_would_be_passed_over_is_refused(sql: str, message: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse_script("q", sql, {"p": ["port", "v", "ts"]})
    assert message in str(caught.value)


def test_not_exists_that_is_never_decided_is_refused_with_a_window_to_write() -> None:
    message = "NOT EXISTS is never decided where no window outside ends; write one, such as c [RANGE 10 MINUTES]"
    sql = "SELECT c.ts FROM c [UNBOUNDED] WHERE NOT EXISTS (SELECT 1 FROM b [ROWS 1] WHERE b.port = c.port)"
    assert message in str(refusal(sql))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            "b, c [ROWS 1]",
            "line 1, column 15: stream 'b' has no window; add one, e.g. b [RANGE 1 MINUTE] or b [UNBOUNDED]",
        ),
        ("b [ROWS 0], c [ROWS 1]", "line 1, column 18: ROWS must be positive, not 0"),
        ("b [ROWS -3], c [ROWS 1]", "ROWS must be positive, not -3"),
        ("b [ROWS 1.5], c [ROWS 1]", "ROWS takes a whole number of rows, not '1.5'; write [ROWS 100]"),
        ("b [ROWS], c [ROWS 1]", "ROWS takes a whole number of rows, not ''"),
        ("b [RANGE 0 SECONDS], c [ROWS 1]", "RANGE must be positive, not '0 SECONDS'"),
        ("b [TUMBLE -1 SECOND], c [ROWS 1]", "TUMBLE must be positive, not '-1 SECOND'"),
        ("b [RANGE 1 MONTH], c [ROWS 1]", "RANGE window: duration '1 MONTH': a month has no fixed length"),
        ("b [RANGE soon], c [ROWS 1]", "RANGE window: duration 'soon' is not understood"),
        (
            "b [SLIDE 1 MINUTE], c [ROWS 1]",
            "line 1, column 17: '[SLIDE 1 MINUTE]' is not a window; write [RANGE 1 MINUTE]",
        ),
        ("b [], c [ROWS 1]", "'[]' is not a window"),
        ("b [UNBOUNDED 3], c [ROWS 1]", "'[UNBOUNDED 3]' is not a window"),
        ("b [ROWS 1] x [ROWS 1], c [ROWS 1]", "line 1, column 28: 'x' has two windows; keep one"),
        ("b [ROWS 1", "line 1, column 17: '[' is opened and never closed"),
        (
            "b [ROWS 1], B [ROWS 1]",
            "line 1, column 27: two streams in FROM have the alias 'B'; give one another name with AS",
        ),
        ("b [ROWS 1] x, c [ROWS 1] X", "two streams in FROM have the alias 'X'"),
        ("b [ROWS 1] `x.y`, c [ROWS 1]", "'x.y' cannot be an alias; add AS with a plain name"),
        ("b [ROWS 1] LEFT JOIN c [ROWS 1]", "line 1, column 26: a LEFT JOIN has no condition; add ON with an equality"),
        ("b [UNBOUNDED] LEFT JOIN c [ROWS 1] ON b.port = c.port", "never known that a row of 'b' has no partner"),
        ("b [ROWS 1] RIGHT OUTER JOIN c [ROWS 1]", "a RIGHT OUTER JOIN has no condition"),
        ("b [ROWS 1] FULL OUTER JOIN c [ROWS 1]", "a FULL OUTER JOIN has no condition"),
        (
            "b [ROWS 1] LEFT SEMI JOIN c [ROWS 1]",
            "a LEFT SEMI JOIN has no condition",
        ),
        ("b [ROWS 1] LEFT ANTI JOIN c [ROWS 1]", "a LEFT ANTI JOIN has no condition"),
        ("b [ROWS 1] NATURAL JOIN c [ROWS 1]", "NATURAL JOIN is not supported; write JOIN ... ON"),
        ("b [ROWS 1] JOIN c [ROWS 1] USING (host)", "line 1, column 49: 'c' has no column 'host'"),
        ("c [ROWS 1] JOIN b [ROWS 1] USING (host)", "line 1, column 49: no stream in FROM has a column 'host'"),
        ("b [ROWS 1], c [ROWS 1] USING (port)", "line 1, column 38: unexpected 'USING'"),
        ("b [ROWS 1] JOIN c [ROWS 1] ON", "line 1, column 42: ON has no condition"),
        ("b [ROWS 1], c [ROWS 1] ON b.port = c.port", "line 1, column 38: unexpected 'ON'"),
        ("b [ROWS 1] JOIN", "a stream name is missing"),
        ("b [ROWS 1],", "a stream name is missing"),
        ("b [ROWS 1], WHERE 1 = 1", "a stream name is missing"),
        ("b [ROWS 1], c [ROWS 1] WHERE", "line 1, column 38: WHERE has no condition"),
        ("b [ROWS 1] x y, c [ROWS 1]", "line 1, column 28: unexpected 'y'"),
        (
            "(SELECT * FROM b) x, c [ROWS 1]",
            "line 1, column 16: subqueries are supported in EXISTS (...) and IN (...) of WHERE only",
        ),
        ("(b [ROWS 1], c [ROWS 1])", "line 1, column 15: parentheses in FROM are not supported"),
        ("LATERAL explode(x)", "LATERAL is not supported"),
        ("range(10) [ROWS 1], c [ROWS 1]", "the table function 'range' is not supported; name a stream"),
        ("VALUES (1)", "VALUES is not supported; name a stream"),
        ("b [ROWS 1] AS x(k), c [ROWS 1]", "a list of column names after an alias is not supported"),
        ("b TABLESAMPLE (10 PERCENT), c [ROWS 1]", "TABLESAMPLE is not supported"),
    ],
)
def test_bad_sources(sources: str, message: str) -> None:
    assert message in str(refusal(f"SELECT * FROM {sources}"))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "the query is empty"),
        (" ;; ", "the query is empty"),
        ("INSERT INTO x SELECT 1", "line 1, column 1: only SELECT is supported, not 'INSERT'"),
        ("selec a", "line 1, column 1: only SELECT is supported, not 'selec'"),
        ("(SELECT 1)", "only SELECT is supported, not '('"),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "line 1, column 1: WITH (a common table expression) is not supported"),
        ("SELECT 1", "line 1, column 9: FROM is missing"),
        ("SELECT /* abc FROM b", "line 1, column 8: /* is opened and never closed"),
    ],
)
def test_bad_statement(sql: str, message: str) -> None:
    assert message in str(refusal(sql))


def test_kinds_of_errors() -> None:
    assert isinstance(refusal(f"SELECT a.nope {AB}"), UnknownColumn)
    assert isinstance(refusal(f"SELECT z.host {AB}"), UnknownColumn)
    error = refusal("SELECT * FROM b [ROWS 1],\n  packet_ams [ROWS 1]")
    assert isinstance(error, UnknownStream)
    assert str(error).startswith("line 2, column 3: unknown stream 'packet_ams'; did you mean 'packets_ams'? known: ")


def test_streams_that_no_equality_connects() -> None:
    sql = "SELECT a.ts FROM packets_ams [ROWS 1] a, b [ROWS 1], c [ROWS 1] WHERE a.host = b.host AND b.port < c.port"
    message = str(refusal(sql))
    assert "no equality joins the streams (a, b) and (c)" in message
    assert "add an equality between them, or set `allow_cross: true`" in message
    assert len(parse(sql, allow_cross=True).residuals) == 1


def test_columns_that_differ_only_in_case() -> None:
    with pytest.raises(SqlError, match="'p' has columns that differ only in case"):
        parse_query("SELECT q.k FROM p [ROWS 1], q [ROWS 1] WHERE p.k = q.k", {"p": ["k", "K"], "q": ["k"]})


WORDS = """
TUMBLE( sum( count(*) HAVING ORDER LIMIT USING EMIT CHANGES
SELECT FROM WHERE JOIN ON AND OR NOT = < ( ) [ ] , . * + a b c host port ts AS x 1 'y' BETWEEN IN CASE WHEN THEN END
ROWS RANGE MINUTE ->
:: ; GROUP BY LEFT INTERVAL lower cast DISTINCT IS NULL LIKE `q` struct ? / - 10L OVER a.ts b.port
"""
PLACES = [f"SELECT {{}} {AB}", f"SELECT a.ts {AB} AND {{}}", "SELECT b.ts FROM b [ROWS 1], {}", "{}"]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(sorted(WORDS.split())), max_size=14), st.sampled_from(PLACES))
def test_nonsense_is_refused_and_never_crashes(words: list[str], place: str) -> None:
    try:
        query = parse(place.format(" ".join(words)))
    except SqlError:
        return
    canonical_sql(query)


# ---- canonical text


GOLDEN = """\
SELECT DISTINCT
  lower(`a.host`) AS `h`,
  `b.port` AS `port`
FROM
  `packets_ams` [RANGE 1 MINUTE] AS `a`,
  `b` [ROWS 100] AS `b`,
  `My Stream` [TUMBLE 5 SECONDS] AS `m`
WHERE
  `a.host` = `b.host` AND
  `m.Key` = LEFT(`b.host`, 2) AND
  `a.bytes` IN (1, 2) AND
  NOT (`a.bytes` > `b.port` OR `b.port` <> 3)"""


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT lower(a.host) AS h, port FROM packets_ams [RANGE 1 MINUTE] AS a, b [ROWS 100], "
        "`My Stream` [TUMBLE 5 SECONDS] AS m WHERE a.host = b.host AND m.Key = LEFT(b.host, 2) AND a.bytes IN (1, 2) "
        "AND NOT (a.bytes > b.port OR b.port <> 3)",
        textwrap.dedent("""
        select distinct lower( A.host ) h, PORT -- the port
        from PACKETS_AMS a [range 60 seconds]
        join b [rows 100] on a.host==b.host
        join `my stream` m [tumble interval '5' second] on (key=left (b.host,2))
        where a.bytes in(1,2) and !(bytes>port or port!=3);"""),
    ],
)
def test_canonical_sql(sql: str) -> None:
    assert canonical_sql(parse(sql)) == GOLDEN


def test_canonical_sql_of_a_product() -> None:
    query = parse("SELECT b.port FROM b [UNBOUNDED], c [UNBOUNDED]", allow_cross=True)
    assert canonical_sql(query).endswith("FROM\n  `b` [UNBOUNDED] AS `b`,\n  `c` [UNBOUNDED] AS `c`")


CHANGES = "FROM packets_ams [RANGE 1 MINUTE] AS a, b [TUMBLE 5 MINUTES] WHERE a.host = b.host"


def test_changes_have_their_instant_and_whether_a_group_is_gone() -> None:
    query = parse(f"SELECT a.host, max(port) AS p {CHANGES} GROUP BY a.host EMIT CHANGES")
    assert [item.name for item in query.output] == ["host", "p", "changed_at", "deleted"]
    assert [item.name for item in query.select] == ["key0", "argument0", "time of a", "time of b", "time"]
    assert query.grouping is not None
    assert query.grouping.window == Changes(((2, Range(60_000_000)), (3, Tumble(300_000_000))), 1)
    named = parse(f"SELECT deleted AS gone, changed_at, count(*) AS n {CHANGES} EMIT CHANGES")
    assert [item.name for item in named.output] == ["gone", "changed_at", "n"]


def test_rows_of_a_subquery_expire_by_their_own_time() -> None:
    sql = "SELECT k, count(*) AS n FROM (SELECT k FROM a) [RANGE 5 SECONDS] v GROUP BY k EMIT CHANGES"
    *_, output = parse_script("q", sql, {"a": ["k", "ts"]}, event_times={"a": "ts"})
    ((_, query),) = output.branches
    assert [item.expression.sql for item in query.select if item.name == "time of v"] == ["`v.#ts`"]
    assert query.grouping is not None and query.grouping.changes.ends == ((1, Range(5_000_000)),)


@pytest.mark.parametrize(
    ("select", "tail", "message"),
    [
        ("count(*) AS deleted", "", "EMIT CHANGES adds a column 'deleted'; name the output column"),
        ("count(*) AS n, date(changed_at) AS d", "", "changed_at can only be an output column by itself"),
        ("count(*) AS n", "HAVING deleted", "deleted cannot be in HAVING"),
        ("count(*) + rand() AS n", "", "rand is not deterministic and so cannot be in a query with EMIT CHANGES"),
        ("count(*) AS n", "ORDER BY n LIMIT 3", "ORDER BY and LIMIT cannot be with EMIT CHANGES"),
    ],
)
def test_bad_changes(select: str, tail: str, message: str) -> None:
    assert message in str(refusal(f"SELECT {select} {CHANGES} {tail} EMIT CHANGES"))
