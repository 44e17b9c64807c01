"""Parcels come out as they went in, and what is no parcel is told from one."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.program.storage.wire import (
    MESSAGE_BYTES,
    PARCEL_BYTES,
    UNKNOWN,
    Message,
    Parcel,
    index_parcel,
    pack_schema,
    unpack_schema,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=100)

messages = st.builds(
    Message,
    flow=st.integers(0, 2**16 - 1),
    watermark=st.just(UNKNOWN) | st.integers(-(2**63), 2**63 - 1),
    rows=st.integers(0, 2**32 - 1),
    payload=st.binary(max_size=200),
    schema=st.binary(max_size=60),
)
parcels = st.builds(Parcel, st.integers(1, 2**63 - 1), st.lists(messages, max_size=6).map(tuple))


def test_a_schema_travels_without_metadata() -> None:
    schema = pa.schema([("#ts", pa.int64()), ("a.s", pa.string())])
    told = pack_schema(schema.with_metadata({"pandas": "x" * 500}))
    assert unpack_schema(told).equals(schema, check_metadata=True)


@repeatable
@given(parcels)
def test_parcels_come_out_as_they_went_in(parcel: Parcel) -> None:
    data = parcel.pack()
    assert len(data) == parcel.own_size + sum(parcel.sizes)
    found = index_parcel(data)
    assert found.number == parcel.number
    came = tuple(
        Message(one.flow, one.watermark, one.rows, data[one.start : one.start + one.size], one.schema)
        for one in found.entries
    )
    assert came == parcel.messages


def test_what_describes_messages_takes_about_what_plans_are_priced_with() -> None:
    now_us = 1_800_000_000_000_000
    messages = [Message(number, now_us - 30_000 * number, 20, b"x" * 300) for number in range(1, 9)]
    parcel = Parcel(5_000, tuple(messages))
    assert parcel.own_size == pytest.approx(PARCEL_BYTES, abs=3)
    assert sum(parcel.sizes) / len(messages) - 300 == pytest.approx(MESSAGE_BYTES, abs=2)


@repeatable
@given(parcels, st.data())
def test_a_single_wrong_bit_is_a_value_error(parcel: Parcel, data: st.DataObject) -> None:
    packed = bytearray(parcel.pack())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"not a parcel|checksum"):
        index_parcel(bytes(packed))


@repeatable
@given(parcels, st.data())
def test_a_parcel_that_is_cut_short_is_a_value_error(parcel: Parcel, data: st.DataObject) -> None:
    packed = parcel.pack()
    with pytest.raises(ValueError, match=r"not a parcel|checksum"):
        index_parcel(packed[: data.draw(st.integers(0, len(packed) - 1))])


@repeatable
@given(parcels, st.binary(min_size=1, max_size=30))
def test_a_parcel_with_more_behind_it_is_a_value_error(parcel: Parcel, more: bytes) -> None:
    with pytest.raises(ValueError, match="checksum"):
        index_parcel(parcel.pack() + more)


@repeatable
@given(st.binary(max_size=100))
def test_other_bytes_are_no_parcel(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a parcel"):
        index_parcel(data)
