"""Links as directories that both ends can reach: a shared disk, or an object store that is mounted.

ROOT/READER/SENDER/000000000001.parcel   parcels in order, each put in place whole by a rename
                         sender                whose parcels these are: the identity of the sender's run
                         acknowledged          the last parcel that the reader has made durable, and the latest
                                               event time it knows of, by which a sender judges an idle stream

Only the sender writes and removes parcels; only the reader acknowledges. Nothing here is needed to recover: a sender
keeps in its checkpoint every parcel that is not acknowledged, and puts it here again if it is missing.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watersmeet.errors import CheckpointMismatch
from watersmeet.program.storage.wire import UNKNOWN, index_parcel
from watersmeet.spark.durable import FLUSHED, Disk
from watersmeet.spark.links.protocol import LinkDamaged, LinkUnreadable, LinkUnwritable, Sealed

_PARCEL = ".parcel"
_SENDER, _ACKNOWLEDGED = "sender", "acknowledged"


@dataclass(frozen=True)
class DirectoryLinks:
    """All links of one site."""

    root: Path
    site: str
    disk: Disk = FLUSHED

    def _link(self, sender: str, reader: str) -> Path:
        return self.root / reader / sender

    def open(self, senders: Iterable[str], readers: Iterable[str], run_id: str) -> None:
        """Make the directories of both directions, and put our name on those we write to."""
        for sender in senders:
            _make(self._link(sender, self.site), sender, self.site)
        for reader in readers:
            place = self._link(self.site, reader)
            _make(place, self.site, reader)
            before = _read(place / _SENDER)
            if before is not None and before != run_id:
                raise CheckpointMismatch(
                    f"link {self.site} -> {reader}: {place} holds parcels of another run; start with the checkpoint "
                    "they belong to, or remove the links directory and the checkpoints of all sites to begin anew"
                )
            if before is None:
                with _writing(place, self.site, reader):
                    _replace(place / _SENDER, run_id, self.disk)

    def sender_of(self, sender: str) -> str | None:
        """The identity of the run that writes to us from a site; None before it has started."""
        place = self._link(sender, self.site)
        with _reading(place, sender, self.site), contextlib.suppress(FileNotFoundError):
            return (place / _SENDER).read_text(encoding="utf-8")
        return None

    def has_arrived(self, sender: str, after: int) -> bool:
        """Whether the parcel after a number is there."""
        place = self._link(sender, self.site)
        with _reading(place, sender, self.site), contextlib.suppress(FileNotFoundError):
            os.stat(place / _name(after + 1))
            return True
        return False

    def arrived(self, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Parcels from a site beyond a number, as far as none is missing: number and bytes."""
        place = self._link(sender, self.site)
        while self.has_arrived(sender, after):
            after += 1
            data = None
            with _reading(place, sender, self.site), contextlib.suppress(FileNotFoundError):
                data = (place / _name(after)).read_bytes()
            if data is None:  # gone since it was seen: it is found again when the directory is back
                return
            try:
                index_parcel(data)
            except ValueError as error:
                raise LinkDamaged(
                    f"link {sender} -> {self.site}: {place / _name(after)} is damaged ({error}); remove the file, and "
                    f"{sender} sends it again"
                ) from None
            yield after, data

    def wake(self, timeout_s: float) -> None:
        """Return after a while: a directory is looked at, it does not call."""
        time.sleep(timeout_s)

    def publish(self, reader: str, parcels: Iterable[Sealed]) -> None:
        """Put parcels where their reader finds them, in order; those that are there already stay as they are."""
        place = self._link(self.site, reader)
        known = self.acknowledged(reader)
        with _writing(place, self.site, reader):
            for parcel in parcels:
                target = place / _name(parcel.number)
                if parcel.number > known and not target.exists():
                    aside = place / f".{uuid.uuid4().hex[:12]}{_PARCEL}"
                    _copy(parcel.path, aside)
                    os.replace(aside, target)

    def acknowledge(self, sender: str, number: int, pace: int) -> None:
        """Tell a sender that its parcels up to a number are durable here, and how far other streams have come."""
        place = self._link(sender, self.site)
        if self._known(place) != (number, pace):
            with _writing(place, sender, self.site):
                _replace(place / _ACKNOWLEDGED, f"{number} {pace}", self.disk)

    def acknowledged(self, reader: str) -> int:
        """The last of our parcels that a reader has made durable."""
        return self._known(self._link(self.site, reader))[0]

    def pace(self, reader: str) -> int:
        """The latest event time that a reader knows of."""
        return self._known(self._link(self.site, reader))[1]

    def _known(self, place: Path) -> tuple[int, int]:
        words = (_read(place / _ACKNOWLEDGED) or "").split()
        return (int(words[0]), int(words[1])) if len(words) == 2 else (0, UNKNOWN)

    def forget_acknowledged(self, reader: str) -> None:
        """Remove the parcels that their reader no longer needs."""
        place, known = self._link(self.site, reader), self.acknowledged(reader)
        with contextlib.suppress(OSError):
            for path in place.iterdir():
                number = path.name.removesuffix(_PARCEL)
                is_aside = path.name.startswith(".") and path.suffix == _PARCEL  # other hidden files are the reader's
                if is_aside or (number.isdigit() and int(number) <= known):
                    path.unlink(missing_ok=True)


def _name(number: int) -> str:
    return f"{number:012d}{_PARCEL}"


def _make(place: Path, sender: str, reader: str) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LinkUnwritable(
            f"link {sender} -> {reader} cannot be made: {error.strerror or error} ({place}); "
            "make the directory writable, or give link_transport another path"
        ) from None


@contextlib.contextmanager
def _writing(place: Path, sender: str, reader: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LinkUnwritable(
            f"link {sender} -> {reader} cannot be written: {error.strerror or error} ({place}); "
            "nothing is lost: it goes on when the directory can be written again"
        ) from None


@contextlib.contextmanager
def _reading(place: Path, sender: str, reader: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(error.strerror or str(error), place, sender, reader) from None


def _unreadable(cause: str, place: Path, sender: str, reader: str) -> LinkUnreadable:
    return LinkUnreadable(
        f"link {sender} -> {reader} cannot be read: {cause} ({place}); "
        "nothing is lost: it goes on when the directory can be read again"
    )


def _copy(source: str, target: Path) -> None:
    try:
        os.link(source, target)  # nothing to copy where both lie on one disk: parcels never change
    except OSError:
        with open(source, "rb") as ours, open(target, "wb") as theirs:
            while piece := ours.read(1 << 20):
                theirs.write(piece)
            theirs.flush()
            os.fsync(theirs.fileno())


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _replace(path: Path, text: str, disk: Disk) -> None:
    fresh = path.with_name(f".{path.name}")  # there is one writer of each
    fresh.write_text(text, encoding="utf-8")
    disk.flush([fresh])  # its name need not survive: both ends put it there again
    os.replace(fresh, path)
