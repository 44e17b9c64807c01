"""Events a second of the simulator: two nodes bounce one message, by the kernel alone and through the network.

python benchmarks/ping.py                       # a million events each
"""

import argparse
from collections.abc import Callable
from time import perf_counter

from watersmeet.sim.kernel import Kernel
from watersmeet.sim.network import LinkModel, Network

LATENCY_US = 100


def bare(kernel: Kernel) -> None:
    """Each node's action schedules the other's."""

    def ping(hops: int) -> None:
        kernel.after(LATENCY_US, pong, hops + 1)

    def pong(hops: int) -> None:
        kernel.after(LATENCY_US, ping, hops + 1)

    kernel.after(LATENCY_US, ping, 0)


def networked(kernel: Kernel) -> None:
    """Each node acknowledges what it gets and sends the next: two events a message, and a timer that is cancelled."""
    link = LinkModel(latency_us=LATENCY_US)
    network = Network(kernel, lambda sender, receiver: link)

    def node(own: str) -> Callable[[str, object], None]:
        def receive(sender: str, message: object) -> None:
            assert isinstance(message, int)
            network.acknowledge(own, sender, message)
            network.send(own, sender, message + 1, message + 1, 100)

        return receive

    network.connect("a", node("a"))
    network.connect("b", node("b"))
    network.send("a", "b", 0, 0, 100)


def measure(start: Callable[[Kernel], None], seed: int, events: int) -> float:
    """Events a second of a simulation that would never end by itself."""
    kernel = Kernel(seed)
    start(kernel)
    began = perf_counter()
    executed = kernel.run(max_events=events)
    return executed / (perf_counter() - began)


def main() -> None:
    """Print one line for each of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name, start in (("kernel", bare), ("network", networked)):
        print(f"{name:8}{measure(start, arguments.seed, arguments.events):>12,.0f} events/s")


if __name__ == "__main__":
    main()
