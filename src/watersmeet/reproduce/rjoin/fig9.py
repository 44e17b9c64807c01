"""RJoin, figure 9 (section 8): nodes that have little to do take other places on the circle."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    OWN_RANKINGS,
    RANKING_NOTE,
    RANKINGS,
    RATES,
    Point,
    fewest,
    figure_experiment,
    level_figures,
    rows_by,
    run_levels,
    sized,
)
from watersmeet.sim.rjoin.measured import RJoinExperiment
from watersmeet.sim.rjoin.workload import ZipfWorkload

EVERY = 50  # tuples between two rounds of id movement
AGES = {"refreshed": RATES, "stale": None}  # tuples after which a rate is asked for again
PUBLISHED = {"highest load": {"without": 4_000, "with": 2_000}}
NODES = {"published without: 700": 700, "published with: 900": 900}
HALVED = (0.33, 0.67)  # about the half


def _points(quick: bool) -> tuple[Point, ...]:
    tuples = 400 if quick else 1_000

    def points(queries: int) -> list[Point]:
        return [
            Point(
                (("ranking", ranking), ("rates", rates), ("movement", movement)),
                RJoinExperiment(
                    workload=ZipfWorkload(own_ranking=ranking == OWN_RANKINGS),
                    queries=queries,
                    tuples=(tuples,),
                    move_every=EVERY if movement == "with" else None,
                    rate_window=age,
                    rate_age=age,
                ),
            )
            for ranking in RANKINGS
            for rates, age in AGES.items()
            for movement in ("without", "with")
        ]

    return sized(points, quick)


def _plot(rows: Sequence[Row], path: Path) -> None:
    rows = [row for row in fewest(rows) if row["rates"] == "refreshed"]
    draw(rows, path, x="movement", series="ranking", xlabel="id movement", published=PUBLISHED, taking_part=NODES)


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = rows_by(fewest(rows), "ranking", "rates", "movement")
    sentences = []
    for ranking, name in RANKINGS.items():
        before, after = (found[ranking, "refreshed", movement] for movement in ("without", "with"))
        stale = found[ranking, "stale", "without"]
        for figure in ("highest load", "highest storage"):
            left = after[figure] / before[figure]
            sentences.append(
                finding(
                    HALVED[0] <= left <= HALVED[1],
                    f"{name}: {figure} falls from {before[figure]:,.0f} to {after[figure]:,.0f}, {left:.2f} times "
                    f"that (published: 4,000 to 2,000); with stale rates and no movement it is {stale[figure]:,.0f}",
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
    keys=("queries", "ranking", "rates", "movement"),
    more_figures=level_figures(4),
    run=run_levels,
    points=_points,
    plot=_plot,
    verdict=_verdict,
    published=(
        "with id movement the highest load is 2,000 and not 4,000",
        "900 of 1,000 nodes take part, and not 700",
    ),
    notes=(
        "As published: 1,000 nodes, 4-way queries, theta 0.9, 1,000 tuples; 2,000 queries with ten seeds, and 20,000, "
        "as published, with one. Quick: 200 queries, 400 tuples.",
        f"Every {EVERY} tuples each node meets one other, and takes half of what that one keeps if it keeps itself "
        "less than a fifth of it (Karger and Ruhl). What it takes to hand over keys is not counted.",
        "New owners of keys ask for rates anew. 'stale': rates since the start, never asked for again, so that what "
        "fresher rates and what movement contribute can be told apart. 'level n' are rewritten queries with n "
        "relations bound that nodes received, 'searching' nodes that got one, or a tuple at a key where queries "
        "waited.",
        RANKING_NOTE,
    ),
)
