"""Continuous aggregation: exact without churn, in trees that keep their limits, and whole again after failures."""

import random
from collections import Counter

import pyarrow as pa
import pytest
from aggregation_world import COUNT, GROUPED, REQUESTER, ROOT, AggregationWorld, values_of
from dht_world import NETWORKS, OVERLAYS, SECOND_US
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.aggregate.functions import Function
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.pier.algorithms import (
    Algorithm,
    ChildList,
    Routing,
    Structure,
    WaitFor,
    WaitForAll,
    WaitForKnown,
    algorithm_named,
    continuous_algorithms,
)
from watersmeet.sim.pier.aggregation.children import KnownChildren
from watersmeet.sim.pier.aggregation.continuous import AggregationNode
from watersmeet.sim.pier.aggregation.query import TableAlgebra, sliding

ALL = continuous_algorithms()
TOPOLOGY = Algorithm(Routing.TREE, Structure.HIERARCHICAL, WaitForKnown(ChildList.TOPOLOGY), is_stable=True)


@pytest.mark.few(12)
@pytest.mark.parametrize("algorithm", ALL, ids=lambda algorithm: algorithm.name)
def test_every_algorithm_is_exact_in_every_epoch(algorithm: Algorithm) -> None:
    number = ALL.index(algorithm)
    overlay, latency = NETWORKS[number % len(NETWORKS)]
    world = AggregationWorld(overlay, 10 + number, 36, latency, epochs=4)
    world.aggregate(world.query(algorithm, epochs=4, in_degree_max=4), seconds=80)
    for epoch in range(4):
        last = world.last(epoch)
        assert last.nodes == 36
        assert values_of(last) == world.expected(range(epoch, epoch + 1))
    if isinstance(algorithm.timing, WaitForAll):
        assert len(world.answers) == 4


@given(seed=st.integers(0, 1 << 30), nodes=st.integers(1, 30), limit=st.integers(1, 5), chance=st.randoms())
@settings(max_examples=12, deadline=None)
def test_whatever_the_network_answers_are_those_over_all_rows(
    seed: int, nodes: int, limit: int, chance: random.Random
) -> None:
    algorithm = chance.choice(ALL)
    world = AggregationWorld(chance.choice(OVERLAYS), seed, max(nodes, REQUESTER + 1), "king", epochs=3)
    world.aggregate(world.query(algorithm, epochs=3, in_degree_max=limit), seconds=100)
    for epoch in range(3):
        assert values_of(world.last(epoch)) == world.expected(range(epoch, epoch + 1)), algorithm.name
        assert world.last(epoch).nodes == len(world.dhts)


def delays_s(world: AggregationWorld, epochs: int) -> list[float]:
    """When the last answer of each epoch came, from its beginning."""
    ends = {answer.epoch: at_us for answer, at_us in world.answers}
    return [(ends[epoch] - epoch * 5 * SECOND_US) / SECOND_US for epoch in range(epochs)]


def run(name: str, nodes: int = 90, epochs: int = 8, limit: int = 64, overlay: str = "bamboo") -> AggregationWorld:
    algorithm = algorithm_named(name)
    assert algorithm is not None
    world = AggregationWorld(overlay, 5, nodes, "king", epochs=epochs)
    world.aggregate(world.query(algorithm, epochs, limit, COUNT), seconds=5 * epochs + 30)
    return world


def test_known_children_make_timing_optimal_after_the_first_epoch() -> None:
    for shape in ("IP-1L", "DHT-1L", "DHT-ML", "DHT-ML-S", "DHT-Hi", "DHT-Hi-S"):
        optimal, learned = (delays_s(run(f"{shape}-{timing}", epochs=4), 4) for timing in ("Optimal", "Learned"))
        assert learned[0] >= 5  # the root knows nobody yet
        assert learned[1:] == pytest.approx(optimal[1:], rel=0.02), shape
        assert min(delays_s(run(f"{shape}-Timeout", epochs=4), 4)) >= 5


def test_a_learned_list_waits_for_redirected_children_and_a_topology_does_not() -> None:
    learned, topology = (delays_s(run(f"Tree-Hi-S-{kind}", limit=6), 8) for kind in ("Learned", "Topology"))
    assert max(learned[1:4]) >= 5 > max(topology[3:])
    assert sum(topology) < sum(learned)


def test_messages_are_those_of_the_description() -> None:
    nodes, epochs = 90, 8
    messages = {name: sum(run(name).internet.messages_sent) for name in ("IP-1L-Optimal", "DHT-Hi-Optimal")}
    for count in messages.values():
        assert count in (epochs * (nodes - 1), epochs * nodes)  # the requester may be the root
    flat, deep = (sum(run(name).internet.messages_sent) for name in ("DHT-Hi-S-Optimal", "DHT-ML-S-Optimal"))
    assert flat < deep
    known = sum(run("DHT-Hi-Learned").internet.messages_sent)
    assert messages["DHT-Hi-Optimal"] < known < messages["DHT-Hi-Optimal"] + 3 * nodes  # only the first epoch is dearer


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_in_degrees_are_limited_and_the_tree_has_no_cycle(overlay: str) -> None:
    world = AggregationWorld(overlay, 7, 120, "king", epochs=12)
    query = world.query(TOPOLOGY, epochs=12, in_degree_max=6, layout=COUNT)
    world.start(query)
    world.run(59)
    parents = {}
    for address, node in enumerate(world.nodes):
        assert node.tree is not None
        assert len(node.tree.children) <= 6
        parents[address] = node.tree.parent
    assert [address for address, parent in parents.items() if parent is None] == [world.owner(ROOT).node.address]
    assert max(Counter(parent for parent in parents.values() if parent is not None).values()) <= 6
    for start in parents:
        steps, place = 0, start
        while (parent := parents[place]) is not None:
            place, steps = parent, steps + 1
            assert steps < 120


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["Tree-Hi-S-Topology", "Tree-Hi-S-Adaptive", "DHT-Hi-S-Learned", "Tree-ML-S-Learned"])
def test_after_failures_answers_are_whole_again(name: str) -> None:
    algorithm = algorithm_named(name)
    assert algorithm is not None
    world = AggregationWorld("bamboo", 11, 60, "king", epochs=16, timers=True)
    world.start(world.query(algorithm, epochs=16, in_degree_max=4))
    world.run(24)
    root = world.owner(ROOT).node.address
    gone = world.random.sample([address for address in range(60) if address not in (root, REQUESTER)], 11)
    for address in [*gone, *([root] if root != REQUESTER else [])]:
        world.nodes[address].stop()
        world.dhts[address].stop()
    alive = {dht.node.address for dht in world.up()}
    world.run(80)
    assert world.last(4).nodes == 60
    for epoch in range(11, 16):
        last = world.last(epoch)
        assert last.nodes == len(alive), epoch
        for address in range(60):
            if address not in alive:
                world.rows[address][epoch] = []
        assert values_of(last) == world.expected(range(epoch, epoch + 1))


def test_a_node_that_comes_later_takes_part_from_the_next_epoch_on() -> None:
    world = AggregationWorld("bamboo", 13, 20, "king", epochs=8, timers=True)
    query = world.query(TOPOLOGY, epochs=8)
    world.start(query)
    world.run(11)
    dht = world.join()
    world.rows.append([[1]] * 8)
    world.run(2)
    world.nodes.append(AggregationNode(world.kernel, dht, query, world.local))
    world.run(60)
    assert [world.last(epoch).nodes for epoch in (0, 1, 2, 6, 7)] == [20, 20, 20, 21, 21]
    assert values_of(world.last(7)) == world.expected(range(7, 8))


def test_overlapping_windows_have_the_rows_of_several_epochs() -> None:
    world = AggregationWorld("chord", 17, 25, "star", epochs=6)
    source = sliding(world.local, TableAlgebra(GROUPED), 3)
    world.aggregate(world.query(TOPOLOGY, epochs=6), seconds=60, source=source)
    for epoch in range(6):
        assert values_of(world.last(epoch)) == world.expected(range(max(0, epoch - 2), epoch + 1))
    with pytest.raises(ValueError, match="at least one epoch"):
        sliding(world.local, TableAlgebra(GROUPED), 0)


def test_sketches_filters_and_lists_go_up_the_tree() -> None:
    functions = [
        Function("approx_count_distinct", pa.int64()),
        Function("approx_percentile", pa.int64(), parameters=(1_000.0, 0.0, 0.5)),
        Function("max_k", pa.int64(), parameters=(3,)),
        Function("histogram", pa.int64(), parameters=(0.0, 1_000.0, 4.0)),
        Function("bloom_filter", pa.int64(), parameters=(4_096, 3)),
        Function("count", pa.int64(), distinct=True),
    ]
    layout = Layout((), tuple((function, "x") for function in functions))
    world = AggregationWorld("bamboo", 23, 40, "king", epochs=2)

    def source(address: int, epoch: int) -> pa.Table:
        return layout.add(pa.table({"x": pa.array(world.rows[address][epoch], pa.int64())}))

    world.aggregate(world.query(TOPOLOGY, epochs=2, in_degree_max=4, layout=layout), seconds=60, source=source)
    for epoch in range(2):
        values = sorted(value for rows in world.rows for value in rows[epoch])
        direct = layout.results(layout.add(pa.table({"x": pa.array(values, pa.int64())})))
        combined = layout.results(world.last(epoch).partial)
        assert [each.to_pylist() for each in combined] == [each.to_pylist() for each in direct]
        assert combined[2].to_pylist() == [values[::-1][:3]]
        assert combined[5].to_pylist() == [len(set(values))]


def test_adaptive_waiting_does_not_wait_a_whole_epoch_for_a_dead_child() -> None:
    found = {}
    for name in ("Tree-Hi-S-Topology", "Tree-Hi-S-Adaptive"):
        algorithm = algorithm_named(name)
        assert algorithm is not None
        world = AggregationWorld("bamboo", 19, 60, "king", epochs=16, timers=True)
        world.start(world.query(algorithm, epochs=16, in_degree_max=4, layout=COUNT))
        world.run(51)
        leaves = [node for node in world.nodes if node.tree is not None and not node.tree.children]
        dead = world.nodes.index(next(node for node in leaves if world.nodes.index(node) != REQUESTER))
        world.nodes[dead].stop()
        world.dhts[dead].stop()
        world.run(40)
        firsts: dict[int, float] = {}
        for answer, at_us in world.answers:
            firsts.setdefault(answer.epoch, at_us / SECOND_US - 5 * answer.epoch)
        found[name] = firsts[11]  # the first epoch without it
    assert found["Tree-Hi-S-Adaptive"] < 4 < 5 <= found["Tree-Hi-S-Topology"]


def test_a_seed_gives_the_same_run() -> None:
    first, second = (run("Tree-Hi-Topology", nodes=50, limit=5, overlay="chord") for _ in range(2))
    assert [(answer.epoch, answer.nodes, at_us) for answer, at_us in first.answers] == [
        (answer.epoch, answer.nodes, at_us) for answer, at_us in second.answers
    ]
    assert first.internet.bytes_received == second.internet.bytes_received


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="Tree-1L-Timeout is no algorithm"):
        Algorithm(Routing.TREE, Structure.ONE_LEVEL, WaitFor())
    with pytest.raises(ValueError, match="IP-1L-S-Timeout is no algorithm"):
        Algorithm(Routing.IP, Structure.ONE_LEVEL, WaitFor(), is_stable=True)
    with pytest.raises(ValueError, match="DHT-Hi-Topology is no algorithm"):
        Algorithm(Routing.DHT, Structure.HIERARCHICAL, WaitForKnown(ChildList.TOPOLOGY))
    with pytest.raises(ValueError, match="cleanup_us must be positive"):
        WaitForKnown(cleanup_us=0)
    world = AggregationWorld("ideal", 1, 4)
    query = world.query(Algorithm(Routing.DHT, Structure.HIERARCHICAL, WaitForAll()))
    with pytest.raises(ValueError, match="DHT-Hi-Optimal needs to know the tree"):
        AggregationNode(world.kernel, world.dhts[0], query, world.local)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        world.query(TOPOLOGY, epochs=0)


def test_children_are_forgotten_when_they_are_silent() -> None:
    children = KnownChildren(WaitForKnown(ChildList.LEARNED, cleanup_us=10))
    children.heard(1, now_us=0, delay_us=3)
    children.heard(2, now_us=8, delay_us=3)
    assert children.deadline_us == 10
    assert children.silent(now_us=11) == [1]
    assert list(children) == [2] and len(children) == 1
