"""Tells of a stream that loses more than a few rows to its watermark: how many, why, and what to do."""

from collections.abc import Mapping
from math import ceil, log2

from watersmeet.metrics.bus import Warnings
from watersmeet.program.site.ledger import StreamState
from watersmeet.query.windows import UNIT_US, format_duration
from watersmeet.spark.ingest.new_files import listing_of
from watersmeet.topology.model import Stream, Topology

LATE_SHARE = 0.01  # of a stream's rows; more are not normal
_FEW = 10  # late rows; fewer say nothing


class LateRowsWatch:
    """Warns when more than one in a hundred rows of a stream are late, and again each time the share has doubled."""

    def __init__(self, topology: Topology, warnings: Warnings, at_start: Mapping[str, StreamState]) -> None:
        self._topology = topology
        self._warnings = warnings
        self._at_start = dict(at_start)
        self._doublings: dict[str, int] = {}

    def follow(self, topology: Topology) -> None:
        """Judge the streams of another topology from now on."""
        self._topology = topology

    def look(self, streams: Mapping[str, StreamState]) -> None:
        """Judge the rows that have come since the run began."""
        for name, state in sorted(streams.items()):
            rows, late = self._since_start(name, state)
            if late >= _FEW and late > LATE_SHARE * rows:
                doublings = int(log2(late / (LATE_SHARE * rows)))
                if doublings > self._doublings.get(name, -1):
                    self._doublings[name] = doublings
                    self._say(name, state)

    def conclude(self, streams: Mapping[str, StreamState]) -> None:
        """At the end of the run, say the last figures of what was warned of before."""
        for name in sorted(self._doublings):
            self._say(name, streams[name])

    def _since_start(self, name: str, state: StreamState) -> tuple[int, int]:
        before = self._at_start.get(name, StreamState())
        return state.rows - before.rows, state.late - before.late

    def _say(self, name: str, state: StreamState) -> None:
        text = late_warning(self._topology.stream(name), *self._since_start(name, state), state.late_by_us)
        self._warnings.say(f"late {name}", text)  # the same text is not said twice


def late_warning(stream: Stream, rows: int, late: int, late_by_us: int) -> str:
    """What to tell of a stream with many late rows: how many, how late, why, and the cure."""
    needed = rounded_up(stream.watermark_us + late_by_us)
    text = (
        f"stream {stream.name!r}: {late / rows:.0%} of its rows ({late:,} of {rows:,}) are late and take no part in "
        f"any answer: they come up to {needed} behind later ones, and its watermark allows "
        f"{format_duration(stream.watermark_us)}; "
    )
    if listing_of(stream) is not None:
        text += "its files are read in the order in which they were modified, so write them in event-time order, or "
    return text + f"set `watermark: {needed}` for the stream and begin anew (--fresh)"


def rounded_up(duration_us: int) -> str:
    """A duration, rounded up to a unit that it has a few of.

    >>> rounded_up(7_203_000_001), rounded_up(1)
    ('121 minutes', '1 microsecond')
    """
    unit_us = max((unit for unit in UNIT_US.values() if duration_us >= 10 * unit), default=1)
    return format_duration(ceil(duration_us / unit_us) * unit_us)
