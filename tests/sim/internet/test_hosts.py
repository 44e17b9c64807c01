"""The simulated Internet: transmission times computed by hand, loss, failure notices, lives of a host, traffic."""

from collections.abc import Iterable
from fractions import Fraction
from math import ceil, sqrt
from random import Random
from typing import Any

import pytest

from watersmeet.sim.internet.hosts import Congestion, HostClock, Internet
from watersmeet.sim.internet.latency import ConstantLatency, King, Latency
from watersmeet.sim.kernel import Kernel

BYTE_A_US = 8_000_000.0  # bits a second: a byte takes a microsecond, and sizes are times
ALL = list(Congestion)
QUEUEING = [Congestion.FIFO, Congestion.FAIR]


class World:
    """Hosts that record what they get: (time, receiver, sender, message)."""

    def __init__(self, hosts: int = 5, seed: int = 1, latency: Latency | None = None, **settings: Any) -> None:
        self.kernel = Kernel(seed)
        settings.setdefault("access_bps", BYTE_A_US)
        self.internet = Internet(self.kernel, latency or ConstantLatency(1_000), **settings)
        self.trace: list[tuple[Any, ...]] = []
        for address in range(hosts):
            self.attach(address)

    def attach(self, address: int) -> None:
        def receive(sender: int, message: Any) -> None:
            self.trace.append((self.kernel.now_us, address, sender, message))

        self.internet.attach(address, receive)

    def send(self, time_us: int, sender: int, receiver: int, size_bytes: int, message: Any = "m") -> None:
        def failed() -> None:
            self.trace.append((self.kernel.now_us, sender, "failed", message))

        self.kernel.at(time_us, self.internet.send, sender, receiver, message, size_bytes, failed)

    def run(self) -> list[tuple[Any, ...]]:
        self.kernel.run()
        return self.trace


class Scripted(Random):
    """Chance that follows a script: numbers below the loss lose a message."""

    def __init__(self, numbers: Iterable[float]) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


@pytest.mark.parametrize("congestion", ALL)
def test_a_lone_message_takes_both_transmissions_and_the_latency(congestion: Congestion) -> None:
    world = World(congestion=congestion)
    world.send(0, 1, 2, 300)
    assert world.run() == [(300 + 1_000 + 300, 2, 1, "m")]


@pytest.mark.parametrize("congestion", ALL)
def test_without_a_bandwidth_only_the_latency_counts(congestion: Congestion) -> None:
    world = World(congestion=congestion, access_bps=None)
    for receiver in (2, 3):
        world.send(0, 1, receiver, 10**9)
    assert world.run() == [(1_000, 2, 1, "m"), (1_000, 3, 1, "m")]


def test_the_default_is_a_link_of_1500_kbps() -> None:
    world = World(access_bps=1_500_000.0)
    world.send(0, 1, 2, 1_500)
    assert world.run() == [(8_000 + 1_000 + 8_000, 2, 1, "m")]


# Two messages of one sender: 300 bytes at 0 to host 2, 100 bytes at 100 to host 3.
# NONE: each alone. FIFO: the second leaves at 300 + 100.
# FAIR: from 100 on 200 and 100 bytes are left and share; the second leaves at 300, and the last 100 bytes at 400.
@pytest.mark.parametrize(
    ("congestion", "delivered"),
    [
        (Congestion.NONE, {2: 1_600, 3: 1_300}),
        (Congestion.FIFO, {2: 300 + 1_000 + 300, 3: 400 + 1_000 + 100}),
        (Congestion.FAIR, {2: 400 + 1_000 + 300, 3: 300 + 1_000 + 100}),
    ],
)
def test_two_transfers_on_one_uplink(congestion: Congestion, delivered: dict[int, int]) -> None:
    world = World(congestion=congestion)
    world.send(0, 1, 2, 300)
    world.send(100, 1, 3, 100)
    assert {receiver: time_us for time_us, receiver, *_ in world.run()} == delivered


# Two messages to one receiver: 300 bytes at 0 from host 1, on its downlink from 1300; 100 bytes at 250 from host 2,
# there from 1350. FIFO: the first ends at 1600, the second at 1700. FAIR: at 1350 250 and 100 bytes are left; the
# second ends at 1550, and the last 150 bytes at 1700.
@pytest.mark.parametrize(
    ("congestion", "delivered"),
    [
        (Congestion.NONE, {1: 1_600, 2: 1_450}),
        (Congestion.FIFO, {1: 1_600, 2: 1_700}),
        (Congestion.FAIR, {1: 1_700, 2: 1_550}),
    ],
)
def test_two_transfers_on_one_downlink(congestion: Congestion, delivered: dict[int, int]) -> None:
    world = World(congestion=congestion)
    world.send(0, 1, 3, 300)
    world.send(250, 2, 3, 100)
    assert {sender: time_us for time_us, _, sender, _ in world.run()} == delivered


@pytest.mark.parametrize("congestion", QUEUEING)
def test_directions_do_not_disturb_each_other(congestion: Congestion) -> None:
    world = World(congestion=congestion)
    world.send(0, 1, 2, 500)
    world.send(0, 2, 1, 500)
    assert world.run() == [(2_000, 2, 1, "m"), (2_000, 1, 2, "m")]


def shared_ends(transfers: list[tuple[int, int]]) -> dict[int, Fraction]:
    """When each of (start, size) ends on one shared link, in exact fractions, a step from change to change."""
    left: dict[int, Fraction] = {}
    ends: dict[int, Fraction] = {}
    now = Fraction(0)
    waiting = sorted(range(len(transfers)), key=lambda n: (transfers[n][0], n))
    while waiting or left:
        next_end = now + min(left.values()) * len(left) if left else None
        next_start = Fraction(transfers[waiting[0]][0]) if waiting else None
        step_to = min(time for time in (next_end, next_start) if time is not None)
        for n in left:
            left[n] -= (step_to - now) / len(left)
        now = step_to
        for n in [n for n in left if left[n] == 0]:
            ends[n] = now
            del left[n]
        while waiting and transfers[waiting[0]][0] == now:
            left[waiting[0]] = Fraction(transfers[waiting[0]][1])
            waiting.pop(0)
    return ends


@pytest.mark.parametrize("seed", range(10))
def test_fair_sharing_is_exact(seed: int) -> None:
    random = Random(seed)
    transfers = [(random.randrange(3_000), random.randrange(1, 400)) for _ in range(40)]
    world = World(hosts=42, congestion=Congestion.FAIR, latency=ConstantLatency(0))
    for number, (start_us, size_bytes) in enumerate(transfers):
        world.send(start_us, 0, number + 1, size_bytes)  # a receiver of its own: its downlink is idle
    delivered = {receiver - 1: time_us for time_us, receiver, *_ in world.run()}
    ends = shared_ends(transfers)
    assert delivered == {n: ceil(ends[n]) + transfers[n][1] for n in range(40)}


def test_many_small_messages_fill_the_link_exactly() -> None:
    world = World(access_bps=24_000_000.0, congestion=Congestion.FIFO)  # a third of a microsecond a byte
    for _ in range(3_000):
        world.send(0, 1, 2, 1)
    assert world.run()[-1][0] == pytest.approx(1_000 + 1_000, abs=1)  # rounded one by one it would be 1,000 off


@pytest.mark.parametrize("congestion", ALL)
def test_a_lost_message_is_sent_again_after_the_timeout(congestion: Congestion) -> None:
    world = World(congestion=congestion, loss=0.5)
    world.kernel.random = Scripted([0.1, 0.4, 0.6])
    world.send(0, 1, 2, 100)
    once_us = 100 + 1_000 + 100
    timeout_us = once_us + 1_000 + 1_000  # the acknowledgement's way and the slack
    assert world.run() == [(2 * timeout_us + once_us, 2, 1, "m")]
    assert world.internet.messages_sent == [0, 3, 0, 0, 0]
    assert world.internet.bytes_sent == [0, 300, 0, 0, 0]
    assert world.internet.messages_received == [0, 0, 1, 0, 0]
    assert (world.internet.lost_total, world.internet.failed_total) == (2, 0)


@pytest.mark.parametrize("congestion", ALL)
def test_after_all_retries_the_sender_is_told_once(congestion: Congestion) -> None:
    world = World(congestion=congestion, loss=0.5, retries=2)
    world.kernel.random = Scripted([0.1] * 3)
    world.send(0, 1, 2, 100)
    assert world.run() == [(3 * 3_200, 1, "failed", "m")]
    assert world.internet.messages_sent[1] == 3
    assert (world.internet.lost_total, world.internet.failed_total) == (3, 1)


def test_loss_and_retries_have_their_frequencies() -> None:
    count, loss, retries = 4_000, 0.4, 3
    world = World(loss=loss, retries=retries, seed=11)
    for number in range(count):
        world.send(number, 1, 2, 10, number)
    trace = world.run()
    failed = {message for _, _, sender, message in trace if sender == "failed"}
    delivered = [message for _, _, sender, message in trace if sender != "failed"]
    assert sorted([*delivered, *failed]) == list(range(count))  # each once, or failed
    expected = loss ** (retries + 1)
    assert len(failed) / count == pytest.approx(expected, abs=4 * sqrt(expected * (1 - expected) / count))
    # A message is sent (1 - p^4) / (1 - p) times in the mean, never more than 4: four deviations of a spread below 1.
    sent = world.internet.messages_sent[1]
    assert sent / count == pytest.approx((1 - expected) / (1 - loss), abs=4 / sqrt(count))
    assert sent == len(delivered) + world.internet.lost_total
    assert world.internet.failed_total == len(failed)


@pytest.mark.parametrize("congestion", ALL)
@pytest.mark.parametrize("receiver", [2, 77])  # one that has crashed, one that never was
def test_without_loss_a_dead_receiver_is_known_after_one_timeout(congestion: Congestion, receiver: int) -> None:
    world = World(congestion=congestion)
    world.internet.detach(2)
    world.send(0, 1, receiver, 100)
    assert world.run() == [(3_200, 1, "failed", "m")]
    assert world.internet.messages_sent[1] == 1
    assert (world.internet.lost_total, world.internet.failed_total) == (1, 1)


@pytest.mark.parametrize("congestion", ALL)
def test_with_loss_a_dead_receiver_is_tried_again(congestion: Congestion) -> None:
    world = World(congestion=congestion, loss=0.5, retries=2)
    world.kernel.random = Scripted([0.9] * 3)
    world.internet.detach(2)
    world.send(0, 1, 2, 100)
    assert world.run() == [(3 * 3_200, 1, "failed", "m")]
    assert world.internet.messages_sent[1] == 3


@pytest.mark.parametrize("congestion", ALL)
@pytest.mark.parametrize("crash_us", [0, 600, 1_150])  # before it is on the way, on the wire, on the downlink
def test_a_new_life_does_not_get_what_was_meant_for_the_last(congestion: Congestion, crash_us: int) -> None:
    world = World(congestion=congestion)
    world.send(0, 1, 2, 100, "old")
    world.kernel.at(crash_us, world.internet.detach, 2)
    world.kernel.at(crash_us, world.attach, 2)
    world.send(1_160, 1, 2, 10, "new")
    assert sorted(world.run()) == [(1_160 + 1_020, 2, 1, "new"), (3_200, 1, "failed", "old")]
    assert world.internet.bytes_received[2] == 10


@pytest.mark.parametrize("congestion", ALL)
def test_what_is_sent_to_a_host_that_is_down_does_not_reach_its_next_life(congestion: Congestion) -> None:
    world = World(congestion=congestion)
    world.internet.detach(2)
    world.send(0, 1, 2, 100)
    world.kernel.at(50, world.attach, 2)
    assert world.run() == [(3_200, 1, "failed", "m")]


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_sender_that_has_crashed_is_not_told(comes_back: bool) -> None:
    world = World()
    world.internet.detach(2)
    world.send(0, 1, 2, 100)
    world.kernel.at(2_000, world.internet.detach, 1)
    if comes_back:
        world.kernel.at(2_000, world.attach, 1)
    assert world.run() == []
    assert world.internet.failed_total == 0


def test_a_sender_that_has_crashed_does_not_retry() -> None:
    world = World(loss=0.5)
    world.kernel.random = Scripted([0.1])
    world.send(0, 1, 2, 100)
    world.kernel.at(2_000, world.internet.detach, 1)
    assert world.run() == []
    assert world.internet.messages_sent[1] == 1


@pytest.mark.parametrize(("congestion", "arrive"), [(Congestion.NONE, 3), (Congestion.FIFO, 1), (Congestion.FAIR, 0)])
def test_a_crash_destroys_what_waits_to_be_sent(congestion: Congestion, arrive: int) -> None:
    world = World(congestion=congestion)
    for receiver in (2, 3, 4):
        world.send(0, 1, receiver, 300)
    world.kernel.at(350, world.internet.detach, 1)  # FIFO has sent one by then, FAIR would end all three at 900
    world.kernel.at(360, world.attach, 1)
    world.send(400, 1, 0, 10, "afresh")
    trace = world.run()
    assert (400 + 10 + 1_000 + 10, 0, 1, "afresh") in trace  # nothing old is before it
    assert len(trace) == world.internet.messages_sent[1] == arrive + 1


def test_a_message_to_oneself_is_no_traffic_and_comes_after_the_sending() -> None:
    world = World()
    world.send(5, 1, 1, 10**6)
    world.kernel.at(5, world.trace.append, "scheduled before")
    assert world.run() == ["scheduled before", (5, 1, 1, "m")]
    assert sum(world.internet.messages_sent) == sum(world.internet.bytes_received) == 0
    world.trace.clear()
    world.send(10, 1, 1, 1)
    world.kernel.at(10, world.internet.detach, 1)
    assert world.run() == []


def test_who_is_up() -> None:
    world = World(hosts=2)
    assert [world.internet.is_up(address) for address in (0, 1, 2, -1)] == [True, True, False, False]
    world.internet.detach(1)
    world.internet.detach(1)
    world.internet.detach(9)
    assert not world.internet.is_up(1)
    world.send(0, 1, 0, 10)  # a dead host sends nothing
    world.send(0, 9, 0, 10)
    assert world.run() == []
    world.attach(7)
    assert world.internet.messages_sent == [0] * 8
    with pytest.raises(ValueError, match="host 7 is attached already"):
        world.attach(7)
    with pytest.raises(ValueError, match="negative"):
        world.attach(-1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"access_bps": 0.0}, "access_bps"), ({"loss": 1.0}, "loss"), ({"retries": -1}, "retries")],
)
def test_bad_settings_are_errors(settings: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        World(**settings)


def gossip(seed: int, **settings: Any) -> tuple[Any, ...]:
    """Hosts pass messages on at random for a while, some crash and come back; everything that happens is recorded."""
    world = World(hosts=0, seed=seed, latency=King(20, seed=3), **settings)
    random, internet = world.kernel.random, world.internet

    def attach(address: int) -> None:
        def receive(sender: int, message: Any) -> None:
            world.trace.append((world.kernel.now_us, address, sender, message))
            if message:
                internet.send(
                    address, random.randrange(20), message - 1, random.randrange(2_000), lambda: lost(message)
                )

        internet.attach(address, receive)

    def lost(message: Any) -> None:
        world.trace.append((world.kernel.now_us, "lost", message))

    for address in range(20):
        attach(address)
        world.kernel.at(random.randrange(1_000), internet.send, address, random.randrange(20), 20, 500)
    for address in range(0, 20, 4):
        world.kernel.at(400_000, internet.detach, address)
        world.kernel.at(600_000, attach, address)
    world.run()
    counters = (internet.messages_sent, internet.bytes_sent, internet.messages_received, internet.bytes_received)
    return world.trace, counters, internet.lost_total, internet.failed_total


@pytest.mark.parametrize("congestion", ALL)
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_same_seed_same_trace(congestion: Congestion, loss: float) -> None:
    first = gossip(1, congestion=congestion, loss=loss)
    assert len(first[0]) > 100
    assert first == gossip(1, congestion=congestion, loss=loss)
    assert first != gossip(2, congestion=congestion, loss=loss)


def test_the_fast_path_is_the_general_one() -> None:
    """A loss that never happens takes the way of all others; the same messages must arrive at the same times."""
    traces = []
    for loss in (0.0, 1e-300):
        world = World(hosts=20, loss=loss, retries=0, latency=King(20))
        random = Random(4)
        for number in range(300):
            world.send(random.randrange(500_000), random.randrange(20), random.randrange(22), 1 + number, number)
        world.kernel.at(200_000, world.internet.detach, 3)
        traces.append((world.run(), world.internet.messages_sent, world.internet.lost_total))
    assert traces[0] == traces[1]
    assert traces[0][2] > 10


def test_clocks_are_off_and_drift() -> None:
    world = World()
    world.internet.clocks[1] = HostClock(offset_us=-2_000, drift_ppm=50.0)
    world.kernel.run(until_us=10_000_000)
    assert [world.internet.local_us(address) for address in (0, 1)] == [10_000_000, 10_000_000 - 2_000 + 500]
    with pytest.raises(ValueError, match="stand still"):
        HostClock(drift_ppm=-1e6)
