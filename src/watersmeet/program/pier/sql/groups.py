"""GROUP BY as op-graphs: records of panes where answers of the join are made, windows at the owners of groups.

With ORDER BY and LIMIT the owner of a window's start gets the first groups of each owner, and answers the first of all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from watersmeet.program.pier.algorithms import WaitFor, algorithm_named
from watersmeet.program.pier.expressions import Malformed, compiled, compiled_condition
from watersmeet.program.pier.graph import QUERY_ID, Call, ConstantArgument, Expression, Operator, TupleField, Value
from watersmeet.program.pier.operators.windows import (
    DISTINCT,
    RECORDS,
    TUPLES,
    WINDOWS,
    UflAggregate,
    aggregate_of_values,
)
from watersmeet.program.pier.runtime import Receiver
from watersmeet.program.pier.sql.build import Given, operator
from watersmeet.program.pier.sql.expressions import predicates_of, ufl_expression
from watersmeet.program.pier.tuples import Schema
from watersmeet.program.pier.values import BINARY, BOOLEAN, OBJECT, STRING, TIMESTAMP
from watersmeet.query.model import GROUP, TIME, WINDOW_END, WINDOW_START, Grouping, JoinQuery, key_of_group

ENDED = "#end"  # a column of answers: when their window ended
NODES = "#nodes"  # another one, where records are combined in an aggregation tree: how many nodes are in
NODES_COLUMN = "nodes"  # as users see it
ROWS = "#rows"  # an aggregate beside those of queries: how many rows a group has
_NO_VALUE = {STRING: "", BINARY: "", BOOLEAN: "false"}  # in place of NULL, for routing alone


@dataclass(frozen=True, slots=True)
class GroupTypes:
    """The types of a group's keys and of its columns, and what its records have."""

    keys: tuple[str, ...]
    groups: Schema
    states: tuple[tuple[str, ...], ...]  # the columns of each aggregate's state


def group_types(query: JoinQuery, grouping: Grouping, rows: Schema) -> GroupTypes:
    """The types that groups of a query have; Malformed if one of its expressions has none."""
    items = [
        TIMESTAMP if item.expression.columns == (TIME,) else compiled(ufl_expression(item.expression), rows)[1]
        for item in query.select
    ]
    columns = {key_of_group(number).flat: items[number] for number in range(grouping.keys)}
    states = []
    for number, aggregate in enumerate(grouping.aggregates):
        kind = "integer" if aggregate.item is None else items[aggregate.item]
        typed = aggregate_of_values(aggregate_call(grouping, number), kind)
        columns[f"{GROUP}.value{number}"] = typed.result
        states.append(typed.function.columns)
    columns |= {WINDOW_START.flat: TIMESTAMP, WINDOW_END.flat: TIMESTAMP}
    found = GroupTypes(tuple(items[: grouping.keys]), Schema.of("groups", columns), tuple(states))
    for condition in grouping.having:
        compiled_condition(ufl_expression(condition), found.groups)
    for item in grouping.select:
        compiled(ufl_expression(item.expression), found.groups)
    for key in grouping.order:
        if compiled(ufl_expression(key.expression), found.groups)[1] == OBJECT:
            raise Malformed("groups cannot be ordered by values with their counts")
    return found


def aggregate_call(grouping: Grouping, number: int) -> UflAggregate:
    """An aggregate of a query as UFL has it."""
    aggregate = grouping.aggregates[number]
    name = aggregate.function.replace("_", "")
    return UflAggregate(f"{name}{DISTINCT}" if aggregate.distinct else name, aggregate.parameters)


def _call(grouping: Grouping, number: int, argument: Sequence[Expression]) -> Call:
    call = aggregate_call(grouping, number)
    numbers = [
        ConstantArgument(str(int(each)), "integer") if each == int(each) else ConstantArgument(repr(each), "double")
        for each in call.parameters
    ]
    return Call(call.function, (*argument, *numbers))


@dataclass(frozen=True, slots=True)
class RecordRouting:
    """How records travel: with an algorithm up trees that combine them, else to the owner of each group."""

    wait_s: float
    by_ip: bool
    algorithm: str | None = None
    roots: int = 1


class GroupPlanner:
    """The operators from answers of a join to answers of groups."""

    def __init__(
        self,
        query: JoinQuery,
        types: GroupTypes,
        settings: RecordRouting,
        tag: str = "",
        receiver: Receiver | None = None,
        *,
        counts_rows: bool = False,
        further: Mapping[str, Expression] = MappingProxyType({}),
    ) -> None:
        """Names of operators and namespaces end with the tag; answers go to the receiver, if there is one.

        Records may also count rows, and have further columns that tell groups apart.
        """
        assert query.grouping is not None, "a query with groups"
        self._query, self._grouping, self._types = query, query.grouping, types
        self._settings, self._tag, self._receiver = settings, tag, receiver
        self._counts_rows, self._further = counts_rows, further

    def plan(self, source: str, time: str, add: Callable[[str, Sequence[Operator]], None]) -> list[Operator]:
        """What follows the operator that makes answers of the join; `add` takes the op-graphs behind it."""
        grouping, query = self._grouping, self._query
        columns: dict[str, Expression] = {
            item.name: TupleField(time) if item.expression.columns == (TIME,) else ufl_expression(item.expression)
            for item in query.select
        }
        take = operator("grouped", "projection", "Generate", [source], table="grouped", columns=columns)
        keys = [key_of_group(number) for number in range(grouping.keys)]
        names = {key.flat: TupleField(query.select[number].name) for number, key in enumerate(keys)}
        before = [take, self._groups("records", take.name, names, takes=TUPLES, gives=RECORDS)]
        if self._settings.algorithm is not None:
            return [*before, *self._from_tree({key.flat: TupleField(key.flat) for key in keys}, add)]
        before.append(self._send("groups", "records", self.routing_key([key.flat for key in keys])))
        self._answer(add, names)
        return before

    def _from_tree(
        self, names: Mapping[str, Expression], add: Callable[[str, Sequence[Operator]], None]
    ) -> list[Operator]:
        """All groups of a root are there, so what follows runs there, in the same op-graph."""
        tree = self._groups(
            "tree", "records", names, takes=RECORDS, gives=WINDOWS, implementation="Tree", more=self._tree
        )
        window, waits = self._grouping.output_window, 1
        if window.length_us > window.pane_us:  # the pane that comes last must not be late for what others wait
            waits = self.waits_of_panes
        windows = self._groups("windows", "tree", names, takes=RECORDS, gives=WINDOWS, nodes="yes", waits=waits)
        operators, once, sorts, ids = self._selected([tree, windows], {NODES: TupleField(f"{GROUP}.nodes")})
        if self._grouping.limit is None:
            return [*operators, self._result("select", once)]
        if self._settings.roots == 1:
            return [*operators, self._top("top", "select", sorts, ids), self._result("top", once)]
        self._answer_first(add, sorts, ids, once)
        return [*operators, self._top("first", "select", sorts, ids), self._send_first()]

    def routing_key(self, columns: Sequence[str]) -> list[Expression]:
        """What decides which node a group goes to: its keys, with something in the place of NULL."""
        defaults = [ConstantArgument(_NO_VALUE.get(kind, "0"), kind) for kind in self._types.keys]
        return [Call("coalesce", (TupleField(name), default)) for name, default in zip(columns, defaults, strict=True)]

    @property
    def waits_of_panes(self) -> int:
        """How long a window of several panes waits for what comes up a tree: more where each level has a timeout."""
        algorithm = algorithm_named(self._settings.algorithm or "")
        return 4 if algorithm is not None and isinstance(algorithm.timing, WaitFor) else 2

    @property
    def _tree(self) -> dict[str, Given]:
        """The settings of an aggregation tree."""
        roots = self._settings.roots
        return {"algorithm": self._settings.algorithm, "roots": str(roots) if roots > 1 else None}

    def _groups(
        self,
        name: str,
        source: str,
        names: Mapping[str, Expression],
        *,
        takes: str,
        gives: str,
        nodes: str | None = None,
        waits: int = 1,
        kind: str = "groupby",
        implementation: str = "Window",
        more: Mapping[str, Given] = MappingProxyType({}),
    ) -> Operator:
        """A groupby, or another operator that reads records as it does."""
        grouping = self._grouping
        aggregates: dict[str, Expression] = {
            f"{GROUP}.value{number}": _call(
                grouping,
                number,
                () if aggregate.item is None else (TupleField(self._query.select[aggregate.item].name),),
            )
            for number, aggregate in enumerate(grouping.aggregates)
        }
        if self._counts_rows:
            aggregates[ROWS] = Call("count", ())
        return operator(
            name,
            kind,
            implementation,
            [source],
            (),
            groupby={**names, **self._further} or None,
            aggregates=aggregates or None,
            time=TupleField(TIME.name) if takes == TUPLES else None,
            length=_seconds(grouping.output_window.length_us),
            slide=_seconds(grouping.output_window.slide_us),
            wait=f"{waits * self._settings.wait_s:g}",
            input=takes,
            output=gives,
            prefix=f"{GROUP}." if gives != RECORDS else None,
            nodes=nodes,
            **more,
        )

    def answers_of(
        self,
        before: Sequence[Operator],
        add: Callable[[str, Sequence[Operator]], None],
        *,
        counts_nodes: bool,
        waits: int,
    ) -> list[Operator]:
        """From records of the query alone, of several nodes, to its answers."""
        keys = [key_of_group(number).flat for number in range(self._grouping.keys)]
        windows = self._groups(
            self._own("windows"),
            before[-1].name,
            {key: TupleField(key) for key in keys},
            takes=RECORDS,
            gives=WINDOWS,
            nodes="yes" if counts_nodes else None,
            waits=waits,
        )
        operators = [*before, windows]
        if self._counts_rows:  # a group of which nothing is left after subtracting
            some = predicates_of([Call("greaterthan", (TupleField(ROWS), ConstantArgument("0", "integer")))])
            operators.append(operator(self._own("some"), "selection", None, [windows.name], some))
        further = {NODES: TupleField(f"{GROUP}.nodes")} if counts_nodes else {}
        operators, once, sorts, ids = self._selected(operators, further)
        if self._grouping.limit is None:
            return [*operators, self._result("select", once)]
        self._answer_first(add, sorts, ids, once)
        return [*operators, self._top("first", "select", sorts, ids), self._send_first()]

    def _answer(self, add: Callable[[str, Sequence[Operator]], None], names: Mapping[str, Expression]) -> None:
        grouping = self._grouping
        windows = self._groups("windows", "in.groups", names, takes=RECORDS, gives=WINDOWS)
        operators, once, sorts, ids = self._selected([self._scan("groups"), windows], {})
        if grouping.limit is None:
            add("groups", [*operators, self._result("select", once)])
            return
        add("groups", [*operators, self._top("first", "select", sorts, ids), self._send_first()])
        self._answer_first(add, sorts, ids, once)

    def _answer_first(
        self,
        add: Callable[[str, Sequence[Operator]], None],
        sorts: Sequence[str],
        ids: Sequence[str],
        once: Sequence[str],
    ) -> None:
        """The first groups of all, at the owner of the start of their window."""
        final = self._top("top", "in.first", sorts, ids, wait=f"{self._settings.wait_s:g}")
        add(self._own("top"), [self._scan("first"), final, self._result("top", once)])

    def _own(self, name: str) -> str:
        """A name that no other query has in the same op-graph."""
        return f"{name}{self._tag}"

    def _result(self, source: str, once: Sequence[str]) -> Operator:
        receiver = self._receiver
        return operator(
            self._own("result"),
            "result",
            None,
            [self._own(source)],
            once=once,
            asker=None if receiver is None else str(receiver.address),
            query=None if receiver is None else receiver.query_id,
        )

    def _selected(
        self, operators: list[Operator], further: Mapping[str, Expression]
    ) -> tuple[list[Operator], list[str], list[str], list[str]]:
        """HAVING and the select list behind windows; with the columns that say which answer it is, sorts and keys."""
        grouping = self._grouping
        if grouping.having:
            conditions = predicates_of([ufl_expression(each) for each in grouping.having])
            operators = [*operators, operator(self._own("having"), "selection", None, [operators[-1].name], conditions)]
        columns: dict[str, Expression] = {item.name: ufl_expression(item.expression) for item in grouping.select}
        sorts = {f"#sort{number}": ufl_expression(key.expression) for number, key in enumerate(grouping.order)}
        ids = {f"#key{number}": TupleField(key_of_group(number).flat) for number in range(grouping.keys)}
        columns |= {
            **sorts,
            **ids,
            "#start": TupleField(WINDOW_START.flat),
            ENDED: TupleField(WINDOW_END.flat),
            **further,
        }
        source = operators[-1].name
        select = operator(self._own("select"), "projection", "Generate", [source], table="answers", columns=columns)
        return [*operators, select], [*ids, "#start"], [*sorts], [*ids]

    def _send_first(self) -> Operator:
        return self._send("first", "first", [TupleField("#start")])

    def _top(
        self, name: str, source: str, sorts: Sequence[str], ids: Sequence[str], wait: str | None = None
    ) -> Operator:
        directions = [
            f"{'desc' if key.descending else 'asc'} nulls {'first' if key.nulls_first else 'last'}"
            for key in self._grouping.order
        ]
        return operator(
            self._own(name),
            "top",
            None,
            [self._own(source)],
            order=[TupleField(each) for each in (*sorts, *ids)],
            direction=[*directions, *["asc nulls first"] * len(ids)],
            group=[TupleField("#start")],
            count=str(self._grouping.limit),
            wait=wait,
        )

    def _send(self, name: str, source: str, key: Sequence[Value]) -> Operator:
        name, source = self._own(name), self._own(source)
        where = f"{QUERY_ID}.{name}"
        if self._settings.by_ip:
            return operator(
                f"send.{name}", "put", "IP", [source], port=where, key=key or [ConstantArgument("0", "integer")]
            )
        return operator(f"put.{name}", "put", "DHT", [source], ns=where, key=key)

    def _scan(self, name: str) -> Operator:
        name = self._own(name)
        where = f"{QUERY_ID}.{name}"
        if self._settings.by_ip:
            return operator(f"in.{name}", "scan", "IP", port=where)
        return operator(f"in.{name}", "scan", "DHT", ns=where)


def _seconds(duration_us: int) -> str:
    return f"{duration_us / 1e6:.6f}"
