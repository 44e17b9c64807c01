"""How runs end: at their end, when they are stopped, and when a sink, a link or a task fails.

However it was, the next run goes on with exactly what is missing.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from scenes import PATIENCE_S, Bag, Scene, by_arrow, make_batches, wait_for

import watersmeet as wm
from watersmeet.metrics.events import RunEnded
from watersmeet.program.site.round import Round
from watersmeet.spark.links.protocol import LinkDirection, Sealed
from watersmeet.spark.site.ingesting import MAX_UNDELIVERED
from watersmeet.spark.site.job import SiteJob
from watersmeet.spark.site.state import SiteState

QUERIES = {
    "p": "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k",
    "q": "SELECT a.id AS a_id, b.id AS b_id, a.m FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.m = b.m",
}
APART = {"a": "ams", "b": "nyc"}
PLAN = {"a": [{"join": "b", "method": "SM-S1"}], "b": [{"join": "a", "method": "SP-D"}]}


def make_scene(directory: Path, *, batches: int = 4, **where: Any) -> Scene:
    data = {name: make_batches(71 + number, batches) for number, name in enumerate("ab")}
    return Scene(directory, data, QUERIES, **where).write()


@dataclass
class Receiver:
    """A function that takes the answers of a query, and remembers what it was given."""

    before: Callable[[int], object] = lambda batch: None  # is called with every micro-batch first
    rows: Bag = field(default_factory=Counter)
    batches: list[int] = field(default_factory=list)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.before(batch)
        self.rows.update(tuple(row) for row in frame.collect())
        self.batches.append(batch)


def with_receivers(topology: wm.Topology, receivers: Mapping[str, Receiver]) -> wm.Topology:
    queries = (replace(query, foreach_batch=receivers.get(query.name)) for query in topology.queries)
    return replace(topology, queries=tuple(queries))


Begin = Callable[..., wm.StreamingRun]


@pytest.fixture
def begin(spark: Any) -> Iterator[Begin]:
    """Start a scene with functions for sinks; whatever still runs when the test ends is stopped."""
    handles: list[wm.StreamingRun] = []

    def start(scene: Scene, receivers: Mapping[str, Receiver], **settings: Any) -> wm.StreamingRun:
        topology = with_receivers(scene.topology, receivers)
        settings = {"once": True, "warn": None} | settings
        handles.append(wm.start(topology, spark=spark, checkpoint=scene.checkpoint, **settings))
        return handles[-1]

    yield start
    for handle in handles:
        if handle.isActive:
            handle.stop()


def reason(handle: wm.StreamingRun) -> str:
    ((_, ended),) = handle.events.recent(RunEnded)
    return ended.reason


def check_delivered_once(scene: Scene, *lives: Mapping[str, Receiver]) -> None:
    """That all answers were given to the functions of one run or the next, none twice, in order."""
    for query in scene.queries:
        given = [receivers[query] for receivers in lives]
        assert sum((one.rows for one in given), Counter()) == scene.expected(query)
        batches = [batch for one in given for batch in one.batches]
        assert batches == sorted(set(batches)), "a micro-batch was delivered twice or out of order"


# At the end -----------------------------------------------------------------------------------------------------------


def test_waiting_with_a_timeout_does_not_wait_for_a_slow_sink(tmp_path: Path, begin: Begin) -> None:
    scene, may_go_on = make_scene(tmp_path), threading.Event()
    receivers = {"p": Receiver(lambda batch: may_go_on.wait(PATIENCE_S)), "q": Receiver()}
    handle = begin(scene, receivers)
    try:
        wait_for(lambda: not handle.isActive, "Spark's query does not end")
        for timeout in (0.05, 0.5):
            began = time.monotonic()
            assert handle.awaitTermination(timeout) is False  # and returns at all: the sink is still held
            assert time.monotonic() - began >= timeout
        expected = scene.expected("q")
        wait_for(lambda: receivers["q"].rows == expected, "one sink waits for another")
        assert receivers["p"].batches == [] and handle.events.recent(RunEnded) == ()
    finally:
        may_go_on.set()
    assert handle.awaitTermination(PATIENCE_S) is True
    assert handle.awaitTermination() is None and handle.awaitTermination(1) is True, "it stays ended"
    check_delivered_once(scene, receivers)
    scene.check_ledgers()
    assert reason(handle) == "completed"


def test_waiting_with_a_timeout_while_all_sites_run(tmp_path: Path, begin: Begin) -> None:
    scene = make_scene(tmp_path, homes=APART, site="nyc", plan=PLAN)
    handle = begin(scene, {}, once=False)
    for timeout in (0.05, 0.3):
        began = time.monotonic()
        assert handle.awaitTermination(timeout) is False  # and returns at all: the run never ends by itself
        assert time.monotonic() - began >= timeout


def test_a_run_to_the_end_waits_for_parcels_that_are_still_to_be_published(
    tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, has_waited = SiteState.publish, threading.Event()

    def publishing(state: SiteState) -> None:
        thread = threading.current_thread().name
        if thread.startswith("join-"):  # not where the end of the run is looked for
            has_waited.set()
            time.sleep(0.5)
        if not thread.startswith("links-"):  # it would help
            publish(state)

    monkeypatch.setattr(SiteState, "publish", publishing)
    scene = make_scene(tmp_path, batches=1, homes=APART, site="nyc", plan=PLAN)
    receivers = {"p": Receiver(lambda batch: time.sleep(0.3)), "q": Receiver()}
    begin(scene, receivers).awaitTermination()
    assert has_waited.is_set()
    check_delivered_once(scene, receivers)
    scene.check_ledgers()


# Stopped --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("homes", [{}, APART], ids=["one site", "two sites"])
def test_stopping_during_a_delivery_neither_loses_nor_doubles_answers(
    tmp_path: Path, begin: Begin, homes: Mapping[str, str]
) -> None:
    scene = make_scene(tmp_path, batches=6, homes=homes, site="nyc" if homes else "here", plan=PLAN if homes else None)
    is_delivering, may_go_on = threading.Event(), threading.Event()

    def hold(batch: int) -> None:
        is_delivering.set()
        may_go_on.wait(PATIENCE_S)

    first = {"p": Receiver(hold), "q": Receiver()}
    handle = begin(scene, first, once=False)
    assert is_delivering.wait(PATIENCE_S)
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    stopping.join(0.5)
    assert stopping.is_alive(), "it did not wait for the delivery under way"
    with pytest.raises(wm.CheckpointMismatch, match="is in use by another run"):
        begin(scene, first)
    may_go_on.set()
    stopping.join(PATIENCE_S)
    assert not handle.isActive and handle.exception() is None and handle.awaitTermination(1) is True
    assert reason(handle) == "stopped"
    assert not any(any(scene.ledger(site).undelivered.values()) for site in scene.sites), "it would be given again"
    second = {"p": Receiver(), "q": Receiver()}
    begin(scene, second).awaitTermination()
    check_delivered_once(scene, first, second)
    scene.check_ledgers()


# Failed ---------------------------------------------------------------------------------------------------------------


def waiting_rows(job: SiteJob) -> int:
    return max(delivery.backlog for delivery in job.state.deliveries)


def test_a_sink_that_fails_while_new_rows_wait_for_it_ends_the_run(tmp_path: Path, begin: Begin) -> None:
    scene = make_scene(tmp_path, batches=MAX_UNDELIVERED + 6)
    handle: wm.StreamingRun | None = None

    def fail(batch: int) -> None:
        wait_for(lambda: handle is not None and waiting_rows(handle._sites[0].job) > MAX_UNDELIVERED, "rows never wait")
        raise ValueError("the sink is full")

    first = {"p": Receiver(fail), "q": Receiver()}
    handle = begin(scene, first)
    with pytest.raises(wm.WatersmeetError, match=r"^query 'p' failed: .*the sink is full"):
        handle.awaitTermination(PATIENCE_S)
    assert not handle.isActive and reason(handle) == "failed"
    assert str(handle.exception()).startswith("query 'p' failed: ")
    assert first["p"].batches == [] and first["q"].batches
    second = {"p": Receiver(), "q": Receiver()}
    begin(scene, second).awaitTermination()
    check_delivered_once(scene, first, second)
    scene.check_ledgers()


@pytest.mark.parametrize("once", [True, False])
def test_a_sink_that_fails_at_one_site_ends_all(tmp_path: Path, begin: Begin, once: bool) -> None:
    scene = make_scene(tmp_path, homes=APART, site="nyc", plan=PLAN)

    def fail(batch: int) -> None:
        raise OSError(28, "No space left on device")

    first = {"p": Receiver(), "q": Receiver(fail)}
    handle = begin(scene, first, once=once)
    with pytest.raises(wm.WatersmeetError, match=r"^query 'q': a disk is full; make room and start the run again"):
        handle.awaitTermination()
    assert not handle.isActive
    assert [site.is_active for site in handle._sites] == [False, False]
    second = {"p": Receiver(), "q": Receiver()}
    begin(scene, second).awaitTermination()
    check_delivered_once(scene, first, second)
    scene.check_ledgers()


@pytest.mark.parametrize("homes", [{}, APART], ids=["one site", "two sites"])
def test_a_task_that_fails_ends_the_run(
    spark: Any, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch, homes: Mapping[str, str]
) -> None:
    scene = make_scene(tmp_path, homes=homes, site="nyc" if homes else "here", plan=PLAN if homes else None)
    runs = Counter[str]()
    probe = Round.__call__

    def failing(task: Round, number: int) -> Any:
        runs["rounds"] += 1
        if runs["rounds"] > 3:
            raise ArithmeticError("one over zero")
        return probe(task, number)

    with monkeypatch.context() as context:
        context.setattr(Round, "__call__", failing)
        with pytest.raises(wm.WatersmeetError, match=r"^queries 'p', 'q' failed: .*one over zero"):
            begin(scene, {}).awaitTermination()
    scene.run(spark)
    scene.check()


def test_a_parcel_that_is_damaged_again_and_again_in_continuous_mode_ends_the_run(
    spark: Any, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(tmp_path, homes=APART, site="nyc", plan=PLAN)
    link = LinkDirection("ams", "nyc")
    read = Sealed.read

    def damage(parcel: Sealed, over: LinkDirection) -> bytes:
        data = read(parcel, over)
        return b"something else" if (over, parcel.number) == (link, 2) else data

    with monkeypatch.context() as context:
        context.setattr(Sealed, "read", damage)
        handle = begin(scene, {}, once=False)
        told = r"^link ams -> nyc: parcel 2 is damaged \(it is not a parcel\), and was so 3 times before; check"
        with pytest.raises(wm.WatersmeetError, match=told):
            handle.awaitTermination(PATIENCE_S)
    assert not handle.isActive
    damaged = [path.name for path in (scene.links / "nyc" / "ams").glob("*.damaged-*")]
    assert sorted(damaged) == [f"{2:012d}.damaged-{times}" for times in (1, 2, 3, 4)]
    scene.run(spark)
    scene.check()


def test_late_rows_of_a_micro_batch_stay_when_a_later_run_begins_with_parcels(spark: Any, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, homes=APART, site="nyc", plan=PLAN, late=["a", "b"])
    scene.run_site(spark, "nyc")
    kept = by_arrow(scene.late_sink("b"))
    assert kept
    scene.run_site(spark, "ams")
    scene.run_site(spark, "nyc")
    assert by_arrow(scene.late_sink("b")) == kept
    scene.run(spark)
    scene.check()


def test_a_silent_stream_is_idle_although_others_keep_the_site_busy(tmp_path: Path, begin: Begin) -> None:
    data = {"a": make_batches(71, 60, 30), "b": make_batches(72, 1, 30)}
    scene = Scene(tmp_path, data, {"p": QUERIES["p"]}, idle_timeout="1 second").write()
    handle = begin(scene, {}, once=False)
    job = handle._sites[0].job
    wait_for(lambda: job.ledger.streams.get("b", None) is not None, "nothing is ingested")
    wait_for(lambda: job.ledger.streams["b"].declared is not None, "it is never idle")
    assert job.ledger.ingested_batch < 59, "only when the other one was silent too"
    wait_for(lambda: job.ledger.batch == 59, "not all rows are joined")
    handle.stop()
    scene.check(least=10)
