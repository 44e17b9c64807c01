"""Outer joins and EXISTS after the join: which combinations of several inner joins are rows (see query.outer).

A row that lacks a partner is known when the watermark of all inner joins has passed the end of its interval: whatever
could match it has been found by then. Until that it waits, and so do the numbers of rows that have a partner; both are
dropped when it is decided. Whole batches are compared by the numbers of their rows.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.plan.nodes import Matching
from watersmeet.program.finish.kernels import are_among, first_places, matched_now
from watersmeet.program.finish.model import Finish, answer_column
from watersmeet.program.join.axis import Clock
from watersmeet.program.storage.segments import I64, column
from watersmeet.program.storage.shelf import Part, Segment, Shelf
from watersmeet.query.outer import ROW_ID, ROW_ORDINAL, ROW_TIME, WHERE_HOLDS, OuterRelation, RelationKind
from watersmeet.query.windows import END_US, Range, Rows, Tumble, Window

END = "#end"  # int64, the last instant at which a row is visible
_NEVER = 1 << 62
_MANY_SEGMENTS = 24  # from which the rows of a relation are written anew as one
_MANY_ROWS = 1 << 14  # that are kept as they are: to put them together with others is to copy them

State = Mapping[str, tuple[Segment, ...]]


@dataclass(frozen=True)
class OuterMatched:
    """The outcome of a micro-batch: the new state, rows that are answers, and how far answers are complete."""

    state: dict[str, tuple[Segment, ...]]
    rows: tuple[pa.Table, ...]  # with answer columns
    complete_to: int  # no answer before this instant is still to come


@dataclass
class _Decided:
    """Rows of a relation that were decided in this micro-batch."""

    rows: list[pa.Table] = field(default_factory=list)
    rejected: list[pa.Table] = field(default_factory=list)  # what the relation, or one before it, does not let through


class MatchRows:
    """Matches the combinations of an outer join's branches, one micro-batch at a time; holds no state."""

    def __init__(self, shelf: Shelf, query: str, matching: Matching, clock: Callable[[str], Clock]) -> None:
        self._shelf = shelf
        self._query = query
        self._matching = matching
        self._windows: dict[str, Window] = dict(matching.windows)
        self._clock = clock  # by alias, of ROWS windows

    def __call__(self, arrived: Mapping[int, Sequence[pa.Table]], state: State, watermark: int) -> OuterMatched:
        """Take new combinations by branch; `watermark` is the instant before which none is still to come."""
        relations = self._matching.relations
        after: dict[str, tuple[Segment, ...]] = {}
        decided: list[_Decided] = []
        answers: list[pa.Table] = []
        for number, relation in enumerate(relations):
            raw = [table for table in arrived.get(relation.branch, ()) if table.num_rows]
            match relation.kind:
                case RelationKind.ALL:
                    decided.append(_Decided(raw))
                case RelationKind.PART:
                    decided.append(self._parts(number, relation, raw, state, after, decided[relation.of]))
                case _:
                    decided.append(self._judged(number, relation, arrived, state, after, decided, watermark))
            if relation.is_output:
                answers += [
                    self._answers(relation, table) for table in decided[-1].rows if not self._is_given(relation, table)
                ]
        waiting = [self._earliest(number, after) for number in range(len(relations))]
        return OuterMatched(after, tuple(table for table in answers if table.num_rows), min([watermark, *waiting]))

    def passes_through(self, branch: int) -> bool:
        """Whether all combinations of a branch are answers as they come."""
        return any(
            relation.branch == branch and self._passes_through(relation) for relation in self._matching.relations
        )

    def _passes_through(self, relation: OuterRelation) -> bool:
        return relation.is_output and relation.kind is RelationKind.ALL

    def _is_given(self, relation: OuterRelation, table: pa.Table) -> bool:
        """Whether rows are answers as they came, in the files in which they are."""
        return self._passes_through(relation) and WHERE_HOLDS not in table.column_names

    def _answers(self, relation: OuterRelation, table: pa.Table) -> pa.Table:
        if WHERE_HOLDS in table.column_names:
            table = table.filter(table.column(WHERE_HOLDS))
        return table.select(list(range(self._matching.answer_columns[relation.branch])))

    # -- rows whose part in another relation must be decided first

    def _parts(
        self,
        number: int,
        relation: OuterRelation,
        raw: Sequence[pa.Table],
        state: State,
        after: dict[str, tuple[Segment, ...]],
        part: _Decided,
    ) -> _Decided:
        name = self._name(number, "rows")
        keys = self._keys(self._matching.relations[relation.of].aliases)
        fresh = [self._with_end(table, self._matching.relations[relation.of]) for table in raw]
        if not part.rows and not part.rejected:
            after[name] = self._appended(state.get(name, ()), fresh)
            return _Decided()
        waiting = _united([*self._tables(state.get(name, ())), *fresh])
        if waiting is None:
            after[name] = ()
            return _Decided()
        right = _is_among(waiting, part.rows, keys)
        wrong = _is_among(waiting, part.rejected, keys)
        after[name] = self._appended((), [waiting.filter(pa.array(~right & ~wrong))])
        return _Decided(
            *([table] if table.num_rows else [] for table in map(waiting.filter, map(pa.array, (right, wrong))))
        )

    # -- rows that have a partner, and rows that have none

    def _judged(
        self,
        number: int,
        relation: OuterRelation,
        arrived: Mapping[int, Sequence[pa.Table]],
        state: State,
        after: dict[str, tuple[Segment, ...]],
        decided: Sequence[_Decided],
        watermark: int,
    ) -> _Decided:
        relations = self._matching.relations
        keys, aliases = self._keys(relation.aliases), relation.aliases
        columns = [*keys, *(f"{alias}.{ROW_TIME}" for alias in aliases)]
        new_rows: Sequence[pa.Table] = decided[relation.of].rows
        partners: Sequence[pa.Table] = []
        for matcher in relation.by:
            tables = (
                arrived.get(relations[matcher.relation].branch, ())
                if matcher.is_raw
                else decided[matcher.relation].rows
            )
            partners = [*partners, *(table.select(columns) for table in tables if table.num_rows)]
        rows_name, matches_name = self._name(number, "rows"), self._name(number, "matches")
        rows, matches = state.get(rows_name, ()), state.get(matches_name, ())
        result = _Decided(rejected=list(decided[relation.of].rejected))
        is_early = relation.kind is RelationKind.MATCHED and not any(
            other.kind is RelationKind.PART and other.of == number for other in relations
        )
        is_last = not any(other.of == number for other in relations)  # nobody asks for rows that are rejected
        # Rows and matches of the same ends are due together, so those that are not due need not be looked at.
        is_plain = (
            relations[relation.of].kind is RelationKind.ALL
            and all(matcher.is_raw for matcher in relation.by)
            and not any(isinstance(self._windows[alias], Rows) for alias in aliases)
        )
        if is_last and relation.kind is RelationKind.UNMATCHED:
            new_rows, found = _without_matched(new_rows, partners, keys)
        else:
            found = _distinct(_united(partners), keys)
        new_matches = [] if found is None else [self._with_end(found, relation)]
        new_rows = [self._with_end(table, relation) for table in new_rows]
        if is_early and new_matches:
            new_matches = [_without(new_matches[0], self._tables(matches), keys)]
        if is_early:
            result.rows += [_among(table, new_matches, keys) for table in self._tables(rows) if new_matches]
            known = [*self._tables(matches), *new_matches] if new_rows else []
            result.rows += [_among(table, known, keys) for table in new_rows]
        due, rest = self._due(aliases, rows, new_rows, watermark)
        waiting_parts = [
            table
            for matcher in relation.by
            if not matcher.is_raw
            for table in self._tables(after.get(self._name(matcher.relation, "rows"), ()))
        ]
        if due and waiting_parts:  # a partner of theirs is not decided yet
            parted = [_parted(table, _is_among(table, waiting_parts, keys)) for table in due]
            rest = (*rest, *self._appended((), [delayed for delayed, _ in parted]))
            due = [table for _, table in parted]
        old_matches, later_matches = self._due(aliases, matches, new_matches, watermark)
        if not is_early:
            known = old_matches if is_plain else [*old_matches, *self._tables(later_matches)]
            for table in due:
                is_right = _is_among(table, known, keys) == (relation.kind is RelationKind.MATCHED)
                result.rows.append(table.filter(pa.array(is_right)))
                if not is_last:
                    result.rejected.append(table.filter(pa.array(~is_right)))
        if old_matches and not is_plain:
            after[rows_name] = rest
            undecided = [table for name in self._chain(number) for table in self._tables(after.get(name, ()))]
            kept = [_among(table, undecided, keys) for table in old_matches]
            later_matches = (*later_matches, *self._appended((), kept))
        after[rows_name], after[matches_name] = self._compact(rest), self._compact(later_matches)
        result.rows = [table for table in result.rows if table.num_rows]
        result.rejected = [table for table in result.rejected if table.num_rows]
        return result

    def _due(
        self, aliases: Sequence[str], kept: Sequence[Segment], new: Sequence[pa.Table], watermark: int
    ) -> tuple[list[pa.Table], tuple[Segment, ...]]:
        """Rows whose interval has ended by the watermark, and the rest."""
        counts_rows = any(isinstance(self._windows[alias], Rows) for alias in aliases)
        opened = [segment for segment in kept if counts_rows or segment.min_ts < watermark]
        closed = tuple(segment for segment in kept if not (counts_rows or segment.min_ts < watermark))
        tables = self._tables(opened)
        if counts_rows:
            tables = [self._counted(table, aliases) for table in tables]
        due, rest = [], []
        for table in (*tables, *new):
            # At the end of time nothing follows a row.
            ended, lasting = _parted(table, (column(table, END) < watermark) | (watermark >= END_US))
            due.append(ended)
            rest.append(lasting)
        return [table for table in due if table.num_rows], self._appended(closed, rest)

    def _chain(self, number: int) -> list[str]:
        """The names under which rows wait that have yet to be judged by a relation, or by one before it."""
        names = []
        while number >= 0 and self._matching.relations[number].kind is not RelationKind.ALL:
            names.append(self._name(number, "rows"))
            relation = self._matching.relations[number]
            if relation.kind is RelationKind.PART:
                break
            number = relation.of
        return names

    # -- intervals

    def _with_end(self, table: pa.Table, relation: OuterRelation) -> pa.Table:
        """Rows with the last instant at which they may find a partner: their own where it is a row of a table."""
        if relation.is_at_once:
            end = np.maximum.reduce([column(table, f"{alias}.{ROW_TIME}") for alias in relation.aliases])
        else:
            end = np.minimum.reduce([self._ends(alias, table) for alias in relation.aliases])
        if END in table.column_names:
            table = table.drop_columns([END])
        return table.append_column(END, pa.array(end))

    def _counted(self, table: pa.Table, aliases: Sequence[str]) -> pa.Table:
        """Rows of ROWS windows with what is known of their ends by now."""
        end = column(table, END)
        for alias in aliases:
            if isinstance(self._windows[alias], Rows):
                end = np.minimum(end, self._ends(alias, table))
        return table.set_column(table.column_names.index(END), END, pa.array(end))

    def _ends(self, alias: str, table: pa.Table) -> I64:
        ts = column(table, f"{alias}.{ROW_TIME}")
        match self._windows[alias]:
            case Range(window_us):
                return ts + window_us
            case Tumble(window_us):
                return (ts // window_us + 1) * window_us - 1
            case Rows(count):
                clock = self._clock(alias)
                place = column(table, f"{alias}.{ROW_ORDINAL}") + count - clock.base
                if not len(clock.ts):
                    return np.full(len(ts), _NEVER, np.int64)
                known = clock.ts[np.clip(place, 0, len(clock.ts) - 1)] - 1
                # A successor that the clock has forgotten was not after the first that it knows.
                return np.where(place < len(clock.ts), known, _NEVER)
            case _:
                return np.full(len(ts), _NEVER, np.int64)

    # -- what is kept

    def _keys(self, aliases: Iterable[str]) -> list[str]:
        return [f"{alias}.{ROW_ORDINAL if isinstance(self._windows[alias], Rows) else ROW_ID}" for alias in aliases]

    def _name(self, number: int, what: str) -> str:
        return f"{self._query} {number} {what}"

    def _tables(self, segments: Iterable[Segment]) -> list[pa.Table]:
        return [self._shelf.get(part.path) for segment in segments for part in segment.parts]

    def _appended(self, kept: Sequence[Segment], tables: Iterable[pa.Table]) -> tuple[Segment, ...]:
        tables = list(tables)
        large = [table for table in tables if table.num_rows >= _MANY_ROWS]
        rest = _united([table for table in tables if table.num_rows < _MANY_ROWS])
        fresh = (self._segment(table) for table in (*large, *([] if rest is None else [rest])))
        return self._compact((*kept, *fresh))

    def _segment(self, table: pa.Table) -> Segment:
        ends = column(table, END)
        part = self._shelf.put("outer", table)
        return Segment((Part(part.path, part.rows, part.bytes),), int(ends.min()), int(ends.max()))

    def _compact(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        if len(segments) < _MANY_SEGMENTS:
            return segments
        whole = _united(self._tables(segments))
        return () if whole is None else (self._segment(whole),)

    def _earliest(self, number: int, state: State) -> int:
        """A lower bound of the times of rows that wait."""
        found = [_NEVER]
        for table in self._tables(state.get(self._name(number, "rows"), ())):
            times = [name for name in table.column_names if name.endswith(f".{ROW_TIME}")]
            latest = np.maximum.reduce([column(table, name) for name in times])
            found.append(int(latest.min()))
        return min(found)


def definition_of(name: str) -> str:
    """The definition of a query whose rows are kept under a name."""
    return name.rsplit(" ", 2)[0]


def _united(tables: Sequence[pa.Table]) -> pa.Table | None:
    whole = [table for table in tables if table.num_rows]
    if len(whole) < 2:
        return whole[0] if whole else None
    is_alike = all(table.schema.equals(whole[0].schema) for table in whole)
    return pa.concat_tables(whole, promote_options="none" if is_alike else "permissive").combine_chunks()


def _without_matched(
    rows: Sequence[pa.Table], matches: Sequence[pa.Table], keys: Sequence[str]
) -> tuple[list[pa.Table], pa.Table | None]:
    """Rows that have no match yet, and the matches of other rows, each once."""
    others = _united(matches)
    if others is None or not rows:
        return list(rows), _distinct(others, keys)
    left = []
    for table in rows:
        has_match, places = matched_now(_numbers(table, keys), _numbers(others, keys))
        left.append(table.filter(pa.array(~has_match)))
        others = others.take(pa.array(places))
    return [table for table in left if table.num_rows], others if others.num_rows else None


def _numbers(table: pa.Table, keys: Sequence[str]) -> I64:
    """The numbers of rows, a line for each."""
    if len(keys) == 1:
        return column(table, keys[0]).reshape(-1, 1)
    return np.column_stack([column(table, key) for key in keys])


def _distinct(table: pa.Table | None, keys: Sequence[str]) -> pa.Table | None:
    """One row of each key."""
    if table is None:
        return None
    return table.take(pa.array(first_places(_numbers(table, keys))))


def _is_among(table: pa.Table, others: Sequence[pa.Table], keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows have the keys of some row of other tables."""
    known = [_numbers(other, keys) for other in others if other.num_rows]
    if not known or not table.num_rows:
        return np.zeros(table.num_rows, bool)
    mask: npt.NDArray[np.bool_] = are_among(
        _numbers(table, keys), known[0] if len(known) == 1 else np.concatenate(known)
    )
    return mask


def _parted(table: pa.Table, mask: npt.NDArray[np.bool_]) -> tuple[pa.Table, pa.Table]:
    """The rows of a mask and the others; rows that are together are not copied."""
    count = int(np.count_nonzero(mask))
    if mask[:count].all():
        return table.slice(0, count), table.slice(count)
    return table.filter(pa.array(mask)), table.filter(pa.array(~mask))


def _among(table: pa.Table, others: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    return table.filter(pa.array(_is_among(table, others, keys)))


def _without(table: pa.Table, others: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    return table.filter(pc.invert(pa.array(_is_among(table, others, keys))))


_NULL = re.compile(r"CAST\(NULL AS (\w+)\)")
_ARROW_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def columns_or_nulls(finish: Finish) -> tuple[str | pa.DataType, ...] | None:
    """The columns of combinations that a branch answers, and types of its NULLs; None where something is computed."""
    if finish.predicates or finish.distinct:
        return None
    found: list[str | pa.DataType] = []
    for item in finish.select:
        if item.expression.is_plain:
            found.append(item.expression.columns[0].flat)
        elif (null := _NULL.fullmatch(item.expression.sql)) and null[1] in _ARROW_TYPES:
            found.append(_ARROW_TYPES[null[1]])
        else:
            return None
    return tuple(found)


def select_columns(table: pa.Table, columns: Sequence[str | pa.DataType]) -> pa.Table:
    """Columns of combinations, and NULLs, as evaluated answer columns."""
    values = [table.column(one) if isinstance(one, str) else pa.nulls(table.num_rows, one) for one in columns]
    return pa.table(values, names=[answer_column(number) for number in range(len(columns))])
