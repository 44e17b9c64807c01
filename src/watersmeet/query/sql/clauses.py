"""A statement cut into SELECT, FROM and WHERE; clauses that are not supported are refused, each with a way out."""

from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import SqlError
from watersmeet.query.sql.tokens import SqlText, Token, Tokens, kinds

_UNSUPPORTED_CLAUSES = {
    T.GROUP_BY: "GROUP BY is not supported yet; aggregate the answers downstream",
    T.HAVING: "HAVING is not supported yet; aggregate the answers downstream",
    T.ORDER_BY: "ORDER BY is not supported: the answers of a continuous query have no last row to sort by",
    T.SORT_BY: "SORT BY is not supported; sort the answers downstream",
    T.CLUSTER_BY: "CLUSTER BY is not supported; partition the answers downstream",
    T.DISTRIBUTE_BY: "DISTRIBUTE BY is not supported; partition the answers downstream",
    T.LATERAL: "LATERAL is not supported; explode the stream in Spark before it is joined",
    T.TABLE_SAMPLE: "TABLESAMPLE is not supported; sample the stream in Spark before it is joined",
    T.UNION: "UNION is not supported; run one query for each side",
    T.EXCEPT: "EXCEPT is not supported; run one query for each side",
    T.INTERSECT: "INTERSECT is not supported; run one query for each side",
    T.LIMIT: "LIMIT is not supported: a continuous query does not end; limit the answers downstream",
    T.OFFSET: "OFFSET is not supported: a continuous query does not end; limit the answers downstream",
    T.FETCH: "FETCH is not supported: a continuous query does not end; limit the answers downstream",
    T.QUALIFY: "QUALIFY is not supported, as window functions are not",
    T.WINDOW: "the WINDOW clause is not supported, as window functions are not",
    T.PIVOT: "PIVOT is not supported; pivot the answers downstream",
    T.UNPIVOT: "UNPIVOT is not supported; unpivot the answers downstream",
}
# These are column names too (`offset` of Kafka): they open a clause only where an operand has just ended.
_CLAUSES_OR_NAMES = kinds("LIMIT OFFSET FETCH QUALIFY WINDOW PIVOT UNPIVOT")
_OPERAND_ENDS = kinds("VAR IDENTIFIER STRING NUMBER R_PAREN R_BRACKET END NULL TRUE FALSE")


@dataclass(frozen=True, slots=True)
class Clauses:
    """The tokens of the three clauses of a statement; `where` is empty if there is none."""

    opening: Token  # SELECT itself
    distinct: bool
    select: Tokens
    sources: Tokens
    where: Tokens


def split_clauses(text: SqlText, tokens: list[Token]) -> Clauses:
    """The clauses of the one SELECT that the tokens must be."""
    while tokens and tokens[-1].kind is T.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise SqlError("the query is empty; write SELECT ... FROM stream [RANGE 1 MINUTE], ... WHERE ...")
    opening = tokens[0]
    for token in tokens:
        if token.kind is T.SEMICOLON:
            raise text.error(token, "several statements are not supported; give one SELECT at a time")
    if opening.kind is T.WITH:
        raise text.error(opening, "WITH (a common table expression) is not supported; name the streams in FROM")
    if opening.kind is not T.SELECT:
        raise text.error(opening, f"only SELECT is supported, not {opening.text!r}")
    begin = next((i for i, token in enumerate(tokens) if token.kind is T.FROM and _opens_from(tokens, i)), None)
    if begin is None:
        raise text.error(tokens[-1].end + 1, "FROM is missing; write SELECT ... FROM stream [RANGE 1 MINUTE], ...")
    for i in range(begin, len(tokens)):
        token = tokens[i]
        is_column = token.kind in _CLAUSES_OR_NAMES and tokens[i - 1].kind not in _OPERAND_ENDS
        if token.depth == 0 and token.kind in _UNSUPPORTED_CLAUSES and not is_column:
            raise text.error(token, _UNSUPPORTED_CLAUSES[token.kind])
    _refuse_inner_selects(text, tokens)
    wheres = (i for i in range(begin, len(tokens)) if tokens[i].kind is T.WHERE and tokens[i].depth == 0)
    where = next(wheres, len(tokens))
    if where + 1 == len(tokens):
        raise text.error(tokens[where], "WHERE has no condition")

    distinct = tokens[1].kind is T.DISTINCT
    select = tokens[1 + (tokens[1].kind in (T.DISTINCT, T.ALL)) : begin]
    if select and select[0].kind is T.HINT:
        raise text.error(select[0], "hints are not supported; the planner chooses how to join, so remove the hint")
    if not select:
        raise text.error(tokens[begin], "the select list is empty; write SELECT * or name columns")
    return Clauses(opening, distinct, select, tokens[begin + 1 : where], tokens[where + 1 :])


def _refuse_inner_selects(text: SqlText, tokens: Tokens) -> None:
    for token in tokens[1:]:
        if token.kind is T.SELECT and token.depth == 0:
            raise text.error(token, "UNION and the like are not supported; run one query for each side")
        if token.kind is T.SELECT:
            raise text.error(token, "subqueries are not supported; join the streams in FROM and WHERE")


def _opens_from(tokens: Tokens, i: int) -> bool:
    """Whether the FROM at `i` is the clause, and not the end of IS [NOT] DISTINCT FROM."""
    in_comparison = tokens[i - 1].kind is T.DISTINCT and i > 2 and tokens[i - 2].kind in (T.IS, T.NOT)
    return tokens[i].depth == 0 and not in_comparison
