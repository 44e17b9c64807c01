"""FROM: the streams with their windows and aliases, and the conditions after ON."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import InputError, SqlError, UnknownStream, did_you_mean
from watersmeet.query.model import StreamRef
from watersmeet.query.sql.tokens import CLOSING_BRACKET, SqlText, Token, Tokens, is_name, kinds
from watersmeet.query.windows import (
    MOST_ROWS,
    MOST_STREAMS,
    Range,
    Rows,
    Tumble,
    Unbounded,
    Window,
    parse_duration,
)

_JOIN_KINDS = kinds("JOIN INNER CROSS LEFT RIGHT FULL OUTER SEMI ANTI NATURAL ASOF STRAIGHT_JOIN")
_BRACKETS = {*CLOSING_BRACKET, *CLOSING_BRACKET.values()}
_LONGEST_ALIAS = 64
_NOT_A_NAME = _JOIN_KINDS | _BRACKETS | kinds("ON USING COMMA DOT ALIAS STRING NUMBER")


@dataclass(frozen=True, slots=True)
class FromItem:
    """One stream of FROM as written, before its name is looked up."""

    token: Token
    stream: str
    alias: str
    window: Window | None


def read_from(text: SqlText, tokens: Tokens) -> tuple[list[FromItem], list[Tokens]]:
    """The streams of FROM and the conditions after ON."""
    cursor = _Cursor(text, tokens)
    items = [_read_item(cursor)]
    conditions: list[Tokens] = []
    on_allowed = 0
    while token := cursor.token:
        if token.kind is T.COMMA:
            cursor.take()
            items.append(_read_item(cursor))
        elif _starts_join(tokens, cursor.at):
            on_allowed += _read_join(cursor)
            items.append(_read_item(cursor))
        elif token.kind is T.ON and on_allowed:
            on_allowed -= 1
            conditions.append(_read_on(cursor))
        elif token.kind is T.USING:
            raise text.error(token, "USING is not supported; write ON with an equality, as in ON a.k = b.k")
        else:
            raise text.unexpected(token)
    return items, conditions


def resolve_streams(
    text: SqlText, items: Sequence[FromItem], columns: Mapping[str, Sequence[str]]
) -> tuple[StreamRef, ...]:
    """The streams under their declared names, each with a window and an alias of its own."""
    declared = {stream.casefold(): stream for stream in columns}
    seen: set[str] = set()
    sources = []
    for item in items:
        stream = item.stream if item.stream in columns else declared.get(item.stream.casefold())
        if stream is None:
            near = did_you_mean(item.stream, columns)
            raise text.error(item.token, f"unknown stream {item.stream!r}; {near}", UnknownStream)
        if item.alias.casefold() in seen:
            cure = f"give one another name with AS, as in {item.stream} [...] AS {item.alias}_2"
            raise text.error(item.token, f"two streams in FROM have the alias {item.alias!r}; {cure}")
        if "." in item.alias or "`" in item.alias:
            raise text.error(item.token, f"{item.alias!r} cannot be an alias; add AS with a plain name")
        if len(item.alias) > _LONGEST_ALIAS:
            message = f"the alias has {len(item.alias)} characters; add AS with a name of at most {_LONGEST_ALIAS}"
            raise text.error(item.token, message)
        if item.window is None:
            cure = f"add one, e.g. {item.alias} [RANGE 1 MINUTE] or {item.alias} [UNBOUNDED]"
            raise text.error(item.token, f"stream {item.alias!r} has no window; {cure}")
        seen.add(item.alias.casefold())
        sources.append(StreamRef(item.alias, stream, item.window))
    if len(sources) == 1:
        raise SqlError("a join needs at least two streams; filter a single one in Spark itself")
    if len(sources) > MOST_STREAMS:
        raise SqlError(f"FROM has {len(sources)} streams; {MOST_STREAMS} is the limit of one query")
    return tuple(sources)


class _Cursor:
    """A place in the tokens of FROM."""

    def __init__(self, text: SqlText, tokens: Tokens) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    @property
    def token(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def sees(self, kind: T) -> bool:
        return self.token is not None and self.token.kind is kind

    def take(self) -> Token:
        token = self.token
        if token is None:
            raise self.text.error(len(self.text.sql.rstrip()), "the FROM clause ends too early")
        self.at += 1
        return token

    def take_name(self, what: str) -> Token:
        token = self.token
        if token is None or not is_name(token, _NOT_A_NAME):
            place = token or len(self.text.sql.rstrip())
            raise self.text.error(place, f"{what} is missing{f' before {token.text!r}' if token else ''}")
        return self.take()


def _starts_join(tokens: Tokens, i: int) -> bool:
    """Whether a join starts at `i`; `left(...)` is a function."""
    is_function = i + 1 < len(tokens) and tokens[i + 1].kind is T.L_PAREN and tokens[i].kind is not T.JOIN
    return tokens[i].kind in _JOIN_KINDS and not is_function


def _read_join(cursor: _Cursor) -> bool:
    """Pass over the tokens of a join; whether it can have an ON."""
    first = cursor.token
    assert first is not None
    taken: list[T] = []
    while cursor.token and cursor.token.kind in _JOIN_KINDS and T.JOIN not in taken:
        taken.append(cursor.take().kind)
    text = cursor.text
    if T.JOIN not in taken:
        raise text.unexpected(cursor.token or first)
    match [kind for kind in taken if kind is not T.JOIN]:
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
            written = " ".join(kind.name for kind in taken)
            raise text.error(first, f"{written} is not supported; only [INNER] JOIN and CROSS JOIN are")


def _read_on(cursor: _Cursor) -> Tokens:
    on = cursor.take()
    begin = cursor.at
    while token := cursor.token:
        is_end = token.kind in (T.COMMA, T.ON, T.USING, T.WHERE) or _starts_join(cursor.tokens, cursor.at)
        if is_end and token.depth == on.depth:
            break
        cursor.take()
    if begin == cursor.at:
        raise cursor.text.error(on, "ON has no condition")
    return cursor.tokens[begin : cursor.at]


def _read_item(cursor: _Cursor) -> FromItem:
    text = cursor.text
    if cursor.sees(T.L_PAREN):
        raise text.error(cursor.take(), "parentheses in FROM are not supported; list the streams one by one")
    if cursor.sees(T.VALUES):
        raise text.error(cursor.take(), "VALUES is not supported; name a stream")
    first = cursor.take_name("a stream name")
    parts = [first.name]
    while cursor.sees(T.DOT):
        cursor.take()
        parts.append(cursor.take_name("a name after the dot").name)
    if cursor.sees(T.L_PAREN):
        raise text.error(first, f"the table function {first.text!r} is not supported; name a stream")
    window = _read_window(cursor) if cursor.sees(T.L_BRACKET) else None
    alias = ".".join(parts)
    if cursor.sees(T.ALIAS):
        cursor.take()
        alias = cursor.take_name("a name after AS").name
    elif cursor.token and is_name(cursor.token, _NOT_A_NAME):
        alias = cursor.take().name
    if cursor.sees(T.L_PAREN):
        raise text.error(cursor.take(), "a list of column names after an alias is not supported; rename in SELECT")
    if cursor.sees(T.L_BRACKET):
        if window:
            raise text.error(cursor.take(), f"{alias!r} has two windows; keep one")
        window = _read_window(cursor)
    return FromItem(first, ".".join(parts), alias, window)


def _read_window(cursor: _Cursor) -> Window:
    """`[RANGE duration]`, `[TUMBLE duration]`, `[ROWS count]` or `[UNBOUNDED]`."""
    text, opening = cursor.text, cursor.take()
    inside: list[Token] = []
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
                raise text.error(inside[0], f"ROWS must be positive, not {count}")
            if count > MOST_ROWS:
                message = f"ROWS {count} is more than {MOST_ROWS:,} rows; use UNBOUNDED or fewer"
                raise text.error(inside[0], message)
            return Rows(count)
        case "unbounded" if not amount:
            return Unbounded()
        case _:
            written = text.sql[opening.start : closing.end + 1]
            known = "[RANGE 1 MINUTE], [ROWS 100], [TUMBLE 5 SECONDS] or [UNBOUNDED]"
            raise text.error(opening, f"{written!r} is not a window; write {known}")


def _duration(text: SqlText, kind: Token, amount: str) -> int:
    """Microseconds of a duration with or without INTERVAL and quotes."""
    plain = re.sub(r"^interval\b", "", re.sub(r"['\"]", " ", amount).strip(), flags=re.IGNORECASE).strip()
    name = kind.text.upper()
    try:
        window_us = parse_duration(plain)
    except InputError as error:
        raise text.error(kind, f"{name} window: {error}") from None
    if window_us <= 0:
        raise text.error(kind, f"{name} must be positive, not {plain!r}")
    return window_us
