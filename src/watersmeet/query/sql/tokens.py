"""The user's text as tokens that know their place in it and their depth in brackets; sqlglot finds the tokens."""

import re
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token as RawToken
from sqlglot.tokenizer_core import TokenType as T

from watersmeet.errors import SqlError
from watersmeet.query.dialect import SPARK

MAX_CHARACTERS = 200_000
MAX_TOKENS = 20_000
MAX_DEPTH = 100  # of brackets, CASE, NOT, minus and the like in each other
MAX_NUMBER = 100  # characters of a number: the longest that Spark can read is a decimal of 38 digits
_ORDINARY_DEPTH = 20  # up to which Python's default stack is enough for sqlglot, which takes up to 25 frames a level
_DEEP_STACK = 6_000

SIMPLE_NAME = re.compile(r"[A-Za-z_]\w*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_UNCLOSED_QUOTE = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|--[^\n]*|/\*.*?\*/|(?P<open>['"`]|/\*)|.""", re.DOTALL
)

_NESTED_TYPES = (T.ARRAY, T.MAP, T.STRUCT)
_PREFIXES = (T.NOT, T.DASH, T.PLUS, T.TILDE, T.INTERVAL)
CLOSING_BRACKET = {T.L_PAREN: T.R_PAREN, T.L_BRACKET: T.R_BRACKET, T.L_BRACE: T.R_BRACE, T.CASE: T.END}


def kinds(names: str) -> frozenset[T]:
    """Token types by their names."""
    return frozenset(T[name] for name in names.split())


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Operators that bind no tighter than `=`: with another of them outside brackets, a conjunct is not an equality.
LOW_PRECEDENCE = kinds(
    "EQ NEQ NULLSAFE_EQ LT LTE GT GTE AND OR NOT IS IN BETWEEN LIKE ILIKE RLIKE IRLIKE SIMILAR_TO ESCAPE DAMP XOR ARROW"
)


class Token(NamedTuple):
    """A token of sqlglot with its text as written and its depth in brackets; a keyword after a dot is a name."""

    raw: RawToken
    kind: T
    depth: int
    text: str

    @property
    def name(self) -> str:
        """The text without quotes."""
        return self.raw.text

    @property
    def start(self) -> int:
        """The offset of the first character."""
        return self.raw.start

    @property
    def end(self) -> int:
        """The offset of the last character."""
        return self.raw.end


Tokens = Sequence[Token]


@dataclass(frozen=True, slots=True)
class SqlText:
    """The user's text, and errors that point into it."""

    sql: str

    def error(self, at: Token | int, message: str, kind: type[SqlError] = SqlError) -> SqlError:
        """An error with the line and column of a token or an offset."""
        offset = at if isinstance(at, int) else at.start
        line = self.sql.count("\n", 0, offset) + 1
        column = offset - self.sql.rfind("\n", 0, offset)
        return kind(f"line {line}, column {column}: {message}")

    def unexpected(self, token: Token) -> SqlError:
        """The error for a token that cannot stand where it does."""
        return self.error(token, f"unexpected {token.text!r}, {self.excerpt_of([token])}")

    def excerpt_of(self, tokens: Tokens) -> str:
        """The tokens with some text around them, on one line."""
        return self.excerpt(tokens[0].start, tokens[-1].end)

    def excerpt(self, start: int, end: int) -> str:
        """The characters from `start` to `end` with some text around them, on one line."""
        before, after = self.sql[max(0, start - 25) : start], self.sql[end + 1 : end + 16]
        shown = " ".join(f"{before}{self.sql[start : end + 1]}{after}".split())
        return f"in: {'... ' if start > 25 else ''}{shown}{' ...' if end + 16 < len(self.sql) else ''}"


def tokenize(text: SqlText) -> list[Token]:
    """The tokens of the text; brackets and quotes that do not match are refused, and what no parser should be given."""
    return list(_tokens(text))


@lru_cache(maxsize=32)  # each step of parsing asks for the tokens of the same text
def _tokens(text: SqlText) -> tuple[Token, ...]:
    tokens: list[Token] = []
    unclosed: list[Token] = []
    prefixes = 0  # operators in a row of which each takes all that follows
    types = 0  # open angle brackets of types
    for raw in _raw_tokens(text):
        follows_dot = bool(tokens) and tokens[-1].kind is T.DOT
        kind = T.VAR if follows_dot and raw.token_type is not T.STAR else raw.token_type
        written = text.sql[raw.start : raw.end + 1]
        closes = kind in (T.R_PAREN, T.R_BRACKET, T.R_BRACE) or (
            kind is T.END and bool(unclosed) and unclosed[-1].kind is T.CASE
        )
        if closes and not (unclosed and CLOSING_BRACKET[unclosed[-1].kind] is kind):
            raise text.error(raw.start, f"unmatched {written!r}, {text.excerpt(raw.start, raw.end)}")
        if closes:
            unclosed.pop()
        tokens.append(Token(raw, kind, len(unclosed), written))
        if kind in CLOSING_BRACKET:
            unclosed.append(tokens[-1])
        prefixes = prefixes + 1 if kind in _PREFIXES else 0
        types += kind is T.LT and len(tokens) > 1 and tokens[-2].kind in _NESTED_TYPES
        types -= kind is T.GT and types > 0
        if len(unclosed) + prefixes + types > MAX_DEPTH:
            raise text.error(raw.start, f"the query is nested more than {MAX_DEPTH} deep; simplify it")
        if kind is T.NUMBER and len(written) > MAX_NUMBER:
            raise text.error(raw.start, f"a number has {len(written):,} characters; {MAX_NUMBER} is the limit")
    if any(token.depth > _ORDINARY_DEPTH for token in tokens):
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEP_STACK))
    if unclosed:
        opening = unclosed[-1]
        raise text.error(opening, f"{opening.text!r} is opened and never closed, {text.excerpt_of([opening])}")
    return tuple(tokens)


def _raw_tokens(text: SqlText) -> list[RawToken]:
    if len(text.sql) > MAX_CHARACTERS:
        raise SqlError(f"the query has {len(text.sql):,} characters; {MAX_CHARACTERS:,} is the limit")
    if control := _CONTROL.search(text.sql):
        message = f"the control character U+{ord(control[0]):04X} is not allowed; remove it"
        raise text.error(control.start(), message)
    try:
        tokens = SPARK.tokenize(text.sql)
        if len(tokens) > MAX_TOKENS:
            raise SqlError(f"the query has {len(tokens):,} words and signs; {MAX_TOKENS:,} is the limit")
        return tokens
    except TokenError:
        unclosed = next((found for found in _UNCLOSED_QUOTE.finditer(text.sql) if found["open"]), None)
        if unclosed is None:
            raise SqlError(f"the SQL cannot be read: {text.excerpt(0, 20)}") from None
        shown = text.excerpt(unclosed.start(), unclosed.start() + 8)
        raise text.error(unclosed.start(), f"{unclosed['open']} is opened and never closed, {shown}") from None


def is_name(token: Token, reserved: Set[T]) -> bool:
    """Whether a token can be a name: it is quoted, or a word that is not reserved."""
    return token.kind is T.IDENTIFIER or (token.kind not in reserved and bool(SIMPLE_NAME.match(token.text)))


def outside_brackets(tokens: Tokens) -> list[tuple[int, Token]]:
    """The tokens, with their positions, that are inside no bracket which the others are outside of."""
    depth = min((token.depth for token in tokens), default=0)
    return [(i, token) for i, token in enumerate(tokens) if token.depth == depth]


def unwrapped(tokens: Tokens) -> Tokens:
    """The tokens without parentheses around the whole of them."""
    while (
        len(tokens) > 2
        and tokens[0].kind is T.L_PAREN
        and tokens[-1].kind is T.R_PAREN
        and all(token.depth > tokens[0].depth for token in tokens[1:-1])
    ):
        tokens = tokens[1:-1]
    return tokens


def quoted(name: str) -> str:
    """A name as an identifier of Spark SQL."""
    return f"`{name.replace('`', '``')}`"
