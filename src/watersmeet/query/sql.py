"""SQL text to `JoinQuery`: Spark's SELECT with a CQL window after every stream; the only importer of sqlglot.

The shape of the statement is read here, word by word; sqlglot makes the words and says which of them are columns.
An expression keeps the user's own text: comments go, column references are replaced, nothing else is touched, so that
no rewrite of a parser can change what Spark computes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import InputError, SqlError, UnknownColumn, UnknownStream, did_you_mean
from watersmeet.query.model import Column, Equality, Expression, JoinQuery, SelectItem, StreamRef
from watersmeet.query.windows import Range, Rows, Tumble, Unbounded, Window, parse_duration

_SPARK = Spark()


class _PlainParser(SparkParser):
    """Spark's syntax without knowledge of any function: sqlglot's own would drop or convert some arguments."""

    FUNCTIONS = {}  # noqa: RUF012 - sqlglot's own way to configure a parser
    FUNCTION_PARSERS = {  # noqa: RUF012
        name: parser
        for name, parser in SparkParser.FUNCTION_PARSERS.items()
        if name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION", "OVERLAY")
    }


_SIMPLE_WORD = re.compile(r"[A-Za-z_]\w*")
_OPEN_QUOTE = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|--[^\n]*|/\*.*?\*/|(?P<open>['"`]|/\*)|.""", re.DOTALL
)

_OPENERS = {T.L_PAREN: T.R_PAREN, T.L_BRACKET: T.R_BRACKET, T.L_BRACE: T.R_BRACE, T.CASE: T.END}


def _kinds(names: str) -> frozenset[T]:
    return frozenset(T[name] for name in names.split())


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JOIN_WORDS = _kinds("JOIN INNER CROSS LEFT RIGHT FULL OUTER SEMI ANTI NATURAL ASOF STRAIGHT_JOIN")
_NOT_A_NAME = _JOIN_WORDS | _kinds("ON USING COMMA DOT ALIAS STRING NUMBER") | {*_OPENERS, *_OPENERS.values()}
# With any of these outside parentheses beside it, `=` is not the last operation of a conjunct.
_LOOSE = _kinds(
    "EQ NEQ NULLSAFE_EQ LT LTE GT GTE AND OR NOT IS IN BETWEEN LIKE ILIKE RLIKE IRLIKE SIMILAR_TO ESCAPE DAMP XOR ARROW"
)

_CLAUSES = {
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
_CLAUSES_OR_NAMES = _kinds("LIMIT OFFSET FETCH QUALIFY WINDOW PIVOT UNPIVOT")
_OPERAND_ENDS = _kinds("VAR IDENTIFIER STRING NUMBER R_PAREN R_BRACKET END NULL TRUE FALSE")

_GENERATORS = _names(
    "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple variant_explode "
    "variant_explode_outer collations sql_keywords"
)
_NON_DETERMINISTIC = _names(
    "rand randn random randstr uniform uuid shuffle now current_timestamp current_date curdate current_time "
    "localtimestamp localtime current_user session_user monotonically_increasing_id spark_partition_id "
    "input_file_name input_file_block_start input_file_block_length"
)
_AGGREGATES = _names(
    "any some every mean std collect_list collect_set listagg string_agg percentile percentile_approx "
    "approx_percentile bit_and bit_or bit_xor count_min_sketch histogram_numeric hll_sketch_agg hll_union_agg "
    "try_sum try_avg product schema_of_json_agg schema_of_variant_agg row_number"
) | {name.lower() for name, function in exp.FUNCTION_BY_NAME.items() if issubclass(function, exp.AggFunc)}
_UNIT_FUNCTIONS = _names("timestampdiff timestampadd datediff date_diff dateadd date_add")
_UNITS = _names("year quarter month week day dayofyear hour minute second millisecond microsecond")


class _Word(NamedTuple):
    """A token with its text as written and its depth in brackets; a keyword after a dot is an ordinary name."""

    token: Token
    kind: T
    level: int
    text: str

    @property
    def start(self) -> int:
        return self.token.start

    @property
    def end(self) -> int:
        return self.token.end


_Words = Sequence[_Word]


@dataclass(frozen=True, slots=True)
class _Text:
    """The user's text, which knows where a word stands in it."""

    sql: str

    def error(self, at: _Word | int, message: str, kind: type[SqlError] = SqlError) -> SqlError:
        offset = at if isinstance(at, int) else at.start
        line = self.sql.count("\n", 0, offset) + 1
        column = offset - self.sql.rfind("\n", 0, offset)
        return kind(f"line {line}, column {column}: {message}")

    def excerpt(self, start: int, end: int) -> str:
        """One line around an offending word."""
        before, after = self.sql[max(0, start - 25) : start], self.sql[end + 1 : end + 16]
        shown = " ".join(f"{before}{self.sql[start : end + 1]}{after}".split())
        return f"in: {'... ' if start > 25 else ''}{shown}{' ...' if end + 16 < len(self.sql) else ''}"

    def unexpected(self, word: _Word) -> SqlError:
        return self.error(word, f"unexpected {word.text!r}, {self.excerpt(word.start, word.end)}")


@dataclass(frozen=True, slots=True)
class _Clauses:
    """The words of the three clauses of a statement; `where` is empty if there is none."""

    opening: _Word
    distinct: bool
    select: _Words
    sources: _Words
    where: _Words


@dataclass(frozen=True, slots=True)
class _Source:
    """One stream of FROM as written, before its name is looked up."""

    word: _Word
    stream: str
    alias: str
    window: Window | None


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that expressions can use: for each folded alias, its spelling and its columns by folded name."""

    text: _Text
    opening: _Word
    aliases: Mapping[str, tuple[str, Mapping[str, str]]]

    def resolve(self, parts: Sequence[exp.Identifier]) -> tuple[Column, int]:
        """The column that a dotted name means and how many of its parts name it; as in Spark, an alias goes first."""
        at = int(parts[0].meta["start"])
        names = [part.name for part in parts]
        head = names[0].casefold()
        qualified = self.aliases.get(head) if len(names) > 1 else None
        if qualified and (name := qualified[1].get(names[1].casefold())) is not None:
            return Column(qualified[0], name), 2
        owners = [Column(alias, names_of[head]) for alias, names_of in self.aliases.values() if head in names_of]
        match owners:
            case [column]:
                return column, 1
            case [] if qualified:
                alias, columns = qualified
                near = did_you_mean(names[1], columns.values())
                raise self.text.error(at, f"{alias!r} has no column {names[1]!r}; {near}", UnknownColumn)
            case [] if len(names) > 1:
                near = did_you_mean(names[0], (alias for alias, _ in self.aliases.values()))
                raise self.text.error(at, f"no stream in FROM goes by {names[0]!r}; {near}", UnknownColumn)
            case []:
                near = did_you_mean(
                    names[0], {name for _, columns in self.aliases.values() for name in columns.values()}
                )
                raise self.text.error(at, f"no stream in FROM has a column {names[0]!r}; {near}", UnknownColumn)
            case _:
                candidates = " or ".join(column.flat for column in owners)
                raise self.text.error(at, f"column {names[0]!r} is ambiguous; write {candidates}")


@dataclass(frozen=True, slots=True)
class _Reference:
    """A column at its place in the text."""

    start: int
    end: int
    column: Column


def parse_query(sql: str, columns: Mapping[str, Sequence[str]], *, allow_cross: bool = False) -> JoinQuery:
    """The query that `sql` asks over streams with the given column names.

    >>> query = parse_query(
    ...     "SELECT l.k, r.v FROM l [RANGE 1 MINUTE], r [ROWS 10] WHERE l.k = r.k", {"l": ["k"], "r": ["k", "v"]}
    ... )
    >>> [f"{source.stream} {source.window}" for source in query.sources]
    ['l RANGE 1 MINUTE', 'r ROWS 10']
    """
    text = _Text(sql)
    clauses = _cut(text, _words(text))
    written, conditions = _read_sources(text, clauses.sources)
    sources = _look_up(text, written, columns)
    scope = _scope(text, clauses.opening, sources, columns)
    select = _read_select(scope, clauses.select)
    if clauses.where:
        conditions.append(clauses.where)
    conjuncts = [conjunct for condition in conditions for conjunct in _conjuncts(condition)]
    # A predicate said twice is one predicate.
    predicates = dict.fromkeys(_read_conjunct(scope, conjunct) for conjunct in conjuncts)
    expressions = [predicate for predicate in predicates if isinstance(predicate, Expression)]
    query = JoinQuery(
        sources=sources,
        equalities=tuple(predicate for predicate in predicates if isinstance(predicate, Equality)),
        filters=tuple(expression for expression in expressions if len(expression.aliases) == 1),
        residuals=tuple(expression for expression in expressions if len(expression.aliases) != 1),
        select=select,
        distinct=clauses.distinct,
    )
    if not allow_cross:
        _check_connected(query)
    return query


def canonical_sql(query: JoinQuery) -> str:
    """The query in normal form, one clause or item a line, in which the layout of the user's text does not show."""
    items = [f"{_normal_form(item.expression)} AS {_quoted(item.name)}" for item in query.select]
    sources = [f"{_quoted(source.stream)} [{source.window}] AS {_quoted(source.alias)}" for source in query.sources]
    predicates = [f"{_normal_form(equality.left)} = {_normal_form(equality.right)}" for equality in query.equalities]
    predicates += [_normal_form(expression) for expression in (*query.filters, *query.residuals)]
    lines = ["SELECT DISTINCT" if query.distinct else "SELECT", _indented(items, ","), "FROM", _indented(sources, ",")]
    if predicates:
        lines += ["WHERE", _indented(predicates, " AND")]
    return "\n".join(lines)


@lru_cache(maxsize=4_096)  # a stream's filters are asked for with every batch
def to_duckdb(expression: Expression) -> str:
    """The same expression in DuckDB's dialect."""
    (statement,) = _SPARK.parse(f"SELECT {expression.sql}")
    assert isinstance(statement, exp.Select)
    return str(statement.expressions[0].transform(_whole_units).sql(dialect="duckdb"))


def with_values(expression: Expression, values: Mapping[Column, object]) -> Expression:
    """The expression with values in the place of columns.

    >>> b, c = Column("r", "b"), Column("s", "c")
    >>> with_values(Expression("`r.b` + `s.c`", (b, c)), {b: 5}).sql
    '5 + `s.c`'
    """
    if not values.keys() & set(expression.columns):
        return expression
    (statement,) = _SPARK.parse(f"SELECT {expression.sql}")
    assert isinstance(statement, exp.Select)
    by_name = {column.flat: value for column, value in values.items()}

    def put(node: exp.Expr) -> exp.Expr:
        return exp.convert(by_name[node.name]) if isinstance(node, exp.Column) and node.name in by_name else node

    sql = str(statement.expressions[0].transform(put).sql(dialect="spark"))
    return Expression(sql, tuple(column for column in expression.columns if column not in values), expression.type)


def constant_of(predicate: Expression) -> tuple[Column, int | str] | None:
    """The column and the value of a predicate `column = constant`, for whole numbers and strings.

    >>> constant_of(Expression("7 = `r.a`", (Column("r", "a"),)))
    (Column(alias='r', name='a'), 7)
    """
    if len(predicate.columns) != 1:
        return None
    (statement,) = _SPARK.parse(f"SELECT {predicate.sql}")
    assert isinstance(statement, exp.Select)
    node = statement.expressions[0].unnest()
    if not isinstance(node, exp.EQ):
        return None
    sides = sorted((node.this.unnest(), node.expression.unnest()), key=lambda side: not isinstance(side, exp.Column))
    literal = sides[1].this if isinstance(sides[1], exp.Neg) else sides[1]
    if not isinstance(sides[0], exp.Column) or not isinstance(literal, exp.Literal):
        return None
    if literal is not sides[1] and literal.is_string:
        return None
    value = sides[1].to_py()
    return (predicate.columns[0], value) if isinstance(value, int | str) else None


def _whole_units(node: exp.Expr) -> exp.Expr:
    """Spark's timestampdiff counts whole units passed; sqlglot's translation would count boundaries crossed."""
    if isinstance(node, exp.TimestampDiff):
        unit = exp.Literal.string(node.text("unit").lower())
        return exp.Anonymous(this="DATE_SUB", expressions=[unit, node.expression, node.this])
    return node


# ---- words and clauses


def _words(text: _Text) -> list[_Word]:
    try:
        tokens = _SPARK.tokenize(text.sql)
    except TokenError:
        opened = next((found for found in _OPEN_QUOTE.finditer(text.sql) if found["open"]), None)
        if opened is None:
            raise SqlError(f"the SQL cannot be read: {text.excerpt(0, 20)}") from None
        shown = text.excerpt(opened.start(), opened.start() + 8)
        raise text.error(opened.start(), f"{opened['open']} is opened and never closed, {shown}") from None
    words: list[_Word] = []
    openings: list[_Word] = []
    for token in tokens:
        kind = T.VAR if words and words[-1].kind is T.DOT and token.token_type is not T.STAR else token.token_type
        source = text.sql[token.start : token.end + 1]
        closes = kind in (T.R_PAREN, T.R_BRACKET, T.R_BRACE) or (
            kind is T.END and bool(openings) and openings[-1].kind is T.CASE
        )
        if closes and not (openings and _OPENERS[openings[-1].kind] is kind):
            raise text.error(token.start, f"{source!r} closes nothing, {text.excerpt(token.start, token.end)}")
        if closes:
            openings.pop()
        words.append(_Word(token, kind, len(openings), source))
        if kind in _OPENERS:
            openings.append(words[-1])
    if openings:
        opening = openings[-1]
        shown = text.excerpt(opening.start, opening.end)
        raise text.error(opening, f"{opening.text!r} is opened and never closed, {shown}")
    return words


def _cut(text: _Text, words: list[_Word]) -> _Clauses:
    while words and words[-1].kind is T.SEMICOLON:
        words.pop()
    if not words:
        raise SqlError("the query is empty; write SELECT ... FROM stream [RANGE 1 MINUTE], ... WHERE ...")
    opening = words[0]
    for word in words:
        if word.kind is T.SEMICOLON:
            raise text.error(word, "several statements are not supported; give one SELECT at a time")
    if opening.kind is T.WITH:
        raise text.error(opening, "WITH (a common table expression) is not supported; name the streams in FROM")
    if opening.kind is not T.SELECT:
        raise text.error(opening, f"only SELECT is supported, not {opening.text!r}")
    begin = next((i for i, word in enumerate(words) if word.kind is T.FROM and _opens_from(words, i)), None)
    if begin is None:
        raise text.error(words[-1].end + 1, "FROM is missing; write SELECT ... FROM stream [RANGE 1 MINUTE], ...")
    for i in range(begin, len(words)):
        word = words[i]
        named = word.kind in _CLAUSES_OR_NAMES and words[i - 1].kind not in _OPERAND_ENDS
        if word.level == 0 and word.kind in _CLAUSES and not named:
            raise text.error(word, _CLAUSES[word.kind])
    _refuse_inner_selects(text, words)
    middle = next((i for i in range(begin, len(words)) if words[i].kind is T.WHERE and words[i].level == 0), len(words))
    if middle + 1 == len(words):
        raise text.error(words[middle], "nothing follows WHERE")

    distinct = words[1].kind is T.DISTINCT
    select = words[1 + (words[1].kind in (T.DISTINCT, T.ALL)) : begin]
    if select and select[0].kind is T.HINT:
        raise text.error(select[0], "hints are not supported; the planner chooses how to join, so remove the hint")
    if not select:
        raise text.error(words[begin], "nothing is selected; write SELECT *, or name columns")
    return _Clauses(opening, distinct, select, words[begin + 1 : middle], words[middle + 1 :])


def _refuse_inner_selects(text: _Text, words: _Words) -> None:
    for word in words[1:]:
        if word.kind is T.SELECT and word.level == 0:
            raise text.error(word, "UNION and the like are not supported; run one query for each side")
        if word.kind is T.SELECT:
            raise text.error(word, "subqueries are not supported; join the streams in FROM and WHERE")


def _opens_from(words: _Words, i: int) -> bool:
    """Whether the FROM at `i` is the clause, and not the end of IS [NOT] DISTINCT FROM."""
    in_comparison = words[i - 1].kind is T.DISTINCT and i > 2 and words[i - 2].kind in (T.IS, T.NOT)
    return words[i].level == 0 and not in_comparison


# ---- FROM


class _Cursor:
    """A place in the words of FROM."""

    def __init__(self, text: _Text, words: _Words) -> None:
        self.text, self.words, self.at = text, words, 0

    @property
    def word(self) -> _Word | None:
        return self.words[self.at] if self.at < len(self.words) else None

    def sees(self, kind: T) -> bool:
        return self.word is not None and self.word.kind is kind

    def take(self) -> _Word:
        word = self.word
        if word is None:
            raise self.text.error(len(self.text.sql.rstrip()), "the FROM clause ends too early")
        self.at += 1
        return word

    def take_name(self, what: str) -> _Word:
        word = self.word
        if word is None or not _is_name(word):
            place = word or len(self.text.sql.rstrip())
            raise self.text.error(place, f"{what} is missing{f' before {word.text!r}' if word else ''}")
        return self.take()


def _is_name(word: _Word, reserved: Set[T] = _NOT_A_NAME) -> bool:
    return word.kind is T.IDENTIFIER or (word.kind not in reserved and bool(_SIMPLE_WORD.match(word.text)))


def _joins(words: _Words, i: int) -> bool:
    """Whether a join starts at `i`; `left(...)` is a function."""
    is_function = i + 1 < len(words) and words[i + 1].kind is T.L_PAREN and words[i].kind is not T.JOIN
    return words[i].kind in _JOIN_WORDS and not is_function


def _read_sources(text: _Text, words: _Words) -> tuple[list[_Source], list[_Words]]:
    """The streams of FROM and the conditions after ON."""
    cursor = _Cursor(text, words)
    sources = [_read_source(cursor)]
    conditions: list[_Words] = []
    on_allowed = 0
    while word := cursor.word:
        if word.kind is T.COMMA:
            cursor.take()
            sources.append(_read_source(cursor))
        elif _joins(words, cursor.at):
            on_allowed += _read_join(cursor)
            sources.append(_read_source(cursor))
        elif word.kind is T.ON and on_allowed:
            on_allowed -= 1
            conditions.append(_read_on(cursor))
        elif word.kind is T.USING:
            raise text.error(word, "USING is not supported; write ON with an equality, as in ON a.k = b.k")
        else:
            raise text.unexpected(word)
    return sources, conditions


def _read_join(cursor: _Cursor) -> bool:
    """Pass over the words of a join; whether it can have an ON."""
    first = cursor.word
    assert first is not None
    kinds: list[T] = []
    while cursor.word and cursor.word.kind in _JOIN_WORDS and T.JOIN not in kinds:
        kinds.append(cursor.take().kind)
    text = cursor.text
    if T.JOIN not in kinds:
        raise cursor.text.unexpected(cursor.word or first)
    match [kind for kind in kinds if kind is not T.JOIN]:
        case [] | [T.INNER]:
            return True
        case [T.CROSS]:
            return False
        case [T.NATURAL, *_]:
            raise text.error(first, "NATURAL JOIN is not supported; write JOIN ... ON with an equality")
        case [*_, T.SEMI]:
            raise text.error(first, "a semi join is not supported; write an inner join with SELECT DISTINCT")
        case [*_, T.ANTI]:
            raise text.error(first, "an anti join is not supported; only inner joins are")
        case [T.LEFT | T.RIGHT | T.FULL as side, *_]:
            raise text.error(first, f"a {side.name} OUTER JOIN is not supported; only inner joins are")
        case _:
            written = " ".join(kind.name for kind in kinds)
            raise text.error(first, f"{written} is not supported; only [INNER] JOIN and CROSS JOIN are")


def _read_on(cursor: _Cursor) -> _Words:
    on = cursor.take()
    begin = cursor.at
    while (word := cursor.word) and not (
        word.level == on.level and (word.kind in (T.COMMA, T.ON, T.USING, T.WHERE) or _joins(cursor.words, cursor.at))
    ):
        cursor.take()
    if begin == cursor.at:
        raise cursor.text.error(on, "nothing follows ON")
    return cursor.words[begin : cursor.at]


def _read_source(cursor: _Cursor) -> _Source:
    text = cursor.text
    if cursor.sees(T.L_PAREN):
        raise text.error(cursor.take(), "parentheses in FROM are not supported; list the streams one by one")
    if cursor.sees(T.VALUES):
        raise text.error(cursor.take(), "VALUES is not supported; name a stream")
    first = cursor.take_name("a stream name")
    parts = [first.token.text]
    while cursor.sees(T.DOT):
        cursor.take()
        parts.append(cursor.take_name("a name after the dot").token.text)
    if cursor.sees(T.L_PAREN):
        raise text.error(first, f"the table function {first.text!r} is not supported; name a stream")
    window = _read_window(cursor) if cursor.sees(T.L_BRACKET) else None
    alias = ".".join(parts)
    if cursor.sees(T.ALIAS):
        cursor.take()
        alias = cursor.take_name("a name after AS").token.text
    elif cursor.word and _is_name(cursor.word):
        alias = cursor.take().token.text
    if cursor.sees(T.L_PAREN):
        raise text.error(cursor.take(), "a list of column names after an alias is not supported; rename in SELECT")
    if cursor.sees(T.L_BRACKET):
        if window:
            raise text.error(cursor.take(), f"{alias!r} has two windows; keep one")
        window = _read_window(cursor)
    return _Source(first, ".".join(parts), alias, window)


def _read_window(cursor: _Cursor) -> Window:
    """`[RANGE duration]`, `[TUMBLE duration]`, `[ROWS count]` or `[UNBOUNDED]`."""
    text, opening = cursor.text, cursor.take()
    inside: list[_Word] = []
    while not cursor.sees(T.R_BRACKET):
        inside.append(cursor.take())
    closing = cursor.take()
    kind = inside[0].text.casefold() if inside else ""
    amount = text.sql[inside[0].end + 1 : closing.start].strip() if inside else ""
    match kind:
        case "range" | "tumble":
            window_us = _duration(text, inside[0], amount)
            return Range(window_us) if kind == "range" else Tumble(window_us)
        case "rows":
            if not re.fullmatch(r"[+-]?\s*\d+", amount):
                raise text.error(inside[0], f"ROWS takes a whole number of rows, not {amount!r}; write [ROWS 100]")
            if (count := int(amount.replace(" ", ""))) < 1:
                raise text.error(inside[0], f"ROWS {count} holds nothing; a window has at least one row")
            return Rows(count)
        case "unbounded" if not amount:
            return Unbounded()
        case _:
            written = text.sql[opening.start : closing.end + 1]
            known = "[RANGE 1 MINUTE], [ROWS 100], [TUMBLE 5 SECONDS] or [UNBOUNDED]"
            raise text.error(opening, f"{written!r} is not a window; write {known}")


def _duration(text: _Text, kind: _Word, amount: str) -> int:
    """Microseconds of a duration with or without INTERVAL and quotes."""
    plain = re.sub(r"^interval\b", "", re.sub(r"['\"]", " ", amount).strip(), flags=re.IGNORECASE).strip()
    name = kind.text.upper()
    try:
        window_us = parse_duration(plain)
    except InputError as error:
        raise text.error(kind, f"{name} window: {error}") from None
    if window_us <= 0:
        raise text.error(kind, f"{name} {plain!r} holds nothing; a window is longer than zero")
    return window_us


def _look_up(text: _Text, written: Sequence[_Source], columns: Mapping[str, Sequence[str]]) -> tuple[StreamRef, ...]:
    """The streams under their declared names, each with a window and an alias of its own."""
    declared = {stream.casefold(): stream for stream in columns}
    seen: set[str] = set()
    sources = []
    for source in written:
        stream = source.stream if source.stream in columns else declared.get(source.stream.casefold())
        if stream is None:
            near = did_you_mean(source.stream, columns)
            raise text.error(source.word, f"unknown stream {source.stream!r}; {near}", UnknownStream)
        if source.alias.casefold() in seen:
            cure = f"give one another name with AS, as in {source.stream} [...] AS {source.alias}_2"
            raise text.error(source.word, f"two streams in FROM go by {source.alias!r}; {cure}")
        if "." in source.alias or "`" in source.alias:
            raise text.error(source.word, f"{source.alias!r} cannot name a stream here; add AS with a plain word")
        if source.window is None:
            cure = f"add one, e.g. {source.alias} [RANGE 1 MINUTE] or {source.alias} [UNBOUNDED]"
            raise text.error(source.word, f"stream {source.alias!r} has no window; {cure}")
        seen.add(source.alias.casefold())
        sources.append(StreamRef(source.alias, stream, source.window))
    if len(sources) == 1:
        raise SqlError("a join needs at least two streams; filter a single one in Spark itself")
    return tuple(sources)


def _scope(text: _Text, opening: _Word, sources: Sequence[StreamRef], columns: Mapping[str, Sequence[str]]) -> _Scope:
    aliases = {}
    for source in sources:
        names = {name.casefold(): name for name in columns[source.stream]}
        if len(names) != len(columns[source.stream]):
            raise SqlError(f"stream {source.stream!r} has columns that differ only in case; rename one in its source")
        aliases[source.alias.casefold()] = (source.alias, names)
    return _Scope(text, opening, aliases)


# ---- expressions


def _parse_expressions(scope: _Scope, words: _Words) -> list[exp.Expr]:
    """What sqlglot makes of a list of expressions; the positions it gives are those of the whole text."""
    text = scope.text
    for before, word in pairwise(words):
        if before.kind is T.COMMA and word.kind in (T.COMMA, T.R_PAREN, T.R_BRACKET):
            raise text.unexpected(word)
    for word in words:
        if word.kind in (T.PLACEHOLDER, T.PARAMETER, T.COLON):
            raise text.error(word, f"parameters and paths with {word.text!r} are not supported; write the value itself")
    try:
        statements = _PlainParser(dialect=_SPARK).parse(
            [scope.opening.token, *(word.token for word in words)], text.sql
        )
    except ParseError as error:
        raise _explained(text, words, error) from None
    (statement,) = statements
    if not isinstance(statement, exp.Select):
        raise text.unexpected(words[-1])
    extra = [name for name, value in statement.args.items() if value and name != "expressions"]
    if extra:
        raise text.error(words[0], f"{extra[0].strip('_').upper()} is not supported here, {_shown(text, words)}")
    return list(statement.expressions)


def _explained(text: _Text, words: _Words, error: ParseError) -> SqlError:
    details = error.errors[0]
    place = (details["line"], details["col"])
    word = next((word for word in words if (word.token.line, word.token.col) == place), words[-1])
    description = str(details["description"])
    if description.startswith("Required"):
        message = f"an operand is missing near {word.text!r}"
    elif expecting := re.match(r"Expect(?:ing|ed) (\S+)", description):
        message = f"{expecting[1]} is missing near {word.text!r}"
    else:
        message = f"unexpected {word.text!r}"
    return text.error(word, f"{message}, {text.excerpt(word.start, word.end)}")


def _shown(text: _Text, words: _Words) -> str:
    return text.excerpt(words[0].start, words[-1].end)


def _references(scope: _Scope, words: _Words, nodes: Iterable[exp.Expr]) -> list[_Reference]:
    """Every column reference in `nodes`, resolved."""
    references: dict[int, _Reference] = {}
    for node in nodes:
        for column in node.find_all(exp.Column):
            if _is_unit(column):
                continue
            parts = _dotted_name(column)
            found, used = scope.resolve(parts)
            start = int(parts[0].meta["start"])
            references[start] = _Reference(start, int(parts[used - 1].meta["end"]), found)
    _check_all_found(scope, words, references, nodes)
    return list(references.values())


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
    scope: _Scope, words: _Words, references: Mapping[int, _Reference], nodes: Iterable[exp.Expr]
) -> None:
    """Refuse `alias.` that sqlglot has not seen as a column: left as it is, it would mean nothing further down."""
    variables = {
        name.name.casefold() for node in nodes for bound in node.find_all(exp.Lambda) for name in bound.expressions
    }
    for i, word in enumerate(words[:-1]):
        folded = word.token.text.casefold()
        starts_name = words[i + 1].kind is T.DOT and (i == 0 or words[i - 1].kind is not T.DOT)
        if starts_name and folded in scope.aliases and word.start not in references and folded not in variables:
            raise scope.text.error(word, f"this use of {word.text!r} is not understood, {_shown(scope.text, words)}")


def _refuse_functions(scope: _Scope, words: _Words, nodes: Iterable[exp.Expr], *, is_predicate: bool) -> None:
    """Refuse what cannot be answered row by row, by name where sqlglot has no class for it."""
    text = scope.text
    if any(node.find(exp.Window, exp.WithinGroup) for node in nodes):
        raise text.error(words[0], f"window functions are not supported, {_shown(text, words)}")
    for i, word in enumerate(words):
        name = word.token.text.casefold()
        after_dot = i > 0 and words[i - 1].kind is T.DOT
        is_call = i + 1 < len(words) and words[i + 1].kind is T.L_PAREN
        if after_dot or not (is_call or word.kind.name.startswith(("CURRENT_", "LOCALTIME"))):
            continue
        quantifies = name in ("any", "some") and i > 0 and words[i - 1].kind in (T.LIKE, T.ILIKE)
        is_clock = name == "unix_timestamp" and words[i + 2].kind is T.R_PAREN
        if name in _GENERATORS:
            raise text.error(word, f"{name} makes several rows of one; use it in Spark before the stream is joined")
        if name in ("window", "session_window"):
            raise text.error(word, f"{name}() is not supported; write the window after the stream, in brackets")
        if name in _AGGREGATES and not quantifies:
            raise text.error(word, f"the aggregate {name} is not supported yet; aggregate the answers downstream")
        if is_predicate and (name in _NON_DETERMINISTIC or is_clock):
            raise text.error(word, f"{name} gives another value at every call and so cannot be in WHERE or ON")
    for node in nodes:
        if (star := node.find(exp.Star)) and star is not node and not isinstance(star.parent, exp.Column):
            raise text.error(
                words[0], f"* inside an expression is not supported; name the columns, {_shown(text, words)}"
            )


def _expression(words: _Words, references: Iterable[_Reference]) -> Expression:
    """The words as written, without comments, in which every column goes by its flat name."""
    at = {ref.start: ref for ref in references if words[0].start <= ref.start <= words[-1].end}
    pieces: list[str] = []
    end = words[0].start - 1
    for i, word in enumerate(words):
        # Literals such as 10L are several tokens in one place, and a reference covers several words.
        if word.start <= end:
            continue
        if word.start > end + 1:
            pieces.append(" ")
        if reference := at.get(word.start):
            pieces.append(_quoted(reference.column.flat) + _field_name(words, i, reference))
            end = reference.end
        else:
            pieces.append(word.text)
            end = word.end
    return Expression("".join(pieces), tuple(sorted({reference.column for reference in at.values()})))


def _field_name(words: _Words, i: int, reference: _Reference) -> str:
    """` AS name` for a column that stands alone in struct(...), where Spark makes a field name of the column's."""
    after = next((word for word in words[i:] if word.start > reference.end), None)
    opening = next((j for j in range(i - 1, 0, -1) if words[j].level < words[i].level), None)
    is_argument = after is not None and after.kind in (T.COMMA, T.R_PAREN) and words[i - 1].kind in (T.COMMA, T.L_PAREN)
    if opening and is_argument and words[opening - 1].token.text.casefold() == "struct":
        return f" AS {_quoted(reference.column.name)}"
    return ""


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# ---- SELECT


@dataclass(frozen=True, slots=True)
class _Output:
    """An output column; one that came out of `*` gives way if its name clashes."""

    word: _Word
    name: str
    expression: Expression
    starred: Column | None = None


def _read_select(scope: _Scope, words: _Words) -> tuple[SelectItem, ...]:
    parts = _split(words, T.COMMA)
    for edge in (words[0], words[-1]):
        if edge.kind is T.COMMA:
            raise scope.text.unexpected(edge)
    nodes = _parse_expressions(scope, words)
    if len(nodes) != len(parts):
        raise scope.text.unexpected(words[-1])
    outputs = [output for part, node in zip(parts, nodes, strict=True) for output in _read_item(scope, part, node)]
    uses = Counter(output.name.casefold() for output in outputs)
    named = [
        (
            f"{output.starred.alias}_{output.starred.name}"
            if output.starred and uses[output.name.casefold()] > 1
            else output.name,
            output,
        )
        for output in outputs
    ]
    first: dict[str, str] = {}
    for name, output in named:
        if (other := first.get(name.casefold())) is not None:
            raise scope.text.error(output.word, f"two output columns are called {other!r}; name one of them with AS")
        first[name.casefold()] = name
    return tuple(SelectItem(name, output.expression) for name, output in named)


def _read_item(scope: _Scope, words: _Words, node: exp.Expr) -> list[_Output]:
    text = scope.text
    if words[-1].kind is T.STAR and (len(words) == 1 or words[-2].kind is T.DOT):
        return _expand(scope, words)
    if isinstance(node, exp.Star):
        raise text.error(words[0], "* with EXCEPT or the like is not supported; name the columns")
    name = None
    if isinstance(node, exp.Aliases):
        raise text.error(words[0], "several names for one expression are not supported; give it one with AS")
    if isinstance(node, exp.Alias):
        alias = node.args["alias"]
        start = alias.meta.get("start", words[-1].start)
        name = alias.name
        words = [word for word in words if word.start < start]
        words = words[:-1] if words[-1].kind is T.ALIAS else words
        node = node.this
    _refuse_functions(scope, words, [node], is_predicate=False)
    references = _references(scope, words, [node])
    expression = _expression(words, references)
    return [_Output(words[0], name or _implied_name(text, words, references), expression)]


def _implied_name(text: _Text, words: _Words, references: Sequence[_Reference]) -> str:
    """The name of an expression without AS: a column's own, a field's, or the expression itself if it is one word."""
    match references:
        case [reference] if (reference.start, reference.end) == (words[0].start, words[-1].end):
            return reference.column.name
        case [reference] if reference.start == words[0].start and _is_field_path(words, reference):
            return words[-1].token.text
        case [] if len(words) == 1 and _SIMPLE_WORD.fullmatch(words[0].text):
            return words[0].text
        case _:
            written = " ".join(text.sql[words[0].start : words[-1].end + 1].split())
            raise text.error(words[0], f"the expression {written!r} needs a name; add AS and one")


def _is_field_path(words: _Words, reference: _Reference) -> bool:
    rest = [word for word in words if word.start > reference.end]
    return all((word.kind is T.DOT) == (i % 2 == 0) and word.level == words[0].level for i, word in enumerate(rest))


def _expand(scope: _Scope, words: _Words) -> list[_Output]:
    match words:
        case [_]:
            wanted = list(scope.aliases.values())
        case [qualifier, _, _] if qualifier.token.text.casefold() in scope.aliases:
            wanted = [scope.aliases[qualifier.token.text.casefold()]]
        case [qualifier, _, _]:
            near = did_you_mean(qualifier.token.text, (alias for alias, _ in scope.aliases.values()))
            message = f"no stream in FROM goes by {qualifier.token.text!r}; {near}"
            raise scope.text.error(qualifier, message, UnknownColumn)
        case _:
            raise scope.text.error(
                words[0], f"* of a struct is not supported; name the fields, {_shown(scope.text, words)}"
            )
    columns = [Column(alias, name) for alias, names in wanted for name in names.values()]
    return [_Output(words[0], col.name, Expression(_quoted(col.flat), (col,)), col) for col in columns]


# ---- WHERE and ON


def _split(words: _Words, separator: T) -> list[_Words]:
    """The stretches between the separators outside brackets."""
    base = min((word.level for word in words), default=0)
    cuts = [i for i, word in enumerate(words) if word.level == base and word.kind is separator]
    return [words[begin:end] for begin, end in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(words)], strict=True)]


def _unwrapped(words: _Words) -> _Words:
    """The words without parentheses around the whole of them."""
    while (
        len(words) > 2
        and words[0].kind is T.L_PAREN
        and words[-1].kind is T.R_PAREN
        and all(word.level > words[0].level for word in words[1:-1])
    ):
        words = words[1:-1]
    return words


def _outside_brackets(words: _Words) -> list[tuple[int, _Word]]:
    base = min(word.level for word in words)
    return [(i, word) for i, word in enumerate(words) if word.level == base]


def _conjuncts(words: _Words) -> list[_Words]:
    """The parts of a condition between its outermost ANDs, other than the AND of a BETWEEN."""
    words = _unwrapped(words)
    outside = _outside_brackets(words)
    if any(word.kind is T.OR for _, word in outside):
        return [words]
    cuts: list[int] = []
    betweens = 0
    for i, word in outside:
        if word.kind is T.BETWEEN:
            betweens += 1
        elif word.kind is T.AND and betweens:
            betweens -= 1
        elif word.kind is T.AND:
            cuts.append(i)
    if not cuts:
        return [words]
    ends = [*cuts, len(words)]
    parts = [words[begin:end] for begin, end in zip([0, *(cut + 1 for cut in cuts)], ends, strict=True)]
    if not all(parts):
        # An AND without a side: left whole, so that the parser says where.
        return [words]
    return [conjunct for part in parts for conjunct in _conjuncts(part)]


def _read_conjunct(scope: _Scope, words: _Words) -> Equality | Expression:
    nodes = _parse_expressions(scope, words)
    if len(nodes) != 1 or isinstance(nodes[0], exp.Alias | exp.Aliases):
        culprit = next((word for _, word in _outside_brackets(words) if word.kind is T.COMMA), words[-1])
        raise scope.text.unexpected(culprit)
    _refuse_functions(scope, words, nodes, is_predicate=True)
    references = _references(scope, words, nodes)
    loose = [(i, word) for i, word in _outside_brackets(words) if word.kind in _LOOSE]
    if [word.kind for _, word in loose] == [T.EQ]:
        equals = loose[0][0]
        left, right = (_expression(_bare(side), references) for side in (words[:equals], words[equals + 1 :]))
        if len(left.aliases) == len(right.aliases) == 1 and left.aliases != right.aliases:
            return Equality(left, right)
    expression = _expression(words, references)
    # Whoever strings predicates together with AND need not look inside them.
    if any(word.kind is T.OR for _, word in loose):
        return Expression(f"({expression.sql})", expression.columns)
    return expression


def _bare(side: _Words) -> _Words:
    """A side of an equality without needless parentheses."""
    inner = _unwrapped(side)
    return side if any(word.kind in _LOOSE for _, word in _outside_brackets(inner)) else inner


def _check_connected(query: JoinQuery) -> None:
    """Refuse a product of streams that nobody asked for."""
    group = {alias: {alias} for alias in query.aliases}
    for equality in query.equalities:
        merged = group[equality.left.aliases[0]] | group[equality.right.aliases[0]]
        group.update(dict.fromkeys(merged, merged))
    groups = list(dict.fromkeys(", ".join(a for a in query.aliases if a in group[alias]) for alias in query.aliases))
    if len(groups) > 1:
        shown = " and ".join(f"({names})" for names in groups)
        cure = "add an equality between them, or set `allow_cross: true` to ask for every combination"
        raise SqlError(f"no equality joins the streams {shown}; {cure}")


# ---- normal form


def _indented(lines: Sequence[str], separator: str) -> str:
    return f"{separator}\n".join(f"  {line}" for line in lines)


_NORMAL_TEXT = {T.EQ: "=", T.NEQ: "<>", T.NOT: "NOT"}
_VERBATIM = _kinds("VAR IDENTIFIER NUMBER")
_NO_SPACE_AFTER = _kinds("L_PAREN L_BRACKET DOT")
_NO_SPACE_BEFORE = _kinds("R_PAREN R_BRACKET DOT COMMA L_BRACKET")
_NO_FUNCTIONS = _LOOSE | _kinds("CASE WHEN THEN ELSE ANY SOME ALL DIV INTERVAL FROM DISTINCT ALIAS")


def _normal_form(expression: Expression) -> str:
    """An expression with keywords in capitals and spaces where they always are; names and literals stay."""
    text = _Text(expression.sql)
    pieces: list[str] = []
    previous: _Word | None = None
    for word in _words(text):
        if previous and word.start <= previous.end:
            continue
        called = word.kind is T.L_PAREN and previous is not None and _is_name(previous, _NO_FUNCTIONS)
        if previous and previous.kind not in _NO_SPACE_AFTER and word.kind not in _NO_SPACE_BEFORE and not called:
            pieces.append(" ")
        keyword = word.kind not in _VERBATIM and _SIMPLE_WORD.fullmatch(word.text)
        pieces.append(_NORMAL_TEXT.get(word.kind, word.text.upper() if keyword else word.text))
        previous = word
    return "".join(pieces)
