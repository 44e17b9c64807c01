"""The `w2` workload: N equally fast streams as Parquet files, one file a micro-batch, the same on every machine.

Row i of every stream has the timestamp START + i / rate: strictly increasing inside a stream (no row is ever late, even
with a watermark of 0 seconds) and equal across streams, so that the inclusive ends of the windows are hit as well.

    python benchmarks/workload.py --scale 0.05        # generates the files and prints their directories
"""

import argparse
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA_DIR = Path(__file__).parent / ".data"
STREAM_NAMES = "abcdef"
START_US = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC
SECOND_US = 1_000_000
ID_STRIDE = 1_000_000_000  # ids of different streams never meet, so that a swapped column cannot go unnoticed
ZIPF_EXPONENT = 1.2
LAYOUT = "v1"  # part of every path: raise it when the generated rows change

ARROW_SCHEMA = pa.schema(
    [("k", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.float64())]
)
# Both streaming sides get the same cores and the same heap limit.
MASTER = "local[2]"
DRIVER_MEMORY = "4g"

SPARK_SCHEMA = "k long, id long, ts timestamp, v double"

Skew = Literal["uniform", "zipf-first", "zipf-all"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Streams of `rows` rows each and the RANGE window of the join over them; the defaults are `w2`."""

    streams: int = 3
    rows: int = 3_000_000
    rate: int = 5_000
    keys: int = 500_000
    batches: int = 60
    window_us: int = 60 * SECOND_US
    skew: Skew = "uniform"
    seed: int = 7

    def __post_init__(self) -> None:
        if not 2 <= self.streams <= len(STREAM_NAMES):
            raise ValueError(f"streams={self.streams}: give 2 to {len(STREAM_NAMES)}")
        if self.rate < 1 or SECOND_US % self.rate:
            raise ValueError(
                f"rate={self.rate}: give a divisor of 1,000,000 rows/s, so that timestamps are whole microseconds"
            )
        if not 1 <= self.batches <= self.rows:
            raise ValueError(f"batches={self.batches}: give 1 to {self.rows} (the rows of a stream)")
        if self.keys < 1 or self.window_us < 1 or self.seed < 0:
            raise ValueError(f"keys={self.keys}, window_us={self.window_us}, seed={self.seed}: must be positive")
        if self.skew not in get_args(Skew):
            raise ValueError(f"skew={self.skew!r}: give one of {', '.join(get_args(Skew))}")

    @property
    def names(self) -> str:
        """Stream names, one letter each."""
        return STREAM_NAMES[: self.streams]

    @property
    def rows_in(self) -> int:
        """Rows of all streams together."""
        return self.streams * self.rows

    @property
    def duration_us(self) -> int:
        """Event time that the streams cover."""
        return self.rows * SECOND_US // self.rate

    @property
    def batch_rows(self) -> int:
        """Rows of one stream in one micro-batch (one less or more where it does not divide)."""
        return self.rows // self.batches

    def sql(self) -> str:
        """The continuous query in Watersmeet's dialect.

        >>> print(Workload(streams=2).sql())
        SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.k = b.k
        """
        window = duration(self.window_us)
        columns = ", ".join(f"{name}.id AS {name}_id" for name in self.names)
        windows = ", ".join(f"{name} [RANGE {window}]" for name in self.names)
        equal_keys = " AND ".join(
            f"{left}.k = {right}.k" for left, right in zip(self.names, self.names[1:], strict=False)
        )
        return f"SELECT {columns} FROM {windows} WHERE {equal_keys}"

    def skewed(self, stream: int) -> bool:
        """Whether this stream draws its keys from the Zipf distribution."""
        return self.skew == "zipf-all" or (self.skew == "zipf-first" and stream == 0)


def duration(us: int) -> str:
    """A duration in its largest whole unit.

    >>> duration(60_000_000), duration(15_000_000), duration(1_500_000)
    ('1 MINUTE', '15 SECONDS', '1500 MILLISECONDS')
    """
    units = (("MINUTE", 60 * SECOND_US), ("SECOND", SECOND_US), ("MILLISECOND", 1_000), ("MICROSECOND", 1))
    unit, size = next((unit, size) for unit, size in units if us % size == 0)
    return f"{us // size} {unit}{'S' * (us != size)}"


def generate(workload: Workload, data_dir: Path = DATA_DIR) -> list[Path]:
    """One directory of Parquet files a stream, in the order of the streams; those that exist already are kept.

    A stream's rows depend on the seed and its own position only: neither on the number of streams nor on the batches.
    """
    return [_generate_stream(workload, stream, data_dir) for stream in range(workload.streams)]


def _generate_stream(workload: Workload, stream: int, data_dir: Path) -> Path:
    skew = f"zipf{ZIPF_EXPONENT}" if workload.skewed(stream) else "uniform"
    size = f"{workload.rows}rows-{workload.rate}hz-{workload.keys}keys-{workload.batches}batches"
    path = data_dir.absolute() / LAYOUT / f"{size}-{skew}-seed{workload.seed}" / workload.names[stream]
    if path.exists():
        return path
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    table = _table(workload, stream)
    for batch in range(workload.batches):
        begin, end = (i * workload.rows // workload.batches for i in (batch, batch + 1))
        file = unfinished / f"{batch:05}.parquet"
        pq.write_table(table.slice(begin, end - begin), file)
        # Spark's file source reads in order of modification time; whole seconds survive every file system.
        os.utime(file, (START_US // SECOND_US + batch,) * 2)
    unfinished.rename(path)
    return path


def _table(workload: Workload, stream: int) -> pa.Table:
    rng = np.random.default_rng([workload.seed, stream])
    i = np.arange(workload.rows, dtype=np.int64)
    keys = _zipf(rng, workload) if workload.skewed(stream) else rng.integers(workload.keys, size=workload.rows)
    ts = START_US + i * (SECOND_US // workload.rate)
    columns = [
        keys,
        i + stream * ID_STRIDE,
        pa.array(ts).cast(ARROW_SCHEMA.field("ts").type),
        rng.random(workload.rows),
    ]
    return pa.table(columns, schema=ARROW_SCHEMA)


def _zipf(rng: np.random.Generator, workload: Workload) -> np.ndarray:
    """Keys 0, 1, 2, ... with probabilities proportional to 1, 2^-1.2, 3^-1.2, ...; numpy's `zipf` has no last key."""
    cumulative = np.cumsum(np.arange(1, workload.keys + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    return np.searchsorted(cumulative, rng.random(workload.rows) * cumulative[-1], side="right").astype(np.int64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that describe a workload, shared by every script here."""
    w2 = Workload()
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of w2's rows: less event time at the same rate and keys"
    )
    parser.add_argument("--streams", type=int, default=w2.streams, help="2 to 6 (default %(default)s)")
    parser.add_argument("--keys", type=int, default=w2.keys, help="distinct keys (default %(default)s)")
    parser.add_argument("--rate", type=int, default=w2.rate, help="rows/s of event time a stream (default %(default)s)")
    parser.add_argument("--window", type=float, default=60.0, help="RANGE window in seconds (default %(default)s)")
    parser.add_argument(
        "--batches", type=int, help="micro-batches (default 60 x scale: batches of 50,000 rows a stream)"
    )
    parser.add_argument(
        "--skew", choices=get_args(Skew), default=w2.skew, help=f"Zipf {ZIPF_EXPONENT} keys in the first or all streams"
    )
    parser.add_argument("--seed", type=int, default=w2.seed, help="of the random keys (default %(default)s)")
    parser.add_argument("--data", type=Path, default=DATA_DIR, help="where files are kept (default %(default)s)")


def from_arguments(args: argparse.Namespace) -> Workload:
    """The workload that `add_arguments`' options describe."""
    w2 = Workload()
    rows = max(1, round(w2.rows * args.scale))
    batches = args.batches or max(1, round(w2.batches * args.scale))
    window_us = round(args.window * SECOND_US)
    return Workload(args.streams, rows, args.rate, args.keys, batches, window_us, args.skew, args.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the w2 workload as Parquet files.")
    add_arguments(parser)
    args = parser.parse_args()
    try:
        workload = from_arguments(args)
    except ValueError as error:
        parser.error(str(error))
    for path in generate(workload, args.data):
        print(path)


if __name__ == "__main__":
    main()
