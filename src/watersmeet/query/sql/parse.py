"""SQL text to `JoinQuery`: Spark's SELECT with a CQL window after every stream."""

from collections.abc import Mapping, Sequence

from watersmeet.query.model import Equality, Expression, JoinQuery
from watersmeet.query.sql.clauses import split_clauses
from watersmeet.query.sql.from_clause import read_from, resolve_streams
from watersmeet.query.sql.scope import make_scope
from watersmeet.query.sql.select_list import read_select
from watersmeet.query.sql.tokens import SqlText, tokenize
from watersmeet.query.sql.where import check_connected, read_conjunct, split_conjuncts


def parse_query(sql: str, columns: Mapping[str, Sequence[str]], *, allow_cross: bool = False) -> JoinQuery:
    """The query that `sql` asks over streams with the given column names.

    >>> query = parse_query(
    ...     "SELECT l.k, r.v FROM l [RANGE 1 MINUTE], r [ROWS 10] WHERE l.k = r.k", {"l": ["k"], "r": ["k", "v"]}
    ... )
    >>> [f"{source.stream} {source.window}" for source in query.sources]
    ['l RANGE 1 MINUTE', 'r ROWS 10']
    """
    text = SqlText(sql)
    clauses = split_clauses(text, tokenize(text))
    items, conditions = read_from(text, clauses.sources)
    sources = resolve_streams(text, items, columns)
    scope = make_scope(text, clauses.opening, sources, columns)
    select = read_select(scope, clauses.select, distinct=clauses.distinct)
    if clauses.where:
        conditions.append(clauses.where)
    conjuncts = [conjunct for condition in conditions for conjunct in split_conjuncts(condition)]
    # A predicate given twice counts once.
    predicates = dict.fromkeys(read_conjunct(scope, conjunct) for conjunct in conjuncts)
    expressions = [predicate for predicate in predicates if isinstance(predicate, Expression)]
    query = JoinQuery(
        sources=sources,
        equalities=tuple(predicate for predicate in predicates if isinstance(predicate, Equality)),
        filters=tuple(expression for expression in expressions if len(expression.aliases) == 1),
        residuals=tuple(expression for expression in expressions if len(expression.aliases) != 1),
        select=select,
        distinct=clauses.distinct,
    )
    if not allow_cross:
        check_connected(query)
    return query
