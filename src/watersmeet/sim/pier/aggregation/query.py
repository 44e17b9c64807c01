"""A query that is answered by epochs: what all nodes know of it, what they send, and where their records come from."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from watersmeet.program.aggregate.records import Layout
from watersmeet.program.pier.algorithms import EPOCH_US, Algorithm
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.aggregation.membership import IN_DEGREE_MAX

EPOCHS_KEPT = 6  # by nodes other than the root: of older ones whatever comes is sent on at once

Partial: TypeAlias = Any  # what an algebra combines
Source: TypeAlias = Callable[[Address, int], Partial]  # the records of a node's own rows in an epoch


class CombiningAlgebra(Protocol):
    """How records become one, and how large they are on the wire."""

    def combine(self, parts: Sequence[Partial]) -> Partial:
        """The records of several."""

    def size_bytes(self, part: Partial) -> int:
        """What they take."""


@dataclass(frozen=True, slots=True)
class TableAlgebra:
    """Records as Arrow tables, as sites exchange them."""

    layout: Layout

    def combine(self, parts: Sequence[pa.Table]) -> pa.Table:
        """One record for each group."""
        return self.layout.combine(parts)

    def size_bytes(self, part: pa.Table) -> int:
        """The values; the query says what columns there are."""
        return int(part.nbytes)


@dataclass(frozen=True, slots=True)
class AggregationQuery:
    """What every node knows of a query; epoch e begins at `start_us + e * period_us`."""

    name: str
    algorithm: Algorithm
    algebra: CombiningAlgebra
    root: int  # a point
    root_address: Address  # of the node that is responsible for it, for routing by IP
    requester: Address
    nodes: int  # for WaitForAll
    epochs: int | None = 1  # None: until the query is stopped
    period_us: int = EPOCH_US
    start_us: int = 0
    in_degree_max: int = IN_DEGREE_MAX  # with tree routing
    name_bytes: int = 8  # that its identifier takes in every record

    def __post_init__(self) -> None:
        for field in ("nodes", "epochs", "period_us", "in_degree_max"):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1: {getattr(self, field)}")


@dataclass(frozen=True, slots=True)
class Record:
    """Partial state records on their way."""

    query: str
    sender: Address
    epoch: int
    number: int  # of the sender's records in this epoch
    partial: Partial
    nodes: int  # whose rows are in it
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """What the requester gets of an epoch; a later one has more nodes in it."""

    query: str
    epoch: int
    partial: Partial
    nodes: int
    size_bytes: int


class KnownTree:
    """What optimal timing knows: who sends to whom in which epoch."""

    __slots__ = ("_children",)

    def __init__(self) -> None:
        self._children: dict[int, dict[Address, int]] = {}

    def note(self, epoch: int, parent: Address | None) -> None:
        """A node that begins an epoch will send its record to this parent."""
        if epoch not in self._children:
            self._children[epoch] = {}
            self._children.pop(epoch - EPOCHS_KEPT, None)
        if parent is not None:
            counts = self._children[epoch]
            counts[parent] = counts.get(parent, 0) + 1

    def children(self, epoch: int, parent: Address) -> int:
        """How many records will come to a node."""
        return self._children.get(epoch, {}).get(parent, 0)


def sliding(source: Source, algebra: CombiningAlgebra, epochs: int) -> Source:
    """Overlapping windows: each node sends the records of its last so many epochs (PIER's MemUpdateCache)."""
    if epochs < 1:
        raise ValueError(f"a window must be at least one epoch long: {epochs}")
    kept: dict[Address, deque[tuple[int, Partial]]] = {}

    def records(address: Address, epoch: int) -> Partial:
        own = kept.setdefault(address, deque())
        own.append((epoch, source(address, epoch)))
        while own[0][0] <= epoch - epochs:
            own.popleft()
        return algebra.combine([part for _, part in own])

    return records
