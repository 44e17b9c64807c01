"""Plans that change by themselves on Spark: sites tell the controller what they observe, and go over to its plans.

Rates are rows by event time, so that a run that catches up decides like one that keeps up. Values come from the
sketches that ingest tasks make, of one micro-batch in a few. What a parcel takes until it is acknowledged includes the
wait for micro-batches at both ends, so a link counts as slower only if even the fastest of a few parcels takes more
than a trigger longer than the fastest ever did. Deciding may take a second; it has a thread of its own, and no
micro-batch waits for it.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from watersmeet.adapt.controller import GoOver
from watersmeet.adapt.decisions import Decisions
from watersmeet.adapt.exchange import (
    LEAST_SILENT_S,
    SILENT_TRIGGERS,
    InForce,
    SiteDecisions,
    pack_message,
    unpack_message,
)
from watersmeet.metrics.events import (
    Event,
    MicroBatchCompleted,
    QueryAdded,
    QueryRemoved,
    RunEnded,
    RunWarning,
    SiteStatus,
)
from watersmeet.program.site.deployment import first_joins
from watersmeet.program.site.matches import matches_since
from watersmeet.query.windows import END_US
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Link

if TYPE_CHECKING:
    from watersmeet.spark.site.job import SiteJob

_PARCELS = 5  # of which the fastest counts


@dataclass
class _LinkTimes:
    """What parcels between two sites took: the least ever, and the latest few."""

    least_s: float = float("inf")
    latest: list[tuple[int, float]] = field(default_factory=list)


class Observations:
    """What the sites of a run have observed and the controller has not got yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketches: dict[str, list[str]] = {}  # by stream: those of the latest micro-batch
        self._links: dict[tuple[str, str], _LinkTimes] = {}
        self._reported: list[tuple[str, str]] = []  # by other sites, before anybody listens
        self._listener: Callable[[str, str], object] | None = None

    def reported(self, sender: str, text: str) -> None:
        """Another site reports what it observes, or asks."""
        with self._lock:
            if self._listener is None:
                self._reported.append((sender, text))
                return
        self._listener(sender, text)

    def listen(self, listener: Callable[[str, str], object]) -> None:
        """Hand on what other sites report, from the start on."""
        with self._lock:
            self._listener, reported = listener, self._reported
        for sender, text in reported:
            listener(sender, text)

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


class _Reader:
    """Takes what sites ingest from the events of a run."""

    def __init__(self, decisions: Decisions, observations: Observations, jobs: "Iterable[SiteJob]") -> None:
        self._decisions = decisions
        self._observations = observations
        self._jobs = {job.site: job for job in jobs}
        self._matched: dict[str, tuple[int, Mapping[str, int]]] = {}  # by site: until when, and what was found by then
        self._reached_us: dict[str, int] = {}  # by stream
        self._rows: dict[str, int] = {}  # since then

    def take(self, event: MicroBatchCompleted) -> int | None:
        """Note the rows of a micro-batch and how fast links are; the event time that streams have come to."""
        for stream, mark in event.watermarks.items():
            if mark is None or mark >= END_US:
                continue
            before = self._reached_us.get(stream)
            self._rows[stream] = self._rows.get(stream, 0) + event.rows_in.get(stream, 0)
            if before is None or mark > before:
                self._reached_us[stream], rows = mark, self._rows.pop(stream)
                if before is not None:  # the first rows are of a time that nobody knows
                    is_due = self._decisions.wants_sketch(stream, mark)
                    sketch = self._observations.sketch_of(stream) if is_due else None
                    self._decisions.ingested(stream, rows, (mark - before) / 1e6, mark, sketch)
        now_us = max(self._reached_us.values(), default=None)
        if now_us is not None and event.site in self._jobs:
            self._count_matches(self._jobs[event.site], now_us)
        return now_us

    def _count_matches(self, job: "SiteJob", now_us: int) -> None:
        """Note what the joins of a site have found since event time was last seen to go on."""
        since_us, before = self._matched.get(job.site, (now_us, job.ledger.matched))
        if now_us > since_us:
            after, program = job.ledger.matched, job.program
            if counts := matches_since(program, before, after):
                self._decisions.matched(counts, (now_us - since_us) / 1e6, now_us)
            self._matched[job.site] = (now_us, after)
        else:
            self._matched.setdefault(job.site, (since_us, before))

    def time_links(self, now_us: int) -> None:
        """Note links that are slower than they were."""
        for sender, reader, size, longer_s in self._observations.slower_links(self._decisions.trigger_us / 1e6):
            link = self._decisions.controller.topology.link(sender, reader)
            self._decisions.transferred(sender, reader, size, _seconds(link, size) + longer_s, now_us)


class PlanAdapter:
    """A reader of a run's events that has plans changed, where all sites are in one process."""

    def __init__(
        self,
        decisions: Decisions,
        observations: Observations,
        go_over: Callable[[GoOver], object],
        publish: Callable[[Event], object],
        jobs: "Iterable[SiteJob]" = (),
        begin: Callable[[str], object] = lambda query: None,
    ) -> None:
        """`begin` is called, in the thread that decides, for a query that was added or asks for something else."""
        self._decisions = decisions
        self._reader = _Reader(decisions, observations, jobs)
        self._go_over = go_over
        self._publish = publish
        self._begin = begin
        self._thread = ThreadPoolExecutor(1, "adapt")

    def __call__(self, at: float, event: Event) -> None:
        match event:
            case MicroBatchCompleted():
                self._submit(self._decide, event)
            case QueryAdded(query=query):  # also one that is replaced
                self._submit(self._take_up, query)
            case QueryRemoved(query=query):
                self._submit(self._decisions.forget, query)
            case RunEnded():
                self._end()

    def _take_up(self, query: str) -> None:
        self._decisions.forget(query)
        self._begin(query)

    def _submit(self, what: Callable[[Any], object], argument: object) -> None:
        with suppress(RuntimeError):  # it is over
            self._thread.submit(self._try, what, argument)

    def _end(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _try(self, what: Callable[[Any], object], argument: object) -> None:
        try:
            what(argument)
        except Exception as error:  # answers do not depend on it: the run goes on with the plans that it has
            self._publish(RunWarning(None, None, f"plans no longer change by themselves: {error}"))
            self._end()

    def _decide(self, event: MicroBatchCompleted) -> None:
        now_us = self._reader.take(event)
        if now_us is not None:
            self._reader.time_links(now_us)
            self._carry_out(*self._decisions.decide(now_us))

    def _carry_out(self, changes: Iterable[GoOver], events: Iterable[Event]) -> None:
        for event in events:
            self._publish(event)
        for change in changes:
            self._go_over(change)


class SitePlanAdapter(PlanAdapter):
    """The same for a site that runs by itself: it tells others what it observes, and decides if it is its turn."""

    def __init__(
        self,
        decisions: SiteDecisions,
        observations: Observations,
        job: "SiteJob",
        go_over: Callable[[GoOver], object],
        publish: Callable[[Event], object],
        begin: Callable[[str], object] = lambda query: None,
    ) -> None:
        super().__init__(decisions.own, observations, go_over, publish, begin=begin)
        self._site = decisions
        self._job = job
        observations.listen(lambda sender, text: self._submit(self._hear, (sender, text)))

    def __call__(self, at: float, event: Event) -> None:
        if isinstance(event, SiteStatus):
            self._submit(self._step, None)
        else:
            super().__call__(at, event)

    def _hear(self, said: tuple[str, str]) -> None:
        sender, text = said
        with suppress(ValueError):  # of another release: what it observes is not known here
            self._site.hear(sender, unpack_message(text))

    def _decide(self, event: MicroBatchCompleted) -> None:
        self._step(self._reader.take(event))

    def _step(self, reached_us: int | None) -> None:
        known = [us for us in (reached_us, self._job.observations.reached_us) if us is not None]
        if not known:
            return
        now_us = max(known)
        self._reader.time_links(now_us)
        versions, limit_s = self._job.versions, max(SILENT_TRIGGERS * self._site.trigger_s, LEAST_SILENT_S)
        silent = {site for site, seconds in self._job.observations.silent_s().items() if seconds >= limit_s}
        in_force = InForce(first_joins(versions.deployment), versions.changes, self._job.is_settled)
        outcome = self._site.decide(now_us, time.monotonic(), silent, in_force)
        for to, message in outcome.messages:
            self._job.observations.report(to, pack_message(message))
        self._carry_out(outcome.changes, outcome.events)


def _seconds(link: Link, size: int) -> float:
    """What a parcel takes by the figures of the topology."""
    return link.latency_us / 1e6 + (8 * size / link.bandwidth_bps if link.bandwidth_bps else 0.0)
