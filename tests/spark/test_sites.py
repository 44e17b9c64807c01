"""Sites on Spark, all in one session: every method against the law, what travels, and what stops and goes on again.

Answers are compared with DuckDB's over the rows that are neither late nor malformed. Several processes that die are
the matter of test_site_faults.py.
"""

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.plan.nodes import Method
from watersmeet.program.site.engine import Outgoing
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Rows
from watersmeet.sim.sites.rows import finish
from watersmeet.sim.sites.site import SimulatedSites
from watersmeet.spark import run as run_module
from watersmeet.spark.files import FileShelf
from watersmeet.spark.links.directory import DirectoryLinks, LinkDamaged
from watersmeet.spark.run import plan_query
from watersmeet.spark.site_job import SiteJob
from watersmeet.testing import bag

SECOND_US = 1_000_000
DELAY_US = SECOND_US
PATIENCE_S = 60  # on a machine that has other things to do
DDL = "k long, m int, s string, id long, v double, ts timestamp"
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("m", pa.int32()),
        ("s", pa.string()),
        ("id", pa.int64()),
        ("v", pa.float64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
Bag = Counter[tuple[Any, ...]]
WriteStream = Callable[[str, Sequence[pa.Table]], Path]


def make_batches(seed: int, batches: int = 3, rows: int = 70, first: int = 0, keys: int = 30) -> list[pa.Table]:
    """A stream of 10 rows a second: disorder inside the watermark, rows far too late, NULL keys, no times, and ties."""
    chance = np.random.default_rng(seed)
    count = batches * rows
    ts = (first + np.arange(count)) * (SECOND_US // 10) - chance.integers(0, 3, count) * (SECOND_US // 2)
    ts -= np.where(chance.random(count) < 0.02, 9 * SECOND_US, 0)
    table = pa.table(
        {
            "k": pa.array(chance.integers(0, keys, count), mask=chance.random(count) < 0.02),
            "m": pa.array(chance.integers(0, 6, count), pa.int32()),
            "s": pa.array([f"s{number}" for number in chance.integers(0, keys, count)]),
            "id": pa.array(first + np.arange(count)),
            "v": pa.array(chance.integers(0, 64, count) / 8),
            "ts": pa.array(ts, mask=chance.random(count) < 0.02).cast(pa.timestamp("us", "UTC")),
        },
        schema=SCHEMA,
    )
    return [table.slice(number * rows, rows) for number in range(batches)]


def sort_out(batches: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
    """The rows that take part, and those set aside with the reason: the rule, batch by batch."""
    taken, aside, latest = [], [], None
    for batch in batches:
        ts = batch.column("ts").cast(pa.int64())
        late = pc.less(ts, latest - DELAY_US) if latest is not None else pa.nulls(len(ts), pa.bool_())
        reason = pc.if_else(pc.is_null(ts), "malformed", pc.if_else(pc.fill_null(late, False), "late", None))
        taken.append(batch.filter(pc.is_null(reason)))
        aside.append(batch.append_column("_reason", reason).filter(pc.is_valid(reason)))
        latest = max(mark for mark in (latest, pc.max(ts).as_py()) if mark is not None)
    return pa.concat_tables(taken), pa.concat_tables(aside)


def read(path: Path) -> Bag:
    """What any reader finds in a sink."""
    return bag(ds.dataset(path, format="parquet").to_table()) if any(path.glob("*.parquet")) else Counter()


@dataclass
class Scene:
    """Streams at sites, one query over them, and what is true of its answers."""

    directory: Path
    sql: str
    homes: Mapping[str, str]
    site: str
    batches: dict[str, list[pa.Table]]
    way: tuple[str, bool] | None = None  # method and whether Bloom filters travel; None ships all to the query's site
    start: str | None = None
    late: Sequence[str] = ()  # streams whose late rows are kept
    max_pending: int = 256_000_000
    idle_timeout: str = "5 minutes"

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def links(self) -> Path:
        return self.directory / "links"

    @property
    def parcels(self) -> list[Path]:
        """What lies on the links, without the files by which a site wakes itself."""
        return [path for path in self.links.rglob("*.parcel") if path.parent.name != "own-bell"]

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.parsed.aliases

    @property
    def parsed(self) -> Any:
        return parse_query(self.sql, dict.fromkeys(self.homes, SCHEMA.names))

    @property
    def plan(self) -> tuple[wm.HeadSteps, ...] | None:
        """The same method everywhere; every head goes around the aliases, each next one tied to those before."""
        if self.way is None:
            return None
        method, bloom = self.way
        order = list(self.aliases)
        steps = {}
        for number, head in enumerate(order):
            # Around the circle from an inner alias, inwards from an outer one: neighbours share a key in every query.
            rest = order[number + 1 :] + order[:number][::-1]
            steps[head] = tuple(wm.PlanStep(alias, method, bloom=bloom) for alias in rest)
        return tuple(wm.HeadSteps(head, taken) for head, taken in steps.items())

    @property
    def topology(self) -> wm.Topology:
        streams = tuple(
            wm.Stream(
                name,
                event_time="ts",
                schema=DDL,
                watermark="1 second",
                site=home,
                source=wm.Source("parquet", str(self.directory / "data" / name), {"maxFilesPerTrigger": "1"}),
                late=wm.Sink("parquet", str(self.directory / f"late_{name}")) if name in self.late else None,
                idle_timeout=self.idle_timeout,
            )
            for name, home in self.homes.items()
        )
        query = wm.Query(
            "q", self.sql, sink=wm.Sink("parquet", str(self.out)), start=self.start, site=self.site, plan=self.plan
        )
        sites = tuple(wm.Site(name) for name in sorted({*self.homes.values(), self.site}))
        transport = wm.LinkTransport(path=str(self.links), max_pending_bytes=self.max_pending)
        return wm.Topology((*streams,), (query,), sites, str(self.directory), link_transport=transport)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def write(self, write_stream: WriteStream) -> "Scene":
        for name, batches in self.batches.items():
            write_stream(name, batches)
        return self

    def run(self, spark: Any, **settings: Any) -> wm.RunningSites:
        """Take all there is, at all sites."""
        settings = {"checkpoint": self.checkpoint} | settings
        handle = wm.start(self.topology, "q", spark=spark, once=True, **settings)
        assert isinstance(handle, wm.RunningSites)
        handle.awaitTermination()
        return handle

    def expected(self, heads_before_us: int | None = None) -> Bag:
        """The law over the rows that take part; of ROWS windows, as far as their streams are known to be complete."""
        query = self.parsed
        marks = [
            max(pc.max(batch.column("ts").cast(pa.int64())).as_py() for batch in self.batches[source.stream]) - DELAY_US
            for source in query.sources
            if isinstance(source.window, Rows)
        ]
        tables = {name: sort_out(batches)[0] for name, batches in self.batches.items()}
        start_us = wm.Query("q", self.sql, start=self.start).start_us
        if heads_before_us is None:
            heads_before_us = min(marks, default=None)
        table = answer(query, tables, dict.fromkeys(tables, "ts"), start_us=start_us, heads_before_us=heads_before_us)
        return bag(table)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str, int], int]:
    """The sizes of all parcel files as their readers find them, by sender, reader and number."""
    sizes: dict[tuple[str, str, int], int] = {}
    publish = DirectoryLinks.publish

    def publishing(links: DirectoryLinks, reader: str, outbox: Iterable[Outgoing]) -> None:
        publish(links, reader, outbox)
        for path in (links.root / reader / links.site).glob("[0-9]*.parcel"):
            size = path.stat().st_size
            assert sizes.setdefault((links.site, reader, int(path.stem)), size) == size, "a parcel has changed"

    monkeypatch.setattr(DirectoryLinks, "publish", publishing)
    return sizes


# Every method on every kind of query ----------------------------------------------------------------------------------

APART = {"a": "ams", "b": "fra", "c": "nyc"}
R, T, U = "[RANGE 3 SECONDS]", "[TUMBLE 4 SECONDS]", "[UNBOUNDED]"
IDS = "a.id AS a_id, b.id AS b_id, c.id AS c_id"
SAME_K = "WHERE a.k = b.k AND b.k = c.k"
SAME_S = "WHERE a.s = b.s AND b.s = c.s"
TUPLES, KEYS, FILTERS, SYNC, RESULTS, MARKS = (
    *("full tuples", "keys", "filters", "window sync", "results", "watermarks"),
)

CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "SP-S by text": (
        {"way": ("SP-S", False), "sql": f"SELECT {IDS}, b.s FROM a {R}, b {R}, c {R} {SAME_S}"},
        {TUPLES, RESULTS},
    ),
    "SP-D in tumbling windows by two keys": (
        {
            "way": ("SP-D", False),
            "sql": f"SELECT {IDS} FROM a {T}, b {T}, c {T} WHERE a.m = b.m AND b.m = c.m AND a.k = b.k",
            "late": ["a", "c"],
        },
        {TUPLES, RESULTS},
    ),
    "SM-S1 in counted windows": (
        {"way": ("SM-S1", False), "sql": f"SELECT {IDS} FROM a [ROWS 30], b [ROWS 40], c [ROWS 25] {SAME_K}"},
        {TUPLES, KEYS, SYNC, RESULTS},
    ),
    "SM-S2 with two streams at one site": (
        {
            "way": ("SM-S2", False),
            "homes": {"a": "ams", "b": "ams", "c": "nyc"},
            "sql": f"SELECT {IDS} FROM a {R}, b {R}, c {R} {SAME_K}",
        },
        {TUPLES, KEYS, SYNC, RESULTS},
    ),
    "SM-D1 in mixed windows by text": (
        {
            "way": ("SM-D1", False),
            "sql": f"SELECT {IDS} FROM a {R}, b {T}, c {U} WHERE a.s = b.s AND b.s = c.s AND b.m = c.m",
        },
        {TUPLES, SYNC, RESULTS},
    ),
    "SM-D2 with a residual and expressions": (
        {
            "way": ("SM-D2", False),
            "sql": f"SELECT {IDS}, a.v + b.v AS sum, upper(c.s) AS name FROM a {R}, b {R}, c {R} {SAME_K} "
            "AND a.v < b.v AND c.m > 1",
        },
        {TUPLES, KEYS, RESULTS},
    ),
    "SM-S1 with filters in counted and other windows": (
        {"way": ("SM-S1", True), "sql": f"SELECT {IDS} FROM a [ROWS 30], b {R}, c {T} {SAME_K}"},
        {TUPLES, FILTERS, SYNC, RESULTS},
    ),
    "SM-S2 with filters in a chain of two keys": (
        {
            "way": ("SM-S2", True),
            "sql": f"SELECT {IDS} FROM a {T}, b {T}, c {T} WHERE a.k = b.k AND b.s = c.s",
        },
        {TUPLES, KEYS, FILTERS, RESULTS},
    ),
    "SM-D1 with filters in unbounded windows, different answers": (
        {"way": ("SM-D1", True), "sql": f"SELECT DISTINCT a.k, b.m, c.m AS c_m FROM a {U}, b {U}, c {U} {SAME_K}"},
        {TUPLES, FILTERS, RESULTS},
    ),
    "SM-D2 with filters in a self-join": (
        {
            "way": ("SM-D2", True),
            "homes": {"a": "ams", "b": "fra"},
            "sql": f"SELECT a.id AS a_id, b.id AS b_id, z.id AS z_id FROM a {R}, b [ROWS 25], a {R} AS z "
            "WHERE a.s = b.s AND b.s = z.s",
            "late": ["a"],
        },
        {TUPLES, FILTERS, SYNC, RESULTS},
    ),
    "central to a site without streams, from an instant on": (
        {
            "way": None,
            "site": "tok",
            "start": "1970-01-01 00:00:07",
            "sql": f"SELECT {IDS} FROM a {R}, b [ROWS 30], c {T} {SAME_K}",
            "late": ["b"],
        },
        {TUPLES, SYNC},
    ),
}


def make_scene(directory: Path, **differs: Any) -> Scene:
    homes = differs.pop("homes", APART)
    data = {name: make_batches(11 + number) for number, name in enumerate(homes)}
    settings: dict[str, Any] = {"homes": homes, "site": "nyc" if "nyc" in homes.values() else "fra", "batches": data}
    return Scene(directory, **settings | differs)


@pytest.mark.parametrize("case", list(CASES))
def test_answers_are_those_of_the_law_and_all_bytes_are_counted(
    spark: Any,
    tmp_path: Path,
    write_stream: WriteStream,
    published: dict[tuple[str, str, int], int],
    case: str,
) -> None:
    differs, purposes = CASES[case]
    scene = make_scene(tmp_path, **differs).write(write_stream)
    handle = scene.run(spark)
    expected = scene.expected()
    assert len(expected) > 50, "an answer that says nothing"
    assert read(scene.out) == expected
    aside = {name: sort_out(batches)[1] for name, batches in scene.batches.items()}
    for name in scene.late:
        assert {*aside[name].column("_reason").to_pylist()} == {"late", "malformed"}
        assert read(tmp_path / f"late_{name}") == bag(aside[name])
    reasons = Counter(reason for table in aside.values() for reason in table.column("_reason").to_pylist())
    totals = handle.totals
    assert (totals["rows_out"], totals["late"], totals["malformed"]) == (
        *(expected.total(), reasons["late"], reasons["malformed"]),
    )
    assert totals["rows_in"] == sum(batch.num_rows for batches in scene.batches.values() for batch in batches)

    traffic = handle.traffic
    assert {row.purpose for row in traffic.rows} == {*purposes, MARKS}
    for way in {(row.origin, row.to) for row in traffic.rows}:
        counted = sum(row.traffic.bytes for row in traffic.rows if (row.origin, row.to) == way)
        assert counted == sum(size for (*ends, _), size in published.items() if (*ends,) == way)
    assert traffic.bytes == sum(published.values()) > 0
    for row in traffic.rows:
        assert (row.traffic.tuples > 0) == (row.purpose != MARKS)
    assert scene.parcels == [], "all was taken, so nothing is kept"


def test_the_cases_are_of_every_kind() -> None:
    given = [differs for differs, _ in CASES.values()]
    ways = {differs["way"] for differs in given}
    assert ways == {
        *((method.value, False) for method in Method),
        *((method.value, True) for method in Method if method.value.startswith("SM")),
        None,
    }
    texts = " ".join(differs["sql"] for differs in given)
    for kind in ("RANGE", "TUMBLE", "ROWS", "UNBOUNDED", "DISTINCT", "upper", "a.s = b.s", "a AS z", "a.v < b.v"):
        assert kind.replace("a AS", "AS") in texts


# Going on -------------------------------------------------------------------------------------------------------------


def more(scene: Scene, name: str, batches: Sequence[pa.Table]) -> None:
    """Let files come to a stream after those that are there."""
    first = len(scene.batches[name])
    scene.batches[name] += batches
    for number, batch in enumerate(batches, first):
        path = scene.directory / "data" / name / f"{number:05d}.parquet"
        aside = scene.directory / f"{name}-{number}"
        pq.write_table(batch, aside)
        aside.rename(path)


def test_a_second_run_goes_on_where_the_first_one_ended(
    spark: Any, tmp_path: Path, write_stream: WriteStream, published: dict[tuple[str, str, int], int]
) -> None:
    scene = make_scene(
        tmp_path,
        way=("SM-S1", False),
        sql=f"SELECT DISTINCT a.id AS a_id, b.m, c.id AS c_id FROM a {R}, b [ROWS 30], c {R} {SAME_K}",
    ).write(write_stream)
    first = scene.run(spark)
    before, told = scene.expected(), first.traffic.bytes
    assert read(scene.out) == before
    nothing = scene.run(spark)
    assert (nothing.totals["rows_out"], nothing.totals["rows_in"]) == (before.total(), first.totals["rows_in"])
    for number, name in enumerate(scene.homes):
        more(scene, name, make_batches(31 + number, batches=1, first=3 * 70))
    again = scene.run(spark)
    expected = scene.expected()
    assert expected > before and before, "both runs have answers of their own"
    assert read(scene.out) == expected
    assert again.totals["rows_out"] == expected.total()
    assert again.traffic.bytes == sum(published.values()) > told
    # What was taken is kept nowhere: not on the links, and not at the sender beyond its last turn.
    assert scene.parcels == []
    for job in again._jobs:
        taken = {to: DirectoryLinks(scene.links / "q", job.site).acknowledged(to) for to in job.ledger.links}
        assert taken == {to: link.number for to, link in job.ledger.links.items()}
        assert {str(path) for path in Path(job._checkpoint.state).iterdir()} == job.ledger.paths


def test_a_run_to_the_end_never_waits_for_a_site_that_has_no_rows_left(
    spark: Any, tmp_path: Path, write_stream: WriteStream
) -> None:
    scene = small_scene(tmp_path, site="tok", max_pending=1).write(write_stream)
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint, once=True, warn=lambda text: None)
    try:
        assert handle.awaitTermination(PATIENCE_S), "the site without streams does not take what the others send"
    finally:
        if handle.isActive:
            handle.stop()
    assert read(scene.out) == scene.expected()


def test_the_simulator_ships_the_same_bytes(
    spark: Any, tmp_path: Path, write_stream: WriteStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are made to take the same turns: every batch by itself; then site after site what has come, to the end."""
    scene = make_scene(
        tmp_path, way=("SM-D1", False), sql=f"SELECT {IDS}, b.s FROM a {R}, b {R}, c {R} {SAME_K}"
    )  # fmt: skip
    scene.batches = {name: make_batches(11 + n, rows=400, keys=400) for n, name in enumerate(APART)}
    scene.write(write_stream)
    arrived, take = SiteJob._arrived, run_module._take_parcels
    are_batches_over = False

    def when_over(job: SiteJob, sender: str, after: int) -> Any:
        return arrived(job, sender, after) if are_batches_over else iter(())

    def taking(parts: Iterable[Any]) -> bool:
        nonlocal are_batches_over
        parts = list(parts)
        are_batches_over = len(parts) == len(APART)
        return take(parts) if are_batches_over else False

    monkeypatch.setattr(SiteJob, "_arrived", when_over)
    monkeypatch.setattr(run_module, "_take_parcels", taking)
    handle = scene.run(spark)
    assert read(scene.out) == scene.expected()
    assert all(job.ledger.batch == 2 for job in handle._jobs)

    plan = plan_query(spark, scene.topology, scene.topology.query("q"))[1].plan
    never = 10**15
    sites = SimulatedSites(
        plan,
        dict.fromkeys(APART, "ts"),
        delays_us=dict.fromkeys(APART, DELAY_US),
        turn_us=never,
        buckets=1,  # so few rows are not worth more
        retry_us=never,
    )
    peers = [site for _, site in sorted(sites.sites.items())]
    for number in range(3):
        for site, name in zip(peers, APART, strict=True):
            site.feed({name: scene.batches[name][number]})
            site._turn()
    while True:
        turns = sum(site.turns for site in peers)
        for site in peers:
            sites.kernel.run(until_us=sites.kernel.now_us + SECOND_US)  # what is under way arrives
            if site.inbox:
                site._turn()
        if sum(site.turns for site in peers) == turns:
            break
    assert bag(finish(plan, sites.answers, dict.fromkeys(APART, SCHEMA))) == scene.expected()
    assert sites.bytes_shipped == pytest.approx(handle.traffic.bytes, rel=0.05)
    assert sites.bytes_central == pytest.approx(handle.traffic.central_bytes, rel=0.05)


# What is refused ------------------------------------------------------------------------------------------------------


def small_scene(directory: Path, **differs: Any) -> Scene:
    """Two streams at two sites, in order, so that a few batches say all."""
    sql = f"SELECT a.id AS a_id, b.id AS b_id FROM a {R}, b {R} WHERE a.k = b.k"
    homes = {"a": "ams", "b": "nyc"}
    batches = {name: make_batches(41 + number) for number, name in enumerate(homes)}
    return Scene(directory, **{"sql": sql, "homes": homes, "site": "nyc", "batches": batches} | differs)


def test_checkpoints_of_another_plan_and_links_of_another_run_are_refused(
    spark: Any, tmp_path: Path, write_stream: WriteStream
) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write(write_stream)
    scene.run(spark)
    with pytest.raises(wm.CheckpointMismatch) as refused:
        replace(scene, way=("SM-D1", False)).run(spark)
    text = str(refused.value)
    assert f"checkpoint {scene.checkpoint}/q/ams belongs to a different query: plan had " in text
    assert "a: b by SP-D" in text and "where there is now" in text and "a: b by SM-D1" in text
    assert text.endswith("give --checkpoint another place")

    with pytest.raises(wm.CheckpointMismatch) as refused:
        scene.run(spark, checkpoint=tmp_path / "other", warn=lambda text: None)
    assert str(refused.value) == (
        f"link ams -> nyc: {scene.links}/q/nyc/ams holds parcels of another run; start with the checkpoint they "
        "belong to, or remove the links directory and the checkpoints of all sites to begin anew"
    )
    # Of one site alone it is found by its readers, even if somebody has helped it by removing its links.
    for path in (scene.links / "q/nyc/ams").iterdir():
        path.unlink()
    wm.start_site(
        scene.topology, "ams", "q", spark=spark, checkpoint=tmp_path / "another", once=True
    ).awaitTermination()
    handle = wm.start_site(scene.topology, "nyc", "q", spark=spark, checkpoint=scene.checkpoint, once=True)
    with pytest.raises(wm.CheckpointMismatch, match="the parcels are of another run of ams than those taken so far"):
        handle.awaitTermination()
    # Nothing was harmed: with what belongs together it goes on.
    (scene.links / "q/nyc/ams/sender").unlink()
    for path in (scene.links / "q/nyc/ams").glob("*.parcel"):
        path.unlink()
    more(scene, "a", make_batches(51, batches=1, first=210))
    scene.run(spark)
    assert read(scene.out) == scene.expected()


def test_sites_that_run_different_plans_are_refused(spark: Any, tmp_path: Path, write_stream: WriteStream) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write(write_stream)
    other = replace(scene, way=("SM-D1", False))
    wm.start_site(other.topology, "ams", "q", spark=spark, checkpoint=scene.checkpoint, once=True).awaitTermination()
    handle = wm.start_site(scene.topology, "nyc", "q", spark=spark, checkpoint=scene.checkpoint, once=True)
    with pytest.raises(
        wm.CheckpointMismatch, match="link ams -> nyc: ams runs another plan than nyc; give both the same"
    ):
        handle.awaitTermination()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def no_parcel(path: Path) -> None:
    path.write_bytes(b"something else" * 10)


def test_a_damaged_parcel_is_named_and_sent_again_once_it_is_gone(
    spark: Any, tmp_path: Path, write_stream: WriteStream
) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write(write_stream)

    def run_site(site: str) -> wm.RunningSites:
        handle = wm.start_site(scene.topology, site, "q", spark=spark, checkpoint=scene.checkpoint, once=True)
        handle.awaitTermination()
        return handle

    sender = run_site("ams")
    (job,) = sender._jobs
    way = scene.links / "q/nyc/ams"
    parcels = sorted(way.glob("*.parcel"))
    assert len(parcels) == 3
    for damage, cause in ((cut_off, r"it has \d+ bytes, and its checksum is wrong"), (no_parcel, "it is not a parcel")):
        whole = parcels[1].read_bytes()
        parcels[1].unlink()  # it may be one and the same file as the one in the checkpoint
        parcels[1].write_bytes(whole)
        damage(parcels[1])
        told = rf"link ams -> nyc: {parcels[1]} is damaged \({cause}\); remove the file, and ams sends it again"
        with pytest.raises(LinkDamaged, match=told):
            run_site("nyc")
        assert read(scene.out) < scene.expected()
        parcels[1].unlink()
        run_site("ams")
        assert parcels[1].read_bytes() == whole
    assert {link.number for link in job.ledger.links.values()} == {3}, "nothing was made anew"
    scene.run(spark)
    assert read(scene.out) == scene.expected()
    assert list(way.glob("*.parcel")) == []


def test_parcels_that_go_out_of_reach_within_a_turn_are_taken_by_a_later_one(
    spark: Any, tmp_path: Path, write_stream: WriteStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write(write_stream)
    told: list[str] = []

    def run_site(site: str) -> SiteJob:
        handle = wm.start_site(
            scene.topology, site, "q", spark=spark, checkpoint=scene.checkpoint, once=True, warn=told.append
        )
        handle.awaitTermination()
        (job,) = handle._jobs
        return job

    run_site("ams")
    way = scene.links / "q/nyc/ams"
    with monkeypatch.context() as broken:
        get_bytes = FileShelf.get_bytes

        def out_of_reach(shelf: FileShelf, path: str, start: int = 0, size: int | None = None) -> bytes:
            if Path(path).parent == way:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            return get_bytes(shelf, path, start, size)

        broken.setattr(FileShelf, "get_bytes", out_of_reach)
        job = run_site("nyc")
        assert job.ledger.streams["b"].rows == 3 * 70, "its own rows did not wait"
        assert "ams" not in job.ledger.received
    (sentence,) = set(told)
    assert sentence.startswith(f"query 'q': link ams -> nyc cannot be read: Not a directory ({way}); nothing is lost")
    assert len(list(way.glob("*.parcel"))) == 3
    scene.run(spark)
    assert read(scene.out) == scene.expected()
    assert list(way.glob("*.parcel")) == []


# In continuous mode ---------------------------------------------------------------------------------------------------


def wait_for(is_so: Callable[[], bool], what: str, *handles: wm.RunningSites) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        for handle in handles:
            assert handle.exception() is None
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def begin(spark: Any) -> Iterator[Callable[..., tuple[wm.RunningSites, list[str]]]]:
    """Start sites that run until the test ends; gives the handle and what it warned of."""
    handles: list[wm.RunningSites] = []

    def start(scene: Scene, site: str | None = None) -> tuple[wm.RunningSites, list[str]]:
        warned: list[str] = []
        settings = {"spark": spark, "checkpoint": scene.checkpoint, "trigger": "100 ms", "warn": warned.append}
        if site is None:
            handle = wm.start(scene.topology, "q", **settings)
        else:
            handle = wm.start_site(scene.topology, site, "q", **settings)
        assert isinstance(handle, wm.RunningSites)
        handles.append(handle)
        return handle, warned

    yield start
    for handle in handles:
        if handle.isActive:
            handle.stop()


def test_a_site_whose_reader_is_away_takes_no_more_rows_and_loses_none(
    tmp_path: Path,
    write_stream: WriteStream,
    begin: Callable[..., tuple[wm.RunningSites, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The timeout is shorter than the wait: a stream that is kept waiting is not idle, and its rows are not late.
    scene = small_scene(tmp_path, way=("SM-D1", False), max_pending=2_000, idle_timeout="1 second")
    scene.batches = {name: make_batches(41 + number, batches=8) for number, name in enumerate(scene.homes)}
    scene.write(write_stream)
    told = "query 'q': site ams: 2,000 bytes wait for other sites; new rows wait until they are taken"

    sender, warned = begin(scene, "ams")
    wait_for(lambda: told in warned, "no warning", sender)
    (job,) = sender._jobs
    taken = job.ledger.batch
    time.sleep(1.5)
    assert job.ledger.batch == taken < 7
    assert warned == [told], "said once"
    began = time.monotonic()
    sender.stop()
    assert time.monotonic() - began < 10, "a site that waits can be stopped"
    assert sender.exception() is None

    # A reader that takes without saying so: meanwhile its own parcels are taken here, or both would wait for ever.
    is_silent, acknowledge = True, DirectoryLinks.acknowledge

    def acknowledging(links: DirectoryLinks, *arguments: Any) -> None:
        if links.site != "nyc" or not is_silent:
            acknowledge(links, *arguments)

    monkeypatch.setattr(DirectoryLinks, "acknowledge", acknowledging)
    sender, warned = begin(scene, "ams")
    wait_for(lambda: told in warned, "no warning after a restart", sender)
    (job,) = sender._jobs
    taken = job.ledger.batch
    reader, _ = begin(scene, "nyc")
    rows = sum(batch.num_rows for batch in scene.batches["b"])
    wait_for(lambda: reader.totals["rows_in"] == rows, "the reader waits too", sender, reader)
    wait_for(lambda: job.ledger.received.get("nyc") == reader._jobs[0].ledger.links["ams"].number, "", sender, reader)
    time.sleep(1.5)
    assert job.ledger.batch == taken
    is_silent = False
    expected = scene.expected()
    wait_for(lambda: read(scene.out).total() >= expected.total(), "it does not go on", sender, reader)
    assert read(scene.out) == expected
    aside = [reason for batches in scene.batches.values() for reason in sort_out(batches)[1]["_reason"].to_pylist()]
    assert sender.totals["late"] + reader.totals["late"] == aside.count("late")
    assert job.ledger.batch >= 7
    wait_for(lambda: not scene.parcels, "parcels stay on the links", sender, reader)


def test_a_silent_stream_does_not_hold_up_counted_windows(
    tmp_path: Path, write_stream: WriteStream, begin: Callable[..., tuple[wm.RunningSites, list[str]]]
) -> None:
    sql = "SELECT a.id AS a_id, b.id AS b_id FROM a [ROWS 30], b [ROWS 20] WHERE a.k = b.k"
    scene = small_scene(tmp_path, way=("SP-D", False), sql=sql, idle_timeout="1 second")
    scene.batches["b"] = scene.batches["b"][:1]
    scene.write(write_stream)
    held_up = scene.expected()
    mark = max(pc.max(batch.column("ts").cast(pa.int64())).as_py() for batch in scene.batches["a"]) - DELAY_US
    expected = scene.expected(heads_before_us=mark)
    assert expected.total() > held_up.total() + 20

    handle, _ = begin(scene)
    wait_for(lambda: read(scene.out).total() >= expected.total(), "it does not go on", handle)
    assert read(scene.out) == expected
    late = handle.totals["late"]

    # The stream comes back: what lies before the instant to which it was taken to have come is late.
    back = make_batches(61, batches=1, first=140)[0]
    ts = back.column("ts").cast(pa.int64())
    early = pc.sum(pc.less(ts, mark)).as_py()
    assert 0 < early < back.num_rows - 5
    rows_in = handle.totals["rows_in"]
    more(scene, "b", [back])
    wait_for(lambda: handle.totals["rows_in"] == rows_in + back.num_rows, "its rows are not taken", handle)
    assert handle.totals["late"] == late + early
    # By then the other one is silent, and does not hold up the one that came back.
    taken = {name: sort_out(batches)[0] for name, batches in scene.batches.items()}
    taken["b"] = pa.concat_tables([sort_out(scene.batches["b"][:1])[0], back.filter(pc.greater_equal(ts, mark))])
    now = pc.max(ts).as_py() - DELAY_US
    goal = bag(answer(scene.parsed, taken, dict.fromkeys("ab", "ts"), heads_before_us=now))
    assert goal.total() > expected.total()
    wait_for(lambda: read(scene.out).total() >= goal.total(), "it does not go on again", handle)
    assert read(scene.out) == goal


SHAPES = {
    "chain": lambda names: list(pairwise(names)),
    "star": lambda names: [(names[0], name) for name in names[1:]],
    "cycle": lambda names: [*pairwise(names), (names[-1], names[0])],
    "clique": lambda names: list(combinations(names, 2)),
}
KINDS = ["[RANGE 4 SECONDS]", "[TUMBLE 5 SECONDS]", "[UNBOUNDED]", "[RANGE 7 SECONDS]", "[ROWS 12]"]
WAYS = [("SP-S", False), ("SM-D1", True), ("SM-S2", False), ("SP-D", False), ("SM-S1", True), ("SM-D2", False)]


@pytest.mark.parametrize(
    ("count", "shape", "attributes"),
    [(2, "chain", "km"), (4, "star", "k"), (4, "cycle", "km"), (5, "chain", "k"), (5, "clique", "k")],
)
def test_joins_of_many_streams_by_mixed_methods(
    spark: Any, tmp_path: Path, write_stream: WriteStream, count: int, shape: str, attributes: str
) -> None:
    names = "abcde"[:count]
    batches = {name: make_batches(90 + n, rows=24, keys=14) for n, name in enumerate(names)}
    edges = SHAPES[shape](names)
    keys = [attributes[n % len(attributes)] for n in range(len(edges))]
    where = [f"{x}.{key} = {y}.{key}" for key, (x, y) in zip(keys, edges, strict=True)]
    froms = ", ".join(f"{name} {KINDS[n]}" for n, name in enumerate(names))
    sql = f"SELECT {', '.join(f'{n}.id AS {n}_id' for n in names)} FROM {froms} WHERE {' AND '.join(where)}"
    plan = []
    for n, head in enumerate(names):
        others = names[n + 1 :] + names[:n]
        ways = [WAYS[(n + step) % len(WAYS)] for step in range(len(others))]
        steps = (wm.PlanStep(other, method, bloom=bloom) for other, (method, bloom) in zip(others, ways, strict=True))
        plan.append(wm.HeadSteps(head, tuple(steps)))
    streams = tuple(
        wm.Stream(
            name,
            event_time="ts",
            schema=DDL,
            source=wm.Source("parquet", str(write_stream(name, batches[name])), {"maxFilesPerTrigger": "1"}),
            watermark=f"{DELAY_US} microseconds",
            site=f"s{n % 4}",
        )
        for n, name in enumerate(names)
    )
    query = wm.Query("q", sql, sink=wm.Sink("parquet", str(tmp_path / "out")), site="s1", plan=tuple(plan))
    topology = wm.Topology(streams, (query,), tuple(wm.Site(f"s{n}") for n in range(4)), str(tmp_path))
    wm.start(topology, "q", spark=spark, once=True).awaitTermination()
    tables = {name: sort_out(batches[name])[0] for name in names}
    counted = [name for n, name in enumerate(names) if "ROWS" in KINDS[n]]
    before = min((max_ts(tables[name]) - DELAY_US for name in counted), default=None)
    law = bag(answer(parse_query(sql, topology.columns), tables, dict.fromkeys(names, "ts"), heads_before_us=before))
    assert sum(law.values()) > 5
    assert read(tmp_path / "out") == law


def max_ts(table: pa.Table) -> int:
    return max(table.column("ts").cast(pa.int64()).to_pylist())
