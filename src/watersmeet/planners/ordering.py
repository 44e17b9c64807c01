"""Tree ordering (semijoin paper, 4.2): streams are added one by one, each join where either side is, by any method.

The best order, places and methods come from a recurrence over sets of aliases: the least to have what a set comes to
at a site. The figures of all sets are computed at once, on coarse cells of values.
"""

from dataclasses import dataclass

import numpy as np

from watersmeet.cost.price import announcements, bloom_bytes, false_positives, seen
from watersmeet.cost.workload import F64, PLACE_SIZES, TIMESTAMP_SIZES, members_of
from watersmeet.errors import InputError
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Reduction, Tree
from watersmeet.planners.problem import NoPlan, Problem, check_connected
from watersmeet.planners.reduce import TOO_MUCH, Carrier
from watersmeet.planners.sweep import coarse
from watersmeet.program.storage.bloom import BITS_PER_KEY
from watersmeet.program.storage.wire import overhead_bytes

MOST_STREAMS = 12
_CELLS = 64
_WAYS = (
    (Reduction.NONE, False),
    (Reduction.ONE_STEP, False),
    (Reduction.ONE_STEP, True),
    (Reduction.TWO_STEP, False),
    (Reduction.TWO_STEP, True),
)


@dataclass(frozen=True)
class _Carried:
    """Bytes and messages a second of each way to bring one side to the other: there, and back for keys."""

    out: F64
    out_messages: F64
    back: F64
    back_messages: F64


def tree(problem: Problem) -> JoinNode:
    """The cheapest tree to which streams are added one by one."""
    check_connected(problem)
    count = len(problem.aliases)
    if count > MOST_STREAMS:
        raise InputError(
            f"the planner tree tries every order, which is too much for {count} streams; "
            f"use pmjoin or greedy from {MOST_STREAMS + 1} streams on"
        )
    figures, sites = _Figures(problem), problem.sites
    carrier = Carrier(problem)
    weight = np.array([[carrier.weight(one, other) for other in sites] for one in sites])
    trip = np.array([[problem.trip_weight[one, other] for other in sites] for one in sites])
    delay = np.array([[problem.delay_weight[one, other] for other in sites] for one in sites])
    home = [sites.index(one) for one in problem.homes]
    least = np.full((1 << count, len(sites)), np.inf)
    how: dict[tuple[int, int], tuple[int, int, int, bool]] = {}  # set and site: alias, site before, way, alias came
    for number in range(count):
        least[1 << number, home[number]] = 0.0
    for mask in range(1, 1 << count):
        if not np.isfinite(least[mask]).any():
            continue
        for number in range(count):
            if mask >> number & 1 or not figures.tied[mask, number]:
                continue
            both = mask | 1 << number
            value, sub_plan = _cheapest(
                figures.comes(mask, number),
                weight[home[number]],
                weight[:, home[number]],
                trip[home[number]],
                trip[:, home[number]],
                delay[home[number]],
            )
            value = np.where(np.arange(len(sites)) == home[number], 0.0, value) + least[mask]
            for better in np.flatnonzero(value < least[both]):
                least[both, better] = value[better]
                how[both, int(better)] = (number, int(better), int(sub_plan[better]), True)
            value, sub_plan = _cheapest(
                figures.goes(mask, number),
                weight[:, home[number]],
                weight[home[number]],
                trip[:, home[number]],
                trip[home[number]],
                delay[:, home[number]],
            )
            value = np.where(np.arange(len(sites)) == home[number], np.inf, value) + least[mask]
            site = int(value.argmin())
            if value[site] < least[both, home[number]]:
                least[both, home[number]] = value[site]
                how[both, home[number]] = (number, site, int(sub_plan[site]), False)
    full = (1 << count) - 1
    total = least[full] + [carrier.deliver(site) for site in sites]
    end = int(total.argmin())
    if not total[end] < TOO_MUCH:
        raise NoPlan("no tree keeps off the sites that are barred")

    def built(mask: int, site: int) -> Tree:
        if mask & (mask - 1) == 0:
            return Leaf(problem.aliases[members_of(mask)[0]])
        number, before, sub_plan, came = how[mask, site]
        rest, leaf = built(mask & ~(1 << number), before), Leaf(problem.aliases[number])
        reduction, bloom = _WAYS[sub_plan]
        first, second = (rest, leaf) if came else (leaf, rest)
        return JoinNode(sites[site], (Input(first), Input(second, reduction, bloom)))

    root = built(full, end)
    assert isinstance(root, JoinNode)
    return root


def _cheapest(carried: _Carried, there: F64, back: F64, trip: F64, trip_back: F64, delay: F64) -> tuple[F64, F64]:
    """What the cheapest way is worth for each site, and which it is."""
    values = (
        carried.out[:, None] * there
        + carried.back[:, None] * back
        + carried.out_messages[:, None] * trip
        + carried.back_messages[:, None] * trip_back
        + delay
    )
    sub_plan = values.argmin(axis=0)
    return values[sub_plan, np.arange(values.shape[1])], sub_plan


class _Figures:
    """What all sets of aliases come to, and what it takes to bring them and single streams together."""

    def __init__(self, problem: Problem) -> None:
        workload = problem.workload
        self._turn_s = problem.turn_s
        self._key_bytes = workload.keys_bytes((0,), 100.0) if workload.domains else 0.0
        count = len(problem.aliases)
        sets = np.arange(1 << count)
        self._has = (sets[:, None] >> np.arange(count) & 1).astype(bool)  # [set, alias]
        self._rate, self._window, self._window_s = workload.rate, workload.window, workload.window_s
        domains = [coarse(domain, _CELLS) for domain in workload.domains]
        members = np.array([domain.members for domain in workload.domains]).reshape(-1, count)
        self._members = members
        self._size = [size for size, _ in domains]
        self._dense = [shares / size for size, shares in domains]
        in_class = np.array([self._has[:, row].any(axis=1) for row in members]).reshape(-1, len(sets))  # [class, set]
        self._share = []  # by class: [set, cell], adding up to 1
        agree = np.ones(len(sets))
        for number, size in enumerate(self._size):
            product = np.ones((len(sets), len(size)))
            for alias in np.flatnonzero(members[number]):
                product *= np.where(self._has[:, [alias]], self._dense[number][alias], 1.0)
            cells = product * size
            total = np.maximum(cells.sum(axis=1), 1e-300)
            agree *= np.where(in_class[number], total, 1.0)
            self._share.append(cells / total[:, None])
        with np.errstate(over="ignore"):
            self._count = np.where(self._has, self._window, 1.0).prod(axis=1) * agree
            per_second = np.where(self._has, 1 / np.maximum(self._window_s, 1e-12), 0.0).sum(axis=1)
            self._meet = np.minimum(self._count * per_second, 1e30)
        self._count = np.minimum(self._count, 1e30)
        self._life = np.where(per_second > 0, 1 / np.maximum(per_second, 1e-300), 0.0)
        alone = self._has.sum(axis=1, keepdims=True) == 1
        times = np.where(alone[:, 0], 1, 2)
        self._bytes = np.where(
            alone,
            self._has @ workload.alone + np.array(TIMESTAMP_SIZES),
            self._has @ workload.combined + 2 * np.array(PLACE_SIZES),
        )
        self._columns = self._has @ np.array([len(of) for of in workload.sizes]) + times
        self.tied = np.zeros((len(sets), count), bool)
        self._main = np.zeros((len(sets), count), np.int64)
        for number in reversed(range(len(self._size))):
            ties = in_class[number][:, None] & members[number][None, :]
            self.tied |= ties
            self._main = np.where(ties, number, self._main)
        self._in_class = in_class
        self._alone = [1 << number for number in range(count)]
        self._every, self._begins = zip(*(self._present(number) for number in range(len(self._size))), strict=True)
        self._false = np.array([false_positives(float(one), self._turn_s) for one in self._window_s])
        self._announced = [self._announced_by(number) for number in range(len(self._size))]
        self._asked = [
            (
                size
                * np.minimum(
                    seen(np.minimum(self._meet, 1e12)[:, None] * self._turn_s * share / size),
                    self._together(number, slice(None), self._turn_s),
                )
            ).sum(axis=1)
            / self._turn_s
            for number, (size, share) in enumerate(zip(self._size, self._share, strict=True))
        ]
        self._tables = [self._table(number) for number in range(count)]

    def comes(self, mask: int, number: int) -> _Carried:
        """An alias to where a set is."""
        return _row(self._tables[number][0], mask)

    def goes(self, mask: int, number: int) -> _Carried:
        """A set to where an alias is."""
        return _row(self._tables[number][1], mask)

    def _present(self, number: int) -> tuple[F64, F64]:
        """For every set and cell: the chance that all have a value of a class, and how often a second that begins."""
        load = self._window[:, None] * self._dense[number]
        there = np.maximum(seen(load), 1e-300)
        every, begins = np.ones((len(self._has), len(self._size[number]))), 0.0
        for alias in np.flatnonzero(self._members[number]):
            has = self._has[:, [alias]]
            every *= np.where(has, there[alias], 1.0)
            begins = begins + has * (self._rate[alias] * self._dense[number][alias] * (np.exp(-load) / there)[alias])
        return every, every * begins

    def _together(self, number: int, sets: np.ndarray | slice, time_s: F64 | float) -> F64:
        """`cost.together` of some sets, by cell."""
        missing = np.maximum(1 - self._every[number][sets], 1e-12)
        found: F64 = 1 - missing * np.exp(-self._begins[number][sets] * time_s / missing)
        return found

    def _announced_by(self, number: int) -> tuple[F64, F64, F64]:
        """For every set: announcements a second of the keys of a class, and by cell how often and for how long."""
        size, share = self._size[number], self._share[number]
        per_value = np.minimum(self._meet, 1e12)[:, None] * share / size
        as_often = -np.log1p(-np.minimum(self._every[number], 1 - 1e-12)) / np.maximum(self._life, 1e-300)[:, None]
        per_value = np.where(self._in_class[number][:, None], np.minimum(per_value, as_often), per_value)
        often, length = announcements(per_value, self._life[:, None])
        often = np.where(per_value > 1e-9, often, 0.0)
        return (often * size).sum(axis=1), often, length

    def _table(self, number: int) -> tuple[tuple[F64, ...], tuple[F64, ...]]:
        """What it takes to bring an alias to each set, and each set to the alias: [set, way] of four figures."""
        one = self._alone[number]
        sets = len(self._has)
        shares = {
            name: np.ones(sets)
            for name in ("comes", "comes_loose", "goes", "goes_loose", "found_comes", "found_goes", "keys", "asks")
        }
        own_keys, own_asks = np.zeros(sets), np.zeros(sets)
        for main in range(len(self._size)):
            if not self._members[main, number]:
                continue
            here = np.flatnonzero((self._main[:, number] == main) & self.tied[:, number])
            if not len(here):
                continue
            size, mine, theirs = self._size[main], self._share[main][one], self._share[main][here]
            agree = self._others_agree(here, number, main)[:, None]
            time = self._window_s[number]
            met = np.minimum(self._count[here] + self._meet[here] * time, 1e12)[:, None] * theirs / size * agree
            shares["comes"][here] = np.minimum(seen(met), self._together(main, here, time)) @ mine
            met = met + self._turn_s * np.minimum(self._meet[here], 1e12)[:, None] * theirs / size * agree
            shares["comes_loose"][here] = np.minimum(seen(met), self._together(main, here, time + self._turn_s)) @ mine
            window = (self._window[number] + self._rate[number] * self._life[here])[:, None]
            shares["goes"][here] = (theirs * seen(window * mine / size * agree)).sum(axis=1)
            window = window + self._rate[number] * self._turn_s
            shares["goes_loose"][here] = (theirs * seen(window * mine / size * agree)).sum(axis=1)
            _, often, length = self._announced[main]
            visits = self._rate[number] * mine / size * agree
            shares["found_comes"][here] = (often[here] * size * seen(visits * length[here])).sum(axis=1)
            visits = np.minimum(self._meet[here], 1e12)[:, None] * theirs / size * agree
            wanted = np.minimum(seen(visits * length[one]), self._together(main, here, length[one]))
            shares["found_goes"][here] = (often[one] * size * wanted).sum(axis=1)
            shares["keys"][here], shares["asks"][here] = self._announced[main][0][here], self._asked[main][here]
            own_keys[here], own_asks[here] = self._announced[main][0][one], self._asked[main][one]
        loose = self._false[number]
        every = np.arange(sets)
        alone = np.full(sets, one)
        rough_comes, rough_goes = (shares[name] + (1 - shares[name]) * loose for name in ("comes_loose", "goes_loose"))
        comes = self._ways(alone, shares["comes"], rough_comes, shares["keys"], own_asks, shares["found_comes"])
        goes = self._ways(every, shares["goes"], rough_goes, own_keys, shares["asks"], shares["found_goes"])
        return comes, goes

    def _others_agree(self, sets: np.ndarray, number: int, main: int) -> F64:
        """The chance that a set and an alias agree on the key classes that they share beside the first."""
        agree = np.ones(len(sets))
        for other in range(main + 1, len(self._size)):
            if self._members[other, number]:
                own = self._share[other][self._alone[number]] / self._size[other]
                agree = np.where(self._in_class[other][sets], agree * (self._share[other][sets] @ own), agree)
        return agree

    def _ways(self, sets: np.ndarray, share: F64, loose: F64, keys: F64, asks: F64, found: F64) -> tuple[F64, ...]:
        rate = np.minimum(self._meet[sets], 1e12)
        zero = np.zeros(len(sets))
        whole, exact, rough = (self._rows(sets, rate * part) for part in (np.ones(len(sets)), share, loose))
        key_out, ask_out, found_out = self._keys(keys), self._keys(asks), self._keys(found)
        key_filter, ask_filter, found_filter = self._filters(keys), self._filters(asks), self._filters(found)
        out = [whole[0], exact[0], rough[0], exact[0] + ask_out[0], rough[0] + ask_filter[0]]
        out_messages = [whole[1], exact[1], rough[1], exact[1] + ask_out[1], rough[1] + ask_filter[1]]
        back = [zero, key_out[0], key_filter[0], found_out[0], found_filter[0]]
        back_messages = [zero, key_out[1], key_filter[1], found_out[1], found_filter[1]]
        return tuple(np.stack(one, axis=1) for one in (out, out_messages, back, back_messages))

    def _messages(self, rate: F64) -> tuple[F64, F64]:
        messages = seen(rate * self._turn_s) / self._turn_s
        return messages, rate / np.maximum(messages, 1e-12)

    def _rows(self, sets: np.ndarray, rate: F64) -> tuple[F64, F64]:
        messages, batch = self._messages(rate)
        place = np.clip(np.log10(np.maximum(batch, 1.0)) - 1.0, 0.0, 2.0)
        low = np.minimum(place.astype(int), 1)
        sizes = self._bytes[sets]
        each = sizes[np.arange(len(sets)), low]
        each = each + (sizes[np.arange(len(sets)), low + 1] - each) * (place - low)
        return messages * overhead_bytes(self._columns[sets]) + rate * each, messages

    def _keys(self, rate: F64) -> tuple[F64, F64]:
        messages, _ = self._messages(rate)
        return messages * overhead_bytes(3) + rate * self._key_bytes, messages

    def _filters(self, rate: F64) -> tuple[F64, F64]:
        messages, _ = self._messages(rate)
        return messages * bloom_bytes(0.0) + rate * BITS_PER_KEY / 8, messages


def _row(table: tuple[F64, ...], mask: int) -> _Carried:
    return _Carried(*(one[mask] for one in table))
