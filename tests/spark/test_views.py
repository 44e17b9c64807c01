"""Views on Spark: chains, unions and subqueries, at one site and at several, through crashes, with Spark's types."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenes import Bag, Scene, by_arrow, latest_us, make_batches, wait_for

import watersmeet as wm
from watersmeet.query.oracle import answer_outputs
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.ingest.derived import SparkDerivation
from watersmeet.testing import bag
from watersmeet.topology.views import outputs_of

VIEWS = {
    "pairs": """SELECT a.k, a.id AS ai, b.id AS bi, lower(a.s) AS s FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS]
        WHERE a.k = b.k AND a.v < b.v""",
    "kinds": "SELECT DISTINCT m, s FROM b WHERE v > 1",
    "busy": "SELECT k, count(*) AS n, max(ai) AS most FROM pairs GROUP BY k, TUMBLE(3 SECONDS)",
}
QUERIES = {
    # A group of a view of a view with a stream: keys that are columns, and keys that are hashed expressions.
    "joined": """SELECT p.ai, p.bi, c.id FROM pairs [RANGE 2 SECONDS] p, c [RANGE 4 SECONDS]
        WHERE p.s = c.s AND p.ai % 2 = 0""",
    "grouped": "SELECT b.n, b.most, c.id FROM busy [RANGE 6 SECONDS] b, c [RANGE 6 SECONDS] WHERE b.k = c.k",
    "united": """WITH every AS (SELECT k, id FROM a UNION ALL SELECT m, id FROM b WHERE v > 2)
        SELECT e.k, e.id, c.id AS ci FROM every [RANGE 1 SECOND] e, c [RANGE 1 SECOND] WHERE e.k = c.k
        UNION ALL SELECT k, n, 0 FROM busy""",
    "running": """SELECT p.k, count(*) AS n, max(c.id) AS most FROM pairs [RANGE 1 SECOND] p, c [RANGE 2 SECONDS]
        WHERE p.k = c.k GROUP BY p.k EMIT CHANGES""",
    "first": "SELECT d.m, d.s, c.id FROM kinds [RANGE 2 SECONDS] d, c [RANGE 2 SECONDS] WHERE d.s = c.s",
}


def make_scene(directory: Path, queries: dict[str, str], **where: Any) -> Scene:
    batches = {
        name: make_batches(number + 5, 4, 40, keys=12, texts=12, trouble=0.01) for number, name in enumerate("abc")
    }
    return Scene(directory, batches, queries, views=VIEWS, **where)


def expected(scene: Scene) -> dict[str, Bag]:
    """The answers of the reference semantics over the rows that take part."""
    topology, tables = scene.topology, scene.taken()
    marks = {name: latest_us(batches) - scene.delay_us for name, batches in scene.batches.items()}
    outputs = [one.output for one in outputs_of(topology, topology.queries)]
    found = answer_outputs(outputs, tables, dict.fromkeys(tables, "ts"), watermarks_us=marks)
    return {name: bag(found[name]) for name in scene.queries}


def check(scene: Scene) -> None:
    for name, answers in expected(scene).items():
        assert answers.total() > 20, "an answer that says nothing"
        assert by_arrow(scene.sink(name)) == answers, name
    scene.check_ledgers()


@pytest.mark.soak
def test_views_survive_crashes_before_their_rows_are_filed_and_before_they_are_committed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(tmp_path, QUERIES).write()
    for owner, name, number in ((SparkDerivation, "__call__", 3), (Checkpoint, "commit", 4)):
        calls: list[int] = []
        with monkeypatch.context() as patch:
            function = getattr(owner, name)

            def failing(*arguments: Any, calls: list[int] = calls, at: int = number, do: Any = function) -> Any:
                calls.append(1)
                if len(calls) >= at:
                    raise wm.WatersmeetError("a crash")
                return do(*arguments)

            patch.setattr(owner, name, failing)
            with pytest.raises(wm.WatersmeetError, match="a crash"):
                scene.run(spark)
    scene.run(spark)
    check(scene)


def test_views_at_several_sites(spark: Any, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, QUERIES, homes={"a": "ams", "b": "nyc", "c": "nyc"}, site="nyc").write()
    scene.run(spark)
    check(scene)


def test_branches_of_a_union_have_the_types_of_spark(spark: Any, tmp_path: Path) -> None:
    sql = "SELECT k, v AS x, s FROM a UNION ALL SELECT m, id, cast(v AS string) FROM b"
    scene = make_scene(tmp_path, {"q": sql}).write()
    scene.run(spark)
    for name in "ab":
        spark.read.parquet(str(tmp_path / "data" / name)).createOrReplaceTempView(name)
    types = {field.name: field.dataType for field in spark.sql(sql).schema}
    assert {field.name: field.dataType for field in spark.read.parquet(str(scene.sink("q"))).schema} == types
    assert sum(by_arrow(scene.sink("q")).values()) == sum(
        table.num_rows for n, table in scene.taken().items() if n in "ab"
    )


def test_what_is_wrong_with_views_is_a_sentence(spark: Any, tmp_path: Path) -> None:
    def refused(sql: str, **views: str) -> str:
        scene = make_scene(tmp_path, {"q": sql}).write()
        stream = scene.topology.streams[0]
        topology = wm.Topology((stream,), (wm.Query("q", sql),), views=tuple(wm.Query(n, v) for n, v in views.items()))
        with pytest.raises(wm.WatersmeetError) as caught:
            wm.start(topology, spark=spark, checkpoint=tmp_path / "no", once=True)
        return str(caught.value)

    assert "circle: v -> w -> v" in refused("SELECT k FROM v", v="SELECT k FROM w", w="SELECT k FROM v")
    assert "unknown stream 'nothing'" in refused("SELECT k FROM nothing", v="SELECT k FROM a")
    assert refused("SELECT k FROM v", v="SELECT kk AS k FROM a").startswith("view 'v': line 1")
    assert "UNION ALL: " in refused("SELECT k FROM a UNION ALL SELECT array(k) FROM a")
    assert "no order by which" in refused("SELECT v.k FROM v [ROWS 2], a [ROWS 3] WHERE v.k = a.k", v="SELECT k FROM a")


def test_frames_can_be_read_through_common_table_expressions(spark: Any, tmp_path: Path) -> None:
    make_scene(tmp_path, {"q": "SELECT k FROM a"}).write()
    frame = spark.readStream.schema("k long, m int, s string, id long, v double, ts timestamp")
    a = frame.parquet(str(tmp_path / "data" / "a")).withWatermark("ts", "1 second")
    text = """WITH few AS (SELECT k, id FROM a WHERE m <> 1) SELECT x.id, y.id AS other
        FROM few [RANGE 2 SECONDS] x, few [RANGE 2 SECONDS] y WHERE x.k = y.k AND x.id < y.id"""
    joined = wm.sql(spark, text, a=a)
    assert joined.columns == ["id", "other"]
    run = joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "point"))
    run.trigger(availableNow=True).start(str(tmp_path / "framed")).awaitTermination()
    found = by_arrow(tmp_path / "framed")
    assert found.total() > 10 and all(one < other for one, other in found)


def with_planners(scene: Scene, **settings: Any) -> wm.Topology:
    """The topology of a scene with other settings of planners for all queries and views."""
    topology = scene.topology
    queries, views = ([replace(one, **settings) for one in some] for some in (topology.queries, topology.views))
    return replace(topology, queries=tuple(queries), views=tuple(views))


def more(scene: Scene, first: int) -> None:
    for number, name in enumerate("abc"):
        scene.add(name, make_batches(first + number, 2, 40, first=first, keys=12, texts=12, trouble=0.01))


def revisions(handle: wm.StreamingRun) -> set[int]:
    return {site.job.versions.deployment.revision for site in handle._sites}


def test_plans_of_views_and_unions_change_at_a_restart_and_while_sites_run(spark: Any, tmp_path: Path) -> None:
    asked = {name: QUERIES[name] for name in ("joined", "united")}
    scene = make_scene(tmp_path, asked, homes={"a": "ams", "b": "nyc", "c": "nyc"}, site="nyc").write()
    scene.run(spark)
    more(scene, 160)
    planned = with_planners(scene, planner="greedy", assume_defaults=True)
    wm.start(planned, spark=spark, once=True, checkpoint=scene.checkpoint).awaitTermination()
    check(scene)
    handle = wm.start(planned, spark=spark, checkpoint=scene.checkpoint)
    try:
        assert revisions(handle) == {2}, "the other plans are in force"
        for name in ("pairs", "united_every", "united", "joined"):
            handle.change_plan(name, planner="central")
        more(scene, 240)
        found = expected(scene)
        wait_for(lambda: all(by_arrow(scene.sink(n)) == b for n, b in found.items()), "all", handle.exception)
        assert handle.await_changes() and min(revisions(handle)) > 2
        again = handle.apply(planned)
        assert not again.refused
        with_view = wm.Query(
            "more", "SELECT ai FROM pairs", site="nyc", sink=wm.Sink("parquet", str(tmp_path / "more"))
        )
        moved = [replace(one, site="ams") if one.name == "pairs" else one for one in planned.views]
        with pytest.raises(wm.InputError, match="view 'pairs': its site cannot change while queries read it"):
            handle.apply(replace(planned, views=tuple(moved)))
        with pytest.raises(wm.InputError, match="'united_2', which is taken by 'united_2'; rename"):
            handle.add(replace(with_view, name="united_2", sql="SELECT k FROM a"))
    finally:
        handle.stop()
    check(scene)


def test_queries_come_and_go_beside_views_that_share_their_joins(spark: Any, tmp_path: Path) -> None:
    asked = {name: QUERIES[name] for name in ("joined", "united")} | {"own": VIEWS["pairs"]}
    scene = make_scene(tmp_path, asked).write()
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)
    try:
        wait_for(lambda: by_arrow(scene.sink("own")).total() > 0, "answers", handle.exception)
        handle.remove("own")
        sink = wm.Sink("parquet", str(tmp_path / "out" / "late"))
        handle.add(wm.Query("late", VIEWS["pairs"], site="here", sink=sink))
        assert handle.await_changes()
        more(scene, 160)
        found = {name: bag for name, bag in expected(scene).items() if name != "own"}
        wait_for(lambda: all(by_arrow(scene.sink(n)) == b for n, b in found.items()), "all", handle.exception)
    finally:
        handle.stop()
    whole, late = expected(scene)["own"], by_arrow(tmp_path / "out" / "late")
    assert late and late <= whole and by_arrow(scene.sink("own")) <= whole


def test_a_branch_of_a_union_that_is_idle_holds_up_the_others_no_longer(spark: Any, tmp_path: Path) -> None:
    sql = "SELECT k, count(*) AS n FROM (SELECT k FROM a UNION ALL SELECT k FROM b) u GROUP BY k, TUMBLE(2 SECONDS)"
    batches = {"a": make_batches(1, 4, 40, keys=5, trouble=0), "b": make_batches(2, 1, 40, keys=5, trouble=0)}
    scene = Scene(tmp_path, batches, {"q": sql}, idle_timeout="1 second").write()
    outputs = [one.output for one in outputs_of(scene.topology, scene.topology.queries)]

    def until(stream: str) -> Bag:
        mark = latest_us(batches[stream]) - scene.delay_us
        times, tables = dict.fromkeys("ab", "ts"), scene.taken()
        return bag(answer_outputs(outputs, tables, times, watermarks_us=dict.fromkeys("ab", mark))["q"])

    whole = until("a")
    assert until("b") < whole
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)
    try:
        wait_for(lambda: by_arrow(scene.sink()) == whole, "groups of all rows", handle.exception)
    finally:
        handle.stop()
