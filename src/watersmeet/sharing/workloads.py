"""Fragment matrices with a known gain (5.7 and 5.8.1): random, of a given size and number of basis rows."""

import numpy as np

from watersmeet.errors import InputError
from watersmeet.sharing.bits import Bools

_MOST_TRIES = 200  # a column that is still not new after so many draws is taken as it is


def duplicate_insensitive(
    fragments: int, queries: int, basis: int, seed: int, *, distinct: bool = True, keep_base: bool = True
) -> Bools:
    """F for MAX and the like: queries are base queries and disjunctions of them.

    Every fragment is a random set of the base queries. distinct: the number of base queries in a disjunction is
    drawn first, and columns differ as far as they can; otherwise all disjunctions are equally likely, as the text says,
    and nearly all have every fragment once there are a few dozen base queries. Without keep_base all queries are
    disjunctions, and the least basis is only bounded by `basis`.
    """
    if not 1 <= basis <= queries or fragments >= 1 << min(basis, 60):
        raise InputError(
            f"{basis} base queries do not make {fragments} fragments and {queries} queries; give between "
            f"{max(1, fragments).bit_length()} and {queries}"
        )
    rng = np.random.default_rng((seed, fragments, queries, basis))
    sets = _distinct_sets(fragments, basis, rng)
    seen = {sets[:, place].tobytes() for place in range(basis)} if keep_base else set()
    members = [np.arange(basis) == place for place in range(basis)] if keep_base else []
    while len(members) < queries:
        member = np.zeros(basis, np.bool_)
        for _ in range(_MOST_TRIES):
            if distinct:
                size = int(rng.integers(min(2, basis), basis + 1))
                member = np.zeros(basis, np.bool_)
                member[rng.choice(basis, size, replace=False)] = True
            else:
                member = rng.random(basis) < 0.5
                if member.sum() < min(2, basis):
                    continue
            column = (sets[:, member].any(axis=1) if distinct else member).tobytes()
            if column not in seen:
                seen.add(column)
                break
        members.append(member)
    matrix = (sets.astype(np.float32) @ np.array(members, np.float32).T) > 0
    return _shuffled(matrix, rng)


def duplicate_sensitive(fragments: int, queries: int, basis: int, seed: int) -> Bools:
    """F for SUM and the like: b overlapping base queries, c others that overlap with none, and sums of these.

    An additional query is a disjunction of some of the c queries and of at most one of the b. The rank is `basis`.
    """
    rng = np.random.default_rng((seed, fragments, queries, basis))
    choices = [
        overlapping for overlapping in range(1, basis) if _enough(fragments, queries, overlapping, basis - overlapping)
    ]
    if not choices:
        raise InputError(
            f"{basis} basis rows do not make {fragments} fragments and {queries} queries; give at most "
            f"{min(fragments, queries)}, and enough for so many different sums"
        )
    overlapping = int(rng.choice(choices))
    apart = basis - overlapping
    sets = np.zeros((fragments, basis), np.bool_)
    sets[:apart, overlapping:] = np.eye(apart, dtype=np.bool_)
    sets[apart:, :overlapping] = _spanning_sets(fragments - apart, overlapping, rng)
    members = [np.arange(basis) == place for place in range(basis)]
    seen = {member.tobytes() for member in members}
    while len(members) < queries:
        member = np.zeros(basis, np.bool_)
        member[overlapping:] = rng.random(apart) < 0.5
        one = int(rng.integers(-1, overlapping))
        if one >= 0:
            member[one] = True
        if member[overlapping:].any() and member.tobytes() not in seen:
            seen.add(member.tobytes())
            members.append(member)
    matrix = (sets.astype(np.float32) @ np.array(members, np.float32).T) > 0
    return _shuffled(matrix, rng)


def _enough(fragments: int, queries: int, overlapping: int, apart: int) -> bool:
    own = fragments - apart  # fragments of the overlapping queries
    sums = ((1 << min(apart, 40)) - 1) * (overlapping + 1) + overlapping
    return overlapping <= own < 1 << min(overlapping, 40) and queries <= sums


def _distinct_sets(count: int, elements: int, rng: np.random.Generator) -> Bools:
    """Different non-empty sets, each equally likely."""
    if elements <= 20:
        numbers = rng.choice((1 << elements) - 1, count, replace=False) + 1
        found: Bools = (numbers[:, None] >> np.arange(elements)) & 1 == 1
        return found
    sets: dict[bytes, Bools] = {}
    while len(sets) < count:
        drawn = rng.random(elements) < 0.5
        if drawn.any():
            sets[drawn.tobytes()] = drawn
    return np.array(list(sets.values()))


def _spanning_sets(count: int, elements: int, rng: np.random.Generator) -> Bools:
    """Different sets whose vectors have full rank."""
    while True:
        found = _distinct_sets(count, elements, rng)
        if np.linalg.matrix_rank(found.astype(np.float64)) == elements:
            return found


def _shuffled(matrix: Bools, rng: np.random.Generator) -> Bools:
    rows, columns = matrix.shape
    found: Bools = np.ascontiguousarray(matrix[rng.permutation(rows)][:, rng.permutation(columns)])
    return found
