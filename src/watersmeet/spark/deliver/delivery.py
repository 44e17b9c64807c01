"""From the ledger to the sinks: answers and late rows, each micro-batch once as any reader of the sink sees it."""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.types import StringType, StructField, StructType

from watersmeet.program.site.ingest import REASON
from watersmeet.program.site.ledger import Answers, Ingested
from watersmeet.spark.binding import CORRUPT_FIELD
from watersmeet.spark.deliver.claims import Start
from watersmeet.spark.deliver.sinks import FileWriter
from watersmeet.spark.deliver.writer import Writer
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


_MOST_HELD_ROWS = 1_000_000  # answers that are held back to become one file


class Delivery:
    """Gives the answers of one query to its sink, in order and on its own thread: sinks do not wait for each other.

    What a crash left undelivered is in the ledger, and is given again: a file sink replaces what it has of it.

    A sink that is to be compact gets the answers of several micro-batches at once, under the number of the last. Small
    files that readers have seen could not be replaced by a large one in one step; so they never come to be.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        schema: StructType,
        writer: Writer,
        shelf: FileShelf,
        reported: Callable[["Delivery", Sequence[Answers]], object] = lambda delivery, answers: None,
    ) -> None:
        self.query = query
        self._reported = reported  # called when the sink has some answers, before they are forgotten
        self._spark = spark
        self._schema = schema
        self._writer = writer
        writer.expect(schema)
        self._shelf = shelf
        self._compression = writer.direct_compression if isinstance(writer, FileWriter) else None
        if not all(isinstance(field.dataType, _DIRECT_TYPES) for field in schema.fields):
            self._compression = None
        self._thread = ThreadPoolExecutor(1, f"deliver-{query}")
        self._queued = self._delivered = -1
        self._given = self._done = 0
        self._has_failed = False
        self._compact_s = writer.compact_s if isinstance(writer, FileWriter) else 0.0
        self._failed: Callable[[BaseException], object] = lambda error: None
        self._held: list[tuple[Answers, bool]] = []
        self._timer: threading.Timer | None = None
        self.last: Future[None] | None = None  # what is done when the sink has all that was given

    @property
    def delivered(self) -> int:
        """The last micro-batch whose answers the sink has."""
        return self._delivered

    @property
    def backlog(self) -> int:
        """How many micro-batches' answers wait to be delivered, without those that are held back on purpose."""
        return self._given - self._done - len(self._held)

    def roll_back(self, batch: int, waiting: Sequence[Answers], start: Start) -> None:
        """Take back what came after a batch: a ledger that does not know of it is of an earlier time than the sink.

        Of a sink that is compact also what is given again: it may have been published with others.
        """
        delivered = waiting[0].batch - 1 if waiting else batch
        self._writer.resume_after(delivered if self._compact_s else batch, delivered, start)

    def give(
        self, waiting: Sequence[Answers], failed: Callable[[BaseException], object], *, replay: bool = False
    ) -> None:
        """Have answers delivered that were not given before."""
        self._failed = failed
        for answers in waiting:
            if answers.batch > self._queued:
                self._queued = answers.batch
                self._given += 1
                self.last = self._thread.submit(self._deliver, answers, replay)
                self.last.add_done_callback(lambda done: failed(e) if (e := done.exception()) else None)

    def flush(self, failed: Callable[[BaseException], object]) -> None:
        """Have what is held back delivered now."""
        if self._held or (self._compact_s and self.last is not None and not self.last.done()):
            self.last = self._thread.submit(self._deliver_held)
            self.last.add_done_callback(lambda done: failed(e) if (e := done.exception()) else None)

    def _deliver(self, answers: Answers, replay: bool) -> None:
        self._held.append((answers, replay))
        rows = sum(answers.rows for answers, _ in self._held)
        if not self._compact_s or rows >= _MOST_HELD_ROWS:
            self._deliver_held()
        elif self._timer is None:
            self._timer = threading.Timer(self._compact_s, self._time_is_up)
            self._timer.daemon = True
            self._timer.start()

    def _time_is_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is being closed, which delivers what is held
            self.last = self._thread.submit(self._deliver_held)
            self.last.add_done_callback(lambda done: self._failed(e) if (e := done.exception()) else None)

    def _deliver_held(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._has_failed or not self._held:  # in order or not at all: what is left is delivered at the next start
            return
        self._has_failed = True
        held = [answers for answers, _ in self._held]
        try:
            self._write(held, any(replay for _, replay in self._held))
        except Exception as error:
            raise_explained(error, self.query)
        self._has_failed = False
        self._reported(self, held)
        self._delivered = held[-1].batch
        self._done += len(held)
        self._held = []

    def _write(self, held: Sequence[Answers], replay: bool) -> None:
        batch = held[-1].batch
        if self._compression is not None and isinstance(self._writer, FileWriter):
            self._writer.publish(lambda path: self._write_files(path, held), batch, replay=replay)
        else:
            frame = reduce(DataFrame.union, map(self._frame, held))
            self._writer.write(frame.coalesce(1) if self._compact_s else frame, batch, replay=replay)

    def _frame(self, answers: Answers) -> DataFrame:
        stored = StructType(
            [
                StructField(name, field.dataType)
                for (name, _), field in zip(answers.columns, self._schema.fields, strict=True)
            ]
        )
        unique = list(dict.fromkeys(stored.names))
        kinds = {field.name: field.dataType for field in stored.fields}
        plain = StructType([StructField(name, kinds[name]) for name in unique])
        rows = read_rows(self._spark, self._shelf, answers.paths, plain, answers.span)
        places = [unique.index(name) for name in stored.names]
        numbered = rows.toDF(*(f"c{number}" for number in range(len(unique))))
        return numbered.select([numbered[f"c{place}"] for place in places]).toDF(*self._schema.names)

    def _table(self, answers: Answers) -> pa.Table:
        stored = [name for name, _ in answers.columns]
        tables = [table.select(stored) for table in answers.tables(self._shelf)]
        table = pa.concat_tables(tables, promote_options="permissive")  # branches differ in what is never NULL
        return table.rename_columns(list(self._schema.names))

    def _write_files(self, path: str, held: Sequence[Answers]) -> int:
        """Write answers straight into a Parquet file: Spark SQL would do nothing but pass them on."""
        table = pa.concat_tables(map(self._table, held), promote_options="permissive")
        name = f"part-00000.{self._compression}.parquet"
        pq.write_table(table, os.path.join(path, name), compression=self._compression)
        return int(table.num_rows)

    def sample(self, answers: Answers, rows: int) -> pa.Table:
        """The last rows of some answers that are still kept."""
        table = self._table(answers)
        return table.slice(max(0, table.num_rows - rows))

    def close(self) -> None:
        """Deliver what is held back, end the thread and leave nothing temporary behind."""
        if self._timer is not None:
            self._timer.cancel()
        self._writer.give_up()
        last = self._thread.submit(self._deliver_held)
        self._thread.shutdown(wait=True)
        if (error := last.exception()) is not None:
            self._failed(error)
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
        self._run_id = run_id
        self._writers = self._opened(topology, schemas)

    def _opened(
        self, topology: Topology, schemas: Mapping[str, StructType]
    ) -> dict[str, tuple[FileWriter, StructType]]:
        found = {}
        disk = Disk(topology.survives_power_cuts)
        for name, schema in sorted(schemas.items()):
            stream = topology.stream(name)
            if stream.late is not None:
                corrupt = [CORRUPT_FIELD] if catches_malformed(stream.source) else []
                fields = [*schema.fields, *corrupt, StructField(REASON, StringType())]
                nullable = StructType([StructField(item.name, item.dataType) for item in fields])
                found[name] = (FileWriter(self._spark, stream.late, f"{name}-{self._run_id}", disk), nullable)
        return found

    def follow(self, topology: Topology, schemas: Mapping[str, StructType], batch: int, start: Start) -> None:
        """Keep the late rows of other streams from now on, after a batch."""
        new = {name: schema for name, schema in schemas.items() if name not in self._writers}
        opened = self._opened(topology, new)
        for writer, _ in opened.values():
            writer.resume_after(batch, batch, start)
        ended = [self._writers[name][0] for name in self._writers if name not in schemas]
        self._writers = {name: kept for name, kept in self._writers.items() if name in schemas} | opened
        for writer in ended:
            writer.close()

    def roll_back(self, batch: int, delivered: int, start: Start) -> None:
        """Take back what came after a batch."""
        for writer, _ in self._writers.values():
            writer.resume_after(batch, delivered, start)

    def keep(self, found: Sequence[Ingested], batch: int, *, replay: bool) -> None:
        """Write those of one micro-batch."""
        for stream, (writer, schema) in self._writers.items():
            files = [(ingested.late_file, ingested.malformed_file) for ingested in found if ingested.stream == stream]
            paths = [path for pair in files for path in pair if path is not None]
            if paths:
                writer.write(read_rows(self._spark, self._shelf, paths, schema), batch, replay=replay)
            elif replay:
                writer.remove(batch)

    def close(self) -> None:
        """Leave nothing temporary behind."""
        for writer, _ in self._writers.values():
            writer.close()
