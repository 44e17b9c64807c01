"""Filters of queries on one stream: a bit of each stored row, or a comparison for each candidate pair.

    python benchmarks/selections.py

Processor time of one core for one micro-batch of 100,000 rows against a window of a million, the best of five. Bits are
computed once for each new row and tested for each candidate; a comparison needs the column in the window. That it is
compiled into the probe is the best case: an expression of Spark's would be a job for each micro-batch.
"""

import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from watersmeet.program.join.kernels import FIXED, end_of, expand, expand_sets, ranges

WINDOW, PROBES = 1_000_000, 100_000
TIMES = 5
NONE = np.empty(0, np.int64)
RULE = (1, 0, FIXED, 10**12, NONE, NONE, NONE, 0)  # a RANGE window that is longer than all times are apart


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def expand_comparing(  # type: ignore[no-untyped-def]
    start, stop, begin, limit, values, least, at, scale, offset, kind, length, high, ordinals, clock, base
):
    """As `expand`, with a comparison in place of a bit."""
    size = 0
    for i in range(len(start)):
        size += stop[i] - start[i]
    left = np.empty(size, np.int64)
    right = np.empty(size, np.int64)
    latest = np.empty(size, np.int64)
    earliest = np.empty(size, np.int64)
    count = 0
    for i in range(len(start)):
        for j in range(start[i], stop[i]):
            if values[j] < least:
                continue
            begins = max(begin[i], at[j] * scale + offset)
            ends = min(limit[i], end_of(j, at, scale, offset, kind, length, high, ordinals, clock, base))
            if begins <= ends:
                left[count] = i
                right[count] = j
                latest[count] = begins
                earliest[count] = ends
                count += 1
    return left[:count], right[:count], latest[:count], earliest[:count]


def cpu_ms(work: Callable[[], Any]) -> float:
    """The least processor time of a few runs."""
    found = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        found.append((time.process_time() - began) * 1e3)
    return min(found)


def bits_of(values: Any, leasts: list[int]) -> Any:
    """A word for each row with a bit for each filter, as ingest computes it."""
    words = np.zeros(len(values), np.uint64)
    for number, least in enumerate(leasts):
        words |= (values >= least) * np.uint64(1 << number)
    return words


def measure(each: float, share: float, queries: int) -> tuple[float, float, float, float]:
    """Making the bits of new rows, and probing by bits, by sets of queries, and by comparisons."""
    random = np.random.default_rng(1)
    keys = np.sort(random.integers(0, int(WINDOW / each), WINDOW).astype(np.uint64))
    probes = np.sort(random.integers(0, int(WINDOW / each), PROBES).astype(np.uint64))
    at, begin, limit = np.zeros(WINDOW, np.int64), np.zeros(PROBES, np.int64), np.full(PROBES, 10**12)
    values, new = random.integers(0, 1_000, WINDOW), random.integers(0, 1_000, PROBES)
    leasts = [1_000 - round(1_000 * share)] * queries
    words, everyone = bits_of(values, leasts), np.full(PROBES, 2**64 - 1, np.uint64)
    bits = np.array([1 << number for number in range(queries)], np.uint64)
    places = np.zeros(queries, np.int64)
    pairs = (*ranges(probes, begin, limit, keys, False, at, *RULE), begin, limit)

    def by_sets() -> None:
        expand_sets(0, PROBES, *pairs, everyone, (words,), places, bits, bits, np.uint64(0), at, *RULE)

    def by_comparisons() -> None:
        for least in leasts:
            expand_comparing(*pairs, values, least, at, *RULE)

    by_comparisons()  # it is compiled
    return (
        cpu_ms(lambda: bits_of(new, leasts)),
        cpu_ms(lambda: [expand(0, PROBES, *pairs, words, bit, at, *RULE) for bit in bits]),
        cpu_ms(by_sets),
        cpu_ms(by_comparisons),
    )


def main() -> None:
    """Print the table."""
    print((__doc__ or "").split("\n\n")[2])
    print(f"{'candidates':>10} {'pass':>5} {'queries':>7} {'make bits':>10} {'bits':>7} {'sets':>7} {'compare':>8}  ms")
    for each in (0.1, 1, 10):
        for share in (0.01, 0.5, 0.99):
            for queries in (1, 8):
                made, bits, sets, compared = measure(each, share, queries)
                print(f"{each:>10} {share:>5.0%} {queries:>7} {made:>10.2f} {bits:>7.1f} {sets:>7.1f} {compared:>8.1f}")


if __name__ == "__main__":
    main()
