"""Networks whose nodes have rows of their own in every epoch, and the answers of one query."""

from collections.abc import Callable

import pyarrow as pa
from dht_world import DhtWorld

from watersmeet.program.aggregate.functions import Function
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.pier.algorithms import Algorithm
from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import Latency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.pier.aggregation.continuous import AggregationNode, start_everywhere
from watersmeet.sim.pier.aggregation.query import AggregationQuery, EpochAnswer, Source, TableAlgebra

ROOT = identifier_of("root of the aggregation")
REQUESTER = 3
FUNCTIONS = tuple(
    (Function(name, None if name == "count" else pa.int64()), None if name == "count" else "x")
    for name in ("count", "sum", "min", "max", "avg")
)
COUNT = Layout((), FUNCTIONS[:1])
ONE_ROW = COUNT.add(pa.table({"x": [1]}))
GROUPED = Layout(("g",), FUNCTIONS)
EXPECTED: tuple[Callable[[list[int]], object], ...] = (
    len,
    sum,
    lambda values: min(values, default=None),
    lambda values: max(values, default=None),
    lambda values: sum(values) / len(values),
)


class AggregationWorld(DhtWorld):
    """Converged nodes; `rows[address][epoch]` are its values."""

    def __init__(
        self,
        overlay: str,
        seed: int,
        nodes: int,
        latency: str = "constant",
        internet: Callable[[Kernel, Latency], Internet] = lambda kernel, latency: Internet(kernel, latency),
        *,
        epochs: int = 1,
        timers: bool = False,
    ) -> None:
        super().__init__(overlay, seed, nodes, latency=latency, timers=timers, internet=internet)
        self.rows = [
            [[self.random.randrange(1_000) for _ in range(self.random.randrange(4))] for _ in range(epochs)]
            for _ in range(nodes)
        ]
        self.answers: list[tuple[EpochAnswer, int]] = []  # with the time since the query began
        self.started_us = 0
        self.nodes: list[AggregationNode] = []

    @property
    def parents(self) -> list[int | None]:
        return [dht.node.router.next_hop(ROOT) for dht in self.dhts]

    def local(self, address: int, epoch: int) -> pa.Table:
        values = self.rows[address][epoch]
        groups = pa.array([value % 3 for value in values], pa.int64())
        return GROUPED.add(pa.table({"g": groups, "x": pa.array(values, pa.int64())}))

    def query(
        self, algorithm: Algorithm, epochs: int = 1, in_degree_max: int = 64, layout: Layout = GROUPED
    ) -> AggregationQuery:
        owner = self.owner(ROOT).node.address
        return AggregationQuery(
            f"{algorithm.name}.{self.kernel.now_us}",
            algorithm,
            TableAlgebra(layout),
            ROOT,
            owner,
            REQUESTER,
            len(self.dhts),
            epochs,
            start_us=self.kernel.now_us,
            in_degree_max=in_degree_max,
        )

    def start(self, query: AggregationQuery, source: Source | None = None) -> None:
        self.started_us, self.answers = self.kernel.now_us, []
        own = one_row if query.algebra == TableAlgebra(COUNT) else self.local
        self.nodes = start_everywhere(self.kernel, self.dhts, query, source or own, self.note)

    def aggregate(self, query: AggregationQuery, seconds: float = 120, source: Source | None = None) -> None:
        self.start(query, source)
        self.run(seconds)
        for node in self.nodes:
            node.stop()

    def note(self, answer: EpochAnswer) -> None:
        self.answers.append((answer, self.kernel.now_us - self.started_us))

    def last(self, epoch: int) -> EpochAnswer:
        return [answer for answer, _ in self.answers if answer.epoch == epoch][-1]

    def expected(self, epochs: range) -> dict[object, tuple[object, ...]]:
        groups: dict[object, list[int]] = {}
        for rows in self.rows:
            for epoch in epochs:
                for value in rows[epoch]:
                    groups.setdefault(value % 3, []).append(value)
        return {group: tuple(aggregate(values) for aggregate in EXPECTED) for group, values in groups.items()}


def values_of(answer: EpochAnswer) -> dict[object, tuple[object, ...]]:
    """The aggregates of each group."""
    results = [column.to_pylist() for column in GROUPED.results(answer.partial)]
    return dict(zip(answer.partial.column("g").to_pylist(), zip(*results, strict=True), strict=True))


def one_row(address: int, epoch: int) -> pa.Table:
    """A row that is counted, whoever has it."""
    return ONE_ROW
