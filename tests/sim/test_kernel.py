"""The kernel: order, cancelling, limits, and the same run for the same seed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.sim.kernel import NO_EVENT, Event, Kernel


def test_order_is_time_then_priority_then_insertion() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    kernel.at(20, trace.append, "later")
    kernel.at(10, trace.append, "first of its priority")
    kernel.at(10, trace.append, "second of its priority")
    kernel.at(10, trace.append, "urgent", priority=-1)
    kernel.after(10, trace.append, "patient", priority=1)
    assert kernel.run() == 5
    assert trace == ["urgent", "first of its priority", "second of its priority", "patient", "later"]
    assert kernel.now_us == 20


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2), st.booleans())))
def test_order_is_a_stable_sort_of_what_is_not_cancelled(wishes: list[tuple[int, int, bool]]) -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    events = [kernel.at(time, trace.append, n, priority=priority) for n, (time, priority, _) in enumerate(wishes)]
    for event, (_, _, cancelled) in zip(events, wishes, strict=True):
        if cancelled:
            kernel.cancel(event)
    left = [n for n, (_, _, cancelled) in enumerate(wishes) if not cancelled]
    assert kernel.pending == len(left)
    assert kernel.run() == len(left)
    assert trace == sorted(left, key=lambda n: wishes[n][:2])


def test_an_action_schedules_for_its_own_instant() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    kernel.at(5, lambda: kernel.after(0, lambda: trace.append(kernel.now_us)))
    kernel.at(5, trace.append, "was there before")
    kernel.run()
    assert trace == ["was there before", 5]


def wander(seed: int) -> Any:
    kernel, trace = Kernel(seed), []

    def step(walker: int) -> None:
        trace.append((kernel.now_us, walker))
        if len(trace) < 500:
            kernel.after(kernel.random.randrange(4), step, kernel.random.randrange(10))

    for walker in range(3):
        kernel.at(0, step, walker)
    kernel.run()
    return trace


def test_same_seed_same_trace() -> None:
    assert wander(7) == wander(7)
    assert wander(7) != wander(8)


def test_cancelled_events_do_not_happen_nor_move_the_clock() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    kernel.at(1, trace.append, "kept")
    event = kernel.at(2, trace.append, "cancelled")
    kernel.cancel(event)
    kernel.cancel(event)
    assert kernel.pending == 1
    assert kernel.run() == 1
    assert (trace, kernel.now_us, kernel.pending) == (["kept"], 1, 0)


@pytest.mark.parametrize("priority", [-(2**15) - 1, 2**15])
def test_priority_has_bounds(priority: int) -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    with pytest.raises(ValueError, match="16 bits"):
        kernel.at(1, trace.append, "no", priority=priority)
    kernel.at(1, trace.append, "last", priority=2**15 - 1)
    kernel.at(1, trace.append, "first", priority=-(2**15))
    kernel.at(0, trace.append, "before", priority=2**15 - 1)
    assert kernel.run(until_us=0) == 1
    assert kernel.run(until_us=1) == 2
    assert trace == ["before", "first", "last"]


def test_cancelling_what_has_happened_changes_nothing() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    event = kernel.at(1, trace.append, "done")
    kernel.at(2, kernel.cancel, event)
    kernel.at(3, trace.append, "after")
    assert kernel.run() == 3
    kernel.cancel(event)
    kernel.cancel(NO_EVENT)
    assert (trace, kernel.pending) == (["done", "after"], 0)


def test_cancelled_timeouts_do_not_pile_up() -> None:
    kernel = Kernel(seed=1)
    left = 50_000

    def step(timeout: Event | None) -> None:
        nonlocal left
        if timeout is not None:
            kernel.cancel(timeout)
        left -= 1
        if left:
            kernel.after(1, step, kernel.after(10**9, pytest.fail, "a cancelled timeout rang"))

    kernel.after(0, step, None)
    assert kernel.run() == 50_000
    assert kernel.now_us == 49_999
    assert len(kernel._heap) < 3_000


def test_a_sweep_keeps_the_order() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    events = [
        (kernel.at(time_us := kernel.random.randrange(10**6), trace.append, time_us), time_us) for _ in range(9_000)
    ]
    for event, time_us in events:
        if time_us % 10:
            kernel.cancel(event)
    assert len(kernel._heap) < 9_000
    kernel.run()
    assert trace == sorted(time_us for _, time_us in events if time_us % 10 == 0)


def test_until_includes_its_instant_and_leaves_the_clock_there() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    for time_us in (5, 10, 11):
        kernel.at(time_us, trace.append, time_us)
    assert kernel.run(until_us=10) == 2
    assert (trace, kernel.now_us, kernel.pending) == ([5, 10], 10, 1)
    assert kernel.run(until_us=10) == 0
    assert kernel.run(until_us=100) == 1
    assert (trace, kernel.now_us) == ([5, 10, 11], 100)
    with pytest.raises(ValueError, match="until 99 us: it is already 100 us"):
        kernel.run(until_us=99)


def test_max_events_stops_and_goes_on() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    for time_us in range(5):
        kernel.at(time_us, trace.append, time_us)
    assert kernel.run(max_events=0) == 0
    assert kernel.run(until_us=50, max_events=2) == 2
    assert (trace, kernel.now_us) == ([0, 1], 1)
    assert kernel.run(max_events=100) == 3
    kernel.cancel(kernel.at(40, trace.append, "never"))
    kernel.at(30, trace.append, 30)
    assert kernel.run(until_us=50, max_events=1) == 1
    assert kernel.now_us == 50  # only something cancelled was left
    with pytest.raises(ValueError, match="max_events"):
        kernel.run(max_events=-1)


def test_the_past_is_an_error_that_names_both_times() -> None:
    kernel = Kernel(seed=1)
    kernel.run(until_us=100)
    with pytest.raises(ValueError, match="at 99 us: it is already 100 us"):
        kernel.at(99, print)
    with pytest.raises(ValueError, match="at 97 us: it is already 100 us"):
        kernel.after(-3, print)
    assert kernel.pending == 0


def test_an_exception_comes_out_and_the_run_can_go_on() -> None:
    kernel = Kernel(seed=1)
    trace: list[Any] = []
    kernel.at(1, {}.__getitem__, "missing")
    kernel.at(2, trace.append, "next")
    with pytest.raises(KeyError, match="missing"):
        kernel.run()
    assert (kernel.now_us, trace) == (1, [])
    assert kernel.run() == 1
    assert trace == ["next"]


def test_an_action_cannot_run_the_kernel() -> None:
    kernel = Kernel(seed=1)
    kernel.at(1, kernel.run)
    with pytest.raises(RuntimeError, match="is running"):
        kernel.run()
