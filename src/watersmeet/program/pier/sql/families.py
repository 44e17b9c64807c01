"""Which GROUP BY queries can be answered together (PIER, 5.6.2): those that have a join and an algebra in common.

Queries of a family have the same streams, joins and start, and aggregates for which one decomposition is right. Its
records have the keys and panes of the finest of them and the aggregates of all: keys of each query are among those, its
windows are made up of such panes, and its records are rolled up from them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import gcd
from typing import TypeVar

from watersmeet.query import model
from watersmeet.query.model import TIME, Aggregate, Grouping, JoinQuery, SelectItem
from watersmeet.query.windows import Changes, Hop


class FragmentAlgebra(Enum):
    """What may be done with the records of several fragments."""

    LINEAR = "linear"  # add and subtract
    INSENSITIVE = "duplicate-insensitive"  # combine, though a row may count twice
    GENERAL = "general"  # combine, each row once


@dataclass(frozen=True, slots=True)
class QueryFamily:
    """Queries that may be answered together; all have the same aliases."""

    names: tuple[str, ...]
    queries: tuple[JoinQuery, ...]
    start_us: int | None
    algebra: FragmentAlgebra
    whole: JoinQuery  # without filters: what records have
    keys: tuple[tuple[int, ...], ...]  # of each query, among those of the whole
    aggregates: tuple[tuple[int, ...], ...]  # the same

    def is_whole(self, number: int) -> bool:
        """Whether records of the whole are those of a query."""
        return self.keys[number] == self._all_keys and self.aggregates[number] == tuple(range(len(self._all_values)))

    @property
    def is_uniform(self) -> bool:
        """Whether queries have the same groups, panes and aggregates."""
        is_one = all(self.is_whole(number) for number in range(len(self.queries)))
        return is_one and len({_pane_us(query) for query in self.queries}) == 1

    @property
    def together(self) -> int:
        """The columns that a record of the whole has: one, and one an aggregate."""
        return 1 + len(self._all_values)

    @property
    def alone(self) -> int:
        """The columns of records that those queries would have by themselves whose groups and panes are the whole's."""
        return sum(
            1 + len(values)
            for query, keys, values in zip(self.queries, self.keys, self.aggregates, strict=True)
            if len(keys) == len(self._all_keys) and _pane_us(query) == _pane_us(self.whole)
        )

    @property
    def _all_keys(self) -> tuple[int, ...]:
        return tuple(range(_grouping(self.whole).keys))

    @property
    def _all_values(self) -> tuple[Aggregate, ...]:
        return _grouping(self.whole).aggregates


_Call = tuple[str, bool, tuple[float, ...], str | None]  # function, DISTINCT, numbers, argument
_Found = list[tuple[str, JoinQuery]]
Choice = TypeVar("Choice")


def chosen_families(
    queries: Mapping[str, tuple[JoinQuery, int | None]],
    algebra_of: Callable[[JoinQuery], FragmentAlgebra],
    choice_of: Callable[[QueryFamily], Choice | None],
    *,
    with_coarser_groups: bool,
) -> Iterator[tuple[QueryFamily, Choice]]:
    """Families of the queries, by name with the instant from which they count, for which there is a choice.

    The largest are tried first, and where there is none for them those among them that are more alike. Coarser groups
    are for records that meet at one node: else those of all finer groups would have to go to owners of coarser ones.
    """
    pools: dict[tuple[object, int | None, FragmentAlgebra], _Found] = defaultdict(list)
    for name, (query, start_us) in queries.items():
        grouping = query.grouping
        if grouping is None or isinstance(grouping.window, Changes) or query.outer is not None or query.distinct:
            continue
        one = _with_aliases(query)
        pools[_join_of(one), start_us, algebra_of(one)].append((name, one))
    for (_, start_us, algebra), pool in pools.items():
        left = list(pool)
        while left:
            for members in _attempts(left, with_coarser_groups=with_coarser_groups):
                family = _family(members, start_us, algebra)
                if len({frozenset(query.filters) for query in family.queries}) < 2:
                    continue
                choice = choice_of(family)
                if choice is not None:
                    yield family, choice
                    break
            else:
                break
            left = [each for each in left if each not in members]


def _attempts(pool: _Found, *, with_coarser_groups: bool) -> Iterator[_Found]:
    """Queries that may be a family, the finest first of each: with all that are coarser, then more and more alike."""
    finest = list(dict.fromkeys((_key_texts(query), _pane_us(query)) for _, query in pool))

    def is_covered(query: JoinQuery, keys: tuple[str, ...], pane_us: int) -> bool:
        own = set(_key_texts(query))
        has_groups = own <= set(keys) if with_coarser_groups else own == set(keys)
        return has_groups and _pane_us(query) % pane_us == 0

    covered = [[each for each in pool if is_covered(each[1], *one)] for one in finest]
    order = sorted(range(len(finest)), key=lambda number: -len(covered[number]))
    for number in order:
        keys, pane_us = finest[number]
        alike = [
            each for each in covered[number] if (set(_key_texts(each[1])), _pane_us(each[1])) == (set(keys), pane_us)
        ]
        yield [*alike, *(each for each in covered[number] if each not in alike)]
        if len(alike) < len(covered[number]):
            yield alike
        same: dict[object, _Found] = defaultdict(list)
        for each in alike:
            same[_key_texts(each[1]), tuple(_calls(each[1]))].append(each)
        if len(same) > 1:
            yield from same.values()


def _family(members: _Found, start_us: int | None, algebra: FragmentAlgebra) -> QueryFamily:
    """Queries, the first of which has the finest groups and panes."""
    queries = tuple(query for _, query in members)
    first = queries[0]
    keys = _key_texts(first)
    calls = list(dict.fromkeys(call for query in queries for call in _calls(query)))
    arguments = list(dict.fromkeys(call[3] for call in calls if call[3] is not None))
    by_text = {item.expression.sql: item.expression for query in queries for item in query.select}
    time = next(item for item in first.select if item.expression.columns == (TIME,))
    select = (
        *first.select[: len(keys)],
        *(SelectItem(f"argument{number}", by_text[sql]) for number, sql in enumerate(arguments)),
        time,
    )
    aggregates = tuple(
        Aggregate(
            function,
            None if argument is None else len(keys) + arguments.index(argument),
            distinct,
            parameters=parameters,
        )
        for function, distinct, parameters, argument in calls
    )
    pane_us = _pane_us(first)
    whole = replace(
        first, filters=(), select=select, grouping=Grouping(len(keys), Hop(pane_us, pane_us), aggregates, ())
    )
    return QueryFamily(
        tuple(name for name, _ in members),
        queries,
        start_us,
        algebra,
        whole,
        tuple(tuple(keys.index(key) for key in _key_texts(query)) for query in queries),
        tuple(tuple(calls.index(call) for call in _calls(query)) for query in queries),
    )


def _with_aliases(query: JoinQuery) -> JoinQuery:
    """The query with aliases by their place in FROM."""
    aliases = {source.alias: f"s{number}" for number, source in enumerate(query.sources)}

    def renamed(expression: model.Expression) -> model.Expression:
        columns = {
            column: replace(column, alias=aliases.get(column.alias, column.alias)) for column in expression.columns
        }
        sql = expression.sql
        for number, column in enumerate(columns):  # in two steps, since s0 may be the old name of another
            sql = sql.replace(column.sql, f"`\0{number}`")
        for number, column in enumerate(columns.values()):
            sql = sql.replace(f"`\0{number}`", column.sql)
        return model.Expression(sql, tuple(columns.values()), expression.type)

    grouping = _grouping(query)
    return replace(
        query,
        sources=tuple(replace(source, alias=aliases[source.alias]) for source in query.sources),
        equalities=tuple(
            model.Equality(renamed(equality.left), renamed(equality.right)) for equality in query.equalities
        ),
        filters=tuple(map(renamed, query.filters)),
        residuals=tuple(map(renamed, query.residuals)),
        select=tuple(replace(item, expression=renamed(item.expression)) for item in query.select),
        grouping=replace(grouping, aggregates=tuple(replace(aggregate, sql="") for aggregate in grouping.aggregates)),
    )


def _join_of(query: JoinQuery) -> object:
    equalities = frozenset((equality.left.sql, equality.right.sql) for equality in query.equalities)
    return query.sources, equalities, frozenset(residual.sql for residual in query.residuals)


def _grouping(query: JoinQuery) -> Grouping:
    assert query.grouping is not None, "a query with groups"
    return query.grouping


def _pane_us(query: JoinQuery) -> int:
    window = _grouping(query).output_window
    return gcd(window.length_us, window.slide_us)


def _key_texts(query: JoinQuery) -> tuple[str, ...]:
    return tuple(item.expression.sql for item in query.select[: _grouping(query).keys])


def _calls(query: JoinQuery) -> Sequence[_Call]:
    """The aggregates of a query, by what they are of."""
    return [
        (
            aggregate.function,
            aggregate.distinct,
            aggregate.parameters,
            None if aggregate.item is None else query.select[aggregate.item].expression.sql,
        )
        for aggregate in _grouping(query).aggregates
    ]
