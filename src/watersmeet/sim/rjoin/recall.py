"""RJoin under churn: how many of the law's answers come, with and without remedies against loss."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pyarrow as pa

from watersmeet.program.rjoin.shard import Settings
from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.query.sql import parse_query
from watersmeet.sim.internet.churn import Exponential, Sessions
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.internet.latency import King, Latency
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.rjoin.dynamic import Care
from watersmeet.sim.rjoin.dynamic_network import LiveNetwork
from watersmeet.sim.rjoin.expressions import judge
from watersmeet.sim.scenario.outcome import Answers
from watersmeet.sim.scenario.witness import verdict_on

SECOND_US = 1_000_000
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
STREAMS = ("r", "s", "t")
SQL = """SELECT r.id AS r_id, s.id AS s_id, t.id AS t_id
    FROM r [RANGE {window} SECONDS], s [RANGE {window} SECONDS], t [RANGE {window} SECONDS]
    WHERE r.b = s.a AND s.b = t.a"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A live network, a query, and tuples that come one by one at nodes that stay."""

    nodes: int = 60
    overlay: Literal["chord", "bamboo"] = "chord"
    session: Sessions | None = None  # none: nobody goes
    polite_share: float = 0.0
    care: Care = field(default_factory=Care)
    tuples: int = 300
    values: int = 12
    gap_us: int = SECOND_US // 4
    window_s: int = 60
    stay: int = 6  # nodes at which users are: those that publish and ask do not go
    congestion: Congestion = Congestion.NONE
    loss: float = 0.0
    settings: Settings = field(default_factory=Settings)
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it."""

    expected: int
    right: int  # answers of the law that came, each once
    surplus: int  # anything else that came
    failures: int
    leaves: int
    messages: int  # in all, with those of the overlay
    bytes: int

    @property
    def recall(self) -> float:
        return self.right / self.expected if self.expected else 1.0


def run(scene: Scene, latency: Callable[[int, int], Latency] = King) -> Found:
    """Run a scene until nothing is under way, and ask the oracle."""
    kernel, random = Kernel(scene.seed), Random(scene.seed)
    query = parse_query(SQL.format(window=scene.window_s), dict.fromkeys(STREAMS, SCHEMA.names))
    catalog = Catalog(dict.fromkeys(STREAMS, SCHEMA), dict.fromkeys(STREAMS, "ts"))
    known = Known(catalog, Widths.of([catalog.shape(query)]), judge)
    answers = Answers(known)
    kind = Ring if scene.overlay == "chord" else Prefixes
    network = LiveNetwork(
        kernel,
        latency(20 * scene.nodes, scene.seed),  # those that come later have places of their own
        kind.random(scene.nodes, scene.seed),
        known,
        scene.settings,
        scene.care,
        answers.take,
        congestion=scene.congestion,
        loss=scene.loss,
        upkeep=scene.session is not None,
    )
    users, end_us = range(scene.stay), scene.tuples * scene.gap_us
    if scene.session is not None:
        network.start_churn(scene.session, users, scene.polite_share, until_us=end_us)
    number = network.rjoin.submit(query, users[0])
    for one in range(scene.tuples):
        stream = random.choice(STREAMS)
        row = {"a": random.randrange(scene.values), "b": random.randrange(scene.values), "id": one}
        at_us = (one + 1) * scene.gap_us
        table = pa.Table.from_pylist([{**row, "ts": at_us}], schema=SCHEMA)
        kernel.at(at_us, network.rjoin.publish, random.choice(users), stream, table)
    # What is under way, a last renewal, and time for the overlay to mend; its own timers never end.
    kernel.run(end_us + 60 * SECOND_US + 2 * (scene.care.renew_us or 0))
    verdict = verdict_on(known, answers, [number])
    return Found(
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
