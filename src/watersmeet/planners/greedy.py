"""Greedy sequences (semijoin paper, algorithm 10): for each head, always the one-way join that is the cheapest now.

The paper prices every head on its own. Here heads share what is at a site already, so the rule is applied again and
again, each head knowing what the others pay for: from heads on their own, and from all streams at one site, for each.
With few streams, the best sequence of one head beside the others is found outright, and tried too.
"""

import numpy as np

from watersmeet.plan.nodes import Linear
from watersmeet.planners.oneway import OneWay, Shared, best_sequence, greedy_sequence, improved
from watersmeet.planners.problem import Problem
from watersmeet.planners.sweep import Sweep

FEW_STREAMS = 4  # for more, the careful search takes seconds
_SOME_STREAMS = 40


def greedy(problem: Problem, prices: OneWay | None = None) -> Linear:
    """The best plan that the greedy rule comes to from any of its starts; prices that are known need not be found."""
    return _with_care(problem, prices or OneWay(problem)) if len(problem.aliases) <= FEW_STREAMS else _at_once(problem)


def _with_care(problem: Problem, prices: OneWay) -> Linear:
    count = range(len(problem.aliases))
    starts: list[tuple[Shared, ...]] = [()]
    starts += [
        tuple(("rows", alias, (), site) for alias in count if problem.homes[alias] != site)
        for site in dict.fromkeys(problem.homes)
        if site not in problem.limits.barred
    ]
    best = None
    for paid in starts:
        alone = [greedy_sequence(prices, problem, head, paid) for head in count]
        found = improved(prices, problem, alone, greedy_sequence)
        found = improved(prices, problem, found.heads, best_sequence)
        value = prices.value(found.heads)
        if best is None or value < best[0]:
            best = (value, found)
    assert best is not None
    return best[1]


def _at_once(problem: Problem) -> Linear:
    """All heads step by step together: alone, and with all streams at the site that has most of them."""
    sweep = Sweep(problem, 64 if len(problem.aliases) <= _SOME_STREAMS else 16)
    sites = list(problem.sites)
    weights = dict.fromkeys(sites, 0.0)
    for number, home in enumerate(problem.homes):
        weights[home] += float(problem.workload.rate[number]) * problem.workload.row_bytes(1 << number, 100)
    allowed = [site for site in sites if site not in problem.limits.barred]
    found = [sweep.run()]
    if allowed:
        paid = np.zeros((len(problem.aliases), len(sites)), bool)
        paid[:, sites.index(max(allowed, key=lambda site: weights[site]))] = True
        found.append(sweep.run(paid))
    best = min(found, key=lambda one: one[1])
    if len(problem.aliases) <= _SOME_STREAMS:  # once more, with what the best of them ships taken to be there
        best = min((best, sweep.run(best[2])), key=lambda one: one[1])
    return best[0]
