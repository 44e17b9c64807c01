"""Aggregation trees: in-degrees stay within the limit, everybody is below the root, and payloads arrive once."""

from collections import Counter
from functools import partial

import pytest
from dht_world import NETWORKS, OVERLAYS, DhtWorld
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.sim.dht.node import Dht
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.pier.aggregation.membership import Accepted, ChildMembership, Redirected, Standing
from watersmeet.sim.pier.aggregation.tree import AggregationTree, AggregationTreeSettings

ROOT = identifier_of("root of the test")
EPOCH_S = 5


class TreeWorld(DhtWorld):
    """Nodes that all send one message up the tree in every epoch."""

    def __init__(
        self, overlay: str, seed: int, nodes: int, settings: AggregationTreeSettings, latency: str, timers: bool = True
    ) -> None:
        super().__init__(overlay, seed, nodes, latency=latency, timers=timers)
        self.tree_settings = settings
        self.received: Counter[tuple[int, int]] = Counter()  # (child, epoch)
        self.epoch = 0
        self.trees = [self.tree(dht) for dht in self.dhts]

    def tree(self, dht: Dht) -> AggregationTree:
        return AggregationTree(self.kernel, dht, "t", ROOT, self.note, self.tree_settings)

    def note(self, child: int, payload: object, stays: bool) -> None:
        assert isinstance(payload, int)
        self.received[child, payload] += 1

    def run_epoch(self) -> None:
        self.epoch += 1
        for dht in self.up():
            self.trees[dht.node.address].turn()
            send = partial(self.trees[dht.node.address].send_up, self.epoch, 20)
            self.kernel.after(self.random.randrange(500_000), send)
        self.run(EPOCH_S)

    def stop(self, address: int) -> None:
        self.trees[address].stop()
        self.dhts[address].stop()

    @property
    def root(self) -> int:
        return self.owner(ROOT).node.address

    def assert_spans(self) -> None:
        """Parents lead from everywhere to the root, children know it, and heights follow from that."""
        up = {dht.node.address for dht in self.up()}
        parents = {address: self.trees[address].parent for address in up}
        assert [address for address, parent in parents.items() if parent is None] == [self.root]
        for start in up:
            address, steps = start, 0
            while (parent := parents[address]) is not None:
                assert address in self.trees[parent].children
                address, steps = parent, steps + 1
                assert steps <= len(up), f"{start} is in a cycle"
        counts = Counter(parents.values())
        assert {address: len(self.trees[address].children) for address in up} == {
            address: counts.get(address, 0) for address in up
        }

    @property
    def in_degree(self) -> int:
        return max(len(tree.children) for tree in self.trees)


@pytest.mark.parametrize(("overlay", "latency"), NETWORKS)
def test_in_degrees_fall_to_the_limit_and_everybody_stays_below_the_root(overlay: str, latency: str) -> None:
    world = TreeWorld(overlay, 1, 120, AggregationTreeSettings(in_degree_max=4), latency, timers=False)
    for _ in range(15):
        world.run_epoch()
        assert world.in_degree <= 4
    world.run_epoch()
    world.assert_spans()
    others = set(range(120)) - {world.root}
    assert world.received == Counter({(child, epoch): 1 for child in others for epoch in range(1, 17)})
    redirects = sum(tree.redirects_total for tree in world.trees)
    world.run_epoch()
    assert sum(tree.redirects_total for tree in world.trees) == redirects > 10  # it has come to rest
    standing = world.trees[world.root].standing
    assert standing.free_slots == 120 * 4 - 119  # every slot of every node, less those in use
    assert 3 <= standing.height <= 12


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_without_a_limit_the_tree_is_that_of_the_overlay(overlay: str) -> None:
    world = TreeWorld(overlay, 2, 80, AggregationTreeSettings(in_degree_max=None), "constant", timers=False)
    world.run_epoch()
    world.run_epoch()
    world.assert_spans()
    for dht in world.dhts:
        assert world.trees[dht.node.address].parent == dht.node.router.next_hop(ROOT)
    assert world.in_degree > 4
    assert sum(tree.redirects_total for tree in world.trees) == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("is_stable", [True, False])
def test_after_crashes_everybody_finds_a_parent_again(overlay: str, is_stable: bool) -> None:
    world = TreeWorld(overlay, 3, 60, AggregationTreeSettings(in_degree_max=4, is_stable=is_stable), "king")
    for _ in range(4):
        world.run_epoch()
    dead = world.random.sample([tree for tree in range(60) if tree != world.root], 14)
    for address in [*dead, world.root]:
        world.stop(address)
    for _ in range(12):
        world.run_epoch()
    if is_stable:
        world.assert_spans()
    assert world.in_degree <= 4
    last = {child for child, epoch in world.received if epoch == world.epoch}
    assert last == {dht.node.address for dht in world.up()} - {world.root}


@given(
    reports=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=40
    ),
    limit=st.integers(1, 5),
)  # fmt: skip
def test_who_is_a_child_and_who_is_sent_where(reports: list[tuple[int, int, int]], limit: int) -> None:
    members = ChildMembership(limit)
    model: dict[int, Standing] = {}
    for now_us, (address, height, free) in enumerate(reports):
        standing = Standing(height, free)
        decision = members.hear(address, standing, now_us)
        if address in model or len(model) < limit:
            assert decision == Accepted()
            model[address] = standing
        else:
            assert isinstance(decision, Redirected)
            chosen = model[decision.parent]
            with_room = [each for each in model.values() if each.free_slots] or list(model.values())
            assert chosen.height == min(each.height for each in with_room)
            assert chosen.free_slots == max(each.free_slots for each in with_room if each.height == chosen.height)
            model[decision.parent] = Standing(max(chosen.height, height + 1), max(0, chosen.free_slots - 1))
    expected_height = 1 + max(each.height for each in model.values())
    expected_free = limit - len(model) + sum(each.free_slots for each in model.values())
    assert members.standing == Standing(expected_height, expected_free)
    silent = members.expire(len(reports) - 1)
    assert set(silent) | set(members.children) == set(model)
    assert set(members.children) == {reports[-1][0]} & set(model)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="in_degree_max must be at least 1"):
        AggregationTreeSettings(in_degree_max=0)
    with pytest.raises(ValueError, match="in_degree_max must be at least 1"):
        ChildMembership(0)
