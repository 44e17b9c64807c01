"""Secondary indexes: the tuples that the semijoin fetches are those that a scan of the table would select."""

import pytest
from dht_world import HOUR_US, NETWORKS, SECOND_US, DhtWorld

from watersmeet.sim.pier.indexes.pht.messages import PhtSettings
from watersmeet.sim.pier.indexes.pht.tree import PrefixHashTree
from watersmeet.sim.pier.indexes.secondary import (
    FetchedTuples,
    HashSecondaryIndex,
    RangeSecondaryIndex,
    TupleId,
    fetch_tuples,
)

CITIES = ("Ams", "Fra", "Nyc")


class TableWorld(DhtWorld):
    """A table of sales by order number, with indexes on city and on price; some tuples are pinned to hosts."""

    def __init__(self, overlay: str, seed: int, latency: str, *, timers: bool = False) -> None:
        super().__init__(overlay, seed, 20, latency=latency, timers=timers)
        pht = PhtSettings(key_bits=10, leaf_entries=8, merge_entries=4)
        self.by_city = [HashSecondaryIndex(dht, "sales_by_city") for dht in self.dhts]
        trees = [PrefixHashTree(self.kernel, dht, "sales_by_price", pht) for dht in self.dhts]
        for tree in trees:
            tree.start()
        self.by_price = [RangeSecondaryIndex(dht, tree) for dht, tree in zip(self.dhts, trees, strict=True)]
        self.rows: dict[TupleId, tuple[str, int]] = {}
        for order in range(60):
            city, price = self.random.choice(CITIES), self.random.randrange(1024)
            host = self.random.randrange(20) if order % 4 == 0 else None
            tuple_id = TupleId("sales", f"order{order // 2}", str(order), host)
            publisher = self.random.randrange(20)
            dht = self.dhts[publisher]
            dht.put("sales", tuple_id.key, tuple_id.suffix, (city, price), HOUR_US, address=host)
            self.by_city[publisher].publish(city, tuple_id, HOUR_US)
            self.by_price[publisher].publish(price, tuple_id, HOUR_US)
            self.rows[tuple_id] = (city, price)
        self.run(20)

    def fetched_by_city(self, city: str) -> FetchedTuples:
        found: list[FetchedTuples] = []
        self.random.choice(self.by_city).fetch(city, found.append)
        self.run(5)
        return found[0]

    def fetched_by_price(self, low: int, high: int) -> FetchedTuples:
        found: list[FetchedTuples] = []
        self.random.choice(self.by_price).fetch(low, high, found.append)
        self.run(15)
        return found[0]


@pytest.mark.parametrize(("overlay", "latency"), NETWORKS)
def test_tuples_found_through_an_index_are_those_of_a_scan(overlay: str, latency: str) -> None:
    world = TableWorld(overlay, 1, latency)
    for city in (*CITIES, "nowhere"):
        fetched = world.fetched_by_city(city)
        expected = sorted(row for row in world.rows.values() if row[0] == city)
        assert sorted(item.value for item in fetched.items) == expected  # type: ignore[type-var]
        assert fetched.dangling == ()
        assert fetched.is_complete
    for low, high in ((0, 1023), (200, 400), (500, 501)):
        fetched = world.fetched_by_price(low, high)
        expected = sorted(row for row in world.rows.values() if low <= row[1] <= high)
        assert sorted(item.value for item in fetched.items) == expected  # type: ignore[type-var]
        assert fetched.is_complete


def test_ids_that_lead_nowhere_are_counted_and_withdrawn_ones_are_gone() -> None:
    world = TableWorld("ideal", 2, "constant")
    gone = TupleId("sales", "never", "0")
    world.by_city[0].publish("Ams", gone, HOUR_US)
    world.by_price[0].publish(7, gone, HOUR_US)
    world.run(5)
    assert world.fetched_by_city("Ams").dangling == (gone,)
    assert world.fetched_by_price(7, 7).dangling == (gone,)
    world.by_price[3].withdraw(7, gone)
    world.run(5)
    assert world.fetched_by_price(7, 7).dangling == ()


def test_tuples_of_one_name_are_fetched_with_one_request() -> None:
    world = TableWorld("ideal", 3, "constant")
    ids = [each for each in world.rows if each.address is None][:10]
    names = {each.key for each in ids}
    assert len(names) < len(ids)
    found: list[FetchedTuples] = []
    asker = next(
        dht for dht in world.dhts if not any(item.key in names for item in dht.local_scan("sales"))
    )  # fmt: skip
    before = world.internet.messages_sent[asker.node.address]
    fetch_tuples(asker, [*ids, *ids], found.append)
    world.run(1)
    assert world.internet.messages_sent[asker.node.address] - before == 2 * len(names)  # a lookup, and a get
    assert [item.value for item in found[0].items] == [world.rows[each] for each in ids]
    fetch_tuples(asker, [], found.append)
    assert found[1] == FetchedTuples((), (), True)


def test_a_host_that_is_down_makes_the_answer_incomplete() -> None:
    world = TableWorld("ideal", 4, "constant", timers=True)
    pinned = next(each for each in world.rows if each.address is not None)
    assert pinned.address is not None
    world.dhts[pinned.address].stop()
    found: list[FetchedTuples] = []
    asker = next(dht for dht in world.up())
    fetch_tuples(asker, [pinned], found.append)
    world.run(30)
    assert found == [FetchedTuples((), (pinned,), False)]


def test_an_entry_of_an_index_expires_when_it_is_not_renewed() -> None:
    world = TableWorld("ideal", 5, "constant")
    tuple_id = next(iter(world.rows))
    world.by_city[0].publish("Oslo", tuple_id, 10 * SECOND_US)
    world.run(5)
    assert [item.value for item in world.fetched_by_city("Oslo").items] == [world.rows[tuple_id]]
    world.run(10)
    assert world.fetched_by_city("Oslo").items == ()
