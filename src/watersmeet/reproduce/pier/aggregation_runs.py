"""What PIER's experiments on aggregation (section 4.2) have in common: a point is a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from watersmeet.program.pier.algorithms import Algorithm, algorithm_named
from watersmeet.reproduce.experiment import Experiment, Row, averaged
from watersmeet.reproduce.plots import error_bars
from watersmeet.sim.pier.aggregation.measure import AggregationMeasured, AggregationRun, measure_aggregation

FIGURES = (
    *("traffic", "messages", "sent again", "latency", "settled latency", "answers", "most inbound", "complete"),
    "redirected until",
)
LOAD_FIGURES = ("inbound", "settled inbound")
UNIT = "traffic: MB; latency: s; inbound: kB of one node"
NODES = tuple(2**exponent for exponent in range(6, 14))
QUICK_NODES = (64, 256)
EPOCHS, QUICK_EPOCHS, DRAWS, RANKS = 30, 6, 10, 50
NOTES = (
    "COUNT over Bamboo; King-like latencies, 1.5 Mbps in and out, FIFO; senders estimate round trips and send again "
    "what is not acknowledged in time. The root is another point in each draw.",
    "The query is at all nodes when a run begins and the overlay, which has converged, sends nothing of its own: what "
    "the paper subtracts is not there. So routes do not change, as those of the paper's DHT do.",
    "Latency is to the last answer of an epoch, the one with most nodes; settled latency is that of the second half of "
    "the epochs; complete is the share of epochs whose last answer has all nodes; redirected until is the last epoch "
    "in which a node was sent to another parent.",
    "Ten draws a point; quick: one of 64 and 256 nodes, 6 epochs.",
)


@dataclass(frozen=True, slots=True)
class AggregationPoint:
    """An aggregation to be measured, and the number of its draw."""

    run: AggregationRun
    draw: int


def named(*names: str) -> tuple[Algorithm, ...]:
    """The algorithms of these names."""
    found = [algorithm_named(name) for name in names]
    return tuple(algorithm for algorithm in found if algorithm is not None)


def _points(algorithms: tuple[Algorithm, ...], epochs: int, sizes: tuple[int, ...], quick: bool) -> tuple[
    AggregationPoint, ...
]:  # fmt: skip
    if quick:
        epochs, sizes = min(epochs, QUICK_EPOCHS), QUICK_NODES[-len(sizes) :]
    return tuple(
        AggregationPoint(AggregationRun(algorithm, nodes, epochs, seed=draw + 1), draw)
        for nodes in sizes
        for algorithm in algorithms
        for draw in range(1 if quick else DRAWS)
    )


def run_point(point: AggregationPoint) -> Row:
    """Run a point: what it came to as a whole."""
    measured = measure_aggregation(point.run)
    return _keys(point) | {
        "traffic": measured.megabytes,
        "messages": measured.messages,
        "sent again": measured.retransmitted,
        "latency": measured.latency_s,
        "settled latency": measured.settled_latency_s,
        "answers": sum(epoch.answers for epoch in measured.epochs),
        "most inbound": measured.inbound_kilobytes[0],
        "complete": _complete(point, measured),
        "redirected until": max((n for n, epoch in enumerate(measured.epochs, 1) if epoch.redirects), default=0),
    }


def run_load(point: AggregationPoint) -> list[Row]:
    """Run a point: the inbound traffic of the nodes that receive most."""
    measured = measure_aggregation(point.run)
    pairs = zip(measured.inbound_kilobytes[:RANKS], measured.settled_inbound_kilobytes[:RANKS], strict=True)
    return [
        _keys(point) | {"rank": rank, "inbound": inbound, "settled inbound": settled}
        for rank, (inbound, settled) in enumerate(pairs, 1)
    ]


def _keys(point: AggregationPoint) -> Row:
    return {"algorithm": point.run.algorithm.name, "nodes": point.run.nodes, "draw": point.draw}


def _complete(point: AggregationPoint, measured: AggregationMeasured) -> float:
    return sum(epoch.nodes == point.run.nodes for epoch in measured.epochs) / len(measured.epochs)


def by_algorithm(rows: Sequence[Row], figures: Sequence[str] = FIGURES) -> dict[str, list[Row]]:
    """Means over draws of each algorithm, in the order of the number of nodes."""
    means = averaged(rows, ("algorithm", "nodes"), figures)
    names = dict.fromkeys(row["algorithm"] for row in means)
    return {
        name: sorted((row for row in means if row["algorithm"] == name), key=lambda row: row["nodes"])
        for name in names
    }  # fmt: skip


def at_most_nodes(rows: Sequence[Row], figure: str) -> tuple[int, dict[str, float]]:
    """The largest network that was run, and a figure of each algorithm there, for those that have one."""
    last = {name: own[-1] for name, own in by_algorithm(rows, (figure,)).items()}
    nodes = max(row["nodes"] for row in last.values())
    return nodes, {name: row[figure] for name, row in last.items() if row[figure] is not None}


def loads(rows: Sequence[Row], figure: str) -> dict[str, list[float]]:
    """A figure of each algorithm by rank, means over draws."""
    means = averaged(rows, ("algorithm", "rank"), (figure,))
    names = dict.fromkeys(row["algorithm"] for row in means)
    return {name: [row[figure] for row in means if row["algorithm"] == name] for name in names}


def size_experiment(
    number: str,
    *,
    title: str,
    algorithms: tuple[Algorithm, ...],
    epochs: int,
    figure: str,
    ylabel: str,
    verdict: Callable[[Sequence[Row]], list[str]],
    published: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> Experiment:
    """A figure over the number of nodes."""
    return Experiment(
        name=f"pier-fig{number}",
        title=title,
        paper=f"PIER, figure {number}",
        keys=("algorithm", "nodes"),
        figures=FIGURES,
        points=partial(_points, algorithms, epochs, NODES),
        run=run_point,
        plot=partial(_plot_sizes, figure, ylabel),
        verdict=verdict,
        published=published,
        notes=(*notes, *NOTES),
        unit=UNIT,
    )


def load_experiment(
    number: str,
    *,
    title: str,
    algorithms: tuple[Algorithm, ...],
    epochs: int,
    figure: str,
    verdict: Callable[[Sequence[Row]], list[str]],
    published: tuple[str, ...],
) -> Experiment:
    """A figure over the nodes that receive most, in the largest network."""
    return Experiment(
        name=f"pier-fig{number}",
        title=title,
        paper=f"PIER, figure {number}",
        keys=("algorithm", "nodes", "rank"),
        figures=LOAD_FIGURES,
        points=partial(_points, algorithms, epochs, NODES[-1:]),
        run=run_load,
        plot=partial(_plot_loads, figure),
        verdict=verdict,
        published=published,
        notes=("The paper shows one run of 8,192 nodes; here ten draws.", *NOTES),
        unit=UNIT,
    )


def _plot_sizes(figure: str, ylabel: str, rows: Sequence[Row], path: Path) -> None:
    error_bars(
        rows, path, series="algorithm", x="nodes", figure=figure, xlabel="nodes", ylabel=ylabel, logx=True, logy=True
    )


def _plot_loads(figure: str, rows: Sequence[Row], path: Path) -> None:
    xlabel, ylabel = "node, by what it receives", "kB received"
    error_bars(rows, path, series="algorithm", x="rank", figure=figure, xlabel=xlabel, ylabel=ylabel, logy=True)
