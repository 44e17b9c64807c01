"""Reads event files from where it stopped, while runs append to them and begin new ones."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from watersmeet.metrics.events import Event, from_json
from watersmeet.metrics.jsonl import KEPT, KEPT_BEFORE

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file was read: which file, by its number on the disk, and up to which byte."""

    file: int
    offset: int


class Tail:
    """The lines of one event file in their order; of a checkpoint's also those in the file before it."""

    def __init__(self, path: Path, position: Position | None = None) -> None:
        self.path = path
        self.position = position
        self.damaged = 0  # lines that are no events

    def read(self) -> Iterator[tuple[float, Event]]:
        """Events that have come since the last time."""
        for line in self.lines():
            try:
                yield from_json(line.decode())
            except ValueError:
                self.damaged += 1  # cut off by a crash, or of a later version

    def lines(self) -> Iterator[bytes]:
        """The same as they are written."""
        before = self.path.with_name(KEPT_BEFORE) if self.path.name == KEPT else None
        now = _number(self.path)
        if now is None:
            return
        if self.position is None or self.position.file != now:  # a first look, or another file has begun
            if before is not None and (old := _number(before)) is not None:
                known = self.position.offset if self.position is not None and self.position.file == old else 0
                yield from self._from(before, Position(old, known))
            self.position = Position(now, 0)
        if os.stat(self.path).st_size < self.position.offset:  # it was written anew
            self.position = Position(now, 0)
        yield from self._from(self.path, self.position)

    @property
    def unread(self) -> int:
        """How many bytes of the file have come since the last time."""
        try:
            found = os.stat(self.path)
        except OSError:
            return 0
        is_known = self.position is not None and self.position.file == found.st_ino
        return found.st_size - self.position.offset if is_known and self.position is not None else found.st_size

    def _from(self, path: Path, position: Position) -> Iterator[bytes]:
        """Whole lines from a position on; the last one only when it has its end."""
        offset, rest = position.offset, b""
        with open(path, "rb") as file:
            file.seek(offset)
            while piece := file.read(_PIECE):
                lines = (rest + piece).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    offset += len(line) + 1
                    self.position = Position(position.file, offset)
                    if line.strip():
                        yield line


def _number(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
