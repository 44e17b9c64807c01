"""Reads a scenario from YAML and checks it, with lines in errors.

A file with `system:`, `network:`, `rjoin:`, `pier:` or `workload:` is a scenario; one without them is a topology, which
its sites run, or whose streams and queries are brought to a network of peers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from watersmeet.errors import InputError, TopologyError, did_you_mean
from watersmeet.planners.choose import batch_interval_s
from watersmeet.program.pier.algorithms import names_for_queries
from watersmeet.program.pier.sql.settings import JoinMethod, PlanSettings, Transport
from watersmeet.program.rjoin.settings import Strategy
from watersmeet.query.windows import parse_duration
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.scenario.model import (
    SITES_NEED_A_TOPOLOGY,
    PierMode,
    PierSettings,
    RJoinSettings,
    Scenario,
    SitesScenario,
    System,
    named,
)
from watersmeet.sim.scenario.network import (
    ChurnSettings,
    DynamicSettings,
    LatencyKind,
    NetworkSettings,
    OverlayKind,
    Runtime,
    SessionKind,
    Timeouts,
)
from watersmeet.sim.scenario.workload import PublishedStream, SubmittedQuery, UserLoad, ZipfLoad
from watersmeet.topology.model import Query, Sink, Source, Stream, Topology, load_topology
from watersmeet.topology.views import outputs_of
from watersmeet.topology.yaml_tree import Entry, parse_amount, read

_NEEDED = "it needs a `network` and a `workload`, or `streams` and `queries`"
_BANDWIDTH_BPS = {"bps": 1, "kbps": 1_000, "Mbps": 1_000_000, "Gbps": 1_000_000_000}  # as in topologies
_TOPOLOGY_KEYS = ("sites", "links", "default_link", "link_transport", "stats_file", "tables", "views")
_DYNAMIC_KEYS = ("congestion", "loss", "access", "churn", "timeouts")
_DYNAMIC_RJOIN_KEYS = ("replicas", "renew")
_COUNTS = ("relations", "attributes", "values", "ways", "queries", "tuples", "warm_up")
KEYS = {  # of each section of a scenario; "" is the file
    "": ("system", "network", "rjoin", "pier", "workload", "streams", "queries"),
    "network": ("nodes", "overlay", "latency", "hop", "seed", "runtime", *_DYNAMIC_KEYS),
    "network: churn": ("sessions", "mean", "graceful_fraction", "stable_nodes"),
    "rjoin": ("strategy", "pairs", "rate_window", "rate_age", *_DYNAMIC_RJOIN_KEYS),
    "pier": (
        *("join", "transport", "mode", "replicas", "renew", "drain", "slack", "trees"),
        *("bloom_bits", "bloom_hashes", "bloom_wait"),
        *("group_wait", "aggregation", "roots", "sharing"),
    ),
    "workload": ("kind", *_COUNTS, "theta", "rate", "ranking", "window"),
    "streams: NAME": ("schema", "event_time", "source", "home"),
    "queries: NAME": ("sql", "ufl", "home", "sink", "allow_cross", "start", "once"),
}
_SHARING = ("auto", "none")
_RANKINGS = ("shared", "own")
_OLD_CHURN_KEYS = {"polite": "graceful_fraction", "stay": "stable_nodes"}
_OLD_RUNTIMES = {"settled": Runtime.STATIC.value, "live": Runtime.DYNAMIC.value}


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario or a topology; relative paths in it are relative to the file."""
    path = Path(path)
    root = read(path, _NEEDED)
    keys = root.mapping("the scenario")
    if _is_topology(keys):
        topology = load_topology(path)
        _refuse_views(topology)
        load = UserLoad(
            tuple(PublishedStream(stream) for stream in topology.streams),
            tuple(SubmittedQuery(replace(query, sink=Sink())) for query in topology.queries),
        )
        return Scenario(NetworkSettings(), RJoinSettings(), load)
    default = System.PIER if "pier" in keys and "rjoin" not in keys else System.RJOIN
    named_system = _members(keys, {"system": System}).get("system", default)
    system = System(named_system)
    if system is System.SITES:
        raise keys["system"].fail(SITES_NEED_A_TOPOLOGY)
    top = root.mapping("the scenario", KEYS[""])
    network = _network(top["network"]) if "network" in top else NetworkSettings()
    rjoin = _rjoin(top["rjoin"]) if "rjoin" in top else RJoinSettings()
    pier = _pier(top["pier"]) if "pier" in top else PierSettings()
    network = replace(network, dynamic=_dynamic(top, network))
    sections = {name: top[name].mapping(name) for name in ("network", "rjoin", "pier") if name in top}
    with _blamed({key: entry for keys in sections.values() for key, entry in keys.items()}, root):
        Scenario(network, rjoin, system=system, pier=pier)  # whether they go together
    given = [key for key in ("streams", "queries") if key in top]
    if "workload" in top:
        if given:
            raise top[given[0]].fail(f"a scenario has either a workload or {given[0]} of its own; remove one of them")
        return Scenario(network, rjoin, _workload(top["workload"]), system, pier)
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
    return Scenario(network, rjoin, UserLoad(tuple(streams), tuple(queries)), system, pier)


def load_simulated(path: str | Path, system: System | None = None) -> Scenario | SitesScenario:
    """Read what is to be simulated: by the system asked for, else a topology of several sites as sites."""
    path = Path(path)
    if _is_topology(read(path, _NEEDED).mapping("the scenario")):
        topology = load_topology(path)
        if system is System.SITES or (system is None and len(topology.sites) > 1):
            interval_s = batch_interval_s(topology, [stream.name for stream in topology.streams])
            return SitesScenario(topology, trigger_us=round(interval_s * 1e6))
    elif system is System.SITES:
        raise InputError(f"{path}: {SITES_NEED_A_TOPOLOGY}")
    scenario = load_scenario(path)
    return scenario if system is None else replace(scenario, system=system)


def _refuse_views(topology: Topology) -> None:
    """Refuse queries of several SELECTs; what is wrong with a query otherwise is said when it is read."""
    for query in topology.queries:
        selects = 1
        with suppress(InputError):
            selects = sum(len(asked.output.branches) for asked in outputs_of(topology, [query]))
        if selects > 1:
            raise InputError(
                f"query {query.name!r} reads a view or has several SELECTs, which peers do not answer; simulate it "
                "with --system sites, or run it on Spark (watersmeet run)"
            )


def _is_topology(keys: Mapping[str, Entry]) -> bool:
    """A slip in the one key that makes a file a scenario, or a topology, still tells which of them is meant."""
    own, other = set(KEYS[""]) - {"streams", "queries"}, set(_TOPOLOGY_KEYS)
    if own & set(keys) or not keys:
        return False
    if other & set(keys):
        return True
    strange = [key for key in keys if key not in KEYS[""]]
    return not any(set(get_close_matches(key, [*own, *other], n=1)) & own for key in strange)


def _network(entry: Entry) -> NetworkSettings:
    keys = entry.mapping("network", KEYS["network"])
    settings: dict[str, Any] = {name: keys[name].whole(name) for name in ("nodes", "seed") if name in keys}
    settings |= _members(keys, {"overlay": OverlayKind, "latency": LatencyKind})
    if "hop" in keys:
        settings["hop_us"] = _duration(keys["hop"], "hop")
    with _blamed(keys, entry):
        return NetworkSettings(**settings)


def _dynamic(top: Mapping[str, Entry], network: NetworkSettings) -> DynamicSettings | None:
    """A network is dynamic if it has a key that needs it, or says so."""
    keys = top["network"].mapping("network") if "network" in top else {}
    remedies = top["rjoin"].mapping("rjoin") if "rjoin" in top else {}
    needing = {name: keys[name] for name in _DYNAMIC_KEYS if name in keys}
    needing |= {name: remedies[name] for name in _DYNAMIC_RJOIN_KEYS if name in remedies}
    if "runtime" in keys and (old := keys["runtime"].text("runtime")) in _OLD_RUNTIMES:
        raise keys["runtime"].fail(f"the runtime {old} is called {_OLD_RUNTIMES[old]} now; rename it")
    runtime = _members(keys, {"runtime": Runtime}).get("runtime")
    if runtime is Runtime.STATIC and needing:
        name, entry = next(iter(needing.items()))
        raise entry.fail(f"{name} needs a dynamic network; leave it out, or write runtime: dynamic")
    if runtime is not Runtime.DYNAMIC and not needing:
        return None
    settings: dict[str, Any] = _members(keys, {"congestion": Congestion, "timeouts": Timeouts})
    if "loss" in keys:
        settings["loss"] = keys["loss"].number("loss")
    if "access" in keys:
        settings["access_bps"] = _bandwidth_or_none(keys["access"], "access")
    if "churn" in keys:
        settings["churn"] = _churn(keys["churn"])
    with _blamed(keys, top["network" if "network" in top else "rjoin"]):
        dynamic = DynamicSettings(**settings)
        replace(network, dynamic=dynamic)
        return dynamic


def _churn(entry: Entry) -> ChurnSettings:
    for old, new in _OLD_CHURN_KEYS.items():
        if old in (given := entry.mapping("churn")):
            raise given[old].fail(f"the key {old} of churn is called {new} now; rename it")
    keys = entry.mapping("churn", KEYS["network: churn"])
    settings: dict[str, Any] = _members(keys, {"sessions": SessionKind})
    if "mean" in keys:
        settings["mean_us"] = _duration(keys["mean"], "mean")
    if "graceful_fraction" in keys:
        settings["graceful_fraction"] = keys["graceful_fraction"].number("graceful_fraction")
    if "stable_nodes" in keys:
        settings["stable_nodes"] = keys["stable_nodes"].whole("stable_nodes")
    with _blamed(keys, entry):
        return ChurnSettings(**settings)


def _rjoin(entry: Entry) -> RJoinSettings:
    keys = entry.mapping("rjoin", KEYS["rjoin"])
    settings: dict[str, Any] = _members(keys, {"strategy": Strategy})
    if "pairs" in keys:
        settings["pairs"] = keys["pairs"].flag("pairs")
    if "rate_window" in keys:
        settings["rate_window_us"] = _duration(keys["rate_window"], "rate_window")
    if "rate_age" in keys:
        settings["rate_age_us"] = _duration_or_none(keys["rate_age"], "rate_age")
    if "replicas" in keys:
        settings["replicas"] = keys["replicas"].whole("replicas")
    if "renew" in keys:
        settings["renew_us"] = _duration_or_none(keys["renew"], "renew")
    with _blamed(keys, entry):
        return RJoinSettings(**settings)


def _pier(entry: Entry) -> PierSettings:
    keys = entry.mapping("pier", KEYS["pier"])
    members = _members(keys, {"join": JoinMethod, "transport": Transport, "mode": PierMode})
    plan: dict[str, Any] = {}
    if "join" in members:
        plan["method"] = members["join"]
    if "transport" in members:
        plan["transport"] = members["transport"]
    plan |= {name: keys[name].whole(name) for name in ("bloom_bits", "bloom_hashes", "roots") if name in keys}
    for name, setting in (
        ("slack", "slack_s"),
        ("bloom_wait", "bloom_wait_s"),
        ("group_wait", "group_wait_s"),
        ("renew", "renew_s"),
    ):
        if name in keys:
            plan[setting] = _duration(keys[name], name) / 1e6
    if "aggregation" in keys:
        name, known = keys["aggregation"].text("aggregation"), names_for_queries()
        if name not in known:
            raise keys["aggregation"].fail(f"unknown aggregation {name!r}; {did_you_mean(name, known)}")
        plan["aggregation"] = name
    settings: dict[str, Any] = {"plan": PlanSettings(**plan)}
    if "mode" in members:
        settings["mode"] = members["mode"]
    if "replicas" in keys:
        settings["replicas"] = keys["replicas"].whole("replicas")
    if "trees" in keys:
        settings["trees"] = keys["trees"].whole("trees")
    if "sharing" in keys:
        found = keys["sharing"].text("sharing")
        if found not in _SHARING:
            raise keys["sharing"].fail(f"unknown sharing {found!r}; {did_you_mean(found, _SHARING)}")
        settings["shares"] = found == "auto"
    if "drain" in keys:
        settings["drain_us"] = _duration(keys["drain"], "drain")
    with _blamed(keys, entry):
        return PierSettings(**settings)


def _workload(entry: Entry) -> ZipfLoad:
    keys = entry.mapping("workload", KEYS["workload"])
    kind = keys["kind"].text("kind") if "kind" in keys else "zipf"
    if kind != "zipf":
        raise keys["kind"].fail(f"unknown kind of workload {kind!r}; {did_you_mean(kind, ['zipf'])}")
    settings: dict[str, Any] = {name: keys[name].whole(name) for name in _COUNTS if name in keys}
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


def _stream(name: str, entry: Entry, directory: Path, nodes: int) -> PublishedStream:
    what = f"stream {name!r}"
    keys = entry.mapping(what, KEYS["streams: NAME"])
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
        return PublishedStream(stream, is_scattered=True)
    return PublishedStream(stream, _home(keys, what, nodes, " or any"))


def _query(name: str, entry: Entry, directory: Path, nodes: int) -> SubmittedQuery:
    what = f"query {name!r}"
    keys = entry.mapping(what, KEYS["queries: NAME"])
    if ("sql" in keys) == ("ufl" in keys):
        raise entry.fail(f"{what} has no sql" if "sql" not in keys else f"{what} has sql and ufl; remove one of them")
    ufl = None if "ufl" not in keys else _text_of(directory / keys["ufl"].text("ufl"), keys["ufl"])
    query = Query(
        name,
        keys["sql"].text("sql") if ufl is None else ufl,
        sink=_sink(keys["sink"], f"the sink of {what}", directory) if "sink" in keys else Sink(),
        allow_cross=keys["allow_cross"].flag("allow_cross") if "allow_cross" in keys else False,
        start=keys["start"].text("start") if "start" in keys else None,
    )
    return SubmittedQuery(query, _home(keys, what, nodes), ufl, "once" in keys and keys["once"].flag("once"))


def _text_of(path: Path, entry: Entry) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise entry.fail(f"the UFL file {path} cannot be read: {why}; correct the path or the file") from None
    if not text.strip():
        raise entry.fail(f"the UFL file {path} is empty; write an op-graph into it")
    return text


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
    """Add the entry's line to errors of values that are built here."""
    try:
        yield
    except InputError as error:
        if isinstance(error, TopologyError) and str(error).startswith(f"{entry.file}, line "):
            raise
        raise entry.fail(f"{prefix}{error}") from None


@contextmanager
def _blamed(keys: Mapping[str, Entry], entry: Entry) -> Iterator[None]:
    """An error of a value starts with the name of a key: add the line of that key."""
    try:
        yield
    except InputError as error:
        raise keys.get(str(error).split()[0].rstrip(":"), entry).fail(str(error)) from None
