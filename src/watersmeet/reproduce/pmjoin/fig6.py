"""PMJoin, figure 6 (section 4.1): the heuristic against Simple and the optimum, over the number of streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.pmjoin.plans import LABELS, PLANS, plans_of
from watersmeet.reproduce.workloads import WorkloadSource, different_shares, ship_rates, workload_of_sources

VALUES = 1_000
RATE = 100.0
LONGEST_S = (100, 10)  # as published, and shorter
SECONDS = 60.0
SEED = 6


@dataclass(frozen=True, slots=True)
class Point:
    """How long the longest window can be, how many streams, and the number of the draw."""

    longest_s: int
    streams: int
    draw: int


def sources_of(point: Point) -> list[WorkloadSource]:
    """Streams of the same rate, each at a site of its own; more streams are those of fewer and further ones."""
    rng = np.random.default_rng((SEED, point.draw))
    return [
        WorkloadSource(f"n{i}", RATE, point.longest_s * rng.uniform(0.1, 1), {0: different_shares(rng, VALUES)})
        for i in range(point.streams)
    ]


def _points(quick: bool) -> tuple[Point, ...]:
    counts, draws = ((2, 6, 10), 4) if quick else ((2, 4, 6, 8, 10, 12, 14), 12)
    return tuple(Point(longest, count, draw) for longest in LONGEST_S for count in counts for draw in range(draws))


def _run(point: Point) -> Row:
    sources = sources_of(point)
    plans = plans_of(workload_of_sources(sources))
    return {
        "windows": f"windows up to {point.longest_s} s",
        "streams": point.streams,
        "draw": point.draw,
        **ship_rates(sources, plans, SECONDS, SEED + point.draw),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    plots.lines(rows, path, panel="windows", x="streams", series=LABELS, xlabel="streams")


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["windows", "streams"], PLANS)
    per_stream = [row["simple"] / (row["streams"] - 1) for row in means]
    found = [finding(max(per_stream) < 1.01 * min(per_stream), "Simple grows in proportion to the number of streams")]
    for windows in dict.fromkeys(row["windows"] for row in means):
        own = [row for row in means if row["windows"] == windows]
        first, last = own[0], own[-1]
        apart = [row["heuristic"] / row["optimal"] - 1 for row in own]
        found += [
            finding(
                last["heuristic"] / last["simple"] < 0.95 * first["heuristic"] / first["simple"],
                f"{windows}: of Simple the heuristic ships {first['heuristic'] / first['simple']:.0%} "
                f"with {first['streams']} streams and {last['heuristic'] / last['simple']:.0%} with {last['streams']}, "
                f"the optimum {last['optimal'] / last['simple']:.0%}",
            ),
            finding(max(apart) <= 0.1, f"{windows}: the heuristic ships up to {max(apart):.0%} more than the optimum"),
        ]
    return found


EXPERIMENT = Experiment(
    name="pmjoin-fig6",
    title="Simple, heuristic and optimal plans against the number of streams",
    paper="PMJoin, figure 6",
    keys=("windows", "streams"),
    figures=PLANS,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "Simple grows in proportion to the number of streams",
        "heuristic and optimum gain more over Simple with more streams, and the heuristic is very close to the optimum",
    ),
    notes=(
        "As published: 1,000 values, 100 rows a second of every stream, windows from 10 to 100 s, any distribution; "
        "and the same again with windows a tenth as long, where joins thin streams out.",
        f"Counted over {SECONDS:g} s after the windows have filled; draws from seed {SEED} on.",
    ),
)
