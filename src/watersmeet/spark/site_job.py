"""One site's part of a query as one Structured Streaming query: its own streams and its inbound links are the sources.

A link's directory is a source only to wake the query and to be listed by Spark: which parcels are taken is decided by
the ledger, so that a batch which runs again takes neither more nor less than it must.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from watersmeet.errors import CheckpointMismatch
from watersmeet.plan.nodes import Plan, join_plan_of
from watersmeet.program.operators import SiteProgram
from watersmeet.program.site.engine import Arrivals, Ingested, SiteEngine, SiteLedger, Traffic, Turn
from watersmeet.program.site.filing import Made, Payload
from watersmeet.program.site.ledger import Segment, segments_of, watermark
from watersmeet.program.storage.wire import UNKNOWN, ParcelIndex
from watersmeet.spark.binding import Bound
from watersmeet.spark.checkpoint import Checkpoint, replace_file
from watersmeet.spark.deliver.delivery import Delivery, LateRows, run_each
from watersmeet.spark.deliver.sinks import Writer
from watersmeet.spark.engine import Report, total
from watersmeet.spark.files import FileShelf
from watersmeet.spark.ingest.intake import Intake
from watersmeet.spark.ingest.parquet_files import FILE_SCHEMA
from watersmeet.spark.job import BatchReport, Clock
from watersmeet.spark.links.directory import PARCEL, DirectoryLinks, LinkUnreadable, LinkUnwritable
from watersmeet.spark.tasks import FileAtSite
from watersmeet.stats.model import Stats
from watersmeet.stats.observe import Observer
from watersmeet.stats.sketches import StreamSketch
from watersmeet.topology.model import Query, Topology

_MOUTHFUL = 16_000_000  # bytes of parcels taken in one turn, about
_PARCEL_SECONDS = 0.1  # how often a site looks for parcels between its batches
_OBSERVED_SECONDS = 30.0  # how often what was observed is written down: a crash forgets so much of it
_LOOKS = 5  # after so many, also whether links can be written again and whether a stream is idle


class SiteJob:
    """Runs the turns of one site."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        query: Query,
        bound: Bound,
        plan: Plan,
        program: SiteProgram,
        checkpoint: Checkpoint[SiteLedger],
        writer: Writer | None,
        links: DirectoryLinks,
        plan_digest: str,
        warn: Callable[[str], None],
        *,
        waits_for_room: bool = True,
        takes_between: bool = True,
    ) -> None:
        self._waits_for_room = waits_for_room
        self._takes_between = takes_between
        self._in_turn = threading.RLock()  # batches and the keeper both take turns
        self._spark = spark
        self._topology = topology
        self._join = join_plan_of(plan)
        self.program = program
        self._checkpoint = checkpoint
        self._links = links
        self._plan_digest = plan_digest
        self._warn = warn
        self._shelf = FileShelf(checkpoint.state)
        self._delays_us = {s.stream: topology.stream(s.stream).watermark_us for s in self._join.scans}
        buckets = max(1, int(spark.sparkContext.defaultParallelism))
        self._engine = SiteEngine(program, self._delays_us, self._shelf, partial(run_each, spark), buckets)
        self._intake = Intake(
            spark,
            topology,
            query,
            bound,
            self._join,
            program.local,
            checkpoint.state,
            checkpoint.ledger_path,
            self._engine.speaker,
            lambda scan: FileAtSite(program, self._shelf, scan.alias),
        )
        self._delivery = None
        if writer is not None:
            self._delivery = Delivery(spark, bound, plan, writer, checkpoint.state, buckets)
        local = {self._join.scan(alias).stream for alias in program.local}
        schemas = {name: schema for name, schema in bound.schemas.items() if name in local}
        self._late = LateRows(spark, topology, query, schemas, f"{program.site}-{checkpoint.run_id}")
        self._is_first = True
        self._troubles: dict[str, str] = {}
        self._runs: dict[str, str] = {}  # of whom the parcels are that were looked at last
        self._last_rows = dict.fromkeys(sorted(local), time.monotonic())
        self._closing = threading.Event()
        self._at_links = threading.Lock()  # turns and the keeper both write to them
        self._keeper: threading.Thread | None = None
        self._observed_path = checkpoint.directory / "observed.json"
        self._observer = self._observed_before()
        self._observed_at = time.monotonic()
        self._has_observed = False
        self.last_report: BatchReport | None = None

    @property
    def site(self) -> str:
        return self.program.site

    @property
    def ledger(self) -> SiteLedger:
        """The state after the last finished turn."""
        return self._checkpoint.ledger

    @property
    def observed(self) -> Stats:
        """What was observed of the site's own streams, across restarts."""
        with self._in_turn:
            return self._observer.stats(float(int(time.time())))

    def _observed_before(self) -> Observer:
        try:
            return Observer.from_json(self._join, self._observed_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return Observer(self._join)  # nothing there, or of another version: it can be observed anew

    def _observe(self, told: Sequence[Report]) -> None:
        """Take what ingest tasks have seen; it is no part of the ledger, which is written at every turn."""
        for row in told:
            if "observed" in row:
                self._observer.take(row["alias"], StreamSketch.from_data(row["observed"]))
                self._has_observed = True
        if time.monotonic() - self._observed_at >= _OBSERVED_SECONDS:
            self._keep_observed()

    def _keep_observed(self) -> None:
        self._observed_at = time.monotonic()
        if self._has_observed:
            self._has_observed = False
            with contextlib.suppress(OSError):  # figures to plan with are not worth failing for
                replace_file(self._observed_path, self._observer.to_json())

    def open(self) -> None:
        """Make ready the links and deliver what an earlier run left in the outbox."""
        run_id = f"{self._checkpoint.run_id}-{self._plan_digest}"
        self._links.open(self.program.peers_in, self.program.peers_out, run_id)
        self._publish()
        self._keeper = threading.Thread(target=self._keep, name=f"watersmeet-{self.site}", daemon=True)
        self._keeper.start()

    def ingest_frame(self) -> DataFrame:
        """The streaming frame whose every batch files new rows of the site's own aliases, or says that parcels came."""
        return reduce(DataFrame.union, [self._bell(), *self._intake.frames()])

    def _bell(self) -> DataFrame:
        reader = self._spark.readStream.format("binaryFile").option("pathGlobFilter", f"*{PARCEL}")
        files = reader.schema(FILE_SCHEMA).option("ignoreMissingFiles", "true").load(f"{self._links.inbox}/*")
        return files.select(F.lit('{"bell": true}').alias("report"))

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Take one micro-batch of the site's own streams, and whatever has come over the links."""
        with self._in_turn:
            if batch <= self.ledger.batch:  # finished before a crash
                self.take_parcels()
                return
            self._wait_for_room()  # before rows are filed: turns meanwhile would give back files that no ledger names
            self._turn(self._intake.told(frame), batch)

    def take_parcels(self) -> bool:
        """Take a turn for the links alone; tells whether anything had come."""
        with self._in_turn:
            return self._turn((), None)

    @property
    def has_parcels(self) -> bool:
        """Whether parcels wait to be taken."""
        taken = self.ledger.received
        return any(self._has_arrived(sender, taken.get(sender, 0)) for sender in self.program.peers_in)

    def _has_arrived(self, sender: str, after: int) -> bool:
        with self._telling(sender):
            return self._links.has_arrived(sender, after)
        return False

    def _turn(self, told: Sequence[Report], batch: int | None) -> bool:
        clock = Clock()
        before = self.ledger
        parcels = self._parcels(before)
        ledger = before
        for reader in self.program.peers_out:
            ledger = self._engine.acknowledged(ledger, reader, self._links.acknowledged(reader))
        arrivals = Arrivals([_ingested(row) for row in told], parcels, self._idle(told), batch)
        if not parcels and not arrivals.declared and batch is None:
            return False
        clock.lap("take")
        try:
            turn = self._engine.turn(ledger, arrivals)
        except Exception as error:
            if not self._was_at_links(error, parcels):
                raise
            if not arrivals.declared and batch is None:
                return False
            parcels = []
            turn = self._engine.turn(ledger, replace(arrivals, parcels=parcels))
        clock.lap("operators")
        runs = {sender: self._runs[sender] for sender, _, _ in parcels}
        ledger = self._deliver(turn)
        ledger = replace(ledger, peers={**ledger.peers, **runs})
        clock.lap("publish")
        self._late.keep(told, turn.ledger.turn, self._engine.speaker, replay=self._is_first)
        self._checkpoint.commit(ledger)
        self._observe(told)
        self._is_first = False
        self._publish()
        self._acknowledge()
        clock.lap("send")
        self.last_report = self._report(before, told, clock)
        return True

    def _deliver(self, turn: Turn) -> SiteLedger:
        ledger = turn.ledger
        if self._delivery is None:
            return ledger
        if not turn.answers:
            if self._is_first:
                self._delivery.nothing(ledger.turn)
            return ledger
        rows, fresh = self._delivery.files(
            turn.answers, turn.answer_rows, ledger.turn, ledger.seen, replay=self._is_first
        )
        return replace(ledger, rows_out=ledger.rows_out + (rows or 0), seen=(*ledger.seen, *fresh))

    def _parcels(self, ledger: SiteLedger) -> list[tuple[str, str, ParcelIndex]]:
        """What has come over the links and is to be taken now: from every sender in turn, up to a good mouthful."""
        waiting = [iter(self._arrived(sender, ledger.received.get(sender, 0))) for sender in self.program.peers_in]
        parcels, size = [], 0
        while waiting and size <= _MOUTHFUL:
            for parcels_of_one in list(waiting):
                parcel = next(parcels_of_one, None)
                if parcel is None:
                    waiting.remove(parcels_of_one)
                else:
                    parcels.append(parcel)
                    size += sum(entry.size for entry in parcel[2].entries)
        return parcels

    def _arrived(self, sender: str, after: int) -> Iterator[tuple[str, str, ParcelIndex]]:
        """What has come from a site; nothing while its link cannot be read."""
        with self._telling(sender):
            run_id = self._links.sender_of(sender)
            if run_id is None:
                return
            if self.ledger.peers.get(sender, run_id) != run_id:
                raise CheckpointMismatch(
                    f"link {sender} -> {self.site}: the parcels are of another run of {sender} than those taken so "
                    "far; start it with the checkpoint it had, or remove the links and the checkpoints of all sites"
                )
            if not run_id.endswith(f"-{self._plan_digest}"):
                raise CheckpointMismatch(
                    f"link {sender} -> {self.site}: {sender} runs another plan than {self.site}; give both the same "
                    "topology and statistics, and remove the links and the checkpoints of all sites to begin anew"
                )
            self._runs[sender] = run_id
            yield from self._links.arrived(sender, after)

    @contextlib.contextmanager
    def _telling(self, sender: str) -> Iterator[None]:
        """Say once that a link cannot be read, and go on without what lies there: it is looked at time and again."""
        try:
            yield
            self._troubles.pop(f"reading {sender}", None)
        except LinkUnreadable as error:
            self._tell(f"reading {sender}", str(error))

    def _was_at_links(self, error: Exception, parcels: Sequence[tuple[str, str, ParcelIndex]]) -> bool:
        """Whether an error is that parcels went out of reach after they were looked at; it is told if so."""
        troubles = [(sender, self._links.why_unreadable(error, sender, path)) for sender, path, _ in parcels]
        for sender, trouble in troubles:
            if trouble is not None:
                self._tell(f"reading {sender}", str(trouble))
        return any(trouble is not None for _, trouble in troubles)

    def _publish(self) -> None:
        with self._at_links:
            for reader, link in self.ledger.links.items():
                try:
                    self._links.publish(reader, link.outbox)
                    self._links.forget_acknowledged(reader)
                    self._troubles.pop(reader, None)
                except LinkUnwritable as error:
                    self._tell(reader, str(error))

    def _acknowledge(self) -> None:
        pace = self._pace()
        with self._at_links:
            for sender in self.program.peers_in:
                try:
                    self._links.acknowledge(sender, self.ledger.received.get(sender, 0), pace)
                    self._troubles.pop(f"from {sender}", None)
                except LinkUnwritable as error:
                    self._tell(f"from {sender}", str(error))

    def _tell(self, about: str, text: str) -> None:
        """Say what is wrong once, not at every attempt."""
        if self._troubles.get(about) != text:
            self._troubles[about] = text
            self._warn(text)

    def _wait_for_room(self) -> None:
        """Take no new rows while too much waits for its readers.

        Parcels are taken meanwhile: two sites that wait for each other would wait for ever.
        """
        limit = self._topology.link_transport.max_pending_bytes
        while self._waits_for_room and self._waiting_bytes() > limit and not self._closing.is_set():
            self._tell(
                "room", f"site {self.site}: {limit:,} bytes wait for other sites; new rows wait until they are taken"
            )
            self._publish()
            self._last_rows = dict.fromkeys(self._last_rows, time.monotonic())  # not silent: kept waiting by us
            if not self.take_parcels():
                time.sleep(0.1)
        self._troubles.pop("room", None)

    def _waiting_bytes(self) -> int:
        return sum(
            parcel.bytes
            for reader, link in self.ledger.links.items()
            for parcel in link.outbox
            if parcel.number > self._links.acknowledged(reader)
        )

    def _idle(self, told: Sequence[Report]) -> dict[str, int]:
        """Streams that have been silent for their timeout, and the instant the others have come to."""
        now = time.monotonic()
        for row in told:
            if row["rows"]:
                self._last_rows[self._join.scan(row["alias"]).stream] = now
        return {
            stream: pace
            for stream, since in self._last_rows.items()
            if (timeout := self._topology.stream(stream).idle_timeout_us) is not None
            and (now - since) * 1_000_000 >= timeout
            and (pace := self._pace(stream)) > self._mark(stream)
        }

    def _mark(self, stream: str) -> int:
        mark = watermark(self.ledger.streams.get(stream), self._delays_us[stream])
        return UNKNOWN if mark is None else mark

    def _pace(self, stream: str | None = None) -> int:
        """The farthest that any other stream is known here to have come."""
        local = {self._join.scan(alias).stream for alias in self.program.local}
        others = [self._mark(other) for other in local if other != stream]
        others += [self.ledger.progress.get(flow.name, UNKNOWN) for _, flow in self.program.inbound]
        others += [self._links.pace(reader) for reader in self.program.peers_out]
        return max(others, default=UNKNOWN)

    def _keep(self) -> None:
        """Between batches: take parcels as they come, deliver what could not be delivered, wake the query if need be.

        The trigger says how often a site's own streams are read; an answer that passes several sites would else wait
        for it at each. The query is woken when a stream is idle, and to meet what went wrong here.
        """
        looks = 0
        while not self._closing.wait(_PARCEL_SECONDS):
            looks += 1
            try:
                if self._takes_between and self.has_parcels and self._in_turn.acquire(blocking=False):
                    try:
                        self.take_parcels()
                    finally:
                        self._in_turn.release()
                if looks % _LOOKS == 0:
                    self._publish()
                    self._acknowledge()
                    if self._idle(()) or (self.has_parcels and not self._takes_between):
                        self._links.ring()
            except Exception as error:
                self._tell("keeper", f"site {self.site}: {error}")
                with contextlib.suppress(LinkUnwritable):
                    self._links.ring()

    def _report(self, before: SiteLedger, told: Sequence[Report], clock: Clock) -> BatchReport:
        ledger = self.ledger
        speakers = {self._engine.speaker(stream) for stream in self._delays_us}
        counted = [row for row in told if row["alias"] in speakers]
        segments = list(ledger.segments)
        return BatchReport(
            batch=ledger.turn,
            rows_in=total(counted, "rows"),
            rows_out=ledger.rows_out - before.rows_out,
            late=total(counted, "late"),
            malformed=total(counted, "malformed"),
            null_keys=ledger.null_keys - before.null_keys,
            state_rows=sum(segment.rows for segment in segments),
            state_bytes=sum(segment.bytes for segment in segments),
            segments=len(segments),
            seconds=clock.total,
            watermarks={stream: watermark(ledger.streams.get(stream), us) for stream, us in self._delays_us.items()},
            steps=clock.laps,
        )

    def stop_waiting(self) -> None:
        """Let the batch under way finish although other sites do not take what waits for them."""
        self._closing.set()

    def close(self) -> None:
        """Let go of the sink, the links and the checkpoint."""
        self._closing.set()
        if self._keeper is not None:
            self._keeper.join()
        self._links.hush()
        for reader in self.program.peers_out:
            self._links.forget_acknowledged(reader)
        if self._delivery is not None:
            self._delivery.close()
        self._late.close()
        self._keep_observed()
        self._checkpoint.close()


def _ingested(row: Mapping[str, Any]) -> Ingested:
    """What an ingest task told, as a value again."""
    made, pending = row.get("made"), row.get("pending")
    return Ingested(
        alias=row["alias"],
        rows=row["rows"],
        late=row["late"],
        malformed=row["malformed"],
        max_ts=row["max_ts"],
        null_keys=row.get("null_keys", 0),
        made=None if made is None else _made(made),
        pending=None if pending is None else segments_of([pending])[0],
        central=Traffic(**row["central"]) if "central" in row else Traffic(),
    )


def _made(made: Mapping[str, Any]) -> Made:
    segments: dict[str, Segment] = {name: segments_of([segment])[0] for name, segment in made["segments"].items()}
    payloads = {name: Payload(**payload) for name, payload in made["payloads"].items()}
    return Made(made["flow"], made["rows"], segments, payloads, made["answers"])
