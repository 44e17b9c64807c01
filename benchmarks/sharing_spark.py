"""Windowed COUNT queries that differ in their filters: one job of ours against Spark aggregations that share the scan.

    python benchmarks/sharing_spark.py --rows 200000 --queries 10,100 --table spark
    python benchmarks/sharing_spark.py --rows 200000 --queries 100 --table sites

`spark`: whole processes, start-up included; CPU seconds, since the machine may be busy. The other side is a batch job
over the cached input (so that only the scan is shared) that unites the aggregations, fifty at a time, and writes them
once; streaming would cost it more. Answers of some queries are compared with NumPy's. `sites`: bytes on the links from
two homes to a third site, with sharing and without, in the simulator: for ranges, none of which follows from others,
and for conditions with their ANDs and ORs, beside the rank of these (1 - gain).
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ours
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import yaml
from measure import Measurement, measure
from workload import MASTER

from watersmeet.planners.local import local
from watersmeet.program.operators import Purpose
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites

SECOND_US = 1_000_000
SPAN_US, WINDOW_US = 60 * SECOND_US, 10 * SECOND_US
TOGETHER = 50  # aggregations in one union
DDL = "ts timestamp, a long, b long"


def rows_of(rows: int, seed: int) -> pa.Table:
    """A minute of rows, and a last one much later, which ends all windows."""
    chance = np.random.default_rng(seed)
    ts = np.arange(rows) * SPAN_US // rows
    ts[-1] = 10 * SPAN_US
    stamps = pa.array(ts, pa.timestamp("us", "UTC"))
    return pa.table({"ts": stamps, "a": chance.integers(0, 10_000, rows), "b": chance.integers(0, 6, rows)})


def filters(count: int) -> list[tuple[int, int, int]]:
    """A range of a, and a bound of b, for each query."""
    chance = np.random.default_rng(1)
    ranges = np.sort(chance.integers(0, 10_000, (count, 2)), axis=1).tolist()
    return [(low, high, number % 5 + 1) for number, (low, high) in enumerate(ranges)]


def where_of(low: int, high: int, bound: int) -> str:
    return f"a >= {low} AND a < {high} AND b < {bound}"


def sql_of(stream: str, where: str) -> str:
    return f"SELECT count(*) AS n, window_start AS w FROM {stream} WHERE {where} GROUP BY TUMBLE(10 SECONDS)"


def expected(table: pa.Table, low: int, high: int, bound: int) -> dict[int, int]:
    """Counts by the start of windows, by definition."""
    ts, a, b = (table.column(name).cast(pa.int64()).to_numpy() for name in ("ts", "a", "b"))
    wanted = (a >= low) & (a < high) & (b < bound) & (ts < 5 * SPAN_US)
    starts, counts = np.unique(ts[wanted] // WINDOW_US * WINDOW_US, return_counts=True)
    return dict(zip(starts.tolist(), counts.tolist(), strict=True))


def by_us(directory: Path, queries: int) -> Measurement:
    """All queries in one job of ours."""
    asked = {
        f"q{number}": {
            "sql": sql_of("s", where_of(*one)),
            "sink": {"format": "parquet", "path": f"{directory}/out{number}"},
        }
        for number, one in enumerate(filters(queries))
    }
    for one in asked.values():
        one["sink"]["compact"] = "1 hour"  # one file a query: what is measured are aggregations
    source = {"format": "parquet", "path": f"{directory}/s", "options": {"maxFilesPerTrigger": 1}}
    stream = {"site": "here", "schema": DDL, "event_time": "ts", "watermark": "0 seconds", "source": source}
    file = directory / "topology.yaml"
    file.write_text(yaml.safe_dump({"sites": ["here"], "streams": {"s": stream}, "queries": asked}, width=200))
    command = [sys.executable, "-m", "watersmeet", "run", str(file), "--once", "--quiet", "--master", MASTER]
    return measure([*command, "--checkpoint", f"{directory}/checkpoint"], env=ours.environment())


def by_spark(directory: Path, queries: int) -> Measurement:
    """All queries as aggregations of one Spark job over its cached input."""
    return measure([sys.executable, __file__, "--separate", str(directory), "--queries", str(queries)])


def separate(directory: Path, queries: int) -> None:
    """What `by_spark` measures."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = spark.read.parquet(f"{directory}/s").cache()
    whole: DataFrame | None = None
    for number, (low, high, bound) in enumerate(filters(queries)):
        wanted = rows.where(where_of(low, high, bound))
        one = wanted.groupBy(F.window("ts", "10 seconds")).count().select(F.lit(number).alias("q"), "window", "count")
        whole = one if whole is None else whole.union(one)
        if number % TOGETHER == TOGETHER - 1 or number == queries - 1:
            whole.write.mode("append").parquet(f"{directory}/separate")
            whole = None
    spark.stop()


def spark_table(rows: int, counts: list[int]) -> None:
    table = rows_of(rows, 7)
    print("queries | CPU s, ours | Spark | times | wall s, ours | Spark")
    for count in (0, *counts):
        directory = Path(tempfile.mkdtemp(prefix="watersmeet-sharing-"))
        (directory / "s").mkdir()
        size = -(-rows // 5)
        for number in range(5):
            pq.write_table(table.slice(number * size, size), directory / "s" / f"{number}.parquet")
        queries = max(count, 1)  # the first line is one query: what starting costs
        own, other = by_us(directory, queries), by_spark(directory, queries)
        for one in (own, other):
            if one.returncode:
                raise SystemExit(one.last_lines())
        for number, wanted in list(enumerate(filters(queries)))[:: max(1, queries // 10)]:
            found = ds.dataset(directory / f"out{number}", format="parquet").to_table()
            starts = found.column("w").cast(pa.int64()).to_pylist()
            if dict(zip(starts, found.column("n").to_pylist(), strict=True)) != expected(table, *wanted):
                raise SystemExit(f"q{number}: other answers than by definition")
        times = other.cpu_seconds / own.cpu_seconds
        print(
            f"{queries:,} | {own.cpu_seconds:.1f} | {other.cpu_seconds:.1f} | {times:.1f} | {own.wall_seconds:.1f} | "
            f"{other.wall_seconds:.1f}",
            flush=True,
        )
        shutil.rmtree(directory)


def combined(queries: int) -> tuple[list[str], int]:
    """Conditions with the ANDs and ORs of any two of them, and the rank of F: an OR follows from the others."""
    conditions = next(n for n in range(2, queries + 2) if n + n * (n - 1) >= queries)
    chance = np.random.default_rng(2)
    parts = [f"(a * {p}) % {m} < {m // 3}" for p, m in chance.integers(100, 1_000, (conditions, 2)).tolist()]
    pairs = [(one, other) for one in range(conditions) for other in range(one)]
    both = [f"{parts[one]} AND {parts[other]}" for one, other in pairs]
    either = [f"({parts[one]} OR {parts[other]})" for one, other in pairs]
    return [*parts, *both, *either], len(parts) + len(pairs)


def sites_table(rows: int, counts: list[int]) -> None:
    """Bytes of records from two sites to a third one."""
    for queries in counts:
        ranges = [where_of(*one) for one in filters(queries)]
        _sites_lines(rows, "ranges", ranges, None)
        _sites_lines(rows, "conditions, ANDs and ORs", *combined(queries))


def _sites_lines(rows: int, what: str, conditions: list[str], rank: int | None) -> None:
    tables = {name: rows_of(rows, seed) for seed, name in enumerate("st")}
    columns = {name: table.column_names for name, table in tables.items()}
    queries = len(conditions)
    for kind in ("count(*) AS n",) if rank is not None else ("count(*) AS n", "max(a) AS n"):
        sent: dict[bool, int] = {}
        for shares in (True, False):
            plans: dict[str, Any] = {}
            for stream in tables:
                for number, one in enumerate(conditions):
                    text = sql_of(stream, one).replace("count(*) AS n", kind).replace("10 SECONDS", "1 SECOND")
                    query = typed(parse_query(text, columns), {name: tables[name].schema for name in tables})
                    plans[f"{stream}{number}"] = local(query, columns, f"home of {stream}", "hub")
            sites = SimulatedSites(plans, dict.fromkeys(tables, "ts"), shares=shares)
            for number in range(5):
                size = -(-rows // 5)
                sites.feed(number * SECOND_US, {name: one.slice(number * size, size) for name, one in tables.items()})
            sites.run()
            sent[shares] = sum(c[Purpose.RECORDS].bytes for c in sites.traffic.values() if Purpose.RECORDS in c)
        print(
            f"{what}: {queries:,} queries of {kind} at each of two homes: {sent[True]:,} bytes of records with "
            f"sharing, {sent[False]:,} without: {sent[True] / sent[False]:.3f}"
            + ("" if rank is None else f" (1 - gain: {rank / queries:.3f})"),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--queries", default="10,100,1000")
    parser.add_argument("--table", choices=["spark", "sites"], default="spark")
    parser.add_argument("--separate", help=argparse.SUPPRESS)
    options = parser.parse_args()
    counts = [int(count) for count in options.queries.split(",")]
    if options.separate:
        separate(Path(options.separate), counts[0])
    elif options.table == "spark":
        spark_table(options.rows, counts)
    else:
        sites_table(options.rows, counts)


if __name__ == "__main__":
    main()
