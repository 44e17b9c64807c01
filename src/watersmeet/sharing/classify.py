"""Group filters (5.2): every row of a batch to its fragment, however many queries there are.

Each column that predicates read is searched once; the classes of a row's columns together decide which queries it
satisfies. That decision is made once for each combination of classes that occurs, and looked up for all other rows.
"""

from collections.abc import Mapping, Sequence
from math import prod
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.errors import InputError, UnknownColumn, did_you_mean
from watersmeet.sharing.bits import Bools, Words, distinct_rows, pack, unpack, words_for
from watersmeet.sharing.cells import ColumnCells, column_cells
from watersmeet.sharing.fragments import FragmentIndex
from watersmeet.sharing.predicates import Predicate, Term, Value, columns_of, constants_of, terms_of

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_MOST_DENSE = 1 << 24  # combinations of classes that are looked up in a plain table
_UNKNOWN = -2


class Classifier:
    """Predicates over the columns of a stream, compiled; fragments are numbered in order of appearance."""

    def __init__(self, predicates: Sequence[Predicate], schema: Mapping[str, pa.DataType]) -> None:
        terms = [(query, term) for query, predicate in enumerate(predicates) for term in terms_of(predicate)]
        names = sorted(set().union(*(columns_of(predicate) for predicate in predicates)))
        for name in names:
            if name not in schema:
                raise UnknownColumn(f"a predicate reads column {name!r}; {did_you_mean(name, schema)}")
        self.queries = len(predicates)
        self.fragments = FragmentIndex(len(predicates))
        self._query_of_term = np.array([query for query, _ in terms], np.int64)
        self._columns = [_compiled(name, schema[name], predicates, [term for _, term in terms]) for name in names]
        self._terms = [pack(cells.truth) for cells in self._columns]  # which terms hold as far as a column goes
        self._combinations = prod(cells.classes for cells in self._columns)
        if self._combinations >= 1 << 62:
            raise InputError(
                f"predicates over {len(names)} columns distinguish too many combinations of values to classify by; "
                "share fewer queries, or queries over fewer columns, in one group"
            )
        dense = self._combinations if self._combinations <= _MOST_DENSE else 0
        self._dense: I32 = np.full(dense, _UNKNOWN, np.int32)
        self._sparse_keys: I64 = np.zeros(0, np.int64)
        self._sparse_fragments: I32 = np.zeros(0, np.int32)
        self._lock = Lock()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(cells.column for cells in self._columns)

    def classified(self, batch: pa.RecordBatch | pa.Table) -> tuple[I32, Words]:
        """The fragment of each row, and F so far; several threads may ask."""
        found = self.classify(batch)
        with self._lock:
            return found, self.fragments.words

    def classify(self, batch: pa.RecordBatch | pa.Table) -> I32:
        """The fragment of each row, -1 where no query wants it."""
        keys = np.zeros(batch.num_rows, np.int64)
        for cells in self._columns:
            keys *= cells.classes
            keys += cells.classify(_column(batch, cells.column))
        if self._combinations <= _MOST_DENSE:
            found = self._dense[keys]
            unknown = found == _UNKNOWN
            if unknown.any():
                new = np.unique(keys[unknown])
                with self._lock:
                    self._dense[new] = self._decide(new)
                found = self._dense[keys]
            return found
        with self._lock:
            new = np.setdiff1d(keys, self._sparse_keys)
            if len(new):
                merged = np.concatenate([self._sparse_keys, new])
                order = np.argsort(merged, kind="stable")
                self._sparse_fragments = np.concatenate([self._sparse_fragments, self._decide(new)])[order]
                self._sparse_keys = merged[order]
            return self._sparse_fragments[np.searchsorted(self._sparse_keys, keys)]

    def static_superset(self, most: int = 1 << 20) -> Bools:
        """All rows that F can have, by the predicates alone (5.6.1): no data, and so no node, can add one."""
        if self._combinations > most:
            raise InputError(
                f"the predicates allow {self._combinations:,} combinations of values, too many to list; let F follow "
                "the data instead"
            )
        return distinct_rows(unpack(self._sets(np.arange(self._combinations)), self.queries))

    def _decide(self, keys: I64) -> I32:
        return self.fragments.number(self._sets(keys))

    def _sets(self, keys: I64) -> Words:
        """The queries that combinations of classes satisfy."""
        count = len(self._query_of_term)
        holds = np.full((len(keys), words_for(count)), ~np.uint64(0), np.uint64)
        left = keys
        for cells, terms in zip(reversed(self._columns), reversed(self._terms), strict=True):
            holds &= terms[left % cells.classes]
            left = left // cells.classes
        if count == self.queries and (self._query_of_term == np.arange(count)).all():
            return _trimmed(holds, count)
        queries = np.zeros((len(keys), self.queries), np.bool_)
        for term, held in zip(self._query_of_term, unpack(holds, count).T, strict=True):
            queries[:, term] |= held
        return pack(queries)


def _trimmed(words: Words, columns: int) -> Words:
    """Words without the bits beyond the last column."""
    if columns % 64 or not columns:
        words[:, -1] &= np.uint64((1 << columns % 64) - 1)
    return words


def _compiled(name: str, kind: pa.DataType, predicates: Sequence[Predicate], terms: Sequence[Term]) -> ColumnCells:
    """The cells of a column, with the truth of each term as far as that column decides it."""
    constants: list[Value] = [
        value for predicate in predicates for column, value in constants_of(predicate) if column == name
    ]
    conditions = [term[name] for term in terms if name in term]
    different = list(dict.fromkeys(conditions))
    numbers = {condition: number for number, condition in enumerate(different)}
    cells = column_cells(name, kind, different, constants)
    always = np.ones((cells.classes, 1), np.bool_)
    truth = np.concatenate([cells.truth, always], axis=1)
    chosen = [numbers[term[name]] if name in term else len(different) for term in terms]
    return ColumnCells(cells.column, cells.constants, cells.class_of_cell, truth[:, chosen])


def _column(batch: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    column = batch.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
