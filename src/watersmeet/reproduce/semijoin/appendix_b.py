"""The semijoin paper's own cost formulas (appendix B): seconds of work and transmission for a second of two streams.

Read as printed but for three places: the numbers of distinct values k and m are expected ones (the printed formulas
exceed the domain), the last shipment of SM-S2 is one message with both of its terms, and where several predicates tie
two sides, distinct values and semijoin selectivities of the pairs are multiplied.
"""

from dataclasses import dataclass
from typing import assert_never

from watersmeet.plan.nodes import Method

COUNTER_BYTES = 4  # what SM-S1 sends to tell how many tuples have arrived; not stated


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds for one tuple: compared in a probe, put into a window, hashed. The paper does not state them."""

    probe_s: float = 0.0
    update_s: float = 0.0
    hash_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """How long a message takes, and how often one goes."""

    latency_s: float = 0.025
    bandwidth_bps: float = 1024e3
    interval_s: float = 0.1

    def ship_s(self, size_bytes: float) -> float:
        """S(x) of table 4."""
        return self.latency_s + 8 * size_bytes / self.bandwidth_bps


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One side of a one-way join: a stream, or combinations of some."""

    rate: float  # tuples a second
    window_s: float
    distinct: float  # values of the join attribute
    tuple_bytes: float
    key_bytes: float

    @property
    def window_tuples(self) -> float:
        """w of table 4."""
        return self.rate * self.window_s

    def distinct_in(self, tuples: float) -> float:
        """How many different values so many tuples are expected to have: k of a window, m of a buffer."""
        if self.distinct <= 1:
            return min(1.0, tuples)
        return float(self.distinct * (1 - (1 - 1 / self.distinct) ** tuples))


def one_way_join_s(
    method: Method, first: JoinSide, second: JoinSide, forward: float, network: NetworkFigures, costs: Costs
) -> float:
    """What new tuples of the first side cost against the window of the second one.

    `forward` is the share of the first side's tuples that find their value in the second one (f12 of table 4); the
    other way it is the share of values that is left (f21), by the sizes of the domains.
    """
    backward = forward * first.distinct / second.distinct
    probe, update, each_s = costs.probe_s, costs.update_s, 1 / network.interval_s
    r1, r2, w2 = first.rate, second.rate, second.window_tuples
    wp1, wp2 = r1 * network.interval_s, r2 * network.interval_s
    m1, m2, k2 = first.distinct_in(wp1), second.distinct_in(wp2), second.distinct_in(w2)
    p1, p2, f1, f2 = first.key_bytes, second.key_bytes, first.tuple_bytes, second.tuple_bytes
    ship = network.ship_s
    windows = r1 * update + r2 * update
    match method:
        case Method.SP_S:
            return windows + r1 * probe * w2 + each_s * ship(wp2 * f2)
        case Method.SP_D:
            return windows + r1 * probe * w2 + each_s * ship(wp1 * f1)
        case Method.SM_S1:
            shipped = each_s * (ship(m1 * p1) + ship(wp2 * backward * f2) + ship(COUNTER_BYTES))
            work = each_s * m1 * probe * w2 + each_s * wp2 * backward * update + r1 * probe * w2 * backward
            return windows + shipped + work
        case Method.SM_S2:
            missing, new = k2 * (1 - forward), m2 * (1 - backward)
            shipped = each_s * (ship(missing * p2) + ship(missing * f2) + ship(new * p2 + wp2 * backward * f2))
            work = 2 * r1 * costs.hash_s + each_s * missing * probe * w2 + r2 * probe * k2 + 2 * each_s * new * update
            return windows + shipped + work
        case Method.SM_D1:
            new = m2 * (1 - backward)
            shipped = each_s * (ship(wp1 * forward * f1) + ship(new * p2))
            work = r1 * probe * k2 + r1 * forward * probe * w2 + r2 * probe * k2 + 2 * each_s * new * update
            return windows + shipped + work
        case Method.SM_D2:
            shipped = each_s * (ship(m1 * p1) + ship(m1 * forward * p1) + ship(wp1 * forward * f1))
            work = each_s * m1 * probe * w2 + each_s * m1 * forward * probe * wp1 + r1 * forward * probe * w2
            return windows + shipped + work
    assert_never(method)
