"""The state of a site as one frozen value: whoever makes it durable has made the site durable.

The ledger names every file of the state. A micro-batch is *ingested* by a first commit, when its rows are filed, and
*completed* by a second one, when they have been joined; in between Spark may plan and ingest the next one. What a
micro-batch has for other sites and for sinks is in the ledger first and delivered after that, as often as need be:
parcels and answers are numbered, so whoever takes them takes each once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from watersmeet.program.site.filing import Made
from watersmeet.program.storage.codec import from_json, to_json
from watersmeet.program.storage.shelf import Part, Segment, Shelf

# Of checkpoints: 6 had other Bloom filters, 4 had intermediate results that comparisons had not been applied to, 3 one
# version of each plan, 2 no checksums, 1 a ledger for one site and another for several.
FORMAT = 7


@dataclass(frozen=True, slots=True)
class StreamState:
    """What is known of a stream so far."""

    max_ts: int | None = None
    rows: int = 0
    late: int = 0
    malformed: int = 0
    declared: int | None = None  # the instant it was taken to have reached while it was idle
    late_by_us: int = 0  # the most that a late row was behind the watermark


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went over one link for one purpose."""

    bytes: int = 0
    batches: int = 0
    tuples: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.bytes + other.bytes, self.batches + other.batches, self.tuples + other.tuples)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A parcel that has not been acknowledged yet."""

    number: int
    path: str
    bytes: int


@dataclass(frozen=True)
class LinkState:
    """What is known about the link to one other site."""

    number: int = 0  # of the last parcel sent
    reported: Mapping[str, int] = field(default_factory=dict)  # the watermark last reported of each flow
    described: tuple[str, ...] = ()  # flows whose schema has been sent
    outbox: tuple[Outgoing, ...] = ()
    traffic: Mapping[str, Traffic] = field(default_factory=dict)  # by flow; watermarks alone under their purpose
    checksum: int = 0  # of the last parcel, which the next one carries
    notes: tuple[str, ...] = ()  # about the next revision, which the next parcel carries

    @property
    def released(self) -> int:
        """The last parcel that is not kept any more."""
        return self.outbox[0].number - 1 if self.outbox else self.number


@dataclass(frozen=True, slots=True)
class PeerStart:
    """A start of another site, by the run of its checkpoint and how often that was started."""

    run: str
    epoch: int


@dataclass(frozen=True)
class Ingested:
    """What a task found among new rows of one stream."""

    stream: str
    rows: int
    late: int = 0
    malformed: int = 0
    max_ts: int | None = None
    null_keys: Mapping[str, int] = field(default_factory=dict)  # rows that pass an alias's filters without a key
    made: Made | None = None
    pending: Segment | None = None  # rows that wait for their order
    central: Traffic = Traffic()  # what shipping these rows whole would take
    late_file: str | None = None
    malformed_file: str | None = None
    failed: Mapping[str, int] = field(default_factory=dict)  # by query: rows for which a key or filter fails
    failed_file: str | None = None  # which they are and why, for queries that do not just leave them out
    observed: str = ""  # a sketch of the rows, as JSON
    late_by_us: int = 0  # the most that a late row was behind the watermark
    shared: tuple[Made, ...] = ()  # records that queries share

    @property
    def paths(self) -> Iterable[str]:
        """The files that hold what was found."""
        yield from (filed.results for filed in self.shared if filed.results is not None)
        if self.made is not None:
            yield from (part.path for segment in self.made.segments.values() for part in segment.parts)
            yield from (payload.path for payload in self.made.payloads.values())
        yield from (part.path for part in (self.pending.parts if self.pending else ()))
        yield from (path for path in (self.late_file, self.malformed_file, self.failed_file) if path is not None)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of one query from one micro-batch, until its sink has them."""

    batch: int  # of the site, by which a sink knows what it has
    paths: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # in the files, in the answers
    rows: int
    first: int | None = None  # of its rows in its only file, where answers of several queries are in it

    @property
    def span(self) -> tuple[int, int] | None:
        """Which rows of its file are its own, by the first and how many; None is all of all files."""
        return None if self.first is None else (self.first, self.rows)

    def tables(self, shelf: Shelf) -> list[pa.Table]:
        """Its rows, as they are in the files."""
        tables = [shelf.get(path) for path in self.paths]
        return tables if self.span is None else [table.slice(*self.span) for table in tables]


@dataclass(frozen=True)
class SiteLedger:
    """Everything of a site that outlives a micro-batch."""

    epoch: int = 0  # how often the site was started on this checkpoint
    token: str = ""  # of its last start: a copy of the checkpoint that is started has another
    writer: str = ""  # of the last start that has taken over all sinks
    number: int = -1  # of the site's last micro-batch
    batch: int = -1  # the last micro-batch of the site's own streams whose rows are joined
    ingested_batch: int = -1  # the last one whose rows are filed
    ingested: tuple[Ingested, ...] = ()  # what was found in it, while it is not joined
    inputs: tuple[Part, ...] = ()  # names of files that were read, where we list them and not Spark
    streams: Mapping[str, StreamState] = field(default_factory=dict)
    relations: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)  # rows kept, by flow and key
    clocks: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    pending: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)  # rows that wait for their order
    ordinals: Mapping[str, int] = field(default_factory=dict)  # rows counted so far, by clock
    watermarks: Mapping[str, int] = field(default_factory=dict)  # of each flow here
    received: Mapping[str, int] = field(default_factory=dict)  # the last parcel taken from each site
    checksums: Mapping[str, int] = field(default_factory=dict)  # and its checksum
    peers: Mapping[str, str] = field(default_factory=dict)  # the run of each site whose parcels were taken
    readers: Mapping[str, PeerStart] = field(
        default_factory=dict
    )  # the start of each site that has acknowledged parcels
    schemas: Mapping[str, str] = field(default_factory=dict)  # of inbound flows
    links: Mapping[str, LinkState] = field(default_factory=dict)
    central: Mapping[str, Traffic] = field(default_factory=dict)  # what shipping each stream whole would take
    seen: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)  # by definition with DISTINCT, answers given
    groups: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)  # partial records, of queries with groups
    closed: Mapping[str, int] = field(default_factory=dict)  # by query: windows that end up to here are answered
    matching: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)  # rows of outer joins that are undecided
    undelivered: Mapping[str, tuple[Answers, ...]] = field(default_factory=dict)  # by query
    null_keys: Mapping[str, int] = field(default_factory=dict)  # by query
    rows_out: Mapping[str, int] = field(default_factory=dict)  # by query
    failed: Mapping[str, int] = field(default_factory=dict)  # by query: rows and combinations whose expressions fail
    matched: Mapping[str, int] = field(default_factory=dict)  # combinations that joins have found, by flow
    versions: str = ""  # where the versions of plans are (see program.site.versions); none where they do not change
    log: Mapping[str, int] = field(default_factory=dict)  # checksums of what of the runtime's own log it relies on
    hold_us: int | None = None  # rows after this instant wait until a new revision is adopted

    @property
    def segments(self) -> Iterable[Segment]:
        for kept in (self.relations, self.clocks, self.pending, self.seen, self.groups, self.matching):
            yield from (segment for segments in kept.values() for segment in segments)

    @property
    def paths(self) -> frozenset[str]:
        """Everything on the shelf that the ledger depends on."""
        return frozenset(
            (
                *(part.path for segment in self.segments for part in segment.parts),
                *(parcel.path for link in self.links.values() for parcel in link.outbox),
                *(path for found in self.ingested for path in found.paths),
                *(path for waiting in self.undelivered.values() for answers in waiting for path in answers.paths),
                *(part.path for part in self.inputs),
                *((self.versions,) if self.versions else ()),
            )
        )

    @property
    def is_complete(self) -> bool:
        """Whether all rows that were ingested have been joined."""
        return self.ingested_batch <= self.batch and not self.ingested

    @property
    def outbox_bytes(self) -> int:
        return sum(parcel.bytes for link in self.links.values() for parcel in link.outbox)

    def to_json(self) -> str:
        return to_json(self)

    @staticmethod
    def from_json(text: str) -> "SiteLedger":
        return from_json(SiteLedger, text)


def failed_counts(ingested: SiteLedger, completed: SiteLedger) -> dict[str, int]:
    """By query, the rows and combinations of one micro-batch for which an expression fails."""
    counts = {query: count - ingested.failed.get(query, 0) for query, count in completed.failed.items()}
    for found in ingested.ingested:
        for query, count in found.failed.items():
            counts[query] = counts.get(query, 0) + count
    return {query: count for query, count in sorted(counts.items()) if count}


def watermark(state: StreamState | None, delay_us: int) -> int | None:
    """Rows of the stream before this instant are late; None while nothing has come."""
    if state is None:
        return None
    seen = None if state.max_ts is None else state.max_ts - delay_us
    return max((mark for mark in (seen, state.declared) if mark is not None), default=None)
