"""Outer joins, EXISTS and NOT EXISTS of simulated sites against the oracle, from seeds."""

import pytest
from equivalence.outer_scenes import BOTH_SIDES, CHAINS, OuterScene, answers_of, draw, plan_of, run, simulated
from seeds import scaled

from watersmeet.errors import SqlError

SEEDS = (*range(24), 31, 69, 329, 348)  # the last have found faults


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_sites_answer_as_the_reference_semantics_say(seed: int) -> None:
    scene = draw(seed)
    assert run(scene, crashes=seed % 3 == 0) == scene.expected, scene.sql


@pytest.mark.parametrize("chain", CHAINS)
def test_every_position(chain: str) -> None:
    scene = draw(7, chain)
    assert run(scene) == scene.expected, scene.sql


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(5_000, 5_016))
def test_both_sides_of_a_join_have_outer_joins(seed: int) -> None:
    kind = ("", "grouped", "distinct", "changes")[seed // 4 % 4]
    scene = draw(seed, BOTH_SIDES[seed % 4], most=40, **{kind: True} if kind else {})
    assert run(scene, crashes=seed % 3 == 0) == scene.expected, scene.sql


GROUPED_SEEDS = range(100, 124)


def some_groups(seed: int) -> OuterScene | None:
    """A scene with GROUP BY; None where it is refused: a window waits for rows that may find a partner at any time."""
    try:
        return draw(seed, grouped=True, most=60)
    except SqlError as error:
        assert "UNBOUNDED" in str(error)  # noqa: PT017 - drawn without looking
        return None


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", GROUPED_SEEDS)
def test_output_windows_wait_for_rows_that_are_decided_late(seed: int) -> None:
    scene = some_groups(seed)
    if scene is not None:
        assert run(scene, crashes=seed % 3 == 0) == scene.expected, scene.sql


def test_the_scenes_with_groups_try_everything() -> None:
    scenes = [scene for seed in GROUPED_SEEDS if (scene := some_groups(seed)) is not None]
    wanted = (" LEFT JOIN ", " FULL ", "EXISTS", "NOT EXISTS", "TUMBLE(", "HOP(", "[ROWS")
    assert [word for word in wanted if sum(word in scene.sql for scene in scenes) < 2] == []
    assert sum(len(scene.expected) > 10 for scene in scenes) > 10
    assert sum(len(set(scene.homes.values())) > 1 for scene in scenes) > 5


LATE_SEEDS = range(200, 216)


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", LATE_SEEDS)
def test_late_rows_are_neither_answered_nor_partners(seed: int) -> None:
    late = draw(seed, most=60).with_late_rows()
    assert run(late.scene, batches=late.batches) == late.expected, late.scene.sql


def test_late_rows_would_make_a_difference() -> None:
    scenes = [draw(seed, most=60).with_late_rows() for seed in LATE_SEEDS]
    assert sum(late.expected != late.scene.expected for late in scenes) > len(scenes) // 2
    surplus = [late.expected - late.scene.expected for late in scenes]
    assert sum(bool(rows) for rows in surplus) > 2, "rows that lack a partner only since it is late"


@pytest.mark.soak
def test_fresh_seeds_with_groups_and_late_rows() -> None:
    for seed in range(2_000, 2_500):
        scene = some_groups(seed)
        if scene is not None:
            assert run(scene, crashes=seed % 3 == 0) == scene.expected, scene.sql
            late = scene.with_late_rows()
            assert run(scene, batches=late.batches) == late.expected, scene.sql


@pytest.mark.soak
def test_fresh_seeds() -> None:
    for seed in range(1_000, 2_000):
        try:
            scene = draw(seed)
        except SqlError as error:
            assert "its window is UNBOUNDED" in str(error)  # noqa: PT017 - drawn without looking
            continue
        assert run(scene, crashes=seed % 3 == 0) == scene.expected, scene.sql


def check_changing(scene: OuterScene, *, crashes: bool) -> None:
    """Three plans after each other, with the answers of the reference."""
    sites = simulated(scene, crashes=crashes, versions=3)
    assert answers_of(sites) == scene.expected, scene.sql
    assert len(sites.takeovers) == 2
    assert not any(one.refused for one in sites.takeovers)


CHANGING_SEEDS = range(600, 615)
KINDS = ("rows", "grouped", "distinct", "changes", "table")


def some_scene(seed: int, kind: str) -> OuterScene | None:
    """A scene of a kind; None where it is refused, since rows would wait without end."""
    try:
        return draw(
            seed,
            grouped=kind == "grouped",
            distinct=kind == "distinct",
            changes=kind == "changes",
            table=kind == "table",
            most=60,
        )
    except SqlError as error:
        assert "UNBOUNDED" in str(error)  # noqa: PT017 - drawn without looking
        return None


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", CHANGING_SEEDS)
def test_plans_change_while_rows_wait_for_partners(seed: int) -> None:
    scene = some_scene(seed, KINDS[seed % len(KINDS)])
    if scene is not None:
        check_changing(scene, crashes=seed % 3 == 0)


def test_the_scenes_whose_plans_change_try_everything() -> None:
    drawn = (some_scene(seed, KINDS[seed % len(KINDS)]) for seed in CHANGING_SEEDS)
    scenes = [scene for scene in drawn if scene is not None]
    assert sum(len({plan_of(scene, version) for version in (1, 2, 3)}) == 3 for scene in scenes) > 5
    wanted = (" LEFT JOIN ", " FULL ", "EXISTS", "[ROWS", "DISTINCT", "EMIT CHANGES", "TUMBLE(", "t0 ")
    assert [word for word in wanted if not any(word in scene.sql for scene in scenes)] == []


@pytest.mark.soak
def test_fresh_seeds_whose_plans_change() -> None:
    for seed in range(3_000, 3_000 + scaled(1_000)):
        scene = some_scene(seed, KINDS[seed % len(KINDS)])
        if scene is not None:
            check_changing(scene, crashes=seed % 3 == 0)
