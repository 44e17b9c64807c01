"""The one-way joins of a head's sequence as hops with a price: the plan space of `greedy` and `exhaustive`.

A hop costs something of its own, and may need things that other heads' hops share: the rows of a stream at a site, the
announcements of its keys there, and links, on which a parcel goes in every batch interval in which rows come. Those
are paid once. The formulas are those of `cost.formulas`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from watersmeet.cost.estimates import HeadRows, announced, asked, fetched, met, wanted
from watersmeet.cost.formulas import false_positives, messages_per_s
from watersmeet.plan.nodes import HeadPlan, Hop, Linear, Method
from watersmeet.planners.problem import NoPlan, Problem
from watersmeet.planners.sizes import FlowSizes
from watersmeet.program.storage.wire import PARCEL_BYTES

# Rows, keys or filters, of which alias, by which key, at which site; or a link, from which site by number, to which.
Shared = tuple[str, int, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class PricedHop:
    """One method for one one-way join, and its price."""

    hop: Hop
    end: str  # where the combinations are afterwards
    own: float
    shared: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class _StepBytes:
    """Bytes a second of what the semijoins of one one-way join send."""

    asks: float  # the keys of the combinations
    ask_filters: float
    loose_asks: float  # those that a filter of the window lets through
    found: float  # announcements of the window that are wanted
    found_filters: float
    hits: float  # rows of the window that are asked for
    more_hits: float  # by filters
    span_hits: float  # by announcements
    met: float  # combinations whose key is there
    loosely_met: float  # by filters


class OneWay:
    """Prices one-way joins for a problem; remembers what it has priced."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._workload = problem.workload
        self._batch_interval_s = problem.batch_interval_s
        self._sizes = FlowSizes(problem.workload, problem.batch_interval_s)
        self._prices: dict[Shared, float] = {}
        self._deliveries: dict[tuple[int, str], float] = {}
        self._priced_hops: dict[tuple[int, int, int, str], tuple[PricedHop, ...]] = {}
        self._steps: dict[tuple[int, int, int], _StepBytes] = {}

    @cached_property
    def full(self) -> int:
        return (1 << len(self._problem.aliases)) - 1

    def next_aliases(self, mask: int) -> list[int]:
        """The aliases that may come next: those tied to what is there; all where none is."""
        rest = [number for number in range(len(self._problem.aliases)) if not mask >> number & 1]
        return [number for number in rest if self._workload.shared(mask, 1 << number)] or rest

    def priced_hops(self, head: int, mask: int, site: str, alias: int) -> tuple[PricedHop, ...]:
        """All methods to join the combinations of a head at a site with the window of an alias."""
        slot = (head, mask, alias, site)
        if slot not in self._priced_hops:
            self._priced_hops[slot] = tuple(self._with_links(self._priced(head, mask, site, alias), site, alias))
        return self._priced_hops[slot]

    def _with_links(self, hops: Iterable[PricedHop], site: str, alias: int) -> Iterable[PricedHop]:
        """Hops that also need the links over which their flows go: there, back, or both."""
        home = self._problem.homes[alias]
        for priced in hops:
            if site != home:
                there, back = self.link(site, home), self.link(home, site)
                links = {Method.SP_S: (back,), Method.SP_D: (there,)}.get(priced.hop.method, (there, back))
                priced = replace(priced, shared=(*priced.shared, *links))
            yield priced

    def price_of(self, shared: Shared) -> float:
        """What something that hops share costs, once."""
        if shared not in self._prices:
            kind, alias, key, site = shared
            if kind == "link":
                pair = (self._problem.sites[alias], site)
                weight = PARCEL_BYTES * self._problem.byte_weight[pair] + self._problem.trip_weight[pair]
                parcels = messages_per_s(self._workload.arrivals.sum(), self._batch_interval_s)  # at most
                self._prices[shared] = weight * float(parcels)
                return self._prices[shared]
            home = self._problem.homes[alias]
            if kind == "rows":
                value = self._rows(1 << alias, float(self._workload.rate[alias]), home, site)
            else:
                rate = announced(self._workload, 1 << alias, key)
                value = self._filters(rate, home, site) if kind == "filters" else self._keys(key, rate, home, site)
            self._prices[shared] = value
        return self._prices[shared]

    def link(self, origin: str, to: str) -> Shared:
        """The parcels between two sites, as something to share."""
        return ("link", self._problem.sites.index(origin), (), to)

    def delivery(self, head: int, site: str) -> tuple[float, tuple[Shared, ...]]:
        """What it costs, and needs, to bring a head's answers from a site to where they are wanted."""
        wanted_at = self._problem.site
        if wanted_at is None or wanted_at == site:
            return 0.0, ()
        if not self._problem.topology.is_linked(site, wanted_at):
            return inf, ()
        if (head, site) not in self._deliveries:
            self._deliveries[head, site] = self._delivered(head, site, wanted_at)
        return self._deliveries[head, site], (self.link(site, wanted_at),)

    def _delivered(self, head: int, site: str, wanted_at: str) -> float:
        rate = self._workload.head_rate(head, self.full)
        return self._sizes.answers(rate)[0] * self._problem.byte_weight[site, wanted_at]

    def value(self, heads: Sequence[HeadPlan]) -> float:
        """What sequences come to together."""
        total, used = 0.0, set()
        for number, plan in enumerate(heads):
            own, shared = self.walk(number, plan)
            total += own
            used |= shared
        return total + sum(self.price_of(item) for item in used)

    def walk(self, head: int, plan: HeadPlan) -> tuple[float, set[Shared]]:
        """What one sequence costs of its own, and what it shares."""
        mask, site, total = 1 << head, self._problem.homes[head], 0.0
        used: set[Shared] = set()
        for hop in plan.hops:
            alias = self._workload.number(hop.alias)
            priced = next(
                priced
                for priced in self.priced_hops(head, mask, site, alias)
                if priced.end == self._problem.homes[alias] == site
                or (priced.hop.method is hop.method and priced.hop.bloom == hop.bloom)
            )
            total += priced.own
            used |= set(priced.shared)
            mask, site = mask | 1 << alias, priced.end
        last, links = self.delivery(head, site)
        return total + last, used | set(links)

    def _priced(self, head: int, mask: int, site: str, alias: int) -> Iterable[PricedHop]:
        problem, workload = self._problem, self._workload
        name, home, window = problem.aliases[alias], problem.homes[alias], 1 << alias
        if site == home:
            yield PricedHop(Hop(name), home, 0.0)
            return
        rate = workload.head_rate(head, mask)
        to_home = problem.allows(site, home)
        to_site = problem.allows(home, site)
        is_head = mask == 1 << head
        delay = problem.delay_weight
        if to_site:
            yield PricedHop(Hop(name, Method.SP_S), site, delay[home, site], (("rows", alias, (), site),))
        if to_home and is_head:
            yield PricedHop(Hop(name, Method.SP_D), home, delay[site, home], (("rows", head, (), home),))
        elif to_home:
            yield PricedHop(Hop(name, Method.SP_D), home, self._rows(mask, rate, site, home) + delay[site, home])
        key = workload.shared(mask, window)
        if not key or not (to_home and to_site):
            return
        size = self._step_bytes(head, mask, alias)
        there, back = problem.byte_weight[site, home], problem.byte_weight[home, site]
        once, trips = delay[site, home], delay[site, home] + delay[home, site]
        keys, filters = ("keys", alias, key, site), ("filters", alias, key, site)
        yield PricedHop(Hop(name, Method.SM_S1), site, size.asks * there + size.hits * back + trips)
        yield PricedHop(
            Hop(name, Method.SM_S1, bloom=True), site, size.ask_filters * there + size.more_hits * back + trips
        )
        yield PricedHop(Hop(name, Method.SM_S2), site, size.found * there + size.span_hits * back + trips, (keys,))
        yield PricedHop(
            Hop(name, Method.SM_S2, bloom=True), site, size.loose_asks * there + size.hits * back + trips, (filters,)
        )
        yield PricedHop(Hop(name, Method.SM_D1), home, size.met * there + once, (keys,))
        yield PricedHop(Hop(name, Method.SM_D1, bloom=True), home, size.loosely_met * there + once, (filters,))
        yield PricedHop(
            Hop(name, Method.SM_D2), home, size.asks * there + size.found * back + size.met * there + trips + once
        )
        own = size.ask_filters * there + size.found_filters * back + size.loosely_met * there
        yield PricedHop(Hop(name, Method.SM_D2, bloom=True), home, own + trips + once)

    def _step_bytes(self, head: int, mask: int, alias: int) -> _StepBytes:
        """What the semijoins of a step take, wherever the combinations are."""
        if (head, mask, alias) not in self._steps:
            self._steps[head, mask, alias] = self._step_bytes_of(head, mask, alias)
        return self._steps[head, mask, alias]

    def _step_bytes_of(self, head: int, mask: int, alias: int) -> _StepBytes:
        workload, sizes, batch_interval_s, window = self._workload, self._sizes, self._batch_interval_s, 1 << alias
        key, rate, row_rate = workload.shared(mask, window), workload.head_rate(head, mask), float(workload.rate[alias])
        left = HeadRows(mask, rate, head)
        asks, found = asked(workload, left, window, batch_interval_s), wanted(workload, window, left)
        false = false_positives(float(workload.window_s[alias]), batch_interval_s)
        share, loose = met(workload, mask, window, 0.0), met(workload, mask, window, false, batch_interval_s)

        def hits(*, spans: bool = False, slack_s: float = 0.0) -> float:
            return sizes.rows(window, row_rate * fetched(workload, window, left, spans=spans, slack_s=slack_s))[0]

        return _StepBytes(
            asks=sizes.keys(key, asks)[0],
            ask_filters=sizes.filters(asks)[0],
            loose_asks=sizes.keys(key, asks * loose)[0],
            found=sizes.keys(key, found)[0],
            found_filters=sizes.filters(found)[0],
            hits=hits(),
            more_hits=hits(slack_s=batch_interval_s),
            span_hits=hits(spans=True),
            met=sizes.rows(mask, rate * share)[0],
            loosely_met=sizes.rows(mask, rate * loose)[0],
        )

    def _rows(self, mask: int, rate: float, origin: str, to: str) -> float:
        return self._sizes.rows(mask, rate)[0] * self._problem.byte_weight[origin, to]

    def _keys(self, key: tuple[int, ...], rate: float, origin: str, to: str) -> float:
        return self._sizes.keys(key, rate)[0] * self._problem.byte_weight[origin, to]

    def _filters(self, rate: float, origin: str, to: str) -> float:
        return self._sizes.filters(rate)[0] * self._problem.byte_weight[origin, to]


def best_sequence(prices: OneWay, problem: Problem, head: int, paid: Iterable[Shared] = ()) -> HeadPlan:
    """The cheapest sequence of one head, where some of what is shared is paid for already."""
    free = set(paid)
    start = (1 << head, problem.homes[head])
    best: dict[tuple[int, str], tuple[float, tuple[Hop, ...]]] = {start: (0.0, ())}
    for _ in range(len(problem.aliases) - 1):
        reached: dict[tuple[int, str], tuple[float, tuple[Hop, ...]]] = {}
        for (mask, site), (cost, hops) in best.items():
            for alias in prices.next_aliases(mask):
                for priced in prices.priced_hops(head, mask, site, alias):
                    more = cost + priced.own + sum(prices.price_of(item) for item in priced.shared if item not in free)
                    slot = (mask | 1 << alias, priced.end)
                    if slot not in reached or more < reached[slot][0]:
                        reached[slot] = (more, (*hops, priced.hop))
        best = reached
    ends = []
    for (_, site), (cost, hops) in best.items():
        last, links = prices.delivery(head, site)
        ends.append((cost + last + sum(prices.price_of(item) for item in links if item not in free), hops))
    return HeadPlan(problem.aliases[head], min(ends, key=lambda end: end[0])[1])


def greedy_sequence(prices: OneWay, problem: Problem, head: int, paid: Iterable[Shared] = ()) -> HeadPlan:
    """A sequence by the semijoin paper's rule: always the one-way join that is the cheapest now."""
    free = set(paid)
    mask, site, hops = 1 << head, problem.homes[head], []
    while mask != prices.full:
        aliases = prices.next_aliases(mask)
        is_last = (mask | 1 << aliases[0]) == prices.full
        best: tuple[float, int, PricedHop] | None = None
        for alias in aliases:
            for priced in prices.priced_hops(head, mask, site, alias):
                value = priced.own + sum(prices.price_of(item) for item in priced.shared if item not in free)
                if is_last:
                    last, links = prices.delivery(head, priced.end)
                    value += last + sum(prices.price_of(item) for item in links if item not in free)
                if best is None or value < best[0]:
                    best = (value, alias, priced)
        if best is None:
            raise NoPlan(f"new rows of {problem.aliases[head]} can meet the others nowhere: every site is barred")
        _, alias, priced = best
        free |= set(priced.shared)
        mask, site = mask | 1 << alias, priced.end
        hops.append(priced.hop)
    return HeadPlan(problem.aliases[head], tuple(hops))


def improved(
    prices: OneWay,
    problem: Problem,
    heads: Sequence[HeadPlan],
    plan_one: Callable[[OneWay, Problem, int, Iterable[Shared]], HeadPlan],
    rounds: int = 3,
) -> Linear:
    """Sequences planned again one by one, each knowing what the others pay for, as long as that helps."""
    current = list(heads)
    value = prices.value(current)
    for _ in range(rounds):
        before = value
        for number in range(len(current)):
            others = [prices.walk(other, plan)[1] for other, plan in enumerate(current) if other != number]
            paid = set().union(*others)
            tried = [*current[:number], plan_one(prices, problem, number, paid), *current[number + 1 :]]
            tried_value = prices.value(tried)
            if tried_value < value - 1e-9 * abs(value):
                current, value = tried, tried_value
        if value >= before:
            break
    return Linear(tuple(current))
