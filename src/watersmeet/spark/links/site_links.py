"""The links of one site: what it takes from others, what it publishes, and whether the others are who they were.

A link that cannot be read or written is said once; it goes on when it can be used again.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from watersmeet.errors import DamagedParcel
from watersmeet.metrics.bus import Warnings
from watersmeet.program.site.ledger import Outgoing, SiteLedger
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.storage.wire import ParcelIndex, index_parcel
from watersmeet.spark.files import FileShelf
from watersmeet.spark.links.protocol import (
    LinkDirection,
    LinkEnd,
    Links,
    LinkUnreadable,
    LinkUnwritable,
    Role,
    Sealed,
    check_programs,
    check_reader,
    check_sender,
    open_links,
)
from watersmeet.spark.links.seal import Refused, parcel_context

MAX_BYTES_PER_STEP = 16_000_000  # of parcels taken in one micro-batch, about
MAX_DAMAGED = 3  # times that a parcel is asked for again because it came damaged


Acknowledged: TypeAlias = Callable[[str, str, int, float], object]  # sender, reader, bytes, seconds since published


@dataclass
class SiteLinks:
    """Both directions of all links of a site, over some transport."""

    transport: Links
    program: SiteProgram
    shelf: FileShelf
    end: LinkEnd  # what this process says of itself
    warnings: Warnings
    peers: tuple[str, ...] = ()  # all other sites: those without flows agree on plans all the same
    acknowledged: Acknowledged | None = None  # called for what readers have made durable
    latency_s: dict[str, float] = field(default_factory=dict)  # by reader: until the last parcel was durable there
    catches_up: bool = False  # whether all that is published now is taken now: the run ends when nothing is left
    refused: Callable[[str, int], object] = lambda sender, count: None  # called when a seal does not open
    _rejected: dict[str, int] = field(default_factory=dict)  # the last parcel of each site that came damaged
    _troubled: dict[str, str] = field(default_factory=dict)  # what could not be done the last time, by links
    _refused: dict[str, int] = field(default_factory=dict)  # parcels of each site whose seals did not open
    _published: dict[str, dict[int, tuple[int, float | None]]] = field(
        default_factory=dict
    )  # by reader: bytes and when

    @property
    def site(self) -> str:
        return self.program.site

    def open(self, ledger: SiteLedger, commit: Callable[[SiteLedger], None]) -> None:
        """Claim our ends; a process that did so before is fenced."""
        self.end = open_links(self.transport, self.site, self.peers, self.peers, self.end, ledger, commit)

    def check_peers(self, ledger: SiteLedger) -> None:
        """Whether the sites at the other ends are those that were there before, whatever there is to be read."""
        for sender in self.peers:
            self._sender(sender, ledger)
        self.readers(ledger)

    def wake(self, timeout_s: float) -> None:
        """Wait for something to come, for so long at most."""
        self.transport.wake(timeout_s)

    # -- from others

    def have_parcels(self, ledger: SiteLedger) -> bool:
        """Whether there is something to be taken."""
        return any(self._has_arrived(sender, ledger.received.get(sender, 0)) for sender in self.peers)

    def _has_arrived(self, sender: str, after: int) -> bool:
        with self._using(f"arrivals from {sender}", f"reading {sender}"):
            return self.transport.has_arrived(sender, after)
        return False

    def parcels(self, ledger: SiteLedger) -> tuple[list[tuple[str, str, ParcelIndex]], dict[str, str]]:
        """What has come and is taken now, from every sender in turn, and whose runs it is of."""
        found = self._taken(ledger)
        if not found[0] and self.catches_up and self.peers:  # only then it matters whether something is on its way
            with self._using("all arrivals", "reading all sites"):
                self.transport.catch_up()
            found = self._taken(ledger)
        return found

    def _taken(self, ledger: SiteLedger) -> tuple[list[tuple[str, str, ParcelIndex]], dict[str, str]]:
        """What is there of parcels, as far as one step takes them."""
        runs: dict[str, str] = {}
        waiting = [self._arrived(sender, ledger, runs) for sender in self.peers]
        parcels, size = [], 0
        while waiting and size <= MAX_BYTES_PER_STEP:
            for from_one_site in list(waiting):
                parcel = next(from_one_site, None)
                if parcel is None:
                    waiting.remove(from_one_site)
                else:
                    sender, data, index = parcel
                    parcels.append((sender, self.shelf.put_bytes("parcel", data), index))
                    size += len(data)
        return parcels, runs

    def _arrived(
        self, sender: str, ledger: SiteLedger, runs: dict[str, str]
    ) -> Iterator[tuple[str, bytes, ParcelIndex]]:
        """Parcels from a site up to the first that is damaged; none while its link cannot be read."""
        end = self._sender(sender, ledger)
        if end is None:
            return
        with self._using(f"arrivals from {sender}", f"reading {sender}"):
            for number, data in self.transport.arrived(sender, ledger.received.get(sender, 0)):
                try:
                    data = self.transport.seal.open(parcel_context(sender, self.site, number, end.epoch), data)
                    index = index_parcel(data)
                    if index.number != number:
                        raise ValueError(f"it has number {index.number}")
                except Refused as refused:
                    self._refused[sender] = self._refused.get(sender, 0) + 1
                    self.refused(sender, self._refused[sender])
                    self._reject(sender, number, f"refused: {refused}")
                    return
                except ValueError as error:
                    self._reject(sender, number, str(error))
                    return
                runs[sender] = end.run
                yield sender, data, index

    def _reject(self, sender: str, number: int, cause: str) -> None:
        """Have a damaged parcel published anew, a few times."""
        what = f"{LinkDirection(sender, self.site)}: parcel {number} is damaged ({cause})"
        with self._using(f"statements to {sender}", f"from {sender}"):
            times = self.transport.reject(sender, number)
            if times > MAX_DAMAGED:
                raise DamagedParcel(
                    f"{what}, and was so {times - 1} times before; check the disks of the links and of {sender}'s "
                    "checkpoint, then start again"
                )
            self._rejected[sender] = number
            text = f"{what}; it is put aside, and {sender} publishes it anew"
            self.warnings.say(f"damaged {sender} {number} {times}", text)

    def awaits_parcels(self, ledger: SiteLedger) -> bool:
        """Whether a parcel that came damaged is still to come anew, or a link is out of reach, whatever is on it."""
        is_damaged = any(number > ledger.received.get(sender, 0) for sender, number in self._rejected.items())
        return is_damaged or bool(self._troubled)

    def acknowledge(self, ledger: SiteLedger, pace: int) -> None:
        """Tell senders what is durable here, and how far other streams have come."""
        for sender in self.peers:
            with self._using(f"statements to {sender}", f"from {sender}"):
                self.transport.acknowledge(sender, ledger.received.get(sender, 0), pace)

    # -- to others

    def publish(self, ledger: SiteLedger) -> None:
        """Put what is in the outbox where its readers find it."""
        for reader, link in ledger.links.items():
            parcels = [self._sealed(reader, parcel) for parcel in link.outbox]
            with self._using(f"parcels to {reader}", f"to {reader}"):
                self.transport.publish(reader, parcels)
                published = self._published.setdefault(reader, {})
                for parcel in link.outbox:
                    published.setdefault(parcel.number, (parcel.bytes, time.monotonic()))
                self.transport.forget_acknowledged(reader)

    def _sealed(self, reader: str, parcel: Outgoing) -> Sealed:
        context = parcel_context(self.site, reader, parcel.number, self.end.epoch)
        return Sealed(parcel.number, self.shelf.local(parcel.path), partial(self.transport.seal.seal, context))

    def backlog(self, ledger: SiteLedger) -> dict[str, int]:
        """How many bytes each reader has not taken yet."""
        taken = {reader: end.number for reader, end in self.readers(ledger).items()}
        return {
            reader: sum(outgoing.bytes for outgoing in link.outbox if outgoing.number > taken.get(reader, 0))
            for reader, link in ledger.links.items()
        }

    def silent_s(self) -> dict[str, float]:
        """By reader: for how long it has not taken something that was published for it."""
        now = time.monotonic()
        since = {
            reader: [when for _, when in list(parcels.values()) if when is not None]
            for reader, parcels in list(self._published.items())
        }
        return {reader: now - min(times) for reader, times in since.items() if times}

    def waiting_bytes(self, ledger: SiteLedger) -> int:
        """How much readers have not taken yet."""
        return sum(self.backlog(ledger).values())

    def forget_acknowledged(self) -> None:
        """Remove what readers no longer need."""
        for reader in self.peers:
            self.transport.forget_acknowledged(reader)

    def close(self) -> None:
        """Remove what readers no longer need, and end connections."""
        self.forget_acknowledged()
        self.transport.close()

    # -- who is there

    def readers(self, ledger: SiteLedger) -> dict[str, LinkEnd]:
        """What sites that read from us say of themselves, as far as they are there and may be believed."""
        found = {}
        for reader in self.peers:
            link = LinkDirection(self.site, reader)
            with self._using(f"reader {reader}", f"reading {reader}"):
                end = self.transport.end(link, Role.READER)
                if end is not None:
                    check_reader(link, end, ledger)
                    check_programs(link, Role.READER, end, self.end)
                    found[reader] = end
                    self._time(reader, end.number)
        return found

    def _time(self, reader: str, durable: int) -> None:
        """Tell how long it took until parcels were durable at a reader."""
        published = self._published.get(reader, {})
        for number in [one for one in list(published) if one <= durable]:
            size, since = published.pop(number, (0, None))
            if since is None:  # another thread was faster
                continue
            self.latency_s[reader] = time.monotonic() - since
            if self.acknowledged is not None:
                self.acknowledged(self.site, reader, size, self.latency_s[reader])

    def _sender(self, sender: str, ledger: SiteLedger) -> LinkEnd | None:
        """What a site that writes to us says of itself, if it may be read from."""
        link = LinkDirection(sender, self.site)
        with self._using(f"sender {sender}", f"reading {sender}"):
            end = self.transport.end(link, Role.SENDER)
            if end is not None:
                check_sender(link, end, ledger)
                check_programs(link, Role.SENDER, end, self.end)
            return end
        return None

    @contextlib.contextmanager
    def _using(self, what: str, about: str) -> Iterator[None]:
        """Go on without a link that is out of reach, and say so once."""
        try:
            yield
        except (LinkUnreadable, LinkUnwritable) as error:
            self._troubled[what] = about
            self.warnings.say(about, str(error))
        else:
            self._troubled.pop(what, None)
            if about not in tuple(self._troubled.values()):
                self.warnings.forget(about)
