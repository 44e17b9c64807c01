"""Files of streams: each that Spark would read is read, once, whatever its age, across restarts."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from scenes import wait_for

import watersmeet as wm
from watersmeet.program.storage.shelf import Part
from watersmeet.spark.files import FileShelf
from watersmeet.spark.ingest import new_files
from watersmeet.spark.ingest.new_files import Listing, NewFiles, listing_of
from watersmeet.topology.model import Query, Topology

START = datetime(2025, 1, 1, tzinfo=UTC)
OLD, NEW = 1_500_000_000, 4_000_000_000  # seconds since 1970
SQL = "SELECT a.id AS x, b.id AS y FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k"


def put(path: Path, at: float = 1_700_000_000, size: int = 1) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (at, at))
    return str(path)


def listed(listing: Listing, root: Path) -> list[str]:
    return [os.path.relpath(file.path, root) for file in listing.files()]


def stream(name: str, path: Path | str, **options: str) -> wm.Stream:
    schema = "ts timestamp, k bigint, id bigint"
    return wm.Stream(name, event_time="ts", schema=schema, source=wm.Source("parquet", str(path), options))


def listing(path: Path | str, **options: str) -> Listing:
    found = listing_of(stream("a", path, **options))
    assert found is not None
    return found


def rows(path: Path, number: int, at: float | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ts = pa.array([START + timedelta(seconds=number)], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"ts": ts, "k": pa.array([1]), "id": pa.array([number])}), path)
    if at is not None:
        os.utime(path, (at, at))


class Scene:
    """Two streams of files, joined whole."""

    def __init__(self, spark: Any, root: Path, **options: str) -> None:
        self.spark, self.root = spark, root
        streams = [stream(name, root / name, **options) for name in "ab"]
        streams = [
            wm.Stream(s.name, event_time="ts", schema=s.schema, source=s.source, watermark="1 hour") for s in streams
        ]
        self.topology = Topology(tuple(streams), (Query("q", SQL, sink=wm.Sink("parquet", str(root / "out"))),))
        rows(root / "b" / "0.parquet", 0)

    def run(self, **given: Any) -> wm.StreamingRun:
        handle = wm.start(self.topology, spark=self.spark, checkpoint=self.root / "c", once=True, **given)
        handle.awaitTermination()
        return handle

    @property
    def answered(self) -> Counter[int]:
        return Counter(ds.dataset(self.root / "out").to_table().column("x").to_pylist())


@pytest.mark.parametrize("names", [["b.parquet", "a c%20[1].parquet"], ["k=2/d.parquet", "k=1/c.parquet"]], ids=str)
def test_the_files_that_spark_would_list(spark: Any, tmp_path: Path, names: list[str]) -> None:
    hidden = [".hidden.parquet", "_temporary/0/x.parquet", "_SUCCESS", "z.parquet._COPYING_"]
    for number, name in enumerate([*names, *hidden]):
        put(tmp_path / name, 1_700_000_000 + number)
    of_spark = spark.read.format("binaryFile").load(str(tmp_path)).select("path").collect()
    assert sorted(names) == sorted(os.path.relpath(row.path.removeprefix("file:"), tmp_path) for row in of_spark)
    assert listed(listing(tmp_path), tmp_path) == names, "in the order of their modification"


def test_directories_patterns_and_single_files(tmp_path: Path) -> None:
    for name in ("x/1.parquet", "x/deep/2.parquet", "y/3.parquet", "y/4.csv"):
        put(tmp_path / name)
    assert listed(listing(tmp_path / "x"), tmp_path) == ["x/1.parquet"]
    assert listed(listing(tmp_path / "x", recursiveFileLookup="true"), tmp_path) == ["x/1.parquet", "x/deep/2.parquet"]
    assert listed(listing(tmp_path / "*"), tmp_path) == ["x/1.parquet", "y/3.parquet", "y/4.csv"]
    assert listed(listing(tmp_path / "y", pathGlobFilter="*.csv"), tmp_path) == ["y/4.csv"]
    assert listed(listing(f"file://{tmp_path}/y/3*"), tmp_path) == ["y/3.parquet"]
    assert listed(listing(tmp_path / "nowhere"), tmp_path) == []


def test_what_only_spark_can_list_is_left_to_it(tmp_path: Path) -> None:
    for options in ({"maxFileAge": "1d"}, {"cleanSource": "delete"}, {"maxFilesPerTrigger": "some"}):
        assert listing_of(stream("a", tmp_path, **options)) is None
    assert listing_of(stream("a", "s3a://bucket/a")) is None
    assert listing_of(stream("a", tmp_path / "{x,y}")) is None
    assert listing_of(wm.Stream("a", event_time="ts", schema="ts timestamp", source=wm.Source("rate"))) is None
    written_later = listing(tmp_path)
    (tmp_path / "_spark_metadata").mkdir()
    assert listing_of(stream("a", tmp_path)) is None
    with pytest.raises(wm.InputError, match="start the run again"):
        written_later.files()


def test_how_many_files_make_a_micro_batch(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / "a" / str(number), 1_700_000_000 + number, size=10)

    def batches(**options: str) -> list[list[str]]:
        new = NewFiles({"a": listing(tmp_path / "a", **options)}, FileShelf(str(tmp_path)), ())
        found = []
        new.look()
        while batch := new.next:
            assert new.next == batch, "as long as it is not taken"
            found.append([Path(file.path).name for file in batch["a"]])
            new.take(batch)
            new.look()
        return found

    assert batches() == [["0", "1", "2", "3", "4"]]
    assert batches(maxFilesPerTrigger="2") == [["0", "1"], ["2", "3"], ["4"]]
    assert batches(maxBytesPerTrigger="29") == [["0", "1"], ["2", "3"], ["4"]]
    assert batches(maxBytesPerTrigger="1") == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert batches(maxFilesPerTrigger="3", latestFirst="true") == [["4", "3", "2"], ["1", "0"]]


def test_names_are_known_again_after_a_restart(tmp_path: Path) -> None:
    put(tmp_path / "a" / "0")
    listings, shelf = {"a": listing(tmp_path / "a")}, FileShelf(str(tmp_path))
    new = NewFiles(listings, shelf, ())
    new.look()
    inputs = new.take(new.next)
    put(tmp_path / "a" / "1")
    new.look()
    new.take(new.next)  # no ledger names this: the run is killed
    again = NewFiles(listings, shelf, inputs)
    again.look()
    assert [Path(file.path).name for file in again.next["a"]] == ["1"]
    assert sum(part.rows for part in again.take(again.next)) == 2
    again.look()
    assert not again.next


def read_all(root: Path, tmp_path: Path, inputs: Sequence[Part] = ()) -> tuple[tuple[Part, ...], list[str], list[str]]:
    """Read what is new below a directory: the state files, which files these were, and what was said."""
    said: list[str] = []
    listings = {"a": listing(root, recursiveFileLookup="true")}
    new = NewFiles(listings, FileShelf(str(tmp_path)), inputs, said.append)
    new.look()
    files = [os.path.relpath(file.path, root) for file in new.next.get("a", ())]
    return (new.take(new.next) if files else tuple(inputs)), files, said


@pytest.mark.parametrize("how", ["moved", "copied", "symlinked"])
def test_files_are_known_again_in_another_directory(tmp_path: Path, how: str) -> None:
    before, after = tmp_path / "before" / "a", tmp_path / "after"
    for name in ("x=1/0", "x=2/0", "1"):
        put(before / name, size=100 + len(name))
        (before / name).write_bytes(name.encode() * 40)
    inputs, read, _ = read_all(before, tmp_path)
    assert sorted(read) == ["1", "x=1/0", "x=2/0"]
    match how:
        case "moved":
            before.rename(after)
        case "copied":
            shutil.copytree(before, after, copy_function=shutil.copyfile)  # which does not copy times
        case _:
            after.symlink_to(before)
    (after / "x=2" / "1").write_bytes(b"another directory, the same name")
    inputs, read, said = read_all(after, tmp_path, inputs)
    assert read == ["x=2/1"], "what is new and nothing else"
    assert len(said) == 1 and "stream 'a': 3 files" in said[0] and "not read again" in said[0]
    (after / "2").write_bytes(b"new")
    inputs, read, said = read_all(after, tmp_path, inputs)
    assert (read, said) == (["2"], []), "from now on they are known by the names that they have"
    assert sum(part.rows for part in inputs) == 5


def test_other_files_of_the_same_names_are_new(tmp_path: Path) -> None:
    for directory, text in (("jan", b"of January"), ("feb", b"February's")):
        (tmp_path / directory).mkdir()
        for name in "01":
            (tmp_path / directory / name).write_bytes(text + name.encode())
    inputs, _, _ = read_all(tmp_path / "jan", tmp_path)
    inputs, read, said = read_all(tmp_path / "feb", tmp_path, inputs)
    assert (sorted(read), said) == (["0", "1"], [])
    _, read, _ = read_all(tmp_path / "jan", tmp_path, inputs)
    assert read == [], "they were read"


def test_names_of_before_without_contents_are_known_again_where_they_are_the_same_file(tmp_path: Path) -> None:
    put(tmp_path / "real" / "0")
    put(tmp_path / "real" / "1")
    shelf = FileShelf(str(tmp_path))
    data = json.dumps([["a", str(tmp_path / "real" / "0")]]).encode()
    inputs = [Part(shelf.put_bytes("inputs", data), 1, len(data))]
    (tmp_path / "link").symlink_to(tmp_path / "real")
    _, read, _ = read_all(tmp_path / "link", tmp_path, inputs)
    assert read == ["1"]


def test_names_are_kept_in_few_files_and_those_of_files_that_are_gone_are_forgotten(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(new_files, "_MANY_NAMES", 64)
    new = NewFiles({"a": listing(tmp_path / "a")}, FileShelf(str(tmp_path)), ())
    put(tmp_path / "a" / "stays")
    written = 0
    for number in range(400):
        put(tmp_path / "a" / str(number))
        new.look()
        names = [Path(file.path).name for file in new.next["a"]]
        assert sorted(names) == [str(number)] + ["stays"] * (number == 0)
        inputs = new.take(new.next)
        written += inputs[-1].rows
        assert len(inputs) <= 9 and sum(part.rows for part in inputs) <= 200
        if number >= 20:
            os.unlink(tmp_path / "a" / str(number))
    assert written < 401 * 9


def test_no_file_is_left_out_by_its_age(spark: Any, tmp_path: Path) -> None:
    for options in ({}, {"fileNameOnly": "false"}):  # the latter for Spark to list
        root = tmp_path / str(len(options))
        scene = Scene(spark, root, **options)
        rows(root / "a" / "1.parquet", 1)
        scene.run()
        rows(root / "a" / "2.parquet", 2, OLD)
        rows(root / "a" / "3.parquet", 3, NEW)
        scene.run()
        rows(root / "a" / "4.parquet", 4)
        assert scene.run().usage().rows_in == 5
        assert scene.answered == Counter([1, 2, 3, 4])


def test_files_that_spark_lists_are_not_read_again_where_they_were_moved(spark: Any, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    rows(before / "a" / "1.parquet", 1)
    Scene(spark, before, fileNameOnly="false").run()
    before.rename(after)
    rows(after / "a" / "2.parquet", 2)
    moved = Scene(spark, after, fileNameOnly="false")
    with pytest.raises(wm.CheckpointMismatch, match=r"stream 'a': its files are in .*after/a now, and those that were"):
        moved.run()
    before.symlink_to(after)
    Scene(spark, before, fileNameOnly="false").run()
    assert moved.answered == Counter([1, 2])


def test_a_file_that_is_gone_before_it_is_read_is_named(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    scene, warnings = Scene(spark, tmp_path, maxFilesPerTrigger="1"), list[str]()
    for number in range(3):
        rows(tmp_path / "a" / f"{number}.parquet", number)
    take = NewFiles.take

    def taken(new: NewFiles, batch: Any) -> tuple[Part, ...]:
        (tmp_path / "a" / "1.parquet").unlink(missing_ok=True)
        return take(new, batch)

    monkeypatch.setattr(NewFiles, "take", taken)
    scene.run(warn=warnings.append)
    assert scene.answered == Counter([0, 2])
    assert warnings == [f"input file {tmp_path}/a/1.parquet was removed before it was read; going on without it"]


def test_files_that_wait_do_not_hide_new_ones_of_another_stream(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    scene, batches = Scene(spark, tmp_path, maxFilesPerTrigger="1"), list[set[str]]()
    for number in range(8):
        rows(tmp_path / "a" / f"{number}.parquet", number)
    take = NewFiles.take

    def taken(new: NewFiles, batch: Any) -> tuple[Part, ...]:
        batches.append(set(batch))
        if len(batches) == 2:
            rows(tmp_path / "b" / "1.parquet", 100)
        return take(new, batch)

    monkeypatch.setattr(NewFiles, "take", taken)
    handle = wm.start(scene.topology, spark=spark, checkpoint=tmp_path / "c")
    try:
        wait_for(lambda: len(batches) >= 8, "not all files are read")
    finally:
        handle.stop()
    assert batches == [{"a", "b"}, {"a"}, {"a", "b"}, *[{"a"}] * 5]
