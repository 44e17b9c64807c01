"""The state of queries with GROUP BY: partial records by pane, kept as segments until their panes or windows end."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.finish.groups import AddRecords, ended_groups, first_pane_needed, layout_of, records_segment
from watersmeet.program.site.ledger import Answers
from watersmeet.program.site.tasks import RunTasks
from watersmeet.program.storage.merging import choose_merges
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Segment, Shelf
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.model import Grouping

State = tuple[Segment, ...]


class GroupRecords:
    """Adds answers to records, takes out what has ended, and merges what has become many; holds no state."""

    def __init__(self, shelf: Shelf, run_tasks: RunTasks[Any]) -> None:
        self._shelf = shelf
        self._run_tasks = run_tasks

    def arrived(self, paths: Sequence[str]) -> list[Segment]:
        """Records that other sites have sent."""
        tables = [self._shelf.get(path) for path in paths]
        return [records_segment(self._shelf, table) for table in tables if table.num_rows]

    def added(self, grouping: Grouping, pieces: Sequence[Answers], state: State) -> State:
        """The records with new answers in them."""
        for answers in pieces:
            task = AddRecords(self._shelf, grouping, answers.columns, answers.paths)
            state = (*state, *self._run_tasks(task, len(answers.paths), answers.rows))
        return state

    def without_ended_windows(
        self, query: str, grouping: Grouping, state: State, before: int, now: int
    ) -> tuple[State, tuple[pa.Table, ...]]:
        """What is still needed after an instant, and the groups of windows that have ended since another."""
        window, alive = grouping.window, None
        ended: tuple[pa.Table, ...] = ()
        if now > before and state:
            due = self._tables(one for one in state if one.min_ts < now)
            ended = tuple(ended_groups(query, grouping, due, before, now))
        if now > UNKNOWN:
            alive = first_pane_needed(window, now)
            state = tuple(one for one in state if one.max_ts >= alive)
        return self.merged(grouping, state, 2 * window.length_us, alive), ended

    def without_ended_panes(self, grouping: Grouping, state: State, first_open: int) -> tuple[State, pa.Table | None]:
        """The records of a pane and later ones, and all records before it as one table."""
        ended = self._tables(one for one in state if one.min_ts < first_open)
        ended = [table.filter(pc.less(table.column(TS), first_open)) for table in ended]
        kept = [one for one in state if one.min_ts >= first_open]
        for one in state:
            if one.min_ts < first_open <= one.max_ts:
                kept += self._combined(grouping, [one], first_open)
        table = layout_of(grouping, ended[0].schema).combine(ended) if ended else None
        return tuple(kept), table

    def merged(self, grouping: Grouping, state: State, extent_us: int | None = None, alive: int | None = None) -> State:
        """The records in fewer segments, where they have become many."""
        for merged in choose_merges(state, extent_us, TS, alive):
            state = (*(one for one in state if one not in merged), *self._combined(grouping, merged, alive))
        return state

    def _combined(self, grouping: Grouping, merged: Sequence[Segment], alive: int | None) -> list[Segment]:
        tables = self._tables(merged)
        if alive is not None:
            tables = [table.filter(pc.greater_equal(table.column(TS), alive)) for table in tables]
        records = layout_of(grouping, tables[0].schema).combine(tables)
        level = max(segment.level for segment in merged) + (len(merged) > 1)
        return [records_segment(self._shelf, records, level)] if records.num_rows else []

    def _tables(self, segments: Iterable[Segment]) -> list[pa.Table]:
        return [self._shelf.get(part.path) for segment in segments for part in segment.parts]
