"""Parquet files read by the tasks themselves, column by column, where all that is wanted are columns as they lie there.

Spark hands rows to Python one by one until they are Arrow batches, which took more processor time than the join. What
Spark's own reader makes of a file that is not quite as the stream's schema says is not repeated here: any file that is
not exactly so, or cannot be read, is left to Spark.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from watersmeet.program.site.classified import classified_columns, classified_selections
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.segments import TS, class_column
from watersmeet.spark.ingest.nanoseconds import floored, nanosecond_columns
from watersmeet.spark.ingest.new_files import reader_options
from watersmeet.spark.ingest.sources import kinds_of
from watersmeet.spark.tasks import IngestRows
from watersmeet.topology.model import Source, Stream

UNFIT = "unfit"  # the files that a task leaves to Spark

_KEPT_TYPES = (T.IntegralType, T.FractionalType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)
_TEXT_TYPES = ("string", "binary")  # by name, so that no collation is among them
_SPARK_VERSION, _OLD_CALENDAR = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"  # in a file's footer
_MOST_BYTES = 64 << 20  # of one file: Spark has several tasks read a longer one
_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file, the type it must have, and what it is called here; times and keys become numbers."""

    name: str
    type: pa.DataType
    to: str
    is_number: bool


def file_columns(stream: Stream, schema: T.StructType, scan: StreamScan) -> tuple[FileColumn, ...] | None:
    """The columns of the stream's files that are wanted, or None if it takes more than columns of files."""
    if not _has_plain_files(stream.source) or stream.late is not None:
        return None
    classified = classified_selections(scan, kinds_of(schema, f"{stream.name}."))
    evaluated = [
        selection for number, selection in enumerate(scan.selections) if selection.filters and number not in classified
    ]
    if evaluated or not all(key.exact for key in scan.keys):
        return None
    expressions = [
        *((key.expression, class_column(number), True) for number, key in enumerate(scan.keys)),
        *((kept.expression, kept.name, False) for kept in scan.read),
    ]
    if not all(expression.is_plain for expression, _, _ in expressions):
        return None
    wanted = [(stream.event_time_column, TS, True)]
    wanted += [(expression.columns[0].name, to, is_number) for expression, to, is_number in expressions]
    known = {to for _, to, _ in wanted}
    read = [name for name in classified_columns(scan, classified) if name not in known]
    wanted += [(name.removeprefix(f"{stream.name}."), name, False) for name in read]
    if not all(is_plain_column(schema[name]) for name, _, _ in wanted):
        return None
    return tuple(
        FileColumn(name, to_arrow_type(schema[name].dataType, timezone="UTC"), to, is_number)
        for name, to, is_number in wanted
    )


def _has_plain_files(source: Source | None) -> bool:
    return source is not None and source.format == "parquet" and not reader_options(source)


def is_plain_column(field: T.StructField) -> bool:
    """Whether values of a column are the same to Arrow and to Spark."""
    is_plain = isinstance(field.dataType, _KEPT_TYPES) or field.dataType.simpleString() in _TEXT_TYPES
    return is_plain and "." not in field.name  # to Arrow a dot means a field of a struct


@dataclass(frozen=True)
class IngestFiles:
    """Ingest the rows of files of one stream; reports those that are left to Spark."""

    ingest: IngestRows
    columns: tuple[FileColumn, ...]

    def __call__(self, paths: Sequence[str], task: int) -> list[dict[str, Any]]:
        """Ingest files in the task with a number; what was found, as plain data."""
        fit = [path for path in paths if self._is_fit(path)]
        unfit = [path for path in paths if path not in fit]
        try:
            reports = self.ingest(self._rows(fit), task)
            found = [json.loads(row) for batch in reports for row in batch.column(0).to_pylist()]
        except (pa.ArrowException, OSError):  # whatever it is, Spark can say it better, with the file's name
            found, unfit = [], fit + unfit
        return found + ([{"stream": self.ingest.ingest.scan.stream, UNFIT: unfit}] if unfit else [])

    def _is_fit(self, path: str) -> bool:
        try:
            if os.path.getsize(path) > _MOST_BYTES:
                return False
            with pq.ParquetFile(path) as file:
                schema, metadata = file.schema_arrow, file.metadata.metadata or {}
                nanoseconds = nanosecond_columns(file)
        except (pa.ArrowException, OSError):
            return False
        if _OLD_CALENDAR in metadata or metadata.get(_SPARK_VERSION, b"3") < b"3":
            return False  # days long ago have other numbers there
        return all(
            schema.names.count(column.name) == 1
            and (schema.field(column.name).type == column.type or column.name in nanoseconds & self._times)
            for column in self.columns
        )

    @property
    def _times(self) -> set[str]:
        return {column.name for column in self.columns if pa.types.is_timestamp(column.type)}

    def _rows(self, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(column.name for column in self.columns))
        for path in paths:
            with pq.ParquetFile(path, memory_map=True) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=names, use_threads=False):
                    yield self._laid_out(batch)

    def _laid_out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for column in self.columns:
            values = batch.column(column.name)
            if values.type != column.type:
                values = floored(values, column.type)
            arrays.append(as_number(values) if column.is_number else values)
        return pa.RecordBatch.from_arrays(arrays, names=[column.to for column in self.columns])


def as_number(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Numbers as 64 bits, days and microseconds since the epoch: what `class_key_sql` and `micros_sql` make of them."""
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return values.cast(pa.int64())
