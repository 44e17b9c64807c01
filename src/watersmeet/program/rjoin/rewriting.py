"""A query rewritten by a tuple, as a value (RJoin sections 3 and 6): fewer streams, values in the place of attributes.

Windows have the project's semantics: a rewritten query keeps the tuples bound so far, and with them their windows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from watersmeet.query.classes import equal_sides
from watersmeet.query.model import Column, Expression, JoinQuery
from watersmeet.query.substitute import constant_of, with_values

Key: TypeAlias = tuple[str, str] | tuple[str, str, object]  # relation and attribute, or with a value
Row: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What is left of a query after some of its aliases are bound to tuples; an input query has none bound."""

    query: JoinQuery
    bound: Mapping[str, Row] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not self.query.sources


def rewrite(waiting: Rewritten, alias: str, row: Row) -> Rewritten | None:
    """The query after a tuple has come for an alias; None if the tuple contradicts a predicate seen so far.

    >>> from watersmeet.query.sql import canonical_sql, parse_query
    >>> sql = "SELECT R.B, S.B AS C FROM R [UNBOUNDED], S [UNBOUNDED], P [UNBOUNDED] WHERE R.A = S.A AND S.B = P.B"
    >>> query = parse_query(sql, {name: ["A", "B"] for name in "RSP"})
    >>> after = rewrite(Rewritten(query), "R", {"A": 3, "B": 5})
    >>> [equality.left.sql for equality in after.query.equalities], [f.sql for f in after.query.filters]
    (['`S.B`'], ['(3) = (`S.A`)'])
    >>> after.query.select[0].expression.sql
    '5'
    """
    query = waiting.query
    values = {Column(alias, name): value for name, value in row.items()}
    if _contradicts(query, values):
        return None
    equalities, selections = [], []
    for equality in query.equalities:
        if any(side.is_plain and values.get(side.columns[0], 0) is None for side in (equality.left, equality.right)):
            return None  # NULL never joins
        left, right = with_values(equality.left, values), with_values(equality.right, values)
        if left is equality.left and right is equality.right:
            equalities.append(equality)
        else:
            selections.append(_equal(left, right))
    filters = []
    for predicate in (*query.filters, *selections):
        if predicate.aliases == (alias,):
            known = constant_of(predicate)
            if known is None:
                continue  # of a kind that whoever has the tuple has seen to
            if row[known[0].name] != known[1]:
                return None
        else:
            filters.append(predicate)
    return Rewritten(
        replace(
            query,
            sources=tuple(source for source in query.sources if source.alias != alias),
            equalities=tuple(equalities),
            filters=tuple(filters),
            residuals=tuple(with_values(residual, values) for residual in query.residuals),
            select=tuple(replace(item, expression=with_values(item.expression, values)) for item in query.select),
        ),
        {**waiting.bound, alias: row},
    )


def candidates(waiting: Rewritten) -> list[tuple[str, Key]]:
    """Where a query can wait, as alias and key: pairs of join conditions, and triples that are explicit or implied.

    >>> from watersmeet.query.sql import parse_query
    >>> sql = "SELECT R.A FROM R [UNBOUNDED], S [UNBOUNDED], P [UNBOUNDED] WHERE R.A = S.A AND S.A = P.B AND R.A = 3"
    >>> candidates(Rewritten(parse_query(sql, {name: ["A", "B"] for name in "RSP"})))
    [('R', ('R', 'A', 3)), ('S', ('S', 'A', 3)), ('P', ('P', 'B', 3))]
    """
    query = waiting.query
    stream_of = {source.alias: source.stream for source in query.sources}
    constants = _constants(query)
    groups = equal_sides(query)
    found: dict[Column, Key] = {}
    for side in _sides(query):
        if side.is_plain:
            (column,) = side.columns
            group = next((group for group in groups if side in group), [side])
            value = next((constants[s.columns[0]] for s in group if s.is_plain and s.columns[0] in constants), None)
            pair = (stream_of[column.alias], column.name)
            found.setdefault(column, pair if value is None else (*pair, value))
    for column, value in constants.items():
        found.setdefault(column, (stream_of[column.alias], column.name, value))
    return [(column.alias, key) for column, key in found.items()]


def _contradicts(query: JoinQuery, values: Mapping[Column, object]) -> bool:
    """Whether attributes that must be equal would not be, those of a tuple and those with a constant."""
    fixed = {**_constants(query), **values}
    for group in equal_sides(query):
        if len({fixed[side.columns[0]] for side in group if side.is_plain and side.columns[0] in fixed}) > 1:
            return True
    return False


def _constants(query: JoinQuery) -> dict[Column, object]:
    return dict(one for predicate in query.filters if (one := constant_of(predicate)) is not None)


def _sides(query: JoinQuery) -> list[Expression]:
    return [side for equality in query.equalities for side in (equality.left, equality.right)]


def _equal(left: Expression, right: Expression) -> Expression:
    columns = tuple(sorted({*left.columns, *right.columns}))
    return Expression(f"({left.sql}) = ({right.sql})", columns, "boolean")
