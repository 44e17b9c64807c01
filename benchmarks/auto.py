"""What `auto` ships against the best planner by hindsight, by running all planners in the simulator.

python benchmarks/auto.py                         generated streams: 0.05 to 5,000 rows/s, 2 to 6 of them
                      --cases N --seed S          how many are drawn, and from which seed
                      --flows                     every plan's traffic by link and purpose, beside its estimate

Prints for each case what every planner ships, and at the end: bytes of `auto` over the best by hindsight, over central,
CPU time of planning, and how many of the flows that matter are foreseen within a factor of 1.5.
"""

import argparse
import random
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path

import duckdb
import numpy as np

from watersmeet.planners.choose import NAMES
from watersmeet.sim.scenario.compare import PlannerRun, compare_planners
from watersmeet.sim.scenario.model import SitesScenario
from watersmeet.sim.scenario.statistics import with_sampled_statistics
from watersmeet.topology.model import EVERY_PAIR, Link, Query, Site, Source, Stream, Topology

RATES = (0.05, 0.5, 5, 50, 500, 5_000)
INTERVALS_S = (1.0, 10.0, 60.0, 600.0)
INTERVALS, LEAST_ROWS, MOST_ROWS = 30, 100, 20_000  # micro-batches of a run, and rows of its fastest stream
LEAST_INTERVALS = 5  # of a run: the model is of a steady state, not of one micro-batch with all there is
MOST_ANSWERS = 10_000
MATTERS = 0.05  # a flow with so large a share of a plan's bytes


@dataclass(frozen=True)
class Case:
    """A topology and how often its sites have a micro-batch."""

    name: str
    topology: Topology
    interval_s: float
    is_selective: bool
    share: float | None = None  # of the input

    def run(self) -> list[PlannerRun]:
        topology = with_sampled_statistics(self.topology, share=self.share)
        scenario = SitesScenario(topology, trigger_us=round(self.interval_s * 1e6), share=self.share)
        return list(compare_planners(scenario, NAMES))


def joined(streams: list[Stream], sql: str, site: str) -> Topology:
    sites = sorted({stream.site for stream in streams} | {site})
    link = Link(EVERY_PAIR, latency_us=20_000)
    return Topology(tuple(streams), (Query("q", sql, site=site),), tuple(map(Site, sites)), default_link=link)


def generated(seed: int) -> Case:
    """Streams with rates, windows, keys and widths drawn from a seed, joined by one key."""
    chance = random.Random(seed)
    count, base, interval_s = chance.randint(2, 6), chance.choice(RATES), chance.choice(INTERVALS_S)
    length_s = min(max(INTERVALS * interval_s, LEAST_ROWS / base), MOST_ROWS / base)
    interval_s = min(interval_s, length_s / LEAST_INTERVALS)
    window_s = length_s / chance.choice((4, 8, 20))
    is_selective = chance.random() < 0.5
    values = base * window_s * (chance.uniform(3, 30) if is_selective else chance.uniform(0.3, 2))
    rates = [base * chance.choice((0.2, 1, 1, 1)) for _ in range(count)]
    spans = [chance.choice((0.2, 1, 1)) for _ in range(count)]
    skewed = [chance.random() < 1 / 3 for _ in range(count)]
    while expected_answers(rates, window_s, length_s, [values * span for span in spans], skewed) > MOST_ANSWERS:
        values *= 2
    streams = []
    for number, (rate, span, is_skewed) in enumerate(zip(rates, spans, skewed, strict=True)):
        distinct = max(2, round(values * span))
        text = chance.choice(
            ("choice x y", "pattern item-{} uniform 0 500", "pattern a-rather-long-text-{}-with-more uniform 0 1000000")
        )
        options = {
            "rows": max(20, round(rate * length_s)),
            "rows_per_second": f"{rate:.4g}",
            "pace": "max",
            "seed": seed * 10 + number,
            "column.k": f"zipf 1.1 {distinct}" if is_skewed else f"uniform 0 {distinct}",
            "column.text": text,
        }
        source = Source("generator", options={key: str(value) for key, value in options.items()})
        name = "abcdef"[number]
        streams.append(Stream(name, "ts", "ts timestamp, k long, text string", source, site=f"s{number}"))
    names = [stream.name for stream in streams]
    froms = ", ".join(f"{name} [RANGE {round(window_s * 1e3)} MILLISECONDS]" for name in names)
    where = " AND ".join(f"{names[0]}.k = {name}.k" for name in names[1:])
    columns = ", ".join(f"{name}.text AS {name}_text" for name in names)
    site = chance.choice((f"s{chance.randrange(count)}", "hq"))
    kind = "selective" if is_selective else "dense"
    name = f"{seed}: {count} streams, {base:g} rows/s, {kind}, {interval_s:g} s"
    return Case(name, joined(streams, f"SELECT {columns} FROM {froms} WHERE {where}", site), interval_s, is_selective)


def expected_answers(
    rates: list[float], window_s: float, length_s: float, distinct: list[float], skewed: list[bool]
) -> float:
    """About how many answers such streams have."""
    rank = np.arange(1, round(max(2, *distinct)) + 1)
    matching = np.ones(len(rank))
    for rate, values, is_skewed in zip(rates, distinct, skewed, strict=True):
        share = np.where(rank <= max(values, 2), rank**-1.1 if is_skewed else 1.0, 0.0)
        matching *= rate * window_s * share / share.sum()
    return float(matching.sum() * len(rates) / window_s * length_s)


def schema_of(path: Path) -> str:
    rows = duckdb.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
    kinds = {
        "BIGINT": "long",
        "INTEGER": "int",
        "SMALLINT": "int",
        "TINYINT": "int",
        "DOUBLE": "double",
        "FLOAT": "float",
        "VARCHAR": "string",
        "BOOLEAN": "boolean",
    }
    return ", ".join(f"{name} {'timestamp' if 'TIMESTAMP' in kind else kinds[kind]}" for name, kind, *_ in rows)


def print_flows(runs: list[PlannerRun]) -> None:
    for run in runs:
        assert run.summary is not None
        for row in run.summary.traffic.rows:
            foreseen = row.estimated_bytes or 0.0
            where = f"{row.origin} to {row.to} {row.purpose:12}"
            print(f"    {run.planner:12} {where} {row.traffic.bytes:>10,} {foreseen:>12,.0f}")


def flow_errors(runs: list[PlannerRun]) -> list[float]:
    """Estimate over measured bytes, of each link and purpose that matters in any plan."""
    found = {}
    for run in runs:
        assert run.summary is not None
        traffic = run.summary.traffic
        for row in traffic.rows:
            foreseen = row.estimated_bytes or 0.0
            if max(row.traffic.bytes, foreseen) >= MATTERS * max(traffic.bytes, 1):
                slot = (row.origin, row.to, row.purpose, row.traffic.bytes, round(foreseen))
                found[slot] = (foreseen + 1) / (row.traffic.bytes + 1)
    return list(found.values())


@dataclass
class Totals:
    """What came of all cases so far."""

    to_best: list[float] = field(default_factory=list)
    to_central: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    planning_s: list[float] = field(default_factory=list)

    def add(self, case: Case, *, flows: bool = False) -> None:
        """Run all planners on a case and print what they ship."""
        runs = case.run()
        for one in runs:
            if one.bytes is None and one.planner in ("auto", "central"):
                raise AssertionError(f"{case.name}: no plan of {one.planner}: {one.reason}")
        runs = [one for one in runs if one.bytes is not None]
        assert all(one.summary is not None and one.summary.is_right for one in runs), f"{case.name}: wrong answers"
        shipped = {one.planner: one.bytes or 0 for one in runs}
        auto = next(one for one in runs if one.planner == "auto")
        best = min(shipped, key=lambda planner: (shipped[planner], planner))
        ratio, of_central = (shipped["auto"] / max(shipped[other], 1) for other in (best, "central"))
        print(
            f"{case.name:44} x{ratio:5.2f} of {best}, x{of_central:5.2f} of central, planned in {auto.planning_s:.1f} s"
        )
        sums = {one.planner: one.summary.traffic.estimated_bytes or 0.0 for one in runs if one.summary is not None}
        print("  " + ", ".join(f"{name} {size:,} ({sums[name]:,.0f})" for name, size in shipped.items()), flush=True)
        if flows:
            print_flows(runs)
        self.to_best.append(ratio)
        self.planning_s.append(auto.planning_s)
        self.errors += flow_errors(runs)
        if case.is_selective:
            self.to_central.append(of_central)

    def print(self) -> None:
        """Bytes of `auto` over the best and over central, estimates, and time of planning."""
        mean = sum(self.to_best) / len(self.to_best)
        print(f"auto over the best by hindsight: mean {mean:.3f}, at worst {max(self.to_best):.2f}", end=" ")
        print(f"({len(self.to_best)} cases)")
        if self.to_central:
            geometric = exp(sum(map(log, self.to_central)) / len(self.to_central))
            print(f"auto over central, selective: {geometric:.3f} in the geometric mean ({len(self.to_central)} cases)")
        close = sum(1 / 1.5 <= error <= 1.5 for error in self.errors)
        print(f"flows that matter foreseen within 1.5: {close} of {len(self.errors)} ({close / len(self.errors):.0%})")
        print(f"CPU seconds of planning: at most {max(self.planning_s):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flows", action="store_true")
    options = parser.parse_args()
    totals = Totals()
    for number in range(options.cases):
        totals.add(generated(options.seed + number), flows=options.flows)
    totals.print()


if __name__ == "__main__":
    main()
