"""The plot of RJoin's experiments: traffic, totals, and the ranked loads of nodes as section 8 shows them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watersmeet.reproduce.experiment import Row, averaged
from watersmeet.reproduce.plots import (
    PUBLISHED_STYLE,
    colour_of,
    legend_below,
    new_figure,
    plot_column,
    plot_spread,
    save,
    show_grid,
    start_at_zero,
)
from watersmeet.reproduce.rjoin.runs import RANKS, TOTALS

_SIZE = (8.4, 7.4)  # inches
_STYLES = {
    "traffic": "o-",
    "grouped traffic": "s--",
    "RIC traffic": "^:",
    "grouped RIC": "v-.",
    "load": "o-",
    "storage": "s--",
    "storage created": "s--",
    "highest load": "^:",
}
_LINES = ("-", "--", ":", "-.")
_RIC = ("RIC traffic", "grouped RIC")


def draw(
    rows: Sequence[Row],
    path: Path,
    *,
    x: str,
    xlabel: str,
    series: str | None = None,
    curves: Sequence[Row] | None = None,
    log: bool = False,
    columns: Sequence[str] = ("traffic", "grouped traffic", *_RIC),
    totals: Sequence[str] = (*TOTALS, "highest load"),
    published: Mapping[str, Mapping[Any, float]] | None = None,
    bands: Mapping[str, tuple[str, float, float]] | None = None,
    taking_part: Mapping[str, int] | None = None,
) -> None:
    """Save four panels: traffic and totals over x, a colour for each series; ranked load and storage of `curves`.

    Where curves are of several series, each has its colour, and a line style for each x.

    Points are means over draws with 95 % confidence intervals. Published are values by column and x; `bands`, by name:
    multiples of the traffic of a series, from and to; and how many nodes take part, by name.
    """
    figure, axes = new_figure(2, 2, _SIZE)
    names = list(dict.fromkeys(row[series] for row in rows)) if series else [""]
    groups = [(name_of(series, name), [row for row in rows if series is None or row[series] == name]) for name in names]
    _plot_columns(axes[0, 0], groups, x, columns)
    _plot_columns(axes[0, 1], groups, x, totals)
    if published is not None:
        axes[0, 1].set_yscale("log")  # published totals are far from ours
    for column, values in (published or {}).items():
        axis = axes[0, 0] if "traffic" in column else axes[0, 1]
        axis.plot(list(values), list(values.values()), label=f"published {column}", **PUBLISHED_STYLE)
    for label, (base, low, high) in (bands or {}).items():
        own = averaged([row for row in rows if row[series or ""] == base], [x], ["traffic"])
        xs, ys = [row[x] for row in own], [row["traffic"] for row in own]
        axes[0, 0].fill_between(
            xs, [low * y for y in ys], [high * y for y in ys], color="black", alpha=0.15, label=label
        )
    axes[0, 0].set(title="traffic", xlabel=xlabel, ylabel="messages per node and tuple")
    axes[0, 1].set(title="totals", xlabel=xlabel, ylabel="rewritten queries and tuples")
    for axis in axes[0]:
        places = list(dict.fromkeys(row[x] for row in rows))
        if log:
            axis.set(xscale="log", yscale="log")
            axis.set_xticks(places, [f"{place:,}" for place in places], fontsize=6)
        else:
            axis.set_xticks(places)
            if axis.get_yscale() == "linear":
                start_at_zero(axis)
    for axis, kind in zip(axes[1], TOTALS, strict=True):
        _plot_ranks(axis, rows if curves is None else curves, kind, [key for key in (series, x) if key])
        for label, nodes in (taking_part or {}).items():
            axis.axvline(nodes, color="black", ls="--", lw=0.8)
            axis.annotate(label, (nodes, 0), rotation=90, fontsize=6, ha="right", va="bottom")
    for axis in axes.flat:
        show_grid(axis)
        legend_below(axis)
    save(figure, path)


def name_of(key: str | None, value: object) -> str:
    """A value in a legend: numbers with what they are of."""
    return f"{key} {value:,}" if key and isinstance(value, int | float) else str(value)


def _plot_columns(axis: Any, groups: Sequence[tuple[str, Sequence[Row]]], x: str, columns: Sequence[str]) -> None:
    """Each series in its colour, each column in its line style; both are in the legend."""
    for number, (name, rows) in enumerate(groups):
        for column in columns:
            if not any(row[column] for row in rows):
                continue
            label = f"{name} {column}".strip()
            plot_spread(axis, rows, x, column, _STYLES[column], color=colour_of(name, number), label=label)


def _plot_ranks(axis: Any, rows: Sequence[Row], kind: str, keys: Sequence[str]) -> None:
    """The load of nodes over their rank, a curve for each point: means over draws."""
    columns = [f"{kind} at {rank}" for rank in RANKS if rows[0][f"{kind} at {rank}"] is not None]
    means = averaged(rows, keys, columns)
    firsts, lasts = (list(dict.fromkeys(row[key] for row in means)) for key in (keys[0], keys[-1]))
    by_series = 1 < len(firsts) < len(means)  # else all curves have colours of their own
    for number, row in enumerate(means):
        known = [{"rank": int(column.rsplit(" ", 1)[1]), "load": row[column]} for column in columns]
        label = ", ".join(name_of(key, row[key]) for key in keys)
        colour, style = f"C{number}", "-"
        if len(firsts) > 1:
            colour = colour_of(str(row[keys[0]]), firsts.index(row[keys[0]]))
            style = _LINES[lasts.index(row[keys[-1]]) % len(_LINES)] if by_series else "-"
        plot_column(axis, known, "rank", "load", style, color=colour, label=label)
    axis.set(title=f"{kind} of nodes", xlabel="rank of the node", ylabel="rewritten queries and tuples")
    axis.set(xscale="log", yscale="symlog")
    axis.set_ylim(bottom=0)
