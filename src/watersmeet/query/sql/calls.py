"""Calls of aggregates: `sum(DISTINCT x) FILTER (WHERE condition)`."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType as T

from watersmeet.query.model import GROUP, Expression
from watersmeet.query.sql.expressions import ColumnReference, make_expression
from watersmeet.query.sql.functions import AGGREGATES, refuse_functions
from watersmeet.query.sql.sketches import WITH_NUMBERS, read_parameters, split_arguments
from watersmeet.query.sql.tokens import SqlText, Tokens

_SAME_IF_DISTINCT = ("min", "max", "bool_and", "bool_or")


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate of the values of an expression over columns of streams, or of whole answers."""

    function: str
    argument: Expression | None
    distinct: bool
    sql: str
    parameters: tuple[float, ...]


def read_call(text: SqlText, call: Tokens, references: Iterable[ColumnReference]) -> AggregateCall:
    """The aggregate that is called by some tokens, `call_end` of them."""
    name, end = AGGREGATES[call[0].name.casefold()], _after_bracket(call, 1)
    inside, condition = list(call[2 : end - 1]), call[end + 3 : -1]  # FILTER (WHERE condition)
    distinct = bool(inside) and inside[0].kind is T.DISTINCT
    inside = inside[1:] if inside and inside[0].kind in (T.DISTINCT, T.ALL) else inside
    given: list[Tokens] = split_arguments(inside) if inside else [[]]
    parameters: tuple[float, ...] = ()
    if name in WITH_NUMBERS and given[0]:
        parameters, inside = read_parameters(text, name, call, given[1:]), list(given[0])
    elif len(given) > 1 or not inside:
        raise text.error(call[0], f"{name} takes one argument, {text.excerpt_of(call)}")
    is_star = [token.kind for token in inside] == [T.STAR]
    if is_star and (name != "count" or distinct):
        raise text.error(call[0], f"{name} takes a column or expression, {text.excerpt_of(call)}")
    distinct = distinct and name not in _SAME_IF_DISTINCT
    if distinct and name in (*WITH_NUMBERS, "count_if"):
        raise text.error(call[0], f"{name}(DISTINCT ...) is not supported; leave out DISTINCT")
    argument = None if is_star else _of_streams(text, call, inside, references)
    if name == "count_if" and argument is not None:
        name, argument = "count", _where(argument, None)
    if condition:
        if name == "approx_top_k":
            cure = "write the condition in WHERE, or use a query of its own"
            raise text.error(call[end], f"approx_top_k counts NULL too and so cannot have a FILTER; {cure}")
        argument = _where(_of_streams(text, call, condition, references), argument)
    more = "".join(f", {text.sql[one[0].start : one[-1].end + 1]}" for one in given[1:])
    sql = f"{name}({'DISTINCT ' if distinct else ''}{'*' if argument is None else argument.sql}{more})"
    return AggregateCall(name, argument, distinct, sql, parameters)


def _of_streams(text: SqlText, call: Tokens, tokens: Tokens, references: Iterable[ColumnReference]) -> Expression:
    """What is inside an aggregate: an expression over columns of streams."""
    refuse_functions(text, tokens, [], "an aggregate")
    made = make_expression(tokens, references)
    if any(column.alias == GROUP for column in made.columns):
        raise text.error(call[0], f"what a group has cannot be inside an aggregate, {text.excerpt_of(call)}")
    return made


def _where(condition: Expression, argument: Expression | None) -> Expression:
    """What an aggregate with a condition is of: NULL, which aggregates pass over, where it does not hold."""
    value = Expression("1", ()) if argument is None else argument
    columns = tuple(sorted({*condition.columns, *value.columns}))
    return Expression(f"CASE WHEN {condition.sql} THEN {value.sql} END", columns)


def call_end(tokens: Tokens, i: int) -> int:
    """The place after the call that begins at `i`, and after the FILTER (WHERE ...) that may follow it."""
    end = _after_bracket(tokens, i + 1)
    has_filter = [token.kind for token in tokens[end : end + 3]] == [T.FILTER, T.L_PAREN, T.WHERE]
    return _after_bracket(tokens, end + 1) if has_filter else end


def _after_bracket(tokens: Tokens, i: int) -> int:
    """The place after the bracket that closes the one at `i`."""
    depth = tokens[i].depth
    return next(j for j in range(i + 1, len(tokens)) if tokens[j].kind is T.R_PAREN and tokens[j].depth == depth) + 1
