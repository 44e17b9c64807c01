"""Adaptive paper, figure 4 (experiment 1): the cost of execution while the rate of one stream changes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from watersmeet.reproduce import plots
from watersmeet.reproduce.adaptive.prototype import SYSTEMS, PrototypeSetup
from watersmeet.reproduce.adaptive.prototype import run as run_system
from watersmeet.reproduce.adaptive.runs import NOTES, Point, column, points_of, spread
from watersmeet.reproduce.experiment import Experiment, Row, finding

SETTLED_MS = 600  # after a change of the rate, until windows have the tuples of the new one and plans are switched
SAME = 0.02  # by how much costs differ that hardly do


def _points(quick: bool) -> tuple[Point, ...]:
    return points_of(lambda ways: PrototypeSetup(ways=ways), quick)


def _run(point: Point) -> list[Row]:
    settings = replace(point.settings, changing=point.draw % point.settings.ways)
    found = {system: run_system(settings, system, point.draw) for system in SYSTEMS}
    first = found[SYSTEMS[0]]
    assert all(run.answers == first.answers for run in found.values()), "every plan gives the same answers"
    return [
        {"ways": settings.ways, "ms": ms, "draw": point.draw}
        | {system: found[system].cost_s[ms] * 1e3 for system in SYSTEMS}
        for ms in first.cost_s
    ]


def phase_of(ms: int, settings: PrototypeSetup | None = None) -> str:
    """The rate of the stream that changes in an interval that ends at a time, or that it has just changed.

    >>> phase_of(1_500), phase_of(1_700), phase_of(2_500), phase_of(3_700), phase_of(4_500)
    ('low', 'rising', 'high', 'falling', 'low')
    """
    known = settings or PrototypeSetup()
    since = ms - known.first_change_ms
    if since <= 0:
        return "low"
    is_high = (since - 1) // known.period_ms % 2 == 0
    if (since - 1) % known.period_ms < SETTLED_MS:
        return "rising" if is_high else "falling"
    return "high" if is_high else "low"


def _ratios(rows: Sequence[Row], phase: str) -> list[float]:
    """DNU's cost by CNU's in one phase, draw by draw: both have the same tuples then.

    Plans that cost the same by the rates may order streams differently (DNU keeps the order of those that cost the
    same), so single draws differ by the tuples that happen to match.
    """
    found = []
    for draw in sorted({row["draw"] for row in rows}):
        own = [row for row in rows if row["draw"] == draw and row["phase"] == phase]
        found.append(fmean(row["DNU"] for row in own) / fmean(row["CNU"] for row in own))
    return found


def _hardly_differ(ratios: Sequence[float]) -> bool:
    """Whether costs are the same, within 2 %, or two standard errors of their ratio where draws differ by more."""
    error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    return abs(fmean(ratios) - 1) <= max(SAME, 2 * error)


def _plot(rows: Sequence[Row], path: Path) -> None:
    ways = sorted({row["ways"] for row in rows})
    figure, axes = plots.new_figure(1, len(ways), (4.2 * len(ways), 2.8))
    for count, axis in zip(ways, axes.flat, strict=True):
        times = sorted({row["ms"] for row in rows})
        for marker, system in zip("osD", SYSTEMS, strict=True):
            values = [column(rows, system, ways=count, ms=ms) for ms in times]
            errors = [stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0 for each in values]
            axis.errorbar(times, [fmean(each) for each in values], errors, fmt=marker + "-", ms=2, lw=1, label=system)
        axis.set(title=f"{count}-way join", xlabel="time (ms)", ylabel="execution time (ms an interval)")
        plots.show_grid(axis)
        plots.start_at_zero(axis)
    plots.legend_below(axes.flat[0])
    plots.save(figure, path)


def _verdict(rows: Sequence[Row]) -> list[str]:
    sentences, visible = [], {}
    for ways in sorted({row["ways"] for row in rows}):
        own = [row | {"phase": phase_of(row["ms"])} for row in rows if row["ways"] == ways]
        cost = {
            (phase, system): column(own, system, phase=phase)
            for phase in ("low", "rising", "high", "falling")
            for system in SYSTEMS
        }
        share = fmean(cost["high", "CNU"]) / fmean(cost["high", "non-adaptive"])
        sentences.append(
            finding(
                share < 0.8,
                f"{ways}-way, rate high: CNU takes {spread(cost['high', 'CNU'])} ms an interval, non-adaptive "
                f"{spread(cost['high', 'non-adaptive'])} ms ({share:.0%})",
            )
        )
        same = fmean(cost["low", "CNU"]) / fmean(cost["low", "non-adaptive"])
        sentences.append(
            finding(
                0.95 < same < 1.05,
                f"{ways}-way, rate low: CNU is back at the initial plan, {same:.0%} of non-adaptive",
            )
        )
        settled = {phase: _ratios(own, phase) for phase in ("low", "high")}
        sentences.append(
            finding(
                all(_hardly_differ(ratios) for ratios in settled.values()),
                f"{ways}-way: hardly any difference between CNU and DNU but for the changes themselves (DNU/CNU, "
                "draw by draw; "
                + ", ".join(f"rate {phase}: {spread(ratios)}" for phase, ratios in settled.items())
                + ")",
            )
        )
        spikes = {
            system: fmean(
                max(row[system] for row in own if row["draw"] == draw and row["phase"] == "falling")
                for draw in {row["draw"] for row in own}
            )
            for system in SYSTEMS
        }
        sentences.append(
            finding(
                spikes["DNU"] > spikes["CNU"] > spikes["non-adaptive"],
                f"{ways}-way, rate falling: a spike, higher with DNU ({spikes['DNU']:.0f} ms) than with CNU "
                f"({spikes['CNU']:.0f} ms; non-adaptive {spikes['non-adaptive']:.0f} ms)",
            )
        )
        visible[ways] = {system: spikes[system] / fmean(cost["high", system]) for system in ("CNU", "DNU")}
    if len(visible) > 1:
        few, many = visible[min(visible)], visible[max(visible)]
        sentences.append(
            finding(
                all(many[system] < few[system] for system in few),
                f"the spike as the rate falls, by the cost while it is high: {min(visible)}-way "
                + " and ".join(f"{few[system]:.1f} ({system})" for system in few)
                + f", less visible {max(visible)}-way: "
                + " and ".join(f"{many[system]:.1f} ({system})" for system in many),
            )
        )
    return sentences


EXPERIMENT = Experiment(
    name="adaptive-fig4",
    title="execution cost while the rate of one stream changes between 50 and 200 tuples/s",
    paper="adaptive, figure 4",
    keys=("ways", "ms"),
    figures=SYSTEMS,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "while the rate is high the non-adaptive cost rises by a much larger margin than the adaptive ones",
        "while it is low all three are the same, and CNU and DNU hardly differ at any time",
        "as the rate falls there is a spike, higher with DNU, less visible in the 8-way join",
    ),
    notes=NOTES,
    unit="ms of work an interval, all nodes",
)
