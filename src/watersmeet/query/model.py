"""The query as a frozen value: what is asked, with every name resolved, and nothing of how it is answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from watersmeet.query.windows import Changes, Hop, Window


@dataclass(frozen=True, slots=True, order=True)
class Column:
    """A column of an alias, in the spelling of the stream's schema."""

    alias: str
    name: str

    @property
    def flat(self) -> str:
        """The name this column has in every frame of the pipeline: one identifier with a dot in it."""
        return f"{self.alias}.{self.name}"

    @property
    def sql(self) -> str:
        """The flat name as an identifier of Spark SQL."""
        return f"`{self.flat.replace('`', '``')}`"


@dataclass(frozen=True, slots=True)
class Expression:
    """A Spark SQL expression in which every column is written by its flat name, as in ``lower(`a.host`)``.

    `type` is the Spark type of its value, empty until the query is bound to real schemas.
    """

    sql: str
    columns: tuple[Column, ...]
    type: str = ""

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(sorted({column.alias for column in self.columns}))

    @property
    def is_plain(self) -> bool:
        """Whether it is a column and nothing else."""
        return len(self.columns) == 1 and self.sql == self.columns[0].sql


@dataclass(frozen=True, slots=True)
class StreamRef:
    """One stream in FROM: its alias in this query, and its window."""

    alias: str
    stream: str
    window: Window


@dataclass(frozen=True, slots=True)
class Equality:
    """`left = right`, each side over exactly one alias, the two aliases different."""

    left: Expression
    right: Expression

    def __post_init__(self) -> None:
        if len(self.left.aliases) != 1 or len(self.right.aliases) != 1 or self.left.aliases == self.right.aliases:
            raise ValueError(f"not an equality between two streams: {self.left.sql} = {self.right.sql}")

    @property
    def aliases(self) -> tuple[str, ...]:
        return (*self.left.aliases, *self.right.aliases)


Predicate = Equality | Expression


class JoinKind(StrEnum):
    """How the two sides of a node of FROM are joined; a RIGHT JOIN is a LEFT one with its sides exchanged."""

    INNER = "inner"
    LEFT = "left"
    FULL = "full"
    SEMI = "semi"  # EXISTS: rows of the left side that have a partner, each once
    ANTI = "anti"  # NOT EXISTS: those that have none


@dataclass(frozen=True, slots=True)
class JoinTree:
    """A node of FROM where the order of joins matters; a side is an alias or another node."""

    kind: JoinKind
    left: "JoinTree | str"
    right: "JoinTree | str"
    on: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class OuterJoins:
    """FROM with outer joins, EXISTS or NOT EXISTS, and what WHERE asks of its rows beside these."""

    tree: JoinTree
    where: tuple[Predicate, ...]
    types: tuple[tuple[Column, str], ...] = ()  # Spark types of columns that may be NULL for want of a partner

    def rebound(self, bound: Mapping[Predicate, Predicate], types: tuple[tuple[Column, str], ...]) -> "OuterJoins":
        """The same with other predicates in the place of some, and the types of columns."""
        return OuterJoins(
            _rebound(self.tree, bound), tuple(bound.get(predicate, predicate) for predicate in self.where), types
        )


def _rebound(node: JoinTree, bound: Mapping[Predicate, Predicate]) -> JoinTree:
    left, right = (side if isinstance(side, str) else _rebound(side, bound) for side in (node.left, node.right))
    return JoinTree(node.kind, left, right, tuple(bound.get(predicate, predicate) for predicate in node.on))


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One output column."""

    name: str
    expression: Expression


EVENT_TIME = "#time"  # the last output column of what feeds a derived stream: when its rows are
EVENT_TIME_KIND = "event time"  # the type of timestamps that engines have checked to be of the years 1 to 9999
GROUP = "group"  # the alias of the columns that a group has
TIME = Column("", "time")  # an answer's time in microseconds, that of its latest tuple
WINDOW_START, WINDOW_END = Column(GROUP, "window_start"), Column(GROUP, "window_end")
CHANGED_AT, DELETED = Column(GROUP, "changed_at"), Column(GROUP, "deleted")  # with EMIT CHANGES
PLACE = Column(GROUP, "place")  # of a value among all that are compared to find changes
MEMBER = Column(GROUP, "member")  # of groups of several queries that are answered together: whose a group is
GROUP_TYPES = {
    WINDOW_START: "timestamp",
    WINDOW_END: "timestamp",
    CHANGED_AT: "timestamp",
    DELETED: "boolean",
    PLACE: "bigint",
    MEMBER: "bigint",
}


def key_of_group(number: int) -> Column:
    """The column of a group that holds one of its keys."""
    return Column(GROUP, f"key{number}")


def value_of_group(number: int) -> Column:
    """The column of a group that holds the result of an aggregate."""
    return Column(GROUP, f"value{number}")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate of one of the query's select items, or of whole answers (`count(*)`)."""

    function: str
    item: int | None
    distinct: bool = False
    sql: str = ""  # as written, over columns of streams
    type: str = ""  # of its result, empty until the query is bound
    parameters: tuple[float, ...] = ()  # of sketches (see query.sql.sketches)


@dataclass(frozen=True, slots=True)
class SortKey:
    """What groups of an output window are sorted by."""

    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Grouping:
    """GROUP BY and what follows it; its expressions are over the columns of a group."""

    keys: int  # that many of the query's first select items
    window: Hop | Changes
    aggregates: tuple[Aggregate, ...]
    select: tuple[SelectItem, ...]
    having: tuple[Expression, ...] = ()
    order: tuple[SortKey, ...] = ()
    limit: int | None = None  # groups of an output window that are answered, the first in order

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a group."""
        keys = (key_of_group(number) for number in range(self.keys))
        values = (value_of_group(number) for number in range(len(self.aggregates)))
        return (*keys, *values, *self.own_columns)

    @property
    def output_window(self) -> Hop:
        """The output window of a query that has one."""
        assert isinstance(self.window, Hop), "no EMIT CHANGES"
        return self.window

    @property
    def changes(self) -> Changes:
        """The EMIT CHANGES of a query that has it."""
        assert isinstance(self.window, Changes), "no output window"
        return self.window

    @property
    def own_columns(self) -> tuple[Column, ...]:
        """What a group has beside keys and values."""
        return (CHANGED_AT, DELETED, PLACE) if isinstance(self.window, Changes) else (WINDOW_START, WINDOW_END)


@dataclass(frozen=True, slots=True)
class Target:
    """What gets the answers of a query: a sink, by the query that has it, or a derived stream, whose rows they are."""

    name: str
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """A multi-way join in normal form: FROM, and WHERE split into equalities, filters of one alias, and the rest.

    With `grouping` the select items are what is grouped: its keys, the arguments of aggregates, and the time.

    With `outer` the rest of the value is the inner join of all its streams, those of EXISTS included;
    `query.outer.branches_of` makes inner joins of it.
    """

    sources: tuple[StreamRef, ...]
    equalities: tuple[Equality, ...]
    filters: tuple[Expression, ...]
    residuals: tuple[Expression, ...]
    select: tuple[SelectItem, ...]
    distinct: bool = False
    also_kept: tuple[Column, ...] = ()  # columns that windows keep although nothing asks for them any more
    grouping: Grouping | None = None
    into: Target | None = None  # None is the query's own sink; several queries may have the same target (UNION ALL)
    outer: OuterJoins | None = None
    types: tuple[tuple[Column, str], ...] = ()  # Spark types of columns that residual predicates read, where known

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(source.alias for source in self.sources)

    @property
    def output(self) -> tuple[SelectItem, ...]:
        """The columns of the answers."""
        return self.select if self.grouping is None else self.grouping.select

    def source(self, alias: str) -> StreamRef:
        return next(source for source in self.sources if source.alias == alias)


@dataclass(frozen=True, slots=True)
class Output:
    """A target and the queries, each under a name of its own, whose answers it gets: several are a UNION ALL."""

    target: Target
    branches: tuple[tuple[str, JoinQuery], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The output columns, which have the names that the first branch gives them."""
        items = self.branches[0][1].output
        return tuple(item.name for item in items if item.name != EVENT_TIME)

    @property
    def streams(self) -> frozenset[str]:
        """What the branches read."""
        return frozenset(source.stream for _, query in self.branches for source in query.sources)


def feeding(query: JoinQuery, stream: str) -> JoinQuery:
    """The query as one whose answers are rows of a derived stream, each with its time.

    An answer's time is that of its latest tuple; that of a group is its window's last microsecond.
    """
    target = Target(stream, is_stream=True)
    if query.grouping is not None:
        end = SelectItem(EVENT_TIME, Expression(WINDOW_END.sql, (WINDOW_END,), "timestamp"))
        return replace(query, grouping=replace(query.grouping, select=(*query.grouping.select, end)), into=target)
    time = SelectItem(EVENT_TIME, Expression(TIME.sql, (TIME,), "bigint"))
    return replace(query, select=(*query.select, time), into=target)


def cast_output(query: JoinQuery, kinds: Sequence[str | None]) -> JoinQuery:
    """The query with some output columns, the first ones, cast to other types."""

    def items(select: Sequence[SelectItem]) -> tuple[SelectItem, ...]:
        asked = [*kinds, *[None] * (len(select) - len(kinds))]
        return tuple(item if kind is None else _cast(item, kind) for item, kind in zip(select, asked, strict=True))

    if query.grouping is not None:
        return replace(query, grouping=replace(query.grouping, select=items(query.grouping.select)))
    return replace(query, select=items(query.select))


def _cast(item: SelectItem, kind: str) -> SelectItem:
    return replace(item, expression=Expression(f"CAST({item.expression.sql} AS {kind})", item.expression.columns, kind))
