"""Aggregation over Bamboo: traffic, load of the busiest host and latency of PIER's algorithms.

    python benchmarks/aggregation.py
    python benchmarks/aggregation.py --nodes 8192 --ideal-timeouts
    python benchmarks/aggregation.py --nodes 8192 --epochs 30 --algorithm Tree-Hi-S-Topology

COUNT over all nodes, once or by epochs of five seconds, King-like latencies, 1.5 Mbps in and out, FIFO queues, timeouts
of five seconds; senders send again what is not acknowledged in time, unless --ideal-timeouts. The query is at all nodes
when the run begins, and the overlay sends no messages of its own, so all traffic is that of the aggregation.
"""

import argparse
import resource
import time

from watersmeet.program.pier.algorithms import continuous_algorithms, one_shot_algorithms
from watersmeet.sim.pier.aggregation.measure import AggregationRun, measure_aggregation

SIZES = [64, 512, 1_024, 4_096, 8_192]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--algorithm", action="append", choices=[each.name for each in continuous_algorithms()])
    parser.add_argument("--ideal-timeouts", action="store_true", help="nothing is sent again that has arrived")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    known = continuous_algorithms() if options.epochs > 1 or options.algorithm else one_shot_algorithms()
    heads = ["algorithm", "nodes", "messages", "MB", "sent again", "busiest host in kB", "answers", "nodes in the last"]
    heads += ["mean latency s", "last half s", "processor s", "peak MB"]
    print(f"| {' | '.join(heads)} |")
    print(f"| --- |{' ---: |' * (len(heads) - 1)}")
    for nodes in options.nodes or SIZES:
        for algorithm in known:
            if options.algorithm and algorithm.name not in options.algorithm:
                continue
            begin = time.process_time()
            run = AggregationRun(algorithm, nodes, options.epochs, options.seed, ideal_timeouts=options.ideal_timeouts)
            found = measure_aggregation(run)
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            latencies = (found.latency_s, found.settled_latency_s)
            shown = " | ".join("never" if latency is None else f"{latency:.2f}" for latency in latencies)
            print(
                f"| {algorithm.name} | {nodes:,} | {found.messages:,} | {found.megabytes:.2f} "
                f"| {found.retransmitted:,} | {found.inbound_kilobytes[0]:,.0f} "
                f"| {sum(epoch.answers for epoch in found.epochs)} | {found.epochs[-1].nodes:,} | {shown} "
                f"| {time.process_time() - begin:.1f} | {peak_mb:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
