"""The plot of RJoin's experiments: traffic, totals, and the ranked loads of nodes as section 8 shows them."""

from collections.abc import Sequence
from pathlib import Path

from watersmeet.reproduce.experiment import Row
from watersmeet.reproduce.rjoin.runs import RANKS

_STYLES = {"traffic": "o-", "grouped traffic": "s--", "RIC traffic": "^:"}


def draw(
    rows: Sequence[Row],
    path: Path,
    *,
    x: str,
    xlabel: str,
    series: str | None = None,
    curves: Sequence[Row] | None = None,
    log: bool = False,
    totals: Sequence[str] = ("load", "storage"),
) -> None:
    """Save four panels: traffic and totals over x, a colour for each series; ranked load and storage of `curves`."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "watersmeet", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(7.6, 5.6))
    names = list(dict.fromkeys(row[series] for row in rows)) if series else [""]
    names_rates = False
    for number, name in enumerate(names):
        own = [row for row in rows if series is None or row[series] == name]
        at = [row[x] for row in own]
        for column, style in _STYLES.items():
            if column == "RIC traffic" and not any(row[column] for row in own):
                continue
            is_named = column == "traffic" or number == 0 or (column == "RIC traffic" and not names_rates)
            names_rates |= column == "RIC traffic"
            label = f"{name} {column}".strip() if is_named else None
            axes[0, 0].plot(at, [row[column] for row in own], style, color=f"C{number}", label=label, ms=3, lw=1)
        for column, style in zip(totals, ("o-", "s--"), strict=True):
            label = f"{name} {column}".strip() if number == 0 or column == totals[0] else None
            axes[0, 1].plot(at, [row[column] for row in own], style, color=f"C{number}", label=label, ms=3, lw=1)
    axes[0, 0].set(title="traffic", xlabel=xlabel, ylabel="messages per node and tuple")
    axes[0, 1].set(title="totals", xlabel=xlabel, ylabel="rewritten queries and tuples")
    for axis in axes[0]:
        if log:
            axis.set(xscale="log", yscale="log")
        else:
            axis.set_xticks(list(dict.fromkeys(row[x] for row in rows)))
            axis.set_ylim(0, 1.06 * axis.get_ylim()[1])
    shown = list(rows if curves is None else curves)
    for axis, kind in zip(axes[1], ("load", "storage"), strict=True):
        for number, row in enumerate(shown):
            known = [(rank, row[f"{kind} at {rank}"]) for rank in RANKS if row[f"{kind} at {rank}"] is not None]
            label = " ".join(str(row[key]) for key in (series, x) if key)
            axis.plot([rank for rank, _ in known], [load for _, load in known], color=f"C{number}", label=label, lw=1)
        axis.set(title=f"{kind} of nodes", xlabel="rank of the node", xscale="log", yscale="symlog")
        axis.set_ylim(bottom=0)
    for axis in axes.flat:
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
    pyplot.close(figure)
