"""Exact sharing for linear aggregates (5.4): independent queries are aggregated, the others computed from them.

Independent columns C of F are chosen, so that F = F[:, C] x X. Then A' = A^T x F[:, C] are plain counts and sums, those
of the queries C, and stay whole numbers; only X has fractions. LAPACK proposes C and X; X is rounded to whole numbers
(over a small denominator) and the product is checked in integers. Where X has no such form, the answers' residues for
three primes are computed instead: F = F[:, C] x X modulo each prime is what elimination proves, so answers below 2^92
are exact.
"""

from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import scipy.linalg  # type: ignore[import-untyped]

from watersmeet.sharing import modular
from watersmeet.sharing.bits import Bools, distinct_rows
from watersmeet.sharing.decomposition import (
    Combination,
    Decomposition,
    IntegerCombination,
    ModularCombination,
    SetCombination,
)
from watersmeet.sharing.factors import Method, default_tolerance, factorise, pivoted_qr

I64 = npt.NDArray[np.int64]

_DENOMINATORS = (1, 2, 3, 4, 6, 8, 12)
_LARGEST_NUMERATOR = 1 << 20  # keeps the check exact in doubles, up to 2^32 ones in a row


@dataclass(frozen=True, slots=True, eq=False)
class LinearBasis:
    """The queries that are aggregated, and how the others follow from them."""

    columns: I64
    combination: Combination

    def decomposition(self, fragments: Bools) -> Decomposition:
        """The decomposition of fragments that the basis admits."""
        return Decomposition(np.ascontiguousarray(fragments[:, self.columns]), self.combination)

    def admits(self, fragments: Bools) -> npt.NDArray[np.bool_]:
        """Which fragments the basis is right for: new ones need a new basis only where this is false.

        A node can tell by itself, so only such rows of F need to be sent to others.
        """
        chosen = fragments[:, self.columns]
        match self.combination:
            case IntegerCombination(numerators, denominator):
                found = chosen.astype(np.float64) @ numerators.astype(np.float64)
                return np.asarray((found == denominator * fragments).all(axis=1))
            case ModularCombination(primes, residues):
                right = np.ones(len(fragments), np.bool_)
                for prime, own in zip(primes, residues, strict=True):
                    product = chosen.astype(np.int64) @ own  # of at most 2^31 ones with residues below 2^31
                    right &= (product % prime == fragments).all(axis=1)
                return right
            case SetCombination():
                raise TypeError("a linear basis has a linear combination")
            case _ as never:
                assert_never(never)


def exact_linear(fragments: Bools, method: Method = "QR") -> Decomposition:
    """As few sums as F has rank, with whole numbers kept exact."""
    return linear_basis(fragments, method).decomposition(fragments)


def linear_basis(fragments: Bools, method: Method = "QR") -> LinearBasis:
    """Independent queries, and how the others follow; elimination (LU) is done modulo a prime, so without rounding."""
    queries = fragments.shape[1]
    rows = distinct_rows(fragments)
    if not len(rows):
        return LinearBasis(np.zeros(0, np.int64), IntegerCombination(np.zeros((0, queries), np.int64), 1))
    if method in ("LU", "LU echelon"):
        columns, _ = modular.reduced(rows, np.argsort(rows.sum(axis=0), kind="stable"), modular.PRIMES[0])
        proposed = None
    else:
        columns, proposed = _proposed(rows, method)
    if len(columns) == queries:
        order = np.arange(queries)
        return LinearBasis(order, IntegerCombination(np.eye(queries, dtype=np.int64), 1))
    if proposed is None:
        proposed = scipy.linalg.lstsq(rows[:, columns].astype(np.float64), rows.astype(np.float64))[0]
    whole = _whole_combination(rows, columns, proposed)
    return LinearBasis(columns, whole) if whole is not None else _modular_basis(rows, columns)


def _proposed(rows: Bools, method: Method) -> tuple[I64, npt.NDArray[np.float64] | None]:
    """Independent columns as LAPACK sees them, and what the others are of them."""
    # Pivoting takes the longest column; shortened by its weight, that is the query with the fewest fragments: others
    # are more often plain sums of such queries than the other way round.
    scale = 1.0 / np.maximum(rows.sum(axis=0), 1).astype(np.float64) ** 2
    if method == "SVD":
        right = factorise(rows, "SVD").right
        _, _, order = pivoted_qr(right * scale)
        return order[: len(right)], None
    _, r, order = pivoted_qr(rows * scale)
    heights = np.abs(np.diag(r))
    rank = int((heights > default_tolerance(rows) * heights[0]).sum())
    solved = np.zeros((rank, rows.shape[1]))
    solved[:, order[:rank]] = np.eye(rank)
    if rank < rows.shape[1]:
        others = scipy.linalg.solve_triangular(r[:rank, :rank], r[:rank, rank:], check_finite=False)
        solved[:, order[rank:]] = others * scale[order[:rank], None] / scale[None, order[rank:]]
    return order[:rank], solved


def _whole_combination(rows: Bools, columns: I64, proposed: npt.NDArray[Any]) -> IntegerCombination | None:
    """The proposed coefficients as whole numbers over a small denominator, if they are and the product is right."""
    if not np.isfinite(proposed).all() or np.abs(proposed).max(initial=0.0) * _DENOMINATORS[-1] > _LARGEST_NUMERATOR:
        return None
    chosen = rows[:, columns].astype(np.float64)
    for denominator in _DENOMINATORS:
        numerators = np.rint(proposed * denominator)
        if (
            np.abs(proposed * denominator - numerators).max(initial=0.0) < 0.01
            and (chosen @ numerators == denominator * rows).all()
        ):
            return IntegerCombination(numerators.astype(np.int64), denominator)
    return None


def _modular_basis(rows: Bools, columns: I64) -> LinearBasis:
    """Residues for each prime over the columns that any of them needs; those that a prime does not need count zero."""
    queries = rows.shape[1]
    order = np.concatenate([columns, np.setdiff1d(np.arange(queries), columns)])
    found = [modular.reduced(rows, order, prime) for prime in modular.PRIMES]
    needed = np.unique(np.concatenate([pivots for pivots, _ in found]))
    if len(needed) == queries:
        return LinearBasis(np.arange(queries), IntegerCombination(np.eye(queries, dtype=np.int64), 1))
    residues = np.zeros((len(found), len(needed), queries), np.int64)
    for own, (pivots, solved) in zip(residues, found, strict=True):
        own[np.searchsorted(needed, pivots)] = solved
    return LinearBasis(needed, ModularCombination(modular.PRIMES, residues))
