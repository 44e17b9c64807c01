"""PIER, figure 5.6 (5.8.3): running time of compositions as square matrices grow."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.reproduce.pier.plot import draw
from watersmeet.reproduce.pier.runs import (
    COVER,
    FIGURES,
    Point,
    by_algorithm,
    power_of_growth,
    run_compositions,
    square_points,
)

SIZES, QUICK_SIZES = (50, 100, 200, 300, 500), (30, 60)
DRAWS = 3
ALGORITHMS = ("Basic-M/A/W", "Add-M/A/P", "Add-M/A/W", COVER)


def _points(quick: bool) -> tuple[Point, ...]:
    sizes, draws = (QUICK_SIZES, 1) if quick else (SIZES, DRAWS)
    return square_points(sizes, ALGORITHMS, draws)


def _verdict(rows: Sequence[Row]) -> list[str]:
    own = by_algorithm(rows)
    found = []
    for name in ALGORITHMS:
        last_ms, size, power = power_of_growth(own[name])
        found.append(
            finding(
                power > 1,
                f"{name} takes {last_ms:,.0f} ms at {size} queries, growing with the power {power:.1f} of their "
                "number (published: more than linear)",
            )
        )
    return found


def _plot(rows: Sequence[Row], path: Path) -> None:
    panels = (("ms", "processor time (ms)", True), ("effective %", "effectiveness (%)", False))
    draw(rows, path, x="queries", xlabel="queries and fragments", panels=panels)


EXPERIMENT = Experiment(
    name="pier-fig5.6",
    title="Running time of compositions by size",
    paper="PIER, figure 5.6",
    keys=("queries", "algorithm"),
    figures=("basis rows", *FIGURES),
    points=_points,
    run=run_compositions,
    plot=_plot,
    verdict=_verdict,
    published=(
        "none of the algorithms scales well; Add Composition considerably better than Basic Composition",
        "effectiveness stays the same or grows a little with the size",
    ),
    notes=(
        "Half as many basis rows as queries, three draws; the paper's sizes and gain are in its plot only, which we do "
        "not have. Quick: 30 and 60 queries, one draw.",
    ),
    unit="entries of A', %, ms",
)
