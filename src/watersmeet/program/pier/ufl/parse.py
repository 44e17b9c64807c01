"""UFL text to op-graphs, by the grammar of appendix A; what is wrong is said with its line and column.

The grammar lets any object stand in any other; that operators are in op-graphs and predicates in operators or in other
predicates is checked here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from re import fullmatch
from typing import Any, NoReturn, TypeAlias

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from watersmeet.errors import UflError, did_you_mean, shortened
from watersmeet.program.pier.graph import (
    DEEPEST,
    QUERY_ID,
    QUERY_TIME,
    Array,
    Call,
    ConstantArgument,
    Expression,
    NamedValues,
    Operator,
    OpGraph,
    Predicate,
    Setting,
    Settings,
    TupleField,
    UflQuery,
    Value,
)
from watersmeet.program.pier.values import TYPES

GRAMMAR = r"""
query: object+
object: "%" TEXT "(" TEXT ")" "{" member* "}"
?member: object | setting
setting: TEXT subscript? "=" value
subscript: "[" literal? "]"
?value: literal -> plain
      | expression
?expression: constant | field | call
constant: literal "::" TEXT
field: "$" literal
call: literal "(" [expression ("," expression)*] ")"
literal: TEXT | QUOTED

TEXT: /[A-Za-z0-9.*\-_\/]+/
QUOTED: /"(\\.|[^"\\])*"/s
COMMENT: /\#[^\n]*/
%ignore COMMENT
%ignore /[ \t\r\n\f]+/
"""

_KINDS = ("opgraph", "operator", "predicate")
_NAMES = {
    "PERCENT": "%",
    "LPAR": "(",
    "RPAR": ")",
    "LBRACE": "{",
    "RBRACE": "}",
    "LSQB": "[",
    "RSQB": "]",
    "EQUAL": "=",
    "DOLLAR": "$",
    "COMMA": ",",
    "__ANON_0": "::",
    "TEXT": "a name",
    "QUOTED": "a quoted text",
    "$END": "the end",
}
_BROKEN_QUOTE = 'a quoted text has no end, or a backslash stands at the end of it; close it with "'


@dataclass(frozen=True, slots=True)
class _SettingEntry:
    key: Token
    index: str | None  # None: flat; empty: appended
    value: Value


_Node: TypeAlias = "OpGraph | Operator | Predicate"


@dataclass(frozen=True, slots=True)
class _Parsed:
    """An object, and where it began."""

    kind: str
    node: _Node
    at: Token


def parse_ufl(text: str) -> UflQuery:
    r"""The op-graphs of a query.

    >>> query = parse_ufl(r'%opgraph(g) { %operator(s) { type = scan  ns = "net\qi" } }')
    >>> query.graphs[0].operators[0].name
    's'
    """
    for forbidden in (QUERY_TIME, QUERY_ID):
        if forbidden in text:
            raise UflError(f"the text has the character U+{ord(forbidden):04X}, which is none of Unicode; remove it")
    try:
        parsed: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(error, text) from None
    assert isinstance(parsed, UflQuery)
    return parsed


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, start="query", parser="lalr", transformer=_Builder(), maybe_placeholders=False)


def _fail(at: Token, message: str) -> NoReturn:
    raise UflError(f"line {at.line}, column {at.column}: {message}")


def _syntax_error(error: UnexpectedInput, text: str) -> UflError:
    match error:
        case UnexpectedEOF() | UnexpectedToken(token=Token(type="$END")):
            line = text.count("\n") + 1
            column = len(text) - text.rfind("\n")
            what = "the text ends too early"
            if not text.strip():
                what = "the text is empty; a query has at least one %opgraph(name) { ... }"
                return UflError(f"line 1, column 1: {what}")
            return UflError(f"line {line}, column {column}: {what}; expected {_expected(error)}")
        case UnexpectedToken(token=token):
            found = shortened(str(token), 40)
            return UflError(
                f"line {error.line}, column {error.column}: {found!r} is not expected here; expected {_expected(error)}"
            )
        case UnexpectedCharacters():
            found = text[error.pos_in_stream] if error.pos_in_stream is not None else ""
            if found == '"':
                return UflError(f"line {error.line}, column {error.column}: {_BROKEN_QUOTE}")
            return UflError(
                f"line {error.line}, column {error.column}: the character {found!r} is not expected here; "
                f"expected {_expected(error)}, or put the text into quotes"
            )
    return UflError(f"the text is no UFL: {error}")


def _expected(error: UnexpectedInput) -> str:
    names = getattr(error, "accepts", None) or getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    shown = sorted({_NAMES.get(name, name) for name in names})
    return " or ".join(shown) if shown else "something else"


class _Builder(Transformer[Token, Any]):
    """Builds values while the text is parsed, from the inside out, so that depth costs no stack."""

    def query(self, objects: list[_Parsed]) -> UflQuery:
        graphs = []
        for each in objects:
            if not isinstance(each.node, OpGraph):
                _fail(each.at, f"{_article(each.kind)} stands outside of any opgraph; put it into one")
            graphs.append(each.node)
        _check_names(objects)
        return UflQuery(tuple(graphs))

    def object(self, parts: list[Any]) -> _Parsed:
        kind, name, *members = parts
        below = [each for each in members if isinstance(each, _Parsed)]
        settings = _settings([each for each in members if isinstance(each, _SettingEntry)])
        _check_names(below)
        return _Parsed(str(kind), _made(kind, name, settings, below), kind)

    def setting(self, parts: list[Any]) -> _SettingEntry:
        if len(parts) == 3:
            return _SettingEntry(parts[0], parts[1], parts[2])
        return _SettingEntry(parts[0], None, parts[1])

    def subscript(self, parts: list[Token]) -> str:
        return str(parts[0]) if parts else ""

    def plain(self, parts: list[Token]) -> str:
        return str(parts[0])

    def constant(self, parts: list[Token]) -> ConstantArgument:
        literal, kind = parts
        name = kind.casefold()
        if name not in TYPES:
            _fail(kind, f"unknown type {str(kind)!r}; {did_you_mean(str(kind), TYPES)}")
        if QUERY_ID not in literal and QUERY_TIME not in literal:
            try:
                TYPES[name].read(str(literal))
            except ValueError:
                _fail(literal, f"{shortened(str(literal), 60)!r} is no value of type {name}")
        return ConstantArgument(str(literal), name)

    def field(self, parts: list[Token]) -> TupleField:
        return TupleField(str(parts[0]))

    def call(self, parts: list[Any]) -> Call:
        name, *arguments = parts
        made = Call(str(name), tuple(arguments))
        if made.depth > DEEPEST:
            _fail(name, f"functions are nested more than {DEEPEST} levels deep; split the expression")
        return made

    def literal(self, parts: list[Token]) -> Token:
        (token,) = parts
        return token.update(value=_unquoted(token)) if token.type == "QUOTED" else token


def _article(kind: str) -> str:
    return f"{'an' if kind[0] == 'o' else 'a'} {kind}"


def _unquoted(token: Token) -> str:
    r"""A quoted text without quotes: `\\`, `\"`, `\uXXXX`, `\qt` and `\qi`, each with a `$` that may end it."""
    text, parts, position = str(token)[1:-1], [], 0
    while position < len(text):
        if text[position] != "\\":
            end = text.find("\\", position)
            end = len(text) if end < 0 else end
            parts.append(text[position:end])
            position = end
            continue
        found = text[position + 1 : position + 2]
        if found in ("\\", '"'):
            parts.append(found)
            position += 2
        elif found == "u":
            digits = text[position + 2 : position + 6]
            if not fullmatch(r"[0-9A-Fa-f]{4}", digits):
                _fail(token, rf"\u needs four hexadecimal digits, not {digits!r}")
            character = chr(int(digits, 16))
            if 0xD800 <= ord(character) <= 0xDFFF or character in (QUERY_ID, QUERY_TIME):
                _fail(token, rf"\u{digits} is no character; write another one")
            parts.append(character)
            position += 6
        elif text[position + 1 : position + 3] in ("qt", "qi"):
            parts.append(QUERY_TIME if text[position + 2] == "t" else QUERY_ID)
            position += 3
        else:
            _fail(token, rf"unknown escape {chr(92)}{found}; known: \\, \", \uXXXX, \qt and \qi")
        if text[position : position + 1] == "$":
            position += 1
    return "".join(parts)


def _settings(entries: Sequence[_SettingEntry]) -> Settings:
    found: dict[str, Setting] = {}
    spelled: dict[str, str] = {}
    appended: dict[str, list[Value]] = {}  # elements of arrays without a number: they follow all that have one
    for entry in entries:
        key = str(entry.key)
        known = spelled.setdefault(key.casefold(), key)
        before = found.get(known)
        match before, entry.index:
            case None, None:
                found[known] = entry.value
            case None, "*":
                found[known] = NamedValues(())
            case None, "":
                found[known], appended[known] = Array(()), [entry.value]
            case None, str(index) if _is_index(index):
                found[known] = Array(((int(index), entry.value),))
            case None, index:
                found[known] = NamedValues(((str(index), entry.value),))
            case Array(), "":
                appended.setdefault(known, []).append(entry.value)
            case Array(items), index if index is not None:
                if not _is_index(index):
                    _fail(entry.key, f"{key}[{index}]: {key} is an array by its first use; give a number")
                if any(number == int(index) for number, _ in items):
                    _fail(entry.key, f"{key}[{index}] is given twice; remove one of them")
                found[known] = Array((*items, (int(index), entry.value)))
            case NamedValues(values), index if index is not None:
                if index == "*":
                    continue
                if not index or any(name == index for name, _ in values):
                    what = "needs a name in brackets" if not index else "is given twice; remove one of them"
                    _fail(entry.key, f"{key}[{index}] {what}")
                found[known] = NamedValues((*values, (index, entry.value)))
            case _:
                _fail(entry.key, f"{key} is given more than once; write {key}[] for several values")
    return Settings(tuple((name, _in_order(setting, appended.get(name, ()))) for name, setting in found.items()))


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _in_order(setting: Setting, appended: Sequence[Value]) -> Setting:
    if not isinstance(setting, Array):
        return setting
    items = sorted(setting.items, key=lambda item: item[0])
    first = 1 + items[-1][0] if items else 0
    return Array((*items, *enumerate(appended, first)))


def _made(kind: Token, name: Token, settings: Settings, below: Sequence[_Parsed]) -> _Node:
    wanted = {"opgraph": Operator, "operator": Predicate, "predicate": Predicate}
    if kind not in _KINDS:
        _fail(kind, f"unknown kind of object {str(kind)!r}; {did_you_mean(str(kind), _KINDS)}")
    for each in below:
        if not isinstance(each.node, wanted[kind]):
            place = "an opgraph" if each.kind == "operator" else "an operator"
            outside = "outside of any other object" if each.kind == "opgraph" else f"in {place}"
            _fail(each.at, f"{_article(each.kind)} stands in {_article(str(kind))}; it belongs {outside}")
    nodes: tuple[Any, ...] = tuple(each.node for each in below)
    line = int(kind.line or 0)
    if kind == "opgraph":
        return OpGraph(str(name), settings, nodes, line)
    if kind == "operator":
        return Operator(str(name), settings, nodes, line)
    made = Predicate(str(name), settings, nodes, line)
    if _depth(made) > DEEPEST:
        _fail(kind, f"predicates are nested more than {DEEPEST} levels deep; split them")
    return made


def _depth(predicate: Predicate) -> int:
    # Each level was checked when it was built, so this goes one level further than the limit at most.
    return 1 + max((_depth(each) for each in predicate.predicates), default=0)


def _check_names(objects: Sequence[_Parsed]) -> None:
    seen: set[str] = set()
    for each in objects:
        if each.node.name in seen:
            _fail(each.at, f"two objects have the name {each.node.name!r}; rename one of them")
        seen.add(each.node.name)


def as_expression(value: Value) -> Expression:
    """A value where an expression is wanted: plain text is a constant.

    >>> as_expression("abc")
    ConstantArgument(text='abc', type='string')
    """
    return ConstantArgument(value, "string") if isinstance(value, str) else value
