"""LU, QR and SVD of F as the paper uses them for linear aggregates (5.4): in floating point, by LAPACK.

A' = A^T x left and the answers are A' x right; entries whose row of `right` (or singular value) is zero are left out.
What counts as zero is a tolerance, relative to the largest value. Answers are as exact as doubles are; `linear.py` has
exact ones.
"""

from dataclasses import dataclass
from typing import Any, Literal, assert_never

import numpy as np
import numpy.typing as npt
import scipy.linalg  # type: ignore[import-untyped]

from watersmeet.sharing.bits import Bools

F64 = npt.NDArray[np.float64]
Method = Literal["LU", "LU echelon", "QR", "SVD"]
METHODS: tuple[Method, ...] = ("LU", "LU echelon", "QR", "SVD")


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """F = left x right, up to rounding."""

    left: F64  # f x k
    right: F64  # k x q

    @property
    def size(self) -> int:
        """k, the entries of A'."""
        return int(self.left.shape[1])


def default_tolerance(fragments: Bools) -> float:
    """What rounding leaves of a zero: the unit of doubles times the larger side."""
    return float(max(*fragments.shape, 1) * np.finfo(np.float64).eps)


def factorise(fragments: Bools, method: Method, tolerance: float | None = None) -> Factors:
    """The factors of F by a method.

    LU is LAPACK's, with rows exchanged for the largest pivot. It is no echelon form: where a column depends on those
    before it, the pivot is zero, but its row in U need not be, and stays. "LU echelon" goes on with the next column.
    QR exchanges columns, which makes it reveal the rank.
    """
    matrix = fragments.astype(np.float64)
    limit = default_tolerance(fragments) if tolerance is None else tolerance
    if not matrix.size:
        return Factors(np.zeros((matrix.shape[0], 0)), np.zeros((0, matrix.shape[1])))
    match method:
        case "LU":
            lower, upper = scipy.linalg.lu(matrix, permute_l=True, check_finite=False)
            return _without_zero_rows(lower, upper, limit)
        case "LU echelon":
            lower, upper = _echelon(matrix, limit)
            return _without_zero_rows(lower, upper, limit)
        case "QR":
            q, r, order = pivoted_qr(matrix)
            right = np.empty_like(r)
            right[:, order] = r
            return _without_zero_rows(q, right, limit)
        case "SVD":
            left, values, right = scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)
            kept = values > limit * values[0]
            return Factors(left[:, kept] * values[kept], right[kept])
        case _ as never:
            assert_never(never)


def pivoted_qr(matrix: F64) -> tuple[F64, F64, npt.NDArray[np.int64]]:
    """QR with column pivoting: Q, R and the order of columns."""
    found: Any = scipy.linalg.qr(matrix, mode="economic", pivoting=True, check_finite=False)
    q, r, order = found
    return q, r, order.astype(np.int64)


def _without_zero_rows(left: F64, right: F64, tolerance: float) -> Factors:
    heights = np.abs(right).max(axis=1)
    kept = heights > tolerance * heights.max(initial=0.0)
    return Factors(left[:, kept], right[kept])


def _echelon(matrix: F64, tolerance: float) -> tuple[F64, F64]:
    """Elimination with row exchanges that leaves out columns without a pivot."""
    upper = matrix.copy()
    rows, columns = upper.shape
    order = np.arange(rows)
    lower = np.zeros((rows, min(rows, columns)))
    rank = 0
    for column in range(columns):
        if rank == min(rows, columns):
            break
        place = rank + int(np.abs(upper[rank:, column]).argmax())
        if abs(upper[place, column]) <= max(tolerance, 1e-9):
            upper[rank:, column] = 0.0
            continue
        upper[[rank, place]], order[[rank, place]] = upper[[place, rank]], order[[place, rank]]
        lower[[rank, place]] = lower[[place, rank]]
        steps = upper[rank + 1 :, column] / upper[rank, column]
        upper[rank + 1 :] -= np.outer(steps, upper[rank])
        upper[rank + 1 :, column] = 0.0
        lower[rank, rank], lower[rank + 1 :, rank] = 1.0, steps
        rank += 1
    unpermuted = np.empty_like(lower)
    unpermuted[order] = lower
    return unpermuted[:, :rank], upper[:rank]
