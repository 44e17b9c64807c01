"""Which process writes to a sink of files: of several on copies of one checkpoint, the one that was started last.

DIR/.writer-RUN-00000003   a checksum, and the starts of a run that have taken over the sink so far, the newest last

A start takes a sink over by creating the next such file, which only one process can, and removes those before it: a
process whose file is gone has been overtaken, and publishes nothing more. Whoever takes over takes back what was
published after the batch that its checkpoint knows of. A checkpoint that has delivered more than that, and is started
later, finds its answers gone, and is refused; one that has not is a copy from before, and goes on.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

_MAX_CLAIMS = 1_000  # that are remembered


class Start(NamedTuple):
    """A start of a site on its checkpoint."""

    token: str
    before: str = ""  # of the last start that has taken over the site's sinks, as the checkpoint knows it


@dataclass(frozen=True, slots=True)
class Claim:
    """One start that has taken over a sink."""

    token: str
    kept: int  # the last batch of those published before that it has left there


def overtaken_by(claims: Sequence[Claim], start: Start, delivered: int) -> Claim | None:
    """The claim that has taken back some of what a checkpoint has delivered, made by others since its last start.

    A start that is not known any more was made before all of them.

    >>> history = [Claim("first", -1), Claim("copy", 4), Claim("again", 7)]
    >>> overtaken_by(history, Start("new", "first"), 4), overtaken_by(history, Start("new", "first"), 6)
    (None, Claim(token='copy', kept=4))
    >>> overtaken_by(history, Start("new", "copy"), 8), overtaken_by(history, Start("new", "again"), 9)
    (Claim(token='again', kept=7), None)
    """
    since = max((number + 1 for number, claim in enumerate(claims) if claim.token in start), default=0)
    return next((claim for claim in claims[since:] if claim.kept < delivered), None)


def newest_of(names: Iterable[str], run_id: str) -> int:
    """The number of the newest file of claims; 0 if there is none."""
    return max((number for number, _ in _files(names, run_id)), default=0)


def before(number: int, names: Iterable[str], run_id: str) -> list[str]:
    """The files of claims before one, and what killed processes have left half made."""
    newer = {name for found, name in _files(names, run_id) if found >= number}
    return [name for name in names if name.startswith(_prefix(run_id)) and name not in newer]


def file_name(run_id: str, number: int) -> str:
    """The file of claims with a number."""
    return f"{_prefix(run_id)}{number:08d}"


def to_bytes(claims: Sequence[Claim]) -> bytes:
    """The contents of a file of claims: a checksum, and a line for each."""
    lines = "".join(f"{claim.token} {claim.kept}\n" for claim in claims[-_MAX_CLAIMS:])
    return f"{crc32(lines.encode()):08x}\n{lines}".encode()


def from_bytes(data: bytes) -> list[Claim]:
    """The claims in a file; a ValueError if it is damaged.

    >>> from_bytes(to_bytes([Claim("a1", -1), Claim("b2", 4)]))
    [Claim(token='a1', kept=-1), Claim(token='b2', kept=4)]
    """
    checksum, _, lines = data.partition(b"\n")
    if not lines.endswith(b"\n"):
        raise ValueError("it is cut short")
    if checksum != b"%08x" % crc32(lines):
        raise ValueError("its checksum does not match")
    parted = [re.fullmatch(r"(\w+) (-?\d{1,18})", line) for line in lines.decode().splitlines()]
    found = [Claim(match.group(1), int(match.group(2))) for match in parted if match is not None]
    if len(found) < len(parted):
        raise ValueError("a line of it is no claim")
    return found


def _prefix(run_id: str) -> str:
    return f".writer-{run_id}-"


def _files(names: Iterable[str], run_id: str) -> list[tuple[int, str]]:
    known = re.compile(re.escape(_prefix(run_id)) + r"(\d{8,})")
    return [(int(match.group(1)), name) for name in names if (match := known.fullmatch(name)) is not None]
