"""Symmetric joins of random queries over random streams at one simulated site, against the DuckDB oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeds import scaled

from watersmeet.plan.nodes import Plan
from watersmeet.planners.local import local
from watersmeet.program.site import filing
from watersmeet.program.storage import segments
from watersmeet.program.storage.merging import FAN_OUT
from watersmeet.program.storage.shelf import Segment
from watersmeet.query.bags import Bag, bag_of
from watersmeet.query.model import JoinQuery
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.sites.rows import HASH, typed
from watersmeet.sim.sites.simulated import SimulatedSites
from watersmeet.sim.sites.site import SimulatedSite
from watersmeet.sim.sites.trial import answered_before
from watersmeet.testing import split

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


Batch = dict[str, pa.Table]


@dataclass(frozen=True)
class Case:
    """A query, its streams whole and in micro-batches, and how they are processed."""

    sql: str
    tables: Mapping[str, pa.Table]
    batches: Sequence[Batch]
    delay: int = 0
    buckets: int = 1


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sql, stream_of = draw(queries())
    delay = draw(st.integers(0, 3))
    tables = {name: draw(streams(delay)) for name in sorted(set(stream_of.values()))}
    count = draw(st.integers(1, 6))
    pieces = {
        name: split(table, draw(st.lists(st.integers(0, table.num_rows), min_size=count - 1, max_size=count - 1)))
        for name, table in tables.items()
    }
    batches = [{name: piece[number] for name, piece in pieces.items()} for number in range(count)]
    return Case(sql, tables, batches, delay, draw(st.integers(1, 3)))


class OneSite:
    """A query whose streams all arrive at its site, one micro-batch at a time."""

    def __init__(
        self, sql: str, streams: Sequence[str], delay: int = 0, buckets: int = 1, hash_sql: str = HASH
    ) -> None:
        columns = dict.fromkeys(streams, COLUMNS)
        self.query: JoinQuery = typed(parse_query(sql, columns), dict.fromkeys(streams, SCHEMA))
        self.plan: Plan = local(self.query, columns, "here")
        self.sites = SimulatedSites(
            self.plan,
            dict.fromkeys(streams, "ts"),
            delays_us=dict.fromkeys(streams, delay * SECOND),
            buckets=buckets,
            hash_sql=hash_sql,
        )

    @property
    def site(self) -> SimulatedSite:
        return self.sites.sites["here"]

    def batch(self, batch: Batch) -> None:
        self.sites.feed(self.sites.kernel.now_us, batch)
        self.sites.run()

    @property
    def answers(self) -> Bag:
        return sum((bag_of(table) for table in self.sites.answers()), Bag())

    def expected(self, tables: Mapping[str, pa.Table]) -> Bag:
        """The reference semantics up to where all watermarks are, if rows are counted."""
        heads_before_us, is_begun = answered_before(self.sites, self.plan)
        if not is_begun:
            return Bag()
        return bag_of(answer(self.query, tables, dict.fromkeys(tables, "ts"), heads_before_us=heads_before_us))


def run(case: Case) -> OneSite:
    site = OneSite(case.sql, sorted({name for batch in case.batches for name in batch}), case.delay, case.buckets)
    for batch in case.batches:
        site.batch(batch)
    return site


def check(case: Case) -> None:
    site = run(case)
    assert site.answers == site.expected(case.tables)


@settings(repeatable, max_examples=40)
@given(cases())
def test_random_queries_give_the_answers_of_the_reference_semantics(case: Case) -> None:
    check(case)


@pytest.mark.soak
@settings(repeatable, max_examples=scaled(1_500))
@given(cases())
def test_a_thousand_random_queries_give_the_answers_of_the_reference_semantics(case: Case) -> None:
    check(case)


def steady(rows: int, keys: int, step_us: int, seed: int) -> pa.Table:
    state, out = seed, []
    for number in range(rows):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append({"k": (state >> 33) % keys, "m": 0, "s": "x", "id": number, "ts": number * step_us})
    return pa.Table.from_pylist(
        out, schema=pa.schema([f if f.name != "ts" else ("ts", pa.int64()) for f in SCHEMA])
    ).cast(SCHEMA)


@pytest.mark.few(2)
@pytest.mark.parametrize("window", ["[RANGE 20 SECONDS]", "[TUMBLE 20 SECONDS]", "[ROWS 100]"])
@pytest.mark.parametrize("where", ["a.k = b.k AND b.k = c.k", "a.k = b.k AND b.m = c.m AND b.k = c.id"])
def test_state_stays_flat_and_answers_exact_over_many_small_batches(window: str, where: str) -> None:
    rows, a_batch = 1_400, 20
    tables = {name: steady(rows, 50, SECOND // 5, seed) for seed, name in enumerate("abc")}
    sql = f"SELECT a.id AS a, b.id AS b, c.id AS c FROM a {window}, b {window}, c {window} WHERE {where}"
    pieces = {name: split(table, range(a_batch, rows, a_batch)) for name, table in tables.items()}
    batches = [{name: pieces[name][number] for name in tables} for number in range(rows // a_batch)]
    here = OneSite(sql, "abc")
    sizes, ticks, counts, files = [], [], [], []
    for batch in batches:
        here.batch(batch)
        ledger = here.site.ledger
        sizes.append(rows_in(ledger.relations) + rows_in(ledger.pending))
        ticks.append(rows_in(ledger.clocks))
        counts.append(max(map(len, ledger.relations.values())))
        files.append(len(here.site.shelf))
    assert here.answers == here.expected(tables)
    indexes = len(here.site.ledger.relations)
    assert indexes == (3 if where.count("AND") == 1 else 5), "one for each key of each alias"
    assert max(sizes[20:]) <= indexes * 100 * 2.6 + 3 * 40, "windows of 100 rows keep at most some dead rows"
    assert max(ticks) <= 3 * 100 * 3, "what lingers for a window's length and reaches back another, and a bit more"
    assert max(counts) <= 4 * FAN_OUT
    assert max(files[20:]) <= 3 * max(files[10:20])


def rows_in(kept: Mapping[str, Sequence[Segment]]) -> int:
    return sum(segment.rows for segments in kept.values() for segment in segments)


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
def test_a_row_is_evicted_only_when_no_head_at_the_watermark_can_reach_it(
    window: str, old: float, head: float, answers: int
) -> None:
    sql = f"SELECT a.id AS a, b.id AS b FROM a {window}, b {window} WHERE a.k = b.k"
    empty = rows_at()
    batches = [{"a": rows_at(old), "b": rows_at(head)}, {"a": empty, "b": rows_at(head)}]
    assert run(Case(sql, {}, batches)).answers.total() == answers


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_last_rows_are_counted_across_batches(count: int) -> None:
    sql = f"SELECT a.id AS a, b.id AS b FROM a [ROWS {count}], b [RANGE 1 SECOND] WHERE a.k = b.k"
    batches = [
        {"a": rows_at(1, 2, 3, 4), "b": rows_at(3.2)},  # takes the rows of a up to 3, since b has come to 3.2
        {"a": rows_at(9), "b": rows_at(3.5, 9)},
    ]
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in ("a", "b")}
    here = run(Case(sql, whole, batches))
    assert here.answers == here.expected(whole)
    # b at 3.2 and 3.5 each meet the last rows of a before them, of 1, 2 and 3; a at 4 meets both.
    assert here.answers.total() == 2 * min(count, 3) + 2


def test_equal_hashes_of_different_values_do_not_join() -> None:
    sql = (
        "SELECT a.s AS a, b.s AS b, c.id AS c FROM a [UNBOUNDED], b [UNBOUNDED], c [UNBOUNDED] "
        "WHERE a.s = b.s AND b.k = c.k"
    )
    rows = pa.Table.from_pylist(
        [{"k": 1, "m": 0, "s": text, "id": n, "ts": n * SECOND} for n, text in enumerate(["x", "y", "zz"])],
        schema=SCHEMA,
    )
    here = OneSite(sql, "abc", hash_sql="length({})")
    here.batch(dict.fromkeys("abc", rows))
    assert here.answers == here.expected(dict.fromkeys("abc", rows))
    assert here.answers.total() == 9


def test_composite_keys_with_equal_hashes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    real = segments.sort_key
    monkeypatch.setattr(filing, "sort_key", lambda keys, rows: real(keys[:1], rows))  # sees the first attribute only
    sql = "SELECT a.id AS a, b.id AS b FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k AND a.id = b.id"
    rows = {"a": rows_at(1, 2, 3), "b": rows_at(1, 2, 3)}
    assert run(Case(sql, rows, [rows], buckets=2)).answers == Bag({(0, 0): 1, (1, 1): 1, (2, 2): 1})
