"""PIER, table 5.2 (5.8.3): compositions for duplicate-insensitive aggregates, over all gains, for three shapes of F."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.reproduce.pier.plot import bars_by_size
from watersmeet.reproduce.pier.runs import (
    COMPOSITIONS,
    COVER,
    DECOMPOSITION,
    DRAWS,
    FIGURES,
    QUICK_DRAWS,
    Point,
    by_algorithm,
    mean_of,
    points_of,
    run_compositions,
)

QUERIES = 100
ALL_BASES = (*range(10, 91, 10), 95)
SHORT_BASES = (10, 20, 30, 40, 50)
SHAPES = {50: SHORT_BASES, 100: ALL_BASES, 150: ALL_BASES}
# Mean size of A', effectiveness in %, ms.
PUBLISHED: dict[str, dict[str, tuple[float, float, float]]] = {
    "50x100": {
        "Basic-M/A/W": (60.9, 53.6, 33304),
        "Add-O/A": (57.6, 58.4, 28416),
        "Add-O/R": (48.6, 73.1, 19622),
        "Add-O/S": (49.4, 72.0, 9059),
        "Add-M/A/D": (55.6, 61.5, 35145),
        "Add-M/A/P": (45.2, 78.3, 2730),
        "Add-M/A/W": (52.6, 66.5, 5190),
        "Add-M/R/D": (87.6, 18.4, 33409),
        "Add-M/S/D": (49.7, 71.4, 12675),
        "Add-M/R/P": (87.9, 18.1, 33475),
        "Add-M/S/P": (87.9, 18.1, 33145),
        "Add-M/R/W": (87.6, 18.4, 33424),
        "Add-M/S/W": (99.8, 0.3, 22610),
    },
    "100x100": {
        "Basic-M/A/W": (77.8, 47.5, 38740),
        "Add-O/A": (77.1, 41.4, 36493),
        "Add-O/R": (67.3, 72.2, 26433),
        "Add-O/S": (66.7, 74.1, 9924),
        "Add-M/A/D": (77.3, 41.1, 45602),
        "Add-M/A/P": (64.6, 79.6, 4170),
        "Add-M/A/W": (71.7, 58.0, 6975),
        "Add-M/R/D": (96.5, 6.0, 56812),
        "Add-M/S/D": (67.7, 72.3, 14727),
        "Add-M/R/P": (96.3, 6.2, 56416),
        "Add-M/S/P": (96.3, 6.2, 56453),
        "Add-M/R/W": (96.5, 6.0, 56754),
        "Add-M/S/W": (99.6, 1.5, 18984),
    },
    "150x100": {
        "Basic-M/A/W": (77.3, 48.6, 44446),
        "Add-O/A": (78.0, 40.8, 46702),
        "Add-O/R": (67.6, 71.1, 39248),
        "Add-O/S": (65.8, 76.1, 11672),
        "Add-M/A/D": (77.9, 40.6, 59397),
        "Add-M/A/P": (64.6, 79.9, 5788),
        "Add-M/A/W": (71.9, 57.6, 8694),
        "Add-M/R/D": (96.7, 6.0, 67981),
        "Add-M/S/D": (67.7, 73.2, 18458),
        "Add-M/R/P": (96.5, 6.3, 68117),
        "Add-M/S/P": (96.5, 6.3, 68173),
        "Add-M/R/W": (96.7, 6.0, 67929),
        "Add-M/S/W": (99.6, 1.5, 22105),
    },
}


def _points(quick: bool) -> tuple[Point, ...]:
    return points_of(SHAPES, QUERIES, COMPOSITIONS, QUICK_DRAWS if quick else DRAWS, quick=quick)


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = []
    for size in dict.fromkeys(row["F size"] for row in rows):
        own = by_algorithm(rows, size)
        effective = {name: mean_of(some, "effective %") for name, some in own.items()}
        spent = {name: mean_of(some, "ms") for name, some in own.items()}
        published = PUBLISHED[size]
        adds = [name for name in effective if name.startswith("Add-")]
        best = max(adds, key=lambda name: effective[name])
        queued = effective["Add-M/A/P"]
        found.append(
            finding(
                abs(queued - published["Add-M/A/P"][1]) < 10,
                f"{size}: Add-M/A/P is {queued:.1f} % effective (published {published['Add-M/A/P'][1]} %)",
            )
        )
        found.append(
            finding(
                effective[best] - queued < 1,
                f"{size}: the most effective strategy is {best} with {effective[best]:.1f} %, Add-M/A/P has "
                f"{queued:.1f} %",
            )
        )
        fastest = min(adds, key=lambda name: spent[name])
        found.append(
            finding(
                spent["Add-M/A/P"] < 1.1 * spent[fastest],
                f"{size}: the fastest strategy is {fastest} with {spent[fastest]:.1f} ms, Add-M/A/P takes "
                f"{spent['Add-M/A/P']:.1f} ms (published {published['Add-M/A/P'][2]:,.0f} ms)",
            )
        )
        poor = max(effective[name] for name in ("Add-M/R/D", "Add-M/R/P", "Add-M/R/W", "Add-M/S/P", "Add-M/S/W"))
        found.append(
            finding(
                poor < 30,
                f"{size}: strategies with long stretches of BLENDs (M/R, M/S/P, M/S/W) are up to {poor:.1f} % "
                "effective where the paper has at most 18.4 %",
            )
        )
        found.append(
            f"beyond the paper: {size}: the rectangle cover is {effective[COVER]:.1f} % effective and takes "
            f"{spent[COVER]:.1f} ms"
        )
        shared = sum(row["A' size"] < QUERIES for row in own[DECOMPOSITION]) / len(own[DECOMPOSITION])
        found.append(
            finding(
                shared < 0.5,
                f"{size}: Basic Decomposition shares anything in {100 * shared:.0f} % of the draws",
            )
        )
    return found


def _plot(rows: Sequence[Row], path: Path) -> None:
    shown = ("Basic-M/A/W", "Add-O/R", "Add-M/A/P", "Add-M/A/W", "Add-M/S/W", COVER)
    bars_by_size([row for row in rows if row["algorithm"] in shown], path)


EXPERIMENT = Experiment(
    name="pier-table5.2",
    title="Compositions for duplicate-insensitive aggregates",
    paper="PIER, table 5.2",
    keys=("F size", "algorithm"),
    figures=("basis rows", *FIGURES),
    points=_points,
    run=run_compositions,
    plot=_plot,
    verdict=_verdict,
    published=tuple(
        f"{size} {name}: A' {mean}, {effective} %, {ms:,} ms"
        for size, own in PUBLISHED.items()
        for name, (mean, effective, ms) in own.items()
    ),
    notes=(
        "Matrices of the duplicate-insensitive generator with 10, 20 ... 90 and 95 basis rows (10 to 50 for 50x100), "
        "ten draws of each; quick: every fourth number, one draw. The paper does not give these numbers.",
        "Additional queries have a random number of base queries and differ as columns. Drawn uniformly from all "
        "disjunctions, as the text says, nearly all of them would have every fragment.",
        "New in Add Composition is only the row that was added for a query; queued operations are checked again before "
        "they are done. Effectiveness is against the number of basis rows of the generator.",
        "ms is processor time of one run.",
    ),
    unit="entries of A', %, ms",
)
