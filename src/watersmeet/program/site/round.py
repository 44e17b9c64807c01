"""The operators of a site in one micro-batch, bucket by bucket.

A task is a picklable value that is called with the number of its bucket and returns what it filed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa

from watersmeet.program.finish.combine import finished
from watersmeet.program.join.match import pairs
from watersmeet.program.join.probe import Relation
from watersmeet.program.operators import Announce, Form, Gather, Join, Operator, Pair, Probe, ProjectKeys, Semijoin
from watersmeet.program.site.combinations import accepted_pairs, answer_time, in_span
from watersmeet.program.site.filing import Made, file_flow, pack_for_others, routed, sort_rows, where
from watersmeet.program.site.inputs import Inputs, Segments, Watermarks, low_watermark
from watersmeet.program.site.part import JoinPart, counting_of, ordinal_name
from watersmeet.program.site.probe_groups import ProbeGroup
from watersmeet.program.site.probing import Probing
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.semijoining import Semijoining
from watersmeet.program.site.sides import Sides
from watersmeet.program.storage.segments import HIGH, I64, LOW, TS, class_column, column
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.sizes import split_rows, united
from watersmeet.query.windows import AsOf


@dataclass(frozen=True)
class Round:
    """Some operators of a site in one bucket a task."""

    program: SiteProgram
    shelf: Shelf
    groups: tuple[ProbeGroup, ...]
    operators: tuple[tuple[str, Operator], ...]  # the others, each with the name of its join
    buckets: int
    old: Segments
    new: Segments
    clocks: Segments
    before: Watermarks  # of each flow before this micro-batch
    now: Watermarks
    starting: frozenset[str] = frozenset()  # joins that run for the first time: all rows are new to them

    def __call__(self, bucket: int) -> list[Made]:
        work = _Bucket(self, bucket)
        made = []
        for group in self.groups:
            made += work.probe_together(group)
        for name, operator in self.operators:
            part = self.program.part(name)
            table = work.run(part, operator)
            if table is not None and table.num_rows:
                made += [work.file(part, operator, rows) for rows in split_rows(table)]
        return made


class _Bucket:
    """The operators of a round over the rows of one bucket; what one makes, the next can use at once."""

    def __init__(self, task: Round, bucket: int) -> None:
        self._task = task
        self._program = task.program
        self._inputs = Inputs(task, bucket)
        self._operators = frozenset(task.operators)
        self._fresh: dict[str, list[pa.Table]] = {}  # by relation
        self._sides = Sides(self._inputs, task.now, self._fresh)
        self._probing = Probing(self._inputs, task.program, task.now)
        self._semijoining = Semijoining(self._inputs, self._sides, task.program, task.now, self._fresh)

    def run(self, part: JoinPart, operator: Operator) -> pa.Table | None:
        match operator:
            case Probe():
                return self._probing.probe(part, operator)
            case Join():
                return self._run_join(part, operator)
            case Pair():
                return self._run_pair(part, operator)
            case Semijoin():
                return self._semijoining.semijoin(part, operator)
            case Gather():
                return self._semijoining.gather(part, operator)
            case Announce():
                return self._semijoining.announce(part, operator)
            case ProjectKeys():
                return self._semijoining.project(part, operator)
            case _:
                assert_never(operator)

    def probe_together(self, group: ProbeGroup) -> list[Made]:
        """Probe once for several joins, and file what each of them finds."""
        found = self._probing.together(group)
        return [self.file(part, operator, rows) for part, operator, table in found for rows in split_rows(table)]

    def file(self, part: JoinPart, operator: Operator, table: pa.Table) -> Made:
        """File what an operator made; readers in this round get it as it is, and it is kept only for later ones."""
        flow, key = part.flow(operator.out), operator.key
        if operator.out.form is Form.RESULT:
            payloads = pack_for_others(self._program, self._task.shelf, flow, table, part)
            results = self._task.shelf.put("results", table).path if part.finishes or part.partials else None
            return Made(flow, table.num_rows, payloads=payloads, results=results)
        readers = [o for o in part.program.operators if operator.out in o.inputs]
        near = [o for o in readers if o.key == key and (part.name, o) in self._operators]
        if near:
            fresh = sort_rows(table, key)
            for sub_plans in {o.sub_plans for o in near}:
                rows = where(fresh, routed(fresh, part.route(operator.out, sub_plans), key))
                if rows.num_rows:
                    self._fresh.setdefault(part.relation(operator.out, key, sub_plans), []).append(rows)
            if operator.out.form is Form.POINT and len(readers) == len(near):
                waiting = min(low_watermark(part, o, self._task.now) for o in near)
                keeping = where(table, column(table, TS) >= waiting)
                kept = file_flow(self._program, self._task.shelf, flow, keeping, part=part, travels=False, key=key)
                sent = pack_for_others(self._program, self._task.shelf, flow, table, part, key)
                return Made(flow, table.num_rows, kept.segments, sent)
        return file_flow(self._program, self._task.shelf, flow, table, part=part, key=key)

    def _run_join(self, part: JoinPart, operator: Join) -> pa.Table | None:
        left = self._sides.side(part, operator, operator.left)
        right = self._sides.side(part, operator, operator.right)
        axis = self._inputs.axis(part, operator.alias)
        tables = []
        for every in pairs(left, right, operator.checks):
            found = accepted_pairs(part, every, operator.bound, (operator.alias,))
            left_rows, right_rows = found.left_rows, found.right_rows
            if axis.counts_rows:
                ours = found.left.gather(left_rows, [TS])[0].to_numpy()
                theirs = found.right.gather(right_rows, [TS])[0].to_numpy()
                is_table = isinstance(part.join.scan(operator.alias).window, AsOf)  # whose rows are never the latest
                wins = is_table or part.join.position(operator.head) > part.join.position(operator.alias)
                is_head = np.flatnonzero((theirs < ours) | ((theirs == ours) & wins))
                left_rows, right_rows = left_rows[is_head], right_rows[is_head]
            if len(left_rows):
                at = found.left.gather(left_rows, [TS])[0]
                times = answer_time(part, at) if operator.out.form is Form.RESULT else {TS: at}
                sides = (found.left, left_rows, operator.bound), (found.right, right_rows, (operator.alias,))
                tables.append(self._combined(part, operator, times, *sides))
        return united(tables) if tables else None

    def _run_pair(self, part: JoinPart, operator: Pair) -> pa.Table | None:
        left = self._sides.side(part, operator, operator.left)
        right = self._sides.side(part, operator, operator.right)
        tables = []
        is_last = operator.out.form is Form.RESULT
        for every in pairs(left, right, operator.checks):
            found = accepted_pairs(part, every, operator.left_bound, operator.right_bound)
            rows, low, high = (found.left_rows, found.right_rows), found.low, found.high
            own = in_span(part.heads, low // len(part.join.scans), is_last=is_last)
            if own is not None:
                rows, low, high = (rows[0][own], rows[1][own]), low[own], high[own]
            if not len(low):
                continue
            latest = low // len(part.join.scans)
            sides = (found.left, rows[0], operator.left_bound), (found.right, rows[1], operator.right_bound)
            times = answer_time(part, latest) if is_last else {LOW: low, HIGH: high} | _ordinals(part, operator, *sides)
            tables.append(self._combined(part, operator, times, *sides))
        return united(tables) if tables else None

    def _combined(
        self,
        part: JoinPart,
        operator: Join | Pair,
        times: Mapping[str, object],
        *sides: tuple[Relation, I64, tuple[str, ...]],
    ) -> pa.Table:
        """Pairs with the columns of both sides, and the class columns that later joins need."""
        is_last = operator.out.form is Form.RESULT
        left_has = set(sides[0][0].runs[0].rows.column_names)
        classes = [] if is_last else [class_column(number) for number in operator.carried]
        own = [name for name in classes if name in left_has], [name for name in classes if name not in left_has]
        columns = dict(times)
        kept = part.join.kept_of([alias for _, _, bound in sides for alias in bound])
        for (relation, rows, bound), more in zip(sides, own, strict=True):
            ours = {name for alias in bound for name in part.join.scan(alias).columns}
            names = [*more, *(name for name in kept if name in ours)]
            columns |= dict(zip(names, relation.gather(rows, names), strict=True))
        return finished(part.join, columns, len(sides[0][1])) if is_last else pa.table(columns)


def _ordinals(part: JoinPart, operator: Pair, *sides: tuple[Relation, I64, tuple[str, ...]]) -> dict[str, pa.Array]:
    """The ordinals of the rows of pairs whose windows count them: how long they last shows later."""
    found = {}
    for flow, (relation, rows, bound) in zip(operator.inputs, sides, strict=True):
        for alias in bound:
            if alias in counting_of(part, operator):
                (values,) = relation.gather(rows, [ordinal_name(part, flow, alias)])
                found[ordinal_name(part, operator.out, alias)] = values
    return found
