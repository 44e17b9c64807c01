"""Executors, workers and drivers of a cluster that are killed at random moments: every answer once."""

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cluster import StandaloneCluster
from processes import CommandProcess
from s3 import environment, new_url, serve_s3
from scenes import Scene, make_batches, wait_for
from seeds import FreshSeeds, scaled
from store_scene import StoreScene

SQL = {
    "plain": "SELECT a.id AS a_id, b.id AS b_id, b.s FROM a [RANGE 90 SECONDS], b [RANGE 90 SECONDS] WHERE a.k = b.k",
    "evaluated": """SELECT a.id AS a_id, a.v + b.v AS sum, upper(b.s) AS name
        FROM a [RANGE 60 SECONDS], b [RANGE 60 SECONDS] WHERE a.k = b.k""",
}
KILLS = 25  # of each seed, in a long run


@dataclass
class Victims:
    """What can be killed; whatever is, comes again."""

    cluster: StandaloneCluster
    run: CommandProcess
    chance: random.Random
    workers: int = 2

    def kill(self, what: str) -> None:
        match what:
            case "executor":
                with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                    self.chance.choice(self.cluster.executors()).kill()
            case "worker":
                victim = self.chance.choice([one for one in self.cluster.workers if one.poll() is None])
                for child in psutil.Process(victim.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                victim.kill()
                victim.wait()
                self.cluster.add_worker(f"worker{self.workers}")
                self.workers += 1
            case _:
                self.run.kill(what)
                self.run.start()


@contextlib.contextmanager
def scene_at(where: str, directory: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    batches = {name: make_batches(seed + number, 60, 4000, keys=3000) for number, name in enumerate("ab")}
    if where == "directory":
        yield Scene(directory, batches, SQL, late=["a"]).write()
        return
    with serve_s3(directory / "s3") as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WATERSMEET_CACHE", str(directory / "cache"))
        scene = StoreScene(directory, batches, SQL, late=["a"], url=new_url())
        scene.write()
        yield scene


@pytest.mark.soak
@pytest.mark.parametrize("where", ["directory", "store"])
def test_whatever_is_killed_every_answer_comes_once(
    tmp_path: Path, fresh_seeds: FreshSeeds, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in fresh_seeds.take(2):
        directory = tmp_path / str(seed)
        directory.mkdir()
        chance = random.Random(seed)
        with scene_at(where, directory, seed, monkeypatch) as scene, StandaloneCluster(directory) as cluster:
            place = scene.url if isinstance(scene, StoreScene) else str(scene.checkpoint)
            command = ["run", str(scene.topology_path), "--quiet", "--master", cluster.master, "--checkpoint", place]
            command += ["--conf", "spark.driver.host=127.0.0.1"]
            with CommandProcess(command, directory / "log.txt") as run:
                victims = Victims(cluster, run, chance)
                kinds = chance.choices(["executor", "worker", "python", "group", "java"], [5, 3, 2, 2, 2], k=KILLS)
                for what in kinds[: max(4, scaled(KILLS))]:
                    await_progress(scene, run)
                    time.sleep(chance.uniform(0, 0.7))
                    victims.kill(what)
                wait_for(scene.is_at_rest, "it does not come to its end", run.check, scene.progress)
                run.stop()
            with CommandProcess([*command, "--once"], directory / "log.txt") as again:
                again.finish()
            scene.check()


def await_progress(scene: Scene, run: CommandProcess) -> None:
    before = scene.ledger("here").ingested_batch
    wait_for(
        lambda: scene.ledger("here").ingested_batch > before or scene.is_at_rest(),
        "no micro-batch is ingested",
        run.check,
        scene.progress,
    )
