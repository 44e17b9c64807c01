"""Running tasks: as plain jobs of Spark, or in this process where Spark's own tasks would run on this machine too."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.files import FileShelf
from watersmeet.spark.session import empty_frame
from watersmeet.spark.tasks import REPORT, Batches, Named, ReadRows

Result = TypeVar("Result")

_FEW_ROWS = 10_000  # that the driver works through sooner than Spark starts a job


class TaskRunner:
    """Runs tasks by number over so many rows; all they return.

    With a local master the tasks of Spark would run on this machine, each a trip to another process: threads do the
    same sooner, since the kernels and Arrow run without Python's lock. On a cluster, or a server of
    Spark Connect, they are jobs of Spark.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._backend = backend_of(spark)
        self.parallelism = self._backend.parallelism
        self._is_local = self._backend.is_local

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.parallelism, "watersmeet-task")

    def __call__(self, task: Callable[[int], list[Result]], count: int, rows: int) -> list[Result]:
        if rows < _FEW_ROWS or (count == 1 and self._is_local):
            return [result for number in range(count) for result in task(number)]
        if self._is_local:
            return [result for results in self._threads.map(task, range(count)) for result in results]
        return self._backend.run_tasks(task, count)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """One row, its own number, in each of `count` tasks."""
    return spark.range(0, count, 1, count)


def read_rows(
    spark: SparkSession,
    shelf: FileShelf,
    paths: Sequence[str],
    schema: StructType,
    span: tuple[int, int] | None = None,
) -> DataFrame:
    """The rows of files of ours as a frame; of each file only a span (first row, number of rows) where one is given."""
    if not paths:
        return empty_frame(spark, schema)
    return numbers(spark, len(paths)).mapInArrow(ReadRows(shelf, tuple(paths), tuple(schema.names), span), schema)


def map_rows(rows: DataFrame, task: Callable[[Batches], Batches]) -> DataFrame:
    """Run a task that files rows; what comes out is what it reports."""
    plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return plain.mapInArrow(Named(task, tuple(rows.columns)), REPORT)


def reports(frame: DataFrame) -> list[dict[str, Any]]:
    """What tasks reported."""
    return [json.loads(row[0]) for row in frame.collect()]
