"""Algorithm 10 for all heads at once, in arrays: what `greedy` uses where there are many streams.

The figures are those of `oneway`, on coarse cells: the most frequent values keep their own, the rest share one. What
one head has shipped to a site is free for the others from the next step on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.price import announcements, bloom_bytes, false_positives, seen
from watersmeet.cost.workload import F64, I64, TIMESTAMP_SIZES, Domain, size_at
from watersmeet.plan.nodes import HeadPlan, Hop, Linear, Method
from watersmeet.planners.problem import NoPlan, Problem
from watersmeet.program.storage.bloom import BITS_PER_KEY
from watersmeet.program.storage.wire import overhead_bytes

_BATCH = 100.0
_CHOICES = (
    (Method.SP_S, False),
    (Method.SP_D, False),
    (Method.SM_S1, False),
    (Method.SM_S1, True),
    (Method.SM_S2, False),
    (Method.SM_D1, False),
    (Method.SM_D1, True),
    (Method.SM_D2, False),
    (Method.SM_D2, True),
)
_STAYS = np.array([method in (Method.SP_S, Method.SM_S1, Method.SM_S2) for method, _ in _CHOICES])
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class _Links:
    """What a byte, a message and a trip are worth between sites, by number; infinite where rows must not go."""

    byte: F64
    message: F64
    trip: F64


class Sweep:
    """The streams of a problem in arrays."""

    def __init__(self, problem: Problem, cells: int) -> None:
        workload = problem.workload
        self._problem, self._turn_s = problem, problem.turn_s
        self._sites = list(problem.sites)
        self.sites = len(self._sites)
        self.home = np.array([self._sites.index(home) for home in problem.homes])
        self.rate, self.window, self.window_s = workload.rate, workload.window, workload.window_s
        domains = [coarse(domain, cells) for domain in workload.domains]
        width = max((len(size) for size, _ in domains), default=1)
        count = len(problem.aliases)
        self.member = np.array([domain.members for domain in workload.domains]).reshape(-1, count).T
        self.size = np.ones((len(domains), width))
        self.share = np.zeros((count, len(domains), width))
        for number, (size, share) in enumerate(domains):
            self.size[number, : len(size)] = size
            self.share[:, number, : len(size)] = share
        self.dense = self.share / self.size
        order = np.argsort(~self.member.T, axis=1, kind="stable")[:, : int(self.member.sum(axis=0).max(initial=1))]
        self.members, self.is_there = order, np.take_along_axis(self.member.T, order, axis=1)  # of each class
        self.bytes, self.combined = (
            np.array([size_at(tuple(one), _BATCH) for one in sizes]) for sizes in (workload.alone, workload.combined)
        )
        self.columns = np.array([len(of) for of in workload.sizes])
        keys = [workload.keys_bytes((number,), _BATCH) for number in range(len(workload.domains))]
        self._key_bytes = float(np.mean(keys)) if keys else 0.0
        self._false = np.array([false_positives(float(one), self._turn_s) for one in self.window_s])
        self._links = self._weigh()
        per_value = self.rate[:, None, None] * self.dense
        self._often, self._length = _spans(per_value, self.window_s)
        announced = (self._often * self.size * (per_value > 1e-9)).sum(axis=2)  # [alias, class]
        home, every = self.home[:, None], np.arange(self.sites)[None, :]
        columns = np.broadcast_to(self.columns[:, None], (count, self.sites))
        self._row_price = self._priced_rows(self.rate[:, None], self.bytes[:, None], columns, home, every)
        self._key_price = self._priced_keys(announced[:, None, :], home[:, :, None], every[:, :, None])
        self._filter_price = self._priced_filters(announced[:, None, :], home[:, :, None], every[:, :, None])

    def _weigh(self) -> _Links:
        problem = self._problem
        pairs = [[(one, other) for other in self._sites] for one in self._sites]
        byte, message, trip = (
            np.array([[weights[pair] for pair in row] for row in pairs])
            for weights in (problem.byte_weight, problem.trip_weight, problem.delay_weight)
        )
        allowed = np.array([[problem.allows(*pair) for pair in row] for row in pairs])
        return _Links(np.where(allowed, byte, np.inf), message, trip)

    def _messages(self, rate: F64) -> F64:
        return seen(rate * self._turn_s) / self._turn_s

    def _priced_rows(self, rate: F64, each: F64, columns: I64, origin: I64, to: I64) -> F64:
        """What rows with so many values are worth on their way."""
        messages = self._messages(rate)
        size = messages * overhead_bytes(columns + 1) + rate * (each + size_at(TIMESTAMP_SIZES, _BATCH))
        return _times(size, self._links.byte[origin, to]) + messages * self._links.message[origin, to]

    def _priced_keys(self, rate: F64, origin: I64, to: I64) -> F64:
        messages = self._messages(rate)
        size = messages * overhead_bytes(3) + rate * self._key_bytes
        return _times(size, self._links.byte[origin, to]) + messages * self._links.message[origin, to]

    def _priced_filters(self, rate: F64, origin: I64, to: I64) -> F64:
        messages = self._messages(rate)
        size = messages * bloom_bytes(0.0) + rate * BITS_PER_KEY / 8
        return _times(size, self._links.byte[origin, to]) + messages * self._links.message[origin, to]

    def run(self, paid: Bits | None = None) -> tuple[Linear, float, Bits]:
        """Sequences for all heads, what they come to, and whose rows they bring to which site.

        `paid` tells whose rows are taken to be at which site anyway.
        """
        problem, count = self._problem, len(self.home)
        state = _State(self, paid)
        hops: list[list[Hop]] = [[] for _ in problem.aliases]
        for step in range(count - 1):
            heads, aliases = np.nonzero(state.near)
            costs = self._costs(state, heads, aliases)
            if step == count - 2:
                costs = costs + self._deliveries(state, heads, aliases)
            cheapest = costs.argmin(axis=1)
            least = np.full((count, count), np.inf)
            least[heads, aliases] = costs[np.arange(len(heads)), cheapest]
            alias = least.argmin(axis=1)
            every = np.arange(len(alias))
            if not np.isfinite(least[every, alias]).all():
                stuck = problem.aliases[int(np.flatnonzero(~np.isfinite(least[every, alias]))[0])]
                raise NoPlan(f"new rows of {stuck} can meet the others nowhere: every site is barred")
            kind = np.zeros((count, count), np.int64)
            kind[heads, aliases] = cheapest
            choice = kind[every, alias]
            for head in every:
                method, bloom = _CHOICES[choice[head]]
                name = problem.aliases[alias[head]]
                is_here = state.site[head] == self.home[alias[head]]
                hops[head].append(Hop(name) if is_here else Hop(name, method, bloom=bloom))
            self._settle(state, alias, choice, least[every, alias])
            state.move(alias, _STAYS[choice])
        total = state.own + float(self._row_price[state.rows_used].sum())
        total += float(self._key_price[state.keys_used].sum() + self._filter_price[state.filters_used].sum())
        plans = tuple(HeadPlan(alias, tuple(taken)) for alias, taken in zip(problem.aliases, hops, strict=True))
        return Linear(plans), total, state.rows_used

    def _costs(self, state: "_State", heads: I64, aliases: I64) -> F64:
        """What each choice adds for pairs of a head and an alias: [pair, choice]."""
        main = state.main[heads, aliases]
        is_tied = main < len(self.size)
        main = np.where(is_tied, main, 0)
        agree = state.factor[heads, aliases] / np.where(is_tied, state.agrees[heads, aliases, main], 1.0)
        size = self.size[main]
        share = np.where(
            is_tied[:, None], state.product[heads, main] * size / state.total[heads, main][:, None], size / size.sum()
        )
        dense, theirs = self.dense[aliases, main], self.share[aliases, main]
        window_s, row_rate = self.window_s[aliases][:, None], self.rate[aliases]
        rate = state.rate[heads]
        met = _dot(share, seen(self.window[aliases][:, None] * dense * agree[:, None]))
        fan_out = np.maximum(rate / np.maximum(self.rate[heads], 1e-300), 1e-12)
        clump = np.where(fan_out > 1, fan_out / seen(fan_out), 1.0)
        visits = (rate / clump * agree)[:, None] * share / size
        length, often = self._length[aliases, main], self._often[aliases, main]
        fetched = row_rate * _dot(theirs, seen(visits * window_s))
        spanned = row_rate * _dot(theirs, seen(visits * (window_s + length)))
        wanted = _dot(often * size * (dense > 1e-12), seen(visits * length))
        asks = _dot(size, seen((rate * self._turn_s)[:, None] * share / size)) / self._turn_s
        here, there = state.site[heads], self.home[aliases]
        links = self._links
        trip, back = links.trip[here, there], links.trip[there, here]
        wide = self.window[aliases] + self.rate[aliases] * self._turn_s  # a filter stands for all the time of its keys
        loose = _dot(share, seen(wide[:, None] * dense * agree[:, None]))
        loose = loose + (1 - loose) * self._false[aliases]
        widely = row_rate * _dot(theirs, seen(visits * (window_s + self._turn_s)))
        row_price = np.where(state.rows_at, 0.0, self._row_price)
        sp_d = np.where(
            state.is_fresh[heads],
            row_price[heads, there],
            self._priced_rows(rate, state.bytes[heads], state.columns[heads], here, there),
        )
        slot = (aliases, here, main)
        keys = np.where(state.keys_used[slot], 0.0, self._key_price[slot])
        filters = np.where(state.filters_used[slot], 0.0, self._filter_price[slot])
        came = self._priced_rows(fetched, self.bytes[aliases], self.columns[aliases], there, here)
        spans = self._priced_rows(spanned, self.bytes[aliases], self.columns[aliases], there, here)
        reduced, loosely = (
            self._priced_rows(rate * part, state.bytes[heads], state.columns[heads], here, there)
            for part in (met, loose)
        )
        ask_keys, ask_filters = self._priced_keys(asks, here, there), self._priced_filters(asks, here, there)
        both = np.isfinite(links.byte[here, there]) & np.isfinite(links.byte[there, here]) & is_tied
        semijoins = [
            ask_keys + came + trip + back,
            ask_filters
            + self._priced_rows(widely, self.bytes[aliases], self.columns[aliases], there, here)
            + trip
            + back,
            keys + self._priced_keys(wanted, here, there) + spans + trip + back,
            keys + reduced + trip,
            filters + loosely + trip,
            ask_keys + self._priced_keys(wanted, there, here) + reduced + 2 * trip + back,
            ask_filters + self._priced_filters(wanted, there, here) + loosely + 2 * trip + back,
        ]
        costs = np.column_stack(
            [row_price[aliases, here] + back, sp_d + trip, *(np.where(both, one, np.inf) for one in semijoins)]
        )
        at_home = np.where(np.arange(len(_CHOICES)) == 1, 0.0, np.inf)
        priced: F64 = np.where((here == there)[:, None], at_home, costs)
        return priced

    def _deliveries(self, state: "_State", heads: I64, aliases: I64) -> F64:
        """What bringing the answers home adds to each last choice."""
        problem = self._problem
        if problem.site is None:
            return np.zeros((len(heads), len(_CHOICES)))
        wanted = self._sites.index(problem.site)
        answers = state.rate[heads] * self.window[aliases] * state.factor[heads, aliases]
        sizes = problem.workload.answer_sizes
        messages = self._messages(answers)
        width = sum(size_at(one, _BATCH) for one in sizes)
        size = messages * overhead_bytes(max(1, len(sizes))) + answers * width
        byte = np.where(np.isfinite(self._links.byte), self._links.byte, problem.objective.bytes)
        stays, goes = (
            size * byte[where, wanted] + messages * self._links.message[where, wanted]
            for where in (state.site[heads], self.home[aliases])
        )
        added: F64 = np.where(_STAYS[None, :], stays[:, None], goes[:, None])
        return added

    def _settle(self, state: "_State", alias: I64, choice: I64, value: F64) -> None:
        """Note what the choices need, and what they cost beside that."""
        new_rows = np.zeros_like(state.rows_used)
        for head in range(len(alias)):
            one, other, here = int(alias[head]), int(self.home[alias[head]]), int(state.site[head])
            if here == other:
                state.own += float(value[head])
                continue
            method, bloom = _CHOICES[choice[head]]
            shared = 0.0
            if method is Method.SP_S or (method is Method.SP_D and state.is_fresh[head]):
                rows = (one, here) if method is Method.SP_S else (head, other)
                shared = 0.0 if state.rows_at[rows] else float(self._row_price[rows])
                new_rows[rows] = True
            elif method in (Method.SM_S2, Method.SM_D1):
                used, prices = (state.filters_used, self._filter_price) if bloom else (state.keys_used, self._key_price)
                keys = (one, here, int(state.main[head, one]))
                shared = 0.0 if used[keys] else float(prices[keys])
                used[keys] = True
            state.own += float(value[head]) - shared
        state.rows_used |= new_rows
        state.rows_at |= new_rows


class _State:
    """How far all heads have come."""

    def __init__(self, sweep: Sweep, paid: Bits | None) -> None:
        count, classes = sweep.member.shape
        self._sweep = sweep
        self.site, self.rate = sweep.home.copy(), sweep.rate.copy()
        self.bytes, self.columns = sweep.combined.copy(), sweep.columns.copy()
        self.is_fresh = np.ones(count, bool)
        self.own = 0.0
        self.rows_used = np.zeros((count, sweep.sites), bool)
        self.rows_at = self.rows_used.copy() if paid is None else paid.copy()
        self.keys_used = np.zeros((count, sweep.sites, classes), bool)
        self.filters_used = self.keys_used.copy()
        self.product = np.ones((count, classes, sweep.size.shape[1]))
        self.total = np.ones((count, classes))
        self.agrees = np.ones((count, count, classes))
        self.factor = np.ones((count, count))
        self.main = np.full((count, count), classes)  # the first class that ties a head to an alias; none
        self._bound = np.zeros((count, count), bool)
        self._bind(np.arange(count))

    def move(self, alias: I64, stays: Bits) -> None:
        """Join each head with an alias, where it is or at the alias's home."""
        sweep, every = self._sweep, np.arange(len(alias))
        self.rate = self.rate * sweep.window[alias] * self.factor[every, alias]
        self.site = np.where(stays, self.site, sweep.home[alias])
        self.bytes, self.columns = self.bytes + sweep.combined[alias], self.columns + sweep.columns[alias]
        self.is_fresh[:] = False
        self._bind(alias)

    def _bind(self, alias: I64) -> None:
        sweep = self._sweep
        self._bound[np.arange(len(alias)), alias] = True
        heads, numbers = np.nonzero(sweep.member[alias])  # every class of every alias that is bound
        product = self.product[heads, numbers] * sweep.dense[alias[heads], numbers]
        mass = product * sweep.size[numbers]
        total = np.maximum(mass.sum(axis=1), 1e-300)
        self.product[heads, numbers], self.total[heads, numbers] = product, total
        share = mass / total[:, None]
        members, is_member = sweep.members[numbers], sweep.is_there[numbers]
        new = np.maximum((sweep.dense[members, numbers[:, None]] @ share[:, :, None])[:, :, 0], 1e-300)[is_member]
        where = np.broadcast_to(heads[:, None], members.shape)[is_member], members[is_member]
        classes = np.broadcast_to(numbers[:, None], members.shape)[is_member]
        np.multiply.at(self.factor, where, new / self.agrees[(*where, classes)])
        self.agrees[(*where, classes)] = new
        np.minimum.at(self.main, where, classes)

    @property
    def near(self) -> Bits:
        """The aliases that each head may join next: those tied to it, all others where there is none."""
        tied: Bits = np.less(self.main, self._sweep.member.shape[1]) & ~self._bound
        return np.where(np.any(tied, axis=1, keepdims=True), tied, ~self._bound)


def _dot(one: F64, other: F64) -> F64:
    """The sums of products over the cells of each pair."""
    found: F64 = np.einsum("pc,pc->p", one, other)
    return found


def _spans(per_value: F64, window_s: F64) -> tuple[F64, F64]:
    found = [announcements(rate, float(time)) for rate, time in zip(per_value, window_s, strict=True)]
    return np.array([often for often, _ in found]), np.array([length for _, length in found])


def _times(size: F64, weight: F64) -> F64:
    """A size at a weight; nothing at an infinite weight is still too much."""
    return np.where(np.isfinite(weight), size * np.where(np.isfinite(weight), weight, 0.0), np.inf)


def coarse(domain: Domain, cells: int) -> tuple[F64, F64]:
    """Sizes and shares of at most so many cells: those with the most rows in any stream, and one for the rest."""
    if domain.cells <= cells:
        return domain.size, domain.shares
    order = np.argsort(-(domain.shares / domain.size).max(axis=0), kind="stable")
    first, rest = order[: cells - 1], order[cells - 1 :]
    size = np.append(domain.size[first], domain.size[rest].sum())
    shares = np.column_stack([domain.shares[:, first], domain.shares[:, rest].sum(axis=1)])
    return size, shares
