"""Events in a file: a line at once for each, appended, and no harm where the file cannot be written."""

from pathlib import Path

import pytest

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import Event, RunEnded, RunStarted, RunWarning, from_json
from watersmeet.metrics.jsonl import append_events


def read(path: Path) -> list[tuple[float, Event]]:
    return [from_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def bus() -> EventBus:
    return EventBus(clock=lambda: 5.0)


def test_events_are_there_as_soon_as_they_are_published(tmp_path: Path, bus: EventBus) -> None:
    path = tmp_path / "run.jsonl"
    started = RunStarted(("ams",), ("q",), "1")
    bus.publish(started)
    close = append_events(bus, path)
    assert read(path) == [(5.0, started)]
    bus.publish(RunWarning("ams", None, "a line\nand a half, in UTF-8: ü"))
    assert read(path)[1:] == [(5.0, RunWarning("ams", None, "a line\nand a half, in UTF-8: ü"))]
    close()
    close()
    bus.publish(RunEnded("completed"))
    assert len(read(path)) == 2


def test_a_second_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for reason in ("stopped", "completed"):
        bus = EventBus(clock=lambda: 5.0)
        close = append_events(bus, path)
        bus.publish(RunEnded(reason))
        close()
    assert [event for _, event in read(path)] == [RunEnded("stopped"), RunEnded("completed")]


def test_half_a_line_of_a_killed_run_spoils_no_other(tmp_path: Path, bus: EventBus) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"at": 1.0, "eve')
    close = append_events(bus, path)
    bus.publish(RunEnded("completed"))
    close()
    half, line = path.read_text(encoding="utf-8").splitlines()
    assert half == '{"at": 1.0, "eve'
    assert from_json(line) == (5.0, RunEnded("completed"))


def warnings_of(bus: EventBus) -> list[str]:
    found: list[str] = []
    bus.subscribe(lambda _, event: found.append(event.text) if isinstance(event, RunWarning) else None)
    return found


def test_a_file_that_cannot_be_opened_is_one_warning(tmp_path: Path, bus: EventBus) -> None:
    found = warnings_of(bus)
    close = append_events(bus, tmp_path)
    bus.publish(RunEnded("completed"))
    close()
    assert found == [f"events are not written to {tmp_path} any more: Is a directory"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_file_that_cannot_be_written_is_one_warning(bus: EventBus) -> None:
    found = warnings_of(bus)
    close = append_events(bus, Path("/dev/full"))
    for _ in range(3):
        bus.publish(RunEnded("completed"))
    close()
    assert found == ["events are not written to /dev/full any more: No space left on device"]
