"""The names that expressions can use, and which column a name means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from watersmeet.errors import SqlError, UnknownColumn, did_you_mean
from watersmeet.query.model import CHANGED_AT, DELETED, WINDOW_END, WINDOW_START, Column, StreamRef
from watersmeet.query.sql.tokens import SqlText

OWN_OF_GROUPS = (WINDOW_START, WINDOW_END, CHANGED_AT, DELETED)  # what groups have under names of ours


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that expressions can use: by case-folded alias, its spelling and its columns by case-folded name."""

    text: SqlText
    aliases: Mapping[str, tuple[str, Mapping[str, str]]]
    outputs: Mapping[str, Column] = field(default_factory=dict)  # by case-folded name, what groups have beside columns
    arguments: Sequence[tuple[int, int]] = ()  # where aggregates stand in the text: in them columns come before outputs
    united: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)  # by name, columns that USING makes one
    nearest: frozenset[str] = frozenset()  # case-folded aliases of a subquery: a bare name is theirs if they have it

    def resolve(self, parts: Sequence[exp.Identifier]) -> tuple[Column, int]:
        """The column that a dotted name means and how many of its parts name it; an alias comes first, as in Spark."""
        at = int(parts[0].meta["start"])
        names = [part.name for part in parts]
        first = names[0].casefold()
        having = [alias for alias, (_, names_of) in self.aliases.items() if first in names_of]
        is_argument = bool(having) and any(begin <= at <= end for begin, end in self.arguments)
        if len(names) == 1 and first in self.outputs and not is_argument:
            if having and self.outputs[first] in OWN_OF_GROUPS:
                column = Column(self.aliases[having[0]][0], self.aliases[having[0]][1][first])
                cure = f"write {column.flat}, or call it otherwise in a subquery"
                raise self.text.error(at, f"{names[0]!r} is what groups have and a column of a stream too; {cure}")
            return self.outputs[first], 1
        qualified = self.aliases.get(first) if len(names) > 1 else None
        if qualified and (name := qualified[1].get(names[1].casefold())) is not None:
            return Column(qualified[0], name), 2
        having = [alias for alias in having if alias in self.nearest] or having
        owners = [Column(self.aliases[alias][0], self.aliases[alias][1][first]) for alias in having]
        if owners and all(column in self.united.get(first, ()) for column in owners):
            owners = owners[:1]
        match owners:
            case [column]:
                return column, 1
            case [] if qualified:
                alias, columns = qualified
                near = did_you_mean(names[1], columns.values())
                raise self.text.error(at, f"{alias!r} has no column {names[1]!r}; {near}", UnknownColumn)
            case [] if len(names) > 1:
                near = did_you_mean(names[0], (alias for alias, _ in self.aliases.values()))
                raise self.text.error(at, f"no stream in FROM has the alias {names[0]!r}; {near}", UnknownColumn)
            case []:
                near = did_you_mean(
                    names[0], {name for _, columns in self.aliases.values() for name in columns.values()}
                )
                raise self.text.error(at, f"no stream in FROM has a column {names[0]!r}; {near}", UnknownColumn)
            case _:
                candidates = " or ".join(column.flat for column in owners)
                raise self.text.error(at, f"column {names[0]!r} is ambiguous; write {candidates}")


def make_scope(text: SqlText, sources: Sequence[StreamRef], columns: Mapping[str, Sequence[str]]) -> Scope:
    """The scope of a query over these streams; column names must differ in more than case."""
    aliases = {}
    for source in sources:
        names = {name.casefold(): name for name in columns[source.stream]}
        if len(names) != len(columns[source.stream]):
            raise SqlError(f"stream {source.stream!r} has columns that differ only in case; rename one in its source")
        aliases[source.alias.casefold()] = (source.alias, names)
    return Scope(text, aliases)
