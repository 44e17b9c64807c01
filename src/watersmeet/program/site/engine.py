"""The engine of a site: a pure function (ledger, arrivals) -> (ledger, outbox, answers), one micro-batch at a time.

A micro-batch takes new rows of the site's own streams and parcels from other sites, runs the operators to the end, and
leaves parcels in the outbox and answers to be delivered. The ledger that it returns is the whole state; a runtime makes
it durable first and delivers after that.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import CheckpointMismatch
from watersmeet.program.finish.distinct import KeepUnseen
from watersmeet.program.finish.failed import failed_sink, refuse_failed
from watersmeet.program.finish.model import Evaluated, Evaluator, Finish, answer_column
from watersmeet.program.join.axis import Clock
from watersmeet.program.operators import Form, Operator, Purpose
from watersmeet.program.site.filing import Made, payload_name, shelve
from watersmeet.program.site.inbound import check_columns
from watersmeet.program.site.ledger import (
    Answers,
    Ingested,
    LinkState,
    Outgoing,
    SiteLedger,
    StreamState,
    Traffic,
    watermark,
)
from watersmeet.program.site.program import JoinPart, ProbeGroup, Shipment, SiteProgram, probe_groups
from watersmeet.program.site.retention import axes_of, axis_for, kept_ticks, merging, need_of, readers_of
from watersmeet.program.site.round import Merge, Packed, Release, Round, Segments, Unpack, low_watermark, read_clock
from watersmeet.program.site.streams import clock_flow, ordered_flow
from watersmeet.program.storage.merging import choose_merges, merged_segment
from watersmeet.program.storage.segments import TS
from watersmeet.program.storage.shelf import Part, Segment, Shelf
from watersmeet.program.storage.wire import (
    UNKNOWN,
    Entry,
    Message,
    Parcel,
    ParcelIndex,
    checksum_of,
    naming_damage,
    unpack_schema,
)

Result = TypeVar("Result")
RunTasks = Callable[[Callable[[int], list[Result]], int, int], list[Result]]  # a task, how often, over how many rows

_SEEN = "#seen "  # in front of a query, the name under which its answers are merged
_MANY_TICKS = 16  # segments of a clock from which it is written anew as one


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
    ) -> None:
        self.program = program
        self.shelf = shelf
        self.buckets = buckets
        self._rows_a_bucket = rows_a_bucket
        self._delays_us = delays_us
        self._run_tasks = run_tasks
        self._evaluate = evaluate
        self._rounds = _rounds(program)
        self._readers = readers_of(program)

    def watermarks(self, ledger: SiteLedger) -> dict[str, int | None]:
        """The watermark of every stream that arrives here."""
        return {
            scan.stream: watermark(ledger.streams.get(scan.stream), self._delays_us[scan.stream])
            for scan in self.program.streams
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

    def ingest(
        self, ledger: SiteLedger, batch: int, found: Sequence[Ingested], idle: Mapping[str, int] | None = None
    ) -> SiteLedger:
        """Take note of a micro-batch of the site's own streams whose rows are filed; they are joined by `run`.

        Streams that were idle are taken to have come to an instant: rows of the next micro-batch may be late by it.
        """
        assert ledger.is_complete, "the rows of the micro-batch before would be lost"
        ledger = self._declare(ledger, idle or {})
        streams, central, null_keys = dict(ledger.streams), dict(ledger.central), dict(ledger.null_keys)
        failed = dict(ledger.failed)
        queries = {part.name: part.queries for part in self.program.parts}
        for one in found:
            state = streams.get(one.stream, StreamState())
            marks = [mark for mark in (state.max_ts, one.max_ts) if mark is not None]
            streams[one.stream] = replace(
                state,
                max_ts=max(marks, default=None),
                rows=state.rows + one.rows,
                late=state.late + one.late,
                malformed=state.malformed + one.malformed,
            )
            central[one.stream] = central.get(one.stream, Traffic()) + one.central
            for join, count in one.null_keys.items():
                for query in queries[join]:
                    null_keys[query] = null_keys.get(query, 0) + count
            for query, count in one.failed.items():
                self._refuse_failed(query, count, [one.failed_file])
                failed[query] = failed.get(query, 0) + count
        return replace(
            ledger,
            ingested_batch=batch,
            ingested=tuple(found),
            streams=streams,
            central=central,
            null_keys=null_keys,
            failed=failed,
        )

    def run(self, before: SiteLedger, arrivals: Arrivals) -> SiteLedger:
        """Join what was ingested and what has come over the links; the next ledger."""
        ledger, reported, messages = self._take(before, arrivals.parcels)
        ledger = self._declare(ledger, arrivals.declared)
        pending = dict(ledger.pending)
        for one in ledger.ingested:
            if one.pending is not None:
                pending[one.stream] = (*pending.get(one.stream, ()), one.pending)
        made = [one.made for one in ledger.ingested if one.made is not None]
        ledger = replace(ledger, number=before.number + 1, batch=ledger.ingested_batch, ingested=(), pending=pending)
        if messages:
            task = Unpack(self.program, self.shelf, tuple(messages))
            made += self._run_tasks(task, len(messages), sum(message.rows for message in messages))
        marks = {**before.watermarks, **reported}
        for stream, mark in self.watermarks(ledger).items():
            if mark is not None:
                marks[stream] = max(mark, marks.get(stream, UNKNOWN))
        ledger, released = self._release(ledger, before.watermarks, marks)
        made += released
        marks = self._spread(marks)
        if not made and marks == before.watermarks and not before.ingested:
            return ledger
        ledger = self._append_clock_ticks(ledger, made)
        made = self._run_rounds(before, ledger, made, marks)
        ledger = replace(ledger, watermarks=self._paced(marks, made))
        ledger = self._send(ledger, made)
        ledger = self._answer(ledger, made, [one.failed_file for one in before.ingested])
        return self._tidy(ledger, _segments_made(made))

    def _take(
        self, ledger: SiteLedger, parcels: Iterable[tuple[str, str, ParcelIndex]]
    ) -> tuple[SiteLedger, dict[str, int], list[Packed]]:
        """Note what has come over the links; second deliveries and what is behind a gap are left alone."""
        received, checksums, schemas = dict(ledger.received), dict(ledger.checksums), dict(ledger.schemas)
        reported: dict[str, int] = {}
        watermarks = ChainMap(reported, dict(ledger.watermarks))
        messages: list[Packed] = []
        for sender, path, parcel in sorted(parcels, key=lambda found: (found[0], found[2].number)):
            if parcel.number != received.get(sender, 0) + 1:
                continue
            if parcel.previous != checksums.get(sender, 0):
                raise CheckpointMismatch(
                    f"link {sender} -> {self.program.site}: parcel {parcel.number} does not follow the one that was "
                    f"taken before it, so {sender} has gone on from an older copy of its checkpoint; restore the "
                    f"checkpoints of all sites from copies of one moment, or remove them and the links to begin anew"
                )
            received[sender], checksums[sender] = parcel.number, parcel.checksum
            shipments = self.program.flows_from(sender)
            for entry in parcel.entries:
                with naming_damage(sender, self.program.site, parcel.number):
                    shipment = self._check(shipments, entry, schemas, watermarks)
                flow = shipment.arrives_as
                if entry.schema:
                    schemas[flow] = entry.schema.hex()
                if entry.rows:
                    place = (path, entry.start, entry.size)
                    messages.append(Packed(sender, parcel.number, shipment, *place, schemas[flow], entry.rows))
                reported[flow] = entry.watermark
        return replace(ledger, received=received, checksums=checksums, schemas=schemas), reported, messages

    def _check(
        self, shipments: Sequence[Shipment], entry: Entry, schemas: Mapping[str, str], marks: Mapping[str, int]
    ) -> Shipment:
        """The shipment that a message is of; ValueError where it cannot be one of these."""
        if entry.flow >= len(shipments):
            raise ValueError(f"it has flow {entry.flow} of {len(shipments)}")
        shipment = shipments[entry.flow]
        flow = shipment.arrives_as
        if entry.schema:
            if flow in schemas:
                raise ValueError(f"the schema of {flow} comes a second time")
            check_columns(self.program, shipment, unpack_schema(entry.schema))
        elif entry.rows and flow not in schemas:
            raise ValueError(f"rows of {flow} come before their schema")
        if (entry.rows > 0) != (entry.size > 0):
            raise ValueError(f"{entry.rows} rows of {flow} have {entry.size} bytes")
        if entry.watermark < marks.get(flow, UNKNOWN):
            raise ValueError(f"the watermark of {flow} goes back")
        return shipment

    def _declare(self, ledger: SiteLedger, declared: Mapping[str, int]) -> SiteLedger:
        streams = dict(ledger.streams)
        for stream, instant in declared.items():
            state = streams.get(stream, StreamState())
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
        for one in made:
            if one.ticks is not None:
                first = counts.get(one.flow, 0)
                counts[one.flow] = first + one.rows
                ticks = replace(one.ticks, min_ordinal=first, max_ordinal=counts[one.flow] - 1)
                clocks[one.flow] = (*clocks.get(one.flow, ()), ticks)
        return replace(ledger, clocks=clocks, ordinals=counts)

    def _spread(self, marks: Mapping[str, int]) -> dict[str, int]:
        """The watermark of every flow, from those that arrive here."""
        spread = dict(marks)
        for stream in self.program.ordered:
            if stream in spread:
                spread[clock_flow(stream)] = spread[ordered_flow(stream)] = spread[stream]
        for part, operator in self.program.operators:
            reached, out = low_watermark(part, operator, spread), part.flow(operator.out)
            if reached > spread.get(out, UNKNOWN):
                spread[out] = reached
        return spread

    def _paced(self, marks: Mapping[str, int], made: Sequence[Made]) -> dict[str, int]:
        """Watermarks with the latest tuple of each flow that sets a pace."""
        paced = dict(marks)
        for part in self.program.parts:
            for pace, flow in part.program.paces:
                name = part.flow(flow)
                latest = [s.max_ts for one in made if one.flow == name for s in one.segments.values()]
                if flow.form is Form.INTERMEDIATE:  # places on the axis of windows, beyond its last row
                    latest = [place // len(part.join.scans) for place in latest]
                paced[part.flow(pace)] = max((*latest, paced.get(part.flow(pace), UNKNOWN)))
        return paced

    def _buckets_for(self, rows: int) -> int:
        """Into how many buckets so many rows are worth cutting: every one makes messages of its own."""
        return min(self.buckets, 1 + rows // self._rows_a_bucket)

    def _run_rounds(
        self, before: SiteLedger, ledger: SiteLedger, made: list[Made], marks: Mapping[str, int]
    ) -> list[Made]:
        for groups, operators in self._rounds:
            rows = sum(one.rows for one in made)
            buckets = self._buckets_for(rows)
            task = Round(
                self.program,
                self.shelf,
                groups,
                operators,
                buckets,
                old=before.relations,
                new=_segments_made(made),
                clocks=ledger.clocks,
                before=before.watermarks,
                now=marks,
            )
            made = [*made, *self._run_tasks(task, buckets, rows)]
        return made

    def _send(self, ledger: SiteLedger, made: Sequence[Made]) -> SiteLedger:
        """Put into the outbox what other sites get of this micro-batch."""
        links = dict(ledger.links)
        by_flow: dict[str, list[Made]] = {}
        for one in made:
            by_flow.setdefault(one.flow, []).append(one)
        for to in self.program.peers_out:
            link = links.get(to, LinkState())
            shipments = self.program.flows_to(to)
            messages: list[Message] = []
            reported, described, traffic = dict(link.reported), list(link.described), dict(link.traffic)
            for number, shipment in enumerate(shipments):
                flow, name = shipment.arrives_as, payload_name(shipment)
                reached = ledger.watermarks.get(shipment.flow, UNKNOWN)
                payloads = [o.payloads[name] for o in by_flow.get(shipment.flow, ()) if name in o.payloads]
                for payload in payloads:
                    schema = b"" if flow in described else bytes.fromhex(payload.schema)
                    if schema:
                        described.append(flow)
                    data = self.shelf.get_bytes(payload.path)
                    messages.append(Message(number, reached, payload.rows, data, schema))
                if not payloads and reached > reported.get(flow, UNKNOWN):
                    messages.append(Message(number, reached))
                reported[flow] = reached
            if messages:
                parcel = Parcel(link.number + 1, tuple(messages), link.checksum)
                _count(traffic, Purpose.WATERMARKS.value, Traffic(parcel.own_size, 1))
                for message, size in zip(messages, parcel.sizes, strict=True):
                    name = shipments[message.flow].arrives_as if message.rows else Purpose.WATERMARKS.value
                    _count(traffic, name, Traffic(size, int(message.rows > 0), message.rows))
                packed = parcel.pack()
                path = self.shelf.put_bytes(f"parcel-{to}", packed)
                outbox = (*link.outbox, Outgoing(parcel.number, path, len(packed)))
                link = LinkState(parcel.number, reported, tuple(described), outbox, traffic, checksum_of(packed))
            links[to] = link
        return replace(ledger, links=links)

    def _answer(self, ledger: SiteLedger, made: Sequence[Made], failed_rows: Sequence[str | None]) -> SiteLedger:
        """Finish the combinations of this micro-batch for every query that is answered here.

        What their expressions fail for goes where the query keeps it, together with rows that failed as they came.
        """
        undelivered, seen, rows_out = dict(ledger.undelivered), dict(ledger.seen), dict(ledger.rows_out)
        failed, failed_paths = dict(ledger.failed), list(failed_rows)
        for part, finish in self.program.finishes:
            results = [one for one in made if one.results is not None and _is_result_of(part, one.flow)]
            rows = sum(one.rows for one in results)
            if not rows:
                continue
            paths = tuple(one.results for one in results if one.results is not None)
            answers, evaluated = self._finished(finish, paths, rows, ledger)
            if evaluated.failed:
                self._refuse_failed(finish.query, evaluated.failed, evaluated.failed_paths, evaluated.cause)
                failed[finish.query] = failed.get(finish.query, 0) + evaluated.failed
                failed_paths += evaluated.failed_paths
            if answers is None:
                continue
            if finish.distinct:
                fresh = tuple(self._unseen(finish, answers.paths, answers.rows, seen.get(finish.query, ())))
                if not fresh:
                    continue
                seen[finish.query] = (*seen.get(finish.query, ()), *fresh)
                given = tuple(one.path for segment in fresh for one in segment.parts)
                answers = replace(answers, paths=given, rows=sum(segment.rows for segment in fresh))
            undelivered[finish.query] = (*undelivered.get(finish.query, ()), answers)
            rows_out[finish.query] = rows_out.get(finish.query, 0) + answers.rows
        for query, answers in self._kept_failed(ledger.number, failed_paths):
            undelivered[failed_sink(query)] = (*undelivered.get(failed_sink(query), ()), answers)
        return replace(ledger, undelivered=undelivered, seen=seen, rows_out=rows_out, failed=failed)

    def _finished(
        self, finish: Finish, paths: tuple[str, ...], rows: int, ledger: SiteLedger
    ) -> tuple[Answers | None, Evaluated]:
        if finish.plain is not None:
            return Answers(ledger.number, paths, finish.plain, rows), Evaluated(paths)
        evaluated = self._evaluate(finish, paths, rows)
        left = sum(self.shelf.get(path).num_rows for path in evaluated.paths)
        columns = tuple((answer_column(number), name) for number, name in enumerate(finish.names))
        return Answers(ledger.number, evaluated.paths, columns, left) if left else None, evaluated

    def _refuse_failed(self, query: str, count: int, paths: Sequence[str | None], cause: str = "") -> None:
        if self.program.errors[query] == "fail":
            refuse_failed(query, pa.concat_tables(self._tables(paths)), count, cause)

    def _kept_failed(self, number: int, paths: Sequence[str | None]) -> Iterator[tuple[str, Answers]]:
        """By query, where it keeps them: rows and combinations of a micro-batch for which an expression fails."""
        tables = self._tables(paths)
        if not tables:
            return
        found = pa.concat_tables(tables)
        for query in sorted(query for query, errors in self.program.errors.items() if errors == "keep"):
            rows = found.filter(pc.equal(found.column("query"), query))
            if rows.num_rows:
                rows = rows.add_column(1, "batch", pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows))
                columns = tuple((name, name) for name in rows.column_names)
                yield query, Answers(number, (self.shelf.put("failed", rows).path,), columns, rows.num_rows)

    def _tables(self, paths: Sequence[str | None]) -> list[pa.Table]:
        return [self.shelf.get(path) for path in paths if path is not None]

    def _unseen(self, finish: Finish, paths: tuple[str, ...], rows: int, seen: tuple[Segment, ...]) -> list[Segment]:
        buckets = self._buckets_for(rows)
        names = self.shelf.get(paths[0]).column_names
        compared = tuple(name for name in names if not name.startswith("#") and name not in _replaced_columns(names))
        return self._run_tasks(KeepUnseen(self.shelf, buckets, paths, seen, compared), buckets, rows)

    def _tidy(self, ledger: SiteLedger, new: Segments) -> SiteLedger:
        """Keep of old and new rows what can still meet something, and merge what has become many."""
        times: dict[str, Clock] = {}

        def clock(name: str) -> Clock:
            if name not in times:
                times[name] = read_clock(self.shelf, ledger.clocks.get(name, ()))
            return times[name]

        axes = axes_of(self.program, clock)
        relations: dict[str, tuple[Segment, ...]] = {}
        groups: list[tuple[tuple[Segment, ...], str, int | None]] = []
        names: list[str] = []
        for name, readers in self._readers.items():
            needs = [need_of(reader, axis_for(reader, axes), ledger.watermarks) for reader in readers]
            segments = (*ledger.relations.get(name, ()), *new.get(name, ()))
            relations[name] = tuple(one for one in segments if any(need.keeps(one) for need in needs))
            if not readers[0][2].bloom:
                extent, axis, alive = merging(readers, needs)
                for group in choose_merges(relations[name], extent, axis, alive):
                    groups.append((group, axis, alive))
                    names.append(name)
        for query, answered in ledger.seen.items():
            relations[_SEEN + query] = answered
            for group in choose_merges(answered, None, TS, None):
                groups.append((group, TS, None))
                names.append(_SEEN + query)
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
            name: self._united(kept_ticks(self.program, name, ticks, clock(name), ledger.watermarks))
            for name, ticks in ledger.clocks.items()
        }
        seen = {query: relations.pop(_SEEN + query) for query in ledger.seen}
        kept = {name: segments for name, segments in relations.items() if segments}
        return replace(ledger, relations=kept, clocks=clocks, seen=seen)

    def _united(self, ticks: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """A clock in one segment if it has become many."""
        if len(ticks) < _MANY_TICKS:
            return ticks
        whole = shelve(self.shelf, "clock", pa.concat_tables(self.shelf.get(one.parts[0].path) for one in ticks))
        return (replace(whole, min_ordinal=ticks[0].min_ordinal, max_ordinal=ticks[-1].max_ordinal),)


def _rounds(program: SiteProgram) -> list[tuple[tuple[ProbeGroup, ...], tuple[tuple[str, Operator], ...]]]:
    """The operators in order, cut where rows must move to the bucket of another key; probes that are done together."""
    made: dict[str, tuple[int, str]] = {}
    rounds: list[list[tuple[str, Operator]]] = []
    for part, operator in program.operators:
        number, key = 0, f"{part.name} {operator.key}"
        for flow in operator.inputs:
            name = part.flow(flow)
            if name in made:
                before, made_by = made[name]
                number = max(number, before + (made_by != key))
        made[part.flow(operator.out)] = (number, key)
        while len(rounds) <= number:
            rounds.append([])
        rounds[number].append((part.name, operator))
    grouped = [probe_groups(program, operators) for operators in rounds]
    return [(tuple(groups), tuple(rest)) for groups, rest in grouped]


def _is_result_of(part: JoinPart, flow: str) -> bool:
    return flow.startswith(f"{part.name}:")


def _replaced_columns(names: Sequence[str]) -> set[str]:
    """Columns in whose place another one is compared: a text with a collation by its key."""
    return {f"c{name.removeprefix('k')}" for name in names if name.startswith("k") and name[1:].isdigit()}


def _segments_made(made: Sequence[Made]) -> dict[str, tuple[Segment, ...]]:
    new: dict[str, tuple[Segment, ...]] = {}
    for one in made:
        for relation, segment in one.segments.items():
            new[relation] = (*new.get(relation, ()), segment)
    return new


def _count(traffic: dict[str, Traffic], name: str, more: Traffic) -> None:
    traffic[name] = traffic.get(name, Traffic()) + more


def traffic_by_purpose(program: SiteProgram, ledger: SiteLedger) -> dict[str, dict[Purpose, Traffic]]:
    """What a site has sent to each other one, by what it was for."""
    purposes = {(one.to, one.arrives_as): one.purpose for one in program.shipments}
    sent: dict[str, dict[Purpose, Traffic]] = {}
    for to, link in sorted(ledger.links.items()):
        counts: dict[Purpose, Traffic] = {}
        for name, traffic in link.traffic.items():
            purpose = purposes.get((to, name), Purpose.WATERMARKS)
            counts[purpose] = counts.get(purpose, Traffic()) + traffic
        sent[to] = {purpose: counts[purpose] for purpose in Purpose if purpose in counts}
    return sent
