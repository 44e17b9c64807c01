"""Group-by (3.3.6): Basic sums up what one probe brings, DualFlow all that flows in until its result is asked for."""

from collections.abc import Callable
from typing import Any, NamedTuple

from watersmeet.errors import did_you_mean
from watersmeet.program.pier.aggregates import AGGREGATES, AggregateFunction
from watersmeet.program.pier.expressions import Malformed, check_functions, compiled_row
from watersmeet.program.pier.graph import ConstantArgument, Expression, Operator
from watersmeet.program.pier.operators.tree import TreeAggregation, tree_settings
from watersmeet.program.pier.operators.windows import WindowGroupBy, window_settings
from watersmeet.program.pier.runtime import (
    Context,
    DataProbe,
    Implementation,
    Plan,
    ProbeKind,
    RunningOperator,
    Tag,
    no_settings,
)
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import common_type

_ONE = ConstantArgument("1", "integer")


class GroupSettings(NamedTuple):
    """Groups, and the aggregates of each."""

    groups: tuple[tuple[str, Expression], ...]
    aggregates: tuple[tuple[str, str, Expression], ...]  # name, function, argument
    table: str
    period_us: int | None


def _settings(reader: SettingsReader, operator: Operator) -> GroupSettings:
    no_settings(reader, operator)
    found = []
    for name, call in reader.named_calls("aggregates"):
        function = call.function.casefold()
        if function not in AGGREGATES:
            raise reader.fail(f"unknown aggregate {call.function!r}; {did_you_mean(call.function, AGGREGATES)}")
        takes = AGGREGATES[function].takes_argument
        if len(call.arguments) > 1 or (takes and not call.arguments):
            raise reader.fail(f"{function} takes {'one argument' if takes else 'one argument or none'}")
        for argument in call.arguments:
            check_functions(argument, reader.where)
        found.append((name, function, call.arguments[0] if call.arguments else _ONE))
    groups = reader.named_expressions("groupby")
    names = [name for name, _ in groups] + [name for name, _, _ in found]
    if not names:
        raise reader.fail("it needs groupby[name] = expression, aggregates[name] = function, or both")
    if len(set(names)) < len(names):
        raise reader.fail("a group and an aggregate have the same name; rename one of them")
    return GroupSettings(groups, tuple(found), reader.text("table", "groups"), None)


def _dual_settings(reader: SettingsReader, operator: Operator) -> GroupSettings:
    return _settings(reader, operator)._replace(period_us=reader.duration_us("period", None))


class _Compiled(NamedTuple):
    """The row of groups and arguments of a kind of tuples, and the kind of results."""

    kernel: Callable[[Row], Row]
    schema: Schema


class _Groups:
    """The states of all groups, in the order in which they came."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._aggregates: list[AggregateFunction] = [AGGREGATES[function] for _, function, _ in settings.aggregates]
        self._states: dict[Row, list[Any]] = {}
        self.schema: Schema | None = None

    def add(self, rows: list[Row], schema: Schema) -> int:
        """Take rows of groups and arguments; says how many could not be added."""
        widened = schema if self.schema is None else _widened(self.schema, schema)
        if widened is None:
            return len(rows)
        self.schema = widened
        groups, failed = len(self._settings.groups), 0
        for row in rows:
            states = self._states.setdefault(row[:groups], [aggregate.start for aggregate in self._aggregates])
            try:
                added = [
                    state if value is None else aggregate.add(state, value)
                    for aggregate, state, value in zip(self._aggregates, states, row[groups:], strict=True)
                ]
            except (ArithmeticError, TypeError, ValueError):
                failed += 1
                continue
            states[:] = added
        return failed

    def results(self) -> Batch | None:
        """A row for each group; without groups and tuples there is none, since their types are not known."""
        if self.schema is None:
            return None
        rows = [
            (*group, *(aggregate.result(state) for aggregate, state in zip(self._aggregates, states, strict=True)))
            for group, states in self._states.items()
        ]
        return Batch(self.schema, rows)


def _widened(first: Schema, second: Schema) -> Schema | None:
    """A schema for groups of both kinds, which have the same columns; None if values of one are not of the other."""
    if first is second:
        return first
    types = [common_type(pair) for pair in zip(first.types, second.types, strict=True)]
    known = {name: kind for name, kind in zip(first.names, types, strict=True) if kind is not None}
    return Schema.of(first.table, known) if len(known) == len(types) else None


class GroupBy(RunningOperator):
    """Gives the groups of all tuples that a set probe brings, at its end."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._by_tag: dict[Tag, _Groups] = {}

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self.add(self._by_tag.setdefault(tag, _Groups(self.plan.settings)), batch)

    def end(self, tag: Tag, port: int) -> None:
        groups = self._by_tag.pop(tag, None)
        if groups is not None and (found := groups.results()) is not None:
            self.emit(found, tag)
        self.emit_end(tag)

    def add(self, groups: _Groups, batch: Batch) -> None:
        """Add tuples to groups."""
        found = self.compiled("groups", batch.schema, self._compile)
        if isinstance(found, Malformed):
            self.malformed(len(batch.rows), str(found))
            return
        rows, _ = self.evaluated(found.kernel, batch)
        failed = groups.add(rows, found.schema)
        if failed:
            self.malformed(failed, "an aggregate fails")

    def _compile(self, schema: Schema) -> _Compiled:
        settings: GroupSettings = self.plan.settings
        expressions = [expression for _, expression in settings.groups]
        expressions += [argument for _, _, argument in settings.aggregates]
        kernel, types = compiled_row(tuple(expressions), schema)
        columns = {name: kind for (name, _), kind in zip(settings.groups, types, strict=False)}
        for (name, function, _), kind in zip(settings.aggregates, types[len(settings.groups) :], strict=True):
            result = AGGREGATES[function].result_type(kind)
            if result is None:
                raise Malformed(f"{function} does not take {kind}")
            columns[name] = result
        return _Compiled(kernel, Schema.of(settings.table, columns))


class DualFlowGroupBy(GroupBy):
    """Adds up whatever flows in; a set probe from above gets the groups so far, a stream probe those that changed.

    What flows in is asked for by a flow control below. A stream probe gets its groups when that flow ends a probe, and
    every `period` if one is given.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._groups = _Groups(plan.settings)
        self._streams: list[Tag] = []
        self._is_changed = False

    def probe(self, probe: DataProbe, asker: RunningOperator | None = None) -> None:
        if probe.kind is not ProbeKind.STREAM:
            self._give(probe.tag, probe.condition)
            self.emit_end(probe.tag)
        if probe.kind is not ProbeKind.SET:
            self._streams.append(probe.tag)
            if len(self._streams) == 1 and self.plan.settings.period_us is not None:
                self.context.after(self.plan.settings.period_us, self._tick)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        self.add(self._groups, batch)
        self._is_changed = True

    def end(self, tag: Tag, port: int) -> None:
        self._give_streams()

    def _tick(self) -> None:
        self._give_streams()
        self.context.after(self.plan.settings.period_us, self._tick)

    def _give_streams(self) -> None:
        if self._is_changed and self._streams:
            self._is_changed = False
            for tag in self._streams:
                self._give(tag)

    def _give(self, tag: Tag, condition: Expression | None = None) -> None:
        found = self._groups.results()
        if found is not None:
            self.emit(self.satisfying(found, condition), tag)


GROUPBY = {
    "basic": Implementation(_settings, GroupBy),
    "dualflow": Implementation(_dual_settings, DualFlowGroupBy),
    "window": Implementation(window_settings, WindowGroupBy),
    "tree": Implementation(tree_settings, TreeAggregation),
}
