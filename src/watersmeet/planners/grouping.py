"""Values of a key in groups that each have a join order of their own, and trees that follow an order.

What a step of an order takes is known for every value, so a group's best order comes from a recurrence over sets of
aliases, and a value's group from what every group's order would take for it. Groups start from the orders that suit the
values that are worst off. Every group has messages of its own, so then they are put together two by two, always those
that lose least by it. Links count by their means: where the joins of an order are made is decided afterwards, for one
group at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from watersmeet.cost.formulas import (
    FILTER_BYTES_PER_KEY,
    KEY_COLUMNS,
    announced_per_value,
    bloom_bytes,
    clumped_rate,
    distinct_keys,
    false_positives,
    present,
    present_some_time,
    rows_per_value,
    seen,
    with_false_positives,
)
from watersmeet.cost.sizes import PLACE_SIZES, thinned
from watersmeet.cost.workload import F64, I64, Workload, members_of
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Tree
from watersmeet.planners.partition import clusters
from watersmeet.planners.problem import NoPlan, Problem
from watersmeet.planners.reduce import TOO_MUCH, Carriage, Carrier
from watersmeet.planners.transfers import REDUCTIONS, Reduced
from watersmeet.program.storage.wire import overhead_bytes

MOST_STREAMS = 10
_MOST_CELLS = 192  # that orders are found with; groups are then of all cells
_MOST_GROUPS = 12  # before any are put together
_NUMBERS = (12, 8, 6, 4, 3, 2)  # of groups that are worth a look
_ROUNDS = 4
_TRIED = 12  # orders that are tried for each further group
_MESSAGES = 3.0  # of a flow in a batch interval: what has come is joined at once, so late flows are sent in several

Order = tuple[int, ...]  # aliases by number, as they are joined


@dataclass(frozen=True, slots=True)
class BestOrder:
    """The best order of a group, how each of its steps is done, and what that is worth."""

    order: Order
    methods: tuple[int, ...]
    value: float


class ByValue:
    """What it takes to bring aliases and sets of aliases together, for the values of each cell of a key class."""

    def __init__(self, problem: Problem, number: int, size: F64, shares: F64, sets: Sequence[int]) -> None:
        workload = problem.workload
        self.size, self._batch_interval_s, self.count = size, problem.batch_interval_s, len(workload.aliases)
        self._row = {which: place for place, which in enumerate(sets)}
        has = (np.array(sets)[:, None] >> np.arange(self.count) & 1).astype(bool)
        self._window_s = workload.window_s
        self._rate = rows_per_value(workload.rate[:, None], shares, size)  # [alias, cell]
        there, begins = present(self._rate, self._window_s[:, None])
        self._chance, self._begins, live = (np.full((len(sets), len(size)), start) for start in (1.0, 0.0, 1.0))
        for alias in range(self.count):
            mine = has[:, alias]
            self._chance[mine] *= there[alias]
            self._begins[mine] += begins[alias]
            live[mine] *= self._rate[alias] * self._window_s[alias]
        self._begins *= self._chance
        per_second = has @ (1 / np.maximum(self._window_s, 1e-12))
        self._life = 1 / np.maximum(per_second, 1e-300)
        self._meet = np.minimum(live * (per_second * _agreement_elsewhere(workload, number, sets))[:, None], 1e12)
        per_value = clumped_rate(self._meet, self._chance, self._life[:, None])
        self._often, self._length = announced_per_value(per_value, self._life[:, None])
        alone = has.sum(axis=1) == 1
        times = np.where(alone, 1, 2)
        self._bytes = np.where(
            alone,
            has @ (workload.alone[:, 2] + workload.stamps[:, 2]),
            has @ workload.combined[:, 2] + 2 * PLACE_SIZES[2],
        )
        self._columns = has @ np.array([len(of) for of in workload.sizes]) + times
        self._stamps = workload.stamps
        self._key_bytes = workload.keys_bytes((number,), 100.0)
        self._false = [false_positives(float(time), self._batch_interval_s) for time in self._window_s]
        self._to, self._from = _mean_weights(problem)

    def steps(self, sets: Sequence[int], alias: int) -> F64:
        """What it takes to join an alias with some sets, [transfer, set, cell]: it comes to them, or they go to it.

        Each of the two has a transfer for every one of `REDUCTIONS`.
        """
        these, own_row = np.array([self._row[which] for which in sets]), self._row[1 << alias]
        interval_s, window_s, false = self._batch_interval_s, float(self._window_s[alias]), self._false[alias]
        rate, life, meet = self._rate[alias], self._life[these][:, None], self._meet[these]
        often, length = self._often[own_row], self._length[own_row]
        alias_reduced = Reduced(
            matched=self._together(these, window_s),
            matched_by_filter=with_false_positives(self._together(these, window_s + interval_s), false),
            announced=self._often[these],
            asked=distinct_keys(rate, interval_s),
            found=self._often[these] * seen(rate * self._length[these]),
        )
        sets_reduced = Reduced(
            matched=seen(rate * (window_s + life)),
            matched_by_filter=with_false_positives(seen(rate * (window_s + life + interval_s)), false),
            announced=often,
            asked=distinct_keys(meet, interval_s, together=self._together(these, interval_s)),
            found=often * np.minimum(seen(meet * length), self._together(these, length)),
        )
        comes = self._sent(
            *(rate * self._bytes[own_row], alias_reduced, self._from[alias], self._to[alias]),
            rate * self._thinned(alias, alias_reduced.matched),
        )
        goes = self._sent(meet * self._bytes[these][:, None], sets_reduced, self._to[alias], self._from[alias])
        return np.concatenate([comes, goes]) * self.size

    def _thinned(self, alias: int, matched: F64) -> F64:
        """What an event time takes more where not all rows of a stream travel."""
        more: F64 = thinned(self._stamps[alias], matched)[..., 2] - self._stamps[alias, 2]
        return more

    def _sent(self, row_bytes: F64, reduced: Reduced, out: float, back: float, thinned_bytes: F64 | float = 0.0) -> F64:
        """What rows, whole and by each of `REDUCTIONS`, and their keys are worth beside messages."""
        each = row_bytes + thinned_bytes
        exact, rough = each * reduced.matched * out, each * reduced.matched_by_filter * out
        key, bits = self._key_bytes, FILTER_BYTES_PER_KEY
        values = np.empty((len(REDUCTIONS), *reduced.matched.shape))
        values[0] = row_bytes * out
        values[1] = exact + reduced.announced * (key * back)
        values[2] = rough + reduced.announced * (bits * back)
        values[3] = exact + reduced.asked * (key * out) + reduced.found * (key * back)
        values[4] = rough + reduced.asked * (bits * out) + reduced.found * (bits * back)
        return values

    def messages(self, sets: Sequence[int], alias: int, values: F64) -> F64:
        """What the messages of steps are worth whose rows and keys come to some values: [transfer, set, group]."""
        these, own_row = [self._row[which] for which in sets], self._row[1 << alias]
        often = _MESSAGES / self._batch_interval_s
        keys, filters = overhead_bytes(KEY_COLUMNS), bloom_bytes(0.0)
        extra = np.array([0.0, keys, filters, 2 * keys, 2 * filters])[:, None]
        comes = (overhead_bytes(int(self._columns[own_row])) + extra) * self._from[alias]
        goes = (overhead_bytes(self._columns[these]) + extra) * self._to[alias]
        most = np.concatenate([np.broadcast_to(comes, goes.shape), goes]) * often
        found: F64 = most[:, :, None] * seen(values / (often * self._bytes[own_row] * max(self._from[alias], 1e-300)))
        return found

    def _together(self, rows: I64, time_s: F64 | float) -> F64:
        return present_some_time(self._chance[rows], self._begins[rows], time_s)

    @cached_property
    def _tables(self) -> list[tuple[list[int], F64]]:
        """The steps of every alias and all sets without it."""
        sets = [[which for which in range(1, 1 << self.count) if not which >> alias & 1] for alias in range(self.count)]
        return [(own, self.steps(own, alias)) for alias, own in enumerate(sets)]

    def best(self, groups: F64 | None = None) -> list[BestOrder]:
        """The best order of each group, [cell, group] zeros and ones; or of each cell, if messages took nothing."""
        many = len(self.size) if groups is None else groups.shape[1]
        tables: dict[tuple[int, int], tuple[F64, I64]] = {}
        for alias, (sets, each) in enumerate(self._tables):
            values: F64 = each
            if groups is not None:
                values = (each.reshape(-1, each.shape[2]) @ groups).reshape(*each.shape[:2], many)
                values = values + self.messages(sets, alias, values)
            transfer = values.argmin(axis=0)
            least_of = np.take_along_axis(values, transfer[None], axis=0)[0]
            for place, which in enumerate(sets):
                tables[which, alias] = least_of[place], transfer[place]
        least, last = np.full((1 << self.count, many), np.inf), np.zeros((1 << self.count, many), np.int64)
        for alias in range(self.count):
            least[1 << alias] = 0.0
        for both in range(1, 1 << self.count):
            members = members_of(both)
            if len(members) > 1:
                offers = np.array([least[both ^ 1 << alias] + tables[both ^ 1 << alias, alias][0] for alias in members])
                which_one = offers.argmin(axis=0)
                least[both], last[both] = offers[which_one, np.arange(many)], np.array(members)[which_one]
        found = []
        for group in range(many):
            order, how, which = [], [], (1 << self.count) - 1
            while which & (which - 1):
                alias = int(last[which, group])
                which ^= 1 << alias
                order.append(alias)
                how.append(int(tables[which, alias][1][group]))
            order.append(members_of(which)[0])
            found.append(BestOrder(tuple(order[::-1]), tuple(how[::-1]), float(least[-1, group])))
        return found

    def rows_of(self, order: Order, methods: Sequence[int] | None = None) -> F64:
        """What an order takes for each cell beside messages; without methods, each cell has its own."""
        total, which = np.zeros(len(self.size)), 1 << order[0]
        for place, alias in enumerate(order[1:]):
            each = self.steps([which], alias)[:, 0]
            total = total + (each.min(axis=0) if methods is None else each[methods[place]])
            which |= 1 << alias
        return total


def prefixes(order: Order) -> list[int]:
    """The sets of aliases that an order goes through.

    >>> prefixes((2, 0, 1))
    [4, 5, 7]
    """
    return [sum(1 << alias for alias in order[: place + 1]) for place in range(len(order))]


def _agreement_elsewhere(workload: Workload, number: int, sets: Sequence[int]) -> F64:
    """For some sets of aliases, the share of combinations that agree on all other key classes and are left."""
    others = [key_class for key_class in range(len(workload.domains)) if key_class != number]
    agree = [np.prod([workload.agreement(key_class, which).sum() for key_class in others]) for which in sets]
    return np.array(agree) * workload.left_by_conditions(np.array(sets))


def _mean_weights(problem: Problem) -> tuple[list[float], list[float]]:
    """What a byte to each alias's home is worth, and one from there, over all sites that may send and get."""
    to: list[float] = []
    out: list[float] = []
    for home in problem.homes:
        others = [site for site in problem.sites if site != home]
        for found, pairs in ((to, [(site, home) for site in others]), (out, [(home, site) for site in others])):
            allowed = [problem.byte_weight[pair] for pair in pairs if problem.allows(*pair)]
            found.append(float(np.mean(allowed)) if allowed else TOO_MUCH)
    return to, out


def groupings(problem: Problem, number: int, most: int) -> Iterator[tuple[I64, list[Order]]]:
    """For several numbers of groups of the values of a key class: the group of each cell, the order of each group."""
    domain, count = problem.workload.domains[number], len(problem.aliases)
    alike = _alike(problem.workload, number)
    cells = (alike[:, None] == np.arange(alike.max() + 1)).astype(float)
    values = ByValue(problem, number, domain.size @ cells, domain.shares @ cells, range(1, 1 << count))
    group = _first_groups(values, min(most, _MOST_GROUPS))
    parts = [tuple(np.flatnonzero(group == label).tolist()) for label in range(group.max() + 1)]
    known: dict[tuple[int, ...], BestOrder] = {}

    def learn(wanted: Iterable[tuple[int, ...]]) -> None:
        new = [part for part in dict.fromkeys(wanted) if part not in known]
        if new:
            columns = np.array([np.isin(np.arange(len(values.size)), part) for part in new], float).T
            known.update(zip(new, values.best(columns), strict=True))

    def lost(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> float:
        return known[_union(*pair)].value - sum(known[part].value for part in pair)

    learn(parts)
    while len(parts) > 1:
        if len(parts) in _NUMBERS:
            yield _of_all(problem, number, _settled(values, [known[part] for part in parts]))
        pairs = [(part, other) for place, part in enumerate(parts) for other in parts[:place]]
        learn(_union(*pair) for pair in pairs)
        first, second = min(pairs, key=lost)
        parts = [*(part for part in parts if part not in (first, second)), _union(first, second)]


def _union(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted((*first, *second)))


def _alike(workload: Workload, number: int) -> I64:
    """Cells in clusters whose rates are much the same in all streams."""
    domain = workload.domains[number]
    if domain.cells <= _MOST_CELLS:
        return np.arange(domain.cells)
    rates = workload.window[:, None] * domain.shares / domain.size
    return clusters(np.log(np.maximum(rates, 1e-4)).T, _MOST_CELLS, seed=0)


def _first_groups(values: ByValue, most: int) -> I64:
    """The group of each cell, by the orders of those that gain most by one of their own."""
    own = values.best()
    (whole,) = values.best(np.ones((len(values.size), 1)))
    costs: list[F64] = [values.rows_of(whole.order, whole.methods)]
    tried: dict[Order, F64] = {}
    for _ in range(most - 1):
        now = np.min(costs, axis=0)
        worst = np.argsort([best.value - before for best, before in zip(own, now, strict=True)], kind="stable")
        chosen = list(dict.fromkeys(own[cell].order for cell in worst[: 2 * _TRIED]))[:_TRIED]
        for order in chosen:
            if order not in tried:
                tried[order] = values.rows_of(order)
        costs.append(tried[min(chosen, key=lambda order: float(np.minimum(now, tried[order]).sum()))])
    return _numbered(np.argmin(costs, axis=0))


def _settled(values: ByValue, found: list[BestOrder]) -> list[BestOrder]:
    """Groups whose orders and cells suit each other."""
    before = None
    for _ in range(_ROUNDS):
        group = _numbered(np.argmin([values.rows_of(best.order, best.methods) for best in found], axis=0))
        if before is not None and np.array_equal(group, before):
            break
        before, found = group, values.best((group[:, None] == np.arange(group.max() + 1)).astype(float))
    return found


def _numbered(group: I64) -> I64:
    """The same groups, those that have any cells numbered from 0."""
    return np.unique(group, return_inverse=True)[1].reshape(-1)


def _of_all(problem: Problem, number: int, found: Sequence[BestOrder]) -> tuple[I64, list[Order]]:
    """Every cell with the group whose order suits it best."""
    domain = problem.workload.domains[number]
    singles = [1 << alias for alias in range(len(problem.aliases))]
    costs = []
    for best in found:
        sets = list(dict.fromkeys([*singles, *prefixes(best.order)]))
        costs.append(ByValue(problem, number, domain.size, domain.shares, sets).rows_of(best.order, best.methods))
    used, group = np.unique(np.argmin(costs, axis=0), return_inverse=True)
    return group.reshape(-1), [found[label].order for label in used]


def in_order(problem: Problem, order: Order) -> JoinNode:
    """The cheapest tree that joins streams in an order: where each join is made, and how what travels is reduced."""
    carrier, names, homes = Carrier(problem), problem.aliases, problem.homes
    least: dict[str, tuple[float, Tree]] = {homes[order[0]]: (0.0, Leaf(names[order[0]]))}
    mask = 1 << order[0]
    for alias in order[1:]:
        home, own, leaf = homes[alias], 1 << alias, Leaf(names[alias])
        reached: dict[str, tuple[float, Tree]] = {}
        for site, (value, tree) in least.items():
            came = carrier.carry(own, home, site, mask)
            offers = [(value + came.value, site, (Input(tree), _input(leaf, came)))]
            if site != home:
                went = carrier.carry(mask, site, home, own)
                offers.append((value + went.value, home, (Input(leaf), _input(tree, went))))
            for total, at, inputs in offers:
                if at not in reached or total < reached[at][0]:
                    reached[at] = (total, JoinNode(at, inputs))
        least, mask = reached, mask | own
    total, site = min((value + carrier.deliver(site), site) for site, (value, _) in least.items())
    root = least[site][1]
    if not total < TOO_MUCH or not isinstance(root, JoinNode):
        raise NoPlan("no tree in this order keeps off the sites that are barred")
    return root


def _input(tree: Tree, how: Carriage) -> Input:
    return Input(tree, how.reduction, how.bloom)
