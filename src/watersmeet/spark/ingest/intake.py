"""How rows come in: new rows of a site's streams are read, parsed and filed once for all queries."""

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
from watersmeet.spark.ingest.new_files import InputFile, Listing, listing_of, on_this_machine
from watersmeet.spark.ingest.parquet_files import UNFIT, FileColumn, IngestFiles, file_columns
from watersmeet.spark.ingest.sources import ingest_columns, open_files, open_names, open_stream, raw_columns
from watersmeet.spark.jobs import TaskRunner, map_rows, reports
from watersmeet.spark.tasks import IngestRows
from watersmeet.topology.model import Topology

_FILE = "file"  # in place of a report: a file of a stream, whose rows are yet to be read
_TASK_BYTES = 64 << 20  # of files that one task reads


@dataclass(frozen=True)
class Intake:
    """The streams that arrive at a site.

    Where all of them are files on this machine we list them ourselves: Spark's query is then but the clock of the
    micro-batches, and files of plain Parquet do not go through Java at all. Otherwise every stream is a source of it;
    of a stream of Parquet files it lists the names, and they are read as those that we list.
    """

    spark: SparkSession
    topology: Topology
    program: SiteProgram
    schemas: Mapping[str, StructType]
    shelf: FileShelf
    watermarks_path: str
    run_tasks: TaskRunner
    program_path: str = ""

    @property
    def _streams(self) -> list[StreamScan]:
        return [scan for scan in self.program.sources if not scan.is_table]

    @cached_property
    def listings(self) -> dict[str, Listing] | None:
        """How the files of each stream are listed; None where Spark reads the streams."""
        found = {scan.stream: listing_of(self.topology.stream(scan.stream)) for scan in self._streams}
        listings = {stream: listing for stream, listing in found.items() if listing is not None}
        return listings if len(listings) == len(found) else None

    def frame(self) -> DataFrame:
        """The streaming frame of all streams, or the clock of micro-batches where none is for Spark to read."""
        if self.listings is not None:
            for scan in self._streams:
                if self._file_columns[scan.stream] is None:
                    self._opened(scan.stream)  # what is wrong with its options is said now
            clock = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
            return clock.option("numPartitions", 1).load()
        return reduce(DataFrame.union, [self._arriving(scan) for scan in self._streams])

    def _arriving(self, scan: StreamScan) -> DataFrame:
        """What a micro-batch of Spark's has of a stream: reports of its rows, or the names of its files."""
        stream = self.topology.stream(scan.stream)
        if stream.frame is not None or stream.source is None or stream.source.format != "parquet":
            return self._filed(self._opened(scan.stream), scan)
        named = F.struct(F.lit(scan.stream).alias("stream"), F.col("path").alias(_FILE), F.col("length").alias("bytes"))
        return open_names(self.spark, stream).select(F.to_json(named).alias("report"))

    def ingested(self, batch: DataFrame) -> list[Ingested]:
        """What tasks found among the rows of a micro-batch of Spark's, and in the files that it names."""
        files: dict[str, list[InputFile]] = {}
        found = []
        for row in reports(batch):
            if _FILE in row:
                file = InputFile(on_this_machine(row[_FILE]), row["bytes"])
                files.setdefault(row["stream"], []).append(file)
            else:
                found.append(decode(Ingested, row))
        return found + (self.ingested_files(files) if files else [])

    def ingested_files(self, files: Mapping[str, Sequence[InputFile]]) -> list[Ingested]:
        """What tasks found in files, by stream: they read what is plain Parquet themselves, the rest through Spark."""
        found = self._read_by_tasks({name: some for name, some in files.items() if self._file_columns[name]})
        for_spark = [(row["stream"], row[UNFIT]) for row in found if UNFIT in row]
        for_spark += [
            (name, [file.path for file in some]) for name, some in files.items() if not self._file_columns[name]
        ]
        found = [row for row in found if UNFIT not in row]
        if for_spark:
            found += reports(reduce(DataFrame.union, [self._read_by_spark(*some) for some in for_spark]))
        return [decode(Ingested, row) for row in found]

    def _read_by_tasks(self, files: Mapping[str, Sequence[InputFile]]) -> list[dict[str, Any]]:
        """Have files read, those of one stream together as far as one task can."""
        groups: list[tuple[str, list[str]]] = []
        for stream in sorted(files):
            size = 0
            for number, file in enumerate(files[stream]):
                size += file.bytes
                if number == 0 or size > _TASK_BYTES:
                    size = file.bytes
                    groups.append((stream, []))
                groups[-1][1].append(file.path)
        task = _ReadGroups({stream: self._file_task(stream) for stream in files}, tuple(groups))
        return self.run_tasks(task, len(groups), sum(file.bytes for some in files.values() for file in some))

    @cached_property
    def _file_columns(self) -> dict[str, tuple[FileColumn, ...] | None]:
        """Of each stream whose files the tasks read themselves."""
        return {
            scan.stream: file_columns(self.topology.stream(scan.stream), self.schemas[scan.stream], scan)
            for scan in self._streams
        }

    def _opened(self, name: str) -> DataFrame:
        return open_stream(self.spark, self.topology.stream(name), self.schemas[name])

    def _filed(self, opened: DataFrame, scan: StreamScan) -> DataFrame:
        stream = self.topology.stream(scan.stream)
        return map_rows(ingest_columns(opened, stream, self.schemas[scan.stream], scan), self._task(scan))

    def _task(self, scan: StreamScan) -> IngestRows:
        raw = raw_columns(self.topology.stream(scan.stream))
        return IngestRows(Ingest(self.program, self.shelf, scan, raw), self.watermarks_path, self.program_path)

    def _file_task(self, name: str) -> IngestFiles:
        columns = self._file_columns[name]
        assert columns is not None, "only streams whose files tasks read"
        return IngestFiles(self._task(self._scan(name)), columns)

    def _scan(self, name: str) -> StreamScan:
        return next(scan for scan in self.program.sources if scan.stream == name)

    def _read_by_spark(self, name: str, paths: Sequence[str]) -> DataFrame:
        opened = open_files(self.spark, self.topology.stream(name), self.schemas[name], paths)
        return self._filed(opened, self._scan(name))


@dataclass(frozen=True)
class _ReadGroups:
    """Read groups of files, one a task."""

    tasks: Mapping[str, IngestFiles]  # by stream
    groups: tuple[tuple[str, list[str]], ...]

    def __call__(self, number: int) -> list[dict[str, Any]]:
        stream, paths = self.groups[number]
        return self.tasks[stream](paths, number)
