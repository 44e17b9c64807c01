"""The dynamic protocol against the static ring: whatever has happened, in the end it is what Ring says."""

from functools import partial
from random import Random

import pytest

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import ConstantLatency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.chord import Chord, ChordSettings, Neighbours, Peer, Ping, converged
from watersmeet.sim.overlays.identifiers import ID_BITS, SPACE, is_between
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Arc, Router

SECOND_US = 1_000_000


class World:
    """Nodes numbered by address, all on the net, none in the ring."""

    def __init__(self, nodes: int, seed: int, loss: float = 0.0, identifiers: list[int] | None = None) -> None:
        self.kernel = Kernel(seed)
        self.internet = Internet(self.kernel, ConstantLatency(40_000), loss=loss)
        self.random = Random(seed)
        points = identifiers or [self.random.getrandbits(ID_BITS) for _ in range(nodes)]
        self.chords = [Chord(self.kernel, self.internet, address, point) for address, point in enumerate(points)]
        self.nodes = [OverlayNode(self.kernel, self.internet, chord) for chord in self.chords]

    def run(self, seconds: float) -> None:
        self.kernel.run(until_us=self.kernel.now_us + int(seconds * SECOND_US))

    def join_one_by_one(self) -> None:
        for address, node in enumerate(self.nodes):
            node.start(self.random.randrange(address) if address else None)
            self.run(0.5)

    def up(self) -> list[Chord]:
        return [chord for chord in self.chords if chord.is_ready]

    def assert_converged(self, members: list[Chord]) -> Ring:
        """Each member knows exactly what the ring of the members says."""
        ring = Ring([chord.identifier for chord in members], [chord.address for chord in members])
        addresses, count = ring.addresses.tolist(), len(ring)
        for number, address in enumerate(addresses):
            chord = self.chords[address]
            assert chord.is_ready
            following = [addresses[(number + step) % count] for step in range(1, min(9, count))]
            assert list(chord.successors(8)) == following
            assert chord.predecessor == (addresses[number - 1] if count > 1 else None)
            assert chord.arc == (int(ring.identifiers[number - 1]), chord.identifier)
            fingers = [ring.finger(number, exponent) for exponent in range(ID_BITS)]
            assert chord.fingers == tuple(None if finger == number else addresses[finger] for finger in fingers)
        return ring

    def assert_lookups_are_right(self, ring: Ring, lookups: int = 200) -> None:
        addresses, arrived = ring.addresses.tolist(), {}
        for address in addresses:
            self.nodes[address].on_deliver(
                lambda origin, target, payload, hops, here=address: arrived.update({payload: (target, here)})
            )
        for number in range(lookups):
            self.nodes[self.random.choice(addresses)].route(self.random.getrandbits(ID_BITS), number, 100)
        self.run(5)
        assert len(arrived) == lookups
        for target, here in arrived.values():
            assert here == addresses[ring.owner(target)]


@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_that_join_one_after_another_converge_to_the_ring(seed: int) -> None:
    world = World(60, seed)
    world.join_one_by_one()
    world.run(20)
    ring = world.assert_converged(world.chords)
    world.assert_lookups_are_right(ring)


def test_nodes_that_join_all_at_once_through_one_converge_to_the_ring() -> None:
    world = World(40, seed=3)
    world.nodes[0].start(None)
    for node in world.nodes[1:]:
        node.start(0)
    world.run(40)
    world.assert_converged(world.chords)


@pytest.mark.parametrize("seed", [1, 2])
def test_survivors_of_a_third_converge_again(seed: int) -> None:
    world = World(60, seed)
    world.join_one_by_one()
    world.run(20)
    for address in world.random.sample(range(60), 20):
        world.nodes[address].stop()
    assert len(world.up()) == 40
    world.run(40)
    ring = world.assert_converged(world.up())
    world.assert_lookups_are_right(ring)


def test_messages_sent_right_after_the_deaths_arrive_in_the_end() -> None:
    world = World(60, seed=4)
    world.join_one_by_one()
    world.run(20)
    for address in world.random.sample(range(60), 20):
        world.nodes[address].stop()
    members = world.up()
    ring = Ring([chord.identifier for chord in members], [chord.address for chord in members])
    world.assert_lookups_are_right(ring, lookups=300)


def test_it_converges_on_a_lossy_net() -> None:
    world = World(20, seed=5, loss=0.1)
    world.join_one_by_one()
    world.run(60)
    world.assert_converged(world.chords)


def test_who_leaves_gracefully_is_replaced_within_a_latency() -> None:
    world = World(20, seed=6)
    world.join_one_by_one()
    world.run(20)
    ring = world.assert_converged(world.chords)
    before, leaver, after = ring.addresses.tolist()[3:6]
    arcs: list[Arc] = []
    world.chords[after].watch(arcs.append)
    world.nodes[leaver].leave()
    world.run(0.06)
    assert world.chords[after].predecessor == before
    assert world.chords[before].successors(1) == [after]
    assert arcs == [(world.chords[before].identifier, world.chords[after].identifier)]
    assert not world.chords[leaver].is_ready
    world.run(20)
    world.assert_converged(world.up())
    assert len(world.up()) == 19 and not world.internet.is_up(leaver)


def test_who_left_and_who_crashed_can_come_back() -> None:
    world = World(20, seed=7)
    world.join_one_by_one()
    world.run(20)
    world.nodes[4].leave()
    world.nodes[5].stop()
    world.nodes[6].stop()
    world.nodes[6].start(1)  # back before anybody has noticed
    world.run(3)
    world.nodes[4].start(2)
    world.nodes[5].start(3)
    world.run(40)
    world.assert_converged(world.chords)


def test_two_nodes_and_then_one() -> None:
    world = World(2, seed=8)
    world.join_one_by_one()
    world.run(5)
    world.assert_converged(world.chords)
    world.nodes[1].stop()
    world.run(5)
    world.assert_converged(world.chords[:1])
    assert world.chords[0].next_hop(world.chords[1].identifier) is None
    world.nodes[1].start(0)
    world.run(10)
    world.assert_converged(world.chords)
    world.nodes[1].leave()
    world.run(5)
    world.assert_converged(world.chords[:1])


def test_nodes_that_know_nobody_any_more_join_again() -> None:
    """Every node knows only the first, which dies at once and comes back to one of the others."""
    world = World(8, seed=9)
    world.nodes[0].start(None)
    for node in world.nodes[1:]:
        node.start(0)
    world.run(0.17)
    world.nodes[0].stop()
    world.run(2)
    alone = [chord for chord in world.up() if not chord.successors(1)]
    assert len(alone) > 1
    world.nodes[0].start(alone[0].address)
    world.run(60)
    world.assert_converged(world.chords)


def test_rings_that_are_each_in_order_grow_together() -> None:
    """The node through which the second ring's nodes joined is now in the first one."""
    world = World(12, seed=9)
    world.nodes[0].start(None)
    world.nodes[6].start(None)
    for address in (1, 2, 3, 4, 5):
        world.nodes[address].start(0)
        world.nodes[address + 6].start(6)
    world.run(20)
    world.assert_converged(world.chords[:6])
    world.nodes[6].stop()
    world.run(20)
    world.assert_converged(world.chords[7:])
    world.nodes[6].start(0)
    world.run(60)
    world.assert_converged(world.chords)


def test_all_but_one_come_back_before_they_are_missed() -> None:
    """All that the one knows are nodes that are not in the ring yet, and each of them waits for another."""
    world = World(4, seed=19)
    world.join_one_by_one()
    world.run(10)
    for node in world.nodes[1:]:
        node.stop()
        node.start(0)
    world.run(30)
    world.assert_converged(world.chords)


def test_neighbours_know_a_newcomer_a_latency_after_it_has_joined() -> None:
    world = World(20, seed=18)
    for address, node in enumerate(world.nodes[:19]):
        node.start(0 if address else None)
        world.run(1)
    world.run(20)
    world.nodes[19].start(0)
    while not world.chords[19].is_ready:
        world.run(0.01)
    world.run(0.06)
    addresses = Ring([c.identifier for c in world.chords], [c.address for c in world.chords]).addresses.tolist()
    place = addresses.index(19)
    assert world.chords[addresses[place - 1]].successors(1) == [19]
    assert world.chords[addresses[(place + 1) % 20]].predecessor == 19


def test_a_dead_bootstrap_is_tried_again() -> None:
    world = World(3, seed=10)
    world.nodes[0].start(None)
    world.nodes[1].stop()
    world.nodes[2].start(1)
    world.run(10)
    assert not world.chords[2].is_ready
    assert world.chords[2].arc == (world.chords[2].identifier - 1, world.chords[2].identifier)
    world.nodes[1].start(0)
    world.run(20)
    world.assert_converged(world.chords)


def test_arcs_cover_the_circle_once_and_watchers_know_them() -> None:
    world = World(15, seed=11)
    arcs: dict[int, Arc] = {}
    for chord in world.chords:
        chord.watch(partial(arcs.__setitem__, chord.address))
    world.join_one_by_one()
    world.run(10)
    assert arcs == {chord.address: chord.arc for chord in world.chords}
    for _ in range(200):
        point = world.random.randrange(SPACE)
        assert sum(is_between(point, *chord.arc) for chord in world.chords) == 1


def test_a_converged_ring_stays_converged() -> None:
    ring = Ring.random(100, seed=12)
    world = World(100, seed=12, identifiers=ring.identifiers.tolist())
    for node in world.nodes:
        node.stop()
    world.chords = converged(world.kernel, world.internet, ring, timers=True)
    world.nodes = [OverlayNode(world.kernel, world.internet, chord) for chord in world.chords]
    world.assert_converged(world.chords)
    arcs: list[Arc] = []
    for chord in world.chords:
        chord.watch(arcs.append)
    world.run(30)
    world.assert_converged(world.chords)
    assert not arcs


def test_without_timers_nothing_is_sent() -> None:
    kernel = Kernel(seed=13)
    internet = Internet(kernel, ConstantLatency(40_000))
    chords = converged(kernel, internet, Ring.random(50, seed=13))
    assert all(chord.is_ready for chord in chords) and kernel.pending == 0
    assert converged(kernel, internet, Ring([5]))[0].next_hop(77) is None


def test_a_suspect_is_not_named_until_it_calls() -> None:
    ring = Ring.random(30, seed=14)
    kernel = Kernel(seed=14)
    internet = Internet(kernel, ConstantLatency(40_000))
    first, *others = converged(kernel, internet, ring, timers=True)
    for chord in (first, *others):
        OverlayNode(kernel, internet, chord)
    target = int(ring.identifiers[25])
    hop, successor = first.next_hop(target), first.successors(1)[0]
    assert hop is not None
    first.suspect(hop)
    other = first.next_hop(target)
    assert other is not None and other != hop and other < 25  # addresses go clockwise here

    first.suspect(successor)
    second = first.successors(1)[0]
    named = Neighbours(Peer(others[0].identifier, successor), ())
    first.receive(second, named)  # the second successor's word for the first
    assert successor not in first.successors(8)
    first.receive(successor, Ping())
    first.receive(second, named)
    assert first.successors(1) == [successor]
    kernel.run(until_us=30 * SECOND_US)
    assert list(first.successors(8)) == list(range(1, 9))


def test_same_seed_same_run() -> None:
    def sent(seed: int) -> list[int]:
        world = World(15, seed)
        world.join_one_by_one()
        world.run(5)
        return world.internet.messages_sent

    assert sent(15) == sent(15) != sent(16)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="stabilise_us must be positive"):
        ChordSettings(stabilise_us=0)
    with pytest.raises(ValueError, match="suspicion_us must be at least 16000000"):
        ChordSettings(successors=16)
    kernel = Kernel(seed=1)
    with pytest.raises(ValueError, match="64 bits"):
        Chord(kernel, Internet(kernel, ConstantLatency(1)), 0, SPACE)
    router: Router = Chord(kernel, Internet(kernel, ConstantLatency(1)), 0, 5)
    assert router.receive(1, "something else") is False
