"""One query as one Structured Streaming query: ingest, decide, probe, publish, commit; once for each micro-batch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession

from watersmeet.plan import Plan, join_of
from watersmeet.program.ledger import Ledger
from watersmeet.program.stages import carried_classes
from watersmeet.spark.binding import Bound
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.delivery import Delivery, LateRows, map_rows, reports, run_told
from watersmeet.spark.engine import Report, WindowEngine, total
from watersmeet.spark.sinks import Writer
from watersmeet.spark.sources import ingest_columns, open_stream, raw_columns
from watersmeet.spark.tasks import FileWindows, Ingest
from watersmeet.topology import Query, Topology


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
        self._spark = spark
        self._topology = topology
        self._query = query
        self._bound = bound
        self._checkpoint = checkpoint
        self._join = join_of(plan)
        self._engine = WindowEngine(
            join=self._join,
            delays_us={s.stream: topology.stream(s.stream).watermark_us for s in self._join.scans},
            state=checkpoint.state,
            buckets=max(1, int(spark.sparkContext.defaultParallelism)),
            run_tasks=partial(run_told, spark),
        )
        self._delivery = Delivery(spark, bound, plan, writer, checkpoint.state, self._engine.buckets)
        self._late = LateRows(spark, topology, query, bound.schemas, checkpoint.run_id)
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
                file=FileWindows(self._checkpoint.state, scan, carried_classes(self._join), self._join.ordered),
                delay_us=stream.watermark_us,
                start_us=self._query.start_us,
                raw_columns=raw,
                spare_columns=tuple(
                    n for n in rows.columns if n.startswith(f"{scan.alias}.") and n not in scan.columns
                ),
            )
            frames.append(map_rows(rows, task))
        return reduce(DataFrame.union, frames)

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Answer one micro-batch; a batch that was finished before a crash is passed over."""
        if batch <= self.ledger.batch:
            return
        clock = Clock()
        told = reports(frame)
        clock.lap("ingest")
        ledger = self._engine.account(replace(self.ledger, batch=batch), told)
        ledger, arrived = self._engine.arrive(ledger, told)
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
        self._checkpoint.commit(ledger)
        clock.lap("tidy")
        self._is_first = False
        self.last_report = self._report(ledger, told, rows_out, clock)

    def _report(self, ledger: Ledger, told: Sequence[Report], rows_out: int | None, clock: "Clock") -> BatchReport:
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
        self._delivery.close()
        self._late.close()
        self._checkpoint.close()


class Clock:
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
