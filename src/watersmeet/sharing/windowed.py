"""Windowed COUNT, SUM, MIN, MAX and AVG of many queries over one stream in one pass, exact.

A row is classified once (`classify.py`) and aggregated once, by pane, group and fragment; when a window ends, the
fragments of its panes are spread to the queries that have them. Queries may differ in predicate, window and grouping:
groups are those of all grouping columns together, and rolled up for each query.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import TypeMismatch, UnknownColumn, did_you_mean
from watersmeet.sharing.bits import Words, pack, words_for
from watersmeet.sharing.classify import Classifier
from watersmeet.sharing.panes import Window, pane_us, windows_closed
from watersmeet.sharing.predicates import Predicate

I64 = npt.NDArray[np.int64]

_LOW_BITS = 32  # sums of whole numbers are kept as a high and a low half: neither overflows before 2^31 rows
_SPARE_GROUPS = 1024  # groups without rows that are kept besides as many as have some
_jit: Any = numba.njit(cache=True, nogil=True)


@dataclass(frozen=True, slots=True)
class WindowedQuery:
    """A query among those that share: which rows, which windows, which groups."""

    name: str
    predicate: Predicate
    window: Window
    group_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """Partial aggregates in order of their codes; a code stands for a group (high half) and a fragment (low half)."""

    codes: I64
    rows: I64
    values: I64  # rows whose value is not NULL
    high: I64
    low: I64
    least: I64
    most: I64


_LARGEST, _SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@_jit
def _accumulate(places, values, valid, rows, known, high, low, least, most):  # type: ignore[no-untyped-def]
    """Add each row to its place; rows without one (-1) belong to nobody."""
    for row in range(places.shape[0]):
        place = places[row]
        if place < 0:
            continue
        rows[place] += 1
        if valid[row]:
            value = values[row]
            known[place] += 1
            high[place] += value >> 32
            low[place] += value & 0xFFFFFFFF
            if value < least[place]:
                least[place] = value
            if value > most[place]:
                most[place] = value


@_jit
def _merge(places, part, total):  # type: ignore[no-untyped-def]
    """Add partial aggregates to their places; part and total are rows, values, high, low, least, most."""
    for row in range(places.shape[0]):
        place = places[row]
        for figure in range(4):
            total[figure, place] += part[figure, row]
        total[4, place] = min(total[4, place], part[4, row])
        total[5, place] = max(total[5, place], part[5, row])


@_jit
def _spread(fragments, groups, sets, group_count, part, total):  # type: ignore[no-untyped-def]
    """Add the partial aggregates of fragments to all queries that have them: place = query x groups + group."""
    for row in range(fragments.shape[0]):
        for word in range(sets.shape[1]):
            bits = sets[fragments[row], word]
            query = word << 6
            while bits:
                if bits & np.uint64(1):
                    place = query * group_count + groups[row]
                    for figure in range(4):
                        total[figure, place] += part[figure, row]
                    total[4, place] = min(total[4, place], part[4, row])
                    total[5, place] = max(total[5, place], part[5, row])
                bits >>= np.uint64(1)
                query += 1


class SharedAggregation:
    """State of the queries that share: partial aggregates by pane, group and fragment.

    `value` is a column of whole numbers. Rows that come after the watermark has passed them are counted in `late_rows`
    and left out.
    """

    def __init__(
        self, queries: Sequence[WindowedQuery], schema: Mapping[str, pa.DataType], event_time: str, value: str
    ) -> None:
        self.queries = tuple(queries)
        self._group_columns = tuple(sorted({name for query in queries for name in query.group_by}))
        for name in (event_time, value, *self._group_columns):
            if name not in schema:
                raise UnknownColumn(f"a query reads column {name!r}; {did_you_mean(name, schema)}")
        if not pa.types.is_integer(schema[value]) or schema[value] == pa.uint64():
            raise TypeMismatch(
                f"column {value} has type {schema[value]}; sums are shared for whole numbers of up to 64 bits, so that "
                "they are exact"
            )
        self.classifier = Classifier([query.predicate for query in queries], schema)
        self.pane_us = pane_us(query.window for query in queries)
        self.late_rows = 0
        self._event_time, self._value = event_time, value
        self._watermark_us: int | None = None
        self._first_us: int | None = None
        self._groups: dict[tuple[Any, ...], int] = {}
        self._panes: dict[int, list[Partials]] = {}
        self._sharing = _by_window_and_group(self.queries)

    def on_batch(self, batch: pa.RecordBatch) -> None:
        """Aggregate the rows of a batch."""
        if not batch.num_rows:
            return
        times = batch.column(self._event_time).cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(zero_copy_only=False)
        places = self.classifier.classify(batch).astype(np.int64)
        panes = np.floor_divide(times, self.pane_us)
        if self._watermark_us is not None:
            late = times < self._watermark_us
            self.late_rows += int(late.sum())
            places[late] = -1
        groups = self._group_numbers(batch)
        column = batch.column(self._value).cast(pa.int64())
        valid = np.ones(batch.num_rows, np.bool_)
        if column.null_count:
            valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
            column = pc.fill_null(column, 0)
        values = column.to_numpy(zero_copy_only=False)
        wanted = places >= 0
        if not wanted.any():
            return
        first, last = int(panes[wanted].min()), int(panes[wanted].max())
        start = first * self.pane_us
        self._first_us = start if self._first_us is None else min(self._first_us, start)
        codes = groups << _LOW_BITS | places
        for pane in range(first, last + 1) if last - first < 64 else np.unique(panes[wanted]).tolist():
            inside = panes == pane if last > first else slice(None)
            self._take(pane, codes[inside], places[inside] < 0, values[inside], valid[inside])

    def _take(self, pane: int, codes: I64, nobody: npt.NDArray[np.bool_], values: I64, valid: npt.NDArray[Any]) -> None:
        known, places = _numbered(codes, nobody)
        if not len(known):
            return
        total = _empty(len(known))
        _accumulate(places, values, valid, *total)
        parts = self._panes.setdefault(pane, [])
        parts.append(Partials(known, *total))
        while len(parts) > 1 and len(parts[-1].codes) * 2 >= len(parts[-2].codes):
            parts[-2:] = [merged(parts[-2:])]

    def on_watermark(self, until_us: int) -> pa.Table:
        """The answers of all windows that end by the watermark, and the state without what no later window needs."""
        before = self._watermark_us
        if before is not None and until_us <= before:
            return _answers([], self.queries, self._group_columns)
        start = self._first_us if self._first_us is not None else until_us
        found = []
        for (window, group_by), members in self._sharing.items():
            opened = start if before is None else before
            for begin in windows_closed(window, opened, until_us):
                panes = range(begin // self.pane_us, (begin + window.size_us) // self.pane_us)
                parts = [part for pane in panes for part in self._panes.get(pane, ())]
                if parts:
                    found.append(self._answer(begin, group_by, members, merged(parts)))
        self._watermark_us = until_us
        oldest = min(until_us - query.window.size_us for query in self.queries) // self.pane_us
        for pane in [pane for pane in self._panes if pane < oldest]:
            del self._panes[pane]
        if self._group_columns:
            self._forget_groups()
        return _answers(found, self.queries, self._group_columns)

    def partials(self, first_us: int, until_us: int) -> Partials:
        """What the panes of an interval have by group and fragment: the A that a site would ship."""
        panes = range(first_us // self.pane_us, -(-until_us // self.pane_us))
        return merged([part for pane in panes for part in self._panes.get(pane, ())])

    def _group_numbers(self, batch: pa.RecordBatch) -> I64:
        if not self._group_columns:
            return np.zeros(batch.num_rows, np.int64)
        encoded = [pc.dictionary_encode(batch.column(name), null_encoding="encode") for name in self._group_columns]
        inverse, first = np.zeros(batch.num_rows, np.int64), np.zeros(1, np.int64)
        for value in encoded:
            keys = inverse * len(value.dictionary) + value.indices.to_numpy(zero_copy_only=False)
            _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        tuples = zip(*(value.take(pa.array(first)).to_pylist() for value in encoded), strict=True)
        numbers = np.array([self._groups.setdefault(key, len(self._groups)) for key in tuples], np.int64)
        return numbers[inverse.reshape(-1)]

    def _forget_groups(self) -> None:
        """Number the groups anew where most of them have no rows any more."""
        parts = [part for own in self._panes.values() for part in own]
        alive = (
            np.unique(np.concatenate([part.codes >> _LOW_BITS for part in parts])) if parts else np.zeros(0, np.int64)
        )
        if len(self._groups) <= 2 * len(alive) + _SPARE_GROUPS:
            return
        keys = list(self._groups)
        self._groups = {keys[number]: place for place, number in enumerate(alive.tolist())}
        fragment = (1 << _LOW_BITS) - 1
        for pane, own in self._panes.items():
            self._panes[pane] = [
                replace(
                    part, codes=np.searchsorted(alive, part.codes >> _LOW_BITS) << _LOW_BITS | part.codes & fragment
                )
                for part in own
            ]

    def _answer(self, begin: int, group_by: tuple[str, ...], members: Words, part: Partials) -> "_Answer":
        """Aggregates of the member queries in one window, by query and by the groups of their columns."""
        chosen = [self._group_columns.index(name) for name in group_by]
        keys: dict[tuple[Any, ...], int] = {} if chosen else {(): 0}
        of_group = np.zeros(max(len(self._groups), 1), np.int64)
        for key, number in self._groups.items() if chosen else ():
            of_group[number] = keys.setdefault(tuple(key[place] for place in chosen), len(keys))
        groups = of_group[part.codes >> _LOW_BITS]
        count = len(keys)
        total = np.stack(_empty(count * len(self.queries)))
        sets = self.classifier.fragments.words & members
        _spread(part.codes & ((1 << _LOW_BITS) - 1), groups, sets, count, _stacked(part), total)
        there = np.flatnonzero(total[0])
        return _Answer(begin, group_by, there // count, [*keys], there % count, total[:, there])


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    begin: int
    group_by: tuple[str, ...]
    queries: I64
    keys: list[tuple[Any, ...]]
    groups: I64
    figures: I64  # 6 x answers


def merged(parts: Sequence[Partials]) -> Partials:
    """Partial aggregates with equal codes combined."""
    if not parts:
        return Partials(np.zeros(0, np.int64), *_empty(0))
    if len(parts) == 1:
        return parts[0]
    known, places = np.unique(np.concatenate([part.codes for part in parts]), return_inverse=True)
    total = np.stack(_empty(len(known)))
    _merge(places.reshape(-1), np.concatenate([_stacked(part) for part in parts], axis=1), total)
    return Partials(known, *total)


def exact_sums(part: Partials) -> list[int]:
    """The sums as whole numbers of any size."""
    return [(high << _LOW_BITS) + low for high, low in zip(part.high.tolist(), part.low.tolist(), strict=True)]


def _stacked(part: Partials) -> I64:
    return np.stack([part.rows, part.values, part.high, part.low, part.least, part.most])


def _empty(count: int) -> list[I64]:
    zeros = [np.zeros(count, np.int64) for _ in range(4)]
    return [*zeros, np.full(count, _LARGEST, np.int64), np.full(count, _SMALLEST, np.int64)]


def _numbered(codes: I64, nobody: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """The different codes of rows that somebody wants, and each row's place among them (-1: nobody)."""
    limit = int(codes.max(initial=0)) + 1
    if limit <= max(1 << 16, 4 * len(codes)):
        seen = np.zeros(limit, np.bool_)
        seen[codes[~nobody]] = True
        known = np.flatnonzero(seen)
        place_of = np.cumsum(seen) - 1
        places = np.where(nobody, -1, place_of[np.where(nobody, 0, codes)])
        return known, places
    wanted = codes[~nobody]
    known, inverse = np.unique(wanted, return_inverse=True)
    places = np.full(len(codes), -1, np.int64)
    places[~nobody] = inverse.reshape(-1)
    return known, places


def _by_window_and_group(queries: Sequence[WindowedQuery]) -> dict[tuple[Window, tuple[str, ...]], Words]:
    """The queries of each window and grouping, as bits."""
    found: dict[tuple[Window, tuple[str, ...]], Words] = {}
    for number, query in enumerate(queries):
        bits = found.setdefault((query.window, query.group_by), np.zeros(words_for(len(queries)), np.uint64))
        bits |= pack(np.eye(1, len(queries), number, dtype=np.bool_))[0]
    return found


def _answers(found: Sequence[_Answer], queries: Sequence[WindowedQuery], group_columns: Sequence[str]) -> pa.Table:
    """One row an answer; grouping columns that a query does not have are NULL."""
    names = [queries[query].name for answer in found for query in answer.queries.tolist()]
    starts = [answer.begin for answer in found for _ in range(len(answer.queries))]
    figures = np.concatenate([answer.figures for answer in found], axis=1) if found else np.zeros((6, 0), np.int64)
    rows, values, high, low, least, most = figures
    empty = values == 0
    sums = [
        None if count == 0 else (top << _LOW_BITS) + bottom
        for count, top, bottom in zip(values.tolist(), high.tolist(), low.tolist(), strict=True)
    ]
    columns: dict[str, Any] = {
        "query": pa.array(names, pa.string()),
        "window_start": pa.array(starts, pa.timestamp("us")),
    }
    for name in group_columns:
        keys = [
            answer.keys[group][answer.group_by.index(name)] if name in answer.group_by else None
            for answer in found
            for group in answer.groups.tolist()
        ]
        columns[name] = pa.array(keys)
    columns["rows"] = pa.array(rows)
    columns["count"] = pa.array(values)
    columns["sum"] = pa.array(sums, pa.decimal128(38, 0))
    columns["min"] = pa.array(least, mask=empty)
    columns["max"] = pa.array(most, mask=empty)
    return pa.table(columns)
