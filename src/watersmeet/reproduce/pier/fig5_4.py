"""PIER, figure 5.4 (5.8.3): running time of the linear decompositions as square matrices grow."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.reproduce.pier.plot import draw
from watersmeet.reproduce.pier.runs import (
    EXACT,
    FIGURES,
    Point,
    by_algorithm,
    power_of_growth,
    run_linear,
    square_points,
)

SIZES, QUICK_SIZES = (125, 250, 500, 1000), (60, 120)
DRAWS = 3
ALGORITHMS = ("LU", "QR", "SVD", EXACT)


def _points(quick: bool) -> tuple[Point, ...]:
    sizes, draws = (QUICK_SIZES, 1) if quick else (SIZES, DRAWS)
    return square_points(sizes, ALGORITHMS, draws)


def _verdict(rows: Sequence[Row]) -> list[str]:
    own = by_algorithm(rows)
    found = []
    for name in ("QR", "SVD"):
        last_ms, size, power = power_of_growth(own[name])
        found.append(
            finding(
                1.5 < power < 4,
                f"{name} takes {last_ms:.0f} ms at {size} queries, growing with the power {power:.1f} of their "
                "number (published: 3)",
            )
        )
    return found


def _plot(rows: Sequence[Row], path: Path) -> None:
    draw(rows, path, x="queries", xlabel="queries and fragments", panels=(("ms", "processor time (ms)", True),))


EXPERIMENT = Experiment(
    name="pier-fig5.4",
    title="Running time of linear decompositions by size",
    paper="PIER, figure 5.4",
    keys=("queries", "algorithm"),
    figures=("basis rows", *FIGURES),
    points=_points,
    run=run_linear,
    plot=_plot,
    verdict=_verdict,
    published=("running time grows with the cube of the number of queries",),
    notes=(
        "Half as many basis rows as queries, three draws; the paper's sizes and gain are in its plot only, which we do "
        "not have. Quick: 60 and 120 queries, one draw.",
    ),
    unit="entries of A', %, ms",
)
