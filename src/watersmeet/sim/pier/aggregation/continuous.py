"""Aggregation by epochs (PIER, section 4.2, appendices B and C): partial state records of all nodes become one answer.

In every epoch each node has a table of records (program/aggregate) of its own rows. How it gets to the root is a matter
of the algorithm: structure, routing, stability and timing are chosen apart. A node that combines ends waiting when it
has all that is to come (the simulator knows how much that is), by a timeout, or when all children of the epochs before
have sent. What comes afterwards is sent on as a further record; at the root a revised answer follows after another
timeout. A record says how many nodes are in it, so every answer does.

A node without known children cannot tell whether it is a leaf, and sends at once; a root cannot be one, and waits.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from watersmeet.program.pier.algorithms import (
    ChildList,
    Routing,
    Structure,
    WaitFor,
    WaitForAll,
    WaitForKnown,
)
from watersmeet.sim.dht.callbacks import Cancel
from watersmeet.sim.dht.messages import Item
from watersmeet.sim.dht.node import Dht, Passage
from watersmeet.sim.kernel import NO_EVENT, Event, Kernel
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.aggregation.children import KnownChildren
from watersmeet.sim.pier.aggregation.query import (
    EPOCHS_KEPT,
    AggregationQuery,
    EpochAnswer,
    KnownTree,
    Partial,
    Record,
    Source,
)
from watersmeet.sim.pier.aggregation.tree import AggregationTree, AggregationTreeSettings

_FIELDS_BYTES = 6 + 4 + 2 + 4  # node, epoch, number, nodes in it
_STORED_US = 60_000_000  # how long a record that was put stays in the DHT


class _Epoch:
    """What a node has of one epoch."""

    __slots__ = ("has_begun", "is_open", "is_sent", "nodes", "number", "parts", "records", "seen", "timer", "waiting")

    def __init__(self, number: int, *, is_sent: bool) -> None:
        self.number, self.is_sent = number, is_sent
        self.has_begun = False
        self.is_open = False  # it is at a root that knows no children yet, and ends by its timeout only
        self.parts: list[Partial] = []
        self.nodes = 0  # in the parts
        self.records = 0  # sent
        self.seen: set[tuple[Address, int]] = set()
        self.waiting: set[Address] = set()  # children that have not sent yet
        self.timer: Event = NO_EVENT


class AggregationNode:
    """One node's part in a query, from the next epoch on.

    `requested` gets answers at the requester. With `at_root` they stay where they are made: the root calls it with what
    is new, epoch by epoch, and says nothing twice.
    """

    __slots__ = (
        "_at_root",
        "_cancels",
        "_children",
        "_dht",
        "_epochs",
        "_first",
        "_kernel",
        "_known_tree",
        "_namespace",
        "_next",
        "_query",
        "_requested",
        "_source",
        "late_total",
        "tree",
    )

    def __init__(
        self,
        kernel: Kernel,
        dht: Dht,
        query: AggregationQuery,
        source: Source,
        requested: Callable[[EpochAnswer], None] | None = None,
        known_tree: KnownTree | None = None,
        at_root: Callable[[EpochAnswer], None] | None = None,
    ) -> None:
        timing = query.algorithm.timing
        if query.algorithm.is_combining and isinstance(timing, WaitForAll) and known_tree is None:
            raise ValueError(f"{query.algorithm.name} needs to know the tree")
        self._kernel, self._dht, self._query = kernel, dht, query
        self._source, self._requested, self._known_tree = source, requested, known_tree
        self._at_root = at_root
        self._namespace = f"{query.name}.records"
        self._epochs: dict[int, _Epoch] = {}
        self._children = KnownChildren(timing) if isinstance(timing, WaitForKnown) else None
        self.tree: AggregationTree | None = None
        self.late_total = 0  # records that came after the answer or the record of their epoch was sent
        self._cancels: list[Cancel] = []
        self._listen()
        self._first = max(0, -(-(kernel.now_us - query.start_us) // query.period_us))
        self._next: Event = NO_EVENT
        self._schedule(self._first)

    def stop(self) -> None:
        """The query is over, or the node has crashed."""
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        self._kernel.cancel(self._next)
        for epoch in self._epochs.values():
            self._kernel.cancel(epoch.timer)
        self._epochs.clear()
        if self.tree is not None:
            self.tree.stop()

    def add(self, number: int, part: Partial) -> None:
        """More of this node's own rows in an epoch, perhaps after its record was sent."""
        if self._cancels:
            epoch = self._epoch(number)
            epoch.parts.append(part)
            if epoch.is_sent:
                self._end_waiting(epoch)

    @property
    def is_root(self) -> bool:
        """Whether answers are produced here."""
        if self._query.algorithm.routing is Routing.IP:
            return self._dht.node.address == self._query.root_address
        router = self._dht.node.router
        return router.is_ready and router.next_hop(self._query.root) is None

    def _listen(self) -> None:
        query, dht = self._query, self._dht
        algorithm = query.algorithm
        self._cancels.append(dht.node.on_direct(self._direct))
        if algorithm.structure is Structure.ONE_LEVEL:
            if algorithm.routing is Routing.DHT:
                self._cancels.append(dht.new_data(self._namespace, self._stored))
                for item in dht.local_scan(self._namespace):  # of those that knew the query before this node
                    self._kernel.after(0, self._stored, item)
        elif not algorithm.needs_parents:
            self._cancels.append(dht.upcall(self._namespace, self._arrived, passages=[Passage.ARRIVED]))
        else:
            settings = AggregationTreeSettings(
                in_degree_max=query.in_degree_max if algorithm.routing is Routing.TREE else None,
                is_stable=algorithm.is_stable,
                child_timeout_us=3 * query.period_us,
            )
            self.tree = AggregationTree(self._kernel, dht, query.name, query.root, self._from_child, settings)

    # Epochs.

    def _schedule(self, epoch: int) -> None:
        query = self._query
        if query.epochs is None or epoch < query.epochs:
            self._next = self._kernel.at(query.start_us + epoch * query.period_us, self._begin, epoch)

    def _begin(self, number: int) -> None:
        if not self._dht.node.is_up:
            self.stop()
            return
        self._schedule(number + 1)
        is_root = self.is_root
        if not is_root or self._at_root is not None:
            old = self._epochs.pop(number - EPOCHS_KEPT, None)
            if old is not None:
                self._kernel.cancel(old.timer)
        epoch = self._epoch(number)
        epoch.parts.append(self._source(self._dht.node.address, number))
        epoch.nodes += 1
        epoch.has_begun = True
        if self.tree is not None:
            self.tree.turn()
        timing = self._query.algorithm.timing
        if not is_root and not self._query.algorithm.is_combining:
            self._send(epoch)
            return
        match timing:
            case WaitForAll():
                if self._known_tree is not None and self.tree is not None:
                    self._known_tree.note(number, self.tree.parent)
                # The others begin at the same instant: only after them the tree is known.
                self._kernel.after(0, self._send_if_all, epoch)
            case WaitFor(period_us=period_us):
                self._restart(epoch, period_us)
            case WaitForKnown():
                assert self._children is not None
                epoch.waiting.update(child for child in self._children if (child, 0) not in epoch.seen)
                if is_root and not self._children:
                    epoch.is_open = True
                    self._restart(epoch, timing.cleanup_us)
                elif epoch.waiting:
                    self._restart(epoch, self._children.deadline_us)
                else:
                    self._end_waiting(epoch)
            case _ as never:
                assert_never(never)

    def _epoch(self, number: int) -> _Epoch:
        found = self._epochs.get(number)
        if found is None:
            oldest = self._kernel.now_us - self._query.start_us - EPOCHS_KEPT * self._query.period_us
            is_past = number < self._first or number * self._query.period_us < oldest
            found = self._epochs[number] = _Epoch(number, is_sent=is_past)
        return found

    def _restart(self, epoch: _Epoch, delay_us: int) -> None:
        self._kernel.cancel(epoch.timer)
        epoch.timer = self._kernel.after(delay_us, self._timed_out, epoch)

    def _timed_out(self, epoch: _Epoch) -> None:
        epoch.timer = NO_EVENT
        children = self._children
        if children is not None and epoch.waiting:
            timing = self._query.algorithm.timing
            assert isinstance(timing, WaitForKnown)
            if timing.children is ChildList.ADAPTIVE:
                silent = children.silent(self._kernel.now_us)
            else:
                silent = sorted(epoch.waiting)
                for child in silent:
                    children.forget(child)
            epoch.waiting.clear()
            self._end_waiting(epoch)
            for later in list(self._epochs.values()):
                if later.number > epoch.number and later.waiting:
                    later.waiting.difference_update(silent)
                    if not later.waiting:
                        self._end_waiting(later)
        else:
            self._end_waiting(epoch)

    def _send_if_all(self, epoch: _Epoch) -> None:
        """Optimal timing: whether all records that will come have come."""
        if not epoch.has_begun or epoch.is_sent:
            return
        if self._known_tree is not None and self._query.algorithm.is_combining:
            expected = self._known_tree.children(epoch.number, self._dht.node.address)
        else:
            expected = self._query.nodes - 1
        if len(epoch.seen) >= expected:
            self._end_waiting(epoch)

    # Sending.

    def _end_waiting(self, epoch: _Epoch) -> None:
        if not self._dht.node.is_up:
            self.stop()
            return
        self._kernel.cancel(epoch.timer)
        epoch.timer = NO_EVENT
        epoch.waiting.clear()
        if self.is_root:
            self._answer(epoch)
        elif epoch.parts:
            self._send(epoch)

    def _combined(self, epoch: _Epoch) -> Partial:
        return epoch.parts[0] if len(epoch.parts) == 1 else self._query.algebra.combine(epoch.parts)

    def _answer(self, epoch: _Epoch) -> None:
        epoch.is_sent = True
        combined = self._combined(epoch)
        size_bytes = self._query.name_bytes + 4 + 4 + self._query.algebra.size_bytes(combined)
        answer = EpochAnswer(self._query.name, epoch.number, combined, epoch.nodes, size_bytes)
        if self._at_root is not None:
            epoch.parts, epoch.nodes = [], 0
            self._at_root(answer)
            return
        epoch.parts = [combined]
        self._dht.node.direct(self._query.requester, answer, size_bytes)

    def _send(self, epoch: _Epoch) -> None:
        """Send what is here; it is here no more, so a later record has only what is new."""
        combined = self._combined(epoch)
        here = self._dht.node.address
        size_bytes = self._query.name_bytes + _FIELDS_BYTES + self._query.algebra.size_bytes(combined)
        record = Record(self._query.name, here, epoch.number, epoch.records, combined, epoch.nodes, size_bytes)
        epoch.records += 1
        epoch.parts, epoch.nodes, epoch.is_sent = [], 0, True
        self._transmit(record)

    def _transmit(self, record: Record) -> None:
        query, size_bytes = self._query, record.size_bytes
        if query.algorithm.routing is Routing.IP:
            self._dht.node.direct(query.root_address, record, size_bytes)
        elif self.tree is not None:
            self.tree.send_up(record, size_bytes)
        else:
            call = self._dht.put if query.algorithm.structure is Structure.ONE_LEVEL else self._dht.send
            suffix = f"{record.sender}.{record.epoch}.{record.number}"
            call(self._namespace, "", suffix, record, self._stored_us, size_bytes, target=query.root)

    @property
    def _stored_us(self) -> int:
        return min(_STORED_US, self._dht.lifetime_max_us)

    # What comes from others.

    def _arrived(self, item: Item) -> None:
        assert isinstance(item.value, Record)
        self._take(item.value)

    def _stored(self, item: Item) -> None:
        assert isinstance(item.value, Record)
        self._take(item.value)

    def _direct(self, sender: Address, payload: object) -> None:
        if isinstance(payload, Record):
            if payload.query == self._query.name:
                self._take(payload)
        elif isinstance(payload, EpochAnswer) and payload.query == self._query.name and self._requested is not None:
            self._requested(payload)

    def _from_child(self, child: Address, payload: object, stays: bool) -> None:
        assert isinstance(payload, Record)
        if not self._query.algorithm.is_combining and not self.is_root:
            self._transmit(payload)
        else:
            self._take(payload, stays=stays)

    def _take(self, record: Record, *, stays: bool = True) -> None:
        if not self._cancels:
            return
        epoch = self._epoch(record.epoch)
        key = (record.sender, record.number)
        if key in epoch.seen:
            return
        epoch.seen.add(key)
        epoch.parts.append(record.partial)
        epoch.nodes += record.nodes
        self.late_total += epoch.is_sent
        timing = self._query.algorithm.timing
        match timing:
            case WaitForAll():
                self._send_if_all(epoch)
            case WaitFor(period_us=period_us, by_rate=by_rate):
                if epoch.timer is NO_EVENT or by_rate:
                    self._restart(epoch, period_us)
            case WaitForKnown(children=kind):
                self._note_child(epoch, record.sender, is_kept=stays or kind is ChildList.LEARNED)
                if epoch.is_sent:
                    if not self.is_root or self._at_root is not None:
                        self._end_waiting(epoch)
                    elif epoch.timer is NO_EVENT:
                        self._restart(epoch, timing.cleanup_us)
                elif epoch.has_begun and not epoch.waiting and not epoch.is_open:
                    self._end_waiting(epoch)
            case _ as never:
                assert_never(never)

    def _note_child(self, epoch: _Epoch, child: Address, *, is_kept: bool) -> None:
        children = self._children
        assert children is not None
        epoch.waiting.discard(child)
        if is_kept:
            now_us = self._kernel.now_us
            begun_us = self._query.start_us + epoch.number * self._query.period_us
            children.heard(child, now_us, now_us - begun_us)
        else:
            children.forget(child)


def start_everywhere(
    kernel: Kernel,
    dhts: Iterable[Dht],
    query: AggregationQuery,
    source: Source,
    requested: Callable[[EpochAnswer], None],
) -> list[AggregationNode]:
    """Let a query begin at all nodes now, as if it had been disseminated before."""
    make = partial(AggregationNode, kernel, query=query, source=source, known_tree=KnownTree())
    return [make(dht=dht, requested=requested if dht.node.address == query.requester else None) for dht in dhts]
