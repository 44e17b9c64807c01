"""Queries that come and go while sites run: their answers are the oracle's for their time, and others do not notice."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scenes import Bag, Scene, by_arrow, by_duckdb, make_batches, wait_for
from spark.test_sites import jobs, small_scene

import watersmeet as wm
from watersmeet.cli.main import run_command
from watersmeet.metrics.events import PlanChangeProposed, QueryAdded, QueryEnded, QueryRemoved, VersionDropped
from watersmeet.program.site.agreement import Takeover
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.spark.versions_text import running_text
from watersmeet.testing import bag

R = "[RANGE 3 SECONDS]"
JOIN = f"FROM a {R}, b {R} WHERE a.k = b.k"
OLD = f"SELECT a.id AS a_id, b.id AS b_id {JOIN}"


def more(scene: Scene, first: int, batches: int = 2, streams: Sequence[str] = "ab") -> None:
    """Let rows come to streams, after those that are there."""
    for number, name in enumerate(streams):
        scene.add(name, make_batches(60 + first + number, batches=batches, first=first))


def fine(handle: wm.StreamingRun) -> None:
    assert handle.exception() is None


def due(scene: Scene, sql: str, **times: Any) -> Bag:
    """The answers of a query over all rows that take part, for heads of some time."""
    tables = scene.taken()
    parsed = parse_query(sql, {name: table.column_names for name, table in tables.items()})
    return bag(answer(parsed, tables, dict.fromkeys(tables, "ts"), **times))


def query(scene: Scene, name: str, sql: str, **settings: Any) -> wm.Query:
    sink = wm.Sink("parquet", str(scene.sink(name)))
    return wm.Query(name, sql, sink=sink, site=scene.site, **settings)


def last(handle: wm.StreamingRun) -> Takeover:
    """The last change, which was made."""
    entry = jobs(handle)[0].versions.log[-1]
    assert not entry.refused
    return entry


def await_answers(scene: Scene, handle: wm.StreamingRun, expected: Mapping[str, Bag]) -> None:
    def are_there() -> bool:
        return all(by_arrow(scene.sink(name)) == wanted for name, wanted in expected.items())

    wait_for(are_there, "not all answers come", lambda: fine(handle))
    for name, wanted in expected.items():
        assert wanted and by_duckdb(scene.sink(name)) == wanted


def revision(handle: wm.StreamingRun) -> set[int]:
    return {job.versions.deployment.revision for job in jobs(handle)}


def test_queries_are_added_replaced_and_removed_while_others_go_on(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, queries={"q": OLD, "other": f"SELECT a.id AS a_id, b.s AS s {JOIN}"}).write()
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)
    new = (
        f"SELECT a.id AS a_id, b.id AS b_id, a.v + b.v AS v FROM a [RANGE 2 SECONDS], b {R} WHERE a.k = b.k AND a.m < 4"
    )
    grouped = f"SELECT a.m, count(*) AS n, window_end {JOIN} GROUP BY a.m, TUMBLE(2 SECONDS)"
    try:
        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the run goes on", lambda: fine(handle))
        found = handle.add(query(scene, "new", new), reason="a test")
        assert [(row.kind, row.name, row.change) for row in found.rows] == [
            ("query", "new", "new"),
            ("sink", "new", "new"),
            ("plan", "new", "new"),
        ]
        handle.add(query(scene, "groups", grouped))
        assert handle.await_changes()
        begun = {one.query: entry.at_us for entry in jobs(handle)[0].versions.log for one in entry.change.plans}
        assert set(handle.plans) == {"q", "other", "new", "groups"} == {one.name for one in handle.topology.queries}
        more(scene, 210)
        other_q = OLD.replace("b.id AS", "b.id + a.id AS") + " AND a.id % 3 <> 1"
        now = handle.topology
        queries = tuple(replace(one, sql=other_q) if one.name == "q" else one for one in now.queries)
        handle.apply(replace(now, queries=queries))
        assert handle.await_changes()
        replaced_us = last(handle).at_us
        more(scene, 350)
        handle.remove("new")
        assert handle.await_changes()
        removed_us = last(handle).at_us
        more(scene, 490, batches=3)
        marks = [int(one.column("ts").cast("int64").to_numpy().max()) for one in scene.taken().values()]
        expected = {
            "other": scene.expected("other"),
            "q": due(scene, OLD, heads_before_us=replaced_us) + due(scene, other_q, start_us=replaced_us),
            "new": due(scene, new, start_us=begun["new"], heads_before_us=removed_us),
            "groups": due(scene, grouped, start_us=begun["groups"], watermark_us=min(marks) - scene.delay_us),
        }
        await_answers(scene, handle, expected)
        wait_for(lambda: bool(handle.events.recent(QueryEnded)), "the sink is finished", lambda: fine(handle))
    finally:
        handle.stop()
    assert [event.query for _, event in handle.events.recent(QueryAdded)] == ["new", "groups", "q"]
    assert [(event.query, event.version) for _, event in handle.events.recent(QueryRemoved)] == [("new", 5)]
    assert [(event.site, event.query) for _, event in handle.events.recent(QueryEnded)] == [("nyc", "new")]
    assert {event.version for _, event in handle.events.recent(VersionDropped)} >= {"new~2"}
    assert len(handle.events.recent(PlanChangeProposed)) >= 1
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == set(expected), "staging is left behind"
    text = running_text(scene.checkpoint)
    assert "change 2: new query new by central, since a test; heads from 1970-" in text and "new ends" in text
    # A restart with the topology as it was left goes on, one with the first is refused.
    with pytest.raises(wm.CheckpointMismatch, match="watersmeet apply"):
        scene.run(spark)
    more(scene, 700)
    again = wm.start(handle.topology, spark=spark, checkpoint=scene.checkpoint, once=True)
    again.awaitTermination()
    assert by_arrow(scene.sink("other")) == scene.expected("other")
    expected_q = due(scene, OLD, heads_before_us=replaced_us) + due(scene, other_q, start_us=replaced_us)
    assert by_arrow(scene.sink()) == expected_q
    assert by_arrow(scene.sink("new")) == expected["new"]


def with_queries(scene: Scene, **queries: str) -> Scene:
    return replace(scene, queries={**scene.queries, **queries})


def test_the_command_lets_a_running_deployment_go_over(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = small_scene(tmp_path).write()
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)
    changed = with_queries(scene, more=f"SELECT a.id AS a_id, b.m AS m {JOIN} AND b.m > 2")
    command = ["apply", str(changed.topology_path), "--checkpoint", str(scene.checkpoint)]
    try:
        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the run goes on", lambda: fine(handle))
        assert run_command([*command, "--dry-run"]) == 0
        table = capsys.readouterr().out
        assert re.search(r"query\W+more\W+new\W+SELECT a.id AS a_id", table)
        assert re.search(r"sink\W+more\W+new\W+parquet ", table) and re.search(r"plan\W+more\W+new\W+by central", table)
        assert revision(handle) == {1}
        assert run_command(command) == 2
        assert capsys.readouterr().err == (
            "watersmeet: apply asks before it changes anything, but there is nobody to ask; add --yes\n"
        )
        assert run_command([*command, "--yes"]) == 0
        told = capsys.readouterr().out
        assert re.search(r"site ams: in force from 1970-\S+ \S+ on", told) and "site nyc: in force from" in told
        assert revision(handle) == {2}
        begun_us = last(handle).at_us
        assert run_command([*command, "--yes"]) == 0 and "nothing is different" in capsys.readouterr().out
        more(scene, 210)
        await_answers(
            scene,
            handle,
            {"q": scene.expected(), "more": due(scene, changed.queries["more"], start_us=begun_us)},
        )
        # What cannot be changed live is refused, with the reason and what to do.
        text = changed.topology_path.read_text(encoding="utf-8")
        refused = {
            "schema: k long": (
                "schema: k int",
                "stream 'a': its schema cannot change while it is read, since rows",
            ),
            "path: data/a": ("path: data/b", "stream 'a': its source cannot change while it is read"),
            "path: out/more": ("path: out/less", "query 'more': its sink cannot be another one while it runs; add it"),
            "durability: process": ("durability: power", "durability is decided at the start; stop the run and start"),
            "path: links": ("path: others", "link_transport: parcels are on their way in the old one; stop all sites"),
        }
        other = tmp_path / "other.yaml"
        for before, (after, cause) in refused.items():
            assert before in text
            other.write_text(text.replace(before, after, 1), encoding="utf-8")
            assert run_command(["apply", str(other), *command[2:], "--yes"]) == 2
            assert cause in capsys.readouterr().err
        now = handle.topology
        wrong = tuple(replace(one, sql=OLD) if one.name == "more" else one for one in now.queries)
        with pytest.raises(wm.InputError, match="its answers have the columns a_id bigint, m int and would have a_id"):
            handle.apply(replace(now, queries=wrong))
        with pytest.raises(wm.InputError, match="no query would be left; stop the run instead"):
            handle.apply(replace(now, queries=()))
    finally:
        handle.stop()


def test_a_stopped_deployment_goes_over_at_its_next_start(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stream that nobody has read before, at a site that had none."""
    scene = small_scene(tmp_path, site="tok").write()
    scene.run(spark)
    extra = replace(
        scene,
        batches={**scene.batches, "c": make_batches(77)},
        homes={**scene.homes, "c": "tok"},
        queries={"new": f"SELECT c.id AS c_id, b.id AS b_id FROM c {R}, b {R} WHERE c.k = b.k"},
    )
    extra.write()
    command = ["apply", str(extra.topology_path), "--checkpoint", str(scene.checkpoint), "--yes"]
    assert run_command(command) == 0
    told = capsys.readouterr().out
    assert "the deployment is stopped; it goes over at its next start" in told and "it comes after" not in told
    assert "asked for and not looked at yet: 1, in turn" in running_text(scene.checkpoint)
    assert re.search(r"stream\W+c\W+begins\W+at tok", told) and re.search(r"stream\W+a\W+ends", told)
    assert run_command(command) == 0 and "it comes after 1 change asked for before" in capsys.readouterr().out
    handle = wm.start(extra.topology, spark=spark, checkpoint=scene.checkpoint)
    try:
        wait_for(lambda: revision(handle) == {2}, "the run goes on", lambda: fine(handle))
        begun_us = last(handle).at_us
        more(extra, 210, batches=3, streams="abc")
        expected = due(extra, extra.queries["new"], start_us=begun_us)
        await_answers(extra, handle, {"new": expected})
        wait_for(lambda: bool(handle.events.recent(QueryEnded)), "q ends", lambda: fine(handle))
        assert [scan.stream for job in jobs(handle) for scan in job.program.streams] == ["b", "c"]
    finally:
        handle.stop()
    assert by_arrow(scene.sink()) == due(extra, OLD, heads_before_us=begun_us)


def test_sites_that_run_by_themselves_go_over_together(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a handle and a checkpoint directory of its own: what a query asks for comes to the others over links."""
    scene = small_scene(tmp_path, way=("SM-S1", False)).write()
    places = {site: tmp_path / f"at-{site}" for site in scene.sites}
    handles = {
        site: wm.start_site(scene.topology, site, spark=spark, checkpoint=place, plans_change=True)
        for site, place in places.items()
    }

    def all_fine() -> None:
        for handle in handles.values():
            fine(handle)

    def revisions() -> set[int]:
        return {one for handle in handles.values() for one in revision(handle)}

    changed = with_queries(scene, new=f"SELECT b.id AS b_id, a.v AS v {JOIN} AND a.m > 1")
    command = ["apply", str(changed.topology_path), "--checkpoint", str(places["nyc"]), "--yes"]
    try:
        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the run goes on", all_fine)
        assert run_command(command) == 0
        assert "site nyc: in force from 1970-" in capsys.readouterr().out
        wait_for(lambda: revisions() == {2}, "both sites go over", all_fine)
        begun_us = last(handles["ams"]).at_us
        more(scene, 210)
        # Another plan for the same queries, asked for at the other site.
        other = replace(changed, plan=None)
        assert run_command(["apply", str(other.topology_path), "--checkpoint", str(places["ams"]), "--yes"]) == 0
        assert re.search(r"plan\W+q\W+changed\W+by central", capsys.readouterr().out)
        wait_for(lambda: revisions() == {3}, "both sites go over", all_fine)
        more(scene, 350, batches=3)
        expected = {"q": scene.expected(), "new": due(scene, changed.queries["new"], start_us=begun_us)}
        await_answers(scene, handles["nyc"], expected)
        assert [event.query for _, event in handles["nyc"].events.recent(QueryAdded)] == ["new"]
        # What one site refuses all call off.
        refused = replace(other, queries={**changed.queries, "new": f"SELECT b.id AS b_id, a.s AS v {JOIN}"})
        assert run_command(["apply", str(refused.topology_path), "--checkpoint", str(places["ams"]), "--yes"]) == 2
        assert "called it off: nyc: query 'new': its answers have the columns" in capsys.readouterr().err
        assert revisions() == {3}
    finally:
        for handle in handles.values():
            handle.stop()


def test_outer_joins_come_and_go_and_their_plans_change(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, queries={"q": OLD}).write()
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)
    left = f"SELECT a.id AS a_id, b.id AS b_id, a.ts AS at FROM a {R} LEFT JOIN b {R} ON a.k = b.k AND b.m < 2"
    try:
        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the run goes on", lambda: fine(handle))
        handle.add(query(scene, "left", left))
        assert handle.await_changes()
        begun_us = last(handle).at_us
        other = (wm.HeadSteps("a", (wm.PlanStep("b", "SM-S1"),)), wm.HeadSteps("b", (wm.PlanStep("a", "SP-D"),)))
        asked = replace(handle.topology.query("left"), plan=other)
        queries = tuple(asked if one.name == "left" else one for one in handle.topology.queries)
        handle.apply(replace(handle.topology, queries=queries))
        more(scene, 210)
        assert handle.await_changes()
        assert last(handle).change.queries == ("left",) and begun_us < last(handle).at_us
        more(scene, 350)
        wait_for(lambda: _lacking(by_arrow(scene.sink("left"))) > 3, "rows are decided", lambda: fine(handle))
        handle.remove("left")
        assert handle.await_changes()
        ended_us = last(handle).at_us
        more(scene, 490, batches=3)
        every = due(scene, left, start_us=begun_us, heads_before_us=ended_us)
        expected = Bag({row: n for row, n in every.items() if row[1] is not None or _us(row[2]) + 3_000_000 < ended_us})
        assert _lacking(expected) > 3
        await_answers(scene, handle, {"q": scene.expected("q"), "left": expected})
    finally:
        handle.stop()


def _lacking(rows: Bag) -> int:
    """How many rows lack a partner."""
    return sum(row[1] is None for row in rows)


def _us(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)
