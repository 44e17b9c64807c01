"""Sketches against the exact values: equal while they are not full, within their bounds after that, however merged."""

from datetime import date
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.aggregate.functions import Function
from watersmeet.program.aggregate.records import Layout
from watersmeet.program.aggregate.sketches import hashes_of

VALUES = {
    pa.int64(): st.integers(-5, 5),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    pa.string(): st.sampled_from(["", "a", "b", "東京"]),
    pa.date32(): st.sampled_from([date(2020, 1, day) for day in range(1, 5)]),
}


def records(function: Function, rows: list[tuple[int, object]], cuts: list[int]) -> tuple[Layout, pa.Table]:
    """The records of rows (group, value) that came in pieces, merged two by two."""
    layout = Layout(("g",), ((function, "v"),))
    pieces = []
    for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        some = rows[low:high]
        table = pa.table(
            {"g": pa.array([g for g, _ in some], pa.int64()), "v": pa.array([v for _, v in some], function.kind)}
        )
        pieces.append(layout.add(table))
    while len(pieces) > 1:
        pieces = [layout.combine(pieces[i : i + 2]) for i in range(0, len(pieces), 2)]
    return layout, pieces[0]


def results(function: Function, rows: list[tuple[int, object]], cuts: list[int]) -> dict[int, object]:
    layout, table = records(function, rows, cuts)
    return dict(zip(table.column("g").to_pylist(), layout.results(table)[0].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_sketches_are_exact_while_they_are_not_full(kind: pa.DataType, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(0, 2), st.none() | VALUES[kind]), min_size=1, max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    made = {
        name: results(Function(name, kind, parameters=parameters), rows, cuts)
        for name, parameters in {
            "approx_count_distinct": (),
            "approx_percentile": (100.0, 1.0, 0.0, 0.3, 1.0),
            "approx_top_k": (2.0, 100.0),
        }.items()
    }
    for group in {g for g, _ in rows}:
        own = [_same(v) for g, v in rows if g == group]
        known = sorted((v for v in own if v is not None), key=_order)
        assert made["approx_count_distinct"][group] == len({_order(v) for v in known})
        picks = [known[max(int(np.ceil(share * len(known))), 1) - 1] for share in (0.0, 0.3, 1.0)] if known else None
        assert repr(made["approx_percentile"][group]).replace("-0.0", "0.0") == repr(picks)
        counts: dict[object, int] = {}
        for value in own:
            counts[_order(value)] = counts.get(_order(value), 0) + 1
        best = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:2]
        assert [(_order(_same(one["item"])), one["count"]) for one in made["approx_top_k"][group]] == best  # type: ignore[attr-defined]


def _same(value: object) -> object:
    return 0.0 if value == 0.0 and isinstance(value, float) else value


def _order(value: object) -> tuple[object, ...]:
    """NULL last, NaN after all numbers."""
    is_nan = isinstance(value, float) and value != value
    return (value is None, is_nan, 0 if value is None or is_nan else value)


def cut(count: int, pieces: int) -> list[int]:
    return [count * i // pieces for i in range(1, pieces)]


def test_distinct_values_are_counted_within_their_error_in_any_order() -> None:
    function = Function("approx_count_distinct", pa.int64())
    for wanted in (2_000, 30_000):
        rows: list[tuple[int, object]] = [(0, i) for i in (*range(wanted), *range(0, wanted, 7))]
        found = results(function, rows, cut(len(rows), 8))[0]
        assert abs(found - wanted) < 4 * wanted / 1_024**0.5  # type: ignore[operator]
        Random(1).shuffle(rows)
        assert results(function, rows, cut(len(rows), 3))[0] == found
    fine = Function("approx_count_distinct", pa.int64(), parameters=(0.01,))
    assert abs(results(fine, rows, [])[0] - 30_000) < 4 * 300  # type: ignore[operator]


def test_percentiles_are_within_a_share_of_the_ranks() -> None:
    chance = np.random.default_rng(3)
    values = np.concatenate([chance.integers(0, 1_000_000, 20_000), np.full(9_000, 77)])
    chance.shuffle(values)
    shares = (0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0)
    function = Function("approx_percentile", pa.int64(), parameters=(500.0, 1.0, *shares))
    rows: list[tuple[int, object]] = [(0, int(v)) for v in values]
    for pieces in (1, 16):
        found = results(function, rows, cut(len(rows), pieces))[0]
        depth = 1 + pieces.bit_length()
        for share, value in zip(shares, found, strict=True):  # type: ignore[call-overload]
            low, high = (values < value).sum() / len(values), (values <= value).sum() / len(values)
            assert low - depth / 500 <= share <= high + depth / 500
        assert (found[0], found[-1]) == (values.min(), values.max())  # type: ignore[index]


@pytest.mark.parametrize("pieces", [1, 16])
def test_frequent_values_are_counted_within_a_share_of_the_rows(pieces: int) -> None:
    chance = np.random.default_rng(4)
    values = np.minimum(chance.zipf(1.3, 30_000), 100_000)
    function = Function("approx_top_k", pa.int64(), parameters=(10.0, 200.0))
    rows: list[tuple[int, object]] = [(0, int(v)) for v in values]
    found = results(function, rows, cut(len(rows), pieces))[0]
    exact = np.bincount(values)
    allowed = len(values) / 201
    for one in found:  # type: ignore[attr-defined]
        assert exact[one["item"]] - allowed <= one["count"] <= exact[one["item"]]
    worst = min(exact[one["item"]] for one in found)  # type: ignore[attr-defined]
    assert worst >= np.sort(exact)[-10] - allowed


def test_hashes_stay_what_they_are() -> None:
    """Records of other sites and of earlier versions have them."""
    assert hashes_of(pa.array([0, 1, -1])).tolist() == hashes_of(pa.array([0, 1, -1], pa.int32())).tolist()
    assert hashes_of(pa.array([0.0])).tolist() == hashes_of(pa.array([-0.0])).tolist()
    assert hashes_of(pa.array([1, 2])).tolist() == [-7_160_610_219_483_255_062, -3_239_489_724_241_199_657]
    assert hashes_of(pa.array(["a", "東京"])).tolist() == [1_597_752_305_923_805_369, -2_204_486_712_687_125_793]
