"""The workload of section 4.2, measured: COUNT over all nodes by any algorithm, once or by epochs, and what it costs.

The query is at all nodes when a run begins and the overlay sends no messages of its own, so all traffic is that of the
aggregation: the paper subtracts a run in which the query is disseminated and not executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.program.aggregate.functions import Function
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.pier.algorithms import EPOCH_US, Algorithm
from watersmeet.sim.dht.node import Dht
from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import King
from watersmeet.sim.internet.retransmission import Retransmission
from watersmeet.sim.kernel import Kernel, without_cycles_collected
from watersmeet.sim.overlays import bamboo
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.router import Address
from watersmeet.sim.pier.aggregation.continuous import AggregationNode, start_everywhere
from watersmeet.sim.pier.aggregation.membership import IN_DEGREE_MAX
from watersmeet.sim.pier.aggregation.query import AggregationQuery, EpochAnswer, TableAlgebra

ACCESS_BPS = 1_500_000.0
_COUNT = Layout((), ((Function("count"), None),))
_ONE_ROW = _COUNT.add(pa.table({"row": [1]}))
# Twelve tries are an hour: a queue in front of the root is part of the experiment, and no sign that it has failed.
_PATIENT = Retransmission(tries=12)


@dataclass(frozen=True, slots=True)
class AggregationRun:
    """One run; it goes on for `drain_us` after the last epoch."""

    algorithm: Algorithm
    nodes: int
    epochs: int = 1
    seed: int = 1
    in_degree_max: int = IN_DEGREE_MAX
    ideal_timeouts: bool = False  # nothing is sent again that has arrived
    drain_us: int = 120_000_000


@dataclass(frozen=True, slots=True)
class EpochMeasured:
    """What one epoch was: the last answer to it, and all that was sent while it ran."""

    nodes: int  # in the last answer
    latency_s: float | None  # of it; None without any
    answers: int
    megabytes: float
    redirects: int


@dataclass(frozen=True, slots=True)
class AggregationMeasured:
    """What a run came to."""

    epochs: tuple[EpochMeasured, ...]
    megabytes: float
    messages: int
    retransmitted: int
    inbound_kilobytes: tuple[float, ...]  # of each host, the busiest first
    settled_inbound_kilobytes: tuple[float, ...]  # the same in the second half of the epochs
    in_degree: int  # the highest, at the end; 0 where nodes know no parents
    height: int  # of the root

    @property
    def latency_s(self) -> float | None:
        """The mean latency of all epochs; None if one has no answer."""
        return mean_latency(self.epochs)

    @property
    def settled_latency_s(self) -> float | None:
        """The same of the second half of the epochs."""
        return mean_latency(self.epochs[len(self.epochs) // 2 :])


def mean_latency(epochs: Sequence[EpochMeasured]) -> float | None:
    """The mean latency of some epochs; None if one has no answer."""
    known = [epoch.latency_s for epoch in epochs if epoch.latency_s is not None]
    return sum(known) / len(known) if len(known) == len(epochs) else None


def measure_aggregation(run: AggregationRun) -> AggregationMeasured:
    """Aggregate among simulated nodes, and measure delay, traffic and completeness."""
    with without_cycles_collected():
        return _measured(run)


def _measured(run: AggregationRun) -> AggregationMeasured:
    kernel, latency = Kernel(run.seed), King(run.nodes, seed=run.seed)
    net = Internet(
        kernel,
        latency,
        access_bps=ACCESS_BPS,
        congestion=Congestion.FIFO,
        retransmission=None if run.ideal_timeouts else _PATIENT,
    )
    routers = bamboo.converged(kernel, net, Prefixes.random(run.nodes, run.seed, latency), timers=False)
    dhts = [Dht(kernel, OverlayNode(kernel, net, router)) for router in routers]
    root = identifier_of(f"root {run.seed}")
    owner = next(dht.node.address for dht in dhts if dht.node.router.next_hop(root) is None)
    requester = kernel.random.randrange(run.nodes)
    query = AggregationQuery(
        *("q", run.algorithm, TableAlgebra(_COUNT), root, owner, requester, run.nodes, run.epochs),
        in_degree_max=run.in_degree_max,
    )
    answers: list[tuple[EpochAnswer, int]] = []
    nodes = start_everywhere(kernel, dhts, query, _one_row, lambda answer: answers.append((answer, kernel.now_us)))
    sent, redirected, half = [0], [0], [0] * run.nodes
    for epoch in range(run.epochs):
        if epoch == run.epochs // 2:
            half = list(net.bytes_received)
        kernel.run(until_us=(epoch + 1) * EPOCH_US)
        sent.append(sum(net.bytes_sent))
        redirected.append(sum(node.tree.redirects_total for node in nodes if node.tree is not None))
    in_degree, height = _shape(nodes, owner)
    kernel.run(until_us=run.epochs * EPOCH_US + run.drain_us)
    received = net.bytes_received
    return AggregationMeasured(
        tuple(
            _epoch(epoch, answers, sent[epoch + 1] - sent[epoch], redirected[epoch + 1] - redirected[epoch])
            for epoch in range(run.epochs)
        ),
        sum(net.bytes_sent) / 1e6,
        sum(net.messages_sent),
        net.retransmitted_total,
        _descending(received),
        _descending([now - before for now, before in zip(received, half, strict=True)]),
        in_degree,
        height,
    )


def _epoch(number: int, answers: Sequence[tuple[EpochAnswer, int]], sent_bytes: int, redirects: int) -> EpochMeasured:
    own = [(answer, at_us) for answer, at_us in answers if answer.epoch == number]
    if not own:
        return EpochMeasured(0, None, 0, sent_bytes / 1e6, redirects)
    answer, at_us = own[-1]
    latency_s = (at_us - number * EPOCH_US) / 1e6
    return EpochMeasured(answer.nodes, latency_s, len(own), sent_bytes / 1e6, redirects)


def _shape(nodes: Sequence[AggregationNode], owner: Address) -> tuple[int, int]:
    trees = [node.tree for node in nodes if node.tree is not None]
    if not trees:
        return 0, 0
    return max(len(tree.children) for tree in trees), trees[owner].standing.height


def _descending(counts: Sequence[int]) -> tuple[float, ...]:
    return tuple(count / 1e3 for count in sorted(counts, reverse=True))


def _one_row(address: Address, epoch: int) -> pa.Table:
    return _ONE_ROW
