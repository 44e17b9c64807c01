"""How sites that run elsewhere are seen: through what carries their links, and only while somebody looks.

asked-VIEWER             of an open dashboard, written anew every few seconds; "answers" in it asks for samples of them
events-SITE-000000000017 events of a site, compressed and sealed: all that it has kept, then what has come since

The first line of a piece of events is the one that they follow, empty where the piece has all. So a dashboard that was
opened between two pieces, or did not get one, finds out, and asks for everything by another name.
"""

import contextlib
import fcntl
import math
import os
import re
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, Protocol

from watersmeet.dashboard.tail import Position, Tail
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.jsonl import KEPT, KEPT_BEFORE, MAX_KEPT_BYTES, WATCHED
from watersmeet.spark.links.seal import Refused, Seal, SealContext
from watersmeet.spark.links.transport import check_kafka_client, default_links, kafka_settings, links_url, seal_of
from watersmeet.spark.store.object_store import open_store
from watersmeet.spark.store.protocol import Store
from watersmeet.topology.model import Topology

_DIRECTORY = ".watch"  # no site has such a name
_ASKED, _EVENTS = "asked-", "events-"
_ASK_S = 3.0  # how often a dashboard says that it is open
_FORGOTTEN_S = 15.0  # without that, nobody looks any more
_PUT_S, _FETCH_S = 2.0, 1.0
_MOST_PIECES = 400  # then a site begins anew with all that it has kept
_MOST_BYTES = 64 << 20  # of one piece, unpacked
_TENTHS_AHEAD = 10 * 366 * 86_400  # numbers grow by less than ten a second: what is a year ahead is none of ours


class Board(Protocol):
    """Small files that all sites and dashboards can reach."""

    every_s: float  # how often a site looks whether somebody has asked

    def names(self) -> list[str]:
        """All files."""

    def get(self, name: str) -> bytes | None:
        """A file, if it is there."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file, whole."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, if they are there."""

    def close(self) -> None:
        """End connections; files stay."""


class DirectoryBoard:
    """Files of the directory that links are in."""

    every_s = 2.0

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []

    def get(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            return None

    def put(self, name: str, data: bytes) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        whole = self._root / f".{name}-{uuid.uuid4().hex[:8]}"
        whole.write_bytes(data)
        whole.replace(self._root / name)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def close(self) -> None:
        return


class StoreBoard:
    """Objects beside those of links; each look is a request that is paid for, so they are few."""

    every_s = 15.0

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        return sorted(self._store.sizes())

    def get(self, name: str) -> bytes | None:
        found = self._store.get(name)
        return None if found is None else found.data

    def put(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        self._store.delete(names)

    def close(self) -> None:
        return


def open_board(topology: Topology, reads: Literal["asked", "events"]) -> Board:
    """Where sites of a topology can be asked for their events: a site reads what is asked, a dashboard the events."""
    transport = topology.link_transport
    if transport.kind == "kafka":
        check_kafka_client()
        from watersmeet.spark.links.kafka_board import KafkaBoard

        return KafkaBoard(kafka_settings(transport), transport.topics, reads)
    if (url := links_url(transport)) is not None:
        return StoreBoard(open_store(url).below(_DIRECTORY))
    return DirectoryBoard(default_links(topology) / _DIRECTORY)


class Shown:
    """In the process of a site: its events, put where dashboards look, while there are any."""

    def __init__(self, board: Board, seal: Seal, site: str, checkpoint: Path) -> None:
        self._board, self._seal, self._site, self._checkpoint = board, seal, site, checkpoint
        self._viewers: dict[str, tuple[bytes, float]] = {}  # what each has said last, and since when
        self._is_shown = False  # the board has all that we have kept, up to a position
        self._position: Position | None = None
        self._last = b""  # the line before that position
        self._pieces = 0
        self._number = _tenths()  # more than any of an earlier process
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"shown-{site}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Put the last events there, and end."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(_PUT_S if self._is_shown else self._board.every_s):
            with contextlib.suppress(OSError, WatersmeetError):  # the next time
                self.step(time.monotonic())
        with contextlib.suppress(OSError, WatersmeetError):
            self.step(time.monotonic())
        self._board.close()

    def step(self, now: float) -> None:
        """Look whether somebody has asked, and answer."""
        names = self._board.names()
        asked = {name: self._board.get(name) or b"" for name in names if name.startswith(_ASKED)}
        is_new = False
        for name, text in asked.items():
            before = self._viewers.get(name)
            if before is None or before[0] != text:
                is_new |= before is None or now - before[1] > _FORGOTTEN_S
                self._viewers[name] = (text, now)
        self._viewers = {name: said for name, said in self._viewers.items() if name in asked}
        open_now = [text for text, since in self._viewers.values() if now - since <= _FORGOTTEN_S]
        self._board.delete(name for name, (_, since) in self._viewers.items() if now - since > 4 * _FORGOTTEN_S)
        if not open_now:
            if self._is_shown:
                self._is_shown = False
                self._board.delete(self._ours(names))
            return
        if any(b"answers" in text for text in open_now):
            (self._checkpoint / WATCHED).touch()
        if is_new or self._pieces >= _MOST_PIECES:
            self._is_shown = False
        earlier = [] if self._is_shown else self._ours(names)
        self._number = max([self._number, *(_number_of(name) for name in earlier)])
        self._put(self._position if self._is_shown else None)
        self._is_shown = True
        self._board.delete(earlier)

    def _ours(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name.startswith(f"{_EVENTS}{self._site}-")]

    def _put(self, after: Position | None) -> None:
        """Put what has come after a position; if the board does not take it, it comes again with what follows."""
        tail = Tail(self._checkpoint / KEPT, after)
        lines = list(tail.lines())
        self._pieces = 0 if after is None else self._pieces
        if lines:
            self._number, self._pieces = self._number + 1, self._pieces + 1
            name = f"{_EVENTS}{self._site}-{self._number:012d}"
            piece = b"\n".join([b"" if after is None else self._last, *lines, b""])
            self._board.put(name, self._seal.seal(SealContext(name, 0), zlib.compress(piece, 1)))
            self._last = lines[-1]
        self._position = tail.position


class Elsewhere:
    """In the process of a dashboard: asks sites for their events, and keeps them in a directory as a site would."""

    def __init__(self, topology: Topology, board: Board, directory: Path, is_here: Callable[[str], bool]) -> None:
        self._board, self._directory, self._is_here = board, directory, is_here
        self._seal = seal_of(topology.link_transport)
        self._sites = topology.site_names
        self._name = _new_viewer()
        self._named_at = -math.inf
        self._taken: dict[str, int] = {}  # by site, the number of the last piece
        self._refused = set[str]()  # pieces that nobody with the key has put there, or that are damaged
        self._beats = 0
        self._asked_at = -math.inf
        self._lock: int | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elsewhere", daemon=True)
        self.wants_answers: Callable[[], bool] = lambda: False

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let sites know that nobody looks any more."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError, WatersmeetError):
            self._board.delete([self._name])
        self._board.close()
        if self._lock is not None:
            os.close(self._lock)

    def _run(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(OSError, WatersmeetError):  # out of reach for now
                self.step(time.monotonic())
            self._closing.wait(_FETCH_S)

    def step(self, now: float) -> None:
        """Ask, and take what sites have put there; of several dashboards of one directory, one does."""
        if not self._has_lock():
            return
        if not self._beats:  # pieces for others: once we have asked, sites begin anew with all that they have kept
            for name in self._board.names():
                if name.startswith(_EVENTS):
                    site = name.removeprefix(_EVENTS).rpartition("-")[0]
                    self._taken[site] = max(self._taken.get(site, 0), _number_of(name))
        if now - self._asked_at >= _ASK_S:
            self._asked_at, self._beats = now, self._beats + 1
            wish = " answers" if self.wants_answers() else ""
            self._board.put(self._name, f"{self._beats}{wish}".encode())
        names = self._board.names()
        self._refused &= set(names)
        for site in self._sites:
            if self._is_here(site):
                continue
            prefix = f"{_EVENTS}{site}-"
            for name in names:
                number = _number_of(name) if name.startswith(prefix) and name not in self._refused else 0
                if number > self._taken.get(site, 0) and (data := self._board.get(name)) is not None:
                    try:
                        if not self._take(site, _unpacked(self._seal.open(SealContext(name, 0), data))):
                            self._ask_for_all(now)
                        self._taken[site] = number
                    except (Refused, zlib.error):
                        self._refused.add(name)  # what follows it is taken all the same

    def _ask_for_all(self, now: float) -> None:
        """Have sites begin anew with all that they have kept, as for a dashboard that they do not know."""
        if now - self._named_at > _FORGOTTEN_S:
            self._board.delete([self._name])
            self._name, self._named_at, self._asked_at = _new_viewer(), now, -math.inf

    def _has_lock(self) -> bool:
        if self._lock is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def _take(self, site: str, piece: bytes) -> bool:
        """Append what is new; whether nothing is missing between what is here and what the piece has."""
        place = self._directory / site
        place.mkdir(parents=True, exist_ok=True)
        path = place / KEPT
        last = _last_line(path) or _last_line(place / KEPT_BEFORE)
        follows, _, lines = piece.partition(b"\n")
        start = piece.rfind(last) if last else -1
        if start < 0 and follows:
            return False
        new = piece[start + len(last) :] if start >= 0 else lines
        if new:
            if path.exists() and path.stat().st_size > MAX_KEPT_BYTES:
                path.replace(place / KEPT_BEFORE)
            with path.open("ab") as file:
                file.write(new)
        return True


def _new_viewer() -> str:
    return f"{_ASKED}{uuid.uuid4().hex[:12]}"


def _tenths() -> int:
    return int(time.time() * 10)


def _number_of(name: str) -> int:
    """The number in a name; 0 where it has none that a site can have given."""
    found = re.search(r"-(\d{12})$", name, re.ASCII)
    number = 0 if found is None else int(found.group(1))
    return number if number < _tenths() + _TENTHS_AHEAD else 0


def _unpacked(data: bytes) -> bytes:
    """At most so many bytes, whatever somebody has put there."""
    return zlib.decompressobj().decompress(data, _MOST_BYTES)


def _last_line(path: Path) -> bytes:
    """The last line of a file with its end; lines of events are short."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (1 << 20)))
            return next(_backwards(file.read()), b"")
    except FileNotFoundError:
        return b""


def _backwards(data: bytes) -> Iterator[bytes]:
    lines = data.split(b"\n")
    yield from (line + b"\n" for line in reversed(lines[:-1]) if line)
