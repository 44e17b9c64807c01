"""Explicit and random queries on Spark, over Parquet streams of several micro-batches, against the DuckDB oracle."""

import random
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenes import write_batches
from seeds import scaled

import watersmeet as wm
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Rows
from watersmeet.testing import bag, split

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
DDL = "k long, m int, d decimal(10,2), f float, x double, host string, id long, ts timestamp"
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("m", pa.int32()),
        ("d", pa.decimal128(10, 2)),
        ("f", pa.float32()),
        ("x", pa.float64()),
        ("host", pa.string()),
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
DELAY_S = 3
BATCHES = 3


def rows(seed: int, count: int = 120, keys: int = 10) -> pa.Table:
    """About a row a second, with ties, disorder of up to the watermark, skew and NULLs."""
    draw, clock, out = random.Random(seed), 0.0, []
    for number in range(count):
        clock += draw.choice([0, 0.5, 1, 1, 2])
        k = min(draw.randrange(keys), draw.randrange(keys))
        row = {
            "k": k,
            "m": draw.randrange(keys),
            "d": Decimal(k) if draw.random() < 0.7 else Decimal(k) + Decimal("0.25"),
            "f": float(draw.choice([k, k + 0.5])),
            "x": float(draw.choice([k, k + 0.5])),
            "host": draw.choice(["Ada", "ADA", "bob", "Bob", "eve"]),
        }
        for name in row:
            if draw.random() < 0.04:
                row[name] = None
        out.append(row | {"id": number, "ts": EPOCH + timedelta(seconds=clock - draw.choice([0, 0, 1, DELAY_S]))})
    return pa.Table.from_pylist(out, schema=SCHEMA)


def write_rows(directory: Path, table: pa.Table, batches: int) -> Path:
    """A stream as files of about equal size."""
    return write_batches(directory, split(table, [table.num_rows * n // batches for n in range(1, batches)]))


def stream(name: str, path: Path | str, ddl: str = DDL, *, files: int | None = 1, **more: Any) -> wm.Stream:
    options = {} if files is None else {"maxFilesPerTrigger": str(files)}
    return wm.Stream(
        name,
        **{"event_time": "ts", "watermark": f"{DELAY_S} seconds"} | more,
        schema=ddl,
        source=wm.Source("parquet", str(path), options),
    )


def run(
    spark: Any, tmp: Path, streams: Sequence[wm.Stream], sql: str, **query: Any
) -> tuple[pa.Table, wm.StreamingRun]:
    sink = wm.Sink("parquet", str(tmp / "out"))
    topology = wm.Topology(tuple(streams), (wm.Query("q", sql, sink=sink, **query),))
    handle = wm.start(topology, "q", spark=spark, checkpoint=tmp / "checkpoint", once=True)
    handle.awaitTermination()
    return ds.dataset(tmp / "out", format="parquet").to_table(), handle


def reference(
    streams: Sequence[wm.Stream], tables: Mapping[str, pa.Table], sql: str, *, start_us: int | None = None, **more: Any
) -> pa.Table:
    """The oracle's answer; where a ROWS window counts tuples, up to the instant that all watermarks have passed."""
    query = parse_query(sql, {stream.name: stream.columns for stream in streams}, **more)
    used = {source.stream for source in query.sources}
    event_times = {stream.name: stream.event_time_column for stream in streams}
    watermark = None
    if any(isinstance(source.window, Rows) for source in query.sources):
        marks = [
            max(tables[stream.name].column(stream.event_time_column).cast(pa.int64()).to_pylist()) - stream.watermark_us
            for stream in streams
            if stream.name in used
        ]
        watermark = min(marks)
    return answer(query, tables, event_times, start_us=start_us, heads_before_us=watermark)


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return {name: rows(seed) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def streams(tables: dict[str, pa.Table], tmp_path_factory: pytest.TempPathFactory) -> list[wm.Stream]:
    root = tmp_path_factory.mktemp("streams")
    for name, table in tables.items():
        write_rows(root / name, table, BATCHES)
    return [stream(name, root / name) for name in NAMES]


R = "[RANGE 10 SECONDS]"
AB = f"FROM a {R}, b {R}"
ABC = f"{AB}, c {R}"
ABCD = f"{ABC}, d {R}"


def ids(aliases: str) -> str:
    return ", ".join(f"{alias}.id AS {alias}_id" for alias in aliases)


CASES = {
    "two streams": f"SELECT {ids('ab')} {AB} WHERE a.k = b.k",
    "chain": f"SELECT {ids('abc')} {ABC} WHERE a.k = b.k AND b.m = c.m",
    "star": f"SELECT {ids('abcd')} {ABCD} WHERE a.k = b.k AND a.m = c.m AND a.host = d.host AND a.k < 3",
    "cycle": f"SELECT {ids('abc')} {ABC} WHERE a.k = b.k AND b.m = c.m AND c.host = a.host",
    "clique": f"""SELECT {ids("abcd")} {ABCD} WHERE a.k = b.k AND a.host = c.host AND a.x = d.x AND b.host = c.host
        AND b.x = d.x AND c.k = d.k""",
    "composite keys": f"""SELECT {ids("abc")} {ABC} WHERE a.k = b.k AND a.host = b.host AND b.k = c.k
        AND b.host = c.host AND a.k = c.k""",
    "keys that are expressions": f"""SELECT {ids("abc")} {ABC} WHERE lower(a.host) = b.host AND a.k % 5 = c.m
        AND coalesce(b.m, -1) = c.k""",
    "two keys of one stream in a class": f"SELECT {ids('ab')} {AB} WHERE a.k = b.k AND a.m = b.k",
    "int = long, decimal = int": f"SELECT {ids('abc')} {ABC} WHERE a.m = b.k AND b.d = c.m",
    "float = double = long = decimal": f"SELECT {ids('abcd')} {ABCD} WHERE a.f = b.x AND b.x = c.k AND c.f = d.d",
    "eight streams": f"SELECT {ids('abcdefgh')} FROM {', '.join(f'{n} [RANGE 5 SECONDS]' for n in NAMES)} WHERE "
    + " AND ".join(f"a.k = {n}.k" for n in NAMES[1:]),
    "one stream under two aliases": "SELECT l.id AS l, r.id AS r FROM a [RANGE 9 SECONDS] AS l, a [ROWS 4] AS r, "
    "b [RANGE 9 SECONDS] WHERE l.k = r.k AND r.k = b.k AND l.id < r.id",
    "residuals": f"""SELECT {ids("ab")} {AB} WHERE a.k = b.k AND a.m < b.m AND b.id BETWEEN a.id - 9 AND a.id + 9
        AND abs(a.x - b.x) < 3 AND concat(a.host, b.host) LIKE '%b%' AND NOT a.f <=> b.f""",
    "OR": f"""SELECT {ids("abc")} {ABC} WHERE a.k = b.k AND (a.host = b.host OR a.m = c.m OR c.host IS NULL)
        AND (b.m = c.m) AND (a.m > 2 OR a.m IS NULL)""",
    "filters": f"SELECT {ids('ab')} {AB} WHERE a.k = b.k AND a.k IN (1, 2, 3) AND b.host LIKE 'b%' AND b.x <> 1.5",
    "RANGE, TUMBLE and UNBOUNDED": f"""SELECT {ids("abc")} FROM a [RANGE 2 SECONDS], b [TUMBLE 7 SECONDS],
        c [UNBOUNDED] WHERE a.k = b.k AND b.m = c.m""",
    "RANGE, ROWS, TUMBLE and UNBOUNDED": f"""SELECT {ids("abcd")} FROM a [RANGE 5 SECONDS], b [ROWS 9],
        c [TUMBLE 9 SECONDS], d [UNBOUNDED] WHERE a.k = b.k AND b.k = c.k AND c.m = d.m AND b.m > 1""",
    "RANGE of different lengths": f"""SELECT {ids("abc")} FROM a [RANGE 1 SECOND], b [RANGE 20 SECONDS],
        c [RANGE 500 MILLISECONDS] WHERE a.k = b.k AND b.k = c.k""",
    "DISTINCT": f"SELECT DISTINCT a.host, b.m, a.x {AB} WHERE a.k = b.k",
    "DISTINCT of an expression": f"SELECT DISTINCT a.k % 3 AS r, named_struct('h', b.host) AS s {AB} WHERE a.k = b.k",
    "DISTINCT of a constant": f"SELECT DISTINCT 1 AS one {AB} WHERE a.k = b.k",
    "select expressions": f"""SELECT a.k + b.m * 2 AS sum, a.x / 4 AS quarter, b.d AS d, upper(a.host) || '!' AS loud,
        CASE WHEN a.k > 3 THEN 'high' WHEN a.k > 1 THEN 'mid' ELSE b.host END AS band, substr(b.host, 2, 1) AS letter,
        named_struct('a', a.id, 'h', b.host) AS both, a.id AS once, a.id AS twice, a.ts {AB} WHERE a.k = b.k""",
    "SELECT *": f"SELECT * {AB} WHERE a.k = b.k AND a.m = b.m",
    "a constant only": f"SELECT 1 AS one {AB} WHERE a.k = b.k",
    "nothing of one stream": f"SELECT b.id, b.ts {ABC} WHERE a.k = b.k AND b.host = c.host",
}


@pytest.mark.few(7)
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_oracle(
    spark: Any, tmp_path: Path, streams: list[wm.Stream], tables: dict[str, pa.Table], name: str
) -> None:
    got, handle = run(spark, tmp_path, streams, CASES[name])
    expected = bag(reference(streams, tables, CASES[name]))
    assert expected, "a case without answers shows nothing"
    assert bag(got) == expected
    assert handle.usage().rows_out == expected.total()
    assert handle.usage().late == handle.usage().malformed == 0


def test_the_streams_above_are_out_of_order_across_batches(tables: dict[str, pa.Table]) -> None:
    first, second, *_ = split(tables["a"], [40, 80])
    assert min(second["ts"].to_pylist()) < max(first["ts"].to_pylist())


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {ids('ab')} FROM a [RANGE 1 SECOND], b [ROWS 2]",
        f"SELECT {ids('abc')} FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k",
    ],
    ids=["no equality at all", "a stream without any"],
)
def test_cross_joins_where_they_are_allowed(
    spark: Any, tmp_path: Path, streams: list[wm.Stream], tables: dict[str, pa.Table], sql: str
) -> None:
    got, _ = run(spark, tmp_path, streams, sql, allow_cross=True)
    assert bag(got) == bag(reference(streams, tables, sql, allow_cross=True)) != {}


def test_only_tuples_from_the_start_on_take_part(
    spark: Any, tmp_path: Path, streams: list[wm.Stream], tables: dict[str, pa.Table]
) -> None:
    sql = f"SELECT {ids('ab')} FROM a [ROWS 7], b [UNBOUNDED] WHERE a.k = b.k"
    start = EPOCH + timedelta(seconds=30, microseconds=500_000)
    got, _ = run(spark, tmp_path, streams, sql, start=start.isoformat())
    start_us = round(start.timestamp() * 1e6)
    assert bag(got) == bag(reference(streams, tables, sql, start_us=start_us)) != bag(reference(streams, tables, sql))


@pytest.mark.parametrize("window", ["[RANGE 10 SECONDS]", "[ROWS 6]"])
def test_one_huge_batch(spark: Any, tmp_path: Path, window: str) -> None:
    # No ties: which of several files of one batch arrived first is not told.
    steps = pa.array([EPOCH + timedelta(seconds=0.7 * n) for n in range(120)], SCHEMA.field("ts").type)
    given = {name: rows(seed).set_column(7, "ts", steps) for seed, name in enumerate("abc")}
    streams = [stream(name, write_rows(tmp_path / name, given[name], 5), files=None) for name in given]
    sql = f"SELECT {ids('abc')} FROM a {window}, b {window}, c {window} WHERE a.k = b.k AND b.k = c.k"
    got, handle = run(spark, tmp_path, streams, sql)
    assert handle.micro_batches == 1
    assert bag(got) == bag(reference(streams, given, sql)) != {}


def test_many_tiny_batches_of_streams_of_different_length(spark: Any, tmp_path: Path) -> None:
    given = {"a": rows(1, 60), "b": rows(2, 60), "c": rows(3, 30)}
    counts = {"a": 12, "b": 9, "c": 2}
    streams = [stream(name, write_rows(tmp_path / name, given[name], counts[name])) for name in given]
    sql = f"SELECT {ids('abc')} FROM a {R}, b {R}, c {R} WHERE a.k = b.k AND b.k = c.k"
    got, handle = run(spark, tmp_path, streams, sql)
    assert handle.micro_batches == 12
    assert bag(got) == bag(reference(streams, given, sql)) != {}


@pytest.mark.parametrize("window", ["[RANGE 10 SECONDS]", "[ROWS 6]"])
def test_an_empty_stream_joins_nothing(spark: Any, tmp_path: Path, streams: list[wm.Stream], window: str) -> None:
    (tmp_path / "none").mkdir()
    sql = f"SELECT {ids('ab')} FROM a {window}, b {window}, nothing {window} WHERE a.k = b.k AND b.k = nothing.k"
    (tmp_path / "out").mkdir()
    got, handle = run(spark, tmp_path, [*streams, stream("nothing", tmp_path / "none")], sql)
    assert got.num_rows == 0
    assert handle.usage().rows_in == 240 and handle.usage().rows_out == 0


def test_an_event_time_without_zone(spark: Any, tmp_path: Path) -> None:
    plain = pa.timestamp("us")
    given = {name: rows(seed).set_column(7, "ts", rows(seed)["ts"].cast(plain)) for seed, name in enumerate("ab")}
    ddl = DDL.replace("ts timestamp", "ts timestamp_ntz")
    streams = [stream(name, write_rows(tmp_path / name, given[name], 3), ddl) for name in given]
    sql = f"SELECT {ids('ab')}, a.ts {AB} WHERE a.k = b.k"
    got, _ = run(spark, tmp_path, streams, sql)
    assert got.schema.field("ts").type == plain
    assert bag(got) == bag(reference(streams, given, sql)) != {}


def test_column_names_with_spaces_dots_and_backquotes(spark: Any, tmp_path: Path) -> None:
    names = ["the key", "m", "d", "f.f", "x", "ho`st", "i.d", "event time"]
    given = {name: rows(seed).rename_columns(names) for seed, name in enumerate("abc")}
    ddl = "`the key` long, m int, d decimal(10,2), `f.f` float, x double, `ho``st` string, `i.d` long, "
    ddl += "`event time` timestamp"
    streams = [
        stream(name, write_rows(tmp_path / name, given[name], 3), ddl, event_time="event time") for name in given
    ]
    sql = """SELECT a.`i.d`, b.`i.d` AS `b.i d`, upper(c.`ho``st`) AS `UP``PER`, c.`f.f` AS `f, f;`
        FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS], c [RANGE 10 SECONDS]
        WHERE a.`the key` = b.`the key` AND lower(b.`ho``st`) = lower(c.`ho``st`) AND a.`f.f` < c.`f.f`"""
    got, _ = run(spark, tmp_path, streams, sql)
    assert got.column_names == ["i.d", "b.i d", "UP`PER", "f, f;"]
    assert bag(got) == bag(reference(streams, given, sql)) != {}


# ---- random queries over random data

windows = st.sampled_from(["[RANGE 4 SECONDS]", "[RANGE 15 SECONDS]", "[TUMBLE 6 SECONDS]", "[ROWS 5]", "[UNBOUNDED]"])
sides = st.sampled_from(["{}.k", "{}.m", "{}.d", "{}.f", "{}.x", "{}.k % 4", "abs({}.m - 5)", "coalesce({}.k, {}.m)"])
texts = st.sampled_from(["{}.host", "lower({}.host)", "substr({}.host, 1, 1)"])
residuals = st.sampled_from(["{}.id < {}.id + 9", "{}.host <> {}.host", "({}.m > 4 OR {}.x IS NULL)", "{}.f <= {}.d"])


@st.composite
def random_queries(draw: st.DrawFn) -> str:
    aliases = [f"t{number}" for number in range(draw(st.integers(2, 4)))]
    conditions = []
    for number, alias in enumerate(aliases[1:]):
        other = aliases[draw(st.integers(0, number))]
        kinds = draw(st.sampled_from([sides, sides, texts]))
        conditions.append(f"{draw(kinds).format(other, other)} = {draw(kinds).format(alias, alias)}")
    for _ in range(draw(st.integers(0, 2))):
        conditions.append(draw(residuals).format(*draw(st.permutations(aliases))[:2]))
    sources = ", ".join(f"{draw(st.sampled_from('abc'))} {draw(windows)} AS {alias}" for alias in aliases)
    select = ", ".join(f"{alias}.id AS {alias}_id" for alias in aliases)
    if draw(st.booleans()):
        select = f"DISTINCT {aliases[0]}.host, {aliases[-1]}.k"
    return f"SELECT {select} FROM {sources} WHERE {' AND '.join(conditions)}"


repeatable = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def check_random(spark: Any, sql: str, seed: int, batches: int) -> None:
    given_rows = {name: rows(seed + number, 40, 6) for number, name in enumerate("abc")}
    with tempfile.TemporaryDirectory() as directory:
        tmp = Path(directory)
        streams = [stream(name, write_rows(tmp / name, given_rows[name], batches)) for name in given_rows]
        (tmp / "out").mkdir()
        got, _ = run(spark, tmp, streams, sql)
        assert bag(got) == bag(reference(streams, given_rows, sql))


@settings(repeatable, max_examples=8)
@given(random_queries(), st.integers(0, 10**6), st.integers(1, 3))
def test_random_queries_over_random_streams(spark: Any, sql: str, seed: int, batches: int) -> None:
    check_random(spark, sql, seed, batches)


@pytest.mark.soak
@settings(repeatable, max_examples=scaled(150))
@given(random_queries(), st.integers(0, 10**6), st.integers(1, 3))
def test_many_random_queries_over_random_streams(spark: Any, sql: str, seed: int, batches: int) -> None:
    check_random(spark, sql, seed, batches)
