"""The best of all sequences and methods (semijoin paper, 4.1), with what heads share paid for once.

What is shared is split among the heads: whatever the split, the cheapest sequences of all heads, each paying its own
and its part of what it needs, add up to no more than the best plan; a few steps of ascent make the split a good one.
A start of a sequence is given up if even its cheapest end keeps that sum from getting below the best plan known, or if
another start costs no more though it paid for all that it needs beyond it. Then heads are put together, with the same
bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.workload import F64
from watersmeet.errors import InputError
from watersmeet.plan.nodes import HeadPlan, Hop, Linear
from watersmeet.planners.greedy import greedy
from watersmeet.planners.oneway import OneWay, Shared
from watersmeet.planners.problem import Problem

MOST_STREAMS = 4
_ASCENTS = 30
_BLOCK = 256

State = tuple[int, str]  # the aliases that are joined, and the site where that is
Numbers = NDArray[np.int64]

_END: State = (0, "")


@dataclass(frozen=True, slots=True)
class _Step:
    """One one-way join of a head, between two states; or the delivery of its answers, which is no hop."""

    before: State
    after: State
    hop: Hop | None
    own: float
    shared: tuple[Shared, ...]


@dataclass(frozen=True, slots=True)
class _Graph:
    """All steps of a head, those of earlier joins first."""

    steps: tuple[_Step, ...]
    own: F64
    needs: F64  # [step, shared], zeros and ones

    @property
    def start(self) -> State:
        return self.steps[0].before


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Some sequences of a head to one state: what each costs of its own, and what it needs as zeros and ones."""

    own: F64
    needs: F64  # [sequence, shared]
    hops: list[tuple[Hop, ...]]

    def only(self, which: Numbers) -> "_Sequences":
        return _Sequences(self.own[which], self.needs[which], [self.hops[place] for place in which])


def exhaustive(problem: Problem) -> Linear:
    """The cheapest linear plan there is."""
    count = len(problem.aliases)
    if count > MOST_STREAMS:
        raise InputError(
            f"the planner exhaustive tries every order and method, which is too much for {count} streams; "
            f"use greedy from {MOST_STREAMS + 1} streams on"
        )
    prices = OneWay(problem)
    start = greedy(problem, prices)
    bound = prices.value(start.heads)
    graphs, items = _graphs(problem, prices)
    worth = np.array([prices.price_of(item) for item in items])
    found = _promising(graphs, items, worth, bound)
    found, split = _hopeful(found, worth, bound)
    if not all(len(sequences.own) for sequences in found):
        return start
    order = sorted(range(count), key=lambda head: len(found[head].own))
    best = _search([found[head] for head in order], split[order], worth, bound)
    if best is None:
        return start
    chosen = [which for _, which in sorted(zip(order, best, strict=True))]
    return Linear(tuple(HeadPlan(problem.aliases[head], found[head].hops[which]) for head, which in enumerate(chosen)))


def _graphs(problem: Problem, prices: OneWay) -> tuple[list[_Graph], list[Shared]]:
    """The steps of every head, and what they share."""
    steps = [tuple(_steps(problem, prices, head)) for head in range(len(problem.aliases))]
    items = list(dict.fromkeys(item for own in steps for step in own for item in step.shared))
    number = {item: place for place, item in enumerate(items)}
    graphs = []
    for own in steps:
        needs = np.zeros((len(own), len(items)))
        for place, step in enumerate(own):
            needs[place, [number[item] for item in step.shared]] = 1.0
        graphs.append(_Graph(own, np.array([step.own for step in own]), needs))
    return graphs, items


def _steps(problem: Problem, prices: OneWay, head: int) -> list[_Step]:
    states: list[State] = [(1 << head, problem.homes[head])]
    steps = []
    for _ in range(len(problem.aliases) - 1):
        reached: dict[State, None] = {}
        for mask, site in states:
            for alias in prices.next_aliases(mask):
                for priced in prices.priced_hops(head, mask, site, alias):
                    after = (mask | 1 << alias, priced.end)
                    reached[after] = None
                    steps.append(_Step((mask, site), after, priced.hop, priced.own, priced.shared))
        states = list(reached)
    for state in states:
        last, links = prices.delivery(head, state[1])
        steps.append(_Step(state, _END, None, last, links))
    return steps


def _promising(graphs: Sequence[_Graph], items: Sequence[Shared], worth: F64, bound: float) -> list[_Sequences]:
    """The sequences of each head that may be in a plan below a bound."""
    times = np.array([len(graphs) if kind == "link" else 1 for kind, *_ in items])  # a sequence may use a link again

    def cheapest(split: F64) -> tuple[float, F64]:
        total, used = 0.0, np.zeros_like(split)
        for head, graph in enumerate(graphs):
            rests, next_step = _rests(graph, split[head])
            total += rests[graph.start]
            state = graph.start
            while state in next_step:
                used[head] += graph.needs[next_step[state]]
                state = graph.steps[next_step[state]].after
        return total, used

    split = _good_split(cheapest, worth / times, len(graphs), bound)
    rests = [_rests(graph, part)[0] for graph, part in zip(graphs, split, strict=True)]
    least = [rest[graph.start] for rest, graph in zip(rests, graphs, strict=True)]
    return [
        _sequences(graphs[head], rests[head], split[head], worth, bound - (sum(least) - least[head]))
        for head in range(len(graphs))
    ]


def _good_split(cheapest: Callable[[F64], tuple[float, F64]], worth: F64, heads: int, bound: float) -> F64:
    """What each head pays of what is shared, [head, shared], so that the cheapest of all heads come to much.

    `cheapest` tells to how much, and what the cheapest of each head uses: those who use something pay more of it.
    """
    split = np.tile(worth / heads, (heads, 1))
    best_value, best = -np.inf, split
    for _ in range(_ASCENTS):
        value, used = cheapest(split)
        if value > best_value:
            best_value, best = value, split
        direction = used - used.mean(axis=0)
        length = float((direction**2).sum())
        if not length or not value < bound < np.inf:
            break
        split = _shared_out(split + direction * ((bound - value) / length), worth)
    return best


def _shared_out(wished: F64, worth: F64) -> F64:
    """The nearest parts of 0 or more that add up to what each thing is worth."""
    ordered = -np.sort(-wished, axis=0)
    over = (np.cumsum(ordered, axis=0) - worth) / np.arange(1, len(wished) + 1)[:, None]
    last = (ordered > over).sum(axis=0) - 1
    parts: F64 = np.maximum(wished - over[np.maximum(last, 0), np.arange(len(worth))], 0.0)
    return parts


def _rests(graph: _Graph, part: F64) -> tuple[dict[State, float], dict[State, int]]:
    """The least it costs a head from each state to the end, with its part of what is shared, and by which step."""
    rests: dict[State, float] = {_END: 0.0}
    first: dict[State, int] = {}
    costs = (graph.own + graph.needs @ part).tolist()
    for place in reversed(range(len(costs))):
        step = graph.steps[place]
        value = costs[place] + rests[step.after]
        if value < rests.setdefault(step.before, np.inf):
            rests[step.before], first[step.before] = value, place
    return rests, first


def _sequences(graph: _Graph, rests: dict[State, float], part: F64, worth: F64, bound: float) -> _Sequences:
    """The sequences of a head that cost less than a bound with its part of what is shared, and are not beaten."""
    reached: dict[State, _Sequences] = {graph.start: _Sequences(np.zeros(1), np.zeros((1, len(worth))), [()])}
    waiting: dict[State, list[_Sequences]] = {}
    for place, step in enumerate(graph.steps):
        if step.before not in reached:
            reached[step.before] = _unbeaten(waiting.pop(step.before, []), worth)
        sequences = reached[step.before]
        own, needs = sequences.own + step.own, np.maximum(sequences.needs, graph.needs[place])
        kept = np.flatnonzero(own + needs @ part + rests[step.after] < bound)
        if len(kept):
            more = (step.hop,) if step.hop is not None else ()
            hops = [(*sequences.hops[place], *more) for place in kept]
            waiting.setdefault(step.after, []).append(_Sequences(own[kept], needs[kept], hops))
    return _unbeaten(waiting.get(_END, []), worth)


def _unbeaten(parts: Sequence[_Sequences], worth: F64) -> _Sequences:
    """Those sequences that may be the best: no other costs less even if it paid for all that it needs beyond them."""
    if not parts:
        return _Sequences(np.zeros(0), np.zeros((0, len(worth))), [])
    own, needs = np.concatenate([part.own for part in parts]), np.concatenate([part.needs for part in parts])
    sequences = _Sequences(own, needs, [hops for part in parts for hops in part.hops])
    sequences = sequences.only(np.lexsort((own, own + needs @ worth)))
    kept = np.zeros(0, np.int64)
    for low in range(0, len(own), _BLOCK):
        block = np.arange(low, min(low + _BLOCK, len(own)))
        before = np.concatenate([kept, block])
        more = (sequences.needs[before] * worth) @ (1.0 - sequences.needs[block]).T
        beats = sequences.own[before, None] + more <= sequences.own[block]
        beats &= before[:, None] < block  # what beats one that beats another beats that too
        kept = np.concatenate([kept, block[~beats.any(axis=0)]])
    return sequences.only(kept)


def _hopeful(found: Sequence[_Sequences], worth: F64, bound: float) -> tuple[list[_Sequences], F64]:
    """Of each head, the sequences that can be in a combination below a bound, and the split that tells them."""
    left = list(found)
    while True:
        if not all(len(sequences.own) for sequences in left):
            return left, np.zeros((len(left), len(worth)))

        def cheapest(split: F64, left: Sequence[_Sequences] = left) -> tuple[float, F64]:
            costs = [sequences.own + sequences.needs @ part for sequences, part in zip(left, split, strict=True)]
            used = [sequences.needs[cost.argmin()] for sequences, cost in zip(left, costs, strict=True)]
            return sum(float(cost.min()) for cost in costs), np.array(used)

        split = _good_split(cheapest, worth, len(left), bound)
        costs = [sequences.own + sequences.needs @ part for sequences, part in zip(left, split, strict=True)]
        rest = sum(float(cost.min()) for cost in costs)
        kept = [np.flatnonzero(cost + (rest - cost.min()) < bound) for cost in costs]
        if all(len(places) == len(cost) for places, cost in zip(kept, costs, strict=True)):
            return left, split
        left = [sequences.only(which) for sequences, which in zip(left, kept, strict=True)]


def _search(sequences: Sequence[_Sequences], split: F64, worth: F64, bound: float) -> tuple[int, ...] | None:
    """The cheapest combination of one sequence for each head below a bound, if there is one."""
    best_value, best = bound * (1 - 1e-12), None
    parts = [(own.needs * part).T for own, part in zip(sequences, split, strict=True)]
    stack: list[tuple[float, float, tuple[int, ...], F64]] = [(0.0, 0.0, (), np.ones(len(worth)))]
    while stack:
        hope, spent, chosen, unpaid = stack.pop()
        head = len(chosen)
        if hope >= best_value:
            continue
        if head == len(sequences):
            best_value, best = spent, chosen
            continue
        total = spent + sequences[head].own + sequences[head].needs @ (unpaid * worth)
        left = unpaid * (1.0 - sequences[head].needs)  # what is not paid then, for each sequence of this head
        hopes = total + sum(
            (sequences[other].own + left @ parts[other]).min(axis=1) for other in range(head + 1, len(sequences))
        )
        for which in np.argsort(hopes)[::-1]:
            if hopes[which] < best_value:
                stack.append((float(hopes[which]), float(total[which]), (*chosen, int(which)), left[which]))
    return best
