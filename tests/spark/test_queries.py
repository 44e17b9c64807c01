"""Several queries in one run: what they share, what they do not do to each other, and their one checkpoint."""

import json
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from scenes import PATIENCE_S, SECOND_US, Bag, Scene, by_arrow, latest_us, make_batches, wait_for

import watersmeet as wm
from watersmeet.spark.site import ingesting

# Streams a and b are in all of them: other windows, other filters, the same join with another select list, a self-join.
QUERIES = {
    "plain": "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k",
    "other columns": "SELECT b.s, a.ts FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k",
    "filtered": """SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 2 SECONDS], b [TUMBLE 5 SECONDS]
        WHERE a.k = b.k AND a.m > 1 AND b.s <> 's3'""",
    "distinct": """SELECT DISTINCT a.m, b.m AS b_m FROM a [RANGE 9 SECONDS], b [RANGE 1 SECOND]
        WHERE a.k = b.k AND b.m < 3""",
    "expressions": """SELECT upper(a.s) || '!' AS loud, a.v * 2 + b.v AS v, c.id FROM a [RANGE 3 SECONDS],
        b [RANGE 3 SECONDS], c [RANGE 3 SECONDS] WHERE a.k = b.k AND b.k + 1 = c.k AND a.v < b.v""",
    "other key": """SELECT a.id AS a_id, c.id AS c_id, x.id AS x_id FROM a [RANGE 1 SECOND], c [UNBOUNDED],
        a [RANGE 1 SECOND] AS x WHERE a.s = c.s AND c.m = x.m AND a.id < x.id AND c.k < 3""",
    "shown": "SELECT a.id AS a_id, c.id AS c_id FROM a [RANGE 1 SECOND], c [RANGE 2 SECONDS] WHERE a.k = c.k",
}
NAMES = {name: name.replace(" ", "_") for name in QUERIES}
BY_NAME = {NAMES[name]: sql for name, sql in QUERIES.items()}
PLAIN, FILTERED = QUERIES["plain"], QUERIES["filtered"]
TWO_SITES = {"a": "ams", "b": "nyc", "c": "ams"}


@pytest.fixture
def make_scene(tmp_path: Path) -> Callable[..., Scene]:
    """A scene whose rows are there, of as many micro-batches as asked for, at one site if nobody says otherwise."""

    def make(queries: Mapping[str, str], streams: str = "abc", count: int = 4, **differs: Any) -> Scene:
        own = {name: make_batches(seed, count, 40, keys=12) for seed, name in enumerate(streams)}
        return Scene(tmp_path, **{"batches": own, "queries": queries} | differs).write()

    return make


def with_sinks(scene: Scene, **differs: dict[str, Any]) -> wm.Topology:
    """The topology of a scene, some of whose queries have other sinks."""
    topology = scene.topology
    return replace(topology, queries=tuple(replace(one, **differs.get(one.name, {})) for one in topology.queries))


def start(spark: SparkSession, scene: Scene, topology: wm.Topology, **settings: Any) -> wm.StreamingRun:
    return wm.start(topology, spark=spark, checkpoint=scene.checkpoint, **settings)


class Receiver:
    """A function that takes answers, by the number of their micro-batch as one has to that wants them once."""

    def __init__(self, wait: Callable[[int], object] = lambda batch: None) -> None:
        self.rows: dict[int, list[Any]] = {}
        self._wait = wait

    def __call__(self, answers: DataFrame, batch: int) -> None:
        self._wait(batch)
        assert batch not in self.rows, "given twice without a failure"
        self.rows[batch] = answers.collect()

    @property
    def bag(self) -> Bag:
        return Counter(tuple(row) for rows in self.rows.values() for row in rows)


# What they share ------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("homes", [{}, TWO_SITES], ids=["one site", "two sites"])
def test_all_queries_of_a_site_are_one_streaming_query(
    spark: SparkSession, make_scene: Callable[..., Scene], homes: dict[str, str]
) -> None:
    scene = make_scene(BY_NAME, homes=homes, site="nyc" if homes else "here")
    shown: list[str] = []
    sink = wm.Sink("console", None, {"numRows": "100000", "truncate": "false"})
    topology = with_sinks(scene, shown={"sink": sink})
    run = start(spark, scene, topology, trigger="100 milliseconds", show=shown.append)
    try:
        assert len(spark.streams.active) == len(scene.sites) == 1 + bool(homes)
        assert {str(query.id) for query in spark.streams.active} == set(run.id.values())
        expected = {name: scene.expected(name) for name in scene.queries}
        assert min(answers.total() for answers in expected.values()) > 10, "answers that say nothing"

        def are_there() -> bool:
            assert run.exception() is None
            return all(run.usage(name).rows_out == expected[name].total() for name in expected)

        wait_for(are_there, f"{[(name, run.usage(name).rows_out, bag.total()) for name, bag in expected.items()]}")
        assert len(spark.streams.active) == len(scene.sites)
    finally:
        run.stop()
    assert run.exception() is None and not spark.streams.active
    for name in set(expected) - {"shown"}:
        assert by_arrow(scene.sink(name)) == expected[name], name
    pairs = re.findall(r"^\|(\d+) *\|(\d+) *\|$", "\n".join(shown), re.MULTILINE)
    assert Counter((int(a), int(c)) for a, c in pairs) == expected["shown"]
    scene.check_ledgers()

    progress = run.query("shown").lastProgress
    assert progress is not None and progress["rows_out"] == expected["shown"].total()
    marks = {name: latest_us(scene.batches[name]) - scene.delay_us for name in "ac"}
    assert progress["watermarks"] == marks, "of its streams, wherever they arrive"
    assert progress["batchId"] == scene.ledger(scene.site).number

    # Every stream is read once, and a query has in its usage what it reads.
    assert run.usage().rows_in == sum(scene.rows(name) for name in "abc")
    assert run.usage("plain").rows_in == scene.rows("a") + scene.rows("b")
    assert run.usage().rows_out == sum(answers.total() for answers in expected.values())
    state = {name: run.usage(name).state_rows for name in expected}
    assert max(state.values()) < run.usage().state_rows < sum(state.values())
    assert state["plain"] == state["other_columns"], "the same windows"
    if homes:
        shipped = {name: run.usage(name).bytes_shipped for name in expected}
        assert 0 < max(shipped.values()) <= run.usage().bytes_shipped < sum(shipped.values())


def test_some_of_the_queries(spark: SparkSession, make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(BY_NAME)
    run = start(spark, scene, scene.topology, query=["filtered", "plain"], once=True)
    run.awaitTermination()
    assert [handle.name for handle in run.queries] == ["filtered", "plain"] and run.name == "filtered, plain"
    assert sorted(path.name for path in (scene.directory / "out").iterdir()) == ["filtered", "plain"]
    for name in ("filtered", "plain"):
        assert by_arrow(scene.sink(name)) == scene.expected(name)
    with pytest.raises(wm.InputError, match="unknown query 'plian'; did you mean 'plain'"):
        start(spark, scene, scene.topology, query=["plian"], once=True)


def test_the_order_of_queries_does_not_matter_to_a_restart(
    spark: SparkSession, make_scene: Callable[..., Scene]
) -> None:
    scene = make_scene(BY_NAME)
    later = {name: scene.batches[name][2:] for name in "abc"}
    for name in "abc":
        del scene.batches[name][2:]
        for number in (2, 3):
            (scene.directory / "data" / name / f"{number:05d}.parquet").unlink()
    scene.run(spark)
    for name, batches in later.items():
        scene.add(name, batches)
    turned = replace(scene, queries=dict(reversed(BY_NAME.items())))
    run = start(spark, turned, turned.topology, query=list(turned.queries), once=True)
    run.awaitTermination()
    turned.check(least=5)


# What they do not do to each other ------------------------------------------------------------------------------------


def test_a_slow_sink_does_not_hold_up_another(spark: SparkSession, make_scene: Callable[..., Scene]) -> None:
    scene = make_scene({"fast": PLAIN, "slow": FILTERED}, "ab")
    go = threading.Event()
    slow = Receiver(lambda batch: go.wait(PATIENCE_S))
    run = start(spark, scene, with_sinks(scene, slow={"foreach_batch": slow}), trigger="50 milliseconds")
    try:
        expected = {name: scene.expected(name) for name in scene.queries}
        wait_for(lambda: by_arrow(scene.sink("fast")) == expected["fast"], "the fast one waits for the slow one")
        assert not slow.rows and run.isActive
        go.set()
        wait_for(lambda: slow.bag == expected["slow"], "the slow one never gets its answers")
    finally:
        go.set()
        run.stop()
    assert run.exception() is None
    assert by_arrow(scene.sink("fast")) == expected["fast"] and slow.bag == expected["slow"]


def test_new_rows_wait_for_a_sink_that_is_far_behind(
    spark: SparkSession, make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingesting, "MAX_UNDELIVERED", 1)
    scene = make_scene({"fast": PLAIN, "slow": PLAIN}, "ab", count=8)
    waiting: list[int] = []

    def note(batch: int) -> None:
        waiting.append(len(scene.ledger("here").undelivered.get("slow", ())))
        time.sleep(0.3)

    slow = Receiver(note)
    run = start(spark, scene, with_sinks(scene, slow={"foreach_batch": slow}), once=True)
    run.awaitTermination()
    expected = scene.expected("fast")
    assert by_arrow(scene.sink("fast")) == slow.bag == expected
    assert len(waiting) == 8 and max(waiting) <= 4, "one that waits, one each that is joined, ingested and delivered"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("once", "most_undelivered"),
    [
        (True, 1),
        (False, 8),
        pytest.param(True, 8, marks=pytest.mark.soak),
        pytest.param(False, 1, marks=pytest.mark.soak),
    ],
)
def test_a_sink_that_fails_ends_the_run_and_nothing_is_lost_or_doubled(
    spark: SparkSession,
    make_scene: Callable[..., Scene],
    monkeypatch: pytest.MonkeyPatch,
    once: bool,
    most_undelivered: int,
) -> None:
    monkeypatch.setattr(ingesting, "MAX_UNDELIVERED", most_undelivered)
    scene = make_scene({"files": PLAIN, "good": QUERIES["distinct"], "bad": FILTERED}, "ab", count=6)
    broken = True

    def fail(batch: int) -> None:
        if broken and batch >= 2:
            raise OSError("the receiver\nis down")

    good, bad = Receiver(), Receiver(fail)
    topology = with_sinks(scene, good={"foreach_batch": good}, bad={"foreach_batch": bad})
    settings = {"once": True} if once else {"trigger": "50 milliseconds"}
    for _ in range(2):
        run = start(spark, scene, topology, **settings)
        try:
            with pytest.raises(wm.RunError, match=r"^query 'bad' failed: the receiver") as ended:
                run.awaitTermination(PATIENCE_S)
        finally:
            run.stop()
        assert "\n" not in str(ended.value)
        assert not run.isActive and str(run.exception()) == str(ended.value) and not spark.streams.active
        assert list(bad.rows) == [0, 1], "nothing is given to a function after it has failed"
    broken = False
    start(spark, scene, topology, once=True).awaitTermination()
    expected = {name: scene.expected(name) for name in scene.queries}
    assert by_arrow(scene.sink("files")) == expected["files"]
    assert good.bag == expected["good"] and bad.bag == expected["bad"]
    scene.check_ledgers()


# Idle streams ---------------------------------------------------------------------------------------------------------


def test_a_silent_stream_holds_up_neither_state_nor_counted_windows(
    spark: SparkSession, make_scene: Callable[..., Scene]
) -> None:
    queries = {
        "range": PLAIN,
        "counted": "SELECT a.id AS a_id, b.id AS b_id FROM a [ROWS 20], b [ROWS 20] WHERE a.k = b.k",
    }
    batches = {name: make_batches(seed, 1, 40, keys=12, trouble=0.0) for seed, name in enumerate("ab")}
    scene = make_scene(queries, batches=batches, idle_timeout="2 seconds")
    run = start(spark, scene, scene.topology, trigger="100 milliseconds")

    def mark(stream: str) -> int | None:
        return None if run.last_batch is None else run.last_batch.watermarks[stream]

    def state_rows(query: str) -> int:
        assert run.exception() is None
        return run.usage(query).state_rows

    try:
        for number in range(1, 6):  # only `a` goes on, far beyond all windows
            scene.add("a", make_batches(number, 1, 40, first=40 * 10 * number, keys=12, trouble=0.0))
        reached = latest_us(scene.batches["a"]) - scene.delay_us
        wait_for(lambda: mark("b") == reached, "b is never taken to be idle")
        expected = scene.expected("counted", heads_before_us=reached)
        assert expected.total() > scene.expected("counted").total() > 0
        wait_for(lambda: by_arrow(scene.sink("counted")) == expected, "ROWS windows wait for a silent stream")
        scene.add("a", make_batches(6, 1, 10, first=2_440, keys=12, trouble=0.0))
        wait_for(lambda: state_rows("range") <= 60, f"{state_rows('range')} rows are kept for a silent stream")
        # What comes after all is late if it is before the instant that its stream was taken to have come to.
        scene.add("b", make_batches(7, 1, 20, first=40, keys=12, trouble=0.0))
        wait_for(lambda: run.usage().late == 20, "rows behind the watermark are late")
        scene.add("b", make_batches(8, 1, 20, first=2_450, keys=12, trouble=0.0))
        wait_for(lambda: run.usage().rows_in == scene.rows("a") + scene.rows("b"), "rows do not come in")
    finally:
        run.stop()
    assert run.exception() is None and run.usage().late == 20
    scene.batches["b"].pop(1)  # the late ones
    assert by_arrow(scene.sink("range")) == scene.expected("range")
    assert run.usage("range").rows_out > 0


def test_a_stream_that_is_never_idle_holds_up_counted_windows(
    spark: SparkSession, make_scene: Callable[..., Scene]
) -> None:
    sql = "SELECT a.id AS a_id, b.id AS b_id FROM a [ROWS 20], b [ROWS 20] WHERE a.k = b.k"
    batches = {name: make_batches(seed, 2 if name == "a" else 1, 40, keys=12) for seed, name in enumerate("ab")}
    scene = make_scene({"q": sql}, batches=batches, idle_timeout="none")
    run = start(spark, scene, scene.topology, trigger="100 milliseconds")
    try:
        wait_for(lambda: run.usage().rows_in == 120, "rows do not come in")
        time.sleep(1.5)
    finally:
        run.stop()
    mark = latest_us(scene.batches["b"]) - scene.delay_us
    assert run.last_batch is not None and run.last_batch.watermarks["b"] == mark
    assert mark < latest_us(scene.batches["a"]) - scene.delay_us - SECOND_US
    assert by_arrow(scene.sink("q")) == scene.expected("q", heads_before_us=mark) != Counter()


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["q", "q/ams", "here"])
def test_checkpoints_of_the_old_form_are_refused(
    spark: SparkSession, make_scene: Callable[..., Scene], place: str
) -> None:
    scene = make_scene({"q": PLAIN}, "ab")
    old = scene.checkpoint / place
    old.mkdir(parents=True)
    (old / "identity.json").write_text(json.dumps({"format": 1, "query": PLAIN, "run_id": "0a1b2c3d"}))
    with pytest.raises(wm.CheckpointMismatch) as refused:
        scene.run(spark)
    assert str(refused.value) == (
        f"checkpoint {old} was made by an earlier version, with one checkpoint a query; this version has one a site "
        "for all queries: give --checkpoint another place, and empty sinks"
    )
    assert [path.name for path in old.iterdir()] == ["identity.json"] and not scene.sink().exists()
    shutil.rmtree(scene.checkpoint)
    scene.run(spark)
    scene.check()


@pytest.mark.few(1)
@pytest.mark.parametrize("homes", [{}, TWO_SITES], ids=["one site", "two sites"])
def test_a_checkpoint_that_was_moved_goes_on(
    spark: SparkSession, make_scene: Callable[..., Scene], tmp_path: Path, homes: dict[str, str]
) -> None:
    queries = {"p": PLAIN, "q": QUERIES["distinct"], "r": QUERIES["expressions"]}
    scene = make_scene(queries, homes=homes, site="nyc" if homes else "here")
    scene.run(spark)
    for seed, name in enumerate("abc"):
        scene.add(name, make_batches(seed + 3, 2, 40, first=160, keys=12))
    moved = tmp_path / "elsewhere" / "checkpoint of before"
    moved.parent.mkdir()
    scene.checkpoint.rename(moved)
    run = scene.run(spark, checkpoint=moved)
    assert run.micro_batches_here == 2 * len(scene.sites) and not scene.checkpoint.exists()
    moved.rename(scene.checkpoint)  # where the scene looks for it
    scene.check(least=10)


def test_queries_that_run_together_have_one_checkpoint(spark: SparkSession, make_scene: Callable[..., Scene]) -> None:
    scene = make_scene({"p": PLAIN, "q": PLAIN}, "ab")
    places = {name: {"checkpoint": str(scene.directory / f"checkpoint of {name}")} for name in "pq"}
    with pytest.raises(wm.InputError, match="queries p, q run together and share a checkpoint, but name 2 different"):
        wm.start(with_sinks(scene, **places), spark=spark, once=True)
    wm.start(with_sinks(scene, p=places["p"]), spark=spark, once=True).awaitTermination()
    assert sorted(path.name for path in (scene.directory / "checkpoint of p").iterdir()) == ["events.jsonl", "here"]
    assert by_arrow(scene.sink("p")) == by_arrow(scene.sink("q")) == scene.expected("p")
