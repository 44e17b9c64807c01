"""Planners side by side: how long they take, how far greedy is from the best, and what their plans ship.

python benchmarks/planners.py                     all tables
python benchmarks/planners.py --table time        CPU time of greedy, optimal, exhaustive and auto
python benchmarks/planners.py --table ratio       greedy against exhaustive over random queries of table 2
python benchmarks/planners.py --table mixed       values of mixed popularity: what every planner ships by the cost model
                                                  and, for a smaller workload, in the simulator
python benchmarks/planners.py --table shipped     the same at full size: what the best planner and auto really ship
python benchmarks/planners.py --table bound       the same values: where the bytes go, and what no plan can do without
                      --like-paper                rates, windows and places of values as PMJoin's paper has them (4.2)
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.cost.costs import Cost
from watersmeet.cost.formulas import bloom_bytes
from watersmeet.planners.auto import Tried, try_all
from watersmeet.planners.exhaustive import exhaustive
from watersmeet.planners.greedy import greedy
from watersmeet.planners.grouping import ByValue
from watersmeet.planners.oneway import OneWay
from watersmeet.planners.problem import Problem, problem_of
from watersmeet.planners.reduce import Carrier
from watersmeet.planners.trees import optimal
from watersmeet.program.operators import Purpose
from watersmeet.program.storage.wire import overhead_bytes
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.reproduce.semijoin.runs import ATTRIBUTE_BYTES, RunSetting, StreamSpec, problem_for
from watersmeet.reproduce.semijoin.table3 import ATTRIBUTES, FACTORS, RATES, WINDOWS_S
from watersmeet.reproduce.workloads import between, different_shares
from watersmeet.sim.internet.links import LinkModel
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.trial import TOPOLOGIES, edges_of
from watersmeet.stats.model import Bin, ColumnStats, Histogram, Number, Stats, StreamStats
from watersmeet.stats.packed_sizes import Sizes
from watersmeet.testing import bag
from watersmeet.topology.model import Link, Site, Source, Stream, Topology

SECOND_US = 1_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("load", pa.binary()), ("ts", pa.timestamp("us", "UTC"))])
DDL = "k long, id long, load binary, ts timestamp"
FIXED_BYTES = 24  # of a row, beside its load
MOST_ANSWERS_S = 1e5


# Queries of the semijoin paper ----------------------------------------------------------------------------------------


def drawn(graph: str, streams: int, seed: Sequence[int]) -> Problem:
    """A random query: every figure of every stream drawn from table 2, every stream at a site of its own."""
    rng = np.random.default_rng([*seed, TOPOLOGIES.index(graph), streams])
    specs = tuple(
        StreamSpec(
            ATTRIBUTE_BYTES * int(rng.choice(ATTRIBUTES)),
            round(1 / float(rng.choice(FACTORS))),
            float(rng.choice(RATES)),
            float(rng.choice(WINDOWS_S)),
        )
        for _ in range(streams)
    )
    numbers = {f"s{number}": number for number in range(streams)}
    edges = tuple((numbers[one], numbers[other]) for one, other in edges_of(graph, list(numbers)))
    return problem_for(RunSetting(specs, edges))


def cpu_s(planner: Callable[[Problem], Any], problem: Problem) -> float:
    """The processor time of planning once."""
    begun = process_time()
    planner(problem)
    return process_time() - begun


# Values of mixed popularity -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixed:
    """Streams at sites of their own, all joined on one key, whose values are popular in different streams."""

    streams: int = 10
    values: int = 1_000
    rates: tuple[float, float] = (100.0, 10_000.0)  # rows a second, from and to
    windows_s: tuple[float, float] = (0.05, 0.3)
    row_bytes: int = 100
    batch_interval_s: float = 1.0
    seed: int = 1
    together: bool = False  # values spread in the same way in all streams

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"s{number}" for number in range(self.streams))

    @property
    def drawn(self) -> "list[tuple[float, int, np.ndarray]]":
        """Of each stream: its rate, its window in microseconds, and the share of each value, spread at random."""
        found = []
        places = np.random.default_rng([self.seed, self.streams]).permutation(self.values)
        for number in range(self.streams):
            rng = np.random.default_rng([self.seed, number])
            rate = float(rng.uniform(*self.rates))
            window_us = round(rng.uniform(*self.windows_s) * SECOND_US)
            shares = different_shares(rng, self.values)
            found.append((rate, window_us, shares[places] if self.together else rng.permutation(shares)))
        return found

    @property
    def sql(self) -> str:
        select = ", ".join(f"{name}.id AS {name}_id, {name}.load AS {name}_load" for name in self.names)
        froms = ", ".join(
            f"{name} [RANGE {window_us} MICROSECONDS]"
            for name, (_, window_us, _) in zip(self.names, self.drawn, strict=True)
        )
        where = " AND ".join(f"{one}.k = {other}.k" for one, other in pairwise(self.names))
        return f"SELECT {select} FROM {froms} WHERE {where}"

    @property
    def query(self) -> Any:
        columns = dict.fromkeys(self.names, SCHEMA.names)
        return typed(parse_query(self.sql, columns), dict.fromkeys(self.names, SCHEMA))

    def rows(self, stream: int, seconds: float) -> pa.Table:
        """Rows of a stream at even distances; what they have beside their keys cannot be compressed."""
        rate, _, shares = self.drawn[stream]
        rng = np.random.default_rng([self.seed, stream, 1])
        count = int(rate * seconds + 1e-6)  # all of them before the end
        ts = ((np.arange(count) + rng.random()) * (SECOND_US / rate)).astype(np.int64)
        size = max(1, self.row_bytes - FIXED_BYTES)
        ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * size)
        load = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(rng.bytes(count * size))])
        keys = rng.choice(self.values, count, p=shares)
        return pa.table({"k": keys, "id": np.arange(count), "load": load, "ts": pa.array(ts)}).cast(SCHEMA)

    def stats(self, stream: int) -> StreamStats:
        """The figures of a stream: the very shares that rows are drawn from, and sizes as measured."""
        rate, _, shares = self.drawn[stream]
        rows = self.rows(stream, 2_000 / rate)
        columns = {}
        for name in ("k", "id", "load"):
            sizes, in_order = Sizes(), Sizes()
            sizes.measure(rows.select([name]), slices=5, mixed_up=True)
            in_order.measure(rows.select([name]), slices=5)
            histogram = None
            if name == "k":
                histogram = Histogram(tuple(Bin(value, value, 1, float(one)) for value, one in enumerate(shares)))
            columns[name] = ColumnStats(
                Number(self.values if name == "k" else 1e9), histogram, sizes.each, in_order.each
            )
        return StreamStats(Number(rate), None, columns)

    def problem(self) -> Problem:
        """The question for planners; answers stay where they are made."""
        streams = tuple(
            Stream(name, "ts", schema=DDL, source=Source("simulator"), site=f"n{number}")
            for number, name in enumerate(self.names)
        )
        topology = Topology(
            streams,
            sites=tuple(Site(stream.site) for stream in streams),
            default_link=Link(latency_us=25_000, bandwidth_bps=100e6),
        )
        stats = Stats({name: self.stats(number) for number, name in enumerate(self.names)})
        return problem_of(self.query, topology, None, stats, batch_interval_s=self.batch_interval_s)


def simulated(mixed: Mixed, problem: Problem, tried: Tried, tables: Mapping[str, pa.Table], seconds: float) -> float:
    """Bytes a second that a plan really ships, a batch every interval; its answers are compared with the oracle's."""
    assert tried.join is not None
    plan = problem.plan(tried.join)
    sites = SimulatedSites(
        plan,
        dict.fromkeys(tables, "ts"),
        model_of=lambda one, other: LinkModel(latency_us=25_000),
        interval_us=round(problem.reaction_s * SECOND_US),
    )
    batch_us = round(mixed.batch_interval_s * SECOND_US)
    for number in range(round(seconds / mixed.batch_interval_s)):
        low, high = number * batch_us, (number + 1) * batch_us
        sites.feed(high, {name: between(table, low, high) for name, table in tables.items()})
    sites.run()
    reference = answer(mixed.query, tables, dict.fromkeys(tables, "ts"))
    assert sum((bag(table) for table in sites.answers()), Counter()) == bag(reference), tried.planner
    return sites.bytes_shipped / seconds


# Tables ---------------------------------------------------------------------------------------------------------------


def time_table(
    seed: int,
    draws: int = 20,
    *,
    greedy_at: Sequence[int] = (20, 100),
    optimal_at: Sequence[int] = (10, 12, 14),
    auto_at: Sequence[int] = (3, 5, 10),
    most_in_clique: int = 20,
    values: int = 1_000,
) -> None:
    """Seconds of processor time to plan one query."""
    print("| planner | streams | query | draws | median s | longest s |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")

    def line(name: str, streams: int, query: str, taken: Sequence[float]) -> None:
        shown = f"{np.median(taken):.3f} | {max(taken):.3f}"
        print(f"| {name} | {streams} | {query} | {len(taken)} | {shown} |", flush=True)

    few = range(min(3, draws))
    for streams in greedy_at:
        for graph in TOPOLOGIES:
            if graph != "clique" or streams <= most_in_clique:
                line("greedy", streams, graph, [cpu_s(greedy, drawn(graph, streams, [seed, one])) for one in few])
    for graph in TOPOLOGIES:
        taken = [cpu_s(exhaustive, drawn(graph, 4, [seed, one])) for one in range(draws)]
        line("exhaustive", 4, graph, taken)
    query = f"one key of {values:,} values"
    for streams in optimal_at:
        problems = [Mixed(streams, values, seed=seed + one).problem() for one in few]
        line("optimal", streams, query, [cpu_s(_optimal, problem) for problem in problems])
    for streams in auto_at:
        problems = [Mixed(streams, values, seed=seed + one).problem() for one in few]
        line("auto", streams, query, [cpu_s(try_all, problem) for problem in problems])


def _optimal(problem: Problem) -> object:
    return optimal(problem.workload, Carrier(problem).shipping(), deliver=True)


def ratio_table(seed: int, draws: int = 100) -> None:
    """What greedy plans are worth against the best ones, by the prices that both plan with."""
    print("| join graph of 4 streams | draws | mean | median | standard deviation | 95 % | largest | equal |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for graph in TOPOLOGIES:
        ratios = []
        for number in range(draws):
            problem = drawn(graph, 4, [seed, number])
            prices = OneWay(problem)
            ratios.append(prices.value(greedy(problem).heads) / prices.value(exhaustive(problem).heads))
        found = np.array(ratios)
        figures = (found.mean(), np.median(found), found.std(), np.percentile(found, 95), found.max())
        shown = " | ".join(f"{one:.3f}" for one in figures)
        print(f"| {graph} | {draws} | {shown} | {(found < 1 + 1e-9).mean():.0%} |", flush=True)


def mixed_table(mixed: Mixed, seeds: int = 5, *, seconds: float = 20.0, small_streams: int = 6) -> None:
    """Bytes a second of every planner over some seeds by the cost model; then of a smaller workload, as measured."""
    rates, windows = mixed.rates, mixed.windows_s
    print(
        f"{mixed.streams} streams at {mixed.streams} sites, {mixed.values:,} values, {rates[0]:g} to {rates[1]:g} "
        f"rows/s, windows of {1e3 * windows[0]:g} to {1e3 * windows[1]:g} ms, rows of {mixed.row_bytes} bytes, a batch "
        f"every {mixed.batch_interval_s:g} s; MB/s by the cost model\n"
    )
    names: list[str] = []
    factors: list[dict[str, float]] = []
    for seed in range(mixed.seed, mixed.seed + seeds):
        tried = try_all(_with(mixed, seed=seed).problem())
        values = {one.planner: one.value for one in tried}
        if not names:
            names = list(values)
            print(f"| seed | {' | '.join(names)} | sub-plans of auto |")
            print(f"| --- |{' ---: |' * (len(names) + 1)}")
        assert tried[-1].join is not None
        cells = " | ".join(f"{values[name] / 1e6:,.3f}" for name in names)
        print(f"| {seed} | {cells} | {len(tried[-1].join.sub_plans)} |", flush=True)
        factors.append({name: values[name] / values["auto"] for name in names})
    means = " | ".join(f"{np.exp(np.mean([np.log(one[name]) for one in factors])):.2f}" for name in names)
    print(f"| of auto, geometric mean | {means} | |")

    fewer = max(2, mixed.values // 10)
    small = _with(mixed, streams=small_streams, values=fewer, rates=(rates[0] / 10, rates[1] / 10))
    problem = small.problem()
    answers_s = problem.workload.combination_rate((1 << small.streams) - 1)
    if answers_s > MOST_ANSWERS_S:
        print(f"\nNot run in the simulator: {answers_s:.2g} answers a second with {small.streams} streams")
        return
    tables = {name: small.rows(number, seconds) for number, name in enumerate(small.names)}
    print(
        f"\n{small.streams} streams, rates 10 times lower, {fewer} values, seed {small.seed}, {seconds:g} s; "
        "answers as the oracle's\n"
    )
    print("| planner | kB/s by the cost model | kB/s in the simulator | difference | sub-plans |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for one in try_all(problem):
        assert one.join is not None and one.cost is not None
        shipped = simulated(small, problem, one, tables, seconds)
        foreseen = one.cost.bytes_s
        print(
            f"| {one.planner} | {foreseen / 1e3:,.1f} | {shipped / 1e3:,.1f} | {foreseen / shipped - 1:+.1%} "
            f"| {len(one.join.sub_plans)} |",
            flush=True,
        )


def shipped_table(mixed: Mixed, seeds: int = 5, *, seconds: float = 5.0) -> None:
    """What the best single planner and `auto` ship in the simulator, beside what was foreseen."""
    print(
        f"{mixed.streams} streams, {mixed.values:,} values, {seconds:g} s in the simulator; answers as the oracle's\n"
    )
    print("| seed | answers | planner | sub-plans | kB/s foreseen | kB/s shipped | difference | best/auto |")
    print("| --- | ---: | --- |" + " ---: |" * 5)
    ratios = []
    for seed in range(mixed.seed, mixed.seed + seeds):
        one = _with(mixed, seed=seed)
        problem, tables = one.problem(), {name: one.rows(number, seconds) for number, name in enumerate(one.names)}
        answers = answer(one.query, tables, dict.fromkeys(tables, "ts")).num_rows
        *others, found = try_all(problem)
        both = (min(others, key=lambda tried: tried.value), found)
        shipped = [simulated(one, problem, tried, tables, seconds) for tried in both]
        ratios.append(shipped[0] / shipped[1])
        for tried, size in zip(both, shipped, strict=True):
            assert tried.cost is not None and tried.join is not None
            foreseen, ratio = tried.cost.bytes_s, f"{ratios[-1]:.2f}" if tried is found else ""
            print(
                f"| {seed} | {answers:,} | {tried.planner} | {len(tried.join.sub_plans)} | {foreseen / 1e3:,.1f} "
                f"| {size / 1e3:,.1f} | {foreseen / size - 1:+.1%} | {ratio} |",
                flush=True,
            )
    print(f"| geometric mean | | | | | | | {np.exp(np.mean(np.log(ratios))):.2f} |")


# What no plan can do without ------------------------------------------------------------------------------------------


def rows_that_must_travel(mixed: Mixed, seconds: float) -> float:
    """Rows a second that leave their site in any plan that gives all answers, counted on drawn rows.

    An answer is made at one site, so of its rows all but one have travelled. When a row completes answers, any two rows
    of different streams that it meets are in one answer, so those that stayed at home are of one stream. Such moments
    are taken so far apart that each row counts once; the distance is the one that proves the most for a value.
    """
    times, heads = [], []
    for stream, (rate, _, shares) in enumerate(mixed.drawn):
        rng = np.random.default_rng([mixed.seed, stream, 2])
        count = rng.poisson(rate * seconds)
        ts, keys = np.sort(rng.uniform(0, seconds, count)), rng.choice(mixed.values, count, p=shares)
        order = np.argsort(keys, kind="stable")
        times.append(ts[order])
        heads.append(np.searchsorted(keys[order], np.arange(mixed.values + 1)))
    windows_s = np.array([window_us / SECOND_US for _, window_us, _ in mixed.drawn])
    proved = 0
    for value in range(mixed.values):
        own = [ts[first[value] : first[value + 1]] for ts, first in zip(times, heads, strict=True)]
        if all(map(len, own)):
            moments, streams = _completions(own, windows_s)
            distances = windows_s.min() * np.array([0.25, 0.5, 1.0, 2.0, 4.0])
            proved += max(_apart(own, windows_s, moments, streams, float(one)) for one in distances)
    return proved / seconds


def _completions(own: Sequence[np.ndarray], windows_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """When a row of one value completes answers, and the stream of that row."""
    moments = np.concatenate(own)
    streams = np.repeat(np.arange(len(own)), [len(one) for one in own])
    order = np.argsort(moments, kind="stable")
    moments, streams = moments[order], streams[order]
    is_whole = np.ones(len(moments), bool)
    for ts, window_s in zip(own, windows_s, strict=True):
        last = np.searchsorted(ts, moments, "right") - 1
        is_whole &= (last >= 0) & (moments - ts[np.maximum(last, 0)] <= window_s)
    return moments[is_whole], streams[is_whole]


def _apart(
    own: Sequence[np.ndarray], windows_s: np.ndarray, moments: np.ndarray, streams: np.ndarray, distance_s: float
) -> int:
    """Rows that some moments prove to travel, no two of them closer than a distance."""
    chosen, place = [], 0
    while place < len(moments):
        chosen.append(place)
        place = int(np.searchsorted(moments, moments[place] + distance_s, "right"))
    at, head = moments[chosen], streams[chosen]
    before = np.concatenate([[-np.inf], at[:-1]])
    counts = np.array(
        [
            np.searchsorted(ts, at, "right") - np.searchsorted(ts, np.maximum(before, at - window_s), "right")
            for ts, window_s in zip(own, windows_s, strict=True)
        ]
    )
    counts[head, np.arange(len(at))] = 1  # of its own stream a row meets none
    return int((counts.sum(axis=0) - counts.max(axis=0)).sum())


def each_value_alone(problem: Problem) -> float:
    """What the cheapest order would ship of every value if each had a sub-plan of its own and messages took nothing."""
    domain, total = problem.workload.domains[0], 0.0
    sets = range(1, 1 << len(problem.aliases))
    for start in range(0, domain.cells, 200):
        cells = slice(start, start + 200)
        values = ByValue(problem, 0, domain.size[cells], domain.shares[:, cells], sets)
        total += sum(one.value for one in values.best())
    return total


def bound_table(mixed: Mixed, seeds: int = 5, *, seconds: float | None = None) -> None:
    """How far `auto` and the best planner are from what no plan can do without; then where their bytes go."""
    print("kB/s by the cost model; rows of answers are counted\n")
    print("| seed | best planner | auto | each value alone | rows of answers | best/auto | best/alone | best/rows |")
    print("| --- |" + " ---: |" * 7)
    seconds = seconds or max(100.0, 4 * mixed.windows_s[1])
    ratios, shares = [], []
    for seed in range(mixed.seed, mixed.seed + seeds):
        one = _with(mixed, seed=seed)
        problem = one.problem()
        *others, found = try_all(problem)
        best = min(others, key=lambda tried: tried.value)
        row_bytes = problem.workload.sizes[0]
        kept = sum(size[-1] for size in row_bytes) - problem.workload.key_sizes[0][-1]  # what answers have of a row
        alone, rows = each_value_alone(problem), rows_that_must_travel(one, seconds) * kept
        ratios.append([best.value / figure for figure in (found.value, alone, rows)])
        cells = " | ".join(f"{figure / 1e3:,.1f}" for figure in (best.value, found.value, alone, rows))
        print(f"| {seed} | {cells} | {' | '.join(f'{ratio:.2f}' for ratio in ratios[-1])} |", flush=True)
        shares += [(seed, best), (seed, found)]
    means = np.exp(np.mean(np.log(ratios), axis=0))
    print(f"| geometric mean | | | | | {' | '.join(f'{ratio:.2f}' for ratio in means)} |")
    print("\n| seed | planner | sub-plans | rows | keys | filters | messages by themselves | messages/s |")
    print("| --- | --- |" + " ---: |" * 6)
    for seed, tried in shares:
        assert tried.cost is not None and tried.join is not None
        rows, keys, filters, alone = _by_content(tried.cost)
        sizes = " | ".join(f"{size / 1e3:,.1f}" for size in (rows, keys, filters, alone))
        messages = sum(flow.messages_s for flow in tried.cost.flows)
        print(f"| {seed} | {tried.planner} | {len(tried.join.sub_plans)} | {sizes} | {messages:.0f} |")


def _by_content(cost: Cost) -> tuple[float, float, float, float]:
    """Bytes a second of rows and combinations, of keys, of filters, and of what messages take beside them."""
    sizes = dict.fromkeys(("rows", "keys", "filters"), 0.0)
    alone = sum(size for size, _ in cost.overhead.values())
    for flow in cost.flows:
        kind = {Purpose.KEYS: "keys", Purpose.SYNC: "keys", Purpose.FILTERS: "filters"}.get(flow.purpose, "rows")
        empty = {"rows": overhead_bytes(4), "keys": overhead_bytes(3), "filters": bloom_bytes(0.0)}[kind]
        beside = min(flow.messages_s * empty, flow.bytes_s)  # of rows at least: combinations have more columns
        sizes[kind] += flow.bytes_s - beside
        alone += beside
    return sizes["rows"], sizes["keys"], sizes["filters"], alone


def _with(mixed: Mixed, **differs: Any) -> Mixed:
    return Mixed(**{**vars(mixed), **differs})


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=("time", "ratio", "mixed", "shipped", "bound", "all"), default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, help="random queries a join graph (default: 20 for time, 100 for ratio)")
    parser.add_argument("--seeds", type=int, default=5, help="of the mixed workload (default: 5)")
    default = Mixed()
    parser.add_argument("--streams", type=int, default=default.streams, help="of the mixed workload (default: 10)")
    parser.add_argument("--values", type=int, default=default.values, help="of the key (default: 1000)")
    parser.add_argument("--rates", type=float, nargs=2, default=default.rates, help="rows/s (default: 100 10000)")
    parser.add_argument("--windows", type=float, nargs=2, default=default.windows_s, help="seconds (default: 0.05 0.3)")
    parser.add_argument("--row-bytes", type=int, default=default.row_bytes, help="(default: 100)")
    parser.add_argument(
        "--batch", type=float, default=default.batch_interval_s, help="seconds between batches (default: 1)"
    )
    parser.add_argument("--like-paper", action="store_true", help="10 to 1000 rows/s, 10 to 100 s, spread together")
    options = parser.parse_args()
    if options.like_paper:
        options.rates, options.windows = (10.0, 1_000.0), (10.0, 100.0)
    if options.table in ("time", "all"):
        time_table(options.seed, options.draws or 20)
        print()
    if options.table in ("ratio", "all"):
        ratio_table(options.seed, options.draws or 100)
        print()
    mixed = Mixed(
        options.streams,
        options.values,
        tuple(options.rates),
        tuple(options.windows),
        options.row_bytes,
        options.batch,
        options.seed,
        options.like_paper,
    )
    if options.table in ("mixed", "all"):
        mixed_table(mixed, options.seeds)
        print()
    if options.table == "shipped" or (options.table == "all" and not options.like_paper):
        shipped_table(mixed, options.seeds)
        print()
    if options.table in ("bound", "all"):
        bound_table(mixed, options.seeds)


if __name__ == "__main__":
    main()
