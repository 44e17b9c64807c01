"""Power cuts: what was not flushed is lost or torn, and a run that goes on from what is left has every answer once.

A recorder sees every flush, since all durable writes go through `spark.durable`. When the power is cut it makes the
directory as a disk would have it: a file that was flushed has its bytes; of another, nothing, some or all; a directory
has the names that it had when it was flushed, and of what changed since then, any part.
"""

import os
import random
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hangs
import pytest
from processes import give_up
from pyspark.sql import SparkSession
from scenes import SECOND_US, Scene, make_batches
from seeds import FreshSeeds

from watersmeet.errors import WatersmeetError
from watersmeet.spark import durable
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.deliver.storage import LocalStorage
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.site.job import SiteJob

QUERIES = {
    "plain": "SELECT a.id AS a_id, b.id AS b_id, b.s FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k",
    "different": "SELECT DISTINCT a.m, b.m AS b_m, a.k FROM a [RANGE 9 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k",
}
APART = {"homes": {"a": "ams", "b": "nyc"}, "site": "nyc"}


class PowerCut(WatersmeetError):
    """Stands for the end of the machine."""


class Recorder:
    """What of a directory would survive; at a chosen moment the power is cut, and nothing more is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, keep: Path) -> None:
        self._root, self._keep = root, keep
        self._lock = threading.RLock()
        self._arm(-1, random.Random())
        self.is_cut = False
        self._patch = monkeypatch
        flush = durable.flush_path
        monkeypatch.setattr(durable, "flush_path", lambda path: self._flush(flush, Path(path)))
        for owner, names in (
            (durable.Disk, ["replace"]),
            (Checkpoint, ["commit", "forget_unused"]),
            (LocalStorage, ["move", "remove"]),
            (DirectoryLinks, ["publish", "acknowledge", "forget_acknowledged"]),
            (SiteJob, ["run_batch"]),
        ):
            for name in names:
                monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))
        monkeypatch.setattr(SiteJob, "close", self._around_close(SiteJob.close))

    def _arm(self, moment: int, chance: random.Random) -> None:
        self._moment, self._count, self._chance = moment, 0, chance

    def start(self, moment: int, chance: random.Random) -> None:
        """Take what is there as flushed, and cut the power at a moment from now on."""
        self._arm(moment, chance)
        self.is_cut = False
        self._files: dict[int, Path] = {}  # by inode: another name of the file, which keeps it
        self._names: dict[Path, dict[str, int]] = {}  # of each directory that was flushed
        shutil.rmtree(self._keep, ignore_errors=True)
        self._keep.mkdir()
        for path in (self._root, *self._root.rglob("*")):
            self._note(path)

    def _note(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            inode = path.stat().st_ino
            if inode not in self._files:
                self._files[inode] = self._keep / str(len(self._files))
                os.link(path, self._files[inode])

    def _flush(self, flush: Callable[[str | Path], None], path: Path) -> None:
        with self._lock:
            self._step()
            flush(path)
            if path.is_relative_to(self._root):
                self._note(path)
            self._step()

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **named: Any) -> Any:
            self._step()
            result = function(*arguments, **named)
            self._step()
            return result

        return around

    def _around_close(self, function: Callable[..., None]) -> Callable[..., None]:
        def around(job: SiteJob, **how: bool) -> None:
            if self.is_cut:
                give_up(job)
            else:
                function(job, **how)

        return around

    def _step(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == self._moment and not self.is_cut:
                self.is_cut = True
                self._image = self._root.with_name(f"{self._root.name} after the cut")
                shutil.rmtree(self._image, ignore_errors=True)
                self._survivors = self._chance.choice([0.0, 0.5, 0.9])
                self._write(self._root, self._image)
            if self.is_cut:
                raise PowerCut("the power is cut")

    def _write(self, place: Path, to: Path) -> None:
        """Make a directory as it is found after the cut."""
        to.mkdir()
        flushed = self._names.get(place, {})
        live = {entry.name: entry.inode() for entry in os.scandir(place)} if place.is_dir() else {}
        for name in sorted({*flushed, *live}):
            inode = live.get(name) if self._chance.random() < self._survivors else flushed.get(name)
            if inode is None:
                continue
            path = place / name
            if path in self._names or path.is_dir():
                self._write(path, to / name)
            elif inode in self._files:
                os.link(self._files[inode], to / name)
            elif live.get(name) == inode:
                self._tear(path, to / name)
            else:
                (to / name).write_bytes(b"")

    def _tear(self, path: Path, to: Path) -> None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # Spark removes its temporary files whether there is power or not
            data = b""
        to.write_bytes(data[: self._chance.choice([0, 0, len(data) // 2, len(data)])])

    def restore(self) -> None:
        """Put what has survived in place."""
        shutil.rmtree(self._root)
        self._image.rename(self._root)


def cut_and_resume(
    spark: SparkSession,
    patch: pytest.MonkeyPatch,
    directory: Path,
    seed: int,
    cuts: int,
    where: Mapping[str, Any],
) -> None:
    """Cut the power time and again, always going on from what the last cut left."""
    chance = random.Random(seed)
    (directory / "scene").mkdir(parents=True)
    count = 4 * cuts
    batches = {
        name: make_batches(seed + number, count, 40, keys=20, texts=5, late_by_s=5) for number, name in enumerate("ab")
    }
    settings = {"late": ["a"], "delay_us": 2 * SECOND_US, "durability": "power", **where}
    scene = Scene(directory / "scene", batches, QUERIES, **settings).write()
    assert scene.topology.durability == "power"
    recorder = Recorder(patch, scene.directory, directory / "kept")
    answers = {query: scene.expected(query) for query in scene.queries}
    for _ in range(cuts):
        recorder.start(chance.randint(1, 70), random.Random(chance.random()))
        with pytest.raises(WatersmeetError) as ended:
            scene.run(spark)
        assert recorder.is_cut, f"it failed by itself: {ended.value}"
        recorder.restore()
        scene.check_what_readers_see_now(answers)
        hangs.count("power cuts")
    recorder.start(-1, chance)
    scene.run(spark)
    scene.check(least=10)


@pytest.mark.few(1)
@pytest.mark.parametrize("where", [APART, {}], ids=["two sites", "one site"])
def test_a_power_cut_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Mapping[str, Any]
) -> None:
    cut_and_resume(spark, monkeypatch, tmp_path, 3, 5, where)


@pytest.mark.soak
@pytest.mark.parametrize("where", [{}, APART], ids=["one site", "two sites"])
def test_dozens_of_power_cuts(
    spark: SparkSession, tmp_path: Path, fresh_seeds: FreshSeeds, where: Mapping[str, Any]
) -> None:
    for seed in fresh_seeds.take(3):
        with pytest.MonkeyPatch.context() as patch:
            cut_and_resume(spark, patch, tmp_path / str(seed), seed, 12, where)
