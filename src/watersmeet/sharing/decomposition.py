"""A decomposition as a value: which fragments each of k shared aggregates combines, and how queries are answered.

F = assign x combination, in the algebra of the aggregate: Boolean OR for duplicate-insensitive aggregates, sums that
never exceed one for general ones, rational numbers (or residues) for linear ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar, assert_never

import numpy as np
import numpy.typing as npt

from watersmeet.sharing.bits import Bools

I64 = npt.NDArray[np.int64]
Record = TypeVar("Record")

_SAFE = 1 << 62  # sums below it fit into 64 bits with room for a sign


@dataclass(frozen=True, slots=True, eq=False)
class SetCombination:
    """A query is the combination of the shared aggregates whose basis row has it."""

    basis: Bools  # k x q


@dataclass(frozen=True, slots=True, eq=False)
class IntegerCombination:
    """A query is a sum of shared aggregates times whole numbers, divided by a common denominator."""

    numerators: I64  # k x q
    denominator: int


@dataclass(frozen=True, slots=True, eq=False)
class ModularCombination:
    """A query is a sum of shared aggregates times residues, modulo some primes: exact while below their product.

    Needed where the coefficients are fractions of many digits. F = assign x residues modulo each prime, so answers have
    the right residue whatever the rank over the rational numbers is.
    """

    primes: tuple[int, ...]
    residues: I64  # primes x k x q

    @property
    def bound(self) -> int:
        """Answers must be smaller than this, sign left aside."""
        product = reduce(lambda one, other: one * other, self.primes, 1)
        return product // 2


Combination = SetCombination | IntegerCombination | ModularCombination


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """k shared aggregates that answer q queries over f fragments."""

    assign: Bools  # f x k: whether a shared aggregate combines a fragment
    combination: Combination

    @property
    def size(self) -> int:
        """k, the entries of A'."""
        return int(self.assign.shape[1])

    @property
    def queries(self) -> int:
        """q, how many queries it answers."""
        match self.combination:
            case SetCombination(basis):
                return int(basis.shape[1])
            case IntegerCombination(numerators):
                return int(numerators.shape[1])
            case ModularCombination(_, residues):
                return int(residues.shape[2])
            case _ as never:
                assert_never(never)


def identity(fragments: Bools) -> Decomposition:
    """Nothing shared: one aggregate a query."""
    return Decomposition(fragments, SetCombination(np.eye(fragments.shape[1], dtype=np.bool_)))


def shared_sums(decomposition: Decomposition, sums: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A' from A, where aggregates are sums: of fragments (f or f x m) to those of shared aggregates.

    Whole numbers stay exact: beyond 64 bits they become Python's.
    """
    return _exact_product(decomposition.assign.T, sums)


def query_sums(decomposition: Decomposition, shared: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The answers of all queries from A', where aggregates are sums."""
    combination = decomposition.combination
    match combination:
        case SetCombination(basis):
            return _exact_product(basis.T, shared)
        case IntegerCombination(numerators, denominator):
            found = _exact_product(numerators.T, shared)
            if denominator == 1:
                return found
            return found / denominator if found.dtype.kind == "f" else found // denominator
        case ModularCombination():
            return _modular_sums(combination, shared)
        case _ as never:
            assert_never(never)


def query_extremes(
    decomposition: Decomposition, values: npt.NDArray[Any], present: Bools, largest: bool
) -> tuple[npt.NDArray[Any], Bools]:
    """Maxima or minima of all queries from those of fragments, through A'; present says where there is one at all."""
    shared, known = _extremes(decomposition.assign.T, values, present, largest)
    return _extremes(_basis(decomposition).T, shared, known, largest)


def query_records(
    decomposition: Decomposition, records: Sequence[Record | None], combine: Callable[[Record, Record], Record]
) -> list[Record | None]:
    """Any partial state records of queries from those of fragments, through A'; None where there is nothing."""
    shared = combine_records(decomposition.assign.T, records, combine)
    return combine_records(_basis(decomposition).T, shared, combine)


def combine_records(
    members: Bools, records: Sequence[Record | None], combine: Callable[[Record, Record], Record]
) -> list[Record | None]:
    """For each row of a matrix, the records that it has combined."""
    found: list[Record | None] = []
    for row in members:
        own = [record for place in np.flatnonzero(row).tolist() if (record := records[place]) is not None]
        found.append(reduce(combine, own) if own else None)
    return found


def _basis(decomposition: Decomposition) -> Bools:
    if not isinstance(decomposition.combination, SetCombination):
        raise TypeError("a linear decomposition subtracts: it is for sums only")
    return decomposition.combination.basis


def _extremes(
    members: Bools, values: npt.NDArray[Any], present: Bools, largest: bool
) -> tuple[npt.NDArray[Any], Bools]:
    """For each row of a matrix, the extreme of the values that it has."""
    taken = members & present[None, :]
    known: Bools = np.asarray(taken.any(axis=1))
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    if not len(values):
        return np.zeros(len(members), values.dtype), known
    worst = -1 if largest else len(values)
    masked = np.where(taken, ranks[None, :], worst)
    best = masked.max(axis=1) if largest else masked.min(axis=1)
    return values[order[np.clip(best, 0, len(values) - 1)]], known


def _exact_product(matrix: npt.NDArray[Any], sums: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if sums.dtype.kind == "f":
        found: npt.NDArray[Any] = matrix.astype(np.float64) @ sums
        return found
    if sums.dtype != object:
        most = int(np.abs(sums.astype(np.float64)).max(initial=0.0)) + 1
        heaviest = int(np.abs(matrix.astype(np.float64)).sum(axis=1).max(initial=0.0)) + 1
        if most * heaviest < 1 << 52:  # exact in doubles, for which there are fast products
            return np.rint(matrix.astype(np.float64) @ sums.astype(np.float64)).astype(np.int64)
        if most * heaviest < _SAFE:
            return matrix.astype(np.int64) @ sums.astype(np.int64)
    whole: npt.NDArray[Any] = matrix.astype(object) @ sums.astype(object)
    return whole


def _modular_sums(combination: ModularCombination, shared: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The answers by their residues (Chinese remainders), as whole numbers around zero."""
    if shared.dtype.kind == "f":
        raise TypeError("residues are for whole numbers: floating-point sums need an integer combination")
    whole = shared.astype(object)
    total = np.zeros((combination.residues.shape[2], *whole.shape[1:]), object)
    modulus = 1
    for prime, residues in zip(combination.primes, combination.residues, strict=True):
        wanted = (residues.T.astype(object) @ (whole % prime)) % prime
        inverse = pow(modulus, -1, prime)
        total = total + modulus * (((wanted - total) * inverse) % prime)
        modulus *= prime
    return np.where(total > modulus // 2, total - modulus, total)
