"""RJoin under churn: how many of the oracle's answers come, with and without measures against loss."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pyarrow as pa

from watersmeet.program.rjoin.settings import NodeSettings
from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.churn import Exponential, Sessions
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.internet.latency import King, Latency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.rjoin.answers import ReceivedAnswers
from watersmeet.sim.rjoin.dynamic_network import DynamicNetwork
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.rjoin.fault_tolerance import FaultTolerance
from watersmeet.sim.rjoin.oracle_check import verdict_on

SECOND_US = 1_000_000
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
STREAMS = ("r", "s", "t")
SQL = """SELECT r.id AS r_id, s.id AS s_id, t.id AS t_id
    FROM r [RANGE {window} SECONDS], s [RANGE {window} SECONDS], t [RANGE {window} SECONDS]
    WHERE r.b = s.a AND s.b = t.a"""


@dataclass(frozen=True, slots=True)
class RecallExperiment:
    """A dynamic network, a query, and tuples that come one by one at nodes that do not go."""

    nodes: int = 60
    overlay: Literal["chord", "bamboo"] = "chord"
    session: Sessions | None = None  # none: nobody goes
    graceful_fraction: float = 0.0
    fault_tolerance: FaultTolerance = field(default_factory=FaultTolerance)
    tuples: int = 300
    values: int = 12
    gap_us: int = SECOND_US // 4
    window_s: int = 60
    stable_nodes: int = 6  # at which tuples are published and queries asked; they do not go
    congestion: Congestion = Congestion.NONE
    loss: float = 0.0
    settings: NodeSettings = field(default_factory=NodeSettings)
    seed: int = 1


@dataclass(frozen=True, slots=True)
class RecallResult:
    """How many answers came, and what it cost."""

    expected: int
    right: int  # answers of the oracle that came, each once
    surplus: int  # anything else that came
    failures: int
    leaves: int
    messages: int  # in all, with those of the overlay
    bytes: int

    @property
    def recall(self) -> float:
        return self.right / self.expected if self.expected else 1.0


def run(experiment: RecallExperiment, latency: Callable[[int, int], Latency] = King) -> RecallResult:
    """Run an experiment until nothing is under way, and ask the oracle."""
    kernel, random = Kernel(experiment.seed), Random(experiment.seed)
    query = parse_query(SQL.format(window=experiment.window_s), dict.fromkeys(STREAMS, SCHEMA.names))
    catalog = Catalog(dict.fromkeys(STREAMS, SCHEMA), dict.fromkeys(STREAMS, "ts"))
    known = Known(catalog, Widths.of([catalog.shape(query)]), judge)
    answers = ReceivedAnswers(known)
    kind = Ring if experiment.overlay == "chord" else Prefixes
    network = DynamicNetwork(
        kernel,
        latency(20 * experiment.nodes, experiment.seed),  # those that come later have places of their own
        kind.random(experiment.nodes, experiment.seed),
        known,
        experiment.settings,
        experiment.fault_tolerance,
        answers.take,
        congestion=experiment.congestion,
        loss=experiment.loss,
        upkeep=experiment.session is not None,
    )
    users, end_us = range(experiment.stable_nodes), experiment.tuples * experiment.gap_us
    if experiment.session is not None:
        network.start_churn(experiment.session, users, experiment.graceful_fraction, until_us=end_us)
    number = network.rjoin.submit(query, users[0])
    for identifier in range(experiment.tuples):
        stream = random.choice(STREAMS)
        row = {"a": random.randrange(experiment.values), "b": random.randrange(experiment.values), "id": identifier}
        at_us = (identifier + 1) * experiment.gap_us
        table = pa.Table.from_pylist([{**row, "ts": at_us}], schema=SCHEMA)
        kernel.at(at_us, network.rjoin.publish, random.choice(users), stream, table)
    # What is under way, a last renewal, and time for the overlay to mend; its own timers never end.
    kernel.run(end_us + 60 * SECOND_US + 2 * (experiment.fault_tolerance.renew_us or 0))
    verdict = verdict_on(known, answers, [number])
    return RecallResult(
        expected=verdict.expected,
        right=verdict.right,
        surplus=verdict.surplus,
        failures=network.churn.failures if network.churn else 0,
        leaves=network.churn.leaves if network.churn else 0,
        messages=sum(network.net.messages_sent),
        bytes=sum(network.net.bytes_sent),
    )


def exponential(mean_s: float) -> Sessions:
    """Sessions of a mean length."""
    return Exponential(mean_s * SECOND_US)
