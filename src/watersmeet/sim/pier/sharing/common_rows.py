"""F kept the same at all nodes (5.6.1): changes of rows go up a tree, where they are united, and from its root to all.

After the first time only additions and deletions travel, and a deletion goes no further than to a node below which
someone still needs the row. A new query is two bits for each row of F, OR-ed on the way up; one that ends costs
nothing. The tree is that of the overlay's routes to a point, as long as nobody fails.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from watersmeet.sharing.bits import Bools, unpack, words_for
from watersmeet.sharing.fragments import (
    QueryChange,
    RowsChange,
    Subtree,
    merged_change,
    query_change,
    row_keys,
    with_column,
    without_column,
)
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.router import Address

GATHER_US = 500_000  # how long a node waits for changes of others before it tells its parent
_NAME_BYTES, _COUNT_BYTES = 8, 2
_OWN = "own"


@dataclass(frozen=True, slots=True)
class RowsMessage:
    """Rows that came and went: to the parent, or from the root to all."""

    name: str
    change: RowsChange
    queries: int
    down: bool

    @property
    def size_bytes(self) -> int:
        rows = len(self.change.added) + len(self.change.removed)
        return _NAME_BYTES + 2 * _COUNT_BYTES + rows * -(-self.queries // 8)


@dataclass(frozen=True, slots=True, eq=False)
class QueryMessage:
    """What a new query does to the rows of F, for a subtree or for all."""

    name: str
    change: QueryChange
    down: bool

    @property
    def size_bytes(self) -> int:
        return _NAME_BYTES + -(-self.change.bits // 8)


class CommonRows:
    """One node's part; `rows` is F as far as it knows."""

    def __init__(
        self, kernel: Kernel, dht: Dht, name: str, root: int, queries: int, gather_us: int = GATHER_US
    ) -> None:
        self.rows: frozenset[bytes] = frozenset()
        self.queries = queries
        self._kernel, self._dht, self._name, self._root, self._gather_us = kernel, dht, name, root, gather_us
        self._subtree = Subtree({_OWN: set()})
        self._reported: frozenset[bytes] = frozenset()  # what the parent knows of this subtree, or the root has spread
        self._is_child = False  # whether the parent knows of this node, which has to be told of F
        self._timer: Event = NO_EVENT
        self._maps: dict[str, QueryChange] = {}  # of a new query, by child
        self._cancel = dht.node.on_direct(self._received)

    @property
    def matrix(self) -> Bools:
        """F, its rows in the same order at all nodes."""
        return _matrix(self.rows, self.queries)

    @property
    def children(self) -> list[Address]:
        """The nodes that send their rows here."""
        return sorted(int(name) for name in self._subtree.rows if name != _OWN)

    def stop(self) -> None:
        """The queries are over."""
        self._cancel()
        self._kernel.cancel(self._timer)

    def need(self, rows: Bools) -> None:
        """The node's own tuples have these rows now, and no others."""
        wanted, known = row_keys(rows), self._subtree.rows[_OWN]
        self._update(_OWN, RowsChange(frozenset(wanted - known), frozenset(known - wanted)))

    def add_query(self, seen: Iterable[tuple[Bools, bool]]) -> None:
        """A query begins; pairs of the row of a tuple of this node, and whether the tuple satisfies the query."""
        self._take_map(_OWN, query_change(self.matrix, seen))

    def drop_query(self, query: int) -> None:
        """A query has ended: every node leaves its column out by itself."""
        before = self.queries

        def left(rows: Iterable[bytes]) -> set[bytes]:
            return set(row_keys(without_column(_matrix(rows, before), query)))

        self._subtree.rows = {name: left(rows) for name, rows in self._subtree.rows.items()}
        self.rows, self._reported = frozenset(left(self.rows)), frozenset(left(self._reported))
        self.queries -= 1

    # Rows.

    def _update(self, child: str, change: RowsChange) -> None:
        self._subtree.update(child, change)
        if self._timer is NO_EVENT:
            self._timer = self._kernel.after(self._gather_us, self._report)

    def _report(self) -> None:
        self._timer = NO_EVENT
        needed = frozenset(self._subtree.needed)
        change = RowsChange(needed - self._reported, self._reported - needed)
        if self._is_child and not change.added and not change.removed:
            return
        self._reported, self._is_child = needed, True
        parent = self._dht.node.router.next_hop(self._root)
        if parent is None:
            self._spread(change)
        else:
            message = RowsMessage(self._name, change, self.queries, down=False)
            self._dht.node.direct(parent, message, message.size_bytes)

    def _spread(self, change: RowsChange) -> None:
        self.rows = (self.rows - change.removed) | change.added
        message = RowsMessage(self._name, change, self.queries, down=True)
        for child in self.children:
            self._dht.node.direct(child, message, message.size_bytes)

    # A new query.

    def _take_map(self, child: str, change: QueryChange) -> None:
        self._maps[child] = change
        if self._maps.keys() < self._subtree.rows.keys():
            return  # not all have said what they see
        whole = merged_change(list(self._maps.values()))
        parent = self._dht.node.router.next_hop(self._root)
        if parent is None:
            self._spread_map(whole)
        else:
            message = QueryMessage(self._name, whole, down=False)
            self._dht.node.direct(parent, message, message.size_bytes)

    def _spread_map(self, whole: QueryChange) -> None:
        message = QueryMessage(self._name, whole, down=True)
        for child in self.children:
            self._dht.node.direct(child, message, message.size_bytes)
        before = self.matrix
        rows = {name: set(row_keys(with_column(before, change))) for name, change in self._maps.items()}
        self.queries += 1
        self._subtree.rows, self._maps = rows, {}
        self._reported = frozenset(self._subtree.needed)
        self.rows = row_keys(with_column(before, whole))

    # Messages.

    def _received(self, sender: Address, payload: object) -> None:
        match payload:
            case RowsMessage(name, change, down=down) if name == self._name:
                if down:
                    self._spread(change)
                    return
                if str(sender) not in self._subtree.rows and self.rows:  # it knows nothing of F yet
                    message = RowsMessage(self._name, RowsChange(self.rows), self.queries, down=True)
                    self._dht.node.direct(sender, message, message.size_bytes)
                self._update(str(sender), change)
            case QueryMessage(name, bits, down=down) if name == self._name:
                if down:
                    self._spread_map(bits)
                else:
                    self._take_map(str(sender), bits)
            case _:
                return


def _matrix(rows: Iterable[bytes], queries: int) -> Bools:
    """Rows as a matrix, in a fixed order."""
    words = np.frombuffer(b"".join(sorted(rows)), np.uint64).reshape(-1, words_for(queries))
    return unpack(words, queries)
