"""Flooding: who is reached within so many hops, and how many messages that takes, by breadth-first search."""

from random import Random

import pytest

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import ConstantLatency, King, Latency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.flooding import FORGET_US, FloodingNode, Hits, random_graph


class Network:
    """Nodes on a random graph; each has the words that are given it."""

    def __init__(self, nodes: int, degree: int, seed: int, latency: Latency | None = None) -> None:
        self.kernel, self.random = Kernel(seed), Random(seed)
        self.internet = Internet(self.kernel, latency or ConstantLatency(20_000), access_bps=None)
        self.graph = random_graph(nodes, degree, seed)
        self.words: dict[int, set[str]] = {}
        self.nodes = [self.add(address, neighbours) for address, neighbours in enumerate(self.graph)]

    def add(self, address: int, neighbours: list[int]) -> FloodingNode:
        def match(word: object) -> Hits:
            return [f"{word} of {address}"] if word in self.words.get(address, ()) else []

        return FloodingNode(
            self.kernel, self.internet, address, neighbours, match, replacement=lambda: self.random.choice(self.up())
        )

    def up(self) -> list[int]:
        return [node.address for node in self.nodes if self.internet.is_up(node.address)]

    def ask(self, address: int, word: str, hops: int) -> dict[int, int]:
        """Who has answered, and how many hops away."""
        found: dict[int, int] = {}

        def note(sender: int, hits: Hits, distance: int) -> None:
            assert sender not in found
            assert list(hits) == [f"{word} of {sender}"]
            found[sender] = distance

        self.nodes[address].query(word, 20, hops, note)
        self.kernel.run()
        return found


def distances(graph: list[list[int]], start: int) -> dict[int, int]:
    reached, frontier = {start: 0}, [start]
    while frontier:
        frontier = [other for node in frontier for other in graph[node]]
        hops = max(reached.values()) + 1
        frontier = [node for node in dict.fromkeys(frontier) if node not in reached]
        reached |= dict.fromkeys(frontier, hops)
    return reached


@pytest.mark.parametrize(("nodes", "degree"), [(1, 2), (2, 2), (5, 8), (50, 3), (400, 4), (400, 7)])
def test_a_random_graph_is_connected_simple_and_of_the_degree(nodes: int, degree: int) -> None:
    for seed in range(5):
        graph = random_graph(nodes, degree, seed)
        assert graph == random_graph(nodes, degree, seed)
        assert len(distances(graph, 0)) == nodes
        for node, neighbours in enumerate(graph):
            assert len(set(neighbours)) == len(neighbours)
            assert node not in neighbours
            assert all(node in graph[other] for other in neighbours)
        edges = sum(map(len, graph)) // 2
        assert edges == max(nodes - 1, min(nodes * degree // 2, nodes * (nodes - 1) // 2))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("hops", [0, 1, 2, 4, 9])
def test_a_query_reaches_those_within_its_hops_at_the_cost_of_every_edge_it_crosses(seed: int, hops: int) -> None:
    network = Network(120, 4, seed)
    network.words = {address: {"rare"} for address in range(0, 120, 7)}
    start = network.random.randrange(120)
    near = {node: away for node, away in distances(network.graph, start).items() if away <= hops}
    assert network.ask(start, "rare", hops) == {node: away for node, away in near.items() if node % 7 == 0}
    spreading = [node for node, away in near.items() if away < hops]
    copies = sum(len(network.graph[node]) - (node != start) for node in spreading)
    answers = sum(node % 7 == 0 for node in near if node != start)
    assert sum(network.internet.messages_sent) == copies + answers
    assert sum(node.duplicates_total for node in network.nodes) == copies - (len(near) - 1)


def test_on_uneven_wires_a_query_may_miss_some_within_its_hops_but_finds_nobody_beyond() -> None:
    network = Network(200, 4, seed=4, latency=King(200, seed=4))
    network.words = {address: {"x"} for address in range(200)}
    near = {node for node, away in distances(network.graph, 0).items() if away <= 4}
    found = network.ask(0, "x", 4)
    assert set(found) <= near
    assert len(found) > 0.7 * len(near)
    assert set(network.ask(0, "x", 30)) == set(range(200))


def test_dead_neighbours_are_replaced_and_queries_go_round_them() -> None:
    network = Network(100, 4, seed=5)
    network.words = {address: {"x"} for address in range(100)}
    for address in network.random.sample(range(1, 100), 30):
        network.nodes[address].stop()
    for address in network.up():
        network.ask(address, "nothing", 1)  # everybody finds out who is gone
    assert set(network.ask(0, "x", 30)) == set(network.up())
    assert all(network.internet.is_up(other) for address in network.up() for other in network.nodes[address].neighbours)


def test_a_newcomer_asks_and_is_asked() -> None:
    network = Network(30, 4, seed=6)
    network.nodes.append(network.add(30, []))
    network.words = {30: {"new"}, 3: {"old"}}
    network.nodes[30].connect([4, 5])
    network.kernel.run()
    assert set(network.ask(0, "new", 30)) == {30}
    assert set(network.ask(30, "old", 30)) == {3}


def test_answers_to_a_closed_query_are_ignored_and_old_numbers_forgotten() -> None:
    network = Network(30, 4, seed=7)
    network.words = {address: {"x"} for address in range(30)}
    found: list[int] = []
    number = network.nodes[0].query("x", 20, 9, lambda sender, hits, hops: found.append(sender))
    network.kernel.run(until_us=30_000)
    before = len(found)
    network.nodes[0].close(number)
    network.kernel.run()
    assert len(found) == before < 30
    network.kernel.run(until_us=network.kernel.now_us + FORGET_US + 1)
    network.ask(1, "x", 9)
    assert all(len(node._seen) == 1 for node in network.nodes)
    with pytest.raises(ValueError, match="hops must not be negative"):
        network.nodes[0].query("x", 20, -1, lambda sender, hits, hops: None)
    with pytest.raises(ValueError, match="degree must be at least 2"):
        random_graph(5, 1, 1)
