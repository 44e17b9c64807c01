"""Two processes of one run at the same time, on a checkpoint and a copy of it: only one of them goes on.

Both are in this process, where their locks keep them apart as well.
"""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scenes import PATIENCE_S, Scene, by_arrow, make_batches, wait_for

import watersmeet as wm
from watersmeet.errors import CheckpointMismatch
from watersmeet.spark.deliver import sinks
from watersmeet.spark.deliver.claims import Start
from watersmeet.spark.deliver.sinks import FileWriter
from watersmeet.spark.deliver.storage import LocalStorage
from watersmeet.spark.durable import UNFLUSHED
from watersmeet.spark.links.protocol import Fenced
from watersmeet.testing import bag

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


def check_sinks(scene: Scene) -> None:
    assert by_arrow(scene.sink("q")) == scene.expected("q")
    assert by_arrow(scene.late_sink("a")) == bag(scene.aside("a"))


def test_a_checkpoint_whose_copy_has_gone_on_is_refused_at_its_sinks_and_an_older_copy_goes_on(
    spark: Any, tmp_path: Path
) -> None:
    """One after the other, at one site: no link would tell. They cut rows into different micro-batches."""
    scene = make_scene(tmp_path)
    scene.run(spark)
    copy, backup = tmp_path / "copy", tmp_path / "backup"
    for place in (copy, backup):
        shutil.copytree(scene.checkpoint, place)
    for number in (10, 11):
        scene.add("a", make_batches(number, 1, first=140))
        scene.add("b", make_batches(number + 20, 1, first=140))
        scene.run(spark)
    scene.run(spark, checkpoint=copy)  # takes all new files at once
    check_sinks(scene)
    with pytest.raises(CheckpointMismatch, match=r"late_a: a process on a copy of this checkpoint has gone on from"):
        scene.run(spark)
    scene.run(spark, checkpoint=copy)  # nothing has been changed by that
    check_sinks(scene)
    scene.run(spark, checkpoint=backup)  # it has delivered nothing that is not there
    check_sinks(scene)
    with pytest.raises(CheckpointMismatch, match=r"start with that copy, restore checkpoint and sink from copies of"):
        scene.run(spark, checkpoint=copy)
    shutil.rmtree(scene.checkpoint)
    shutil.move(backup, scene.checkpoint)
    scene.run(spark)
    scene.check()


@pytest.mark.parametrize("kind", ["local disk without locks", "Hadoop's"])
def test_a_process_whose_sink_was_taken_over_publishes_nothing_more(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The newer one comes at any moment of a publication."""
    place, out = str(tmp_path), tmp_path / "out"
    if kind == "Hadoop's":
        place = f"viewfs://{tmp_path.name.replace('_', '-')}/place"
        mounts = spark.sparkContext._jsc.hadoopConfiguration()
        mounts.set(f"fs.viewfs.mounttable.{place.split('/')[2]}.link./place", f"file:{tmp_path}")
    else:
        monkeypatch.setattr(LocalStorage, "hold", lambda storage, held: storage.make(held) or (lambda: None))

    def started(batch: int, token: str, before: str = "") -> FileWriter:
        writer = FileWriter(spark, wm.Sink("parquet", f"{place}/out"), "q-0123abcd", UNFLUSHED)
        writer.resume_after(batch, batch, Start(token, before))
        return writer

    def published(writer: FileWriter, batch: int, during: Callable[[], object] = lambda: None) -> None:
        def stage(path: str) -> int:
            (Path(path.replace(place, str(tmp_path))) / "part-0.parquet").write_text(f"{batch}")
            during()
            return 1

        writer.publish(stage, batch, replay=False)

    def shown() -> list[str]:
        return sorted(path.read_text() for path in out.glob("part-*"))

    older, newer = started(-1, "one"), list[FileWriter]()
    for batch in range(3):
        published(older, batch)
    with pytest.raises(Fenced, match=r"out was taken over by another process .* so this one stops"):
        published(older, 3, lambda: newer.append(started(1, "two", "one")))
    assert shown() == ["0", "1"], "what the newer one does not know of is taken back"
    with pytest.raises(Fenced):
        published(older, 3)
    published(newer[0], 2)
    storage = type(newer[0]._storage)
    move = storage.move

    def late_move(*given: Any) -> None:
        monkeypatch.setattr(storage, "move", move)
        started(2, "three", "two")
        move(*given)

    monkeypatch.setattr(storage, "move", late_move)  # it has looked whether it was overtaken: it was not, then
    with pytest.raises(Fenced):
        published(newer[0], 3)
    assert shown() == ["0", "1", "2"]
    with pytest.raises(CheckpointMismatch, match="has gone on from batch 1 since"):
        started(2, "four", "one")
    (claims,) = (path for path in out.glob(".writer-*") if path.suffix != ".crc")
    whole = claims.read_text()
    claims.write_text(whole[:-1])
    if kind != "Hadoop's":  # which has checksums of its own
        with pytest.raises(CheckpointMismatch, match=r"\.writer-q-0123abcd-0000000\d is damaged \(it is cut short\)"):
            started(2, "five", "three")
        claims.write_text(whole[: whole.rindex("\n", 0, -1) + 1])  # without its newest claim
        with pytest.raises(CheckpointMismatch, match=r"is damaged \(its checksum does not match\)"):
            started(2, "five", "three")


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
