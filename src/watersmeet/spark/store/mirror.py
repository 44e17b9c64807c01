"""The directory on this machine in which checkpoints of an object store are worked on.

CACHE/DIGEST/origin        the URL that it is a copy of
             SITE/...      as in a local checkpoint (see spark.checkpoint), locked by the process that runs the site

It may be removed at any time: the store has all that counts. A process that takes a site over fetches the small files
anew, and keeps copies of state files that are there, since their names tell what is in them.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeVar

from watersmeet.errors import CheckpointMismatch
from watersmeet.metrics.jsonl import KEPT, KEPT_BEFORE, WATCHED
from watersmeet.spark.durable import UNFLUSHED, lock
from watersmeet.spark.files import FileShelf
from watersmeet.spark.store.cache import cache_directory
from watersmeet.spark.store.lease import LEASE
from watersmeet.spark.store.object_store import ObjectStore, local_directory, open_store
from watersmeet.spark.store.protocol import Store, Version
from watersmeet.spark.store.shelf import STATE, StoreShelf

_ORIGIN = "origin"
_AT_ONCE = 16  # requests under way
_LOCAL = (STATE, "lock", KEPT, KEPT_BEFORE, WATCHED)  # of this machine: cached, or about a run here

Item = TypeVar("Item")
Result = TypeVar("Result")


def local_root(place: str | Path) -> Path:
    """The directory in which the checkpoints at a place are worked on: the place itself, or a mirror of a store."""
    return local_directory(place) or mirror_of(place)


def mirror_of(url: str | Path) -> Path:
    """The directory for the checkpoints at a URL, with what the store has of them now.

    A site that another process of this machine runs is left as it is: that process keeps it as it is in the store.
    """
    store = open_store(url)
    root = cache_directory() / hashlib.sha256(store.url.encode()).hexdigest()[:16]
    UNFLUSHED.make(root)
    if not (root / _ORIGIN).exists():
        UNFLUSHED.replace(root / _ORIGIN, store.url)
    there = store.places()
    for site in {*there, *(path.parent.name for path in root.glob("*/lock"))}:
        UNFLUSHED.make(root / site)
        with contextlib.suppress(CheckpointMismatch), lock(root / site):
            pull(store.below(site), root / site)
    return root


def origin_of(directory: Path) -> ObjectStore | None:
    """What the directory of a site is a copy of; None where it is the checkpoint itself."""
    store = store_of(directory.parent)
    return None if store is None else store.below(directory.name)


def store_of(root: Path) -> ObjectStore | None:
    """What the directory of all sites' checkpoints is a copy of; None where it is the checkpoint itself."""
    try:
        url = (root / _ORIGIN).read_text(encoding="utf-8")
    except OSError:
        return None
    return open_store(url)


def shelf_of(directory: Path) -> FileShelf:
    """The state files of a site's checkpoint, to be read."""
    store = origin_of(directory)
    place = str(directory / STATE)
    return FileShelf(place) if store is None else StoreShelf(place, store=store)


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a store had of a site, apart from state files all of it read."""

    versions: dict[str, Version]  # by key
    state: frozenset[str]  # names of state files


def pull(store: Store, directory: Path) -> Pulled:
    """Make a directory as the store has it, apart from state files; those are fetched when they are read."""
    keys = store.sizes()
    wanted = [key for key in keys if key != LEASE and not key.startswith((f"{STATE}/", "."))]
    found = dict(zip(wanted, in_parallel(store.get, wanted), strict=True))
    for entry in directory.iterdir():
        if entry.name not in _LOCAL:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    versions = {}
    for key, stored in found.items():
        if stored is not None and ".." not in PurePosixPath(key).parts:
            path = directory / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored.data)
            versions[key] = stored.version
    return Pulled(versions, frozenset(key.removeprefix(f"{STATE}/") for key in keys if key.startswith(f"{STATE}/")))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, "store")


def in_parallel(function: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    """Ask the store several things at the same time."""
    return [function(item) for item in items] if len(items) < 2 else list(_threads().map(function, items))
