"""The DHT on Chord and on Bamboo: who has what and when, judged by looking at all identifiers at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from watersmeet.sim.dht.messages import VALUE_BYTES, Get, Instance, Item, Put, Renew
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import ConstantLatency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays import bamboo, chord
from watersmeet.sim.overlays.identifiers import SPACE, identifier_of
from watersmeet.sim.overlays.node import ENVELOPE_BYTES, HEADER_BYTES, OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Arc

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
LATENCY_US = 40_000
QUICK = bamboo.BambooSettings(
    exchange_us=SECOND_US, check_us=SECOND_US, local_tuning_us=2 * SECOND_US, global_tuning_us=4 * SECOND_US
)
PLAIN = DhtSettings(repair_us=2 * SECOND_US)
COPIED = DhtSettings(repair_us=2 * SECOND_US, replicas=2)

both = pytest.mark.parametrize("overlay", ["chord", "bamboo"])


class World:
    """Converged nodes, numbered by address in the order of their identifiers."""

    def __init__(
        self, overlay: str, seed: int, settings: DhtSettings = PLAIN, nodes: int = 30, *, timers: bool = True
    ) -> None:
        self.overlay, self.settings = overlay, settings
        self.kernel, self.random = Kernel(seed), Random(seed)
        self.internet = Internet(self.kernel, ConstantLatency(LATENCY_US), access_bps=None)
        self.map: Ring | Prefixes
        routers: Sequence[chord.Chord | bamboo.Bamboo]
        if overlay == "chord":
            self.map = Ring.random(nodes, seed)
            routers = chord.converged(self.kernel, self.internet, self.map, timers=timers)
        else:
            self.map = Prefixes.random(nodes, seed)
            routers = bamboo.converged(self.kernel, self.internet, self.map, QUICK, timers=timers)
        self.dhts = [self.dht(router) for router in routers]

    def dht(self, router: chord.Chord | bamboo.Bamboo) -> Dht:
        return Dht(self.kernel, OverlayNode(self.kernel, self.internet, router), self.settings)

    def run(self, seconds: float = 3) -> None:
        self.kernel.run(until_us=self.kernel.now_us + int(seconds * SECOND_US))

    def up(self) -> list[Dht]:
        return [dht for dht in self.dhts if dht.node.router.is_ready]

    def anyone(self) -> Dht:
        return self.random.choice(self.up())

    def owner(self, key: str, namespace: str = "t") -> Dht:
        """The first clockwise, or the numerically closest: by looking at everybody."""
        return self.nearest(key, 1, namespace)[0]

    def nearest(self, key: str, count: int, namespace: str = "t") -> list[Dht]:
        """The owner and its replica holders: the next ones clockwise, or the neighbours in pairs."""
        target, up = identifier_of(f"{namespace}.{key}"), self.up()
        if self.overlay == "chord":
            return sorted(up, key=lambda dht: (dht.node.router.identifier - target) % SPACE)[:count]
        clockwise = sorted(up, key=lambda dht: dht.node.router.identifier)
        owner = min(up, key=lambda dht: _away(dht.node.router.identifier, target))
        place = clockwise.index(owner)
        around = [clockwise[(place + step) % len(clockwise)] for step in (0, 1, -1, 2, -2)]
        assert count in (1, 3)
        return around[:count]

    def join(self, identifier: int) -> Dht:
        address = len(self.dhts)
        router: chord.Chord | bamboo.Bamboo
        if self.overlay == "chord":
            router = chord.Chord(self.kernel, self.internet, address, identifier, chord.ChordSettings())
        else:
            router = bamboo.Bamboo(self.kernel, self.internet, address, identifier, QUICK)
        dht = self.dht(router)
        self.dhts.append(dht)
        dht.start(self.anyone().node.address)
        return dht

    def publish(self, count: int) -> list[str]:
        keys = [f"k{number}" for number in range(count)]
        stored: list[bool] = []
        for key in keys:
            self.anyone().put("t", key, "s", f"value of {key}", HOUR_US, done=stored.append)
        self.run()
        assert stored == [True] * count
        return keys

    def fetch(self, keys: Sequence[str], seconds: float = 3) -> dict[str, list[object]]:
        """What a random node finds under each key; each is answered once."""
        found: dict[str, list[object]] = {}
        answers: list[str] = []
        for key in keys:

            def note(items: list[Item], key: str = key) -> None:
                found[key] = [item.value for item in items]
                answers.append(key)

            self.anyone().get("t", key, note)
        self.run(seconds)
        assert sorted(answers) == sorted(keys)
        return found

    def lost(self, keys: Sequence[str], seconds: float = 25) -> set[str]:
        """Which keys have no object any more; the others have the right one."""
        found = self.fetch(keys, seconds)
        assert all(values in ([], [f"value of {key}"]) for key, values in found.items())
        return {key for key, values in found.items() if not values}

    def assert_in_place(self, keys: Sequence[str]) -> None:
        """Each object is with its owner and, as a copy, with as many replica holders as it should be."""
        for dht in self.up():
            assert [item.key for item in dht.local_scan("t")] == sorted(key for key in keys if self.owner(key) is dht)
            replicated = [key for key in keys if dht in self.nearest(key, 1 + self.settings.replicas)[1:]]
            assert dht.copies_total == len(replicated)


def _away(one: int, other: int) -> int:
    return min((one - other) % SPACE, (other - one) % SPACE)


@both
def test_objects_are_with_the_owner_of_their_name_and_found_from_everywhere(overlay: str) -> None:
    world = World(overlay, seed=1)
    announced: list[tuple[Dht, Item]] = []

    def note(dht: Dht, item: Item) -> None:
        announced.append((dht, item))

    for dht in world.dhts:
        dht.new_data("t", partial(note, dht))
    names = [(f"k{number}", f"s{suffix}") for number in range(25) for suffix in range(1 + number % 3)]
    results: list[bool] = []
    for key, suffix in reversed(names):
        world.anyone().put("t", key, suffix, key + suffix, HOUR_US, done=results.append)
        world.anyone().put("u", key, suffix, "another namespace", HOUR_US)
    world.run()
    assert results == [True] * len(names)
    assert sorted((item.key, item.suffix) for _, item in announced) == sorted(names)
    assert all(dht is world.owner(item.key) for dht, item in announced)
    for dht in world.dhts:
        expected = sorted(name for name in names if world.owner(name[0]) is dht)
        assert [(item.key, item.suffix) for item in dht.local_scan("t")] == expected
    found = world.fetch([key for key, suffix in names if suffix == "s0"] + ["nothing"])
    assert found.pop("nothing") == []
    assert {key: len(values) for key, values in found.items()} == {f"k{n}": 1 + n % 3 for n in range(25)}
    assert all(values == [f"{key}s{n}" for n in range(len(values))] for key, values in found.items())


@both
def test_of_two_instances_the_one_published_later_stays(overlay: str) -> None:
    world = World(overlay, seed=2)
    keys = [f"k{number}" for number in range(10)]
    for key in keys:
        publisher = world.anyone()
        publisher.put("t", key, "a", "first", HOUR_US)
        publisher.put("t", key, "a", "second", HOUR_US)
        publisher.put("t", key, "b", "first", HOUR_US)
        publisher.send("t", key, "b", "second", HOUR_US)  # without a lookup before it, so it is there earlier
    world.run()
    assert world.fetch(keys) == {key: ["second", "second"] for key in keys}


@both
def test_a_put_is_a_small_routed_message_and_a_direct_one_and_a_send_is_routed_whole(overlay: str) -> None:
    world = World(overlay, seed=3, timers=False)
    name_bytes, fields_bytes = len("t") + len("key") + len("suffix") + 3, 8 + 14 + 8
    instance_bytes = name_bytes + fields_bytes + 1_000
    paths = [len(world.map.path(source, identifier_of("t.key"))) for source in range(30)]
    for source, hops in enumerate(paths):
        if hops < 2:
            continue
        before = sum(world.internet.bytes_sent), sum(world.internet.messages_sent)
        world.dhts[source].put("t", "key", "suffix", "value", HOUR_US, 1_000)
        world.run()
        between = sum(world.internet.bytes_sent), sum(world.internet.messages_sent)
        lookup_bytes = hops * (HEADER_BYTES + ENVELOPE_BYTES + 6) + HEADER_BYTES + 6
        put_bytes = HEADER_BYTES + 6 + instance_bytes + HEADER_BYTES + 6
        assert (between[0] - before[0], between[1] - before[1]) == (lookup_bytes + put_bytes, hops + 3)
        world.dhts[source].send("t", "key", "suffix", "value", HOUR_US, 1_000)
        world.run()
        after = sum(world.internet.bytes_sent), sum(world.internet.messages_sent)
        assert after[0] - between[0] == hops * (HEADER_BYTES + ENVELOPE_BYTES + 1 + instance_bytes)
        assert after[1] - between[1] == hops
    assert max(paths) > 1


@both
def test_an_object_lives_from_its_arrival_for_its_lifetime_and_not_a_microsecond_longer(overlay: str) -> None:
    world = World(overlay, seed=4)
    owner, arrived_us = world.owner("k"), []
    owner.new_data("t", lambda item: arrived_us.append(world.kernel.now_us))
    world.dhts[owner.node.address - 7].put("t", "k", "s", 1, 10 * SECOND_US)
    world.run()
    end_us = arrived_us[0] + 10 * SECOND_US
    seen: list[list[Item]] = []
    for moment_us in (end_us - 1, end_us):  # before anything else that happens then, even the owner's timer
        world.kernel.at(moment_us, lambda: seen.append(owner.local_scan("t")), priority=-1)
    world.kernel.run(until_us=end_us)
    assert seen == [[Item("t", "k", "s", 1, lifetime_us=1)], []]
    assert owner.owned_total == 0
    assert not owner._store


@both
def test_renewal_extends_a_lifetime_and_never_shortens_it(overlay: str) -> None:
    world = World(overlay, seed=5)
    world.anyone().put("t", "k", "s", "v", 10 * SECOND_US)
    renewed: list[bool] = []
    for _ in range(5):
        world.run(8)
        world.anyone().renew("t", "k", "s", 10 * SECOND_US, renewed.append)
    world.run(2)
    world.anyone().renew("t", "k", "s", SECOND_US, renewed.append)
    world.run(5)
    assert world.fetch(["k"], 1) == {"k": ["v"]}
    world.anyone().renew("t", "k", "other", SECOND_US, renewed.append)
    world.run(5)
    assert world.fetch(["k"], 1) == {"k": []}
    world.anyone().renew("t", "k", "s", SECOND_US, renewed.append)
    world.run(1)
    assert renewed == [True] * 6 + [False, False]


@both
def test_after_the_owner_failed_renewal_says_that_the_object_must_be_put_again(overlay: str) -> None:
    world = World(overlay, seed=6)
    world.publish(1)
    publisher = world.dhts[world.owner("k0").node.address - 5]
    world.owner("k0").stop()
    renewed: list[bool] = []
    publisher.renew("t", "k0", "s", HOUR_US, renewed.append)
    world.run(21)
    assert renewed == [False]
    assert world.fetch(["k0"]) == {"k0": []}
    publisher.put("t", "k0", "s", "again", HOUR_US)
    world.run()
    assert world.fetch(["k0"]) == {"k0": ["again"]}


def test_lifetimes_that_are_too_long_are_refused() -> None:
    world = World("chord", seed=7, settings=DhtSettings(lifetime_max_us=500), nodes=3)
    dht = world.dhts[0]
    dht.put("t", "k", "s", 1, 500)
    attempts: list[Callable[[], object]] = [
        lambda: dht.put("t", "k", "s", 1, 501),
        lambda: dht.send("t", "k", "s", 1, 501),
        lambda: dht.renew("t", "k", "s", 501, lambda _: None),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"from 1 to 500.*501; renew"):
            attempt()
    with pytest.raises(ValueError, match="from 1 to 500"):
        dht.put("t", "k", "s", 1, 0)
    with pytest.raises(ValueError, match="replicas must not be negative"):
        DhtSettings(replicas=-1)


@both
def test_nodes_on_the_way_of_a_send_may_change_it(overlay: str) -> None:
    world = World(overlay, seed=8, nodes=300, timers=False)

    def add_a_hop(here: int, item: Item) -> Item:
        assert isinstance(item.value, list)
        return replace(item, value=[*item.value, here], size_bytes=item.size_bytes + 4)

    for dht in world.dhts:
        dht.upcall("t", partial(add_a_hop, dht.node.address))
        dht.upcall("other", lambda item: None)
    longest = 0
    for number in range(20):
        key, source = f"k{number}", world.random.randrange(300)
        between = world.map.path(source, identifier_of(f"t.{key}"))[:-1]
        longest = max(longest, len(between))
        bytes_before = sum(world.internet.bytes_sent)
        world.dhts[source].send("t", key, "s", [], HOUR_US)
        world.run()
        (item,) = (item for item in world.owner(key).local_scan("t") if item.key == key)
        assert item.value == between
        assert item.size_bytes == VALUE_BYTES + 4 * len(between)
        if world.owner(key) is not world.dhts[source]:
            first_bytes = HEADER_BYTES + ENVELOPE_BYTES + 1 + len("t" + key + "s") + 3 + 30 + VALUE_BYTES
            sizes = [first_bytes + 4 * hop for hop in range(len(between) + 1)]
            assert sum(world.internet.bytes_sent) - bytes_before == sum(sizes)
    assert longest > 1


@both
def test_nodes_on_the_way_of_a_send_may_stop_it_but_a_put_goes_past_them(overlay: str) -> None:
    world = World(overlay, seed=9, timers=False)
    asked: list[int] = []

    def stop(here: int, item: Item) -> None:
        asked.append(here)

    for dht in world.dhts:
        dht.upcall("t", partial(stop, dht.node.address))
    keys = [f"k{number}" for number in range(30)]
    arriving = []
    for key in keys:
        path = world.map.path(3, identifier_of(f"t.{key}"))
        world.dhts[3].send("t", key, "s", f"value of {key}", HOUR_US)
        if len(path) < 2:
            arriving.append(key)
    world.run()
    assert 0 < len(arriving) < 30
    assert len(asked) == 30 - len(arriving)
    assert sorted(world.lost(keys, 3)) == sorted(set(keys) - set(arriving))
    for key in keys:
        world.dhts[3].put("t", key, "s", f"value of {key}", HOUR_US)
    world.run()
    assert len(asked) == 30 - len(arriving)
    assert not world.lost(keys, 3)


def test_an_upcall_cannot_send_an_object_elsewhere() -> None:
    world = World("chord", seed=10, timers=False)
    for dht in world.dhts:
        dht.upcall("t", lambda item: replace(item, key="elsewhere"))
    source = next(n for n in range(30) if len(world.map.path(n, identifier_of("t.k"))) > 1)
    world.dhts[source].send("t", "k", "s", 1, HOUR_US)
    with pytest.raises(ValueError, match="changed the key"):
        world.run()


@both
def test_a_name_can_be_kept_at_a_chosen_point(overlay: str) -> None:
    world = World(overlay, seed=11)
    root = world.dhts[12]
    found: list[Item] = []
    renewed: list[bool] = []
    target = root.node.router.identifier
    world.dhts[3].put("t", "k", "a", 1, HOUR_US, target=target)
    world.dhts[5].send("t", "k", "b", 2, HOUR_US, target=target)
    world.run()
    assert [item.value for item in root.local_scan("t")] == [1, 2]
    world.dhts[20].get("t", "k", found.extend, target=target)
    world.dhts[20].renew("t", "k", "a", HOUR_US, renewed.append, target=target)
    world.run()
    assert [item.value for item in found] == [1, 2]
    assert renewed == [True]


class Nowhere:
    """A router that always names a host which does not exist."""

    def __init__(self, address: int) -> None:
        self.address, self.identifier, self.is_ready = address, 0, True

    def start(self, bootstrap: int | None) -> None:
        pass

    leave = stop = lambda self: None

    def receive(self, sender: int, message: object) -> bool:
        return True

    def next_hop(self, target: int) -> int | None:
        return 99

    def suspect(self, address: int) -> None:
        pass

    def successors(self, count: int) -> Sequence[int]:
        return []

    def watch(self, changed: Callable[[Arc], None]) -> None:
        pass

    @property
    def arc(self) -> Arc:
        return 0, 1


def test_requests_without_an_answer_end_after_all_tries() -> None:
    kernel = Kernel(seed=1)
    internet = Internet(kernel, ConstantLatency(LATENCY_US))
    settings = DhtSettings(timeout_us=2 * SECOND_US, tries=3)
    dht = Dht(kernel, OverlayNode(kernel, internet, Nowhere(1)), settings)
    ends: list[tuple[int, object]] = []
    dht.put("t", "k", "s", 1, HOUR_US, done=lambda result: ends.append((kernel.now_us, result)))
    dht.get("t", "k", lambda result: ends.append((kernel.now_us, result)))
    dht.renew("t", "k", "s", HOUR_US, lambda result: ends.append((kernel.now_us, result)))
    kernel.run()
    assert ends == [(6 * SECOND_US, False), (6 * SECOND_US, []), (6 * SECOND_US, False)]


@both
def test_one_who_is_not_responsible_any_more_neither_stores_nor_answers(overlay: str) -> None:
    world = World(overlay, seed=17)
    other, asker = [dht for dht in world.dhts if dht is not world.owner("k")][:2]
    instance = Instance(Item("t", "k", "s", 1, HOUR_US), identifier_of("t.k"), (0, asker.node.address))
    answers: list[object] = []
    asker.node.on_direct(lambda sender, payload: answers.append(payload))
    for message in (Put(1, instance), Get(2, instance.target, "t", "k"), Renew(3, instance.target, ("t", "k", "s"), 9)):
        asker.node.direct(other.node.address, message, message.size_bytes)
    world.run()
    assert answers == []
    assert other.owned_total == 0


@both
def test_an_owner_that_dies_between_the_phases_is_replaced(overlay: str) -> None:
    world = World(overlay, seed=12)
    owner = world.owner("k")
    results: list[object] = []
    owner.node.on_deliver(lambda *_: owner.stop())
    world.dhts[owner.node.address - 9].put("t", "k", "s", "v", HOUR_US, done=results.append)
    world.run(4)  # not even one timeout: the net says that the owner is not there
    assert results == [True]
    assert not owner.node.is_up
    assert [item.value for item in world.owner("k").local_scan("t")] == ["v"]


@both
def test_a_node_that_crashes_forgets_what_it_had_and_what_it_asked(overlay: str) -> None:
    world = World(overlay, seed=13)
    keys = world.publish(40)
    victim = max(world.dhts, key=lambda dht: dht.owned_total)
    calls: list[object] = []
    victim.get("t", "k0", calls.append)
    victim.stop()
    assert victim.owned_total == 0
    world.run(30)
    victim.start(world.anyone().node.address)
    world.run(30)
    assert victim.node.router.is_ready
    assert victim.owned_total == 0
    assert calls == []
    assert world.lost(keys) == {key for key in keys if world.owner(key) is victim} != set()


@both
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_objects_without_copies_those_of_the_dead_are_gone(overlay: str, seed: int) -> None:
    world = World(overlay, seed)
    keys = world.publish(60)
    dead = world.random.sample(world.dhts, 10)
    gone = {key for key in keys if world.owner(key) in dead}
    for dht in dead:
        dht.stop()
    world.run(30)
    assert world.lost(keys) == gone != set()
    world.assert_in_place([key for key in keys if key not in gone])


@both
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_objects_with_two_copies_only_those_are_gone_whose_holders_died_all_at_once(overlay: str, seed: int) -> None:
    world = World(overlay, seed, COPIED)
    keys = world.publish(60)
    world.assert_in_place(keys)
    dead = world.random.sample(world.dhts, 10)
    gone = {key for key in keys if all(dht in dead for dht in world.nearest(key, 3))}
    assert sum(world.owner(key) in dead for key in keys) > 10
    for dht in dead:
        dht.stop()
    world.run(60)
    assert world.lost(keys) == gone
    world.assert_in_place([key for key in keys if key not in gone])


@pytest.mark.few(2)
@both
@pytest.mark.parametrize("seed", [1, 2])
def test_objects_with_two_copies_survive_a_third_of_the_nodes_dying_one_after_another(overlay: str, seed: int) -> None:
    world = World(overlay, seed, COPIED)
    keys = world.publish(60)
    first_holders = {key: world.nearest(key, 3) for key in keys}
    dead = world.random.sample(world.dhts, 10)
    for dht in dead:
        dht.stop()
        world.run(10)
    world.run(30)
    assert any(dht in dead for holders in first_holders.values() for dht in holders)
    assert world.lost(keys) == set()
    world.assert_in_place(keys)


@both
@pytest.mark.parametrize("settings", [PLAIN, COPIED], ids=["plain", "copied"])
def test_objects_move_to_nodes_that_join(overlay: str, settings: DhtSettings) -> None:
    world = World(overlay, 14, settings)
    keys = world.publish(60)
    announced: list[str] = []
    targets = sorted(identifier_of(f"t.{key}") for key in keys)
    for target in targets[5::20]:  # right after an object: so at least that one is the newcomer's
        newcomer = world.join((target + 1) % SPACE)
        newcomer.new_data("t", lambda item: announced.append(item.key))
    world.run(40)
    newcomers = world.dhts[30:]
    assert len(world.up()) == 33
    world.assert_in_place(keys)
    moved = [key for key in keys if world.owner(key) in newcomers]
    assert len(moved) >= 3
    assert sorted(announced) == sorted(moved)
    assert world.lost(keys) == set()


@both
def test_objects_of_a_node_that_leaves_gracefully_stay(overlay: str) -> None:
    world = World(overlay, seed=15)
    keys = world.publish(60)
    for dht in world.random.sample(world.dhts, 10):
        dht.leave()
        world.run(2)
    world.run(10)
    assert len(world.up()) == 20
    world.assert_in_place(keys)
    assert world.lost(keys) == set()


@both
def test_copies_live_no_longer_than_their_object_and_are_renewed_with_it(overlay: str) -> None:
    world = World(overlay, 16, COPIED)
    world.anyone().put("t", "k", "s", "v", 10 * SECOND_US)
    world.run(8)
    world.anyone().renew("t", "k", "s", 20 * SECOND_US, lambda _: None)
    world.run(1.9)
    for _ in range(40):
        world.run(0.1)
        assert sum(dht.copies_total for dht in world.dhts) == 2
    world.owner("k").stop()
    world.run(10)
    assert world.fetch(["k"], 2) == {"k": ["v"]}
    world.run(3)
    assert sum(dht.copies_total + dht.owned_total for dht in world.dhts) == 0
