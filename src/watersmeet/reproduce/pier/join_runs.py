"""What PIER's experiments on joins (section 4.3.3) have in common: a point is a run, a row its traffic and latency."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watersmeet.program.pier.sql.settings import JoinMethod, Transport
from watersmeet.reproduce.experiment import Experiment, Row, averaged
from watersmeet.reproduce.plots import error_bars
from watersmeet.sim.pier.joins import JoinRun, measure_join

FIGURES = ("traffic", "messages", "latency", "most inbound", "results")
UNIT = "traffic and most inbound: MB; latency: s to the 100th result"
QUICK_NODES = (4, 16, 64)
NODES = tuple(2**exponent for exponent in range(1, 14))
NOTES = (
    "King-like latencies, 1.5 Mbps in and out, FIFO; 100 tuples of R (1,024 bytes) and of S (1,536) a node, results of "
    "2,048 bytes; half of R and S pass their predicates, 90 % of R has two partners in S.",
    "Not stated in the paper and chosen here: f passes half of the pairs, join keys are uniform, Bloom filters have "
    "65,536 bits and four hash functions and are OR-ed every 5 s. Requests of the DHT never time out, since queues of "
    "minutes are part of the worst case. Semijoins fetch tuples by address, without a lookup.",
    "Traffic is all bytes sent, less those of a run in which the query is disseminated and not executed; most inbound "
    "is of the whole run. Where there are fewer than 100 results, latency is to the last.",
    "Ten draws up to 256 nodes, three up to 2,048, one beyond; quick: one draw of 4, 16 and 64 nodes.",
)


@dataclass(frozen=True, slots=True)
class JoinPoint:
    """A run, and under which name it is shown."""

    series: str
    x: str  # the column that it varies
    run: JoinRun
    draw: int


def draws_at(nodes: int, quick: bool) -> range:
    """The draws of a point: the larger the network, the fewer."""
    return range(1 if quick or nodes > 2_048 else 3 if nodes > 256 else 10)


def run_point(point: JoinPoint) -> Row:
    """The figures of the join of a point."""
    measured = measure_join(point.run)
    keys = {"join": point.series, "nodes": point.run.nodes, "selectivity": point.run.s_selectivity}
    return {
        "join": point.series,
        point.x: keys[point.x],
        "draw": point.draw,
        "traffic": measured.megabytes,
        "messages": measured.messages,
        "latency": measured.latency_s,
        "most inbound": measured.most_inbound_megabytes,
        "results": measured.results if measured.results == measured.expected else None,
    }


def node_points(series: dict[str, JoinRun]) -> Callable[[bool], tuple[JoinPoint, ...]]:
    """Points over the number of nodes."""

    def points(quick: bool) -> tuple[JoinPoint, ...]:
        return tuple(
            JoinPoint(name, "nodes", _seeded(run, nodes, draw), draw)
            for nodes in (QUICK_NODES if quick else NODES)
            for name, run in series.items()
            for draw in draws_at(nodes, quick)
        )

    return points


def _seeded(run: JoinRun, nodes: int, draw: int) -> JoinRun:
    return replace(run, nodes=nodes, seed=draw + 1)


def plot_of(figure: str, x: str, ylabel: str, *, is_log: bool) -> Callable[[Sequence[Row], Path], None]:
    """A line for each join, with means and deviations over draws."""

    def plot(rows: Sequence[Row], path: Path) -> None:
        xlabel = "nodes" if x == "nodes" else "selectivity on S"
        error_bars(
            rows, path, series="join", x=x, figure=figure, xlabel=xlabel, ylabel=ylabel, logx=is_log, logy=is_log
        )

    return plot


def by_join(rows: Sequence[Row], x: str) -> dict[str, list[Row]]:
    """Means over draws of each join, in the order of x."""
    means = averaged(rows, ("join", x), FIGURES)
    names = dict.fromkeys(row["join"] for row in means)
    return {name: sorted((row for row in means if row["join"] == name), key=lambda row: row[x]) for name in names}


def join_experiment(
    number: str,
    *,
    title: str,
    x: str,
    points: Callable[[bool], tuple[JoinPoint, ...]],
    plot: Callable[[Sequence[Row], Path], None],
    verdict: Callable[[Sequence[Row]], list[str]],
    published: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> Experiment:
    """The experiment of one of the paper's figures on joins."""
    return Experiment(
        name=f"pier-fig{number}",
        title=title,
        paper=f"PIER, figure {number}",
        keys=("join", x),
        figures=FIGURES,
        points=points,
        run=run_point,
        plot=plot,
        verdict=verdict,
        published=published,
        notes=(*notes, *NOTES),
        unit=UNIT,
    )


DHT, IP = "symmetric hash, DHT", "symmetric hash, IP"
TRANSPORTS = {DHT: JoinRun(2), IP: JoinRun(2, transport=Transport.IP)}
SYMMETRIC, HIERARCHICAL = "symmetric hash", "hierarchical"
SKEWED, HIERARCHICAL_SKEWED = "symmetric hash, one bucket", "hierarchical, one bucket"
HIERARCHIES = {
    SYMMETRIC: JoinRun(2),
    HIERARCHICAL: JoinRun(2, method=JoinMethod.HIERARCHICAL),
    SKEWED: JoinRun(2, skewed=True),
    HIERARCHICAL_SKEWED: JoinRun(2, method=JoinMethod.HIERARCHICAL, skewed=True),
}
METHODS = {
    "symmetric hash": JoinMethod.SYMMETRIC_HASH,
    "Fetch Matches": JoinMethod.FETCH_MATCHES,
    "symmetric semijoin": JoinMethod.SEMIJOIN,
    "Bloom": JoinMethod.BLOOM,
}


def method_points(quick: bool) -> tuple[JoinPoint, ...]:
    """The four strategies over the selectivity on S; the paper does not say how many nodes there were."""
    nodes, selectivities = (16, (0.1, 0.5, 1.0)) if quick else (256, tuple(step / 10 for step in range(1, 11)))
    return tuple(
        JoinPoint(name, "selectivity", JoinRun(nodes, method=method, s_selectivity=share, seed=draw + 1), draw)
        for share in selectivities
        for name, method in METHODS.items()
        for draw in draws_at(nodes, quick)
    )
