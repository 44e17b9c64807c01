"""Groups over sites: partial records travel instead of rows, and state does not outlive its windows."""

import numpy as np
import pyarrow as pa
import pytest
from seeds import scaled

from watersmeet.plan.nodes import Hop, Method, Plan
from watersmeet.planners.local import local
from watersmeet.planners.sited import explicit
from watersmeet.program.operators import Purpose
from watersmeet.program.site.changes import Change, QueryPlan
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import typed
from watersmeet.sim.sites.simulated import SimulatedSites

SECOND_US = 1_000_000
STAMP = pa.timestamp("us", "UTC")
TIMES = {"a": "ts", "b": "ts"}
ROWS, GROUPS, BATCHES = 12_000, 50, 8


def rows_of(seed: int, count: int = ROWS) -> pa.Table:
    """Rows in order of time, ten minutes long, and a last one an hour later."""
    chance = np.random.default_rng(seed)
    ts = np.sort(chance.integers(0, 600 * SECOND_US, count))
    ts[-1] = 3_600 * SECOND_US
    return pa.table(
        {
            "k": chance.integers(0, 5_000, count),
            "g": chance.integers(0, GROUPS, count),
            "v": chance.integers(0, 1_000, count),
            "ts": pa.array(ts, STAMP),
        }
    )


def run(plan: Plan, tables: dict[str, pa.Table], *later: Plan) -> SimulatedSites:
    """Feed rows a batch a second; each later plan is asked for two seconds after the one before it."""
    sites = SimulatedSites(plan, TIMES, interval_us=100_000, changes=bool(later), sites=("hub",) if later else ())
    for number, other in enumerate(later, start=1):
        sites.change(2 * number * SECOND_US + 500_000, Change((QueryPlan("q", other),)))
    for number in range(BATCHES):
        size = ROWS // BATCHES
        sites.feed(number * SECOND_US, {name: table.slice(number * size, size) for name, table in tables.items()})
    sites.run()
    return sites


def shipped(sites: SimulatedSites, purpose: Purpose) -> int:
    return sum(counts[purpose].bytes for counts in sites.traffic.values() if purpose in counts)


GROUPED = "count(*) AS n, sum(a.v) AS total, avg(a.v) AS mean"
TAIL = "GROUP BY a.g, TUMBLE(10 MINUTES)"


def test_records_of_one_stream_travel_instead_of_its_rows() -> None:
    tables = {"a": rows_of(1)}
    columns = {"a": tables["a"].column_names}
    grouped = parse_query(f"SELECT a.g, {GROUPED} FROM a {TAIL}", columns)
    plain = parse_query("SELECT a.g, a.v FROM a", columns)
    by_records, by_rows = (run(local(query, columns, "here", "hub"), tables) for query in (grouped, plain))
    expected = answer(grouped, tables, TIMES, watermark_us=3_600 * SECOND_US)
    assert bag_of(pa.concat_tables(by_records.answers())) == bag_of(expected)
    assert expected.num_rows == GROUPS
    assert shipped(by_records, Purpose.RESULTS) == 0
    assert 0 < shipped(by_records, Purpose.RECORDS) * 15 < shipped(by_rows, Purpose.RESULTS)
    # The last row's window is open, and nothing else is kept of groups.
    kept = {
        name: [one for some in site.ledger.groups.values() for one in some] for name, site in by_records.sites.items()
    }
    assert {name: sum(segment.rows for segment in some) for name, some in kept.items()} == {"here": 1, "hub": 0}


@pytest.mark.parametrize("site", ["here", "hub"])
def test_conditions_of_groups_are_answered_as_by_the_oracle(site: str) -> None:
    tables = {"a": rows_of(2)}
    columns = {"a": tables["a"].column_names}
    items = "bool_and(a.v > 5) AS all_high, every(a.k <> 7) AS none, bool_or(a.v > 990) AS some_high"
    query = parse_query(f"SELECT a.g, {items} FROM a GROUP BY a.g, HOP(2 MINUTES, 1 MINUTE)", columns)
    expected = answer(query, tables, TIMES, watermark_us=3_600 * SECOND_US)
    found = run(local(query, columns, "here", site), tables)
    assert bag_of(pa.concat_tables(found.answers())) == bag_of(expected)
    for name in ("all_high", "none", "some_high"):
        assert set(expected.column(name).to_pylist()) == {True, False}


@pytest.mark.parametrize("tail", [TAIL, "GROUP BY a.g, HOP(4 MINUTES, 1 MINUTE) ORDER BY n DESC LIMIT 5"])
def test_records_of_a_join_travel_to_the_site_of_the_query(tail: str) -> None:
    tables = {"a": rows_of(1), "b": rows_of(2)}
    columns = {name: table.column_names for name, table in tables.items()}
    source = "FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
    query = parse_query(f"SELECT a.g, {GROUPED}, window_end {source} {tail}", columns)
    homes = {"a": "n1", "b": "n2"}
    steps = {"a": [Hop("b")], "b": [Hop("a")]}
    query_typed = typed(query, {name: table.schema for name, table in tables.items()})
    sites = run(explicit(query_typed, columns, homes, "hub", steps), tables)
    expected = answer(query, tables, TIMES, watermark_us=3_600 * SECOND_US)
    assert bag_of(pa.concat_tables(sites.answers())) == bag_of(expected)
    assert shipped(sites, Purpose.RESULTS) == 0 < shipped(sites, Purpose.RECORDS)
    assert {link for link, counts in sites.traffic.items() if Purpose.RECORDS in counts} == {
        ("n1", "hub"),
        ("n2", "hub"),
    }


@pytest.mark.few(3)
@pytest.mark.parametrize("tail", [", TUMBLE(70 SECONDS)", ", HOP(4 MINUTES, 1 MINUTE)", " EMIT CHANGES"])
@pytest.mark.parametrize("methods", [(None, Method.SP_S, None), (Method.SM_S1, None, Method.SP_S)])
def test_groups_are_right_while_plans_change(tail: str, methods: tuple[Method | None, ...]) -> None:
    """Answers come about at the streams' sites by one plan and at the query's by another, within one window too."""
    tables = {"a": rows_of(1), "b": rows_of(2)}
    columns = {name: table.column_names for name, table in tables.items()}
    source = "FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"
    query = parse_query(f"SELECT a.g, {GROUPED} {source} GROUP BY a.g{tail}", columns, event_times=TIMES)
    query_typed = typed(query, {name: table.schema for name, table in tables.items()})

    def plan(method: Method | None) -> Plan:
        at = "hub" if method is None else None
        hops = {"a": [Hop("b", method or Method.SP_S, at=at)], "b": [Hop("a", method or Method.SP_S, at=at)]}
        return explicit(query_typed, columns, {"a": "n1", "b": "n2"}, "hub", hops)

    first, *later = map(plan, methods)
    sites = run(first, tables, *later)
    assert [entry.refused for entry in sites.takeovers] == ["", ""]
    expected = answer(query, tables, TIMES, watermark_us=3_600 * SECOND_US)
    assert bag_of(pa.concat_tables(sites.answers())) == bag_of(expected)
    assert shipped(sites, Purpose.RECORDS) > 0
    # Only the groups of the last row's windows are kept, and nothing of versions that are over.
    kept = {name for site in sites.sites.values() for name, segments in site.ledger.groups.items() if segments}
    assert kept <= {"q", *(f"q~3:records of q from {site}" for site in ("n1", "n2"))}


@pytest.mark.parametrize("history", [True, False])
def test_a_query_that_shares_its_join_is_replaced_under_another_group_by(history: bool) -> None:
    """The old one answers windows that end before the change, the new one has rows from it on, the other all."""
    tables = {"a": rows_of(1), "b": rows_of(2)}
    columns = {name: table.column_names for name, table in tables.items()}
    source = "FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k"

    def grouped(tail: str) -> tuple[JoinQuery, Plan]:
        query = parse_query(f"SELECT a.g, {GROUPED}, window_end {source} GROUP BY {tail}", columns)
        query_typed = typed(query, {name: table.schema for name, table in tables.items()})
        steps = {"a": [Hop("b")], "b": [Hop("a")]}
        return query, explicit(query_typed, columns, {"a": "n1", "b": "n2"}, "hub", steps)

    (old, old_plan), (other, other_plan) = grouped("a.g, TUMBLE(70 SECONDS)"), grouped("a.g, TUMBLE(1 MINUTE)")
    new, new_plan = grouped("a.g, HOP(4 MINUTES, 1 MINUTE)")
    sites = SimulatedSites({"q": old_plan, "other": other_plan}, TIMES, changes=True, history=history, sites=("hub",))
    sites.change(3_500_000, Change((QueryPlan("q", new_plan, is_fresh=True),)))
    size = ROWS // BATCHES
    for number in range(BATCHES):
        batch = {name: table.slice(number * size, size) for name, table in tables.items()}
        sites.feed(number * SECOND_US, batch)
    sites.run()
    (entry,) = sites.takeovers
    assert not entry.refused and 0 < entry.at_us < 600 * SECOND_US

    def due(query: JoinQuery, **times: int) -> Bag:
        return bag_of(answer(query, tables, TIMES, **{"watermark_us": 3_600 * SECOND_US, **times}))

    before = due(old, heads_before_us=entry.at_us, watermark_us=entry.at_us)
    after = due(new, start_us=entry.at_us)
    assert before and after
    assert bag_of(pa.concat_tables(sites.answers("q"))) == before + after
    assert bag_of(pa.concat_tables(sites.answers("other"))) == due(other)
    assert set(sites.sites["hub"].ledger.closed) == {"q~2", "other"}, "nothing is kept of what is over"


def test_the_greatest_and_least_values_of_groups_are_those_of_the_oracle() -> None:
    chance = np.random.default_rng(5)
    values = pa.array(chance.integers(0, 9, 300), mask=chance.random(300) < 0.4)
    ts = pa.array(np.arange(300) * 200_000, pa.int64()).cast(STAMP)
    rows = pa.table({"k": pa.array(chance.integers(0, 20, 300)), "v": values, "ts": ts})
    sql = "SELECT k, max_k(v, 3) AS most, min_k(v, 2) AS least, window_start AS w FROM a GROUP BY k, TUMBLE(7 SECONDS)"
    query = parse_query(sql, {"a": rows.column_names})
    sites = SimulatedSites(local(query, {"a": rows.column_names}, "here", "hub"), {"a": "ts"})
    for number in range(10):
        sites.feed(number * 100_000, {"a": rows.slice(30 * number, 30)})
    sites.run()
    expected = answer(query, {"a": rows}, {"a": "ts"}, watermark_us=299 * 200_000)
    found = pa.concat_tables(sites.answers("q"))
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    assert {len(one) for one in found.column("most").to_pylist()} == {0, 1, 2, 3}


SKETCHES = "approx_count_distinct(v) AS d, approx_percentile(v, 0.5, 50) AS p, approx_top_k(v, 3, 50) AS t"


@pytest.mark.soak
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, count(*) AS n, avg(v) AS m FROM a GROUP BY k, TUMBLE(7 SECONDS)",
        "SELECT k, count(DISTINCT v) AS n FROM a GROUP BY k, HOP(30 SECONDS, 5 SECONDS) ORDER BY n LIMIT 3",
        f"SELECT k, {SKETCHES} FROM a GROUP BY k, TUMBLE(20 SECONDS)",
        "SELECT k, count(*) AS n, sum(v) AS s FROM a [RANGE 20 SECONDS] GROUP BY k EMIT CHANGES",
        "SELECT k, max(v) AS m, count(DISTINCT v) AS d FROM a [TUMBLE 20 SECONDS] GROUP BY k EMIT CHANGES",
        f"SELECT k, {SKETCHES} FROM a [RANGE 20 SECONDS] GROUP BY k EMIT CHANGES",
        "SELECT v, count(*) AS n, max(k) AS k FROM a [UNBOUNDED] GROUP BY v EMIT CHANGES",
        "SELECT k, count(*) AS n, sum(v) AS s FROM a [ROWS 150] GROUP BY k EMIT CHANGES",
    ],
    ids=["tumble", "hop", "sketches", "negated", "recomputed", "sketches anew", "unbounded", "counted"],
)
def test_state_of_groups_is_flat_in_a_long_run(sql: str) -> None:
    """Keys come for some seconds and never again; each micro-batch has five seconds of rows."""
    batches = scaled(1_000)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", STAMP)])
    query = parse_query(sql, {"a": schema.names}, event_times={"a": "ts"})
    sites = SimulatedSites(local(query, {"a": schema.names}, "here"), {"a": "ts"}, interval_us=100_000)
    sizes: list[tuple[int, int]] = []

    def note() -> None:
        kept = sites.sites["here"].ledger.groups.get("q", ())
        sizes.append((sum(one.rows for one in kept), len(kept)))
        sites.sites["here"].answers.clear()  # those are not state

    for number in range(batches):
        ts = number * 5 * SECOND_US + np.arange(50) * (SECOND_US // 10)
        values = np.random.default_rng(number).integers(0, 200, 50)
        table = pa.table({"k": ts // (3 * SECOND_US), "v": values, "ts": pa.array(ts, STAMP)})
        sites.feed(number * SECOND_US, {"a": table})
        sites.kernel.at(number * SECOND_US + 900_000, note)
    sites.run()
    quarter = len(sizes) // 4
    for early, late in zip(
        zip(*sizes[quarter : 2 * quarter], strict=True), zip(*sizes[-quarter:], strict=True), strict=True
    ):
        assert max(late) <= 1.5 * max(early) + 4, sizes[:: max(quarter // 10, 1)]


@pytest.mark.few(1)
@pytest.mark.parametrize("items", ["count(*) AS n, sum(a.v) AS s", "max(a.v) AS m, count(DISTINCT a.v) AS d"])
def test_state_of_changes_is_bounded_by_the_window(items: str) -> None:
    """Each key comes for some seconds and never again: what has expired is dropped, not only subtracted."""
    seconds, per_second = 750, 10
    ts = np.arange(seconds * per_second) * (SECOND_US // per_second)
    table = pa.table({"k": ts // (5 * SECOND_US), "v": ts % 7, "ts": pa.array(ts, STAMP)})
    columns = {"a": table.column_names}
    sql = f"SELECT k, {items} FROM a [RANGE 20 SECONDS] GROUP BY k EMIT CHANGES"
    query = parse_query(sql, columns, event_times={"a": "ts"})
    sites = SimulatedSites(local(query, columns, "here"), {"a": "ts"}, interval_us=100_000)
    sizes: list[int] = []
    segments: list[int] = []

    def note() -> None:
        kept = sites.sites["here"].ledger.groups.get("q", ())
        sizes.append(sum(one.rows for one in kept))
        segments.append(len(kept))

    for number in range(seconds // 5):
        sites.feed(number * SECOND_US, {"a": table.slice(number * 50, 50)})
        sites.kernel.at(number * SECOND_US + 900_000, note)
    sites.run()
    expected = answer(query, {"a": table}, {"a": "ts"}, watermark_us=int(ts[-1]))
    assert bag_of(pa.concat_tables(sites.answers())) == bag_of(expected)
    assert max(sizes[-50:]) <= 1.5 * max(sizes[50:100]) <= 3_000, sizes
    assert max(segments) < 30, segments
