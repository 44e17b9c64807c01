"""Disks of simulated sites that are found otherwise at a start than they were left: the real checkpoints, in files.

Each site keeps its state as on Spark: `Checkpoint` and `FileShelf`, and ends of links in `DirectoryLinks`. While it is
down something may happen to its disk. A start then refuses what it finds, and the disk is mended; or it goes on, and
the answers must be right. An older copy that is only found out when the site has gone on cannot be mended by itself.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from watersmeet.errors import CheckpointDamaged, CheckpointMismatch, WatersmeetError
from watersmeet.program.site.ledger import FORMAT, SiteLedger
from watersmeet.sim.sites.site import SimulatedSite
from watersmeet.spark.checkpoint import IDENTITY, LEDGER, STATE, Checkpoint, read_ledger
from watersmeet.spark.durable import UNFLUSHED
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.links.protocol import (
    LinkDirection,
    LinkEnd,
    Role,
    check_reader,
    check_sender,
    open_links,
    with_reader,
)

FAULTS = (
    *("torn ledger", "flipped ledger", "lost ledger", "older ledger", "flipped identity", "lost identity"),
    *("torn file", "flipped file", "lost file", "another file", "older copy", "spare files", "all lost"),
)
_CHANCE = 0.6  # of a fault at a start
_SNAPSHOT = 0.2  # of a copy at a commit
_MENDED_US = 500_000


class FoundOut(Exception):
    """An older copy was found out after its site had gone on from it: all sites are restored then."""


@dataclass
class Disks:
    """The disks of all sites of one trial."""

    root: Path
    sites: tuple[str, ...]
    random: random.Random
    by_name: dict[str, "FaultyDisk"] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def __call__(self, name: str) -> "FaultyDisk":
        self.by_name[name] = FaultyDisk(self, name)
        return self.by_name[name]


class FaultyDisk:
    """The disk of one site."""

    def __init__(self, disks: Disks, name: str) -> None:
        self._disks, self._name, self._starts = disks, name, 0
        self._directory, self._copies = disks.root / name, disks.root / "copies" / name
        self._peers = tuple(one for one in disks.sites if one != name)
        self._links = DirectoryLinks(disks.root / "links", name, UNFLUSHED)
        self._fault = ""
        self._mend: Callable[[], object] | None = None
        self._checkpoint: Checkpoint | None = self._opened()
        self.shelf = self._checkpoint.shelf

    def _opened(self) -> Checkpoint:
        checkpoint = Checkpoint(self._directory, {"format": FORMAT, "queries": {}}, UNFLUSHED)
        try:
            checkpoint.number_batches(by_client=True)
        except WatersmeetError:
            checkpoint.close()
            raise
        return checkpoint

    def open(self, site: SimulatedSite) -> SiteLedger:
        if self._checkpoint is None:
            if self._disks.random.random() < _CHANCE:
                self._break(self._disks.random.choice(FAULTS))
            self._checkpoint = self._opened()
        checkpoint, ledger = self._checkpoint, self._checkpoint.ledger
        given = max((batch for batches in site.answers.values() for batch in batches), default=-1)
        if given > ledger.number:
            raise CheckpointMismatch(f"the sinks have answers of micro-batch {given}, the checkpoint {ledger.number}")
        self._starts += 1
        self._links = DirectoryLinks(self._disks.root / "links", self._name, UNFLUSHED)
        end = LinkEnd(checkpoint.run_id, "same", ledger.epoch + 1, f"{self._name}-{self._starts}")
        self._end = open_links(self._links, self._name, self._peers, self._peers, end, ledger, checkpoint.commit)
        self._with_peers(checkpoint.ledger)
        return checkpoint.ledger

    def commit(self, site: SimulatedSite, ledger: SiteLedger) -> SiteLedger:
        assert self._checkpoint is not None, "the site is up"
        if self._starts:
            ledger = self._with_peers(ledger)
        self._checkpoint.commit(ledger)
        for peer in self._peers if self._starts else ():
            self._links.acknowledge(peer, ledger.received.get(peer, 0), 0)
        if self._disks.random.random() < _SNAPSHOT and not self._fault:
            shutil.rmtree(self._copies, ignore_errors=True)
            shutil.copytree(self._directory, self._copies)
        return SiteLedger.from_json(ledger.to_json())

    def _with_peers(self, ledger: SiteLedger) -> SiteLedger:
        """The ledger that knows who is at the other ends; refused if these are not who they were."""
        for peer in self._peers:
            out, back = LinkDirection(self._name, peer), LinkDirection(peer, self._name)
            if (reader := self._links.end(out, Role.READER)) is not None:
                check_reader(out, reader, ledger)
                ledger = with_reader(ledger, peer, reader)
            if (sender := self._links.end(back, Role.SENDER)) is not None:
                check_sender(back, sender, ledger)
                if ledger.received.get(peer):
                    ledger = replace(ledger, peers={**ledger.peers, peer: sender.run})
        return ledger

    def keep_only(self, paths: Collection[str]) -> None:
        """What the last commit names stays too: that answers were delivered is not in it yet."""
        assert self._checkpoint is not None, "the site is up"
        self.shelf.keep_only({*paths, *self._checkpoint.ledger.paths})

    def close(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._checkpoint = None

    def refused(self, site: SimulatedSite, error: WatersmeetError) -> None:
        assert isinstance(error, CheckpointDamaged | CheckpointMismatch) and "\n" not in str(error), repr(error)
        broken = [one for one in self._disks.by_name.values() if one._fault]
        if not broken:
            raise AssertionError(f"{self._name} was refused although nothing is wrong: {error}") from error
        ours = [one for one in broken if one is self] or broken
        for one in ours:
            self._disks.refused[one._fault] += 1
            if one is not self or one._mend is None:
                raise FoundOut(f"{one._fault} of {one._name}, by {self._name}: {error}")
            one._mend()
            one._fault, one._mend = "", None
        site.kernel.after(_MENDED_US, self._start_again, site)

    @staticmethod
    def _start_again(site: SimulatedSite) -> None:
        if not site.is_up:
            site.start()

    # -- what happens to a disk while nobody looks

    def _break(self, fault: str) -> None:
        if self._fault:
            return
        random, state = self._disks.random, self._directory / STATE
        names = sorted(read_ledger(self._directory).paths)
        is_of_file = fault.endswith(" file")
        if (is_of_file and not names) or (fault.startswith("older") and not self._copies.exists()):
            return
        self._disks.faults[fault] += 1
        if fault == "spare files":
            (state / "left-1-00000000.arrow").write_bytes(b"left")
            (self._directory / f"{LEDGER}.tmp").write_text("{")
            return
        self._fault = fault
        place = state / random.choice(names) if is_of_file else self._directory / LEDGER
        if "identity" in fault:
            place = self._directory / IDENTITY
        data = place.read_bytes()
        # A start with an older ledger deletes what only the newer one names, before links tell that it is older.
        whole = self._copied() if fault in ("older copy", "older ledger", "all lost") else None

        def put(changed: bytes | None) -> None:
            place.unlink(missing_ok=True)  # tables that are mapped stay as they are
            if changed is not None:
                place.write_bytes(changed)

        self._mend = lambda: put(data) if whole is None else self._restore(whole)
        match fault.split()[0]:
            case "torn":
                put(data[: random.randrange(len(data))])
            case "flipped":
                at = random.randrange(len(data))
                put(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :])
            case "lost":
                put(None)
            case "another":
                put((state / random.choice(names)).read_bytes()[::-1])
            case "older":
                self._restore(self._copies) if fault == "older copy" else put((self._copies / LEDGER).read_bytes())
            case "all":
                shutil.rmtree(self._directory)

    def _copied(self) -> Path:
        whole = self._copies.with_name(f"{self._name} as it was")
        shutil.rmtree(whole, ignore_errors=True)
        shutil.copytree(self._directory, whole)
        return whole

    def _restore(self, copy: Path) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        shutil.copytree(copy, self._directory)
