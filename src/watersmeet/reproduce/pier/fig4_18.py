"""PIER, figure 4.18: traffic of four join strategies over the selectivity on S."""

from collections.abc import Sequence
from statistics import correlation

from watersmeet.reproduce.experiment import Row, finding
from watersmeet.reproduce.pier.join_runs import by_join, join_experiment, method_points, plot_of

LINEAR = 0.99  # the least correlation that is called a line


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = by_join(rows, "selectivity")
    low = {name: own[0]["traffic"] for name, own in found.items()}
    high = {name: own[-1]["traffic"] for name, own in found.items()}
    growth = {name: high[name] / low[name] for name in found}
    most = [max(found, key=lambda name: found[name][place]["traffic"]) for place in range(len(found["Bloom"]))]
    highest = most.count("symmetric hash")
    semijoin = found["symmetric semijoin"]
    line = correlation([row["selectivity"] for row in semijoin], [row["traffic"] for row in semijoin])
    return [
        finding(2 * highest >= len(most), f"symmetric hash needs most at {highest} of {len(most)} selectivities"),
        finding(
            growth["Fetch Matches"] == min(growth.values()),
            f"Fetch Matches is the flattest: {growth['Fetch Matches']:.2f} times as much at the highest selectivity",
        ),
        finding(
            growth["symmetric semijoin"] == max(growth.values()) and line > LINEAR,
            f"the semijoin grows linearly with the selectivity: {growth['symmetric semijoin']:.1f} times, "
            f"correlation {line:.3f}",
        ),
        finding(
            low["Bloom"] < low["symmetric hash"],
            f"at low selectivity Bloom needs {low['Bloom'] / low['symmetric hash']:.2f} of symmetric hash",
        ),
        finding(
            abs(1 - high["Bloom"] / high["symmetric hash"]) < abs(1 - low["Bloom"] / low["symmetric hash"]),
            f"at high selectivity Bloom nears symmetric hash: {high['Bloom'] / high['symmetric hash']:.2f} of it",
        ),
    ]


EXPERIMENT = join_experiment(
    "4.18",
    title="Traffic of four join strategies",
    x="selectivity",
    points=method_points,
    plot=plot_of("traffic", "selectivity", "MB", is_log=False),
    verdict=_verdict,
    published=(
        "symmetric hash needs most for many workloads and grows with the selectivity",
        "Fetch Matches is nearly flat, the semijoin linear in the selectivity",
        "Bloom saves most of rehashing R at low selectivity and nears symmetric hash at high",
    ),
    notes=(
        "256 nodes (quick: 16), which the paper does not state. A filter is 8 kB for each node and table whatever the "
        "selectivity, so Bloom pays only where tuples are many or wide.",
    ),
)
