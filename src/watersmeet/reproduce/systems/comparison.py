"""PIER, RJoin and site programs on the same queries, data and network: bytes, messages, delay, load and recall.

Streams are published by a few peers among many, and queries are asked by others. The workloads differ from the first
one in one respect each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watersmeet.program.pier.sql.settings import JoinMethod, PlanSettings
from watersmeet.reproduce.experiment import Experiment, Row, finding, mean
from watersmeet.reproduce.plots import legend_below, new_figure, save, show_grid
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.scenario.compare_systems import SystemFigures, by_pier, by_rjoin, by_sites
from watersmeet.sim.scenario.model import PierSettings, RJoinSettings, Scenario
from watersmeet.sim.scenario.network import DynamicSettings, LatencyKind, NetworkSettings, OverlayKind
from watersmeet.sim.scenario.workload import PublishedStream, SubmittedQuery, UserLoad
from watersmeet.topology.model import Query, Source, Stream

SECONDS = 30  # of event time
QUICK_SECONDS = 8
PAYLOAD = tuple("abcdef")  # columns of random numbers, in every answer; no system makes them shorter
FIGURES = ("KB", "messages", "standing KB", "median ms", "p99 ms", "highest KB", "mean KB", "recall", "answers")


@dataclass(frozen=True, slots=True)
class ComparedWorkload:
    """What is published and asked: two or three streams that join on `k` (and `j`), within RANGE windows."""

    nodes: int = 128
    ways: int = 2
    rate: float = 20.0  # tuples a second of each stream
    keys: int = 200
    window_s: int = 5
    queries: int = 1

    def scenario(self, seed: int, seconds: int) -> Scenario:
        """The streams at nodes 0, 1, ..., the queries at those after them."""
        rows = round(self.rate * seconds)
        streams = tuple(
            PublishedStream(
                Stream(
                    f"s{place}",
                    event_time="ts",
                    schema="ts timestamp, k bigint, j bigint, " + ", ".join(f"{name} bigint" for name in PAYLOAD),
                    source=Source(
                        "generator",
                        options={
                            "rows": str(rows),
                            "rows_per_second": f"{self.rate:g}",
                            "seed": str(seed * 10 + place),
                            "column.k": f"uniform 0 {self.keys}",
                            "column.j": f"uniform 0 {self.keys}",
                            **{f"column.{name}": f"uniform 0 {1 << 53}" for name in PAYLOAD},
                        },
                    ),
                ),
                home=place,
            )
            for place in range(self.ways)
        )
        queries = tuple(
            SubmittedQuery(Query(f"q{number}", self.sql(number)), home=self.ways + number)
            for number in range(self.queries)
        )
        network = NetworkSettings(
            self.nodes,
            OverlayKind.BAMBOO,
            LatencyKind.KING,
            seed=seed,
            dynamic=DynamicSettings(access_bps=1_500_000.0, congestion=Congestion.FIFO),
        )
        return Scenario(network, RJoinSettings(), UserLoad(streams, queries))

    def sql(self, number: int) -> str:
        """Query by query another part of the keys of the first stream; a single one asks for all."""
        sources = ", ".join(f"s{place} [RANGE {self.window_s} SECONDS]" for place in range(self.ways))
        conditions = [f"s{place - 1}.{'kj'[place - 1]} = s{place}.{'kj'[place - 1]}" for place in range(1, self.ways)]
        if self.queries > 1:
            conditions.append(f"s0.k % {self.queries} = {number}")
        payload = [f"s{place}.{name} AS {name}{place}" for place in range(self.ways) for name in PAYLOAD]
        items = ", ".join(["s0.k", *payload])
        return f"SELECT {items} FROM {sources} WHERE {' AND '.join(conditions)}"


BASE = ComparedWorkload()
WORKLOADS = {
    "base": BASE,
    "few matches": replace(BASE, keys=5_000),
    "many matches": replace(BASE, keys=20),
    "four times the rate": replace(BASE, rate=80.0, keys=800),
    "three streams": replace(BASE, ways=3),
    "twenty queries": replace(BASE, queries=20),
    "32 nodes": replace(BASE, nodes=32),
    "512 nodes": replace(BASE, nodes=512),
}
QUICK = ("base", "many matches", "three streams", "32 nodes")


def _pier(method: JoinMethod) -> Callable[[Scenario], SystemFigures]:
    return lambda scenario: by_pier(replace(scenario, pier=PierSettings(PlanSettings(method=method))))


SYSTEMS: dict[str, Callable[[Scenario], SystemFigures]] = {
    "PIER, symmetric hash": _pier(JoinMethod.SYMMETRIC_HASH),
    "PIER, semijoin": _pier(JoinMethod.SEMIJOIN),
    "RJoin": by_rjoin,
    "sites, auto, 1 s": by_sites("auto", 1_000_000),
    "sites, auto, 100 ms": by_sites("auto", 100_000),
    "sites, central, 100 ms": by_sites("central", 100_000),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A system on a workload."""

    workload: str
    system: str
    draw: int
    seconds: int


def _points(quick: bool) -> tuple[Point, ...]:
    draws, seconds = (1, QUICK_SECONDS) if quick else (3, SECONDS)
    return tuple(
        Point(workload, system, draw, seconds)
        for workload in (QUICK if quick else WORKLOADS)
        for system in SYSTEMS
        for draw in range(draws)
    )


def _run(point: Point) -> Row:
    found = SYSTEMS[point.system](WORKLOADS[point.workload].scenario(point.draw + 1, point.seconds))
    return {
        "workload": point.workload,
        "system": point.system,
        "draw": point.draw,
        "KB": found.bytes / 1e3,
        "messages": found.messages,
        "standing KB": found.standing_bytes / 1e3,
        "median ms": None if found.median_us is None else found.median_us / 1e3,
        "p99 ms": None if found.p99_us is None else found.p99_us / 1e3,
        "highest KB": found.highest_bytes / 1e3,
        "mean KB": found.mean_bytes / 1e3,
        "recall": found.recall if not found.surplus else 0.0,
        "answers": found.expected,
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    figure, axes = new_figure(3, 1, (8.4, 8.4))
    workloads, systems = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workload", "system"))
    width = 0.8 / len(systems)
    for axis, (name, label) in zip(
        axes.flat,
        (("KB", "KB sent"), ("median ms", "delay, median, ms"), ("highest KB", "KB into the busiest node")),
        strict=True,
    ):
        for place, system in enumerate(systems):
            heights = [
                mean(row[name] for row in rows if (row["workload"], row["system"]) == (workload, system)) or 0
                for workload in workloads
            ]
            places = [number + (place - len(systems) / 2 + 0.5) * width for number in range(len(workloads))]
            axis.bar(places, heights, width, label=system)
        axis.set(ylabel=label, yscale="log")
        axis.set_xticks(range(len(workloads)), workloads, fontsize=7)
        show_grid(axis)
    legend_below(axes.flat[0])
    save(figure, path)


def _verdict(rows: Sequence[Row]) -> list[str]:
    wrong = [f"{row['system']} on {row['workload']}" for row in rows if row["recall"] != 1.0]
    but = f", but for {', '.join(wrong)}" if wrong else ""
    return [finding(not wrong, f"all answers of the oracle and no others{but}")]


EXPERIMENT = Experiment(
    name="systems",
    title="PIER, RJoin and site programs on the same queries, data and network",
    paper="none: it is ours",
    keys=("workload", "system"),
    figures=FIGURES,
    points=_points,
    run=_run,
    plot=_plot,
    verdict=_verdict,
    notes=(
        "King-like latencies (75 ms at the median), 1.5 Mbps in and out, FIFO, Bamboo at rest; each stream is "
        "published by one node and each query asked by another. Base: 128 nodes, two streams of 20 tuples a second "
        "with 200 keys and six random numbers of 64 bits, all of them in every answer; RANGE 5 seconds. A draw has "
        "30 s of event time; three draws (quick: 8 s, one draw).",
    ),
    unit="KB sent, into the busiest node, and into a node on average; delays from the latest tuple of an answer",
)
