"""One-shot aggregation: every algorithm gives the answer over all rows, at the cost that its description says."""

import pytest
from aggregation_world import COUNT, REQUESTER, ROOT, AggregationWorld, values_of
from dht_world import NETWORKS, OVERLAYS, SECOND_US

from watersmeet.program.pier.algorithms import (
    Algorithm,
    Routing,
    Structure,
    WaitFor,
    WaitForAll,
    one_shot_algorithms,
)
from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.internet.retransmission import Retransmission
from watersmeet.sim.kernel import Kernel


@pytest.mark.parametrize(("overlay", "latency"), NETWORKS)
def test_every_algorithm_gives_the_answer_over_all_rows(overlay: str, latency: str) -> None:
    world = AggregationWorld(overlay, 1, 40, latency)
    for algorithm in one_shot_algorithms():
        world.aggregate(world.query(algorithm))
        answers = [answer for answer, _ in world.answers]
        assert values_of(answers[-1]) == world.expected(range(1))
        assert answers[-1].nodes == 40
        included = [answer.nodes for answer in answers]
        assert included == sorted(set(included))  # each revision has more
        if isinstance(algorithm.timing, WaitForAll):
            assert len(answers) == 1


def messages_and_end(overlay: str, algorithm: Algorithm, nodes: int = 80) -> tuple[AggregationWorld, int, float]:
    world = AggregationWorld(overlay, 2, nodes)
    world.aggregate(world.query(algorithm, layout=COUNT))
    return world, sum(world.internet.messages_sent), world.answers[-1][1] / SECOND_US


def test_messages_and_latency_are_those_of_the_description() -> None:
    found = {algorithm.name: messages_and_end("bamboo", algorithm) for algorithm in one_shot_algorithms()}
    assert len(found) == 8
    world = found["IP-1L-Optimal"][0]
    parents = world.parents
    depths = []
    for address in range(80):
        depth, place = 0, address
        while (parent := parents[place]) is not None:
            depth, place = depth + 1, parent
        depths.append(depth)
    heights = [1] * 80
    for address in sorted(range(80), key=lambda node: -depths[node]):
        parent = parents[address]
        if parent is not None:
            heights[parent] = max(heights[parent], heights[address] + 1)
    messages = {name: count for name, (_, count, _) in found.items()}
    root = depths.index(0)
    last = root != REQUESTER  # the result's way to the requester
    assert messages["IP-1L-Optimal"] == messages["IP-1L-Timeout"] == 79 + last
    assert messages["DHT-ML-Optimal"] == messages["DHT-ML-Timeout"] == sum(depths) + last
    assert messages["DHT-1L-Optimal"] == sum(depths) + 3 * 79 + last  # lookup, its reply, put, its reply
    assert messages["DHT-Hi-Optimal"] == 79 + last
    # An interior node acts as a leaf first, and sends once more for each level below it.
    revisions = len(found["DHT-Hi-Timeout"][0].answers)
    assert messages["DHT-Hi-Timeout"] == sum(height for node, height in enumerate(heights) if node != root) + (
        revisions * last
    )
    ends = {name: end_s for name, (_, _, end_s) in found.items()}
    for name in ("IP-1L", "DHT-1L", "DHT-ML", "DHT-Hi"):
        assert ends[f"{name}-Optimal"] < 1 < 5 <= ends[f"{name}-Timeout"]
    assert ends["DHT-Hi-Timeout"] > 5 * max(heights)


def test_in_network_aggregation_relieves_the_root() -> None:
    inbound = {}
    for structure in Structure:
        world = AggregationWorld("bamboo", 3, 120)
        world.aggregate(world.query(Algorithm(Routing.DHT, structure, WaitForAll()), layout=COUNT))
        inbound[structure] = world.internet.bytes_received[world.owner(ROOT).node.address]
    assert 2 * inbound[Structure.HIERARCHICAL] < inbound[Structure.MULTI_LEVEL] < inbound[Structure.ONE_LEVEL]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_timeout_that_is_too_short_gives_revised_results_and_one_by_rate_waits(overlay: str) -> None:
    short = WaitFor(period_us=60_000)
    world = AggregationWorld(overlay, 4, 40, "king")
    world.aggregate(world.query(Algorithm(Routing.IP, Structure.ONE_LEVEL, short)))
    first = [answer.nodes for answer, _ in world.answers]
    assert len(first) > 1
    assert first[0] < 40 == first[-1]
    by_rate = WaitFor(period_us=2 * SECOND_US, by_rate=True)
    world.aggregate(world.query(Algorithm(Routing.IP, Structure.ONE_LEVEL, by_rate)))
    assert [answer.nodes for answer, _ in world.answers] == [40]


def test_when_the_root_is_congested_records_are_sent_again_and_combining_them_on_the_way_avoids_it() -> None:
    """PIER, sections 4.2.1 and 4.2.2: sending everything to the root costs more than one message a node."""
    repeated, ends_s = {}, {}
    for structure in (Structure.ONE_LEVEL, Structure.HIERARCHICAL):
        for nodes in (100, 1_000):

            def congested(kernel: Kernel, latency: Latency) -> Internet:
                settings = Retransmission(first_timeout_us=400_000)
                return Internet(
                    kernel, latency, access_bps=300_000.0, congestion=Congestion.FIFO, retransmission=settings
                )

            world = AggregationWorld("bamboo", 5, nodes, "king", congested)
            world.aggregate(world.query(Algorithm(Routing.DHT, structure, WaitForAll()), layout=COUNT))
            assert world.answers[-1][0].nodes == nodes
            repeated[structure, nodes] = world.internet.retransmitted_total / nodes
            ends_s[structure, nodes] = world.answers[-1][1] / SECOND_US
    assert repeated[Structure.ONE_LEVEL, 1_000] > 1 > 10 * repeated[Structure.ONE_LEVEL, 100]
    assert repeated[Structure.HIERARCHICAL, 1_000] < 0.3
    assert ends_s[Structure.HIERARCHICAL, 1_000] < ends_s[Structure.ONE_LEVEL, 1_000]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="IP-ML-Optimal is no algorithm"):
        Algorithm(Routing.IP, Structure.MULTI_LEVEL, WaitForAll())
    with pytest.raises(ValueError, match="period_us must be positive"):
        WaitFor(period_us=0)
