"""What plans take, as values: units of work on a machine, and costs a second by flow, operator, site and link."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import inf

from watersmeet.program.operators import Purpose
from watersmeet.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Units:
    """What the steps of a site micro-batch take on a machine, in seconds; `watersmeet calibrate` measures them."""

    micro_batch_s: float = 1.1e-3  # a site micro-batch in which anything happens
    operator_s: float = 1.3e-3  # an operator that has something to do
    row_s: float = 2.5e-7  # a row that is filed under a key
    probe_s: float = 2e-8  # a row that looks something up
    match_s: float = 5e-8  # a pair that is found
    pack_s: float = 4e-8  # a row that is packed or unpacked

    def __post_init__(self) -> None:
        for item in fields(self):
            if not 0 <= getattr(self, item.name) < inf:
                raise ValueError(f"{item.name} must be 0 or more")


DEFAULT_UNITS = Units()


@dataclass(frozen=True, slots=True)
class FlowCost:
    """One flow on one link."""

    origin: str
    to: str
    flow: str
    purpose: Purpose
    rows_s: float
    bytes_s: float
    messages_s: float
    answers_s: float = 0.0  # answers that travel as these partial records
    answers_bytes_s: float = 0.0  # what they would take as rows


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One operator at one site."""

    site: str
    flow: str  # what it makes
    rows_s: float
    cpu: float  # seconds a second


@dataclass(frozen=True)
class Cost:
    """What a plan takes, a second."""

    flows: tuple[FlowCost, ...]
    operators: tuple[OperatorCost, ...]
    overhead: Mapping[tuple[str, str], tuple[float, float]]  # bytes and parcels beside the flows' rows, by link
    state_rows: Mapping[str, float]  # by site
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)  # a byte, by link
    delay_s: float = 0.0
    batches: Mapping[str, float] = field(default_factory=dict)  # seconds a second beside operators, by site
    busiest: tuple[str, str, float] = ("", "", 0.0)  # the link with the least room, and the share of it in use

    @cached_property
    def link_bytes(self) -> dict[tuple[str, str], float]:
        """Bytes a second on each link."""
        found = {pair: more for pair, (more, _) in self.overhead.items()}
        for flow in self.flows:
            found[flow.origin, flow.to] = found.get((flow.origin, flow.to), 0.0) + flow.bytes_s
        return dict(sorted(found.items()))

    @cached_property
    def cpu(self) -> dict[str, float]:
        """The share of a core that each site needs."""
        found = dict(self.batches)
        for operator in self.operators:
            found[operator.site] = found.get(operator.site, 0.0) + operator.cpu
        return dict(sorted(found.items()))

    @property
    def bytes_s(self) -> float:
        return sum(self.link_bytes.values())

    @property
    def messages_s(self) -> float:
        """Parcels a second."""
        return sum(parcels for _, parcels in self.overhead.values())

    @property
    def money_s(self) -> float:
        return sum(self.prices.get(pair, 0.0) * size for pair, size in self.link_bytes.items())

    def seconds_on_links(self, topology: Topology) -> float:
        """Seconds a second that parcels spend on links: the semijoin paper's transmission time."""
        total = 0.0
        for pair, size in self.link_bytes.items():
            link = topology.link(*pair)
            total += self.overhead[pair][1] * link.latency_us / 1e6
            total += size * 8 / link.bandwidth_bps if link.bandwidth_bps else 0.0
        return total
