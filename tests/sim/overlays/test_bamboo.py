"""The dynamic Bamboo: joins, failures and churn end in exactly the leaf sets and owners that all identifiers imply."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import ConstantLatency, King
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.bamboo import Bamboo, BambooSettings, Exchange, Peer, converged
from watersmeet.sim.overlays.identifiers import SPACE, is_between
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.router import Arc, Router

SECOND_US = 1_000_000
QUICK = BambooSettings(
    exchange_us=SECOND_US, check_us=SECOND_US, local_tuning_us=2 * SECOND_US, global_tuning_us=4 * SECOND_US
)


class World:
    """Hosts and their routers; whatever is not a router's message is an error."""

    def __init__(self, seed: int, hosts: int, settings: BambooSettings = QUICK, **net: Any) -> None:
        self.kernel = Kernel(seed)
        self.internet = Internet(self.kernel, King(hosts, seed=seed), **net)
        self.settings = settings
        self.random = Random(seed + 1)
        self.nodes: dict[int, Bamboo] = {}

    def attach(self, node: Bamboo) -> Bamboo:
        def receive(sender: int, message: object) -> None:
            assert node.receive(sender, message)

        self.internet.attach(node.address, receive)
        self.nodes[node.address] = node
        return node

    def join(self, address: int) -> Bamboo:
        """A new node, through a random one that is a member."""
        members = [each.address for each in self.nodes.values() if each.is_ready]
        identifier = self.random.getrandbits(64)
        node = self.attach(Bamboo(self.kernel, self.internet, address, identifier, self.settings))
        node.start(self.random.choice(members) if members else None)
        return node

    def crash(self, address: int) -> None:
        self.nodes.pop(address).stop()
        self.internet.detach(address)

    def run_s(self, seconds: float) -> None:
        self.kernel.run(until_us=self.kernel.now_us + int(seconds * SECOND_US))

    def expected_leaves(self, node: Bamboo) -> set[Peer]:
        """The nearest on either side, by looking at everybody."""
        others = sorted(
            (each for each in self.nodes.values() if each is not node),
            key=lambda each: (each.identifier - node.identifier) % SPACE,
        )
        side = self.settings.leaves_a_side
        return {Peer(each.identifier, each.address) for each in others[:side] + others[-side:]}

    def owner(self, target: int) -> int:
        """The numerically closest, by looking at everybody; the clockwise one of two."""
        return min(
            self.nodes.values(),
            key=lambda each: (
                min((each.identifier - target) % SPACE, (target - each.identifier) % SPACE),
                (each.identifier - target) % SPACE,
            ),
        ).address

    def lookup(self, source: int, target: int) -> list[int]:
        """The way of a message; a hop that fails is suspected and another asked for, as whoever sends it does."""
        path = [source]
        while (hop := self.nodes[path[-1]].next_hop(target)) is not None:
            if self.internet.is_up(hop):
                path.append(hop)
            else:
                self.nodes[path[-1]].suspect(hop)
            assert len(path) < 40, "going round in circles"
        return path

    def assert_converged(self) -> None:
        for node in self.nodes.values():
            assert node.is_ready
            assert set(node.leaves()) == self.expected_leaves(node)
        addresses = sorted(self.nodes)
        for _ in range(300):
            source, target = self.random.choice(addresses), self.random.getrandbits(64)
            path = self.lookup(source, target)
            assert path[-1] == self.owner(target)
            assert is_between(target, *self.nodes[path[-1]].arc)


def joined(seed: int, count: int, settings: BambooSettings = QUICK, **net: object) -> World:
    """So many nodes that join in quick succession, and a little quiet."""
    world = World(seed, 200, settings, **net)
    for address in range(count):
        world.join(address)
        world.run_s(0.3)
    world.run_s(15)
    return world


@pytest.mark.parametrize(("seed", "count"), [(1, 60), (2, 40), (3, 2), (4, 9), (5, 10)])
def test_joins_converge(seed: int, count: int) -> None:
    joined(seed, count).assert_converged()


def test_many_join_at_the_same_instant() -> None:
    world = World(6, 60)
    world.join(0)
    for address in range(1, 50):
        world.join(address)
    world.run_s(40)
    world.assert_converged()


def test_survivors_of_a_third_killed_at_once_converge() -> None:
    world = joined(7, 54)
    for address in world.random.sample(sorted(world.nodes), 18):
        world.crash(address)
    world.run_s(40)
    world.assert_converged()


def test_neighbours_that_die_together_leave_a_gap_that_closes() -> None:
    # More than a whole side of a leaf set: what is beyond the gap is known from tables alone.
    world = joined(8, 50)
    ordered = sorted(world.nodes.values(), key=lambda node: node.identifier)
    for node in ordered[10 : 10 + 2 * QUICK.leaves_a_side + 3]:
        world.crash(node.address)
    world.run_s(40)
    world.assert_converged()


@pytest.mark.few(1)
@pytest.mark.parametrize("net", [{}, {"loss": 0.05}, {"congestion": Congestion.FIFO}], ids=["plain", "loss", "fifo"])
def test_churn_then_quiet(net: dict[str, Any]) -> None:
    world = joined(9, 40, **net)
    for address in range(40, 64):
        alive = sorted(world.nodes)
        victim = world.random.choice(alive)
        if address % 3:
            world.crash(victim)
        else:
            world.nodes.pop(victim).leave()
            world.kernel.after(SECOND_US, world.internet.detach, victim)
        world.join(address)
        world.run_s(1)
    world.run_s(60)
    world.assert_converged()


NEVER_US = 10**15


def test_exchanges_alone_repair_the_leaf_sets() -> None:
    settings = replace(QUICK, local_tuning_us=NEVER_US, global_tuning_us=NEVER_US)
    world = joined(22, 40, settings)
    for address in world.random.sample(sorted(world.nodes), 10):
        world.crash(address)
    world.run_s(40)
    world.assert_converged()


def test_checks_alone_find_the_dead() -> None:
    idle = replace(QUICK, exchange_us=NEVER_US, local_tuning_us=NEVER_US, global_tuning_us=NEVER_US)
    world = World(23, 30, idle)
    for node in converged(world.kernel, world.internet, Prefixes.random(30, 23), idle, timers=True):
        world.attach(node)
    for address in (3, 4, 20):
        world.crash(address)
    world.run_s(5)
    assert not {3, 4, 20} & {leaf.address for node in world.nodes.values() for leaf in node.leaves()}


def test_hearsay_is_not_believed() -> None:
    world = joined(24, 20)
    node = world.nodes[1]
    leaves, arc = node.leaves(), node.arc
    ghost = Peer((node.identifier + 1) % SPACE, 150)
    node.receive(2, Exchange(world.nodes[2].identifier, (ghost,), is_answer=True))
    changes: list[Arc] = []
    node.watch(changes.append)
    world.run_s(5)
    assert (node.leaves(), node.arc, changes) == (leaves, arc, [])


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_node_that_comes_back_at_once_is_a_member_again(is_moved: bool) -> None:
    world = joined(10, 30)
    address = 11
    identifier = (world.nodes[address].identifier + is_moved * SPACE // 3) % SPACE
    world.crash(address)
    world.run_s(0.1)
    node = world.attach(Bamboo(world.kernel, world.internet, address, identifier, QUICK))
    node.start(3)
    world.run_s(20)
    world.assert_converged()


def test_the_same_router_can_start_again() -> None:
    world = joined(11, 20)
    node = world.nodes[7]
    node.leave()
    assert not node.is_ready and node.next_hop((node.identifier + SPACE // 2) % SPACE) is not None
    world.run_s(3)
    node.start(2)
    with pytest.raises(RuntimeError, match="running"):
        node.start(2)
    world.run_s(15)
    world.assert_converged()


def test_leaving_is_known_to_the_neighbours_after_one_message() -> None:
    world = joined(12, 30)
    node = world.nodes.pop(5)
    leaves = world.expected_leaves(node)
    node.leave()
    world.run_s(0.6)
    for leaf in leaves:
        assert 5 not in {each.address for each in world.nodes[leaf.address].leaves()}


def test_arcs_are_watched_and_cover_the_circle() -> None:
    world = World(13, 40)
    seen: dict[int, list[Arc]] = {}
    for address in range(30):
        node = world.join(address)
        seen[address] = []
        node.watch(seen[address].append)
        world.run_s(0.3)
    world.run_s(15)
    ordered = sorted(world.nodes.values(), key=lambda node: node.identifier)
    for node, following in zip(ordered, ordered[1:] + ordered[:1], strict=True):
        assert node.arc[1] == following.arc[0]
        assert world.lookup(0, node.arc[1])[-1] == world.owner(node.arc[1]) == node.address
        first_of_next = (node.arc[1] + 1) % SPACE  # every other time as close to both
        assert world.lookup(0, first_of_next)[-1] == world.owner(first_of_next) == following.address
        arcs = seen[node.address]
        assert (arcs[-1] if arcs else None) == (node.arc if arcs else None)
        assert all(before != after for before, after in pairwise(arcs))
    assert sum(map(len, seen.values())) > 30


def test_whoever_takes_over_is_first_among_the_successors() -> None:
    world = joined(14, 30)
    for address in (4, 9, 17):
        node = world.nodes[address]
        heirs = node.successors(2)
        others = {key: value for key, value in world.nodes.items() if key != address}
        start, end = node.arc
        for share in range(20):
            target = (start + 1 + (end - start - 1) % SPACE * share // 19) % SPACE
            everybody, world.nodes = world.nodes, others
            assert world.owner(target) in heirs
            world.nodes = everybody
        assert len(set(node.successors(6))) == 6 and list(node.successors(6))[:2] == list(heirs)


def test_a_suspected_node_is_not_named_until_it_speaks() -> None:
    world = joined(15, 30)
    node = world.nodes[0]
    neighbour = node.successors(1)[0]
    node.suspect(neighbour)
    assert neighbour not in {leaf.address for leaf in node.leaves()} | {entry.address for entry in node.entries()}
    world.run_s(10)  # it is alive, and so it speaks
    world.assert_converged()


def test_a_frozen_node_is_found_out_by_timeouts_alone() -> None:
    # Its host takes messages, so the network reports no failure.
    world = joined(16, 20)
    world.nodes.pop(6).stop()
    world.run_s(60)  # the tables are asked in turn
    world.assert_converged()


def test_tables_come_to_hold_nearer_nodes_than_chance_would() -> None:
    world = joined(17, 50)
    world.run_s(60)
    latency = world.internet.latency
    chosen, possible = [], []
    for node in world.nodes.values():
        for entry in node.entries():
            if entry.identifier >> 60 != node.identifier >> 60:
                chosen.append(latency.latency_us(node.address, entry.address))
                rivals = [each for each in world.nodes.values() if each.identifier >> 60 == entry.identifier >> 60]
                possible.append(np.mean([latency.latency_us(node.address, each.address) for each in rivals]))
    assert np.mean(chosen) < 0.75 * np.mean(possible)


def test_converged_nodes_agree_with_the_arrays_and_stay_so() -> None:
    kernel = Kernel(18)
    latency = King(120, seed=18)
    internet = Internet(kernel, latency)
    prefixes = Prefixes.random(120, 18, latency)
    nodes = converged(kernel, internet, prefixes, timers=True)
    world = World(18, 120, BambooSettings())
    world.kernel, world.internet = kernel, internet
    for node in nodes:
        world.attach(node)
    random = Random(18)
    for _ in range(300):
        source, target = random.randrange(120), random.getrandbits(64)
        assert world.lookup(source, target)[1:] == prefixes.path(source, target)
    arcs = [node.arc for node in nodes]
    changes: list[Arc] = []
    for node in nodes:
        node.watch(changes.append)
    world.run_s(60)
    assert changes == [] and [node.arc for node in nodes] == arcs
    world.assert_converged()


def test_a_run_is_a_function_of_its_seed() -> None:
    def run() -> tuple[object, ...]:
        world = joined(19, 25)
        tables = [(node.leaves(), node.entries()) for node in world.nodes.values()]
        return tables, world.internet.bytes_sent

    assert run() == run()


def test_one_node_alone_owns_everything_and_says_nothing() -> None:
    kernel = Kernel(20)
    internet = Internet(kernel, ConstantLatency(10_000))
    node: Router = Bamboo(kernel, internet, 0, 42)
    internet.attach(0, lambda sender, message: None)
    node.start(None)
    kernel.run(until_us=100 * SECOND_US)
    assert node.is_ready and node.arc == (42, 42) and node.next_hop(7) is None and node.successors(3) == []
    assert internet.messages_sent == [0]
    assert not node.receive(0, "none of its business")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="exchange_us"):
        BambooSettings(exchange_us=0)


def test_application_messages_find_the_owner_around_the_dead() -> None:
    kernel = Kernel(21)
    latency = King(100, seed=21)
    internet = Internet(kernel, latency)
    prefixes = Prefixes.random(100, 21, latency)
    nodes = [OverlayNode(kernel, internet, router) for router in converged(kernel, internet, prefixes)]
    arrived: dict[int, int] = {}

    def note(address: int, origin: int, target: int, payload: object, hops: int) -> None:
        arrived[target] = address

    for node in nodes:
        node.on_deliver(partial(note, node.address))
    dead = set(range(0, 100, 9))
    for address in sorted(dead):
        nodes[address].stop()
    alive = sorted(set(range(100)) - dead)
    survivors = Prefixes(prefixes.identifiers[alive], addresses=alive)
    random = Random(22)
    targets = [random.getrandbits(64) for _ in range(200)]
    for target in targets:
        nodes[random.choice(alive)].route(target, "payload", 100)
    kernel.run(until_us=30 * SECOND_US)
    assert arrived == {target: survivors.addresses[survivors.owner(target)] for target in targets}
