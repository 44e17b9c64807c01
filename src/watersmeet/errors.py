"""Named conditions that a user can mend: every message gives the cause and the cure in one sentence or two."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_MOST_NAMED = 5
_LONGEST_MESSAGE = 4_000  # characters: a message may quote what a user wrote, however long it is
_SHORTEST_SECRET = 4  # shorter ones would be found in every text

_secrets: set[str] = set()  # what this process has been given to keep to itself


class WatersmeetError(Exception):
    """Base of everything Watersmeet raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(without_secrets(message)))


class InputError(WatersmeetError):
    """The topology, the query or an argument is wrong; nothing was run."""

    exit_code = 2


class TopologyError(InputError):
    """The topology file or value is wrong."""

    file: str = ""  # whose line the message begins with


class SqlError(InputError):
    """The SQL text does not parse or asks for something that is not supported."""


class UflError(InputError):
    """The UFL text of a query does not parse, or its op-graphs cannot be run."""


class UnknownStream(SqlError):
    """A query names a stream that the topology does not have."""


class UnknownColumn(SqlError):
    """A query names a column that its stream does not have."""


class TypeMismatch(InputError):
    """Two sides of an equality can never be compared, or a column has a type that does not fit its role."""


class CheckpointMismatch(InputError):
    """The checkpoint belongs to a different query or schema, or another run holds it."""


class NothingToDo(InputError):
    """A site has no part in a query."""


class RunError(WatersmeetError):
    """The run failed on something outside the query: a file, a sink, the Java virtual machine."""


class CheckpointDamaged(RunError):
    """Something in a checkpoint is missing, or is not what was written."""


def damaged(what: str) -> CheckpointDamaged:
    """The error for damage that only a copy of the checkpoint mends."""
    return CheckpointDamaged(
        f"{what}; restore the whole checkpoint from a copy, or start over: remove it and the output of its sinks (with "
        "several sites the checkpoints of all and the links)"
    )


class DamagedParcel(RunError):
    """A parcel from another site is not what that site has made."""


class ExpressionFailed(RunError):
    """An expression of a query fails for a row, and the query does not say that such rows are left out."""


def hide_secret(value: str) -> None:
    """Have a value left out of every message, warning and event of this process."""
    if len(value) >= _SHORTEST_SECRET:
        _secrets.add(value)


def without_secrets(text: str) -> str:
    """A text with stars in place of secrets.

    >>> hide_secret("not-for-you")
    >>> without_secrets("password=not-for-you;")
    'password=***;'
    """
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def shortened(text: str, most: int = _LONGEST_MESSAGE) -> str:
    """A text without its middle if it is too long.

    >>> shortened("abcdefghijklmno", 9)
    'ab ... no'
    """
    side = (most - 5) // 2
    return text if len(text) <= most else f"{text[:side]} ... {text[-side:]}"


def name_queries(names: Sequence[str]) -> str:
    """How a message names the queries that it is about.

    >>> name_queries(["q"]), name_queries(["p", "q"]), name_queries(["q"] * 100)
    ("query 'q'", "queries 'p', 'q'", '100 queries')
    """
    if len(names) > _MOST_NAMED:
        return f"{len(names)} queries"
    return f"{'query' if len(names) == 1 else 'queries'} {', '.join(map(repr, names))}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say which known names are nearest, or list them all.

    >>> did_you_mean("packets_nyk", ["packets_ams", "packets_nyc"])
    "did you mean 'packets_nyc' or 'packets_ams'? known: packets_ams, packets_nyc"
    """
    names = sorted(known)
    if not names:
        return "none are known"
    by_folded = {candidate.casefold(): candidate for candidate in reversed(names)}
    near = get_close_matches(name.casefold(), by_folded, n=2, cutoff=0.6)
    listing = f"known: {', '.join(names)}"
    if not near:
        return listing
    return f"did you mean {' or '.join(repr(by_folded[folded]) for folded in near)}? {listing}"


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or the name of its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
