"""What it takes to bring an alias and a set of aliases to one site, by every reduction: the steps of `ordering`.

The figures of all sets are computed at once, on coarse cells of values; a set is a row of every array.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.estimates import HeadRows, announced, asked, overlapping, wanted
from watersmeet.cost.formulas import (
    announced_per_value,
    clumped_rate,
    distinct_keys,
    false_positives,
    filter_flow_bytes,
    flow_bytes,
    key_flow_bytes,
    messages_per_s,
    present,
    present_some_time,
    rows_in,
    rows_per_message,
    rows_per_value,
    seen,
    sum_cells,
    with_false_positives,
)
from watersmeet.cost.sizes import PLACE_SIZES, size_at, thinned
from watersmeet.cost.workload import F64, I64, Workload, members_of
from watersmeet.plan.nodes import Reduction
from watersmeet.planners.problem import Problem
from watersmeet.planners.reduce import TOO_MUCH
from watersmeet.planners.sweep import coarse

# How an input of a join node is reduced, and whether with Bloom filters: the columns of `Transfers`.
REDUCTIONS = (
    (Reduction.NONE, False),
    (Reduction.ONE_STEP, False),
    (Reduction.ONE_STEP, True),
    (Reduction.TWO_STEP, False),
    (Reduction.TWO_STEP, True),
)
_CELLS = 64
_MOST_COUNTED = 4  # streams, for which every step is counted where there is a sample
_BATCH_ROWS = 100.0
_MOST_ROWS = 1e12  # more make no difference, and products of them would overflow
Bits = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes and messages a second of one side on its way to the other, and of keys on their way back, by reduction."""

    out: F64
    out_messages: F64
    back: F64
    back_messages: F64

    def of(self, mask: int) -> "Transfers":
        """Those of one set."""
        return Transfers(self.out[mask], self.out_messages[mask], self.back[mask], self.back_messages[mask])


@dataclass(frozen=True, slots=True)
class Reduced:
    """What reducing one side by the other takes, each figure an array over sets."""

    matched: F64  # the share of rows that meet any of the other side
    matched_by_filter: F64
    announced: F64  # announcements a second of the other side's keys
    asked: F64  # distinct keys a second of this side
    found: F64  # announcements a second that those keys find


class _ClassFigures:
    """The values of one key class in all sets: [set, cell], or [set] for all cells together."""

    def __init__(self, size: F64, shares: F64, members: Bits, has: Bits) -> None:
        self.size, self.members, self.dense = size, members, shares / size
        self.in_class: Bits = np.any(has[:, members], axis=1, keepdims=True)[:, 0]  # sets with any member
        product = np.ones((len(has), len(size)))
        for alias in np.flatnonzero(members):
            product *= np.where(has[:, [alias]], self.dense[alias], 1.0)
        cells = product * size
        total = np.maximum(cells.sum(axis=1), 1e-300)
        self.agree: F64 = np.where(self.in_class, total, 1.0)
        self.share: F64 = cells / total[:, None]

    def observe(self, workload: Workload, has: Bits, rate: F64, lifetime_s: F64, batch_interval_s: float) -> None:
        """Add how often values are there, announced and asked for, once the rates of all sets are known."""
        there, begins = present(workload.rate[:, None] * self.dense, workload.window_s[:, None])
        self._chance: F64 = np.ones((len(has), len(self.size)))
        starts = np.zeros_like(self._chance)
        for alias in np.flatnonzero(self.members):
            mine = has[:, [alias]]
            self._chance *= np.where(mine, there[alias], 1.0)
            starts += mine * begins[alias]
        self._begins: F64 = self._chance * starts
        per_value = rows_per_value(rate[:, None], self.share, self.size)
        clumped = clumped_rate(per_value, self._chance, lifetime_s[:, None])
        self.often, self.length = announced_per_value(
            np.where(self.in_class[:, None], clumped, per_value), lifetime_s[:, None]
        )
        self.announced: F64 = (self.often * self.size).sum(axis=1)
        chance = self.together(slice(None), batch_interval_s)
        self.asked = sum_cells(self.size, distinct_keys(per_value, batch_interval_s, together=chance))

    def together(self, sets: I64 | slice, time_s: F64 | float) -> F64:
        """The chance that all members of some sets have a value at once, some time of a while."""
        return present_some_time(self._chance[sets], self._begins[sets], time_s)


class TransferTable:
    """What it takes to bring single streams and all sets of aliases together."""

    def __init__(self, problem: Problem) -> None:
        workload = problem.workload
        self._workload, self._batch_interval_s = workload, problem.batch_interval_s
        self._key_bytes = workload.keys_bytes((0,), _BATCH_ROWS) if workload.domains else 0.0
        count = len(problem.aliases)
        sets = np.arange(1 << count)
        has = (sets[:, None] >> np.arange(count) & 1).astype(bool)  # [set, alias]
        self._classes = [_ClassFigures(*coarse(domain, _CELLS), domain.members, has) for domain in workload.domains]
        self._weigh(has)
        for key_class in self._classes:
            key_class.observe(workload, has, self._rate, self._lifetime_s, self._batch_interval_s)
        self.tied, self._main = self._ties(len(sets), count)
        self._counting: Bits = sets & problem.counting != 0
        transfers = [self._transfers(alias) for alias in range(count)]
        self._comes, self._goes = ([pair[side] for pair in transfers] for side in (0, 1))

    def comes(self, mask: int, alias: int) -> Transfers:
        """An alias to where a set is."""
        return self._comes[alias].of(mask)

    def goes(self, mask: int, alias: int) -> Transfers:
        """A set to where an alias is."""
        return self._goes[alias].of(mask)

    def _weigh(self, has: Bits) -> None:
        """How many rows each set has and gets, for how long, and how large they are."""
        workload = self._workload
        agree = workload.left_by_conditions(has @ (1 << np.arange(has.shape[1])))
        for key_class in self._classes:
            agree *= key_class.agree
        with np.errstate(over="ignore"):
            count = np.where(has, workload.window, 1.0).prod(axis=1) * agree
            per_second = np.where(has, 1 / np.maximum(workload.window_s, 1e-12), 0.0).sum(axis=1)
            self._rate: F64 = np.minimum(count * per_second, _MOST_ROWS)
        if workload.sampled is not None:
            for mask in range(1, len(has)):
                if workload.is_counted(mask):
                    count[mask] = workload.count(mask)
                    self._rate[mask] = min(workload.combination_rate(mask), _MOST_ROWS)
        self._count: F64 = np.minimum(count, _MOST_ROWS)
        self._lifetime_s: F64 = np.where(per_second > 0, 1 / np.maximum(per_second, 1e-300), 0.0)
        alone = has.sum(axis=1, keepdims=True) == 1
        self._bytes: F64 = np.where(
            alone,
            has @ workload.alone,
            has @ workload.combined + 2 * np.array(PLACE_SIZES),
        )
        self._stamps: F64 = np.where(alone, has @ workload.stamps, 0.0)
        self._arrivals: F64 = np.maximum(has @ workload.arrivals, 1e-300)
        self._columns: I64 = has @ np.array([len(sizes) for sizes in workload.sizes]) + np.where(alone[:, 0], 1, 2)

    def _ties(self, sets: int, count: int) -> tuple[Bits, I64]:
        """Which sets are tied to which aliases, and by which key class first: [set, alias]."""
        tied, main = np.zeros((sets, count), bool), np.zeros((sets, count), np.int64)
        for number, key_class in reversed(list(enumerate(self._classes))):
            ties = key_class.in_class[:, None] & key_class.members[None, :]
            tied |= ties
            main = np.where(ties, number, main)
        return tied, main

    def _transfers(self, alias: int) -> tuple[Transfers, Transfers]:
        """An alias to each set, and each set to the alias."""
        sets = len(self._rate)
        comes, goes = (Reduced(*(np.ones(sets) for _ in range(5))) for _ in range(2))
        for main, these in self._tied_by_class(alias):
            agree = self._others_agree(these, alias, main)[:, None]
            self._reduce_alias(comes, self._classes[main], alias, these, agree)
            self._reduce_sets(goes, self._classes[main], alias, these, agree)
        if self._workload.sampled is not None and len(self._workload.aliases) <= _MOST_COUNTED:
            for mask in np.flatnonzero(self.tied[:, alias]).tolist():
                if not mask >> alias & 1 and self._workload.is_counted(mask):
                    self._note_counted(comes, 1 << alias, mask, mask)
                    self._note_counted(goes, mask, 1 << alias, mask)
        barred = self._counting | self._counting[1 << alias]
        return self._sent(np.full(sets, 1 << alias), comes, barred), self._sent(np.arange(sets), goes, barred)

    def _note_counted(self, found: Reduced, own: int, other: int, place: int) -> None:
        """What it takes to reduce one side by the other, as it was counted in a sample."""
        workload, interval_s = self._workload, self._batch_interval_s
        rows = HeadRows(own, workload.combination_rate(own))
        shortest = min(float(workload.window_s[alias]) for alias in members_of(other))
        false = false_positives(shortest, interval_s)
        found.matched[place] = overlapping(workload, own, other, 0.0)
        found.matched_by_filter[place] = overlapping(workload, own, other, false, interval_s)
        found.announced[place] = announced(workload, other, workload.shared(own, other))
        found.asked[place] = asked(workload, rows, other, interval_s)
        found.found[place] = wanted(workload, other, rows)

    def _tied_by_class(self, alias: int) -> Iterator[tuple[int, I64]]:
        """The sets that an alias is tied to, by the first class that ties them."""
        for main, key_class in enumerate(self._classes):
            these = np.flatnonzero((self._main[:, alias] == main) & self.tied[:, alias])
            if key_class.members[alias] and len(these):
                yield main, these

    def _reduce_alias(self, found: Reduced, main: _ClassFigures, alias: int, these: I64, agree: F64) -> None:
        """What it takes to reduce the rows of an alias by each of some sets."""
        own, theirs, interval_s = main.share[1 << alias], main.share[these], self._batch_interval_s

        def matched(time_s: float) -> F64:
            rows = np.minimum(rows_in(self._count[these], self._rate[these], time_s), _MOST_ROWS)
            chance = seen(rows_per_value(rows[:, None], theirs, main.size) * agree)
            share: F64 = np.minimum(chance, main.together(these, time_s)) @ own
            return share

        window_s = float(self._workload.window_s[alias])
        visits = rows_per_value(self._workload.rate[alias], own, main.size) * agree
        found.matched[these] = matched(window_s)
        by_filter = matched(window_s + interval_s)
        found.matched_by_filter[these] = with_false_positives(by_filter, self._false(alias))
        found.announced[these] = main.announced[these]
        found.asked[these] = main.asked[1 << alias]
        found.found[these] = sum_cells(main.often[these] * main.size, seen(visits * main.length[these]))

    def _reduce_sets(self, found: Reduced, main: _ClassFigures, alias: int, these: I64, agree: F64) -> None:
        """What it takes to reduce the combinations of each of some sets by the window of an alias."""
        one, interval_s = 1 << alias, self._batch_interval_s
        own, theirs = main.share[one], main.share[these]
        window, rate = self._workload.window[alias], self._workload.rate[alias]

        def matched(time_s: F64) -> F64:
            rows = rows_in(window, rate, time_s)[:, None]
            return sum_cells(theirs, seen(rows_per_value(rows, own, main.size) * agree))

        visits = rows_per_value(self._rate[these][:, None], theirs, main.size) * agree
        wanted = np.minimum(seen(visits * main.length[one]), main.together(these, main.length[one]))
        found.matched[these] = matched(self._lifetime_s[these])
        by_filter = matched(self._lifetime_s[these] + interval_s)
        found.matched_by_filter[these] = with_false_positives(by_filter, self._false(alias))
        found.announced[these] = main.announced[one]
        found.asked[these] = main.asked[these]
        found.found[these] = sum_cells(main.often[one] * main.size, wanted)

    def _false(self, alias: int) -> float:
        return false_positives(float(self._workload.window_s[alias]), self._batch_interval_s)

    def _others_agree(self, sets: I64, alias: int, main: int) -> F64:
        """The chance that a set and an alias agree on the key classes that they share beside the first."""
        agree = np.ones(len(sets))
        for other in self._classes[main + 1 :]:
            if other.members[alias]:
                own = other.share[1 << alias] / other.size
                agree = np.where(other.in_class[sets], agree * (other.share[sets] @ own), agree)
        return agree

    def _sent(self, sets: I64, reduced: Reduced, barred: Bits) -> Transfers:
        """What sets send, whole and reduced in each way but where that is barred; the columns are `REDUCTIONS`."""
        rate, zero = self._rate[sets], (np.zeros(len(sets)),) * 2
        whole, exact, rough = (
            self._rows(sets, rate * part) for part in (1.0, reduced.matched, reduced.matched_by_filter)
        )
        announced, asked, found = (self._keys(keys) for keys in (reduced.announced, reduced.asked, reduced.found))
        announced_filters, asked_filters, found_filters = (
            self._filters(keys) for keys in (reduced.announced, reduced.asked, reduced.found)
        )
        out = [(whole, zero), (exact, zero), (rough, zero), (exact, asked), (rough, asked_filters)]
        back = [zero, announced, announced_filters, found, found_filters]
        sizes = [rows[0] + keys[0] for rows, keys in out]
        return Transfers(
            np.stack([sizes[0], *(np.where(barred, TOO_MUCH, size) for size in sizes[1:])], axis=1),
            np.stack([rows[1] + keys[1] for rows, keys in out], axis=1),
            np.stack([size for size, _ in back], axis=1),
            np.stack([messages for _, messages in back], axis=1),
        )

    def _rows(self, sets: I64, rate: F64) -> tuple[F64, F64]:
        messages = messages_per_s(rate, self._batch_interval_s)
        stamps = self._stamps[sets]
        times = np.where(stamps > 0, thinned(stamps, rate / self._arrivals[sets]), 0.0)
        row_bytes = size_at(self._bytes[sets] + times, rows_per_message(rate, messages))
        return flow_bytes(rate, row_bytes, messages, self._columns[sets]), messages

    def _keys(self, rate: F64) -> tuple[F64, F64]:
        messages = messages_per_s(rate, self._batch_interval_s)
        return key_flow_bytes(rate, self._key_bytes, messages), messages

    def _filters(self, rate: F64) -> tuple[F64, F64]:
        messages = messages_per_s(rate, self._batch_interval_s)
        return filter_flow_bytes(rate, messages), messages
