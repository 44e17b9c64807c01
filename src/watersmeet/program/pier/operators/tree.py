"""Records of panes up an aggregation tree (PIER, section 4.2.2): in at every node, out at the root.

An epoch is a pane: it begins everywhere `wait` after the pane has ended, when its records have been made. Every node
takes part in every epoch, also without records, so that the root knows how many nodes are in. What comes to the root is
held until nothing more has come for `wait`, twice as long where levels have timeouts of their own, and then passed on.

Records can be spread over several trees, so that no root has them all: by their groups (`roots`), or with `entries`
each entry of shared aggregates has a tree, whose root also says how many nodes are in it, even without records.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from watersmeet.errors import did_you_mean
from watersmeet.program.aggregate.functions import Function
from watersmeet.program.pier.algorithms import Algorithm, WaitFor, algorithm_named, names_for_queries
from watersmeet.program.pier.expressions import Malformed
from watersmeet.program.pier.graph import Operator
from watersmeet.program.pier.operators.windows import (
    GROUP_NUMBER,
    NODES,
    PANE,
    RECORDS,
    WindowSettings,
    aggregate_of_records,
    canonical,
    combined_states,
    plain_values,
    window_settings,
)
from watersmeet.program.pier.runtime import Context, Plan, RunningOperator, Tag
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import INTEGER, TIMESTAMP

COUNTED = "counted"  # the table of tuples that say how many nodes are in a pane of a tree
MOST_TREES = 4_096
_COUNTS = Schema.of(COUNTED, {"tree": INTEGER, PANE: TIMESTAMP, NODES: INTEGER})
_SLACK_US = 1_000  # so that records of a pane are made before its epoch begins


class TreeSettings(NamedTuple):
    """Which records, and how they get to the root."""

    window: WindowSettings
    algorithm: Algorithm
    roots: int = 1  # among which groups are spread
    column: str | None = None  # of entries: each has a tree, those that are not listed the first
    entries: tuple[bytes, ...] = ()

    @property
    def trees(self) -> int:
        """How many trees there are."""
        return max(1, len(self.entries)) * self.roots


def tree_settings(reader: SettingsReader, operator: Operator) -> TreeSettings:
    """Read the settings of the operator."""
    window = window_settings(reader, operator)
    if window.takes != RECORDS:
        raise reader.fail("a tree combines records; make them below it by an operator with output = records")
    name, known = reader.text("algorithm"), names_for_queries()
    algorithm = algorithm_named(name, window.wait_us) if name in known else None
    if algorithm is None:
        raise reader.fail(f"unknown algorithm {name!r}; {did_you_mean(name, known)}")
    roots, column = reader.whole("roots", 1) or 1, reader.optional("column")
    try:
        entries = tuple(bytes.fromhex(text) for text in reader.texts("entries"))
    except ValueError:
        raise reader.fail("entries are written in hexadecimal digits") from None
    if column is not None and column not in {name for name, _ in window.groups}:
        raise reader.fail(f"the column {column!r} of entries is none of groupby")
    if entries and (column is None or roots > 1):
        raise reader.fail("entries need their column, and have one root each; give column, and leave out roots")
    found = TreeSettings(window, algorithm, roots, column, entries)
    if found.trees > MOST_TREES:
        raise reader.fail(f"there can be at most {MOST_TREES:,} trees, not {found.trees:,}")
    return found


class _Kind(NamedTuple):
    """Records of one kind: where their groups and states are."""

    groups: tuple[int, ...]
    states: tuple[int, ...]
    functions: tuple[Function, ...]


Records = tuple[Batch, ...]  # one batch for each kind


class RecordAlgebra:
    """Combines records of panes that travel as tuples, by the arithmetic of program/aggregate."""

    __slots__ = ("_aggregates", "_groups", "_kinds")

    def __init__(self, settings: WindowSettings) -> None:
        self._groups = tuple(name for name, _ in settings.groups)
        self._aggregates = settings.aggregates
        self._kinds: dict[Schema, _Kind] = {}

    def check(self, schema: Schema) -> None:
        """Raise Malformed unless tuples of a kind are such records."""
        if schema not in self._kinds:
            self._kinds[schema] = self._kind(schema)

    def _kind(self, schema: Schema) -> _Kind:
        functions = tuple(aggregate_of_records(name, call, schema).function for name, call, _ in self._aggregates)
        states = [
            f"{name}.{part}"
            for (name, _, _), function in zip(self._aggregates, functions, strict=True)
            for part in function.columns
        ]
        places = {name: place for place, name in enumerate(schema.names)}
        lacking = [name for name in (*self._groups, *states, PANE) if name not in places]
        if lacking or len(places) != len(self._groups) + len(states) + 1:
            raise Malformed(f"{schema.table} is no table of records of this query")
        return _Kind(tuple(places[name] for name in self._groups), tuple(places[name] for name in states), functions)

    def combine(self, parts: Sequence[Records]) -> Records:
        """One record for each group of each kind; all are of one pane."""
        by_schema: dict[Schema, list[Batch]] = {}
        for part in parts:
            for batch in part:
                by_schema.setdefault(batch.schema, []).append(batch)
        return tuple(
            batches[0] if len(batches) == 1 else self._combined(schema, batches)
            for schema, batches in by_schema.items()
        )

    def size_bytes(self, part: Records) -> int:
        """As tuples on the wire."""
        return sum(batch.size_bytes for batch in part)

    def _combined(self, schema: Schema, batches: Sequence[Batch]) -> Batch:
        kind = self._kinds.setdefault(schema, self._kind(schema))
        rows = [row for batch in batches for row in batch.rows]
        numbers: dict[Row, int] = {}
        of_rows = [numbers.setdefault(_key(row, kind.groups), len(numbers)) for row in rows]
        example = dict(zip(of_rows, rows, strict=True))  # a row of each group
        given = [tuple(row[place] for place in kind.states) for row in rows]
        layout, table = combined_states(kind.functions, pa.array(of_rows, pa.int64()), given)
        states = [plain_values(table.column(name)) for name in layout.columns[1:]]
        made: list[Row] = []
        for place, number in enumerate(table.column(GROUP_NUMBER).to_pylist()):
            row = list(example[number])
            for column, values in zip(kind.states, states, strict=True):
                row[column] = values[place]
            made.append(tuple(row))
        return Batch(schema, made)


def _key(row: Row, places: Sequence[int]) -> Row:
    return tuple(canonical(row[place]) for place in places)


class TreeAggregation(RunningOperator):
    """Takes records of this node's panes, and gives those of all nodes at the roots."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        settings: TreeSettings = plan.settings
        self._pane_us, self._wait_us = settings.window.pane_us, settings.window.wait_us
        self._hold_us = self._wait_us * (2 if isinstance(settings.algorithm.timing, WaitFor) else 1)
        self._algebra = RecordAlgebra(settings.window)
        self._tree_of_entry = {entry: number for number, entry in enumerate(settings.entries)}
        self._own: dict[tuple[int, int], Records] = {}  # by tree and epoch, until it begins
        self._begun = [-1] * settings.trees
        self._root: dict[tuple[int, int], list[Records]] = {}  # of all nodes, by tree and epoch
        self._nodes: dict[tuple[int, int], int] = {}
        self._due_us: dict[tuple[int, int], int] = {}
        self._add: list[Callable[[int, Any], None]] = []
        self._tag: Tag = 0

    def start(self) -> None:
        settings: TreeSettings = self.plan.settings
        begin_us = self._pane_us + self._wait_us + _SLACK_US
        name = f"{self.context.query_id}.{self.plan.operator.name}"
        for tree in range(settings.trees):
            add, stop = self.context.host.aggregate(
                name if settings.trees == 1 else f"{name}.{tree}",
                settings.algorithm,
                self._pane_us,
                begin_us,
                self._algebra,
                partial(self._local, tree),
                partial(self._at_root, tree),
            )
            self._add.append(add)
            self.context.cancels.append(stop)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        try:
            self._algebra.check(batch.schema)
        except Malformed as error:
            self.malformed(len(batch.rows), str(error))
            return
        self._tag = tag
        place = batch.schema.place(PANE)
        assert place is not None, "it has been checked"
        tree_of = self.compiled("trees", batch.schema, self._tree_of)
        parts: dict[tuple[int, int], list[Row]] = {}
        for row in batch.rows:
            parts.setdefault((tree_of(row), row[place] // self._pane_us), []).append(row)
        for (tree, epoch), rows in parts.items():
            part = (Batch(batch.schema, rows),)
            if epoch > self._begun[tree]:
                self._own[tree, epoch] = self._algebra.combine([self._own.get((tree, epoch), ()), part])
            elif self._add:
                self._add[tree](epoch, part)

    def end(self, tag: Tag, port: int) -> None:
        """More may come: epochs end by the clock."""

    def _tree_of(self, schema: Schema) -> Callable[[Row], int]:
        """The tree of each record: its entry's, or one of several by its group."""
        settings: TreeSettings = self.plan.settings
        if settings.entries:
            column = schema.place(settings.column or "")
            assert column is not None, "it is a group"
            known = self._tree_of_entry
            return lambda row: known.get(row[column], 0)
        if settings.roots > 1:
            places = [schema.place(name) or 0 for name, _ in settings.window.groups]
            return lambda row: crc32(repr(_key(row, places)).encode()) % settings.roots
        return lambda row: 0

    def _local(self, tree: int, epoch: int) -> Records:
        self._begun[tree] = epoch
        for old in [each for each in self._own if each[0] == tree and each[1] < epoch]:  # before this node took part
            assert self._add, "it has started"
            self._add[tree](old[1], self._own.pop(old))
        return self._own.pop((tree, epoch), ())

    def _at_root(self, tree: int, epoch: int, part: Records, nodes: int) -> None:
        key = (tree, epoch)
        self._root.setdefault(key, []).append(part)
        self._nodes[key] = self._nodes.get(key, 0) + nodes
        is_new = key not in self._due_us
        self._due_us[key] = self.context.host.now_us + self._hold_us
        if is_new:
            self.context.after(self._hold_us, partial(self._check, key))

    def _check(self, key: tuple[int, int]) -> None:
        left_us = self._due_us[key] - self.context.host.now_us
        if left_us > 0:
            self.context.after(left_us, partial(self._check, key))
            return
        del self._due_us[key]
        nodes = self._nodes[key]
        for batch in self._algebra.combine(self._root.pop(key)):
            schema = self.compiled("output", batch.schema, _with_nodes)
            self.emit(Batch(schema, [(*row, nodes) for row in batch.rows]), self._tag)
        if self.plan.settings.column is not None:
            tree, epoch = key
            self.emit(Batch(_COUNTS, [(tree, epoch * self._pane_us, nodes)]), self._tag)


def _with_nodes(schema: Schema) -> Schema:
    return Schema.of(schema.table, {**schema.columns, NODES: INTEGER})
