"""One site as one Structured Streaming query: all its queries, its own streams as sources, its links beside them.

A micro-batch is ingested when its rows are filed and the ledger says so. Then Spark may go on with the next one, which
it lists, plans and ingests while the rows of this one are joined. What comes over links is taken with that or, between
micro-batches, by a thread that watches the links: which parcels are taken is decided by the ledger alone.
"""

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from watersmeet.errors import CheckpointMismatch, WatersmeetError
from watersmeet.metrics.bus import EventBus, Warnings
from watersmeet.metrics.describe import central_bytes, link_events, program_event
from watersmeet.metrics.events import MicroBatchCompleted, ParcelsRefused, QueryEnded, VersionDropped
from watersmeet.program.finish.failed import failed_sink
from watersmeet.program.finish.model import Finish
from watersmeet.program.operators import Form, Purpose
from watersmeet.program.site.adoption import adopt, drop, finished
from watersmeet.program.site.agreement import Versions, proposer_of
from watersmeet.program.site.deployment import Deployment
from watersmeet.program.site.engine import Arrivals, SiteEngine, read_versions
from watersmeet.program.site.ledger import Ingested, SiteLedger, failed_counts
from watersmeet.program.site.program import Shipment, SiteProgram
from watersmeet.program.site.versions import Change, check_change
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import END_US, TABLE_US
from watersmeet.spark.adapting import Observations
from watersmeet.spark.catalogue import Catalogue
from watersmeet.spark.changes import change_events, check_here, identity_of
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.deliver.delivery import FAILED_SCHEMA, Delivery, LateRows
from watersmeet.spark.deliver.evaluate import SparkEvaluator
from watersmeet.spark.deliver.sinks import FileWriter
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.durable import UNFLUSHED, Disk
from watersmeet.spark.ingest.derived import SparkDerivation
from watersmeet.spark.ingest.intake import Intake
from watersmeet.spark.ingest.late_rows import LateRowsWatch
from watersmeet.spark.ingest.new_files import InputFile, NewFiles
from watersmeet.spark.ingest.tables import TableReader
from watersmeet.spark.jobs import TaskRunner
from watersmeet.spark.links.protocol import LinkEnd, Links, with_reader
from watersmeet.spark.links.site_links import SiteLinks
from watersmeet.spark.requests import requests_in
from watersmeet.spark.resume import note_topology
from watersmeet.spark.site_reports import SiteReports
from watersmeet.spark.tasks import write_program
from watersmeet.stats.model import Stats
from watersmeet.stats.observe import Observer
from watersmeet.topology.model import Query, Sink, Table, Topology

MAX_UNDELIVERED = 8  # micro-batches that a slow sink may be behind before new rows wait for it
_LIST_S = 0.01  # how often it is looked for new files, where no trigger is given and looking does not take long
_LIST_SHARE = 10  # looking takes at most one part of so many of the time
_POLL_S = 0.1  # how often a site looks for parcels between its micro-batches
_SLOW_POLLS = 5  # after so many, also whether links can be written again and whether a stream is idle
_RETRY_US = 60_000_000  # after which a table that could not be refreshed is read again, at the latest
_OBSERVED = "observed.json"
_OBSERVED_S = 30.0  # how often observed statistics are written down: a crash forgets so much of them


@dataclass(frozen=True)
class SiteSettings:
    """How a site is to be run."""

    spark: SparkSession
    catalogue: Catalogue
    checkpoint: Checkpoint
    links: Links
    programs_digest: str  # of all sites' programs: sites that run different ones must not exchange rows
    events: EventBus
    interval_s: float = 0.0  # between micro-batches, at least
    once: bool = False
    alone: bool = False  # whether other sites run elsewhere
    slack_us: int = 0  # event time that may go by while sites agree on a change, before any has to wait
    observations: Observations | None = None  # for whoever decides on other plans
    apply: Callable[[str, str], None] | None = None  # takes requests for another topology: the request, its text

    @property
    def topology(self) -> Topology:
        return self.catalogue.topology

    @property
    def waits_for_room(self) -> bool:
        """Whether new rows wait for readers of links; not where nobody may be there and the run is to end."""
        return not (self.alone and self.once)


class InputEnded(WatersmeetError):
    """There is no micro-batch any more: all files are read that were there, or the run is being stopped."""


class FrameChanged(WatersmeetError):
    """Spark reads streams of the site, and other columns of them are needed now: its query is started again."""


class PhaseTimer:
    """Seconds of the phases of a micro-batch."""

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self.phases: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """What was done since the last lap was this."""
        now = time.perf_counter()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> float:
        return self._last - self.began


class SiteJob:
    """Runs the micro-batches of one site."""

    def __init__(self, settings: SiteSettings, program: SiteProgram, open_writer: Callable[[Query], Writer]) -> None:
        self.program = program
        self._settings = settings
        self._checkpoint = settings.checkpoint
        self._warnings = Warnings(settings.events, program.site)
        checkpoint = settings.checkpoint
        end = LinkEnd(checkpoint.run_id, settings.programs_digest, checkpoint.ledger.epoch + 1, uuid.uuid4().hex[:8])
        sites = read_versions(checkpoint.shelf, checkpoint.ledger).deployment.sites
        peers = tuple(site for site in sites if site != program.site)
        watched = None if settings.observations is None else settings.observations.acknowledged
        self._links = SiteLinks(
            *(settings.links, program, checkpoint.shelf, end, self._warnings, peers, watched),
            catches_up=settings.once,
            refused=lambda sender, count: settings.events.publish(ParcelsRefused(program.site, sender, count)),
        )
        self._gate = threading.Lock()  # rows are read and filed for one program, which does not change meanwhile
        self._lock = threading.RLock()  # of ledger, links and reports: micro-batches and the watcher change them
        self._files = threading.Lock()  # of the next three
        self._is_ingesting = False  # tasks write files that no ledger names yet: nothing is deleted
        self._is_in_batch = False  # rows are judged by the watermarks that were: none is advanced by idleness
        self._batch_ended = time.monotonic()
        self._observing = threading.Lock()
        self._failure: BaseException | None = None
        self._batch_at_start = settings.checkpoint.ledger.ingested_batch
        spark, shelf = settings.spark, settings.checkpoint.shelf
        run_tasks = TaskRunner(spark)
        catalogue = settings.catalogue
        self._evaluator = SparkEvaluator(spark, catalogue.bounds, shelf)
        self._engine = SiteEngine(
            *(program, catalogue.delays_us, shelf, run_tasks, self._evaluator, run_tasks.parallelism),
            derive=SparkDerivation(spark, catalogue.schemas, shelf, run_tasks),
            slack_us=settings.slack_us,
            judge=self.cause_against,
        )
        watermarks_path = settings.checkpoint.watermarks_path
        self._program_path = checkpoint.directory / "program.json"
        self._write_program()
        self._intake = Intake(
            *(spark, settings.topology, program, catalogue.schemas, shelf, watermarks_path, run_tasks),
            program_path=str(self._program_path),
        )
        self._tables = TableReader(spark, settings.topology, catalogue.schemas, shelf)
        self._framed = program.sources  # what is read of streams, as Spark's query lays it out
        listings = self._intake.listings
        self._new_files = None if listings is None else NewFiles(listings, shelf, self.ledger.inputs)
        self._open_writer = open_writer
        self._reports = SiteReports(program.site, checkpoint.directory, settings.events)
        self._is_held_back = False
        self._deliveries: list[Delivery] = []
        self._deliveries = self._opened_deliveries(program)
        self._late = LateRows(spark, settings.topology, self._local_schemas, shelf, self._run_id)
        self._late_watch = LateRowsWatch(settings.topology, self._warnings, self.ledger.streams)
        self._last_rows = dict.fromkeys(sorted(self._streams), time.monotonic())
        self._reporting = threading.Lock()
        self._reported_changes = len(self.versions.log)
        self._taken_requests: set[str] = set()
        self._worker = ThreadPoolExecutor(1, f"join-{program.site}")
        self._completing: Future[bool] | None = None
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failed: Callable[[BaseException], object] = lambda error: None
        self._observer = self._observed_before()
        self._observed_at = time.monotonic()
        self.last_batch: MicroBatchCompleted | None = None
        self._reported_ledger = self.ledger  # as of the last report

    @property
    def site(self) -> str:
        return self.program.site

    @property
    def directory(self) -> Path:
        """Where its checkpoint is."""
        return self._checkpoint.directory

    def note_topology(self, topology: Topology) -> None:
        """Write down what topology the site was asked to run."""
        note_topology(self._checkpoint, topology)

    @property
    def ledger(self) -> SiteLedger:
        """The state as it was last committed."""
        return self._checkpoint.ledger

    @property
    def has_links(self) -> bool:
        """Whether there are other sites."""
        return bool(self._links.peers)

    @property
    def lists_files(self) -> bool:
        """Whether the job finds the files of its streams itself, and Spark only says when."""
        return self._new_files is not None

    @property
    def _streams(self) -> list[str]:
        """The streams that arrive here and are read."""
        return [scan.stream for scan in self.program.sources]

    @property
    def _local_schemas(self) -> dict[str, StructType]:
        return {name: self._settings.catalogue.schemas[name] for name in self._streams}

    @property
    def _run_id(self) -> str:
        return f"{self.program.site}-{self._checkpoint.run_id}"

    def _write_program(self) -> None:
        write_program(self._program_path, self.versions)
        self._checkpoint.written_for_tasks(self._program_path.name)

    # -- what comes and goes with queries

    def _opened_deliveries(self, program: SiteProgram) -> list[Delivery]:
        """Deliveries of all answers and failed rows of a program, those that are there and new ones."""
        spark, shelf, catalogue = self._settings.spark, self._checkpoint.shelf, self._settings.catalogue
        found = {delivery.query: delivery for delivery in self._deliveries}
        # Once, whatever versions and branches of it there are.
        finishes = {
            finish.target.name: finish
            for _, finish in program.finishes
            if finish.answers and not finish.target.is_stream  # of an outer join, a branch whose rows are answers
        }
        for query, finish in finishes.items():
            if query not in found:
                schema = _named(self._evaluator.answer_schema(finish), finish)
                writer = self._open_writer(catalogue.answered(finish))
                found[query] = Delivery(spark, query, schema, writer, shelf, self._reports.delivered)
        for query, sink in self._failed_sinks(program).items():
            if failed_sink(query) not in found:
                disk = Disk(self._settings.topology.survives_power_cuts)
                writer = FileWriter(spark, sink, f"{query}-{self._run_id}", disk)
                found[failed_sink(query)] = Delivery(spark, failed_sink(query), FAILED_SCHEMA, writer, shelf)
        return list(found.values())

    def _failed_sinks(self, program: SiteProgram) -> dict[str, Sink]:
        """Where queries that have a part here keep rows for which an expression fails."""
        queries = sorted({query for part in program.parts for query in part.queries})
        found = {query: self._settings.catalogue.query_named(query).failed for query in queries}
        return {query: sink for query, sink in found.items() if sink is not None}

    # -- what Spark calls

    def frame(self) -> DataFrame:
        """The streaming frame whose every micro-batch files the new rows of the site's own streams."""
        self._framed = self.program.sources
        return self._intake.frame()

    def open(self, failed: Callable[[BaseException], object]) -> None:
        """Deliver what an earlier run left undelivered, and complete what it left ingested."""
        self._failed = failed
        self._settings.events.publish(program_event(self.program))
        if self._new_files is not None and self._settings.once:
            self._new_files.look()  # what comes later is left to the next run
        self._links.open(self.ledger, self._checkpoint.commit)
        self._links.check_peers(self.ledger)
        self._checkpoint.write_watermarks(self._engine.watermarks(self.ledger))
        self._late.roll_back(self.ledger.ingested_batch)
        for delivery in self._deliveries:
            waiting = self.ledger.undelivered.get(delivery.query, ())
            delivery.roll_back(self.ledger.number, waiting)
            delivery.give(waiting, failed, replay=True)
        self._publish()
        if not self.ledger.is_complete:
            self._begin_to_complete(PhaseTimer())
        if self._engine.due_tables(self.ledger, _now_us()):
            self._await_completion()
            self._ingest_tables()
        self._watcher = threading.Thread(target=self._watch, name=f"links-{self.site}", daemon=True)
        self._watcher.start()

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Ingest one micro-batch of the site's own streams; one that was ingested before a crash is passed over."""
        if batch <= self.ledger.ingested_batch:
            return
        files = self._await_files()
        began = time.monotonic()
        with self._files:
            self._is_in_batch = True
        try:
            self._wait_for_room()
            self._ingest(frame, files, batch, began)
        finally:
            with self._files:
                self._is_in_batch = False
                self._batch_ended = time.monotonic()

    def _await_files(self) -> dict[str, list[InputFile]]:
        """The files of the next micro-batch, once there are any; nothing where Spark has the rows."""
        if self._new_files is None:
            return {}
        while True:
            began = time.monotonic()
            if not self._settings.once:  # a stream with many files that wait must not hide new ones of another
                self._new_files.look()
            if files := self._new_files.next:
                return files
            if self._settings.once:
                raise InputEnded("all files are read")
            if self._closing.wait(max(self._settings.interval_s, _LIST_S, _LIST_SHARE * (time.monotonic() - began))):
                raise InputEnded("stopping")

    def _read(self, frame: DataFrame, files: Mapping[str, Sequence[InputFile]]) -> list[Ingested]:
        """File the rows of a micro-batch, be they in files or with Spark."""
        if self._new_files is None:
            return self._intake.ingested(frame)
        there = {stream: [file for file in some if os.path.exists(file.path)] for stream, some in files.items()}
        for path in sorted(file.path for stream, some in files.items() for file in some if file not in there[stream]):
            self._warnings.say(path, f"input file {path} was removed before it was read; going on without it")
        return self._intake.ingested_files(there)

    def _ingest(self, frame: DataFrame, files: Mapping[str, Sequence[InputFile]], batch: int, began: float) -> None:
        timer = PhaseTimer()
        with self._files:
            self._is_ingesting = True
        try:
            with self._gate:
                while not self._ingested(frame, files, batch, began, timer):
                    self._await_decision()
        finally:
            self._is_ingesting = False
        self._forget_unused()
        timer.lap("commit")
        self._begin_to_complete(timer)

    def _ingested(
        self, frame: DataFrame, files: Mapping[str, Sequence[InputFile]], batch: int, began: float, timer: PhaseTimer
    ) -> bool:
        """File the rows of a micro-batch and commit them; whether they need not wait until plans have changed."""
        self._go_over()
        if self._new_files is None and self._framed != self.program.sources:
            raise FrameChanged("other columns of streams are needed")
        files = {stream: some for stream, some in files.items() if stream in self._streams}  # others have ended
        found = self._read(frame, files)
        self._refuse_after_end(found)
        versions, in_force = self._read_due_tables()
        found += versions
        timer.lap("ingest")
        self._checkpoint.flush(path for one in found for path in one.paths)
        timer.lap("commit")
        self._await_completion()
        timer.lap("wait for the join before")
        with self._lock:
            if not self._engine.admits(self.ledger, found):
                return False
            self._last_rows |= {one.stream: time.monotonic() for one in found if one.rows}
            known = [replace(one, observed="") for one in found]  # statistics are no part of the state
            ledger = self._engine.ingest(self._released(self.ledger), batch, known, {**self._idle(began), **in_force})
            if self._new_files is not None:
                ledger = replace(ledger, inputs=self._new_files.take(files))
            self._checkpoint.commit(ledger)
            self._checkpoint.write_watermarks(self._engine.watermarks(ledger))
        self._observe(found)
        return True

    # -- tables

    @property
    def _refreshed(self) -> frozenset[str]:
        """Tables that are read again from time to time, of all sites."""
        return frozenset(table.name for table in self._settings.topology.tables if table.refresh is not None)

    def _read_due_tables(self) -> tuple[list[Ingested], dict[str, int]]:
        """Read tables that are due; and the instants until which their versions are in force at least.

        If a table cannot be read again, the version before it stays in force, and it is tried again soon.
        """
        found: list[Ingested] = []
        in_force: dict[str, int] = {}
        now_us = _now_us()
        for scan, from_us in self._engine.due_tables(self.ledger, now_us):
            table = self._settings.topology.stream(scan.stream)
            assert isinstance(table, Table), "a table of the topology"
            refresh_us = END_US - now_us if table.refresh_us is None else table.refresh_us
            try:
                found += self._tables.read(self.program, scan, from_us)
                self._warnings.forget(table.name)
            except Exception as error:
                if from_us == TABLE_US:
                    raise
                refresh_us = min(refresh_us, _RETRY_US)
                text = f"the version read before stays in force, and it is tried again in {refresh_us / 1e6:g} s"
                self._warnings.say(table.name, f"{error}; {text}")
            in_force[scan.stream] = now_us + refresh_us
        return found, in_force

    def _ingest_tables(self) -> None:
        """Ingest tables that are due, without rows of streams."""
        with self._files:
            self._is_ingesting = True
        try:
            found, in_force = self._read_due_tables()
            self._checkpoint.flush(path for one in found for path in one.paths)
            with self._lock:
                before = self._released(self.ledger)
                ledger = self._engine.ingest(before, before.ingested_batch, found, in_force)
                self._checkpoint.commit(ledger)
                self._checkpoint.write_watermarks(self._engine.watermarks(ledger))
        finally:
            self._is_ingesting = False
        self._complete(PhaseTimer(), in_force)

    def _refresh_between_batches(self) -> None:
        """Read tables again that are due, unless a micro-batch does."""
        if self._refreshed and self._engine.due_tables(self.ledger, _now_us()) and self._gate.acquire(blocking=False):
            try:
                self._await_completion()
                if self.ledger.is_complete:
                    self._ingest_tables()
            finally:
                self._gate.release()

    # -- versions

    @property
    def versions(self) -> Versions:
        """What the site knows of versions of plans."""
        return self._engine.versions(self.ledger)

    def request(self, change: Change) -> None:
        """Ask for a change of plans or queries, which all sites go over to when they have agreed.

        One that comes after others is judged when it is its turn.
        """
        if self.versions.proposal is None and not self.versions.queue:
            check_change(self.versions.deployment, change)
        with self._lock:
            self._checkpoint.commit(self._engine.request(self.ledger, change))
        self.take_parcels()

    def go_over_between_batches(self) -> None:
        """Go over to what sites have agreed on, and leave behind what is over, unless a micro-batch does."""
        if self._is_to_go_over and self._gate.acquire(blocking=False):
            try:
                self._go_over()
            finally:
                self._gate.release()

    @property
    def _is_to_go_over(self) -> bool:
        return self.versions.is_decided or bool(self._over(self.program, self.ledger))

    def _over(self, program: SiteProgram, ledger: SiteLedger) -> tuple[str, ...]:
        """Joins that have nothing left to do here, and whose last answers the sinks have."""
        if all(part.is_in_force for part in program.parts):
            return ()
        over = finished(program, ledger)
        staying = {finish.query for part, finish in program.finishes if part.name not in over}
        waiting = set()
        for delivery in self._deliveries:
            undelivered = ledger.undelivered.get(delivery.query, ())
            if undelivered and undelivered[-1].batch > delivery.delivered:
                waiting.add(delivery.query.removeprefix(failed_sink("")))
                if over and delivery.query not in staying:
                    delivery.flush(self._failed)
        return tuple(name for name in over if not waiting & (set(program.part(name).queries) - staying))

    def _go_over(self) -> None:
        if not self._is_to_go_over:
            return
        self._await_completion()
        with self._lock:
            before, ledger, engine = self.versions, self._released(self.ledger), self._engine
            if not ledger.is_complete:
                return
            if before.is_decided:
                assert before.proposal is not None
                self._settings.catalogue.adopt(before.proposal.change, before.proposal.number)
                engine, ledger = adopt(engine, ledger)
                self._deliveries = self._started(self._opened_deliveries(engine.program), ledger)
                self._checkpoint.expect(engine.program.revision, self._identity(engine.versions(ledger).deployment))
            if over := self._over(engine.program, ledger):
                engine, ledger = drop(engine, ledger, over)
            self._checkpoint.commit(ledger)
            self._engine, self.program, self._links.program = engine, engine.program, engine.program
            self._follow_program()
            self._publish()
            self._acknowledge()
        self._settings.events.publish(program_event(self.program))
        self._report_changes()
        for name in over:
            self._settings.events.publish(VersionDropped(self.site, name))

    def _started(self, deliveries: Sequence[Delivery], ledger: SiteLedger) -> list[Delivery]:
        """Deliveries, of which those that are new take hold of their sinks."""
        for delivery in deliveries:
            if delivery not in self._deliveries:
                delivery.roll_back(ledger.number, ())
        return list(deliveries)

    def _follow_program(self) -> None:
        """Let streams, late rows and answers of queries that came come, and of queries that have ended end."""
        catalogue, program = self._settings.catalogue, self.program
        self._write_program()
        self._checkpoint.write_watermarks(self._engine.watermarks(self.ledger))
        self._intake = replace(self._intake, program=program, topology=catalogue.topology, schemas=catalogue.schemas)
        if self._new_files is not None:
            self._new_files.follow(self._intake.listings or {})
        self._late.follow(catalogue.topology, self._local_schemas, self.ledger.ingested_batch)
        self._late_watch.follow(catalogue.topology)
        self._observer.follow(program)
        now = time.monotonic()
        self._last_rows = {stream: self._last_rows.get(stream, now) for stream in sorted(self._streams)}
        answered = set(program.answered)
        answered |= {failed_sink(query) for query in self._failed_sinks(program)}
        ended = [delivery for delivery in self._deliveries if delivery.query not in answered]
        self._deliveries = [delivery for delivery in self._deliveries if delivery.query in answered]
        for delivery in ended:
            delivery.close()
            if not delivery.query.startswith(failed_sink("")):
                self._settings.events.publish(QueryEnded(self.site, delivery.query))

    def _identity(self, deployment: Deployment) -> dict[str, Any]:
        """What the checkpoint is for with a deployment."""
        finishes = [finish for one in deployment.in_force for finish in one.finishes]
        return identity_of(self.site, finishes, self._settings.catalogue)

    def cause_against(self, change: Change) -> str:
        """Why this site cannot go over to a change; empty if it can."""
        try:
            check_here(self.program, change, self._settings.catalogue, self._settings.spark, self._new_files is None)
        except WatersmeetError as error:
            return str(error)
        return ""

    def _report_changes(self) -> None:
        """Tell what became of changes, once a process."""
        with self._reporting:
            now, events = self.versions, self._settings.events
            if self._settings.alone or self.site == proposer_of(now.deployment):
                for entry in now.log[self._reported_changes :]:
                    for event in change_events(entry, now.deployment):
                        events.publish(event)
            self._reported_changes = len(now.log)

    @property
    def is_settled(self) -> bool:
        """Whether no change is under way or queued here, and what became of all is told."""
        versions = self.versions
        is_idle = versions.proposal is None and not versions.queue
        return is_idle and self._reported_changes == len(versions.log)

    def _await_decision(self) -> None:
        """Rows that were read are for the plans to come: wait until all sites have agreed on them."""
        while self.ledger.hold_us is not None and not self.versions.is_decided:
            if self._closing.is_set() or (self._settings.once and self._settings.alone):
                raise InputEnded("stopping")
            self._publish()
            if not self.take_parcels():
                self._closing.wait(_POLL_S / 4)

    def _refuse_after_end(self, found: Sequence[Ingested]) -> None:
        """Refuse new rows of a stream whose end was taken for the end of time: all would be late."""
        ended = {stream for stream in self._streams if self._mark(stream) >= END_US}
        if late := sorted({one.stream for one in found if one.rows} & ended):
            raise CheckpointMismatch(
                f"checkpoint {self._checkpoint.directory} was drained (--drain): its input had ended, and rows of "
                f"stream {late[0]!r} that come now can take no part; begin anew with --fresh, or give --checkpoint and "
                "the sinks another place"
            )

    def drain(self) -> bool:
        """The input has ended, and with it time: rows that wait for their order do not wait any more."""
        return self._complete(PhaseTimer(), dict.fromkeys(self._streams, END_US))

    def tell_what_waits(self) -> bool:
        """Say how many answers, or rows where other sites have a part in them, wait for watermarks; whether any do."""
        with self._lock:
            waiting = {stream: rows for stream, rows in self._waiting_rows().items() if rows}
            if not waiting or self._failure is not None:
                return False
            text = "; ".join(f"{rows:,} rows of stream {stream!r}" for stream, rows in waiting.items())
            text = f"{text} wait: a ROWS window counts them once the watermark has passed, as an earlier row may come"
            if not self.program.peers_in and not self.program.peers_out:
                with contextlib.suppress(WatersmeetError):  # an expression fails for one of them: not yet
                    # The engine is a function: nothing of this is committed.
                    after = self._engine.run(self.ledger, Arrivals((), dict.fromkeys(self._streams, END_US)))
                    counts = [(after.rows_out, 1), (self.ledger.rows_out, -1)]
                    answers = sum(sign * of.get(query, 0) for of, sign in counts for query in self.program.answered)
                    text = f"{answers:,} answers are not given yet: {text}"
            self._warnings.say("waiting", f"{text}; more rows release them, or `--once --drain` if none will come")
            return True

    def _waiting_rows(self) -> dict[str, int]:
        """Of each stream, the rows that wait for their order."""
        return {
            stream: sum(segment.rows for segment in segments)
            for stream, segments in sorted(self.ledger.pending.items())
        }

    def take_parcels(self) -> bool:
        """Join what has come over the links, without new rows; whether anything had come."""
        return self._complete(PhaseTimer())

    def has_joined(self, timeout_s: float) -> bool:
        """Wait until everything that was ingested is joined; whether it is, within the timeout."""
        return _are_done([self._completing], timeout_s)

    def has_delivered(self, timeout_s: float) -> bool:
        """Wait until the sinks have all answers; whether they have, within the timeout."""
        for delivery in self._deliveries:
            delivery.flush(self._failed)
        return _are_done([delivery.last for delivery in self._deliveries], timeout_s)

    # -- joining

    def _begin_to_complete(self, timer: PhaseTimer) -> None:
        self._completing = self._worker.submit(self._complete, timer)
        self._completing.add_done_callback(lambda done: self._failed(e) if (e := done.exception()) else None)

    def _await_completion(self) -> None:
        if self._completing is not None:
            self._completing.result()

    def _complete(self, timer: PhaseTimer, ended: Mapping[str, int] | None = None) -> bool:
        """Join what was ingested and what has come over the links; whether there was anything.

        A micro-batch that has failed is not tried again before the next start, by whichever thread.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                has_joined = self._join(timer, ended or {})
            except BaseException as error:
                self._failure = error
                raise
        if has_joined:
            self._forget_unused()
        return has_joined

    def _join(self, timer: PhaseTimer, ended: Mapping[str, int]) -> bool:
        before = self.ledger
        ledger = self._released(before)
        parcels, runs = self._links.parcels(ledger)
        idle = {**self._declare_idle(), **ended}
        has_notes = any(link.notes for link in before.links.values())
        if not parcels and not idle and not has_notes and before.is_complete:
            return False
        timer.lap("take")
        if before.ingested_batch > before.batch:
            was_begun = before.ingested_batch <= self._batch_at_start  # perhaps, by a run before this one
            self._late.keep(before.ingested, before.ingested_batch, replay=was_begun)
        after = self._engine.run(ledger, Arrivals(parcels, idle))
        timer.lap("join")
        self._checkpoint.commit(replace(after, peers={**after.peers, **runs}))
        timer.lap("commit")
        self._reports.begun(after.number, timer.began)
        self._publish()
        self._acknowledge()
        for delivery in self._deliveries:
            delivery.give(self.ledger.undelivered.get(delivery.query, ()), self._failed)
        timer.lap("publish")
        self._report(before, timer)
        return True

    def _released(self, ledger: SiteLedger) -> SiteLedger:
        """The ledger without what readers and sinks have made durable."""
        for reader, end in self._links.readers(self.ledger).items():
            ledger = with_reader(self._engine.acknowledged(ledger, reader, end.number), reader, end)
        for delivery in self._deliveries:
            ledger = self._engine.delivered(ledger, delivery.query, delivery.delivered)
        known = {delivery.query for delivery in self._deliveries}
        if not ledger.undelivered.keys() <= known:  # of queries that no longer keep what fails
            rest = {name: waiting for name, waiting in ledger.undelivered.items() if name in known}
            ledger = replace(ledger, undelivered=rest)
        return ledger

    def _forget_unused(self) -> None:
        with self._files:
            if not self._is_ingesting and self._lock.acquire(blocking=False):
                try:
                    self._checkpoint.forget_unused()
                finally:
                    self._lock.release()

    # -- links

    def _publish(self) -> None:
        with self._lock:  # the outbox's files stay while they are copied
            self._links.publish(self.ledger)

    def _acknowledge(self) -> None:
        with self._lock:  # micro-batches and the watcher both acknowledge; a transport has one writer at a time
            self._links.acknowledge(self.ledger, self._pace())

    @property
    def awaits_parcels(self) -> bool:
        """Whether a parcel that came damaged is still to come anew, from a site that runs here too."""
        return not self._settings.alone and self._links.awaits_parcels(self.ledger)

    def _wait_for_room(self) -> None:
        """Ingest no new rows while too much waits for readers or sinks.

        Parcels are taken meanwhile: two sites that wait for each other would wait for ever.
        """
        limit = self._settings.topology.link_transport.max_pending_bytes
        waits = self._settings.waits_for_room
        while waits and self._links.waiting_bytes(self.ledger) > limit and not self._closing.is_set():
            text = f"site {self.site}: {limit:,} bytes wait for other sites; new rows wait until they are taken"
            self._warnings.say("room", text)
            self._is_held_back = True
            self._publish()
            if not self.take_parcels():
                time.sleep(_POLL_S)
        self._warnings.forget("room")
        self._is_held_back = False
        for delivery in self._deliveries:
            while delivery.backlog > MAX_UNDELIVERED and not self._closing.is_set():
                time.sleep(_POLL_S / 10)

    def _watch(self) -> None:
        """Between micro-batches: take parcels as they come, deliver what could not be delivered, advance idle streams.

        The trigger says how often a site's own streams are read; an answer that passes several sites would otherwise
        wait for it at each.
        """
        polls = 0
        while not self._closing.is_set():
            try:
                self._links.wake(_POLL_S)
                polls += 1
                is_slow = polls % _SLOW_POLLS == 0
                has_parcels = not self._settings.once and self._links.have_parcels(self.ledger)
                has_notes = any(link.notes for link in self.ledger.links.values())
                due = has_parcels or has_notes or (is_slow and self._idle_between_batches())
                if due and self._lock.acquire(blocking=False):
                    try:
                        self.take_parcels()
                    finally:
                        self._lock.release()
                self.go_over_between_batches()
                if len(self.versions.log) > self._reported_changes:
                    self._report_changes()
                if self._settings.apply is not None:
                    self._take_requests(self._settings.apply)
                if self._reports.is_status_due:
                    self._report_status()
                if is_slow:
                    self._refresh_between_batches()
                    self._links.check_peers(self.ledger)
                    self._publish()
                    self._acknowledge()
            except Exception as error:
                self._failed(error)
                return

    def _take_requests(self, apply: Callable[[str, str], None]) -> None:
        """Hand on requests for another topology that were put into the checkpoint."""
        for request in requests_in(self._checkpoint.directory):
            if request.id not in self._taken_requests:
                self._taken_requests.add(request.id)
                apply(self.site, request.id)

    # -- idle streams

    def _idle(self, until: float, not_before: float = 0.0) -> dict[str, int]:
        """Streams that were silent for their timeout, up to when it was looked, and the instant others have come to."""
        hold_us = self.ledger.hold_us
        return {
            stream: pace if hold_us is None else min(pace, hold_us)
            for stream, since in self._last_rows.items()
            if (timeout := self._settings.topology.stream(stream).idle_timeout_us) is not None
            and (until - max(since, not_before)) * 1_000_000 >= timeout
            and (pace := self._pace(stream)) > self._mark(stream)
        }

    def _idle_between_batches(self) -> dict[str, int]:
        """The same while nothing comes at all: a stream that waits for a micro-batch to end is not idle."""
        return {} if self._is_in_batch else self._idle(time.monotonic(), self._batch_ended)

    def _declare_idle(self) -> dict[str, int]:
        """Let the next rows be judged by the instants that idle streams are taken to have come to, from now on."""
        with self._files:  # no micro-batch begins meanwhile
            idle = self._idle_between_batches()
            if idle:
                self._checkpoint.write_watermarks({**self._engine.watermarks(self.ledger), **idle})
        return idle

    def _mark(self, stream: str) -> int:
        mark = self._engine.watermarks(self.ledger)[stream]
        return UNKNOWN if mark is None else mark

    def _pace(self, stream: str | None = None) -> int:
        """The farthest that any other stream is known here to have come."""
        tables = {
            scan.stream for scan in self.program.streams if scan.is_table
        }  # their versions say nothing of streams
        others = [self._mark(other) for other in self._streams if other != stream and other not in tables]
        inbound = [one for _, one in self.program.inbound if not self._is_of_table(one)]
        others += [self.ledger.watermarks.get(one.arrives_as, UNKNOWN) for one in inbound]
        others += [end.pace for end in self._links.readers(self.ledger).values()]
        return max((mark for mark in others if mark < END_US), default=UNKNOWN)  # one that has ended sets no pace

    def _is_of_table(self, shipment: Shipment) -> bool:
        """Whether what arrives may be rows, versions or keys of a table, which are refreshed by the clock."""
        if shipment.form is Form.SPAN:
            return bool(self._refreshed)
        return shipment.purpose is Purpose.TABLES

    # -- statistics and reports

    @property
    def observed(self) -> Stats:
        """What was observed of the site's own streams, across restarts."""
        with self._observing:
            return self._observer.stats(float(int(time.time())))

    @property
    def _observed_path(self) -> str:
        return str(self._checkpoint.directory / _OBSERVED)

    def _observed_before(self) -> Observer:
        try:
            with open(self._observed_path, encoding="utf-8") as file:
                return Observer.from_json(self.program, file.read())
        except (OSError, ValueError, KeyError, TypeError):
            return Observer(self.program)  # nothing there, or of another version: it can be observed anew

    def _observe(self, found: Sequence[Ingested]) -> None:
        """Take what ingest tasks have seen; it is no part of the ledger, which is written at every micro-batch."""
        with self._observing:
            for one in found:
                if one.observed:
                    self._observer.take(one.stream, json.loads(one.observed))
        if self._settings.observations is not None:
            for stream in {one.stream for one in found}:
                texts = [one.observed for one in found if one.stream == stream and one.observed]
                self._settings.observations.sketched(stream, texts)
        if time.monotonic() - self._observed_at >= _OBSERVED_S:
            self._keep_observed()

    def _keep_observed(self) -> None:
        self._observed_at = time.monotonic()
        if self._observer.has_seen:
            with contextlib.suppress(OSError):  # statistics to plan with are not worth failing for
                UNFLUSHED.replace(self._checkpoint.directory / _OBSERVED, self._observer.to_json())
                self._checkpoint.written_beside(_OBSERVED)

    def _report(self, before: SiteLedger, timer: PhaseTimer) -> None:
        ledger = self.ledger
        counts: dict[str, dict[str, int]] = {"rows": {}, "late": {}, "malformed": {}}
        for found in before.ingested:
            for name, of in counts.items():
                of[found.stream] = of.get(found.stream, 0) + getattr(found, name)
        segments = list(ledger.segments)
        queries = self.program.answered
        nulls = sum(sum(found.null_keys.values()) for found in before.ingested)
        self.last_batch = MicroBatchCompleted(
            site=self.site,
            batch=ledger.number,
            seconds=timer.seconds,
            phases=timer.phases,
            rows_in=counts["rows"],
            late=counts["late"],
            malformed=counts["malformed"],
            null_keys=nulls,
            failed=failed_counts(before, ledger),
            answers={query: ledger.rows_out.get(query, 0) - before.rows_out.get(query, 0) for query in queries},
            watermarks=self._engine.watermarks(ledger),
            state_rows=sum(segment.rows for segment in segments),
            state_bytes=sum(segment.bytes for segment in segments),
            segments=len(segments),
            central_bytes=central_bytes(self._reported_ledger, ledger),
        )
        self._reported_ledger = ledger
        self._late_watch.look(ledger.streams)
        events = self._settings.events
        events.publish(self.last_batch)
        for sent in link_events(self.program, ledger):
            events.publish(sent)

    def _report_status(self) -> None:
        backlog = self._links.backlog(self.ledger)
        self._reports.status(backlog, self._deliveries, self._links.latency_s, self._is_held_back)

    # -- the end

    def stop_waiting(self) -> None:
        """Let the micro-batch under way finish although other sites or sinks do not take what waits for them."""
        self._closing.set()

    def close(self, *, has_failed: bool = False) -> None:
        """Give up links, sinks and checkpoint; what sinks have is left out of the ledger."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        self._worker.shutdown(wait=True)
        for delivery in self._deliveries:
            delivery.close()
        try:
            with self._lock:
                with contextlib.suppress(CheckpointMismatch):  # it was refused for that already
                    ledger = self._released(self.ledger)
                    if ledger is not self.ledger:
                        self._checkpoint.commit(ledger)
                if not has_failed:  # else the end was told already
                    with contextlib.suppress(Exception):  # nothing depends on it
                        self._report_status()
                self._links.close()
                self._late_watch.conclude(self.ledger.streams)
                self._keep_observed()
                self._checkpoint.forget_unused()
        finally:
            self._late.close()
            self._checkpoint.close()


def _now_us() -> int:
    return int(time.time() * 1e6)


def _named(schema: StructType, finish: Finish) -> StructType:
    """The row type of answers under their own names."""
    return StructType(
        [StructField(name, field.dataType) for name, field in zip(finish.names, schema.fields, strict=True)]
    )


def _are_done(futures: Sequence[Future[Any] | None], timeout_s: float) -> bool:
    """Whether things are done within the timeout; raises what went wrong in one."""
    done, waiting = wait([future for future in futures if future is not None], timeout_s)
    for future in done:
        future.result()
    return not waiting
