"""Line plots of experiments; matplotlib is loaded only when something is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watersmeet.reproduce.experiment import Row, averaged

_MARKS = "osD^vx+*"


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
) -> None:
    """Save a line for each series over x, averaged over draws, in a panel for each value of a column."""
    means = averaged(rows, [*([panel] if panel else []), x], list(series))
    names = list(dict.fromkeys(row[panel] for row in means)) if panel else [""]
    figure, axes = _figure(len(names))
    for name, axis in zip(names, axes, strict=True):
        own = [row for row in means if panel is None or row[panel] == name]
        for mark, (column, label) in zip(_MARKS, series.items(), strict=False):
            known = [row for row in own if row[column] is not None]
            axis.plot([row[x] for row in known], [row[column] for row in known], mark + "-", label=label, ms=3, lw=1)
        axis.set(title=name, xlabel=xlabel, ylabel=ylabel, xscale="log" if logx else "linear")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        if logy:
            axis.set(yscale="log")
        else:
            axis.set_ylim(0, 1.06 * axis.get_ylim()[1])
    axes[0].legend(fontsize=7)
    _save(figure, path)


def bars(rows: Sequence[Row], path: Path, *, label: str, series: Mapping[str, str], logy: bool = False) -> None:
    """Save groups of bars, one group a row."""
    figure, (axis,) = _figure(1)
    width = 0.8 / len(series)
    for place, (column, name) in enumerate(series.items()):
        axis.bar(
            [number + place * width for number in range(len(rows))], [row[column] for row in rows], width, label=name
        )
    axis.set_xticks([number + 0.4 - width / 2 for number in range(len(rows))], [row[label] for row in rows], fontsize=7)
    axis.set(yscale="log" if logy else "linear")
    axis.legend(fontsize=7)
    _save(figure, path)


def _figure(panels: int) -> tuple[Any, Sequence[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "watersmeet", "font.size": 8})
    from matplotlib import pyplot

    across = min(panels, 2)
    down = -(-panels // across)
    figure, axes = pyplot.subplots(down, across, figsize=(3.6 * across + 0.4, 2.6 * down), squeeze=False)
    return figure, list(axes.flat)[:panels]


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
    pyplot.close(figure)
