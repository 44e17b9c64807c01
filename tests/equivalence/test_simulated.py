"""Simulated sites against the reference semantics: every planner, window, predicate and network behaviour."""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from equivalence.kinds import WINDOWS, kinds_of_query, kinds_of_scene
from equivalence.model import NETWORKS, Bag, Scene, SceneQuery
from equivalence.reference import bag, differences
from equivalence.runtimes import expected, plans_of, run_simulated
from equivalence.scenes import draw_scene
from equivalence.seeds import fresh_seeds, repeat_command

from watersmeet.plan.nodes import Symmetric, join_plan_of
from watersmeet.planners.choose import NAMES
from watersmeet.topology.model import METHODS

# Beyond the first hundred, seeds that make every planner meet every behaviour of the network.
SEEDS = (*range(100), 100, 128, 129, 133, 154, 161, 162, 163, 285, 346, 323)


def network_of(seed: int) -> str:
    """The behaviours take turns."""
    return list(NETWORKS)[seed % len(NETWORKS)]


def failures(scene: Scene) -> list[str]:
    """What is wrong with the answers of a scene's queries on simulated sites, and how to see it again."""
    network = network_of(scene.seed)
    try:
        wrong = differences(expected(scene), run_simulated(scene, NETWORKS[network], scene.seed))
    except Exception as error:
        traceback.print_exc()
        wrong = [f"{type(error).__name__}: {error}"]
    if not wrong:
        return []
    command = repeat_command(__file__, "fresh", scene.seed)
    return [*wrong, f"network: {network}", scene.describe(), f"repeat: {command}"]


def check_seeds(seeds: Iterable[int]) -> None:
    wrong = [line for seed in seeds for line in failures(draw_scene(seed))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.few(24)
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_those_of_the_reference(seed: int) -> None:
    check_seeds([seed])


def test_answers_of_fresh_seeds_are_those_of_the_reference() -> None:
    check_seeds(fresh_seeds(5))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(40))
def test_answers_of_thousands_of_fresh_seeds_are_those_of_the_reference(chunk: int) -> None:
    check_seeds(fresh_seeds(100))


# What the table holds -------------------------------------------------------------------------------------------------


def table() -> Iterator[tuple[Scene, SceneQuery]]:
    for seed in SEEDS:
        scene = draw_scene(seed)
        for query in scene.queries:
            yield scene, query


def test_the_table_tries_everything() -> None:
    counts: Counter[str] = Counter()
    for scene, query in table():
        counts.update(set(kinds_of_query(scene, query)))
        if not scene.is_at_one_site(query):
            counts[f"{query.planner or 'explicit plan'} on {network_of(scene.seed)}"] += 1
    for seed in SEEDS:
        counts.update(set(kinds_of_scene(draw_scene(seed))))
    wanted = {
        *(f"{planner} on {network}" for planner in (*NAMES, "explicit plan") for network in NETWORKS),
        *(f"window {kind}" for kind in WINDOWS),
        *(f"only {kind}" for kind in WINDOWS),
        *(f"step {method}" for method in METHODS),
        *(f"step {method} Bloom" for method in METHODS if method.startswith("SM")),
        *(f"{count} aliases" for count in (1, 2, 3, 4)),
        *(f"{count} queries" for count in (1, 2, 3, 4)),
        *(f"key {kind}" for kind in ("int64", "int32", "string", "date32[day]")),
        *("mixed windows", "DISTINCT", "self-join", "residual", "filter", "expression key", "composite key"),
        *("repeated answers", "cycle", "cross product", "start", "one site", "several sites", "a site without streams"),
        *("late rows", "no event time", "NULL key", "ties", "ties across streams", "disorder", "an empty batch"),
        *("odd keys", "empty text", "Unicode text", "NaN", "closed", "open", "without statistics", "before 1970"),
        *("GROUP BY", "EMIT CHANGES", "overlapping windows", "HAVING", "LIMIT"),
        *("equal joins", "a step elsewhere", "expression in SELECT"),
    }
    assert {kind: counts[kind] for kind in sorted(wanted) if not counts[kind]} == {}


def test_a_query_at_one_site_is_a_symmetric_join_and_no_other_is() -> None:
    """By which kind of plan it is known how long rows wait where a ROWS window counts them."""
    for scene in map(draw_scene, SEEDS[:20]):
        plans = plans_of(scene)
        for query in scene.queries:
            kinds = {isinstance(one, Symmetric) for one in join_plan_of(plans[query.name]).sub_plans}
            assert kinds == {scene.is_at_one_site(query) or len(scene.parsed(query).sources) == 1}, query.sql


def test_a_seed_is_always_the_same_scene() -> None:
    scene, again = draw_scene(7), draw_scene.__wrapped__(7)
    assert scene is not again and scene.describe() == again.describe()
    rows, rows_again = ([bag(batch) for stream in one.streams for batch in stream.batches] for one in (scene, again))
    assert rows == rows_again
    assert scene.describe() != draw_scene(8).describe()


def test_a_difference_is_shown_with_its_rows_and_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences({"q": Bag([(1,), (2,)])}, {"q": Bag([(2,), (2,), (3,)])}) == [
        "q: 1 missing and 2 surplus of 2 answers\n  missing: (1,)\n  surplus: (2,)\n  surplus: (3,)"
    ]
    assert differences({"q": Bag()}, {"q": Bag()}) == []
    monkeypatch.setattr(f"{__name__}.run_simulated", lambda *_: {})
    scene = draw_scene(SEEDS[0])
    with pytest.raises(AssertionError, match=rf"WATERSMEET_SEED={scene.seed} python -m pytest .*test_simulated.py"):
        check_seeds([scene.seed])
    monkeypatch.setenv("WATERSMEET_SEED", str(scene.seed))
    assert fresh_seeds(3) == [scene.seed]
