"""How long rows are needed at a site: until they lie before the horizon of every operator that looks them up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet.plan.nodes import JoinPlan
from watersmeet.program.join.axis import Axis
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Join,
    Pair,
    Semijoin,
    SiteProgram,
    clock_of,
    kept_inputs,
)
from watersmeet.program.site.filing import relation_name
from watersmeet.program.site.ledger import Segment
from watersmeet.program.site.round import horizon, role
from watersmeet.program.storage.segments import ORDINAL, TS
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window

Reader = Join | Pair | Semijoin | Announce


@dataclass(frozen=True, slots=True)
class Need:
    """For how long one operator needs the rows of one of its inputs."""

    form: Form
    axis: Axis
    horizon: int
    lingers: bool  # a witness counts against a row that met it for as long as that row may be met again

    def keeps(self, segment: Segment) -> bool:
        if self.horizon == UNKNOWN:
            return True
        if self.form is Form.POINT and not self.lingers:
            return segment.max_ts >= self.horizon
        place = self.axis.first(self.horizon)
        if self.lingers:
            if self.axis.reach is None:
                return True
            place -= self.axis.reach
        return self._last_place(segment) >= place

    def _last_place(self, segment: Segment) -> int:
        last = np.array([segment.max_ts])
        match self.form:
            case Form.POINT | Form.ASK:
                return int(self.axis.points(last, self.axis.aliases - 1)[0])
            case Form.ROW:
                return int(self.axis.rows(last, np.array([segment.max_ordinal]))[1][0])
            case _:
                return segment.max_ts

    @property
    def first_ts(self) -> int | None:
        """The first timestamp that is still needed, where that can be told row by row."""
        if self.horizon == UNKNOWN or self.lingers:
            return None
        if self.form is Form.POINT:
            return self.horizon
        match self.axis.window:
            case Range(window_us):
                return self.horizon - window_us
            case Tumble(window_us):
                return self.horizon // window_us * window_us
            case _:
                return None


def need_of(reader: Reader, flow: Flow, axis: Axis, query: JoinPlan, progress: Mapping[str, int]) -> Need:
    """The need of an operator for one of its inputs."""
    lingers = isinstance(reader, Semijoin) and flow == reader.witness and role(reader, reader.subject) is not Form.POINT
    return Need(role(reader, flow), axis, horizon(reader, query, progress), lingers)


def readers_of(program: SiteProgram) -> dict[str, tuple[Flow, list[Reader]]]:
    """For each relation, the flow it holds and the operators that look it up."""
    readers: dict[str, tuple[Flow, list[Reader]]] = {}
    for operator in program.operators:
        if isinstance(operator, Reader):
            for flow in kept_inputs(operator):
                relation = relation_name(flow.name, operator.key, operator.sub_plans)
                readers.setdefault(relation, (flow, []))[1].append(operator)
    return readers


def merging(flow: Flow, needs: Sequence[Need]) -> tuple[Window, str, int | None]:
    """By which window, on which axis and from where on the segments of a relation are merged."""
    if flow.form in (Form.SPAN, Form.PIECE):
        reach = needs[0].axis.reach
        return (Unbounded() if reach is None else Range(reach)), TS, None
    windows = [need.axis.window for need in needs if need.form is Form.ROW]
    window: Window = windows[0] if windows else Unbounded()
    if isinstance(window, Rows):
        return window, ORDINAL, None
    firsts = [need.first_ts for need in needs]
    known = [first for first in firsts if first is not None]
    return window, TS, min(known) if known and len(known) == len(firsts) and flow.form is not Form.ASK else None


def kept_ticks(
    program: SiteProgram,
    clock: str,
    ticks: tuple[Segment, ...],
    axes: Mapping[str, Axis],
    progress: Mapping[str, int],
) -> tuple[Segment, ...]:
    """The part of a row clock that times are still translated by; the last of it always, since it counts on."""
    scan = next(scan for scan in program.join.scans if clock_of(scan.alias).name == clock)
    assert isinstance(scan.window, Rows), "only ROWS windows have clocks"
    readers = [one for one in program.operators if isinstance(one, Reader) and one.alias == scan.alias]
    horizons = [horizon(reader, program.join, progress) for reader in readers]
    if not readers:  # it is only told to others
        return ticks[-1:]
    if UNKNOWN in horizons:
        return ticks
    # Witnesses linger for a window's length, and the rows they stand against reach back another.
    first = min(axes[scan.alias].first(reached) for reached in horizons) - 2 * scan.window.count
    return tuple(one for one in ticks if one.max_ordinal >= first) or ticks[-1:]
