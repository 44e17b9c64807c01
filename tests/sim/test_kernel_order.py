"""The kernel against one that sorts: random programs that schedule, cancel, stop and raise while they run."""

from random import Random

import pytest

from watersmeet.sim.kernel import NO_EVENT, Kernel


class Oops(Exception):
    """Raised by some actions."""


class Sorted:
    """The law, as slowly as can be: always execute the least (time, priority, sequence) that is left."""

    def __init__(self):
        self.now_us, self.left, self.sequence = 0, {}, 0

    def at(self, time_us, action, *args, priority=0):
        self.sequence += 1
        self.left[time_us, priority, self.sequence] = (action, args)
        return (time_us, priority, self.sequence)

    def after(self, delay_us, action, *args, priority=0):
        return self.at(self.now_us + delay_us, action, *args, priority=priority)

    def cancel(self, event):
        self.left.pop(event, None)

    @property
    def pending(self):
        return len(self.left)

    def run(self, until_us=None, max_events=None):
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


def program(kernel, seed, share_ranked, raises):
    """What a random program does, told by its choices alone; all times are close, so that instants are shared."""
    random, trace, events, number = Random(seed), [], [], 0

    def act(name):
        trace.append((kernel.now_us, name))
        for _ in range(random.choice((0, 1, 1, 2))):
            schedule()
        if random.random() < 0.3:
            kernel.cancel(random.choice(events))
        if raises and random.random() < 0.1:
            raise Oops

    def schedule():
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
def test_the_kernel_does_as_one_that_sorts(share_ranked, raises, monkeypatch):
    monkeypatch.setattr("watersmeet.sim.kernel._SWEEP_AT", 3)  # so that sweeps happen in every program
    lengths = []
    for seed in range(120):
        expected = program(Sorted(), seed, share_ranked, raises)
        assert program(Kernel(seed=0), seed, share_ranked, raises) == expected, f"seed {seed}"
        lengths.append(len(expected))
    assert max(lengths) > 100


def test_an_instant_with_many_events_is_left_and_taken_up_again():
    kernel, trace = Kernel(seed=1), []
    for number in range(100):
        kernel.at(7, trace.append, number)
    while kernel.pending:
        kernel.run(max_events=3)
    assert trace == list(range(100))
    assert kernel.now_us == 7


def test_no_event_is_no_handle():
    kernel = Kernel(seed=1)
    assert kernel.after(1, print) != NO_EVENT
    kernel.cancel(NO_EVENT)
    assert kernel.pending == 1
