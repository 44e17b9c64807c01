"""From the ledger to the sinks: answers and late rows, each micro-batch once as any reader of the sink sees it."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.types import StringType, StructField, StructType

from watersmeet.program.site.ingest import REASON
from watersmeet.program.site.ledger import Answers, Ingested
from watersmeet.spark.binding import CORRUPT_FIELD
from watersmeet.spark.deliver.sinks import FileWriter, Writer
from watersmeet.spark.durable import Disk
from watersmeet.spark.failures import raise_explained
from watersmeet.spark.files import FileShelf
from watersmeet.spark.ingest.sources import catches_malformed
from watersmeet.spark.jobs import read_rows
from watersmeet.topology.model import Topology

FAILED_SCHEMA = StructType(  # of rows and combinations for which an expression fails
    [StructField("query", StringType()), StructField("batch", T.LongType())]
    + [StructField(name, StringType()) for name in ("reason", "inputs")]
)

# Types that Arrow and Spark write to Parquet alike.
_DIRECT_TYPES = (
    *(T.BinaryType, T.BooleanType, T.DateType, T.DecimalType, T.DoubleType, T.FloatType),
    *(T.IntegralType, T.StringType, T.TimestampNTZType, T.TimestampType),
)


class Delivery:
    """Gives the answers of one query to its sink, in order and on its own thread: sinks do not wait for each other.

    What a crash left undelivered is in the ledger, and is given again: a file sink replaces what it has of it.
    """

    def __init__(self, spark: SparkSession, query: str, schema: StructType, writer: Writer, shelf: FileShelf) -> None:
        self.query = query
        self._spark = spark
        self._schema = schema
        self._writer = writer
        self._shelf = shelf
        self._compression = writer.direct_compression if isinstance(writer, FileWriter) else None
        if not all(isinstance(field.dataType, _DIRECT_TYPES) for field in schema.fields):
            self._compression = None
        self._thread = ThreadPoolExecutor(1, f"deliver-{query}")
        self._queued = self._delivered = -1
        self._given = self._done = 0
        self._has_failed = False
        self.last: Future[None] | None = None  # what is done when the sink has all that was given

    @property
    def delivered(self) -> int:
        """The last micro-batch whose answers the sink has."""
        return self._delivered

    @property
    def backlog(self) -> int:
        """How many micro-batches' answers wait to be delivered."""
        return self._given - self._done

    def roll_back(self, batch: int) -> None:
        """Take back what came after a batch: a ledger that does not know of it is of an earlier time than the sink."""
        self._writer.remove_after(batch)

    def give(
        self, waiting: Sequence[Answers], failed: Callable[[BaseException], object], *, replay: bool = False
    ) -> None:
        """Have answers delivered that were not given before."""
        for answers in waiting:
            if answers.batch > self._queued:
                self._queued = answers.batch
                self._given += 1
                self.last = self._thread.submit(self._deliver, answers, replay)
                self.last.add_done_callback(lambda done: failed(e) if (e := done.exception()) else None)

    def _deliver(self, answers: Answers, replay: bool) -> None:
        if self._has_failed:  # in order or not at all: what is left is delivered at the next start
            return
        self._has_failed = True
        try:
            self._write(answers, replay)
        except Exception as error:
            raise_explained(error, self.query)
        self._has_failed = False
        self._delivered = answers.batch
        self._done += 1

    def _write(self, answers: Answers, replay: bool) -> None:
        if self._compression is not None and isinstance(self._writer, FileWriter):
            self._writer.publish(lambda path: self._write_files(path, answers), answers.batch, replay=replay)
        else:
            stored = StructType(
                [
                    StructField(name, field.dataType)
                    for (name, _), field in zip(answers.columns, self._schema.fields, strict=True)
                ]
            )
            unique = list(dict.fromkeys(stored.names))
            kinds = {field.name: field.dataType for field in stored.fields}
            plain = StructType([StructField(name, kinds[name]) for name in unique])
            rows = read_rows(self._spark, self._shelf, answers.paths, plain)
            places = [unique.index(name) for name in stored.names]
            numbered = rows.toDF(*(f"c{number}" for number in range(len(unique))))
            frame = numbered.select([numbered[f"c{place}"] for place in places]).toDF(*self._schema.names)
            self._writer.write(frame, answers.batch, replay=replay)

    def _write_files(self, path: str, answers: Answers) -> int:
        """Write answers straight into a Parquet file: Spark SQL would do nothing but pass them on."""
        stored = [name for name, _ in answers.columns]
        table = pa.concat_tables([self._shelf.get(one).select(stored) for one in answers.paths])
        table = table.rename_columns(list(self._schema.names))
        name = f"part-00000.{self._compression}.parquet"
        pq.write_table(table, os.path.join(path, name), compression=self._compression)
        return int(table.num_rows)

    def close(self) -> None:
        """End the thread and leave nothing temporary behind."""
        self._thread.shutdown(wait=True)
        self._writer.close()


class LateRows:
    """Writes late and malformed rows where their stream asks for them."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        schemas: Mapping[str, StructType],
        shelf: FileShelf,
        run_id: str,
    ) -> None:
        self._spark = spark
        self._shelf = shelf
        self._writers: dict[str, tuple[FileWriter, StructType]] = {}
        disk = Disk(topology.survives_power_cuts)
        for name, schema in sorted(schemas.items()):
            stream = topology.stream(name)
            if stream.late is not None:
                corrupt = [CORRUPT_FIELD] if catches_malformed(stream.source) else []
                fields = [*schema.fields, *corrupt, StructField(REASON, StringType())]
                nullable = StructType([StructField(item.name, item.dataType) for item in fields])
                self._writers[name] = (FileWriter(spark, stream.late, f"{name}-{run_id}", disk), nullable)

    def roll_back(self, batch: int) -> None:
        """Take back what came after a batch."""
        for writer, _ in self._writers.values():
            writer.remove_after(batch)

    def keep(self, found: Sequence[Ingested], batch: int, *, replay: bool) -> None:
        """Write those of one micro-batch."""
        for stream, (writer, schema) in self._writers.items():
            files = [(one.late_file, one.malformed_file) for one in found if one.stream == stream]
            paths = [path for pair in files for path in pair if path is not None]
            if paths:
                writer.write(read_rows(self._spark, self._shelf, paths, schema), batch, replay=replay)
            elif replay:
                writer.remove(batch)

    def close(self) -> None:
        """Leave nothing temporary behind."""
        for writer, _ in self._writers.values():
            writer.close()
