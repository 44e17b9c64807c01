"""A site's checkpoint in an object store while this process holds it.

A process that was stopped for long and has lost its lease without knowing does no harm: its commits are refused, its
state files have names of their own, and it deletes only what was there before a commit of its own took place and that
commit does not need.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watersmeet.errors import CheckpointMismatch
from watersmeet.spark.durable import UNFLUSHED, Disk
from watersmeet.spark.store.lease import Lease, this_place
from watersmeet.spark.store.mirror import in_parallel, pull
from watersmeet.spark.store.object_store import ObjectStore
from watersmeet.spark.store.protocol import Conflict, StoreFailed, Version, check_conditions
from watersmeet.spark.store.shelf import STATE, StoreShelf

_SPARK = "spark/"
_SWEPT = 200  # calls after which state files are looked for that tasks have written and no ledger names


@dataclass(frozen=True, kw_only=True)
class HeldDisk(Disk):
    """A directory whose files count when the store has them; the disk that it is on is not flushed."""

    store: ObjectStore
    root: Path
    versions: dict[str, Version]  # by key, of objects that are replaced: the one that we know of
    names: set[str]  # state files in the store, as far as this process knows

    def flush(self, paths: Iterable[str | Path]) -> None:
        """Have files copied to the store, all at the same time."""
        files = [name for name in sorted({str(path) for path in paths}) if not os.path.isdir(name)]
        in_parallel(self._send, files)

    def replace(self, path: Path, text: str, after: Iterable[str | Path] = ()) -> None:
        """Put an object in place of the one that we know of, once those that it names are there."""
        self.flush(after)
        key, data = self.key(path), text.encode()
        known = self.versions.get(key)
        try:
            fresh = self.store.create(key, data) if known is None else self.store.replace(key, data, known)
        except Conflict:
            raise CheckpointMismatch(
                f"checkpoint {self.store.url} was taken over by another run, so this one stops; run each site once"
            ) from None
        self.versions[key] = fresh
        UNFLUSHED.replace(path, text)

    def make(self, directory: str | Path) -> None:
        """Make a directory here; a store has none."""
        UNFLUSHED.make(directory)

    def key(self, path: str | Path) -> str:
        """The key of the object that a file is a copy of."""
        return Path(path).relative_to(self.root).as_posix()

    def _send(self, path: str) -> None:
        key = self.key(path)
        self.store.put(key, Path(path))
        if key.startswith(f"{STATE}/"):
            self.names.add(key.removeprefix(f"{STATE}/"))


class HeldStore:
    """Holds the lease; everything that is written to the store for the checkpoint goes through here."""

    def __init__(self, store: ObjectStore, directory: Path, *, is_shared: bool) -> None:
        check_conditions(store)
        self._lease = Lease(store, this_place(str(directory)))
        self._deleting = ThreadPoolExecutor(1, "delete")  # nobody waits for it: what is left goes at the next start
        try:
            pulled = pull(store, directory)
        except BaseException:
            self.close()
            raise
        self.is_shared = is_shared
        self._store = store
        self.names = set(pulled.state)
        self._log = {key for key in pulled.versions if key.startswith(_SPARK)}
        versions = {key: version for key, version in pulled.versions.items() if not key.startswith(_SPARK)}
        self.disk = HeldDisk(flushes=False, store=store, root=directory, versions=versions, names=self.names)
        self.shelf = StoreShelf(str(directory / STATE), store=store, writes_through=is_shared)
        self._calls = 0
        self._listed = frozenset[str]()  # before the last commit

    @property
    def stamp(self) -> str:
        """What tells commits of this process from those of all others."""
        return self._lease.stamp

    def keep_log(self, paths: Iterable[str]) -> None:
        """Delete entries of Spark's log that the commit just made does not rely on."""
        kept = {self.disk.key(path) for path in paths}
        gone, self._log = self._log - kept, kept
        self._delete(gone)

    def forget_state(self, named: frozenset[str]) -> None:
        """Delete state files that the ledger just committed does not name; not while tasks are writing."""
        self._calls += 1
        gone = (self.names | self._listed) - named
        self._listed = frozenset()
        if self.is_shared and self._calls % _SWEPT == 0:  # deleted after the next commit, which shows that we still may
            self._listed = frozenset(key.removeprefix(f"{STATE}/") for key in self._store.sizes(f"{STATE}/"))
        self.names.difference_update(gone)  # the disk adds to the same set
        self.names.update(named)
        self._delete({f"{STATE}/{name}" for name in gone})

    def show_tasks(self, path: Path) -> None:
        """Let tasks on other machines read a file."""
        if self.is_shared:
            self._store.put(self.disk.key(path), path)

    def keep(self, path: Path) -> None:
        """Keep a file without which nothing is lost."""
        with suppress(StoreFailed):
            self._store.put(self.disk.key(path), path)

    def close(self) -> None:
        """Let others have the checkpoint."""
        self._deleting.shutdown(wait=True)
        self._lease.release()

    def _delete(self, keys: set[str]) -> None:
        if keys:
            self._deleting.submit(self._try_to_delete, keys)

    def _try_to_delete(self, keys: set[str]) -> None:
        with suppress(StoreFailed):
            self._store.delete(keys)
