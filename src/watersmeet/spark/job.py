"""One query as one Structured Streaming query: ingest, decide, probe, publish, commit; once for each micro-batch.

A batch is taken as soon as its rows are filed and the ledger says so. Then Spark may go on with the next one, which it
lists, plans and ingests while the rows of this one are joined.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession

from watersmeet.plan.nodes import Plan, join_of
from watersmeet.program.join.stages import carried_classes
from watersmeet.program.site.ledger import Ledger
from watersmeet.spark.binding import Bound
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.deliver.delivery import Delivery, LateRows, run_told
from watersmeet.spark.deliver.sinks import Writer
from watersmeet.spark.engine import Report, WindowEngine, total
from watersmeet.spark.ingest.intake import Intake
from watersmeet.spark.tasks import FileWindows
from watersmeet.topology.model import Query, Topology


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
        checkpoint: Checkpoint[Ledger],
        writer: Writer,
    ) -> None:
        self._checkpoint = checkpoint
        self._join = join_of(plan)
        self._engine = WindowEngine(
            join=self._join,
            delays_us={s.stream: topology.stream(s.stream).watermark_us for s in self._join.scans},
            state=checkpoint.state,
            buckets=max(1, int(spark.sparkContext.defaultParallelism)),
            run_tasks=partial(run_told, spark),
        )
        self._intake = Intake(
            spark,
            topology,
            query,
            bound,
            self._join,
            [scan.alias for scan in self._join.scans],
            checkpoint.state,
            checkpoint.ledger_path,
            self._engine.speaker,
            lambda scan: FileWindows(checkpoint.state, scan, carried_classes(self._join), self._join.ordered),
        )
        self._delivery = Delivery(spark, bound, plan, writer, checkpoint.state, self._engine.buckets)
        self._late = LateRows(spark, topology, query, bound.schemas, checkpoint.run_id)
        self._is_first = True
        self._failed: Callable[[BaseException], object] = lambda error: None
        self._worker = ThreadPoolExecutor(1, "finish")
        self._finishing: Future[None] | None = None
        self.last_report: BatchReport | None = None

    @property
    def ledger(self) -> Ledger:
        """The state as it was last committed."""
        return self._checkpoint.ledger

    def ingest_frame(self) -> DataFrame:
        """The streaming frame whose every batch files the new rows of all aliases and tells where they are."""
        return reduce(DataFrame.union, self._intake.frames())

    def begin(self, failed: Callable[[BaseException], object]) -> None:
        """Finish what was taken before a crash, if anything was; who is told when a batch that was taken fails."""
        self._failed = failed
        if not self.ledger.is_finished:
            self._begin_to_finish(Clock())

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Take one micro-batch; one that was taken before a crash is passed over."""
        if batch <= self.ledger.taken_batch:
            return
        clock = Clock()
        told = self._intake.told(frame)
        clock.lap("ingest")
        if self._finishing is not None:
            self._finishing.result()
        ledger = self._engine.account(self.ledger, told)
        self._checkpoint.commit(replace(ledger, taken_batch=batch, taken=tuple(told)))
        self._begin_to_finish(clock)

    def _begin_to_finish(self, clock: "Clock") -> None:
        self._finishing = self._worker.submit(self._finish, clock)
        self._finishing.add_done_callback(self._tell_failure)

    def _tell_failure(self, finished: "Future[None]") -> None:
        error = finished.exception()
        if error is not None:
            self._failed(error)

    def _finish(self, clock: "Clock") -> None:
        """Join the rows that were taken, deliver what they answer, and put them into the windows."""
        batch, told = self.ledger.taken_batch, self.ledger.taken
        clock.skip()
        ledger, arrived = self._engine.arrive(replace(self.ledger, batch=batch, taken=()), told)
        clock.lap("release")
        rows_out: int | None = 0
        if arrived.segments:
            last_round = self._engine.combine(self.ledger, arrived)
            clock.lap("rounds")
            rows_out, fresh = self._delivery.round(last_round, batch, self.ledger.seen, replay=self._is_first)
            ledger = replace(ledger, seen=(*ledger.seen, *fresh))
        elif self._is_first:
            self._delivery.nothing(batch)
        clock.lap("publish")
        self._late.keep(told, batch, self._engine.speaker, replay=self._is_first)
        ledger = self._engine.tidy(replace(ledger, rows_out=ledger.rows_out + (rows_out or 0)), arrived)
        null_keys = ledger.null_keys - self.ledger.null_keys + total(told, "null_keys")
        self._checkpoint.commit(ledger, forget=False)  # the next batch may be writing its files
        clock.lap("tidy")
        self._is_first = False
        self.last_report = self._report(ledger, told, rows_out, null_keys, clock)

    def _report(
        self, ledger: Ledger, told: Sequence[Report], rows_out: int | None, null_keys: int, clock: "Clock"
    ) -> BatchReport:
        counted = self._engine.counted(told)
        segments = list(ledger.segments)
        return BatchReport(
            batch=ledger.batch,
            rows_in=total(counted, "rows"),
            rows_out=rows_out,
            late=total(counted, "late"),
            malformed=total(counted, "malformed"),
            null_keys=null_keys,
            state_rows=sum(segment.rows for segment in segments),
            state_bytes=sum(segment.bytes for segment in segments),
            segments=len(segments),
            seconds=clock.total,
            watermarks=self._engine.watermarks(ledger),
            steps=clock.laps,
        )

    def close(self) -> None:
        """Let go of the sink and the checkpoint, once the batch that was taken is finished or has failed."""
        self._worker.shutdown()
        self._checkpoint.forget_unused()
        self._delivery.close()
        self._late.close()
        self._checkpoint.close()


class Clock:
    """Where the time of a batch goes."""

    def __init__(self) -> None:
        self._mark = time.perf_counter()
        self.laps: dict[str, float] = {}

    def skip(self) -> None:
        """What went by since the last lap is nobody's."""
        self._mark = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._mark, 4)
        self._mark = now

    @property
    def total(self) -> float:
        return sum(self.laps.values())
