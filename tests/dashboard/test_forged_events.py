"""Whatever lines are in the file of events, or come from another site, a dashboard shows what it can and goes on."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from seeds import FreshSeeds

from watersmeet.dashboard import view
from watersmeet.dashboard.model import RunModel
from watersmeet.dashboard.store import DashboardStore
from watersmeet.dashboard.tail import Tail
from watersmeet.dashboard.watcher import Watcher
from watersmeet.errors import RunError
from watersmeet.metrics.events import from_json
from watersmeet.metrics.jsonl import KEPT

Lines = list[dict[str, Any]]

OTHERS: list[Any] = [
    *(None, True, 0, -1, 7, 2**62, 2**63, 10**400, -0.0, 1.5, 1e308, float("nan"), float("inf")),
    *("", "x", "a, b", "x" * 5_000, "\ud800", "\0", "1970-01-01", [], {}, [[]], ["x", 1], {"x": None}, {"": {"x": []}}),
]


def mutated(chance: random.Random, value: Any) -> Any:
    """A value with something else in one place of it."""
    if chance.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return chance.choice(OTHERS)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [*value[:at], mutated(chance, value[at]), *value[at + chance.choice([0, 1, 1]) :]]
    name = chance.choice(sorted(value))
    other = {**value, name: mutated(chance, value[name])}
    if chance.random() < 0.1:
        other[chance.choice(["", "x", "at", "site", "query"])] = other.pop(name)
    return other


def forged(chance: random.Random, lines: Lines) -> str:
    """A line of events that no run has written."""
    text = json.dumps(mutated(chance, chance.choice(lines)))
    at = chance.randrange(len(text))
    return chance.choice([text, text, text, text[:at], "[" * 100_000, f"{text[:at]}\x00{text[at:]}"])


def check_forged(lines: Lines, directory: Path, seed: int, count: int) -> int:
    """Show what is in a file of real and forged lines; how many of these were taken for events."""
    chance = random.Random(seed)
    every = lines[:]
    directory.mkdir()
    with open(directory / KEPT, "w", encoding="utf-8", newline="\n") as file:
        for _ in range(count):
            file.write(forged(chance, every) + "\n" + json.dumps(chance.choice(every)) + "\n")
    tail, model = Tail(directory / KEPT), RunModel()
    for at, event in tail.read():
        model.read("run", at, event)
    for now in (model.last_at, every[-1]["at"]):
        json.dumps([view.snapshot(model, now), view.timeline(model), view.answers(model)], allow_nan=False).encode()
    with contextlib.closing(DashboardStore(directory / "store.sqlite")) as store:
        store.save(model, {})
        store.load(RunModel())
    return count - tail.damaged


def test_forged_lines_are_passed_over_or_shown(recorded: Lines, tmp_path: Path) -> None:
    taken = sum(check_forged(recorded, tmp_path / str(seed), seed, 150) for seed in range(4))
    assert 20 < taken < 400, "both happen"


@pytest.mark.soak
def test_many_forged_lines(recorded: Lines, tmp_path: Path, fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(200):
        check_forged(recorded, tmp_path / str(seed), seed, 150)


def test_a_dashboard_goes_on_after_lines_that_are_no_events(recorded: Lines, tmp_path: Path) -> None:
    real = next(line for line in recorded if line["event"] == "micro_batch_completed")
    wrong: Lines = [{**real, "rows_in": {"s": "many"}}, {**real, "at": None}, {**real, "site": ["ams"]}, {"event": []}]
    (tmp_path / KEPT).write_text("".join(json.dumps(line) + "\n" for line in [*wrong, real]), encoding="utf-8")
    watcher = Watcher([tmp_path])
    watcher.start()
    try:
        assert watcher.look(lambda model, now: sum(model.total(*key) for key in model.keys("batches"))) == 1
    finally:
        watcher.stop()


@pytest.mark.parametrize("text", ["[]", "7", "null", '{"event": {}}', '{"event": "warning"}', "[" * 100_000, "x"])
def test_what_is_no_event_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_json(text)


def test_a_damaged_store_is_a_sentence(recorded: Lines, tmp_path: Path) -> None:
    path, model = tmp_path / "store.sqlite", RunModel()
    for line in recorded[:200]:
        model.read("run", *from_json(json.dumps(line)))
    with contextlib.closing(DashboardStore(path)) as store:
        store.save(model, {})
    whole, refused = path.read_bytes(), list[str]()
    for seed in range(30):
        chance = random.Random(seed)
        at = chance.randrange(100, len(whole) - 500)
        path.write_bytes(whole[:at] + chance.randbytes(500) + whole[at + 500 :])
        try:
            with contextlib.closing(DashboardStore(path)) as store:
                store.load(RunModel())
        except RunError as error:
            refused.append(str(error))
    assert len(refused) > 5
    assert all(f"{path} cannot be used (" in text and "\n" not in text for text in refused)
