"""PIER, figure 5.5 (5.8.3): compositions against the least number of basis rows, 100 queries and 100 fragments."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.reproduce.pier.plot import draw
from watersmeet.reproduce.pier.runs import COVER, DRAWS, FIGURES, QUICK_DRAWS, Point, by_algorithm, run_compositions
from watersmeet.reproduce.pier.table5_2 import ALL_BASES, QUERIES

ALGORITHMS = ("Basic-M/A/W", "Add-O/R", "Add-M/A/P", "Add-M/A/D", "Add-M/A/W", "Add-M/R/W", COVER)


def _points(quick: bool) -> tuple[Point, ...]:
    bases, draws = (ALL_BASES[::4], QUICK_DRAWS) if quick else (ALL_BASES, DRAWS)
    return tuple(Point(QUERIES, QUERIES, basis, number, ALGORITHMS) for basis in bases for number in range(draws))


def _verdict(rows: Sequence[Row]) -> list[str]:
    own = by_algorithm(rows)
    never_worse = all(row["A' size"] <= row["queries"] for row in rows)
    ahead = all(
        best["A' size"] <= other["A' size"]
        for name, some in own.items()
        for best, other in zip(own[COVER], some, strict=True)
    )
    return [
        finding(never_worse, "no composition needs more aggregates than there are queries"),
        f"beyond the paper: the rectangle cover is {'never' if ahead else 'sometimes'} larger than a composition",
    ]


def _plot(rows: Sequence[Row], path: Path) -> None:
    panels = (
        ("A' size", "size of A'", False),
        ("effective %", "effectiveness (%)", False),
        ("ms", "processor time (ms)", True),
    )
    draw(rows, path, x="basis rows", xlabel="least number of basis rows", panels=panels, optimum=True)


EXPERIMENT = Experiment(
    name="pier-fig5.5",
    title="Compositions of 100x100 matrices by potential gain",
    paper="PIER, figure 5.5",
    keys=("basis rows", "algorithm"),
    figures=FIGURES,
    points=_points,
    run=run_compositions,
    plot=_plot,
    verdict=_verdict,
    published=(
        "Add-M/A/P is the most effective and the fastest, Add-O/R nearly as effective and much slower",
        "M/R/W is the least effective of those shown",
    ),
    notes=("Ten draws of each number of basis rows; quick: every fourth, one draw. See pier-table5.2.",),
    unit="entries of A', %, ms",
)
