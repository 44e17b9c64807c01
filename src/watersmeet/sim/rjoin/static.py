"""RJoin on an overlay at rest: one shard does the work of all nodes, and mail moves in batches of equal arrival.

Nodes neither come nor go, so a route is known as soon as it is asked for; each message is charged to every node that
sends it on, and arrives when all its hops are made. Mail that arrives at one moment is handled together, which changes
no answer: whoever of a query and a tuple comes later finds the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from watersmeet.program.rjoin.arrays import COUNT, FOREVER, NONE, QUERY, Ints, Longs
from watersmeet.program.rjoin.loads import Load
from watersmeet.program.rjoin.mail import Ask, CheckMail, Out, QueryMail, TupleMail, joined
from watersmeet.program.rjoin.settings import NodeSettings
from watersmeet.program.rjoin.shard import Shard
from watersmeet.program.rjoin.tables import Known
from watersmeet.query.model import JoinQuery
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of


class Overlay(Protocol):
    """An overlay at rest: `Ring` and `Prefixes` are such."""

    identifiers: NDArray[np.uint64]

    def __len__(self) -> int: ...

    def owners(self, targets: ArrayLike) -> Longs: ...

    def trace(self, sources: ArrayLike, targets: ArrayLike, sent: Longs) -> Longs: ...

    def grouped(self, source: int, targets: ArrayLike, sent: Longs) -> Longs: ...


@dataclass
class MessageCounts:
    """Messages that each node has sent, its own and those it passed on, by what they were for."""

    tuples: Longs
    queries: Longs  # mail for one key from one node at one moment is one message
    rows: Longs  # the same if alike queries alone share a message
    rates: Longs
    answers: Longs
    members: int = 0  # the same as `rows` in all, if every rewritten query were a message of its own
    rates_apart: int = 0  # the same as `rates` in all, if every query asked for itself

    @classmethod
    def of(cls, nodes: int) -> "MessageCounts":
        tuples, queries, rows, rates, answers = np.zeros((5, nodes), np.int64)
        return cls(tuples, queries, rows, rates, answers)

    @property
    def total(self) -> Longs:
        """How many messages each node has sent."""
        return self.tuples + self.queries + self.rates + self.answers


HopDelays = Callable[[Longs], Longs]  # from hops to microseconds
Answered = Callable[[int, Ints], None]  # a query's number and complete rows


def steady(hop_us: int) -> HopDelays:
    """Every hop takes the same time."""
    return lambda hops: hops * hop_us


@dataclass(slots=True)
class _Box:
    """Mail that arrives at one moment."""

    tuples: list[TupleMail] = field(default_factory=list)
    queries: list[QueryMail] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    checks: list[CheckMail] = field(default_factory=list)


class StaticRJoin:
    """A network of RJoin nodes on an overlay that does not change."""

    def __init__(
        self,
        kernel: Kernel,
        overlay: Overlay,
        known: Known,
        settings: NodeSettings,
        *,
        delays: HopDelays | None = None,
        answered: Answered | None = None,
        epoch_us: int = 0,
    ) -> None:
        """`delays` makes times of hops, `answered` gets complete rows, `epoch_us` is the time at the kernel's zero."""
        self.kernel, self.overlay, self.known = kernel, overlay, known
        self.points = np.zeros(0, np.uint64)  # of keys
        self._node_at = np.arange(len(overlay))  # at each place of the overlay
        self._place_of = np.arange(len(overlay))
        self.shard = Shard(known, settings, self._hosts_of, len(overlay))
        self.traffic = MessageCounts.of(len(overlay))
        self._delays = delays or steady(50_000)
        self._answered, self._epoch_us = answered, epoch_us
        self._boxes: dict[int, _Box] = {}

    @property
    def now_us(self) -> int:
        return self._epoch_us + self.kernel.now_us

    def submit(self, queries: Sequence[JoinQuery], homes: Sequence[int], until_us: int | None = None) -> list[int]:
        """Ask queries at nodes, about tuples from now on, for ever or up to a time."""
        numbers = [
            self.known.add_query(query, home, self.now_us, until_us) for query, home in zip(queries, homes, strict=True)
        ]
        self._send(self.shard.submit(numbers, np.array(homes, np.int32), self.now_us))
        return numbers

    def ask_once(self, query: JoinQuery, home: int) -> int:
        """Ask about the tuples there are: those published up to now."""
        number = self.known.add_query(query, home, -int(FOREVER), self.now_us)
        self._send(self.shard.submit([number], np.array([home], np.int32), self.now_us))
        return number

    def remove(self, query: int) -> None:
        """Let a query have no answers with tuples from now on; every node hears of it by a broadcast along fingers."""
        until_us = self.known.query_arrays.until_us
        until_us[query] = min(until_us[query], self.now_us - 1)  # what has ended already does not begin again
        self.traffic.queries[:-1] += 1  # a spanning tree: one message to each node but the first

    def places(self) -> NDArray[np.uint64]:
        """Where on the circle each node is."""
        return self.overlay.identifiers[self._place_of]

    def forget_counts(self) -> None:
        """Set the counters of messages and load to zero."""
        self.traffic = MessageCounts.of(len(self.overlay))
        self.shard.load = Load.of(len(self.overlay), self.known.widths.aliases)

    def sweep(self) -> None:
        """Let every node forget what can have no part in an answer any more."""
        self.shard.sweep(self.now_us)

    def publish(self, node: int, stream: str, rows: pa.Table) -> Ints:
        """Insert tuples at a node, now; their time is the time."""
        stamps = np.full(rows.num_rows, self.now_us, np.int64)
        tuples = self.known.add_tuples(stream, rows, stamps)
        self._send(self.shard.publish(node, tuples))
        return tuples

    def move(self, overlay: Overlay, nodes: Longs) -> int:
        """Let nodes take other places on the circle; how many keys have another host then.

        `nodes` gives the node at each place of the new overlay. Keys and all that is kept for them move at once, and
        the messages this takes are not counted.
        """
        self.overlay, self._node_at = overlay, nodes
        self._place_of = np.argsort(nodes)
        return self.shard.move(self._owners(self.points))

    def _owners(self, points: NDArray[np.uint64]) -> Ints:
        return self._node_at[self.overlay.owners(points)].astype(np.int32)

    def _trace(self, senders: Ints, keys: Ints, sent: Longs) -> Longs:
        """The hops of messages, each charged to who sends it on."""
        by_place = np.zeros(len(sent), np.int64)
        hops = self.overlay.trace(self._place_of[senders], self.points[keys], by_place)
        sent += by_place[self._place_of]
        return hops

    def _hosts_of(self, names: Sequence[str]) -> Ints:
        points = np.array([identifier_of(name) for name in names], np.uint64)
        self.points = np.concatenate([self.points, points])
        return self._owners(points)

    def _send(self, out: Out) -> None:
        if out.tuples is not None:
            self._send_tuples(out.tuples)
        if out.ask is not None:
            self._send_ask(out.ask)
        if out.queries is not None:
            self._send_queries(out.queries)
        if out.checks is not None:
            self._send_checks(out.checks)
        if out.answers is not None:
            np.add.at(self.traffic.answers, out.answers.messages, 1)
            if self._answered is not None and len(out.answers.rows):
                self._answer(out.answers.rows)

    def _send_tuples(self, mail: TupleMail) -> None:
        hops = np.empty(len(mail.keys), np.int64)
        for sender in np.unique(mail.senders).tolist():
            own = mail.senders == sender
            by_place = np.zeros(len(self.overlay), np.int64)
            hops[own] = self.overlay.grouped(int(self._place_of[sender]), self.points[mail.keys[own]], by_place)
            self.traffic.tuples += by_place[self._place_of]
        for part, delay_us in self._by_delay(hops):
            self._box(delay_us).tuples.append(TupleMail(mail.senders[part], mail.keys[part], mail.tuples[part]))

    def _send_queries(self, mail: QueryMail) -> None:
        pairs = mail.senders.astype(np.int64) << 32 | mail.keys
        _, first, of_pair = np.unique(pairs, return_index=True, return_inverse=True)
        direct = mail.hosts[first] != NONE
        hops = np.empty(len(first), np.int64)
        senders, keys = mail.senders[first], mail.keys[first]
        hops[direct] = senders[direct] != mail.hosts[first][direct]
        np.add.at(self.traffic.queries, senders[direct], hops[direct])
        hops[~direct] = self._trace(senders[~direct], keys[~direct], self.traffic.queries)
        each = hops[of_pair]
        np.add.at(self.traffic.rows, mail.senders, each)
        self.traffic.members += int(each @ mail.rows[:, COUNT])
        for part, delay_us in self._by_delay(each, of_pair):
            arriving = QueryMail(mail.senders[part], mail.keys[part], mail.hosts[part], mail.rows[part])
            self._box(delay_us).queries.append(arriving)

    def _send_checks(self, mail: CheckMail) -> None:
        """Rows that have reached their key already only wait until they are due."""
        hops = self._trace(mail.senders, mail.keys, self.traffic.answers)
        due_us = np.maximum(mail.due_us, self.now_us + self._delays(hops))
        for due in np.unique(due_us).tolist():
            part = due_us == due
            arriving = CheckMail(
                self.shard.host_of(mail.keys[part]), mail.keys[part], mail.due_us[part], mail.rows[part]
            )
            self._box(due - self.now_us).checks.append(arriving)

    def _send_ask(self, ask: Ask) -> None:
        """One message visits all owners a node asks, clockwise, and the last of them replies."""
        longest = self._tour(ask, ask.nodes, self.traffic.rates) + 1
        apart = np.zeros(len(self.overlay), np.int64)
        self._tour(ask, ask.wanted_by, apart)
        self.traffic.rates_apart += int(apart.sum())
        self._box(int(self._delays(np.array([longest]))[0])).asks.append(ask)

    def _tour(self, ask: Ask, tours: Ints, sent: Longs) -> int:
        """Charge the messages of tours by their numbers, each from one node; gives the hops of the longest."""
        away = self.points[ask.keys] - self.overlay.identifiers[self._place_of[ask.nodes]]
        order = np.lexsort((away, tours))
        nodes, keys, tours = ask.nodes[order], ask.keys[order], tours[order]
        owners = self.shard.host_of(keys)
        is_first = np.concatenate([[True], tours[1:] != tours[:-1]])
        sources = np.where(is_first, nodes, np.roll(owners, 1))
        is_known = ask.hosts[order] != NONE
        hops = (sources != owners).astype(np.int64)
        np.add.at(sent, sources[is_known], hops[is_known])
        hops[~is_known] = self._trace(sources[~is_known], keys[~is_known], sent)
        is_last = np.concatenate([is_first[1:], [True]])
        np.add.at(sent, owners[is_last], owners[is_last] != nodes[is_last])
        return int(np.add.reduceat(hops, np.flatnonzero(is_first)).max())

    def _box(self, delay_us: int) -> "_Box":
        """Where mail that arrives so much later is gathered."""
        due_us = self.kernel.now_us + delay_us
        if due_us not in self._boxes:
            self._boxes[due_us] = _Box()
            self.kernel.at(due_us, self._open)
        return self._boxes[due_us]

    def _open(self) -> None:
        """Handle all that has arrived by now."""
        now_us = self.now_us
        box = self._boxes.pop(self.kernel.now_us)
        if box.tuples:
            self._send(self.shard.take_tuples(joined(box.tuples), now_us))
        if box.queries:
            self._send(self.shard.take_queries(joined(box.queries), now_us))
        if box.asks:
            reported = [(ask, self.shard.ask_for(ask.keys, now_us), self.shard.host_of(ask.keys)) for ask in box.asks]
            self._send(self.shard.take_rates(reported, now_us))
        if box.checks:
            self._send(self.shard.take_checks(joined(box.checks), now_us))

    def _answer(self, rows: Ints) -> None:
        assert self._answered is not None
        for number in np.unique(rows[:, QUERY]).tolist():
            own = rows[rows[:, QUERY] == number]
            self.kernel.after(int(self._delays(np.ones(1, np.int64))[0]), partial(self._answered, number, own))

    def _by_delay(self, hops: Longs, group: Longs | None = None) -> list[tuple[NDArray[np.bool_], int]]:
        """Which mail arrives together, and when; mail of one group is one message and has one delay."""
        if group is None:
            delays = self._delays(hops)
        else:
            _, first = np.unique(group, return_index=True)
            delays = self._delays(hops[first])[group]
        return [(delays == delay, delay) for delay in np.unique(delays).tolist()]
