"""The inputs of joins and semijoins in one bucket: new and old rows with the intervals that an operator is about."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from watersmeet.program.join.match import Side, Witnesses
from watersmeet.program.join.probe import Relation
from watersmeet.program.operators import Flow, Form, Operator, Pair, Semijoin
from watersmeet.program.site.filing import during, where
from watersmeet.program.site.inputs import Inputs, Watermarks, head_position, low_watermark, visibility_of
from watersmeet.program.site.part import JoinPart, counting_of
from watersmeet.program.site.roles import axis_alias, role
from watersmeet.program.site.spans import Span
from watersmeet.program.storage import bloom
from watersmeet.program.storage.bloom import Filter
from watersmeet.program.storage.segments import LOW, TS, column
from watersmeet.program.storage.wire import UNKNOWN


class Sides:
    """What operators read, as runs of rows with intervals."""

    def __init__(self, inputs: Inputs, now: Watermarks, fresh: Mapping[str, list[pa.Table]]) -> None:
        self._inputs = inputs
        self._now = now
        self._fresh = fresh  # by relation, what operators have made in this round

    def side(
        self, part: JoinPart, operator: Operator, flow: Flow, gathered: Callable[[pa.Table], bool] | None = None
    ) -> Side:
        """An input as runs with the intervals that the operator is about.

        Semijoins that are done together see the same rows of the tables that are `gathered`, each in its own way.
        """
        relation = part.relation(flow, operator.key, operator.sub_plans)
        form = role(operator, flow)
        axis = self._inputs.axis(part, axis_alias(operator, flow))
        waits = form is Form.POINT and flow == operator.inputs[0] and gathered is None
        # Points before the low watermark have met all they can: nothing that comes now is for them.
        done = low_watermark(part, operator, self._inputs.watermarks_before(part)) if waits else UNKNOWN
        new = [*self._inputs.new(part, relation), *self._fresh.get(relation, [])]
        old = self._inputs.old(part, relation, done)
        if gathered is not None:
            new, old = ([table for table in tables if gathered(table)] for tables in (new, old))
        if form is Form.POINT or part.view_of(flow) is not None:  # rows of other versions' heads are not for this one
            is_head = form is Form.POINT and gathered is None
            span = part.heads if is_head else Span(None, part.heads.until_us)
            new, old = ([where(table, during(table, span)) for table in tables] for tables in (new, old))
        if waits and isinstance(operator, Semijoin):  # what they met is forgotten: a wide filter might seem the first
            old = [where(table, column(table, TS) >= done) for table in old]
        if axis.counts_rows and form in (Form.POINT, Form.ASK):
            new, old = self._inputs.admitted(part, operator.alias, TS if form is Form.POINT else LOW, new, old)
        head = head_position(part, operator)
        visibility = partial(visibility_of, axis, form, head)
        slot: tuple[object, ...] = (form, axis.position, head if form is not Form.ROW else 0)
        if isinstance(operator, Pair) and counting_of(part, operator):
            new, old = self._inputs.passed(part, operator, form, new, old)
            bound = operator.left_bound if flow == operator.left else operator.right_bound
            visibility, slot = partial(self._inputs.in_time, part, flow, bound), ("in time", form, axis.position)
        narrows = form in (Form.POINT, Form.ROW)
        made = partial(self._inputs.relation, part, flow, relation, visibility=visibility, slot=slot, narrows=narrows)
        return Side(made(tables=new), made(tables=old))

    def witnesses(self, part: JoinPart, operator: Semijoin) -> Witnesses:
        if operator.witness.bloom:
            return Witnesses(_NOTHING, *self._filters(part, operator))
        return Witnesses(self.side(part, operator, operator.witness))

    def _filters(self, part: JoinPart, operator: Semijoin) -> tuple[tuple[Filter, ...], tuple[Filter, ...]]:
        relation = part.relation(operator.witness, operator.key, operator.sub_plans)
        axis, head = self._inputs.axis(part, operator.alias), head_position(part, operator)
        new, old = self._inputs.new(part, relation), self._inputs.old(part, relation)
        if operator.witness.form is Form.ASK and axis.counts_rows:
            new, old = self._inputs.admitted(part, operator.alias, LOW, new, old)
        made = []
        for tables in (new, old):
            filters = []
            for table in tables:
                visible = visibility_of(axis, operator.witness.form, head, table)
                bits = table.column(bloom.BITS).to_pylist()
                filters += [
                    Filter(int(low), int(high), np.frombuffer(data, np.uint8))
                    for low, high, data in zip(visible.begins(), visible.ends(), bits, strict=True)
                ]
            made.append(tuple(filters))
        return made[0], made[1]


_NOTHING = Side(Relation(()), Relation(()))
