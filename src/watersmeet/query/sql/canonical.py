"""The canonical text of a query: equal for queries that differ in layout only."""

from collections.abc import Sequence

from sqlglot.tokenizer_core import TokenType as T

from watersmeet.query.model import Equality, Expression, Grouping, JoinQuery, JoinTree, Predicate, SelectItem, StreamRef
from watersmeet.query.sql.tokens import (
    LOW_PRECEDENCE,
    SIMPLE_NAME,
    SqlText,
    Token,
    is_name,
    kinds,
    quoted,
    tokenize,
)
from watersmeet.query.windows import AsOf

_NORMAL_TEXT = {T.EQ: "=", T.NEQ: "<>", T.NOT: "NOT"}
_VERBATIM = kinds("VAR IDENTIFIER NUMBER")
_NO_SPACE_AFTER = kinds("L_PAREN L_BRACKET DOT")
_NO_SPACE_BEFORE = kinds("R_PAREN R_BRACKET DOT COMMA L_BRACKET")
_NOT_CALLED = LOW_PRECEDENCE | kinds("CASE WHEN THEN ELSE ANY SOME ALL DIV INTERVAL FROM DISTINCT ALIAS")


def canonical_sql(query: JoinQuery) -> str:
    """The query in normal form, one clause or item a line."""
    items = [f"{normal_form(item.expression)} AS {quoted(item.name)}" for item in query.select]
    sources = [f"{quoted(source.stream)}{_window(source)} AS {quoted(source.alias)}" for source in query.sources]
    predicates = [f"{normal_form(equality.left)} = {normal_form(equality.right)}" for equality in query.equalities]
    predicates += [normal_form(expression) for expression in (*query.filters, *query.residuals)]
    lines = ["SELECT DISTINCT" if query.distinct else "SELECT", _indented(items, ","), "FROM", _indented(sources, ",")]
    if query.outer is not None:
        lines += ["JOINED AS", f"  {_tree_text(query.outer.tree)}"]
        lines += (
            ["AFTER THAT", *(f"  {_predicate_text(predicate)}" for predicate in query.outer.where)]
            if query.outer.where
            else []
        )
    if predicates:
        lines += ["WHERE", _indented(predicates, " AND")]
    if query.grouping is not None:
        lines += _grouping_lines(query.grouping, query.select)
    return "\n".join(lines)


def _window(source: StreamRef) -> str:
    """The window of a stream; a table has none."""
    return "" if isinstance(source.window, AsOf) else f" [{source.window}]"


def _tree_text(node: JoinTree | str) -> str:
    """A tree of joins on one line."""
    if isinstance(node, str):
        return quoted(node)
    on = " AND ".join(_predicate_text(predicate) for predicate in node.on)
    return f"({_tree_text(node.left)} {node.kind.upper()} {_tree_text(node.right)} ON {on})"


def _predicate_text(predicate: Predicate) -> str:
    if isinstance(predicate, Equality):
        return f"{normal_form(predicate.left)} = {normal_form(predicate.right)}"
    return normal_form(predicate)


def _grouping_lines(grouping: Grouping, select: Sequence[SelectItem]) -> list[str]:
    """GROUP BY and what follows it; `group.value0` and so on are the aggregates in order."""
    keys = [normal_form(item.expression) for item in select[: grouping.keys]]
    values = [aggregate.sql for aggregate in grouping.aggregates]
    answers = [f"{normal_form(item.expression)} AS {quoted(item.name)}" for item in grouping.select]
    lines = ["GROUP BY", _indented([*keys, str(grouping.window)], ","), "AGGREGATES", _indented(values, ",")]
    lines += ["ANSWERS", _indented(answers, ",")]
    if grouping.having:
        lines += ["HAVING", _indented([normal_form(predicate) for predicate in grouping.having], " AND")]
    if grouping.order:
        order = [
            f"{normal_form(key.expression)} {'DESC' if key.descending else 'ASC'} "
            f"NULLS {'FIRST' if key.nulls_first else 'LAST'}"
            for key in grouping.order
        ]
        lines += ["ORDER BY", _indented(order, ","), f"LIMIT {grouping.limit}"]
    return lines


def normal_form(expression: Expression) -> str:
    """An expression with keywords in upper case and normal spacing; names and literals stay."""
    pieces: list[str] = []
    previous: Token | None = None
    for token in tokenize(SqlText(expression.sql)):
        if previous and token.start <= previous.end:
            continue
        is_call = token.kind is T.L_PAREN and previous is not None and is_name(previous, _NOT_CALLED)
        if previous and previous.kind not in _NO_SPACE_AFTER and token.kind not in _NO_SPACE_BEFORE and not is_call:
            pieces.append(" ")
        is_keyword = token.kind not in _VERBATIM and SIMPLE_NAME.fullmatch(token.text)
        pieces.append(_NORMAL_TEXT.get(token.kind, token.text.upper() if is_keyword else token.text))
        previous = token
    return "".join(pieces)


def _indented(lines: Sequence[str], separator: str) -> str:
    return f"{separator}\n".join(f"  {line}" for line in lines)
