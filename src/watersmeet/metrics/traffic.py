"""What crossed the links: bytes, batches and tuples by link and purpose, what they cost, and what central would."""

from collections.abc import Mapping
from dataclasses import dataclass

from watersmeet.cost.costs import Cost
from watersmeet.program.operators import Purpose
from watersmeet.program.site.ledger import SiteLedger, Traffic
from watersmeet.program.site.outbox import traffic_by_purpose
from watersmeet.program.site.program import SiteProgram
from watersmeet.topology.model import Topology

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One purpose on one link."""

    origin: str
    to: str
    purpose: str
    traffic: Traffic
    price: float
    estimated_bytes: float | None = None  # what the plan was expected to ship until now


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """The traffic of some sites."""

    rows: tuple[LinkRow, ...]
    central_bytes: int
    central_price: float

    @property
    def bytes(self) -> int:
        return sum(row.traffic.bytes for row in self.rows)

    @property
    def price(self) -> float:
        return sum(row.price for row in self.rows)

    @property
    def estimated_bytes(self) -> float | None:
        """What the plan was expected to ship until now."""
        known = [row.estimated_bytes for row in self.rows if row.estimated_bytes is not None]
        return sum(known) if known else None

    @staticmethod
    def of(
        topology: Topology,
        sites: Mapping[str, tuple[SiteProgram, SiteLedger]],
        costs: Mapping[str, Cost] | None = None,
        seconds: float = 0.0,
    ) -> "LinkTraffic":
        """The traffic of all queries, by the programs and ledgers of sites; with what costs by join foresaw so far."""
        expected = expected_bytes(costs, sites) if costs else {}
        rows, central_bytes, central_price = [], 0, 0.0
        for origin, (program, ledger) in sorted(sites.items()):
            for to, purposes in traffic_by_purpose(program, ledger).items():
                per_byte = topology.link(origin, to).price_per_gb / _GIGA
                for purpose, traffic in purposes.items():
                    estimated = expected.get((origin, to, purpose), 0.0) * seconds if costs else None
                    rows.append(LinkRow(origin, to, purpose.value, traffic, traffic.bytes * per_byte, estimated))
            for stream, traffic in ledger.central.items():
                for to in _wanted_at(program, stream) - {origin}:
                    central_bytes += traffic.bytes
                    central_price += traffic.bytes * topology.link(origin, to).price_per_gb / _GIGA
        return LinkTraffic(tuple(rows), central_bytes, central_price)


def _wanted_at(program: SiteProgram, stream: str) -> set[str]:
    """The sites at which queries over a stream want their answers."""
    parts = [part for part in program.parts if any(view.stream == stream for view in part.views.values())]
    return {part.join.site for part in parts if part.join.site is not None}


def expected_flows(
    costs: Mapping[str, Cost], programs: Mapping[str, SiteProgram]
) -> dict[tuple[str, str, Purpose, str], float]:
    """Bytes a second that the costs of joins foresee, by link, purpose and flow; what several ship counts once."""
    flows: dict[tuple[str, str, Purpose, str], float] = {}
    for join, cost in costs.items():
        for (origin, to), (size, _) in cost.overhead.items():
            slot = (origin, to, Purpose.WATERMARKS, Purpose.WATERMARKS.value)
            flows[slot] = max(size, flows.get(slot, 0.0))
        parts = {site: part for site, program in programs.items() for part in program.parts if part.name == join}
        anywhere = next(iter(parts.values()), None)
        for flow in cost.flows:
            part = parts.get(flow.to, anywhere)  # rows of streams have the name that they arrive under
            name = part.views[flow.flow].flow if part is not None and flow.flow in part.views else f"{join}:{flow.flow}"
            slot = (flow.origin, flow.to, flow.purpose, name)
            flows[slot] = max(flow.bytes_s, flows.get(slot, 0.0))
    return flows


def expected_bytes(
    costs: Mapping[str, Cost], sites: Mapping[str, tuple[SiteProgram, SiteLedger]]
) -> dict[tuple[str, str, Purpose], float]:
    """The same by link and purpose."""
    found: dict[tuple[str, str, Purpose], float] = {}
    programs = {name: program for name, (program, _) in sites.items()}
    for (origin, to, purpose, _), size in expected_flows(costs, programs).items():
        found[origin, to, purpose] = found.get((origin, to, purpose), 0.0) + size
    return found
