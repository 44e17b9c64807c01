"""Segments are merged level by level, never into one that outlives its window by much."""

import pytest

from watersmeet.program.storage.merging import FAN_OUT, choose_merges, merged_segment
from watersmeet.program.storage.segments import ORDINAL, TS
from watersmeet.program.storage.shelf import Part, Segment


def segment(number: int, *, low: int, high: int, rows: int = 10_000, level: int = 0) -> Segment:
    return Segment((Part(f"part-{number}", rows, 8 * rows),), low, high, low * 10, high * 10, level)


def in_a_row(count: int, *, length: int = 10, rows: int = 10_000, level: int = 0) -> list[Segment]:
    return [segment(n, low=n * length, high=(n + 1) * length - 1, rows=rows, level=level) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, FAN_OUT - 1])
def test_few_segments_are_left_alone(count: int) -> None:
    assert choose_merges(in_a_row(count), None, TS, None) == ()


def test_the_oldest_of_a_level_are_merged_together() -> None:
    segments = in_a_row(2 * FAN_OUT + 1)
    groups = choose_merges(segments[::-1], None, TS, None)
    assert groups == (tuple(segments[:FAN_OUT]), tuple(segments[FAN_OUT : 2 * FAN_OUT]))


def test_levels_are_merged_apart() -> None:
    segments = [*in_a_row(FAN_OUT - 1), *in_a_row(FAN_OUT - 1, level=1)]
    assert choose_merges(segments, None, TS, None) == ()
    assert len(choose_merges([*segments, *in_a_row(1, level=1)], None, TS, None)) == 1


def test_a_merge_spans_at_most_half_the_window_unless_it_is_tiny() -> None:
    segments = in_a_row(FAN_OUT)  # which span 39
    assert choose_merges(segments, 78, TS, None) == (tuple(segments),)
    assert choose_merges(segments, 77, TS, None) == ()
    tiny = in_a_row(FAN_OUT, rows=9)
    assert choose_merges(tiny, 77, TS, None) == (tuple(tiny),)


def test_a_segment_longer_than_its_window_is_rewritten_once_mostly_dead() -> None:
    long = segment(0, low=0, high=99)
    assert choose_merges([long], 50, TS, 50) == ()
    assert choose_merges([long], 50, TS, 51) == ((long,),)
    assert choose_merges([long], 100, TS, 99) == (), "it is not longer than the window"
    assert choose_merges([long], 50, TS, None) == (), "nothing is known to be dead"


def test_a_merged_segment_has_the_range_of_its_parts_without_what_is_dead() -> None:
    group = in_a_row(FAN_OUT)
    parts = [Part("merged", 7, 56), Part("empty", 0, 0)]
    merged = merged_segment(group, parts, TS, 15)
    assert merged == Segment((parts[0],), 15, 39, 0, 390, level=1)
    assert merged_segment(group, parts, TS, None) == Segment((parts[0],), 0, 39, 0, 390, level=1)
    assert merged_segment(group, parts, ORDINAL, 120) == Segment((parts[0],), 0, 39, 120, 390, level=1)
    assert merged_segment(group[:1], parts, TS, None) == Segment((parts[0],), 0, 9, 0, 90, level=0)
    assert merged_segment(group, [parts[1]], TS, None) is None
