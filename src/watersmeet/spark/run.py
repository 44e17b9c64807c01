"""Starting queries and the handle to a running one, with PySpark's names."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.errors import InputError, WatersmeetError
from watersmeet.plan import Plan
from watersmeet.planners.local import local
from watersmeet.query.sql import canonical_sql
from watersmeet.query.windows import parse_duration
from watersmeet.spark.binding import Bound, bind, readable
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.failures import explain
from watersmeet.spark.job import BatchReport, JoinJob
from watersmeet.spark.session import start_session
from watersmeet.spark.sinks import FileWriter, check_sink, open_sink
from watersmeet.spark.sources import check_source
from watersmeet.topology import Query, Topology


class _Stopped(WatersmeetError):
    """A batch that began while the query was being stopped; it runs again at the next start."""


class RunningQuery:
    """A started query; the members are those of PySpark's `StreamingQuery`."""

    def __init__(self, job: JoinJob, query: Query) -> None:
        self._job = job
        self._query = query
        self._in_batch = threading.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        self._closed = False
        self._spark_query: StreamingQuery | None = None

    def _attach(self, spark_query: StreamingQuery) -> None:
        self._spark_query = spark_query

    def _run_batch(self, reports: Any, batch: int) -> None:
        with self._in_batch:
            if self._stopping:
                raise _Stopped("stopping")
            try:
                self._job.run_batch(reports, batch)
            except BaseException as error:
                self._failure = error
                raise

    @property
    def _running(self) -> StreamingQuery:
        assert self._spark_query is not None, "the handle is given out only once the query has started"
        return self._spark_query

    @property
    def name(self) -> str:
        """The query's name in the topology."""
        return self._query.name

    @property
    def id(self) -> str:
        """Spark's identity of the query, the same across restarts."""
        return str(self._running.id)

    @property
    def isActive(self) -> bool:
        """Whether it is still running; not if Spark's Java process is gone."""
        try:
            return bool(self._running.isActive)
        except (Py4JError, ConnectionError):
            return False

    @property
    def status(self) -> dict[str, Any]:
        """What Spark is doing for it now."""
        return dict(self._running.status)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Spark's progress of the last batch, with what the join did under `watersmeet`; None before the first."""
        report = self._job.last_report
        progress = self._running.lastProgress
        if report is None and progress is None:
            return None
        return (json.loads(progress.json) if progress else {}) | ({"watersmeet": asdict(report)} if report else {})

    @property
    def last_report(self) -> BatchReport | None:
        """What the last finished batch did."""
        return self._job.last_report

    @property
    def totals(self) -> dict[str, int]:
        """Counts since the query first started, across restarts."""
        ledger = self._job.ledger
        return {
            "batches": ledger.batch + 1,
            "rows_in": sum(state.rows for state in ledger.streams.values()),
            "rows_out": ledger.rows_out,
            "late": sum(state.late for state in ledger.streams.values()),
            "malformed": sum(state.malformed for state in ledger.streams.values()),
            "null_keys": ledger.null_keys,
        }

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end; with a timeout in seconds, tell whether it came. Raises what ended the query."""
        try:
            ended = self._running.awaitTermination(timeout)  # type: ignore[arg-type]
        except Exception as error:
            self._close()
            failure = self._explained(error)
            if failure is not None:
                raise failure from error
            return True
        if ended or timeout is None:
            self._close()
        return ended

    def exception(self) -> WatersmeetError | None:
        """What ended the query, or None."""
        error = self._running.exception()
        if error is None:
            return None
        self._close()
        return self._explained(error)

    def _explained(self, error: BaseException) -> WatersmeetError | None:
        if self._stopping and self._failure is None:
            return None
        return explain(self._failure or error, self.name)

    def stop(self) -> None:
        """Let the batch under way finish, then end the query."""
        self._stopping = True
        with self._in_batch:
            pass
        self._running.stop()
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._job.close()


def plan_query(spark: SparkSession, topology: Topology, query: Query) -> tuple[Bound, Plan]:
    """Check a query against its streams and plan it; nothing is read or written."""
    bound = bind(spark, topology, query)
    return bound, local(bound.query, topology.columns)


def check_query(spark: SparkSession, topology: Topology, query: Query, *, once: bool = False) -> tuple[Bound, Plan]:
    """Everything that can be found wrong with a query before it runs."""
    bound, plan = plan_query(spark, topology, query)
    for source in bound.query.sources:
        check_source(topology.stream(source.stream), bound.schemas[source.stream], once=once)
    check_sink(spark, query)
    return bound, plan


def default_checkpoint(topology: Topology) -> Path:
    """Where checkpoints go if nobody says: beside the topology file, so that starting again resumes."""
    return Path(topology.directory) / ".watersmeet" / "checkpoints"


def start(
    topology: Topology,
    query: str | Query | None = None,
    *,
    spark: SparkSession | None = None,
    checkpoint: str | Path | None = None,
    trigger: str | None = None,
    once: bool = False,
    show: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> RunningQuery:
    """Start a query of a topology and return its handle.

    `once` takes all data available now and ends; `trigger` is the interval between batches, such as "1 second".
    """
    asked = query if isinstance(query, Query) else topology.query(query)
    trigger_us = 0 if trigger is None else parse_duration(trigger)
    if trigger is not None and trigger_us <= 0:
        raise InputError(f"trigger {trigger!r} must be longer than nothing")
    session = spark or start_session()
    bound, plan = check_query(session, topology, asked, once=once)
    root = checkpoint or asked.checkpoint or default_checkpoint(topology)
    held = Checkpoint(Path(root) / asked.name, _identity(topology, asked, bound))
    try:
        writer = open_sink(session, asked, held.run_id, show)
        if held.is_new and isinstance(writer, FileWriter) and not writer.is_empty:
            warn(f"query {asked.name!r}: {asked.sink.path} holds files of earlier runs; new answers are added to them")
        gone = held.missing_inputs()
        for path in gone:
            warn(f"query {asked.name!r}: input file {path} was removed before it was read; going on without it")
        job = JoinJob(session, topology, asked, bound, plan, held, writer)
        handle = RunningQuery(job, asked)
        stream = job.ingest_frame().writeStream.option("checkpointLocation", held.spark).queryName(asked.name)
        stream = stream.foreachBatch(handle._run_batch)
        # Spark counts in milliseconds, and does not know the short units.
        interval = f"{-(-trigger_us // 1_000)} milliseconds"
        stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=interval)
        session.conf.set("spark.sql.files.ignoreMissingFiles", "true" if gone else "false")
        handle._attach(stream.start())
    except WatersmeetError:
        held.close()
        raise
    except Exception as error:
        held.close()
        raise InputError(f"query {asked.name!r} cannot start: {readable(error)}") from error
    return handle


def _identity(topology: Topology, query: Query, bound: Bound) -> dict[str, Any]:
    """What must be the same for a checkpoint to be resumed."""
    return {
        "format": 1,
        "query": canonical_sql(bound.query),
        "start": query.start,
        "streams": {
            name: {
                "schema": schema.simpleString(),
                "event_time": topology.stream(name).event_time_column,
                "watermark": topology.stream(name).watermark_us,
            }
            for name, schema in sorted(bound.schemas.items())
        },
    }
