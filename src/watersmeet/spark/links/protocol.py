"""What a site needs of a transport between sites: `directory` is one, `kafka` another.

Nothing in a transport is needed to recover: a sender keeps every parcel in its checkpoint until its reader has
acknowledged it, and publishes it again if it is missing.

Both ends of a link say there who they are: the run (a checkpoint's identity), an epoch that grows with each start of
the site on its checkpoint, and which parcels they have. A transport keeps the newest such statement of each end, gives
an epoch to one process only, and lets nobody else change what that process has said. By these, and by the checksum of
the parcel before that each parcel carries, older copies of a checkpoint, lost ones, and the older of two processes of
one site are found out; the functions below say how.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from watersmeet.errors import CheckpointMismatch, DamagedParcel, RunError
from watersmeet.program.site.ledger import LinkState, PeerStart, SiteLedger
from watersmeet.program.storage.wire import UNKNOWN, index_parcel
from watersmeet.spark.links.seal import Seal

_BEGIN_ANEW = "remove the links and the checkpoints of all sites to begin anew"
_RESTORE = f"restore the checkpoints of all sites from copies of one moment and remove the links, or {_BEGIN_ANEW}"


class LinkUnwritable(RunError):
    """A link cannot be written; what should go there waits in the sender's checkpoint."""


class LinkUnreadable(RunError):
    """A link cannot be read; what is there waits."""


class Fenced(RunError):
    """Another process has been started for the same site, with a newer epoch."""


class Role(StrEnum):
    """Which end of a link."""

    SENDER = "sender"
    READER = "reader"

    @property
    def other(self) -> "Role":
        """The other end."""
        return Role.READER if self is Role.SENDER else Role.SENDER


class LinkDirection(NamedTuple):
    """One direction between two sites."""

    sender: str
    reader: str

    def __str__(self) -> str:
        return f"link {self.sender} -> {self.reader}"

    def site(self, role: Role) -> str:
        return self.sender if role is Role.SENDER else self.reader


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """What one end of a link says of itself."""

    run: str  # the identity of its checkpoint
    programs: str  # the digest of all sites' programs: sites that run different ones must not exchange rows
    epoch: int  # how often the site has been started on this checkpoint
    token: str  # of this start, since copies of a checkpoint have the same epochs
    number: int = 0  # of a sender, the last parcel it had made when it started; of a reader, the last that is durable
    released: int = 0  # of a sender, the last parcel that it did not keep any more when it started
    pace: int = UNKNOWN  # of a reader, the latest event time it knows of, by which a sender judges an idle stream


def _as_it_is(data: bytes) -> bytes:
    return data


@dataclass(frozen=True, slots=True)
class Sealed:
    """A parcel that is published: its number, the file of the sender's checkpoint that holds it, and how it travels."""

    number: int
    path: str
    wrap: Callable[[bytes], bytes] = _as_it_is  # where links have keys, it encrypts

    def read(self, link: LinkDirection) -> bytes:
        """The bytes that are published, if the parcel is as it was made."""
        try:
            with open(self.path, "rb") as file:
                data = file.read()
            if (number := index_parcel(data).number) != self.number:
                raise ValueError(f"it has number {number}")
        except (OSError, ValueError) as error:
            cause = error.strerror if isinstance(error, OSError) else error
            raise DamagedParcel(
                f"{link}: parcel {self.number} is damaged in the checkpoint of {link.sender} ({self.path}: {cause}); "
                f"restore the checkpoints of all sites from copies of one moment and remove the links"
            ) from None
        return self.wrap(data)


class Links(Protocol):
    """All links of one site, in both directions."""

    seal: Seal  # of what is said there of the ends, and of parcels, which come and go as they travel

    def prepare(self, links: Iterable[LinkDirection]) -> None:
        """Make links ready to be used."""

    def end(self, link: LinkDirection, role: Role, below: int | None = None) -> LinkEnd | None:
        """What an end of a link says of itself, by its newest epoch, or the newest below one; None if there is none."""

    def claim(self, link: LinkDirection, role: Role, end: LinkEnd) -> None:
        """Put our own end on a link; `Fenced` if any process has that epoch or a newer one there."""

    def withdraw(self, link: LinkDirection, role: Role) -> None:
        """Take back our claim: the one before it holds again."""

    def settle(self, link: LinkDirection, role: Role) -> None:
        """Forget the claims before ours."""

    def publish(self, reader: str, parcels: Iterable[Sealed]) -> None:
        """Let a reader have parcels, in order; those that it can have already stay as they are.

        Each is checked before; `Fenced` if our end is not the newest.
        """

    def has_arrived(self, sender: str, after: int) -> bool:
        """Whether the parcel after a number can be read."""

    def arrived(self, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Parcels from a site beyond a number, as far as none is missing: number and bytes, which may be damaged."""

    def reject(self, sender: str, number: int) -> int:
        """Put a damaged parcel aside, so that its sender publishes it anew; how often that was done with this one."""

    def acknowledge(self, sender: str, number: int, pace: int) -> None:
        """Tell a sender that its parcels up to a number are durable here, and how far other streams have come.

        `Fenced` if our end is not the newest.
        """

    def wake(self, timeout_s: float) -> None:
        """Return when something may have arrived, after the timeout at the latest."""

    def catch_up(self) -> None:
        """See all that other sites have published so far."""

    def forget_acknowledged(self, reader: str) -> None:
        """Remove the parcels that their reader no longer needs, and those that it has put aside."""

    def close(self) -> None:
        """End connections; what is published stays."""


def open_links(
    links: Links,
    site: str,
    senders: Iterable[str],
    readers: Iterable[str],
    ours: LinkEnd,
    ledger: SiteLedger,
    commit: Callable[[SiteLedger], None],
) -> LinkEnd:
    """Start the ends of a site on all its links, after which older processes of it are fenced, or refuse to.

    The epoch is durable before it is claimed, so no two starts of one checkpoint have the same. What ends say is looked
    at before the claim and after it: what an older process acknowledges in between is not overlooked. What the other
    ends say is looked at before it too: a start with an older copy that is refused must not have taken the epoch of the
    newest one. Which programs they have is not, since somebody has to begin with new ones.
    """
    claims = {}
    for reader in readers:
        sent = ledger.links.get(reader, LinkState())
        claims[LinkDirection(site, reader), Role.SENDER] = replace(ours, number=sent.number, released=sent.released)
    for sender in senders:
        claims[LinkDirection(sender, site), Role.READER] = replace(ours, number=ledger.received.get(sender, 0))
    if not claims:
        return ours
    links.prepare(link for link, _ in claims)
    for (link, role), claim in claims.items():
        there = links.end(link, role)
        check_own_end(link, role, there, claim, ledger)
        if there is not None:
            ours = replace(ours, epoch=max(ours.epoch, there.epoch + 1))
    for link, role in reversed(claims):
        with suppress(LinkUnreadable):  # somebody else's end is mended by whose it is
            other = links.end(link, role.other)
            if other is not None and role is Role.READER:
                check_sender(link, other, ledger)
            elif other is not None:
                check_reader(link, other, ledger)
    claims = {end: replace(claim, epoch=ours.epoch) for end, claim in claims.items()}
    commit(replace(ledger, epoch=ours.epoch, token=ours.token))
    with ExitStack() as undo:
        for (link, role), claim in claims.items():
            links.claim(link, role, claim)
            undo.callback(links.withdraw, link, role)
            check_own_end(link, role, links.end(link, role, below=claim.epoch), claim, ledger)
        undo.pop_all()
    for link, role in claims:
        links.settle(link, role)
    return ours


def check_own_end(link: LinkDirection, role: Role, there: LinkEnd | None, ours: LinkEnd, ledger: SiteLedger) -> None:
    """Refuse a start where another process of the site has been since the checkpoint was last used."""
    site = link.site(role)
    if there is None:
        return
    if there.run != ours.run:
        if role is Role.SENDER:
            raise CheckpointMismatch(
                f"{link}: it holds parcels of another run of {site} (checkpoint {there.run}); start with the "
                f"checkpoint they belong to, or {_RESTORE}"
            )
        if not there.number:  # it has taken nothing, so nothing is lost
            return
        raise CheckpointMismatch(
            f"{link}: {site} has read it up to parcel {there.number} with another checkpoint ({there.run}), and what "
            f"was read is gone; start {site} with that checkpoint, or {_RESTORE}"
        )
    if there.epoch > ledger.epoch or (there.epoch == ledger.epoch and there.token != ledger.token):
        raise CheckpointMismatch(
            f"{link}: {site} has run on a copy of this checkpoint since (epoch {there.epoch}, here {ledger.epoch}); "
            f"start it with that copy and stop the process that uses it, or {_RESTORE}"
        )
    if role is Role.READER and there.number > ours.number:
        raise _gone_back(link, Role.READER, there.number, ours.number)


def check_sender(link: LinkDirection, there: LinkEnd, ledger: SiteLedger) -> None:
    """Refuse to read from a sender that is not the one whose parcels were taken, or has forgotten some we need."""
    if ledger.peers.get(link.sender, there.run) != there.run:
        raise CheckpointMismatch(
            f"{link}: the parcels are of another run of {link.sender} than those taken so far; start it with the "
            f"checkpoint it had ({ledger.peers[link.sender]}), or {_RESTORE}"
        )
    if there.released > (received := ledger.received.get(link.sender, 0)):
        raise _gone_back(link, Role.READER, there.released, received)


def check_reader(link: LinkDirection, there: LinkEnd, ledger: SiteLedger) -> int:
    """The last parcel that a reader has, unless it is not the reader that has acknowledged so far."""
    known, sent = ledger.readers.get(link.reader), ledger.links.get(link.reader, LinkState())
    if known is not None and there.run != known.run:
        raise CheckpointMismatch(
            f"{link}: parcels were acknowledged by another run of {link.reader} than reads now; start "
            f"{link.reader} with the checkpoint it had ({known.run}), or {_RESTORE}"
        )
    if there.number > sent.number:
        raise _gone_back(link, Role.SENDER, there.number, sent.number)
    has_restarted = known is not None and there.epoch > known.epoch  # else a power cut may have taken its words back
    if has_restarted and there.number < sent.released:
        raise _gone_back(link, Role.READER, sent.released, there.number)
    return there.number


def fenced(link: LinkDirection, role: Role, epoch: int, ours: LinkEnd) -> Fenced:
    """What ends a process whose end of a link another one has taken over."""
    return Fenced(
        f"{link}: another process runs {link.site(role)} on a copy of its checkpoint (epoch {epoch}, here "
        f"{ours.epoch}), so this one stops; run each site once, with the checkpoint of the process that goes on"
    )


def with_reader(ledger: SiteLedger, reader: str, end: LinkEnd) -> SiteLedger:
    """The ledger that remembers which run of a reader has acknowledged."""
    peer = PeerStart(end.run, end.epoch)
    if not end.number or ledger.readers.get(reader) == peer:
        return ledger
    return replace(ledger, readers={**ledger.readers, reader: peer})


def check_programs(link: LinkDirection, role: Role, there: LinkEnd, ours: LinkEnd) -> None:
    """Refuse to work with another site whose queries or plans are not ours."""
    if there.programs != ours.programs:
        raise CheckpointMismatch(
            f"{link}: {link.site(role)} runs other queries or plans than {link.site(role.other)}; give both the same "
            "topology and statistics, or remove links and checkpoints of all sites to begin anew"
        )


def _gone_back(link: LinkDirection, role: Role, done: int, known: int) -> CheckpointMismatch:
    """The refusal of a checkpoint that is older than what was done with it."""
    what = "acknowledged" if role is Role.READER else "sent"
    return CheckpointMismatch(
        f"{link}: {link.site(role)} has {what} parcel {done}, and its checkpoint, an older copy, knows of {known}; "
        f"start it with the newer one, or {_RESTORE}"
    )
