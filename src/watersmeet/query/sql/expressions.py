"""Expressions: the user's own text, in which only the columns are replaced.

sqlglot says which tokens are columns. Comments go, columns get their flat names, nothing else is touched, so that no
rewrite of a parser can change what Spark computes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import SqlError
from watersmeet.query.model import Column, Expression
from watersmeet.query.sql.scope import Scope
from watersmeet.query.sql.tokens import Tokens, names, quoted

_UNIT_FUNCTIONS = names("timestampdiff timestampadd datediff date_diff dateadd date_add")
_UNITS = names("year quarter month week day dayofyear hour minute second millisecond microsecond")


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """A column at its place in the text."""

    start: int
    end: int
    column: Column


def known_references(scope: Scope, node: exp.Expr) -> dict[int, ColumnReference]:
    """The column references in a node that mean one column of the scope, by where they begin."""
    found = {}
    for column in node.find_all(exp.Column):
        try:
            reference = None if _is_unit(column) else _reference(scope, column)
        except SqlError:
            continue
        if reference is not None:
            found[reference.start] = reference
    return found


def column_references(scope: Scope, tokens: Tokens, nodes: Iterable[exp.Expr]) -> list[ColumnReference]:
    """Every column reference in `nodes`, resolved."""
    references: dict[int, ColumnReference] = {}
    if any(node.find(exp.Select) for node in nodes):
        message = "a subquery can only be that of EXISTS or IN, tied by AND to the rest of WHERE; take it out of"
        raise scope.text.error(tokens[0], f"{message} this, {scope.text.excerpt_of(tokens)}")
    for node in nodes:
        for column in node.find_all(exp.Column):
            if not _is_unit(column):
                reference = _reference(scope, column)
                references[reference.start] = reference
    _check_all_found(scope, tokens, references, nodes)
    return list(references.values())


def _reference(scope: Scope, column: exp.Column) -> ColumnReference:
    parts = _dotted_name(column)
    found, used = scope.resolve(parts)
    return ColumnReference(int(parts[0].meta["start"]), int(parts[used - 1].meta["end"]), found)


def _is_unit(column: exp.Column) -> bool:
    """Whether this is the MINUTE of timestampdiff(MINUTE, x, y)."""
    call = column.parent
    return (
        isinstance(call, exp.Anonymous)
        and call.name.casefold() in _UNIT_FUNCTIONS
        and len(call.expressions) == 3
        and call.expressions[0] is column
        and column.name.casefold() in _UNITS
        and not column.table
    )


def _dotted_name(column: exp.Column) -> list[exp.Identifier]:
    """The parts of a name; sqlglot puts those after the fourth into nested Dots."""
    parts = list(column.parts)
    node: exp.Expr = column
    while (
        isinstance(node.parent, exp.Dot)
        and node.parent.this is node
        and isinstance(node.parent.expression, exp.Identifier)
    ):
        node = node.parent
        parts.append(node.expression)
    return [part for part in parts if isinstance(part, exp.Identifier)]


def _check_all_found(
    scope: Scope, tokens: Tokens, references: Mapping[int, ColumnReference], nodes: Iterable[exp.Expr]
) -> None:
    """Refuse an `alias.` that sqlglot does not take for a column: left in the text, Spark could not resolve it."""
    variables = {
        variable.name.casefold()
        for node in nodes
        for function in node.find_all(exp.Lambda)
        for variable in function.expressions
    }
    for i, token in enumerate(tokens[:-1]):
        folded = token.name.casefold()
        starts_name = tokens[i + 1].kind is T.DOT and (i == 0 or tokens[i - 1].kind is not T.DOT)
        if starts_name and folded in scope.aliases and token.start not in references and folded not in variables:
            excerpt = scope.text.excerpt_of(tokens)
            raise scope.text.error(token, f"this use of {token.text!r} is not understood, {excerpt}")


def make_expression(tokens: Tokens, references: Iterable[ColumnReference]) -> Expression:
    """The tokens as written, without comments, in which every column has its flat name."""
    inside = {ref.start: ref for ref in references if tokens[0].start <= ref.start <= tokens[-1].end}
    pieces: list[str] = []
    end = tokens[0].start - 1
    for i, token in enumerate(tokens):
        # A literal such as 10L is two tokens at one place, and a reference covers several tokens.
        if token.start <= end:
            continue
        if token.start > end + 1:
            pieces.append(" ")
        if reference := inside.get(token.start):
            pieces.append(quoted(reference.column.flat) + _field_name(tokens, i, reference))
            end = reference.end
        else:
            pieces.append(token.text)
            end = token.end
    return Expression("".join(pieces), tuple(sorted({reference.column for reference in inside.values()})))


def _field_name(tokens: Tokens, i: int, reference: ColumnReference) -> str:
    """` AS name` for a column that stands alone in struct(...), where Spark makes a field name of the column's."""
    if not i or tokens[i - 1].kind not in (T.COMMA, T.L_PAREN):
        return ""
    after = next((tokens[j] for j in range(i, len(tokens)) if tokens[j].start > reference.end), None)
    opening = next((j for j in range(i - 1, 0, -1) if tokens[j].depth < tokens[i].depth), None)
    is_last = after is not None and after.kind in (T.COMMA, T.R_PAREN)
    if opening and is_last and tokens[opening - 1].name.casefold() == "struct":
        return f" AS {quoted(reference.column.name)}"
    return ""
