"""Distribution trees: every live node gets every broadcast once, whoever comes, crashes and leaves."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from dht_world import HOUR_US, NETWORKS, OVERLAYS, SECOND_US, DhtWorld
from seeds import FreshSeeds

from watersmeet.sim.dht.node import Dht
from watersmeet.sim.internet.churn import Churn, Exponential
from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.node import Direct
from watersmeet.sim.pier.indexes.distribution_tree import Broadcast, DistributionSettings, DistributionTree, Down

everywhere = pytest.mark.parametrize("overlay", OVERLAYS)
QUICK = DistributionSettings(renew_us=5 * SECOND_US, check_us=SECOND_US, child_lifetime_us=12 * SECOND_US)


class CountingInternet(Internet):
    """Counts copies of broadcasts."""

    __slots__ = ("down_total",)

    def __init__(self, kernel: Kernel, latency: Latency) -> None:
        super().__init__(kernel, latency)
        self.down_total = 0

    def send(
        self, sender: int, receiver: int, message: object, size_bytes: int, failed: Callable[[], None] | None = None
    ) -> None:
        self.down_total += isinstance(message, Direct) and isinstance(message.payload, Down)
        super().send(sender, receiver, message, size_bytes, failed)


class TreeWorld(DhtWorld):
    """Nodes with distribution trees, and what each has delivered."""

    def __init__(
        self,
        overlay: str,
        seed: int,
        nodes: int = 40,
        *,
        latency: str = "constant",
        timers: bool = True,
        trees: DistributionSettings = QUICK,
    ) -> None:
        super().__init__(overlay, seed, nodes, latency=latency, timers=timers, internet=CountingInternet)
        self.tree_settings = trees
        self.delivered: dict[int, Counter[object]] = {}
        self.trees = [self.tree(dht) for dht in self.dhts]

    @property
    def down_total(self) -> int:
        assert isinstance(self.internet, CountingInternet)
        return self.internet.down_total

    def tree(self, dht: Dht) -> DistributionTree:
        self.delivered[dht.node.address] = Counter()
        tree = DistributionTree(self.kernel, dht, partial(self.note, dht.node.address), self.tree_settings)
        tree.start()
        return tree

    def note(self, address: int, broadcast: Broadcast) -> None:
        self.delivered[address][broadcast.payload] += 1

    def join(self, bootstrap: int | None = None) -> Dht:
        dht = super().join(bootstrap)
        self.trees.append(self.tree(dht))
        return dht

    def assert_delivered_once(self, *payloads: object) -> None:
        up = [dht.node.address for dht in self.up()]
        wrong = {address: self.delivered[address] for address in up if self.delivered[address] != Counter(payloads)}
        assert wrong == {}


@pytest.mark.parametrize(("overlay", "latency"), NETWORKS)
def test_the_tree_is_the_union_of_the_routes_and_a_broadcast_needs_a_message_a_node(overlay: str, latency: str) -> None:
    for seed in (1, 2):
        world = TreeWorld(overlay, seed, nodes=60, latency=latency, timers=False)
        world.run(3)
        root = world.owner(QUICK.root(0)).node.address
        parents = {child: parent for parent, tree in enumerate(world.trees) for child in tree.children()}
        hops = {dht.node.address: dht.node.router.next_hop(QUICK.root(0)) for dht in world.dhts}
        assert hops.pop(root) is None
        assert parents == hops
        for number, sender in enumerate((root, 7, 33)):
            before = world.down_total
            world.trees[sender].broadcast(f"query {number}", 500, HOUR_US)
            world.run(3)
            world.assert_delivered_once(*(f"query {each}" for each in range(number + 1)))
            assert world.down_total - before == 59


def test_where_routes_never_change_looking_at_them_less_changes_no_message() -> None:
    sent = []
    for follows_routes in (True, False):
        world = TreeWorld("bamboo", 5, timers=False, trees=replace(QUICK, trees=2, follows_routes=follows_routes))
        executed = world.kernel.run(40 * SECOND_US)
        world.trees[3].broadcast("query", 500, HOUR_US)
        executed += world.kernel.run(100 * SECOND_US)
        world.assert_delivered_once("query")
        internet = world.internet
        sent.append((internet.messages_sent, internet.bytes_sent, internet.bytes_received, executed))
    assert sent[0][:3] == sent[1][:3]
    assert sent[1][3] < 0.8 * sent[0][3]


def test_chord_and_bamboo_give_trees_of_several_levels_and_the_ideal_overlay_a_star() -> None:
    levels = {}
    for overlay in OVERLAYS:
        world = TreeWorld(overlay, seed=3, nodes=200, timers=False)
        world.run(1)
        frontier, depth = [world.owner(QUICK.root(0)).node.address], 0
        while frontier := [child for node in frontier for child in world.trees[node].children()]:
            depth += 1
        levels[overlay] = depth
    assert levels["ideal"] == 1 < levels["bamboo"] < levels["chord"]


@everywhere
def test_over_all_trees_a_broadcast_outlives_dead_nodes_before_any_repair(overlay: str) -> None:
    settings = DistributionSettings(trees=4, renew_us=50 * SECOND_US, check_us=40 * SECOND_US)
    world = TreeWorld(overlay, seed=4, trees=settings, timers=False)
    world.run(2)
    roots = [world.owner(settings.root(tree)) for tree in range(4)]
    assert len(set(roots)) > 1
    sender = next(tree for tree, dht in zip(world.trees, world.dhts, strict=True) if dht not in roots)
    sender.broadcast("one tree", 500, HOUR_US)
    before = world.down_total
    world.run(2)
    assert world.down_total - before == 39
    sender.broadcast("all trees", 500, HOUR_US, everywhere=True)
    world.run(2)
    assert world.down_total - before == 39 + 4 * 39
    world.assert_delivered_once("one tree", "all trees")
    children = max(world.trees, key=lambda tree: -1 if tree is sender else len(tree.children(1)))
    world.dhts[world.trees.index(children)].stop()
    sender.broadcast("robust", 500, HOUR_US, everywhere=True)
    world.run(5)
    world.assert_delivered_once("one tree", "all trees", "robust")


@everywhere
def test_a_node_that_joins_gets_what_was_broadcast_before_unless_it_has_expired(overlay: str) -> None:
    world = TreeWorld(overlay, seed=5)
    world.run(2)
    world.trees[0].broadcast("short", 500, 5 * SECOND_US)
    world.trees[1].broadcast("long", 500, HOUR_US)
    world.run(6)
    world.assert_delivered_once("short", "long")
    newcomers = [world.join() for _ in range(3)]
    world.run(30)
    for dht in newcomers:
        assert dht.node.router.is_ready
        assert world.delivered[dht.node.address] == Counter(["long"])


@everywhere
@pytest.mark.parametrize("seed", [6])
def test_after_the_root_has_died_old_broadcasts_reach_newcomers_and_new_ones_everybody(overlay: str, seed: int) -> None:
    world = TreeWorld(overlay, seed)
    world.run(2)
    world.trees[3].broadcast("old", 500, HOUR_US)
    world.run(3)
    root = world.owner(QUICK.root(0))
    sender = next(tree for tree, dht in zip(world.trees, world.dhts, strict=True) if dht is not root)
    root.stop()
    sender.broadcast("as it dies", 500, HOUR_US)
    newcomer = world.join()
    world.run(60)
    assert newcomer.node.router.is_ready
    sender.broadcast("new", 500, HOUR_US)
    world.run(5)
    world.assert_delivered_once("old", "as it dies", "new")


def churned(overlay: str, seed: int) -> None:
    """Nodes crash, leave and join while queries are broadcast; later every live node has had each of them once."""
    world = TreeWorld(overlay, seed, nodes=30, latency="king")

    def join(address: int) -> None:
        assert world.join(bootstrap=address % 4).node.address == address

    churn = Churn(
        world.kernel,
        Exponential(50 * SECOND_US),
        join=join,
        fail=lambda address: world.dhts[address].stop(),
        leave=lambda address: world.dhts[address].leave(),
        graceful_fraction=0.3,
        until_us=50 * SECOND_US,
    )
    churn.start(range(4, 30))
    sent = []
    for number in range(10):
        world.run(5)
        world.trees[number % 4].broadcast(f"query {number}", 800, HOUR_US)
        sent.append(f"query {number}")
    assert churn.failures + churn.leaves > 10
    world.run(60)
    assert len(world.up()) == 30
    world.assert_delivered_once(*sent)


@pytest.mark.few(2)
@everywhere
@pytest.mark.parametrize("seed", [8, 9])
def test_under_churn_every_live_node_gets_every_live_broadcast_once(overlay: str, seed: int) -> None:
    churned(overlay, seed)


@pytest.mark.soak
@everywhere
def test_under_churn_with_fresh_seeds(overlay: str, fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(30):
        churned(overlay, seed)


def test_children_are_forgotten_when_they_are_silent_or_unreachable() -> None:
    world = TreeWorld("ideal", seed=11)
    world.run(2)
    root = world.owner(QUICK.root(0))
    tree = world.trees[root.node.address]
    silent, unreachable = [dht for dht in world.dhts if dht is not root][:2]
    assert len(tree.children()) == 39
    silent.stop()
    world.run(13)
    assert len(tree.children()) == 38
    unreachable.stop()
    tree.broadcast("x", 100, HOUR_US)
    world.run(1)
    assert len(tree.children()) == 37
    world.run(30)
    world.assert_delivered_once("x")


def test_what_cannot_be_is_refused() -> None:
    world = TreeWorld("ideal", seed=12, nodes=3)
    with pytest.raises(ValueError, match="lifetime_us must be positive"):
        world.trees[0].broadcast("x", 100, 0)
    world.trees[0].stop()
    with pytest.raises(ValueError, match="node 0 is in no distribution tree: start it first"):
        world.trees[0].broadcast("x", 100, 1)
    with pytest.raises(ValueError, match="trees must be at least 1"):
        DistributionSettings(trees=0)
    with pytest.raises(ValueError, match="child_lifetime_us must be above renew_us"):
        DistributionSettings(child_lifetime_us=5, renew_us=5)
