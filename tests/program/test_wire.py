"""Parcels and rows come out as they went in, and what is no parcel is told from one."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.wire import (
    MESSAGE_BYTES,
    PARCEL_BYTES,
    UNKNOWN,
    Message,
    Parcel,
    ParcelIndex,
    index_parcel,
    pack_parcel,
    pack_rows,
    pack_schema,
    unpack_rows,
    unpack_schema,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=100)
SCHEMA = pa.schema([("#ts", pa.int64()), ("a.k", pa.int32()), ("a.s", pa.string()), ("#bits", pa.binary())])

rows = st.lists(
    st.fixed_dictionaries(
        {
            "#ts": st.integers(-(2**63), 2**63 - 1),
            "a.k": st.none() | st.integers(-(2**31), 2**31 - 1),
            "a.s": st.none() | st.text(max_size=20),
            "#bits": st.none() | st.binary(max_size=20),
        }
    ),
    min_size=1,
    max_size=40,
)
messages = st.builds(
    Message,
    flow=st.integers(0, 2**16 - 1),
    progress=st.just(UNKNOWN) | st.integers(-(2**63), 2**63 - 1),
    rows=st.integers(0, 2**32 - 1),
    payload=st.binary(max_size=200),
    schema=st.binary(max_size=60),
)
parcels = st.builds(Parcel, st.integers(1, 2**63 - 1), st.lists(messages, max_size=6).map(tuple))


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda start, size: data[start : start + size]


def index(data: bytes) -> ParcelIndex:
    return index_parcel(reader(data), len(data))


@repeatable
@given(rows, st.integers(0, 40), st.integers(0, 40))
def test_rows_come_out_as_they_went_in(values: list[dict], one: int, other: int) -> None:
    whole = pa.Table.from_pylist(values, schema=SCHEMA)
    low, high = sorted((one % len(values), other % len(values)))
    for table in (whole, whole.slice(low, high + 1 - low), pa.concat_tables([whole.slice(low), whole.slice(0, high)])):
        assert unpack_rows(pack_rows(table), unpack_schema(pack_schema(table.schema))).equals(table)


def test_a_slice_travels_without_what_it_was_cut_from() -> None:
    whole = pa.table({"x": pa.array([f"{number * 7919:020d}" for number in range(20_000)])})
    assert len(pack_rows(whole.slice(5, 1))) < 1_000 < len(pack_rows(whole))


def test_rows_travel_compressed_and_without_their_schema() -> None:
    table = pa.table({"a_column_with_quite_a_long_name": pa.array([7] * 10_000, pa.int64())})
    packed = pack_rows(table)
    assert len(packed) < table.nbytes / 10
    assert b"a_column_with_quite_a_long_name" not in packed
    assert b"a_column_with_quite_a_long_name" in pack_schema(table.schema)


def test_a_schema_travels_without_metadata() -> None:
    schema = SCHEMA.with_metadata({"pandas": "x" * 500})
    assert unpack_schema(pack_schema(schema)).equals(SCHEMA, check_metadata=True)


@repeatable
@given(parcels)
def test_parcels_come_out_as_they_went_in(parcel: Parcel) -> None:
    data = pack_parcel(parcel)
    assert len(data) == parcel.bytes
    found = index(data)
    assert found.number == parcel.number
    came = tuple(
        Message(one.flow, one.progress, one.rows, data[one.start : one.start + one.size], one.schema)
        for one in found.entries
    )
    assert came == parcel.messages


@repeatable
@given(parcels, st.data())
def test_a_single_wrong_bit_is_a_value_error(parcel: Parcel, data: st.DataObject) -> None:
    packed = bytearray(pack_parcel(parcel))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"not a parcel|should have|checksum"):
        index(bytes(packed))


@repeatable
@given(parcels, st.data())
def test_a_parcel_that_is_cut_short_is_a_value_error(parcel: Parcel, data: st.DataObject) -> None:
    packed = pack_parcel(parcel)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(ValueError, match=r"not a parcel|should have"):
        index(cut)


@repeatable
@given(parcels, st.binary(min_size=1, max_size=30))
def test_a_parcel_with_more_behind_it_is_a_value_error(parcel: Parcel, more: bytes) -> None:
    with pytest.raises(ValueError, match="should have"):
        index(pack_parcel(parcel) + more)


@repeatable
@given(st.binary(max_size=100))
def test_other_bytes_are_no_parcel(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a parcel"):
        index(data)


@repeatable
@given(parcels, st.integers(0, 3), st.integers(1, 255))
def test_a_parcel_with_another_beginning_is_none(parcel: Parcel, place: int, change: int) -> None:
    packed = bytearray(pack_parcel(parcel))
    packed[place] ^= change
    with pytest.raises(ValueError, match="not a parcel"):
        index(bytes(packed))


@repeatable
@given(parcels.filter(lambda parcel: bool(parcel.messages)), st.data())
def test_a_damaged_size_is_a_value_error(parcel: Parcel, data: st.DataObject) -> None:
    packed = bytearray(pack_parcel(parcel))
    message = data.draw(st.integers(0, len(parcel.messages) - 1))
    place = data.draw(st.sampled_from([2, 3, 8, 9, 10, 11]))  # in a message: the schema's size and the payload's
    packed[PARCEL_BYTES + message * MESSAGE_BYTES + place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="should have"):
        index(bytes(packed))


@repeatable
@given(rows, st.data())
def test_rows_that_are_cut_short_are_an_error(values: list[dict], data: st.DataObject) -> None:
    packed = pack_rows(pa.Table.from_pylist(values, schema=SCHEMA))
    cut = packed[: data.draw(st.integers(0, len(packed) - 8))]
    with pytest.raises((ValueError, OSError, EOFError)):
        unpack_rows(cut, SCHEMA)
