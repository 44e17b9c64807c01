"""PIER, figure 5.3 (5.8.3): LU, QR and SVD against the least number of basis rows, 500 queries and 500 fragments."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.reproduce.pier.plot import draw
from watersmeet.reproduce.pier.runs import (
    DECOMPOSITION,
    DRAWS,
    FIGURES,
    LINEAR,
    QUICK_DRAWS,
    Point,
    by_algorithm,
    mean_of,
    run_linear,
)
from watersmeet.reproduce.pier.table5_1 import ALL_BASES, QUERIES

ALGORITHMS = tuple(name for name in LINEAR if name != DECOMPOSITION)


def _points(quick: bool) -> tuple[Point, ...]:
    bases, draws = (ALL_BASES[::4], QUICK_DRAWS) if quick else (ALL_BASES, DRAWS)
    return tuple(Point(QUERIES, QUERIES, basis, number, ALGORITHMS) for basis in bases for number in range(draws))


def _verdict(rows: Sequence[Row]) -> list[str]:
    own = by_algorithm(rows)
    optimal = all(row["A' size"] == row["basis rows"] for name in ("QR", "SVD") for row in own[name])
    bases = sorted({row["basis rows"] for row in rows})
    low, high = (
        mean_of([row for row in own["LU"] if row["basis rows"] == basis], "effective %")
        for basis in (bases[-1], bases[0])
    )
    return [
        finding(optimal, "QR and SVD lie on the line of the least A' at every gain"),
        finding(
            low < 50 < high,
            f"LU is {high:.0f} % effective at the highest gain and {low:.0f} % at the lowest (published: near optimal "
            "and low)",
        ),
    ]


def _plot(rows: Sequence[Row], path: Path) -> None:
    panels = (("A' size", "size of A'", False), ("ms", "processor time (ms)", True))
    draw(rows, path, x="basis rows", xlabel="least number of basis rows", panels=panels, optimum=True)


EXPERIMENT = Experiment(
    name="pier-fig5.3",
    title="Linear decompositions of 500x500 matrices by potential gain",
    paper="PIER, figure 5.3",
    keys=("basis rows", "algorithm"),
    figures=FIGURES,
    points=_points,
    run=run_linear,
    plot=_plot,
    verdict=_verdict,
    published=(
        "QR and SVD are always optimal; LU has low effectiveness where the potential gain is small",
        "LU and QR are about ten times as fast as SVD",
    ),
    notes=("Ten draws of each number of basis rows; quick: every fourth, one draw. See pier-table5.1.",),
    unit="entries of A', %, ms",
)
