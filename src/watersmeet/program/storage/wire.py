"""What crosses a link: parcels of messages, each with the rows of a flow and its watermark.

A parcel is what one micro-batch has for another site. By its number a second delivery is dropped and a gap noticed; by
the checksum of the parcel before, which it carries, that its sender has not gone back to an older state in between.
A message names its flow by number; the schema of a flow travels with its first rows and never again. Most
messages are small, so what describes them is too: numbers take as many bytes as they need, and watermarks are given by
their distance from the latest in the parcel.

A parcel also says by which revision of the sites' programs its flows are numbered, and may carry notes by which sites
agree on the next one.
"""

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.errors import DamagedParcel
from watersmeet.program.storage.packing import Reader, folded, number_bytes, unfolded

Count = TypeVar("Count", int, npt.NDArray[np.int64])

VERSION = 5  # of the form of parcels: sites of different ones cannot read each other
_MAGIC = b"WM%d" % VERSION
_SIZE_BYTES, _SUM_BYTES = 3, 4  # of the table of messages, and of the sum over everything but these
_HEAD_BYTES = len(_MAGIC) + _SIZE_BYTES + 2 * _SUM_BYTES  # with the sum of the parcel before
_SUM_PLACE = len(_MAGIC) + _SIZE_BYTES

UNKNOWN = -(2**63)  # the watermark of a flow that has reported none yet

PARCEL_BYTES = _HEAD_BYTES + 12  # about, beside messages: its number, the time it has come to, and the revision
MESSAGE_BYTES = 7  # about, beside rows
COLUMN_BYTES = 3  # about, beside the values of a column


@dataclass(frozen=True, slots=True)
class Message:
    """Rows of a flow, or none, and its watermark: no row before it follows."""

    flow: int
    watermark: int
    rows: int = 0
    payload: bytes = b""
    schema: bytes = b""


@dataclass(frozen=True)
class Parcel:
    """All messages of one micro-batch over one link."""

    number: int
    messages: tuple[Message, ...]
    previous: int = 0  # the checksum of the parcel before it; 0 if there is none
    revision: int = 1  # of the programs of all sites
    notes: bytes = b""  # what sites tell each other about the next revision

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """What each message takes."""
        return tuple(
            len(entry) + len(message.schema) + len(message.payload)
            for entry, message in zip(self._entries, self.messages, strict=True)
        )

    @property
    def own_size(self) -> int:
        """What it takes beside its messages."""
        return _HEAD_BYTES + len(self._beginning)

    @cached_property
    def _beginning(self) -> bytes:
        numbers = (self.number, folded(self._latest), self.revision, len(self.notes))
        return b"".join(map(number_bytes, numbers))

    @property
    def _latest(self) -> int:
        return max((message.watermark for message in self.messages), default=0)

    @cached_property
    def _entries(self) -> tuple[bytes, ...]:
        numbers = (
            (message.flow, len(message.schema), message.rows, len(message.payload), self._latest - message.watermark)
            for message in self.messages
        )
        return tuple(b"".join(map(number_bytes, entry)) for entry in numbers)

    def pack(self) -> bytes:
        """The parcel as bytes."""
        table = self._beginning + b"".join(self._entries)
        size = len(table).to_bytes(_SIZE_BYTES, "little")
        previous = self.previous.to_bytes(_SUM_BYTES, "little")
        body = previous + table + self.notes + b"".join(message.schema + message.payload for message in self.messages)
        return _MAGIC + size + _checksum(size, body) + body


def overhead_bytes(columns: Count) -> Count:
    """About what a message with rows takes beside the values themselves."""
    return MESSAGE_BYTES + COLUMN_BYTES * columns


def pack_schema(schema: pa.Schema) -> bytes:
    """A schema as it travels."""
    packed: bytes = schema.remove_metadata().serialize().to_pybytes()
    return packed


@lru_cache(256)
def unpack_schema(packed: bytes) -> pa.Schema:
    """A schema as it came; ValueError where it is none."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(packed)).remove_metadata()
        _read_names(schema)
        return schema
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError):
        raise ValueError("a schema is damaged") from None


def _read_names(fields: Iterable[pa.Field]) -> None:
    """Arrow checks names only when they are read."""
    for field in fields:
        str(field.name)
        _read_names(field.type.field(number) for number in range(field.type.num_fields))


def checksum_of(packed: bytes) -> int:
    """The checksum that a packed parcel carries."""
    return int.from_bytes(packed[_SUM_PLACE : _SUM_PLACE + _SUM_BYTES], "little")


def _checksum(size: bytes | memoryview, body: bytes | memoryview) -> bytes:
    return zlib.crc32(body, zlib.crc32(size)).to_bytes(_SUM_BYTES, "little")


@dataclass(frozen=True, slots=True)
class ParcelEntry:
    """One message of a parcel and where its rows lie in it."""

    flow: int
    watermark: int
    rows: int
    start: int
    size: int
    schema: bytes


@dataclass(frozen=True, slots=True)
class ParcelIndex:
    """What is in a parcel, without the rows."""

    number: int
    entries: tuple[ParcelEntry, ...]
    previous: int = 0
    checksum: int = 0
    revision: int = 1
    notes: bytes = b""


@contextlib.contextmanager
def naming_damage(sender: str, reader: str, number: int) -> Iterator[None]:
    """Say of which parcel it is that something in it is not as it should be."""
    try:
        yield
    except (ValueError, pa.ArrowException) as error:
        cause = "values do not fit their types" if isinstance(error, pa.ArrowException) else error
        raise DamagedParcel(
            f"link {sender} -> {reader}: parcel {number} is not what {sender} makes ({cause}); remove it from the link "
            f"and start both sites to have it published anew, and if it comes so again, restore the checkpoints of "
            f"{sender} and {reader} from copies of one moment"
        ) from None


def index_parcel(data: bytes) -> ParcelIndex:
    """What is in a parcel; ValueError where it is none."""
    head = Reader(data)
    if head.left < _HEAD_BYTES or head.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is not a parcel")
    size, checksum = head.take(_SIZE_BYTES), head.take(_SUM_BYTES)
    if _checksum(size, head.rest) != checksum:
        raise ValueError(f"it has {len(data)} bytes, and its checksum is wrong")
    previous = int.from_bytes(head.take(_SUM_BYTES), "little")
    table = Reader(head.take(int.from_bytes(size, "little")))
    number, latest = table.number(2**63), unfolded(table.number(2**64))
    revision, notes_size = table.number(2**63), table.number(2**32)
    place, entries = len(data) - head.left, []
    notes = data[place : place + notes_size]
    place += notes_size
    while table.left:
        flow, schema_size, rows, payload_size, behind = (table.number(2**64) for _ in range(5))
        start = place + schema_size
        entries.append(ParcelEntry(flow, latest - behind, rows, start, payload_size, data[place:start]))
        place = start + payload_size
    if place != len(data):
        raise ValueError(f"it has {len(data)} bytes, and its messages {place}")
    if any(entry.watermark < UNKNOWN for entry in entries):
        raise ValueError("a watermark is out of range")
    return ParcelIndex(number, tuple(entries), previous, int.from_bytes(checksum, "little"), revision, notes)
