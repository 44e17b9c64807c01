"""What dynamic peers of RJoin send each other: one class a message, what it is for, and how many bytes it takes."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

from watersmeet.program.rjoin.arrays import Ints, Longs
from watersmeet.program.rjoin.mail import Hints
from watersmeet.sim.overlays.router import Address, Arc

_HEADER_BYTES, _HINT_BYTES, _VALUE_BYTES = 40, 24, 8


class MailPurpose(Enum):
    """What a message of RJoin is for; traffic is counted by it."""

    TUPLES = "tuples"
    QUERIES = "queries"
    RATES = "rates"
    ANSWERS = "answers"
    MOVES = "moves"  # what is kept goes to who has its key now
    COPIES = "copies"
    RENEWAL = "renewal"  # tuples and input queries that are said again


@dataclass(frozen=True, slots=True)
class TuplesCome:
    """Procedure 1: tuples for a key."""

    key: int
    tuples: Ints
    is_renewed: bool = False


@dataclass(frozen=True, slots=True)
class QueriesCome:
    """Queries for a key, and what their sender knows of where they could go next."""

    key: int
    rows: Ints
    hints: Hints
    is_renewed: bool = False


@dataclass(frozen=True, slots=True)
class QueryEnds:
    """Somebody wants no answers with tuples after a time; whoever gets it tells the others of an arc, if there is one.

    The arc's middle is where the message goes: its owner splits what is left on both sides of its own arc. So each node
    hears once, over any overlay, and all have heard after about log2 N routes.
    """

    query: int
    until_us: int
    arc: Arc | None = None


@dataclass(frozen=True, slots=True)
class RatesRequest:
    """A question on its way from owner to owner; whoever answers the last key replies."""

    number: int
    asker: Address
    left: tuple[int, ...]
    reported: tuple[tuple[int, float, Address], ...] = ()


@dataclass(frozen=True, slots=True)
class RatesReply:
    """The rates of all keys of a question, with the owners that reported them."""

    number: int
    reported: tuple[tuple[int, float, Address], ...]


@dataclass(frozen=True, slots=True)
class ChecksCome:
    """Complete rows that wait for the word on a ROWS window."""

    key: int
    due_us: Longs
    rows: Ints


@dataclass(frozen=True, slots=True)
class AnswersCome:
    """Complete rows of a query, for who asked it."""

    query: int
    rows: Ints


@dataclass(frozen=True, slots=True)
class StateMoves:
    """All that was kept for a key, for its new owner."""

    key: int
    rows: Ints
    tuples: Ints


@dataclass(frozen=True, slots=True)
class StateCopied:
    """What is kept for a key, for a node that may have to take over."""

    key: int
    rows: Ints
    tuples: Ints


@dataclass(frozen=True, slots=True)
class CopiesStand:
    """The sender is there, and the keys of this arc are its own; without an arc, it does not need its copies there."""

    arc: Arc | None


Mail: TypeAlias = (
    TuplesCome
    | QueriesCome
    | QueryEnds
    | RatesRequest
    | RatesReply
    | ChecksCome
    | AnswersCome
    | StateMoves
    | StateCopied
    | CopiesStand
)


def purpose_of(mail: object) -> MailPurpose:
    """What a message is for."""
    match mail:
        case TuplesCome(is_renewed=False):
            return MailPurpose.TUPLES
        case QueriesCome(is_renewed=False) | QueryEnds():
            return MailPurpose.QUERIES
        case TuplesCome() | QueriesCome():
            return MailPurpose.RENEWAL
        case RatesRequest() | RatesReply():
            return MailPurpose.RATES
        case ChecksCome() | AnswersCome():
            return MailPurpose.ANSWERS
        case StateMoves():
            return MailPurpose.MOVES
        case StateCopied() | CopiesStand():
            return MailPurpose.COPIES
        case _:
            raise TypeError(f"no mail of RJoin's: {mail!r}")


def size_of(mail: Mail, columns: int) -> int:
    """Bytes without the overlay's headers; a tuple is sent with all its columns, and a row with all its numbers."""
    return _HEADER_BYTES + _content_bytes(mail, columns)


def _content_bytes(mail: Mail, columns: int) -> int:
    match mail:
        case TuplesCome(tuples=tuples):
            return _VALUE_BYTES * columns * len(tuples)
        case QueriesCome(rows=rows, hints=hints):
            return rows.nbytes + _HINT_BYTES * len(hints.packed)
        case QueryEnds() | CopiesStand():
            return 3 * _VALUE_BYTES
        case RatesRequest(left=left, reported=reported):
            return _HINT_BYTES * (len(left) + len(reported))
        case RatesReply(reported=reported):
            return _HINT_BYTES * len(reported)
        case ChecksCome(rows=rows) | AnswersCome(rows=rows):
            return rows.nbytes
        case StateMoves(rows=rows, tuples=tuples) | StateCopied(rows=rows, tuples=tuples):
            return rows.nbytes + _VALUE_BYTES * columns * len(tuples)
        case _:
            assert_never(mail)
