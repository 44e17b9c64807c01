"""Group-by over output windows (ours): tuples become records of panes where they are, and windows at a key's owner.

A pane is the longest interval that is in a window wholly or not at all. A record is the partial state of one group in
one pane (`program/aggregate`). Nobody knows whether more will come, so whoever has something of a pane or window waits:
`wait` after the last tuple or record of it that came, and after its end, twice as long for records, which waited
before. A window is answered once; what comes later is counted as late. Records that an aggregation tree has combined
say how many nodes are in their pane; a window has as many as the pane with fewest.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import pyarrow as pa

from watersmeet.errors import TypeMismatch, did_you_mean
from watersmeet.program.aggregate.functions import BeyondRange, Function
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.pier.expressions import Malformed, check_functions, compiled_row
from watersmeet.program.pier.graph import Constant, Expression, Field, Operator
from watersmeet.program.pier.runtime import Context, Plan, Running, Tag, no_settings
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import BINARY, BOOLEAN, DATE, DECIMAL, DOUBLE, INTEGER, STRING, TIMESTAMP

TUPLES, RECORDS, WINDOWS = "tuples", "records", "windows"
DISTINCT = "countdistinct"
FUNCTIONS = {
    **{name: name for name in ("count", "sum", "avg", "min", "max")},
    **{name.replace("_", ""): name for name in ("var_pop", "var_samp", "stddev_pop", "stddev_samp")},
    DISTINCT: "count",
}
WINDOW_START, WINDOW_END, NODES = "window_start", "window_end", "nodes"
WAIT_US = 3_000_000
PANE, GROUP_NUMBER = "pane", "#group"
_ONE = Constant("1", "integer")
_ARROW = {
    INTEGER: pa.int64(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BOOLEAN: pa.bool_(),
    TIMESTAMP: pa.int64(),
    DATE: pa.int64(),
    BINARY: pa.binary(),
}
_COUNT = Function("count", pa.int64())
_UFL = {pa.int64(): INTEGER, pa.float64(): DOUBLE}


class WindowSettings(NamedTuple):
    """Groups, aggregates, the output window, and what comes in and goes out."""

    groups: tuple[tuple[str, Expression], ...]
    aggregates: tuple[tuple[str, str, Expression], ...]  # name, function, argument
    time: Expression
    length_us: int
    slide_us: int
    wait_us: int
    takes: str
    gives: str
    table: str
    prefix: str  # of the columns for the bounds of a window
    counts_nodes: bool  # whether records say how many nodes are in them

    @property
    def pane_us(self) -> int:
        return gcd(self.length_us, self.slide_us)


def window_settings(reader: SettingsReader, operator: Operator) -> WindowSettings:
    """Read the settings of the operator."""
    no_settings(reader, operator)
    takes = reader.choice("input", (TUPLES, RECORDS), TUPLES)
    gives = reader.choice("output", (RECORDS, WINDOWS), WINDOWS)
    found = []
    for name, call in reader.named_calls("aggregates"):
        function = call.function.casefold()
        if function not in FUNCTIONS:
            raise reader.fail(f"unknown aggregate {call.function!r}; {did_you_mean(call.function, FUNCTIONS)}")
        if len(call.arguments) > 1 or (not call.arguments and function != "count"):
            raise reader.fail(f"{function} takes one argument{' or none' if function == 'count' else ''}")
        if function == DISTINCT and RECORDS in (takes, gives):
            raise reader.fail("countdistinct has no records; group tuples where they meet: input = tuples")
        for argument in call.arguments:
            check_functions(argument, reader.where)
        found.append((name, function, call.arguments[0] if call.arguments else _ONE))
    length_us = reader.duration_us("length", None)
    if length_us is None:
        raise reader.fail("it needs the length of a window in seconds: length = ...")
    slide_us = reader.duration_us("slide", length_us) or length_us
    if slide_us > length_us:
        raise reader.fail("slide must not be longer than length")
    if length_us // gcd(length_us, slide_us) > 1_000:
        raise reader.fail("a window has more than 1,000 panes; use a longer slide")
    if takes == TUPLES and reader.flag("nodes", False):
        raise reader.fail("only records say how many nodes are in them; leave out nodes")
    if takes == RECORDS == gives and reader.flag("nodes", False):
        raise reader.fail("only windows have nodes; leave out nodes, or output = records")
    time = reader.expression("time")
    if time is None and takes == TUPLES:
        raise reader.fail("it needs the time of a tuple: time = $column")
    groups = reader.named_expressions("groupby")
    names = [name for name, _ in groups] + [name for name, _, _ in found]
    if len(set(names)) < len(names):
        raise reader.fail("a group and an aggregate have the same name; rename one of them")
    return WindowSettings(
        groups,
        tuple(found),
        time or Field(PANE),
        length_us,
        slide_us,
        reader.duration_us("wait", WAIT_US) or WAIT_US,
        takes,
        gives,
        reader.text("table", gives),
        reader.text("prefix", ""),
        reader.flag("nodes", False),
    )


def function_of_values(function: str, kind: str) -> Function:
    """The aggregate of values of a type; Malformed if it does not take them."""
    return _function(function, kind)[0]


def value_type(function: str, kind: str) -> str:
    """The type of an aggregate of values of a type; Malformed if it does not take them."""
    return _function(function, kind)[1]


def _function(name: str, kind: str) -> tuple[Function, str]:
    if name == "count":
        return _COUNT, INTEGER
    if kind not in _ARROW:
        cure = "cast it to DOUBLE or BIGINT" if kind == DECIMAL else "give it values of one type"
        raise Malformed(f"{name} does not take {kind}; {cure}")
    if name in ("min", "max"):
        return Function(name, _ARROW[kind]), kind
    if name == DISTINCT:
        return Function("count", _ARROW[kind], distinct=True), INTEGER
    if kind not in (INTEGER, DOUBLE):
        raise Malformed(f"{name} does not take {kind}; it needs numbers")
    return Function(FUNCTIONS[name], _ARROW[kind]), INTEGER if name == "sum" and kind == INTEGER else DOUBLE


class _Compiled(NamedTuple):
    """How tuples of a kind are read: their time, groups, and arguments or states."""

    kernel: Callable[[Row], Row]
    group_types: tuple[str, ...]
    functions: tuple[Function, ...]
    value_types: tuple[str, ...]


class WindowGroupBy(Running):
    """Groups of output windows, or records of their panes."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._numbers: dict[Row, int] = {}  # of groups, by key
        self._groups: list[Row] = []
        self._panes: dict[int, list[tuple[int, Row]]] = {}  # group, and arguments or states, by start
        self._due_us: dict[int, int] = {}  # when each open window, or pane, is to be given, by start
        self._answered: set[int] = set()  # windows, by start
        self._nodes: dict[int, int] = {}  # in the records of a pane, where they say so
        self._kind: _Compiled | None = None
        self._tag: Tag = 0

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        found = self.compiled("windows", batch.schema, self._compile)
        if isinstance(found, Malformed):
            self.malformed(len(batch.rows), str(found))
            return
        assert isinstance(found, _Compiled)
        if self._kind is None:
            self._kind = found
        elif self._kind[1:] != found[1:]:
            self.malformed(len(batch.rows), "tuples have other types than those before them")
            return
        self._tag = tag
        rows, _ = self.evaluated(found.kernel, batch)
        settings: WindowSettings = self.plan.settings
        pane_us, size = settings.pane_us, 1 + len(settings.groups)
        touched: set[int] = set()
        for row in rows:
            if row[0] is None:
                self.malformed(1, "the time is NULL")
                continue
            start_us = row[0] // pane_us * pane_us
            windows = self._windows_of(start_us)
            answered = sum(start in self._answered for start in windows)
            self.context.counters.late += answered > 0
            if answered < len(windows):
                touched.add(start_us)
                self._panes.setdefault(start_us, []).append((self._number(row[1:size]), row[size:]))
                if settings.counts_nodes:
                    self._nodes[start_us] = max(self._nodes.get(start_us, 0), row[-1])
        for start_us in touched:
            self._wait_for(start_us)

    def end(self, tag: Tag, port: int) -> None:
        """More may come: windows end by the clock."""

    # When.

    @property
    def _length_us(self) -> int:
        settings: WindowSettings = self.plan.settings
        return settings.pane_us if settings.gives == RECORDS else settings.length_us

    def _windows_of(self, pane_us: int) -> Sequence[int]:
        """The starts of what is given and has this pane: windows, or the pane itself."""
        settings: WindowSettings = self.plan.settings
        if settings.gives == RECORDS:
            return (pane_us,)
        first = (pane_us - settings.length_us) // settings.slide_us * settings.slide_us + settings.slide_us
        return range(first, pane_us + 1, settings.slide_us)

    def _wait_for(self, pane_us: int) -> None:
        now_us, wait_us = self.context.host.now_us, self.plan.settings.wait_us
        for start in self._windows_of(pane_us):
            if start in self._answered:
                continue
            is_new = start not in self._due_us
            ends_us = start + self._length_us + (wait_us if self.plan.settings.takes == RECORDS else 0)
            self._due_us[start] = due_us = max(ends_us, now_us) + wait_us
            if is_new:
                self.context.after(due_us - now_us, partial(self._check, start))

    def _check(self, start: int) -> None:
        left_us = self._due_us[start] - self.context.host.now_us
        if left_us > 0:
            self.context.after(left_us, partial(self._check, start))
            return
        del self._due_us[start]
        if self.plan.settings.gives == WINDOWS:
            self._answered.add(start)
        self._give(start)

    # What.

    def _number(self, key: Row) -> int:
        same = tuple(canonical(value) for value in key)
        number = self._numbers.get(same)
        if number is None:
            number = self._numbers[same] = len(self._groups)
            self._groups.append(tuple(0.0 if value == 0 and isinstance(value, float) else value for value in key))
        return number

    def _give(self, start: int) -> None:
        settings: WindowSettings = self.plan.settings
        assert self._kind is not None, "something has come"
        panes = range(start, start + self._length_us, settings.pane_us)
        rows = [row for pane in panes if pane in self._panes for row in self._panes[pane]]
        nodes = [self._nodes[pane] for pane in panes if pane in self._nodes]
        for pane in panes:
            if pane in self._panes and not any(each in self._due_us for each in self._windows_of(pane)):
                del self._panes[pane]
                self._nodes.pop(pane, None)
        layout, records = self._records(rows)
        groups = [self._groups[number] for number in records.column(GROUP_NUMBER).to_pylist()]
        states: list[list[Any]]
        if settings.gives == RECORDS:
            states = [records.column(name).to_pylist() for name in layout.columns[1:]]
            extra: tuple[int, ...] = (start,)
        else:
            try:
                states = [column.to_pylist() for column in layout.results(records)]
            except BeyondRange as error:
                self.malformed(len(groups), f"a sum is beyond {error}")
                return
            extra = (start, start + settings.length_us, *([min(nodes)] if settings.counts_nodes else []))
        made = [(*group, *values, *extra) for group, *values in zip(groups, *states, strict=True)]
        self.emit(Batch(self._output(layout), made), self._tag)
        if not self._panes:
            self._numbers.clear()
            self._groups.clear()

    def _records(self, rows: Sequence[tuple[int, Row]]) -> tuple[Layout, pa.Table]:
        assert self._kind is not None, "something has come"
        settings: WindowSettings = self.plan.settings
        groups = pa.array([number for number, _ in rows], pa.int64())
        functions = self._kind.functions
        if settings.takes == RECORDS:
            layout = Layout((GROUP_NUMBER,), tuple((function, None) for function in functions))
            types = [function.column_type(name) for function in functions for name in function.columns]
            columns = [pa.array([row[place] for _, row in rows], kind) for place, kind in enumerate(types)]
            return layout, layout.combine([pa.table([groups, *columns], names=list(layout.columns))])
        named = tuple((function, f"v{place}") for place, function in enumerate(functions))
        values = {}
        for place, (function, name) in enumerate(named):
            column = [row[place] for _, row in rows]
            if function == _COUNT:  # of which type they are does not matter
                column = [None if value is None else 1 for value in column]
            values[name] = pa.array(column, function.kind)
        layout = Layout((GROUP_NUMBER,), named)
        return layout, layout.add(pa.table({GROUP_NUMBER: groups, **values}))

    def _output(self, layout: Layout) -> Schema:
        assert self._kind is not None, "something has come"
        settings: WindowSettings = self.plan.settings
        kind = self._kind
        columns = {name: each for (name, _), each in zip(settings.groups, kind.group_types, strict=True)}
        for (name, _, _), function, value in zip(settings.aggregates, kind.functions, kind.value_types, strict=True):
            if settings.gives == WINDOWS:
                columns[name] = value
                continue
            for part in function.columns:
                is_value = function.name in ("min", "max")
                columns[f"{name}.{part}"] = value if is_value else _UFL[function.column_type(part)]
        if settings.gives == RECORDS:
            columns[PANE] = TIMESTAMP
        else:
            columns |= {f"{settings.prefix}{name}": TIMESTAMP for name in (WINDOW_START, WINDOW_END)}
            if settings.counts_nodes:
                columns[f"{settings.prefix}{NODES}"] = INTEGER
        return Schema.of(settings.table, columns)

    def _compile(self, schema: Schema) -> _Compiled:
        settings: WindowSettings = self.plan.settings
        groups = tuple(Field(name) if settings.takes == RECORDS else expression for name, expression in settings.groups)
        if settings.takes == TUPLES:
            arguments: tuple[Expression, ...] = tuple(argument for _, _, argument in settings.aggregates)
            kernel, types = compiled_row((settings.time, *groups, *arguments), schema)
            if types[0] not in (TIMESTAMP, INTEGER):
                raise Malformed(f"the time is of type {types[0]} and not timestamp")
            given = zip(settings.aggregates, types[1 + len(groups) :], strict=True)
            made = [_function(name, kind) for (_, name, _), kind in given]
            functions, values = tuple(each for each, _ in made), tuple(each for _, each in made)
            return _Compiled(kernel, types[1 : 1 + len(groups)], functions, values)
        found = [function_of_records(name, function, schema) for name, function, _ in settings.aggregates]
        states = [
            Field(f"{name}.{part}")
            for (name, _, _), (function, _) in zip(settings.aggregates, found, strict=True)
            for part in function.columns
        ]
        counted = [Field(NODES)] if settings.counts_nodes else []
        kernel, types = compiled_row((Field(PANE), *groups, *states, *counted), schema)
        functions, values = tuple(each for each, _ in found), tuple(each for _, each in found)
        return _Compiled(kernel, types[1 : 1 + len(groups)], functions, values)


def function_of_records(name: str, function: str, schema: Schema) -> tuple[Function, str]:
    """The function whose state a kind of records has, and the type of its result."""
    columns = {
        column.removeprefix(f"{name}."): kind
        for column, kind in schema.columns.items()
        if column.startswith(f"{name}.")
    }
    kind = columns.get("value", INTEGER if "high" in columns else DOUBLE)
    try:
        found = _function(function, kind)
    except TypeMismatch as error:
        raise Malformed(str(error)) from None
    if set(found[0].columns) != set(columns):
        raise Malformed(f"{schema.table} has no records of {name}")
    return found


def canonical(value: Any) -> Any:
    """One value for all that belong to one group: NaN equals NaN."""
    return "nan" if isinstance(value, float) and value != value else value
