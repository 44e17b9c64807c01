"""What a site reports: its micro-batches, signs of life, what waits there, and answers that are delivered."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.describe import central_bytes
from watersmeet.metrics.events import AnswerSample, AnswersDelivered, MicroBatchCompleted, SiteStatus
from watersmeet.metrics.jsonl import WATCHED
from watersmeet.program.finish.failed import failed_sink
from watersmeet.program.site.ledger import Answers, SiteLedger, failed_counts
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.deliver.delivery import Delivery

STATUS_S = 2.0  # how often a site says that it is alive
_WATCHED_S = 10.0  # after which nobody looks any more
_SAMPLE_S = 1.0  # at most one sample of a query in so long
_SAMPLE_ROWS = 20
_MOST_BEGUN = 1_000  # micro-batches whose beginning is remembered, beyond what any sink is behind


class SiteReports:
    """Publishes them, at most as often as somebody needs them."""

    def __init__(self, site: str, checkpoint: Path, events: EventBus) -> None:
        self._site = site
        self._events = events
        self._watched = checkpoint / WATCHED
        self._begun: dict[int, float] = {}  # by micro-batch of the site
        self._sampled: dict[str, float] = {}  # by query
        self._status_at = -math.inf

    def begun(self, batch: int, at: float) -> None:
        """Remember when a micro-batch of the site began, by the performance counter."""
        self._begun[batch] = at
        if len(self._begun) > _MOST_BEGUN:
            del self._begun[next(iter(self._begun))]

    @property
    def is_status_due(self) -> bool:
        """Whether it is time to say that the site is alive."""
        return time.monotonic() - self._status_at >= STATUS_S

    def status(
        self,
        backlog: Mapping[str, int],
        deliveries: Iterable[Delivery],
        latency_s: Mapping[str, float],
        is_held_back: bool,
    ) -> None:
        """Say what waits."""
        self._status_at = time.monotonic()
        undelivered = {
            delivery.query: delivery.backlog
            for delivery in deliveries
            if not delivery.query.startswith(failed_sink(""))
        }
        self._events.publish(SiteStatus(self._site, dict(backlog), undelivered, dict(latency_s), is_held_back))

    def delivered(self, delivery: Delivery, held: Sequence[Answers]) -> None:
        """Say that a sink has answers, how long that took, and what they are if somebody looks."""
        rows = sum(answers.rows for answers in held)
        if not rows or delivery.query.startswith(failed_sink("")):
            return
        now = time.perf_counter()
        for answers in held:
            if answers.rows and (began := self._begun.get(answers.batch)) is not None:
                self._events.publish(AnswersDelivered(self._site, delivery.query, answers.rows, now - began))
        if now - self._sampled.get(delivery.query, -math.inf) >= _SAMPLE_S and self._is_watched:
            self._sampled[delivery.query] = now
            last = next(answers for answers in reversed(held) if answers.rows)
            table = delivery.sample(last, _SAMPLE_ROWS)
            columns = [list(map(_plain, column.to_pylist())) for column in table.columns]
            names = tuple(table.column_names)
            self._events.publish(AnswerSample(delivery.query, names, tuple(zip(*columns, strict=True))))

    @property
    def _is_watched(self) -> bool:
        try:
            return time.time() - self._watched.stat().st_mtime < _WATCHED_S
        except OSError:
            return False


def completed(
    program: SiteProgram,
    before: SiteLedger,
    after: SiteLedger,
    reported: SiteLedger,
    phases: Mapping[str, float],
    seconds: float,
    *,
    watermarks: Mapping[str, int | None],
) -> MicroBatchCompleted:
    """What a micro-batch did: the ledgers before and after it, and that of the last report."""
    counts: dict[str, dict[str, int]] = {"rows": {}, "late": {}, "malformed": {}}
    for found in before.ingested:
        for name, of in counts.items():
            of[found.stream] = of.get(found.stream, 0) + getattr(found, name)
    segments = list(after.segments)
    return MicroBatchCompleted(
        site=program.site,
        batch=after.number,
        seconds=seconds,
        phases=dict(phases),
        rows_in=counts["rows"],
        late=counts["late"],
        malformed=counts["malformed"],
        null_keys=sum(sum(found.null_keys.values()) for found in before.ingested),
        failed=failed_counts(before, after),
        answers={query: after.rows_out.get(query, 0) - before.rows_out.get(query, 0) for query in program.answered},
        watermarks=dict(watermarks),
        state_rows=sum(segment.rows for segment in segments),
        state_bytes=sum(segment.bytes for segment in segments),
        segments=len(segments),
        central_bytes=central_bytes(reported, after),
    )


def _plain(value: Any) -> Any:
    """A value that JSON has, else its text."""
    is_plain = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else str(value)
