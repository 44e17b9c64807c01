"""RJoin without a network (Procedures 1-3, RIC of sections 6 and 7): mail that arrives in, mail to be sent out.

A shard does the work of one node or of many: every piece of state belongs to a key, every key has a host, and what one
host knows another does not. The caller carries the mail, keeps the time, and says who hosts a key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from watersmeet.errors import InputError
from watersmeet.program.rjoin import alike, candidates, matching, retention
from watersmeet.program.rjoin.arrays import (
    CLASSES,
    COUNT,
    FOREVER,
    MASK,
    NO_VALUE,
    NONE,
    QUERY,
    WAITS,
    Ints,
    Longs,
    Queries,
    WaitingStore,
)
from watersmeet.program.rjoin.candidate_table import CandidateTable
from watersmeet.program.rjoin.key_table import HostsOf, KeyTable
from watersmeet.program.rjoin.keys import rates_of
from watersmeet.program.rjoin.loads import Load, StoredLoads
from watersmeet.program.rjoin.mail import AnswerMail, Ask, CheckMail, Hints, Out, QueryMail, Rates, TupleMail, joined
from watersmeet.program.rjoin.settings import NodeSettings, Strategy
from watersmeet.program.rjoin.tables import Known, grown, table_of
from watersmeet.query.windows import Rows, Unbounded

_NUMBER = {
    Strategy.RJOIN: candidates.RJOIN,
    Strategy.RANDOM: candidates.RANDOM,
    Strategy.FIRST: candidates.FIRST,
    Strategy.WORST: candidates.WORST,
}


@dataclass
class Shard:
    """The state of RJoin at its hosts."""

    known: Known
    settings: NodeSettings
    hosts_of: HostsOf
    nodes: int  # hosts are numbered below this

    def __post_init__(self) -> None:
        self.load = Load.of(self.nodes, self.known.widths.aliases)
        self.answers = np.zeros(16, np.int64)  # of each query, made here
        self._classes = max(1, self.known.widths.classes)
        self.width = CLASSES + self._classes + (self.known.widths.aliases if self.settings.members else 0)
        self._keys = KeyTable(self.known, self.hosts_of)
        self._store = WaitingStore(
            row=np.zeros((64, self.width), np.int32),
            after=np.zeros(64, np.int32),
            alike=np.full(128, NONE, np.int32),
            tuple_of=np.zeros(64, np.int32),
            tuple_after=np.zeros(64, np.int32),
        )
        self._keys_of_rows = np.zeros(64, np.int32)
        self._counts = np.zeros(3, np.int64)  # rows, tuples, rows that are not alike
        self._table = CandidateTable()
        self._parked: dict[int, tuple[Ints, Ints]] = {}
        self._asks = 0

    @property
    def names(self) -> list[str]:
        """The names of keys, by number."""
        return self._keys.names

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
        for row in tuples:
            stream = arrays.stream[row]
            columns = len(catalog.indexed(catalog.streams[stream]))
            attributes = np.arange(columns, dtype=np.int32) + catalog.first_attribute[stream]
            values = arrays.value[row, :columns]
            has_value = values != 0
            wanted = np.concatenate([attributes, attributes[has_value]])
            numbers = self.keys_of(wanted, np.concatenate([np.full(columns, NO_VALUE, np.int32), values[has_value]]))
            keys.append(numbers)
            refs.append(np.full(len(numbers), row, np.int32))
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

    def ask_for(self, asked: Ints, now_us: int) -> Rates:
        """The rates of keys hosted here."""
        return rates_of(self._keys.arrays, asked, now_us, self.settings.rate_window_us)  # type: ignore[no-any-return]

    # ---- what mail does

    def take_tuples(self, mail: TupleMail, now_us: int) -> Out:
        """Procedure 2: tuples meet the queries that wait at their keys, and are kept for those that come later."""
        self._make_room(tuples=len(mail.keys))
        hosts = self._keys.arrays.host[mail.keys]
        np.add.at(self.load.tuples, hosts, 1)
        np.add.at(self.load.searches, hosts[self._keys.arrays.first_row[mail.keys] != NONE], 1)
        made = matching.meet_tuples(
            self.known.query_arrays,
            self.known.tuple_arrays,
            self._keys.arrays,
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
        hosts = self._keys.arrays.host[mail.keys]
        if self.settings.strategy is Strategy.RJOIN:
            slots = self._candidate_keys(mail.rows)
            self._table.pass_on(slots, mail.senders, hosts)
        is_rewritten = mail.rows[:, MASK] != 0
        np.add.at(self.load.queries, hosts[is_rewritten], mail.rows[is_rewritten, COUNT])
        np.add.at(self.load.rows, hosts[is_rewritten], 1)
        bound = np.bitwise_count(mail.rows[:, MASK])
        np.add.at(self.load.levels, bound[is_rewritten], mail.rows[is_rewritten, COUNT])
        made = matching.meet_rows(
            self.known.query_arrays,
            self.known.tuple_arrays,
            self._keys.arrays,
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

    def take_rates(self, answered: Sequence[tuple[Ask, Rates, Ints]], now_us: int) -> Out:
        """Rates and hosts of keys have come: what waited for them goes on."""
        for ask, rates, hosts in answered:
            learned = np.full(len(ask.keys), now_us, np.int64)
            self._table.learn(ask.nodes, ask.keys, rates, hosts, learned)
        parked = [self._parked.pop(ask.number) for ask, _, _ in answered]
        rows, nodes = (np.concatenate(parts) for parts in zip(*parked, strict=True))
        return self._place(rows, nodes, now_us, asks=False)  # what aged meanwhile is believed, or it would never end

    def take_checks(self, mail: CheckMail, now_us: int) -> Out:
        """Complete rows wait here for tuples still under way, then go on if they keep to a ROWS window."""
        is_due = mail.due_us <= now_us
        good = np.array(
            [due and self._is_among_last(r, k) for r, k, due in zip(mail.rows, mail.keys, is_due, strict=True)], bool
        )
        rows, nodes = mail.rows[good], self._keys.arrays.host[mail.keys[good]]
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
        retention.sweep(
            self._queries_ending(ends),
            self.known.tuple_arrays,
            self._keys.arrays,
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
        self._keys.arrays.first_tuple[keys] = NONE
        count = self._counts[0]
        stays = ~np.isin(self._keys_of_rows[:count], keys)
        kept = int(np.count_nonzero(stays))
        self._store.row[:kept] = self._store.row[:count][stays]
        self._keys_of_rows[:kept] = self._keys_of_rows[:count][stays]
        self._counts[0] = kept

    def is_over(self, row: Ints, now_us: int, ends: Mapping[int, int]) -> bool:
        """Whether a sweep would drop a row whose members are told apart."""
        end_us = matching.end_of(self.known.query_arrays, self.known.tuple_arrays, row, self._classes)
        return bool(min(end_us, ends.get(int(row[QUERY]), FOREVER)) < now_us - self.settings.delay_us)

    def _queries_ending(self, ends: Mapping[int, int] | None) -> Queries:
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
        return self._keys.numbers_of(attributes, values)

    def packed(self, keys: Ints) -> Longs:
        """Keys as everybody knows them: attribute and value in one number."""
        return self._keys.arrays.packed[keys]

    def numbers(self, packed: Longs) -> Ints:
        """The numbers keys have here."""
        return self.keys_of((packed >> 32).astype(np.int32), (packed & 0xFFFFFFFF).astype(np.int32))

    def occupied(self) -> Longs:
        """The keys for which anything is kept, packed."""
        return self._keys.occupied()

    def rows_at(self, key: int) -> Ints:
        """The queries that wait at a key."""
        rows: Ints = self._store.row[: self._counts[0]][self._keys_of_rows[: self._counts[0]] == key]
        return rows

    def tuples_at(self, key: int) -> Ints:
        """The tuples kept for a key, as they came."""
        found: Ints = np.sort(retention.tuples_at(self._keys.arrays, self._store, key))
        return found

    def hints(self, rows: Ints, node: int) -> Hints:
        """What a node knows of the keys at which queries could wait next, to go along with them."""
        slots = np.unique(self._candidate_keys(rows))
        known = slots[slots != NONE]
        rates, hosts, learned_us = candidates.recall(self._table.arrays, node, known)
        is_known = learned_us != NONE
        return Hints(self.packed(known[is_known]), rates[is_known], hosts[is_known], learned_us[is_known])

    def hear(self, hints: Hints, node: int) -> None:
        """Take what came along with queries."""
        nodes = np.full(len(hints.packed), node, np.int32)
        self._table.learn(nodes, self.numbers(hints.packed), hints.rates, hints.hosts, hints.learned_us)

    def host_of(self, keys: Ints) -> Ints:
        """Who hosts keys."""
        return self._keys.arrays.host[keys]

    def move(self, hosts: Ints) -> int:
        """Give keys to other hosts, with all that is kept for them; how many keys have moved.

        Whoever knew the host of such a key has to look for it again.
        """
        has_moved = self._keys.move(hosts)
        self._table.forget_hosts(has_moved)
        return int(np.count_nonzero(has_moved))

    def stored(self) -> StoredLoads:
        """What each node keeps now."""
        rows, keys = self._store.row[: self._counts[0]], self._keys_of_rows[: self._counts[0]]
        is_rewritten = rows[:, MASK] != 0
        hosts = self._keys.arrays.host[keys[is_rewritten]]
        kept = retention.tuples_by_key(self._keys.arrays, self._store, len(self.names))
        has_value = (self._keys.arrays.packed[: len(self.names)] & 0xFFFFFFFF) != NO_VALUE
        key_hosts = self._keys.arrays.host[: len(self.names)]

        def counted(of: Ints, weights: Longs | Ints | None = None) -> Longs:
            return np.bincount(of, weights, self.nodes).astype(np.int64)

        return StoredLoads(
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
        has_value = (self._keys.arrays.packed[: len(self.names)] & 0xFFFFFFFF) != NO_VALUE
        return queries + np.where(
            has_value, retention.tuples_by_key(self._keys.arrays, self._store, len(self.names)), 0
        )

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
                out = self._finish(complete, self._keys.arrays.host[completed_at])
        elif replies.any():
            out = Out(answers=AnswerMail(np.zeros((0, self.width), np.int32), np.repeat(hosts, replies)))
        if not len(rows):
            return out
        nodes = self._keys.arrays.host[made_at]
        if not self.settings.members:
            kept = alike.merge(rows, nodes)
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
        held = retention.tuples_at(self._keys.arrays, self._store, key)
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
            lacks, asking, asked, hosts, wanted_by = candidates.missing(self._table.arrays, slots, nodes, oldest_us)
            if len(asked):
                self._asks += 1
                ask = Ask(self._asks, asking, asked, hosts, wanted_by)
                self._parked[ask.number] = (rows[lacks], nodes[lacks])
                rows, nodes, slots = rows[~lacks], nodes[~lacks], slots[~lacks]
        if not len(rows):
            return Out(ask=ask)
        chosen, known_hosts = candidates.choose(
            self.known.query_arrays,
            self._keys.arrays,
            self._table.arrays,
            rows,
            nodes,
            slots,
            _NUMBER[settings.strategy],
            settings.seed,
            now_us,
            settings.rate_window_us,
        )
        return Out(queries=QueryMail(nodes, chosen, known_hosts, rows), ask=ask)

    def _candidate_keys(self, rows: Ints) -> Ints:
        return self._keys.candidates_of(rows, self._classes, self.settings.pairs)

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

    def _with_alike(self, store: WaitingStore, rows: int) -> WaitingStore:
        """A store whose table of alike rows is new, with room for so many."""
        store = store._replace(alike=np.full(1 << (2 * rows + 1).bit_length(), NONE, np.int32))
        self._counts[2] = alike.enter_alike(
            self.known.query_arrays,
            self.known.tuple_arrays,
            store,
            self._keys_of_rows,
            self._counts[0],
            self._classes,
            self.settings.is_guarded,
        )
        return store
