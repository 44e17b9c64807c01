"""What to expect of rows that meet, for sets of aliases of a workload: `cost.formulas` with a workload's figures.

Keys of several classes are taken cell by cell in the first, and on average in the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet.cost.formulas import (
    announced_per_value,
    clump,
    clumped_rate,
    distinct_keys,
    rows_in,
    rows_per_value,
    seen,
    sum_cells,
    together,
    with_false_positives,
)
from watersmeet.cost.workload import F64, Workload, members_of


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows or partial combinations that look for others: of which aliases, how many a second, led by which head."""

    mask: int
    rate: float
    head: int | None = None

    @property
    def is_clumped(self) -> bool:
        """Whether they are combinations made by any of their streams, which come many at once."""
        return bool(self.mask & (self.mask - 1)) and self.head is None


@dataclass(frozen=True)
class Tie:
    """How the rows of one side find those of another: by cells of the first key class that ties them.

    `share` and `others` are the shares of either side's rows over the cells; `agree` is the chance that the other
    key classes agree; `size` is the number of values in each cell.
    """

    size: F64
    share: F64
    others: F64
    agree: float


def tie(workload: Workload, left: int, right: int) -> Tie:
    """How two sets of aliases are tied."""
    key = workload.shared(left, right)
    if not key:
        return Tie(np.ones(1), np.ones(1), np.ones(1), 1.0)
    mine, theirs = ([workload.cell_shares(number, mask) for number in key] for mask in (left, right))
    agree = 1.0
    for number, one, other in zip(key[1:], mine[1:], theirs[1:], strict=True):
        agree *= float((one * other / workload.domains[number].size).sum())
    return Tie(workload.domains[key[0]].size, mine[0], theirs[0], agree)


def _values_of(workload: Workload, mask: int, key: tuple[int, ...]) -> float:
    """How many values some classes of a key have together, spread as evenly as they may be."""
    many = 1.0
    for number in key:
        shares = workload.cell_shares(number, mask)
        many *= 1 / max(float((shares**2 / workload.domains[number].size).sum()), 1e-300)
    return many


def _together(workload: Workload, mask: int, number: int, time_s: F64 | float = 0.0) -> F64:
    """The chance that those of some aliases that have a key all have a value of it at once, by cell."""
    domain = workload.domains[number]
    members = [alias for alias in members_of(mask) if domain.members[alias]]
    rate = rows_per_value(workload.rate[members, None], domain.shares[members], domain.size)
    return together(rate, workload.window_s[members], time_s)


def _rate_per_value(workload: Workload, mask: int, key: tuple[int, ...]) -> tuple[F64, F64]:
    """Rows a second for each value of a key, and how many values there are, by cells."""
    share = workload.cell_shares(key[0], mask) if key else np.ones(1)
    size = workload.domains[key[0]].size if key else np.ones(1)
    many = _values_of(workload, mask, key[1:])
    rate = rows_per_value(workload.combination_rate(mask), share, size) / many
    if key and mask & (mask - 1):
        rate = clumped_rate(rate, _together(workload, mask, key[0]), workload.lifetime_s(mask))
    return rate, size * many


def announced(workload: Workload, mask: int, key: tuple[int, ...]) -> float:
    """Announcements a second of the keys that a window, or the intermediate results of a tree, hold."""
    return workload.once(("announced", mask, key), lambda: _counted_or_announced(workload, mask, key))


def _counted_or_announced(workload: Workload, mask: int, key: tuple[int, ...]) -> float:
    estimated = _announced(workload, mask, key)
    if workload.sampled is None or not key or not workload.is_counted(mask):
        return estimated
    rate = workload.combination_rate(mask)
    each = _one_more(workload.sampled.announced(mask, key), workload.sampled.count(mask), estimated / max(rate, 1e-300))
    return rate * each


def _one_more(found: float, of: int, estimated: float) -> float:
    """A share that was counted in a sample: with one more that does what is estimated."""
    return (found + min(estimated, 1.0)) / (of + 1)


def _announced(workload: Workload, mask: int, key: tuple[int, ...]) -> float:
    per_value, size = _rate_per_value(workload, mask, key)
    often, _ = announced_per_value(per_value, workload.lifetime_s(mask))
    return float((often * size).sum())


def _visits(workload: Workload, rows: HeadRows, bound: Tie) -> F64:
    """How often a second a value is visited by partial combinations: those of one head row count once."""
    rate = rows.rate
    if rows.head is not None and rows.mask != 1 << rows.head:
        alone = workload.head_rate(rows.head, 1 << rows.head)
        rate = rate / float(clump(rate / max(alone, 1e-300)))
    return rows_per_value(rate, bound.share, bound.size)


def _there(workload: Workload, other: int, bound: Tie, time_s: float) -> F64:
    """The chance that a row finds any of the other side, there or coming within some time, by cell."""
    expected = rows_in(workload.count(other), workload.combination_rate(other), time_s)
    return seen(rows_per_value(expected, bound.others, bound.size) * bound.agree)


def met(workload: Workload, mask: int, other: int, false: float, slack_s: float = 0.0) -> float:
    """The share of partial combinations whose key is in a window, or was within the slack of a filter's time."""
    share = float(sum_cells(*met_by_cell(workload, mask, other, slack_s)))
    if _is_sampled(workload, mask, other):
        assert workload.sampled is not None
        counted, of = workload.sampled.met(mask, other, slack_s)
        share = _one_more(counted * of, of, share)
    return float(with_false_positives(np.asarray(share), false))


def _is_sampled(workload: Workload, mask: int, other: int) -> bool:
    """Whether a sample tells how two sets of aliases meet."""
    return (
        bool(other) and workload.is_counted(mask) and workload.is_counted(other) and bool(workload.shared(mask, other))
    )


def met_by_cell(workload: Workload, mask: int, other: int, slack_s: float) -> tuple[F64, F64]:
    """The shares of partial combinations over the cells of a key, and the chance that it is in a window, by cell."""
    bound = tie(workload, mask, other)
    return bound.share, _there(workload, other, bound, slack_s)


def overlapping(workload: Workload, mask: int, other: int, false: float, slack_s: float = 0.0) -> float:
    """The share of a tree's rows that meet a row of the other side while they live."""
    share = float(sum_cells(*overlapping_by_cell(workload, mask, other, slack_s)))
    if _is_sampled(workload, mask, other):
        assert workload.sampled is not None
        counted, of = workload.sampled.overlapping(mask, other, slack_s)
        share = _one_more(counted * of, of, share)
    return float(with_false_positives(np.asarray(share), false))


@dataclass(frozen=True, slots=True)
class Meets:
    """What a row is to meet while it lives: a set of aliases, by keys or by a filter with its errors and slack."""

    other: int
    false: float = 0.0
    slack_s: float = 0.0


def overlapping_each(workload: Workload, mask: int, others: Sequence[Meets]) -> float:
    """The share of a tree's rows that meet a row of each of several others while they live.

    Where all are tied by the same key they are independent of each other within a cell of it only; who meets a
    combination meets its streams.
    """
    others = list({one.other: one for one in sorted(others, key=lambda one: -one.false)}.values())  # the strictest
    others = [one for one in others if not any(one is not o and one.other & o.other == one.other for o in others)]
    if len(others) == 1:
        (one,) = others
        return overlapping(workload, mask, one.other, one.false, one.slack_s)
    by_key: dict[tuple[int, ...], tuple[F64, F64]] = {}
    for one in others:
        shares, chance = overlapping_by_cell(workload, mask, one.other, one.slack_s)
        chance = with_false_positives(chance, one.false)
        key = workload.shared(mask, one.other)[:1]
        by_key[key] = (shares, by_key[key][1] * chance if key in by_key else chance)
    share = float(np.prod([sum_cells(*each) for each in by_key.values()]))
    if workload.sampled is not None and all(_is_sampled(workload, mask, one.other) for one in others):
        taken = np.ones(1)
        for one in others:
            met_any = workload.sampled.which("overlapping", mask, one.other, one.slack_s)
            taken = taken * np.where(met_any, 1.0, one.false)
        share = _one_more(float(taken.sum()), workload.sampled.count(mask), share)
    return share


def overlapping_by_cell(workload: Workload, mask: int, other: int, slack_s: float) -> tuple[F64, F64]:
    """The shares of a tree's rows over the cells of a key, and the chance to meet the other side, by cell."""
    slot = ("overlapping", mask, other, slack_s)
    return workload.once(slot, lambda: _overlapping_by_cell(workload, mask, other, slack_s))


def _overlapping_by_cell(workload: Workload, mask: int, other: int, slack_s: float) -> tuple[F64, F64]:
    bound = tie(workload, mask, other)
    time_s = workload.lifetime_s(mask) + slack_s
    there = _there(workload, other, bound, time_s)
    key = workload.shared(mask, other)
    if key:  # combinations come in clumps: there are none unless all of their streams have the value
        there = np.minimum(there, _together(workload, other, key[0], time_s))
    return bound.share, there


def fetched(workload: Workload, mask: int, left: HeadRows, *, spans: bool, slack_s: float = 0.0) -> float:
    """The share of a window's rows that are asked for while they are seen."""
    share = float(sum_cells(*fetched_by_cell(workload, mask, left, spans=spans, slack_s=slack_s)))
    if _is_sampled(workload, mask, left.mask):
        assert workload.sampled is not None
        counted, of = workload.sampled.fetched(mask, left.mask, left.head, spans=spans, slack_s=slack_s)
        share = _one_more(counted * of, of, share)
    return share


def fetched_by_cell(
    workload: Workload, mask: int, left: HeadRows, *, spans: bool, slack_s: float = 0.0
) -> tuple[F64, F64]:
    """The shares of a window's rows over the cells of a key, and the chance to be asked for, by cell."""
    bound = tie(workload, left.mask, mask)
    visits = _visits(workload, left, bound) * bound.agree
    time_s: F64 | float = workload.lifetime_s(mask) + slack_s
    if spans:  # a whole span is wanted, and every row that touches it comes
        per_value, _ = _rate_per_value(workload, mask, workload.shared(left.mask, mask)[:1])
        time_s = time_s + announced_per_value(per_value, workload.lifetime_s(mask))[1]
    return bound.others, seen(visits * time_s)


def wanted_by_any(chances: Sequence[tuple[F64, F64]]) -> float:
    """The share of rows that any of several semijoins by one key takes: independent of each other within a cell."""
    shares = chances[0][0]
    left = np.ones_like(shares)
    for _, chance in chances:
        left = left * (1 - chance)
    return float(sum_cells(shares, 1 - left))


def wanted(workload: Workload, mask: int, left: HeadRows) -> float:
    """Announcements a second that partial combinations ask for."""
    key = workload.shared(left.mask, mask)
    if _is_sampled(workload, mask, left.mask):
        assert workload.sampled is not None
        every = announced(workload, mask, key)
        share = _wanted(workload, mask, left) / max(_announced(workload, mask, key), 1e-300)
        found = workload.sampled.wanted(mask, left.mask, left.head)
        return every * _one_more(found, workload.sampled.announced(mask, key), share)
    return _wanted(workload, mask, left)


def _wanted(workload: Workload, mask: int, left: HeadRows) -> float:
    key = workload.shared(left.mask, mask)
    per_value, size = _rate_per_value(workload, mask, key)
    often, length = announced_per_value(per_value, workload.lifetime_s(mask))
    bound = tie(workload, left.mask, mask)
    chance = seen(_visits(workload, left, bound) * bound.agree * length)
    if left.is_clumped:
        chance = np.minimum(chance, _together(workload, left.mask, key[0], length))
    return float(sum_cells(often * size, chance))


def asked(workload: Workload, rows: HeadRows, partner: int, batch_interval_s: float) -> float:
    """Distinct keys a second that rows ask for, batch by batch."""
    estimated = _asked(workload, rows, partner, batch_interval_s)
    if not _is_sampled(workload, rows.mask, partner):
        return estimated
    assert workload.sampled is not None
    found = workload.sampled.asked(rows.mask, rows.head, partner)
    each = _one_more(found, workload.sampled.count(rows.mask, rows.head), estimated / max(rows.rate, 1e-300))
    return rows.rate * each


def _asked(workload: Workload, rows: HeadRows, partner: int, batch_interval_s: float) -> float:
    bound = tie(workload, rows.mask, partner)
    key = workload.shared(rows.mask, partner)
    many = _values_of(workload, rows.mask, key[1:])
    per_value = rows_per_value(rows.rate, bound.share, bound.size) / many
    chance = _together(workload, rows.mask, key[0], batch_interval_s) if rows.is_clumped else None
    return float(sum_cells(bound.size * many, distinct_keys(per_value, batch_interval_s, together=chance)))
