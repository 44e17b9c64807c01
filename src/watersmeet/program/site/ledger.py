"""The state of a query as one frozen value, and every decision about it: watermarks, expiry, merging.

The ledger names the files that make up the windows after a batch. Whoever runs a batch reads the ledger of the batch
before, writes new files under new names, and replaces the ledger last: that replacement is the commit. A batch may have
one commit more, when its rows are taken and filed but not yet joined: from then on it can be finished without them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from watersmeet.plan.nodes import Key, MultiJoin
from watersmeet.program.storage.segments import ORDINAL, TS
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window

FAN_OUT = 4  # segments of one level that are merged into one of the next


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a segment, which holds the rows whose keys lie in a range."""

    path: str
    rows: int
    bytes: int
    low_key: int = 0
    high_key: int = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one window that came together: sorted files, their time and ordinal ranges, and how often merged."""

    parts: tuple[Part, ...]
    min_ts: int
    max_ts: int
    min_ordinal: int = -1
    max_ordinal: int = -1
    level: int = 0

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def low(self, axis: str) -> int:
        return self.min_ordinal if axis == ORDINAL else self.min_ts

    def high(self, axis: str) -> int:
        return self.max_ordinal if axis == ORDINAL else self.max_ts


@dataclass(frozen=True, slots=True)
class StreamState:
    """What is known of a stream so far."""

    max_ts: int | None = None
    rows: int = 0
    late: int = 0
    malformed: int = 0
    declared: int | None = None  # the instant it was taken to have reached while it was idle


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that outlives a batch; `index_name` names the windows, aliases name pending rows and ordinals."""

    batch: int = -1  # the last one that is finished
    taken_batch: int = -1  # the last one whose rows are filed, and what was told of them if it is not finished
    taken: tuple[dict[str, Any], ...] = ()
    streams: Mapping[str, StreamState] = field(default_factory=dict)
    windows: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    pending: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    ordinals: Mapping[str, int] = field(default_factory=dict)
    released_to: int | None = None  # rows before this instant have been joined, where the query takes rows in order
    seen: tuple[Segment, ...] = ()  # answers already given, for DISTINCT
    null_keys: int = 0
    rows_out: int = 0

    @property
    def segments(self) -> Iterable[Segment]:
        yield from (segment for segments in self.windows.values() for segment in segments)
        yield from (segment for segments in self.pending.values() for segment in segments)
        yield from self.seen

    @property
    def paths(self) -> frozenset[str]:
        """Every file the ledger depends on."""
        kept = frozenset(part.path for segment in self.segments for part in segment.parts)
        return kept.union(*(_files_told(told) for told in self.taken))

    @property
    def is_finished(self) -> bool:
        """Whether all rows that were taken have been joined."""
        return self.taken_batch <= self.batch

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> "Ledger":
        data = json.loads(text)
        return Ledger(
            **data
            | {
                "streams": {name: StreamState(**state) for name, state in data["streams"].items()},
                "windows": {name: segments_of(rows) for name, rows in data["windows"].items()},
                "pending": {name: segments_of(rows) for name, rows in data["pending"].items()},
                "seen": segments_of(data["seen"]),
                "taken_batch": data.get("taken_batch", data["batch"]),  # ledgers of old know only finished batches
                "taken": tuple(data.get("taken", ())),
            }
        )


def _files_told(told: Any) -> frozenset[str]:
    """The files in what a task has told, which is JSON: whatever is called a path or a file."""
    if isinstance(told, Mapping):
        named = (value for name, value in told.items() if name == "path" or name.endswith("_file"))
        return frozenset(named).union(*map(_files_told, told.values()))
    return frozenset().union(*map(_files_told, told)) if isinstance(told, list | tuple) else frozenset()


def segments_of(rows: Sequence[dict[str, Any]]) -> tuple[Segment, ...]:
    """Segments as they were written to JSON."""
    return tuple(Segment(**row | {"parts": tuple(Part(**part) for part in row["parts"])}) for row in rows)


def index_name(alias: str, key: Key) -> str:
    """The name of an alias's window indexed by a key."""
    return f"{alias}/{'-'.join(map(str, key))}"


def watermark(state: StreamState | None, delay_us: int) -> int | None:
    """Rows of the stream before this instant are late; None while nothing has come."""
    if state is None:
        return None
    seen = None if state.max_ts is None else state.max_ts - delay_us
    return max((mark for mark in (seen, state.declared) if mark is not None), default=None)


def lowest(watermarks: Iterable[int | None]) -> int | None:
    """The earliest of some watermarks; None as soon as one of them is unknown."""
    values = list(watermarks)
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None


def first_alive(
    plan: MultiJoin, alias: str, ledger: Ledger, watermarks: Mapping[str, int | None]
) -> tuple[str, int | None]:
    """The axis of an alias's window and the first place on it that a head still to come can reach.

    A new answer with an old row of this alias has a new tuple of another alias, whose ts is not before that alias's
    watermark; where rows are taken in order, no head comes before the instant they are released to.
    """
    if plan.ordered:
        horizon = ledger.released_to
    else:
        horizon = lowest(watermarks[scan.stream] for scan in plan.scans if scan.alias != alias)
    match plan.scan(alias).window:
        case Rows(count):
            return ORDINAL, ledger.ordinals.get(alias, 0) - count
        case Range(window_us):
            return TS, None if horizon is None else horizon - window_us
        case Tumble(window_us):
            return TS, None if horizon is None else horizon // window_us * window_us
        case Unbounded():
            return TS, None


def expire(segments: Iterable[Segment], axis: str, alive: int | None) -> tuple[Segment, ...]:
    """The segments that have any row that can still be reached."""
    return tuple(segment for segment in segments if alive is None or segment.high(axis) >= alive)


def _extent(window: Window) -> int | None:
    match window:
        case Range(window_us) | Tumble(window_us):
            return window_us
        case Rows(count):
            return count
        case Unbounded():
            return None


def choose_merges(
    segments: Sequence[Segment], window: Window, axis: str, alive: int | None
) -> tuple[tuple[Segment, ...], ...]:
    """Groups of segments to merge now, so that a window is few segments whatever its length.

    Level by level, as soon as there are FAN_OUT of them, but never into one that spans more than half the window:
    it would keep dead rows for too long. A segment from one large batch is rewritten by itself once mostly dead.
    """
    extent = _extent(window)
    groups: list[tuple[Segment, ...]] = []
    for level in sorted({segment.level for segment in segments}):
        same = sorted(
            (segment for segment in segments if segment.level == level), key=lambda segment: segment.low(axis)
        )
        while len(same) >= FAN_OUT:
            group, same = tuple(same[:FAN_OUT]), same[FAN_OUT:]
            span = max(segment.high(axis) for segment in group) - group[0].low(axis)
            if extent is None or span <= extent // 2 or _tiny(group):
                groups.append(group)
    merged = {segment for group in groups for segment in group}
    groups += [
        (segment,) for segment in segments if segment not in merged and _mostly_dead(segment, extent, axis, alive)
    ]
    return tuple(groups)


def _tiny(group: Sequence[Segment]) -> bool:
    """So few rows that reading them twice costs less than a file each."""
    return sum(segment.rows for segment in group) < 1_000


def _mostly_dead(segment: Segment, extent: int | None, axis: str, alive: int | None) -> bool:
    """Whether a segment longer than its window, from one large batch, has outlived most of its rows."""
    if alive is None or extent is None:
        return False
    dead, span = alive - segment.low(axis), segment.high(axis) - segment.low(axis) + 1
    return span > extent and dead * 2 > span


def merged_segment(group: Sequence[Segment], parts: Sequence[Part], axis: str, alive: int | None) -> Segment | None:
    """What a merge leaves, from the files it wrote."""
    parts = tuple(part for part in parts if part.rows)
    if not parts:
        return None
    low = min(s.low(axis) for s in group)
    low = low if alive is None else max(low, alive)
    whole = Segment(
        parts,
        min_ts=min(s.min_ts for s in group),
        max_ts=max(s.max_ts for s in group),
        min_ordinal=min(s.min_ordinal for s in group),
        max_ordinal=max(s.max_ordinal for s in group),
        level=max(s.level for s in group) + (len(group) > 1),
    )
    return replace(whole, min_ordinal=low) if axis == ORDINAL else replace(whole, min_ts=low)
