"""EMIT CHANGES on Spark: the rows of the reference semantics with Spark's types, also after a restart and in wm.sql."""

import os
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query

STAMP = pa.timestamp("us", "UTC")
SECOND_US = 1_000_000
SCHEMA = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("price", pa.decimal128(10, 2)), ("x", pa.float64()), ("ts", STAMP)]
)
DDL = "k string, v long, price decimal(10,2), x double, ts timestamp"
COLUMNS = {"a": SCHEMA.names, "b": SCHEMA.names}
TIMES = {"a": "ts", "b": "ts"}
SQL = {
    "sums": "SELECT a.k, count(*) AS n, sum(b.v) AS s, sum(b.price) AS p FROM a [RANGE 5 SECONDS], b [RANGE 3 SECONDS] "
    "WHERE a.k = b.k GROUP BY a.k HAVING count(b.v) > 1 EMIT CHANGES",
    "others": "SELECT deleted, upper(k) AS key, max(x) - min(x) AS spread, count(DISTINCT v) AS d, sum(x) AS s "
    "FROM a [RANGE 4 SECONDS] GROUP BY upper(k) EMIT CHANGES",
    "totals": "SELECT count(*) AS n, max(price) AS most FROM a [UNBOUNDED] EMIT CHANGES",
    "counted": "SELECT k, count(*) AS n, sum(price) AS p FROM a [ROWS 7] GROUP BY k EMIT CHANGES",
    "counted_join": "SELECT a.k, count(*) AS n, max(b.v) AS m FROM a [ROWS 5], b [RANGE 3 SECONDS] WHERE a.k = b.k "
    "GROUP BY a.k EMIT CHANGES",
}


def rows_of(seed: int, count: int = 40) -> pa.Table:
    chance = Random(seed)
    seconds = sorted(chance.randrange(30) for _ in range(count))
    rows = [
        {
            "k": chance.choice(["x", "y", None]),
            "v": chance.choice([None, 1, 2, 3]),
            "price": Decimal(chance.randrange(1_000)).scaleb(-2),
            "x": float(chance.choice([0.0, -0.0, 1.0, 1e300, -1e300])),
            "ts": second * SECOND_US,
        }
        for second in seconds
    ]
    rows.append({**rows[-1], "k": "end", "ts": 100 * SECOND_US})
    return pa.Table.from_pylist(rows, SCHEMA)


def write(directory: Path, number: int, rows: pa.Table) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{number}.parquet"
    pq.write_table(rows, path)
    os.utime(path, (1_700_000_000 + 10 * number,) * 2)


def test_changes_are_those_of_the_reference_also_after_a_restart(spark: Any, tmp_path: Path) -> None:
    tables = {"a": rows_of(1), "b": rows_of(2)}
    streams = tuple(
        wm.Stream(name, "ts", DDL, wm.Source("parquet", str(tmp_path / name), {"maxFilesPerTrigger": "1"}))
        for name in tables
    )
    queries = tuple(wm.Query(n, sql, sink=wm.Sink("parquet", str(tmp_path / "out" / n))) for n, sql in SQL.items())
    for part in range(2):
        for name, table in tables.items():
            for number in range(2):
                first = (2 * part + number) * 10
                write(tmp_path / name, 2 * part + number, table.slice(first, 100 if first == 30 else 10))
        wm.start(
            wm.Topology(streams, queries), spark=spark, once=True, checkpoint=tmp_path / "checkpoint"
        ).awaitTermination()
    for name, sql in SQL.items():
        query = parse_query(sql, COLUMNS, event_times=TIMES)
        wanted = answer(query, tables, TIMES, watermark_us=100 * SECOND_US)
        found = ds.dataset(tmp_path / "out" / name, format="parquet").to_table()
        assert found.column_names == wanted.column_names
        assert bag_of(found) == bag_of(wanted.cast(found.schema)), name
        assert wanted.num_rows > 10
    types = spark.read.parquet(str(tmp_path / "out" / "sums")).dtypes
    assert dict(types) | {"k": "string"} == {
        **{"k": "string", "n": "bigint", "s": "bigint", "p": "decimal(20,2)"},
        **{"changed_at": "timestamp", "deleted": "boolean"},
    }


def test_a_table_is_kept_up_to_date_by_its_changes(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "a", 0, rows_of(3))
    frame = spark.readStream.schema(DDL).parquet(str(tmp_path / "a")).withWatermark("ts", "0 seconds")
    sql = "SELECT k, count(*) AS n, sum(v) AS s FROM a [RANGE 90 SECONDS] GROUP BY k EMIT CHANGES"
    joined = wm.sql(spark, sql, a=frame)
    assert joined.columns == ["k", "n", "s", "changed_at", "deleted"]
    with pytest.raises(wm.InputError, match="write EMIT CHANGES at the end"):
        wm.sql(spark, "SELECT a.k FROM a", a=frame).writeStream.outputMode("update")
    table: dict[Any, tuple[Any, ...]] = {}

    def merge(rows: Any, batch: int) -> None:
        for row in rows.orderBy("changed_at").collect():
            table.pop(row["k"], None)
            if not row["deleted"]:
                table[row["k"]] = (row["n"], row["s"])

    run = joined.writeStream.outputMode("update").foreachBatch(merge).trigger(availableNow=True)
    run.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    # As of just before second 100: rows of the last 90 seconds.
    wanted = spark.read.parquet(str(tmp_path / "a")).where("ts >= timestamp_seconds(10) AND k <> 'end' OR k IS NULL")
    wanted = wanted.where("ts >= timestamp_seconds(10)").groupBy("k").agg({"*": "count", "v": "sum"})
    assert table == {row["k"]: (row["count(1)"], row["sum(v)"]) for row in wanted.collect()}
