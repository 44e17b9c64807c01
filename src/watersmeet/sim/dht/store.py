"""Soft state of one node: objects by name, each dropped when its lifetime is over."""

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.sim.dht.messages import Instance, Item, Name, ObjectDigest
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel


class StoredObject:
    """An object that a node owns, or has a copy of."""

    __slots__ = ("expires_us", "item", "refreshed_us", "target", "timer", "version")

    def __init__(self, instance: Instance) -> None:
        self.item, self.target, self.version = instance.item, instance.target, instance.version
        self.expires_us = 0
        self.timer: Event = NO_EVENT
        self.refreshed_us: int | None = None  # of a copy: when its owner last refreshed it; None: it is owned

    @property
    def is_owned(self) -> bool:
        return self.refreshed_us is None

    @property
    def is_pinned(self) -> bool:
        """Whether it was stored by the host's address: it stays, without copies, whatever the arc is."""
        return self.target is None


class SoftStateStore:
    """Objects by namespace, key and suffix, with a timer for the end of each."""

    __slots__ = ("_kernel", "_lifetime_max_us", "_objects")

    def __init__(self, kernel: Kernel, lifetime_max_us: int) -> None:
        self._kernel, self._lifetime_max_us = kernel, lifetime_max_us
        self._objects: dict[str, dict[str, dict[str, StoredObject]]] = {}

    def __bool__(self) -> bool:
        return bool(self._objects)

    def __iter__(self) -> Iterator[StoredObject]:
        """All unexpired objects, in the order in which their names came."""
        for keys in self._objects.values():
            for suffixes in keys.values():
                for stored in suffixes.values():
                    if self._is_current(stored):
                        yield stored

    def find(self, name: Name) -> StoredObject | None:
        """The object of a name, unless it has expired."""
        namespace, key, suffix = name
        stored = self._objects.get(namespace, {}).get(key, {}).get(suffix)
        return stored if stored is not None and self._is_current(stored) else None

    def of_prefix(self, namespace: str | None, key_prefix: str) -> Iterator[StoredObject]:
        """The unexpired objects of a namespace, or of all, whose key begins so, by namespace, key and suffix."""
        for each in sorted(self._objects) if namespace is None else (namespace,):
            for key in sorted(key for key in self._objects.get(each, {}) if key.startswith(key_prefix)):
                yield from self.of_key(each, key)

    def of_key(self, namespace: str, key: str) -> Iterator[StoredObject]:
        """The unexpired objects of a key, by suffix."""
        suffixes = self._objects.get(namespace, {}).get(key, {})
        return (suffixes[suffix] for suffix in sorted(suffixes) if self._is_current(suffixes[suffix]))

    def insert(self, instance: Instance) -> StoredObject:
        """Store an object in place of whatever has its name."""
        self.drop(instance.item.name)
        namespace, key, suffix = instance.item.name
        stored = StoredObject(instance)
        self._objects.setdefault(namespace, {}).setdefault(key, {})[suffix] = stored
        self.set_lifetime(stored, instance.item.lifetime_us)
        return stored

    def set_lifetime(self, stored: StoredObject, lifetime_us: int) -> None:
        """Let an object expire so long from now."""
        expires_us = self._kernel.now_us + min(lifetime_us, self._lifetime_max_us)
        if expires_us != stored.expires_us:
            self._kernel.cancel(stored.timer)
            stored.expires_us = expires_us
            stored.timer = self._kernel.at(expires_us, self.drop, stored.item.name)

    def extend_lifetime(self, stored: StoredObject, lifetime_us: int) -> None:
        """Let an object live for so long from now on, if not longer anyway."""
        self.set_lifetime(stored, max(lifetime_us, self._lifetime_us(stored)))

    def drop(self, name: Name) -> None:
        """Forget the object of a name, if there is one."""
        namespace, key, suffix = name
        keys = self._objects.get(namespace, {})
        suffixes = keys.get(key, {})
        if suffix in suffixes:
            self._kernel.cancel(suffixes.pop(suffix).timer)
            if not suffixes:
                del keys[key]
            if not keys:
                del self._objects[namespace]

    def clear(self) -> None:
        """Forget everything, expired or not."""
        for keys in self._objects.values():
            for suffixes in keys.values():
                for stored in suffixes.values():
                    self._kernel.cancel(stored.timer)
        self._objects.clear()

    def item(self, stored: StoredObject) -> Item:
        """An object for the application, with the lifetime that is left."""
        item, lifetime_us = stored.item, self._lifetime_us(stored)
        if item.lifetime_us == lifetime_us:  # as it is when it has just been stored
            return item
        return replace(item, lifetime_us=lifetime_us)

    def instance(self, stored: StoredObject) -> Instance:
        """An object for another node."""
        return Instance(self.item(stored), stored.target, stored.version)

    def digest(self, stored: StoredObject) -> ObjectDigest:
        """What another node has to know to tell whether it has the object."""
        return ObjectDigest(stored.item.name, stored.version, self._lifetime_us(stored))

    def _lifetime_us(self, stored: StoredObject) -> int:
        return stored.expires_us - self._kernel.now_us

    def _is_current(self, stored: StoredObject) -> bool:
        return stored.expires_us > self._kernel.now_us  # its timer may be due in this very instant
