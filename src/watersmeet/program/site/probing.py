"""The symmetric multi-way join in one bucket: new rows of a head look up the windows of all others by one key."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from watersmeet.program.finish.combine import finished
from watersmeet.program.join.conditions import newly_complete
from watersmeet.program.join.probe import LATEST, LIMIT, Combinations, Relation, RelationLookup, Run, carried_run, join
from watersmeet.program.join.shared import Membership, SharedLookup, shared_join
from watersmeet.program.operators import Flow, Form, Probe
from watersmeet.program.site.combinations import accepted, accepted_of, answer_time, columns_of, in_span, membership
from watersmeet.program.site.inputs import Inputs, Watermarks, between, low_watermark, span_of
from watersmeet.program.site.part import JoinPart, needs_rows
from watersmeet.program.site.probe_groups import ProbeGroup, owners_of
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.segments import KEY, class_column, column
from watersmeet.program.storage.sizes import united
from watersmeet.program.storage.wire import UNKNOWN


class Probing:
    """Probes windows by one key, for one join or for several at once."""

    def __init__(self, inputs: Inputs, program: SiteProgram, now: Watermarks) -> None:
        self._inputs = inputs
        self._program = program
        self._now = now

    def probe(self, part: JoinPart, operator: Probe) -> pa.Table | None:
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
            lookups.append(RelationLookup(window, tuple((c, owners[c]) for c in one.checks), accepts))
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

    def together(self, group: ProbeGroup) -> Iterable[tuple[JoinPart, Probe, pa.Table]]:
        """Probe once for several joins; what each of them finds."""
        members = [(self._program.part(name), operator) for name, operator in group.members]
        part, operator = members[0]
        aliases = [flow.name for flow in operator.windows]
        position = aliases.index(operator.head)
        order = [position, *(aliases.index(lookup.alias) for lookup in operator.lookups)]
        carrier = self._shared_window(members, position, operator.left, new=True, old=False)
        if not len(carrier[0]):
            return []
        lookups = []
        for number, lookup in enumerate(operator.lookups):
            is_earlier = order[number + 1] < position
            relation, memberships = self._shared_window(
                members, order[number + 1], lookup.rows, new=is_earlier, old=True
            )
            columns = part.columns(lookup.rows, lookup.checks)
            owners = owners_of(part, operator, lookup.checks)
            checks = tuple((column_, *owner) for column_, owner in zip(columns, owners, strict=True))
            lookups.append(SharedLookup(relation, memberships, checks))
        relations = (carrier[0], *(lookup.relation for lookup in lookups))
        tables: dict[int, list[pa.Table]] = {}
        for every, every_set in shared_join(*carrier, lookups):
            own = in_span(part.heads, every.latest, is_last=True)
            found, sets = (every, every_set) if own is None else (every.take(own), every_set[own])
            for number, (member, probe) in enumerate(members):
                which = np.flatnonzero(sets & np.uint64(1 << number))
                some = accepted_of(member, probe, found.take(which), relations)
                if len(some):
                    tables.setdefault(number, []).append(columns_of(member, probe, some, relations))
        return ((*members[number], united(some)) for number, some in tables.items())

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
        index = next(index for index in self._program.indexes[views[0].flow] if index.relation == relation)
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
            now = low_watermark(part, operator, self._now)
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
