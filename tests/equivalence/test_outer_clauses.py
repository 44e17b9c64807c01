"""Outer joins and EXISTS with DISTINCT, EMIT CHANGES and tables, of simulated sites against the oracle, from seeds."""

from collections.abc import Sequence
from typing import Any

import pytest
from equivalence.outer_scenes import COLUMNS_OF_TABLES, OuterScene, draw, run

from watersmeet.errors import SqlError
from watersmeet.query.outer import branches_of
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import AsOf

CASES: dict[str, tuple[dict[str, Any], Sequence[int]]] = {
    "distinct": ({"distinct": True}, range(14)),
    "changes": ({"changes": True}, range(14)),
    "table": ({"table": True}, (*range(16), 39, 53)),  # the last have found faults
    "table, distinct": ({"table": True, "distinct": True}, range(100, 106)),
    "table, changes": ({"table": True, "changes": True}, range(200, 206)),
    "table, groups": ({"table": True, "grouped": True}, range(140, 146)),
}


def scene_of(case: str, seed: int) -> OuterScene | None:
    """A scene; None where what was drawn is refused."""
    try:
        return draw(seed, **CASES[case][0])
    except SqlError as error:
        assert "UNBOUNDED" in str(error) or "refreshed" in str(error)  # noqa: PT017 - drawn without looking
        return None


@pytest.mark.few(12)
@pytest.mark.parametrize(("case", "seed"), [(case, seed) for case, (_, seeds) in CASES.items() for seed in seeds])
def test_answers_are_those_of_the_reference(case: str, seed: int) -> None:
    scene = scene_of(case, seed)
    if scene is not None:
        assert run(scene, crashes=seed % 3 == 0) == scene.expected, scene.sql


def test_the_scenes_try_everything() -> None:
    drawn = [(case, scene_of(case, seed)) for case, (_, seeds) in CASES.items() for seed in seeds]
    scenes = [(case, scene) for case, scene in drawn if scene is not None]
    assert len(scenes) > 0.9 * len(drawn)
    lookups = [scene.lookup for _, scene in scenes if scene.lookup is not None]
    assert sum(one.refresh_us is not None for one in lookups) > 5 and sum(one.refresh_us is None for one in lookups) > 5
    for case in CASES:
        some = [scene for name, scene in scenes if name == case]
        assert sum("JOIN" in one.sql for one in some) > 2 and any("EXISTS" in one.sql for one in some), case
        assert any(len(set(one.homes.values())) > 1 for one in some), case


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_answers_of_many_seeds_are_those_of_the_reference(case: str) -> None:
    for seed in range(1_000, 1_300):
        if (scene := scene_of(case, seed)) is not None:
            assert run(scene, crashes=seed % 3 == 0) == scene.expected, scene.sql


@pytest.mark.parametrize(
    ("sql", "cure"),
    [
        ("SELECT t.id, a.id AS b FROM t0 t LEFT JOIN s0 a ON a.k = t.k", "stream LEFT JOIN table"),
        ("SELECT t.id, a.id AS b FROM s0 [RANGE 1 MINUTE] a FULL JOIN t0 t ON a.k = t.k", "stream LEFT JOIN table"),
        (
            "SELECT a.id, t.id AS b, b.id AS c FROM s0 [RANGE 1 MINUTE] a LEFT JOIN t0 t ON a.k = t.k "
            "LEFT JOIN s1 [RANGE 1 MINUTE] b ON a.k = b.k",
            "join the table last",
        ),
        (
            "SELECT a.id FROM s0 a JOIN t0 t ON a.k = t.k WHERE NOT EXISTS "
            "(SELECT 1 FROM s1 [RANGE 1 MINUTE] b WHERE b.k = a.k)",
            "write one, such as s0",
        ),
        ("SELECT a.id FROM s0 a WHERE EXISTS (SELECT 1 FROM s1 b, t0 t WHERE b.k = a.k AND t.k = b.k)", "add one"),
    ],
)
def test_what_is_refused_says_what_works(sql: str, cure: str) -> None:
    with pytest.raises(SqlError, match=cure):
        branches_of(parse_query(sql, COLUMNS_OF_TABLES, tables={"t0": AsOf(is_refreshed=True)}))
