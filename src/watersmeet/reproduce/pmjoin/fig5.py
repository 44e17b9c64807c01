"""PMJoin, figure 5 (section 4.1): the heuristic against Simple and the optimum, over the range of the key values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.pmjoin.plans import LABELS, PLANS, plans_of
from watersmeet.reproduce.workloads import (
    WorkloadSource,
    different_shares,
    ship_rates,
    similar_shares,
    workload_of_sources,
)

STREAMS = 10
SITUATIONS = ("LASW SD", "LASW DD", "HASW SD", "HASW DD")
SECONDS = 5.0
SEED = 5


@dataclass(frozen=True, slots=True)
class Point:
    """A situation, the highest key value, and the number of the draw."""

    situation: str
    values: int
    draw: int


def sources_of(point: Point) -> list[WorkloadSource]:
    """Ten streams, each at a site of its own; the same rates, windows and kinds of distribution for every range."""
    order, kind = point.situation.split()
    rng = np.random.default_rng((SEED, point.draw))
    rates = np.sort(rng.uniform(10, 1000, STREAMS))
    windows = np.sort(rng.uniform(10, 100, STREAMS))
    if order == "HASW":
        windows = windows[::-1]
    draw = similar_shares if kind == "SD" else different_shares
    return [WorkloadSource(f"n{i}", rates[i], windows[i], {0: draw(rng, point.values)}) for i in range(STREAMS)]


def _points(quick: bool) -> tuple[Point, ...]:
    ranges = (100, 1_000, 10_000) if quick else (10, 100, 1_000, 10_000, 100_000)
    draws = range(1 if quick else 10)
    return tuple(Point(situation, values, draw) for situation in SITUATIONS for values in ranges for draw in draws)


def _run(point: Point) -> Row:
    sources = sources_of(point)
    plans = plans_of(workload_of_sources(sources))
    return {
        "situation": point.situation,
        "values": point.values,
        "draw": point.draw,
        **ship_rates(sources, plans, SECONDS, SEED + point.draw),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    plots.lines(rows, path, panel="situation", x="values", series=LABELS, xlabel="highest key value", logx=True)


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["situation", "values"], PLANS)
    low, high = min(row["values"] for row in means), max(row["values"] for row in means)
    first = [row for row in means if row["values"] == low]
    last = [row for row in means if row["values"] == high]
    apart = [row["heuristic"] / row["optimal"] - 1 for row in means]
    worst = means[int(np.argmax(apart))]
    return [
        finding(
            all(row["simple"] <= 1.02 * row["optimal"] for row in first),
            f"with {low:,} values all three ship the same",
        ),
        finding(
            all(row["heuristic"] < 0.9 * row["simple"] for row in last),
            f"with {high:,} values the heuristic ships "
            + ", ".join(f"{row['heuristic'] / row['simple']:.1%} ({row['situation']})" for row in last)
            + " of Simple",
        ),
        finding(
            float(np.mean(apart)) <= 0.05,
            f"the heuristic ships {np.mean(apart):.1%} more than the optimum on average, at worst {max(apart):.0%} "
            f"({worst['situation']}, {worst['values']:,} values)",
        ),
    ]


EXPERIMENT = Experiment(
    name="pmjoin-fig5",
    title="Simple, heuristic and optimal plans against the range of key values",
    paper="PMJoin, figure 5",
    keys=("situation", "values"),
    figures=PLANS,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "Simple does not depend on the range; with small ranges all three cost the same",
        "heuristic and optimum fall as the range grows, and the heuristic is very close to the optimum",
    ),
    notes=(
        "Rates from 10 to 1000 a second and windows from 10 to 100 s, as section 4.2 has them; figure 5 names none.",
        f"Counted over {SECONDS:g} s after the windows have filled; draws from seed {SEED} on.",
    ),
)
