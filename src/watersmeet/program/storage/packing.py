"""Rows packed small for a link: every column as narrow as its values allow, and compressed where that helps.

Most messages hold few rows, for which a general format spends more on describing buffers than on values. Both sides
know the schema, so a column is one byte that tells how it is written, and its values: whole numbers and times by their
distance from the least of them or, where they only rise, from the one before; values of a fixed width byte by byte, the
lowest bytes of all rows first, up to the highest that any row needs; texts as their lengths and what they hold. Where
the same few values come again and again, as in combinations, they are numbered. Nested values are left to Arrow.

Nothing that is unpacked is believed: what is not a value of the schema is a ValueError, and what is asked for in memory
is bounded before it is allocated, by 1 MiB and `MAX_RATIO` bytes for each byte that came. Whoever packs rows that would
take more adds padding.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as kinds

from watersmeet.errors import RunError

# In the byte that tells how a column is written:
_WIDTH, _RISES, _HAS_NULLS, _IS_COMPRESSED, _IS_NUMBERED = 0x0F, 0x10, 0x20, 0x40, 0x80
_WORTH_COMPRESSING = 64  # bytes
_WORTH_NUMBERING = 16  # rows
_NUMBERED_SHARE = 0.75  # of their bytes that numbers and values may take
_SAMPLE = 1_024  # values that tell whether it is worth looking for all that are the same
_ZSTD = pa.Codec("zstd", compression_level=1)

MAX_RATIO = 1_000  # of what packed rows may take in memory to what they take packed
MAX_BYTES = 16 << 30  # that packed rows may take in memory in any case
_FREE_BYTES = 1 << 20  # that they may take however short they are
_MAX_NUMBER_BYTES = 11

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]


class Reader:
    """Bytes taken one after the other; ValueError where there are too few, or where they ask for too much memory."""

    def __init__(self, data: bytes | memoryview | pa.Buffer) -> None:
        self._data, self._place = memoryview(data), 0
        self._allowed = min(MAX_BYTES, _FREE_BYTES + MAX_RATIO * len(self._data))

    @property
    def left(self) -> int:
        return len(self._data) - self._place

    @property
    def rest(self) -> memoryview:
        return self._data[self._place :]

    def take(self, size: int) -> memoryview:
        if size > self.left:
            raise ValueError(f"{size} bytes are wanted and {self.left} are left")
        self._place += size
        return self._data[self._place - size : self._place]

    def number(self, limit: int = 1 << 7 * _MAX_NUMBER_BYTES) -> int:
        """A whole number that is not negative, and below a limit: seven bits a byte, the lowest first."""
        found = 0
        for place in range(_MAX_NUMBER_BYTES):
            one = self.take(1)[0]
            found |= (one & 0x7F) << 7 * place
            if one < 0x80:
                if found >= limit:
                    break
                return found
        raise ValueError("a number is too large")

    def spend(self, size: int) -> None:
        """Take note of memory that is going to be used."""
        self._allowed -= size
        if self._allowed < 0:
            raise ValueError(f"{len(self._data):,} bytes ask for too much memory")


def number_bytes(value: int) -> bytes:
    """A whole number that is not negative, for `Reader.number`.

    >>> Reader(number_bytes(300)).number(), len(number_bytes(300))
    (300, 2)
    """
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack_rows(table: pa.Table) -> bytes:
    """The values of a table, for whoever has its schema; it is cut beforehand if a column is too long for Arrow."""
    out = bytearray(number_bytes(table.num_rows))
    for column in table.combine_chunks().columns if table.num_rows else ():
        (whole,) = column.chunks
        _pack(out, whole)
    spare = 8 * table.num_rows * table.num_columns
    if 2 * (table.get_total_buffer_size() + spare) > _FREE_BYTES:
        used = 2 * (table.nbytes + spare)  # at most, when it is unpacked
        if used > MAX_BYTES:
            raise RunError(
                f"{table.num_rows:,} rows are too many for one message; take smaller micro-batches (option "
                "maxFilesPerTrigger of the sources)"
            )
        out = out.ljust(-(-(used - _FREE_BYTES) // MAX_RATIO), b"\0")
    return bytes(out)


def unpack_rows(packed: bytes | memoryview | pa.Buffer, schema: pa.Schema, rows: int | None = None) -> pa.Table:
    """The table of some packed values; ValueError where they are not of that schema, or not so many."""
    reader = Reader(packed)
    found = reader.number()
    if rows not in (None, found):
        raise ValueError(f"{found:,} rows were found where {rows:,} were declared")
    table = pa.Table.from_arrays(
        [_unpack(reader, field.type, found) if found else pa.array([], field.type) for field in schema], schema=schema
    )
    if reader.left and reader.rest.tobytes().strip(b"\0"):
        raise ValueError(f"{reader.left} bytes are left over")
    return table


def _pack(out: bytearray, values: pa.Array) -> None:
    kind, place = values.type, len(out)
    out.append(0)
    if not _is_flat(kind):
        batch = memoryview(pa.record_batch([values], [""]).serialize())
        out += number_bytes(batch.nbytes)
        _pack_bytes(out, place, batch)
        return
    if kinds.is_null(kind):
        return
    if values.null_count:
        out[place] |= _HAS_NULLS
        out += np.packbits(values.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()
    if (numbered := _numbered(values)) is not None:
        out[place] |= _IS_NUMBERED
        _pack_numbers(out, place, _numbers(numbered.indices))
        out += number_bytes(len(numbered.dictionary))
        _pack(out, numbered.dictionary)
    elif _is_text(kind):
        offsets = _offsets(values)
        _pack_numbers(out, place, np.diff(offsets).astype(np.int64))
        out.append(0)
        _pack_bytes(out, len(out) - 1, _text(values, offsets))
    elif kinds.is_boolean(kind):
        bits = values.fill_null(False) if values.null_count else values
        _pack_bytes(out, place, np.packbits(bits.to_numpy(zero_copy_only=False), bitorder="little"))
    elif _is_whole(kind):
        _pack_numbers(out, place, _numbers(values))
    else:
        _pack_bytes(out, place, np.ascontiguousarray(_fixed(values).T))


def _numbered(values: pa.Array) -> pa.DictionaryArray | None:
    """The different values and which of them each one is, if that is much shorter than the values."""
    rows, is_text = len(values), _is_text(values.type)
    if rows < _WORTH_NUMBERING or values.null_count == rows or not (is_text or _is_whole(values.type)):
        return None
    if is_text:
        offsets = _offsets(values)
        size = int(offsets[-1] - offsets[0]) + rows
    else:
        numbers = _numbers(values)
        size = rows * _width(int(numbers.max()) - int(numbers.min()))
        if _rises(numbers):
            return None
    if rows > 2 * _SAMPLE and not _is_shorter(rows, _different(values), size):
        return None
    found = values.dictionary_encode()
    return found if _is_shorter(rows, len(found.dictionary), size) else None


def _is_shorter(rows: int, different: int, size: int) -> bool:
    return rows * _width(different) + size * different // rows < _NUMBERED_SHARE * size


def _different(values: pa.Array) -> int:
    """About how many different values there are, by how many of a sample are the same: those of birthdays."""
    rows = len(values)
    same = _SAMPLE - len(values.take(np.arange(_SAMPLE) * (rows // _SAMPLE)).unique())
    days = _SAMPLE**2 / (2 * max(same, 0.5))
    return round(days * -float(np.expm1(-rows / days)))


def _unpack(reader: Reader, kind: pa.DataType, rows: int, *, is_numbered: bool = False) -> pa.Array:
    how = reader.take(1)[0]
    if not _is_flat(kind):
        return _unpack_by_arrow(reader, how, kind, rows)
    if kinds.is_null(kind):
        return pa.nulls(rows)
    reader.spend(rows * (8 if _is_text(kind) else max(8, kind.bit_width // 8)))
    valid = pa.py_buffer(bytes(reader.take(-(-rows // 8)))) if how & _HAS_NULLS else None
    if how & _IS_NUMBERED:
        if is_numbered or not (_is_text(kind) or _is_whole(kind)):
            raise ValueError("values are numbered that never are")
        numbers, different = _unpack_numbers(reader, how, rows), reader.number(rows + 1)
        if not different:
            raise ValueError("values are numbered and there are none")
        return _picked(reader, _unpack(reader, kind, different, is_numbered=True), numbers, valid)
    if _is_text(kind):
        lengths = _unpack_numbers(reader, how, rows)
        ends = np.zeros(rows + 1, np.int64)
        if int(lengths.max()) * rows > MAX_BYTES:  # else no sum of them can be wrong
            _spend_text(reader, kind, sum(map(int, lengths)))
        np.cumsum(lengths, out=ends[1:].view(np.uint64))
        _spend_text(reader, kind, int(ends[-1]))
        data = _unpack_bytes(reader, reader.take(1)[0], int(ends[-1]))
        offsets = ends if _is_large_text(kind) else ends.astype(np.int32)
        return _checked(pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(offsets), pa.py_buffer(data)]))
    return _checked(pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(_unpack_fixed(reader, how, kind, rows))]))


def _unpack_by_arrow(reader: Reader, how: int, kind: pa.DataType, rows: int) -> pa.Array:
    size = reader.number()
    reader.spend(8 * rows + size)
    batch = pa.py_buffer(bytes(_unpack_bytes(reader, how, size)))  # in a place of its own, at an even address
    try:
        found = pa.ipc.read_record_batch(batch, pa.schema([("", kind)])).column(0)
        found.validate(full=True)
    except (pa.ArrowException, OSError, EOFError):
        raise ValueError(f"values of type {kind} are damaged") from None
    if len(found) != rows:
        raise ValueError(f"{len(found):,} values of type {kind} are where {rows:,} should be")
    return found


def _picked(reader: Reader, values: pa.Array, numbers: U64, valid: pa.Buffer | None) -> pa.Array:
    """The values that have some numbers."""
    if int(numbers.max()) >= len(values):
        raise ValueError(f"value {int(numbers.max()):,} of {len(values):,} is asked for")
    if _is_text(values.type) and len(numbers) * int((lengths := np.diff(_offsets(values))).max()) > _FREE_BYTES:
        chosen = lengths[numbers.view(np.int64)]
        if valid is not None:
            chosen *= np.unpackbits(np.frombuffer(valid, np.uint8), count=len(chosen), bitorder="little")
        _spend_text(reader, values.type, int(chosen.sum(dtype=np.int64)))
    which = pa.Array.from_buffers(pa.uint64(), len(numbers), [valid, pa.py_buffer(numbers)])
    return values.take(which)


def _spend_text(reader: Reader, kind: pa.DataType, size: int) -> None:
    reader.spend(size)
    if size >= 2**31 and not _is_large_text(kind):
        raise ValueError(f"{size:,} bytes of text are too many for one column")


def _checked(values: pa.Array) -> pa.Array:
    """Values of a type of which not all bytes are one."""
    kind = values.type
    is_partial = kinds.is_decimal(kind) or kinds.is_time(kind) or kinds.is_date64(kind)
    if is_partial or kinds.is_string(kind) or kinds.is_large_string(kind):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise ValueError(f"values are not of type {kind}") from None
    return values


def _unpack_fixed(reader: Reader, how: int, kind: pa.DataType, rows: int) -> memoryview | npt.NDArray[Any]:
    if kinds.is_boolean(kind):
        return _unpack_bytes(reader, how, -(-rows // 8))
    width = kind.bit_width // 8
    if _is_whole(kind):
        return _unpack_numbers(reader, how, rows).astype(f"u{width}")
    planes = np.frombuffer(_unpack_bytes(reader, how, rows * width), np.uint8).reshape(width, rows)
    return np.ascontiguousarray(planes.T)


def _pack_numbers(out: bytearray, place: int, values: npt.NDArray[np.integer]) -> None:
    """Numbers by what is left of them beside the least, or of the steps between them; a byte says which."""
    first = values[0] if (rises := _rises(values)) else values.min()
    out += number_bytes(folded(int(first)))
    rest = _wrapped(values) - _wrapped(first)
    if rises:
        out[place] |= _RISES
        rest = np.diff(rest)
        least = rest.min()
        out += number_bytes(int(least))
        rest -= least
    width = _width(int(rest.max()))
    out[place] |= width
    _pack_bytes(out, place, np.ascontiguousarray(rest.view(np.uint8).reshape(-1, 8)[:, :width].T))


def _unpack_numbers(reader: Reader, how: int, rows: int) -> U64:
    first, rises, width = unfolded(reader.number(2**65)), bool(how & _RISES), how & _WIDTH
    least = np.uint64(reader.number(2**64) if rises else 0)
    if first < -(2**63) or width > 8:
        raise ValueError("a number is too large")
    count = rows - rises
    planes = np.frombuffer(_unpack_bytes(reader, how, width * count), np.uint8).reshape(width, count)
    wide = np.zeros((count, 8), np.uint8)
    wide[:, :width] = planes.T
    rest = wide.view(np.uint64)[:, 0]
    if rises:
        rest = np.concatenate([np.zeros(1, np.uint64), np.cumsum(rest + least, dtype=np.uint64)])
    return rest + np.uint64(first % 2**64)


def _pack_bytes(out: bytearray, place: int, data: U8 | memoryview) -> None:
    """Bytes, compressed if they are fewer then; a byte says which."""
    if data.nbytes >= _WORTH_COMPRESSING:
        packed = _ZSTD.compress(pa.py_buffer(data), asbytes=True)
        size = number_bytes(len(packed))
        if len(packed) + len(size) < data.nbytes:
            out[place] |= _IS_COMPRESSED
            out += size + packed
            return
    out += data.tobytes()


def _unpack_bytes(reader: Reader, how: int, size: int) -> memoryview:
    if how & _IS_COMPRESSED:
        packed = pa.py_buffer(reader.take(reader.number()))
        try:
            return memoryview(_ZSTD.decompress(packed, size))
        except OSError:
            raise ValueError(f"{packed.size:,} compressed bytes are damaged") from None
    return reader.take(size)


def _is_whole(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or (kinds.is_temporal(kind) and not kinds.is_interval(kind)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_binary(kind) or _is_large_text(kind))


def _is_large_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_large_string(kind) or kinds.is_large_binary(kind))


def _is_flat(kind: pa.DataType) -> bool:
    fixed = kinds.is_primitive(kind) or kinds.is_decimal(kind) or kinds.is_fixed_size_binary(kind)
    return bool(fixed or _is_text(kind) or kinds.is_null(kind))


def _rises(values: npt.NDArray[np.integer]) -> bool:
    return len(values) > 1 and bool((values[1:] >= values[:-1]).all())


def _width(most: int) -> int:
    """How many bytes numbers up to one take."""
    return (most.bit_length() + 7) // 8


def _numbers(values: pa.Array) -> npt.NDArray[np.integer]:
    """Whole numbers and times as numbers; in place of nulls, the least of them."""
    sign = "u" if kinds.is_unsigned_integer(values.type) else "i"
    numbers: npt.NDArray[np.integer] = _fixed(values).view(f"{sign}{values.type.bit_width // 8}")[:, 0]
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        numbers = np.where(valid, numbers, numbers[valid].min() if valid.any() else 0)
    return numbers


def _fixed(values: pa.Array) -> U8:
    """The bytes of each value, where all have as many."""
    width = values.type.bit_width // 8
    data = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, values.offset * width)
    return data.reshape(len(values), width)


def _offsets(values: pa.Array) -> npt.NDArray[np.integer]:
    width = np.dtype(np.int64 if _is_large_text(values.type) else np.int32)
    return np.frombuffer(values.buffers()[1], width, len(values) + 1, values.offset * width.itemsize)


def _text(values: pa.Array, offsets: npt.NDArray[np.integer]) -> memoryview:
    data = values.buffers()[2]
    return memoryview(data if data is not None else b"")[int(offsets[0]) : int(offsets[-1])]


def _wrapped(values: npt.ArrayLike) -> U64:
    """Numbers modulo 2^64, so that differences of any two are right."""
    return np.asarray(values).astype(np.int64 if np.asarray(values).dtype.kind == "i" else np.uint64).view(np.uint64)


def folded(value: int) -> int:
    """Small numbers of either sign as small ones that are not negative: 0, -1, 1, -2, ...

    >>> [folded(one) for one in (0, -1, 1, -2)], unfolded(folded(-5))
    ([0, 1, 2, 3], -5)
    """
    return 2 * value if value >= 0 else -2 * value - 1


def unfolded(value: int) -> int:
    """The number that was folded."""
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1
