"""Application messages: the way they take, together and alone, and what happens when it is broken."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import ConstantLatency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.chord import converged
from watersmeet.sim.overlays.identifiers import SPACE
from watersmeet.sim.overlays.node import ENVELOPE_BYTES, HEADER_BYTES, HOPS_MAX, LINGER_US, OverlayNode
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Arc

LATENCY_US = 40_000


class Converged:
    """A converged ring of nodes, addressed by their numbers, that note what they deliver."""

    def __init__(self, nodes: int, seed: int, *, timers: bool = False) -> None:
        self.kernel = Kernel(seed)
        self.internet = Internet(self.kernel, ConstantLatency(LATENCY_US), access_bps=None)
        self.ring = Ring.random(nodes, seed)
        routers = converged(self.kernel, self.internet, self.ring, timers=timers)
        self.nodes = [OverlayNode(self.kernel, self.internet, router) for router in routers]
        self.delivered: list[tuple[int, int, int, object, int]] = []  # node, origin, target, payload, hops
        for node in self.nodes:
            node.on_deliver(lambda *what, here=node.address: self.delivered.append((here, *what)))

    def run(self, seconds: float = 5) -> None:
        self.kernel.run(until_us=self.kernel.now_us + int(seconds * 1_000_000))


class Fixed:
    """A router that always names the same next hop."""

    def __init__(self, address: int, hop: int | None) -> None:
        self.address, self.identifier, self.hop = address, address, hop
        self.is_ready = True
        self.suspected: list[int] = []

    def start(self, bootstrap: int | None) -> None:
        self.is_ready = True

    def leave(self) -> None:
        self.is_ready = False

    stop = leave

    def receive(self, sender: int, message: object) -> bool:
        return message == "maintenance"

    def next_hop(self, target: int) -> int | None:
        return self.hop

    def suspect(self, address: int) -> None:
        self.suspected.append(address)

    def successors(self, count: int) -> Sequence[int]:
        return []

    def watch(self, changed: Callable[[Arc], None]) -> None:
        pass

    @property
    def arc(self) -> Arc:
        return 0, 0


def fixed_nodes(*hops: int | None) -> tuple[Kernel, list[OverlayNode], list[Fixed]]:
    kernel = Kernel(seed=1)
    internet = Internet(kernel, ConstantLatency(LATENCY_US), access_bps=None)
    routers = [Fixed(address, hop) for address, hop in enumerate(hops)]
    return kernel, [OverlayNode(kernel, internet, router) for router in routers], routers


def test_messages_visit_the_nodes_that_the_static_ring_says() -> None:
    world, generator = Converged(300, seed=1), np.random.default_rng(1)
    visited: dict[object, list[int]] = {}

    def visit(here: int, target: int, payload: object) -> object:
        visited.setdefault(payload, []).append(here)
        return payload

    for node in world.nodes:
        node.on_transit(partial(visit, node.address))
    expected = {}
    for number in range(300):
        source, target = int(generator.integers(300)), int(generator.integers(SPACE, dtype=np.uint64))
        expected[number] = (source, target, world.ring.path(source, target))
        world.nodes[source].route(target, number, 100)
    world.run()
    assert len(world.delivered) == 300
    for here, origin, target, payload, hops in world.delivered:
        assert isinstance(payload, int)
        source, sought, path = expected[payload]
        assert (origin, target, hops) == (source, sought, len(path))
        assert [*visited.get(payload, []), here] == (path or [source])


@pytest.mark.parametrize("source", [0, 17])
def test_messages_that_leave_together_share_hops_as_in_the_static_ring(source: int) -> None:
    world = Converged(200, seed=2)
    targets = np.random.default_rng(source).integers(SPACE, size=30, dtype=np.uint64)
    sent = np.zeros(200, dtype=np.int64)
    hops = world.ring.grouped(source, targets, sent)
    world.nodes[source].route_many([(int(target), number, 10) for number, target in enumerate(targets)])
    world.run()
    assert [node.sent_total for node in world.nodes] == sent.tolist() == world.internet.messages_sent
    assert {payload: count for _, _, _, payload, count in world.delivered} == dict(enumerate(hops.tolist()))
    assert all(here == world.ring.owner(target) for here, _, target, _, _ in world.delivered)


def test_a_bundle_has_one_header() -> None:
    kernel, nodes, _ = fixed_nodes(1, None)
    nodes[0].route(5, "alone", 100)
    kernel.run()
    nodes[0].route_many([(5, "a", 100), (6, "b", 50)])
    nodes[0].direct(1, "direct", 7)
    kernel.run()
    sizes = [HEADER_BYTES + ENVELOPE_BYTES + 100, HEADER_BYTES + 2 * ENVELOPE_BYTES + 150, HEADER_BYTES + 7]
    assert nodes[0]._internet.bytes_sent[0] == sum(sizes) and nodes[0].sent_total == 3


def test_the_upcall_changes_and_stops_what_passes_by() -> None:
    kernel, nodes, _ = fixed_nodes(1, 2, None)
    delivered: list[object] = []
    seen: list[tuple[int, object]] = []

    def see(here: int, target: int, payload: object) -> object:
        seen.append((here, payload))
        return payload

    for node in nodes:
        node.on_deliver(lambda origin, target, payload, hops: delivered.append(payload))
        node.on_transit(partial(see, node.address))
    nodes[1].on_transit(lambda target, payload: None if payload == "stop" else f"{payload}!")
    nodes[0].route_many([(9, "go", 10), (9, "stop", 10)])
    kernel.run()
    assert delivered == ["go!"] and nodes[1].stopped_total == 1
    assert seen == [(1, "go"), (1, "stop")]  # neither where it begins nor where it ends


def test_a_broken_hop_is_suspected_and_another_taken() -> None:
    world = Converged(100, seed=3, timers=True)
    target = int(world.ring.identifiers[70])
    first, owner = world.ring.path(0, target)[0], 70
    assert first != owner
    world.nodes[first].stop()
    world.nodes[0].route(target, "x", 10)
    world.run(3)
    assert [(here, payload) for here, _, _, payload, _ in world.delivered] == [(owner, "x")]
    assert world.nodes[0].router.next_hop(target) != first


def test_what_was_for_a_dead_node_gets_to_its_successor() -> None:
    world = Converged(100, seed=4, timers=True)
    world.nodes[70].stop()
    for source in range(0, 60, 10):
        world.nodes[source].route(int(world.ring.identifiers[70]), source, 10)
    world.run(10)
    assert sorted((here, payload) for here, _, _, payload, _ in world.delivered) == [
        (71, source) for source in range(0, 60, 10)
    ]


def test_what_goes_in_circles_is_dropped_and_counted() -> None:
    kernel, nodes, _ = fixed_nodes(1, 0)
    nodes[0].route(5, "x", 10)
    kernel.run()
    assert nodes[0].dropped_total + nodes[1].dropped_total == 1
    assert nodes[0].sent_total + nodes[1].sent_total == HOPS_MAX


def test_a_hop_that_never_answers_is_given_up() -> None:
    kernel, nodes, routers = fixed_nodes(1, 0)
    nodes[1].stop()
    nodes[0].route(5, "x", 10)
    kernel.run()
    assert routers[0].suspected == [1] * HOPS_MAX and nodes[0].dropped_total == 1


def test_a_node_that_has_not_joined_keeps_messages_until_it_has() -> None:
    kernel, nodes, routers = fixed_nodes(1, None)
    delivered: list[object] = []
    nodes[1].on_deliver(lambda origin, target, payload, hops: delivered.append(payload))
    routers[1].is_ready = False
    nodes[0].route(5, "x", 10)
    kernel.run(until_us=1_000_000)
    assert not delivered
    routers[1].is_ready = True
    kernel.run()
    assert delivered == ["x"]
    routers[1].is_ready = False
    nodes[0].route(5, "y", 10)
    kernel.run()
    assert delivered == ["x"] and nodes[1].dropped_total == 1


def test_a_node_that_has_left_hands_on_what_was_under_way() -> None:
    world = Converged(50, seed=5, timers=True)
    world.nodes[19].route(int(world.ring.identifiers[20]), "late", 10)
    world.nodes[20].leave()
    world.run(LINGER_US / 1_000_000 + 1)
    assert [(here, payload) for here, _, _, payload, _ in world.delivered] == [(21, "late")]
    assert not world.nodes[20].is_up
    world.nodes[20].start(3)
    world.run(20)
    world.nodes[7].route(int(world.ring.identifiers[20]), "again", 10)
    world.run()
    assert world.delivered[-1][0] == 20 and world.nodes[20].is_up


def test_direct_messages_and_those_that_fail() -> None:
    kernel, nodes, routers = fixed_nodes(None, None, None)
    received: list[tuple[int, object, int]] = []
    nodes[1].on_direct(lambda sender, payload: received.append((sender, payload, kernel.now_us)))
    nodes[2].stop()
    failures: list[int] = []
    nodes[0].direct(1, "hello", 10)
    nodes[0].direct(2, "anyone", 10, failed=lambda: failures.append(kernel.now_us))
    nodes[1].direct(1, "me", 10)
    kernel.run()
    assert received == [(1, "me", 0), (0, "hello", LATENCY_US)]
    assert len(failures) == 1 and routers[0].suspected == [2] and nodes[1].sent_total == 0


def test_a_message_to_oneself_does_not_arrive_inside_the_call() -> None:
    kernel, nodes, _ = fixed_nodes(None)
    order: list[str] = []
    nodes[0].on_deliver(lambda origin, target, payload, hops: order.append(f"{payload} after {hops} hops"))
    nodes[0].route(5, "own", 10)
    order.append("sent")
    kernel.run()
    assert order == ["sent", "own after 0 hops"] and kernel.now_us == 0 and nodes[0].sent_total == 0


def test_maintenance_goes_to_the_router_and_nonsense_is_an_error() -> None:
    _, nodes, _ = fixed_nodes(None)
    nodes[0].receive(1, "maintenance")
    with pytest.raises(TypeError, match="neither the node nor its router"):
        nodes[0].receive(1, "nonsense")
