"""UFL expressions compiled to Python functions of a row, once for each expression and description of tuples.

Tuples describe themselves, so types are known when the first tuple of a kind is met. Where a tuple lacks a column, or a
function does not take its types, all tuples of that kind are malformed (PIER, section 3.3.7).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, assert_never

from watersmeet.errors import UflError, did_you_mean
from watersmeet.program.pier.functions import FUNCTIONS, NAMESPACE
from watersmeet.program.pier.graph import Call, ConstantArgument, Expression, Predicate, TupleField
from watersmeet.program.pier.tuples import Row, Schema
from watersmeet.program.pier.ufl.parse import as_expression
from watersmeet.program.pier.values import BOOLEAN, NULL, TYPES

Kernel: TypeAlias = Callable[[Row], Any]
COMPARISONS = {
    "=": "equals",
    "!=": "notequals",
    "<": "lessthan",
    "<=": "lessthanequals",
    ">": "greaterthan",
    ">=": "greaterthanequals",
}
_PREDICATE_SETTINGS = ("type", "leftexpression", "rightexpression", "op")


class Malformed(Exception):
    """Tuples of a kind cannot be processed; the message says why."""


def check_functions(expression: Expression, where: str) -> None:
    """Refuse functions that are not known, whatever tuples come."""
    match expression:
        case Call(function, arguments):
            if function.casefold() not in FUNCTIONS:
                raise UflError(f"{where}: unknown function {function!r}; {did_you_mean(function, FUNCTIONS)}")
            for argument in arguments:
                check_functions(argument, where)
        case ConstantArgument() | TupleField():
            pass
        case _:
            assert_never(expression)


def condition_of(predicate: Predicate, where: str) -> Expression:
    """A predicate object as an expression."""
    settings = predicate.settings
    where = f"{where}, predicate {predicate.name!r}"
    for name, _ in settings.entries:
        if name.casefold() not in _PREDICATE_SETTINGS:
            raise UflError(f"{where}: unknown setting {name!r}; {did_you_mean(name, _PREDICATE_SETTINGS)}")
    kind = settings.get("type")
    match kind.casefold() if isinstance(kind, str) else None:
        case "and" | "or" as name:
            if any(settings.get(other) is not None for other in _PREDICATE_SETTINGS[1:]):
                raise UflError(f"{where}: expressions and op belong to type atomic; put them into a predicate within")
            if not predicate.predicates:
                raise UflError(f"{where}: type {name} needs predicates within it")
            return Call(name, tuple(condition_of(each, where) for each in predicate.predicates))
        case "atomic":
            if predicate.predicates:
                raise UflError(f"{where}: type atomic has no predicates within it; use and or or")
            sides = []
            for side in ("leftexpression", "rightexpression"):
                value = settings.get(side)
                if not isinstance(value, str | ConstantArgument | TupleField | Call):
                    raise UflError(f"{where}: type atomic needs one {side}")
                sides.append(as_expression(value))
            op = settings.get("op")
            name = COMPARISONS.get(op, op) if isinstance(op, str) else ""
            if name.casefold() not in COMPARISONS.values():
                known = ", ".join([*COMPARISONS, *COMPARISONS.values()])
                raise UflError(f"{where}: unknown op {op!r}; known: {known}" if op else f"{where} needs an op: {known}")
            condition = Call(name.casefold(), tuple(sides))
            check_functions(condition, where)
            return condition
        case _:
            raise UflError(f"{where}: its type must be and, or or atomic")


@lru_cache(maxsize=8_192)
def compiled(expression: Expression, schema: Schema) -> tuple[Kernel, str]:
    """The expression as a function of a row, and the type of its values.

    >>> more = Call("add", (TupleField("a"), ConstantArgument("1", "integer")))
    >>> kernel, kind = compiled(more, Schema.of("R", {"a": "integer"}))
    >>> kernel((41,)), kernel((None,)), kind
    (42, None, 'integer')
    """
    writer = _Writer(schema)
    code, kind, _ = writer.text(expression)
    return writer.function(code), kind


@lru_cache(maxsize=8_192)
def compiled_row(expressions: tuple[Expression, ...], schema: Schema) -> tuple[Callable[[Row], Row], tuple[str, ...]]:
    """Several expressions as one function that makes a row of them, and their types."""
    writer = _Writer(schema)
    found = [writer.text(expression) for expression in expressions]
    codes = "".join(f"{code}, " for code, _, _ in found)
    return writer.function(f"({codes})"), tuple(kind for _, kind, _ in found)


@lru_cache(maxsize=8_192)
def compiled_condition(condition: Expression, schema: Schema) -> Kernel:
    """A condition as a function of a row; it must be a truth value."""
    kernel, kind = compiled(condition, schema)
    if kind not in (BOOLEAN, NULL):
        raise Malformed(f"a condition is of type {kind} and not boolean")
    return kernel


def evaluated(kernel: Callable[[Row], Any], rows: Sequence[Row]) -> tuple[list[Any], list[int]]:
    """A function over rows: its values, and the places of rows for which it fails, whose values are left out."""
    try:
        return [kernel(row) for row in rows], []
    except (ArithmeticError, ValueError, TypeError):
        values, failed = [], []
        for place, row in enumerate(rows):
            try:
                values.append(kernel(row))
            except (ArithmeticError, ValueError, TypeError):
                failed.append(place)
        return values, failed


class _Writer:
    """Writes one function; constants are names in its scope, and whatever is used twice is given a name."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._scope: dict[str, Any] = dict(NAMESPACE)
        self._names = 0

    def function(self, code: str) -> Callable[[Row], Any]:
        made: Callable[[Row], Any] = eval(f"lambda row: {code}", self._scope)
        return made

    def text(self, expression: Expression) -> tuple[str, str, bool]:
        """Python text, type, and whether it can be NULL."""
        match expression:
            case ConstantArgument(text, kind):
                name = self._name("c")
                self._scope[name] = TYPES[kind].read(text)
                return name, kind, kind == NULL
            case TupleField(field):
                place = self._schema.place(field)
                if place is None:
                    raise Malformed(f"{self._schema.table} has no column {field!r}")
                return f"row[{place}]", self._schema.types[place], True
            case Call(function, arguments):
                return self._call(function.casefold(), [self.text(argument) for argument in arguments])
            case _:
                assert_never(expression)

    def _call(self, name: str, arguments: list[tuple[str, str, bool]]) -> tuple[str, str, bool]:
        function, types = FUNCTIONS[name], [kind for _, kind, _ in arguments]
        result = function.result(types)
        if result is None:
            raise Malformed(f"{name} does not take ({', '.join(types)})")
        if not function.is_strict:
            return function.code([code for code, _, _ in arguments], types), result, True
        names, checks = [], []
        for code, _, can_be_null in arguments:
            if code.isidentifier():
                names.append(code)
                if can_be_null:
                    checks.append(f"{code} is None")
                continue
            names.append(self._name("t"))
            # A condition that is never true where no NULL can come still gives the value its name.
            checks.append(f"({names[-1]} := {code}) is None")
        body = function.code(names, types)
        if not checks:
            return body, result, name in ("divide", "div", "mod")
        return f"(None if {' or '.join(checks)} else {body})", result, True

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"
