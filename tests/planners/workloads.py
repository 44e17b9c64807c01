"""Workloads for the tests of planners: streams at sites with known figures, and rows drawn from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.plan.nodes import JoinPlan, Plan
from watersmeet.planners.problem import FEWEST_BYTES, NO_LIMITS, Limits, Objective, Problem, problem_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import edges_of
from watersmeet.stats.model import Bin, ColumnStats, Histogram, Number, Stats, StreamStats
from watersmeet.stats.packed_sizes import Sizes
from watersmeet.topology.model import Link, Site, Source, Stream, Topology

SECOND = 1_000_000
_START_US = 1_700_000_000 * SECOND
_STAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Scene:
    """Streams at sites, their rows, and a query over them."""

    tables: Mapping[str, pa.Table]
    topology: Topology
    sql: str
    seconds: float

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        return {name: table.schema for name, table in self.tables.items()}

    @property
    def query(self) -> JoinQuery:
        columns = {name: table.column_names for name, table in self.tables.items()}
        return typed(parse_query(self.sql, columns), self.schemas)

    def problem(
        self,
        site: str | None,
        *,
        objective: Objective = FEWEST_BYTES,
        limits: Limits = NO_LIMITS,
        batch_interval_s: float = 1.0,
        parts: int = 8,
    ) -> Problem:
        stats = self.topology.stats
        return problem_of(
            self.query,
            self.topology,
            site,
            stats,
            objective=objective,
            limits=limits,
            batch_interval_s=batch_interval_s,
            parts=parts,
        )

    def run(self, plan: Plan, *, batch_interval_s: float = 1.0, reaction_s: float = 0.3) -> SimulatedSites:
        """Sites that are fed a batch every interval."""
        sites = SimulatedSites(
            plan,
            dict.fromkeys(self.tables, "ts"),
            model_of=lambda one, other: LinkModel(latency_us=25_000),
            interval_us=round(reaction_s * SECOND),
        )
        for number in range(round(self.seconds / batch_interval_s)):
            low, high = (_START_US + round(edge * batch_interval_s * SECOND) for edge in (number, number + 1))
            batch = {}
            for name, table in self.tables.items():
                ts = table["ts"].cast(pa.int64()).to_numpy()
                first, last = np.searchsorted(ts, [low, high])
                if last > first:
                    batch[name] = table.slice(first, last - first)
            sites.feed(round((number + 1) * batch_interval_s * SECOND), batch)
        return sites


def measured(sites: SimulatedSites, seconds: float, warm: float = 0.4) -> dict[tuple[str, str], float]:
    """Bytes a second on each link after the windows have filled."""

    def shipped() -> dict[tuple[str, str], int]:
        return {pair: sum(one.bytes for one in purposes.values()) for pair, purposes in sites.traffic.items()}

    sites.kernel.run(until_us=round(warm * seconds * SECOND))
    before = shipped()
    sites.kernel.run(until_us=round(seconds * SECOND))
    return {pair: (size - before.get(pair, 0)) / (seconds * (1 - warm)) for pair, size in shipped().items()}


def scene(
    graph: str,
    rates: Sequence[float],
    windows: Sequence[str],
    spreads: Sequence[Sequence[float]],
    homes: Sequence[str],
    *,
    seconds: float = 20.0,
    seed: int = 1,
    one_key: bool = True,
    payload: int = 0,
) -> Scene:
    """Streams a, b, c, ... joined in the shape of a graph, on one key or on one for each edge."""
    random = np.random.default_rng(seed)
    names = [chr(ord("a") + number) for number in range(len(rates))]
    edges = edges_of(graph, names)
    keys = {name: ["k"] if one_key else [f"k{i}" for i, edge in enumerate(edges) if name in edge] for name in names}
    tables, streams, stats = {}, [], {}
    for name, rate, spread, home in zip(names, rates, spreads, homes, strict=True):
        count = random.poisson(rate * seconds)
        ts = np.sort(random.integers(0, round(seconds * SECOND), count)) + _START_US
        columns: dict[str, pa.Array] = {
            key: pa.array(random.choice(len(spread), count, p=np.array(spread) / np.sum(spread))) for key in keys[name]
        }
        columns["id"] = pa.array(np.arange(count))
        if payload:
            columns["pay"] = pa.array([random.bytes(payload) for _ in range(count)], pa.binary())
        columns["ts"] = pa.array(ts).cast(pa.timestamp("us")).cast(_STAMP)
        tables[name] = pa.table(columns)
        kinds = ", ".join(f"{key} long" for key in (*keys[name], "id"))
        schema = f"{kinds}{', pay binary' if payload else ''}, ts timestamp"
        streams.append(Stream(name, event_time="ts", schema=schema, source=Source("parquet", "rows"), site=home))
        stats[name] = _known(tables[name], seconds)
    where = [
        f"{one}.{key} = {other}.{key}"
        for number, (one, other) in enumerate(edges)
        for key in (["k"] if one_key else [f"k{number}"])
    ]
    froms = ", ".join(f"{name} [{window}]" for name, window in zip(names, windows, strict=True))
    more = [f"{name}.pay AS {name}_pay" for name in names] if payload else []
    wanted = ", ".join([f"{name}.id AS {name}_id" for name in names] + more)
    sites = tuple(Site(site) for site in sorted(set(homes)))
    topology = Topology(
        tuple(streams), (), sites, default_link=Link(latency_us=25_000, bandwidth_bps=1e8), stats=Stats(stats)
    )
    return Scene(tables, topology, f"SELECT {wanted} FROM {froms} WHERE {' AND '.join(where)}", seconds)


def _known(table: pa.Table, seconds: float) -> StreamStats:
    """The figures of a stream, from all its rows."""
    columns = {}
    for name in table.column_names:
        if name == "ts":
            continue
        histogram = None
        if name.startswith("k"):
            values, counts = np.unique(table[name].to_numpy(), return_counts=True)
            bins = (Bin(int(v), int(v), 1, float(c / len(table))) for v, c in zip(values, counts, strict=True))
            histogram = Histogram(tuple(bins))
        sizes, in_order = Sizes(), Sizes()
        sizes.measure(table.select([name]), slices=5, mixed_up=True)
        in_order.measure(table.select([name]), slices=5)
        columns[name] = ColumnStats(Number(len(table[name].unique())), histogram, sizes.each, in_order.each)
    return StreamStats(Number(len(table) / seconds), None, columns)


def join_of(problem: Problem, *sub_plans: object) -> JoinPlan:
    """A plan of these sub-plans."""
    return problem.join(sub_plans)  # type: ignore[arg-type]
