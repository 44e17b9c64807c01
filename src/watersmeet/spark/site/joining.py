"""The second half of a micro-batch: what was ingested, and what has come over the links, is joined and committed.

It runs beside the ingestion of the next micro-batch; which parcels are taken is decided by the ledger alone.
"""

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from watersmeet.errors import WatersmeetError
from watersmeet.metrics.describe import link_events
from watersmeet.metrics.events import MicroBatchCompleted
from watersmeet.program.site.engine import Arrivals
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.waiting import awaited_queries, waiting_rows, why_answers_wait
from watersmeet.query.windows import END_US
from watersmeet.spark.site.idle import IdleStreams
from watersmeet.spark.site.observations import hand_on
from watersmeet.spark.site.reports import completed
from watersmeet.spark.site.settings import PhaseTimer
from watersmeet.spark.site.state import SiteState


class SiteJoin:
    """Joins, commits, and gives answers to sinks and parcels to links."""

    def __init__(self, state: SiteState, idle: IdleStreams) -> None:
        self._state = state
        self._idle = idle
        self._worker = ThreadPoolExecutor(1, f"join-{state.site}")
        self._completing: Future[bool] | None = None
        self._failure: BaseException | None = None
        self._batch_at_start = state.ledger.ingested_batch
        self._reported_ledger = state.ledger  # as of the last report
        self.last_batch: MicroBatchCompleted | None = None

    def begin(self, timer: PhaseTimer) -> None:
        """Join what was ingested, in a thread."""
        self._completing = self._worker.submit(self.complete, timer)
        self._completing.add_done_callback(lambda done: self._state.failed(e) if (e := done.exception()) else None)

    def await_completion(self) -> None:
        """Wait until what was ingested is joined; raises what went wrong."""
        if self._completing is not None:
            self._completing.result()

    def has_joined(self, timeout_s: float) -> bool:
        """Wait until everything that was ingested is joined; whether it is, within the timeout."""
        return _are_done([self._completing], timeout_s)

    def has_delivered(self, timeout_s: float) -> bool:
        """Wait until the sinks have all answers; whether they have, within the timeout."""
        for delivery in self._state.deliveries:
            delivery.flush(self._state.failed)
        return _are_done(self._state.deliveries.pending, timeout_s)

    def take_parcels(self) -> bool:
        """Join what has come over the links, without new rows; whether anything had come."""
        return self.complete(PhaseTimer())

    def drain(self) -> bool:
        """The input has ended, and with it time: rows that wait for their order do not wait any more."""
        return self.complete(PhaseTimer(), dict.fromkeys(self._state.streams, END_US))

    def complete(self, timer: PhaseTimer, ended: Mapping[str, int] | None = None) -> bool:
        """Join what was ingested and what has come over the links; whether there was anything.

        A micro-batch that has failed is not tried again before the next start, by whichever thread.
        """
        with self._state.lock:
            if self._failure is not None:
                raise self._failure
            try:
                has_joined = self._join(timer, ended or {})
            except BaseException as error:
                self._failure = error
                raise
        if has_joined:
            self._state.forget_unused()
        return has_joined

    def _join(self, timer: PhaseTimer, ended: Mapping[str, int]) -> bool:
        state = self._state
        before = state.ledger
        ledger = state.released(before)
        parcels, runs = state.links.parcels(ledger)
        idle = {**self._idle.declare(), **ended}
        has_notes = any(link.notes for link in before.links.values())
        if not parcels and not idle and not has_notes and before.is_complete:
            return False
        timer.lap("take")
        if before.ingested_batch > before.batch:
            was_begun = before.ingested_batch <= self._batch_at_start  # perhaps, by a run before this one
            state.late.keep(before.ingested, before.ingested_batch, replay=was_begun)
        after = state.engine.run(ledger, Arrivals(parcels, idle))
        timer.lap("join")
        state.checkpoint.commit(replace(after, peers={**after.peers, **runs}))
        timer.lap("commit")
        hand_on(state, parcels, before)
        state.reports.begun(after.number, timer.began)
        state.publish()
        self.acknowledge()
        state.deliveries.give(state.ledger, state.failed)
        timer.lap("publish")
        self._report(before, timer)
        return True

    def acknowledge(self) -> None:
        """Let senders know what the ledger has of them."""
        with self._state.lock:  # micro-batches and the watcher both acknowledge; a transport has one writer at a time
            self._state.links.acknowledge(self._state.ledger, self._idle.pace())

    def tell_what_waits(self) -> bool:
        """Say how many answers wait for watermarks, or why some do where other sites have a part; whether any do."""
        state = self._state
        with state.lock:
            reasons = why_answers_wait(state.program, state.ledger)
            if not reasons or self._failure is not None:
                return False
            text = "; ".join(reasons)
            if not state.program.peers_in and not state.program.peers_out:
                with contextlib.suppress(WatersmeetError):  # an expression fails for one of them: not yet
                    # The engine is a function: nothing of this is committed.
                    after = state.engine.run(state.ledger, Arrivals((), dict.fromkeys(state.streams, END_US)))
                    counts = [(after.rows_out, 1), (state.ledger.rows_out, -1)]
                    awaited = awaited_queries(state.program)
                    answers = sum(sign * of.get(query, 0) for of, sign in counts for query in awaited)
                    if not answers and not waiting_rows(state.ledger):
                        return False
                    text = f"{answers:,} answers are not given yet: {text}"
            state.warnings.say("waiting", f"{text}; more rows release them, or `--once --drain` if none will come")
            return True

    def _report(self, before: SiteLedger, timer: PhaseTimer) -> None:
        state, ledger = self._state, self._state.ledger
        self.last_batch = completed(
            *(state.program, before, ledger, self._reported_ledger, timer.phases, timer.seconds),
            watermarks=state.engine.watermarks(ledger),
        )
        self._reported_ledger = ledger
        state.late_watch.look(ledger.streams)
        state.events.publish(self.last_batch)
        for sent in link_events(state.program, ledger):
            state.events.publish(sent)

    def close(self) -> None:
        """Wait for the join under way, and begin no other."""
        self._worker.shutdown(wait=True)


def _are_done(futures: Sequence[Future[Any] | None], timeout_s: float) -> bool:
    """Whether things are done within the timeout; raises what went wrong in one."""
    done, waiting = wait([future for future in futures if future is not None], timeout_s)
    for future in done:
        future.result()
    return not waiting
