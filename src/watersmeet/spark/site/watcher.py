"""The thread that watches a site between its micro-batches: links, idle streams, tables, changes, requests."""

import contextlib
import threading

from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.requests import requests_in
from watersmeet.spark.site.idle import IdleStreams
from watersmeet.spark.site.joining import SiteJoin
from watersmeet.spark.site.state import SiteState
from watersmeet.spark.site.tables import SiteTables
from watersmeet.spark.site.takeover import SiteTakeover

_POLL_S = 0.1  # how often a site looks for parcels between its micro-batches
_SLOW_POLLS = 5  # after so many, also whether links can be written again and whether a stream is idle


class SiteWatcher:
    """Takes parcels as they come, delivers what could not be delivered, advances idle streams.

    The trigger says how often a site's own streams are read; an answer that passes several sites would otherwise wait
    for it at each.
    """

    def __init__(
        self, state: SiteState, idle: IdleStreams, join: SiteJoin, tables: SiteTables, takeover: SiteTakeover
    ) -> None:
        self._state = state
        self._idle = idle
        self._join = join
        self._tables = tables
        self._takeover = takeover
        self._taken_requests: set[str] = set()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch until the job closes."""
        self._thread = threading.Thread(target=self._watch, name=f"links-{self._state.site}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        polls = 0
        while not self._state.closing.is_set():
            try:
                self._state.links.wake(_POLL_S)
                polls += 1
                self._look(is_slow=polls % _SLOW_POLLS == 0)
            except Exception as error:
                self._state.failed(error)
                return

    def _look(self, *, is_slow: bool) -> None:
        state = self._state
        has_parcels = not state.settings.once and state.links.have_parcels(state.ledger)
        has_notes = any(link.notes for link in state.ledger.links.values())
        due = has_parcels or has_notes or (is_slow and self._idle.between_batches())
        if due and state.lock.acquire(blocking=False):
            try:
                self._join.take_parcels()
            finally:
                state.lock.release()
        self._takeover.go_over_between_batches()
        self._takeover.report_if_any()
        self._take_requests()
        if state.reports.is_status_due and self._spark_answers():
            state.report_status()
        if is_slow:
            self._tables.refresh_between_batches()
            state.links.check_peers(state.ledger)
            state.publish()
            self._join.acknowledge()

    def _spark_answers(self) -> bool:
        """Whether Spark is there; while it hangs, so does this, and the site gives no sign of life."""
        with contextlib.suppress(Exception):  # what has happened to it is said by whoever works with it
            backend_of(self._state.settings.spark).answer()
            return True
        return False

    def _take_requests(self) -> None:
        """Hand on requests for another topology that were put into the checkpoint."""
        apply = self._state.settings.apply
        for request in requests_in(self._state.directory) if apply is not None else ():
            if apply is not None and request.id not in self._taken_requests:
                self._taken_requests.add(request.id)
                apply(self._state.site, request.id)
