"""What the adaptive paper leaves open: how much its figure 4 depends on the threshold and on the unit costs."""

from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from statistics import fmean

from watersmeet.reproduce import plots
from watersmeet.reproduce.adaptive.prototype import PrototypeSetup
from watersmeet.reproduce.adaptive.prototype import run as run_system
from watersmeet.reproduce.adaptive.runs import NOTES, QUICK_RUNS, RUNS, Point, column, spread
from watersmeet.reproduce.experiment import Experiment, Row, finding

THRESHOLDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
UNITS_S = (1e-7, 1e-6, 1e-5, 1e-4)
FIGURES = ("non-adaptive", "CNU", "share", "changes")


def _points(quick: bool) -> tuple[Point, ...]:
    thresholds, units = (THRESHOLDS[::2], UNITS_S[1:3]) if quick else (THRESHOLDS, UNITS_S)
    found = [PrototypeSetup(threshold=threshold) for threshold in thresholds]
    found += [PrototypeSetup(probe_s=unit) for unit in units if unit != PrototypeSetup().probe_s]
    found += [PrototypeSetup(update_s=unit) for unit in units if unit != PrototypeSetup().update_s]
    return tuple(Point(settings, draw) for settings in found for draw in range(QUICK_RUNS if quick else RUNS))


def _run(point: Point) -> Row:
    settings = replace(point.settings, changing=point.draw % point.settings.ways)
    fixed, adaptive = (run_system(settings, system, point.draw) for system in ("non-adaptive", "CNU"))
    totals = fsum(fixed.cost_s.values()), fsum(adaptive.cost_s.values())
    keys = {"threshold": settings.threshold, "c_p us": settings.probe_s * 1e6, "c_u us": settings.update_s * 1e6}
    figures = dict(zip(FIGURES, (*totals, totals[1] / totals[0], len(adaptive.switches)), strict=True))
    return {**keys, "draw": point.draw, **figures}


_DEFAULTS = {"threshold": 0.2, "c_p us": 1.0, "c_u us": 1.0}


def _varied(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows in which nothing but one setting differs from the defaults."""
    return [row for row in rows if all(abs(row[key] - _DEFAULTS[key]) < 1e-9 for key in _DEFAULTS if key != name)]


def _plot(rows: Sequence[Row], path: Path) -> None:
    figure, axes = plots.new_figure(1, len(_DEFAULTS), (8.4, 2.6))
    for name, axis in zip(_DEFAULTS, axes.flat, strict=True):
        own = _varied(rows, name)
        values = sorted({row[name] for row in own})
        for figure_name, label in (("share", "cost of CNU / non-adaptive"), ("changes", "changes of plan / 10")):
            scale = 0.1 if figure_name == "changes" else 1.0
            means = [scale * fmean(column(own, figure_name, **{name: value})) for value in values]
            axis.plot(values, means, "o-", ms=3, lw=1, label=label)
        axis.set(xlabel=name, xscale="log")
        plots.show_grid(axis)
        plots.start_at_zero(axis)
    plots.legend_below(axes.flat[0])
    plots.save(figure, path)


def _verdict(rows: Sequence[Row]) -> list[str]:
    sentences = []
    for name in _DEFAULTS:
        own = _varied(rows, name)
        values = sorted({row[name] for row in own})
        shares = [fmean(column(own, "share", **{name: value})) for value in values]
        listed = ", ".join(f"{value:g}: {spread(column(own, 'share', **{name: value}))}" for value in values)
        sentences.append(
            finding(max(shares) < 1, f"adaptive costs less than non-adaptive whatever {name} is ({listed})")
        )
    return sentences


EXPERIMENT = Experiment(
    name="adaptive-sensitivity",
    title="cost of figure 4's run by threshold, c_p and c_u, which the paper does not state (4-way, CNU)",
    paper="adaptive, section 5.2",
    keys=("threshold", "c_p us", "c_u us"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("nothing: the paper states neither the threshold nor the unit costs of its runs",),
    notes=NOTES,
    unit="s of work in the whole run; the rates change four times",
)
