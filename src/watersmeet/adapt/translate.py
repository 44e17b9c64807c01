"""Between the adaptive paper's plans and ours: a problem in its figures, and a sequence as hops of a linear plan."""

from math import inf

import numpy as np

from watersmeet.adapt.sequences import (
    ExecutionPlan,
    Setting,
    StreamFigures,
    StreamPlan,
    TransferTime,
    UnitCosts,
)
from watersmeet.cost.workload import Workload
from watersmeet.plan.nodes import HeadPlan, Hop, JoinPlan, Linear, Method
from watersmeet.planners.problem import Problem

_BATCH_ROWS = 100.0  # the size of a row is that in batches of so many


def setting_of(problem: Problem) -> Setting:
    """Aliases as the paper's streams, their homes, links and the unit costs of this machine."""
    workload, sites = problem.workload, problem.sites
    links = {}
    for number, site in enumerate(sites):
        for other in sites[number + 1 :]:
            link = problem.topology.link(site, other)
            links[frozenset((site, other))] = TransferTime(
                link.latency_us / 1e6, inf if link.bandwidth_bps is None else link.bandwidth_bps / 8
            )
    ties = frozenset(
        frozenset((first, second))
        for number, first in enumerate(problem.aliases)
        for place, second in enumerate(problem.aliases)
        if number < place and workload.shared(1 << number, 1 << place)
    )
    units = UnitCosts(problem.units.probe_s + problem.units.match_s, problem.units.row_s)
    return Setting(dict(zip(problem.aliases, problem.homes, strict=True)), ties, units, TransferTime(0.0, inf), links)


def figures_of(workload: Workload) -> dict[str, StreamFigures]:
    """The paper's figures of every alias.

    The selectivity factor is the chance that two rows have the same key, over the keys that an alias has.
    """
    found = {}
    for number, alias in enumerate(workload.aliases):
        own = [domain for domain in workload.domains if domain.members[number]]
        chances = [float((domain.shares[number] ** 2 / np.maximum(domain.size, 1e-300)).sum()) for domain in own]
        found[alias] = StreamFigures(
            rate=float(workload.rate[number]),
            selectivity=max(chances, default=1.0),
            row_bytes=workload.row_bytes(1 << number, _BATCH_ROWS),
            window_rows=float(workload.window[number]),
        )
    return found


def sequences_of(join: JoinPlan) -> ExecutionPlan | None:
    """The sequences of a plan that `linear_of` could have made; None for any other plan."""
    home = dict(zip((scan.alias for scan in join.scans), join.homes, strict=True))
    if len(join.sub_plans) != 1 or not isinstance(join.sub_plans[0], Linear):
        return None
    found = []
    for plan in join.sub_plans[0].heads:
        at, placements = home[plan.head], []
        for hop in plan.hops:
            if hop.method not in (Method.SP_S, Method.SP_D):
                return None
            placements.append(hop.method is Method.SP_D and at != home[hop.alias])
            at = home[hop.alias] if hop.method is Method.SP_D else at
        found.append(StreamPlan(plan.head, tuple(hop.alias for hop in plan.hops), tuple(placements)))
    return ExecutionPlan(tuple(sorted(found, key=lambda stream_plan: stream_plan.head)))


def linear_of(plan: ExecutionPlan, aliases: tuple[str, ...], homes: tuple[str, ...]) -> Linear:
    """The same sequences as a plan that the engine runs: placement at the source is SP-S, at the destination SP-D."""
    home = dict(zip(aliases, homes, strict=True))
    heads = []
    for head in aliases:
        stream_plan, at, hops = plan.of(head), home[head], []
        for alias, at_destination in zip(stream_plan.order, stream_plan.at_destination, strict=True):
            is_there = at_destination or at == home[alias]
            hops.append(Hop(alias, Method.SP_D if is_there else Method.SP_S))
            at = home[alias] if is_there else at
        heads.append(HeadPlan(head, tuple(hops)))
    return Linear(tuple(heads))
