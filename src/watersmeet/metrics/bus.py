"""The event stream of a run: any thread publishes, readers get every event in the same order.

Readers are called on the publishing thread, one event at a time. What a reader publishes itself follows the event it is
reading. The latest event of each site, query and link is kept for readers that come later.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, TypeVar, assert_never

from watersmeet.metrics.events import (
    AnswerSample,
    AnswersDelivered,
    ChangeRefused,
    Event,
    LinkCounts,
    MicroBatchCompleted,
    ParcelsRefused,
    PlanChangeProposed,
    PlanDecision,
    PlanInForce,
    QueryAdded,
    QueryDescribed,
    QueryEnded,
    QueryRemoved,
    RunEnded,
    RunStarted,
    RunWarning,
    ShippingExpected,
    SiteProgramInForce,
    SiteStatus,
    TopologyInForce,
    VersionDropped,
)

Reader: TypeAlias = Callable[[float, Event], None]
_Key: TypeAlias = tuple[str | None, ...]
_E = TypeVar(
    "_E",
    RunStarted,
    TopologyInForce,
    QueryDescribed,
    SiteProgramInForce,
    ShippingExpected,
    SiteStatus,
    AnswersDelivered,
    AnswerSample,
    PlanInForce,
    PlanChangeProposed,
    PlanDecision,
    VersionDropped,
    QueryAdded,
    QueryRemoved,
    QueryEnded,
    ChangeRefused,
    MicroBatchCompleted,
    LinkCounts,
    ParcelsRefused,
    RunWarning,
    RunEnded,
)

MAX_RECENT = 10_000  # of all types together; more than sites, queries and links of a topology


class EventBus:
    """Hands events to readers and remembers the latest of each kind; a reader that fails does not harm the run."""

    def __init__(self, clock: Callable[[], float] = time.time, max_recent: int = MAX_RECENT) -> None:
        self._clock = clock
        self._max_recent = max_recent
        self._lock = threading.RLock()
        self._readers: dict[int, Reader] = {}
        self._readers_ever = 0
        self._recent: dict[tuple[type[Event], _Key], tuple[float, Event]] = {}  # the least recent first
        self._pending: deque[tuple[float, Event]] = deque()
        self._is_delivering = False

    def publish(self, event: Event) -> None:
        """Hand an event to all readers, with the time of the clock."""
        with self._lock:
            self._pending.append((self._clock(), event))
            if self._is_delivering:  # called by a reader: its event follows the one under way
                return
            self._is_delivering = True
            try:
                while self._pending:
                    self._deliver(*self._pending.popleft())
            finally:
                self._is_delivering = False

    def subscribe(self, reader: Reader, *, replay: bool = False) -> Callable[[], None]:
        """Call a reader for every event from now on, with `replay` for the recent ones first; returns its end.

        Once the returned function has returned, the reader is not called any more.
        """
        with self._lock:
            number = self._readers_ever
            self._readers_ever += 1
            self._readers[number] = reader
            if replay:
                for at, event in list(self._recent.values()):
                    if not self._call(number, at, event):
                        break

        def unsubscribe() -> None:
            with self._lock:
                self._readers.pop(number, None)

        return unsubscribe

    def recent(self, kind: type[_E]) -> tuple[tuple[float, _E], ...]:
        """The latest event of a type for each site, query or link, with its time, the least recent first."""
        with self._lock:
            return tuple((at, event) for at, event in self._recent.values() if isinstance(event, kind))

    def _deliver(self, at: float, event: Event) -> None:
        key = (type(event), key_of(event))
        self._recent.pop(key, None)
        self._recent[key] = (at, event)
        if len(self._recent) > self._max_recent:
            del self._recent[next(iter(self._recent))]
        for number in list(self._readers):
            self._call(number, at, event)

    def _call(self, number: int, at: float, event: Event) -> bool:
        """Call a reader if it is still there; whether it can go on."""
        reader = self._readers.get(number)
        if reader is None:
            return False
        try:
            reader(at, event)
        except Exception as error:
            self._readers.pop(number, None)
            name = getattr(reader, "__qualname__", type(reader).__name__)
            self.publish(RunWarning(None, None, f"event reader {name} failed and is left out from now on: {error!r}"))
            return False
        return True


def key_of(event: Event) -> _Key:
    """What an event is about: a later one about the same takes its place."""
    match event:
        case RunStarted() | RunEnded() | TopologyInForce() | ShippingExpected():
            return ()
        case SiteProgramInForce() | SiteStatus():
            return (event.site,)
        case QueryDescribed() | AnswersDelivered() | AnswerSample():
            return (event.query,)
        case PlanInForce() | PlanDecision() | QueryAdded() | QueryRemoved():
            return (event.query,)
        case PlanChangeProposed() | ChangeRefused():
            return event.queries
        case QueryEnded():
            return event.site, event.query
        case VersionDropped():
            return event.site, event.version
        case MicroBatchCompleted():
            return (event.site,)
        case LinkCounts():
            return event.site, event.to, event.purpose
        case ParcelsRefused():
            return event.site, event.sender
        case RunWarning():
            return event.site, event.query
        case _:
            assert_never(event)


class Warnings:
    """Warnings of a site, each said once and not at every attempt, until what it is about is over."""

    def __init__(self, events: EventBus, site: str) -> None:
        self._events = events
        self._site = site
        self._said: dict[str, str] = {}

    def say(self, about: str, text: str) -> None:
        """Say what is wrong, unless that was the last thing said about it."""
        if self._said.get(about) != text:
            self._said[about] = text
            self._events.publish(RunWarning(self._site, None, text))

    def forget(self, about: str) -> None:
        """It is over: the next time it is said again."""
        self._said.pop(about, None)
