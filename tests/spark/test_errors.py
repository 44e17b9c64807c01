"""A row for which an expression fails: it ends the run, is left out, or is kept; and the query can be corrected."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scenes import Bag, Scene, by_arrow, make_batches
from sim.sites.streams import SECOND

from watersmeet.errors import CheckpointMismatch, ExpressionFailed, WatersmeetError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import MicroBatchCompleted
from watersmeet.planners.local import local
from watersmeet.program.finish.failed import failed_sink
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.spark.deliver.delivery import Delivery
from watersmeet.testing import bag

POISON = 37  # of the rows of stream b, every one so far from the last has text that is no number
JOIN = "FROM a [RANGE 20 SECONDS], b [RANGE 20 SECONDS] WHERE a.k = b.k"
SELECT = f"SELECT a.id AS a_id, b.id AS b_id, CAST(b.s AS INT) AS n {JOIN}"
CORRECTED = f"SELECT a.id AS a_id, b.id AS b_id, TRY_CAST(b.s AS INT) AS n {JOIN}"
SOUND = f"{CORRECTED} AND TRY_CAST(b.s AS INT) IS NOT NULL"
SITES: list[dict[str, Any]] = [{}, {"homes": {"a": "ams", "b": "nyc"}, "site": "ams"}]


def numbered(batches: Sequence[pa.Table], poison: int | None) -> list[pa.Table]:
    """The text of each row is its number, or none where it is poison; the first micro-batch has none of those."""
    made = []
    for number, batch in enumerate(batches):
        text = batch.column("id").cast(pa.string())
        if poison is not None and number:
            is_poison = [row % poison == 5 for row in batch.column("id").to_pylist()]
            text = pc.if_else(pa.array(is_poison), "x", text)
        made.append(batch.set_column(batch.column_names.index("s"), "s", text))
    return made


def make_scene(directory: Path, sql: str, **settings: Any) -> Scene:
    data = {
        "a": numbered(make_batches(1, 3, 90, keys=20, trouble=0), None),
        "b": numbered(make_batches(2, 3, 90, keys=20, trouble=0), POISON),
    }
    return Scene(directory, data, {"q": sql}, **settings).write()


def expected(scene: Scene, sql: str) -> Bag:
    return replace(scene, queries={"q": sql}).expected()


def lost(scene: Scene, whole: str, sound: str) -> int:
    count = (expected(scene, whole) - expected(scene, sound)).total()
    assert count > 5
    return count


def kept(scene: Scene) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(scene.directory / "out" / "failed").to_pylist()
    return rows


def check_simulated(scene: Scene, sound: str, kept: list[dict[str, Any]] | None) -> None:
    """That the simulator fails too, leaves out the same, and keeps the same."""
    parsed = typed(scene.parsed(), {name: batches[0].schema for name, batches in scene.batches.items()})
    columns = {name: batches[0].column_names for name, batches in scene.batches.items()}
    plan, delays = local(parsed, columns, "here"), dict.fromkeys("ab", SECOND)

    def run(errors: str) -> SimulatedSites:
        sites = SimulatedSites(plan, dict.fromkeys("ab", "ts"), delays_us=delays, errors={"q": errors})
        for number in range(3):
            sites.feed(number * 10 * SECOND, {name: batches[number] for name, batches in scene.batches.items()})
        sites.run()
        return sites

    with pytest.raises(ExpressionFailed):
        run("fail")
    for errors in ("drop", "keep"):
        sites = run(errors)
        assert sum((bag(table) for table in sites.answers()), Bag()) == expected(scene, sound)
    if kept is not None:
        aside = [row for table in sites.answers(failed_sink("q")) for row in table.to_pylist()]
        left_out = [Counter(str(json.loads(row["inputs"])["b.id"]) for row in some) for some in (aside, kept)]
        assert left_out[0] == left_out[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("where", SITES, ids=["one site", "two sites"])
def test_a_query_that_fails_is_corrected_and_goes_on(spark: Any, tmp_path: Path, where: dict[str, Any]) -> None:
    scene = make_scene(tmp_path, SELECT, **where)
    with pytest.raises(ExpressionFailed) as failed:
        scene.run(spark)
    text = str(failed.value)
    assert text.startswith("query 'q' failed: SELECT CAST(b.s AS INT) fails for {") and '"b.s": "x"' in text
    assert (
        "cannot be cast" in text
        and "correct the SELECT list, or give the query `errors: drop` or `errors: keep`" in text
    )
    with pytest.raises(ExpressionFailed):
        scene.run(spark)
    given = by_arrow(scene.sink())
    corrected = replace(scene, queries={"q": CORRECTED})
    corrected.run(spark)
    assert given and given <= by_arrow(scene.sink())
    assert by_arrow(scene.sink()) == expected(scene, CORRECTED)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("where", "errors"),
    [
        pytest.param(SITES[0], "drop", id="one site, drop"),
        pytest.param(SITES[1], "keep", id="two sites, keep"),
        pytest.param(SITES[0], "keep", id="one site, keep", marks=pytest.mark.soak),
        pytest.param(SITES[1], "drop", id="two sites, drop", marks=pytest.mark.soak),
    ],
)
def test_combinations_that_fail_are_left_out(spark: Any, tmp_path: Path, where: dict[str, Any], errors: str) -> None:
    scene = make_scene(tmp_path, SELECT, **where)
    with pytest.raises(ExpressionFailed):
        scene.run(spark)
    scene, completed, events = replace(scene, errors=errors), [], EventBus()
    events.subscribe(lambda at, event: completed.append(event) if isinstance(event, MicroBatchCompleted) else None)
    run = scene.run(spark, events=events)
    assert by_arrow(scene.sink()) == expected(scene, SOUND)
    count = lost(scene, CORRECTED, SOUND)
    assert run.usage("q").failed == count
    progress = run.query("q").lastProgress
    assert progress is not None and progress["failed"] == count
    assert sum(sum(event.failed.values()) for event in completed) == count
    if errors == "keep":
        rows = kept(scene)
        assert len(rows) == count and {row["reason"] for row in rows} == {"SELECT CAST(b.s AS INT) fails"}
        assert {row["query"] for row in rows} == {"q"} and {json.loads(row["inputs"])["b.s"] for row in rows} == {"x"}
        pairs = Counter((json.loads(row["inputs"])["a.id"], json.loads(row["inputs"])["b.id"]) for row in rows)
        assert pairs == Counter((a, b) for a, b, _ in (expected(scene, CORRECTED) - expected(scene, SOUND)).elements())
    else:
        assert not (scene.directory / "out" / "failed").exists()
    check_simulated(scene, SOUND, kept(scene) if errors == "keep" else None)


def test_kept_rows_that_their_sink_does_not_have_yet_are_not_dropped(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = replace(make_scene(tmp_path, SELECT), errors="keep")
    write = Delivery._write

    def fail(delivery: Delivery, *given: Any) -> None:
        if delivery.query == failed_sink("q"):
            raise OSError("the sink is away")
        write(delivery, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Delivery, "_write", fail)
        with pytest.raises(WatersmeetError, match="the sink is away"):
            scene.run(spark)
    waiting = scene.ledger("here").undelivered[failed_sink("q")]
    assert waiting, "the test tests nothing"
    for errors in ("drop", None):
        with pytest.raises(CheckpointMismatch, match=r"^query 'q': \d+ rows .* not in their sink yet; run once with"):
            replace(scene, errors=errors).run(spark)
    scene.run(spark)
    assert len(kept(scene)) == lost(scene, CORRECTED, SOUND)
    dropping = replace(scene, errors="drop")
    dropping.run(spark)
    assert by_arrow(scene.sink()) == expected(scene, SOUND)


# A cast, an overflow, and a division by zero.
OVERFLOW = "b.id * CASE WHEN b.s = 'x' THEN 9223372036854775807 ELSE 1 END"
INGESTED = {
    "filter": ("b.m < 99 AND CAST(b.s AS INT) >= 0", "b.s <> 'x'"),
    "key": (f"({OVERFLOW}) % 20 = a.k", "b.id % 20 = a.k AND b.s <> 'x'"),
    "residual": ("b.id / CASE WHEN b.s = 'x' THEN 0 ELSE 1 END > a.id", "b.id > a.id AND b.s <> 'x'"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", INGESTED)
@pytest.mark.parametrize("where", SITES, ids=["one site", "two sites"])
def test_rows_whose_filters_keys_or_predicates_fail(
    spark: Any, tmp_path: Path, where: dict[str, Any], kind: str
) -> None:
    plain = f"SELECT a.id AS a_id, b.id AS b_id {JOIN} AND"
    wrong, sound = (f"{plain} {condition}" for condition in INGESTED[kind])
    scene = make_scene(tmp_path, wrong, **where)
    with pytest.raises(ExpressionFailed, match=r"^query 'q' failed: .*(CAST\(|CASE WHEN ).* fails for \{.*x"):
        scene.run(spark)
    scene = replace(scene, errors="keep")
    run = scene.run(spark)
    assert by_arrow(scene.sink()) == expected(scene, sound)
    rows = kept(scene)
    assert len(rows) == run.usage("q").failed > 0
    assert {json.loads(row["inputs"])["b.s"] for row in rows} == {"x"}
    if kind != "residual":
        poison = sum(pc.sum(pc.equal(batch.column("s"), "x")).as_py() for batch in scene.batches["b"])
        assert len(rows) == poison - scene.ledger(scene.home("b")).streams["b"].late >= 1
    check_simulated(scene, sound, rows)


def test_corrections_that_a_checkpoint_cannot_take(spark: Any, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, SELECT)
    with pytest.raises(ExpressionFailed):
        scene.run(spark)
    refused = {
        f"SELECT a.id AS a_id, b.id AS b_id, b.m AS n {JOIN}": r"^query 'q': it now needs b\.m, which the windows",
        SELECT.replace("AS INT) AS n", "AS BIGINT) AS n"): "had the columns .* n int and now have .* n bigint, but",
        SELECT.replace("AS n", "AS number"): "give the columns the same names and types",
        CORRECTED + " AND a.id < b.id": "belongs to other queries: query q ",
        SELECT.replace("SELECT", "SELECT DISTINCT"): "belongs to other queries: query q sql had ",
    }
    for sql, message in refused.items():
        with pytest.raises(CheckpointMismatch, match=message):
            replace(scene, queries={"q": sql}).run(spark)
    fewer = replace(scene, queries={"q": f"SELECT a.id AS a_id, b.id AS b_id, 7 AS n {JOIN}"})
    given = by_arrow(scene.sink())
    fewer.run(spark)
    now = by_arrow(scene.sink())
    assert given <= now and {row[:2] for row in now} == {row[:2] for row in expected(scene, CORRECTED)}
    assert now.total() == expected(scene, CORRECTED).total()
