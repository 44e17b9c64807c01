"""The workload of section 5.8.3, measured: MAX queries over all nodes, with and without sharing, and what it costs.

Queries and F are at all nodes when a run begins and the overlay sends nothing of its own, so all traffic is that of one
epoch: records up the trees, entries to the coordinator, answers to those who asked. Answers are checked.
"""

from dataclasses import dataclass, field

import numpy as np

from watersmeet.program.pier.algorithms import Algorithm, Routing, Structure, WaitForAll
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.decomposition import Decomposition, identity
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import King
from watersmeet.sim.kernel import Kernel, without_cycles_collected
from watersmeet.sim.overlays import bamboo
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.aggregation.measure import ACCESS_BPS
from watersmeet.sim.pier.sharing.trees import Fragments, NumberAlgebra, QueryAnswer, TreeQueries, start_shared

ALGORITHM = Algorithm(Routing.DHT, Structure.HIERARCHICAL, WaitForAll())
_LONGEST_US = 120_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SharingRun:
    """One epoch of MAX queries over the fragments F, by a decomposition of it."""

    fragments: Bools
    decomposition: Decomposition
    nodes: int = 1_024
    seed: int = 1
    is_shared: bool = True  # False: a tree for each query, whatever the decomposition
    algorithm: Algorithm = field(default=ALGORITHM)


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """What a run came to."""

    megabytes: float
    messages: int
    latency_s: float  # of the last answer
    right: int  # answers that are the direct ones
    queries: int


def measure_sharing(run: SharingRun) -> SharingMeasured:
    """Answer queries that share among simulated nodes, and measure traffic and delay."""
    with without_cycles_collected():
        return _measured(run)


def _measured(run: SharingRun) -> SharingMeasured:
    kernel, latency = Kernel(run.seed), King(run.nodes, seed=run.seed)
    net = Internet(kernel, latency, access_bps=ACCESS_BPS, congestion=Congestion.FIFO)
    routers = bamboo.converged(kernel, net, Prefixes.random(run.nodes, run.seed, latency), timers=False)
    dhts = [Dht(kernel, OverlayNode(kernel, net, router)) for router in routers]
    queries, chance = run.fragments.shape[1], np.random.default_rng([run.seed, 57])
    asked_by = tuple(int(chance.integers(run.nodes)) for _ in range(queries))
    shared = TreeQueries(
        *("shared", run.fragments, run.decomposition if run.is_shared else identity(run.fragments)),
        *(NumberAlgebra(max), run.algorithm, int(chance.integers(run.nodes)) if run.is_shared else None),
        *(asked_by, run.nodes),
        names_rows=run.is_shared,
    )
    values = chance.integers(0, 1 << 40, (run.nodes, len(run.fragments)))
    rows = [row.tobytes() for row in run.fragments]
    answers: dict[int, tuple[int | None, int]] = {}

    def of_node(address: Address, epoch: int) -> Fragments:
        return dict(zip(rows, values[address].tolist(), strict=True))

    def answered(answer: QueryAnswer) -> None:
        answers[answer.query] = (answer.value, kernel.now_us)

    start_shared(kernel, dhts, shared, of_node, answered)
    kernel.run(until_us=_LONGEST_US)
    most = values.max(axis=0)
    expected = [int(most[column].max()) if column.any() else None for column in run.fragments.T]
    return SharingMeasured(
        megabytes=sum(net.bytes_sent) / 1e6,
        messages=sum(net.messages_sent),
        latency_s=max((at_us for _, at_us in answers.values()), default=0) / 1e6,
        right=sum(answers.get(query, (0, 0))[0] == value for query, value in enumerate(expected)),
        queries=queries,
    )
