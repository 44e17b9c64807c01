"""What a site needs of a transport between sites; `directory` is one, others may be brokers or object stores.

Nothing in a transport is needed to recover: a sender keeps every parcel in its checkpoint until its reader has
acknowledged it, and publishes it again if it is missing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from watersmeet.errors import RunError


class LinkUnwritable(RunError):
    """A link cannot be written; what should go there waits in the sender's checkpoint."""


class LinkUnreadable(RunError):
    """A link cannot be read; what is there waits."""


class LinkDamaged(RunError):
    """A parcel is not what was sent."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A parcel as it is published: its number, and the file of the sender's checkpoint that holds it."""

    number: int
    path: str


class Links(Protocol):
    """All links of one site, in both directions."""

    def open(self, senders: Iterable[str], readers: Iterable[str], run_id: str) -> None:
        """Make both directions ready, and put the identity of our run on those we write to."""

    def publish(self, reader: str, parcels: Iterable[Sealed]) -> None:
        """Let a reader have parcels, in order; those that it can have already stay as they are."""

    def acknowledged(self, reader: str) -> int:
        """The last of our parcels that a reader has made durable."""

    def sender_of(self, sender: str) -> str | None:
        """The identity of the run that writes to us from a site; None before it has started."""

    def has_arrived(self, sender: str, after: int) -> bool:
        """Whether the parcel after a number can be read."""

    def arrived(self, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Parcels from a site beyond a number, as far as none is missing: number and bytes."""

    def acknowledge(self, sender: str, number: int, pace: int) -> None:
        """Tell a sender that its parcels up to a number are durable here, and how far other streams have come."""

    def pace(self, reader: str) -> int:
        """The latest event time that a reader knows of, by which a sender judges an idle stream."""

    def wake(self, timeout_s: float) -> None:
        """Return when something may have arrived, after the timeout at the latest."""

    def forget_acknowledged(self, reader: str) -> None:
        """Remove the parcels that their reader no longer needs."""
