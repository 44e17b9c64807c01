"""Tree ordering (semijoin paper, 4.2): streams are added one by one, each join where either side is, by any method.

The best order, places and reductions come from a dynamic program over sets of aliases: the least that it takes to have
the combinations of a set at a site.
"""

from dataclasses import dataclass

import numpy as np

from watersmeet.cost.workload import F64, I64, members_of
from watersmeet.errors import InputError
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Tree
from watersmeet.planners.problem import NoPlan, Problem, check_connected
from watersmeet.planners.reduce import TOO_MUCH, Carrier
from watersmeet.planners.transfers import REDUCTIONS, Transfers, TransferTable

MOST_STREAMS = 12


@dataclass(frozen=True, slots=True)
class _Links:
    """What bytes, messages and delay are worth between each site and a home, out to one end and back from it."""

    out: F64
    back: F64
    out_message: F64
    back_message: F64
    delay: F64

    def cheapest(self, transfers: Transfers) -> tuple[F64, I64]:
        """What the cheapest reduction is worth for each site, and which it is."""
        values = (
            transfers.out[:, None] * self.out
            + transfers.back[:, None] * self.back
            + transfers.out_messages[:, None] * self.out_message
            + transfers.back_messages[:, None] * self.back_message
            + self.delay
        )
        reduction = values.argmin(axis=0)
        return values[reduction, np.arange(values.shape[1])], reduction


@dataclass(frozen=True, slots=True)
class _LastJoin:
    """How the combinations of a set come to be at a site: the alias joined last, and where the others were before."""

    alias: int
    before: int
    reduction: int
    alias_came: bool  # whether the alias was brought to the others, or they to it


@dataclass(frozen=True, slots=True)
class _Table:
    """The dynamic program's result: the least cost of every set at every site, and the last join of each."""

    least: F64  # [set, site]
    last: dict[tuple[int, int], _LastJoin]


def tree(problem: Problem) -> JoinNode:
    """The cheapest tree to which streams are added one by one."""
    check_connected(problem)
    count = len(problem.aliases)
    if count > MOST_STREAMS:
        raise InputError(
            f"the planner tree tries every order, which is too much for {count} streams; "
            f"use pmjoin or greedy from {MOST_STREAMS + 1} streams on"
        )
    carrier = Carrier(problem)
    table = _enumerated(problem, carrier, TransferTable(problem))
    full = (1 << count) - 1
    total = table.least[full] + [carrier.deliver(site) for site in problem.sites]
    site = int(total.argmin())
    if not total[site] < TOO_MUCH:
        raise NoPlan("no tree keeps off the sites that are barred")
    root = _rebuilt(problem, table, full, site)
    assert isinstance(root, JoinNode)
    return root


def _enumerated(problem: Problem, carrier: Carrier, transfers: TransferTable) -> _Table:
    """All sets in ascending order, each extended by every alias that is tied to it."""
    count, sites = len(problem.aliases), np.arange(len(problem.sites))
    home = [problem.sites.index(site) for site in problem.homes]
    from_home, to_home = _links_of_homes(problem, carrier)
    table = _Table(np.full((1 << count, len(sites)), np.inf), {})
    for alias in range(count):
        table.least[1 << alias, home[alias]] = 0.0
    for mask in range(1, 1 << count):
        if not np.isfinite(table.least[mask]).any():
            continue
        for alias in range(count):
            if mask >> alias & 1 or not transfers.tied[mask, alias]:
                continue
            is_home = sites == home[alias]
            cost, reduction = from_home[alias].cheapest(transfers.comes(mask, alias))
            _extend_where_set_is(table, mask, alias, np.where(is_home, 0.0, cost), reduction)
            cost, reduction = to_home[alias].cheapest(transfers.goes(mask, alias))
            _extend_at_home(table, mask, alias, home[alias], np.where(is_home, np.inf, cost), reduction)
    return table


def _links_of_homes(problem: Problem, carrier: Carrier) -> tuple[list[_Links], list[_Links]]:
    """For each alias, the links from its home to every site, and those from every site to its home."""
    sites = problem.sites
    byte, message, delay = (
        np.array([[weight(origin, to) for to in sites] for origin in sites])
        for weight in (
            carrier.weight,
            lambda origin, to: problem.trip_weight[origin, to],
            lambda origin, to: problem.delay_weight[origin, to],
        )
    )
    homes = [sites.index(site) for site in problem.homes]
    return (
        [_Links(byte[home], byte[:, home], message[home], message[:, home], delay[home]) for home in homes],
        [_Links(byte[:, home], byte[home], message[:, home], message[home], delay[:, home]) for home in homes],
    )


def _extend_where_set_is(table: _Table, mask: int, alias: int, cost: F64, reduction: I64) -> None:
    """Join an alias with a set wherever the set is, if that is the cheapest so far."""
    both = mask | 1 << alias
    value = cost + table.least[mask]
    for site in np.flatnonzero(value < table.least[both]).tolist():
        table.least[both, site] = value[site]
        table.last[both, site] = _LastJoin(alias, site, int(reduction[site]), alias_came=True)


def _extend_at_home(table: _Table, mask: int, alias: int, home: int, cost: F64, reduction: I64) -> None:
    """Join a set with an alias at the home of the alias, from the site where that is the cheapest."""
    both = mask | 1 << alias
    value = cost + table.least[mask]
    site = int(value.argmin())
    if value[site] < table.least[both, home]:
        table.least[both, home] = value[site]
        table.last[both, home] = _LastJoin(alias, site, int(reduction[site]), alias_came=False)


def _rebuilt(problem: Problem, table: _Table, mask: int, site: int) -> Tree:
    """The tree of a set at a site, from its last join back to its streams."""
    if mask & (mask - 1) == 0:
        return Leaf(problem.aliases[members_of(mask)[0]])
    last = table.last[mask, site]
    rest, leaf = _rebuilt(problem, table, mask & ~(1 << last.alias), last.before), Leaf(problem.aliases[last.alias])
    first, second = (rest, leaf) if last.alias_came else (leaf, rest)
    reduction, bloom = REDUCTIONS[last.reduction]
    return JoinNode(problem.sites[site], (Input(first), Input(second, reduction, bloom)))
