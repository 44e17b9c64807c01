"""State files: uncompressed Arrow IPC, written once under a fresh name and memory-mapped ever after.

Names are relative to their directory, so that a checkpoint may be moved or copied as a whole. A name ends with the size
and the checksum of its file: whoever names a file says what must be in it. Both are verified when a process first reads
the file.
"""

import os
import uuid
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from watersmeet.errors import damaged
from watersmeet.program.storage.shelf import Part
from watersmeet.spark.durable import UNFLUSHED, Disk

_MOST_MAPPED = 256  # files that stay mapped in a process
_MOST_VERIFIED = 65_536  # files that a process remembers to have verified
_tables: dict[str, pa.Table] = {}  # mapped files by path; one that is deleted would stay in memory while it is mapped
_verified: dict[str, None] = {}  # files, by path, that this process has written or verified


@dataclass(frozen=True, slots=True)
class FileShelf:
    """A shelf whose tables and bytes are files of a directory; `disk` is how those who write them flush them."""

    directory: str
    disk: Disk = UNFLUSHED

    def put(self, stem: str, table: pa.Table) -> Part:
        """Write a table as a file of its own."""
        fresh = self.path_of(f"{_fresh(stem)}.tmp")
        table = table.combine_chunks()
        with pa.OSFile(fresh, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        with pa.memory_map(fresh) as source:
            data = source.read_buffer()
            name = _named(fresh.removesuffix(".tmp"), data)
        os.rename(fresh, name)
        return Part(self._written(name), table.num_rows, data.size)

    def get(self, path: str) -> pa.Table:
        """Map a table into memory; its pages are shared between all processes that read it."""
        return _mapped(self.path_of(path))

    def put_bytes(self, stem: str, data: bytes) -> str:
        """Write bytes as a file of their own."""
        path = _named(self.path_of(_fresh(stem)), data)
        with open(path, "wb") as file:
            file.write(data)
        return self._written(path)

    def get_bytes(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Read some bytes of a file."""
        where = self.path_of(path)
        if where not in _verified:
            verify(where)
        with open(where, "rb") as file:
            file.seek(start)
            return file.read() if size is None else file.read(size)

    def keep_only(self, names: Collection[str]) -> None:
        """Delete the files that nothing refers to."""
        for path in self.others(names):
            forget(path)
            Path(path).unlink(missing_ok=True)

    def verify_again(self) -> None:
        """Trust no file that was verified before."""
        for known in (_tables, _verified):
            for path in list(known):
                if os.path.dirname(path) == self.directory:
                    known.pop(path, None)

    def others(self, names: Collection[str]) -> list[str]:
        """The paths of files that are not named."""
        return sorted(entry.path for entry in os.scandir(self.directory) if entry.name not in names)

    def incomplete(self, names: Iterable[str]) -> list[str]:
        """Which of some files are missing or do not have the size that their name tells."""
        is_there = os.path.isdir(self.directory)
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(self.directory)} if is_there else {}
        return sorted(name for name in names if sizes.get(name) != _contents(name)[0])

    def path_of(self, name: str) -> str:
        """The path of a file."""
        return os.path.join(self.directory, name)

    def local(self, name: str) -> str:
        """The path of a file that is on this machine now."""
        return self.path_of(name)

    def check(self, name: str) -> None:
        """Refuse a file that is not what its name tells."""
        verify(self.path_of(name))

    def _written(self, path: str) -> str:
        self.disk.flush([path, self.directory])
        _note_verified(path)
        return os.path.basename(path)


def forget(path: str) -> None:
    """Neither map a file any longer nor trust it."""
    _tables.pop(path, None)
    _verified.pop(path, None)


def verify(path: str) -> None:
    """Refuse a file that is not what its name tells."""
    try:
        with open(path, "rb") as file:
            size, checksum = 0, 0
            while piece := file.read(1 << 20):
                size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    except OSError as error:
        raise damaged(f"state file {path} cannot be read ({error.strerror})") from None
    if (size, checksum) != _contents(os.path.basename(path)):
        raise damaged(f"state file {path} is damaged, its checksum does not match")
    _note_verified(path)


def _mapped(path: str) -> pa.Table:
    """A file that was written once is mapped once: windows are read by every micro-batch."""
    table = _tables.get(path)
    if table is None:
        if path not in _verified:
            verify(path)
        if len(_tables) >= _MOST_MAPPED:
            _tables.clear()
        with pa.memory_map(path) as source:
            table = _tables[path] = pa.ipc.open_file(source).read_all()
    return table


def _note_verified(path: str) -> None:
    if len(_verified) >= _MOST_VERIFIED:
        _verified.clear()
    _verified[path] = None


def _fresh(stem: str) -> str:
    """A name nobody has used: what a killed attempt leaves behind is never mistaken for state."""
    return f"{stem}-{uuid.uuid4().hex[:12]}"


def _named(path: str, data: bytes | pa.Buffer) -> str:
    return f"{path}-{len(data):x}-{zlib.crc32(data):08x}.arrow"


def size_of(name: str) -> int:
    """The size that a name tells."""
    return _contents(name)[0]


def _contents(name: str) -> tuple[int, int]:
    """The size and the checksum that a name tells; of a name of another form what no file has."""
    try:
        size, checksum = name.removesuffix(".arrow").rsplit("-", 2)[1:]
        return int(size, 16), int(checksum, 16)
    except ValueError:
        return -1, -1
