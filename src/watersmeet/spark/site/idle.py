"""How far the streams of a site have come in event time, and which are idle, so that others do not wait for them."""

import time
from collections.abc import Iterable

from watersmeet.program.operators import Form, Purpose
from watersmeet.program.site.program import Shipment
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import END_US
from watersmeet.spark.site.state import SiteState


class IdleStreams:
    """Advances the watermarks of streams that were silent for their timeout, to where others have come."""

    def __init__(self, state: SiteState) -> None:
        self._state = state
        self._last_rows = dict.fromkeys(sorted(state.streams), time.monotonic())
        self._is_in_batch = False  # rows are judged by the watermarks that were: none is advanced by idleness
        self._batch_ended = time.monotonic()

    def follow(self) -> None:
        """Let streams come and go with the site's program."""
        now = time.monotonic()
        self._last_rows = {stream: self._last_rows.get(stream, now) for stream in sorted(self._state.streams)}

    def rows_came(self, streams: Iterable[str]) -> None:
        """Streams had rows just now."""
        self._last_rows |= dict.fromkeys(streams, time.monotonic())

    def batch_begins(self) -> None:
        """A micro-batch of the site's own streams begins."""
        with self._state.files:
            self._is_in_batch = True

    def batch_ends(self) -> None:
        """It has ended, somehow."""
        with self._state.files:
            self._is_in_batch = False
            self._batch_ended = time.monotonic()

    def since(self, until: float, not_before: float = 0.0) -> dict[str, int]:
        """Streams that were silent for their timeout, up to when it was looked, and the instant others have come to."""
        hold_us, topology = self._state.ledger.hold_us, self._state.settings.topology
        return {
            stream: instant
            for stream, since in self._last_rows.items()
            if (timeout := topology.stream(stream).idle_timeout_us) is not None
            and (until - max(since, not_before)) * 1_000_000 >= timeout
            and (instant := idle_instant(self.pace(stream), self.mark(stream), hold_us)) is not None
        }

    def between_batches(self) -> dict[str, int]:
        """The same while nothing comes at all: a stream that waits for a micro-batch to end is not idle."""
        return {} if self._is_in_batch else self.since(time.monotonic(), self._batch_ended)

    def declare(self) -> dict[str, int]:
        """Let the next rows be judged by the instants that idle streams are taken to have come to, from now on."""
        state = self._state
        with state.files:  # no micro-batch begins meanwhile
            idle = self.between_batches()
            if idle:
                state.checkpoint.write_watermarks({**state.engine.watermarks(state.ledger), **idle})
        return idle

    def mark(self, stream: str) -> int:
        """The watermark of a stream of the site."""
        mark = self._state.engine.watermarks(self._state.ledger)[stream]
        return UNKNOWN if mark is None else mark

    def pace(self, stream: str | None = None) -> int:
        """The farthest that any other stream is known here to have come."""
        state = self._state
        # Versions of tables say nothing of streams.
        tables = {scan.stream for scan in state.program.streams if scan.is_table}
        others = [self.mark(other) for other in state.streams if other != stream and other not in tables]
        inbound = [shipment for _, shipment in state.program.inbound if not self._is_of_table(shipment)]
        others += [state.ledger.watermarks.get(shipment.arrives_as, UNKNOWN) for shipment in inbound]
        others += [end.pace for end in state.links.readers(state.ledger).values()]
        return max((mark for mark in others if mark < END_US), default=UNKNOWN)  # one that has ended sets no pace

    def _is_of_table(self, shipment: Shipment) -> bool:
        """Whether what arrives may be rows, versions or keys of a table, which are refreshed by the clock."""
        if shipment.form is Form.SPAN:
            return bool(self._state.refreshed_tables)
        return shipment.purpose is Purpose.TABLES


def idle_instant(pace_us: int, mark_us: int, hold_us: int | None) -> int | None:
    """The instant that a silent stream is taken to have come to, short of where it is held; None if that is not new.

    >>> idle_instant(9, 5, None), idle_instant(9, 5, 7), idle_instant(9, 7, 7), idle_instant(5, 5, None)
    (9, 7, None, None)
    """
    instant = pace_us if hold_us is None else min(pace_us, hold_us)
    return instant if instant > mark_us else None
