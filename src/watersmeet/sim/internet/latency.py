"""One-way delays between numbered hosts, generated from a seed: star, transit-stub and King (PIER, section 3.1.4).

Every model is symmetric, gives 0 between a host and itself, keeps O(hosts) numbers, and wraps around: host number h
lives where h modulo `hosts` does, so that hosts which join later have a place as well.

Transit-stub: the path goes up to a transit node, along the shortest way between transit nodes, and down; a path within
a stub domain stays there. The usual delays of 50, 20, 5 and 2 ms are the defaults.

King: round trips between DNS servers measured with the tool of Gummadi et al. (2002) have a median near 150 ms and a
long tail, which lifts the mean to about 180 ms. We fit the median exactly and the mean roughly (the model's is about
170 ms), nothing else: points around three regions of a plane, and a height for each host's access path as in Vivaldi's
coordinates. Triangle inequalities hold here; in the measurements some do not.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Hosts: TypeAlias = NDArray[np.int64]
Delays: TypeAlias = NDArray[np.int64]


class Latency(Protocol):
    """How long the wire is between two hosts: the same both ways, and the same at every call."""

    def latency_us(self, a: int, b: int) -> int:
        """The one-way delay between two hosts."""

    def many(self, a: Hosts, b: Hosts) -> Delays:
        """The one-way delays between the hosts of two arrays, pair by pair."""


@dataclass(frozen=True, slots=True)
class ConstantLatency:
    """The same delay between all hosts."""

    delay_us: int = 50_000

    def __post_init__(self) -> None:
        if self.delay_us < 0:
            raise ValueError(f"delay_us must not be negative: {self.delay_us}")

    def latency_us(self, a: int, b: int) -> int:
        """The one-way delay between two hosts."""
        return self.delay_us if a != b else 0

    def many(self, a: Hosts, b: Hosts) -> Delays:
        """The one-way delays between the hosts of two arrays, pair by pair."""
        return np.where(a == b, 0, self.delay_us).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Star:
    """All through one hub: `delay_us` between two average hosts, each spoke drawn evenly from its half +- `spread_us`.

    >>> Star(hosts=100).latency_us(3, 99), Star(hosts=100).latency_us(3, 3)
    (100000, 0)
    """

    hosts: int
    delay_us: int = 100_000
    spread_us: int = 0
    seed: int = 0
    _spokes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        mean_us = self.delay_us // 2
        if not 0 <= self.spread_us <= mean_us:
            raise ValueError(f"spread_us must be between 0 and half of delay_us: {self.spread_us}, {self.delay_us}")
        low_us, high_us = mean_us - self.spread_us, mean_us + self.spread_us
        spokes = np.random.default_rng(self.seed).integers(low_us, high_us, self.hosts, endpoint=True)
        object.__setattr__(self, "_spokes", tuple(spokes.tolist()))

    def latency_us(self, a: int, b: int) -> int:
        """The one-way delay between two hosts."""
        if a == b:
            return 0
        spokes, hosts = self._spokes, self.hosts
        return spokes[a % hosts] + spokes[b % hosts]

    def many(self, a: Hosts, b: Hosts) -> Delays:
        """The one-way delays between the hosts of two arrays, pair by pair."""
        spokes = np.array(self._spokes, dtype=np.int64)
        return np.where(a == b, 0, spokes[a % self.hosts] + spokes[b % self.hosts])


@dataclass(frozen=True, slots=True)
class TransitStub:
    """Transit domains of transit nodes, stub domains below each of these, and hosts placed evenly at random in stubs.

    Domains form a random connected graph, and so do the nodes of each; the wires between two domains end at random
    nodes of both. `density` is the share of pairs wired beyond what connects them.
    """

    hosts: int
    transit_domains: int = 4
    nodes_per_domain: int = 4
    stubs_per_node: int = 8
    between_domains_us: int = 50_000
    within_domain_us: int = 20_000
    transit_to_stub_us: int = 5_000
    within_stub_us: int = 2_000
    density: float = 0.5
    seed: int = 0
    _stubs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _rows: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)  # delays from stub to stub

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        if min(self.transit_domains, self.nodes_per_domain, self.stubs_per_node) < 1:
            raise ValueError(f"every level needs at least one member: {self}")
        generator = np.random.default_rng(self.seed)
        transit = self._transit_us(generator)
        node_of_stub = np.repeat(np.arange(len(transit)), self.stubs_per_node)
        below_us = self.within_stub_us + self.transit_to_stub_us  # from a host to its transit node
        between = transit[np.ix_(node_of_stub, node_of_stub)] + 2 * below_us
        np.fill_diagonal(between, self.within_stub_us)
        stubs = generator.integers(0, len(node_of_stub), self.hosts)
        object.__setattr__(self, "_stubs", tuple(stubs.tolist()))
        object.__setattr__(self, "_rows", tuple(tuple(row) for row in between.tolist()))

    def _transit_us(self, generator: np.random.Generator) -> Delays:
        """The shortest delays between transit nodes."""
        nodes = self.nodes_per_domain
        far = np.iinfo(np.int64).max // 4  # so that the sum of two is still a number
        count = self.transit_domains * nodes
        delays = np.full((count, count), far, dtype=np.int64)
        np.fill_diagonal(delays, 0)
        for domain in range(self.transit_domains):
            for a, b in _connected_pairs(nodes, self.density, generator):
                first, second = domain * nodes + a, domain * nodes + b
                delays[first, second] = delays[second, first] = self.within_domain_us
        for a, b in _connected_pairs(self.transit_domains, self.density, generator):
            first, second = a * nodes + int(generator.integers(nodes)), b * nodes + int(generator.integers(nodes))
            delays[first, second] = delays[second, first] = self.between_domains_us
        for via in range(count):
            delays = np.minimum(delays, delays[:, via, None] + delays[None, via, :])
        return delays

    def latency_us(self, a: int, b: int) -> int:
        """The one-way delay between two hosts."""
        if a == b:
            return 0
        stubs, hosts = self._stubs, self.hosts
        return self._rows[stubs[a % hosts]][stubs[b % hosts]]

    def many(self, a: Hosts, b: Hosts) -> Delays:
        """The one-way delays between the hosts of two arrays, pair by pair."""
        stubs, rows = np.array(self._stubs), np.array(self._rows, dtype=np.int64)
        return np.where(a == b, 0, rows[stubs[a % self.hosts], stubs[b % self.hosts]])


# Share of the hosts, and place on the plane in milliseconds before scaling, of three regions far from each other.
_REGIONS = ((0.5, 0.0, 0.0), (0.3, 55.0, 0.0), (0.2, -60.0, 100.0))
_REGION_SPREAD_MS = 15.0
_HEIGHT_MEDIAN_MS, _HEIGHT_SIGMA = 12.0, 1.2  # lognormal: few hosts are far from everyone, and they make the tail
_PAIRS_SCALED_BY = 20_000


@dataclass(frozen=True, slots=True)
class King:
    """Distance on a plane plus the heights of both hosts; `median_us` is the median one-way delay over all pairs."""

    hosts: int
    median_us: int = 75_000
    seed: int = 0
    _places: tuple[tuple[float, float, float], ...] = field(init=False, repr=False, compare=False)  # x, y, height

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        generator = np.random.default_rng(self.seed)
        share, *centres = np.array(_REGIONS).T
        region = generator.choice(len(share), self.hosts, p=share)
        points = np.stack(centres, axis=1)[region] + generator.normal(0.0, _REGION_SPREAD_MS, (self.hosts, 2))
        heights = _HEIGHT_MEDIAN_MS * generator.lognormal(0.0, _HEIGHT_SIGMA, self.hosts)
        places = np.column_stack((points, heights))
        a = generator.integers(0, self.hosts, _PAIRS_SCALED_BY)
        b = (a + generator.integers(1, max(2, self.hosts), _PAIRS_SCALED_BY)) % self.hosts
        places *= self.median_us / np.median(_plane_delays(places[a], places[b]))
        object.__setattr__(self, "_places", tuple(tuple(place) for place in places.tolist()))

    def latency_us(self, a: int, b: int) -> int:
        """The one-way delay between two hosts."""
        if a == b:
            return 0
        places, hosts = self._places, self.hosts
        ax, ay, a_height = places[a % hosts]
        bx, by, b_height = places[b % hosts]
        return int(sqrt((ax - bx) * (ax - bx) + (ay - by) * (ay - by)) + (a_height + b_height) + 0.5)

    def many(self, a: Hosts, b: Hosts) -> Delays:
        """The one-way delays between the hosts of two arrays, pair by pair."""
        places = np.array(self._places)
        delays = _plane_delays(places[a % self.hosts], places[b % self.hosts]) + 0.5
        return np.where(a == b, 0, delays.astype(np.int64))


def _plane_delays(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """As `King.latency_us` has it, operation by operation: floating point agrees to the last bit only then."""
    x, y = a[:, 0] - b[:, 0], a[:, 1] - b[:, 1]
    return np.asarray(np.sqrt(x * x + y * y) + (a[:, 2] + b[:, 2]))


def _connected_pairs(count: int, density: float, generator: np.random.Generator) -> list[tuple[int, int]]:
    """A random tree over `count` nodes, and each other pair with probability `density`."""
    order = [int(node) for node in generator.permutation(count)]
    tree = {(order[int(generator.integers(child))], order[child]) for child in range(1, count)}
    joined = {(min(pair), max(pair)) for pair in tree}
    extra = {(a, b) for a in range(count) for b in range(a + 1, count) if generator.random() < density}
    return sorted(joined | extra)


def _check_hosts(hosts: int) -> None:
    if hosts < 1:
        raise ValueError(f"a latency model needs at least one host: {hosts}")
