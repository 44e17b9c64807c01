"""PIER, section 4.3.3: a join at m computation nodes of n, and what their downlinks would have to carry."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from watersmeet.program.pier.sql.settings import Transport
from watersmeet.reproduce.experiment import Experiment, Row, averaged, finding
from watersmeet.reproduce.plots import lines
from watersmeet.sim.pier.joins import R_BYTES, S_BYTES, JoinRun, measure_join

FIGURES = ("received MB", "most MB", "formula MB", "Mbps for a minute", "latency", "results")
PUBLISHED_MBPS, PUBLISHED_GB, PUBLISHED_NODES = 137.0, 1.0, 2_048


@dataclass(frozen=True, slots=True)
class Point:
    """A number of computation nodes among all nodes."""

    run: JoinRun
    draw: int


def expected_bytes(total_bytes: float, nodes: int, computation_nodes: int) -> float:
    """What a computation node receives: its share, but for what it has itself.

    >>> round(expected_bytes(1.024e9, 2_048, 1) * 8 / 60e6)
    136
    """
    return total_bytes / computation_nodes - total_bytes / (nodes * computation_nodes)


def _points(quick: bool) -> tuple[Point, ...]:
    nodes, counts = (16, (1, 4, 16)) if quick else (256, (1, 4, 16, 64, 256))
    return tuple(Point(JoinRun(nodes, transport=Transport.IP, computation_nodes=count), 0) for count in counts)


def _run(point: Point) -> Row:
    run = point.run
    found = measure_join(run)
    count = run.computation_nodes or 1
    passed = run.nodes * run.tuples * (run.r_selectivity * R_BYTES + run.s_selectivity * S_BYTES)
    received = sum(found.computation_megabytes) / len(found.computation_megabytes)
    return {
        "computation nodes": count,
        "draw": point.draw,
        "received MB": received,
        "most MB": max(found.computation_megabytes),
        "formula MB": expected_bytes(passed, run.nodes, count) / 1e6,
        "Mbps for a minute": received * 8 / 60,
        "latency": found.latency_s,
        "results": found.results if found.results == found.expected else None,
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    series = {"received MB": "mean", "most MB": "most", "formula MB": "t/m - t/(nm)"}
    lines(
        rows, path, x="computation nodes", series=series, xlabel="computation nodes", ylabel="MB", logx=True, logy=True
    )


def _verdict(rows: Sequence[Row]) -> list[str]:
    means = averaged(rows, ["computation nodes"], FIGURES)
    worst = max(abs(row["received MB"] / row["formula MB"] - 1) for row in means)
    mbps = expected_bytes(PUBLISHED_GB * 1.024e9, PUBLISHED_NODES, 1) * 8 / 60e6
    return [
        finding(worst < 0.25, f"computation nodes receive what the formula says, within {100 * worst:.0f} %"),
        finding(
            abs(mbps / PUBLISHED_MBPS - 1) < 0.02,
            f"the formula gives {mbps:.0f} Mbps for 1 GB within a minute (published: {PUBLISHED_MBPS:.0f})",
        ),
    ]


EXPERIMENT = Experiment(
    name="pier-centralised",
    title="A join at a few computation nodes, and the downlink that it needs",
    paper="PIER, section 4.3.3, centralized vs. distributed joins",
    keys=("computation nodes",),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    published=("one computation node of 2,048 needs 137 Mbps to have its input within a minute",),
    notes=(
        "256 nodes (quick: 16), the data of figure 4.16; tuples go straight to the computation nodes by their join "
        "key. With 100 tuples of each table at a node, 2,048 nodes have 0.26 GB that pass the predicates and not 1 GB.",
    ),
    unit="MB received by a computation node; latency: s to the 100th result",
)
