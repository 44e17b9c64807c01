"""Plots of the experiments on shared aggregates: a line for each algorithm, with bars of one standard deviation."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.pier.runs import by_algorithm, summary

_PANEL = (4.2, 3.2)  # inches


def draw(
    rows: Sequence[Row],
    path: Path,
    *,
    x: str,
    xlabel: str,
    panels: Sequence[tuple[str, str, bool]],
    optimum: bool = False,
) -> None:
    """Panels of (column, label, whether the axis is logarithmic) over x; optimum: also a line of the least A'."""
    figure, axes = plots.new_figure(1, len(panels), (_PANEL[0] * len(panels), _PANEL[1]))
    for axis, (column, label, logarithmic) in zip(axes.flat, panels, strict=True):
        for name, own in by_algorithm(rows).items():
            places = sorted({row[x] for row in own})
            found = [summary([row for row in own if row[x] == place], column) for place in places]
            means, deviations = zip(*found, strict=True)
            axis.errorbar(
                places, means, deviations, marker="o", ms=plots.MARKER_SIZE, lw=plots.LINE_WIDTH, capsize=2, label=name
            )
        if optimum and column == "A' size":
            places = sorted({row["basis rows"] for row in rows})
            axis.plot(places, places, "k:", lw=plots.LINE_WIDTH, label="least")
        axis.set(xlabel=xlabel, ylabel=label, yscale="log" if logarithmic else "linear")
        plots.show_grid(axis)
    plots.legend_below(axes.flat[0])
    plots.save(figure, path)


def bars_by_size(rows: Sequence[Row], path: Path) -> None:
    """Effectiveness of each algorithm, a group of bars for each size of F."""
    names = list(by_algorithm(rows))
    sizes = list(dict.fromkeys(row["F size"] for row in rows))
    groups = [
        {"size": size} | {name: summary(own, "effective %")[0] for name, own in by_algorithm(rows, size).items()}
        for size in sizes
    ]
    plots.bars(groups, path, label="size", series={name: name for name in names}, ylabel="effective, %")
