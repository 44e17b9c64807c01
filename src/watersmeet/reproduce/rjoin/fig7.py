"""RJoin, figure 7 (section 8): sliding windows of different sizes."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.query.windows import Range
from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    Point,
    fewest,
    figure_experiment,
    pattern_verdicts,
    rising_verdicts,
    rows_by,
    sized,
)
from watersmeet.sim.rjoin.measured import GAP_US, RJoinExperiment
from watersmeet.sim.rjoin.workload import ZipfWorkload

WINDOWS = (50, 100, 200, 400, 800)  # in tuples, one of which comes every GAP_US
QUICK_QUERIES = 200
TUPLES, QUICK_TUPLES = 1_000, 200
STEPS = 5
PATTERN = 2.0  # loads at a rank, over the mean load, that differ by less make the same pattern
WINDOW_NOTES = (
    f"1,000 nodes, 4-way queries, theta 0.9 and {TUPLES:,} tuples as published, one a second; 2,000 queries with ten "
    f"seeds, and 20,000, as published, with one (4 GB). Quick: {QUICK_QUERIES} queries, {QUICK_TUPLES} tuples.",
    "The paper's window sizes are not in its text; ours are RANGE windows of so many tuples' time. Nodes forget what "
    "is out of its window by more than 60 s, the bound of delays, every 20 tuples.",
    "The most frequent value is the same in every attribute.",
)


def looks(tuples: int) -> tuple[int, ...]:
    """When the network is looked at, as figure 8 does."""
    return tuple(range(tuples // STEPS, tuples + 1, tuples // STEPS))


def window_run(window: int, queries: int, tuples: tuple[int, ...]) -> RJoinExperiment:
    """A run whose queries have windows of so many tuples' time."""
    window_us = window * GAP_US
    return RJoinExperiment(
        workload=ZipfWorkload(window=Range(window_us)),
        queries=queries,
        tuples=tuples,
        members=True,
        window_us=window_us,
    )


def window_points(quick: bool) -> tuple[Point, ...]:
    """A run for each size of window."""
    tuples, windows = (QUICK_TUPLES, WINDOWS[:3]) if quick else (TUPLES, WINDOWS)

    def points(queries: int) -> list[Point]:
        return [Point((("window", window),), window_run(window, queries, looks(tuples))) for window in windows]

    return sized(points, quick, QUICK_QUERIES)


def _plot(rows: Sequence[Row], path: Path) -> None:
    draw(fewest(rows), path, x="window", xlabel="window (tuples)", log=True)


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = rows_by(fewest(rows), "window")
    windows = sorted(found)
    own = [found[window] for window in windows]

    def growth(figure: str) -> str:
        times = own[-1][figure] / own[0][figure]
        return f"{figure} grows with the window: {times:.1f} times from {windows[0]} to {windows[-1]:,} tuples"

    def spread(kind: str, patterns: Sequence[str]) -> str:
        return (
            f"{kind} is spread by the same pattern: ranks 10, 100 and 500 have {patterns[0]} and {patterns[-1]} times "
            "the mean with the smallest and the largest window"
        )

    return [*rising_verdicts(own, growth), *pattern_verdicts(own, PATTERN, spread)]


EXPERIMENT = figure_experiment(
    7,
    title="RJoin with sliding windows",
    keys=("queries", "window"),
    points=window_points,
    plot=_plot,
    verdict=_verdict,
    published=(
        "traffic, load and storage grow with the window",
        "loads are spread over the nodes by the same pattern whatever the window",
    ),
    notes=WINDOW_NOTES,
)
