"""A site's checkpoint directory: whose it is, who holds it, and where things are in it.

DIR/SITE/identity.json     the queries, schemas and run identity it was made for
         lock              held by the process that runs it
         ledger.json       the state (see program.site.ledger)
         watermarks.json   before which instant rows of each stream are late; made from the ledger
         state/            the files the ledger names
         spark/            Spark's own offsets and commits

DIR may be a directory that is a copy of what is in an object store (see spark.store): then what counts is there, a
commit is a conditional write, and `lease.json` beside the ledger says which process holds it.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from watersmeet.errors import CheckpointMismatch, InputError, RunError, damaged
from watersmeet.program.site.engine import read_versions
from watersmeet.program.site.ledger import FORMAT, SiteLedger
from watersmeet.spark.durable import UNFLUSHED, Disk, lock, sealed, unsealed
from watersmeet.spark.files import FileShelf
from watersmeet.spark.spark_log import CLIENT, SparkLog
from watersmeet.spark.store.held import HeldStore
from watersmeet.spark.store.mirror import origin_of, shelf_of
from watersmeet.spark.store.object_store import is_url
from watersmeet.spark.tasks import NEXT_BATCH

IDENTITY, LEDGER, STATE, SPARK, WATERMARKS = "identity.json", "ledger.json", "state", "spark", "watermarks.json"
_LEASE = "lease"  # first member of a ledger in a store: which process has written it
_MOST_NAMED = 3  # files in a message
_OLD_FORMS = {
    1: "with one checkpoint a query; this version has one a site for all queries",
    2: "without checksums; this version has them",
    3: "with plans that could not change; this version keeps their versions",
    5: "with rows that travelled once for each join that needed them; this version sends them once",
    4: "with comparisons of streams left to the end; this version applies them as soon as the streams have met",
}

_NEXT, _REVISION = "next", "revision"  # the identity that follows, and with which revision of the deployment
KEPT, SELECT = "kept columns", "select"  # of a query's identity; the select list may be corrected


class Checkpoint:
    """The open checkpoint of one site; held until closed."""

    def __init__(
        self,
        directory: str | Path,
        identity: dict[str, Any],
        disk: Disk,
        *,
        is_shared: bool = False,  # with other machines, which flush what they write
    ) -> None:
        if is_url(directory):
            raise InputError(f"checkpoint {directory} is a URL; give its mirror (spark.store.mirror)")
        self.directory = Path(directory).absolute()
        self._held: HeldStore | None = None  # where the directory is a copy of what is in a store
        self._disk = disk
        self.shelf = FileShelf(str(self.directory / STATE), Disk(disk.flushes and is_shared))
        self.spark = str(self.directory / SPARK)
        self.watermarks_path = str(self.directory / WATERMARKS)
        try:
            disk.make(self.shelf.directory)
            self._lock = lock(self.directory)
        except OSError as error:
            raise RunError(
                f"checkpoint {self.directory} cannot be written: {error.strerror}; give --checkpoint another place"
            ) from None
        self._flushed = self._early = frozenset[str]()  # state files that are flushed: named by the ledger, and not yet
        self._logged = frozenset[str]()  # the same of Spark's log
        try:
            store = origin_of(self.directory)
            if store is not None:
                self._held = HeldStore(store, self.directory, is_shared=is_shared)
                self._disk, self.shelf = self._held.disk, self._held.shelf
            self.is_new, self.run_id = self._identify(identity)
            self.ledger = read_ledger(self.directory)
            if self._held is not None:
                self._flushed = self.ledger.paths  # they are in the store, which is checked next
                self.commit(self.ledger)  # from here on whoever held it before can commit no more
            self.shelf.verify_again()
            for torn in check_whole(self.directory, self.ledger):
                torn.unlink()
            self._take_corrections(identity)
            self.forget_unused()
        except BaseException:
            self.close()
            raise

    def _identify(self, identity: dict[str, Any]) -> tuple[bool, str]:
        """Whether the checkpoint is new, and the identity of its run."""
        if self._is_unused():
            run_id = uuid.uuid4().hex[:8]
            self._disk.replace(self.directory / LEDGER, self._text(SiteLedger()))
            text = json.dumps({**identity, "run_id": run_id}, indent=2)
            self._disk.replace(self.directory / IDENTITY, sealed(text))
            return True, run_id
        stored = self._stored_identity()
        self._refuse_unkept(stored.get("queries", {}), identity["queries"])
        differences = list(_differences(stored, identity))
        if differences:
            raise CheckpointMismatch(
                f"checkpoint {self.directory} belongs to other queries: {'; '.join(differences)}. "
                "Run the topology it was made for, go over to this one with `watersmeet apply`, or give --checkpoint "
                "another place"
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
        stored = self._stored_identity()
        for name, query in identity["queries"].items():
            before, now = ([(n, kind) for n, _, kind in value[SELECT]] for value in (stored["queries"][name], query))
            if before != now and self.ledger.rows_out.get(name):
                raise CheckpointMismatch(
                    f"query {name!r}: its answers had the columns {_columns(before)} and now have {_columns(now)}, but "
                    f"{self.ledger.rows_out[name]:,} answers were given with the old ones; give the columns the same "
                    "names and types, as with CAST and AS, or give --checkpoint and the sink another place"
                )
        fresh = {**identity, "run_id": stored["run_id"]}
        if fresh != stored:
            self._disk.replace(self.directory / IDENTITY, sealed(json.dumps(fresh, indent=2)))

    def expect(self, revision: int, identity: dict[str, Any]) -> None:
        """Say what the checkpoint is for once its ledger has a revision of the deployment, before it has."""
        stored = self._stored_identity()
        following = {**identity, "run_id": self.run_id, _REVISION: revision}
        if {name: value for name, value in following.items() if name != _REVISION} != stored:
            text = json.dumps({**stored, _NEXT: following}, indent=2)
            self._disk.replace(self.directory / IDENTITY, sealed(text))

    def _stored_identity(self) -> dict[str, Any]:
        """What the checkpoint is for by the revision that its ledger has."""
        stored = read_identity(self.directory)
        following = stored.pop(_NEXT, None)
        if following is not None and following.pop(_REVISION) <= self._revision:
            return dict(following)
        return stored

    @property
    def _revision(self) -> int:
        ledger = read_ledger(self.directory)
        return read_versions(self.shelf, ledger).deployment.revision if ledger.versions else 0

    @property
    def is_in_store(self) -> bool:
        """Whether what counts is in an object store, and the directory a copy of it."""
        return self._held is not None

    def number_batches(self, *, by_client: bool) -> None:
        """Say who numbers the micro-batches, this process or Spark; refused if it was the other one before."""
        log = SparkLog(Path(self.spark), self.ledger.ingested_batch)
        if by_client and not log.is_clients and self.ledger.ingested_batch < 0:
            self._disk.make(self.spark)
            self._disk.replace(log.directory / CLIENT, "")
        elif by_client != log.is_clients:
            was, cure = "with a Spark of its own", "--master"
            if log.is_clients:
                was, cure = "over Spark Connect", "--remote"
            raise CheckpointMismatch(
                f"checkpoint {self.directory} was made {was}, whose micro-batches are numbered differently; go on with "
                f"{cure}, or begin anew with --fresh"
            )

    def commit(self, ledger: SiteLedger) -> None:
        """Make a ledger the state: what it names is flushed first, and of Spark's log what it relies on."""
        paths, logged, checksums = ledger.paths, self._logged, self.ledger.log
        if ledger.ingested_batch > self.ledger.ingested_batch:
            log = SparkLog(Path(self.spark), ledger.ingested_batch, self.ledger.log)
            logged, checksums = frozenset(log.needed()), log.with_checksums()
        ledger = replace(ledger, log=checksums)
        fresh = [*self._unflushed(paths - self._flushed - self._early), *(logged - self._logged)]
        names = {os.path.dirname(path) for path in fresh} | {self.shelf.directory}
        self._disk.replace(self.directory / LEDGER, self._text(ledger), after=[*fresh, *names])
        if self._held is not None and logged != self._logged:
            self._held.keep_log(logged)
        self._flushed, self._logged, self.ledger = paths, logged, ledger

    def _text(self, ledger: SiteLedger) -> str:
        """A ledger as it is written; in a store, with what tells the commits of one process from those of others."""
        text = ledger.to_json()
        return sealed(text if self._held is None else f'{{"{_LEASE}":"{self._held.stamp}",{text[1:]}')

    def flush(self, names: Iterable[str]) -> None:
        """Flush state files that the next ledger is going to name, while others are at work."""
        early = frozenset(names)
        self._disk.flush(self._unflushed(early))
        self._early = early

    def _unflushed(self, names: Iterable[str]) -> list[str]:
        """The paths of state files, unless those who write them have put them into the store."""
        if self._held is not None and self._held.is_shared:
            return []
        return [self.shelf.path_of(name) for name in names]

    def write_watermarks(self, watermarks: Mapping[str, int | None]) -> None:
        """Say before which instant rows of the next micro-batch are late, and which micro-batch that is."""
        known = {**watermarks, NEXT_BATCH: self.ledger.ingested_batch + 1}
        UNFLUSHED.replace(Path(self.watermarks_path), json.dumps(known))  # made anew at every start
        self.written_for_tasks(WATERMARKS)

    def written_for_tasks(self, name: str) -> None:
        """Let tasks have a file beside the ledger, wherever they run."""
        if self._held is not None:
            self._held.show_tasks(self.directory / name)

    def written_beside(self, name: str) -> None:
        """Keep a file beside the ledger without which nothing is lost."""
        if self._held is not None:
            self._held.keep(self.directory / name)

    def forget_unused(self) -> None:
        """Delete the files that nothing refers to; not while tasks are writing."""
        self.shelf.keep_only(self.ledger.paths)
        if self._held is not None:
            self._held.forget_state(self.ledger.paths)

    def _is_unused(self) -> bool:
        """Whether it was never used: the ledger is written before the identity, and both before the rest."""
        directory = self.directory
        has_state = any((directory / STATE).iterdir()) if self._held is None else bool(self._held.names)
        if has_state or (directory / IDENTITY).exists() or (directory / SPARK).exists():
            return False
        return not (directory / LEDGER).exists() or read_ledger(directory) == SiteLedger()

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
        self._lock.close()


def read_identity(directory: Path) -> dict[str, Any]:
    """What a site's checkpoint was made for."""
    identity: dict[str, Any] = json.loads(_read(directory, IDENTITY))
    return identity


def read_ledger(directory: Path) -> SiteLedger:
    """The state of a site as it was last committed."""
    text = _read(directory, LEDGER)
    if text.startswith(f'{{"{_LEASE}":'):
        text = "{" + text.partition(",")[2]
    return SiteLedger.from_json(text)


def _read(directory: Path, name: str) -> str:
    try:
        return unsealed((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise damaged(f"checkpoint {directory}: {name} is missing") from None
    except (OSError, ValueError) as error:
        raise damaged(f"checkpoint {directory}: {name} is damaged ({error})") from None


def check_files(directory: Path, ledger: SiteLedger) -> None:
    """Refuse a checkpoint of which state files are missing or cut short."""
    missing = shelf_of(directory).incomplete(ledger.paths)
    if missing:
        some = ", ".join(missing[:_MOST_NAMED]) + (", ..." if len(missing) > _MOST_NAMED else "")
        raise damaged(
            f"checkpoint {directory}: {len(missing)} of the {len(ledger.paths)} state files that the ledger names are "
            f"missing or cut short ({some})"
        )


def check_whole(directory: Path, ledger: SiteLedger) -> list[Path]:
    """Refuse half a checkpoint; of Spark's log the entries that a power cut has torn and that are to be removed."""
    check_files(directory, ledger)
    log = SparkLog(directory / SPARK, ledger.ingested_batch, ledger.log)
    log.check()
    return log.torn()


def _columns(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def kept_columns(root: Path) -> dict[str, list[str]]:
    """The columns that the windows of each query keep in the checkpoints that are there."""
    found: dict[str, list[str]] = {}
    for path in sorted(root.glob("*/identity.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # refused when it is opened
            stored = json.loads(path.read_text(encoding="utf-8"))
            for queries in (stored["queries"], stored.get(_NEXT, stored)["queries"]):
                found |= {name: query[KEPT] for name, query in queries.items()}
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


def refuse_old_forms(root: Path) -> None:
    """Refuse a directory with checkpoints of an earlier version."""
    for identity in sorted(root.glob("*/identity.json")) + sorted(root.glob("*/*/identity.json")):
        refuse_old_form(identity)


def refuse_old_form(identity: Path) -> None:
    """Refuse a checkpoint of an earlier version."""
    try:
        version = json.loads(identity.read_text(encoding="utf-8")).get("format")
    except (OSError, ValueError, AttributeError):
        return  # it is refused when it is read
    if version != FORMAT:
        how = _OLD_FORMS.get(version, f"in form {version}; this version has form {FORMAT}")
        raise CheckpointMismatch(
            f"checkpoint {identity.parent} was made by an earlier version, {how}: give --checkpoint another place, and "
            "empty sinks"
        )
