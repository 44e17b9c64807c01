"""The columns that a stream's files have, beside those of its schema: a misspelt one would be NULL in every row."""

import csv
import gzip
import json
import os
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from watersmeet.errors import did_you_mean
from watersmeet.spark.ingest.new_files import listing_of
from watersmeet.topology.model import Source, Stream

_LINES = 1_000  # of a text file that are looked at


def unknown_column(stream: Stream) -> str | None:
    """What to tell of a column of a stream's schema that its files do not have; None if all is well or unknown.

    The first, the middle and the last file are looked at: columns may have been added over time.
    """
    source, listing = stream.source, listing_of(stream)
    if source is None or listing is None:
        return None
    paths = [file.path for file in listing.files() if file.bytes]
    some = [paths[number] for number in sorted({0, len(paths) // 2, len(paths) - 1})] if paths else []
    found = [columns for path in some if (columns := _columns(source, path)) is not None]
    if not found:
        return None
    if source.format == "csv":
        return _misplaced(stream, found[0], some[0])
    have = list(dict.fromkeys([*(name for columns in found for name in columns), *_of_directories(some)]))
    fold = str if source.format == "json" else str.casefold  # Spark compares the keys of JSON as they are
    missing = [name for name in stream.columns if fold(name) not in set(map(fold, have))]
    spare = [name for name in have if fold(name) not in set(map(fold, stream.columns))]
    if source.format == "json":  # a key may well be left out of some rows: only one that looks misspelt is told of
        missing = [name for name in missing if get_close_matches(name.casefold(), map(str.casefold, spare))]
    if not missing:
        return None
    return (
        f"{stream.what}: its schema has a column {missing[0]!r} that its files, such as {some[0]}, do not "
        f"have, so it would be NULL in every row; {did_you_mean(missing[0], have)}"
    )


def _misplaced(stream: Stream, header: Sequence[str], path: str) -> str | None:
    """Columns of CSV go by their place, whatever the header says."""
    for place, (name, found) in enumerate(zip(stream.columns, header, strict=False), 1):
        if name.casefold() != found.strip().casefold():
            return (
                f"{stream.what}: column {place} of its schema is {name!r}, but the header of {path} says "
                f"{found!r}; columns of CSV go by their place, so give the schema the order and names of the header"
            )
    return None


def _columns(source: Source, path: str) -> list[str] | None:
    """The columns of a file; None where that cannot be told without Spark."""
    try:
        match source.format:
            case "parquet":
                return list(pq.read_schema(path).names)
            case "orc":
                return list(orc.ORCFile(path).schema.names)
            case "json":
                return _json_keys(source, path)
            case "csv":
                return _csv_header(source, path)
    except (pa.ArrowException, OSError, ValueError, EOFError, csv.Error):
        pass  # a run says what is wrong with a file that cannot be read
    return None


def _json_keys(source: Source, path: str) -> list[str] | None:
    if _option(source, "multiline") == "true":
        return None
    rows = [json.loads(line) for line in _lines(path) if line.strip()]
    return list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row)) or None


def _csv_header(source: Source, path: str) -> list[str] | None:
    if _option(source, "header") != "true":
        return None
    separator = _option(source, "sep") or _option(source, "delimiter") or ","
    return next(csv.reader(_lines(path)[:1], delimiter=separator), None) if len(separator) == 1 else None


def _lines(path: str) -> list[str]:
    if path.endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8") as packed:
            return list(islice(packed, _LINES))
    with open(path, encoding="utf-8") as plain:
        return list(islice(plain, _LINES))


def _option(source: Source, name: str) -> str:
    options = {key.casefold(): value for key, value in source.options.items()}
    return options.get(name, "") if name in ("sep", "delimiter") else options.get(name, "").casefold()


def _of_directories(paths: Sequence[str]) -> list[str]:
    """Columns that are names of directories, as in day=7."""
    return [part.partition("=")[0] for path in paths for part in path.split(os.sep)[:-1] if "=" in part]
