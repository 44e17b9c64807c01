"""Adaptive paper, figure 5 (experiment 2): the time that nodes spend on changing the plan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from watersmeet.adapt.messages import Phase
from watersmeet.reproduce import plots
from watersmeet.reproduce.adaptive.prototype import PrototypeSetup
from watersmeet.reproduce.adaptive.prototype import run as run_system
from watersmeet.reproduce.adaptive.runs import NOTES, Point, column, points_of
from watersmeet.reproduce.experiment import Experiment, Row, finding

PUBLISHED = {4: (1.4, 2.5), 8: (2.1, 2.7)}
_FIGURES = tuple(f"{system} {figure}" for system in ("CNU", "DNU") for figure in ("modification", "migration", "done"))
FIGURES = (*_FIGURES, "DNU/CNU")


def _points(quick: bool) -> tuple[Point, ...]:
    return points_of(lambda ways: PrototypeSetup(ways=ways), quick)


def _run(point: Point) -> list[Row]:
    settings = replace(point.settings, changing=point.draw % point.settings.ways)
    found = {system: run_system(settings, system, point.draw).switches for system in ("CNU", "DNU")}
    rows = []
    for number, (central, apart) in enumerate(zip(*found.values(), strict=True), 1):
        row: Row = {"ways": settings.ways, "round": number, "draw": point.draw}
        row["change"] = "up" if central.rate > settings.rate else "down"
        totals = []
        for system, switch in (("CNU", central), ("DNU", apart)):
            assert switch.done_ms is not None, "the run is long enough"
            row[f"{system} modification"] = switch.seconds[Phase.MODIFICATION] * 1e3
            row[f"{system} migration"] = 1e3 * sum(
                switch.seconds[phase] for phase in (Phase.MIGRATION, Phase.SYNCHRONISATION)
            )
            row[f"{system} done"] = switch.done_ms - switch.triggered_ms
            totals.append(sum(switch.seconds.values()))
        rows.append(row | {"DNU/CNU": totals[1] / totals[0]})
    return rows


def _plot(rows: Sequence[Row], path: Path) -> None:
    ways = sorted({row["ways"] for row in rows})
    figure, axes = plots.new_figure(1, len(ways), (3.8 * len(ways), 2.8))
    for count, axis in zip(ways, axes.flat, strict=True):
        rounds = sorted({row["round"] for row in rows})
        for place, system in enumerate(("CNU", "DNU")):
            at = [number + (place - 0.5) * 0.38 for number in rounds]
            low, high = (
                [column(rows, f"{system} {phase}", ways=count, round=number) for number in rounds]
                for phase in ("modification", "migration")
            )
            bottoms = [fmean(each) for each in low]
            errors = [stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0 for each in high]
            axis.bar(at, bottoms, 0.36, label=f"{system} modification")
            axis.bar(at, [fmean(each) for each in high], 0.36, bottom=bottoms, yerr=errors, label=f"{system} migration")
        axis.set(title=f"{count}-way join", xlabel="change", ylabel="time of all nodes (ms)", xticks=rounds)
    plots.legend_below(axes.flat[0])
    plots.save(figure, path)


def _verdict(rows: Sequence[Row]) -> list[str]:
    sentences = []
    for ways in sorted({row["ways"] for row in rows}):
        ratios = [
            fmean(column(rows, "DNU/CNU", ways=ways, round=number))
            for number in sorted({row["round"] for row in rows if row["ways"] == ways})
        ]
        low, high = PUBLISHED[ways]
        sentences.append(
            finding(
                low * 0.9 <= min(ratios) and max(ratios) <= high * 1.1,
                f"{ways}-way: DNU takes {min(ratios):.2f} to {max(ratios):.2f} times as long as CNU "
                f"(published: {low} to {high})",
            )
        )
        up, down = (fmean(column(rows, "DNU modification", ways=ways, change=change)) for change in ("up", "down"))
        sentences.append(
            finding(
                up > down, f"{ways}-way: DNU's modification takes {up:.0f} ms as the rate rises, {down:.0f} as it falls"
            )
        )
        central, apart = (fmean(column(rows, f"{system} migration", ways=ways)) for system in ("CNU", "DNU"))
        sentences.append(
            finding(
                (apart > central) == (ways == 4),
                f"{ways}-way: migration takes {apart:.0f} ms with DNU and {central:.0f} with CNU "
                f"(published: DNU {'more' if ways == 4 else 'less'})",
            )
        )
    return sentences


EXPERIMENT = Experiment(
    name="adaptive-fig5",
    title="time that all nodes spend on changing the plan",
    paper="adaptive, figure 5",
    keys=("ways", "round", "change"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=(
        "DNU's overhead is 1.4 to 2.5 times CNU's in the 4-way join and 2.1 to 2.7 times in the 8-way join",
        "modification takes longer in the 8-way join, as the rate rises, and with DNU",
        "migration takes longer with DNU in the 4-way join, and less long in the 8-way join",
    ),
    notes=(
        *NOTES,
        "Time is what messages and copies of windows take on their links, summed over all; migration includes "
        "synchronisation. 'done' is the time from the trigger to the switch.",
    ),
    unit="ms, all nodes",
)
