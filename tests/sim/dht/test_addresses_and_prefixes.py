"""Calls by address, filters by the beginning of a name, and upcalls at sender, midway and owner (PIER, 3.2.4)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from dht_world import HOUR_US, OVERLAYS, SECOND_US, DhtWorld

from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht, Passage
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.overlays.identifiers import identifier_of

everywhere = pytest.mark.parametrize("overlay", OVERLAYS)
COPIED = DhtSettings(repair_us=2 * SECOND_US, replicas=2)


def put(world: DhtWorld, publisher: Dht, key: str, **where: Any) -> None:
    stored: list[bool] = []
    publisher.put("t", key, "s", f"value of {key}", HOUR_US, done=stored.append, **where)
    world.run(1)
    assert stored == [True]


def get(world: DhtWorld, asker: Dht, key: str, **where: int) -> list[object]:
    found: list[list[Item]] = []
    asker.get("t", key, found.append, **where)
    world.run(1)
    (items,) = found
    return [item.value for item in items]


@everywhere
@pytest.mark.parametrize("settings", [DhtSettings(repair_us=2 * SECOND_US), COPIED], ids=["plain", "copied"])
def test_what_is_put_at_an_address_is_there_and_stays_there(overlay: str, settings: DhtSettings) -> None:
    world = DhtWorld(overlay, seed=1, settings=settings)
    owner = world.owner(identifier_of("t.k"))
    host, asker = [dht for dht in world.dhts if dht is not owner][3:5]
    put(world, asker, "k", address=host.node.address)
    assert get(world, asker, "k", address=host.node.address) == ["value of k"]
    assert get(world, asker, "k") == []
    world.run(30)  # repair would have offered what is misplaced to its owner, and copied what is not
    assert [dht for dht in world.dhts if dht.owned_total or dht.copies_total] == [host]
    renewed: list[bool] = []
    asker.renew("t", "k", "s", HOUR_US, renewed.append, address=host.node.address)
    asker.renew("t", "k", "s", HOUR_US, renewed.append, address=owner.node.address)
    world.run(1)
    assert renewed == [True, False]
    host.leave()
    world.run(10)
    assert all(dht.owned_total == dht.copies_total == 0 for dht in world.up())


@everywhere
def test_calls_by_address_make_no_lookup(overlay: str) -> None:
    world = DhtWorld(overlay, seed=2, timers=False)
    host, asker = world.dhts[4], world.dhts[20]
    calls: list[tuple[int, Callable[[], None]]] = [
        (2, lambda: asker.put("t", "k", "s", 1, HOUR_US, address=4)),
        (2, lambda: asker.get("t", "k", lambda items: None, address=4)),
        (2, lambda: asker.renew("t", "k", "s", HOUR_US, lambda done: None, address=4)),
        (1, lambda: asker.send("t", "k2", "s", 2, HOUR_US, address=4)),
    ]
    for messages, call in calls:
        before = sum(world.internet.messages_sent)
        call()
        world.run(1)
        assert sum(world.internet.messages_sent) - before == messages
    assert [(item.key, item.value) for item in host.local_scan("t")] == [("k", 1), ("k2", 2)]


@everywhere
def test_an_address_where_nobody_is_ends_as_a_failure(overlay: str) -> None:
    world = DhtWorld(overlay, seed=3)
    world.dhts[5].stop()
    results: list[object] = []
    world.dhts[0].put("t", "k", "s", 1, HOUR_US, done=results.append, address=5)
    world.dhts[0].get("t", "k", results.append, address=5)
    world.dhts[0].try_get("t", "k", results.append, address=5)
    world.dhts[0].try_get("t", "k", results.append)
    world.run(30)
    assert sorted(map(repr, results)) == ["False", "None", "[]", "[]"]
    with pytest.raises(ValueError, match="not to both"):
        world.dhts[0].get("t", "k", results.append, address=5, target=7)


@everywhere
def test_scans_and_new_data_are_limited_to_a_prefix(overlay: str) -> None:
    world = DhtWorld(overlay, seed=4, nodes=5)
    keys = ["a", "ab", "abc", "b", "ba"]
    seen: dict[tuple[str | None, str], list[tuple[str, str]]] = {}
    filters: list[tuple[str | None, str]] = [(None, ""), ("t", ""), ("t", "ab"), ("u", "b"), ("v", "")]
    cancels = []
    for dht in world.dhts:
        for namespace, prefix in filters:

            def note(item: Item, place: tuple[str | None, str] = (namespace, prefix)) -> None:
                seen.setdefault(place, []).append((item.namespace, item.key))

            cancels.append(dht.new_data(namespace, note, prefix))
    for namespace in ("t", "u"):
        for key in keys:
            world.anyone().put(namespace, key, "s", 1, HOUR_US)
    world.run()
    everything = [(namespace, key) for namespace in ("t", "u") for key in keys]
    for namespace, prefix in filters:
        expected = [
            name for name in everything if (namespace is None or name[0] == namespace) and name[1].startswith(prefix)
        ]
        assert sorted(seen.get((namespace, prefix), [])) == expected
        scans = [[(item.namespace, item.key) for item in dht.local_scan(namespace, prefix)] for dht in world.dhts]
        assert all(scan == sorted(scan) for scan in scans)
        assert sorted(name for scan in scans for name in scan) == expected
    seen.clear()
    for cancel in (*cancels, *cancels):
        cancel()
    world.anyone().put("t", "new", "s", 1, HOUR_US)
    world.run()
    assert seen == {}
    with pytest.raises(ValueError, match="begins with the namespace"):
        world.dhts[0].new_data(None, lambda item: None, "ab")


@pytest.mark.parametrize("overlay", ["chord", "bamboo"])
def test_upcalls_at_the_sender_midway_and_at_the_owner(overlay: str) -> None:
    world = DhtWorld(overlay, seed=5, nodes=100, timers=False)
    seen: list[tuple[str, int]] = []

    def note(what: str, here: int, item: Item) -> Item:
        seen.append((what, here))
        return replace(item, value=(*item.value, what)) if isinstance(item.value, tuple) else item

    for dht in world.dhts:
        for passage in Passage:
            dht.upcall("t", partial(note, passage.value, dht.node.address), "k", [passage])
    sender, owner = world.dhts[0], world.owner(identifier_of("t.k1"))
    sender.send("t", "k1", "s", (), HOUR_US)
    assert seen == [("sent", 0)]
    world.run()
    (item,) = owner.local_scan("t")
    assert isinstance(item.value, tuple)
    assert item.value == ("sent", *["midway"] * (len(item.value) - 2), "arrived")
    assert seen[-1] == ("arrived", owner.node.address)
    assert len(seen) == len(item.value) > 2
    seen.clear()
    sender.send("t", "other", "s", (), HOUR_US)
    sender.put("t", "k2", "s", (), HOUR_US)
    world.run()
    assert seen == []


@everywhere
def test_an_upcall_at_the_sender_or_the_owner_can_stop_an_object(overlay: str) -> None:
    world = DhtWorld(overlay, seed=6)
    owner = world.owner(identifier_of("t.k"))
    sender = next(dht for dht in world.dhts if dht is not owner)
    cancel = sender.upcall("t", lambda item: None, passages=[Passage.SENT])
    before = sum(world.internet.messages_sent) if overlay == "ideal" else None
    sender.send("t", "k", "s", 1, HOUR_US)
    world.run()
    assert before is None or sum(world.internet.messages_sent) == before
    assert owner.local_scan("t") == []
    cancel()
    cancel = owner.upcall("t", lambda item: None, passages=[Passage.ARRIVED, Passage.MIDWAY])
    for _ in range(2):
        sender.send("t", "k", "s", 1, HOUR_US)
        world.run()
        assert owner.local_scan("t") == []
        sender.send("t", "k", "s", 1, HOUR_US, address=owner.node.address)
    cancel()
    sender.send("t", "k", "s", 1, HOUR_US)
    world.run()
    assert [item.value for item in owner.local_scan("t")] == [1]
