"""How rows come in: a streaming frame whose every micro-batch files the new rows of a site's streams."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from watersmeet.program.site.ingest import Ingest
from watersmeet.program.site.ledger import Ingested
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.codec import decode
from watersmeet.spark.files import FileShelf
from watersmeet.spark.ingest.nanoseconds import read_files
from watersmeet.spark.ingest.parquet_files import FILE, FILE_SCHEMA, UNFIT, FileColumn, IngestFiles, file_columns
from watersmeet.spark.ingest.sources import ingest_columns, open_stream, raw_columns
from watersmeet.spark.jobs import TaskRunner, map_rows, reports
from watersmeet.spark.tasks import IngestRows
from watersmeet.topology.model import Topology

_TASK_BYTES = 64 << 20  # of files that one task reads


@dataclass(frozen=True)
class Intake:
    """The streams that arrive at a site, each read, parsed and filed once for all queries."""

    spark: SparkSession
    topology: Topology
    program: SiteProgram
    schemas: Mapping[str, StructType]
    shelf: FileShelf
    watermarks_path: str
    run_tasks: TaskRunner

    def frame(self) -> DataFrame | None:
        """The streaming frame of all streams; None where none arrives here."""
        frames = [self._ingested(self._opened(scan), scan, self._file_columns[scan.stream]) for scan in self._scans]
        return reduce(DataFrame.union, frames) if frames else None

    def ingested(self, batch: DataFrame) -> list[Ingested]:
        """What the tasks of a micro-batch found.

        Of streams whose files the tasks read themselves Spark has only listed the files: they are read now. Files that
        the tasks leave to Spark are read by it after that.
        """
        found = reports(batch)
        listed = [row for row in found if FILE in row]
        if listed:
            found = [row for row in found if FILE not in row] + self._read_files(listed)
        left = [self._read_by_spark(row["stream"], row[UNFIT]) for row in found if UNFIT in row]
        if left:
            found = [row for row in found if UNFIT not in row] + reports(reduce(DataFrame.union, left))
        return [decode(Ingested, row) for row in found]

    def _read_files(self, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Have the files of a micro-batch read, those of one stream together as far as one task can."""
        groups: list[tuple[str, list[tuple[str, int]]]] = []
        for stream in sorted({row["stream"] for row in listed}):
            files = sorted((row[FILE], row["length"]) for row in listed if row["stream"] == stream)
            while files:
                size, count = 0, 0
                while count < len(files) and (count == 0 or size + files[count][1] <= _TASK_BYTES):
                    size, count = size + files[count][1], count + 1
                groups.append((stream, files[:count]))
                files = files[count:]
        task = _ReadGroups({stream: self._file_task(stream) for stream, _ in groups}, tuple(groups))
        return self.run_tasks(task, len(groups), sum(row["length"] for row in listed))

    @property
    def _scans(self) -> Sequence[StreamScan]:
        return self.program.streams

    @cached_property
    def _file_columns(self) -> dict[str, tuple[FileColumn, ...] | None]:
        """Of each stream whose files the tasks read themselves."""
        return {
            scan.stream: file_columns(self.topology.stream(scan.stream), self.schemas[scan.stream], scan)
            for scan in self._scans
        }

    def _opened(self, scan: StreamScan) -> DataFrame:
        stream = self.topology.stream(scan.stream)
        if self._file_columns[scan.stream] is None:
            return open_stream(self.spark, stream, self.schemas[scan.stream])
        assert stream.source is not None and stream.source.path is not None, "only files are read by tasks"
        reader = self.spark.readStream.format("binaryFile").schema(FILE_SCHEMA).options(**dict(stream.source.options))
        listed = F.struct(F.lit(stream.name).alias("stream"), F.col("path").alias(FILE), F.col("length"))
        return reader.load(stream.source.path).select(F.to_json(listed).alias("report"))

    def _ingested(self, opened: DataFrame, scan: StreamScan, columns: tuple[FileColumn, ...] | None) -> DataFrame:
        if columns is not None:
            return opened
        stream = self.topology.stream(scan.stream)
        return map_rows(ingest_columns(opened, stream, self.schemas[scan.stream], scan), self._task(scan))

    def _task(self, scan: StreamScan) -> IngestRows:
        raw = raw_columns(self.topology.stream(scan.stream))
        return IngestRows(Ingest(self.program, self.shelf, scan, raw), self.watermarks_path)

    def _file_task(self, name: str) -> IngestFiles:
        columns = self._file_columns[name]
        assert columns is not None, "only streams whose files tasks read"
        return IngestFiles(self._task(self._scan(name)), columns)

    def _scan(self, name: str) -> StreamScan:
        return next(scan for scan in self._scans if scan.stream == name)

    def _read_by_spark(self, name: str, paths: Sequence[str]) -> DataFrame:
        source = self.topology.stream(name).source
        assert source is not None and source.path is not None, "only files are read by tasks"
        reader = self.spark.read.format(source.format)
        if os.path.isdir(source.path):
            reader = reader.option("basePath", source.path)  # for columns that are names of directories
        files = read_files(
            self.spark, lambda schema, some: reader.schema(schema).load(list(some)), self.schemas[name], paths
        )
        return self._ingested(files, self._scan(name), None)


@dataclass(frozen=True)
class _ReadGroups:
    """Read groups of files, one a task."""

    tasks: Mapping[str, IngestFiles]  # by stream
    groups: tuple[tuple[str, list[tuple[str, int]]], ...]

    def __call__(self, number: int) -> list[dict[str, Any]]:
        stream, files = self.groups[number]
        return self.tasks[stream](files)
