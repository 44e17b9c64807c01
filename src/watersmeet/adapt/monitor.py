"""What is observed of streams and links while a query runs, newer observations counting more.

Rates are decayed sums of rows over decayed sums of seconds. How values spread, how large rows are and which filters
they pass comes from sketches of two generations: the present one and the one before it, each as long as `HALF_LIVES`
half-lives, so that what is older than two generations is forgotten. What chance cannot explain is followed at once:
the past is dropped where three observations of a rate in a row are off in the same direction, and where a sketch finds
other values popular. Links are fitted to the transfers seen: seconds = latency + bytes / bandwidth, by least squares
with decaying weights. All pure: (state, observation, now) to state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log, sqrt
from typing import TypeAlias, assert_never

from watersmeet.adapt.chance import stream_without_chance
from watersmeet.program.site.matches import Matched
from watersmeet.stats.columns import confidence_of
from watersmeet.stats.model import Number, Origin, Stats, StreamStats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.stats.yaml import filled
from watersmeet.topology.model import Link, Topology

HALF_LIVES = 2  # of a generation of sketches
LEAST_ROWS = 30  # fewer say nothing about how values spread
_FEW_ROWS = 200  # after a change of values, so many are awaited for a while
_OFF_IN_A_ROW = 3  # observations of a rate that are no chance any more, each off by a share and some standard errors
_OFF_SHARE = 0.25
_OFF_ERRORS = 4.0
_LEAST_TRANSFERS = 4.0  # fewer say nothing about a link
_DIFFERENT = 0.2  # relative standard deviation of sizes from which on they tell the bandwidth from the latency
_EXPLAINED = 0.5  # of the variance of seconds, by the sizes, so that the slope is no chance
_SAME = 0.25  # a link that differs less from what is given is as given
_LEAST_MATCHES = 100.0  # combinations that say how many there are
_OTHER = 1.5  # times as many, or as few, are others
_STEP = 1.25  # and others are taken in steps of such a factor


@dataclass(frozen=True, slots=True)
class StreamObserved:
    """Rows of a stream in some seconds of event time, and a sketch of them, which nobody changes any more."""

    stream: str
    rows: int
    seconds: float
    sketch: StreamSketch | None = None


@dataclass(frozen=True, slots=True)
class TransferObserved:
    """A message over a link: how large it was and how long it was under way."""

    between: tuple[str, str]
    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class MatchesObserved:
    """Combinations that a join has found in some seconds, of streams whose rates are observed."""

    what: Matched
    streams: tuple[str, ...]  # of its aliases
    rows: int
    seconds: float
    filling_s: float  # after rates or values have changed it takes so long until windows are as they say


Observation: TypeAlias = StreamObserved | TransferObserved | MatchesObserved


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


@dataclass(frozen=True, slots=True)
class _Rate:
    """Rows a second, and the latest observations if chance explains none of them and all are off in one direction."""

    average: _Decayed = _Decayed()
    since_s: float = 0.0  # since when the past counts
    off: tuple[tuple[float, float], ...] = ()  # rows and seconds

    def added(self, rows: float, seconds: float, now_s: float, half_life_s: float) -> "_Rate":
        average, mean = self.average.added(rows, seconds, now_s, half_life_s), self.average.mean
        if mean is None:
            return _Rate(average, now_s)
        if seconds <= 0:
            return _Rate(average, self.since_s, self.off)
        expected = mean * seconds
        error = _OFF_SHARE * expected + _OFF_ERRORS * sqrt(max(expected, 1.0))
        if abs(rows - expected) <= error:
            return _Rate(average, self.since_s)
        is_alike = all((past > mean * length) == (rows > expected) for past, length in self.off)
        off = (*(self.off if is_alike else ()), (rows, seconds))
        if len(off) < _OFF_IN_A_ROW:
            return _Rate(average, self.since_s, off)
        total, weight = (sum(part) for part in zip(*off, strict=True))
        return _Rate(_Decayed(total, weight, now_s), now_s)


Past = tuple[tuple[float, ...], tuple[int, ...]]  # since when rates count, and drifts of values


@dataclass(frozen=True, slots=True)
class _Matches:
    """Combinations a second, averaged as the rates of their streams are, and by the product of these."""

    past: Past  # of its streams: when others count, it begins anew
    average: _Decayed = _Decayed()
    counted: float = 0.0  # combinations that it comes from
    known: float | None = None  # the average by the product of rates, in steps that chance does not make

    def added(self, rows: float, seconds: float, product: float, now_s: float, half_life_s: float) -> "_Matches":
        """So many combinations at least tell how many there are; fewer do if so many should have come."""
        average = self.average.added(rows, seconds, now_s, half_life_s)
        keep = 0.5 ** (max(now_s - self.average.at_s, 0.0) / half_life_s) if self.average.weight else 0.0
        counted, mean, known = self.counted * keep + rows, (average.mean or 0.0) / product, self.known
        should = 0.0 if known is None else known * product * average.weight
        if max(counted, should) >= _LEAST_MATCHES and (known is None or not known / _OTHER <= mean <= known * _OTHER):
            known = mean
        return _Matches(self.past, average, counted, known)


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Decayed sums over transfers, x their bytes and y their seconds."""

    at_s: float = 0.0
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def added(self, x: float, y: float, now_s: float, half_life_s: float) -> "_Transfers":
        keep = 0.5 ** (max(now_s - self.at_s, 0.0) / half_life_s) if self.weight else 0.0
        before = (self.weight, self.x, self.y, self.xx, self.xy, self.yy)
        new = (1.0, x, y, x * x, x * y, y * y)
        return _Transfers(now_s, *(keep * old + value for old, value in zip(before, new, strict=True)))

    def fitted(self, link: Link) -> tuple[float, float | None] | None:
        """Latency in seconds and bits a second; where sizes hardly differ, the bandwidth is the one given.

        Nothing where too few transfers were seen, or where they agree with the link as it is given.
        """
        if self.weight < _LEAST_TRANSFERS:
            return None
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        xx, xy, yy = (
            total / self.weight - one * other
            for total, one, other in ((self.xx, mean_x, mean_x), (self.xy, mean_x, mean_y), (self.yy, mean_y, mean_y))
        )
        is_told_apart = xx > (_DIFFERENT * mean_x) ** 2 and xy > 0 and xy * xy > _EXPLAINED * xx * yy
        bits = 8 * xx / xy if is_told_apart else link.bandwidth_bps
        latency_s = max(mean_y - (8 * mean_x / bits if bits else 0.0), 0.0)
        is_as_fast = bits == link.bandwidth_bps or _agree(bits, link.bandwidth_bps)
        bits = link.bandwidth_bps if is_as_fast else bits
        if is_as_fast and _agree(mean_y, _seconds(link, mean_x)):
            return None
        return _stepped(latency_s), bits if bits is None or is_as_fast else _stepped(bits)


def _agree(seen: float | None, given: float | None) -> bool:
    return seen is not None and given is not None and abs(seen - given) <= _SAME * given


def _seconds(link: Link, size: float) -> float:
    return link.latency_us / 1e6 + (8 * size / link.bandwidth_bps if link.bandwidth_bps else 0.0)


def _stepped(value: float) -> float:
    """A value to about a tenth: links that vary a little must not look like other links at every observation."""
    return _STEP ** round(log(value, _STEP)) if value > 1e-6 else 0.0


@dataclass(frozen=True)
class _Sketches:
    """Two generations; neither is changed once it is here."""

    since_s: float
    present: StreamSketch
    before: StreamSketch | None = None
    drifts: int = 0  # times that the past was dropped
    measured: StreamSketch | None = None  # the last before both whose rows were measured: sizes are seldom looked at

    def added(self, sketch: StreamSketch, now_s: float, length_s: float) -> "_Sketches":
        if sketch.drifted_from(self.before or self.present):
            return _Sketches(now_s, sketch, None, self.drifts + 1, self.whole)
        if now_s - self.since_s >= length_s:
            is_next = now_s - self.since_s < 2 * length_s
            return _Sketches(now_s, sketch, self.present if is_next else None, self.drifts, self.whole)
        return replace(self, present=_merged(self.present, sketch))

    @property
    def whole_rows(self) -> int:
        return self.present.sketched + (self.before.sketched if self.before is not None else 0)

    @cached_property
    def whole(self) -> StreamSketch:
        """Both generations; not to be changed."""
        both = self.present if self.before is None else _merged(self.present, self.before)
        return both if both.has_sizes or self.measured is None else both.with_sizes_of(self.measured)


def _merged(first: StreamSketch, *others: StreamSketch) -> StreamSketch:
    whole = first.copy()
    for sketch in others:
        whole.merge(sketch)
    return whole


@dataclass(frozen=True)
class MonitorState:
    """All that has been observed, as far as it is remembered."""

    half_life_s: float = 30.0
    rates: Mapping[str, _Rate] = field(default_factory=dict)
    sketches: Mapping[str, _Sketches] = field(default_factory=dict)
    transfers: Mapping[frozenset[str], _Transfers] = field(default_factory=dict)
    matches: Mapping[Matched, _Matches] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.half_life_s <= 0:
            raise ValueError("the half-life must be positive")

    def sketched_rows(self, stream: str) -> int:
        """How many rows of a stream the figures of its values come from."""
        return self.sketches[stream].whole_rows if stream in self.sketches else 0

    def is_moving(self, now_s: float) -> bool:
        """Whether something seems to have changed, and a few more observations will tell."""
        fresh_s = self.half_life_s / 2
        return any(rate.off for rate in self.rates.values()) or any(
            sketch.drifts
            and sketch.before is None
            and sketch.present.sketched < _FEW_ROWS
            and now_s - sketch.since_s < fresh_s
            for sketch in self.sketches.values()
        )

    @property
    def rate_errors(self) -> dict[str, float]:
        """The relative standard error of each rate."""
        totals = {stream: rate.average.total for stream, rate in self.rates.items()}
        return {stream: total**-0.5 if total > 0 else inf for stream, total in totals.items()}

    def figures(self, topology: Topology) -> dict[str, float]:
        """A few numbers that differ where plans might have to."""
        found = {stream: rate.average.mean or 0.0 for stream, rate in self.rates.items()}
        found |= {f"{stream} drifts": float(2**sketch.drifts) for stream, sketch in self.sketches.items()}
        found |= {
            f"{stream} is known": float(sketch.whole_rows >= LEAST_ROWS) for stream, sketch in self.sketches.items()
        }
        for pair, transfers in self.transfers.items():
            fitted = transfers.fitted(topology.link(*sorted(pair)))
            found[f"{sorted(pair)}"] = 0.0 if fitted is None else fitted[0] + 8e4 / (fitted[1] or inf)
        found |= {f"{what}": known for what, known in self.known_matches.items()}
        return found

    @property
    def known_matches(self) -> dict[Matched, float]:
        """Combinations a second by the product of the rates of their streams, as far as enough were seen."""
        return {what: match.known for what, match in self.matches.items() if match.known is not None}

    def without_query(self, query: str) -> "MonitorState":
        """Without what the joins of a query have found: one of its name may find something else."""
        return replace(self, matches={what: match for what, match in self.matches.items() if what.query != query})

    def with_matches(self, seen: MatchesObserved, now_s: float) -> "MonitorState":
        """With combinations that were found, unless windows are still of before rates or values have changed."""
        rates = [self.rates.get(stream) for stream in seen.streams]
        product = 1.0
        for rate in rates:
            if rate is None or rate.off or not rate.average.mean:
                return self
            product *= rate.average.mean
        sketches = [self.sketches[stream] for stream in seen.streams if stream in self.sketches]
        begins = (
            *(rate.since_s for rate in rates if rate is not None),
            *(sketch.since_s for sketch in sketches if sketch.drifts and sketch.before is None),
        )
        if now_s - max(begins) < seen.filling_s:
            return self
        drifts = tuple(sketch.drifts for sketch in sketches)
        past = (tuple(rate.since_s for rate in rates if rate is not None), drifts)
        known = self.matches.get(seen.what, _Matches(past))
        if known.past != past:  # what was found counts no more, but what is known as long as values are the same
            known = _Matches(past, known=known.known if known.past[1] == drifts else None)
        added = known.added(seen.rows, seen.seconds, product, now_s, self.half_life_s)
        return replace(self, matches={**self.matches, seen.what: added})


def observe(state: MonitorState, observation: Observation, now_s: float) -> MonitorState:
    """The state after an observation.

    >>> state = observe(MonitorState(10.0), StreamObserved("a", 100, 1.0), 0.0)
    >>> state = observe(state, StreamObserved("a", 130, 1.0), 10.0)
    >>> statistics(state, Stats()).stream("a").rate.value
    120.0
    """
    match observation:
        case StreamObserved(stream, rows, seconds, sketch):
            rate = state.rates.get(stream, _Rate()).added(rows, seconds, now_s, state.half_life_s)
            state = replace(state, rates={**state.rates, stream: rate})
            if sketch is None or not sketch.rows:
                return state
            known = state.sketches.get(stream)
            length_s = HALF_LIVES * state.half_life_s
            found = _Sketches(now_s, sketch) if known is None else known.added(sketch, now_s, length_s)
            return replace(state, sketches={**state.sketches, stream: found})
        case TransferObserved(between, size, seconds):
            pair = frozenset(between)
            known_transfers = state.transfers.get(pair, _Transfers())
            added = known_transfers.added(size, seconds, now_s, state.half_life_s)
            return replace(state, transfers={**state.transfers, pair: added})
        case MatchesObserved():
            return state.with_matches(observation, now_s)
        case _:
            assert_never(observation)


def statistics(
    state: MonitorState,
    given: Stats,
    taken_at: float | None = None,
    reported: Mapping[str, StreamStats] | None = None,
) -> Stats:
    """Statistics for planners: what is observed, and where nothing is, what was given.

    `reported` are the values of streams as whoever decides knows them, without chance, in place of those of now.
    """
    streams: dict[str, StreamStats] = {}
    selectivities: dict[str, Number] = {}
    for stream, known in state.rates.items():
        rows = known.average
        found = StreamStats()
        if stream in state.sketches:
            whole = state.sketches[stream].whole
            if whole.rows >= LEAST_ROWS:
                known_values = (reported or {}).get(stream)
                if known_values is None:
                    known_values = stream_without_chance(whole.stats(Origin.OBSERVED, taken_at), whole.sketched)
                found = known_values
                selectivities |= whole.selectivities(Origin.OBSERVED, taken_at)
        if (rate := rows.mean) is not None:
            confidence = confidence_of(max(round(rows.total), 0), 0.0)
            found = replace(found, rate=Number(rate, Origin.OBSERVED, confidence, taken_at))
        streams[stream] = found
    return filled(Stats(streams, selectivities), given)


FittedLink: TypeAlias = tuple[float, float | None]  # seconds of latency, and bits a second


def fitted_links(state: MonitorState, topology: Topology) -> dict[frozenset[str], FittedLink]:
    """Latency and bandwidth of links as observed, where they are not about as given."""
    found = {}
    for pair in sorted(state.transfers, key=sorted):
        fitted = state.transfers[pair].fitted(topology.link(*sorted(pair)))
        if fitted is not None:
            found[pair] = fitted
    return found


def with_links(state: MonitorState, topology: Topology) -> Topology:
    """The topology with latency and bandwidth as observed, where they are not about as given."""
    return with_fitted(topology, fitted_links(state, topology))


def with_fitted(topology: Topology, fitted: Mapping[frozenset[str], FittedLink]) -> Topology:
    """The topology with other latencies and bandwidths of some links."""
    if not fitted:
        return topology
    links: dict[frozenset[str], Link] = {}
    for pair in sorted(fitted, key=sorted):
        first, second = sorted(pair, key=topology.site_names.index)
        latency_s, bits = fitted[pair]
        links[pair] = Link((first, second), round(latency_s * 1e6), bits, topology.link(first, second).price_per_gb)
    others = [link for link in topology.links if frozenset(link.between) not in links]
    # Where no link is given all sites have one: those that are observed must not cut the others off.
    default = topology.default_link or (Link() if not topology.links else None)
    return replace(topology, links=(*others, *links.values()), default_link=default)
