"""Objects of the DHT and the messages between its nodes; `size_bytes` is what each takes on the wire."""

from dataclasses import dataclass
from typing import TypeAlias

from watersmeet.sim.overlays.router import Address

VALUE_BYTES = 100  # of an object whose publisher does not say
_KIND_BYTES = 1
_REQUEST_BYTES = _KIND_BYTES + 4 + 1  # with a request number and an attempt
_TARGET_BYTES = 8
_VERSION_BYTES = 14  # a time 8, address and port 6
_LIFETIME_BYTES = 8

Name: TypeAlias = tuple[str, str, str]  # namespace, key, suffix
Version: TypeAlias = tuple[int, Address]  # when it was published, and by whom


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
    """An object in a message. It carries its remaining lifetime and not its end: hosts have no common clock."""

    item: Item
    target: int | None  # None: it stays at the host to which it was sent, whoever is responsible for its name
    version: Version

    @property
    def size_bytes(self) -> int:
        fields_bytes = _TARGET_BYTES + _VERSION_BYTES + _LIFETIME_BYTES
        return _text_bytes(*self.item.name) + fields_bytes + self.item.size_bytes


@dataclass(frozen=True, slots=True)
class ObjectDigest:
    """Name, version and remaining lifetime of an object, without its value."""

    name: Name
    version: Version
    lifetime_us: int

    @property
    def size_bytes(self) -> int:
        return _text_bytes(*self.name) + _VERSION_BYTES + _LIFETIME_BYTES


# Phase one of a request, and send.


@dataclass(frozen=True, slots=True)
class AddressLookup:
    """Routed: asks for the address of the node responsible for the target."""

    request: int
    attempt: int

    @property
    def size_bytes(self) -> int:
        return _REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Located:
    """The reply to Lookup: its sender is responsible."""

    request: int
    attempt: int

    @property
    def size_bytes(self) -> int:
        return _REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Send:
    """Routed, or direct to an address: an object to be stored by who gets it; nodes on the route see it."""

    instance: Instance

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + self.instance.size_bytes


# Phase two of a request.


@dataclass(frozen=True, slots=True)
class Put:
    """Asks the owner to store an object."""

    request: int
    instance: Instance

    @property
    def target(self) -> int | None:
        """The point that the receiver must be responsible for; None: it was asked by its address."""
        return self.instance.target

    @property
    def size_bytes(self) -> int:
        return _REQUEST_BYTES + self.instance.size_bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Asks the owner for all objects of a namespace and key, whatever their suffix."""

    request: int
    target: int | None
    namespace: str
    key: str

    @property
    def size_bytes(self) -> int:
        return _REQUEST_BYTES + _TARGET_BYTES + _text_bytes(self.namespace, self.key)


@dataclass(frozen=True, slots=True)
class Renew:
    """Asks the owner to keep an object for a lifetime from now on."""

    request: int
    target: int | None
    name: Name
    lifetime_us: int

    @property
    def size_bytes(self) -> int:
        return _REQUEST_BYTES + _TARGET_BYTES + _text_bytes(*self.name) + _LIFETIME_BYTES


@dataclass(frozen=True, slots=True)
class Done:
    """The reply to Put and Renew."""

    request: int
    is_stored: bool

    @property
    def size_bytes(self) -> int:
        return _REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Items:
    """The reply to Get."""

    request: int
    items: tuple[Item, ...]

    @property
    def size_bytes(self) -> int:
        """Namespace and key are known to the receiver and not sent."""
        each = (_text_bytes(item.suffix) + _LIFETIME_BYTES + item.size_bytes for item in self.items)
        return _REQUEST_BYTES + sum(each)


# Replication and handover; `replicas.py` has the protocol.


@dataclass(frozen=True, slots=True)
class Refresh:
    """From an owner to a replica holder: which objects it should have copies of."""

    digests: tuple[ObjectDigest, ...]

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + sum(digest.size_bytes for digest in self.digests)


@dataclass(frozen=True, slots=True)
class ObjectOffer:
    """Routed: the receiver is responsible for this object, which the sender has."""

    digest: ObjectDigest

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + self.digest.size_bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for objects, to own them (`is_move`) or as copies."""

    names: tuple[Name, ...]
    is_move: bool

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + sum(_text_bytes(*name) for name in self.names)


@dataclass(frozen=True, slots=True)
class ObjectTransfer:
    """Objects that the receiver is to own (`is_move`), or copies for it."""

    instances: tuple[Instance, ...]
    is_move: bool

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + sum(instance.size_bytes for instance in self.instances)


@dataclass(frozen=True, slots=True)
class Owned:
    """The reply to Offer and to a move: the sender owns these objects, the receiver need not keep them."""

    digests: tuple[ObjectDigest, ...]

    @property
    def size_bytes(self) -> int:
        return _KIND_BYTES + sum(digest.size_bytes for digest in self.digests)


Operation: TypeAlias = Put | Get | Renew
Reply: TypeAlias = Done | Items
DhtMessage: TypeAlias = (
    AddressLookup | Located | Send | Operation | Reply | Refresh | ObjectOffer | Fetch | ObjectTransfer | Owned
)


def _text_bytes(*parts: str) -> int:
    return sum(1 + len(part.encode()) for part in parts)
