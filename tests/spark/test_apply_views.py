"""Queries over views and tables that come and go while sites run: the reference semantics for their time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scenes import Bag, Scene, by_arrow, latest_us, wait_for
from spark.test_apply import JOIN, R, await_answers, fine, last, more, revision
from spark.test_sites import jobs, small_scene

import watersmeet as wm
from watersmeet.cli.main import run_command
from watersmeet.query.oracle import answer_outputs
from watersmeet.testing import bag
from watersmeet.topology.views import outputs_of

PAIRS = f"SELECT a.k, a.id AS ai, b.id AS bi {JOIN}"
NARROW = PAIRS.replace(R, "[RANGE 1 SECOND]", 1)
USERS = pa.table({"k": pa.array(range(0, 12), pa.int64()), "name": [f"n{number % 5}" for number in range(12)]})
OTHERS = USERS.set_column(1, "name", pa.array([f"m{number % 3}" for number in range(12)]))
QUERIES = {
    "over": "SELECT k, count(*) AS n, max(ai) AS most FROM pairs GROUP BY k, TUMBLE(2 SECONDS)",
    "named": """WITH odd AS (SELECT k, id FROM a WHERE id % 2 = 1)
        SELECT o.id, u.name FROM odd o, users u WHERE o.k = u.k""",
    "united": "SELECT k, id FROM a UNION ALL SELECT k, id FROM b WHERE m > 2",
    "third": f"SELECT p.ai, p.bi, b.id FROM pairs {R} p, b [RANGE 1 SECOND] WHERE p.k = b.k AND p.bi <> b.id",
    "later": "SELECT p.ai, u.name FROM pairs p JOIN users u USING (k)",
}


def topology_with(scene: Scene, queries: Mapping[str, str], pairs: str = PAIRS) -> wm.Topology:
    base = scene.topology
    table = wm.Table("users", source=wm.Source("parquet", str(scene.directory / "users.parquet")), site="nyc")
    sinks = {name: wm.Sink("parquet", str(scene.sink(name))) for name in queries}
    asked = (wm.Query(name, sql, sink=sinks[name], site=scene.site) for name, sql in queries.items())
    view = wm.Query("pairs", pairs, site="ams")
    return replace(base, queries=(*base.queries, *asked), views=(view,), tables=(table,))


def due(
    scene: Scene,
    topology: wm.Topology,
    name: str,
    starts_us: Mapping[str, int],
    users: pa.Table = USERS,
    until_us: int | None = None,
) -> Bag:
    """The answers of a query; of what it reads each SELECT has rows from some instant on."""
    table = replace(topology.tables[0], schema="k long, name string")
    known = replace(topology, tables=(table,))
    outputs = [one.output for one in outputs_of(known, [topology.query(name)])]
    rows = scene.taken()
    marks = {stream: latest_us(batches) - scene.delay_us for stream, batches in scene.batches.items()}
    if until_us is not None:
        marks = {stream: min(mark, until_us) for stream, mark in marks.items()}
        rows = {
            stream: some.filter(pa.array([ts < until_us for ts in some.column("ts").cast("int64").to_pylist()]))
            for stream, some in rows.items()
        }
    times = dict.fromkeys(rows, "ts")
    return bag(answer_outputs(outputs, {**rows, "users": users}, times, starts_us=starts_us, watermarks_us=marks)[name])


def test_queries_over_views_and_tables_come_are_replaced_and_go(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path).write()
    pq.write_table(USERS, tmp_path / "users.parquet")
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)
    first = topology_with(scene, {name: QUERIES[name] for name in ("over", "named", "united")})
    second = topology_with(scene, {name: QUERIES[name] for name in ("over", "named", "third", "later")}, NARROW)
    try:
        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the run goes on", lambda: fine(handle))
        found = handle.apply(first)
        assert found.begun == ("named", "named_odd", "over", "pairs", "united", "united_2") and not found.ended
        assert handle.await_changes()
        begun_us = last(handle).at_us
        more(scene, 210)
        some = ("over", "named", "united")
        wait_for(
            lambda: all(by_arrow(scene.sink(name)).total() > 0 for name in some), "they answer", lambda: fine(handle)
        )
        pq.write_table(OTHERS, tmp_path / "users.parquet")
        found = handle.apply(second)
        assert found.begun == ("later", "over", "pairs", "third") and found.ended == ("united", "united_2")
        assert handle.await_changes()
        replaced_us = last(handle).at_us
        assert {query.name for query in handle.topology.queries} == {"q", "over", "named", "third", "later"}
        assert [view.sql for view in handle.topology.views] == [NARROW]
        assert handle.apply(second).rows == (), "it runs already"
        with pytest.raises(
            wm.InputError, match="view 'pairs': its rows have the columns k bigint, ai bigint, bi bigint"
        ):
            handle.apply(topology_with(scene, QUERIES, PAIRS.replace("b.id AS bi", "b.s AS bi")))
        wider = replace(
            second,
            queries=tuple(
                replace(one, sql=one.sql.replace("p.ai,", "p.ai + 0 AS ai,")) if one.name == "later" else one
                for one in second.queries
            ),
        )
        more(scene, 350, batches=3)
        old = dict.fromkeys(["over", "pairs"], begun_us)
        new = dict.fromkeys(["over", "pairs", "third", "later"], replaced_us)
        named = dict.fromkeys(["named", "named_odd"], begun_us)
        united = dict.fromkeys(["united", "united_2"], begun_us)
        expected = {
            "over": due(scene, first, "over", old, until_us=replaced_us) + due(scene, second, "over", new),
            "named": due(scene, second, "named", named),
            "united": due(scene, first, "united", united, until_us=replaced_us),
            "third": due(scene, second, "third", new),
            "later": due(scene, second, "later", new, OTHERS),
        }
        await_answers(scene, handle, expected)
        assert by_arrow(scene.sink()) == scene.expected()
        streams = {scan.stream for job in jobs(handle) for scan in job.program.streams}
        assert {"users", "users~2", "pairs"} <= streams, "a table is read anew for queries that begin later"
        handle.apply(wider)
        assert handle.await_changes()
        wider_us = last(handle).at_us
        assert "users~3" in {scan.stream for job in jobs(handle) for scan in job.program.streams}
    finally:
        handle.stop()
    assert handle.exception() is None
    # A restart goes on with what is in force, by the topology of the user, and has tables as they were read.
    more(scene, 700)
    again = wm.start(wider, spark=spark, checkpoint=scene.checkpoint, once=True)
    again.awaitTermination()
    assert by_arrow(scene.sink("named")) == due(scene, second, "named", named)
    later = due(scene, second, "later", new, OTHERS, until_us=wider_us)
    assert by_arrow(scene.sink("later")) == later + due(
        scene, wider, "later", {"later": wider_us, "pairs": replaced_us}, OTHERS
    )
    assert by_arrow(scene.sink("third")) == due(scene, second, "third", new)
    with pytest.raises(wm.CheckpointMismatch, match="watersmeet apply"):
        wm.start(first, spark=spark, checkpoint=scene.checkpoint, once=True)


def test_a_stopped_deployment_begins_queries_over_views_and_tables_at_its_next_start(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = small_scene(tmp_path).write()
    pq.write_table(USERS, tmp_path / "users.parquet")
    scene.run(spark)
    text = scene.topology_path.read_text(encoding="utf-8")
    sql = QUERIES["later"]
    text += (
        f"views:\n  pairs: {{site: ams, sql: '{PAIRS}'}}\n"
        f"tables:\n  users: {{site: nyc, source: {{format: parquet, path: users.parquet}}}}\n"
    )
    text = text.replace(
        "queries:\n",
        f"queries:\n  later: {{site: {scene.site}, sql: '{sql}', sink: {{format: parquet, path: out/later}}}}\n",
    )
    path = tmp_path / "more.yaml"
    path.write_text(text, encoding="utf-8")
    assert run_command(["apply", str(path), "--checkpoint", str(scene.checkpoint), "--yes"]) == 0
    told = capsys.readouterr().out
    assert "the deployment is stopped; it goes over at its next start" in told and "view" in told and "users" in told
    topology = wm.load_topology(path)
    handle = wm.start(topology, spark=spark, checkpoint=scene.checkpoint)
    try:
        wait_for(lambda: revision(handle) == {2}, "the run goes on", lambda: fine(handle))
        starts = dict.fromkeys(["later", "pairs"], last(handle).at_us)
        more(scene, 210, batches=3)
        await_answers(scene, handle, {"later": due(scene, topology, "later", starts)})
    finally:
        handle.stop()
