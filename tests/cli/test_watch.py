"""`run --events FILE --metrics-port PORT`: what the command line does with the events of a run."""

import argparse
import urllib.request
from pathlib import Path

import pytest

from watersmeet.cli.run import _watch
from watersmeet.errors import InputError
from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import RunEnded, RunStarted, RunWarning, from_json

STARTED = RunStarted(("ams",), ("q",), "1.2")


class Handle:
    """A run that publishes events."""

    def __init__(self) -> None:
        self.events = EventBus(clock=lambda: 5.0)


def options(events: Path | None = None, metrics_port: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(events=None if events is None else str(events), metrics_port=metrics_port)


def test_events_go_to_a_file_and_to_prometheus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle, path = Handle(), tmp_path / "run.jsonl"
    handle.events.publish(STARTED)
    with _watch(handle, options(path, 0)):
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith("watersmeet: metrics at http://127.0.0.1:")
        url = told.err.split()[-1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as response:
            assert b"\nwatersmeet_run_active 1.0\n" in response.read()
        handle.events.publish(RunEnded("completed"))
    handle.events.publish(RunEnded("failed", "after it all"))
    assert [from_json(line) for line in path.read_text().splitlines()] == [
        (5.0, STARTED),
        (5.0, RunEnded("completed")),
    ]
    with pytest.raises(OSError, match="refused"):
        opener.open(url, timeout=10)


def test_warnings_are_printed_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    handle = Handle()
    handle.events.publish(RunWarning(None, "q", "query 'q': the sink holds files of earlier runs"))
    with _watch(handle, options(tmp_path)):  # a directory
        handle.events.publish(RunEnded("completed"))
    handle.events.publish(RunWarning(None, "q", "too late"))
    assert capsys.readouterr().err.splitlines() == [
        "watersmeet: warning: query 'q': the sink holds files of earlier runs",
        f"watersmeet: warning: events are not written to {tmp_path} any more: Is a directory",
    ]


def test_a_port_in_use_ends_the_command(tmp_path: Path) -> None:
    from watersmeet.metrics.prometheus import serve

    exporter = serve(EventBus(), 0)
    handle, path = Handle(), tmp_path / "run.jsonl"
    try:
        with (
            pytest.raises(InputError, match="Address already in use; give another one"),
            _watch(handle, options(path, exporter.port)),
        ):
            pass
    finally:
        exporter.stop()
    handle.events.publish(STARTED)
    assert path.read_text() == ""  # its reader has been unsubscribed


def test_a_run_without_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _watch(object(), options()):
        pass
    assert capsys.readouterr().err == ""
    with _watch(object(), options(tmp_path / "run.jsonl")):
        pass
    assert capsys.readouterr().err == (
        "watersmeet: warning: this run publishes no events; --events and --metrics-port have no effect\n"
    )
    assert list(tmp_path.iterdir()) == []
