"""What the records of a link's topic mean, without a broker: whoever reads the same log concludes the same.

A topic has three partitions: parcels in parts, what the sender says of itself, and what the reader says of itself. A
partition is one order for everybody, and that is all the exclusion that ends need: of two claims to an epoch the first
in the log holds, and what a process says that no longer holds the newest claim is passed over by all.
"""

import re
from dataclasses import dataclass, field

from watersmeet.spark.links.ends import pack_end, unpack_end
from watersmeet.spark.links.protocol import LinkDirection, LinkEnd, Role
from watersmeet.spark.links.seal import Refused, Seal, SealContext, end_context

PARCELS, SENDER, READER = 0, 1, 2  # partitions
PARTITION = {Role.SENDER: SENDER, Role.READER: READER}
PART_BYTES = 900_000  # of a parcel in one record; brokers take a megabyte by default
MAX_PARTS = (4 << 30) // PART_BYTES
MAX_CACHED_BYTES = 64_000_000  # of parcels that have come and are not acknowledged; others are fetched when needed

_SAYS, _WITHDRAWS, _REJECTS = "says", "withdraws", "rejects"
_END_KEY = re.compile(rf"({_SAYS}|{_WITHDRAWS}|{_REJECTS}) (\d{{1,18}})(?: (\d{{1,18}}))?")
_PART_KEY = re.compile(r"(\d{1,18}) (\d{1,9}) (\d{1,9}) (\d{1,9}) (\d{1,18}) ([0-9A-Za-z-]{1,64})")


@dataclass
class EndLog:
    """The records of one end of a link, and who holds it by them."""

    link: LinkDirection
    role: Role
    seal: Seal
    claims: list[LinkEnd] = field(default_factory=list)  # by growing epoch; the last holds
    rejected: dict[int, int] = field(default_factory=dict)  # of a reader: how often it has put parcels aside
    refused: str = ""  # why the last record was passed over that nobody who has the keys has written

    @property
    def newest(self) -> LinkEnd | None:
        """The statement that holds."""
        return self.claims[-1] if self.claims else None

    def newest_below(self, epoch: int) -> LinkEnd | None:
        """The statement that held before an epoch."""
        return next((end for end in reversed(self.claims) if end.epoch < epoch), None)

    def is_held_by(self, end: LinkEnd) -> bool:
        """Whether a claim still holds."""
        newest = self.newest
        return newest is not None and (newest.epoch, newest.token) == (end.epoch, end.token)

    def statement(self, end: LinkEnd) -> tuple[bytes, bytes]:
        """Key and value of the record by which an end is claimed, or says what is so now."""
        return f"{_SAYS} {end.epoch}".encode(), pack_end(end, self.link, self.role, self.seal)

    def withdrawal(self, end: LinkEnd) -> tuple[bytes, bytes]:
        """The record that takes a claim back."""
        return self._signed(_WITHDRAWS, end)

    def rejection(self, end: LinkEnd, number: int) -> tuple[bytes, bytes]:
        """The record that asks for a parcel again."""
        return self._signed(f"{_REJECTS} {end.epoch} {number}", end)

    def _signed(self, what: str, end: LinkEnd) -> tuple[bytes, bytes]:
        key = what if " " in what else f"{what} {end.epoch}"
        return key.encode(), self.seal.seal(self._context(key, end.epoch), end.token.encode())

    def _context(self, key: str, epoch: int) -> SealContext:
        return end_context(self.link.sender, self.link.reader, f"{self.role} {key}", epoch)

    def add(self, key: bytes, value: bytes) -> None:
        """Take note of the next record."""
        found = _END_KEY.fullmatch(key.decode("ascii", "replace"))
        if found is None:
            return
        kind, epoch, number = found.group(1), int(found.group(2)), int(found.group(3) or 0)
        try:
            if kind == _SAYS:
                self._say(unpack_end(value, self.link, self.role, epoch, self.seal))
            else:
                token = self.seal.open(self._context(found.group(), epoch), value).decode("utf-8", "replace")
                if self.claims and (self.claims[-1].epoch, self.claims[-1].token) == (epoch, token):
                    self._withdraw_or_reject(kind, number)
            self.refused = ""
        except Refused as refused:
            self.refused = str(refused)
        except ValueError:
            self.refused = "it is damaged"

    def _say(self, end: LinkEnd) -> None:
        newest = self.newest
        if newest is None or end.epoch > newest.epoch:
            self.claims.append(end)
        elif self.is_held_by(end):
            self.claims[-1] = end
        if self.newest is not None:
            self.rejected = {one: times for one, times in self.rejected.items() if one > self.newest.number}

    def _withdraw_or_reject(self, kind: str, number: int) -> None:
        if kind == _WITHDRAWS:
            self.claims.pop()
        elif number:
            self.rejected[number] = self.rejected.get(number, 0) + 1


@dataclass(frozen=True, slots=True)
class ParcelPart:
    """One record of a parcel; a part of parcel 0 only says that the sender has a newer epoch."""

    number: int
    attempt: int  # 1, or more for a parcel that was asked for again
    part: int
    parts: int
    epoch: int
    token: str

    @property
    def key(self) -> bytes:
        """How the record is named."""
        return f"{self.number} {self.attempt} {self.part} {self.parts} {self.epoch} {self.token}".encode()

    @property
    def parcel(self) -> tuple[int, int, int, int, str]:
        """Which copy of which parcel it is of."""
        return self.number, self.attempt, self.parts, self.epoch, self.token


def read_part(key: bytes) -> ParcelPart | None:
    """The part that a record is, if its name is one."""
    found = _PART_KEY.fullmatch(key.decode("ascii", "replace"))
    if found is None:
        return None
    number, attempt, part, parts, epoch = map(int, found.groups()[:5])
    fits = attempt >= 1 and 1 <= part <= parts <= MAX_PARTS
    return ParcelPart(number, attempt, part, parts, epoch, found.group(6)) if fits else None


def parts_of(number: int, attempt: int, end: LinkEnd, data: bytes) -> list[tuple[bytes, bytes]]:
    """The records of a parcel."""
    count = max(1, -(-len(data) // PART_BYTES))
    return [
        (
            ParcelPart(number, attempt, one + 1, count, end.epoch, end.token).key,
            data[one * PART_BYTES : (one + 1) * PART_BYTES],
        )
        for one in range(count)
    ]


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a parcel is in the log."""

    copy: tuple[int, int, int, int, str]
    first: int  # offset of its first record
    last: int


@dataclass
class ParcelLog:
    """The parcels of a link by its records, as a reader sees them: where each is, and some of them."""

    places: dict[int, LogPlace] = field(default_factory=dict)
    cached: dict[int, bytes] = field(default_factory=dict)
    cached_bytes: int = 0
    epoch: int = 0  # the newest; records of older ones that follow are of a process that does not hold the link
    _copy: tuple[int, int, int, int, str] | None = None  # what is being put together
    _first: int = 0
    _parts: list[bytes] = field(default_factory=list)

    def add(self, key: bytes, value: bytes, offset: int, rejected: dict[int, int]) -> None:
        """Take note of the next record."""
        part = read_part(key)
        if part is None or part.epoch < self.epoch:
            return
        self.epoch = part.epoch
        if part.part == 1:
            self._copy, self._first, self._parts = part.parcel, offset, []
        if part.parcel != self._copy or part.part != len(self._parts) + 1:
            return
        self._parts.append(value)
        if part.part == part.parts:
            data, self._copy, self._parts = b"".join(self._parts), None, []
            wanted = part.number and part.number not in self.places and part.attempt > rejected.get(part.number, 0)
            if wanted:
                self.places[part.number] = LogPlace(part.parcel, self._first, offset)
                if self.cached_bytes + len(data) <= MAX_CACHED_BYTES or not self.cached:
                    self.cached[part.number] = data
                    self.cached_bytes += len(data)

    def drop(self, number: int) -> None:
        """Forget a parcel: it was damaged, or is acknowledged."""
        self.places.pop(number, None)
        self.cached_bytes -= len(self.cached.pop(number, b""))

    def drop_acknowledged(self, number: int) -> None:
        """Forget all parcels up to a number."""
        for one in [place for place in self.places if place <= number]:
            self.drop(one)
