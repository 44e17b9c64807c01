"""PIER, figure 5.7 (5.8.3): what 1,024 nodes send for 100 MAX queries, by potential gain.

Without sharing there is a tree for each query. With it there is one for each entry of A', whose identifier is the row
of F' and so q bits long; a coordinator collects the entries and sends answers to those who asked. "Non-optimised" is
the second with F' the identity: as many trees as queries, with longer identifiers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.compose import add_composition
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.decomposition import identity
from watersmeet.sharing.workloads import duplicate_insensitive
from watersmeet.sim.pier.sharing.measure import SharingRun, measure_sharing

QUERIES = FRAGMENTS = 100
NODES, QUICK_NODES = 1_024, 8
BASES = (10, 30, 50, 70, 90)
DRAWS = 1
LINES = ("individual queries", "non-optimised", "Add-M/A/P", "rectangle cover")
FIGURES = (*LINES, "A' size", "cover size", "right")


@dataclass(frozen=True, slots=True)
class Point:
    """Queries of some base, drawn once, on so many nodes."""

    basis: int
    draw: int
    nodes: int


def _runs(matrix: Bools, nodes: int, seed: int) -> dict[str, SharingRun]:
    alone = identity(matrix)
    return {
        "individual queries": SharingRun(matrix, alone, nodes, seed, is_shared=False),
        "non-optimised": SharingRun(matrix, alone, nodes, seed),
        "Add-M/A/P": SharingRun(matrix, add_composition(matrix), nodes, seed),
        "rectangle cover": SharingRun(matrix, rectangle_cover(matrix), nodes, seed),
    }


def _run(point: Point) -> Row:
    matrix = duplicate_insensitive(FRAGMENTS, QUERIES, point.basis, point.draw)
    runs = _runs(matrix, point.nodes, point.draw + 1)
    found = {name: measure_sharing(run) for name, run in runs.items()}
    return {
        "basis rows": point.basis,
        "gain": 1 - point.basis / QUERIES,
        "draw": point.draw,
        **{name: found[name].megabytes for name in LINES},
        "A' size": runs["Add-M/A/P"].decomposition.size,
        "cover size": runs["rectangle cover"].decomposition.size,
        "right": sum(measured.right for measured in found.values()) / (len(LINES) * QUERIES),
    }


def _points(quick: bool) -> tuple[Point, ...]:
    bases, nodes = (BASES[::4], QUICK_NODES) if quick else (BASES, NODES)
    return tuple(Point(basis, draw, nodes) for basis in bases for draw in range(DRAWS))


def _verdict(rows: Sequence[Row]) -> list[str]:
    gains = np.array([row["gain"] for row in rows])
    found = [finding(all(row["right"] == 1 for row in rows), "all answers are those of the queries by themselves")]
    for name in ("Add-M/A/P", "rectangle cover"):
        sent = np.array([row[name] for row in rows])
        correlation = float(np.corrcoef(gains, sent)[0, 1])
        found.append(
            finding(correlation < -0.9, f"{name}: bytes fall linearly with the gain (correlation {correlation:.3f})")
        )
    extra = rows[0]["non-optimised"] / rows[0]["individual queries"] - 1
    found.append(finding(extra > 0, f"without optimisation the longer identifiers cost {100 * extra:.1f} % more bytes"))
    return found


def _plot(rows: Sequence[Row], path: Path) -> None:
    plots.lines(
        rows,
        path,
        x="gain",
        series={name: name for name in LINES},
        xlabel="total gain that is possible",
        ylabel="MB an epoch",
    )


EXPERIMENT = Experiment(
    name="pier-fig5.7",
    title="Bytes of 100 MAX queries at 1,024 nodes by potential gain",
    paper="PIER, figure 5.7",
    keys=("gain", "basis rows"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("communication falls linearly with the gain; the longer identifiers alone cost a little",),
    notes=(
        "Simulated: one epoch, DHT-Hi-Optimal (each node sends one record an epoch and tree), King-like latencies, 1.5 "
        "Mbps in and out. Every node has tuples of all 100 fragments; queries and F are at all nodes from the start. "
        "One draw; quick: 8 nodes.",
        "An identifier of a query has 8 bytes, a row of F' one bit a query, a maximum 8 bytes.",
    ),
    unit="MB",
)
