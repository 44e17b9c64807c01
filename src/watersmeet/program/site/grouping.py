"""The state of queries with GROUP BY: partial records as segments.

Records of panes are kept until their panes or windows end; records with an interval of validity until they expire.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.aggregate.records import Layout
from watersmeet.program.finish.changes import (
    BEGUN,
    AddIntervals,
    Values,
    intervals_segment,
    still_needed,
    values_between,
    with_known_ends,
)
from watersmeet.program.finish.groups import (
    AddRecords,
    ended_groups,
    first_pane_needed,
    layout_of,
    records_segment,
)
from watersmeet.program.finish.shared import RecordShape
from watersmeet.program.join.axis import Clock
from watersmeet.program.site.ledger import Answers
from watersmeet.program.site.tasks import RunTasks
from watersmeet.program.storage.merging import choose_merges
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Segment, Shelf
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.model import Grouping
from watersmeet.query.windows import Changes

State = tuple[Segment, ...]
Recorded = Grouping | RecordShape  # what records are of: the groups of one query, or of several by set


class GroupRecords:
    """Adds answers to records, takes out what has ended, and merges what has become many; holds no state."""

    def __init__(self, shelf: Shelf, run_tasks: RunTasks[Any]) -> None:
        self._shelf = shelf
        self._run_tasks = run_tasks

    def arrived(self, grouping: Recorded, paths: Sequence[str]) -> list[Segment]:
        """Records that other sites have sent, or that were made as rows came."""
        return self.segments(grouping, [self._shelf.get(path) for path in paths])

    def segments(self, grouping: Recorded, tables: Sequence[pa.Table]) -> list[Segment]:
        """Records on the shelf."""
        return [self._segment(grouping, table) for table in tables if table.num_rows]

    def _segment(self, grouping: Recorded, records: pa.Table, level: int = 0) -> Segment:
        if isinstance(grouping, Grouping) and isinstance(grouping.window, Changes):
            return intervals_segment(self._shelf, layout_of(grouping, records.schema), records, level)
        return records_segment(self._shelf, records, level)

    def added(self, grouping: Grouping, pieces: Sequence[Answers], state: State) -> State:
        """The records with new answers in them."""
        for answers in pieces:
            add = AddIntervals if isinstance(grouping.window, Changes) else AddRecords
            task = add(self._shelf, grouping, answers.columns, answers.paths)
            state = (*state, *self._run_tasks(task, len(answers.paths), answers.rows))
        return state

    def without_ended_windows(
        self, query: str, grouping: Grouping, state: State, before: int, now: int, more: Sequence[pa.Table] = ()
    ) -> tuple[State, tuple[pa.Table, ...]]:
        """What is still needed after an instant, and the groups of windows that have ended since another.

        `more` are records that count too, and are kept elsewhere.
        """
        window, alive = grouping.output_window, None
        ended: tuple[pa.Table, ...] = ()
        if now > before and (state or more):
            due = [*self.tables(segment for segment in state if segment.min_ts < now), *more]
            ended = tuple(ended_groups(query, grouping, due, before, now))
        if now > UNKNOWN:
            alive = first_pane_needed(window, now)
            state = tuple(segment for segment in state if segment.max_ts >= alive)
        return self.merged(grouping, state, 2 * window.length_us, alive), ended

    def with_changes(
        self, query: str, grouping: Grouping, state: State, before: int, now: int, clock_of: Callable[[str], Clock]
    ) -> tuple[State, Values | None]:
        """What is still needed after an instant, and the values of groups that may have changed since another."""
        if now <= before or not state:
            return state, None
        tables = self.tables(state)
        if grouping.changes.counted:  # ends become known as rows come, so all that is kept is written anew
            tables = [with_known_ends(grouping.changes, table, clock_of) for table in tables]
            found = values_between(query, grouping, tables, before, now)
            kept = still_needed(layout_of(grouping, tables[0].schema), tables, now)
            return tuple(self.segments(grouping, [kept])), found
        found = values_between(query, grouping, tables, before, now)
        layout = layout_of(grouping, tables[0].schema)
        if layout.is_negatable:  # what has begun is one record a group, and none where all has expired
            alone = [segment for segment in state if segment.min_ts > BEGUN and segment.max_ts < now]
            extent = None
        else:
            state, alone = tuple(segment for segment in state if segment.max_ts >= now - 1), []
            longest_us = grouping.changes.longest_us
            extent = None if longest_us is None else 2 * longest_us
        others = tuple(segment for segment in state if segment not in alone)
        merges: list[State] = [*((segment,) for segment in alone), *choose_merges(others, extent, TS, now)]
        for merged in merges:
            records = still_needed(layout, self.tables(merged), now)
            level = max(segment.level for segment in merged) + (len(merged) > 1)
            kept = [self._segment(grouping, records, level)] if records.num_rows else []
            state = (*(segment for segment in state if segment not in merged), *kept)
        return state, found

    def united(self, grouping: Grouping, state: State) -> pa.Table | None:
        """All records of some segments as one table."""
        tables = self.tables(state)
        return layout_of(grouping, tables[0].schema).combine(tables) if tables else None

    def without_ended_panes(self, grouping: Recorded, state: State, first_open: int) -> tuple[State, pa.Table | None]:
        """The records of a pane and later ones, and all records before it as one table."""
        ended = self.tables(segment for segment in state if segment.min_ts < first_open)
        ended = [table.filter(pc.less(table.column(TS), first_open)) for table in ended]
        kept = [segment for segment in state if segment.min_ts >= first_open]
        for segment in state:
            if segment.min_ts < first_open <= segment.max_ts:
                kept += self._combined(grouping, [segment], first_open)
        table = _layout(grouping, ended[0].schema).combine(ended) if ended else None
        return tuple(kept), table

    def merged(self, grouping: Recorded, state: State, extent_us: int | None = None, alive: int | None = None) -> State:
        """The records in fewer segments, where they have become many."""
        for merged in choose_merges(state, extent_us, TS, alive):
            state = (*(segment for segment in state if segment not in merged), *self._combined(grouping, merged, alive))
        return state

    def _combined(self, grouping: Recorded, merged: Sequence[Segment], alive: int | None) -> list[Segment]:
        tables = self.tables(merged)
        if alive is not None:
            tables = [table.filter(pc.greater_equal(table.column(TS), alive)) for table in tables]
        records = _layout(grouping, tables[0].schema).combine(tables)
        level = max(segment.level for segment in merged) + (len(merged) > 1)
        return [records_segment(self._shelf, records, level)] if records.num_rows else []

    def tables(self, segments: Iterable[Segment]) -> list[pa.Table]:
        """The records of some segments."""
        return [self._shelf.get(part.path) for segment in segments for part in segment.parts]


def _layout(grouping: Recorded, schema: pa.Schema) -> Layout:
    return grouping.layout(schema) if isinstance(grouping, RecordShape) else layout_of(grouping, schema)
