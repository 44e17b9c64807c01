"""What queries share at their sites: streams read once, indexes, shipments, joins; and what they do not."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, product

import pytest
from program.site.engines import Engines
from sim.sites.streams import SECOND, at, expected, parsed, table

from watersmeet.plan.nodes import HashParts, Hop, Method, Partition, Plan, join_plan_of, with_join
from watersmeet.planners.local import local, symmetric
from watersmeet.planners.sited import central, explicit
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.probe_groups import probe_groups
from watersmeet.program.site.program import SiteProgram
from watersmeet.query.bags import Bag
from watersmeet.query.model import Column, Expression
from watersmeet.sim.sites.trial import SCHEMA

COLUMNS = dict.fromkeys("abc", SCHEMA.names)
JOIN = "FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k"


def here(sql: str) -> Plan:
    """A query over streams at one site."""
    return local(parsed(sql, "abc"), COLUMNS, "n1")


def shipped(sql: str, site: str = "n0") -> Plan:
    """A query over streams at n1, n2 and n3 that go to one site."""
    return central(parsed(sql, "abc"), COLUMNS, {"a": "n1", "b": "n2", "c": "n3"}, site)


def programs(plans: Mapping[str, Plan], starts_us: Mapping[str, int | None] | None = None) -> dict[str, SiteProgram]:
    return overlay(shared_joins(plans, starts_us or {}))


def indexes(program: SiteProgram) -> dict[str, list[str]]:
    return {flow: [index.relation for index in found] for flow, found in sorted(program.indexes.items())}


# One scan a stream


def test_a_stream_is_read_once_with_what_any_query_needs() -> None:
    (program,) = programs(
        {
            "q1": here(f"SELECT a.id AS a, b.m AS m {JOIN}"),
            "q2": here("SELECT a.s AS s FROM a [ROWS 3], c [UNBOUNDED] WHERE a.m = c.m AND lower(a.s) = lower(c.s)"),
        }
    ).values()
    scans = {scan.stream: scan for scan in program.streams}
    assert sorted(scans) == ["a", "b", "c"]
    assert scans["a"].columns == ("a.id", "a.s", "a.=lower(`a.s`)")
    assert [key.expression.sql for key in scans["a"].keys] == ["`a.k`", "`a.m`", "lower(`a.s`)"]
    assert [key.exact for key in scans["a"].keys] == [True, True, False]
    assert [(one.keys, one.count) for one in scans["a"].selections] == [((0,), None), ((1, 2), 3)]
    assert scans["a"].users == {"a.id": (0,), "#0": (0,), "a.s": (1,), "a.=lower(`a.s`)": (1,), "#1": (1,), "#2": (1,)}
    assert scans["b"].columns == ("b.m",) and scans["c"].columns == ("c.=lower(`c.s`)",)
    assert program.ordered == ("a",) and program.eager == {"a", "b", "c"}


def test_aliases_may_be_called_differently() -> None:
    """The same expression, filter and key under two names is one."""
    (program,) = programs(
        {
            "q1": here("SELECT x.id AS a FROM a [RANGE 9 SECONDS] AS x, b [ROWS 2] AS y WHERE x.k = y.k AND x.id > 1"),
            "q2": here("SELECT y.id AS a FROM a [RANGE 2 SECONDS] AS y, c [ROWS 2] AS x WHERE y.k = x.k AND y.id > 1"),
        }
    ).values()
    scan = next(scan for scan in program.streams if scan.stream == "a")
    assert (scan.columns, len(scan.keys), len(scan.selections)) == (("a.id",), 1, 1)
    assert scan.selections[0].condition == "(`a.id` > 1)"


def test_the_order_of_filters_does_not_matter() -> None:
    (program,) = programs(
        {
            "q1": here(f"SELECT a.id AS a {JOIN} AND a.id > 1 AND a.m < 5"),
            "q2": here("SELECT a.id AS a FROM a [ROWS 9], b [ROWS 9] WHERE a.m < 5 AND a.k = b.k AND a.id > 1"),
            "q3": here("SELECT a.id AS a FROM a [ROWS 9], c [ROWS 9] WHERE a.id > 1 AND a.k = c.k AND a.m < 5"),
        }
    ).values()
    scan = next(scan for scan in program.streams if scan.stream == "a")
    assert [one.count for one in scan.selections] == [None, 9], "a window over time, and one of rows for both others"


# One index a key


def test_queries_with_the_same_key_share_an_index() -> None:
    (program,) = programs(
        {
            "q1": here(f"SELECT a.id AS a {JOIN}"),
            "q2": here("SELECT a.m AS m FROM a [TUMBLE 60 SECONDS], c [UNBOUNDED] WHERE a.k = c.k"),
        }
    ).values()
    assert indexes(program) == {"a": ["a/0"], "b": ["b/0"], "c": ["c/0"]}
    (index,) = program.indexes["a"]
    assert index.selections == (0,), "neither has a filter: all rows, and no bits"


def test_another_key_and_rows_in_order_have_indexes_of_their_own() -> None:
    (program,) = programs(
        {
            "q1": here(f"SELECT a.id AS a {JOIN}"),
            "q2": here(f"SELECT a.id AS a {JOIN} AND a.m = b.m"),
            "q3": here("SELECT a.id AS a FROM a [ROWS 3], b [RANGE 1 SECOND] WHERE a.k = b.k"),
        }
    ).values()
    assert indexes(program) == {"a": ["a/0", "a/0-1"], "a in order": ["a in order/0"], "b": ["b/0", "b/0-1"]}
    assert [index.classes for index in program.indexes["a"]] == [(), (0, 1)], "class columns that are compared"


def test_an_index_has_the_rows_that_any_of_its_queries_selects() -> None:
    (program,) = programs(
        {
            "q1": here(f"SELECT a.id AS a {JOIN} AND a.id > 1"),
            "q2": here(f"SELECT a.id AS a {JOIN} AND a.id < 9"),
            "q3": here("SELECT a.id AS a FROM a [ROWS 2], b [RANGE 9 SECONDS] WHERE a.m = b.m"),
        }
    ).values()
    assert [index.selections for index in program.indexes["a"]] == [(0, 1)]
    assert program.stored["a"].selections == (0, 1, 2)
    assert [program.stored["a"].bit(selection) for selection in range(3)] == [0, 1, 2]
    assert program.stored["b"].bit(0) == 0 and [one.selections for one in program.indexes["b"]] == [(0,), (1,)]


def test_a_self_join_stores_its_stream_once() -> None:
    sql = "SELECT x.id AS x, y.id AS y FROM a [RANGE 9 SECONDS] AS x, a [RANGE 2 SECONDS] AS y WHERE x.k = y.k"
    (program,) = programs({"q": here(sql)}).values()
    assert indexes(program) == {"a": ["a/0"]} and len(program.streams[0].selections) == 1
    (other,) = programs({"q": here(sql.replace("x.k = y.k", "x.k = y.m"))}).values()
    assert indexes(other) == {"a": ["a/0", "a/1"]}


# One shipment a flow


def test_a_stream_crosses_a_link_once() -> None:
    found = programs(
        {
            "q1": shipped(f"SELECT a.id AS a {JOIN} AND a.id > 1"),
            "q2": shipped("SELECT a.s AS s FROM a [TUMBLE 60 SECONDS], c [UNBOUNDED] WHERE a.m = c.m"),
        }
    )
    (shipment,) = found["n1"].shipments
    assert (shipment.flow, shipment.to, shipment.arrives_as) == ("a", "n0", "a")
    assert shipment.columns == ("a.id", "a.s") and shipment.keys == (0, 1) and shipment.selections == (0, 1)
    assert found["n0"].inbound[0] == ("n1", shipment)
    assert found["n0"].stored["a"].selections == (0, 1) and found["n0"].streams == ()
    assert found["n1"].away == {"a"} and found["n0"].away == frozenset()


def test_a_stream_takes_to_each_site_what_is_needed_there() -> None:
    found = programs(
        {
            "q1": shipped(f"SELECT a.id AS a {JOIN} AND a.id > 1", "n2"),
            "q2": shipped("SELECT a.s AS s FROM a [ROWS 4], c [UNBOUNDED] WHERE a.m = c.m", "n3"),
        }
    )
    assert [(one.flow, one.to, one.columns, one.keys, one.selections) for one in found["n1"].shipments] == [
        ("a", "n2", ("a.id",), (0,), (0,)),
        ("a in order", "n3", ("a.s",), (1,), (1,)),
        ("clock of a", "n3", None, (), ()),
    ]
    assert found["n2"].stored["a"].bit(0) is None, "all rows that come here fulfil it"
    assert tuple(found["n1"].flows_to("n3")) == tuple(sent for sender, sent in found["n3"].inbound if sender == "n1")


def test_answers_of_a_shared_join_cross_a_link_once() -> None:
    queries = {"q1": f"SELECT a.id AS a {JOIN}", "q2": f"SELECT b.s AS s, a.id AS a {JOIN}"}
    homes, hops = {"a": "n1", "b": "n2", "c": "n3"}, {"a": [Hop("b", Method.SP_D)], "b": [Hop("a", Method.SP_S)]}
    plans = {name: explicit(parsed(sql, "abc"), COLUMNS, homes, "n0", hops) for name, sql in queries.items()}
    found = programs(plans)
    assert [one.arrives_as for one in found["n2"].shipments] == ["q1:answers(a)", "q1:answers(b)"]
    (part,) = found["n0"].parts
    assert part.queries == ("q1", "q2") and [finish.query for finish in part.finishes] == ["q1", "q2"]
    assert part.join.output == ("a.id", "b.s") and found["n2"].parts[0].finishes == ()


# One join


@pytest.mark.parametrize(
    ("other", "joins"),
    [
        (f"SELECT b.s AS s, a.id + 1 AS a {JOIN}", 1),
        (f"SELECT DISTINCT a.m AS m {JOIN}", 1),
        (f"SELECT a.id AS a {JOIN} AND a.id < b.id", 1),
        (f"SELECT a.id AS a {JOIN} AND a.id < 7", 2),
        (f"SELECT a.id AS a {JOIN} AND a.m = b.m", 2),
        (f"SELECT a.id AS a {JOIN.replace('9', '8')}", 2),
    ],
)
def test_queries_that_differ_above_the_join_share_it(other: str, joins: int) -> None:
    plans = {"q1": here(f"SELECT a.id AS a {JOIN}"), "q2": here(other)}
    assert len(shared_joins(plans, {})) == joins
    assert len(shared_joins(plans, {"q2": 5})) == 2, "from another start on, it is another join"


def test_equalities_said_in_another_way_are_compared_by_all() -> None:
    """Keys that are hashed are compared for real, whichever of several equal equalities a query has."""
    froms = "FROM a [UNBOUNDED], b [UNBOUNDED], c [UNBOUNDED]"
    sqls = [
        f"SELECT a.id AS a {froms} WHERE a.s = b.s AND b.s = c.s",
        f"SELECT b.id AS b {froms} WHERE a.s = c.s AND c.s = b.s",
    ]
    sites = Engines({f"q{n}": here(sql) for n, sql in enumerate(sqls)})
    rows = dict.fromkeys("abc", table([(1, 1, "x", 1), (1, 1, "y", 2)]))
    sites.run("n1", rows)
    for number, sql in enumerate(sqls):
        assert sites.answers(f"q{number}") == expected(parsed(sql, "abc"), rows)


# More selections than a column has bits


@pytest.mark.parametrize("window", ["[RANGE 9 SECONDS]", "[ROWS 3]"])
@pytest.mark.parametrize("is_remote", [False, True])
def test_a_hundred_filters_are_bits_of_two_columns(window: str, is_remote: bool) -> None:
    sqls = {
        f"q{n}": f"SELECT a.id AS a, b.id AS b FROM a {window}, b {window} WHERE a.k = b.k AND a.id <> {n}"
        for n in range(100)
    }
    sites = Engines({name: shipped(sql) if is_remote else here(sql) for name, sql in sqls.items()})
    rows = {"a": at(*range(1, 6)), "b": at(2.5, 4.5)}
    last = {"a": at(60, k=7), "b": at(60, k=8)}  # moves the watermarks
    if is_remote:
        assert len(sites.engines["n1"].program.shipments) == (1 if "RANGE" in window else 2)
        for one in (rows, last):
            for site, stream in (("n1", "a"), ("n2", "b")):
                sites.run(site, {stream: one[stream]})
        sites.run("n0", parcels=[*sites.parcels("n1", "n0"), *sites.parcels("n2", "n0")])
    else:
        sites.run("n1", rows)
        sites.run("n1", last)
    home = sites.engines["n1"].program
    assert len(home.stored["a"].selections) == 100 and home.stored["a"].bit(99) == 99
    other = sites.engines["n2" if is_remote else "n1"].program
    assert len(other.stored["b"].selections) == 1 and other.stored["b"].bit(0) is None
    for name, sql in sqls.items():
        assert sites.answers(name) == expected(parsed(sql, "ab"), rows), name
    assert sites.answers("q3") != sites.answers("q99")


# Partitions


@pytest.mark.parametrize(
    ("where", "partition_key"),
    [
        ("x.m = y.m AND x.k = z.k AND x.m = z.m AND z.m = w.m", "x.k"),  # y does not have it
        ("x.k = y.m AND x.s = z.s AND y.s = z.s AND w.s = z.s", "x.k"),  # in y it is m, in z and w it is not
    ],
)
def test_aliases_of_a_stream_that_have_the_partitions_key_elsewhere_have_indexes_of_their_own(
    where: str, partition_key: str
) -> None:
    """The rows of a sub-plan may be others for each alias, although they are looked up by the same key."""
    select = ", ".join(f"{alias}.id AS {alias}" for alias in "xyzw")
    froms = "a [UNBOUNDED] AS x, a [UNBOUNDED] AS y, b [UNBOUNDED] AS z, b [UNBOUNDED] AS w"
    query = parsed(f"SELECT {select} FROM {froms} WHERE {where}", "ab")
    orders = {"x": "yzw", "y": "xzw", "z": "xyw", "w": "yxz"}
    hops = {head: [Hop(alias, Method.SP_D) for alias in others] for head, others in orders.items()}
    plan = explicit(query, COLUMNS, dict.fromkeys("ab", "n1"), "n1", hops)
    join = join_plan_of(plan)
    member = Expression(f"`{partition_key}`", (Column(*partition_key.split(".")),), "bigint")
    (number,) = (one.number for one in join.classes if member in one.members)
    sub_plans = (join.sub_plans[0], symmetric(query.aliases, join.classes, "n1"))
    parted = replace(join, sub_plans=sub_plans, partition=Partition(number, HashParts((0, 1, 1, 0))))
    sites = Engines(with_join(plan, parted))
    rows = {
        "a": table([(n % 3, (n + 1) % 3, "xy"[n % 2], n) for n in range(10)]),
        "b": table([(n % 3, n % 2, "xy"[n // 3 % 2], n) for n in range(10)]),
    }
    for low in (0, 5):
        sites.run("n1", {name: whole.slice(low, 5) for name, whole in rows.items()})
    assert sites.answers().total() > 20
    assert sites.answers() == expected(query, rows)


def test_a_site_that_only_answers_does_something_and_one_without_anything_does_not() -> None:
    found = overlay(shared_joins({"q": shipped(f"SELECT a.id AS a {JOIN}")}, {}), ["n0", "n1", "n2", "n9"])
    assert {name: program.does_nothing for name, program in found.items()} == {
        "n0": False,
        "n1": False,
        "n2": False,
        "n9": True,
    }
    assert found["n0"].peers_in == ("n1", "n2") and found["n1"].peers_out == ("n0",)


def test_a_start_is_part_of_a_selection() -> None:
    sql = f"SELECT a.id AS a, b.id AS b {JOIN}"
    sites = Engines({"q1": here(sql), "q2": here(sql)}, starts_us={"q2": 3 * SECOND})
    scan = sites.engines["n1"].program.streams[0]
    assert [one.start_us for one in scan.selections] == [None, 3 * SECOND]
    assert len(sites.engines["n1"].program.indexes["a"]) == 1, "one index for both"
    sites.run("n1", {"a": at(2, 3), "b": at(4)})
    assert (sites.answers("q1"), sites.answers("q2")) == (Bag({(0, 0): 1, (1, 0): 1}), Bag({(1, 0): 1}))


# Probes done together


def groups(plans: Mapping[str, Plan]) -> list[list[str]]:
    """The joins whose probes of head a are done together at n1."""
    program = programs(plans)["n1"]
    found, _ = probe_groups(program, [(part.name, operator) for part, operator in program.operators])
    return [[name for name, _ in group.members] for group in found if group.members[0][1].head == "a"]


def test_probes_that_differ_in_filters_columns_and_names_are_done_together() -> None:
    sqls = [
        f"SELECT a.id AS a {JOIN} AND a.id > 1",
        f"SELECT b.s AS s, a.m AS m {JOIN} AND b.m = 1 AND a.id < 9",
        f"SELECT a.id AS a {JOIN.replace('9', '8')}",
        f"SELECT a.id AS a {JOIN} AND a.m = b.m",
        "SELECT a.id AS a FROM a [ROWS 9], b [RANGE 9 SECONDS] WHERE a.k = b.k",
    ]
    assert groups({f"q{n}": here(sql) for n, sql in enumerate(sqls)}) == [["q0", "q1"]]


def test_sixty_four_probes_at_most_are_done_together() -> None:
    plans = {f"q{n}": here(f"SELECT a.id AS a {JOIN} AND a.id <> {n}") for n in range(130)}
    assert [len(members) for members in groups(plans)] == [64, 64, 2]
    assert groups({f"q{n}": here(f"SELECT a.id AS a {JOIN} AND a.id <> {n}") for n in range(257)}) == [], (
        "more selections of a stream than kernels take"
    )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("count", "window"),
    [*product([2, 70], ["[RANGE 9 SECONDS]", "[TUMBLE 9 SECONDS]", "[ROWS 4]", "[UNBOUNDED]"]), (260, "[ROWS 4]")],
)
def test_queries_whose_probes_are_done_together_answer_as_if_alone(count: int, window: str) -> None:
    froms = f"FROM a {window}, b {window}, c {window} WHERE a.k = b.k AND b.k = c.k AND a.m = c.m"
    sqls = {
        f"q{n}": f"SELECT a.id AS a, b.id AS b, c.{name} AS c {froms} AND a.id % {2 + n} <> 0 AND c.id <> {n % 5}"
        for n, name in zip(range(count), cycle("ks"), strict=False)
    }
    sites = Engines({name: here(sql) for name, sql in sqls.items()}, buckets=2)
    program = sites.engines["n1"].program
    together, _ = probe_groups(program, [(part.name, operator) for part, operator in program.operators])
    assert (
        sorted(len(group.members) for group in together if group.members[0][1].head == "b")
        == ({2: [2], 70: [6, 64], 260: []}[count])
    )
    rows = {
        name: table([(n * step % 2, n % 3 // 2, "xy"[n % 2], n) for n in range(8)])
        for step, name in enumerate("abc", start=1)
    }
    closing = {name: table([(-number, 1, "x", 900)]) for number, name in enumerate("abc", start=1)}
    for batch in (*({name: whole.slice(low, 4) for name, whole in rows.items()} for low in (0, 4)), closing):
        sites.run("n1", batch)
    for name in (f"q{n}" for n in {0, 1, *range(0, count, 13), count - 1}):
        assert sites.answers(name) == expected(parsed(sqls[name], "abc"), rows), name
    assert sites.answers("q1").total() > 5
