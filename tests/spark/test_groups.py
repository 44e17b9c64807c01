"""Groups on Spark: types as Spark's own aggregates have them, state that outlives a restart, sums beyond their type."""

import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.cli.main import run_command
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.testing import bag

STAMP = pa.timestamp("us", "UTC")
SECOND_US = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("price", pa.decimal128(10, 2)), ("ts", STAMP)])
SQL = """
SELECT k, count(*) AS n, sum(v) AS total, avg(price) AS mean_price, sum(price) AS prices, max(price) AS most,
       stddev_samp(v) AS spread, bool_or(v > 4) AS some_high, every(v < 9) AS all_low, window_start, window_end
FROM a GROUP BY k, TUMBLE(10 SECONDS)
"""


def write(directory: Path, number: int, rows: list[tuple[Any, ...]]) -> None:
    """One micro-batch of rows (k, v, price, second)."""
    directory.mkdir(parents=True, exist_ok=True)
    columns = zip(*[(k, v, Decimal(price), second * SECOND_US) for k, v, price, second in rows], strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)]
    path = directory / f"{number}.parquet"
    pq.write_table(pa.table(arrays, schema=SCHEMA), path)
    os.utime(path, (1_700_000_000 + 10 * number,) * 2)


def topology(directory: Path, sql: str = SQL) -> wm.Topology:
    source = wm.Source("parquet", str(directory / "a"), {"maxFilesPerTrigger": "1"})
    stream = wm.Stream("a", "ts", "k string, v long, price decimal(10,2), ts timestamp", source, watermark="0 seconds")
    return wm.Topology((stream,), (wm.Query("q", sql, sink=wm.Sink("parquet", str(directory / "out"))),))


def run(spark: Any, directory: Path, sql: str = SQL) -> None:
    handle = wm.start(topology(directory, sql), spark=spark, once=True, checkpoint=directory / "checkpoint")
    handle.awaitTermination()


def test_groups_outlive_a_restart_and_have_the_types_of_spark(spark: Any, tmp_path: Path) -> None:
    batches: list[list[tuple[Any, ...]]] = [
        [("x", 1, "1.10", 1), ("y", 2, "2.20", 3), ("x", None, "0.01", 9)],
        [("x", 5, "7.77", 4), (None, 3, "3.33", 12)],
        [("x", 2, "0.05", 19), ("y", 9, "9.99", 21)],
        [("z", 0, "0.00", 40)],
    ]
    write(tmp_path / "a", 0, batches[0])
    run(spark, tmp_path)
    for number, rows in enumerate(batches[1:], 1):
        write(tmp_path / "a", number, rows)
    run(spark, tmp_path)
    found = ds.dataset(tmp_path / "out", format="parquet").to_table()
    frame = spark.read.parquet(str(tmp_path / "a"))
    frame.createOrReplaceTempView("rows")
    # ('x', 5) of second 4 is late: the watermark was 9 seconds when it came.
    expected = spark.sql("""
        SELECT k, count(*) AS n, sum(v) AS total, avg(price) AS mean_price, sum(price) AS prices, max(price) AS most,
               stddev_samp(v) AS spread, bool_or(v > 4) AS some_high, every(v < 9) AS all_low,
               window.start AS window_start, window.end AS window_end
        FROM (SELECT * FROM rows WHERE price <> 7.77) GROUP BY k, window(ts, '10 seconds')
        HAVING window.end <= TIMESTAMP '1970-01-01 00:00:40Z'
    """)
    assert [(field.name, field.dataType) for field in expected.schema.fields] == [
        (field.name, field.dataType) for field in spark.read.parquet(str(tmp_path / "out")).schema.fields
    ]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(map(repr, rows)) == sorted(map(repr, expected.collect()))
    assert found.num_rows == len(rows) == 5


def test_a_sum_beyond_its_type_is_one_sentence(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "a", 0, [("x", 2**63 - 1, "1", 1), ("x", 1, "1", 2)])
    write(tmp_path / "a", 1, [("x", 1, "1", 60)])
    with pytest.raises(wm.WatersmeetError, match=r"query 'q' failed: sum\(a\.v\) of a group is beyond bigint; cast"):
        run(spark, tmp_path)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT sum(k) AS s FROM a GROUP BY TUMBLE(1 DAY)", "values of type string cannot be aggregated so"),
        ("SELECT array(v) AS x FROM a GROUP BY array(v), TUMBLE(1 DAY)", "GROUP BY cannot compare array"),
        ("SELECT count(*) AS n FROM a GROUP BY TUMBLE(1 DAY) HAVING max(k)", "a condition must be boolean"),
    ],
)
def test_types_that_do_not_fit(spark: Any, tmp_path: Path, sql: str, message: str) -> None:
    write(tmp_path / "a", 0, [("x", 1, "1", 1)])
    with pytest.raises(wm.InputError, match=message):
        run(spark, tmp_path, sql)


def test_sketches_have_the_types_and_values_of_spark(spark: Any, tmp_path: Path) -> None:
    rows = [("x", v, str(v), second) for second, v in enumerate([3, 1, 2, 1, 1, 2, None, 1])]
    write(tmp_path / "a", 0, [(k, v, "7.50" if v is None else p, s) for k, v, p, s in rows])
    write(tmp_path / "a", 1, [("y", None, "0.00", 9), ("z", 1, "1", 60)])
    values = (
        "approx_count_distinct(v) AS d, approx_percentile(v, 0.5) AS median, "
        "percentile_approx(price, array(0.1, 1.0), 50) AS p, approx_top_k(v, 2) AS t, "
        "approx_top_k(k) AS keys, approx_percentile(ts, 0.5) AS middle, "
    )
    ours = "max_k(v, 3) AS most, min_k(price, 2) AS least"
    lists = (
        "slice(sort_array(collect_list(v), false), 1, 3) AS most, slice(sort_array(collect_list(price)), 1, 2) AS least"
    )
    run(spark, tmp_path, f"SELECT k, {values + ours} FROM a GROUP BY k, TUMBLE(10 SECONDS)")
    spark.read.parquet(str(tmp_path / "a")).createOrReplaceTempView("sketched")
    expected = spark.sql(
        f"SELECT k, {values + lists} FROM sketched WHERE k <> 'z' GROUP BY k, window(ts, '10 seconds')"
    )
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.dtypes == expected.dtypes
    assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))
    with pytest.raises(wm.InputError, match=r"ORDER BY cannot compare \(group\.value0\) of type array"):
        run(spark, tmp_path / "2", "SELECT approx_top_k(v) AS t FROM a GROUP BY TUMBLE(1 DAY) ORDER BY t LIMIT 1")


def test_groups_below_a_join_give_the_same_answers_and_explain_says_what_they_save(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At two sites, from a file, chosen by the planner; a restart without statistics goes on with it."""
    rows = [(f"k{number % 3}", number % 10, "1.50", number % 40) for number in range(400)]
    for name in "ab":
        for number in range(2):
            part = sorted(rows[number::2], key=lambda row: row[3])
            write(tmp_path / name, number, [(k, v, p, second + 40 * number) for k, v, p, second in part])
    schema = "k string, v long, price decimal(10,2), ts timestamp"
    stats = "{rate: 10, columns: {k: {distinct: 3}, v: {distinct: 10}}}"
    sql = (
        "SELECT a.v, count(*) AS n, sum(b.v) AS s, avg(a.v) AS mean, max(b.price) AS most, window_start "
        "FROM a [TUMBLE 5 SECONDS], b [TUMBLE 5 SECONDS] WHERE a.k = b.k GROUP BY a.v, TUMBLE(20 SECONDS)"
    )
    text = f"""\
sites: [x, y]
streams:
  a: {{site: x, schema: "{schema}", event_time: ts, source: {{format: parquet, path: a}}, stats: {stats}}}
  b: {{site: y, schema: "{schema}", event_time: ts, source: {{format: parquet, path: b}}, stats: {stats}}}
queries:
  q: {{site: x, sql: "{sql}", sink: {{format: parquet, path: out}}}}
"""
    path = tmp_path / "topology.yaml"
    path.write_text(text, encoding="utf-8")
    handle = wm.start(wm.load_topology(path), spark=spark, checkpoint=tmp_path / "state", once=True, drain=True)
    handle.awaitTermination()
    assert {"q", "q_a_early", "q_b_early"} == set(handle.plans)
    tables = {name: ds.dataset(tmp_path / name, format="parquet").to_table() for name in "ab"}
    expected = answer(parse_query(sql, dict.fromkeys("ab", SCHEMA.names)), tables, dict.fromkeys("ab", "ts"))
    found = ds.dataset(tmp_path / "out", format="parquet").to_table()
    assert bag(found) == bag(expected) and found.num_rows == 20
    assert run_command(["explain", str(path)]) == 0
    assert re.search(
        r"query q: groups of equal rows in place of rows \(group_early\) ship [\d,.]+ records/s instead of [\d,.]+ "
        r"rows/s, [\d,]+ bytes/s instead of [\d,]+, so it is done\n",
        capsys.readouterr().out,
    )
    path.write_text(text.replace(f", stats: {stats}", ""), encoding="utf-8")
    handle = wm.start(wm.load_topology(path), spark=spark, checkpoint=tmp_path / "state", once=True, drain=True)
    handle.awaitTermination()
    assert {"q", "q_a_early", "q_b_early"} == set(handle.plans)
