"""The first half of a micro-batch: the new rows of the site's own streams are read, filed and committed.

Then Spark may go on with the next one, which it lists, plans and ingests while the rows of this one are joined.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from watersmeet.errors import CheckpointMismatch
from watersmeet.program.site.ledger import Ingested
from watersmeet.query.windows import END_US
from watersmeet.spark.ingest.new_files import InputFile
from watersmeet.spark.site.idle import IdleStreams
from watersmeet.spark.site.joining import SiteJoin
from watersmeet.spark.site.settings import FrameChanged, InputEnded, PhaseTimer
from watersmeet.spark.site.state import SiteState
from watersmeet.spark.site.tables import SiteTables
from watersmeet.spark.site.takeover import SiteTakeover

MAX_UNDELIVERED = 8  # micro-batches that a slow sink may be behind before new rows wait for it
_LIST_S = 0.01  # how often it is looked for new files, where no trigger is given and looking does not take long
_LIST_SHARE = 10  # looking takes at most one part of so many of the time
_WAIT_S = 0.1  # how often it is looked whether there is room again


class SiteIngestion:
    """Ingests the micro-batches of a site's own streams, when there is room for them."""

    def __init__(
        self, state: SiteState, idle: IdleStreams, join: SiteJoin, tables: SiteTables, takeover: SiteTakeover
    ) -> None:
        self._state = state
        self._idle = idle
        self._join = join
        self._tables = tables
        self._takeover = takeover

    def frame(self) -> DataFrame:
        """The streaming frame whose every micro-batch files the new rows of the site's own streams."""
        self._state.framed = self._state.program.sources
        return self._state.intake.frame()

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Ingest one micro-batch of the site's own streams; one that was ingested before a crash is passed over."""
        if batch <= self._state.ledger.ingested_batch:
            return
        files = self._await_files()
        began = time.monotonic()
        self._idle.batch_begins()
        try:
            self._wait_for_room()
            self._ingest(frame, files, batch, began)
        finally:
            self._idle.batch_ends()

    def _await_files(self) -> dict[str, list[InputFile]]:
        """The files of the next micro-batch, once there are any; nothing where Spark has the rows."""
        new_files, settings = self._state.new_files, self._state.settings
        if new_files is None:
            return {}
        while True:
            began = time.monotonic()
            if not settings.once:  # a stream with many files that wait must not hide new ones of another
                new_files.look()
            if files := new_files.next:
                return files
            if settings.once:
                raise InputEnded("all files are read")
            looked_s = time.monotonic() - began
            if self._state.closing.wait(max(settings.interval_s, _LIST_S, _LIST_SHARE * looked_s)):
                raise InputEnded("stopping")

    def _wait_for_room(self) -> None:
        """Ingest no new rows while too much waits for readers or sinks.

        Parcels are taken meanwhile: two sites that wait for each other would wait for ever.
        """
        state = self._state
        limit = state.settings.topology.link_transport.max_pending_bytes
        waits = state.settings.waits_for_room
        while waits and state.links.waiting_bytes(state.ledger) > limit and not state.closing.is_set():
            text = f"site {state.site}: {limit:,} bytes wait for other sites; new rows wait until they are taken"
            state.warnings.say("room", text)
            state.is_held_back = True
            state.publish()
            if not self._join.take_parcels():
                time.sleep(_WAIT_S)
        state.warnings.forget("room")
        state.is_held_back = False
        for delivery in state.deliveries:
            while delivery.backlog > MAX_UNDELIVERED and not state.closing.is_set():
                time.sleep(_WAIT_S / 10)

    def _ingest(self, frame: DataFrame, files: Mapping[str, Sequence[InputFile]], batch: int, began: float) -> None:
        state, timer = self._state, PhaseTimer()
        with state.files:
            state.is_ingesting = True
        try:
            with state.gate:
                while not self._ingested(frame, files, batch, began, timer):
                    self._await_decision()
        finally:
            state.is_ingesting = False
        state.forget_unused()
        timer.lap("commit")
        self._join.begin(timer)

    def _ingested(
        self, frame: DataFrame, files: Mapping[str, Sequence[InputFile]], batch: int, began: float, timer: PhaseTimer
    ) -> bool:
        """File the rows of a micro-batch and commit them; whether they need not wait until plans have changed."""
        state = self._state
        self._takeover.go_over()
        if state.is_read_by_spark and state.framed != state.program.sources:
            raise FrameChanged("other columns of streams are needed")
        files = {stream: some for stream, some in files.items() if stream in state.streams}  # others have ended
        found = self._read(frame, files)
        self._refuse_after_end(found)
        versions, in_force = self._tables.read_due()
        found += versions
        timer.lap("ingest")
        state.checkpoint.flush(path for ingested in found for path in ingested.paths)
        timer.lap("commit")
        self._join.await_completion()
        timer.lap("wait for the join before")
        with state.lock:
            if not state.engine.admits(state.ledger, found):
                return False
            self._idle.rows_came(ingested.stream for ingested in found if ingested.rows)
            known = [replace(ingested, observed="") for ingested in found]  # statistics are no part of the state
            known_times = {**self._idle.since(began), **in_force}
            ledger = state.engine.ingest(state.released(state.ledger), batch, known, known_times)
            if state.new_files is not None:
                ledger = replace(ledger, inputs=state.new_files.take(files))
            state.checkpoint.commit(ledger)
            state.write_watermarks()
        state.observed.take(found)
        return True

    def _read(self, frame: DataFrame, files: Mapping[str, Sequence[InputFile]]) -> list[Ingested]:
        """File the rows of a micro-batch, be they in files or with Spark."""
        state = self._state
        if state.is_read_by_spark:
            return state.intake.ingested(frame)
        there = {stream: [file for file in some if os.path.exists(file.path)] for stream, some in files.items()}
        for path in sorted(file.path for stream, some in files.items() for file in some if file not in there[stream]):
            state.warnings.say(path, f"input file {path} was removed before it was read; going on without it")
        return state.intake.ingested_files(there)

    def _await_decision(self) -> None:
        """Rows that were read are for the plans to come: wait until all sites have agreed on them."""
        state = self._state
        while state.ledger.hold_us is not None and not state.versions.is_decided:
            if state.closing.is_set() or (state.settings.once and state.settings.alone):
                raise InputEnded("stopping")
            state.publish()
            if not self._join.take_parcels():
                state.closing.wait(_WAIT_S / 4)

    def _refuse_after_end(self, found: Sequence[Ingested]) -> None:
        """Refuse new rows of a stream whose end was taken for the end of time: all would be late."""
        ended = {stream for stream in self._state.streams if self._idle.mark(stream) >= END_US}
        if late := sorted({ingested.stream for ingested in found if ingested.rows} & ended):
            raise CheckpointMismatch(
                f"checkpoint {self._state.directory} was drained (--drain): its input had ended, and rows of "
                f"stream {late[0]!r} that come now can take no part; begin anew with --fresh, or give --checkpoint and "
                "the sinks another place"
            )
