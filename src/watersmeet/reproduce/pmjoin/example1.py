"""PMJoin, example 1 (section 1): three routers, three hosts, and what three schemes ship of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from watersmeet.cost.workload import Workload
from watersmeet.planners.partition import SubPlans, pmjoin_plan
from watersmeet.planners.trees import BYTES, simple, stream_join_opt
from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.reproduce.workloads import (
    WorkloadSource,
    measure,
    names_of,
    rows_table,
    unpartitioned,
    workload_of_sources,
)

RATES = np.array([[0.1, 0.1, 100], [0.03, 50, 0.04], [50, 0.01, 0.02]])  # of each stream, by value a, b and c
WINDOW_S = 0.5
PUBLISHED = {"centralised": 100.1, "distributed": 54.03, "partitioned": 0.07}
SEED = 1


@dataclass(frozen=True, slots=True)
class Point:
    """A scheme, and for how long it is run."""

    scheme: str
    seconds: int


def _sources() -> list[WorkloadSource]:
    """The paper's table 1."""
    total = RATES.sum(axis=1)
    return [WorkloadSource(f"n{i + 1}", total[i], WINDOW_S, {0: RATES[i] / total[i]}) for i in range(3)]


def _plan(scheme: str, workload: Workload) -> SubPlans:
    """The plan of a scheme."""
    match scheme:
        case "centralised":
            return unpartitioned(simple(workload, BYTES))
        case "distributed":
            return unpartitioned(stream_join_opt(workload, BYTES))
        case _:
            return pmjoin_plan(workload, "rate", 3, BYTES)


def _points(quick: bool) -> tuple[Point, ...]:
    return tuple(Point(scheme, 4_000 if quick else 20_000) for scheme in PUBLISHED)


def _run(point: Point) -> Row:
    streams = _sources()
    full_us = round(WINDOW_S * 1e6)
    tables = {name: _rows(i, full_us, point.seconds) for i, name in enumerate(names_of(streams))}
    sub_plans = _plan(point.scheme, workload_of_sources(streams))
    found = measure(streams, sub_plans, tables, full_us, point.seconds, feeds=max(1, point.seconds // 2_000))
    return {
        "scheme": point.scheme,
        "draw": 0,
        "published": PUBLISHED[point.scheme],
        "measured": found.rows_per_s,
        "seconds": point.seconds,
    }


def _rows(stream: int, full_us: int, seconds: int) -> pa.Table:
    """Rows of each value at even distances that are a little random, so that values meet as often as they should."""
    ts, keys = [], []
    end_us = full_us + round(seconds * 1e6)
    for value, rate in enumerate(RATES[stream], start=1):
        rng = np.random.default_rng((SEED, stream, value))
        count = round(rate * end_us / 1e6)
        ts.append(((np.arange(count) + rng.random(count)) / count * end_us).astype(np.int64))
        keys.append(np.full(count, value))
    order = np.argsort(np.concatenate(ts), kind="stable")
    return rows_table({"k0": pa.array(np.concatenate(keys)[order])}, np.concatenate(ts)[order])


def _plot(rows: Sequence[Row], path: Path) -> None:
    plots.bars(
        rows,
        path,
        label="scheme",
        series={"published": "published", "measured": "measured"},
        ylabel="rows/s",
        logy=True,
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    return [
        finding(
            abs(row["measured"] - row["published"]) <= 0.1 * row["published"],
            f"{row['scheme']} ships {row['measured']:.4g} a second where the paper has {row['published']:g}",
        )
        for row in rows
    ]


EXPERIMENT = Experiment(
    name="pmjoin-example1",
    title="Three schemes for three streams of three values",
    paper="PMJoin, example 1 and table 1",
    keys=("scheme",),
    figures=("published", "measured", "seconds"),
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("100.1 centralised, 54.03 distributed and 0.07 partitioned, in bytes a second with rows of one byte",),
    notes=(
        "A row counts 1 and a combination of two counts 2, as rows of one byte do in the paper.",
        f"Seed {SEED}; rows of a value come at even distances, each moved at random by up to one distance.",
    ),
    unit="rows/s",
)
