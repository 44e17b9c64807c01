"""Algorithm 10 for all heads at once, in arrays: what `greedy` uses where there are many streams.

The figures are those of `oneway`, on coarse cells: the most frequent values keep their own, the rest share one. What
one head has shipped to a site is free for the others from the next step on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.formulas import (
    announced_per_value,
    clump,
    distinct_keys,
    false_positives,
    filter_flow_bytes,
    flow_bytes,
    key_flow_bytes,
    messages_per_s,
    rows_in,
    rows_per_value,
    seen,
    sum_cells,
    with_false_positives,
)
from watersmeet.cost.sizes import TIMESTAMP_SIZES, size_at, thinned
from watersmeet.cost.workload import F64, I64, Domain
from watersmeet.plan.nodes import HeadPlan, Hop, Linear, Method
from watersmeet.planners.problem import NoPlan, Problem
from watersmeet.stats.model import BATCH_ROWS

_BATCH = 100.0
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class _StepPrices:
    """What each flow that a method may send is worth, for pairs of a head and the alias that it joins next.

    The head's combinations are `here`, the alias's window is `there`.
    """

    window: F64  # all rows of the window, here
    combinations: F64  # all combinations, there
    matched: F64  # those combinations whose key is in the window, there
    matched_by_filter: F64
    fetched: F64  # those rows of the window that are asked for by key, here
    fetched_by_filter: F64
    fetched_by_span: F64  # asked for by announcement
    announced: F64  # the keys of the window, here
    announced_filters: F64
    asked: F64  # the keys of the combinations, there
    asked_filters: F64
    wanted: F64  # announcements that the combinations want, there
    found: F64  # the same, here
    found_filters: F64
    trip: F64  # the delay from here to there
    trip_back: F64


def _sp_s(price: _StepPrices) -> F64:
    return price.window + price.trip_back


def _sp_d(price: _StepPrices) -> F64:
    return price.combinations + price.trip


def _sm_s1(price: _StepPrices) -> F64:
    return price.asked + price.fetched + price.trip + price.trip_back


def _sm_s1_bloom(price: _StepPrices) -> F64:
    return price.asked_filters + price.fetched_by_filter + price.trip + price.trip_back


def _sm_s2(price: _StepPrices) -> F64:
    return price.announced + price.wanted + price.fetched_by_span + price.trip + price.trip_back


def _sm_d1(price: _StepPrices) -> F64:
    return price.announced + price.matched + price.trip


def _sm_d1_bloom(price: _StepPrices) -> F64:
    return price.announced_filters + price.matched_by_filter + price.trip


def _sm_d2(price: _StepPrices) -> F64:
    return price.asked + price.found + price.matched + 2 * price.trip + price.trip_back


def _sm_d2_bloom(price: _StepPrices) -> F64:
    return price.asked_filters + price.found_filters + price.matched_by_filter + 2 * price.trip + price.trip_back


@dataclass(frozen=True, slots=True)
class _Offer:
    """A method of a one-way join, and what it costs."""

    method: Method
    bloom: bool
    cost: Callable[[_StepPrices], F64]

    @property
    def stays(self) -> bool:
        """Whether the combinations stay where they are."""
        return self.method in (Method.SP_S, Method.SM_S1, Method.SM_S2)

    @property
    def is_semijoin(self) -> bool:
        return self.method not in (Method.SP_S, Method.SP_D)


_OFFERS = (
    _Offer(Method.SP_S, False, _sp_s),
    _Offer(Method.SP_D, False, _sp_d),
    _Offer(Method.SM_S1, False, _sm_s1),
    _Offer(Method.SM_S1, True, _sm_s1_bloom),
    _Offer(Method.SM_S2, False, _sm_s2),
    _Offer(Method.SM_D1, False, _sm_d1),
    _Offer(Method.SM_D1, True, _sm_d1_bloom),
    _Offer(Method.SM_D2, False, _sm_d2),
    _Offer(Method.SM_D2, True, _sm_d2_bloom),
)
_IS_SEMIJOIN = np.array([offer.is_semijoin for offer in _OFFERS])
_STAYS = np.array([offer.stays for offer in _OFFERS])
_AT_HOME = np.array([0.0 if offer.method is Method.SP_D else np.inf for offer in _OFFERS])  # where both are at one site


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
        self._problem, self._batch_interval_s = problem, problem.batch_interval_s
        self._sites = list(problem.sites)
        self.sites = len(self._sites)
        self.home = np.array([self._sites.index(home) for home in problem.homes])
        self.left_by_conditions = workload.left_by_conditions
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
        self.bytes, self.combined = (size_at(sizes, _BATCH) for sizes in (workload.alone, workload.combined))
        self.columns = np.array([len(of) for of in workload.sizes])
        keys = [workload.keys_bytes((number,), _BATCH) for number in range(len(workload.domains))]
        self._key_bytes = float(np.mean(keys)) if keys else 0.0
        self._timestamp_bytes = float(size_at(TIMESTAMP_SIZES, _BATCH))
        self._stamps, self._arrivals = workload.stamps, np.maximum(workload.arrivals, 1e-300)
        self._false = np.array([false_positives(float(time), self._batch_interval_s) for time in self.window_s])
        self._links = self._weigh()
        per_value = self.rate[:, None, None] * self.dense
        self._often, self._length = announced_per_value(per_value, self.window_s[:, None, None])
        announced = (self._often * self.size).sum(axis=2)  # [alias, class]
        home, every = self.home[:, None], np.arange(self.sites)[None, :]
        columns = np.broadcast_to(self.columns[:, None], (count, self.sites))
        whole = self._times_bytes(self.rate, np.arange(count))[:, None]
        self._row_price = self._priced_rows(self.rate[:, None], self.bytes[:, None], columns, home, every, whole)
        self._key_price = self._priced_keys(announced[:, None, :], home[:, :, None], every[:, :, None])
        self._filter_price = self._priced_filters(announced[:, None, :], home[:, :, None], every[:, :, None])

    def _weigh(self) -> _Links:
        problem = self._problem
        pairs = [[(origin, to) for to in self._sites] for origin in self._sites]
        byte, message, trip = (
            np.array([[weights[pair] for pair in row] for row in pairs])
            for weights in (problem.byte_weight, problem.trip_weight, problem.delay_weight)
        )
        allowed = np.array([[problem.allows(*pair) for pair in row] for row in pairs])
        return _Links(np.where(allowed, byte, np.inf), message, trip)

    def _priced(self, size: F64, messages: F64, origin: I64, to: I64) -> F64:
        """What bytes and messages are worth on a link."""
        weight = self._links.byte[origin, to]
        is_open = np.isfinite(weight)  # nothing over a link that is barred is still too much
        return (
            np.where(is_open, size * np.where(is_open, weight, 0.0), np.inf)
            + messages * self._links.message[origin, to]
        )

    def _times_bytes(self, rate: F64, aliases: I64) -> F64:
        """What an event time takes where so many rows a second of a stream travel."""
        return size_at(thinned(self._stamps[aliases], rate / self._arrivals[aliases]), _BATCH)

    def _priced_rows(
        self, rate: F64, each: F64, columns: I64, origin: I64, to: I64, time_bytes: F64 | None = None
    ) -> F64:
        """What rows with so many values are worth on their way."""
        messages = messages_per_s(rate, self._batch_interval_s)
        times = self._timestamp_bytes if time_bytes is None else time_bytes
        size = flow_bytes(rate, each + times, messages, columns + 1)
        return self._priced(size, messages, origin, to)

    def _priced_window(self, rate: F64, aliases: I64, origin: I64, to: I64) -> F64:
        """What some rows of a window are worth on their way."""
        times = self._times_bytes(rate, aliases)
        return self._priced_rows(rate, self.bytes[aliases], self.columns[aliases], origin, to, times)

    def _priced_keys(self, rate: F64, origin: I64, to: I64) -> F64:
        messages = messages_per_s(rate, self._batch_interval_s)
        return self._priced(key_flow_bytes(rate, self._key_bytes, messages), messages, origin, to)

    def _priced_filters(self, rate: F64, origin: I64, to: I64) -> F64:
        messages = messages_per_s(rate, self._batch_interval_s)
        return self._priced(filter_flow_bytes(rate, messages), messages, origin, to)

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
            by_alias = np.zeros((count, count), np.int64)
            by_alias[heads, aliases] = cheapest
            offers = by_alias[every, alias]
            for head in every:
                offer = _OFFERS[offers[head]]
                name = problem.aliases[alias[head]]
                is_here = state.site[head] == self.home[alias[head]]
                hops[head].append(Hop(name) if is_here else Hop(name, offer.method, bloom=offer.bloom))
            self._settle(state, alias, offers, least[every, alias])
            state.move(alias, _STAYS[offers])
        total = state.own + float(self._row_price[state.rows_used].sum())
        total += float(self._key_price[state.keys_used].sum() + self._filter_price[state.filters_used].sum())
        plans = tuple(HeadPlan(alias, tuple(taken)) for alias, taken in zip(problem.aliases, hops, strict=True))
        return Linear(plans), total, state.rows_used

    def _costs(self, state: "_State", heads: I64, aliases: I64) -> F64:
        """What each offer adds for pairs of a head and an alias: [pair, offer]."""
        here, there = state.site[heads], self.home[aliases]
        both = np.isfinite(self._links.byte[here, there]) & np.isfinite(self._links.byte[there, here])
        both &= state.main[heads, aliases] < len(self.size)  # nothing to reduce by where nothing ties them
        prices = self._step_prices(state, heads, aliases)
        costs = np.column_stack([offer.cost(prices) for offer in _OFFERS])
        costs = np.where(_IS_SEMIJOIN & ~both[:, None], np.inf, costs)
        priced: F64 = np.where((here == there)[:, None], _AT_HOME, costs)
        return priced

    def _step_prices(self, state: "_State", heads: I64, aliases: I64) -> _StepPrices:
        """What the flows of one-way joins are worth: rates by `cost.formulas`, then bytes and messages on links."""
        interval_s, rate, row_rate = self._batch_interval_s, state.rate[heads], self.rate[aliases]
        window, window_s = self.window[aliases], self.window_s[aliases][:, None]
        main, share, agree = state.tie(heads, aliases)
        size, others = self.size[main], self.share[aliases, main]
        often, length = self._often[aliases, main], self._length[aliases, main]

        def matched(rows: F64) -> F64:
            return sum_cells(share, seen(rows_per_value((rows * agree)[:, None], others, size)))

        fan_out = rate / np.maximum(self.rate[heads], 1e-300)
        visits = rows_per_value((rate / np.where(fan_out > 1, clump(fan_out), 1.0) * agree)[:, None], share, size)

        def fetched(time_s: F64) -> F64:
            return row_rate * sum_cells(others, seen(visits * time_s))

        # A filter stands for all the time of its keys, an interval more than a window.
        by_filter = with_false_positives(matched(rows_in(window, row_rate, interval_s)), self._false[aliases])
        wanted = sum_cells(often * size, seen(visits * length))
        asked = sum_cells(size, distinct_keys(rows_per_value(rate[:, None], share, size), interval_s))

        here, there = state.site[heads], self.home[aliases]
        row_price = np.where(state.rows_at, 0.0, self._row_price)
        slot = (aliases, here, main)

        def combinations(part: F64 | float) -> F64:
            return self._priced_rows(rate * part, state.bytes[heads], state.columns[heads], here, there)

        return _StepPrices(
            window=row_price[aliases, here],
            combinations=np.where(state.is_fresh[heads], row_price[heads, there], combinations(1.0)),
            matched=combinations(matched(window)),
            matched_by_filter=combinations(by_filter),
            fetched=self._priced_window(fetched(window_s), aliases, there, here),
            fetched_by_filter=self._priced_window(fetched(window_s + interval_s), aliases, there, here),
            fetched_by_span=self._priced_window(fetched(window_s + length), aliases, there, here),
            announced=np.where(state.keys_used[slot], 0.0, self._key_price[slot]),
            announced_filters=np.where(state.filters_used[slot], 0.0, self._filter_price[slot]),
            asked=self._priced_keys(asked, here, there),
            asked_filters=self._priced_filters(asked, here, there),
            wanted=self._priced_keys(wanted, here, there),
            found=self._priced_keys(wanted, there, here),
            found_filters=self._priced_filters(wanted, there, here),
            trip=self._links.trip[here, there],
            trip_back=self._links.trip[there, here],
        )

    def _deliveries(self, state: "_State", heads: I64, aliases: I64) -> F64:
        """What bringing the answers home adds to each last offer."""
        problem = self._problem
        if problem.site is None:
            return np.zeros((len(heads), len(_OFFERS)))
        wanted_at = self._sites.index(problem.site)
        answers = state.rate[heads] * self.window[aliases] * state.factor[heads, aliases]
        everything = self.left_by_conditions(np.array([(1 << len(problem.aliases)) - 1]))
        answers = answers * everything / np.maximum(state.left[heads], 1e-300)
        sizes = np.array(problem.workload.answer_sizes).reshape(-1, len(BATCH_ROWS))
        messages = messages_per_s(answers, self._batch_interval_s)
        if (records := problem.workload.records) is not None:
            messages = records.messages(messages)
            size = flow_bytes(records.rate(answers), records.row_bytes, messages, records.columns)
        else:
            size = flow_bytes(answers, float(size_at(sizes, _BATCH).sum()), messages, max(1, len(sizes)))
        byte = np.where(np.isfinite(self._links.byte), self._links.byte, problem.objective.bytes)
        stays, goes = (
            size * byte[where, wanted_at] + messages * self._links.message[where, wanted_at]
            for where in (state.site[heads], self.home[aliases])
        )
        added: F64 = np.where(_STAYS[None, :], stays[:, None], goes[:, None])
        return added

    def _settle(self, state: "_State", alias: I64, offers: I64, value: F64) -> None:
        """Note what the offers taken need, and what they cost beside that."""
        new_rows = np.zeros_like(state.rows_used)
        for head in range(len(alias)):
            joined, there, here = int(alias[head]), int(self.home[alias[head]]), int(state.site[head])
            if here == there:
                state.own += float(value[head])
                continue
            offer = _OFFERS[offers[head]]
            shared = 0.0
            if offer.method is Method.SP_S or (offer.method is Method.SP_D and state.is_fresh[head]):
                rows = (joined, here) if offer.method is Method.SP_S else (head, there)
                shared = 0.0 if state.rows_at[rows] else float(self._row_price[rows])
                new_rows[rows] = True
            elif offer.method in (Method.SM_S2, Method.SM_D1):
                used, prices = (
                    (state.filters_used, self._filter_price) if offer.bloom else (state.keys_used, self._key_price)
                )
                keys = (joined, here, int(state.main[head, joined]))
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
        before = self.left
        self.rate = self.rate * sweep.window[alias] * self.factor[every, alias]
        self.site = np.where(stays, self.site, sweep.home[alias])
        self.bytes, self.columns = self.bytes + sweep.combined[alias], self.columns + sweep.columns[alias]
        self.is_fresh[:] = False
        self._bind(alias)
        self.rate = self.rate * self.left / np.maximum(before, 1e-300)

    @property
    def left(self) -> F64:
        """The share of each head's combinations that comparisons leave."""
        sets = self._bound @ (1 << np.arange(self._bound.shape[1]))
        return self._sweep.left_by_conditions(sets)

    def tie(self, heads: I64, aliases: I64) -> tuple[I64, F64, F64]:
        """How pairs are tied: the first class (any where there is none), shares over its cells, if the others agree."""
        sweep, main = self._sweep, self.main[heads, aliases]
        is_tied = main < len(sweep.size)
        main = np.where(is_tied, main, 0)
        agree = self.factor[heads, aliases] / np.where(is_tied, self.agrees[heads, aliases, main], 1.0)
        size = sweep.size[main]
        own = self.product[heads, main] * size / self.total[heads, main][:, None]
        return main, np.where(is_tied[:, None], own, size / size.sum()), agree

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


def coarse(domain: Domain, cells: int) -> tuple[F64, F64]:
    """Sizes and shares of at most so many cells: those with the most rows in any stream, and one for the rest."""
    if domain.cells <= cells:
        return domain.size, domain.shares
    order = np.argsort(-(domain.shares / domain.size).max(axis=0), kind="stable")
    first, rest = order[: cells - 1], order[cells - 1 :]
    size = np.append(domain.size[first], domain.size[rest].sum())
    shares = np.column_stack([domain.shares[:, first], domain.shares[:, rest].sum(axis=1)])
    return size, shares
