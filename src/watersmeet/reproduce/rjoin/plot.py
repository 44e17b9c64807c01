"""The plot of RJoin's experiments: traffic, totals, and the ranked loads of nodes as section 8 shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.plots import LINE_WIDTH, new_figure, plot_column, save, show_grid, start_at_zero
from watersmeet.reproduce.rjoin.runs import RANKS, TOTALS, TRAFFIC

_SIZE = (7.6, 5.6)  # inches
_TRAFFIC_STYLES = dict(zip(TRAFFIC, ("o-", "s--", "^:"), strict=True))
_TOTAL_STYLES = ("o-", "s--")
_RIC = "RIC traffic"


def draw(
    rows: Sequence[Row],
    path: Path,
    *,
    x: str,
    xlabel: str,
    series: str | None = None,
    curves: Sequence[Row] | None = None,
    log: bool = False,
    totals: Sequence[str] = TOTALS,
) -> None:
    """Save four panels: traffic and totals over x, a colour for each series; ranked load and storage of `curves`."""
    figure, axes = new_figure(2, 2, _SIZE)
    names = list(dict.fromkeys(row[series] for row in rows)) if series else [""]
    groups = [(name, [row for row in rows if series is None or row[series] == name]) for name in names]
    _plot_traffic(axes[0, 0], groups, x)
    _plot_totals(axes[0, 1], groups, x, totals)
    axes[0, 0].set(title="traffic", xlabel=xlabel, ylabel="messages per node and tuple")
    axes[0, 1].set(title="totals", xlabel=xlabel, ylabel="rewritten queries and tuples")
    for axis in axes[0]:
        if log:
            axis.set(xscale="log", yscale="log")
        else:
            axis.set_xticks(list(dict.fromkeys(row[x] for row in rows)))
            start_at_zero(axis)
    for axis, kind in zip(axes[1], TOTALS, strict=True):
        _plot_ranks(axis, rows if curves is None else curves, kind, [key for key in (series, x) if key])
    for axis in axes.flat:
        show_grid(axis)
        axis.legend(fontsize=6)
    save(figure, path)


def _plot_traffic(axis: Any, groups: Sequence[tuple[str, Sequence[Row]]], x: str) -> None:
    """Each series in its colour; in the legend all figures of the first, and of the others what tells them apart."""
    is_ric_named = False
    for number, (name, rows) in enumerate(groups):
        for column, style in _TRAFFIC_STYLES.items():
            if column == _RIC and not any(row[column] for row in rows):
                continue
            is_named = column == "traffic" or number == 0 or (column == _RIC and not is_ric_named)
            is_ric_named |= column == _RIC
            label = f"{name} {column}".strip() if is_named else None
            plot_column(axis, rows, x, column, style, color=f"C{number}", label=label)


def _plot_totals(axis: Any, groups: Sequence[tuple[str, Sequence[Row]]], x: str, totals: Sequence[str]) -> None:
    for number, (name, rows) in enumerate(groups):
        for column, style in zip(totals, _TOTAL_STYLES, strict=True):
            label = f"{name} {column}".strip() if number == 0 or column == totals[0] else None
            plot_column(axis, rows, x, column, style, color=f"C{number}", label=label)


def _plot_ranks(axis: Any, rows: Sequence[Row], kind: str, keys: Sequence[str]) -> None:
    """The load of nodes over their rank, a curve for each row."""
    for number, row in enumerate(rows):
        known = [(rank, row[f"{kind} at {rank}"]) for rank in RANKS if row[f"{kind} at {rank}"] is not None]
        ranks, loads = [rank for rank, _ in known], [load for _, load in known]
        label = " ".join(str(row[key]) for key in keys)
        axis.plot(ranks, loads, color=f"C{number}", label=label, lw=LINE_WIDTH)
    axis.set(title=f"{kind} of nodes", xlabel="rank of the node", xscale="log", yscale="symlog")
    axis.set_ylim(bottom=0)
