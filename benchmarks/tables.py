"""A stream against a table beside Spark's own stream-static join, on the same files, every answer checked by DuckDB.

python benchmarks/tables.py                                   # 3,000,000 rows against 500,000
python benchmarks/tables.py --rows 300000 --table 50000       # smaller
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm
from watersmeet.spark.session import start_session

BATCHES = 10
DDL = "k long, v long, ts timestamp"
SQL = "SELECT s.k, s.v, t.name FROM s JOIN t ON s.k = t.id"


def write(directory: Path, rows: int, table: int) -> None:
    """The files of a stream, one a micro-batch, and of a table in which half of its keys are."""
    chance = np.random.default_rng(1)
    (directory / "s").mkdir()
    size = -(-rows // BATCHES)
    for number in range(BATCHES):
        ts = pa.array(np.sort(chance.integers(0, 10**8, size)) + number * 10**8, pa.timestamp("us", "UTC"))
        some = pa.table({"k": chance.integers(0, 2 * table, size), "v": chance.integers(0, 1_000, size), "ts": ts})
        pq.write_table(some, directory / "s" / f"{number:05d}.parquet")
    ids = chance.permutation(2 * table)[:table]
    pq.write_table(pa.table({"id": ids, "name": [f"name {one}" for one in ids]}), directory / "t.parquet")


def ours(spark: Any, directory: Path) -> None:
    """Watersmeet, with the table in its checkpoint."""
    stream = wm.Stream("s", "ts", DDL, wm.Source("parquet", str(directory / "s"), {"maxFilesPerTrigger": "1"}))
    users = wm.Table("t", schema="id long, name string", source=wm.Source("parquet", str(directory / "t.parquet")))
    query = wm.Query("q", SQL, sink=wm.Sink("parquet", str(directory / "ours")))
    topology = wm.Topology((stream,), (query,), tables=(users,), durability="process")
    wm.start(topology, spark=spark, once=True, checkpoint=directory / "checkpoint").awaitTermination()


def native(spark: Any, directory: Path) -> None:
    """Spark's stream-static join, which reads the table at each micro-batch."""
    stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", "1").parquet(str(directory / "s"))
    table = spark.read.parquet(str(directory / "t.parquet"))
    joined = stream.join(table, stream.k == table.id).select("k", "v", "name")
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(directory / "native_checkpoint"))
    writer.trigger(availableNow=True).start(str(directory / "native")).awaitTermination()


def check(directory: Path, system: str) -> int:
    """The number of answers, if they are DuckDB's."""
    due = f"SELECT s.k, s.v, t.name FROM '{directory}/s/*.parquet' s JOIN '{directory}/t.parquet' t ON s.k = t.id"
    came = f"FROM '{directory}/{system}/*.parquet'"
    for one, other in ((due, came), (came, due)):
        found = duckdb.sql(f"SELECT count(*) FROM (({one}) EXCEPT ALL ({other}))").fetchall()
        assert found == [(0,)], f"{system} has other answers than DuckDB"
    return int(duckdb.sql(f"SELECT count(*) {came}").fetchall()[0][0])


def main() -> None:
    """Run both, and print seconds and rows a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--table", type=int, default=500_000)
    options = parser.parse_args()
    spark = start_session("local[2]")
    with tempfile.TemporaryDirectory(prefix="watersmeet-") as small, tempfile.TemporaryDirectory() as place:
        for directory, rows, table in ((small, 2_000, 100), (place, options.rows, options.table)):  # the first warms up
            write(Path(directory), rows, table)
            for name, system in (("native", native), ("ours", ours)):
                began = time.monotonic()
                system(spark, Path(directory))
                seconds = time.monotonic() - began
                answers = check(Path(directory), name)
                if directory == place:
                    print(f"{name}: {seconds:.1f} s, {rows / seconds:,.0f} rows/s, {answers:,} answers, all right")
    spark.stop()


if __name__ == "__main__":
    main()
