"""Many queries answered from shared aggregates among peers (5.2): fragments, A', a tree for each entry, a coordinator.

Each node aggregates its tuples by fragment (A) and combines fragments to the entries of A'. Every entry has a tree with
a root of its own, so that load stays spread. Roots send their entry to one coordinator, which reconstructs the answers
and sends each to whoever asked. All nodes have the same F (`common_rows`); `annotated` does without.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from watersmeet.program.pier.algorithms import Algorithm
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.decomposition import (
    Decomposition,
    IntegerCombination,
    ModularCombination,
    SetCombination,
    combine_records,
    query_sums,
)
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.aggregation.continuous import AggregationNode
from watersmeet.sim.pier.aggregation.query import AggregationQuery, EpochAnswer, KnownTree

QUERY_ID_BYTES = 8
ANSWER_BYTES = QUERY_ID_BYTES + 4 + 8  # query, epoch, value

Fragments = Mapping[bytes, int]  # a node's aggregate of each row of F that it has tuples of, by the bytes of the row
Rows = Callable[[Address, int], Fragments]  # of a node in an epoch


@dataclass(frozen=True, slots=True)
class NumberAlgebra:
    """Numbers that are added, or of which the largest or smallest counts; None where a node has nothing."""

    combined: Callable[[Sequence[int]], int]

    def combine(self, parts: Sequence[int | None]) -> int | None:
        """The parts of several nodes as one; None if none of them has any."""
        known = [part for part in parts if part is not None]
        return self.combined(known) if known else None

    def pair(self, one: int, other: int) -> int:
        """The parts of two nodes as one."""
        return self.combined([one, other])

    def size_bytes(self, part: int | None) -> int:
        """As a number of 64 bits; nothing is one, too."""
        return 8


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The answer of one query, from the coordinator to whoever asked."""

    query: int
    epoch: int
    value: int | None
    nodes: int | None  # whose tuples are in it, where that is known


@dataclass(frozen=True, slots=True)
class TreeQueries:
    """What all nodes know of queries that are answered together."""

    name: str
    fragments: Bools  # F: f x q
    decomposition: Decomposition
    algebra: NumberAlgebra
    algorithm: Algorithm
    coordinator: Address | None  # None: nothing is shared, and each entry is the answer of its query
    requesters: tuple[Address, ...]  # one for each query
    nodes: int
    epochs: int = 1
    names_rows: bool = True  # an entry is named by its row of F', else by a number

    @property
    def entry_bytes(self) -> int:
        """What the name of an entry takes in every record."""
        return -(-self.fragments.shape[1] // 8) if self.names_rows else QUERY_ID_BYTES

    def tree(self, entry: int, root_address: Callable[[int], Address]) -> AggregationQuery:
        """The tree of an entry of A'; what its root has goes to the coordinator, or to whoever asked."""
        root = identifier_of(f"{self.name}.{entry}")
        receiver = self.requesters[entry] if self.coordinator is None else self.coordinator
        return AggregationQuery(
            *(f"{self.name}.{entry}", self.algorithm, self.algebra, root, root_address(root), receiver),
            *(self.nodes, self.epochs),
            name_bytes=self.entry_bytes,
        )


def shared_entries(queries: TreeQueries, fragments: Fragments) -> list[int | None]:
    """Deconstruction: A' of one node from its A; a row that is not in F is refused."""
    places = {row.tobytes(): place for place, row in enumerate(queries.fragments)}
    values: list[int | None] = [None] * len(places)
    for row, value in fragments.items():
        if row not in places:
            raise ValueError("a node has tuples of a fragment that is not in F; F must be brought up to date first")
        values[places[row]] = value
    return _combined(queries.decomposition.assign.T, values, queries.algebra)


def reconstructed(queries: TreeQueries, entries: Sequence[int | None]) -> list[int | None]:
    """The answers of all queries from A'; sums of nothing are 0 where sums are subtracted from each other."""
    match queries.decomposition.combination:
        case SetCombination(basis):
            return _combined(basis.T, entries, queries.algebra)
        case IntegerCombination() | ModularCombination():
            sums = query_sums(queries.decomposition, np.array([entry or 0 for entry in entries], dtype=object))
            return [int(sum_) for sum_ in sums]
        case _ as never:
            assert_never(never)


def _combined(members: Bools, values: Sequence[int | None], algebra: NumberAlgebra) -> list[int | None]:
    return combine_records(members, values, algebra.pair)


@dataclass(eq=False)
class Coordinator:
    """Collects the entries of A' by epoch; when all are there, answers go to those who asked."""

    queries: TreeQueries
    dht: Dht
    _entries: dict[int, dict[int, EpochAnswer]] = field(default_factory=dict)

    def take(self, entry: int, answer: EpochAnswer) -> None:
        """A root has its entry; a revised one gives revised answers."""
        known = self._entries.setdefault(answer.epoch, {})
        known[entry] = answer
        if len(known) < self.queries.decomposition.size:
            return
        values = reconstructed(self.queries, [known[number].partial for number in range(len(known))])
        nodes = min((answer.nodes for answer in known.values()), default=0)
        for query, (value, asked_by) in enumerate(zip(values, self.queries.requesters, strict=True)):
            self.dht.node.direct(asked_by, QueryAnswer(query, answer.epoch, value, nodes), ANSWER_BYTES)


class SharedNode:
    """One node's part in queries that are answered together."""

    def __init__(
        self,
        kernel: Kernel,
        dht: Dht,
        queries: TreeQueries,
        rows: Rows,
        trees: Sequence[tuple[AggregationQuery, KnownTree]],
        answered: Callable[[QueryAnswer], None],
    ) -> None:
        address = dht.node.address
        coordinator = Coordinator(queries, dht) if address == queries.coordinator else None
        entries: dict[int, list[int | None]] = {}

        def entry_of(number: int) -> Callable[[Address, int], int | None]:
            def own(_: Address, epoch: int) -> int | None:
                if epoch not in entries:
                    entries.clear()  # all trees begin an epoch at the same instant
                    entries[epoch] = shared_entries(queries, rows(address, epoch))
                return entries[epoch][number]

            return own

        def taken_by(number: int) -> Callable[[EpochAnswer], None] | None:
            if coordinator is not None:
                return lambda answer: coordinator.take(number, answer)
            if queries.coordinator is None and queries.requesters[number] == address:
                return lambda answer: answered(QueryAnswer(number, answer.epoch, answer.partial, answer.nodes))
            return None

        def received(_: Address, payload: object) -> None:
            if isinstance(payload, QueryAnswer) and queries.requesters[payload.query] == address:
                answered(payload)

        self._cancel = dht.node.on_direct(received)
        self.trees = [
            AggregationNode(kernel, dht, tree, entry_of(number), taken_by(number), known)
            for number, (tree, known) in enumerate(trees)
        ]

    def stop(self) -> None:
        """The queries are over, or the node has crashed."""
        self._cancel()
        for tree in self.trees:
            tree.stop()


def start_shared(
    kernel: Kernel, dhts: Sequence[Dht], queries: TreeQueries, rows: Rows, answered: Callable[[QueryAnswer], None]
) -> list[SharedNode]:
    """Let queries begin at all nodes now, as if they had been disseminated before."""

    def owner(point: int) -> Address:
        return next(dht.node.address for dht in dhts if dht.node.router.next_hop(point) is None)

    trees = [(queries.tree(entry, owner), KnownTree()) for entry in range(queries.decomposition.size)]
    return [SharedNode(kernel, dht, queries, rows, trees, answered) for dht in dhts]
