"""Which objects a node owns, and which it has copies of (replication and handover).

An owner sends a copy of what is published to its successors, and from time to time it refreshes them: they ask for what
they miss. A node whose arc grows owns the copies in it. Whatever a node has outside its arc, objects that it owned
before and copies that nobody refreshes any more, it offers to the owner, who fetches it or has it already.
"""

from collections.abc import Callable, Iterable

from watersmeet.sim.dht.messages import (
    DhtMessage,
    Fetch,
    Instance,
    Item,
    ObjectDigest,
    ObjectOffer,
    ObjectTransfer,
    Owned,
    Refresh,
)
from watersmeet.sim.dht.settings import DhtSettings
from watersmeet.sim.dht.store import SoftStateStore, StoredObject
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.router import Address

_MISSED_REFRESHES = 3  # after so many in a row a copy is taken to have no owner


class Replicas:
    """Keeps the store of one node in step with its arc, and its successors in step with the store.

    `on_owned` is called with each object when this node begins to own it; `on_host_down` when the host is found to have
    crashed without a call to `stop`.
    """

    __slots__ = ("_kernel", "_node", "_on_host_down", "_on_owned", "_settings", "_store", "_timer")

    def __init__(
        self,
        kernel: Kernel,
        node: OverlayNode,
        store: SoftStateStore,
        settings: DhtSettings,
        *,
        on_owned: Callable[[Item], None],
        on_host_down: Callable[[], None],
    ) -> None:
        self._kernel, self._node, self._store, self._settings = kernel, node, store, settings
        self._on_owned, self._on_host_down = on_owned, on_host_down
        self._timer: Event = NO_EVENT

    def stop(self) -> None:
        """Repair nothing until something is stored again."""
        self._kernel.cancel(self._timer)
        self._timer = NO_EVENT

    def is_responsible(self, target: int | None) -> bool:
        """Whether a point is in this node's arc; without one the node was meant by its address."""
        if target is None:
            return True
        return self._node.router.is_ready and self._node.router.next_hop(target) is None

    def handover(self) -> list[tuple[int, ObjectTransfer]]:
        """What a node that leaves sends to the owners after it, with the points to which it is routed."""
        return [
            (stored.target, ObjectTransfer((self._store.instance(stored),), is_move=True))
            for stored in self._store
            if stored.is_owned and stored.target is not None
        ]

    def keep(self, instance: Instance, is_owner: bool) -> None:
        """Store an object unless it is here already, or a later one of its name."""
        is_owner = is_owner or self.is_responsible(instance.target)
        stored = self._store.find(instance.item.name)
        if stored is None or stored.version < instance.version:
            stored = self._store.insert(instance)
            if not is_owner:
                stored.refreshed_us = self._kernel.now_us
            else:
                if self._settings.replicas and not stored.is_pinned:
                    self._tell_successors(ObjectTransfer((self._store.instance(stored),), is_move=False))
                self._on_owned(self._store.item(stored))
        elif is_owner:
            self._own(stored)
        elif not stored.is_owned and stored.version == instance.version:
            stored.refreshed_us = self._kernel.now_us
        if self._settings.replicas or not self.is_responsible(instance.target):
            self._repair_later()

    def refresh(self, stored: StoredObject) -> None:
        """Pass a renewed lifetime on at once: by the next repair the copies might have expired."""
        if self._settings.replicas and not stored.is_pinned:
            self._tell_successors(Refresh((self._store.digest(stored),)))

    def arc_changed(self) -> None:
        """Repair soon, but not at once: the router is in the middle of something."""
        if self._store:
            self._kernel.cancel(self._timer)
            self._timer = self._kernel.after(0, self._repair)

    # Messages of other nodes.

    def refreshed(self, owner: Address, digests: Iterable[ObjectDigest]) -> None:
        """An owner says which copies should be here."""
        missing = []
        for digest in digests:
            stored = self._store.find(digest.name)
            if stored is None or stored.version < digest.version:
                missing.append(digest.name)
            elif stored.version == digest.version and not self.is_responsible(stored.target):
                stored.refreshed_us = self._kernel.now_us
                self._store.set_lifetime(stored, digest.lifetime_us)
        if missing:
            self._tell(owner, Fetch(tuple(missing), is_move=False))

    def offered(self, holder: Address, digest: ObjectDigest) -> None:
        """Another node has an object that this one is responsible for."""
        stored = self._store.find(digest.name)
        if stored is None or stored.version < digest.version:
            self._tell(holder, Fetch((digest.name,), is_move=True))
        else:
            self._own(stored)
            self._tell(holder, Owned((digest,)))

    def fetched(self, asker: Address, message: Fetch) -> None:
        """Another node wants objects that are here."""
        wanted = [stored for name in message.names if (stored := self._store.find(name)) is not None]
        if wanted:
            self._tell(asker, ObjectTransfer(tuple(self._store.instance(stored) for stored in wanted), message.is_move))

    def transferred(self, sender: Address, message: ObjectTransfer) -> None:
        """Objects have come, to be owned or as copies."""
        for instance in message.instances:
            self.keep(instance, is_owner=message.is_move)
        if message.is_move:
            digests = (ObjectDigest(each.item.name, each.version, each.item.lifetime_us) for each in message.instances)
            self._tell(sender, Owned(tuple(digests)))

    def owned_elsewhere(self, digests: Iterable[ObjectDigest]) -> None:
        """The owner has these: drop them, unless this node owned them before and may be a replica holder now."""
        for digest in digests:
            stored = self._store.find(digest.name)
            if stored is None or stored.version > digest.version or self.is_responsible(stored.target):
                continue
            if self._settings.replicas and stored.is_owned:
                stored.refreshed_us = self._kernel.now_us
            else:
                self._store.drop(digest.name)

    # Repair.

    def _repair_later(self) -> None:
        if self._timer is NO_EVENT:
            self._timer = self._kernel.after(self._settings.repair_us, self._repair)

    def _repair(self) -> None:
        """Own what is in the arc, refresh its replicas, and offer what does not belong here."""
        self._timer = NO_EVENT
        if not self._node.is_up:
            self._on_host_down()
            return
        orphaned_us = self._kernel.now_us - _MISSED_REFRESHES * self._settings.repair_us
        owned: list[StoredObject] = []
        misplaced: list[tuple[int, ObjectOffer]] = []
        is_ready = self._node.router.is_ready
        for stored in list(self._store):
            if stored.target is None:
                continue
            if self.is_responsible(stored.target):
                owned.append(stored)
                self._own(stored)
            elif is_ready and (stored.refreshed_us is None or stored.refreshed_us <= orphaned_us):
                misplaced.append((stored.target, ObjectOffer(self._store.digest(stored))))
        self._node.route_many((target, offer, offer.size_bytes) for target, offer in misplaced)
        if self._settings.replicas and owned:
            self._tell_successors(Refresh(tuple(self._store.digest(stored) for stored in owned)))
        if misplaced or (self._store and (self._settings.replicas or not is_ready)):
            self._repair_later()

    def _own(self, stored: StoredObject) -> None:
        if not stored.is_owned:
            stored.refreshed_us = None
            self._on_owned(self._store.item(stored))

    def _tell_successors(self, message: DhtMessage) -> None:
        for address in self._node.router.successors(self._settings.replicas):
            self._tell(address, message)

    def _tell(self, address: Address, message: DhtMessage) -> None:
        self._node.direct(address, message, message.size_bytes)
