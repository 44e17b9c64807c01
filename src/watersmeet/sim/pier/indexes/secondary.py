"""Secondary indexes (PIER, section 3.3.3): tables of (index key, tuple id), and the semijoin that follows the ids.

An index on equality is a namespace of the DHT, one on ranges a Prefix Hash Tree. A tuple id is the name of an object in
the DHT, with the address of its host if it is not where its name says. Nobody keeps index and tuples consistent: both
are soft state of their publishers, so an id may lead nowhere, which is counted, and a tuple that has changed may not
fit the key by which it was found any more, which is for the query's predicate to judge.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.indexes.pht.tree import LookupResult, PrefixHashTree

_ADDRESS_BYTES = 6


@dataclass(frozen=True, slots=True, order=True)
class TupleId:
    """Where a tuple is: its name in the DHT and, if it is kept by address, its host."""

    namespace: str
    key: str
    suffix: str
    address: Address | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes in a message."""
        return sum(1 + len(part.encode()) for part in (self.namespace, self.key, self.suffix)) + _ADDRESS_BYTES

    @property
    def text(self) -> str:
        """Tells entries of one index key apart."""
        where = "" if self.address is None else f"@{self.address}"
        return "\x1f".join((self.namespace, self.key, self.suffix)) + where


@dataclass(frozen=True, slots=True)
class FetchedTuples:
    """The tuples that ids led to, in the order of the ids; those without one; and whether every host has answered."""

    items: tuple[Item, ...]
    dangling: tuple[TupleId, ...]
    is_complete: bool


FetchedCallback: TypeAlias = Callable[[FetchedTuples], None]
IdsCallback: TypeAlias = Callable[[list[TupleId], bool], None]  # and whether they are all


def fetch_tuples(dht: Dht, ids: Iterable[TupleId], found: FetchedCallback) -> None:
    """The inner side of the semijoin: get each tuple from where it is, tuples of one name in one request."""
    wanted = list(dict.fromkeys(ids))
    names: dict[tuple[str, str, Address | None], None] = dict.fromkeys(
        (each.namespace, each.key, each.address) for each in wanted
    )
    if not wanted:
        found(FetchedTuples((), (), is_complete=True))
        return
    gathering = _Gathering(wanted, len(names), found)
    for name in names:
        namespace, key, address = name
        dht.try_get(namespace, key, partial(gathering.got, name), address=address)


class _Gathering:
    __slots__ = ("_found", "_is_complete", "_items", "_left", "_wanted")

    def __init__(self, wanted: list[TupleId], requests: int, found: FetchedCallback) -> None:
        self._wanted, self._left, self._found = wanted, requests, found
        self._items: dict[TupleId, Item] = {}
        self._is_complete = True

    def got(self, name: tuple[str, str, Address | None], items: list[Item] | None) -> None:
        namespace, key, address = name
        for item in items or ():
            self._items[TupleId(namespace, key, item.suffix, address)] = item
        self._is_complete &= items is not None
        self._left -= 1
        if not self._left:
            present = tuple(self._items[each] for each in self._wanted if each in self._items)
            dangling = tuple(each for each in self._wanted if each not in self._items)
            self._found(FetchedTuples(present, dangling, self._is_complete))


class HashSecondaryIndex:
    """A secondary index for predicates of equality, as one peer uses it."""

    __slots__ = ("_dht", "_namespace")

    def __init__(self, dht: Dht, namespace: str) -> None:
        self._dht, self._namespace = dht, namespace

    def publish(
        self, index_key: str, tuple_id: TupleId, lifetime_us: int, done: Callable[[bool], None] | None = None
    ) -> None:
        """Say that a tuple has a key, for a lifetime; again to renew it."""
        self._dht.put(
            self._namespace, index_key, tuple_id.text, tuple_id, lifetime_us, tuple_id.size_bytes, done
        )  # fmt: skip

    def ids(self, index_key: str, found: IdsCallback) -> None:
        """The ids of the tuples that have a key."""
        self._dht.try_get(self._namespace, index_key, partial(_call_ids, found))

    def fetch(self, index_key: str, found: FetchedCallback) -> None:
        """The tuples themselves: the index is the outer relation of a Fetch Matches join on the tuple id."""
        self.ids(index_key, partial(_follow, self._dht, found))


class RangeSecondaryIndex:
    """A secondary index for ranges of keys, as one peer uses it; keys are the whole bits of its Prefix Hash Tree."""

    __slots__ = ("_dht", "_tree")

    def __init__(self, dht: Dht, tree: PrefixHashTree) -> None:
        self._dht, self._tree = dht, tree

    def publish(
        self, index_key: int, tuple_id: TupleId, lifetime_us: int, done: Callable[[bool], None] | None = None
    ) -> None:
        """Say that a tuple has a key, for a lifetime; again to renew it."""
        self._tree.insert(index_key, tuple_id.text, tuple_id, lifetime_us, tuple_id.size_bytes, done)

    def withdraw(self, index_key: int, tuple_id: TupleId, done: Callable[[bool], None] | None = None) -> None:
        """Say that it has it no more."""
        self._tree.delete(index_key, tuple_id.text, done)

    def ids(self, low: int, high: int, found: IdsCallback) -> None:
        """The ids of the tuples with keys from `low` to `high`, by key."""
        self._tree.range(low, high, partial(_call_found, found))

    def fetch(self, low: int, high: int, found: FetchedCallback) -> None:
        """The tuples themselves."""
        self.ids(low, high, partial(_follow, self._dht, found))


def _follow(dht: Dht, found: FetchedCallback, ids: list[TupleId], is_complete: bool) -> None:
    if is_complete:
        fetch_tuples(dht, ids, found)
    else:
        fetch_tuples(dht, ids, lambda fetched: found(FetchedTuples(fetched.items, fetched.dangling, is_complete=False)))


def _call_ids(found: IdsCallback, items: list[Item] | None) -> None:
    found([item.value for item in items or () if isinstance(item.value, TupleId)], items is not None)


def _call_found(found: IdsCallback, answer: LookupResult) -> None:
    found([entry.value for entry in answer.entries if isinstance(entry.value, TupleId)], answer.is_complete)
