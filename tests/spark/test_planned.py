"""Planned queries on Spark: trees, parts of the key space and mixtures of methods against the oracle, and as estimated.

Statistics are mostly given by hand, with columns far larger and values far more uneven than they are: plans depend on
nothing else, and answers on none of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scenes import SECOND_US, Bag, by_arrow, sort_out, wait_for, write_batch

import watersmeet as wm
from watersmeet.plan.nodes import (
    HashParts,
    HeadPlan,
    Hop,
    Input,
    JoinNode,
    JoinPlan,
    Leaf,
    Linear,
    Method,
    Partition,
    RangeParts,
    Reduction,
    SubPlan,
    ValueParts,
    join_plan_of,
    with_join,
)
from watersmeet.planners.auto import PLANNERS
from watersmeet.planners.choose import Chosen
from watersmeet.planners.sited import central
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.spark import planning
from watersmeet.stats.model import Bin, ColumnStats, Histogram, Number, Stats, StreamStats
from watersmeet.stats.packed_sizes import Sizes
from watersmeet.testing import bag

DELAY_US = SECOND_US
DDL = "k long, m int, s string, id long, ts timestamp"
SCHEMA = pa.schema(
    [("k", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
KEYS = 30
RATES = (10.0, 12.0, 14.0)
APART = {"a": "ams", "b": "fra", "c": "nyc"}
R, T = "[RANGE 3 SECONDS]", "[TUMBLE 4 SECONDS]"
IDS = "a.id AS a_id, b.id AS b_id, c.id AS c_id"
ONE_KEY, TWO_KEYS = "WHERE a.k = b.k AND b.k = c.k", "WHERE a.k = b.k AND b.m = c.m"
WriteStream = Callable[[str, Sequence[pa.Table]], Path]


def popularity(stream: int, times: float = 20.0, keys: int = KEYS, streams: int = 3) -> np.ndarray:
    """The shares of the values in a stream: every stream has favourites of its own, so many times as frequent."""
    weights = np.where(np.arange(keys) % streams == stream, times, 1.0)
    return np.asarray(weights / weights.sum())


def mixed_batches(stream: int, batches: int = 3, rows: int = 70, first: int = 0) -> list[pa.Table]:
    """A stream of 10 rows a second: disorder inside the watermark, rows far too late, NULL keys and no times."""
    chance = np.random.default_rng([stream, first])
    count, shares = batches * rows, popularity(stream, times=3.0)
    ts = (first + np.arange(count)) * (SECOND_US // 10) - chance.integers(0, 3, count) * (SECOND_US // 2)
    ts -= np.where(chance.random(count) < 0.02, 9 * SECOND_US, 0)
    table = pa.table(
        {
            "k": pa.array(chance.choice(KEYS, count, p=shares), mask=chance.random(count) < 0.02),
            "m": pa.array(chance.integers(0, 6, count), pa.int32()),
            "s": pa.array([f"s{number}" for number in chance.integers(0, KEYS, count)]),
            "id": pa.array(first + np.arange(count)),
            "ts": pa.array(ts, mask=chance.random(count) < 0.02).cast(pa.timestamp("us", "UTC")),
        },
        schema=SCHEMA,
    )
    return [table.slice(number * rows, rows) for number in range(batches)]


def figures(rate: float, shares: Iterable[float], load_bytes: float = 2_000.0) -> StreamStats:
    """Statistics of one of the streams, given by hand."""
    bins = tuple(Bin(value, value, 1, float(share)) for value, share in enumerate(shares))
    load = (load_bytes, load_bytes, load_bytes, load_bytes, load_bytes)
    columns = {
        "k": ColumnStats(Number(len(bins)), Histogram(bins), (5.0, 5.0, 3.0, 2.0, 2.0)),
        "m": ColumnStats(Number(6), None, (3.0, 3.0, 1.5, 1.0, 1.0)),
        "id": ColumnStats(Number(1e6), None, (8.0, 8.0, 4.0, 3.0, 3.0)),
        "s": ColumnStats(Number(KEYS), None, load),
    }
    return StreamStats(Number(rate), None, columns)


def known(rates: Sequence[float] = RATES) -> Stats:
    """What planners are told of the three streams."""
    return Stats({name: figures(rate, popularity(n)) for n, (name, rate) in enumerate(zip(APART, rates, strict=True))})


@dataclass
class Scene:
    """Streams at sites, one planned query over them, and what is true of its answers."""

    directory: Path
    sql: str
    batches: dict[str, list[pa.Table]]
    homes: Mapping[str, str] = field(default_factory=lambda: APART)
    site: str = "nyc"
    planner: str = "auto"
    stats: Stats = field(default_factory=known)

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batches in self.batches.values() for batch in batches)

    @property
    def topology(self) -> wm.Topology:
        streams = tuple(
            wm.Stream(
                name,
                event_time="ts",
                schema=DDL,
                watermark=f"{DELAY_US} microseconds",
                site=home,
                source=wm.Source("parquet", str(self.directory / "data" / name), {"maxFilesPerTrigger": "1"}),
            )
            for name, home in self.homes.items()
        )
        query = wm.Query(
            "q", self.sql, sink=wm.Sink("parquet", str(self.out)), site=self.site, planner=self.planner
        )  # fmt: skip
        sites = tuple(wm.Site(name) for name in sorted({*self.homes.values(), self.site}))
        return wm.Topology(streams, (query,), sites, str(self.directory), stats=self.stats)

    def run(self, spark: Any) -> wm.StreamingRun:
        """Take all there is, at all sites."""
        handle = wm.start(self.topology, "q", spark=spark, checkpoint=self.checkpoint, once=True)
        handle.awaitTermination()
        return handle

    def expected(self) -> Bag:
        """The oracle's answers over the rows that take part."""
        tables = {name: sort_out(batches)[0] for name, batches in self.batches.items()}
        query = parse_query(self.sql, dict.fromkeys(self.homes, SCHEMA.names))
        return bag(answer(query, tables, dict.fromkeys(tables, "ts")))


@pytest.fixture
def make_scene(tmp_path: Path, write_stream: WriteStream) -> Callable[..., Scene]:
    """A scene whose rows are there; if nobody says otherwise, of three streams at three sites."""

    def make(**differs: Any) -> Scene:
        sql = f"SELECT {IDS}, a.s, b.s AS b_s, c.s AS c_s FROM a {R}, b {R}, c {R} {ONE_KEY}"
        batches = {name: mixed_batches(number) for number, name in enumerate(APART)}
        scene = Scene(tmp_path, **{"sql": sql, "batches": batches} | differs)
        for name, own in scene.batches.items():
            write_stream(name, own)
        return scene

    return make


def join_of(handle: wm.StreamingRun) -> JoinPlan:
    return join_plan_of(handle.plans["q"].plan)


# Every planner --------------------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "tree": {},
    "pmjoin": {},
    "optimal": {"sql": f"SELECT {IDS}, c.s FROM a {T}, b {R}, c {T} {ONE_KEY}"},
    "greedy": {"sql": f"SELECT {IDS}, a.s, b.s AS b_s FROM a {R}, b {T}, c {R} {TWO_KEYS}"},
    "exhaustive": {"sql": f"SELECT {IDS}, b.s FROM a {T}, b {T}, c {T} {TWO_KEYS}"},
    "simple": {"site": "ams"},
    "local-first": {"homes": {"a": "ams", "b": "ams", "c": "nyc"}},
    "auto": {"sql": f"SELECT {IDS}, a.s, b.s AS b_s, c.s AS c_s FROM a {R}, b {R}, c {T} {ONE_KEY}"},
}


def test_the_cases_are_of_every_planner() -> None:
    assert {*CASES, "central"} == {*PLANNERS, "auto"}


@pytest.mark.few(3)
@pytest.mark.parametrize("planner", list(CASES))
def test_every_planner_answers_as_the_oracle_says(spark: Any, make_scene: Callable[..., Scene], planner: str) -> None:
    scene = make_scene(planner=planner, **CASES[planner])
    handle = scene.run(spark)
    expected = scene.expected()
    assert len(expected) > 50, "an answer that says nothing"
    assert by_arrow(scene.out) == expected
    join = join_of(handle)
    assert handle.plans["q"].planner == planner and handle.plans["q"].cost is not None
    assert (len(join.sub_plans) > 1) == (planner == "pmjoin")
    assert ("Reducer(" in repr(join.sub_plans)) == (planner == "auto"), "a semijoin program ships the least here"
    assert all(isinstance(one, Linear) for one in join.sub_plans) == (planner in ("greedy", "exhaustive"))
    reasons = [sort_out(batches)[1].column("_reason").to_pylist() for batches in scene.batches.values()]
    aside = Counter(reason for some in reasons for reason in some)
    assert (handle.usage().late, handle.usage().malformed) == (aside["late"], aside["malformed"])
    assert min(aside.values()) > 0
    assert all(row.estimated_bytes is not None for row in handle.traffic.rows)


# Parts by force -------------------------------------------------------------------------------------------------------


def all_by(method: Method, bloom: bool = False) -> Linear:
    """Every head by one method."""
    aliases = list(APART)
    return Linear(
        tuple(
            HeadPlan(head, tuple(Hop(alias, method, bloom=bloom) for alias in (*aliases[n + 1 :], *aliases[:n][::-1])))
            for n, head in enumerate(aliases)
        )
    )


def nested(at: str, first: str, second: str, third: str, reduction: Reduction, bloom: bool = False) -> JoinNode:
    """Two streams meet at the home of the first, and their result meets the third one elsewhere."""
    inner = JoinNode(APART[first], (Input(Leaf(first)), Input(Leaf(second), reduction, bloom)))
    return JoinNode(at, (Input(Leaf(third)), Input(inner, reduction, bloom)))


FORCED: dict[str, tuple[tuple[SubPlan, ...], HashParts | RangeParts | ValueParts]] = {
    "by a hash": (
        (
            all_by(Method.SM_D1, bloom=True),
            nested("nyc", "a", "b", "c", Reduction.ONE_STEP),
            nested("ams", "b", "c", "a", Reduction.TWO_STEP, bloom=True),
        ),
        HashParts((0, 1, 2, 1)),
    ),
    "by ranges": (
        (
            nested("fra", "c", "b", "a", Reduction.TWO_STEP),
            JoinNode(
                "fra",
                (Input(Leaf("b")), Input(Leaf("a"), Reduction.ONE_STEP, bloom=True), Input(Leaf("c"))),
            ),
            all_by(Method.SM_S2),
        ),
        RangeParts((8, 17, 25), (0, 2, 1, 0)),
    ),
    "by values": (
        (
            all_by(Method.SP_S),
            all_by(Method.SM_D2),
            nested("nyc", "a", "b", "c", Reduction.NONE),
            nested("nyc", "b", "a", "c", Reduction.ONE_STEP, bloom=True),
        ),
        ValueParts((1, 3, 4, 9, 12, 20), (1, 2, 2, 1, 3, 3), 0),
    ),
}


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[SubPlan], HashParts | RangeParts | ValueParts], None]:
    """Let every query be planned by these sub-plans, each for some values of its first key."""

    def forced(sub_plans: Sequence[SubPlan], parts: HashParts | RangeParts | ValueParts) -> None:
        def choose(topology: wm.Topology, query: wm.Query, parsed: JoinQuery, *, every: bool = False) -> Chosen:
            homes = {stream.name: stream.site for stream in topology.streams}
            plan = central(parsed, topology.columns, homes, topology.query_site(query))
            join = replace(join_plan_of(plan), sub_plans=tuple(sub_plans), partition=Partition(0, parts))
            return Chosen(with_join(plan, join), "forced")

        monkeypatch.setattr(planning, "choose", choose)

    return forced


@pytest.mark.few(1)
@pytest.mark.parametrize("case", list(FORCED))
def test_parts_go_their_own_ways_to_the_answers_of_the_oracle(
    spark: Any, make_scene: Callable[..., Scene], force: Callable[..., None], case: str
) -> None:
    sub_plans, parts = FORCED[case]
    force(sub_plans, parts)
    windows = {"by a hash": (R, R, R), "by ranges": (T, T, T), "by values": (R, T, R)}[case]
    froms = ", ".join(f"{name} {window}" for name, window in zip(APART, windows, strict=True))
    tie = TWO_KEYS if case == "by ranges" else ONE_KEY
    scene = make_scene(sql=f"SELECT {IDS}, a.s, c.s AS c_s FROM {froms} {tie}")
    handle = scene.run(spark)
    assert join_of(handle).sub_plans == sub_plans
    expected = scene.expected()
    assert len(expected) > 50
    assert by_arrow(scene.out) == expected
    assert handle.traffic.estimated_bytes is None, "nobody has estimated what was forced"


# Going on -------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_plan_in_parts_goes_on_in_the_middle_with_every_answer_once(
    spark: Any, make_scene: Callable[..., Scene]
) -> None:
    whole = {name: mixed_batches(n, batches=6, rows=40) for n, name in enumerate(APART)}
    half = make_scene(batches={name: batches[:3] for name, batches in whole.items()})
    handle = wm.start(half.topology, "q", spark=spark, checkpoint=half.checkpoint, trigger="100 ms")

    def fine() -> None:
        assert handle.exception() is None

    try:
        wait_for(lambda: handle.usage().rows_out > 0, "no answers", fine)
    finally:
        handle.stop()
    fine()
    scene = replace(half, batches=whole)
    for name, batches in whole.items():
        for number, batch in enumerate(batches[3:], start=3):
            write_batch(batch, scene.directory / "data" / name / f"{number:05d}.parquet", number)
    assert len(join_of(handle).sub_plans) > 1
    expected = scene.expected()
    assert 0 < handle.usage().rows_in < scene.rows and 0 < by_arrow(scene.out).total() < expected.total()
    again = scene.run(spark)
    assert join_of(again) == join_of(handle)
    assert by_arrow(scene.out) == expected
    assert (again.usage().rows_in, again.usage().rows_out) == (scene.rows, expected.total())
    # Other values for each of the sub-plans are another plan, even if the sub-plans are the same.
    turned = {
        name: figures(rate, popularity((n + 1) % 3)) for n, (name, rate) in enumerate(zip(APART, RATES, strict=True))
    }
    turned_run = replace(scene, stats=Stats(turned)).run(spark)
    assert join_of(turned_run) != join_of(handle)
    assert by_arrow(scene.out) == expected


def test_statistics_that_change_the_plan_need_no_other_checkpoint(spark: Any, make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(planner="simple")
    before = join_of(scene.run(spark))
    after = join_of(replace(scene, stats=known((40.0, 12.0, 14.0))).run(spark))
    assert before != after
    assert by_arrow(scene.out) == scene.expected()
    # Figures that change no decision change nothing.
    again = replace(scene, stats=known((10.5, 12.5, 14.5))).run(spark)
    assert join_of(again) == before
    assert by_arrow(scene.out) == scene.expected()


# What was foreseen ----------------------------------------------------------------------------------------------------


def steady_rows(stream: int, rate: int, seconds: int, shares: np.ndarray) -> pa.Table:
    """Rows at even distances with values drawn by their shares, and a load that compression does not make smaller."""
    chance = np.random.default_rng([7, stream])
    count = rate * seconds
    load = ["".join(map(chr, letters)) for letters in chance.integers(33, 127, (count, 60))]
    table = {
        "k": pa.array(chance.choice(len(shares), count, p=shares)),
        "m": pa.array(np.zeros(count, np.int32)),
        "s": pa.array(load),
        "id": pa.array(np.arange(count)),
        "ts": pa.array(np.arange(count) * (SECOND_US // rate) + stream).cast(pa.timestamp("us", "UTC")),
    }
    return pa.table(table, schema=SCHEMA)


def measured_figures(table: pa.Table, rate: float, shares: np.ndarray) -> StreamStats:
    """The very figures that rows were drawn by, and sizes as they are."""
    stats = figures(rate, shares)
    columns = dict(stats.columns)
    for name in ("k", "id", "s"):
        sizes, in_order = Sizes(), Sizes()
        sizes.measure(table.select([name]), slices=5, mixed_up=True)
        in_order.measure(table.select([name]), slices=5)
        columns[name] = replace(columns[name], sizes=sizes.each, in_order=in_order.each)
    return replace(stats, columns=columns)


def test_a_steady_workload_ships_what_was_estimated(spark: Any, make_scene: Callable[..., Scene]) -> None:
    seconds, homes = 36, {"a": "ams", "b": "nyc"}
    rates = {"a": 400, "b": 500}
    shares = {name: popularity(number, 100.0, keys=1_600, streams=2) for number, name in enumerate(homes)}
    tables = {name: steady_rows(n, rates[name], seconds, shares[name]) for n, name in enumerate(homes)}
    batches = {
        name: [table.slice(low, rates[name]) for low in range(0, table.num_rows, rates[name])]
        for name, table in tables.items()
    }
    stats = Stats({name: measured_figures(tables[name], rates[name], shares[name]) for name in homes})
    sql = f"SELECT a.id AS a_id, a.s AS a_s, b.id AS b_id, b.s AS b_s FROM a {R}, b {R} WHERE a.k = b.k"
    scene = make_scene(sql=sql, homes=homes, batches=batches, stats=stats)
    handle = scene.run(spark)
    progress = handle.lastProgress
    assert progress is not None and set(progress["sites"]) == {"ams", "nyc"}
    assert all(site["batchId"] + 1 >= seconds for site in progress["sites"].values())
    assert by_arrow(scene.out).total() == handle.usage().rows_out == scene.expected().total()
    traffic = handle.traffic
    pairs = {(row.origin, row.to) for row in traffic.rows}
    assert pairs == {("ams", "nyc"), ("nyc", "ams")} and len(join_of(handle).sub_plans) > 1
    assert all(row.estimated_bytes is not None for row in traffic.rows)
    assert traffic.estimated_bytes == pytest.approx(traffic.bytes, rel=0.2)
