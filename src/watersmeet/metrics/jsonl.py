"""Events as JSON lines appended to a file."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import (
    Event,
    PlanInForce,
    QueryDescribed,
    RunEnded,
    RunStarted,
    RunWarning,
    ShippingExpected,
    SiteProgramInForce,
    TopologyInForce,
    to_json,
)

KEPT, KEPT_BEFORE = "events.jsonl", "events.1.jsonl"  # in a checkpoint: the latest events, and those before them
WATCHED = "watched"  # in a site's checkpoint, touched by whoever looks: answers are sampled while it is new
MAX_KEPT_BYTES = 16_000_000  # of each


def append_events(bus: EventBus, path: Path) -> Callable[[], None]:
    """Append recent and coming events to a file, each line as soon as it is published; returns what ends it.

    A file that cannot be opened or written is reported by one warning event, and the run goes on without it.
    """
    file = _EventFile(bus, path)
    return _ending(bus.subscribe(lambda at, event: file.write(to_json(event, at)), replay=True), file)


def keep_events(bus: EventBus, directory: Path, max_bytes: int = MAX_KEPT_BYTES) -> Callable[[], None]:
    """Keep the latest of the coming events in a directory until the run has ended; returns what ends it sooner.

    When a file has become too large a new one is begun, with what the run is, so that it can be read by itself.
    """
    file = _EventFile(bus, directory / KEPT)

    def write(at: float, event: Event) -> None:
        file.write(to_json(event, at))
        if file.size > max_bytes:
            file.begin_anew(directory / KEPT_BEFORE)
            for since, one in _what_runs(bus):
                file.write(to_json(one, since))
        if isinstance(event, RunEnded):
            end()

    end = _ending(bus.subscribe(write), file)
    return end


def _ending(unsubscribe: Callable[[], None], file: "_EventFile") -> Callable[[], None]:
    def end() -> None:
        unsubscribe()
        file.close()

    return end


def _what_runs(bus: EventBus) -> list[tuple[float, Event]]:
    """The latest events that say what the run is."""
    return [
        *bus.recent(RunStarted),
        *bus.recent(TopologyInForce),
        *bus.recent(QueryDescribed),
        *bus.recent(PlanInForce),
        *bus.recent(SiteProgramInForce),
        *bus.recent(ShippingExpected),
    ]


class _EventFile:
    """A file that lines are appended to, until that fails."""

    def __init__(self, bus: EventBus, path: Path) -> None:
        self._bus = bus
        self._path = path
        self._number: int | None = None
        self.size = 0
        self._open()

    def _open(self) -> None:
        try:
            self._number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self.size = os.fstat(self._number).st_size if self._path.is_file() else 0  # else a pipe or a device
            if self.size and not _ends_with_a_line(self._path):
                os.write(self._number, b"\n")  # of a run that was killed while it wrote
        except OSError as error:
            self._give_up(error)

    def write(self, text: str) -> None:
        """Append a line."""
        if self._number is None:
            return
        line = text.encode() + b"\n"
        try:
            if os.write(self._number, line) != len(line):
                raise OSError("only a part of a line was written")
            self.size += len(line)
        except OSError as error:
            self._give_up(error)

    def begin_anew(self, aside: Path) -> None:
        """Move the file aside, in place of one that is there."""
        self.close()
        try:
            os.replace(self._path, aside)
        except OSError as error:
            self._give_up(error)
        else:
            self._open()

    def close(self) -> None:
        if self._number is not None:
            with contextlib.suppress(OSError):
                os.close(self._number)
            self._number = None

    def _give_up(self, error: OSError) -> None:
        self.close()
        text = f"events are not written to {self._path} any more: {error.strerror or error}"
        self._bus.publish(RunWarning(None, None, text))


def _ends_with_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
