"""Streams and tables as values that check themselves: columns, event time, where rows come from and go to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from watersmeet.errors import InputError, TopologyError, did_you_mean
from watersmeet.query.windows import AsOf, parse_duration
from watersmeet.topology.names import check_name
from watersmeet.topology.payload import Payload
from watersmeet.topology.schema import parse_schema

_TIMESTAMP_TYPES = ("timestamp", "timestamp_ntz", "timestamp_ltz")


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
    read_of: str = ""  # the table that it is read of once more, for queries that begin while others run

    def __post_init__(self) -> None:
        check_name(self.read_of or self.name, "table")
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
