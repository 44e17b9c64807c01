"""Follows the event files of a run for whoever shows it: new lines to the model, the model to the store.

While nobody looks nothing is read but what a run may soon drop.
"""

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from watersmeet.dashboard.model import ELSEWHERE, SILENT_AFTER_S, RunModel
from watersmeet.dashboard.peers import is_trace
from watersmeet.dashboard.store import NAME, DashboardStore
from watersmeet.dashboard.tail import Tail
from watersmeet.errors import InputError
from watersmeet.metrics.jsonl import KEPT, WATCHED

_POLL_S = 1.0  # a page shows nothing sooner
_SAVE_S = 5.0
_TOUCH_S = 4.0
_FIND_S = 2.0  # how often it is looked for sites that have started since
IDLE_AFTER_S = 10.0  # that nobody has asked for anything: then nothing is read until somebody does
_IDLE_POLL_S = 30.0  # but what waits to be read, which runs do not keep for ever
_MOST_UNREAD = 4 << 20  # bytes of a file


class Watcher:
    """A model that is kept up to date by a thread; ask it through `look`."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        elsewhere: Sequence[Path] = (),  # where others put events of sites that are not in `paths`
        silent_after_s: float = SILENT_AFTER_S,
        idle_after_s: float = IDLE_AFTER_S,
    ) -> None:
        self._paths = tuple(paths)
        self._elsewhere = tuple(elsewhere)
        self._check()
        self.traces = tuple(path for path in self._paths if path.is_file() and is_trace(path))
        self._lock = threading.Lock()
        self._model = RunModel(silent_after_s)
        directory = next((path for path in (*self._paths, *self._elsewhere) if path.is_dir()), None)
        self._store = _opened(directory)
        self._positions = self._store.load(self._model)
        self._tails: dict[str, Tail] = {}
        self._looked_at = -math.inf  # when somebody last looked at answers
        self._asked_at, self._idle_after_s = time.monotonic(), idle_after_s  # when somebody last asked for anything
        self._closing, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    def _check(self) -> None:
        for path in () if self._elsewhere else self._paths:  # else what is not there may still come
            if not path.exists():
                raise InputError(f"{path}: there is no such file or directory; name a checkpoint or an event file")
            if path.is_dir() and not self._files(path) and not any(path.glob("**/ledger.json")):
                raise InputError(f"{path}: neither a checkpoint nor a directory with {KEPT}; start a run first")

    def _files(self, path: Path) -> list[Path]:
        """The event files of a checkpoint: of the run, or of each site that runs by itself."""
        if path.is_file():
            return [] if is_trace(path) else [path]
        return [file for file in (path / KEPT, *sorted(path.glob(f"*/{KEPT}"))) if file.exists()]

    def start(self) -> None:
        """Read what there is, and go on reading in the background."""
        self._find()
        self.poll()
        self._thread.start()

    def _find(self) -> None:
        with self._lock:
            self._find_files()

    def _find_files(self) -> None:
        for path in (*self._paths, *self._elsewhere):
            for file in self._files(path):
                name = file.name if path.is_file() else str(file.relative_to(path))
                name = f"{ELSEWHERE}{name}" if path in self._elsewhere else name
                if name not in self._tails:
                    self._tails[name] = Tail(file, self._positions.get(name))

    def poll(self) -> bool:
        """Take what has come; whether there was anything."""
        is_new = False
        with self._lock:
            for name, tail in self._tails.items():
                with contextlib.suppress(OSError):  # it is being replaced
                    for at, event in tail.read():
                        self._model.read(name, at, event)
                        is_new = True
        return is_new

    @property
    def is_asked(self) -> bool:
        """Whether somebody looks, or has done so just now."""
        return time.monotonic() - self._asked_at < self._idle_after_s

    @property
    def is_due(self) -> bool:
        """Whether to read what has come: somebody looks, or a run may soon drop what waits."""
        return self.is_asked or any(tail.unread > _MOST_UNREAD for tail in list(self._tails.values()))

    def _run(self) -> None:
        saved = touched = found = time.monotonic()
        is_new = True
        while not self._closing.is_set():
            self._woken.wait(_POLL_S if self.is_asked or is_new else _IDLE_POLL_S)
            self._woken.clear()
            now = time.monotonic()
            if now - found >= _FIND_S:
                found = now
                self._find()
            if self.is_due:
                is_new |= self.poll()
            if is_new and now - saved >= _SAVE_S:
                saved, is_new = now, False
                self._save()
            if now - touched >= _TOUCH_S and self.wants_answers:
                touched = now
                self._ask_for_answers()

    def _save(self) -> None:
        positions = {name: tail.position for name, tail in self._tails.items() if tail.position is not None}
        with self._lock, contextlib.suppress(sqlite3.DatabaseError):  # locked or full: the next time
            self._store.save(self._model, positions)

    def watch(self) -> None:
        """Somebody looks: let sites show samples of their answers for some seconds."""
        if time.monotonic() - self._looked_at > _TOUCH_S:
            self._ask_for_answers()
        self._looked_at = time.monotonic()

    @property
    def wants_answers(self) -> bool:
        """Whether somebody looks at answers now."""
        return time.monotonic() - self._looked_at < 2 * _TOUCH_S

    def _ask_for_answers(self) -> None:
        for path in self._paths:
            for ledger in path.glob("*/ledger.json") if path.is_dir() else ():
                with contextlib.suppress(OSError):
                    (ledger.parent / WATCHED).touch()

    def look(self, ask: Callable[[RunModel, float], Any]) -> Any:
        """What a function finds out from the model, and from the time that it is there."""
        was_asked, self._asked_at = self.is_asked, time.monotonic()
        if not was_asked:
            self._find()
            self.poll()
            self._woken.set()
        with self._lock:
            return ask(self._model, self.now())

    def now(self) -> float:
        """The time of the run: that of the clock while it goes on, else of its last event."""
        model, clock = self._model, time.time()
        is_simulated = model.last_at > clock or clock - model.last_at > 30 * 86_400
        return model.last_at if is_simulated or not model.is_live else clock

    def stop(self) -> None:
        """Store everything, and end."""
        self._closing.set()
        self._woken.set()
        self._thread.join()
        self._save()
        self._store.close()


def _opened(directory: Path | None) -> DashboardStore:
    """The store beside a checkpoint; in memory where there is none, or nothing can be written."""
    if directory is None:
        return DashboardStore(None)
    try:
        return DashboardStore(directory / NAME)
    except sqlite3.OperationalError:
        return DashboardStore(None)
