"""Line plots and bars of experiments; matplotlib is loaded only when something is drawn.

One place decides how figures look: a method has the same colour in all figures, means over several draws have 95 %
confidence intervals, what a paper has published is black and dashed, and a legend is below its axes, on no curve.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watersmeet.reproduce.experiment import Row, half_width, mean

MARKER_SIZE, LINE_WIDTH = 3, 1  # points
PUBLISHED_STYLE = {"color": "black", "ls": "--", "marker": "*", "ms": 6, "lw": 0.8, "zorder": 5}
_COLOURS = {  # of methods that are in several figures
    "rjoin": "C0",
    "heuristic": "C0",
    "simple": "C3",
    "local": "C1",
    "optimal": "C2",
    "none": "C7",
    "hash": "C1",
    "range": "C2",
    "rate": "C0",
    "worst": "C3",
    "worst value": "C5",
    "random": "C1",
    "random any": "C4",
    "alternative": "C4",
    "one": "C0",
    "own": "C1",
    "greedy": "C0",
    "exhaustive": "C2",
    "published": "black",
    "measured": "C0",
    "SP-S": "C0",
    "SP-D": "C1",
    "SM-S1": "C2",
    "SM-S2": "C3",
    "SM-D1": "C4",
    "SM-D2": "C5",
    "CNU": "C0",
    "DNU": "C1",
    "nothing": "C7",
    "renewal": "C0",
    "replication": "C1",
    "both": "C2",
    "star": "C0",
    "chain": "C1",
    "cycle": "C2",
    "fully": "C3",
}
_DASHED = (" 500", " Bloom", ", heads apart")
_MARKERS = "osD^vx+*"
_PANEL_SIZE, _AXIS_ROOM = (3.6, 3.0), 0.4  # inches
_LEGEND_SIZE = 6.5
_HEADROOM = 1.06  # of a linear axis, over its highest value
_STEPS = (1, 2, 5)  # of a logarithmic axis, in each decade
_BAR_GROUP = 0.8  # of the distance between two groups


def colour_of(name: str, number: int) -> str:
    """The colour of a method, the same in all figures; others by their number."""
    return _COLOURS.get(name, _COLOURS.get(name.split(" ")[0].rstrip(","), f"C{number}"))


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
    published: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Save a line for each series over x, means over draws with confidence intervals, in a panel for each value of a
    column. A linear y axis begins at `low`; `published` are curves of the paper, as points by name, and `levels` values
    that it has for every x.
    """
    whole = [row for row in rows if all(row[column] is not None for column in series)]
    names = list(dict.fromkeys(row[panel] for row in rows)) if panel else [""]
    figure, axes = _panels(len(names))
    for name, axis in zip(names, axes, strict=True):
        own = [row for row in whole if panel is None or row[panel] == name]
        for number, (column, label) in enumerate(series.items()):
            style = _MARKERS[number % len(_MARKERS)] + ("--" if column.endswith(_DASHED) else "-")
            plot_spread(axis, own, x, column, style, label=label, color=colour_of(column, number))
        for label, points in (published or {}).items():
            axis.plot(*zip(*points, strict=True), label=label, **PUBLISHED_STYLE)
        for label, level in (levels or {}).items():
            axis.axhline(level, label=label, color="black", ls="--", lw=0.8)
        axis.set(title=name if xlabel else "", xlabel=xlabel or name, ylabel=ylabel, xscale="log" if logx else "linear")
        if logx:
            places = list(dict.fromkeys(row[x] for row in own))
            axis.set_xticks(places, [f"{place:,}" for place in places], fontsize=6.5)
        show_grid(axis)
        if logy:
            axis.set(yscale="log")
        else:
            start_at(axis, low)
        legend_below(axis)
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
    """Save a line for each value of a column, with means over draws and their confidence intervals."""
    from matplotlib import ticker

    canvas, axes = new_figure(1, 1, (4.6, 3.6))
    axis = axes[0, 0]
    for number, name in enumerate(dict.fromkeys(row[series] for row in rows)):
        own = sorted((row for row in rows if row[series] == name), key=lambda row: row[x])
        plot_spread(axis, own, x, figure, "o-", label=name, color=colour_of(name, number))
    axis.set(xlabel=xlabel, ylabel=ylabel, xscale="log" if logx else "linear", yscale="log" if logy else "linear")
    show_grid(axis)
    if logx:
        places = sorted({row[x] for row in rows})
        axis.set_xticks(places, [f"{place:,}" for place in places], fontsize=6.5)
    if logy:
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=_STEPS))
        axis.yaxis.set_major_formatter("{x:g}")
    legend_below(axis)
    save(canvas, path)


def bars(
    rows: Sequence[Row],
    path: Path,
    *,
    label: str,
    series: Mapping[str, str],
    xlabel: str = "",
    ylabel: str = "",
    logy: bool = False,
    low: float = 0.0,
) -> None:
    """Save groups of bars, one group a row; a linear y axis begins at `low`."""
    figure, (axis,) = _panels(1)
    width = _BAR_GROUP / len(series)
    for place, (column, name) in enumerate(series.items()):
        axis.bar(
            [number + place * width for number in range(len(rows))],
            [row[column] for row in rows],
            width,
            label=name,
            color=colour_of(column, place),
        )
    middle = _BAR_GROUP / 2 - width / 2
    axis.set_xticks([number + middle for number in range(len(rows))], [row[label] for row in rows], fontsize=7)
    axis.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if logy else "linear")
    if low:
        axis.set_ylim(bottom=low)
    legend_below(axis)
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


def plot_spread(axis: Any, rows: Sequence[Row], x: str, column: str, style: str, **options: Any) -> None:
    """Plot the means of a column over draws, with 95 % confidence intervals where there are several."""
    groups: dict[Any, list[float]] = {}
    for row in rows:
        if row[column] is not None:
            groups.setdefault(row[x], []).append(row[column])
    means = [mean(values) for values in groups.values()]
    spreads = [half_width(values) or 0.0 for values in groups.values()]
    axis.errorbar(
        list(groups),
        means,
        spreads if any(spreads) else None,
        fmt=style,
        ms=MARKER_SIZE,
        lw=LINE_WIDTH,
        elinewidth=0.7,
        capsize=2,
        **options,
    )


def show_grid(axis: Any) -> None:
    """A light grid at the major ticks, which are the only ones."""
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def legend_below(axis: Any) -> None:
    """A legend under the axes, where it hides no curve."""
    labels = axis.get_legend_handles_labels()[1]
    if labels:
        across = 2 if max(map(len, labels)) > 14 else 3
        axis.legend(
            fontsize=_LEGEND_SIZE, ncol=min(across, len(labels)), loc="upper center", bbox_to_anchor=(0.5, -0.27)
        )


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
    for axis in list(axes.flat)[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat)[:count]
