"""The answers of simulated sites beside those of the oracle: which are right, and how long each was on its way.

The oracle gets the rows that are not late: a row is late if its event time is before the watermark of its stream as it
stood before the row's micro-batch, the greatest event time of all earlier micro-batches minus the delay.

A group is due when rows have come that take the watermarks of all streams beyond its window, or beyond its change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.plan.nodes import Plan, Symmetric, join_plan_of
from watersmeet.program.rjoin.arrays import Longs
from watersmeet.query.bags import bag_of
from watersmeet.query.model import (
    CHANGED_AT,
    EVENT_TIME,
    WINDOW_END,
    Column,
    Expression,
    JoinQuery,
    Output,
    SelectItem,
    StreamRef,
)
from watersmeet.query.oracle import answer, answer_outputs
from watersmeet.query.windows import AsOf, Changes, Rows
from watersmeet.sim.scenario.sites_outcome import AnswersChecked
from watersmeet.sim.sites.rows import query_rows

_ARRIVED, _UNTIL = "__arrived_us", "__until"  # columns of our own beside the user's


@dataclass(frozen=True)
class StreamRows:
    """All rows of a stream in the order in which they arrive, in micro-batches."""

    rows: pa.Table
    event_time: str
    delay_us: int
    arrivals_us: Longs
    batches: Longs  # the micro-batch of each row

    @property
    def times_us(self) -> Longs:
        times_us: Longs = self.rows.column(self.event_time).cast(pa.int64()).to_numpy()
        return times_us

    @property
    def watermark_us(self) -> int | None:
        """The watermark behind the last row."""
        return int(self.times_us.max()) - self.delay_us if self.rows.num_rows else None

    @property
    def on_time(self) -> pa.Table:
        """The rows that are not late, with the time at which each arrives."""
        times_us, stamped = self.times_us, self.rows.append_column(_ARRIVED, pa.array(self.arrivals_us))
        if not len(times_us):
            return stamped
        latest_us = np.maximum.accumulate(times_us)
        firsts = np.searchsorted(self.batches, self.batches)  # of each row's micro-batch
        late_before_us = np.where(firsts > 0, latest_us[firsts - 1] - self.delay_us, times_us)
        return stamped.filter(pa.array(times_us >= late_before_us))


def compare(
    query: JoinQuery,
    plan: Plan,
    streams: Mapping[str, StreamRows],
    start_us: int | None,
    answers: pa.Table,
    delivered_us: Longs,
    tables: Mapping[str, pa.Table] | None = None,
    *,
    is_drained: bool = False,
) -> tuple[AnswersChecked, Longs]:
    """Match answers with those of the oracle, the first delivered of equal ones with the first due; their delays.

    In a run that is drained all answers are due at the end.
    """
    find_due = _due if query.grouping is None else _due_groups
    due = find_due(query, None if is_drained else plan, streams, start_us, tables or {})
    names = [f"c{number}" for number in range(len(query.output))]
    came = answers.rename_columns(names).append_column("at_us", pa.array(delivered_us))
    if query.grouping is not None:  # sums of doubles depend on their order in the last digits
        due, came = _rounded(due), _rounded(came)
    columns = ", ".join(names)
    same = " AND ".join(f"due.{name} IS NOT DISTINCT FROM came.{name}" for name in (*names, "n"))
    due_sql = f"SELECT {columns}, min(at_us) AS at_us FROM due GROUP BY {columns}" if query.distinct else "FROM due"
    number = f"row_number() OVER (PARTITION BY {columns} ORDER BY at_us) AS n"
    matched = query_rows(
        f"WITH due AS (SELECT *, {number} FROM ({due_sql})), came AS (SELECT *, {number} FROM came) "
        f"SELECT due.at_us AS due, came.at_us AS came FROM due FULL JOIN came ON {same}",
        due=due.rename_columns([*names, "at_us"]),
        came=came,
    )
    expected = matched.num_rows - matched.column("due").null_count
    both = matched.filter(pc.and_(pc.is_valid(matched.column("due")), pc.is_valid(matched.column("came"))))
    delays_us = both.column("came").to_numpy() - both.column("due").to_numpy()
    checked = AnswersChecked(expected, both.num_rows, answers.num_rows - both.num_rows)
    return checked, delays_us


def _due(
    query: JoinQuery,
    plan: Plan | None,
    streams: Mapping[str, StreamRows],
    start_us: int | None,
    static: Mapping[str, pa.Table],
) -> pa.Table:
    """The answers of the oracle, DISTINCT left aside, and when the last row of each arrives."""
    arrivals = [Column(source.alias, _ARRIVED) for source in query.sources if source.stream not in static]
    last = f"greatest({', '.join(column.sql for column in arrivals)})" if len(arrivals) > 1 else arrivals[0].sql
    item = SelectItem(_ARRIVED, Expression(last, tuple(arrivals), "bigint"))
    asked = replace(query, select=(*query.select, item), distinct=False)
    used = {source.stream: streams[source.stream] for source in query.sources if source.stream not in static}
    tables = {name: stream.on_time for name, stream in used.items()}
    heads_before_us, is_begun = (None, True) if plan is None else _low_watermark(query, plan, used)
    if not is_begun:
        tables = {name: table.slice(0, 0) for name, table in tables.items()}
    event_times = {name: stream.event_time for name, stream in used.items()}
    return answer(asked, {**tables, **static}, event_times, start_us=start_us, heads_before_us=heads_before_us)


def due_outputs(
    outputs: Sequence[Output],
    starts_us: Mapping[str, int | None],
    streams: Mapping[str, StreamRows],
    static: Mapping[str, pa.Table],
) -> dict[str, pa.Table]:
    """The answers of the oracle to queries and the views that they read, at the end of time."""
    tables = {name: stream.on_time.drop_columns([_ARRIVED]) for name, stream in streams.items()}
    event_times = {name: stream.event_time for name, stream in streams.items()}
    return answer_outputs(outputs, {**tables, **static}, event_times, starts_us=starts_us)


def compare_bags(expected: pa.Table, answers: pa.Table) -> AnswersChecked:
    """Answers beside those of the oracle, doubles to twelve digits."""
    due, came = bag_of(_rounded(expected)), bag_of(_rounded(answers))
    right = (due & came).total()
    return AnswersChecked(due.total(), right, came.total() - right)


def answer_schema(query: JoinQuery, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The types of the answers of a query, by asking the oracle about no rows."""
    tables = {source.stream: schemas[source.stream].empty_table() for source in query.sources}
    times = {source.stream: _first_time(schemas[source.stream]) for source in query.sources if not _is_table(source)}
    return answer(query, tables, times).schema


def _is_table(source: StreamRef) -> bool:
    return isinstance(source.window, AsOf)


def _first_time(schema: pa.Schema) -> str:
    if EVENT_TIME in schema.names:
        return EVENT_TIME
    return next(str(field.name) for field in schema if pa.types.is_timestamp(field.type))


def _rounded(table: pa.Table) -> pa.Table:
    """Doubles to twelve digits."""
    for number, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            values = [None if value is None else f"{value + 0.0:.11e}" for value in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(values, pa.string()))
    return table


def _due_groups(
    query: JoinQuery,
    plan: Plan | None,
    streams: Mapping[str, StreamRows],
    start_us: int | None,
    static: Mapping[str, pa.Table],
) -> pa.Table:
    """The groups or changes of the oracle, and when the row arrives behind which each is answered."""
    grouping = query.grouping
    assert grouping is not None, "a query with groups"
    is_change = isinstance(grouping.window, Changes)
    until = CHANGED_AT if is_change else WINDOW_END
    item = SelectItem(_UNTIL, Expression(until.sql, (until,)))
    asked = replace(query, grouping=replace(grouping, select=(*grouping.select, item)))
    used = {source.stream: streams[source.stream] for source in query.sources if source.stream not in static}
    marks = [stream.watermark_us for stream in used.values()] if plan is not None else []
    known = [mark for mark in marks if mark is not None]
    heads_before_us, is_begun = (None, True) if plan is None else _low_watermark(query, plan, used)
    tables = {name: stream.on_time.drop_columns([_ARRIVED]) for name, stream in used.items()}
    if not is_begun or len(known) < len(marks):
        tables = {name: table.slice(0, 0) for name, table in tables.items()}
    event_times = {name: stream.event_time for name, stream in used.items()}
    times = {"start_us": start_us, "heads_before_us": heads_before_us, "watermark_us": min(known, default=None)}
    due = answer(asked, {**tables, **static}, event_times, **times)
    until_us = due.column(_UNTIL).cast(pa.int64()).to_numpy() + is_change
    at_us = np.zeros(len(until_us), np.int64)
    for stream in used.values() if len(until_us) else ():
        reached_us = np.maximum.accumulate(stream.times_us) - stream.delay_us
        places = np.minimum(np.searchsorted(reached_us, until_us), len(reached_us) - 1)  # at the end, where drained
        at_us = np.maximum(at_us, stream.arrivals_us[places]) if len(reached_us) else at_us
    return due.drop_columns([_UNTIL]).append_column("at_us", pa.array(at_us))


def _low_watermark(query: JoinQuery, plan: Plan, streams: Mapping[str, StreamRows]) -> tuple[int | None, bool]:
    """Before which instant answers with ROWS windows are due (None: all are), and whether there is such an instant.

    Rows of a ROWS window have no order beyond the watermark of their stream. In a symmetric join with such a window all
    rows wait until the watermarks of all its streams have passed them.
    """
    counted = {source.stream for source in query.sources if isinstance(source.window, Rows)}
    is_symmetric = all(isinstance(sub_plan, Symmetric) for sub_plan in join_plan_of(plan).sub_plans)
    waited_for = streams.keys() if counted and is_symmetric else counted
    marks = [streams[name].watermark_us for name in sorted(waited_for)]
    known = [mark for mark in marks if mark is not None]
    return min(known, default=None), len(known) == len(marks)
