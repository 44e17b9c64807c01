"""PIER, figure 4.19: latency of four join strategies over the selectivity on S."""

from collections.abc import Sequence

from watersmeet.reproduce.experiment import Row, finding, mean
from watersmeet.reproduce.pier.join_runs import by_join, join_experiment, method_points, plot_of

STEADY = 1.25  # times: what we call "mostly constant", for which the text has no number


def _verdict(rows: Sequence[Row]) -> list[str]:
    found = by_join(rows, "selectivity")
    known = {name: [row["latency"] for row in own if row["latency"] is not None] for name, own in found.items()}
    moves = {name: max(own) / min(own) for name, own in known.items()}
    widest = max(moves, key=lambda name: moves[name])
    latency = {name: mean(own) for name, own in known.items()}
    order = sorted(latency, key=lambda name: latency[name])
    shown = ", ".join(f"{name} {latency[name]:.2f} s" for name in order)
    return [
        finding(order[-1] == "Bloom", f"Bloom has the highest latency: {shown}"),
        finding(order[0] == "Fetch Matches", "Fetch Matches has the lowest"),
        finding(
            latency["symmetric semijoin"] > latency["symmetric hash"], "the semijoin is slower than symmetric hash"
        ),
        finding(
            moves[widest] <= STEADY,
            f"latency hardly depends on the selectivity: most for {widest}, by {moves[widest] - 1:.0%}",
        ),
    ]


EXPERIMENT = join_experiment(
    "4.19",
    title="Latency of four join strategies",
    x="selectivity",
    points=method_points,
    plot=plot_of("latency", "selectivity", "s to the 100th result", is_log=False),
    verdict=_verdict,
    published=(
        "latency hardly depends on the selectivity",
        "Fetch Matches is slightly faster than symmetric hash, the semijoin nearly the sum of both, Bloom the slowest",
    ),
)
