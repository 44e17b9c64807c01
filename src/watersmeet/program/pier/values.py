"""The types of column values: how each is written in UFL, read back, and how many bytes it takes in a message.

Values are plain Python objects: a timestamp is whole microseconds since 1970, a date whole days, so that nothing here
depends on a calendar or a zone. Arrays of a type (`integer[]`) and objects, which operators pass on and do not look
into (PIER, 3.3.1), are what aggregates make; there are no constants of these.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

INTEGER, DOUBLE, DECIMAL, STRING = "integer", "double", "decimal", "string"
BOOLEAN, TIMESTAMP, DATE, BINARY, NULL = "boolean", "timestamp", "date", "binary", "null"
OBJECT, _ARRAY = "object", "[]"
NUMBERS = (INTEGER, DOUBLE, DECIMAL)
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One type of values."""

    read: Callable[[str], Any]  # ValueError if a text is none
    write: Callable[[Any], str]
    size_bytes: int | None  # None: as long as the value, and two bytes for its length


def array_of(kind: str) -> str:
    """The type of arrays of values of a type."""
    return f"{kind}{_ARRAY}"


def element_of(kind: str) -> str | None:
    """The type of an array's values; None of other types.

    >>> element_of("integer[]"), element_of("integer")
    ('integer', None)
    """
    return kind.removesuffix(_ARRAY) if kind.endswith(_ARRAY) else None


# Of which Python types the values of a type are; whole numbers go with the others. Of arrays and objects there are none
# outside operators.
PYTHON_TYPES: dict[str, frozenset[type]] = {
    INTEGER: frozenset((int,)),
    DOUBLE: frozenset((float, int)),
    DECIMAL: frozenset((Decimal, int)),
    STRING: frozenset((str,)),
    BOOLEAN: frozenset((bool,)),
    TIMESTAMP: frozenset((int,)),
    DATE: frozenset((int,)),
    BINARY: frozenset((bytes,)),
    NULL: frozenset(),
}


def are_of_type(values: Iterable[Any], kind: str) -> bool:
    """Whether all values that are not NULL are of a type.

    >>> are_of_type((1, None), INTEGER), are_of_type((1, "x"), INTEGER), are_of_type((1 << 63,), INTEGER)
    (True, False, False)
    """
    known = [value for value in values if value is not None]
    types = set(map(type, known))
    if not types <= PYTHON_TYPES.get(kind, frozenset()):
        return False
    return types != {int} or (min(known) >= _INTEGER_MIN and max(known) <= _INTEGER_MAX)


def common_type(types: Iterable[str]) -> str | None:
    """The type to which values of these types can be brought; None if there is none.

    >>> common_type((INTEGER, NULL, DOUBLE)), common_type((INTEGER, STRING))
    ('double', None)
    """
    kinds = {kind for kind in types if kind != NULL}
    if len(kinds) <= 1:
        return next(iter(kinds), NULL)
    if kinds <= set(NUMBERS):
        return DOUBLE if DOUBLE in kinds else DECIMAL
    return None


def checked_integer(value: int) -> int:
    """A whole number, if it fits into 64 bits.

    >>> checked_integer(5)
    5
    """
    if not _INTEGER_MIN <= value <= _INTEGER_MAX:
        raise OverflowError("a whole number does not fit into 64 bits")
    return value


def _read_integer(text: str) -> int:
    if not text.isascii() or len(text) > 20:
        raise ValueError(text)
    try:
        return checked_integer(int(text))
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _read_decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if not value.is_finite() or len(text) > 100:
        raise ValueError(text)
    return value


def _read_boolean(text: str) -> bool:
    if text.casefold() not in ("true", "false"):
        raise ValueError(text)
    return text.casefold() == "true"


def _read_null(text: str) -> None:
    if text.casefold() != "null":
        raise ValueError(text)


def _write_double(value: float) -> str:
    return repr(value) if isfinite(value) else str(value)


TYPES = {
    INTEGER: ColumnType(_read_integer, str, 8),
    DOUBLE: ColumnType(float, _write_double, 8),
    DECIMAL: ColumnType(_read_decimal, str, 16),
    STRING: ColumnType(str, str, None),
    BOOLEAN: ColumnType(_read_boolean, lambda value: "true" if value else "false", 1),
    TIMESTAMP: ColumnType(_read_integer, str, 8),
    DATE: ColumnType(_read_integer, str, 4),
    BINARY: ColumnType(bytes.fromhex, bytes.hex, None),
    NULL: ColumnType(_read_null, lambda _: "null", 0),
}


def fixed_bytes(kind: str) -> int | None:
    """What every value of a type takes in a message; None where that depends on the value."""
    return TYPES[kind].size_bytes if kind in TYPES else None


def value_bytes(value: Any, kind: str) -> int:
    """What a value takes in a message.

    >>> value_bytes("abc", STRING), value_bytes(7, INTEGER), value_bytes(None, INTEGER)
    (5, 8, 0)
    >>> value_bytes((7, 8), "integer[]"), value_bytes((("a", 2),), OBJECT)
    (18, 15)
    """
    if value is None:
        return 0
    element = element_of(kind)
    if element is not None:
        return 2 + sum(value_bytes(each, element) for each in value)
    if kind == OBJECT:
        return _object_bytes(value)
    fixed = fixed_bytes(kind)
    if fixed is not None:
        return fixed
    return 2 + (len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode()))


def _object_bytes(value: Any) -> int:
    if isinstance(value, tuple):
        return 2 + sum(map(_object_bytes, value))
    return value_bytes(value, STRING if isinstance(value, str) else BINARY if isinstance(value, bytes) else INTEGER)


def key_text(values: tuple[Any, ...]) -> str | None:
    """The partitioning key of values: equal for values that SQL finds equal; None if one of them is NULL.

    >>> key_text((5, "a")) == key_text((5.0, "a")), key_text(("5",)) == key_text((5,)), key_text((None,))
    (True, False, None)
    """
    parts = []
    for value in values:
        if value is None:
            return None
        if isinstance(value, str):
            parts.append(f"'{value.replace(chr(39), chr(39) * 2)}'")
        elif isinstance(value, bytes):
            parts.append(f"x{value.hex()}")
        elif isinstance(value, tuple):
            parts.append(repr(value))
        elif isinstance(value, int) or not isfinite(value):
            parts.append(str(value))
        elif value == int(value):
            parts.append(str(int(value)))
        else:
            parts.append(repr(float(value)))
    return ",".join(parts)
