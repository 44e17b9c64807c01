"""A better search for duplicate-insensitive aggregates: cover the ones of F by few rectangles, as Espresso does.

A basis row and the fragments that contain it are a rectangle of ones in F; a basis is a set of rectangles that are all
ones of F together. BLEND and COLLAPSE only ever make rows wider and never take a step back, so Add Composition ends in
the first local minimum. Here, as in two-level logic minimisation, every rectangle is as wide as its height allows from
the start, needless ones are dropped, and then rectangles are made narrower and taller, or lower and wider, around the
ones that only they cover: a step that costs nothing and undoes earlier choices, until nothing has been dropped for some
rounds.
"""

import numpy as np

from watersmeet.sharing import set_kernels as kernels
from watersmeet.sharing.bits import Bools, distinct_rows, pack
from watersmeet.sharing.compose import SearchState, decomposition_of, empty_state, state_of
from watersmeet.sharing.decomposition import Decomposition

MOST_ROUNDS = 100
PATIENCE = 12  # rounds without a dropped row after which the search ends
_MOST_ONES = 20_000  # of F, looked at for the lower bound


def rectangle_cover(fragments: Bools, seed: int = 0, rounds: int = MOST_ROUNDS) -> Decomposition:
    """A small basis, never larger than the number of queries or of fragments.

    >>> rows = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0], [0, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], bool)
    >>> rectangle_cover(rows).size
    4
    """
    rows = distinct_rows(fragments)
    count, queries = rows.shape
    state = empty_state(rows, queries)
    for query in range(queries):
        kernels.add_query(query, state.fragments, query, *state.arrays)
    _forget_empty(state)
    kernels.close_rows(state.fragments, *state.arrays)
    basis = _improved(state, queries, seed, rounds)
    if len(basis) > count or count < queries // 2:
        other = _improved(state_of(rows, rows), queries, seed, rounds)
        basis = min(basis, other, key=len)
    return decomposition_of(fragments, basis)


def improve_cover(fragments: Bools, basis: Bools, seed: int = 0, rounds: int = MOST_ROUNDS) -> Decomposition:
    """The same search from a basis that is there, as when queries come and go."""
    state = state_of(distinct_rows(fragments), basis)
    return decomposition_of(fragments, _improved(state, fragments.shape[1], seed, rounds))


def _improved(state: SearchState, queries: int, seed: int, rounds: int) -> Bools:
    rng = np.random.default_rng(seed)
    kernels.drop_needless(*state.arrays)
    idle = 0
    for number in range(rounds):
        order = rng.permutation(len(state.alive))
        change = kernels.narrow_rows if number % 2 else kernels.widen_rows
        change(order, state.fragments, *state.arrays)
        idle = 0 if kernels.drop_needless(*state.arrays) else idle + 1
        if idle >= PATIENCE:
            break
    return state.rows(queries)


def _forget_empty(state: SearchState) -> None:
    """Queries that no fragment has need no row."""
    empty = ~state.inside.any(axis=1)
    state.alive[empty] = False
    state.basis[empty] = 0


def lower_bound(fragments: Bools, seed: int = 0) -> int:
    """A number of basis rows that no basis can do without: ones of F of which no rectangle of ones holds two.

    >>> lower_bound(np.eye(7, dtype=bool))
    7
    """
    rows = distinct_rows(fragments)
    places_g, places_c = np.nonzero(rows)
    if not len(places_g):
        return 0
    common = rows.sum(axis=1)[places_g] * rows.sum(axis=0)[places_c]  # ones in small lines first
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(common)), common))[:_MOST_ONES]
    return int(kernels.fooling_set(pack(rows), places_g[order], places_c[order]))
