"""The links between sites as values that check themselves: latency, bandwidth, price, and what carries batches."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from watersmeet.errors import TopologyError, did_you_mean
from watersmeet.query.windows import format_duration
from watersmeet.topology.names import check_site

EVERY_PAIR = ("*", "*")

# How batches travel between sites.
TRANSPORTS = ("directory", "kafka")


@dataclass(frozen=True, slots=True)
class Link:
    """The network between two sites, the same in both directions: latency, bandwidth (None: no limit) and price.

    >>> Link(("ams", "nyc"), latency_us=80_000, bandwidth_bps=100e6, price_per_gb=0.02)
    Link(between=('ams', 'nyc'), latency_us=80000, bandwidth_bps=100000000.0, price_per_gb=0.02)
    """

    between: tuple[str, str] = EVERY_PAIR
    latency_us: int = 0
    bandwidth_bps: float | None = None
    price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        what = link_name(self.between)
        if self.latency_us < 0:
            raise TopologyError(f"{what}: latency {format_duration(self.latency_us)} is negative; use 0 ms or more")
        if self.bandwidth_bps is not None and not 0 < self.bandwidth_bps < inf:
            raise TopologyError(
                f"{what}: bandwidth must be positive, not {self.bandwidth_bps:g} bps; leave it out for no limit"
            )
        if not 0 <= self.price_per_gb < inf:
            raise TopologyError(f"{what}: price_per_gb must be 0 or more, not {self.price_per_gb:g}")

    @property
    def distance(self) -> tuple[float, float]:
        """How far rows go over it: what a gigabyte costs, then how many seconds a megabyte takes.

        >>> Link(latency_us=5_000, bandwidth_bps=8e6, price_per_gb=0.02).distance, Link(latency_us=5_000).distance
        ((0.02, 1.005), (0.0, 0.005))
        """
        seconds = 0.0 if self.bandwidth_bps is None else 8e6 / self.bandwidth_bps
        return self.price_per_gb, self.latency_us / 1e6 + seconds


@dataclass(frozen=True, slots=True)
class LinkTransport:
    """How batches travel between sites: as files in a directory that all sites can reach, or as topics of Kafka.

    With keys, from a file or from a variable of the environment, what travels is encrypted and authenticated.

    >>> LinkTransport("kafka", options={"bootstrap.servers": "broker:9092"}).topics
    'watersmeet'
    """

    kind: str = "directory"
    path: str | None = None
    max_pending_bytes: int = 256_000_000
    topics: str = "watersmeet"  # what the names of topics begin with
    options: Mapping[str, str] = field(default_factory=dict)  # of Kafka's clients, by librdkafka's names
    key_file: str | None = None
    key_env: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in TRANSPORTS:
            raise TopologyError(f"link_transport: unknown kind {self.kind!r}; {did_you_mean(self.kind, TRANSPORTS)}")
        if self.max_pending_bytes <= 0:
            raise TopologyError(f"link_transport: max_pending must be positive, not {self.max_pending_bytes} B")
        if self.kind == "kafka":
            if self.path is not None:
                raise TopologyError("link_transport: path is for kind directory; remove it, or the kind")
            if not self.options.get("bootstrap.servers"):
                raise TopologyError(
                    "link_transport: kind kafka needs to know its brokers, such as "
                    "options: {bootstrap.servers: 'broker1:9092,broker2:9092'}"
                )
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", self.topics):
                raise TopologyError(
                    f"link_transport: topics {self.topics!r} must be up to 100 letters, digits, dots, dashes and "
                    "underscores"
                )
        elif self.options:
            raise TopologyError("link_transport: options are for kind kafka; remove them, or set the kind")
        if self.key_file is not None and self.key_env is not None:
            raise TopologyError("link_transport has both key_file and key_env; keep one of them")


def check_pair(between: tuple[str, str], known: Sequence[str]) -> None:
    """Refuse a link that does not join two known sites."""
    what = link_name(between)
    for site in between:
        check_site(site, what, known)
    if between[0] == between[1]:
        raise TopologyError(f"{what} joins a site to itself; name two sites")


def link_name(between: tuple[str, str]) -> str:
    """The link in the words of an error message."""
    return "default_link" if between == EVERY_PAIR else f"the link between {between[0]!r} and {between[1]!r}"
