"""Checkpoints in an object store: runs that go on elsewhere, die at any request, and are run twice."""

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from processes import CommandProcess
from pyspark.sql import SparkSession
from s3 import Faults, new_url
from scenes import PATIENCE_S, Scene, by_arrow, make_batches, wait_for
from seeds import FreshSeeds
from store_scene import StoreScene

import watersmeet as wm
from watersmeet.cli.main import run_command
from watersmeet.errors import CheckpointMismatch, InputError, RunError
from watersmeet.metrics.jsonl import KEPT
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.durable import FLUSHED
from watersmeet.spark.store import lease as leases
from watersmeet.spark.store.lease import Lease
from watersmeet.spark.store.mirror import mirror_of, origin_of
from watersmeet.spark.store.object_store import open_store
from watersmeet.testing import bag

SQL = "SELECT a.id AS a_id, b.id AS b_id, b.s FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k"


def make_scene(directory: Path, url: str, count: int = 4, late: Sequence[str] = ("a",)) -> StoreScene:
    batches = {name: make_batches(seed, count, 40, keys=12) for seed, name in enumerate("ab")}
    scene = StoreScene(directory, batches, {"q": SQL}, late=late, url=url)
    scene.write()
    return scene


def add_rows(scene: Scene) -> None:
    for seed, name in enumerate("ab"):
        scene.add(name, make_batches(seed + 5, 2, 40, first=scene.rows(name), keys=12))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Lets what follows run as if on another machine: nothing is there yet, and no lock is known."""
    places = iter(range(1_000_000))
    return lambda: monkeypatch.setenv("WATERSMEET_CACHE", str(tmp_path / f"cache{next(places)}"))


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_S", 0.6)


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """They outlast all pauses, and are renewed five times a second."""
    monkeypatch.setattr(leases, "LEASE_S", float(PATIENCE_S))
    monkeypatch.setattr(leases, "_RENEWALS", 5 * PATIENCE_S)


def test_a_run_goes_on_on_another_machine(
    spark: SparkSession, s3_url: str, tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    scene = make_scene(tmp_path, s3_url)
    scene.run(spark, **scene.settings)
    scene.check(least=10)
    elsewhere()
    add_rows(scene)
    scene.run(spark, **scene.settings)
    scene.check(least=10)
    log = open_store(s3_url).sizes("here/spark/")
    assert len(log) <= 3, f"entries of Spark's log that nobody needs: {log}"
    assert run_command(["check", "--checkpoint", s3_url]) == 0


def test_a_steady_micro_batch_reads_nothing_from_the_store(
    spark: SparkSession, faults: Faults, tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    def fetched() -> list[str]:
        found = [path for method, path, _ in faults.seen if method == "GET" and "/state/" in path]
        faults.seen.clear()
        return found

    scene = make_scene(tmp_path, new_url())
    scene.run(spark, **scene.settings)
    assert fetched() == [], "a window was read from the store"
    add_rows(scene)
    scene.run(spark, **scene.settings)
    assert fetched() == [], "copies of before are still good"
    elsewhere()
    add_rows(scene)
    scene.run(spark, **scene.settings)
    found = fetched()
    assert found and len(found) == len(set(found)), "each state file is fetched once"
    scene.check(least=10)


def test_answers_and_late_rows_go_to_a_store(spark: SparkSession, s3_url: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, s3_url)
    topology = wm.load_topology(_with_sinks_at(scene, f"{s3_url}/out"))
    for _ in range(2):
        wm.start(topology, spark=spark, once=True, checkpoint=f"{s3_url}/state").awaitTermination()
        for query, expected in (("q", scene.expected()), ("late_a", bag(scene.aside("a")))):
            place = tmp_path / "copy" / query
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            store = open_store(f"{s3_url}/out/{query}")
            names = [name for name in store.sizes() if not name.startswith(".writer-")]
            assert names and all(name.startswith("part-") for name in names), names
            assert all(store.download(name, place / name) for name in names)
            assert by_arrow(place) == expected
        add_rows(scene)
    left = [path for path in (tmp_path / "cache" / "staging").rglob("*") if path.is_file()]
    assert left == []


def _with_sinks_at(scene: Scene, url: str) -> Path:
    text = scene.topology_path.read_text(encoding="utf-8")
    path = scene.directory / "elsewhere.yaml"
    path.write_text(text.replace("path: out/", f"path: {url}/"), encoding="utf-8")
    return path


def test_few_bytes_of_copies_are_kept(
    spark: SparkSession, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATERSMEET_CACHE_BYTES", "4000")
    # Late rows would be read by Python workers of a Java that was started before the server was known.
    scene = make_scene(tmp_path, s3_url, late=())
    scene.run(spark, **scene.settings)
    scene.check(least=10)
    assert sum(map(os.path.getsize, (mirror_of(s3_url) / "here" / "state").iterdir())) <= 4000
    assert sum(open_store(s3_url).sizes("here/state/").values()) > 4000


def test_a_copy_that_is_damaged_is_fetched_again(spark: SparkSession, s3_url: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, s3_url)
    scene.run(spark, **scene.settings)
    for path in (mirror_of(s3_url) / "here" / "state").iterdir():
        path.write_bytes(path.read_bytes()[:-9] + b"otherwise")
    add_rows(scene)
    scene.run(spark, **scene.settings)
    scene.check(least=10)


def test_damage_in_the_store_is_found(
    spark: SparkSession, s3_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], elsewhere: Callable[[], None]
) -> None:
    scene = make_scene(tmp_path, s3_url)
    scene.run(spark, **scene.settings)
    store = open_store(s3_url)
    name = next(key for key in store.sizes("here/state/") if key.startswith("here/state/b-"))
    stored = store.get(name)
    assert stored is not None
    store.put(name, stored.data[:-9] + b"otherwise")
    assert run_command(["check", "--checkpoint", s3_url]) == 1
    assert "is damaged, its checksum does not match" in capsys.readouterr().err
    store.delete([name])
    elsewhere()
    with pytest.raises(RunError, match="state files that the ledger names are missing"):
        scene.run(spark, **scene.settings)


# Two of them ------------------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_here_and_elsewhere(
    spark: SparkSession, s3_url: str, tmp_path: Path, elsewhere: Callable[[], None], long_leases: None
) -> None:
    scene = make_scene(tmp_path, s3_url)
    run = wm.start(scene.topology, spark=spark, **scene.settings)
    try:
        for _ in range(2):
            with pytest.raises(CheckpointMismatch, match="is in use by another run"):
                scene.run(spark, **scene.settings)
            elsewhere()
        assert "nothing runs" not in _running_text(s3_url), "others may look at it"
        wait_for(scene.is_at_rest, "the first run does not get on")
    finally:
        run.stop()
    scene.run(spark, **scene.settings)
    scene.check(least=10)


def _running_text(url: str) -> str:
    from watersmeet.spark.versions_text import running_text

    return running_text(mirror_of(url))


def test_a_process_that_has_lost_its_lease_commits_and_deletes_no_more(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[], None], short_leases: None
) -> None:
    def opened() -> Checkpoint:
        return Checkpoint(mirror_of(s3_url) / "here", {"queries": {}}, FLUSHED)

    def with_rows(held: Checkpoint) -> SiteLedger:
        part = held.shelf.put("rows", pa.table({"x": [1]}))
        return replace(held.ledger, number=held.ledger.number + 1, inputs=(*held.ledger.inputs, part))

    with monkeypatch.context() as patch:  # as of a process that stands still
        patch.setattr(Lease, "_renew", lambda self: None)
        first = opened()
    first.commit(with_rows(first))
    elsewhere()
    second = opened()
    assert second.ledger == first.ledger and not second.is_new
    second.commit(with_rows(second))
    with pytest.raises(CheckpointMismatch, match="was taken over by another run, so this one stops"):
        first.commit(with_rows(first))
    first.forget_unused()
    first.close()
    second.commit(with_rows(second))
    second.close()
    elsewhere()
    third = opened()
    try:
        assert third.ledger.number == 2
        third.shelf.verify_again()
        assert [third.shelf.get(part.path).num_rows for part in third.ledger.inputs] == [1, 1, 1]
        kept = {key.rpartition("/")[2] for key in open_store(s3_url).sizes("here/state/")}
        assert kept >= third.ledger.paths
    finally:
        third.close()


# The end at any request -------------------------------------------------------------------------------------------


class Ending:
    """Lets so many writing requests through; the next takes place or not, and from then on none is answered."""

    def __init__(self, after: int) -> None:
        self._left, self._last = after, random.Random(after).choice(["lose", "refuse"])
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str) -> str:
        with self._lock:
            if method in ("GET", "HEAD") and self._left >= 0:
                return "pass"
            self._left -= 1
            return "pass" if self._left >= 0 else self._last if self._left == -1 else "refuse"


def end_and_resume(
    spark: SparkSession, faults: Faults, directory: Path, monkeypatch: pytest.MonkeyPatch, ends: list[int]
) -> None:
    """Run, each time on another machine, until the store is out of reach; then to the end."""
    monkeypatch.setattr("watersmeet.spark.store.object_store._RETRY", {"max_retries": 0})
    monkeypatch.setattr("watersmeet.spark.store.object_store._ATTEMPTS", 1)
    scene = make_scene(directory, new_url())
    for number, after in enumerate(ends):
        monkeypatch.setenv("WATERSMEET_CACHE", str(directory / f"cache{number}"))
        faults.decide = Ending(after)
        with contextlib.suppress(wm.WatersmeetError):  # it may be over before
            scene.run(spark, **scene.settings)
        faults.decide = lambda method, path: "pass"
    monkeypatch.setenv("WATERSMEET_CACHE", str(directory / "cache"))
    scene.run(spark, **scene.settings)
    scene.check(least=10)


@pytest.mark.parametrize("ends", [[6, 19], pytest.param([11, 25], marks=pytest.mark.soak)], ids=str)
def test_a_run_goes_on_after_the_store_was_out_of_reach(
    spark: SparkSession,
    faults: Faults,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[int],
    short_leases: None,
) -> None:
    end_and_resume(spark, faults, tmp_path, monkeypatch, ends)
    assert sum(what != "pass" for _, _, what in faults.seen) >= len(ends)


@pytest.mark.soak
def test_the_store_is_out_of_reach_at_any_request(
    spark: SparkSession,
    faults: Faults,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_seeds: FreshSeeds,
    short_leases: None,
) -> None:
    for seed in fresh_seeds.take(30):
        chance = random.Random(seed)
        (tmp_path / str(seed)).mkdir()
        ends = [chance.randrange(60) for _ in range(chance.randrange(1, 5))]
        end_and_resume(spark, faults, tmp_path / str(seed), monkeypatch, ends)


@pytest.mark.soak
def test_a_store_that_is_slow_and_fails_now_and_then_changes_no_answer(
    spark: SparkSession, faults: Faults, tmp_path: Path
) -> None:
    chance = random.Random(7)

    def decide(method: str, path: str) -> str:
        time.sleep(chance.choice([0, 0, 0.03]))
        return chance.choices(["pass", "refuse", "lose"], [8, 1, 1])[0]

    scene = make_scene(tmp_path, new_url())
    faults.decide = decide
    scene.run(spark, **scene.settings)
    faults.decide = lambda method, path: "pass"
    scene.check(least=10)
    assert {"refuse", "lose"} <= {what for _, _, what in faults.seen}


def test_an_old_answer_of_the_store_is_noticed(
    spark: SparkSession, faults: Faults, tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    scene = make_scene(tmp_path, new_url())
    scene.run(spark, **scene.settings)
    assert scene.ledger("here").number > 0  # it is read as it is now
    add_rows(scene)
    scene.run(spark, **scene.settings)
    faults.decide = lambda method, path: "stale" if path.endswith("ledger.json") else "pass"
    elsewhere()
    with pytest.raises(CheckpointMismatch, match="was taken over by another run"):
        scene.run(spark, **scene.settings)
    faults.decide = lambda method, path: "pass"
    scene.run(spark, **scene.settings)
    scene.check(least=10)


# Processes --------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_processes_that_are_killed_go_on(s3_url: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, s3_url, count=40)
    command = ["run", str(scene.topology_path), "--quiet", "--master", "local[2]", "--checkpoint", s3_url]
    chance = random.Random(3)
    with contextlib.ExitStack() as runs:
        for victim in ("python", "group", "java"):
            before = scene.ledger("here").number
            run = runs.enter_context(CommandProcess(command, tmp_path / "log.txt"))
            wait_for(lambda: scene.ledger("here").number > before, "no micro-batch is completed", run.check)  # noqa: B023
            time.sleep(chance.uniform(0, 0.3))
            run.kill(victim)
        runs.enter_context(CommandProcess([*command, "--once"], tmp_path / "log.txt")).finish()
    scene.check(least=10)


# What cannot be done ----------------------------------------------------------------------------------------------


def test_what_stores_do_not_have_is_refused(spark: SparkSession, s3_url: str, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, s3_url)
    with pytest.raises(
        InputError, match="is in no store that commits can be made in; HDFS replaces no file on a condition"
    ):
        scene.run(spark, checkpoint="hdfs://host/x")
    with pytest.raises(InputError, match="cannot be moved aside"):
        scene.run(spark, checkpoint=s3_url, fresh=True)


def test_a_mirror_is_as_the_store_has_it_and_keeps_what_is_of_this_machine(s3_url: str) -> None:
    open_store(s3_url).put("here/topology.json", b"{}")
    here = mirror_of(s3_url) / "here"
    (here / KEPT).write_text("events")
    (here / "ledger.json").write_text("old")
    mirror_of(s3_url)
    assert {path.name for path in here.iterdir()} == {"lock", "topology.json", KEPT}


def test_a_mirror_knows_its_origin(s3_url: str, tmp_path: Path) -> None:
    assert origin_of(mirror_of(s3_url) / "here") == open_store(f"{s3_url}/here")
    assert origin_of(tmp_path / "here") is None
