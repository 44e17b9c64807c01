"""What nodes say to each other when a plan changes, counted by purpose (adaptive paper, section 4 and table 3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from watersmeet.adapt.sequences import ExecutionPlan


class Phase(StrEnum):
    """What a message is for; the paper's table counts synchronisation as a part of migration."""

    MODIFICATION = "modification"
    MIGRATION = "migration"
    SYNCHRONISATION = "synchronisation"


class MessageKind(StrEnum):
    """The messages of section 4."""

    REPORT = "report"  # figures have changed, to the coordinator
    OPERATORS = "operators"  # a new operator set, from the coordinator
    SEEK = "seek"  # whom does a cheaper stream beat, from the front
    RELAY = "relay"  # who is the cheapest from here on
    INFORM = "inform"  # it is you
    SWAP = "swap"  # operators of two nodes that change places
    NEIGHBOUR = "neighbour"  # another stream is before or after you
    PLACEMENT = "placement"  # the one-way join is at your node
    CONTINUE = "continue"  # the next position, with the figures of the rows that come to it
    WINDOW_REQUEST = "window request"
    ELECTION = "election"
    LOCAL_READY = "local-ready"
    GLOBAL_READY = "global-ready"

    @property
    def phase(self) -> Phase:
        match self:
            case MessageKind.WINDOW_REQUEST:
                return Phase.MIGRATION
            case MessageKind.ELECTION | MessageKind.LOCAL_READY | MessageKind.GLOBAL_READY:
                return Phase.SYNCHRONISATION
            case _:
                return Phase.MODIFICATION


@dataclass(frozen=True, slots=True)
class Sent:
    """A message over a link: nodes at one site tell each other for nothing."""

    kind: MessageKind
    sender: str
    to: str


@dataclass(frozen=True, slots=True)
class WindowMove:
    """The window of a stream is copied to where the new plan needs it."""

    stream: str
    origin: str
    to: str


@dataclass(frozen=True, slots=True)
class Modification:
    """A new plan, and what it took: messages, windows to copy, and which nodes have to switch at the same time."""

    plan: ExecutionPlan
    messages: tuple[Sent, ...] = ()
    moves: tuple[WindowMove, ...] = ()
    groups: tuple[frozenset[str], ...] = ()

    def count(self, phase: Phase) -> int:
        """Messages of a phase; table 3's migration is ours and synchronisation together."""
        return sum(message.kind.phase is phase for message in self.messages)


def over_links(messages: Iterable[Sent]) -> tuple[Sent, ...]:
    """The messages that leave their site."""
    return tuple(message for message in messages if message.sender != message.to)
