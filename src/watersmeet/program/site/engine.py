"""A site as a value and a function: its ledger, what has arrived, and the turn that makes the next ledger of them.

A turn takes new rows of the site's own streams and parcels from other sites, runs the operators to the end, and leaves
parcels in the outbox. The ledger that it returns is the whole state; a runtime makes it durable first and delivers
the outbox after that, as often as it likes: parcels are numbered, so a reader takes each of them once and in order.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.program.operators import Flow, Form, Purpose, SiteProgram, axis_alias, clock_of, rows_of
from watersmeet.program.site.filing import Made, file_flow, shelve, travelling
from watersmeet.program.site.ledger import (
    Part,
    Segment,
    StreamState,
    choose_merges,
    merged_segment,
    segments_of,
    watermark,
)
from watersmeet.program.site.retention import kept_ticks, merging, need_of, readers_of
from watersmeet.program.site.round import Merge, Packed, Release, Round, Segments, Unpack, axis_of, horizon
from watersmeet.program.storage.packing import pack_rows
from watersmeet.program.storage.segments import KEEP, TS, column, drop_unjoinable
from watersmeet.program.storage.shelf import Shelf
from watersmeet.program.storage.wire import MESSAGE_BYTES, UNKNOWN, Message, Parcel, ParcelIndex
from watersmeet.query.windows import Rows, Unbounded

Result = TypeVar("Result")
RunTasks = Callable[[Callable[[int], list[Result]], int, int], list[Result]]  # a task, how often, over how many rows


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went over one link for one purpose."""

    bytes: int = 0
    batches: int = 0
    tuples: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.bytes + other.bytes, self.batches + other.batches, self.tuples + other.tuples)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A parcel that has not been acknowledged yet."""

    number: int
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class LinkState:
    """What is known about the way to one other site."""

    number: int = 0  # of the last parcel sent
    told: Mapping[str, int] = field(default_factory=dict)  # the progress last told of each flow
    described: tuple[str, ...] = ()  # flows whose schema has been sent
    outbox: tuple[Outgoing, ...] = ()
    traffic: Mapping[str, Traffic] = field(default_factory=dict)  # by flow; watermarks alone under their purpose


@dataclass(frozen=True)
class SiteLedger:
    """Everything of a site that outlives a turn."""

    turn: int = 0
    batch: int = -1  # the last batch of the site's own streams that was taken
    streams: Mapping[str, StreamState] = field(default_factory=dict)
    relations: Segments = field(default_factory=dict)  # rows kept, by flow and key
    clocks: Segments = field(default_factory=dict)
    pending: Segments = field(default_factory=dict)  # rows of aliases with ROWS windows that wait for their order
    ordinals: Mapping[str, int] = field(default_factory=dict)  # rows counted so far, by clock
    progress: Mapping[str, int] = field(default_factory=dict)  # how far each flow has come here
    received: Mapping[str, int] = field(default_factory=dict)  # the last parcel taken from each site
    peers: Mapping[str, str] = field(default_factory=dict)  # the run of each site whose parcels were taken
    schemas: Mapping[str, str] = field(default_factory=dict)  # of inbound flows
    links: Mapping[str, LinkState] = field(default_factory=dict)
    central: Mapping[str, Traffic] = field(default_factory=dict)  # what shipping each alias whole would take
    seen: tuple[Segment, ...] = ()  # answers already given, for DISTINCT
    null_keys: int = 0
    rows_out: int = 0

    @property
    def segments(self) -> Iterable[Segment]:
        for kept in (self.relations, self.clocks, self.pending):
            yield from (segment for segments in kept.values() for segment in segments)
        yield from self.seen

    @property
    def paths(self) -> frozenset[str]:
        """Everything on the shelf that the ledger depends on."""
        parts = (part.path for segment in self.segments for part in segment.parts)
        return frozenset((*parts, *(parcel.path for link in self.links.values() for parcel in link.outbox)))

    @property
    def outbox_bytes(self) -> int:
        return sum(parcel.bytes for link in self.links.values() for parcel in link.outbox)

    def to_json(self) -> str:
        return json.dumps(self, default=_members, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> "SiteLedger":
        data: dict[str, Any] = json.loads(text)
        kept = {
            name: {key: segments_of(rows) for key, rows in data[name].items()}
            for name in ("relations", "clocks", "pending")
        }
        links = {
            site: LinkState(
                link["number"],
                link["told"],
                tuple(link["described"]),
                tuple(Outgoing(**parcel) for parcel in link["outbox"]),
                {purpose: Traffic(**counts) for purpose, counts in link["traffic"].items()},
            )
            for site, link in data["links"].items()
        }
        streams = {name: StreamState(**state) for name, state in data["streams"].items()}
        central = {alias: Traffic(**counts) for alias, counts in data["central"].items()}
        seen = segments_of(data["seen"])
        return SiteLedger(**data | kept | {"links": links, "streams": streams, "central": central, "seen": seen})


def _members(value: Any) -> dict[str, Any]:
    """The members of a dataclass by name; those inside are asked for in turn, with nothing copied."""
    return {item.name: getattr(value, item.name) for item in fields(value)}


@dataclass(frozen=True)
class Ingested:
    """What a task found among new rows of one alias."""

    alias: str
    rows: int
    late: int = 0
    malformed: int = 0
    max_ts: int | None = None
    null_keys: int = 0
    made: Made | None = None
    pending: Segment | None = None
    central: Traffic = Traffic()


@dataclass(frozen=True)
class Arrivals:
    """What a turn starts from; parcels in the order in which each site sent them."""

    ingested: Sequence[Ingested] = ()
    parcels: Sequence[tuple[str, str, ParcelIndex]] = ()  # sender, where it lies, what is in it
    declared: Mapping[str, int] = field(default_factory=dict)  # instants to which idle streams are taken to have come
    batch: int | None = None  # of the site's own streams


@dataclass(frozen=True)
class Turn:
    """What a turn came to: the ledger to commit, and finished combinations for the sink."""

    ledger: SiteLedger
    answers: tuple[str, ...] = ()
    answer_rows: int = 0


def flow_numbers(program: SiteProgram, sender: str | None = None, to: str | None = None) -> list[Flow]:
    """The flows between two sites in the order by which messages name them; the same at both ends."""
    flows = (
        {flow for origin, flow in program.inbound if origin == sender}
        if to is None
        else {ship.arrives_as for ship in program.ships if ship.to == to}
    )
    return sorted(flows, key=lambda flow: flow.name)


class SiteEngine:
    """Runs the turns of one site; holds no state."""

    def __init__(
        self,
        program: SiteProgram,
        delays_us: Mapping[str, int],
        shelf: Shelf,
        run_tasks: RunTasks[Any],
        buckets: int = 1,
        rows_a_bucket: int = 5_000,
    ) -> None:
        self.program = program
        self.shelf = shelf
        self.buckets = buckets
        self._rows_a_bucket = rows_a_bucket
        self._delays_us = delays_us
        self._run_tasks = run_tasks
        self._rounds = [tuple(operators) for operators in program.rounds()]
        self._readers = readers_of(program)
        self._ordered = tuple(
            scan for scan in program.join.scans if scan.alias in program.local and isinstance(scan.window, Rows)
        )

    def speaker(self, stream: str) -> str:
        """The alias that counts for a stream where several aliases read it."""
        return next(scan.alias for scan in self.program.join.scans if scan.stream == stream)

    def acknowledged(self, ledger: SiteLedger, to: str, number: int) -> SiteLedger:
        """The ledger without the parcels that a reader has made durable."""
        link = ledger.links.get(to, LinkState())
        rest = tuple(parcel for parcel in link.outbox if parcel.number > number)
        if len(rest) == len(link.outbox):
            return ledger
        return replace(ledger, links={**ledger.links, to: replace(link, outbox=rest)})

    def turn(self, before: SiteLedger, arrivals: Arrivals) -> Turn:
        """The next ledger and what is to be delivered."""
        ledger, told, messages = self._take(before, arrivals.parcels)
        ledger = self._account(ledger, arrivals)
        made = [one.made for one in arrivals.ingested if one.made is not None]
        if messages:
            made += self._run_tasks(
                Unpack(self.program, self.shelf, tuple(messages)), len(messages), sum(one.rows for one in messages)
            )
        progress = {**before.progress, **told}
        for alias in self.program.local:
            stream = self.program.join.scan(alias).stream
            mark = watermark(ledger.streams.get(stream), self._delays_us[stream])
            if mark is not None:
                progress[alias] = max(mark, progress.get(alias, UNKNOWN))
        ledger, released = self._release(ledger, before.progress, progress)
        made += released
        progress = self._spread(progress)
        if not made and progress == before.progress and arrivals.batch is None:
            return Turn(replace(ledger, turn=before.turn + 1))
        ledger = self._wind(ledger, made)
        made = self._run_rounds(before, ledger, made, progress)
        ledger = replace(ledger, turn=before.turn + 1, progress=self._paced(progress, made))
        ledger = self._send(ledger, made)
        ledger = self._tidy(ledger, _segments_made(made))
        answers = tuple(one.answers for one in made if one.answers is not None)
        rows = sum(one.rows for one in made if one.answers is not None)
        return Turn(ledger, answers, rows)

    def _take(
        self, ledger: SiteLedger, parcels: Iterable[tuple[str, str, ParcelIndex]]
    ) -> tuple[SiteLedger, dict[str, int], list[Packed]]:
        """Note what has come over the links; second deliveries and what lies behind a gap are left alone."""
        received, schemas = dict(ledger.received), dict(ledger.schemas)
        told: dict[str, int] = {}
        messages: list[Packed] = []
        for sender, path, parcel in sorted(parcels, key=lambda one: (one[0], one[2].number)):
            if parcel.number != received.get(sender, 0) + 1:
                continue
            received[sender] = parcel.number
            flows = flow_numbers(self.program, sender)
            for entry in parcel.entries:
                flow = flows[entry.flow]
                if entry.schema:
                    schemas[flow.name] = entry.schema.hex()
                if entry.rows:
                    messages.append(Packed(flow, path, entry.start, entry.size, schemas[flow.name], entry.rows))
                told[flow.name] = max(entry.progress, told.get(flow.name, UNKNOWN))
        return replace(ledger, received=received, schemas=schemas), told, messages

    def _account(self, ledger: SiteLedger, arrivals: Arrivals) -> SiteLedger:
        streams, pending, central = dict(ledger.streams), dict(ledger.pending), dict(ledger.central)
        for one in arrivals.ingested:
            stream = self.program.join.scan(one.alias).stream
            if one.pending is not None:
                pending[one.alias] = (*pending.get(one.alias, ()), one.pending)
            central[one.alias] = central.get(one.alias, Traffic()) + one.central
            if self.speaker(stream) != one.alias:
                continue
            state = streams.get(stream, StreamState())
            marks = [mark for mark in (state.max_ts, one.max_ts) if mark is not None]
            streams[stream] = replace(
                state,
                max_ts=max(marks, default=None),
                rows=state.rows + one.rows,
                late=state.late + one.late,
                malformed=state.malformed + one.malformed,
            )
        for stream, instant in arrivals.declared.items():
            state = streams.get(stream, StreamState())
            streams[stream] = replace(state, declared=max(instant, state.declared or instant))
        return replace(
            ledger,
            batch=ledger.batch if arrivals.batch is None else arrivals.batch,
            streams=streams,
            pending=pending,
            central=central,
            null_keys=ledger.null_keys + sum(one.null_keys for one in arrivals.ingested),
        )

    def _release(
        self, ledger: SiteLedger, before: Mapping[str, int], now: Mapping[str, int]
    ) -> tuple[SiteLedger, list[Made]]:
        """Give rows of ROWS windows their ordinals as far as the watermark of their stream has come."""
        due = tuple(
            scan
            for scan in self._ordered
            if now.get(scan.alias, UNKNOWN) > before.get(scan.alias, UNKNOWN) and ledger.pending.get(scan.alias)
        )
        if not due:
            return ledger, []
        ordinals = {scan.alias: ledger.ordinals.get(clock_of(scan.alias).name, 0) for scan in due}
        task = Release(self.program, self.shelf, due, ledger.pending, ordinals, before, now)
        rows = sum(one.rows for scan in due for one in ledger.pending[scan.alias])
        made: list[Made] = self._run_tasks(task, len(due), rows)
        pending = dict(ledger.pending)
        for scan in due:
            waiting = tuple(one for one in pending[scan.alias] if one.max_ts >= now[scan.alias])
            pending[scan.alias] = waiting
        return replace(ledger, pending=pending), made

    def _wind(self, ledger: SiteLedger, made: Sequence[Made]) -> SiteLedger:
        """The row clocks with the ticks of this turn."""
        clocks, counts = dict(ledger.clocks), dict(ledger.ordinals)
        for one in made:
            if one.flow in one.segments:  # only clocks have ticks under the name of their flow
                first = counts.get(one.flow, 0)
                counts[one.flow] = first + one.rows
                ticks = replace(one.segments[one.flow], min_ordinal=first, max_ordinal=counts[one.flow] - 1)
                clocks[one.flow] = (*clocks.get(one.flow, ()), ticks)
        return replace(ledger, clocks=clocks, ordinals=counts)

    def _spread(self, progress: Mapping[str, int]) -> dict[str, int]:
        """How far every flow has come, from those that arrive here."""
        spread = dict(progress)
        for scan in self._ordered:
            if scan.alias in spread:
                spread[clock_of(scan.alias).name] = spread[scan.alias]
        for operator in self.program.operators:
            reached = horizon(operator, self.program.join, spread)
            if reached > spread.get(operator.out.name, UNKNOWN):
                spread[operator.out.name] = reached
        return spread

    def _paced(self, progress: Mapping[str, int], made: Sequence[Made]) -> dict[str, int]:
        """Progress with the latest tuple of each flow that sets a pace."""
        paced = dict(progress)
        for pace, flow in self.program.paces:
            latest = [s.max_ts for one in made if one.flow == flow.name for s in one.segments.values()]
            if flow.form is Form.PIECE:  # its places are on the axis of windows, and it reaches beyond its latest row
                latest = [place // len(self.program.join.scans) for place in latest]
            paced[pace.name] = max((*latest, paced.get(pace.name, UNKNOWN)))
        return paced

    def _buckets_for(self, rows: int) -> int:
        """Into how many buckets so many rows are worth cutting: every one makes messages of its own."""
        return min(self.buckets, 1 + rows // self._rows_a_bucket)

    def _run_rounds(
        self, before: SiteLedger, ledger: SiteLedger, made: list[Made], progress: Mapping[str, int]
    ) -> list[Made]:
        for operators in self._rounds:
            rows = sum(one.rows for one in made)
            buckets = self._buckets_for(rows)
            task = Round(
                self.program,
                self.shelf,
                operators,
                buckets,
                old=before.relations,
                new=_segments_made(made),
                clocks=ledger.clocks,
                before=before.progress,
                now=progress,
            )
            made = [*made, *self._run_tasks(task, buckets, rows)]
        return made

    def _send(self, ledger: SiteLedger, made: Sequence[Made]) -> SiteLedger:
        """Put into the outbox what other sites get of this turn."""
        links = dict(ledger.links)
        by_flow: dict[str, list[Made]] = {}
        for one in made:
            by_flow.setdefault(one.flow, []).append(one)
        for to in self.program.peers_out:
            link = links.get(to, LinkState())
            flows = flow_numbers(self.program, to=to)
            ships = {ship.arrives_as.name: ship for ship in self.program.ships if ship.to == to}
            messages: list[Message] = []
            told, described, traffic = dict(link.told), list(link.described), dict(link.traffic)
            for number, flow in enumerate(flows):
                ship = ships[flow.name]
                reached = ledger.progress.get(ship.flow.name, UNKNOWN)
                payloads = [
                    one.payloads[ship.payload]
                    for one in by_flow.get(ship.flow.name, ())
                    if ship.payload in one.payloads
                ]
                for payload in payloads:
                    schema = b"" if flow.name in described else bytes.fromhex(payload.schema)
                    if schema:
                        described.append(flow.name)
                    data = self.shelf.get_bytes(payload.path)
                    messages.append(Message(number, reached, payload.rows, data, schema))
                if not payloads and reached > told.get(flow.name, UNKNOWN):
                    messages.append(Message(number, reached))
                told[flow.name] = reached
            if messages:
                parcel = Parcel(link.number + 1, tuple(messages))
                _count(traffic, Purpose.WATERMARKS.value, Traffic(parcel.own_size, 1))
                for message, size in zip(messages, parcel.sizes, strict=True):
                    name = flows[message.flow].name if message.rows else Purpose.WATERMARKS.value
                    _count(traffic, name, Traffic(size, int(message.rows > 0), message.rows))
                packed = parcel.pack()
                path = self.shelf.put_bytes(f"parcel-{to}", packed)
                link = LinkState(
                    parcel.number,
                    told,
                    tuple(described),
                    (*link.outbox, Outgoing(parcel.number, path, len(packed))),
                    traffic,
                )
            links[to] = link
        return replace(ledger, links=links)

    def _tidy(self, ledger: SiteLedger, new: Segments) -> SiteLedger:
        """Keep of old and new rows what can still meet something, and merge what has become many."""
        axes = {
            scan.alias: axis_of(self.program, self.shelf, scan.alias, ledger.clocks) for scan in self.program.join.scans
        }
        relations: dict[str, tuple[Segment, ...]] = {}
        groups: list[tuple[tuple[Segment, ...], str, int | None]] = []
        names: list[str] = []
        for name, (flow, readers) in self._readers.items():
            needs = [
                need_of(reader, flow, axes[axis_alias(reader, flow)], self.program.join, ledger.progress)
                for reader in readers
            ]
            segments = (*ledger.relations.get(name, ()), *new.get(name, ()))
            relations[name] = tuple(one for one in segments if any(need.keeps(one) for need in needs))
            if not flow.bloom:
                window, axis, alive = merging(flow, needs)
                for group in choose_merges(relations[name], window, axis, alive):
                    groups.append((group, axis, alive))
                    names.append(name)
        relations[_SEEN] = ledger.seen
        for group in choose_merges(ledger.seen, Unbounded(), TS, None):
            groups.append((group, TS, None))
            names.append(_SEEN)
        if groups:
            parts: dict[int, list[Part]] = {}
            rows = sum(segment.rows for group, _, _ in groups for segment in group)
            buckets = self._buckets_for(rows)
            for number, part in self._run_tasks(Merge(self.shelf, buckets, tuple(groups)), buckets, rows):
                parts.setdefault(number, []).append(part)
            for number, (name, (group, axis, alive)) in enumerate(zip(names, groups, strict=True)):
                merged = merged_segment(group, parts.get(number, ()), axis, alive)
                rest = tuple(one for one in relations[name] if one not in group)
                relations[name] = rest if merged is None else (merged, *rest)
        clocks = {
            name: self._joined(kept_ticks(self.program, name, ticks, axes, ledger.progress))
            for name, ticks in ledger.clocks.items()
        }
        seen = relations.pop(_SEEN)
        kept = {name: segments for name, segments in relations.items() if segments}
        return replace(ledger, relations=kept, clocks=clocks, seen=seen)

    def _joined(self, ticks: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """A clock in one segment if it has become many."""
        if len(ticks) < _MANY_TICKS:
            return ticks
        whole = shelve(self.shelf, "clock", pa.concat_tables(self.shelf.get(one.parts[0].path) for one in ticks))
        return (replace(whole, min_ordinal=ticks[0].min_ordinal, max_ordinal=ticks[-1].max_ordinal),)


_SEEN = "seen"  # the name under which remembered answers are merged
_MANY_TICKS = 16  # segments of a clock from which it is written anew as one


def ingest(program: SiteProgram, shelf: Shelf, alias: str, table: pa.Table) -> Ingested:
    """File new rows of an alias at its home; those of a ROWS window wait there for their order."""
    scan = program.join.scan(alias)
    rows = table.num_rows
    if not rows:
        return Ingested(alias, 0)
    passed = rows if KEEP not in table.column_names else pc.sum(table.column(KEEP)).as_py() or 0
    joinable = drop_unjoinable(table, scan.classes)
    central = _central(program, scan.alias, joinable)
    if isinstance(scan.window, Rows):
        order = np.argsort(column(table, TS), kind="stable")
        pending = shelve(shelf, f"pending-{alias}", table.take(pa.array(order)))
        return Ingested(alias, rows, null_keys=passed - joinable.num_rows, pending=pending, central=central)
    made = file_flow(program, shelf, rows_of(alias), joinable)
    return Ingested(alias, rows, null_keys=passed - joinable.num_rows, made=made, central=central)


_SAMPLE_ROWS = 2_000


def _central(program: SiteProgram, alias: str, table: pa.Table) -> Traffic:
    """What it would take to ship these rows whole to the query's site, judged by a sample of them."""
    if program.is_query_site or not table.num_rows:
        return Traffic()
    sample = table.slice(0, _SAMPLE_ROWS)
    size = len(pack_rows(travelling(program, rows_of(alias), sample)))
    return Traffic(MESSAGE_BYTES + size * table.num_rows // sample.num_rows, 1, table.num_rows)


def _segments_made(made: Sequence[Made]) -> dict[str, tuple[Segment, ...]]:
    new: dict[str, tuple[Segment, ...]] = {}
    for one in made:
        for relation, segment in one.segments.items():
            if relation != one.flow:  # a clock's ticks, which are kept elsewhere
                new[relation] = (*new.get(relation, ()), segment)
    return new


def _count(traffic: dict[str, Traffic], name: str, more: Traffic) -> None:
    traffic[name] = traffic.get(name, Traffic()) + more


def traffic_by_purpose(program: SiteProgram, ledger: SiteLedger) -> dict[str, dict[Purpose, Traffic]]:
    """What a site has sent to each other one, by what it was for."""
    purposes = {ship.arrives_as.name: ship.arrives_as.purpose for ship in program.ships}
    sent: dict[str, dict[Purpose, Traffic]] = {}
    for to, link in sorted(ledger.links.items()):
        counts: dict[Purpose, Traffic] = {}
        for name, traffic in link.traffic.items():
            purpose = purposes.get(name, Purpose.WATERMARKS)
            counts[purpose] = counts.get(purpose, Traffic()) + traffic
        sent[to] = {purpose: counts[purpose] for purpose in Purpose if purpose in counts}
    return sent
