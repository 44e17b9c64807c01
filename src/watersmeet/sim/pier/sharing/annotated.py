"""Shared aggregates without a common F (5.6.1): every entry of A' travels with its row of F', which says all.

For aggregates that do not mind duplicates, and for Basic Decomposition, each node decomposes the rows that it has by
itself. An entry goes to the owner of its row, which combines what nodes have of it; the coordinator combines for each
query the entries whose row has it. Nobody knows what will come, so owner and coordinator wait until it is quiet.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from watersmeet.sharing.bits import Bools
from watersmeet.sharing.decomposition import Decomposition, SetCombination, combine_records
from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.sharing.trees import ANSWER_BYTES, Fragments, NumberAlgebra, QueryAnswer

_LIFETIME_US = 60_000_000
_FIELDS_BYTES = 6 + 4 + 8  # node, epoch, value


@dataclass(frozen=True, slots=True)
class AnnotatedQueries:
    """What all nodes know: no F, only how many queries there are and how rows are decomposed."""

    name: str
    requesters: tuple[Address, ...]  # one for each query
    decompose: Callable[[Bools], Decomposition]
    algebra: NumberAlgebra
    coordinator: Address
    wait_us: int = 3_000_000  # longer than a message takes to any node

    @property
    def namespace(self) -> str:
        return f"{self.name}.entries"

    @property
    def entry_bytes(self) -> int:
        return -(-len(self.requesters) // 8) + _FIELDS_BYTES


@dataclass(frozen=True, slots=True)
class AnnotatedEntry:
    """An entry of A': of one node, or of all from the owner of its row."""

    name: str
    epoch: int
    row: bytes
    value: int


def entries_of(queries: AnnotatedQueries, fragments: Fragments) -> dict[bytes, int]:
    """A' of one node by rows of F', from its A."""
    if not fragments:
        return {}
    rows = np.array([np.frombuffer(row, np.bool_) for row in fragments])
    found = queries.decompose(rows)
    if not isinstance(found.combination, SetCombination):
        raise TypeError("a linear decomposition needs the same F at all nodes")
    values = combine_records(found.assign.T, list(fragments.values()), queries.algebra.pair)
    basis = found.combination.basis
    entries: dict[bytes, int] = {}
    for row, value in zip(basis, values, strict=True):
        if value is not None:
            entries[row.tobytes()] = value
    return entries


class AnnotatedNode:
    """One node's part: its own entries, those of the rows that it owns, and the answers if it is the coordinator."""

    def __init__(
        self, kernel: Kernel, dht: Dht, queries: AnnotatedQueries, answered: Callable[[QueryAnswer], None]
    ) -> None:
        self._kernel, self._dht, self._queries, self._answered = kernel, dht, queries, answered
        self._owned: dict[tuple[int, bytes], int] = {}
        self._whole: dict[tuple[int, bytes], int] = {}  # at the coordinator
        self._timers: dict[tuple[str, int], Event] = {}
        self._cancels = [dht.new_data(queries.namespace, self._stored), dht.node.on_direct(self._received)]

    def stop(self) -> None:
        """The queries are over."""
        for cancel in self._cancels:
            cancel()
        for timer in self._timers.values():
            self._kernel.cancel(timer)

    def send(self, epoch: int, fragments: Fragments) -> None:
        """Send the entries of this node's tuples of an epoch to the owners of their rows."""
        queries, dht = self._queries, self._dht
        for row, value in sorted(entries_of(queries, fragments).items()):
            suffix = f"{dht.node.address}.{epoch}"
            entry = AnnotatedEntry(queries.name, epoch, row, value)
            lifetime_us = min(_LIFETIME_US, dht.lifetime_max_us)
            dht.put(queries.namespace, row.hex(), suffix, entry, lifetime_us, queries.entry_bytes)

    def _stored(self, item: Item) -> None:
        assert isinstance(item.value, AnnotatedEntry)
        self._keep(self._owned, item.value)
        self._when_quiet("owner", item.value.epoch, self._pass_on)

    def _keep(self, known: dict[tuple[int, bytes], int], entry: AnnotatedEntry) -> None:
        key = (entry.epoch, entry.row)
        known[key] = entry.value if key not in known else self._queries.algebra.pair(known[key], entry.value)

    def _when_quiet(self, what: str, epoch: int, act: Callable[[int], None]) -> None:
        self._kernel.cancel(self._timers.get((what, epoch), NO_EVENT))
        self._timers[what, epoch] = self._kernel.after(self._queries.wait_us, act, epoch)

    def _pass_on(self, epoch: int) -> None:
        """What is new; it is here no more, so a later entry has only what came after it."""
        queries = self._queries
        for key in sorted(key for key in self._owned if key[0] == epoch):
            entry = AnnotatedEntry(queries.name, epoch, key[1], self._owned.pop(key))
            self._dht.node.direct(queries.coordinator, entry, queries.entry_bytes)

    def _received(self, sender: Address, payload: object) -> None:
        match payload:
            case AnnotatedEntry(name=name, epoch=epoch) if name == self._queries.name:
                self._keep(self._whole, payload)
                self._when_quiet("coordinator", epoch, self._answer)
            case QueryAnswer(query=query):
                if self._queries.requesters[query] == self._dht.node.address:
                    self._answered(payload)
            case _:
                return

    def _answer(self, epoch: int) -> None:
        queries = self._queries
        own = {row: value for (number, row), value in self._whole.items() if number == epoch}
        rows = np.array([np.frombuffer(row, np.bool_) for row in own])
        values = combine_records(rows.T, list(own.values()), queries.algebra.pair)
        for query, (value, asked_by) in enumerate(zip(values, queries.requesters, strict=True)):
            self._dht.node.direct(asked_by, QueryAnswer(query, epoch, value, None), ANSWER_BYTES)
