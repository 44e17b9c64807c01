"""Sites, streams and queries as frozen values; `load_topology` reads them from YAML, checked, with lines in errors."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from watersmeet.errors import InputError, TopologyError, UnknownStream, did_you_mean
from watersmeet.query.windows import parse_duration
from watersmeet.yaml_tree import Entry, read

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIMESTAMP_TYPES = ("timestamp", "timestamp_ntz", "timestamp_ltz")


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

    def __post_init__(self) -> None:
        _check_name(self.name, "query")
        if not self.sql.strip():
            raise TopologyError(f"query {self.name!r} has no SQL text")
        _ = self.start_us

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
class Topology:
    """Everything a run needs to know: sites, streams and queries, by unique names."""

    streams: tuple[Stream, ...]
    queries: tuple[Query, ...] = ()
    sites: tuple[Site, ...] = (Site("here"),)
    directory: str = "."

    def __post_init__(self) -> None:
        for what, names in (
            ("stream", [stream.name for stream in self.streams]),
            ("query", [query.name for query in self.queries]),
            ("site", [site.name for site in self.sites]),
        ):
            folded = [name.casefold() for name in names]
            twice = sorted({name for name in names if folded.count(name.casefold()) > 1})
            if twice:
                raise TopologyError(f"duplicate {what} names (case does not count): {', '.join(twice)}")
        site_names = [site.name for site in self.sites]
        for stream in self.streams:
            if stream.site not in site_names:
                raise TopologyError(
                    f"stream {stream.name!r}: unknown site {stream.site!r}; {did_you_mean(stream.site, site_names)}"
                )

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
    top = root.mapping("the topology", ("sites", "streams", "queries"))
    for needed in ("streams", "queries"):
        if needed not in top or not top[needed].value:
            raise root.fail(f"the topology has no {needed}; add a `{needed}:` mapping")
    sites = _sites(top["sites"]) if "sites" in top else (Site("here"),)
    streams, queries = [], []
    for name, entry in _distinct("stream", top["streams"].mapping("streams").items()):
        with _located(entry):
            streams.append(_stream(name, entry, directory, [site.name for site in sites]))
    for name, entry in _distinct("query", top["queries"].mapping("queries").items()):
        with _located(entry):
            queries.append(_query(name, entry, directory))
    with _located(root):
        return Topology(tuple(streams), tuple(queries), sites, str(directory))


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
def _located(entry: Entry) -> Iterator[None]:
    """An error of a value that is built here is told with the entry's line."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(f"{entry.file}, line "):
            raise
        raise entry.fail(str(error)) from None


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


_STREAM_KEYS = ("site", "schema", "event_time", "watermark", "source", "late")
_QUERY_KEYS = ("sql", "sink", "allow_cross", "start", "checkpoint")


def _stream(name: str, entry: Entry, directory: Path, sites: Sequence[str]) -> Stream:
    what = f"stream {name!r}"
    keys = entry.mapping(what, _STREAM_KEYS)
    for needed in ("schema", "event_time", "source"):
        if needed not in keys:
            raise entry.fail(f"{what} has no {needed}")
    texts: dict[str, Any] = {
        key: keys[key].text(key) for key in ("schema", "event_time", "watermark", "site") if key in keys
    }
    if "site" in keys and texts["site"] not in sites:
        raise keys["site"].fail(f"{what}: unknown site {texts['site']!r}; {did_you_mean(texts['site'], sites)}")
    if "site" not in keys and "here" not in sites:
        raise entry.fail(f"{what} has no site; say which of them with `site:`: {', '.join(sites)}")
    source = Source(**_endpoint(keys["source"], f"the source of {what}", directory))
    late = Sink(**_endpoint(keys["late"], f"late of {what}", directory)) if "late" in keys else None
    return Stream(name, source=source, late=late, **texts)


def _query(name: str, entry: Entry, directory: Path) -> Query:
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
    )


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
