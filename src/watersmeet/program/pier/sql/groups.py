"""GROUP BY as op-graphs: records of panes where answers of the join are made, windows at the owners of groups.

With ORDER BY and LIMIT the owner of a window's start gets the first groups of each owner, and answers the first of all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from watersmeet.program.pier.expressions import compiled, compiled_condition
from watersmeet.program.pier.graph import QUERY_ID, Call, Constant, Expression, Field, Operator, Value
from watersmeet.program.pier.operators.windows import DISTINCT, RECORDS, TUPLES, WINDOWS, value_type
from watersmeet.program.pier.sql.build import operator
from watersmeet.program.pier.sql.expressions import predicates_of, ufl_expression
from watersmeet.program.pier.tuples import Schema
from watersmeet.program.pier.values import BINARY, BOOLEAN, STRING, TIMESTAMP
from watersmeet.query.model import GROUP, TIME, WINDOW_END, WINDOW_START, Grouping, JoinQuery, key_of_group

ENDED = "#end"  # a column of answers: when their window ended
NODES = "#nodes"  # another one, where records are combined in an aggregation tree: how many nodes are in
NODES_COLUMN = "nodes"  # as users see it
_NO_VALUE = {STRING: "", BINARY: "", BOOLEAN: "false"}  # in place of NULL, for routing alone


@dataclass(frozen=True, slots=True)
class GroupTypes:
    """The types of a group's keys and of its columns."""

    keys: tuple[str, ...]
    groups: Schema


def group_types(query: JoinQuery, grouping: Grouping, rows: Schema) -> GroupTypes:
    """The types that groups of a query have; Malformed if one of its expressions has none."""
    items = [
        TIMESTAMP if item.expression.columns == (TIME,) else compiled(ufl_expression(item.expression), rows)[1]
        for item in query.select
    ]
    columns = {key_of_group(number).flat: items[number] for number in range(grouping.keys)}
    for number, aggregate in enumerate(grouping.aggregates):
        kind = "integer" if aggregate.item is None else items[aggregate.item]
        columns[f"{GROUP}.value{number}"] = value_type(_function(grouping, number), kind)
    columns |= {WINDOW_START.flat: TIMESTAMP, WINDOW_END.flat: TIMESTAMP}
    found = GroupTypes(tuple(items[: grouping.keys]), Schema.of("groups", columns))
    for condition in grouping.having:
        compiled_condition(ufl_expression(condition), found.groups)
    for expression in (*(item.expression for item in grouping.select), *(key.expression for key in grouping.order)):
        compiled(ufl_expression(expression), found.groups)
    return found


def _function(grouping: Grouping, number: int) -> str:
    aggregate = grouping.aggregates[number]
    return DISTINCT if aggregate.distinct else aggregate.function.replace("_", "")


class GroupPlanner:
    """The operators from answers of a join to answers of groups."""

    def __init__(self, query: JoinQuery, types: GroupTypes, wait_s: float, by_ip: bool, algorithm: str | None) -> None:
        """With an algorithm records are combined on their way to one root; else they go to the owner of each group."""
        assert query.grouping is not None, "a query with groups"
        self._query, self._grouping, self._types = query, query.grouping, types
        self._wait, self._by_ip, self._algorithm = f"{wait_s:g}", by_ip, algorithm
        self._has_records = not any(aggregate.distinct for aggregate in query.grouping.aggregates)

    def plan(self, source: str, time: str, add: Callable[[str, Sequence[Operator]], None]) -> list[Operator]:
        """What follows the operator that makes answers of the join; `add` takes the op-graphs behind it."""
        grouping, query = self._grouping, self._query
        columns: dict[str, Expression] = {
            item.name: Field(time) if item.expression.columns == (TIME,) else ufl_expression(item.expression)
            for item in query.select
        }
        take = operator("grouped", "projection", "Generate", [source], table="grouped", columns=columns)
        keys = [key_of_group(number) for number in range(grouping.keys)]
        before, last = [take], take.name
        if self._has_records:
            names = {key.flat: Field(query.select[number].name) for number, key in enumerate(keys)}
            before.append(self._groups("records", last, names, takes=TUPLES, gives=RECORDS))
            last, routed = "records", [Field(key.flat) for key in keys]
            if self._algorithm is not None:
                return [*before, *self._from_tree({key.flat: Field(key.flat) for key in keys})]
        else:
            routed = [Field(query.select[number].name) for number in range(grouping.keys)]
        defaults = [Constant(_NO_VALUE.get(kind, "0"), kind) for kind in self._types.keys]
        key = [Call("coalesce", pair) for pair in zip(routed, defaults, strict=True)]
        before.append(self._send("groups", last, key))
        self._answer(add, names={key.flat: Field(query.select[number].name) for number, key in enumerate(keys)})
        return before

    def _from_tree(self, names: Mapping[str, Expression]) -> list[Operator]:
        """All groups are at the root, so what follows runs there, in the same op-graph."""
        tree = self._groups("tree", "records", names, takes=RECORDS, gives=WINDOWS, algorithm=self._algorithm)
        windows = self._groups("windows", "tree", names, takes=RECORDS, gives=WINDOWS, nodes="yes")
        operators, once, sorts, ids = self._selected([tree, windows], {NODES: Field(f"{GROUP}.nodes")})
        if self._grouping.limit is not None:
            operators.append(self._top("top", "select", sorts, ids))
        return [*operators, operator("result", "result", None, [operators[-1].name], once=once)]

    def _groups(
        self,
        name: str,
        source: str,
        names: Mapping[str, Expression],
        *,
        takes: str,
        gives: str,
        algorithm: str | None = None,
        nodes: str | None = None,
    ) -> Operator:
        grouping = self._grouping
        aggregates = {
            f"{GROUP}.value{number}": Call(
                _function(grouping, number),
                () if aggregate.item is None else (Field(self._query.select[aggregate.item].name),),
            )
            for number, aggregate in enumerate(grouping.aggregates)
        }
        return operator(
            name,
            "groupby",
            "Window" if algorithm is None else "Tree",
            [source],
            groupby=dict(names) or None,
            aggregates=aggregates or None,
            time=Field(TIME.name) if takes == TUPLES else None,
            length=_seconds(grouping.output_window.length_us),
            slide=_seconds(grouping.output_window.slide_us),
            wait=self._wait,
            input=takes,
            output=gives,
            prefix=f"{GROUP}." if gives != RECORDS else None,
            algorithm=algorithm,
            nodes=nodes,
        )

    def _answer(self, add: Callable[[str, Sequence[Operator]], None], names: Mapping[str, Expression]) -> None:
        grouping = self._grouping
        takes = RECORDS if self._has_records else TUPLES
        windows = self._groups("windows", "in.groups", names, takes=takes, gives=WINDOWS)
        operators, once, sorts, ids = self._selected([self._scan("groups"), windows], {})
        if grouping.limit is None:
            add("groups", [*operators, operator("result", "result", None, ["select"], once=once)])
            return
        add("groups", [*operators, self._top("first", "select", sorts, ids), self._send_first()])
        final = self._top("top", "in.first", sorts, ids, wait=self._wait)
        add("top", [self._scan("first"), final, operator("result", "result", None, ["top"], once=once)])

    def _selected(
        self, operators: list[Operator], further: Mapping[str, Expression]
    ) -> tuple[list[Operator], list[str], list[str], list[str]]:
        """HAVING and the select list behind windows; with the columns that say which answer it is, sorts and keys."""
        grouping = self._grouping
        if grouping.having:
            conditions = predicates_of([ufl_expression(each) for each in grouping.having])
            operators = [*operators, operator("having", "selection", None, ["windows"], conditions)]
        columns: dict[str, Expression] = {item.name: ufl_expression(item.expression) for item in grouping.select}
        sorts = {f"#sort{number}": ufl_expression(key.expression) for number, key in enumerate(grouping.order)}
        ids = {f"#key{number}": Field(key_of_group(number).flat) for number in range(grouping.keys)}
        columns |= {**sorts, **ids, "#start": Field(WINDOW_START.flat), ENDED: Field(WINDOW_END.flat), **further}
        source = operators[-1].name
        select = operator("select", "projection", "Generate", [source], table="answers", columns=columns)
        return [*operators, select], [*ids, "#start"], [*sorts], [*ids]

    def _send_first(self) -> Operator:
        return self._send("first", "first", [Field("#start")])

    def _top(
        self, name: str, source: str, sorts: Sequence[str], ids: Sequence[str], wait: str | None = None
    ) -> Operator:
        directions = [
            f"{'desc' if key.descending else 'asc'} nulls {'first' if key.nulls_first else 'last'}"
            for key in self._grouping.order
        ]
        return operator(
            name,
            "top",
            None,
            [source],
            order=[Field(each) for each in (*sorts, *ids)],
            direction=[*directions, *["asc nulls first"] * len(ids)],
            group=[Field("#start")],
            count=str(self._grouping.limit),
            wait=wait,
        )

    def _send(self, name: str, source: str, key: Sequence[Value]) -> Operator:
        where = f"{QUERY_ID}.{name}"
        if self._by_ip:
            return operator(f"send.{name}", "put", "IP", [source], port=where, key=key or [Constant("0", "integer")])
        return operator(f"put.{name}", "put", "DHT", [source], ns=where, key=key)

    def _scan(self, name: str) -> Operator:
        where = f"{QUERY_ID}.{name}"
        if self._by_ip:
            return operator(f"in.{name}", "scan", "IP", port=where)
        return operator(f"in.{name}", "scan", "DHT", ns=where)


def _seconds(duration_us: int) -> str:
    return f"{duration_us / 1e6:.6f}"
