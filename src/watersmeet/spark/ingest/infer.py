"""What a directory of files could be as streams: formats by their names, columns and types by Spark."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from watersmeet.errors import InputError, first_line
from watersmeet.spark.analyser import readable
from watersmeet.spark.ingest.new_files import Listing
from watersmeet.topology.propose import FoundStream, stream_name

_FORMATS = {
    **{".parquet": "parquet", ".orc": "orc", ".avro": "avro"},
    **{".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv"},
}
_LOOKED_AT_BYTES = 200_000_000  # of a stream's files; with more of them only the first is looked at


def find_streams(spark: SparkSession, directory: Path, base: Path) -> list[FoundStream]:
    """Each subdirectory with files of a known format is a stream, and each such file in the directory itself."""
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory; name one with the files of your streams")
    found = list(_found(spark, directory, base))
    if not found:
        known = ", ".join(sorted(_FORMATS))
        raise InputError(f"{directory} has no files or subdirectories with files that end in {known}")
    names: set[str] = set()
    for number, stream in enumerate(found):
        name = stream.name
        while name.casefold() in names:
            name += "_"
        names.add(name.casefold())
        found[number] = FoundStream(name, *list(vars(stream).values())[1:])
    return found


def _found(spark: SparkSession, directory: Path, base: Path) -> Iterator[FoundStream]:
    for path in sorted(directory.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        files = [file.path for file in Listing(str(path)).files() if file.bytes]
        kinds = {kind for file in files if (kind := _format(Path(file))) is not None}
        if len(kinds) > 1:
            raise InputError(f"{path} has files of several formats ({', '.join(sorted(kinds))}); give each a directory")
        if kinds:
            yield _inferred(spark, path, kinds.pop(), [file for file in files if _format(Path(file))], base)


def _format(path: Path) -> str | None:
    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".bz2", ".zst", ".snappy", ".zstd")]
    return _FORMATS.get(suffixes[-1].casefold()) if suffixes else None


def _inferred(spark: SparkSession, path: Path, kind: str, files: list[str], base: Path) -> FoundStream:
    options = _options(kind, files[0])
    infer = {"inferSchema": "true"} if kind == "csv" else {"inferTimestamp": "true"} if kind == "json" else {}
    is_small = sum(os.path.getsize(file) for file in files) <= _LOOKED_AT_BYTES
    read = spark.read.format(kind).options(**options, **infer)
    if path.is_dir():
        read = read.option("basePath", str(path))
    try:
        rows = read.load(files if is_small else files[:1])
        columns = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        stream = FoundStream(stream_name(path.name.split(".")[0]), kind, os.path.relpath(path, base), columns, options)
        late_us = None
        if is_small and stream.event_time is not None:
            seconds = F.unix_micros(F.col(f"`{stream.event_time}`").cast("timestamp"))
            spans = rows.groupBy(F.input_file_name()).agg(F.min(seconds), F.max(seconds)).collect()
            late_us = _lateness(
                files, {Path(name.removeprefix("file:")).name: (low, high) for name, low, high in spans}
            )
    except Exception as error:
        said = readable(error) if hasattr(error, "getErrorClass") else first_line(error)
        raise InputError(f"{path} cannot be read as {kind}: {said}") from None
    return FoundStream(stream.name, kind, stream.path, columns, options, len(files), late_us)


def _lateness(files: list[str], spans: dict[str, tuple[int | None, int | None]]) -> int:
    """The most that the first row of a file is behind the last row of files before it; rounded up to seconds."""
    worst, latest = 0, None
    for file in files:
        low, high = spans.get(Path(file).name, (None, None))
        if low is None or high is None:
            continue
        if latest is not None:
            worst = max(worst, latest - low)
        latest = high if latest is None else max(latest, high)
    return -(-worst // 1_000_000) * 1_000_000


def _options(kind: str, file: str) -> dict[str, str]:
    if kind != "csv":
        return {}
    options = {"sep": "\t"} if Path(file).suffix.casefold() == ".tsv" else {}
    try:
        with open(file, encoding="utf-8") as lines:
            first = next(csv.reader(lines, delimiter=options.get("sep", ",")), [])
    except (OSError, UnicodeDecodeError):
        return options
    return {**options, "header": "true"} if _is_header(first) else options


def _is_header(cells: list[str]) -> bool:
    """Whether a first line has names: words, each once, and none of them a number or a time."""
    return len(set(cells)) == len(cells) and all(
        cell[:1].isalpha() or cell[:1] == "_" for cell in map(str.strip, cells)
    )
