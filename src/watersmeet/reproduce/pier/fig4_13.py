"""PIER, figures 4.13 to 4.15: trees with a limit on the in-degree, stable ones and others."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.aggregation_runs import (
    EPOCHS,
    at_most_nodes,
    load_experiment,
    loads,
    named,
    size_experiment,
)

_STABLE, _ADAPTIVE = "Tree-Hi-S-Topology", "Tree-Hi-S-Adaptive"
_ALGORITHMS = named("IP-1L-Optimal", "DHT-Hi-Learned", "Tree-Hi-Topology", _STABLE, _ADAPTIVE)
_OURS = f"{_ADAPTIVE} is ours: it ends waiting by what is usual for each child."


def _traffic_verdict(rows: Sequence[Row]) -> list[str]:
    nodes, last = at_most_nodes(rows, "traffic")
    settled = [row["redirected until"] for row in rows if row["algorithm"] == _STABLE]
    return [
        finding(
            last["IP-1L-Optimal"] == min(last.values()),
            f"IP-1L-Optimal has the least traffic: {last['IP-1L-Optimal']:.1f} MB at {nodes:,} nodes",
        ),
        finding(
            last["Tree-Hi-Topology"] > last["DHT-Hi-Learned"],
            f"Tree-Hi-Topology needs more than DHT-Hi-Learned: {last['Tree-Hi-Topology']:.1f} and "
            f"{last['DHT-Hi-Learned']:.1f} MB",
        ),
        finding(
            last[_STABLE] < min(last["Tree-Hi-Topology"], last["DHT-Hi-Learned"]),
            f"{_STABLE} needs less than both: {last[_STABLE]:.1f} MB",
        ),
        finding(
            max(settled) <= 4,
            f"by the fourth epoch the tree is stable: the last redirects are in epoch {max(settled):.0f}",
        ),
    ]


def _load_verdict(rows: Sequence[Row]) -> list[str]:
    found = loads(rows, "settled inbound")
    tree, hierarchy = found[_STABLE], found["DHT-Hi-Learned"]
    return [
        finding(
            tree[0] < hierarchy[0],
            f"{_STABLE} spreads load more evenly: {tree[0]:.1f} kB at the busiest node, {hierarchy[0]:.1f} with "
            "DHT-Hi-Learned",
        ),
        finding(
            tree[0] < 2 * tree[9],
            f"its load is even: the busiest node receives {tree[0]:.1f} kB and the tenth {tree[9]:.1f} "
            f"(DHT-Hi-Learned: {hierarchy[0]:.1f} and {hierarchy[9]:.1f})",
        ),
    ]


def _latency_verdict(rows: Sequence[Row]) -> list[str]:
    nodes, last = at_most_nodes(rows, "settled latency")
    paper = {name: latency for name, latency in last.items() if name != _ADAPTIVE}
    return [
        finding(
            paper[_STABLE] < min(latency for name, latency in paper.items() if name != _STABLE),
            f"{_STABLE} is the fastest at {nodes:,} nodes: {paper[_STABLE]:.2f} s, "
            f"Tree-Hi-Topology {paper['Tree-Hi-Topology']:.2f}, DHT-Hi-Learned {paper['DHT-Hi-Learned']:.2f}",
        ),
        finding(
            paper["IP-1L-Optimal"] == max(paper.values()),
            f"IP-1L-Optimal is the slowest there: {paper['IP-1L-Optimal']:.2f} s",
        ),
        f"beyond the paper: {_ADAPTIVE} takes {last[_ADAPTIVE]:.2f} s",
    ]


EXPERIMENTS = (
    size_experiment(
        "4.13",
        title="Traffic of continuous aggregation by dynamics",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="traffic",
        ylabel="MB",
        verdict=_traffic_verdict,
        published=(
            "IP-1L-Optimal needs least; Tree-Hi-Topology more than DHT-Hi-Learned because of its redirects",
            "Tree-Hi-S-Topology needs less than DHT-Hi-Learned: nothing is congested, so less is sent again",
            "by the fourth epoch the tree is stable",
        ),
        notes=(_OURS,),
    ),
    load_experiment(
        "4.14",
        title="Inbound traffic of the fifty busiest nodes, continuous aggregation by dynamics",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="settled inbound",
        verdict=_load_verdict,
        published=("tree routing distributes inbound traffic evenly over the nodes",),
    ),
    size_experiment(
        "4.15",
        title="Latency of continuous aggregation by dynamics",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="settled latency",
        ylabel="s",
        verdict=_latency_verdict,
        published=(
            "Tree-Hi-S-Topology has the lowest latency in the largest network, other hierarchies slightly higher ones",
        ),
        notes=(_OURS,),
    ),
)
