"""Entries of shared aggregates: whatever the basis, the entries of a row are the row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.program.pier.operators import share
from watersmeet.program.pier.sql.sharing import _factors
from watersmeet.sharing.linear import linear_basis

SETS = st.integers(1, 255)


def bits(entry: bytes) -> int:
    assert entry.startswith(b"s")
    return int.from_bytes(entry[1:], "little")


@given(SETS, st.lists(SETS, max_size=6).map(tuple))
def test_sets_of_a_basis_are_the_row(row: int, basis: tuple[int, ...]) -> None:
    apart = [bits(entry) for entry in share._covering(row, basis, False)]
    assert sum(apart) == row  # no query in two of them, else the sum would carry
    together = [bits(entry) for entry in share._covering(row, basis, True)]
    union = 0
    for one in together:
        assert one & ~row == 0
        union |= one
    assert union == row


@given(st.sets(SETS, min_size=1, max_size=8).map(lambda rows: tuple(sorted(rows))))
def test_what_nodes_decompose_by_themselves_are_their_rows(rows: tuple[int, ...]) -> None:
    for row, entries in zip(rows, share._decomposed(rows, False), strict=True):
        assert sum(map(bits, entries)) == row
    for row, entries in zip(rows, share._decomposed(rows, True), strict=True):
        union = 0
        for entry in entries:
            union |= bits(entry)
        assert union == row


@given(st.lists(SETS, min_size=1, max_size=8, unique=True), st.lists(SETS, max_size=4))
def test_independent_queries_give_all_others_or_the_row_goes_by_itself(known: list[int], unknown: list[int]) -> None:
    matrix = np.array([[row >> query & 1 for query in range(8)] for row in known], np.bool_)
    basis = linear_basis(matrix)
    factors = _factors(basis.columns.tolist(), basis.combination)
    if factors is None:
        return
    weights = {query: dict(terms) for query, terms in factors}
    for row in [*known, *unknown]:
        found = [0] * 8
        for entry in share._linear_entries(row, factors):
            if entry.startswith(b"s"):
                assert row not in known
                terms = {query: 1 for query in range(8) if bits(entry) >> query & 1}
            else:
                terms = weights[int.from_bytes(entry[1:], "little")]
            for query, factor in terms.items():
                found[query] += factor
        assert found == [row >> query & 1 for query in range(8)]
