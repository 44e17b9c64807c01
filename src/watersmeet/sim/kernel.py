"""A deterministic event kernel: actions happen in the order of (time, priority, sequence), all chance is one seed's.

Times are whole virtual microseconds. Ties go to the lower priority number, then to whatever was scheduled first, so a
run is a function of the seed and the program alone.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, TypeAlias


class _NoEvent(list[Any]):
    """Hashable, so that it can be the default of a dataclass's field."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]


Event: TypeAlias = list[Any]  # a handle, for `Kernel.cancel` alone
NO_EVENT: Event = _NoEvent()  # never a handle: a place for one starts with it, and cancelling it does nothing

# An event is a list: its action (None once it has happened or is cancelled), its arguments, and those that follow it at
# the same instant, if any. Each instant has one place in the heap, a plain integer, and leads to its first event. So
# comparisons follow no pointers, and many events at one instant cost the heap no more than one.
_ACTION, _ARGS, _FOLLOWERS = 0, 1, 2
_PRIORITY_LIMIT = 1 << 15
_END_OF_TIME = 1 << 256

# Millions of small objects live through a run, hardly any of them in cycles: with Python's own thresholds up to a third
# of the time goes into looking for some.
_COLLECTOR_THRESHOLDS = (200_000, 20, 100)

# Instants of later slots than the one under way wait in lists, one for each slot of 2^20 us. Soft state and timeouts
# fill the future with events that are nearly all cancelled: in the heap each would make every other event slower.
_SLOT_BITS = 20

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

    __slots__ = (
        "_cancelled",
        "_first",
        "_heap",
        "_later",
        "_near_us",
        "_ranked",
        "_running",
        "_sequence",
        "_slots",
        "_sweep_at",
        "now_us",
        "random",
    )

    def __init__(self, seed: int) -> None:
        self.now_us = 0
        self.random = Random(seed)
        self._heap: list[int] = []  # the instants to come before `_near_us`
        self._near_us = 1 << _SLOT_BITS
        self._later: dict[int, list[int]] = {}  # the others by slot, in no order
        self._slots: list[int] = []  # a heap of these slots
        self._first: dict[int, Event] = {}  # of each instant
        # Events of other priorities than 0 as (time, priority, sequence, event). They are few, so the others need not
        # pay for them; where both meet at one instant, those of that instant are put in here too.
        self._ranked: list[tuple[int, int, int, Event]] = []
        self._sequence = 0
        self._cancelled, self._sweep_at = 0, _SWEEP_AT
        self._running = False

    @property
    def pending(self) -> int:
        """How many events are still to happen; it counts them."""
        return sum(event[_ACTION] is not None for event in self._all_events())

    def at(self, time_us: int, action: Callable[..., object], *args: Any, priority: int = 0) -> Event:
        """Let `action(*args)` happen at a time that is not past; lower priorities go first at the same time."""
        if time_us < self.now_us:
            raise ValueError(f"cannot schedule at {time_us} us: it is already {self.now_us} us")
        if not priority:
            return self.after(time_us - self.now_us, action, *args)
        if not -_PRIORITY_LIMIT <= priority < _PRIORITY_LIMIT:
            raise ValueError(f"priority must fit into 16 bits: {priority}")
        event: Event = [action, args, None]
        self._rank(time_us, priority, event)
        return event

    def after(self, delay_us: int, action: Callable[..., object], *args: Any, priority: int = 0) -> Event:
        """Let `action(*args)` happen `delay_us` from now."""
        if priority or delay_us < 0:
            return self.at(self.now_us + delay_us, action, *args, priority=priority)
        event: Event = [action, args, None]
        time_us = self.now_us + delay_us
        first = self._first.setdefault(time_us, event)
        if first is event:
            if time_us < self._near_us:
                heappush(self._heap, time_us)
            else:
                self._put_later(time_us)
        elif first[2] is None:  # a number and not its name: this is run for every event
            first[2] = [event]
        else:
            first[2].append(event)
        return event

    def cancel(self, event: Event) -> None:
        """Take an event back; one that has happened or is cancelled already is left alone."""
        if not event or event[_ACTION] is None:
            return
        event[_ACTION], event[_ARGS] = None, ()
        # Timeouts are nearly always cancelled long before they are due: without a sweep they would fill the heap.
        self._cancelled += 1
        if self._cancelled >= self._sweep_at:
            self._sweep()

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
        end_us = _END_OF_TIME if until_us is None else until_us
        heap, firsts, ranked, pop = self._heap, self._first, self._ranked, heappop
        executed = 0
        self._running = True
        thresholds = gc.get_threshold()
        gc.set_threshold(*_COLLECTOR_THRESHOLDS)
        try:
            while True:
                if not heap and self._slots and self._slots[0] << _SLOT_BITS <= end_us:
                    self._reach_slot()
                if ranked and not (heap and heap[0] < ranked[0][0]):
                    if heap and heap[0] == ranked[0][0]:
                        self._rank_all(pop(heap))
                    time_us, _, _, event = ranked[0]
                    if time_us > end_us:
                        break
                    action = event[0]
                    if action is not None:
                        if executed == limit:
                            return executed
                        self.now_us = time_us
                        executed += 1
                        event[0] = None
                    pop(ranked)
                    if action is not None:
                        action(*event[1])
                    continue
                if not heap:
                    break
                time_us = heap[0]
                if time_us > end_us:
                    break
                first = firsts[time_us]
                action = first[0]
                if action is not None:
                    if executed == limit:
                        return executed
                    self.now_us = time_us
                    executed += 1
                    first[0] = None
                    action(*first[1])
                if first[2]:
                    for event in first[2]:  # it may grow meanwhile
                        if ranked and ranked[0][0] == time_us:
                            break
                        action = event[0]
                        if action is not None:
                            if executed == limit:
                                return executed
                            self.now_us = time_us
                            executed += 1
                            event[0] = None
                            action(*event[1])
                    else:
                        pop(heap)
                        del firsts[time_us]
                        first[2] = None  # whoever keeps a handle keeps that event only
                    continue
                # Only now, so that an action finds its own instant there, and so does the next run if it raises.
                pop(heap)
                del firsts[time_us]
        finally:
            self._running = False
            gc.set_threshold(*thresholds)
        if until_us is not None:
            self.now_us = until_us
        return executed

    def _put_later(self, time_us: int) -> None:
        slot = time_us >> _SLOT_BITS
        if slot in self._later:
            self._later[slot].append(time_us)
        else:
            self._later[slot] = [time_us]
            heappush(self._slots, slot)

    def _reach_slot(self) -> None:
        """Nothing is left before the next slot: its instants become those of the heap, in place, since `run` has it."""
        slot = heappop(self._slots)
        self._near_us = slot + 1 << _SLOT_BITS
        self._heap[:] = self._later.pop(slot)
        heapify(self._heap)

    def _rank(self, time_us: int, priority: int, event: Event) -> None:
        self._sequence += 1
        heappush(self._ranked, (time_us, priority, self._sequence, event))

    def _rank_all(self, time_us: int) -> None:
        first = self._first.pop(time_us)
        for event in (first, *(first[_FOLLOWERS] or ())):
            if event[_ACTION] is not None:
                self._rank(time_us, 0, event)

    def _all_events(self) -> list[Event]:
        events = [event for _, _, _, event in self._ranked]
        for first in self._first.values():
            events.append(first)
            events.extend(first[_FOLLOWERS] or ())
        return events

    def _sweep(self) -> None:
        """Forget what is cancelled; in place, since `run` holds the heaps, and its own instant must stay."""
        firsts, left = self._first, 0
        for time_us, first in list(firsts.items()):
            if time_us == self.now_us:
                continue
            alive = [event for event in (first, *(first[_FOLLOWERS] or ())) if event[_ACTION] is not None]
            left += len(alive)
            if alive:
                firsts[time_us] = alive[0]
                alive[0][_FOLLOWERS] = alive[1:] or None
            else:
                del firsts[time_us]
        self._heap[:] = [time_us for time_us in self._heap if time_us in firsts]
        heapify(self._heap)
        for slot, instants in list(self._later.items()):
            kept = [time_us for time_us in instants if time_us in firsts]
            if kept:
                self._later[slot] = kept
            else:
                del self._later[slot]
        self._slots[:] = self._later
        heapify(self._slots)
        self._ranked[:] = [ranked for ranked in self._ranked if ranked[3][_ACTION] is not None]
        heapify(self._ranked)
        # The next one when as much can be dropped as is kept now: then sweeping costs each cancelled event O(1).
        self._cancelled, self._sweep_at = 0, _SWEEP_AT + left + len(self._ranked)


@contextmanager
def without_cycles_collected() -> Iterator[None]:
    """Millions of living objects make each search for dead cycles long, and there are next to none to be found."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
