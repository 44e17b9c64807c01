"""What is known about streams: rates, sizes, how values spread; each figure with its origin, confidence and age.

Given in the topology, estimated from a sample of the source or observed by a running query: the same values.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

BATCH_ROWS = (1, 10, 100, 1_000, 10_000)  # the batches for which it is known what a value takes on a link

BytesByBatch = tuple[float, float, float, float, float]  # of a value in batches of so many rows


class Origin(StrEnum):
    """Where a figure comes from."""

    GIVEN = "given"
    ESTIMATED = "estimated"
    OBSERVED = "observed"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Number:
    """A figure, how far it can be trusted (0 to 1) and when it was taken (seconds since 1970; None is always)."""

    value: float
    origin: Origin = Origin.GIVEN
    confidence: float = 1.0
    taken_at: float | None = None

    def age_s(self, now: float | None = None) -> float | None:
        """How old the figure is."""
        return None if self.taken_at is None else max(0.0, (time.time() if now is None else now) - self.taken_at)


@dataclass(frozen=True, slots=True)
class Bin:
    """The values from `low` to `high`: how many different ones occur, and which share of the rows has them."""

    low: int
    high: int
    distinct: float
    share: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """How rows spread over a column's values, in ascending bins that do not overlap; a heavy hitter has its own bin.

    Values are those that keys are compared by: 64-bit integers.
    """

    bins: tuple[Bin, ...]
    origin: Origin = Origin.GIVEN
    confidence: float = 1.0
    taken_at: float | None = None

    def __post_init__(self) -> None:
        for one, other in zip(self.bins, self.bins[1:], strict=False):
            if one.high >= other.low:
                raise ValueError(f"the bins {one.low}..{one.high} and {other.low}..{other.high} are not in order")
        for bin_ in self.bins:
            if bin_.low > bin_.high or bin_.distinct < 0 or bin_.share < 0:
                raise ValueError(f"not a bin: {bin_}")
        if self.bins and not 0.99 < sum(bin_.share for bin_ in self.bins) < 1.01:
            raise ValueError("the shares of a histogram must add up to 1")


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """One column: its different values, how they spread, and the bytes a value takes on a link.

    `sizes` are for batches of 1 to 10,000 rows: larger batches compress better. They are those of rows in any order;
    `in_order` those of rows as they come, which are smaller where values rise with time.
    """

    distinct: Number | None = None
    histogram: Histogram | None = None
    sizes: BytesByBatch | None = None
    in_order: BytesByBatch | None = None
    nulls: float | None = None  # the share of rows that have NULL there


@dataclass(frozen=True, slots=True)
class Sample:
    """All rows of a stream over a while, with what joins compare of them (see stats.samples)."""

    rows: bytes = field(repr=False)
    is_whole: bool = False  # whether the stream has no other rows


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream: rows a second, bytes a row takes on a link, and its columns by name; of a table, its rows.

    `batch_interval` is the event time in seconds that its rows arrive together for: files of ten minutes have 600.
    `busy` tells how rows come: by the length of an interval in seconds, the share of intervals that have any.
    """

    rate: Number | None = None
    row_bytes: Number | None = None
    columns: Mapping[str, ColumnStats] = field(default_factory=dict)
    batch_interval: Number | None = None
    rows: Number | None = None  # how many a table has
    busy: Mapping[float, float] = field(default_factory=dict)
    sample: Sample | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """What is known about all streams, by name; and the share of rows or combinations that pass each predicate."""

    streams: Mapping[str, StreamStats] = field(default_factory=dict)
    selectivities: Mapping[str, Number] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()  # streams of a file of statistics that the topology does not have

    def stream(self, name: str) -> StreamStats:
        return self.streams.get(name, StreamStats())
