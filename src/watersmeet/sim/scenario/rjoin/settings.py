"""The network of a scenario as a model: peers at rest, the delays between them, and what RJoin's nodes agree on.

The delay of a message on a static network is the sum over its hops of delays drawn from the latency model, not those
of the very hosts on its way; mail is rounded up to whole grains of time, so that much of it is handled at once. Answers
do not depend on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet.program.rjoin.arrays import FOREVER, Longs
from watersmeet.program.rjoin.settings import NodeSettings
from watersmeet.program.rjoin.tables import SlotShape, Widths, needs_pairs, reach_us
from watersmeet.query.model import JoinQuery
from watersmeet.sim.internet.latency import King, Latency, Star, TransitStub
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.size import estimated_nodes, longest_route_us
from watersmeet.sim.rjoin.static import HopDelays, Overlay, steady
from watersmeet.sim.scenario.model import RJoinSettings
from watersmeet.sim.scenario.network import HOP_US, LatencyKind, NetworkSettings, OverlayKind

GRAIN_US = 10_000
_ROUTES_SAMPLED, _PAIRS_SAMPLED = 500, 4_096
_SUCCESSORS = 16  # by which a node tells how many others there are


def overlay_of(network: NetworkSettings) -> Ring | Prefixes:
    """The peers at rest; Bamboo's prefer near ones where a latency model says who is near."""
    if network.overlay is OverlayKind.CHORD:
        return Ring.random(network.nodes, network.seed)
    return Prefixes.random(network.nodes, network.seed, latency_of(network))


def latency_of(network: NetworkSettings) -> Latency | None:
    """The delays between hosts; None where all hops take the same time."""
    hop_us = network.hop_us or HOP_US.get(network.latency, 0)
    match network.latency:
        case LatencyKind.CONSTANT:
            return None
        case LatencyKind.STAR:
            return Star(network.nodes, delay_us=hop_us, spread_us=hop_us // 4, seed=network.seed)
        case LatencyKind.KING:
            return King(network.nodes, median_us=hop_us, seed=network.seed)
        case LatencyKind.TRANSIT_STUB:
            return TransitStub(network.nodes, seed=network.seed)


@dataclass(frozen=True, slots=True)
class Hops:
    """What hops take: of a message that knows its host, a pair's delay; of a route, those of hops on such routes."""

    pairs_us: Longs
    routed_us: Longs

    @property
    def longest_us(self) -> int:
        return int(max(self.pairs_us.max(), self.routed_us.max()))

    @property
    def mean_us(self) -> int:
        return int(max(self.pairs_us.mean(), self.routed_us.mean()))

    def delays(self, seed: int) -> HopDelays:
        """Draw what messages take, in whole grains."""
        if self.pairs_us.min() == self.pairs_us.max() == self.routed_us.min() == self.routed_us.max():
            return steady(int(self.pairs_us[0]))
        chance = np.random.default_rng([seed, 6])

        def drawn(hops: Longs) -> Longs:
            each = self.routed_us[chance.integers(0, len(self.routed_us), int(hops.sum()))]
            ends = np.cumsum(hops)
            sums = np.concatenate([[0], np.cumsum(each)])
            total = sums[ends] - sums[ends - hops]
            is_direct = hops == 1
            total[is_direct] = self.pairs_us[chance.integers(0, len(self.pairs_us), int(is_direct.sum()))]
            grains: Longs = -(-total // GRAIN_US)
            return grains * GRAIN_US

        return drawn


def hops_of(network: NetworkSettings, overlay: Ring | Prefixes) -> Hops:
    """A sample of what hops take on this overlay."""
    latency = latency_of(network)
    if latency is None:
        hop_us = np.array([network.hop_us or HOP_US[network.latency]], np.int64)
        return Hops(hop_us, hop_us)
    chance = np.random.default_rng([network.seed, 7])
    nodes = len(overlay)
    senders = chance.integers(0, nodes, _PAIRS_SAMPLED)
    receivers = (senders + chance.integers(1, max(2, nodes), _PAIRS_SAMPLED)) % nodes
    pairs_us = latency.many(senders, receivers)
    froms, tos = [], []
    for source in chance.integers(0, nodes, _ROUTES_SAMPLED).tolist():
        way = [source, *overlay.path(source, int(chance.integers(0, 1 << 64, dtype=np.uint64)))]
        froms += way[:-1]
        tos += way[1:]
    routed_us = latency.many(np.array(froms, np.int64), np.array(tos, np.int64)) if froms else pairs_us
    return Hops(pairs_us, routed_us)


def delta_us(overlay: Overlay, hops: Hops, widths: Widths) -> int:
    """The paper's Delta, from what a node can tell of the network's size.

    A route is bounded by twice the logarithm in hops of mean length, and four of the longest besides. A tuple's route
    comes first; then each alias may take a walk along all candidate keys for their rates, a route to the chosen one,
    and a visit to the holder of a ROWS window; a last route is to spare.
    """
    identifiers = overlay.identifiers[: _SUCCESSORS + 1].tolist()
    nodes = estimated_nodes(identifiers[0], identifiers[1:])
    route_us = longest_route_us(nodes, hops.mean_us) + 4 * hops.longest_us + GRAIN_US
    return route_us * (2 + widths.aliases * (2 * widths.slots + 3))


def settings_of(
    rjoin: RJoinSettings,
    queries: Sequence[tuple[JoinQuery, SlotShape]],
    *,
    members: bool,
    delay_us: int,
    seed: int,
    keeps_all: bool = False,
) -> NodeSettings:
    """What nodes agree on: nothing is kept for longer than the windows of these queries can ask for.

    One-time queries ask about all tuples there are, so with `keeps_all` none is dropped (the paper's Delta of
    infinity).
    """
    reaches = [reach_us(query) for query, _ in queries]
    held = [
        reach
        for reach, (query, shape) in zip(reaches, queries, strict=True)
        if rjoin.pairs or needs_pairs(query, shape)
    ]
    return NodeSettings(
        strategy=rjoin.strategy,
        pairs=rjoin.pairs,
        members=members,
        rate_window_us=rjoin.rate_window_us,
        rate_age_us=int(FOREVER) if rjoin.rate_age_us is None else rjoin.rate_age_us,
        keep_us=int(FOREVER) if keeps_all else max(reaches),
        hold_us=int(FOREVER) if keeps_all else max(held, default=0),
        delay_us=delay_us,
        seed=seed,
    )
