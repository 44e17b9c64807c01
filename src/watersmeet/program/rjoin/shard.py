"""RJoin without a network (Procedures 1-3, RIC of sections 6 and 7): mail that arrives in, mail to be sent out.

A shard does the work of one node or of many: every piece of state belongs to a key, every key has a host, and what one
host knows another does not. The caller carries the mail, keeps the time, and says who hosts a key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.errors import InputError
from watersmeet.program.rjoin import compiled
from watersmeet.program.rjoin.compiled import (
    CLASSES,
    COUNT,
    FOREVER,
    MASK,
    NO_VALUE,
    NONE,
    QUERY,
    WAITS,
    Candidates,
    Ints,
    Keys,
    Longs,
    Store,
)
from watersmeet.program.rjoin.tables import Known, grown
from watersmeet.query.windows import Rows, Unbounded

HostsOf = Callable[[Sequence[str]], Ints]  # who hosts keys, given by their names


class Strategy(Enum):
    """How a query's next key is chosen."""

    RJOIN = "rjoin"  # the lowest rate of tuples, as far as nodes have heard
    RANDOM = "random"
    FIRST = "first"  # in the order of the WHERE clause
    WORST = "worst"  # the highest rate there is, known by magic: what a bad choice can cost


_NUMBER = {
    Strategy.RJOIN: compiled.RJOIN,
    Strategy.RANDOM: compiled.RANDOM,
    Strategy.FIRST: compiled.FIRST,
    Strategy.WORST: compiled.WORST,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What all nodes agree on."""

    strategy: Strategy = Strategy.RJOIN
    pairs: bool = True  # whether a rewritten query may wait at the attribute level (candidates of kind a)
    members: bool = True  # tell the members of alike rows apart; without, answers are counted and not made
    rate_window_us: int = 60_000_000  # how far back a node looks when it is asked for a rate
    rate_age_us: int = int(FOREVER)  # how long such a figure is believed
    keep_us: int = int(FOREVER)  # how long a tuple can matter at the value level: the longest window of any query
    hold_us: int = int(FOREVER)  # and at the attribute level, where with no `pairs` only input queries may look
    delay_us: int = 60_000_000  # the paper's Delta: after it, nothing that a tuple has caused is still under way
    is_guarded: bool = False  # the same mail may come twice
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TupleMail:
    """Tuples on their way to keys."""

    senders: Ints
    keys: Ints
    tuples: Ints


@dataclass(frozen=True, slots=True)
class QueryMail:
    """Queries on their way to keys, each from where it was rewritten; a host that is known is one hop away."""

    senders: Ints
    keys: Ints
    hosts: Ints  # NONE where the sender does not know it
    rows: Ints


@dataclass(frozen=True, slots=True)
class Ask:
    """Nodes want the rates of keys; what waits for them is known by the number."""

    number: int
    nodes: Ints
    keys: Ints
    hosts: Ints  # NONE where the node does not know it
    wanted_by: Ints  # the first query that needs the rate, by a number among those of the moment


@dataclass(frozen=True, slots=True)
class Hints:
    """Rates and hosts of keys, and when that was learned."""

    packed: Longs
    rates: NDArray[np.float32]
    hosts: Ints
    learned_us: Longs


@dataclass(frozen=True, slots=True)
class CheckMail:
    """Complete rows on their way to where all tuples of a stream come by, which knows the rows of a ROWS window."""

    senders: Ints
    keys: Ints
    due_us: Longs  # when no tuple that counts can still be under way
    rows: Ints  # each waits for the word on one alias


@dataclass(frozen=True, slots=True)
class AnswerMail:
    """Complete rows on their way to who asked; rows whose members are not told apart are left out, and counted."""

    rows: Ints
    messages: Ints  # the sender of each message: all answers to one query from one node at one moment


@dataclass(frozen=True, slots=True)
class Out:
    """All that is to be sent."""

    tuples: TupleMail | None = None
    queries: QueryMail | None = None
    ask: Ask | None = None
    checks: CheckMail | None = None
    answers: AnswerMail | None = None


@dataclass
class Load:
    """What each node has had to process: queries one by one, and by rows in which alike ones are one."""

    queries: Longs
    rows: Longs
    tuples: Longs
    searches: Longs  # tuples that came to a key at which queries waited
    levels: Longs  # queries received by all nodes, by how many of their aliases were bound

    @classmethod
    def of(cls, nodes: int, aliases: int) -> "Load":
        queries, rows, tuples, searches = np.zeros((4, nodes), np.int64)
        return cls(queries, rows, tuples, searches, np.zeros(aliases + 1, np.int64))


@dataclass(frozen=True, slots=True)
class Stored:
    """What each node keeps: rewritten queries, one by one and by rows, and tuples at the value and attribute level."""

    queries: Longs
    rows: Longs
    tuples: Longs
    held: Longs


@dataclass
class Shard:
    """The state of RJoin at its hosts."""

    known: Known
    settings: Settings
    hosts_of: HostsOf
    nodes: int  # hosts are numbered below this
    names: list[str] = field(default_factory=list)  # of keys, by number

    def __post_init__(self) -> None:
        self.load = Load.of(self.nodes, self.known.widths.aliases)
        self.answers = np.zeros(16, np.int64)  # of each query, made here
        self._classes = max(1, self.known.widths.classes)
        self.width = CLASSES + self._classes + (self.known.widths.aliases if self.settings.members else 0)
        self._keys = Keys(
            slots=np.full(256, NONE, np.int64),
            number=np.zeros(256, np.int32),
            packed=np.zeros(128, np.int64),
            host=np.zeros(128, np.int32),
            first_row=np.full(128, NONE, np.int32),
            first_tuple=np.full(128, NONE, np.int32),
            seen=np.zeros(128, np.int64),
            seen_before=np.zeros(128, np.int64),
            epoch=np.full(128, NONE, np.int64),
        )
        self._store = Store(
            row=np.zeros((64, self.width), np.int32),
            after=np.zeros(64, np.int32),
            alike=np.full(128, NONE, np.int32),
            tuple_of=np.zeros(64, np.int32),
            tuple_after=np.zeros(64, np.int32),
        )
        self._keys_of_rows = np.zeros(64, np.int32)
        self._counts = np.zeros(3, np.int64)  # rows, tuples, rows that are not alike
        self._table = Candidates(
            slots=np.full(256, NONE, np.int64),
            rate=np.zeros(256, np.float32),
            host=np.zeros(256, np.int32),
            learned_us=np.zeros(256, np.int64),
        )
        self._entries = 0
        self._parked: dict[int, tuple[Ints, Ints]] = {}
        self._asks = 0

    # ---- what users do

    def first_key(self, stream: str) -> int:
        """The key at which every tuple of a stream is held: its first attribute."""
        attribute = self.known.catalog.first_attribute[self.known.catalog.streams.index(stream)]
        return int(self.keys_of(np.array([attribute], np.int32), np.array([NO_VALUE], np.int32))[0])

    def publish(self, node: int, tuples: Ints) -> Out:
        """Procedure 1: every tuple goes to each of its attributes, and to each of them with its value."""
        if not len(tuples):
            return Out()
        arrays, catalog = self.known.tuple_arrays, self.known.catalog
        senders, keys, refs = [], [], []
        for one in tuples:
            stream = arrays.stream[one]
            columns = len(catalog.indexed(catalog.streams[stream]))
            attributes = np.arange(columns, dtype=np.int32) + catalog.first_attribute[stream]
            values = arrays.value[one, :columns]
            has_value = values != 0
            wanted = np.concatenate([attributes, attributes[has_value]])
            numbers = self.keys_of(wanted, np.concatenate([np.full(columns, NO_VALUE, np.int32), values[has_value]]))
            keys.append(numbers)
            refs.append(np.full(len(numbers), one, np.int32))
            senders.append(np.full(len(numbers), node, np.int32))
        return Out(tuples=TupleMail(np.concatenate(senders), np.concatenate(keys), np.concatenate(refs)))

    def submit(self, queries: Sequence[int], nodes: Ints, now_us: int) -> Out:
        """Input queries go to one of their pairs of relation and attribute, chosen where they are asked."""
        if not len(queries):
            return Out()
        if not self.settings.members:
            for number in queries:
                self._check_countable(number)
        rows = np.stack([self.known.first_row(number, self.width) for number in queries])
        return self._place(rows, nodes, now_us)

    def ask_for(self, keys: Ints, now_us: int) -> NDArray[np.float32]:
        """The rates of keys hosted here."""
        return compiled.rates_of(self._keys, keys, now_us, self.settings.rate_window_us)  # type: ignore[no-any-return]

    # ---- what mail does

    def take_tuples(self, mail: TupleMail, now_us: int) -> Out:
        """Procedure 2."""
        self._make_room(tuples=len(mail.keys))
        hosts = self._keys.host[mail.keys]
        np.add.at(self.load.tuples, hosts, 1)
        np.add.at(self.load.searches, hosts[self._keys.first_row[mail.keys] != NONE], 1)
        made = compiled.meet_tuples(
            self.known.query_arrays,
            self.known.tuple_arrays,
            self._keys,
            self._store,
            self._counts,
            mail.tuples,
            mail.keys,
            now_us,
            self.settings.rate_window_us,
            self._classes,
            self.settings.members,
            self.settings.is_guarded,
            self._room_for_answers(),
        )
        return self._go_on(made, hosts, now_us)

    def take_queries(self, mail: QueryMail, now_us: int) -> Out:
        """Procedure 3, for input queries too: tuples that came early are found at the attribute level as well."""
        self._make_room(rows=len(mail.keys))
        hosts = self._keys.host[mail.keys]
        if self.settings.strategy is Strategy.RJOIN:
            slots = self._candidate_keys(mail.rows)
            self._room_for_entries(slots.size)
            self._entries += compiled.pass_on(self._table, slots, mail.senders, hosts)
        is_rewritten = mail.rows[:, MASK] != 0
        np.add.at(self.load.queries, hosts[is_rewritten], mail.rows[is_rewritten, COUNT])
        np.add.at(self.load.rows, hosts[is_rewritten], 1)
        bound = np.bitwise_count(mail.rows[:, MASK])
        np.add.at(self.load.levels, bound[is_rewritten], mail.rows[is_rewritten, COUNT])
        made = compiled.meet_rows(
            self.known.query_arrays,
            self.known.tuple_arrays,
            self._keys,
            self._store,
            self._keys_of_rows,
            self._counts,
            mail.rows,
            mail.keys,
            self._classes,
            self.settings.members,
            self.settings.is_guarded,
            self._room_for_answers(),
        )
        return self._go_on(made, hosts, now_us)

    def take_rates(self, told: Sequence[tuple[Ask, NDArray[np.float32], Ints]], now_us: int) -> Out:
        """Rates and hosts of keys have come: what waited for them goes on."""
        for ask, rates, hosts in told:
            self._room_for_entries(len(ask.keys))
            learned = np.full(len(ask.keys), now_us, np.int64)
            self._entries += compiled.learn(self._table, ask.nodes, ask.keys, rates, hosts, learned)
        parked = [self._parked.pop(ask.number) for ask, _, _ in told]
        rows, nodes = (np.concatenate(parts) for parts in zip(*parked, strict=True))
        return self._place(rows, nodes, now_us, asks=False)  # what aged meanwhile is believed, or it would never end

    def take_checks(self, mail: CheckMail, now_us: int) -> Out:
        """Complete rows wait here for tuples still under way, then go on if they keep to a ROWS window."""
        is_due = mail.due_us <= now_us
        good = np.array(
            [due and self._is_among_last(r, k) for r, k, due in zip(mail.rows, mail.keys, is_due, strict=True)], bool
        )
        rows, nodes = mail.rows[good], self._keys.host[mail.keys[good]]
        last = np.array([self._last_check(row) for row in rows], bool)
        parts = [CheckMail(mail.senders[~is_due], mail.keys[~is_due], mail.due_us[~is_due], mail.rows[~is_due])]
        if not last.all():
            parts.append(self._next_checks(rows[~last], nodes[~last]))
        checks = joined(parts)
        return Out(checks=checks if len(checks.keys) else None, answers=self._answers(rows[last], nodes[last]))

    def _last_check(self, row: Ints) -> bool:
        sources = self.known.queries[row[QUERY]].sources
        return not any(isinstance(source.window, Rows) for source in sources[row[WAITS] + 1 :])

    def sweep(self, now_us: int, ends: Mapping[int, int] | None = None) -> None:
        """Forget what can have no part in an answer any more: windows that are over, queries that have ended.

        `ends` are times at which queries end by what is known here alone.
        """
        settings = self.settings
        compiled.sweep(
            self._queries_ending(ends),
            self.known.tuple_arrays,
            self._keys,
            self._store,
            self._keys_of_rows,
            self._counts,
            len(self.names),
            now_us - settings.delay_us,
            settings.keep_us,
            settings.hold_us,
            self._classes,
            settings.members,
        )
        self._store = self._with_alike(self._store, int(self._counts[0]))

    def forget(self, keys: Ints) -> None:
        """Drop all that is kept for keys whose host is elsewhere now; a sweep must follow, which mends the lists."""
        self._keys.first_tuple[keys] = NONE
        count = self._counts[0]
        stays = ~np.isin(self._keys_of_rows[:count], keys)
        kept = int(np.count_nonzero(stays))
        self._store.row[:kept] = self._store.row[:count][stays]
        self._keys_of_rows[:kept] = self._keys_of_rows[:count][stays]
        self._counts[0] = kept

    def is_over(self, row: Ints, now_us: int, ends: Mapping[int, int]) -> bool:
        """Whether a sweep would drop a row whose members are told apart."""
        end_us = compiled.end_of(self.known.query_arrays, self.known.tuple_arrays, row, self._classes)
        return bool(min(end_us, ends.get(int(row[QUERY]), FOREVER)) < now_us - self.settings.delay_us)

    def _queries_ending(self, ends: Mapping[int, int] | None) -> compiled.Queries:
        arrays = self.known.query_arrays
        if not ends:
            return arrays
        until_us = arrays.until_us.copy()
        for number, end_us in ends.items():
            until_us[number] = min(until_us[number], end_us)
        return arrays._replace(until_us=until_us)

    # ---- what keys are

    def keys_of(self, attributes: Ints, values: Ints) -> Ints:
        """The numbers of keys, new ones where they are not known yet."""
        self._room_for_keys(len(attributes))
        before = len(self.names)
        numbers, known = compiled.number_keys(self._keys, attributes, values, before)
        self._name_keys(before, known)
        return numbers  # type: ignore[no-any-return]

    def packed(self, keys: Ints) -> Longs:
        """Keys as everybody knows them: attribute and value in one number."""
        return self._keys.packed[keys]

    def numbers(self, packed: Longs) -> Ints:
        """The numbers keys have here."""
        return self.keys_of((packed >> 32).astype(np.int32), (packed & 0xFFFFFFFF).astype(np.int32))

    def occupied(self) -> Longs:
        """The keys for which anything is kept, packed."""
        known = len(self.names)
        has_any = (self._keys.first_row[:known] != NONE) | (self._keys.first_tuple[:known] != NONE)
        packed: Longs = self._keys.packed[:known][has_any]
        return packed

    def rows_at(self, key: int) -> Ints:
        """The queries that wait at a key."""
        rows: Ints = self._store.row[: self._counts[0]][self._keys_of_rows[: self._counts[0]] == key]
        return rows

    def tuples_at(self, key: int) -> Ints:
        """The tuples kept for a key, as they came."""
        found: Ints = np.sort(compiled.tuples_at(self._keys, self._store, key))
        return found

    def hints(self, rows: Ints, node: int) -> Hints:
        """What a node knows of the keys at which queries could wait next, to go along with them."""
        slots = np.unique(self._candidate_keys(rows))
        keys = slots[slots != NONE]
        rates, hosts, learned_us = compiled.recall(self._table, node, keys)
        is_known = learned_us != NONE
        return Hints(self.packed(keys[is_known]), rates[is_known], hosts[is_known], learned_us[is_known])

    def hear(self, hints: Hints, node: int) -> None:
        """Take what came along with queries."""
        self._room_for_entries(len(hints.packed))
        nodes = np.full(len(hints.packed), node, np.int32)
        keys = self.numbers(hints.packed)
        self._entries += compiled.learn(self._table, nodes, keys, hints.rates, hints.hosts, hints.learned_us)

    def host_of(self, keys: Ints) -> Ints:
        """Who hosts keys."""
        return self._keys.host[keys]

    def move(self, hosts: Ints) -> int:
        """Give keys to other hosts, with all that is kept for them; how many keys have moved.

        Whoever knew the host of such a key has to look for it again.
        """
        has_moved = self._keys.host[: len(hosts)] != hosts
        self._keys.host[: len(hosts)] = hosts
        used = np.flatnonzero(self._table.slots != NONE)
        self._table.host[used[has_moved[self._table.slots[used] & 0xFFFFFFFF]]] = NONE
        return int(np.count_nonzero(has_moved))

    def stored(self) -> Stored:
        """What each node keeps now."""
        rows, keys = self._store.row[: self._counts[0]], self._keys_of_rows[: self._counts[0]]
        is_rewritten = rows[:, MASK] != 0
        hosts = self._keys.host[keys[is_rewritten]]
        kept = compiled.tuples_by_key(self._keys, self._store, len(self.names))
        has_value = (self._keys.packed[: len(self.names)] & 0xFFFFFFFF) != NO_VALUE
        key_hosts = self._keys.host[: len(self.names)]

        def counted(of: Ints, weights: Longs | Ints | None = None) -> Longs:
            return np.bincount(of, weights, self.nodes).astype(np.int64)

        return Stored(
            queries=counted(hosts, rows[is_rewritten, COUNT]),
            rows=counted(hosts),
            tuples=counted(key_hosts[has_value], kept[has_value]),
            held=counted(key_hosts[~has_value], kept[~has_value]),
        )

    def weights(self) -> Longs:
        """How much is kept for each key: rewritten queries and tuples at the value level."""
        rows, keys = self._store.row[: self._counts[0]], self._keys_of_rows[: self._counts[0]]
        is_rewritten = rows[:, MASK] != 0
        queries = np.bincount(keys[is_rewritten], rows[is_rewritten, COUNT], len(self.names)).astype(np.int64)
        has_value = (self._keys.packed[: len(self.names)] & 0xFFFFFFFF) != NO_VALUE
        return queries + np.where(has_value, compiled.tuples_by_key(self._keys, self._store, len(self.names)), 0)

    # ---- how it is done

    def _check_countable(self, number: int) -> None:
        query = self.known.queries[number]
        if not all(isinstance(source.window, Unbounded) for source in query.sources):
            raise InputError("answers can only be counted for queries whose windows are all UNBOUNDED")
        if query.distinct or self.known.shapes[number].residuals:
            raise InputError("answers can only be counted for queries without DISTINCT that are joins of plain columns")

    def _go_on(self, made: Any, hosts: Ints, now_us: int) -> Out:
        rows, made_at, complete, completed_at, replies = made
        out = Out()
        if self.settings.members:
            if len(complete):
                out = self._finish(complete, self._keys.host[completed_at])
        elif replies.any():
            out = Out(answers=AnswerMail(np.zeros((0, self.width), np.int32), np.repeat(hosts, replies)))
        if not len(rows):
            return out
        nodes = self._keys.host[made_at]
        if not self.settings.members:
            kept = compiled.merge(rows, nodes)
            rows, nodes = rows[:kept], nodes[:kept]
        placed = self._place(rows, nodes, now_us)
        return replace(out, queries=placed.queries, ask=placed.ask)

    def _finish(self, rows: Ints, nodes: Ints) -> Out:
        """Complete rows that satisfy what only they can show go to who asked, by way of those who know ROWS windows."""
        good = np.ones(len(rows), np.bool_)
        asks_rows = np.zeros(len(rows), np.bool_)
        for number in np.unique(rows[:, QUERY]).tolist():
            own = rows[:, QUERY] == number
            residuals = self.known.shapes[number].residuals
            if residuals:
                good[own] = self.known.judge("", residuals, table_of(self.known, rows[own], number))
            asks_rows[own] = any(isinstance(source.window, Rows) for source in self.known.queries[number].sources)
        direct, checked = good & ~asks_rows, good & asks_rows
        rows[:, WAITS] = NONE
        checks = self._next_checks(rows[checked], nodes[checked]) if checked.any() else None
        return Out(checks=checks, answers=self._answers(rows[direct], nodes[direct]))

    def _answers(self, rows: Ints, nodes: Ints) -> AnswerMail | None:
        if not len(rows):
            return None
        pairs = np.unique(nodes.astype(np.int64) << 32 | rows[:, QUERY])
        return AnswerMail(rows, (pairs >> 32).astype(np.int32))

    def _next_checks(self, rows: Ints, nodes: Ints) -> CheckMail:
        """Send rows on to the next of their ROWS windows; each has one left."""
        keys, due_us = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
        for i, row in enumerate(rows):
            sources = self.known.queries[row[QUERY]].sources
            row[WAITS] = next(n for n in range(row[WAITS] + 1, len(sources)) if isinstance(sources[n].window, Rows))
            keys[i] = self.first_key(sources[row[WAITS]].stream)
            due_us[i] = self._latest_us(row) + self.settings.delay_us
        return CheckMail(nodes, keys, due_us, rows)

    def _latest_us(self, row: Ints) -> int:
        refs = row[CLASSES + self._classes :]
        return int(self.known.tuple_arrays.ts_us[refs[refs >= 0]].max())

    def _is_among_last(self, row: Ints, key: int) -> bool:
        """Whether the tuple of the alias a row waits for is in its ROWS window, as seen at the row's latest tuple."""
        source = self.known.queries[row[QUERY]].sources[row[WAITS]]
        assert isinstance(source.window, Rows)
        held = compiled.tuples_at(self._keys, self._store, key)
        stamps, start_us = self.known.tuple_arrays.ts_us, self.known.query_arrays.start_us[row[QUERY]]
        one = row[CLASSES + self._classes + row[WAITS]]
        is_later = (stamps[held] > stamps[one]) | ((stamps[held] == stamps[one]) & (held > one))
        later = held[is_later & (stamps[held] >= start_us)]
        return int(np.count_nonzero(stamps[later] <= self._latest_us(row))) < source.window.count

    def _place(self, rows: Ints, nodes: Ints, now_us: int, asks: bool = True) -> Out:
        """Choose the next keys of rows at the nodes where they are; rows whose choice needs rates wait for them."""
        settings = self.settings
        slots = self._candidate_keys(rows)
        ask = None
        if settings.strategy is Strategy.RJOIN and asks:
            oldest_us = now_us - settings.rate_age_us
            lacks, asking, asked, hosts, wanted_by = compiled.missing(self._table, slots, nodes, oldest_us)
            if len(asked):
                self._asks += 1
                ask = Ask(self._asks, asking, asked, hosts, wanted_by)
                self._parked[ask.number] = (rows[lacks], nodes[lacks])
                rows, nodes, slots = rows[~lacks], nodes[~lacks], slots[~lacks]
        if not len(rows):
            return Out(ask=ask)
        keys, known_hosts = compiled.choose(
            self.known.query_arrays,
            self._keys,
            self._table,
            rows,
            nodes,
            slots,
            _NUMBER[settings.strategy],
            settings.seed,
            now_us,
            settings.rate_window_us,
        )
        return Out(queries=QueryMail(nodes, keys, known_hosts, rows), ask=ask)

    def _candidate_keys(self, rows: Ints) -> Ints:
        self._room_for_keys(rows.shape[0] * self.known.widths.slots)
        before = len(self.names)
        slots, known = compiled.candidate_keys(
            self.known.query_arrays, self._keys, rows, before, self._classes, self.settings.pairs
        )
        self._name_keys(before, known)
        return slots  # type: ignore[no-any-return]

    def _name_keys(self, before: int, known: int) -> None:
        if known == before:
            return
        names = [self.known.key_name(packed) for packed in self._keys.packed[before:known].tolist()]
        self.names += names
        self._keys.host[before:known] = self.hosts_of(names)

    def _room_for_keys(self, more: int) -> None:
        wanted = len(self.names) + more
        if wanted > len(self._keys.packed):
            by_number = Keys(*(grown(array, wanted, NONE) for array in self._keys))
            by_number.seen[len(self.names) :] = by_number.seen_before[len(self.names) :] = 0
            self._keys = by_number._replace(slots=self._keys.slots, number=self._keys.number)
        if 2 * wanted > len(self._keys.slots):
            size = 1 << (2 * wanted).bit_length()
            self._keys = self._keys._replace(slots=np.full(size, NONE, np.int64), number=np.zeros(size, np.int32))
            packed = self._keys.packed[: len(self.names)].copy()
            compiled.number_keys(self._keys, (packed >> 32).astype(np.int32), (packed & 0xFFFFFFFF).astype(np.int32), 0)

    def _room_for_entries(self, more: int) -> None:
        wanted = self._entries + more
        if 2 * wanted <= len(self._table.slots):
            return
        size, old = 1 << (2 * wanted).bit_length(), self._table
        self._table = Candidates(
            np.full(size, NONE, np.int64),
            np.zeros(size, np.float32),
            np.zeros(size, np.int32),
            np.zeros(size, np.int64),
        )
        used = old.slots != NONE
        nodes, keys = (old.slots[used] >> 32).astype(np.int32), (old.slots[used] & 0xFFFFFFFF).astype(np.int32)
        compiled.learn(self._table, nodes, keys, old.rate[used], old.host[used], old.learned_us[used])

    def _room_for_answers(self) -> Longs:
        self.answers = grown(self.answers, len(self.known.queries))
        return self.answers

    def _make_room(self, rows: int = 0, tuples: int = 0) -> None:
        store = self._store
        wanted, wanted_tuples = int(self._counts[0]) + rows, int(self._counts[1]) + tuples
        if wanted > len(store.row):
            store = store._replace(row=grown(store.row, wanted), after=grown(store.after, wanted))
            self._keys_of_rows = grown(self._keys_of_rows, wanted)
        if wanted_tuples > len(store.tuple_of):
            store = store._replace(
                tuple_of=grown(store.tuple_of, wanted_tuples), tuple_after=grown(store.tuple_after, wanted_tuples)
            )
        if 2 * (self._counts[2] + rows) > len(store.alike):
            store = self._with_alike(store, int(self._counts[2]) + rows)
        self._store = store

    def _with_alike(self, store: Store, rows: int) -> Store:
        """A store whose table of alike rows is new, with room for so many."""
        store = store._replace(alike=np.full(1 << (2 * rows + 1).bit_length(), NONE, np.int32))
        self._counts[2] = compiled.enter_alike(
            self.known.query_arrays,
            self.known.tuple_arrays,
            store,
            self._keys_of_rows,
            self._counts[0],
            self._classes,
            self.settings.is_guarded,
        )
        return store


def table_of(known: Known, rows: Ints, number: int) -> pa.Table:
    """Complete rows of one query as a table of flat columns."""
    first = CLASSES + max(1, known.widths.classes)
    columns: dict[str, Any] = {}
    for alias, source in enumerate(known.queries[number].sources):
        taken = known.rows_of(rows[:, first + alias])
        columns |= {f"{source.alias}.{name}": taken.column(name) for name in taken.column_names}
    return pa.table(columns)


Mail = TypeVar("Mail", TupleMail, QueryMail, CheckMail)


def joined(mails: Sequence[Mail]) -> Mail:
    """Mail in one piece."""
    if len(mails) == 1:
        return mails[0]
    kind = type(mails[0])
    return kind(*(np.concatenate([getattr(mail, one.name) for mail in mails]) for one in fields(kind)))
