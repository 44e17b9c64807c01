"""State files in an object store, with copies on this machine's disk under the same names.

A name tells size and checksum of what it names, which never changes: a copy that is there and right is as good as the
object. Copies are mapped into memory as files of a local checkpoint are. There may be so many bytes of them; beyond
that those go that were opened the longest time ago.
"""

import contextlib
import os
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from watersmeet.errors import CheckpointDamaged, damaged
from watersmeet.program.storage.shelf import Part
from watersmeet.spark.files import FileShelf, forget, size_of
from watersmeet.spark.store.cache import cache_bytes
from watersmeet.spark.store.object_store import ObjectStore

STATE = "state"
_ATTEMPTS = 3  # at opening a copy that another process may remove
_UNTRIMMED_BYTES = 256 << 20  # that tasks may add before it is looked how many there are
_added_bytes: dict[str, int] = {}  # by directory, since it was last trimmed


@dataclass(frozen=True, slots=True)
class StoreShelf(FileShelf):
    """A shelf whose files are objects `state/NAME` of a store; in `directory` are copies."""

    store: ObjectStore = field(kw_only=True)
    writes_through: bool = False  # whether others read what is put before it is committed: tasks on other machines

    def put(self, stem: str, table: pa.Table) -> Part:
        os.makedirs(self.directory, exist_ok=True)
        part = FileShelf.put(self, stem, table)
        self._send(part.path)
        return part

    def put_bytes(self, stem: str, data: bytes) -> str:
        os.makedirs(self.directory, exist_ok=True)
        name = FileShelf.put_bytes(self, stem, data)
        self._send(name)
        return name

    def get(self, path: str) -> pa.Table:
        for _ in range(_ATTEMPTS - 1):
            self.local(path)
            with contextlib.suppress(CheckpointDamaged):
                return FileShelf.get(self, path)
            self._drop(path)
        self.local(path)
        return FileShelf.get(self, path)

    def get_bytes(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        for _ in range(_ATTEMPTS - 1):
            self.local(path)
            with contextlib.suppress(CheckpointDamaged, FileNotFoundError):
                return FileShelf.get_bytes(self, path, start, size)
            self._drop(path)
        self.local(path)
        return FileShelf.get_bytes(self, path, start, size)

    def local(self, name: str) -> str:
        path = self.path_of(name)
        try:
            os.utime(path)
        except FileNotFoundError:
            self._fetch(name, path)
        return path

    def check(self, name: str) -> None:
        """Refuse an object that is not what its name tells; the copy here counts for nothing."""
        self._drop(name)
        self._fetch(name, self.path_of(name))
        FileShelf.check(self, name)

    def keep_only(self, names: Collection[str]) -> None:
        """Delete copies that nothing refers to; what is in the store is left to whoever holds the checkpoint."""
        os.makedirs(self.directory, exist_ok=True)
        FileShelf.keep_only(self, names)
        self._trim()

    def incomplete(self, names: Iterable[str]) -> list[str]:
        sizes = self.store.sizes(f"{STATE}/")
        return sorted(name for name in names if sizes.get(f"{STATE}/{name}") != size_of(name))

    def others(self, names: Collection[str]) -> list[str]:
        is_there = os.path.isdir(self.directory)
        return FileShelf.others(self, names) if is_there else []

    def _send(self, name: str) -> None:
        if self.writes_through:
            self.store.put(f"{STATE}/{name}", Path(self.path_of(name)))
            self._note_added(name)

    def _fetch(self, name: str, path: str) -> None:
        os.makedirs(self.directory, exist_ok=True)
        aside = Path(self.directory) / f".{uuid.uuid4().hex[:12]}.tmp"
        try:
            if not self.store.download(f"{STATE}/{name}", aside):
                raise damaged(f"state file {self.store.url}/{STATE}/{name} is missing")
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        if self.writes_through:
            self._note_added(name)

    def _drop(self, name: str) -> None:
        forget(self.path_of(name))
        Path(self.path_of(name)).unlink(missing_ok=True)

    def _note_added(self, name: str) -> None:
        _added_bytes[self.directory] = _added_bytes.get(self.directory, 0) + size_of(name)
        if _added_bytes[self.directory] > min(_UNTRIMMED_BYTES, cache_bytes()):
            self._trim()

    def _trim(self) -> None:
        """Remove the copies that were opened the longest time ago, while there are too many bytes of them."""
        _added_bytes[self.directory] = 0
        found = []
        for entry in os.scandir(self.directory):
            with contextlib.suppress(FileNotFoundError):  # another process removes some too
                if not entry.name.startswith("."):
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, entry.name))
        size = sum(one for _, one, _ in found)
        for _, one, name in sorted(found):
            if size <= cache_bytes():
                break
            self._drop(name)
            size -= one
