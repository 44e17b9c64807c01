"""Aggregation below the join: rows that are equal in all that a query reads of them take part once, with their count.

Over `TUMBLE d` windows rows of one interval have the same partners whatever their times, and if `d` divides the output
window all their answers count in one of its panes. So each stream becomes groups by the columns that are read of it
and the interval, and an answer of groups counts as often as the product of their counts. The query is written anew over
these groups, which are derived streams; nothing below knows of it.
"""

import re
from collections.abc import Mapping, Sequence

from watersmeet.errors import SqlError
from watersmeet.query.model import (
    Aggregate,
    Column,
    Expression,
    Grouping,
    JoinQuery,
    StreamRef,
    key_of_group,
    value_of_group,
)
from watersmeet.query.windows import Hop, Tumble

_WHOLE = ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`", re.DOTALL)
_COUNT = "early_count"  # how many rows a group stands for


def grouped_early(query: JoinQuery, types: Mapping[str, Mapping[str, str]]) -> str:
    """The same question over groups of each stream; SqlError with the reason where that is not the same.

    `types` are those of the columns of streams, by stream.
    """
    grouping, window = _checked(query)
    views = [_View(query, source, grouping) for source in query.sources]
    values = [_value(query, aggregate, views, types) for aggregate in grouping.aggregates]
    keys = [_written(item.expression) for item in query.select[: grouping.keys]]
    names = {key_of_group(number).sql: f"({text})" for number, text in enumerate(keys)}
    names |= {value_of_group(number).sql: text for number, text in enumerate(values)}
    names |= {column.sql: column.name for column in grouping.own_columns}

    def over(expression: Expression) -> str:
        return _QUOTED.sub(lambda found: names.get(found.group(), found.group()), expression.sql)

    conditions = [f"{_written(equality.left)} = {_written(equality.right)}" for equality in query.equalities]
    conditions += [f"({_written(predicate)})" for predicate in query.residuals]
    interval = Hop(window.window_us, window.window_us)
    sql = f"WITH {', '.join(view.sql(interval) for view in views)} "
    sql += f"SELECT {', '.join(f'{over(item.expression)} AS {_quoted(item.name)}' for item in grouping.select)} "
    sql += f"FROM {', '.join(f'{view.name} [{window}] {_quoted(view.alias)}' for view in views)} "
    sql += f"WHERE {' AND '.join(conditions)} GROUP BY {', '.join([*keys, str(grouping.window)])}"
    if grouping.having:
        sql += f" HAVING {' AND '.join(f'({over(predicate)})' for predicate in grouping.having)}"
    if grouping.limit is not None:
        order = (
            f"{over(key.expression)} {'DESC' if key.descending else 'ASC'} NULLS "
            f"{'FIRST' if key.nulls_first else 'LAST'}"
            for key in grouping.order
        )
        sql += f" ORDER BY {', '.join(order)} LIMIT {grouping.limit}"
    return sql


def _checked(query: JoinQuery) -> tuple[Grouping, Tumble]:
    """The groups and the common window of a query whose rows can be grouped first."""
    grouping, windows = query.grouping, {source.window for source in query.sources}
    if grouping is None or not isinstance(grouping.window, Hop):
        raise _refused("it needs GROUP BY with an output window; leave group_early out")
    if query.outer is not None or len(query.sources) < 2:
        raise _refused("it is for inner joins of streams; leave group_early out")
    window = next(iter(windows))
    if len(windows) > 1 or not isinstance(window, Tumble):
        raise _refused(
            "all streams need the same TUMBLE window, since partners of other windows depend on times of rows"
        )
    if grouping.window.pane_us % window.window_us:
        raise _refused(f"the output window {grouping.window} has to be made of whole intervals of {window}")
    return grouping, window


def _refused(why: str) -> SqlError:
    return SqlError(f"group_early: {why}")


class _View:
    """What is made of one stream: groups by the columns that are read of it, and partial values."""

    def __init__(self, query: JoinQuery, source: StreamRef, grouping: Grouping) -> None:
        self.alias, self.stream = source.alias, source.stream
        self.name = f"{source.alias}_early"
        self._filters = [predicate for predicate in query.filters if predicate.aliases == (source.alias,)]
        sides = [side for equality in query.equalities for side in (equality.left, equality.right)]
        read = [*sides, *query.residuals, *(item.expression for item in query.select[: grouping.keys])]
        columns = (column for expression in read for column in expression.columns if column.alias == source.alias)
        self._columns = tuple(dict.fromkeys(columns))
        self._partials: dict[str, str] = {}  # by what is written, the column that has it

    def partial(self, function: str, argument: str) -> str:
        """A column with the value of an aggregate of a group."""
        column = self._partials.setdefault(f"{function}({argument})", f"early_{len(self._partials)}")
        return f"{_quoted(self.alias)}.{column}"

    @property
    def count(self) -> str:
        return f"{_quoted(self.alias)}.{_COUNT}"

    def sql(self, window: Hop) -> str:
        columns = [f"{_dotted(column)} AS {_quoted(column.name)}" for column in self._columns]
        items = [*columns, f"count(*) AS {_COUNT}", *(f"{text} AS {name}" for text, name in self._partials.items())]
        where = (
            f" WHERE {' AND '.join(f'({_written(expression)})' for expression in self._filters)}"
            if self._filters
            else ""
        )
        keys = ", ".join(_dotted(column) for column in self._columns)
        source = f"{_quoted(self.stream)} {_quoted(self.alias)}"
        return f"{self.name} AS (SELECT {', '.join(items)} FROM {source}{where} GROUP BY {keys}, {window})"


def _value(
    query: JoinQuery, aggregate: Aggregate, views: Sequence[_View], types: Mapping[str, Mapping[str, str]]
) -> str:
    """An aggregate over answers as one over answers of groups."""
    counts = [view.count for view in views]
    if aggregate.item is None:
        return f"sum({' * '.join(counts)})"
    argument = query.select[aggregate.item].expression
    written = aggregate.sql.replace("`", "") or aggregate.function
    if aggregate.distinct or aggregate.function not in ("count", "sum", "avg", "min", "max"):
        raise _refused(f"{written} cannot be made of counts, sums, least and greatest values; leave group_early out")
    if len(argument.aliases) != 1:
        raise _refused(f"{written} has to be over one stream; leave group_early out")
    own = next(view for view in views if view.alias == argument.aliases[0])
    others = "".join(f" * {view.count}" for view in views if view is not own)
    text = _written(argument)
    if aggregate.function in ("min", "max"):
        return f"{aggregate.function}({own.partial(aggregate.function, text)})"
    if aggregate.function != "count":
        kinds = types.get(own.stream, {})
        if not argument.is_plain or kinds.get(argument.columns[0].name, "") not in _WHOLE:
            raise _refused(f"{written} has to be over a column of whole numbers, since sums of others are rounded")
    number = f"sum({own.partial('count', text)}{others})"
    if aggregate.function == "count":
        return number
    total = f"sum({own.partial('sum', text)}{others})"
    return total if aggregate.function == "sum" else f"CASE WHEN {number} > 0 THEN {total} / {number} END"


def _written(expression: Expression) -> str:
    """An expression with its columns as a user writes them."""
    names = {column.sql: _dotted(column) for column in expression.columns}
    return _QUOTED.sub(lambda found: names.get(found.group(), found.group()), expression.sql)


def _dotted(column: Column) -> str:
    return f"{_quoted(column.alias)}.{_quoted(column.name)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
