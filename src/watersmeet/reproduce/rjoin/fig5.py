"""RJoin, figure 5 (section 8): relations and values are ever more skewed."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    ONE_RANKING,
    OWN_RANKINGS,
    RANKING_NOTE,
    RANKINGS,
    Point,
    fewest,
    figure_experiment,
    is_rising,
    rows_by,
    sized,
)
from watersmeet.sim.rjoin.measured import RJoinExperiment
from watersmeet.sim.rjoin.workload import ZipfWorkload

THETAS = (0.3, 0.5, 0.7, 0.9)


def _points(quick: bool) -> tuple[Point, ...]:
    tuples = 400 if quick else 1_000

    def points(queries: int) -> list[Point]:
        return [
            Point(
                (("ranking", ranking), ("theta", theta)),
                RJoinExperiment(
                    workload=ZipfWorkload(theta=theta, own_ranking=ranking == OWN_RANKINGS),
                    queries=queries,
                    tuples=(tuples,),
                ),
            )
            for ranking in RANKINGS
            for theta in THETAS
        ]

    return sized(points, quick)


def _plot(rows: Sequence[Row], path: Path) -> None:
    rows = fewest(rows)
    own = [row for row in rows if row["ranking"] == ONE_RANKING]
    draw(rows, path, x="theta", series="ranking", curves=own, xlabel="theta")


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = rows_by(fewest(rows), "ranking", "theta")
    sentences = []
    for ranking, name in RANKINGS.items():
        own = [found[ranking, theta] for theta in THETAS]
        for figure in ("load", "storage", "highest load", "highest storage", "traffic", "grouped traffic"):
            values = [row[figure] for row in own]
            sentences.append(
                finding(
                    is_rising(values),
                    f"{name}: {figure} grows with theta{' (published: slightly)' if 'traffic' in figure else ''}: "
                    + ", ".join(f"{value:.2f}" if value < 1_000 else f"{value:,.0f}" for value in values),
                )
            )
        rates = [row["RIC traffic"] for row in own]
        sentences.append(
            finding(
                is_rising([-rate for rate in rates]),
                f"{name}: RIC traffic falls with theta: " + ", ".join(f"{rate:.2f}" for rate in rates),
            )
        )
    return sentences


EXPERIMENT = figure_experiment(
    5,
    title="RJoin with ever more skewed values",
    keys=("queries", "ranking", "theta"),
    points=_points,
    plot=_plot,
    verdict=_verdict,
    published=(
        "load and storage grow with theta, and so do those of the node that has most",
        "traffic grows slightly, while that for RIC falls",
    ),
    notes=(
        "As published: 1,000 nodes, 4-way queries, 1,000 tuples; 2,000 queries with ten seeds, and 20,000, as "
        "published, with one. Quick: 200 queries, 400 tuples.",
        RANKING_NOTE,
    ),
)
