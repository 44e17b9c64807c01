"""The plans of random trials: methods and sites of one-way joins, trees, and parts of the key space."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from watersmeet.plan.nodes import (
    HashParts,
    HeadPlan,
    Hop,
    Input,
    JoinNode,
    JoinPlan,
    KeyClass,
    Leaf,
    Linear,
    Method,
    Partition,
    RangeParts,
    Reducer,
    Reduction,
    SubPlan,
    Tree,
    ValueParts,
    leaves_of,
)
from watersmeet.planners.local import symmetric
from watersmeet.planners.sited import placed
from watersmeet.query.windows import AsOf, counted


def drawn_hops(random: Random, aliases: Sequence[str], sites: Sequence[str]) -> dict[str, tuple[Hop, ...]]:
    """Any order, method and place for every head; a head left out goes as in `central`."""
    only = random.choice([*Method, *[None] * 12])
    plan = {}
    for head in aliases:
        if random.random() < 0.1:
            continue
        others = [alias for alias in aliases if alias != head]
        plan[head] = tuple(_hop(random, alias, only, sites) for alias in random.sample(others, len(others)))
    return plan


def _hop(random: Random, alias: str, only: Method | None, sites: Sequence[str]) -> Hop:
    method = only or random.choice(list(Method))
    at = random.choice(sites) if random.random() < 0.15 else None
    return Hop(alias, method, at, bloom=method.startswith("SM") and random.random() < 0.4)


def mixed_plan(random: Random, join: JoinPlan, sites: Sequence[str]) -> JoinPlan:
    """Up to four sub-plans, linear, trees or symmetric joins, each for a part of the values of some key."""
    exact = [key_class for key_class in join.classes if key_class.exact]
    count = random.randint(1, 4) if exact else 1
    sub_plans = tuple(_sub_plan(random, join, sites) for _ in range(count))
    partition = _partition(random, random.choice(exact), count) if count > 1 else None
    return replace(join, sub_plans=sub_plans, partition=partition)


def meeting_plan(random: Random, join: JoinPlan, sites: Sequence[str]) -> SubPlan:
    """All joins at one site, which fetches or is sent rows that are reduced: a tree, or a sequence for each head."""
    aliases, at = [scan.alias for scan in join.scans], random.choice(sites)
    if random.random() < 0.5 and not _is_refreshed(join):
        first, *others = random.sample(aliases, len(aliases))
        return _joined(random, join, at, [Leaf(first), *map(Leaf, others)])
    heads = []
    for head in aliases:
        others = random.sample([alias for alias in aliases if alias != head], len(aliases) - 1)
        some = [Method.SM_S1, Method.SM_S1, Method.SM_S2, Method.SP_S, Method.SM_D1, Method.SM_D2]
        methods = [random.choice(some) for _ in others]
        blooms = [method is not Method.SP_S and random.random() < 0.3 for method in methods]
        hops = (Hop(*other) for other in zip(others, methods, [at] * len(others), blooms, strict=True))
        heads.append(HeadPlan(head, tuple(hops)))
    return Linear(tuple(heads))


def _partition(random: Random, key: KeyClass, sub_plans: int) -> Partition:
    match random.choice("hrv"):
        case "h":
            return Partition(
                key.number, HashParts(tuple(random.randrange(sub_plans) for _ in range(random.randint(1, 6))))
            )
        case "r":
            bounds = tuple(sorted(random.sample(range(-1, 8), random.randint(1, 4))))
            return Partition(key.number, RangeParts(bounds, tuple(random.randrange(sub_plans) for _ in (*bounds, 0))))
        case _:
            values = tuple(sorted(random.sample(range(7), random.randint(0, 4))))
            return Partition(
                key.number,
                ValueParts(values, tuple(random.randrange(sub_plans) for _ in values), random.randrange(sub_plans)),
            )


def _sub_plan(random: Random, join: JoinPlan, sites: Sequence[str]) -> SubPlan:
    aliases = tuple(scan.alias for scan in join.scans)
    counts_rows = any(counted(scan.window) is not None for scan in join.scans)  # then symmetric joins wait for longer
    if _is_refreshed(join) or random.random() < (0.6 if counts_rows else 0.3):
        drawn = drawn_hops(random, aliases, sites)
        plan = {head: tuple(placed(hop, join.home(hop.alias)) for hop in hops) for head, hops in drawn.items()}
        asked = {head.head: head for head in join.heads}
        return Linear(tuple(HeadPlan(head, plan[head]) if head in plan else asked[head] for head in aliases))
    if not counts_rows and random.random() < 0.2:
        return symmetric(aliases, join.classes, random.choice(sites))
    nodes: list[Tree] = [Leaf(alias) for alias in random.sample(aliases, len(aliases))]
    while len(nodes) > 1:
        chosen = [nodes.pop(random.randrange(len(nodes))) for _ in range(min(len(nodes), random.choice([2, 2, 3])))]
        places = [*sites, *(join.home(node.alias) for node in chosen if isinstance(node, Leaf))]
        nodes.append(_joined(random, join, random.choice(places), chosen))
    (root,) = nodes
    assert isinstance(root, JoinNode)
    return root


def _is_refreshed(join: JoinPlan) -> bool:
    """Whether tables are read anew, which trees cannot have."""
    return any(scan.window == AsOf(is_refreshed=True) for scan in join.scans)


def _joined(random: Random, join: JoinPlan, at: str, nodes: Sequence[Tree]) -> JoinNode:
    """A join node; its inputs are reduced in any way, but where rows are counted."""
    first, *others = nodes
    if any(counted(join.scan(alias).window) is not None for node in nodes for alias in leaves_of(node)):
        return JoinNode(at, tuple(Input(node) for node in nodes))
    inputs = [Input(first), *(_input(random, node) for node in others)]
    return JoinNode(at, tuple(replace(one, reducers=_reducers(join, at, one.node)) for one in inputs))


def _input(random: Random, node: Tree) -> Input:
    reduction = random.choice(list(Reduction))
    return Input(node, reduction, bloom=reduction is not Reduction.NONE and random.random() < 0.4)


def _reducers(join: JoinPlan, at: str, node: Tree) -> tuple[Reducer, ...]:
    """Streams that an input is reduced by before it travels; drawn apart, so that seeds keep what else they draw."""
    own = leaves_of(node)
    chance = Random(f"{at} {own}")
    tied = [
        scan.alias
        for scan in join.scans
        if scan.alias not in own
        and counted(scan.window) is None
        and any(one.member(scan.alias) and any(one.member(alias) for alias in own) for one in join.classes)
    ]
    if chance.random() < 0.5:
        return ()
    some = chance.sample(tied, chance.randint(0, len(tied)))
    return tuple(Reducer(alias, bloom=chance.random() < 0.4) for alias in some)
