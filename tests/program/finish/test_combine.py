"""Finished combinations: values behind hashed keys are compared, and only the columns asked for are left."""

import pyarrow as pa
from sim.sites.streams import parsed

from watersmeet.plan.nodes import JoinPlan, join_plan_of
from watersmeet.planners.local import local
from watersmeet.program.finish.combine import ROW, finished, output_columns
from watersmeet.program.finish.model import answer_column, finish_of
from watersmeet.sim.sites.trial import SCHEMA

FROM = "FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.s = b.s"
COLUMNS = dict.fromkeys("ab", SCHEMA.names)


def join_of(sql: str) -> JoinPlan:
    return join_plan_of(local(parsed(sql, "ab"), COLUMNS, "n1"))


def test_combinations_whose_hashes_are_equal_and_values_not_are_dropped() -> None:
    columns = {"a.s": pa.array(["x", "y", "x"]), "b.s": pa.array(["x", "x", "x"]), "a.id": pa.array([1, 2, 3])}
    table = finished(join_of(f"SELECT a.id AS a {FROM}"), columns, 3)
    assert table.to_pydict() == {"a.id": [1, 3]}


def test_combinations_of_which_no_column_is_asked_for_are_counted() -> None:
    join = join_of(f"SELECT 1 AS one {FROM}")
    columns = {"a.s": pa.array(["x", "y", "x"]), "b.s": pa.array(["x", "x", "x"])}
    assert output_columns(join) == (ROW,)
    assert finished(join, columns, 3).num_rows == 2


def test_answers_that_are_plain_columns_need_no_evaluation() -> None:
    def plain(sql: str) -> tuple[tuple[str, str], ...] | None:
        return finish_of("q", local(parsed(sql, "ab"), COLUMNS, "n1")).plain

    assert plain(f"SELECT a.id AS x, b.s AS y, a.id AS z {FROM}") == (("a.id", "x"), ("b.s", "y"), ("a.id", "z"))
    assert plain(f"SELECT a.id + 1 AS x {FROM}") is None
    assert plain(f"SELECT DISTINCT a.id AS x {FROM}") is None
    assert plain(f"SELECT a.id AS x {FROM} AND a.id < b.id") == (("a.id", "x"),), "the join has compared them"
    assert plain(f"SELECT a.id AS x {FROM} AND a.id % 7 < b.id") is None


def test_what_is_above_a_join_is_known_by_query() -> None:
    finish = finish_of("q", local(parsed(f"SELECT DISTINCT a.id AS x {FROM} AND a.id % 7 < b.id", "ab"), COLUMNS, "n1"))
    assert (finish.query, finish.names, finish.distinct, len(finish.predicates)) == ("q", ("x",), True, 1)
    assert finish.columns == ("a.id", "b.id")
    assert [answer_column(number) for number in range(2)] == ["c0", "c1"]
