"""Plans that change on Spark: while sites run, at a restart, and however often they stop in between."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenes import Scene, by_arrow, make_batches, wait_for
from spark.test_sites import jobs, small_scene, with_way

import watersmeet as wm
from watersmeet.metrics.events import PlanChangeProposed, PlanInForce, VersionDropped
from watersmeet.plan.nodes import join_plan_of, with_join
from watersmeet.planners.local import symmetric
from watersmeet.spark.planning import plan_query
from watersmeet.spark.versions_text import running_text
from watersmeet.topology.model import Link, Site


def more(scene: Scene, first: int, batches: int = 2) -> None:
    """Let rows come to both streams, after those that are there."""
    for number, name in enumerate(sorted(scene.batches)):
        scene.add(name, make_batches(60 + first + number, batches=batches, first=first))


def fine(handle: wm.StreamingRun) -> None:
    assert handle.exception() is None


def revisions(handle: wm.StreamingRun) -> set[int]:
    return {job.versions.deployment.revision for job in jobs(handle)}


def test_a_restart_with_another_plan_goes_over_to_it(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    assert revisions(scene.run(spark)) == {1}
    changed = with_way(scene, ("SM-D1", False))
    more(changed, 210)
    changed.run(spark)
    changed.check()
    more(changed, 350)
    handle = changed.run(spark)
    assert revisions(handle) == {2}
    assert {part.name for job in jobs(handle) for part in job.program.parts if part.is_in_force} == {"q~2"}
    changed.check()
    text = running_text(changed.checkpoint)
    assert text.startswith("revision 2 of the plans, by the checkpoints of ams, nyc\n")
    assert "version q~2 of q: heads from 1970-01-01 00:00:" in text and "on, in force\n" in text
    assert "change 2: q by as given, since it was started with another plan; heads from 1970-" in text
    assert "a: b by SM-D1" in text


def test_a_plan_changes_while_sites_run(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, way=("SM-S1", False)).write()
    other = with_way(scene, None).topology
    _, chosen = plan_query(spark, other, other.query("q"))
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint, plans_change=True)
    try:
        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the run goes on", lambda: fine(handle))
        handle.change_plan("q", chosen, reason="a test")
        more(scene, 210)
        wait_for(lambda: revisions(handle) == {2}, "the run goes on", lambda: fine(handle))
        more(scene, 350, batches=3)
        expected = scene.expected()
        wait_for(lambda: by_arrow(scene.sink()) == expected, "the run goes on", lambda: fine(handle))
    finally:
        handle.stop()
    scene.check()
    (proposed,) = (event for _, event in handle.events.recent(PlanChangeProposed))
    assert (proposed.queries, proposed.reason) == (("q",), "a test")
    assert {event.version for _, event in handle.events.recent(PlanInForce)} == {2}
    assert {event.version for _, event in handle.events.recent(VersionDropped)} <= {"q"}
    assert any(row.purpose == "agreement" for row in handle.traffic.rows)


@pytest.mark.soak
def test_windows_move_from_the_nearest_site_that_has_them(spark: Any, tmp_path: Path) -> None:
    """The join moves from hq to lab beside it; the homes of the streams are far away by the prices of links."""
    scene = small_scene(tmp_path, site="hq").write()
    known = scene.topology
    sites, links = (*known.sites, Site("lab")), (Link(("hq", "lab")),)
    topology = replace(known, sites=sites, links=links, default_link=Link(price_per_gb=1.0))
    bound, chosen = plan_query(spark, topology, topology.query("q"))
    join = join_plan_of(chosen.plan)
    moved = replace(join, sub_plans=(symmetric(bound.query.aliases, join.classes, "lab"),))
    handle = wm.start(topology, spark=spark, checkpoint=scene.checkpoint, plans_change=True)
    try:
        wait_for(lambda: by_arrow(scene.sink()).total() > 0, "the run goes on", lambda: fine(handle))
        handle.change_plan("q", replace(chosen, plan=with_join(chosen.plan, moved)), reason="a test")
        more(scene, 210)
        wait_for(lambda: revisions(handle) == {2}, "the run goes on", lambda: fine(handle))
        more(scene, 350, batches=3)
        wait_for(lambda: by_arrow(scene.sink()) == scene.expected(), "the run goes on", lambda: fine(handle))
    finally:
        handle.stop()
    scene.check()
    senders = {row.origin for row in handle.traffic.rows if row.purpose == "migration" and row.traffic.tuples}
    assert "hq" in senders, senders


def test_a_change_that_cannot_be_made_is_refused_in_a_sentence(spark: Any, tmp_path: Path) -> None:
    sql = "SELECT a.id AS a_id, b.id AS b_id FROM a [ROWS 5], b [ROWS 5] WHERE a.k = b.k"
    scene = small_scene(tmp_path, way=("SP-D", False), sql=sql).write()
    other = replace(scene, plan=None).topology
    _, chosen = plan_query(spark, other, other.query("q"))
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)
    try:
        with pytest.raises(wm.InputError, match=r"query 'q' has a ROWS or UNBOUNDED window, and homes keep no rows"):
            handle.change_plan("q", chosen)
    finally:
        handle.stop()
