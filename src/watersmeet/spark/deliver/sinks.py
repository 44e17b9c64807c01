"""Where answers go, each batch exactly once as any reader of the sink sees it.

A file sink writes a batch aside, flushes it, and then renames its files to names made of the run's identity and the
batch number; only when these are flushed too is the batch delivered.
A batch that runs again after a crash first removes what its earlier attempt had published, so that no reader, with or
without Spark, finds leftovers.

Of two processes of one run, as on a copied checkpoint, only one writes. On a local disk the first holds a lock on the
place where files are put aside. Elsewhere the later one takes the sink over (see `claims`) and empties that place: what
the other had put there before is gone, and it puts nothing there any more without seeing that it was overtaken. Where
that place is not shared, as with object stores, the other looks again when it has published, and takes that back.
"""

import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from watersmeet.errors import CheckpointMismatch, InputError, RunError, first_line
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.deliver import claims
from watersmeet.spark.deliver.claims import Claim, Start
from watersmeet.spark.deliver.kafka import KafkaWriter, check_kafka_sink
from watersmeet.spark.deliver.storage import ObjectStorage, open_storage
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.durable import FLUSHED, Disk
from watersmeet.spark.ingest.new_files import FILE_FORMATS
from watersmeet.spark.links.protocol import Fenced
from watersmeet.spark.session import option_values
from watersmeet.topology.model import BatchFunction, Query, Sink

CONSOLE_ROWS = 20
_PATIENCE_S = 5.0  # for another process to let go of a sink
_POLL_S = 0.05

_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_WITH_ZONE = "TIMESTAMP_MICROS"


class FileWriter(Writer):
    """Any of Spark's file formats in a directory."""

    def __init__(self, spark: SparkSession, sink: Sink, run_id: str, disk: Disk) -> None:
        if not sink.path:
            raise InputError(f"a sink of format {sink.format} needs a path")
        self._sink = sink
        self._run_id = run_id
        self._storage, self._directory = open_storage(spark, sink.path, disk)
        # A place of this run alone: several queries may write to one directory.
        self._staging = self._storage.staging(self._directory, run_id)
        self._has_executors_elsewhere = not backend_of(spark).is_local
        if spark.conf.get(_TIMESTAMPS, None) is None:
            spark.conf.set(_TIMESTAMPS, _WITH_ZONE)  # Spark's default, INT96, does not say that it means UTC
        self._writes_zone = spark.conf.get(_TIMESTAMPS) == _WITH_ZONE
        self._let_go: Callable[[], None] | None = None  # while this process holds the sink
        self._claim = 0  # the number of ours
        try:
            self._storage.make(self._directory, lasting=True)
            places = [self._directory]
            places += [self._staging.rpartition("/")[0]] if not isinstance(self._storage, ObjectStorage) else []
            for place in places:
                trial = f"{place}/.trial-{run_id}"  # what a power cut leaves of it goes with the next start
                self._storage.make(trial)
                self._storage.remove(trial)
        except Exception as error:
            raise _unwritable(sink, _cause(error)) from None

    @property
    def compact_s(self) -> float:
        """How long answers may wait for others to be published with, in one file; 0: not at all."""
        return self._sink.compact_us / 1e6

    @property
    def is_empty(self) -> bool:
        """Whether no other run has left anything in the directory."""
        return all(name.startswith((".", "_")) for name in self._storage.names(self._directory))

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> int:
        if self._has_executors_elsewhere and isinstance(self._storage, ObjectStorage):
            raise RunError(
                f"the sink {self._sink.path} gets rows that Spark's executors write, and they have no place in common "
                "with the driver; on a cluster use Hadoop's connector (s3a://...), or Parquet of plain columns"
            )

        def stage(path: str) -> int:
            counted = Observation()
            writer = rows.observe(counted, F.count(F.lit(1)).alias("rows")).write.format(self._sink.format)
            options = option_values(rows.sparkSession, self._sink.options, f"the sink {self._sink.path}")
            writer.options(**options).mode("overwrite").save(path)
            return int(counted.get["rows"])

        return self.publish(stage, batch, replay=replay)

    def publish(self, stage: Callable[[str], int], batch: int, *, replay: bool) -> int:
        """Have a batch's rows put into files aside, then show them all under the batch's names."""
        try:
            return self._publish(stage, batch, replay=replay)
        except Exception:
            self._check_claim()  # whoever has overtaken us has removed what we had put aside
            raise

    def _publish(self, stage: Callable[[str], int], batch: int, *, replay: bool) -> int:
        staged = f"{self._staging}/{batch}-{uuid.uuid4().hex[:8]}"
        self._storage.make(staged)
        count = stage(staged)
        self._check_claim()
        if replay:
            self.remove(batch)
        if count:
            parts = [name for name in self._storage.names(staged) if name.startswith("part-")]
            self._storage.flush(f"{staged}/{name}" for name in parts)
            shown = []
            for number, name in enumerate(parts):
                suffix = name[name.index(".") :]
                shown.append(f"{self._directory}/{self._prefix}{batch:08d}-{number:05d}-{self._claim}{suffix}")
                self._storage.move(f"{staged}/{name}", shown[-1])
            self._storage.flush([self._directory])
            if isinstance(self._storage, ObjectStorage):
                self._check_claim(shown)
        self._storage.remove(staged)
        return count

    def _check_claim(self, shown: Sequence[str] = ()) -> None:
        """Stop if another process has taken the sink over, and take back what was shown since."""
        if self._claim and not self._storage.exists(f"{self._directory}/{claims.file_name(self._run_id, self._claim)}"):
            for path in shown:
                self._storage.remove(path)
            raise Fenced(
                f"the sink {self._sink.path} was taken over by another process of the same run, on a copy of this "
                "checkpoint, so this one stops; run each site once, with the checkpoint of the process that goes on"
            )

    def remove(self, batch: int) -> None:
        """Take back what an unfinished attempt at a batch has published."""
        self._remove(lambda number: number == batch)

    def resume_after(self, batch: int, delivered: int, start: Start) -> None:
        """Hold the sink, and take back what this run has published after a batch: its checkpoint is a copy of before.

        A process that was fenced at its links, or killed, may take a moment to let go.
        """
        self._hold()
        self._take_over(batch, delivered, start)
        for name in self._storage.names(self._staging):
            self._storage.remove(f"{self._staging}/{name}")
        self._remove(lambda number: number > batch)

    def _take_over(self, kept: int, delivered: int, start: Start) -> None:
        """Claim the sink, unless what the checkpoint has delivered is not there any more."""
        while True:
            names = self._storage.names(self._directory)
            number = claims.newest_of(names, self._run_id)
            known = self._claims(number) if number else []
            taken = claims.overtaken_by(known, start, delivered)
            if taken is not None:
                raise CheckpointMismatch(
                    f"the sink {self._sink.path}: a process on a copy of this checkpoint has gone on from batch "
                    f"{taken.kept} since, in place of what this one had delivered up to batch {delivered}; start with "
                    "that copy, restore checkpoint and sink from copies of one moment, or give both another place"
                )
            made = f"{self._directory}/{claims.file_name(self._run_id, number + 1)}"
            if self._storage.create(made, claims.to_bytes([*known, Claim(start.token, kept)])):
                break
        self._claim = number + 1
        for name in claims.before(self._claim, names, self._run_id):
            self._storage.remove(f"{self._directory}/{name}")

    def _claims(self, number: int) -> list[Claim]:
        path = f"{self._directory}/{claims.file_name(self._run_id, number)}"
        data = self._storage.read(path)
        try:
            return [] if data is None else claims.from_bytes(data)
        except ValueError as error:
            raise CheckpointMismatch(
                f"{path} is damaged ({error}), which says who writes to the sink; if no other process does, and none "
                "has on a copy of this checkpoint, remove it and start again"
            ) from None

    def _hold(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while (let_go := self._storage.hold(self._staging)) is None:
            if time.monotonic() > deadline:
                raise CheckpointMismatch(
                    f"the sink {self._sink.path} is in use by another process of the same run, which has this "
                    "checkpoint or a copy of it; stop that process, or give --checkpoint and the sink another place"
                )
            time.sleep(_POLL_S)
        self._let_go = let_go

    def _remove(self, is_meant: Callable[[int], bool]) -> None:
        published = re.compile(re.escape(self._prefix) + r"(\d{8,})-")
        names = [(name, published.match(name)) for name in self._storage.names(self._directory)]
        meant = [name for name, match in names if match is not None and is_meant(int(match.group(1)))]
        for name in meant:
            self._storage.remove(f"{self._directory}/{name}")
        if meant:
            self._storage.flush([self._directory])

    @property
    def direct_compression(self) -> str | None:
        """How tasks of ours may write this sink's files themselves: its compression, or None where only Spark may."""
        options = {name.casefold(): value for name, value in self._sink.options.items()}
        compression = options.pop("compression", "snappy").casefold()
        known = compression in ("none", "uncompressed", "snappy", "gzip", "zstd", "lz4_raw", "brotli")
        plain = self._sink.format == "parquet" and known and not options and self._writes_zone
        if not plain or not self._storage.stages_here:
            return None
        return {"uncompressed": "none", "lz4_raw": "lz4"}.get(compression, compression)

    @property
    def _prefix(self) -> str:
        return f"part-{self._run_id}-"

    def close(self) -> None:
        if self._let_go is not None:
            with contextlib.suppress(Exception):  # at the next start it is emptied; Java may be gone
                self._storage.remove(self._staging)
            self.let_go()

    def let_go(self) -> None:
        """Let another process write, as a killed one does."""
        if self._let_go is not None:
            self._let_go()
            self._let_go = None


class ConsoleWriter(Writer):
    """The first rows of each batch, as a table of text."""

    def __init__(self, sink: Sink, show: Callable[[str], None]) -> None:
        self._rows = int(sink.options.get("numRows", CONSOLE_ROWS))
        self._truncate = sink.options.get("truncate", "true").casefold() == "true"
        self._show = show

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> int:
        rows = rows.persist()
        try:
            count = rows.count()
            if count:
                text = rows._show_string(self._rows, self._truncate)  # type: ignore[operator]
                self._show(f"batch {batch}: {count} rows\n{text}")
            return count
        finally:
            rows.unpersist()


class FormatWriter(Writer):
    """Any other format that Spark can write a batch to; exactly once where the format itself is idempotent."""

    def __init__(self, sink: Sink, run_id: str) -> None:
        self._sink = sink
        self._run_id = run_id

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> int:
        counted = Observation()
        options = option_values(rows.sparkSession, self._sink.options, f"a sink of format {self._sink.format}")
        if self._sink.format == "delta":
            options |= {"txnAppId": self._run_id, "txnVersion": str(batch)}
        writer = rows.observe(counted, F.count(F.lit(1)).alias("rows")).write.format(self._sink.format)
        writer.options(**options).mode("append").save(self._sink.path)
        return int(counted.get["rows"])


class FunctionWriter(Writer):
    """A user's function that takes each batch as a DataFrame."""

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> None:
        self._function(rows, batch)


def check_sink(spark: SparkSession, query: Query) -> None:
    """Refuse a sink that no run could write, before anything runs."""
    sink = query.sink
    if sink.compact is not None and (query.foreach_batch is not None or sink.format not in FILE_FORMATS):
        raise InputError(f"query {query.name!r}: compact is for sinks of files; leave it out, or choose such a sink")
    if query.foreach_batch is not None or sink.format == "console":
        return
    if sink.format == "kafka":
        check_kafka_sink(query)
        return
    if sink.format in FILE_FORMATS:
        if not sink.path:
            raise InputError(f"query {query.name!r}: a sink of format {sink.format} needs a path")
        storage, directory = open_storage(spark, sink.path, FLUSHED)
        place = Path(directory)
        while storage.is_local and not place.exists():
            place = place.parent
        if storage.is_local and not (place.is_dir() and os.access(place, os.W_OK)):
            raise _unwritable(sink, os.strerror(errno.EACCES if place.is_dir() else errno.ENOTDIR))
        return
    if (cause := backend_of(spark).unknown_format(sink.format)) is not None:
        raise InputError(f"query {query.name!r}: Spark cannot write its sink: {cause}")


def open_sink(
    spark: SparkSession,
    query: Query,
    run_id: str,
    show: Callable[[str], None],
    disk: Disk,
    warn: Callable[[str], object] = lambda text: None,
) -> Writer:
    """The writer for a query's answers."""
    if query.foreach_batch is not None:
        return FunctionWriter(query.foreach_batch)
    if query.sink.format == "console":
        return ConsoleWriter(query.sink, show)
    if query.sink.format in FILE_FORMATS:
        return FileWriter(spark, query.sink, run_id, disk)
    if query.sink.format == "kafka":
        return KafkaWriter(spark, query.sink, run_id, warn)
    return FormatWriter(query.sink, run_id)


def _unwritable(sink: Sink, cause: str) -> RunError:
    return RunError(
        f"the sink {sink.path} cannot be written: {cause}; "
        "make the directory writable or give the query another sink path"
    )


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if java is not None:
        return f"{java.getClass().getSimpleName()}: {java.getMessage()}"
    return first_line(error)
