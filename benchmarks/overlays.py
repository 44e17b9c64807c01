"""Static overlays at scale: how many hops lookups take, and what it costs to build one and route in it.

    python benchmarks/overlays.py --table hops
    python benchmarks/overlays.py --table scale --stretch

Each size is measured in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from math import log2

import numpy as np
from numpy.typing import NDArray

SIZES = [100, 1_000, 10_000, 100_000]
STRETCH = 1_000_000
LOOKUPS = 10_000

# Given nodes and a seed: how to route from many nodes to many points, as the number of hops of each lookup.
Route = Callable[[NDArray[np.int64], NDArray[np.uint64]], NDArray[np.int64]]


def chord(nodes: int, seed: int) -> Route:
    """Fingers and successors; imported here, so that loading is part of building."""
    from watersmeet.sim.overlays.ring import Ring

    return Ring.random(nodes, seed).hops


def bamboo(nodes: int, seed: int) -> Route:
    """Prefix routing, with the nearest of 16 candidates by King-like latencies in each place of a table."""
    from watersmeet.sim.internet.latency import King
    from watersmeet.sim.overlays.prefixes import Prefixes

    return Prefixes.random(nodes, seed, King(nodes, seed)).hops


OVERLAYS: dict[str, Callable[[int, int], Route]] = {"bamboo": bamboo, "chord": chord}


def measure(overlay: str, nodes: int, lookups: int, seed: int) -> dict[str, float]:
    """Build, route and summarise; the first lookup also loads or compiles the routing code, and is timed apart."""
    begin = time.perf_counter()
    route = OVERLAYS[overlay](nodes, seed)
    built = time.perf_counter()
    generator = np.random.default_rng(seed + 1)
    sources = generator.integers(nodes, size=lookups)
    targets = generator.integers(1 << 64, size=lookups, dtype=np.uint64)
    loading = time.perf_counter()
    route(sources[:1], targets[:1])
    ready = time.perf_counter()
    hops = route(sources, targets)
    routed = time.perf_counter()
    return {
        "mean": float(hops.mean()),
        "median": float(np.median(hops)),
        "p99": float(np.percentile(hops, 99)),
        "max": float(hops.max()),
        "build_s": built - begin,
        "load_s": ready - loading,
        "route_s": routed - ready,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_apart(overlay: str, nodes: int, lookups: int, seed: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--overlay", overlay, "--one", str(nodes)]
    command += ["--lookups", str(lookups), "--seed", str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def hops_line(nodes: int, found: dict[str, float]) -> str:
    return (
        f"| {nodes:,} | {0.5 * log2(nodes):.2f} | {found['mean']:.2f} | {found['median']:.0f} "
        f"| {found['p99']:.0f} | {found['max']:.0f} |"
    )


def scale_line(nodes: int, found: dict[str, float]) -> str:
    total_s = found["build_s"] + found["load_s"] + found["route_s"]
    return (
        f"| {nodes:,} | {found['build_s']:.3f} | {found['load_s']:.3f} | {found['route_s']:.3f} "
        f"| {total_s:.3f} | {found['peak_mb']:.0f} |"
    )


# A message's hops include the last one, from the node that knows the owner to the owner; log2(N)/2 does not.
TABLES = {
    "hops": (["nodes", "log2(N)/2", "mean", "median", "99 %", "max"], hops_line),
    "scale": (["nodes", "build s", "load s", "route s", "total s", "peak MB"], scale_line),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=sorted(TABLES), default="hops")
    parser.add_argument("--overlay", choices=sorted(OVERLAYS), action="append", help="default: all")
    parser.add_argument("--lookups", type=int, default=LOOKUPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stretch", action="store_true", help=f"also {STRETCH:,} nodes")
    parser.add_argument("--one", type=int, metavar="NODES", help="measure this size here and print it as JSON")
    options = parser.parse_args()
    overlays = options.overlay or sorted(OVERLAYS)
    if options.one is not None:
        print(json.dumps(measure(overlays[0], options.one, options.lookups, options.seed)))
        return
    heads, line = TABLES[options.table]
    for overlay in overlays:
        print(f"\n{overlay}: {options.lookups:,} lookups\n")
        print(f"| {' | '.join(heads)} |")
        print(f"|{' ---: |' * len(heads)}")
        for nodes in [*SIZES, STRETCH] if options.stretch else SIZES:
            print(line(nodes, measure_apart(overlay, nodes, options.lookups, options.seed)), flush=True)


if __name__ == "__main__":
    main()
