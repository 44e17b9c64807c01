"""DISTINCT: which evaluated answers were never given before, found by their hash and compared for real."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.join.values import same_values
from watersmeet.program.storage.segments import KEY, TS, bucket_bounds, class_column, column
from watersmeet.program.storage.shelf import Part, Segment, Shelf, bucket_rows
from watersmeet.program.storage.sizes import split_rows, take_rows

_HASH = class_column(0)
_MANY_HELD = 16  # files of held answers from which they are written anew as one


@dataclass(frozen=True)
class KeepUnseen:
    """File those of a micro-batch's answers that were never given before, one bucket a task."""

    shelf: Shelf
    buckets: int
    answers: tuple[str, ...]
    seen: tuple[Segment, ...]
    compared: tuple[str, ...]  # the columns that make answers different
    time: str | None = None  # the column of their times, by which the first of equal ones counts

    def __call__(self, bucket: int) -> list[Segment]:
        low, high = bucket_bounds(bucket, self.buckets)
        pieces = []
        for path in self.answers:
            table = self.shelf.get(path)
            keys = column(table, _HASH).view(np.uint64)
            inside = (keys >= np.uint64(low)) & (keys <= np.uint64(high))
            if inside.any():
                pieces.append(table.filter(pa.array(inside)))
        if not pieces:
            return []
        fresh = pa.concat_tables(pieces).combine_chunks()
        if self.time is not None:
            fresh = _first_of_each(fresh, self.time, self.compared)
        keys = column(fresh, _HASH).view(np.uint64)
        unseen = np.ones(len(keys), bool)
        for part in (part for segment in self.seen for part in segment.parts):
            given = bucket_rows(self.shelf, part, bucket, self.buckets)
            if given is None:
                continue
            start = np.searchsorted(column(given, KEY), keys, "left")
            count = np.searchsorted(column(given, KEY), keys, "right") - start
            left = np.repeat(np.arange(len(keys)), count)
            right = np.arange(count.sum()) + np.repeat(start - (np.cumsum(count) - count), count)
            same = np.ones(len(left), bool)
            for name in self.compared:
                ours = take_rows(fresh.select([name]), pa.array(left)).column(0)
                same &= same_values(ours, take_rows(given.select([name]), pa.array(right)).column(0))
            unseen[left[same]] = False
        if not unseen.any():
            return []
        rows = fresh.filter(pa.array(unseen))
        keys = column(rows, _HASH).view(np.uint64)
        rows = rows.drop_columns([_HASH]).append_column(KEY, pa.array(keys))
        rows = rows.append_column(TS, pa.array(np.zeros(len(keys), np.int64)))
        rows = take_rows(rows, pa.array(np.argsort(keys, kind="stable")))
        parts = [self.shelf.put("seen", some) for some in split_rows(rows)]
        return [Segment((Part(part.path, part.rows, part.bytes, low, high),), 0, 0) for part in parts]


def _first_of_each(rows: pa.Table, time: str, compared: Sequence[str]) -> pa.Table:
    """The first in time of rows that are equal; rows of one hash that are not are told apart in further passes."""
    rows = take_rows(rows, pa.array(np.lexsort((column(rows, time), column(rows, _HASH)))))
    keys, kept = column(rows, _HASH), np.zeros(rows.num_rows, bool)
    left = np.arange(rows.num_rows)
    while len(left):
        starts = np.flatnonzero(np.diff(keys[left], prepend=keys[left[0]] - 1))
        first = np.repeat(left[starts], np.diff(np.append(starts, len(left))))
        kept[left[starts]] = True
        same = np.ones(len(left), bool)
        for name in compared:
            ours, others = (take_rows(rows.select([name]), pa.array(places)).column(0) for places in (left, first))
            same &= same_values(ours, others)
        left = left[~same]
    return rows.filter(pa.array(kept))


@dataclass(frozen=True)
class Held:
    """Answers that wait until no earlier one can come, so that the first of equal ones is known by its time."""

    shelf: Shelf
    time: str  # the column of their times

    def released(
        self, held: tuple[Segment, ...], answers: Sequence[str], until_us: int
    ) -> tuple[tuple[Segment, ...], pa.Table | None]:
        """What is held on with further answers, and those before an instant."""
        kept: list[Segment] = []
        due: list[pa.Table] = []
        tables: list[tuple[pa.Table, Segment | None]] = [(self.shelf.get(path), None) for path in answers]
        tables += [
            (self.shelf.get(part.path), segment)
            for segment in held
            if segment.min_ts < until_us
            for part in segment.parts
        ]
        for table, segment in tables:
            is_due = pa.array(column(table, self.time) < until_us)
            due.append(table.filter(is_due))
            rest = table.filter(pc.invert(is_due))
            if segment is not None and rest.num_rows == table.num_rows:
                kept.append(segment)
            elif rest.num_rows:
                kept.append(self._segment([rest]))
        kept += [segment for segment in held if segment.min_ts >= until_us]
        if len(kept) > _MANY_HELD:
            kept = [self._segment([self.shelf.get(part.path) for segment in kept for part in segment.parts])]
        found = pa.concat_tables(due) if due else None
        return tuple(kept), found if found is not None and found.num_rows else None

    def _segment(self, tables: Sequence[pa.Table]) -> Segment:
        table = pa.concat_tables(tables)
        times = column(table, self.time)
        return Segment((self.shelf.put("held", table),), int(times.min()), int(times.max()))
