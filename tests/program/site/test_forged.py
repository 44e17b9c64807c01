"""Whatever well-formed parcels say, they are refused by a sentence, or leave a site that can go on."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import hangs
import numpy as np
import pytest
from program.site.forged_scenes import SCENES, groups
from program.site.forging import Forger
from seeds import FreshSeeds, scaled

from watersmeet.program.site.agreement import Observed, Ready, pack_notes, unpack_notes
from watersmeet.program.site.engine import SiteEngine

Scene = Callable[[int], object]


def tried(monkeypatch: pytest.MonkeyPatch, scene: Scene, seed: int, tries: int) -> Forger:
    """Run a scene, which is judged as ever, with forged parcels tried before those that are real."""
    forger = Forger(SiteEngine.run, np.random.default_rng(seed), tries)
    with monkeypatch.context() as patch:
        patch.setattr(SiteEngine, "run", lambda engine, ledger, arrivals: forger(engine, ledger, arrivals))
        try:
            found = scene(seed)
        except Exception as error:
            error.add_note(f"{scene.__name__} of seed {seed}")
            raise
    assert scene is not groups or found == scene(seed), "what was tried has changed the answers"
    return forger


@pytest.mark.parametrize("scene", SCENES, ids=[one.__name__ for one in SCENES])
def test_forged_parcels_are_refused_or_leave_a_site_that_goes_on(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    seeds = {"groups": range(4), "joins": (3, 5, 9), "changes": (3,), "statements": (4,)}[scene.__name__]
    forgers = [tried(monkeypatch, scene, seed, tries=8) for seed in seeds]
    assert sum(one.refused for one in forgers) and sum(one.taken for one in forgers), "both happen"


@pytest.mark.soak
@pytest.mark.parametrize("scene", SCENES, ids=[one.__name__ for one in SCENES])
def test_many_forged_parcels(monkeypatch: pytest.MonkeyPatch, fresh_seeds: FreshSeeds, scene: Scene) -> None:
    refused, taken, causes = 0, 0, Counter[str]()
    while refused + taken < scaled(25_000):
        for seed in fresh_seeds.take(1):
            forger = tried(monkeypatch, scene, seed, tries=20)
            refused, taken = refused + forger.refused, taken + forger.taken
            hangs.count("forged parcels", forger.refused + forger.taken)
            causes.update(forger.causes)
    print(f"\n{scene.__name__}: {refused:,} refused for {len(causes):,} causes, {taken:,} taken")


@pytest.mark.parametrize(
    "members",
    [
        *({"text": 5}, {"text": None}, {"number": True}, {"number": "2"}, {"number": 2**70}, {"bound_us": 2**62}),
        *({"bound_us": 1.5}, {"gone": ["a", 1]}, {"refused": {}}, {"more": 1}, {"is": "Proposal"}),
    ],
    ids=str,
)
def test_a_note_with_a_member_of_another_type_is_damaged(members: dict[str, Any]) -> None:
    note = Observed("x") if "text" in members else Ready(2, 5)
    data = json.loads(pack_notes([note]))
    data["notes"][0] |= members
    with pytest.raises(ValueError, match=r"^a note about plans is damaged$"):
        unpack_notes(json.dumps(data))


@pytest.mark.parametrize("text", [b"\xff", b"null", b"[]", b'{"notes":[null]}', b'{"notes":5}', b"[" * 100_000])
def test_what_is_no_note_is_damaged(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a note about plans is damaged$"):
        unpack_notes(text)


def test_notes_come_out_as_they_went_in() -> None:
    notes = (Observed("x"), Ready(2, -(2**63), ("q1",), "no"))
    assert unpack_notes(pack_notes(notes)) == notes
