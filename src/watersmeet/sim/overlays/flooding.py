"""An unstructured overlay: random neighbours, and queries that flood it up to a number of hops, as in Gnutella.

A node that sees a query for the first time answers it straight to who asked and hands it on to all neighbours but the
one it came from, unless its hops are used up; one that it has seen it drops. There is no index and nothing to
maintain but the neighbours: what is popular is found soon and nearby, what is rare perhaps not at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.router import Address

_HEADER_BYTES = 28 + 2  # IPv4 and UDP, and the kind of message
_QUERY_BYTES = 16 + 6 + 2  # number, address and port of who asked, hops
FORGET_US = 300_000_000  # a query that is older does not come again

Hits: TypeAlias = Sequence[object]
Match: TypeAlias = Callable[[object], Hits]  # what a node has for a query
Found: TypeAlias = Callable[[Address, Hits, int], None]  # who has it, what, and how many hops away


def random_graph(nodes: int, degree: int, seed: int) -> list[list[int]]:
    """Neighbours of each node: a connected graph of `nodes * degree / 2` random edges, as near as it gets.

    >>> [sorted(neighbours) for neighbours in random_graph(4, 3, seed=1)]
    [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    """
    if nodes < 1:
        raise ValueError(f"a graph needs at least one node: {nodes}")
    if degree < 2:
        raise ValueError(f"degree must be at least 2, or the graph would not hang together: {degree}")
    generator = np.random.default_rng(seed)
    order = generator.permutation(nodes).tolist()
    neighbours: list[dict[int, None]] = [{} for _ in range(nodes)]
    # Each node is tied to one that came before it: so all hang together.
    parents = (generator.random(nodes) * np.arange(nodes)).astype(np.int64).tolist()
    edges = 0
    for place in range(1, nodes):
        a, b = order[place], order[parents[place]]
        neighbours[a][b] = neighbours[b][a] = None
        edges += 1
    wanted = min(nodes * degree // 2, nodes * (nodes - 1) // 2)
    while edges < wanted:
        for a, b in generator.integers(0, nodes, (2 * (wanted - edges) + 8, 2)).tolist():
            if edges < wanted and a != b and b not in neighbours[a]:
                neighbours[a][b] = neighbours[b][a] = None
                edges += 1
    return [list(each) for each in neighbours]


@dataclass(frozen=True, slots=True)
class FloodedQuery:
    """On its way from neighbour to neighbour."""

    number: tuple[Address, int]
    payload: object
    payload_bytes: int
    hops_left: int
    hops: int  # made so far, with this one

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + _QUERY_BYTES + self.payload_bytes


@dataclass(frozen=True, slots=True)
class FloodedAnswer:
    """Straight to who asked."""

    number: tuple[Address, int]
    hits: Hits
    hops: int
    hits_bytes: int

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES + _QUERY_BYTES + self.hits_bytes


@dataclass(frozen=True, slots=True)
class Connect:
    """Asks the receiver to become a neighbour of the sender."""

    @property
    def size_bytes(self) -> int:
        return _HEADER_BYTES


class FloodingNode:
    """A host of an unstructured overlay; `match(payload)` says what it has for a query, in hits of `hit_bytes`.

    When a neighbour is found to be gone, `replacement()` may name another host to connect to.
    """

    __slots__ = (
        "_found",
        "_hit_bytes",
        "_internet",
        "_kernel",
        "_match",
        "_neighbours",
        "_queries",
        "_replacement",
        "_seen",
        "address",
        "duplicates_total",
    )

    def __init__(
        self,
        kernel: Kernel,
        internet: Internet,
        address: Address,
        neighbours: Iterable[Address],
        match: Match,
        *,
        hit_bytes: int = 100,
        replacement: Callable[[], Address | None] = lambda: None,
    ) -> None:
        self._kernel, self._internet, self.address = kernel, internet, address
        self._match, self._hit_bytes, self._replacement = match, hit_bytes, replacement
        self._neighbours = dict.fromkeys(neighbours)
        self._seen: dict[tuple[Address, int], int] = {}  # when; the oldest first
        self._found: dict[int, Found] = {}
        self._queries = 0
        self.duplicates_total = 0  # queries that came again
        internet.attach(address, self.receive)

    @property
    def neighbours(self) -> list[Address]:
        """The hosts to which it hands queries on."""
        return list(self._neighbours)

    def connect(self, neighbours: Iterable[Address]) -> None:
        """Become a neighbour of these hosts, and they of this one."""
        for address in neighbours:
            if address != self.address and address not in self._neighbours:
                self._neighbours[address] = None
                self._send(address, Connect())

    def stop(self) -> None:
        """Leave without a word, as a crash does."""
        self._found.clear()
        self._internet.detach(self.address)

    def query(self, payload: object, size_bytes: int, hops: int, found: Found) -> int:
        """Ask all within so many hops, this node too; `found` gets what each has. Returns a number for `close`."""
        if hops < 0:
            raise ValueError(f"hops must not be negative: {hops}")
        self._queries += 1
        number = (self.address, self._queries)
        self._found[self._queries] = found
        self._note(number)
        hits = self._match(payload)
        if hits:
            self._kernel.after(0, self._answered, FloodedAnswer(number, hits, 0, 0), self.address)
        if hops:
            self._spread(FloodedQuery(number, payload, size_bytes, hops - 1, 1), self.address)
        return self._queries

    def close(self, number: int) -> None:
        """Ignore further answers to a query."""
        self._found.pop(number, None)

    def receive(self, sender: Address, message: object) -> None:
        """Take a message from the net."""
        match message:
            case FloodedQuery():
                self._asked(sender, message)
            case FloodedAnswer():
                self._answered(message, sender)
            case Connect():
                self._neighbours[sender] = None
            case _:
                raise TypeError(f"a node of an unstructured overlay does not know what this is: {message!r}")

    def _asked(self, sender: Address, query: FloodedQuery) -> None:
        if query.number in self._seen:
            self.duplicates_total += 1
            return
        self._note(query.number)
        hits = self._match(query.payload)
        if hits:
            self._send(query.number[0], FloodedAnswer(query.number, hits, query.hops, self._hit_bytes * len(hits)))
        if query.hops_left:
            further = FloodedQuery(
                query.number, query.payload, query.payload_bytes, query.hops_left - 1, query.hops + 1
            )  # fmt: skip
            self._spread(further, sender)

    def _spread(self, query: FloodedQuery, sender: Address) -> None:
        size_bytes = query.size_bytes
        for neighbour in self._neighbours:
            if neighbour != sender:
                gone = partial(self._gone, neighbour)
                self._internet.send(self.address, neighbour, query, size_bytes, gone)

    def _answered(self, answer: FloodedAnswer, sender: Address) -> None:
        found = self._found.get(answer.number[1])
        if found is not None:
            found(sender, answer.hits, answer.hops)

    def _note(self, number: tuple[Address, int]) -> None:
        now_us = self._kernel.now_us
        self._seen[number] = now_us
        while self._seen[oldest := next(iter(self._seen))] < now_us - FORGET_US:
            del self._seen[oldest]

    def _gone(self, neighbour: Address) -> None:
        if self._neighbours.pop(neighbour, 0) is None:
            other = self._replacement()
            if other is not None:
                self.connect([other])

    def _send(self, address: Address, message: FloodedQuery | FloodedAnswer | Connect) -> None:
        self._internet.send(self.address, address, message, message.size_bytes, partial(self._gone, address))
