"""A YAML document as plain values with the line of each key, so that errors can point at it."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from watersmeet.errors import InputError, TopologyError, did_you_mean

SIZE_BYTES = {"B": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
MAX_FILE_BYTES = 4_000_000
MAX_DEPTH = 50  # of lists and mappings in each other
MAX_VALUES = 200_000  # of a file, keys among them, and each alias counted as all that it stands for
MAX_WHOLE = 2**53  # beyond it not every whole number is a float
_AMOUNT = re.compile(r"\s*([+-]?\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]+)\s*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of the document with its file and line."""

    value: Any  # scalar, list[Entry] or dict[str, Entry]
    file: str
    line: int

    def fail(self, message: str) -> TopologyError:
        """The error to raise for this place."""
        error = TopologyError(f"{self.file}, line {self.line}: {message}")
        error.file = self.file
        return error

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
        if control := _CONTROL.search(self.value):
            raise self.fail(f"{what} has the control character U+{ord(control[0]):04X}; remove it")
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

    def whole(self, what: str) -> int:
        """This value as a whole number."""
        number = self.number(what)
        if not isfinite(number) or number != int(number) or abs(number) > MAX_WHOLE:
            raise self.fail(f"{what} must be a whole number, not {self.value!r}")
        return int(number)

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
    text = _read_text(path)
    _check_count(path, text)
    try:
        node = yaml.compose(text, Loader=_BoundedLoader)
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
    return _Conversion(str(path)).entry(node)


def _check_count(path: Path, text: str) -> None:
    """Refuse too many values before any is made; libyaml counts them ten times as fast as Python makes them."""
    count = depth = 0
    with contextlib.suppress(yaml.YAMLError):  # of which the loader says more, as of too much depth
        for event in yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):
            count += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                return
            if count > MAX_VALUES:
                raise _too_many(str(path), event.start_mark.line + 1 if event.start_mark else 1)


def _too_many(file: str, line: int) -> TopologyError:
    return TopologyError(
        f"{file}, line {line}: the file has more than {MAX_VALUES:,} values, aliases written out; use fewer"
    )


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise TopologyError(f"{path}: the file is longer than {MAX_FILE_BYTES // 1_000_000} MB; split it")
        return data.decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise TopologyError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        place = f"byte {error.start}: {error.reason}"
        raise TopologyError(f"{path}: not text in UTF-8 ({place}); save it as UTF-8") from None
    except OSError as error:
        raise TopologyError(f"{path}: cannot be read: {error.strerror}") from None


class _BoundedLoader(yaml.SafeLoader):
    """Refuses what is nested too deeply before Python's stack ends."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP, event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


_TOO_DEEP = f"lists and mappings are nested more than {MAX_DEPTH} deep; take some out of the others"


class _Conversion:
    """Nodes of one file to entries; aliases are written out, so their number is bounded."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._count = 0

    def entry(self, node: yaml.Node, line: int | None = None, around: tuple[yaml.Node, ...] = ()) -> Entry:
        """A node with all that is in it."""
        line = node.start_mark.line + 1 if line is None else line
        if any(node is outer for outer in around):
            raise self._error(line, "the anchor contains itself; refer to another one with `*`")
        self._count += 1
        if self._count > MAX_VALUES:
            raise _too_many(self._file, line)
        around = (*around, node)
        if len(around) > MAX_DEPTH:
            raise self._error(line, _TOO_DEEP)
        match node:
            case yaml.ScalarNode():
                is_null = node.tag == "tag:yaml.org,2002:null"
                is_bool = node.tag == "tag:yaml.org,2002:bool"
                return Entry(None if is_null else node.value.lower() if is_bool else node.value, self._file, line)
            case yaml.SequenceNode():
                return Entry([self.entry(item, None, around) for item in node.value], self._file, line)
            case yaml.MappingNode():
                return Entry(self._mapping(node, around), self._file, line)
        raise AssertionError(f"unexpected YAML node {node!r}")

    def _mapping(self, node: yaml.MappingNode, around: tuple[yaml.Node, ...]) -> dict[str, Entry]:
        merged: dict[str, Entry] = {}
        values: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(line, "a key must be one word, not a list or a mapping")
            if key_node.tag == "tag:yaml.org,2002:merge":
                bases = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for base in reversed(bases):
                    merged |= self.entry(base, line, around).mapping("what is merged with <<")
                continue
            if key in values:
                raise self._error(line, f"duplicate name {key!r}, first given on line {values[key].line}")
            values[key] = self.entry(value_node, line, around)
        return merged | values

    def _error(self, line: int, message: str) -> TopologyError:
        return TopologyError(f"{self._file}, line {line}: {message}")
