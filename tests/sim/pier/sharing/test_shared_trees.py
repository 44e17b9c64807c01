"""Queries that share aggregates among peers answer what they would answer by themselves."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from dht_world import DhtWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.pier.algorithms import algorithm_named
from watersmeet.sharing.aggregates import Algebra, decompose
from watersmeet.sharing.bits import Bools, distinct_rows
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.decomposition import identity
from watersmeet.sharing.fragments import union
from watersmeet.sharing.workloads import duplicate_insensitive
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.pier.sharing.annotated import AnnotatedNode, AnnotatedQueries
from watersmeet.sim.pier.sharing.common_rows import CommonRows
from watersmeet.sim.pier.sharing.measure import SharingRun, measure_sharing
from watersmeet.sim.pier.sharing.trees import (
    Fragments,
    NumberAlgebra,
    QueryAnswer,
    TreeQueries,
    reconstructed,
    shared_entries,
    start_shared,
)

NODES = 12
KINDS: dict[Algebra, Callable[[Sequence[int]], int]] = {
    Algebra.IDEMPOTENT: max,
    Algebra.LINEAR: sum,
    Algebra.GENERAL: sum,
}


def matrices(most_rows: int = 10, most_queries: int = 10) -> st.SearchStrategy[Bools]:
    """Matrices F without empty rows."""

    def matrix(rows: list[list[bool]]) -> Bools:
        return distinct_rows(np.array(rows, bool))

    sizes = st.integers(1, most_queries)
    return sizes.flatmap(
        lambda queries: st.lists(
            st.lists(st.booleans(), min_size=queries, max_size=queries), min_size=1, max_size=most_rows
        )
    ).map(matrix)


def values_of(fragments: Bools, seed: int, nodes: int) -> list[Fragments]:
    """What each node has of each fragment, or of some."""
    chance = np.random.default_rng(seed)
    return [
        {row.tobytes(): int(chance.integers(-(10**12), 10**12)) for row in fragments if chance.random() < 0.6}
        for _ in range(nodes)
    ]


def direct(fragments: Bools, nodes: list[Fragments], kind: Algebra) -> list[int | None]:
    """The answers by definition."""
    found: list[int | None] = []
    for query in range(fragments.shape[1]):
        rows = [row.tobytes() for row in fragments if row[query]]
        values = [node[row] for node in nodes for row in rows if row in node]
        found.append(KINDS[kind](values) if values else 0 if kind is Algebra.LINEAR else None)
    return found


def shared(fragments: Bools, kind: Algebra, algorithm: str = "DHT-Hi-Optimal") -> TreeQueries:
    queries, routed = fragments.shape[1], algorithm_named(algorithm)
    assert routed is not None
    return TreeQueries(
        *("s", fragments, decompose(fragments, kind), NumberAlgebra(KINDS[kind]), routed, 2),
        tuple(query % NODES for query in range(queries)),
        NODES,
    )


@settings(deadline=None)
@given(fragments=matrices(), kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 10**6))
def test_reconstructed_answers_are_the_direct_ones(fragments: Bools, kind: Algebra, seed: int) -> None:
    queries, nodes = shared(fragments, kind), values_of(fragments, seed, 3)
    entries = [shared_entries(queries, node) for node in nodes]
    whole = [queries.algebra.combine(column) for column in zip(*entries, strict=True)]
    assert reconstructed(queries, whole) == direct(fragments, nodes, kind)


@pytest.mark.parametrize("algorithm", ["DHT-Hi-Optimal", "Tree-Hi-S-Topology", "DHT-1L-Timeout"])
@settings(deadline=None, max_examples=4)
@given(fragments=matrices(6, 6), kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 10**6))
def test_answers_come_from_the_coordinator_to_those_who_asked(
    algorithm: str, fragments: Bools, kind: Algebra, seed: int
) -> None:
    world = DhtWorld("bamboo", seed, NODES, timers=False)
    nodes, queries = values_of(fragments, seed, NODES), shared(fragments, kind, algorithm)
    answers: dict[int, QueryAnswer] = {}

    def answered(answer: QueryAnswer) -> None:
        answers[answer.query] = answer

    start_shared(world.kernel, world.dhts, queries, lambda address, _: nodes[address], answered)
    world.kernel.run(until_us=120_000_000)
    expected = direct(fragments, nodes, kind)
    if queries.decomposition.size:
        assert [answers[query].value for query in range(len(expected))] == expected
        assert {one.nodes for one in answers.values()} == {NODES}


@settings(deadline=None, max_examples=4)
@given(fragments=matrices(6, 6), kind=st.sampled_from([Algebra.IDEMPOTENT, Algebra.GENERAL]), seed=st.integers(0, 99))
def test_entries_with_their_rows_need_no_common_f(fragments: Bools, kind: Algebra, seed: int) -> None:
    world = DhtWorld("bamboo", seed, NODES, timers=False)
    nodes = values_of(fragments, seed, NODES)
    asked_by = tuple(query % NODES for query in range(fragments.shape[1]))
    queries = AnnotatedQueries("s", asked_by, lambda rows: decompose(rows, kind), NumberAlgebra(KINDS[kind]), 2)
    answers: dict[int, int | None] = {}

    def answered(answer: QueryAnswer) -> None:
        answers[answer.query] = answer.value

    for dht, values in zip(world.dhts, nodes, strict=True):
        AnnotatedNode(world.kernel, dht, queries, answered).send(0, values)
    world.kernel.run(until_us=60_000_000)
    if any(nodes):
        assert [answers[query] for query in range(len(asked_by))] == direct(fragments, nodes, kind)


def test_a_row_that_is_not_in_f_is_refused() -> None:
    queries = shared(np.eye(2, dtype=bool), Algebra.GENERAL)
    with pytest.raises(ValueError, match="not in F"):
        shared_entries(queries, {np.array([True, True]).tobytes(): 1})


def drawn_rows(chance: np.random.Generator, queries: int) -> Bools:
    return distinct_rows(chance.random((int(chance.integers(0, 5)), queries)) < 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_f_becomes_the_same_at_all_nodes_and_follows_their_rows(seed: int) -> None:
    chance = np.random.default_rng(seed)
    world = DhtWorld("bamboo", seed, NODES, timers=False)
    root = identifier_of("rows")
    parts = [CommonRows(world.kernel, dht, "f", root, 5) for dht in world.dhts]
    own = [drawn_rows(chance, 5) for _ in parts]

    def settle() -> None:
        world.kernel.run(until_us=world.kernel.now_us + 60_000_000)
        for part in parts:
            assert part.matrix.tolist() == union(own).tolist()

    for part, rows in zip(parts, own, strict=True):
        part.need(rows)
    settle()
    for number in (1, 4, 7):  # additions and deletions
        own[number] = drawn_rows(chance, 5)
        parts[number].need(own[number])
    settle()
    wanted = [[(row, bool(kind)) for row in rows for kind in chance.permutation(2)[: 1 + (row[0])]] for rows in own]
    for part, seen in zip(parts, wanted, strict=True):  # a new query
        part.add_query(seen)
    own = [distinct_rows(np.array([[*row, kind] for row, kind in seen], bool).reshape(-1, 6)) for seen in wanted]
    settle()
    own = [distinct_rows(np.delete(rows, 2, axis=1)) for rows in own]  # one that ends
    before = sum(world.internet.bytes_sent)
    for part in parts:
        part.drop_query(2)
    settle()
    assert sum(world.internet.bytes_sent) == before
    own[3] = drawn_rows(chance, 5)
    parts[3].need(own[3])
    settle()


def test_sharing_sends_less_and_answers_the_same() -> None:
    fragments = duplicate_insensitive(12, 12, 4, 1)
    alone = measure_sharing(SharingRun(fragments, identity(fragments), 24, is_shared=False))
    less = measure_sharing(SharingRun(fragments, rectangle_cover(fragments), 24))
    assert alone.right == less.right == 12
    assert less.megabytes < alone.megabytes
