"""Real recordings, cut into micro-batches as they came, against the oracle; skipped where they are absent."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from scenes import write_batches

import watersmeet as wm
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.testing import bag, split

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
BATCHES = 5
WINDOW_US = 30_000_000  # of outer joins

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no recordings in {DATA}")


def check(spark: Any, tmp: Path, tables: dict[str, pa.Table], schema: str, sql: str) -> int:
    """Run a query over the tables in micro-batches and compare with the oracle; how many answers there are."""
    streams = []
    for name, table in tables.items():
        edges = [table.num_rows * number // BATCHES for number in range(1, BATCHES)]
        write_batches(tmp / name, split(table, edges))
        source = wm.Source("parquet", str(tmp / name), {"maxFilesPerTrigger": "1"})
        streams.append(wm.Stream(name, event_time="ts", schema=schema, source=source))
    sink = wm.Sink("parquet", str(tmp / "out"))
    topology = wm.Topology(tuple(streams), (wm.Query("q", sql, sink=sink),))
    handle = wm.start(topology, "q", spark=spark, checkpoint=tmp / "checkpoint", once=True)
    handle.awaitTermination()
    assert handle.usage().rows_in == sum(table.num_rows for table in tables.values())
    assert handle.micro_batches == BATCHES and handle.usage().late == 0
    parsed = parse_query(sql, topology.columns, event_times=topology.event_times)
    ended_us = min(pc.max(table.column("ts")).cast(pa.timestamp("us")).value for table in tables.values())
    watermark_us = None if parsed.grouping is None else ended_us
    expected = answer(parsed, tables, dict.fromkeys(tables, "ts"), watermark_us=watermark_us)
    if parsed.outer is not None:  # a row that lacks a partner is answered when its window has ended
        waits_us = pc.add(expected.column("ts").cast(pa.timestamp("us")).cast(pa.int64()), WINDOW_US)
        waits = pc.and_(pc.is_null(expected.column("other")), pc.greater_equal(waits_us, ended_us))
        expected = expected.filter(pc.invert(waits))
    got = ds.dataset(tmp / "out", format="parquet").to_table()
    assert got.num_rows == expected.num_rows
    assert bag(got) == bag(expected)
    return len(got)


def test_temperature_humidity_and_light_of_a_mote(spark: Any, tmp_path: Path) -> None:
    # About five hours; the readings of a mote share their timestamp, some are missing, some are glitches.
    names = ("temperature", "humidity", "light")
    tables = {n: pq.read_table(DATA / "intel_lab" / f"{n}.parquet").slice(100_000, 20_000) for n in names}
    schema = "ts timestamp_ntz, mote short, epoch int, zone byte, x float, y float, value float"
    sql = """SELECT t.mote, t.ts, h.epoch AS h_epoch, l.epoch AS l_epoch, t.value AS t, h.value AS h, l.value AS l
        FROM temperature [RANGE 30 SECONDS] AS t, humidity [RANGE 30 SECONDS] AS h, light [RANGE 30 SECONDS] AS l
        WHERE t.mote = h.mote AND h.mote = l.mote"""
    assert check(spark, tmp_path, tables, schema, sql) > 20_000


def test_temperatures_and_the_light_that_is_missing(spark: Any, tmp_path: Path) -> None:
    # Of every fourth mote and of one minute in eight the light is gone, beside what is missing in the recording.
    names = ("temperature", "light")
    tables = {n: pq.read_table(DATA / "intel_lab" / f"{n}.parquet").slice(100_000, 4_000) for n in names}
    light = tables["light"]
    minutes = pc.minute(light.column("ts"))
    is_gone = pc.or_(pc.equal(pc.bit_wise_and(light.column("mote"), 3), 1), pc.equal(pc.bit_wise_and(minutes, 7), 5))
    tables["light"] = light.filter(pc.invert(is_gone))
    schema = "ts timestamp_ntz, mote short, epoch int, zone byte, x float, y float, value float"
    sql = """SELECT t.mote, t.ts, t.epoch, t.value AS temperature, l.epoch AS other, l.value AS light
        FROM temperature [RANGE 30 SECONDS] AS t LEFT JOIN light [RANGE 30 SECONDS] AS l ON t.mote = l.mote"""
    assert check(spark, tmp_path, tables, schema, sql) > 4_000
    got = ds.dataset(tmp_path / "out", format="parquet").to_table()
    assert 500 < got.column("other").null_count < 3_000


def test_the_skewed_logs_of_an_exercise(spark: Any, tmp_path: Path) -> None:
    # One host is behind most of the weird connections, and its window is most of every window.
    names = ("dns", "ssl", "weird")
    columns = ["ts", "uid", "orig_h", "orig_p", "resp_h", "resp_p"]
    tables = {n: pq.read_table(DATA / "zeek_wrccdc" / f"{n}.parquet", columns=columns) for n in names}
    schema = "ts timestamp_ntz, uid string, orig_h string, orig_p int, resp_h string, resp_p int"
    window = "[RANGE 50 MILLISECONDS]"
    sql = f"""SELECT d.uid AS d, s.uid AS s, w.uid AS w, w.resp_p
        FROM dns {window} AS d, ssl {window} AS s, weird {window} AS w
        WHERE d.orig_h = s.orig_h AND s.orig_h = w.orig_h"""
    assert check(spark, tmp_path, tables, schema, sql) > 100_000


LOGS = "ts timestamp_ntz, uid string, orig_h string, orig_p int, resp_h string, resp_p int"
TALKERS = "FROM dns [RANGE 1 SECOND] AS d, ssl [RANGE 1 SECOND] AS s WHERE d.orig_h = s.orig_h"


@pytest.mark.parametrize(
    "sql",
    [
        f"""SELECT d.orig_h, count(*) AS n, count(DISTINCT s.resp_h) AS hosts, max(s.resp_p) AS p, window_start
        {TALKERS} GROUP BY d.orig_h, TUMBLE(1 MINUTE) ORDER BY n DESC LIMIT 5""",
        f"SELECT d.orig_h, count(*) AS n, min(s.resp_p) AS p {TALKERS} GROUP BY d.orig_h HAVING n > 20 EMIT CHANGES",
    ],
    ids=["per minute", "changes"],
)
def test_top_talkers_of_joined_logs(spark: Any, tmp_path: Path, sql: str) -> None:
    columns = ["ts", "uid", "orig_h", "orig_p", "resp_h", "resp_p"]
    logs = ("dns", "ssl")
    tables = {n: pq.read_table(DATA / "zeek_wrccdc" / f"{n}.parquet", columns=columns).slice(0, 15_000) for n in logs}
    assert check(spark, tmp_path, tables, LOGS, sql) > 3
