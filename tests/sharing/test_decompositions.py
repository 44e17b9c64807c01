"""Answers that are reconstructed from shared aggregates equal the direct ones: every aggregate, every decomposition."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import matrices, sums_of_queries

from watersmeet.errors import InputError
from watersmeet.sharing.aggregates import ALGEBRAS, Algebra, algebra_of, decompose, decompose_all, shared_if_worthwhile
from watersmeet.sharing.basic import basic_decomposition, decomposed_rows
from watersmeet.sharing.bits import Bools, distinct_rows, pack, unpack
from watersmeet.sharing.compose import STRATEGIES, add_composition, basic_composition
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.decomposition import (
    Decomposition,
    IntegerCombination,
    ModularCombination,
    SetCombination,
    identity,
    query_extremes,
    query_records,
    query_sums,
    shared_sums,
)
from watersmeet.sharing.factors import METHODS, Factors, factorise
from watersmeet.sharing.gains import SharingFigures, effectiveness, total_gain
from watersmeet.sharing.linear import exact_linear, linear_basis
from watersmeet.sharing.workloads import duplicate_sensitive

PAPER_5_1 = np.array([[1, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], np.bool_)
PAPER_5_4 = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0], [0, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], np.bool_)
EXACT_METHODS = METHODS[1:]


def check_sums(fragments: Bools, found: Decomposition, sums: list[int]) -> None:
    shared = shared_sums(found, np.array(sums, object if any(abs(one) >= 2**62 for one in sums) else np.int64))
    assert shared.shape == (found.size,)
    assert query_sums(found, shared).tolist() == sums_of_queries(fragments, sums)


@given(st.data(), matrices())
@settings(max_examples=120, deadline=None)
def test_sums_are_exact_under_every_decomposition_for_them(data: st.DataObject, fragments: Bools) -> None:
    count = len(fragments)
    wide = st.integers(-(2**70), 2**70) if data.draw(st.booleans()) else st.integers(-1000, 1000)
    sums = data.draw(st.lists(wide, min_size=count, max_size=count))
    for found in (
        identity(fragments),
        basic_decomposition(fragments),
        decomposed_rows(fragments),
        *(exact_linear(fragments, method) for method in EXACT_METHODS),
    ):
        check_sums(fragments, found, sums)


@given(st.data(), matrices())
@settings(max_examples=60, deadline=None)
def test_extremes_are_exact_under_every_decomposition_for_them(data: st.DataObject, fragments: Bools) -> None:
    count = len(fragments)
    values = data.draw(st.lists(st.none() | st.integers(-50, 50), min_size=count, max_size=count))
    present = np.array([value is not None for value in values], np.bool_)
    numbers = np.array([value or 0 for value in values], np.int64)
    for found in (
        identity(fragments),
        basic_decomposition(fragments),
        rectangle_cover(fragments),
        *(add_composition(fragments, strategy) for strategy in STRATEGIES),
        *(basic_composition(fragments, strategy) for strategy in ("O/A", "O/R", "M/A/W")),
    ):
        for largest, best in ((True, max), (False, min)):
            extremes, known = query_extremes(found, numbers, present, largest)
            for query in range(fragments.shape[1]):
                own = [value for row, value in zip(fragments, values, strict=True) if row[query] and value is not None]
                assert known[query] == bool(own)
                assert not own or extremes[query] == best(own)


@given(st.data(), matrices())
@settings(max_examples=60, deadline=None)
def test_k_largest_are_exact_under_basic_decomposition(data: st.DataObject, fragments: Bools) -> None:
    count = len(fragments)
    values = data.draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=count, max_size=count))

    def three_largest(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(one + other, reverse=True)[:3])

    records = [tuple(sorted(own, reverse=True)[:3]) for own in values]
    found = query_records(basic_decomposition(fragments), records, three_largest)
    for query, record in enumerate(found):
        own = [value for row, some in zip(fragments, values, strict=True) if row[query] for value in some]
        assert (record or ()) == tuple(sorted(own, reverse=True)[:3])
    bags = [Counter(own) for own in values]
    union = query_records(basic_decomposition(fragments), bags, lambda one, other: one + other)
    for query, bag in enumerate(union):
        own = [value for row, some in zip(fragments, values, strict=True) if row[query] for value in some]
        assert (bag or Counter()) == Counter(own)


@given(matrices())
@settings(max_examples=60, deadline=None)
def test_sizes_are_never_worse_than_no_sharing(fragments: Bools) -> None:
    rank = int(np.linalg.matrix_rank(fragments.astype(np.float64))) if fragments.size else 0
    assert {exact_linear(fragments, method).size for method in EXACT_METHODS} == {rank}
    assert [factorise(fragments, method).size for method in EXACT_METHODS] == [rank] * 3
    assert rank <= factorise(fragments, "LU").size <= min(fragments.shape)
    assert basic_decomposition(fragments).size <= fragments.shape[1]
    distinct = len(distinct_rows(fragments))
    assert rectangle_cover(fragments).size <= min(distinct, fragments.shape[1])
    for algebra in Algebra:
        assert decompose(fragments, algebra).size <= fragments.shape[1]


@pytest.mark.parametrize("method", METHODS)
def test_floating_point_factors_answer_counts(method: str) -> None:
    fragments = duplicate_sensitive(80, 60, 25, 1)
    counts = np.random.default_rng(1).integers(0, 10**6, 80)
    factors: Factors = factorise(fragments, method)  # type: ignore[arg-type]
    answers = (counts @ factors.left) @ factors.right
    assert np.rint(answers).astype(int).tolist() == sums_of_queries(fragments, counts.tolist())


def test_the_papers_examples() -> None:
    first = basic_decomposition(PAPER_5_1)
    assert (first.size, exact_linear(PAPER_5_1).size, rectangle_cover(PAPER_5_1).size) == (4, 4, 4)
    assert sorted(shared_sums(first, np.array([23, 43, 18, 109, 13])).tolist()) == sorted([132, 43 + 13, 127 + 13, 13])
    second = exact_linear(PAPER_5_4)
    assert (second.size, rectangle_cover(PAPER_5_4).size) == (4, 4)
    assert query_sums(second, shared_sums(second, np.array([13, 54, 24, 78, 32])))[0] == 177


def test_fractions_of_many_digits_are_exact_by_residues() -> None:
    rng = np.random.default_rng(4)
    fragments = rng.random((40, 50)) < 0.5
    basis = linear_basis(fragments)
    assert isinstance(basis.combination, ModularCombination)
    found = basis.decomposition(fragments)
    assert found.size == 40
    check_sums(fragments, found, [int(one) for one in rng.integers(-(2**60), 2**60, 40)])
    with pytest.raises(TypeError, match="whole numbers"):
        query_sums(found, np.ones(40))
    broken = ModularCombination(basis.combination.primes[:1], basis.combination.residues[:1])
    wrong = query_sums(Decomposition(found.assign, broken), shared_sums(found, np.full(40, 2**40)))
    assert wrong.tolist() != sums_of_queries(fragments, [2**40] * 40)  # one prime is not enough for such sums


def test_denominators_are_found() -> None:
    triangle = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]], np.bool_)  # the last query is half of the others
    basis = linear_basis(triangle)
    assert isinstance(basis.combination, IntegerCombination)
    assert basis.combination.denominator == 2
    check_sums(triangle, basis.decomposition(triangle), [3, 4, 10**17])


@given(matrices(), matrices(most_rows=6))
@settings(max_examples=80, deadline=None)
def test_a_node_can_tell_whether_a_new_fragment_needs_a_new_basis(fragments: Bools, new: Bools) -> None:
    new = np.concatenate([new, np.zeros((len(new), 12), np.bool_)], axis=1)[:, : fragments.shape[1]]
    new = new if new.shape[1] == fragments.shape[1] else np.zeros((0, fragments.shape[1]), np.bool_)
    basis = linear_basis(fragments)
    rank = basis.decomposition(fragments).size
    for row, fits in zip(new, basis.admits(new), strict=True):
        more = np.concatenate([fragments, row[None]])
        assert fits == (np.linalg.matrix_rank(more.astype(np.float64)) == rank)
        if fits:
            check_sums(more, basis.decomposition(more), list(range(1, len(more) + 1)))


def test_a_residue_basis_admits_what_it_spans() -> None:
    rng = np.random.default_rng(9)
    fragments = rng.random((20, 40)) < 0.5
    basis = linear_basis(fragments)
    assert isinstance(basis.combination, ModularCombination)
    assert basis.admits(fragments).all()
    assert not basis.admits(rng.random((20, 40)) < 0.5).any()


@given(matrices(most_columns=140, most_rows=5))
@settings(max_examples=30, deadline=None)
def test_bits_come_back(fragments: Bools) -> None:
    assert (unpack(pack(fragments), fragments.shape[1]) == fragments).all()
    assert {row.tobytes() for row in distinct_rows(fragments)} == {row.tobytes() for row in fragments if row.any()}


def test_the_algebra_decides() -> None:
    assert decompose_all(PAPER_5_1, ["COUNT", "avg", "MAX", "K_MAX"]).keys() == {
        Algebra.LINEAR,
        Algebra.IDEMPOTENT,
        Algebra.GENERAL,
    }
    assert isinstance(decompose(PAPER_5_1, Algebra.IDEMPOTENT).combination, SetCombination)
    linear = decompose(PAPER_5_1, Algebra.LINEAR)
    with pytest.raises(TypeError, match="sums only"):
        query_extremes(linear, np.zeros(5), np.ones(5, np.bool_), True)
    assert {algebra_of(name) for name in ALGEBRAS} == set(Algebra)
    with pytest.raises(InputError, match=r"unknown aggregate 'MEDIAN'; .*K_MAX"):
        algebra_of("MEDIAN")


def test_break_even_decides_whether_work_is_shared() -> None:
    deployment = SharingFigures(nodes=1024, queries=5, record_bits=64)
    assert deployment.break_even_epochs(0.5) == pytest.approx(2 / (0.5 * 64))
    assert deployment.break_even_epochs(0.5, rows=3) == pytest.approx(6 / (0.5 * 64))
    assert deployment.break_even_epochs(0.5, everywhere=False) < deployment.break_even_epochs(0.5)
    assert deployment.break_even_epochs(0.0) == float("inf")
    gain = total_gain(4, 5)
    limit = gain * 64 / 2  # new rows an epoch that eat up what is saved
    assert shared_if_worthwhile(PAPER_5_1, Algebra.LINEAR, deployment, limit * 0.99).size == 4
    assert shared_if_worthwhile(PAPER_5_1, Algebra.LINEAR, deployment, limit * 1.01).size == 5
    assert effectiveness(10, 10, 5) == 0.0 and effectiveness(10, 5, 5) == 1.0 and effectiveness(5, 5, 5) == 1.0
