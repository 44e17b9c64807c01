"""Starting queries and the handle to a running one, with PySpark's names."""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.cost.price import Cost
from watersmeet.errors import InputError, NothingToDo, WatersmeetError, did_you_mean
from watersmeet.metrics.traffic import LinkTraffic
from watersmeet.plan.explain import explain_text, partition_text
from watersmeet.plan.nodes import JoinPlan, Plan, bottom_of, join_plan_of
from watersmeet.planners.choose import Chosen, choose, estimate
from watersmeet.program.operators import SiteProgram, compile_sites
from watersmeet.program.site.engine import SiteLedger
from watersmeet.program.site.ledger import Ledger
from watersmeet.program.storage.wire import VERSION
from watersmeet.query.sql import canonical_sql
from watersmeet.query.windows import parse_duration
from watersmeet.spark.binding import Bound, bind
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.deliver.sinks import FileWriter, Writer, check_sink, open_sink
from watersmeet.spark.failures import explain, refusal
from watersmeet.spark.ingest.source_log import missing_inputs, strike_out_unplanned
from watersmeet.spark.ingest.sources import check_source, has_rows_in_java
from watersmeet.spark.job import BatchReport, JoinJob
from watersmeet.spark.links.directory import PARCEL, DirectoryLinks
from watersmeet.spark.session import start_session
from watersmeet.spark.site_job import SiteJob
from watersmeet.stats.model import Stats
from watersmeet.stats.yaml import filled, write_stats
from watersmeet.topology.model import Query, Topology

_LOOK_US = 50_000  # how often a site looks for parcels where no trigger is given


class _Stopped(WatersmeetError):
    """A batch that began while the query was being stopped; it runs again at the next start."""


class RunningQuery:
    """A started query; the members are those of PySpark's `StreamingQuery`."""

    def __init__(self, job: JoinJob | SiteJob, query: Query, name: str) -> None:
        self._job = job
        self._query = query
        self._name = name
        self._in_batch = threading.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        self._closed = False
        self._spark_query: StreamingQuery | None = None
        self.totals_at_start = self.totals

    def _attach(self, spark_query: StreamingQuery) -> None:
        self._spark_query = spark_query
        if self._failure is not None:
            spark_query.stop()

    def _fail(self, error: BaseException) -> None:
        """Something went wrong while Spark may be waiting for rows, perhaps for ever.

        Spark's stop waits for the batch under way, and this may be called within one: so it has a thread of its own.
        """
        self._failure = self._failure or error
        if self._spark_query is not None:
            threading.Thread(target=self._stop_spark, daemon=True).start()

    def _stop_spark(self) -> None:
        with suppress(Py4JError, ConnectionError):
            self._running.stop()

    def _run_batch(self, reports: Any, batch: int) -> None:
        with self._in_batch:
            if self._stopping:
                raise _Stopped("stopping")
            try:
                self._job.run_batch(reports, batch)
            except BaseException as error:
                self._failure = self._failure or error  # what came first may have interrupted this
                raise

    @property
    def _running(self) -> StreamingQuery:
        assert self._spark_query is not None, "the handle is given out only once the query has started"
        return self._spark_query

    @property
    def name(self) -> str:
        """The query's name in the topology, and the site where it runs if it has several."""
        return self._name

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
            if ended:
                self._running.awaitTermination()  # with a timeout Spark says so a moment before the name is free again
        except Exception as error:
            self._close()
            failure = self._explained(error)
            if failure is not None:
                raise failure from error
            return True
        if ended or timeout is None:
            self._close()
            if self._failure is not None:
                raise explain(self._failure, self._query.name) from self._failure
        return ended

    def _await_quietly(self, timeout: float) -> bool:
        """Wait without letting go of anything, since parcels may still come."""
        try:
            return bool(self._running.awaitTermination(timeout))  # type: ignore[arg-type]
        except Exception as error:
            failure = self._explained(error)
            if failure is not None:
                raise failure from error
            return True

    def exception(self) -> WatersmeetError | None:
        """What ended the query, or None."""
        error = self._running.exception() or self._failure
        if error is None:
            return None
        self._close()
        return self._explained(error)

    def _explained(self, error: BaseException) -> WatersmeetError | None:
        if self._stopping and self._failure is None:
            return None
        return explain(self._failure or error, self._query.name)

    def stop(self) -> None:
        """Let the batch under way finish, then end the query."""
        self._stopping = True
        if isinstance(self._job, SiteJob):
            self._job.stop_waiting()
        with self._in_batch:
            pass
        self._running.stop()
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._job.close()


class RunningSites:
    """A query that runs at several sites, or one site's part of it; the members are those of `RunningQuery`."""

    def __init__(
        self,
        query: Query,
        topology: Topology,
        parts: "Sequence[RunningQuery]",
        chosen: Chosen,
        place: Path,
        *,
        once: bool,
    ) -> None:
        self.chosen = chosen  # the plan, who made it, and what it was expected to cost
        self._expected: tuple[int, Cost | None] = (-1, None)
        self._query = query
        self._place = place
        self._topology = topology
        self._parts = tuple(parts)
        self._once = once
        self._stopped = False

    @property
    def name(self) -> str:
        """The query's name in the topology."""
        return self._query.name

    @property
    def parts(self) -> "tuple[RunningQuery, ...]":
        """The handle of each site's part."""
        return self._parts

    @property
    def isActive(self) -> bool:
        """Whether any part is still running."""
        return any(part.isActive for part in self._parts)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Spark's progress at each site."""
        progress = {part.name: part.lastProgress for part in self._parts}
        return progress if any(progress.values()) else None

    @property
    def last_report(self) -> BatchReport | None:
        """What the last finished turn of any site did."""
        reports = [part.last_report for part in self._parts if part.last_report is not None]
        return reports[-1] if reports else None

    @property
    def totals(self) -> dict[str, int]:
        """Counts since the query first started, over all sites that run here."""
        return _summed(part.totals for part in self._parts)

    @property
    def totals_at_start(self) -> dict[str, int]:
        """What the totals were before anything was taken here; one site has begun when the next one starts."""
        return _summed(part.totals_at_start for part in self._parts)

    @property
    def traffic(self) -> LinkTraffic:
        """What was shipped from the sites that run here, and what shipping everything would have taken."""
        return LinkTraffic.of(
            self._topology,
            {job.site: (job.program, job.ledger) for job in self._jobs},
            self._topology.query_site(self._query),
            *self._estimate(),
        )

    def _estimate(self) -> tuple[Cost | None, float]:
        """What the plan is expected to cost with batches as they have come, and for how long streams have run.

        The time is told by the rows that have come at the rates that were planned with.
        """
        if self.chosen.problem is None:
            return None, 0.0
        known = self._topology.stats
        read = {name: state.rows for job in self._jobs for name, state in job.ledger.streams.items()}
        rates = {name: rate.value for name in read if (rate := known.stream(name).rate) is not None}
        batches = max((job.ledger.batch + 1 for job in self._jobs), default=0)
        seconds = sum(read[name] for name in rates) / max(sum(rates.values()), 1e-9)
        if not batches or not seconds:
            return None, 0.0
        if self._expected[0] != batches:
            self._expected = (batches, estimate(self.chosen, turn_s=seconds / batches))
        return self._expected[1], seconds

    @property
    def observed(self) -> Stats:
        """What the sites that run here have observed of their streams, across restarts."""
        return reduce(filled, (job.observed for job in self._jobs), Stats())

    def write_observed(self) -> Path | None:
        """Write what was observed beside the checkpoint, as YAML that `stats_file:` can name; None if nothing was."""
        stats = self.observed
        if not stats.streams:
            return None
        path = self._place / "observed-stats.yaml"
        path.write_text(write_stats(stats), encoding="utf-8")
        return path

    @property
    def _jobs(self) -> list[SiteJob]:
        return [part._job for part in self._parts if isinstance(part._job, SiteJob)]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end; with a timeout in seconds, tell whether it came. Raises what ended any part."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = list(self._parts)
        try:
            while waiting:
                for part in list(waiting):
                    if part._await_quietly(0.05):
                        waiting.remove(part)
                if self._once and not self._stopped:  # others may wait until their parcels are taken
                    _take_parcels(part for part in self._parts if part not in waiting)
                if waiting and deadline is not None and time.monotonic() >= deadline:
                    return False
            while self._once and not self._stopped and _take_parcels(self._parts):
                pass
        except BaseException:
            self.stop()
            raise
        self._close()
        return True if timeout is not None else None

    def exception(self) -> WatersmeetError | None:
        """What ended the first part that failed, or None."""
        return next((error for part in self._parts if (error := part.exception()) is not None), None)

    def stop(self) -> None:
        """Let the batches under way finish, then end all parts."""
        self._stopped = True
        for part in self._parts:
            part.stop()
        self._close()

    def _close(self) -> None:
        for part in self._parts:
            part._close()


def _summed(totals: Iterable[dict[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for one in totals:
        counts.update(one)
    return dict(counts)


def _take_parcels(parts: Iterable[RunningQuery]) -> bool:
    """Let parts whose own streams have ended take what has come to them; tells whether anything had."""
    return sum(part._job.take_parcels() for part in parts if isinstance(part._job, SiteJob)) > 0


def plan_query(spark: SparkSession, topology: Topology, query: Query, *, every: bool = False) -> tuple[Bound, Chosen]:
    """Check a query against its streams and plan it, by every planner if asked for; nothing is read or written."""
    bound = bind(spark, topology, query)
    return bound, choose(topology, query, bound.query, every=every)


def check_query(
    spark: SparkSession,
    topology: Topology,
    query: Query,
    *,
    once: bool = False,
    site: str | None = None,
) -> tuple[Bound, Chosen]:
    """Everything that can be found wrong with a query, or with its part at one site, before it runs."""
    bound, chosen = plan_query(spark, topology, query)
    for source in bound.query.sources:
        stream = topology.stream(source.stream)
        if site is None or stream.site == site:
            check_source(stream, bound.schemas[source.stream], once=once)
    if site is None or site == topology.query_site(query):
        check_sink(spark, query)
    return bound, chosen


def default_checkpoint(topology: Topology) -> Path:
    """Where checkpoints go if nobody says: beside the topology file, so that starting again resumes."""
    return Path(topology.directory) / ".watersmeet" / "checkpoints"


def default_links(topology: Topology) -> Path:
    """Where parcels go if nobody says."""
    return Path(topology.link_transport.path or Path(topology.directory) / ".watersmeet" / "links")


@dataclass(frozen=True)
class _Settings:
    """How a query, or a part of it, is to be run."""

    topology: Topology
    query: Query
    spark: SparkSession
    bound: Bound
    plan: Plan
    chosen: Chosen
    root: Path
    trigger_us: int
    once: bool
    show: Callable[[str], None]
    warn: Callable[[str], None]


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
) -> "RunningQuery | RunningSites":
    """Start a query of a topology, at all its sites, and return its handle.

    `once` takes all data available now and ends; `trigger` is the interval between batches, such as "1 second".
    """
    settings = _settings(topology, query, None, spark, checkpoint, trigger, once, show, warn)
    if not isinstance(bottom_of(settings.plan), JoinPlan):
        return _start_here(settings)
    programs = compile_sites(join_plan_of(settings.plan))
    started: list[RunningQuery] = []
    try:
        for program in programs.values():
            started.append(_start_site(settings, program))
    except BaseException:
        for handle in started:
            handle.stop()
        raise
    return RunningSites(settings.query, topology, started, settings.chosen, settings.root, once=once)


def start_site(
    topology: Topology,
    site: str,
    query: str | Query | None = None,
    *,
    spark: SparkSession | None = None,
    checkpoint: str | Path | None = None,
    trigger: str | None = None,
    once: bool = False,
    show: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> "RunningSites":
    """Start one site's part of a query and return its handle; the other sites run elsewhere, whenever they do.

    `once` takes what is there now, in the site's own streams and on its links, and ends.
    """
    if site not in topology.site_names:
        raise InputError(f"unknown site {site!r}; {did_you_mean(site, topology.site_names)}")
    settings = _settings(topology, query, site, spark, checkpoint, trigger, once, show, warn)
    if not isinstance(bottom_of(settings.plan), JoinPlan):
        raise NothingToDo(
            f"query {settings.query.name!r} needs no other site than {topology.query_site(settings.query)}: "
            "its streams arrive where its answers are wanted; use `watersmeet run`"
        )
    programs = compile_sites(join_plan_of(settings.plan))
    if site not in programs or not (programs[site].operators or programs[site].ships or programs[site].is_query_site):
        raise NothingToDo(f"query {settings.query.name!r} has nothing to do at site {site!r}")
    part = _start_site(settings, programs[site], alone=True)
    return RunningSites(settings.query, topology, [part], settings.chosen, settings.root / site, once=once)


def _settings(
    topology: Topology,
    query: str | Query | None,
    site: str | None,
    spark: SparkSession | None,
    checkpoint: str | Path | None,
    trigger: str | None,
    once: bool,
    show: Callable[[str], None],
    warn: Callable[[str], None],
) -> _Settings:
    asked = query if isinstance(query, Query) else topology.query(query)
    trigger_us = 0 if trigger is None else parse_duration(trigger)
    if trigger is not None and trigger_us <= 0:
        raise InputError(f"trigger {trigger!r} must be longer than nothing")
    session = spark or start_session(has_rows=has_rows_in_java(topology.streams))
    with _refusing(asked):
        bound, chosen = check_query(session, topology, asked, once=once, site=site)
    root = Path(checkpoint or asked.checkpoint or default_checkpoint(topology)) / asked.name
    return _Settings(topology, asked, session, bound, chosen.plan, chosen, root, trigger_us, once, show, warn)


def _start_here(settings: _Settings) -> RunningQuery:
    """Start a query whose streams arrive where its answers are wanted."""
    asked = settings.query
    identity = _identity(settings.topology, asked, settings.bound)
    held = Checkpoint(settings.root, identity, Ledger(), Ledger.from_json)
    with _letting_go(held, asked):
        writer = _open_writer(settings, held)
        job = JoinJob(settings.spark, settings.topology, asked, settings.bound, settings.plan, held, writer)
        return _stream(settings, job, held, asked.name)


def _start_site(settings: _Settings, program: SiteProgram, *, alone: bool = False) -> RunningQuery:
    """Start one site's part of a query."""
    asked = settings.query
    plan = {
        "plan": explain_text(settings.plan),
        "parts of the key space": _parts_told(join_plan_of(settings.plan)),
        "form of parcels": VERSION,
    }
    identity = _identity(settings.topology, asked, settings.bound) | {"site": program.site} | plan
    held = Checkpoint(settings.root / program.site, identity, SiteLedger(), SiteLedger.from_json)
    with _letting_go(held, asked):
        writer = _open_writer(settings, held) if program.is_query_site else None
        links = DirectoryLinks(default_links(settings.topology) / asked.name, program.site)
        job = SiteJob(
            settings.spark,
            settings.topology,
            asked,
            settings.bound,
            settings.plan,
            program,
            held,
            writer,
            links,
            hashlib.sha256(json.dumps(plan).encode()).hexdigest()[:12],
            lambda text: settings.warn(f"query {asked.name!r}: {text}"),
            waits_for_room=not (alone and settings.once),  # nobody may be there to make room, and it is to end
            takes_between=not settings.once,  # whoever waits for the end takes what is left then
        )
        job.open()
        return _stream(settings, job, held, f"{asked.name} at {program.site}")


def _parts_told(join: JoinPlan) -> str:
    """The partition of a plan, short enough for a sentence and different for different ones."""
    if join.partition is None:
        return "one"
    digest = hashlib.sha256(repr(join.partition).encode()).hexdigest()
    return f"{partition_text(join.partition, len(join.sub_plans))} (which values go where: {digest[:8]})"


def _open_writer(settings: _Settings, held: "Checkpoint[Any]") -> Writer:
    asked = settings.query
    writer = open_sink(settings.spark, asked, held.run_id, settings.show)
    if held.is_new and isinstance(writer, FileWriter) and not writer.is_empty:
        settings.warn(
            f"query {asked.name!r}: {asked.sink.path} holds files of earlier runs; new answers are added to them"
        )
    return writer


def _stream(settings: _Settings, job: JoinJob | SiteJob, held: "Checkpoint[Any]", name: str) -> RunningQuery:
    asked = settings.query
    strike_out_unplanned(held.spark)
    gone = [path for path in missing_inputs(held.spark) if not path.endswith(PARCEL)]  # those go once they are taken
    for path in gone:
        settings.warn(f"query {asked.name!r}: input file {path} was removed before it was read; going on without it")
    handle = RunningQuery(job, asked, name)
    stream = job.ingest_frame().writeStream.option("checkpointLocation", held.spark).queryName(name)
    stream = stream.foreachBatch(handle._run_batch)
    # Spark counts in milliseconds, and does not know the short units. A site would else look at its links all the time.
    shortest_us = _LOOK_US if isinstance(job, SiteJob) else 0
    interval = f"{-(-max(settings.trigger_us, shortest_us) // 1_000)} milliseconds"
    stream = stream.trigger(availableNow=True) if settings.once else stream.trigger(processingTime=interval)
    settings.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true" if gone else "false")
    if isinstance(job, JoinJob):
        job.begin(handle._fail)
    handle._attach(stream.start())
    return handle


@contextmanager
def _letting_go(held: "Checkpoint[Any]", query: Query) -> Iterator[None]:
    """Give the checkpoint back if the query cannot start."""
    try:
        with _refusing(query):
            yield
    except BaseException:
        held.close()
        raise


@contextmanager
def _refusing(query: Query) -> Iterator[None]:
    """Say in a sentence what keeps a query from starting."""
    try:
        yield
    except Exception as error:
        told = refusal(error, query.name)
        if told is error:
            raise
        raise told from error


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
