"""The names of the input files that were read: one file of the checkpoint that is appended to.

The ledger says how much of it counts. What a killed run has added beyond that is cut off.
"""

import json
import os
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping

from watersmeet.errors import CheckpointMismatch
from watersmeet.program.site.ledger import InputLog


def append(directory: str, log: InputLog | None, names: Mapping[str, Collection[str]]) -> InputLog:
    """Add names, by stream, to a log, or begin a new one with them; the log with them."""
    if log is None:
        log = InputLog(f"inputs-{uuid.uuid4().hex[:12]}.log", 0, 0)
    lines = "".join(f"{json.dumps([stream, name])}\n" for stream in names for name in sorted(names[stream]))
    data = lines.encode()
    with open(os.path.join(directory, log.path), "ab") as file:
        file.truncate(log.bytes)
        file.write(data)
    return InputLog(log.path, log.bytes + len(data), zlib.crc32(data, log.checksum))


def read(directory: str, log: InputLog) -> Iterator[tuple[str, str]]:
    """The names in a log, each with its stream."""
    path = os.path.join(directory, log.path)
    try:
        with open(path, "rb") as file:
            data = file.read(log.bytes)
    except FileNotFoundError:
        data = b""
    if len(data) != log.bytes or zlib.crc32(data) != log.checksum:
        raise CheckpointMismatch(
            f"{path}, which tells the input files that were read, is missing or damaged; restore the checkpoint from "
            "a copy, or give --checkpoint another place to read everything again into empty sinks"
        )
    for line in data.splitlines():
        stream, name = json.loads(line)
        yield stream, name
