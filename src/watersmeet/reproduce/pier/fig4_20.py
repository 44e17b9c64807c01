"""PIER, figure 4.20: latency of symmetric and hierarchical hash joins, also with all tuples in one bucket."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.join_runs import (
    HIERARCHICAL,
    HIERARCHICAL_SKEWED,
    HIERARCHIES,
    SKEWED,
    SYMMETRIC,
    by_join,
    join_experiment,
    node_points,
    plot_of,
)


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = by_join(rows, "nodes")
    last = {name: own[-1]["latency"] for name, own in found.items()}
    nodes = found[SYMMETRIC][-1]["nodes"]
    return [
        finding(
            last[fast] < 1.0 and last[fast] < last[slow],
            f"{fast}: {last[fast]:.2f} s at {nodes} nodes, {slow}: {last[slow]:.2f} s",
        )
        for fast, slow in ((HIERARCHICAL, SYMMETRIC), (HIERARCHICAL_SKEWED, SKEWED))
    ]


EXPERIMENT = join_experiment(
    "4.20",
    title="Latency of hierarchical joins",
    x="nodes",
    points=node_points(HIERARCHIES),
    plot=plot_of("latency", "nodes", "s to the 100th result", is_log=True),
    verdict=_verdict,
    published=("hierarchical joins bring the latency below one second",),
)
