"""Links as directories that both ends can reach: a shared disk, or an object store that is mounted.

ROOT/QUERY/READER/SENDER/000000000001.parcel   parcels in order, each put in place whole by a rename
                         sender                whose parcels these are: the identity of the sender's run
                         acknowledged          the last parcel that the reader has made durable, and the latest
                                               event time it knows of, by which a sender judges an idle stream

Only the sender writes and removes parcels; only the reader acknowledges. Nothing here is needed to recover: a sender
keeps in its checkpoint every parcel that is not acknowledged, and puts it here again if it is missing.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watersmeet.errors import CheckpointMismatch, RunError
from watersmeet.program.site.engine import Outgoing
from watersmeet.program.storage.wire import UNKNOWN, ParcelIndex, index_parcel

PARCEL = ".parcel"
_SENDER, _ACKNOWLEDGED = "sender", "acknowledged"
_BELL = "own-bell"  # beside the senders, and no name that a site can have


class LinkUnwritable(RunError):
    """A link's directory cannot be written; what should go there waits in the sender's checkpoint."""


class LinkUnreadable(RunError):
    """A link's directory cannot be read; what lies there waits."""


class LinkDamaged(RunError):
    """A parcel is not what was sent."""


@dataclass(frozen=True)
class DirectoryLinks:
    """All links of one site for one query."""

    root: Path  # of the query
    site: str

    def _way(self, sender: str, reader: str) -> Path:
        return self.root / reader / sender

    @property
    def inbox(self) -> Path:
        """The directory under which everything for this site arrives."""
        return self.root / self.site

    def open(self, senders: Iterable[str], readers: Iterable[str], run_id: str) -> None:
        """Make the directories of both directions, and put our name on those we write to."""
        for sender in (*senders, _BELL):
            _make(self._way(sender, self.site), sender, self.site)
        for reader in readers:
            way = self._way(self.site, reader)
            _make(way, self.site, reader)
            before = _read(way / _SENDER)
            if before is not None and before != run_id:
                raise CheckpointMismatch(
                    f"link {self.site} -> {reader}: {way} holds parcels of another run; start with the checkpoint they "
                    "belong to, or remove the links directory and the checkpoints of all sites to begin anew"
                )
            if before is None:
                with _writing(way, self.site, reader):
                    _replace(way / _SENDER, run_id)

    def sender_of(self, sender: str) -> str | None:
        """The identity of the run that writes to us from a site; None before it has started."""
        way = self._way(sender, self.site)
        with _reading(way, sender, self.site), contextlib.suppress(FileNotFoundError):
            return (way / _SENDER).read_text(encoding="utf-8")
        return None

    def has_arrived(self, sender: str, after: int) -> bool:
        """Whether the parcel after a number is there."""
        way = self._way(sender, self.site)
        with _reading(way, sender, self.site), contextlib.suppress(FileNotFoundError):
            os.stat(way / _name(after + 1))
            return True
        return False

    def arrived(self, sender: str, after: int) -> Iterator[tuple[str, str, ParcelIndex]]:
        """Parcels from a site beyond a number: sender, path and what is in them, as far as none is missing."""
        way = self._way(sender, self.site)
        while self.has_arrived(sender, after):
            after += 1
            path = way / _name(after)
            index = None
            with _reading(way, sender, self.site), contextlib.suppress(FileNotFoundError):
                index = _index(path, sender, self.site)
            if index is None:  # gone since it was seen: it is found again when the directory is back
                return
            yield sender, str(path), index

    def why_unreadable(self, error: Exception, sender: str, path: str) -> LinkUnreadable | None:
        """What is wrong with the link if an error, perhaps of another process, says that a parcel could not be read."""
        cause = re.search(rf"\[Errno (\d+)\] [^\n]*{re.escape(path)}", str(error))
        return cause and _unreadable(os.strerror(int(cause[1])), self._way(sender, self.site), sender, self.site)

    def publish(self, reader: str, outbox: Iterable[Outgoing]) -> None:
        """Put parcels where their reader finds them, in order; those that are there already stay as they are."""
        way = self._way(self.site, reader)
        known = self.acknowledged(reader)
        with _writing(way, self.site, reader):
            for parcel in outbox:
                target = way / _name(parcel.number)
                if parcel.number > known and not target.exists():
                    aside = way / f".{uuid.uuid4().hex[:12]}{PARCEL}"
                    _copy(parcel.path, aside)
                    os.replace(aside, target)

    def acknowledge(self, sender: str, number: int, pace: int) -> None:
        """Tell a sender that its parcels up to a number are durable here, and how far other streams have come."""
        way = self._way(sender, self.site)
        if self._known(way) != (number, pace):
            with _writing(way, sender, self.site):
                _replace(way / _ACKNOWLEDGED, f"{number} {pace}")

    def acknowledged(self, reader: str) -> int:
        """The last of our parcels that a reader has made durable."""
        return self._known(self._way(self.site, reader))[0]

    def pace(self, reader: str) -> int:
        """The latest event time that a reader knows of."""
        return self._known(self._way(self.site, reader))[1]

    def _known(self, way: Path) -> tuple[int, int]:
        words = (_read(way / _ACKNOWLEDGED) or "").split()
        return (int(words[0]), int(words[1])) if len(words) == 2 else (0, UNKNOWN)

    def forget_acknowledged(self, reader: str) -> None:
        """Remove the parcels that their reader no longer needs."""
        way, known = self._way(self.site, reader), self.acknowledged(reader)
        with contextlib.suppress(OSError):
            for path in way.iterdir():
                number = path.name.removesuffix(PARCEL)
                is_aside = path.name.startswith(".") and path.suffix == PARCEL  # other hidden files are the reader's
                if is_aside or (number.isdigit() and int(number) <= known):
                    path.unlink(missing_ok=True)

    def ring(self) -> None:
        """Wake this site's own Spark query, which runs only when something arrives."""
        self.hush()
        way = self._way(_BELL, self.site)
        with _writing(way, self.site, self.site):
            (way / f"{uuid.uuid4().hex[:12]}{PARCEL}").touch()

    def hush(self) -> None:
        """Let the bell not ring when the site starts again."""
        with contextlib.suppress(OSError):
            for path in self._way(_BELL, self.site).iterdir():
                path.unlink(missing_ok=True)


def _name(number: int) -> str:
    return f"{number:012d}{PARCEL}"


def _make(way: Path, sender: str, reader: str) -> None:
    try:
        way.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LinkUnwritable(
            f"link {sender} -> {reader} cannot be made: {error.strerror or error} ({way}); "
            "make the directory writable, or give link_transport another path"
        ) from None


@contextlib.contextmanager
def _writing(way: Path, sender: str, reader: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LinkUnwritable(
            f"link {sender} -> {reader} cannot be written: {error.strerror or error} ({way}); "
            "nothing is lost: it goes on when the directory can be written again"
        ) from None


@contextlib.contextmanager
def _reading(way: Path, sender: str, reader: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(error.strerror or str(error), way, sender, reader) from None


def _unreadable(cause: str, way: Path, sender: str, reader: str) -> LinkUnreadable:
    return LinkUnreadable(
        f"link {sender} -> {reader} cannot be read: {cause} ({way}); "
        "nothing is lost: it goes on when the directory can be read again"
    )


def _index(path: Path, sender: str, reader: str) -> ParcelIndex:
    try:
        return index_parcel(path.read_bytes())
    except ValueError as error:
        raise LinkDamaged(
            f"link {sender} -> {reader}: {path} is damaged ({error}); remove the file, and {sender} sends it again"
        ) from None


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


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}")  # there is one writer of each
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
