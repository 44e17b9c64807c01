"""Trees of join nodes that ship little: PMJoin's algorithm 1 (section 3.2), its two references, and the exact optimum.

What a plan costs is what its links carry: rate times weight of every stream and result that leaves its site. The rate
of a result does not depend on how it came about. Algorithm 1 first joins streams of one site where that thins them
out. Then it takes the slowest stream and, again and again, the partner that promises to be cheapest: either they meet
at the partner's site and the result may travel on, or both stay pending until they meet at a third. The optimum is
a dynamic program over sets A of streams and sites s,

    local(A, s) = min over B in A of  unit(B, s) + local(A - B, s)     all of A at s, as inputs of one join node
    unit(A, s)  = min over sites t of local(A, t) + rate(A) * weight   A joined at t, shipped from t to s

Delivering the answers is no part of algorithm 1; the optimum counts it where that is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from watersmeet.cost.sizes import size_at
from watersmeet.cost.workload import F64, I64, Workload, members_of
from watersmeet.errors import InputError
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Tree, leaves_of
from watersmeet.stats.model import BATCH_ROWS as ROWS_KNOWN
from watersmeet.stats.model import BytesByBatch

MOST_STREAMS = 16  # of an exact optimum: its work grows with three to the power of their number
BATCH_ROWS = 100.0
_CHUNK_NUMBERS = 1 << 20


def _one(workload: Workload, mask: int) -> float:
    return 1.0


def _bytes(workload: Workload, mask: int) -> float:
    each = _alias_bytes(workload.sizes)
    return sum(each[alias] for alias in members_of(mask))


@lru_cache(maxsize=64)
def _alias_bytes(sizes: tuple[tuple[BytesByBatch, ...], ...]) -> tuple[float, ...]:
    return tuple(float(size_at(np.reshape(own, (-1, len(ROWS_KNOWN))), BATCH_ROWS).sum()) for own in sizes)


def _same(origin: str, to: str) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class Shipping:
    """What it costs to ship one row: a weight by the set of aliases it combines, times one by the link it takes.

    The set of all aliases travels only as answers.
    """

    row: Callable[[Workload, int], float] = _one
    link: Callable[[str, str], float] = _same

    def weight(self, workload: Workload, mask: int, origin: str, to: str) -> float:
        """The cost of one row of a set of aliases from one site to another; staying costs nothing."""
        return 0.0 if origin == to else self.row(workload, mask) * self.link(origin, to)


TUPLES = Shipping()  # the paper's count
BYTES = Shipping(_bytes)  # a combination is as large as its rows together


@dataclass(frozen=True, slots=True)
class StreamTransfer:
    """A stream or result, as a set of aliases, on its way from one site to another."""

    mask: int
    origin: str
    to: str


def site_of(tree: Tree, workload: Workload) -> str:
    """Where the rows of a tree come about."""
    return tree.at if isinstance(tree, JoinNode) else workload.homes[workload.number(tree.alias)]


def shipments_of(tree: Tree, workload: Workload, *, deliver: bool = False) -> tuple[StreamTransfer, ...]:
    """Everything that a tree sends from one site to another, and if asked for the answers on their way."""
    found = [*_inner_shipments(tree, workload)]
    origin = site_of(tree, workload)
    if deliver and workload.site is not None and origin != workload.site:
        found.append(StreamTransfer(workload.mask(leaves_of(tree)), origin, workload.site))
    return tuple(found)


def _inner_shipments(tree: Tree, workload: Workload) -> Iterator[StreamTransfer]:
    if isinstance(tree, Leaf):
        return
    for item in tree.inputs:
        yield from _inner_shipments(item.node, workload)
        origin = site_of(item.node, workload)
        if origin != tree.at:
            yield StreamTransfer(workload.mask(leaves_of(item.node)), origin, tree.at)


def cost_of(tree: Tree, workload: Workload, weigh: Shipping = TUPLES, *, deliver: bool = False) -> float:
    """What a tree ships a second."""
    return sum(
        workload.combination_rate(shipment.mask) * weigh.weight(workload, shipment.mask, shipment.origin, shipment.to)
        for shipment in shipments_of(tree, workload, deliver=deliver)
    )


@dataclass(frozen=True, slots=True)
class _Flow:
    """A stream or result: what makes it, where, how many rows a second and in its window, and how keys spread."""

    mask: int
    node: Tree
    at: str
    rate: float
    window: float
    shares: tuple[F64 | None, ...]  # by key class: of each cell, adding up to 1

    @property
    def first(self) -> int:
        return self.mask & -self.mask


def _leaf_flow(workload: Workload, number: int) -> _Flow:
    shares: list[F64 | None] = []
    known = 1.0  # the share of rows whose values are all known
    for domain in workload.domains:
        own = domain.shares[number]
        total = float(own.sum())
        shares.append((own / total if total else own) if domain.members[number] else None)
        known *= total if domain.members[number] else 1.0
    rate, window = float(workload.rate[number]) * known, float(workload.window[number]) * known
    return _Flow(1 << number, Leaf(workload.aliases[number]), workload.homes[number], rate, window, tuple(shares))


def _flow(workload: Workload, tree: Tree) -> _Flow:
    """The rows of a tree."""
    first, *others = (_leaf_flow(workload, workload.number(alias)) for alias in leaves_of(tree))
    for other in others:
        first = _joined(workload, first, other, tree, "")
    return _Flow(first.mask, tree, site_of(tree, workload), first.rate, first.window, first.shares)


def _joined(workload: Workload, left: _Flow, right: _Flow, node: Tree, at: str) -> _Flow:
    """The join of two flows by the paper's equations 2 and 3, with the shares that equation 2 leaves to the next."""
    shares: list[F64 | None] = []
    agree = 1.0
    for domain, mine, yours in zip(workload.domains, left.shares, right.shares, strict=True):
        if mine is None or yours is None:
            shares.append(yours if mine is None else mine)
            continue
        common = mine * yours / domain.size
        total = float(common.sum())
        shares.append(common / total if total else common)
        agree *= total
    rate = agree * (left.rate * right.window + right.rate * left.window)
    return _Flow(left.mask | right.mask, node, at, rate, agree * left.window * right.window, tuple(shares))


def _joined_rate(workload: Workload, left: _Flow, right: _Flow) -> float:
    agree = 1.0
    for domain, mine, yours in zip(workload.domains, left.shares, right.shares, strict=True):
        if mine is not None and yours is not None:
            agree *= float(np.dot(mine / domain.size, yours))
    return agree * (left.rate * right.window + right.rate * left.window)


def _tied(left: _Flow, right: _Flow) -> bool:
    """Whether a key class ties two flows."""
    return any(mine is not None and yours is not None for mine, yours in zip(left.shares, right.shares, strict=True))


def _join_node(workload: Workload, at: str, nodes: Iterable[Tree]) -> JoinNode:
    """A join node with what is at its own site first."""
    return JoinNode(at, tuple(Input(node) for node in sorted(nodes, key=lambda node: site_of(node, workload) != at)))


def stream_join_opt(workload: Workload, weigh: Shipping = TUPLES, inputs: Sequence[Tree] | None = None) -> JoinNode:
    """The paper's algorithm 1, over all streams or over the trees given."""
    flows = _checked(workload, inputs)
    by_site = _by_site(flows)
    return _second_part(workload, weigh, [flow for own in by_site for flow in _thinned(workload, weigh, own)])


def local_first(workload: Workload, weigh: Shipping = TUPLES) -> JoinNode:
    """Algorithm 1, but with all streams of a site joined first whatever comes of it (the paper's Local)."""
    flows: list[_Flow] = []
    for own in _by_site(_checked(workload, None)):
        for group in _groups(own):
            flows.append(_collapsed(workload, group[0], group[1:]) if len(group) > 1 else group[0])
    return _second_part(workload, weigh, flows)


def simple(workload: Workload, weigh: Shipping = TUPLES) -> JoinNode:
    """Everything to the site of the fastest stream (the paper's Simple)."""
    flows = _checked(workload, None)
    fastest = min(flows, key=lambda flow: (-_volume(workload, weigh, flow), flow.first))
    others = [flow.node for flow in flows if flow is not fastest]
    return _join_node(workload, fastest.at, [fastest.node, *others])


def _checked(workload: Workload, inputs: Sequence[Tree] | None) -> list[_Flow]:
    """The flows to join, in the order of their aliases; each is tied to the others."""
    trees = [Leaf(alias) for alias in workload.aliases] if inputs is None else inputs
    flows = sorted((_flow(workload, tree) for tree in trees), key=lambda flow: flow.first)
    if len(flows) < 2:
        raise InputError("a tree joins two streams or more: name another stream in the query")
    groups = _groups(flows)
    if len(groups) > 1:
        main = max(groups, key=len)
        apart = [flow.mask for group in groups if group is not main for flow in group]
        names = [workload.aliases[number] for number in members_of(sum(apart))]
        raise InputError(f"nothing ties {', '.join(names)} to the other streams: add an equality that does")
    return flows


def _groups(flows: Sequence[_Flow]) -> list[list[_Flow]]:
    """Flows that key classes tie, directly or through each other."""
    groups: list[list[_Flow]] = []
    for flow in flows:
        tied = [group for group in groups if any(_tied(flow, other) for other in group)]
        groups = [group for group in groups if not any(group is joined for joined in tied)]
        groups.append([*(other for group in tied for other in group), flow])
    return groups


def _by_site(flows: Iterable[_Flow]) -> list[list[_Flow]]:
    sites: dict[str, list[_Flow]] = {}
    for flow in flows:
        sites.setdefault(flow.at, []).append(flow)
    return list(sites.values())


def _volume(workload: Workload, weigh: Shipping, flow: _Flow) -> float:
    """What a flow would cost on a link of weight 1."""
    return flow.rate * weigh.row(workload, flow.mask)


def _thinned(workload: Workload, weigh: Shipping, own: Sequence[_Flow]) -> list[_Flow]:
    """The flows of one site once those joins are made that give less than their slower input (lines 2 to 9)."""
    flows = sorted(own, key=lambda flow: (_volume(workload, weigh, flow), flow.first))
    done: list[_Flow] = []
    while flows:
        slower, *flows = flows
        rest = []
        for other in flows:
            rate = _joined_rate(workload, slower, other) if _tied(slower, other) else np.inf
            if rate * weigh.row(workload, slower.mask | other.mask) < _volume(workload, weigh, slower):
                slower = _joined(
                    workload, slower, other, _join_node(workload, slower.at, [slower.node, other.node]), own[0].at
                )
            else:
                rest.append(other)
        done.append(slower)
        flows = rest
    return done


def _collapsed(workload: Workload, there: _Flow, pending: Sequence[_Flow]) -> _Flow:
    """Pending flows joined with another at the site of that."""
    result = there
    for other in pending:
        result = _joined(workload, result, other, result.node, result.at)
    node = JoinNode(there.at, tuple(Input(flow.node) for flow in (there, *pending)))
    return _Flow(result.mask, node, there.at, result.rate, result.window, result.shares)


def _second_part(workload: Workload, weigh: Shipping, flows: list[_Flow]) -> JoinNode:
    """Lines 10 to 28: the slowest flow and the partner that eq. 4 finds cheapest, until one flow is left."""
    away = _away(workload, weigh, flows)
    while len(flows) > 1:
        slowest = min(flows, key=lambda flow: (_volume(workload, weigh, flow), flow.first))
        flows = [flow for flow in flows if flow is not slowest]
        pending, together = [slowest], slowest
        while True:
            leaving = sum(_volume(workload, weigh, flow) * away[flow.at] for flow in pending)
            offers = []
            for other in flows:
                if not _tied(together, other):
                    continue
                arriving = sum(flow.rate * weigh.weight(workload, flow.mask, flow.at, other.at) for flow in pending)
                result = _joined_rate(workload, together, other) * weigh.row(workload, together.mask | other.mask)
                there = arriving + result * away[other.at]
                third = leaving + _volume(workload, weigh, other) * away[other.at]
                offers.append((min(there, third), other.first, there <= third, other))
            _, _, is_there, chosen = min(offers, key=lambda offer: offer[:2])
            flows = [flow for flow in flows if flow is not chosen]
            if is_there or not flows:  # with nobody left there is no third site
                flows.append(_collapsed(workload, chosen, pending))
                break
            pending.append(chosen)
            together = _joined(workload, together, chosen, together.node, together.at)
    (only,) = flows
    assert isinstance(only.node, JoinNode)
    return only.node


def _away(workload: Workload, weigh: Shipping, flows: Iterable[_Flow]) -> dict[str, float]:
    """The weight of a link from each site to one that is not chosen yet: the mean over all others."""
    sites = list(dict.fromkeys([*_sites(workload), *(flow.at for flow in flows)]))
    return {
        site: float(np.mean([weigh.link(site, other) for other in sites if other != site])) if len(sites) > 1 else 1.0
        for site in sites
    }


def _sites(workload: Workload) -> list[str]:
    """The sites that a join node can be at, each once."""
    return list(dict.fromkeys([*workload.homes, *([workload.site] if workload.site is not None else [])]))


def rates_of_all(workload: Workload) -> F64:
    """`combination_rate` of every set of aliases, by its bits; nobody's rate is 0."""
    count = len(workload.aliases)
    combinations, rate = np.ones(1 << count), np.zeros(1 << count)
    for number in range(count):
        low, high = slice(0, 1 << number), slice(1 << number, 2 << number)
        combinations[high] = combinations[low] * workload.window[number]
        rate[high] = rate[low] * workload.window[number] + combinations[low] * workload.rate[number]
    for number in range(len(workload.domains)):
        rate *= _selectivity_of_all(workload, number)
    return rate * workload.left_by_conditions(np.arange(1 << count))


def _selectivity_of_all(workload: Workload, key_class: int) -> F64:
    """The share of combinations that agree on a key class, for every set of aliases by its bits."""
    domain, count = workload.domains[key_class], len(workload.aliases)
    chunk = max(1, _CHUNK_NUMBERS >> count)
    total = np.zeros(1 << count)
    for start in range(0, domain.cells, chunk):
        cells = slice(start, start + chunk)
        chance = np.empty((1 << count, len(domain.size[cells])))
        chance[0] = 1.0
        for number in range(count):
            factor = domain.shares[number, cells] / domain.size[cells] if domain.members[number] else 1.0
            np.multiply(chance[: 1 << number], factor, out=chance[1 << number : 2 << number])
        total += chance @ domain.size[cells]
    members = sum(1 << number for number in range(count) if domain.members[number])
    return np.where(np.arange(1 << count) & members, total, 1.0)


def _connected_sets(workload: Workload) -> NDArray[np.bool_]:
    """Which sets of aliases key classes hold together, by their bits."""
    count = len(workload.aliases)
    near = [
        sum(1 << other for other in range(count) if workload.shared(1 << alias, 1 << other)) for alias in range(count)
    ]
    every = np.arange(1 << count)
    reached, before = every & -every, np.full(1 << count, -1)
    while not np.array_equal(reached, before):
        before = reached
        for alias in range(count):
            reached = np.where(reached >> alias & 1, reached | near[alias] & every, reached)
    whole: NDArray[np.bool_] = reached == every
    return whole


def optimal(workload: Workload, weigh: Shipping = TUPLES, *, deliver: bool = False) -> JoinNode:
    """A tree that ships the least of all trees with all placements, of up to 16 streams."""
    count = len(workload.aliases)
    if count > MOST_STREAMS:
        raise InputError(
            f"the exact optimum is for up to {MOST_STREAMS} streams and the query has {count}: "
            "choose another planner for it"
        )
    _checked(workload, None)
    return _Optimum(workload, weigh).tree(deliver=deliver)


class _Optimum:
    """The tables of the dynamic program: least costs by set and site, and how each came about."""

    def __init__(self, workload: Workload, weigh: Shipping) -> None:
        self._workload, self._sites = workload, _sites(workload)
        self._link = np.array([[weigh.link(t, s) if t != s else 0.0 for s in self._sites] for t in self._sites])
        rates, self._connected = rates_of_all(workload), _connected_sets(workload)
        self._volume = np.array(
            [rates[mask] * weigh.row(workload, mask) if mask else 0.0 for mask in range(len(rates))]
        )
        shape = (len(rates), len(self._sites))
        self._local = np.full(shape, np.inf)
        self._have = np.full(shape, np.inf)  # `unit` of a set that is held together, else `local`
        self._split = np.zeros(shape, np.int64)
        self._origin = np.zeros(shape, np.int64)
        for mask in range(1, len(rates)):
            self._fill(mask)

    def _fill(self, mask: int) -> None:
        first, numbers = mask & -mask, np.arange(len(self._sites))
        rest = mask ^ first
        if not rest:
            home = self._sites.index(self._workload.homes[mask.bit_length() - 1])
            self._local[mask, home] = 0.0
            self._have[mask] = self._volume[mask] * self._link[home]
            self._origin[mask] = home
            return
        with_first = first | _subsets(rest)[:-1]
        costs = self._have[with_first] + self._have[mask ^ with_first]
        best = costs.argmin(axis=0)
        self._split[mask] = with_first[best]
        self._local[mask] = costs[best, numbers]
        if not self._connected[mask]:
            self._have[mask], self._origin[mask] = self._local[mask], numbers
            return
        shipped = self._local[mask][:, None] + self._volume[mask] * self._link
        origin = shipped.argmin(axis=0)
        origin = np.where(shipped[numbers, numbers] <= shipped[origin, numbers], numbers, origin)
        self._origin[mask] = origin
        self._have[mask] = shipped[origin, numbers]

    def tree(self, *, deliver: bool) -> JoinNode:
        everything = len(self._have) - 1
        costs = self._local[everything]
        if deliver and self._workload.site is not None:
            costs = costs + self._volume[everything] * self._link[:, self._sites.index(self._workload.site)]
        return self._join_node(everything, int(costs.argmin()))

    def _join_node(self, mask: int, site: int) -> JoinNode:
        with_first = int(self._split[mask, site])
        nodes = [*self._inputs(with_first, site), *self._inputs(mask ^ with_first, site)]
        nodes.sort(key=lambda node: self._workload.number(leaves_of(node)[0]))
        return _join_node(self._workload, self._sites[site], nodes)

    def _inputs(self, mask: int, site: int) -> list[Tree]:
        """What brings a set to a site."""
        if mask & (mask - 1) == 0:
            return [Leaf(self._workload.aliases[mask.bit_length() - 1])]
        if self._origin[mask, site] != site:
            return [self._join_node(mask, int(self._origin[mask, site]))]
        with_first = int(self._split[mask, site])
        return [*self._inputs(with_first, site), *self._inputs(mask ^ with_first, site)]


def _subsets(mask: int) -> I64:
    """All subsets of a set, itself last."""
    found = np.zeros(1, np.int64)
    for alias in members_of(mask):
        found = np.concatenate([found, found | 1 << alias])
    return found
