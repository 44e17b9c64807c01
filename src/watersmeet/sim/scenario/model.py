"""A scenario as frozen values: a network of peers, how RJoin chooses, and what is published and asked there.

`load_scenario` reads YAML and checks it, with lines in errors. A file with `network:`, `rjoin:` or `workload:` is a
scenario; one without them is a topology, whose streams and queries are brought to a network of peers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from math import exp, inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from watersmeet.errors import InputError, TopologyError, did_you_mean
from watersmeet.program.rjoin.compiled import FOREVER
from watersmeet.program.rjoin.shard import Strategy
from watersmeet.query.windows import Range, Unbounded, format_duration, parse_duration
from watersmeet.sim.internet.churn import Exponential, LogNormal, Pareto, Sessions, Weibull
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.rjoin.dynamic_network import ACCESS_BPS
from watersmeet.sim.rjoin.workload import ZipfWorkload
from watersmeet.topology.model import Query, Sink, Source, Stream, load_topology
from watersmeet.topology.yaml_tree import Entry, parse_amount, read

MOST_NODES = 1_000_000  # what one process was measured to hold
MOST_LIVE_NODES = 5_000  # each with timers and messages of its own
MOST_REPLICAS = 8  # so many successors a node knows
_BANDWIDTH_BPS = {"bps": 1, "kbps": 1_000, "Mbps": 1_000_000, "Gbps": 1_000_000_000}  # as in topologies


class OverlayKind(Enum):
    """How peers find the owner of a key."""

    CHORD = "chord"
    BAMBOO = "bamboo"


class LatencyKind(Enum):
    """What decides the delay of a hop."""

    CONSTANT = "constant"
    STAR = "star"
    TRANSIT_STUB = "transit-stub"
    KING = "king"


class SessionKind(Enum):
    """How long nodes stay."""

    EXPONENTIAL = "exponential"
    PARETO = "pareto"
    WEIBULL = "weibull"
    LOGNORMAL = "lognormal"


class Runtime(Enum):
    """What the network is made of: arrays at rest, or nodes with timers and messages."""

    SETTLED = "settled"
    LIVE = "live"


# What `hop` is if it is not said; the delays of a transit-stub network are its own.
HOP_US = {LatencyKind.CONSTANT: 50_000, LatencyKind.STAR: 100_000, LatencyKind.KING: 75_000}


@dataclass(frozen=True, slots=True)
class ChurnPlan:
    """Who comes and goes: for each node that goes another one joins, while those at which users are stay."""

    sessions: SessionKind = SessionKind.EXPONENTIAL
    mean_us: int = 600_000_000
    polite: float = 0.0  # the share of those that hand over what they keep before they go
    stay: int = 6

    def __post_init__(self) -> None:
        if self.mean_us < 1:
            raise InputError(f"mean must be longer than nothing, not {format_duration(self.mean_us)}")
        if not 0 <= self.polite <= 1:
            raise InputError(f"polite must be from 0 to 1, not {self.polite:g}")
        if self.stay < 1:
            raise InputError(f"stay must be 1 or more, not {self.stay}: somebody has to publish and ask")

    @property
    def distribution(self) -> Sessions:
        """Of the lengths of sessions, with that mean."""
        match self.sessions:
            case SessionKind.EXPONENTIAL:
                return Exponential(self.mean_us)
            case SessionKind.WEIBULL:
                return Weibull(self.mean_us)
            case SessionKind.PARETO:  # its mean is shape / (shape - 1) times the shortest, its median 2^(1/shape) times
                shape = 1.5
                return Pareto(self.mean_us * (shape - 1) / shape * 2 ** (1 / shape), shape)
            case SessionKind.LOGNORMAL:
                sigma = 1.0
                return LogNormal(self.mean_us * exp(-(sigma**2) / 2), sigma)


@dataclass(frozen=True, slots=True)
class Live:
    """What goes wrong on a live network: queues on access links, lost messages, nodes that come and go."""

    congestion: Congestion = Congestion.NONE
    loss: float = 0.0
    access_bps: float | None = ACCESS_BPS  # None: sending takes no time
    churn: ChurnPlan | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise InputError(f"loss must be from 0 to less than 1, not {self.loss:g}")
        if self.access_bps is not None and not 0 < self.access_bps < inf:
            raise InputError(f"access must be more than 0, not {self.access_bps:g} bps; none: sending takes no time")
        if self.access_bps is None and self.congestion is not Congestion.NONE:
            raise InputError(f"congestion {self.congestion.value} needs an access link; leave out access: none")


@dataclass(frozen=True, slots=True)
class Network:
    """The peers: how many, how they are joined, and how far they are from each other.

    `hop_us` is the delay of every hop (constant), between two average hosts (star), or the median over pairs (king).
    """

    nodes: int = 1_000
    overlay: OverlayKind = OverlayKind.CHORD
    latency: LatencyKind = LatencyKind.CONSTANT
    hop_us: int | None = None
    seed: int = 1
    live: Live | None = None  # None: settled, unless RJoin is to do something against loss

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise InputError(f"nodes must be from 1 to {MOST_NODES:,}, not {self.nodes:,}")
        if self.seed < 0:
            raise InputError(f"seed must be 0 or more, not {self.seed}")
        if self.hop_us is not None:
            if self.latency is LatencyKind.TRANSIT_STUB:
                raise InputError(
                    "hop does not go with latency: transit-stub, which has delays of its own; leave it out"
                )
            if self.hop_us < 1:
                raise InputError(f"hop must be longer than nothing, not {format_duration(self.hop_us)}")
        if self.live is not None and self.live.churn is not None and self.live.churn.stay > self.nodes:
            raise InputError(
                f"churn: stay must be at most the {self.nodes} nodes there are, not {self.live.churn.stay}"
            )


@dataclass(frozen=True, slots=True)
class Choice:
    """How RJoin chooses where a query waits next."""

    strategy: Strategy = Strategy.RJOIN
    pairs: bool = True  # whether a rewritten query may wait at the attribute level
    rate_window_us: int = 600_000_000
    rate_age_us: int | None = 300_000_000  # None: a rate that was told is believed for ever
    replicas: int = 0  # successors that have copies of what a node keeps; on live networks, as is what follows
    renew_us: int | None = None  # how often users say again what they said; None: never

    def __post_init__(self) -> None:
        if not 0 <= self.replicas <= MOST_REPLICAS:
            raise InputError(f"replicas must be from 0 to {MOST_REPLICAS}, not {self.replicas}")
        if self.renew_us is not None and self.renew_us < 1_000_000:
            raise InputError(f"renew must be a second or longer, not {format_duration(self.renew_us)}")
        if self.rate_window_us < 1:
            raise InputError(f"rate_window must be longer than nothing, not {format_duration(self.rate_window_us)}")
        if self.rate_age_us is not None and self.rate_age_us < 1:
            raise InputError(f"rate_age must be longer than nothing, not {format_duration(self.rate_age_us)}")


@dataclass(frozen=True, slots=True)
class ZipfLoad:
    """Generated chains of joins and tuples by Zipf's law (RJoin, section 8): queries first, then tuples one by one."""

    relations: int = 10
    attributes: int = 10
    values: int = 100
    theta: float = 0.9
    ways: int = 4
    queries: int = 1_000
    tuples: int = 400
    warm_up: int = 200  # tuples before the queries, so that there are rates to tell; they are not counted
    rate: float = 1.0  # tuples a second
    own_ranking: bool = False
    window_us: int | None = None

    def __post_init__(self) -> None:
        for name in ("relations", "attributes", "values", "queries", "tuples"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.relations < 2:
            raise InputError("relations must be 2 or more, not 1: neighbours in a chain differ")
        if not 2 <= self.ways <= 16:
            raise InputError(f"ways must be from 2 to 16, not {self.ways}")
        if self.warm_up < 0:
            raise InputError(f"warm_up must be 0 or more, not {self.warm_up}")
        if not (isfinite(self.theta) and self.theta >= 0):
            raise InputError(f"theta must be 0 or more, not {self.theta:g}")
        if not 1e-6 <= self.rate <= 1e6:
            raise InputError(f"rate must be from 0.000001 to 1,000,000 tuples a second, not {self.rate:g}")
        if self.window_us is not None and self.window_us < 1:
            raise InputError(f"window must be longer than nothing, not {format_duration(self.window_us)}")

    def workload(self, seed: int) -> ZipfWorkload:
        """Its queries and tuples."""
        return ZipfWorkload(
            relations=self.relations,
            attributes=self.attributes,
            values=self.values,
            theta=self.theta,
            ways=self.ways,
            window=Unbounded() if self.window_us is None else Range(self.window_us),
            own_ranking=self.own_ranking,
            seed=seed,
        )


@dataclass(frozen=True, slots=True)
class Published:
    """A stream and the peer that publishes it: a number, one drawn by the seed, or a new one for every tuple."""

    stream: Stream
    home: int | None = None
    is_scattered: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A query and the peer that asks it: a number, or one drawn by the seed."""

    query: Query
    home: int | None = None


@dataclass(frozen=True, slots=True)
class UserLoad:
    """Streams and queries of the user's own; tuples are published at their event times."""

    streams: tuple[Published, ...]
    queries: tuple[Asked, ...]
    most_tuples: int | None = None  # of all streams together, the earliest

    def __post_init__(self) -> None:
        if self.most_tuples is not None and self.most_tuples < 1:
            raise InputError(f"tuples must be 1 or more, not {self.most_tuples}")

    @property
    def columns(self) -> Mapping[str, Sequence[str]]:
        """The column names of every stream."""
        return {one.stream.name: one.stream.columns for one in self.streams}


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that decides a simulation."""

    network: Network
    choice: Choice
    load: ZipfLoad | UserLoad = field(default_factory=ZipfLoad)

    def __post_init__(self) -> None:
        if self.live is not None:
            if self.network.nodes > MOST_LIVE_NODES:
                raise InputError(
                    f"nodes must be {MOST_LIVE_NODES:,} or fewer on a live network, not {self.network.nodes:,}: "
                    "each has timers and messages of its own; a settled one holds more"
                )
            if self.choice.strategy is Strategy.WORST:
                raise InputError(
                    "strategy worst knows every rate by magic, which live nodes do not; take rjoin, random or first"
                )
        if not isinstance(self.load, UserLoad):
            return
        homes = [(f"stream {one.stream.name!r}", one.home) for one in self.load.streams]
        homes += [(f"query {one.query.name!r}", one.home) for one in self.load.queries]
        for what, home in homes:
            if home is not None and not 0 <= home < self.network.nodes:
                raise InputError(f"{what}: home must be a node from 0 to {self.network.nodes - 1}, not {home}")

    @property
    def live(self) -> Live | None:
        """What goes wrong on the network, if it is a live one."""
        if self.network.live is None and (self.choice.replicas or self.choice.renew_us is not None):
            return Live()
        return self.network.live

    @property
    def users(self) -> Sequence[int]:
        """The nodes at which tuples are published and queries asked: those that stay, homes that were given first."""
        nodes, live = self.network.nodes, self.live
        if live is None or live.churn is None:
            return range(nodes)
        given: set[int] = set()
        if isinstance(self.load, UserLoad):
            homes = [one.home for one in self.load.streams] + [asked.home for asked in self.load.queries]
            given = {home for home in homes if home is not None}
        drawn = np.random.default_rng([self.network.seed, 8]).permutation(nodes).tolist()
        more = [node for node in drawn if node not in given][: max(0, live.churn.stay - len(given))]
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
        """The same with some parameters given anew."""
        network, choice, load = self.network, self.choice, self.load
        if nodes is not None:
            network = replace(network, nodes=nodes)
        if overlay is not None:
            network = replace(network, overlay=named(OverlayKind, overlay, "overlay"))
        if seed is not None:
            network = replace(network, seed=seed)
        if strategy is not None:
            choice = replace(choice, strategy=named(Strategy, strategy, "strategy"))
        if tuples is not None:
            load = replace(load, most_tuples=tuples) if isinstance(load, UserLoad) else replace(load, tuples=tuples)
        return Scenario(network, choice, load)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a reader of results has to know, as plain values under the names of the file."""
        network, choice = self.network, self.choice
        told: dict[str, Any] = {
            "network": {
                "nodes": network.nodes,
                "overlay": network.overlay.value,
                "latency": network.latency.value,
                "hop_us": network.hop_us or HOP_US.get(network.latency),
                "seed": network.seed,
            },
            "rjoin": {
                "strategy": choice.strategy.value,
                "pairs": choice.pairs,
                "rate_window_us": choice.rate_window_us,
                "rate_age_us": choice.rate_age_us,
            },
        }
        live = self.live
        if live is not None:
            told["network"] |= {"runtime": "live", **asdict(live), "congestion": live.congestion.value}
            if live.churn is not None:
                told["network"]["churn"] = {**asdict(live.churn), "sessions": live.churn.sessions.value}
            told["rjoin"] |= {"replicas": choice.replicas, "renew_us": choice.renew_us}
        if isinstance(self.load, ZipfLoad):
            names = [name for name in ZipfLoad.__dataclass_fields__ if name != "own_ranking"]
            ranking = "own" if self.load.own_ranking else "shared"
            told["workload"] = {"kind": "zipf", **{name: getattr(self.load, name) for name in names}}
            told["workload"]["ranking"] = ranking
        else:
            told["streams"] = [one.stream.name for one in self.load.streams]
            told["queries"] = {one.query.name: " ".join(one.query.sql.split()) for one in self.load.queries}
        return told


Kind = TypeVar("Kind", bound=Enum)


def named(kinds: type[Kind], name: str, what: str) -> Kind:
    """The member of an enumeration with this value.

    >>> named(OverlayKind, "bamboo", "overlay")
    <OverlayKind.BAMBOO: 'bamboo'>
    """
    known = {str(one.value): one for one in kinds}
    if name.casefold() not in known:
        raise InputError(f"unknown {what} {name!r}; {did_you_mean(name, known)}")
    return known[name.casefold()]


def forever_if_none(duration_us: int | None) -> int:
    """No limit is a long time."""
    return int(FOREVER) if duration_us is None else duration_us


_KEYS = ("network", "rjoin", "workload", "streams", "queries")
_TOPOLOGY_KEYS = ("sites", "links", "default_link", "link_transport", "stats_file")
_LIVE_KEYS = ("congestion", "loss", "access", "churn")
_NETWORK_KEYS = ("nodes", "overlay", "latency", "hop", "seed", "runtime", *_LIVE_KEYS)
_CHURN_KEYS = ("sessions", "mean", "polite", "stay")
_LIVE_RJOIN_KEYS = ("replicas", "renew")
_RJOIN_KEYS = ("strategy", "pairs", "rate_window", "rate_age", *_LIVE_RJOIN_KEYS)
_COUNTS = ("relations", "attributes", "values", "ways", "queries", "tuples", "warm_up")
_WORKLOAD_KEYS = ("kind", *_COUNTS, "theta", "rate", "ranking", "window")
_STREAM_KEYS = ("schema", "event_time", "source", "home")
_QUERY_KEYS = ("sql", "home", "sink", "allow_cross", "start")
_RANKINGS = ("shared", "own")


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario or a topology; relative paths in it are relative to the file."""
    path = Path(path)
    root = read(path, "it needs a `network` and a `workload`, or `streams` and `queries`")
    keys = root.mapping("the scenario")
    if _is_topology(keys):
        topology = load_topology(path)
        load = UserLoad(
            tuple(Published(stream) for stream in topology.streams),
            tuple(Asked(replace(query, sink=Sink())) for query in topology.queries),
        )
        return Scenario(Network(), Choice(), load)
    top = root.mapping("the scenario", _KEYS)
    network = _network(top["network"]) if "network" in top else Network()
    choice = _choice(top["rjoin"]) if "rjoin" in top else Choice()
    network = replace(network, live=_live(top, network))
    sections = {name: top[name].mapping(name) for name in ("network", "rjoin") if name in top}
    with _blamed({key: entry for keys in sections.values() for key, entry in keys.items()}, root):
        Scenario(network, choice)  # whether both go together
    given = [key for key in ("streams", "queries") if key in top]
    if "workload" in top:
        if given:
            raise top[given[0]].fail(f"a scenario has either a workload or {given[0]} of its own; remove one of them")
        return Scenario(network, choice, _workload(top["workload"]))
    for needed in ("streams", "queries"):
        if needed not in top or not top[needed].value:
            raise root.fail(f"the scenario has no {needed}; add a `{needed}:` mapping, or a `workload:`")
    streams, queries = [], []
    directory = path.resolve().parent
    for name, entry in top["streams"].mapping("streams").items():
        with _located(entry):
            streams.append(_stream(name, entry, directory, network.nodes))
    for name, entry in top["queries"].mapping("queries").items():
        with _located(entry):
            queries.append(_query(name, entry, directory, network.nodes))
    return Scenario(network, choice, UserLoad(tuple(streams), tuple(queries)))


def _is_topology(keys: Mapping[str, Entry]) -> bool:
    """A slip in the one key that makes a file a scenario, or a topology, still tells which of them is meant."""
    own, other = set(_KEYS) - {"streams", "queries"}, set(_TOPOLOGY_KEYS)
    if own & set(keys) or not keys:
        return False
    if other & set(keys):
        return True
    strange = [key for key in keys if key not in _KEYS]
    return not any(set(get_close_matches(key, [*own, *other], n=1)) & own for key in strange)


def _network(entry: Entry) -> Network:
    keys = entry.mapping("network", _NETWORK_KEYS)
    settings: dict[str, Any] = {name: _whole(keys[name], name) for name in ("nodes", "seed") if name in keys}
    settings |= _members(keys, {"overlay": OverlayKind, "latency": LatencyKind})
    if "hop" in keys:
        settings["hop_us"] = _duration(keys["hop"], "hop")
    with _blamed(keys, entry):
        return Network(**settings)


def _live(top: Mapping[str, Entry], network: Network) -> Live | None:
    """What makes the network a live one: a key that only a live one can have, or the word for it."""
    keys = top["network"].mapping("network") if "network" in top else {}
    remedies = top["rjoin"].mapping("rjoin") if "rjoin" in top else {}
    needing = {name: keys[name] for name in _LIVE_KEYS if name in keys}
    needing |= {name: remedies[name] for name in _LIVE_RJOIN_KEYS if name in remedies}
    runtime = _members(keys, {"runtime": Runtime}).get("runtime")
    if runtime is Runtime.SETTLED and needing:
        name, entry = next(iter(needing.items()))
        raise entry.fail(f"{name} needs a live network; leave it out, or write runtime: live")
    if runtime is not Runtime.LIVE and not needing:
        return None
    settings: dict[str, Any] = _members(keys, {"congestion": Congestion})
    if "loss" in keys:
        settings["loss"] = keys["loss"].number("loss")
    if "access" in keys:
        settings["access_bps"] = _bandwidth_or_none(keys["access"], "access")
    if "churn" in keys:
        settings["churn"] = _churn(keys["churn"])
    with _blamed(keys, top["network" if "network" in top else "rjoin"]):
        live = Live(**settings)
        replace(network, live=live)
        return live


def _churn(entry: Entry) -> ChurnPlan:
    keys = entry.mapping("churn", _CHURN_KEYS)
    settings: dict[str, Any] = _members(keys, {"sessions": SessionKind})
    if "mean" in keys:
        settings["mean_us"] = _duration(keys["mean"], "mean")
    if "polite" in keys:
        settings["polite"] = keys["polite"].number("polite")
    if "stay" in keys:
        settings["stay"] = _whole(keys["stay"], "stay")
    with _blamed(keys, entry):
        return ChurnPlan(**settings)


def _choice(entry: Entry) -> Choice:
    keys = entry.mapping("rjoin", _RJOIN_KEYS)
    settings: dict[str, Any] = _members(keys, {"strategy": Strategy})
    if "pairs" in keys:
        settings["pairs"] = keys["pairs"].flag("pairs")
    if "rate_window" in keys:
        settings["rate_window_us"] = _duration(keys["rate_window"], "rate_window")
    if "rate_age" in keys:
        settings["rate_age_us"] = _duration_or_none(keys["rate_age"], "rate_age")
    if "replicas" in keys:
        settings["replicas"] = _whole(keys["replicas"], "replicas")
    if "renew" in keys:
        settings["renew_us"] = _duration_or_none(keys["renew"], "renew")
    with _blamed(keys, entry):
        return Choice(**settings)


def _workload(entry: Entry) -> ZipfLoad:
    keys = entry.mapping("workload", _WORKLOAD_KEYS)
    kind = keys["kind"].text("kind") if "kind" in keys else "zipf"
    if kind != "zipf":
        raise keys["kind"].fail(f"unknown kind of workload {kind!r}; {did_you_mean(kind, ['zipf'])}")
    settings: dict[str, Any] = {name: _whole(keys[name], name) for name in _COUNTS if name in keys}
    settings |= {name: keys[name].number(name) for name in ("theta", "rate") if name in keys}
    if "ranking" in keys:
        ranking = keys["ranking"].text("ranking")
        if ranking not in _RANKINGS:
            raise keys["ranking"].fail(f"unknown ranking {ranking!r}; {did_you_mean(ranking, _RANKINGS)}")
        settings["own_ranking"] = ranking == "own"
    if "window" in keys:
        settings["window_us"] = _duration_or_none(keys["window"], "window")
    with _blamed(keys, entry):
        return ZipfLoad(**settings)


def _stream(name: str, entry: Entry, directory: Path, nodes: int) -> Published:
    what = f"stream {name!r}"
    keys = entry.mapping(what, _STREAM_KEYS)
    for needed in ("schema", "event_time", "source"):
        if needed not in keys:
            raise entry.fail(f"{what} has no {needed}")
    source = keys["source"].mapping(f"the source of {what}", ("format", "path", "options"))
    if "format" not in source:
        raise keys["source"].fail(f"the source of {what} has no format")
    options = source["options"].mapping(f"options of the source of {what}") if "options" in source else {}
    stream = Stream(
        name,
        schema=keys["schema"].text("schema"),
        event_time=keys["event_time"].text("event_time"),
        source=Source(
            format=source["format"].text("format"),
            path=str(directory / source["path"].text("path")) if "path" in source else None,
            options={key: option.text(f"option {key!r}") for key, option in options.items()},
        ),
    )
    if "home" in keys and keys["home"].text("home") == "any":
        return Published(stream, is_scattered=True)
    return Published(stream, _home(keys, what, nodes, " or any"))


def _query(name: str, entry: Entry, directory: Path, nodes: int) -> Asked:
    what = f"query {name!r}"
    keys = entry.mapping(what, _QUERY_KEYS)
    if "sql" not in keys:
        raise entry.fail(f"{what} has no sql")
    query = Query(
        name,
        keys["sql"].text("sql"),
        sink=_sink(keys["sink"], f"the sink of {what}", directory) if "sink" in keys else Sink(),
        allow_cross=keys["allow_cross"].flag("allow_cross") if "allow_cross" in keys else False,
        start=keys["start"].text("start") if "start" in keys else None,
    )
    return Asked(query, _home(keys, what, nodes))


def _sink(entry: Entry, what: str, directory: Path) -> Sink:
    keys = entry.mapping(what, ("format", "path"))
    kind = keys["format"].text("format") if "format" in keys else "parquet"
    if kind != "parquet":
        raise keys["format"].fail(f"{what}: answers of a simulation are written as parquet, not as {kind}")
    if "path" not in keys:
        raise entry.fail(f"{what} has no path")
    return Sink("parquet", str(directory / keys["path"].text("path")))


def _home(keys: Mapping[str, Entry], what: str, nodes: int, other: str = "") -> int | None:
    if "home" not in keys:
        return None
    entry = keys["home"]
    try:
        home = int(entry.text("home"))
    except ValueError:
        home = -1
    if not 0 <= home < nodes:
        raise entry.fail(f"{what}: home must be a node from 0 to {nodes - 1}{other}, not {entry.value}")
    return home


def _members(keys: Mapping[str, Entry], kinds: Mapping[str, type[Enum]]) -> dict[str, Enum]:
    found = {}
    for name, kind in kinds.items():
        if name in keys:
            with _located(keys[name]):
                found[name] = named(kind, keys[name].text(name), name)
    return found


def _whole(entry: Entry, what: str) -> int:
    number = entry.number(what)
    if not isfinite(number) or number != int(number):
        raise entry.fail(f"{what} must be a whole number, not {entry.value!r}")
    return int(number)


def _duration(entry: Entry, what: str) -> int:
    with _located(entry, f"{what}: "):
        return parse_duration(entry.text(what))


def _duration_or_none(entry: Entry, what: str) -> int | None:
    return None if entry.value is None or entry.text(what) == "none" else _duration(entry, what)


def _bandwidth_or_none(entry: Entry, what: str) -> float | None:
    """With a unit, as in a topology, or as a plain number of bits a second."""
    if entry.value is None or entry.text(what) == "none":
        return None
    try:
        return float(entry.text(what))
    except ValueError:
        with _located(entry, f"{what} "):
            return float(parse_amount(entry.text(what), _BANDWIDTH_BPS, "1.5 Mbps"))


@contextmanager
def _located(entry: Entry, prefix: str = "") -> Iterator[None]:
    """An error of a value that is built here is told with the entry's line."""
    try:
        yield
    except InputError as error:
        if isinstance(error, TopologyError) and str(error).startswith(f"{entry.file}, line "):
            raise
        raise entry.fail(f"{prefix}{error}") from None


@contextmanager
def _blamed(keys: Mapping[str, Entry], entry: Entry) -> Iterator[None]:
    """What a value finds wrong starts with the name of the key: its line is told."""
    try:
        yield
    except InputError as error:
        raise keys.get(str(error).split()[0].rstrip(":"), entry).fail(str(error)) from None
