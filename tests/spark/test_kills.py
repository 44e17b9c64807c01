"""A run that is killed by SIGKILL at random moments and started again ends with exactly the answers of a quiet one."""

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from processes import CommandProcess
from scenes import Scene, wait_for
from seeds import FreshSeeds, scaled
from spark.recovery import APART, PLAN, QUERIES, all_answers, make_scene

TWO_SITES = {"homes": APART, "site": "nyc", "plan": PLAN}


def kill_and_resume(scene: Scene, victims: Sequence[str], seed: int) -> None:
    chance, answers = random.Random(seed), all_answers(scene)
    command = ["run", str(scene.topology_path), "--quiet", "--master", "local[2]"]
    command += ["--checkpoint", str(scene.checkpoint)]

    def progress() -> list[tuple[int, int]]:
        return [(ledger.number, ledger.ingested_batch) for ledger in map(scene.ledger, scene.sites)]

    def is_over() -> bool:
        """Whether no row is left for a run to make progress with: it is killed all the same."""
        states = {name: scene.ledger(scene.home(name)).streams.get(name) for name in scene.batches}
        return all(state is not None and state.rows == scene.rows(name) for name, state in states.items())

    with contextlib.ExitStack() as runs:
        killed = []
        for victim in victims:
            # A run that is to be killed has no `--once`, so that it cannot be over before. The next one starts at once:
            # what the killed one leaves behind may not be quite dead yet.
            before, run = progress(), runs.enter_context(CommandProcess(command, scene.directory / "log.txt"))
            wait_for(lambda: progress() != before or is_over(), "no micro-batch is ever completed", run.check)  # noqa: B023
            time.sleep(chance.uniform(0, 0.7))
            run.kill(victim)
            killed.append(run)
            scene.check_what_readers_see_now(answers)
        runs.enter_context(CommandProcess([*command, "--once"], scene.directory / "log.txt")).finish()
        scene.check()
        for run in killed:
            run.check_no_orphans()


def test_a_run_whose_java_is_killed_goes_on_at_both_its_sites(tmp_path: Path) -> None:
    kill_and_resume(make_scene(tmp_path, ["plain"], batches=8, rows=150, seed=1, **TWO_SITES), ("java",), seed=1)


@pytest.mark.soak
def test_one_run_is_killed_in_every_way(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, tuple(QUERIES), batches=12, rows=150, seed=1)
    kill_and_resume(scene, ("python", "group", "java"), seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("where", [{}, TWO_SITES], ids=["one site", "two sites"])
def test_dozens_of_kills(tmp_path: Path, fresh_seeds: FreshSeeds, where: Mapping[str, Any]) -> None:
    for seed in fresh_seeds.take(4):
        queries = [name for name in QUERIES if not where or name != "chain"]  # its streams have no key in common
        (tmp_path / str(seed)).mkdir()
        scene = make_scene(tmp_path / str(seed), queries, batches=60, rows=150, seed=seed, **where)
        victims = random.Random(seed).choices(["python", "group", "java"], [3, 2, 1], k=max(2, scaled(12)))
        kill_and_resume(scene, victims, seed)
        kill_and_resume(scene, (), seed)  # nothing is left to do
