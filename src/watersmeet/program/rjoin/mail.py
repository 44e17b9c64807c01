"""What RJoin's nodes send each other, as arrays: one line for each tuple, query or question."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from watersmeet.program.rjoin.arrays import Ints, Longs

Rates: TypeAlias = NDArray[np.float32]  # of tuples


@dataclass(frozen=True, slots=True)
class TupleMail:
    """Tuples on their way to keys."""

    senders: Ints
    keys: Ints
    tuples: Ints


@dataclass(frozen=True, slots=True)
class QueryMail:
    """Queries on their way to keys, each from where it was rewritten; a host that is known is one hop away."""

    senders: Ints
    keys: Ints
    hosts: Ints  # NONE where the sender does not know it
    rows: Ints


@dataclass(frozen=True, slots=True)
class Ask:
    """Nodes want the rates of keys; what waits for them is known by the number."""

    number: int
    nodes: Ints
    keys: Ints
    hosts: Ints  # NONE where the node does not know it
    wanted_by: Ints  # the first query that needs the rate, by a number among those of the moment


@dataclass(frozen=True, slots=True)
class Hints:
    """Rates and hosts of keys, and when that was learned."""

    packed: Longs
    rates: Rates
    hosts: Ints
    learned_us: Longs


@dataclass(frozen=True, slots=True)
class CheckMail:
    """Complete rows on their way to where all tuples of a stream come by, which knows the rows of a ROWS window."""

    senders: Ints
    keys: Ints
    due_us: Longs  # when no tuple that counts can still be under way
    rows: Ints  # each waits for the word on one alias


@dataclass(frozen=True, slots=True)
class AnswerMail:
    """Complete rows on their way to who asked; rows whose members are not told apart are left out, and counted."""

    rows: Ints
    messages: Ints  # the sender of each message: all answers to one query from one node at one moment


@dataclass(frozen=True, slots=True)
class Out:
    """All that is to be sent."""

    tuples: TupleMail | None = None
    queries: QueryMail | None = None
    ask: Ask | None = None
    checks: CheckMail | None = None
    answers: AnswerMail | None = None


Mail = TypeVar("Mail", TupleMail, QueryMail, CheckMail)


def joined(mails: Sequence[Mail]) -> Mail:
    """Mail in one piece."""
    if len(mails) == 1:
        return mails[0]
    kind = type(mails[0])
    return kind(*(np.concatenate([getattr(mail, field.name) for mail in mails]) for field in fields(kind)))
