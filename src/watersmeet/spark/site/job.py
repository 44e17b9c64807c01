"""One site as one Structured Streaming query: all its queries, its own streams as sources, its links beside them.

A micro-batch is ingested when its rows are filed and the ledger says so (`ingesting`). Then Spark may go on with the
next one while the rows of this one are joined (`joining`). What comes over links is taken with that or, between
micro-batches, by a thread that watches the links (`watcher`).
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame

from watersmeet.errors import CheckpointMismatch
from watersmeet.metrics.describe import program_event
from watersmeet.metrics.events import MicroBatchCompleted
from watersmeet.program.finish.failed import failed_sink
from watersmeet.program.site.agreement import Versions
from watersmeet.program.site.changes import Change
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.deliver.writer import Writer
from watersmeet.spark.resume import note_topology
from watersmeet.spark.site.idle import IdleStreams
from watersmeet.spark.site.ingesting import SiteIngestion
from watersmeet.spark.site.joining import SiteJoin
from watersmeet.spark.site.observations import SiteObservations
from watersmeet.spark.site.settings import PhaseTimer, SiteSettings
from watersmeet.spark.site.state import SiteState
from watersmeet.spark.site.tables import SiteTables
from watersmeet.spark.site.takeover import SiteTakeover
from watersmeet.spark.site.watcher import SiteWatcher
from watersmeet.stats.model import Stats
from watersmeet.topology.model import Query, Topology


class SiteJob:
    """Runs the micro-batches of one site."""

    def __init__(self, settings: SiteSettings, program: SiteProgram, open_writer: Callable[[Query], Writer]) -> None:
        self.state = SiteState(settings, program, open_writer)
        idle = IdleStreams(self.state)
        self.join = SiteJoin(self.state, idle)
        self._tables = SiteTables(self.state, self.join)
        self._takeover = SiteTakeover(self.state, idle, self.join)
        self._ingestion = SiteIngestion(self.state, idle, self.join, self._tables, self._takeover)
        self.observations = SiteObservations(self.state, idle)
        self.watcher = SiteWatcher(self.state, idle, self.join, self._tables, self._takeover)

    @property
    def site(self) -> str:
        return self.state.site

    @property
    def program(self) -> SiteProgram:
        """What the site does now."""
        return self.state.program

    @property
    def directory(self) -> Path:
        """Where its checkpoint is."""
        return self.state.directory

    @property
    def ledger(self) -> SiteLedger:
        """The state as it was last committed."""
        return self.state.ledger

    @property
    def versions(self) -> Versions:
        """What the site knows of versions of plans."""
        return self.state.versions

    @property
    def last_batch(self) -> MicroBatchCompleted | None:
        """What the last micro-batch did."""
        return self.join.last_batch

    @property
    def observed(self) -> Stats:
        """What was observed of the site's own streams, across restarts."""
        return self.state.observed.stats

    @property
    def has_links(self) -> bool:
        """Whether there are other sites."""
        return bool(self.state.links.peers)

    @property
    def lists_files(self) -> bool:
        """Whether the job finds the files of its streams itself, and Spark only says when."""
        return not self.state.is_read_by_spark

    @property
    def awaits_parcels(self) -> bool:
        """Whether more may come from sites that run here too: a parcel that was damaged, or what is out of reach."""
        return not self.state.settings.alone and self.state.links.awaits_parcels(self.ledger)

    @property
    def is_settled(self) -> bool:
        """Whether no change is under way or queued here, and what became of all is told."""
        return self._takeover.is_settled

    def note_topology(self, topology: Topology) -> None:
        """Write down what topology the site was asked to run."""
        note_topology(self.state.checkpoint, topology)

    def open(self, failed: Callable[[BaseException], object]) -> None:
        """Deliver what an earlier run left undelivered, and complete what it left ingested."""
        state = self.state
        state.failed = failed
        self._refuse_undeliverable()
        state.events.publish(program_event(state.program))
        if state.new_files is not None and state.settings.once:
            state.new_files.look()  # what comes later is left to the next run
        state.links.open(state.ledger, state.checkpoint.commit)
        state.links.check_peers(state.ledger)
        state.write_watermarks()
        state.late.roll_back(state.ledger.ingested_batch, state.ledger.batch, state.start)
        state.deliveries.take_over(state.ledger, state.start)
        state.checkpoint.commit(replace(state.ledger, writer=state.start.token))
        state.deliveries.give(state.ledger, failed, replay=True)
        state.publish()
        if not state.ledger.is_complete:
            self.join.begin(PhaseTimer())
        self._tables.ingest_at_start()
        self.watcher.start()

    def _refuse_undeliverable(self) -> None:
        """Refuse to forget rows that were kept and that no sink has: their query no longer says where they go."""
        known = {delivery.query for delivery in self.state.deliveries}
        for name, waiting in sorted(self.ledger.undelivered.items()):
            if waiting and name not in known:
                query = name.removeprefix(failed_sink(""))
                raise CheckpointMismatch(
                    f"query {query!r}: {sum(answers.rows for answers in waiting):,} rows for which an expression "
                    f"failed are kept in checkpoint {self.directory} and not in their sink yet; run once with "
                    "`errors: keep` as before, then change it"
                )

    def frame(self) -> DataFrame:
        """The streaming frame whose every micro-batch files the new rows of the site's own streams."""
        return self._ingestion.frame()

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Ingest one micro-batch of the site's own streams; one that was ingested before a crash is passed over."""
        self._ingestion.run_batch(frame, batch)

    def take_parcels(self) -> bool:
        """Join what has come over the links, without new rows; whether anything had come."""
        return self.join.take_parcels()

    def drain(self) -> bool:
        """The input has ended, and with it time: rows that wait for their order do not wait any more."""
        return self.join.drain()

    def tell_what_waits(self) -> bool:
        """Say how many answers wait for watermarks, or why some do where other sites have a part; whether any do."""
        return self.join.tell_what_waits()

    def has_joined(self, timeout_s: float) -> bool:
        """Wait until everything that was ingested is joined; whether it is, within the timeout."""
        return self.join.has_joined(timeout_s)

    def has_delivered(self, timeout_s: float) -> bool:
        """Wait until the sinks have all answers; whether they have, within the timeout."""
        return self.join.has_delivered(timeout_s)

    def request(self, change: Change) -> None:
        """Ask for a change of plans or queries, which all sites go over to when they have agreed."""
        self._takeover.request(change)

    def cause_against(self, change: Change) -> str:
        """Why this site cannot go over to a change; empty if it can."""
        return self.state.cause_against(change)

    def stop_waiting(self) -> None:
        """Let the micro-batch under way finish although other sites or sinks do not take what waits for them."""
        self.state.closing.set()

    def close(self, *, has_failed: bool = False) -> None:
        """Give up links, sinks and checkpoint; what sinks have is left out of the ledger."""
        state = self.state
        state.closing.set()
        self.watcher.close()
        self.join.close()
        state.deliveries.close()
        try:
            with state.lock:
                with contextlib.suppress(CheckpointMismatch):  # it was refused for that already
                    ledger = state.released(state.ledger)
                    if ledger is not state.ledger:
                        state.checkpoint.commit(ledger)
                if not has_failed:  # else the end was reported already
                    with contextlib.suppress(Exception):  # nothing depends on it
                        state.report_status()
                state.links.close()
                state.late_watch.conclude(state.ledger.streams)
                state.observed.write()
                state.checkpoint.forget_unused()
        finally:
            state.late.close()
            state.checkpoint.close()
