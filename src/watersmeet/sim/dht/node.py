"""A DHT over any overlay (PIER, section 3.2): named objects in soft state at the node responsible for their identifier.

put, get and renew have two phases: a small message is routed and finds the owner, then the object goes there directly.
send routes the object itself, hop by hop, so that nodes on the way can change or stop it. An object is dropped when its
lifetime is over and lost with the node that fails; its publisher renews it, or puts it again.

Each of these calls has three variants: the name says where the object is, or `target`, a point in place of the name's
own, or `address`, a host that is asked without a lookup and keeps the object whatever it is responsible for.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TypeAlias, assert_never

from watersmeet.sim.dht.callbacks import Cancel, PrefixCallbacks
from watersmeet.sim.dht.messages import (
    VALUE_BYTES,
    AddressLookup,
    DhtMessage,
    Done,
    Fetch,
    Get,
    Instance,
    Item,
    Items,
    Located,
    ObjectOffer,
    ObjectTransfer,
    Operation,
    Owned,
    Put,
    Refresh,
    Renew,
    Reply,
    Send,
)
from watersmeet.sim.dht.replicas import Replicas
from watersmeet.sim.dht.requests import Requests
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.dht.store import SoftStateStore
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.router import Address, Arc


class Passage(Enum):
    """Where on its route an upcall sees an object that is sent."""

    SENT = "sent"  # at its sender, inside the call of `send`
    MIDWAY = "midway"  # at a node that hands it on
    ARRIVED = "arrived"  # at the node responsible for it, or whose address was given, before it is stored


Upcall: TypeAlias = Callable[[Item], Item | None]


class Dht:
    """One node's part of the DHT. It must be started, left and stopped here and not at its overlay node alone.

    Callbacks never run inside the call that gave them. Those of a node that has stopped are not called any more.
    """

    __slots__ = (
        "_kernel",
        "_new_data",
        "_published_us",
        "_replicas",
        "_requests",
        "_settings",
        "_store",
        "_upcalls",
        "node",
    )

    def __init__(
        self,
        kernel: Kernel,
        node: OverlayNode,
        settings: DhtSettings = DhtSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self.node = node
        self._kernel, self._settings = kernel, settings
        self._store = SoftStateStore(kernel, settings.lifetime_max_us)
        self._requests = Requests(kernel, node, settings, on_host_down=self._clear)
        self._replicas = Replicas(
            kernel, node, self._store, settings, on_owned=self._announce, on_host_down=self._clear
        )
        self._published_us = -1  # the last version of its own
        self._new_data: PrefixCallbacks[Callable[[Item], None]] = PrefixCallbacks()
        self._upcalls: dict[Passage, PrefixCallbacks[Upcall]] = {passage: PrefixCallbacks() for passage in Passage}
        node.on_deliver(self._delivered)
        node.on_direct(self._received)
        node.on_transit(self._passing)
        node.router.watch(self._arc_changed)

    # The life of the node.

    def start(self, bootstrap: Address | None) -> None:
        """Join the overlay with nothing stored; callbacks that were given before stay."""
        self._clear()
        self.node.start(bootstrap)

    def stop(self) -> None:
        """Crash: what was stored here and asked from here is gone."""
        self._clear()
        self.node.stop()

    def leave(self) -> None:
        """Leave gracefully: what is owned here is sent to those who own it next."""
        moved = self._replicas.handover()
        self.node.leave()
        self._clear()
        self.node.route_many((target, message, message.size_bytes) for target, message in moved)

    # Between nodes.

    def put(
        self,
        namespace: str,
        key: str,
        suffix: str,
        value: object,
        lifetime_us: int,
        size_bytes: int = VALUE_BYTES,
        done: Callable[[bool], None] | None = None,
        *,
        target: int | None = None,
        address: Address | None = None,
        is_patient: bool = False,
    ) -> None:
        """Store an object at its owner; `done` gets whether the owner has confirmed it.

        One that is patient is tried as long as the object lives: its owner knows a repeated one by its version.
        """
        point = _point(namespace, key, target, address)
        instance = self._publish(Item(namespace, key, suffix, value, lifetime_us, size_bytes), point)
        until_us = self._kernel.now_us + lifetime_us if is_patient else 0
        self._requests.start(lambda number: Put(number, instance), partial(_call_done, done), address, until_us)

    def get(
        self,
        namespace: str,
        key: str,
        found: Callable[[list[Item]], None],
        *,
        target: int | None = None,
        address: Address | None = None,
    ) -> None:
        """Give `found` the objects of a name, by suffix; none also if no owner has answered."""
        point = _point(namespace, key, target, address)
        self._requests.start(lambda number: Get(number, point, namespace, key), partial(_call_found, found), address)

    def try_get(
        self,
        namespace: str,
        key: str,
        found: Callable[[list[Item] | None], None],
        *,
        target: int | None = None,
        address: Address | None = None,
    ) -> None:
        """As `get`, for those who must tell an empty answer from none: then `found` gets None."""
        point = _point(namespace, key, target, address)
        self._requests.start(lambda number: Get(number, point, namespace, key), partial(_call_tried, found), address)

    def renew(
        self,
        namespace: str,
        key: str,
        suffix: str,
        lifetime_us: int,
        done: Callable[[bool], None],
        *,
        target: int | None = None,
        address: Address | None = None,
    ) -> None:
        """Let an object live for so long from now on, if not longer anyway; False means that it must be put again."""
        self._check_lifetime(lifetime_us)
        point, name = _point(namespace, key, target, address), (namespace, key, suffix)
        self._requests.start(lambda number: Renew(number, point, name, lifetime_us), partial(_call_done, done), address)

    def send(
        self,
        namespace: str,
        key: str,
        suffix: str,
        value: object,
        lifetime_us: int,
        size_bytes: int = VALUE_BYTES,
        *,
        target: int | None = None,
        address: Address | None = None,
    ) -> None:
        """Route an object to its owner, with an upcall at every node in between; there is no confirmation."""
        point = _point(namespace, key, target, address)
        instance = self._publish(Item(namespace, key, suffix, value, lifetime_us, size_bytes), point)
        item = self._intercept(Passage.SENT, instance.item)
        if item is None:
            return
        message = Send(instance if item is instance.item else replace(instance, item=item))
        if point is not None:
            self.node.route(point, message, message.size_bytes)
        else:
            assert address is not None
            self.node.direct(address, message, message.size_bytes)

    # Within this node. A namespace and the beginning of a key say which objects are meant; None: those of all.

    def local_scan(self, namespace: str | None = None, key_prefix: str = "") -> list[Item]:
        """The objects that this node owns, by namespace, key and suffix; copies for others are left out."""
        found = self._store.of_prefix(namespace, key_prefix)
        return [self._store.item(stored) for stored in found if stored.is_owned]

    def local_get(self, namespace: str, key: str) -> list[Item]:
        """The objects of a name that this node owns, by suffix."""
        return [self._store.item(stored) for stored in self._store.of_key(namespace, key) if stored.is_owned]

    def keep(
        self, namespace: str, key: str, suffix: str, value: object, lifetime_us: int, size_bytes: int = VALUE_BYTES
    ) -> bool:
        """Store an object of this node's own arc here, and its copies with others; False if it is not responsible."""
        point = identifier_of(f"{namespace}.{key}")
        if not self._replicas.is_responsible(point):
            return False
        instance = self._publish(Item(namespace, key, suffix, value, lifetime_us, size_bytes), point)
        self._replicas.keep(instance, is_owner=True)
        return True

    def extend(self, namespace: str, key: str, suffix: str, lifetime_us: int) -> None:
        """Let an object that this node owns live for so long from now on, if not longer anyway."""
        stored = self._store.find((namespace, key, suffix))
        if stored is not None and stored.is_owned:
            self._store.extend_lifetime(stored, lifetime_us)
            self._replicas.refresh(stored)

    def new_data(self, namespace: str | None, callback: Callable[[Item], None], key_prefix: str = "") -> Cancel:
        """Call back with each object when this node begins to own it: put, sent, moved or taken over."""
        return self._new_data.add(namespace, key_prefix, callback)

    def upcall(
        self,
        namespace: str | None,
        handler: Upcall,
        key_prefix: str = "",
        passages: Iterable[Passage] = (Passage.MIDWAY,),
    ) -> Cancel:
        """Let `handler` change what is sent, or stop it with None: by others through this node, unless told else."""
        cancels = [self._upcalls[passage].add(namespace, key_prefix, handler) for passage in passages]
        return partial(_call_all, cancels)

    @property
    def lifetime_max_us(self) -> int:
        """The longest lifetime that an object may be given."""
        return self._settings.lifetime_max_us

    @property
    def owned_total(self) -> int:
        """How many objects this node owns."""
        return sum(stored.is_owned for stored in self._store)

    @property
    def copies_total(self) -> int:
        """How many copies it has of what others own."""
        return sum(not stored.is_owned for stored in self._store)

    # Messages.

    def _publish(self, item: Item, point: int | None) -> Instance:
        self._check_lifetime(item.lifetime_us)
        if item.size_bytes < 0:
            raise ValueError(f"size_bytes must not be negative: {item.size_bytes}")
        self._published_us = max(self._kernel.now_us, self._published_us + 1)
        return Instance(item, point, (self._published_us, self.node.address))

    def _check_lifetime(self, lifetime_us: int) -> None:
        most_us = self._settings.lifetime_max_us
        if not 0 < lifetime_us <= most_us:
            raise ValueError(
                f"lifetime_us must be from 1 to {most_us}, the lifetime_max_us of the settings: {lifetime_us}; "
                "renew what must live longer"
            )

    def _delivered(self, origin: Address, target: int, payload: object, hops: int) -> None:
        match payload:
            case AddressLookup(number, attempt):
                self._reply(origin, Located(number, attempt))
            case Send(instance):
                self._arrived(instance)
            case ObjectOffer(digest):
                self._replicas.offered(origin, digest)
            case ObjectTransfer():
                self._replicas.transferred(origin, payload)

    def _received(self, sender: Address, payload: object) -> None:
        match payload:
            case Located():
                self._requests.located(sender, payload)
            case Put() | Get() | Renew():
                self._perform(sender, payload)
            case Done() | Items():
                self._requests.replied(payload)
            case Send(instance):
                self._arrived(instance)
            case Refresh(digests):
                self._replicas.refreshed(sender, digests)
            case Fetch():
                self._replicas.fetched(sender, payload)
            case ObjectTransfer():
                self._replicas.transferred(sender, payload)
            case Owned(digests):
                self._replicas.owned_elsewhere(digests)

    def _perform(self, asker: Address, operation: Operation) -> None:
        """Do what is asked; a node that is not responsible any more is silent, so that the asker looks again."""
        if not self._replicas.is_responsible(operation.target):
            return
        match operation:
            case Put(number, instance):
                self._replicas.keep(instance, is_owner=True)
                self._reply(asker, Done(number, is_stored=True))
            case Get(number, _, namespace, key):
                found = tuple(self._store.item(stored) for stored in self._store.of_key(namespace, key))
                self._reply(asker, Items(number, found))
            case Renew(number, _, name, lifetime_us):
                renewed = self._store.find(name)
                if renewed is not None:
                    self._store.extend_lifetime(renewed, lifetime_us)
                    self._replicas.refresh(renewed)
                self._reply(asker, Done(number, renewed is not None))
            case _ as never:
                assert_never(never)

    def _passing(self, target: int, payload: object) -> object | None:
        if not isinstance(payload, Send):
            return payload
        before = payload.instance.item
        item = self._intercept(Passage.MIDWAY, before)
        if item is None:
            return None
        if item is before:
            return payload
        message = Send(replace(payload.instance, item=item))
        if message.size_bytes == payload.size_bytes:
            return message
        # The envelope says how large the message is, so one of another size needs a new envelope.
        self.node.route(target, message, message.size_bytes)
        return None

    def _arrived(self, instance: Instance) -> None:
        item = self._intercept(Passage.ARRIVED, instance.item)
        if item is not None:
            self._replicas.keep(instance if item is instance.item else replace(instance, item=item), is_owner=True)

    def _intercept(self, passage: Passage, item: Item) -> Item | None:
        """What the upcalls leave of an object."""
        before = item
        for handler in self._upcalls[passage].matching(before):
            changed = handler(item)
            if changed is None:
                return None
            item = changed
        if item is not before and (item.namespace, item.key) != (before.namespace, before.key):
            raise ValueError(f"an upcall changed the key on which {before.name} is routed: send another object instead")
        return item

    def _reply(self, address: Address, message: DhtMessage) -> None:
        self.node.direct(address, message, message.size_bytes)

    def _announce(self, item: Item) -> None:
        for callback in self._new_data.matching(item):
            callback(item)

    def _arc_changed(self, arc: Arc) -> None:
        self._replicas.arc_changed()

    def _clear(self) -> None:
        self._store.clear()
        self._requests.clear()
        self._replicas.stop()


def _point(namespace: str, key: str, target: int | None, address: Address | None) -> int | None:
    """Where a call is routed; None if it goes to an address."""
    if address is not None:
        if target is not None:
            raise ValueError(f"a call goes to a point or to an address, not to both: {target}, {address}")
        return None
    return identifier_of(f"{namespace}.{key}") if target is None else target


def _call_done(done: Callable[[bool], None] | None, reply: Reply | None) -> None:
    if done is not None:
        done(isinstance(reply, Done) and reply.is_stored)


def _call_found(found: Callable[[list[Item]], None], reply: Reply | None) -> None:
    found(list(reply.items) if isinstance(reply, Items) else [])


def _call_tried(found: Callable[[list[Item] | None], None], reply: Reply | None) -> None:
    found(list(reply.items) if isinstance(reply, Items) else None)


def _call_all(cancels: Iterable[Cancel]) -> None:
    for cancel in cancels:
        cancel()
