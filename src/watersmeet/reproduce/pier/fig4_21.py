"""PIER, figure 4.21: traffic of symmetric and hierarchical hash joins, also with all tuples in one bucket."""

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

SEVERAL = 2  # times: what we call significant, for which the text has no number


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = by_join(rows, "nodes")
    last = {name: own[-1]["traffic"] for name, own in found.items()}
    nodes = found[SYMMETRIC][-1]["nodes"]
    return [
        finding(
            last[more] >= SEVERAL * last[less],
            f"{more} needs {last[more] / last[less]:.2f} times the traffic of {less} at {nodes} nodes",
        )
        for more, less in ((HIERARCHICAL, SYMMETRIC), (HIERARCHICAL_SKEWED, SKEWED))
    ]


EXPERIMENT = join_experiment(
    "4.21",
    title="Traffic of hierarchical joins",
    x="nodes",
    points=node_points(HIERARCHIES),
    plot=plot_of("traffic", "nodes", "MB", is_log=True),
    verdict=_verdict,
    published=("the lower latency costs significantly more traffic, since whole tuples travel along the route",),
)
