"""The static Chord: what the protocol converges to on N nodes, as one sorted array of identifiers.

Finger i of n is successor(n + 2^i); a message goes to the closest finger before its target, and last to the owner.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from watersmeet.sim.overlays.identifiers import ID_BITS, SPACE
from watersmeet.sim.overlays.router import Address

_NO_COUNTS: NDArray[np.int64] = np.empty(0, dtype=np.int64)
_LONGEST_PATH = ID_BITS + 1  # each hop but the last at least halves the distance to the owner's predecessor

# Fingers are not stored. Let `before` be the last node before the target. Finger i is not past `before` exactly if 2^i
# is at most the distance to it, so the closest one is known by its exponent and found with one binary search. A table
# of fingers was measured: two to three times as fast up to 10^4 nodes, where a lookup takes under half a microsecond
# either way, but slower from 10^5 on, and 160 MB for 10^6 nodes against 8 MB of identifiers.


@njit(cache=True)
def _at_or_after(identifiers, point):  # type: ignore[no-untyped-def]
    low, high = 0, identifiers.size
    while low < high:
        middle = (low + high) >> 1
        if identifiers[middle] < point:
            low = middle + 1
        else:
            high = middle
    return 0 if low == identifiers.size else low


@njit(cache=True)
def _next(identifiers, at, owner):  # type: ignore[no-untyped-def]
    before = (owner if owner > 0 else identifiers.size) - 1
    if at == before:
        return owner
    # The highest bit of the distance, by halving the number of bits that are still in question.
    left = identifiers[before] - identifiers[at]
    exponent = np.uint64(0)
    for width in (32, 16, 8, 4, 2, 1):
        if left >> np.uint64(width):
            left >>= np.uint64(width)
            exponent += np.uint64(width)
    return _at_or_after(identifiers, identifiers[at] + (np.uint64(1) << exponent))


@njit(cache=True)
def _walk(identifiers, sources, targets, hops, sent):  # type: ignore[no-untyped-def]
    for number in range(targets.size):
        at = sources[number]
        owner = _at_or_after(identifiers, targets[number])
        count = 0
        while at != owner:
            if sent.size:
                sent[at] += 1
            at = _next(identifiers, at, owner)
            count += 1
        hops[number] = count


@njit(cache=True)
def _path(identifiers, source, target, visited):  # type: ignore[no-untyped-def]
    at = np.int64(source)
    owner = _at_or_after(identifiers, target)
    count = 0
    while at != owner:
        at = _next(identifiers, at, owner)
        visited[count] = at
        count += 1
    return count


@njit(cache=True)
def _spread(identifiers, source, targets, hops, sent):  # type: ignore[no-untyped-def]
    # In the order of their owners clockwise from the source, the messages that share a hop stand side by side: the
    # exponent of the next finger only grows with the distance. So a group is a range, and the ranges are a stack.
    nodes, count = identifiers.size, targets.size
    clockwise = np.empty(count, np.int64)
    for number in range(count):
        clockwise[number] = (_at_or_after(identifiers, targets[number]) - source) % nodes
    order = np.argsort(clockwise)
    stack = np.empty((count + 1, 4), np.int64)
    stack[0] = (source, 0, count, 0)
    height = 1
    while height:
        height -= 1
        at, begin, end, depth = stack[height]
        while begin < end and (clockwise[order[begin]] + source) % nodes == at:
            hops[order[begin]] = depth
            begin += 1
        while begin < end:
            first = begin
            towards = _next(identifiers, at, (clockwise[order[first]] + source) % nodes)
            begin += 1
            while begin < end and _next(identifiers, at, (clockwise[order[begin]] + source) % nodes) == towards:
                begin += 1
            sent[at] += 1
            stack[height] = (towards, first, begin, depth + 1)
            height += 1


class Ring:
    """The nodes of a converged Chord; a node's number is its position in the order of identifiers.

    >>> ring = Ring([10, 20, 30, 40])
    >>> ring.owner(11), ring.owner(20), ring.owner(41), ring.path(0, 35)
    (1, 1, 0, [2, 3])
    """

    __slots__ = ("_visited", "addresses", "identifiers")

    def __init__(self, identifiers: ArrayLike, addresses: Sequence[Address] | NDArray[np.int64] | None = None) -> None:
        given = np.asarray(identifiers, dtype=np.uint64)
        if given.ndim != 1 or not given.size:
            raise ValueError("a ring is a list of one identifier or more")
        order = np.argsort(given, kind="stable")
        self.identifiers: NDArray[np.uint64] = given[order]
        if (self.identifiers[1:] == self.identifiers[:-1]).any():
            raise ValueError("two nodes of a ring have the same identifier")
        where = np.arange(given.size) if addresses is None else np.asarray(addresses, dtype=np.int64)[order]
        self.addresses: NDArray[np.int64] = where
        self.identifiers.flags.writeable = self.addresses.flags.writeable = False
        self._visited = np.empty(_LONGEST_PATH, dtype=np.int64)

    @classmethod
    def random(cls, nodes: int, seed: int) -> "Ring":
        """A ring of so many nodes at uniformly random points; addresses are the node numbers."""
        generator = np.random.default_rng(seed)
        points = np.unique(generator.integers(SPACE, size=nodes, dtype=np.uint64))
        while points.size < nodes:
            more = generator.integers(SPACE, size=nodes - points.size, dtype=np.uint64)
            points = np.unique(np.concatenate((points, more)))
        return cls(points)

    def __len__(self) -> int:
        return self.identifiers.size

    def owner(self, target: int) -> int:
        """The node responsible for a point: the first one at or after it, clockwise."""
        number = int(self.identifiers.searchsorted(np.uint64(target)))
        return number if number < self.identifiers.size else 0

    def owners(self, targets: ArrayLike) -> NDArray[np.int64]:
        """The nodes responsible for many points."""
        numbers = self.identifiers.searchsorted(np.asarray(targets, dtype=np.uint64)).astype(np.int64, copy=False)
        numbers[numbers == self.identifiers.size] = 0
        return numbers

    def finger(self, node: int, exponent: int) -> int:
        """The first node that is 2^exponent or more after this one."""
        return self.owner((int(self.identifiers[node]) + (1 << exponent)) % SPACE)

    def path(self, source: int, target: int) -> list[int]:
        """The nodes a message visits after its source, its owner last; nothing if the source is the owner."""
        if not 0 <= source < self.identifiers.size:
            raise IndexError(self._numbers())
        visited = self._visited
        count: int = _path(self.identifiers, source, np.uint64(target), visited)
        nodes: list[int] = visited[:count].tolist()
        return nodes

    def hops(self, sources: ArrayLike, targets: ArrayLike) -> NDArray[np.int64]:
        """How many hops each message makes."""
        return self.trace(sources, targets, _NO_COUNTS)

    def trace(self, sources: ArrayLike, targets: ArrayLike, sent: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many hops each message makes; `sent` gets 1 for each time a node sends one of them."""
        begins, ends = np.broadcast_arrays(np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.uint64))
        begins, ends = np.ascontiguousarray(begins), np.ascontiguousarray(ends)
        if begins.size and not 0 <= begins.min() <= begins.max() < len(self):
            raise IndexError(self._numbers())
        if sent is not _NO_COUNTS and sent.shape != self.identifiers.shape:
            raise ValueError("sent must have a count for each node")
        hops = np.empty(ends.size, dtype=np.int64)
        _walk(self.identifiers, begins, ends, hops, sent)
        return hops

    def grouped(self, source: int, targets: ArrayLike, sent: NDArray[np.int64]) -> NDArray[np.int64]:
        """Hops of messages that leave together: as long as they have the same next hop, they travel as one message.

        `sent` gets 1 for each message that goes over the network.
        """
        if not 0 <= source < self.identifiers.size:
            raise IndexError(self._numbers())
        if sent.shape != self.identifiers.shape:
            raise ValueError("sent must have a count for each node")
        ends = np.ascontiguousarray(targets, dtype=np.uint64)
        hops = np.empty(ends.size, dtype=np.int64)
        _spread(self.identifiers, source, ends, hops, sent)
        return hops

    def _numbers(self) -> str:
        return f"nodes are numbered 0 to {len(self) - 1}"
