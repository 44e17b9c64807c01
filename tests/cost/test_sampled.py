"""What is counted of a sample, against the same counted row by row; and plans of streams that are not independent."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.cost.sampled import SampledJoins
from watersmeet.cost.sampling import has_what_is_compared, rows_wanted, sampled_joins, too_short
from watersmeet.cost.sizes import one_size, size_at
from watersmeet.plan.shape import shape_of
from watersmeet.planners.choose import choose
from watersmeet.query.sql import parse_query
from watersmeet.query.windows import Range, Rows, Tumble, Window
from watersmeet.sim.sites.rows import typed
from watersmeet.stats.model import Stats, StreamStats
from watersmeet.stats.samples import FILTER, KEY, TIME, VALUE, sample_of
from watersmeet.topology.load import load_topology

SCHEMA = pa.schema([("k", pa.int64()), ("m", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000
SQL = """
    SELECT a.v AS x, b.v AS y, c.v AS z FROM a [RANGE 3 SECONDS], b [ROWS 4], c [TUMBLE 5 SECONDS]
    WHERE a.k = b.k AND b.m = c.m AND a.v > 20 AND a.v < b.v
"""
ALIASES = "abc"


@dataclass(frozen=True)
class Row:
    """A row as a query sees it."""

    number: int
    low: int
    high: int
    k: int
    m: int
    v: int


Found = tuple[Row, ...]


def rows_of(seed: int) -> dict[str, pa.Table]:
    chance = Random(seed)
    tables = {}
    for name in ALIASES:
        times = sorted(chance.randrange(30 * SECOND) for _ in range(60))
        columns = {
            "k": [chance.choice((None, 1, 2, 3, 4, 5)) for _ in times],
            "m": [chance.randrange(4) for _ in times],
            "v": [chance.randrange(100) for _ in times],
            "ts": times,
        }
        tables[name] = pa.table({**columns, "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))}, SCHEMA)
    return tables


def stats_of(tables: dict[str, pa.Table]) -> Stats:
    found = {}
    for name, table in tables.items():
        columns: dict[str, pa.ChunkedArray] = {TIME: table.column("ts").cast(pa.int64())}
        columns |= {KEY + key: table.column(key) for key in ("k", "m")}
        columns |= {VALUE + "v": table.column("v")}
        columns |= {FILTER + "`a.v` > 20": pa.array(table.column("v").to_numpy() > 20)}
        found[name] = StreamStats(sample=sample_of(columns, is_whole=True))
    return Stats(found)


def joins_of(seed: int) -> SampledJoins:
    tables = rows_of(seed)
    schemas = dict.fromkeys(ALIASES, SCHEMA)
    query = typed(parse_query(SQL, dict.fromkeys(ALIASES, SCHEMA.names)), schemas, dict.fromkeys(ALIASES, "ts"))
    shape = shape_of(query, dict.fromkeys(ALIASES, SCHEMA.names))
    assert shape.scans[0].filters[0].sql == "`a.v` > 20"
    found = sampled_joins(shape.scans, shape.classes, shape.conditions, stats_of(tables), 2.0)
    assert found is not None
    return found


def seen(seed: int) -> dict[str, list[Row]]:
    """The rows of each alias, with until when they are visible."""
    windows: dict[str, Window] = {"a": Range(3 * SECOND), "b": Rows(4), "c": Tumble(5 * SECOND)}
    tables = rows_of(seed)
    begin = min(int(table.column("ts").cast(pa.int64())[0].as_py()) for table in tables.values())
    end = max(int(table.column("ts").cast(pa.int64())[-1].as_py()) for table in tables.values()) + 1
    found = {}
    for name, table in tables.items():
        times = table.column("ts").cast(pa.int64()).to_pylist()
        rows = []
        for number, (time, k, m, v) in enumerate(
            zip(times, *(table.column(key).to_pylist() for key in ("k", "m", "v")), strict=True)
        ):
            match windows[name]:
                case Range(length):
                    high = time + length
                case Tumble(length):
                    high = time // length * length + length - 1
                case Rows(count):
                    high = times[number + count] - 1 if number + count < len(times) else end
                case _:
                    raise AssertionError
            if (name == "c" or k is not None) and (name != "a" or v > 20):
                rows.append(Row(number, time - begin, min(max(high, time), end) - begin, k or 0, m, v))
        found[name] = rows
    return found


def combinations(rows: dict[str, list[Row]], names: str) -> Iterator[Found]:
    for one in product(*(rows[name] for name in names)):
        by = dict(zip(names, one, strict=True))
        if "a" in by and "b" in by and (by["a"].k != by["b"].k or by["a"].v >= by["b"].v):
            continue
        if "b" in by and "c" in by and by["b"].m != by["c"].m:
            continue
        if max(row.low for row in one) <= min(row.high for row in one):
            yield one


def mask_of(names: str) -> int:
    return sum(1 << ALIASES.index(name) for name in names)


def live(found: Found) -> tuple[int, int]:
    return max(row.low for row in found), min(row.high for row in found)


@pytest.mark.parametrize("seed", range(5))
def test_combinations_are_those_that_a_query_would_make(seed: int) -> None:
    joins, rows = joins_of(seed), seen(seed)
    for names in ("a", "b", "c", "ab", "bc", "abc"):
        expected = list(combinations(rows, names))
        assert joins.count(mask_of(names)) == len(expected), names
        for name in names:
            place = names.index(name)
            led = [
                one
                for one in expected
                if max(range(len(one)), key=lambda other: (one[other].low, names[other])) == place
            ]
            assert joins.count(mask_of(names), ALIASES.index(name)) == len(led)
            assert joins.batches(mask_of(names), ALIASES.index(name)) * joins.span_s == pytest.approx(
                len({live(one)[0] // (2 * SECOND) for one in led})
            )
    assert not joins.is_tied(mask_of("ac"))


@pytest.mark.parametrize("seed", range(5))
def test_shares_of_semijoins_are_those_of_rows_that_meet_any_other(seed: int) -> None:
    joins, rows = joins_of(seed), seen(seed)
    ab, cs = list(combinations(rows, "ab")), rows["c"]
    slack = SECOND

    met = [any(c.m == one[1].m and c.low <= live(one)[0] <= c.high + slack for c in cs) for one in ab]
    share, of = joins.met(mask_of("ab"), mask_of("c"), 1.0)
    assert share == pytest.approx(np.mean(met)) and of == len(ab)

    over = [any(c.m == one[1].m and c.low <= live(one)[1] and live(one)[0] <= c.high for c in cs) for one in ab]
    share, of = joins.overlapping(mask_of("ab"), mask_of("c"), 0.0)
    assert share == pytest.approx(np.mean(over)) and of == len(ab)

    led = [one for one in ab if (one[1].low, 1) > (one[0].low, 0)]
    asked = [any(c.m == one[1].m and c.low <= live(one)[0] <= c.high for one in led) for c in cs]
    share, of = joins.fetched(mask_of("c"), mask_of("ab"), 1, spans=False, slack_s=0.0)
    assert share == pytest.approx(np.mean(asked)) and of == len(cs)
    keys = {(live(one)[0] // (2 * SECOND), one[1].m) for one in led}
    assert joins.asked(mask_of("ab"), 1, mask_of("c")) == len(keys)


@pytest.mark.parametrize("seed", range(5))
def test_announcements_go_on_from_the_end_of_those_before_as_long_as_rows_come(seed: int) -> None:
    joins, rows = joins_of(seed), seen(seed)
    spans: list[tuple[int, int, int]] = []
    for k in {row.k for row in rows["a"]}:
        until, last = -1, -1
        for row in sorted((row for row in rows["a"] if row.k == k), key=lambda row: row.low):
            if row.low > until:
                begin = until if row.low <= last and until >= 0 else row.low
                until = row.high if begin == row.low else max(last, row.high)
                spans.append((k, begin, until))
            last = row.high
    assert joins.announced(mask_of("a"), (0,)) == len(spans)
    wanted = [any(b.k == k and low <= b.low <= high for b in rows["b"]) for k, low, high in spans]
    assert joins.wanted(mask_of("a"), mask_of("b"), 1) == sum(wanted)


def test_rows_that_two_semijoins_take_count_once() -> None:
    joins, rows = joins_of(0), seen(0)
    one = joins.which("met", mask_of("a"), mask_of("b"), 0.0)
    other = joins.which_fetched(mask_of("a"), mask_of("b"), 1, spans=False, slack_s=0.0)
    share, of = joins.gathered([(mask_of("a"), one), (mask_of("a"), other)])
    assert share == pytest.approx((one | other).mean()) and of == len(rows["a"])


def test_a_part_of_the_key_space_has_the_rows_with_its_values() -> None:
    joins, rows = joins_of(1), seen(1)
    part = joins.limited(0, np.array([1, 4]), np.array([2, 4]))
    left = {name: [row for row in rows[name] if name == "c" or row.k in (1, 2, 4)] for name in ALIASES}
    assert part.count(mask_of("abc")) == len(list(combinations(left, "abc")))


def test_a_stream_without_a_sample_or_without_a_key_in_it_leaves_estimates() -> None:
    schemas = dict.fromkeys(ALIASES, SCHEMA)
    query = typed(parse_query(SQL, dict.fromkeys(ALIASES, SCHEMA.names)), schemas, dict.fromkeys(ALIASES, "ts"))
    shape = shape_of(query, dict.fromkeys(ALIASES, SCHEMA.names))
    stats = stats_of(rows_of(0))
    without = Stats({**stats.streams, "b": StreamStats()})
    assert sampled_joins(shape.scans, shape.classes, shape.conditions, without, 2.0) is None
    assert all(has_what_is_compared(scan, shape.classes, without) for scan in shape.scans)
    lacking = sample_of({TIME: pa.array([1, 2]), KEY + "k": pa.array([1, 2])}, is_whole=True)
    without = Stats({**stats.streams, "b": StreamStats(sample=lacking)})
    assert sampled_joins(shape.scans, shape.classes, shape.conditions, without, 2.0) is None
    fits = [has_what_is_compared(scan, shape.classes, without) for scan in shape.scans]
    assert fits == [True, False, True]


def test_samples_that_are_shorter_than_two_windows_leave_estimates_and_say_so() -> None:
    sql = "SELECT a.v AS x FROM a [RANGE 6 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k"
    columns = dict.fromkeys("ab", SCHEMA.names)
    query = typed(parse_query(sql, columns), dict.fromkeys("ab", SCHEMA), dict.fromkeys("ab", "ts"))
    shape = shape_of(query, columns)

    def covering(seconds: int, *, is_whole: bool = False) -> Stats:
        times = pa.array(range(0, seconds * SECOND + 1, SECOND // 10))
        keys = pa.array([number % 7 for number in range(len(times))])
        sample = sample_of({TIME: times, KEY + "k": keys}, is_whole=is_whole)
        return Stats({name: StreamStats(sample=sample) for name in "ab"})

    for stats, is_enough in ((covering(11), False), (covering(13), True), (covering(11, is_whole=True), True)):
        found = sampled_joins(shape.scans, shape.classes, shape.conditions, stats, 1.0)
        short = too_short(shape.scans, stats)
        assert (found is not None, short is None) == (is_enough, is_enough)
    short = too_short(shape.scans, covering(11))
    assert short is not None and not short.is_bound
    assert (short.covered_us, short.needed_us) == (11 * SECOND, 12 * SECOND + 1)
    times = np.arange(0, 100 * SECOND, SECOND // 10)
    taken = times[: rows_wanted(times, 6 * SECOND, 50)]
    assert 12 * SECOND + 1 <= taken[-1] < 12 * SECOND + SECOND, "a sample is taken that is long enough"


def test_explain_says_that_samples_are_too_short_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("""
sites: [x, y, z]
streams:
  a: &stream
    site: x
    schema: "ts timestamp, k long, v long"
    event_time: ts
    source: {format: parquet, path: rows}
    stats: {rate: 10, columns: {k: {distinct: 7}, v: {distinct: 100}}}
  b: {<<: *stream, site: y}
queries:
  q: {site: z, sql: "SELECT a.v AS x FROM a [RANGE 6 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k"}
""")
    topology = load_topology(path)
    query = topology.query("q")
    parsed = typed(parse_query(query.sql, topology.columns), dict.fromkeys("ab", SCHEMA), dict.fromkeys("ab", "ts"))

    def note(seconds: float, rows: int) -> str:
        times = pa.array(np.linspace(0, seconds * SECOND, rows).astype(np.int64))
        sample = sample_of({TIME: times, KEY + "k": pa.array(np.arange(rows) % 7)})
        streams = {name: replace(topology.stats.stream(name), sample=sample) for name in "ab"}
        return choose(replace(topology, stats=replace(topology.stats, streams=streams)), query, parsed).note

    assert "samples cover 11 seconds and would have to cover 12 seconds (two windows)" in note(11, 100)
    assert "run `watersmeet stats` again" in note(11, 100)
    assert "samples have 20,000 rows at most" in note(11, 20_000)
    assert "samples" not in note(13, 100)


@pytest.mark.parametrize("rows", [0.3, 1.0, 7.5, 10.0, 99.0, 1_000.0, 5_000.0, 10_000.0, 1e9])
def test_the_size_of_one_value_is_that_of_many_at_once(rows: float) -> None:
    sizes = (9.0, 5.0, 2.5, 1.5, 1.25)
    assert one_size(sizes, rows) == pytest.approx(float(size_at(sizes, rows)))


def test_sets_with_too_many_combinations_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.cost.sampled._MOST_MADE", 20)
    joins = joins_of(0)
    assert joins.is_tied(mask_of("a")) and not joins.is_tied(mask_of("bc")) and not joins.is_tied(mask_of("abc"))
