"""RJoin at the scale of its paper: time and memory of one core, and how they grow.

python benchmarks/rjoin.py                       # 1,000 nodes, 20,000 queries, 400 tuples
python benchmarks/rjoin.py --table long          # the same with 2,500 tuples, for both readings of the workload
python benchmarks/rjoin.py --table growth        # twice the tuples, queries, nodes
"""

import argparse
import json
import resource
import subprocess
import sys
from dataclasses import replace
from time import perf_counter, process_time

from watersmeet.program.rjoin.settings import Strategy
from watersmeet.sim.rjoin.measured import RJoinExperiment, measure
from watersmeet.sim.rjoin.workload import ZipfWorkload

POINT = {"nodes": 1_000, "queries": 20_000, "tuples": 400, "own": False, "strategy": "rjoin", "seed": 1}
TABLES = {
    "fig2": [{}],
    "long": [{"tuples": 2_500, "own": True}, {"tuples": 2_500}],
    "growth": [
        {"queries": 2_000},
        {"queries": 2_000, "tuples": 800},
        {"queries": 4_000},
        {"queries": 2_000, "nodes": 2_000},
        {"queries": 2_000, "nodes": 10_000},
        {"queries": 2_000, "nodes": 100_000},
    ],
}


def one(point: dict[str, object]) -> dict[str, object]:
    """Run a point in this process; compiling is not part of it."""
    run = RJoinExperiment(
        ZipfWorkload(own_ranking=bool(point["own"]), seed=int(str(point["seed"]))),
        strategy=Strategy(point["strategy"]),
        nodes=int(str(point["nodes"])),
        queries=int(str(point["queries"])),
        tuples=(int(str(point["tuples"])),),
        seed=int(str(point["seed"])),
    )
    measure(replace(run, nodes=50, queries=100, tuples=(20,)))
    began, began_cpu = perf_counter(), process_time()
    (seen,) = measure(run)
    return {
        "wall": perf_counter() - began,
        "cpu": process_time() - began_cpu,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "queries_sent": int(seen.load.sum()),
        "rows": seen.rows,
        "answers": seen.answers,
        "messages": seen.messages,
    }


def main() -> None:
    """Print one line for each point, each measured in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=TABLES, default="fig2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(one(json.loads(arguments.point))))
        return
    print(f"seed {arguments.seed}")
    print("  nodes  queries  tuples  ranking    wall s     cpu s  memory MB    rows     answers        messages")
    for change in TABLES[arguments.table]:
        point = POINT | change | {"seed": arguments.seed}
        command = [sys.executable, __file__, "--point", json.dumps(point)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{point['nodes']:>7}{point['queries']:>9}{point['tuples']:>8}{'own' if point['own'] else 'shared':>9}"
            f"{told['wall']:>10.1f}{told['cpu']:>10.1f}{told['memory']:>11,}{told['rows']:>12,}"
            f"{told['answers']:>15,}{told['messages']:>14,}",
            flush=True,
        )


if __name__ == "__main__":
    main()
