"""What every overlay offers: who is next on the way to an identifier, and who takes over when a node is gone."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

Address: TypeAlias = int  # of a host on the simulated Internet
Arc: TypeAlias = tuple[int, int]  # the points (after, upto] of the circle


class Router(Protocol):
    """One dynamic node's part of an overlay. It sends maintenance messages of its own; all else is asked of it."""

    address: Address
    identifier: int

    def start(self, bootstrap: Address | None) -> None:
        """Join the overlay through a node that is in it, or begin one."""

    def leave(self) -> None:
        """Leave gracefully: neighbours learn of it at once, and no more maintenance messages are sent."""

    def stop(self) -> None:
        """Crash: cancel every timer, tell nobody."""

    def receive(self, sender: Address, message: object) -> bool:
        """Take a maintenance message; False if it is none of this router's."""

    def next_hop(self, target: int) -> Address | None:
        """The next node towards the one responsible for a point; None if that is this node."""

    def suspect(self, address: Address) -> None:
        """A message to this node was not delivered: do not name it again until it is heard of."""

    def successors(self, count: int) -> Sequence[Address]:
        """Up to so many other nodes, in the order in which they would take over this node's points."""

    def watch(self, changed: Callable[[Arc], None]) -> None:
        """From now on call `changed(arc)` whenever the arc this node is responsible for is another than before."""

    @property
    def arc(self) -> Arc:
        """The points this node is responsible for, as far as it knows; (x, x] is the whole circle."""

    @property
    def is_ready(self) -> bool:
        """Whether it has joined."""
