"""Outer joins, EXISTS and NOT EXISTS on Spark, over a restart, at one site and at three, against the oracle."""

import os
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from equivalence.outer_scenes import SCHEMA, draw_rows, without_flush

import watersmeet as wm
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query

DDL = "k long, m int, s string, id long, ts timestamp"
COLUMNS = dict.fromkeys(("s0", "s1", "s2"), SCHEMA.names)
QUERIES = {
    "left": """
        SELECT a.id AS a_id, b.id AS b_id, b.s, b.ts FROM s0 [RANGE 10 SECONDS] a
        LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k""",
    "residual": """
        SELECT a.id AS a_id, b.id AS b_id, coalesce(b.s, 'none') AS shown FROM s0 [RANGE 10 SECONDS] a
        LEFT JOIN s1 [TUMBLE 20 SECONDS] b ON a.s = b.s AND a.id < b.id WHERE b.m IS NULL""",
    "chain": """
        SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id FROM s0 [RANGE 10 SECONDS] a
        FULL JOIN s1 [ROWS 3] b ON a.k = b.k LEFT JOIN s2 [RANGE 30 SECONDS] c ON b.k = c.k""",
    "exists": """
        SELECT a.id AS a_id, a.s FROM s0 [RANGE 10 SECONDS] a, s1 [RANGE 5 SECONDS] b
        WHERE a.k = b.k AND EXISTS (SELECT 1 FROM s2 [RANGE 30 SECONDS] c WHERE c.k = a.k AND c.id > b.id)""",
    "none": """
        SELECT a.id AS a_id FROM s0 [ROWS 2] a
        WHERE a.id % 3 <> 1 AND NOT EXISTS (SELECT 1 FROM s1 [RANGE 5 SECONDS] b WHERE b.k = a.k)""",
}


def write(directory: Path, tables: dict[str, pa.Table], numbers: range, files: int) -> None:
    for name, table in tables.items():
        cuts = [round(table.num_rows * i / files) for i in range(files + 1)]
        (directory / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            path = directory / name / f"{number}.parquet"
            pq.write_table(table.slice(cuts[number], cuts[number + 1] - cuts[number]), path)
            os.utime(path, (1_700_000_000 + 10 * number,) * 2)


def topology(directory: Path, homes: dict[str, str], site: str) -> wm.Topology:
    streams = [
        wm.Stream(
            name,
            "ts",
            DDL,
            wm.Source("parquet", str(directory / name), {"maxFilesPerTrigger": "1"}),
            watermark="3 seconds",
            site=homes[name],
        )
        for name in COLUMNS
    ]
    queries = [
        wm.Query(name, sql, sink=wm.Sink("parquet", str(directory / "out" / name)), site=site)
        for name, sql in QUERIES.items()
    ]
    sites = tuple(wm.Site(one) for one in sorted({*homes.values(), site}))
    return wm.Topology(tuple(streams), tuple(queries), sites, directory=str(directory))


@pytest.mark.parametrize("homes", ["one site", "three sites"])
def test_rows_without_partner_are_answered_once_over_a_restart(spark: Any, tmp_path: Path, homes: str) -> None:
    random = Random(f"outer joins on Spark {homes}")
    tables = {name: draw_rows(random, 3, 60) for name in COLUMNS}
    sites = dict.fromkeys(COLUMNS, "n0") if homes == "one site" else {"s0": "n0", "s1": "n1", "s2": "n2"}
    asked = topology(tmp_path, sites, "n0")
    for numbers in (range(2), range(2, 4)):
        write(tmp_path, tables, numbers, 4)
        wm.start(asked, spark=spark, once=True, checkpoint=tmp_path / "checkpoint").awaitTermination()
    for name, sql in QUERIES.items():
        found = ds.dataset(tmp_path / "out" / name, format="parquet").to_table()
        expected = answer(parse_query(sql, COLUMNS), tables, dict.fromkeys(COLUMNS, "ts"))
        assert expected.num_rows > 3
        assert found.schema.names == expected.schema.names
        assert without_flush(bag_of(found)) == without_flush(bag_of(expected)), name
