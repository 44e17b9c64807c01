"""A topology file to values: unknown keys and wrong values are refused with the file and the line."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from watersmeet.errors import InputError, TopologyError
from watersmeet.query.windows import parse_duration
from watersmeet.stats.model import Stats, StreamStats
from watersmeet.stats.yaml import filled, read_stats, read_stream_stats, read_table_stats
from watersmeet.topology.model import (
    DURABILITIES,
    EVERY_PAIR,
    OBJECTIVES,
    Adapt,
    HeadSteps,
    Link,
    LinkTransport,
    PlanStep,
    Query,
    Sink,
    Site,
    Source,
    Stream,
    Table,
    Topology,
    check_durability,
    check_name,
    check_pair,
    check_site,
    link_name,
)
from watersmeet.topology.parameters import with_parameters
from watersmeet.topology.payload import Payload
from watersmeet.topology.yaml_tree import SIZE_BYTES, Entry, parse_amount, read

_TOPOLOGY_KEYS = (
    *("sites", "links", "default_link", "link_transport", "durability", "stats_file", "adapt", "batch_interval"),
    *("streams", "tables", "views", "queries"),
)
_TRANSPORT_KEYS = ("kind", "path", "max_pending", "topics", "options", "key_file", "key_env")
_PAYLOAD_KEYS = ("format", "key", "timestamp", "schema", "schema_file", "framing")
_LINK_KEYS = ("latency", "bandwidth", "price_per_gb")
_STREAM_KEYS = ("site", "schema", "event_time", "watermark", "idle_timeout", "source", "late", "stats")
_TABLE_KEYS = ("site", "schema", "source", "refresh", "stats")
_ADAPT_KEYS = ("mode", "threshold", "min_interval")
_QUERY_KEYS = (
    "sql",
    "site",
    "plan",
    "planner",
    "objective",
    "limits",
    "parts",
    "partition",
    "assume_defaults",
    "errors",
    "failed",
    "adapt",
    "sink",
    "allow_cross",
    "group_early",
    "start",
    "checkpoint",
)
_VIEW_KEYS = tuple(key for key in _QUERY_KEYS if key not in ("sink", "checkpoint"))
_BANDWIDTH_BPS = {"bps": 1, "kbps": 1_000, "Mbps": 1_000_000, "Gbps": 1_000_000_000}


def load_topology(path: str | Path, parameters: Mapping[str, str] | None = None) -> Topology:
    """Read a topology file; relative paths in it are relative to the file, `${name}` is a parameter."""
    path = Path(path)
    root = with_parameters(read(path), parameters or {})
    directory = path.resolve().parent
    top = root.mapping("the topology", _TOPOLOGY_KEYS)
    for needed in ("streams", "queries"):
        if needed not in top or not top[needed].value:
            raise root.fail(f"the topology has no {needed}; add a `{needed}:` mapping")
    sites = _sites(top["sites"]) if "sites" in top else (Site("here"),)
    site_names = [site.name for site in sites]
    streams, queries = [], []
    given: dict[str, StreamStats] = {}
    for name, entry in _distinct("stream", top["streams"].mapping("streams").items()):
        with _located(entry):
            streams.append(_stream(name, entry, directory, site_names))
            if "stats" in entry.value:
                given[name] = read_stream_stats(entry.value["stats"], name, streams[-1].columns)
    tables = []
    for name, entry in _distinct("table", top["tables"].mapping("tables").items()) if "tables" in top else ():
        with _located(entry):
            tables.append(_table(name, entry, directory, site_names))
            if "stats" in entry.value:
                columns_of = tables[-1].columns if tables[-1].has_schema else ()
                given[name] = read_table_stats(entry.value["stats"], name, columns_of)
    for name, entry in _distinct("query", top["queries"].mapping("queries").items()):
        with _located(entry):
            queries.append(_query(name, entry, directory, site_names))
    views = []
    for name, entry in _distinct("view", top["views"].mapping("views").items()) if "views" in top else ():
        with _located(entry):
            views.append(_query(name, entry, directory, site_names, is_view=True))
    links = _links(top["links"], site_names) if "links" in top else ()
    default = _default_link(top["default_link"]) if "default_link" in top else None
    transport = _link_transport(top["link_transport"], directory) if "link_transport" in top else LinkTransport()
    stats = Stats(given)
    if "stats_file" in top:
        columns = {
            stream.name: stream.columns for stream in (*streams, *(table for table in tables if table.has_schema))
        }
        stats = filled(stats, _stats_file(top["stats_file"], directory, columns))
    durability = _durability(top["durability"]) if "durability" in top else DURABILITIES[-1]
    adapt = _adapt(top["adapt"], "the topology") if "adapt" in top else Adapt()
    interval_us = _batch_interval(top["batch_interval"]) if "batch_interval" in top else None
    with _located(root):
        return Topology(
            tuple(streams),
            tuple(queries),
            sites,
            str(directory),
            links,
            default,
            transport,
            stats,
            durability,
            adapt,
            interval_us,
            tuple(tables),
            views=tuple(views),
        )


def _batch_interval(entry: Entry) -> int:
    with _located(entry, "batch_interval: "):
        interval_us = parse_duration(entry.text("batch_interval"))
        if interval_us <= 0:
            raise InputError("it must be positive, such as 10 seconds")
        return interval_us


def _durability(entry: Entry) -> str:
    with _located(entry):
        return check_durability(entry.text("durability"))


def _stats_file(entry: Entry, directory: Path, columns: Mapping[str, Sequence[str]]) -> Stats:
    path = directory / entry.text("stats_file")
    if not path.exists():
        raise entry.fail(f"stats_file {path} does not exist; `watersmeet stats --output` writes it")
    return read_stats(path, columns)


def _distinct(what: str, named: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, Entry]]:
    """The same entries; names that differ only in case are refused (`yaml_tree` refuses equal ones)."""
    first: dict[str, Entry] = {}
    for name, entry in named:
        other = first.setdefault(name.casefold(), entry)
        if other is not entry:
            raise entry.fail(
                f"duplicate {what} name {name!r} (case does not count), first given on line {other.line}; rename one"
            )
        yield name, entry


@contextmanager
def _located(entry: Entry, prefix: str = "") -> Iterator[None]:
    """Errors of values built inside are raised with the entry's line."""
    try:
        yield
    except InputError as error:
        if isinstance(error, TopologyError) and error.file == entry.file:
            raise
        raise entry.fail(f"{prefix}{error}") from None


def _sites(entry: Entry) -> tuple[Site, ...]:
    if isinstance(entry.value, list):
        named = [(item.text("a site"), item) for item in entry.value]
    elif isinstance(entry.value, dict):
        named = list(entry.value.items())
        for name, settings in named:
            if settings.value is not None:
                settings.mapping(f"site {name!r}", ())
    else:
        named = []
    if not named:
        raise entry.fail("sites must be a list of names or a mapping, such as sites: [here]")
    sites = []
    for name, item in _distinct("site", named):
        with _located(item):
            sites.append(Site(check_name(name, "site")))
    return tuple(sites)


def _links(entry: Entry, sites: Sequence[str]) -> tuple[Link, ...]:
    links = []
    first: dict[frozenset[str], Entry] = {}
    for item in entry.sequence("links", "links: [{between: [ams, nyc], latency: 80 ms}]"):
        keys = item.mapping("a link", ("between", *_LINK_KEYS))
        if "between" not in keys:
            raise item.fail("a link has no between; say which two sites it joins, such as between: [ams, nyc]")
        names = [name.text("a site") for name in keys["between"].sequence("between", "between: [ams, nyc]")]
        if len(names) != 2:
            raise keys["between"].fail("between must name two sites, such as between: [ams, nyc]")
        pair = (names[0], names[1])
        with _located(keys["between"]):
            check_pair(pair, sites)
        other = first.setdefault(frozenset(pair), item)
        if other is not item:
            raise item.fail(
                f"{link_name(pair)} is given twice (in either order), first on line {other.line}; remove one"
            )
        links.append(_link(item, pair, keys))
    return tuple(links)


def _default_link(entry: Entry) -> Link:
    return _link(entry, EVERY_PAIR, entry.mapping("default_link", _LINK_KEYS))


def _link(entry: Entry, between: tuple[str, str], keys: Mapping[str, Entry]) -> Link:
    what = link_name(between)
    settings: dict[str, Any] = {}
    if "latency" in keys:
        with _located(keys["latency"], f"{what}: latency: "):
            settings["latency_us"] = parse_duration(keys["latency"].text("latency"))
    if "bandwidth" in keys:
        with _located(keys["bandwidth"], f"{what}: bandwidth "):
            bandwidth = parse_amount(keys["bandwidth"].text("bandwidth"), _BANDWIDTH_BPS, "100 Mbps")
            settings["bandwidth_bps"] = float(bandwidth)
    if "price_per_gb" in keys:
        settings["price_per_gb"] = keys["price_per_gb"].number("price_per_gb")
    with _located(entry):
        return Link(between, **settings)


def _link_transport(entry: Entry, directory: Path) -> LinkTransport:
    keys = entry.mapping("link_transport", _TRANSPORT_KEYS)
    settings: dict[str, Any] = {key: keys[key].text(key) for key in ("kind", "topics", "key_env") if key in keys}
    settings |= {key: _resolve(keys[key].text(key), directory) for key in ("path", "key_file") if key in keys}
    if "options" in keys:
        settings["options"] = _options(keys["options"], "link_transport")
    if "max_pending" in keys:
        with _located(keys["max_pending"], "link_transport: max_pending "):
            text = keys["max_pending"].text("max_pending")
            size = parse_amount(text, SIZE_BYTES, "256 MB")
            if size.denominator != 1:
                raise InputError(f"{text!r} is not a whole number of bytes; round it")
            settings["max_pending_bytes"] = int(size)
    with _located(entry):
        return LinkTransport(**settings)


def _stream(name: str, entry: Entry, directory: Path, sites: Sequence[str]) -> Stream:
    what = f"stream {name!r}"
    keys = entry.mapping(what, _STREAM_KEYS)
    for needed in ("schema", "event_time", "source"):
        if needed not in keys:
            raise entry.fail(f"{what} has no {needed}")
    texts: dict[str, Any] = {
        key: keys[key].text(key) for key in ("schema", "event_time", "watermark", "idle_timeout", "site") if key in keys
    }
    if "site" in keys:
        _site_of(keys["site"], what, sites)
    if "site" not in keys and "here" not in sites:
        raise entry.fail(f"{what} has no site; say which of them with `site:`: {', '.join(sites)}")
    source = _source(keys["source"], f"the source of {what}", directory)
    late = Sink(**_endpoint(keys["late"], f"late of {what}", directory)) if "late" in keys else None
    return Stream(name, source=source, late=late, **texts)


def _table(name: str, entry: Entry, directory: Path, sites: Sequence[str]) -> Table:
    what = f"table {name!r}"
    keys = entry.mapping(what, _TABLE_KEYS)
    if "source" not in keys:
        raise entry.fail(f"{what} has no source")
    texts: dict[str, Any] = {key: keys[key].text(key) for key in ("schema", "site", "refresh") if key in keys}
    if "site" in keys:
        _site_of(keys["site"], what, sites)
    if "site" not in keys and "here" not in sites:
        raise entry.fail(f"{what} has no site; say which of them with `site:`: {', '.join(sites)}")
    source = _source(keys["source"], f"the source of {what}", directory)
    return Table(name, source=source, **texts)


def _query(name: str, entry: Entry, directory: Path, sites: Sequence[str], *, is_view: bool = False) -> Query:
    what = f"view {name!r}" if is_view else f"query {name!r}"
    keys = entry.mapping(what, _VIEW_KEYS if is_view else _QUERY_KEYS)
    if "sql" not in keys:
        raise entry.fail(f"{what} has no sql")
    return Query(
        name,
        keys["sql"].text("sql"),
        sink=_sink(keys["sink"], f"the sink of {what}", directory) if "sink" in keys else Sink(),
        allow_cross=keys["allow_cross"].flag("allow_cross") if "allow_cross" in keys else False,
        group_early=keys["group_early"].flag("group_early") if "group_early" in keys else None,
        start=keys["start"].text("start") if "start" in keys else None,
        checkpoint=_resolve(keys["checkpoint"].text("checkpoint"), directory) if "checkpoint" in keys else None,
        site=_site_of(keys["site"], what, sites) if "site" in keys else None,
        plan=_plan(keys["plan"], f"the plan of {what}", sites) if "plan" in keys else None,
        planner=keys["planner"].text("planner") if "planner" in keys else None,
        objective=_objective(keys["objective"], what) if "objective" in keys else (),
        parts=keys["parts"].whole("parts") if "parts" in keys else 16,
        partition=keys["partition"].text("partition") if "partition" in keys else None,
        assume_defaults=keys["assume_defaults"].flag("assume_defaults") if "assume_defaults" in keys else False,
        errors=keys["errors"].text("errors") if "errors" in keys else "fail",
        failed=Sink(**_endpoint(keys["failed"], f"failed of {what}", directory)) if "failed" in keys else None,
        adapt=_adapt(keys["adapt"], what) if "adapt" in keys else None,
        **(_limits(keys["limits"], what, sites) if "limits" in keys else {}),
    )


def _adapt(entry: Entry, what: str) -> Adapt:
    """`adapt: cnu`, or a mapping with the other settings too."""
    if isinstance(entry.value, str):
        with _located(entry):
            return Adapt(entry.text("adapt"))
    keys = entry.mapping(f"adapt of {what}", _ADAPT_KEYS)
    if "mode" not in keys:
        raise entry.fail(f"adapt of {what} has no mode; write mode: cnu, dnu, planner or off")
    settings: dict[str, Any] = {"mode": keys["mode"].text("mode")}
    if "threshold" in keys:
        settings["threshold"] = keys["threshold"].number("threshold")
    if "min_interval" in keys:
        settings["min_interval"] = keys["min_interval"].text("min_interval")
    with _located(entry):
        return Adapt(**settings)


def _objective(entry: Entry, what: str) -> tuple[tuple[str, float], ...]:
    if isinstance(entry.value, str):
        return ((entry.text("objective"), 1.0),)
    keys = entry.mapping(f"the objective of {what}", OBJECTIVES)
    return tuple((name, weight.number(name)) for name, weight in keys.items())


def _limits(entry: Entry, what: str, sites: Sequence[str]) -> dict[str, Any]:
    keys = entry.mapping(f"the limits of {what}", ("delay", "barred"))
    limits: dict[str, Any] = {}
    if "delay" in keys:
        limits["max_delay"] = keys["delay"].text("delay")
    if "barred" in keys:
        where = f"barred in the limits of {what}"
        names = keys["barred"].sequence(where, "barred: [nyc]")
        limits["barred"] = tuple(_site_of(name, where, sites, "barred") for name in names)
    return limits


def _plan(entry: Entry, what: str, sites: Sequence[str]) -> tuple[HeadSteps, ...]:
    plan = []
    for head, entries in _distinct("head", entry.mapping(what).items()):
        items = entries.sequence(f"head {head!r} of {what}", f"{head}: [{{join: b, method: SM-D1}}]")
        steps = tuple(_step(item, f"a step of head {head!r} in {what}", sites) for item in items)
        with _located(entries):
            plan.append(HeadSteps(head, steps))
    return tuple(plan)


def _step(entry: Entry, what: str, sites: Sequence[str]) -> PlanStep:
    keys = entry.mapping(what, ("join", "method", "at", "bloom"))
    if "join" not in keys:
        raise entry.fail(f"{what} has no join")
    settings: dict[str, Any] = {}
    if "method" in keys:
        settings["method"] = keys["method"].text("method").upper()
    if "at" in keys:
        settings["at"] = _site_of(keys["at"], what, sites, "at")
    if "bloom" in keys:
        settings["bloom"] = keys["bloom"].flag("bloom")
    with _located(entry):
        return PlanStep(keys["join"].text("join"), **settings)


def _source(entry: Entry, what: str, directory: Path) -> Source:
    settings = _endpoint(entry, what, directory, "payload")
    payload = _payload(entry, what, directory)
    with _located(entry, f"{what}: "):
        return Source(**settings, payload=payload)


def _sink(entry: Entry, what: str, directory: Path) -> Sink:
    settings = _endpoint(entry, what, directory, "compact", "payload")
    compact, payload = entry.value.get("compact"), _payload(entry, what, directory)
    with _located(compact or entry, f"{what}: "):
        return Sink(**settings, compact=None if compact is None else compact.text("compact"), payload=payload)


def _payload(entry: Entry, what: str, directory: Path) -> Payload | None:
    """`payload: json`, or a mapping with the other settings too."""
    found = entry.value.get("payload")
    if found is None:
        return None
    with _located(found, f"{what}: "):
        if isinstance(found.value, str):
            return Payload(found.text("payload"))
        keys = found.mapping(f"the payload of {what}", _PAYLOAD_KEYS)
        settings = {key: keys[key].text(key) for key in _PAYLOAD_KEYS if key in keys}
        if "schema_file" in settings:
            path = directory / settings.pop("schema_file")
            if not path.is_file():
                raise keys["schema_file"].fail(f"schema_file {path} does not exist; make it or correct it")
            settings["schema"] = path.read_text(encoding="utf-8")
        return Payload(**settings)


def _endpoint(entry: Entry, what: str, directory: Path, *more: str) -> dict[str, Any]:
    keys = entry.mapping(what, ("format", "path", "options", *more))
    if "format" not in keys:
        raise entry.fail(f"{what} has no format")
    return {
        "format": keys["format"].text("format"),
        "path": _resolve(keys["path"].text("path"), directory) if "path" in keys else None,
        "options": _options(keys["options"], what) if "options" in keys else {},
    }


def _options(entry: Entry, what: str) -> dict[str, str]:
    return {key: option.text(f"option {key!r}") for key, option in entry.mapping(f"options of {what}").items()}


def _resolve(path: str, directory: Path) -> str:
    """A path relative to the topology file as an absolute one; URLs such as s3a://bucket/x are unchanged."""
    return path if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path) else str(directory / path)


def _site_of(entry: Entry, what: str, known: Sequence[str], key: str = "site") -> str:
    with _located(entry):
        return check_site(entry.text(key), what, known)
