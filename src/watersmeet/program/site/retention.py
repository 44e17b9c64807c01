"""How long rows are needed at a site: until they end before what every operator that reads them still waits for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from watersmeet.program.join.axis import Axis, Clock
from watersmeet.program.operators import Announce, Flow, Form, Gather, Join, Operator, Pair, Probe, Semijoin, rows_of
from watersmeet.program.site.inputs import Watermarks, axis_of, low_watermark
from watersmeet.program.site.part import JoinPart, counting_of, needs_rows
from watersmeet.program.site.program import SiteProgram, history_relation
from watersmeet.program.site.roles import axis_alias, role, stored_inputs
from watersmeet.program.storage.segments import ORDINAL, TS
from watersmeet.program.storage.shelf import Segment
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import END_US, Range, Tumble, counted


@dataclass(frozen=True, slots=True)
class LaterVersions:
    """Who reads the rows of a window that are kept for versions of a join that are still to come."""

    alias: str


Reader = tuple[JoinPart, Operator | LaterVersions, Flow]


@dataclass(frozen=True, slots=True)
class Need:
    """For how long one operator needs the rows of one of its inputs."""

    form: Form
    axis: Axis
    low_watermark: int
    lingers: bool = False  # a witness counts against a row that met it for as long as that row may be met again
    waits_until: int = UNKNOWN  # rows from this instant on have not been joined at all
    is_over: bool = False  # no head is still to come
    others: tuple[int | None, ...] = ()  # how far rows of other windows reach that it lingers for

    def keeps(self, segment: Segment) -> bool:
        if self.is_over:
            return False
        if self.low_watermark == UNKNOWN or segment.max_ts >= self.waits_until != UNKNOWN:
            return True
        if self.form is Form.POINT and not self.lingers:
            return segment.max_ts >= self.low_watermark
        place = self.axis.first(self.low_watermark)
        if self.lingers:
            reach = _longest([self.axis.reach, *self.others])
            if reach is None:
                return True
            place -= reach
        return self._last_place(segment) >= place

    def _last_place(self, segment: Segment) -> int:
        last = np.array([segment.max_ts])
        match self.form:
            case Form.POINT | Form.ASK:
                return int(self.axis.points(last, self.axis.aliases - 1).begins()[0])
            case Form.ROW:
                return int(self.axis.rows(last, np.array([segment.max_ordinal])).ends()[0])
            case Form.INTERMEDIATE if self.axis.count is not None:
                return segment.max_ordinal + self.axis.count - 1
            case _:
                return segment.max_ts

    @property
    def first_ts(self) -> int | None:
        """The first timestamp that is still needed, where that can be said row by row."""
        if self.low_watermark == UNKNOWN or self.lingers:
            return None
        if self.form is Form.POINT:
            return self.low_watermark
        match self.axis.window:
            case Range(window_us):
                return self.low_watermark - window_us
            case Tumble(window_us):
                return self.low_watermark // window_us * window_us
            case _:
                return None


def need_of(reader: Reader, axis: Axis, marks: Watermarks) -> Need:
    """The need of an operator for one of its inputs; heads of its version are all that count."""
    part, operator, _ = reader
    if isinstance(operator, LaterVersions):
        return Need(Form.ROW, axis, marks.get(part.views[operator.alias].stream, UNKNOWN))
    need = _need_of_operator(part, operator, reader[2], axis, marks)
    first, end = part.heads.from_us, part.heads.until_us
    if end is not None and need.low_watermark >= end:
        return replace(need, is_over=True)
    if first is None or need.low_watermark >= first:
        return need
    waits = need.waits_until if need.waits_until == UNKNOWN else max(need.waits_until, first)
    return replace(need, low_watermark=first, waits_until=waits)


def _need_of_operator(part: JoinPart, operator: Operator, flow: Flow, axis: Axis, marks: Watermarks) -> Need:
    if isinstance(operator, Probe):
        return _need_of_probe(part, operator, flow, axis, marks)
    if isinstance(operator, Join | Pair) and not axis.counts_rows and not counting_of(part, operator):
        others = [marks.get(part.mark(other), UNKNOWN) for other in operator.inputs if other != flow]
        if others and min(others) >= END_US:  # all that it could meet has come
            return Need(role(operator, flow), axis, END_US, is_over=True)
    if isinstance(operator, Gather):  # what one of its semijoins has sent, the others must not send again
        lingers = any(flow == semijoin.witness for semijoin in operator.semijoins)
        concerned = {*operator.aliases, *(member.alias for member in operator.members)}
        reaches = [Axis(part.join.scan(alias).window, 0, axis.aliases).reach for alias in concerned]
        return Need(flow.form, axis, low_watermark(part, operator, marks), lingers, others=tuple(reaches))
    lingers = (
        isinstance(operator, Semijoin)
        and flow == operator.witness
        and role(operator, operator.subject) is not Form.POINT
    )
    reaches_met: tuple[int | None, ...] = ()
    if lingers and isinstance(operator, Semijoin) and operator.has_rows:  # its axis is not that of the subject
        reaches_met = (Axis(part.join.scan(operator.alias).window, 0, axis.aliases).reach,)
    return Need(role(operator, flow), axis, low_watermark(part, operator, marks), lingers, others=reaches_met)


def _need_of_probe(part: JoinPart, operator: Probe, flow: Flow, axis: Axis, marks: Watermarks) -> Need:
    """A row of a window may meet rows of the others that are still to come; rows that wait for their order, all."""
    if needs_rows(part):
        mark = low_watermark(part, operator, marks)
        form = Form.ROW if flow in {lookup.rows for lookup in operator.lookups} else Form.POINT
        return Need(form, axis, mark, waits_until=mark)
    others = [marks.get(part.flow(other), UNKNOWN) for other in operator.windows if other != flow]
    # Beside tables alone no row is met again: all of theirs are there.
    return Need(Form.ROW, axis, min(others), is_over=min(others) >= END_US)


def readers_of(program: SiteProgram) -> dict[str, list[Reader]]:
    """For each relation whose rows outlive a micro-batch, who looks them up."""
    readers: dict[str, list[Reader]] = {}
    for part, operator in program.operators:
        if not isinstance(operator, Probe | Join | Pair | Semijoin | Gather | Announce):
            continue
        for flow in stored_inputs(operator):
            is_carrier = isinstance(operator, Probe) and flow == operator.left and not needs_rows(part)
            if flow.form is Form.DELTA or is_carrier:  # only new rows are read
                continue
            relation = part.relation(flow, operator.key, operator.sub_plans)
            readers.setdefault(relation, []).append((part, operator, flow))
    for part, alias in program.in_force:
        view = part.views[alias]
        if view.flow in program.kept_flows:
            reader = (part, LaterVersions(alias), rows_of(alias))
            readers.setdefault(history_relation(view.flow), []).append(reader)
    return readers


def merging(readers: Sequence[Reader], needs: Sequence[Need]) -> tuple[int | None, str, int | None]:
    """How far rows of a relation reach, on which axis, and from where on they are alive: by that they are merged."""
    flow = readers[0][2]
    reaches = [need.axis.reach for need in needs]
    if flow.form is Form.SPAN or (flow.form is Form.INTERMEDIATE and not any(n.axis.counts_rows for n in needs)):
        return _longest(reaches), TS, None
    if flow.form is Form.INTERMEDIATE:
        return _longest(reaches), ORDINAL, None
    windows = [need.axis.window for need in needs if need.form is Form.ROW]
    counts = [counted(window) for window in windows]
    if any(count is not None for count in counts):
        return _longest(counts), ORDINAL, None
    lengths = [window.window_us if isinstance(window, Range | Tumble) else None for window in windows]
    firsts = [need.first_ts for need in needs]
    known = [first for first in firsts if first is not None]
    alive = min(known) if known and len(known) == len(firsts) and flow.form is not Form.ASK else None
    return _longest(lengths) if lengths else None, TS, alive


def _longest(lengths: Sequence[int | None]) -> int | None:
    known = [length for length in lengths if length is not None]
    return max(known) if len(known) == len(lengths) else None


def kept_ticks(
    program: SiteProgram, clock: str, ticks: tuple[Segment, ...], times: Clock, marks: Watermarks
) -> tuple[Segment, ...]:
    """The part of a row clock that times are still translated by; the last of it always, since it counts on."""
    counts, lowest = [], []
    for part, operator in program.operators:
        for scan in part.join.scans:
            if (count := counted(scan.window)) is None or part.clock(scan.alias) != clock:
                continue
            if isinstance(operator, Probe) or scan.alias in _translated(part, operator):
                counts.append(count)
                lowest.append(low_watermark(part, operator, marks))
    if program.history:  # a later version may have to translate the rows that are kept for it
        for part, alias in program.in_force:
            count = counted(part.join.scan(alias).window)
            if count is not None and part.clock(alias) == clock and part.views[alias].stream in marks:
                counts.append(count)
                lowest.append(marks[part.views[alias].stream])
    if not lowest:  # it is only reported to others
        return ticks[-1:]
    if UNKNOWN in lowest:
        return ticks
    # Witnesses linger for a window's length, and the rows they stand against reach back another.
    first = times.last_before(min(lowest)) - 2 * max(counts)
    return tuple(segment for segment in ticks if segment.max_ordinal >= first) or ticks[-1:]


def _translated(part: JoinPart, operator: Operator) -> tuple[str, ...]:
    """The aliases whose row clocks an operator other than a probe reads, where they have any."""
    if isinstance(operator, Pair):
        return counting_of(part, operator)
    return (operator.alias,) if isinstance(operator, Join | Semijoin | Gather | Announce) else ()


Axes = Mapping[tuple[str, str], Axis]


def axes_of(program: SiteProgram, clock: Callable[[str], Clock]) -> dict[tuple[str, str], Axis]:
    """The axis of every alias of every join, by (join, alias)."""
    return {
        (part.name, scan.alias): axis_of(part, scan.alias, clock) for part in program.parts for scan in part.join.scans
    }


def axis_for(reader: Reader, axes: Axes) -> Axis:
    """The axis that an input of an operator is about."""
    part, operator, flow = reader
    alias = operator.alias if isinstance(operator, LaterVersions) else axis_alias(operator, flow)
    return axes[part.name, alias]
