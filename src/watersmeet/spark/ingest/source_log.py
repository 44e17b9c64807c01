"""What Spark's own logs in a checkpoint say about input files: which were listed, and for which batch.

Spark writes the files that it lists to `sources/N/M` and then, in `offsets/B`, up to which M batch B goes. Killed in
between, it would make one larger batch of those files and the ones it lists next. Which rows are late goes by batches,
so the answers could be others than those of an undisturbed run: before a start, what is in no batch is struck out and
Spark lists it again.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from watersmeet.spark.ingest.new_files import is_local, local_path

_NONE = -1  # before the first list of files
_OTHER_FORMS = (OSError, ValueError, KeyError, TypeError)  # of logs that are not a file source's: Spark goes by them


def missing_inputs(checkpoint: str) -> list[str]:
    """Input files of an unfinished batch that have been removed since it was planned."""
    try:
        return sorted(path for path in _planned_inputs(Path(checkpoint)) if not os.path.exists(path))
    except _OTHER_FORMS:
        return []  # Spark itself will say what is missing


def listed_elsewhere(checkpoint: str, roots: Mapping[str, str]) -> dict[str, str]:
    """Streams, by the directories of their files, that nothing was listed of, where files of others were; and one such.

    Spark would read all files of a directory that was moved again.
    """
    unseen, other = dict(roots), ""
    try:
        for _, path in _lists(Path(checkpoint)):
            for file in map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:]):
                name = _listed_as(file["path"])
                of = [stream for stream, root in roots.items() if name.startswith(root)]
                other = name if not of else other
                for stream in of:
                    unseen.pop(stream, None)
            if not unseen:
                return {}
    except _OTHER_FORMS:
        return {}
    return dict.fromkeys(unseen, other) if other else {}


def root_of(path: str) -> str:
    """What all files begin with that a source's path or pattern means, as `listed_elsewhere` compares them."""
    plain = re.split(r"[*?\[{\\]", path)[0]
    base = path if plain == path else plain.rpartition("/")[0]
    return os.path.normpath(os.path.join(os.getcwd(), local_path(base))) if is_local(base) else base.rstrip("/")


def _listed_as(path: str) -> str:
    parsed = urlparse(path)
    return os.path.normpath(unquote(parsed.path)) if parsed.scheme in ("", "file") else unquote(path)


def strike_out_unplanned(checkpoint: str) -> None:
    """Forget the files that Spark had listed for a batch that it did not come to plan."""
    root = Path(checkpoint)
    try:
        end = _last_planned(root)
        for number, path in _lists(root):
            if int(path.name.removesuffix(".compact")) > end(number):
                _strike_out(path, end(number))
    except _OTHER_FORMS:
        pass


def _strike_out(path: Path, end: int) -> None:
    version, *lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if _list_of(json.loads(line)) <= end]
    if len(kept) < len(lines):
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # the checksum of what was there
        fresh = path.with_name(f".{path.name}.struck.tmp")
        fresh.write_text("\n".join([version, *kept]), encoding="utf-8")
        os.replace(fresh, path)


def _planned_inputs(root: Path) -> set[str]:
    batches = _batches(root)
    if not batches or (root / "commits" / str(batches[-1])).exists():
        return set()
    end = _last_planned(root)
    start = _offsets(root, batches[-2]) if len(batches) > 1 else lambda number: _NONE
    return {
        unquote(urlparse(file["path"]).path)
        for number, path in _lists(root)
        for file in map(json.loads, path.read_text(encoding="utf-8").splitlines()[1:])
        if start(number) < _list_of(file) <= end(number)
    }


def _list_of(file: Any) -> int:
    """The list that a file was first in; other sources write other things there, which are let be."""
    return int(file["batchId"]) if isinstance(file, dict) and "batchId" in file else _NONE


def _lists(root: Path) -> Iterator[tuple[int, Path]]:
    """Every list of files, plain (`7`) or together with those before it (`9.compact`), with its source's number."""
    for source in (root / "sources").iterdir():
        for path in source.iterdir():
            if path.name.removesuffix(".compact").isdigit():
                yield int(source.name), path


def _batches(root: Path) -> list[int]:
    return sorted(int(entry.name) for entry in (root / "offsets").iterdir() if entry.name.isdigit())


def _last_planned(root: Path) -> Callable[[int], int]:
    batches = _batches(root)
    return _offsets(root, batches[-1]) if batches else lambda number: _NONE


def _offsets(root: Path, batch: int) -> Callable[[int], int]:
    """Up to which list a batch goes, for each source."""
    lines = (root / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2:]
    ends = [_NONE if line == "-" else _end(json.loads(line)) for line in lines]
    return lambda number: ends[number] if number < len(ends) else _NONE


def _end(offset: Any) -> int:
    return int(offset["logOffset"]) if isinstance(offset, dict) and "logOffset" in offset else _NONE
