"""What rows take on a link: our packing beside Arrow's own format (IPC, compressed with zstd, without the schema).

python benchmarks/packing.py            bytes, and microseconds to pack and unpack, for batches of 1 to 20,000 rows
                     --seed 1 --most 20000
"""

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.program.storage.packing import pack_rows, unpack_rows

START_US = 1_700_000_000_000_000
WORDS = np.array(["alpha", "beta", "gamma", "a rather longer word"])
ARROW = pa.ipc.IpcWriteOptions(compression="zstd")


def rows(rng: np.random.Generator, count: int) -> pa.Table:
    """Rows of some hundred bytes in the order of their time; the most of them cannot be compressed."""
    return pa.table(
        {
            "k": rng.integers(0, 1_000, count),
            "id": np.arange(count) + 12_345,
            "load": pa.array([rng.bytes(76) for _ in range(count)], pa.binary()),
            "#ts": np.sort(rng.integers(0, 1_000_000, count)) + START_US,
        }
    )


def combinations(rng: np.random.Generator, count: int) -> pa.Table:
    """Combinations of three rows each, a row in twelve of them on average."""
    pool = rows(rng, max(4, count // 4))
    parts = [pool.take(rng.integers(0, pool.num_rows, count)) for _ in range(3)]
    return pa.table({f"{n}.{name}": part[name] for n, part in enumerate(parts) for name in part.column_names})


def keys(rng: np.random.Generator, count: int) -> pa.Table:
    """Keys in order, and from when for how long they are there."""
    return pa.table(
        {
            "#key": np.sort(rng.integers(0, 1_000, count)),
            "#low": rng.integers(0, 1_000_000, count) + START_US,
            "#high": rng.integers(0, 300_000, count),
        }
    )


def texts(rng: np.random.Generator, count: int) -> pa.Table:
    """Words with numbers, readings, and flags."""
    return pa.table(
        {
            "host": np.char.add(rng.choice(WORDS, count), rng.integers(0, 50, count).astype(str)),
            "value": rng.normal(20, 1, count).round(2),
            "flag": rng.random(count) < 0.5,
        }
    )


def pack_by_arrow(table: pa.Table) -> bytes:
    """Rows as one record batch without its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=ARROW) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0])
        stop = sink.tell()
    written = sink.getvalue()
    reader = pa.BufferReader(written)
    pa.ipc.read_message(reader)
    packed: bytes = written[reader.tell() : stop].to_pybytes()
    return packed


def unpack_by_arrow(packed: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of a record batch."""
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(packed), schema)])


def microseconds(function: Callable[..., Any], *arguments: Any, times: int) -> float:
    """The shortest time of some calls."""
    taken = []
    for _ in range(times):
        begun = perf_counter()
        function(*arguments)
        taken.append(perf_counter() - begun)
    return 1e6 * min(taken)


def table(seed: int, most: int) -> None:
    """One line for each kind of rows and size of batch."""
    print("| what | rows | Arrow bytes | ours | ours/Arrow | pack µs, Arrow | ours | unpack µs, Arrow | ours |")
    print("| --- |" + " ---: |" * 8)
    for make in (rows, combinations, keys, texts):
        for count in (1, 10, 100, 1_000, 20_000):
            if count > most:
                continue
            given = make(np.random.default_rng([seed, count]), count)
            arrow, ours = pack_by_arrow(given), pack_rows(given)
            assert unpack_by_arrow(arrow, given.schema).equals(given)
            assert unpack_rows(ours, given.schema).equals(given)
            times = max(5, min(200, 20_000 // count))
            speeds = (
                microseconds(pack_by_arrow, given, times=times),
                microseconds(pack_rows, given, times=times),
                microseconds(unpack_by_arrow, arrow, given.schema, times=times),
                microseconds(unpack_rows, ours, given.schema, times=times),
            )
            shown = " | ".join(f"{speed:,.0f}" for speed in speeds)
            sizes = f"{len(arrow):,} | {len(ours):,} | {len(ours) / len(arrow):.2f}"
            print(f"| {make.__name__} | {count:,} | {sizes} | {shown} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=20_000, help="rows in the largest batch")
    given = parser.parse_args()
    table(given.seed, given.most)
