"""What crossed the links: bytes, batches and tuples by link and purpose, what they cost, and what central would."""

from collections.abc import Mapping
from dataclasses import dataclass

from watersmeet.program.operators import SiteProgram
from watersmeet.program.site import SiteLedger, Traffic, traffic_by_purpose
from watersmeet.topology import Topology

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One purpose on one link."""

    origin: str
    to: str
    purpose: str
    traffic: Traffic
    price: float


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

    @staticmethod
    def of(topology: Topology, sites: Mapping[str, tuple[SiteProgram, SiteLedger]], query_site: str) -> "LinkTraffic":
        """The traffic of a query, from the programs and ledgers of its sites."""
        rows, central_bytes, central_price = [], 0, 0.0
        for origin, (program, ledger) in sorted(sites.items()):
            for to, purposes in traffic_by_purpose(program, ledger).items():
                per_byte = topology.link(origin, to).price_per_gb / _GIGA
                for purpose, traffic in purposes.items():
                    rows.append(LinkRow(origin, to, purpose.value, traffic, traffic.bytes * per_byte))
            central = sum(traffic.bytes for traffic in ledger.central.values())
            central_bytes += central
            if origin != query_site:
                central_price += central * topology.link(origin, query_site).price_per_gb / _GIGA
        return LinkTraffic(tuple(rows), central_bytes, central_price)
