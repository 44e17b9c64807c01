"""Id movement (Karger and Ruhl, SPAA 2004): a node with little to do takes half the load of one with much.

One key is one point: a node may end up alone with a heavy key, but the key's load is never divided. So the highest load
does not fall below that of the heaviest key.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Balanced:
    """Where the nodes are afterwards, in the order in which they were given, and how many moves it took."""

    identifiers: NDArray[np.uint64]
    moves: int


def balance(
    identifiers: ArrayLike,
    keys: ArrayLike,
    weights: ArrayLike,
    *,
    rounds: int,
    seed: int,
    epsilon: float = 0.2,
) -> Balanced:
    """Let every node meet a random other one in each round, and move if its load is at most epsilon times as much.

    `keys` are points of the circle and `weights` their loads; a node has the keys after its predecessor up to itself.
    A mover leaves its arc to its successor and takes the point that halves the other's load. If its successor would
    then have more than the other had, it halves that one's load instead; so the highest load never grows.

    >>> moved = balance([100, 200, 300], [110, 120, 130, 140], [1, 1, 1, 1], rounds=1, seed=0)
    >>> moved.identifiers.tolist(), moved.moves
    ([120, 200, 300], 1)
    """
    if not 0 < epsilon < 0.25:
        raise ValueError(f"epsilon must be between 0 and 1/4, or nodes would move for ever: {epsilon}")
    if rounds < 0:
        raise ValueError(f"rounds must not be negative: {rounds}")
    places = _Places(np.asarray(identifiers, dtype=np.uint64), np.asarray(keys, dtype=np.uint64), np.asarray(weights))
    generator = np.random.default_rng(seed)
    nodes, moves = len(places.points), 0
    for _ in range(rounds if nodes > 1 else 0):
        order = generator.permutation(nodes).tolist()
        others = generator.integers(nodes - 1, size=nodes).tolist()
        for node, other in zip(order, others, strict=True):
            moves += places.meet(node, other + (other >= node), epsilon)
    return Balanced(np.array(places.points, dtype=np.uint64), moves)


class _Places:
    """The circle as a linked list, with the loads of arcs from running sums over the sorted keys."""

    __slots__ = ("_keys", "_next", "_previous", "_ranks", "_sums", "points")

    def __init__(self, identifiers: NDArray[np.uint64], keys: NDArray[np.uint64], weights: NDArray[np.generic]) -> None:
        if keys.shape != weights.shape or keys.ndim != 1:
            raise ValueError(f"each key has one weight: {keys.shape} keys, {weights.shape} weights")
        if weights.size and weights.min() < 0:
            raise ValueError("a weight must not be negative")
        if np.unique(identifiers).size != identifiers.size or not identifiers.size:
            raise ValueError("nodes have different identifiers, and there is at least one")
        different, number = np.unique(keys, return_inverse=True)
        self._keys: list[int] = different.tolist()
        self._sums: list[float] = list(accumulate(np.bincount(number, weights).tolist(), initial=0.0))
        self.points: list[int] = identifiers.tolist()
        self._ranks = [bisect_right(self._keys, point) for point in self.points]  # the keys up to each node
        circle = np.argsort(identifiers).tolist()
        self._next, self._previous = [0] * len(circle), [0] * len(circle)
        for position, node in enumerate(circle):
            self._previous[node] = circle[position - 1]
            self._next[circle[position - 1]] = node

    def meet(self, node: int, other: int, epsilon: float) -> bool:
        """Let one node take half of what another has, if it has little enough itself; say whether it moved."""
        load, load_other = self._load(node), self._load(other)
        if load > epsilon * load_other:
            return False
        following = self._next[node]
        if following != other and load + self._load(following) > load_other:
            other, load_other = following, self._load(following)
        previous = self._previous[other] if self._previous[other] != node else self._previous[node]
        middle = self._middle(previous, other, load_other)
        if middle is None:
            return False
        self._move(node, previous, other, middle)
        return True

    def _load(self, node: int) -> float:
        return self._between(self._previous[node], self._ranks[node], self.points[node])

    def _between(self, after: int, rank: int, upto: int) -> float:
        """The load of the points after a node up to a point with so many keys up to it."""
        load = self._sums[rank] - self._sums[self._ranks[after]]
        return load if self.points[after] < upto else load + self._sums[-1]

    def _middle(self, after: int, node: int, load_limit: float) -> int | None:
        """The key that halves the load between two nodes best, if the greater part is then below the limit."""
        start, total = self._ranks[after], self._between(after, self._ranks[node], self.points[node])
        half = self._sums[start] + total / 2
        turn = self._sums[-1]
        rank = bisect_right(self._sums, half) if half < turn else bisect_right(self._sums, half - turn)
        best, best_load = None, load_limit
        # The half is reached within one key: end the first part with that key, or with the one before it.
        for key in (rank - 1, rank - 2) if self._keys else ():
            point = self._keys[key % len(self._keys)]
            if not self._is_inside(point, after, node):
                continue
            first = self._between(after, bisect_right(self._keys, point), point)
            if max(first, total - first) < best_load:
                best, best_load = point, max(first, total - first)
        return best

    def _is_inside(self, point: int, after: int, before: int) -> bool:
        """Strictly between two nodes, clockwise; there nobody else is."""
        low, high = self.points[after], self.points[before]
        return low < point < high if low < high else point > low or point < high

    def _move(self, node: int, previous: int, following: int, point: int) -> None:
        self._next[self._previous[node]], self._previous[self._next[node]] = self._next[node], self._previous[node]
        self._next[previous] = self._previous[following] = node
        self._previous[node], self._next[node] = previous, following
        self.points[node], self._ranks[node] = point, bisect_right(self._keys, point)
