"""How rows come in: a streaming frame whose every batch files the new rows of some aliases and tells where they are."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from watersmeet.plan.nodes import JoinPlan, MultiJoin, Scan
from watersmeet.spark.binding import Bound
from watersmeet.spark.deliver.delivery import map_rows, reports
from watersmeet.spark.engine import Report
from watersmeet.spark.ingest.parquet_files import FILE_SCHEMA, UNFIT, FileColumn, IngestFiles, file_columns
from watersmeet.spark.ingest.sources import ingest_columns, open_stream, raw_columns
from watersmeet.spark.tasks import Ingest
from watersmeet.topology.model import Query, Topology


@dataclass(frozen=True)
class Intake:
    """The streams of one query, or of its part at one site, as they are taken in."""

    spark: SparkSession
    topology: Topology
    query: Query
    bound: Bound
    join: MultiJoin | JoinPlan
    aliases: Sequence[str]
    state: str
    ledger_path: str
    speaker: Callable[[str], str]  # the alias that counts the rows of a stream, and keeps those set aside
    file: Callable[[Scan], Callable[[pa.Table], dict[str, Any]]]  # what is done with the rows of an alias

    def frames(self) -> list[DataFrame]:
        """A streaming frame for each alias."""
        opened = {name: self._opened(name) for name in sorted({scan.stream for scan in self._scans})}
        return [self._ingested(opened[scan.stream], scan, self._columns_of_files[scan.alias]) for scan in self._scans]

    def told(self, batch: DataFrame) -> list[Report]:
        """What the tasks of a batch told; files that they left to Spark are read by it now."""
        told = [row for row in reports(batch) if "alias" in row]
        left = [self._read_by_spark(self.join.scan(row["alias"]), row[UNFIT]) for row in told if UNFIT in row]
        if not left:
            return told
        return [row for row in told if UNFIT not in row] + reports(reduce(DataFrame.union, left))

    @property
    def _scans(self) -> list[Scan]:
        return [self.join.scan(alias) for alias in self.aliases]

    @cached_property
    def _columns_of_files(self) -> dict[str, tuple[FileColumn, ...] | None]:
        """Of each alias whose files tasks read themselves; all aliases of a stream, or they would drift apart."""
        found = {
            scan.alias: file_columns(
                self.topology.stream(scan.stream), self.bound.schemas[scan.stream], scan, self.join
            )
            for scan in self._scans
        }
        by_spark = {scan.stream for scan in self._scans if found[scan.alias] is None}
        return {scan.alias: None if scan.stream in by_spark else found[scan.alias] for scan in self._scans}

    def _opened(self, name: str) -> DataFrame:
        stream = self.topology.stream(name)
        if any(self._columns_of_files[scan.alias] is None for scan in self._scans if scan.stream == name):
            return open_stream(self.spark, stream, self.bound.schemas[name])
        assert stream.source is not None and stream.source.path is not None, "only files are read by tasks"
        reader = self.spark.readStream.format("binaryFile").schema(FILE_SCHEMA).options(**dict(stream.source.options))
        return reader.load(stream.source.path).select("path", "length")

    def _ingested(self, opened: DataFrame, scan: Scan, columns: tuple[FileColumn, ...] | None) -> DataFrame:
        stream, schema = self.topology.stream(scan.stream), self.bound.schemas[scan.stream]
        raw = raw_columns(stream, scan) if self.speaker(scan.stream) == scan.alias else ()
        rows = opened
        if columns is None:
            rows = ingest_columns(opened, stream, schema, scan, self.join, keep_raw=bool(raw))
        ingest = Ingest(
            directory=self.state,
            ledger_path=self.ledger_path,
            scan=scan,
            file=self.file(scan),
            delay_us=stream.watermark_us,
            start_us=self.query.start_us,
            raw_columns=raw,
            spare_columns=tuple(n for n in rows.columns if n.startswith(f"{scan.alias}.") and n not in scan.columns),
        )
        return map_rows(rows, ingest if columns is None else IngestFiles(ingest, columns))

    def _read_by_spark(self, scan: Scan, paths: Sequence[str]) -> DataFrame:
        source = self.topology.stream(scan.stream).source
        assert source is not None and source.path is not None, "only files are read by tasks"
        reader = self.spark.read.format(source.format).schema(self.bound.schemas[scan.stream])
        if os.path.isdir(source.path):
            reader = reader.option("basePath", source.path)  # for columns that are names of directories
        return self._ingested(reader.load(list(paths)), scan, None)
