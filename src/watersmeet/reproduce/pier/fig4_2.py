"""PIER, figures 4.2 to 4.4: traffic, inbound load and latency of the one-shot aggregation algorithms."""

from collections.abc import Sequence

from watersmeet.program.pier.algorithms import one_shot_algorithms
from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.aggregation_runs import (
    at_most_nodes,
    by_algorithm,
    load_experiment,
    loads,
    size_experiment,
)

_ALGORITHMS = one_shot_algorithms()
_BEYOND = "DHT-Hi-Optimal, which PIER does not have, knows how many children each node has: the simulator does."


def _traffic_verdict(rows: Sequence[Row]) -> list[str]:
    found = by_algorithm(rows, ("traffic",))
    nodes, last = at_most_nodes(rows, "traffic")
    cheapest = all(own["traffic"] >= best["traffic"] for name in found for own, best in
                   zip(found[name], found["IP-1L-Optimal"], strict=True))  # fmt: skip
    middle = sorted(last[name] for name in ("IP-1L-Optimal", "DHT-Hi-Timeout", "DHT-ML-Timeout"))
    return [
        finding(cheapest, f"IP-1L-Optimal has the least traffic at every size, up to {last['IP-1L-Optimal']:.2f} MB"),
        finding(
            last["DHT-1L-Optimal"] > last["IP-1L-Optimal"],
            f"the DHT costs more than IP on one level: {last['DHT-1L-Optimal'] / last['IP-1L-Optimal']:.1f} times",
        ),
        finding(
            middle[1] == last["DHT-Hi-Timeout"],
            f"DHT-Hi-Timeout is in between: {last['DHT-Hi-Timeout']:.2f} MB at {nodes:,} nodes, "
            f"DHT-ML-Timeout {last['DHT-ML-Timeout']:.2f}",
        ),
        finding(
            last["DHT-ML-Timeout"] > 1.5 * last["DHT-Hi-Timeout"],
            f"not combining on the way costs {last['DHT-ML-Timeout'] / last['DHT-Hi-Timeout']:.1f} times the traffic",
        ),
    ]  # fmt: skip


def _load_verdict(rows: Sequence[Row]) -> list[str]:
    found = loads(rows, "inbound")
    combined, single = found["DHT-Hi-Timeout"], found["DHT-1L-Timeout"]
    several = found["DHT-ML-Timeout"]
    return [
        finding(
            combined[0] < min(found["IP-1L-Optimal"][0], single[0], several[0]) / 2,
            f"combining on the way relieves the root: {combined[0]:.0f} kB at the busiest node, "
            f"{found['IP-1L-Optimal'][0]:.0f} with IP-1L-Optimal, {several[0]:.0f} with DHT-ML-Timeout",
        ),
        finding(
            several[4] > 2 * found["IP-1L-Optimal"][4],
            f"without it others are loaded too: the fifth node receives {several[4]:.1f} kB with DHT-ML-Timeout and "
            f"{found['IP-1L-Optimal'][4]:.1f} with IP-1L-Optimal",
        ),
    ]


def _latency_verdict(rows: Sequence[Row]) -> list[str]:
    found = by_algorithm(rows, ("latency",))
    nodes, last = at_most_nodes(rows, "latency")
    small, large = [], []
    for shape in (name.removesuffix("-Timeout") for name in found if name.endswith("-Timeout")):
        optimal, timeout = f"{shape}-Optimal", f"{shape}-Timeout"
        if optimal in last and timeout in last:  # else it has no complete answer in the largest network
            small.append(found[timeout][0]["latency"] / found[optimal][0]["latency"])
            large.append(last[timeout] / last[optimal])
    fastest = min(last, key=lambda name: last[name])
    never = sorted(set(found) - set(last))
    return [
        finding(
            min(small) > 1,
            f"optimal timing is faster: timeouts take {min(small):.0f} to {max(small):.0f} times as long",
        ),
        finding(
            all(after < before for before, after in zip(small, large, strict=True)),
            f"it matters less in large networks: {min(large):.1f} to {max(large):.1f} times at {nodes:,} nodes",
        ),
        f"beyond the paper: the fastest at {nodes:,} nodes is {fastest} with {last[fastest]:.2f} s"
        + (f"; never complete: {', '.join(never)}" if never else ""),
    ]  # fmt: skip


EXPERIMENTS = (
    size_experiment(
        "4.2",
        title="Traffic of one-shot aggregation",
        algorithms=_ALGORITHMS,
        epochs=1,
        figure="traffic",
        ylabel="MB",
        verdict=_traffic_verdict,
        published=(
            "IP-1L-Optimal always has the least; IP-1L-Timeout slightly more in large networks",
            "DHT-1L needs more by the messages of the DHT, DHT-Hi-Timeout is in the middle, DHT-ML needs most",
        ),
        notes=(_BEYOND,),
    ),
    load_experiment(
        "4.3",
        title="Inbound traffic of the fifty busiest nodes, one-shot aggregation",
        algorithms=_ALGORITHMS,
        epochs=1,
        figure="inbound",
        verdict=_load_verdict,
        published=(
            "in-network aggregation relieves the root and spreads load: three nodes receive over five times, six over "
            "twice what the others do",
            "multi-level without it loads further nodes and the root as much",
        ),
    ),
    size_experiment(
        "4.4",
        title="Latency of one-shot aggregation",
        algorithms=_ALGORITHMS,
        epochs=1,
        figure="latency",
        ylabel="s",
        verdict=_latency_verdict,
        published=(
            "optimal timing answers earlier than timeouts, which is less noticeable in large networks",
            "in very large networks the timeout is too short and answers are revised",
        ),
        notes=(_BEYOND,),
    ),
)
