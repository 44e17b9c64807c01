"""A deterministic event kernel: actions happen in the order of (time, priority, sequence), all chance is one seed's.

Times are whole virtual microseconds. Ties go to the lower priority number, then to whatever was scheduled first, so a
run is a function of the seed and the program alone.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, TypeAlias

Event: TypeAlias = int  # a handle, for `Kernel.cancel` alone
NO_EVENT: Event = 0  # never a handle: a place for one starts with it, and cancelling it does nothing

# An event's place in the order is one integer: time, then 16 bits of priority, then 48 bits of sequence. What it does
# is found by its sequence. With 10^5 events to come this is nearly twice as fast as a heap of tuples or lists, which
# follows two or three pointers into cold memory for each comparison; and cancelling is forgetting what to do.
_TIME_SHIFT, _PRIORITY_SHIFT = 64, 48
_SEQUENCE_MASK = (1 << _PRIORITY_SHIFT) - 1
_PRIORITY_LIMIT = 1 << 15
_PRIORITY_ZERO = _PRIORITY_LIMIT << _PRIORITY_SHIFT  # the middle, so that negative priorities borrow nothing from time
_END_OF_TIME = 1 << 256

# Below this many cancelled events a sweep costs more than the memory it gives back.
_SWEEP_AT = 1_024


class Kernel:
    """Virtual time, the events to come, and the only source of randomness.

    >>> kernel = Kernel(seed=7)
    >>> event = kernel.after(5, print, "five")
    >>> kernel.run(), kernel.now_us
    five
    (1, 5)
    """

    __slots__ = ("_actions", "_heap", "_running", "_sequence", "now_us", "random")

    def __init__(self, seed: int) -> None:
        self.now_us = 0
        self.random = Random(seed)
        self._heap: list[int] = []
        self._actions: dict[Event, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._sequence = NO_EVENT
        self._running = False

    @property
    def pending(self) -> int:
        """How many events are still to happen."""
        return len(self._actions)

    def at(self, time_us: int, action: Callable[..., object], *args: Any, priority: int = 0) -> Event:
        """Let `action(*args)` happen at a time that is not past; lower priorities go first at the same time."""
        if time_us < self.now_us:
            raise ValueError(f"cannot schedule at {time_us} us: it is already {self.now_us} us")
        self._sequence = sequence = self._sequence + 1
        key = (time_us << _TIME_SHIFT) + _PRIORITY_ZERO + sequence
        if priority:
            if not -_PRIORITY_LIMIT <= priority < _PRIORITY_LIMIT:
                raise ValueError(f"priority must fit into 16 bits: {priority}")
            key += priority << _PRIORITY_SHIFT
        self._actions[sequence] = (action, args)
        heappush(self._heap, key)
        return sequence

    def after(self, delay_us: int, action: Callable[..., object], *args: Any, priority: int = 0) -> Event:
        """Let `action(*args)` happen `delay_us` from now."""
        if priority or delay_us < 0:
            return self.at(self.now_us + delay_us, action, *args, priority=priority)
        # The usual case again in full: packing the arguments for a second call is over a third of an event's cost.
        self._sequence = sequence = self._sequence + 1
        self._actions[sequence] = (action, args)
        heappush(self._heap, (self.now_us + delay_us << _TIME_SHIFT) + _PRIORITY_ZERO + sequence)
        return sequence

    def cancel(self, event: Event) -> None:
        """Take an event back; one that has happened or is cancelled already is left alone."""
        actions, heap = self._actions, self._heap
        if actions.pop(event, None) is None:
            return
        # Timeouts are nearly always cancelled long before they are due: without a sweep their keys would fill the heap.
        if len(heap) > 2 * len(actions) + _SWEEP_AT:
            heap[:] = [key for key in heap if key & _SEQUENCE_MASK in actions]  # in place: `run` holds it
            heapify(heap)

    def run(self, until_us: int | None = None, max_events: int | None = None) -> int:
        """Execute events until none is left, the next is after `until_us`, or `max_events` are done; say how many.

        Unless `max_events` ended it, a run with `until_us` leaves the clock there. What an action raises comes out
        as it is; that event has happened, and a further `run` goes on after it.
        """
        if self._running:
            raise RuntimeError("the kernel is running: an action schedules with at or after, it cannot call run")
        if until_us is not None and until_us < self.now_us:
            raise ValueError(f"cannot run until {until_us} us: it is already {self.now_us} us")
        if max_events is not None and max_events < 0:
            raise ValueError(f"max_events must not be negative: {max_events}")
        limit = -1 if max_events is None else max_events
        end = _END_OF_TIME if until_us is None else until_us + 1 << _TIME_SHIFT
        heap, actions, pop, take = self._heap, self._actions, heappop, self._actions.pop
        time_shift, sequence_mask = _TIME_SHIFT, _SEQUENCE_MASK
        executed = 0
        self._running = True
        try:
            while heap:
                key = heap[0]
                if key >= end:
                    break
                if executed == limit and key & sequence_mask in actions:
                    return executed
                pop(heap)
                to_do = take(key & sequence_mask, None)
                if to_do is None:  # cancelled
                    continue
                self.now_us = key >> time_shift
                executed += 1
                to_do[0](*to_do[1])
        finally:
            self._running = False
        if until_us is not None:
            self.now_us = until_us
        return executed
