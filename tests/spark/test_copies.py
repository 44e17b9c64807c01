"""Two processes of one run at the same time, on a checkpoint and a copy of it: only one of them goes on.

Both are in this process, where their locks keep them apart as well.
"""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scenes import PATIENCE_S, Scene, make_batches, wait_for

import watersmeet as wm
from watersmeet.errors import CheckpointMismatch
from watersmeet.spark.deliver import sinks
from watersmeet.spark.deliver.storage import LocalStorage
from watersmeet.spark.durable import UNFLUSHED
from watersmeet.spark.links.protocol import Fenced

QUERIES = {"q": "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"}


def make_scene(directory: Path, **where: Any) -> Scene:
    data = {name: make_batches(number, 2) for number, name in enumerate("ab")}
    return Scene(directory, data, QUERIES, late=["a"], **where).write()


@contextmanager
def running(handle: wm.StreamingRun) -> Iterator[wm.StreamingRun]:
    try:
        yield handle
    finally:
        handle.stop()


def test_a_copy_is_kept_from_a_sink_that_is_in_use(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_PATIENCE_S", 0.2)
    scene = make_scene(tmp_path)
    scene.run(spark)
    copy = tmp_path / "copy"
    with running(wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint)):
        shutil.copytree(scene.checkpoint, copy)
        with pytest.raises(CheckpointMismatch, match=r"late_a is in use by another process of the same run, which has"):
            scene.run(spark, checkpoint=copy)
        for name, number in (("a", 10), ("b", 11)):
            scene.add(name, make_batches(number, 1, first=140))
        wait_for(lambda: scene.ledger("here").streams["b"].rows == scene.rows("b"), "new rows are not joined")
    scene.check()
    scene.run(spark)  # nobody holds anything
    scene.check()


def test_of_two_processes_of_a_site_the_older_is_fenced_and_lets_go_of_its_sinks(spark: Any, tmp_path: Path) -> None:
    scene = make_scene(tmp_path, homes={"a": "ams"}, site="nyc")
    scene.run(spark)
    copy = tmp_path / "copy"
    older = wm.start_site(scene.topology, "nyc", spark=spark, checkpoint=scene.checkpoint)
    shutil.copytree(scene.checkpoint / "nyc", copy / "nyc")
    with running(older), ThreadPoolExecutor(1) as thread:
        ended = thread.submit(older.awaitTermination)  # as the command line does: it lets go of everything then
        with running(wm.start_site(scene.topology, "nyc", spark=spark, checkpoint=copy)) as newer:
            with pytest.raises(Fenced, match=r"another process runs nyc on a copy .*, so this one stops"):
                ended.result(PATIENCE_S)
            before = newer.usage().rows_out
            for name, number in (("a", 10), ("b", 11)):
                scene.add(name, make_batches(number, 1, first=140))
            scene.run_site(spark, "ams")
            wait_for(lambda: newer.usage().rows_out > before, "the newer one does not go on")
    shutil.rmtree(scene.checkpoint / "nyc")
    shutil.move(copy / "nyc", scene.checkpoint / "nyc")
    scene.run(spark)
    scene.check()


def test_a_directory_is_held_by_one_at_a_time_also_when_it_is_removed(tmp_path: Path) -> None:
    storage, place = LocalStorage(UNFLUSHED), str(tmp_path / "held")
    let_go = storage.hold(place)
    assert let_go is not None and storage.hold(place) is None
    storage.remove(place)
    another = storage.hold(place)  # it is another directory
    assert another is not None and storage.hold(place) is None
    let_go()
    assert storage.hold(place) is None
    another()
    again = storage.hold(place)
    assert again is not None
    again()
