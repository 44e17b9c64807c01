"""Simulated sites against the reference semantics: every planner, window, predicate and network behaviour."""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from equivalence.model import NETWORKS, Bag, Scene, SceneQuery
from equivalence.reference import differences, event_times_us, rows_on_time
from equivalence.runtimes import KNOWN_GAPS, Gap, expected, has_gap, run_simulated, without_gaps
from equivalence.scenes import draw_scene
from equivalence.seeds import SOAK, fresh_seeds, repeat_command

from watersmeet.planners.choose import NAMES
from watersmeet.topology.model import METHODS

# Beyond the first hundred, seeds that make every planner meet every behaviour of the network.
SEEDS = (*range(100), 100, 128, 129, 133, 154, 161, 163, 285)
GAP_QUERIES = 8  # of each known gap; the first of the table


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
    wrong = [line for seed in seeds for line in failures(without_gaps(draw_scene(seed)))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_those_of_the_reference(seed: int) -> None:
    check_seeds([seed])


def test_answers_of_fresh_seeds_are_those_of_the_reference() -> None:
    check_seeds(fresh_seeds(5))


@pytest.mark.parametrize("chunk", [pytest.param(number, marks=SOAK) for number in range(40)])
def test_answers_of_thousands_of_fresh_seeds_are_those_of_the_reference(chunk: int) -> None:
    check_seeds(fresh_seeds(100))


@pytest.mark.parametrize(
    "gap", [pytest.param(gap, marks=pytest.mark.xfail(strict=True), id=gap.reason) for gap in KNOWN_GAPS]
)
def test_known_gaps(gap: Gap) -> None:
    """What cannot be done yet: once all of these are right, the gap is to be removed from the list."""
    others = [other for other in KNOWN_GAPS if other is not gap]
    found = [
        replace(scene, queries=(query,))
        for scene, query in table()
        if gap.applies(scene, query) and not any(other.applies(scene, query) for other in others)
    ]
    assert found, "the table has no such query"
    wrong = [line for scene in found[:GAP_QUERIES] for line in failures(scene)]
    assert not wrong, "\n".join(wrong)


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
        if not has_gap(scene, query):
            counts[f"{query.planner or 'explicit plan'} on {network_of(scene.seed)}"] += 1
    for seed in SEEDS:
        counts.update(set(kinds_of_scene(draw_scene(seed))))
    wanted = {
        *(f"{planner} on {network}" for planner in (*NAMES, "explicit plan") for network in NETWORKS),
        *(f"window {kind}" for kind in ("Range", "Tumble", "Rows", "Unbounded")),
        *(f"only {kind}" for kind in ("Range", "Tumble", "Rows", "Unbounded")),
        *(f"step {method}" for method in METHODS),
        *(f"step {method} Bloom" for method in METHODS if method.startswith("SM")),
        *(f"{count} aliases" for count in (2, 3, 4)),
        *(f"{count} queries" for count in (1, 2, 3, 4)),
        *(f"key {kind}" for kind in ("int64", "int32", "string", "date32[day]")),
        *("mixed windows", "DISTINCT", "self-join", "residual", "filter", "expression key", "composite key"),
        *("repeated answers", "cycle", "cross product", "start", "one site", "several sites", "a site without streams"),
        *("late rows", "no event time", "NULL key", "ties", "ties across streams", "disorder", "an empty batch"),
        *("odd keys", "empty text", "Unicode text", "NaN", "closed", "open", "without statistics", "before 1970"),
        *("equal joins", "a step elsewhere", "expression in SELECT"),
    }
    assert {kind: counts[kind] for kind in sorted(wanted) if not counts[kind]} == {}


def kinds_of_query(scene: Scene, query: SceneQuery) -> Iterator[str]:
    """What a query tries."""
    parsed = scene.parsed(query)
    windows = {type(source.window).__name__ for source in parsed.sources}
    yield from (f"window {kind}" for kind in windows)
    yield f"only {windows.pop()}" if len(windows) == 1 else "mixed windows"
    yield f"{len(parsed.sources)} aliases"
    for equality in parsed.equalities:
        (stream,) = (scene.stream(parsed.source(alias).stream) for alias in equality.left.aliases)
        is_plain = equality.left.is_plain and equality.right.is_plain
        yield f"key {stream.schema.field(equality.left.columns[0].name).type}" if is_plain else "expression key"
    pairs = Counter(frozenset((*one.left.aliases, *one.right.aliases)) for one in parsed.equalities)
    for head in query.plan or ():
        yield from (f"step {step.method}{' Bloom' if step.bloom else ''}" for step in head.steps)
        yield from ("a step elsewhere" for step in head.steps if step.at is not None)
    streams = [source.stream for source in parsed.sources]
    seen = {
        "DISTINCT": parsed.distinct,
        "self-join": len(set(streams)) < len(streams),
        "residual": parsed.residuals,
        "filter": parsed.filters,
        "expression in SELECT": not all(item.expression.is_plain for item in parsed.select),
        "composite key": max(pairs.values(), default=0) > 1,
        "cycle": len(pairs) >= len(parsed.sources) > 2,
        "cross product": query.allow_cross,
        "start": query.start,
        "one site": scene.is_at_one_site(query),
        "several sites": not scene.is_at_one_site(query),
        "a site without streams": query.site not in {stream.home for stream in scene.streams},
        "repeated answers": max(expected_of(scene, query).values()) > 1,
    }
    yield from (kind for kind, is_seen in seen.items() if is_seen)


def expected_of(scene: Scene, query: SceneQuery) -> Bag:
    return expected(replace(scene, queries=(query,)))[query.name]


def kinds_of_scene(scene: Scene) -> Iterator[str]:
    """What the streams of a scene have, and its queries in common."""
    yield f"{len(scene.queries)} queries"
    equalities = Counter(scene.parsed(query).equalities for query in scene.queries)
    seen = {"without statistics": not scene.has_stats, "equal joins": max(equalities.values()) > 1}
    instants = []
    for stream in scene.streams:
        batches = [event_times_us(stream, batch) for batch in stream.batches]
        times = [ts for batch in batches for ts in batch if ts is not None]
        rows = [row for batch in stream.batches for row in batch.to_pylist()]
        instants.append({*times})
        for kind, is_seen in {
            "late rows": rows_on_time(stream).num_rows < len(times),
            "no event time": len(times) < len(rows),
            "ties": len(set(times)) < len(times),
            "disorder": times != sorted(times),
            "an empty batch": any(not batch for batch in batches),
            "NULL key": any(row["k"] is None for row in rows),
            "odd keys": any(row["k"] == 2**63 - 1 for row in rows),
            "empty text": any(row["s"] == "" for row in rows),
            "Unicode text": any(row["s"] == "東京" for row in rows),
            "NaN": any(row["v"] != row["v"] for row in rows),
            "closed": rows[-1]["id"] == -1,
            "open": rows[-1]["id"] != -1,
            "before 1970": min(times) < 0,
        }.items():
            seen[kind] = seen.get(kind, False) or is_seen
    seen["ties across streams"] = any(one & other for one in instants for other in instants if one is not other)
    yield from (kind for kind, is_seen in seen.items() if is_seen)


def test_a_seed_is_always_the_same_scene_and_the_same_run() -> None:
    scene, again = draw_scene(7), draw_scene.__wrapped__(7)
    assert scene is not again and scene.describe() == again.describe()
    assert [stream.batches for stream in scene.streams] == [stream.batches for stream in again.streams]
    assert scene.describe() != draw_scene(8).describe()


def test_a_difference_is_shown_with_its_rows_and_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences({"q": Bag([(1,), (2,)])}, {"q": Bag([(2,), (2,), (3,)])}) == [
        "q: 1 missing and 2 surplus of 2 answers\n  missing: (1,)\n  surplus: (2,)\n  surplus: (3,)"
    ]
    assert differences({"q": Bag()}, {"q": Bag()}) == []
    monkeypatch.setattr(f"{__name__}.run_simulated", lambda *_: {})
    scene = next(scene for scene in map(draw_scene, SEEDS) if without_gaps(scene).queries)
    with pytest.raises(AssertionError, match=rf"WATERSMEET_SEED={scene.seed} python -m pytest .*test_simulated.py"):
        check_seeds([scene.seed])
    monkeypatch.setenv("WATERSMEET_SEED", str(scene.seed))
    assert fresh_seeds(3) == [scene.seed]
