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

from watersmeet.errors import did_you_mean
from watersmeet.program.aggregate.functions import LOST, BeyondRange, Function, Rule
from watersmeet.program.aggregate.parameters import wrong_parameters
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.pier.expressions import Malformed, check_functions, compiled_row
from watersmeet.program.pier.graph import Call, ConstantArgument, Expression, Operator, TupleField
from watersmeet.program.pier.runtime import Context, Plan, RunningOperator, Tag, no_settings
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema
from watersmeet.program.pier.values import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    INTEGER,
    NUMBERS,
    OBJECT,
    STRING,
    TIMESTAMP,
    TYPES,
    array_of,
    element_of,
)

TUPLES, RECORDS, WINDOWS = "tuples", "records", "windows"
DISTINCT = "distinct"  # after the name of an aggregate of different values
_NAMES = (
    *("count", "sum", "avg", "min", "max", "var_pop", "var_samp", "stddev_pop", "stddev_samp", "bool_and", "bool_or"),
    *("bit_and", "bit_or", "max_k", "min_k", "approx_count_distinct", "approx_percentile", "approx_top_k"),
    *("percentile_disc", "histogram", "bloom_filter", "spectral_bloom_filter"),
)
_COUNTING = ("count", "sum", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp")
_OF_DISTINCT = {name.replace("_", "") + DISTINCT: name for name in _COUNTING}
FUNCTIONS = {**{name.replace("_", ""): name for name in _NAMES}, **_OF_DISTINCT}
WINDOW_START, WINDOW_END, NODES = "window_start", "window_end", "nodes"
WAIT_US = 3_000_000
PANE, GROUP_NUMBER = "pane", "#group"
_ONE = ConstantArgument("1", "integer")
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
_ONLY = {  # what functions take that do not take everything
    **dict.fromkeys(("sum", "avg", "histogram"), (INTEGER, DOUBLE)),
    **dict.fromkeys(("var_pop", "var_samp", "stddev_pop", "stddev_samp"), (INTEGER, DOUBLE)),
    **dict.fromkeys(("bool_and", "bool_or"), (BOOLEAN,)),
    **dict.fromkeys(("bit_and", "bit_or"), (INTEGER,)),
    **dict.fromkeys(("approx_percentile", "percentile_disc"), (INTEGER, DOUBLE, DATE, TIMESTAMP)),
}
_NEEDS = {(BOOLEAN,): "conditions", (INTEGER,): "whole numbers", (INTEGER, DOUBLE): "numbers"}
_OF_PLACES = ("approx_count_distinct", "histogram", "bloom_filter", "spectral_bloom_filter")  # whatever the values are


class UflAggregate(NamedTuple):
    """An aggregate as it is asked for, by its name in UFL."""

    function: str
    parameters: tuple[float, ...] = ()


class TypedAggregate(NamedTuple):
    """An aggregate of values of a type."""

    function: Function
    kind: str  # of the values
    result: str

    def state_type(self, part: str) -> str:
        """The type of a column of its state."""
        function = self.function
        rule = function.rules[part.removesuffix(LOST)]
        if rule in (Rule.MIN, Rule.MAX):
            return self.kind
        arrow = function.column_type(part)
        if not pa.types.is_list(arrow):
            return _UFL[arrow]
        is_of_values = not part.endswith(LOST) and function.name not in _OF_PLACES
        return array_of(self.kind if is_of_values else INTEGER)


class WindowSettings(NamedTuple):
    """Groups, aggregates, the output window, and what comes in and goes out."""

    groups: tuple[tuple[str, Expression], ...]
    aggregates: tuple[tuple[str, UflAggregate, Expression], ...]  # name, function, argument
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
        function = call.function.casefold().replace("_", "")
        if function not in FUNCTIONS:
            raise reader.fail(f"unknown aggregate {call.function!r}; {did_you_mean(call.function, FUNCTIONS)}")
        if not call.arguments and function != "count":
            raise reader.fail(f"{function} takes an argument")
        parameters = _parameters(reader, call)
        if (wanted := wrong_parameters(FUNCTIONS[function], parameters)) is not None:
            raise reader.fail(f"{function} takes {wanted} after its argument, not {parameters or 'nothing'}")
        for argument in call.arguments[:1]:
            check_functions(argument, reader.where)
        found.append((name, UflAggregate(function, parameters), call.arguments[0] if call.arguments else _ONE))
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
        time or TupleField(PANE),
        length_us,
        slide_us,
        reader.duration_us("wait", WAIT_US) or WAIT_US,
        takes,
        gives,
        reader.text("table", gives),
        reader.text("prefix", ""),
        reader.flag("nodes", False),
    )


def _parameters(reader: SettingsReader, call: Call) -> tuple[float, ...]:
    """The numbers behind the argument of an aggregate."""
    found = []
    for each in call.arguments[1:]:
        if not isinstance(each, ConstantArgument) or each.type not in NUMBERS:
            raise reader.fail(f"{call.function} takes numbers after its argument: 3::integer, 0.5::double")
        found.append(float(TYPES[each.type].read(each.text)))
    return tuple(found)


def aggregate_of_values(call: UflAggregate, kind: str) -> TypedAggregate:
    """The aggregate of values of a type; Malformed if it does not take them."""
    name, parameters = FUNCTIONS[call.function], call.parameters
    if call.function == "count":
        return TypedAggregate(_COUNT, INTEGER, INTEGER)
    if kind not in _ARROW:
        cure = "cast it to DOUBLE or BIGINT" if kind == DECIMAL else "give it values of one type"
        raise Malformed(f"{call.function} does not take {kind}; {cure}")
    wanted = _ONLY.get(name)
    if wanted is not None and kind not in wanted:
        raise Malformed(f"{call.function} does not take {kind}; it needs {_NEEDS.get(wanted, 'numbers or times')}")
    function = Function(name, _ARROW[kind], call.function in _OF_DISTINCT, parameters)
    return TypedAggregate(function, kind, _result_type(function, kind))


def _result_type(function: Function, kind: str) -> str:
    match function.name:
        case "count" | "approx_count_distinct" | "bit_and" | "bit_or":
            return INTEGER
        case "min" | "max" | "bool_and" | "bool_or" | "percentile_disc":
            return kind
        case "max_k" | "min_k":
            return array_of(kind)
        case "approx_percentile":
            return array_of(kind) if function.parameters[1] else kind
        case "approx_top_k":
            return OBJECT
        case "histogram" | "spectral_bloom_filter":
            return array_of(INTEGER)
        case "bloom_filter":
            return BINARY
        case "sum":
            return kind
        case _:
            return DOUBLE


class _Compiled(NamedTuple):
    """How tuples of a kind are read: their time, groups, and arguments or states."""

    kernel: Callable[[Row], Row]
    group_types: tuple[str, ...]
    aggregates: tuple[TypedAggregate, ...]


class WindowGroupBy(RunningOperator):
    """Groups of output windows, or records of their panes."""

    def __init__(self, plan: Plan, context: Context) -> None:
        super().__init__(plan, context)
        self._numbers: dict[Row, int] = {}  # of groups, by key
        self._groups: list[Row] = []
        self._panes: dict[int, list[tuple[int, Row]]] = {}  # group, and arguments or states, by start
        self._due_us: dict[int, int] = {}  # when each open window, or pane, is to be given, by start
        self._answered: set[int] = set()  # windows, by start
        self._nodes: dict[int, int] = {}  # in the records of a pane of those, where they say so; theirs may be shorter
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
                    self._nodes[row[0]] = max(self._nodes.get(row[0], 0), row[-1])
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
        nodes = [count for pane, count in self._nodes.items() if start <= pane < panes.stop]
        for pane in panes:
            if pane in self._panes and not any(each in self._due_us for each in self._windows_of(pane)):
                del self._panes[pane]
                for old in [each for each in self._nodes if pane <= each < pane + settings.pane_us]:
                    del self._nodes[old]
        layout, records = self._records(rows)
        groups = [self._groups[number] for number in records.column(GROUP_NUMBER).to_pylist()]
        states: list[list[Any]]
        if settings.gives == RECORDS:
            states = [plain_values(records.column(name)) for name in layout.columns[1:]]
            extra: tuple[int, ...] = (start,)
        else:
            try:
                states = [plain_values(column) for column in layout.results(records)]
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
        functions = [each.function for each in self._kind.aggregates]
        if settings.takes == RECORDS:
            return combined_states(functions, groups, [states for _, states in rows])
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
        for (name, _, _), each in zip(settings.aggregates, kind.aggregates, strict=True):
            if settings.gives == WINDOWS:
                columns[name] = each.result
            else:
                columns |= {f"{name}.{part}": each.state_type(part) for part in each.function.columns}
        if settings.gives == RECORDS:
            columns[PANE] = TIMESTAMP
        else:
            columns |= {f"{settings.prefix}{name}": TIMESTAMP for name in (WINDOW_START, WINDOW_END)}
            if settings.counts_nodes:
                columns[f"{settings.prefix}{NODES}"] = INTEGER
        return Schema.of(settings.table, columns)

    def _compile(self, schema: Schema) -> _Compiled:
        settings: WindowSettings = self.plan.settings
        groups = tuple(
            TupleField(name) if settings.takes == RECORDS else expression for name, expression in settings.groups
        )
        if settings.takes == TUPLES:
            arguments: tuple[Expression, ...] = tuple(argument for _, _, argument in settings.aggregates)
            kernel, types = compiled_row((settings.time, *groups, *arguments), schema)
            if types[0] not in (TIMESTAMP, INTEGER):
                raise Malformed(f"the time is of type {types[0]} and not timestamp")
            given = zip(settings.aggregates, types[1 + len(groups) :], strict=True)
            made = tuple(aggregate_of_values(call, kind) for (_, call, _), kind in given)
            return _Compiled(kernel, types[1 : 1 + len(groups)], made)
        found = tuple(aggregate_of_records(name, call, schema) for name, call, _ in settings.aggregates)
        states = [
            TupleField(f"{name}.{part}")
            for (name, _, _), each in zip(settings.aggregates, found, strict=True)
            for part in each.function.columns
        ]
        counted = [TupleField(NODES)] if settings.counts_nodes else []
        kernel, types = compiled_row((TupleField(PANE), *groups, *states, *counted), schema)
        return _Compiled(kernel, types[1 : 1 + len(groups)], found)


def aggregate_of_records(name: str, call: UflAggregate, schema: Schema) -> TypedAggregate:
    """The aggregate whose state a kind of records has; Malformed if it has none."""
    columns = {
        column.removeprefix(f"{name}."): kind
        for column, kind in schema.columns.items()
        if column.startswith(f"{name}.")
    }
    if "value" in columns:
        kind = columns["value"]
    elif FUNCTIONS[call.function] not in _OF_PLACES and (element := element_of(columns.get("values", ""))) is not None:
        kind = element
    else:
        is_whole = "high" in columns or "bits" in columns or "values" in columns
        kind = INTEGER if is_whole else DOUBLE
    found = aggregate_of_values(call, kind)
    if {part: found.state_type(part) for part in found.function.columns} != columns:
        raise Malformed(f"{schema.table} has no records of {name}")
    return found


def combined_states(functions: Sequence[Function], groups: pa.Array, rows: Sequence[Row]) -> tuple[Layout, pa.Table]:
    """Records of one layout, a row each with the number of its group, as one for each group."""
    layout = Layout((GROUP_NUMBER,), tuple((function, None) for function in functions))
    types = [function.column_type(name) for function in functions for name in function.columns]
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(types)]
    return layout, layout.combine([pa.table([groups, *columns], names=list(layout.columns))])


def plain_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as those of tuples: arrays and structs are tuples."""
    values: list[Any] = column.to_pylist()
    return list(map(_plain, values)) if pa.types.is_nested(column.type) else values


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_plain, value.values()))
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def canonical(value: Any) -> Any:
    """One value for all that belong to one group: NaN equals NaN."""
    return "nan" if isinstance(value, float) and value != value else value
