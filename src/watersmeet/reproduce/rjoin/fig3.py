"""RJoin, figure 3 (section 8): more and more tuples arrive."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    OWN_RANKINGS,
    RANKING_NOTE,
    RANKINGS,
    Point,
    fewest,
    figure_experiment,
    rows_by,
    run_looks,
    sized,
)
from watersmeet.sim.rjoin.measured import RJoinExperiment
from watersmeet.sim.rjoin.workload import ZipfWorkload

TUPLES = (100, 500, 1_000, 1_500, 2_000, 2_500)
QUICK_TUPLES = (50, 100, 200, 300, 400)
BEND = 2.0  # a line that gets steeper by less is nearly straight
PUBLISHED_SHARE = 0.94  # of nodes that take part


def _points(quick: bool) -> tuple[Point, ...]:
    tuples = QUICK_TUPLES if quick else TUPLES

    def points(queries: int) -> list[Point]:
        return [
            Point(
                (("ranking", ranking),),
                RJoinExperiment(
                    workload=ZipfWorkload(own_ranking=ranking == OWN_RANKINGS), queries=queries, tuples=tuples
                ),
            )
            for ranking in RANKINGS
        ]

    return sized(points, quick)


def _plot(rows: Sequence[Row], path: Path) -> None:
    rows = fewest(rows)
    own = [row for row in rows if row["ranking"] == OWN_RANKINGS]
    draw(
        rows,
        path,
        x="tuples",
        series="ranking",
        curves=own,
        xlabel="tuples",
        log=True,
        taking_part={"published: 940": 940},
    )


def per_new_tuple(rows: Sequence[Row], figure: str) -> list[tuple[float, float]]:
    """What a new tuple costs between two looks: the tuples in the middle, and messages per node."""
    return [
        (
            (earlier["tuples"] + later["tuples"]) / 2,
            (later[figure] * later["tuples"] - earlier[figure] * earlier["tuples"])
            / (later["tuples"] - earlier["tuples"]),
        )
        for earlier, later in pairwise(rows)
    ]


def bend(costs: Sequence[tuple[float, float]]) -> float:
    """By how much a curve is steeper in its second half than in its first."""
    middle = len(costs) // 2
    (x0, y0), (x1, y1), (x2, y2) = costs[0], costs[middle], costs[-1]
    return ((y2 - y1) / (x2 - x1)) / ((y1 - y0) / (x1 - x0))


def is_slowing(costs: Sequence[tuple[float, float]]) -> bool:
    """Whether a curve rises, and less steeply in its second half than in its first."""
    middle = len(costs) // 2
    (x0, y0), (x1, y1), (x2, y2) = costs[0], costs[middle], costs[-1]
    return y0 < y1 <= y2 and (y2 - y1) * (x1 - x0) < (y1 - y0) * (x2 - x1)


def _verdict(rows: Sequence[Row]) -> list[str]:
    rows = fewest(rows)
    found = rows_by(rows, "ranking", "tuples")
    tuples = sorted({row["tuples"] for row in rows})
    sentences = []
    for ranking, name in RANKINGS.items():
        own = [found[ranking, count] for count in tuples]
        for figure in ("traffic", "grouped traffic"):
            costs = per_new_tuple(own, figure)
            steeper = bend(costs)
            sentences.append(
                finding(
                    costs[-1][1] > costs[0][1] and 1 / BEND < steeper < BEND,
                    f"{name}: {figure} of a new tuple grows from {costs[0][1]:.2f} to {costs[-1][1]:.2f} messages per "
                    f"node, and the second half of the curve is {steeper:.1f} times as steep as the first",
                )
            )
        rates = per_new_tuple(own, "RIC traffic")
        first, middle, last = (rates[place][1] for place in (0, len(rates) // 2, -1))
        sentences.append(
            finding(
                is_slowing(rates),
                f"{name}: RIC for a new tuple goes from {first:.2f} over {middle:.2f} to {last:.2f} messages per node "
                "(published: it grows, fast at first and then more slowly)",
            )
        )
        share = own[-1]["nodes"] / 1_000
        sentences.append(
            finding(
                own[0]["nodes"] < own[-1]["nodes"] and abs(share - PUBLISHED_SHARE) <= 0.05,
                f"{name}: nodes that take part grow from {own[0]['nodes']:.0f} to {own[-1]['nodes']:.0f} of 1,000 "
                "(published: 940)",
            )
        )
        uneven = [row["highest load"] * row["nodes"] / row["load"] for row in (own[0], own[-1])]
        sentences.append(
            finding(
                uneven[1] < uneven[0],
                f"{name}: load gets more even; the highest is first {uneven[0]:.1f} and then {uneven[1]:.1f} times the "
                "mean of nodes that take part",
            )
        )
    return sentences


EXPERIMENT = figure_experiment(
    3,
    title="RJoin while more and more tuples arrive",
    keys=("queries", "ranking", "tuples"),
    points=_points,
    run=run_looks,
    plot=_plot,
    verdict=_verdict,
    published=(
        "the cost of a tuple grows linearly; that of RIC grows fast at first and then far less",
        "load is uneven at first; about 940 of 1,000 nodes take part after 2,500 tuples",
    ),
    notes=(
        "As published: 1,000 nodes, 4-way queries, theta 0.9, up to 2,500 tuples; 2,000 queries with ten seeds, and "
        "20,000, as published, with one. Quick: 200 queries, 400 tuples.",
        RANKING_NOTE,
    ),
)
