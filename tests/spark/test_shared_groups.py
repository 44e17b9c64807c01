"""GROUP BY queries that share records on Spark: their answers are the oracle's, over restarts and over links."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from spark.test_sites import jobs

import watersmeet as wm
from watersmeet.query.bags import nearly_bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query

SECOND_US = 1_000_000
STAMP = pa.timestamp("us", "UTC")
BATCHES, ROWS = 4, 600
SIMPLE = [f"v >= {low} AND v < {low + 20}" for low in range(0, 80, 10)] + ["k IN ('x', 'y')", "k IS NULL", "p > 0.5"]
EVALUATED = ["v % 3 = 1", "upper(k) = 'X'"]
VALUES = "count(*) AS n, sum(v) AS total, max(p) AS most, window_start"
TAIL = "GROUP BY k, TUMBLE(10 SECONDS)"


def write(directory: Path, first: int, last: int) -> pa.Table:
    """Rows of some micro-batches, ten seconds each; all rows."""
    chance = np.random.default_rng(1)
    ts = np.sort(chance.integers(0, 10 * BATCHES * SECOND_US, ROWS))
    ts[-1] = 1_000 * SECOND_US
    table = pa.table(
        {
            "k": pa.array(chance.choice(np.array(["x", "y", "z"]), ROWS), mask=chance.random(ROWS) < 0.1),
            "v": pa.array(chance.integers(0, 100, ROWS), mask=chance.random(ROWS) < 0.1),
            "p": chance.random(ROWS),
            "ts": pa.array(ts, STAMP),
        }
    )
    directory.mkdir(parents=True, exist_ok=True)
    size = ROWS // BATCHES
    for number in range(first, last):
        pq.write_table(table.slice(number * size, size), directory / f"{number}.parquet")
    return table


def topology(directory: Path, queries: Sequence[str], at: str = "here") -> wm.Topology:
    source = wm.Source("parquet", str(directory / "a"), {"maxFilesPerTrigger": "1"})
    stream = wm.Stream(
        "a", "ts", "k string, v long, p double, ts timestamp", source, watermark="0 seconds", site="here"
    )
    asked = [
        wm.Query(f"q{number}", sql, sink=wm.Sink("parquet", str(directory / f"out{number}")), site=at)
        for number, sql in enumerate(queries)
    ]
    sites = tuple(wm.Site(name) for name in sorted({"here", at}))
    return wm.Topology((stream,), tuple(asked), sites, str(directory))


def run(spark: Any, directory: Path, queries: Sequence[str], at: str = "here") -> wm.StreamingRun:
    checkpoint = directory / "checkpoint"
    handle = wm.start(topology(directory, queries, at), spark=spark, once=True, checkpoint=checkpoint)
    handle.awaitTermination()
    return handle


def check(directory: Path, queries: Sequence[str], rows: pa.Table) -> None:
    for number, sql in enumerate(queries):
        parsed = parse_query(sql, {"a": rows.column_names})
        expected = answer(parsed, {"a": rows}, {"a": "ts"}, watermark_us=1_000 * SECOND_US)
        found = ds.dataset(directory / f"out{number}", format="parquet").to_table()
        assert nearly_bag_of(found) == nearly_bag_of(expected), sql
        assert expected.num_rows


def shapes(handle: wm.StreamingRun) -> set[str]:
    return {family.shape.name for job in jobs(handle) for family in job.program.families}


@pytest.mark.few(1)
@pytest.mark.parametrize("at", ["here", "hub"])
def test_shared_records_outlive_a_restart_and_travel(spark: Any, tmp_path: Path, at: str) -> None:
    queries = [f"SELECT k, {VALUES} FROM a WHERE {one} {TAIL}" for one in SIMPLE]
    queries += [f"SELECT k, {VALUES} FROM a WHERE {one} {TAIL} HAVING n * 2 > 3" for one in SIMPLE[:2]]
    rows = write(tmp_path / "a", 0, 2)
    run(spark, tmp_path, queries, at)
    write(tmp_path / "a", 2, BATCHES)
    handle = run(spark, tmp_path, queries, at)
    assert len(shapes(handle)) == 1
    check(tmp_path, queries, rows)


def test_filters_that_are_evaluated_share_records_too(spark: Any, tmp_path: Path) -> None:
    queries = [f"SELECT k, {VALUES} FROM a WHERE {one} {TAIL}" for one in (*SIMPLE[::3], *EVALUATED)]
    rows = write(tmp_path / "a", 0, BATCHES)
    assert len(shapes(run(spark, tmp_path, queries))) == 1
    check(tmp_path, queries, rows)
