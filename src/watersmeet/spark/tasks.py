"""What runs inside Spark tasks: picklable values whose call turns Arrow batches into Arrow batches.

Tasks exchange rows through sorted files in the state directory rather than Spark's shuffle: what a window needs is
written once, sorted, and the same file serves as the exchange and as the state.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa
from pyspark import TaskContext

from watersmeet.errors import damaged
from watersmeet.program.finish.failed import set_failing_aside
from watersmeet.program.finish.model import Finish
from watersmeet.program.site.adoption import program_in
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.ingest import Ingest, first_row_id, has_event_time
from watersmeet.program.site.ledger import Ingested
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage import sizes
from watersmeet.program.storage.codec import to_json
from watersmeet.spark.files import FileShelf
from watersmeet.spark.store.shelf import StoreShelf
from watersmeet.stats.observe import observe

REPORT = "report string"  # the schema of what tasks report to the driver: one JSON value a row

NEXT_BATCH = "#batch"  # in the file of watermarks: the number of the micro-batch that is ingested next
_FIRST_SPARK_TASK = 1 << 12  # tasks of ours that read files have lower numbers
_MEASURED_AT_FIRST, _MEASURED_EVERY = 8, 32  # micro-batches in which sizes on links are measured
_FLUSH_ROWS = 1 << 21  # rows of one partition that become one segment
_BATCH_BYTES = 64 << 20  # that are handed to Spark at once, about

Batches = Iterator[pa.RecordBatch]


def report(values: Sequence[Any]) -> pa.RecordBatch:
    """What a task reports to the driver, as a batch of the REPORT schema."""
    return pa.RecordBatch.from_pydict({"report": pa.array([to_json(value) for value in values], pa.string())})


@dataclass(frozen=True)
class Named:
    """Give the columns of incoming batches their names: PySpark cannot pass a name with a dot in it."""

    task: Callable[[Batches], Batches]
    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        return self.task(batch.rename_columns(self.names) for batch in batches)


def write_program(path: Path, versions: Versions) -> None:
    """Keep what the program of a site follows from where tasks find it; made from the ledger, and replaced whole."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(versions.to_json(), encoding="utf-8")
    os.replace(fresh, path)


def read_program(path: str, site: str, shelf: object = None) -> SiteProgram:
    """The program of a site as it is now: JSON that is parsed and compiled again, so nothing in it is ever run."""
    return _compiled(_beside(shelf, path), site)


@lru_cache(8)
def _compiled(text: bytes, site: str) -> SiteProgram:
    return program_in(Versions.from_json(text.decode()), site)


def _is_elsewhere(shelf: object) -> TypeGuard[StoreShelf]:
    """Whether the checkpoint is in a store, and tasks may run on other machines than the driver."""
    return isinstance(shelf, StoreShelf) and shelf.writes_through


def _beside(shelf: object, path: str) -> bytes:
    """A file beside the ledger, as the driver has last written it."""
    if not _is_elsewhere(shelf):
        return Path(path).read_bytes()
    stored = shelf.store.get(os.path.basename(path))
    if stored is None:
        raise damaged(f"{shelf.store.url}/{os.path.basename(path)} is missing")
    return stored.data


@dataclass(frozen=True)
class IngestRows:
    """Ingest the new rows of one stream, as they come from Spark."""

    ingest: Ingest
    watermarks_path: str  # of a file that says before which instant rows of each stream are late
    program_path: str = ""  # of a file with the program of the site, which may change while Spark's query runs

    def __call__(self, batches: Batches, task: int | None = None) -> Batches:
        """Ingest rows; `task` is the number of the task among those that read files themselves."""
        if self.program_path:
            program = read_program(self.program_path, self.ingest.program.site, self.ingest.shelf)
            current = replace(self, ingest=replace(self.ingest, program=program), program_path="")
            yield from current(batches, task)
            return
        known = json.loads(_beside(self.ingest.shelf, self.watermarks_path))
        late_before, batch = known[self.ingest.scan.stream], known[NEXT_BATCH]
        first_id = first_row_id(batch, _task_number() if task is None else task)
        for tables in _gathered(batches):
            found = []
            for table in tables:
                found.append(self._ingested(table, late_before, first_id, sizes=measures_sizes(batch)))
                first_id += table.num_rows
            yield report(found)

    def _ingested(self, table: pa.Table, late_before: int | None, first_id: int, *, sizes: bool) -> Ingested:
        found = self.ingest(table, late_before, first_id)
        sketch = observe(self.ingest.scan, table.filter(has_event_time(table)), sizes=sizes)
        return replace(found, observed=json.dumps(sketch.to_data()))


def measures_sizes(batch: int) -> bool:
    """Whether it is measured in a micro-batch what rows take on links: packing samples costs more than their values.

    >>> [batch for batch in range(100) if measures_sizes(batch)]
    [0, 1, 2, 3, 4, 5, 6, 7, 32, 64, 96]
    """
    return batch < _MEASURED_AT_FIRST or batch % _MEASURED_EVERY == 0


def _task_number() -> int:
    """The number of this task among those of a micro-batch that ingest rows which Spark has read."""
    context = TaskContext.get()
    return _FIRST_SPARK_TASK + (0 if context is None else context.partitionId())


@dataclass(frozen=True)
class IngestVersion:
    """Ingest the rows of a version of a table."""

    ingest: Ingest
    from_us: int

    def __call__(self, batches: Batches) -> Batches:
        first_id = first_row_id(0, _task_number())  # rows of different versions are never compared
        for tables in _gathered(batches):
            found = []
            for table in tables:
                found.append(self.ingest.version(table, self.from_us, first_id))
                first_id += table.num_rows
            yield report(found)


def _gathered(batches: Batches) -> Iterator[list[pa.Table]]:
    """The rows of a partition in pieces that become segments."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _FLUSH_ROWS or size > sizes.MAX_COLUMN_BYTES:
            yield list(sizes.split_rows(pa.Table.from_batches(waiting)))
            waiting, rows, size = [], 0, 0
    if rows:
        yield list(sizes.split_rows(pa.Table.from_batches(waiting)))


@dataclass(frozen=True)
class ReadRows:
    """Hand the rows of files back to Spark, a file a task."""

    shelf: FileShelf
    paths: tuple[str, ...]
    columns: tuple[str, ...]
    span: tuple[int, int] | None = None  # first row and number of rows

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                table = self.shelf.get(self.paths[number]).select(list(self.columns))
                table = table if self.span is None else table.slice(*self.span)
                most = max(1, _BATCH_BYTES * table.num_rows // max(table.nbytes, 1))
                yield from table.to_batches(max_chunksize=most)


@dataclass(frozen=True)
class KeepRows:
    """Put the rows of a partition on the shelf, and report where."""

    shelf: FileShelf

    def __call__(self, batches: Batches) -> Batches:
        pieces = [batch for batch in batches if batch.num_rows]
        if pieces:
            yield report([self.shelf.put("evaluated", pa.Table.from_batches(pieces))])


@dataclass(frozen=True)
class SetFailingAside:
    """Put the combinations of a partition on the shelf apart from those for which an expression fails."""

    shelf: FileShelf
    finish: Finish

    def __call__(self, batches: Batches) -> Batches:
        pieces = [batch for batch in batches if batch.num_rows]
        if pieces:
            yield report([set_failing_aside(self.shelf, self.finish, pa.Table.from_batches(pieces))])
