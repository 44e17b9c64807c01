"""Where answers go, each batch exactly once as any reader of the sink sees it.

A file sink writes a batch aside and then renames its files to names made of the run's identity and the batch number.
A batch that runs again after a crash first removes what its earlier attempt had published, so that no reader, with or
without Spark, finds leftovers.
"""

import contextlib
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from watersmeet.errors import InputError, RunError
from watersmeet.spark.session import first_line
from watersmeet.spark.sources import FILE_FORMATS
from watersmeet.topology import BatchFunction, Query, Sink

CONSOLE_ROWS = 20


class Writer(Protocol):
    """What a batch's rows are given to; returns how many there were, None where only the receiver knows."""

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> int | None:
        """Deliver a batch; `replay` says that an unfinished attempt at it may have delivered something before."""
        ...

    def remove(self, batch: int) -> None:
        """Take back what an unfinished attempt at a batch has delivered, where that can be done."""
        return

    def close(self) -> None:
        """Leave nothing temporary behind."""
        return


class FileWriter(Writer):
    """Any of Spark's file formats in a directory."""

    def __init__(self, spark: SparkSession, sink: Sink, run_id: str) -> None:
        if not sink.path:
            raise InputError(f"a sink of format {sink.format} needs a path")
        self._sink = sink
        self._run_id = run_id
        self._jvm: Any = spark._jvm
        self._conf = spark._jsc.hadoopConfiguration()
        self._directory = self._path(sink.path)
        self._files = self._directory.getFileSystem(self._conf)
        self._staging = self._path(self._directory.getParent(), f".{self._directory.getName()}.staging")
        try:
            if not self._files.mkdirs(self._directory):
                raise RunError("the file system refused")
            probe = self._path(self._directory, f".probe-{uuid.uuid4().hex[:8]}")
            self._files.create(probe).close()
            self._files.delete(probe, False)
        except Exception as error:
            raise RunError(
                f"the sink {sink.path} cannot be written: {_cause(error)}; "
                "make the directory writable or give the query another sink path"
            ) from None

    def _path(self, *parts: Any) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(*parts)

    @property
    def is_empty(self) -> bool:
        """Whether no other run has left anything in the directory."""
        return all(
            status.getPath().getName().startswith((".", "_")) for status in self._files.listStatus(self._directory)
        )

    def write(self, rows: DataFrame, batch: int, *, replay: bool) -> int:
        counted = Observation()
        staged = self._path(self._staging, f"{self._run_id}-{batch}-{uuid.uuid4().hex[:8]}")
        writer = rows.observe(counted, F.count(F.lit(1)).alias("rows")).write.format(self._sink.format)
        writer.options(**dict(self._sink.options)).mode("overwrite").save(staged.toString())
        if replay:
            self.remove(batch)
        count = int(counted.get["rows"])
        if count:
            self._publish(staged, self._prefix(batch))
        self._files.delete(staged, True)
        return count

    def remove(self, batch: int) -> None:
        """Take back what an unfinished attempt at a batch has published."""
        for status in self._files.globStatus(self._path(self._directory, f"{self._prefix(batch)}*")) or ():
            self._files.delete(status.getPath(), False)

    def _prefix(self, batch: int) -> str:
        return f"part-{self._run_id}-{batch:08d}-"

    def _publish(self, staged: Any, prefix: str) -> None:
        names = [status.getPath().getName() for status in self._files.listStatus(staged)]
        for number, name in enumerate(sorted(name for name in names if name.startswith("part-"))):
            suffix = name[name.index(".") :]
            target = self._path(self._directory, f"{prefix}{number:05d}{suffix}")
            if not self._files.rename(self._path(staged, name), target):
                raise RunError(f"the sink {self._sink.path} refused the file {target.getName()}; is its disk full?")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            for status in self._files.listStatus(self._staging):
                if status.getPath().getName().startswith(self._run_id):
                    self._files.delete(status.getPath(), True)
            self._files.delete(self._staging, False)


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
        options = dict(self._sink.options)
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


def open_sink(spark: SparkSession, query: Query, run_id: str, show: Callable[[str], None]) -> Writer:
    """The writer for a query's answers."""
    if query.foreach_batch is not None:
        return FunctionWriter(query.foreach_batch)
    if query.sink.format == "console":
        return ConsoleWriter(query.sink, show)
    if query.sink.format in FILE_FORMATS:
        return FileWriter(spark, query.sink, run_id)
    return FormatWriter(query.sink, run_id)


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    if java is not None:
        return f"{java.getClass().getSimpleName()}: {java.getMessage()}"
    return first_line(error)
