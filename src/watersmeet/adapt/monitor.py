"""What is observed of streams and links while a query runs, newer observations counting more.

Rates are decayed sums of rows over decayed sums of seconds. How values spread, how large rows are and which filters
they pass comes from sketches of two generations: the present one and the one before it, each as long as `HALF_LIVES`
half-lives, so that what is older than two generations is forgotten. All pure: (state, observation, now) to state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from watersmeet.stats.model import Number, Origin, Stats, StreamStats
from watersmeet.stats.sketches import StreamSketch, confidence_of
from watersmeet.stats.yaml import filled
from watersmeet.topology.model import Link, Topology

HALF_LIVES = 2  # of a generation of sketches
_LEAST_ROWS = 30  # fewer say nothing about how values spread


@dataclass(frozen=True, slots=True)
class StreamObserved:
    """Rows of a stream in some seconds of event time, and a sketch of them."""

    stream: str
    rows: int
    seconds: float
    sketch: StreamSketch | None = None


@dataclass(frozen=True, slots=True)
class LinkObserved:
    """A transfer over a link: how long it was under way, and how fast it went if it was large enough to tell."""

    between: tuple[str, str]
    latency_s: float | None = None
    bandwidth_bps: float | None = None


Observation: TypeAlias = StreamObserved | LinkObserved


@dataclass(frozen=True, slots=True)
class _Decayed:
    """A sum whose parts fade, and the weight it is to be divided by."""

    total: float = 0.0
    weight: float = 0.0
    at_s: float = 0.0

    def added(self, total: float, weight: float, now_s: float, half_life_s: float) -> "_Decayed":
        keep = 0.5 ** (max(now_s - self.at_s, 0.0) / half_life_s) if self.weight else 0.0
        return _Decayed(self.total * keep + total, self.weight * keep + weight, now_s)

    @property
    def mean(self) -> float | None:
        return self.total / self.weight if self.weight > 0 else None


@dataclass(frozen=True)
class _Sketches:
    """Two generations; neither is changed once it is here."""

    since_s: float
    present: StreamSketch
    before: StreamSketch | None = None

    def added(self, sketch: StreamSketch, now_s: float, length_s: float) -> "_Sketches":
        if now_s - self.since_s >= length_s:
            is_next = now_s - self.since_s < 2 * length_s
            return _Sketches(now_s, _merged(sketch), self.present if is_next else None)
        return replace(self, present=_merged(self.present, sketch))

    @property
    def whole(self) -> StreamSketch:
        return _merged(self.present, *((self.before,) if self.before is not None else ()))


def _merged(*sketches: StreamSketch) -> StreamSketch:
    whole = StreamSketch()
    for sketch in sketches:
        whole.merge(sketch)
    return whole


@dataclass(frozen=True)
class MonitorState:
    """All that has been observed, as far as it is remembered."""

    half_life_s: float = 30.0
    rates: Mapping[str, _Decayed] = field(default_factory=dict)
    sketches: Mapping[str, _Sketches] = field(default_factory=dict)
    latencies: Mapping[frozenset[str], _Decayed] = field(default_factory=dict)
    bandwidths: Mapping[frozenset[str], _Decayed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.half_life_s <= 0:
            raise ValueError("the half-life must be positive")


def observe(state: MonitorState, observation: Observation, now_s: float) -> MonitorState:
    """The state after an observation.

    >>> state = observe(MonitorState(10.0), StreamObserved("a", 100, 1.0), 0.0)
    >>> state = observe(state, StreamObserved("a", 400, 1.0), 10.0)
    >>> statistics(state, Stats()).stream("a").rate.value
    300.0
    """
    match observation:
        case StreamObserved(stream, rows, seconds, sketch):
            rate = state.rates.get(stream, _Decayed()).added(rows, seconds, now_s, state.half_life_s)
            state = replace(state, rates={**state.rates, stream: rate})
            if sketch is None or not sketch.rows:
                return state
            known = state.sketches.get(stream)
            length_s = HALF_LIVES * state.half_life_s
            found = _Sketches(now_s, _merged(sketch)) if known is None else known.added(sketch, now_s, length_s)
            return replace(state, sketches={**state.sketches, stream: found})
        case LinkObserved(between, latency_s, bandwidth_bps):
            pair = frozenset(between)
            if latency_s is not None:
                one = state.latencies.get(pair, _Decayed()).added(latency_s, 1.0, now_s, state.half_life_s)
                state = replace(state, latencies={**state.latencies, pair: one})
            if bandwidth_bps is not None:
                one = state.bandwidths.get(pair, _Decayed()).added(bandwidth_bps, 1.0, now_s, state.half_life_s)
                state = replace(state, bandwidths={**state.bandwidths, pair: one})
            return state
        case _:
            assert_never(observation)


def statistics(state: MonitorState, given: Stats, taken_at: float | None = None) -> Stats:
    """What planners are told: what is observed, and where nothing is, what was given."""
    streams: dict[str, StreamStats] = {}
    selectivities: dict[str, Number] = {}
    for stream, rows in state.rates.items():
        found = StreamStats()
        if stream in state.sketches:
            whole = state.sketches[stream].whole
            if whole.rows >= _LEAST_ROWS:
                found = whole.stats(Origin.OBSERVED, taken_at)
                selectivities |= whole.selectivities(Origin.OBSERVED, taken_at)
        if (rate := rows.mean) is not None:
            confidence = confidence_of(max(round(rows.total), 0), 0.0)
            found = replace(found, rate=Number(rate, Origin.OBSERVED, confidence, taken_at))
        streams[stream] = found
    return filled(Stats(streams, selectivities), given)


def with_links(state: MonitorState, topology: Topology) -> Topology:
    """The topology with latency and bandwidth as observed."""
    pairs = {*state.latencies, *state.bandwidths}
    links = []
    for pair in sorted(pairs, key=sorted):
        first, second = sorted(pair, key=topology.site_names.index)
        link = topology.link(first, second)
        latency_s = state.latencies[pair].mean if pair in state.latencies else None
        bandwidth = state.bandwidths[pair].mean if pair in state.bandwidths else None
        links.append(
            Link(
                (first, second),
                link.latency_us if latency_s is None else round(latency_s * 1e6),
                link.bandwidth_bps if bandwidth is None else bandwidth,
                link.price_per_gb,
            )
        )
    others = [link for link in topology.links if frozenset(link.between) not in pairs]
    # Where no link is given all sites have one: those that are observed must not cut the others off.
    default = topology.default_link or (Link() if not topology.links and links else None)
    return replace(topology, links=(*others, *links), default_link=default)
