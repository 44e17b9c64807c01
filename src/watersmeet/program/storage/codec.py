"""Frozen dataclasses as JSON and back, by their type hints: what ledgers, plans and task reports are written in.

A value that has a union of several classes in it is written with the name of the class beside its fields.
"""

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Value = TypeVar("Value")

_LEAST, _MOST = -(2**63), 2**63 - 1
_CLASS = "is"  # the name of a value's class, where it is written


def to_json(value: Any, *, named: bool = False) -> str:
    """A dataclass as one line of JSON; `named` writes classes, which unions of several need."""
    return json.dumps(value, default=_named_members if named else _members, separators=(",", ":"))


def from_json(kind: type[Value], text: str | bytes) -> Value:
    """The value that `to_json` wrote."""
    result: Value = decode(kind, json.loads(text))
    return result


def fits(kind: Any, value: Any) -> bool:
    """Whether a value, and all that is in it, is of a type: data that is not ours says what it likes."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(argument, value) for argument in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        inner = [arguments[0]] * len(value) if arguments[1:] == (...,) else list(arguments)
        return len(inner) == len(value) and all(map(fits, inner, value))
    if origin is Literal:
        return any(type(value) is type(argument) and value == argument for argument in arguments)
    if origin is not None and issubclass(origin, Mapping):
        is_mapping = isinstance(value, Mapping)
        return is_mapping and all(fits(arguments[0], name) and fits(arguments[1], one) for name, one in value.items())
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints_of(kind)
        return type(value) is kind and all(
            fits(hints[field.name], getattr(value, field.name)) for field in fields(kind)
        )
    if kind is Any:
        return True
    if kind is int:
        return type(value) is int and _LEAST <= value <= _MOST
    return type(value) is kind or (kind is float and type(value) is int)


def _members(value: Any) -> Any:
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names_of(kind)}


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass: thousands of values of few classes are written at every commit."""
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not written to JSON")
    return tuple(field.name for field in fields(kind))


def _named_members(value: Any) -> Any:
    return {_CLASS: type(value).__name__, **_members(value)}


def decode(kind: Any, data: Any) -> Any:
    """Plain data as a value of a type: dataclasses, tuples, mappings with text keys, optional and plain values."""
    decoder = _decoder(kind)
    return data if decoder is None else decoder(data)


@cache
def _decoder(kind: Any) -> Any:
    """What turns plain data into a type, or None where the data is already the value."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        classes = [argument for argument in arguments if argument is not types.NoneType]
        if len(classes) > 1:
            return _one_of({value.__name__: value for value in classes})
        inner = _decoder(classes[0])
        return None if inner is None else lambda data: None if data is None else inner(data)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            inner = _decoder(arguments[0])
            return tuple if inner is None else lambda data: tuple(map(inner, data))
        inners = [_decoder(argument) for argument in arguments]
        return lambda data: tuple(one if inner is None else inner(one) for inner, one in zip(inners, data, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        inner = _decoder(arguments[1])
        return None if inner is None else lambda data: {name: inner(value) for name, value in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if is_dataclass(kind):
        made: Any = kind

        def build(data: dict[str, Any]) -> Any:
            values = dict(data)
            values.pop(_CLASS, None)
            for name, inner in _members_of(made).items():
                if name in values:
                    values[name] = inner(values[name])
            return made(**values)

        return build
    return None


def _one_of(classes: Mapping[str, Any]) -> Any:
    """What decodes a value of one of several classes."""
    return lambda data: None if data is None else decode(classes[data[_CLASS]], data)


@cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _members_of(kind: Any) -> dict[str, Any]:
    """What decodes the members of a dataclass that are not plain; asked for late, since a class may contain itself."""
    hints = _hints_of(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
    return {name: inner for name, inner in decoders.items() if inner is not None}
