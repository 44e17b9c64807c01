"""Which files of a stream are new: listed by the driver, in the order they were modified in, each read once.

Spark's file source leaves out files by their age, and writes every name it has ever seen again and again. Here the
names of files that were read are part of the ledger, as their rows are: both are committed at once.
"""

import fnmatch
import glob
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from watersmeet.errors import InputError
from watersmeet.program.storage.shelf import Part
from watersmeet.spark.files import FileShelf
from watersmeet.topology.model import Source, Stream

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro", "xml")

_LISTING_OPTIONS = {"maxfilespertrigger", "maxbytespertrigger", "latestfirst", "pathglobfilter", "recursivefilelookup"}
_OPTIONS_OF_SPARK = {"maxfileage", "filenameonly", "cleansource", "sourcearchivedir"}
_SINK_LOG = "_spark_metadata"  # tells which files of a directory count, where a streaming query of Spark writes it
_MANY_NAMES = 1_000  # among so many those of files that are gone are left out


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was listed."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Where a stream's files are, and how many of them make a micro-batch."""

    pattern: str
    name_filter: str | None = None
    recursive: bool = False
    latest_first: bool = False
    max_files: int | None = None
    max_bytes: int | None = None

    def files(self, known: Collection[str] = ()) -> list[InputFile]:
        """The files that are there and not known yet, first the one that is to be read first."""
        found = []
        for path in self._paths():
            if path not in known:
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue
                found.append((status.st_mtime_ns, path, status.st_size))
        return [InputFile(path, size) for _, path, size in sorted(found, reverse=self.latest_first)]

    def first(self, waiting: Sequence[InputFile]) -> list[InputFile]:
        """As many of the files that wait as a micro-batch may have, at least one."""
        taken: list[InputFile] = []
        size = 0
        for file in waiting[: self.max_files]:
            size += file.bytes
            if taken and self.max_bytes is not None and size > self.max_bytes:
                break
            taken.append(file)
        return taken

    def _paths(self) -> Iterator[str]:
        for root in glob.glob(self.pattern):
            if os.path.isdir(root):
                yield from self._in_directory(root)
            else:
                yield root

    def _in_directory(self, directory: str) -> Iterator[str]:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name == _SINK_LOG:
                        raise InputError(
                            f"a Spark streaming query has begun to write {directory}; start the run again, to read "
                            "only what that query has committed"
                        )
                    if entry.is_dir():
                        if not _is_hidden(entry.name) and (self.recursive or "=" in entry.name):  # `day=7`: a column
                            yield from self._in_directory(entry.path)
                    elif not _is_hidden(entry.name) and fnmatch.fnmatchcase(entry.name, self.name_filter or "*"):
                        yield entry.path
        except FileNotFoundError:
            return  # it may come back, with files
        except OSError as error:
            raise InputError(f"{directory} cannot be listed: {error.strerror}; mend that and start again") from None


def listing_of(stream: Stream) -> Listing | None:
    """How to list the files of a stream; None if that is left to Spark."""
    source = stream.source
    if source is None or source.format not in FILE_FORMATS or not source.path or not is_local(source.path):
        return None
    options = {name.casefold(): value for name, value in source.options.items()}
    pattern = local_path(source.path)
    if options.keys() & _OPTIONS_OF_SPARK or "{" in pattern or os.path.exists(os.path.join(pattern, _SINK_LOG)):
        return None
    try:
        return Listing(
            pattern,
            options.get("pathglobfilter"),
            options.get("recursivefilelookup", "false").casefold() == "true",
            options.get("latestfirst", "false").casefold() == "true",
            _count(options.get("maxfilespertrigger")),
            _count(options.get("maxbytespertrigger")),
        )
    except ValueError:
        return None  # Spark knows more forms, and says what is wrong


def reader_options(source: Source) -> dict[str, str]:
    """The options of a source that say how its files are read, not which are."""
    return {name: value for name, value in source.options.items() if name not in listing_options(source)}


def listing_options(source: Source) -> dict[str, str]:
    """The options of a source that say which of its files are read, and when."""
    known = _LISTING_OPTIONS | _OPTIONS_OF_SPARK
    return {name: value for name, value in source.options.items() if name.casefold() in known}


def is_local(path: str) -> bool:
    """Whether files are on a file system of this machine."""
    return "://" not in path or path.startswith("file://")


def local_path(path: str) -> str:
    """The path that a source's path or URL means on this machine."""
    return os.path.expanduser(path.removeprefix("file://"))


def on_this_machine(path: str) -> str:
    """The path of a file as Spark names it (`file:/data/1.parquet`), without its scheme where it is on this machine."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


class NewFiles:
    """The files of a site's streams that have not been read yet.

    The names of those that were are state files too, each with as many names as the next ones together, or more: so
    there are few, and a name is written again only a few times.
    """

    def __init__(self, listings: Mapping[str, Listing], shelf: FileShelf, inputs: Sequence[Part]) -> None:
        self._listings = listings
        self._shelf = shelf
        self._kept = [(part, _names(shelf, part)) for part in inputs]
        self._known: dict[str, set[str]] = {stream: set() for stream in listings}
        self._waiting: dict[str, list[InputFile]] = {stream: [] for stream in listings}
        for _, names in self._kept:
            for stream, path in names:
                self._known.setdefault(stream, set()).add(path)

    def follow(self, listings: Mapping[str, Listing]) -> None:
        """Look for files of other streams from now on; what was read of those that end stays known."""
        self._listings = listings
        for stream in listings:
            self._known.setdefault(stream, set())
            self._waiting.setdefault(stream, [])

    def look(self) -> None:
        """Look for new files of streams of which none waits."""
        for stream, listing in self._listings.items():
            if not self._waiting[stream] or listing.latest_first:
                self._waiting[stream] = listing.files(self._known[stream])

    @property
    def next(self) -> dict[str, list[InputFile]]:
        """The files of the next micro-batch, by stream, of those that were listed."""
        first = {stream: listing.first(self._waiting[stream]) for stream, listing in self._listings.items()}
        return {stream: files for stream, files in first.items() if files}

    def take(self, batch: Mapping[str, Sequence[InputFile]]) -> tuple[Part, ...]:
        """The files of a micro-batch have been read: the state files that say so, once the ledger names them."""
        names = [(stream, file.path) for stream, files in batch.items() for file in files]
        for stream in batch:
            read = {path for of, path in names if of == stream}
            self._known[stream] |= read
            self._waiting[stream] = [file for file in self._waiting[stream] if file.path not in read]
        while self._kept and len(self._kept[-1][1]) <= len(names):
            names = self._kept.pop()[1] + names
        if len(names) >= _MANY_NAMES:
            names = [(stream, path) for stream, path in names if self._remembers(stream, path)]
        data = json.dumps(names).encode()
        part = Part(self._shelf.put_bytes("inputs", data), len(names), len(data))
        self._kept.append((part, names))
        return tuple(part for part, _ in self._kept)

    def _remembers(self, stream: str, path: str) -> bool:
        """Whether a file is still there; another one that is given its name when it has long been gone is new."""
        if os.path.exists(path):
            return True
        self._known[stream].discard(path)
        return False


def _names(shelf: FileShelf, part: Part) -> list[tuple[str, str]]:
    return [(stream, path) for stream, path in json.loads(shelf.get_bytes(part.path))]


def _is_hidden(name: str) -> bool:
    """As to Spark: names of files under way, of logs and of other programs."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    count = int(text)
    if count <= 0:
        raise ValueError(text)
    return count
