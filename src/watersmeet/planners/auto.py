"""The cheapest plan of all planners, and of what none of them has: methods and parts of the key space together.

Where all streams have a key, its values are put together by the order of joins that suits them (`grouping`). Where not,
and with few streams, STREAMJOINOPT is asked about every cell of values, cells with the same tree form a group, and each
group gets the best sub-plan of its own: an optimal tree with its inputs reduced by semijoins, or greedy sequences.
PMJoin's partitions are tried likewise. One cost model decides, over whole plans.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from watersmeet.cost.costs import Cost
from watersmeet.cost.workload import I64, Workload
from watersmeet.errors import InputError
from watersmeet.plan.nodes import (
    JoinNode,
    JoinPlan,
    Linear,
    Partition,
    RangeParts,
    SubPlan,
    ValueParts,
)
from watersmeet.plan.partition import sub_plans_of
from watersmeet.planners.exhaustive import MOST_STREAMS as MOST_EXHAUSTIVE
from watersmeet.planners.exhaustive import exhaustive
from watersmeet.planners.greedy import FEW_STREAMS, greedy
from watersmeet.planners.grouping import MOST_STREAMS as MOST_GROUPED
from watersmeet.planners.grouping import groupings, in_order
from watersmeet.planners.ordering import MOST_STREAMS as MOST_TREE
from watersmeet.planners.ordering import tree
from watersmeet.planners.partition import METHODS, Parts, parts_of, pmjoin_plan, rate_parts
from watersmeet.planners.problem import NoPlan, Problem, check_connected, is_connected
from watersmeet.planners.programs import programs
from watersmeet.planners.reduce import Carrier, reduced
from watersmeet.planners.sited import central_heads
from watersmeet.planners.trees import MOST_STREAMS as MOST_OPTIMAL
from watersmeet.planners.trees import local_first, optimal, simple, stream_join_opt

PartitionedPlan = tuple[tuple[SubPlan, ...], Partition | None]  # several sub-plans, and which values each is for

_ALIKE = 0.02  # of a plan's price: less than estimates are wrong by
_PLANNED_ANEW = 4
_MOST_ASKED = 200  # groups of values that are planned one by one; more are put together by their rates first


@dataclass(frozen=True)
class Tried:
    """The result of one planner: a plan and its cost, or why it has none."""

    planner: str
    join: JoinPlan | None = None
    cost: Cost | None = None
    value: float = float("inf")
    reason: str = ""


def plan_central(problem: Problem) -> PartitionedPlan:
    """Everything at the query's site; where answers may stay anywhere, at the site with the most."""
    site = problem.site or simple(problem.workload, Carrier(problem).shipping()).at
    return (Linear(central_heads(problem.aliases, problem.shape.classes, site)),), None


def plan_greedy(problem: Problem) -> PartitionedPlan:
    """Sequences by algorithm 10."""
    return (greedy(problem),), None


def plan_exhaustive(problem: Problem) -> PartitionedPlan:
    """The best sequences there are."""
    return (exhaustive(problem),), None


def plan_tree(problem: Problem) -> PartitionedPlan:
    """One join order for all streams, with reductions."""
    _need_time(problem, "tree")
    return (tree(problem),), None


def plan_simple(problem: Problem) -> PartitionedPlan:
    """Everything to the site of the largest stream."""
    _need_time(problem, "simple")
    return (simple(problem.workload, Carrier(problem).shipping()),), None


def plan_local_first(problem: Problem) -> PartitionedPlan:
    """STREAMJOINOPT after all joins within sites."""
    _need_time(problem, "local-first")
    return (local_first(problem.workload, Carrier(problem).shipping()),), None


def plan_optimal(problem: Problem) -> PartitionedPlan:
    """The best tree of whole streams and results."""
    _need_time(problem, "optimal")
    return (optimal(problem.workload, Carrier(problem).shipping(), deliver=True),), None


def plan_pmjoin(problem: Problem) -> PartitionedPlan:
    """The cheapest of PMJoin's three partitions, and the plan without one."""
    _need_time(problem, "pmjoin")
    shipping = Carrier(problem).shipping()
    plans: list[PartitionedPlan] = [((stream_join_opt(problem.workload, shipping),), None)]
    if _partitionable(problem):
        methods = [method for method in METHODS if problem.partition in (None, method)]
        estimated = problem.workload.estimated  # parts are many: counting each in a sample would take seconds
        parted: list[PartitionedPlan] = [pmjoin_plan(estimated, method, problem.parts, shipping) for method in methods]
        plans = parted if problem.partition is not None else [*plans, *parted]
    return min(plans, key=lambda sub_plans: problem.value(problem.join(*sub_plans)))


def partitioned_plans(problem: Problem) -> Iterator[PartitionedPlan]:
    """Partitions whose parts have the best sub-plan each, of any kind."""
    if problem.counting:
        return
    for number in _partitionable(problem):
        is_grouped = _groupable(problem, number)
        if is_grouped:
            yield from _grouped_plans(problem, number)
        if not is_grouped or len(problem.aliases) <= FEW_STREAMS:
            for parts in _partitions(problem, number):
                yield _best_by_part(problem, Partition(number, parts))


def _groupable(problem: Problem, number: int) -> bool:
    """Whether all streams have the key, few enough for all sets of them, and bytes on links count."""
    count = len(problem.aliases)
    is_weighed = any(problem.byte_weight.values())
    return bool(problem.workload.domains[number].members.all()) and 2 < count <= MOST_GROUPED and is_weighed


def _grouped_plans(problem: Problem, number: int) -> Iterator[PartitionedPlan]:
    """Groups of values with an order of their own each, in several numbers."""
    domain = problem.workload.domains[number]
    whole = Partition(number, RangeParts((), (0,)))
    for group, orders in groupings(problem, number, problem.parts):
        found: dict[SubPlan, int] = {}
        sub_plans = np.zeros(len(orders), np.int64)
        with suppress(NoPlan):
            for place, order in enumerate(orders):
                own = problem.limited(problem.workload.limited(whole, group == place))
                sub_plans[place] = found.setdefault(in_order(own, order), len(found))
            if len(found) > 1:
                yield tuple(found), Partition(number, _parts_value(domain.low, domain.high, sub_plans[group]))
            else:
                yield tuple(found), None


PLANNERS: dict[str, Callable[[Problem], PartitionedPlan]] = {
    "central": plan_central,
    "greedy": plan_greedy,
    "exhaustive": plan_exhaustive,
    "tree": plan_tree,
    "pmjoin": plan_pmjoin,
    "simple": plan_simple,
    "local-first": plan_local_first,
    "optimal": plan_optimal,
}


def plan_with(problem: Problem, name: str) -> Tried:
    """The plan of one planner, and its cost."""
    return _tried(problem, name, PLANNERS[name])


def try_all(problem: Problem) -> list[Tried]:
    """The cost by planner, and `auto` last: the cheapest of them and of parts with the best sub-plan each."""
    tried = [plan_with(problem, name) for name in PLANNERS if not _too_many(problem, name)]
    mixed = []
    if is_connected(problem):
        plans = (*_whole_plans(problem), *partitioned_plans(problem))
        mixed = [_priced(problem, "auto", sub_plans) for sub_plans in plans]
    allowed = [result for result in (*tried, *mixed) if result.join is not None]
    if not allowed:
        raise NoPlan(
            "no plan keeps to the limits; " + "; ".join(f"{result.planner}: {result.reason}" for result in tried)
        )
    best = _best(allowed)
    return [*tried, Tried("auto", best.join, best.cost, best.value, "" if best.planner == "auto" else best.planner)]


def _best(allowed: Sequence[Tried]) -> Tried:
    """The cheapest; of plans that the estimates cannot tell apart, the one with the fewest flows to be wrong about."""
    cheapest = min(allowed, key=lambda result: result.value)
    alike = [result for result in allowed if result.value <= cheapest.value * (1 + _ALIKE)]
    return min(alike or [cheapest], key=lambda result: (len(result.cost.flows) if result.cost else 0, result.value))


def auto(problem: Problem) -> Tried:
    """The cheapest plan that keeps to the limits."""
    return try_all(problem)[-1]


def _tried(problem: Problem, name: str, planner: Callable[[Problem], PartitionedPlan]) -> Tried:
    try:
        return _priced(problem, name, planner(problem))
    except NoPlan as error:
        return Tried(name, reason=str(error))


def _priced(problem: Problem, name: str, sub_plans: PartitionedPlan) -> Tried:
    join = problem.join(*sub_plans)
    cost = problem.cost(join)
    broken = problem.broken(cost)
    if broken:
        return Tried(name, None, cost, reason="; ".join(broken))
    return Tried(name, join, cost, problem.objective.value(cost, problem.topology))


def _too_many(problem: Problem, name: str) -> bool:
    """Whether a planner that is not asked for by name is left out: it cannot do this, or would take too long."""
    count = len(problem.aliases)
    most = {"exhaustive": MOST_EXHAUSTIVE, "tree": MOST_TREE, "optimal": MOST_OPTIMAL}
    needs_time = name in ("tree", "pmjoin", "simple", "local-first", "optimal")
    return count > most.get(name, count) or (needs_time and (problem.is_refreshed or not is_connected(problem)))


def _need_time(problem: Problem, name: str) -> None:
    check_connected(problem)
    if problem.is_refreshed:
        raise InputError(f"the planner {name} makes trees, which cannot have tables that are refreshed; use auto")


def _partitionable(problem: Problem) -> list[int]:
    """Key classes by whose values combinations can be told apart: those that 64 bits hold, known by their values."""
    return [
        key_class.number
        for key_class in problem.shape.classes
        if key_class.exact
        and not problem.counting
        and problem.workload.domains[key_class.number].is_known
        and problem.workload.domains[key_class.number].cells > 1
    ]


def _partitions(problem: Problem, number: int) -> Iterator[Parts]:
    yield _by_plan(problem, number)
    for method in METHODS if len(problem.aliases) <= FEW_STREAMS else ("rate",):
        yield parts_of(problem.workload.estimated, number, method, problem.parts)


def _by_plan(problem: Problem, number: int) -> Parts:
    """Cells together that STREAMJOINOPT has the same tree for; those that ship least join the largest group."""
    workload, domain = problem.workload.estimated, problem.workload.domains[number]
    shipping = Carrier(problem).shipping()
    whole = Partition(number, RangeParts((), (0,)))
    alike = rate_parts(workload, number, _MOST_ASKED)[0] if domain.cells > _MOST_ASKED else np.arange(domain.cells)
    trees: dict[JoinNode, list[int]] = {}
    for group in np.unique(alike):
        cells = alike == group
        found = stream_join_opt(workload.limited(whole, cells), shipping)
        trees.setdefault(found, []).extend(np.flatnonzero(cells).tolist())
    mass = (domain.shares * workload.rate[:, None]).sum(axis=0)
    groups = sorted(trees.values(), key=lambda cells: -mass[cells].sum())
    part = np.zeros(domain.cells, np.int64)
    for sub_plan, cells in enumerate(groups):
        part[cells] = sub_plan if sub_plan < problem.parts else 0
    return _parts_value(domain.low, domain.high, part)


def _parts_value(low: I64, high: I64, part: I64) -> Parts:
    if (low == high).all():
        others = int(np.bincount(part).argmax())
        own = part != others
        return ValueParts(tuple(low[own].tolist()), tuple(part[own].tolist()), others)
    return RangeParts(tuple(low[1:].tolist()), tuple(part.tolist()))


def _best_by_part(problem: Problem, partition: Partition) -> PartitionedPlan:
    """The best sub-plan for each part; parts with the same one go together."""
    sub_plan_of_cell = problem.workload.sub_plan_of_cells(partition)
    found: dict[SubPlan, int] = {}
    renumbered = {}
    domain = problem.workload.domains[partition.key_class]
    mass = (domain.shares * problem.workload.rate[:, None]).sum(axis=0)
    parts = sorted(np.unique(sub_plan_of_cell).tolist(), key=lambda part: -mass[sub_plan_of_cell == part].sum())
    for number, part in enumerate(parts):
        own = problem.limited(problem.workload.limited(partition, sub_plan_of_cell == part))
        if len(problem.aliases) <= FEW_STREAMS or number < _PLANNED_ANEW:
            sub_plans = [*_single_sub_plans(own)]
        else:  # with many streams only the largest parts are worth a search of their own
            sub_plans = [*found, stream_join_opt(own.workload, Carrier(own).shipping())]
        renumbered[part] = found.setdefault(_best_sub_plan(own, sub_plans), len(found))
    if len(found) == 1:
        return tuple(found), None
    return tuple(found), Partition(partition.key_class, _renumbered(partition.parts, renumbered))


def _renumbered(parts: Parts, numbers: dict[int, int]) -> Parts:
    sub_plans = tuple(numbers.get(sub_plan, 0) for sub_plan in parts.sub_plans)
    match parts:
        case ValueParts():
            return ValueParts(parts.values, sub_plans, numbers.get(parts.others, 0))
        case RangeParts():
            return RangeParts(parts.bounds, sub_plans)
        case _:
            return type(parts)(sub_plans)


def _best_sub_plan(problem: Problem, sub_plans: Iterable[SubPlan]) -> SubPlan:
    """The cheapest sub-plan for a part that keeps to the limits, if any does."""

    def rank(sub_plan: SubPlan) -> tuple[bool, float]:
        join = problem.join((sub_plan,))
        cost = problem.cost(join)
        return bool(problem.broken(cost)), problem.objective.value(cost, problem.topology)

    return min(sub_plans, key=rank)


def _whole_plans(problem: Problem) -> Iterator[PartitionedPlan]:
    """Plans of no planner's own for the whole key space: one sub-plan each."""
    if problem.is_refreshed:
        return
    found = [*_single_sub_plans(problem)]
    trees = list(dict.fromkeys(one for one in found if isinstance(one, JoinNode)))
    for sub_plan in (*found, *programs(problem, trees)):
        yield (sub_plan,), None


def _single_sub_plans(problem: Problem) -> Iterator[SubPlan]:
    shipping = Carrier(problem).shipping()
    count = len(problem.aliases)
    best = (
        optimal(problem.workload, shipping, deliver=True)
        if count <= MOST_OPTIMAL
        else stream_join_opt(problem.workload, shipping)
    )
    yield best
    yield reduced(problem, best)
    for planner, most in ((tree, MOST_TREE), (greedy, MOST_EXHAUSTIVE)):
        if count <= most:
            with suppress(NoPlan):
                yield planner(problem)


def sub_plan_shares(partition: Partition, workload: Workload) -> list[float]:
    """The share of all rows that each sub-plan is for."""
    domain = workload.domains[partition.key_class]
    mass = (domain.shares * workload.rate[:, None]).sum(axis=0)
    sub_plans = sub_plans_of(partition, domain.low)
    return [float(mass[sub_plans == sub_plan].sum() / mass.sum()) for sub_plan in range(int(sub_plans.max()) + 1)]
