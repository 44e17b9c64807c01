"""PMJoin, figure 9 (section 4.2): the processor time that routing takes, over the number of parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import process_time

import numpy as np
import pyarrow as pa

from watersmeet.planners.partition import PartMethod, SubPlans, pmjoin_plan
from watersmeet.program.site.deployment import overlay, shared_joins
from watersmeet.program.site.filing import pack_for_others
from watersmeet.program.storage.shelf import MemoryShelf
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.pmjoin.fig8 import METHODS, SEED, SITUATIONS, STREAMS, hot_spot_sources
from watersmeet.reproduce.workloads import (
    EVENT_TIME,
    WorkloadSource,
    between,
    draw_rows,
    measure,
    plan_of,
    workload_of_sources,
)
from watersmeet.sim.sites.rows import lay_out

SECONDS = 5
DRAWS = 10
_REPEATS = 3
FIGURES = tuple(f"{method} {what}" for what in ("routing", "micro-batches") for method in METHODS)


@dataclass(frozen=True, slots=True)
class Point:
    """A situation, the number of parts, and the number of the draw."""

    situation: str
    parts: int
    draw: int


def _points(quick: bool) -> tuple[Point, ...]:
    if quick:
        return tuple(Point(situation, count, 0) for situation in ("CHS SD", "RHS DD") for count in (1, 10, 1_000))
    parts = (1, 2, 10, 50, 100, 500, 1_000)
    return tuple(Point(situation, count, draw) for situation in SITUATIONS for count in parts for draw in range(DRAWS))


def _run(point: Point) -> Row:
    sources = hot_spot_sources(point.situation, STREAMS, point.draw)
    tables, full_us = draw_rows(sources, SECONDS, SEED + point.draw)
    row: Row = {"situation": point.situation, "parts": point.parts, "draw": point.draw}
    workload = workload_of_sources(sources)
    plans: dict[PartMethod, SubPlans] = {
        method: pmjoin_plan(workload, method, point.parts, seed=SEED) for method in METHODS
    }
    for method, sub_plans in plans.items():
        row[f"{method} routing"] = 1000 * routing_s(sources, sub_plans, tables, full_us)
    for method, sub_plans in plans.items():
        measured = measure(sources, sub_plans, tables, full_us, SECONDS, feeds=SECONDS)
        row[f"{method} micro-batches"] = 1000 * measured.cpu_s
    return row


def routing_s(
    sources: Sequence[WorkloadSource], sub_plans: SubPlans, tables: Mapping[str, pa.Table], full_us: int
) -> float:
    """Processor time that all homes take to route and pack one second of their streams, batches of a second each."""
    joins = shared_joins({"q": plan_of(sources, sub_plans, tables)}, {})
    batches = []
    for program in overlay(joins, answers=False).values():
        for scan in program.streams:
            for low, high in pairwise(full_us + 1_000_000 * np.arange(SECONDS + 1)):
                rows = between(tables[scan.stream], int(low), int(high))
                batches.append((program, scan.stream, lay_out(scan, rows, EVENT_TIME)))
    taken = []
    for _ in range(_REPEATS):
        shelf, begun = MemoryShelf(), process_time()
        for program, stream, rows in batches:
            pack_for_others(program, shelf, stream, rows)
        taken.append(process_time() - begun)
    return min(taken) / SECONDS


def _plot(rows: Sequence[Row], path: Path) -> None:
    plots.lines(
        rows,
        path,
        panel="situation",
        x="parts",
        series={f"{method} routing": method for method in METHODS},
        xlabel="parts",
        ylabel="routing, CPU ms a second",
        logx=True,
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["situation", "parts"], FIGURES)
    found = []
    for what in ("routing", "micro-batches"):
        whole = {  # one part is the same plan for all methods
            row["situation"]: np.mean([row[f"{method} {what}"] for method in METHODS])
            for row in means
            if row["parts"] == 1
        }
        parted = [row for row in means if row["parts"] > 1]
        ratios = [row[f"{method} {what}"] / whole[row["situation"]] for row in parted for method in METHODS]
        less = sum(ratio <= 1 for ratio in ratios)
        word = "routing the streams at their homes" if what == "routing" else "everything that sites do"
        found.append(
            finding(
                less > len(ratios) / 2,
                f"{word} takes {min(ratios):.2g} to {max(ratios):.2g} times what it takes without partitions, "
                f"and less in {less} of {len(ratios)} cases",
            )
        )
    return found


EXPERIMENT = Experiment(
    name="pmjoin-fig9",
    title="Processor time of routing against the number of parts",
    paper="PMJoin, figure 9",
    keys=("situation", "parts"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("most of the time routing takes less with partitions than without, for fewer tuples are routed",),
    notes=(
        "`routing` is the processor time in which the homes find the sub-plan of each new row and pack what goes to "
        f"each other site, in batches of a second, the best of {_REPEATS} times; results of joins are not in it.",
        "`micro-batches` is all processor time of all sites in the simulator at one feed a second: reading rows, "
        "routing, filing, the joins whose results travel on, parcels and ledgers.",
        f"The streams of figure 8; {DRAWS} draws from seed {SEED} on. Times are of one machine and vary between runs.",
    ),
    unit="CPU ms/s",
)
