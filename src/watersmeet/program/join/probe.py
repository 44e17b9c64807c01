"""The multi-way probe: rows of a carrier look up one relation after the other (sort-merge index probe).

Every row is visible over an interval (see query.windows), and a combination is an answer exactly if its latest begin is
not after its earliest end; that holds pair by pair along the way, so each probe can discard at once. Row numbers are
carried and columns fetched last. Work is cut into chunks, so memory is bounded whatever the skew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.program.join import kernels
from watersmeet.program.join.kernels import LONG_AGO, NEVER
from watersmeet.program.join.order import given_order, probe_order, reordered
from watersmeet.program.storage.segments import I64, KEY, U64, class_column, column
from watersmeet.program.storage.sizes import take_rows, united

LATEST = "#latest"  # int64, the latest begin of a partial combination that moves to another key
LIMIT = "#limit"  # int64, its earliest end

_CHUNK_ROWS = 1 << 18  # partial combinations probed at once
_CHUNK_PAIRS = 1 << 20  # candidate pairs expanded at once
_NO_TIMES: I64 = np.empty(0, np.int64)
_NO_BITS: U64 = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Visibility:
    """From when to when rows are visible, as `kernels` compute it: `begin = at * scale + offset`, and an end."""

    at: I64
    scale: int = 1
    offset: int = 0
    kind: int = kernels.EXPLICIT
    length: int = 1
    high: I64 = field(default_factory=lambda: _NO_TIMES)
    ordinals: I64 = field(default_factory=lambda: _NO_TIMES)
    clock: I64 = field(default_factory=lambda: _NO_TIMES)
    base: int = 0

    @property
    def rule(self) -> tuple[object, ...]:
        """The arguments of the kernels."""
        return (
            *(self.at, self.scale, self.offset, self.kind, self.length),
            *(self.high, self.ordinals, self.clock, self.base),
        )

    def begins(self) -> I64:
        """When each row becomes visible."""
        return self.at if self.scale == 1 and not self.offset else self.at * self.scale + self.offset

    def ends(self, places: I64 | None = None) -> I64:
        """When rows are visible for the last time."""
        which = np.arange(len(self.at)) if places is None else places
        ends: I64 = kernels.ends_of(which, *self.rule)
        return ends


def intervals(low: I64, high: I64) -> Visibility:
    """Rows whose begin and end are both given."""
    return Visibility(low, high=high)


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of one segment that are in this bucket, sorted by (key, time)."""

    keys: U64
    visible: Visibility
    rows: pa.Table
    span: tuple[int, int]  # from the first instant at which any row is visible to the last
    narrows: bool = True  # whether begins and ends never fall within a key, so that long ranges are narrowed by time
    bits: U64 = field(default_factory=lambda: _NO_BITS)  # of selections
    bit: int = 0  # the one that rows must have; 0 takes all

    @property
    def accepted(self) -> I64:
        """The places of all rows that have the bit."""
        if not self.bit:
            return np.arange(len(self.keys))
        return np.flatnonzero(self.bits & np.uint64(self.bit))


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

    def accepts(self, positions: I64) -> npt.NDArray[np.bool_]:
        """Which of the rows at these positions have the bit that is asked for."""
        mask = np.ones(len(positions), bool)
        for run, offset in zip(self.runs, self.offsets, strict=False):
            if run.bit:
                here = np.flatnonzero((positions >= offset) & (positions < offset + len(run.keys)))
                mask[here] = (run.bits[positions[here] - int(offset)] & np.uint64(run.bit)) != 0
        return mask

    def gather(self, positions: I64, names: Sequence[str]) -> list[pa.Array]:
        """The named columns of the rows at these positions, in their order."""
        if not names:
            return []
        if len(self.runs) == 1:
            if len(positions) == len(self) and (positions == np.arange(len(self))).all():  # all rows as they are
                return [_one_chunk(self.runs[0].rows.column(name)) for name in names]
            taken = take_rows(self.runs[0].rows.select(list(names)), pa.array(positions))
            return [_one_chunk(taken.column(name)) for name in names]
        columns = {name: self._numbers(positions, name) for name in names}
        rest = [name for name, values in columns.items() if values is None]
        if rest:
            run_of = (np.searchsorted(self.offsets, positions, "right") - 1).astype(np.uint16)
            order = np.argsort(run_of, kind="stable")
            edges = np.searchsorted(run_of[order], np.arange(len(self.runs) + 1))
            pieces = [
                take_rows(run.rows.select(rest), pa.array(positions[order[low:high]] - offset))
                for run, offset, low, high in zip(self.runs, self.offsets, edges, edges[1:], strict=False)
                if low < high
            ]
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            taken = take_rows(united(pieces).combine_chunks(), pa.array(back))
            columns |= {name: _one_chunk(taken.column(name)) for name in rest}
        return [columns[name] for name in names]

    def _numbers(self, positions: I64, name: str) -> pa.Array | None:
        """A column of fixed width without NULLs, gathered without a detour; None if it is no such column."""
        kind = self.runs[0].rows.schema.field(name).type
        view = _VIEWS.get(kind.bit_width) if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind) else None
        if view is None or any(run.rows.column(name).null_count for run in self.runs):
            return None
        out = np.empty(len(positions), view)
        for run, offset in zip(self.runs, self.offsets, strict=False):
            values = _one_chunk(run.rows.column(name))
            numbers = np.frombuffer(values.buffers()[1], view, len(values) + values.offset)[values.offset :]
            kernels.gather(out, numbers, positions, int(offset))
        return pa.Array.from_buffers(kind, len(out), [None, pa.py_buffer(out)])


_VIEWS = {64: np.int64, 32: np.int32}


@dataclass(frozen=True, slots=True)
class RelationLookup:
    """One probe: the relation to look in, and for each class to compare, the bound relation that has it."""

    relation: Relation
    checks: tuple[tuple[int, int], ...] = ()  # (class, number of the bound relation: 0 is the carrier)
    accepts: "Callable[[Sequence[Relation], Sequence[I64]], npt.NDArray[np.bool_]] | None" = None  # which rows stay


@dataclass(frozen=True, slots=True)
class Combinations:
    """Partial combinations: a row number in each bound relation, the carrier first."""

    keys: U64
    latest: I64
    limit: I64
    rows: tuple[I64, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, which: I64) -> "Combinations":
        return Combinations(
            self.keys[which], self.latest[which], self.limit[which], tuple(rows[which] for rows in self.rows)
        )

    def with_rows(self, rows: tuple[I64, ...]) -> "Combinations":
        return Combinations(self.keys, self.latest, self.limit, rows)


def carried_run(rows: pa.Table) -> Run:
    """Partial combinations that came from an earlier stage, as a carrier."""
    visible = intervals(column(rows, LATEST), column(rows, LIMIT))
    return Run(column(rows, KEY), visible, rows, (LONG_AGO, NEVER))


def join(carrier: Relation, lookups: Sequence[RelationLookup]) -> Iterator[Combinations]:
    """All combinations of the carrier's rows with one row of each lookup, in chunks."""
    for run, offset in zip(carrier.runs, carrier.offsets, strict=False):
        accepted = run.accepted
        for low in range(0, len(accepted), _CHUNK_ROWS):
            places = accepted[low : low + _CHUNK_ROWS]
            begins = run.visible.at[places] * run.visible.scale + run.visible.offset
            start = Combinations(run.keys[places], begins, run.visible.ends(places), (places + offset,))
            if any(lookup.accepts is not None for lookup in lookups):  # comparisons are for the order of the plan
                yield from _extend(start, lookups, (carrier,))
                continue
            order = probe_order(start, [lookup.relation for lookup in lookups])
            for found in _extend(start, _arranged(lookups, order), (carrier,)):
                yield given_order(found, order)


def _arranged(lookups: Sequence[RelationLookup], order: Sequence[int]) -> list[RelationLookup]:
    checks = reordered([[(number, owner, number) for number, owner in lookup.checks] for lookup in lookups], order)
    return [
        RelationLookup(lookups[number - 1].relation, tuple((of, owner) for of, owner, _ in own))
        for number, own in zip(order, checks, strict=True)
    ]


def _extend(
    partial: Combinations, lookups: Sequence[RelationLookup], bound: tuple[Relation, ...]
) -> Iterator[Combinations]:
    if not len(partial):
        return
    if len(bound) > len(lookups):
        yield partial
        return
    lookup = lookups[len(bound) - 1]
    first, last = partial.latest.min(), partial.limit.max()
    hits = []
    for run, offset in zip(lookup.relation.runs, lookup.relation.offsets, strict=False):
        if run.span[1] >= first and run.span[0] <= last:
            found = kernels.ranges(
                partial.keys, partial.latest, partial.limit, run.keys, run.narrows, *run.visible.rule
            )
            hits.append((run, int(offset), *found))
    for low, high in cut(len(partial), hits):
        found = [
            kernels.expand(
                low, high, start, stop, partial.latest, partial.limit, run.bits, np.uint64(run.bit), *run.visible.rule
            )
            for run, _, start, stop in hits
        ]
        left, right, latest, limit = in_order(found, [offset for _, offset, _, _ in hits])
        extended = Combinations(partial.keys[left], latest, limit, (*(rows[left] for rows in partial.rows), right))
        if lookup.checks and len(left):
            keep = np.ones(len(left), bool)
            for number, owner in lookup.checks:
                name = class_column(number)
                ours = bound[owner].gather(extended.rows[owner], [name])[0].to_numpy()
                theirs = lookup.relation.gather(right, [name])[0].to_numpy()
                keep &= ours == theirs
            if not keep.all():
                extended = extended.take(np.flatnonzero(keep))
        if lookup.accepts is not None and len(extended):
            accepted = lookup.accepts((*bound, lookup.relation), extended.rows)
            extended = extended if accepted.all() else extended.take(np.flatnonzero(accepted))
        yield from _extend(extended, lookups, (*bound, lookup.relation))


def in_order(found: Sequence[tuple[Any, ...]], offsets: Sequence[int]) -> tuple[Any, ...]:
    """The pairs of all runs in the order of the probing rows, so that their keys still rise."""
    parts = [
        (pairs[0], pairs[1] + offset, *pairs[2:]) for pairs, offset in zip(found, offsets, strict=True) if len(pairs[0])
    ]
    if not parts:
        return found[0] if found else (_NO_TIMES,) * 4
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(values) for values in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return tuple(values[order] for values in columns)


def cut(size: int, hits: Sequence[tuple[Run, int, I64, I64]]) -> Iterator[tuple[int, int]]:
    """Ranges of partial combinations that expand to a bounded number of pairs each."""
    pairs = np.zeros(size + 1, np.int64)
    for _, _, start, stop in hits:
        pairs[1:] += stop - start
    total = np.cumsum(pairs)
    low = 0
    while total[low] < total[-1]:
        high = int(np.searchsorted(total, total[low] + _CHUNK_PAIRS, "right")) - 1
        high = max(high, low + 1)
        if total[high] > total[low]:
            yield low, high
        low = high


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
