"""GROUP BY queries that share records answer what they would answer by themselves, and what the oracle does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from seeds import FreshSeeds

from watersmeet.planners.local import local
from watersmeet.program.operators import Purpose
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.program.site.families import LEAST_SHARED
from watersmeet.query.bags import bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites

SECOND = 1_000_000
END_US = 7_200 * SECOND
STAMP = pa.timestamp("us", "UTC")
BATCHES = 12
COLUMNS = {"a": ["k", "g", "v", "x", "s", "ts"]}
FILTERS = (
    "a.k >= {low} AND a.k < {high}",
    "a.k < {low} OR a.v > {high}",
    "a.s IN ('p', 'q') AND a.k <> {low}",
    "NOT (a.s = 'r' OR a.v <= {high})",
    "a.v IS NULL OR a.k BETWEEN {low} AND {high}",
    "a.x > 0.25 AND a.s > 'p'",
    "a.v % 3 = 1 AND a.k > {low}",  # more than comparisons: evaluated
    "1 = 1",
)
AGGREGATES = (
    "count(*) AS n",
    "count(*) AS n, sum(a.v) AS total, avg(a.v) AS mean",
    "max(a.v) AS most, min(a.x) AS least",
    "var_samp(a.x) AS spread, count(DISTINCT a.s) AS kinds, count(a.v) AS known",
)
TAILS = (
    "GROUP BY a.g, TUMBLE(1 MINUTE)",
    "GROUP BY a.g, HOP(3 MINUTES, 1 MINUTE)",
    "GROUP BY a.g, TUMBLE(1 MINUTE) ORDER BY n DESC LIMIT 2",
    "GROUP BY TUMBLE(1 MINUTE)",
)


def rows_of(seed: int, count: int, disorder_us: int = 0) -> pa.Table:
    """Ten minutes of rows with NULLs, out of order by as much, and a last one much later."""
    chance = np.random.default_rng(seed)
    ts = np.sort(chance.integers(0, 600 * SECOND, count))
    ts = ts[np.argsort(ts + chance.integers(0, disorder_us + 1, count), kind="stable")]
    ts[-1] = END_US

    def some(values: object, share: float) -> pa.Array:
        return pa.array(values, mask=chance.random(count) < share)

    return pa.table(
        {
            "k": some(chance.integers(0, 20, count), 0.05),
            "g": some(chance.integers(0, 3, count), 0.1),
            "v": some(chance.integers(-(2**62), 2**62, count) // 10**6, 0.2),
            "x": some(chance.normal(size=count), 0.1),
            "s": some(chance.choice(np.array(["p", "q", "r"]), count), 0.1),
            "ts": pa.array(ts, STAMP),
        }
    )


@dataclass(frozen=True)
class Scene:
    """Queries over one stream, those that come later and those that go."""

    rows: pa.Table
    queries: Mapping[str, JoinQuery]
    later: Mapping[str, JoinQuery]
    removed: Sequence[str]
    site: str
    delay_us: int
    crashes: Sequence[tuple[str, int, int]]

    def run(self, *, shares: bool) -> SimulatedSites:
        plans = {name: local(query, COLUMNS, "here", self.site) for name, query in self.queries.items()}
        later = {name: local(query, COLUMNS, "here", self.site) for name, query in self.later.items()}
        sites = SimulatedSites(
            *(plans, {"a": "ts"}),
            interval_us=SECOND // 10,
            delays_us={"a": self.delay_us},
            changes=True,
            sites=("here", "hub"),
            shares=shares,
        )
        size = -(-self.rows.num_rows // BATCHES)
        for number in range(BATCHES):
            sites.feed(number * SECOND, {"a": self.rows.slice(number * size, size)})
        if later:
            begin = tuple(QueryPlan(name, plan, is_fresh=True) for name, plan in later.items())
            sites.change(BATCHES * SECOND // 3, Change(begin))
        if self.removed:
            sites.change(2 * BATCHES * SECOND // 3, Change(removed=tuple(self.removed)))
        for crash in self.crashes:
            sites.crash(*crash)
        sites.run()
        return sites


def drawn(seed: int, *, count: int = 1_500, late: bool = False) -> Scene:
    random = Random(seed)
    disorder_us = random.choice([0, 5 * SECOND])
    rows = rows_of(seed, count, 60 * SECOND if late else disorder_us)
    aggregate = random.choice(AGGREGATES)
    tails = [tail for tail in TAILS if "n DESC" not in tail or "AS n" in aggregate]
    tail, other = random.choice(tails), random.choice(tails)

    def query() -> JoinQuery:
        low = random.randrange(15)
        condition = random.choice(FILTERS).format(low=low, high=low + random.randrange(1, 8))
        windows = tail if random.random() < 0.8 else other
        keys = "a.g, " if "a.g" in windows else ""
        sql = f"SELECT {keys}{aggregate}, window_start AS w FROM a WHERE {condition} {windows}"
        return typed(parse_query(sql, COLUMNS), {"a": rows.schema})

    names = [f"q{number}" for number in range(random.randrange(2, 12))]
    later = [f"z{number}" for number in range(random.randrange(0, 6))]
    crashes = [
        (random.choice(["here", "hub"]), random.randrange(1, BATCHES) * SECOND + 50_000, SECOND // 2)
        for _ in range(random.randrange(3))
    ]
    return Scene(
        rows,
        {name: query() for name in names},
        {name: query() for name in later},
        random.sample(names, random.randrange(len(names))),
        random.choice(["here", "hub"]),
        disorder_us,
        crashes,
    )


def by_group(rows: Sequence[Mapping[str, Any]], *, nearly: bool = False) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Answers by group and window, each once; doubles are equal to nine digits: sums of them depend on their order."""
    found = {(row["w"], row.get("g")): row for row in rows}
    assert len(found) == len(rows)
    return {
        key: {
            name: pytest.approx(value, rel=1e-9, abs=1e-9) if nearly and isinstance(value, float) else value
            for name, value in row.items()
        }
        for key, row in found.items()
    }


def check(seed: int) -> tuple[bool, bool]:
    """Whether queries of a seed have shared, and whether some have begun or stopped to."""
    scene = drawn(seed)
    sites = scene.run(shares=True)
    begun = {one.query: entry.at_us for entry in sites.takeovers for one in entry.change.plans}
    ended = {name: entry.at_us for entry in sites.takeovers for name in entry.change.removed}
    for name, query in {**scene.queries, **scene.later}.items():
        until_us = ended.get(name)
        reached = END_US - scene.delay_us if until_us is None else until_us
        times = {"start_us": begun.get(name), "heads_before_us": until_us, "watermark_us": reached}
        expected = answer(query, {"a": scene.rows}, {"a": "ts"}, **times)
        found = [expected.slice(0, 0), *sites.answers(name)]
        rows = [row for table in found for row in table.to_pylist()]
        assert by_group(rows) == by_group(expected.to_pylist(), nearly=True), f"seed {seed}: {name} {query}"
    return bool(shared_at(sites)), len(sites.takeovers) > 0


def shared_at(sites: SimulatedSites) -> list[str]:
    return [family.shape.name for program in sites.programs.values() for family in program.families]


def test_queries_with_the_same_filter_begin_to_share_their_records_once() -> None:
    assert check(2088854997) == (True, True)


def test_a_query_whose_join_another_one_leaves_goes_on_with_its_windows() -> None:
    assert check(51) == (True, True)


@pytest.mark.few(1)
@pytest.mark.parametrize("chunk", range(3))
def test_answers_are_those_of_the_oracle_whatever_comes_and_goes(chunk: int) -> None:
    found = [check(seed) for seed in range(chunk * 4, (chunk + 1) * 4)]
    assert any(shared for shared, _ in found)
    assert any(changed for _, changed in found)


def test_answers_of_fresh_seeds_are_those_of_the_oracle(fresh_seeds: FreshSeeds) -> None:
    for seed in fresh_seeds.take(1):
        check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(20))
def test_answers_of_hundreds_of_seeds_are_those_of_the_oracle(chunk: int) -> None:
    for seed in range(1_000 + chunk * 20, 1_020 + chunk * 20):
        check(seed)


@pytest.mark.parametrize("seed", range(2))
def test_late_rows_are_left_out_as_they_are_without_sharing(seed: int) -> None:
    scene = drawn(100 + seed, late=True)
    shared, direct = scene.run(shares=True), scene.run(shares=False)
    late = [one.sites["here"].ledger.streams["a"].late for one in (shared, direct)]
    assert late[0] == late[1] > 0
    for name in scene.queries:
        assert [bag_of(table) for table in shared.answers(name)] == [bag_of(table) for table in direct.answers(name)]


def counting(conditions: Sequence[str], aggregate: str = "count(*) AS n", site: str = "hub") -> Scene:
    rows = rows_of(3, 4_000)
    sql = f"SELECT {aggregate}, window_start AS w FROM a WHERE {{}} GROUP BY TUMBLE(10 SECONDS)"
    parsed = [typed(parse_query(sql.format(one), COLUMNS), {"a": rows.schema}) for one in conditions]
    return Scene(rows, {f"q{number}": one for number, one in enumerate(parsed)}, {}, (), site, 0, ())


def records(sites: SimulatedSites) -> tuple[int, int]:
    """Records that travelled, and their bytes."""
    counts = sites.traffic["here", "hub"][Purpose.RECORDS]
    return counts.tuples, counts.bytes


def test_fewer_records_than_queries_travel_where_fragments_are_few() -> None:
    scene = counting([f"a.k >= {low} AND a.k < {high}" for low in range(0, 20, 4) for high in range(low + 4, 21, 4)])
    shared, direct = records(scene.run(shares=True)), records(scene.run(shares=False))
    queries, fragments = len(scene.queries), 5
    assert shared[0] <= direct[0] * fragments / queries * 1.05
    assert shared[1] <= direct[1] * fragments / queries


def test_no_more_records_than_queries_travel_where_fragments_are_many() -> None:
    scene = counting([f"a.k <> {number} AND a.v > {number}" for number in range(6)] + ["a.x > 0", "a.s = 'p'"])
    shared, direct = records(scene.run(shares=True)), records(scene.run(shares=False))
    assert shared[0] == direct[0]
    assert shared[1] < direct[1]


def test_a_cover_of_the_fragments_travels_where_duplicates_do_not_count() -> None:
    parts = ["a.k < 7", "a.v > 0", "a.s = 'p'"]
    every = [[part for place, part in enumerate(parts) if bits >> place & 1] for bits in range(1, 8)]
    scene = counting([" OR ".join(some) for some in every], "max(a.x) AS most")
    shared, direct = records(scene.run(shares=True)), records(scene.run(shares=False))
    assert shared[0] <= direct[0] * 3 / 7 * 1.05
    assert shared[1] < direct[1] / 2  # sets are written out once


@pytest.mark.parametrize("aggregate", ["count(*) AS n", "count(*) AS n, sum(a.v) AS total"])
def test_records_of_independent_queries_travel_where_fragments_and_queries_are_more(aggregate: str) -> None:
    parts = ["a.k < 7", "a.v > 0", "a.s = 'p'", "a.x > 0.5", "a.g = 1"]
    pairs = [(one, other) for one in range(len(parts)) for other in range(one)]
    conditions = [f"{parts[one]} {word} {parts[other]}" for one, other in pairs for word in ("AND", "OR")]
    scene = counting([*parts, *conditions], aggregate)
    sharing = scene.run(shares=True)
    shared, direct = records(sharing), records(scene.run(shares=False))
    rank, queries = len(parts) + len(pairs), len(scene.queries)
    assert rank < queries < 2 ** len(parts)
    assert shared[0] <= direct[0] * rank / queries
    assert shared[1] <= direct[1] * rank / queries  # (1 - gain) of the bytes, entries that are written out included
    for name, query in scene.queries.items():
        expected = answer(query, {"a": scene.rows}, {"a": "ts"}, watermark_us=END_US)
        found = [row for table in sharing.answers(name) for row in table.to_pylist()]
        assert by_group(found) == by_group(expected.to_pylist())


def test_a_few_queries_have_records_of_their_own() -> None:
    conditions = [f"a.k = {number}" for number in range(LEAST_SHARED)]
    assert len(shared_at(counting(conditions).run(shares=True))) == 1
    assert shared_at(counting(conditions[1:]).run(shares=True)) == []


def test_state_does_not_outlive_its_windows_and_queries() -> None:
    scene = counting([f"a.k = {number}" for number in range(8)], site="here")
    (site,) = [one for one in scene.run(shares=True).sites.values() if one.name == "here"]
    kept = {name: sum(segment.rows for segment in some) for name, some in site.ledger.groups.items() if some}
    assert len(kept) <= 1
    assert sum(kept.values()) <= 1  # of the last row's window
    assert not any(site.ledger.relations.values())
