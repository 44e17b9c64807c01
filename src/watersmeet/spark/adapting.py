"""Plans that change by themselves on Spark: sites tell the controller what they observe, and go over to its plans.

Rates are rows by event time, so that a run that catches up decides like one that keeps up. Values come from the
sketches that ingest tasks make, of one micro-batch in a few. What a parcel takes until it is acknowledged includes the
wait for micro-batches at both ends, so a link counts as slower only if even the fastest of a few parcels takes more
than a trigger longer than the fastest ever did. Deciding may take a second; it has a thread of its own, and no
micro-batch waits for it.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from watersmeet.adapt.controller import GoOver
from watersmeet.adapt.decisions import Decisions
from watersmeet.metrics.events import Event, MicroBatchCompleted, QueryAdded, QueryRemoved, RunEnded, RunWarning
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Link

_PARCELS = 5  # of which the fastest counts


@dataclass
class _LinkTimes:
    """What parcels between two sites took: the least ever, and the latest few."""

    least_s: float = float("inf")
    latest: list[tuple[int, float]] = field(default_factory=list)


class Observations:
    """What the sites of a run have observed and the controller has not been told yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketches: dict[str, list[str]] = {}  # by stream: those of the latest micro-batch
        self._links: dict[tuple[str, str], _LinkTimes] = {}

    def sketched(self, stream: str, sketches: list[str]) -> None:
        """The tasks of a micro-batch have sketched rows of a stream."""
        with self._lock:
            self._sketches[stream] = sketches

    def acknowledged(self, sender: str, reader: str, size: int, seconds: float) -> None:
        """A parcel was acknowledged so long after it was published."""
        with self._lock:
            times = self._links.setdefault((sender, reader), _LinkTimes())
            times.latest.append((size, seconds))

    def sketch_of(self, stream: str) -> StreamSketch | None:
        """A sketch of the latest rows of a stream, once."""
        with self._lock:
            texts = self._sketches.pop(stream, None)
        if not texts:
            return None
        whole = StreamSketch()
        for text in texts:
            whole.merge(StreamSketch.from_data(json.loads(text)))
        return whole

    def slower_links(self, wait_s: float) -> Iterator[tuple[str, str, int, float]]:
        """Sender, reader, bytes and how much longer than ever a parcel took, beyond the wait for micro-batches."""
        with self._lock:
            for (sender, reader), times in self._links.items():
                if len(times.latest) >= _PARCELS:
                    size, seconds = min(times.latest, key=lambda one: one[1])
                    times.least_s = min(times.least_s, seconds)
                    times.latest.clear()
                    yield sender, reader, size, max(seconds - times.least_s - wait_s, 0.0)


class PlanAdapter:
    """A reader of a run's events that has plans changed."""

    def __init__(
        self,
        decisions: Decisions,
        observations: Observations,
        go_over: Callable[[GoOver], object],
        publish: Callable[[Event], object],
    ) -> None:
        self._decisions = decisions
        self._observations = observations
        self._go_over = go_over
        self._publish = publish
        self._thread = ThreadPoolExecutor(1, "adapt")
        self._reached_us: dict[str, int] = {}  # by stream
        self._rows: dict[str, int] = {}  # since then

    def __call__(self, at: float, event: Event) -> None:
        match event:
            case MicroBatchCompleted():
                with suppress(RuntimeError):  # it is over
                    self._thread.submit(self._take, event)
            case QueryAdded(query=query) | QueryRemoved(query=query):  # one that is replaced is added
                with suppress(RuntimeError):
                    self._thread.submit(self._decisions.forget, query)
            case RunEnded():
                self._end()

    def _end(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _take(self, event: MicroBatchCompleted) -> None:
        try:
            self._decide(event)
        except Exception as error:  # answers do not depend on it: the run goes on with the plans that it has
            self._publish(RunWarning(None, None, f"plans no longer change by themselves: {error}"))
            self._end()

    def _decide(self, event: MicroBatchCompleted) -> None:
        for stream, mark in event.watermarks.items():
            if mark is None:
                continue
            before = self._reached_us.get(stream)
            self._rows[stream] = self._rows.get(stream, 0) + event.rows_in.get(stream, 0)
            if before is None or mark > before:
                self._reached_us[stream], rows = mark, self._rows.pop(stream)
                if before is not None:  # the first rows are of a time that nobody knows
                    is_due = self._decisions.wants_sketch(stream, mark)
                    sketch = self._observations.sketch_of(stream) if is_due else None
                    self._decisions.ingested(stream, rows, (mark - before) / 1e6, mark, sketch)
        if self._reached_us:
            now_us = max(self._reached_us.values())
            for sender, reader, size, longer_s in self._observations.slower_links(self._decisions.trigger_us / 1e6):
                link = self._decisions.controller.topology.link(sender, reader)
                self._decisions.transferred(sender, reader, size, _seconds(link, size) + longer_s, now_us)
            changes, events = self._decisions.decide(now_us)
            for one in events:
                self._publish(one)
            for change in changes:
                self._go_over(change)


def _seconds(link: Link, size: int) -> float:
    """What a parcel takes by the figures of the topology."""
    return link.latency_us / 1e6 + (8 * size / link.bandwidth_bps if link.bandwidth_bps else 0.0)
