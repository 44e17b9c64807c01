"""The compiled loops against loops over all pairs: every kind of visibility, long runs of one key, selections."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.join import kernels
from watersmeet.program.join.kernels import COUNTED, EXPLICIT, FIXED, LONG_AGO, NEVER, NEVER_ENDS, TUMBLE
from watersmeet.program.join.probe import Visibility
from watersmeet.program.storage.segments import I64, U64, key_order

KINDS = {"FIXED": FIXED, "TUMBLE": TUMBLE, "NEVER_ENDS": NEVER_ENDS, "EXPLICIT": EXPLICIT, "COUNTED": COUNTED}
many = settings(max_examples=150, deadline=None)

keys = st.sampled_from([0, 1, 2, 7, 2**63, 2**64 - 1])
instants = st.integers(-25, 25)


@dataclass(frozen=True)
class Rows:
    """A sorted run: keys, visibility, and a bit for each row."""

    keys: U64
    visible: Visibility
    bits: U64

    @property
    def narrows(self) -> bool:
        return self.visible.kind != EXPLICIT

    def end(self, place: int) -> int:
        """When a row is visible for the last time, as `kernels` says, in plain words."""
        one = self.visible
        begin = int(one.at[place]) * one.scale + one.offset
        if one.kind == FIXED:
            return begin + one.length
        if one.kind == TUMBLE:
            return (int(one.at[place]) // one.length + 1) * one.length * one.scale - 1
        if one.kind == EXPLICIT:
            return int(one.high[place])
        if one.kind == COUNTED:
            successor = int(one.ordinals[place]) + one.length
            if successor < one.base:
                return LONG_AGO
            if successor < one.base + len(one.clock):
                return int(one.clock[successor - one.base]) - 1
        return NEVER


@st.composite
def runs(draw: st.DrawFn, kind: int) -> Rows:
    """Up to forty rows of few keys, so that some keys have long runs."""
    count = draw(st.integers(0, 40))
    wanted = np.array(draw(st.lists(keys, min_size=count, max_size=count)), np.uint64)
    ts = np.array(sorted(draw(st.lists(instants, min_size=count, max_size=count))), np.int64)
    ordinals = np.arange(count, dtype=np.int64)
    order = key_order(wanted, ordinals)
    length = draw(st.integers(1, 12))
    bits = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), np.uint64)
    if kind == COUNTED:
        base = draw(st.integers(0, count))
        visible = Visibility(ts[order], kind=kind, length=length, ordinals=ordinals[order], clock=ts[base:], base=base)
    elif kind == EXPLICIT:
        reach = np.array(draw(st.lists(st.integers(-2, 12), min_size=count, max_size=count)), np.int64)
        visible = Visibility(ts[order], high=ts[order] + reach)
    else:
        scale = draw(st.integers(1, 4))
        offset = draw(st.integers(0, scale - 1))
        visible = Visibility(ts[order], scale, offset, kind, length)
    return Rows(wanted[order], visible, bits)


@st.composite
def probes(draw: st.DrawFn) -> tuple[U64, I64, I64]:
    """Keys with the interval that each looks for; in the order of their keys or not."""
    found = draw(st.lists(st.tuples(keys, st.integers(-80, 80), st.integers(0, 40)), max_size=12))
    if draw(st.booleans()):
        found = sorted(found)
    columns: Any = zip(*found, strict=True) if found else ((), (), ())
    wanted, begin, length = columns
    starts = np.array(begin, np.int64)
    return np.array(wanted, np.uint64), starts, starts + np.array(length, np.int64)


def met(rows: Rows, probe: tuple[U64, I64, I64], bit: int) -> list[tuple[int, int, int, int]]:
    """Every pair of a probing row and a place that meet, from when to when; by trying all of them."""
    found = []
    for i, (key, begin, limit) in enumerate(zip(*probe, strict=True)):
        for j in range(len(rows.keys)):
            latest = max(int(begin), int(rows.visible.at[j]) * rows.visible.scale + rows.visible.offset)
            earliest = min(int(limit), rows.end(j))
            if rows.keys[j] == key and latest <= earliest and (not bit or int(rows.bits[j]) & bit):
                found.append((i, j, latest, earliest))
    return found


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@many
@given(data=st.data(), bit=st.integers(0, 2))
def test_pairs_that_meet_are_those_of_trying_all(kind: int, data: st.DataObject, bit: int) -> None:
    rows, probe = data.draw(runs(kind)), data.draw(probes())
    start, stop = kernels.ranges(*probe, rows.keys, rows.narrows, *rows.visible.rule)
    found = kernels.expand(
        0, len(probe[0]), start, stop, probe[1], probe[2], rows.bits, np.uint64(bit), *rows.visible.rule
    )
    assert [tuple(map(int, pair)) for pair in zip(*found, strict=True)] == met(rows, probe, bit)


@many
@given(data=st.data())
def test_a_part_of_the_probing_rows_has_its_part_of_the_pairs(data: st.DataObject) -> None:
    rows, probe = data.draw(runs(FIXED)), data.draw(probes())
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(probe[0]))] * 2)))
    start, stop = kernels.ranges(*probe, rows.keys, rows.narrows, *rows.visible.rule)
    left, right, _, _ = kernels.expand(
        first, last, start, stop, probe[1], probe[2], rows.bits, np.uint64(0), *rows.visible.rule
    )
    wanted = [(i, j) for i, j, _, _ in met(rows, probe, 0) if first <= i < last]
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@many
@given(data=st.data())
def test_ranges_hold_all_rows_of_a_key_and_no_other(kind: int, data: st.DataObject) -> None:
    rows, probe = data.draw(runs(kind)), data.draw(probes())
    start, stop = kernels.ranges(*probe, rows.keys, False, *rows.visible.rule)
    for key, low, high in zip(probe[0], start, stop, strict=True):
        assert np.flatnonzero(rows.keys == key).tolist() == list(range(low, high))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@many
@given(data=st.data())
def test_a_row_begins_and_ends_as_its_kind_says(kind: int, data: st.DataObject) -> None:
    rows = data.draw(runs(kind))
    visible, places = rows.visible, np.arange(len(rows.keys))
    assert visible.begins().tolist() == [int(ts) * visible.scale + visible.offset for ts in visible.at]
    assert visible.ends().tolist() == [rows.end(int(place)) for place in places]
    some = places[::2].copy()  # kernels take arrays without gaps
    assert visible.ends(some).tolist() == [rows.end(int(place)) for place in some]


@pytest.mark.parametrize("size", [1, 8, 9, 10, 1_000])
@pytest.mark.parametrize("key", [5, 2**64 - 1])
def test_long_runs_of_one_key_are_narrowed_by_time(size: int, key: int) -> None:
    rows = np.full(size, key, np.uint64)
    visible = Visibility(np.arange(size), kind=FIXED, length=3)
    probe = np.array([key, key], np.uint64), np.array([size // 2, size + 5]), np.array([size // 2, size + 9])
    start, stop = kernels.ranges(*probe, rows, True, *visible.rule)
    if size > 8:
        low = max(0, size // 2 - 3)
        assert (start[0], stop[0]) == (low, size // 2 + 1) and start[1] == stop[1]
    else:  # too few for it to pay
        assert start.tolist() == [0, 0] and stop.tolist() == [size, size]


@many
@given(st.lists(st.integers(-9, 9), max_size=9), st.integers(0, 20), st.data())
def test_values_are_gathered_from_the_run_that_has_them(values: list[int], low: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, 40), max_size=12)), np.int64)
    out = np.full(len(positions), 99)
    kernels.gather(out, np.array(values, np.int64), positions, low)
    inside = [values[place - low] if low <= place < low + len(values) else 99 for place in positions.tolist()]
    assert out.tolist() == inside
