"""How a query of SQL is run among peers: how its inputs are joined, what carries tuples, and their types."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from watersmeet.program.pier.sql.groups import RecordRouting


class JoinMethod(Enum):
    """How two inputs are joined."""

    SYMMETRIC_HASH = "symmetric_hash"
    FETCH_MATCHES = "fetch_matches"
    SEMIJOIN = "semijoin"
    BLOOM = "bloom"
    HIERARCHICAL = "hierarchical"


class Transport(Enum):
    """What carries tuples to the node that joins them: the DHT, or messages to addresses from an ideal directory."""

    DHT = "dht"
    IP = "ip"


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How a query is run."""

    method: JoinMethod = JoinMethod.SYMMETRIC_HASH
    transport: Transport = Transport.DHT
    duration_s: float = 60.0
    slack_s: float = 60.0  # how long state outlives its window: longer than any message takes
    bloom_bits: int = 65_536
    bloom_hashes: int = 4
    aggregation: str | None = None  # the algorithm of an aggregation tree for GROUP BY; None: to the owners of groups
    roots: int = 1  # trees among which groups are spread, each with a root of its own
    group_wait_s: float = 3.0  # how long groups wait for more: longer than a message takes to any node
    bloom_wait_s: float = 5.0  # how often filters are OR-ed and broadcast as long as new ones come
    renew_s: float | None = None  # how often tuples in the DHT are renewed by those who sent them; None: never
    computation_nodes: int | None = None  # so many nodes, by address, join all tuples; only over IP (4.3.3)
    skewed: bool = False  # all tuples into one hash bucket: the worst case of section 4.3.4


@dataclass(frozen=True, slots=True)
class StreamTypes:
    """What the compiler has to know of a stream: the types of its columns in UFL, and its event time."""

    columns: Mapping[str, str]
    event_time: str


def group_settings(settings: PlanSettings) -> RecordRouting:
    """What of the settings is about groups."""
    by_ip = settings.transport is Transport.IP
    return RecordRouting(settings.group_wait_s, by_ip, settings.aggregation, settings.roots)
