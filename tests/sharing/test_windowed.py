"""Windowed aggregates of many queries in one pass against DuckDB, and the same through every decomposition."""

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from test_fragments import sql

from watersmeet.errors import InputError, TypeMismatch, UnknownColumn
from watersmeet.sharing.aggregates import Algebra, decompose
from watersmeet.sharing.decomposition import query_extremes, query_sums, shared_sums
from watersmeet.sharing.panes import Window, pane_us, tumbling, windows_closed
from watersmeet.sharing.predicates import And, Comparison, IsNull, Not, OneOf, Or, Predicate
from watersmeet.sharing.windowed import SharedAggregation, WindowedQuery, exact_sums

SECOND = 1_000_000
SCHEMA = {
    "ts": pa.timestamp("us"),
    "v": pa.int64(),
    "port": pa.int32(),
    "size": pa.float64(),
    "host": pa.string(),
    "zone": pa.string(),
}


def rows(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    nothing = rng.random(count) < 0.05
    return pa.table(
        {
            "ts": pa.array(np.sort(rng.integers(-5 * SECOND, 60 * SECOND, count)), pa.timestamp("us")),
            "v": pa.array(rng.integers(-(2**62), 2**62, count), mask=rng.random(count) < 0.1),
            "port": pa.array(rng.integers(0, 1000, count).astype(np.int32), mask=nothing),
            "size": pa.array(rng.random(count) * 1500, mask=nothing),
            "host": pa.array([f"h{number}" for number in rng.integers(0, 7, count)], mask=nothing),
            "zone": pa.array([f"z{number}" for number in rng.integers(0, 3, count)], mask=rng.random(count) < 0.1),
        }
    )


def random_predicate(rng: np.random.Generator) -> Predicate:
    low, high = sorted(rng.integers(0, 20, 2).tolist())
    parts: list[Predicate] = [And((Comparison("port", ">=", 50 * low), Comparison("port", "<", 50 * high + 25)))]
    if rng.random() < 0.4:
        parts.append(Comparison("size", ">", float(100 * rng.integers(0, 15))))
    if rng.random() < 0.3:
        hosts = tuple(f"h{number}" for number in rng.choice(7, 3, replace=False).tolist())
        parts.append(OneOf("host", hosts) if rng.random() < 0.7 else Not(OneOf("host", hosts)))
    if rng.random() < 0.1:
        return Or((And(tuple(parts)), IsNull("port"), Comparison("zone", "=", "z1")))
    return And(tuple(parts))


def run(queries: list[WindowedQuery], data: pa.Table, batch_rows: int, delay_us: int = 0) -> tuple[Counter[Any], Any]:
    shared = SharedAggregation(queries, SCHEMA, "ts", "v")
    tables = []
    for batch in data.to_batches(max_chunksize=batch_rows):
        shared.on_batch(batch)
        last = batch.column("ts").cast(pa.int64())[-1].as_py()
        tables.append(shared.on_watermark(last - delay_us))
    tables.append(shared.on_watermark(1000 * SECOND))
    found: Counter[Any] = Counter()
    for table in tables:
        for row in table.to_pylist():
            start = (
                int(row["window_start"].timestamp() * SECOND)
                if row["window_start"].tzinfo
                else _us(row["window_start"])
            )
            total = None if row["sum"] is None else int(row["sum"])
            found[
                row["query"],
                start,
                row.get("host"),
                row.get("zone"),
                row["rows"],
                row["count"],
                total,
                row["min"],
                row["max"],
            ] += 1
    return found, shared


def _us(moment: Any) -> int:
    return int(np.datetime64(moment, "us").astype(np.int64))


def expected(queries: list[WindowedQuery], data: pa.Table) -> Counter[Any]:
    connection = duckdb.connect()
    connection.register("data", data)
    found: Counter[Any] = Counter()
    for query in queries:
        size, slide = query.window.size_us, query.window.slide_us
        groups = [f"r.{name}" if name in query.group_by else f"NULL AS {name}" for name in ("host", "zone")]
        keys = ", ".join(["k", *(f"r.{name}" for name in query.group_by)])
        answers = connection.execute(
            f"""
            WITH r AS (SELECT *, epoch_us(ts) AS us FROM data WHERE {sql(query.predicate)}),
            starts AS (
                SELECT unnest(generate_series(-{size // slide + 100}, 70000000 // {slide})) * {slide} AS k
            )
            SELECT k, {", ".join(groups)}, count(*), count(v), sum(v::HUGEINT), min(v), max(v)
            FROM starts JOIN r ON us >= k AND us < k + {size} GROUP BY {keys}
            """
        ).fetchall()
        for row in answers:
            found[(query.name, *row)] += 1
    return found


def test_many_queries_are_answered_as_duckdb_does() -> None:
    rng = np.random.default_rng(7)
    windows = [tumbling(10 * SECOND), Window(20 * SECOND, 5 * SECOND), tumbling(4 * SECOND)]
    groupings = [(), ("host",), ("zone",), ("host", "zone")]
    queries = [
        WindowedQuery(f"q{number}", random_predicate(rng), windows[number % 3], groupings[number % 4])
        for number in range(36)
    ]
    data = rows(4_000, 1)
    found, shared = run(queries, data, 700)
    assert found == expected(queries, data)
    assert shared.late_rows == 0
    assert not shared._panes  # all expired
    again, _ = run(queries, data, 4_000)
    assert again == found


def test_a_thousand_queries_share_their_fragments() -> None:
    rng = np.random.default_rng(3)
    queries = [WindowedQuery(f"q{number}", random_predicate(rng), tumbling(60 * SECOND)) for number in range(1_000)]
    data = rows(3_000, 2)
    found, shared = run(queries, data, 1_000)
    some = queries[::20]
    names = {query.name for query in some}
    assert Counter({key: count for key, count in found.items() if key[0] in names}) == expected(some, data)
    assert {key[0] for key in found} > names
    assert 100 < len(shared.classifier.fragments) <= 3_000


def test_answers_through_shared_aggregates_are_the_same() -> None:
    rng = np.random.default_rng(5)
    ranges = [sorted(rng.choice(12, 2, replace=False).tolist()) for _ in range(60)]
    queries = [
        WindowedQuery(
            f"q{number}",
            And((Comparison("port", ">=", 80 * low), Comparison("port", "<", 80 * high))),
            tumbling(100 * SECOND),
        )
        for number, (low, high) in enumerate(ranges)
    ]
    shared = SharedAggregation(queries, SCHEMA, "ts", "v")
    data = rows(2_000, 4)
    for batch in data.to_batches():
        shared.on_batch(batch)
    part = shared.partials(0, 100 * SECOND)
    matrix = shared.classifier.fragments.matrix
    fragments = part.codes
    figures = {name: np.zeros(len(matrix), object) for name in ("rows", "count", "sum")}
    for name, values in (("rows", part.rows), ("count", part.values), ("sum", exact_sums(part))):
        figures[name][fragments] = list(values)
    linear = decompose(matrix, Algebra.LINEAR)
    assert linear.size <= 12 < len(queries)  # as many as there are intervals between boundaries
    answers = {name: query_sums(linear, shared_sums(linear, own)).tolist() for name, own in figures.items()}
    cover = decompose(matrix, Algebra.IDEMPOTENT)
    assert cover.size <= 12
    most = np.zeros(len(matrix), np.int64)
    most[fragments] = part.most
    present = np.zeros(len(matrix), np.bool_)
    present[fragments] = part.values > 0
    largest, known = query_extremes(cover, most, present, True)
    expected_rows = {key[0]: key for key in expected(queries, data.filter(_not_before_zero(data)))}
    for number, query in enumerate(queries):
        row = expected_rows[query.name]
        assert [answers[name][number] for name in figures] == list(row[4:7])
        assert known[number] and largest[number] == row[8]


def _not_before_zero(data: pa.Table) -> pa.Array:
    return pa.array(data.column("ts").cast(pa.int64()).to_numpy() >= 0)


def test_late_rows_are_left_out_and_counted() -> None:
    always: Predicate = And(())
    shared = SharedAggregation([WindowedQuery("q", always, tumbling(10))], SCHEMA, "ts", "v")
    data = rows(1, 1)

    def at(*times: int) -> pa.RecordBatch:
        moments = pa.array(times, pa.timestamp("us"))
        return pa.concat_tables([data] * len(times)).set_column(0, "ts", moments).combine_chunks().to_batches()[0]

    shared.on_batch(at(3, 12))
    assert shared.on_watermark(11).column("rows").to_pylist() == [1]
    shared.on_batch(at(10, 11, 13))
    assert shared.late_rows == 1
    assert shared.on_watermark(11).num_rows == 0
    assert shared.on_watermark(20).column("rows").to_pylist() == [3]
    assert shared.on_watermark(500).num_rows == 0


def test_groups_without_rows_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.sharing.windowed._SPARE_GROUPS", 2)
    queries = [WindowedQuery("q", And(()), Window(4 * SECOND, 2 * SECOND), ("host", "zone"))]
    data = rows(1_500, 9)
    hosts = pa.array([f"h{number // 20}" for number in range(1_500)])
    data = data.set_column(data.column_names.index("host"), "host", hosts)
    found, shared = run(queries, data, 50)
    assert found == expected(queries, data)
    assert len(shared._groups) < 40


def test_panes_divide_windows() -> None:
    assert pane_us([Window(60, 20), Window(45, 45)]) == 5
    assert list(windows_closed(Window(20, 5), 0, 21)) == [-15, -10, -5, 0]
    assert list(windows_closed(tumbling(10), 10, 30)) == [10, 20]
    assert list(windows_closed(tumbling(10), 11, 19)) == []
    with pytest.raises(InputError, match="must be positive"):
        Window(5, 10)
    with pytest.raises(InputError, match="at least one window"):
        pane_us([])


def test_what_cannot_be_summed_exactly_is_refused() -> None:
    query = WindowedQuery("q", And(()), tumbling(10))
    with pytest.raises(TypeMismatch, match="whole numbers of up to 64 bits"):
        SharedAggregation([query], SCHEMA, "ts", "size")
    with pytest.raises(UnknownColumn, match="reads column 'prot'"):
        SharedAggregation([query], SCHEMA, "ts", "prot")
