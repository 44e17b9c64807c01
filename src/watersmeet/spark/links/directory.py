"""Links as directories that both ends can reach: a shared disk, or an object store that is mounted.

ROOT/READER/SENDER/000000000001.parcel      parcels in order, each put in place whole by a rename
                   000000000001.damaged-1   one that the reader has put aside, so that it is published anew
                   sender-000000000003      what the sender says of itself since its third start
                   reader-000000000002      the same of the reader, with the last parcel that it has made durable

Only the sender writes and removes parcels; only the process that has an epoch writes its file, which is created
exclusively: of two processes with the same epoch one is refused. The newest epoch counts, and whoever reads a file
looks for a newer one after that. The file system must therefore create exclusively (O_EXCL or hard links), rename
atomically, and show both to everyone at once: on NFS, mount with `lookupcache=none` and `noac`.

Nothing here is needed to recover: a sender keeps in its checkpoint every parcel that is not acknowledged, and puts it
here again if it is missing.
"""

import contextlib
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from watersmeet.spark.durable import FLUSHED, Disk
from watersmeet.spark.links.ends import pack_end, unpack_end
from watersmeet.spark.links.protocol import LinkDirection, LinkEnd, LinkUnreadable, LinkUnwritable, Role, Sealed, fenced
from watersmeet.spark.links.seal import OPEN, Refused, Seal

_PARCEL, _DAMAGED = ".parcel", ".damaged-"
_MAX_END_BYTES = 4_096
_MAX_READS = 10  # of an end that is started again and again meanwhile


class DirectoryLinks:
    """All links of one site."""

    def __init__(self, root: Path, site: str, disk: Disk = FLUSHED, seal: Seal = OPEN) -> None:
        self.root, self.site, self.disk, self.seal = root, site, disk, seal
        self._ours: dict[tuple[LinkDirection, Role], LinkEnd] = {}

    def _place(self, link: LinkDirection) -> Path:
        return self.root / link.reader / link.sender

    # -- the ends

    def prepare(self, links: Iterable[LinkDirection]) -> None:
        """Make the directories."""
        for link in links:
            place = self._place(link)
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LinkUnwritable(
                    f"{link} cannot be made: {error.strerror or error} ({place}); "
                    "make the directory writable, or give link_transport another path"
                ) from None

    def end(self, link: LinkDirection, role: Role, below: int | None = None) -> LinkEnd | None:
        """What an end says of itself by its newest epoch, which is still the newest after it was read."""
        place = self._place(link)
        with _reading(place, link):
            for _ in range(_MAX_READS):
                epoch = _newest(place, role, below)
                if epoch is None:
                    return None
                path = _end_path(place, role, epoch)
                data = _read(path)
                if data is not None and _newest(place, role, below) == epoch:
                    break
            else:
                raise _unreadable(f"{path.name} comes and goes", place, link)
        try:
            return unpack_end(data, link, role, epoch, self.seal)
        except Refused as refused:
            raise _unreadable(f"{path.name} is refused, {refused}", place, link) from None
        except ValueError:
            cure = f"{path.name} is damaged; remove it, and {link.site(role)} writes it anew while it runs"
            raise _unreadable(cure, place, link) from None

    def claim(self, link: LinkDirection, role: Role, end: LinkEnd) -> None:
        """Create the file of our epoch, which nobody else can do then."""
        place = self._place(link)
        path, aside = _end_path(place, role, end.epoch), place / f".{role}-{uuid.uuid4().hex[:12]}"
        with _writing(place, link):
            newest = _newest(place, role)
            if newest is not None and newest >= end.epoch:
                raise fenced(link, role, newest, end)
            data = pack_end(end, link, role, self.seal)
            aside.write_bytes(data)
            self.disk.flush([aside])
            try:
                os.link(aside, path)
            except FileExistsError:
                raise fenced(link, role, end.epoch, end) from None
            except OSError:  # a file system without hard links
                try:
                    with open(path, "xb") as file:
                        file.write(data)
                except FileExistsError:
                    raise fenced(link, role, end.epoch, end) from None
            finally:
                aside.unlink()
        self._ours[link, role] = end

    def withdraw(self, link: LinkDirection, role: Role) -> None:
        """Remove the file of our epoch."""
        with contextlib.suppress(OSError):
            _end_path(self._place(link), role, self._ours.pop((link, role)).epoch).unlink()

    def settle(self, link: LinkDirection, role: Role) -> None:
        """Remove the files of epochs before ours, and what a killed process has left half written.

        Of a sender also what an older process of it has made that we know nothing of: parcels that it is about to
        publish first, so that it cannot any more, then those that it has published.
        """
        place, ours = self._place(link), self._ours[link, role]
        with contextlib.suppress(OSError):
            for path in place.glob(f".{role}-*"):
                path.unlink(missing_ok=True)
            for epoch in _epochs(place, role):
                if epoch < ours.epoch:
                    _end_path(place, role, epoch).unlink(missing_ok=True)
        if role is Role.SENDER:
            with _writing(place, link):
                for path in (*place.glob(f".*{_PARCEL}"), *place.glob(f"*{_PARCEL}")):
                    if path.name.startswith(".") or path.name > _name(ours.number):
                        path.unlink(missing_ok=True)

    def _hold(self, link: LinkDirection, role: Role, end: LinkEnd) -> None:
        """Say of our end what is so now, unless a newer process has taken over."""
        place = self._place(link)
        with _writing(place, link):
            newest = _newest(place, role)
            if newest is not None and newest > end.epoch:
                raise fenced(link, role, newest, end)
            path = _end_path(place, role, end.epoch)
            if self._is_said(path, link, role, end):
                return
            _replace(path, pack_end(end, link, role, self.seal), self.disk)
        self._ours[link, role] = end

    def _is_said(self, path: Path, link: LinkDirection, role: Role, end: LinkEnd) -> bool:
        """Whether a file says just that of our end."""
        data = _read(path)
        with contextlib.suppress(ValueError):
            return data is not None and unpack_end(data, link, role, end.epoch, self.seal) == end
        return False

    # -- parcels

    def catch_up(self) -> None:
        """Nothing: whoever looks at a directory sees all that is there."""

    def close(self) -> None:
        """Nothing: no connection is held."""

    def has_arrived(self, sender: str, after: int) -> bool:
        """Whether the parcel after a number is there."""
        link = LinkDirection(sender, self.site)
        place = self._place(link)
        with _reading(place, link), contextlib.suppress(FileNotFoundError):
            os.stat(place / _name(after + 1))
            return True
        return False

    def arrived(self, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Parcels from a site beyond a number, as far as none is missing: number and bytes."""
        link = LinkDirection(sender, self.site)
        place = self._place(link)
        while self.has_arrived(sender, after):
            after += 1
            data = None
            with _reading(place, link), contextlib.suppress(FileNotFoundError):
                data = (place / _name(after)).read_bytes()
            if data is None:  # gone since it was seen: it is found again when the directory is back
                return
            yield after, data

    def reject(self, sender: str, number: int) -> int:
        """Put a damaged parcel aside; how often that was done with this one."""
        link = LinkDirection(sender, self.site)
        place = self._place(link)
        with _writing(place, link):
            times = 1 + sum(1 for _ in place.glob(f"{number:012d}{_DAMAGED}*"))
            os.replace(place / _name(number), place / f"{number:012d}{_DAMAGED}{times}")
        return times

    def wake(self, timeout_s: float) -> None:
        """Return after a while: a directory is looked at, it does not call."""
        time.sleep(timeout_s)

    def publish(self, reader: str, parcels: Iterable[Sealed]) -> None:
        """Put copies of parcels where their reader finds them, in order; those that are there stay as they are.

        Copies, since a hard link to a file that is damaged is damaged too.
        """
        link = LinkDirection(self.site, reader)
        place = self._place(link)
        self._hold(link, Role.SENDER, self._ours[link, Role.SENDER])
        acknowledged = self._acknowledged(link)
        for parcel in parcels:
            target = place / _name(parcel.number)
            if parcel.number > acknowledged and not target.exists():
                data = parcel.read(link)
                with _writing(place, link):
                    aside = place / f".{uuid.uuid4().hex[:12]}{_PARCEL}"
                    aside.write_bytes(data)
                    self._hold(link, Role.SENDER, self._ours[link, Role.SENDER])  # whoever is newer removes it
                    os.replace(aside, target)

    def acknowledge(self, sender: str, number: int, pace: int) -> None:
        """Tell a sender that its parcels up to a number are durable here, and how far other streams have come."""
        link = LinkDirection(sender, self.site)
        self._hold(link, Role.READER, replace(self._ours[link, Role.READER], number=number, pace=pace))

    def forget_acknowledged(self, reader: str) -> None:
        """Remove the parcels that their reader no longer needs, and those that it has put aside."""
        link = LinkDirection(self.site, reader)
        with contextlib.suppress(OSError, LinkUnreadable):
            acknowledged = self._acknowledged(link)
            for path in self._place(link).iterdir():
                number = re.match(r"\d+(?=\.parcel$|\.damaged-)", path.name)
                is_aside = path.name.startswith(".") and path.suffix == _PARCEL  # other hidden files are the reader's
                if is_aside or (number is not None and int(number.group()) <= acknowledged):
                    path.unlink(missing_ok=True)

    def _acknowledged(self, link: LinkDirection) -> int:
        end = self.end(link, Role.READER)
        return 0 if end is None else end.number


def _name(number: int) -> str:
    return f"{number:012d}{_PARCEL}"


def _end_path(place: Path, role: Role, epoch: int) -> Path:
    return place / f"{role}-{epoch:012d}"


def _epochs(place: Path, role: Role) -> list[int]:
    """The epochs of an end whose files are there."""
    found = (re.fullmatch(rf"{role}-(\d{{12}})", name) for name in os.listdir(place))
    return sorted(int(match.group(1)) for match in found if match is not None)


def _newest(place: Path, role: Role, below: int | None = None) -> int | None:
    try:
        return max((epoch for epoch in _epochs(place, role) if below is None or epoch < below), default=None)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _writing(place: Path, link: LinkDirection) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LinkUnwritable(
            f"{link} cannot be written: {error.strerror or error} ({place}); "
            "nothing is lost: it goes on when the directory can be written again"
        ) from None


@contextlib.contextmanager
def _reading(place: Path, link: LinkDirection) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(error.strerror or str(error), place, link) from None


def _unreadable(cause: str, place: Path, link: LinkDirection) -> LinkUnreadable:
    return LinkUnreadable(
        f"{link} cannot be read: {cause} ({place}); nothing is lost: it goes on when the directory can be read again"
    )


def _read(path: Path) -> bytes | None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read(_MAX_END_BYTES)
    return None


def _replace(path: Path, data: bytes, disk: Disk) -> None:
    fresh = path.with_name(f".{path.name}")  # there is one writer of each
    fresh.unlink(missing_ok=True)  # what a power cut has left may be the same file under both names
    fresh.write_bytes(data)
    disk.flush([fresh])  # its name need not survive: its writer puts it there again
    os.replace(fresh, path)
