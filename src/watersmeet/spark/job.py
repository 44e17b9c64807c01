"""One query as one Structured Streaming query: ingest, decide, probe, publish, commit; once for each micro-batch."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StringType, StructField, StructType

from watersmeet.plan import Distinct, MultiJoin, Plan, Project, Restrict, join_of
from watersmeet.program.ledger import Ledger, Segment
from watersmeet.program.segments import class_column
from watersmeet.program.stages import ROW, carried_classes
from watersmeet.spark.binding import CORRUPT_FIELD, Bound, is_collated
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.engine import Report, WindowEngine, segment_of, total
from watersmeet.spark.sinks import FileWriter, Writer
from watersmeet.spark.sources import catches_malformed, ingest_columns, open_stream, raw_columns
from watersmeet.spark.tasks import (
    REASON,
    REPORT,
    Batches,
    FileAnswers,
    Ingest,
    KeepUnseen,
    Named,
    OnNumbers,
    ReadRows,
    Round,
    WriteRound,
)
from watersmeet.topology import Query, Topology

Task = Callable[[Batches], Batches]

# Types that Arrow and Spark write to Parquet alike.
_DIRECT_TYPES = (
    *(T.BinaryType, T.BooleanType, T.DateType, T.DecimalType, T.DoubleType, T.FloatType),
    *(T.IntegralType, T.StringType, T.TimestampNTZType, T.TimestampType),
)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did, for whoever watches; `rows_out` is None where only a user's function knows."""

    batch: int
    rows_in: int
    rows_out: int | None
    late: int
    malformed: int
    null_keys: int
    state_rows: int
    state_bytes: int
    segments: int
    seconds: float
    watermarks: Mapping[str, int | None]
    steps: Mapping[str, float] = field(default_factory=dict)


class JoinJob:
    """Runs the batches of one query."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        query: Query,
        bound: Bound,
        plan: Plan,
        checkpoint: Checkpoint,
        writer: Writer,
    ) -> None:
        self._spark = spark
        self._topology = topology
        self._query = query
        self._bound = bound
        self._plan = plan
        self._checkpoint = checkpoint
        self._writer = writer
        self._join = join_of(plan)
        self._engine = WindowEngine(
            join=self._join,
            delays_us={s.stream: topology.stream(s.stream).watermark_us for s in self._join.scans},
            state=checkpoint.state,
            buckets=max(1, int(spark.sparkContext.defaultParallelism)),
            run_tasks=self._run_tasks,
        )
        self._direct = direct_columns(plan, bound, writer)
        self._late_writers = self._open_late_writers()
        self._is_first = True
        self.last_report: BatchReport | None = None

    @property
    def ledger(self) -> Ledger:
        """The state after the last finished batch."""
        return self._checkpoint.ledger

    def ingest_frame(self) -> DataFrame:
        """The streaming frame whose every batch files the new rows of all aliases and tells where they are."""
        opened = {
            name: open_stream(self._spark, self._topology.stream(name), self._bound.schemas[name])
            for name in sorted(self._bound.schemas)
        }
        frames = []
        for scan in self._join.scans:
            stream, schema = self._topology.stream(scan.stream), self._bound.schemas[scan.stream]
            raw = raw_columns(stream, scan) if self._engine.speaker(scan.stream) == scan.alias else ()
            rows = ingest_columns(opened[scan.stream], stream, schema, scan, self._join, keep_raw=bool(raw))
            task = Ingest(
                directory=self._checkpoint.state,
                ledger_path=self._checkpoint.ledger_path,
                scan=scan,
                carried=carried_classes(self._join),
                ordered=self._join.ordered,
                delay_us=stream.watermark_us,
                start_us=self._query.start_us,
                raw_columns=raw,
                spare_columns=tuple(
                    n for n in rows.columns if n.startswith(f"{scan.alias}.") and n not in scan.columns
                ),
            )
            frames.append(_map(rows, task))
        return reduce(DataFrame.union, frames)

    def run_batch(self, reports: DataFrame, batch: int) -> None:
        """Answer one micro-batch; a batch that was finished before a crash is passed over."""
        if batch <= self.ledger.batch:
            return
        clock = _Clock()
        told = _reports(reports)
        clock.lap("ingest")
        ledger = self._engine.account(replace(self.ledger, batch=batch), told)
        ledger, arrived = self._engine.arrive(ledger, told)
        clock.lap("release")
        rows_out: int | None = 0
        if arrived.segments:
            last_round = self._engine.combine(self.ledger, arrived)
            clock.lap("rounds")
            rows_out, fresh = self._deliver(last_round, batch)
            ledger = replace(ledger, seen=(*ledger.seen, *fresh))
        elif self._is_first:
            self._writer.remove(batch)
        clock.lap("publish")
        self._keep_late(told, batch)
        ledger = self._engine.tidy(replace(ledger, rows_out=ledger.rows_out + (rows_out or 0)), arrived)
        self._checkpoint.commit(ledger)
        clock.lap("tidy")
        self._is_first = False
        self.last_report = self._report(ledger, told, rows_out, clock)

    def _deliver(self, last_round: Round, batch: int) -> tuple[int | None, tuple[Segment, ...]]:
        """Give the batch's answers to the sink; how many there were, and what is to be remembered of them."""
        if self._direct is not None and isinstance(self._writer, FileWriter):
            columns, compression = self._direct

            def stage(path: str) -> int:
                task = WriteRound(last_round, path, columns, compression)
                return total(self._run_tasks(task, self._engine.buckets), "rows")

            return self._writer.publish(stage, batch, replay=self._is_first), ()
        schema = self._bound.combination(self._join.output) if self._join.output else f"`{ROW}` boolean"
        answers = self._finish(self._numbers(self._engine.buckets).mapInArrow(last_round, schema))
        fresh: tuple[Segment, ...] = ()
        if isinstance(self._plan, Distinct):
            answers, fresh = self._unseen(answers)
        return self._writer.write(answers, batch, replay=self._is_first), fresh

    def _finish(self, rows: DataFrame) -> DataFrame:
        """Predicates and output columns, evaluated by Spark."""
        plan = self._plan.child if isinstance(self._plan, Distinct) else self._plan
        assert isinstance(plan, Project), "a plan projects its answers"
        if isinstance(plan.child, Restrict):
            for predicate in plan.child.predicates:
                rows = rows.where(F.expr(predicate.sql))
        return rows.select([F.expr(item.expression.sql).alias(item.name) for item in plan.select])

    def _unseen(self, answers: DataFrame) -> tuple[DataFrame, tuple[Segment, ...]]:
        """Those answers that were never given before, and the files that remember them."""
        plain = answers.toDF(*(f"c{number}" for number in range(len(answers.columns))))
        rows, compared = plain.dropDuplicates(), list(plain.columns)
        for number, item in enumerate(self._bound.query.select):
            if is_collated(item.expression.type):
                compared[number] = f"k{number}"
                rows = rows.withColumn(compared[number], F.expr(f"collation_key(c{number})"))
        hashed = rows.withColumn(class_column(0), F.xxhash64(*compared))
        filed = tuple(row["path"] for row in _reports(_map(hashed, FileAnswers(self._checkpoint.state))))
        if not filed:
            return self._read([], plain.schema).toDF(*answers.columns), ()
        task = KeepUnseen(self._checkpoint.state, self._engine.buckets, filed, self.ledger.seen, tuple(compared))
        fresh = tuple(segment_of(row) for row in self._run_tasks(task, self._engine.buckets))
        unseen = self._read([segment.parts[0].path for segment in fresh], plain.schema)
        return unseen.toDF(*answers.columns), fresh

    def _keep_late(self, told: Sequence[Report], batch: int) -> None:
        """Write late and malformed rows where their stream asks for them."""
        for stream, (writer, schema) in self._late_writers.items():
            rows = [row for row in told if row["alias"] == self._engine.speaker(stream)]
            paths = [row[name] for row in rows for name in ("late_file", "malformed_file") if name in row]
            if paths:
                writer.write(self._read(paths, schema), batch, replay=self._is_first)
            elif self._is_first:
                writer.remove(batch)

    def _open_late_writers(self) -> dict[str, tuple[FileWriter, StructType]]:
        writers = {}
        for name, schema in sorted(self._bound.schemas.items()):
            stream = self._topology.stream(name)
            if stream.late is not None:
                corrupt = [CORRUPT_FIELD] if catches_malformed(stream.source) else []
                fields = [*schema.fields, *corrupt, StructField(REASON, StringType())]
                nullable = StructType([StructField(item.name, item.dataType) for item in fields])
                run_id = f"{self._query.name}-{self._checkpoint.run_id}"
                writers[name] = (FileWriter(self._spark, stream.late, run_id), nullable)
        return writers

    def _read(self, paths: Sequence[str], schema: StructType) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame([], schema)
        return self._numbers(len(paths)).mapInArrow(ReadRows(tuple(paths), tuple(schema.names)), schema)

    def _run_tasks(self, task: Task, count: int) -> list[Report]:
        # A plain job: planning a query takes Spark SQL longer than most of these tasks run.
        numbers = self._spark.sparkContext.parallelize(range(count), count)
        return [json.loads(row) for row in numbers.mapPartitions(OnNumbers(task)).collect()]

    def _numbers(self, count: int) -> DataFrame:
        """One row, its own number, in each of `count` tasks."""
        return self._spark.range(0, count, 1, count)

    def _report(self, ledger: Ledger, told: Sequence[Report], rows_out: int | None, clock: "_Clock") -> BatchReport:
        counted = self._engine.counted(told)
        segments = list(ledger.segments)
        return BatchReport(
            batch=ledger.batch,
            rows_in=total(counted, "rows"),
            rows_out=rows_out,
            late=total(counted, "late"),
            malformed=total(counted, "malformed"),
            null_keys=ledger.null_keys - self.ledger.null_keys,
            state_rows=sum(segment.rows for segment in segments),
            state_bytes=sum(segment.bytes for segment in segments),
            segments=len(segments),
            seconds=clock.total,
            watermarks=self._engine.watermarks(ledger),
            steps=clock.laps,
        )

    def close(self) -> None:
        """Let go of the sink and the checkpoint."""
        self._writer.close()
        for writer, _ in self._late_writers.values():
            writer.close()
        self._checkpoint.close()


def direct_columns(plan: Plan, bound: Bound, writer: Writer) -> tuple[tuple[tuple[str, str], ...], str] | None:
    """Where every answer is made of plain columns and goes to local Parquet files: those columns and the compression.

    Such answers need nothing of Spark SQL, and the tasks that find them write them.
    """
    if not isinstance(plan, Project) or not isinstance(plan.child, MultiJoin) or not isinstance(writer, FileWriter):
        return None
    compression = writer.direct_compression
    columns = [(item.expression.columns[0].flat, item.name) for item in plan.select if item.expression.is_plain]
    if compression is None or len(columns) < len(plan.select):
        return None
    types = bound.combination(tuple(flat for flat, _ in columns)).fields
    return (tuple(columns), compression) if all(isinstance(f.dataType, _DIRECT_TYPES) for f in types) else None


class _Clock:
    """Where the time of a batch goes."""

    def __init__(self) -> None:
        self._start = self._mark = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._mark, 4)
        self._mark = now

    @property
    def total(self) -> float:
        return self._mark - self._start


def _map(rows: DataFrame, task: Task) -> DataFrame:
    """Run a task that files rows; what comes out is what it tells."""
    plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return plain.mapInArrow(Named(task, tuple(rows.columns)), REPORT)


def _reports(frame: DataFrame) -> list[Report]:
    return [json.loads(row[0]) for row in frame.collect()]
