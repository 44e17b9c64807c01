"""A static Bamboo overlay as arrays (PIER, section 2.3.1): leaf sets, and prefix routing tables in base 16.

A point belongs to the numerically closest node of the circle; one midway between two belongs to the clockwise one.
Each hop matches more digits of the target, or as many and is closer to it; the last one, within a leaf set, is closer.
"""

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.overlays.identifiers import ID_BITS, SPACE
from watersmeet.sim.overlays.router import Arc

DIGIT_BITS = 4
BASE = 1 << DIGIT_BITS
DIGITS = ID_BITS // DIGIT_BITS

Identifiers: TypeAlias = NDArray[np.uint64]
Positions: TypeAlias = NDArray[np.int64]  # of nodes, by identifier

_NOBODY = -1
_NO_COUNTS: Positions = np.empty(0, np.int64)
_ROWS_AT_ONCE = 1 << 16  # while entries are chosen: bounds the memory beyond what is kept


def common_digits(first: int, second: int) -> int:
    """How many leading digits two points share.

    >>> common_digits(0xAB00_0000_0000_0000, 0xABC0_0000_0000_0000)
    2
    """
    return (ID_BITS - (first ^ second).bit_length()) // DIGIT_BITS


def digit_at(point: int, row: int) -> int:
    """A digit of a point, counted from the leading one.

    >>> digit_at(0xAB00_0000_0000_0000, 1)
    11
    """
    return point >> ID_BITS - DIGIT_BITS * (row + 1) & BASE - 1


def arc_between(before: int, identifier: int, after: int) -> Arc:
    """The points closest to a node, given its two neighbours.

    >>> arc_between(10, 14, 19)
    (11, 16)
    """
    return (
        (before + ((identifier - before - 1) % SPACE) // 2) % SPACE,
        (identifier + ((after - identifier - 1) % SPACE) // 2) % SPACE,
    )


# The compiled part. A whole number of the other sign would turn identifiers into floats: all constants are unsigned.
_ONE_DIGIT = np.uint64(DIGIT_BITS)
_FIRST_DIGIT = np.uint64(ID_BITS - DIGIT_BITS)
_DIGIT_MASK = np.uint64(BASE - 1)
_ZERO = np.uint64(0)


@njit(cache=True)
def _shared(first: np.uint64, second: np.uint64) -> int:
    difference = first ^ second
    if difference == _ZERO:
        return DIGITS
    count = 0
    while difference >> _FIRST_DIGIT == _ZERO:
        difference <<= _ONE_DIGIT
        count += 1
    return count


@njit(cache=True)
def _away(first: np.uint64, second: np.uint64) -> np.uint64:
    clockwise = second - first
    return min(clockwise, first - second)


@njit(cache=True)
def _rows_needed(ids: Identifiers, rows_from: Positions) -> None:
    """Where the rows of each node start: it has one for each prefix of its own that another node shares."""
    n = ids.size
    shared_before = -1
    for i in range(n):
        shared_after = _shared(ids[i], ids[i + 1]) if i + 1 < n else -1
        rows_from[i + 1] = rows_from[i] + max(shared_before, shared_after) + 1
        shared_before = shared_after


@njit(cache=True)
def _group(ids: Identifiers, rows_from: Positions, group_of: NDArray[np.int32], bounds: NDArray[np.int32]) -> int:
    """Nodes with the same prefix have the same candidates: find each such group, and where its next digits begin."""
    groups = 0
    open_group = np.full(DIGITS + 1, _NOBODY, np.int64)
    shared_before = -1
    for i in range(ids.size):
        for row in range(rows_from[i + 1] - rows_from[i]):
            if row > shared_before:
                open_group[row] = groups
                bounds[groups, 0] = i
                groups += 1
            group = open_group[row]
            group_of[rows_from[i] + row] = group
            digit = (ids[i] >> (_FIRST_DIGIT - _ONE_DIGIT * np.uint64(row))) & _DIGIT_MASK
            bounds[group, np.int64(digit) + 1] += 1
        shared_before = _shared(ids[i], ids[i + 1]) if i + 1 < ids.size else -1
    for group in range(groups):
        for digit in range(BASE):
            bounds[group, digit + 1] += bounds[group, digit]
    return groups


@njit(cache=True)
def _next(
    ids: Identifiers, rows_from: Positions, table: NDArray[np.int32], leaves: int, at: int, target: np.uint64
) -> int:
    """The next node on the way, or the node itself if it is responsible."""
    n = ids.size
    first = ids[(at - leaves) % n]
    if n <= 2 * leaves + 1 or target - first <= ids[(at + leaves) % n] - first:
        # The closest leaf is the closest node of all, so searching all is the same and shorter.
        after = np.searchsorted(ids, target) % n
        before = (after - 1) % n
        return int(after if ids[after] - target <= target - ids[before] else before)
    own = ids[at]
    row = _shared(own, target)
    rows = rows_from[at + 1] - rows_from[at]
    if row < rows:
        digit = np.int64((target >> (_FIRST_DIGIT - _ONE_DIGIT * np.uint64(row))) & _DIGIT_MASK)
        entry = table[(rows_from[at] + row) * BASE + digit]
        if entry != _NOBODY:
            return int(entry)
    # Nobody has a longer prefix. Rows before this one have shorter prefixes; the leaf towards the target always serves.
    best, best_away = at, _away(own, target)
    for slot in range((rows_from[at] + min(row, rows)) * BASE, rows_from[at + 1] * BASE):
        entry = table[slot]
        if entry != _NOBODY and _away(ids[entry], target) < best_away:
            best, best_away = entry, _away(ids[entry], target)
    for step in range(-leaves, leaves + 1):
        leaf = (at + step) % n
        if _shared(ids[leaf], target) >= row and _away(ids[leaf], target) < best_away:
            best, best_away = leaf, _away(ids[leaf], target)
    return best


@njit(cache=True)
def _walk(
    ids: Identifiers,
    rows_from: Positions,
    table: NDArray[np.int32],
    leaves: int,
    sources: Positions,
    targets: Identifiers,
    hops: Positions,
    sent: Positions,
) -> None:
    for i in range(sources.size):
        at = sources[i]
        following = _next(ids, rows_from, table, leaves, at, targets[i])
        while following != at:
            hops[i] += 1
            if sent.size:
                sent[at] += 1
            at = following
            following = _next(ids, rows_from, table, leaves, at, targets[i])


@njit(cache=True)
def _spread(
    ids: Identifiers,
    rows_from: Positions,
    table: NDArray[np.int32],
    leaves: int,
    source: int,
    targets: Identifiers,
    hops: Positions,
    sent: Positions,
) -> None:
    # A group of messages at one node is a range of `order`. It is split into ranges with the same next hop, on a stack.
    order = np.empty(targets.size, np.int64)
    for number in range(targets.size):
        order[number] = number
    towards = np.empty(targets.size, np.int64)
    nodes = np.empty(targets.size + 1, np.int64)
    begins = np.empty_like(nodes)
    ends = np.empty_like(nodes)
    nodes[0], begins[0], ends[0] = source, 0, targets.size
    height = 1
    while height:
        height -= 1
        at, begin, end = nodes[height], begins[height], ends[height]
        for place in range(begin, end):
            towards[order[place]] = _next(ids, rows_from, table, leaves, at, targets[order[place]])
        while begin < end:
            first, following = begin, towards[order[begin]]
            for place in range(begin, end):
                number = order[place]
                if towards[number] == following:
                    order[place], order[begin] = order[begin], number
                    begin += 1
                    hops[number] += following != at
            if following != at:
                sent[at] += 1
                nodes[height], begins[height], ends[height] = following, first, begin
                height += 1


class Prefixes:
    """Who routes to whom once all nodes know of each other. Nodes are positions in the order of their identifiers.

    With a latency model each table entry is the nearest of up to `candidates` nodes spread evenly over the range of
    its prefix from a random start; without one it is the first of these. Latencies are those between `addresses`, given
    in the order of the identifiers; without them the address of a node is its position.

    >>> prefixes = Prefixes([identifier << 56 for identifier in range(0, 256, 4)])
    >>> prefixes.owner(0x51 << 56), prefixes.owner(0x52 << 56), prefixes.path(0, 0xFF << 56), prefixes.path(0, 9 << 56)
    (20, 21, [], [2])
    """

    __slots__ = ("_rows_from", "_table", "addresses", "identifiers", "leaves_a_side")

    def __init__(
        self,
        identifiers: ArrayLike,
        latency: Latency | None = None,
        *,
        addresses: ArrayLike | None = None,
        leaves_a_side: int = 4,
        candidates: int = 16,
        seed: int = 0,
    ) -> None:
        given = np.asarray(identifiers, np.uint64)
        if given.ndim != 1 or not given.size:
            raise ValueError("an overlay is a list of one identifier or more")
        if leaves_a_side < 1 or candidates < 1:
            raise ValueError(f"leaves_a_side and candidates must be at least 1: {leaves_a_side}, {candidates}")
        order = np.argsort(given, kind="stable")
        self.identifiers: Identifiers = given[order]
        if (self.identifiers[1:] == self.identifiers[:-1]).any():
            raise ValueError("two nodes have the same identifier")
        hosts = np.arange(given.size)
        if addresses is not None:
            hosts = np.asarray(addresses, np.int64)
            if hosts.shape != given.shape:
                raise ValueError(f"{given.size} identifiers need as many addresses: {hosts.size}")
            hosts = hosts[order]
        self.addresses: Positions = hosts
        self.identifiers.flags.writeable = self.addresses.flags.writeable = False
        self.leaves_a_side = leaves_a_side
        self._rows_from: Positions = np.zeros(given.size + 1, np.int64)
        _rows_needed(self.identifiers, self._rows_from)
        self._table = self._choose(latency, candidates, np.random.default_rng(seed))

    @classmethod
    def random(cls, nodes: int, seed: int, latency: Latency | None = None, **choices: Any) -> "Prefixes":
        """An overlay of so many nodes at uniformly random points; addresses are the positions."""
        generator = np.random.default_rng(seed)
        points = np.unique(generator.integers(SPACE, size=nodes, dtype=np.uint64))
        while points.size < nodes:
            more = generator.integers(SPACE, size=nodes - points.size, dtype=np.uint64)
            points = np.unique(np.concatenate((points, more)))
        return cls(points, latency, seed=seed, **choices)

    def __len__(self) -> int:
        return self.identifiers.size

    def _choose(self, latency: Latency | None, candidates: int, random: np.random.Generator) -> NDArray[np.int32]:
        rows = int(self._rows_from[-1])
        group_of = np.empty(rows, np.int32)
        bounds = np.zeros((rows // 2 + 1, BASE + 1), np.int32)  # a group has two members or more
        bounds = bounds[: _group(self.identifiers, self._rows_from, group_of, bounds)]
        table = np.full(rows * BASE, _NOBODY, np.int32)
        for first in range(0, rows, _ROWS_AT_ONCE):
            chunk = np.arange(first, min(first + _ROWS_AT_ONCE, rows))
            node = np.searchsorted(self._rows_from, chunk, side="right") - 1
            row = chunk - self._rows_from[node]
            shift = (ID_BITS - DIGIT_BITS * (row + 1)).astype(np.uint64)
            own_digit = (self.identifiers[node] >> shift & _DIGIT_MASK).astype(np.int64)
            low = bounds[group_of[chunk], :BASE].astype(np.int64)
            size = bounds[group_of[chunk], 1:] - low
            size[np.arange(chunk.size), own_digit] = 0
            slot = np.flatnonzero(size)
            node, low, size = np.repeat(node, BASE)[slot], low.ravel()[slot], size.ravel()[slot]
            start = (random.random(slot.size) * size).astype(np.int64)
            best = low + start
            if latency is not None and candidates > 1:
                best = self._nearest(latency, node, low, size, start, candidates)
            table[first * BASE + slot] = best
        return table

    def _nearest(
        self, latency: Latency, node: Positions, low: Positions, size: Positions, start: Positions, candidates: int
    ) -> Positions:
        sample = np.minimum(size, candidates)
        best = low + start
        best_us = latency.many(self.addresses[node], self.addresses[best])
        for number in range(1, candidates):
            left = np.flatnonzero(sample > number)
            another = low[left] + (start[left] + number * size[left] // sample[left]) % size[left]
            another_us = latency.many(self.addresses[node[left]], self.addresses[another])
            nearer = another_us < best_us[left]
            best[left[nearer]], best_us[left[nearer]] = another[nearer], another_us[nearer]
        return best

    def owner(self, target: int) -> int:
        """The node responsible for a point."""
        return int(self.owners(np.array([target], np.uint64))[0])

    def owners(self, targets: ArrayLike) -> Positions:
        """The nodes responsible for points."""
        points = np.asarray(targets, np.uint64)
        after = np.searchsorted(self.identifiers, points) % self.identifiers.size
        before = (after - 1) % self.identifiers.size
        is_clockwise = self.identifiers[after] - points <= points - self.identifiers[before]
        return np.where(is_clockwise, after, before)

    def next_hop(self, at: int, target: int) -> int | None:
        """The next node towards the one responsible for a point; None if that is this node."""
        following = int(
            _next(self.identifiers, self._rows_from, self._table, self.leaves_a_side, at, np.uint64(target))
        )
        return None if following == at else following

    def path(self, source: int, target: int) -> list[int]:
        """The nodes a message visits after its source, its owner last; nothing if the source is the owner."""
        visited: list[int] = []
        following = self.next_hop(source, target)
        while following is not None:
            visited.append(following)
            following = self.next_hop(following, target)
        return visited

    def hops(self, sources: ArrayLike, targets: ArrayLike) -> Positions:
        """How many hops each message makes."""
        return self.trace(sources, targets, _NO_COUNTS)

    def trace(self, sources: ArrayLike, targets: ArrayLike, sent: Positions) -> Positions:
        """How many hops each message makes; `sent` gets 1 for each time a node sends one of them."""
        starts, points = np.broadcast_arrays(np.asarray(sources, np.int64), np.asarray(targets, np.uint64))
        if starts.size and not 0 <= int(starts.min()) <= int(starts.max()) < len(self):
            raise IndexError(f"nodes are numbered 0 to {len(self) - 1}")
        hops = np.zeros(starts.size, np.int64)
        _walk(
            self.identifiers,
            self._rows_from,
            self._table,
            self.leaves_a_side,
            starts.flatten(),  # a copy: for arrays that cannot be written all would be compiled once more
            points.flatten(),
            hops,
            sent,
        )
        return hops

    def grouped(self, source: int, targets: ArrayLike, sent: Positions) -> Positions:
        """Hops of messages that leave together: as long as they have the same next hop, they travel as one message.

        `sent` gets 1 for each message that goes over the network.
        """
        points = np.array(targets, np.uint64)
        hops = np.zeros(points.size, np.int64)
        _spread(self.identifiers, self._rows_from, self._table, self.leaves_a_side, source, points, hops, sent)
        return hops

    def leaves(self, at: int) -> list[int]:
        """The other nodes of a leaf set, clockwise from the furthest before."""
        count, a_side = len(self), self.leaves_a_side
        if count <= 2 * a_side + 1:
            return [(at + step) % count for step in range(1, count)]
        return [(at + step) % count for step in range(-a_side, a_side + 1) if step]

    def entries(self, at: int) -> list[int]:
        """The nodes in the routing table of one, row by row."""
        known = self._table[self._rows_from[at] * BASE : self._rows_from[at + 1] * BASE]
        return [int(position) for position in known[known != _NOBODY]]
