"""The streams of `watersmeet.topology.generate` as a Spark source: `spark.readStream.format("generator").schema(...)`.

An offset is a number of rows. Under Trigger.AvailableNow the pace is ignored: all of `rows` counts as available, and is
taken in micro-batches of `rows_per_batch`; without `rows` such a run would have no end and is refused.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from watersmeet.errors import InputError
from watersmeet.topology import generate

FORMAT = "generator"
Offset = dict[str, int]


def register(spark: SparkSession) -> None:
    """Make `format("generator")` known to the session."""
    spark.dataSource.register(GeneratorSource)


def spec_of(schema: StructType, options: Mapping[str, str]) -> generate.Spec:
    """What the source will generate; called before a query starts, it raises an InputError in the caller's process."""
    return generate.spec(
        {field.name: field.dataType.simpleString() + ("" if field.nullable else " not null") for field in schema},
        options,
    )


class GeneratorSource(DataSource):
    """Rows that are a pure function of the options and the row number."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        raise InputError("generator: it has no schema of its own; give one, as in .schema('ts timestamp, host string')")

    def streamReader(self, schema: StructType) -> "GeneratorReader":
        return GeneratorReader(spec_of(schema, self.options))


@dataclass
class RowRange(InputPartition):
    """Rows [lo, hi)."""

    lo: int
    hi: int


class GeneratorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Admits rows by the wall clock and the read limit, and leaves making them to the workers."""

    def __init__(self, spec: generate.Spec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self.clock = clock
        self.restarted_at: tuple[int, float] | None = None
        self.available_now = False

    def initialOffset(self) -> Offset:
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        if self.spec.rows is None:
            raise InputError("generator: without `rows` a run over what is available now has no end; give `rows`")
        self.available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.spec.rows_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        begin = start["rows"]
        if self.restarted_at is None:
            self.restarted_at = begin, self.clock()
        end = self._available()
        match limit:
            case ReadMaxRows(most):
                end = begin + most if end is None else min(end, begin + most)
            case _ if end is None:
                # Trigger.Once asks for all there is; of a stream without end and without a clock that is one batch.
                end = begin + self.spec.rows_per_batch
        return {"rows": max(begin, end)}

    def reportLatestOffset(self) -> Offset | None:
        end = self._available()
        return None if end is None else {"rows": end}

    def partitions(self, start: Offset, end: Offset) -> Sequence[RowRange]:
        return [RowRange(lo, hi) for lo, hi in self.spec.splits(start["rows"], end["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        return generate.batches(self.spec, partition.lo, partition.hi)

    def _available(self) -> int | None:
        if self.available_now or self.restarted_at is None:
            return self.spec.rows
        restart, since = self.restarted_at
        return self.spec.available(restart, self.clock() - since)
