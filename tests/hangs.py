"""A watchdog over long tests: where nothing moves for long, all stacks go to a file, and the test fails.

As a plugin (`pytest -p hangs`, which `make soak` does) it watches every test: `WATERSMEET_HANG_S` is how long nothing
may move, `WATERSMEET_STACKS` the file, and `WATERSMEET_CASES` a file to which it adds a line for each case that ended,
and for what tests say that they have done (`count`). A test moves when it begins, when it goes on to another seed
(`seeds.py`) and when what it waits for makes progress.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import psutil
import pytest

HANG_VARIABLE, STACKS_VARIABLE, CASES_VARIABLE = "WATERSMEET_HANG_S", "WATERSMEET_STACKS", "WATERSMEET_CASES"
LISTENERS = Path(__file__).parent / "stacks"  # on the path of a Python, it shows its stacks when it is asked
_JAVA_ANSWERS_S = 60
_PYTHON_ANSWERS_S = 1.0
_MOST_SHOWN = 2_000  # letters of why a case failed
_last_beat = 0.0


def beat() -> None:
    """Something has moved."""
    global _last_beat
    _last_beat = time.monotonic()


def count(what: str, number: int = 1) -> None:
    """Something was done, and had the end that it should have: a long run adds these up."""
    _note({"count": what, "number": number})


@contextlib.contextmanager
def watched(patience_s: float, stacks: Path, what: str) -> Iterator[None]:
    """Fail what is done here, in the main thread, whenever nothing moves for so long."""
    over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def fail(number: int, frame: FrameType | None) -> None:
        if not over.is_set():
            pytest.fail(f"{what}: nothing moved for {patience_s:g} s; the stacks of all its processes are in {stacks}")

    def watch() -> None:
        while not over.wait(max(0.01, _last_beat + patience_s - time.monotonic())):
            if time.monotonic() >= _last_beat + patience_s:
                with contextlib.suppress(OSError):  # it fails all the same
                    write_stacks(os.getpid(), stacks, what)
                beat()  # its cleaning up may hang too
                if not over.is_set():
                    signal.pthread_kill(main, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, fail)
    beat()
    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR2, before)


def write_stacks(pid: int, path: Path, why: str) -> None:
    """Add where all threads of a process and of all that it has started are to a file: of Python and of Java."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"\n==== {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {why}\n")
        file.flush()
        if pid == os.getpid():
            file.write(f"---- {pid}: this Python\n{_own_stacks()}")
            file.flush()
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())[:200]
                file.write(f"---- {process.pid}: {process.name()}, {process.status()}, {command}\n")
                file.flush()
                if process.name() == "java":
                    file.write(_java_stacks(process.pid))
                elif STACKS_VARIABLE in process.environ():
                    process.send_signal(signal.SIGUSR1)  # it writes to the same file, or to that of its own run
                    time.sleep(_PYTHON_ANSWERS_S)


def _own_stacks() -> str:
    """The stacks of all threads, the main one first: `faulthandler` leaves out the oldest of more than a hundred."""
    frames, names = sys._current_frames(), {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    return "".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in sorted(frames, key=lambda ident: (ident != main, ident))
    )


def _java_stacks(pid: int) -> str:
    command = ["jcmd", str(pid), "Thread.print", "-l"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_JAVA_ANSWERS_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stacks of Java: {error}\n"
    return done.stdout + done.stderr


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note which case begins."""
    _note({"test": nodeid})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch what a test does."""
    with _watched_as_asked(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Watch what a test needs."""
    with _watched_as_asked(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Watch how a test cleans up."""
    with _watched_as_asked(item):
        return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a case ended; its set-up and its cleaning up only if they went wrong."""
    if report.when == "call" or not report.passed:
        line: dict[str, object] = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
        }
        if report.failed:  # it would be known at the end of all cases only
            line["why"] = report.longreprtext[-_MOST_SHOWN:]
            line["seeds"] = [text for title, text in report.sections if title == "fresh seed"]
        _note(line)


@contextlib.contextmanager
def _watched_as_asked(item: pytest.Item) -> Iterator[None]:
    patience, stacks = os.environ.get(HANG_VARIABLE), os.environ.get(STACKS_VARIABLE)
    with watched(float(patience), Path(stacks), item.nodeid) if patience and stacks else contextlib.nullcontext():
        yield


def _note(line: dict[str, object]) -> None:
    if path := os.environ.get(CASES_VARIABLE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
