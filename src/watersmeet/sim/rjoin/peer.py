"""One node of RJoin where nodes come and go: mail in from the overlay, its shard's mail out, hop by hop.

What a node keeps moves with its arc of the circle. Against crashes there are two remedies, each optional: renewal, by
which whoever published a tuple or asked a query sends it again from time to time; and replication, by which a node's
successors have copies of what it keeps and go on with them. Both let mail come twice, so that shards are guarded and
answers are told apart by their tuples.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from watersmeet.program.rjoin.arrays import CLASSES, MASK, NO_VALUE, NONE, QUERY, WAITS, Ints
from watersmeet.program.rjoin.mail import Ask, CheckMail, Hints, Out, QueryMail, TupleMail
from watersmeet.program.rjoin.settings import NodeSettings
from watersmeet.program.rjoin.shard import Shard
from watersmeet.program.rjoin.tables import Known
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import SPACE, distance, identifier_of, is_between
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.router import Address, Arc
from watersmeet.sim.rjoin.copies import Copies
from watersmeet.sim.rjoin.fault_tolerance import FaultTolerance
from watersmeet.sim.rjoin.mail import (
    AnswersCome,
    ChecksCome,
    CopiesStand,
    Mail,
    QueriesCome,
    QueryEnds,
    RatesReply,
    RatesRequest,
    StateCopied,
    StateMoves,
    TuplesCome,
    size_of,
)

HERE = 0  # the number of its only host in a node's own shard
_UNCLAIMED_CHECKS = 4  # in so many checks at least three times a node that is there says so
_NO_HINTS = Hints(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(0, np.int64))

Answered = Callable[[int, Ints], object]  # a query's number and complete rows


class DynamicPeer:
    """One node: mail in from the overlay, its shard's mail out."""

    def __init__(
        self,
        kernel: Kernel,
        node: OverlayNode,
        known: Known,
        settings: NodeSettings,
        fault_tolerance: FaultTolerance,
        answered: Answered,
        epoch_us: int = 0,
    ) -> None:
        self.node, self.known, self.fault_tolerance = node, known, fault_tolerance
        self.shard = Shard(known, settings, lambda names: np.zeros(len(names), np.int32), nodes=1)
        self.waiting = 0  # rows that wait for the word on a ROWS window
        self._kernel, self._answered, self._epoch_us = kernel, answered, epoch_us
        self._seen: set[tuple[int, bytes]] = set()  # answers, where they may come twice
        self._asks: dict[int, Ask] = {}
        self._points: dict[int, int] = {}  # of keys, by packed number
        self._kept: set[int] = set()  # keys with anything here
        self.copies = Copies(self.shard.width, self._point)
        self._copied_to: tuple[Address, ...] = ()
        self._published: list[Ints] = []  # what is to be sent again
        self._asked: dict[int, tuple[int, int]] = {}  # input queries: the keys they went to, the aliases they wait for
        self._ends: dict[int, int] = {}  # of queries that were removed, as far as this node has heard
        node.on_deliver(self._delivered)
        node.on_direct(self._received_directly)
        node.router.watch(self._moved)
        if fault_tolerance.renew_us is not None:
            kernel.after(fault_tolerance.renew_us, self._renew)
        if fault_tolerance.replicas:
            kernel.after(1, self._check_successors)
        kernel.after(1 + kernel.random.randrange(fault_tolerance.sweep_us), self._sweep)

    @property
    def is_up(self) -> bool:
        return self.node.is_up

    @property
    def now_us(self) -> int:
        return self._epoch_us + self._kernel.now_us

    @property
    def is_busy(self) -> bool:
        """Whether anything waits here that will be sent."""
        return self.is_up and bool(self._asks or self.waiting)

    # ---- what users do

    def publish(self, tuples: Ints) -> None:
        """Send tuples to the owners of all their keys."""
        if self.fault_tolerance.renew_us is not None:
            self._published.append(tuples)
        self._send(self.shard.publish(HERE, tuples))

    def submit(self, queries: Sequence[int]) -> None:
        """Submit queries, given by their numbers."""
        self._send(self.shard.submit(queries, np.zeros(len(queries), np.int32), self.now_us))

    def remove(self, query: int) -> None:
        """Want no answers with tuples from now on, and let everybody know."""
        self._asked.pop(query, None)
        self._hear_end(query, self.now_us - 1)
        after, upto = self.node.router.arc
        if after != upto:
            self._spread_end(query, (upto, after))

    def leave(self) -> None:
        """Leave gracefully: who takes over gets all that is kept here, if what met here may meet again."""
        successors = self.node.router.successors(1) if self.shard.settings.is_guarded else ()
        for key in sorted(self._kept) if successors else ():
            self._direct(successors[0], StateMoves(key, *self._state(key)))
        self._kept.clear()
        self.node.leave()

    # ---- mail in

    def _delivered(self, origin: Address, target: int, payload: object, hops: int) -> None:
        self._received(origin, payload)

    def _received_directly(self, sender: Address, payload: object) -> None:
        """Mail from one who believes that this node has a key; if it has not, the overlay knows who has."""
        is_member = self.node.router.is_ready  # one that is just leaving keeps nothing any more
        if (isinstance(payload, StateMoves) and not is_member) or (
            isinstance(payload, QueriesCome) and not (is_member and self._is_mine(payload.key))
        ):
            self._route(payload.key, payload)
        else:
            self._received(sender, payload)

    def _received(self, sender: Address, payload: object) -> None:
        match payload:
            case TuplesCome(key, tuples):
                self._take_tuples(key, tuples)
            case QueriesCome(key, rows, hints):
                self.shard.hear(hints, HERE)
                self._take_queries(key, rows)
            case QueryEnds(query, until_us, arc):
                self._hear_end(query, until_us)
                if arc is not None:
                    self._pass_on_end(query, arc)
            case RatesRequest():
                self._tell_rates(payload)
            case RatesReply(number, reported):
                self._take_rates(number, reported)
            case ChecksCome(key, due_us, rows):
                keys = self._numbers(key, len(rows))
                self._send(self.shard.take_checks(CheckMail(np.zeros_like(keys), keys, due_us, rows), self.now_us))
            case AnswersCome(query, rows):
                self._take_answers(sender, query, rows)
            case StateMoves(key, rows, tuples):
                self._absorb(key, rows, tuples)
                self._kernel.after(self.fault_tolerance.check_us, self._hand_on)  # perhaps it is for another neighbour
            case StateCopied(key, rows, tuples):
                self.copies.take(sender, key, rows, tuples, self._kernel.now_us)
            case CopiesStand():
                self.copies.claimed(sender, payload.arc, self._kernel.now_us)
            case _:
                pass  # another application's

    def _take_tuples(self, key: int, tuples: Ints) -> None:
        keys = self._numbers(key, len(tuples))
        self._kept.add(key)
        self._copy(key, np.zeros((0, self.shard.width), np.int32), tuples)
        self._send(self.shard.take_tuples(TupleMail(np.zeros_like(keys), keys, tuples), self.now_us))

    def _take_queries(self, key: int, rows: Ints) -> None:
        if self._ends:
            rows = rows[[not self._is_beyond_end(row) for row in rows]]
            if not len(rows):
                return
        keys = self._numbers(key, len(rows))
        self._kept.add(key)
        self._copy(key, rows, np.zeros(0, np.int32))
        mail = QueryMail(np.zeros_like(keys), keys, np.full_like(keys, NONE), rows)
        self._send(self.shard.take_queries(mail, self.now_us))

    def _take_answers(self, sender: Address, query: int, rows: Ints) -> None:
        """Rows that are new; who sends answers to a query that was removed has not heard of it."""
        if query in self._ends:
            came = len(rows)
            rows = rows[[self._latest_us(row) <= self._ends[query] for row in rows]]
            if len(rows) < came:
                self._direct(sender, QueryEnds(query, self._ends[query]))
        if self.shard.settings.is_guarded:
            first = CLASSES + max(1, self.known.widths.classes)
            by_tuples = {(query, row[first:].tobytes()): row for row in rows}
            fresh = [row for tuples, row in by_tuples.items() if tuples not in self._seen]
            self._seen.update(by_tuples)
            rows = np.array(fresh, np.int32).reshape(-1, self.shard.width)
        if len(rows):
            self._answered(query, rows)

    def _tell_rates(self, asked: RatesRequest) -> None:
        own = [key for key in asked.left if self._is_mine(key)] or list(asked.left[:1])
        rates = self.shard.ask_for(self.shard.numbers(np.array(own, np.int64)), self.now_us)
        reported = (
            *asked.reported,
            *((key, float(rate), self.node.address) for key, rate in zip(own, rates, strict=True)),
        )
        left = tuple(key for key in asked.left if key not in own)
        if left:
            self._route(left[0], replace(asked, left=left, reported=reported))
        else:
            self._direct(asked.asker, RatesReply(asked.number, reported))

    def _take_rates(self, number: int, reported: Sequence[tuple[int, float, Address]]) -> None:
        ask = self._asks.pop(number, None)
        if ask is None:
            return  # it came too late: the choice was made without
        found = {key: (rate, host) for key, rate, host in reported}
        packed = self.shard.packed(ask.keys).tolist()
        rates = np.array([found.get(key, (0.0, NONE))[0] for key in packed], np.float32)
        hosts = np.array([found.get(key, (0.0, NONE))[1] for key in packed], np.int32)
        self._send(self.shard.take_rates([(ask, rates, hosts)], self.now_us))

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
                home = int(self.known.query_arrays.home[query])
                self._direct(home, AnswersCome(query, rows[rows[:, QUERY] == query]))

    def _send_tuples(self, mail: TupleMail, is_renewed: bool = False) -> None:
        packed = self.shard.packed(mail.keys)
        messages = [TuplesCome(key, mail.tuples[packed == key], is_renewed) for key in np.unique(packed).tolist()]
        self._route_many(messages)

    def _send_queries(self, mail: QueryMail) -> None:
        routed = []
        packed = self.shard.packed(mail.keys)
        for key in np.unique(packed).tolist():
            own = packed == key
            rows = mail.rows[own]
            for row in rows[rows[:, MASK] == 0]:
                self._asked[int(row[QUERY])] = key, int(row[WAITS])
            message = QueriesCome(key, rows, self.shard.hints(rows, HERE))
            host = int(mail.hosts[own][0])
            if host == NONE:
                routed.append(message)
            else:  # if it is gone, the overlay knows who has taken over
                self._direct(host, message, partial(self._route, key, message))
        self._route_many(routed)

    def _send_ask(self, ask: Ask) -> None:
        """One question goes round to all owners, clockwise from here."""
        own = self.node.router.identifier
        keys = sorted(self.shard.packed(ask.keys).tolist(), key=lambda key: distance(own, self._point(key)))
        self._asks[ask.number] = ask
        self._route(keys[0], RatesRequest(ask.number, self.node.address, tuple(keys)))
        self._kernel.after(self.fault_tolerance.rates_timeout_us, self._take_rates, ask.number, ())

    def _send_checks(self, mail: CheckMail) -> None:
        for i, key in enumerate(self.shard.packed(mail.keys).tolist()):
            message = ChecksCome(key, mail.due_us[i : i + 1], mail.rows[i : i + 1])
            self.waiting += 1
            self._kernel.after(max(0, int(mail.due_us[i]) - self.now_us), self._send_check, message)

    def _send_check(self, message: ChecksCome) -> None:
        self.waiting -= 1
        if self.is_up:
            self._route(message.key, message)

    def _route(self, key: int, mail: Mail) -> None:
        self.node.route(self._point(key), mail, self._size_of(mail))

    def _route_many(self, mails: Iterable[TuplesCome | QueriesCome | StateMoves]) -> None:
        self.node.route_many([(self._point(mail.key), mail, self._size_of(mail)) for mail in mails])

    def _direct(self, address: Address, mail: Mail, failed: Callable[[], None] | None = None) -> None:
        self.node.direct(address, mail, self._size_of(mail), failed)

    def _size_of(self, mail: Mail) -> int:
        return size_of(mail, self.known.tuple_arrays.value.shape[1])

    # ---- nodes come and go

    def _moved(self, arc: Arc) -> None:
        """The arc is another: give away what is not ours any more, go on with what others kept and is ours now."""
        if not self.shard.settings.is_guarded:
            return
        self._update_replicas()
        gone = sorted(key for key in self._kept if not is_between(self._point(key), *arc))
        self._kept.difference_update(gone)
        self._route_many(StateMoves(key, *self._state(key)) for key in gone)
        for key in self.copies.within(arc):
            self._absorb(key, *self.copies.pop(key))

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
            self._direct(address, StateCopied(key, rows, tuples), self._update_replicas)

    def _update_replicas(self) -> None:
        """Give new successors a copy of everything; those that are none any more can forget theirs.

        A copy that is not delivered leads here at once: the router has another successor in the place of the dead one.
        """
        if not self.fault_tolerance.replicas or not self.node.router.is_ready:
            return
        before, self._copied_to = self._copied_to, tuple(self.node.router.successors(self.fault_tolerance.replicas))
        fresh = [address for address in self._copied_to if address not in before]
        for key in sorted(self._kept) if fresh else ():
            rows, tuples = self._state(key)
            for address in fresh:
                self._direct(address, StateCopied(key, rows, tuples), self._update_replicas)
        for address in before if self._copied_to else ():
            if address not in self._copied_to:
                self._direct(address, CopiesStand(None))

    def _check_successors(self) -> None:
        """See who the successors are, say that this node is there, and hand on what has no owner that knows of it."""
        if not self.is_up:
            return
        self._kernel.after(self.fault_tolerance.check_us, self._check_successors)
        if not self.node.router.is_ready:
            return
        self._update_replicas()
        for address in self._copied_to if self._kept else ():
            self._direct(address, CopiesStand(self.node.router.arc), self._update_replicas)
        orphans = self.copies.pop_orphans(self._kernel.now_us - _UNCLAIMED_CHECKS * self.fault_tolerance.check_us)
        self._route_many(StateMoves(*orphan) for orphan in orphans)

    def _renew(self) -> None:
        """Say again what was said here: queries first, so that tuples find them."""
        assert self.fault_tolerance.renew_us is not None
        if not self.is_up:
            return
        arrays, before_us = self.known.query_arrays, self.now_us - self.shard.settings.delay_us
        for query, (key, alias) in sorted(self._asked.items()):
            if arrays.until_us[query] < before_us:
                continue
            row = self.known.first_row(query, self.shard.width)
            row[WAITS] = alias
            self._route(key, QueriesCome(key, row[None, :], _NO_HINTS, is_renewed=True))
        keep_us, stamps = self.shard.settings.keep_us, self.known.tuple_arrays.ts_us
        self._published = [tuples for tuples in self._published if stamps[tuples].max() + keep_us >= before_us]
        for tuples in self._published:
            mail = self.shard.publish(HERE, tuples).tuples
            assert mail is not None
            self._send_tuples(mail, is_renewed=True)
        self._kernel.after(self.fault_tolerance.renew_us, self._renew)

    # ---- what is over

    def _hear_end(self, query: int, until_us: int) -> None:
        self._ends[query] = min(until_us, self._ends.get(query, until_us))

    def _pass_on_end(self, query: int, arc: Arc) -> None:
        """Tell those of an arc on both sides of this node's own."""
        (after, upto), (own_after, own_upto) = arc, self.node.router.arc
        whole = distance(after, upto)
        if 0 < distance(after, own_after) < whole:
            self._spread_end(query, (after, own_after))
        if 0 < distance(after, own_upto) < whole:
            self._spread_end(query, (own_upto, upto))

    def _spread_end(self, query: int, arc: Arc) -> None:
        after, upto = arc
        middle = (after + (distance(after, upto) + 1) // 2) % SPACE
        message = QueryEnds(query, self._ends[query], arc)
        self.node.route(middle, message, self._size_of(message))

    def _is_beyond_end(self, row: Ints) -> bool:
        """Whether a query was removed before the last of the tuples bound here, or so long ago that none is left."""
        end_us = self._ends.get(int(row[QUERY]))
        if end_us is None:
            return False
        return self._latest_us(row) > end_us or self.shard.is_over(row, self.now_us, self._ends)

    def _latest_us(self, row: Ints) -> int:
        refs = row[CLASSES + max(1, self.known.widths.classes) :]
        return int(self.known.tuple_arrays.ts_us[refs[refs >= 0]].max(initial=0))

    def _sweep(self) -> None:
        """Evict what can have no part in an answer any more, and what was handed over to others."""
        if not self.is_up:
            return
        self._kernel.after(self.fault_tolerance.sweep_us, self._sweep)
        shard, now_us = self.shard, self.now_us
        elsewhere = sorted(set(shard.occupied().tolist()) - self._kept)
        if elsewhere:
            shard.forget(shard.numbers(np.array(elsewhere, np.int64)))
        shard.sweep(now_us, self._ends)
        self._kept &= set(shard.occupied().tolist())
        stamps, before_us = self.known.tuple_arrays.ts_us, now_us - shard.settings.delay_us

        def needed(key: int, tuples: Iterable[int]) -> set[int]:
            is_held = key & 0xFFFFFFFF == NO_VALUE
            reach_us = shard.settings.hold_us if is_held else shard.settings.keep_us
            return {number for number in tuples if stamps[number] + reach_us >= before_us}

        self.copies.sweep(lambda row: not shard.is_over(row, now_us, self._ends), needed)

    # ---- small things

    def _state(self, key: int) -> tuple[Ints, Ints]:
        """The queries and tuples kept for a key."""
        (number,) = self._numbers(key, 1)
        return self.shard.rows_at(number).copy(), self.shard.tuples_at(number)

    def _is_mine(self, key: int) -> bool:
        return is_between(self._point(key), *self.node.router.arc)

    def _point(self, key: int) -> int:
        if key not in self._points:
            self._points[key] = identifier_of(self.known.key_name(key))
        return self._points[key]

    def _numbers(self, key: int, count: int) -> Ints:
        return np.repeat(self.shard.numbers(np.array([key], np.int64)), count)
