"""Which files of a stream are new: listed by the driver, in the order they were modified in, each read once.

Spark's file source leaves out files by their age, and writes every name it has ever seen again and again. Here the
names of files that were read are part of the ledger, as their rows are: both are committed at once. Beside each name is
a print of the file, by which it is known again under another directory: data may be moved, copied and restored with
the checkpoint, or be reached by another path.
"""

import contextlib
import fnmatch
import glob
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from watersmeet.errors import InputError
from watersmeet.program.storage.shelf import Part
from watersmeet.spark.files import FileShelf
from watersmeet.topology.model import Source, Stream

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro", "xml")

_LISTING_OPTIONS = {"maxfilespertrigger", "maxbytespertrigger", "latestfirst", "pathglobfilter", "recursivefilelookup"}
_OPTIONS_OF_SPARK = {"maxfileage", "filenameonly", "cleansource", "sourcearchivedir"}
_SINK_LOG = "_spark_metadata"  # tells which files of a directory count, where a streaming query of Spark writes it
_MANY_NAMES = 1_000  # among so many those of files that are gone are left out
_PRINT_BYTES = 32_768  # at the beginning and the end of a file, which are compared


class Print(NamedTuple):
    """What tells files of one name apart: the size, and a checksum of the beginning and the end."""

    bytes: int
    checksum: int


class ReadFile(NamedTuple):
    """A file of a stream that was read; without a print if it was gone by then."""

    stream: str
    path: str
    print: Print | None


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

    @property
    def root(self) -> str:
        """The directory that all files are in, or in directories of it."""
        place = Path(self.pattern)
        while glob.has_magic(str(place)) or not place.is_dir():
            if place == place.parent:
                break
            place = place.parent
        return str(place)

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
    pattern = os.path.join(os.getcwd(), local_path(source.path))
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

    def __init__(
        self,
        listings: Mapping[str, Listing],
        shelf: FileShelf,
        inputs: Sequence[Part],
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._listings: Mapping[str, Listing] = {}
        self._shelf = shelf
        self._warn = warn
        self._kept: list[tuple[Part | None, list[ReadFile]]] = [(part, _read_files(shelf, part)) for part in inputs]
        self._known: dict[str, set[str]] = {}
        self._waiting: dict[str, list[InputFile]] = {}
        for _, files in self._kept:
            for file in files:
                self._known.setdefault(file.stream, set()).add(file.path)
        self.follow(listings)

    def follow(self, listings: Mapping[str, Listing]) -> None:
        """Look for files of other streams from now on; what was read of those that end stays known."""
        began = [stream for stream in listings if stream not in self._listings]
        self._listings = listings
        for stream in began:
            known = self._known.setdefault(stream, set())
            self._waiting.setdefault(stream, [])
            if any(not path.startswith(_within(listings[stream].root)) for path in known):
                self._find_moved(stream, listings[stream])

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
        files = [ReadFile(stream, file.path, print_of(file.path)) for stream, some in batch.items() for file in some]
        for stream in batch:
            read = {file.path for file in files if file.stream == stream}
            self._known[stream] |= read
            self._waiting[stream] = [file for file in self._waiting[stream] if file.path not in read]
        while self._kept and (self._kept[-1][0] is None or len(self._kept[-1][1]) <= len(files)):
            files = self._kept.pop()[1] + files
        if len(files) >= _MANY_NAMES:
            files = [file for file in files if self._remembers(file)]
        data = json.dumps(files).encode()
        part = Part(self._shelf.put_bytes("inputs", data), len(files), len(data))
        self._kept.append((part, files))
        return tuple(part for part, _ in self._kept if part is not None)

    def _remembers(self, file: ReadFile) -> bool:
        """Whether a file is still there; another one that is given its name when it has long been gone is new."""
        if os.path.exists(file.path):
            return True
        self._known[file.stream].discard(file.path)
        return False

    def _find_moved(self, stream: str, listing: Listing) -> None:
        """Know files again that were read in another directory: the same names below it, with the same prints."""
        read: dict[str, list[ReadFile]] = {}
        for file in (file for _, files in self._kept for file in files if file.stream == stream):
            read.setdefault(os.path.basename(file.path), []).append(file)
        found = dict[ReadFile, str]()
        for path in (file.path for file in listing.files(self._known[stream])):
            ending = path.removeprefix(_within(listing.root))
            alike = [file for file in read.get(os.path.basename(path), ()) if file.path.endswith(f"/{ending}")]
            known = next((file for file in alike if _is_copy(path, file)), None)
            if known is not None:
                found[known] = path
        if not found:
            return
        self._known[stream] |= set(found.values())
        everything = [file for _, files in self._kept for file in files]
        self._kept = [(None, [file._replace(path=found.get(file, file.path)) for file in everything])]
        before = next(iter(found)).path
        self._warn(
            f"stream {stream!r}: {len(found):,} files in {listing.root} are those that were read before as {before}"
            + (" and others" if len(found) > 1 else "")
            + ", by their names and contents; they are not read again"
        )


def print_of(path: str) -> Print | None:
    """What tells a file from others of its name; None if it is not there."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        checksum = zlib.crc32(file.read(_PRINT_BYTES))
        file.seek(max(0, size - _PRINT_BYTES))
        return Print(size, zlib.crc32(file.read(_PRINT_BYTES), checksum))
    return None


def _is_copy(path: str, file: ReadFile) -> bool:
    """Whether a file is what was read, under another path."""
    if file.print is not None:
        return print_of(path) == file.print
    return os.path.exists(file.path) and os.path.samefile(path, file.path)


def _within(directory: str) -> str:
    return directory if directory.endswith("/") else f"{directory}/"


def _read_files(shelf: FileShelf, part: Part) -> list[ReadFile]:
    return [_read_file(*entry) for entry in json.loads(shelf.get_bytes(part.path))]


def _read_file(stream: str, path: str, known: Sequence[int] | None = None) -> ReadFile:
    return ReadFile(stream, path, None if known is None else Print(*known))


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
