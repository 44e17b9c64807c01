"""Frozen dataclasses as JSON and back, by their type hints: what ledgers and task reports are written in."""

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


def to_json(value: Any) -> str:
    """A dataclass as one line of JSON."""
    return json.dumps(value, default=_members, separators=(",", ":"))


def from_json(kind: type[Value], text: str) -> Value:
    """The value that `to_json` wrote."""
    result: Value = decode(kind, json.loads(text))
    return result


def _members(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} is not written to JSON")


def decode(kind: Any, data: Any) -> Any:
    """Plain data as a value of a type: dataclasses, tuples, mappings with text keys, optional and plain values."""
    decoder = _decoder(kind)
    return data if decoder is None else decoder(data)


@cache
def _decoder(kind: Any) -> Any:
    """What turns plain data into a type, or None where the data is already the value."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (inner,) = [_decoder(one) for one in arguments if one is not types.NoneType]
        return None if inner is None else lambda data: None if data is None else inner(data)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            inner = _decoder(arguments[0])
            return tuple if inner is None else lambda data: tuple(map(inner, data))
        inners = [_decoder(one) for one in arguments]
        return lambda data: tuple(one if inner is None else inner(one) for inner, one in zip(inners, data, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        inner = _decoder(arguments[1])
        return None if inner is None else lambda data: {name: inner(one) for name, one in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
        needed = {name: inner for name, inner in decoders.items() if inner is not None}

        made: Any = kind

        def build(data: dict[str, Any]) -> Any:
            return made(**{name: needed[name](one) if name in needed else one for name, one in data.items()})

        return build
    return None
