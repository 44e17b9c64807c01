"""SELECT: output columns and their names."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import UnknownColumn, did_you_mean
from watersmeet.query.model import Column, Expression, SelectItem
from watersmeet.query.sql.expressions import ColumnReference, column_references, make_expression
from watersmeet.query.sql.functions import refuse_functions
from watersmeet.query.sql.grammar import Statement
from watersmeet.query.sql.scope import Scope
from watersmeet.query.sql.tokens import SIMPLE_NAME, SqlText, Token, Tokens


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """An output column; `starred` is the column if it came out of `*`."""

    token: Token
    name: str
    expression: Expression
    starred: Column | None = None


def read_select(statement: Statement, scope: Scope) -> tuple[SelectItem, ...]:
    """The output columns; a column of `*` whose name another one has is called alias_name."""
    exact_clause = "SELECT DISTINCT" if statement.tree.args.get("distinct") else None
    outputs = [
        output for node in statement.tree.expressions for output in read_item(statement, scope, node, exact_clause)
    ]
    uses = Counter(output.name.casefold() for output in outputs)
    items: dict[str, SelectItem] = {}
    for output in outputs:
        clashes = uses[output.name.casefold()] > 1
        starred = output.starred if clashes else None
        name = f"{starred.alias}_{starred.name}" if starred else output.name
        if other := items.get(name.casefold()):
            message = f"two output columns are called {other.name!r}; name one of them with AS"
            raise scope.text.error(output.token, message)
        items[name.casefold()] = SelectItem(name, output.expression)
    return tuple(items.values())


def read_item(
    statement: Statement, scope: Scope, node: exp.Expr, exact_clause: str | None = None, *, is_named: bool = True
) -> list[OutputColumn]:
    """The columns of an item; where it is not `is_named`, their names do not matter, so an expression needs none."""
    text, name = scope.text, None
    if isinstance(node, exp.Alias | exp.Aliases):
        name, named, node = node.alias, node, node.this
    tokens = statement.tokens_of(node)
    if name is not None and isinstance(named, exp.Aliases):
        raise text.error(tokens[0], "several names for one expression are not supported; give it one with AS")
    if tokens[-1].kind is T.STAR and (len(tokens) == 1 or tokens[-2].kind is T.DOT):
        return _expand_star(scope, tokens)
    if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
        raise text.error(tokens[0], "* with EXCEPT or the like is not supported; name the columns")
    refuse_functions(text, tokens, [node], exact_clause)
    references = column_references(scope, tokens, [node])
    expression = make_expression(tokens, references)
    name = name or (_implied_name(text, tokens, references) if is_named else "")
    return [OutputColumn(tokens[0], name, expression)]


def _implied_name(text: SqlText, tokens: Tokens, references: Sequence[ColumnReference]) -> str:
    """The name of an expression without AS: a column's own, a field's, or the expression itself if it is one token."""
    match references:
        case [reference] if (reference.start, reference.end) == (tokens[0].start, tokens[-1].end):
            return reference.column.name
        case [reference] if reference.start == tokens[0].start and _is_field_path(tokens, reference):
            return tokens[-1].name
        case [] if len(tokens) == 1 and SIMPLE_NAME.fullmatch(tokens[0].text):
            return tokens[0].text
        case _:
            written = " ".join(text.sql[tokens[0].start : tokens[-1].end + 1].split())
            raise text.error(tokens[0], f"the expression {written!r} needs a name; add AS with a name")


def _is_field_path(tokens: Tokens, reference: ColumnReference) -> bool:
    rest = [token for token in tokens if token.start > reference.end]
    return all((token.kind is T.DOT) == (i % 2 == 0) and token.depth == tokens[0].depth for i, token in enumerate(rest))


def _expand_star(scope: Scope, tokens: Tokens) -> list[OutputColumn]:
    match tokens:
        case [_]:
            wanted = list(scope.aliases.values())
        case [qualifier, _, _] if qualifier.name.casefold() in scope.aliases:
            wanted = [scope.aliases[qualifier.name.casefold()]]
        case [qualifier, _, _]:
            near = did_you_mean(qualifier.name, (alias for alias, _ in scope.aliases.values()))
            message = f"no stream in FROM has the alias {qualifier.name!r}; {near}"
            raise scope.text.error(qualifier, message, UnknownColumn)
        case _:
            raise scope.text.error(
                tokens[0], f"* of a struct is not supported; name the fields, {scope.text.excerpt_of(tokens)}"
            )
    columns = [Column(alias, name) for alias, names in wanted for name in names.values()]
    if len(tokens) == 1:  # what USING makes one is there once, and first
        merged = {column for some in scope.united.values() for column in some}
        columns = [
            *(some[0] for some in scope.united.values()),
            *(column for column in columns if column not in merged),
        ]
    return [OutputColumn(tokens[0], column.name, Expression(column.sql, (column,)), column) for column in columns]
