"""The few things done to directories of answers: on a local disk, in an object store, or on what Hadoop knows."""

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from watersmeet.errors import RunError
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.durable import UNFLUSHED, Disk
from watersmeet.spark.store.cache import cache_directory
from watersmeet.spark.store.object_store import ObjectStore, is_installed, is_object_url, open_store
from watersmeet.spark.store.protocol import Conflict


class Storage(Protocol):
    """Directories and files by path; every operation raises on failure."""

    is_local: bool
    stages_here: bool  # whether files are put aside on this machine before they are published

    def staging(self, directory: str, run_id: str) -> str:
        """Where a run puts the files of a directory aside: a place of this run alone."""

    def make(self, directory: str, *, lasting: bool = False) -> None:
        """Make a directory and its parents, to last or for a moment."""

    def names(self, directory: str) -> list[str]:
        """What a directory holds, in order; nothing if it is not there."""

    def move(self, source: str, target: str) -> None:
        """Give a file another name in one step."""

    def remove(self, path: str) -> None:
        """Remove a file or a whole directory, if it is there."""

    def exists(self, path: str) -> bool:
        """Whether a file is there."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file that lasts where there is none; False if somebody else was faster."""

    def read(self, path: str) -> bytes | None:
        """What a small file holds; None if it is not there."""

    def flush(self, paths: Iterable[str]) -> None:
        """Make files, and the names in directories, survive a power cut."""

    def hold(self, directory: str) -> Callable[[], None] | None:
        """Make a directory and hold it until the returned function is called; None if another process holds it."""


class LocalStorage:
    """The local disk, without a detour through Java: Hadoop starts a process to set a file's permissions."""

    is_local = True
    stages_here = True

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def staging(self, directory: str, run_id: str) -> str:
        return _beside(directory, run_id)

    def make(self, directory: str, *, lasting: bool = False) -> None:
        (self._disk if lasting else UNFLUSHED).make(directory)

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []

    def move(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def create(self, path: str, data: bytes) -> bool:
        aside = f"{path}.{uuid.uuid4().hex[:12]}"
        try:
            Path(aside).write_bytes(data)
            self._disk.flush([aside])
            with suppress(FileExistsError, FileNotFoundError):  # somebody was faster, and has removed ours perhaps
                os.link(aside, path)
                self._disk.flush([os.path.dirname(path)])
                return True
            return False
        finally:
            Path(aside).unlink(missing_ok=True)

    def read(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return Path(path).read_bytes()
        return None

    def flush(self, paths: Iterable[str]) -> None:
        self._disk.flush(paths)

    def hold(self, directory: str) -> Callable[[], None] | None:
        while True:
            self.make(directory)
            with suppress(FileNotFoundError):  # whoever held it has just removed it
                handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_there = os.path.samestat(os.fstat(handle), os.stat(directory))
                except BlockingIOError:
                    os.close(handle)
                    return None
                except OSError:
                    os.close(handle)
                    raise
                if is_there:
                    return partial(os.close, handle)
                os.close(handle)


class ObjectStorage(LocalStorage):
    """A directory of an object store: files are put aside on the local disk, and published by an upload each."""

    is_local = False

    def __init__(self) -> None:
        super().__init__(UNFLUSHED)

    def staging(self, directory: str, run_id: str) -> str:
        digest = hashlib.sha256(directory.encode()).hexdigest()[:16]
        return str(cache_directory() / "staging" / f"{digest}.{run_id}")

    def make(self, directory: str, *, lasting: bool = False) -> None:
        if is_object_url(directory):
            store, name = _parted(directory)
            if name.startswith("."):  # to try whether it can be written; otherwise a store has no directories
                store.put(name, b"")
        else:
            super().make(directory, lasting=lasting)

    def names(self, directory: str) -> list[str]:
        if not is_object_url(directory):
            return super().names(directory)
        return sorted(key for key in open_store(directory).sizes() if "/" not in key)

    def move(self, source: str, target: str) -> None:
        store, name = _parted(target)
        if not is_object_url(source):
            store.put(name, Path(source))
            os.unlink(source)
            return
        origin, known = _parted(source)
        stored = origin.get(known)
        if stored is not None:
            store.put(name, stored.data)
            origin.delete([known])

    def remove(self, path: str) -> None:
        if is_object_url(path):
            store, name = _parted(path)
            store.delete([name])
        else:
            super().remove(path)

    def exists(self, path: str) -> bool:
        store, name = _parted(path)
        return store.has(name)

    def create(self, path: str, data: bytes) -> bool:
        store, name = _parted(path)
        with suppress(Conflict):
            store.create(name, data)
            return True
        return False

    def read(self, path: str) -> bytes | None:
        store, name = _parted(path)
        found = store.get(name)
        return None if found is None else found.data

    def flush(self, paths: Iterable[str]) -> None:
        """What a store has taken it keeps."""


class HadoopStorage:
    """Any other file system, such as s3a:// or hdfs://."""

    is_local = False
    stages_here = False

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._files, self._path = backend_of(spark).hadoop_files(root)

    def staging(self, directory: str, run_id: str) -> str:
        return _beside(directory, run_id)

    def make(self, directory: str, *, lasting: bool = False) -> None:
        if not self._files.mkdirs(self._path(directory)):
            raise RunError(f"{directory} cannot be made")

    def names(self, directory: str) -> list[str]:
        if not self._files.exists(self._path(directory)):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(self._path(directory)))

    def move(self, source: str, target: str) -> None:
        if not self._files.rename(self._path(source), self._path(target)):
            raise RunError(f"{source} cannot be renamed to {target}")

    def remove(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        try:
            file = self._files.create(self._path(path), False)
        except Py4JJavaError:
            if self.exists(path):  # somebody was faster
                return False
            raise
        try:
            file.write(bytearray(data))
        finally:
            file.close()
        return True

    def read(self, path: str) -> bytes | None:
        if not self.exists(path):
            return None
        file = self._files.open(self._path(path))
        try:
            return bytes(file.readAllBytes())
        finally:
            file.close()

    def flush(self, paths: Iterable[str]) -> None:
        """What such a file system has closed it keeps."""

    def hold(self, directory: str) -> Callable[[], None] | None:
        """Such a file system has no locks: nobody is kept out."""
        self.make(directory)
        return lambda: None


def open_storage(spark: SparkSession, path: str, disk: Disk) -> tuple[Storage, str]:
    """The storage a path lies on, and the path as that storage writes it."""
    parsed = urlparse(path)
    if parsed.scheme in ("", "file"):
        return LocalStorage(disk), os.path.abspath(unquote(parsed.path) if parsed.scheme else path)
    if is_object_url(path) and is_installed():
        return ObjectStorage(), path.rstrip("/")
    return HadoopStorage(spark, path), path.rstrip("/")


def _beside(directory: str, run_id: str) -> str:
    parent, _, name = directory.rpartition("/")
    return f"{parent}/.{name}.{run_id}.staging"


def _parted(url: str) -> tuple[ObjectStore, str]:
    """The store that an object is in, and its name there."""
    parent, _, name = url.rpartition("/")
    return open_store(parent), name
