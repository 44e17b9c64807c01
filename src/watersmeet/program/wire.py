"""What crosses a link: parcels of messages, each one compressed Arrow batch with its flow and watermark.

A parcel is what one turn of a site has for another one: numbered, so that a second delivery is dropped and a gap is
waited for. A message names its flow by number; the schema of a flow travels with its first batch and never again.
"""

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

_PARCEL = struct.Struct("<4sqHI")
_MESSAGE = struct.Struct("<HHIIq")
_MAGIC = b"WMP1"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")

UNKNOWN = -(2**63)  # the progress of a flow that has said nothing yet

PARCEL_BYTES = _PARCEL.size
MESSAGE_BYTES = _MESSAGE.size


@dataclass(frozen=True, slots=True)
class Message:
    """Rows of a flow, or none, and how far the flow has come: no row before `progress` follows."""

    flow: int
    progress: int
    rows: int = 0
    payload: bytes = b""
    schema: bytes = b""

    @property
    def bytes(self) -> int:
        return MESSAGE_BYTES + len(self.payload) + len(self.schema)


@dataclass(frozen=True, slots=True)
class Parcel:
    """All messages of one turn over one link."""

    number: int
    messages: tuple[Message, ...]

    @property
    def bytes(self) -> int:
        return PARCEL_BYTES + sum(message.bytes for message in self.messages)


def pack_rows(table: pa.Table) -> bytes:
    """Rows as one compressed Arrow IPC record batch, without its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
        stop = sink.tell()  # a mark of the stream's end would follow
    written = sink.getvalue()
    reader = pa.BufferReader(written)
    pa.ipc.read_message(reader)  # the schema, which travels on its own
    packed: bytes = written[reader.tell() : stop].to_pybytes()
    return packed


@cache
def overhead_bytes(columns: int) -> int:
    """What a message with rows takes beside the values themselves."""
    payload = pack_rows(pa.table({str(number): [0] for number in range(columns)}))
    return MESSAGE_BYTES + 8 + int.from_bytes(payload[4:8], "little")


def unpack_rows(payload: bytes | memoryview | pa.Buffer, schema: pa.Schema) -> pa.Table:
    """The rows of a message."""
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(payload), schema)])


def pack_schema(schema: pa.Schema) -> bytes:
    """A schema as it travels."""
    packed: bytes = schema.remove_metadata().serialize().to_pybytes()
    return packed


def unpack_schema(packed: bytes) -> pa.Schema:
    """A schema as it came."""
    return pa.ipc.read_schema(pa.py_buffer(packed))


def pack_parcel(parcel: Parcel) -> bytes:
    """A parcel as bytes."""
    body = b"".join(_pieces(parcel))
    return _PARCEL.pack(_MAGIC, parcel.number, len(parcel.messages), _checksum(parcel.number, body)) + body


def _checksum(number: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(number.to_bytes(8, "little", signed=True)))


def _pieces(parcel: Parcel) -> Iterable[bytes]:
    for message in parcel.messages:
        yield _MESSAGE.pack(message.flow, len(message.schema), message.rows, len(message.payload), message.progress)
    for message in parcel.messages:
        yield message.schema
        yield message.payload


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a parcel and where its rows lie in it."""

    flow: int
    progress: int
    rows: int
    start: int
    size: int
    schema: bytes


@dataclass(frozen=True, slots=True)
class ParcelIndex:
    """What is in a parcel, without the rows."""

    number: int
    entries: tuple[Entry, ...]


def index_parcel(read: Callable[[int, int], bytes], size: int) -> ParcelIndex:
    """What is in a parcel of so many bytes, read through a function of (start, size); ValueError where it is none."""
    head = read(0, PARCEL_BYTES)
    if len(head) < PARCEL_BYTES or head[:4] != _MAGIC:
        raise ValueError("it is not a parcel")
    _, number, count, checksum = _PARCEL.unpack(head)
    table = read(PARCEL_BYTES, count * MESSAGE_BYTES)
    place, entries = PARCEL_BYTES + count * MESSAGE_BYTES, []
    if len(table) == count * MESSAGE_BYTES:
        for flow, schema_size, rows, payload_size, progress in _MESSAGE.iter_unpack(table):
            schema = read(place, schema_size) if schema_size else b""
            entries.append(Entry(flow, progress, rows, place + schema_size, payload_size, schema))
            place += schema_size + payload_size
    if len(table) < count * MESSAGE_BYTES or place != size:
        raise ValueError(f"it has {size} bytes and should have {place}")
    if _checksum(number, read(PARCEL_BYTES, size - PARCEL_BYTES)) != checksum:
        raise ValueError("its checksum is wrong")
    return ParcelIndex(number, tuple(entries))
