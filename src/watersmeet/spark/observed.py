"""Statistics that a site observes of its own streams, kept beside its checkpoint across restarts.

They are no part of the ledger, which is written at every micro-batch: a crash forgets what was seen since they were
last written.
"""

import contextlib
import json
import threading
import time
from collections.abc import Sequence

from watersmeet.program.site.ledger import Ingested
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.adapting import Observations
from watersmeet.spark.checkpoint import Checkpoint
from watersmeet.spark.durable import UNFLUSHED
from watersmeet.stats.model import Stats
from watersmeet.stats.observe import StreamObserver

_FILE = "observed.json"
_WRITE_S = 30.0  # how often they are written


class ObservedStatistics:
    """Takes what ingest tasks have seen, for reports, for the next start and for whoever decides on other plans."""

    def __init__(self, program: SiteProgram, checkpoint: Checkpoint, listener: Observations | None) -> None:
        self._checkpoint = checkpoint
        self._listener = listener
        self._lock = threading.Lock()
        self._observer = self._written_before(program)
        self._written_at = time.monotonic()

    def _written_before(self, program: SiteProgram) -> StreamObserver:
        try:
            return StreamObserver.from_json(program, (self._checkpoint.directory / _FILE).read_text("utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return StreamObserver(program)  # nothing there, or of another version: it can be observed anew

    @property
    def stats(self) -> Stats:
        """What was observed so far."""
        with self._lock:
            return self._observer.stats(float(int(time.time())))

    def follow(self, program: SiteProgram) -> None:
        """Observe the streams of another program from now on."""
        self._observer.follow(program)

    def take(self, found: Sequence[Ingested]) -> None:
        """Take what was seen of the rows of a micro-batch."""
        with self._lock:
            for ingested in found:
                if ingested.observed:
                    self._observer.take(ingested.stream, json.loads(ingested.observed))
        if self._listener is not None:
            for stream in {ingested.stream for ingested in found}:
                texts = [ingested.observed for ingested in found if ingested.stream == stream and ingested.observed]
                self._listener.sketched(stream, texts)
        if time.monotonic() - self._written_at >= _WRITE_S:
            self.write()

    def write(self) -> None:
        """Write them down; statistics to plan with are not worth failing for."""
        self._written_at = time.monotonic()
        if self._observer.has_seen:
            with contextlib.suppress(OSError):
                UNFLUSHED.replace(self._checkpoint.directory / _FILE, self._observer.to_json())
                self._checkpoint.written_beside(_FILE)
