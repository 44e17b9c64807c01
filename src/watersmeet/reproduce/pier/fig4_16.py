"""PIER, figure 4.16: traffic of a symmetric hash join over the DHT and over IP."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.join_runs import DHT, IP, TRANSPORTS, by_join, join_experiment, node_points, plot_of


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = by_join(rows, "nodes")
    pairs = list(zip(found[IP], found[DHT], strict=True))
    most = max(dht["traffic"] / ip["traffic"] for ip, dht in pairs)
    return [
        finding(
            all(ip["traffic"] < dht["traffic"] for ip, dht in pairs),
            f"IP needs less than the DHT at every size; the DHT needs up to {most:.2f} times as much",
        )
    ]


EXPERIMENT = join_experiment(
    "4.16",
    title="Traffic of a symmetric hash join, DHT and IP",
    x="nodes",
    points=node_points(TRANSPORTS),
    plot=plot_of("traffic", "nodes", "MB", is_log=True),
    verdict=_verdict,
    published=("the IP method uses less bandwidth; lookups of the DHT account for the difference",),
)
