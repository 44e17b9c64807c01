"""SQL text to `JoinQuery`: Spark's SELECT with a CQL window after every stream."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watersmeet.errors import SqlError
from watersmeet.query.model import Equality, Expression, JoinQuery
from watersmeet.query.outer import branches_of
from watersmeet.query.sql.grammar import name_items, parse_statement
from watersmeet.query.sql.grouping import is_grouped, read_grouping, refuse_counted_outer, refuse_without_groups
from watersmeet.query.sql.outer import hidden_aliases, read_conditions
from watersmeet.query.sql.scope import make_scope
from watersmeet.query.sql.select_list import read_select
from watersmeet.query.sql.sources import read_sources, with_using
from watersmeet.query.sql.tokens import SqlText, tokenize
from watersmeet.query.sql.where import check_connected
from watersmeet.query.windows import Window


def parse_query(
    sql: str,
    columns: Mapping[str, Sequence[str]],
    *,
    allow_cross: bool = False,
    is_named: bool = True,
    event_times: Mapping[str, str] | None = None,
    tables: Mapping[str, Window] | None = None,
) -> JoinQuery:
    """The query that `sql` asks over streams with the given column names; EMIT CHANGES needs their event times too.

    Where it is not `is_named`, output columns get their names elsewhere, and those without one any.
    `tables` are those that are tables and no streams.

    >>> query = parse_query(
    ...     "SELECT l.k, r.v FROM l [RANGE 1 MINUTE], r [ROWS 10] WHERE l.k = r.k", {"l": ["k"], "r": ["k", "v"]}
    ... )
    >>> [f"{source.stream} {source.window}" for source in query.sources]
    ['l RANGE 1 MINUTE', 'r ROWS 10']
    """
    text = SqlText(sql)
    statement = parse_statement(text, tokenize(text))
    if not is_named:
        name_items(statement)
    sources = read_sources(statement, columns, tables or {})
    scope, united = with_using(statement, make_scope(text, sources, columns), sources)
    hidden = hidden_aliases(statement, sources)
    seen = replace(scope, aliases={name: alias for name, alias in scope.aliases.items() if alias[0] not in hidden})
    grouping = None
    if is_grouped(statement):
        select, grouping = read_grouping(statement, seen, sources, event_times or {})
    else:
        refuse_without_groups(statement)
        select = read_select(statement, seen)
    conditions = read_conditions(statement, scope, sources, united, columns, tables or {})
    if any(hidden & set(predicate.aliases) for predicate in (conditions.outer.where if conditions.outer else ())):
        raise SqlError(f"WHERE names {min(hidden)!r}, which a semi- or anti-join does not let through; use ON")
    refuse_counted_outer(statement, grouping, conditions.outer)
    expressions = [predicate for predicate in conditions.predicates if isinstance(predicate, Expression)]
    query = JoinQuery(
        sources=conditions.sources,
        equalities=tuple(predicate for predicate in conditions.predicates if isinstance(predicate, Equality)),
        filters=tuple(expression for expression in expressions if len(expression.aliases) == 1),
        residuals=tuple(expression for expression in expressions if len(expression.aliases) != 1),
        select=select,
        distinct=statement.tree.args.get("distinct") is not None,
        grouping=grouping,
        outer=conditions.outer,
    )
    joined = [query] if query.outer is None else [branch.query for branch in branches_of(query).branches]
    for join_query in () if allow_cross else joined:
        check_connected(join_query)
    return query
