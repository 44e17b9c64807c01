"""Random queries over random streams, run in this process, against the DuckDB oracle."""

import os
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watersmeet.program.join import stages
from watersmeet.program.site.ledger import FAN_OUT
from watersmeet.program.storage import segments
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.testing import InProcess, bag, split

LONG = pytest.mark.skipif(not os.environ.get("WATERSMEET_SOAK"), reason="long; run by `make soak`")
repeatable = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

SECOND = 1_000_000
COLUMNS = ("k", "m", "s", "id", "ts")
SCHEMA = pa.schema(
    [("k", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)

windows = st.one_of(
    st.integers(1, 12).map(lambda n: f"[RANGE {n} SECONDS]"),
    st.integers(1, 8).map(lambda n: f"[TUMBLE {n} SECONDS]"),
    st.integers(1, 6).map(lambda n: f"[ROWS {n}]"),
    st.just("[UNBOUNDED]"),
)


@st.composite
def streams(draw: st.DrawFn, delay: int) -> pa.Table:
    """A stream whose disorder stays inside the delay, with ties, NULLs and few keys."""
    rows = draw(st.integers(0, 14))
    clock, out = draw(st.integers(-5, 5)), []
    for number in range(rows):
        clock += draw(st.integers(0, 4))
        nulls = draw(st.integers(0, 19))
        out.append(
            {
                "k": None if nulls == 0 else draw(st.integers(0, 2)),
                "m": None if nulls == 1 else draw(st.integers(0, 1)),
                "s": None if nulls == 2 else draw(st.sampled_from(["x", "y"])),
                "id": number,
                "ts": (clock - draw(st.integers(0, delay))) * SECOND,
            }
        )
    return pa.Table.from_pylist(
        out, schema=pa.schema([f if f.name != "ts" else ("ts", pa.int64()) for f in SCHEMA])
    ).cast(SCHEMA)


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """A connected query over two to five aliases, some of the same stream, with equalities of any shape."""
    count = draw(st.integers(2, 5))
    aliases = [f"t{number}" for number in range(count)]
    stream_of = {alias: f"s{draw(st.integers(0, count - 1))}" for alias in aliases}
    edges = [(aliases[draw(st.integers(0, number - 1))], aliases[number]) for number in range(1, count)]
    for _ in range(draw(st.integers(0, 3))):
        pair = draw(st.permutations(aliases))[:2]
        edges.append((pair[0], pair[1]))
    names = [
        draw(st.sampled_from([("k", "k"), ("k", "k"), ("m", "m"), ("s", "s"), ("k", "m"), ("k", "id")])) for _ in edges
    ]
    where = [f"{a}.{x} = {b}.{y}" for (a, b), (x, y) in zip(edges, names, strict=True)]
    if draw(st.booleans()):
        where.append(f"{draw(st.sampled_from(aliases))}.id > 0")
    if draw(st.booleans()):
        where.append(f"{aliases[0]}.id <> {aliases[-1]}.id")
    only = draw(st.sampled_from([None, windows]))
    same = draw(windows) if only is None else None
    froms = ", ".join(f"{stream_of[a]} {same or draw(windows)} AS {a}" for a in aliases)
    select = ", ".join(f"{a}.id AS {a}_id" for a in aliases)
    return f"SELECT {select} FROM {froms} WHERE {' AND '.join(where)}", stream_of


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, dict[str, pa.Table], int, list[dict[str, pa.Table]], int]:
    sql, stream_of = draw(queries())
    delay = draw(st.integers(0, 3))
    tables = {name: draw(streams(delay)) for name in sorted(set(stream_of.values()))}
    count = draw(st.integers(1, 6))
    pieces = {
        name: split(table, draw(st.lists(st.integers(0, table.num_rows), min_size=count - 1, max_size=count - 1)))
        for name, table in tables.items()
    }
    batches = [{name: piece[number] for name, piece in pieces.items()} for number in range(count)]
    return sql, tables, delay, batches, draw(st.integers(1, 3))


def run(sql: str, batches: list[dict[str, pa.Table]], delay: int, buckets: int) -> tuple[Counter, InProcess]:
    names = sorted({name for batch in batches for name in batch})
    query = parse_query(sql, dict.fromkeys(names, COLUMNS))
    with tempfile.TemporaryDirectory() as directory:
        process = InProcess(
            query,
            dict.fromkeys(names, SCHEMA),
            dict.fromkeys(names, "ts"),
            Path(directory),
            delays_us=dict.fromkeys(names, delay * SECOND),
            buckets=buckets,
        )
        return sum((bag(process.batch(batch)) for batch in batches), Counter()), process


def expected(sql: str, tables: dict[str, pa.Table], process: InProcess) -> Counter:
    query = parse_query(sql, dict.fromkeys(tables, COLUMNS))
    horizon = None
    if process.join.ordered:
        horizon = process.ledger.released_to
        if horizon is None:
            return Counter()
    return bag(answer(query, tables, dict.fromkeys(tables, "ts"), heads_before_us=horizon))


def check(case: tuple) -> None:
    sql, tables, delay, batches, buckets = case
    got, process = run(sql, batches, delay, buckets)
    assert got == expected(sql, tables, process)


@settings(repeatable, max_examples=70)
@given(cases())
def test_random_queries_give_the_bag_of_the_law(case: tuple) -> None:
    check(case)


@pytest.mark.soak
@LONG
@settings(repeatable, max_examples=1_500)
@given(cases())
def test_a_thousand_random_queries_give_the_bag_of_the_law(case: tuple) -> None:
    check(case)


def steady(rows: int, keys: int, step_us: int, seed: int) -> pa.Table:
    state, out = seed, []
    for number in range(rows):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append({"k": (state >> 33) % keys, "m": 0, "s": "x", "id": number, "ts": number * step_us})
    return pa.Table.from_pylist(
        out, schema=pa.schema([f if f.name != "ts" else ("ts", pa.int64()) for f in SCHEMA])
    ).cast(SCHEMA)


@pytest.mark.parametrize("window", ["[RANGE 20 SECONDS]", "[TUMBLE 20 SECONDS]", "[ROWS 100]"])
@pytest.mark.parametrize("where", ["a.k = b.k AND b.k = c.k", "a.k = b.k AND b.m = c.m AND b.k = c.id"])
def test_state_stays_flat_and_answers_exact_over_many_small_batches(window: str, where: str) -> None:
    rows, a_batch = 1_400, 20
    tables = {name: steady(rows, 50, SECOND // 5, seed) for seed, name in enumerate("abc")}
    sql = f"SELECT a.id AS a, b.id AS b, c.id AS c FROM a {window}, b {window}, c {window} WHERE {where}"
    pieces = {name: split(table, range(a_batch, rows, a_batch)) for name, table in tables.items()}
    batches = [{name: pieces[name][number] for name in tables} for number in range(rows // a_batch)]
    query = parse_query(sql, dict.fromkeys(tables, COLUMNS))
    with tempfile.TemporaryDirectory() as directory:
        process = InProcess(query, dict.fromkeys(tables, SCHEMA), dict.fromkeys(tables, "ts"), Path(directory))
        got: Counter = Counter()
        sizes, counts, files = [], [], []
        for batch in batches:
            got += bag(process.batch(batch))
            per_index = [len(segments) for segments in process.ledger.windows.values()]
            sizes.append(sum(s.rows for s in process.ledger.segments))
            counts.append(max(per_index))
            files.append(len(list((Path(directory) / "state").iterdir())))
    assert got == expected(sql, tables, process)
    indexes = len(process.ledger.windows)
    assert max(sizes[20:]) <= indexes * 100 * 2.6 + 3 * 40, "windows of 100 rows keep at most some dead rows"
    assert max(counts) <= 4 * FAN_OUT
    assert max(files[20:]) <= 3 * max(files[10:20])


def rows_at(*seconds: float) -> pa.Table:
    rows = [{"k": 1, "m": 0, "s": "x", "id": n, "ts": int(second * SECOND)} for n, second in enumerate(seconds)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.mark.parametrize(
    ("window", "old", "head", "answers"),
    [
        ("[RANGE 10 SECONDS]", 0, 10, 2),
        ("[RANGE 10 SECONDS]", 0, 10.000001, 0),
        ("[TUMBLE 10 SECONDS]", 0, 9.999999, 2),
        ("[TUMBLE 10 SECONDS]", 0, 10, 0),
        ("[UNBOUNDED]", 0, 1000, 2),
    ],
)
def test_a_row_is_given_back_only_when_no_head_at_the_watermark_can_reach_it(
    window: str, old: float, head: float, answers: int
) -> None:
    sql = f"SELECT a.id AS a, b.id AS b FROM a {window}, b {window} WHERE a.k = b.k"
    empty = rows_at()
    batches = [{"a": rows_at(old), "b": rows_at(head)}, {"a": empty, "b": rows_at(head)}]
    got, _ = run(sql, batches, 0, 1)
    assert got.total() == answers


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_last_rows_are_counted_across_batches(count: int) -> None:
    sql = f"SELECT a.id AS a, b.id AS b FROM a [ROWS {count}], b [RANGE 1 SECOND] WHERE a.k = b.k"
    batches = [
        {"a": rows_at(1, 2, 3, 4), "b": rows_at(3.2)},  # takes the rows of a up to 3, since b has come to 3.2
        {"a": rows_at(9), "b": rows_at(3.5, 9)},
    ]
    got, process = run(sql, batches, 0, 1)
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in ("a", "b")}
    assert got == expected(sql, whole, process)
    # b at 3.2 and 3.5 each meet the last rows of a before them, of 1, 2 and 3; a at 4 meets both.
    assert got.total() == 2 * min(count, 3) + 2


def test_equal_hashes_of_different_values_do_not_join(tmp_path: Path) -> None:
    query = parse_query(
        "SELECT a.s AS a, b.s AS b, c.id AS c FROM a [UNBOUNDED], b [UNBOUNDED], c [UNBOUNDED] "
        "WHERE a.s = b.s AND b.k = c.k",
        dict.fromkeys("abc", COLUMNS),
    )
    rows = pa.Table.from_pylist(
        [{"k": 1, "m": 0, "s": text, "id": n, "ts": n * SECOND} for n, text in enumerate(["x", "y", "zz"])],
        schema=SCHEMA,
    )
    schemas = dict.fromkeys("abc", SCHEMA)
    process = InProcess(query, schemas, dict.fromkeys("abc", "ts"), tmp_path, hash_sql="length({})")
    got = bag(process.batch(dict.fromkeys("abc", rows)))
    assert got == bag(answer(query, dict.fromkeys("abc", rows), dict.fromkeys("abc", "ts")))
    assert got.total() == 9


def test_composite_keys_with_equal_hashes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    real = segments.sort_key
    weak = lambda keys, rows: real(keys[:1], rows)  # noqa: E731 - a hash that looks at the first attribute only
    monkeypatch.setattr(segments, "sort_key", weak)
    monkeypatch.setattr(stages, "sort_key", weak)
    sql = "SELECT a.id AS a, b.id AS b FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k AND a.id = b.id"
    got, _ = run(sql, [{"a": rows_at(1, 2, 3), "b": rows_at(1, 2, 3)}], 0, 2)
    assert got == Counter({(0, 0): 1, (1, 1): 1, (2, 2): 1})
