"""PIER, figure 4.17: latency of a symmetric hash join over the DHT and over IP."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.join_runs import DHT, IP, TRANSPORTS, by_join, join_experiment, node_points, plot_of


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = by_join(rows, "nodes")
    pairs = list(zip(found[IP], found[DHT], strict=True))
    large = [row for row in found[DHT] if row["nodes"] > 8]
    falls = len(large) > 1 and large[-1]["latency"] < large[0]["latency"]
    return [
        finding(all(ip["latency"] < dht["latency"] for ip, dht in pairs), "IP is faster than the DHT at every size"),
        finding(
            falls,
            f"beyond eight nodes the 100th result comes sooner the more nodes there are: {large[0]['latency']:.2f} s "
            f"at {large[0]['nodes']} nodes, {large[-1]['latency']:.2f} s at {large[-1]['nodes']}",
        ),
    ]


EXPERIMENT = join_experiment(
    "4.17",
    title="Latency of a symmetric hash join, DHT and IP",
    x="nodes",
    points=node_points(TRANSPORTS),
    plot=plot_of("latency", "nodes", "s to the 100th result", is_log=True),
    verdict=_verdict,
    published=("IP is faster", "beyond eight nodes the latency to the 100th result falls for both"),
)
