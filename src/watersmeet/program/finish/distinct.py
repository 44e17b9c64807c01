"""DISTINCT: which evaluated answers were never given before, found by their hash and compared for real."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.program.join.values import same_values
from watersmeet.program.site.filing import bucket_rows
from watersmeet.program.storage.segments import KEY, TS, bucket_bounds, class_column, column
from watersmeet.program.storage.shelf import Part, Segment, Shelf
from watersmeet.program.storage.sizes import split_rows, take_rows

_HASH = class_column(0)


@dataclass(frozen=True)
class KeepUnseen:
    """File those of a micro-batch's answers that were never given before, one bucket a task."""

    shelf: Shelf
    buckets: int
    answers: tuple[str, ...]
    seen: tuple[Segment, ...]
    compared: tuple[str, ...]  # the columns that make answers different

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
