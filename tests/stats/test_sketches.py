"""Sketches against the rows themselves: merging changes nothing, bins are true, heavy values are found."""

import json
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.storage.packing import pack_rows
from watersmeet.stats.columns import EXACT_VALUES, HEAVY_SHARE, ColumnSketch, numbers_of
from watersmeet.stats.model import Histogram, Origin
from watersmeet.stats.packed_sizes import Sizes, body_bytes
from watersmeet.stats.sketches import StreamSketch


def drawn(seed: int, rows: int, values: int, skew: float) -> np.ndarray:
    """Rows over some values, the first of them the more frequent the larger the skew."""
    random = np.random.default_rng(seed)
    return (values * random.random(rows) ** (1 + skew)).astype(np.int64) * 7 - 1_000


def sketched(parts: list[np.ndarray]) -> ColumnSketch:
    whole = ColumnSketch(exact=True)
    for part in parts:
        one = ColumnSketch(exact=True)
        one.add(part)
        whole.merge(ColumnSketch.from_data(json.loads(json.dumps(one.to_data()))))
    return whole


COLUMNS = st.builds(
    drawn,
    st.integers(0, 2**32 - 1),
    st.integers(1, 30_000),
    st.sampled_from([1, 50, 1_500, 5_000, 100_000]),
    st.sampled_from([0.0, 2.0, 8.0]),
)
CUTS = st.lists(st.floats(0, 1), max_size=5)


@given(COLUMNS, CUTS)
@settings(max_examples=60, deadline=None)
def test_merging_parts_gives_what_all_at_once_does(rows: np.ndarray, cuts: list[float]) -> None:
    merged = sketched(np.split(rows, sorted(int(cut * len(rows)) for cut in cuts)))
    at_once = ColumnSketch(exact=True)
    at_once.add(rows)
    truth = len(np.unique(rows))
    assert merged.rows == at_once.rows == len(rows)
    for sketch in (merged, at_once):
        assert abs(sketch.seen - truth) <= 0.08 * truth  # five standard errors
        if truth <= EXACT_VALUES:
            assert sketch.seen == truth
    if truth <= EXACT_VALUES:
        assert merged.bins() == at_once.bins()
    assert merged.coverage == pytest.approx(at_once.coverage, abs=0.05)
    assert set(merged.heavy) >= {
        value for value, count in Counter(rows.tolist()).items() if count >= 1.5 * HEAVY_SHARE * len(rows) + 10
    }


@given(COLUMNS, st.sampled_from([0.0, 1.0]))
@settings(max_examples=60, deadline=None)
def test_bins_tell_where_rows_are(rows: np.ndarray, seen: float) -> None:
    sketch = ColumnSketch(exact=True)
    sketch.add(rows)
    bins = sketch.bins(seen)
    Histogram(bins)  # in order, and shares that add up to 1
    assert sum(one.share for one in bins) == pytest.approx(1.0, abs=1e-6)
    assert bins[0].low == rows.min()
    assert bins[-1].high == rows.max()
    tolerance = 0.0 if len(bins) == len(np.unique(rows)) else 0.12
    for one in bins:
        below, total = np.mean(rows <= one.high), sum(b.share for b in bins if b.high <= one.high)
        assert abs(below - total) <= tolerance + 1e-6
        assert 0 < one.distinct <= one.high - one.low + 1


def test_a_column_of_few_values_is_told_exactly() -> None:
    rows = drawn(1, 50_000, EXACT_VALUES, 3.0)
    bins = sketched(np.split(rows, 10)).bins()
    counts = Counter(rows.tolist())
    assert {one.low: round(one.share * len(rows)) for one in bins} == counts
    assert all(one.low == one.high and one.distinct == 1 for one in bins)


def test_heavy_values_among_many_have_bins_of_their_own() -> None:
    random = np.random.default_rng(3)
    rows = np.concatenate([random.integers(0, 10**9, 60_000), np.full(30_000, 77), np.full(10_000, 10**9 + 1)])
    random.shuffle(rows)
    own = {one.low: one.share for one in sketched(np.split(rows, 8)).bins() if one.low == one.high}
    assert own.keys() >= {77, 10**9 + 1}
    assert own[77] == pytest.approx(0.3, abs=0.005)
    assert own[10**9 + 1] == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize(("values", "rows"), [(200_000, 100_000), (60_000, 30_000), (3_000_000, 100_000)])
def test_values_that_were_not_seen_are_foretold(values: int, rows: int) -> None:
    sketch = ColumnSketch(exact=True)
    sketch.add(np.random.default_rng(5).integers(0, values, rows))
    stats = sketch.stats(Origin.ESTIMATED, None, 0.0)
    assert stats.distinct is not None
    assert stats.distinct.value == pytest.approx(values, rel=0.35)
    assert sketch.seen < 0.6 * values


def test_values_that_never_repeat_are_counted_and_not_trusted() -> None:
    sketch = ColumnSketch(exact=True)
    sketch.add(np.arange(50_000))
    stats = sketch.stats(Origin.ESTIMATED, None, 0.0)
    assert stats.distinct is not None
    assert stats.distinct.value == pytest.approx(50_000, rel=0.06)
    assert stats.distinct.confidence == 0.0
    seen_whole = sketch.stats(Origin.ESTIMATED, None, 1.0)
    assert seen_whole.distinct is not None
    assert seen_whole.distinct.confidence > 0.98


def test_every_type_has_numbers() -> None:
    noon = datetime(2025, 1, 31, 12, tzinfo=UTC)
    for values, numbers in [
        (pa.array([3, None, -4], pa.int32()), [3, -4]),
        (pa.array([date(1970, 1, 3)]), [2]),
        (pa.array([noon], pa.timestamp("us", "UTC")), [int(noon.timestamp()) * 1_000_000]),
        (pa.array([noon.replace(tzinfo=None)], pa.timestamp("ns")), [int(noon.timestamp()) * 1_000_000]),
        (pa.array([True, False]), [1, 0]),
    ]:
        assert numbers_of(values)[0].tolist() == numbers
        assert numbers_of(pa.chunked_array([values]))[1]
    for values in (
        pa.array(["x", "y", None, "x"]),
        pa.array([b"\xff", b"\x00", None, b"\xff"]),
        pa.array([1.5, 2.5, None, 1.5]),
        pa.array([Decimal("1.5"), Decimal("2.5"), None, Decimal("1.5")]),
        pa.array([[1], [2], None, [1]]),
        pa.array([{"x": 1}, {"x": 2}, None, {"x": 1}]),
    ):
        found, exact = numbers_of(values)
        assert not exact
        assert len(found) == 3
        assert found[0] == found[2] != found[1]


def test_sizes_are_those_of_packed_batches() -> None:
    random = np.random.default_rng(0)
    table = pa.table({"k": random.integers(0, 10**9, 3_000), "v": random.random(3_000)})
    sizes = Sizes()
    sizes.measure(table, 3)
    assert sizes.each is not None
    for each, rows in zip(sizes.each[1:4], (10, 100, 1_000), strict=True):
        starts = [0, 1_000, 2_000]
        empty = len(pack_rows(table.slice(0, 1))) - body_bytes(table.slice(0, 1))
        packed = [(len(pack_rows(table.slice(start, rows))) - empty) / rows for start in starts]
        assert each == pytest.approx(sum(packed) / 3, abs=0.01)
    assert sizes.each[1] > sizes.each[3] > 8 and sizes.each[4] == sizes.each[3]


def test_sizes_of_few_rows() -> None:
    few = Sizes()
    assert few.each is None
    few.measure(pa.table({"k": [1, 2, 3]}), 5)
    assert few.each is not None
    assert len(set(few.each[1:])) == 1


def test_a_stream_has_a_rate_and_shares_of_predicates() -> None:
    halves = [StreamSketch(), StreamSketch()]
    for number, sketch in enumerate(halves):
        ts = np.arange(5_000) * 10_000 + number * 50_000_000  # a hundred a second
        table = pa.table({"k": ts % 7, "s": [f"host{value % 3}" for value in ts.tolist()]})
        sketch.count(ts)
        sketch.passed("k > 3", 1_000 * (number + 1), 5_000)
        sketch.add(table)
        sketch.measure(table)
    whole = StreamSketch()
    for sketch in halves:
        whole.merge(StreamSketch.from_data(json.loads(json.dumps(sketch.to_data()))))
    stats = whole.stats(Origin.OBSERVED, 5.0)
    assert stats.rate is not None and stats.row_bytes is not None
    assert stats.rate.value == pytest.approx(100.0)
    assert stats.rate.confidence == pytest.approx(0.99)
    assert (stats.rate.origin, stats.rate.taken_at) == (Origin.OBSERVED, 5.0)
    assert stats.columns["k"].distinct is not None and stats.columns["k"].distinct.value == 7
    assert stats.columns["s"].histogram is None and stats.columns["s"].sizes is not None
    assert whole.selectivities(Origin.OBSERVED)["k > 3"].value == 0.3


def test_an_empty_stream_has_nothing_to_tell() -> None:
    stats = StreamSketch().stats(Origin.ESTIMATED)
    assert (stats.rate, stats.row_bytes, dict(stats.columns)) == (None, None, {})


def test_a_column_that_was_read_whole_has_as_many_values_as_were_seen() -> None:
    sketch = ColumnSketch(exact=True)
    sketch.add(np.concatenate([np.arange(600), np.arange(100)]))  # most of them once, which tells of more to come
    partly, whole = (sketch.stats(Origin.ESTIMATED, None, seen).distinct for seen in (0.5, 1.0))
    assert partly is not None and partly.value > 1_000
    assert whole is not None and (whole.value, whole.confidence) == (600, 1.0)


def test_what_a_copy_takes_the_sketch_does_not() -> None:
    random, whole = np.random.default_rng(1), StreamSketch()
    for values in (50, 50, 5_000):  # the same values, and more of them than are counted
        rows = pa.table({"k": random.integers(0, values, 4_000)})
        more = StreamSketch()
        more.count(np.arange(len(rows)))
        more.add(rows)
        more.measure(rows)
        more.passed("k > 1", 3, 4)
        before, copied = json.dumps(whole.to_data()), whole.copy()
        copied.merge(more)
        assert json.dumps(whole.to_data()) == before != json.dumps(copied.to_data())
        whole.merge(more)
        assert json.dumps(copied.to_data()) == json.dumps(whole.to_data())
