"""Sites, links, streams and queries as frozen values; `load_topology` reads and checks YAML, with lines in errors."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Protocol

from watersmeet.errors import InputError, TopologyError, UnknownStream, did_you_mean
from watersmeet.query.windows import format_duration, parse_duration
from watersmeet.stats.model import Stats, StreamStats
from watersmeet.stats.yaml import filled, read_stats, read_stream_stats
from watersmeet.topology.yaml_tree import SIZE_BYTES, Entry, parse_amount, read

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIMESTAMP_TYPES = ("timestamp", "timestamp_ntz", "timestamp_ltz")

# One-way joins: simple or semijoin, at the site of the rows so far (S) or of the other stream (D), in one step or two.
METHODS = ("SP-S", "SP-D", "SM-S1", "SM-S2", "SM-D1", "SM-D2")
EVERY_PAIR = ("*", "*")

# What a plan may be judged by: bytes a second on links, their price, delay, or the semijoin paper's execution time.
OBJECTIVES = ("bytes", "money", "latency", "work")

# How PMJoin puts values of a key into parts: at random, by ranges, or by which streams have most of them.
PARTITIONS = ("hash", "range", "rate")

_BANDWIDTH_BPS = {"bps": 1, "kbps": 1_000, "Mbps": 1_000_000, "Gbps": 1_000_000_000}


class Frame(Protocol):
    """What is used of a PySpark DataFrame here, so that a topology can hold one without importing pyspark."""

    @property
    def columns(self) -> list[str]: ...
    @property
    def dtypes(self) -> list[tuple[str, str]]: ...
    @property
    def isStreaming(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Source:
    """Where a stream's rows come from: a format of `spark.readStream` or `generator`."""

    format: str
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go: a format of Spark's writers, or `console`."""

    format: str = "console"
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """A stream: its columns, which of them is the event time, how late rows may come, and where they come from.

    >>> stream = Stream("a", event_time="ts", schema="k long, ts timestamp", source=Source("parquet", "data/a"))
    >>> stream.columns
    ('k', 'ts')
    """

    name: str
    event_time: str
    schema: str | None = None
    source: Source | None = None
    frame: Frame | None = None
    watermark: str = "0 seconds"
    site: str = "here"
    late: Sink | None = None
    idle_timeout: str = "5 minutes"

    def __post_init__(self) -> None:
        _check_name(self.name, "stream")
        if (self.source is None) == (self.frame is None):
            raise TopologyError(f"stream {self.name!r} needs either a source or a streaming DataFrame, and not both")
        if self.source is not None and not self.schema:
            raise TopologyError(f'stream {self.name!r} needs a schema, such as schema: "k long, ts timestamp"')
        if self.frame is not None and not self.frame.isStreaming:
            raise TopologyError(f"stream {self.name!r}: the DataFrame is not streaming; make it with spark.readStream")
        if self.watermark_us < 0:
            raise TopologyError(
                f"stream {self.name!r}: watermark {self.watermark!r} is negative; use 0 seconds or more"
            )
        if self.idle_timeout_us is not None and self.idle_timeout_us <= 0:
            raise TopologyError(
                f"stream {self.name!r}: idle_timeout {self.idle_timeout!r} must be longer than 0; "
                "write none for a stream that never counts as idle"
            )
        if self.late is not None and (self.late.format == "console" or not self.late.path):
            raise TopologyError(f"stream {self.name!r}: late needs a file format and a path")
        folded = [column.casefold() for column in self.columns]
        twice = sorted({column for column in self.columns if folded.count(column.casefold()) > 1})
        if twice:
            raise TopologyError(f"stream {self.name!r}: duplicate column names in its schema: {', '.join(twice)}")
        if self.event_time.casefold() not in folded:
            raise TopologyError(
                f"stream {self.name!r}: event_time {self.event_time!r} is not one of its columns; "
                + did_you_mean(self.event_time, self.columns)
            )
        if self.types[self.event_time_column] not in _TIMESTAMP_TYPES:
            raise TopologyError(
                f"stream {self.name!r}: event_time {self.event_time!r} has type {self.types[self.event_time_column]}; "
                "it must be timestamp or timestamp_ntz (cast it in the schema or before handing in the DataFrame)"
            )

    @cached_property
    def types(self) -> dict[str, str]:
        """The type of each column, in order, as Spark's DDL writes it in lower case."""
        if self.frame is not None:
            return dict(self.frame.dtypes)
        try:
            return parse_schema(self.schema or "")
        except InputError as error:
            raise TopologyError(f"stream {self.name!r}: {error}") from None

    @property
    def columns(self) -> tuple[str, ...]:
        if self.frame is not None:
            return tuple(self.frame.columns)
        return tuple(self.types)

    @property
    def event_time_column(self) -> str:
        """The event-time column in the spelling of the schema."""
        return next(column for column in self.columns if column.casefold() == self.event_time.casefold())

    @property
    def watermark_us(self) -> int:
        try:
            return parse_duration(self.watermark)
        except InputError as error:
            raise TopologyError(f"stream {self.name!r}: watermark: {error}") from None

    @property
    def idle_timeout_us(self) -> int | None:
        """How long the stream may be silent before it counts as idle; None for `none`, never."""
        if self.idle_timeout.strip().casefold() == "none":
            return None
        try:
            return parse_duration(self.idle_timeout)
        except InputError as error:
            raise TopologyError(f"stream {self.name!r}: idle_timeout: {error}") from None


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a head's sequence: the alias it joins, by which method, where, and whether keys go as a Bloom filter.

    >>> PlanStep("b", "SM-D1", at="nyc", bloom=True)
    PlanStep(join='b', method='SM-D1', at='nyc', bloom=True)
    """

    join: str
    method: str = "SP-D"
    at: str | None = None
    bloom: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise TopologyError(
                f"the step that joins {self.join!r}: unknown method {self.method!r}; "
                + did_you_mean(self.method, METHODS)
            )
        if self.bloom and self.method.startswith("SP-"):
            raise TopologyError(
                f"the step that joins {self.join!r}: bloom replaces the set of keys that an SM method sends, and "
                f"{self.method} sends none; leave bloom out or choose an SM method"
            )


@dataclass(frozen=True, slots=True)
class HeadSteps:
    """The steps that the new rows of one alias, the head, take through the others."""

    head: str
    steps: tuple[PlanStep, ...]

    def __post_init__(self) -> None:
        joined = [self.head.casefold()]
        for step in self.steps:
            if step.join.casefold() in joined:
                raise TopologyError(f"head {self.head!r} meets {step.join!r} twice; join each other alias once")
            joined.append(step.join.casefold())


BatchFunction = Callable[[Any, int], None]


@dataclass(frozen=True, slots=True)
class Query:
    """A continuous query: its SQL and where its answers go (a sink, or a function given each batch as a DataFrame)."""

    name: str
    sql: str
    sink: Sink = Sink()
    foreach_batch: BatchFunction | None = None
    allow_cross: bool = False
    start: str | None = None
    checkpoint: str | None = None
    site: str | None = None
    plan: tuple[HeadSteps, ...] | None = None
    planner: str | None = None
    objective: tuple[tuple[str, float], ...] = ()  # what planners keep small, by weight; nothing is bytes
    max_delay: str | None = None
    barred: tuple[str, ...] = ()  # sites to which nothing of other sites' streams may go
    parts: int = 16  # at most so many parts of the key space have a plan of their own
    partition: str | None = None  # how pmjoin makes parts; the cheapest way where it is not said
    assume_defaults: bool = False  # whether planners take defaults for figures that nobody gave

    def __post_init__(self) -> None:
        _check_name(self.name, "query")
        if self.parts < 1:
            raise TopologyError(f"query {self.name!r}: parts must be 1 or more, not {self.parts}")
        if self.partition is not None and self.partition not in PARTITIONS:
            raise TopologyError(
                f"query {self.name!r}: unknown partition {self.partition!r}; {did_you_mean(self.partition, PARTITIONS)}"
            )
        for weighed, weight in self.objective:
            if weighed not in OBJECTIVES:
                raise TopologyError(
                    f"query {self.name!r}: unknown objective {weighed!r}; {did_you_mean(weighed, OBJECTIVES)}"
                )
            if not 0 <= weight < inf:
                raise TopologyError(f"query {self.name!r}: the weight of {weighed} must be 0 or more, not {weight:g}")
        if self.objective and not any(weight for _, weight in self.objective):
            raise TopologyError(f"query {self.name!r}: one of the weights of the objective must be more than 0")
        if self.max_delay is not None:
            try:
                parse_duration(self.max_delay)
            except InputError as error:
                raise TopologyError(f"query {self.name!r}: the limit of the delay: {error}") from None
        if not self.sql.strip():
            raise TopologyError(f"query {self.name!r} has no SQL text")
        _ = self.start_us
        if self.plan is not None:
            if self.planner is not None:
                raise TopologyError(f"query {self.name!r} has both a plan and a planner; keep one of them")
            if not self.plan:
                raise TopologyError(f"query {self.name!r}: the plan is empty; give the steps of each alias or no plan")
            folded = [steps.head.casefold() for steps in self.plan]
            twice = sorted({steps.head for steps in self.plan if folded.count(steps.head.casefold()) > 1})
            if twice:
                raise TopologyError(
                    f"query {self.name!r}: duplicate heads in the plan (case does not count): {', '.join(twice)}"
                )

    @property
    def start_us(self) -> int | None:
        """The instant before which tuples take no part; UTC where the text names no zone."""
        if self.start is None:
            return None
        try:
            instant = datetime.fromisoformat(self.start)
        except ValueError:
            raise TopologyError(
                f"query {self.name!r}: start {self.start!r} is not a timestamp; write it like 2025-01-31 12:00:00"
            ) from None
        instant = instant.replace(tzinfo=instant.tzinfo or UTC)
        delta = instant - datetime(1970, 1, 1, tzinfo=UTC)
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


@dataclass(frozen=True, slots=True)
class Site:
    """A place where streams arrive and a Spark runs."""

    name: str


@dataclass(frozen=True, slots=True)
class Link:
    """What sending between two sites takes, either way: a delay, bits a second (None: no limit) and a price.

    >>> Link(("ams", "nyc"), latency_us=80_000, bandwidth_bps=100e6, price_per_gb=0.02)
    Link(between=('ams', 'nyc'), latency_us=80000, bandwidth_bps=100000000.0, price_per_gb=0.02)
    """

    between: tuple[str, str] = EVERY_PAIR
    latency_us: int = 0
    bandwidth_bps: float | None = None
    price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        what = _link_name(self.between)
        if self.latency_us < 0:
            raise TopologyError(f"{what}: latency {format_duration(self.latency_us)} is negative; use 0 ms or more")
        if self.bandwidth_bps is not None and not 0 < self.bandwidth_bps < inf:
            raise TopologyError(
                f"{what}: bandwidth must be more than 0, not {self.bandwidth_bps:g} bps; leave it out for no limit"
            )
        if not 0 <= self.price_per_gb < inf:
            raise TopologyError(f"{what}: price_per_gb must be 0 or more, not {self.price_per_gb:g}")


@dataclass(frozen=True, slots=True)
class LinkTransport:
    """How batches travel between sites: through files in a directory that all of them reach."""

    kind: str = "directory"
    path: str | None = None
    max_pending_bytes: int = 256_000_000

    def __post_init__(self) -> None:
        if self.kind != "directory":
            raise TopologyError(f"link_transport: unknown kind {self.kind!r}; only directory is known")
        if self.max_pending_bytes <= 0:
            raise TopologyError(f"link_transport: max_pending must be more than 0, not {self.max_pending_bytes} B")


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything a run needs to know: sites, streams and queries, by unique names, and the links between the sites."""

    streams: tuple[Stream, ...]
    queries: tuple[Query, ...] = ()
    sites: tuple[Site, ...] = (Site("here"),)
    directory: str = "."
    links: tuple[Link, ...] = ()
    default_link: Link | None = None
    link_transport: LinkTransport = LinkTransport()
    stats: Stats = field(default_factory=Stats)
    _place: dict[str, int] = field(init=False, repr=False, compare=False)  # of each site among them

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", {site.name: place for place, site in enumerate(self.sites)})
        for what, names in (
            ("stream", [stream.name for stream in self.streams]),
            ("query", [query.name for query in self.queries]),
            ("site", [site.name for site in self.sites]),
        ):
            folded = [name.casefold() for name in names]
            twice = sorted({name for name in names if folded.count(name.casefold()) > 1})
            if twice:
                raise TopologyError(f"duplicate {what} names (case does not count): {', '.join(twice)}")
        for stream in self.streams:
            _check_site(stream.site, f"stream {stream.name!r}", self.site_names)
        for query in self.queries:
            if query.site is not None:
                _check_site(query.site, f"query {query.name!r}", self.site_names)
            for head, step in [(steps.head, step) for steps in query.plan or () for step in steps.steps]:
                if step.at is not None:
                    what = f"query {query.name!r}: the step of head {head!r} that joins {step.join!r}"
                    _check_site(step.at, what, self.site_names)
        pairs: set[frozenset[str]] = set()
        for link in self.links:
            _check_pair(link.between, self.site_names)
            if frozenset(link.between) in pairs:
                raise TopologyError(f"{_link_name(link.between)} is given twice (in either order); remove one")
            pairs.add(frozenset(link.between))
        if self.default_link is not None and self.default_link.between != EVERY_PAIR:
            raise TopologyError("default_link is for every pair of sites; leave out between, or move it to links")
        for name in self.stats.streams:
            if name not in self.columns:
                raise TopologyError(f"stats: unknown stream {name!r}; {did_you_mean(name, self.columns)}")

    def stream(self, name: str) -> Stream:
        """The stream of that name; case does not count, as in SQL."""
        for stream in self.streams:
            if stream.name.casefold() == name.casefold():
                return stream
        raise UnknownStream(f"unknown stream {name!r}; {did_you_mean(name, [s.name for s in self.streams])}")

    def query(self, name: str | None = None) -> Query:
        """The query of that name, or the only one."""
        names = [query.name for query in self.queries]
        if name is None:
            if len(names) != 1:
                raise TopologyError(f"say which query: {', '.join(names) or 'the topology has none'}")
            return self.queries[0]
        for query in self.queries:
            if query.name == name:
                return query
        raise TopologyError(f"unknown query {name!r}; {did_you_mean(name, names)}")

    def query_site(self, query: Query) -> str:
        """The site where the query's answers are wanted: as it says, else the only one or that of all the streams."""
        if query.site is not None:
            return _check_site(query.site, f"query {query.name!r}", self.site_names)
        for names in ({site.name for site in self.sites}, {stream.site for stream in self.streams}):
            if len(names) == 1:
                return names.pop()
        raise TopologyError(
            f"query {query.name!r} does not say where its answers are wanted; "
            f"add `site:` to the query with one of: {', '.join(self.site_names)}"
        )

    def link(self, a: str, b: str) -> Link:
        """The link of two sites in either order: their own, else the default, else a free one; to itself it is free.

        >>> sites = (Site("ams"), Site("nyc"))
        >>> Topology((), sites=sites, default_link=Link(latency_us=80_000)).link("nyc", "ams").latency_us
        80000
        """
        for site in (a, b):
            if site not in self._place:
                _check_site(site, "link", self.site_names)
        if a == b:
            return Link((a, b))
        for link in self.links:
            if set(link.between) == {a, b}:
                return link
        first, second = sorted((a, b), key=self._place.__getitem__)
        return replace(self.default_link or Link(), between=(first, second))

    def is_linked(self, a: str, b: str) -> bool:
        """Whether two sites have a link; where nothing is said of any link, all have."""
        named = any(set(link.between) == {a, b} for link in self.links)
        return a == b or named or self.default_link is not None or not self.links

    @property
    def site_names(self) -> tuple[str, ...]:
        """The names of the sites, in order."""
        return tuple(site.name for site in self.sites)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The column names of every stream."""
        return {stream.name: stream.columns for stream in self.streams}


def parse_schema(ddl: str) -> dict[str, str]:
    """Column names and types of a DDL schema; Spark checks the types themselves later.

    >>> parse_schema("k long, `my col` decimal(10, 2), s struct<x: int, y: string> NOT NULL COMMENT 'x'")
    {'k': 'long', 'my col': 'decimal(10,2)', 's': 'struct<x:int,y:string>'}
    """
    columns: dict[str, str] = {}
    for part in _split_top_level(ddl):
        match = re.match(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`,]+))\s*:?\s*(\S.*)?$", part, re.DOTALL)
        if not match or not match.group(3):
            raise InputError(f'schema: {part.strip()!r} is not a column; write it like "k long, ts timestamp"')
        name = match.group(1).replace("``", "`") if match.group(1) else match.group(2)
        kind = re.sub(r"\s+(not\s+null|comment\s+('[^']*'|\"[^\"]*\")|default\s+.*)", "", match.group(3), flags=re.I)
        if name in columns:
            raise InputError(f"schema: duplicate column names: {name}")
        columns[name] = re.sub(r"\s*([<>(),:])\s*", r"\1", kind.strip().lower())
    return columns


def _split_top_level(ddl: str) -> list[str]:
    parts, depth, quote, start = [], 0, "", 0
    for position, char in enumerate(ddl):
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(ddl[start:position])
            start = position + 1
    if depth or quote:
        raise InputError(f"schema: unbalanced brackets or quotes in {ddl!r}")
    return [*parts, ddl[start:]]


def load_topology(path: str | Path) -> Topology:
    """Read a topology file; relative paths in it are relative to the file."""
    path = Path(path)
    root = read(path)
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
    for name, entry in _distinct("query", top["queries"].mapping("queries").items()):
        with _located(entry):
            queries.append(_query(name, entry, directory, site_names))
    links = _links(top["links"], site_names) if "links" in top else ()
    default = _default_link(top["default_link"]) if "default_link" in top else None
    transport = _link_transport(top["link_transport"], directory) if "link_transport" in top else LinkTransport()
    stats = Stats(given)
    if "stats_file" in top:
        columns = {stream.name: stream.columns for stream in streams}
        stats = filled(stats, _stats_file(top["stats_file"], directory, columns))
    with _located(root):
        return Topology(tuple(streams), tuple(queries), sites, str(directory), links, default, transport, stats)


def _stats_file(entry: Entry, directory: Path, columns: Mapping[str, Sequence[str]]) -> Stats:
    path = directory / entry.text("stats_file")
    if not path.exists():
        raise entry.fail(f"stats_file {path} does not exist; `watersmeet stats --output` makes it")
    return read_stats(path, columns)


def _distinct(what: str, named: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, Entry]]:
    """Pass names on that differ in more than case; YAML itself sees to names that are the very same."""
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
    """An error of a value that is built here is told with the entry's line."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(f"{entry.file}, line "):
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
            sites.append(Site(_check_name(name, "site")))
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
            _check_pair(pair, sites)
        other = first.setdefault(frozenset(pair), item)
        if other is not item:
            raise item.fail(
                f"{_link_name(pair)} is given twice (in either order), first on line {other.line}; remove one"
            )
        links.append(_link(item, pair, keys))
    return tuple(links)


def _default_link(entry: Entry) -> Link:
    return _link(entry, EVERY_PAIR, entry.mapping("default_link", _LINK_KEYS))


def _link(entry: Entry, between: tuple[str, str], keys: Mapping[str, Entry]) -> Link:
    what = _link_name(between)
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
    keys = entry.mapping("link_transport", ("kind", "path", "max_pending"))
    settings: dict[str, Any] = {}
    if "kind" in keys:
        settings["kind"] = keys["kind"].text("kind")
    if "path" in keys:
        settings["path"] = _resolve(keys["path"].text("path"), directory)
    if "max_pending" in keys:
        with _located(keys["max_pending"], "link_transport: max_pending "):
            text = keys["max_pending"].text("max_pending")
            size = parse_amount(text, SIZE_BYTES, "256 MB")
            if size.denominator != 1:
                raise InputError(f"{text!r} is not a whole number of bytes; round it")
            settings["max_pending_bytes"] = int(size)
    with _located(entry):
        return LinkTransport(**settings)


_TOPOLOGY_KEYS = ("sites", "links", "default_link", "link_transport", "stats_file", "streams", "queries")
_LINK_KEYS = ("latency", "bandwidth", "price_per_gb")
_STREAM_KEYS = ("site", "schema", "event_time", "watermark", "idle_timeout", "source", "late", "stats")
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
    "sink",
    "allow_cross",
    "start",
    "checkpoint",
)


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
    source = Source(**_endpoint(keys["source"], f"the source of {what}", directory))
    late = Sink(**_endpoint(keys["late"], f"late of {what}", directory)) if "late" in keys else None
    return Stream(name, source=source, late=late, **texts)


def _query(name: str, entry: Entry, directory: Path, sites: Sequence[str]) -> Query:
    what = f"query {name!r}"
    keys = entry.mapping(what, _QUERY_KEYS)
    if "sql" not in keys:
        raise entry.fail(f"{what} has no sql")
    return Query(
        name,
        keys["sql"].text("sql"),
        sink=Sink(**_endpoint(keys["sink"], f"the sink of {what}", directory)) if "sink" in keys else Sink(),
        allow_cross=keys["allow_cross"].flag("allow_cross") if "allow_cross" in keys else False,
        start=keys["start"].text("start") if "start" in keys else None,
        checkpoint=_resolve(keys["checkpoint"].text("checkpoint"), directory) if "checkpoint" in keys else None,
        site=_site_of(keys["site"], what, sites) if "site" in keys else None,
        plan=_plan(keys["plan"], f"the plan of {what}", sites) if "plan" in keys else None,
        planner=keys["planner"].text("planner") if "planner" in keys else None,
        objective=_objective(keys["objective"], what) if "objective" in keys else (),
        parts=_whole(keys["parts"], "parts") if "parts" in keys else 16,
        partition=keys["partition"].text("partition") if "partition" in keys else None,
        assume_defaults=keys["assume_defaults"].flag("assume_defaults") if "assume_defaults" in keys else False,
        **(_limits(keys["limits"], what, sites) if "limits" in keys else {}),
    )


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
        names = keys["barred"].sequence(f"barred in the limits of {what}", "barred: [nyc]")
        limits["barred"] = tuple(_site_of(one, f"barred in the limits of {what}", sites, "barred") for one in names)
    return limits


def _whole(entry: Entry, what: str) -> int:
    number = entry.number(what)
    if number != int(number):
        raise entry.fail(f"{what} must be a whole number, not {entry.value!r}")
    return int(number)


def _plan(entry: Entry, what: str, sites: Sequence[str]) -> tuple[HeadSteps, ...]:
    plan = []
    for head, listing in _distinct("head", entry.mapping(what).items()):
        items = listing.sequence(f"head {head!r} of {what}", f"{head}: [{{join: b, method: SM-D1}}]")
        steps = tuple(_step(item, f"a step of head {head!r} in {what}", sites) for item in items)
        with _located(listing):
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


def _endpoint(entry: Entry, what: str, directory: Path) -> dict[str, Any]:
    keys = entry.mapping(what, ("format", "path", "options"))
    if "format" not in keys:
        raise entry.fail(f"{what} has no format")
    options = keys["options"].mapping(f"options of {what}") if "options" in keys else {}
    return {
        "format": keys["format"].text("format"),
        "path": _resolve(keys["path"].text("path"), directory) if "path" in keys else None,
        "options": {key: option.text(f"option {key!r}") for key, option in options.items()},
    }


def _resolve(path: str, directory: Path) -> str:
    """A path relative to the topology file made absolute; URLs such as s3a://bucket/x stay as they are."""
    return path if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path) else str(directory / path)


def _check_name(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise TopologyError(f"{what} name {name!r} must be letters, digits and underscores, not starting with a digit")
    return name


def _check_site(site: str, what: str, known: Sequence[str]) -> str:
    if site not in known:
        raise TopologyError(f"{what}: unknown site {site!r}; {did_you_mean(site, known)}")
    return site


def _site_of(entry: Entry, what: str, known: Sequence[str], key: str = "site") -> str:
    with _located(entry):
        return _check_site(entry.text(key), what, known)


def _check_pair(between: tuple[str, str], known: Sequence[str]) -> None:
    what = _link_name(between)
    for site in between:
        _check_site(site, what, known)
    if between[0] == between[1]:
        raise TopologyError(f"{what} joins a site to itself; name two sites")


def _link_name(between: tuple[str, str]) -> str:
    return "default_link" if between == EVERY_PAIR else f"the link between {between[0]!r} and {between[1]!r}"
