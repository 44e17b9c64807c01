"""A YAML document as plain values with the line of each key, so that errors can point at it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from watersmeet.errors import InputError, TopologyError, did_you_mean

SIZE_BYTES = {"B": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_AMOUNT = re.compile(r"\s*([+-]?\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]+)\s*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of the document with its file and line."""

    value: Any  # scalar, list[Entry] or dict[str, Entry]
    file: str
    line: int

    def fail(self, message: str) -> TopologyError:
        """The error to raise for this place."""
        return TopologyError(f"{self.file}, line {self.line}: {message}")

    def mapping(self, what: str, known: Iterable[str] | None = None) -> dict[str, "Entry"]:
        """This value as a mapping whose keys are all known."""
        if not isinstance(self.value, dict):
            raise self.fail(f"{what} must be a mapping of keys to values")
        if known is not None:
            names = list(known)
            for key, entry in self.value.items():
                if key not in names:
                    raise entry.fail(f"unknown key {key!r} in {what}; {did_you_mean(key, names)}")
        return self.value

    def text(self, what: str) -> str:
        """This value as text; numbers, booleans and dates are taken as they were written."""
        if isinstance(self.value, dict | list) or self.value is None:
            raise self.fail(f"{what} must be a single value")
        return str(self.value)

    def flag(self, what: str) -> bool:
        """This value as true or false."""
        if str(self.value) not in ("true", "false"):
            raise self.fail(f"{what} must be true or false")
        return str(self.value) == "true"

    def number(self, what: str) -> float:
        """This value as a number."""
        try:
            return float(self.text(what))
        except ValueError:
            raise self.fail(f"{what} must be a number, not {self.value!r}") from None

    def sequence(self, what: str, example: str) -> list["Entry"]:
        """This value as a list."""
        if not isinstance(self.value, list):
            raise self.fail(f"{what} must be a list, such as {example}")
        return self.value


def parse_amount(text: str, units: Mapping[str, int], example: str) -> Fraction:
    """A number with a unit, whose case does not count, in the smallest of the units.

    >>> parse_amount("2.5 kb", SIZE_BYTES, "500 B")
    Fraction(2500, 1)
    """
    match = _AMOUNT.fullmatch(text)
    if not match:
        raise InputError(f"{text!r} is not understood; write it like {example!r}")
    for unit, multiple in units.items():
        if unit.casefold() == match.group(2).casefold():
            return Fraction(match.group(1)) * multiple
    raise InputError(f"{text!r}: unknown unit {match.group(2)!r}; units: {', '.join(units)}")


def dump(value: Any) -> str:
    """Plain values as a YAML document; a list or mapping of scalars is written on one line.

    >>> print(dump({"b": {"x": 1}, "a": [2, "3"]}), end="")
    b: {x: 1}
    a: [2, '3']
    """
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1_000_000))


def read(path: Path, needs: str = "it needs at least `streams` and `queries`") -> Entry:
    """Parse one YAML file; scalars stay text, so that `1.10` is never 1.1 and `no` never false."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TopologyError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        place = f"byte {error.start}: {error.reason}"
        raise TopologyError(f"{path}: not text in UTF-8 ({place}); save it as UTF-8") from None
    except OSError as error:
        raise TopologyError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise TopologyError(f"{path}{where}: not valid YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line, character = text.count("\n", 0, error.position) + 1, ord(text[error.position])
        raise TopologyError(
            f"{path}, line {line}: not valid YAML: the character U+{character:04X} is not allowed; remove it"
        ) from None
    if node is None:
        raise TopologyError(f"{path}: the file is empty; {needs}")
    return _convert(node, str(path))


def _convert(node: yaml.Node, file: str, line: int | None = None, around: tuple[yaml.Node, ...] = ()) -> Entry:
    line = node.start_mark.line + 1 if line is None else line
    if any(node is outer for outer in around):
        raise TopologyError(f"{file}, line {line}: the anchor contains itself; refer to another one with `*`")
    around = (*around, node)
    match node:
        case yaml.ScalarNode():
            is_null = node.tag == "tag:yaml.org,2002:null"
            is_bool = node.tag == "tag:yaml.org,2002:bool"
            return Entry(None if is_null else node.value.lower() if is_bool else node.value, file, line)
        case yaml.SequenceNode():
            return Entry([_convert(item, file, None, around) for item in node.value], file, line)
        case yaml.MappingNode():
            merged: dict[str, Entry] = {}
            values: dict[str, Entry] = {}
            for key_node, value_node in node.value:
                key, key_line = str(key_node.value), key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    raise TopologyError(f"{file}, line {key_line}: a key must be one word, not a list or a mapping")
                if key_node.tag == "tag:yaml.org,2002:merge":
                    bases = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                    for base in reversed(bases):
                        merged |= _convert(base, file, key_line, around).mapping("what is merged with <<")
                    continue
                if key in values:
                    raise TopologyError(
                        f"{file}, line {key_line}: duplicate name {key!r}, first given on line {values[key].line}"
                    )
                values[key] = _convert(value_node, file, key_line, around)
            values = merged | values
            return Entry(values, file, line)
    raise AssertionError(f"unexpected YAML node {node!r}")
