"""Sites on Spark, all in one session: every method against the oracle, what travels, and what stops and goes on again.

Answers are compared with DuckDB's over the rows that are neither late nor malformed. Several processes that die are
the matter of test_site_faults.py.
"""

import errno
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scenes import (
    PATIENCE_S,
    SCHEMA,
    SECOND_US,
    Bag,
    Scene,
    Steps,
    by_arrow,
    latest_us,
    make_batches,
    sort_out,
    wait_for,
)

import watersmeet as wm
from watersmeet.plan.nodes import Method
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.links.protocol import Fenced, LinkDirection, LinkUnreadable, Role, Sealed
from watersmeet.spark.links.site_links import SiteLinks
from watersmeet.spark.planning import plan_query
from watersmeet.spark.site.job import SiteJob
from watersmeet.spark.site.query import SiteQuery
from watersmeet.testing import bag

Way = tuple[str, bool] | None  # method and whether Bloom filters travel; None ships all to the query's site


def plan_of(way: Way, sql: str) -> Steps | None:
    """The same method everywhere; every head goes around the aliases, each next one tied to those before."""
    if way is None:
        return None
    method, bloom = way
    order = parse_query(sql, dict.fromkeys("abc", SCHEMA.names)).aliases
    # Around the circle from an inner alias, inwards from an outer one: neighbours share a key in every query.
    others = {head: (*order[number + 1 :], *order[:number][::-1]) for number, head in enumerate(order)}
    return {head: [{"join": one, "method": method, "bloom": bloom} for one in rest] for head, rest in others.items()}


def jobs(handle: wm.StreamingRun) -> list[SiteJob]:
    return [site.job for site in handle._sites]


def job_of(handle: wm.StreamingRun, site: str) -> SiteJob:
    return next(job for job in jobs(handle) if job.site == site)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str, int], int]:
    """The sizes of all parcel files as their readers find them, by sender, reader and number."""
    sizes: dict[tuple[str, str, int], int] = {}
    publish = DirectoryLinks.publish

    def publishing(links: DirectoryLinks, reader: str, parcels: Iterable[Sealed]) -> None:
        publish(links, reader, parcels)
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


def make_scene(directory: Path, *, way: Way, sql: str, **differs: Any) -> Scene:
    homes = differs.pop("homes", APART)
    data = {name: make_batches(11 + number) for number, name in enumerate(homes)}
    settings: dict[str, Any] = {"homes": homes, "site": "nyc" if "nyc" in homes.values() else "fra", "batches": data}
    return Scene(directory, queries={"q": sql}, plan=plan_of(way, sql), **settings | differs)


@pytest.mark.few(4)
@pytest.mark.parametrize("case", list(CASES))
def test_answers_are_exact_and_all_bytes_are_counted(
    spark: Any, tmp_path: Path, published: dict[tuple[str, str, int], int], case: str
) -> None:
    differs, purposes = CASES[case]
    scene = make_scene(tmp_path, **differs).write()
    handle = scene.run(spark)
    scene.check(least=51)
    expected = scene.expected()
    reasons = sum((scene.reasons(name) for name in scene.batches), Counter[str]())
    usage = handle.usage()
    assert usage == replace(handle.usage("q"), bytes_shipped=usage.bytes_shipped), "there is one query"
    assert (usage.rows_out, usage.late, usage.malformed) == (
        *(expected.total(), reasons["late"], reasons["malformed"]),
    )
    assert usage.rows_in == sum(scene.rows(name) for name in scene.batches)

    traffic = handle.traffic
    assert {row.purpose for row in traffic.rows} == {*purposes, MARKS}
    for way in {(row.origin, row.to) for row in traffic.rows}:
        counted = sum(row.traffic.bytes for row in traffic.rows if (row.origin, row.to) == way)
        assert counted == sum(size for (*ends, _), size in published.items() if (*ends,) == way)
    assert traffic.bytes == usage.bytes_shipped == sum(published.values()) > 0
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


@pytest.mark.soak
def test_a_second_run_goes_on_where_the_first_one_ended(
    spark: Any, tmp_path: Path, published: dict[tuple[str, str, int], int]
) -> None:
    scene = make_scene(
        tmp_path,
        way=("SM-S1", False),
        sql=f"SELECT DISTINCT a.id AS a_id, b.m, c.id AS c_id FROM a {R}, b [ROWS 30], c {R} {SAME_K}",
    ).write()
    first = scene.run(spark)
    before, shipped = scene.expected(), first.traffic.bytes
    assert by_arrow(scene.sink()) == before
    nothing = scene.run(spark)
    assert (nothing.usage().rows_out, nothing.usage().rows_in) == (before.total(), first.usage().rows_in)
    assert (nothing.usage_here().rows_out, nothing.usage_here().rows_in) == (0, 0)
    for number, name in enumerate(scene.homes):
        scene.add(name, make_batches(31 + number, batches=1, first=3 * 70))
    again = scene.run(spark)
    expected = scene.expected()
    assert expected > before and before, "both runs have answers of their own"
    scene.check()
    assert again.usage().rows_out == expected.total()
    assert again.traffic.bytes == sum(published.values()) > shipped
    # What was taken is kept nowhere: not on the links, and not at the sender beyond its last micro-batch.
    assert scene.parcels == []
    for job in jobs(again):
        links = DirectoryLinks(scene.links, job.site)
        ends = {to: links.end(LinkDirection(job.site, to), Role.READER) for to in job.ledger.links}
        taken = {to: end and end.number for to, end in ends.items()}
        assert taken == {to: link.number for to, link in job.ledger.links.items()}
        assert job.ledger.outbox_bytes == 0


def test_a_run_to_the_end_never_waits_for_a_site_that_has_no_rows_left(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, site="tok", max_pending=1).write()
    handle = wm.start(scene.topology, spark=spark, checkpoint=scene.checkpoint, once=True, warn=lambda text: None)
    try:
        assert handle.awaitTermination(PATIENCE_S), "the site without streams does not take what the others send"
    finally:
        if handle.isActive:
            handle.stop()
    scene.check()


def test_the_simulator_ships_the_same_bytes(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are made to have the same micro-batches: every file by itself; then, site by site, what has come."""
    scene = make_scene(tmp_path, way=("SM-D1", False), sql=f"SELECT {IDS}, b.s FROM a {R}, b {R}, c {R} {SAME_K}")
    scene.batches.update({name: make_batches(11 + n, rows=400, keys=400) for n, name in enumerate(APART)})
    scene.write()
    arrived, take = SiteLinks._arrived, wm.StreamingRun._take_parcels
    are_batches_over = False

    def when_over(links: SiteLinks, sender: str, ledger: SiteLedger, runs: dict[str, str]) -> Iterator[Any]:
        return arrived(links, sender, ledger, runs) if are_batches_over else iter(())

    def taking(handle: wm.StreamingRun, sites: Sequence[SiteQuery]) -> bool:
        nonlocal are_batches_over
        are_batches_over = len(sites) == len(APART)
        return take(handle, sites) if are_batches_over else False

    monkeypatch.setattr(SiteLinks, "_arrived", when_over)
    monkeypatch.setattr(wm.StreamingRun, "_take_parcels", taking)
    handle = scene.run(spark)
    assert by_arrow(scene.sink()) == scene.expected()
    assert all(job.ledger.batch == 2 for job in jobs(handle))

    plan = plan_query(spark, scene.topology, scene.topology.query("q"))[1].plan
    never = 10**15
    sites = SimulatedSites(
        plan,
        dict.fromkeys(APART, "ts"),
        delays_us=dict.fromkeys(APART, scene.delay_us),
        interval_us=never,
        buckets=1,  # so few rows are not worth more
        retry_us=never,
    )
    peers = [site for _, site in sorted(sites.sites.items())]
    for number in range(3):
        for site, name in zip(peers, APART, strict=True):
            site.feed({name: scene.batches[name][number]})
            site._micro_batch()
    while True:
        done = sum(site.micro_batches for site in peers)
        for site in peers:
            sites.kernel.run(until_us=sites.kernel.now_us + SECOND_US)  # what is under way arrives
            if site.inbox:
                site._micro_batch()
        if sum(site.micro_batches for site in peers) == done:
            break
    assert sum((bag(table) for table in sites.answers()), Counter()) == scene.expected()
    assert sites.bytes_shipped == pytest.approx(handle.traffic.bytes, rel=0.05)
    assert sites.bytes_central == pytest.approx(handle.traffic.central_bytes, rel=0.05)


# What is refused ------------------------------------------------------------------------------------------------------


def small_scene(directory: Path, *, way: Way = None, sql: str | None = None, **differs: Any) -> Scene:
    """Two streams at two sites, so that a few micro-batches say all."""
    sql = sql or f"SELECT a.id AS a_id, b.id AS b_id FROM a {R}, b {R} WHERE a.k = b.k"
    homes = {"a": "ams", "b": "nyc"}
    batches = {name: make_batches(41 + number) for number, name in enumerate(homes)}
    settings = {"queries": {"q": sql}, "plan": plan_of(way, sql), "homes": homes, "site": "nyc", "batches": batches}
    return Scene(directory, **settings | differs)


def with_way(scene: Scene, way: Way) -> Scene:
    return replace(scene, plan=plan_of(way, scene.queries["q"]))


def test_links_of_another_run_are_refused(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    scene.run(spark)
    (tmp_path / "out").rename(tmp_path / "answers")  # else it is refused for the answers that are there
    with pytest.raises(wm.CheckpointMismatch) as refused:
        scene.run(spark, checkpoint=tmp_path / "other", warn=lambda text: None)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    (tmp_path / "answers").rename(tmp_path / "out")
    assert re.fullmatch(
        r"link ams -> nyc: it holds parcels of another run of ams \(checkpoint \w{8}\); start with the checkpoint they "
        "belong to, or restore the checkpoints of all sites from copies of one moment and remove the links, or remove "
        "the links and the checkpoints of all sites to begin anew",
        str(refused.value),
    )
    # Of one site alone it is found by its readers, even if somebody has helped it by removing its links.
    for path in [*(scene.links / "nyc/ams").iterdir(), *(scene.links / "ams/nyc").iterdir()]:
        path.unlink()
    scene.run_site(spark, "ams", checkpoint=tmp_path / "another")
    with pytest.raises(wm.CheckpointMismatch, match="the parcels are of another run of ams than those taken so far"):
        scene.run_site(spark, "nyc")
    # Nothing was harmed: with what belongs together it goes on.
    for path in [*(scene.links / "nyc/ams").iterdir(), *(scene.links / "ams/nyc").iterdir()]:
        path.unlink()
    scene.add("a", make_batches(51, batches=1, first=210))
    scene.run(spark)
    scene.check()


def test_a_sender_that_has_sent_nothing_yet_may_begin_anew(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False))
    for name in scene.batches:
        (tmp_path / "data" / name).mkdir(parents=True)
    scene.run_site(spark, "ams", checkpoint=tmp_path / "other")
    scene.write()
    scene.run_site(spark, "nyc")  # sees whose link it is, and takes nothing from it
    (scene.links / "nyc/ams/sender-000000000001").unlink()
    scene.run(spark)
    scene.check()


def test_sites_that_run_different_plans_are_refused(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    with_way(scene, ("SM-D1", False)).run_site(spark, "ams")
    with pytest.raises(
        wm.CheckpointMismatch, match="link ams -> nyc: ams runs other queries or plans than nyc; give both the same"
    ):
        scene.run_site(spark, "nyc")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def no_parcel(path: Path) -> None:
    path.write_bytes(b"something else" * 10)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("damage", "cause"),
    [(cut_off, r"it has \d+ bytes, and its checksum is wrong"), (no_parcel, "it is not a parcel")],
)
def test_a_damaged_parcel_is_put_aside_and_sent_again(
    spark: Any, tmp_path: Path, damage: Callable[[Path], None], cause: str
) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    (job,) = jobs(scene.run_site(spark, "ams"))
    way = scene.links / "nyc/ams"
    parcels = sorted(way.glob("*.parcel"))
    assert len(parcels) == 3
    whole = parcels[1].read_bytes()
    warned: list[str] = []
    for times in range(1, 4):
        damage(parcels[1])
        scene.run_site(spark, "nyc", warn=warned.append)
        assert by_arrow(scene.sink()) < scene.expected()
        told = rf"link ams -> nyc: parcel 2 is damaged \({cause}\); it is put aside, and ams publishes it anew"
        assert len(warned) == times and re.fullmatch(told, warned[-1])
        scene.run_site(spark, "ams")
        assert parcels[1].read_bytes() == whole
    assert {link.number for link in job.ledger.links.values()} == {3}, "nothing was made anew"
    damage(parcels[1])
    with pytest.raises(wm.WatersmeetError, match=r"parcel 2 is damaged .*, and was so 3 times before; check the disks"):
        scene.run_site(spark, "nyc")
    for path in way.glob("*.damaged-*"):
        path.unlink()
    scene.run_site(spark, "ams")
    damage(parcels[1])  # with both sites there it mends itself, before the end of a run to the end
    scene.run(spark, warn=warned.append)
    scene.check()
    assert len(warned) == 4
    assert not list(way.glob("*.parcel")) and not list(way.glob("*.damaged-*"))


def test_a_site_that_lost_its_checkpoint_or_has_an_older_one_is_refused(spark: Any, tmp_path: Path) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    scene.run(spark)
    copy = tmp_path / "copy"
    shutil.copytree(scene.checkpoint, copy)
    scene.add("a", make_batches(51, batches=1, first=210))
    scene.run(spark)
    newer = tmp_path / "newer"
    shutil.copytree(scene.checkpoint, newer)

    def refused(site: str, at: Path | None, *told: str) -> None:
        """Start a site with a copy of its checkpoint, or with none; then put back what was there."""
        place, aside = scene.checkpoint / site, tmp_path / "answers"
        shutil.rmtree(place)
        if at is not None:
            shutil.copytree(at / site, place)
        else:
            scene.sink().rename(aside)  # or it would be refused for the answers that are there
        for words in told:
            with pytest.raises(wm.CheckpointMismatch, match=words):
                scene.run_site(spark, site, warn=lambda text: None)
        if at is None:
            shutil.rmtree(scene.sink(), ignore_errors=True)
            aside.rename(scene.sink())
        shutil.rmtree(place)
        shutil.copytree(newer / site, place)

    both = "restore the checkpoints of all sites from copies of one moment"
    refused("nyc", None, rf"link nyc -> ams: it holds parcels of another run of nyc \(checkpoint \w+\).*{both}")
    for path in (scene.links / "ams/nyc").glob("sender-*"):  # somebody helps: it is found as a reader, too
        path.unlink()
    refused("nyc", None, rf"nyc has read it up to parcel \d+ with another checkpoint \(\w+\), .*{both}")
    for site in ("nyc", "ams"):  # also the second time
        refused(site, copy, *[rf"{site} has run on a copy of this checkpoint since \(epoch 2, here 1\).*{both}"] * 2)
    scene.add("b", make_batches(52, batches=1, first=210))
    scene.run(spark)
    scene.check()


@pytest.mark.parametrize(("site", "role"), [("nyc", Role.READER), ("ams", Role.SENDER)])
def test_of_two_processes_of_one_site_the_older_stops(spark: Any, tmp_path: Path, site: str, role: Role) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    scene.run(spark)
    link = LinkDirection("ams", "nyc")
    older = wm.start_site(scene.topology, site, spark=spark, checkpoint=scene.checkpoint, warn=None)
    try:
        links = DirectoryLinks(scene.links, site)  # as another process has them, which Spark lets not run here
        end = links.end(link, role)
        assert end is not None and end.epoch == 2
        links.claim(link, role, replace(end, epoch=3, token="newer"))
        with pytest.raises(
            Fenced, match=rf"another process runs {site} on a copy .*epoch 3, here 2\), so this one stops"
        ):
            older.awaitTermination(PATIENCE_S)
    finally:
        older.stop()


def test_parcels_that_go_out_of_reach_as_they_are_taken_are_taken_by_a_later_micro_batch(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    warned: list[str] = []
    scene.run_site(spark, "ams")
    way = scene.links / "nyc/ams"
    with monkeypatch.context() as broken:
        read_bytes = Path.read_bytes

        def out_of_reach(path: Path) -> bytes:
            if path.parent == way:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            return read_bytes(path)

        broken.setattr(Path, "read_bytes", out_of_reach)
        (job,) = jobs(scene.run_site(spark, "nyc", warn=warned.append))
        assert job.ledger.streams["b"].rows == 3 * 70, "its own rows did not wait"
        assert "ams" not in job.ledger.received
    (sentence,) = set(warned)
    assert sentence.startswith(f"link ams -> nyc cannot be read: Not a directory ({way}); nothing is lost")
    assert len(list(way.glob("*.parcel"))) == 3
    scene.run(spark)
    scene.check()
    assert list(way.glob("*.parcel")) == []


def test_a_run_to_the_end_waits_for_links_that_are_out_of_reach(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also long after all rows were read; it says so once."""
    said = "link ams -> nyc cannot be read: the brokers do not answer"
    arrived, catch_up, times = DirectoryLinks.arrived, DirectoryLinks.catch_up, iter(range(60))

    def refuse() -> None:
        if next(times, None) is not None:
            raise LinkUnreadable(said)

    def arriving(links: DirectoryLinks, sender: str, after: int) -> Iterator[tuple[int, bytes]]:
        if sender == "ams":
            refuse()
        return arrived(links, sender, after)

    def catching_up(links: DirectoryLinks) -> None:
        refuse()
        catch_up(links)

    monkeypatch.setattr(DirectoryLinks, "arrived", arriving)
    monkeypatch.setattr(DirectoryLinks, "catch_up", catching_up)
    scene = small_scene(tmp_path, way=("SP-D", False)).write()
    warned: list[str] = []
    scene.run(spark, warn=warned.append)
    assert next(times, None) is None
    scene.check()
    assert {text for text in warned if "brokers" in text} == {said}


# In continuous mode ---------------------------------------------------------------------------------------------------

Begin = Callable[..., tuple[wm.StreamingRun, list[str]]]


def await_that(is_so: Callable[[], bool], what: str, *handles: wm.StreamingRun) -> None:
    """Wait until something is so while runs go on."""

    def check() -> None:
        assert [handle.exception() for handle in handles] == [None] * len(handles)

    wait_for(is_so, what, check)


@pytest.fixture
def begin(spark: Any) -> Iterator[Begin]:
    """Start sites that run until the test ends; gives the handle and what it warned of."""
    handles: list[wm.StreamingRun] = []

    def start(scene: Scene, site: str | None = None) -> tuple[wm.StreamingRun, list[str]]:
        warned: list[str] = []
        settings = {"spark": spark, "checkpoint": scene.checkpoint, "trigger": "100 ms", "warn": warned.append}
        if site is None:
            handles.append(wm.start(scene.topology, **settings))
        else:
            handles.append(wm.start_site(scene.topology, site, **settings))
        return handles[-1], warned

    yield start
    for handle in handles:
        if handle.isActive:
            handle.stop()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each site has looked whether there is room for new rows."""
    counts: Counter[str] = Counter()
    waiting_bytes = SiteLinks.waiting_bytes

    def looking(links: SiteLinks, ledger: SiteLedger) -> int:
        counts[links.site] += 1
        return waiting_bytes(links, ledger)

    monkeypatch.setattr(SiteLinks, "waiting_bytes", looking)
    return counts


def test_a_site_whose_reader_is_away_takes_no_more_rows_and_loses_none(
    tmp_path: Path, begin: Begin, looks: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The timeout is shorter than the wait: a stream that is kept waiting is not idle, and its rows are not late.
    batches = {name: make_batches(41 + number, batches=8) for number, name in enumerate("ab")}
    scene = small_scene(tmp_path, way=("SM-D1", False), batches=batches, max_pending=2_000, idle_timeout="1 second")
    scene.write()
    told = "site ams: 2,000 bytes wait for other sites; new rows wait until they are taken"

    def is_held_up(*handles: wm.StreamingRun) -> None:
        """For longer than the timeout, as long as twenty looks take."""
        goal = looks["ams"] + 20
        await_that(lambda: looks["ams"] >= goal, "it does not look for room", *handles)

    sender, warned = begin(scene, "ams")
    await_that(lambda: told in warned, "no warning", sender)
    (job,) = jobs(sender)
    joined = job.ledger.ingested_batch
    is_held_up(sender)
    assert job.ledger.ingested_batch == joined < 7
    assert warned == [told], "said once"
    sender.stop()  # a site that waits can be stopped
    assert sender.exception() is None

    # A reader that takes without saying so: meanwhile its own parcels are taken here, or both would wait for ever.
    is_silent, acknowledge = True, DirectoryLinks.acknowledge

    def acknowledging(links: DirectoryLinks, *arguments: Any) -> None:
        if links.site != "nyc" or not is_silent:
            acknowledge(links, *arguments)

    monkeypatch.setattr(DirectoryLinks, "acknowledge", acknowledging)
    sender, warned = begin(scene, "ams")
    await_that(lambda: told in warned, "no warning after a restart", sender)
    (job,) = jobs(sender)
    joined = job.ledger.ingested_batch
    reader, _ = begin(scene, "nyc")
    (other,) = jobs(reader)
    await_that(lambda: reader.usage().rows_in == scene.rows("b"), "the reader waits too", sender, reader)
    await_that(lambda: other.ledger.is_complete, "the reader does not join", sender, reader)
    await_that(lambda: job.ledger.received.get("nyc") == other.ledger.links["ams"].number, "", sender, reader)
    is_held_up(sender, reader)
    assert job.ledger.ingested_batch == joined
    is_silent = False
    expected = scene.expected()
    await_that(lambda: by_arrow(scene.sink()).total() >= expected.total(), "it does not go on", sender, reader)
    assert by_arrow(scene.sink()) == expected
    late = sum(scene.reasons(name)["late"] for name in scene.batches)
    assert sender.usage().late + reader.usage().late == late
    assert job.ledger.batch >= 7
    await_that(lambda: not scene.parcels, "parcels stay on the links", sender, reader)


def test_a_silent_stream_does_not_hold_up_counted_windows(tmp_path: Path, begin: Begin) -> None:
    sql = "SELECT a.id AS a_id, b.id AS b_id FROM a [ROWS 30], b [ROWS 20] WHERE a.k = b.k"
    scene = small_scene(tmp_path, way=("SP-D", False), sql=sql, idle_timeout="1 second")
    del scene.batches["b"][1:]
    scene.write()
    held_up = scene.expected()
    mark = latest_us(scene.batches["a"]) - scene.delay_us
    expected = scene.expected(heads_before_us=mark)
    assert expected.total() > held_up.total() + 20

    handle, _ = begin(scene)
    await_that(lambda: by_arrow(scene.sink()).total() >= expected.total(), "it does not go on", handle)
    assert by_arrow(scene.sink()) == expected
    late = handle.usage().late
    check_that_rows_before_an_idle_instant_are_late(scene, handle, expected, mark, late)


def test_a_silent_stream_at_the_same_site_does_not_hold_up_counted_windows(tmp_path: Path, begin: Begin) -> None:
    sql = "SELECT a.id AS a_id, b.id AS b_id FROM a [ROWS 30], b [ROWS 20] WHERE a.k = b.k"
    scene = small_scene(tmp_path, sql=sql, homes={}, idle_timeout="1 second")
    del scene.batches["b"][1:]
    scene.write()
    mark = latest_us(scene.batches["a"]) - scene.delay_us
    expected = scene.expected(heads_before_us=mark)
    handle, _ = begin(scene)
    await_that(lambda: by_arrow(scene.sink()).total() >= expected.total(), "it does not go on", handle)
    assert by_arrow(scene.sink()) == expected
    check_that_rows_before_an_idle_instant_are_late(scene, handle, expected, mark, handle.usage().late)


def check_that_rows_before_an_idle_instant_are_late(
    scene: Scene, handle: wm.StreamingRun, expected: Bag, mark: int, late: int
) -> None:
    """Let a stream come back: what lies before the instant to which it was taken to have come is late."""
    back = make_batches(61, batches=1, first=140)[0]
    ts = back.column("ts").cast(pa.int64())
    early = pc.sum(pc.less(ts, mark)).as_py()
    assert 0 < early < back.num_rows - 5
    rows_in = handle.usage().rows_in
    scene.add("b", [back])
    await_that(lambda: handle.usage().rows_in == rows_in + back.num_rows, "its rows are not ingested", handle)
    assert handle.usage().late == late + early
    # By then the other one is silent, and does not hold up the one that came back.
    taken = scene.taken()
    taken["b"] = pa.concat_tables([sort_out(scene.batches["b"][:1])[0], back.filter(pc.greater_equal(ts, mark))])
    now = pc.max(ts).as_py() - scene.delay_us
    goal = bag(answer(scene.parsed(), taken, dict.fromkeys("ab", "ts"), heads_before_us=now))
    assert goal.total() > expected.total()
    await_that(lambda: by_arrow(scene.sink()).total() >= goal.total(), "it does not go on again", handle)
    assert by_arrow(scene.sink()) == goal


# Many streams ---------------------------------------------------------------------------------------------------------

Edges = list[tuple[str, str]]
SHAPES: Mapping[str, Callable[[str], Edges]] = {
    "chain": lambda names: list(pairwise(names)),
    "star": lambda names: [(names[0], name) for name in names[1:]],
    "cycle": lambda names: [*pairwise(names), (names[-1], names[0])],
    "clique": lambda names: list(combinations(names, 2)),
}
KINDS = ["[RANGE 4 SECONDS]", "[TUMBLE 5 SECONDS]", "[UNBOUNDED]", "[RANGE 7 SECONDS]", "[ROWS 12]"]
WAYS = [("SP-S", False), ("SM-D1", True), ("SM-S2", False), ("SP-D", False), ("SM-S1", True), ("SM-D2", False)]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("count", "shape", "attributes"),
    [(2, "chain", "km"), (4, "star", "k"), (4, "cycle", "km"), (5, "chain", "k"), (5, "clique", "k")],
)
def test_joins_of_many_streams_by_mixed_methods(
    spark: Any, tmp_path: Path, count: int, shape: str, attributes: str
) -> None:
    names = "abcde"[:count]
    edges = SHAPES[shape](names)
    keys = [attributes[n % len(attributes)] for n in range(len(edges))]
    where = [f"{x}.{key} = {y}.{key}" for key, (x, y) in zip(keys, edges, strict=True)]
    froms = ", ".join(f"{name} {KINDS[n]}" for n, name in enumerate(names))
    sql = f"SELECT {', '.join(f'{n}.id AS {n}_id' for n in names)} FROM {froms} WHERE {' AND '.join(where)}"
    plan = {}
    for n, head in enumerate(names):
        others = names[n + 1 :] + names[:n]
        ways = [WAYS[(n + step) % len(WAYS)] for step in range(len(others))]
        steps = zip(others, ways, strict=True)
        plan[head] = [{"join": other, "method": method, "bloom": bloom} for other, (method, bloom) in steps]
    scene = Scene(
        tmp_path,
        batches={name: make_batches(90 + n, rows=24, keys=14) for n, name in enumerate(names)},
        queries={"q": sql},
        homes={name: f"s{n % 4}" for n, name in enumerate(names)},
        site="s1",
        plan=plan,
    )
    scene.write().run(spark)
    scene.check(least=6)
