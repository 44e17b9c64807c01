"""Distribution trees (PIER, section 3.3.3): what one node broadcasts reaches all.

Every node sends its address towards a root point that all know. The next node on that route takes note of the child and
stops the message: the tree is the union of the routes to the root. It is soft state: nodes announce themselves again
and again, and at once when their route begins with another node than before. To broadcast, a node sends to the root
point; from there copies go down to the children.

A tree is broken where a node has just died, and a node that joins has missed what was broadcast before. So broadcasts
have a lifetime, and an announcement carries a digest of those that the child knows. A parent whose digest differs
sends its list; each side then gets from the other what it lacks, and hands that on as any broadcast. What a node has
known for less than `settle_us` may still be on its way to the other and is left out. The origin sends again what has
not come back to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from watersmeet.sim.dht.callbacks import Cancel
from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht, Passage
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.router import Address

BroadcastId: TypeAlias = tuple[Address, int]  # of the origin, and its number there
_ID_BYTES = 6 + 4
_DIGEST_BYTES = 8 + 4
_ANNOUNCEMENT_BYTES = 6 + _DIGEST_BYTES
_FIELDS_BYTES = 1 + 1 + 8  # kind, tree, lifetime


@dataclass(frozen=True, slots=True)
class DistributionSettings:
    """How many trees there are, and how their soft state is kept."""

    trees: int = 1
    renew_us: int = 30_000_000  # how often a node announces itself
    check_us: int = 5_000_000  # how often it looks whether its parent is another, without a message
    follows_routes: bool = True  # False: routes never change, so it looks only when it has to announce itself
    child_lifetime_us: int = 75_000_000  # since its last announcement
    settle_us: int = 3_000_000  # a broadcast that is known for so long should have reached the children
    retry_us: int = 10_000_000  # after which the origin sends again what has not come back
    tries: int = 4
    remember_us: int = 600_000_000  # ids of expired broadcasts, so that a late copy is not taken for a new one
    namespace: str = "distribution"

    def __post_init__(self) -> None:
        for name in ("trees", "renew_us", "check_us", "retry_us", "tries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")
        if self.child_lifetime_us <= self.renew_us:
            raise ValueError(f"child_lifetime_us must be above renew_us: {self.child_lifetime_us}, {self.renew_us}")

    def root(self, tree: int) -> int:
        """The point whose owner is the root of a tree."""
        return identifier_of(f"{self.namespace}.root{tree}")


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What every node gets once."""

    id: BroadcastId
    payload: object
    size_bytes: int
    lifetime_us: int  # what is left of it

    @property
    def origin(self) -> Address:
        """Who has broadcast it."""
        return self.id[0]


@dataclass(frozen=True, slots=True)
class Announcement:
    """The sender of a routed message wants to be a child of who gets it first."""

    child: Address
    digest: "BroadcastDigest"


@dataclass(frozen=True, slots=True)
class BroadcastDigest:
    """A set of broadcasts in a few bytes: equal sets have equal digests, others nearly never."""

    count: int = 0
    mixed: int = 0


@dataclass(frozen=True, slots=True)
class Down:
    """A broadcast on its way down a tree."""

    tree: int
    broadcast: Broadcast

    @property
    def size_bytes(self) -> int:
        return _FIELDS_BYTES + _ID_BYTES + self.broadcast.size_bytes


@dataclass(frozen=True, slots=True)
class Inventory:
    """Which unexpired broadcasts the sender has; the receiver asks for those it lacks, and sends what is not here."""

    tree: int
    settled: tuple[BroadcastId, ...]
    recent: tuple[BroadcastId, ...]  # perhaps on their way

    @property
    def size_bytes(self) -> int:
        return _FIELDS_BYTES + _ID_BYTES * (len(self.settled) + len(self.recent))


@dataclass(frozen=True, slots=True)
class WantedBroadcasts:
    """Asks for broadcasts."""

    tree: int
    ids: tuple[BroadcastId, ...]

    @property
    def size_bytes(self) -> int:
        return _FIELDS_BYTES + _ID_BYTES * len(self.ids)


TreeMessage: TypeAlias = Down | Inventory | WantedBroadcasts


@dataclass(frozen=True, slots=True)
class _Known:
    broadcast: Broadcast
    since_us: int
    end_us: int  # of its lifetime


class DistributionTree:
    """One node's part of the trees; `deliver` gets every broadcast once, also the node's own.

    Start it after its DHT node, stop it before or after; a host that has crashed is noticed.
    """

    __slots__ = (
        "_announced_to",
        "_announced_us",
        "_cancels",
        "_children",
        "_deliver",
        "_dht",
        "_kernel",
        "_known",
        "_numbers",
        "_passed_on",
        "_settings",
        "_timer",
    )

    def __init__(
        self,
        kernel: Kernel,
        dht: Dht,
        deliver: Callable[[Broadcast], None],
        settings: DistributionSettings = DistributionSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self._kernel, self._dht, self._deliver, self._settings = kernel, dht, deliver, settings
        self._numbers = 0  # not reset by a crash: ids must not come twice
        self._timer: Event = NO_EVENT
        self._cancels: list[Cancel] = []
        self._forget()
        dht.node.on_direct(self._received)

    def _forget(self) -> None:
        trees = range(self._settings.trees)
        self._children: list[dict[Address, int]] = [{} for _ in trees]  # until when, by address
        self._announced_to: list[Address | None] = [None for _ in trees]
        self._announced_us = [0 for _ in trees]
        self._known: dict[BroadcastId, _Known] = {}
        self._passed_on: set[tuple[BroadcastId, int]] = set()  # and the tree

    # The life of the node.

    def start(self) -> None:
        """Become a member of every tree."""
        self.stop()
        children, broadcasts = f"{self._settings.namespace}.children", f"{self._settings.namespace}.broadcasts"
        self._cancels = [
            self._dht.upcall(children, self._announced, passages=[Passage.MIDWAY, Passage.ARRIVED]),
            self._dht.new_data(broadcasts, self._at_root),
        ]
        self._timer = self._kernel.after(0, self._check, True)

    def stop(self) -> None:
        """Leave the trees and forget all broadcasts; others notice it by silence."""
        for cancel in self._cancels:
            cancel()
        self._cancels = []
        self._kernel.cancel(self._timer)
        self._forget()

    # What the application calls.

    def broadcast(self, payload: object, size_bytes: int, lifetime_us: int, *, everywhere: bool = False) -> BroadcastId:
        """Let every node get this that is up within its lifetime: over one tree, or over all for robustness."""
        if lifetime_us < 1:
            raise ValueError(f"lifetime_us must be positive: {lifetime_us}")
        if not self._cancels:
            raise ValueError(f"node {self._dht.node.address} is in no distribution tree: start it first")
        self._numbers += 1
        known_as = (self._dht.node.address, self._numbers)
        trees = range(self._settings.trees) if everywhere else (sum(known_as) % self._settings.trees,)
        broadcast = Broadcast(known_as, payload, size_bytes, lifetime_us)
        for tree in trees:
            self._send_to_root(tree, broadcast, self._kernel.now_us + lifetime_us, self._settings.tries)
        return known_as

    def children(self, tree: int = 0) -> list[Address]:
        """The children in a tree that have announced themselves lately."""
        now_us = self._kernel.now_us
        return [child for child, until_us in self._children[tree].items() if until_us > now_us]

    @property
    def live(self) -> list[Broadcast]:
        """The broadcasts whose lifetime is not over."""
        now_us = self._kernel.now_us
        return [known.broadcast for known in self._known.values() if known.end_us > now_us]

    # Announcements.

    def _check(self, is_first: bool = False) -> None:
        if not self._dht.node.is_up:
            self.stop()
            return
        now_us, settings = self._kernel.now_us, self._settings
        is_ready = self._dht.node.router.is_ready
        if settings.follows_routes or not is_ready:
            self._timer = self._kernel.after(settings.check_us, self._check)
        if not is_ready:
            return
        for tree in range(settings.trees):
            parent = self._dht.node.router.next_hop(settings.root(tree))
            if parent == self._announced_to[tree] and now_us - self._announced_us[tree] < settings.renew_us:
                continue
            self._announced_to[tree] = parent
            # Renewals are spread over the period, or all nodes that began together would announce themselves together.
            spread_us = self._kernel.random.randrange(settings.renew_us) if is_first else 0
            self._announced_us[tree] = now_us - spread_us
            if parent is not None:
                self._announce(tree)
        if self._known:
            self._forget_expired(now_us)
        if not settings.follows_routes:
            # Networks at rest are the large ones: with a look of each node every few seconds, the cost of a run would
            # grow with nodes times time, and the time that one node needs to take all results grows with the nodes.
            due_us = min(self._announced_us) + settings.renew_us - now_us
            self._timer = self._kernel.after(-(-due_us // settings.check_us) * settings.check_us, self._check)

    def _announce(self, tree: int) -> None:
        settings, here = self._settings, self._dht.node.address
        self._dht.send(
            f"{settings.namespace}.children",
            str(tree),
            str(here),
            Announcement(here, self._digest()),
            settings.child_lifetime_us,
            _ANNOUNCEMENT_BYTES,
            target=settings.root(tree),
        )

    def _announced(self, item: Item) -> None:
        """A child: it is recorded, and its message goes no further."""
        announcement, tree = item.value, int(item.key)
        assert isinstance(announcement, Announcement)
        if announcement.child == self._dht.node.address:
            return
        self._children[tree][announcement.child] = self._kernel.now_us + self._settings.child_lifetime_us
        if announcement.digest != self._digest():
            settled = self._settled()
            recent = tuple(each.id for each in self.live if each.id not in settled)
            self._tell(announcement.child, Inventory(tree, tuple(settled), recent))

    def _settled(self) -> dict[BroadcastId, _Known]:
        """The unexpired broadcasts that others should have by now."""
        now_us = self._kernel.now_us
        before_us = now_us - self._settings.settle_us
        return {
            known_as: known
            for known_as, known in self._known.items()
            if known.since_us <= before_us and known.end_us > now_us
        }

    def _digest(self) -> BroadcastDigest:
        settled, mixed = self._settled(), 0
        for known_as in settled:
            mixed ^= hash(known_as)  # of whole numbers: the same in every process
        return BroadcastDigest(len(settled), mixed)

    def _forget_expired(self, now_us: int) -> None:
        before_us = now_us - self._settings.remember_us
        for expired in [known_as for known_as, known in self._known.items() if known.end_us <= before_us]:
            del self._known[expired]
            self._passed_on.difference_update((expired, tree) for tree in range(self._settings.trees))
        for children in self._children:
            for child in [child for child, until_us in children.items() if until_us <= now_us]:
                del children[child]

    # Broadcasts.

    def _send_to_root(self, tree: int, broadcast: Broadcast, end_us: int, tries: int) -> None:
        """Again and again until it has come back: whoever carried it may have crashed."""
        left_us = end_us - self._kernel.now_us
        if not self._cancels or broadcast.id in self._known or left_us <= 0 or not tries:
            return
        settings = self._settings
        self._dht.send(
            f"{settings.namespace}.broadcasts",
            str(tree),
            f"{broadcast.id[0]}.{broadcast.id[1]}",
            Broadcast(broadcast.id, broadcast.payload, broadcast.size_bytes, left_us),
            min(left_us, self._dht.lifetime_max_us),
            _ID_BYTES + broadcast.size_bytes,
            target=settings.root(tree),
        )
        self._kernel.after(settings.retry_us, self._send_to_root, tree, broadcast, end_us, tries - 1)

    def _at_root(self, item: Item) -> None:
        """This node is the root, or has become it: then the object has moved here."""
        assert isinstance(item.value, Broadcast)
        sent = item.value
        age_us = min(sent.lifetime_us, self._dht.lifetime_max_us) - item.lifetime_us
        self._spread(int(item.key), Broadcast(sent.id, sent.payload, sent.size_bytes, sent.lifetime_us - age_us))

    def _spread(self, tree: int, broadcast: Broadcast) -> None:
        """Send it down, unless that has been done, and deliver it, unless another tree was faster."""
        if (broadcast.id, tree) in self._passed_on:
            return
        self._passed_on.add((broadcast.id, tree))
        now_us = self._kernel.now_us
        is_new = broadcast.id not in self._known
        if is_new:
            self._known[broadcast.id] = _Known(broadcast, now_us, now_us + broadcast.lifetime_us)
        elif self._known[broadcast.id].end_us <= now_us:
            return
        self._send_down(tree, broadcast)
        if is_new:
            self._deliver(broadcast)

    def _send_down(self, tree: int, broadcast: Broadcast) -> None:
        message = Down(tree, broadcast)
        size_bytes, direct = message.size_bytes, self._dht.node.direct
        for child in self.children(tree):

            def is_gone(child: Address = child) -> None:
                self._children[tree].pop(child, None)

            direct(child, message, size_bytes, is_gone)

    def _received(self, sender: Address, payload: object) -> None:
        if not isinstance(payload, TreeMessage) or not self._cancels:
            return
        match payload:
            case Down(tree, broadcast):
                self._spread(tree, broadcast)
            case Inventory(tree, settled, recent):
                lacking = tuple(known_as for known_as in settled if known_as not in self._known)
                if lacking:
                    self._tell(sender, WantedBroadcasts(tree, lacking))
                for known_as, known in self._settled().items():
                    if known_as not in settled and known_as not in recent:
                        self._give(sender, tree, known)
            case WantedBroadcasts(tree, ids):
                for known_as in ids:
                    if known_as in self._known:
                        self._give(sender, tree, self._known[known_as])

    def _give(self, address: Address, tree: int, known: _Known) -> None:
        left_us = known.end_us - self._kernel.now_us
        if left_us > 0:
            given = known.broadcast
            self._tell(address, Down(tree, Broadcast(given.id, given.payload, given.size_bytes, left_us)))

    def _tell(self, address: Address, message: TreeMessage) -> None:
        self._dht.node.direct(address, message, message.size_bytes)
