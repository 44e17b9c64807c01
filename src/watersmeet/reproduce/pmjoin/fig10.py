"""PMJoin, figure 10 (section 4.2): partitioned plans over the number of streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from watersmeet.planners.trees import stream_join_opt
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.pmjoin.fig8 import METHODS, SEED, Planning, hot_spot_sources
from watersmeet.reproduce.workloads import ship_rates, unpartitioned, workload_of_sources

SPOTS = {"contiguous hot spot": "CHS DD", "random hot spot": "RHS DD", "random, each its own": "RHS DD own"}
PARTS = (500, 1_000)
FIGURES = ("none", *(f"{method} {parts}" for parts in PARTS for method in METHODS))
SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Point:
    """Where hot spots are, how many streams, and the number of the draw."""

    spot: str
    streams: int
    draw: int


def _points(quick: bool) -> tuple[Point, ...]:
    counts, draws = ((4, 8), 1) if quick else ((2, 4, 6, 8, 10, 12, 14), 10)
    return tuple(Point(spot, count, draw) for spot in SPOTS for count in counts for draw in range(draws))


def _run(point: Point) -> Row:
    sources = hot_spot_sources(SPOTS[point.spot], point.streams, point.draw)
    workload = workload_of_sources(sources)
    plan = Planning(workload)
    plans = {"none": unpartitioned(stream_join_opt(workload))}
    plans |= {f"{method} {parts}": plan(method, parts) for parts in PARTS for method in METHODS}
    return {
        "hot spot": point.spot,
        "streams": point.streams,
        "draw": point.draw,
        **ship_rates(sources, plans, SECONDS, SEED + point.draw),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    series = {"none": "1 part"} | {name: name for name in FIGURES[1:]}
    plots.lines(rows, path, panel="hot spot", x="streams", series=series, xlabel="streams")


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["hot spot", "streams"], FIGURES)
    found = []
    for spot in dict.fromkeys(row["hot spot"] for row in means):
        own = [row for row in means if row["hot spot"] == spot]
        first, last = own[0], own[-1]
        better, worse = ("range", "hash") if spot.startswith("contiguous") else ("hash", "range")
        wins = sum(row[f"{better} 500"] <= 1.005 * row[f"{worse} 500"] for row in own)
        rate = sum(
            row[f"rate {parts}"] <= 1.005 * min(row[f"{method} {parts}"] for method in METHODS)
            for row in own
            for parts in PARTS
        )
        gain = [1 - row["rate 1000"] / row["none"] for row in own]
        found += [
            finding(
                all(less < more for less, more in pairwise(gain)),
                f"{spot}: with 1,000 parts less is shipped by "
                + ", ".join(f"{saved:.0%} ({row['streams']} streams)" for saved, row in zip(gain, own, strict=True)),
            ),
            finding(
                last["none"] > first["none"] and last["rate 1000"] < first["rate 1000"],
                f"{spot}: from {first['streams']} to {last['streams']} streams the plan without partitions goes from "
                f"{first['none']:,.0f} to {last['none']:,.0f}, that with 1,000 parts from {first['rate 1000']:,.0f} "
                f"to {last['rate 1000']:,.0f}",
            ),
            finding(rate == 2 * len(own), f"{spot}: rate is the best, within 0.5 %, in {rate} of {2 * len(own)} cases"),
            finding(wins == len(own), f"{spot}: with 500 parts {better} beats {worse} in {wins} of {len(own)} cases"),
        ]
    return found


EXPERIMENT = Experiment(
    name="pmjoin-fig10",
    title="Partitioned plans against the number of streams",
    paper="PMJoin, figure 10",
    keys=("hot spot", "streams"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "partitions gain more with more streams; without them the cost grows, with most of them it falls",
        "rate is the best; range beats hash for a contiguous hot spot, and the reverse for a random one",
    ),
    notes=(
        "Different distributions, and otherwise as in figure 8: 1,000 values, rates from 10 to 1000 a second, windows "
        "from 10 to 100 s.",
        f"Counted over {SECONDS:g} s after the windows have filled; 10 draws from seed {SEED} on.",
    ),
)
