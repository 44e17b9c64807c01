"""One-shot aggregation: every algorithm gives the answer over all rows, at the cost that its description says."""

from collections.abc import Callable

import pytest
from dht_world import NETWORKS, OVERLAYS, SECOND_US, DhtWorld

from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.internet.retransmission import Retransmission
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.pier.aggregation.one_shot import (
    Algorithm,
    OneShotQuery,
    Result,
    Routing,
    Structure,
    WaitFor,
    WaitForAll,
    algorithms,
    children_of,
    start_everywhere,
)

ROOT = identifier_of("root of the aggregation")
REQUESTER = 3


class AggregationWorld(DhtWorld):
    """Nodes with rows of their own, and the results of one query, with the times at which they came."""

    def __init__(
        self,
        overlay: str,
        seed: int,
        nodes: int,
        latency: str = "constant",
        internet: Callable[[Kernel, Latency], Internet] = lambda kernel, latency: Internet(kernel, latency),
    ) -> None:
        super().__init__(overlay, seed, nodes, latency=latency, timers=False, internet=internet)
        self.rows = [[self.random.randrange(1_000) for _ in range(self.random.randrange(4))] for _ in range(nodes)]
        self.results: list[tuple[Result, int]] = []

    @property
    def parents(self) -> list[int | None]:
        return [dht.node.router.next_hop(ROOT) for dht in self.dhts]

    def aggregate(self, algorithm: Algorithm, aggregate: str = "count", seconds: float = 120) -> None:
        is_hierarchical = algorithm.structure is Structure.HIERARCHICAL
        query = OneShotQuery(
            f"{algorithm.name}.{aggregate}",
            algorithm,
            aggregate,
            ROOT,
            self.owner(ROOT).node.address,
            REQUESTER,
            len(self.dhts),
            children_of(self.parents) if is_hierarchical and isinstance(algorithm.timing, WaitForAll) else None,
        )
        nodes = start_everywhere(self.kernel, self.dhts, query, lambda address: self.rows[address], self.note)
        self.run(seconds)
        for node in nodes:
            node.stop()

    def note(self, result: Result) -> None:
        self.results.append((result, self.kernel.now_us))


EXPECTED: dict[str, Callable[[list[int]], object]] = {
    "count": len,
    "sum": sum,
    "max": max,
    "min": min,
    "avg": lambda values: sum(values) / len(values),
}


@pytest.mark.parametrize(("overlay", "latency"), NETWORKS)
def test_every_algorithm_gives_the_answer_over_all_rows(overlay: str, latency: str) -> None:
    world = AggregationWorld(overlay, 1, 40, latency)
    values = [value for rows in world.rows for value in rows]
    for algorithm in algorithms():
        for aggregate in ("count", "avg") if algorithm.structure is not Structure.HIERARCHICAL else EXPECTED:
            world.results.clear()
            world.aggregate(algorithm, aggregate)
            results = [result for result, _ in world.results]
            assert results[-1].value == EXPECTED[aggregate](values)
            assert results[-1].nodes == 40
            included = [result.nodes for result in results]
            assert included == sorted(set(included))  # each revision has more
            if isinstance(algorithm.timing, WaitForAll):
                assert len(results) == 1


def messages_and_end(overlay: str, algorithm: Algorithm, nodes: int = 80) -> tuple[AggregationWorld, int, float]:
    world = AggregationWorld(overlay, 2, nodes)
    world.aggregate(algorithm)
    return world, sum(world.internet.messages_sent), world.results[-1][1] / SECOND_US


def test_messages_and_latency_are_those_of_the_description() -> None:
    found = {algorithm.name: messages_and_end("bamboo", algorithm) for algorithm in algorithms()}
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
    revisions = len(found["DHT-Hi-Timeout"][0].results)
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
        world.aggregate(Algorithm(Routing.DHT, structure, WaitForAll()))
        inbound[structure] = world.internet.bytes_received[world.owner(ROOT).node.address]
    assert 2 * inbound[Structure.HIERARCHICAL] < inbound[Structure.MULTI_LEVEL] < inbound[Structure.ONE_LEVEL]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_timeout_that_is_too_short_gives_revised_results_and_one_by_rate_waits(overlay: str) -> None:
    short = WaitFor(period_us=60_000)
    world = AggregationWorld(overlay, 4, 40, "king")
    world.aggregate(Algorithm(Routing.IP, Structure.ONE_LEVEL, short))
    first = [result.nodes for result, _ in world.results]
    assert len(first) > 1
    assert first[0] < 40 == first[-1]
    world.results.clear()
    world.aggregate(Algorithm(Routing.IP, Structure.ONE_LEVEL, WaitFor(period_us=2 * SECOND_US, by_rate=True)))
    assert [result.nodes for result, _ in world.results] == [40]


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
            world.aggregate(Algorithm(Routing.DHT, structure, WaitForAll()))
            assert world.results[-1][0].nodes == nodes
            repeated[structure, nodes] = world.internet.retransmitted_total / nodes
            ends_s[structure, nodes] = world.results[-1][1] / SECOND_US
    assert repeated[Structure.ONE_LEVEL, 1_000] > 1 > 10 * repeated[Structure.ONE_LEVEL, 100]
    assert repeated[Structure.HIERARCHICAL, 1_000] < 0.3
    assert ends_s[Structure.HIERARCHICAL, 1_000] < ends_s[Structure.ONE_LEVEL, 1_000]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="IP-ML-Optimal is no algorithm"):
        Algorithm(Routing.IP, Structure.MULTI_LEVEL, WaitForAll())
    with pytest.raises(ValueError, match="unknown aggregate median; there are count"):
        OneShotQuery("q", algorithms()[0], "median", 1, 2, 3, 4)
    hierarchical = Algorithm(Routing.DHT, Structure.HIERARCHICAL, WaitForAll())
    with pytest.raises(ValueError, match="needs the number of children"):
        OneShotQuery("q", hierarchical, "count", 1, 2, 3, 4)
    with pytest.raises(ValueError, match="period_us must be positive"):
        WaitFor(period_us=0)
