"""A query in figures: what to expect of every set of its streams in the steady state. Planners and costs build on it.

Each alias brings a rate and a window, and for each of its key classes the shares of its rows over the values. Taking
the columns of a stream as independent of each other, the number of live combinations of a set A of aliases is

    N(A) = product of W_j over A  *  product over key classes c of  sum over values v of  product of p_j(v) over A in c

and new ones come at  R(A) = sum over heads i in A of  rate_i * N(A) / W_i,  PMJoin's equations 2 and 3 value by value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lgamma, log, log10
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watersmeet.cost.comparing import Known, share_left
from watersmeet.cost.records import Records, records_of
from watersmeet.errors import InputError
from watersmeet.plan.nodes import KeyClass, Partition, Scan
from watersmeet.plan.partition import sub_plans_of
from watersmeet.query.comparisons import Condition
from watersmeet.query.model import JoinQuery
from watersmeet.query.windows import AsOf, Range, Rows, Tumble, Unbounded, Window, counted
from watersmeet.stats.model import BATCH_ROWS, BytesByBatch, ColumnStats, Histogram, Stats

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

UNBOUNDED_S = 3_600.0  # an unbounded window is priced as if it held this long
TABLE_S = 86_400.0  # what it takes to ship a table is spread over so long: a day
DEFAULTS = {"rate": 100.0, "number of rows": 10_000.0, "distinct values": 1_000.0, "bytes a value": 8.0}
_LEAST_MARK_BYTES, _MOST_MARK_BYTES = 0.02, 3.0  # of a value that is in the batch before
TIMESTAMP_SIZES = (7.0, 3.6, 2.1, 1.7, 1.6)  # measured, rows of a second
PLACE_SIZES = (7.0, 3.4, 3.0, 2.8, 2.8)  # the same in another order than that of time
# What the times of some rows of a regular stream take at least: measured, by how uncertain it is which rows they are.
_THINNED_SIZES, _THINNED_SIZES_PER_BIT = (0.0, 2.2, 0.5, 0.15, 0.1), (0.0, 0.25, 0.33, 0.28, 0.28)
_RAREST_SHARE = 1e-6
_LEAST_KEY_BYTES = 0.2
_HASH_SIZES: BytesByBatch = (8.0, 8.0, 8.0, 8.0, 8.0)
_BATCHES = len(BATCH_ROWS)


class MissingStatistic(InputError):
    """A planner needs a figure that nobody gave."""


@dataclass(frozen=True)
class Domain:
    """The values of one key class in cells: every cell stands for `size` values that all are alike.

    `shares[i, b]` is the share of the rows of alias i that have any value of cell b; no member has all zeros.
    """

    low: I64
    high: I64
    size: F64
    shares: F64
    members: NDArray[np.bool_]
    is_known: bool = True  # whether the values are really these, or only as many

    @property
    def cells(self) -> int:
        return len(self.size)


@dataclass(frozen=True, slots=True)
class _FirstTimes:
    """Shares of the combinations of a batch: those in which the row of each alias is new, the head's, another one's."""

    rows: F64
    heads: float
    others: float


class Counted(Protocol):
    """A sample of all streams of a query, of which can be counted what else is estimated (see cost.sampled)."""

    @property
    def span_s(self) -> float: ...
    def kept(self, alias: int) -> float | None: ...
    def rate(self, alias: int) -> float: ...
    def is_tied(self, mask: int) -> bool: ...
    def count(self, mask: int, head: int | None = None) -> int: ...
    def limited(self, key_class: int, low: I64, high: I64) -> "Counted": ...
    def first_times(self, mask: int, head: int | None = None) -> tuple[Mapping[int, float], float] | None: ...
    def batches(self, mask: int, head: int | None = None) -> float: ...
    def met(self, mask: int, other: int, slack_s: float) -> tuple[float, int]: ...
    def overlapping(self, mask: int, other: int, slack_s: float) -> tuple[float, int]: ...
    def fetched(self, mask: int, by: int, head: int | None, *, spans: bool, slack_s: float) -> tuple[float, int]: ...
    def announced(self, mask: int, key: tuple[int, ...]) -> int: ...
    def wanted(self, mask: int, by: int, head: int | None) -> int: ...
    def asked(self, mask: int, head: int | None, partner: int) -> int: ...
    def which(self, kind: str, mask: int, other: int, slack_s: float) -> NDArray[np.bool_]: ...
    def which_fetched(
        self, mask: int, by: int, head: int | None, *, spans: bool, slack_s: float
    ) -> NDArray[np.bool_]: ...
    def gathered(self, found: Sequence[tuple[int, NDArray[np.bool_]]]) -> tuple[float, int]: ...


@dataclass(frozen=True)
class Workload:
    """The figures of a query; aliases by number, in the order of the query."""

    aliases: tuple[str, ...]
    homes: tuple[str, ...]
    site: str | None
    rate: F64  # rows a second
    window_s: F64  # for how long a row is seen
    domains: tuple[Domain, ...]  # by key class
    sizes: tuple[tuple[BytesByBatch, ...], ...]  # of every value that travels of each alias
    answer_sizes: tuple[BytesByBatch, ...] = ()
    ordered: tuple[bool, ...] = ()  # aliases with ROWS windows
    defaults: tuple[str, ...] = ()  # figures that nobody gave
    conditions: tuple[tuple[int, float], ...] = ()  # sets of aliases, and the share that comparisons of them leave
    answer_owners: tuple[int, ...] = ()  # the alias of each value of an answer
    key_sizes: tuple[BytesByBatch, ...] = ()  # of a value of each key class
    hidden: tuple[tuple[int, ...], ...] = ()  # classes of each alias whose key travels beside what is kept of a row
    in_order: tuple[tuple[BytesByBatch, ...], ...] = ()  # like `sizes`, of rows in the order of their time
    records: Records | None = None  # what answers travel as, with GROUP BY
    before_filters: F64 | None = None  # rows a second, also those that filters leave out: their times count
    busy_shares: tuple[Mapping[float, float], ...] = ()  # of each alias: intervals with rows, by their length
    dropped: tuple[tuple[int, int, BytesByBatch], ...] = ()  # alias, the set without which a value is not needed, size
    time_sizes: tuple[BytesByBatch, ...] = ()  # of each alias's event times, all of them in order
    unmeasured: tuple[str, ...] = ()  # filters of which nobody knows how many rows pass
    sampled: Counted | None = field(default=None, repr=False, compare=False)
    _memory: dict[tuple[int, int | None], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def window(self) -> F64:
        """Rows in each window."""
        return self.rate * self.window_s

    @property
    def arrivals(self) -> F64:
        """Rows a second that come of each alias, whether or not they pass its filters."""
        return self.rate if self.before_filters is None else self.before_filters

    def busy(self, interval_s: float) -> F64:
        """The chance that an interval has rows of each alias, whether or not they pass its filters.

        Where nobody has seen how rows come, by a Poisson process; else between the lengths for which it was seen.
        """
        found: F64 = -np.expm1(-self.arrivals * interval_s)
        for number, known in enumerate(self.busy_shares):
            if known and interval_s <= max(known):
                lengths = np.array(sorted(known))
                shares = np.maximum([known[length] for length in lengths], 1e-12)
                share = float(np.exp(np.interp(np.log(interval_s), np.log(lengths), np.log(shares))))
                found[number] = min(share * min(interval_s / lengths[0], 1.0), 1.0)
        return found

    def number(self, alias: str) -> int:
        return self.aliases.index(alias)

    def mask(self, aliases: Iterable[str]) -> int:
        """A set of aliases as bits."""
        return sum(1 << self.number(alias) for alias in aliases)

    def shared(self, some: int, others: int) -> tuple[int, ...]:
        """The key classes that tie two sets of aliases."""
        return tuple(number for number, mask in enumerate(self._masks) if mask & some and mask & others)

    @cached_property
    def _masks(self) -> tuple[int, ...]:
        """The members of each key class."""
        return tuple(sum(1 << int(alias) for alias in np.flatnonzero(domain.members)) for domain in self.domains)

    def selectivity(self, mask: int) -> float:
        """The share of all combinations of a set of aliases that agree on every key."""
        found = self._memory.get((mask, None))
        if found is None:
            found = float(np.prod([self.agreement(number, mask).sum() for number in range(len(self.domains))]))
            found *= float(self.left_by_conditions(np.array([mask]))[0])
            found = self._counted_selectivity(mask, found)
            self._memory[mask, None] = found
        return found

    @property
    def estimated(self) -> "Workload":
        """The same without the sample that figures are counted in."""
        return self if self.sampled is None else replace(self, sampled=None, _memory={})

    def is_counted(self, mask: int) -> bool:
        """Whether there is a sample of which can be counted what combinations of a set of aliases do."""
        return self.sampled is not None and self.sampled.is_tied(mask)

    def _counted_selectivity(self, mask: int, estimated: float) -> float:
        """The share of all combinations that a sample has; where it has none, as many as it says of estimates."""
        if self.sampled is None or mask & (mask - 1) == 0 or not self.sampled.is_tied(mask):
            return estimated
        members = members_of(mask)
        rates = np.array([self.sampled.rate(alias) for alias in members])
        every = float(np.prod(rates * self.window_s[members]) * (1 / self.window_s[members]).sum())
        expected = every * self.sampled.span_s
        if not expected > 0:
            return estimated
        count = self.sampled.count(mask)
        return (count or min(expected * estimated, 0.5)) / expected

    def left_by_conditions(self, sets: I64) -> F64:
        """The share of combinations of some sets of aliases that comparisons leave."""
        left = np.ones(len(sets))
        for compared, share in self.conditions:
            left[sets & compared == compared] *= share
        return left

    def agreement(self, number: int, mask: int) -> F64:
        """The share of combinations that agree on a key class, cell by cell; what is no member agrees with all."""
        domain = self.domains[number]
        members = [alias for alias in members_of(mask) if domain.members[alias]]
        if not members:
            return np.ones(1)
        chance = np.prod(domain.shares[members] / domain.size, axis=0)
        cells: F64 = chance * domain.size
        return cells

    def cell_shares(self, number: int, mask: int) -> F64:
        """The shares of the combinations of a set of aliases over the cells of a key class."""
        found: F64 | None = self._memory.get((mask, number + 1))
        if found is None:
            cells = self.agreement(number, mask)
            found = cells / max(cells.sum(), 1e-300)
            self._memory[mask, number + 1] = found
        return found

    def count(self, mask: int) -> float:
        """How many combinations of a set of aliases are live at a time."""
        return float(np.prod(self.window[members_of(mask)])) * self.selectivity(mask)

    def head_rate(self, head: int, mask: int) -> float:
        """Combinations a second of a set of aliases whose latest row is the head's."""
        members = members_of(mask)
        even = {
            one: float(self.rate[one] * np.prod(self.window[[other for other in members if other != one]]))
            for one in members
        }
        alike = even[head] * self.selectivity(mask)
        if self.sampled is None or len(members) == 1 or not self.sampled.is_tied(mask):
            return alike
        total = max(sum(even.values()), 1e-300)
        share = (self.sampled.count(mask, head) + even[head] / total) / (self.sampled.count(mask) + 1)
        return total * self.selectivity(mask) * share

    def combination_rate(self, mask: int) -> float:
        """Combinations a second of a set of aliases, whoever is their head."""
        found = self._memory.get((mask, 0))
        if found is None:
            members = members_of(mask)
            found = sum(
                float(self.rate[one] * np.prod(self.window[[other for other in members if other != one]]))
                for one in members
            ) * self.selectivity(mask)
            self._memory[mask, 0] = found
        return found

    def lifetime_s(self, mask: int) -> float:
        """For how long a combination is live: until the first of its rows is out of its window.

        >>> work = Workload(("a",), ("x",), "x", np.array([2.0]), np.array([5.0]), (), ((),))
        >>> work.lifetime_s(1)
        5.0
        """
        rate = self.combination_rate(mask)
        return self.count(mask) / rate if rate else 0.0

    def row_bytes(
        self,
        mask: int,
        batch_rows: float,
        *,
        times: int = 1,
        answers: bool = False,
        head: int | None = None,
        rate: float | None = None,
    ) -> float:
        """Bytes that a row or combination with so many times takes on a link, in batches of so many rows.

        A row of a stream that is in several combinations of a batch takes its bytes once, and a mark each further
        time: equal values are numbered, or lie side by side. What a batch takes beside its values is not in it.
        `head` is the alias whose rows are the latest ones, if it is always the same; `rate` how many rows a second
        travel of a stream, if not all of them.
        """
        everything = (1 << len(self.aliases)) - 1
        if answers:
            owners = self.answer_owners or (0,) * len(self.answer_sizes)
            first = self._first_times(everything, batch_rows, head)
            return sum(
                _repeated(size, float(first.rows[owner]), batch_rows)
                for size, owner in zip(self.answer_sizes, owners, strict=True)
            )
        members = members_of(mask)
        stamp = TIMESTAMP_SIZES if times == 1 else PLACE_SIZES
        if len(members) == 1:
            alias = members[0]
            travel = self.rate[alias] if rate is None else rate
            share = travel / max(float(self.arrivals[alias]), 1e-300)
            return float(size_at(thinned(self.stamps[alias], share) + self.alone[alias], batch_rows))
        first = self._first_times(mask, batch_rows, head)
        total = _repeated(stamp, first.heads, batch_rows)
        if times > 1:
            total += (times - 1) * _repeated(stamp, first.others, batch_rows)
        for alias in members:
            total += self._of_alias(alias, float(first.rows[alias]), batch_rows)
        for alias, needed, gone in self.dropped:
            if mask >> alias & 1 and needed & mask == needed:
                total -= _repeated(gone, float(first.rows[alias]), batch_rows)
        for number, spare in self._spare(mask).items():
            carriers = [alias for alias in members if number in self.hidden[alias]]
            each = sorted(
                _repeated(self._hidden_sizes(alias, number), float(first.rows[alias]), batch_rows) for alias in carriers
            )
            total -= sum(each[len(each) - spare :])  # the one that is kept has as few different values as any of them
        return total

    def _hidden_sizes(self, alias: int, number: int) -> BytesByBatch:
        """Of a key that travels beside what is kept of a row; these sizes are the last ones of an alias."""
        hidden = self.hidden[alias]
        return self.sizes[alias][len(self.sizes[alias]) - len(hidden) + hidden.index(number)]

    def _of_alias(self, alias: int, first: float, batch_rows: float) -> float:
        return sum(_repeated(size, first, batch_rows) for size in self.sizes[alias])

    def _first_times(self, mask: int, batch_rows: float, head: int | None) -> _FirstTimes:
        """The shares of combinations in a batch that have a row which no combination before them has.

        A head makes combinations of all rows of the others that it meets, one for each choice of them: so its own row
        is in all of these, and a row of another alias in as many as there are choices of the rest; those rows are
        drawn from what their window holds in the time of the batch.
        """
        members, rows = members_of(mask), np.ones(len(self.aliases))
        if self.is_counted(mask):
            assert self.sampled is not None
            counted = self.sampled.first_times(mask, head)
            if counted is not None:
                by_alias, of_heads = counted
                for alias, one in by_alias.items():
                    rows[alias] = one
                return _FirstTimes(rows, of_heads, sum(by_alias.values()) / len(by_alias))
        batch_rows = max(batch_rows, 1.0)
        met = dict(zip(members, self._met_at_once(mask).tolist(), strict=True))
        choices = float(np.prod([*met.values()]))
        heads = members if head is None else [head]
        shares = np.array([self.head_rate(one, mask) for one in heads])
        shares = shares / shares.sum() if shares.sum() > 0 else np.full(len(heads), 1 / len(heads))
        taken_s = batch_rows / max(self.combination_rate(mask) * (1 if head is None else 1 / len(members)), 1e-300)
        pool = np.maximum(self.window + self.rate * min(taken_s, float(self.window_s.max())), 1.0)
        new_heads, others = 0.0, []
        drawn = dict.fromkeys(members, 0.0)  # rows of each alias that are not the head
        found = dict.fromkeys(members, 0.0)
        for one, share in zip(heads, shares.tolist(), strict=True):
            made = batch_rows * share / (choices / met[one])
            new_heads += made
            found[one] += made
            for alias in members:
                if alias != one:
                    drawn[alias] += batch_rows * share / (choices / met[one] / met[alias])
        for alias in members:
            different = float(pool[alias] * -np.expm1(-drawn[alias] / pool[alias]))
            others.append(different)
            rows[alias] = min(max(found[alias] + different, 1.0) / batch_rows, 1.0)
        rest = sum(others) / max(len(members) - 1, 1)
        return _FirstTimes(rows, *(min(max(count, 1.0) / batch_rows, 1.0) for count in (new_heads, rest)))

    def _met_at_once(self, mask: int) -> F64:
        """How many rows of each member a combination has to choose from, on average, once there are any."""
        found: F64 | None = self._memory.get((mask, -1))
        if found is None:
            members = members_of(mask)
            load = self.window[members]
            for number, tied in enumerate(self._masks):
                if (tied & mask).bit_count() > 1:
                    domain, cells = self.domains[number], self.agreement(number, mask)
                    alike = (domain.shares[members] / domain.size) @ cells / max(cells.sum(), 1e-300)
                    load = np.where(domain.members[members], load * alike, load)
            found = np.where(load > 1e-9, load / -np.expm1(-np.maximum(load, 1e-9)), 1.0)
            self._memory[mask, -1] = found
        return found

    def _spare(self, mask: int) -> dict[int, int]:
        """How often the key of each class is counted too many: a combination has it once, while it is needed."""
        found: dict[int, int] = {}
        if not self.hidden or mask & (mask - 1) == 0:
            return found
        for number, members in enumerate(self._masks):
            carriers = [alias for alias in members_of(mask & members) if number in self.hidden[alias]]
            if carriers:
                is_kept = len(carriers) < (mask & members).bit_count()
                is_needed = bool(members & ~mask) and not is_kept
                found[number] = len(carriers) - is_needed
        return found

    @cached_property
    def alone(self) -> F64:
        """The sizes of each alias's values together, in rows of its own."""
        return _summed(self.in_order or self.sizes)

    @cached_property
    def stamps(self) -> F64:
        """The sizes of each alias's event times, all of them in order."""
        return np.array(self.time_sizes or (TIMESTAMP_SIZES,) * len(self.aliases))

    @cached_property
    def combined(self) -> F64:
        """The sizes of each alias's values together, in combinations."""
        return _summed(self.sizes)

    def keys_bytes(self, key: tuple[int, ...], batch_rows: float, *, asked: bool = False) -> float:
        """Bytes that a key with the time it stands for takes on a link, in batches of so many rows.

        Keys are in order, so that a batch of n takes log2(n!) bits less. Those that are asked for are often those of
        one row, and stand for no time but its own.
        """
        sizes = self.key_sizes[key[0]] if len(key) == 1 and self.key_sizes else _HASH_SIZES
        rows = max(batch_rows, 1.0)
        in_order = one_size(sizes, rows) - lgamma(rows + 1) / log(2) / rows / 8
        return max(in_order, _LEAST_KEY_BYTES) + (1.5 if asked else 2) * one_size(PLACE_SIZES, rows)

    def columns(self, mask: int, *, times: int = 1) -> int:
        """How many columns a row or combination has."""
        several = mask & (mask - 1)
        gone = sum(1 for alias, needed, _ in self.dropped if several and mask >> alias & 1 and needed & mask == needed)
        return (
            times + sum(len(self.sizes[alias]) for alias in members_of(mask)) - sum(self._spare(mask).values()) - gone
        )

    def limited(self, partition: Partition, cells: NDArray[np.bool_]) -> "Workload":
        """The workload of those combinations whose value lies in some cells of a key class."""
        domains = list(self.domains)
        domain = domains[partition.key_class]
        kept = np.where(cells, domain.shares, 0.0)
        mass = np.where(domain.members, kept.sum(axis=1), 1.0)
        shares = np.divide(kept, mass[:, None], out=np.zeros_like(kept), where=mass[:, None] > 0)
        inside = shares[:, cells]
        domains[partition.key_class] = Domain(
            domain.low[cells], domain.high[cells], domain.size[cells], inside, domain.members, domain.is_known
        )
        sampled = self.sampled
        if sampled is not None:
            sampled = sampled.limited(partition.key_class, domain.low[cells], domain.high[cells])
        return replace(
            self,
            rate=self.rate * mass,
            domains=tuple(domains),
            before_filters=self.arrivals,
            sampled=sampled,
            _memory={},
        )

    def sub_plan_of_cells(self, partition: Partition) -> I64:
        """The sub-plan of each cell of the partition's key class."""
        domain = self.domains[partition.key_class]
        return sub_plans_of(partition, domain.low)


def _summed(sizes: Sequence[ArrayLike]) -> F64:
    return np.array([np.reshape(of, (-1, _BATCHES)).sum(axis=0) for of in sizes]).reshape(-1, _BATCHES)


def _repeated(sizes: BytesByBatch, first: float, batch_rows: float) -> float:
    """Bytes of a value in a batch in which a share of the values is there for the first time, the rest as marks.

    Measured: where values come again many times a mark is next to nothing, and where they come again once or twice
    about half of what narrow numbers take is left.
    """
    if first >= 1:
        return one_size(sizes, batch_rows)
    once = one_size(sizes, first * batch_rows)
    mark = _LEAST_MARK_BYTES + min(once, _MOST_MARK_BYTES) * min(0.5, 5 * first**2)
    return first * once + (1 - first) * min(once, mark)


def members_of(mask: int) -> list[int]:
    """The numbers of the bits that are set.

    >>> members_of(0b1101)
    [0, 2, 3]
    """
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def size_at(sizes: ArrayLike, batch_rows: ArrayLike) -> F64:
    """Bytes in batches of so many rows, between those known for `BATCH_ROWS`, which are the last axis.

    >>> size_at((8.0, 4.0, 2.0, 1.0, 1.0), [1.0, 10.0, 1_000.0, 1e6]).tolist()
    [8.0, 4.0, 1.0, 1.0]
    """
    known = np.asarray(sizes, float)
    place = np.log10(np.maximum(batch_rows, 1.0))
    found: F64 = known[..., 0] + np.zeros_like(place)
    for number in range(_BATCHES - 1):
        found = found + (known[..., number + 1] - known[..., number]) * np.minimum(np.maximum(place - number, 0.0), 1.0)
    return found


def one_size(sizes: BytesByBatch, batch_rows: float) -> float:
    """`size_at` of one value in one batch, without arrays: planners ask for it ten thousand times.

    >>> one_size((8.0, 4.0, 2.0, 1.0, 1.0), 10.0), one_size((8.0, 4.0, 2.0, 1.0, 1.0), 1e6)
    (4.0, 1.0)
    """
    place = log10(max(batch_rows, 1.0))
    before = int(place)
    if before >= _BATCHES - 1:
        return sizes[-1]
    return sizes[before] + (sizes[before + 1] - sizes[before]) * (place - before)


def thinned(sizes: ArrayLike, share: ArrayLike) -> F64:
    """Bytes of an event time where a share of a stream's rows travels, by those of all rows in order (last axis).

    Rows that come at random are as far apart as before, times 1 / share. Of regular ones, whose times take next to
    nothing, it has to be said which they are: the entropy of the number of rows left out between two.

    >>> thinned((7.0, 0.9, 0.09, 0.01, 0.001), 1.0).tolist()
    [7.0, 0.9, 0.09, 0.01, 0.001]
    >>> thinned((7.0, 0.9, 0.09, 0.01, 0.001), 0.5).round(2).tolist()
    [7.12, 2.7, 1.16, 0.71, 0.66]
    """
    kept = np.clip(np.asarray(share, float), _RAREST_SHARE, 1.0)[..., None]
    left_out = np.maximum(1 - kept, 1e-12)
    bits = np.where(kept < 1, -np.log2(kept) - left_out / kept * np.log2(left_out), 0.0)
    which = np.where(bits > 0, np.array(_THINNED_SIZES) + bits * np.array(_THINNED_SIZES_PER_BIT), 0.0)
    found: F64 = np.maximum(np.asarray(sizes, float) - np.log2(kept) / 8, which)
    return found


def workload_of(
    scans: Sequence[Scan],
    classes: Sequence[KeyClass],
    output: Sequence[str],
    homes: Sequence[str],
    site: str | None,
    stats: Stats,
    *,
    conditions: Sequence[Condition] = (),
    defaults: bool = False,
    query: JoinQuery | None = None,
    event_times: Mapping[str, str] | None = None,
) -> Workload:
    """The figures of a query; a figure that nobody gave is an error, or a stated default if those are asked for.

    `event_times` has the event-time column of streams by name.
    """
    gather = _Gather(stats, defaults)
    rates, windows, arrivals = [], [], []
    for scan in scans:
        rate = gather.rate(scan)
        arrivals.append(rate)
        for filtered in scan.filters:
            rate *= gather.share_passed(filtered.sql)
        windows.append(_window_s(scan.window, arrivals[-1]))
        rates.append(rate * _share_with_keys(scan, classes, gather))
    domains = tuple(_domain(key_class, scans, gather) for key_class in classes)
    sizes, in_order = (
        tuple(_travelling_sizes(scan, classes, gather, in_order=is_in_order) for scan in scans)
        for is_in_order in (False, True)
    )
    answer = tuple(
        gather.sizes(scan, kept.expression.columns[0].name)
        for scan in scans
        for kept in scan.kept
        if kept.name in output
    )
    owners = tuple(number for number, scan in enumerate(scans) for kept in scan.kept if kept.name in output)
    by_alias = {scan.alias: scan for scan in scans}
    records = None
    if query is not None:
        records = records_of(
            query,
            lambda column: gather.distinct_or_default(by_alias[column.alias], column.name),
            lambda column: float(size_at(gather.sizes(by_alias[column.alias], column.name), 100.0)),
            lambda alias, within_s: _rows_within(alias, within_s, scans, rates, windows),
        )
    return Workload(
        tuple(scan.alias for scan in scans),
        tuple(homes),
        site,
        np.array(rates, float),
        np.array(windows, float),
        domains,
        sizes,
        answer,
        tuple(counted(scan.window) is not None for scan in scans),
        tuple(gather.used),
        _left(scans, conditions, windows, gather),
        owners,
        tuple(_key_sizes(key_class, scans, gather) for key_class in classes),
        tuple(tuple(number for number in scan.classes if _is_hidden(scan, classes[number])) for scan in scans),
        in_order,
        records,
        np.array(arrivals, float),
        tuple(stats.stream(scan.stream).busy for scan in scans),
        tuple(_dropped(scans, output, conditions, gather)),
        tuple(gather.time_sizes(scan, (event_times or {}).get(scan.stream, "")) for scan in scans),
        tuple(gather.unmeasured),
    )


def _share_with_keys(scan: Scan, classes: Sequence[KeyClass], gather: "_Gather") -> float:
    """The share of a stream's rows that have none of its keys NULL: others meet nothing and are not stored."""
    share = 1.0
    for number in scan.classes:
        member = classes[number].member(scan.alias)
        if member is not None and member.is_plain:
            share *= 1 - (gather.column(scan, member.columns[0].name).nulls or 0.0)
    return share


def _left(
    scans: Sequence[Scan], conditions: Sequence[Condition], windows: Sequence[float], gather: "_Gather"
) -> tuple[tuple[int, float], ...]:
    """For each set of aliases that comparisons are about, the share of its combinations that they leave."""
    numbers = {scan.alias: number for number, scan in enumerate(scans)}
    columns = {column.flat: column for one in conditions for column in one.expression.columns}

    def known(name: str) -> Known:
        number = numbers[columns[name].alias]
        return Known(windows[number] * 1e6, gather.histogram(scans[number], columns[name].name))

    by_set: dict[int, list[Condition]] = {}
    for one in conditions:
        by_set.setdefault(sum(1 << numbers[alias] for alias in one.aliases), []).append(one)
    left = []
    for which, some in sorted(by_set.items()):
        share = share_left([one for one in some if not gather.knows(one.expression.sql)], known)
        given = [gather.selectivity(one.expression.sql) for one in some]
        left.append((which, share * float(np.prod(given))))
    return tuple(left)


def _dropped(
    scans: Sequence[Scan], output: Sequence[str], conditions: Sequence[Condition], gather: "_Gather"
) -> Iterator[tuple[int, int, BytesByBatch]]:
    """The values that only comparisons need, and the aliases that must have met for all of these to be applied."""
    numbers = {scan.alias: number for number, scan in enumerate(scans)}
    for number, scan in enumerate(scans):
        for kept in scan.kept:
            about = [one.aliases for one in conditions if kept.name in one.columns]
            if about and kept.name not in output:
                needed = sum(1 << numbers[alias] for alias in {alias for aliases in about for alias in aliases})
                yield number, needed, gather.sizes(scan, kept.expression.columns[0].name)


def _rows_within(
    alias: str, within_s: float, scans: Sequence[Scan], rates: Sequence[float], windows: Sequence[float]
) -> float:
    """Rows of an alias that are in their window some time of a while."""
    number = next(number for number, scan in enumerate(scans) if scan.alias == alias)
    return rates[number] * (within_s + windows[number])


def _window_s(window: Window, rate: float) -> float:
    match window:
        case Range(window_us):
            return window_us / 1e6
        case Tumble(window_us):
            return window_us / 2e6  # on average, half of the interval is over
        case Rows(count):
            return count / rate if rate else 0.0
        case Unbounded():
            return UNBOUNDED_S
        case AsOf():
            return TABLE_S


class _Gather:
    """Looks figures up, and tells which are missing."""

    def __init__(self, stats: Stats, defaults: bool) -> None:
        self._stats, self._defaults = stats, defaults
        self.used: list[str] = []
        self.unmeasured: list[str] = []  # filters that are taken to let all rows pass

    def _missing(self, what: str, kind: str) -> float:
        if not self._defaults:
            raise MissingStatistic(
                f"no {kind} is known {what}; run `watersmeet stats`, give it under `stats:` in the topology, "
                f"or plan with --assume-defaults (which takes {DEFAULTS[kind]:g})"
            )
        note = f"{kind} {what}: {DEFAULTS[kind]:g}"
        if note not in self.used:
            self.used.append(note)
        return DEFAULTS[kind]

    def rate(self, scan: Scan) -> float:
        known = self._stats.stream(scan.stream).rate
        if isinstance(scan.window, AsOf):  # all its rows are there at first: as many come in a day as it has
            rows = self._stats.stream(scan.stream).rows
            return (rows.value if rows else self._missing(f"of table {scan.stream!r}", "number of rows")) / TABLE_S
        return known.value if known else self._missing(f"of stream {scan.stream!r}", "rate")

    def knows(self, sql: str) -> bool:
        """Whether somebody said what share a predicate leaves."""
        return sql in self._stats.selectivities

    def selectivity(self, sql: str) -> float:
        known = self._stats.selectivities.get(sql)
        return known.value if known else 1.0

    def share_passed(self, sql: str) -> float:
        """The share of a stream's rows that pass a filter."""
        if not self.knows(sql) and sql not in self.unmeasured:
            self.unmeasured.append(sql)
        return self.selectivity(sql)

    def column(self, scan: Scan, name: str) -> ColumnStats:
        columns = self._stats.stream(scan.stream).columns
        return next((column for key, column in columns.items() if key.casefold() == name.casefold()), ColumnStats())

    def distinct(self, scan: Scan, name: str) -> float:
        known = self.column(scan, name).distinct
        if known is None:
            return self._missing(f"of column {name!r} of stream {scan.stream!r}", "distinct values")
        return max(known.value, 1.0)

    def distinct_or_default(self, scan: Scan, name: str) -> float:
        """The number of values of a column that is no key of the join, so that nobody was asked for it."""
        known = self.column(scan, name).distinct
        return DEFAULTS["distinct values"] if known is None else known.value

    def histogram(self, scan: Scan, name: str) -> Histogram | None:
        return self.column(scan, name).histogram

    def time_sizes(self, scan: Scan, name: str) -> BytesByBatch:
        """Bytes of the event times of all rows in order; where nobody measured them, of rows that come at random."""
        return (self.column(scan, name).in_order if name else None) or TIMESTAMP_SIZES

    def sizes(self, scan: Scan, name: str, *, in_order: bool = False) -> BytesByBatch:
        column = self.column(scan, name)
        if column.sizes is not None:
            return column.in_order if in_order and column.in_order else column.sizes
        stream = self._stats.stream(scan.stream)
        kept = max(len(scan.kept), 1)
        if stream.row_bytes is not None:
            each = stream.row_bytes.value / kept
        else:
            each = self._missing(f"for column {name!r} of stream {scan.stream!r}", "bytes a value")
        return each, each, each, each, each


def _travelling_sizes(
    scan: Scan, classes: Sequence[KeyClass], gather: _Gather, *, in_order: bool
) -> tuple[BytesByBatch, ...]:
    """BytesByBatch of what travels of a row beside its time: what is kept of it, and keys that are not among that."""
    sizes = [gather.sizes(scan, kept.expression.columns[0].name, in_order=in_order) for kept in scan.kept]
    for number in scan.classes:
        if _is_hidden(scan, classes[number]):
            key_class = classes[number]
            if key_class.exact:
                sizes.append(_key_sizes(key_class, (scan,), gather))
            else:
                sizes.append(_hash_sizes(key_class, scan, gather, in_order=in_order))
    return tuple(sizes)


def _hash_sizes(key_class: KeyClass, scan: Scan, gather: _Gather, *, in_order: bool) -> BytesByBatch:
    """Bytes of a hashed key beside what is kept of a row: eight the first time in a batch, then a mark."""
    member = key_class.member(scan.alias)
    if member is None or not member.is_plain:
        return _HASH_SIZES
    known = gather.column(scan, member.columns[0].name)
    if known.distinct is None or known.sizes is None:
        return _HASH_SIZES
    distinct = max(known.distinct.value, 1.0)
    one, ten, hundred, thousand, most = (
        min(8.0, 8.0 * distinct / rows * -float(np.expm1(-rows / distinct)) + min(each, log(distinct + 1) / log(2) / 8))
        for rows, each in zip(BATCH_ROWS, (known.in_order if in_order else None) or known.sizes, strict=True)
    )
    return one, ten, hundred, thousand, most


def _is_hidden(scan: Scan, key_class: KeyClass) -> bool:
    """Whether the key of a row is not among what is kept of it."""
    member = key_class.member(scan.alias)
    assert member is not None
    return not (key_class.exact and member.is_plain and member.columns[0].flat in {kept.name for kept in scan.kept})


def _key_sizes(key_class: KeyClass, scans: Sequence[Scan], gather: _Gather) -> BytesByBatch:
    """Bytes of a key on a link: of the first member, or of a hash."""
    if not key_class.exact:
        return _HASH_SIZES
    scan, member = next((scan, member) for scan in scans if (member := key_class.member(scan.alias)) is not None)
    return gather.sizes(scan, member.columns[0].name)


def _domain(key_class: KeyClass, scans: Sequence[Scan], gather: _Gather) -> Domain:
    """The common cells of all members of a key class."""
    members = np.array([key_class.member(scan.alias) is not None for scan in scans])
    histograms: dict[int, Histogram] = {}
    distinct: dict[int, float] = {}
    for number, scan in enumerate(scans):
        member = key_class.member(scan.alias)
        if member is None:
            continue
        name = member.columns[0].name
        found = gather.histogram(scan, name)
        if found is not None and found.bins:
            histograms[number] = found
        else:
            distinct[number] = gather.distinct(scan, name)
    if not histograms:
        return _nested(distinct, members)
    return aligned(histograms, distinct, members)


def _nested(distinct: Mapping[int, float], members: NDArray[np.bool_]) -> Domain:
    """Nothing is known but counts: the values of a smaller set are among those of a larger one, all equally often."""
    edges = sorted(set(distinct.values()))
    size = np.diff([0.0, *edges])
    shares = np.zeros((len(members), len(edges)))
    for number, count in distinct.items():
        inside = np.array(edges) <= count
        shares[number, inside] = size[inside] / count
    known = np.minimum(edges, 2.0**62)
    low = np.concatenate([[0.0], known[:-1]]).astype(np.int64) if edges else np.empty(0, np.int64)
    high = known.astype(np.int64) - 1
    return Domain(low, np.maximum(high, low), size, shares, members, is_known=False)


def aligned(histograms: Mapping[int, Histogram], distinct: Mapping[int, float], members: NDArray[np.bool_]) -> Domain:
    """Cells between all edges of all histograms; the rows of a bin spread evenly over it."""
    bins = [bin_ for histogram in histograms.values() for bin_ in histogram.bins]
    top = max(one.high for one in bins)
    low = np.array(sorted({edge for one in bins for edge in (one.low, one.high + 1) if edge <= top}), np.int64)
    high = np.append(low[1:] - 1, top)
    values = (high.view(np.uint64) - low.view(np.uint64)).astype(float) + 1.0  # up to 2^64 of them in a cell
    shares = np.zeros((len(members), len(low)))
    sizes = np.zeros((len(members), len(low)))
    for number, histogram in histograms.items():
        for bin_ in histogram.bins:
            first, last = np.searchsorted(low, bin_.low), np.searchsorted(high, bin_.high, "left")
            width = values[first : last + 1] / values[first : last + 1].sum()
            shares[number, first : last + 1] += bin_.share * width
            sizes[number, first : last + 1] += bin_.distinct * width
    size = np.maximum(sizes.max(axis=0), 1e-9)
    used = size > 1e-9
    for number, count in distinct.items():
        total = size[used].sum()
        shares[number, used] = size[used] / total * min(1.0, total / max(count, 1.0))
    size = np.where((high == low) & used, 1.0, size)
    return Domain(low[used], high[used], size[used], shares[:, used], members)
