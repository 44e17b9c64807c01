"""Tables beside streams on Spark: read once, kept in the checkpoint, shipped once to each site that needs them."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession
from scenes import (
    DDL,
    SCHEMA,
    Bag,
    by_arrow,
    latest_us,
    ledger_of,
    make_batches,
    sort_out,
    wait_for,
    write_batch,
    write_batches,
)

import watersmeet as wm
from watersmeet.query.oracle import answer, answer_outputs
from watersmeet.query.sql import parse_query, parse_script
from watersmeet.query.windows import END_US, AsOf
from watersmeet.spark.ingest.tables import TableReader
from watersmeet.testing import bag

USERS = pa.table(
    {
        "k": pa.array([*range(0, 30, 2), 4, None], pa.int64()),
        "s": [f"s{number}" for number in range(17)],
        "region": ["north", "south", None, "west"] * 4 + ["east"],
    }
)
REGIONS = pa.table({"region": ["north", "south", "east", "nowhere"], "rank": pa.array([1, 2, 3, 4], pa.int32())})
QUERIES = {
    "plain": "SELECT a.id, u.region FROM a, users u WHERE a.k = u.k",
    "both": """SELECT a.id, b.id AS other, u.s, r.rank FROM a [RANGE 4 SECONDS], b [RANGE 2 SECONDS], users u, regions r
               WHERE a.k = u.k AND b.k = a.k AND upper(u.region) = upper(r.region) AND a.v >= r.rank""",
    "twice": "SELECT a.id, x.s, y.region FROM a, users x, users y WHERE a.k = x.k AND a.s = y.s AND x.s <> y.s",
    "counted": "SELECT r.rank, count(*) AS n FROM a, users u, regions r "
    "WHERE a.k = u.k AND u.region = r.region GROUP BY r.rank, TUMBLE(5 SECONDS)",
    "united": """WITH named AS (SELECT a.k, a.id, u.region FROM a, users u WHERE a.k = u.k)
        SELECT n.id, b.id AS other, r.rank FROM named [RANGE 4 SECONDS] n, b [RANGE 2 SECONDS], regions r
        WHERE n.k = b.k AND n.region = r.region
        UNION ALL SELECT b.id, 0, 0 FROM b, users x WHERE b.s = x.s""",
}
COLUMNS = {**dict.fromkeys("ab", SCHEMA.names), "users": USERS.column_names, "regions": REGIONS.column_names}
TABLES = {"users": AsOf(), "regions": AsOf()}


class Place:
    """Two streams and two tables as a user has them."""

    def __init__(self, directory: Path, homes: dict[str, str] | None = None, site: str = "here") -> None:
        self.directory, self.homes, self.site = directory, homes or {}, site
        self.batches = {name: make_batches(seed, first=0) for seed, name in enumerate("ab")}
        for name, batches in self.batches.items():
            write_batches(directory / "data" / name, batches)
        pq.write_table(USERS, directory / "users.parquet")
        pacsv.write_csv(REGIONS, directory / "regions.csv")

    def topology(self, *queries: str, **users: Any) -> wm.Topology:
        home = {name: self.homes.get(name, self.site) for name in (*"ab", "users", "regions")}
        data = {
            "sites": sorted({*home.values(), self.site}),
            "streams": {
                name: {
                    "site": home[name],
                    "schema": DDL,
                    "event_time": "ts",
                    "watermark": "1 second",
                    "source": {"format": "parquet", "path": f"data/{name}", "options": {"maxFilesPerTrigger": 1}},
                }
                for name in "ab"
            },
            "tables": {
                "users": {"site": home["users"], "source": {"format": "parquet", "path": "users.parquet"}, **users},
                "regions": {
                    "site": home["regions"],
                    "schema": "region string, rank int",
                    "source": {"format": "csv", "path": "regions.csv", "options": {"header": "true"}},
                },
            },
            "queries": {
                name: {"sql": QUERIES[name], "site": self.site, "sink": {"format": "parquet", "path": f"out/{name}"}}
                for name in queries
            },
            "link_transport": {"path": "links"},
            "durability": "process",
        }
        path = self.directory / "topology.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        return wm.load_topology(path)

    def run(self, spark: SparkSession, *queries: str, **settings: Any) -> wm.StreamingRun:
        handle = wm.start(
            self.topology(*queries), spark=spark, once=True, checkpoint=self.directory / "checkpoint", **settings
        )
        handle.awaitTermination()
        return handle

    def expected(self, query: str) -> Bag:
        outputs = parse_script(query, QUERIES[query], COLUMNS, tables=TABLES)
        streams = {name: sort_out(batches)[0] for name, batches in self.batches.items()}
        tables = {**streams, "users": USERS, "regions": REGIONS}
        marks = {name: latest_us(batches) - 1_000_000 for name, batches in self.batches.items()}
        return bag(answer_outputs(outputs, tables, dict.fromkeys("ab", "ts"), watermarks_us=marks)[query])

    def check(self, *queries: str) -> None:
        for query in queries:
            expected = self.expected(query)
            assert expected.total() > 5, "an answer that says nothing"
            assert by_arrow(self.directory / "out" / query) == expected, query


def test_tables_at_one_site_are_read_once_and_joined_as_the_oracle_says(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(spark, *QUERIES)
    place.check(*QUERIES)
    ledger = ledger_of(tmp_path / "checkpoint" / "here")
    assert ledger.streams["users"].rows == USERS.num_rows and ledger.streams["users"].declared == END_US
    assert ledger.streams["users"].late == 0 and "users" not in ledger.null_keys
    kept = {name: sum(one.rows for one in some) for name, some in ledger.relations.items()}
    assert not any(name.startswith("a/") and rows > 100 for name, rows in kept.items()), kept


def test_a_restart_has_the_rows_that_were_read_at_first(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    later = place.batches["a"].pop()
    (tmp_path / "data" / "a" / "00002.parquet").rename(tmp_path / "later.parquet")
    place.run(spark, "plain", "both")
    other = USERS.set_column(2, "region", pa.array(["changed"] * 17)).append_column("more", pa.array(range(17)))
    pq.write_table(other, tmp_path / "users.parquet")
    (tmp_path / "later.parquet").rename(tmp_path / "data" / "a" / "00002.parquet")
    place.batches["a"].append(later)
    place.run(spark, "plain", "both")
    place.check("plain", "both")


def test_a_table_goes_once_to_each_site_that_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path, {"a": "ams", "b": "nyc", "users": "fra", "regions": "ams"}, "ams")
    place.run(spark, "plain", "both", "counted", "united")
    place.check("plain", "both", "counted", "united")
    link = ledger_of(tmp_path / "checkpoint" / "fra").links["ams"]
    assert link.traffic["users"].tuples <= USERS.num_rows and link.traffic["users"].batches == 1


def test_a_kill_between_reading_a_table_and_the_commit_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, read = Place(tmp_path), TableReader.read

    def die(self: TableReader, *arguments: Any) -> Any:
        read(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TableReader, "read", die)
        with pytest.raises(KeyboardInterrupt):
            place.run(spark, "plain")
    assert "users" not in ledger_of(tmp_path / "checkpoint" / "here").streams
    place.run(spark, "plain")
    place.check("plain")


def test_an_empty_table_answers_nothing(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    pq.write_table(USERS.slice(0, 0), tmp_path / "users.parquet")
    place.run(spark, "plain")
    assert not by_arrow(tmp_path / "out" / "plain")
    assert ledger_of(tmp_path / "checkpoint" / "here").streams["users"].declared == END_US


def test_what_is_wrong_with_a_table_is_said(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)

    def start(**users: Any) -> None:
        topology = place.topology("plain", **users)
        wm.start(topology, spark=spark, once=True, checkpoint=tmp_path / "checkpoint").awaitTermination()

    with pytest.raises(wm.InputError, match=r"table 'users': source path .*nowhere does not exist; make it or "):
        start(source={"format": "parquet", "path": "nowhere"}, schema="k long, region string")
    with pytest.raises(wm.InputError, match=r"table 'users': source path .* does not exist"):
        start(source={"format": "parquet", "path": "nowhere"})
    with pytest.raises(wm.InputError, match="'u' has no column 'region'"):
        start(schema="k long")
    with pytest.raises(wm.InputError, match="table 'users': a generator makes streams"):
        start(source={"format": "generator"}, schema="k long, region string")


def test_a_refreshed_table_joins_the_version_in_force_at_the_event_time(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of streams are stamped between the versions that the run has read, and come in files after them."""
    place = Place(tmp_path)
    for path in (tmp_path / "data" / "a").glob("*.parquet"):
        path.unlink()
    topology = place.topology("plain", refresh="1 second")
    warnings: list[str] = []
    handle = wm.start(topology, spark=spark, checkpoint=tmp_path / "checkpoint", warn=warnings.append)
    try:
        first_us = int(time.time() * 1e6)
        pq.write_table(USERS.set_column(2, "region", pa.array(["changed"] * 17)), tmp_path / "users.new")
        (tmp_path / "users.new").rename(tmp_path / "users.parquet")
        changed_us = int(time.time() * 1e6)

        def has_read_it() -> bool:
            ticks = ledger_of(tmp_path / "checkpoint" / "here").clocks.get("clock of users", ())
            return any(one.max_ts > changed_us for one in ticks)

        wait_for(has_read_it, "a version with the new rows", handle.exception)
        (tmp_path / "users.parquet").rename(tmp_path / "users.away")
        wait_for(lambda: any("stays in force" in text for text in warnings), "a warning", handle.exception)
        (tmp_path / "users.away").rename(tmp_path / "users.parquet")
        last_us = int(time.time() * 1e6)
        rows = [(4, number, ts) for number, ts in enumerate((0, first_us - 1, last_us))]
        table = pa.table(
            {
                "k": pa.array([k for k, _, _ in rows], pa.int64()),
                "m": pa.array([0] * 3, pa.int32()),
                "s": ["x"] * 3,
                "id": pa.array([number for _, number, _ in rows], pa.int64()),
                "v": [0.0] * 3,
                "ts": pa.array([ts for _, _, ts in rows], pa.timestamp("us", "UTC")),
            },
            schema=SCHEMA,
        )
        write_batch(table, tmp_path / "data" / "a" / "0.parquet", 0)
        wait_for(lambda: by_arrow(tmp_path / "out" / "plain").total() >= 6, "all answers", handle.exception)
    finally:
        handle.stop()
    regions = USERS.filter(pc.equal(USERS.column("k"), 4)).column("region").to_pylist()
    expected = {(number, region) for number in (0, 1) for region in regions} | {(2, "changed")}
    assert set(by_arrow(tmp_path / "out" / "plain")) == expected


def test_batch_frames_of_wm_sql_are_tables(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    a = spark.readStream.schema(DDL).parquet(str(tmp_path / "data" / "a")).withWatermark("ts", "1 second")
    frames = {"a": a, "users": spark.read.parquet(str(tmp_path / "users.parquet"))}
    joined = wm.sql(spark, QUERIES["plain"], **frames)
    assert "table u: users" in joined.plan
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out" / "plain")).awaitTermination()
    streams = {name: pa.concat_tables(batches) for name, batches in place.batches.items()}
    streams["a"] = streams["a"].filter(streams["a"].column("ts").is_valid())
    parsed = parse_query(QUERIES["plain"], COLUMNS, tables=TABLES)
    assert by_arrow(tmp_path / "out" / "plain") == bag(answer(parsed, {**streams, "users": USERS}, {"a": "ts"}))
    with pytest.raises(wm.InputError, match=r"'users' is a table, which has no window; leave out \[ROWS 1\]"):
        wm.sql(spark, "SELECT a.id FROM a [ROWS 1], users [ROWS 1] u WHERE a.k = u.k", **frames)


@pytest.mark.parametrize("refresh", [None, "1 hour"])
def test_plans_of_queries_over_tables_change(spark: SparkSession, tmp_path: Path, refresh: str | None) -> None:
    place = Place(tmp_path, {"a": "ams", "b": "nyc", "users": "fra", "regions": "ams"}, "ams")
    later = {name: batches.pop() for name, batches in place.batches.items()}
    for name in later:
        (tmp_path / "data" / name / "00002.parquet").rename(tmp_path / f"{name}.parquet")

    topology = place.topology("both", "united", **({"refresh": refresh} if refresh else {}))
    topology = replace(topology, queries=tuple(replace(query, assume_defaults=True) for query in topology.queries))
    run = wm.start(topology, spark=spark, checkpoint=tmp_path / "checkpoint", plans_change=True)
    try:
        wait_for(lambda: by_arrow(tmp_path / "out" / "both").total() > 0, "answers", run.exception)
        for name in run.plans:
            run.change_plan(name, planner="central")
        assert run.await_changes() and any(not one.refused for one in run.changes)
        for name, batch in later.items():
            (tmp_path / f"{name}.parquet").rename(tmp_path / "data" / name / "00002.parquet")
            place.batches[name].append(batch)
        for name in ("both", "united"):
            found = place.expected(name)
            wait_for(lambda: by_arrow(tmp_path / "out" / name) == found, "all answers", run.exception)  # noqa: B023
    finally:
        run.stop()
    place.check("both", "united")
