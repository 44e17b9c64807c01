"""The kernel against one that sorts: random programs that schedule, cancel, stop and raise while they run."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from watersmeet.sim.kernel import NO_EVENT, Kernel


class Oops(Exception):
    """Raised by some actions."""


class Sorted:
    """The definition, as slowly as can be: always execute the least (time, priority, sequence) that is left."""

    def __init__(self) -> None:
        self.now_us, self.sequence = 0, 0
        self.left: dict[tuple[int, int, int], tuple[Callable[..., object], tuple[Any, ...]]] = {}

    def at(self, time_us: int, action: Callable[..., object], *args: Any, priority: int = 0) -> tuple[int, int, int]:
        self.sequence += 1
        self.left[time_us, priority, self.sequence] = (action, args)
        return (time_us, priority, self.sequence)

    def after(
        self, delay_us: int, action: Callable[..., object], *args: Any, priority: int = 0
    ) -> tuple[int, int, int]:
        return self.at(self.now_us + delay_us, action, *args, priority=priority)

    def cancel(self, event: tuple[int, int, int]) -> None:
        self.left.pop(event, None)

    @property
    def pending(self) -> int:
        return len(self.left)

    def run(self, until_us: int | None = None, max_events: int | None = None) -> int:
        executed = 0
        while self.left and (until_us is None or min(self.left)[0] <= until_us):
            if executed == max_events:
                return executed
            event = min(self.left)
            action, args = self.left.pop(event)
            self.now_us = event[0]
            executed += 1
            action(*args)
        if until_us is not None:
            self.now_us = until_us
        return executed


def program(kernel: Any, seed: int, share_ranked: float, raises: bool) -> list[tuple[Any, ...]]:
    """What a random program does, told by its choices alone; all times are close, so that instants are shared."""
    random, number = Random(seed), 0
    trace: list[tuple[Any, ...]] = []
    events: list[Any] = []

    def act(name: int) -> None:
        trace.append((kernel.now_us, name))
        for _ in range(random.choice((0, 1, 1, 2))):
            schedule()
        if random.random() < 0.3:
            kernel.cancel(random.choice(events))
        if raises and random.random() < 0.1:
            raise Oops

    def schedule() -> None:
        nonlocal number
        if number < 150:
            number += 1
            priority = random.randrange(-2, 3) if random.random() < share_ranked else 0
            sub_plan = random.choice(
                (kernel.after, lambda delay_us, *rest, **more: kernel.at(kernel.now_us + delay_us, *rest, **more))
            )
            events.append(sub_plan(random.choice((0, 0, 1, 2, 7)), act, number, priority=priority))

    for _ in range(10):
        schedule()
    while kernel.pending:
        until_us = random.choice((None, kernel.now_us + random.randrange(5)))
        max_events = random.choice((None, 0, 1, 5))
        try:
            trace.append(("ran", kernel.run(until_us, max_events), kernel.now_us, kernel.pending))
        except Oops:
            trace.append(("raised", kernel.now_us, kernel.pending))
    return trace


@pytest.mark.parametrize("share_ranked", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("slot_bits", [1, 2, 20])
def test_the_kernel_does_as_one_that_sorts(
    share_ranked: float, raises: bool, slot_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watersmeet.sim.kernel._SWEEP_AT", 3)  # so that sweeps happen in every program
    monkeypatch.setattr("watersmeet.sim.kernel._SLOT_BITS", slot_bits)  # short slots: events cross them all the time
    lengths = []
    for seed in range(60):
        expected = program(Sorted(), seed, share_ranked, raises)
        assert program(Kernel(seed=0), seed, share_ranked, raises) == expected, f"seed {seed}"
        lengths.append(len(expected))
    assert max(lengths) > 100


def test_an_instant_with_many_events_is_left_and_taken_up_again() -> None:
    kernel = Kernel(seed=1)
    trace: list[int] = []
    for number in range(100):
        kernel.at(7, trace.append, number)
    while kernel.pending:
        kernel.run(max_events=3)
    assert trace == list(range(100))
    assert kernel.now_us == 7


def test_no_event_is_no_handle() -> None:
    kernel = Kernel(seed=1)
    assert kernel.after(1, print) != NO_EVENT
    kernel.cancel(NO_EVENT)
    assert kernel.pending == 1
