"""Op-graphs as UFL text, the same for the same value; reading it again gives the value."""

from re import fullmatch
from typing import assert_never

from watersmeet.program.pier.graph import (
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

_INDENT = "  "
_ESCAPES = {"\\": r"\\", '"': r"\"", QUERY_ID: r"\qi", QUERY_TIME: r"\qt"}


def format_ufl(query: UflQuery) -> str:
    """The text of a query.

    >>> print(format_ufl(UflQuery((OpGraph("g", operators=(Operator("s", Settings((("type", "scan"),))),)),))))
    %opgraph(g) {
      %operator(s) {
        type = scan
      }
    }
    """
    return "\n".join(_graph(graph) for graph in query.graphs)


def _graph(graph: OpGraph) -> str:
    below = [_operator(operator) for operator in graph.operators]
    return _object("opgraph", graph.name, graph.settings, below, "")


def _operator(operator: Operator) -> str:
    below = [_predicate(predicate, _INDENT * 2) for predicate in operator.predicates]
    return _object("operator", operator.name, operator.settings, below, _INDENT)


def _predicate(predicate: Predicate, indent: str) -> str:
    below = [_predicate(each, indent + _INDENT) for each in predicate.predicates]
    return _object("predicate", predicate.name, predicate.settings, below, indent)


def _object(kind: str, name: str, settings: Settings, below: list[str], indent: str) -> str:
    lines = [f"{indent}{_INDENT}{line}" for key, setting in settings.entries for line in _setting(key, setting)]
    return "\n".join([f"{indent}%{kind}({name}) {{", *lines, *below, f"{indent}}}"])


def _setting(key: str, setting: Setting) -> list[str]:
    match setting:
        case Array(items):
            is_dense = [index for index, _ in items] == list(range(len(items)))
            return [f"{key}[{'' if is_dense else index}] = {_value(value)}" for index, value in items]
        case NamedValues(entries):
            # The first use decides between array and table.
            is_forced = not entries or fullmatch("[0-9]{1,9}", entries[0][0])
            forced = [f'{key}[*] = ""'] if is_forced else []
            return forced + [f"{key}[{_literal(name)}] = {_value(value)}" for name, value in entries]
        case _:
            return [f"{key} = {_value(setting)}"]


def _value(value: Value) -> str:
    return _literal(value) if isinstance(value, str) else format_expression(value)


def format_expression(expression: Expression) -> str:
    """The text of an expression.

    >>> format_expression(Call("add", (TupleField("a"), ConstantArgument("1", "integer"))))
    'add($a, 1::integer)'
    """
    match expression:
        case ConstantArgument(text, kind):
            return f"{_literal(text)}::{kind}"
        case TupleField(name):
            return f"${_literal(name)}"
        case Call(function, arguments):
            return f"{_literal(function)}({', '.join(map(format_expression, arguments))})"
        case _:
            assert_never(expression)


def _literal(text: str) -> str:
    if fullmatch(r"[A-Za-z0-9.*\-_/]+", text):
        return text
    parts, was_escape = [], False
    for character in text:
        escaped = _ESCAPES.get(character)
        if escaped is None and not character.isprintable() and ord(character) <= 0xFFFF:
            escaped = rf"\u{ord(character):04x}"
        if was_escape and (escaped is None) and character == "$":
            parts.append("$")  # the one that ends an escape
        parts.append(character if escaped is None else escaped)
        was_escape = escaped is not None
    return '"' + "".join(parts) + '"'
