"""PIER, figure 5.7 (5.8.3): what 1,024 nodes send for 100 MAX queries, by potential gain; counted, not simulated.

In a tree every node but the root sends one partial state record an epoch and tree. Without sharing there is a tree for
each query; with it one for each entry of A', whose identifier is the row of F' and so q bits long, and the answers are
then collected by a coordinator and sent to those who asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from watersmeet.reproduce import plots
from watersmeet.reproduce.experiment import Experiment, Row, finding
from watersmeet.sharing.compose import add_composition
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.workloads import duplicate_insensitive

NODES, QUERIES, FRAGMENTS = 1_024, 100, 100
HEADER_BYTES, QUERY_ID_BYTES, RECORD_BYTES = 48, 8, 8  # of a datagram and the DHT, of an identifier, of a maximum
BASES = (10, 20, 30, 40, 50, 60, 70, 80, 90)
DRAWS = 10
FIGURES = ("individual queries", "non-optimised", "Add-M/A/P", "rectangle cover", "A' size", "cover size")


@dataclass(frozen=True, slots=True)
class Point:
    """One workload."""

    basis: int
    draw: int


def epoch_bytes(trees: int, identifier_bytes: int, answers: int) -> int:
    """What all nodes send in an epoch: records up the trees, roots to the coordinator, answers to those who asked."""
    record = HEADER_BYTES + identifier_bytes + RECORD_BYTES
    shared = answers > 0
    return trees * (NODES - 1) * record + (trees * record if shared else 0) + answers * (HEADER_BYTES + 16)


def _run(point: Point) -> Row:
    matrix = duplicate_insensitive(FRAGMENTS, QUERIES, point.basis, point.draw)
    row_bytes = -(-QUERIES // 8)
    added, covered = add_composition(matrix).size, rectangle_cover(matrix).size
    return {
        "basis rows": point.basis,
        "gain": 1 - point.basis / QUERIES,
        "draw": point.draw,
        "individual queries": epoch_bytes(QUERIES, QUERY_ID_BYTES, 0) / 1e6,
        "non-optimised": epoch_bytes(QUERIES, row_bytes, QUERIES) / 1e6,
        "Add-M/A/P": epoch_bytes(added, row_bytes, QUERIES) / 1e6,
        "rectangle cover": epoch_bytes(covered, row_bytes, QUERIES) / 1e6,
        "A' size": added,
        "cover size": covered,
    }


def _points(quick: bool) -> tuple[Point, ...]:
    bases, draws = (BASES[::4], 1) if quick else (BASES, DRAWS)
    return tuple(Point(basis, draw) for basis in bases for draw in range(draws))


def _verdict(rows: Sequence[Row]) -> list[str]:
    gains = np.array([row["gain"] for row in rows])
    found = []
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
        series={name: name for name in FIGURES[:4]},
        xlabel="total gain that is possible",
        ylabel="MB an epoch (counted)",
    )


EXPERIMENT = Experiment(
    name="pier-fig5.7",
    title="Bytes of 100 MAX queries at 1,024 nodes by potential gain (counted)",
    paper="PIER, figure 5.7",
    keys=("gain", "basis rows"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("communication falls linearly with the gain; the longer identifiers alone cost a little",),
    notes=(
        "Counted, not simulated: all nodes but the root send one record an epoch and tree; all have the same F.",
        f"A message has {HEADER_BYTES} bytes besides identifier and record; an identifier of a query {QUERY_ID_BYTES}, "
        "a row of F' one bit a query. Hops of the DHT before records meet are left out, as are query dissemination and "
        "failures.",
    ),
    unit="MB",
)
