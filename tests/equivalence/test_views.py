"""Random views, unions and subqueries on both runtimes against the reference semantics."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from equivalence.model import NETWORKS, Bag
from equivalence.reference import bag, differences
from equivalence.runtimes import read_answers, simulated, write_streams
from equivalence.seeds import fresh_seeds, repeat_command
from equivalence.views import ViewScene, draw_views, kinds_of

import watersmeet as wm

SEEDS = range(30)
SPARK_SEEDS = (3, 11)


def run_simulated(drawn: ViewScene, seed: int) -> dict[str, Bag]:
    network = list(NETWORKS.values())[seed % len(NETWORKS)]
    sites = simulated(drawn.scene, drawn.plans(), network, Random(seed))
    return {one.name: sum((bag(table) for table in sites.answers(one.name)), Bag()) for one in drawn.queries}


def check(drawn: ViewScene, found: dict[str, Bag], seed: int) -> None:
    wrong = differences(drawn.bags(), found)
    command = repeat_command(__file__, "fresh", seed)
    assert not wrong, "\n".join([*wrong, drawn.describe(), f"repeat: {command}"])


@pytest.mark.few(10)
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_on_simulated_sites_are_those_of_the_reference(seed: int) -> None:
    check(draw_views(seed), run_simulated(draw_views(seed), seed), seed)


def test_answers_of_fresh_seeds_on_simulated_sites() -> None:
    for seed in fresh_seeds(3):
        check(draw_views(seed), run_simulated(draw_views(seed), seed), seed)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_answers_of_many_fresh_seeds_on_simulated_sites(number: int) -> None:
    for seed in fresh_seeds(50):
        check(draw_views(seed), run_simulated(draw_views(seed), seed), seed)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", SPARK_SEEDS)
def test_answers_on_spark_are_those_of_the_reference(spark: Any, tmp_path: Path, seed: int) -> None:
    drawn = draw_views(seed) if seed % 2 else draw_views(seed).at_one_site()
    write_streams(drawn.scene, tmp_path)
    handle = wm.start(drawn.topology(tmp_path), spark=spark, once=True, checkpoint=tmp_path / "checkpoint")
    handle.awaitTermination()
    check(drawn, {one.name: read_answers(tmp_path, one.name) for one in drawn.queries}, seed)


def test_the_scenes_try_everything() -> None:
    wanted = {"union", "self-join of a view", "view with a stream", "DISTINCT in a view", "GROUP BY in a view"}
    wanted |= {"GROUP BY of a view", "a view with two readers", "depth 2", "depth 3", "depth 4", "several sites"}
    assert wanted <= {kind for seed in SEEDS for kind in kinds_of(draw_views(seed))}
    assert draw_views(0).describe() == draw_views.__wrapped__(0).describe()
