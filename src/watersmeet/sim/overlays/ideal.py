"""An ideal overlay: every node knows every other at once and for nothing, so each message makes one hop.

It is what protocols are measured against, and what keeps tests of the layers above apart from those of routing. A point
belongs to the first node at or after it, as in Chord.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from watersmeet.sim.overlays.identifiers import ID_BITS, SPACE
from watersmeet.sim.overlays.router import Address, Arc


class Directory:
    """Who is in the overlay now: the common knowledge of its nodes."""

    __slots__ = ("_identifiers", "_routers")

    def __init__(self) -> None:
        self._identifiers: list[int] = []  # sorted
        self._routers: dict[int, IdealRouter] = {}  # by identifier

    def __len__(self) -> int:
        return len(self._identifiers)

    def add(self, router: "IdealRouter") -> None:
        """A node joins; it and the one whose points it takes over learn of it at once."""
        if self._routers.setdefault(router.identifier, router) is not router:
            raise ValueError(f"two nodes of an overlay have the same identifier: {router.identifier}")
        place = bisect_left(self._identifiers, router.identifier)
        self._identifiers.insert(place, router.identifier)
        self._tell(place)
        if len(self._identifiers) > 1:
            self._tell(place + 1)

    def remove(self, router: "IdealRouter") -> None:
        """A node has gone; the next one takes over at once."""
        del self._routers[router.identifier]
        place = bisect_left(self._identifiers, router.identifier)
        del self._identifiers[place]
        if self._identifiers:
            self._tell(place)

    def owner(self, target: int) -> "IdealRouter":
        """The node responsible for a point."""
        return self.at(bisect_left(self._identifiers, target))

    def at(self, place: int) -> "IdealRouter":
        """The node at a place in the order of identifiers, counted on over the end."""
        return self._routers[self._identifiers[place % len(self._identifiers)]]

    def place(self, identifier: int) -> int:
        """How many nodes have a lower identifier."""
        return bisect_left(self._identifiers, identifier)

    def arc(self, identifier: int) -> Arc:
        """The points of a node."""
        place = bisect_left(self._identifiers, identifier)
        return self._identifiers[place - 1], identifier

    def _tell(self, place: int) -> None:
        router = self.at(place)
        for changed in router.watchers:
            changed(router.arc)


class IdealRouter:
    """One node of an ideal overlay, as `Router` has it; it sends no messages."""

    __slots__ = ("_directory", "address", "identifier", "is_ready", "watchers")

    def __init__(self, directory: Directory, address: Address, identifier: int) -> None:
        if not 0 <= identifier < SPACE:
            raise ValueError(f"an identifier has {ID_BITS} bits: {identifier}")
        self.address, self.identifier = address, identifier
        self.is_ready = False
        self.watchers: list[Callable[[Arc], None]] = []
        self._directory = directory

    def start(self, bootstrap: Address | None) -> None:
        """Be in the directory."""
        if not self.is_ready:
            self.is_ready = True
            self._directory.add(self)

    def leave(self) -> None:
        """Be out of the directory."""
        if self.is_ready:
            self.is_ready = False
            self._directory.remove(self)

    stop = leave

    def receive(self, sender: Address, message: object) -> bool:
        """There are no maintenance messages."""
        return False

    def next_hop(self, target: int) -> Address | None:
        """The owner itself; None if that is this node, or if there is nobody."""
        if not len(self._directory):
            return None
        owner = self._directory.owner(target)
        return None if owner is self else owner.address

    def suspect(self, address: Address) -> None:
        """Nobody is suspected: the directory is right."""

    def successors(self, count: int) -> Sequence[Address]:
        """The nodes that follow."""
        directory = self._directory
        place = directory.place(self.identifier) + self.is_ready
        others = min(count, len(directory) - self.is_ready)
        return [directory.at(place + step).address for step in range(others)]

    def watch(self, changed: Callable[[Arc], None]) -> None:
        """Call `changed(arc)` from now on whenever the arc changes."""
        self.watchers.append(changed)

    @property
    def arc(self) -> Arc:
        """From the node before to this one."""
        return self._directory.arc(self.identifier) if self.is_ready else (self.identifier - 1, self.identifier)
