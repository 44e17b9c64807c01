"""Writing to disk so that it survives: what is named is flushed before whatever names it.

All durable writes go through here. With `durability: power` files and directories are flushed to the device; with
`process` nothing is, and only what the operating system holds survives, which is enough where only processes die.
"""

import fcntl
import os
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import IO

from watersmeet.errors import CheckpointMismatch

_FLUSHED_AT_ONCE = 16  # the file system writes its journal once for all that wait


def flush_path(path: str | Path) -> None:
    """Make the bytes of a file, or the names in a directory, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_FLUSHED_AT_ONCE, "flush")


@dataclass(frozen=True, slots=True)
class Disk:
    """A local disk; `flushes` says whether what is written is to survive power cuts."""

    flushes: bool = True

    def flush(self, paths: Iterable[str | Path]) -> None:
        """Flush files and directories, all at the same time."""
        if self.flushes:
            wanted = sorted({str(path) for path in paths})
            if len(wanted) == 1:
                flush_path(wanted[0])
            else:
                list(_threads().map(flush_path, wanted))

    def replace(self, path: Path, text: str, after: Iterable[str | Path] = ()) -> None:
        """Put a file in place whole, once what it names is flushed: a reader sees the old text or the new."""
        fresh = path.with_name(f"{path.name}.tmp")  # there is one writer, who holds the lock
        fresh.unlink(missing_ok=True)  # what a power cut has left may be the same file under both names
        fresh.write_text(text, encoding="utf-8")
        self.flush([fresh, *after])
        os.replace(fresh, path)
        self.flush([path.parent])

    def make(self, directory: str | Path) -> None:
        """Make a directory and its parents."""
        place = Path(directory)
        if place.is_dir():
            return
        made = list(takewhile(lambda path: not path.exists(), (place, *place.parents)))
        place.mkdir(parents=True, exist_ok=True)
        self.flush(path.parent for path in made)


FLUSHED, UNFLUSHED = Disk(), Disk(flushes=False)


def lock(directory: Path) -> IO[str]:
    """Hold a site's checkpoint until the file is closed."""
    held = open(directory / "lock", "w", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise CheckpointMismatch(
            f"checkpoint {directory} is in use by another run; stop that one or give another --checkpoint"
        ) from None
    return held


def sealed(text: str) -> str:
    """A JSON object with a checksum of the rest as its first member."""
    return f'{{"crc32":"{zlib.crc32(text[1:].encode()):08x}",{text[1:]}'


def unsealed(text: str) -> str:
    """The JSON object that `sealed` was given; a ValueError if it is another."""
    start = len('{"crc32":"00000000",')
    if text[:start] != sealed("{" + text[start:])[:start]:
        raise ValueError("its checksum does not match")
    return "{" + text[start:]


def tree(directory: str | Path) -> Iterator[str]:
    """All files and directories of a directory, itself included; not those that are being written."""
    yield str(directory)
    for entry in os.scandir(directory):
        if entry.is_dir():
            yield from tree(entry.path)
        elif not entry.name.startswith("."):
            yield entry.path
