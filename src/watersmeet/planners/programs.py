"""Semijoin programs: streams that travel are reduced by those that they meet only later, before they travel at all.

A stream that is reduced by every stream it is tied to ships little more than the rows that are in answers; each of
those reductions takes the keys of the other stream on their way. They are added one by one, always the one that saves
most, as long as the rows that are left out would take more than the keys do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from watersmeet.cost.estimates import Meets, announced, overlapping_each
from watersmeet.cost.formulas import false_positives
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Reducer, Reduction, Tree, leaves_of
from watersmeet.planners.problem import Problem
from watersmeet.planners.reduce import Carrier
from watersmeet.planners.sited import connected
from watersmeet.planners.sizes import FlowSizes

_MOST_SITES = 2  # to which all streams are brought that are worth a price


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of a stream at a site, which all that are reduced there share."""

    alias: str
    key: tuple[int, ...]
    at: str
    bloom: bool


class _Program:
    """A tree in the making, and what its streams and their keys are worth on their way."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._workload = problem, problem.workload
        self._sizes = FlowSizes(problem.workload, problem.batch_interval_s)
        self._carrier = Carrier(problem)
        self._sent: set[_Keys] = set()
        self.value = 0.0
        self.is_reduced = False

    def of(self, tree: Tree) -> Tree:
        """The tree with reducers for each of its streams that travels."""
        if isinstance(tree, Leaf):
            return tree
        inputs, before = [], 0
        for item in tree.inputs:
            made = replace(item, node=self.of(item.node))
            if isinstance(item.node, Leaf):
                made = replace(made, reducers=self._reducers(item, tree.at, before))
            inputs.append(made)
            before |= self._workload.mask(leaves_of(item.node))
        return replace(tree, inputs=tuple(inputs))

    def _reducers(self, item: Input, at: str, before: int) -> tuple[Reducer, ...]:
        (alias,) = leaves_of(item.node)
        home = self._home(alias)
        if home == at:
            return ()
        mask = self._workload.mask((alias,))
        meets = [self._meets(before, alias, item.bloom)] if item.reduction is not Reduction.NONE else []
        found: list[Reducer] = []
        least = self._rows(mask, meets, home, at)
        rest = [other for other in self._problem.aliases if self._may_reduce(other, alias)]
        while rest:
            offers = []
            for other in rest:
                for bloom in (False, True):
                    there = self._meets(self._workload.mask((other,)), alias, bloom)
                    rows, keys = self._rows(mask, [*meets, there], home, at), self._announced(other, alias, bloom)
                    offers.append((rows + keys, rows, Reducer(other, bloom), there))
            value, rows, reducer, there = min(offers, key=lambda offer: (offer[0], offer[2].alias, offer[2].bloom))
            if value >= least:
                break
            self.value += value - rows
            self._sent.add(self._keys(reducer.alias, alias, reducer.bloom))
            least, self.is_reduced = rows, True
            meets.append(there)
            found.append(reducer)
            rest.remove(reducer.alias)
        self.value += least
        return tuple(found)

    def _home(self, alias: str) -> str:
        return self._problem.homes[self._workload.number(alias)]

    def _may_reduce(self, other: str, alias: str) -> bool:
        """Whether a stream may announce its keys to another one, and any key ties them."""
        masks = self._workload.mask((other,)), self._workload.mask((alias,))
        is_tied = other != alias and bool(self._workload.shared(*masks))
        return is_tied and self._problem.allows(self._home(other), self._home(alias))

    def _meets(self, other: int, alias: str, bloom: bool) -> Meets:
        if not bloom:
            return Meets(other)
        interval_s = self._problem.batch_interval_s
        window_s = float(self._workload.window_s[self._workload.number(alias)])
        return Meets(other, false_positives(window_s, interval_s), interval_s)

    def _rows(self, mask: int, meets: Sequence[Meets], origin: str, to: str) -> float:
        """What the rows of a stream are worth that are left when they have to meet all of some others."""
        share = overlapping_each(self._workload, mask, meets) if meets else 1.0
        return self._worth(self._sizes.rows(mask, self._workload.combination_rate(mask) * share), origin, to)

    def _announced(self, other: str, alias: str, bloom: bool) -> float:
        keys = self._keys(other, alias, bloom)
        if keys in self._sent or self._home(other) == keys.at:
            return 0.0
        rate = announced(self._workload, self._workload.mask((other,)), keys.key)
        sizes = self._sizes.filters(rate) if bloom else self._sizes.keys(keys.key, rate)
        return self._worth(sizes, self._home(other), keys.at)

    def _keys(self, other: str, alias: str, bloom: bool) -> _Keys:
        masks = self._workload.mask((other,)), self._workload.mask((alias,))
        return _Keys(other, self._workload.shared(*masks), self._home(alias), bloom)

    def _worth(self, sizes: tuple[float, float], origin: str, to: str) -> float:
        size, messages = sizes
        return size * self._carrier.weight(origin, to) + messages * self._problem.trip_weight[origin, to]


def programs(problem: Problem, trees: Iterable[JoinNode]) -> Iterator[JoinNode]:
    """Trees with reducers: some that are given, and those that bring all streams to one of the best sites for that."""
    if problem.counting:
        return
    for tree in trees:
        program = _Program(problem)
        made = program.of(tree)
        if program.is_reduced:
            assert isinstance(made, JoinNode)
            yield made
    carrier, met = Carrier(problem), []
    for number, site in enumerate(problem.sites):
        program = _Program(problem)
        made = program.of(_at_one(problem, site))
        if program.is_reduced:
            met.append((program.value + carrier.deliver(site), number, made))
    for _, _, made in sorted(met, key=lambda one: one[:2])[:_MOST_SITES]:
        assert isinstance(made, JoinNode)
        yield made


def _at_one(problem: Problem, site: str) -> JoinNode:
    """All streams joined at one site, each tied to those before it; it begins with one that is there."""
    there = [alias for alias, home in zip(problem.aliases, problem.homes, strict=True) if home == site]
    first = (there or list(problem.aliases))[0]
    order = [first, *connected(problem.aliases, first, problem.shape.classes)]
    return JoinNode(site, tuple(Input(Leaf(alias)) for alias in order))
