"""A topology file for data that somebody has: streams as they were found, and a first query, with comments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from watersmeet.query.windows import format_duration

_TIMES = ("timestamp", "timestamp_ntz")
_NAMES = ("event_time", "eventtime", "ts", "timestamp", "time", "at", "datetime", "created_at", "date")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class FoundStream:
    """A directory of files, or a file, as a stream: its columns with their types, and how far its files are late."""

    name: str
    format: str
    path: str
    columns: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    files: int = 1
    late_us: int | None = None  # the most that a file is behind one that was modified before it; None if unknown

    @property
    def event_time(self) -> str | None:
        """The column that looks like the event time: a timestamp with a usual name, else the first timestamp."""
        times = [name for name, kind in self.columns.items() if kind in _TIMES]
        usual = [name for known in _NAMES for name in times if name.casefold() == known]
        return next(iter([*usual, *times]), None)


def stream_name(text: str) -> str:
    """A name for a stream from that of a file or directory.

    >>> stream_name("2025-orders.eu")
    's2025_orders_eu'
    """
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "stream"
    return name[:64] if _PLAIN.match(name) else f"s{name}"[:64]


def propose(streams: Sequence[FoundStream]) -> str:
    """The text of a topology file; streams without a timestamp are comments that say what is missing."""
    usable = [stream for stream in streams if stream.event_time is not None]
    lines = ["# Written by `watersmeet init`. What was guessed is marked; docs/guide/topology.md has every key.", ""]
    lines.append("streams:")
    for stream in streams:
        text = _stream(stream)
        lines += text if stream in usable else [f"  # {line[2:]}" for line in text]
    lines += ["", "queries:", *_query(usable)]
    return "\n".join(lines) + "\n"


def _stream(stream: FoundStream) -> list[str]:
    count = f"{stream.files:,} file{'' if stream.files == 1 else 's'}"
    kinds = ", ".join(f"{_column(name)} {kind}" for name, kind in stream.columns.items())
    times = [name for name, kind in stream.columns.items() if kind in _TIMES]
    lines = [f"  {stream.name}:                            # {count}".rstrip()]
    lines.append(f"    schema: {_quoted(kinds)}   # inferred")
    if stream.event_time is None:
        lines.append("    event_time: ...   # none of its columns is a timestamp, so it cannot be joined by time yet:")
        lines.append("                      # give a column the type timestamp in the schema if Spark can read it so")
    else:
        others = [name for name in times if name != stream.event_time]
        choice = f"; also possible: {', '.join(others)}" if others else ", the only timestamp"
        lines.append(f"    event_time: {_quoted(stream.event_time)}   # guessed{choice}")
    if stream.late_us is None:
        lines.append('    watermark: "0 seconds"   # how late rows may be; not looked at')
    elif stream.late_us:
        why = "its files are that much out of order"
        lines.append(f'    watermark: "{format_duration(stream.late_us)}"   # {why} (by their modification times)')
    else:
        lines.append('    watermark: "0 seconds"   # its files are in order, by their modification times')
    lines.append("    source:")
    lines.append(f"      format: {stream.format}")
    lines.append(f"      path: {_quoted(stream.path)}")
    if stream.options:
        options = ", ".join(f"{key}: {_quoted(value)}" for key, value in stream.options.items())
        lines.append(f"      options: {{{options}}}")
    return lines


def _query(streams: Sequence[FoundStream]) -> list[str]:
    """A first query: two streams by a column that both have, or one with itself."""
    if not streams:
        return ["  # No stream can be joined yet: each needs a column of type timestamp."]
    left, right, key = _pair(streams)
    select = [(f"x.{_column(name)}", name) for name in left.columns]
    taken = {name.casefold() for name in left.columns}
    for name in right.columns:
        if name != key:
            label = name if name.casefold() not in taken else f"{right.name}_{name}"
            taken.add(label.casefold())
            select.append((f"y.{_column(name)}", label))
    texts = [name if name.endswith(f".{label}") else f"{name} AS {_column(label)}" for name, label in select]
    return [
        "  first:   # guessed: rows of equal " + key + ", at most five minutes apart",
        "    sql: >",
        f"      SELECT {', '.join(texts)}",
        f"      FROM {left.name} [RANGE 5 MINUTES] AS x, {right.name} [RANGE 5 MINUTES] AS y",
        f"      WHERE x.{_column(key)} = y.{_column(key)}",
        "    sink: {format: parquet, path: out/first}",
    ]


def _pair(streams: Sequence[FoundStream]) -> tuple[FoundStream, FoundStream, str]:
    for number, left in enumerate(streams):
        for right in streams[number + 1 :]:
            for name, kind in left.columns.items():
                if _is_key(kind) and name in right.columns and _family(right.columns[name]) == _family(kind):
                    return left, right, name
    only = streams[0]
    keys = [name for name, kind in only.columns.items() if _is_key(kind)]
    return only, only, (keys or list(only.columns))[0]


def _is_key(kind: str) -> bool:
    return kind not in (*_TIMES, "double", "float", "boolean") and not kind.startswith(("map", "array", "struct"))


def _family(kind: str) -> str:
    return "integer" if kind in ("tinyint", "smallint", "int", "bigint") else kind


def _column(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _quoted(text: str) -> str:
    """A text as a YAML scalar, quoted wherever it might mean something else."""
    if re.fullmatch(r"[A-Za-z_./][A-Za-z0-9_./-]*", text) and text.casefold() not in (
        "true",
        "false",
        "null",
        "yes",
        "no",
    ):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
