"""A query in figures: what to expect of every set of its streams in the steady state. Planners and costs build on it.

Each alias brings a rate and a window, and for each of its key classes the shares of its rows over the values. Taking
the columns of a stream as independent of each other, the number of live combinations of a set A of aliases is

    N(A) = product of W_j over A  *  product over key classes c of  sum over values v of  product of p_j(v) over A in c

and new ones come at  R(A) = sum over heads i in A of  rate_i * N(A) / W_i,  PMJoin's equations 2 and 3 value by value.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lgamma, log
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.records import Records
from watersmeet.cost.sizes import HASH_SIZES, PLACE_SIZES, TIMESTAMP_SIZES, one_size, repeated, size_at, summed, thinned
from watersmeet.plan.nodes import Partition
from watersmeet.plan.partition import sub_plans_of
from watersmeet.stats.model import BytesByBatch

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
T = TypeVar("T")

_LEAST_KEY_BYTES = 0.2


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
    _memory: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

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

    def once(self, slot: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """What is computed for a workload once, since a search of plans asks for it again and again."""
        if slot not in self._memory:
            self._memory[slot] = compute()
        found: T = self._memory[slot]
        return found

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
        found: float | None = self._memory.get(("head", head, mask))
        if found is None:
            found = self._memory["head", head, mask] = self._head_rate(head, mask)
        return found

    def _head_rate(self, head: int, mask: int) -> float:
        members = members_of(mask)
        if self.sampled is None or len(members) == 1 or not self.sampled.is_tied(mask):
            return self._even_rate(head, members) * self.selectivity(mask)
        even = {member: self._even_rate(member, members) for member in members}
        total = max(sum(even.values()), 1e-300)
        share = (self.sampled.count(mask, head) + even[head] / total) / (self.sampled.count(mask) + 1)
        return total * self.selectivity(mask) * share

    def _even_rate(self, head: int, members: Sequence[int]) -> float:
        """Combinations a second of rows of all windows, whether or not they agree, whose latest row is the head's."""
        window = self.window
        return float(self.rate[head] * np.prod([window[other] for other in members if other != head]))

    def combination_rate(self, mask: int) -> float:
        """Combinations a second of a set of aliases, whoever is their head."""
        found = self._memory.get((mask, 0))
        if found is None:
            members = members_of(mask)
            found = sum(self._even_rate(member, members) for member in members) * self.selectivity(mask)
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
        asked = ("row bytes", mask, batch_rows, times, answers, head, rate)
        found: float | None = self._memory.get(asked)
        if found is None:
            found = self._memory[asked] = self._row_bytes(mask, batch_rows, times, answers, head, rate)
        return found

    def _row_bytes(
        self, mask: int, batch_rows: float, times: int, answers: bool, head: int | None, rate: float | None
    ) -> float:
        everything = (1 << len(self.aliases)) - 1
        if answers:
            owners = self.answer_owners or (0,) * len(self.answer_sizes)
            first = self._first_times(everything, batch_rows, head)
            return sum(
                repeated(size, float(first.rows[owner]), batch_rows)
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
        total = repeated(stamp, first.heads, batch_rows)
        if times > 1:
            total += (times - 1) * repeated(stamp, first.others, batch_rows)
        for alias in members:
            total += self._of_alias(alias, float(first.rows[alias]), batch_rows)
        for alias, needed, gone in self.dropped:
            if mask >> alias & 1 and needed & mask == needed:
                total -= repeated(gone, float(first.rows[alias]), batch_rows)
        for number, spare in self._spare(mask).items():
            carriers = [alias for alias in members if number in self.hidden[alias]]
            each = sorted(
                repeated(self._hidden_sizes(alias, number), float(first.rows[alias]), batch_rows) for alias in carriers
            )
            total -= sum(each[len(each) - spare :])  # the one that is kept has as few different values as any of them
        return total

    def _hidden_sizes(self, alias: int, number: int) -> BytesByBatch:
        """Of a key that travels beside what is kept of a row; these sizes are the last ones of an alias."""
        hidden = self.hidden[alias]
        return self.sizes[alias][len(self.sizes[alias]) - len(hidden) + hidden.index(number)]

    def _of_alias(self, alias: int, first: float, batch_rows: float) -> float:
        return sum(repeated(size, first, batch_rows) for size in self.sizes[alias])

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
                for alias, value in by_alias.items():
                    rows[alias] = value
                return _FirstTimes(rows, of_heads, sum(by_alias.values()) / len(by_alias))
        batch_rows = max(batch_rows, 1.0)
        met = dict(zip(members, self._met_at_once(mask).tolist(), strict=True))
        choices = float(np.prod([*met.values()]))
        heads = members if head is None else [head]
        shares = np.array([self.head_rate(head, mask) for head in heads])
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
        return summed(self.in_order or self.sizes)

    @cached_property
    def stamps(self) -> F64:
        """The sizes of each alias's event times, all of them in order."""
        return np.array(self.time_sizes or (TIMESTAMP_SIZES,) * len(self.aliases))

    @cached_property
    def combined(self) -> F64:
        """The sizes of each alias's values together, in combinations."""
        return summed(self.sizes)

    def keys_bytes(self, key: tuple[int, ...], batch_rows: float, *, asked: bool = False) -> float:
        """Bytes that a key with the time it stands for takes on a link, in batches of so many rows.

        Keys are in order, so that a batch of n takes log2(n!) bits less. Those that are asked for are often those of
        one row, and stand for no time but its own.
        """
        sizes = self.key_sizes[key[0]] if len(key) == 1 and self.key_sizes else HASH_SIZES
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


def members_of(mask: int) -> list[int]:
    """The numbers of the bits that are set.

    >>> members_of(0b1101)
    [0, 2, 3]
    """
    return [number for number in range(mask.bit_length()) if mask >> number & 1]
