"""What each query has taken and given so far: shared windows and flows count for every query that uses them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from watersmeet.program.finish.outer import definition_of
from watersmeet.program.operators import ROWLESS
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.roles import stored_inputs
from watersmeet.program.site.streams import clock_flow


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts since a checkpoint began, and the state now."""

    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    malformed: int = 0
    null_keys: int = 0
    failed: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    bytes_shipped: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Usage)))

    def since(self, before: "Usage") -> "Usage":
        """What was counted after another usage; the state is the one now."""
        counts = {field.name: getattr(self, field.name) - getattr(before, field.name) for field in fields(Usage)}
        return Usage(**counts | {"state_rows": self.state_rows, "state_bytes": self.state_bytes})


def usage_of(sites: Iterable[tuple[SiteProgram, SiteLedger]], query: str | None = None) -> Usage:
    """The usage of a query over some sites, or of all queries together, where everything counts once."""
    every = list(sites)
    selects = None if query is None else _selects((program for program, _ in every), query)
    return sum((_at_site(program, ledger, query, selects) for program, ledger in every), Usage())


def _selects(programs: Iterable[SiteProgram], query: str) -> frozenset[str]:
    """The SELECTs whose answers a query's sink gets: of a UNION ALL there are several."""
    finishes = (finish for program in programs for _, finish in program.finishes)
    own = {finish.query for finish in finishes if finish.target.name == query and not finish.target.is_stream}
    return frozenset({query, *own})


def _at_site(program: SiteProgram, ledger: SiteLedger, query: str | None, selects: frozenset[str] | None) -> Usage:
    parts = [part for part in program.parts if selects is None or selects & set(part.queries)]
    read = {view.stream for part in parts for view in part.views.values()}
    states = [state for stream, state in ledger.streams.items() if stream in read]
    relations = {name for part in parts for name in _relations(part)}
    kept = [segment for name, segments in ledger.relations.items() if name in relations for segment in segments]
    for stream in sorted({view.stream for part in parts for view in part.views.values() if view.ordered}):
        kept += [*ledger.clocks.get(clock_flow(stream), ()), *ledger.pending.get(stream, ())]
    records = None if selects is None else set(_records(program, parts, selects))
    kept += [
        segment for name, segments in ledger.seen.items() if records is None or name in records for segment in segments
    ]
    kept += [segment for name, some in ledger.groups.items() if records is None or name in records for segment in some]
    kept += [
        segment
        for name, some in ledger.matching.items()
        if records is None or definition_of(name) in records
        for segment in some
    ]
    flows = {name for part in parts for name in _shipped(part)}
    sizes = [
        traffic.bytes
        for link in ledger.links.values()
        for name, traffic in link.traffic.items()
        if query is None or name in flows
    ]
    return Usage(
        rows_in=sum(state.rows for state in states),
        rows_out=sum(ledger.rows_out.get(name, 0) for name in program.answered if query in (None, name)),
        late=sum(state.late for state in states),
        malformed=sum(state.malformed for state in states),
        null_keys=_count(ledger.null_keys, selects),
        failed=_count(ledger.failed, selects),
        state_rows=sum(segment.rows for segment in kept),
        state_bytes=sum(segment.bytes for segment in kept),
        bytes_shipped=sum(sizes),
    )


def _count(counts: Mapping[str, int], selects: frozenset[str] | None) -> int:
    return sum(count for name, count in counts.items() if selects is None or name in selects)


def _records(program: SiteProgram, parts: Iterable[JoinPart], selects: frozenset[str]) -> Iterable[str]:
    """Under what names groups and rows of outer joins are kept for some SELECTs."""
    yield from (finish.definition for _, finish in program.finishes if finish.query in selects)
    for part in parts:
        for name in selects & set(part.queries):
            yield part.records(name, program.site)
            if name in part.shapes:
                yield part.shapes[name].name


def _relations(part: JoinPart) -> Iterable[str]:
    for operator in part.program.operators:
        for flow in stored_inputs(operator):
            yield part.relation(flow, operator.key, operator.sub_plans)


def _shipped(part: JoinPart) -> Iterable[str]:
    for ship in part.program.ships:
        if ship.flow.form not in ROWLESS:
            yield part.flow(ship.arrives_as)
