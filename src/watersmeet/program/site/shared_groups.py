"""State and answers of GROUP BY queries that share records (see program.finish.shared), in the ledger of a site.

All sites keep the records of a shape under its name in `groups`: the query's site until windows have ended, others
until panes have. Whether queries share changes with the deployment; records stay what they are, so a query is answered
from its own and from shared ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from watersmeet.program.finish.groups import first_pane_needed
from watersmeet.program.finish.model import Finish
from watersmeet.program.finish.shared import (
    SET,
    Member,
    RecordShape,
    as_shared,
    ended_shared,
    records_of_member,
)
from watersmeet.program.site.families import stored_columns
from watersmeet.program.site.filing import Made, pack_for_others
from watersmeet.program.site.grouping import GroupRecords, State
from watersmeet.program.site.independent import of_all_queries
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.travelling import decomposed, numbered, unnumbered
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Part, Segment, Shelf
from watersmeet.program.storage.wire import UNKNOWN, naming_damage
from watersmeet.query.model import MEMBER, Expression, Grouping, SelectItem

MEMBER_ITEM = SelectItem("#member", Expression(MEMBER.sql, (MEMBER,), "bigint"))
_SETS = "sets of "  # in front of a flow of shared records: the sets that both ends know

Groups = dict[str, State]


@dataclass(frozen=True)
class SharedQuery:
    """A query whose records others may share."""

    part: JoinPart
    finish: Finish
    shape: RecordShape
    member: Member
    places: tuple[int, ...]  # of its aggregates among those of the shape

    @property
    def grouping(self) -> Grouping:
        assert self.finish.grouping is not None, "a query with groups"
        return self.finish.grouping


def shared_query(part: JoinPart, finish: Finish) -> SharedQuery | None:
    """What a query may share; None where its records are its own in any case."""
    shape, grouping = part.shapes.get(finish.query), finish.grouping
    if shape is None or grouping is None:
        return None
    (view,) = part.views.values()
    columns = stored_columns(view, finish)
    assert columns is not None, "a query with a shape reads stored columns"
    return SharedQuery(part, finish, shape, part.members[finish.query], shape.places(grouping, columns))


class SharedGroups:
    """Adds records that queries share, finds what of them has ended, and evicts them; holds no state."""

    def __init__(self, program: SiteProgram, shelf: Shelf, records: GroupRecords) -> None:
        self._program = program
        self._shelf = shelf
        self._records = records

    def take(self, ledger: SiteLedger, groups: Groups, made: Sequence[Made], shapes: Iterable[RecordShape]) -> None:
        """Add the records of a micro-batch to those of some shapes: made here as rows came, or sent by other sites."""
        senders = sorted({sender for sender, _ in self._program.inbound})
        for shape in shapes:
            paths = [filed.results for filed in made if filed.flow == shape.name and filed.results is not None]
            found = self._records.arrived(shape, paths)
            for sender in senders:
                flow = shape.arrives_as(sender)
                tables = [
                    self._shelf.get(filed.results) for filed in made if filed.flow == flow and filed.results is not None
                ]
                if not tables:
                    continue
                known = self._known(groups.get(_SETS + flow, ()))
                size = len(known)
                for table in tables:
                    with naming_damage(sender, self._program.site, ledger.received.get(sender, 0)):
                        records, known = unnumbered(table, known)
                        records = of_all_queries(shape, records)
                    found += self._records.segments(shape, [records])
                if len(known) > size:
                    groups[_SETS + flow] = self._kept_sets(known)
            if found:
                groups[shape.name] = (*groups.get(shape.name, ()), *found)

    def ended(
        self, queries: Sequence[SharedQuery], groups: Mapping[str, State], before: int, now: int
    ) -> tuple[pa.Table, ...]:
        """The groups of windows of queries that are alike, ended between two instants, with whose they are."""
        first = queries[0]
        state = groups.get(first.shape.name, ())
        if now <= before or not state:
            return ()
        due = self._records.tables(segment for segment in state if segment.min_ts < now)
        members = [query.member for query in queries]
        made = ended_shared(first.finish.query, first.shape, first.grouping, first.places, members, due, before, now)
        return tuple(made)

    def own(self, queries: Iterable[SharedQuery | None], groups: Mapping[str, State]) -> list[pa.Table]:
        """The shared records that count for a query, by itself; of several versions where it has some."""
        found = []
        for query in queries:
            if query is not None and (state := groups.get(query.shape.name)):
                tables = self._records.tables(state)
                records = records_of_member(query.shape, query.grouping, query.places, query.member, tables)
                found += [] if records is None else [records]
        return found

    def evict(self, groups: Groups, closed: Mapping[str, int], queries: Sequence[SharedQuery]) -> None:
        """Keep of the records of shapes what windows that have not ended need."""
        by_shape: dict[RecordShape, list[SharedQuery]] = {}
        for query in queries:
            by_shape.setdefault(query.shape, []).append(query)
        for shape, users in by_shape.items():
            state = groups.get(shape.name, ())
            reached = [closed.get(user.finish.definition, UNKNOWN) for user in users]
            if not state or min(reached) == UNKNOWN:
                continue
            windows = [user.grouping.output_window for user in users]
            alive = min(first_pane_needed(window, mark) for window, mark in zip(windows, reached, strict=True))
            longest = max(window.length_us for window in windows)
            state = tuple(segment for segment in state if segment.max_ts >= alive)
            groups[shape.name] = self._records.merged(shape, state, 2 * longest, alive)

    def sent(self, groups: Groups, shape: RecordShape, first_open: int) -> Made | None:
        """The records of panes before an instant, packed for the query's site."""
        state, ended = self._records.without_ended_panes(shape, groups.get(shape.name, ()), first_open)
        groups[shape.name] = self._records.merged(shape, state)
        if ended is None or not ended.num_rows:
            return None
        name = _SETS + shape.name
        known = self._known(groups.get(name, ()))
        records = decomposed(shape, ended, frozenset(known)).sort_by(TS)
        table, all_known = numbered(records, known)
        if len(all_known) > len(known):
            groups[name] = self._kept_sets(all_known)
        payloads = pack_for_others(self._program, self._shelf, shape.name, table)
        return Made(shape.name, table.num_rows, payloads=payloads)

    def _known(self, state: State) -> list[bytes]:
        return [value for table in self._records.tables(state) for value in table.column(SET).to_pylist()]

    def _kept_sets(self, sets: Sequence[bytes]) -> State:
        part = self._shelf.put("sets", pa.table({SET: pa.array(sets, pa.binary())}))
        return (Segment((Part(part.path, part.rows, part.bytes),), 0, 0),)


def shared_states(program: SiteProgram) -> set[str]:
    """The names of all that is kept for shapes of queries."""
    shapes = {shape for part in program.parts for shape in part.shapes.values()}
    senders = {sender for sender, _ in program.inbound}
    names = {shape.name for shape in shapes}
    names |= {_SETS + shape.name for shape in shapes}
    return names | {_SETS + shape.arrives_as(sender) for shape in shapes for sender in senders}


def regrouped(records: GroupRecords, ledger: SiteLedger, program: SiteProgram) -> SiteLedger:
    """The ledger with records that are still to be sent where the next program looks for them.

    Queries may share from now on that had records of their own, and the other way round.
    """
    groups = dict(ledger.groups)
    shapes = {family.shape for family in program.families}
    taken: set[tuple[str, RecordShape]] = set()
    spent = set()
    for part, finish in program.partials:
        shared, flow = shared_query(part, finish), part.records(finish.query, program.site)
        if shared is None:
            continue
        if shared.shape in shapes and finish.query in part.shared:
            own = records.tables(groups.pop(flow, ()))
            if (part.name, shared.shape) in taken:  # queries of one join have the same records
                continue
            taken.add((part.name, shared.shape))
            tables = [as_shared(shared.shape, shared.places, shared.member, table) for table in own]
            groups[shared.shape.name] = (*groups.get(shared.shape.name, ()), *records.segments(shared.shape, tables))
        elif state := ledger.groups.get(shared.shape.name):
            tables = records.tables(state)
            alone = records_of_member(shared.shape, shared.grouping, shared.places, shared.member, tables)
            groups[flow] = (*groups.get(flow, ()), *records.segments(shared.grouping, [] if alone is None else [alone]))
            spent.add(shared.shape.name)
    for name in spent:
        groups.pop(name, None)
    return replace(ledger, groups={name: state for name, state in groups.items() if state})


def detached(records: GroupRecords, ledger: SiteLedger, old: SiteProgram, program: SiteProgram) -> SiteLedger:
    """The ledger with records of versions that are over as those of their queries alone, which go on with others.

    Shared records count for a version from when to when it was in force, and nobody says that of one that is gone.
    """
    groups = dict(ledger.groups)
    left = {(part.name, finish.query) for part, finish in program.finishes}
    going_on = {finish.definition for _, finish in program.finishes}
    for part, finish in old.finishes:
        shared = shared_query(part, finish)
        if shared is None or (part.name, finish.query) in left or finish.definition not in going_on:
            continue
        tables = records.tables(groups.get(shared.shape.name, ()))
        alone = records_of_member(shared.shape, shared.grouping, shared.places, shared.member, tables)
        if alone is not None:
            own = records.segments(shared.grouping, [alone])
            groups[finish.definition] = (*groups.get(finish.definition, ()), *own)
    return replace(ledger, groups=groups)
