"""Which segments of a window are merged, so that a window of any length is a few segments."""

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.program.storage import sizes
from watersmeet.program.storage.segments import ORDINAL
from watersmeet.program.storage.shelf import Part, Segment

FAN_OUT = 4  # segments of one level that are merged into one of the next


def choose_merges(
    segments: Sequence[Segment], extent: int | None, axis: str, alive: int | None
) -> tuple[tuple[Segment, ...], ...]:
    """Groups of segments to merge now; `extent` is how far the longest window reaches on the axis, None without end.

    Level by level, as soon as there are FAN_OUT of them, but never into one that spans more than half the window:
    it would keep dead rows for too long; nor into one that is too long for Arrow. A segment from one large batch is
    rewritten by itself once mostly dead.
    """
    groups: list[tuple[Segment, ...]] = []
    for level in sorted({segment.level for segment in segments}):
        same = sorted(
            (segment for segment in segments if segment.level == level), key=lambda segment: segment.low(axis)
        )
        while len(same) >= FAN_OUT:
            group, same = tuple(same[:FAN_OUT]), same[FAN_OUT:]
            span = max(segment.high(axis) for segment in group) - group[0].low(axis)
            size = sum(segment.bytes for segment in group)
            if size <= sizes.MAX_COLUMN_BYTES and (extent is None or span <= extent // 2 or _tiny(group)):
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
