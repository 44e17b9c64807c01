"""Compositions: compiled checks against the definition of BLEND and COLLAPSE, small optima, queries come and go."""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import combinations
from operator import or_

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matrices import matrices

from watersmeet.errors import InputError
from watersmeet.sharing import set_kernels as kernels
from watersmeet.sharing.bits import Bools, distinct_rows
from watersmeet.sharing.compose import (
    STRATEGIES,
    add_composition,
    basic_composition,
    contained,
    is_basis,
    state_of,
    strategy_codes,
    without_query,
)
from watersmeet.sharing.cover import improve_cover, lower_bound, rectangle_cover
from watersmeet.sharing.decomposition import Decomposition, SetCombination
from watersmeet.sharing.workloads import duplicate_insensitive, duplicate_sensitive


def basis_of(found: Decomposition) -> Bools:
    assert isinstance(found.combination, SetCombination)
    return found.combination.basis


def covers_by_definition(fragments: Bools, basis: list[Bools]) -> bool:
    """Every fragment is the union of basis rows that are subsets of it."""
    return covers(numbers(fragments), numbers(basis))


def numbers(rows: Iterable[Bools]) -> list[int]:
    """Sets of queries as whole numbers."""
    return [sum(1 << int(place) for place in np.flatnonzero(row)) for row in rows]


def covers(fragments: Sequence[int], basis: Sequence[int]) -> bool:
    return all(reduce(or_, (row for row in basis if not row & ~one), 0) == one for one in fragments)


def least_basis(fragments: Bools) -> int:
    """The size of the smallest basis, by trying all."""
    queries, own = fragments.shape[1], numbers(fragments)
    rows = range(1, 1 << queries)
    return next(size for size in range(queries + 1) if any(covers(own, some) for some in combinations(rows, size)))


@given(st.data(), matrices(most_rows=8, most_columns=6))
@settings(max_examples=40, deadline=None)
def test_blend_and_collapse_are_valid_where_the_definition_says_so(data: st.DataObject, fragments: Bools) -> None:
    fragments = distinct_rows(fragments)
    queries = fragments.shape[1]
    state = state_of(fragments, np.eye(queries, dtype=np.bool_))
    for _ in range(6):
        alive = np.flatnonzero(state.alive)
        assume(len(alive) > 1)
        rows = dict(zip(alive, state.rows(queries), strict=True))
        valid = []
        for i in alive:
            for j in alive:
                if i == j:
                    continue
                joined = {**rows, i: rows[i] | rows[j]}
                blended = covers_by_definition(fragments, list(joined.values()))
                changes = bool((rows[j] & ~rows[i]).any())
                assert kernels.can_blend(i, j, state.basis, state.inside, state.essential) == (blended and changes)
                del joined[j]
                collapsed = covers_by_definition(fragments, list(joined.values()))
                assert kernels.can_collapse(i, j, state.inside, state.essential) == collapsed
                valid += [(i, j, False)] * (blended and changes) + [(i, j, True)] * collapsed
        if not valid:
            return
        i, j, collapse = data.draw(st.sampled_from(valid))
        kernels.combine_rows(i, j, collapse, *state.arrays)
        fresh = state_of(fragments, state.rows(queries))
        for kept, new in zip((state.inside, state.essential), (fresh.inside, fresh.essential), strict=True):
            assert (kept[state.alive] == new).all()


@given(matrices(most_rows=6, most_columns=4))
@settings(max_examples=40, deadline=None)
def test_bounds_enclose_the_least_basis(fragments: Bools) -> None:
    least = least_basis(fragments)
    assert lower_bound(fragments) <= least <= rectangle_cover(fragments).size
    for strategy in ("O/A", "O/R", "M/A/P"):
        assert least <= add_composition(fragments, strategy).size


@given(st.data(), matrices())
@settings(max_examples=40, deadline=None)
def test_bases_stay_bases_while_queries_come_and_go(data: st.DataObject, fragments: Bools) -> None:
    queries = fragments.shape[1]
    first = data.draw(st.integers(1, queries))
    early = basis_of(add_composition(fragments[:, :first]))
    later = basis_of(add_composition(fragments, start=early))
    assert is_basis(fragments, later) and covers_by_definition(fragments, list(later))
    if first == queries:
        assert len(later) == len(early)
    better = basis_of(improve_cover(fragments, later))
    assert len(better) <= len(later) and covers_by_definition(fragments, list(better))
    gone = data.draw(st.integers(0, queries - 1))
    left = without_query(fragments, better, gone)
    assert covers_by_definition(np.delete(fragments, gone, axis=1), list(left))
    assert len(left) <= len(better)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_ends_where_it_has_nothing_left_to_do(strategy: str) -> None:
    fragments = duplicate_insensitive(40, 40, 12, 3)
    for compose in (add_composition, basic_composition):
        basis = basis_of(compose(fragments, strategy))
        assert is_basis(fragments, basis)
        assert 12 <= len(basis) < 40
        assert (basis_of(compose(fragments, strategy)) == basis).all()
    state = state_of(fragments, basis_of(basic_composition(fragments, strategy)))
    pairs = [(i, j) for i in range(len(state.alive)) for j in range(len(state.alive)) if i != j]
    assert not any(kernels.can_collapse(i, j, state.inside, state.essential) for i, j in pairs)
    assert not any(kernels.can_blend(i, j, state.basis, state.inside, state.essential) for i, j in pairs)


def test_the_cover_finds_what_was_planted_and_more_than_compositions_do() -> None:
    for basis in (10, 30, 60):
        fragments = duplicate_insensitive(100, 100, basis, 5)
        cover = rectangle_cover(fragments)
        assert is_basis(fragments, basis_of(cover))
        assert cover.size == basis
        assert add_composition(fragments).size > basis
        hidden = duplicate_insensitive(60, 60, basis, 5, keep_base=False)
        assert rectangle_cover(hidden).size < min(add_composition(hidden, one).size for one in ("M/A/P", "O/R"))


def test_generators_make_what_they_say() -> None:
    for fragments, queries, basis in ((50, 100, 30), (60, 60, 10), (250, 500, 250), (20, 30, 12)):
        matrix = duplicate_sensitive(fragments, queries, basis, 2)
        assert matrix.shape == (fragments, queries)
        assert len({row.tobytes() for row in matrix}) == fragments
        assert np.linalg.matrix_rank(matrix.astype(np.float64)) == basis
        assert (matrix == duplicate_sensitive(fragments, queries, basis, 2)).all()
        assert (matrix != duplicate_sensitive(fragments, queries, basis, 3)).any()
    for keep_base in (True, False):
        matrix = duplicate_insensitive(50, 60, 20, 1, keep_base=keep_base)
        assert matrix.shape == (50, 60)
        assert len({column.tobytes() for column in matrix.T}) == 60
    literal = duplicate_insensitive(100, 100, 60, 1, distinct=False)
    assert literal.all(axis=0).sum() > 30  # as the text has it most queries have all fragments
    with pytest.raises(InputError, match="give between 7 and 100"):
        duplicate_insensitive(100, 100, 6, 1)
    with pytest.raises(InputError, match="give at most 50"):
        duplicate_sensitive(50, 100, 51, 1)


def test_unknown_strategies_are_named() -> None:
    with pytest.raises(InputError, match="unknown search strategy 'M/A'; did you mean"):
        strategy_codes("M/A")


def test_containment_is_that_of_sets() -> None:
    fragments = np.array([[1, 1, 0], [0, 1, 1]], np.bool_)
    basis = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0]], np.bool_)
    assert contained(fragments, basis).tolist() == [[True, True, False], [True, False, False]]
