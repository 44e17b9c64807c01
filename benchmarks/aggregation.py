"""One-shot aggregation over Bamboo: traffic, load of the busiest host and latency of PIER's eight algorithms.

    python benchmarks/aggregation.py
    python benchmarks/aggregation.py --nodes 8192 --ideal-timeouts

COUNT over all nodes, King-like latencies, 1.5 Mbps in and out, FIFO queues, timeouts of five seconds; senders send
again what is not acknowledged in time, unless --ideal-timeouts. The query is at all nodes when the run begins, and the
overlay sends no messages of its own, so all traffic is that of the aggregation.
"""

import argparse
import resource
import time

from watersmeet.sim.dht.node import Dht
from watersmeet.sim.internet.hosts import Congestion, Internet
from watersmeet.sim.internet.latency import King
from watersmeet.sim.internet.retransmission import Retransmission
from watersmeet.sim.kernel import Kernel
from watersmeet.sim.overlays import bamboo
from watersmeet.sim.overlays.identifiers import identifier_of
from watersmeet.sim.overlays.node import OverlayNode
from watersmeet.sim.overlays.prefixes import Prefixes
from watersmeet.sim.pier.aggregation.one_shot import (
    Algorithm,
    OneShotQuery,
    Result,
    Structure,
    WaitForAll,
    algorithms,
    children_of,
    start_everywhere,
)

SIZES = [64, 512, 1_024, 4_096, 8_192]
ROOT = identifier_of("aggregation root")
UNTIL_US = 300_000_000


def measure(algorithm: Algorithm, nodes: int, seed: int, retransmission: Retransmission | None) -> dict[str, float]:
    begin = time.process_time()
    kernel, latency = Kernel(seed), King(nodes, seed=seed)
    net = Internet(kernel, latency, congestion=Congestion.FIFO, retransmission=retransmission)
    routers = bamboo.converged(kernel, net, Prefixes.random(nodes, seed, latency))
    dhts = [Dht(kernel, OverlayNode(kernel, net, router)) for router in routers]
    parents = [dht.node.router.next_hop(ROOT) for dht in dhts]
    is_informed = algorithm.structure is Structure.HIERARCHICAL and isinstance(algorithm.timing, WaitForAll)
    query = OneShotQuery(
        "q",
        algorithm,
        "count",
        ROOT,
        dhts[parents.index(None)].node.address,
        requester=nodes // 2,
        nodes=nodes,
        children=children_of(parents) if is_informed else None,
    )
    results: list[tuple[Result, int]] = []
    start_everywhere(kernel, dhts, query, lambda _: [1], lambda result: results.append((result, kernel.now_us)))
    kernel.run(until_us=UNTIL_US)
    complete_us = next((at_us for result, at_us in results if result.nodes >= nodes), -1)
    return {
        "messages": sum(net.messages_sent),
        "megabytes": sum(net.bytes_sent) / 1e6,
        "repeated": net.retransmitted_total,
        "busiest_kb": max(net.bytes_received) / 1e3,
        "results": len(results),
        "counted": results[-1][0].nodes if results else 0,
        "complete_s": complete_us / 1e6,
        "run_s": time.process_time() - begin,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--algorithm", action="append", choices=[each.name for each in algorithms()])
    parser.add_argument("--ideal-timeouts", action="store_true", help="nothing is sent again that has arrived")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    retransmission = None if options.ideal_timeouts else Retransmission()
    heads = ["algorithm", "nodes", "messages", "MB", "sent again", "busiest host in kB", "results", "nodes in the last"]
    heads += ["complete after s", "processor s", "peak MB"]
    print(f"| {' | '.join(heads)} |")
    print(f"| --- |{' ---: |' * (len(heads) - 1)}")
    for nodes in options.nodes or SIZES:
        for algorithm in algorithms():
            if options.algorithm and algorithm.name not in options.algorithm:
                continue
            found = measure(algorithm, nodes, options.seed, retransmission)
            print(
                f"| {algorithm.name} | {nodes:,} | {found['messages']:,.0f} | {found['megabytes']:.2f} "
                f"| {found['repeated']:,.0f} | {found['busiest_kb']:,.0f} | {found['results']:.0f} "
                f"| {found['counted']:,.0f} | {found['complete_s']:.2f} | {found['run_s']:.1f} "
                f"| {found['peak_mb']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
