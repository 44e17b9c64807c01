"""PIER, table 5.1 (5.8.3): LU, QR and SVD for linear aggregates, over all gains, for three shapes of F."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.reproduce.pier.plot import bars_by_size
from watersmeet.reproduce.pier.runs import (
    DECOMPOSITION,
    DRAWS,
    EXACT,
    FIGURES,
    LINEAR,
    QUICK_DRAWS,
    Point,
    by_algorithm,
    points_of,
    run_linear,
    summary,
)

QUERIES = 500
ALL_BASES = (25, 50, 100, 150, 200, 250, 300, 350, 400, 450, 475)
SHORT_BASES = (100, 150, 200, 250)
SHAPES = {250: SHORT_BASES, 500: ALL_BASES, 750: ALL_BASES}
# Mean size of A', its deviation, effectiveness in %, ms; rows 250x500 and 750x500 as they must have been meant.
PUBLISHED = {
    ("250x500", "LU"): (235.6, 35.4, 83.4, 577.5),
    ("250x500", "QR"): (175.0, 56.6, 100.0, 452.7),
    ("250x500", "SVD"): (175.0, 56.6, 100.0, 3170.5),
    ("500x500", "LU"): (345.6, 164.0, 48.5, 689.3),
    ("500x500", "QR"): (250.0, 151.8, 100.0, 702.2),
    ("500x500", "SVD"): (250.0, 151.8, 100.0, 6931.0),
    ("750x500", "LU"): (346.6, 164.1, 53.3, 884.8),
    ("750x500", "QR"): (250.0, 151.8, 100.0, 1057.6),
    ("750x500", "SVD"): (250.0, 151.8, 100.0, 9989.5),
}


def _points(quick: bool) -> tuple[Point, ...]:
    return points_of(SHAPES, QUERIES, LINEAR, QUICK_DRAWS if quick else DRAWS, quick=quick)


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = []
    for size in dict.fromkeys(row["F size"] for row in rows):
        own = by_algorithm(rows, size)
        effective = {name: summary(some, "effective %")[0] for name, some in own.items()}
        best = all(effective[name] == 100 for name in ("QR", "SVD"))
        found.append(finding(best, f"{size}: QR and SVD always find the rank"))
        least, most = min(effective["LU"], effective["LU, tolerance 1e-15"]), effective["LU"]
        published = PUBLISHED[size, "LU"][2]
        found.append(
            finding(
                effective["LU"] < 100,
                f"{size}: LU falls behind, {most:.1f} % effective ({least:.1f} % with a tolerance of 1e-15) where the "
                f"paper has {published} %; one that leaves out columns without a pivot is "
                f"{effective['LU echelon']:.1f} % effective",
            )
        )
        slower = summary(own["SVD"], "ms")[0] / summary(own["QR"], "ms")[0]
        found.append(finding(slower > 2, f"{size}: SVD takes {slower:.1f} times as long as QR (published: about 10)"))
        exact = summary(own[EXACT], "ms")[0]
        found.append(
            f"beyond the paper: {size}: the exact decomposition, with its check in whole numbers, is "
            f"{effective[EXACT]:.1f} % effective and takes {exact:.1f} ms"
        )
        worse = sum(row["A' size"] > QUERIES for row in own[DECOMPOSITION]) / len(own[DECOMPOSITION])
        poor = effective[DECOMPOSITION]
        found.append(
            finding(
                poor < 50,
                f"{size}: Basic Decomposition is {poor:.1f} % effective and has more rows than queries in "
                f"{100 * worse:.0f} % of the draws, where it would fall back to no sharing",
            )
        )
    return found


def _plot(rows: Sequence[Row], path: Path) -> None:
    bars_by_size([row for row in rows if row["algorithm"] != DECOMPOSITION], path)


EXPERIMENT = Experiment(
    name="pier-table5.1",
    title="LU, QR and SVD for linear aggregates",
    paper="PIER, table 5.1",
    keys=("F size", "algorithm"),
    figures=("basis rows", *FIGURES),
    points=_points,
    run=run_linear,
    plot=_plot,
    verdict=_verdict,
    published=tuple(
        f"{size} {name}: A' {mean} ({deviation}), {effective} %, {ms} ms"
        for (size, name), (mean, deviation, effective, ms) in PUBLISHED.items()
    ),
    notes=(
        "Matrices of the duplicate-sensitive generator with 25, 50, 100, 150 ... 450 and 475 basis rows (100 to 250 "
        "for 250x500), ten draws of each; quick: every fourth number, one draw.",
        "The paper's rows 250x500 and 750x500 are exchanged here: a rank of up to 475 needs as many fragments.",
        "Tolerances are relative to the largest entry of U or R (rows) or to the largest singular value; where none is "
        "given it is the unit of doubles times the longer side.",
        "ms is processor time of one run.",
    ),
    unit="entries of A', %, ms",
)
