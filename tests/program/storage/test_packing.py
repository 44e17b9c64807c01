"""Rows come out as they went in, whatever their types, and take few bytes."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.storage.packing import Reader, number_bytes, pack_rows, unpack_rows

repeatable = settings(derandomize=True, deadline=None, max_examples=40)


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.integers(-3, 3)


VALUES: dict[pa.DataType, st.SearchStrategy[object]] = {
    **{pa.type_for_alias(f"int{bits}"): whole(bits) for bits in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"uint{bits}"): st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    pa.timestamp("us", "UTC"): whole(64),
    pa.timestamp("us"): whole(64),
    pa.date32(): whole(32),
    pa.duration("us"): whole(64),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=20),
    pa.large_string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.decimal128(20, 2): st.decimals(-(10**15), 10**15, places=2, allow_nan=False),
    pa.null(): st.none(),
    pa.list_(pa.int64()): st.lists(whole(64), max_size=4),
    pa.struct([("x", pa.int32()), ("y", pa.string())]): st.fixed_dictionaries(
        {"x": whole(32), "y": st.none() | st.text(max_size=5)}
    ),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text(max_size=3), whole(64), max_size=3).map(
        lambda entries: list(entries.items())
    ),
}


def pieces(table: pa.Table, one: int, other: int) -> list[pa.Table]:
    """The table, a slice of it, and two slices of it in one."""
    low, high = sorted((one % table.num_rows, other % table.num_rows))
    return [table, table.slice(low, high + 1 - low), pa.concat_tables([table.slice(low), table.slice(0, high)])]


@pytest.mark.parametrize("kind", VALUES, ids=str)
@repeatable
@given(st.data())
def test_values_of_every_type_come_out_as_they_went_in(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=40))
    if data.draw(st.booleans()) and not (pa.types.is_nested(kind) or pa.types.is_null(kind)):
        values = sorted(one for one in values if one is not None) or values  # type: ignore[type-var]
    table = pa.table({"before": range(len(values)), "one": pa.array(values, kind), "behind": ["x"] * len(values)})
    for piece in pieces(table, data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))):
        came = unpack_rows(pack_rows(piece), piece.schema)
        came.validate(full=True)
        assert came.equals(piece)


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("rows", [1, 40, 3_000])
def test_columns_of_nothing_but_nulls(kind: pa.DataType, rows: int) -> None:
    table = pa.table({"one": pa.nulls(rows, kind), "behind": range(rows)})
    assert unpack_rows(pack_rows(table), table.schema).equals(table)


@pytest.mark.parametrize("rows", [100, 3_000])
@pytest.mark.parametrize("seed", range(3))
def test_many_rows_come_out_as_they_went_in(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    words = [f"word {number}" for number in range(50)]
    few = pa.array(rng.random(rows) < 0.1)
    columns = {
        "rising": pa.array(np.cumsum(rng.integers(0, 1_000, rows)) + 1_700_000_000_000_000),
        "key": pa.array(rng.integers(-1_000, 1_000, rows)),
        "same": pa.array(np.full(rows, -7)),
        "any": pa.array(rng.integers(-(2**63), 2**63 - 1, rows)),
        "holes": pa.array(rng.integers(0, 9, rows), mask=few.to_numpy(zero_copy_only=False)),
        "none": pa.nulls(rows, pa.int64()),
        "real": pa.array(rng.normal(size=rows)),
        "yes": few,
        "text": pa.array(rng.choice(words, rows)),
        "noise": pa.array([rng.bytes(9) for _ in range(rows)]),
        "price": pa.array([Decimal(int(cents)) / 100 for cents in rng.integers(0, 10**6, rows)]),
        "nested": pa.array([[int(one)] for one in rng.integers(0, 9, rows)]),
    }
    table = pa.table(columns)
    packed = pack_rows(table)
    assert unpack_rows(packed, table.schema).equals(table)
    assert len(packed) < table.nbytes / 2, "any and noise are the most of it"


def test_not_a_number_comes_out_bit_by_bit() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000000, 0x8000000000000000], np.uint64)
    table = pa.table({"x": pa.array(bits.view(np.float64))})
    came = unpack_rows(pack_rows(table), table.schema).column("x").to_numpy()
    assert came.view(np.uint64).tolist() == bits.tolist()


def test_no_rows() -> None:
    table = pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.list_(pa.string()))})
    assert unpack_rows(pack_rows(table), table.schema).equals(table)


def test_few_rows_take_little_more_than_their_values() -> None:
    one = pa.table({"key": [517], "#ts": [1_700_000_000_000_000], "name": ["router"]})
    assert len(pack_rows(one)) < 3 + 9 + 6 + 8
    ten = pa.table({"key": range(517, 717, 20), "#ts": [1_700_000_000_000_000 + n * n for n in range(10)]})
    assert len(pack_rows(ten)) < 10 * (1 + 1) + 3 + 10 + 3


def test_values_that_come_again_are_numbered() -> None:
    rng = np.random.default_rng(1)
    which = rng.integers(0, 16, 4_000)
    ids, texts = rng.integers(0, 10**12, 16), np.array([rng.bytes(40).hex() for _ in range(16)])
    holes = rng.random(4_000) < 0.1
    for values in (pa.array(ids[which]), pa.array(texts[which]), pa.array(texts[which], mask=holes)):
        packed = pack_rows(pa.table({"x": values}))
        assert unpack_rows(packed, pa.schema([("x", values.type)])).column("x").combine_chunks().equals(values)
        assert len(packed) < 4_000 * (0.5 + bool(values.null_count) / 8) * 1.1 + 16 * 80


def test_a_slice_travels_without_what_it_was_cut_from() -> None:
    for values in ([f"{number * 7919:020d}" for number in range(20_000)], [[number] for number in range(20_000)]):
        whole_table = pa.table({"x": pa.array(values)})
        assert len(pack_rows(whole_table.slice(5, 1))) < 1_000 < len(pack_rows(whole_table))


def test_rows_travel_compressed_and_without_their_schema() -> None:
    table = pa.table({"a_column_with_quite_a_long_name": ["the same text"] * 10_000})
    packed = pack_rows(table)
    assert len(packed) < table.nbytes / 100
    assert b"a_column_with_quite_a_long_name" not in packed


@repeatable
@given(st.data())
def test_rows_that_are_cut_short_are_an_error(data: st.DataObject) -> None:
    table = pa.table({"x": [1, 500, 3], "s": ["a", None, "b" * 100], "f": [0.5, 1.5, None]})
    packed = pack_rows(table)
    with pytest.raises(ValueError, match="left"):
        unpack_rows(packed[: data.draw(st.integers(0, len(packed) - 1))], table.schema)
    with pytest.raises(ValueError, match="left over"):
        unpack_rows(packed + b"x", table.schema)


@repeatable
@given(st.integers(0, 2**70))
def test_numbers_take_as_many_bytes_as_they_need(value: int) -> None:
    packed = number_bytes(value)
    assert len(packed) == max(1, -(-value.bit_length() // 7))
    assert Reader(packed).number() == value
