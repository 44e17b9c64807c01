"""The static Bamboo: owners by brute force, the rule of every hop, few hops, and nearer tables with a latency model."""

from itertools import pairwise
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.sim.internet.latency import King, Latency, TransitStub
from watersmeet.sim.overlays.identifiers import SPACE, is_between
from watersmeet.sim.overlays.prefixes import BASE, Prefixes, arc_between, common_digits, digit_at

POINTS = st.integers(0, SPACE - 1)
# Nodes that share long prefixes, sit at the ends of the circle or midway between others, as hashing hardly gives them.
CROWDED = st.builds(lambda prefix, tail: prefix << 60 | tail, st.sampled_from([0, 7, 8, 15]), st.integers(0, 40))
NODES = st.lists(POINTS | CROWDED, min_size=1, max_size=40, unique=True)


def away(one: int, other: int) -> int:
    return min((one - other) % SPACE, (other - one) % SPACE)


def closest(identifiers: list[int], target: int) -> int:
    """By looking at every node; of two as close, the clockwise one."""
    return min(
        range(len(identifiers)),
        key=lambda node: (away(identifiers[node], target), (identifiers[node] - target) % SPACE),
    )


def random_points(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(SPACE, size=count, dtype=np.uint64)


@settings(max_examples=150, deadline=None)
@given(nodes=NODES, targets=st.lists(POINTS | CROWDED, min_size=1, max_size=5), leaves=st.integers(1, 5))
def test_every_path_obeys_the_rule_and_ends_at_the_owner(nodes: list[int], targets: list[int], leaves: int) -> None:
    prefixes = Prefixes(nodes, leaves_a_side=leaves, seed=len(nodes))
    identifiers = sorted(nodes)
    assert prefixes.owners(targets).tolist() == [closest(identifiers, target) for target in targets]
    for target in targets:
        owner = closest(identifiers, target)
        assert prefixes.owner(target) == owner
        for source in range(len(nodes)):
            path = [source, *prefixes.path(source, target)]
            assert path[-1] == owner
            assert prefixes.hops(source, [target]).tolist() == [len(path) - 1]
            for number, (here, there) in enumerate(pairwise(path), start=2):
                before, after = (common_digits(identifiers[node], target) for node in (here, there))
                is_closer = away(identifiers[there], target) <= away(identifiers[here], target)
                assert after > before or (is_closer and (after >= before or number == len(path)))
                known = prefixes.leaves(here) + prefixes.entries(here)
                assert there in known


def test_a_point_midway_belongs_to_the_clockwise_node() -> None:
    prefixes = Prefixes([10, 20, SPACE - 10])
    for point, owner in ((14, 0), (15, 1), (16, 1), (0, 0), (SPACE - 1, 2)):
        assert prefixes.owner(point) == owner
        assert [[source, *prefixes.path(source, point)][-1] for source in range(3)] == [owner] * 3


@given(nodes=st.lists(POINTS | CROWDED, min_size=2, max_size=6, unique=True), target=POINTS | CROWDED)
def test_arcs_are_the_points_a_node_owns(nodes: list[int], target: int) -> None:
    prefixes = Prefixes(nodes)
    identifiers = sorted(nodes)
    count = len(nodes)
    owners = [
        node
        for node in range(count)
        if is_between(target, *arc_between(identifiers[node - 1], identifiers[node], identifiers[(node + 1) % count]))
    ]
    assert owners == [prefixes.owner(target)]


def test_table_entries_have_the_prefix_of_their_place_and_no_place_is_empty_that_need_not_be() -> None:
    prefixes = Prefixes.random(500, seed=3)
    identifiers = prefixes.identifiers.tolist()
    for node in range(0, 500, 25):
        own = identifiers[node]

        def place(other: int, own: int = own) -> tuple[int, int]:
            row = common_digits(own, identifiers[other])
            return row, digit_at(identifiers[other], row)

        filled = [place(entry) for entry in prefixes.entries(node)]
        assert filled == sorted({place(other) for other in range(500) if other != node})


@pytest.mark.parametrize("nodes", [100, 1_000, 20_000])
def test_hops_grow_with_the_logarithm_to_base_16(nodes: int) -> None:
    prefixes = Prefixes.random(nodes, seed=4)
    sources = np.random.default_rng(5).integers(nodes, size=20_000)
    hops = prefixes.hops(sources, random_points(20_000, 6))
    assert abs(hops.mean() - log(nodes, BASE)) < 0.35
    assert hops.max() <= log(nodes, BASE) + 4


def test_trace_counts_who_sends() -> None:
    prefixes = Prefixes.random(300, seed=7)
    sources, targets = np.random.default_rng(8).integers(300, size=200), random_points(200, 9)
    sent = np.zeros(300, np.int64)
    hops = prefixes.trace(sources, targets, sent)
    expected = np.zeros(300, np.int64)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        for sender in [source, *prefixes.path(source, target)][:-1]:
            expected[sender] += 1
    assert sent.tolist() == expected.tolist()
    assert hops.sum() == sent.sum()


def test_grouped_messages_share_the_hops_they_have_in_common() -> None:
    prefixes = Prefixes.random(300, seed=10)
    targets = random_points(100, 11)
    sent = np.zeros(300, np.int64)
    hops = prefixes.grouped(17, targets, sent)
    assert hops.tolist() == prefixes.hops(17, targets).tolist()
    # The shared ways form a tree of prefixes of paths: each different one is one message of its last but one node.
    ways = {
        tuple([17, *path][: length + 1])
        for path in (prefixes.path(17, target) for target in targets.tolist())
        for length in range(1, len(path) + 1)
    }
    expected = np.zeros(300, np.int64)
    for way in ways:
        expected[way[-2]] += 1
    assert sent.tolist() == expected.tolist()
    assert sent.sum() < hops.sum()


def mean_route_us(prefixes: Prefixes, latency: Latency) -> float:
    total_us = 0
    sources, targets = np.random.default_rng(12).integers(len(prefixes), size=800), random_points(800, 13)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        addresses = prefixes.addresses[[source, *prefixes.path(source, target)]].tolist()
        total_us += sum(latency.latency_us(here, there) for here, there in pairwise(addresses))
    return total_us / 800


@pytest.mark.parametrize("latency", [King(1_000, seed=14), TransitStub(1_000, seed=14)], ids=["king", "transit-stub"])
def test_near_table_entries_make_routes_shorter_in_time(latency: Latency) -> None:
    # The hosts are shuffled: a table that forgot to ask for addresses would gain nothing.
    addresses = np.random.default_rng(15).permutation(1_000)
    points = Prefixes.random(1_000, seed=16).identifiers

    def mean_us(candidates: int) -> float:
        return mean_route_us(Prefixes(points, latency, addresses=addresses, candidates=candidates, seed=17), latency)

    at_random, of_four, of_sixteen = mean_us(1), mean_us(4), mean_us(16)
    assert of_sixteen < of_four < 0.85 * at_random
    assert of_sixteen < 0.7 * at_random


def test_nearest_of_all_candidates_is_the_nearest() -> None:
    latency = King(80, seed=18)
    prefixes = Prefixes.random(80, 19, latency, candidates=80)
    identifiers = prefixes.identifiers.tolist()
    for node in range(80):
        for entry in prefixes.entries(node):
            length = common_digits(identifiers[node], identifiers[entry]) + 1
            rivals = [other for other in range(80) if common_digits(identifiers[other], identifiers[entry]) >= length]
            assert latency.latency_us(node, entry) == min(latency.latency_us(node, other) for other in rivals)


def test_addresses_follow_their_identifiers_and_the_seed_decides() -> None:
    prefixes = Prefixes([30, 10, 20], addresses=[7, 8, 9])
    assert prefixes.identifiers.tolist() == [10, 20, 30]
    assert prefixes.addresses.tolist() == [8, 9, 7]
    first, same, other = (Prefixes.random(2_000, seed=20, candidates=1, leaves_a_side=2) for _ in range(3))
    assert first.entries(5) == same.entries(5) == other.entries(5)
    assert Prefixes(first.identifiers, seed=21).entries(5) != first.entries(5)


@pytest.mark.parametrize(
    ("arguments", "choices", "what"),
    [
        ([], {}, "one identifier or more"),
        ([5, 5], {}, "same identifier"),
        ([5, 6], {"leaves_a_side": 0}, "leaves_a_side"),
        ([5, 6], {"addresses": [1]}, "addresses"),
    ],
)
def test_what_makes_no_overlay_is_refused(arguments: list[int], choices: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Prefixes(arguments, **choices)


def test_sources_must_exist() -> None:
    with pytest.raises(IndexError, match="0 to 1"):
        Prefixes([5, 6]).hops([2], [0])
