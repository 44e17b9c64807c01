"""From finished combinations to the sink: remaining predicates, output columns, DISTINCT; and late rows to theirs."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StringType, StructField, StructType

from watersmeet.plan.nodes import Distinct, JoinPlan, MultiJoin, Plan, Project, Restrict, bottom_of
from watersmeet.program.join.stages import ROW
from watersmeet.program.site.ledger import Segment
from watersmeet.program.storage.segments import class_column
from watersmeet.spark.binding import CORRUPT_FIELD, Bound, is_collated
from watersmeet.spark.deliver.sinks import FileWriter, Writer
from watersmeet.spark.engine import Report, segment_of, total
from watersmeet.spark.ingest.sources import catches_malformed
from watersmeet.spark.tasks import (
    REASON,
    REPORT,
    Batches,
    FileAnswers,
    KeepUnseen,
    Named,
    OnEach,
    OnNumbers,
    ReadRows,
    Round,
    WriteRound,
    WriteRows,
)
from watersmeet.topology.model import Query, Topology

Task = Callable[[Batches], Batches]
Result = TypeVar("Result")

# Types that Arrow and Spark write to Parquet alike.
_DIRECT_TYPES = (
    *(T.BinaryType, T.BooleanType, T.DateType, T.DecimalType, T.DoubleType, T.FloatType),
    *(T.IntegralType, T.StringType, T.TimestampNTZType, T.TimestampType),
)


_FEW_ROWS = 10_000  # that the driver works through sooner than Spark starts a job


class Delivery:
    """Gives the answers of one query to its sink, a batch at a time."""

    def __init__(self, spark: SparkSession, bound: Bound, plan: Plan, writer: Writer, state: str, buckets: int) -> None:
        self._spark = spark
        self._bound = bound
        self._plan = plan
        self._join = bottom_of(plan)
        self._writer = writer
        self._state = state
        self._buckets = buckets
        self._direct = direct_columns(plan, bound, writer)

    def round(
        self, last_round: Round, batch: int, seen: tuple[Segment, ...], *, replay: bool
    ) -> tuple[int | None, tuple[Segment, ...]]:
        """Deliver what the last round finds; how many answers there were, and what is to be remembered of them."""
        if self._direct is not None and isinstance(self._writer, FileWriter):
            columns, compression = self._direct

            def stage(path: str) -> int:
                task = WriteRound(last_round, path, columns, compression)
                return total(run_told(self._spark, task, self._buckets), "rows")

            return self._writer.publish(stage, batch, replay=replay), ()
        return self._frame(
            numbers(self._spark, self._buckets).mapInArrow(last_round, self._schema), batch, seen, replay
        )

    def files(
        self, paths: Sequence[str], rows: int, batch: int, seen: tuple[Segment, ...], *, replay: bool
    ) -> tuple[int | None, tuple[Segment, ...]]:
        """Deliver so many finished combinations that lie in files."""
        if self._direct is not None and isinstance(self._writer, FileWriter):
            columns, compression = self._direct

            def stage(path: str) -> int:
                task = WriteRows(tuple(paths), self._buckets, path, columns, compression)
                return sum(run_each(self._spark, task, self._buckets, rows))

            return self._writer.publish(stage, batch, replay=replay), ()
        task = ReadRows(tuple(paths), self._join.output or (ROW,))
        return self._frame(numbers(self._spark, len(paths)).mapInArrow(task, self._schema), batch, seen, replay)

    def nothing(self, batch: int) -> None:
        """A batch without answers takes back what an unfinished attempt at it delivered."""
        self._writer.remove(batch)

    @property
    def _schema(self) -> StructType | str:
        return self._bound.combination(self._join.output) if self._join.output else f"`{ROW}` boolean"

    def _frame(
        self, rows: DataFrame, batch: int, seen: tuple[Segment, ...], replay: bool
    ) -> tuple[int | None, tuple[Segment, ...]]:
        answers = self._finish(rows)
        fresh: tuple[Segment, ...] = ()
        if isinstance(self._plan, Distinct):
            answers, fresh = self._unseen(answers, seen)
        return self._writer.write(answers, batch, replay=replay), fresh

    def _finish(self, rows: DataFrame) -> DataFrame:
        """Predicates and output columns, evaluated by Spark."""
        plan = self._plan.child if isinstance(self._plan, Distinct) else self._plan
        assert isinstance(plan, Project), "a plan projects its answers"
        if isinstance(plan.child, Restrict):
            for predicate in plan.child.predicates:
                rows = rows.where(F.expr(predicate.sql))
        return rows.select([F.expr(item.expression.sql).alias(item.name) for item in plan.select])

    def _unseen(self, answers: DataFrame, seen: tuple[Segment, ...]) -> tuple[DataFrame, tuple[Segment, ...]]:
        """Those answers that were never given before, and the files that remember them."""
        plain = answers.toDF(*(f"c{number}" for number in range(len(answers.columns))))
        rows, compared = plain.dropDuplicates(), list(plain.columns)
        for number, item in enumerate(self._bound.query.select):
            if is_collated(item.expression.type):
                compared[number] = f"k{number}"
                rows = rows.withColumn(compared[number], F.expr(f"collation_key(c{number})"))
        hashed = rows.withColumn(class_column(0), F.xxhash64(*compared))
        filed = tuple(row["path"] for row in reports(map_rows(hashed, FileAnswers(self._state))))
        if not filed:
            return read_rows(self._spark, [], plain.schema).toDF(*answers.columns), ()
        task = KeepUnseen(self._state, self._buckets, filed, seen, tuple(compared))
        fresh = tuple(segment_of(row) for row in run_told(self._spark, task, self._buckets))
        unseen = read_rows(self._spark, [segment.parts[0].path for segment in fresh], plain.schema)
        return unseen.toDF(*answers.columns), fresh

    def close(self) -> None:
        """Let go of the sink."""
        self._writer.close()


class LateRows:
    """Writes late and malformed rows where their stream asks for them."""

    def __init__(
        self, spark: SparkSession, topology: Topology, query: Query, schemas: Mapping[str, StructType], run_id: str
    ) -> None:
        self._spark = spark
        self._writers: dict[str, tuple[FileWriter, StructType]] = {}
        for name, schema in sorted(schemas.items()):
            stream = topology.stream(name)
            if stream.late is not None:
                corrupt = [CORRUPT_FIELD] if catches_malformed(stream.source) else []
                fields = [*schema.fields, *corrupt, StructField(REASON, StringType())]
                nullable = StructType([StructField(item.name, item.dataType) for item in fields])
                self._writers[name] = (FileWriter(spark, stream.late, f"{query.name}-{run_id}"), nullable)

    def keep(self, told: Sequence[Report], batch: int, speaker: Callable[[str], str], *, replay: bool) -> None:
        """Write those of one batch."""
        for stream, (writer, schema) in self._writers.items():
            rows = [row for row in told if row["alias"] == speaker(stream)]
            paths = [row[name] for row in rows for name in ("late_file", "malformed_file") if name in row]
            if paths:
                writer.write(read_rows(self._spark, paths, schema), batch, replay=replay)
            elif replay:
                writer.remove(batch)

    def close(self) -> None:
        """Let go of the sinks."""
        for writer, _ in self._writers.values():
            writer.close()


def read_rows(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of files of ours as a frame."""
    if not paths:
        return spark.createDataFrame([], schema)
    return numbers(spark, len(paths)).mapInArrow(ReadRows(tuple(paths), tuple(schema.names)), schema)


def run_told(spark: SparkSession, task: Task, count: int) -> list[Report]:
    """Run a task for each number below a count; what they tell."""
    # A plain job: planning a query takes Spark SQL longer than most of these tasks run.
    parts = spark.sparkContext.parallelize(range(count), count)
    return [json.loads(row) for row in parts.mapPartitions(OnNumbers(task)).collect()]


def run_each(spark: SparkSession, task: Callable[[int], list[Result]], count: int, rows: int) -> list[Result]:
    """Run a task for each number below a count, over so many rows; all they return."""
    if rows < _FEW_ROWS:
        return [result for number in range(count) for result in task(number)]
    return spark.sparkContext.parallelize(range(count), count).mapPartitions(OnEach(task)).collect()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """One row, its own number, in each of `count` tasks."""
    return spark.range(0, count, 1, count)


def map_rows(rows: DataFrame, task: Task) -> DataFrame:
    """Run a task that files rows; what comes out is what it tells."""
    plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return plain.mapInArrow(Named(task, tuple(rows.columns)), REPORT)


def reports(frame: DataFrame) -> list[Report]:
    """What tasks told."""
    return [json.loads(row[0]) for row in frame.collect()]


def direct_columns(plan: Plan, bound: Bound, writer: Writer) -> tuple[tuple[tuple[str, str], ...], str] | None:
    """Where every answer is made of plain columns and goes to local Parquet files: those columns and the compression.

    Such answers need nothing of Spark SQL, and the tasks that find them write them.
    """
    if (
        not isinstance(plan, Project)
        or not isinstance(plan.child, MultiJoin | JoinPlan)
        or not isinstance(writer, FileWriter)
    ):
        return None
    compression = writer.direct_compression
    columns = [(item.expression.columns[0].flat, item.name) for item in plan.select if item.expression.is_plain]
    if compression is None or len(columns) < len(plan.select):
        return None
    types = bound.combination(tuple(flat for flat, _ in columns)).fields
    return (tuple(columns), compression) if all(isinstance(f.dataType, _DIRECT_TYPES) for f in types) else None
