"""RJoin on nodes that come and go: every node has a shard of its own, and mail is sent hop by hop.

What a node keeps moves with its arc of the circle. Against crashes there are two remedies, each optional: renewal, by
which whoever published a tuple or asked a query says it again from time to time; and replication, by which a node's
successors have copies of what it keeps and go on with them. Both let mail come twice, so that shards are guarded and
answers are told apart by their tuples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.program.rjoin.compiled import CLASSES, MASK, NONE, QUERY, WAITS, Ints, Longs
from watersmeet.program.rjoin.shard import Ask, CheckMail, Hints, Out, QueryMail, Settings, Shard, TupleMail
from watersmeet.program.rjoin.tables import Known
from watersmeet.query.model import JoinQuery
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of, is_between
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.router import Address, Arc

HERE = 0  # the number of its only host in a node's own shard
_HEADER_BYTES, _HINT_BYTES, _VALUE_BYTES = 40, 24, 8


@dataclass(frozen=True, slots=True)
class TuplesCome:
    """Procedure 1: tuples for a key."""

    key: int
    tuples: Ints


@dataclass(frozen=True, slots=True)
class QueriesCome:
    """Queries for a key, and what their sender knows of where they could go next."""

    key: int
    rows: Ints
    hints: Hints


@dataclass(frozen=True, slots=True)
class RatesAsked:
    """A question on its way from owner to owner; whoever answers the last key replies."""

    number: int
    asker: Address
    left: tuple[int, ...]
    told: tuple[tuple[int, float, Address], ...] = ()


@dataclass(frozen=True, slots=True)
class RatesTold:
    """The reply."""

    number: int
    told: tuple[tuple[int, float, Address], ...]


@dataclass(frozen=True, slots=True)
class ChecksCome:
    """Complete rows that wait for the word on a ROWS window."""

    key: int
    due_us: Longs
    rows: Ints


@dataclass(frozen=True, slots=True)
class AnswersCome:
    """Complete rows of a query, for who asked it."""

    query: int
    rows: Ints


@dataclass(frozen=True, slots=True)
class StateMoves:
    """All that was kept for a key, for its new owner."""

    key: int
    rows: Ints
    tuples: Ints


@dataclass(frozen=True, slots=True)
class StateCopied:
    """What is kept for a key, for a node that may have to take over."""

    key: int
    rows: Ints
    tuples: Ints


@dataclass(frozen=True, slots=True)
class Care:
    """What is done against loss."""

    renew_us: int | None = None  # how often tuples and queries are said again
    replicas: int = 0  # how many successors have copies
    patience_us: int = 5_000_000  # how long a node waits for rates before it chooses without
    look_us: int = 2_000_000  # how often a node sees whether its successors have changed

    @property
    def is_needed(self) -> bool:
        return self.renew_us is not None or self.replicas > 0


@dataclass
class _Copies:
    """What another node keeps for a key."""

    rows: list[Ints] = field(default_factory=list)
    tuples: set[int] = field(default_factory=set)


class LivePeer:
    """One node: mail in from the overlay, its shard's mail out."""

    def __init__(self, kernel: Kernel, node: OverlayNode, known: Known, settings: Settings, care: Care) -> None:
        self.node, self.known, self.care = node, known, care
        self.shard = Shard(known, settings, lambda names: np.zeros(len(names), np.int32), nodes=1)
        self.answers: dict[int, list[Ints]] = {}
        self._kernel = kernel
        self._seen: set[tuple[int, bytes]] = set()  # answers, where they may come twice
        self._asks: dict[int, Ask] = {}
        self._points: dict[int, int] = {}  # of keys, by packed number
        self._kept: set[int] = set()  # keys with anything here
        self._copies: dict[int, _Copies] = {}
        self._copied_to: tuple[Address, ...] = ()
        self._published: list[Ints] = []
        self._asked: dict[int, int] = {}  # input queries and the keys they went to
        node.on_deliver(self._delivered)
        node.on_direct(self._received_directly)
        node.router.watch(self._moved)
        if care.renew_us is not None:
            kernel.after(care.renew_us, self._renew)
        if care.replicas:
            kernel.after(1, self._look_around)

    @property
    def is_up(self) -> bool:
        return self.node.is_up

    # ---- what users do

    def publish(self, tuples: Ints) -> None:
        """Insert tuples."""
        self._published.append(tuples)
        self._send(self.shard.publish(HERE, tuples))

    def submit(self, queries: Sequence[int]) -> None:
        """Ask queries that are known by number."""
        self._send(self.shard.submit(queries, np.zeros(len(queries), np.int32), self._kernel.now_us))

    def leave(self) -> None:
        """Go politely: who takes over gets all that is kept here, if what met here may meet again."""
        heirs = self.node.router.successors(1) if self.shard.settings.is_guarded else ()
        for key in sorted(self._kept) if heirs else ():
            rows, tuples = self._state(key)
            self.node.direct(heirs[0], StateMoves(key, rows, tuples), _size(rows, tuples))
        self._kept.clear()
        self.node.leave()

    # ---- mail in

    def _delivered(self, origin: Address, target: int, payload: object, hops: int) -> None:
        self._received(origin, payload)

    def _received_directly(self, sender: Address, payload: object) -> None:
        """Mail from one who believes that this node has a key; if it has not, the overlay knows who has."""
        is_member = self.node.router.is_ready  # one that is just leaving keeps nothing any more
        if isinstance(payload, StateMoves) and not is_member:
            self.node.route(self._point(payload.key), payload, _size(payload.rows, payload.tuples))
        elif isinstance(payload, QueriesCome) and not (is_member and self._is_mine(payload.key)):
            size = _HEADER_BYTES + payload.rows.nbytes + _HINT_BYTES * len(payload.hints.packed)
            self.node.route(self._point(payload.key), payload, size)
        else:
            self._received(sender, payload)

    def _received(self, sender: Address, payload: object) -> None:
        now_us = self._kernel.now_us
        match payload:
            case TuplesCome(key, tuples):
                self._take_tuples(key, tuples)
            case QueriesCome(key, rows, hints):
                self.shard.hear(hints, HERE)
                self._take_queries(key, rows)
            case RatesAsked():
                self._tell_rates(payload)
            case RatesTold(number, told):
                self._take_rates(number, told)
            case ChecksCome(key, due_us, rows):
                keys = self._numbers(key, len(rows))
                self._send(self.shard.take_checks(CheckMail(np.zeros_like(keys), keys, due_us, rows), now_us))
            case AnswersCome(query, rows):
                self._take_answers(query, rows)
            case StateMoves(key, rows, tuples):
                self._absorb(key, rows, tuples)
                self._kernel.after(self.care.look_us, self._hand_on)  # perhaps it is for another neighbour
            case StateCopied(key, rows, tuples):
                copies = self._copies.setdefault(key, _Copies())
                copies.rows.append(rows)
                copies.tuples.update(tuples.tolist())
            case _:
                pass  # another application's

    def _take_tuples(self, key: int, tuples: Ints) -> None:
        keys = self._numbers(key, len(tuples))
        self._kept.add(key)
        self._copy(key, np.zeros((0, self.shard.width), np.int32), tuples)
        self._send(self.shard.take_tuples(TupleMail(np.zeros_like(keys), keys, tuples), self._kernel.now_us))

    def _take_queries(self, key: int, rows: Ints) -> None:
        keys = self._numbers(key, len(rows))
        self._kept.add(key)
        self._copy(key, rows, np.zeros(0, np.int32))
        mail = QueryMail(np.zeros_like(keys), keys, np.full_like(keys, NONE), rows)
        self._send(self.shard.take_queries(mail, self._kernel.now_us))

    def _take_answers(self, query: int, rows: Ints) -> None:
        if self.shard.settings.is_guarded:
            first = CLASSES + max(1, self.known.widths.classes)
            by_tuples = {(query, row[first:].tobytes()): row for row in rows}
            fresh = [row for tuples, row in by_tuples.items() if tuples not in self._seen]
            self._seen.update(by_tuples)
            rows = np.array(fresh, np.int32).reshape(-1, self.shard.width)
        if len(rows):
            self.answers.setdefault(query, []).append(rows)

    def _tell_rates(self, asked: RatesAsked) -> None:
        own = [key for key in asked.left if self._is_mine(key)] or list(asked.left[:1])
        rates = self.shard.ask_for(self.shard.numbers(np.array(own, np.int64)), self._kernel.now_us)
        told = (*asked.told, *((key, float(rate), self.node.address) for key, rate in zip(own, rates, strict=True)))
        left = tuple(key for key in asked.left if key not in own)
        size = _HEADER_BYTES + _HINT_BYTES * (len(left) + len(told))
        if left:
            self.node.route(self._point(left[0]), replace(asked, left=left, told=told), size)
        else:
            self.node.direct(asked.asker, RatesTold(asked.number, told), size)

    def _take_rates(self, number: int, told: Sequence[tuple[int, float, Address]]) -> None:
        ask = self._asks.pop(number, None)
        if ask is None:
            return  # it came too late: the choice was made without
        found = {key: (rate, host) for key, rate, host in told}
        packed = self.shard.packed(ask.keys).tolist()
        rates = np.array([found.get(key, (0.0, NONE))[0] for key in packed], np.float32)
        hosts = np.array([found.get(key, (0.0, NONE))[1] for key in packed], np.int32)
        self._send(self.shard.take_rates([(ask, rates, hosts)], self._kernel.now_us))

    # ---- mail out

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
            rows = out.answers.rows
            for query in np.unique(rows[:, QUERY]).tolist():
                own = rows[rows[:, QUERY] == query]
                home = int(self.known.query_arrays.home[query])
                self.node.direct(home, AnswersCome(query, own), _HEADER_BYTES + own.nbytes)

    def _send_tuples(self, mail: TupleMail) -> None:
        width = self.known.tuple_arrays.value.shape[1]
        messages = []
        for key in np.unique(mail.keys).tolist():
            tuples = mail.tuples[mail.keys == key]
            packed = int(self.shard.packed(np.array([key], np.int32))[0])
            size = _HEADER_BYTES + _VALUE_BYTES * width * len(tuples)
            messages.append((self._point(packed), TuplesCome(packed, tuples), size))
        self.node.route_many(messages)

    def _send_queries(self, mail: QueryMail) -> None:
        routed = []
        for key in np.unique(mail.keys).tolist():
            own = mail.keys == key
            packed = int(self.shard.packed(np.array([key], np.int32))[0])
            rows = mail.rows[own]
            for row in rows[rows[:, MASK] == 0]:
                self._asked[int(row[QUERY])] = packed
            hints = self.shard.hints(rows, HERE)
            message = QueriesCome(packed, rows, hints)
            size = _HEADER_BYTES + rows.nbytes + _HINT_BYTES * len(hints.packed)
            host = int(mail.hosts[own][0])
            if host == NONE:
                routed.append((self._point(packed), message, size))
            else:  # if it is gone, the overlay knows who has taken over
                self.node.direct(host, message, size, partial(self.node.route, self._point(packed), message, size))
        self.node.route_many(routed)

    def _send_ask(self, ask: Ask) -> None:
        """One question goes round to all owners, clockwise from here."""
        own = self.node.router.identifier
        keys = sorted(self.shard.packed(ask.keys).tolist(), key=lambda key: (self._point(key) - own) % (1 << 64))
        self._asks[ask.number] = ask
        size = _HEADER_BYTES + _HINT_BYTES * len(keys)
        self.node.route(self._point(keys[0]), RatesAsked(ask.number, self.node.address, tuple(keys)), size)
        self._kernel.after(self.care.patience_us, self._take_rates, ask.number, ())

    def _send_checks(self, mail: CheckMail) -> None:
        for i, key in enumerate(self.shard.packed(mail.keys).tolist()):
            message = ChecksCome(key, mail.due_us[i : i + 1], mail.rows[i : i + 1])
            wait_us = max(0, int(mail.due_us[i]) - self._kernel.now_us)
            size = _HEADER_BYTES + mail.rows[i].nbytes
            self._kernel.after(wait_us, self._route, self._point(key), message, size)

    def _route(self, point: int, message: object, size: int) -> None:
        if self.is_up:
            self.node.route(point, message, size)

    # ---- nodes come and go

    def _moved(self, arc: Arc) -> None:
        """The arc is another: give away what is not ours any more, go on with what others kept and is ours now."""
        if not self.shard.settings.is_guarded:
            return
        for key in sorted(key for key in self._kept if not is_between(self._point(key), *arc)):
            self._kept.discard(key)
            rows, tuples = self._state(key)
            self.node.route(self._point(key), StateMoves(key, rows, tuples), _size(rows, tuples))
        for key in sorted(key for key in self._copies if is_between(self._point(key), *arc)):
            copies = self._copies.pop(key)
            rows = np.concatenate([np.zeros((0, self.shard.width), np.int32), *copies.rows])
            self._absorb(key, rows, np.array(sorted(copies.tuples), np.int32))

    def _hand_on(self) -> None:
        if self.is_up and self.node.router.is_ready:
            self._moved(self.node.router.arc)

    def _absorb(self, key: int, rows: Ints, tuples: Ints) -> None:
        """Take over a key; what meets here anew may have met before, which the guards see to."""
        if len(tuples):
            self._take_tuples(key, tuples)
        if len(rows):
            self._take_queries(key, rows)

    def _copy(self, key: int, rows: Ints, tuples: Ints) -> None:
        for address in self._copied_to:
            self.node.direct(address, StateCopied(key, rows, tuples), _size(rows, tuples))

    def _look_around(self) -> None:
        """Give new successors a copy of everything."""
        if not self.is_up:
            return
        successors = tuple(self.node.router.successors(self.care.replicas))
        fresh = [address for address in successors if address not in self._copied_to]
        self._copied_to = successors
        for key in sorted(self._kept) if fresh else ():
            rows, tuples = self._state(key)
            for address in fresh:
                self.node.direct(address, StateCopied(key, rows, tuples), _size(rows, tuples))
        self._kernel.after(self.care.look_us, self._look_around)

    def _renew(self) -> None:
        """Say again what was said here: queries first, so that tuples find them."""
        assert self.care.renew_us is not None
        if not self.is_up:
            return
        empty = Hints(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(0, np.int64))
        arrays, before_us = self.known.query_arrays, self._kernel.now_us - self.shard.settings.delay_us
        for query, key in sorted(self._asked.items()):
            if arrays.until_us[query] < before_us:
                continue
            row = self.known.first_row(query, self.shard.width)
            row[WAITS] = self._alias_at(query, key)
            self.node.route(self._point(key), QueriesCome(key, row[None, :], empty), _HEADER_BYTES + row.nbytes)
        keep_us, stamps = self.shard.settings.keep_us, self.known.tuple_arrays.ts_us
        self._published = [tuples for tuples in self._published if stamps[tuples].max() + keep_us >= before_us]
        for tuples in self._published:
            self._send(self.shard.publish(HERE, tuples))
        self._kernel.after(self.care.renew_us, self._renew)

    def _state(self, key: int) -> tuple[Ints, Ints]:
        """The queries and tuples kept for a key."""
        (number,) = self._numbers(key, 1)
        return self.shard.rows_at(number).copy(), self.shard.tuples_at(number)

    def _alias_at(self, query: int, key: int) -> int:
        return next(slot.alias for slot in self.known.shapes[query].slots if slot.attribute == key >> 32)

    def _is_mine(self, key: int) -> bool:
        return is_between(self._point(key), *self.node.router.arc)

    def _point(self, key: int) -> int:
        if key not in self._points:
            self._points[key] = identifier_of(self.known.key_name(key))
        return self._points[key]

    def _numbers(self, key: int, count: int) -> Ints:
        return np.repeat(self.shard.numbers(np.array([key], np.int64)), count)


def _size(rows: Ints, tuples: Ints) -> int:
    return _HEADER_BYTES + rows.nbytes + _VALUE_BYTES * len(tuples)


class LiveRJoin:
    """A network of live peers, and who does what there."""

    def __init__(self, kernel: Kernel, known: Known, settings: Settings, care: Care | None = None) -> None:
        self.care = care or Care()
        self.kernel, self.known = kernel, known
        self.settings = replace(settings, is_guarded=settings.is_guarded or self.care.is_needed)
        self.peers: dict[Address, LivePeer] = {}

    def add(self, node: OverlayNode) -> LivePeer:
        """Let a node take part."""
        self.peers[node.address] = peer = LivePeer(self.kernel, node, self.known, self.settings, self.care)
        return peer

    def submit(self, query: JoinQuery, address: Address, until_us: int | None = None) -> int:
        """Ask a query at a node, now."""
        number = self.known.add_query(query, address, self.kernel.now_us, until_us)
        self.peers[address].submit([number])
        return number

    def publish(self, address: Address, stream: str, rows: pa.Table) -> Ints:
        """Insert tuples at a node, now."""
        stamps: NDArray[np.int64] = np.full(rows.num_rows, self.kernel.now_us, np.int64)
        tuples = self.known.add_tuples(stream, rows, stamps)
        self.peers[address].publish(tuples)
        return tuples

    def answers(self, query: int) -> Ints:
        """The complete rows that have come to who asked."""
        peer = self.peers[int(self.known.query_arrays.home[query])]
        given = peer.answers.get(query)
        return np.concatenate(given) if given else np.zeros((0, peer.shard.width), np.int32)
