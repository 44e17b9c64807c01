"""Sinks that get the answers of several micro-batches as one file, each answer once whatever happens."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from scenes import Scene, by_arrow, make_batches, wait_for

import watersmeet as wm
from watersmeet.program.site.ledger import Answers
from watersmeet.spark.deliver.claims import Start
from watersmeet.spark.deliver.delivery import Delivery
from watersmeet.spark.deliver.sinks import FileWriter
from watersmeet.spark.durable import UNFLUSHED
from watersmeet.spark.files import FileShelf

JOIN = "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def compact(scene: Scene, how: str = "1 hour", kind: str = "parquet") -> wm.Topology:
    topology = scene.topology
    queries = [replace(query, sink=replace(query.sink, compact=how, format=kind)) for query in topology.queries]
    return replace(topology, queries=tuple(queries))


def files(scene: Scene) -> list[str]:
    return sorted(path.name for path in scene.sink().glob("part-*"))


def test_one_file_a_run_and_one_more_for_what_comes_later(spark: Any, tmp_path: Path) -> None:
    batches = {name: make_batches(seed, batches=6, rows=40) for seed, name in enumerate("ab")}
    scene = Scene(tmp_path, batches, {"q": JOIN}).write()
    for count in (1, 2):
        if count == 2:
            scene.add("a", make_batches(9, batches=2, rows=40, first=240))
        wm.start(compact(scene), spark=spark, checkpoint=scene.checkpoint, once=True).awaitTermination()
        assert len(files(scene)) == count
        scene.check()


def test_answers_wait_no_longer_than_they_may_and_a_stop_delivers_them(spark: Any, tmp_path: Path) -> None:
    batches = {name: make_batches(seed, batches=3, rows=40) for seed, name in enumerate("ab")}
    scene = Scene(tmp_path, batches, {"q": JOIN}).write()
    handle = wm.start(compact(scene, "300 milliseconds"), spark=spark, checkpoint=scene.checkpoint)

    def fine() -> None:
        assert handle.exception() is None

    expected = scene.expected()
    wait_for(lambda: by_arrow(scene.sink()) == expected, "answers do not come", fine)
    handle.stop()
    scene.check(least=50)
    (tmp_path / "slow").mkdir()
    slow = Scene(tmp_path / "slow", batches, {"q": JOIN}).write()
    handle = wm.start(compact(slow, kind="json"), spark=spark, checkpoint=slow.checkpoint)
    wait_for(lambda: handle.usage().rows_in == sum(map(slow.rows, "ab")), "rows do not come in", fine)
    wait_for(lambda: handle.usage().rows_out == expected.total(), "there are too few answers", fine)
    assert files(slow) == [], "they wait for more"
    handle.stop()
    assert len(files(slow)) == 1
    rows = ds.dataset(slow.sink(), format="json").to_table().to_pylist()
    assert Counter((row["a_id"], row["b_id"]) for row in rows) == slow.expected()


def test_what_was_published_before_a_crash_is_not_published_again(spark: Any, tmp_path: Path) -> None:
    """The files show micro-batches 0 to 3 together, but the ledger does not know; then there is a fifth."""
    schema = StructType([StructField("k", LongType())])
    shelf = FileShelf(str(tmp_path / "state"))
    os.makedirs(shelf.directory)
    given = [
        Answers(
            number, (shelf.put("answers", pa.table({"k.k": [10 * number, 10 * number + 1]})).path,), (("k.k", "k"),), 2
        )
        for number in range(5)
    ]
    sink = wm.Sink("parquet", str(tmp_path / "out"), compact="1 hour")
    failures: list[BaseException] = []

    def delivery() -> Delivery:
        return Delivery(spark, "q", schema, FileWriter(spark, sink, "q-0123abcd", UNFLUSHED), shelf)

    def shown() -> list[int]:
        return sorted(ds.dataset(tmp_path / "out", format="parquet").to_table().column("k").to_pylist())

    first = delivery()
    first.roll_back(3, (), Start("first"))
    first.give(given[:4], failures.append)
    assert first.backlog <= 4
    first.flush(failures.append)
    assert first.last is not None
    first.last.result()
    assert shown() == [0, 1, 10, 11, 20, 21, 30, 31] and first.delivered == 3 and first.backlog == 0
    assert len(list((tmp_path / "out").glob("part-*"))) == 1

    first.close()  # as its process ends, whatever it has noted
    second = delivery()
    second.roll_back(4, given, Start("second", "first"))
    second.give(given, failures.append, replay=True)
    second.close()
    assert shown() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41] and second.delivered == 4
    assert len(list((tmp_path / "out").glob("part-*"))) == 1 and not failures


def test_compact_is_a_duration_and_for_files(tmp_path: Path, spark: Any) -> None:
    with pytest.raises(wm.InputError, match="compact '0 seconds' must be positive"):
        wm.Sink("parquet", "out", compact="0 seconds")
    with pytest.raises(wm.InputError, match="compact: duration 'soon' is not understood"):
        wm.Sink("parquet", "out", compact="soon")
    batches = {name: make_batches(seed, batches=1, rows=10) for seed, name in enumerate("ab")}
    scene = Scene(tmp_path, batches, {"q": JOIN}).write()
    with pytest.raises(wm.InputError, match="compact is for sinks of files"):
        wm.start(compact(scene, kind="noop"), spark=spark, checkpoint=scene.checkpoint)
    text = scene.topology_path.read_text().replace(
        "format: parquet\n      path: out/q", "format: parquet\n      compact: x"
    )
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(wm.InputError, match=r"wrong.yaml, line \d+: the sink of query 'q': compact: duration 'x'"):
        wm.load_topology(tmp_path / "wrong.yaml")
