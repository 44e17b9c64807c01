"""Partial state records: whatever the split and the order of combining, the result is that of all values at once."""

import math
import random
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, getcontext, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.errors import TypeMismatch
from watersmeet.program.aggregate.functions import BeyondRange, Function
from watersmeet.program.aggregate.records import Layout, group_numbers
from watersmeet.program.storage.packing import pack_rows, unpack_rows

Rows = list[tuple[Any, Any]]
DECIMAL = pa.decimal128(12, 3)


def combined(name: str, kind: pa.DataType | None, rows: Rows, seed: int, *, distinct: bool = False) -> dict[Any, Any]:
    """The results by key, of rows cut into random pieces that are combined in a random tree."""
    chance = random.Random(seed)
    layout = Layout(("k",), ((Function(name, kind, distinct), None if kind is None else "v"),))
    table = pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], kind)})
    cuts = sorted(chance.choices(range(len(rows) + 1), k=chance.randrange(6)))
    pieces = [
        layout.add(table.slice(begin, end - begin)) for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)
    ]
    while len(pieces) > 1:
        chance.shuffle(pieces)
        some = chance.randint(2, len(pieces))
        pieces = [layout.combine(pieces[:some]), *pieces[some:]]
    record = _travelled(pieces[0])
    return dict(zip(record.column("k").to_pylist(), layout.results(record)[0].to_pylist(), strict=True))


def _travelled(records: pa.Table) -> pa.Table:
    """Records as another site gets them."""
    if not records.num_rows:
        return records
    return unpack_rows(pack_rows(records), records.schema, records.num_rows)


def directly(rows: Rows, value: Callable[[list[Any]], Any]) -> dict[Any, Any]:
    keys = dict.fromkeys(key for key, _ in rows)
    return {key: value([v for k, v in rows if k == key and v is not None]) for key in keys}


def near(found: dict[Any, Any], wanted: dict[Any, Any], relative: float, absolute: float) -> bool:
    """Whether results are the same but for the last digits."""
    assert found.keys() == wanted.keys()
    pairs = [(found[key], wanted[key]) for key in wanted]
    return all(
        a is b is None or (a is not None and b is not None and math.isclose(a, b, rel_tol=relative, abs_tol=absolute))
        for a, b in pairs
    )


KEYS = st.sampled_from([None, 0, 1, -7])
WHOLE = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
DOUBLES = st.none() | st.floats(-1e12, 1e12) | st.integers(-9, 9).map(float)
DECIMALS = st.none() | st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-3))
TEXTS = st.none() | st.sampled_from(["", "a", "B", "é", "aa", "𝄞"])


def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Rows]:
    return st.lists(st.tuples(KEYS, values), max_size=30)


SEEDS = st.integers(0, 2**32)
examples = settings(max_examples=40, deadline=None)


@examples
@given(lists(WHOLE), SEEDS)
def test_whole_numbers(rows: Rows, seed: int) -> None:
    sums = directly(rows, lambda values: sum(values) if values else None)
    if all(total is None or -(2**63) <= total < 2**63 for total in sums.values()):
        assert combined("sum", pa.int64(), rows, seed) == sums
    else:
        with pytest.raises(BeyondRange, match="bigint"):
            combined("sum", pa.int64(), rows, seed)
    means = directly(rows, lambda values: sum(values) / len(values) if values else None)
    assert combined("avg", pa.int64(), rows, seed) == means
    assert combined("count", pa.int64(), rows, seed) == directly(rows, len)
    assert combined("count", None, rows, seed) == {key: sum(k == key for k, _ in rows) for key, _ in rows}
    assert combined("count", pa.int64(), rows, seed, distinct=True) == directly(rows, lambda values: len({*values}))
    once = directly(rows, lambda values: sum({*values}) if values else None)
    if all(total is None or -(2**63) <= total < 2**63 for total in once.values()):
        assert combined("sum", pa.int64(), rows, seed, distinct=True) == once
    else:
        with pytest.raises(BeyondRange, match="bigint"):
            combined("sum", pa.int64(), rows, seed, distinct=True)
    means = directly(rows, lambda values: sum({*values}) / len({*values}) if values else None)
    assert combined("avg", pa.int64(), rows, seed, distinct=True) == means
    assert combined("min", pa.int64(), rows, seed) == directly(rows, lambda values: min(values, default=None))


@examples
@given(lists(DOUBLES), SEEDS)
def test_doubles(rows: Rows, seed: int) -> None:
    """A sum is the one that is exact, rounded once; so is what is made of it, but for the last digits."""

    def mean(values: list[float]) -> Fraction:
        return sum(map(Fraction, values), Fraction(0)) / len(values)

    def variance(values: list[float], less: int) -> float | None:
        if len(values) <= less:
            return None
        return float(sum((Fraction(v) - mean(values)) ** 2 for v in values) / (len(values) - less))

    sums = directly(rows, lambda values: math.fsum(values) if values else None)
    assert near(combined("sum", pa.float64(), rows, seed), sums, 1e-15, 1e-12)
    means = directly(rows, lambda values: float(mean(values)) if values else None)
    assert near(combined("avg", pa.float64(), rows, seed), means, 1e-15, 1e-12)
    for name, less in (("var_samp", 1), ("var_pop", 0)):
        wanted = directly(rows, lambda values, less=less: variance(values, less))  # type: ignore[misc]
        assert near(combined(name, pa.float64(), rows, seed), wanted, 1e-9, 1e-4)
        roots = {key: None if one is None else math.sqrt(one) for key, one in wanted.items()}
        found = combined(name.replace("var", "stddev"), pa.float64(), rows, seed)
        assert near(found, roots, 1e-9, 1e-2)
        once = directly(rows, lambda values, less=less: variance([*{*values}], less))  # type: ignore[misc]
        assert near(combined(name, pa.float64(), rows, seed, distinct=True), once, 1e-9, 1e-4)
    once = directly(rows, lambda values: math.fsum({*values}) if values else None)
    assert near(combined("sum", pa.float64(), rows, seed, distinct=True), once, 1e-15, 1e-12)


@examples
@given(lists(DECIMALS), SEEDS)
def test_decimals(rows: Rows, seed: int) -> None:
    assert combined("sum", DECIMAL, rows, seed) == directly(rows, lambda values: sum(values) if values else None)
    unit = Decimal("0.0000001")

    def mean(values: list[Decimal]) -> Decimal | None:
        with localcontext() as context:
            context.prec = 60
            return (sum(values, Decimal(0)) / len(values)).quantize(unit, ROUND_HALF_UP) if values else None

    assert combined("avg", DECIMAL, rows, seed) == directly(rows, mean)
    once = directly(rows, lambda values: sum({*values}) if values else None)
    assert combined("sum", DECIMAL, rows, seed, distinct=True) == once
    assert combined("avg", DECIMAL, rows, seed, distinct=True) == directly(rows, lambda values: mean([*{*values}]))
    assert combined("max", DECIMAL, rows, seed) == directly(rows, lambda values: max(values, default=None))
    assert getcontext().prec == 28


@examples
@given(lists(TEXTS), SEEDS)
def test_texts(rows: Rows, seed: int) -> None:
    """Texts are compared by their bytes, as in Spark."""

    def greatest(values: list[str]) -> str | None:
        return max(values, key=lambda text: text.encode(), default=None)

    assert combined("max", pa.string(), rows, seed) == directly(rows, greatest)
    assert combined("count", pa.string(), rows, seed, distinct=True) == directly(rows, lambda values: len({*values}))


def test_what_is_no_number_is_greater_than_any() -> None:
    nan = math.nan
    rows = [(0, nan), (0, 1.0), (1, nan), (1, None), (None, math.inf)]
    for seed in range(5):
        found = combined("max", pa.float64(), rows, seed)
        assert math.isnan(found[0]) and math.isnan(found[1]) and found[None] == math.inf
        found = combined("min", pa.float64(), rows, seed)
        assert found[0] == 1.0 and math.isnan(found[1]) and found[None] == math.inf
        assert math.isnan(combined("sum", pa.float64(), rows, seed)[0])
        assert combined("sum", pa.float64(), rows, seed)[None] == math.inf
        assert math.isnan(combined("var_pop", pa.float64(), rows, seed)[None])


def test_small_differences_of_great_numbers_are_not_lost() -> None:
    rows = [(0, 1e9 + i % 2) for i in range(1_000)]
    assert combined("var_pop", pa.float64(), rows, 3) == {0: 0.25}
    assert combined("sum", pa.float64(), [(0, 1e300), (0, 1.0), (0, -1e300)] * 4, 1) == {0: 4.0}


def test_decimals_beyond_their_type() -> None:
    kind = pa.decimal128(38, 0)
    with pytest.raises(BeyondRange, match=r"decimal\(38,0\)"):
        combined("sum", kind, [(0, Decimal(10**38 - 1)), (0, Decimal(1))], 0)
    assert combined("sum", kind, [(0, Decimal(10**38 - 1)), (0, Decimal(1)), (0, Decimal(-1))], 2) == {0: 10**38 - 1}


def test_keys_of_every_kind() -> None:
    """NULLs are one group, so are 0.0 and -0.0 and all NaN; groups come in the order in which they are met."""
    floats = pa.array([0.0, None, -0.0, math.nan, None, math.nan])
    groups, first = group_numbers([floats], 6)
    assert (groups.tolist(), first.tolist()) == ([0, 1, 0, 2, 1, 2], [0, 1, 3])
    texts, flags = pa.array(["b", "a", "b", None] * 2), pa.array([True, True, None, False] * 2)
    groups, first = group_numbers([texts, flags], 8)
    assert (groups.tolist(), first.tolist()) == ([0, 1, 2, 3] * 2, [0, 1, 2, 3])
    assert group_numbers([], 3)[0].tolist() == [0, 0, 0]
    chance = np.random.default_rng(1)
    keys = [pa.array(chance.integers(0, 10**6, 500)) for _ in range(4)]
    assert len(group_numbers(keys, 500)[1]) == 500


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sum", pa.string()), ("avg", pa.bool_()), ("max", pa.list_(pa.int64())), ("stddev_pop", pa.date32())],
)
def test_values_that_have_no_such_aggregate(name: str, kind: pa.DataType) -> None:
    with pytest.raises(TypeMismatch, match=name):
        Function(name, kind)
