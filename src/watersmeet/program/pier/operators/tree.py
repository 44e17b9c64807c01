"""Records of panes up an aggregation tree (PIER, section 4.2.2): in at every node, out at the root.

An epoch is a pane: it begins everywhere `wait` after the pane has ended, when its records have been made. Every node
takes part in every epoch, also without records, so that the root knows how many nodes are in. What comes to the root is
held until nothing more has come for `wait`, twice as long where levels have timeouts of their own, and then passed on.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from watersmeet.errors import did_you_mean
from watersmeet.program.aggregate.functions import Function
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.pier.algorithms import Algorithm, WaitFor, algorithm_named, names_for_queries
from watersmeet.program.pier.expressions import Malformed
from watersmeet.program.pier.graph import Operator
from watersmeet.program.pier.operators.windows import (
    GROUP_NUMBER,
    NODES,
    PANE,
    RECORDS,
    WindowSettings,
    canonical,
    function_of_records,
    window_settings,
)
from watersmeet.program.pier.runtime import Context, Plan, Running, Tag
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import INTEGER

_SLACK_US = 1_000  # so that records of a pane are made before its epoch begins


class TreeSettings(NamedTuple):
    """Which records, and how they get to the root."""

    window: WindowSettings
    algorithm: Algorithm


def tree_settings(reader: SettingsReader, operator: Operator) -> TreeSettings:
    """Read the settings of the operator."""
    window = window_settings(reader, operator)
    if window.takes != RECORDS:
        raise reader.fail("a tree combines records; make them below it by an operator with output = records")
    name, known = reader.text("algorithm"), names_for_queries()
    algorithm = algorithm_named(name, window.wait_us) if name in known else None
    if algorithm is None:
        raise reader.fail(f"unknown algorithm {name!r}; {did_you_mean(name, known)}")
    return TreeSettings(window, algorithm)


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
        functions = tuple(function_of_records(name, function, schema)[0] for name, function, _ in self._aggregates)
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
        layout = Layout((GROUP_NUMBER,), tuple((function, None) for function in kind.functions))
        types = [function.column_type(name) for function in kind.functions for name in function.columns]
        columns = [pa.array([row[place] for row in rows], each) for place, each in zip(kind.states, types, strict=True)]
        table = layout.combine([pa.table([pa.array(of_rows, pa.int64()), *columns], names=list(layout.columns))])
        states = [table.column(name).to_pylist() for name in layout.columns[1:]]
        made: list[Row] = []
        for place, number in enumerate(table.column(GROUP_NUMBER).to_pylist()):
            row = list(example[number])
            for column, values in zip(kind.states, states, strict=True):
                row[column] = values[place]
            made.append(tuple(row))
        return Batch(schema, made)


def _key(row: Row, places: Sequence[int]) -> Row:
    return tuple(canonical(row[place]) for place in places)


class TreeAggregation(Running):
    """Takes records of this node's panes, and gives those of all nodes at the root."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        settings: TreeSettings = plan.settings
        self._pane_us, self._wait_us = settings.window.pane_us, settings.window.wait_us
        self._hold_us = self._wait_us * (2 if isinstance(settings.algorithm.timing, WaitFor) else 1)
        self._algebra = RecordAlgebra(settings.window)
        self._own: dict[int, Records] = {}  # by epoch, until it begins
        self._begun = -1
        self._root: dict[int, list[Records]] = {}  # of all nodes, by epoch
        self._nodes: dict[int, int] = {}
        self._due_us: dict[int, int] = {}
        self._add: Callable[[int, Any], None] | None = None
        self._tag: Tag = 0

    def start(self) -> None:
        settings: TreeSettings = self.plan.settings
        begin_us = self._pane_us + self._wait_us + _SLACK_US
        name = f"{self.context.query_id}.{self.plan.operator.name}"
        self._add, stop = self.context.host.aggregate(
            name, settings.algorithm, self._pane_us, begin_us, self._algebra, self._local, self._at_root
        )
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
        by_epoch: dict[int, list[Row]] = {}
        for row in batch.rows:
            by_epoch.setdefault(row[place] // self._pane_us, []).append(row)
        for epoch, rows in by_epoch.items():
            part = (Batch(batch.schema, rows),)
            if epoch > self._begun:
                self._own[epoch] = self._algebra.combine([self._own.get(epoch, ()), part])
            elif self._add is not None:
                self._add(epoch, part)

    def end(self, tag: Tag, port: int) -> None:
        """More may come: epochs end by the clock."""

    def _local(self, epoch: int) -> Records:
        self._begun = epoch
        for old in [each for each in self._own if each < epoch]:  # of before this node took part
            assert self._add is not None, "it has started"
            self._add(old, self._own.pop(old))
        return self._own.pop(epoch, ())

    def _at_root(self, epoch: int, part: Records, nodes: int) -> None:
        self._root.setdefault(epoch, []).append(part)
        self._nodes[epoch] = self._nodes.get(epoch, 0) + nodes
        is_new = epoch not in self._due_us
        self._due_us[epoch] = self.context.host.now_us + self._hold_us
        if is_new:
            self.context.after(self._hold_us, partial(self._check, epoch))

    def _check(self, epoch: int) -> None:
        left_us = self._due_us[epoch] - self.context.host.now_us
        if left_us > 0:
            self.context.after(left_us, partial(self._check, epoch))
            return
        del self._due_us[epoch]
        nodes = self._nodes[epoch]
        for batch in self._algebra.combine(self._root.pop(epoch)):
            schema = self.compiled("output", batch.schema, _with_nodes)
            self.emit(Batch(schema, [(*row, nodes) for row in batch.rows]), self._tag)


def _with_nodes(schema: Schema) -> Schema:
    return Schema.of(schema.table, {**schema.columns, NODES: INTEGER})
