"""Outer joins, EXISTS and NOT EXISTS on Spark, over a restart, at one site and at three, against the oracle."""

import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from equivalence.outer_scenes import FIRST_FLUSH_ID, SCHEMA, TABLE, draw_rows, without_flush
from spark.test_sites import jobs

import watersmeet as wm
from watersmeet.query.bags import bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer, answer_outputs
from watersmeet.query.sql import parse_query, parse_script
from watersmeet.query.windows import AsOf

DDL = "k long, m int, s string, id long, ts timestamp"
STREAMS = ("s0", "s1", "s2")
COLUMNS = dict.fromkeys(STREAMS, SCHEMA.names) | {"t0": TABLE.names}
TIMES = dict.fromkeys(STREAMS, "ts")
LOOKUP = pa.table(
    [[1, 1, 2, None], [1, 2, 3, 1], ["key 1", "key 1", "key 2", None], [1, 2, 3, 4]],
    schema=TABLE,
)
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
    "once": """
        SELECT DISTINCT a.k, b.m, a.id >= 1000 AS is_last FROM s0 [RANGE 10 SECONDS] a
        LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k WHERE a.id < 1000""",
    "table": """
        SELECT a.id AS a_id, t.id AS t_id, t.s FROM s0 a LEFT JOIN t0 t ON a.k = t.k AND a.m < t.m
        WHERE NOT EXISTS (SELECT 1 FROM t0 v WHERE v.s = a.s AND v.id = 2 AND a.id % 2 = 0)""",
    "table_and_stream": """
        SELECT a.id AS a_id, b.id AS b_id, t.id AS t_id FROM s0 [RANGE 10 SECONDS] a LEFT JOIN t0 t ON a.k = t.k
        LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k AND b.m > t.m""",
    "changes": """
        SELECT a.k, count(*) AS n, count(b.id) AS known FROM s0 [RANGE 10 SECONDS] a
        LEFT JOIN s1 [TUMBLE 5 SECONDS] b ON a.k = b.k GROUP BY a.k EMIT CHANGES""",
}


def parsed(sql: str) -> JoinQuery:
    return parse_query(sql, COLUMNS, event_times=TIMES, tables={"t0": AsOf()})


def write(directory: Path, tables: dict[str, pa.Table], numbers: range, files: int) -> None:
    for name, table in tables.items():
        cuts = [round(table.num_rows * i / files) for i in range(files + 1)]
        (directory / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            path = directory / name / f"{number}.parquet"
            pq.write_table(table.slice(cuts[number], cuts[number + 1] - cuts[number]), path)
            os.utime(path, (1_700_000_000 + 10 * number,) * 2)


def topology(
    directory: Path, homes: dict[str, str], site: str, asked: Mapping[str, str] = QUERIES, **settings: Any
) -> wm.Topology:
    streams = [
        wm.Stream(
            name,
            "ts",
            DDL,
            wm.Source("parquet", str(directory / name), {"maxFilesPerTrigger": "1"}),
            watermark="3 seconds",
            site=homes[name],
        )
        for name in STREAMS
    ]
    pq.write_table(LOOKUP, directory / "t0.parquet")
    lookup = wm.Table(name="t0", source=wm.Source("parquet", str(directory / "t0.parquet")), site=site)
    queries = [
        wm.Query(name, sql, sink=wm.Sink("parquet", str(directory / "out" / name)), site=site, **settings)
        for name, sql in asked.items()
    ]
    sites = tuple(wm.Site(one) for one in sorted({*homes.values(), site}))
    return wm.Topology(tuple(streams), tuple(queries), sites, tables=(lookup,), directory=str(directory))


@pytest.mark.soak
@pytest.mark.few(1)
@pytest.mark.parametrize("homes", ["one site", "three sites"])
def test_rows_without_partner_are_answered_once_over_a_restart(spark: Any, tmp_path: Path, homes: str) -> None:
    random = Random(f"outer joins on Spark {homes}")
    tables = {name: draw_rows(random, 3, 60) for name in STREAMS}
    sites = dict.fromkeys(STREAMS, "n0") if homes == "one site" else {"s0": "n0", "s1": "n1", "s2": "n2"}
    asked = topology(tmp_path, sites, "n0")
    for numbers in (range(2), range(2, 4)):
        write(tmp_path, tables, numbers, 4)
        wm.start(asked, spark=spark, once=True, checkpoint=tmp_path / "checkpoint").awaitTermination()
    for name, sql in QUERIES.items():
        found = ds.dataset(tmp_path / "out" / name, format="parquet").to_table()
        expected = answer(parsed(sql), {**tables, "t0": LOOKUP}, TIMES)
        assert expected.num_rows > 3
        assert found.schema.names == expected.schema.names
        assert without_flush(bag_of(found)) == without_flush(bag_of(expected)), name


OVER_VIEWS = {
    "plain": """
        SELECT v.id AS v_id, c.id AS c_id FROM (SELECT k, id FROM s0 WHERE id % 3 <> 1) [RANGE 6 SECONDS] v
        LEFT JOIN s2 [RANGE 10 SECONDS] c ON v.k = c.k""",
    "computed": """
        WITH v AS (SELECT a.s, a.id AS a_id, b.id AS b_id FROM s0 [RANGE 10 SECONDS] a
          LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k)
        SELECT c.id, v.a_id, v.b_id FROM s2 [RANGE 10 SECONDS] c FULL JOIN v [RANGE 4 SECONDS] ON lower(v.s) = c.s""",
    "lacking": """
        WITH v AS (SELECT k, m, id FROM s0 UNION ALL SELECT k, m, id FROM s1)
        SELECT v.id FROM v [RANGE 10 SECONDS] WHERE v.m > 1
          AND NOT EXISTS (SELECT 1 FROM s2 [RANGE 2 SECONDS] c WHERE c.k = v.k)""",
    "groups": """
        SELECT v.k, count(*) AS n, count(v.b_id) AS found, window_start AS w
        FROM (SELECT a.k, b.id AS b_id FROM s0 [RANGE 10 SECONDS] a LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k) v
        GROUP BY v.k, TUMBLE(10 SECONDS)""",
    "windows": """
        SELECT a.k, count(*) AS n, count(b.id) AS found, window_start AS w FROM s0 [RANGE 10 SECONDS] a
        LEFT JOIN s1 [RANGE 5 SECONDS] b ON a.k = b.k GROUP BY a.k, HOP(10 SECONDS, 5 SECONDS)""",
}


def test_at_the_end_of_time_all_is_decided_in_views_and_over_views_too(spark: Any, tmp_path: Path) -> None:
    random = Random("outer joins of views on Spark")
    drawn = {name: draw_rows(random, 3, 60) for name in STREAMS}
    tables = {name: table.filter(pc.less(table.column("id"), FIRST_FLUSH_ID)) for name, table in drawn.items()}
    queries = QUERIES | OVER_VIEWS
    write(tmp_path, tables, range(4), 4)
    asked = topology(tmp_path, dict.fromkeys(STREAMS, "n0"), "n0", queries)
    wm.start(asked, spark=spark, once=True, drain=True, checkpoint=tmp_path / "checkpoint").awaitTermination()
    for name, sql in queries.items():
        found = ds.dataset(tmp_path / "out" / name, format="parquet").to_table()
        outputs = parse_script(name, sql, COLUMNS, event_times=TIMES, tables={"t0": AsOf()})
        expected = answer_outputs(outputs, {**tables, "t0": LOOKUP}, TIMES)[name]
        assert expected.num_rows > 3
        assert bag_of(found) == bag_of(expected), name


def test_a_restart_with_another_plan_goes_over_to_it(spark: Any, tmp_path: Path) -> None:
    random = Random("outer joins and another planner")
    tables = {name: draw_rows(random, 3, 60) for name in STREAMS}
    homes = {"s0": "n0", "s1": "n1", "s2": "n2"}
    exists = "FROM s0 [RANGE 10 SECONDS] a WHERE EXISTS (SELECT 1 FROM s1 [RANGE 5 SECONDS] b WHERE b.k = a.k)"
    queries = {"left": QUERIES["left"], "exists": f"SELECT a.id AS a_id {exists}"}
    steps = tuple(
        wm.HeadSteps(head, tuple(wm.PlanStep(other, method) for other in "ab" if other != head))
        for head, method in (("a", "SP-D"), ("b", "SM-S1"))
    )
    for numbers, planned in ((range(2), {}), (range(2, 3), {"plan": steps}), (range(3, 4), {"plan": steps})):
        write(tmp_path, tables, numbers, 4)
        asked = topology(tmp_path, homes, "n0", queries, **planned)
        run = wm.start(asked, spark=spark, once=True, checkpoint=tmp_path / "checkpoint")
        run.awaitTermination()
    assert {job.versions.deployment.revision for job in jobs(run)} == {2}
    for name, sql in queries.items():
        found = ds.dataset(tmp_path / "out" / name, format="parquet").to_table()
        expected = answer(parsed(sql), {**tables, "t0": LOOKUP}, TIMES)
        assert expected.num_rows > 3
        assert without_flush(bag_of(found)) == without_flush(bag_of(expected)), name
