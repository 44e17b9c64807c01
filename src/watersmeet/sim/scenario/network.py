"""The network section of a scenario as frozen values: peers, their overlay and latencies, and what can go wrong."""

from dataclasses import dataclass
from enum import Enum
from math import exp, inf

from watersmeet.errors import InputError
from watersmeet.query.windows import format_duration
from watersmeet.sim.internet.churn import Exponential, LogNormal, Pareto, Sessions, Weibull
from watersmeet.sim.internet.hosts import Congestion
from watersmeet.sim.rjoin.dynamic_network import ACCESS_BPS

MOST_NODES = 1_000_000  # what one process was measured to hold
MOST_DYNAMIC_NODES = 5_000  # each with timers and messages of its own


class OverlayKind(Enum):
    """How peers find the owner of a key."""

    CHORD = "chord"
    BAMBOO = "bamboo"


class LatencyKind(Enum):
    """The latency model between hosts."""

    CONSTANT = "constant"
    STAR = "star"
    TRANSIT_STUB = "transit-stub"
    KING = "king"


class SessionKind(Enum):
    """The distribution of session lengths."""

    EXPONENTIAL = "exponential"
    PARETO = "pareto"
    WEIBULL = "weibull"
    LOGNORMAL = "lognormal"


class Runtime(Enum):
    """How the network is simulated: as arrays that never change, or as nodes with timers and messages."""

    STATIC = "static"
    DYNAMIC = "dynamic"


class Timeouts(Enum):
    """When a sender takes a message for lost."""

    IDEAL = "ideal"  # exactly when it is
    MEASURED = "measured"  # after a while that is estimated from round trips, so that a long queue looks like loss


# What `hop` is if it is not said; the delays of a transit-stub network are its own.
HOP_US = {LatencyKind.CONSTANT: 50_000, LatencyKind.STAR: 100_000, LatencyKind.KING: 75_000}


@dataclass(frozen=True, slots=True)
class ChurnSettings:
    """Who joins and leaves: for each node that goes another one joins, but those at which users are do not go."""

    sessions: SessionKind = SessionKind.EXPONENTIAL
    mean_us: int = 600_000_000
    graceful_fraction: float = 0.0  # of those that go: they hand over what they keep; the others crash
    stable_nodes: int = 6  # at which tuples are published and queries asked; they do not go

    def __post_init__(self) -> None:
        if self.mean_us < 1:
            raise InputError(f"mean must be positive, not {format_duration(self.mean_us)}")
        if not 0 <= self.graceful_fraction <= 1:
            raise InputError(f"graceful_fraction must be from 0 to 1, not {self.graceful_fraction:g}")
        if self.stable_nodes < 1:
            raise InputError(
                f"stable_nodes must be 1 or more, not {self.stable_nodes}: somebody has to publish and ask"
            )

    @property
    def distribution(self) -> Sessions:
        """The distribution of session lengths, with that mean."""
        match self.sessions:
            case SessionKind.EXPONENTIAL:
                return Exponential(self.mean_us)
            case SessionKind.WEIBULL:
                return Weibull(self.mean_us)
            case SessionKind.PARETO:  # its mean is shape / (shape - 1) times the shortest, its median 2^(1/shape) times
                shape = 1.5
                return Pareto(self.mean_us * (shape - 1) / shape * 2 ** (1 / shape), shape)
            case SessionKind.LOGNORMAL:
                sigma = 1.0
                return LogNormal(self.mean_us * exp(-(sigma**2) / 2), sigma)


@dataclass(frozen=True, slots=True)
class DynamicSettings:
    """What only a dynamic network has: queues on access links, lost messages, nodes that join and leave."""

    congestion: Congestion = Congestion.NONE
    loss: float = 0.0
    access_bps: float | None = ACCESS_BPS  # None: sending takes no time
    churn: ChurnSettings | None = None
    timeouts: Timeouts = Timeouts.IDEAL

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise InputError(f"loss must be from 0 to less than 1, not {self.loss:g}")
        if self.access_bps is not None and not 0 < self.access_bps < inf:
            raise InputError(f"access must be more than 0, not {self.access_bps:g} bps; none: sending takes no time")
        if self.access_bps is None and self.congestion is not Congestion.NONE:
            raise InputError(f"congestion {self.congestion.value} needs an access link; leave out access: none")


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The peers: how many, how they are joined, and how far they are from each other.

    `hop_us` is the delay of every hop (constant), between two average hosts (star), or the median over pairs (king).
    """

    nodes: int = 1_000
    overlay: OverlayKind = OverlayKind.CHORD
    latency: LatencyKind = LatencyKind.CONSTANT
    hop_us: int | None = None
    seed: int = 1
    dynamic: DynamicSettings | None = None  # None: static, unless RJoin is to do something against loss

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise InputError(f"nodes must be from 1 to {MOST_NODES:,}, not {self.nodes:,}")
        if self.seed < 0:
            raise InputError(f"seed must be 0 or more, not {self.seed}")
        if self.hop_us is not None:
            if self.latency is LatencyKind.TRANSIT_STUB:
                raise InputError(
                    "hop does not go with latency: transit-stub, which has delays of its own; leave it out"
                )
            if self.hop_us < 1:
                raise InputError(f"hop must be positive, not {format_duration(self.hop_us)}")
        churn = None if self.dynamic is None else self.dynamic.churn
        if churn is not None and churn.stable_nodes > self.nodes:
            raise InputError(
                f"churn: stable_nodes must be at most the {self.nodes} nodes there are, not {churn.stable_nodes}"
            )
