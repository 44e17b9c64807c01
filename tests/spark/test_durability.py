"""What is at rest: checkpoints that are moved, copied and restored, halves of them, damaged bytes, and power cuts."""

import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from scenes import Scene, make_batches

import watersmeet as wm
from watersmeet.cli.main import run_command
from watersmeet.errors import CheckpointDamaged
from watersmeet.program.site.ledger import FORMAT
from watersmeet.program.storage.shelf import Part
from watersmeet.spark import durable
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.durable import FLUSHED, sealed, unsealed
from watersmeet.spark.files import FileShelf
from watersmeet.spark.spark_log import SparkLog

SQL = "SELECT a.id AS a_id, b.id AS b_id, b.s FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k"
CURE = (
    "; restore the whole checkpoint from a copy, or start over: remove it and the output of its sinks (with several "
    "sites the checkpoints of all and the links)"
)


def write_scene(directory: Path, count: int = 4) -> Scene:
    batches = {name: make_batches(seed, count, 40, keys=12) for seed, name in enumerate("ab")}
    return Scene(directory, batches, {"q": SQL}, late=["a"], durability="power").write()


def add_rows(scene: Scene) -> None:
    for seed, name in enumerate("ab"):
        first = scene.rows(name)
        scene.add(name, make_batches(seed + 5, 2, 40, first=first, keys=12))


@pytest.fixture(scope="module")
def used(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A scene that has been run; tests take copies of its checkpoint."""
    scene = write_scene(tmp_path_factory.mktemp("used"))
    scene.run(spark)
    scene.check(least=10)
    return scene


@pytest.fixture
def site(used: Scene, tmp_path: Path) -> Path:
    """A copy of a checkpoint's only site."""
    shutil.copytree(used.checkpoint, tmp_path / "copy")
    return tmp_path / "copy" / "here"


# The same checkpoint elsewhere ----------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["moved", "copied", "symlinked", "restored"])
def test_a_checkpoint_goes_on_under_another_path(spark: SparkSession, tmp_path: Path, form: str) -> None:
    scene = write_scene(tmp_path)
    scene.run(spark)
    other = tmp_path / "elsewhere"
    match form:
        case "moved":
            scene.checkpoint.rename(other)
        case "copied" | "restored":
            shutil.copytree(scene.checkpoint, other)
        case "symlinked":
            other.symlink_to(scene.checkpoint)
    add_rows(scene)
    if form == "restored":  # what came since is in the sinks, and comes again, in other micro-batches
        scene.run(spark)
        shutil.rmtree(scene.checkpoint)
        other.rename(scene.checkpoint)
        add_rows(scene)
        scene.run(spark)
    else:
        scene.run(spark, checkpoint=other)
    if form in ("moved", "copied"):
        shutil.rmtree(scene.checkpoint, ignore_errors=True)
        other.rename(scene.checkpoint)  # where the scene looks for it
    scene.check(least=10)


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_project_goes_on_in_another_directory_with_its_data(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """Checkpoint, data, links and sinks together, as when a backup is restored elsewhere."""
    scene = write_scene(tmp_path / "before")
    scene.run(spark)
    if how == "moved":
        scene.directory.rename(tmp_path / "after")
    else:
        shutil.copytree(scene.directory, tmp_path / "after", copy_function=shutil.copyfile)
    moved, said = replace(scene, directory=tmp_path / "after"), list[str]()
    add_rows(moved)
    moved.run(spark, warn=said.append)
    moved.check(least=10)
    assert [text for text in said if "4 files" in text and "read before" in text] == said and len(said) == 2, said


# Half a checkpoint ----------------------------------------------------------------------------------------------------


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def some_state(site: Path) -> Path:
    return max((site / "state").iterdir(), key=lambda path: path.stat().st_size)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no ledger": (lambda site: (site / "ledger.json").unlink(), "checkpoint {site}: ledger.json is missing"),
    "no identity": (lambda site: (site / "identity.json").unlink(), "checkpoint {site}: identity.json is missing"),
    "no Spark": (
        lambda site: shutil.rmtree(site / "spark"),
        "Spark's log and the ledger do not agree: {site}/spark/offsets/2 is missing, but the ledger has micro-batch 3 "
        "as ingested",
    ),
    "old ledger": (
        lambda site: (site / "ledger.json").write_text(sealed(_as_of(site, 1))),
        "Spark's log and the ledger do not agree: {site}/spark has run micro-batch 3, but the ledger ends with 1",
    ),
    "torn offsets": (
        lambda site: (site / "spark/offsets/3").write_text(""),
        "Spark's log and the ledger do not agree: {site}/spark/offsets/3 is damaged, but the ledger has micro-batch 3 "
        "as ingested",
    ),
    "missing file": (
        lambda site: some_state(site).unlink(),
        "checkpoint {site}: 1 of the {count} state files that the ledger names are missing or cut short ({file})",
    ),
    "short file": (
        lambda site: truncate(some_state(site)),
        "checkpoint {site}: 1 of the {count} state files that the ledger names are missing or cut short ({file})",
    ),
    "flipped bit": (
        lambda site: flip_a_bit(some_state(site)),
        "state file {site}/state/{file} is damaged, its checksum does not match",
    ),
    **{
        f"{how} {name}": (
            lambda site, name=name, change=change: change(site / name),  # type: ignore[misc]
            f"checkpoint {{site}}: {name} is damaged (its checksum does not match)",
        )
        for name in ("ledger.json", "identity.json")
        for how, change in (
            ("truncated", truncate),
            ("empty", lambda path: path.write_text("")),
            ("flipped", flip_a_bit),
        )
    },
}


def _as_of(site: Path, batch: int) -> str:
    ledger = json.loads(unsealed((site / "ledger.json").read_text()))
    return json.dumps({**ledger, "ingested_batch": batch, "batch": batch})


@pytest.mark.parametrize("damage", DAMAGES)
def test_half_a_checkpoint_is_refused_with_a_cure(
    spark: SparkSession, used: Scene, site: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    change, text = DAMAGES[damage]
    named = {"site": site, "count": len(list((site / "state").iterdir())), "file": some_state(site).name}
    change(site)
    before = sorted(path for path in site.rglob("*") if path.is_file())
    sentence = text.format(**named) + CURE
    assert run_command(["check", "--checkpoint", str(site.parent)]) == 1
    assert capsys.readouterr().err == f"watersmeet: {sentence}\n"
    if damage != "flipped bit":  # which is found when rows come that look for others there
        with pytest.raises(wm.CheckpointDamaged) as refused:
            used.run(spark, checkpoint=site.parent)
        assert str(refused.value) == sentence
    assert sorted(path for path in site.rglob("*") if path.is_file()) == before, "something was deleted"


def test_a_flipped_bit_in_a_window_ends_a_run(spark: SparkSession, tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    scene.run(spark)
    state = some_state(scene.checkpoint / "here")
    flip_a_bit(state)
    add_rows(scene)
    with pytest.raises(wm.CheckpointDamaged) as refused:
        scene.run(spark)
    assert str(refused.value) == f"state file {state} is damaged, its checksum does not match{CURE}"
    flip_a_bit(state)
    scene.run(spark)
    scene.check(least=10)


def test_a_flipped_bit_in_sparks_log_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has no checksums of it: numbers of lists and names of files are believed as they are."""
    scene = replace(write_scene(tmp_path), options={"maxFilesPerTrigger": 1, "fileNameOnly": "false"})
    scene.run(spark)
    add_rows(scene)
    log = scene.checkpoint / "here" / "spark"
    for name in ("offsets/3", "offsets/2", "sources/0/3", "sources/1/2", "metadata"):
        data = (log / name).read_bytes()
        other = data.replace(b"0000", b"0001").replace(b'"logOffset":', b'"logOffset":1') if name[0] != "m" else b"{}"
        assert other != data
        (log / name).write_bytes(other)
        with pytest.raises(CheckpointDamaged, match=f"Spark's log is damaged at {log / name}, its checksum does not"):
            scene.run(spark)
        (log / name).write_bytes(data)
    scene.run(spark)
    scene.check(least=10)


def test_check_verifies_a_checkpoint_and_repairs_what_is_safe(
    used: Scene, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = list((site / "state").iterdir())
    size = sum(path.stat().st_size for path in files)
    verified = (
        f"{site}: verified identity, ledger up to micro-batch 3, {len(files)} state files of {size:,} bytes, "
        "Spark's log up to micro-batch 3\n"
    )
    assert run_command(["check", "--checkpoint", str(site.parent)]) == 0
    assert capsys.readouterr().out == verified
    spare = [site / "spark/commits/3", site / "spark/offsets/4", site / "state/left-1-00000000.arrow"]
    spare.append(site / "ledger.json.tmp")
    for path in spare:
        path.write_text("")
    left = "left by a power cut or a killed process, nobody needs it"
    assert run_command(["check", "--checkpoint", str(site.parent)]) == 0
    assert capsys.readouterr().out == verified + "".join(
        f"{path}: {left}; the next start or --repair removes it\n" for path in spare
    )
    assert all(path.exists() for path in spare)
    assert run_command(["check", "--checkpoint", str(site), "--repair"]) == 0
    assert capsys.readouterr().out == verified + "".join(f"{path}: {left}; removed\n" for path in spare)
    assert not any(path.exists() for path in spare)
    for wrong in (["check"], ["check", "--repair"], ["check", "--checkpoint", str(site / "state")]):
        assert run_command(wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_checkpoint_of_the_form_before_is_refused(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "identity.json").write_text(json.dumps({"format": 2, "run_id": "0a1b2c3d"}))
    assert run_command(["check", "--checkpoint", str(site.parent)]) == 1
    assert capsys.readouterr().err == (
        f"watersmeet: checkpoint {site} was made by an earlier version, without checksums; this version has them: give "
        "--checkpoint another place, and empty sinks\n"
    )


# The parts ------------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_although_a_cut_has_left_it_under_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rename that is half on the disk; writing to the one name would change the other before anything else."""
    ledger, seen = tmp_path / "ledger.json", []
    ledger.write_text("old")
    os.link(ledger, tmp_path / "ledger.json.tmp")
    monkeypatch.setattr(durable, "flush_path", lambda path: seen.append(ledger.read_text()))
    for text in ("new", "newer"):
        FLUSHED.replace(ledger, text, after=[tmp_path])
    assert seen == ["old", "old", "new", "new", "new", "newer"] and ledger.read_text() == "newer"


def test_a_start_that_fails_lets_go_of_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> Checkpoint:
        return Checkpoint(tmp_path / "here", {"format": FORMAT, "queries": {}}, FLUSHED)

    def fail(shelf: FileShelf, names: Any) -> None:
        raise OSError("the disk fails")

    opened().close()
    with monkeypatch.context() as patch:
        patch.setattr(FileShelf, "keep_only", fail)
        with pytest.raises(OSError, match="the disk fails") as failed:
            opened()
    opened().close()
    assert failed.tb is not None  # which has held on to all that was open


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_tasks_write_on_other_machines_is_flushed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """On a cluster the driver cannot flush what an executor has in memory; here it does so itself before it commits."""
    checkpoint = Checkpoint(tmp_path / "here", {"format": FORMAT, "queries": {}}, FLUSHED, is_shared=is_shared)
    shelf: FileShelf = pickle.loads(pickle.dumps(checkpoint.shelf))  # as a task gets it
    flushed: list[str] = []
    monkeypatch.setattr(durable, "flush_path", lambda path: flushed.append(os.path.basename(path)))
    names = [shelf.put("rows", pa.table({"k": [1]})).path, shelf.put_bytes("parcel", b"bytes")]
    assert flushed.count("state") == len(names) * is_shared and (set(names) <= set(flushed)) is is_shared
    inputs = tuple(Part(name, 1, 1) for name in names)
    checkpoint.commit(replace(checkpoint.ledger, inputs=inputs))
    assert set(names) <= set(flushed) and flushed.index(names[0]) < flushed.index("here")
    checkpoint.close()


def test_a_file_is_verified_once_by_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = FileShelf(str(tmp_path))
    name = shelf.put_bytes("x", b"some bytes")
    verified: list[int] = []
    crc32 = zlib.crc32

    def counted(*data: Any) -> int:
        verified.append(crc32(*data))
        return verified[-1]

    monkeypatch.setattr(zlib, "crc32", counted)
    assert shelf.get_bytes(name) == b"some bytes" and not verified, "this process has written it"
    shelf.verify_again()
    assert shelf.get_bytes(name, 5) == shelf.get_bytes(name, 5, 5) == b"bytes"
    assert len(verified) == 1
    flip_a_bit(tmp_path / name)
    shelf.verify_again()
    with pytest.raises(wm.CheckpointDamaged):
        shelf.get_bytes(name)


@pytest.mark.parametrize("text", ['{"a":1,"b":[]}', '{\n  "a": "ü"\n}'])
def test_a_seal_holds(text: str) -> None:
    assert unsealed(sealed(text)) == text
    assert json.loads(sealed(text)).keys() == json.loads(text).keys() | {"crc32"}
    for broken in ("", "{}", text, sealed(text)[:-1], sealed(text).replace("a", "c", 1)):
        with pytest.raises(ValueError, match="checksum"):
            unsealed(broken)


def log(directory: Path, ends: dict[int, int], lists: dict[str, str]) -> Path:
    """Spark's log with one source of files: up to which list each micro-batch goes, and what is in the lists."""
    for kind in ("offsets", "sources/0", "commits"):
        (directory / kind).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"x"}')
    for batch, end in ends.items():
        (directory / "offsets" / str(batch)).write_text(f'v1\n{{"conf":{{}}}}\n{{"logOffset":{end}}}')
    for name, text in lists.items():
        (directory / "sources/0" / name).write_text(text)
    return directory


WHOLE = 'v1\n{"path":"x","batchId":0}'


@pytest.mark.parametrize(
    ("lists", "torn"),
    [
        ({"0": WHOLE, "1": WHOLE, "2": WHOLE}, []),
        ({"0": WHOLE, "1": WHOLE, "2": ""}, ["offsets/2", "sources/0/2"]),
        ({"0": WHOLE, "1": WHOLE, "2": WHOLE[:-4]}, ["offsets/2", "sources/0/2"]),
        ({"0": WHOLE, "1": WHOLE}, ["offsets/2"]),  # the name of the list is lost
        ({"0": WHOLE, "1": ""}, None),  # it was ingested
    ],
)
def test_torn_lists_of_files_are_planned_anew(tmp_path: Path, lists: dict[str, str], torn: list[str] | None) -> None:
    place = log(tmp_path / "spark", {0: 0, 1: 1, 2: 2}, lists)
    judged = SparkLog(place, ingested=1)
    judged.check()
    if torn is None:
        with pytest.raises(wm.CheckpointDamaged, match="Spark's log is damaged at"):
            judged.torn()
    else:
        assert [str(path.relative_to(place)) for path in judged.torn()] == torn
    needed = {os.path.relpath(path, place) for path in judged.needed()} - {f"sources/0/{name}" for name in lists}
    assert needed == {".", "metadata", "offsets", "offsets/0", "offsets/1", "sources", "sources/0"}


def test_the_beginning_of_an_entry_that_a_killed_run_left_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    files = [scene.directory / "data" / name for name in "ab"]
    for place in files:
        place.rename(place.with_name(f"{place.name} later"))
        place.mkdir()
    scene.run(spark)  # there is nothing to read: Spark has come to plan its first micro-batch
    offsets = scene.checkpoint / "here" / "spark" / "offsets"
    shutil.rmtree(offsets)
    offsets.mkdir()
    (offsets / ".0.1234.tmp").write_text("v1", encoding="utf-8")
    for place in files:
        place.rmdir()
        place.with_name(f"{place.name} later").rename(place)
    scene.run(spark)
    scene.check(least=10)
