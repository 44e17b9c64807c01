"""RJoin under churn: how many of the law's answers come, with and without remedies against loss."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import pyarrow as pa

from watersmeet.program.rjoin.shard import Settings, table_of
from watersmeet.program.rjoin.tables import Catalog, Known, Widths
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.churn import Churn, Exponential, Sessions
from watersmeet.sim.internet import Congestion, Internet
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.latency import King, Latency
from watersmeet.sim.overlays import bamboo, chord
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Address, Router
from watersmeet.sim.rjoin.expressions import judge, project
from watersmeet.sim.rjoin.live import Care, LiveRJoin
from watersmeet.sim.trial import bag_of

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
    spare = 20 * scene.nodes  # addresses for those that come later
    net = Internet(kernel, latency(scene.nodes + spare, scene.seed), congestion=scene.congestion, loss=scene.loss)
    schemas, event_times = dict.fromkeys(STREAMS, SCHEMA), dict.fromkeys(STREAMS, "ts")
    query = parse_query(SQL.format(window=scene.window_s), dict.fromkeys(STREAMS, SCHEMA.names))
    catalog = Catalog(schemas, event_times)
    known = Known(catalog, Widths.of([catalog.shape(query)]), judge)
    network = LiveRJoin(kernel, known, scene.settings, scene.care)
    routers = _routers(kernel, net, scene)
    for router in routers:
        network.add(OverlayNode(kernel, net, router))
    users = [router.address for router in routers[: scene.stay]]
    end_us = scene.tuples * scene.gap_us
    churn = None
    if scene.session is not None:
        churn = Churn(
            kernel,
            scene.session,
            join=lambda address: _join(kernel, net, scene, network, address, random.choice(users)),
            fail=lambda address: network.peers[address].node.stop(),
            leave=lambda address: network.peers[address].leave(),
            polite_share=scene.polite_share,
            until_us=end_us,
        )
        churn.start([router.address for router in routers[scene.stay :]])
    number = network.submit(query, users[0])
    given: dict[str, list[dict[str, Any]]] = {stream: [] for stream in STREAMS}
    for one in range(scene.tuples):
        stream = random.choice(STREAMS)
        row = {"a": random.randrange(scene.values), "b": random.randrange(scene.values), "id": one}
        at_us = (one + 1) * scene.gap_us
        given[stream].append({**row, "ts": at_us})
        table = pa.Table.from_pylist([{**row, "ts": at_us}], schema=SCHEMA)
        kernel.at(at_us, network.publish, random.choice(users), stream, table)
    # What is under way, a last renewal, and time for the overlay to mend; its own timers never end.
    kernel.run(end_us + 60 * SECOND_US + 2 * (scene.care.renew_us or 0))
    tables = {stream: pa.Table.from_pylist(rows, schema=SCHEMA) for stream, rows in given.items()}
    expected = bag_of(answer(query, tables, event_times))
    rows = network.answers(number)
    got: Counter[Any] = bag_of(project(query, table_of(known, rows, number))) if len(rows) else Counter()
    return Found(
        expected=expected.total(),
        right=(expected & got).total(),
        surplus=(got - expected).total(),
        failures=churn.failures if churn else 0,
        leaves=churn.leaves if churn else 0,
        messages=sum(net.messages_sent),
        bytes=sum(net.bytes_sent),
    )


def exponential(mean_s: float) -> Sessions:
    """Sessions of a mean length."""
    return Exponential(mean_s * SECOND_US)


def _routers(kernel: Kernel, net: Internet, scene: Scene) -> list[Router]:
    timers = scene.session is not None
    if scene.overlay == "chord":
        return list(chord.settled(kernel, net, Ring.random(scene.nodes, scene.seed), timers=timers))
    return list(bamboo.settled(kernel, net, Prefixes.random(scene.nodes, scene.seed), timers=timers))


def _join(
    kernel: Kernel, net: Internet, scene: Scene, network: LiveRJoin, address: Address, bootstrap: Address
) -> None:
    identifier = kernel.random.getrandbits(64)
    router: Router = (
        chord.Chord(kernel, net, address, identifier)
        if scene.overlay == "chord"
        else bamboo.Bamboo(kernel, net, address, identifier)
    )
    node = OverlayNode(kernel, net, router)
    network.add(node)
    node.start(bootstrap)
