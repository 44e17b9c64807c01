"""What runs inside Spark tasks: picklable values whose call turns Arrow batches into Arrow batches.

Tasks exchange rows through sorted files in the state directory rather than Spark's shuffle: what a window needs is
written once, sorted, and the same file serves as the exchange and as the state.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from watersmeet.plan.nodes import Key, MultiJoin, Scan
from watersmeet.program.join.probe import LATEST, Relation, Released, Run, carried_run, window_run
from watersmeet.program.join.stages import moving_key, output_columns, run_stage
from watersmeet.program.join.values import same_values
from watersmeet.program.operators import SiteProgram
from watersmeet.program.site.engine import ingest
from watersmeet.program.site.ledger import Part, Segment, StreamState, index_name, watermark
from watersmeet.program.storage.segments import (
    KEEP,
    KEY,
    ORDINAL,
    TS,
    bucket_bounds,
    build_segment,
    class_column,
    column,
    drop_unjoinable,
    key_order,
    merge_segments,
)
from watersmeet.query.windows import Rows
from watersmeet.spark.files import FileShelf, read_bucket, read_table, write_segment, write_table
from watersmeet.stats.observe import observe

MALFORMED = "#malformed"  # bool, whether the source could not make sense of the row
REASON = "_reason"
REPORT = "report string"  # the schema of what tasks tell the driver: one JSON value a row

_FLUSH_ROWS = 1 << 21  # rows of one partition that become one segment

Batches = Iterator[pa.RecordBatch]


def report(values: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """What a task tells the driver, as a batch of the REPORT schema."""
    return pa.RecordBatch.from_pydict({"report": pa.array([json.dumps(value) for value in values], pa.string())})


@dataclass(frozen=True)
class OnNumbers:
    """Run a task for the numbers of a partition and hand out what it tells, without Spark SQL around it."""

    task: Callable[[Batches], Batches]

    def __call__(self, numbers: Iterable[int]) -> Iterator[str]:
        for batch in self.task(pa.RecordBatch.from_pydict({"id": [number]}) for number in numbers):
            yield from batch.column(0).to_pylist()


@dataclass(frozen=True)
class OnEach:
    """Run a task of the site programs for the numbers of a partition and hand out all it returns."""

    task: Callable[[int], list[Any]]

    def __call__(self, numbers: Iterable[int]) -> Iterator[Any]:
        for number in numbers:
            yield from self.task(number)


@dataclass(frozen=True)
class Named:
    """Give the columns of incoming batches their names: PySpark cannot pass a name with a dot in it."""

    task: Callable[[Batches], Batches]
    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        return self.task(batch.rename_columns(self.names) for batch in batches)


@dataclass(frozen=True)
class FileWindows:
    """File the rows of one alias as segments of its windows, or as pending where rows are taken in order."""

    directory: str
    scan: Scan
    carried: frozenset[int]
    ordered: bool

    def __call__(self, table: pa.Table) -> dict[str, Any]:
        if self.ordered:
            order = np.argsort(column(table, TS), kind="stable")
            pending = write_segment(self.directory, f"pending-{self.scan.alias}", table.take(pa.array(order)))
            return {"pending": asdict(pending)}
        return file_windows(self.directory, self.scan, self.carried, table)


@dataclass(frozen=True)
class FileAtSite:
    """File the rows of one alias for the operators of its home, and packed for those elsewhere."""

    program: SiteProgram
    shelf: FileShelf
    alias: str

    def __call__(self, table: pa.Table) -> dict[str, Any]:
        observed = observe(self.program.join, self.alias, table)
        return {**asdict(ingest(self.program, self.shelf, self.alias, table)), "observed": observed.to_data()}


@dataclass(frozen=True)
class Ingest:
    """Sort out the new rows of one alias: late and malformed ones aside; the rest is filed."""

    directory: str
    ledger_path: str
    scan: Scan
    file: Callable[[pa.Table], dict[str, Any]]
    delay_us: int
    start_us: int | None
    raw_columns: tuple[str, ...]  # columns to keep of late and malformed rows; none where they are only counted
    spare_columns: tuple[str, ...]  # columns that windows do not need

    def __call__(self, batches: Batches) -> Batches:
        late_before = watermark(read_stream_state(self.ledger_path, self.scan.stream), self.delay_us)
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(part.num_rows for part in waiting) >= _FLUSH_ROWS:
                yield report([self._sort_out(pa.Table.from_batches(waiting), late_before)])
                waiting = []
        if sum(part.num_rows for part in waiting):
            yield report([self._sort_out(pa.Table.from_batches(waiting), late_before)])

    def _sort_out(self, table: pa.Table, late_before: int | None) -> dict[str, Any]:
        told: dict[str, Any] = {"alias": self.scan.alias, "rows": table.num_rows}
        table = table.combine_chunks()
        wrong = pc.is_null(table.column(TS))
        if MALFORMED in table.column_names:
            wrong = pc.or_(wrong, table.column(MALFORMED))
            table = table.drop_columns([MALFORMED])
        told |= self._set_aside(table, wrong, "malformed")
        if told["malformed"]:
            table = table.filter(pc.invert(wrong))
        ts = column(table, TS)
        told["max_ts"] = int(ts.max()) if len(ts) else None
        early = pa.array(ts < late_before) if late_before is not None else pa.nulls(len(ts), pa.bool_())
        told |= self._set_aside(table, early, "late")
        if told["late"]:
            table = table.filter(pc.invert(early))
        if self.start_us is not None:
            table = table.filter(pa.array(column(table, TS) >= self.start_us))
        table = table.drop_columns(list(self.spare_columns))
        if not table.num_rows:
            return told
        return {**self.file(table), **told}

    def _set_aside(self, table: pa.Table, which: pa.Array, reason: str) -> dict[str, Any]:
        count = pc.sum(which).as_py() or 0
        if not count or not self.raw_columns:
            return {reason: count}
        rows = table.filter(which).select(self.raw_columns)
        rows = rows.rename_columns([name.removeprefix(f"{self.scan.alias}.") for name in rows.column_names])
        rows = rows.append_column(REASON, pa.array([reason] * count))
        return {reason: count, f"{reason}_file": write_table(self.directory, reason, rows).path}


def file_windows(directory: str, scan: Scan, carried: frozenset[int], table: pa.Table) -> dict[str, Any]:
    """Write the joinable rows of a table as a segment for each key; tell where they are."""
    before = table.num_rows if KEEP not in table.column_names else pc.sum(table.column(KEEP)).as_py() or 0
    table = drop_unjoinable(table, scan.classes)
    told: dict[str, Any] = {"null_keys": before - table.num_rows, "segments": {}}
    if table.num_rows:
        for key in (*scan.stored, *scan.routed):
            name = index_name(scan.alias, key)
            segment = write_segment(directory, name.replace("/", "-"), build_segment(table, key, carried))
            told["segments"][name] = asdict(segment)
    return told


@dataclass(frozen=True)
class Release:
    """Take the pending rows of an alias up to an instant, in (ts, arrival) order, give ordinals, file the windows."""

    directory: str
    scans: tuple[Scan, ...]
    carried: frozenset[int]
    pending: Mapping[str, tuple[Segment, ...]]
    ordinals: Mapping[str, int]
    released_from: int | None
    released_to: int

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield report([self._release(self.scans[number])])

    def _release(self, scan: Scan) -> dict[str, Any]:
        pieces = []
        for segment in self.pending.get(scan.alias, ()):
            table = read_table(segment.parts[0].path)
            ts = column(table, TS)
            low = 0 if self.released_from is None else int(np.searchsorted(ts, self.released_from))
            high = int(np.searchsorted(ts, self.released_to))
            pieces.append(table.slice(low, max(high - low, 0)))
        told: dict[str, Any] = {"alias": scan.alias, "released": 0}
        if not any(piece.num_rows for piece in pieces):
            return told
        table = pa.concat_tables(pieces).combine_chunks()
        table = table.take(pa.array(np.argsort(column(table, TS), kind="stable")))
        told["released"] = table.num_rows
        if isinstance(scan.window, Rows):
            before = self.ordinals.get(scan.alias, 0)
            told["order_file"] = write_table(self.directory, f"order-{scan.alias}", table.select([TS])).path
            table = table.append_column(ORDINAL, pa.array(np.arange(before, before + table.num_rows)))
        return told | file_windows(self.directory, scan, self.carried, table)


@dataclass(frozen=True)
class Round:
    """One round of a batch: every head's stage of that number, in one bucket a task.

    The last round yields finished combinations; the others file what they found for the next one.
    """

    directory: str
    plan: MultiJoin
    number: int
    buckets: int
    old: Mapping[str, tuple[Segment, ...]]
    new: Mapping[str, tuple[Segment, ...]]
    order_files: Mapping[str, tuple[int, str | None]]  # alias -> rows released before, ts of the rows released now
    moved: Mapping[str, tuple[str, ...]]  # head -> files of combinations that moved to this round
    finished: Mapping[int, tuple[str, ...]]  # bucket -> files of combinations finished in earlier rounds

    @property
    def is_last(self) -> bool:
        return self.number == self.plan.rounds - 1

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                yield from self.finished_in(bucket) if self.is_last else self._intermediate(bucket)

    def finished_in(self, bucket: int) -> Batches:
        """All combinations of this batch that end in a bucket, in the last round."""
        names = list(output_columns(self.plan))
        for path in self.finished.get(bucket, ()):
            yield from read_table(path).select(names).to_batches()
        for _, table in self._stages(bucket):
            yield from table.select(names).to_batches()

    def _intermediate(self, bucket: int) -> Batches:
        told = []
        tables: dict[tuple[str, bool], list[pa.Table]] = {}
        for head, table in self._stages(bucket):
            tables.setdefault((head, LATEST in table.column_names), []).append(table)
        for (head, moves), pieces in tables.items():
            table = pa.concat_tables(pieces)
            if moves:
                stages = next(s for s in self.plan.sequences if s.head == head).stages
                table = moving_key(table, stages[self.number + 1].key).combine_chunks()
                table = table.take(pa.array(np.argsort(column(table, KEY))))
            path = write_table(self.directory, f"round{self.number}-{head}", table).path
            told.append({"head": head, "bucket": bucket, "moves": moves, "path": path})
        yield report(told)

    def _stages(self, bucket: int) -> Iterator[tuple[str, pa.Table]]:
        reader = _BucketReader(self, bucket)
        aliases = [scan.alias for scan in self.plan.scans]
        for position, sequence in enumerate(self.plan.sequences):
            if self.number >= len(sequence.stages):
                continue
            if self.number == 0:
                carrier = reader.window(sequence.head, sequence.stages[0].key, old=False, new=True)
            else:
                carrier = reader.moved(sequence.head)
            if not len(carrier):
                continue
            # A new combination belongs to the last of its aliases that has a new row: later ones show only old rows.
            window_of = partial(reader.visible, frozenset(aliases[:position]))
            for table in run_stage(self.plan, sequence, self.number, carrier, window_of):
                yield sequence.head, table


class _BucketReader:
    """Opens each file of a round once and hands out its slice of this bucket."""

    def __init__(self, task: Round, bucket: int) -> None:
        self._task = task
        self._bucket = bucket
        self._runs: dict[tuple[str, str], Run | None] = {}
        self._released = {
            alias: Released(before, column(read_table(path), TS) if path else np.empty(0, np.int64))
            for alias, (before, path) in task.order_files.items()
        }

    def window(self, alias: str, key: Key, *, old: bool, new: bool) -> Relation:
        name = index_name(alias, key)
        segments = (*(self._task.old.get(name, ()) if old else ()), *(self._task.new.get(name, ()) if new else ()))
        runs = (self._run(alias, segment, part) for segment in segments for part in segment.parts)
        return Relation(tuple(run for run in runs if run is not None))

    def visible(self, earlier: frozenset[str], alias: str, key: Key) -> Relation:
        """The window of an alias as a head sees it that comes after some aliases."""
        return self.window(alias, key, old=True, new=alias in earlier)

    def moved(self, head: str) -> Relation:
        tables = (
            read_bucket(Part(path, 0, 0), self._bucket, self._task.buckets) for path in self._task.moved.get(head, ())
        )
        return Relation(tuple(carried_run(table) for table in tables if table is not None))

    def _run(self, alias: str, segment: Segment, part: Part) -> Run | None:
        slot = (alias, part.path)
        if slot not in self._runs:
            rows = read_bucket(part, self._bucket, self._task.buckets)
            window = self._task.plan.scan(alias).window
            self._runs[slot] = (
                None
                if rows is None
                else window_run(window, rows, segment.min_ts, segment.max_ts, self._released.get(alias))
            )
        return self._runs[slot]


@dataclass(frozen=True)
class WriteRound:
    """The last round straight into Parquet files, where answers are columns just as the windows keep them."""

    round: Round
    staging: str
    columns: tuple[tuple[str, str], ...]  # flat name, name of the answer's column
    compression: str

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                yield report([{"rows": self._write(bucket)}])

    def _write(self, bucket: int) -> int:
        flat, names = zip(*self.columns, strict=True)
        writer, rows = None, 0
        for piece in self.round.finished_in(bucket):
            table = pa.Table.from_batches([piece]).select(list(flat)).rename_columns(list(names))
            if writer is None:
                path = os.path.join(self.staging, f"part-{bucket:05d}.{self.compression}.parquet")
                writer = pq.ParquetWriter(path, table.schema, compression=self.compression)
            writer.write_table(table)
            rows += table.num_rows
        if writer is not None:
            writer.close()
        return rows


@dataclass(frozen=True)
class Merge:
    """Merge groups of segments, one bucket a task."""

    directory: str
    buckets: int
    groups: tuple[tuple[str, tuple[Segment, ...], str, int | None], ...]  # index, segments, axis, first alive

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                yield report(
                    [
                        {"group": number, "part": asdict(part)}
                        for number in range(len(self.groups))
                        if (part := self._merge(number, bucket))
                    ]
                )

    def _merge(self, number: int, bucket: int) -> Part | None:
        name, segments, axis, alive = self.groups[number]
        slices = (read_bucket(part, bucket, self.buckets) for segment in segments for part in segment.parts)
        pieces = [piece for piece in slices if piece is not None]
        if not pieces:
            return None
        table = merge_segments(pieces, alive, axis)
        if not table.num_rows:
            return None
        part = write_table(self.directory, name.replace("/", "-"), table)
        low, high = bucket_bounds(bucket, self.buckets)
        return Part(part.path, part.rows, part.bytes, low, high)


@dataclass(frozen=True)
class ReadRows:
    """Hand the rows of files back to Spark, a file a task."""

    paths: tuple[str, ...]
    columns: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_table(self.paths[number]).select(list(self.columns)).to_batches()


@dataclass(frozen=True)
class FileAnswers:
    """File a batch's answers sorted by the hash of the whole row, for DISTINCT."""

    directory: str

    def __call__(self, batches: Batches) -> Batches:
        pieces = [batch for batch in batches if batch.num_rows]
        if not pieces:
            return
        table = pa.Table.from_batches(pieces)
        table = table.append_column(TS, pa.array(np.zeros(table.num_rows, np.int64)))
        table = table.append_column(KEY, pa.array(column(table, class_column(0)).view(np.uint64)))
        table = table.drop_columns([class_column(0)]).combine_chunks()
        table = table.take(pa.array(key_order(column(table, KEY), column(table, TS))))
        yield report([{"path": write_table(self.directory, "answers", table).path}])


@dataclass(frozen=True)
class KeepUnseen:
    """File those of a batch's answers that were never given before, one bucket a task."""

    directory: str
    buckets: int
    answers: tuple[str, ...]
    seen: tuple[Segment, ...]
    compared: tuple[str, ...]  # the columns that make answers different

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                if segment := self._unseen(bucket):
                    yield report([asdict(segment)])

    def _unseen(self, bucket: int) -> Segment | None:
        slices = (read_bucket(Part(path, 0, 0), bucket, self.buckets) for path in self.answers)
        pieces = [piece for piece in slices if piece is not None]
        if not pieces:
            return None
        fresh = pa.concat_tables(pieces).combine_chunks()
        keys = column(fresh, KEY)
        unseen = np.ones(len(keys), bool)
        for part in (part for segment in self.seen for part in segment.parts):
            given = read_bucket(part, bucket, self.buckets)
            if given is None:
                continue
            start = np.searchsorted(column(given, KEY), keys, "left")
            count = np.searchsorted(column(given, KEY), keys, "right") - start
            left = np.repeat(np.arange(len(keys)), count)
            right = np.arange(count.sum()) + np.repeat(start - (np.cumsum(count) - count), count)
            same = np.ones(len(left), bool)
            for name in self.compared:
                same &= same_values(fresh.column(name).take(pa.array(left)), given.column(name).take(pa.array(right)))
            unseen[left[same]] = False
        if not unseen.any():
            return None
        rows = fresh.filter(pa.array(unseen))
        rows = rows.take(pa.array(np.argsort(column(rows, KEY))))
        segment = write_segment(self.directory, "seen", rows)
        low, high = bucket_bounds(bucket, self.buckets)
        part = segment.parts[0]
        return Segment((Part(part.path, part.rows, part.bytes, low, high),), segment.min_ts, segment.max_ts)


@dataclass(frozen=True)
class WriteRows:
    """Write finished combinations straight into Parquet files, where answers are columns just as they come."""

    paths: tuple[str, ...]
    tasks: int
    staging: str
    columns: tuple[tuple[str, str], ...]  # flat name, name of the answer's column
    compression: str

    def __call__(self, number: int) -> list[int]:
        flat, names = zip(*self.columns, strict=True)
        tables = [read_table(path) for path in self.paths[number :: self.tasks]]
        if not tables:
            return []
        table = pa.concat_tables(tables).select(list(flat)).rename_columns(list(names))
        path = os.path.join(self.staging, f"part-{number:05d}.{self.compression}.parquet")
        pq.write_table(table, path, compression=self.compression)
        return [table.num_rows]


def read_stream_state(path: str, stream: str) -> StreamState | None:
    """What the ledger at a path knows of a stream."""
    try:
        state = json.loads(Path(path).read_text(encoding="utf-8"))["streams"].get(stream)
    except FileNotFoundError:
        return None
    return None if state is None else StreamState(**state)
