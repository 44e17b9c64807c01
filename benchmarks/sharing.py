"""Shared aggregates: decompositions of the sizes of pier.txt chapter 5, and many windowed queries in one pass.

    OPENBLAS_NUM_THREADS=1 python benchmarks/sharing.py [--rows 1000000] [--queries 1000]

Times are the best of three, in milliseconds of processor time.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from watersmeet.sharing.compose import add_composition
from watersmeet.sharing.cover import rectangle_cover
from watersmeet.sharing.factors import factorise
from watersmeet.sharing.linear import exact_linear
from watersmeet.sharing.panes import tumbling
from watersmeet.sharing.predicates import And, Comparison
from watersmeet.sharing.windowed import SharedAggregation, WindowedQuery
from watersmeet.sharing.workloads import duplicate_insensitive, duplicate_sensitive

SCHEMA = {"ts": pa.timestamp("us"), "v": pa.int64(), "a": pa.int64(), "b": pa.int64()}


def best_ms(run: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return 1000 * min(found)


def decompositions() -> None:
    linear = duplicate_sensitive(500, 500, 250, 1)
    print(f"QR 500x500: {best_ms(lambda: factorise(linear, 'QR')):.1f} ms")
    print(f"exact 500x500: {best_ms(lambda: exact_linear(linear)):.1f} ms")
    for size, times in ((100, 3), (500, 1)):
        matrix = duplicate_insensitive(size, size, size // 2, 1)
        print(f"Add M/A/P {size}x{size}: {best_ms(lambda matrix=matrix: add_composition(matrix), times):.1f} ms")
        print(f"rectangle cover {size}x{size}: {best_ms(lambda matrix=matrix: rectangle_cover(matrix), times):.1f} ms")


def windows(rows: int, queries: int) -> None:
    rng = np.random.default_rng(1)
    wanted = []
    for number in range(queries):
        low, high = sorted(rng.integers(0, 10_000, 2).tolist())
        range_a = (Comparison("a", ">=", low), Comparison("a", "<", high))
        wanted.append(
            WindowedQuery(f"q{number}", And((*range_a, Comparison("b", "<", number % 5 + 1))), tumbling(10_000_000))
        )
    table = pa.table(
        {
            "ts": pa.array(np.arange(rows) * 60_000_000 // rows, pa.timestamp("us")),
            "v": rng.integers(0, 10**9, rows),
            "a": rng.integers(0, 10_000, rows),
            "b": rng.integers(0, 6, rows),
        }
    )
    shared = SharedAggregation(wanted, SCHEMA, "ts", "v")
    begin, answers = time.process_time(), 0
    for batch in table.to_batches(max_chunksize=50_000):
        shared.on_batch(batch)
        answers += shared.on_watermark(batch.column("ts").cast(pa.int64())[-1].as_py()).num_rows
    answers += shared.on_watermark(100_000_000).num_rows
    spent = time.process_time() - begin
    print(
        f"{queries:,} windowed queries over {rows:,} rows: {rows / spent:,.0f} rows/s, {answers:,} answers, "
        f"{len(shared.classifier.fragments):,} fragments"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1_000)
    options = parser.parse_args()
    decompositions()
    windows(options.rows, options.queries)
