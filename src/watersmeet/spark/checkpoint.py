"""A site's checkpoint directory: whose it is, who holds it, and where things are in it.

DIR/SITE/identity.json     the queries, schemas and run identity it was made for
         lock              held by the process that runs it
         ledger.json       the state (see program.site.ledger)
         watermarks.json   before which instant rows of each stream are late; made from the ledger
         state/            the files the ledger names
         spark/            Spark's own offsets and commits
"""

import contextlib
import fcntl
import json
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from watersmeet.errors import CheckpointMismatch, InputError, RunError
from watersmeet.program.site.ledger import FORMAT, SiteLedger
from watersmeet.spark.files import FileShelf

KEPT, SELECT = "kept columns", "select"  # of a query's identity; the select list may be corrected


class Checkpoint:
    """The open checkpoint of one site; held until closed."""

    def __init__(self, directory: str | Path, identity: dict[str, Any]) -> None:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(directory)):  # a Path has made one slash of two
            raise InputError(
                f"checkpoint {directory} is a URL; give a plain path of a file system mounted wherever Spark runs, "
                "since windows are mapped into memory from it"
            )
        self.directory = Path(directory).absolute()
        self.shelf = FileShelf(str(self.directory / "state"))
        self.spark = str(self.directory / "spark")
        self._ledger_path = self.directory / "ledger.json"
        self.watermarks_path = str(self.directory / "watermarks.json")
        try:
            os.makedirs(self.shelf.directory, exist_ok=True)
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
            try:
                self.ledger = SiteLedger.from_json(self._ledger_path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                self.ledger = SiteLedger()
            self._take_corrections(identity)
        except BaseException:
            self.close()
            raise
        self.forget_unused()

    def _identify(self, identity: dict[str, Any]) -> tuple[bool, str]:
        path = self.directory / "identity.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            run_id = uuid.uuid4().hex[:8]
            replace_file(path, json.dumps({**identity, "run_id": run_id}, indent=2))
            return True, run_id
        self._refuse_unkept(stored.get("queries", {}), identity["queries"])
        differences = list(_differences(stored, identity))
        if differences:
            raise CheckpointMismatch(
                f"checkpoint {self.directory} belongs to other queries: {'; '.join(differences)}. "
                "Run the topology it was made for, or give --checkpoint another place"
            )
        return False, stored["run_id"]

    def _refuse_unkept(self, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
        for name in stored.keys() & wanted.keys():
            if missing := sorted(set(wanted[name][KEPT]) - set(stored[name].get(KEPT, wanted[name][KEPT]))):
                raise CheckpointMismatch(
                    f"query {name!r}: it now needs {', '.join(missing)}, which the windows in checkpoint "
                    f"{self.directory} do not keep; do without, or give --checkpoint another place"
                )

    def _take_corrections(self, identity: dict[str, Any]) -> None:
        """Let select lists be others than before, where all answers given so far have the same columns."""
        path = self.directory / "identity.json"
        stored = json.loads(path.read_text(encoding="utf-8"))
        for name, query in identity["queries"].items():
            before, now = ([(n, kind) for n, _, kind in one[SELECT]] for one in (stored["queries"][name], query))
            if before != now and self.ledger.rows_out.get(name):
                raise CheckpointMismatch(
                    f"query {name!r}: its answers had the columns {_columns(before)} and now have {_columns(now)}, but "
                    f"{self.ledger.rows_out[name]:,} answers were given with the old ones; give the columns the same "
                    "names and types, as with CAST and AS, or give --checkpoint and the sink another place"
                )
        fresh = {**identity, "run_id": stored["run_id"]}
        if fresh != stored:
            replace_file(path, json.dumps(fresh, indent=2))

    def commit(self, ledger: SiteLedger) -> None:
        """Make a ledger the state."""
        replace_file(self._ledger_path, ledger.to_json())
        self.ledger = ledger

    def write_watermarks(self, watermarks: Mapping[str, int | None]) -> None:
        """Say before which instant rows of the next micro-batch are late."""
        replace_file(Path(self.watermarks_path), json.dumps(watermarks), flush=False)  # made anew at every start

    def forget_unused(self) -> None:
        """Delete the files that nothing refers to; not while tasks are writing."""
        self.shelf.keep_only(self.ledger.paths)

    def close(self) -> None:
        self._lock.close()


def _columns(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def kept_columns(root: Path) -> dict[str, list[str]]:
    """The columns that the windows of each query keep in the checkpoints that are there."""
    found: dict[str, list[str]] = {}
    for path in sorted(root.glob("*/identity.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # refused when it is opened
            stored = json.loads(path.read_text(encoding="utf-8"))["queries"]
            found |= {name: query[KEPT] for name, query in stored.items()}
    return found


def _differences(stored: dict[str, Any], wanted: dict[str, Any], path: str = "") -> Any:
    for name in sorted({*stored, *wanted} - {"run_id", SELECT}):
        if name not in stored or name not in wanted:
            yield f"{path}{name} {'is new' if name in wanted else 'is missing'}"
            continue
        before, now = stored[name], wanted[name]
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, "query " if name == "queries" else f"{path}{name} ")
        elif isinstance(before, str) and isinstance(now, str) and "\n" in before + now:
            old, new = before.splitlines(), now.splitlines()
            yield f"{path}{name} had {_only(old, new)} where there is now {_only(new, old)}"
        else:
            yield f"{path}{name} was {before!r} and is now {now!r}"


def _only(lines: list[str], others: list[str]) -> str:
    extra = [line.strip() for line in lines if line not in others]
    return repr(" ".join(extra)) if extra else "nothing"


def refuse_old_form(root: Path) -> None:
    """Refuse a directory with checkpoints of an earlier version, which had one for each query."""
    for identity in sorted(root.glob("*/identity.json")) + sorted(root.glob("*/*/identity.json")):
        try:
            version = json.loads(identity.read_text(encoding="utf-8")).get("format")
        except (OSError, ValueError):
            continue
        if version != FORMAT:
            raise CheckpointMismatch(
                f"checkpoint {identity.parent} was made by an earlier version, with one checkpoint a query; this "
                "version has one a site for all queries: give --checkpoint another place, and empty sinks"
            )


def replace_file(path: Path, text: str, *, flush: bool = True) -> None:
    """Put a file in place whole: a reader sees the old text or the new, never a part."""
    fresh = path.with_name(f"{path.name}.tmp")  # there is one writer, who holds the lock
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        if flush:
            file.flush()
            os.fsync(file.fileno())
    os.replace(fresh, path)
