"""The static ring against definitions that do not use its code."""

from functools import partial
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.sim.overlays.identifiers import ID_BITS, SPACE, distance
from watersmeet.sim.overlays.ring import Ring

POINTS = st.integers(0, SPACE - 1) | st.integers(0, 40) | st.integers(SPACE - 40, SPACE - 1)
RINGS = st.sets(POINTS, min_size=1, max_size=12)


def owner_by_definition(points: list[int], target: int) -> int:
    return min(points, key=lambda point: distance(target, point))


def path_by_definition(points: list[int], source: int, target: int) -> list[int]:
    """The identifiers visited: the closest of all 64 fingers strictly before the target, else the successor."""
    owner, at, visited = owner_by_definition(points, target), source, []
    while at != owner:
        successor = owner_by_definition(points, (at + 1) % SPACE)
        if 0 < distance(at, target) <= distance(at, successor):
            at = successor
        else:
            fingers = {owner_by_definition(points, (at + (1 << exponent)) % SPACE) for exponent in range(ID_BITS)}
            before = [point for point in fingers if 0 < distance(at, point) < distance(at, target)]
            at = max(before, key=partial(distance, at))
        visited.append(at)
    return visited


def grouped_by_definition(ring: Ring, source: int, targets: list[int]) -> tuple[list[int], list[int]]:
    """Hops and messages sent, from whole paths: two messages share a hop if they have had the same way up to it."""
    paths = [(source, *ring.path(source, target)) for target in targets]
    ways = {path[:length] for path in paths for length in range(2, len(path) + 1)}
    sent = [0] * len(ring)
    for way in ways:
        sent[way[-2]] += 1
    return [len(path) - 1 for path in paths], sent


@settings(max_examples=60, deadline=None)
@given(RINGS, st.lists(POINTS, min_size=1, max_size=8))
def test_owners_and_paths_are_those_of_the_definition(identifiers: set[int], targets: list[int]) -> None:
    points = sorted(identifiers)
    ring = Ring(np.array(points[::-1], dtype=np.uint64))
    assert ring.identifiers.tolist() == points
    assert [points[node] for node in ring.owners(targets).tolist()] == [owner_by_definition(points, t) for t in targets]
    for target in targets:
        assert points[ring.owner(target)] == owner_by_definition(points, target)
        for source in range(len(points)):
            expected = path_by_definition(points, points[source], target)
            assert [points[node] for node in ring.path(source, target)] == expected
            assert ring.hops([source], [target]).tolist() == [len(expected)]


@settings(max_examples=60, deadline=None)
@given(RINGS, st.lists(POINTS, max_size=12), st.data())
def test_messages_that_share_hops_are_counted_once(
    identifiers: set[int], targets: list[int], data: st.DataObject
) -> None:
    ring = Ring(np.array(sorted(identifiers), dtype=np.uint64))
    source = data.draw(st.integers(0, len(ring) - 1))
    sent = np.zeros(len(ring), dtype=np.int64)
    hops = ring.grouped(source, np.array(targets, dtype=np.uint64), sent)
    assert (hops.tolist(), sent.tolist()) == grouped_by_definition(ring, source, targets)


def test_grouped_in_a_large_ring() -> None:
    ring, generator = Ring.random(2_000, seed=4), np.random.default_rng(5)
    for source in range(20):
        targets = generator.integers(SPACE, size=40, dtype=np.uint64)
        sent = np.zeros(len(ring), dtype=np.int64)
        hops = ring.grouped(source, targets, sent)
        assert (hops.tolist(), sent.tolist()) == grouped_by_definition(ring, source, targets.tolist())
        assert sent.sum() < hops.sum()


def test_every_path_comes_nearer_and_ends_at_the_owner() -> None:
    ring, generator = Ring.random(3_000, seed=1), np.random.default_rng(2)
    points = ring.identifiers.tolist()
    sources = generator.integers(len(ring), size=500)
    targets = generator.integers(SPACE, size=500, dtype=np.uint64)
    sent, expected_sent = np.zeros(len(ring), dtype=np.int64), [0] * len(ring)
    hops = ring.trace(sources, targets, sent)
    for source, target, hop_count in zip(sources.tolist(), targets.tolist(), hops.tolist(), strict=True):
        nodes = [source, *ring.path(source, target)]
        owner = nodes[-1]
        assert owner == ring.owner(target)
        left = [distance(points[node], points[owner]) for node in nodes]
        assert left == sorted(set(left), reverse=True) and hop_count == len(nodes) - 1
        for node in nodes[:-1]:
            expected_sent[node] += 1
    assert sent.tolist() == expected_sent


@pytest.mark.parametrize("nodes", [100, 1_000, 10_000, 100_000])
def test_lookups_take_half_of_log_n_hops(nodes: int) -> None:
    """The paper counts the way to the node that knows the owner; a message has one hop more, to the owner itself."""
    ring, generator = Ring.random(nodes, seed=nodes), np.random.default_rng(3)
    hops = ring.hops(generator.integers(nodes, size=20_000), generator.integers(SPACE, size=20_000, dtype=np.uint64))
    lookup_hops = np.maximum(hops - 1, 0)
    assert lookup_hops.mean() == pytest.approx(0.5 * log2(nodes), rel=0.1)
    assert lookup_hops.max() <= 2 * log2(nodes)


def test_one_node_owns_all() -> None:
    ring = Ring([7])
    assert ring.owner(8) == ring.owner(7) == 0 and ring.path(0, 3) == [] and ring.finger(0, 63) == 0


def test_addresses_stay_with_their_identifiers() -> None:
    ring = Ring([30, 10, 20], addresses=[3, 1, 2])
    assert ring.addresses.tolist() == [1, 2, 3]
    assert Ring.random(50, seed=1).identifiers.tolist() == Ring.random(50, seed=1).identifiers.tolist()
    assert Ring.random(50, seed=1).identifiers.tolist() != Ring.random(50, seed=2).identifiers.tolist()


def test_what_is_no_ring_is_refused() -> None:
    with pytest.raises(ValueError, match="one identifier or more"):
        Ring([])
    with pytest.raises(ValueError, match="same identifier"):
        Ring([5, 6, 5])
    with pytest.raises(IndexError, match="0 to 1"):
        Ring([5, 6]).hops([2], [9])
    with pytest.raises(IndexError, match="0 to 1"):
        Ring([5, 6]).path(2, 9)
    with pytest.raises(ValueError, match="a count for each node"):
        Ring([5, 6]).trace([0], [9], np.zeros(1, dtype=np.int64))
