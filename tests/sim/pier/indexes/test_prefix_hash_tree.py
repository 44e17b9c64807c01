"""The Prefix Hash Tree against a plain dictionary, and the shape of the trie against its definition."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from dht_world import HOUR_US, NETWORKS, OVERLAYS, SECOND_US, DhtWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import FreshSeeds

from watersmeet.sim.dht.node import Dht
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.internet.churn import Churn, Exponential
from watersmeet.sim.pier.indexes.pht.labels import high_of, label_of, low_of
from watersmeet.sim.pier.indexes.pht.messages import NodeKind, PhtSettings, TrieNode
from watersmeet.sim.pier.indexes.pht.tree import LookupResult, PrefixHashTree

everywhere = pytest.mark.parametrize("overlay", OVERLAYS)
BITS = 10
SMALL = PhtSettings(
    key_bits=BITS,
    leaf_entries=4,
    merge_entries=2,
    upkeep_us=2 * SECOND_US,
    node_lifetime_us=8 * SECOND_US,
    lock_us=12 * SECOND_US,
    timeout_us=2 * SECOND_US,
)
COPIED = DhtSettings(repair_us=2 * SECOND_US, replicas=2)
Model = dict[tuple[int, str], object]


class PhtWorld(DhtWorld):
    """Peers that share an index, and what should be in it."""

    def __init__(
        self,
        overlay: str,
        seed: int,
        nodes: int = 12,
        *,
        latency: str = "constant",
        dht_settings: DhtSettings = DhtSettings(repair_us=2 * SECOND_US),  # noqa: B008 - it is frozen
        pht: PhtSettings = SMALL,
        timers: bool = True,
    ) -> None:
        super().__init__(overlay, seed, nodes, latency=latency, settings=dht_settings, timers=timers)
        self.pht_settings = pht
        self.model: Model = {}
        self.trees = [self.tree(dht) for dht in self.dhts]

    def tree(self, dht: Dht) -> PrefixHashTree:
        tree = PrefixHashTree(self.kernel, dht, "by_price", self.pht_settings)
        tree.start()
        return tree

    def join(self, bootstrap: int | None = None) -> Dht:
        dht = super().join(bootstrap)
        self.trees.append(self.tree(dht))
        return dht

    def peer(self) -> PrefixHashTree:
        return self.trees[self.anyone().node.address]

    def insert(self, keys: Sequence[int], *, entry_id: str = "a", seconds: float = 10) -> None:
        """All at once."""
        done: list[bool] = []
        for key in keys:
            self.peer().insert(key, entry_id, f"{entry_id} at {key}", HOUR_US, done=done.append)
            self.model[key, entry_id] = f"{entry_id} at {key}"
        self.run(seconds)
        assert done == [True] * len(keys)

    def delete(self, names: Sequence[tuple[int, str]], seconds: float = 10) -> None:
        done: list[bool] = []
        for name in names:
            self.peer().delete(*name, done=done.append)
            self.model.pop(name, None)
        self.run(seconds)
        assert done == [True] * len(names)

    def ask(self, low: int, high: int, parallel: bool) -> LookupResult:
        found: list[LookupResult] = []
        self.peer().range(low, high, found.append, parallel=parallel)
        for _ in range(100):
            self.run(0.5)
            if found:
                break
        (answer,) = found
        return answer

    def expected(self, low: int, high: int) -> Model:
        return {name: value for name, value in sorted(self.model.items()) if low <= name[0] <= high}

    def assert_found(self, low: int, high: int) -> None:
        for parallel in (True, False):
            answer = self.ask(low, high, parallel)
            assert [((e.key, e.id), e.value) for e in answer.entries] == list(self.expected(low, high).items())
            assert answer.is_complete

    def trie(self) -> dict[str, TrieNode]:
        nodes: dict[str, TrieNode] = {}
        for dht in self.up():
            for label, node in self.trees[dht.node.address].nodes().items():
                assert label not in nodes
                nodes[label] = node
        return nodes

    def assert_shape(self) -> None:
        """Leaves divide the keys, have what is theirs, no more than they may, and know their neighbours."""
        trie, bits = self.trie(), self.pht_settings.key_bits
        leaves = sorted((low_of(label, bits), label) for label, node in trie.items() if node.kind is NodeKind.LEAF)
        if not leaves:
            assert trie == {} == self.model
            return
        following = 0
        for low, label in leaves:
            assert low == following
            following = high_of(label, bits) + 1
            held = {(entry.key, entry.id): entry.value for entry in trie[label].entries}
            assert held == self.expected(low, following - 1)
            assert len(held) <= self.pht_settings.leaf_entries or len(label) == bits
        assert following == 1 << bits
        internal = {label for label, node in trie.items() if node.kind is NodeKind.INTERNAL}
        assert internal == {label[:length] for _, label in leaves for length in range(len(label))}


@pytest.mark.parametrize(("overlay", "latency"), NETWORKS)
def test_entries_are_found_by_point_and_range_while_the_trie_grows_and_shrinks(overlay: str, latency: str) -> None:
    world = PhtWorld(overlay, seed=1, latency=latency, timers=False)
    world.assert_found(0, 1023)  # nothing yet
    keys = world.random.sample(range(1 << BITS), 60)
    for start in range(0, 60, 20):
        world.insert(keys[start : start + 20])
        world.assert_found(0, 1023)
    world.insert(keys[:5], entry_id="b")
    world.run(20)
    world.assert_shape()
    assert sum(tree.splits_total for tree in world.trees) > 10
    for low, high in ((keys[0], keys[0]), (100, 300), (511, 512), (700, 700)):
        world.assert_found(low, high)
    world.delete([(key, "a") for key in keys[5:]])
    world.assert_found(0, 1023)
    world.run(40)
    world.assert_shape()
    assert sum(tree.merges_total for tree in world.trees) > 10
    world.delete([(key, entry_id) for key in keys[:5] for entry_id in "ab"])
    world.run(60)
    assert world.trie() == {}
    world.assert_found(0, 1023)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.lists(st.integers(0, 63), min_size=1, max_size=8)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 63), min_size=1, max_size=8)),
        st.tuples(st.just("range"), st.lists(st.integers(0, 63), min_size=2, max_size=2)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=15)
@given(operations=operations, seed=st.integers(0, 100), leaf_entries=st.integers(1, 4))
def test_any_sequence_of_operations_is_that_of_a_dictionary(
    operations: list[tuple[str, list[int]]], seed: int, leaf_entries: int
) -> None:
    pht = PhtSettings(key_bits=6, leaf_entries=leaf_entries, merge_entries=leaf_entries // 2, upkeep_us=2 * SECOND_US)
    world = PhtWorld("ideal", seed, nodes=5, pht=pht)
    for what, keys in operations:
        if what == "insert":
            world.insert(sorted(set(keys)))
        elif what == "delete":
            world.delete([(key, "a") for key in sorted(set(keys))])
        else:
            world.assert_found(min(keys), max(keys))
    world.run(60)
    world.assert_found(0, 63)
    world.assert_shape()


@everywhere
@pytest.mark.parametrize("seed", [2])
def test_entries_that_are_there_all_the_time_are_found_once_while_others_come_and_go(overlay: str, seed: int) -> None:
    """Splits and merges happen under the readers: an answer may or may not have what is written meanwhile."""
    world = PhtWorld(overlay, seed, latency="king", timers=False)
    random = Random(seed)
    lasting = set(random.sample(range(1 << BITS), 40))
    world.insert(sorted(lasting))
    passing = [key for key in random.sample(range(1 << BITS), 200) if key not in lasting]
    answers: list[LookupResult] = []
    for step in range(40):
        for key in passing[step * 4 : step * 4 + 4]:
            world.peer().insert(key, "x", "passing", 20 * SECOND_US)
        for key in passing[max(0, step - 10) * 4 : max(0, step - 10) * 4 + 4]:
            world.peer().delete(key, "x")
        world.peer().range(0, 1023, answers.append, parallel=step % 2 == 0)
        world.run(0.7)
    world.run(30)
    assert sum(tree.splits_total for tree in world.trees) > 15
    assert len(answers) == 40
    for answer in answers:
        assert answer.is_complete
        keys = [entry.key for entry in answer.entries if entry.id == "a"]
        assert keys == sorted(lasting)
        assert {entry.key for entry in answer.entries if entry.id == "x"} <= set(passing)


def test_links_lead_from_leaf_to_leaf_and_save_searches() -> None:
    without_upkeep = replace(SMALL, upkeep_us=HOUR_US, node_lifetime_us=3 * HOUR_US)
    lasting = DhtSettings(lifetime_max_us=4 * HOUR_US)
    world = PhtWorld("ideal", seed=4, timers=False, pht=without_upkeep, dht_settings=lasting)
    world.insert(world.random.sample(range(1 << BITS), 80))
    world.run(10)
    trie = world.trie()
    leaves = sorted(label for label, node in trie.items() if node.kind is NodeKind.LEAF)
    right = sum(trie[label].after == after for label, after in pairwise(leaves))
    left = sum(trie[after].before == label for label, after in pairwise(leaves))
    assert min(right, left) > 0.8 * len(leaves)
    before = sum(world.internet.messages_sent)
    world.ask(0, 1023, parallel=False)
    assert sum(world.internet.messages_sent) - before < 3 * len(leaves)


def test_a_parallel_range_takes_as_long_as_the_trie_is_deep_and_a_sequential_one_as_it_is_wide() -> None:
    world = PhtWorld("ideal", seed=5, timers=False)
    world.insert(world.random.sample(range(1 << BITS), 80))
    world.run(10)
    times_us = {}
    for parallel in (True, False):
        begin_us = world.kernel.now_us
        ends_us: list[int] = []
        world.peer().range(0, 1023, lambda _, ends=ends_us: ends.append(world.kernel.now_us), parallel=parallel)  # type: ignore[misc]
        world.run(10)
        times_us[parallel] = ends_us[0] - begin_us
    assert 4 * times_us[True] < times_us[False]


@everywhere
def test_entries_expire_and_are_renewed_by_inserting_them_again(overlay: str) -> None:
    world = PhtWorld(overlay, seed=6)
    for key in range(0, 200, 10):
        world.peer().insert(key, "a", 1, 20 * SECOND_US)
    world.run(15)
    for key in range(0, 100, 10):
        world.peer().insert(key, "a", 2, 40 * SECOND_US)
    world.run(10)
    assert [(e.key, e.value) for e in world.ask(0, 1023, True).entries] == [(key, 2) for key in range(0, 100, 10)]
    world.run(70)
    assert world.trie() == {}


@everywhere
def test_with_copies_no_entry_is_lost_when_peers_crash_one_after_another(overlay: str) -> None:
    world = PhtWorld(overlay, seed=7, nodes=20, dht_settings=COPIED)
    world.insert(world.random.sample(range(1 << BITS), 40))
    for dht in world.random.sample(world.dhts, 6):
        dht.stop()
        world.run(10)
    world.run(20)
    world.assert_found(0, 1023)
    world.assert_shape()


def churned(overlay: str, seed: int) -> None:
    """Publishers renew what they have published; when churn has ended the index is what they have."""
    world = PhtWorld(overlay, seed, nodes=24, dht_settings=COPIED, latency="king")

    def fail(address: int) -> None:
        world.trees[address].stop()
        world.dhts[address].stop()

    def join(address: int) -> None:
        assert world.join(bootstrap=address % 4).node.address == address

    lifetime_us, random = 30 * SECOND_US, Random(seed)
    churn = Churn(world.kernel, Exponential(60 * SECOND_US), join=join, fail=fail, until_us=50 * SECOND_US)
    churn.start(range(4, 24))
    published: set[int] = set()
    answers: list[LookupResult] = []
    for step in range(10):
        published |= set(random.sample(range(1 << BITS), 8))
        published -= set(random.sample(sorted(published), 3))  # not deleted: not renewed any more
        for key in sorted(published):
            world.trees[key % 4].insert(key, "a", key, lifetime_us)
        world.run(5)
        world.trees[step % 4].range(0, 1023, answers.append, parallel=step % 2 == 0)
    assert churn.failures > 2
    for _ in range(10):
        for key in sorted(published):
            world.trees[key % 4].insert(key, "a", key, lifetime_us)
        world.run(6)
    for answer in answers:
        names = [(entry.key, entry.id) for entry in answer.entries]
        assert len(set(names)) == len(names)
        assert all(entry.value == entry.key for entry in answer.entries)
    world.model = {(key, "a"): key for key in published}
    world.assert_found(0, 1023)
    world.assert_shape()


@pytest.mark.few(1)
@everywhere
@pytest.mark.parametrize("seed", [8])
def test_after_churn_the_index_is_what_is_renewed(overlay: str, seed: int) -> None:
    churned(overlay, seed)


@pytest.mark.soak
@everywhere
def test_after_churn_with_fresh_seeds(overlay: str, fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(20):
        churned(overlay, seed)


def test_many_entries_of_one_key_share_the_deepest_leaf() -> None:
    world = PhtWorld("ideal", seed=9, pht=PhtSettings(key_bits=3, leaf_entries=2, merge_entries=1))
    for entry_id in "abcdefg":
        world.insert([5], entry_id=entry_id)
    world.run(10)
    world.assert_found(5, 5)
    world.assert_shape()
    assert label_of(5, 3, 3) in world.trie()


def test_two_indexes_of_one_peer_do_not_mix() -> None:
    world = PhtWorld("ideal", seed=10, timers=False)
    others = [PrefixHashTree(world.kernel, dht, "other", SMALL) for dht in world.dhts]
    found: list[LookupResult] = []
    world.insert(range(0, 100, 10))
    others[3].insert(7, "z", "other", HOUR_US)
    world.run(5)
    others[4].range(0, 1023, found.append)
    world.run(5)
    assert [[entry.value for entry in answer.entries] for answer in found] == [["other"]]
    world.assert_found(0, 1023)


def test_what_cannot_be_is_refused() -> None:
    world = PhtWorld("ideal", seed=11, nodes=3)
    for bad, message in ((-1, "10 bits: -1"), (1024, "10 bits: 1024")):
        with pytest.raises(ValueError, match=message):
            world.trees[0].lookup(bad, lambda found: None)
    with pytest.raises(ValueError, match="begins with its lowest"):
        world.trees[0].range(5, 4, lambda found: None)
    with pytest.raises(ValueError, match="lifetime_us must be positive"):
        world.trees[0].insert(5, "a", 1, 0)
    with pytest.raises(ValueError, match="merge_entries must be below leaf_entries"):
        PhtSettings(leaf_entries=4, merge_entries=4)
