"""What is different between two topologies, and what of it is refused while queries run."""

from dataclasses import replace
from typing import Any

import pytest

import watersmeet as wm
from watersmeet.topology.difference import differences
from watersmeet.topology.model import Link, LinkTransport, Site, Table
from watersmeet.topology.views import outputs_of

SCHEMA = "k long, v double, ts timestamp"
SQL = "SELECT a.v, b.v AS w FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def stream(name: str, site: str = "ams", **settings: Any) -> wm.Stream:
    return wm.Stream(name, "ts", SCHEMA, wm.Source("parquet", f"data/{name}"), site=site, **settings)


def query(name: str, sql: str = SQL, **settings: Any) -> wm.Query:
    return wm.Query(name, sql, site="nyc", sink=wm.Sink("parquet", f"out/{name}"), **settings)


NOW = wm.Topology(
    (stream("a"), stream("b", "nyc"), stream("c")),
    (query("q"), query("other", f"{SQL} AND a.v > 1")),
    (Site("ams"), Site("nyc")),
)


def changed(**settings: Any) -> wm.Topology:
    return replace(NOW, **settings)


def with_queries(*queries: wm.Query) -> wm.Topology:
    return replace(NOW, queries=queries)


def with_stream(name: str, **settings: Any) -> wm.Topology:
    some = tuple(replace(one, **settings) if one.name == name else one for one in NOW.streams)
    return replace(NOW, streams=some)


def rows(after: wm.Topology) -> list[tuple[str, str, str]]:
    return [(row.kind, row.name, row.change) for row in differences(NOW, after).rows]


def test_the_same_queries_written_differently_are_no_difference() -> None:
    assert rows(with_queries(query("other", f"{SQL}   and a.v>1"), query("q", f"\n{SQL}"))) == []


def test_queries_come_go_and_are_replaced_with_the_streams_that_they_read() -> None:
    new = query("new", "SELECT c.v FROM c [RANGE 1 SECOND], c [RANGE 1 SECOND] AS d WHERE c.k = d.k")
    found = differences(NOW, with_queries(replace(NOW.queries[0], sql=f"{SQL} AND b.v > 2"), new))
    assert (found.added, found.removed, found.replaced, found.refused) == (("new",), ("other",), ("q",), "")
    assert {(row.kind, row.name, row.change) for row in found.rows} == {
        ("query", "new", "new"),
        ("sink", "new", "new"),
        ("query", "other", "ends"),
        ("query", "q", "replaced"),
        ("stream", "c", "begins"),
    }
    only = differences(with_queries(*NOW.queries, new), NOW)
    assert [(row.kind, row.name, row.change) for row in only.rows] == [
        ("query", "new", "ends"),
        ("stream", "c", "ends"),
    ]


def test_links_and_settings_of_planners_let_queries_be_planned_again() -> None:
    link = changed(links=(Link(("nyc", "ams"), latency_us=80_000),))
    assert differences(NOW, link).replanned == ("q", "other") and rows(link) == [("link", "ams - nyc", "changed")]
    planned = with_queries(replace(NOW.queries[0], planner="greedy"), NOW.queries[1])
    assert differences(NOW, planned).replanned == ("q",) and rows(planned) == [("plan", "q", "planned again")]
    assert rows(with_stream("a", idle_timeout="1 minute")) == [("stream", "a", "other idle_timeout")]


REFUSED = {
    "its schema cannot change while it is read, since rows in windows": with_stream("a", schema=f"{SCHEMA}, more int"),
    "its watermark cannot change": with_stream("a", watermark="1 second"),
    "its site cannot change while it is read, since its rows are kept at": with_stream("a", site="nyc"),
    "its source cannot change": with_stream("a", source=wm.Source("parquet", "elsewhere")),
    "its sink cannot be another one": with_queries(replace(NOW.queries[0], sink=wm.Sink()), NOW.queries[1]),
    "cannot move to ams": with_queries(replace(NOW.queries[0], site="ams"), NOW.queries[1]),
    "link_transport: parcels are on their way": changed(link_transport=LinkTransport(path="links")),
    "durability is decided at the start": changed(durability="process"),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_what_cannot_change_while_queries_run_is_refused(cause: str) -> None:
    assert cause in differences(NOW, REFUSED[cause]).refused


def test_what_nobody_reads_may_change() -> None:
    assert rows(with_stream("c", schema="k int, ts timestamp")) == []


def test_tables_come_and_go_with_the_queries_that_read_them_and_do_not_change() -> None:
    table = Table("t", source=wm.Source("csv", "t.csv"), schema="k long, r string", site="nyc")
    now = changed(tables=(table,))
    new = query("new", "SELECT a.v, t.r FROM a [RANGE 1 SECOND], t WHERE a.k = t.k")
    more = replace(now, queries=(*NOW.queries, new))
    assert ("table", "t", "begins") in {(row.kind, row.name, row.change) for row in differences(now, more).rows}
    assert ("table", "t", "ends") in {(row.kind, row.name, row.change) for row in differences(more, now).rows}
    read_again = replace(more, queries=(*NOW.queries, replace(new, read_as=(("t", "t~2"),))))
    assert differences(read_again, more).rows == (), "how often a table was read is no difference"
    other = replace(more, tables=(replace(table, schema="k long, r int"),))
    assert differences(more, other).refused.startswith("table 't' cannot change while queries read it; give it another")
    assert not differences(now, replace(now, tables=())).rows


def test_a_statement_of_several_selects_begins_and_ends_as_a_whole() -> None:
    union = query("u", "SELECT a.v FROM a UNION ALL SELECT b.v FROM b")
    found = differences(NOW, with_queries(*NOW.queries, union))
    assert (found.added, found.begun, found.ended, found.refused) == (("u",), ("u", "u_2"), (), "")
    gone = differences(with_queries(*NOW.queries, union), NOW)
    assert (gone.removed, gone.begun, gone.ended) == (("u",), (), ("u", "u_2"))
    shorter = with_queries(*NOW.queries, replace(union, sql="SELECT a.v FROM a"))
    found = differences(with_queries(*NOW.queries, union), shorter)
    assert (found.replaced, found.begun, found.ended) == (("u",), ("u",), ("u_2",))


def test_one_query_has_to_be_left() -> None:
    with pytest.raises(wm.InputError, match="no query would be left; stop the run instead"):
        differences(NOW, with_queries())


def test_views_are_planned_again_by_their_settings_and_stay_where_they_are() -> None:
    view = wm.Query("v", SQL, site="nyc")
    now = replace(NOW, views=(view,), queries=(query("over", "SELECT w FROM v"), NOW.queries[0]))
    planned = differences(now, replace(now, views=(replace(view, planner="greedy"),)))
    assert planned.replanned == ("over",) and not planned.refused
    assert [(row.name, row.change, row.detail) for row in planned.rows] == [
        ("over", "planned again", "planner of view v")
    ]
    moved = differences(now, replace(now, views=(replace(view, site="ams"),)))
    assert moved.refused.startswith("view 'v': its site cannot change while queries read it; ")
    other = differences(now, replace(now, views=(replace(view, sql=f"{SQL} AND a.v > 1"),)))
    assert (other.replaced, other.begun, other.ended, other.refused) == (("over",), ("over", "v"), (), "")
    assert ("view", "v", "replaced") in {(row.kind, row.name, row.change) for row in other.rows}
    second = replace(now, queries=(*now.queries, query("third", "SELECT w FROM v WHERE w > 1")))
    assert differences(now, second).begun == ("third",), "the view goes on"
    assert differences(second, now).ended == ("third",)
    without = differences(now, replace(now, queries=now.queries[1:]))
    assert (without.removed, without.ended) == (("over",), ("over", "v"))
    unread = differences(now, replace(now, views=(view, wm.Query("w", "SELECT v FROM a"))))
    assert not unread.rows
    gone = differences(now, replace(now, queries=now.queries[:1]))
    assert gone.removed == ("q",) and not gone.refused


def test_names_that_selects_are_given_are_not_those_of_queries() -> None:
    union = query("u", "SELECT v FROM a UNION ALL SELECT v FROM b")
    with pytest.raises(wm.InputError, match="a SELECT of 'u' is given the name 'u_2', which is taken by 'u_2'; ren"):
        outputs_of(with_queries(union, query("u_2")), [union])
