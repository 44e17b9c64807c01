"""GROUP BY, HAVING, ORDER BY and LIMIT, and the select list of a query that has groups.

An expression over groups is the user's own text, in which aggregates and keys are replaced by columns of the group.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.errors import SqlError
from watersmeet.query.model import (
    CHANGED_AT,
    DELETED,
    GROUP,
    TIME,
    WINDOW_END,
    WINDOW_START,
    Column,
    Expression,
    Grouping,
    OuterJoins,
    SelectItem,
    SortKey,
    StreamRef,
    key_of_group,
)
from watersmeet.query.outer import ROW_ORDINAL, ROW_TIME
from watersmeet.query.sql.expressions import column_references, make_expression
from watersmeet.query.sql.functions import AGGREGATES, is_call, refuse_functions
from watersmeet.query.sql.grammar import Statement, unaliased
from watersmeet.query.sql.group_reader import GroupReader, of_column
from watersmeet.query.sql.scope import Scope
from watersmeet.query.sql.sources import read_duration
from watersmeet.query.sql.tokens import SqlText, Token, Tokens, unwrapped
from watersmeet.query.sql.where import conjuncts_of
from watersmeet.query.windows import Changes, Hop, Range, Rows, Tumble

_NEVER_ENDS = (
    "a group never ends without an output window; add one, as in GROUP BY a.k, TUMBLE(5 MINUTES), or write "
    "EMIT CHANGES at the end for the running value"
)
_MOST_LIMIT = 1_000_000
_LONGEST_HOP = 1_000  # panes of a window


def is_grouped(statement: Statement) -> bool:
    """Whether a statement has groups: it says so, or has an aggregate where only groups have a value."""
    parts = statement.tree.args
    if parts.get("group") or parts.get("having"):
        return True
    lists = [statement.tokens_of(unaliased(node)) for node in statement.tree.expressions]
    return any(is_call(tokens, i, AGGREGATES) for tokens in lists for i in range(len(tokens)))


def refuse_without_groups(statement: Statement) -> None:
    """Refuse what only groups can have."""
    if emit := statement.emits_changes:
        message = "EMIT CHANGES needs GROUP BY or an aggregate: answers of a join are emitted as they come without it"
        raise statement.text.error(emit, message)
    if order := statement.tree.args.get("order"):
        message = "ORDER BY is not supported: the answers of a continuous query have no last row to sort by"
        raise statement.text.error(order.meta["begin"], f"{message}; sort within the output window of a GROUP BY")
    if limit := statement.tree.args.get("limit"):
        message = "LIMIT is not supported: a continuous query does not end; limit the answers downstream"
        raise statement.text.error(limit.meta["begin"], f"{message}, or within the output window of a GROUP BY")


def read_grouping(
    statement: Statement, scope: Scope, sources: Sequence[StreamRef], event_times: Mapping[str, str]
) -> tuple[tuple[SelectItem, ...], Grouping]:
    """What is grouped, and what is made of groups."""
    if any(source.alias.casefold() == GROUP for source in sources):
        raise SqlError(f"{GROUP!r} cannot be an alias in a query with GROUP BY; add AS with another name")
    text, parts = statement.text, statement.tree.args
    group, first = parts.get("group"), statement.tokens[0]
    if parts.get("distinct"):
        raise text.error(first, "SELECT DISTINCT with GROUP BY is not supported; groups are distinct without it")
    has_window = group is not None and group.meta["window"] is not None
    if emit := statement.emits_changes:
        _check_changes(statement, emit, has_window=has_window)
        outputs = {CHANGED_AT.name: CHANGED_AT, DELETED.name: DELETED}
    elif has_window:
        outputs = {WINDOW_START.name: WINDOW_START, WINDOW_END.name: WINDOW_END}
    else:
        raise text.error(group.meta["begin"] if group else statement.tokens_of(_first_item(statement))[0], _NEVER_ENDS)
    keys = [_read_key(statement, scope, node) for node in group.expressions] if group else []
    clause = "a query with EMIT CHANGES" if emit else None
    reader = GroupReader(statement, replace(scope, outputs=outputs), keys, clause)
    select = reader.select()
    select = (*select, *_implied_columns(text, emit, select)) if emit else select
    reader.name_outputs(select)
    having = [reader.condition(node) for node in conjuncts_of(parts["having"].this)] if parts.get("having") else []
    order = [_sort_key(reader, select, node) for node in parts["order"].expressions] if parts.get("order") else []
    limit = _read_limit(statement, has_order=bool(order))
    grouped = [*(SelectItem(key_of_group(i).name, key) for i, key in enumerate(keys)), *reader.arguments]
    window: Hop | Changes
    if emit:
        ends: list[tuple[int, Range | Tumble]] = []
        counted: list[tuple[int, str, int]] = []
        for stream_ref in sources:
            if stream_ref.alias.casefold() not in scope.aliases:
                continue
            if isinstance(stream_ref.window, Range | Tumble):
                ends.append((len(grouped), stream_ref.window))
                time_column = Column(
                    stream_ref.alias, event_times.get(stream_ref.stream, ROW_TIME)
                )  # rows of views have none
                grouped.append(SelectItem(f"time of {stream_ref.alias}", of_column(time_column)))
            elif isinstance(stream_ref.window, Rows):
                counted.append((len(grouped), stream_ref.alias, stream_ref.window.count))
                grouped.append(
                    SelectItem(f"ordinal of {stream_ref.alias}", of_column(Column(stream_ref.alias, ROW_ORDINAL)))
                )
        window = Changes(tuple(ends), reader.count_answers(), tuple(counted))
    else:
        assert group is not None, "it has the output window"
        window = _read_window(text, *group.meta["window"])
    time = SelectItem(TIME.name, of_column(TIME))
    aggregates = tuple(reader.aggregates)
    grouping = Grouping(len(keys), window, aggregates, select, tuple(having), tuple(order), limit)
    return (*grouped, time), grouping


def _check_changes(statement: Statement, emit: Token, *, has_window: bool) -> None:
    """Refuse what cannot be with EMIT CHANGES."""
    text, parts = statement.text, statement.tree.args
    if has_window:
        message = "EMIT CHANGES has running values and no output window; leave out one of them"
        raise text.error(emit, message)
    if order := parts.get("order") or parts.get("limit"):
        message = "ORDER BY and LIMIT cannot be with EMIT CHANGES; rank groups within an output window instead"
        raise text.error(order.meta["begin"], message)


def refuse_counted_outer(statement: Statement, grouping: Grouping | None, outer: OuterJoins | None) -> None:
    """Refuse running values over ROWS windows where rows wait for partners: when they end may be forgotten by then."""
    emit = statement.emits_changes
    if emit and grouping is not None and outer is not None and grouping.changes.counted:
        (_, alias, _), *_ = grouping.changes.counted
        message = f"EMIT CHANGES over the ROWS window of {alias} is for inner joins"
        raise statement.text.error(emit, f"{message}; use RANGE, TUMBLE or UNBOUNDED with outer joins and EXISTS")


def _implied_columns(text: SqlText, emit: Token, select: Sequence[SelectItem]) -> Iterator[SelectItem]:
    """The instant of a change and whether it deletes the group, where they are not named in the select list."""
    for column in (CHANGED_AT, DELETED):
        if any(item.expression.columns == (column,) for item in select):
            continue
        if any(item.name.casefold() == column.name for item in select):
            message = f"EMIT CHANGES adds a column {column.name!r}; name the output column of that name otherwise"
            raise text.error(emit, message)
        yield SelectItem(column.name, of_column(column))


def _first_item(statement: Statement) -> exp.Expr:
    return unaliased(statement.tree.expressions[0])


def _read_window(text: SqlText, name: Token, brackets: Tokens) -> Hop:
    """`TUMBLE(length)` or `HOP(length, slide)`."""
    opening, *inside, closing = brackets
    written = text.sql[opening.end + 1 : closing.start]
    amounts = [part.strip() for part in written.split(",")] if inside else []
    durations = [read_duration(text, name, amount) for amount in amounts]
    match name.name.casefold(), durations:
        case "tumble", [length_us]:
            return Hop(length_us, length_us)
        case "hop", [length_us, slide_us]:
            if slide_us > length_us:
                raise text.error(name, "HOP leaves gaps where its slide is longer than its length; use TUMBLE")
            hop = Hop(length_us, slide_us)
            if length_us // hop.pane_us > _LONGEST_HOP:
                raise text.error(name, f"HOP has windows of more than {_LONGEST_HOP:,} slides; use a longer slide")
            return hop
        case _:
            raise text.error(name, "an output window is TUMBLE(5 MINUTES), or HOP(5 MINUTES, 1 MINUTE) with its slide")


def _read_key(statement: Statement, scope: Scope, node: exp.Expr) -> Expression:
    """A key; a number or the name of an output column stands for that column of the select list."""
    items = statement.tree.expressions
    place = _ordinal(statement, node)
    if place is not None:
        node = unaliased(items[place])
    elif isinstance(node, exp.Column) and len(node.parts) == 1:
        known = {name for _, names in scope.aliases.values() for name in names}
        named = [
            item for item in items if isinstance(item, exp.Alias) and item.alias.casefold() == node.name.casefold()
        ]
        if named and node.name.casefold() not in known:
            node = named[0].this
    tokens = unwrapped(statement.tokens_of(node))
    refuse_functions(scope.text, tokens, [node], "GROUP BY")
    return make_expression(tokens, column_references(scope, tokens, [node]))


def _ordinal(statement: Statement, node: exp.Expr) -> int | None:
    """The place in the select list that a whole number stands for, as in GROUP BY 1; None for anything else."""
    number = node.unnest()
    sign = 1
    while isinstance(number, exp.Neg):
        sign, number = -sign, number.this.unnest()
    if not (isinstance(number, exp.Literal) and number.is_int):
        return None
    place, count = sign * int(number.name), len(statement.tree.expressions)
    if not 1 <= place <= count:
        message = f"the select list has no column {place}; numbers from 1 to {count} mean its columns"
        raise statement.text.error(statement.tokens_of(node)[0], message)
    return place - 1


def _sort_key(reader: "GroupReader", select: Sequence[SelectItem], node: exp.Ordered) -> SortKey:
    """A sort key; a number or the name of an output column by itself stands for that column."""
    if "tokens" not in node.this.meta:  # sqlglot's own reading of a keyword
        begin = reader.statement.tree.args["order"].meta["begin"]
        raise reader.statement.text.error(begin, "ORDER BY ALL is not supported; name the columns")
    tokens = reader.statement.tokens_of(node.this)
    place = _ordinal(reader.statement, node.this)
    if place is not None:
        expression = reader.output(tokens[0], select[place].expression, "ORDER BY")
    else:
        expression = reader.expression(node.this, "ORDER BY")
        if not expression.columns and not node.find(exp.Column):
            message = f"{expression.sql} is the same for all groups; sort by an output column or its number"
            raise reader.statement.text.error(tokens[0], message)
    return SortKey(expression, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))


def _read_limit(statement: Statement, *, has_order: bool) -> int | None:
    order, limit = statement.tree.args.get("order"), statement.tree.args.get("limit")
    if limit is None:
        if order is not None:
            message = "ORDER BY needs LIMIT: all groups of a window are answered together, in no order"
            raise statement.text.error(order.meta["begin"], message)
        return None
    if not has_order:
        message = "LIMIT needs ORDER BY: it says which groups of an output window are answered"
        raise statement.text.error(limit.meta["begin"], message)
    count = limit.expression
    if not (isinstance(count, exp.Literal) and count.is_int and 1 <= int(count.name) <= _MOST_LIMIT):
        message = f"LIMIT takes a whole number from 1 to {_MOST_LIMIT:,}"
        raise statement.text.error(limit.meta["begin"], message)
    return int(count.name)
