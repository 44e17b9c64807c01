"""RJoin, figure 9 (section 8): nodes that have little to do take other places on the circle."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    OWN_RANKINGS,
    RANKING_NOTE,
    RANKINGS,
    Point,
    figure_experiment,
    rows_by,
)
from watersmeet.sim.rjoin.measured import RJoinExperiment
from watersmeet.sim.rjoin.workload import ZipfWorkload

EVERY = 50  # tuples between two rounds of id movement
HALVED = (0.33, 0.67)  # about the half


def _points(quick: bool) -> tuple[Point, ...]:
    queries, tuples = (200, 400) if quick else (20_000, 1_000)
    return tuple(
        Point(
            (("ranking", ranking), ("movement", movement)),
            RJoinExperiment(
                workload=ZipfWorkload(own_ranking=ranking == OWN_RANKINGS),
                queries=queries,
                tuples=(tuples,),
                move_every=EVERY if movement == "with" else None,
            ),
        )
        for ranking in RANKINGS
        for movement in ("without", "with")
    )


def _plot(rows: Sequence[Row], path: Path) -> None:
    draw(rows, path, x="movement", series="ranking", xlabel="id movement")


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = rows_by(rows, "ranking", "movement")
    sentences = []
    for ranking, name in RANKINGS.items():
        before, after = found[ranking, "without"], found[ranking, "with"]
        for figure in ("highest load", "highest storage"):
            left = after[figure] / before[figure]
            sentences.append(
                finding(
                    HALVED[0] <= left <= HALVED[1],
                    f"{name}: {figure} falls from {before[figure]:,.0f} to {after[figure]:,.0f}, {left:.2f} times "
                    "that, with rates that are never asked again (published: 4,000 to 2,000)",
                )
            )
        sentences.append(
            finding(
                after["nodes"] > before["nodes"],
                f"{name}: {after['nodes']:.0f} nodes take part and not {before['nodes']:.0f} (published: 900, not 700)",
            )
        )
    return sentences


EXPERIMENT = figure_experiment(
    9,
    title="RJoin with and without id movement",
    keys=("ranking", "movement"),
    points=_points,
    plot=_plot,
    verdict=_verdict,
    published=(
        "with id movement the highest load is 2,000 and not 4,000",
        "900 of 1,000 nodes take part, and not 700",
    ),
    notes=(
        "As published: 1,000 nodes, 20,000 4-way queries, theta 0.9, 1,000 tuples. Quick: 200 queries, 400 tuples.",
        f"Every {EVERY} tuples each node meets one other, and takes half of what that one keeps if it keeps itself "
        "less than a fifth of it (Karger and Ruhl). What it takes to hand over keys is not counted.",
        "New owners of keys ask for rates anew, so part of what falls with movement is due to fresher rates; the "
        "two effects are not separated here.",
        RANKING_NOTE,
    ),
)
