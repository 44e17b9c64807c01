"""Sites, links, streams and queries as frozen values that check themselves."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Protocol

from watersmeet.errors import InputError, TopologyError, UnknownStream, did_you_mean
from watersmeet.query.windows import AsOf, format_duration, parse_duration
from watersmeet.stats.model import Stats
from watersmeet.topology.payload import Payload
from watersmeet.topology.schema import parse_schema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME = 64  # names of files and directories are made of them
_TIMESTAMP_TYPES = ("timestamp", "timestamp_ntz", "timestamp_ltz")

# One-way joins: simple or semijoin, at the site of the rows so far (S) or of the other stream (D), in one step or two.
METHODS = ("SP-S", "SP-D", "SM-S1", "SM-S2", "SM-D1", "SM-D2")
EVERY_PAIR = ("*", "*")

# What planners can minimise: bytes a second on links, their price, delay, or the semijoin paper's execution time.
OBJECTIVES = ("bytes", "money", "latency", "work")

# How PMJoin partitions the values of a key: by hash, by range, or by their rates in each stream.
PARTITIONS = ("hash", "range", "rate")

# What becomes of a row or combination for which an expression of a query fails: it ends the run, is left out and
# counted, or is also written where `failed` says.
ERRORS = ("fail", "drop", "keep")


# Who decides on another plan while a query runs: the adaptive paper's procedures, by a coordinator or among the sites,
# or the query's planner; off keeps the plan.
ADAPT_MODES = ("cnu", "dnu", "planner", "off")

# How batches travel between sites.
TRANSPORTS = ("directory", "kafka")

# What a run survives: that its processes are killed, or also that the machine loses power.
DURABILITIES = ("process", "power")


class Frame(Protocol):
    """The part of a PySpark DataFrame that is used here, so that a topology can hold one without importing pyspark."""

    @property
    def columns(self) -> list[str]: ...
    @property
    def dtypes(self) -> list[tuple[str, str]]: ...
    @property
    def isStreaming(self) -> bool: ...


def _check_payload(format: str, payload: Payload | None) -> None:
    if payload is not None and format != "kafka":
        raise TopologyError(f"payload is for format kafka; remove it, or the format {format}")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a stream's rows come from: a format of `spark.readStream` or `generator`.

    A source of Kafka has the rows that are in its messages' payload or, without one, the messages as Spark has them.
    """

    format: str
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    payload: Payload | None = None

    def __post_init__(self) -> None:
        _check_payload(self.format, self.payload)
        if self.payload is not None:
            self.payload.check_source()


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go: a format of Spark's writers, or `console`.

    With `compact`, a duration, answers wait up to so long for others, and are published together as one file.
    """

    format: str = "console"
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    compact: str | None = None
    payload: Payload | None = None  # of Kafka; None is JSON

    def __post_init__(self) -> None:
        _check_payload(self.format, self.payload)
        if self.payload is not None:
            self.payload.check_sink()
        if self.compact is not None and self.compact_us <= 0:
            raise TopologyError(f"compact {self.compact!r} must be positive; leave it out for a file a micro-batch")

    @property
    def compact_us(self) -> int:
        """How long answers may wait for others; 0: not at all."""
        try:
            return 0 if self.compact is None else parse_duration(self.compact)
        except InputError as error:
            raise TopologyError(f"compact: {error}") from None


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
    is_derived: bool = False  # whether its rows are the answers of queries, whose times they have

    def __post_init__(self) -> None:
        check_name(self.name, "stream")
        if self.is_derived:
            return
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
                f"stream {self.name!r}: idle_timeout {self.idle_timeout!r} must be positive; "
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

    @property
    def what(self) -> str:
        """What it is, in the words of a message."""
        return f"stream {self.name!r}"

    @cached_property
    def types(self) -> dict[str, str]:
        """The type of each column, in order, as Spark's DDL writes it in lower case."""
        if self.frame is not None:
            return dict(self.frame.dtypes)
        try:
            return parse_schema(self.schema or "")
        except InputError as error:
            raise TopologyError(f"{self.what}: {error}") from None

    @property
    def columns(self) -> tuple[str, ...]:
        if self.frame is not None:
            return tuple(self.frame.columns)
        return tuple(self.types)

    @property
    def event_time_column(self) -> str:
        """The event-time column in the spelling of the schema; that of a derived stream is none of its columns."""
        return (
            ""
            if self.is_derived
            else next(column for column in self.columns if column.casefold() == self.event_time.casefold())
        )

    @property
    def watermark_us(self) -> int:
        try:
            return parse_duration(self.watermark)
        except InputError as error:
            raise TopologyError(f"stream {self.name!r}: watermark: {error}") from None

    @property
    def idle_timeout_us(self) -> int | None:
        """How long the stream may have no rows before it counts as idle; None: never."""
        if self.idle_timeout.strip().casefold() == "none":
            return None
        try:
            return parse_duration(self.idle_timeout)
        except InputError as error:
            raise TopologyError(f"stream {self.name!r}: idle_timeout: {error}") from None


@dataclass(frozen=True)
class Table(Stream):
    """A table: rows that are all there at first, of any source that Spark reads as a batch.

    With `refresh` it is read again at that interval; a row of a stream joins the version that was in force at its
    event time. Without a schema, Spark infers one (`has_schema`).

    >>> Table("users", source=Source("csv", "users.csv"), schema="id long, region string").columns
    ('id', 'region')
    """

    event_time: str = ""
    idle_timeout: str = "none"
    refresh: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "table")
        if (self.source is None) == (self.frame is None):
            raise TopologyError(f"table {self.name!r} needs either a source or a batch DataFrame, and not both")
        if self.frame is not None and self.frame.isStreaming:
            raise TopologyError(f"table {self.name!r}: the DataFrame is streaming; make it with spark.read")
        if self.refresh_us is not None and self.refresh_us <= 0:
            raise TopologyError(
                f"table {self.name!r}: refresh {self.refresh!r} must be positive; leave it out for none"
            )
        if self.has_schema:
            folded = [column.casefold() for column in self.columns]
            twice = sorted({column for column in self.columns if folded.count(column.casefold()) > 1})
            if twice:
                raise TopologyError(f"table {self.name!r}: duplicate column names in its schema: {', '.join(twice)}")

    @property
    def what(self) -> str:
        """What it is, in the words of a message."""
        return f"table {self.name!r}"

    @property
    def has_schema(self) -> bool:
        """Whether its columns are known; if not, Spark infers them from the source."""
        return bool(self.schema) or self.frame is not None

    @property
    def refresh_us(self) -> int | None:
        """How often it is read again; None: never."""
        if self.refresh is None:
            return None
        try:
            return parse_duration(self.refresh)
        except InputError as error:
            raise TopologyError(f"table {self.name!r}: refresh: {error}") from None

    @property
    def event_time_column(self) -> str:
        """It has none."""
        return ""

    @property
    def window(self) -> AsOf:
        """How its rows are visible to queries."""
        return AsOf(self.refresh is not None)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a head's sequence: the alias it joins, the method, the site, and whether its keys are a Bloom filter.

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
                raise TopologyError(f"head {self.head!r} joins {step.join!r} twice; join every other alias once")
            joined.append(step.join.casefold())


@dataclass(frozen=True, slots=True)
class Adapt:
    """Whether and how eagerly a query's plan changes while it runs.

    `threshold` is the relative change of the cost of a one-way join from which on the plan is considered again, and
    `min_interval` the least time between two plans.

    >>> Adapt("cnu", min_interval="1 minute").min_interval_us
    60000000
    """

    mode: str = "off"
    threshold: float = 0.2
    min_interval: str = "30 seconds"

    def __post_init__(self) -> None:
        if self.mode not in ADAPT_MODES:
            raise TopologyError(f"adapt: unknown mode {self.mode!r}; {did_you_mean(self.mode, ADAPT_MODES)}")
        if not 0 < self.threshold < inf:
            raise TopologyError(
                f"adapt: threshold must be positive, not {self.threshold:g}; 0.2 means that a cost has changed by 20%"
            )
        if self.min_interval_us <= 0:
            raise TopologyError(f"adapt: min_interval {self.min_interval!r} must be positive")

    @property
    def is_on(self) -> bool:
        return self.mode != "off"

    @property
    def min_interval_us(self) -> int:
        try:
            return parse_duration(self.min_interval)
        except InputError as error:
            raise TopologyError(f"adapt: min_interval: {error}") from None


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
    objective: tuple[tuple[str, float], ...] = ()  # what planners minimise, by weight; bytes if empty
    max_delay: str | None = None
    barred: tuple[str, ...] = ()  # sites that no rows of other sites' streams may be sent to
    parts: int = 16  # the most parts of the key space that get a plan of their own
    partition: str | None = None  # how pmjoin makes parts; the cheapest if None
    assume_defaults: bool = False  # whether planners use defaults for statistics that are missing
    errors: str = "fail"  # what becomes of rows for which an expression fails
    failed: Sink | None = None  # where errors: keep writes them
    adapt: Adapt | None = None  # None: as the topology says

    def __post_init__(self) -> None:
        check_name(self.name, "query")
        if self.errors not in ERRORS:
            raise TopologyError(
                f"query {self.name!r}: unknown errors {self.errors!r}; {did_you_mean(self.errors, ERRORS)}"
            )
        if self.errors == "keep" and (self.failed is None or self.failed.format == "console" or not self.failed.path):
            raise TopologyError(
                f"query {self.name!r}: errors: keep needs to know where; give it failed: {{format: parquet, path: ...}}"
            )
        if self.errors != "keep" and self.failed is not None:
            raise TopologyError(f"query {self.name!r}: failed is for errors: keep; add that or remove it")
        if self.parts < 1:
            raise TopologyError(f"query {self.name!r}: parts must be 1 or more, not {self.parts}")
        if self.partition is not None and self.partition not in PARTITIONS:
            raise TopologyError(
                f"query {self.name!r}: unknown partition {self.partition!r}; {did_you_mean(self.partition, PARTITIONS)}"
            )
        for measure, weight in self.objective:
            if measure not in OBJECTIVES:
                raise TopologyError(
                    f"query {self.name!r}: unknown objective {measure!r}; {did_you_mean(measure, OBJECTIVES)}"
                )
            if not 0 <= weight < inf:
                raise TopologyError(f"query {self.name!r}: the weight of {measure} must be 0 or more, not {weight:g}")
        if self.objective and not any(weight for _, weight in self.objective):
            raise TopologyError(f"query {self.name!r}: at least one weight of the objective must be positive")
        if self.max_delay is not None:
            try:
                parse_duration(self.max_delay)
            except InputError as error:
                raise TopologyError(f"query {self.name!r}: limits.delay: {error}") from None
        if self.adapt is not None:
            check_adapt(self, self.adapt)
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
        """Rows before this instant are not joined; UTC if the text has no time zone."""
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
    """A place where streams arrive and a Spark job runs."""

    name: str


@dataclass(frozen=True, slots=True)
class Link:
    """The network between two sites, the same in both directions: latency, bandwidth (None: no limit) and price.

    >>> Link(("ams", "nyc"), latency_us=80_000, bandwidth_bps=100e6, price_per_gb=0.02)
    Link(between=('ams', 'nyc'), latency_us=80000, bandwidth_bps=100000000.0, price_per_gb=0.02)
    """

    between: tuple[str, str] = EVERY_PAIR
    latency_us: int = 0
    bandwidth_bps: float | None = None
    price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        what = link_name(self.between)
        if self.latency_us < 0:
            raise TopologyError(f"{what}: latency {format_duration(self.latency_us)} is negative; use 0 ms or more")
        if self.bandwidth_bps is not None and not 0 < self.bandwidth_bps < inf:
            raise TopologyError(
                f"{what}: bandwidth must be positive, not {self.bandwidth_bps:g} bps; leave it out for no limit"
            )
        if not 0 <= self.price_per_gb < inf:
            raise TopologyError(f"{what}: price_per_gb must be 0 or more, not {self.price_per_gb:g}")


@dataclass(frozen=True, slots=True)
class LinkTransport:
    """How batches travel between sites: as files in a directory that all sites can reach, or as topics of Kafka.

    With keys, from a file or from a variable of the environment, what travels is encrypted and authenticated.

    >>> LinkTransport("kafka", options={"bootstrap.servers": "broker:9092"}).topics
    'watersmeet'
    """

    kind: str = "directory"
    path: str | None = None
    max_pending_bytes: int = 256_000_000
    topics: str = "watersmeet"  # what the names of topics begin with
    options: Mapping[str, str] = field(default_factory=dict)  # of Kafka's clients, by librdkafka's names
    key_file: str | None = None
    key_env: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in TRANSPORTS:
            raise TopologyError(f"link_transport: unknown kind {self.kind!r}; {did_you_mean(self.kind, TRANSPORTS)}")
        if self.max_pending_bytes <= 0:
            raise TopologyError(f"link_transport: max_pending must be positive, not {self.max_pending_bytes} B")
        if self.kind == "kafka":
            if self.path is not None:
                raise TopologyError("link_transport: path is for kind directory; remove it, or the kind")
            if not self.options.get("bootstrap.servers"):
                raise TopologyError(
                    "link_transport: kind kafka needs to know its brokers, such as "
                    "options: {bootstrap.servers: 'broker1:9092,broker2:9092'}"
                )
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", self.topics):
                raise TopologyError(
                    f"link_transport: topics {self.topics!r} must be up to 100 letters, digits, dots, dashes and "
                    "underscores"
                )
        elif self.options:
            raise TopologyError("link_transport: options are for kind kafka; remove them, or set the kind")
        if self.key_file is not None and self.key_env is not None:
            raise TopologyError("link_transport has both key_file and key_env; keep one of them")


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
    durability: str = DURABILITIES[-1]
    adapt: Adapt = Adapt()  # of queries that do not say otherwise
    batch_interval_us: int | None = None  # event time that a micro-batch covers; None is by the streams' statistics
    tables: tuple[Table, ...] = ()
    views: tuple[Query, ...] = ()  # queries that others read like streams
    _position: dict[str, int] = field(init=False, repr=False, compare=False)  # of each site in `sites`
    _named: dict[str | None, Query] = field(init=False, repr=False, compare=False)  # queries and views by name

    def __post_init__(self) -> None:
        object.__setattr__(self, "_position", {site.name: position for position, site in enumerate(self.sites)})
        object.__setattr__(self, "_named", {query.name: query for query in (*self.views, *self.queries)})
        for what, names in (
            ("stream", [stream.name for stream in self.streams]),
            ("table", [table.name for table in self.tables]),
            ("query", [query.name for query in self.queries]),
            ("view", [view.name for view in self.views]),
            ("site", [site.name for site in self.sites]),
        ):
            counts = Counter(name.casefold() for name in names)
            twice = sorted({name for name in names if counts[name.casefold()] > 1})
            if twice:
                raise TopologyError(f"duplicate {what} names (case does not count): {', '.join(twice)}")
        named = {stream.name.casefold(): "stream" for stream in self.streams if not stream.is_derived}
        named |= {query.name.casefold(): "query" for query in self.queries}
        for view in self.views:
            if (other := named.get(view.name.casefold())) is not None:
                raise TopologyError(f"view {view.name!r} has the name of a {other}; rename one")
        check_durability(self.durability)
        if self.batch_interval_us is not None and self.batch_interval_us <= 0:
            raise TopologyError("batch_interval must be positive")
        both = {stream.name.casefold() for stream in self.streams} & {table.name.casefold() for table in self.tables}
        for table in self.tables:
            if table.name.casefold() in both:
                raise TopologyError(f"{table.name!r} is both a stream and a table (case does not count); rename one")
            check_site(table.site, f"table {table.name!r}", self.site_names)
        for stream in self.streams:
            check_site(stream.site, f"stream {stream.name!r}", self.site_names)
        for query in (*self.queries, *self.views):
            if query.site is not None:
                check_site(query.site, f"query {query.name!r}", self.site_names)
            for head, step in [(steps.head, step) for steps in query.plan or () for step in steps.steps]:
                if step.at is not None:
                    what = f"query {query.name!r}: the step of head {head!r} that joins {step.join!r}"
                    check_site(step.at, what, self.site_names)
        pairs: set[frozenset[str]] = set()
        for link in self.links:
            check_pair(link.between, self.site_names)
            if frozenset(link.between) in pairs:
                raise TopologyError(f"{link_name(link.between)} is given twice (in either order); remove one")
            pairs.add(frozenset(link.between))
        if self.default_link is not None and self.default_link.between != EVERY_PAIR:
            raise TopologyError("default_link is for every pair of sites; leave out between, or move it to links")
        for name in self.stats.streams:
            known = (*self.homes, *(view.name for view in self.views))
            if name not in known:
                raise TopologyError(f"stats: unknown stream {name!r}; {did_you_mean(name, known)}")

    def stream(self, name: str) -> Stream:
        """The stream or table of that name; case does not count, as in SQL."""
        for stream in self.sources:
            if stream.name.casefold() == name.casefold():
                return stream
        raise UnknownStream(f"unknown stream {name!r}; {did_you_mean(name, self.homes)}")

    def query(self, name: str | None = None) -> Query:
        """The query of that name, or the only one."""
        if name is None and len(self.queries) == 1:
            return self.queries[0]
        if name in self._named:
            return self._named[name]
        names = [query.name for query in self.queries]
        if name is None:
            raise TopologyError(f"say which query: {', '.join(names) or 'the topology has none'}")
        raise TopologyError(f"unknown query {name!r}; {did_you_mean(name, names)}")

    def query_site(self, query: Query) -> str:
        """The site of the query's sink: its own setting, else the only site or that of all the streams."""
        if query.site is not None:
            return check_site(query.site, f"query {query.name!r}", self.site_names)
        for names in ({site.name for site in self.sites}, {stream.site for stream in self.streams}):
            if len(names) == 1:
                return names.pop()
        raise TopologyError(
            f"query {query.name!r} does not say where its answers are wanted; "
            f"add `site:` to the query with one of: {', '.join(self.site_names)}"
        )

    def adapt_of(self, query: Query) -> Adapt:
        """Whether and how a query's plan changes: its own setting, else that of all; a plan that is given stays.

        >>> topology = Topology((), adapt=Adapt("cnu"))
        >>> [topology.adapt_of(Query("q", "SELECT 1", adapt=own)).mode for own in (None, Adapt())]
        ['cnu', 'off']
        """
        if query.adapt is not None:
            return query.adapt
        fixed = query.plan is not None or (query.planner is not None and self.adapt.mode in ("cnu", "dnu"))
        return Adapt() if fixed else self.adapt

    def link(self, a: str, b: str) -> Link:
        """The link of two sites in either order: their own, else the default, else an unlimited one.

        >>> sites = (Site("ams"), Site("nyc"))
        >>> Topology((), sites=sites, default_link=Link(latency_us=80_000)).link("nyc", "ams").latency_us
        80000
        """
        for site in (a, b):
            if site not in self._position:
                check_site(site, "link", self.site_names)
        if a == b:
            return Link((a, b))
        for link in self.links:
            if set(link.between) == {a, b}:
                return link
        first, second = sorted((a, b), key=self._position.__getitem__)
        return replace(self.default_link or Link(), between=(first, second))

    def is_linked(self, a: str, b: str) -> bool:
        """Whether two sites have a link; if no link is given at all, all sites have one."""
        named = any(set(link.between) == {a, b} for link in self.links)
        return a == b or named or self.default_link is not None or not self.links

    @property
    def survives_power_cuts(self) -> bool:
        """Whether what is committed is flushed to the disk."""
        return self.durability == "power"

    @property
    def site_names(self) -> tuple[str, ...]:
        """The names of the sites, in order."""
        return tuple(site.name for site in self.sites)

    @property
    def sources(self) -> tuple[Stream, ...]:
        """The streams, and the tables after them."""
        return (*self.streams, *self.tables)

    @property
    def homes(self) -> dict[str, str]:
        """Where each stream arrives and each table is read."""
        return {stream.name: stream.site for stream in self.sources}

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The column names of every stream and table."""
        return {stream.name: stream.columns for stream in self.sources}

    @property
    def table_windows(self) -> dict[str, AsOf]:
        """How the rows of each table are visible to queries."""
        return {table.name: table.window for table in self.tables}

    @property
    def has_schemas(self) -> bool:
        """Whether the columns of all tables are known; if not, Spark infers them."""
        return all(table.has_schema for table in self.tables)

    @property
    def event_times(self) -> dict[str, str]:
        """The column of every stream that is its event time; rows of derived streams have none."""
        return {stream.name: stream.event_time_column for stream in self.streams if not stream.is_derived}


def check_name(name: str, what: str) -> str:
    """The name if it is a plain word; `what` is the kind of thing it names."""
    if not _NAME.fullmatch(name):
        raise TopologyError(f"{what} name {name!r} must be letters, digits and underscores, not starting with a digit")
    if len(name) > _LONGEST_NAME:
        raise TopologyError(f"{what} name {name!r} has {len(name)} characters; {_LONGEST_NAME} is the limit")
    return name


def check_site(site: str, what: str, known: Sequence[str]) -> str:
    """The site if it is known; `what` is the thing that refers to it."""
    if site not in known:
        raise TopologyError(f"{what}: unknown site {site!r}; {did_you_mean(site, known)}")
    return site


def check_adapt(query: Query, adapt: Adapt) -> None:
    """Refuse what contradicts a plan that changes by itself."""
    if not adapt.is_on:
        return
    if query.plan is not None:
        raise TopologyError(
            f"query {query.name!r} has a plan, which does not change by itself; remove plan, "
            "or set adapt: {mode: off}"
        )
    if adapt.mode in ("cnu", "dnu") and query.planner is not None:
        raise TopologyError(
            f"query {query.name!r}: adapt mode {adapt.mode} makes its own plans; remove planner, or set mode: planner"
        )


def check_durability(text: str) -> str:
    """What a run survives, if it is known."""
    if text not in DURABILITIES:
        raise TopologyError(f"unknown durability {text!r}; {did_you_mean(text, DURABILITIES)}")
    return text


def check_pair(between: tuple[str, str], known: Sequence[str]) -> None:
    """Refuse a link that does not join two known sites."""
    what = link_name(between)
    for site in between:
        check_site(site, what, known)
    if between[0] == between[1]:
        raise TopologyError(f"{what} joins a site to itself; name two sites")


def link_name(between: tuple[str, str]) -> str:
    """The link in the words of an error message."""
    return "default_link" if between == EVERY_PAIR else f"the link between {between[0]!r} and {between[1]!r}"


def __getattr__(name: str) -> Callable[[str | Path], Topology]:
    """`load_topology` under its former path; imported late, since `load` imports this module."""
    if name != "load_topology":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from watersmeet.topology.load import load_topology

    return load_topology
