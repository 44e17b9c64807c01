"""Basic Decomposition (5.3): rows of F without the rows that they contain; for every aggregate function."""

import numpy as np

from watersmeet.sharing.bits import Bools, pack, unpack
from watersmeet.sharing.decomposition import Decomposition, SetCombination, identity
from watersmeet.sharing.set_kernels import decompose_rows


def basic_decomposition(fragments: Bools) -> Decomposition:
    """Rows that no longer contain each other; nothing is shared where they are more than the queries.

    >>> rows = np.array([[1, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], bool)
    >>> basic_decomposition(rows).size
    4
    """
    found = decomposed_rows(fragments)
    return found if found.size <= fragments.shape[1] else identity(fragments)


def decomposed_rows(fragments: Bools) -> Decomposition:
    """The same without the fall-back: there may be more rows than queries."""
    count, queries = fragments.shape
    rows = pack(fragments)
    owners = pack(np.eye(count, dtype=np.bool_))
    decompose_rows(rows, owners)
    kept = rows.any(axis=1)
    assign = unpack(owners[kept], count).T
    return Decomposition(np.ascontiguousarray(assign), SetCombination(unpack(rows[kept], queries)))
