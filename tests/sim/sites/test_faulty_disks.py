"""Whatever is found on a disk at a start is refused by a sentence, or nothing is lost: trials on damaged disks."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import hangs
import pytest
from seeds import FreshSeeds, scaled
from sim.sites import faulty_disks
from sim.sites.faulty_disks import FAULTS, Disks, FoundOut

from watersmeet.sim.sites.trials.draw import draw, draw_changing
from watersmeet.sim.sites.trials.model import Trial, TrialCrash
from watersmeet.sim.sites.trials.run import run
from watersmeet.spark import files
from watersmeet.spark.links import protocol

DOWN_US = (100, 300_000, 3_000_000)
# What is read at every start, or counted there, is never passed over.
ALWAYS_REFUSED = ("torn ledger", "flipped ledger", "lost ledger", "flipped identity", "lost file")


def trial_of(seed: int, chance: random.Random) -> Trial:
    """A small trial whose sites go down more often."""
    trial = (draw_changing if seed % 2 else draw)(seed, size="tiny")
    last_us = max((feed.time_us for feed in trial.feeds), default=0)
    sites = sorted(trial.intervals_us)
    crashes = (
        TrialCrash(chance.choice(sites), chance.randrange(last_us + 3_000_000), chance.choice(DOWN_US))
        for _ in range(6)
    )
    return replace(trial, crashes=tuple(crashes))


def tried(seed: int, root: Path) -> Disks:
    """Run a trial on faulty disks; its answers are right, if it came to its end."""
    chance = random.Random(f"{seed} disks")
    trial = trial_of(seed, chance)
    disks = Disks(root / str(seed), tuple(sorted(trial.intervals_us)), chance)
    try:
        outcome = run(trial, disks)
        assert outcome.is_right, f"{outcome.verdict}\nfaults: {dict(disks.faults)}, refused: {dict(disks.refused)}"
    except FoundOut as found:
        print(f"seed {seed}: {found}")
    finally:
        for disk in disks.by_name.values():
            disk.close()
    return disks


def counted(seeds: Iterable[int], root: Path) -> tuple[Counter[str], Counter[str]]:
    faults, refused = Counter[str](), Counter[str]()
    for seed in seeds:
        disks = tried(seed, root)
        faults.update(disks.faults)
        hangs.count("faults of simulated disks", disks.faults.total())
        refused.update(disks.refused)
    assert all(faults[fault] == refused[fault] for fault in ALWAYS_REFUSED)
    return faults, refused


def test_what_is_found_is_refused_or_nothing_is_lost(tmp_path: Path) -> None:
    # 1167972702: a start with an older copy of the same epoch is refused before it takes the next one
    faults, refused = counted([1, 3, 8, 17, 20, 1_167_972_702], tmp_path)
    assert len(faults) > 8 and sum(refused.values()) > 10


@pytest.mark.soak
def test_many_faults(tmp_path: Path, fresh_seeds: FreshSeeds) -> None:
    faults, refused = counted(fresh_seeds.take(1_000), tmp_path)
    assert set(faults) == set(FAULTS) or scaled(1_000) < 100
    print(f"\n{sum(faults.values()):,} faults, {sum(refused.values()):,} refused: {dict(refused)}")


@pytest.mark.parametrize(("unchecked", "seed"), [("files", 8), ("ends", 13)])
def test_without_checks_something_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked: str, seed: int
) -> None:
    """The trials find out when checksums, or what ends of links say, are not looked at."""
    if unchecked == "files":
        monkeypatch.setattr(files, "verify", lambda path: None)
    else:
        monkeypatch.setattr(protocol, "check_own_end", lambda *_: None)
        for module in (protocol, faulty_disks):
            monkeypatch.setattr(module, "check_reader", lambda *_: 0)
            monkeypatch.setattr(module, "check_sender", lambda *_: None)
    with pytest.raises(Exception, match=r"."):
        tried(seed, tmp_path)
