"""PIER, figures 4.10 to 4.12: structure of continuous aggregation, and combining on the way."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.aggregation_runs import (
    EPOCHS,
    at_most_nodes,
    by_algorithm,
    load_experiment,
    loads,
    named,
    size_experiment,
)

_ALGORITHMS = named("IP-1L-Optimal", "DHT-1L-Learned", "DHT-ML-Learned", "DHT-Hi-Learned")


def _traffic_verdict(rows: Sequence[Row]) -> list[str]:
    nodes, last = at_most_nodes(rows, "traffic")
    order = sorted(last, key=lambda name: last[name])
    return [
        finding(order[0] == "IP-1L-Optimal", f"IP-1L-Optimal has the least traffic: {last['IP-1L-Optimal']:.1f} MB"),
        finding(order[1] == "DHT-Hi-Learned", f"DHT-Hi-Learned is next with {last['DHT-Hi-Learned']:.1f} MB"),
        finding(
            order[-1] == "DHT-ML-Learned",
            f"DHT-ML-Learned needs most: {last['DHT-ML-Learned']:.1f} MB at {nodes:,} nodes "
            f"(DHT-1L-Learned {last['DHT-1L-Learned']:.1f})",
        ),
    ]


def _latency_verdict(rows: Sequence[Row]) -> list[str]:
    found = by_algorithm(rows, ("settled latency",))
    nodes, last = at_most_nodes(rows, "settled latency")
    small = {name: own[0]["settled latency"] for name, own in found.items()}
    best = last["DHT-Hi-Learned"]
    others = [latency for name, latency in last.items() if name != "DHT-Hi-Learned"]
    return [
        finding(
            best < min(others, default=float("inf")),
            f"at {nodes:,} nodes the hierarchy is fastest: {best:.2f} s, IP-1L-Optimal {last['IP-1L-Optimal']:.2f} s",
        ),
        f"beyond the paper: in the smallest network IP-1L-Optimal takes {small['IP-1L-Optimal']:.2f} s and "
        f"DHT-Hi-Learned {small['DHT-Hi-Learned']:.2f} s",
    ]


def _load_verdict(rows: Sequence[Row]) -> list[str]:
    found = loads(rows, "settled inbound")
    hierarchy = found["DHT-Hi-Learned"]
    least = min(own[0] for name, own in found.items() if name != "DHT-Hi-Learned")
    busy = sum(own > 5 * hierarchy[-1] for own in hierarchy)
    return [
        finding(
            hierarchy[0] < least / 5,
            f"only the hierarchy spares the root: {hierarchy[0]:.0f} kB at the busiest node, else {least:.0f} or more",
        ),
        finding(busy > 3, f"its load is still uneven: {busy} nodes receive over five times what the fiftieth does"),
    ]


EXPERIMENTS = (
    size_experiment(
        "4.10",
        title="Traffic of continuous aggregation by structure",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="traffic",
        ylabel="MB",
        verdict=_traffic_verdict,
        published=(
            "IP-1L-Optimal needs least, DHT-Hi-Learned is next, DHT-ML-Learned needs most",
            "straight to the root by the DHT needs more than the hierarchy: its congestion makes the DHT send again",
        ),
    ),
    size_experiment(
        "4.11",
        title="Latency of continuous aggregation by structure",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="settled latency",
        ylabel="s",
        verdict=_latency_verdict,
        published=("in very large networks the hierarchy is faster than all others, IP with optimal timing included",),
    ),
    load_experiment(
        "4.12",
        title="Inbound traffic of the fifty busiest nodes, continuous aggregation by structure",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="settled inbound",
        verdict=_load_verdict,
        published=("load is highly skewed; with the hierarchy over a dozen nodes receive the bulk of the traffic",),
    ),
)
