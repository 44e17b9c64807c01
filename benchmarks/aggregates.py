"""Windowed aggregates beside Spark's own, on the same files, every answer checked against DuckDB.

python benchmarks/aggregates.py                    # one stream, a join of three, and bytes over three sites
python benchmarks/aggregates.py --rows 100000      # smaller
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import watersmeet as wm
from watersmeet.planners.local import local
from watersmeet.program.operators import Purpose
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.spark.session import start_session

STAMP = pa.timestamp("us", "UTC")
SECOND_US = 1_000_000
DDL = "k long, g long, v long, ts timestamp"
ITEMS = "count(*) AS n, avg({}.v) AS mean, window_start"


def stream(seed: int, rows: int, seconds: int, groups: int) -> pa.Table:
    """Rows in order of time, and a last one that lets all windows end."""
    chance = np.random.default_rng(seed)
    ts = np.sort(chance.integers(0, seconds * SECOND_US, rows))
    ts[-1] = (seconds + 86_400) * SECOND_US
    keys, values = chance.integers(0, max(rows // 6, 1), rows), chance.integers(0, 1_000, rows)
    return pa.table({"k": keys, "g": chance.integers(0, groups, rows), "v": values, "ts": pa.array(ts, STAMP)})


def written(table: pa.Table, directory: Path, batches: int) -> None:
    directory.mkdir(parents=True)
    size = -(-table.num_rows // batches)
    for number in range(batches):
        pq.write_table(table.slice(number * size, size), directory / f"{number:05d}.parquet")


def timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def ours(spark: Any, directory: Path, names: list[str], sql: str) -> None:
    """Watersmeet over the files of a directory."""
    streams = tuple(
        wm.Stream(name, "ts", DDL, wm.Source("parquet", str(directory / name), {"maxFilesPerTrigger": "1"}))
        for name in names
    )
    query = wm.Query("q", sql, sink=wm.Sink("parquet", str(directory / "ours")))
    handle = wm.start(wm.Topology(streams, (query,)), spark=spark, once=True, checkpoint=directory / "checkpoint")
    handle.awaitTermination()


def native(spark: Any, directory: Path, names: list[str], seconds: int) -> None:
    """Spark's chained stream-stream joins and windowed groupBy."""
    frames = []
    for name in names:
        read = spark.readStream.schema(DDL).option("maxFilesPerTrigger", "1").parquet(str(directory / name))
        renamed = read.select([F.col(column).alias(f"{name}_{column}") for column in read.columns])
        frames.append(renamed.withWatermark(f"{name}_ts", "0 seconds"))
    joined = frames[0]
    for name, frame in zip(names[1:], frames[1:], strict=True):
        near = F.expr(
            f"{names[0]}_k = {name}_k AND {name}_ts BETWEEN {names[0]}_ts - INTERVAL {seconds} SECONDS "
            f"AND {names[0]}_ts + INTERVAL {seconds} SECONDS"
        )
        joined = joined.join(frame, near)
    # Spark groups by an event-time column only: the window is that of the first stream's row, not of the latest one's.
    counts = joined.groupBy(F.window(f"{names[0]}_ts", "1 minute"), f"{names[0]}_g").agg(
        F.count("*").alias("n"), F.avg(f"{names[0]}_v").alias("mean")
    )
    counts = counts.select(f"{names[0]}_g", "n", "mean", F.col("window.start").alias("window_start"))
    writer = counts.writeStream.format("parquet").option("checkpointLocation", str(directory / "native_checkpoint"))
    writer.trigger(availableNow=True).start(str(directory / "native")).awaitTermination()


def compared(spark: Any, names: list[str], rows: int, batches: int, seconds: int, groups: int) -> None:
    tables = {name: stream(number, rows, seconds, groups) for number, name in enumerate(names)}
    window = "" if len(names) == 1 else " [RANGE 10 SECONDS]"
    where = " AND ".join(f"{names[0]}.k = {name}.k" for name in names[1:])
    sources = ", ".join(f"{name}{window}" for name in names)
    sql = f"SELECT {names[0]}.g, {ITEMS.format(names[0])} FROM {sources}{' WHERE ' + where if where else ''}"
    sql += f" GROUP BY {names[0]}.g, TUMBLE(1 MINUTE)"
    directory = Path(tempfile.mkdtemp())
    try:
        for name, table in tables.items():
            written(table, directory / name, batches)
        ours_seconds = timed(lambda: ours(spark, directory, names, sql))
        native_seconds = timed(lambda: native(spark, directory, names, 10))
        parsed = parse_query(sql, {name: table.column_names for name, table in tables.items()})
        mark = (seconds + 86_400) * SECOND_US
        expected = answer(parsed, tables, dict.fromkeys(names, "ts"), watermark_us=mark)
        found = ds.dataset(directory / "ours", format="parquet").to_table()
        verdict = "answers are the oracle's" if bag_of(found) == bag_of(expected) else "ANSWERS DIFFER"
        total = rows * len(names)
        speeds = f"Watersmeet {total / ours_seconds:,.0f} rows/s, Spark {total / native_seconds:,.0f} rows/s"
        print(
            f"{len(names)} stream(s), {total:,} rows, {batches} files each: {speeds}, "
            f"ratio {native_seconds / ours_seconds:.2f}; {verdict}"
        )
    finally:
        shutil.rmtree(directory)


def shipped(rows: int, groups: int) -> None:
    """Bytes of partial records and of rows from two sites to a third, in the simulator."""
    names = ["a", "b"]
    tables = {name: stream(number, rows, 600, groups) for number, name in enumerate(names)}
    columns = {name: table.column_names for name, table in tables.items()}
    queries = {
        "records": "SELECT {0}.g, count(*) AS n, avg({0}.v) AS mean FROM {0} GROUP BY {0}.g, TUMBLE(10 MINUTES)",
        "rows": "SELECT {0}.g, {0}.v FROM {0}",
    }
    bytes_of = {}
    for kind, sql in queries.items():
        plans = {
            name: local(parse_query(sql.format(name), columns), columns, f"site of {name}", "hub") for name in names
        }
        sites = SimulatedSites(plans, dict.fromkeys(names, "ts"))
        sites.feed(0, tables)
        sites.run()
        purposes = (Purpose.RESULTS, Purpose.RECORDS)
        bytes_of[kind] = sum(c[p].bytes for c in sites.traffic.values() for p in purposes if p in c)
    ratio = bytes_of["rows"] / bytes_of["records"]
    print(
        f"{rows * 2:,} rows in {groups:,} groups over three sites: {bytes_of['rows']:,} bytes of rows, "
        f"{bytes_of['records']:,} of records, 1/{ratio:.0f}"
    )


def running(rows: int, groups: int, batches: int) -> None:
    """EMIT CHANGES over one stream in the simulator: a row for every change of a group."""
    table = stream(0, rows, 600, groups).slice(0, rows - 1)
    columns = {"a": table.column_names}
    for items in ("count(*) AS n, sum(v) AS s", "max(v) AS m, count(*) AS n"):
        for window in ("RANGE 10 SECONDS", "RANGE 2 MINUTES", "ROWS 10000", "UNBOUNDED"):
            sql = f"SELECT g, {items} FROM a [{window}] GROUP BY g EMIT CHANGES"
            query = parse_query(sql, columns, event_times={"a": "ts"})
            sites = SimulatedSites(local(query, columns, "here"), {"a": "ts"}, interval_us=100_000)
            for number in range(batches):
                size = -(-rows // batches)
                sites.feed(number * SECOND_US, {"a": table.slice(number * size, size)})
            began = time.process_time()
            sites.run()
            rate = rows / (time.process_time() - began)
            found = pa.concat_tables(sites.answers())
            mark = int(table.column("ts").cast(pa.int64())[-1].as_py())
            expected = answer(query, {"a": table}, {"a": "ts"}, watermark_us=mark)
            verdict = "as the oracle's" if bag_of(found) == bag_of(expected) else "CHANGES DIFFER"
            kept = sum(segment.rows for segment in sites.sites["here"].ledger.groups["q"])
            print(
                f"EMIT CHANGES, {items}, {window}: {rate:,.0f} rows a second of CPU, {found.num_rows:,} changes, "
                f"{verdict}, {kept:,} records kept"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000, help="of each stream")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--groups", type=int, default=1_000)
    options = parser.parse_args()
    shipped(options.rows, options.groups)
    running(min(options.rows, 200_000), options.groups, options.batches)
    spark = start_session("local[2]", app="watersmeet-aggregates")
    try:
        compared(spark, ["a"], options.rows, options.batches, 600, options.groups)
        compared(spark, ["a", "b", "c"], options.rows, options.batches, 600, options.groups)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
