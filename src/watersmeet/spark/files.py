"""State files: uncompressed Arrow IPC, written once under a fresh name and memory-mapped ever after.

Names are relative to their directory, so that a checkpoint may be moved or copied as a whole.
"""

import os
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from watersmeet.program.storage.shelf import Part

_MOST_MAPPED = 256  # files that stay mapped in a process
_tables: dict[str, pa.Table] = {}  # mapped files by path; one that is deleted would stay in memory while it is mapped


@dataclass(frozen=True, slots=True)
class FileShelf:
    """A shelf whose tables and bytes are files of a directory."""

    directory: str

    def put(self, stem: str, table: pa.Table) -> Part:
        """Write a table as a file of its own."""
        name = _fresh_name(stem)
        path = self.path_of(name)
        table = table.combine_chunks()
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return Part(name, table.num_rows, os.path.getsize(path))

    def get(self, path: str) -> pa.Table:
        """Map a table into memory; its pages are shared between all processes that read it."""
        return _mapped(self.path_of(path))

    def put_bytes(self, stem: str, data: bytes) -> str:
        """Write bytes as a file of their own."""
        name = _fresh_name(stem)
        with open(self.path_of(name), "wb") as file:
            file.write(data)
        return name

    def get_bytes(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Read some bytes of a file."""
        with open(self.path_of(path), "rb") as file:
            file.seek(start)
            return file.read() if size is None else file.read(size)

    def keep_only(self, names: Collection[str]) -> None:
        """Delete the files that nothing refers to."""
        for entry in Path(self.directory).iterdir():
            if entry.name not in names:
                _tables.pop(str(entry), None)
                entry.unlink(missing_ok=True)

    def path_of(self, name: str) -> str:
        """The path of a file."""
        return os.path.join(self.directory, name)


def _mapped(path: str) -> pa.Table:
    """A file that was written once is mapped once: windows are read by every micro-batch."""
    table = _tables.get(path)
    if table is None:
        if len(_tables) >= _MOST_MAPPED:
            _tables.clear()
        with pa.memory_map(path) as source:
            table = _tables[path] = pa.ipc.open_file(source).read_all()
    return table


def _fresh_name(stem: str) -> str:
    """A name nobody has used: what a killed attempt leaves behind is never mistaken for state."""
    return f"{stem}-{uuid.uuid4().hex[:12]}.arrow"
