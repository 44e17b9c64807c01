"""The event bus: order, time, late and failing readers, many threads, bounded memory."""

import threading
from collections.abc import Callable
from itertools import count

from watersmeet.metrics.bus import EventBus
from watersmeet.metrics.events import (
    Event,
    LinkCounts,
    MicroBatchCompleted,
    PlanInForce,
    RunEnded,
    RunStarted,
    RunWarning,
)


def ticking_bus(**options: int) -> EventBus:
    """A bus whose clock goes 0.0, 1.0, 2.0, ..."""
    ticks = count()
    return EventBus(clock=lambda: float(next(ticks)), **options)


class Recorder:
    """A reader that keeps what it reads."""

    def __init__(self) -> None:
        self.read: list[tuple[float, Event]] = []

    def __call__(self, at: float, event: Event) -> None:
        self.read.append((at, event))

    @property
    def events(self) -> list[Event]:
        return [event for _, event in self.read]


def warning(text: str, query: str | None = None) -> RunWarning:
    return RunWarning(None, query, text)


def test_readers_get_events_in_order_with_their_times_until_they_unsubscribe() -> None:
    bus, first, second = ticking_bus(), Recorder(), Recorder()
    end_first = bus.subscribe(first)
    bus.publish(warning("one"))
    bus.subscribe(second)
    bus.publish(warning("two"))
    end_first()
    end_first()  # twice does no harm
    bus.publish(warning("three"))
    assert first.read == [(0.0, warning("one")), (1.0, warning("two"))]
    assert second.read == [(1.0, warning("two")), (2.0, warning("three"))]


def test_the_same_reader_may_subscribe_twice() -> None:
    bus, reader = ticking_bus(), Recorder()
    end = bus.subscribe(reader)
    bus.subscribe(reader)
    end()
    bus.publish(warning("one"))
    assert reader.events == [warning("one")]


def test_the_latest_of_each_site_query_and_link_is_kept(
    micro_batch: Callable[..., MicroBatchCompleted], link: Callable[..., LinkCounts]
) -> None:
    bus = ticking_bus()
    plans = [PlanInForce("q", "auto", "", None, 1), PlanInForce("r", "tree", "", 2.0, 1)]
    newer = PlanInForce("q", "auto", "", 1.0, 2)
    published: list[Event] = [
        RunStarted(("ams", "fra"), ("q", "r"), "1"),
        *plans,
        micro_batch("ams", 0),
        micro_batch("fra", 0),
        micro_batch("ams", 1),
        link(size=10),
        link(purpose="full tuples", size=11),
        link(to="nyc", size=12),
        link(size=13),
        newer,
        RunEnded("stopped"),
    ]
    for event in published:
        bus.publish(event)
    assert bus.recent(RunStarted) == ((0.0, RunStarted(("ams", "fra"), ("q", "r"), "1")),)
    assert bus.recent(PlanInForce) == ((2.0, plans[1]), (10.0, newer))
    assert [(at, event.site, event.batch) for at, event in bus.recent(MicroBatchCompleted)] == [
        (4.0, "fra", 0),
        (5.0, "ams", 1),
    ]
    assert [event.bytes for _, event in bus.recent(LinkCounts)] == [11, 12, 13]
    assert bus.recent(RunEnded) == ((11.0, RunEnded("stopped")),)
    assert bus.recent(RunWarning) == ()


def test_a_late_reader_gets_the_current_state_first() -> None:
    bus, reader = ticking_bus(), Recorder()
    bus.publish(warning("one", "q"))
    bus.publish(warning("two", "q"))
    bus.publish(warning("three", "r"))
    bus.subscribe(reader, replay=True)
    bus.publish(warning("four", "q"))
    assert reader.read == [(1.0, warning("two", "q")), (2.0, warning("three", "r")), (3.0, warning("four", "q"))]


def test_memory_is_bounded() -> None:
    bus = ticking_bus(max_recent=3)
    for number in range(10):
        bus.publish(warning("", f"q{number}"))
    bus.publish(warning("again", "q7"))
    bus.publish(warning("", "q10"))
    assert [event.query for _, event in bus.recent(RunWarning)] == ["q9", "q7", "q10"]


def fail(at: float, event: Event) -> None:
    raise OSError("disk full")


def test_a_failing_reader_is_dropped_with_a_warning() -> None:
    bus, before, after = ticking_bus(), Recorder(), Recorder()
    bus.subscribe(before)
    bus.subscribe(fail)
    bus.subscribe(after)
    bus.publish(RunEnded("completed"))
    bus.publish(warning("later", "q"))
    dropped = warning("event reader fail failed and is left out from now on: OSError('disk full')")
    assert before.events == after.events == [RunEnded("completed"), dropped, warning("later", "q")]


def test_a_reader_that_fails_while_it_catches_up_is_dropped() -> None:
    bus, reader = ticking_bus(), Recorder()
    bus.publish(warning("one", "q"))
    bus.publish(warning("two", "r"))
    bus.subscribe(reader)
    bus.subscribe(fail, replay=True)()
    assert len(reader.events) == 1 and "fail failed" in str(reader.events[0])


def test_what_a_reader_publishes_follows_what_it_reads() -> None:
    bus, reader = ticking_bus(), Recorder()

    def answer(at: float, event: Event) -> None:
        if isinstance(event, RunEnded):
            bus.publish(warning("ended"))

    bus.subscribe(answer)
    bus.subscribe(reader)
    bus.publish(RunEnded("completed"))
    assert reader.events == [RunEnded("completed"), warning("ended")]


def test_a_reader_may_unsubscribe_itself_and_others() -> None:
    bus, reader = ticking_bus(), Recorder()
    ends: list[Callable[[], None]] = []

    def end_all(at: float, event: Event) -> None:
        for end in ends:
            end()

    ends += [bus.subscribe(end_all), bus.subscribe(reader)]
    bus.publish(warning("one"))
    bus.publish(warning("two"))
    assert reader.events == []


def test_threads_publish_and_all_readers_see_one_order() -> None:
    bus, readers = ticking_bus(), [Recorder(), Recorder()]
    for reader in readers:
        bus.subscribe(reader)
    threads, rounds = 4, 200
    ready = threading.Barrier(threads)

    def publish(name: str) -> None:
        ready.wait()
        for number in range(rounds):
            bus.publish(warning(str(number), name))

    workers = [threading.Thread(target=publish, args=(f"q{number}",)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert readers[0].read == readers[1].read
    assert [at for at, _ in readers[0].read] == [float(number) for number in range(threads * rounds)]
    for number in range(threads):
        own = [
            event.text for event in readers[0].events if isinstance(event, RunWarning) and event.query == f"q{number}"
        ]
        assert own == [str(round_) for round_ in range(rounds)]
