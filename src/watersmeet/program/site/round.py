"""The operators of a site in one micro-batch, bucket by bucket.

A task is a picklable value that is called with the number of its bucket and returns what it filed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import numpy as np
import pyarrow as pa

from watersmeet.program.finish.combine import finished
from watersmeet.program.join.announce import continued, ended_spans, span_run, uncovered
from watersmeet.program.join.axis import Axis
from watersmeet.program.join.conditions import newly_complete
from watersmeet.program.join.match import Meeting, Side, Witnesses, first_meetings, first_of_any, pairs
from watersmeet.program.join.probe import (
    LATEST,
    LIMIT,
    Combinations,
    Lookup,
    Relation,
    Run,
    carried_run,
    join,
)
from watersmeet.program.join.shared import Membership, SharedLookup, shared_join
from watersmeet.program.operators import (
    Announce,
    Flow,
    Form,
    Gather,
    Join,
    Operator,
    Pair,
    Probe,
    Project,
    Semijoin,
)
from watersmeet.program.site.combinations import (
    accepted,
    accepted_of,
    accepted_pairs,
    answer_time,
    columns_of,
    in_span,
    membership,
)
from watersmeet.program.site.filing import (
    Made,
    during,
    file_flow,
    pack_for_others,
    routed,
    sort_rows,
    where,
    with_selected,
)
from watersmeet.program.site.inputs import (
    Inputs,
    Segments,
    Watermarks,
    between,
    head_position,
    low_watermark,
    span_of,
    visibility_of,
)
from watersmeet.program.site.probe_groups import ProbeGroup, owners_of
from watersmeet.program.site.program import (
    JoinPart,
    SiteProgram,
    Span,
    axis_alias,
    counting_of,
    needs_rows,
    ordinal_name,
    role,
)
from watersmeet.program.storage import bloom
from watersmeet.program.storage.bloom import Filter
from watersmeet.program.storage.segments import (
    HIGH,
    I64,
    KEY,
    LOW,
    ORDINAL,
    TS,
    class_column,
    column,
    key_order,
)
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.sizes import split_rows, united
from watersmeet.program.storage.wire import UNKNOWN
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

    def run(self, part: JoinPart, operator: Operator) -> pa.Table | None:
        match operator:
            case Probe():
                return self._probe(part, operator)
            case Join():
                return self._run_join(part, operator)
            case Pair():
                return self._run_pair(part, operator)
            case Semijoin():
                return self._run_semijoin(part, operator)
            case Gather():
                return self._run_gather(part, operator)
            case Announce():
                return self._announce(part, operator)
            case Project():
                return self._project(part, operator)
            case _:
                assert_never(operator)

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

    # -- the symmetric multi-way join

    def _probe(self, part: JoinPart, operator: Probe) -> pa.Table | None:
        aliases = [flow.name for flow in operator.windows]
        position = aliases.index(operator.head)
        if operator.left.form is Form.DELTA:
            relation = part.relation(operator.left, operator.key, operator.sub_plans)
            carrier = Relation(tuple(carried_run(table) for table in self._inputs.new(part, relation)))
        else:
            carrier = self._window(part, operator, operator.left, operator.head, new=True, old=False)
        if not len(carrier):
            return None
        owners = {c: 0 for alias in operator.bound for c in part.join.scan(alias).classes}
        lookups, reached = [], [operator.bound]
        for one in operator.lookups:
            # A new combination belongs to the last of its aliases that has a new row: later ones show only old rows.
            is_earlier = aliases.index(one.alias) < position
            window = self._window(part, operator, one.rows, one.alias, new=is_earlier, old=True)
            reached.append((one.alias,))
            conditions = newly_complete(part.join.conditions, [sum(reached[:-1], ())], sum(reached, ()))
            accepts = partial(accepted, conditions, tuple(reached)) if conditions else None
            lookups.append(Lookup(window, tuple((c, owners[c]) for c in one.checks), accepts))
            for c in part.join.scan(one.alias).classes:
                owners.setdefault(c, len(lookups))
        relations = (carrier, *(lookup.relation for lookup in lookups))
        names = [[name for alias in own for name in part.join.scan(alias).columns] for own in reached]
        is_last = operator.out.form is Form.RESULT
        tables = []
        for found in join(carrier, lookups):
            own = in_span(part.heads, found.latest, is_last=is_last)
            combinations = found if own is None else found.take(own)
            if len(combinations):
                tables.append(self._extended(part, operator, combinations, relations, names, owners))
        return united(tables) if tables else None

    def probe_together(self, group: ProbeGroup) -> list[Made]:
        """Probe once for several joins; what each of them finds."""
        members = [(self._program.part(name), operator) for name, operator in group.members]
        part, operator = members[0]
        aliases = [flow.name for flow in operator.windows]
        position = aliases.index(operator.head)
        order = [position, *(aliases.index(one.alias) for one in operator.lookups)]
        carrier = self._shared_window(members, position, operator.left, new=True, old=False)
        if not len(carrier[0]):
            return []
        lookups = []
        for number, one in enumerate(operator.lookups):
            is_earlier = order[number + 1] < position
            relation, memberships = self._shared_window(members, order[number + 1], one.rows, new=is_earlier, old=True)
            columns = part.columns(one.rows, one.checks)
            owners = owners_of(part, operator, one.checks)
            checks = tuple((column_, *owner) for column_, owner in zip(columns, owners, strict=True))
            lookups.append(SharedLookup(relation, memberships, checks))
        relations = (carrier[0], *(one.relation for one in lookups))
        tables: dict[int, list[pa.Table]] = {}
        for every, every_set in shared_join(*carrier, lookups):
            own = in_span(part.heads, every.latest, is_last=True)
            found, sets = (every, every_set) if own is None else (every.take(own), every_set[own])
            for number, (member, probe) in enumerate(members):
                which = np.flatnonzero(sets & np.uint64(1 << number))
                some = accepted_of(member, probe, found.take(which), relations)
                if len(some):
                    tables.setdefault(number, []).append(columns_of(member, probe, some, relations))
        return [
            self.file(*members[number], rows) for number, some in tables.items() for rows in split_rows(united(some))
        ]

    def _shared_window(
        self, members: "Sequence[tuple[JoinPart, Probe]]", position: int, flow: Flow, *, new: bool, old: bool
    ) -> tuple[Relation, tuple[Membership, ...]]:
        """The stored rows of an alias of all members, and which members take them."""
        part, operator = members[0]
        views = [own.views[probe.windows[position].name] for own, probe in members]
        stored = self._program.stored[views[0].stream]
        relation = part.relation(flow, operator.key)
        tables = self._chosen(part, operator, relation, new=new, old=old)
        users: dict[int, int] = {}
        for number, view in enumerate(views):
            users[view.selection] = users.get(view.selection, 0) | 1 << number
        index = next(one for one in self._program.indexes[views[0].flow] if one.relation == relation)
        everyone = len(stored.selections) == 1 or index.selections == (views[0].selection,)
        runs, memberships = [], []
        for table in tables:
            if self._program.revision > 1:
                table = self._inputs.filled(table, views, relation)
            visible = self._inputs.instants(part, views[0].alias, table)
            runs.append(Run(column(table, KEY), visible, table, span_of(visible)))
            memberships.append(membership(stored, table, users, everyone=everyone))
        return Relation(tuple(runs)), tuple(memberships)

    def _chosen(self, part: JoinPart, operator: Probe, relation: str, *, new: bool, old: bool) -> list[pa.Table]:
        """The tables of a window: new rows, old ones or both; where rows are counted, watermarks say which are new."""
        arrived_now, arrived_before = self._inputs.new(part, relation), self._inputs.old(part, relation)
        if needs_rows(part):
            before = low_watermark(part, operator, self._inputs.watermarks_before(part))
            now = low_watermark(part, operator, self._task.now)
            every = [*arrived_before, *arrived_now]
            arrived_before = [between(table, UNKNOWN, before) for table in every]
            arrived_now = [between(table, before, now) for table in every]
        chosen = [*(arrived_before if old else ()), *(arrived_now if new else ())]
        return [table for table in chosen if table.num_rows]

    def _extended(
        self,
        part: JoinPart,
        operator: Probe,
        found: Combinations,
        relations: Sequence[Relation],
        names: Sequence[Sequence[str]],
        owners: Mapping[int, int],
    ) -> pa.Table:
        columns = {
            name: values
            for relation, rows, wanted in zip(relations, found.rows, names, strict=True)
            for name, values in zip(wanted, relation.gather(rows, wanted), strict=True)
        }
        if operator.out.form is Form.RESULT:
            return finished(part.join, {**columns, **answer_time(part, found.latest)}, len(found))
        classes = {
            class_column(c): relations[owners[c]].gather(found.rows[owners[c]], [class_column(c)])[0]
            for c in operator.carried
        }
        return pa.table({LATEST: found.latest, LIMIT: found.limit, **classes, **columns})

    def _window(self, part: JoinPart, operator: Probe, flow: Flow, alias: str, *, new: bool, old: bool) -> Relation:
        """The rows of an alias, new ones, old ones or both; where rows are counted, watermarks decide what is new."""
        relation = part.relation(flow, operator.key, operator.sub_plans)
        tables = self._chosen(part, operator, relation, new=new, old=old)
        visibility = partial(self._inputs.instants, part, alias)
        return self._inputs.relation(part, flow, relation, tables, visibility, ("instants", alias))

    # -- joins of one head, and of trees

    def _run_join(self, part: JoinPart, operator: Join) -> pa.Table | None:
        left = self._side(part, operator, operator.left)
        right = self._side(part, operator, operator.right)
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
        left = self._side(part, operator, operator.left)
        right = self._side(part, operator, operator.right)
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

    # -- semijoins and keys

    def _run_semijoin(self, part: JoinPart, operator: Semijoin) -> pa.Table | None:
        subject = self._side(part, operator, operator.subject)
        alive_from = self._alive_from(part, operator, operator)
        tables = []
        for relation, rows in first_meetings(subject, self._witnesses(part, operator), alive_from):
            names = relation.runs[0].rows.column_names
            tables.append(pa.table(dict(zip(names, relation.gather(rows, names), strict=True))))
        if not tables:
            return None
        table = united(tables)
        spare = {Form.SPAN: [], Form.ROW: [KEY]}.get(operator.out.form, [KEY, ORDINAL])
        return table.drop_columns([name for name in spare if name in table.column_names])

    def _witnesses(self, part: JoinPart, operator: Semijoin) -> Witnesses:
        if operator.witness.bloom:
            return Witnesses(_NOTHING, *self._filters(part, operator))
        return Witnesses(self._side(part, operator, operator.witness))

    def _alive_from(self, part: JoinPart, operator: Semijoin | Gather, member: Semijoin) -> int | None:
        """The place before which rows of a subject have ended: they have been sent or are wanted by no one.

        What they met may be forgotten by now (`retention.py`), and a witness that comes late may reach back to them:
        a filter is as wide as its batch, and a reduced row, once it is found, is about its whole window.
        """
        if role(member, member.subject) is Form.POINT:
            return None  # points that are over are not even read
        mark = low_watermark(part, operator, self._inputs.watermarks_before(part))
        return None if mark == UNKNOWN else self._inputs.axis(part, axis_alias(member, member.subject)).first(mark)

    def _run_gather(self, part: JoinPart, operator: Gather) -> pa.Table | None:
        """Rows that any semijoin finds now and none has found before, with the columns of the first of them."""
        views = {alias: part.views[alias] for alias in operator.aliases}
        relation = part.relation(operator.members[0].subject, operator.key, operator.sub_plans)

        def is_seen(table: pa.Table) -> bool:
            """Rows that some alias cannot see came before its join did, and are for none of them."""
            return all(self._inputs.through(view, relation, table)[0].num_rows == len(table) for view in views.values())

        needs_check = self._program.revision > 1 and len(views) > 1
        meetings = [
            Meeting(
                self._side(part, one, one.subject, is_seen if needs_check else _every),
                self._witnesses(part, one),
                self._alive_from(part, operator, one),
            )
            for one in operator.semijoins
        ]
        sides = {one.subject.name: met.subject for one, met in zip(operator.members, meetings, strict=True)}
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

    def _announce(self, part: JoinPart, operator: Announce) -> pa.Table | None:
        axis = self._inputs.axis(part, operator.alias)
        rows = self._side(part, operator, operator.rows)
        keys = self._side(part, operator, operator.out)
        announced = [uncovered(rows.new, keys.both)]
        start, stop = (
            self._due(part, operator, axis, marks) for marks in (self._inputs.watermarks_before(part), self._task.now)
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

    def _project(self, part: JoinPart, operator: Project) -> pa.Table | None:
        """The distinct keys of new rows, each from its first time to its last; for a tree's input, its interval."""
        if operator.alias:
            runs = self._side(part, operator, operator.rows).new.runs
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

    # -- inputs

    def _side(
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


def _ordinals(part: JoinPart, operator: Pair, *sides: tuple[Relation, I64, tuple[str, ...]]) -> dict[str, pa.Array]:
    """The ordinals of the rows of pairs whose windows count them: how long they last shows later."""
    found = {}
    for flow, (relation, rows, bound) in zip(operator.inputs, sides, strict=True):
        for alias in bound:
            if alias in counting_of(part, operator):
                (values,) = relation.gather(rows, [ordinal_name(part, flow, alias)])
                found[ordinal_name(part, operator.out, alias)] = values
    return found


_NOTHING = Side(Relation(()), Relation(()))


def _every(table: pa.Table) -> bool:
    return True
