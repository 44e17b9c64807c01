"""`watersmeet tail`: print the answers of a query, and follow them as they come."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from watersmeet.cli.options import Subparsers, add_parameters, debug_option, topology_of
from watersmeet.errors import InputError, RunError
from watersmeet.topology.model import Sink

_POLL_S = 0.5
_ARROW_FORMATS = ("parquet", "orc", "csv", "json")


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "tail",
        parents=[debug_option()],
        help="print the answers of a query and follow them as they come",
        description="Print the last answers in a query's sink, one line of JSON each, then new ones until Ctrl-C. "
        "Starts no Spark; sinks of local Parquet, ORC, CSV and JSON files.",
    )
    parser.add_argument("query", metavar="NAME", help="the query")
    parser.add_argument("topology", nargs="?", default="topology.yaml", help="the topology file (default: %(default)s)")
    parser.add_argument("-n", "--rows", metavar="N", type=int, default=10, help="answers to begin with (%(default)s)")
    parser.add_argument("--no-follow", action="store_true", help="end after those")
    add_parameters(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print answers until Ctrl-C."""
    if options.rows < 0:
        raise InputError("--rows must be 0 or more")
    sink = topology_of(options).query(options.query).sink
    if sink.format not in _ARROW_FORMATS or not sink.path or "://" in sink.path.removeprefix("file://"):
        what = sink.format if not sink.path else f"{sink.format} at {sink.path}"
        raise InputError(
            f"query {options.query!r}: its sink is {what}; tail reads local {', '.join(_ARROW_FORMATS[:-1])} and json"
        )
    directory = Path(sink.path.removeprefix("file://"))
    try:
        for line in _answers(sink, directory, options.rows, follow=not options.no_follow):
            print(line, flush=True)
    except KeyboardInterrupt:
        pass
    return 0


def _answers(sink: Sink, directory: Path, rows: int, *, follow: bool) -> Iterator[str]:
    seen = _published(directory)
    yield from _last(sink, directory, seen, rows)
    known = set(seen)
    while follow:
        time.sleep(_POLL_S)
        now = _published(directory)
        for name in now:
            if name not in known:
                yield from _read(sink, directory / name)
        known = set(now)


def _last(sink: Sink, directory: Path, names: list[str], rows: int) -> list[str]:
    """The last answers of some files, the latest files being the last."""
    lines: list[str] = []
    for name in reversed(names):
        if len(lines) >= rows:
            break
        lines = [*_read(sink, directory / name), *lines]
    return lines[max(len(lines) - rows, 0) :]


def _published(directory: Path) -> list[str]:
    """The files of a sink, in the order in which they were published."""
    if not directory.is_dir():
        return []
    found = []
    for entry in os.scandir(directory):
        if not entry.name.startswith((".", "_")) and entry.is_file():
            try:
                found.append((entry.stat().st_mtime_ns, entry.name))
            except FileNotFoundError:
                continue
    return [name for _, name in sorted(found)]


def _read(sink: Sink, path: Path) -> list[str]:
    if sink.format == "json":
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    import pyarrow as pa

    try:
        return [json.dumps(row, default=str, ensure_ascii=False) for row in _table(sink, path).to_pylist()]
    except FileNotFoundError:  # taken back, or moved aside
        return []
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path} cannot be read: {str(error).splitlines()[0]}; remove it or look at it") from None


def _table(sink: Sink, path: Path) -> Any:
    if sink.format == "csv":
        import pyarrow.csv as pc

        options = {name.casefold(): value for name, value in sink.options.items()}
        has_header = options.get("header", "false").casefold() == "true"
        return pc.read_csv(path, read_options=pc.ReadOptions(autogenerate_column_names=not has_header))
    import pyarrow.dataset as ds

    return ds.dataset(path, format=sink.format).to_table()
