"""What the rows of a sample do when they meet, counted: the figures of `estimates` without assumptions on values.

Statistics of single columns know neither values that come in runs nor which values of two streams come together. Where
statistics have a sample of every stream of a query over the same while, its combinations are made, and each semijoin is
a question to intervals: a row is there over [ts, end], partial combinations over the intersection of their rows' (see
"Reference semantics as intervals" in the architecture). A share of a sample is never 0 or 1 for certain: one more row
is added that does what the statistics say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.cost.workload import I64, members_of
from watersmeet.program.join.conditions import not_rejected
from watersmeet.query.comparisons import Condition

Bits = NDArray[np.bool_]

_MOST_MADE = 300_000  # more combinations of any set of streams are not made, but estimated
_MOST_MET = 4_000_000  # nor more that comparisons would have to be applied to
_CHUNK = 500_000  # of these at a time
LEAST_ROWS = 20  # of the streams together


@dataclass(frozen=True, eq=False)
class SampledRows:
    """The rows of an alias that pass its filters and have its keys, in the order of their time."""

    of: int  # rows that the sample has of the stream
    number: I64  # in the sample of its stream
    low: I64
    high: I64
    keys: Mapping[int, I64]  # by key class
    values: pa.Table  # of the columns that comparisons read, by flat name

    def only(self, which: Bits) -> "SampledRows":
        keys = {key: values[which] for key, values in self.keys.items()}
        return SampledRows(
            self.of, self.number[which], self.low[which], self.high[which], keys, self.values.filter(pa.array(which))
        )


@dataclass(frozen=True, eq=False)
class _Combinations:
    """Combinations of some aliases: the place of each one's row, when they are live, and whose row is latest."""

    rows: Mapping[int, I64]
    low: I64
    high: I64
    head: I64

    def only(self, which: Bits) -> "_Combinations":
        rows = {alias: places[which] for alias, places in self.rows.items()}
        return _Combinations(rows, self.low[which], self.high[which], self.head[which])


class _TooMany(Exception):
    """A set of aliases has more combinations than are made."""


@dataclass(frozen=True, eq=False)
class SampledJoins:
    """A sample of the streams of a query over a while, and what was counted of it so far."""

    aliases: tuple[SampledRows, ...]
    masks: tuple[int, ...]  # the members of each key class
    begin_us: int
    end_us: int
    interval_s: float  # between micro-batches
    conditions: tuple[tuple[int, Condition], ...] = ()  # with the set of aliases that each is about
    _memory: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def span_s(self) -> float:
        return (self.end_us - self.begin_us) / 1e6

    def rate(self, alias: int) -> float:
        """Rows a second of an alias in the sample."""
        return len(self.aliases[alias].low) / self.span_s

    def kept(self, alias: int) -> float | None:
        """The share of a stream's rows that pass the filters of an alias and have its keys; None without any rows."""
        rows = self.aliases[alias]
        return (len(rows.low) + 0.0) / rows.of if rows.of else None

    def limited(self, key_class: int, low: I64, high: I64) -> "SampledJoins":
        """Only rows whose key of a class is in any of some ranges, which ascend."""
        kept = []
        for rows in self.aliases:
            if key_class in rows.keys:
                values = rows.keys[key_class]
                place = np.searchsorted(low, values, side="right") - 1
                rows = rows.only((place >= 0) & (values <= high[np.maximum(place, 0)]))
            kept.append(rows)
        return replace(self, aliases=tuple(kept), _memory={})

    # Combinations

    def is_tied(self, mask: int) -> bool:
        """Whether a set's combinations can be made one stream at a time, tied by equalities, and are not too many."""
        if ("tied", mask) not in self._memory:
            order = self._order(mask)
            rest = 0 if order is None else mask & ~(1 << order[-1])
            is_made = order is not None and (not rest or self.is_tied(rest))
            if is_made:
                try:
                    self._combinations(mask)
                except _TooMany:
                    is_made = False
            self._memory["tied", mask] = is_made
        found: bool = self._memory["tied", mask]
        return found

    def count(self, mask: int, head: int | None = None) -> int:
        """Combinations of a set of aliases in the sample, of all heads or of one."""
        found = self._combinations(mask)
        return len(found.low) if head is None else int((found.head == head).sum())

    def first_times(self, mask: int, head: int | None = None) -> tuple[Mapping[int, float], float] | None:
        """The share of combinations, micro-batch by micro-batch, that are the first one there with a row, by alias.

        And the share of those that are the first one with an event time; None where there are too few to tell.
        """
        slot = ("first", mask, head)
        if slot not in self._memory:
            found = self._led(mask, head)
            batch = self._batch(found)
            if len(batch) < LEAST_ROWS:
                self._memory[slot] = None
            else:
                shares = {alias: _distinct(batch, places) / len(batch) for alias, places in found.rows.items()}
                self._memory[slot] = shares, _distinct(batch, found.low) / len(batch)
        first: tuple[Mapping[int, float], float] | None = self._memory[slot]
        return first

    def batches(self, mask: int, head: int | None = None) -> float:
        """Micro-batches a second in which there are any new combinations."""
        slot = ("batches", mask, head)
        if slot not in self._memory:
            self._memory[slot] = len(np.unique(self._batch(self._led(mask, head)))) / self.span_s
        often: float = self._memory[slot]
        return often

    def _batch(self, found: _Combinations) -> I64:
        """The micro-batch that has each combination."""
        return found.low // max(round(self.interval_s * 1e6), 1)

    # Semijoins: shares of rows

    def met(self, mask: int, other: int, slack_s: float) -> tuple[float, int]:
        """The share of partial combinations whose key is in a window when they are made; and of how many."""
        return self._share(("met", mask, other, slack_s), lambda: self._which_met(mask, other, slack_s))

    def overlapping(self, mask: int, other: int, slack_s: float) -> tuple[float, int]:
        """The share of combinations that meet one of the other side while they live."""
        return self._share(("over", mask, other, slack_s), lambda: self._which_overlap(mask, other, slack_s))

    def fetched(self, mask: int, by: int, head: int | None, *, spans: bool, slack_s: float) -> tuple[float, int]:
        """The share of a window's rows that partial combinations ask for."""
        slot = ("fetched", mask, by, head, spans, slack_s)
        return self._share(slot, lambda: self.which_fetched(mask, by, head, spans=spans, slack_s=slack_s))

    def _which_met(self, mask: int, other: int, slack_s: float) -> Bits:
        found = self._combinations(mask)
        return self._overlap(mask, found, found.low, found.low, other, round(slack_s * 1e6))

    def _which_overlap(self, mask: int, other: int, slack_s: float) -> Bits:
        found = self._combinations(mask)
        return self._overlap(mask, found, found.low, found.high, other, round(slack_s * 1e6))

    def which_fetched(self, mask: int, by: int, head: int | None, *, spans: bool, slack_s: float) -> Bits:
        """The rows of a window that partial combinations ask for; of announced spans, all rows that touch one."""
        slot = ("which fetched", mask, by, head, spans, slack_s)
        if slot not in self._memory:
            self._memory[slot] = self._which_fetched(mask, by, head, spans=spans, slack_s=slack_s)
        found: Bits = self._memory[slot]
        return found

    def _which_fetched(self, mask: int, by: int, head: int | None, *, spans: bool, slack_s: float) -> Bits:
        rows, asking = self._combinations(mask), self._led(by, head)
        key = self._key(mask, by)
        own, theirs = self._codes(key, (mask, rows), (by, asking))
        until = asking.high if head is None and by & (by - 1) else asking.low
        slack_us = round(slack_s * 1e6)
        if not spans:
            return _meet(own, rows.low, rows.high + slack_us, theirs, asking.low, until)
        span, low, high = _spans(own, rows.low, rows.high)
        wanted = _meet(own[_firsts(span)], low, high, theirs, asking.low, until)
        return np.asarray(wanted[span])

    def gathered(self, found: Sequence[tuple[int, Bits]]) -> tuple[float, int]:
        """The share of the rows of some aliases of one stream that any of several semijoins takes, each row once."""
        first = self.aliases[members_of(found[0][0])[0]]
        taken = [self.aliases[members_of(mask)[0]].number[bits] for mask, bits in found]
        every = np.unique(np.concatenate([self.aliases[members_of(mask)[0]].number for mask, _ in found]))
        return len(np.unique(np.concatenate(taken))) / max(len(first.low), 1), len(every)

    def which(self, kind: str, mask: int, other: int, slack_s: float) -> Bits:
        """The rows that `met` or `overlapping` is the share of."""
        slot = ("which", kind, mask, other, slack_s)
        if slot not in self._memory:
            found = self._which_met if kind == "met" else self._which_overlap
            self._memory[slot] = found(mask, other, slack_s)
        bits: Bits = self._memory[slot]
        return bits

    # Keys: so many in the sample

    def announced(self, mask: int, key: tuple[int, ...]) -> int:
        """Announcements of the keys of a window."""
        return len(self._announcements(mask, key)[1])

    def wanted(self, mask: int, by: int, head: int | None) -> int:
        """Announcements that partial combinations ask for."""
        slot = ("wanted", mask, by, head)
        if slot not in self._memory:
            key = self._key(mask, by)
            rows, asking = self._combinations(mask), self._led(by, head)
            own, theirs = self._codes(key, (mask, rows), (by, asking))
            span, low, high = _spans(own, rows.low, rows.high)
            until = asking.high if head is None and by & (by - 1) else asking.low
            self._memory[slot] = int(_meet(own[_firsts(span)], low, high, theirs, asking.low, until).sum())
        count: int = self._memory[slot]
        return count

    def asked(self, mask: int, head: int | None, partner: int) -> int:
        """Distinct keys that rows ask for, micro-batch by micro-batch."""
        slot = ("asked", mask, head, partner)
        if slot not in self._memory:
            found = self._led(mask, head)
            (own,) = self._codes(self._key(mask, partner), (mask, found))
            self._memory[slot] = _distinct(self._batch(found), own)
        count: int = self._memory[slot]
        return count

    # How

    def _share(self, slot: Any, which: Any) -> tuple[float, int]:
        if slot not in self._memory:
            found = which()
            self._memory[slot] = float(found.mean()) if len(found) else 0.0, len(found)
        share: tuple[float, int] = self._memory[slot]
        return share

    def _announcements(self, mask: int, key: tuple[int, ...]) -> tuple[I64, I64, I64]:
        slot = ("spans", mask, key)
        if slot not in self._memory:
            rows = self._combinations(mask)
            (own,) = self._codes(key, (mask, rows))
            self._memory[slot] = _spans(own, rows.low, rows.high)
        spans: tuple[I64, I64, I64] = self._memory[slot]
        return spans

    def _key(self, some: int, others: int) -> tuple[int, ...]:
        return tuple(number for number, mask in enumerate(self.masks) if mask & some and mask & others)

    def _order(self, mask: int) -> list[int] | None:
        """The members of a set, each tied to those before it; None where that is not possible."""
        rest = members_of(mask)
        order = [rest.pop(0)]
        while rest:
            reached = sum(1 << alias for alias in order)
            tied = [alias for alias in rest if self._key(reached, 1 << alias)]
            if not tied:
                return None
            order.append(tied[0])
            rest.remove(tied[0])
        return order

    def _led(self, mask: int, head: int | None) -> _Combinations:
        found = self._combinations(mask)
        return found if head is None else found.only(found.head == head)

    def _combinations(self, mask: int) -> _Combinations:
        found: _Combinations | None = self._memory.get(mask)
        if found is None:
            order = self._order(mask)
            assert order is not None, "whoever asks has looked whether they are tied"
            last = order[-1]
            if len(order) == 1:
                rows = self.aliases[last]
                places = np.arange(len(rows.low))
                found = _Combinations({last: places}, rows.low, rows.high, np.full(len(places), last))
            else:
                found = self._extended(mask & ~(1 << last), last)
            self._memory[mask] = found
        return found

    def _extended(self, before: int, alias: int) -> _Combinations:
        """Combinations with the rows of one more alias that they meet."""
        left, right = self._combinations(before), self._combinations(1 << alias)
        own, theirs = self._codes(self._key(before, 1 << alias), (before, left), (1 << alias, right))
        order = np.lexsort((right.low, theirs))
        width = self._width
        first = np.searchsorted((theirs * width + right.high)[order], own * width + left.low, side="left")
        end = np.searchsorted((theirs * width + right.low)[order], own * width + left.high, side="right")
        many = np.maximum(end - first, 0)
        mask = before | 1 << alias
        new = [condition for about, condition in self.conditions if about & mask == about and about >> alias & 1]
        if many.sum() > (_MOST_MET if new else _MOST_MADE):
            raise _TooMany
        chunks = np.searchsorted(np.cumsum(many), np.arange(_CHUNK, int(many.sum()), _CHUNK))
        edges = [0, *chunks.tolist(), len(many)]
        parts = [
            self._made(left, right, alias, np.arange(low, high), first[low:high], many[low:high], order, new)
            for low, high in pairwise(edges)
        ]
        made = _joined(parts)
        if len(made.low) > _MOST_MADE:
            raise _TooMany
        return made

    def _made(
        self,
        left: _Combinations,
        right: _Combinations,
        alias: int,
        which: I64,
        first: I64,
        many: I64,
        order: I64,
        new: Sequence[Condition],
    ) -> _Combinations:
        """Some combinations of the left, each with so many rows of the right in an order, from a first one on."""
        places = np.repeat(which, many)
        offset = np.arange(len(places)) - np.repeat(np.cumsum(many) - many, many)
        found = order[np.repeat(first, many) + offset]
        rows = {**{row: left.rows[row][places] for row in left.rows}, alias: found}
        later = (right.low[found] > left.low[places]) | (
            (right.low[found] == left.low[places]) & (alias > left.head[places])
        )
        made = _Combinations(
            rows,
            np.maximum(left.low[places], right.low[found]),
            np.minimum(left.high[places], right.high[found]),
            np.where(later, alias, left.head[places]),
        )
        if not new or not len(made.low):
            return made
        columns: dict[str, pa.Array] = {}
        for row in rows:
            taken = self.aliases[row].values.take(pa.array(rows[row]))
            columns |= {name: taken.column(name).combine_chunks() for name in taken.column_names}
        return made.only(not_rejected(new, columns))

    @property
    def _width(self) -> int:
        """More than any time: what sets keys apart when both are one number."""
        return self.end_us - self.begin_us + 2

    def _codes(self, key: tuple[int, ...], *sides: tuple[int, _Combinations]) -> list[I64]:
        """The key of combinations as small numbers, which are equal across the sides exactly if the keys are."""
        ends = np.cumsum([len(found.low) for _, found in sides])[:-1]
        code = np.zeros(sum(len(found.low) for _, found in sides), np.int64)
        for number in key:
            values = [
                self.aliases[alias].keys[number][found.rows[alias]]
                for mask, found in sides
                for alias in members_of(mask & self.masks[number])[:1]
            ]
            _, own = np.unique(np.concatenate(values), return_inverse=True)
            _, code = np.unique(code * (len(own) + 1) + own, return_inverse=True)
        return np.split(code.astype(np.int64), ends)

    def _overlap(self, mask: int, found: _Combinations, low: I64, high: I64, other: int, slack_us: int) -> Bits:
        others = self._combinations(other)
        own, theirs = self._codes(self._key(mask, other), (mask, found), (other, others))
        return _meet(own, low, high, theirs, others.low, others.high + slack_us)


def _joined(parts: Sequence[_Combinations]) -> _Combinations:
    """Combinations one after the other."""
    rows = {alias: np.concatenate([part.rows[alias] for part in parts]) for alias in parts[0].rows}
    low, high, head = (np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high", "head"))
    return _Combinations(rows, low, high, head)


def _firsts(span: I64) -> I64:
    """The place of the first row of each span, by its number."""
    _, first = np.unique(span, return_index=True)
    return first


def _distinct(one: I64, other: I64) -> int:
    """How many different pairs of numbers there are."""
    if not len(one):
        return 0
    order = np.lexsort((other, one))
    return 1 + int(((np.diff(one[order]) != 0) | (np.diff(other[order]) != 0)).sum())


def _meet(key: I64, low: I64, high: I64, keys: I64, lows: I64, highs: I64) -> Bits:
    """Which intervals meet any interval of the others that has the same key."""
    if not len(keys) or not len(key):
        return np.zeros(len(key), bool)
    begin = min(int(lows.min()), int(low.min()))
    width = max(int(highs.max()), int(high.max())) - begin + 2
    order = np.lexsort((lows, keys))
    keys, starts = keys[order] * width, lows[order] - begin
    furthest = np.maximum.accumulate(keys + highs[order] - begin)
    place = np.searchsorted(keys + starts, key * width + high - begin, side="right") - 1
    met: Bits = (place >= 0) & (furthest[np.maximum(place, 0)] >= key * width + low - begin)
    return met


def _spans(key: I64, low: I64, high: I64) -> tuple[I64, I64, I64]:
    """The announcements of keys: which one each row is in, and from when to when they hold.

    A span holds one window from the row that begins it; if rows came meanwhile, the next goes on from its end.
    """
    order = np.lexsort((low, key))
    span, lows, highs = np.zeros(len(key), np.int64), [], []
    last_key, until, ends = -1, -1, -1
    for place, value, start, end in zip(
        order.tolist(), key[order].tolist(), low[order].tolist(), high[order].tolist(), strict=True
    ):
        if value != last_key or start > until:
            goes_on = value == last_key and start <= ends
            begin = until if goes_on else start
            last_key, until = value, (max(ends, end) if goes_on else end)
            lows.append(begin)
            highs.append(until)
        ends = end
        span[place] = len(lows) - 1
    return span, np.array(lows, np.int64), np.array(highs, np.int64)
