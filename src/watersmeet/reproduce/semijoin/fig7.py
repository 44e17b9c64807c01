"""Semijoin paper, figure 7 (section 5.3.1): six ways to join new tuples of one stream with the window of another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from watersmeet.plan.nodes import HeadPlan, Hop, Linear, Method
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.semijoin.runs import RunSetting, StreamSpec, draw_tables, problem_for, spent

PAPER = tuple(method.value for method in Method)
BLOOM = tuple(f"{method.value} Bloom" for method in Method if method.startswith("SM"))
SOURCE, DESTINATION = ("SP-S", "SM-S1", "SM-S2"), ("SP-D", "SM-D1", "SM-D2")
SECONDS, QUICK_SECONDS = 2.0, 1.0
WARM_FEEDS = 6
SEED, DRAWS = 70, 10


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of the figure: what is varied, over which values, and what the paper says of it."""

    letter: str
    parameter: str
    values: tuple[float, ...]
    change: Callable[[RunSetting, float], RunSetting]
    published: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A panel, the value of its parameter, for how long it is run, and the number of the draw."""

    letter: str
    value: float
    seconds: float
    draw: int = 0


def _second(setting: RunSetting, **changes: float) -> RunSetting:
    """Other figures for the second stream."""
    first, second = setting.streams
    return replace(setting, streams=(first, replace(second, **changes)))  # type: ignore[arg-type]


_GROUPS = (
    "the source group grows with the parameter and the destination group stays, so that they cross",
    "SM-S2 is very close to SP-S, and SM-D1 to SP-D",
)
PANELS = (
    Panel(
        "a",
        "tuple size of S2 (bytes)",
        (250, 750, 1250, 1750, 2250),
        lambda setting, value: _second(setting, size_bytes=int(value)),
        _GROUPS,
    ),
    Panel(
        "b",
        "rate of S2 (tuples/s)",
        (100, 200, 300, 400, 500),
        lambda setting, value: _second(setting, rate=value),
        _GROUPS,
    ),
    Panel(
        "c",
        "selectivity factor of S2",
        (0.02, 0.05, 0.1, 0.2, 0.5),
        lambda setting, value: _second(setting, distinct=round(1 / value)),
        (
            "simple joins do not depend on it",
            "SM-S1 and SM-S2 grow up to the factor of S1, 0.1, and are nearly constant from there on",
            "SM-D1 and SM-D2 fall",
        ),
    ),
    Panel(
        "d",
        "window of S2 (s)",
        (1, 2, 3, 4, 5),
        lambda setting, value: _second(setting, window_s=value),
        ("all grow: a larger window takes longer to probe",),
    ),
    Panel(
        "e",
        "latency (ms)",
        (5, 15, 25, 35, 45),
        lambda setting, value: replace(setting, latency_s=value / 1e3),
        ("all grow",),
    ),
    Panel(
        "f",
        "bandwidth (kbps)",
        (256, 512, 1024, 2048, 4096),
        lambda setting, value: replace(setting, bandwidth_bps=value * 1e3),
        ("all fall, and what semijoins are better by with them",),
    ),
    Panel(
        "g",
        "execution interval (ms)",
        (50, 100, 150, 200, 250),
        lambda setting, value: replace(setting, tau_s=value / 1e3),
        ("all fall: there are fewer shipments",),
    ),
)


def panel_of(letter: str) -> Panel:
    """The panel of a letter."""
    return next(panel for panel in PANELS if panel.letter == letter)


def setting_of(point: Point) -> RunSetting:
    """The paper's default setting with one figure changed."""
    return panel_of(point.letter).change(RunSetting((StreamSpec(), StreamSpec())), point.value)


def one_way_join(method: Method, *, bloom: bool = False) -> Linear:
    """S1's new tuples joined with S2's window in one way; what S2's tuples do is not run."""
    return Linear((HeadPlan("s1", (Hop("s2", method, bloom=bloom),)), HeadPlan("s2", (Hop("s1"),))))


def _points(quick: bool, panel: Panel) -> tuple[Point, ...]:
    if quick:
        return tuple(Point(panel.letter, value, QUICK_SECONDS) for value in panel.values[::2])
    return tuple(Point(panel.letter, value, SECONDS, draw) for value in panel.values for draw in range(DRAWS))


def _run(point: Point) -> Row:
    panel = panel_of(point.letter)
    setting = setting_of(point)
    problem = problem_for(setting)
    tables = draw_tables(setting, setting.window_s + point.seconds, SEED + point.draw)
    row: Row = {panel.parameter: point.value, "draw": point.draw}
    for bloom, names in ((False, PAPER), (True, BLOOM)):
        for name in names:
            sub_plan = one_way_join(Method(name.removesuffix(" Bloom")), bloom=bloom)
            found = spent(setting, problem, sub_plan, tables, point.seconds, head="s1", warm_feeds=WARM_FEEDS)
            row[name] = found.total
    return row


def _plot(rows: Sequence[Row], path: Path, panel: Panel) -> None:
    series = {name: name for name in (*PAPER, "SM-S1 Bloom", "SM-D1 Bloom")}
    plots.lines(rows, path, x=panel.parameter, series=series, xlabel=panel.parameter, ylabel="s/s")


def _verdict(rows: Sequence[Row], panel: Panel) -> list[str]:
    means = averaged(rows, [panel.parameter], [*PAPER, *BLOOM])
    first, last = means[0], means[-1]
    found = _PANEL_VERDICTS[panel.letter](means)
    if panel.letter != "c":
        apart = max(abs(row[semijoin] / row[other] - 1) for row in means for semijoin, other in _PAIRS)
        found.append(
            finding(
                apart <= 0.05,
                f"SM-S2 against SP-S and SM-D1 against SP-D are at most {apart:.0%} apart: "
                "sites send each other watermarks, which a fixed delay does not need",
            )
        )
    averages = [sum(row[name] for row in means) / len(means) for name in ("SM-S1", "SM-S2", "SM-D1", "SM-D2")]
    found.append(
        f"beyond the paper, whose text is of two minds: on average SM-S1 takes {averages[0]:.2f} s/s and SM-S2 "
        f"{averages[1]:.2f}, SM-D1 {averages[2]:.2f} and SM-D2 {averages[3]:.2f}"
    )
    shift = max(abs(row[f"{name} Bloom"] / row[name] - 1) for row in (first, last) for name in PAPER[2:])
    found.append(f"beyond the paper: Bloom filters instead of keys change a total by at most {shift:.1%}")
    return found


_PAIRS = (("SM-S2", "SP-S"), ("SM-D1", "SP-D"))


def _groups(means: Sequence[Row]) -> list[str]:
    first, last = means[0], means[-1]
    grown = [last[name] / first[name] for name in SOURCE]
    kept = [abs(last[name] / first[name] - 1) for name in DESTINATION]
    below, above = first["SP-S"] < first["SP-D"], last["SP-S"] > last["SP-D"]
    return [
        finding(
            min(grown) > 1.5 and max(kept) < 0.05,
            f"the source group grows {min(grown):.1f} to {max(grown):.1f} times, and the destination group changes "
            f"by at most {max(kept):.1%}",
        ),
        finding(below and above, "SP-S is cheaper than SP-D at the lowest value and dearer at the highest"),
    ]


def _selectivity(means: Sequence[Row]) -> list[str]:
    first, middle, last = means[0], means[len(means) // 2], means[-1]
    kept = max(abs(row[name] / first[name] - 1) for row in means for name in ("SP-S", "SP-D"))
    grown = [middle[name] / first[name] for name in ("SM-S1", "SM-S2")]
    after = max(abs(last[name] / middle[name] - 1) for name in ("SM-S1", "SM-S2"))
    fallen = [last[name] / first[name] for name in ("SM-D1", "SM-D2")]
    return [
        finding(kept < 0.02, f"the simple joins change by at most {kept:.1%}"),
        finding(
            min(grown) > 1.5 and after < 0.1,
            f"SM-S1 and SM-S2 grow {min(grown):.1f} to {max(grown):.1f} times up to 0.1, and then change by at most "
            f"{after:.1%}",
        ),
        finding(max(fallen) < 0.8, f"SM-D1 and SM-D2 fall to {min(fallen):.0%} and {max(fallen):.0%}"),
    ]


def _window(means: Sequence[Row]) -> list[str]:
    grown = [means[-1][name] / means[0][name] - 1 for name in PAPER]
    return [
        finding(
            min(grown) > 0.05,
            f"from the shortest window to the longest, totals grow by {min(grown):.1%} to {max(grown):.1%}: an index "
            "is probed, not all of the window, and a tuple is shipped at most once whatever the window",
        )
    ]


def _latency(means: Sequence[Row]) -> list[str]:
    more = [means[-1][name] - means[0][name] for name in PAPER]
    return [finding(min(more) > 0, f"all grow, by {min(more):.2f} to {max(more):.2f} s/s")]


def _bandwidth(means: Sequence[Row]) -> list[str]:
    left = [means[-1][name] / means[0][name] for name in PAPER]
    low, high = (min(row[name] for name in PAPER[2:]) - min(row["SP-S"], row["SP-D"]) for row in (means[0], means[-1]))
    return [
        finding(max(left) < 1, f"all fall, to {min(left):.0%} to {max(left):.0%}"),
        finding(
            low < 0 and low < high,
            f"the best semijoin takes {low:+.2f} s/s against the best simple join at the lowest bandwidth and "
            f"{high:+.2f} at the highest: with equal selectivity factors every tuple matches, and nothing is saved",
        ),
    ]


def _interval(means: Sequence[Row]) -> list[str]:
    left = [means[-1][name] - means[0][name] for name in PAPER]
    return [finding(max(left) < 0, f"all fall, by {-max(left):.2f} to {-min(left):.2f} s/s")]


_PANEL_VERDICTS: dict[str, Callable[[Sequence[Row]], list[str]]] = {
    "a": _groups,
    "b": _groups,
    "c": _selectivity,
    "d": _window,
    "e": _latency,
    "f": _bandwidth,
    "g": _interval,
}

NOTES = (
    "Defaults as published: 1250 bytes, selectivity factor 0.1, 300 tuples/s, 3 s, 25 ms, 1024 kbps, 100 ms.",
    "Only what new tuples of S1 need is run; seconds of transmission and of processing for a second of the streams.",
    "Processing is no measured time: steps are counted in the run and multiplied by fixed costs (UNITS in "
    "semijoin/runs.py), which differ from the cost model's defaults by up to 20 times.",
    "Links have their latency in the run but no limit of bandwidth, since totals above 1 s/s would never get through.",
    f"Counted over {SECONDS:g} s ({QUICK_SECONDS:g} s in quick runs) after the windows have filled; {DRAWS} draws from "
    f"seed {SEED} on, as many as the paper averages.",
)


def _experiment(panel: Panel) -> Experiment:
    return Experiment(
        name=f"semijoin-fig7{panel.letter}",
        title=f"One-way joins against the {panel.parameter.split(' (')[0]}",
        paper=f"Semijoin paper, figure 7({panel.letter})",
        keys=(panel.parameter,),
        figures=(*PAPER, *BLOOM),
        points=partial(_points, panel=panel),
        run=_run,
        plot=partial(_plot, panel=panel),
        verdict=partial(_verdict, panel=panel),
        published=panel.published,
        notes=NOTES,
        unit="s/s",
    )


EXPERIMENTS = tuple(_experiment(panel) for panel in PANELS)
