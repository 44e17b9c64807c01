"""Tables of a site, read when they are due: with the rows of a micro-batch, or between two."""

import time

from watersmeet.program.site.ledger import Ingested
from watersmeet.spark.site.joining import SiteJoin
from watersmeet.spark.site.settings import PhaseTimer
from watersmeet.spark.site.state import SiteState


class SiteTables:
    """Reads tables and ingests their versions."""

    def __init__(self, state: SiteState, join: SiteJoin) -> None:
        self._state = state
        self._join = join

    @property
    def are_due(self) -> bool:
        """Whether any table is to be read now."""
        return bool(self._state.engine.due_tables(self._state.ledger, _now_us()))

    def read_due(self) -> tuple[list[Ingested], dict[str, int]]:
        """Read tables that are due; and the instants until which their versions are in force at least."""
        state, now_us = self._state, _now_us()
        due = state.engine.due_tables(state.ledger, now_us)
        return state.tables.read_due(state.program, due, now_us, state.warnings)

    def ingest_at_start(self) -> None:
        """Read what is due before the first micro-batch."""
        if self.are_due:
            self._join.await_completion()
            self._ingest()

    def refresh_between_batches(self) -> None:
        """Read tables that are due, unless a micro-batch does: again, or for queries that have begun."""
        state = self._state
        if self.are_due and state.gate.acquire(blocking=False):
            try:
                self._join.await_completion()
                if state.ledger.is_complete:
                    self._ingest()
            finally:
                state.gate.release()

    def _ingest(self) -> None:
        """Ingest tables that are due, without rows of streams."""
        state = self._state
        with state.files:
            state.is_ingesting = True
        try:
            found, in_force = self.read_due()
            state.checkpoint.flush(path for ingested in found for path in ingested.paths)
            with state.lock:
                if not state.engine.admits(state.ledger, found):
                    return  # they are read again when the site has gone over
                before = state.released(state.ledger)
                state.checkpoint.commit(state.engine.ingest(before, before.ingested_batch, found, in_force))
                state.write_watermarks()
        finally:
            state.is_ingesting = False
        self._join.complete(PhaseTimer(), in_force)


def _now_us() -> int:
    return int(time.time() * 1e6)
