"""Merging of small segments, one bucket a task."""

from dataclasses import dataclass

from watersmeet.program.site.filing import (
    alike,
    sort_rows,
    where,
)
from watersmeet.program.storage.segments import (
    KEY,
    column,
)
from watersmeet.program.storage.shelf import Part, Segment, Shelf, bucket_rows


@dataclass(frozen=True)
class Merge:
    """Merge groups of segments, one bucket a task; reports each new part with the number of its group."""

    shelf: Shelf
    buckets: int
    groups: tuple[tuple[tuple[Segment, ...], str, int | None], ...]  # segments, axis, first place alive

    def __call__(self, bucket: int) -> list[tuple[int, Part]]:
        parts = []
        for number, (group, axis, alive) in enumerate(self.groups):
            found = (bucket_rows(self.shelf, part, bucket, self.buckets) for segment in group for part in segment.parts)
            pieces = [table for table in found if table is not None and table.num_rows]
            if not pieces:
                continue
            merged = alike(pieces)
            if alive is not None:
                merged = where(merged, column(merged, axis) >= alive)
            if merged.num_rows:
                merged = sort_rows(merged, ())
                keys = column(merged, KEY)
                part = self.shelf.put("merged", merged)
                parts.append((number, Part(part.path, part.rows, part.bytes, int(keys[0]), int(keys[-1]))))
        return parts
