"""How many nodes there are, as one of them can tell: the denser its neighbourhood, the more (Horowitz and Malkhi)."""

from collections.abc import Sequence
from math import ceil, log2

from watersmeet.sim.overlays.identifiers import SPACE, distance


def estimated_nodes(identifier: int, successors: Sequence[int]) -> float:
    """The number of nodes, by how far a node's nearest successors reach.

    >>> estimated_nodes(0, [SPACE // 100, SPACE // 50])
    100.0
    """
    reach = distance(identifier, successors[-1]) if successors else 0
    return len(successors) * SPACE / reach if reach else 1.0


def longest_route_us(nodes: float, hop_us: int) -> int:
    """A bound on the time of one message through the overlay: twice the logarithm in hops, which is rarely reached.

    >>> longest_route_us(1000, 50_000)
    1000000
    """
    return 2 * ceil(log2(max(2.0, nodes))) * hop_us
