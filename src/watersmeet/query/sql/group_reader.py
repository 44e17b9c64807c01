"""Expressions over groups: aggregates and keys in the user's own text are replaced by columns of the group."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.query.model import (
    CHANGED_AT,
    DELETED,
    GROUP,
    WINDOW_END,
    WINDOW_START,
    Aggregate,
    Column,
    Expression,
    SelectItem,
    key_of_group,
    value_of_group,
)
from watersmeet.query.sql.calls import call_end, read_call
from watersmeet.query.sql.canonical import normal_form
from watersmeet.query.sql.expressions import ColumnReference, column_references, known_references, make_expression
from watersmeet.query.sql.functions import AGGREGATES, is_call, moving_at, not_deterministic, refuse_functions
from watersmeet.query.sql.grammar import Statement, unaliased
from watersmeet.query.sql.scope import Scope
from watersmeet.query.sql.tokens import SIMPLE_NAME, SqlText, Token, Tokens, tokenize

_CALLED = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`)|(\w+)(?=\()""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Names:
    """What names mean in an expression over groups, by where they begin in the text."""

    references: Mapping[int, ColumnReference]  # output columns come before those of streams
    of_streams: Mapping[int, ColumnReference]
    clause: str | None
    is_alone: bool  # the expression is a name and nothing else


@dataclass
class GroupReader:
    """Reads expressions over groups, and collects the aggregates in them."""

    statement: Statement
    scope: Scope
    keys: Sequence[Expression]
    exact_clause: str | None = None  # where only what is deterministic can be
    aggregates: list[Aggregate] = field(default_factory=list)
    arguments: list[SelectItem] = field(default_factory=list)
    named: Mapping[Column, Expression] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = self.statement.nodes_by_token
        self._keys = {_comparable(key): key_of_group(number) for number, key in enumerate(self.keys)}

    def select(self) -> tuple[SelectItem, ...]:
        """The output columns."""
        items: dict[str, SelectItem] = {}
        for node in self.statement.tree.expressions:
            tokens = self.statement.tokens_of(unaliased(node))
            if isinstance(node, exp.Aliases):
                raise self.scope.text.error(tokens[0], "several names for one expression are not supported")
            if tokens[-1].kind is T.STAR and (len(tokens) == 1 or tokens[-2].kind is T.DOT):
                raise self.scope.text.error(tokens[0], "* cannot be with GROUP BY; name the keys and aggregates")
            expression = self.expression(unaliased(node))
            name = node.alias if isinstance(node, exp.Alias) else self._implied_name(tokens, expression)
            if name.casefold() in items:
                message = f"two output columns are called {name!r}; name one of them with AS"
                raise self.scope.text.error(tokens[0], message)
            items[name.casefold()] = SelectItem(name, expression)
        return tuple(items.values())

    def name_outputs(self, select: Iterable[SelectItem]) -> None:
        """Let later clauses use the names of output columns."""
        named = {Column(GROUP, f"={item.name}"): item.expression for item in select}
        names = {column.name[1:].casefold(): column for column in named}
        self.named, self.scope = named, replace(self.scope, outputs={**names, **self.scope.outputs})

    def output(self, token: Token, expression: Expression, clause: str) -> Expression:
        """An output column that a later clause names; evaluated twice, it must have the same value."""
        written = tokenize(SqlText(expression.sql))
        if moving := next(filter(None, (moving_at(written, i) for i in range(len(written)))), None):
            raise self.scope.text.error(token, not_deterministic(moving, clause))
        return Expression(f"({expression.sql})", expression.columns)

    def expression(self, node: exp.Expr, clause: str | None = None) -> Expression:
        """An expression over columns of the group; `clause` is HAVING or ORDER BY, which know output columns too."""
        tokens = self.statement.tokens_of(node)
        text = self.scope.text
        outside = self._outside_aggregates(tokens)
        refuse_functions(text, outside, [node], self.exact_clause, stars=False)
        if clause:
            refuse_functions(text, outside, [], clause)
        calls = [i for i in range(len(tokens)) if is_call(tokens, i, AGGREGATES)]
        arguments = [(tokens[i].start, tokens[call_end(tokens, i) - 1].end) for i in calls]
        for before, token in pairwise(tokens):
            follows = token.kind is T.FILTER and before.kind is T.R_PAREN
            if follows and not any(begin <= token.start <= end for begin, end in arguments):
                raise text.error(token, f"FILTER (WHERE ...) has to follow an aggregate, {text.excerpt_of(tokens)}")
        scope = replace(self.scope, arguments=arguments)
        names = _Names(
            {ref.start: ref for ref in column_references(scope, tokens, [node])},
            known_references(replace(scope, outputs={}), node),
            clause,
            is_alone=isinstance(node.unnest(), exp.Column),
        )
        pieces: list[str] = []
        columns: set[Column] = set()
        end, i = tokens[0].start - 1, 0
        while i < len(tokens):
            token = tokens[i]
            if token.start <= end:
                i += 1
                continue
            pieces.append(" " if token.start > end + 1 else "")
            stop, made = self._replaced(tokens, i, node.meta["tokens"][0] + i, names)
            pieces.append(token.text if made is None else made.sql)
            columns |= set() if made is None else set(made.columns)
            end = tokens[stop - 1].end
            i = stop
        made = Expression("".join(pieces), tuple(sorted(columns)))
        if (columns & {CHANGED_AT, DELETED}) and not made.is_plain:
            name = min(columns & {CHANGED_AT, DELETED}).name
            raise text.error(tokens[0], f"{name} can only be an output column by itself, {text.excerpt_of(tokens)}")
        return made

    def condition(self, node: exp.Expr) -> Expression:
        """A condition on groups."""
        made = self.expression(node, "HAVING")
        if {CHANGED_AT, DELETED} & set(made.columns):
            message = f"{made.columns[0].name} cannot be in HAVING; filter the changes downstream"
            raise self.scope.text.error(self.statement.tokens_of(node)[0], message)
        return made

    def _replaced(self, tokens: Tokens, i: int, place: int, names: "_Names") -> tuple[int, Expression | None]:
        """What stands for the tokens from `i` on, and where it stops; None where the token stays."""
        if is_call(tokens, i, AGGREGATES):
            stop = call_end(tokens, i)
            return stop, of_column(self._aggregate(tokens[i:stop], names.references.values()))
        reference = names.references.get(tokens[i].start)
        stops = [i + node.meta["tokens"][1] - place for node in self._nodes.get(place, ())]
        if reference is not None:
            after = (j for j in range(i, len(tokens)) if tokens[j].start > reference.end)
            stops.append(next(after, len(tokens)))
        for stop in sorted({stop for stop in stops if stop <= len(tokens)}, reverse=True) if self._keys else ():
            key = self._keys.get(_comparable(make_expression(tokens[i:stop], names.of_streams.values())))
            if key is not None and not self._means_output(tokens[i:stop], names):
                return stop, of_column(key)
        if reference is None:
            return i + 1, None
        stop = stops[-1]
        column = reference.column
        if column in self.named:
            assert names.clause is not None, "output columns are known to later clauses"
            return stop, self.output(tokens[i], self.named[column], names.clause)
        if column.alias == GROUP:
            return stop, of_column(column)
        cure = f"add it to GROUP BY, or write max({column.flat})"
        raise self.scope.text.error(
            tokens[i], f"column {column.flat} is neither in GROUP BY nor inside an aggregate; {cure}"
        )

    def _means_output(self, tokens: Tokens, names: "_Names") -> bool:
        """Whether what could be a key is an output column of that name in ORDER BY; HAVING means keys, as in Spark.

        Within an expression of ORDER BY Spark means the output column, and others the key.
        """
        for reference in names.references.values():
            named = self.named.get(reference.column)
            if named is None or not tokens[0].start <= reference.start <= tokens[-1].end:
                continue
            known = names.of_streams[reference.start].column
            key = self._keys.get(known.sql)
            if names.clause == "HAVING" or (key is not None and named.sql == key.sql):
                continue
            if not names.is_alone:
                message = f"{known.name!r} may be the output column or {known.flat} here"
                cure = f"write {known.flat}, or the number of an output column by itself"
                raise self.scope.text.error(reference.start, f"{message}; {cure}")
            return True
        return False

    def _aggregate(self, call: Tokens, references: Iterable[ColumnReference]) -> Column:
        """The column of the group that holds the value of a call such as sum(DISTINCT x)."""
        read = read_call(self.scope.text, call, references)
        item = None if read.argument is None else len(self.keys) + self._argument(read.argument)
        made = Aggregate(read.function, item, read.distinct, read.sql, parameters=read.parameters)
        if made not in self.aggregates:
            self.aggregates.append(made)
        return value_of_group(self.aggregates.index(made))

    def count_answers(self) -> int:
        """The number of the aggregate that counts answers."""
        counted = Aggregate("count", None, sql="count(*)")
        if counted not in self.aggregates:
            self.aggregates.append(counted)
        return self.aggregates.index(counted)

    def _argument(self, expression: Expression) -> int:
        known = [item.expression for item in self.arguments]
        if expression not in known:
            self.arguments.append(SelectItem(f"argument{len(known)}", expression))
            return len(known)
        return known.index(expression)

    def _outside_aggregates(self, tokens: Tokens) -> Tokens:
        found: list[Token] = []
        i = 0
        while i < len(tokens):
            if is_call(tokens, i, AGGREGATES):
                i = call_end(tokens, i)
            else:
                found.append(tokens[i])
                i += 1
        return found

    def _implied_name(self, tokens: Tokens, expression: Expression) -> str:
        """The name of an expression without AS: that of a key that is a column, or of the window."""
        if len(expression.columns) == 1 and expression.sql == expression.columns[0].sql:
            (column,) = expression.columns
            number = next((i for i in range(len(self.keys)) if key_of_group(i) == column), None)
            if number is not None and self.keys[number].is_plain:
                return self.keys[number].columns[0].name
            if column in (WINDOW_START, WINDOW_END, CHANGED_AT, DELETED):
                return column.name
        written = " ".join(self.scope.text.sql[tokens[0].start : tokens[-1].end + 1].split())
        if not expression.columns and SIMPLE_NAME.fullmatch(written):
            return written
        raise self.scope.text.error(tokens[0], f"the expression {written!r} needs a name; add AS with a name")


def _comparable(expression: Expression) -> str:
    """An expression as text that is equal for equal ones: names of functions in lower case, normal spacing."""
    return _CALLED.sub(lambda found: found[1] or found[2].lower(), normal_form(expression))


def of_column(column: Column) -> Expression:
    """A column by itself, as an expression."""
    return Expression(column.sql, (column,))
