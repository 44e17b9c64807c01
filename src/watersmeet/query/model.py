"""The query as a frozen value: what is asked, with every name resolved, and nothing of how it is answered."""

from dataclasses import dataclass

from watersmeet.query.windows import Window


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


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One output column."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """A multi-way join in normal form: FROM, and WHERE split into equalities, filters of one alias, and the rest."""

    sources: tuple[StreamRef, ...]
    equalities: tuple[Equality, ...]
    filters: tuple[Expression, ...]
    residuals: tuple[Expression, ...]
    select: tuple[SelectItem, ...]
    distinct: bool = False
    also_kept: tuple[Column, ...] = ()  # columns that windows keep although nothing asks for them any more

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(source.alias for source in self.sources)

    def source(self, alias: str) -> StreamRef:
        return next(source for source in self.sources if source.alias == alias)
