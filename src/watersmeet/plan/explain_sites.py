"""What the queries of a site share, as text: streams read once, probes done together, flows shipped once."""

from collections.abc import Iterator, Mapping

from watersmeet.program.operators import Operator
from watersmeet.program.site.classified import possible_fragments
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.probe_groups import probe_groups
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.site.travelling import most_records
from watersmeet.sharing.gains import total_gain


def shared_text(programs: Mapping[str, SiteProgram]) -> str:
    """What the programs of some sites share between queries; empty where there is only one query."""
    lines: list[str] = []
    for site, program in sorted(programs.items()):
        own = [*_streams(program), *_joins(program), *_probes(program), *_records(program), *_shipments(program)]
        if own and len({query for part in program.parts for query in part.queries}) > 1:
            lines += [f"shared at site {site}", *(f"  {line}" for line in own)]
    return "\n".join(lines)


def _streams(program: SiteProgram) -> Iterator[str]:
    for scan in program.streams:
        queries = _readers(program, scan)
        if len(queries) > 1:
            filters = sum(bool(selection.filters) for selection in scan.selections)
            if scan.stream not in program.needed_selections:
                yield f"stream {scan.stream} is read once for {_named(queries)}, and its rows are not stored"
                continue
            text = f"stream {scan.stream} is read and stored once for {_named(queries)}"
            text += f", with {filters} filter{'s' if filters > 1 else ''} as bits of its rows" if filters else ""
            keys = ", ".join(key.expression.sql.replace("`", "") for key in scan.keys)
            yield f"{text}; indexed by {keys}" if keys else text


def _joins(program: SiteProgram) -> Iterator[str]:
    for part in program.parts:
        if len(part.queries) > 1 and part.program.operators:
            yield f"one join answers {_named(part.queries)}"


def _probes(program: SiteProgram) -> Iterator[str]:
    operators: list[tuple[str, Operator]] = [(part.name, operator) for part, operator in program.operators]
    groups, _ = probe_groups(program, operators)
    together = {tuple(name for name, _ in group.members) for group in groups}
    for joins in sorted(together):
        yield f"the joins of {_named(joins)} probe together: the same windows and keys, with filters of their own"


def _records(program: SiteProgram) -> Iterator[str]:
    """Queries with groups that share partial records: the size of F, and what that saves (pier.txt, chapter 5)."""
    scans = {scan.stream: scan for scan in program.streams}
    for family in program.families:
        shape = family.shape
        parts = [part for part in program.parts if shape in part.shapes.values()]
        queries = [query for part in parts for query in part.shapes if part.shapes[query] == shape]
        text = f"a row of {shape.stream} counts in one partial record for {_named(queries)}"
        possible = possible_fragments(scans[shape.stream], family.selections)
        if possible is None:
            yield f"{text}; F grows with the data, for {len(family.selections)} different filters"
            continue
        records = most_records(shape, possible)
        gain = total_gain(records, len(queries))
        size = f"F has at most {len(possible):,} fragments x {len(family.selections):,} different filters"
        yield f"{text}; {size}, k = {records:,} records a pane and group instead of {len(queries):,}, gain {gain:.0%}"


def _shipments(program: SiteProgram) -> Iterator[str]:
    for shipment in program.shipments:
        if shipment.shape is not None:
            records = f"shared partial records over {shipment.shape.stream}"
            yield f"{records} go to {shipment.to} once for the joins of {_named(shipment.joins)}"
            continue
        users = [part for part in program.parts if any(part.flow(s.flow) == shipment.flow for s in part.program.ships)]
        queries = [query for part in users if _ships_to(part, shipment.flow, shipment.to) for query in part.queries]
        if len(queries) > 1:
            yield f"{shipment.flow} goes to {shipment.to} once for {_named(queries)}"


def _ships_to(part: JoinPart, flow: str, to: str) -> bool:
    return any(ship.to == to and part.flow(ship.flow) == flow for ship in part.program.ships)


def _readers(program: SiteProgram, scan: StreamScan) -> list[str]:
    parts = [part for part in program.parts if any(view.stream == scan.stream for view in part.views.values())]
    return list(dict.fromkeys(query for part in parts for query in part.queries))


def _named(queries: "list[str] | tuple[str, ...]", most: int = 5) -> str:
    """Some names, not more than can be read."""
    if len(queries) <= most:
        return ", ".join(queries)
    return f"{', '.join(queries[:most])} and {len(queries) - most} more"
