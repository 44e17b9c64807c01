"""How aliases see the rows of a stream that are stored."""

from sim.sites.streams import parsed

from watersmeet.plan.nodes import join_plan_of
from watersmeet.planners.local import local
from watersmeet.program.site.streams import stream_tables
from watersmeet.sim.sites.trial import SCHEMA


def test_an_alias_sees_stored_columns_under_its_own_names() -> None:
    columns = dict.fromkeys("ab", SCHEMA.names)
    sql = (
        "SELECT x.id AS i, y.s AS s FROM a [RANGE 9 SECONDS] AS x, a [ROWS 5] AS y, b [UNBOUNDED] AS z "
        "WHERE x.k = y.m AND y.m = z.k AND lower(x.s) = lower(z.s) AND y.id > 3"
    )
    join = join_plan_of(local(parsed(sql, "ab"), columns, "n1"))
    scans, views = stream_tables([("q", join, None)])
    x, y, z = (views["q", alias] for alias in "xyz")
    assert (x.flow, y.flow, z.flow) == ("a", "a in order", "b")
    assert dict(x.columns) == {"x.id": "a.id", "x.=lower(`x.s`)": "a.=lower(`a.s`)"}
    assert dict(y.columns) == {"y.s": "a.s"} and dict(z.columns) == {"z.=lower(`z.s`)": "b.=lower(`b.s`)"}
    assert [key.expression.sql for key in scans["a"].keys] == ["`a.k`", "lower(`a.s`)", "`a.m`"]
    assert x.keys == {0: 0, 1: 1} and y.keys == {0: 2} and z.keys == {0: 0, 1: 1}
    assert [(one.condition, one.keys, one.count) for one in scans["a"].selections] == [
        ("", (0, 1), None),
        ("(`a.id` > 3)", (2,), 5),
    ]
    assert (x.selection, y.selection, z.selection) == (0, 1, 0)


def test_equal_keys_of_different_types_are_different_columns() -> None:
    """A whole number is a key of itself in one query, and hashed in another that compares it with text."""
    columns = dict.fromkeys("ab", SCHEMA.names)
    sqls = [f"SELECT a.id AS i FROM a [ROWS 1], b [ROWS 1] WHERE a.k = b.{name}" for name in ("k", "s")]
    joins = [(f"q{n}", join_plan_of(local(parsed(sql, "ab"), columns, "n1")), None) for n, sql in enumerate(sqls)]
    scans, views = stream_tables(joins)
    assert [(key.expression.sql, key.exact) for key in scans["a"].keys] == [("`a.k`", True), ("`a.k`", False)]
    assert views["q0", "a"].keys == {0: 0} and views["q1", "a"].keys == {0: 1}
