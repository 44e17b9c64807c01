"""Announcements: the distinct keys of a window as spans of presence, which go on as long as rows reach further."""

import numpy as np
import pyarrow as pa

from watersmeet.program.join.probe import Relation, RelationLookup, Run, intervals, join
from watersmeet.program.storage.segments import HIGH, I64, KEY, LOW, U64, key_order

Spans = tuple[U64, I64, I64]  # key, from, until


def uncovered(rows: Relation, known: Relation) -> Spans:
    """Spans for rows whose beginning no span covers: of each key the first such row, then the first beyond it, ..."""
    keys = np.concatenate([run.keys[run.accepted] for run in rows.runs] or [np.empty(0, np.uint64)])
    low = np.concatenate([run.visible.begins()[run.accepted] for run in rows.runs] or [np.empty(0, np.int64)])
    high = np.concatenate([run.visible.ends(run.accepted) for run in rows.runs] or [np.empty(0, np.int64)])
    order = key_order(keys, low)
    keys, low, high = keys[order], low[order], high[order]
    rest = np.delete(np.arange(len(keys)), _covered(keys, low, known))
    picked = [np.empty(0, np.int64)]
    while len(rest):
        first = np.r_[True, keys[rest][1:] != keys[rest][:-1]]
        heads = rest[first]
        picked.append(heads)
        rest = rest[low[rest] > high[heads][np.cumsum(first) - 1]]
    chosen = np.concatenate(picked)
    return keys[chosen], low[chosen], high[chosen]


def _covered(keys: U64, places: I64, known: Relation) -> I64:
    """Which places are in a known span of their key."""
    if not len(known) or not len(keys):
        return np.empty(0, np.int64)
    found = [met.rows[0] for met in join(_points(keys, places), [RelationLookup(known)])]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _points(keys: U64, places: I64) -> Relation:
    span = (int(places.min()), int(places.max()))
    return Relation((Run(keys, intervals(places, places), pa.table({}), span, narrows=False),))


def span_run(spans: Spans) -> Run:
    """Spans as a run, to be looked up."""
    order = key_order(spans[0], spans[1])
    keys, low, high = spans[0][order], spans[1][order], spans[2][order]
    span = (int(low.min()), int(high.max())) if len(low) else (0, -1)
    return Run(keys, intervals(low, high), pa.table({KEY: keys, LOW: low, HIGH: high}), span, narrows=False)


def ended_spans(known: Relation, fresh: Spans, rows: Relation, start: int, stop: int) -> tuple[U64, I64]:
    """Keys and ends of spans that may have to go on: those that end before `stop`.

    Known ones that ended before `start` have been seen to; of them, only those of new rows are looked at again.
    """
    keys, ends = [fresh[0][fresh[2] < stop]], [fresh[2][fresh[2] < stop]]
    touched = np.concatenate([run.keys[run.accepted] for run in rows.runs] or [np.empty(0, np.uint64)])
    for run in known.runs:
        until = run.visible.ends()
        which = (until < stop) & ((until >= start) | np.isin(run.keys, touched))
        keys.append(run.keys[which])
        ends.append(until[which])
    return np.concatenate(keys), np.concatenate(ends)


def continued(ended: tuple[U64, I64], known: Relation, rows: Relation) -> Spans:
    """Spans that go on where others ended, because a row still reaches further."""
    keys, next_place = ended[0], ended[1] + 1
    open_ = np.delete(np.arange(len(keys)), _covered(keys, next_place, known))
    keys, next_place = keys[open_], next_place[open_]
    if not len(keys) or not len(rows):
        return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    until = np.full(len(keys), -1, np.int64)
    reached = np.zeros(len(keys), bool)
    for met in join(_points(keys, next_place), [RelationLookup(rows)]):
        which, where = met.rows
        run_of = np.searchsorted(rows.offsets, where, "right") - 1
        for number in np.unique(run_of):
            here = run_of == number
            high = rows.runs[number].visible.ends(where[here] - int(rows.offsets[number]))
            np.maximum.at(until, which[here], high)
            reached[which[here]] = True
    keys, low, high = keys[reached], next_place[reached], until[reached]
    _, first = np.unique(np.stack([keys, low.view(np.uint64)]), axis=1, return_index=True)
    return keys[first], low[first], high[first]
