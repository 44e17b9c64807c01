"""The functions of UFL expressions: result types, and the Python text of each over arguments that are not NULL.

They mean what SQL means by them: NULL in, NULL out unless a function says otherwise, NaN is equal to itself and the
greatest number, and a quotient by zero is NULL. A remainder by zero, or a whole number that does not fit into 64 bits,
fails its tuple.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor, isfinite
from re import DOTALL, escape
from re import compile as compile_pattern
from typing import Any

from watersmeet.program.pier.bloom import might_contain
from watersmeet.program.pier.values import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    INTEGER,
    NULL,
    NUMBERS,
    STRING,
    TIMESTAMP,
    checked_integer,
    common_type,
)

Types = Sequence[str]
Codes = Sequence[str]


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function: the type of its result (None: it does not take arguments of these types) and its Python text."""

    result: Callable[[Types], str | None]
    code: Callable[[Codes, Types], str]
    is_strict: bool = True  # NULL if an argument is


def _comparison(symbol: str) -> ScalarFunction:
    def code(codes: Codes, types: Types) -> str:
        a, b = codes
        if DOUBLE in types and DECIMAL in types:
            a, b = f"float({a})", f"float({b})"
        plain = f"{a} {symbol} {b}"
        if DOUBLE not in types:
            return f"({plain})"
        both, left, right = f"({a} != {a} and {b} != {b})", f"({a} != {a})", f"({b} != {b})"
        match symbol:
            case "==":
                return f"({plain} or {both})"
            case "!=":
                return f"({plain} and not {both})"
            case "<":
                return f"({plain} or ({right} and not {left}))"
            case "<=":
                return f"({plain} or {right})"
            case ">":
                return f"({plain} or ({left} and not {right}))"
            case _:
                return f"({plain} or {left})"

    return ScalarFunction(lambda types: BOOLEAN if len(types) == 2 and common_type(types) else None, code)


def _arithmetic(symbol: str) -> ScalarFunction:
    def result(types: Types) -> str | None:
        if len(types) != 2:
            return None
        if symbol in "+-" and types[0] == TIMESTAMP and types[1] in (INTEGER, NULL):
            return TIMESTAMP
        if symbol == "-" and tuple(types) == (TIMESTAMP, TIMESTAMP):
            return INTEGER
        common = common_type(types)
        return common if common in NUMBERS or common == NULL else None

    def code(codes: Codes, types: Types) -> str:
        a, b = _numbers(codes, types)
        plain = f"{a} {symbol} {b}"
        return f"({plain})" if common_type(types) in (DOUBLE, DECIMAL) else f"checked_integer({plain})"

    return ScalarFunction(result, code)


def _numbers(codes: Codes, types: Types) -> list[str]:
    common = common_type(types)
    return [
        f"float({code})" if common == DOUBLE and kind == DECIMAL else code
        for code, kind in zip(codes, types, strict=True)
    ]


def _numeric(result: Callable[[str], str], code: Callable[[Codes, str], str]) -> ScalarFunction:
    """A function of two numbers."""

    def of_types(types: Types) -> str | None:
        common = common_type(types)
        return result(common) if len(types) == 2 and common in NUMBERS else None

    return ScalarFunction(of_types, lambda codes, types: code(_numbers(codes, types), common_type(types) or NULL))


def _of(kinds: Sequence[str], result: str | None, text: str) -> ScalarFunction:
    """A function of one argument of certain types; without a result type, that of its argument."""
    return ScalarFunction(
        lambda types: (result or types[0]) if len(types) == 1 and types[0] in (*kinds, NULL) else None,
        lambda codes, types: text.format(codes[0]),
    )


def _signed(text: str) -> ScalarFunction:
    """A function of one number that may leave 64 bits: the least whole number has no opposite."""
    return ScalarFunction(
        lambda types: types[0] if len(types) == 1 and types[0] in (*NUMBERS, NULL) else None,
        lambda codes, types: f"{'checked_integer' if types[0] == INTEGER else ''}({text.format(codes[0])})",
    )


def _like(kinds: Sequence[str], result: str, text: str) -> ScalarFunction:
    """A function of arguments with these very types."""
    return ScalarFunction(
        lambda types: (
            result
            if len(types) == len(kinds)
            and all(kind in (wanted, NULL) for kind, wanted in zip(types, kinds, strict=True))
            else None
        ),
        lambda codes, types: text.format(*codes),
    )


def _logic(text: str) -> ScalarFunction:
    return ScalarFunction(
        lambda types: BOOLEAN if types and all(kind in (BOOLEAN, NULL) for kind in types) else None,
        lambda codes, types: f"{text}(({', '.join(f'lambda: {code}' for code in codes)},))",
        is_strict=False,
    )


def _extreme(text: str) -> ScalarFunction:
    return ScalarFunction(
        lambda types: common_type(types) if types else None,
        lambda codes, types: f"{text}(({', '.join(codes)},))",
        is_strict=False,
    )


def _chosen(types: Types) -> str | None:
    return common_type(types[1:]) if len(types) == 3 and types[0] in (BOOLEAN, NULL) else None


def all_of(conditions: Sequence[Callable[[], bool | None]]) -> bool | None:
    """SQL's AND; what follows a false condition is not evaluated."""
    verdict: bool | None = True
    for condition in conditions:
        found = condition()
        if found is False:
            return False
        if found is None:
            verdict = None
    return verdict


def any_of(conditions: Sequence[Callable[[], bool | None]]) -> bool | None:
    """SQL's OR; what follows a true condition is not evaluated."""
    verdict: bool | None = False
    for condition in conditions:
        found = condition()
        if found is True:
            return True
        if found is None:
            verdict = None
    return verdict


def _ordered(value: Any) -> tuple[bool, Any]:
    return (value != value, value)  # NaN is the greatest


def _greatest(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return max(known, key=_ordered) if known else None


def _least(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return min(known, key=_ordered) if known else None


def _coalesce(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _remainder(a: Any, b: Any) -> Any:
    """With the sign of the dividend, as SQL has it."""
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def _quotient(a: Any, b: Any) -> Any:
    return checked_integer((abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1))


def _divided(a: Any, b: Any) -> Any:
    return a / b if b else None


def _substring(text: str, start: int, length: int) -> str:
    """SQL's: positions count from 1, negative ones from the end, and what lies before the text is cut off."""
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    return text[max(0, first) : max(0, first + max(0, length))]


def _matches(text: str, pattern: str) -> bool:
    parts = [{"%": ".*", "_": "."}.get(character, escape(character)) for character in pattern]
    return compile_pattern("".join(parts), DOTALL).fullmatch(text) is not None


def _as_integer(value: Any) -> int:
    if isinstance(value, str):
        return checked_integer(int(value.strip()))
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("no whole number")
    return checked_integer(int(value))


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _bucket(ts: int, width: int) -> int:
    return checked_integer(ts - ts % width)


NAMESPACE: Mapping[str, Any] = {
    "all_of": all_of,
    "any_of": any_of,
    "as_integer": _as_integer,
    "as_text": _as_text,
    "bucket": _bucket,
    "ceil": ceil,
    "checked_integer": checked_integer,
    "coalesce": _coalesce,
    "divided": _divided,
    "floor": floor,
    "greatest": _greatest,
    "least": _least,
    "matches": _matches,
    "might_contain": might_contain,
    "quotient": _quotient,
    "remainder": _remainder,
    "substring": _substring,
    "Decimal": Decimal,
}

FUNCTIONS: Mapping[str, ScalarFunction] = {
    "equals": _comparison("=="),
    "notequals": _comparison("!="),
    "lessthan": _comparison("<"),
    "lessthanequals": _comparison("<="),
    "greaterthan": _comparison(">"),
    "greaterthanequals": _comparison(">="),
    "and": _logic("all_of"),
    "or": _logic("any_of"),
    "not": _of((BOOLEAN,), BOOLEAN, "(not {})"),
    "isnull": ScalarFunction(
        lambda types: BOOLEAN if len(types) == 1 else None, lambda c, _: f"({c[0]} is None)", False
    ),
    "isnotnull": ScalarFunction(
        lambda types: BOOLEAN if len(types) == 1 else None, lambda c, _: f"({c[0]} is not None)", False
    ),
    "add": _arithmetic("+"),
    "subtract": _arithmetic("-"),
    "multiply": _arithmetic("*"),
    "divide": _numeric(
        lambda kind: DECIMAL if kind == DECIMAL else DOUBLE, lambda codes, kind: f"divided({codes[0]}, {codes[1]})"
    ),
    "div": _numeric(lambda kind: INTEGER, lambda codes, kind: f"quotient({codes[0]}, {codes[1]})"),
    "mod": _numeric(lambda kind: kind, lambda codes, kind: f"remainder({codes[0]}, {codes[1]})"),
    "negate": _signed("-{}"),
    "abs": _signed("abs({})"),
    "floor": _of((DOUBLE, DECIMAL, INTEGER), INTEGER, "checked_integer(floor({}))"),
    "ceil": _of((DOUBLE, DECIMAL, INTEGER), INTEGER, "checked_integer(ceil({}))"),
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
    "coalesce": _extreme("coalesce"),
    "if": ScalarFunction(_chosen, lambda c, _: f"({c[1]} if {c[0]} else {c[2]})", False),
    "lower": _of((STRING,), STRING, "{}.lower()"),
    "upper": _of((STRING,), STRING, "{}.upper()"),
    "trim": _of((STRING,), STRING, "{}.strip(' ')"),
    "length": _of((STRING, BINARY), INTEGER, "len({})"),
    "concat": ScalarFunction(
        lambda types: STRING if types and all(kind in (STRING, NULL) for kind in types) else None,
        lambda codes, types: f"''.join(({', '.join(codes)},))",
    ),
    "substring": _like((STRING, INTEGER, INTEGER), STRING, "substring({}, {}, {})"),
    "like": _like((STRING, STRING), BOOLEAN, "matches({}, {})"),
    "tointeger": _of((*NUMBERS, STRING, BOOLEAN), INTEGER, "as_integer({})"),
    "todouble": _of((*NUMBERS, STRING, BOOLEAN), DOUBLE, "float({})"),
    "tostring": _of((INTEGER, STRING, BOOLEAN), STRING, "as_text({})"),
    "bucket": ScalarFunction(
        lambda types: types[0] if len(types) == 2 and types[0] in (TIMESTAMP, DATE, INTEGER) else None,
        lambda codes, types: f"bucket({codes[0]}, {codes[1]})",
    ),
    "mightcontain": ScalarFunction(
        lambda types: BOOLEAN if len(types) > 1 and types[0] in (BINARY, NULL) else None,
        lambda codes, types: f"might_contain({codes[0]}, ({', '.join(codes[1:])},))",
    ),
}
