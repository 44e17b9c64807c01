"""RJoin, figure 4 (section 8): more and more queries wait for tuples."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    SEEDS,
    Point,
    draws,
    figure_experiment,
    is_alike,
    is_rising,
    pattern_text,
    rows_by,
    shares,
)
from watersmeet.sim.rjoin.measured import RJoinExperiment

QUERIES = (2_000, 4_000, 8_000, 16_000, 32_000)
PATTERN = 1.5  # loads at a rank, over the mean load, that differ by less make the same pattern


def _points(quick: bool) -> tuple[Point, ...]:
    queries, tuples, seeds = ((100, 200, 400), 200, 1) if quick else (QUERIES, 1_000, SEEDS)
    points = [Point((("queries", count),), RJoinExperiment(queries=count, tuples=(tuples,))) for count in queries]
    return draws(points, seeds)


def _plot(rows: Sequence[Row], path: Path) -> None:
    draw(rows, path, x="queries", xlabel="queries", log=True)


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = rows_by(rows, "queries")
    queries = sorted(found)
    own = [found[count] for count in queries]
    more = queries[-1] / queries[0]
    sentences = []
    for figure in ("traffic", "grouped traffic"):
        values = [row[figure] for row in own]
        per_query = [value / count for value, count in zip(values, queries, strict=True)]
        sentences.append(
            finding(
                is_rising(values) and is_rising([-share for share in per_query]),
                f"{figure} grows, but less than the queries do: {values[-1] / values[0]:.1f} times for {more:.0f} "
                "times the queries",
            )
        )
    rates = [row["RIC traffic"] for row in own]
    sentences.append(
        finding(
            is_rising([-rate / count for rate, count in zip(rates, queries, strict=True)]),
            f"RIC is used again: it grows {rates[-1] / rates[0]:.1f} times, and less than the queries at every step",
        )
    )
    for kind in ("load", "storage"):
        patterns = [shares(row, kind) for row in own]
        sentences.append(
            finding(
                is_rising([row[kind] for row in own]) and is_alike(patterns, PATTERN),
                f"{kind} grows {own[-1][kind] / own[0][kind]:.1f} times and is spread by the same pattern: ranks 10, "
                f"100 and 500 have {pattern_text(patterns[0])} and {pattern_text(patterns[-1])} times the mean with "
                "the fewest and the most queries",
            )
        )
    return sentences


EXPERIMENT = figure_experiment(
    4,
    title="RJoin with more and more queries",
    keys=("queries",),
    points=_points,
    plot=_plot,
    verdict=_verdict,
    published=(
        "traffic grows with the queries, ever less, since alike queries are grouped and RIC is used again",
        "load and storage grow, and are spread over the nodes by the same pattern",
    ),
    notes=(
        "As published: 1,000 nodes, 2,000 to 32,000 4-way queries, theta 0.9, 1,000 tuples. Quick: 100 to 400 queries, "
        "200 tuples.",
        "The most frequent value is the same in every attribute.",
    ),
)
