"""Events as JSON lines appended to a file."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import Event, RunWarning, to_json


def append_events(bus: EventBus, path: Path) -> Callable[[], None]:
    """Append recent and coming events to a file, each line as soon as it is published; returns what ends it.

    A file that cannot be opened or written is reported by one warning event, and the run goes on without it.
    """
    try:
        file = open(path, "ab", buffering=0)  # noqa: SIM115 (it stays open until `close`)
        if _ends_within_a_line(path):
            file.write(b"\n")  # of a run that was killed while it wrote
    except OSError as error:
        bus.publish(_warning(path, error))
        return lambda: None
    is_writing = True

    def write(at: float, event: Event) -> None:
        nonlocal is_writing
        if not is_writing:
            return
        line = to_json(event, at).encode() + b"\n"
        try:
            if file.write(line) != len(line):
                raise OSError("only a part of a line was written")
        except OSError as error:
            is_writing = False
            bus.publish(_warning(path, error))

    unsubscribe = bus.subscribe(write, replay=True)

    def close() -> None:
        unsubscribe()
        with contextlib.suppress(OSError):
            file.close()

    return close


def _ends_within_a_line(path: Path) -> bool:
    if not path.is_file():  # a pipe or a device
        return False
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _warning(path: Path, error: OSError) -> RunWarning:
    return RunWarning(None, None, f"events are not written to {path} any more: {error.strerror or error}")
