"""Line plots and bars of experiments; matplotlib is loaded only when something is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from watersmeet.reproduce.experiment import Row, averaged

MARKER_SIZE, LINE_WIDTH = 3, 1  # points
_MARKERS = "osD^vx+*"
_PANEL_SIZE, _AXIS_ROOM = (3.6, 2.6), 0.4  # inches
_HEADROOM = 1.06  # of a linear axis, over its highest value
_BAR_GROUP = 0.8  # of the distance between two groups


def lines(
    rows: Sequence[Row],
    path: Path,
    *,
    x: str,
    series: Mapping[str, str],
    xlabel: str,
    ylabel: str = "tuples/s",
    panel: str | None = None,
    logx: bool = False,
    logy: bool = False,
    low: float = 0.0,
) -> None:
    """Save a line for each series over x, averaged over draws, in a panel for each value of a column.

    A linear y axis begins at `low`.
    """
    means = averaged(rows, [*([panel] if panel else []), x], list(series))
    names = list(dict.fromkeys(row[panel] for row in means)) if panel else [""]
    figure, axes = _panels(len(names))
    for name, axis in zip(names, axes, strict=True):
        own = [row for row in means if panel is None or row[panel] == name]
        for marker, (column, label) in zip(_MARKERS, series.items(), strict=False):
            plot_column(axis, own, x, column, marker + "-", label=label)
        axis.set(title=name, xlabel=xlabel, ylabel=ylabel, xscale="log" if logx else "linear")
        show_grid(axis)
        if logy:
            axis.set(yscale="log")
        else:
            start_at(axis, low)
    axes[0].legend(fontsize=7)
    save(figure, path)


def error_bars(
    rows: Sequence[Row],
    path: Path,
    *,
    series: str,
    x: str,
    figure: str,
    xlabel: str,
    ylabel: str,
    logx: bool = False,
    logy: bool = False,
) -> None:
    """Save a line for each value of a column, with means and standard deviations over draws."""
    canvas, axes = new_figure(1, 1, (4.6, 3.2))
    axis = axes[0, 0]
    for name in dict.fromkeys(row[series] for row in rows):
        groups: dict[Any, list[float]] = {}
        for row in rows:
            if row[series] == name and row[figure] is not None:
                groups.setdefault(row[x], []).append(row[figure])
        xs = sorted(groups)
        means = [fmean(groups[at]) for at in xs]
        spreads = [pstdev(groups[at]) for at in xs]
        axis.errorbar(xs, means, spreads, fmt="o-", ms=MARKER_SIZE, lw=LINE_WIDTH, capsize=2, label=name)
    axis.set(xlabel=xlabel, ylabel=ylabel, xscale="log" if logx else "linear", yscale="log" if logy else "linear")
    show_grid(axis)
    axis.legend(fontsize=7)
    save(canvas, path)


def bars(
    rows: Sequence[Row],
    path: Path,
    *,
    label: str,
    series: Mapping[str, str],
    ylabel: str = "",
    logy: bool = False,
    low: float = 0.0,
) -> None:
    """Save groups of bars, one group a row; a linear y axis begins at `low`."""
    figure, (axis,) = _panels(1)
    width = _BAR_GROUP / len(series)
    for place, (column, name) in enumerate(series.items()):
        axis.bar(
            [number + place * width for number in range(len(rows))], [row[column] for row in rows], width, label=name
        )
    middle = _BAR_GROUP / 2 - width / 2
    axis.set_xticks([number + middle for number in range(len(rows))], [row[label] for row in rows], fontsize=7)
    axis.set(ylabel=ylabel, yscale="log" if logy else "linear")
    if low:
        axis.set_ylim(bottom=low)
    axis.legend(fontsize=7)
    save(figure, path)


def new_figure(down: int, across: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and the array of its axes; size in inches."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "watersmeet", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False)
    return figure, axes


def plot_column(axis: Any, rows: Sequence[Row], x: str, column: str, style: str, **options: Any) -> None:
    """Plot a column over another one; rows in which it was not run are left out."""
    known = [row for row in rows if row[column] is not None]
    xs, ys = [row[x] for row in known], [row[column] for row in known]
    axis.plot(xs, ys, style, ms=MARKER_SIZE, lw=LINE_WIDTH, **options)


def show_grid(axis: Any) -> None:
    """A light grid at the major ticks, which are the only ones."""
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def start_at_zero(axis: Any) -> None:
    """Let a linear y axis begin at 0 and end a little above its highest value."""
    start_at(axis, 0.0)


def start_at(axis: Any, low: float) -> None:
    """Let a linear y axis begin at a value and end a little above its highest one."""
    axis.set_ylim(low, low + _HEADROOM * (axis.get_ylim()[1] - low))


def save(figure: Any, path: Path) -> None:
    """Write a figure, the same bytes each time, and forget it."""
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
    pyplot.close(figure)


def _panels(count: int) -> tuple[Any, Sequence[Any]]:
    across = min(count, 2)
    down = -(-count // across)
    width, height = _PANEL_SIZE
    figure, axes = new_figure(down, across, (width * across + _AXIS_ROOM, height * down))
    return figure, list(axes.flat)[:count]
