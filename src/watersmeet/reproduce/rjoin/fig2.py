"""RJoin, figure 2 (section 8): what it is worth to choose keys by the rates of their tuples (RIC)."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.program.rjoin.settings import Strategy
from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    Point,
    figure_experiment,
    ratios,
    rows_by,
    run_looks,
    sized,
    spread,
)
from watersmeet.sim.rjoin.measured import RJoinExperiment

STRATEGIES = {  # and whether a rewritten query may wait at a pair of relation and attribute
    "worst": (Strategy.WORST, True),
    "worst value": (Strategy.WORST, False),
    "random any": (Strategy.RANDOM, True),
    "random": (Strategy.RANDOM, False),
    "rjoin": (Strategy.RJOIN, True),
}
TUPLES = (50, 100, 200, 400)


def _points(quick: bool) -> tuple[Point, ...]:
    tuples = (50, 200) if quick else TUPLES

    def points(queries: int) -> list[Point]:
        return [
            Point(
                (("strategy", name),), RJoinExperiment(strategy=strategy, pairs=pairs, queries=queries, tuples=tuples)
            )
            for name, (strategy, pairs) in STRATEGIES.items()
        ]

    return sized(points, quick)


def _plot(rows: Sequence[Row], path: Path) -> None:
    own = [row for row in rows if row["queries"] == max(row["queries"] for row in rows)]
    last = [row for row in own if row["tuples"] == max(row["tuples"] for row in own)]
    bands = {
        "published random: 4 to 5 x rjoin": ("rjoin", 4, 5),
        "published worst: 10 to 100 x rjoin": ("rjoin", 10, 100),
    }
    draw(own, path, x="tuples", series="strategy", curves=last, xlabel="tuples", log=True, bands=bands)


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = rows_by(rows, "queries", "strategy", "tuples")
    queries, tuples = ([*sorted({row[key] for row in rows})] for key in ("queries", "tuples"))

    def of(strategy: str, asked: int = queries[-1]) -> list[Row]:
        return [found[asked, strategy, count] for count in tuples]

    best, few = of("rjoin"), queries[0]
    sentences = []
    for other, published in (
        ("worst", (10, 100)),
        ("random", (4, 5)),
        ("random any", (4, 5)),
        ("worst value", (10, 100)),
    ):
        times = ratios(of(other), best, "traffic")
        sentences.append(
            finding(
                published[0] <= min(times) and max(times) <= published[1],
                f"{other} choices cost {spread(times)} times RJoin's traffic (published: {spread(published, 0)}); "
                f"{spread(ratios(of(other), best, 'grouped traffic'))} times with mail for one key in one message, and "
                f"{spread(ratios(of(other, few), of('rjoin', few), 'traffic'))} times with {few:,} queries",
            )
        )
    for figure in ("load", "storage"):
        times, fewer = (
            [times for other in ("worst", "random") for times in ratios(of(other, asked), of("rjoin", asked), figure)]
            for asked in (queries[-1], few)
        )
        sentences.append(
            finding(
                min(times) > 1,
                f"RJoin has the least {figure}: worst and random choices have {spread(times)} times as much, and "
                f"{spread(fewer)} times with {few:,} queries",
            )
        )
    rest = [1 - row["RIC traffic"] / row["traffic"] for row in best]
    sentences.append(
        finding(
            max(rest) < 0.5,
            "what is not spent on RIC is the smaller part of RJoin's traffic: "
            + ", ".join(f"{share:.0%} after {count}" for share, count in zip(rest, tuples, strict=True)),
        )
    )
    sentences.append(
        finding(
            best[-1]["RIC traffic"] < best[0]["RIC traffic"],
            f"RIC costs less per tuple as tuples arrive: {best[0]['RIC traffic']:.2f}, then "
            f"{best[-1]['RIC traffic']:.2f} messages per node",
        )
    )
    return sentences


EXPERIMENT = figure_experiment(
    2,
    title="RJoin against worst and random choices",
    keys=("queries", "strategy", "tuples"),
    points=_points,
    run=run_looks,
    plot=_plot,
    verdict=_verdict,
    published=(
        "the worst choice costs 10 to 100 times RJoin's traffic, random choices 4 to 5 times",
        "RJoin has significantly less query processing load and storage load",
        "most of RJoin's traffic is for RIC; what it takes to index queries is small",
    ),
    notes=(
        "1,000 nodes, 4-way queries, theta 0.9; 2,000 queries with ten seeds, and 20,000, as published, with one. "
        "Quick: 200 queries, up to 200 tuples.",
        "'worst' knows the rates and takes the highest. 'random' chooses as in section 3, where a rewritten query "
        "always waits at a value; 'random any' chooses among all keys of section 6, pairs of relation and attribute "
        "too, as 'worst' does; 'worst value' is the worst among values only.",
    ),
)
