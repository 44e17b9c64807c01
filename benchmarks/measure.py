"""Run a command and measure its whole process tree: wall time, CPU time, peak memory.

Memory is the sum of the proportional set sizes (PSS), so that a page mapped by several processes counts once; where the
kernel does not tell (no /proc/PID/smaps_rollup), it is the sum of resident set sizes and `memory_kind` says so.

    python benchmarks/measure.py python -c 'print(1)'
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

INTERVAL_SECONDS = 0.2
GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of a command took; start-up is included in every figure."""

    returncode: int
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    memory_kind: str
    timed_out: bool
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    began_at: float = 0.0  # seconds since 1970, as files' times are

    def last_lines(self, count: int = 20) -> str:
        """The end of what the command wrote to stderr (stdout, if that is empty): where a failure explains itself."""
        return "\n".join((self.stderr.strip() or self.stdout.strip()).splitlines()[-count:])


class _Tree:
    """A process and everything it started, also what its parents have left behind."""

    def __init__(self, pid: int) -> None:
        self.live = {pid: psutil.Process(pid)}
        self.cpu_seconds: dict[tuple[int, float], float] = {}  # last seen, of ended processes too
        self.peak_bytes = 0
        self.memory_kind = "pss"

    def sample(self) -> None:
        """Look at every process once."""
        self._adopt()
        now_bytes = 0
        for pid, process in list(self.live.items()):
            try:
                if not process.is_running():  # also if its number belongs to a stranger by now
                    del self.live[pid]
                    continue
                times = process.cpu_times()
                self.cpu_seconds[pid, process.create_time()] = times.user + times.system
                now_bytes += self._memory_bytes(process)
            except psutil.NoSuchProcess:
                del self.live[pid]
            except psutil.AccessDenied:
                pass
        self.peak_bytes = max(self.peak_bytes, now_bytes)

    def _adopt(self) -> None:
        """Add new descendants, in one pass over the process table: it must not cost what is being measured."""
        children = defaultdict(list)
        for process in psutil.process_iter(["ppid"]):
            children[process.info["ppid"]].append(process)
        queue = list(self.live)
        while queue:
            for child in children[queue.pop()]:
                if child.pid not in self.live:
                    self.live[child.pid] = child
                    queue.append(child.pid)

    def _memory_bytes(self, process: psutil.Process) -> int:
        try:
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
            return 0  # a process that is just ending maps nothing
        except ProcessLookupError:
            return 0
        except OSError:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                self.memory_kind = "rss"
                return process.memory_info().rss
            return 0

    def end(self) -> None:
        """End what the command has left behind, if it does not end by itself."""
        self._adopt()
        left = [process for process in self.live.values() if process.is_running()]
        _, stubborn = psutil.wait_procs(left, timeout=GRACE_SECONDS)
        for process in stubborn:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(stubborn, timeout=GRACE_SECONDS)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measure(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 3600.0,
    interval_seconds: float = INTERVAL_SECONDS,
    on_start: Callable[[subprocess.Popen[bytes]], object] | None = None,
) -> Measurement:
    """Run `command` to its end, looking at its process tree every `interval_seconds`; `env` is added to ours.

    `on_start` is given the process as soon as it runs, so that a command which does not end by itself can be stopped.

    CPU time is the larger of two lower bounds: what was last seen of each process, and what the kernel reports of all
    descendants that were waited for (which knows the short-lived ones that sampling misses).
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin, began_at = time.perf_counter(), time.time()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
        )
        if on_start is not None:
            on_start(process)
        tree = _Tree(process.pid)
        timed_out = False
        try:
            while not timed_out and process.poll() is None:
                tree.sample()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(interval_seconds)
                timed_out = time.perf_counter() - begin > timeout_seconds
        finally:
            wall_seconds = time.perf_counter() - begin
            if process.poll() is None:  # too slow, or we were interrupted
                tree.sample()
                _end(process)
            tree.end()
        returncode = process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        waited = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        out.seek(0)
        err.seek(0)
        return Measurement(
            returncode=returncode,
            wall_seconds=wall_seconds,
            cpu_seconds=max(waited, sum(tree.cpu_seconds.values())),
            peak_bytes=tree.peak_bytes,
            memory_kind=tree.memory_kind,
            timed_out=timed_out,
            stdout=out.read().decode(errors="replace"),
            stderr=err.read().decode(errors="replace"),
            began_at=began_at,
        )


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python benchmarks/measure.py COMMAND [ARGUMENT ...]")
    result = measure(sys.argv[1:])
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    figures = {name: value for name, value in asdict(result).items() if name not in ("stdout", "stderr")}
    print(json.dumps(figures))
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
