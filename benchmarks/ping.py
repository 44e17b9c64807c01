"""Messages a second of the simulator: pairs of nodes bounce one message each, here and in SimPy, in the same run.

python benchmarks/ping.py                       # a million messages each, the best of three
python benchmarks/ping.py --messages 100000 --repeats 10

The workload is the same for all: each pair has one message under way, which takes 100 us and up to 50 us more, drawn
once for each pair, and is answered at once. So are the messages counted, and the counts must agree. One message is

    kernel          one event: the callback of one node schedules that of the other
    internet        one event: a send over the simulated Internet without congestion, and its delivery; constant latency
    internet, King  the same with King-like latencies, a place on the plane for each node
    network         two events: the message and its acknowledgement, and a timer that is cancelled
    SimPy, event    two events, a process for each node that waits for a bare event, then sleeps for the latency and
                    triggers the other's: the fastest form with processes that we know
    SimPy, store    three events, as above with a Store for each node's inbox: the usual form

SimPy is not needed for anything else: pip install simpy (4.1).
"""

import argparse
import gc
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from time import process_time
from typing import Any

from watersmeet.sim.internet.hosts import Internet
from watersmeet.sim.internet.latency import ConstantLatency, King, Latency
from watersmeet.sim.internet.links import LinkModel, Network
from watersmeet.sim.kernel import Kernel

try:
    import simpy
except ImportError:
    simpy = None

LATENCY_US, A_LITTLE_US = 100, 50


@dataclass(frozen=True, slots=True)
class Pings:
    """The workload: the latency of each pair, when its first message is sent, and when all ends."""

    latencies_us: tuple[int, ...]
    begins_us: tuple[int, ...]
    end_us: int

    @property
    def messages(self) -> int:
        """How many are delivered by the end."""
        pairs = zip(self.latencies_us, self.begins_us, strict=True)
        return sum((self.end_us - begin_us) // latency_us for latency_us, begin_us in pairs)


def draw(pairs: int, messages: int, seed: int) -> Pings:
    """A workload of about so many messages."""
    random = Random(seed)
    latencies_us = tuple(LATENCY_US + random.randrange(A_LITTLE_US + 1) for _ in range(pairs))
    begins_us = tuple(random.randrange(LATENCY_US) for _ in range(pairs))
    end_us = LATENCY_US + round(messages / sum(1 / latency_us for latency_us in latencies_us))
    return Pings(latencies_us, begins_us, end_us)


def bare(pings: Pings) -> int:
    """Callbacks on the kernel."""
    kernel = Kernel(seed=1)
    last = [0] * len(pings.begins_us)

    def pair(number: int, latency_us: int) -> Callable[[int], None]:
        after = kernel.after

        def ping(hops: int) -> None:
            last[number] = hops
            after(latency_us, pong, hops + 1)

        def pong(hops: int) -> None:
            last[number] = hops
            after(latency_us, ping, hops + 1)

        return ping

    for number, (latency_us, begin_us) in enumerate(zip(pings.latencies_us, pings.begins_us, strict=True)):
        kernel.at(begin_us + latency_us, pair(number, latency_us), 1)
    kernel.run(until_us=pings.end_us)
    return sum(last)


def internet(pings: Pings, latency: Latency | None = None) -> int:
    """Hosts 2i and 2i + 1 are pair i; a latency model for all replaces the latencies of the pairs."""
    kernel = Kernel(seed=1)
    net = Internet(kernel, latency or ConstantLatency(LATENCY_US), access_bps=None)
    send = net.send

    def receiver(own: int) -> Callable[[int, object], None]:
        def receive(sender: int, message: object) -> None:
            send(own, sender, message, 100)

        return receive

    for address in range(2 * len(pings.begins_us)):
        net.attach(address, receiver(address))
    for number, begin_us in enumerate(pings.begins_us):
        kernel.at(begin_us, net.send, 2 * number, 2 * number + 1, "ping", 100)
    kernel.run(max_events=pings.messages + len(pings.begins_us))  # and the first sends
    return sum(net.messages_received)


def internet_king(pings: Pings) -> int:
    """As above, over a plane."""
    return internet(pings, King(hosts=2 * len(pings.begins_us)))


def network(pings: Pings) -> int:
    """Each node acknowledges what it gets and sends the next."""
    kernel = Kernel(seed=1)
    links = [LinkModel(latency_us=latency_us) for latency_us in pings.latencies_us]
    net = Network(kernel, lambda sender, receiver: links[int(sender) // 2])
    last = [0] * len(links)

    def node(own: str) -> Callable[[str, object], None]:
        number = int(own) // 2

        def receive(sender: str, message: object) -> None:
            assert isinstance(message, int)
            last[number] = message
            net.acknowledge(own, sender, message)
            net.send(own, sender, message + 1, message + 1, 100)

        return receive

    for number, begin_us in enumerate(pings.begins_us):
        for own in (str(2 * number), str(2 * number + 1)):
            net.connect(own, node(own))
        kernel.at(begin_us, net.send, str(2 * number), str(2 * number + 1), 1, 1, 100)
    kernel.run(until_us=pings.end_us)
    return sum(last)


def simpy_event(pings: Pings) -> int:
    """SimPy: what a node waits for next is an event that its peer triggers; the value is the message."""
    env = simpy.Environment()
    last = [0] * len(pings.begins_us)
    inbox = [env.event() for _ in range(2 * len(last))]

    def node(own: int, peer: int, latency_us: int) -> Generator[Any, Any, None]:
        number, event, timeout = own // 2, env.event, env.timeout
        while True:
            hops = yield inbox[own]
            inbox[own] = event()
            last[number] = hops
            yield timeout(latency_us)
            inbox[peer].succeed(hops + 1)

    def begin(first: int, delay_us: int) -> Generator[Any, Any, None]:
        yield env.timeout(delay_us)
        inbox[first].succeed(1)

    for number, (latency_us, begin_us) in enumerate(zip(pings.latencies_us, pings.begins_us, strict=True)):
        env.process(node(2 * number, 2 * number + 1, latency_us))
        env.process(node(2 * number + 1, 2 * number, latency_us))
        env.process(begin(2 * number, begin_us + latency_us))
    env.run(until=pings.end_us + 0.5)  # SimPy stops before what is due at the end
    return sum(last)


def simpy_store(pings: Pings) -> int:
    """SimPy: a node takes messages from its inbox, a Store."""
    env = simpy.Environment()
    last = [0] * len(pings.begins_us)
    inbox = [simpy.Store(env) for _ in range(2 * len(last))]

    def node(own: int, peer: int, latency_us: int) -> Generator[Any, Any, None]:
        number, get, put, timeout = own // 2, inbox[own].get, inbox[peer].put, env.timeout
        while True:
            hops = yield get()
            last[number] = hops
            yield timeout(latency_us)
            put(hops + 1)

    def begin(first: int, delay_us: int) -> Generator[Any, Any, None]:
        yield env.timeout(delay_us)
        inbox[first].put(1)

    for number, (latency_us, begin_us) in enumerate(zip(pings.latencies_us, pings.begins_us, strict=True)):
        env.process(node(2 * number, 2 * number + 1, latency_us))
        env.process(node(2 * number + 1, 2 * number, latency_us))
        env.process(begin(2 * number, begin_us + latency_us))
    env.run(until=pings.end_us + 0.5)
    return sum(last)


FORMS: tuple[tuple[str, Callable[[Pings], int], int], ...] = (  # name, what to run, events a message
    ("kernel", bare, 1),
    ("internet", internet, 1),
    ("internet, King", internet_king, 1),
    ("network", network, 2),
)
SIMPY_FORMS: tuple[tuple[str, Callable[[Pings], int], int], ...] = (
    ("SimPy, event", simpy_event, 2),
    ("SimPy, store", simpy_store, 3),
)


def best_seconds(forms: tuple[tuple[str, Callable[[Pings], int], int], ...], pings: Pings, repeats: int) -> list[float]:
    """The least processor time of each; one after the other and again, so that a noisy neighbour meets all."""
    best = [float("inf")] * len(forms)
    for _ in range(repeats):
        for place, (name, run, _) in enumerate(forms):
            gc.collect()  # or this one would pay for what the one before has left
            began = process_time()
            delivered = run(pings)
            best[place] = min(best[place], process_time() - began)
            if delivered != pings.messages:
                raise AssertionError(f"{name} delivered {delivered} messages, not {pings.messages}")
    return best


def main() -> None:
    """Print one table for two nodes and one for a thousand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    forms = FORMS + (SIMPY_FORMS if simpy is not None else ())
    if simpy is None:
        print("SimPy is not installed, so it is left out: pip install simpy")
    for pairs in (1, 500):
        pings = draw(pairs, arguments.messages, arguments.seed)
        seconds = best_seconds(forms, pings, arguments.repeats)
        print(f"{2 * pairs:,} nodes, {pings.messages:,} messages")
        print(f"{'':16}{'messages/s':>12}{'events/s':>12}{'kernel is faster, by messages and events':>44}")
        for (name, _, events), each in zip(forms, seconds, strict=True):
            rate, ratio = pings.messages / each, each / seconds[0]
            print(f"{name:16}{rate:>12,.0f}{rate * events:>12,.0f}{ratio:>34.1f}x{ratio / events:>8.1f}x")


if __name__ == "__main__":
    main()
