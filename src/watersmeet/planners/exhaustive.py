"""The best of all sequences and methods (semijoin paper, 4.1), with what heads share paid for once.

For each head, all ways to reach a set of aliases at a site are kept that no other beats in both what it costs and
what it needs; then heads are put together one by one, and a start that cannot get below the best known is given up:
each head costs at least what it has of its own and an even part of what it needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watersmeet.errors import InputError
from watersmeet.plan import HeadPlan, Hop, Linear
from watersmeet.planners.greedy import greedy
from watersmeet.planners.oneway import OneWay, Shared
from watersmeet.planners.problem import Problem, check_connected
from watersmeet.workload import F64

MOST_STREAMS = 4

Bits = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Way:
    """One way through a head's sequence, as far as it goes."""

    own: float
    needs: int  # bits of what is shared
    hops: tuple[Hop, ...]


def exhaustive(problem: Problem) -> Linear:
    """The cheapest linear plan there is."""
    check_connected(problem)
    count = len(problem.aliases)
    if count > MOST_STREAMS:
        raise InputError(
            f"the planner exhaustive tries every order and method, which is too much for {count} streams; "
            f"use greedy from {MOST_STREAMS + 1} streams on"
        )
    prices = OneWay(problem)
    start = greedy(problem)
    items: dict[Shared, int] = {}
    found = [_ways(problem, prices, head, items) for head in range(count)]
    worth = np.array([prices.price_of(one) for one in items])
    needs = [_bits(ways, len(items)) for ways in found]
    own = [np.array([way.own for way in ways]) for ways in found]
    bound = prices.value(start.heads)
    hopeful = _hopeful(own, needs, worth, bound)
    if not all(hopeful):
        return start
    order = sorted(range(count), key=lambda head: len(hopeful[head]))
    found = [[found[head][which] for which in hopeful[head]] for head in range(count)]
    own = [own[head][hopeful[head]] for head in range(count)]
    needs = [needs[head][hopeful[head]] for head in range(count)]
    best = _search([own[head] for head in order], [needs[head] for head in order], worth, bound)
    if best is None:
        return start
    chosen = [which for _, which in sorted(zip(order, best, strict=True))]
    return Linear(tuple(HeadPlan(problem.aliases[head], found[head][which].hops) for head, which in enumerate(chosen)))


def _ways(problem: Problem, prices: OneWay, head: int, items: dict[Shared, int]) -> list[_Way]:
    states: dict[tuple[int, str], list[_Way]] = {(1 << head, problem.homes[head]): [_Way(0.0, 0, ())]}
    for _ in range(len(problem.aliases) - 1):
        reached: dict[tuple[int, str], list[_Way]] = {}
        for (mask, site), ways in states.items():
            for alias in prices.next_aliases(mask):
                for choice in prices.choices(head, mask, site, alias):
                    needs = sum(1 << items.setdefault(one, len(items)) for one in choice.shared)
                    reached.setdefault((mask | 1 << alias, choice.end), []).extend(
                        _Way(way.own + choice.own, way.needs | needs, (*way.hops, choice.hop)) for way in ways
                    )
        worth = np.array([prices.price_of(one) for one in items])
        states = {state: _unbeaten(ways, worth) for state, ways in reached.items()}
    ends = []
    for (_, site), ways in states.items():
        last, links = prices.delivery(head, site)
        needs = sum(1 << items.setdefault(one, len(items)) for one in links)
        ends += [_Way(way.own + last, way.needs | needs, way.hops) for way in ways]
    return _unbeaten(ends, np.array([prices.price_of(one) for one in items]))


def _unbeaten(ways: Sequence[_Way], worth: F64) -> list[_Way]:
    """Those ways that may be the best: no other costs less even if it had to pay for all that it needs beyond them."""
    cheapest: dict[int, _Way] = {}
    for way in ways:
        if way.needs not in cheapest or way.own < cheapest[way.needs].own:
            cheapest[way.needs] = way
    found = list(cheapest.values())
    bits = _bits(found, len(worth))
    own = np.array([way.own for way in found])
    order = np.lexsort((own, own + bits @ worth))
    kept: list[int] = []
    for which in order:
        more = (bits[kept] & ~bits[which]) @ worth
        if not (own[kept] + more <= own[which]).any():
            kept.append(int(which))
    return [found[which] for which in kept]


def _bits(ways: Sequence[_Way], count: int) -> Bits:
    return np.array([[way.needs >> bit & 1 for bit in range(count)] for way in ways], bool).reshape(len(ways), count)


def _hopeful(own: Sequence[F64], needs: Sequence[Bits], worth: F64, bound: float) -> list[list[int]]:
    """Of each head, the ways that can be in a combination below a bound: the rest costs too much at the very least."""
    left = [np.arange(len(one)) for one in own]
    while True:
        users = np.sum([need[one].any(axis=0) for need, one in zip(needs, left, strict=True)], axis=0)
        fair = worth / np.maximum(users, 1)
        least = [cost[one] + need[one] @ fair for cost, need, one in zip(own, needs, left, strict=True)]
        if any(not len(one) for one in least):
            return [[] for _ in own]
        rest = sum(float(one.min()) for one in least)
        kept = [one[cost + (rest - cost.min()) < bound] for one, cost in zip(left, least, strict=True)]
        if all(len(one) == len(other) for one, other in zip(kept, left, strict=True)):
            return [one.tolist() for one in left]
        left = kept


def _search(own: Sequence[F64], needs: Sequence[Bits], worth: F64, bound: float) -> tuple[int, ...] | None:
    """The cheapest combination of one way for each head below a bound, if there is one."""
    users = np.sum([need.any(axis=0) for need in needs], axis=0)
    fair = worth / np.maximum(users, 1)
    best_value, best = bound * (1 - 1e-12), None
    stack: list[tuple[float, float, tuple[int, ...], Bits]] = [(0.0, 0.0, (), np.zeros(len(worth), bool))]
    while stack:
        hope, spent, chosen, paid = stack.pop()
        head = len(chosen)
        if hope >= best_value:
            continue
        if head == len(own):
            best_value, best = spent, chosen
            continue
        total = spent + own[head] + (needs[head] & ~paid) @ worth
        unpaid = np.where(paid | needs[head], 0.0, fair)  # what is not paid then, for each way of this head
        hopes = total + sum((own[one] + unpaid @ needs[one].T).min(axis=1) for one in range(head + 1, len(own)))
        for which in np.argsort(hopes)[::-1]:
            if hopes[which] < best_value:
                more = paid | needs[head][which]
                stack.append((float(hopes[which]), float(total[which]), (*chosen, int(which)), more))
    return best
