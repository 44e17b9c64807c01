"""A site goes over to other plans and queries, at the instants that sites agree on, and leaves behind what is over."""

import threading
from dataclasses import replace

from watersmeet.metrics.describe import program_event
from watersmeet.metrics.events import QueryEnded, VersionDropped
from watersmeet.program.finish.failed import failed_sink
from watersmeet.program.site.adoption import adopt, drop, finished
from watersmeet.program.site.agreement import proposer_of
from watersmeet.program.site.changes import Change, check_change
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.spark.changes import change_events
from watersmeet.spark.site.idle import IdleStreams
from watersmeet.spark.site.joining import SiteJoin
from watersmeet.spark.site.state import SiteState


class SiteTakeover:
    """Takes requests for changes, and replaces the program of the site."""

    def __init__(self, state: SiteState, idle: IdleStreams, join: SiteJoin) -> None:
        self._state = state
        self._idle = idle
        self._join = join
        self._reporting = threading.Lock()
        self._reported_changes = state.versions.changes

    def request(self, change: Change) -> None:
        """Ask for a change of plans or queries, which all sites go over to when they have agreed.

        One that comes after others is judged when it is its turn.
        """
        state = self._state
        if not state.versions.under_way:
            check_change(state.versions.deployment, change)
        with state.lock:
            state.checkpoint.commit(state.engine.request(state.ledger, change))
        self._join.take_parcels()

    def go_over_between_batches(self) -> None:
        """Go over to what sites have agreed on, and leave behind what is over, unless a micro-batch does."""
        if self._is_due and self._state.gate.acquire(blocking=False):
            try:
                self.go_over()
            finally:
                self._state.gate.release()

    @property
    def _is_due(self) -> bool:
        return self._state.versions.is_decided or bool(self._over(self._state.program, self._state.ledger))

    def _over(self, program: SiteProgram, ledger: SiteLedger) -> tuple[str, ...]:
        """Joins that have nothing left to do here, and whose last answers the sinks have."""
        if all(part.is_in_force for part in program.parts):
            return ()
        over = finished(program, ledger)
        staying = {finish.query for part, finish in program.finishes if part.name not in over}
        waiting = set()
        for delivery in self._state.deliveries.behind(ledger):
            waiting.add(delivery.query.removeprefix(failed_sink("")))
            if over and delivery.query not in staying:
                delivery.flush(self._state.failed)
        return tuple(name for name in over if not waiting & (set(program.part(name).queries) - staying))

    def go_over(self) -> None:
        """Go over, with the gate held, if it is time; otherwise nothing is done."""
        if not self._is_due:
            return
        self._join.await_completion()
        state = self._state
        with state.lock:
            before, ledger, engine = state.versions, state.released(state.ledger), state.engine
            if not ledger.is_complete:
                return
            if before.is_decided:
                assert before.proposal is not None
                state.settings.catalogue.adopt(before.proposal.change, before.proposal.number)
                engine, ledger = adopt(engine, ledger)
                for delivery in state.deliveries.open(engine.program):
                    delivery.roll_back(ledger.number, (), state.start)
                state.checkpoint.expect(engine.program.revision, state.identity(engine.versions(ledger).deployment))
            if over := self._over(engine.program, ledger):
                engine, ledger = drop(engine, ledger, over)
            state.checkpoint.commit(ledger)
            state.engine, state.program, state.links.program = engine, engine.program, engine.program
            self._follow_program()
            state.publish()
            self._join.acknowledge()
        state.events.publish(program_event(state.program))
        self.report()
        for name in over:
            state.events.publish(VersionDropped(state.site, name))

    def _follow_program(self) -> None:
        """Let streams, late rows and answers of queries that came come, and of queries that have ended end."""
        state = self._state
        catalogue, program = state.settings.catalogue, state.program
        state.write_program()
        state.write_watermarks()
        state.intake = replace(state.intake, program=program, topology=catalogue.topology, schemas=catalogue.schemas)
        if state.new_files is not None:
            state.new_files.follow(state.intake.listings or {})
        state.tables = replace(state.tables, topology=catalogue.topology, schemas=catalogue.schemas)
        state.late.follow(catalogue.topology, state.local_schemas, state.ledger.ingested_batch, state.start)
        state.late_watch.follow(catalogue.topology)
        state.observed.follow(program)
        self._idle.follow()
        ledger = state.ledger
        for delivery in state.deliveries.end(program):
            ledger = state.engine.delivered(ledger, delivery.query, delivery.delivered)
            if not delivery.query.startswith(failed_sink("")):
                state.events.publish(QueryEnded(state.site, delivery.query))
        if ledger is not state.ledger:
            state.checkpoint.commit(ledger)

    def report_if_any(self) -> None:
        """Tell what became of changes that were decided elsewhere."""
        if self._state.versions.changes > self._reported_changes:
            self.report()

    def report(self) -> None:
        """Tell what became of changes, once a process."""
        state = self._state
        with self._reporting:
            now = state.versions
            if state.settings.alone or state.site == proposer_of(now.deployment):
                for entry in now.changes_after(self._reported_changes):
                    for event in change_events(entry, now.deployment):
                        state.events.publish(event)
            self._reported_changes = now.changes

    @property
    def is_settled(self) -> bool:
        """Whether no change is under way or queued here, and what became of all is told."""
        versions = self._state.versions
        return not versions.under_way and self._reported_changes == versions.changes
