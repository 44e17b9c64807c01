"""The grammar: sqlglot's own parser of Spark's SELECT, with what is ours and what is refused.

Ours are the window after a stream, the output windows TUMBLE and HOP in GROUP BY, and EMIT CHANGES. Every expression
remembers which tokens it was read from, so that the user's own text goes on to Spark and not a parser's idea of it.
Clauses that are not supported are refused where they begin, each with a way out.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import SqlError
from watersmeet.query.dialect import SPARK
from watersmeet.query.sql.tokens import CLOSING_BRACKET, SqlText, Token, Tokens, is_name, kinds

_JOIN_KINDS = kinds("JOIN INNER CROSS LEFT RIGHT FULL OUTER SEMI ANTI NATURAL ASOF STRAIGHT_JOIN")
_BRACKETS = {*CLOSING_BRACKET, *CLOSING_BRACKET.values()}
_NOT_A_NAME = _JOIN_KINDS | _BRACKETS | kinds("ON USING COMMA DOT ALIAS STRING NUMBER WHERE GROUP_BY HAVING ORDER_BY")
_NOT_AN_ALIAS = (
    _NOT_A_NAME
    | set(SparkParser.QUERY_MODIFIER_PARSERS)
    | set(SparkParser.SET_OPERATIONS)
    | kinds("LATERAL TABLE_SAMPLE PIVOT UNPIVOT")
)

_REFUSED = {
    T.SORT_BY: "SORT BY is not supported; sort the answers downstream",
    T.CLUSTER_BY: "CLUSTER BY is not supported; partition the answers downstream",
    T.DISTRIBUTE_BY: "DISTRIBUTE BY is not supported; partition the answers downstream",
    T.OFFSET: "OFFSET is not supported: a continuous query does not end; limit the answers downstream",
    T.FETCH: "FETCH is not supported; write LIMIT with a number",
    T.QUALIFY: "QUALIFY is not supported, as window functions are not",
    T.WINDOW: "the WINDOW clause is not supported, as window functions are not",
}
_REFUSED_ELSEWHERE = {
    T.LATERAL: "LATERAL is not supported; explode the stream in Spark before it is joined",
    T.TABLE_SAMPLE: "TABLESAMPLE is not supported; sample the stream in Spark before it is joined",
    T.PIVOT: "PIVOT is not supported; pivot the answers downstream",
    T.UNPIVOT: "UNPIVOT is not supported; unpivot the answers downstream",
    T.VALUES: "VALUES is not supported; name a stream",
    T.UNION: "UNION is not supported; run one query for each side",
    T.EXCEPT: "EXCEPT is not supported; write NOT EXISTS with equalities",
    T.INTERSECT: "INTERSECT is not supported; write EXISTS with equalities",
}
_WITHIN: dict[
    type[exp.Expr], str
] = {  # sqlglot reads these where they would then be passed over, or fail in Spark without a place
    exp.WithinGroup: "WITHIN GROUP is not supported; write approx_percentile(x, 0.5)",
    exp.Window: "window functions are not supported; rank groups by ORDER BY ... LIMIT in an output window",
    exp.IgnoreNulls: "IGNORE NULLS is not supported; leave it out, since aggregates pass over NULLs",
    exp.RespectNulls: "RESPECT NULLS is not supported; write coalesce(x, value) for NULLs",
    exp.HavingMax: "HAVING within a function is not supported; leave it out",
    exp.Order: "ORDER BY within a function is not supported; leave it out",
    exp.Limit: "LIMIT within a function is not supported; leave it out",
    exp.Values: "VALUES is not supported; name a stream",
    exp.WithFill: "WITH FILL is not supported; groups without answers give no row",
    exp.LimitOptions: "LIMIT takes a whole number and nothing else; leave out PERCENT and WITH TIES",
    exp.QueryTransform: "TRANSFORM ... USING is not supported; run scripts in Spark before or after the query",
}
_SUPPORTED = (T.WHERE, T.GROUP_BY, T.HAVING, T.ORDER_BY, T.LIMIT)
_KNOWN_PARTS = {"expressions", "from_", "joins", "where", "distinct", "group", "having", "order", "limit"}
_OUTPUT_WINDOWS = ("tumble", "hop")


@dataclass(frozen=True, slots=True)
class Statement:
    """One SELECT as sqlglot's tree, and the tokens that it was read from."""

    text: SqlText
    tokens: Tokens
    tree: exp.Select

    @property
    def nodes_by_token(self) -> dict[int, list[exp.Expr]]:
        """Expressions by the number of their first token."""
        found: dict[int, list[exp.Expr]] = {}
        for node in self.tree.walk():
            if "tokens" in node.meta:
                found.setdefault(node.meta["tokens"][0], []).append(node)
        return found

    @property
    def emits_changes(self) -> Token | None:
        """Where EMIT CHANGES begins, if it is there."""
        emit: Token | None = self.tree.meta.get("emit")
        return emit

    def tokens_of(self, node: exp.Expr) -> Tokens:
        """The tokens of an expression."""
        begin, end = node.meta["tokens"]
        return self.tokens[begin:end]


def parse_statement(text: SqlText, tokens: list[Token]) -> Statement:
    """The one SELECT that the tokens must be."""
    while tokens and tokens[-1].kind is T.SEMICOLON:
        tokens.pop()
    _refuse_at_once(text, tokens)
    parser = _StatementParser(text, tokens)
    try:
        (tree,) = parser.parse([token.raw for token in tokens], text.sql)
    except ParseError as error:
        raise _explained(text, tokens, error) from None
    except RecursionError:
        at = parser.place
        message = f"an expression is nested too deeply; simplify it, {text.excerpt_of(tokens[at : at + 8])}"
        raise text.error(tokens[at], message) from None
    assert isinstance(tree, exp.Select), "it begins with SELECT"
    _refuse_within(text, tokens, tree)
    for name, value in tree.args.items():
        if value and name not in _KNOWN_PARTS:
            raise text.error(tokens[0], f"{name.strip('_').upper()} is not supported here; leave it out")
    if tree.args.get("from_") is None:
        raise text.error(tokens[-1].end + 1, "FROM is missing; write SELECT ... FROM stream [RANGE 1 MINUTE], ...")
    return Statement(text, tokens, tree)


def unaliased(node: exp.Expr) -> exp.Expr:
    """An item of a select list without its name."""
    return node.this if isinstance(node, exp.Alias | exp.Aliases) else node


def name_items(statement: Statement) -> None:
    """Give every output column a name that has none of its own."""
    items = statement.tree.expressions
    for number, node in enumerate(items):
        is_star = statement.tokens_of(node)[-1].kind is T.STAR if "tokens" in node.meta else True
        if not is_star and not isinstance(node, exp.Alias | exp.Aliases):
            items[number] = exp.alias_(node, f"_column{number}", copy=False)


def _refuse_at_once(text: SqlText, tokens: Tokens) -> None:
    """Refuse what is no single SELECT, and what sqlglot would read in a way of its own."""
    if not tokens:
        raise SqlError("the query is empty; write SELECT ... FROM stream [RANGE 1 MINUTE], ... WHERE ...")
    if tokens[0].kind is T.WITH:
        raise text.error(tokens[0], "WITH (a common table expression) is not supported; name the streams in FROM")
    if tokens[0].kind is not T.SELECT:
        raise text.error(tokens[0], f"only SELECT is supported, not {tokens[0].text!r}")
    for before, token in pairwise(tokens):
        if token.kind is T.SEMICOLON:
            raise text.error(token, "several statements are not supported; give one SELECT at a time")
        if before.kind is T.COMMA and token.kind in (T.COMMA, T.R_PAREN, T.R_BRACKET):
            raise text.unexpected(token)
        if before.kind is T.COMMA and token.kind is T.FROM:
            raise text.unexpected(before)
        if token.kind is T.PIPE_GT:
            raise text.error(token, "|> is not supported; write the clauses of SELECT in their order")
        if token.kind in (T.PLACEHOLDER, T.PARAMETER, T.COLON):
            message = f"parameters and paths with {token.text!r} are not supported; write the value itself"
            raise text.error(token, message)
    for place, token in enumerate(tokens):
        if token.kind is T.SELECT and token.depth and not _is_in_where(tokens, place):
            raise text.error(token, "subqueries are supported in EXISTS (...) and IN (...) of WHERE only; join in FROM")


def _refuse_within(text: SqlText, tokens: Tokens, tree: exp.Select) -> None:
    """Refuse what sqlglot understands within expressions and clauses, and we do not."""
    for node in tree.walk():
        message = _WITHIN.get(type(node))
        if isinstance(node, exp.Order | exp.Limit) and isinstance(node.parent, exp.Select):
            if node.args.get("expressions") and isinstance(node, exp.Limit):
                message = "LIMIT ... BY is not supported; leave out BY"
            else:
                continue
        if isinstance(node, exp.Order) and isinstance(node.parent, exp.Window | exp.WithinGroup):
            continue
        if isinstance(node, exp.Distinct) and node.args.get("on"):
            message = "DISTINCT ON is not supported; write GROUP BY with max(...) or min(...) of the other columns"
        if isinstance(node, exp.In) and not any(
            node.args.get(name) for name in ("expressions", "query", "unnest", "field")
        ):
            message = "IN lacks values; write some in the parentheses"
        if message:
            noted: exp.Expr | None = node
            while noted is not None and "tokens" not in noted.meta:
                noted = noted.parent
            at = tokens[noted.meta["tokens"][0] if noted is not None else 0]
            raise text.error(at, f"{message}, {text.excerpt_of([at])}")


def _is_in_where(tokens: Tokens, place: int) -> bool:
    """Whether a SELECT is that of EXISTS or IN."""
    return place > 1 and tokens[place - 1].kind is T.L_PAREN and tokens[place - 2].kind in (T.EXISTS, T.IN)


def _explained(text: SqlText, tokens: Tokens, error: ParseError) -> SqlError:
    """sqlglot's complaint in our words, with the place in the text."""
    details = error.errors[0]
    place = (details["line"], details["col"])
    token = next((token for token in tokens if (token.raw.line, token.raw.col) == place), tokens[-1])
    description = str(details["description"])
    if description.startswith("Required"):
        message = f"an operand is missing near {token.text!r}"
    elif expecting := re.match(r"Expect(?:ing|ed) (\S+)", description):
        message = f"{expecting[1]} is missing near {token.text!r}"
    else:
        message = f"unexpected {token.text!r}"
    return text.error(token, f"{message}, {text.excerpt_of([token])}")


def _refused(message: str) -> Callable[[Any], tuple[str, None]]:
    def refuse(parser: "_StatementParser") -> tuple[str, None]:
        raise parser.error(message)

    return refuse


class _StatementParser(SparkParser):
    """Spark's syntax without knowledge of any function: sqlglot's own would drop or convert some arguments."""

    FUNCTIONS = {}  # noqa: RUF012 - sqlglot's own way to configure a parser
    FUNCTION_PARSERS = {  # noqa: RUF012
        name: parser
        for name, parser in SparkParser.FUNCTION_PARSERS.items()
        if name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION", "OVERLAY")
    }
    QUERY_MODIFIER_PARSERS = {  # noqa: RUF012
        **{kind: SparkParser.QUERY_MODIFIER_PARSERS[kind] for kind in _SUPPORTED},
        **{kind: _refused(message) for kind, message in _REFUSED.items()},
    }

    def __init__(self, text: SqlText, tokens: Tokens) -> None:
        super().__init__(dialect=SPARK)
        self._text, self._own = text, tokens
        self._has_sources = False  # FROM is read: sqlglot asks for joins again at the end

    def error(self, message: str, at: Token | None = None) -> SqlError:
        """An error at a token or where the parser is."""
        token = at or self._token
        return self._text.error(token or len(self._text.sql.rstrip()), message)

    @property
    def place(self) -> int:
        """The number of the token that the parser has come to."""
        return min(self._index, len(self._own) - 1)

    @property
    def _token(self) -> Token | None:
        return self._own[self._index] if self._index < len(self._own) else None

    def _sees(self, *wanted: T) -> bool:
        return self._token is not None and self._token.kind in wanted

    def _take(self) -> Token:
        token = self._token
        assert token is not None, "seen before it is taken"
        self._advance()
        return token

    # -- expressions remember their tokens

    def _noted(self, begin: int, node: exp.Expr | None) -> exp.Expr | None:
        if node is not None:
            node.meta["tokens"] = (begin, self._index)
        return node

    def _parse_disjunction(self) -> exp.Expr | None:
        return self._noted(self._index, super()._parse_disjunction())

    def _parse_equality(self, parse_is: bool = True) -> exp.Expr | None:
        return self._noted(self._index, super()._parse_equality(parse_is))

    def _parse_comparison(self, this: exp.Expr | None = None) -> exp.Expr | None:
        if this is not None:
            return super()._parse_comparison(this)
        return self._noted(self._index, super()._parse_comparison())

    def _parse_bitwise(self) -> exp.Expr | None:
        return self._noted(self._index, super()._parse_bitwise())

    def _parse_function_call(self, *arguments: Any, **options: Any) -> exp.Expr | None:
        return self._noted(self._index, super()._parse_function_call(*arguments, **options))

    # -- clauses

    def _parse_hint(self) -> exp.Hint | None:
        if self._sees(T.HINT):
            raise self.error("hints are not supported; the planner chooses how to join, so remove the hint")
        return None

    def _parse_projections(self) -> tuple[list[exp.Expr], list[exp.Expr] | None]:
        if self._token is None or self._sees(T.FROM):
            raise self.error("the select list is empty; write SELECT * or name columns")
        return super()._parse_projections()

    def _parse_where(self, skip_where_token: bool = False) -> exp.Where | None:
        where = self._own[self._index - 1] if skip_where_token else self._take()
        condition = self._parse_disjunction()
        if condition is None:
            raise self.error("WHERE has no condition", where)
        return exp.Where(this=condition)

    def _parse_group(self, skip_group_by_token: bool = False) -> exp.Group:
        group = exp.Group(expressions=[])
        group.meta.update(begin=self._take(), window=None)
        while True:
            self._refuse_sets()
            if self._sees(T.ALL, T.DISTINCT):
                raise self.error(f"GROUP BY {self._own[self._index].text.upper()} is not supported; name the columns")
            if self._token and self._token.name.casefold() in ("session", "cumulate") and self._calls():
                message = f"{self._token.text.upper()} windows are not supported; use TUMBLE(5 MINUTES) or HOP"
                raise self.error(message)
            if self._token and self._token.name.casefold() in _OUTPUT_WINDOWS and self._calls():
                if group.meta["window"]:
                    raise self.error("GROUP BY has two output windows; keep one")
                group.meta["window"] = (self._take(), self._bracketed())
            else:
                node = self._parse_disjunction()
                if node is None:
                    raise self.error("GROUP BY lacks a column or expression")
                group.append("expressions", node)
            if not self._sees(T.COMMA):
                self._refuse_sets()
                return group
            self._advance()

    def _calls(self) -> bool:
        """Whether a parenthesis opens behind the token."""
        following = self._own[self._index + 1 : self._index + 2]
        return [token.kind for token in following] == [T.L_PAREN]

    def _refuse_sets(self) -> None:
        words = [token.text.upper() for token in self._own[self._index : self._index + 2]]
        if self._sees(T.CUBE, T.ROLLUP, T.GROUPING_SETS) or words in (["WITH", "ROLLUP"], ["WITH", "CUBE"]):
            word = words[0] if words[0] != "WITH" else " ".join(words)
            raise self.error(f"GROUP BY {word} is not supported; run one query for each set of columns")

    def _parse_having(self, skip_having_token: bool = False) -> exp.Having:
        word = self._take()
        condition = self._parse_disjunction()
        if condition is None:
            raise self.error("HAVING has no condition", word)
        having = exp.Having(this=condition)
        having.meta["begin"] = word
        return having

    def _parse_order(self, this: exp.Expr | None = None, skip_order_token: bool = False) -> exp.Expr | None:
        word = self._token
        order = super()._parse_order(this, skip_order_token)
        if isinstance(order, exp.Order):
            order.meta["begin"] = word
        return order

    def _parse_limit(
        self, this: exp.Expr | None = None, top: bool = False, skip_limit_token: bool = False
    ) -> exp.Expr | None:
        word = self._token
        limit = super()._parse_limit(this, top, skip_limit_token)
        if isinstance(limit, exp.Limit):
            if limit.args.get("offset"):
                raise self.error(_REFUSED[T.OFFSET], word)
            limit.meta["begin"] = word
        return limit

    def _parse_query_modifiers(self, this: Any) -> Any:
        this = super()._parse_query_modifiers(this)
        if self._sees_emit():
            this.meta["emit"] = self._take()
            self._advance()
        return this

    def _sees_emit(self) -> bool:
        words = [token.name.casefold() for token in self._own[self._index : self._index + 2]]
        return words == ["emit", "changes"]

    def _parse_lateral(self) -> exp.Lateral | None:
        self._refuse_here(T.LATERAL, T.PIVOT, T.UNPIVOT)
        return None

    def parse_set_operation(
        self, this: exp.Expr | None, consume_pipe: bool = False, intersect_only: bool = False
    ) -> exp.SetOperation | None:
        self._refuse_here(T.UNION, T.EXCEPT, T.INTERSECT)
        return None

    def _refuse_here(self, *refused: T) -> None:
        if self._token is not None and self._token.kind in refused:
            raise self.error(_REFUSED_ELSEWHERE[self._token.kind])

    # -- FROM

    def _parse_from(self, *arguments: Any, **options: Any) -> exp.From | None:
        if self._sees(T.FROM):  # of the statement, or of a subquery in its WHERE
            self._has_sources = False
        return super()._parse_from(*arguments, **options)

    def _parse_joins(self, alias_tokens: Collection[T] | None = None) -> Iterator[exp.Join]:
        """Streams after the first; in a loop, since sqlglot tries every nesting of joins without ON."""
        waiting: list[exp.Join] = []  # joins that can still have an ON or USING
        while not self._has_sources:
            if waiting and self._sees(T.ON, T.USING):
                self._read_condition(waiting.pop())
                continue
            begin = self._token
            if self._sees(T.COMMA):
                self._advance()
                join = exp.Join(this=self._parse_table())
            elif self._token is not None and self._token.kind in _JOIN_KINDS:
                words = []
                while self._token is not None and self._token.kind in _JOIN_KINDS and "JOIN" not in words:
                    words.append(self._take().kind.name)
                if "JOIN" not in words:
                    raise self._text.unexpected(self._token or self._own[-1])
                join = exp.Join(this=self._parse_table(), kind=" ".join(words[:-1]))
                if words[:-1] != ["CROSS"]:
                    for before in waiting:
                        before.meta["nested"] = True
                    waiting.append(join)
            else:
                self._has_sources = True
                return
            join.meta["begin"] = begin
            yield join

    def _read_condition(self, join: exp.Join) -> None:
        word = self._take()
        if word.kind is T.USING:
            join.set("using", self._parse_using_identifiers())
            return
        condition = self._parse_disjunction()
        if condition is None:
            raise self.error("ON has no condition", word)
        join.set("on", condition)

    def _parse_table(self, *_: Any, joins: bool = False, **__: Any) -> exp.Table:
        """A stream, its window and its alias, in either order."""
        if self._sees(T.L_PAREN):
            raise self.error("parentheses in FROM are not supported; list the streams one by one")
        self._refuse_here(T.VALUES, T.LATERAL)
        first = self._take_name("a stream name")
        parts = [first.name]
        while self._sees(T.DOT):
            self._advance()
            parts.append(self._take_name("a name after the dot").name)
        if self._sees(T.L_PAREN):
            raise self.error(f"the table function {first.text!r} is not supported; name a stream", first)
        stream = alias = ".".join(parts)
        windows = [self._bracketed()] if self._sees(T.L_BRACKET) else []
        self._refuse_here(T.TABLE_SAMPLE)
        if self._sees(T.ALIAS):
            self._advance()
            alias = self._take_name("a name after AS").name
        elif self._token and is_name(self._token, _NOT_AN_ALIAS) and not self._sees_emit():
            alias = self._take().name
        if self._sees(T.L_PAREN):
            raise self.error("a list of column names after an alias is not supported; rename in SELECT")
        if self._sees(T.L_BRACKET):
            if windows:
                raise self.error(f"{alias!r} has two windows; keep one")
            windows.append(self._bracketed())
        table = exp.Table(this=exp.to_identifier(stream), alias=exp.TableAlias(this=exp.to_identifier(alias)))
        table.meta.update(name=first, window=windows[0] if windows else None)
        if joins:
            for join in self._parse_joins():
                table.append("joins", join)
        return table

    def _take_name(self, what: str) -> Token:
        token = self._token
        if token is None or not is_name(token, _NOT_A_NAME):
            raise self.error(f"{what} is missing{f' before {token.text!r}' if token else ''}")
        return self._take()

    def _bracketed(self) -> Tokens:
        """The tokens from a bracket to the one that closes it."""
        begin, opening = self._index, self._take()
        while not (self._sees(CLOSING_BRACKET[opening.kind]) and self._own[self._index].depth == opening.depth):
            self._advance()
        self._advance()
        return self._own[begin : self._index]
