"""Filters of a stream that are decided together: each row is classified once, however many filters there are.

Where a stream has several selections whose filters only compare columns with constants, whoever lays out new rows hands
on these columns instead of evaluating the filters, and the rows are classified by the cells of the constants
(`sharing.classify`). Both say the same, so that the choice is free for every micro-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as kinds

from watersmeet.errors import InputError
from watersmeet.program.site.streams import StreamScan
from watersmeet.program.storage.segments import TS, column, keep_column
from watersmeet.query.sql.simple import ValueKind, fits, predicate_of
from watersmeet.sharing.bits import Bools, pack, unpack
from watersmeet.sharing.classify import Classifier
from watersmeet.sharing.predicates import And, Predicate, columns_of, constants_of

LEAST_CLASSIFIED = 4  # filters: fewer are as quickly evaluated one by one
_MOST_COMBINATIONS = 1 << 62  # of cells
_MOST_LISTED = 1 << 14  # combinations of cells that are listed to say how many fragments there can be
_WORD = 62  # selections at a time that are evaluated one by one

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def classified_selections(scan: StreamScan, kind_of: Mapping[str, ValueKind]) -> tuple[int, ...]:
    """The selections of a stream that rows are classified by, given the kinds of its columns by flat name."""
    found = [number for number, _ in enumerate(scan.selections) if _fits(_predicate(scan, number), kind_of)]
    predicates = [predicate for number in found if (predicate := _predicate(scan, number)) is not None]
    constants: dict[str, set[object]] = {}
    for predicate in predicates:
        for name in columns_of(predicate):
            constants.setdefault(name, set())
        for name, value in constants_of(predicate):
            constants[name].add(value)
    cells = prod(4 * len(values) + 2 for values in constants.values())  # a fraction may cut whole numbers twice
    return tuple(found) if len(found) >= LEAST_CLASSIFIED and cells < _MOST_COMBINATIONS else ()


def classified_columns(scan: StreamScan, selections: Sequence[int]) -> tuple[str, ...]:
    """The columns, by flat name, that rows must have to be classified by some selections."""
    predicates = [_predicate(scan, number) for number in selections]
    return tuple(sorted({name for predicate in predicates if predicate is not None for name in columns_of(predicate)}))


def kind_of_type(kind: pa.DataType) -> ValueKind:
    """What the values of an Arrow type are to predicates."""
    if kinds.is_signed_integer(kind):
        return ValueKind.WHOLE
    if kinds.is_float64(kind):
        return ValueKind.DOUBLE
    return ValueKind.TEXT if kinds.is_string(kind) or kinds.is_large_string(kind) else ValueKind.OTHER


def possible_fragments(scan: StreamScan, selections: Sequence[int]) -> Bools | None:
    """All rows that F can have for some selections, by their filters alone; None where only the data say.

    A selection without filters has all rows; when selections begin is left aside.
    """
    filtered = [number for number in selections if scan.selections[number].filters]
    predicates = [predicate for number in filtered if (predicate := _predicate(scan, number)) is not None]
    if len(predicates) < len(filtered):
        return None
    found = np.ones((1, 0), bool)
    if predicates:
        texts = {name: isinstance(value, str) for predicate in predicates for name, value in constants_of(predicate)}
        names = sorted(frozenset().union(*(columns_of(predicate) for predicate in predicates)))
        try:
            schema = {name: pa.string() if texts.get(name) else pa.float64() for name in names}
            found = Classifier(predicates, schema).static_superset(_MOST_LISTED)
        except InputError:
            return None
    if len(filtered) == len(selections):
        return found
    nobody = np.zeros((1, len(predicates)), bool)  # rows that only queries without filters want
    whole = np.ones((len(found) + 1, len(selections)), bool)
    whole[:, [place for place, number in enumerate(selections) if number in filtered]] = np.concatenate([found, nobody])
    return whole


def _predicate(scan: StreamScan, number: int) -> Predicate | None:
    """The filters of a selection, where all of them are simple; None also where there are none."""
    parts = [predicate_of(predicate) for predicate in scan.selections[number].filters]
    known = tuple(predicate for predicate in parts if predicate is not None)
    return And(known) if known and len(known) == len(parts) else None


def _fits(predicate: Predicate | None, kind_of: Mapping[str, ValueKind]) -> bool:
    return predicate is not None and fits(predicate, kind_of)


@lru_cache(maxsize=32)
def _classifier(predicates: tuple[Predicate, ...], schema: tuple[tuple[str, pa.DataType], ...]) -> Classifier:
    return Classifier(predicates, dict(schema))


@dataclass(frozen=True)
class RowFilters:
    """What the filters of a stream's selections say of new rows, which are laid out as they are ingested."""

    scan: StreamScan
    table: pa.Table

    @cached_property
    def _classified(self) -> tuple[int, ...]:
        """Selections whose filters were not evaluated."""
        names = set(self.table.column_names)
        return tuple(
            number
            for number, selection in enumerate(self.scan.selections)
            if selection.filters and keep_column(number) not in names
        )

    @cached_property
    def _fragments(self) -> tuple[I64, Bools]:
        """The fragment of each row, and which of the classified selections each has; the last one has none."""
        wanted = [_predicate(self.scan, number) for number in self._classified]
        predicates = tuple(predicate for predicate in wanted if predicate is not None)
        assert len(predicates) == len(wanted), "filters that are not simple are evaluated"
        names = classified_columns(self.scan, self._classified)
        schema = tuple((name, self.table.schema.field(name).type) for name in names)
        classifier = _classifier(predicates, schema)
        found, words = classifier.classified(self.table.select(list(names)))
        matrix = np.concatenate([unpack(words, len(predicates)), np.zeros((1, len(predicates)), bool)])
        return np.where(found < 0, len(words), found).astype(np.int64), matrix

    def holds(self, number: int) -> Mask | None:
        """Which rows pass the filters of a selection; None is all of them."""
        if not self.scan.selections[number].filters:
            return None
        if number in self._classified:
            fragments, matrix = self._fragments
            return np.asarray(matrix[fragments, self._classified.index(number)])
        kept = self.table.column(keep_column(number)).fill_null(False).combine_chunks()
        return np.asarray(kept.to_numpy(zero_copy_only=False))

    def passed(self, number: int) -> int:
        """How many rows pass the filters of a selection."""
        if number in self._classified:
            return int(self._counts[self._classified.index(number)])
        mask = self.holds(number)
        return self.table.num_rows if mask is None else int(mask.sum())

    @cached_property
    def _counts(self) -> I64:
        fragments, matrix = self._fragments
        rows = np.bincount(fragments, minlength=len(matrix))
        return np.array([rows[passes].sum() for passes in matrix.T], np.int64)

    def sets(self, selections: Sequence[int]) -> tuple[I64, list[bytes]]:
        """For each row the number of the set of selections that it fulfils, and the sets; those without rows too.

        The bits of a set are numbers of selections; the empty set is no bytes. Keys are not looked at.
        """
        codes = np.zeros(self.table.num_rows, np.int64)
        sets = np.zeros((1, len(self.scan.selections)), bool)
        wanted = np.zeros(len(self.scan.selections), bool)
        wanted[list(selections)] = True
        classified = [number for number in self._classified if wanted[number]]
        if classified:
            codes, matrix = self._fragments
            sets = np.zeros((len(matrix), len(wanted)), bool)
            sets[:, self._classified] = matrix
            sets &= wanted
        others = [number for number in selections if number not in set(classified)]
        always = [number for number in others if not self.scan.selections[number].filters]
        sets[:, always] = True
        evaluated = [number for number in others if number not in always]
        for start in range(0, len(evaluated), _WORD):
            some = evaluated[start : start + _WORD]
            bits = np.zeros(self.table.num_rows, np.int64)
            for place, number in enumerate(some):
                mask = self.holds(number)
                assert mask is not None, "it has filters"
                bits |= mask.astype(np.int64) << place
            words, place_of = np.unique(bits, return_inverse=True)
            codes, first = _pairs(codes, place_of, len(words))
            sets = sets[first // len(words)]
            sets[:, some] = (words[first % len(words)][:, None] >> np.arange(len(some)) & 1).astype(bool)
        codes, sets = self._begun(codes, sets)
        return codes, [row.tobytes().rstrip(b"\0") for row in pack(sets).astype("<u8")]

    def _begun(self, codes: I64, sets: Bools) -> tuple[I64, Bools]:
        """Sets without selections that begin after a row."""
        starts = np.array(
            [selection.start_us if selection.start_us is not None else -(1 << 63) for selection in self.scan.selections]
        )
        instants = np.unique(starts[starts > -(1 << 63)])
        if not len(instants) or not self.table.num_rows:
            return codes, sets
        spans = np.searchsorted(instants, column(self.table, TS), side="right")
        if spans.min() == len(instants):
            return codes, sets
        codes, first = _pairs(codes, spans, len(instants) + 1)
        begins = np.searchsorted(instants, starts, side="right")  # how many instants a row must have passed
        return codes, sets[first // (len(instants) + 1)] & (begins[None, :] <= (first % (len(instants) + 1))[:, None])


def _pairs(codes: I64, others: I64, count: int) -> tuple[I64, I64]:
    """New numbers for pairs of numbers, the second below `count`, and which pair each stands for."""
    pairs, found = np.unique(codes * count + others, return_inverse=True)
    return found.astype(np.int64).reshape(-1), pairs
