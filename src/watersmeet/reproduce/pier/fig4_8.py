"""PIER, figures 4.8 and 4.9: routing and timing of continuous aggregation on one level."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.aggregation_runs import EPOCHS, by_algorithm, named, size_experiment

_TIMINGS = ("Optimal", "Timeout", "Learned")
_ALGORITHMS = named(*(f"{shape}-{timing}" for shape in ("IP-1L", "DHT-1L") for timing in _TIMINGS))


def _growth(rows: Sequence[Row]) -> float:
    """By how much a figure of the largest network exceeds one that is linear in the number of nodes."""
    first, last = rows[0], rows[-1]
    growth: float = (last["traffic"] / last["nodes"]) / (first["traffic"] / first["nodes"])
    return growth


def _traffic_verdict(rows: Sequence[Row]) -> list[str]:
    found = by_algorithm(rows, ("traffic",))
    spreads = []
    for shape in ("IP-1L", "DHT-1L"):
        columns = zip(*(found[f"{shape}-{timing}"] for timing in _TIMINGS), strict=True)
        spreads += [max(row["traffic"] for row in own) / min(row["traffic"] for row in own) - 1 for own in columns]
    ip, dht = _growth(found["IP-1L-Optimal"]), _growth(found["DHT-1L-Optimal"])
    return [
        finding(max(spreads) < 0.05, f"timing changes the traffic by at most {100 * max(spreads):.1f} %"),
        finding(ip < 1.25, f"IP grows nearly linearly: {ip:.2f} times as much a node in the largest network"),
        finding(dht > ip, f"the DHT grows faster than linearly: {dht:.2f} times as much a node"),
    ]


def _latency_verdict(rows: Sequence[Row]) -> list[str]:
    found = by_algorithm(rows, ("latency", "settled latency"))
    gaps: list[float] = []
    behind: list[float] = []
    for shape in ("IP-1L", "DHT-1L"):
        for timing, figures in (("Learned", gaps), ("Timeout", behind)):
            for own, best in zip(found[f"{shape}-{timing}"], found[f"{shape}-Optimal"], strict=True):
                if own["settled latency"] is not None and best["settled latency"] is not None:
                    figures.append(own["settled latency"] - best["settled latency"])
    return [
        finding(
            max(map(abs, gaps)) < 0.1,
            f"once children are known, learned and optimal timing differ by at most {max(map(abs, gaps)):.2f} s",
        ),
        finding(min(behind) > 0, f"timeouts take at least {min(behind):.2f} s longer"),
    ]


EXPERIMENTS = (
    size_experiment(
        "4.8",
        title="Traffic of continuous aggregation on one level",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="traffic",
        ylabel="MB",
        verdict=_traffic_verdict,
        published=(
            "timing has no discernible impact on traffic",
            "IP grows nearly linearly, the DHT faster than that because of its routing",
        ),
    ),
    size_experiment(
        "4.9",
        title="Latency of continuous aggregation on one level",
        algorithms=_ALGORITHMS,
        epochs=EPOCHS,
        figure="latency",
        ylabel="s",
        verdict=_latency_verdict,
        published=("optimal and learned timing perform the same, whatever the routing; timeouts take longer",),
    ),
)
