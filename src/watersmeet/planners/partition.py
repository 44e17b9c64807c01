"""A tree of its own for each part of the key values: PMJoin (section 3.3 of the paper).

The values of one key class fall into parts by hash, by equal ranges, or by which streams are slow at them: for each
value the streams are ranked by their rate of it, and k-means over these ranks puts values together whose best trees
are likely alike. Where joins are on several keys, algorithm 2 finds the join nodes that one key alone decides, with
those below them on the same key merged in, and a heuristic takes the ones with most input, so that none is fed by
another and none gives the place of the join node above it: the result of a partitioned join comes about at many sites.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from watersmeet.cost.workload import F64, I64, Workload
from watersmeet.errors import InputError
from watersmeet.plan.nodes import HashParts, JoinNode, Leaf, Partition, RangeParts, Tree, ValueParts, leaves_of
from watersmeet.planners.trees import TUPLES, Shipping, cost_of, shipments_of, stream_join_opt

Parts = HashParts | RangeParts | ValueParts
PartMethod = Literal["hash", "range", "rate"]
METHODS: tuple[PartMethod, ...] = ("hash", "range", "rate")
PickMethod = Literal["heuristic", "random", "alternative"]
PartitionedTrees = tuple[tuple[JoinNode, ...], Partition | None]  # trees, and which values each is for
SubPlans = PartitionedTrees  # its former name


def hash_parts(workload: Workload, key_class: int, parts: int) -> tuple[I64, Parts]:
    """Values by a hash of them: the part of each cell, by its lowest value, and how to tell; parts can be empty."""
    return _assigned(workload, key_class, HashParts(tuple(range(_positive(parts)))))


def range_parts(workload: Workload, key_class: int, parts: int) -> tuple[I64, Parts]:
    """Values by equal ranges of theirs, each up to the next cell: the part of each cell, and how to tell."""
    domain = workload.domains[key_class]
    if _positive(parts) == 1 or not domain.cells:
        return _assigned(workload, key_class, RangeParts((), (0,)))
    lowest, width = int(domain.low[0]), int(domain.high[-1]) - int(domain.low[0]) + 1
    edges = [lowest + width * number // parts for number in range(1, parts)]
    cells = np.unique(np.searchsorted(domain.low, np.array(edges, np.int64)))
    bounds = domain.low[cells[(cells > 0) & (cells < domain.cells)]]
    return _assigned(
        workload, key_class, RangeParts(tuple(int(bound) for bound in bounds), tuple(range(len(bounds) + 1)))
    )


def rate_parts(workload: Workload, key_class: int, parts: int, seed: int = 0) -> tuple[I64, Parts]:
    """Values by how the rates of the streams rank at them: the part of each cell, and how to tell.

    Cells with the same ranks stay together, unless there are enough parts for each cell to have its own.
    """
    domain = workload.domains[key_class]
    if _positive(parts) >= domain.cells:
        labels = np.arange(domain.cells)
    else:
        labels = clusters(rank_vectors(workload, key_class), parts, seed)
    one_value = bool(np.all(domain.low == domain.high))
    if one_value and domain.cells:
        return _assigned(workload, key_class, _value_parts(workload, key_class, labels))
    return _assigned(workload, key_class, _cell_ranges(domain.low, labels))


def rank_vectors(workload: Workload, key_class: int) -> F64:
    """For each cell, the place of every member of the key class in ascending order of its rate of one value."""
    domain = workload.domains[key_class]
    rates = (workload.rate[:, None] * domain.shares / domain.size)[domain.members]
    order = np.argsort(rates, axis=0, kind="stable")
    ranks: F64 = np.argsort(order, axis=0).T.astype(float)
    return ranks


def clusters(points: F64, parts: int, seed: int) -> I64:
    """Points in at most so many clusters, numbered as they first occur."""
    distinct, which = np.unique(points, axis=0, return_inverse=True)
    labels = which.reshape(-1)
    if parts < len(distinct):
        from scipy.cluster.vq import kmeans2  # type: ignore[import-untyped]  # takes a third of a second

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of empty clusters: they are left out below
            _, labels = kmeans2(points, parts, minit="++", rng=np.random.default_rng(seed))
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    numbers: I64 = np.argsort(np.argsort(first)).astype(np.int64)[labels.reshape(-1)]
    return numbers


def _positive(parts: int) -> int:
    if parts < 1:
        raise InputError(f"key values cannot be split into {parts} parts: ask for one or more")
    return parts


def _assigned(workload: Workload, key_class: int, parts: Parts) -> tuple[I64, Parts]:
    return workload.sub_plan_of_cells(Partition(key_class, parts)), parts


def _value_parts(workload: Workload, key_class: int, sub_plans: I64) -> ValueParts:
    """One-value cells each with its sub-plan; values that are not known go where most rows go."""
    others = _busiest(workload, key_class, sub_plans)
    listed = sub_plans != others
    values = workload.domains[key_class].low[listed]
    return ValueParts(
        tuple(int(value) for value in values), tuple(int(sub_plan) for sub_plan in sub_plans[listed]), others
    )


def _cell_ranges(low: I64, sub_plans: I64) -> RangeParts:
    """Ranges from each cell's lowest value up to the next cell that has another sub-plan."""
    if not len(sub_plans):
        return RangeParts((), (0,))
    starts = np.flatnonzero(np.diff(sub_plans)) + 1
    return RangeParts(
        tuple(int(value) for value in low[starts]), tuple(int(sub_plan) for sub_plan in sub_plans[[0, *starts]])
    )


def _busiest(workload: Workload, key_class: int, sub_plans: I64) -> int:
    """The sub-plan of most rows."""
    rows = (workload.rate[:, None] * workload.domains[key_class].shares).sum(axis=0)
    return int(np.bincount(sub_plans, rows).argmax()) if len(sub_plans) else 0


def partitioned(
    workload: Workload, key_class: int, parts: Parts, plan_one: Callable[[Workload], JoinNode]
) -> PartitionedTrees:
    """Each part planned for itself; parts with the same tree share one sub-plan, and a single one needs no partition.

    A part that no known value falls into goes with the part of most rows.
    """
    partition = Partition(key_class, parts)
    part_of = workload.sub_plan_of_cells(partition)
    trees = {int(part): plan_one(workload.limited(partition, part_of == part)) for part in np.unique(part_of)} or {
        0: plan_one(workload)
    }
    sub_plans = tuple(dict.fromkeys(trees.values()))
    if len(sub_plans) == 1:
        return sub_plans, None
    number = {tree: sub_plan for sub_plan, tree in enumerate(sub_plans)}
    default = number[trees[_busiest(workload, key_class, part_of)]]
    sub_plan_of = {part: number[tree] for part, tree in trees.items()}
    return sub_plans, Partition(key_class, _renumbered(parts, lambda part: sub_plan_of.get(part, default)))


def _renumbered(parts: Parts, sub_plan_of: Callable[[int], int]) -> Parts:
    """The same parts with other sub-plans, in as few ranges and values as will do."""
    match parts:
        case HashParts(sub_plans):
            return HashParts(tuple(sub_plan_of(sub_plan) for sub_plan in sub_plans))
        case RangeParts(bounds, sub_plans):
            numbers = np.array([sub_plan_of(sub_plan) for sub_plan in sub_plans], np.int64)
            starts = np.array([bounds[0] if bounds else 0, *bounds], np.int64)  # the first range has no start
            return _cell_ranges(starts, numbers)
        case ValueParts(values, sub_plans, others):
            default = sub_plan_of(others)
            kept = [
                (value, sub_plan_of(sub_plan))
                for value, sub_plan in zip(values, sub_plans, strict=True)
                if sub_plan_of(sub_plan) != default
            ]
            return ValueParts(tuple(value for value, _ in kept), tuple(sub_plan for _, sub_plan in kept), default)


def cost_of_sub_plans(
    sub_plans: Sequence[JoinNode],
    partition: Partition | None,
    workload: Workload,
    weigh: Shipping = TUPLES,
    *,
    deliver: bool = False,
) -> float:
    """What all sub-plans ship a second; what has no value of the partition's key and is the same in several, once."""
    if partition is None:
        (only,) = sub_plans
        return cost_of(only, workload, weigh, deliver=deliver)
    sub_plan_of, domain = workload.sub_plan_of_cells(partition), workload.domains[partition.key_class]
    keyed = workload.mask(alias for alias, is_in in zip(workload.aliases, domain.members, strict=True) if is_in)
    total, common = 0.0, set()
    for number, tree in enumerate(sub_plans):
        part = workload.limited(partition, sub_plan_of == number)
        for shipment in shipments_of(tree, workload, deliver=deliver):
            if shipment.mask & keyed:
                total += part.combination_rate(shipment.mask) * weigh.weight(
                    part, shipment.mask, shipment.origin, shipment.to
                )
            else:
                common.add((shipment.mask, shipment.origin, shipment.to))
    return total + sum(
        workload.combination_rate(mask) * weigh.weight(workload, mask, origin, to)
        for mask, origin, to in sorted(common)
    )


@dataclass(frozen=True, slots=True)
class Pick:
    """A join node that can be partitioned by one key class, with those below it on the same key merged in."""

    node: JoinNode
    inputs: tuple[Tree, ...]
    key_class: int
    above: JoinNode | None = None  # the join node of the pick that this one feeds, if any

    @property
    def aliases(self) -> frozenset[str]:
        return frozenset(leaves_of(self.node))

    def clashes(self, other: "Pick") -> bool:
        """Whether one of them feeds the other."""
        return self.above == other.node or other.above == self.node


def candidates(tree: Tree, workload: Workload) -> tuple[Pick, ...]:
    """The paper's algorithm 2: what can be partitioned, from the root down."""
    return tuple(_candidates(tree, workload, gives_place=False, above=None))


def _candidates(tree: Tree, workload: Workload, *, gives_place: bool, above: JoinNode | None) -> Iterator[Pick]:
    if isinstance(tree, Leaf):
        return
    key_class = None if gives_place else _only_key(tree, workload)
    if key_class is None:
        below = [(item.node, place == 0) for place, item in enumerate(tree.inputs)]
    else:
        below = _merged(tree, key_class, workload)
        yield Pick(tree, tuple(node for node, _ in below), key_class, above)
    for node, first in below:
        yield from _candidates(node, workload, gives_place=first, above=None if key_class is None else tree)


def _only_key(node: JoinNode, workload: Workload) -> int | None:
    """The key class that all predicates of a join node are on, if there is one."""
    masks = [workload.mask(leaves_of(item.node)) for item in node.inputs]
    tying = {
        number for place, mask in enumerate(masks) for other in masks[:place] for number in workload.shared(mask, other)
    }
    return tying.pop() if len(tying) == 1 else None


def _merged(node: JoinNode, key_class: int, workload: Workload) -> list[tuple[Tree, bool]]:
    """The inputs of a join node, with the inputs of those on the same key in place of them; and which came first."""
    found: list[tuple[Tree, bool]] = []
    for place, item in enumerate(node.inputs):
        if isinstance(item.node, JoinNode) and _only_key(item.node, workload) == key_class:
            found += _merged(item.node, key_class, workload)
        else:
            found.append((item.node, place == 0))
    return found


def find_partition(tree: Tree, workload: Workload, pick: PickMethod = "heuristic", seed: int = 0) -> tuple[Pick, ...]:
    """Which join nodes of a tree to partition, best first: always that with most input that clashes with none before.

    For comparison, `random` takes them in any order, and `alternative` from among those that the heuristic leaves.
    """
    found = sorted(
        candidates(tree, workload),
        key=lambda candidate: (-_input_rate(candidate, workload), _order(candidate, workload)),
    )
    if pick == "random":
        return _compatible([found[place] for place in np.random.default_rng(seed).permutation(len(found))])
    taken = _compatible(found)
    return taken if pick == "heuristic" else _compatible([candidate for candidate in found if candidate not in taken])


def _compatible(found: Sequence[Pick]) -> tuple[Pick, ...]:
    taken: list[Pick] = []
    for candidate in found:
        if not any(candidate.clashes(other) for other in taken):
            taken.append(candidate)
    return tuple(taken)


def _input_rate(pick: Pick, workload: Workload) -> float:
    return sum(workload.combination_rate(workload.mask(leaves_of(node))) for node in pick.inputs)


def _order(pick: Pick, workload: Workload) -> tuple[int, ...]:
    return tuple(sorted(workload.number(alias) for alias in pick.aliases))


def parts_of(workload: Workload, key_class: int, method: PartMethod, parts: int, seed: int = 0) -> Parts:
    """The parts of a key class by one of the three methods."""
    match method:
        case "hash":
            return hash_parts(workload, key_class, parts)[1]
        case "range":
            return range_parts(workload, key_class, parts)[1]
        case "rate":
            return rate_parts(workload, key_class, parts, seed)[1]


def pmjoin_plan(
    workload: Workload,
    method: PartMethod,
    parts: int,
    weigh: Shipping = TUPLES,
    *,
    pick: PickMethod = "heuristic",
    seed: int = 0,
) -> PartitionedTrees:
    """PMJoin: a tree by algorithm 1 for each part of the values of one key class.

    A plan is partitioned by one key class as a whole. Where joins are on several, it is the class of the best pick:
    the picks on that class are planned anew for each part, and the rest of the tree stays as it is without parts.
    The paper partitions picks on other classes too, each by its own; those are left whole here.
    """
    tree = stream_join_opt(workload, weigh)
    plans = plans_by_class(tree, workload, method, parts, weigh, pick=pick, seed=seed)
    return next(plans, ((tree,), None))


def plans_by_class(
    tree: JoinNode,
    workload: Workload,
    method: PartMethod,
    parts: int,
    weigh: Shipping = TUPLES,
    *,
    pick: PickMethod = "heuristic",
    seed: int = 0,
) -> Iterator[PartitionedTrees]:
    """For each key class that picks of a tree are on, that of the best pick first: the tree with these partitioned.

    No pick is fed by another, so each of these plans ships what the tree does but for its own picks.
    """
    picked = find_partition(tree, workload, pick, seed)
    for key_class in dict.fromkeys(pick.key_class for pick in picked):
        again = {pick.node: pick for pick in picked if pick.key_class == key_class}
        yield partitioned(
            workload,
            key_class,
            parts_of(workload, key_class, method, parts, seed),
            partial(_replanned, tree, again, weigh),
        )


def pmjoin_cost(
    workload: Workload,
    method: PartMethod,
    parts: int,
    weigh: Shipping = TUPLES,
    *,
    pick: PickMethod = "heuristic",
    seed: int = 0,
) -> float:
    """What the paper's own scheme would ship a second, with every pick partitioned by its own key class."""
    tree = stream_join_opt(workload, weigh)
    return cost_of(tree, workload, weigh) - sum(
        saving_of(picked, tree, workload, parts_of(workload, picked.key_class, method, parts, seed), weigh)
        for picked in find_partition(tree, workload, pick, seed)
    )


def saving_of(picked: Pick, tree: JoinNode, workload: Workload, parts: Parts, weigh: Shipping = TUPLES) -> float:
    """What is shipped less a second if one join node of a tree is planned anew for each part of its key's values."""
    sub_plans, partition = partitioned(
        workload, picked.key_class, parts, partial(_replanned, tree, {picked.node: picked}, weigh)
    )
    return cost_of(tree, workload, weigh) - cost_of_sub_plans(sub_plans, partition, workload, weigh)


def _replanned(tree: JoinNode, picked: dict[JoinNode, Pick], weigh: Shipping, part: Workload) -> JoinNode:
    """A tree with some of its join nodes planned anew for a part of the values."""
    found = picked.get(tree)
    if found is not None:
        return stream_join_opt(part, weigh, [_below(node, picked, weigh, part) for node in found.inputs])
    return JoinNode(tree.at, tuple(replace(i, node=_below(i.node, picked, weigh, part)) for i in tree.inputs))


def _below(tree: Tree, picked: dict[JoinNode, Pick], weigh: Shipping, part: Workload) -> Tree:
    return tree if isinstance(tree, Leaf) else _replanned(tree, picked, weigh, part)
