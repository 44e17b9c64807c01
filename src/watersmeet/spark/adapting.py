"""Plans that change by themselves on Spark: micro-batches tell the controller of rates, and sites go over.

Rates are rows by event time, so that a run that catches up decides like one that keeps up. Deciding may take a second;
it has a thread of its own, and no micro-batch waits for it.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from watersmeet.adapt.controller import GoOver
from watersmeet.adapt.decisions import Decisions
from watersmeet.metrics.events import Event, MicroBatchCompleted, RunEnded, RunWarning


class PlanAdapter:
    """A reader of a run's events that has plans changed."""

    def __init__(
        self, decisions: Decisions, go_over: Callable[[GoOver], object], publish: Callable[[Event], object]
    ) -> None:
        self._decisions = decisions
        self._go_over = go_over
        self._publish = publish
        self._thread = ThreadPoolExecutor(1, "adapt")
        self._reached_us: dict[str, int] = {}  # by stream
        self._rows: dict[str, int] = {}  # since then

    def __call__(self, at: float, event: Event) -> None:
        if isinstance(event, MicroBatchCompleted):
            with suppress(RuntimeError):  # it is over
                self._thread.submit(self._take, event)
        elif isinstance(event, RunEnded):
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
                    self._decisions.ingested(stream, rows, (mark - before) / 1e6, mark)
        if self._reached_us:
            changes, events = self._decisions.decide(max(self._reached_us.values()))
            for one in events:
                self._publish(one)
            for change in changes:
                self._go_over(change)
