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
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from watersmeet.errors import CheckpointMismatch, WatersmeetError
from watersmeet.metrics.bus import EventBus, Warnings
from watersmeet.metrics.events import LinkCounts, MicroBatchCompleted
from watersmeet.program.finish.failed import failed_sink
from watersmeet.program.finish.model import Finish
from watersmeet.program.site.engine import Arrivals, SiteEngine, traffic_by_purpose
from watersmeet.program.site.ledger import Ingested, SiteLedger, failed_counts
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.spark.binding import Bound
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.deliver.delivery import FAILED_SCHEMA, Delivery, LateRows
from watersmeet.spark.deliver.evaluate import SparkEvaluator
from watersmeet.spark.deliver.sinks import FileWriter, Writer
from watersmeet.spark.durable import UNFLUSHED, Disk
from watersmeet.spark.ingest.intake import Intake
from watersmeet.spark.ingest.new_files import InputFile, NewFiles
from watersmeet.spark.jobs import TaskRunner
from watersmeet.spark.links.protocol import LinkEnd, Links, with_reader
from watersmeet.spark.links.site_links import SiteLinks
from watersmeet.stats.model import Stats
from watersmeet.stats.observe import Observer
from watersmeet.topology.model import Sink, Topology

MAX_UNDELIVERED = 8  # micro-batches that a slow sink may be behind before new rows wait for it
_LIST_S = 0.01  # how often it is looked for new files, where no trigger is given and looking does not take long
_LIST_SHARE = 10  # looking takes at most one part of so many of the time
_POLL_S = 0.1  # how often a site looks for parcels between its micro-batches
_SLOW_POLLS = 5  # after so many, also whether links can be written again and whether a stream is idle
_OBSERVED_S = 30.0  # how often observed statistics are written down: a crash forgets so much of them


@dataclass(frozen=True)
class SiteSettings:
    """How a site is to be run."""

    spark: SparkSession
    topology: Topology
    bounds: Mapping[str, Bound]  # by query
    checkpoint: Checkpoint
    links: Links
    programs_digest: str  # of all sites' programs: sites that run different ones must not exchange rows
    events: EventBus
    interval_s: float = 0.0  # between micro-batches, at least
    once: bool = False
    alone: bool = False  # whether other sites run elsewhere

    @property
    def waits_for_room(self) -> bool:
        """Whether new rows wait for readers of links; not where nobody may be there and the run is to end."""
        return not (self.alone and self.once)


class InputEnded(WatersmeetError):
    """There is no micro-batch any more: all files are read that were there, or the run is being stopped."""


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

    def __init__(self, settings: SiteSettings, program: SiteProgram, writers: Mapping[str, Writer]) -> None:
        self.program = program
        self._settings = settings
        self._checkpoint = settings.checkpoint
        self._warnings = Warnings(settings.events, program.site)
        checkpoint = settings.checkpoint
        end = LinkEnd(checkpoint.run_id, settings.programs_digest, checkpoint.ledger.epoch + 1, uuid.uuid4().hex[:8])
        self._links = SiteLinks(settings.links, program, checkpoint.shelf, end, self._warnings)
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
        evaluator = SparkEvaluator(spark, settings.bounds, shelf)
        self._delays_us = {s.stream: settings.topology.stream(s.stream).watermark_us for s in program.streams}
        self._engine = SiteEngine(program, self._delays_us, shelf, run_tasks, evaluator, run_tasks.parallelism)
        watermarks_path = settings.checkpoint.watermarks_path
        self._intake = Intake(spark, settings.topology, program, self._schemas, shelf, watermarks_path, run_tasks)
        listings = self._intake.listings
        self._new_files = None if listings is None else NewFiles(listings, shelf, self.ledger.inputs)
        self._deliveries = [
            Delivery(spark, finish.query, _named(evaluator.answer_schema(finish), finish), writers[finish.query], shelf)
            for _, finish in program.finishes
        ]
        run_id = f"{program.site}-{self._checkpoint.run_id}"
        disk = Disk(settings.topology.survives_power_cuts)
        for query, sink in self._failed_sinks.items():
            writer = FileWriter(spark, sink, f"{query}-{run_id}", disk)
            self._deliveries.append(Delivery(spark, failed_sink(query), FAILED_SCHEMA, writer, shelf))
        local = {name: schema for name, schema in self._schemas.items() if name in self._delays_us}
        self._late = LateRows(spark, settings.topology, local, shelf, run_id)
        self._last_rows = dict.fromkeys(sorted(self._delays_us), time.monotonic())
        self._worker = ThreadPoolExecutor(1, f"join-{program.site}")
        self._completing: Future[bool] | None = None
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failed: Callable[[BaseException], object] = lambda error: None
        self._observer = self._observed_before()
        self._observed_at = time.monotonic()
        self.last_batch: MicroBatchCompleted | None = None

    @property
    def site(self) -> str:
        return self.program.site

    @property
    def ledger(self) -> SiteLedger:
        """The state as it was last committed."""
        return self._checkpoint.ledger

    @property
    def lists_files(self) -> bool:
        """Whether the job finds the files of its streams itself, and Spark only says when."""
        return self._new_files is not None

    @cached_property
    def _schemas(self) -> dict[str, StructType]:
        return {name: schema for bound in self._settings.bounds.values() for name, schema in bound.schemas.items()}

    @property
    def _failed_sinks(self) -> dict[str, Sink]:
        """Where queries that have a part here keep rows for which an expression fails."""
        queries = sorted({query for part in self.program.parts for query in part.queries})
        found = {query: self._settings.topology.query(query).failed for query in queries}
        return {query: sink for query, sink in found.items() if sink is not None}

    # -- what Spark calls

    def frame(self) -> DataFrame:
        """The streaming frame whose every micro-batch files the new rows of the site's own streams."""
        frame = self._intake.frame()
        if frame is not None:
            return frame
        # A site that only reads links is a streaming query too: over a directory to which nothing is ever added.
        empty = self._checkpoint.directory / "no-streams"
        empty.mkdir(exist_ok=True)
        return self._settings.spark.readStream.format("text").load(str(empty)).select(F.col("value").alias("report"))

    def open(self, failed: Callable[[BaseException], object]) -> None:
        """Deliver what an earlier run left undelivered, and complete what it left ingested."""
        self._failed = failed
        if self._new_files is not None and self._settings.once:
            self._new_files.look()  # what comes later is left to the next run
        self._links.open(self.ledger, self._checkpoint.commit)
        self._links.check_peers(self.ledger)
        self._checkpoint.write_watermarks(self._engine.watermarks(self.ledger))
        self._late.roll_back(self.ledger.ingested_batch)
        for delivery in self._deliveries:
            delivery.roll_back(self.ledger.number)
            delivery.give(self.ledger.undelivered.get(delivery.query, ()), failed, replay=True)
        self._publish()
        if not self.ledger.is_complete:
            self._begin_to_complete(PhaseTimer())
        if self.program.peers_in or self.program.peers_out or self._has_idle_timeouts:
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
        if not files:
            return self._intake.ingested(frame) if self.program.streams else []
        there = {stream: [file for file in some if os.path.exists(file.path)] for stream, some in files.items()}
        for path in sorted(file.path for stream, some in files.items() for file in some if file not in there[stream]):
            self._warnings.say(path, f"input file {path} was removed before it was read; going on without it")
        return self._intake.ingested_files(there)

    def _ingest(self, frame: DataFrame, files: Mapping[str, Sequence[InputFile]], batch: int, began: float) -> None:
        timer = PhaseTimer()
        with self._files:
            self._is_ingesting = True
        try:
            found = self._read(frame, files)
            timer.lap("ingest")
            self._checkpoint.flush(path for one in found for path in one.paths)
            timer.lap("commit")
            self._await_completion()
            timer.lap("wait for the join before")
            with self._lock:
                self._last_rows |= {one.stream: time.monotonic() for one in found if one.rows}
                known = [replace(one, observed="") for one in found]  # statistics are no part of the state
                ledger = self._engine.ingest(self._released(self.ledger), batch, known, self._idle(began))
                if self._new_files is not None:
                    ledger = replace(ledger, inputs=self._new_files.take(files))
                self._checkpoint.commit(ledger)
                self._checkpoint.write_watermarks(self._engine.watermarks(ledger))
        finally:
            self._is_ingesting = False
        self._observe(found)
        self._forget_unused()
        timer.lap("commit")
        self._begin_to_complete(timer)

    def take_parcels(self) -> bool:
        """Join what has come over the links, without new rows; whether anything had come."""
        return self._complete(PhaseTimer())

    def has_joined(self, timeout_s: float) -> bool:
        """Wait until everything that was ingested is joined; whether it is, within the timeout."""
        return _are_done([self._completing], timeout_s)

    def has_delivered(self, timeout_s: float) -> bool:
        """Wait until the sinks have all answers; whether they have, within the timeout."""
        return _are_done([delivery.last for delivery in self._deliveries], timeout_s)

    # -- joining

    def _begin_to_complete(self, timer: PhaseTimer) -> None:
        self._completing = self._worker.submit(self._complete, timer)
        self._completing.add_done_callback(lambda done: self._failed(e) if (e := done.exception()) else None)

    def _await_completion(self) -> None:
        if self._completing is not None:
            self._completing.result()

    def _complete(self, timer: PhaseTimer) -> bool:
        """Join what was ingested and what has come over the links; whether there was anything.

        A micro-batch that has failed is not tried again before the next start, by whichever thread.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                has_joined = self._join(timer)
            except BaseException as error:
                self._failure = error
                raise
        if has_joined:
            self._forget_unused()
        return has_joined

    def _join(self, timer: PhaseTimer) -> bool:
        before = self.ledger
        ledger = self._released(before)
        parcels, runs = self._links.parcels(ledger)
        idle = self._declare_idle()
        if not parcels and not idle and before.is_complete:
            return False
        timer.lap("take")
        if not before.is_complete:
            was_begun = before.ingested_batch <= self._batch_at_start  # perhaps, by a run before this one
            self._late.keep(before.ingested, before.ingested_batch, replay=was_begun)
        after = self._engine.run(ledger, Arrivals(parcels, idle))
        timer.lap("join")
        self._checkpoint.commit(replace(after, peers={**after.peers, **runs}))
        timer.lap("commit")
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
            self._publish()
            if not self.take_parcels():
                time.sleep(_POLL_S)
        self._warnings.forget("room")
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
                due = has_parcels or (is_slow and self._idle_between_batches())
                if due and self._lock.acquire(blocking=False):
                    try:
                        self.take_parcels()
                    finally:
                        self._lock.release()
                if is_slow:
                    self._links.check_peers(self.ledger)
                    self._publish()
                    self._acknowledge()
            except Exception as error:
                self._failed(error)
                return

    # -- idle streams

    @property
    def _has_idle_timeouts(self) -> bool:
        return any(self._settings.topology.stream(stream).idle_timeout_us is not None for stream in self._delays_us)

    def _idle(self, until: float, not_before: float = 0.0) -> dict[str, int]:
        """Streams that were silent for their timeout, up to when it was looked, and the instant others have come to."""
        return {
            stream: pace
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
        others = [self._mark(other) for other in self._delays_us if other != stream]
        others += [self.ledger.watermarks.get(one.arrives_as, UNKNOWN) for _, one in self.program.inbound]
        others += [end.pace for end in self._links.readers(self.ledger).values()]
        return max(others, default=UNKNOWN)

    # -- statistics and reports

    @property
    def observed(self) -> Stats:
        """What was observed of the site's own streams, across restarts."""
        with self._observing:
            return self._observer.stats(float(int(time.time())))

    @property
    def _observed_path(self) -> str:
        return str(self._checkpoint.directory / "observed.json")

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
        if time.monotonic() - self._observed_at >= _OBSERVED_S:
            self._keep_observed()

    def _keep_observed(self) -> None:
        self._observed_at = time.monotonic()
        if self._observer.has_seen:
            with contextlib.suppress(OSError):  # statistics to plan with are not worth failing for
                UNFLUSHED.replace(self._checkpoint.directory / "observed.json", self._observer.to_json())

    def _report(self, before: SiteLedger, timer: PhaseTimer) -> None:
        ledger = self.ledger
        counts: dict[str, dict[str, int]] = {"rows": {}, "late": {}, "malformed": {}}
        for found in before.ingested:
            for name, of in counts.items():
                of[found.stream] = of.get(found.stream, 0) + getattr(found, name)
        segments = list(ledger.segments)
        queries = {finish.query for _, finish in self.program.finishes}
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
            answers={query: ledger.rows_out.get(query, 0) - before.rows_out.get(query, 0) for query in sorted(queries)},
            watermarks=self._engine.watermarks(ledger),
            state_rows=sum(segment.rows for segment in segments),
            state_bytes=sum(segment.bytes for segment in segments),
            segments=len(segments),
        )
        events = self._settings.events
        events.publish(self.last_batch)
        for to, purposes in traffic_by_purpose(self.program, ledger).items():
            for purpose, traffic in purposes.items():
                counted = (traffic.bytes, traffic.batches, traffic.tuples)
                events.publish(LinkCounts(self.site, to, purpose.value, *counted))

    # -- the end

    def stop_waiting(self) -> None:
        """Let the micro-batch under way finish although other sites or sinks do not take what waits for them."""
        self._closing.set()

    def close(self) -> None:
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
                self._links.forget_acknowledged()
                self._late.close()
                self._keep_observed()
                self._checkpoint.forget_unused()
        finally:
            self._checkpoint.close()


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
