"""Simulations: the answers of the reference semantics, the same bytes for the same seed, and totals that agree."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from watersmeet.cli.main import run_command
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.query.sql import parse_query
from watersmeet.sim.overlays.ring import Ring
from watersmeet.sim.scenario.load import load_scenario
from watersmeet.sim.scenario.model import RJoinSettings, Scenario
from watersmeet.sim.scenario.network import LatencyKind, NetworkSettings, OverlayKind
from watersmeet.sim.scenario.outcome import ranked_loads
from watersmeet.sim.scenario.rjoin.settings import Hops, delta_us, hops_of, overlay_of
from watersmeet.sim.scenario.simulate import simulate
from watersmeet.sim.scenario.sources import read_stream
from watersmeet.sim.scenario.trace import Trace
from watersmeet.sim.scenario.workload import UserLoad, ZipfLoad

SCENARIO = """\
network: {nodes: 60, overlay: chord, latency: king, hop: 200 ms, seed: 5}
rjoin: {pairs: false}
streams:
  a:
    schema: "ts timestamp, k int, v double"
    event_time: ts
    home: any
    source: {format: generator, options: {rows: 60, rows_per_second: 2, disorder: 3 seconds, seed: 1,
      column.k: null 0.1 uniform 0 6, column.v: uniform 0 1}}
  b:
    schema: "k int, name string, ts timestamp"
    event_time: ts
    home: 7
    source: {format: generator, options: {rows: 60, rows_per_second: 2, seed: 2, column.k: uniform 0 6,
      column.name: choice x y z}}
  c:
    schema: "ts timestamp, name string, n long"
    event_time: ts
    source: {format: generator, options: {rows: 30, rows_per_second: 1, seed: 3, column.name: choice x y w}}
queries:
  ranges:
    home: 3
    sql: >
      SELECT a.k, a.v, b.name, c.n FROM a [RANGE 4 SECONDS], b [RANGE 3 SECONDS], c [RANGE 5 SECONDS]
      WHERE a.k = b.k AND b.name = c.name AND a.v < 0.8
    sink: {path: out/ranges}
  mixed:
    sql: >
      SELECT x.k, x.v + y.v AS w, c.n FROM a [ROWS 5] AS x, a [TUMBLE 5 SECONDS] AS y, c [RANGE 2 SECONDS]
      WHERE x.k = y.k AND x.v < y.v AND c.n > x.k
    allow_cross: true
  few:
    sql: SELECT DISTINCT b.name, a.k FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k AND b.name <> 'z'
  late:
    sql: SELECT b.k, c.n FROM b [UNBOUNDED], c [ROWS 3] WHERE b.name = c.name
    start: "2025-01-01 00:00:15"
"""
STARTS_US = {"late": 1_735_689_615_000_000}


def saved(directory: Path, text: str = SCENARIO) -> Path:
    path = directory / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def expected_of(scenario: Scenario) -> dict[str, Any]:
    load = scenario.load
    assert isinstance(load, UserLoad)
    tables = {published.stream.name: read_stream(published.stream) for published in load.streams}
    event_times = {published.stream.name: published.stream.event_time_column for published in load.streams}
    found = {}
    for asked in load.queries:
        query = parse_query(asked.query.sql, load.columns, allow_cross=asked.query.allow_cross)
        found[asked.query.name] = bag_of(answer(query, tables, event_times, start_us=STARTS_US.get(asked.query.name)))
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("overlay", "latency", "strategy", "nodes"),
    [
        ("chord", LatencyKind.KING, "rjoin", 60),
        ("bamboo", LatencyKind.KING, "rjoin", 60),
        ("chord", LatencyKind.CONSTANT, "worst", 1_000),
        ("bamboo", LatencyKind.TRANSIT_STUB, "random", 9),
        ("chord", LatencyKind.STAR, "first", 8),
    ],
)
def test_answers_are_those_of_the_oracle(
    tmp_path: Path, overlay: str, latency: LatencyKind, strategy: str, nodes: int
) -> None:
    scenario = load_scenario(saved(tmp_path))
    network = replace(scenario.network, latency=latency, hop_us=None)
    scenario = replace(scenario, network=network).changed(overlay=overlay, strategy=strategy, nodes=nodes)
    outcome = simulate(scenario)
    expected = expected_of(scenario)
    for name, bag in expected.items():
        assert bag.total() > 5, f"{name} would show nothing"
        assert bag_of(outcome.table(name)) == bag, name
    assert outcome.summary.answers_by_query == {name: bag.total() for name, bag in expected.items()}
    assert outcome.summary.answers == sum(bag.total() for bag in expected.values())
    assert outcome.summary.tuples == 150 and outcome.summary.queries == 4
    assert bag_of(pq.read_table(tmp_path / "out" / "ranges" / "answers.parquet")) == expected["ranges"]


LONG = """\
network: {nodes: 20, hop: 1 ms, seed: 2}
rjoin: {pairs: false}
streams:
  a: {schema: "ts timestamp, k int", event_time: ts, source: {format: generator, options: {rows: 80,
    rows_per_second: 0.2, seed: 1, column.k: uniform 0 9}}}
  b: {schema: "ts timestamp, k int, j int", event_time: ts, source: {format: generator, options: {rows: 80,
    rows_per_second: 0.2, seed: 2, column.k: uniform 0 9, column.j: uniform 0 9}}}
queries:
  short: {sql: "SELECT a.k, b.j FROM a [RANGE 20 SECONDS], b [RANGE 20 SECONDS] WHERE a.k = b.k"}
  ever: {sql: "SELECT DISTINCT a.k, b.j FROM a [UNBOUNDED], b [UNBOUNDED] WHERE a.k = b.k"}
  product: {allow_cross: true, sql: "SELECT a.k, b.j FROM a [ROWS 3], b [ROWS 2] WHERE a.k < 3 AND b.j < 3"}
"""


def test_what_is_swept_is_not_missed_and_distinct_answers_are_counted_as_they_come(tmp_path: Path) -> None:
    scenario = load_scenario(saved(tmp_path, LONG))
    _, *looks, end = [json.loads(line) for line in traced(scenario).splitlines()]
    expected = {name: bag.total() for name, bag in expected_of(scenario).items()}
    assert end["summary"]["answers_by_query"] == expected and min(expected.values()) > 5
    assert looks[-1]["answers"] == sum(expected.values())
    assert isinstance(scenario.load, UserLoad)
    alone = replace(scenario, load=replace(scenario.load, queries=scenario.load.queries[:1]))
    kept = simulate(alone).summary
    assert kept.answers == expected["short"] and kept.storage.total < 200  # of 400 that came


def traced(scenario: Scenario) -> str:
    file = io.StringIO()
    simulate(scenario, trace=Trace(file))
    return file.getvalue()


@cache
def lines_of(window_us: int | None, seed: int) -> tuple[str, ...]:
    load = ZipfLoad(queries=30, tuples=40, warm_up=20, values=5, ways=3, relations=4, attributes=3, window_us=window_us)
    return tuple(traced(Scenario(NetworkSettings(nodes=200, seed=seed), RJoinSettings(), load)).splitlines())


@pytest.mark.parametrize("window_us", [None, 10_000_000])
def test_a_trace_is_whole_and_its_totals_agree(window_us: int | None) -> None:
    start, *looks, end = [json.loads(line) for line in lines_of(window_us, 1)]
    assert start["line"] == "start" and start["version"] == 1 and start["seed"] == 1 and start["nodes"] == 200
    assert start["overlay"] == "chord" and start["parameters"]["workload"]["queries"] == 30
    assert [int(text, 16) for text in start["identifiers"]] == Ring.random(200, 1).identifiers.tolist()
    assert end["line"] == "end" and {look["line"] for look in looks} == {"look"}
    assert len(looks) >= 35
    assert looks[0]["tuples"] == 0 == looks[0]["messages"]["tuples"] and looks[0]["messages"]["queries"] > 0
    times = [start["first_us"], *(look["time_us"] for look in looks), end["time_us"]]
    assert times == sorted(times) and len(set(times[1:-1])) == len(looks)
    assert end["time_us"] - start["first_us"] == end["summary"]["virtual_us"]
    for name in ("tuples", "answers"):
        counts = [look[name] for look in looks]
        assert counts == sorted(counts) and counts[-1] == end["summary"][name], "the last look is at the end"
    for before, after in zip(looks, [*looks[1:], end["summary"]], strict=True):
        assert all(before["messages"][purpose] <= after["messages"][purpose] for purpose in before["messages"])
        assert before["load"]["total"] <= after["load"]["total"]
        assert [load for _, load in before["top"]] == sorted((load for _, load in before["top"]), reverse=True)
        assert not before["top"] or before["top"][0][1] == before["load"]["highest"]
    summary = end["summary"]
    purposes = ("tuples", "queries", "rates", "answers")
    assert summary["messages"]["total"] == sum(summary["messages"][purpose] for purpose in purposes) > 0
    assert summary["answers"] > 0 and summary["tuples"] == 40
    assert summary["load"]["mean"] == summary["load"]["total"] / 200


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    path, first, again, other = saved(tmp_path), tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for file, seed in ((first, 5), (again, 5), (other, 6)):
        assert (
            run_command(["simulate", str(path), "--quiet", "--tuples", "50", "--trace", str(file), "--seed", str(seed)])
            == 0
        )
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    zipf = lines_of(None, 1)
    lines_of.cache_clear()
    assert lines_of(None, 1) == zipf != lines_of(None, 2)


def test_whoever_looks_changes_nothing() -> None:
    load = ZipfLoad(queries=20, tuples=15, warm_up=5, values=4, ways=3, relations=4, attributes=2)
    scenario = Scenario(NetworkSettings(nodes=100, latency=LatencyKind.KING), RJoinSettings(), load)
    figures = json.loads(traced(scenario).splitlines()[-1])["summary"]
    assert simulate(scenario).summary.data == figures


@pytest.mark.parametrize(("window_us", "own"), [(None, False), (7_000_000, True)])
def test_generated_queries_have_the_answers_of_the_oracle(window_us: int | None, own: bool) -> None:
    load = ZipfLoad(4, 3, 4, 0.9, 3, queries=6, tuples=40, warm_up=10, window_us=window_us, own_ranking=own)
    summary = simulate(Scenario(NetworkSettings(nodes=50, seed=3), RJoinSettings(), load)).summary
    workload = load.workload(3)
    streams: dict[str, list[pa.Table]] = {name: [] for name in workload.schemas}
    for number, (stream, row) in enumerate(workload.tables(50)):
        stamp = pa.array([number * 1_000_000], pa.timestamp("us", "UTC"))
        if number >= 10:  # those before were there before anybody asked
            streams[stream].append(row.append_column("ts", stamp))
    tables = {
        name: pa.concat_tables(rows) if rows else workload.schemas[name].empty_table() for name, rows in streams.items()
    }
    expected = [answer(query, tables, workload.event_times).num_rows for query in workload.queries(6)]
    assert summary.answers == sum(expected) > 0


def _as_csv(table: pa.Table, path: Path) -> None:
    text = table.set_column(0, "ts", pc.strftime(table.column("ts"), "%Y-%m-%d %H:%M:%S"))
    pacsv.write_csv(text, path)


def _as_json(table: pa.Table, path: Path) -> None:
    rows = [{**row, "ts": row["ts"].isoformat(), "more": 1} for row in table.to_pylist()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda table, path: pq.write_table(table, path),
    "csv": _as_csv,
    "json": _as_json,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_topology_with_files_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("name", pa.string())])
    chance = np.random.default_rng(4)
    tables = {}
    for stream in "ab":
        stamps = pa.array(np.sort(chance.integers(0, 30, 40)) * 1_000_000).cast(schema.field("ts").type)
        names = pa.array([None if n == 0 else f"n{n}" for n in chance.integers(0, 4, 40)], pa.string())
        tables[stream] = pa.table([stamps, pa.array(chance.integers(0, 8, 40)), names], schema=schema)
        directory = tmp_path / "data" / stream
        directory.mkdir(parents=True)
        for part in (0, 1):
            WRITERS[kind](tables[stream].slice(20 * part, 20), directory / f"{part}.{kind}")
        (directory / "_SUCCESS").touch()
    options = "{header: true, maxFilesPerTrigger: 1}" if kind == "csv" else "{maxFilesPerTrigger: 1}"
    lines = ["sites: [ams, nyc]", "streams:"]
    for stream, site in (("a", "ams"), ("b", "nyc")):
        lines += [f"  {stream}:", f"    site: {site}", '    schema: "ts timestamp, k long, name string"']
        lines += ["    event_time: ts", f"    source: {{format: {kind}, path: data/{stream}, options: {options}}}"]
    sql = "SELECT a.k, a.name, b.ts FROM a [RANGE 5 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k AND a.name = b.name"
    lines += ["queries:", f"  q: {{site: nyc, sql: '{sql}', sink: {{format: parquet, path: out/q}}}}", ""]
    path = saved(tmp_path, "\n".join(lines))
    options_given = ["--nodes", "40", "--seed", "9", "--format", "json", "--out", str(tmp_path / "answers")]
    assert run_command(["simulate", str(path), "--system", "rjoin", *options_given]) == 0
    figures = json.loads(capsys.readouterr().out)
    expected = bag_of(answer(parse_query(sql, dict.fromkeys("ab", schema.names)), tables, {"a": "ts", "b": "ts"}))
    assert expected.total() > 5
    assert bag_of(pq.read_table(tmp_path / "answers" / "q.parquet")) == expected
    assert figures["answers_by_query"] == {"q": expected.total()}
    assert (figures["nodes"], figures["seed"], figures["tuples"]) == (40, 9, 80) and figures["wall_s"] > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "content", "sentence"),
    [
        ("csv", "2025-01-01 00:00:00,x\n", "cannot be read as csv"),
        ("csv", "noon,1\n", "cannot be read as csv: 'noon' in column 'ts' is no timestamp"),
        ("json", '{"ts": "2025-01-01", "k": "x"}\n', "cannot be read as json"),
        ("parquet", "text", "cannot be read as parquet"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, content: str, sentence: str
) -> None:
    (tmp_path / "data").write_text(content, encoding="utf-8")
    path = saved(
        tmp_path,
        f"network: {{nodes: 4}}\nstreams:\n  a: {{schema: 'ts timestamp, k int', event_time: ts, "
        f"source: {{format: {kind}, path: data}}}}\nqueries:\n  q: {{sql: 'SELECT x.k FROM a [UNBOUNDED] AS x, "
        "a [UNBOUNDED] AS y WHERE x.k = y.k'}\n",
    )
    assert run_command(["simulate", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and f"stream 'a': {tmp_path / 'data'}" in shown and sentence in shown


def test_the_table_names_the_seed_and_what_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    plot = tmp_path / "load.svg"
    path = str(saved(tmp_path))
    assert run_command(["simulate", path, "--tuples", "30", "--overlay", "bamboo", "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    for text in ("seed 5", "60, bamboo, latency king", "of ranges", "rates (RIC)", "per tuple and node", "taking part"):
        assert text in shown
    assert "most loaded first" in plot.read_text(encoding="utf-8")
    assert run_command(["simulate", path, "--tuples", "30", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("seed 5: ")


def test_loads_are_ranked() -> None:
    outcome = simulate(Scenario(NetworkSettings(nodes=30), RJoinSettings(), ZipfLoad(queries=5, tuples=10, warm_up=0)))
    rows = ranked_loads(outcome)
    assert rows[0]["load"] == outcome.load.max() == outcome.summary.load.highest
    assert [row["rank"] for row in rows][-1] == 30


@pytest.mark.parametrize("overlay", OverlayKind)
def test_delays_are_those_of_the_model(overlay: OverlayKind) -> None:
    network = NetworkSettings(nodes=300, overlay=overlay, latency=LatencyKind.KING, hop_us=100_000, seed=2)
    peers = overlay_of(network)
    hops = hops_of(network, peers)
    assert 80_000 < float(np.median(hops.pairs_us)) < 125_000
    is_near = float(np.median(hops.routed_us)) < 0.8 * float(np.median(hops.pairs_us))
    assert is_near == (overlay is OverlayKind.BAMBOO)  # its tables prefer near peers
    delays = hops.delays(2)
    delays_us = delays(np.array([0, 1, 5] * 2_000, np.int64)).reshape(-1, 3)
    assert not delays_us[:, 0].any() and (delays_us % 10_000 == 0).all()
    means = delays_us.mean(axis=0)
    assert abs(means[1] / (hops.pairs_us.mean() + 5_000) - 1) < 0.1
    assert abs(means[2] / (5 * hops.routed_us.mean() + 5_000) - 1) < 0.1


def test_delta_grows_with_the_network_and_its_delays() -> None:
    from watersmeet.program.rjoin.tables import Widths

    def delta(nodes: int, hop_us: int) -> int:
        each = np.array([hop_us], np.int64)
        return delta_us(Ring.random(nodes, 1), Hops(each, each), Widths(3, 4, 2))

    longest_route = int(Ring.random(2_000, 1).hops(0, np.random.default_rng(1).integers(1 << 63, size=5_000)).max())
    assert delta(1, 1_000) < delta(50, 1_000) < delta(2_000, 1_000) < delta(2_000, 2_000)
    assert delta(2_000, 1_000) > 16 * longest_route * 1_000
