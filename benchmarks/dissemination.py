"""Distribution trees: messages and time until every node has a broadcast, against an ideal tree.

    python benchmarks/dissemination.py
    python benchmarks/dissemination.py --nodes 10000 --overlay bamboo --congestion fifo --size 2000

The ideal tree needs a message for each node but the root. Its time is that of the fastest broadcast among hosts whose
access links are the same and whose wires all have the median delay of the network: every host that has the message
sends it on, one copy after the other, to hosts that have not (the postal model of Bar-Noy and Kipnis). Without queues
copies do not wait for each other, and the ideal is a star.
"""

import argparse
import resource
import time
from heapq import heappop, heappush

import numpy as np

from watersmeet.sim.dht.node import Dht
from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import King
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays import bamboo, chord
from watersmeet.sim.overlays.ideal import Directory, IdealRouter
from watersmeet.sim.overlays.node import HEADER_BYTES, OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.overlays.router import Router
from watersmeet.sim.pier.indexes.distribution_tree import Broadcast, DistributionTree

ACCESS_BPS = 1_500_000.0
SETTLE_US = 40_000_000  # more than a renewal: every child has announced itself twice
LIFETIME_US = 600_000_000
SIZES = [100, 1_000, 10_000]
OVERLAYS = ["bamboo", "chord", "ideal"]


def routers_of(overlay: str, kernel: Kernel, net: Internet, latency: King, nodes: int, seed: int) -> list[Router]:
    if overlay == "chord":
        return [*chord.converged(kernel, net, Ring.random(nodes, seed))]
    if overlay == "bamboo":
        return [*bamboo.converged(kernel, net, Prefixes.random(nodes, seed, latency))]
    directory = Directory()
    routers = [
        IdealRouter(directory, address, int(point))
        for address, point in enumerate(Ring.random(nodes, seed).identifiers)
    ]
    for router in routers:
        router.start(None)
    return [*routers]


def postal_us(nodes: int, latency_us: float, transmission_us: float, is_queueing: bool) -> float:
    """When the last of so many hosts has the message: each host sends copies as fast as its uplink lets it."""
    through_us = transmission_us + latency_us + transmission_us  # uplink, wire, downlink
    if not is_queueing:
        return through_us if nodes > 1 else 0.0
    free_us = [0.0]
    last_us = 0.0
    for _ in range(nodes - 1):
        at_us = heappop(free_us)
        last_us = max(last_us, at_us + through_us)
        heappush(free_us, at_us + transmission_us)
        heappush(free_us, at_us + through_us)
    return last_us


def measure(overlay: str, nodes: int, size_bytes: int, congestion: Congestion, seed: int) -> dict[str, float]:
    begin = time.process_time()
    kernel, latency = Kernel(seed), King(nodes, seed=seed)
    net = Internet(kernel, latency, access_bps=ACCESS_BPS, congestion=congestion)
    delivered_us: list[int] = []

    def note(broadcast: Broadcast) -> None:
        delivered_us.append(kernel.now_us)

    trees = []
    for router in routers_of(overlay, kernel, net, latency, nodes, seed):
        dht = Dht(kernel, OverlayNode(kernel, net, router))
        trees.append(DistributionTree(kernel, dht, note))
        trees[-1].start()
    built = time.process_time()
    kernel.run(until_us=SETTLE_US)
    children = np.array([len(tree.children()) for tree in trees])
    assert children.sum() == nodes - 1, "the routes to the root are not one tree"
    settled = time.process_time()
    announcements = sum(net.messages_sent)
    start_us = kernel.now_us
    trees[nodes // 3].broadcast("query", size_bytes, LIFETIME_US)
    while len(delivered_us) < nodes:
        kernel.run(max_events=1_000)
    # What renewals send meanwhile is not the broadcast's: one message a node in 30 s, counted over the same time.
    elapsed_us = max(delivered_us) - start_us
    done = time.process_time()
    median_us = float(np.median(latency.many(*np.random.default_rng(seed).integers(0, nodes, (2, 20_000)))))
    wire_bytes = HEADER_BYTES + size_bytes + 20
    transmission_us = wire_bytes * 8e6 / ACCESS_BPS
    return {
        "announcements": announcements / nodes,
        "copies": children.sum(),
        "fanout": children.max(),
        "half_s": (np.median(delivered_us) - start_us) / 1e6,
        "last_s": elapsed_us / 1e6,
        "ideal_s": postal_us(nodes, median_us, transmission_us, congestion is not Congestion.NONE) / 1e6,
        "build_s": built - begin,
        "run_s": done - built,
        "spread_s": done - settled,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--overlay", choices=OVERLAYS, action="append", help="default: all")
    parser.add_argument("--congestion", choices=[each.value for each in Congestion], default="fifo")
    parser.add_argument("--size", type=int, default=1_000, help="bytes of what is broadcast")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    heads = ["overlay", "nodes", "copies", "largest fan-out", "half by s", "last by s", "ideal last s"]
    heads += ["announcements a node", "processor s", "peak MB"]
    print(f"| {' | '.join(heads)} |")
    print(f"| --- |{' ---: |' * (len(heads) - 1)}")
    for overlay in options.overlay or OVERLAYS:
        for nodes in options.nodes or SIZES:
            found = measure(overlay, nodes, options.size, Congestion(options.congestion), options.seed)
            print(
                f"| {overlay} | {nodes:,} | {found['copies']:,.0f} | {found['fanout']:,.0f} "
                f"| {found['half_s']:.2f} | {found['last_s']:.2f} | {found['ideal_s']:.2f} "
                f"| {found['announcements']:.2f} | {found['build_s'] + found['run_s']:.1f} | {found['peak_mb']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
