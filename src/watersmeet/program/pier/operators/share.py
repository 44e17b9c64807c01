"""Aggregates shared between queries that differ in predicates (PIER, chapter 5), as three operators (ours).

`fragment` gives each tuple the set of queries that it satisfies, its row of F. A groupby by Window then makes records
of fragments (A); `deconstruct` combines them to entries of A', and `reconstruct` takes one query's part of entries.

An entry says by its name what it is for: a set of queries, each of which has it in its answer, or with Linear one query
whose own records it has, and from which others follow by whole factors. A row that a given basis is not right for is an
entry by itself, so answers are exact whatever rows come, and nodes need no common F.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from watersmeet.program.pier.expressions import Malformed, compiled_condition, compiled_row, condition_of, evaluated
from watersmeet.program.pier.graph import Expression, Operator
from watersmeet.program.pier.operators.tree import COUNTED, RecordAlgebra
from watersmeet.program.pier.operators.windows import (
    NODES,
    PANE,
    RECORDS,
    WindowSettings,
    aggregate_of_records,
    window_settings,
)
from watersmeet.program.pier.runtime import Context, Implementation, Plan, RunningOperator, Tag
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import BINARY, INTEGER
from watersmeet.sharing.basic import basic_decomposition
from watersmeet.sharing.cover import rectangle_cover

QUERIES = "#queries"  # the column of a fragment's queries, and of an entry's name
MOST_QUERIES = 4_096
_SET, _BASIS = b"s", b"b"
_NUMBER_BYTES = 2


def bits_of(queries: Iterable[int]) -> int:
    """A set of queries.

    >>> bits_of([0, 2])
    5
    """
    found = 0
    for query in queries:
        found |= 1 << query
    return found


def set_entry(bits: int) -> bytes:
    """The name of an entry that counts for each of some queries."""
    return _SET + bits.to_bytes(-(-bits.bit_length() // 8), "little")


def basis_entry(query: int) -> bytes:
    """The name of an entry that has the records of one query."""
    return _BASIS + query.to_bytes(_NUMBER_BYTES, "little")


def _entry(text: str, reader: SettingsReader) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise reader.fail(f"{text!r} is no entry; entries are written in hexadecimal digits") from None


class FragmentSettings(NamedTuple):
    """The predicates of queries, in order, and the column for those that a tuple satisfies."""

    conditions: tuple[Expression, ...]
    column: str


def _fragment(reader: SettingsReader, operator: Operator) -> FragmentSettings:
    conditions = tuple(condition_of(predicate, reader.where) for predicate in operator.predicates)
    if not 1 <= len(conditions) <= MOST_QUERIES:
        raise reader.fail(f"it needs 1 to {MOST_QUERIES:,} predicates, one for each query, not {len(conditions)}")
    return FragmentSettings(conditions, reader.text("column", QUERIES))


class Fragment(RunningOperator):
    """Adds the set of queries that a tuple satisfies; a tuple that none wants is dropped.

    A predicate that fails for a tuple leaves it out of its own query only.
    """

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: FragmentSettings = self.plan.settings
        schema = self.compiled(
            "output", batch.schema, lambda given: Schema.of(given.table, {**given.columns, settings.column: BINARY})
        )
        together = self.compiled("all", batch.schema, self._compile_all)
        verdicts: list[Row] | None = None
        if not isinstance(together, Malformed):
            verdicts, failed = evaluated(together, batch.rows)
            if failed:
                verdicts = None
        sets = self._one_by_one(batch) if verdicts is None else [_true(verdict) for verdict in verdicts]
        width = -(-len(settings.conditions) // 8)
        found = [(*row, bits.to_bytes(width, "little")) for row, bits in zip(batch.rows, sets, strict=True) if bits]
        self.emit(Batch(schema, found), tag)

    def _compile_all(self, schema: Schema) -> Any:
        conditions = self.plan.settings.conditions
        for condition in conditions:
            compiled_condition(condition, schema)
        return compiled_row(conditions, schema)[0]

    def _one_by_one(self, batch: Batch) -> list[int]:
        sets = [0] * len(batch.rows)
        for number, condition in enumerate(self.plan.settings.conditions):
            kernel = self.compiled(f"query {number}", batch.schema, partial(compiled_condition, condition))
            if isinstance(kernel, Malformed):
                self.malformed(len(batch.rows), str(kernel))
                continue
            values, failed = evaluated(kernel, batch.rows)
            if failed:
                self.malformed(len(failed), f"the predicate of query {number} fails")
            wrong, given = set(failed), iter(values)
            for place in range(len(sets)):
                if place not in wrong and next(given):
                    sets[place] |= 1 << number
        return sets


def _true(verdicts: Row) -> int:
    bits, bit = 0, 1
    for verdict in verdicts:
        if verdict:
            bits |= bit
        bit <<= 1
    return bits


class DeconstructSettings(NamedTuple):
    """Records, and how those of fragments become entries."""

    window: WindowSettings
    column: str
    overlaps: bool  # whether a row may count for a query in two entries
    sets: tuple[int, ...]  # of a basis that is known; without one each node finds its own
    factors: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]  # Linear: a query, and its factors in other queries


def _sets(reader: SettingsReader, operator: Operator) -> DeconstructSettings:
    window, column = _records(reader, operator)
    overlaps = reader.flag("overlap", default=False)
    sets = []
    for text in reader.texts("basis"):
        entry = _entry(text, reader)
        if not entry.startswith(_SET):
            raise reader.fail(f"{text!r} is no entry of a set of queries")
        sets.append(int.from_bytes(entry[1:], "little"))
    return DeconstructSettings(window, column, overlaps, tuple(sets), ())


def _linear(reader: SettingsReader, operator: Operator) -> DeconstructSettings:
    window, column = _records(reader, operator)
    factors = tuple(
        (_whole(query, reader), tuple((_whole(other, reader), _whole(factor, reader)) for other, factor in terms))
        for query, terms in _terms(reader)
    )
    if not factors:
        raise reader.fail("it needs the factors of each query of the basis: factors[query] = other:factor ...")
    return DeconstructSettings(window, column, False, (), factors)


def _terms(reader: SettingsReader) -> list[tuple[str, list[tuple[str, str]]]]:
    found = []
    for query, text in reader.named_texts("factors"):
        parts = [part.partition(":") for part in text.split()]
        found.append((query, [(other, factor) for other, _, factor in parts]))
    return found


def _whole(text: str, reader: SettingsReader) -> int:
    if not text.removeprefix("-").isdigit() or len(text) > 9:
        raise reader.fail(f"{text!r} is no small whole number; write factors[query] = other:factor ...")
    return int(text)


def _records(reader: SettingsReader, operator: Operator) -> tuple[WindowSettings, str]:
    window, column = window_settings(reader, operator), reader.text("column", QUERIES)
    if window.takes != RECORDS or window.gives != RECORDS:
        raise reader.fail("it takes records and gives records, which become windows by a groupby; add output = records")
    return window, column


class Deconstruct(RunningOperator):
    """Combines records of fragments to entries, pane by pane."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._algebra = RecordAlgebra(plan.settings.window)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: DeconstructSettings = self.plan.settings
        place, pane = batch.schema.place(settings.column), batch.schema.place(PANE)
        try:
            self._algebra.check(batch.schema)
        except Malformed as error:
            self.malformed(len(batch.rows), str(error))
            return
        if place is None or batch.schema.types[place] != BINARY:
            self.malformed(len(batch.rows), f"{batch.schema.table} has no sets of queries")
            return
        assert pane is not None, "it has been checked"
        by_pane: dict[int, list[Row]] = {}
        for row in batch.rows:
            by_pane.setdefault(row[pane], []).append(row)
        for rows in by_pane.values():
            rows_of_f = tuple(sorted({int.from_bytes(row[place], "little") for row in rows}))
            entries = dict(zip(rows_of_f, _entries(settings, rows_of_f), strict=True))
            made = [
                (*row[:place], entry, *row[place + 1 :])
                for row in rows
                for entry in entries[int.from_bytes(row[place], "little")]
            ]
            for each in self._algebra.combine([(Batch(batch.schema, made[:0]),), (Batch(batch.schema, made),)]):
                self.emit(each, tag)


def _entries(settings: DeconstructSettings, rows: tuple[int, ...]) -> Sequence[tuple[bytes, ...]]:
    """The entries that each row of F is in."""
    if settings.factors:
        return [_linear_entries(row, settings.factors) for row in rows]
    if settings.sets:
        return [_covering(row, settings.sets, settings.overlaps) for row in rows]
    return _decomposed(rows, settings.overlaps)


@lru_cache(maxsize=4_096)
def _linear_entries(row: int, factors: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]) -> tuple[bytes, ...]:
    """The independent queries that have a row, if all others follow from them, else the row itself."""
    sums: dict[int, int] = {}
    own = []
    for query, terms in factors:
        if row >> query & 1:
            own.append(basis_entry(query))
            for other, factor in terms:
                sums[other] = sums.get(other, 0) + factor
    is_right = all(factor in (0, 1) for factor in sums.values()) and row == bits_of(
        query for query, factor in sums.items() if factor
    )
    return tuple(own) if is_right else (set_entry(row),)


@lru_cache(maxsize=4_096)
def _covering(row: int, basis: tuple[int, ...], overlaps: bool) -> tuple[bytes, ...]:
    """Sets of a basis that are a row together, the largest first; what is left of it is an entry by itself."""
    found, left = [], row
    while left:
        inside = [one for one in basis if one & ~(row if overlaps else left) == 0]
        best = max(inside, key=lambda one: ((one & left).bit_count(), -one), default=0)
        if not best & left:
            best = left
        found.append(set_entry(best))
        left &= ~best
    return tuple(found)


@lru_cache(maxsize=1_024)
def _decomposed(rows: tuple[int, ...], overlaps: bool) -> tuple[tuple[bytes, ...], ...]:
    """What a node that knows no basis makes of its own rows."""
    queries = max(row.bit_length() for row in rows)
    matrix = np.array([[row >> query & 1 for query in range(queries)] for row in rows], np.bool_)
    found = rectangle_cover(matrix) if overlaps else basic_decomposition(matrix)
    basis = found.combination.basis  # type: ignore[union-attr]
    names = [set_entry(bits_of(np.flatnonzero(value).tolist())) for value in basis]
    return tuple(tuple(names[entry] for entry in np.flatnonzero(value).tolist()) for value in found.assign)


class ReconstructSettings(NamedTuple):
    """Whose records are wanted, and what the entries of the basis count for it."""

    window: WindowSettings
    column: str
    query: int
    factors: Mapping[int, int]  # Linear: by the query of an entry
    trees: tuple[int, ...]  # that have its entries, where these are counted


def _one_query(reader: SettingsReader, operator: Operator) -> ReconstructSettings:
    window, column = _records(reader, operator)
    query = reader.whole("query", None, least=0)
    if query is None:
        raise reader.fail("it needs the number of a query: query = ...")
    factors = {_whole(name, reader): _whole(text, reader) for name, text in reader.named_texts("factors")}
    trees = tuple(_whole(text, reader) for text in reader.texts("trees"))
    return ReconstructSettings(window, column, query, factors, trees)


class Reconstruct(RunningOperator):
    """Passes the records of one query, from the entries that count for it; groupby by Window combines them.

    Entries that have come up trees are held until all trees of the query have said how many nodes are in theirs, or
    nothing more comes for `wait`: then the query has as many nodes as the tree with fewest.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._nodes: dict[int, dict[int, int]] = {}  # by pane and tree
        self._held: dict[int, list[Batch]] = {}
        self._due_us: dict[int, int] = {}

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        settings: ReconstructSettings = self.plan.settings
        if batch.schema.table == COUNTED:
            for tree, pane, nodes in batch.rows:
                if tree in settings.trees:
                    counts = self._nodes.setdefault(pane, {})
                    counts[tree] = max(nodes, counts.get(tree, 0))
                    self._wait(pane, tag)
            return
        schema = self.compiled("output", batch.schema, self._output)
        if isinstance(schema, Malformed):
            self.malformed(len(batch.rows), str(schema))
            return
        place, pane_place = batch.schema.place(settings.column), batch.schema.place(PANE)
        assert place is not None and pane_place is not None, "it has been checked"
        scaled = [at for at, name in enumerate(batch.schema.names) if name.rpartition(".")[0] in self._names()]
        made: dict[int, list[Row]] = {}
        for row in batch.rows:
            weight = _weight(row[place], settings)
            if weight is None:
                self.malformed(1, "an entry has no name that is known here")
            elif weight:
                values = list(row)
                if weight != 1:
                    for at in scaled:
                        values[at] *= weight
                del values[place]
                made.setdefault(row[pane_place], []).append(tuple(values))
        for pane, rows in made.items():
            if settings.trees:
                self._held.setdefault(pane, []).append(Batch(schema, rows))
                self._wait(pane, tag)
            else:
                self.emit(Batch(schema, rows), tag)

    def end(self, tag: Tag, port: int) -> None:
        """Nothing ends here: windows are closed by time, and more may come."""

    def _names(self) -> set[str]:
        return {name for name, _, _ in self.plan.settings.window.aggregates}

    def _output(self, schema: Schema) -> Schema:
        settings: ReconstructSettings = self.plan.settings
        columns = schema.columns
        if columns.pop(settings.column, None) != BINARY or PANE not in columns:
            raise Malformed(f"{schema.table} has no entries of shared aggregates")
        for name, call, _ in settings.window.aggregates:
            made = aggregate_of_records(name, call, schema).function
            if settings.factors and any(columns[f"{name}.{part}"] != INTEGER for part in made.columns):
                raise Malformed(f"records of {name} are no whole numbers, which Linear needs")
        if settings.trees:
            columns[NODES] = INTEGER
        return Schema.of(schema.table, columns)

    # Trees.

    def _wait(self, pane: int, tag: Tag) -> None:
        settings: ReconstructSettings = self.plan.settings
        if self._nodes.get(pane, {}).keys() >= set(settings.trees):
            self._pass_on(pane, tag)
            return
        now_us, is_new = self.context.host.now_us, pane not in self._due_us
        self._due_us[pane] = now_us + settings.window.wait_us
        if is_new:
            self.context.after(settings.window.wait_us, partial(self._check, pane, tag))

    def _check(self, pane: int, tag: Tag) -> None:
        left_us = self._due_us[pane] - self.context.host.now_us
        if left_us > 0:
            self.context.after(left_us, partial(self._check, pane, tag))
            return
        del self._due_us[pane]
        self._pass_on(pane, tag)

    def _pass_on(self, pane: int, tag: Tag) -> None:
        counts = self._nodes.get(pane, {})
        nodes = min(counts.get(tree, 0) for tree in self.plan.settings.trees)
        for batch in self._held.pop(pane, ()):
            place = batch.schema.place(NODES)
            assert place is not None, "it is in the output"
            self.emit(Batch(batch.schema, [(*row[:place], nodes, *row[place + 1 :]) for row in batch.rows]), tag)
        oldest = pane - 16 * self.plan.settings.window.length_us
        for old in [each for each in self._nodes if each < oldest]:
            del self._nodes[old]


def _weight(entry: bytes, settings: ReconstructSettings) -> int | None:
    """With which factor an entry counts for the query; None if its name is not known."""
    if entry.startswith(_SET):
        return int.from_bytes(entry[1:], "little") >> settings.query & 1
    if entry.startswith(_BASIS) and len(entry) == 1 + _NUMBER_BYTES:
        return settings.factors.get(int.from_bytes(entry[1:], "little"), 0)
    return None


FRAGMENT = {"basic": Implementation(_fragment, Fragment)}
DECONSTRUCT = {"sets": Implementation(_sets, Deconstruct), "linear": Implementation(_linear, Deconstruct)}
RECONSTRUCT = {"basic": Implementation(_one_query, Reconstruct)}
