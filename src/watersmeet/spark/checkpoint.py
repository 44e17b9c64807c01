"""A query's checkpoint directory: whose it is, who holds it, and where things lie in it.

DIR/QUERY/identity.json   the query, schemas and run identity it was made for
          lock            held by the process that runs it
          ledger.json     the state after the last finished batch (see program.ledger)
          state/          the files the ledger names
          spark/          Spark's own offsets and commits
"""

import fcntl
import json
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from watersmeet.errors import CheckpointMismatch, InputError, RunError
from watersmeet.spark.files import remove_all_but


class Held(Protocol):
    """What a checkpoint needs of a ledger."""

    @property
    def paths(self) -> frozenset[str]: ...
    def to_json(self) -> str: ...


L = TypeVar("L", bound=Held)


class Checkpoint(Generic[L]):
    """The open checkpoint of one query, or of its part at one site; held until closed."""

    def __init__(
        self, directory: str | Path, identity: dict[str, Any], empty: L, from_json: Callable[[str], L]
    ) -> None:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(directory)):  # a Path has made one slash of two
            raise InputError(
                f"checkpoint {directory} is a URL; give a plain path of a file system mounted wherever Spark runs, "
                "since windows are mapped into memory from it"
            )
        self.directory = Path(directory).absolute()
        self.state = str(self.directory / "state")
        self.spark = str(self.directory / "spark")
        self.ledger_path = str(self.directory / "ledger.json")
        try:
            os.makedirs(self.state, exist_ok=True)
            self._lock = open(self.directory / "lock", "w", encoding="utf-8")  # noqa: SIM115 - held until close
        except OSError as error:
            raise RunError(
                f"checkpoint {self.directory} cannot be written: {error.strerror}; give --checkpoint another place"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise CheckpointMismatch(
                f"checkpoint {self.directory} is in use by another run; stop that one or give another --checkpoint"
            ) from None
        try:
            self.is_new, self.run_id = self._identify(identity)
        except BaseException:
            self.close()
            raise
        try:
            self.ledger = from_json(Path(self.ledger_path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.ledger = empty
        self.forget_unused()

    def _identify(self, identity: dict[str, Any]) -> tuple[bool, str]:
        path = self.directory / "identity.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            run_id = uuid.uuid4().hex[:8]
            replace_file(path, json.dumps({**identity, "run_id": run_id}, indent=2))
            return True, run_id
        differences = list(_differences(stored, identity))
        if differences:
            raise CheckpointMismatch(
                f"checkpoint {self.directory} belongs to a different query: {'; '.join(differences)}. "
                "Run the query it was made for, or give --checkpoint another place"
            )
        return False, stored["run_id"]

    def commit(self, ledger: L, *, forget: bool = True) -> None:
        """Make a batch's state the state; then give back what nothing refers to any more, unless tasks are writing."""
        replace_file(Path(self.ledger_path), ledger.to_json())
        self.ledger = ledger
        if forget:
            self.forget_unused()

    def forget_unused(self) -> None:
        remove_all_but(self.state, self.ledger.paths)

    def close(self) -> None:
        self._lock.close()


def _differences(stored: dict[str, Any], wanted: dict[str, Any], path: str = "") -> Any:
    for name in sorted({*stored, *wanted} - {"run_id"}):
        before, now = stored.get(name), wanted.get(name)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{path}{name} ")
        elif isinstance(before, str) and isinstance(now, str) and "\n" in before + now:
            old, new = before.splitlines(), now.splitlines()
            yield f"{path}{name} had {_only(old, new)} where there is now {_only(new, old)}"
        else:
            yield f"{path}{name} was {before!r} and is now {now!r}"


def _only(lines: list[str], others: list[str]) -> str:
    extra = [line.strip() for line in lines if line not in others]
    return repr(" ".join(extra)) if extra else "nothing"


def replace_file(path: Path, text: str) -> None:
    """Put a file in place whole: a reader sees the old text or the new, never a part."""
    fresh = path.with_name(f"{path.name}.tmp")  # there is one writer, who holds the lock
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
