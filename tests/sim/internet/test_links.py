"""The network: exact times, at least once whatever is lost, and silence once all is acknowledged."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.sim.internet.links import DirectionCounts, LinkModel, Network
from watersmeet.sim.kernel import Kernel


@dataclass
class Pair:
    """A sender `a` with a durable outbox and a receiver `b` that acknowledges what it has without a gap."""

    model: LinkModel
    seed: int = 1
    retry_us: int | None = None
    acknowledges: bool = True
    arrivals: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel = Kernel(self.seed)
        self.network = Network(self.kernel, lambda sender, receiver: self.model, self.retry_us)
        self.outbox: dict[int, int] = {}
        self.network.connect("a", lambda sender, message: None)
        self.network.connect("b", self.receive)

    def send(self, number: int, size_bytes: int = 100) -> None:
        self.outbox[number] = size_bytes
        self.network.send("a", "b", number, number, size_bytes)

    def receive(self, sender: str, message: object) -> None:
        assert sender == "a" and isinstance(message, int)
        self.arrivals.append((self.kernel.now_us, message))
        if self.acknowledges:
            had = {number for _, number in self.arrivals}
            self.network.acknowledge("b", "a", next(n for n in itertools.count() if n not in had) - 1)

    def crash_sender(self) -> None:
        self.network.disconnect("a")
        self.network.forget("a")

    def restart_sender(self) -> None:
        self.network.connect("a", lambda sender, message: None)
        for number, size_bytes in self.outbox.items():
            self.network.send("a", "b", number, number, size_bytes)

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.arrivals]

    @property
    def traffic(self) -> DirectionCounts:
        return self.network.traffic("a", "b")


def test_latency_alone() -> None:
    pair = Pair(LinkModel(latency_us=250))
    pair.kernel.at(1_000, pair.send, 0)
    pair.kernel.run()
    assert pair.arrivals == [(1_250, 0)]
    assert pair.kernel.now_us == 1_500  # the acknowledgement is back, and no timer is left
    assert pair.traffic == DirectionCounts(sent=1, bytes_first=100, bytes_all=100)
    assert pair.network.acknowledged("a", "b") == 0


def test_bandwidth_is_a_fifo_transmitter() -> None:
    pair = Pair(LinkModel(latency_us=300, bandwidth_bps=10_000_000))
    pair.kernel.at(0, pair.send, 0, 1_250)  # 1 ms each
    pair.kernel.at(0, pair.send, 1, 2_500)
    pair.kernel.at(500, pair.send, 2, 1_250)
    pair.kernel.at(9_000, pair.send, 3, 1_250)
    pair.kernel.run()
    assert pair.arrivals == [(1_300, 0), (3_300, 1), (4_300, 2), (10_300, 3)]
    assert pair.traffic.retransmitted == 0


def test_directions_do_not_share_a_transmitter() -> None:
    kernel, arrivals = Kernel(seed=1), []
    network = Network(kernel, lambda sender, receiver: LinkModel(10, 8e6 if sender == "a" else 4e6))
    for site in "ab":
        network.connect(site, lambda sender, message: arrivals.append((kernel.now_us, sender)))
    network.send("a", "b", 0, "there", 100)
    network.send("b", "a", 0, "back", 100)
    kernel.run(until_us=500)
    assert arrivals == [(110, "a"), (210, "b")]


def test_small_messages_on_a_fast_link_keep_its_rate() -> None:
    pair = Pair(LinkModel(bandwidth_bps=1e9), acknowledges=False)
    for number in range(1_000):
        pair.send(number, 100)  # 0.8 us each
    pair.kernel.run(until_us=900)
    assert pair.numbers == list(range(1_000))
    assert pair.arrivals[-1][0] == 800


def test_a_part_of_a_microsecond_still_occupies_the_transmitter() -> None:
    pair = Pair(LinkModel(bandwidth_bps=8e6 / 1.4), acknowledges=False)  # 1.4 us a byte
    for time_us in range(3):
        pair.kernel.at(time_us, pair.send, time_us, 1)
    pair.kernel.at(4, pair.send, 3, 1, priority=1)  # nothing waits any more, but 2 leaves until 4.2
    pair.kernel.run(until_us=100)
    assert pair.arrivals == [(1, 0), (3, 1), (4, 2), (6, 3)]


def test_default_retry_follows_the_transmission() -> None:
    pair = Pair(LinkModel(latency_us=200, bandwidth_bps=8e6), acknowledges=False)
    pair.send(0, 1_000)
    pair.kernel.run(until_us=7_000)
    # On the wire at 1 000; 4 x 200 + 1 000 later it is sent again, which takes 1 000 once more.
    assert [time_us for time_us, _ in pair.arrivals] == [1_200, 4_000, 6_800]
    assert pair.traffic == DirectionCounts(sent=1, retransmitted=2, bytes_first=1_000, bytes_all=3_000)


def test_a_long_queue_is_not_retransmitted_before_it_has_left() -> None:
    pair = Pair(LinkModel(latency_us=10, bandwidth_bps=8e6))
    for number in range(50):
        pair.send(number, 1_000)
    pair.kernel.run()
    assert pair.traffic == DirectionCounts(sent=50, bytes_first=50_000, bytes_all=50_000)
    assert pair.arrivals[-1] == (50_010, 49)


def test_loss_is_retried_until_all_is_there() -> None:
    pair = Pair(LinkModel(latency_us=100, loss=0.4))
    for number in range(200):
        pair.send(number)
    pair.kernel.run(max_events=100_000)
    assert pair.kernel.pending == 0
    assert set(pair.numbers) == set(range(200))
    traffic = pair.traffic
    assert traffic.sent == 200 and traffic.lost > 50
    assert traffic.sent + traffic.retransmitted == traffic.lost + len(pair.numbers)
    assert traffic.bytes_all == 100 * (traffic.sent + traffic.retransmitted)


def test_duplicates_happen_and_are_counted() -> None:
    pair = Pair(LinkModel(latency_us=100, jitter_us=50, duplicate=0.3))
    for number in range(200):
        pair.send(number)
    pair.kernel.run()
    traffic = pair.traffic
    assert traffic.duplicated > 30 and traffic.retransmitted == 0
    assert len(pair.numbers) == 200 + traffic.duplicated
    times = [[time_us for time_us, number in pair.arrivals if number == n] for n in range(200)]
    assert any(len(set(twice)) == 2 for twice in times)  # a duplicate has a jitter of its own


def test_bytes_are_damaged_on_the_way_and_counted() -> None:
    kernel, whole, arrived = Kernel(1), bytes(range(100)), list[bytes]()
    network = Network(kernel, lambda sender, receiver: LinkModel(damage=0.3), retry_us=1_000)

    def receive(sender: str, message: object) -> None:
        assert isinstance(message, bytes)
        arrived.append(message)
        if message == whole:
            network.acknowledge("b", "a", 1_000)  # all of them, or the rest would come again

    network.connect("a", lambda sender, message: None)
    network.connect("b", receive)
    for number in range(200):
        network.send("a", "b", number, whole, 100)
    kernel.run()
    damaged = [message for message in arrived if message != whole]
    assert 30 < len(damaged) == network.traffic("a", "b").damaged < 100
    assert {len(message) == 100 for message in damaged} == {True, False}, "a bit is flipped, or the end is missing"
    assert all(
        message == whole[: len(message)] or sum(x != y for x, y in zip(message, whole, strict=True)) == 1
        for message in damaged
    )


def test_jitter_stays_in_its_bounds_and_reorders() -> None:
    pair = Pair(LinkModel(latency_us=100, jitter_us=20))
    for number in range(300):
        pair.kernel.at(number, pair.send, number)
    pair.kernel.run()
    delays = [time_us - number - 100 for time_us, number in pair.arrivals]
    assert set(delays) == set(range(21))
    assert pair.numbers != sorted(pair.numbers) == list(range(300))


def test_an_acknowledgement_covers_what_is_before_it_and_stops_retransmission() -> None:
    pair = Pair(LinkModel(latency_us=100), retry_us=1_000, acknowledges=False)
    for number in range(3):
        pair.send(number)
    pair.kernel.at(1_500, pair.network.acknowledge, "b", "a", 1)
    pair.kernel.at(1_550, pair.network.acknowledge, "b", "a", 0)  # an older one changes nothing
    pair.kernel.run(until_us=5_500)
    assert [pair.numbers.count(number) for number in range(3)] == [2, 2, 6]
    assert pair.network.acknowledged("a", "b") == 1
    pair.network.acknowledge("b", "a", 2)
    pair.kernel.run()
    assert pair.kernel.now_us == 5_600


def test_numbers_sent_out_of_order_are_acknowledged_too() -> None:
    pair = Pair(LinkModel(latency_us=100), retry_us=1_000, acknowledges=False)
    for number in (2, 0, 1):
        pair.send(number)
    pair.kernel.at(500, pair.network.acknowledge, "b", "a", 1)
    pair.kernel.at(1_500, pair.network.acknowledge, "b", "a", 2)
    pair.kernel.run(max_events=1_000)
    assert pair.numbers == [2, 0, 1, 2]
    assert pair.kernel.pending == 0


def test_a_retransmission_in_the_queue_is_withdrawn_when_it_is_acknowledged() -> None:
    pair = Pair(LinkModel(latency_us=100, bandwidth_bps=8e6), retry_us=500, acknowledges=False)
    pair.send(0, 1_000)
    pair.send(1, 10_000)  # on the wire from 1 000 to 11 000; the retransmission of 0 waits behind it
    pair.kernel.at(5_000, pair.network.acknowledge, "b", "a", 0)
    pair.kernel.at(11_200, pair.network.acknowledge, "b", "a", 1)
    pair.kernel.run(max_events=1_000)
    assert pair.numbers == [0, 1]
    assert pair.traffic.retransmitted == 0


def test_sending_what_is_under_way_or_acknowledged_does_nothing() -> None:
    pair = Pair(LinkModel(latency_us=100))
    pair.send(0)
    pair.send(0)
    pair.kernel.run()
    pair.send(0)
    assert pair.kernel.pending == 0
    assert pair.traffic.sent == 1 == len(pair.arrivals)


def test_a_crashed_receiver_gets_it_after_it_is_back() -> None:
    pair = Pair(LinkModel(latency_us=100), retry_us=1_000)
    pair.network.disconnect("b")
    pair.send(0)
    pair.kernel.at(2_500, pair.network.connect, "b", pair.receive)
    pair.kernel.run()
    assert pair.arrivals == [(3_100, 0)]
    assert pair.traffic == DirectionCounts(sent=1, retransmitted=3, lost=3, bytes_first=100, bytes_all=400)


def test_an_acknowledgement_to_a_crashed_sender_is_lost() -> None:
    pair = Pair(LinkModel(latency_us=100), retry_us=1_000)
    pair.send(0)
    pair.kernel.at(150, pair.network.disconnect, "a")
    pair.kernel.at(250, pair.network.connect, "a", lambda sender, message: None)
    pair.kernel.run()
    assert pair.arrivals == [(100, 0), (1_100, 0)]


def test_a_sender_that_never_receives_hears_acknowledgements() -> None:
    kernel = Kernel(seed=1)
    network = Network(kernel, lambda sender, receiver: LinkModel(latency_us=5))
    network.connect("b", lambda sender, message: network.acknowledge("b", sender, 0))
    network.send("source", "b", 0, "row", 10)
    kernel.run(max_events=10)
    assert kernel.pending == 0
    assert (network.traffic("source", "b").sent, network.traffic("b", "source").sent) == (1, 0)


def test_a_crashed_sender_loses_what_has_not_left() -> None:
    pair = Pair(LinkModel(latency_us=5_000, bandwidth_bps=8e6), acknowledges=False)
    for number in range(3):
        pair.send(number, 1_000)
    pair.kernel.at(1_500, pair.crash_sender)
    pair.kernel.run(max_events=1_000)
    assert pair.arrivals == [(6_000, 0)]  # was on the wire; 1 was cut off, 2 never started
    assert pair.traffic.sent == 1
    pair.acknowledges = True
    pair.restart_sender()
    pair.kernel.run(max_events=1_000)
    assert pair.arrivals[1:] == [(12_000, 0), (13_000, 1), (14_000, 2)]
    assert pair.kernel.pending == 0


@pytest.mark.parametrize("model", [LinkModel(30, 1e7, 200, 0.3, 0.2), LinkModel(jitter_us=9, loss=0.1)])
def test_same_seed_same_trace(model: LinkModel) -> None:
    def run(seed: int) -> tuple[Any, ...]:
        pair = Pair(model, seed)
        for number in range(100):
            pair.send(number, 50 + number)
        pair.kernel.run()
        return pair.arrivals, pair.traffic, pair.kernel.now_us

    assert run(3) == run(3)
    assert run(3) != run(4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency_us": -1},
        {"jitter_us": -1},
        {"bandwidth_bps": 0.0},
        {"bandwidth_bps": float("nan")},
        {"loss": 1.0},
        {"loss": -0.1},
        {"duplicate": 1.1},
        {"damage": 1.0},
    ],
)
def test_a_wrong_model_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LinkModel(**wrong)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="retry_us"):
        Network(Kernel(seed=1), lambda sender, receiver: LinkModel(), retry_us=0)
    network = Network(Kernel(seed=1), lambda sender, receiver: LinkModel())
    with pytest.raises(ValueError, match="number and size_bytes"):
        network.send("a", "b", -1, "", 0)


MODELS = st.builds(
    LinkModel,
    latency_us=st.integers(0, 5_000),
    bandwidth_bps=st.none() | st.floats(1e5, 1e9),
    jitter_us=st.integers(0, 20_000),
    loss=st.floats(0, 0.5, exclude_max=True),
    duplicate=st.floats(0, 1),
)
CRASHES = st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 20_000)), max_size=4)  # up for, then down for


def intervals(crashes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """When it goes down and when it is up again, one after the other."""
    times_us = itertools.accumulate(itertools.chain.from_iterable(crashes))
    return zip(times_us, times_us, strict=True)


@settings(deadline=None)
@given(
    model=MODELS,
    seed=st.integers(0, 2**32),
    retry_us=st.none() | st.integers(100, 50_000),
    sends=st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 2_000)), min_size=1, max_size=20),
    receiver_crashes=CRASHES,
    sender_crashes=CRASHES,
)
def test_every_message_is_delivered_and_the_run_ends(
    model: LinkModel,
    seed: int,
    retry_us: int | None,
    sends: list[tuple[int, int]],
    receiver_crashes: list[tuple[int, int]],
    sender_crashes: list[tuple[int, int]],
) -> None:
    pair = Pair(model, seed, retry_us)
    at = pair.kernel.at
    for number, (time_us, size_bytes) in enumerate(sorted(sends)):
        at(time_us, pair.send, number, size_bytes)
    for down_us, up_us in intervals(receiver_crashes):
        at(down_us, pair.network.disconnect, "b")
        at(up_us, pair.network.connect, "b", pair.receive)
    for down_us, up_us in intervals(sender_crashes):
        at(down_us, pair.crash_sender)
        at(up_us, pair.restart_sender)
    pair.kernel.run(max_events=200_000)
    assert pair.kernel.pending == 0
    assert set(pair.numbers) == set(range(len(sends)))
    assert pair.network.acknowledged("a", "b") == len(sends) - 1
    assert pair.traffic.bytes_first <= pair.traffic.bytes_all
