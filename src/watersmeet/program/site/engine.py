"""The engine of a site: a pure function (ledger, arrivals) -> (ledger, outbox, answers), one micro-batch at a time.

A micro-batch takes new rows of the site's own streams and parcels from other sites, runs the operators to the end, and
leaves parcels in the outbox and answers to be delivered. The ledger that it returns is the whole state; a runtime makes
it durable first and delivers after that.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from watersmeet.program.finish.model import Evaluator
from watersmeet.program.site.agreement import (
    NOTHING_HELD,
    Judge,
    Note,
    Observed,
    Request,
    Versions,
    accept,
    insist,
    pack_notes,
    step,
)
from watersmeet.program.site.answering import Answering
from watersmeet.program.site.arrivals import Release, Unpack
from watersmeet.program.site.changes import Change, cause_against, replanned_tables
from watersmeet.program.site.deployment import Deployment
from watersmeet.program.site.derived import DeriveRows, no_derived_rows
from watersmeet.program.site.filing import Made
from watersmeet.program.site.inbound import TypeOf, no_types
from watersmeet.program.site.ledger import Answers, Ingested, LinkState, SiteLedger, StreamState, Traffic, watermark
from watersmeet.program.site.matches import counted, matched_flows
from watersmeet.program.site.nearest import Distance, Holding, with_past
from watersmeet.program.site.outbox import send
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.receiving import receive
from watersmeet.program.site.retention import readers_of
from watersmeet.program.site.round import Round
from watersmeet.program.site.rounds import Rounds, rounds_of, segments_made
from watersmeet.program.site.streams import StreamScan, clock_flow
from watersmeet.program.site.tasks import RunTasks
from watersmeet.program.site.tidying import tidy
from watersmeet.program.site.watermarks import paced, spread
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.wire import UNKNOWN, ParcelIndex
from watersmeet.query.windows import END_US, TABLE_US


@dataclass(frozen=True)
class Arrivals:
    """What a micro-batch starts from beside what was ingested; parcels in the order in which each site sent them."""

    parcels: Sequence[tuple[str, str, ParcelIndex]] = ()  # sender, where it is, what is in it
    declared: Mapping[str, int] = field(default_factory=dict)  # instants to which idle streams are taken to have come


class SiteEngine:
    """Runs the micro-batches of one site; holds no state."""

    def __init__(
        self,
        program: SiteProgram,
        delays_us: Mapping[str, int],
        shelf: Shelf,
        run_tasks: RunTasks[Any],
        evaluate: Evaluator,
        buckets: int = 1,
        rows_a_bucket: int = 5_000,
        *,
        derive: DeriveRows = no_derived_rows,
        slack_us: int = 0,
        judge: Judge = accept,
        distances: Mapping[str, Distance] | None = None,
        type_of: TypeOf = no_types,
    ) -> None:
        self.program = program
        self.type_of = type_of
        self._distances = distances or {}  # how near other sites are, where that is known
        self._slack_us = slack_us  # event time that may go by while sites agree on a change, before any has to wait
        self._judge = judge
        self.shelf = shelf
        self.buckets = buckets
        self._rows_a_bucket = rows_a_bucket
        self._delays_us = delays_us
        self._run_tasks = run_tasks
        self._evaluate = evaluate
        self._derive = derive
        self._answering = Answering(program, shelf, run_tasks, evaluate, self._buckets_for)
        self._rounds = [rounds_of(program, level) for level in program.strata]
        self._readers = readers_of(program)
        self._matched = matched_flows(program) if program.history else {}  # where plans may change
        self._local_tables = frozenset(scan.stream for scan in program.streams if scan.is_table)

    def with_program(self, program: SiteProgram) -> "SiteEngine":
        """The same engine for another program of the site."""
        return SiteEngine(
            *(program, self._delays_us, self.shelf, self._run_tasks, self._evaluate, self.buckets),
            rows_a_bucket=self._rows_a_bucket,
            derive=self._derive,
            slack_us=self._slack_us,
            judge=self._judge,
            distances=self._distances,
            type_of=self.type_of,
        )

    def regrouped(self, ledger: SiteLedger, program: SiteProgram) -> SiteLedger:
        """The ledger with partial records where the next program of the site looks for them."""
        return self._answering.regrouped(ledger, program)

    def detached(self, ledger: SiteLedger, program: SiteProgram) -> SiteLedger:
        """The ledger with what queries still need of joins that are over, for the program without these."""
        return self._answering.detached(ledger, program)

    def versions(self, ledger: SiteLedger) -> Versions:
        """What the site knows of versions."""
        return read_versions(self.shelf, ledger)

    def admits(self, ledger: SiteLedger, found: Iterable[Ingested]) -> bool:
        """Whether rows that were found may be ingested before the next revision is adopted."""
        hold_us = ledger.hold_us
        return hold_us is None or all(ingested.max_ts is None or ingested.max_ts <= hold_us for ingested in found)

    def request(self, ledger: SiteLedger, change: Change) -> SiteLedger:
        """Ask for a change; it is proposed to all sites when those before it are settled."""
        return self._agree(ledger, [(self.program.site, Request(change))])

    def insist(self, ledger: SiteLedger) -> SiteLedger:
        """Ask the other sites what they have promised, since nobody says what was decided."""
        versions, out = insist(self.versions(ledger), self.program.site)
        return self._with_notes(ledger, versions, out) if out else ledger

    def report(self, ledger: SiteLedger, to: str, text: str) -> SiteLedger:
        """Have the next parcel to another site say what is observed here."""
        link = ledger.links.get(to, LinkState())
        reporting = replace(link, notes=(*link.notes, pack_notes([Observed(text)])))
        return replace(ledger, links={**ledger.links, to: reporting})

    def continued(self, ledger: SiteLedger) -> SiteLedger:
        """Propose the next change, if one waits and this site is the one to propose it."""
        return self._agree(ledger, ())

    def _agree(self, ledger: SiteLedger, notes: Sequence[tuple[str, Note]]) -> SiteLedger:
        """Take notes about the next revision; the answers go with the next parcels."""
        before = self.versions(ledger)

        def judge(change: Change) -> str:
            return self._judge(change) or cause_against(before.deployment, change)

        holding = self._holding(before.deployment, ledger)
        versions, out = step(before, self.program.site, partial(self._bound_us, ledger), notes, judge, holding)
        return ledger if versions == before else self._with_notes(ledger, versions, out)

    def _with_notes(self, ledger: SiteLedger, versions: Versions, out: Sequence[tuple[str, Note]]) -> SiteLedger:
        links = dict(ledger.links)
        for to, note in out:
            link = links.get(to, LinkState())
            links[to] = replace(link, notes=(*link.notes, pack_notes([note])))
        path = write_versions(self.shelf, versions)
        return replace(ledger, links=links, versions=path, hold_us=versions.hold_us(self.program.site))

    def _bound_us(self, ledger: SiteLedger, change: Change) -> int:
        """Up to which instant rows may come before the site goes over to a change.

        Of a table only the version in force now is kept for other plans: these begin after its instant.
        """
        tables = {scan.stream for scan in self.versions(ledger).deployment.scans if scan.is_table}
        # Also of streams that nobody reads now: their rows are not read again.
        states = [state for name, state in ledger.streams.items() if name not in tables]
        marks = [mark for state in states for mark in (state.max_ts, state.declared) if mark is not None]
        seen = [mark for mark in marks if mark < END_US]
        versions = [ledger.streams[name].max_ts for name in replanned_tables(change) if name in ledger.streams]
        read = [instant for instant in versions if instant is not None and instant != TABLE_US]
        bounds = [max(seen) + self._slack_us] if seen else []
        return max([*bounds, *read], default=UNKNOWN)

    def _holding(self, deployment: Deployment, ledger: SiteLedger) -> Holding:
        """What the site could send of the past; where a stream has ended, rows that others need may be evicted."""
        if not deployment.history or len(deployment.sites) < 3 or not self._distances:
            return NOTHING_HELD
        names = {sent.name for sent in deployment.sent if sent.to == self.program.site}
        marks = {name: mark for name, mark in sorted(ledger.watermarks.items()) if name in names}
        return Holding({} if END_US in ledger.watermarks.values() else marks, self._distances)

    def watermarks(self, ledger: SiteLedger) -> dict[str, int | None]:
        """The watermark of every stream that arrives here."""
        return {
            scan.stream: watermark(ledger.streams.get(scan.stream), self._delays_us[scan.stream])
            for scan in self.program.sources
        }

    def acknowledged(self, ledger: SiteLedger, to: str, number: int) -> SiteLedger:
        """The ledger without the parcels that a reader has made durable."""
        link = ledger.links.get(to, LinkState())
        rest = tuple(parcel for parcel in link.outbox if parcel.number > number)
        if len(rest) == len(link.outbox):
            return ledger
        return replace(ledger, links={**ledger.links, to: replace(link, outbox=rest)})

    def delivered(self, ledger: SiteLedger, query: str, number: int) -> SiteLedger:
        """The ledger without the answers that a sink has."""
        waiting = ledger.undelivered.get(query, ())
        rest = tuple(answers for answers in waiting if answers.batch > number)
        if len(rest) == len(waiting):
            return ledger
        return replace(ledger, undelivered={**ledger.undelivered, query: rest})

    def due_tables(self, ledger: SiteLedger, now_us: int) -> list[tuple[StreamScan, int]]:
        """Tables of this site that are to be read now, and from which instant on that version is in force.

        The first version is in force from the beginning of time, each other one from when its reading began. None is
        read again while a change is agreed on, as rows that it may be about wait.
        """
        due = []
        for scan in self.program.streams:
            state = ledger.streams.get(scan.stream)
            declared_us = None if state is None else state.declared
            if scan.is_table and declared_us is None:
                due.append((scan, TABLE_US))
            elif scan.is_table and declared_us is not None and declared_us <= now_us and ledger.hold_us is None:
                due.append((scan, now_us))
        return due

    def ingest(
        self, ledger: SiteLedger, batch: int, found: Sequence[Ingested], idle: Mapping[str, int] | None = None
    ) -> SiteLedger:
        """Take note of a micro-batch of the site's own streams whose rows are filed; they are joined by `run`.

        Streams that were idle are taken to have come to an instant: rows of the next micro-batch may be late by it.
        """
        assert ledger.is_complete, "the rows of the micro-batch before would be lost"
        ledger = self._noted(self._declare(ledger, idle or {}), found)
        return replace(ledger, ingested_batch=batch, ingested=tuple(found))

    def _noted(self, ledger: SiteLedger, found: Sequence[Ingested]) -> SiteLedger:
        """The ledger with the counts of rows that were filed."""
        streams, central, null_keys = dict(ledger.streams), dict(ledger.central), dict(ledger.null_keys)
        failed = dict(ledger.failed)
        queries = {part.name: part.queries for part in self.program.parts}
        for ingested in found:
            state = streams.get(ingested.stream, StreamState())
            marks = [mark for mark in (state.max_ts, ingested.max_ts) if mark is not None]
            streams[ingested.stream] = replace(
                state,
                max_ts=max(marks, default=None),
                rows=state.rows + ingested.rows,
                late=state.late + ingested.late,
                malformed=state.malformed + ingested.malformed,
                late_by_us=max(state.late_by_us, ingested.late_by_us),
            )
            central[ingested.stream] = central.get(ingested.stream, Traffic()) + ingested.central
            for join, count in ingested.null_keys.items():
                for query in queries[join]:
                    null_keys[query] = null_keys.get(query, 0) + count
            for query, count in ingested.failed.items():
                self._answering.refuse_failed(query, count, [ingested.failed_file])
                failed[query] = failed.get(query, 0) + count
        return replace(ledger, streams=streams, central=central, null_keys=null_keys, failed=failed)

    def run(self, before: SiteLedger, arrivals: Arrivals) -> SiteLedger:
        """Join what was ingested and what has come over the links; the next ledger."""
        ledger, reported, messages, notes = receive(self.program, before, arrivals.parcels, self.type_of)
        if notes:
            ledger = self._agree(ledger, notes)
        ledger = self._declare(ledger, arrivals.declared)
        pending = dict(ledger.pending)
        for ingested in ledger.ingested:
            if ingested.pending is not None:
                pending[ingested.stream] = (*pending.get(ingested.stream, ()), ingested.pending)
        made = [made for ingested in ledger.ingested for made in (ingested.made, *ingested.shared) if made is not None]
        ledger = replace(ledger, number=before.number + 1, batch=ledger.ingested_batch, ingested=(), pending=pending)
        if messages:
            task = Unpack(self.program, self.shelf, tuple(messages))
            made += self._run_tasks(task, len(messages), sum(message.rows for message in messages))
        marks = {**before.watermarks, **reported}
        for stream, mark in self.watermarks(ledger).items():
            if mark is not None:
                marks[stream] = max(mark, marks.get(stream, UNKNOWN))
        marks = with_past(self.program.awaited, marks)
        ledger, released = self._release(ledger, before.watermarks, marks)
        made += released
        marks = spread(self.program, marks)
        if not made and marks == before.watermarks and not before.ingested:
            has_notes = any(link.notes for link in ledger.links.values())
            return send(self.program, self.shelf, ledger, ()) if has_notes else ledger
        ledger = self._append_clock_ticks(ledger, made)
        failed = [ingested.failed_file for ingested in before.ingested]
        return self._joined(before, replace(ledger, watermarks=marks), made, failed, self._rounds)

    def _joined(
        self,
        before: SiteLedger,
        ledger: SiteLedger,
        made: list[Made],
        failed: list[str | None],
        rounds: Sequence[Rounds],
        starting: frozenset[str] = frozenset(),
        history: Sequence[Made] = (),
    ) -> SiteLedger:
        """Run the joins stratum by stratum, so that answers which are rows of derived streams are read at once."""
        given: dict[str, list[Answers]] = {}  # by target
        done: frozenset[str] = frozenset()
        filed: dict[str, int] = {}  # by derived stream, files of answers that are its rows by now
        for number, names in enumerate(self.program.strata):
            made = self._run_rounds(before, ledger, made, rounds[number], starting)
            due = {
                query: finishes
                for query, finishes in self._answering.finishes.items()
                if not {part.name for part, _ in finishes} <= done
                and {part.name for part, _ in finishes} <= done | names
            }
            done |= names
            ledger, failed = self._answering.answer(ledger, made, due, given, failed)
            ledger, found = self._derived(ledger, due, given, filed)
            made = [
                *made,
                *(made for ingested in found for made in (ingested.made, *ingested.shared) if made is not None),
            ]
            failed = [*failed, *(ingested.failed_file for ingested in found)]
            if starting and found:
                rounds = self._rounds  # joins that have run before read these rows too
        matched = counted(ledger.matched, self._matched, made)
        ledger = replace(ledger, watermarks=paced(self.program, ledger.watermarks, made), matched=matched)
        ledger, records, more = self._answering.partial_records(ledger, made)
        ledger = send(self.program, self.shelf, ledger, [*history, *made, *records])
        ledger = self._answering.to_deliver(ledger, given, [*failed, *more])
        new = segments_made(made)
        return tidy(self.program, self.shelf, self._readers, self._run_tasks, self._buckets_for, ledger, new)

    def _derived(
        self, ledger: SiteLedger, due: Collection[str], given: dict[str, list[Answers]], filed: dict[str, int]
    ) -> tuple[SiteLedger, list[Ingested]]:
        """File answers that are rows of derived streams, and let their watermarks follow."""
        marks, found = dict(ledger.watermarks), []
        for stream, feeders in self._answering.feeders.items():
            if not feeders & set(due):
                continue
            marks[stream] = max(marks.get(stream, UNKNOWN), self._answering.given_until(sorted(feeders), ledger))
            scan = next((scan for scan in self.program.streams if scan.stream == stream), None)
            if (answers := given.pop(stream, None)) and scan is not None:
                found += self._derive(self.program, scan, answers, filed.get(stream, 0))
                filed[stream] = filed.get(stream, 0) + sum(len(given.paths) for given in answers)
        if marks == ledger.watermarks and not found:
            return ledger, []
        return replace(self._noted(ledger, found), watermarks=spread(self.program, marks)), found

    def begin(self, ledger: SiteLedger, history: Sequence[Made], starting: frozenset[str]) -> SiteLedger:
        """Let joins run for the first time, over the rows that are there; `history` is what others get of them."""
        after = replace(ledger, number=ledger.number + 1, watermarks=spread(self.program, ledger.watermarks))
        rounds = [rounds_of(self.program, level & starting) for level in self.program.strata]
        return self._joined(ledger, after, [], [], rounds, starting, history)

    def _declare(self, ledger: SiteLedger, declared: Mapping[str, int]) -> SiteLedger:
        streams = dict(ledger.streams)
        for stream, instant in declared.items():
            state = streams.get(stream, StreamState())
            if ledger.hold_us is not None and stream not in self._local_tables:
                instant = min(instant, ledger.hold_us)
            streams[stream] = replace(state, declared=max(instant, state.declared or instant))
        return replace(ledger, streams=streams)

    def _release(
        self, ledger: SiteLedger, before: Mapping[str, int], now: Mapping[str, int]
    ) -> tuple[SiteLedger, list[Made]]:
        """Give rows that ROWS windows count their ordinals, as far as the watermark of their stream has come."""
        due = tuple(
            stream
            for stream in self.program.ordered
            if now.get(stream, UNKNOWN) > before.get(stream, UNKNOWN) and ledger.pending.get(stream)
        )
        if not due:
            return ledger, []
        ordinals = {stream: ledger.ordinals.get(clock_flow(stream), 0) for stream in due}
        task = Release(self.program, self.shelf, due, ledger.pending, ordinals, before, now)
        rows = sum(segment.rows for stream in due for segment in ledger.pending[stream])
        made: list[Made] = self._run_tasks(task, len(due), rows)
        pending = dict(ledger.pending)
        for stream in due:
            pending[stream] = tuple(segment for segment in pending[stream] if segment.max_ts >= now[stream])
        return replace(ledger, pending=pending), made

    def _append_clock_ticks(self, ledger: SiteLedger, made: Sequence[Made]) -> SiteLedger:
        clocks, counts = dict(ledger.clocks), dict(ledger.ordinals)
        for filed in made:
            if filed.ticks is not None:
                first = counts.get(filed.flow, max(filed.ticks.min_ordinal, 0))
                counts[filed.flow] = first + filed.rows
                ticks = replace(filed.ticks, min_ordinal=first, max_ordinal=counts[filed.flow] - 1)
                clocks[filed.flow] = (*clocks.get(filed.flow, ()), ticks)
        return replace(ledger, clocks=clocks, ordinals=counts)

    def _buckets_for(self, rows: int) -> int:
        """Into how many buckets so many rows are worth cutting: every one makes messages of its own."""
        return min(self.buckets, 1 + rows // self._rows_a_bucket)

    def _run_rounds(
        self,
        before: SiteLedger,
        ledger: SiteLedger,
        made: list[Made],
        rounds: Rounds,
        starting: frozenset[str] = frozenset(),
    ) -> list[Made]:
        for groups, operators in rounds:
            rows = sum(filed.rows for filed in made)
            buckets = self._buckets_for(rows)
            task = Round(
                self.program,
                self.shelf,
                groups,
                operators,
                buckets,
                old=before.relations,
                new=segments_made(made),
                clocks=ledger.clocks,
                before=before.watermarks,
                now=ledger.watermarks,
                starting=starting,
            )
            made = [*made, *self._run_tasks(task, buckets, rows)]
        return made


def read_versions(shelf: Shelf, ledger: SiteLedger) -> Versions:
    """The versions that a ledger names."""
    return _parsed_versions(shelf.get_bytes(ledger.versions))


@lru_cache(64)
def _parsed_versions(text: bytes) -> Versions:
    return Versions.from_json(text.decode())


def write_versions(shelf: Shelf, versions: Versions) -> str:
    """Keep versions; the name for the ledger."""
    return shelf.put_bytes("versions", versions.to_json().encode())
