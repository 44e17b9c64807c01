"""Who is whose child in an aggregation tree whose in-degree is limited (PIER, section 4.2.2, tree routing).

Decisions only: no clock, no network. A node that hears of a new child when all its slots are taken names another parent
for it: the active child of lowest height, and among those the one with most free slots below it. Whoever is sent to a
child is counted there at once and not only when the child reports it: else all that come in one epoch would be sent to
the same child.
"""

from dataclasses import dataclass
from typing import TypeAlias

from watersmeet.sim.overlays.router import Address

IN_DEGREE_MAX = 64


@dataclass(frozen=True, slots=True)
class Standing:
    """What a node says of itself with each message to its parent."""

    height: int = 0  # 0: no active children
    free_slots: int = IN_DEGREE_MAX  # how many more children it and all below it can take


@dataclass(frozen=True, slots=True)
class Accepted:
    """The sender is an active child."""


@dataclass(frozen=True, slots=True)
class Redirected:
    """The sender shall use another parent from now on."""

    parent: Address


Decision: TypeAlias = Accepted | Redirected


@dataclass(frozen=True, slots=True)
class Child:
    """An active child: what it said last, and when."""

    standing: Standing
    heard_us: int


class ChildMembership:
    """The active children of one node.

    >>> node = ChildMembership(in_degree_max=2)
    >>> node.hear(7, Standing(height=1), now_us=0), node.hear(8, Standing(height=0), now_us=0)
    (Accepted(), Accepted())
    >>> node.hear(9, Standing(), now_us=0)
    Redirected(parent=8)
    >>> node.standing
    Standing(height=2, free_slots=127)
    """

    __slots__ = ("_children", "_in_degree_max")

    def __init__(self, in_degree_max: int = IN_DEGREE_MAX) -> None:
        if in_degree_max < 1:
            raise ValueError(f"in_degree_max must be at least 1: {in_degree_max}")
        self._in_degree_max = in_degree_max
        self._children: dict[Address, Child] = {}

    @property
    def children(self) -> dict[Address, Child]:
        """The active children."""
        return self._children

    @property
    def standing(self) -> Standing:
        """Height and free slots: those that the children have reported, and those of this node itself."""
        reported = [child.standing for child in self._children.values()]
        height = 1 + max(each.height for each in reported) if reported else 0
        own = self._in_degree_max - len(self._children)
        return Standing(height, own + sum(each.free_slots for each in reported))

    def hear(self, child: Address, standing: Standing, now_us: int) -> Decision:
        """A message of a child has come, with what it says of itself."""
        if child in self._children or len(self._children) < self._in_degree_max:
            self._children[child] = Child(standing, now_us)
            return Accepted()
        parent = self._replacement()
        present = self._children[parent]
        expected = Standing(max(present.standing.height, 1 + standing.height), max(0, present.standing.free_slots - 1))
        self._children[parent] = Child(expected, present.heard_us)
        return Redirected(parent)

    def expire(self, before_us: int) -> list[Address]:
        """Drop children that were last heard of before then, and say which."""
        silent = [address for address, child in self._children.items() if child.heard_us < before_us]
        for address in silent:
            del self._children[address]
        return silent

    def forget(self, child: Address) -> None:
        """Drop one that has gone elsewhere or does not answer."""
        self._children.pop(child, None)

    def _replacement(self) -> Address:
        """A child that has room, if any has: else the next one is asked to find it further down all the same."""

        def rank(address: Address) -> tuple[bool, int, int, Address]:
            standing = self._children[address].standing
            return standing.free_slots <= 0, standing.height, -standing.free_slots, address

        return min(self._children, key=rank)
