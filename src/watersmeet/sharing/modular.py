"""Elimination modulo a prime, compiled by Numba: the exact solution where fractions have too many digits."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

PRIMES = (2_147_483_647, 2_147_483_629, 2_147_483_587)  # the largest below 2^31: products fit into 64 bits

_jit: Any = numba.njit(cache=True, nogil=True)


@_jit
def _power(base, exponent, prime):  # type: ignore[no-untyped-def]
    found = 1
    while exponent:
        if exponent & 1:
            found = found * base % prime
        base = base * base % prime
        exponent >>= 1
    return found


@_jit
def _reduce(matrix, order, prime):  # type: ignore[no-untyped-def]
    """Reduced row echelon form in place, columns taken in an order; the columns with pivots, in that order."""
    rows, columns = matrix.shape
    pivots = np.empty(min(rows, columns), np.int64)
    rank = 0
    for place in range(columns):
        column = order[place]
        if rank == rows:
            break
        pivot = -1
        for row in range(rank, rows):
            if matrix[row, column]:
                pivot = row
                break
        if pivot < 0:
            continue
        if pivot != rank:
            for c in range(columns):
                matrix[rank, c], matrix[pivot, c] = matrix[pivot, c], matrix[rank, c]
        scale = _power(matrix[rank, column], prime - 2, prime)
        if scale != 1:
            for c in range(columns):
                matrix[rank, c] = matrix[rank, c] * scale % prime
        for row in range(rows):
            factor = matrix[row, column]
            if row != rank and factor:
                for c in range(columns):
                    if matrix[rank, c]:
                        matrix[row, c] = (matrix[row, c] + (prime - factor) * matrix[rank, c]) % prime
        pivots[rank] = column
        rank += 1
    return pivots[:rank]


def reduced(matrix: npt.NDArray[Any], order: I64, prime: int) -> tuple[I64, I64]:
    """The columns with pivots, taken in an order, and the residues X with matrix = matrix[:, pivots] x X."""
    work = np.ascontiguousarray(matrix, dtype=np.int64) % prime
    pivots = _reduce(work, order.astype(np.int64), prime)
    return pivots, work[: len(pivots)]
