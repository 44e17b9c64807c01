"""A join query as op-graphs (PIER, sections 4.3.1, 4.3.2 and 4.3.4): a left-deep chain of two-way joins.

Each stream is taken up at the nodes where it is published: filtered, cut down to what is needed, and given the interval
in which it is visible. A combination is an answer exactly if its latest time is not after its earliest end, so each
join keeps the intersection of intervals, and the order of joins changes no answer. Tuples carry the ids of what they
are made of: whoever asked knows an answer that comes twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from watersmeet.program.pier.graph import (
    QUERY_ID,
    Call,
    ConstantArgument,
    Expression,
    Operator,
    OpGraph,
    TupleField,
    UflQuery,
)
from watersmeet.program.pier.sql.build import graph, operator
from watersmeet.program.pier.sql.check import check_query, flat_schema, order_of
from watersmeet.program.pier.sql.expressions import plain_name, predicates_of, ufl_expression
from watersmeet.program.pier.sql.groups import GroupPlanner, group_types
from watersmeet.program.pier.sql.settings import JoinMethod, PlanSettings, StreamTypes, Transport, group_settings
from watersmeet.program.pier.ufl.format import format_expression
from watersmeet.query.model import Column, JoinQuery, StreamRef
from watersmeet.query.windows import Range, Tumble, Unbounded

ID = "#id"  # columns that a publisher adds: a number that no other tuple has, and the node that has the tuple
NODE = "#node"
VISITED = "visited"
_NEVER = ConstantArgument(str((1 << 62) - 1), "timestamp")


@dataclass(frozen=True, slots=True)
class _Input:
    """One side of a join: the operators that make its tuples, in the op-graph in which they run."""

    operators: tuple[Operator, ...]
    table: str
    number: str  # of its interval columns
    columns: tuple[str, ...]  # flat names that it has
    ids: tuple[str, ...]
    keys: tuple[Expression, ...] = ()

    @property
    def last(self) -> str:
        return self.operators[-1].name


def plan_sql(
    query: JoinQuery,
    streams: Mapping[str, StreamTypes],
    settings: PlanSettings = PlanSettings(),  # noqa: B008 - it is frozen
    start_us: int | None = None,
) -> UflQuery:
    """The op-graphs of a query."""
    check_query(query, streams, settings)
    return Planner(query, streams, settings, start_us).plan()


class Planner:
    """Makes the op-graphs of one query; what follows its joins can be something else (`sharing`)."""

    def __init__(
        self, query: JoinQuery, streams: Mapping[str, StreamTypes], settings: PlanSettings, start_us: int | None
    ) -> None:
        self._query, self._streams, self._settings, self._start_us = query, streams, settings, start_us
        self._graphs: list[OpGraph] = []
        self._has_windows = query.grouping is not None or any(
            not isinstance(source.window, Unbounded) for source in query.sources
        )
        self._conditions = [(set(each.aliases), ufl_expression(each)) for each in query.residuals]
        finite = [source.window.window_us for source in query.sources if isinstance(source.window, Range | Tumble)]
        is_finite = len(finite) == len(query.sources)
        self._lifetime = f"{max(finite) / 1e6 + settings.slack_s:g}" if is_finite and finite else None

    def plan(self) -> UflQuery:
        """All op-graphs."""
        order = order_of(self._query)
        left = self._taken_up(order[0], 0)
        joined = {order[0].alias}
        for stage, source in enumerate(order[1:], 1):
            right = self._taken_up(source, stage)
            left_keys, right_keys = self._keys(joined, source.alias)
            joined.add(source.alias)
            left, right = replace(left, keys=left_keys), replace(right, keys=right_keys)
            left = self._joined(left, right, stage, frozenset(joined))
        self._add("answer", [*left.operators, *self._finish(left)])
        return UflQuery(tuple(self._graphs))

    # One stream.

    def _taken_up(self, source: StreamRef, number: int) -> _Input:
        """Scan, filter and cut down a stream at the nodes that publish it."""
        scan = operator(f"scan{number}", "scan", "Local", table=source.stream)
        return self._cut_down(source, number, scan)

    def _cut_down(self, source: StreamRef, number: int, scan: Operator) -> _Input:
        alias, types = source.alias, self._streams[source.stream]
        operators, last = [scan], scan.name
        conditions = self._filters(alias)
        keys = [
            ufl_expression(side, plain_name)
            for equality in self._query.equalities
            for side in (equality.left, equality.right)
            if side.aliases == (alias,)
        ]
        conditions += [Call("isnotnull", (key,)) for key in dict.fromkeys(keys)]
        conditions.append(Call("isnotnull", (TupleField(types.event_time),)))
        if self._start_us is not None:
            start = ConstantArgument(str(self._start_us), "timestamp")
            conditions.append(Call("greaterthanequals", (TupleField(types.event_time), start)))
        operators.append(operator(f"filter{number}", "selection", None, [last], predicates_of(conditions)))
        needed = self._needed(alias)
        columns: dict[str, Expression] = {column.flat: TupleField(column.name) for column in needed}
        columns[f"id{number}"] = TupleField(ID)
        columns |= self._interval(source, str(number))
        if self._settings.method is JoinMethod.SEMIJOIN:
            columns[f"node{number}"] = TupleField(NODE)
        made = operator(
            f"take{number}", "projection", "Generate", [operators[-1].name], table=f"a.{alias}", columns=columns
        )
        flat = tuple(column.flat for column in needed)
        return _Input((*operators, made), f"a.{alias}", str(number), flat, (f"id{number}",))

    def _filters(self, alias: str) -> list[Expression]:
        """What rows of an alias must satisfy, over the columns as published."""
        return [ufl_expression(each, plain_name) for each in self._query.filters if each.aliases == (alias,)]

    def _interval(self, source: StreamRef, number: str) -> dict[str, Expression]:
        if not self._has_windows:
            return {}
        ts: Expression = TupleField(self._streams[source.stream].event_time)
        match source.window:
            case Range(window_us):
                end: Expression = Call("add", (ts, ConstantArgument(str(window_us), "integer")))
            case Tumble(window_us):
                width = ConstantArgument(str(window_us), "integer")
                end = Call("add", (Call("bucket", (ts, width)), ConstantArgument(str(window_us - 1), "integer")))
            case _:
                end = _NEVER
        return {f"ts{number}": ts, f"end{number}": end}

    def _needed(self, alias: str) -> list[Column]:
        """The columns of an alias that are asked for after it has been taken up."""
        query = self._query
        sides = [side for equality in query.equalities for side in (equality.left, equality.right)]
        after = [*sides, *query.residuals, *(item.expression for item in query.select)]
        columns = [*query.also_kept, *(column for each in after for column in each.columns)]
        return sorted({column for column in columns if column.alias == alias})

    def _keys(self, joined: set[str], alias: str) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
        pairs = []
        for equality in self._query.equalities:
            for mine, other in ((equality.left, equality.right), (equality.right, equality.left)):
                if other.aliases == (alias,) and mine.aliases[0] in joined:
                    pairs.append((ufl_expression(mine), ufl_expression(other)))
        return tuple(mine for mine, _ in pairs), tuple(other for _, other in pairs)

    # Two inputs.

    def _joined(self, left: _Input, right: _Input, stage: int, joined: frozenset[str]) -> _Input:
        match self._settings.method:
            case JoinMethod.FETCH_MATCHES:
                return self._fetch_matches(left, right, stage, joined)
            case JoinMethod.SEMIJOIN if stage == 1:
                return self._semijoin(left, right, stage, joined)
            case JoinMethod.BLOOM if stage == 1:
                return self._rehash(*self._reduced(left, right), stage, joined)
            case _:
                return self._rehash(left, right, stage, joined)

    def _rehash(self, left: _Input, right: _Input, stage: int, joined: frozenset[str]) -> _Input:
        """Both inputs go to the owner of their key, which joins them."""
        for side, given in (("left", left), ("right", right)):
            self._add(f"{side}{stage}", [*given.operators, *self._exchange(given, stage)])
        return self._pairs(left, right, stage, self._exchanged(stage), joined)

    def _exchange(self, given: _Input, stage: int) -> list[Operator]:
        """The operators that send an input to where it is joined."""
        name, keys = f"{QUERY_ID}.{stage}", () if self._settings.skewed else given.keys
        suffix: Expression = TupleField(given.ids[0])
        for each in given.ids[1:]:
            suffix = Call("concat", (_text(suffix), ConstantArgument(".", "string"), _text(TupleField(each))))
        tell_apart = Call("concat", (ConstantArgument(f"{given.table}.", "string"), _text(suffix)))
        if self._settings.transport is Transport.IP:
            if self._settings.computation_nodes is not None:
                node = Call("mod", (given.keys[0], ConstantArgument(str(self._settings.computation_nodes), "integer")))
                return [operator(f"send{stage}", "put", "IP", [given.last], port=name, address=node)]
            constant = (ConstantArgument("0", "integer"),)
            return [operator(f"send{stage}", "put", "IP", [given.last], port=name, key=keys or constant)]
        kind, source, more = "DHT", given.last, []
        if self._settings.method is JoinMethod.HIERARCHICAL:
            kind = "DHTMessage"
            empty = {VISITED: ConstantArgument("", "string")}
            more = [operator(f"begin{stage}", "projection", "Generate", [source], columns=empty, keep="true")]
            source = more[0].name
        renews = kind == "DHT" and self._settings.renew_s is not None
        put = operator(
            f"put{stage}",
            "put",
            kind,
            [source],
            ns=name,
            key=keys,
            suffix=tell_apart,
            lifetime=self._lifetime,
            renew=f"{self._settings.renew_s:g}" if renews else None,
        )
        return [*more, put]

    def _exchanged(self, stage: int) -> Operator:
        """The scan of what is sent to be joined."""
        name = f"{QUERY_ID}.{stage}"
        if self._settings.transport is Transport.IP:
            return operator(f"in{stage}", "scan", "IP", port=name)
        if self._settings.method is JoinMethod.HIERARCHICAL:
            return operator(f"in{stage}", "scan", "DHTMessage", ns=name, annotate=VISITED)
        return operator(f"in{stage}", "scan", "DHT", ns=name)

    def _pairs(self, left: _Input, right: _Input, stage: int, scan: Operator, joined: frozenset[str]) -> _Input:
        is_hierarchical = self._settings.method is JoinMethod.HIERARCHICAL
        join = operator(
            f"join{stage}",
            "join",
            "SymmetricHash",
            [scan.name],
            predicates_of(self._together(left, right, joined)),
            left=left.keys,
            right=right.keys,
            lefttable=left.table,
            righttable=right.table,
            lifetime=self._lifetime,
            visited=VISITED if is_hierarchical else None,
        )
        return self._merged(left, right, stage, (scan, join))

    def _together(self, left: _Input, right: _Input, joined: frozenset[str]) -> list[Expression]:
        """What pairs must satisfy: overlapping intervals, and predicates that can be judged for the first time."""
        conditions = [
            condition
            for aliases, condition in self._conditions
            if aliases <= joined and not aliases <= self._aliases(left) and not aliases <= self._aliases(right)
        ]
        if self._has_windows:
            for one, other in ((left.number, right.number), (right.number, left.number)):
                conditions.append(Call("lessthanequals", (TupleField(f"ts{one}"), TupleField(f"end{other}"))))
        return conditions

    def _aliases(self, given: _Input) -> set[str]:
        numbers = {name.removeprefix("id") for name in given.ids}
        return {source.alias for number, source in enumerate(order_of(self._query)) if str(number) in numbers}

    def _merged(self, left: _Input, right: _Input, stage: int, operators: Sequence[Operator]) -> _Input:
        """The columns of both sides that are still needed, and the intersection of their intervals."""
        number, flat = f".{stage}", (*left.columns, *right.columns)
        columns: dict[str, Expression] = {name: TupleField(name) for name in (*flat, *left.ids, *right.ids)}
        if self._has_windows:
            for name, function in (("ts", "greatest"), ("end", "least")):
                both = (TupleField(f"{name}{left.number}"), TupleField(f"{name}{right.number}"))
                columns[f"{name}{number}"] = Call(function, both)
        table = f"j.{stage}"
        merge = operator(f"merge{stage}", "projection", "Generate", [operators[-1].name], table=table, columns=columns)
        return _Input((*operators, merge), table, number, flat, (*left.ids, *right.ids))

    # Fetch Matches.

    def _fetch_matches(self, left: _Input, right: _Input, stage: int, joined: frozenset[str]) -> _Input:
        """The right stream is in the DHT under its key; each left tuple fetches its matches."""
        source = order_of(self._query)[stage]
        scan = operator(f"scan{stage}", "scan", "DHT", ns=self._index(source, right.keys).namespace)
        inner = self._cut_down(source, stage, scan)
        join = operator(
            f"join{stage}",
            "join",
            "Index",
            [left.last, inner.last],
            predicates_of(self._together(left, right, joined)),
            left=left.keys,
            right=right.keys,
        )
        return self._merged(left, right, stage, (*left.operators, *inner.operators, join))

    def _index(self, source: StreamRef, keys: Sequence[Expression]) -> "PrimaryIndex":
        plain = tuple(_without_alias(key, source.alias) for key in keys)
        return PrimaryIndex(source.stream, plain)

    # Symmetric semijoin.

    def _semijoin(self, left: _Input, right: _Input, stage: int, joined: frozenset[str]) -> _Input:
        """Keys and ids alone are joined; both tuples of each pair are then fetched, at the same time."""
        sides = []
        for given in (left, right):
            kept = {f"key{given.number}.{place}": key for place, key in enumerate(given.keys)}
            kept |= {name: TupleField(name) for name in (f"id{given.number}", f"node{given.number}")}
            if self._has_windows:
                kept |= {name: TupleField(name) for name in (f"ts{given.number}", f"end{given.number}")}
            cut = operator(
                f"keys{given.number}", "projection", "Generate", [given.last], table=given.table, columns=kept
            )
            keys = tuple(TupleField(f"key{given.number}.{place}") for place in range(len(given.keys)))
            sides.append(replace(given, operators=(*given.operators, cut), columns=(), keys=keys))
        for side, given in zip(("left", "right"), sides, strict=True):
            self._add(f"{side}{stage}", [*given.operators, *self._exchange(given, stage)])
        windows = self._together(sides[0], sides[1], frozenset())
        scan = self._exchanged(stage)
        pair = operator(
            f"pair{stage}",
            "join",
            "SymmetricHash",
            [scan.name],
            predicates_of(windows),
            left=sides[0].keys,
            right=sides[1].keys,
            lefttable=left.table,
            righttable=right.table,
            lifetime=self._lifetime,
        )
        tee = operator(f"tee{stage}", "tee", None, [pair.name])
        operators = [scan, pair, tee]
        order, pairs = order_of(self._query), (left.ids[0], right.ids[0])
        fetched = []
        for given, source in ((left, order[0]), (right, order[stage])):
            number = given.number
            names = {f"pair{number}.{place}": TupleField(each) for place, each in enumerate(pairs)}
            names |= {f"at{number}": TupleField(f"node{number}"), f"of{number}": TupleField(f"id{number}")}
            want = operator(f"want{number}", "projection", "Generate", [tee.name], table="want", columns=names)
            local = operator(f"base{number}", "scan", "Local", table=source.stream, column=ID)
            inner = self._cut_down(source, int(number) + 100, local)
            # Under the names that the rest of the plan has for them.
            renamed: dict[str, Expression] = {name: TupleField(name) for name in given.columns}
            for name in ("id", "node"):
                renamed[f"{name}{number}"] = TupleField(f"{name}{int(number) + 100}")
            if self._has_windows:
                for name in ("ts", "end"):
                    renamed[f"{name}{number}"] = TupleField(f"{name}{int(number) + 100}")
            named = operator(
                f"named{number}", "projection", "Generate", [inner.last], table=given.table, columns=renamed
            )
            got = operator(
                f"fetch{number}",
                "join",
                "Index",
                [want.name, named.name],
                left=[TupleField(f"at{number}"), TupleField(f"of{number}")],
                right=[TupleField(f"node{number}"), TupleField(f"id{number}")],
                table=f"f.{number}",
            )
            operators += [want, *inner.operators, named, got]
            fetched.append(got.name)
        join = operator(
            f"join{stage}",
            "join",
            "SymmetricHash",
            fetched,
            predicates_of(self._together(left, right, joined)),
            left=[TupleField(f"pair{left.number}.{place}") for place in (0, 1)],
            right=[TupleField(f"pair{right.number}.{place}") for place in (0, 1)],
            lifetime=self._lifetime,
        )
        return self._merged(left, right, stage, (*operators, join))

    # Bloom join.

    def _reduced(self, left: _Input, right: _Input) -> tuple[_Input, _Input]:
        """Each side lets only tuples pass that are in the Bloom filter of the other side's keys."""
        settings = self._settings
        for name, given in (("left", left), ("right", right)):
            namespace = f"{QUERY_ID}.bloom.{name}"
            flow = operator(f"set{given.number}", "flowcontrol", None, [given.last], probe="set")
            put = operator(
                f"bloom{given.number}",
                "put",
                "Bloom",
                [flow.name],
                ns=namespace,
                key=given.keys,
                bits=str(settings.bloom_bits),
                hashes=str(settings.bloom_hashes),
            )
            self._add(f"bloom.{name}", [*given.operators, flow, put])
            wait = f"{settings.bloom_wait_s:g}"
            self._add(
                f"or.{name}",
                [
                    operator("filters", "scan", "DHT", ns=namespace),
                    operator("all", "flowcontrol", None, ["filters"]),
                    operator(
                        "or",
                        "groupby",
                        "DualFlow",
                        ["all"],
                        aggregates={"filter": Call("bloomor", (TupleField("filter"),))},
                        period=wait,
                    ),
                    operator("changed", "flowcontrol", None, ["or"], probe="stream"),
                    operator("tell", "put", "Broadcast", ["changed"], port=namespace),
                ],
            )
        return self._passing(left, "right"), self._passing(right, "left")

    def _passing(self, given: _Input, other: str) -> _Input:
        number, constant_argument = given.number, ConstantArgument("1", "integer")
        filters = operator(f"known{number}", "scan", "IP", port=f"{QUERY_ID}.bloom.{other}")
        try_all = operator(
            f"try{number}",
            "join",
            "SymmetricHash",
            [given.last, filters.name],
            predicates_of([Call("mightcontain", (TupleField("filter"), *given.keys))]),
            left=[constant_argument],
            right=[constant_argument],
        )
        interval = [f"{name}{number}" for name in ("ts", "end") if self._has_windows]
        cut = operator(
            f"pass{number}",
            "projection",
            None,
            [try_all.name],
            fields=[*given.columns, *given.ids, *interval],
            table=given.table,
        )
        once = operator(f"once{number}", "dupelim", None, [cut.name], fields=list(given.ids))
        return replace(given, operators=(*given.operators, filters, try_all, cut, once))

    # What follows the joins.

    def _finish(self, left: _Input) -> list[Operator]:
        query = self._query
        operators, last = [], left.last
        alone = [condition for aliases, condition in self._conditions if not aliases]
        if alone:
            operators.append(operator("constant", "selection", None, [last], predicates_of(alone)))
            last = operators[-1].name
        if query.grouping is not None:
            return [*operators, *self._grouped(last, f"ts{left.number}")]
        columns = {item.name: ufl_expression(item.expression) for item in query.select}
        names: list[str] = list(columns)
        if not query.distinct:
            columns |= {f"#{name}": TupleField(name) for name in left.ids}
            names = [f"#{name}" for name in left.ids]
        operators.append(operator("select", "projection", "Generate", [last], table="answers", columns=columns))
        last = "select"
        if query.distinct:
            operators.append(operator("distinct", "dupelim", None, [last]))
            last = "distinct"
        operators.append(operator("result", "result", None, [last], once=names))
        return operators

    def _grouped(self, source: str, time: str) -> list[Operator]:
        settings, query = self._settings, self._query
        assert query.grouping is not None, "a query with groups"
        types = group_types(query, query.grouping, flat_schema(query, self._streams))
        planner = GroupPlanner(query, types, group_settings(settings))
        return planner.plan(source, time, self._add)

    def _add(self, name: str, operators: Sequence[Operator]) -> None:
        self._graphs.append(graph(name, operators, self._settings.duration_s))


@dataclass(frozen=True, slots=True)
class PrimaryIndex:
    """A stream that is published into the DHT under values of its own: what Fetch Matches needs."""

    stream: str
    keys: tuple[Expression, ...]  # over the columns as published

    @property
    def namespace(self) -> str:
        """Where it is in the DHT."""
        return f"{self.stream}({', '.join(map(format_expression, self.keys))})"


def indexes_of(query: JoinQuery, settings: PlanSettings) -> tuple[PrimaryIndex, ...]:
    """The indexes that a query reads."""
    if settings.method is not JoinMethod.FETCH_MATCHES:
        return ()
    planner = Planner(query, {}, settings, None)
    order, found = order_of(query), []
    for stage, source in enumerate(order[1:], 1):
        _, keys = planner._keys({each.alias for each in order[:stage]}, source.alias)
        found.append(planner._index(source, keys))
    return tuple(found)


def _without_alias(expression: Expression, alias: str) -> Expression:
    match expression:
        case TupleField(name):
            return TupleField(name.removeprefix(f"{alias}."))
        case Call(function, arguments):
            return Call(function, tuple(_without_alias(argument, alias) for argument in arguments))
        case _:
            return expression


def _text(expression: Expression) -> Expression:
    return expression if isinstance(expression, Call) else Call("tostring", (expression,))
