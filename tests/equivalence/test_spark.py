"""Spark against the reference semantics: scenes at one site and at several, with all their queries."""

from pathlib import Path
from typing import Any

import pytest
from equivalence.kinds import WINDOWS, kinds_of_query
from equivalence.model import Scene
from equivalence.reference import differences
from equivalence.runtimes import expected, run_spark
from equivalence.scenes import draw_scene
from equivalence.seeds import fresh_seeds, repeat_command

# Scenes of few micro-batches: most of the time goes into starting them.
SEEDS = (14, 15, 28, 31, 35, 55, 58)


def check(spark: Any, scene: Scene, directory: Path, test: str) -> None:
    try:
        wrong = differences(expected(scene), run_spark(spark, scene, directory))
    except Exception:
        print(scene.describe(), f"repeat: {repeat_command(__file__, test, scene.seed)}", sep="\n")
        raise
    command = repeat_command(__file__, test, scene.seed)
    assert not wrong, "\n".join([*wrong, scene.describe(), f"repeat: {command}"])


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_at_one_site_are_those_of_the_reference(spark: Any, tmp_path: Path, seed: int) -> None:
    check(spark, draw_scene(seed).at_one_site(), tmp_path, "fresh_seeds_at_one_site")


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_at_several_sites_are_those_of_the_reference(spark: Any, tmp_path: Path, seed: int) -> None:
    check(spark, draw_scene(seed), tmp_path, "fresh_seeds_at_several_sites")


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_answers_of_fresh_seeds_at_one_site(spark: Any, tmp_path: Path, number: int) -> None:
    (seed,) = fresh_seeds(1)
    check(spark, draw_scene(seed).at_one_site(), tmp_path, "fresh_seeds_at_one_site")


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_answers_of_fresh_seeds_at_several_sites(spark: Any, tmp_path: Path, number: int) -> None:
    (seed,) = fresh_seeds(1)
    check(spark, draw_scene(seed), tmp_path, "fresh_seeds_at_several_sites")


def test_the_scenes_try_everything() -> None:
    scenes = [draw_scene(seed) for seed in SEEDS]
    seen = {kind for scene in scenes for query in scene.queries for kind in kinds_of_query(scene, query)}
    windows = {f"window {kind}" for kind in WINDOWS}
    others = {
        "DISTINCT",
        "self-join",
        "residual",
        "filter",
        "cross product",
        "start",
        "GROUP BY",
        "LIMIT",
        "expression key",
        "several sites",
    }
    assert windows | others <= seen
