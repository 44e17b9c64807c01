"""A scenario as a frozen value: a network of peers and what is published and asked there, or a topology of sites."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from watersmeet.errors import InputError, did_you_mean
from watersmeet.program.pier.sql.settings import JoinMethod, PlanSettings, Transport
from watersmeet.program.rjoin.settings import Strategy
from watersmeet.query.windows import format_duration
from watersmeet.sim.scenario.network import (
    HOP_US,
    MOST_DYNAMIC_NODES,
    DynamicSettings,
    NetworkSettings,
    OverlayKind,
    Timeouts,
)
from watersmeet.sim.scenario.workload import UserLoad, ZipfLoad
from watersmeet.topology.model import Query, Topology

MOST_PIER_NODES = 20_000
MOST_TREES = 16  # distribution trees of PIER
MOST_BLOOM_BITS, MOST_BLOOM_HASHES = 1 << 24, 32
SHORTEST_RENEWAL_S = 1.0
MOST_REPLICAS = 8  # so many successors a node knows
SHORTEST_TRIGGER_US = 1_000
SITES_NEED_A_TOPOLOGY = "system sites is run from a topology with sites"


class System(Enum):
    """What answers the queries: RJoin or PIER on peers of a DHT, or a plan over sites and links."""

    RJOIN = "rjoin"
    SITES = "sites"
    PIER = "pier"


@dataclass(frozen=True, slots=True)
class RJoinSettings:
    """The rjoin section: how RJoin chooses where a query waits next, and what it does against loss."""

    strategy: Strategy = Strategy.RJOIN
    pairs: bool = True  # whether a rewritten query may wait at the attribute level
    rate_window_us: int = 600_000_000
    rate_age_us: int | None = 300_000_000  # None: a rate that was reported is valid for ever
    replicas: int = 0  # successors that have copies of what a node keeps; on dynamic networks, as is what follows
    renew_us: int | None = None  # how often users say again what they said; None: never

    def __post_init__(self) -> None:
        if not 0 <= self.replicas <= MOST_REPLICAS:
            raise InputError(f"replicas must be from 0 to {MOST_REPLICAS}, not {self.replicas}")
        if self.renew_us is not None and self.renew_us < 1_000_000:
            raise InputError(f"renew must be a second or longer, not {format_duration(self.renew_us)}")
        if self.rate_window_us < 1:
            raise InputError(f"rate_window must be positive, not {format_duration(self.rate_window_us)}")
        if self.rate_age_us is not None and self.rate_age_us < 1:
            raise InputError(f"rate_age must be positive, not {format_duration(self.rate_age_us)}")


class PierMode(Enum):
    """When a query is asked: before the tuples come, or once they are all there."""

    CONTINUOUS = "continuous"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class PierSettings:
    """The pier section: how joins are run, and for how long answers are waited for."""

    plan: PlanSettings = field(default_factory=PlanSettings)
    mode: PierMode = PierMode.CONTINUOUS
    replicas: int = 0  # copies of what is stored in the DHT
    drain_us: int = 30_000_000  # after the last tuple, until op-graphs end
    trees: int = 1  # distribution trees, over which queries are spread
    shares: bool = True  # whether GROUP BY queries that differ in their filters are answered together where it pays

    def __post_init__(self) -> None:
        if not 0 <= self.replicas <= MOST_REPLICAS:
            raise InputError(f"replicas must be from 0 to {MOST_REPLICAS}, not {self.replicas}")
        if not 1 <= self.trees <= MOST_TREES:
            raise InputError(f"trees must be from 1 to {MOST_TREES}, not {self.trees}")
        if not 1_000_000 <= self.drain_us <= 3_600_000_000:
            raise InputError(f"drain must be from 1 second to 1 hour, not {format_duration(self.drain_us)}")
        plan = self.plan
        for name, value, least, most in (
            ("bloom_bits", plan.bloom_bits, 8, MOST_BLOOM_BITS),
            ("bloom_hashes", plan.bloom_hashes, 1, MOST_BLOOM_HASHES),
        ):
            if not least <= value <= most:
                raise InputError(f"{name} must be from {least} to {most:,}, not {value:,}")
        for name, seconds in (("bloom_wait", plan.bloom_wait_s), ("slack", plan.slack_s)):
            if not seconds > 0:
                raise InputError(f"{name} must be positive, not {format_duration(round(seconds * 1e6))}")
        if plan.renew_s is not None and plan.renew_s < SHORTEST_RENEWAL_S:
            raise InputError(f"renew must be a second or longer, not {format_duration(round(plan.renew_s * 1e6))}")
        needs_all = (JoinMethod.FETCH_MATCHES, JoinMethod.BLOOM)
        if self.mode is PierMode.CONTINUOUS and self.plan.method in needs_all:
            raise InputError(
                f"join {self.plan.method.value} finds only what is there when it asks; add mode: snapshot, or take "
                "another join"
            )
        if self.mode is PierMode.SNAPSHOT and self.plan.aggregation is not None:
            raise InputError("aggregation runs by epochs, which a snapshot has none of; leave out one of them")
        if not 1 <= self.plan.roots <= MOST_TREES:
            raise InputError(f"roots must be from 1 to {MOST_TREES}, not {self.plan.roots}")
        if self.plan.roots > 1 and self.plan.aggregation is None:
            raise InputError("roots are those of aggregation trees; add aggregation, or leave out roots")
        if self.plan.transport is Transport.IP and self.plan.method is JoinMethod.HIERARCHICAL:
            raise InputError("join hierarchical needs the nodes on a route; leave out transport: ip")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that determines a simulation: the same scenario gives the same result."""

    network: NetworkSettings
    rjoin: RJoinSettings
    load: ZipfLoad | UserLoad = field(default_factory=ZipfLoad)
    system: System = System.RJOIN
    pier: PierSettings = field(default_factory=PierSettings)

    def __post_init__(self) -> None:
        if self.system is System.PIER:
            if self.network.nodes > MOST_PIER_NODES:
                raise InputError(
                    f"nodes must be {MOST_PIER_NODES:,} or fewer for PIER, not {self.network.nodes:,}: each has "
                    "messages of its own"
                )
            if self.pier.plan.transport is Transport.IP and self.dynamic is not None and self.dynamic.churn is not None:
                raise InputError("transport ip needs a directory of nodes that stay; leave out churn")
        elif self.dynamic is not None:
            if self.dynamic.timeouts is not Timeouts.IDEAL:
                raise InputError("timeouts that are measured are simulated for PIER only; add system: pier")
            if self.network.nodes > MOST_DYNAMIC_NODES:
                raise InputError(
                    f"nodes must be {MOST_DYNAMIC_NODES:,} or fewer on a dynamic network, not {self.network.nodes:,}: "
                    "each has timers and messages of its own; a static one holds more"
                )
            if self.rjoin.strategy is Strategy.WORST:
                raise InputError(
                    "strategy worst needs every rate at every node, which a dynamic network does not have; "
                    "take rjoin, random or first"
                )
        if not isinstance(self.load, UserLoad):
            return
        once = [asked.query.name for asked in self.load.queries if asked.is_once]
        if once and self.system is System.PIER:
            raise InputError(
                f"query {once[0]!r}: PIER asks all queries once or none; leave out once, and add mode: snapshot"
            )
        homes = [(f"stream {published.stream.name!r}", published.home) for published in self.load.streams]
        homes += [(f"query {asked.query.name!r}", asked.home) for asked in self.load.queries]
        for what, home in homes:
            if home is not None and not 0 <= home < self.network.nodes:
                raise InputError(f"{what}: home must be a node from 0 to {self.network.nodes - 1}, not {home}")

    @property
    def dynamic(self) -> DynamicSettings | None:
        """What a dynamic network has; None on a static one."""
        if self.network.dynamic is None and (self.rjoin.replicas or self.rjoin.renew_us is not None):
            return DynamicSettings()
        return self.network.dynamic

    @property
    def asks_once(self) -> bool:
        """Whether there are one-time queries."""
        return isinstance(self.load, UserLoad) and any(asked.is_once for asked in self.load.queries)

    @property
    def users(self) -> Sequence[int]:
        """The nodes at which tuples are published and queries asked: the stable ones, given homes first."""
        nodes, dynamic = self.network.nodes, self.dynamic
        if dynamic is None or dynamic.churn is None:
            return range(nodes)
        given: set[int] = set()
        if isinstance(self.load, UserLoad):
            homes = [published.home for published in self.load.streams] + [asked.home for asked in self.load.queries]
            given = {home for home in homes if home is not None}
        drawn = np.random.default_rng([self.network.seed, 8]).permutation(nodes).tolist()
        more = [node for node in drawn if node not in given][: max(0, dynamic.churn.stable_nodes - len(given))]
        return sorted([*given, *more])

    def changed(
        self,
        *,
        nodes: int | None = None,
        overlay: str | None = None,
        strategy: str | None = None,
        seed: int | None = None,
        tuples: int | None = None,
    ) -> "Scenario":
        """The same scenario with some parameters replaced."""
        network, rjoin, load = self.network, self.rjoin, self.load
        if nodes is not None:
            network = replace(network, nodes=nodes)
        if overlay is not None:
            network = replace(network, overlay=named(OverlayKind, overlay, "overlay"))
        if seed is not None:
            network = replace(network, seed=seed)
        if strategy is not None:
            rjoin = replace(rjoin, strategy=named(Strategy, strategy, "strategy"))
        if tuples is not None:
            load = replace(load, most_tuples=tuples) if isinstance(load, UserLoad) else replace(load, tuples=tuples)
        return replace(self, network=network, rjoin=rjoin, load=load)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a reader of results has to know, as plain values under the names of the file."""
        network, rjoin = self.network, self.rjoin
        parameters: dict[str, Any] = {
            "system": self.system.value,
            "network": {
                "nodes": network.nodes,
                "overlay": network.overlay.value,
                "latency": network.latency.value,
                "hop_us": network.hop_us or HOP_US.get(network.latency),
                "seed": network.seed,
            },
            "rjoin": {
                "strategy": rjoin.strategy.value,
                "pairs": rjoin.pairs,
                "rate_window_us": rjoin.rate_window_us,
                "rate_age_us": rjoin.rate_age_us,
            },
        }
        if self.system is System.PIER:
            del parameters["rjoin"]
            plan = self.pier.plan
            parameters["pier"] = {
                "join": plan.method.value,
                "transport": plan.transport.value,
                "mode": self.pier.mode.value,
                "aggregation": plan.aggregation,
                "replicas": self.pier.replicas,
                "drain_us": self.pier.drain_us,
                "trees": self.pier.trees,
            }
        dynamic = self.dynamic
        if dynamic is not None:
            parameters["network"] |= {"runtime": "dynamic", **asdict(dynamic), "congestion": dynamic.congestion.value}
            parameters["network"]["timeouts"] = dynamic.timeouts.value
            if dynamic.churn is not None:
                parameters["network"]["churn"] = {**asdict(dynamic.churn), "sessions": dynamic.churn.sessions.value}
            if self.system is System.RJOIN:
                parameters["rjoin"] |= {"replicas": rjoin.replicas, "renew_us": rjoin.renew_us}
        if isinstance(self.load, ZipfLoad):
            names = [name for name in ZipfLoad.__dataclass_fields__ if name != "own_ranking"]
            ranking = "own" if self.load.own_ranking else "shared"
            parameters["workload"] = {"kind": "zipf", **{name: getattr(self.load, name) for name in names}}
            parameters["workload"]["ranking"] = ranking
        else:
            parameters["streams"] = [published.stream.name for published in self.load.streams]
            parameters["queries"] = {asked.query.name: " ".join(asked.query.sql.split()) for asked in self.load.queries}
            once = [asked.query.name for asked in self.load.queries if asked.is_once]
            parameters |= {"once": once} if once else {}
        return parameters


@dataclass(frozen=True, slots=True)
class SitesScenario:
    """A topology to simulate as it is: its sites run the plans of its queries, over links as it describes them."""

    topology: Topology
    trigger_us: int = 1_000_000  # between micro-batches of every site
    seed: int = 1
    most_rows: int | None = None  # of each stream, the earliest
    planner: str | None = None  # of all queries, in place of what the topology says
    share: float | None = None  # of the time that the input spans, the first part

    def __post_init__(self) -> None:
        if self.trigger_us < SHORTEST_TRIGGER_US:
            shortest, given = format_duration(SHORTEST_TRIGGER_US), format_duration(self.trigger_us)
            raise InputError(f"trigger must be {shortest} or longer, not {given}")
        if self.most_rows is not None and self.most_rows < 1:
            raise InputError(f"tuples must be 1 or more, not {self.most_rows}")

    @property
    def system(self) -> System:
        return System.SITES

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries of the topology with the planner that is asked for."""
        return self._planned(self.topology.queries)

    @property
    def views(self) -> tuple[Query, ...]:
        """The views of the topology with the planner that is asked for."""
        return self._planned(self.topology.views)

    def _planned(self, queries: tuple[Query, ...]) -> tuple[Query, ...]:
        if self.planner is None:
            return queries
        return tuple(replace(query, planner=self.planner, plan=None) for query in queries)


Kind = TypeVar("Kind", bound=Enum)


def named(kinds: type[Kind], name: str, what: str) -> Kind:
    """The member of an enumeration with this value.

    >>> named(OverlayKind, "bamboo", "overlay")
    <OverlayKind.BAMBOO: 'bamboo'>
    """
    known = {str(member.value): member for member in kinds}
    if name.casefold() not in known:
        raise InputError(f"unknown {what} {name!r}; {did_you_mean(name, known)}")
    return known[name.casefold()]
