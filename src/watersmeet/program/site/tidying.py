"""What a site still needs of the rows that it has: the rest is evicted, and small segments are merged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from watersmeet.program.join.axis import Clock
from watersmeet.program.site.filing import shelve
from watersmeet.program.site.inputs import Segments, read_clock
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.merge import Merge
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.retention import Reader, axes_of, axis_for, kept_ticks, merging, need_of
from watersmeet.program.site.tasks import RunTasks
from watersmeet.program.storage.merging import choose_merges, merged_segment
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Part, Segment, Shelf

_SEEN = "#seen "  # in front of a definition, the name under which its answers are merged
_MANY_TICKS = 16  # segments of a clock from which it is written anew as one


def tidy(
    program: SiteProgram,
    shelf: Shelf,
    readers_by_relation: Mapping[str, Sequence[Reader]],
    run_tasks: RunTasks[Any],
    buckets_for: Callable[[int], int],
    ledger: SiteLedger,
    new: Segments,
) -> SiteLedger:
    """Keep of old and new rows what can still meet something, and merge what has become many."""
    times: dict[str, Clock] = {}

    def clock(name: str) -> Clock:
        if name not in times:
            times[name] = read_clock(shelf, ledger.clocks.get(name, ()))
        return times[name]

    axes = axes_of(program, clock)
    relations: dict[str, tuple[Segment, ...]] = {}
    groups: list[tuple[tuple[Segment, ...], str, int | None]] = []
    names: list[str] = []
    for name, readers in readers_by_relation.items():
        needs = [need_of(reader, axis_for(reader, axes), ledger.watermarks) for reader in readers]
        segments = (*ledger.relations.get(name, ()), *new.get(name, ()))
        relations[name] = tuple(segment for segment in segments if any(need.keeps(segment) for need in needs))
        if not readers[0][2].bloom:
            extent, axis, alive = merging(readers, needs)
            for group in choose_merges(relations[name], extent, axis, alive):
                groups.append((group, axis, alive))
                names.append(name)
    for definition, answered in ledger.seen.items():
        relations[_SEEN + definition] = answered
        for group in choose_merges(answered, None, TS, None):
            groups.append((group, TS, None))
            names.append(_SEEN + definition)
    if groups:
        parts: dict[int, list[Part]] = {}
        rows = sum(segment.rows for group, _, _ in groups for segment in group)
        buckets = buckets_for(rows)
        for number, part in run_tasks(Merge(shelf, buckets, tuple(groups)), buckets, rows):
            parts.setdefault(number, []).append(part)
        for number, (name, (group, axis, alive)) in enumerate(zip(names, groups, strict=True)):
            merged = merged_segment(group, parts.get(number, ()), axis, alive)
            rest = tuple(segment for segment in relations[name] if segment not in group)
            relations[name] = rest if merged is None else (merged, *rest)
    clocks = {
        name: _united(shelf, kept_ticks(program, name, ticks, clock(name), ledger.watermarks))
        for name, ticks in ledger.clocks.items()
    }
    seen = {definition: relations.pop(_SEEN + definition) for definition in ledger.seen}
    kept = {name: segments for name, segments in relations.items() if segments}
    return replace(ledger, relations=kept, clocks=clocks, seen=seen)


def _united(shelf: Shelf, ticks: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """A clock in one segment if it has become many."""
    if len(ticks) < _MANY_TICKS:
        return ticks
    whole = shelve(shelf, "clock", pa.concat_tables(shelf.get(segment.parts[0].path) for segment in ticks))
    return (replace(whole, min_ordinal=ticks[0].min_ordinal, max_ordinal=ticks[-1].max_ordinal),)
