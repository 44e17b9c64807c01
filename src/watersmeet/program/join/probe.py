"""The multi-way probe: new rows of a head look up the windows of the others, one after the other.

Every row is visible over an interval [ts, end] (see query.windows), and a combination is an answer exactly if its
latest ts is not after its earliest end; that holds pair by pair along the way, so each probe can discard at once.
Row numbers are carried and columns fetched last. Work is cut into pieces, so memory is bounded whatever the skew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
import pyarrow as pa

from watersmeet.program.storage.segments import I64, KEY, ORDINAL, TS, U64, class_column, column
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window

LATEST = "#latest"  # int64, the latest ts of a partial combination that moves between stages
LIMIT = "#limit"  # int64, its earliest end

NEVER = int(np.iinfo(np.int64).max)
LONG_AGO = int(np.iinfo(np.int64).min)
_PIECE_ROWS = 1 << 18  # partial combinations probed at once
_PIECE_PAIRS = 1 << 20  # candidate pairs expanded at once
_LONG_RUN = 8  # hits of one key in one segment from which it pays to narrow them by time first


@dataclass(frozen=True, slots=True)
class Released:
    """What a batch adds to a stream with a ROWS window: how many rows came before, and the sorted ts of its own."""

    before: int
    ts: I64


Ends = Callable[[I64], I64]


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of one segment that lie in this bucket, sorted by (key, ts).

    Ends are computed for the rows that are hit, never for a whole window.
    """

    keys: U64
    ts: I64
    ends: Ends  # the inclusive end of visibility of the rows with these numbers
    rows: pa.Table
    span: tuple[int, int]  # from the first instant at which any row is visible to the last
    narrows: bool = True  # whether ends never fall within a key, so that long runs can be narrowed by time


@dataclass(frozen=True)
class Relation:
    """Runs under one numbering of rows."""

    runs: tuple[Run, ...]
    offsets: I64 = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(run for run in self.runs if len(run.keys)))
        object.__setattr__(self, "offsets", np.cumsum([0, *(len(run.keys) for run in self.runs)]))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def gather(self, positions: I64, names: Sequence[str]) -> list[pa.Array]:
        """The named columns of the rows at these positions, in their order."""
        if not names:
            return []
        if len(self.runs) == 1:
            taken = self.runs[0].rows.select(names).take(pa.array(positions))
        else:
            run_of = (np.searchsorted(self.offsets, positions, "right") - 1).astype(np.uint16)
            order = np.argsort(run_of, kind="stable")
            edges = np.searchsorted(run_of[order], np.arange(len(self.runs) + 1))
            pieces = [
                run.rows.select(names).take(pa.array(positions[order[low:high]] - offset))
                for run, offset, low, high in zip(self.runs, self.offsets, edges, edges[1:], strict=False)
                if low < high
            ]
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            taken = pa.concat_tables(pieces).combine_chunks().take(pa.array(back))
        return [_one_chunk(taken.column(name)) for name in names]


@dataclass(frozen=True, slots=True)
class Lookup:
    """One probe of a stage: the relation to look in, and for each class to compare, the bound relation that has it."""

    relation: Relation
    checks: tuple[tuple[int, int], ...] = ()  # (class, number of the bound relation: 0 is the carrier)


@dataclass(frozen=True, slots=True)
class Combinations:
    """Partial combinations: a row number in each bound relation, the carrier first."""

    keys: U64
    latest: I64
    limit: I64
    rows: tuple[I64, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, which: I64 | slice) -> "Combinations":
        return Combinations(
            self.keys[which], self.latest[which], self.limit[which], tuple(rows[which] for rows in self.rows)
        )


def window_run(window: Window, rows: pa.Table, min_ts: int, max_ts: int, released: Released | None = None) -> Run:
    """A bucket's slice of a segment whose timestamps lie between the two given."""
    ts = column(rows, TS)
    match window:
        case Range(window_us):
            ends: Ends = lambda which: ts[which] + window_us  # noqa: E731
            last = max_ts + window_us
        case Tumble(window_us):
            ends = lambda which: (ts[which] // window_us + 1) * window_us - 1  # noqa: E731
            last = (max_ts // window_us + 1) * window_us - 1
        case Unbounded():
            ends = lambda which: np.full(len(which), NEVER)  # noqa: E731
            last = NEVER
        case Rows(count):
            assert released is not None, "rows of a ROWS window are taken in order"
            ends = _RowsEnds(column(rows, ORDINAL), count, released)
            last = NEVER
        case _:
            assert_never(window)
    return Run(column(rows, KEY), ts, ends, rows, (min_ts, last))


@dataclass(frozen=True, slots=True)
class _RowsEnds:
    """A row leaves ROWS n just before its n-th successor, which came earlier, comes now, or is yet to come."""

    ordinals: I64
    count: int
    released: Released

    def __call__(self, which: I64) -> I64:
        successor = self.ordinals[which] + (self.count - self.released.before)
        ends = np.full(len(which), NEVER)
        now = (successor >= 0) & (successor < len(self.released.ts))
        ends[now] = self.released.ts[successor[now]] - 1
        ends[successor < 0] = LONG_AGO
        return ends


def carried_run(rows: pa.Table) -> Run:
    """Partial combinations that came from an earlier stage, as a carrier."""
    limit = column(rows, LIMIT)
    return Run(column(rows, KEY), column(rows, LATEST), lambda which: limit[which], rows, (LONG_AGO, NEVER))


def join(carrier: Relation, lookups: Sequence[Lookup]) -> Iterator[Combinations]:
    """All combinations of the carrier's rows with one row of each lookup, in pieces."""
    for run, offset in zip(carrier.runs, carrier.offsets, strict=False):
        for low in range(0, len(run.keys), _PIECE_ROWS):
            piece = slice(low, min(low + _PIECE_ROWS, len(run.keys)))
            rows = np.arange(piece.start, piece.stop) + offset
            ends = run.ends(np.arange(piece.start, piece.stop))
            start = Combinations(run.keys[piece], run.ts[piece], ends, (rows,))
            yield from _extend(start, lookups, (carrier,))


def _extend(partial: Combinations, lookups: Sequence[Lookup], bound: tuple[Relation, ...]) -> Iterator[Combinations]:
    if not len(partial):
        return
    if len(bound) > len(lookups):
        yield partial
        return
    lookup = lookups[len(bound) - 1]
    first, last = partial.latest.min(), partial.limit.max()
    hits = [
        _find(run, int(offset), partial)
        for run, offset in zip(lookup.relation.runs, lookup.relation.offsets, strict=False)
        if run.span[1] >= first and run.span[0] <= last
    ]
    for low, high in _cut(partial, hits):
        found = [(hit, *_pairs(hit, low, high)) for hit in hits]
        left = np.concatenate([ours for _, ours, _ in found])
        right = np.concatenate([theirs + hit.offset for hit, _, theirs in found])
        ts = np.concatenate([hit.run.ts[theirs] for hit, _, theirs in found])
        ends = np.concatenate([hit.run.ends(theirs) for hit, _, theirs in found])
        latest = np.maximum(partial.latest[left], ts)
        limit = np.minimum(partial.limit[left], ends)
        extended = Combinations(partial.keys[left], latest, limit, (*(rows[left] for rows in partial.rows), right))
        keep = latest <= limit
        for number, owner in lookup.checks:
            name = class_column(number)
            ours = bound[owner].gather(extended.rows[owner], [name])[0].to_numpy()
            theirs = lookup.relation.gather(right, [name])[0].to_numpy()
            keep &= ours == theirs
        if not keep.all():
            extended = extended.take(np.flatnonzero(keep))
        yield from _extend(extended, lookups, (*bound, lookup.relation))


@dataclass(frozen=True, slots=True)
class _Hits:
    """Which partial combinations have hits in a run, and the range of its rows that each of them hits."""

    run: Run
    offset: int
    which: I64
    start: I64
    stop: I64


def _find(run: Run, offset: int, partial: Combinations) -> _Hits:
    start = np.searchsorted(run.keys, partial.keys)
    which = np.flatnonzero(run.keys[np.minimum(start, len(run.keys) - 1)] == partial.keys)
    start = start[which]
    stop = np.searchsorted(run.keys, partial.keys[which], "right")
    long = np.flatnonzero(stop - start > _LONG_RUN)
    if len(long) and run.narrows:
        rows = which[long]
        start[long] = _bisect(run.ends, start[long], stop[long], partial.latest[rows])
        after = partial.limit[rows] + (partial.limit[rows] < NEVER)
        stop[long] = _bisect(lambda where: run.ts[where], start[long], stop[long], after)
    return _Hits(run, offset, which, start, stop)


def _bisect(values: Ends, low: I64, high: I64, bound: I64) -> I64:
    """The first place in [low, high) whose value is at least the bound, for many ranges at once."""
    low, high = low.copy(), high.copy()
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) >> 1
        below = values(middle) < bound[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
        open_ = open_[low[open_] < high[open_]]
    return low


def _cut(partial: Combinations, hits: Sequence[_Hits]) -> Iterator[tuple[int, int]]:
    """Ranges of partial combinations that expand to a bounded number of pairs each."""
    pairs = np.zeros(len(partial) + 1, np.int64)
    for hit in hits:
        pairs[hit.which + 1] += hit.stop - hit.start
    total = np.cumsum(pairs)
    low = 0
    while total[low] < total[-1]:
        high = int(np.searchsorted(total, total[low] + _PIECE_PAIRS, "right")) - 1
        high = max(high, low + 1)
        if total[high] > total[low]:
            yield low, high
        low = high


def _pairs(hit: _Hits, low: int, high: int) -> tuple[I64, I64]:
    """Expand the hit ranges of partial combinations low..high to pairs of (partial, row of the run)."""
    inside = slice(*np.searchsorted(hit.which, (low, high)))
    which, start = hit.which[inside], hit.start[inside]
    count = hit.stop[inside] - start
    if len(count) and count.min() == count.max() == 1:
        return which, start
    first = np.cumsum(count) - count
    return np.repeat(which, count), np.arange(count.sum()) + np.repeat(start - first, count)


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
