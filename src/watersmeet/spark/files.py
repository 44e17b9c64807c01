"""State files: uncompressed Arrow IPC, written once under a fresh name and memory-mapped ever after."""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from watersmeet.program.site.ledger import Part, Segment
from watersmeet.program.storage.segments import KEY, ORDINAL, TS, bucket_bounds, bucket_slice, column


def fresh_path(directory: str, stem: str) -> str:
    """A name nobody has used: what a killed attempt leaves behind is never mistaken for state."""
    return os.path.join(directory, f"{stem}-{uuid.uuid4().hex[:12]}.arrow")


def write_table(directory: str, stem: str, table: pa.Table) -> Part:
    """Write one table as one file."""
    path = fresh_path(directory, stem)
    table = table.combine_chunks()
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return Part(path, table.num_rows, os.path.getsize(path))


def read_table(path: str) -> pa.Table:
    """Map one file into memory; its pages are shared between all processes that read it."""
    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).read_all()


def write_segment(directory: str, stem: str, table: pa.Table) -> Segment:
    """Write a table with timestamps as a segment of one file."""
    part = write_table(directory, stem, table)
    ts = column(table, TS)
    ordinals = column(table, ORDINAL) if ORDINAL in table.column_names else None
    return Segment(
        (part,),
        int(ts.min()),
        int(ts.max()),
        -1 if ordinals is None else int(ordinals.min()),
        -1 if ordinals is None else int(ordinals.max()),
    )


@dataclass(frozen=True, slots=True)
class FileShelf:
    """A shelf whose tables and bytes are files of a directory."""

    directory: str

    def put(self, stem: str, table: pa.Table) -> Part:
        """Write a table as a file of its own."""
        return write_table(self.directory, stem, table)

    def get(self, path: str) -> pa.Table:
        """Map a table into memory."""
        return read_table(path)

    def put_bytes(self, stem: str, data: bytes) -> str:
        """Write bytes as a file of their own."""
        path = fresh_path(self.directory, stem)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def get_bytes(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Read some bytes of a file."""
        with open(path, "rb") as file:
            file.seek(start)
            return file.read() if size is None else file.read(size)


def read_bucket(part: Part, bucket: int, buckets: int) -> pa.Table | None:
    """The slice of a sorted file that lies in a bucket, or None where it has nothing there."""
    low, high = bucket_bounds(bucket, buckets)
    if part.high_key < low or part.low_key > high:
        return None
    table = read_table(part.path)
    start, stop = bucket_slice(column(table, KEY), bucket, buckets)
    return table.slice(start, stop - start) if stop > start else None


def remove_all_but(directory: str, kept: frozenset[str]) -> None:
    """Delete the files of a directory that nothing refers to."""
    for entry in Path(directory).iterdir():
        if str(entry) not in kept:
            entry.unlink(missing_ok=True)
