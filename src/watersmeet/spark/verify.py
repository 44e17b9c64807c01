"""Verifying checkpoints without running them: what is right, what is wrong, and what nobody needs."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from watersmeet.errors import InputError, WatersmeetError
from watersmeet.spark.checkpoint import (
    IDENTITY,
    LEDGER,
    SPARK,
    STATE,
    check_whole,
    read_identity,
    read_ledger,
    refuse_old_form,
)
from watersmeet.spark.durable import lock
from watersmeet.spark.files import size_of
from watersmeet.spark.store.mirror import shelf_of

Value = TypeVar("Value")


@dataclass
class Findings:
    """What was found out about the checkpoint of one site."""

    directory: Path
    verified: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # a sentence each
    spare: list[Path] = field(default_factory=list)  # left by power cuts and killed processes; a start removes them

    def attempt(self, step: Callable[[], Value]) -> Value | None:
        """Do something; None, and a sentence more, if that shows that something is wrong."""
        try:
            return step()
        except WatersmeetError as error:
            self.wrong.append(str(error))
            return None


def site_checkpoints(root: Path) -> list[Path]:
    """The checkpoints of sites in a directory, which may be one itself."""
    parts = (IDENTITY, LEDGER, STATE, SPARK)
    found = [place for place in (root, *sorted(root.glob("*"))) if any((place / name).exists() for name in parts)]
    if not found:
        raise InputError(f"checkpoint {root}: nothing is there; give the directory that --checkpoint of the run named")
    return found


def verify_checkpoint(directory: Path) -> Findings:
    """Read all that a site's checkpoint consists of, and compare it with the checksums."""
    found = Findings(directory)
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # of a copy that cannot be written
            held.enter_context(lock(directory))
        found.attempt(lambda: refuse_old_form(directory / IDENTITY))
        if found.wrong:
            return found
        if found.attempt(lambda: read_identity(directory)) is not None:
            found.verified.append("identity")
        ledger = found.attempt(lambda: read_ledger(directory))
        if ledger is None:
            return found
        found.verified.append(f"ledger up to micro-batch {ledger.number}")
        shelf = shelf_of(directory)
        torn = found.attempt(lambda: check_whole(directory, ledger))
        if torn is not None:
            for name in sorted(ledger.paths):
                found.attempt(partial(shelf.check, name))
            if not found.wrong:
                size = sum(map(size_of, ledger.paths))
                found.verified.append(f"{len(ledger.paths)} state files of {size:,} bytes")
            found.verified.append(f"Spark's log up to micro-batch {ledger.ingested_batch}")
            found.spare = [*torn, *map(Path, shelf.others(ledger.paths)), *sorted(directory.glob("*.tmp"))]
    return found


def remove_spare(found: Findings) -> list[Path]:
    """Remove what nobody needs, unless something is wrong; what was removed."""
    spare = [] if found.wrong else found.spare
    for path in spare:
        path.unlink()
    return spare
