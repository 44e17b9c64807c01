"""Where a site keeps tables and bytes between tasks and micro-batches; what is put is never changed."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from watersmeet.program.storage.segments import KEY, ORDINAL, bucket_bounds, bucket_slice, column


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a segment, which holds the rows whose keys lie in a range."""

    path: str
    rows: int
    bytes: int
    low_key: int = 0
    high_key: int = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one window that came together: sorted files, their time and ordinal ranges, and how often merged."""

    parts: tuple[Part, ...]
    min_ts: int
    max_ts: int
    min_ordinal: int = -1
    max_ordinal: int = -1
    level: int = 0

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def low(self, axis: str) -> int:
        return self.min_ordinal if axis == ORDINAL else self.min_ts

    def high(self, axis: str) -> int:
        return self.max_ordinal if axis == ORDINAL else self.max_ts


class Shelf(Protocol):
    """Tables and bytes by the names they were given when put."""

    def put(self, stem: str, table: pa.Table) -> Part:
        """Keep a table under a fresh name."""

    def get(self, path: str) -> pa.Table:
        """A table that was put."""

    def put_bytes(self, stem: str, data: bytes) -> str:
        """Keep bytes under a fresh name."""

    def get_bytes(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Some of the bytes that were put."""


class MemoryShelf:
    """A shelf in memory, for runtimes that need no disk."""

    def __init__(self) -> None:
        self._tables: dict[str, pa.Table] = {}
        self._bytes: dict[str, bytes] = {}
        self._count = 0

    def put(self, stem: str, table: pa.Table) -> Part:
        path = self._fresh(stem)
        self._tables[path] = table
        return Part(path, table.num_rows, table.nbytes)

    def get(self, path: str) -> pa.Table:
        return self._tables[path]

    def put_bytes(self, stem: str, data: bytes) -> str:
        path = self._fresh(stem)
        self._bytes[path] = data
        return path

    def get_bytes(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        data = self._bytes[path]
        return data[start:] if size is None else data[start : start + size]

    def keep_only(self, paths: Collection[str]) -> None:
        """Forget everything else."""
        self._tables = {path: table for path, table in self._tables.items() if path in paths}
        self._bytes = {path: data for path, data in self._bytes.items() if path in paths}

    def __len__(self) -> int:
        return len(self._tables) + len(self._bytes)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}#{self._count}"


def bucket_rows(shelf: Shelf, part: Part, bucket: int, buckets: int) -> pa.Table | None:
    """The rows of a sorted table that are in a bucket; all rows of one that has no key, such as filters."""
    low, high = bucket_bounds(bucket, buckets)
    if part.high_key < low or part.low_key > high:
        return None
    table = shelf.get(part.path)
    if buckets == 1 or KEY not in table.column_names:
        return table
    start, stop = bucket_slice(column(table, KEY), bucket, buckets)
    return table.slice(start, stop - start) if stop > start else None
