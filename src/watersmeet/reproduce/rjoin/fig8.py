"""RJoin, figure 8 (section 8): the load that tuples have made by and by, with windows of different sizes."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.rjoin.fig7 import WINDOW_NOTES, window_points
from watersmeet.reproduce.rjoin.plot import draw
from watersmeet.reproduce.rjoin.runs import (
    Point,
    fewest,
    figure_experiment,
    is_rising,
    rows_by,
    run_looks,
)

CREATED = "storage created"


def _run(point: Point) -> list[Row]:
    """What was stored at some time: all that was received, but for tuples at the attribute level."""
    attributes = point.run.workload.attributes
    return [row | {CREATED: row["load"] - row["tuples"] * attributes} for row in run_looks(point)]


def _plot(rows: Sequence[Row], path: Path) -> None:
    rows = fewest(rows)
    last = [row for row in rows if row["tuples"] == max(row["tuples"] for row in rows)]
    draw(
        rows,
        path,
        x="tuples",
        series="window",
        curves=last,
        xlabel="tuples",
        totals=("load", CREATED),
        columns=("traffic", "RIC traffic"),
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    rows = fewest(rows)
    found = rows_by(rows, "window", "tuples")
    windows, tuples = (sorted({row[key] for row in rows}) for key in ("window", "tuples"))
    sentences = []
    for figure in ("load", CREATED):
        last = [found[window, tuples[-1]][figure] for window in windows]
        full = [count for count in tuples if count >= windows[1]]  # before, even the next larger window is not full
        sentences.append(
            finding(
                all(is_rising([found[window, count][figure] for window in windows[:2]]) for count in full)
                and is_rising(last),
                f"the larger the window, the more {figure}: after {tuples[-1]:,} tuples "
                + ", ".join(f"{value:,.0f} ({window:,})" for window, value in zip(windows, last, strict=True)),
            )
        )
    smallest = found[windows[0], tuples[-1]]
    kept = smallest["storage"] / smallest[CREATED]
    sentences.append(
        finding(
            kept < 0.5, f"with the smallest window most is dropped again: {kept:.0%} of what was stored is still there"
        )
    )
    return sentences


EXPERIMENT = figure_experiment(
    8,
    title="Load of RJoin by and by, with sliding windows",
    keys=("queries", "window", "tuples"),
    more_figures=(CREATED,),
    points=window_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "larger windows make more load and storage with every tuple",
        "with small windows rewritten queries are dropped often, and nodes have far less to store and to process",
    ),
    notes=(
        *WINDOW_NOTES,
        f"'{CREATED}' counts all that nodes have stored by then, 'storage' what they still have, 'load' all so far.",
    ),
)
