"""Whatever bytes come over a link, they are a value or a ValueError: no crash, no other error, no memory beyond bounds.

Mutations of real parcels get their checksum recomputed, so that what is behind it is reached.
"""

import zlib
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice

import hangs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import FreshSeeds, scaled

from watersmeet.program.storage.packing import _FREE_BYTES, MAX_RATIO, number_bytes, pack_rows, unpack_rows
from watersmeet.program.storage.wire import Message, Parcel, index_parcel, pack_schema, unpack_schema

MILLION = 1_000_000


def tables(seed: int) -> list[pa.Table]:
    """Rows of every encoding: rising, narrow, numbered, compressed, with NULLs, texts, nested."""
    rng = np.random.default_rng(seed)
    found = []
    for rows in (1, 3, 40):
        holes = rng.random(rows) < 0.3
        found.append(
            pa.table(
                {
                    "#ts": np.cumsum(rng.integers(0, 1_000, rows)) + 1_700_000_000_000_000,
                    "k": pa.array(rng.integers(-9, 9, rows), mask=holes),
                    "same": np.full(rows, -7),
                    "any": rng.integers(-(2**63), 2**63 - 1, rows),
                    "small": pa.array(rng.integers(0, 9, rows), pa.int8()),
                    "text": pa.array(rng.choice(["x", "yy", "a rather longer word"], rows), mask=holes),
                    "unique": [f"{number:07d}" for number in rng.integers(0, 10**6, rows)],
                    "large": pa.array([f"{number}" * 5 for number in range(rows)], pa.large_string()),
                    "noise": [rng.bytes(5) for _ in range(rows)],
                    "real": rng.normal(size=rows),
                    "yes": rng.random(rows) < 0.5,
                    "price": [Decimal(int(cents)) / 100 for cents in rng.integers(0, 10**6, rows)],
                    "nested": [[int(one)] * (int(one) % 3) for one in rng.integers(0, 9, rows)],
                    "pair": [{"x": int(one), "y": str(one)} for one in rng.integers(0, 9, rows)],
                }
            )
        )
    return [*found, *(table.select([name]) for table in found for name in table.column_names)]


def parcel_of(table: pa.Table) -> bytes:
    """Rows on their way."""
    message = Message(3, 1_700_000_000_000_000, table.num_rows, pack_rows(table), pack_schema(table.schema))
    return Parcel(7, (Message(0, 5), message), 12_345).pack()


def sealed(data: bytes | bytearray) -> bytes:
    """Bytes with the checksum that a parcel of them has."""
    return bytes(data[:6]) + zlib.crc32(data[10:], zlib.crc32(data[3:6])).to_bytes(4, "little") + bytes(data[10:])


def mutated(data: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """Some bits flipped, bytes cut, inserted, copied from elsewhere, or numbers made large."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if len(out) < 2:
            break
        place = int(rng.integers(0, len(out)))
        match int(rng.integers(0, 7)):
            case 0:
                out[place] ^= 1 << int(rng.integers(0, 8))
            case 1:
                out[place] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
            case 2:
                del out[place : place + int(rng.integers(1, 9))]
            case 3:
                out[place:place] = rng.bytes(int(rng.integers(1, 9)))
            case 4:
                del out[place:]
            case 5:  # a length or count, with a large one in its place
                out[place : place + 1] = number_bytes(int(2 ** rng.uniform(7, 70)))
            case _:
                other = others[int(rng.integers(0, len(others)))]
                start = int(rng.integers(0, len(other)))
                out[place : place + int(rng.integers(0, 40))] = other[start : start + int(rng.integers(1, 60))]
    return bytes(out)


def used_by(table: pa.Table) -> int:
    return int(table.get_total_buffer_size())


def check_words(error: ValueError) -> None:
    """Whether an error is one of ours and not what a library says."""
    assert str(error) and not isinstance(error, pa.ArrowException | UnicodeError), error


def try_rows(packed: bytes, schema: pa.Schema) -> bool:
    """Whether bytes are rows; they are checked by Arrow in full then, and read."""
    try:
        table = unpack_rows(packed, schema)
    except ValueError as error:
        check_words(error)
        return False
    table.validate(full=True)
    assert used_by(table) <= 2 * (_FREE_BYTES + MAX_RATIO * len(packed))
    table.take(np.arange(table.num_rows)[::-1])  # reads all of it
    return True


def try_parcel(data: bytes) -> bool:
    """The same of a parcel, with all that is in it."""
    try:
        for entry in index_parcel(data).entries:
            if entry.schema:
                schema = unpack_schema(entry.schema)
                if all(pa.types.is_primitive(one.type) or pa.types.is_string(one.type) for one in schema):
                    try_rows(data[entry.start : entry.start + entry.size], schema)
    except ValueError as error:
        check_words(error)
        return False
    return True


def fuzz(seed: int, inputs: int) -> Iterator[bool]:
    """Mutations of packed rows and of parcels, in turn."""
    rng = np.random.default_rng(seed)
    samples = tables(seed)
    packed, parcels = [pack_rows(one) for one in samples], [parcel_of(one) for one in samples]
    for number in range(inputs):
        which = int(rng.integers(0, len(samples)))
        if number % 2:
            yield try_rows(mutated(packed[which], packed, rng), samples[which].schema)
        else:
            body = mutated(parcels[which][10:], parcels, rng)
            yield try_parcel(sealed(parcels[which][:10] + body))


def test_a_few_thousand_mutations_are_values_or_value_errors() -> None:
    right = sum(fuzz(1, 6_000))
    assert 100 < right < 5_000, "both happen"


@pytest.mark.soak
def test_a_million_mutations_are_values_or_value_errors(fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(1):
        right, tries = 0, fuzz(seed, scaled(MILLION))
        while some := list(islice(tries, 1_000)):
            right += sum(some)
            hangs.count("mutated parcels and packed rows", len(some))
        assert right


@settings(max_examples=500)
@given(st.sampled_from(tables(2)), st.binary(max_size=80))
def test_any_bytes_are_rows_or_a_value_error(table: pa.Table, data: bytes) -> None:
    try_rows(data, table.schema)
    try_rows(number_bytes(3) + data, table.schema)


@settings(max_examples=500)
@given(st.binary(min_size=4, max_size=80), st.integers(0, 40))
def test_any_bytes_with_a_checksum_are_a_parcel_or_a_value_error(data: bytes, size: int) -> None:
    try_parcel(sealed(b"WM3" + size.to_bytes(3, "little") + bytes(4) + data))


# What was found by hand -----------------------------------------------------------------------------------------------


def test_lengths_of_text_that_add_up_only_modulo_64_bits_are_refused() -> None:
    lengths = np.array([2**64 - 5, 8], np.uint64)  # together 3
    planes = lengths.view(np.uint8).reshape(-1, 8).T.tobytes()
    with pytest.raises(ValueError, match=r"too much memory|too many"):
        unpack_rows(bytes([2, 8, 0]) + planes + bytes([0]) + b"abc", pa.schema([("s", pa.string())]))


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.list_(pa.int64())])
@pytest.mark.parametrize("rows", [10**7, 10**9, 2**40, 2**62])
def test_a_few_bytes_ask_for_no_memory(kind: pa.DataType, rows: int) -> None:
    before = pa.total_allocated_bytes()
    for tail in (bytes(8), bytes([0x40, 0, 4]) + bytes(8), bytes([0x10, 0, 0]) + bytes(8)):
        with pytest.raises(ValueError, match=r"too much memory|left|damaged"):
            unpack_rows(number_bytes(rows) + tail, pa.schema([("x", kind)]))
    assert pa.total_allocated_bytes() - before < 2 * _FREE_BYTES


def test_a_long_text_that_is_asked_for_a_million_times_is_refused() -> None:
    text = pa.table({"x": ["a" * 4_000] * 16})
    packed = pack_rows(text)
    forged = number_bytes(MILLION) + packed[1:]
    with pytest.raises(ValueError, match="too much memory"):
        unpack_rows(forged, text.schema)


def test_rows_that_compress_beyond_the_ratio_get_padding_and_come_out() -> None:
    table = pa.table({"x": pa.array(["the very same text, quite long"] * 400_000), "y": np.full(400_000, 5)})
    packed = pack_rows(table)
    assert len(packed) >= table.nbytes / MAX_RATIO
    assert unpack_rows(packed, table.schema).equals(table)


@pytest.mark.parametrize("kind", [pa.string(), pa.decimal128(5, 2), pa.time64("us"), pa.date64()])
def test_bytes_that_are_no_value_of_a_type_are_refused(kind: pa.DataType) -> None:
    width = {"string": 1}.get(str(kind), 16 if pa.types.is_decimal(kind) else 8)
    raw = pa.table(
        {"x": pa.array([(b"\xff" if width == 1 else b"\x7f") * width], pa.binary() if width == 1 else pa.binary(width))}
    )
    if pa.types.is_temporal(kind):
        raw = pa.table({"x": pa.array([2**62 + 1])})
    with pytest.raises(ValueError, match=r"values are not of type"):
        unpack_rows(pack_rows(raw), pa.schema([("x", kind)]))


def test_values_that_are_numbered_within_numbers_without_end_are_refused() -> None:
    with pytest.raises(ValueError, match=r"numbered that never are|left"):
        unpack_rows(bytes([1]) + bytes([0x80, 0, 1]) * 50_000, pa.schema([("x", pa.int64())]))


def test_values_that_are_numbered_without_being_there_are_refused() -> None:
    with pytest.raises(ValueError, match="values are numbered and there are none"):
        unpack_rows(b"\x01\x80\n\x00R\x12\x01\x00\x00", pa.schema([("x", pa.binary())]))


def test_the_number_of_rows_is_what_the_message_says() -> None:
    table = pa.table({"x": [1, 2, 3]})
    with pytest.raises(ValueError, match="3 rows were found where 4 were declared"):
        unpack_rows(pack_rows(table), table.schema, 4)
