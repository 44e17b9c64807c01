"""RJoin, figure 6 (section 8): queries of four, six and eight relations."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    FEW_QUERIES,
    SEEDS,
    Point,
    draws,
    figure_experiment,
    pattern_verdicts,
    rising_verdicts,
    rows_by,
)
from watersmeet.sim.rjoin.measured import RJoinExperiment
from watersmeet.sim.rjoin.workload import ZipfWorkload

WAYS = (4, 6, 8)
PATTERN = 2.0  # loads at a rank, over the mean load, that differ by less make the same pattern


def _points(quick: bool) -> tuple[Point, ...]:
    queries, tuples, seeds = (200, 300, 1) if quick else (FEW_QUERIES, 1_000, SEEDS)
    points = [
        Point(
            (("ways", ways),),
            RJoinExperiment(workload=ZipfWorkload(ways=ways, own_ranking=True), queries=queries, tuples=(tuples,)),
        )
        for ways in WAYS
    ]
    return draws(points, seeds)


def _plot(rows: Sequence[Row], path: Path) -> None:
    draw(rows, path, x="ways", xlabel="relations of a query")


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = rows_by(rows, "ways")
    own = [found[ways] for ways in WAYS]

    def growth(figure: str) -> str:
        six, eight = (row[figure] / own[0][figure] for row in own[1:])
        return (
            f"{figure} grows with the joins of a query: 6-way and 8-way queries have {six:.1f} and {eight:.1f} times "
            "that of 4-way ones"
        )

    def spread(kind: str, patterns: Sequence[str]) -> str:
        return (
            f"{kind} is shared in a similar way: ranks 10, 100 and 500 have {'; '.join(patterns)} times the mean with "
            "4, 6 and 8 relations"
        )

    return [*rising_verdicts(own, growth), *pattern_verdicts(own, PATTERN, spread)]


EXPERIMENT = figure_experiment(
    6,
    title="RJoin with 4-way, 6-way and 8-way queries",
    keys=("ways",),
    points=_points,
    plot=_plot,
    verdict=_verdict,
    published=(
        "queries of more relations need more traffic, processing and storage",
        "what is more is shared among the nodes in a similar way",
    ),
    notes=(
        "1,000 nodes, theta 0.9 and 1,000 tuples as published; 2,000 queries where the paper has 20,000, and rankings "
        "of values of their own: with one ranking, rewritten queries of 8 relations would be too many. Quick: 200 "
        "queries, 300 tuples.",
    ),
)
