"""A tree towards a root point over the DHT: messages go up to parents that may see, combine or stop them.

The parent is the next hop of the overlay. With `in_degree_max` a node that has enough children sends new ones to one of
them (tree routing); with `is_stable` a node stays with the parent of its first message until that does not answer, and
not with whatever hop the overlay now prefers. A payload that comes with a redirected message is delivered all the same;
the redirect takes effect with the next epoch (`turn`), and until then the child is not told again.

Redirects follow what children have said some time ago, so for a while there can be a cycle. In a cycle heights grow
with every message; a node whose height passes `height_max` returns to the overlay's route, which has none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from watersmeet.sim.dht.callbacks import Cancel
from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht, Passage
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.node import ENVELOPE_BYTES
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.aggregation.membership import IN_DEGREE_MAX, ChildMembership, Redirected, Standing

_STANDING_BYTES = 2 + 4
_NAME_BYTES = 8
_DHT_BYTES = ENVELOPE_BYTES + 1 + 30 + 3  # what routing adds to a message: also to one for a parent that is known
Received: TypeAlias = Callable[[Address, object, bool], None]  # the child, its payload, whether it stays a child


@dataclass(frozen=True, slots=True)
class AggregationTreeSettings:
    """How children find their parents."""

    in_degree_max: int | None = IN_DEGREE_MAX  # None: whoever the overlay sends
    is_stable: bool = True
    child_timeout_us: int = 15_000_000  # a child that is silent for so long is none any more
    height_max: int = 40

    def __post_init__(self) -> None:
        if self.in_degree_max is not None and self.in_degree_max < 1:
            raise ValueError(f"in_degree_max must be at least 1, or None: {self.in_degree_max}")
        for name in ("child_timeout_us", "height_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Up:
    """A payload on its way to the parent."""

    tree: str
    child: Address
    standing: Standing
    payload: object
    payload_bytes: int

    @property
    def size_bytes(self) -> int:
        return _NAME_BYTES + _STANDING_BYTES + self.payload_bytes


@dataclass(frozen=True, slots=True)
class UseParent:
    """To a child: send to another parent from now on."""

    tree: str
    parent: Address

    @property
    def size_bytes(self) -> int:
        return _NAME_BYTES + 6


class AggregationTree:
    """One node's place in a tree; `received(child, payload, stays)` gets what children send."""

    __slots__ = (
        "_cancels",
        "_dht",
        "_kernel",
        "_members",
        "_name",
        "_namespace",
        "_parent",
        "_received",
        "_redirect",
        "_redirected",
        "_root",
        "_settings",
        "redirects_total",
    )

    def __init__(
        self,
        kernel: Kernel,
        dht: Dht,
        name: str,
        root: int,
        received: Received,
        settings: AggregationTreeSettings = AggregationTreeSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self._kernel, self._dht, self._name, self._root = kernel, dht, name, root
        self._received, self._settings, self._namespace = received, settings, f"{name}.up"
        self._cancels: list[Cancel]
        self.redirects_total = 0
        self._forget()
        self._cancels = [
            dht.upcall(self._namespace, self._passing, passages=[Passage.MIDWAY, Passage.ARRIVED]),
            dht.node.on_direct(self._direct),
        ]

    def _forget(self) -> None:
        # Without a limit nobody is turned away: more nodes than there are addresses cannot come.
        limit = self._settings.in_degree_max
        self._members = ChildMembership(limit if limit is not None else 1 << 32)
        self._parent: Address | None = None  # None: the overlay's next hop
        self._redirect: Address | None = None  # the parent from the next epoch on, if another was named
        self._redirected: set[Address] = set()  # children that were sent elsewhere in this epoch

    def stop(self) -> None:
        """Leave the tree; children notice it when they cannot reach this node, the parent by silence."""
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        self._forget()

    @property
    def is_root(self) -> bool:
        """Whether this node is responsible for the root point."""
        router = self._dht.node.router
        return router.is_ready and router.next_hop(self._root) is None

    @property
    def parent(self) -> Address | None:
        """Whom the next message goes to; None at the root."""
        if self.is_root:
            return None
        return self._parent if self._parent is not None else self._dht.node.router.next_hop(self._root)

    @property
    def children(self) -> list[Address]:
        """The active children."""
        self._members.expire(self._kernel.now_us - self._settings.child_timeout_us)
        return list(self._members.children)

    @property
    def standing(self) -> Standing:
        """What it tells its parent."""
        self._members.expire(self._kernel.now_us - self._settings.child_timeout_us)
        return self._members.standing

    def turn(self) -> None:
        """A new epoch begins: a redirect takes effect, and silent children are dropped."""
        self._members.expire(self._kernel.now_us - self._settings.child_timeout_us)
        self._redirected.clear()
        if self._redirect is not None:
            self._parent, self._redirect = self._redirect, None

    def send_up(self, payload: object, size_bytes: int) -> bool:
        """Send a payload to the parent; False at the root, which has none."""
        parent = self.parent
        if parent is None:
            return False
        standing = self._members.standing
        if standing.height > self._settings.height_max:
            self._parent = None
        node = self._dht.node
        message = Up(self._name, node.address, standing, payload, size_bytes)
        if self._parent is not None:
            failed = partial(self._unreachable, self._parent, payload, size_bytes)
            node.direct(self._parent, message, _DHT_BYTES + len(self._namespace) + message.size_bytes, failed)
            return True
        if self._settings.is_stable:
            self._parent = parent
        self._dht.send(self._namespace, "", "", message, 1, message.size_bytes, target=self._root)
        return True

    def _unreachable(self, parent: Address, payload: object, size_bytes: int) -> None:
        if self._parent == parent:
            self._parent = None
        self._members.forget(parent)
        if self._cancels:
            self.send_up(payload, size_bytes)

    def _passing(self, item: Item) -> None:
        """The first hop of a routed message is the parent: it goes no further."""
        assert isinstance(item.value, Up)
        self._take(item.value)

    def _direct(self, sender: Address, payload: object) -> None:
        if not self._cancels:
            return
        if isinstance(payload, Up) and payload.tree == self._name:
            self._take(payload)
        elif isinstance(payload, UseParent) and payload.tree == self._name:
            self._redirect = payload.parent

    def _take(self, message: Up) -> None:
        child, stays = message.child, message.child not in self._redirected
        if stays and child != self._dht.node.address:
            decision = self._members.hear(child, message.standing, self._kernel.now_us)
            if isinstance(decision, Redirected):
                stays = False
                self._redirected.add(child)
                self.redirects_total += 1
                redirect = UseParent(self._name, decision.parent)
                self._dht.node.direct(child, redirect, redirect.size_bytes)
        self._received(child, message.payload, stays)
