"""A DHT over any overlay (PIER, section 3.2): named objects in soft state at the node responsible for their identifier.

put, get and renew have two phases: a small message is routed and finds the owner, then the object goes there directly.
send routes the object itself, hop by hop, so that nodes on the way can change or stop it. An object is dropped when its
lifetime is over and lost with the node that fails; its publisher renews it, or puts it again.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, assert_never

from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.router import Address, Arc

VALUE_BYTES = 100  # of an object whose publisher does not say
_KIND_BYTES = 1
_REQUEST_BYTES = _KIND_BYTES + 4 + 1  # with a number and an attempt
_TARGET_BYTES = 8
_VERSION_BYTES = 14  # a time 8, address and port 6
_LIFETIME_BYTES = 8
_VOUCHES = 3  # this many missing ones in a row make an orphan of a copy

Name: TypeAlias = tuple[str, str, str]  # namespace, key, suffix
Version: TypeAlias = tuple[int, Address]  # when it was published, and by whom


@dataclass(frozen=True, slots=True)
class DhtSettings:
    """How long objects may live, how patient requests are, and how many copies there are."""

    lifetime_max_us: int = 3_600_000_000
    timeout_us: int = 5_000_000  # of one try, both phases together
    tries: int = 4
    replicas: int = 0  # copies besides the owner's
    mend_us: int = 5_000_000  # how often an owner vouches for its copies, and what is out of place is offered again

    def __post_init__(self) -> None:
        for name in ("lifetime_max_us", "timeout_us", "tries", "mend_us"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.replicas < 0:
            raise ValueError(f"replicas must not be negative: {self.replicas}")


@dataclass(frozen=True, slots=True)
class Item:
    """An object as the application sees it."""

    namespace: str
    key: str
    suffix: str
    value: object
    lifetime_us: int  # what is left of it
    size_bytes: int = VALUE_BYTES  # of the value

    @property
    def name(self) -> Name:
        """Two objects with the same name are instances of the same one: the one published later replaces the other."""
        return self.namespace, self.key, self.suffix


@dataclass(frozen=True, slots=True)
class Instance:
    """An object on its way. The remaining lifetime travels with it and not its end: hosts have no common clock."""

    item: Item
    target: int
    version: Version

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        fields_bytes = _TARGET_BYTES + _VERSION_BYTES + _LIFETIME_BYTES
        return _text_bytes(*self.item.name) + fields_bytes + self.item.size_bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """An object without its value."""

    name: Name
    version: Version
    lifetime_us: int

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _text_bytes(*self.name) + _VERSION_BYTES + _LIFETIME_BYTES


# The first phase, and send.


@dataclass(frozen=True, slots=True)
class Lookup:
    """Routed: who is responsible for this point?"""

    request: int
    attempt: int

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Located:
    """I am."""

    request: int
    attempt: int

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Send:
    """Routed: an object to be stored at the end of its way."""

    instance: Instance

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _KIND_BYTES + self.instance.size_bytes


# The second phase.


@dataclass(frozen=True, slots=True)
class Put:
    """Store this."""

    request: int
    instance: Instance

    @property
    def target(self) -> int:
        """The point that the receiver must be responsible for."""
        return self.instance.target

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _REQUEST_BYTES + self.instance.size_bytes


@dataclass(frozen=True, slots=True)
class Get:
    """What do you have under this name, whatever the suffix?"""

    request: int
    target: int
    namespace: str
    key: str

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _REQUEST_BYTES + _TARGET_BYTES + _text_bytes(self.namespace, self.key)


@dataclass(frozen=True, slots=True)
class Renew:
    """Keep this for so long from now on."""

    request: int
    target: int
    name: Name
    lifetime_us: int

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _REQUEST_BYTES + _TARGET_BYTES + _text_bytes(*self.name) + _LIFETIME_BYTES


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to Put and Renew."""

    request: int
    is_stored: bool

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Items:
    """The answer to Get."""

    request: int
    items: tuple[Item, ...]

    @property
    def size_bytes(self) -> int:
        """On the wire; namespace and key are known to the receiver."""
        each = (_text_bytes(item.suffix) + _LIFETIME_BYTES + item.size_bytes for item in self.items)
        return _REQUEST_BYTES + sum(each)


# Copies and moves. An owner sends a copy of what is published to the nodes that would take over, and from time to time
# it vouches for its copies to those who should have them now; they ask for what they miss. Whoever gets a larger arc
# owns the copies in it. Whatever a node has outside its arc, objects it owned before and copies for which nobody
# vouches any more, it offers to the owner, who wants it or has it already.


@dataclass(frozen=True, slots=True)
class Vouch:
    """I own these, and you should have copies."""

    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _KIND_BYTES + sum(entry.size_bytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Offer:
    """Routed: you should own this."""

    entry: Entry

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _KIND_BYTES + self.entry.size_bytes


@dataclass(frozen=True, slots=True)
class Want:
    """Give me these, to own or as copies."""

    names: tuple[Name, ...]
    is_move: bool

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _KIND_BYTES + sum(_text_bytes(*name) for name in self.names)


@dataclass(frozen=True, slots=True)
class Objects:
    """To own, or as copies."""

    instances: tuple[Instance, ...]
    is_move: bool

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _KIND_BYTES + sum(instance.size_bytes for instance in self.instances)


@dataclass(frozen=True, slots=True)
class Have:
    """I own these, so you need not."""

    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return _KIND_BYTES + sum(entry.size_bytes for entry in self.entries)


Operation: TypeAlias = Put | Get | Renew
Answer: TypeAlias = Done | Items
Message: TypeAlias = Lookup | Located | Send | Operation | Answer | Vouch | Offer | Want | Objects | Have


class _Stored:
    """An object that a node has, as its owner or as a copy for which its owner vouched at some time."""

    __slots__ = ("expires_us", "item", "target", "timer", "version", "vouched_us")

    def __init__(self, instance: Instance) -> None:
        self.item, self.target, self.version = instance.item, instance.target, instance.version
        self.expires_us = 0
        self.timer: Event = NO_EVENT
        self.vouched_us: int | None = None  # None: it is owned


class _Request:
    """A put, get or renew under way."""

    __slots__ = ("attempt", "finish", "operation", "timer")

    def __init__(self, operation: Operation, finish: Callable[[Answer | None], None]) -> None:
        self.operation, self.finish = operation, finish
        self.attempt = 0
        self.timer: Event = NO_EVENT


class Dht:
    """One node's part of the DHT. It must be started, left and stopped here and not at its overlay node alone.

    Callbacks never run inside the call that gave them. Those of a node that has stopped are not called any more.
    `target`, where it is given, is a point to be used in place of the name's own.
    """

    __slots__ = (
        "_kernel",
        "_mend_timer",
        "_new_data",
        "_published_us",
        "_request_total",
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
        self._store: dict[str, dict[str, dict[str, _Stored]]] = {}  # by namespace, key and suffix
        self._requests: dict[int, _Request] = {}
        self._request_total = 0
        self._published_us = -1  # the last version of its own
        self._mend_timer: Event = NO_EVENT
        self._new_data: dict[str, list[Callable[[Item], None]]] = {}
        self._upcalls: dict[str, list[Callable[[Item], Item | None]]] = {}
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
        """Go politely: what is owned here is sent to those who own it next."""
        moved = [
            (stored.target, Objects((self._instance(stored),), is_move=True))
            for stored in self._live()
            if stored.vouched_us is None
        ]
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
    ) -> None:
        """Store an object at its owner; `done` is told whether the owner has said that it did."""
        instance = self._publish(Item(namespace, key, suffix, value, lifetime_us, size_bytes), target)
        self._ask(lambda number: Put(number, instance), partial(_tell_done, done))

    def get(self, namespace: str, key: str, found: Callable[[list[Item]], None], *, target: int | None = None) -> None:
        """Give `found` the objects of a name, by suffix; none also if no owner has answered."""
        point = _point(namespace, key, target)
        self._ask(lambda number: Get(number, point, namespace, key), partial(_tell_found, found))

    def renew(
        self,
        namespace: str,
        key: str,
        suffix: str,
        lifetime_us: int,
        done: Callable[[bool], None],
        *,
        target: int | None = None,
    ) -> None:
        """Let an object live for so long from now on, if not longer anyway; False means that it must be put again."""
        self._check_lifetime(lifetime_us)
        point, name = _point(namespace, key, target), (namespace, key, suffix)
        self._ask(lambda number: Renew(number, point, name, lifetime_us), partial(_tell_done, done))

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
    ) -> None:
        """Route an object to its owner, with an upcall at every node in between; nobody says that it was stored."""
        instance = self._publish(Item(namespace, key, suffix, value, lifetime_us, size_bytes), target)
        message = Send(instance)
        self.node.route(instance.target, message, message.size_bytes)

    # Within this node.

    def local_scan(self, namespace: str) -> list[Item]:
        """The objects of a namespace that this node owns, by key and suffix; copies for others are left out."""
        keys = self._store.get(namespace, {})
        stored = (suffixes[suffix] for _, suffixes in sorted(keys.items()) for suffix in sorted(suffixes))
        return [self._item(each) for each in stored if each.vouched_us is None and self._is_live(each)]

    def new_data(self, namespace: str, callback: Callable[[Item], None]) -> None:
        """Call back with each object of a namespace when this node begins to own it: put, sent, moved or taken over."""
        self._new_data.setdefault(namespace, []).append(callback)

    def upcall(self, namespace: str, handler: Callable[[Item], Item | None]) -> None:
        """Let `handler` change what is sent through this node, or stop it with None; sender and owner are not asked."""
        self._upcalls.setdefault(namespace, []).append(handler)

    @property
    def owned_total(self) -> int:
        """How many objects this node owns."""
        return sum(stored.vouched_us is None for stored in self._live())

    @property
    def copies_total(self) -> int:
        """How many copies it has of what others own."""
        return sum(stored.vouched_us is not None for stored in self._live())

    # Requests.

    def _publish(self, item: Item, target: int | None) -> Instance:
        self._check_lifetime(item.lifetime_us)
        if item.size_bytes < 0:
            raise ValueError(f"size_bytes must not be negative: {item.size_bytes}")
        self._published_us = max(self._kernel.now_us, self._published_us + 1)
        return Instance(item, _point(item.namespace, item.key, target), (self._published_us, self.node.address))

    def _check_lifetime(self, lifetime_us: int) -> None:
        most_us = self._settings.lifetime_max_us
        if not 0 < lifetime_us <= most_us:
            raise ValueError(
                f"lifetime_us must be from 1 to {most_us}, the lifetime_max_us of the settings: {lifetime_us}; "
                "renew what must live longer"
            )

    def _ask(self, operation: Callable[[int], Operation], finish: Callable[[Answer | None], None]) -> None:
        self._request_total += 1
        self._requests[self._request_total] = _Request(operation(self._request_total), finish)
        self._try(self._request_total)

    def _try(self, number: int) -> None:
        """Begin once more with the lookup: who did not answer may be dead, or not the owner any more."""
        if not self._is_alive():
            return
        request = self._requests[number]
        if request.attempt == self._settings.tries:
            del self._requests[number]
            request.finish(None)
            return
        request.attempt += 1
        request.timer = self._kernel.after(self._settings.timeout_us, self._try, number)
        message = Lookup(number, request.attempt)
        self.node.route(request.operation.target, message, message.size_bytes)

    def _located(self, owner: Address, message: Located) -> None:
        request = self._requests.get(message.request)
        if request is not None and request.attempt == message.attempt:
            missed = partial(self._missed, message.request, message.attempt)
            self.node.direct(owner, request.operation, request.operation.size_bytes, missed)

    def _missed(self, number: int, attempt: int) -> None:
        request = self._requests.get(number)
        if request is not None and request.attempt == attempt:
            self._kernel.cancel(request.timer)
            self._try(number)

    def _answered(self, answer: Answer) -> None:
        request = self._requests.pop(answer.request, None)
        if request is not None:
            self._kernel.cancel(request.timer)
            request.finish(answer)

    def _perform(self, asker: Address, operation: Operation) -> None:
        """Do what is asked; one who is not responsible any more is silent, so that the owner is looked for again."""
        if not self._is_mine(operation.target):
            return
        match operation:
            case Put(number, instance):
                self._keep(instance, is_owner=True)
                self._tell(asker, Done(number, is_stored=True))
            case Get(number, _, namespace, key):
                suffixes = self._store.get(namespace, {}).get(key, {})
                stored = (suffixes[suffix] for suffix in sorted(suffixes))
                self._tell(asker, Items(number, tuple(self._item(each) for each in stored if self._is_live(each))))
            case Renew(number, _, name, lifetime_us):
                renewed = self._find(name)
                if renewed is not None:
                    self._live_until(renewed, max(renewed.expires_us, self._end_us(lifetime_us)))
                    if self._settings.replicas:  # not with the next round: till then the copies might be over
                        self._tell_heirs(Vouch((self._entry(renewed),)))
                self._tell(asker, Done(number, renewed is not None))
            case _ as never:
                assert_never(never)

    # Messages.

    def _delivered(self, origin: Address, target: int, payload: object, hops: int) -> None:
        match payload:
            case Lookup(number, attempt):
                self._tell(origin, Located(number, attempt))
            case Send(instance):
                self._keep(instance, is_owner=True)
            case Offer(entry):
                self._offered(origin, entry)
            case Objects():
                self._take(origin, payload)

    def _received(self, sender: Address, payload: object) -> None:
        match payload:
            case Located():
                self._located(sender, payload)
            case Put() | Get() | Renew():
                self._perform(sender, payload)
            case Done() | Items():
                self._answered(payload)
            case Vouch(entries):
                self._vouched(sender, entries)
            case Want(names, is_move):
                wanted = [stored for name in names if (stored := self._find(name)) is not None]
                if wanted:
                    self._tell(sender, Objects(tuple(self._instance(stored) for stored in wanted), is_move))
            case Objects():
                self._take(sender, payload)
            case Have(entries):
                self._relieved(entries)

    def _passing(self, target: int, payload: object) -> object | None:
        if not isinstance(payload, Send):
            return payload
        before = item = payload.instance.item
        for handler in self._upcalls.get(before.namespace, ()):
            changed = handler(item)
            if changed is None:
                return None
            item = changed
        if item is before:
            return payload
        if item.name[:2] != before.name[:2]:
            raise ValueError(f"an upcall changed the key on which {before.name} is routed: send another object instead")
        message = Send(replace(payload.instance, item=item))
        if message.size_bytes == payload.size_bytes:
            return message
        # The envelope says how large the message is, so one of another size needs a new envelope.
        self.node.route(target, message, message.size_bytes)
        return None

    def _tell(self, address: Address, message: Message) -> None:
        self.node.direct(address, message, message.size_bytes)

    # What is stored.

    def _find(self, name: Name) -> _Stored | None:
        namespace, key, suffix = name
        stored = self._store.get(namespace, {}).get(key, {}).get(suffix)
        return stored if stored is not None and self._is_live(stored) else None

    def _live(self) -> Iterator[_Stored]:
        """Whatever is there, in the order in which names came."""
        for keys in self._store.values():
            for suffixes in keys.values():
                for stored in suffixes.values():
                    if self._is_live(stored):
                        yield stored

    def _is_live(self, stored: _Stored) -> bool:
        return stored.expires_us > self._kernel.now_us  # its timer may be due in this very instant

    def _item(self, stored: _Stored) -> Item:
        return replace(stored.item, lifetime_us=stored.expires_us - self._kernel.now_us)

    def _instance(self, stored: _Stored) -> Instance:
        return Instance(self._item(stored), stored.target, stored.version)

    def _entry(self, stored: _Stored) -> Entry:
        return Entry(stored.item.name, stored.version, stored.expires_us - self._kernel.now_us)

    def _keep(self, instance: Instance, is_owner: bool) -> None:
        """Store an object unless it is here already, or a later one of its name."""
        is_owner = is_owner or self._is_mine(instance.target)
        stored = self._find(instance.item.name)
        if stored is None or stored.version < instance.version:
            self._drop(instance.item.name)
            namespace, key, suffix = instance.item.name
            stored = _Stored(instance)
            self._store.setdefault(namespace, {}).setdefault(key, {})[suffix] = stored
            self._live_until(stored, self._end_us(instance.item.lifetime_us))
            if not is_owner:
                stored.vouched_us = self._kernel.now_us
            else:
                if self._settings.replicas:
                    self._tell_heirs(Objects((self._instance(stored),), is_move=False))
                self._announce(stored)
        elif is_owner:
            self._own(stored)
        elif stored.vouched_us is not None and stored.version == instance.version:
            stored.vouched_us = self._kernel.now_us
        if self._settings.replicas or not self._is_mine(instance.target):
            self._mend_later()

    def _own(self, stored: _Stored) -> None:
        if stored.vouched_us is not None:
            stored.vouched_us = None
            self._announce(stored)

    def _announce(self, stored: _Stored) -> None:
        for callback in tuple(self._new_data.get(stored.item.namespace, ())):
            callback(self._item(stored))

    def _end_us(self, lifetime_us: int) -> int:
        return self._kernel.now_us + min(lifetime_us, self._settings.lifetime_max_us)

    def _live_until(self, stored: _Stored, expires_us: int) -> None:
        if expires_us != stored.expires_us:
            self._kernel.cancel(stored.timer)
            stored.expires_us = expires_us
            stored.timer = self._kernel.at(expires_us, self._drop, stored.item.name)

    def _drop(self, name: Name) -> None:
        namespace, key, suffix = name
        keys = self._store.get(namespace, {})
        suffixes = keys.get(key, {})
        if suffix in suffixes:
            self._kernel.cancel(suffixes.pop(suffix).timer)
            if not suffixes:
                del keys[key]
            if not keys:
                del self._store[namespace]

    def _clear(self) -> None:
        for keys in self._store.values():
            for suffixes in keys.values():
                for stored in suffixes.values():
                    self._kernel.cancel(stored.timer)
        for request in self._requests.values():
            self._kernel.cancel(request.timer)
        self._kernel.cancel(self._mend_timer)
        self._mend_timer = NO_EVENT
        self._store.clear()
        self._requests.clear()

    def _is_alive(self) -> bool:
        """Whether the host is up; if not, whoever crashed it did not tell this object."""
        if not self.node.is_up:
            self._clear()
        return self.node.is_up

    # Copies and moves.

    def _is_mine(self, target: int) -> bool:
        return self.node.router.is_ready and self.node.router.next_hop(target) is None

    def _arc_changed(self, arc: Arc) -> None:
        if self._store:  # not at once: the router is in the middle of something
            self._kernel.cancel(self._mend_timer)
            self._mend_timer = self._kernel.after(0, self._mend)

    def _mend_later(self) -> None:
        if self._mend_timer is NO_EVENT:
            self._mend_timer = self._kernel.after(self._settings.mend_us, self._mend)

    def _mend(self) -> None:
        """Own what is in the arc, vouch for it to the heirs, and offer what does not belong here."""
        self._mend_timer = NO_EVENT
        if not self._is_alive():
            return
        orphan_us = self._kernel.now_us - _VOUCHES * self._settings.mend_us
        owned: list[_Stored] = []
        strays: list[_Stored] = []
        is_ready = self.node.router.is_ready
        for stored in list(self._live()):
            if self._is_mine(stored.target):
                owned.append(stored)
                self._own(stored)
            elif is_ready and (stored.vouched_us is None or stored.vouched_us <= orphan_us):
                strays.append(stored)
        offers = [(stored.target, Offer(self._entry(stored))) for stored in strays]
        self.node.route_many((target, offer, offer.size_bytes) for target, offer in offers)
        if self._settings.replicas and owned:
            self._tell_heirs(Vouch(tuple(self._entry(stored) for stored in owned)))
        if strays or (self._store and (self._settings.replicas or not is_ready)):
            self._mend_later()

    def _tell_heirs(self, message: Message) -> None:
        for address in self.node.router.successors(self._settings.replicas):
            self._tell(address, message)

    def _vouched(self, owner: Address, entries: Iterable[Entry]) -> None:
        missing = []
        for entry in entries:
            stored = self._find(entry.name)
            if stored is None or stored.version < entry.version:
                missing.append(entry.name)
            elif stored.version == entry.version and not self._is_mine(stored.target):
                stored.vouched_us = self._kernel.now_us
                self._live_until(stored, self._end_us(entry.lifetime_us))
        if missing:
            self._tell(owner, Want(tuple(missing), is_move=False))

    def _offered(self, holder: Address, entry: Entry) -> None:
        stored = self._find(entry.name)
        if stored is None or stored.version < entry.version:
            self._tell(holder, Want((entry.name,), is_move=True))
        else:
            self._own(stored)
            self._tell(holder, Have((entry,)))

    def _take(self, sender: Address, message: Objects) -> None:
        for instance in message.instances:
            self._keep(instance, is_owner=message.is_move)
        if message.is_move:
            entries = (Entry(each.item.name, each.version, each.item.lifetime_us) for each in message.instances)
            self._tell(sender, Have(tuple(entries)))

    def _relieved(self, entries: Iterable[Entry]) -> None:
        """The owner has these: drop them, unless this node was the owner before and may be an heir now."""
        for entry in entries:
            stored = self._find(entry.name)
            if stored is None or stored.version > entry.version or self._is_mine(stored.target):
                continue
            if self._settings.replicas and stored.vouched_us is None:
                stored.vouched_us = self._kernel.now_us
            else:
                self._drop(entry.name)


def _point(namespace: str, key: str, target: int | None) -> int:
    return identifier_of(f"{namespace}.{key}") if target is None else target


def _text_bytes(*parts: str) -> int:
    return sum(1 + len(part.encode()) for part in parts)


def _tell_done(done: Callable[[bool], None] | None, answer: Answer | None) -> None:
    if done is not None:
        done(isinstance(answer, Done) and answer.is_stored)


def _tell_found(found: Callable[[list[Item]], None], answer: Answer | None) -> None:
    found(list(answer.items) if isinstance(answer, Items) else [])
