"""Semijoins and what they need of the other side, in one bucket: keys, announced spans and gathered rows."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from watersmeet.program.join.announce import continued, ended_spans, span_run, uncovered
from watersmeet.program.join.axis import Axis
from watersmeet.program.join.match import Meeting, first_meetings, first_of_any
from watersmeet.program.join.probe import Relation
from watersmeet.program.operators import Announce, Form, Gather, ProjectKeys, Semijoin
from watersmeet.program.site.filing import during, where, with_selected
from watersmeet.program.site.inputs import Inputs, Watermarks, low_watermark
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.roles import axis_alias, role
from watersmeet.program.site.sides import Sides
from watersmeet.program.storage.segments import HIGH, KEY, LOW, ORDINAL, TS, column, key_order
from watersmeet.program.storage.sizes import united
from watersmeet.program.storage.wire import UNKNOWN


class Semijoining:
    """Runs operators that say which keys or rows match."""

    def __init__(
        self, inputs: Inputs, sides: Sides, program: SiteProgram, now: Watermarks, fresh: Mapping[str, list[pa.Table]]
    ) -> None:
        self._inputs = inputs
        self._sides = sides
        self._program = program
        self._now = now
        self._fresh = fresh  # by relation, what operators have made in this round

    def semijoin(self, part: JoinPart, operator: Semijoin) -> pa.Table | None:
        subject = self._sides.side(part, operator, operator.subject)
        alive_from = self._alive_from(part, operator, operator)
        tables = []
        for relation, rows in first_meetings(subject, self._sides.witnesses(part, operator), alive_from):
            names = relation.runs[0].rows.column_names
            tables.append(pa.table(dict(zip(names, relation.gather(rows, names), strict=True))))
        if not tables:
            return None
        table = united(tables)
        spare = {Form.SPAN: [], Form.ROW: [KEY]}.get(operator.out.form, [KEY, ORDINAL])
        return table.drop_columns([name for name in spare if name in table.column_names])

    def _alive_from(self, part: JoinPart, operator: Semijoin | Gather, member: Semijoin) -> int | None:
        """The place before which rows of a subject have ended: they have been sent or are wanted by no one.

        What they met may be forgotten by now (`retention.py`), and a witness that comes late may reach back to them:
        a filter is as wide as its batch, and a reduced row, once it is found, is about its whole window.
        """
        if role(member, member.subject) is Form.POINT:
            return None  # points that are over are not even read
        mark = low_watermark(part, operator, self._inputs.watermarks_before(part))
        return None if mark == UNKNOWN else self._inputs.axis(part, axis_alias(member, member.subject)).first(mark)

    def gather(self, part: JoinPart, operator: Gather) -> pa.Table | None:
        """Rows that any semijoin finds now and none has found before, with the columns of the first of them."""
        views = {alias: part.views[alias] for alias in operator.aliases}
        relation = part.relation(operator.members[0].subject, operator.key, operator.sub_plans)

        def is_seen(table: pa.Table) -> bool:
            """Rows that some alias cannot see came before its join did, and are for none of them."""
            return all(self._inputs.through(view, relation, table)[0].num_rows == len(table) for view in views.values())

        needs_check = self._program.revision > 1 and len(views) > 1
        meetings = [
            Meeting(
                self._sides.side(part, semijoin, semijoin.subject, is_seen if needs_check else _every),
                self._sides.witnesses(part, semijoin),
                self._alive_from(part, operator, semijoin),
            )
            for semijoin in operator.semijoins
        ]
        sides = {member.subject.name: met.subject for member, met in zip(operator.members, meetings, strict=True)}
        tables = []
        for is_new, rows in first_of_any(meetings):
            seen = [(sides[alias].new if is_new else sides[alias].old) for alias in operator.aliases]
            names = seen[0].runs[0].rows.column_names
            columns = dict(zip(names, seen[0].gather(rows, names), strict=True))
            table = pa.table(columns).drop_columns([KEY])
            if any(copy.bit is not None for copy in operator.copies):
                table = with_selected(table, [relation.accepts(rows) for relation in seen])
            tables.append(table)
        return united(tables) if tables else None

    def announce(self, part: JoinPart, operator: Announce) -> pa.Table | None:
        axis = self._inputs.axis(part, operator.alias)
        rows = self._sides.side(part, operator, operator.rows)
        keys = self._sides.side(part, operator, operator.out)
        announced = [uncovered(rows.new, keys.both)]
        start, stop = (
            self._due(part, operator, axis, marks) for marks in (self._inputs.watermarks_before(part), self._now)
        )
        ended = ended_spans(keys.both, announced[0], rows.new, start, stop)
        while len(ended[0]):
            known = Relation((*keys.both.runs, *(span_run(spans) for spans in announced)))
            more = continued(ended, known, rows.both)
            announced.append(more)
            ended = more[0][more[2] < stop], more[2][more[2] < stop]
        whole = [np.concatenate(values) for values in zip(*announced, strict=True)]
        if not len(whole[0]):
            return None
        return pa.table({KEY: whole[0], LOW: whole[1], HIGH: whole[2]})

    def _due(self, part: JoinPart, operator: Announce, axis: Axis, marks: Watermarks) -> int:
        """The place up to which every presence must be announced: watermark and askers have got so far."""
        mark = marks.get(part.mark(operator.rows), UNKNOWN)
        places = [UNKNOWN if mark == UNKNOWN else axis.first(mark)]
        if not axis.counts_rows:  # ordinals are translated only as far as the watermark anyway
            paces = (marks.get(f"{part.name}:{name}", UNKNOWN) for name in part.program.paces_of(operator.alias))
            places += [axis.first(pace + 1) for pace in paces if pace != UNKNOWN]
        return max(places)

    def project(self, part: JoinPart, operator: ProjectKeys) -> pa.Table | None:
        """The distinct keys of new rows, each from its first time to its last; for a tree's input, its interval."""
        if operator.alias:
            runs = self._sides.side(part, operator, operator.rows).new.runs
            rows = [(run.keys[w], run.visible.begins()[w], run.visible.ends(w)) for run in runs for w in [run.accepted]]
        else:
            relation = part.relation(operator.rows, operator.key, operator.sub_plans)
            fresh = [*self._inputs.new(part, relation), *self._fresh.get(relation, [])]
            fresh = [where(table, during(table, part.heads)) for table in fresh]
            tables = [self._inputs.seen(part, operator.rows, relation, table) for table in fresh]
            rows = [(column(table, KEY), column(table, TS), column(table, TS)) for table in tables if table.num_rows]
        if not rows:
            return None
        keys, low, high = (np.concatenate(values) for values in zip(*rows, strict=True))
        if not len(keys):  # rows came, but none that this alias selects
            return None
        order = key_order(keys, low)
        keys, low, high = keys[order], low[order], high[order]
        first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        return pa.table({KEY: keys[first], LOW: low[first], HIGH: np.maximum.reduceat(high, first)})


def _every(table: pa.Table) -> bool:
    return True
