"""Links as objects of a store that both ends can reach, under the names that `directory` gives to files.

READER/SENDER/000000000001.parcel, .damaged-1, sender-000000000003, reader-000000000002: see there. What a file system
does by exclusive creation and renames is done by conditional writes: an epoch is created where there is none, and what
an end says is written over what it has said before.
"""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from watersmeet.spark.links.ends import pack_end, unpack_end
from watersmeet.spark.links.protocol import (
    Fenced,
    LinkDirection,
    LinkEnd,
    LinkUnreadable,
    LinkUnwritable,
    Role,
    Sealed,
    fenced,
)
from watersmeet.spark.links.seal import OPEN, Refused, Seal
from watersmeet.spark.store.protocol import Conflict, ObjectData, Store, StoreFailed, Version, check_conditions

_PARCEL, _DAMAGED = ".parcel", ".damaged-"
_MAX_READS = 10  # of an end that is started again and again meanwhile
_SHORTEST_POLL_S = 0.25  # each look is a request that is paid for


class StoreLinks:
    """All links of one site."""

    def __init__(self, store: Store, site: str, seal: Seal = OPEN) -> None:
        self.store, self.site, self.seal = store, site, seal
        self._ours: dict[tuple[LinkDirection, Role], tuple[LinkEnd, Version]] = {}

    def _place(self, link: LinkDirection) -> Store:
        return self.store.below(f"{link.reader}/{link.sender}")

    # -- the ends

    def prepare(self, links: Iterable[LinkDirection]) -> None:
        """Refuse a store in which an epoch could be claimed twice."""
        for link in list(links)[:1]:
            with _writing(link):
                check_conditions(self.store)

    def end(self, link: LinkDirection, role: Role, below: int | None = None) -> LinkEnd | None:
        """What an end says of itself by its newest epoch, which is still the newest after it was read."""
        place, stored, key = self._place(link), None, ""
        with _reading(link):
            for _ in range(_MAX_READS):
                epoch = _newest(place, role, below)
                if epoch is None:
                    return None
                key = _end_key(role, epoch)
                stored = place.get(key)
                if stored is not None and _newest(place, role, below) == epoch:
                    break
            else:
                raise _unreadable(f"{key} comes and goes", link)
        try:
            return unpack_end(stored.data, link, role, epoch, self.seal)
        except Refused as refused:
            raise _unreadable(f"{key} is refused, {refused}", link) from None
        except ValueError:
            cure = f"{place.url}/{key} is damaged; remove it, and {link.site(role)} writes it anew while it runs"
            raise _unreadable(cure, link) from None

    def claim(self, link: LinkDirection, role: Role, end: LinkEnd) -> None:
        """Create the object of our epoch, which nobody else can do then."""
        place = self._place(link)
        with _writing(link):
            newest = _newest(place, role)
            if newest is not None and newest >= end.epoch:
                raise fenced(link, role, newest, end)
            try:
                version = place.create(_end_key(role, end.epoch), pack_end(end, link, role, self.seal))
            except Conflict:
                raise fenced(link, role, end.epoch, end) from None
        self._ours[link, role] = end, version

    def withdraw(self, link: LinkDirection, role: Role) -> None:
        """Remove the object of our epoch."""
        with contextlib.suppress(StoreFailed):
            self._place(link).delete([_end_key(role, self._ours.pop((link, role))[0].epoch)])

    def settle(self, link: LinkDirection, role: Role) -> None:
        """Remove the objects of epochs before ours, and parcels of an older process that we know nothing of."""
        place, (ours, _) = self._place(link), self._ours[link, role]
        with contextlib.suppress(StoreFailed):
            place.delete(_end_key(role, epoch) for epoch in _epochs(place, role) if epoch < ours.epoch)
        if role is Role.SENDER:
            with _writing(link):
                place.delete(key for key in place.sizes() if key.endswith(_PARCEL) and key > _name(ours.number))

    def _hold(self, link: LinkDirection, role: Role, end: LinkEnd) -> None:
        """Say of our end what is so now, unless a newer process has taken over."""
        place, key = self._place(link), _end_key(role, end.epoch)
        said, version = self._ours[link, role]
        with _writing(link):
            epochs = _epochs(place, role)
            if epochs and epochs[-1] > end.epoch:
                raise fenced(link, role, epochs[-1], end)
            if said == end and end.epoch in epochs:
                return
            data = pack_end(end, link, role, self.seal)
            try:
                version = place.replace(key, data, version) if end.epoch in epochs else place.create(key, data)
            except Conflict:  # nobody else writes it: it was removed or damaged
                there = place.get(key)
                version = place.create(key, data) if there is None else place.replace(key, data, there.version)
        self._ours[link, role] = end, version

    # -- parcels

    def catch_up(self) -> None:
        """Nothing: whoever looks at a store sees all that is there."""

    def close(self) -> None:
        """Nothing: no connection is held."""

    def has_arrived(self, sender: str, after: int) -> bool:
        """Whether the parcel after a number is there."""
        link = LinkDirection(sender, self.site)
        with _reading(link):
            return self._place(link).has(_name(after + 1))

    def arrived(self, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Parcels from a site beyond a number, as far as none is missing: number and bytes."""
        link = LinkDirection(sender, self.site)
        while (stored := self._parcel(link, after + 1)) is not None:
            after += 1
            yield after, stored.data

    def _parcel(self, link: LinkDirection, number: int) -> ObjectData | None:
        with _reading(link):
            return self._place(link).get(_name(number))

    def reject(self, sender: str, number: int) -> int:
        """Put a damaged parcel aside; how often that was done with this one."""
        link = LinkDirection(sender, self.site)
        place, aside = self._place(link), f"{number:012d}{_DAMAGED}"
        with _writing(link):
            times = 1 + sum(1 for key in place.sizes() if key.startswith(aside))
            stored = place.get(_name(number))
            place.put(f"{aside}{times}", b"" if stored is None else stored.data)
            place.delete([_name(number)])
        return times

    def wake(self, timeout_s: float) -> None:
        """Return after a while: a store is looked at, it does not call."""
        time.sleep(max(timeout_s, _SHORTEST_POLL_S))

    def publish(self, reader: str, parcels: Iterable[Sealed]) -> None:
        """Put copies of parcels where their reader finds them, in order; those that are there stay as they are."""
        link = LinkDirection(self.site, reader)
        place = self._place(link)
        self._hold(link, Role.SENDER, self._ours[link, Role.SENDER][0])
        waiting = [parcel for parcel in parcels if parcel.number > self._acknowledged(link)]
        if not waiting:
            return
        with _reading(link):
            there = place.sizes()
        made = []
        for parcel in waiting:
            if _name(parcel.number) not in there:
                data = parcel.read(link)
                with _writing(link), contextlib.suppress(Conflict):  # one that is there stays
                    place.create(_name(parcel.number), data)
                    made.append(_name(parcel.number))
        if made:
            try:
                self._hold(link, Role.SENDER, self._ours[link, Role.SENDER][0])
            except Fenced:  # the newer one publishes its own anew
                place.delete(made)
                raise

    def acknowledge(self, sender: str, number: int, pace: int) -> None:
        """Tell a sender that its parcels up to a number are durable here, and how far other streams have come."""
        link = LinkDirection(sender, self.site)
        self._hold(link, Role.READER, replace(self._ours[link, Role.READER][0], number=number, pace=pace))

    def forget_acknowledged(self, reader: str) -> None:
        """Remove the parcels that their reader no longer needs, and those that it has put aside."""
        link = LinkDirection(self.site, reader)
        with contextlib.suppress(StoreFailed, LinkUnreadable):
            place, acknowledged = self._place(link), self._acknowledged(link)
            found = ((key, re.match(r"\d+(?=\.parcel$|\.damaged-)", key)) for key in place.sizes())
            place.delete(key for key, number in found if number is not None and int(number.group()) <= acknowledged)

    def _acknowledged(self, link: LinkDirection) -> int:
        end = self.end(link, Role.READER)
        return 0 if end is None else end.number


def _name(number: int) -> str:
    return f"{number:012d}{_PARCEL}"


def _end_key(role: Role, epoch: int) -> str:
    return f"{role}-{epoch:012d}"


def _epochs(place: Store, role: Role) -> list[int]:
    """The epochs of an end whose objects are there."""
    found = (re.fullmatch(rf"{role}-(\d{{12}})", key) for key in place.sizes())
    return sorted(int(match.group(1)) for match in found if match is not None)


def _newest(place: Store, role: Role, below: int | None = None) -> int | None:
    return max((epoch for epoch in _epochs(place, role) if below is None or epoch < below), default=None)


@contextlib.contextmanager
def _writing(link: LinkDirection) -> Iterator[None]:
    try:
        yield
    except StoreFailed as error:
        raise LinkUnwritable(
            f"{link} cannot be written: {error}; nothing is lost: it goes on when the store can be written again"
        ) from None


@contextlib.contextmanager
def _reading(link: LinkDirection) -> Iterator[None]:
    try:
        yield
    except StoreFailed as error:
        raise _unreadable(str(error), link) from None


def _unreadable(cause: str, link: LinkDirection) -> LinkUnreadable:
    return LinkUnreadable(
        f"{link} cannot be read: {cause}; nothing is lost: it goes on when the store can be read again"
    )
