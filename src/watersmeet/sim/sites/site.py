"""A site as a simulated peer: the very program that Spark runs, on a virtual clock, over links that misbehave.

A site has a disk, which survives a crash (its ledger and what the ledger names), and a memory, which does not (parcels
that arrived and wait for the next micro-batch). Sources can be read again from any batch, as on Spark.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, TypeAlias

import pyarrow as pa

from watersmeet.errors import WatersmeetError
from watersmeet.program.operators import Purpose
from watersmeet.program.site.adoption import adopt, drop, finished, program_of
from watersmeet.program.site.changes import Change
from watersmeet.program.site.engine import Arrivals, SiteEngine
from watersmeet.program.site.ingest import Ingest, first_row_id, has_event_time
from watersmeet.program.site.ledger import Answers, Ingested, LinkState, SiteLedger, Traffic, watermark
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.shelf import MemoryShelf, Shelf
from watersmeet.program.storage.wire import index_parcel
from watersmeet.query.windows import END_US
from watersmeet.sim.internet.links import Network
from watersmeet.sim.kernel import Kernel
from watersmeet.stats.observe import observe
from watersmeet.stats.sketches import StreamSketch


@dataclass(frozen=True)
class TableSource:
    """The source of a table: what it holds at an instant, and how often and until when it is read again."""

    read: Callable[[int], pa.Table]
    refresh_us: int | None = None
    until_us: int = END_US

    def next_us(self, now_us: int) -> int:
        """When it is read after now; the end of time if not again."""
        again = END_US if self.refresh_us is None else now_us + self.refresh_us
        return again if again < self.until_us else END_US


BATCH_INTERVAL_US = 100_000  # between micro-batches of a site, if nobody says
MEASURED_US = 20_000_000  # how often it is measured what rows take on links
RETRY_US = 1_000_000  # after which a parcel that nobody acknowledged is sent again


def run_here(task: Callable[[int], list[Any]], count: int, rows: int) -> list[Any]:
    """Run a task for each number, here and now."""
    return [result for number in range(count) for result in task(number)]


class SimulatedDisk(Protocol):
    """What a site's state is kept on, where that may be damaged; without one it survives as it is."""

    @property
    def shelf(self) -> Shelf:
        """Where tables and bytes are."""

    def commit(self, site: "SimulatedSite", ledger: SiteLedger) -> SiteLedger:
        """Make a ledger durable; the one that was."""

    def keep_only(self, paths: Collection[str]) -> None:
        """Forget all other files."""

    def close(self) -> None:
        """The site goes down."""

    def open(self, site: "SimulatedSite") -> SiteLedger:
        """The state as it is found at a start, refused by an error where it is not what was committed."""

    def refused(self, site: "SimulatedSite", error: WatersmeetError) -> None:
        """A site has stopped for what was found; somebody mends it and starts it again."""


@dataclass
class SimulatedSite:
    """A site on the virtual clock: its engine, what its disk keeps, and what waits in memory."""

    engine: SiteEngine
    kernel: Kernel
    network: Network
    lay_out: Callable[[StreamScan, pa.Table], pa.Table]
    delays_us: Mapping[str, int]
    interval_us: int
    tables: "Mapping[str, TableSource]" = field(default_factory=dict)
    aligned: bool = False  # whether micro-batches start at multiples of the interval, as Spark's triggers do
    completed: "Completed | None" = None  # called at the end of every micro-batch
    observer: "Observer | None" = None
    insist_us: int | None = None  # how long to wait for a decision before others are asked for their promises
    crashes: "CommitCrash | None" = None
    disk: SimulatedDisk | None = None
    ledger: SiteLedger = field(default_factory=SiteLedger)
    answers: dict[str, dict[int, pa.Table]] = field(default_factory=dict)  # the sinks: by query and micro-batch
    batches: list[dict[str, pa.Table]] = field(default_factory=list)  # what the sources have delivered so far
    inbox: list[tuple[str, str, Any]] = field(default_factory=list)
    is_up: bool = True
    has_ended: bool = False  # whether its input has, and with it time
    micro_batches: int = 0
    peak_rows: int = 0
    _is_due: bool = False
    _sent: dict[str, int] = field(default_factory=dict)
    _insisted: set[int] = field(default_factory=set)  # proposals that are watched
    _measured_us: dict[str, int] = field(default_factory=dict)  # when the sizes of a stream's rows were

    @property
    def name(self) -> str:
        return self.engine.program.site

    @property
    def shelf(self) -> MemoryShelf:
        shelf = self.engine.shelf
        assert isinstance(shelf, MemoryShelf), "a simulated disk"
        return shelf

    def start(self) -> None:
        """Come up, for the first time or after a crash."""
        self.is_up = True
        try:
            if self.disk is not None:
                self.ledger = self.disk.open(self)
            if self.ledger.versions:
                self.engine = self.engine.with_program(program_of(self.engine.shelf, self.ledger, self.name))
            self.network.connect(self.name, self._receive)
            self._deliver()
        except WatersmeetError as error:
            self._stop(error)
        else:
            self._wake()

    def crash(self) -> None:
        """Lose everything that is not on disk."""
        self.is_up = False
        self.network.disconnect(self.name)
        self.network.forget(self.name)
        self.inbox.clear()
        self._sent.clear()
        if self.disk is not None:
            self.disk.close()

    def _stop(self, error: WatersmeetError) -> None:
        """Go down for what was found on the disk, which nothing but damage explains."""
        if self.disk is None:
            raise error
        self.crash()
        self.disk.refused(self, error)

    def feed(self, batch: dict[str, pa.Table]) -> None:
        """New rows have come to the sources of this site; they stay readable."""
        self.batches.append(batch)
        self._wake()

    def end(self) -> None:
        """No more rows come to the sources of this site."""
        self.has_ended = True
        self._wake()

    def change(self, change: Change) -> None:
        """Ask for another plan, or for queries to begin or end; a site that is down is asked again."""
        if self.is_up:
            try:
                self._commit(self.engine.request(self.ledger, change))
            except _Crashed as crashed:
                if not crashed.is_committed:
                    self.kernel.after(RETRY_US, self.change, change)
            else:
                self._wake()
        else:
            self.kernel.after(RETRY_US, self.change, change)

    def report(self, to: str, size: int) -> None:
        """Count what is said of this site's streams to another one; when it arrives matters to nobody."""
        link = self.ledger.links.get(to, LinkState())
        name = Purpose.OBSERVATIONS.value
        traffic = {**link.traffic, name: link.traffic.get(name, Traffic()) + Traffic(size, 1)}
        self.ledger = replace(self.ledger, links={**self.ledger.links, to: replace(link, traffic=traffic)})

    def insist(self) -> None:
        """Ask the other sites what they have promised, if a change is still undecided."""
        if self.is_up:
            with suppress(_Crashed):
                self._commit(self.engine.insist(self.ledger))
                self._wake()

    def _receive(self, sender: str, data: object) -> None:
        assert isinstance(data, bytes)
        try:
            index = index_parcel(data)
        except ValueError:
            return  # it came damaged: it is not acknowledged, so it is sent again
        if index.number <= self.ledger.received.get(sender, 0):
            self.network.acknowledge(self.name, sender, self.ledger.received[sender])
            return
        if not any(entry[0] == sender and entry[2].number == index.number for entry in self.inbox):
            self.inbox.append((sender, self.engine.shelf.put_bytes(f"from-{sender}", data), index))
            self._wake()

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            wait_us = self.interval_us - (self.kernel.now_us % self.interval_us if self.aligned else 0)
            self.kernel.after(wait_us, self._micro_batch)

    def _micro_batch(self) -> None:
        self._is_due = False
        if self.is_up:
            try:
                with suppress(_Crashed):
                    self._run_micro_batch()
            except WatersmeetError as error:
                self._stop(error)

    def _run_micro_batch(self) -> None:
        """Go over, ingest, join; each is a commit of its own, as on Spark."""
        ledger = self.ledger
        if not ledger.is_complete:  # a crash has left it ingested and not joined
            self._commit(self.engine.run(ledger, Arrivals(())))
            ledger = self.ledger
        for peer in sorted(ledger.links):
            ledger = self.engine.acknowledged(ledger, peer, self.network.acknowledged(self.name, peer))
        ledger = self._with_versions(ledger)
        if ledger.versions != self.ledger.versions:
            self._commit(ledger)
        last = len(self.batches) - 1
        found, declared = self._read_tables(ledger)
        is_new = any(scan.stream not in ledger.streams for scan in self.engine.program.sources)
        first = 0 if is_new else ledger.ingested_batch + 1
        rows = [
            ingested
            for i, batch in enumerate(self.batches[first:], first)
            for ingested in self._ingest(i, batch, ledger)
        ]
        if not self.engine.admits(ledger, rows):  # they are read again; what was read of tables is in force
            rows, last = [], ledger.ingested_batch
        if found or rows or last > ledger.ingested_batch:
            found += rows
            self._observe(found)
            known = [replace(ingested, observed="") for ingested in found]  # statistics are no part of the state
            ledger = self.engine.ingest(ledger, last, known, declared)
            self._commit(ledger)
            ledger = self.ledger
        before = ledger
        ended = [scan.stream for scan in self.engine.program.sources if not scan.is_table] if self.has_ended else []
        ledger = self.engine.run(before, Arrivals(self.inbox, dict.fromkeys(ended, END_US)))
        self.micro_batches += 1
        self._commit(ledger)
        self._deliver()
        kept = frozenset((*self.ledger.paths, *(path for _, path, _ in self.inbox)))
        (self.shelf if self.disk is None else self.disk).keep_only(kept)
        if self.completed is not None:
            self.completed(self, before)
        if self.ledger.versions and self.engine.versions(self.ledger).is_decided:
            self._wake()
        self._await_decision()

    def _await_decision(self) -> None:
        """Insist on a proposal that is not decided in time: who should tell may be down."""
        if self.insist_us is None or not self.ledger.versions:
            return
        proposal = self.engine.versions(self.ledger).proposal
        if proposal is not None and proposal.decision is None and proposal.number not in self._insisted:
            self._insisted.add(proposal.number)
            self.kernel.after(self.insist_us, self.insist)

    def _with_versions(self, ledger: SiteLedger) -> SiteLedger:
        """Go over to the next revision if it is decided, and leave behind what is over."""
        if not ledger.versions:
            return ledger
        if self.engine.versions(ledger).is_decided:
            self.engine, ledger = adopt(self.engine, ledger)
            self._wake()  # what has waited for it comes with the next micro-batch, at the latest
        if over := finished(self.engine.program, ledger):
            self.engine, ledger = drop(self.engine, ledger, over)
        return ledger

    def _commit(self, ledger: SiteLedger) -> None:
        crash = None if self.crashes is None else self.crashes(self, ledger)
        if crash is not None and not crash.is_committed:
            self._go_down(crash)
        self.ledger = _stored(ledger) if self.disk is None else self.disk.commit(self, ledger)
        if crash is not None:
            self._go_down(crash)
        taken = self.ledger.received
        self.inbox = [entry for entry in self.inbox if entry[2].number > taken.get(entry[0], 0)]
        self.peak_rows = max(self.peak_rows, sum(segment.rows for segment in self.ledger.segments))
        for sender, number in taken.items():
            self.network.acknowledge(self.name, sender, number)

    def _go_down(self, crash: "CrashNow") -> NoReturn:
        self.crash()
        self.kernel.after(crash.down_us, self.start)
        raise _Crashed(is_committed=crash.is_committed)

    def _deliver(self) -> None:
        """Send what is in the outbox, and give sinks their answers: as often as it happens, they have them once."""
        for to, link in self.ledger.links.items():
            for parcel in link.outbox:
                if parcel.number > self._sent.get(to, 0):
                    self._sent[to] = parcel.number
                    data = self.engine.shelf.get_bytes(parcel.path)
                    self.network.send(self.name, to, parcel.number, data, parcel.bytes)
        for query, waiting in self.ledger.undelivered.items():
            for answers in waiting:
                self.answers.setdefault(query, {})[answers.batch] = read_answers(self.engine.shelf, answers)
            if waiting:
                self.ledger = self.engine.delivered(self.ledger, query, waiting[-1].batch)

    def _read_tables(self, ledger: SiteLedger) -> tuple[list[Ingested], dict[str, int]]:
        """Read the tables that are due, and until when each version stays in force at least."""
        found, declared = [], {}
        for scan, from_us in self.engine.due_tables(ledger, self.kernel.now_us):
            source = self.tables[scan.stream]
            rows = self.lay_out(scan, source.read(self.kernel.now_us))
            ingest = Ingest(self.engine.program, self.engine.shelf, scan)
            found.append(ingest.version(rows, from_us))
            declared[scan.stream] = source.next_us(self.kernel.now_us)
            if declared[scan.stream] < END_US:
                self.kernel.at(declared[scan.stream], self._wake)
        return found, declared

    def _ingest(self, number: int, batch: dict[str, pa.Table], ledger: SiteLedger) -> list[Ingested]:
        """File the rows of a batch that were not read before; a stream that is new here is read from its beginning."""
        program = self.engine.program
        found = []
        for scan in program.sources:
            is_read = number <= ledger.ingested_batch and scan.stream in ledger.streams
            if not is_read and scan.stream in batch and batch[scan.stream].num_rows:
                table = self.lay_out(scan, batch[scan.stream])
                late_before = watermark(ledger.streams.get(scan.stream), self.delays_us[scan.stream])
                ingest = Ingest(program, self.engine.shelf, scan)
                ingested = ingest(table, late_before, first_row_id(number, 0))
                if self.observer is not None and self.observer.wants_sketch(scan.stream, self.kernel.now_us):
                    sizes = self.kernel.now_us - self._measured_us.get(scan.stream, -MEASURED_US) >= MEASURED_US
                    self._measured_us |= {scan.stream: self.kernel.now_us} if sizes else {}
                    sketch = observe(scan, table.filter(has_event_time(table)), sizes=sizes)
                    ingested = replace(ingested, observed=json.dumps(sketch.to_data()))
                found.append(ingested)
        return found

    def _observe(self, found: Sequence[Ingested]) -> None:
        for ingested in found:
            if ingested.observed and self.observer is not None:
                sketch = StreamSketch.from_data(json.loads(ingested.observed))
                self.observer.sketched(ingested.stream, sketch, self.kernel.now_us)


class Observer(Protocol):
    """Whoever wants to know how values spread and how links are."""

    def wants_sketch(self, stream: str, now_us: int) -> bool:
        """Whether rows that are ingested now are to be sketched."""

    def sketched(self, stream: str, sketch: StreamSketch, now_us: int) -> None:
        """Rows of a micro-batch."""

    def transferred(self, sender: str, receiver: str, size: int, seconds: float, now_us: int) -> None:
        """A parcel has come over a link."""


@dataclass(frozen=True, slots=True)
class CrashNow:
    """A site goes down as it commits a ledger, just before or just after, and for how long."""

    is_committed: bool
    down_us: int


class _Crashed(Exception):
    """Ends what a site was doing."""

    def __init__(self, *, is_committed: bool) -> None:
        super().__init__()
        self.is_committed = is_committed


CommitCrash: TypeAlias = Callable[[SimulatedSite, SiteLedger], CrashNow | None]  # the site, and what it is to commit
Completed: TypeAlias = Callable[[SimulatedSite, SiteLedger], None]  # the site, and its ledger before it joined


def _stored(ledger: SiteLedger) -> SiteLedger:
    """What is on disk must be enough: the ledger goes through JSON, as it does on a real one."""
    return SiteLedger.from_json(ledger.to_json())


def read_answers(shelf: Shelf, answers: Answers) -> pa.Table:
    """The rows of answers under the names of their columns."""
    tables = [table.select([name for name, _ in answers.columns]) for table in answers.tables(shelf)]
    return pa.concat_tables(tables).rename_columns([name for _, name in answers.columns])
