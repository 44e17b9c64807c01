"""Records of independent queries, from which those of all queries follow (5.4): for counts and sums of a low rank.

An entry stands for the record of one query and says with which whole factor it counts for which queries. The reader
makes records of every query of them again, and leaves out those without rows; so queries must count rows. Entries are
bytes that end with 0, as no set does, and travel in the place of sets: written out once, then known by their number.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2s

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.program.aggregate.functions import Rule
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.finish.shared import SET, RecordShape, matrix_of, set_of
from watersmeet.sharing.bits import Bools
from watersmeet.sharing.decomposition import IntegerCombination
from watersmeet.sharing.linear import linear_basis

_MOST_FACTORED = 1 << 18  # fragments times queries for which a basis is searched: 500 x 500 take 20 ms
_MOST_FACTOR = 127
_HEAD, _TERM, _END = struct.Struct("<4sI"), struct.Struct("<bH"), b"\0"

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The record of a query, and with which factors it counts for sets of queries."""

    basis: bytes  # a name that entries of one basis have in common
    selection: int
    factors: tuple[tuple[int, bytes], ...]

    def to_bytes(self) -> bytes:
        terms = b"".join(_TERM.pack(factor, len(some)) + some for factor, some in self.factors)
        return _HEAD.pack(self.basis, self.selection) + terms + _END

    @staticmethod
    def from_bytes(data: bytes) -> "QueryRecord":
        """The entry that was written; ValueError where it is none."""
        place, end, factors = _HEAD.size, len(data) - len(_END), []
        if end < place or not is_entry(data):
            raise ValueError("an entry of shared records is too short")
        basis, selection = _HEAD.unpack_from(data)
        while place < end:
            if place + _TERM.size > end:
                raise ValueError("an entry of shared records ends within a factor")
            factor, size = _TERM.unpack_from(data, place)
            some = data[place + _TERM.size : place + _TERM.size + size]
            place += _TERM.size + size
            if place > end or not some:
                raise ValueError("an entry of shared records ends within a set")
            factors.append((factor, some))
        return QueryRecord(basis, selection, tuple(factors))


def is_entry(written: bytes) -> bool:
    """Whether what is written in the place of a set is an entry."""
    return written.endswith(_END)


def is_linear(shape: RecordShape, layout: Layout) -> bool:
    """Whether records may be subtracted exactly, and tell when nothing is left of them."""
    rules = {rule for function, _ in layout.functions for rule in function.rules.values()}
    return rules == {Rule.SUM} and _counting(shape) is not None


def counts_only(shape: RecordShape) -> bool:
    """Whether records of a shape are certainly such, whatever the types of its columns."""
    are_counts = all(aggregate.function == "count" and not aggregate.distinct for aggregate in shape.aggregates)
    return are_counts and _counting(shape) is not None


def basis_size(fragments: Bools) -> int | None:
    """How many records of independent queries travel; None where they cannot."""
    found = _factored(fragments)
    return None if found is None else len(found[0])


def known_bases(known: Iterable[bytes], sets: Sequence[bytes]) -> list[list[bytes]]:
    """The bases that the reader knows and from which all queries of some fragments follow."""
    by_basis: dict[bytes, list[QueryRecord]] = {}
    for data in sorted(filter(is_entry, known)):
        entry = _decoded(data)
        by_basis.setdefault(entry.basis, []).append(entry)
    return [[record.to_bytes() for record in basis] for basis in by_basis.values() if _is_right(basis, sets)]


@lru_cache(maxsize=16)  # F stays the same for most panes
def fresh_basis(sets: tuple[bytes, ...], selections: tuple[int, ...]) -> list[bytes] | None:
    """Entries for as many queries as F has ranks; None where F is too large or factors are not small whole numbers."""
    found = _factored(matrix_of(sets, selections))
    if found is None:
        return None
    (columns, factors), numbers = found, np.array(selections)
    name = blake2s(factors.tobytes() + numbers.tobytes() + columns.tobytes(), digest_size=4).digest()
    made = []
    for column, row in zip(columns.tolist(), factors, strict=True):
        terms = tuple((factor, set_of(numbers[row == factor].tolist())) for factor in np.unique(row).tolist() if factor)
        made.append(QueryRecord(name, selections[column], terms).to_bytes())
    return made


def _factored(fragments: Bools) -> tuple[I64, I64] | None:
    """Independent columns of F, and the small whole factors by which all follow from them, if there are such."""
    if fragments.size > _MOST_FACTORED:
        return None
    found = linear_basis(fragments)
    if not isinstance(found.combination, IntegerCombination) or found.combination.denominator != 1:
        return None
    factors = found.combination.numerators
    return None if np.abs(factors).max(initial=0) > _MOST_FACTOR else (found.columns, factors)


def owners_of(entries: Sequence[bytes], sets: Sequence[bytes]) -> Bools:
    """Which fragments (rows) each entry is the record of."""
    return matrix_of(sets, [_decoded(entry).selection for entry in entries])


def of_all_queries(shape: RecordShape, records: pa.Table) -> pa.Table:
    """Records of entries as those of every query that follows from them; other records stay as they are."""
    coded = records.column(SET).combine_chunks().dictionary_encode()
    written: list[bytes] = coded.dictionary.to_pylist()
    if not any(map(is_entry, written)):
        return records
    layout = shape.layout(records.schema)
    places = coded.indices.to_numpy(zero_copy_only=False)
    terms = [_terms(data) if is_entry(data) else None for data in written]
    plain = np.array([term is None for term in terms])[places]
    counts = np.array([0 if term is None else len(term[0]) for term in terms])[places]
    selections = np.concatenate([one[0] for place in places if (one := terms[place]) is not None])
    factors = np.concatenate([one[1] for place in places if (one := terms[place]) is not None])
    spread = records.drop_columns([SET]).take(pa.array(np.repeat(np.arange(len(places)), counts)))
    for name in layout.columns[len(layout.keys) :]:
        column = pa.array(spread.column(name).to_numpy() * factors)
        spread = spread.set_column(spread.column_names.index(name), name, column)
    made = layout.combine([spread.append_column(SET, pa.array(selections))])
    counted = _counting(shape)
    assert counted is not None, "queries that send entries count rows"
    made = made.filter(pa.array(made.column(layout.state_column(counted, "n")).to_numpy() != 0))
    different, found = np.unique(made.column(SET).to_numpy(), return_inverse=True)
    singles = pa.array([set_of([value]) for value in different.tolist()], pa.binary()).take(pa.array(found.reshape(-1)))
    made = made.set_column(made.column_names.index(SET), SET, singles)
    return pa.concat_tables([records.filter(pa.array(plain)).select(made.column_names), made])


def _counting(shape: RecordShape) -> int | None:
    """Which aggregate of a shape counts rows."""
    found = (
        number
        for number, aggregate in enumerate(shape.aggregates)
        if aggregate.function == "count" and aggregate.item is None
    )
    return next(found, None)


_decoded = lru_cache(maxsize=4_096)(QueryRecord.from_bytes)


def _terms(written: bytes) -> tuple[I64, I64]:
    """The queries that an entry counts for, and the factor of each."""
    factors = _decoded(written).factors
    selections = [_selections(some) for _, some in factors]
    repeated = [np.full(len(some), factor) for some, (factor, _) in zip(selections, factors, strict=True)]
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *selections]), np.concatenate([nothing, *repeated])


def _selections(some: bytes) -> I64:
    return np.flatnonzero(np.unpackbits(np.frombuffer(some, np.uint8), bitorder="little"))


def _is_right(basis: Sequence[QueryRecord], sets: Sequence[bytes]) -> bool:
    """Whether the entries of a basis give all queries of some fragments, and nothing to others."""
    width = 8 * max(len(some) for some in [*sets, *(some for record in basis for _, some in record.factors)])
    width = max(width, *(record.selection + 1 for record in basis))
    factors = np.zeros((len(basis), width))
    for place, record in enumerate(basis):
        for factor, some in record.factors:
            factors[place, _selections(some)] = factor
    fragments = matrix_of(sets, range(width)).astype(np.float64)
    return bool((fragments[:, [record.selection for record in basis]] @ factors == fragments).all())
