"""Streams with known distributions, the exact figures of a query over them, and what its plans ship in the simulator.

Planners get the exact shares that rows are drawn from instead of estimates; what plans ship is counted on the links.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import process_time

import numpy as np
import pyarrow as pa

from watersmeet.cost.workload import F64, Domain, Workload
from watersmeet.plan.nodes import Input, JoinNode, Leaf, Plan, Tree, join_plan_of, leaves_of, with_join
from watersmeet.planners.partition import SubPlans
from watersmeet.planners.sited import central
from watersmeet.planners.trees import site_of
from watersmeet.program.operators import Purpose
from watersmeet.program.site.ledger import Traffic
from watersmeet.query.sql import parse_query
from watersmeet.reproduce.counting import RowsByValue, shipped_per_s
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites

EVENT_TIME = "ts"
MOST_PAIRS = 3_000_000.0  # combinations that one run may have to make; a plan that needs more is not run
_SECOND = 1_000_000


def uniform(values: int) -> F64:
    """All values alike."""
    return np.full(values, 1 / values)


def normal(values: int, deviation: float) -> F64:
    """A bell around the value in the middle; the deviation is a share of the range."""
    place = (np.arange(values) - (values - 1) / 2) / (deviation * values)
    return _whole(np.asarray(np.exp(-(place**2) / 2), float))


def zipf(values: int, theta: float) -> F64:
    """The i-th value has a weight of 1 / i ** theta."""
    return _whole(np.arange(1.0, values + 1) ** -theta)


def self_similar(values: int, h: float) -> F64:
    """The first h of the values have 1 - h of the weight, and so on within them.

    >>> self_similar(10, 0.2)[:2].sum().round(6)
    np.float64(0.8)
    """
    edges = (np.arange(values + 1) / values) ** (np.log(1 - h) / np.log(h))
    return _whole(np.asarray(np.diff(edges), float))


def _whole(weights: F64) -> F64:
    shares: F64 = weights / weights.sum()
    return shares


def similar_shares(rng: np.random.Generator, values: int) -> F64:
    """One of the paper's similar distributions: Zipf with a theta from 0.1 to 0.3."""
    return zipf(values, rng.uniform(0.1, 0.3))


def different_shares(rng: np.random.Generator, values: int) -> F64:
    """One of all the paper's distributions; a bell has a deviation of 5 to 50 % of the range."""
    match rng.integers(4):
        case 0:
            return uniform(values)
        case 1:
            return normal(values, rng.uniform(0.05, 0.5))
        case 2:
            return zipf(values, rng.uniform(0.1, 1.5))
        case _:
            return self_similar(values, rng.uniform(0.1, 0.9))


@dataclass(frozen=True, eq=False)
class WorkloadSource:
    """One stream: its home, rows a second, window, and the shares of the values of each key class that it has."""

    home: str
    rate: float
    window_s: float
    shares: Mapping[int, F64]


def workload_of_sources(sources: Sequence[WorkloadSource]) -> Workload:
    """The exact figures of the join of all sources on all keys that they share."""
    domains = []
    for number in sorted({number for source in sources for number in source.shares}):
        members = np.array([number in source.shares for source in sources])
        values = next(len(source.shares[number]) for source in sources if number in source.shares)
        nothing = np.zeros(values)
        shares = np.array([source.shares.get(number, nothing) for source in sources])
        known = np.arange(1, values + 1)
        domains.append(Domain(known, known, np.ones(values), shares, members))
    return Workload(
        tuple(names_of(sources)),
        tuple(source.home for source in sources),
        None,
        np.array([source.rate for source in sources], float),
        np.array([source.window_s for source in sources], float),
        tuple(domains),
        (((8.0, 8.0, 8.0, 8.0, 8.0),),) * len(sources),
    )


def names_of(sources: Sequence[WorkloadSource]) -> list[str]:
    """The names of the streams, which are their aliases too."""
    return [f"s{number}" for number in range(len(sources))]


def sql_of(sources: Sequence[WorkloadSource]) -> str:
    """The query: all sources, each key class made equal along a chain of its members."""
    windows = [
        f"{name} [RANGE {round(source.window_s * _SECOND)} MICROSECONDS] AS {name}" for name, source in _named(sources)
    ]
    where = []
    for number in sorted({number for source in sources for number in source.shares}):
        members = [name for name, source in _named(sources) if number in source.shares]
        where += [f"{left}.k{number} = {right}.k{number}" for left, right in pairwise(members)]
    return f"SELECT s0.id AS id FROM {', '.join(windows)} WHERE {' AND '.join(where)}"


def _named(sources: Sequence[WorkloadSource]) -> Iterator[tuple[str, WorkloadSource]]:
    return zip(names_of(sources), sources, strict=True)


def draw_rows(sources: Sequence[WorkloadSource], seconds: float, seed: int) -> tuple[dict[str, pa.Table], int]:
    """Rows of all streams, and the instant in microseconds at which all windows have filled.

    After that instant rows come for so many seconds; before it, those that are still in a window then.
    """
    full_us = round(max(source.window_s for source in sources) * _SECOND)
    end_us = full_us + round(seconds * _SECOND)
    tables = {}
    for place, (name, source) in enumerate(_named(sources)):
        rng = np.random.default_rng((seed, place))
        start_us = full_us - round(source.window_s * _SECOND)
        spans = ((start_us, full_us), (full_us, end_us))
        counts = [round(source.rate * (high - low) / _SECOND) for low, high in spans]
        keys = {
            f"k{number}": pa.array(rng.choice(len(shares), sum(counts), p=shares) + 1)
            for number, shares in sorted(source.shares.items())
        }
        ts = [np.sort(rng.integers(*span, count)) for span, count in zip(spans, counts, strict=True)]
        tables[name] = rows_table(keys, np.concatenate(ts))
    return tables, full_us


def rows_table(keys: Mapping[str, pa.Array], ts_us: np.ndarray) -> pa.Table:
    """Rows of a stream in order of time: keys, a number of their own and an event time."""
    ts = pa.array(ts_us, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table({**keys, "id": pa.array(np.arange(len(ts_us))), EVENT_TIME: ts})


@dataclass(frozen=True, slots=True)
class Measured:
    """What links carried of full tuples, by flow; a flow of combinations is named for its streams."""

    before: Mapping[str, int]  # tuples until the windows had filled
    flows: Mapping[str, float]  # tuples a second after that
    cpu_s: float  # processor time for a second of the streams after that, of all micro-batches of all sites

    @property
    def tuples_per_s(self) -> float:
        """Rows and combinations, each as one."""
        return sum(self.flows.values())

    @property
    def rows_per_s(self) -> float:
        """A combination counts as many rows as it is made of."""
        return sum(rate * (flow.count(" ") + 1) for flow, rate in self.flows.items())


def measure(
    sources: Sequence[WorkloadSource],
    sub_plans: SubPlans,
    tables: Mapping[str, pa.Table],
    full_us: int,
    seconds: float,
    *,
    feeds: int = 1,
) -> Measured:
    """Run a plan over the rows of all streams in the simulator, and count the full tuples on the links.

    First comes all that is before the instant at which windows have filled; what follows comes in so many feeds, and
    all combinations are counted whose latest row is among that. The join that would make answers is left out, for
    they stay where they are made.
    """
    plan = plan_of(sources, sub_plans, tables)
    times = dict.fromkeys(tables, EVENT_TIME)
    sites = SimulatedSites(plan, times, answers=False, retry_us=3_600 * _SECOND)
    counts, begun = [], 0.0
    for start_us, end_us, count in ((0, full_us, 1), (full_us, full_us + round(seconds * _SECOND), feeds)):
        begun = process_time()
        for low, high in pairwise(np.linspace(start_us, end_us, count + 1).astype(np.int64)):
            slices = {name: between(table, int(low), int(high)) for name, table in tables.items()}
            sites.feed(sites.kernel.now_us, {name: table for name, table in slices.items() if table.num_rows})
            sites.run()
        counts.append(_tuples(sites))
    before, after = counts
    flows = {flow: (count - before.get(flow, 0)) / seconds for flow, count in after.items()}
    return Measured(before, flows, (process_time() - begun) / seconds)


def ship_rates(
    sources: Sequence[WorkloadSource], plans: Mapping[str, SubPlans], seconds: float, seed: int
) -> dict[str, float | None]:
    """Tuples a second that each plan ships of the same rows.

    For joins on one key they are counted over the rows, which comes to the same as running the plan. A plan on several
    keys is run, or None if it would have to make too many combinations.
    """
    workload = workload_of_sources(sources)
    tables, full_us = draw_rows(sources, seconds, seed)
    found: dict[str, float | None] = {}
    known: dict[SubPlans, float | None] = {}
    rows = RowsByValue(workload, tables, EVENT_TIME) if len(workload.domains) == 1 else None
    for name, sub_plans in plans.items():
        if sub_plans not in known and rows is not None:
            known[sub_plans] = shipped_per_s(rows, sub_plans, full_us, seconds)
        elif sub_plans not in known:
            made = pairs_per_s(workload, sub_plans) * (seconds + full_us / _SECOND)
            fits = made <= MOST_PAIRS
            known[sub_plans] = measure(sources, sub_plans, tables, full_us, seconds).tuples_per_s if fits else None
        found[name] = known[sub_plans]
    return found


def unpartitioned(tree: JoinNode) -> SubPlans:
    """A tree as a plan without a partition."""
    return (tree,), None


def plan_of(sources: Sequence[WorkloadSource], sub_plans: SubPlans, tables: Mapping[str, pa.Table]) -> Plan:
    """The plan that runs the query over all sources by the given sub-plans, and leaves answers where they are made."""
    schemas = {name: table.schema for name, table in tables.items()}
    columns = {name: schema.names for name, schema in schemas.items()}
    homes = {name: source.home for name, source in _named(sources)}
    plan = central(typed(parse_query(sql_of(sources), columns), schemas), columns, homes, sources[0].home)
    join = join_plan_of(plan)
    trees, partition = runnable(workload_of_sources(sources), sub_plans)
    if partition is not None:  # the query numbers its keys in its own order
        key = f"k{partition.key_class}"
        number = next(key_class.number for key_class in join.classes if key_class.members[0].columns[0].name == key)
        partition = replace(partition, key_class=number)
    return with_join(plan, replace(join, sub_plans=trees, partition=partition, site=None))


def _tuples(sites: SimulatedSites) -> dict[str, int]:
    """Full tuples shipped so far, by flow."""
    found: dict[str, int] = {}
    for site in sites.sites.values():
        for shipment in site.engine.program.shipments:
            if shipment.purpose is Purpose.TUPLES and shipment.to in site.ledger.links:
                traffic = site.ledger.links[shipment.to].traffic.get(shipment.arrives_as, Traffic())
                flow = shipment.arrives_as.removeprefix(f"{shipment.join}:")
                found[flow] = found.get(flow, 0) + traffic.tuples
    return found


def between(table: pa.Table, low_us: int, high_us: int) -> pa.Table:
    """The rows of a stream from one instant to just before another."""
    ts = table.column(EVENT_TIME).cast(pa.int64()).to_numpy()
    first, last = np.searchsorted(ts, (low_us, high_us))
    return table.slice(first, last - first)


def runnable(workload: Workload, sub_plans: SubPlans) -> SubPlans:
    """The same plan with the inputs of each join node in an order that makes few intermediate results.

    What is at the site of a join node goes first, but last in a root: its joins are left out, and must not be taken for
    those that another sub-plan needs for its values.
    """
    _, partition = sub_plans
    return tuple(_root(tree, part) for tree, part in _by_sub_plan(workload, sub_plans)), partition


def _by_sub_plan(workload: Workload, sub_plans: SubPlans) -> Iterator[tuple[JoinNode, Workload]]:
    trees, partition = sub_plans
    if partition is None:
        yield trees[0], workload
        return
    sub_plan_of = workload.sub_plan_of_cells(partition)
    for number, tree in enumerate(trees):
        yield tree, workload.limited(partition, sub_plan_of == number)


def _root(tree: JoinNode, part: Workload) -> JoinNode:
    nodes = [_inner(child.node, part) for child in tree.inputs]
    nodes.sort(key=lambda node: site_of(node, part) == tree.at)
    return JoinNode(tree.at, tuple(Input(node) for node in nodes))


def _inner(tree: Tree, part: Workload) -> Tree:
    if isinstance(tree, Leaf):
        return tree
    nodes = [_inner(child.node, part) for child in tree.inputs]
    nodes.sort(key=lambda node: (site_of(node, part) != tree.at, part.combination_rate(part.mask(leaves_of(node)))))
    chosen, rest = nodes[:1], nodes[1:]
    while rest:
        mask = part.mask(alias for node in chosen for alias in leaves_of(node))
        masks = [part.mask(leaves_of(node)) for node in rest]
        offers = [(not part.shared(mask, other), part.combination_rate(mask | other)) for other in masks]
        chosen.append(rest.pop(offers.index(min(offers))))
    return JoinNode(tree.at, tuple(Input(node) for node in chosen))


def pairs_per_s(workload: Workload, sub_plans: SubPlans) -> float:
    """How many combinations a second all joins of a plan make but the last."""
    trees, partition = runnable(workload, sub_plans)
    return sum(_pairs(tree, part, is_root=True) for tree, part in _by_sub_plan(workload, (trees, partition)))


def _pairs(tree: Tree, part: Workload, *, is_root: bool = False) -> float:
    if isinstance(tree, Leaf):
        return 0.0
    made = sum(_pairs(child.node, part) for child in tree.inputs)
    if not is_root:
        mask = part.mask(leaves_of(tree.inputs[0].node))
        for child in tree.inputs[1:]:
            mask |= part.mask(leaves_of(child.node))
            made += part.combination_rate(mask)
    return made
