"""Meeting of intervals under equal keys: pairs for joins, first meetings for semijoins; old rows never met before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.program.join.probe import Relation, RelationLookup, Run, intervals, join
from watersmeet.program.storage.bloom import Filter
from watersmeet.program.storage.segments import I64, U64


@dataclass(frozen=True)
class Side:
    """One input of an operator: the rows of this micro-batch and those of earlier ones."""

    new: Relation
    old: Relation

    @property
    def both(self) -> Relation:
        return Relation((*self.old.runs, *self.new.runs))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Matching rows, by their numbers in two relations."""

    left: Relation
    right: Relation
    left_rows: I64
    right_rows: I64
    low: I64  # from where to where both are visible
    high: I64

    def take(self, which: I64) -> "Pairs":
        rows = self.left_rows[which], self.right_rows[which]
        return Pairs(self.left, self.right, *rows, self.low[which], self.high[which])


def pairs(left: Side, right: Side, checks: Sequence[int]) -> Iterator[Pairs]:
    """Every pair that meets and has a row of this micro-batch, once."""
    compared = tuple((number, 0) for number in checks)
    everything = right.both
    for found in join(left.new, [RelationLookup(everything, compared)]):
        yield Pairs(left.new, everything, found.rows[0], found.rows[1], found.latest, found.limit)
    for found in join(right.new, [RelationLookup(left.old, compared)]):
        yield Pairs(left.old, right.new, found.rows[1], found.rows[0], found.latest, found.limit)


@dataclass(frozen=True)
class Witnesses:
    """What subjects are met by: rows or Bloom filters, of this micro-batch and of earlier ones."""

    rows: Side
    new_filters: tuple[Filter, ...] = ()
    old_filters: tuple[Filter, ...] = ()


@dataclass(frozen=True)
class Meeting:
    """What one of several semijoins reads: the subject as it sees it, and what rows of it are met by."""

    subject: Side
    witnesses: Witnesses
    alive_from: int | None = None  # rows that end before this place are wanted no more


def first_meetings(
    subject: Side, witnesses: Witnesses, alive_from: int | None = None
) -> Iterator[tuple[Relation, I64]]:
    """Subject rows that meet a witness now and met none in an earlier micro-batch.

    Old rows that ended before the place from which on rows are alive meet nothing more: what they met may be forgotten.
    """
    filters = (*witnesses.old_filters, *witnesses.new_filters)
    fresh = _met(subject.new, witnesses.rows.both, filters)
    if len(fresh):
        yield subject.new, fresh
    waiting = _met_by(subject.old, witnesses.rows.new, witnesses.new_filters)
    if len(waiting):
        candidates = _subset(subject.old, waiting)
        is_due = _are_alive(candidates, alive_from)
        is_due[_met(candidates, witnesses.rows.old, witnesses.old_filters)] = False
        waiting = waiting[is_due]
        if len(waiting):
            yield subject.old, waiting


def first_of_any(meetings: Sequence[Meeting]) -> Iterator[tuple[bool, I64]]:
    """Rows that meet a witness of any of several semijoins now, and met none of any in an earlier micro-batch.

    Their subjects are the same rows, seen with different intervals; new rows first, then old ones.
    """
    fresh = _distinct(
        [
            _met(
                meeting.subject.new,
                meeting.witnesses.rows.both,
                (*meeting.witnesses.old_filters, *meeting.witnesses.new_filters),
            )
            for meeting in meetings
            if len(meeting.subject.new)
        ]
    )
    if len(fresh):
        yield True, fresh
    waiting = _distinct(
        [
            _met_by(meeting.subject.old, meeting.witnesses.rows.new, meeting.witnesses.new_filters)
            for meeting in meetings
            if len(meeting.subject.old)
        ]
    )
    if not len(waiting):
        return
    is_alive, is_met = np.zeros(len(waiting), bool), np.zeros(len(waiting), bool)
    for meeting in meetings:
        own = np.flatnonzero(meeting.subject.old.accepts(waiting))
        if len(own):
            candidates = _subset(meeting.subject.old, waiting[own])
            is_alive[own] |= _are_alive(candidates, meeting.alive_from)
            is_met[own[_met(candidates, meeting.witnesses.rows.old, meeting.witnesses.old_filters)]] = True
    waiting = waiting[is_alive & ~is_met]
    if len(waiting):
        yield False, waiting


def _are_alive(candidates: Relation, alive_from: int | None) -> npt.NDArray[np.bool_]:
    """Which rows of one run do not end before a place."""
    (run,) = candidates.runs
    return np.ones(len(run.keys), bool) if alive_from is None else run.visible.ends() >= alive_from


def _met(subject: Relation, witnesses: Relation, filters: Sequence[Filter]) -> I64:
    """The numbers of subject rows that meet anything, by looking up each of them."""
    found = [met.rows[0] for met in join(subject, [RelationLookup(witnesses)])] if len(witnesses) else []
    return _distinct([*found, *_in_filters(subject, filters)])


def _met_by(subject: Relation, witnesses: Relation, filters: Sequence[Filter]) -> I64:
    """The same, by looking up each witness: there are fewer of them."""
    found = [met.rows[1] for met in join(witnesses, [RelationLookup(subject)])] if len(subject) else []
    return _distinct([*found, *_in_filters(subject, filters)])


def _in_filters(subject: Relation, filters: Sequence[Filter]) -> list[I64]:
    found = []
    for run, offset in zip(subject.runs, subject.offsets, strict=False):
        places = run.accepted
        low, high = run.visible.begins()[places], run.visible.ends(places)
        for filter_ in filters:
            inside = np.flatnonzero((low <= filter_.high) & (high >= filter_.low))
            if len(inside):
                held = inside[filter_.holds(run.keys[places[inside]])]
                found.append(places[held] + int(offset))
    return found


def _distinct(found: Sequence[I64]) -> I64:
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _subset(relation: Relation, rows: I64) -> Relation:
    """Some rows of a relation, in the order given, as a carrier of their own."""
    keys: U64 = np.empty(len(rows), np.uint64)
    low, high = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    run_of = np.searchsorted(relation.offsets, rows, "right") - 1
    for number, run in enumerate(relation.runs):
        here = np.flatnonzero(run_of == number)
        inside = rows[here] - int(relation.offsets[number])
        keys[here], low[here], high[here] = run.keys[inside], run.visible.begins()[inside], run.visible.ends(inside)
    span = (int(low.min()), int(high.max()))
    return Relation((Run(keys, intervals(low, high), pa.table({}), span, narrows=False),))
