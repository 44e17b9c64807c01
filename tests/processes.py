"""The command line as a process of its own that can be killed, frozen, stopped and started again."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import hangs
import psutil
from scenes import PATIENCE_S

from watersmeet.spark.deliver.sinks import FileWriter
from watersmeet.spark.site.job import SiteJob

ORPHANS_S = PATIENCE_S  # how long what a killed process leaves behind may take to notice


class CommandProcess:
    """`watersmeet ...` in a session of its own; whatever it starts is known, so that nothing outlives a test."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = tuple(arguments)
        self._log = log
        self._family: list[psutil.Process] = []
        self.start()

    def __enter__(self) -> "CommandProcess":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.tell_where()
        self.close()

    def start(self) -> None:
        """Start it, again if it has died."""
        command = [sys.executable, "-m", "watersmeet", *self._arguments]
        with open(self._log, "ab") as log:
            environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
        self._family.append(psutil.Process(self._process.pid))

    @property
    def told(self) -> list[str]:
        """Everything that it has printed, in all its lives."""
        return self._log.read_text(encoding="utf-8").splitlines()

    def tell_where(self) -> None:
        """Where all threads of Python and Java are, when something takes too long."""
        if self._process.poll() is None:
            self._look_around()
            self._signal(signal.SIGQUIT, "java")
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(PATIENCE_S)
            print("\n".join(self.told))

    def check(self) -> None:
        """That it still runs."""
        assert self._process.poll() is None, "it has ended:\n" + "\n".join(self.told)

    def kill(self, victim: str = "group") -> None:
        """Kill the Python process, the Java process, or all at once."""
        self.check()
        self._look_around()
        match victim:
            case "python":
                os.kill(self._process.pid, signal.SIGKILL)
            case "java":
                next(process for process in self._family if process.is_running() and process.name() == "java").kill()
            case _:
                os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait(PATIENCE_S)
        told = "\n".join(self.told)
        assert code == (1 if victim == "java" else -signal.SIGKILL), f"{victim} was killed, and it ended with {told}"
        hangs.count("SIGKILLs")

    @contextlib.contextmanager
    def frozen(self, seconds: float) -> Iterator[None]:
        """Let it stand still for so long at least."""
        began = time.monotonic()
        self._look_around()
        self._signal(signal.SIGSTOP)
        try:
            yield
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        finally:
            self._signal(signal.SIGCONT)

    def finish(self, code: int = 0) -> None:
        """Wait for the end, which must be a good one unless another is named."""
        assert self._process.wait(PATIENCE_S) == code, "\n".join(self.told)

    def stop(self) -> None:
        """Ask it to stop, which must be a good end."""
        self.check()
        self._look_around()
        self._process.send_signal(signal.SIGTERM)
        self.finish()
        self.check_no_orphans()

    def check_no_orphans(self) -> None:
        deadline = time.monotonic() + ORPHANS_S
        while alive := [process for process in self._family if _is_alive(process)]:
            assert time.monotonic() < deadline, f"outlived its run: {alive}"
            time.sleep(0.05)

    def close(self) -> None:
        """Let no process outlive the test."""
        if self._process.poll() is None:
            self._look_around()
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _look_around(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._family += [process for process in children if process not in self._family]

    def _signal(self, number: signal.Signals, name: str | None = None) -> None:
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in (None, process.name()):
                    process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def give_up(job: SiteJob) -> None:
    """End the threads of a site that is taken to be dead, and give up its locks, as a killed process does; no more."""
    job.stop_waiting()
    job.watcher.close()
    job.join.close()
    for delivery in job.state.deliveries:
        delivery._thread.shutdown()
    writers = [delivery._writer for delivery in job.state.deliveries]
    for writer in (*writers, *(late for late, _ in job.state.late._writers.values())):
        if isinstance(writer, FileWriter):
            writer.let_go()
    job.state.checkpoint.close()
