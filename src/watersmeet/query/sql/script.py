"""Statements of several SELECTs: UNION, WITH, and subqueries in FROM.

Each SELECT is read by itself, from the user's own text with everything else blanked out, so that errors keep their
place. A subquery and a common table expression are derived streams; the branches of a UNION ALL have one target, and
UNION is SELECT DISTINCT over a derived stream.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import SqlError
from watersmeet.query.model import JoinQuery, Output, SelectItem, Target, feeding
from watersmeet.query.sql.parse import parse_query
from watersmeet.query.sql.tokens import (
    SIMPLE_NAME,
    SqlText,
    Token,
    Tokens,
    kinds,
    outside_brackets,
    tokenize,
    unwrapped,
)
from watersmeet.query.windows import Changes, Rows, Window

MAX_SELECTS = 64
_LONGEST_STEM = 56  # of names that are made up here
_LETTERS = re.compile(r"\S")
_CLAUSES = kinds("SELECT FROM WHERE GROUP_BY HAVING ORDER_BY LIMIT")
_BEFORE_SOURCE = kinds("FROM COMMA JOIN")
_NOT_AN_ALIAS = _CLAUSES | kinds("ON USING JOIN INNER LEFT RIGHT FULL CROSS COMMA R_PAREN SEMICOLON UNION")

Scope = Mapping[str, str]  # by name in lower case, the derived stream of a common table expression


def parse_script(
    name: str,
    sql: str,
    columns: Mapping[str, Sequence[str]],
    *,
    allow_cross: bool = False,
    event_times: Mapping[str, str] | None = None,
    derived: Collection[str] = (),
    into: Target | None = None,
    tables: Mapping[str, Window] | None = None,
) -> tuple[Output, ...]:
    """What a statement asks for: derived streams in the order in which they depend on each other, itself the last.

    `derived` are streams that are derived themselves; `into` is what gets the answers, if not the sink of the query.

    >>> union = "SELECT k FROM (SELECT k FROM a WHERE k > 1 UNION ALL SELECT k FROM b) u"
    >>> outputs = parse_script("q", union, {"a": ["k"], "b": ["k"]})
    >>> [(output.target.name, [branch for branch, _ in output.branches]) for output in outputs]
    [('q_u', ['q_u', 'q_u_2']), ('q', ['q'])]
    """
    return _parsed_script(
        sql,
        into or Target(name),
        name,
        tuple((stream, tuple(names)) for stream, names in columns.items()),
        allow_cross,
        tuple((event_times or {}).items()),
        frozenset(derived),
        tuple((tables or {}).items()),
    )


@lru_cache(maxsize=512)  # whoever compares topologies, plans or explains asks for the statements of all queries again
def _parsed_script(
    sql: str,
    target: Target,
    name: str,
    columns: tuple[tuple[str, tuple[str, ...]], ...],
    allow_cross: bool,
    event_times: tuple[tuple[str, str], ...],
    derived: frozenset[str],
    tables: tuple[tuple[str, Window], ...],
) -> tuple[Output, ...]:
    text = SqlText(sql)
    tokens = tokenize(text)
    while tokens and tokens[-1].kind is T.SEMICOLON:
        tokens.pop()
    if not tokens:
        parse_query(sql, dict(columns))  # which says what is missing
    own = {name.casefold()}
    reader = _Reader(text, dict(columns), dict(event_times), set(derived), allow_cross, own, dict(tables))
    reader.read(tokens, {}, target)
    *streams, last = reader.outputs
    return (*_read_by(streams, last), last)


def streams_named(sql: str) -> frozenset[str]:
    """The names, in lower case, that stand where streams do, in any SELECT of a statement; some may mean a column.

    >>> sorted(streams_named("WITH v AS (SELECT k FROM a) SELECT k FROM V [RANGE 1 SECOND], b [ROWS 3]"))
    ['a', 'b', 'v']
    """
    tokens = tokenize(SqlText(sql))
    clauses: dict[int, T] = {}
    found = set()
    for before, token in pairwise(tokens):
        if before.kind in _CLAUSES:
            clauses[before.depth] = before.kind
        in_from = clauses.get(before.depth) is T.FROM and before.depth == token.depth
        if before.kind in (T.FROM, T.JOIN) or (before.kind is T.COMMA and in_from):
            found.add(token.name.casefold())
    return frozenset(found)


def _read_by(streams: Sequence[Output], last: Output) -> Iterator[Output]:
    """The streams that are read, directly or not, by the last output."""
    needed = set(last.streams)
    kept = []
    for output in reversed(streams):
        if output.target.name in needed:
            needed |= output.streams
            kept.append(output)
    yield from reversed(kept)


@dataclass
class _Reader:
    """Reads a statement, innermost SELECTs first."""

    text: SqlText
    columns: dict[str, Sequence[str]]  # of streams, derived ones added as they are read
    event_times: Mapping[str, str]
    derived: set[str]
    allow_cross: bool
    taken: set[str]  # names of outputs and branches so far, in lower case
    tables: Mapping[str, Window]  # those that are tables and no streams
    outputs: list[Output] = field(default_factory=list)
    selects: int = 0

    def read(self, tokens: Tokens, scope: Scope, target: Target) -> None:
        """Read what has a target of its own."""
        self._unite(self._branches(tokens, scope, target, is_first=True), target)

    def _unite(self, queries: Sequence[JoinQuery], target: Target) -> None:
        """Let the answers of queries be those of a target."""
        first = queries[0].output
        for query in queries[1:]:
            if len(query.output) != len(first):
                counts = f"{len(first)} and {len(query.output)}"
                raise SqlError(f"the SELECTs of a UNION have {counts} columns; give them equally many")
        queries = [_renamed(query, [item.name for item in first]) for query in queries]
        if target.is_stream:
            queries = [feeding(query, target.name) for query in queries]
        elif len(queries) > 1:
            queries = [replace(query, into=target) for query in queries]
        names = [target.name, *(self._fresh(target.name, str(n)) for n in range(2, len(queries) + 1))]
        output = Output(target, tuple(zip(names, queries, strict=True)))
        if target.is_stream:
            self.columns[target.name] = output.columns
            self.derived.add(target.name)
        self.outputs.append(output)

    def _branches(self, tokens: Tokens, scope: Scope, target: Target, *, is_first: bool) -> list[JoinQuery]:
        tokens = unwrapped(tokens)
        if tokens[0].kind is T.WITH:
            tokens, scope = self._with(tokens, scope, target)
        parts = list(self._union(tokens))
        pieces = [piece for piece, _ in parts]
        if len(pieces) == 1 and unwrapped(pieces[0]) is pieces[0]:
            return [self._select(pieces[0], scope, target, is_named=is_first)]
        if distinct := [number for number, (_, all_rows) in enumerate(parts) if not all_rows]:
            rest = pieces[distinct[-1] + 1 :]
            found = [self._once(pieces[: distinct[-1] + 1], scope, target, is_first=is_first)]
        else:
            rest, found = pieces, []
        for piece in rest:
            found += self._branches(piece, scope, target, is_first=is_first and not found)
        return found

    def _once(self, pieces: Sequence[Tokens], scope: Scope, target: Target, *, is_first: bool) -> JoinQuery:
        """The rows of some SELECTs, each once: what all of them answer is a derived stream."""
        stream = Target(self._fresh(target.name, "union"), is_stream=True)
        queries: list[JoinQuery] = []
        for piece in pieces:
            queries += self._branches(piece, scope, stream, is_first=is_first and not queries)
        self._unite(queries, stream)
        query = parse_query("SELECT DISTINCT * FROM united", {"united": self.columns[stream.name]})
        return replace(query, sources=tuple(replace(source, stream=stream.name) for source in query.sources))

    def _union(self, tokens: Tokens) -> Iterator[tuple[Tokens, bool]]:
        """The parts between UNIONs, and whether all rows stay that have come together with them."""
        begin, all_rows = 0, True
        unions = [i for i, token in outside_brackets(tokens) if token.kind is T.UNION]
        for place in unions:
            after = tokens[place + 1].kind if place + 1 < len(tokens) else None
            following = place + (2 if after in (T.ALL, T.DISTINCT) else 1)
            if [token.name.casefold() for token in tokens[following : following + 2]] == ["by", "name"]:
                cure = "list the columns in the same order"
                raise self.text.error(tokens[following], f"UNION BY NAME is not supported; {cure}")
            for side in (tokens[begin:place], tokens[following:]):
                if not side:
                    raise self.text.error(tokens[place], "UNION lacks a SELECT on one side")
            yield tokens[begin:place], all_rows
            begin, all_rows = following, after is T.ALL
        if unions:
            for _, token in outside_brackets(tokens[begin:]):
                if token.kind in (T.ORDER_BY, T.LIMIT):
                    what = f"{token.text.upper()} of a whole UNION is not supported"
                    raise self.text.error(token, f"{what}; put the SELECT that it belongs to in parentheses")
        yield tokens[begin:], all_rows

    def _with(self, tokens: Tokens, scope: Scope, target: Target) -> tuple[Tokens, Scope]:
        """Read common table expressions; the rest, and what names mean there."""
        depth, place, found = tokens[0].depth, 1, dict(scope)
        own = set[str]()
        while True:
            name, opening = self._cte(tokens, place)
            closing = self._closing(tokens, opening)
            if name.name.casefold() in own:
                message = f"two common table expressions are called {name.name!r}; name one of them otherwise"
                raise self.text.error(name, message)
            own.add(name.name.casefold())
            stream = self._fresh(target.name, name.name)
            self.read(tokens[opening + 1 : closing], found, Target(stream, is_stream=True))
            found[name.name.casefold()] = stream
            place = closing + 1
            if place >= len(tokens):
                raise self.text.error(tokens[closing], "WITH has no SELECT after its common table expressions")
            if tokens[place].kind is not T.COMMA or tokens[place].depth != depth:
                return tokens[place:], found
            place += 1

    def _cte(self, tokens: Tokens, place: int) -> tuple[Token, int]:
        """The name of a common table expression, and where its parenthesis opens."""
        some = tokens[place : place + 3]
        if some and some[0].kind is T.RECURSIVE:
            raise self.text.error(some[0], "WITH RECURSIVE is not supported; a view cannot read itself")
        if len(some) < 3 or some[1].kind is not T.ALIAS or some[2].kind is not T.L_PAREN:
            has_columns = len(some) > 1 and some[1].kind is T.L_PAREN
            what = "a list of column names is not supported after the name" if has_columns else "WITH cannot be read"
            message = f"{what}; write WITH name AS (SELECT ...) SELECT ..."
            raise self.text.error(some[0] if some else tokens[-1], message)
        return some[0], place + 2

    def _closing(self, tokens: Tokens, opening: int) -> int:
        """Where a parenthesis closes; there is something in it."""
        depth, places = tokens[opening].depth, range(opening + 1, len(tokens))
        closing = next(i for i in places if tokens[i].depth == depth and tokens[i].kind is T.R_PAREN)
        if closing == opening + 1:
            raise self.text.error(tokens[opening], "the parentheses are empty; write a SELECT in them")
        return closing

    def _select(self, tokens: Tokens, scope: Scope, target: Target, *, is_named: bool) -> JoinQuery:
        """Read one SELECT, subqueries in its FROM before it."""
        self.selects += 1
        if self.selects > MAX_SELECTS:
            raise self.text.error(tokens[0], f"the statement has more than {MAX_SELECTS} SELECTs; make views of some")
        pieces, shown = [self._blank(0, tokens[0].start)], tokens[0].start
        named: dict[str, str] = dict(scope)
        for opening, closing in self._subqueries(tokens):
            stream = self._fresh(target.name, _alias_after(tokens, closing) or "from")
            self.read(tokens[opening + 1 : closing], scope, Target(stream, is_stream=True))
            known = {*named, *map(str.casefold, self.columns)}
            word = next(word for n in range(1, len(known) + 2) if (word := f"sub{n}") not in known)
            named[word] = stream
            start, stop = tokens[opening].start, tokens[closing].end + 1
            pieces += [self.text.sql[shown:start], word, self._blank(start + len(word), stop)]
            shown = stop
        pieces += [self.text.sql[shown : tokens[-1].end + 1], self._blank(tokens[-1].end + 1, len(self.text.sql))]
        columns = {stream: names for stream, names in self.columns.items() if stream.casefold() not in named}
        columns |= {word: self.columns[stream] for word, stream in named.items()}
        query = parse_query(
            "".join(pieces),
            columns,
            allow_cross=self.allow_cross,
            is_named=is_named,
            event_times=self.event_times,
            tables={name: window for name, window in self.tables.items() if name.casefold() not in named},
        )
        if target.is_stream and query.grouping is not None and isinstance(query.grouping.window, Changes):
            raise self.text.error(
                tokens[0], "rows of a view are given once, so EMIT CHANGES cannot be in it; add TUMBLE"
            )
        sources = tuple(replace(source, stream=named.get(source.stream, source.stream)) for source in query.sources)
        for source in sources:
            if isinstance(source.window, Rows) and source.stream in self.derived:
                raise SqlError(
                    f"{source.alias!r} has a ROWS window, but rows of a view or subquery come in no order by which "
                    "they could be counted; give it a window over time, as in [RANGE 1 MINUTE]"
                )
        return replace(query, sources=sources)

    def _subqueries(self, tokens: Tokens) -> Iterator[tuple[int, int]]:
        """Where the subqueries of FROM begin and end."""
        clause = T.SELECT
        for i, token in outside_brackets(tokens):
            before = tokens[i - 1].kind if i > 0 else None
            if token.kind in _CLAUSES and before is not T.DISTINCT:  # as in IS DISTINCT FROM
                clause = token.kind
            follows_source = before in _BEFORE_SOURCE
            if token.kind is T.L_PAREN and clause is T.FROM and follows_source and _begins_query(tokens, i + 1):
                yield i, self._closing(tokens, i)

    def _fresh(self, output: str, ending: str) -> str:
        """A name for a derived stream or a branch that nothing else has."""
        stem = f"{output}_{ending if SIMPLE_NAME.fullmatch(f'_{ending}') else 'from'}"[:_LONGEST_STEM]
        known = {*self.taken, *map(str.casefold, self.columns)}
        names = (stem if n == 1 else f"{stem}_{n}" for n in range(1, len(known) + 2))
        name = next(name for name in names if name.casefold() not in known)
        self.taken.add(name.casefold())
        return name

    def _blank(self, start: int, stop: int) -> str:
        """Some of the text with spaces in it only."""
        return _LETTERS.sub(" ", self.text.sql[start:stop])


def _begins_query(tokens: Tokens, place: int) -> bool:
    while place < len(tokens) and tokens[place].kind is T.L_PAREN:
        place += 1
    return place < len(tokens) and tokens[place].kind in (T.SELECT, T.WITH)


def _alias_after(tokens: Tokens, closing: int) -> str | None:
    """The alias of a subquery, behind or before its window."""
    depth, rest = tokens[closing].depth, tokens[closing + 1 :]
    rest = [token for token in rest if token.depth == depth and token.kind not in kinds("L_BRACKET R_BRACKET ALIAS")]
    if rest and rest[0].kind not in _NOT_AN_ALIAS and SIMPLE_NAME.fullmatch(rest[0].name):
        return rest[0].name
    return None


def _renamed(query: JoinQuery, names: Sequence[str]) -> JoinQuery:
    """The query with other names for its output columns."""

    def items(select: Sequence[SelectItem]) -> tuple[SelectItem, ...]:
        return tuple(replace(item, name=name) for item, name in zip(select, names, strict=True))

    if query.grouping is not None:
        return replace(query, grouping=replace(query.grouping, select=items(query.grouping.select)))
    return replace(query, select=items(query.select))
