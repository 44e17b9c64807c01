"""Timeouts that are estimated: what is sent again, and how that grows with the number of senders to one host."""

from collections import Counter

import pytest

from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import ConstantLatency, King
from watersmeet.sim.internet.retransmission import Retransmission, RoundTrips
from watersmeet.sim.kernel import Kernel

LATENCY_US = 40_000


class Crowd:
    """Hosts that send to host 0, and what it gets."""

    def __init__(
        self,
        senders: int,
        seed: int,
        congestion: Congestion = Congestion.FIFO,
        *,
        ideal: bool = False,
        loss: float = 0.0,
    ) -> None:
        self.kernel = Kernel(seed)
        self.internet = Internet(
            self.kernel,
            King(senders + 1, seed=seed),
            congestion=congestion,
            loss=loss,
            retransmission=None if ideal else Retransmission(),
        )
        self.got: Counter[object] = Counter()
        self.failures: Counter[object] = Counter()
        self.senders = senders
        self.internet.attach(0, lambda sender, message: self.got.update([message]))
        for host in range(1, senders + 1):
            self.internet.attach(host, lambda sender, message: None)

    def send_all(self, messages: int, size_bytes: int = 500) -> None:
        for number in range(messages):
            for host in range(1, self.senders + 1):
                name = (host, number)
                self.internet.send(host, 0, name, size_bytes, lambda name=name: self.failures.update([name]))  # type: ignore[misc]
            self.kernel.run(until_us=self.kernel.now_us + 1_000_000)
        self.kernel.run()


@pytest.mark.parametrize("congestion", [Congestion.NONE, Congestion.FIFO, Congestion.FAIR])
def test_few_senders_never_send_again_and_cost_what_ideal_timeouts_cost(congestion: Congestion) -> None:
    bytes_sent = {}
    for ideal in (True, False):
        crowd = Crowd(10, seed=1, congestion=congestion, ideal=ideal)
        crowd.send_all(20)
        assert set(crowd.got.values()) == {1}
        assert len(crowd.got) == 200
        assert crowd.internet.retransmitted_total == 0
        bytes_sent[ideal] = sum(crowd.internet.bytes_sent)
    assert bytes_sent[True] == bytes_sent[False]


@pytest.mark.parametrize("seed", [1, 2])
def test_traffic_a_sender_rises_with_the_number_of_senders_to_one_host(seed: int) -> None:
    """PIER, section 4.2.2: when the root's inbound link is congested, messages are believed lost and sent again."""
    traffic = []
    for senders in (50, 200, 400, 800):
        crowd = Crowd(senders, seed)
        crowd.send_all(3)
        assert len(crowd.got) == 3 * senders
        assert set(crowd.got.values()) == {1}  # copies are dropped by the receiver
        net = crowd.internet
        assert sum(net.bytes_sent) - net.retransmitted_bytes == 3 * senders * 500
        assert sum(net.messages_sent) == 3 * senders + net.retransmitted_total
        traffic.append(sum(net.bytes_sent) / (3 * senders))
    assert traffic[0] == 500  # 50 messages of 500 bytes are through in 0.13 s
    assert traffic == sorted(traffic)
    assert traffic[-1] > 1.5 * traffic[0]


def test_ideal_timeouts_show_nothing_of_it() -> None:
    crowd = Crowd(800, seed=1, ideal=True)
    crowd.send_all(3)
    assert sum(crowd.internet.bytes_sent) == 3 * 800 * 500


def test_a_dead_host_is_given_up_after_all_tries_with_longer_and_longer_timeouts() -> None:
    kernel = Kernel(1)
    settings = Retransmission(first_timeout_us=100_000, timeout_min_us=100_000, timeout_max_us=400_000, tries=4)
    internet = Internet(kernel, ConstantLatency(LATENCY_US), retransmission=settings)
    internet.attach(1, lambda sender, message: None)
    failed_us: list[int] = []
    internet.send(1, 2, "x", 100, lambda: failed_us.append(kernel.now_us))
    kernel.run()
    assert failed_us == [100_000 + 200_000 + 400_000 + 400_000]
    assert internet.messages_sent[1] == 4
    assert internet.retransmitted_total == 3
    assert internet.failed_total == 1


def test_a_message_may_arrive_and_its_sender_be_told_of_a_failure() -> None:
    kernel, got, failed = Kernel(1), [], []
    settings = Retransmission(first_timeout_us=10_000, timeout_min_us=10_000, timeout_max_us=10_000, tries=2)
    internet = Internet(kernel, ConstantLatency(LATENCY_US), retransmission=settings)
    internet.attach(1, lambda sender, message: None)
    internet.attach(2, lambda sender, message: got.append(message))
    internet.send(1, 2, "x", 100, lambda: failed.append("x"))
    kernel.run()
    assert (got, failed) == (["x"], ["x"])
    assert internet.messages_received[2] == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_lost_on_the_wire_is_sent_again_until_it_arrives(seed: int) -> None:
    crowd = Crowd(20, seed, loss=0.2)
    crowd.send_all(20)
    arrived = set(crowd.got)
    assert set(crowd.got.values()) == {1}
    assert len(arrived) >= 399
    assert {(host, number) for host in range(1, 21) for number in range(20)} - arrived <= set(crowd.failures)
    assert crowd.internet.retransmitted_total > 50


def test_estimates_follow_the_round_trip_and_the_oldest_receivers_are_forgotten() -> None:
    trips = RoundTrips(Retransmission(timeout_min_us=10, remembered=2))
    for _ in range(100):
        trips.measured(1, 50_000)
    assert 50_000 <= trips.timeout_us(1) < 50_100
    trips.measured(1, 500_000)
    assert trips.timeout_us(1) > 500_000
    trips.measured(2, 1_000)
    trips.measured(3, 1_000)
    assert trips.timeout_us(1) == 1_000_000
    with pytest.raises(ValueError, match="tries must be at least 1"):
        Retransmission(tries=0)
    with pytest.raises(ValueError, match="timeout_max_us"):
        Retransmission(timeout_max_us=5)


def test_a_timeout_that_was_long_enough_stays_until_a_round_trip_is_measured() -> None:
    trips = RoundTrips(Retransmission(timeout_min_us=10, remembered=2))
    trips.measured(1, 50_000)
    for receiver in (1, 2, 3):
        trips.backed_off(receiver, 4_000_000)
    assert trips.timeout_us(1) == 150_000  # the oldest of three is forgotten
    assert trips.timeout_us(2) == 4_000_000
    trips.measured(2, 1_000)
    assert trips.timeout_us(2) == 3_000


def test_senders_to_a_slow_receiver_do_not_send_every_message_twice() -> None:
    kernel = Kernel(1)
    internet = Internet(
        kernel, ConstantLatency(50_000), access_bps=100_000, congestion=Congestion.FIFO, retransmission=Retransmission()
    )
    for host in range(100):
        internet.attach(host, lambda sender, message: None)
    again = []
    for _ in range(3):
        before = internet.retransmitted_total
        for host in range(1, 100):
            internet.send(host, 0, "record", 300)
        kernel.run()
        again.append(internet.retransmitted_total - before)
    assert again[0] > 50
    assert again[1] < again[0] / 2
    assert again[2] < 5
