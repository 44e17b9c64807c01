"""Adaptive paper, table 3: how many messages a change of plan takes."""

from collections.abc import Sequence
from math import isclose
from pathlib import Path

from watersmeet.adapt.centralised import update_centrally
from watersmeet.adapt.distributed import update_distributed
from watersmeet.adapt.messages import Modification, Phase
from watersmeet.adapt.sequences import generate, plan_cost
from watersmeet.adapt.synchronise import by_coordinator, point_to_point
from watersmeet.reproduce import plots
from watersmeet.reproduce.adaptive.prototype import PrototypeSetup
from watersmeet.reproduce.adaptive.runs import NOTES, Point, points_of
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding

PHASES = ("modification", "migration", "synchronisation")
PUBLISHED = {
    (4, "up", "CNU"): (4, 34, 24),
    (4, "down", "CNU"): (4, 27, 24),
    (4, "up", "DNU"): (65, 61, 44),
    (4, "down", "DNU"): (59, 55, 32),
    (8, "up", "CNU"): (8, 131, 112),
    (8, "down", "CNU"): (8, 115, 112),
    (8, "up", "DNU"): (561, 181, 152),
    (8, "down", "DNU"): (283, 83, 48),
}
FIGURES = (*PHASES, *(f"published {phase}" for phase in PHASES), "by coordinator")


def _points(quick: bool) -> tuple[Point, ...]:
    return points_of(lambda ways: PrototypeSetup(ways=ways), quick)


def modifications(settings: PrototypeSetup, change: str) -> dict[str, Modification]:
    """A change of the rate of one stream by both procedures."""
    name, setting = settings.names[settings.changing], settings.setting
    rates = (settings.low, settings.high) if change == "up" else (settings.high, settings.low)
    before, after = (
        settings.figures({other: rate if other == name else settings.rate for other in settings.names})
        for rate in rates
    )
    plan = generate(setting, before)
    coordinator = next(other for other in settings.names if other != name)
    central = update_centrally(setting, after, plan, changed=name, coordinator=coordinator)
    apart = update_distributed(setting, before, after, plan)
    costs = [plan_cost(setting, after, found.plan) for found in (central, apart)]
    assert isclose(*costs), "the plans of both procedures cost the same"
    return {"CNU": central, "DNU": apart}


def _run(point: Point) -> list[Row]:
    settings, rows = PrototypeSetup(ways=point.settings.ways, changing=point.draw % point.settings.ways), []
    for change in ("up", "down"):
        for system, found in modifications(settings, change).items():
            switch = len(point_to_point(found.groups))
            counts = (found.count(Phase.MODIFICATION), found.count(Phase.MIGRATION) + switch, switch)
            row: Row = {"ways": settings.ways, "change": change, "system": system, "draw": point.draw}
            row |= dict(zip(PHASES, counts, strict=True))
            for phase, known in zip(PHASES, PUBLISHED[settings.ways, change, system], strict=True):
                row[f"published {phase}"] = known
            rows.append(row | {"by coordinator": len(by_coordinator(found.groups))})
    return rows


def _means(rows: Sequence[Row]) -> dict[tuple[int, str, str], Row]:
    keys = ("ways", "change", "system")
    return {tuple(row[key] for key in keys): row for row in averaged(rows, keys, FIGURES)}


def _plot(rows: Sequence[Row], path: Path) -> None:
    means = [row | {"label": f"{ways}-way {system}\n{change}"} for (ways, change, system), row in _means(rows).items()]
    series = {name: name for phase in PHASES for name in (phase, f"published {phase}")}
    figure, axes = plots.new_figure(1, 1, (7.6, 3.0))
    axis, width = axes.flat[0], 0.13
    for place, name in enumerate(series):
        hatch = "//" if name.startswith("published") else None
        colour = f"C{place // 2}"
        at = [number + (place - 2.5) * width for number in range(len(means))]
        axis.bar(
            at, [row[name] for row in means], width, label=name, color=colour, hatch=hatch, alpha=0.55 if hatch else 1
        )
    axis.set_xticks(range(len(means)), [row["label"] for row in means], fontsize=7)
    axis.set(yscale="log", ylabel="messages")
    plots.legend_below(axis)
    plots.save(figure, path)


def _verdict(rows: Sequence[Row]) -> list[str]:
    sentences = []
    for (ways, change, system), row in _means(rows).items():
        counts = [round(row[phase]) for phase in PHASES]
        known = PUBLISHED[ways, change, system]
        near = all(
            ours == theirs if system == "CNU" else 0.5 <= ours / theirs <= 2
            for ours, theirs in zip(counts, known, strict=True)
        )
        said = "/".join(map(str, counts)), "/".join(map(str, known))
        measure = "" if system == "CNU" else ", within a factor of two" if near else ", not within a factor of two"
        sentences.append(finding(near, f"{ways}-way {change}, {system}: {said[0]} (published {said[1]}){measure}"))
    return sentences


EXPERIMENT = Experiment(
    name="adaptive-table3",
    title="messages of a change of plan; migration includes synchronisation",
    paper="adaptive, table 3",
    keys=("ways", "change", "system"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=tuple(
        f"{ways}-way {change}, {system}: {'/'.join(map(str, counts))}"
        for (ways, change, system), counts in PUBLISHED.items()
    ),
    notes=(
        NOTES[0],
        "Figures are those of the rates, without noise. With DNU streams that cost the same stay in their order, as "
        "the text says; so its plan may differ from CNU's where nothing is gained by it.",
        "Synchronisation is point to point among the affected nodes, in one group if their lists overlap; the last "
        "column is the alternative of an elected coordinator: 5 (n - 1) messages.",
    ),
    unit="messages",
)
