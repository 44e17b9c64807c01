"""PIER, figure 4.17: latency of a symmetric hash join over the DHT and over IP."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding, half_width, mean
from watersmeet.reproduce.pier.join_runs import DHT, IP, TRANSPORTS, by_join, join_experiment, node_points, plot_of


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = by_join(rows, "nodes")
    pairs = list(zip(found[IP], found[DHT], strict=True))
    faster = [ip["nodes"] for ip, dht in pairs if ip["latency"] < dht["latency"]]
    large = [row["nodes"] for row in found[DHT] if row["nodes"] > 8]
    first, last = (_latencies(rows, nodes) for nodes in (large[0], large[-1]))
    margin = (half_width(first) or 0.0) + (half_width(last) or 0.0)
    return [
        finding(len(faster) == len(pairs), f"IP is faster than the DHT at {len(faster)} of {len(pairs)} sizes"),
        finding(
            mean(last) < mean(first) - margin,
            f"beyond eight nodes the 100th result comes sooner the more nodes there are, by more than draws differ: "
            f"{mean(first):.2f} s at {large[0]} nodes, {mean(last):.2f} s at {large[-1]}",
        ),
    ]


def _latencies(rows: Sequence[Row], nodes: int) -> list[float]:
    """The latencies of all draws over the DHT."""
    own = (row["latency"] for row in rows if row["join"] == DHT and row["nodes"] == nodes)
    return [latency for latency in own if latency is not None]


EXPERIMENT = join_experiment(
    "4.17",
    title="Latency of a symmetric hash join, DHT and IP",
    x="nodes",
    points=node_points(TRANSPORTS),
    plot=plot_of("latency", "nodes", "s to the 100th result", is_log=True),
    verdict=_verdict,
    published=("IP is faster", "beyond eight nodes the latency to the 100th result falls for both"),
)
