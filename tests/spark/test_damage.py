"""Any file of a checkpoint or a link may be found otherwise than it was left: a start refuses it, or all is right.

A scene at one site or two is run twice; then rows come, and before the next run one file is torn, flipped, emptied,
lost, as it was a run before, or something else. What is refused goes on once the file is mended.
"""

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hangs
import pytest
from pyspark.sql import SparkSession
from scenes import make_batches
from seeds import FreshSeeds
from spark.recovery import APART, PLAN, make_scene

from watersmeet.errors import WatersmeetError

SCENES: dict[str, dict[str, Any]] = {
    "two sites": {"homes": APART, "site": "nyc", "plan": PLAN},
    "one site": {},
    "Spark lists": {"options": {"fileNameOnly": "false"}},
}
HOW = ("torn", "flipped", "flipped", "empty", "lost", "older", "another")
_LEFT_OUT = {"lock"}


class Used:
    """A scene after two runs, with rows for a third: as it was after the first, and as it is."""

    def __init__(self, spark: SparkSession, directory: Path, where: Mapping[str, Any]) -> None:
        self.directory, self.is_listed_by_spark = directory, "options" in where
        scene = make_scene(directory / "now", ["plain", "different"], batches=3, rows=60, seed=1, **where)
        scene.run(spark)
        shutil.copytree(scene.directory, directory / "before")
        for seed in (20, 30):
            for number, name in enumerate("abc"):
                more = make_batches(seed + number, 2, 60, first=scene.rows(name), keys=150, texts=5, late_by_s=5)
                scene.add(name, more)
            if seed == 20:
                scene.run(spark)
        shutil.copytree(scene.directory, directory / "as it was")
        self.scene = scene

    def restore(self) -> None:
        """Put everything in place as it was before the third run."""
        shutil.rmtree(self.scene.directory)
        shutil.copytree(self.directory / "as it was", self.scene.directory)

    def files(self) -> list[Path]:
        """What may be damaged, below the directory of the scene: where Spark lists files, its log."""
        root = self.scene.directory
        found = [*(root / "checkpoint").rglob("*"), *(root / "links").rglob("*"), *(root / "out").rglob(".writer-*")]
        names = sorted(path.relative_to(root) for path in found if path.is_file() and path.name not in _LEFT_OUT)
        return [name for name in names if "spark" in name.parts or not self.is_listed_by_spark]

    def damage(self, chance: random.Random) -> tuple[Path, str, bytes]:
        """Damage a file: which, how, and what it was."""
        while True:
            file, how = chance.choice(self.files()), chance.choice(HOW)
            path, before = self.scene.directory / file, self.directory / "before" / file
            data = path.read_bytes()
            other = _changed(data, before.read_bytes() if before.exists() else data, how, chance)
            if other == data:
                continue
            path.unlink()  # tables that are mapped stay as they are
            if other is not None:
                path.write_bytes(other)
            return path, how, data


def _changed(data: bytes, before: bytes, how: str, chance: random.Random) -> bytes | None:
    at = chance.randrange(len(data)) if data else 0
    match how:
        case "torn":
            return data[:at]
        case "flipped":
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :] if data else data
        case "empty":
            return b""
        case "older":
            return before
        case "another":
            return chance.randbytes(len(data))
        case _:
            return None


def damage_and_go_on(spark: SparkSession, used: Used, seed: int) -> str:
    """Damage one file and run; what became of it."""
    used.restore()
    path, how, data = used.damage(random.Random(seed))
    what = f"{path.relative_to(used.scene.directory)} {how}"
    try:
        used.scene.run(spark)
    except WatersmeetError as error:
        text = str(error)
        assert "\n" not in text and "unexpected" not in text, f"{what}: {text}"
        path.write_bytes(data)
        used.scene.run(spark)
        ended = f"{what}: refused, {text}"
    else:
        ended = f"{what}: went on"
    used.scene.check(least=10)
    hangs.count("damaged files")
    return ended


@pytest.fixture(scope="module", params=list(SCENES.values()), ids=list(SCENES))
def used(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Used:
    return Used(spark, tmp_path_factory.mktemp("damage"), request.param)


@pytest.mark.few(2)
def test_a_damaged_file_is_refused_or_does_no_harm(spark: SparkSession, used: Used) -> None:
    for seed in range(2):
        damage_and_go_on(spark, used, seed)


@pytest.mark.soak
def test_many_damaged_files(spark: SparkSession, used: Used, fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(100):
        print(damage_and_go_on(spark, used, seed))
