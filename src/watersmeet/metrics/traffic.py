"""What crossed the links: bytes, batches and tuples by link and purpose, what they cost, and what central would."""

from collections.abc import Mapping
from dataclasses import dataclass

from watersmeet.cost.price import Cost
from watersmeet.program.operators import Purpose, SiteProgram
from watersmeet.program.site.engine import SiteLedger, Traffic, traffic_by_purpose
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
        query_site: str,
        cost: Cost | None = None,
        seconds: float = 0.0,
    ) -> "LinkTraffic":
        """The traffic of a query, from the programs and ledgers of its sites; with what a cost foresaw for so long."""
        expected = expected_bytes(cost) if cost is not None else {}
        rows, central_bytes, central_price = [], 0, 0.0
        for origin, (program, ledger) in sorted(sites.items()):
            for to, purposes in traffic_by_purpose(program, ledger).items():
                per_byte = topology.link(origin, to).price_per_gb / _GIGA
                for purpose, traffic in purposes.items():
                    estimated = expected.get((origin, to, purpose), 0.0) * seconds if cost is not None else None
                    rows.append(LinkRow(origin, to, purpose.value, traffic, traffic.bytes * per_byte, estimated))
            central = sum(traffic.bytes for traffic in ledger.central.values())
            central_bytes += central
            if origin != query_site:
                central_price += central * topology.link(origin, query_site).price_per_gb / _GIGA
        return LinkTraffic(tuple(rows), central_bytes, central_price)


def expected_bytes(cost: Cost) -> dict[tuple[str, str, Purpose], float]:
    """Bytes a second that a cost foresees, by link and purpose."""
    found = {(*pair, Purpose.WATERMARKS): size for pair, (size, _) in cost.overhead.items()}
    for one in cost.flows:
        slot = (one.origin, one.to, one.purpose)
        found[slot] = found.get(slot, 0.0) + one.bytes_s
    return found
