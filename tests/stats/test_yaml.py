"""Statistics in the topology: every key, every slip with its place, and files that lose nothing."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.errors import TopologyError
from watersmeet.stats.model import Bin, ColumnStats, Histogram, Number, Origin, Stats, StreamStats
from watersmeet.stats.sketches import StreamSketch
from watersmeet.stats.yaml import filled, read_stats, write_stats
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import Source, Stream, Topology

COLUMNS = {"a": ("k", "host", "ts"), "b": ("k", "ts")}
TOPOLOGY = """\
{top}streams:
  a:
    schema: "k long, host string, ts timestamp"
    event_time: ts
    source: {{format: parquet, path: data/a}}
    stats:{stats}
  b:
    schema: "k long, ts timestamp"
    event_time: ts
    source: {{format: parquet, path: data/b}}
queries:
  q:
    sql: SELECT a.k AS k FROM a [ROWS 1], b [ROWS 1] WHERE a.k = b.k
"""


def load(directory: Path, stats: str, top: str = "") -> Topology:
    """A topology whose stream `a` has these statistics, from line 7 on."""
    path = directory / "topology.yaml"
    path.write_text(TOPOLOGY.format(stats=stats, top=top), encoding="utf-8")
    return load_topology(path)


def test_every_key_of_a_stream_is_read(tmp_path: Path) -> None:
    topology = load(
        tmp_path,
        """
      rate: 250
      row_bytes: 0.5 kB
      columns:
        K:
          distinct: 2000
          sizes: [9, 6, 4.5]
          in_order: [1, 0.5, 0.1]
          histogram: [{value: 11, share: 0.25}, {low: 1, high: 10, share: 0.75}]
        host:
          bytes: 12 B
          distinct: {value: 60, origin: observed, confidence: 0.5, taken_at: "2025-01-31T12:00:00+01:00"}""",
    )
    stats = topology.stats.stream("a")
    assert stats.rate == Number(250.0)
    assert stats.row_bytes == Number(500.0)
    bins = (Bin(1, 10, 10.0, 0.75), Bin(11, 11, 1.0, 0.25))
    assert stats.columns["k"] == ColumnStats(
        Number(2000.0), Histogram(bins), (9.0, 9.0, 6.0, 4.5, 4.5), (1.0, 1.0, 0.5, 0.1, 0.1)
    )
    assert stats.columns["host"].sizes == (12.0,) * 5
    assert stats.columns["host"].distinct == Number(60.0, Origin.OBSERVED, 0.5, 1738321200.0)
    assert topology.stats.stream("b") == StreamStats()


@pytest.mark.parametrize(
    ("stats", "line", "fragments"),
    [
        (" {rte: 1}", 6, ["unknown key 'rte' in stats of stream 'a'", "did you mean 'rate'"]),
        (" {rate: fast}", 6, ["rate in stats of stream 'a' must be a number, not 'fast'"]),
        (" {rate: -1}", 6, ["must be 0 or more, not -1"]),
        (" {rate: .nan}", 6, ["rate in stats of stream 'a' must be a number"]),
        (" {rate: inf}", 6, ["must be 0 or more, not inf"]),
        (" {rate: {value: 1, confidence: 2}}", 6, ["confidence", "must be from 0 to 1, not 2"]),
        (" {rate: {confidence: 1}}", 6, ["has no value"]),
        (" {rate: {value: 1, origin: observd}}", 6, ["unknown origin 'observd'", "did you mean 'observed'"]),
        (" {rate: {value: 1, taken_at: noon}}", 6, ["'noon' is not a timestamp"]),
        (" {row_bytes: 5 stone}", 6, ["unknown unit 'stone'"]),
        ("\n      columns:\n        hst: {distinct: 1}", 8, ["unknown column 'hst'", "did you mean 'host'"]),
        ("\n      columns:\n        k: {distinct: 1}\n        K: {distinct: 2}", 9, ["given twice"]),
        (" {columns: {k: {bytes: 8, sizes: [1, 1, 1]}}}", 6, ["both bytes and sizes"]),
        (" {columns: {k: {sizes: [1, 1]}}}", 6, ["must be five"]),
        (" {columns: {k: {sizes: [1, 1, 1], in_order: [1]}}}", 6, ["must be five"]),
        (" {columns: {k: {in_order: [1, 1, 1]}}}", 6, ["has in_order without sizes; give both, or bytes"]),
        (" {columns: {k: {histogram: 7}}}", 6, ["must be a list"]),
        (" {columns: {k: {histogram: [{low: 1, share: 1}]}}}", 6, ["either a value or both low and high"]),
        (" {columns: {k: {histogram: [{value: 1}]}}}", 6, ["has no share"]),
        (" {columns: {k: {histogram: [{value: 1.5, share: 1}]}}}", 6, ["must be a whole number, not '1.5'"]),
        (" {columns: {k: {histogram: [{value: 9223372036854775808, share: 1}]}}}", 6, ["must fit 64 bits"]),
        (" {columns: {k: {histogram: [{low: 2, high: 1, share: 1}]}}}", 6, ["low 2 above high 1"]),
        (" {columns: {k: {histogram: [{value: 1, share: 0.5}]}}}", 6, ["add up to 0.5; they must add up to 1"]),
        (
            " {columns: {k: {histogram: [{low: 1, high: 5, share: 0.5}, {value: 5, share: 0.5}]}}}",
            6,
            ["the bins 1..5 and 5 overlap"],
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, stats: str, line: int, fragments: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        load(tmp_path, stats)
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / 'topology.yaml'}, line {line}: ")
    assert "\n" not in told
    for fragment in fragments:
        assert fragment in told


def test_a_file_fills_the_gaps_and_overrides_nothing(tmp_path: Path) -> None:
    (tmp_path / "stats.yaml").write_text(
        "streams:\n  A: {rate: 1, row_bytes: 30, columns: {k: {distinct: 5, bytes: 8}}}\n  b: {rate: 2}\n"
        "selectivities: {'`a.k` > 3': 0.25}\n",
        encoding="utf-8",
    )
    topology = load(tmp_path, " {rate: 250, columns: {k: {distinct: 7}}}", "stats_file: stats.yaml\n")
    stats = topology.stats
    assert stats.stream("a").rate == Number(250.0)
    assert stats.stream("a").row_bytes == Number(30.0)
    assert stats.stream("a").columns["k"] == ColumnStats(Number(7.0), None, (8.0, 8.0, 8.0, 8.0, 8.0))
    assert stats.stream("b").rate == Number(2.0)
    assert stats.selectivities == {"`a.k` > 3": Number(0.25)}


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("streams: {a: {rate: 1}, A: {rate: 1}}", "given twice"),
        ("rates: {}", "line 1: unknown key 'rates' in a file of statistics"),
        ("selectivities: {x: 1.5}", "selectivity 'x' must be from 0 to 1, not 1.5"),
        ("", "the file is empty; it needs `streams` or `selectivities`"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, fragment: str) -> None:
    (tmp_path / "stats.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError, match=r"stats\.yaml") as caught:
        load(tmp_path, " {}", "stats_file: stats.yaml\n")
    assert fragment in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"line 1: stats_file .*absent\.yaml does not exist"):
        load(tmp_path, " {}", "stats_file: absent.yaml\n")


def test_a_value_with_statistics_of_no_stream_is_refused() -> None:
    stream = Stream("a", event_time="ts", schema="ts timestamp", source=Source("parquet", "x"))
    with pytest.raises(TopologyError, match="stats: unknown stream 'b'"):
        Topology((stream,), stats=Stats({"b": StreamStats()}))


AMOUNTS = st.floats(0, 1e18, allow_nan=False) | st.integers(0, 10**6).map(float)
SHARES = st.floats(0, 1)
INSTANTS = st.none() | st.integers(0, 4_000_000_000).map(float)
ORIGINS = st.sampled_from(list(Origin))
NUMBERS = st.builds(Number, AMOUNTS, ORIGINS, SHARES, INSTANTS)
SELECTIVITIES = st.builds(Number, SHARES, ORIGINS, SHARES, INSTANTS)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    edges = sorted(draw(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=20)))
    weights = draw(st.lists(st.integers(1, 100), min_size=len(edges) - 1, max_size=len(edges) - 1))
    bins = []
    for low, high, weight in zip(edges, edges[1:], weights, strict=False):
        top = low if draw(st.booleans()) else high - 1
        distinct = draw(st.just(float(top - low + 1)) | AMOUNTS)
        bins.append(Bin(low, top, distinct, weight / sum(weights)))
    return Histogram(tuple(bins), draw(ORIGINS), draw(SHARES), draw(INSTANTS))


SIZES = st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
COLUMN = st.builds(
    lambda distinct, histogram, sizes: ColumnStats(distinct, histogram, *sizes),
    st.none() | NUMBERS,
    st.none() | histograms(),
    st.just((None, None)) | st.tuples(SIZES, st.none() | SIZES),
)
STATS = st.builds(
    Stats,
    st.fixed_dictionaries(
        {},
        optional={
            name: st.builds(
                StreamStats,
                st.none() | NUMBERS,
                st.none() | NUMBERS,
                st.fixed_dictionaries({}, optional=dict.fromkeys(columns, COLUMN)),
            )
            for name, columns in COLUMNS.items()
        },
    ),
    st.dictionaries(st.text("`a.bk <>='é:#", min_size=1), SELECTIVITIES, max_size=3),
)


@given(STATS)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, stats: Stats) -> None:
    path = tmp_path_factory.mktemp("stats") / "stats.yaml"
    path.write_text(write_stats(stats), encoding="utf-8")
    assert read_stats(path, COLUMNS) == stats


@given(STATS, STATS)
def test_filling_keeps_what_there_is(first: Stats, second: Stats) -> None:
    assert filled(first, Stats()) == first
    assert filled(Stats(), second) == second
    both = filled(first, second)
    for name in COLUMNS:
        assert both.stream(name).rate == (first.stream(name).rate or second.stream(name).rate)
    assert both.selectivities.items() >= first.selectivities.items()


def test_streams_of_a_file_that_the_topology_does_not_have_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "stats.yaml").write_text("streams: {c: {rate: 1}, b: {rate: 2}}", encoding="utf-8")
    stats = load(tmp_path, " {}", "stats_file: stats.yaml\n").stats
    assert (stats.stream("b").rate, stats.unknown) == (Number(2.0), ("c",))


def test_how_rows_come_is_written_and_read(tmp_path: Path) -> None:
    sketch = StreamSketch()
    sketch.count(np.arange(100) * 2_000_000)  # a row every two seconds
    came = sketch.stats(Origin.ESTIMATED)
    assert came.busy[0.5] == pytest.approx(0.25, 0.02) and came.busy[1.0] == pytest.approx(0.5, 0.02)
    assert came.busy[5.0] == 1.0
    (tmp_path / "stats.yaml").write_text(write_stats(Stats({"b": came})), encoding="utf-8")
    assert load(tmp_path, " {}", "stats_file: stats.yaml\n").stats.stream("b").busy == came.busy
