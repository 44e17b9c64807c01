"""Who runs a checkpoint that is in an object store: an object that its holder writes anew every few seconds.

Whoever finds it unchanged for as long as it says takes it over, with a higher epoch; no two clocks are compared. A
lease keeps others out for courtesy's sake only: a process that was stopped for a minute and goes on does not know that
its lease is over. What makes commits safe is that each is conditional on the one before it, and that a holder's first
commit has its epoch in it (`Checkpoint.commit`).
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from watersmeet.errors import CheckpointMismatch, RunError
from watersmeet.spark.store.protocol import Conflict, ObjectData, Store, StoreFailed, Version

LEASE = "lease.json"
LEASE_S = 15.0
_RENEWALS = 4  # during the time of a lease
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """What a lease says."""

    epoch: int
    token: str
    who: str  # for people
    place: str  # the machine since its last start, and the directory there that a holder locks
    lasts_s: float
    renewals: int = 0
    is_over: bool = False  # given up on purpose

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def this_place(directory: str) -> str:
    """A directory of this machine, as long as it runs."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}:{os.path.realpath(directory)}"
    return f"{uuid.uuid4().hex}:{directory}"


class Lease:
    """A lease that this process holds, until it is released or somebody else has taken it over."""

    def __init__(self, store: Store, place: str, lasts_s: float | None = None) -> None:
        self._store = store
        lasts_s = LEASE_S if lasts_s is None else lasts_s
        who = f"process {os.getpid()} on {socket.gethostname()}"
        self._ours = LeaseHolder(1, uuid.uuid4().hex[:8], who, place, lasts_s)
        self._version = self._taken()
        self._released = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()

    @property
    def stamp(self) -> str:
        """What tells commits of this holder from those of all others."""
        return f"{self._ours.epoch}-{self._ours.token}"

    def release(self) -> None:
        """Let others have it at once."""
        self._released.set()
        self._renewing.join()
        with contextlib.suppress(RunError):  # it has been taken over, or ends by itself
            self._write(replace(self._ours, is_over=True))

    def _taken(self) -> Version:
        """Take the lease, once nobody holds it; refused where its holder is at work."""
        watched: ObjectData | None = None
        until = 0.0
        while True:
            there = self._store.get(LEASE)
            if there is None:
                with contextlib.suppress(Conflict):
                    return self._store.create(LEASE, self._ours.to_json())
                continue
            holder = _holder(there)
            is_ours = holder.place == self._ours.place  # whose lock we have: whoever had it is gone
            if watched is None:
                watched, until = there, time.monotonic() + holder.lasts_s
            if there.version != watched.version and not holder.is_over:
                raise CheckpointMismatch(
                    f"checkpoint {self._store.url} is in use by another run ({holder.who}); stop that one or give "
                    "another --checkpoint"
                )
            if holder.is_over or is_ours or time.monotonic() >= until:
                self._ours = replace(self._ours, epoch=holder.epoch + 1)
                with contextlib.suppress(Conflict):
                    return self._store.replace(LEASE, self._ours.to_json(), there.version)
                watched = None
                continue
            time.sleep(_POLL_S)

    def _renew(self) -> None:
        while not self._released.wait(self._ours.lasts_s / _RENEWALS):
            with contextlib.suppress(StoreFailed):  # it is tried again, and if that is too late, commits are refused
                try:
                    self._write(replace(self._ours, renewals=self._ours.renewals + 1))
                except Conflict:
                    return

    def _write(self, holder: LeaseHolder) -> None:
        self._version = self._store.replace(LEASE, holder.to_json(), self._version)
        self._ours = holder


def _holder(there: ObjectData) -> LeaseHolder:
    """What a lease says; of one that is damaged, that it has to be watched."""
    make: Callable[..., LeaseHolder] = LeaseHolder
    try:
        return make(**json.loads(there.data))
    except (ValueError, TypeError):
        return LeaseHolder(1, "", "unknown", "", LEASE_S)
