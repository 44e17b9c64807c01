"""PMJoin, figure 7 (section 4.1): what the first step of the heuristic is worth where sites have several streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.planners.trees import local_first, optimal, stream_join_opt
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.workloads import (
    WorkloadSource,
    different_shares,
    ship_rates,
    unpartitioned,
    workload_of_sources,
)

NODES = 5
VALUES = (1_000, 10_000)  # as published, and ten times as many
PLANS = ("local", "heuristic", "optimal")
SECONDS = 5.0
SEED = 7


@dataclass(frozen=True, slots=True)
class Point:
    """How many values and streams over all nodes, and the number of the draw."""

    values: int
    streams: int
    draw: int


def sources_of(point: Point) -> list[WorkloadSource]:
    """One stream at each node, and further ones at random nodes."""
    rng = np.random.default_rng((SEED, point.draw))
    homes = [*range(NODES), *rng.integers(NODES, size=20)]
    return [
        WorkloadSource(
            f"n{homes[i]}", rng.uniform(100, 500), rng.uniform(10, 100), {0: different_shares(rng, point.values)}
        )
        for i in range(point.streams)
    ]


def _points(quick: bool) -> tuple[Point, ...]:
    counts, draws = ((5, 8, 10), 3) if quick else ((5, 7, 9, 11, 13), 20)
    return tuple(Point(values, count, draw) for values in VALUES for count in counts for draw in range(draws))


def _run(point: Point) -> Row:
    sources = sources_of(point)
    workload = workload_of_sources(sources)
    plans = {
        "local": unpartitioned(local_first(workload)),
        "heuristic": unpartitioned(stream_join_opt(workload)),
        "optimal": unpartitioned(optimal(workload)),
    }
    return {
        "values": f"{point.values:,} values",
        "streams a node": point.streams / NODES,
        "draw": point.draw,
        **ship_rates(sources, plans, SECONDS, SEED + point.draw),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    series = {"local": "Local", "heuristic": "heuristic", "optimal": "optimal"}
    plots.lines(rows, path, panel="values", x="streams a node", series=series, xlabel="streams a node", logy=True)


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["values", "streams a node"], PLANS)
    found = []
    for values in dict.fromkeys(row["values"] for row in means):
        own = [row for row in means if row["values"] == values]
        last = own[-1]
        found.append(
            finding(
                all(row["heuristic"] <= 1.02 * row["local"] for row in own) and last["heuristic"] < 0.9 * last["local"],
                f"{values}: the heuristic works better than Local: with {last['streams a node']:g} streams a node "
                f"{last['heuristic']:,.0f} a second against {last['local']:,.0f}; the optimum {last['optimal']:,.0f}",
            )
        )
    return found


EXPERIMENT = Experiment(
    name="pmjoin-fig7",
    title="Local, heuristic and optimal plans against the number of streams on each node",
    paper="PMJoin, figure 7",
    keys=("values", "streams a node"),
    figures=PLANS,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("the heuristic works better than Local, which also makes local joins that increase the rate",),
    notes=(
        "As published: 5 nodes, rates from 100 to 500 a second, windows from 10 to 100 s and 1,000 values; and the "
        "same with 10,000 values. What Local ships is counted without making it, so no draw is left out.",
        f"Counted over {SECONDS:g} s after the windows have filled; draws from seed {SEED} on.",
    ),
)
