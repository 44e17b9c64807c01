"""AND, OR, k-MAX, k-MIN, histograms and filters as partial state records: exact, however they are merged."""

from functools import reduce
from itertools import pairwise
from operator import and_, or_

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.errors import TypeMismatch
from watersmeet.program.aggregate.filters import might_contain, most_counts
from watersmeet.program.aggregate.functions import Function
from watersmeet.program.aggregate.records import Layout

WHOLE = st.none() | st.integers(-(1 << 62), 1 << 62)
SMALL = st.none() | st.integers(-3, 12)


def result(function: Function, values: list[object], cuts: list[int]) -> object:
    """What a function comes to over values that came in pieces, merged one after the other."""
    layout = Layout((), ((function, "v"),))
    pieces = [
        layout.add(pa.table({"v": pa.array(values[low:high], function.kind)}))
        for low, high in zip([0, *cuts], [*cuts, len(values)], strict=True)
        if high > low
    ]
    table = reduce(lambda first, second: layout.combine([first, second]), pieces)
    (value,) = layout.results(table)[0].to_pylist()
    found: object = value
    return found


def cut(data: st.DataObject, values: list[object]) -> list[int]:
    return sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_conditions_and_bits(data: st.DataObject) -> None:
    flags: list[object] = data.draw(st.lists(st.none() | st.booleans(), min_size=1, max_size=12))
    known = [flag for flag in flags if flag is not None]
    for name, exact in (("bool_and", all), ("bool_or", any)):
        assert result(Function(name, pa.bool_()), flags, cut(data, flags)) == (exact(known) if known else None)
    numbers: list[object] = data.draw(st.lists(WHOLE, min_size=1, max_size=12))
    whole = [number for number in numbers if isinstance(number, int)]
    for name, both in (("bit_and", and_), ("bit_or", or_)):
        found = result(Function(name, pa.int64()), numbers, cut(data, numbers))
        assert found == (reduce(both, whole) if whole else None)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), k=st.integers(1, 6))
def test_greatest_least_and_percentiles(data: st.DataObject, k: int) -> None:
    values: list[object] = data.draw(st.lists(SMALL, min_size=1, max_size=20))
    known = sorted(value for value in values if isinstance(value, int))
    assert result(Function("min_k", pa.int64(), parameters=(k,)), values, cut(data, values)) == known[:k]
    assert result(Function("max_k", pa.int64(), parameters=(k,)), values, cut(data, values)) == known[::-1][:k]
    share = data.draw(st.sampled_from([0.01, 0.3, 0.5, 1.0]))
    wanted = known[max(0, -int(-share * len(known) // 1) - 1)] if known else None
    assert result(Function("percentile_disc", pa.int64(), parameters=(share,)), values, cut(data, values)) == wanted


def test_texts_and_nan_are_ordered() -> None:
    assert result(Function("max_k", pa.string(), parameters=(2,)), ["b", "d", None, "a", "d"], [2]) == ["d", "d"]
    found = result(Function("max_k", pa.float64(), parameters=(2,)), [1.0, float("nan"), 3.0], [1])
    assert isinstance(found, list)
    assert np.isnan(found[0]) and found[1] == 3.0


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_histograms_count_every_value_once(data: st.DataObject) -> None:
    values: list[object] = data.draw(st.lists(SMALL, min_size=1, max_size=30))
    function = Function("histogram", pa.int64(), parameters=(0.0, 10.0, 5.0))
    edges = [-np.inf, 0, 2, 4, 6, 8, 10, np.inf]
    known = [value for value in values if isinstance(value, int)]
    wanted = [sum(low <= value < high for value in known) for low, high in pairwise(edges)]
    assert result(function, values, cut(data, values)) == wanted


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_filters_know_what_was_added(data: st.DataObject) -> None:
    values: list[object] = data.draw(st.lists(SMALL, min_size=1, max_size=30))
    known = [value for value in values if isinstance(value, int)]
    bitmap = result(Function("bloom_filter", pa.int64(), parameters=(512, 3)), values, cut(data, values))
    assert isinstance(bitmap, bytes) and len(bitmap) == 64
    everything = pa.array(range(-3, 13), pa.int64())
    found = dict(zip(range(-3, 13), might_contain(bitmap, everything, 512, 3), strict=True))
    assert all(found[value] for value in known)
    counts = result(Function("spectral_bloom_filter", pa.int64(), parameters=(512, 3)), values, cut(data, values))
    assert isinstance(counts, list) and sum(counts) == 3 * len(known)
    most = most_counts(np.array(counts), everything, 3)
    assert all(bound >= known.count(value) for value, bound in zip(range(-3, 13), most, strict=True))


def test_filters_seldom_err() -> None:
    values: list[object] = list(range(1_000))
    bitmap = result(Function("bloom_filter", pa.int64(), parameters=(16_384, 4)), values, [300, 700])
    assert isinstance(bitmap, bytes)
    others = might_contain(bitmap, pa.array(range(1_000, 11_000)), 16_384, 4)
    assert others.mean() < 0.01
    counts = result(Function("spectral_bloom_filter", pa.int64(), parameters=(16_384, 4)), [*values, *values], [500])
    assert (most_counts(np.array(counts), pa.array(range(1_000)), 4) == 2).mean() > 0.99


def test_what_has_the_wrong_type_is_refused() -> None:
    with pytest.raises(TypeMismatch, match="bool_and needs conditions"):
        Function("bool_and", pa.int64())
    with pytest.raises(TypeMismatch, match="bit_or needs whole numbers"):
        Function("bit_or", pa.float64())
    with pytest.raises(TypeMismatch, match="histogram needs numbers"):
        Function("histogram", pa.string())
