"""Spark's own log of a site, judged by the ledger.

Spark writes `offsets/N`, what micro-batch N reads, before it runs N, and `commits/N` after that. The ledger takes note
of N in between, when `offsets/N` and what it refers to in `sources/` are flushed. So Spark's log is at the ledger's
micro-batch or at the next one, which was planned and never ingested. Spark's entries have no checksums; the ledger has
those of the entries that it relies on.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watersmeet.errors import damaged
from watersmeet.spark.durable import tree

CLIENT = "client"  # a file in the place of the log, where a client numbers the micro-batches
_OFFSETS_LINES, _COMMITS_LINES = 3, 2  # at least: a version, metadata, and of offsets one line a source


@dataclass(frozen=True, slots=True)
class SparkLog:
    """Spark's part of a checkpoint, and the last micro-batch that the ledger has as ingested."""

    directory: Path
    ingested: int
    checksums: Mapping[str, int] = field(default_factory=dict)  # of entries, by name, as the ledger has them

    @property
    def is_clients(self) -> bool:
        """Whether a client of Spark Connect numbers the micro-batches, and Spark has no log of them."""
        return (self.directory / CLIENT).exists()

    def needed(self) -> Iterator[str]:
        """What must be there at the next start: offsets, and what sources have written down."""
        if self.is_clients:
            yield from map(str, (self.directory, self.directory / CLIENT))
            return
        offsets = self.directory / "offsets"
        numbered = (offsets / str(number) for number in self._numbers)
        yield from map(str, (self.directory, self._metadata, offsets, *numbered))
        if (self.directory / "sources").exists():
            yield from tree(self.directory / "sources")

    def with_checksums(self) -> dict[str, int]:
        """The checksums of the entries that the ledger's micro-batch relies on; those known already are not read."""
        paths = [] if self.is_clients else [path for path in self._relied_on() if path.exists()]
        names = {str(path.relative_to(self.directory)): path for path in paths}
        return {name: self.checksums.get(name) or zlib.crc32(path.read_bytes()) for name, path in names.items()}

    def _relied_on(self) -> Iterator[Path]:
        yield self._metadata
        yield from (self.directory / "offsets" / str(number) for number in self._numbers)
        for source in sorted(self.directory.glob("sources/*")):
            end = self._end(self.ingested, source.name)
            lists = [path for path in self._lists(source.name) if end is None or _number(path) <= end]
            wholes = [path for path in lists if path.suffix == ".compact"]
            whole = max(wholes, key=_number, default=None)
            yield from (path for path in lists if whole is None or path == whole or _number(path) > _number(whole))

    @property
    def _numbers(self) -> range:
        return range(max(0, self.ingested - 1), self.ingested + 1)

    def _check_checksums(self) -> None:
        for name, checksum in self.checksums.items():
            path = self.directory / name
            if not path.exists() and self._is_in_later_list(path):
                continue
            if not path.exists() or zlib.crc32(path.read_bytes()) != checksum:
                raise damaged(f"Spark's log is damaged at {path}, its checksum does not match")

    def _is_in_later_list(self, path: Path) -> bool:
        """Whether Spark has put a list together with later ones since."""
        later = self._lists(path.parent.name) if path.parent.parent.name == "sources" else []
        return any(one.suffix == ".compact" and _number(one) > _number(path) for one in later)

    def check(self) -> None:
        """Refuse a log that does not belong to the ledger."""
        if self.is_clients:
            return
        offsets, commits = dict(self._entries("offsets")), dict(self._entries("commits"))
        needed = [(self.directory / "offsets" / str(number), _OFFSETS_LINES) for number in self._numbers]
        needed += [(self._metadata, 1)] if self.ingested >= 0 else []
        for path, lines in needed:
            if not path.exists() or not _is_whole(path, lines):
                raise damaged(
                    f"Spark's log and the ledger do not agree: {path} is {'damaged' if path.exists() else 'missing'}, "
                    f"but the ledger has micro-batch {self.ingested} as ingested"
                )
        last = max((*(number - 1 for number in offsets), *commits), default=-1)
        if last > self.ingested:
            raise damaged(
                f"Spark's log and the ledger do not agree: {self.directory} has run micro-batch {last}, but the ledger "
                f"ends with {self.ingested if self.ingested >= 0 else 'none'}"
            )
        self._check_checksums()

    def torn(self) -> list[Path]:
        """Entries that a power cut has torn and that Spark can do without: nothing of them was used.

        Without `commits/N` Spark runs N again, which the ledger passes over; what was not ingested it plans anew.
        """
        found = [path for _, path in self._entries("commits") if not _is_whole(path, _COMMITS_LINES)]
        # Spark refuses to plan its first micro-batch where a killed one has left the beginning of an entry.
        found += sorted(self.directory.glob("offsets/.*.tmp"))
        has_metadata = self._metadata.exists() and _is_whole(self._metadata, 1)
        found += [] if has_metadata or not self._metadata.exists() else [self._metadata]
        lists = [path for path in self._lists() if not _is_whole(path, 1)]
        for path in lists:
            end = self._end(self.ingested, path.parent.name) if self.ingested >= 0 else -1
            if end is None or _number(path) <= end:
                raise damaged(f"Spark's log is damaged at {path}")
        for number, path in self._entries("offsets"):
            is_whole = has_metadata and not lists and _is_whole(path, _OFFSETS_LINES) and self._has_lists(number)
            if number > self.ingested and not is_whole:
                found.append(path)
        return found + lists

    @property
    def _metadata(self) -> Path:
        """The identity of Spark's query, without which it refuses its log."""
        return self.directory / "metadata"

    def _entries(self, kind: str) -> Iterator[tuple[int, Path]]:
        place = self.directory / kind
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.name.isdigit():
                yield int(path.name), path

    def _lists(self, source: str = "*") -> list[Path]:
        """What sources have written down, such as lists of files; plain (`7`) or with those before it (`9.compact`)."""
        return sorted(path for path in self.directory.glob(f"sources/{source}/*") if _number(path) >= 0)

    def _has_lists(self, batch: int) -> bool:
        """Whether the lists of files up to which a planned micro-batch goes are there."""
        known = {(path.parent.name, _number(path)) for path in self._lists()}
        ends = [(path.name, self._end(batch, path.name)) for path in self.directory.glob("sources/*")]
        return all(end is None or end < 0 or (source, end) in known for source, end in ends)

    def _end(self, batch: int, source: str) -> int | None:
        """The last list of files that a micro-batch reads of a source, -1 before the first; None of other sources."""
        lines = _lines(self.directory / "offsets" / str(batch))[2:]
        offset = lines[int(source)] if source.isdigit() and int(source) < len(lines) else ""
        found = _json_of([offset])
        return -1 if offset == "-" else found.get("logOffset") if isinstance(found, dict) else None


def _number(path: Path) -> int:
    name = path.name.removesuffix(".compact")
    return int(name) if name.isdigit() else -1


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").lstrip("\0").splitlines()  # Kafka writes a zero first


def _is_whole(path: Path, least: int) -> bool:
    """Whether an entry is as Spark wrote it, as far as its form tells: a version, then lines, most of them JSON."""
    lines = _lines(path)
    is_cut = lines[-1:] and lines[-1].startswith("{") and _json_of(lines[-1:]) is None
    return len(lines) >= least and lines[0].startswith(("v", "{")) and not is_cut


def _json_of(lines: list[str]) -> Any:
    try:
        return json.loads("".join(lines))
    except ValueError:
        return None
