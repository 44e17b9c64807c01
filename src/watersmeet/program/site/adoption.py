"""How a site goes over to the next revision, and how it leaves joins behind that are over.

Going over is a step between two micro-batches, when no row from the agreed instant on is here yet: indexes that new
joins need are built from rows that are here, rows that they need elsewhere are sent, and the new joins take all of it
as new rows. What is read of a relation that an old join keeps for the same windows is not even copied.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.program.finish.model import Finish, definition_name
from watersmeet.program.finish.outer import definition_of
from watersmeet.program.operators import Form, Gather, Purpose
from watersmeet.program.site.agreement import DecidedBy, Proposal, Takeover, Versions
from watersmeet.program.site.deployment import Deployment, program_at
from watersmeet.program.site.engine import SiteEngine, read_versions, write_versions
from watersmeet.program.site.filing import (
    Made,
    during,
    pack_for_others,
    rows_of_index,
    shelve,
    sorted_rows,
    stream_of,
    where,
)
from watersmeet.program.site.ledger import SiteLedger, Traffic
from watersmeet.program.site.outbox import bytes_sent
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import Index, Shipment, SiteProgram
from watersmeet.program.site.reuse import windows_needed
from watersmeet.program.site.shared_groups import shared_states
from watersmeet.program.site.streams import clock_flow
from watersmeet.program.site.versions import next_deployment
from watersmeet.program.storage.segments import KEY, ORDINAL, TS, column
from watersmeet.program.storage.shelf import Segment, Shelf
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import Window

Value = TypeVar("Value")


def first_ledger(
    shelf: Shelf,
    deployment: Deployment,
    form: DecidedBy = DecidedBy.POINT_TO_POINT,
    ledger: SiteLedger | None = None,
    origin: str = "",
    queries: Mapping[str, str] | None = None,
    streams: Mapping[str, str] | None = None,
) -> SiteLedger:
    """The ledger with which a site begins whose plans may change; `queries` and `streams` are definitions."""
    versions = Versions(deployment, form=form, origin=origin, queries=queries or {}, streams=streams or {})
    return replace(ledger or SiteLedger(), versions=write_versions(shelf, versions))


def with_finishes(
    shelf: Shelf, ledger: SiteLedger, finishes: Iterable[Finish], queries: Mapping[str, str] | None = None
) -> SiteLedger:
    """The ledger with other select lists: what follows a join may be corrected between two starts.

    `queries` are the definitions of queries that are in force, as they are now.
    """
    versions = read_versions(shelf, ledger)
    joins, known = versions.deployment.joins, versions.queries
    since = {finish.query: finish.since for joined in versions.deployment.in_force for finish in joined.finishes}
    given = {
        (finish.query, finish.branch): replace(finish, since=since[finish.query])
        for finish in finishes
        if finish.query in since
    }
    corrected = tuple(
        replace(joined, finishes=tuple(_corrected(given.get((old.query, old.branch)), old) for old in joined.finishes))
        for joined in joins
    )
    defined = {definition_name(name, since[name]): text for name, text in (queries or {}).items() if name in since}
    if corrected == joins and all(known.get(name) == text for name, text in defined.items()):
        return ledger
    deployment = replace(versions.deployment, joins=corrected)
    versions = replace(versions, deployment=deployment, queries={**known, **defined})
    return replace(ledger, versions=write_versions(shelf, versions))


def _corrected(given: Finish | None, known: Finish) -> Finish:
    """What follows a join as it is given now, if it is what the query asks for now."""
    return given if given is not None and given.since == known.since else known


def program_of(shelf: Shelf, ledger: SiteLedger, site: str) -> SiteProgram:
    """What a site does by its ledger."""
    return program_in(read_versions(shelf, ledger), site)


def program_in(versions: Versions, site: str) -> SiteProgram:
    """What a site does by what it knows of versions."""
    return program_at(versions.deployment, site, versions.gone, versions.numbering)


def adopt(engine: SiteEngine, ledger: SiteLedger) -> tuple[SiteEngine, SiteLedger]:
    """Go over to the revision that all sites have agreed on."""
    assert ledger.is_complete, "rows that are not joined yet were filed for the joins before"
    versions, old = engine.versions(ledger), engine.program
    proposal = versions.proposal
    assert proposal is not None and proposal.decision is not None, "all sites have agreed"
    decided = proposal.decision
    after = next_deployment(
        *(versions.deployment, proposal.change, proposal.number, decided.at_us, decided.retired), decided.holdings
    )
    gone = tuple(name for name in versions.gone if name not in decided.retired)
    began = [joined.heads.from_us for joined in after.joins if joined.since == after.revision]
    in_force = {joined.name for joined in versions.deployment.in_force}
    ended = [joined.heads.until_us for joined in after.joins if joined.name in in_force]
    split_us = next((one for one in (*began, *reversed(ended)) if one is not None), decided.at_us)
    entry = Takeover(after.revision, proposal.change, split_us, "", *bytes_sent(old, ledger))
    versions = replace(
        versions.with_numbering(old.revision, old.numbers_in).with_change(entry),
        deployment=after,
        gone=gone,
        number=proposal.number,
        proposal=None,
        queries=_definitions(versions, proposal, after),
        streams={**versions.streams, **proposal.change.streams},
    )
    program = program_at(after, old.site, gone, versions.numbering)
    ledger = replace(ledger, versions=write_versions(engine.shelf, versions), hold_us=None)
    starting = [part for part in program.parts if part.name not in {part.name for part in old.parts}]
    relations = {**ledger.relations, **_built(engine.shelf, old, program, starting, ledger)}
    history = list(_history(engine.shelf, old, program, ledger))
    ledger = engine.regrouped(replace(ledger, relations=relations), program)
    ledger = _pruned(ledger, old, program)
    next_engine = engine.with_program(program)
    with_past = frozenset(part.name for part in starting if not part.is_fresh)  # for others there is nothing here yet
    ledger = next_engine.begin(ledger, history, with_past)
    return next_engine, next_engine.continued(ledger)


def _definitions(versions: Versions, proposal: Proposal, after: Deployment) -> dict[str, str]:
    """What the queries of a deployment ask for, those that end among them."""
    begun = {definition_name(plan.query, proposal.number): plan.definition for plan in proposal.change.plans}
    used = {finish.definition for joined in after.joins for finish in joined.finishes}
    return {name: text for name, text in {**versions.queries, **begun}.items() if name in used}


def _built(
    shelf: Shelf, old: SiteProgram, program: SiteProgram, starting: Sequence[JoinPart], ledger: SiteLedger
) -> dict[str, tuple[Segment, ...]]:
    """Indexes that nobody had, of rows that are here."""
    built: dict[str, tuple[Segment, ...]] = {}
    known = {index.relation for indexes in old.indexes.values() for index in indexes}
    for flow, indexes in program.indexes.items():
        fresh = [index for index in indexes if index.relation not in known]
        source = _source(old, flow, starting)
        for index in fresh if source else ():
            segments = (_indexed(shelf, program, flow, index, segment) for segment in ledger.relations.get(source, ()))
            built[index.relation] = tuple(segment for segment in segments if segment is not None)
    return built


def _source(old: SiteProgram, flow: str, starting: Sequence[JoinPart]) -> str:
    """The relation that has all rows of a stream that new joins need here; empty where none has or needs to have."""
    if not old.history:
        return ""
    if stream_of(old, flow) in {scan.stream for scan in old.streams}:
        return old.covering(flow, _needed_of(old, flow)) or ""
    needs = [
        (view.selection, window)
        for part in starting
        if not part.is_fresh
        for view, window in windows_needed(part)
        if view.flow == flow
    ]
    return (old.covering(flow, needs) if needs else None) or ""


def _indexed(shelf: Shelf, program: SiteProgram, flow: str, index: Index, segment: Segment) -> Segment | None:
    table = pa.concat_tables([shelf.get(part.path) for part in segment.parts])
    rows = rows_of_index(program, flow, table.drop_columns([KEY]).combine_chunks(), index)
    return shelve(shelf, "index", sorted_rows(rows, index)) if rows.num_rows else None


def _history(shelf: Shelf, old: SiteProgram, program: SiteProgram, ledger: SiteLedger) -> Iterable[Made]:
    """Rows that came before, and row clocks, for sites that get them for new joins from here."""
    known = {(shipment.to, shipment.arrives_as) for shipment in old.shipments}
    for flow, shipments in program.shipments_of.items():
        fresh = [
            shipment
            for shipment in shipments
            if (shipment.to, shipment.arrives_as) not in known and shipment.has_history
        ]
        if not fresh:
            continue
        if fresh[0].form is Form.CLOCK:
            yield from _clock_history(shelf, program, flow, fresh, ledger)
        elif fresh[0].columns is not None:
            parts = dict.fromkeys((shipment.source or _source(old, flow, ()), shipment.past) for shipment in fresh)
            for source, past in parts:
                wanted = [shipment for shipment in fresh if shipment.past == past and shipment.source in ("", source)]
                for segment in ledger.relations.get(source, ()):
                    whole = pa.concat_tables([shelf.get(part.path) for part in segment.parts]).combine_chunks()
                    table = where(whole, during(whole, past))
                    payloads = pack_for_others(program, shelf, flow, table, only=wanted)
                    yield Made(flow, table.num_rows, payloads=payloads, is_history=True)


def _needed_of(old: SiteProgram, flow: str) -> list[tuple[int, Window]]:
    """All windows over a local stream's rows that joins in force have."""
    found = ((part.views[alias], part.join.scan(alias).window) for part, alias in old.in_force)
    return [(view.selection, window) for view, window in found if view.flow == flow]


def _clock_history(
    shelf: Shelf, program: SiteProgram, flow: str, shipments: Sequence[Shipment], ledger: SiteLedger
) -> Iterable[Made]:
    ticks = ledger.clocks.get(flow, ())
    if not ticks:
        return
    times = np.concatenate([column(shelf.get(segment.parts[0].path), TS) for segment in ticks])
    ordinals = np.arange(ticks[0].min_ordinal, ticks[0].min_ordinal + len(times))
    table = pa.table({TS: times, ORDINAL: ordinals})
    payloads = pack_for_others(program, shelf, flow, table, only=shipments)
    yield Made(flow, len(times), payloads=payloads, is_history=True)


def finished(program: SiteProgram, ledger: SiteLedger) -> tuple[str, ...]:
    """Joins for which nothing is left to do here: all that they read has come to the end of their span."""
    marks = ledger.watermarks
    over = []
    for part in program.parts:
        if part.heads.until_us is None:
            continue
        flows = {part.mark(flow) for operator in part.program.operators for flow in operator.inputs}
        others = {Form.PACE, Form.RESULT} if part.is_grouped else {Form.PACE}
        flows |= {part.flow(ship.flow) for ship in part.program.ships if ship.flow.form not in others}
        flows |= {part.flow(flow) for _, flow in part.program.inbound if flow.form not in others}
        records = (*program.shipments, *(shipment for _, shipment in program.inbound))
        flows |= {
            shipment.arrives_as for shipment in records if shipment.form is Form.RECORD and shipment.is_of(part.name)
        }
        if all(marks.get(flow, UNKNOWN) >= part.heads.until_us for flow in flows):
            over.append(part.name)
    return _without_read(program, over)


def _without_read(program: SiteProgram, over: Sequence[str]) -> tuple[str, ...]:
    """Those of some joins whose answers no other join reads as rows of a derived stream: views end after readers."""
    while True:
        read = {view.stream for part in program.parts if part.name not in over for view in part.views.values()}
        targets = [(part.name, finish.target) for part, finish in program.finishes]
        feeding = {name for name, target in targets if target.is_stream and target.name in read}
        if not feeding & set(over):
            return tuple(over)
        over = [name for name in over if name not in feeding]


def drop(engine: SiteEngine, ledger: SiteLedger, names: Iterable[str]) -> tuple[SiteEngine, SiteLedger]:
    """Leave joins behind that are over here."""
    assert ledger.is_complete, "rows that are not joined yet were filed for these joins too"
    versions, old = engine.versions(ledger), engine.program
    versions = replace(versions, gone=tuple(sorted({*versions.gone, *names})))
    program = program_at(versions.deployment, old.site, versions.gone, versions.numbering)
    ledger = replace(ledger, versions=write_versions(engine.shelf, versions))
    ledger = engine.detached(ledger, program)
    ledger = replace(ledger, relations=dict(_narrowed(engine.shelf, old, program, ledger)))
    return engine.with_program(program), _pruned(ledger, old, program)


def _narrowed(
    shelf: Shelf, old: SiteProgram, program: SiteProgram, ledger: SiteLedger
) -> Iterable[tuple[str, tuple[Segment, ...]]]:
    """The relations that are still read, without rows that only joins of the past have selected."""
    before = {index.relation: index for indexes in old.indexes.values() for index in indexes}
    flows = {index.relation: (flow, index) for flow, indexes in program.indexes.items() for index in indexes}
    for relation, segments in ledger.relations.items():
        if relation not in flows:
            continue
        flow, index = flows[relation]
        if relation not in before or before[relation].selections == index.selections:
            yield relation, segments
            continue
        kept = (_narrowed_segment(shelf, program, flow, index, segment) for segment in segments)
        yield relation, tuple(segment for segment in kept if segment is not None)


def _narrowed_segment(shelf: Shelf, program: SiteProgram, flow: str, index: Index, segment: Segment) -> Segment | None:
    table = pa.concat_tables([shelf.get(part.path) for part in segment.parts]).combine_chunks()
    rows = rows_of_index(program, flow, table, replace(index, route=None))
    if rows.num_rows == table.num_rows:
        return segment
    return replace(shelve(shelf, "index", rows), level=segment.level) if rows.num_rows else None


def _pruned(ledger: SiteLedger, old: SiteProgram, program: SiteProgram) -> SiteLedger:
    """The ledger without what it says of flows that are no more; what they have sent still counts by its purpose."""
    lost = _flows(old) - _flows(program)
    lost |= {finish.definition for _, finish in old.finishes} - {finish.definition for _, finish in program.finishes}
    lost |= shared_states(old) - shared_states(program)
    purposes = {(shipment.to, shipment.arrives_as): shipment.purpose for shipment in old.shipments}
    left = {(shipment.to, shipment.arrives_as) for shipment in program.shipments}
    links = {}
    for to, link in ledger.links.items():
        dropped = [flow for flow in link.traffic if (to, flow) in purposes and (to, flow) not in left]
        traffic = {flow: count for flow, count in link.traffic.items() if flow not in dropped}
        for flow in dropped:
            purpose = purposes[to, flow].value
            traffic[purpose] = traffic.get(purpose, Traffic()) + link.traffic[flow]
        links[to] = replace(
            link,
            traffic=traffic,
            reported={flow: mark for flow, mark in link.reported.items() if _is_left(to, flow, purposes, left)},
            described=tuple(flow for flow in link.described if _is_left(to, flow, purposes, left)),
        )
    return replace(
        ledger,
        links=links,
        watermarks=_without(ledger.watermarks, lost),
        schemas=_without(ledger.schemas, lost),
        clocks=_without(ledger.clocks, lost),
        ordinals=_without(ledger.ordinals, lost),
        groups=_without(ledger.groups, lost),
        closed=_without(ledger.closed, lost),
        matching={name: rows for name, rows in ledger.matching.items() if definition_of(name) not in lost},
        seen=_without(ledger.seen, lost),
    )


def _is_left(to: str, flow: str, before: Mapping[tuple[str, str], Purpose], left: set[tuple[str, str]]) -> bool:
    return (to, flow) in left or (to, flow) not in before


def _without(values: Mapping[str, Value], lost: set[str]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if name not in lost}


def _flows(program: SiteProgram) -> set[str]:
    """All flows that a site has anything to do with."""
    found = {shipment.arrives_as for _, shipment in program.inbound} | {shipment.flow for shipment in program.shipments}
    for part in program.parts:
        for operator in part.program.operators:
            found |= {part.flow(operator.out), *(part.flow(flow) for flow in operator.inputs)}
            found |= {part.flow(flow) for flow in operator.reached} if isinstance(operator, Gather) else set()
        found |= {part.flow(ship.flow) for ship in part.program.ships}
        found |= {part.flow(pace) for pace, _ in part.program.paces}
    found |= {name for scan in program.streams for name in (scan.stream, clock_flow(scan.stream))}
    return found
